"""Ghost clipping: sums of clipped per-record gradients whose weights' gradients are never multiplied out.

In: per-record gradients of most weights as factors, backprops b_p and inputs a_p of the layer at positions p, and those
of other parameters as they are. Out: per-node sums of clipped gradients, as of `clipping.clipped_sums`, whose rule this
follows. A record's gradient of a weight is G = sum_p b_p a_p^T, and ||G||^2 = sum_pq (a_p . a_q) (b_p . b_q): memory
grows as B P (I + O + P), not as B I O. Which parameters have factors is found in `tasks.record_clipping`; what is
clipped here is what is summed here, so the bound holds whatever the factors are.

Source: Goodfellow, arXiv:1510.01799v2 (norms of linear layers); Li et al., arXiv:2110.05679v6, Section 4 (positions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import clipping

CANCELLATION = 2.0**-27
"""Share of T^2, T = sum_p ||a_p|| ||b_p||, that is added to ||G||^2: at P = 1 norms come out 4e-9 too large."""
LARGEST_SUM = 2**22
"""The most terms, I + O + P^2, for which `norm_bounds` is proved; weights with more are not factored."""
UNDERFLOW = 2.0**-480
"""Added to each entry's share of a norm: squares that leave the float64 numbers are smaller."""


class Factors(NamedTuple):
    """One weight's per-record gradients: of record r of node u in group g the matrix (O, I) sum_p b_p a_p^T.

    Attributes:
        inputs: a, shape (n, B, groups, P, I); float32 or float64.
        backprops: b, shape (n, B, groups, P, O), of the same type.
    """

    inputs: torch.Tensor
    backprops: torch.Tensor

    @property
    def entries(self) -> int:
        """Entries of one record's gradient."""
        return self.inputs.shape[2] * self.inputs.shape[4] * self.backprops.shape[4]


def norm_bounds(plain: Sequence[torch.Tensor], factors: Sequence[Factors]) -> torch.Tensor:
    """Upper bounds on the L2 norms of per-record gradients over all parameters together, (n, B) in float64.

    Args:
        plain: gradients (n, B, ...) of parameters without factors.
        factors: of the other parameters, I + O + P^2 <= `LARGEST_SUM`.

    Guarantees:
        With u = 2^-53, c in [0, 1], w_p = b_p c rounded in float64 and D the entries of all gradients, the norm of
        (sum_p w_p a_p^T over factors, c g rounded over plain g) is at most c (1 + (D + 11) u) times the bound, plus
        1e-150 sqrt(D): in exact arithmetic on the given floats, whatever their size. Not finite where an a, b or g is
        not; above the exact norm by a share of at most 2^-27 (T / ||G||)^2, and (D + 8) u.

    Proof, one group; groups and parameters add up as squares, their rounding is that of `clipping.gradient_norms`.
        S = ||G||^2 is a sum of P^2 terms (a_p . a_q)(b_p . b_q). However it is grouped, float64 errs by at most
        1.01 (I + O + P^2 + 4) u sum_pq (|a_p| . |a_q|)(|b_p| . |b_q|) <= 2^-30 T^2, by Cauchy-Schwarz. The computed
        T is at least T (1 - 2^-30), so S + 2^-27 T^2 as computed is at least S + 2^-28 T^2. The rounding of the
        w_p changes c G by at most u c T, and (||G|| + u T)^2 <= S + 3 u T^2 since ||G|| <= T: the share covers it.
        Underflow, only in float64: a product errs by up to 2^-1022, so a_p . a_q by I 2^-1022 and S by
        I 2^-1022 (sum ||b_p||)^2, O 2^-1022 (sum ||a_p||)^2 and less. `UNDERFLOW` adds sqrt(I) 2^-480 to each
        ||a_p|| and sqrt(O) 2^-480 to each ||b_p||, so 2^-27 T^2 grows by 2^-987 times the same. Underflowing w_p move
        an entry by 2^-1022 and meet ||a_p|| < 2^512, as squares beyond give no finite bound: the last term.
    """
    squares = torch.zeros((), dtype=torch.float64)
    if plain:
        squares = clipping.gradient_norms(plain).square()
    for inputs, backprops in factors:
        lengths = _lengths(inputs) * _lengths(backprops)
        triangle = lengths.sum(-1).square()
        exact = triangle
        if inputs.shape[3] > 1:
            a, b = inputs.double(), backprops.double()
            exact = ((a @ a.mT) * (b @ b.mT)).sum((-2, -1))
        squares = squares.to(inputs.device) + (exact + CANCELLATION * triangle).sum(-1)
    return squares.sqrt()


def _lengths(vectors: torch.Tensor) -> torch.Tensor:
    """L2 norms along the last dimension in float64, each a little too large."""
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64) + UNDERFLOW * math.sqrt(vectors.shape[-1])


def clipped_sums(
    plain: Sequence[torch.Tensor], factors: Sequence[Factors], mask: torch.Tensor, clip_norm: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Sums over the batch of the clipped gradients of each node.

    Args:
        plain, factors: as for `norm_bounds`, of one dtype and device; one of them at least.
        mask: bool (n, B); False where the slot holds no record.
        clip_norm: the largest norm of one record's gradient over all parameters together.

    Returns:
        One tensor (n, ...) per plain parameter and one (n, groups, O, I) per weight with factors, in float64 whatever
        the gradients are.

    Guarantees:
        Every summand has exact norm <= clip_norm, rounded to the type of the gradients or not: factor times norm
        bound is below clip_norm by a share of (D + 18) 2^-52, twice what `norm_bounds` leaves open, and by 2 u more, u
        the unit roundoff of that type, of which rounding takes u (and 1e-45 sqrt(D), as clip_norm >= 1e-30). A masked
        record, and one whose bound is not finite, contributes exactly zero. Nothing is rounded to TF32 or bfloat16, as
        float64 products never are.
        The rounding of a sum is covered for one record alone. Two sums of B summands that differ in one of them differ,
        rounded to a type of spacing eps, by at most clip_norm (1 + 2 B eps + B^2 P 2^-36): the bound is at least
        2^-14 T, so c T <= 2^14 clip_norm for each record, and float64 errs in a sum by 1.01 (B P + 1) u B times that.
    Raises:
        InvalidInput: as `clipping.clip_factor`; the shapes are not checked here.
    Cost: 2 n B P I O float64 operations per weight, and for norms 2 n B P^2 (I + O) if P > 1; memory
        n I O + n B P (I + O + P).
    """
    dimension = sum(gradient[0, 0].numel() for gradient in plain) + sum(weight.entries for weight in factors)
    rounded_to = (plain or factors[0])[0].dtype
    bounds = norm_bounds(plain, factors) * (1 + torch.finfo(rounded_to).eps)
    factor = clipping.clip_factor(bounds, clip_norm, dimension=dimension, dtype=torch.float64)
    factor = torch.where(mask, factor, 0.0)

    def kept(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values in float64, zero where the factor is (0 * inf would be nan), and the factor in their shape."""
        shaped = factor.reshape(*factor.shape, *(1,) * (values.ndim - 2))
        return torch.where(shaped > 0, values, 0.0).double(), shaped

    sums = []
    for gradient in plain:
        values, shaped = kept(gradient)
        sums.append((values * shaped).sum(1))
    weight_sums = []
    for inputs, backprops in factors:
        values, shaped = kept(backprops)
        a, w = (part.transpose(1, 2).flatten(2, 3) for part in (kept(inputs)[0], values * shaped))  # (n, g, B P, ...)
        weight_sums.append(w.mT @ a)
    return sums, weight_sums

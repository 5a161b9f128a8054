"""Clipping whose rounding errs on the safe side: of each record for record level, of each node's mean for user level.

In: per-record gradients, one tensor per parameter, or one gradient per node. Out: per-node sums of clipped gradients,
or clipped gradients. Where gradients come from is in `tasks`; what the clipping norm means for privacy is in
`mfdl.privacy`.

The rule, the same for every record or node: a gradient is scaled to norm at most `clip_norm`, over all parameters
together; one with a NaN or an infinity becomes zero; a masked record, or a node without records, gives zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import check
from ..errors import InvalidInput

SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-30, 1e30
"""Outside this range the products of float32 gradients and factors leave the normal numbers."""


def relative_slack(dimension: int, dtype: torch.dtype) -> float:
    """How far below `clip_norm` gradients are shrunk: about 2.4e-7 in float32, 4e-16 + 2e-16 d in float64.

    With u the unit roundoff of `dtype` and v = 2^-53 that of float64: the norm is summed in float64, so its
    relative error is below (d + 8) v however the terms are grouped; the quotient and the target add 3 v;
    rounding the factor to `dtype` adds u and so does each product. The slack 4 u + 2 (d + 16) v exceeds the
    sum of these, 2 u + (d + 11) v, and its second-order terms while d < 2^40.
    """
    return 2 * torch.finfo(dtype).eps + (dimension + 16) * torch.finfo(torch.float64).eps


def clip_factor(
    norms: torch.Tensor, clip_norm: float, *, dimension: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The factor by which each gradient is multiplied, min(1, target / norm), in `dtype`.

    Args:
        norms: float64 L2 norms of gradients of `dimension` entries, any shape.
        clip_norm: the largest norm a clipped gradient may have, in [1e-30, 1e30].
        dimension: entries per gradient.
        dtype: float32 or float64, the type of the gradients.

    Returns:
        Factors in [0, 1], of the shape of `norms`. Non-finite norms give 0, and so do norms so large that the
        factor would be no normal number of `dtype` (norm > 8e37 * clip_norm in float32).

    Guarantees:
        If the norms were summed in float64, the exact norm of the rounded product factor * gradient never
        exceeds clip_norm. Where the factor is neither 0 nor 1, that norm is below clip_norm by a relative
        amount of at most twice `relative_slack`.
    Raises:
        InvalidInput: clip_norm out of range, norms not float64, or dtype neither float32 nor float64.
    """
    clip_norm = check.positive(clip_norm=clip_norm)
    if not SMALLEST_CLIP_NORM <= clip_norm <= LARGEST_CLIP_NORM:
        raise InvalidInput(
            f"clip_norm must be between {SMALLEST_CLIP_NORM:g} and {LARGEST_CLIP_NORM:g}, got {clip_norm:g}; "
            "rescale the loss."
        )
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"gradients must be float32 or float64 to be clipped safely, got {dtype}.")
    if norms.dtype != torch.float64:
        raise InvalidInput(f"norms must be float64, got {norms.dtype}; sum the squares in float64.")
    target = clip_norm * (1 - relative_slack(dimension, dtype))
    factor = (target / norms).clamp(max=1.0)  # norm 0: inf -> 1; norm inf: 0; norm nan: nan
    factor = torch.where(torch.isfinite(norms), factor, 0.0)
    # A subnormal factor has a large relative error, possibly upwards: zero is the safe one.
    return torch.where(factor < torch.finfo(dtype).tiny, 0.0, factor).to(dtype)


def gradient_norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """L2 norms over all parameters, (n, B) in float64; the tensors have shape (n, B, ...)."""
    squares = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        norm = torch.linalg.vector_norm(gradient.unsqueeze(-1).flatten(2), dim=2, dtype=torch.float64)
        squares = squares + norm.square()
    return squares.sqrt()


def clipped_sums(gradients: Sequence[torch.Tensor], mask: torch.Tensor, clip_norm: float) -> list[torch.Tensor]:
    """Sums over the batch of the clipped gradients of each node.

    Args:
        gradients: per-record gradients, one tensor (n, B, ...) per parameter, all of one dtype.
        mask: bool (n, B); False where the slot holds no record.
        clip_norm: the largest norm of one record's gradient over all parameters together.

    Returns:
        One tensor (n, ...) per parameter, in the dtype of the gradients.

    Guarantees:
        Every summand has exact norm <= clip_norm. A masked record and a record with a non-finite gradient
        contribute exactly zero, so an empty batch gives a zero sum.
        The rounding of the sum itself is not covered: two sums of B summands that differ in one of them
        differ by at most clip_norm (1 + 2 B^2 eps) with eps of the dtype (1e-5 relative at B = 7 in float32).
    Raises:
        InvalidInput: as `clip_factor`; the shapes are not checked here.
    """
    dimension = sum(gradient[0, 0].numel() for gradient in gradients)
    factor = clip_factor(gradient_norms(gradients), clip_norm, dimension=dimension, dtype=gradients[0].dtype)
    factor = torch.where(mask, factor, 0.0)
    # The product is elementwise, not a matrix product: those may round their inputs to TF32 or bfloat16.
    # Zeroing non-finite entries makes 0 * inf = 0; the other records have none.
    return [
        (gradient.nan_to_num(0.0, 0.0, 0.0) * factor.reshape(*factor.shape, *(1,) * (gradient.ndim - 2))).sum(1)
        for gradient in gradients
    ]


def clipped_rows(gradients: torch.Tensor, present: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Each node's gradient clipped as a whole: what user-level privacy adds noise to.

    Args:
        gradients: (n, d), one gradient per node, e.g. the mean over its batch.
        present: bool (n,); False where the node holds no record in this batch.
        clip_norm: the largest norm of one row.

    Guarantees:
        Every row has exact norm <= clip_norm, and is exactly zero where it is not present or not finite. So whatever
        becomes of the data of a node, its row moves by at most 2 clip_norm, and by clip_norm if it is replaced by
        zero; no sum is rounded here.
    Raises:
        InvalidInput: as `clip_factor`; the shapes are not checked here.
    """
    return clipped_sums([gradients.unsqueeze(1)], present.unsqueeze(1), clip_norm)[0]

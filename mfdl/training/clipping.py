"""Clipping whose rounding errs on the safe side: of each record (record level) or each node's mean (user level).

A `ClipRule` scales a gradient, over all parameters together, to norm at most `norm` (a number is the flat rule); one
with a NaN or an infinity becomes zero; a masked record, or a node without records, gives zero. Sensitivity needs that
bound alone, so a guarantee holds under every rule; one that rests on a Lipschitz constant of the local maps holds under
the flat rule alone (`replay_config.clip_rule`). Nothing here is cast under torch.autocast.

Ghost clipping (`ghost_clipped_sums`) never multiplies out the gradients of weights. They come as factors, backprops b_p
and inputs a_p of the layer at positions p: a record's gradient is G = sum_p b_p a_p^T, and
||G||^2 = sum_pq (a_p . a_q) (b_p . b_q), so memory grows as B P (I + O + P) and not as B I O. The factors that are
clipped are those that are summed, so the bound holds whatever they are.

Source: Bu et al., arXiv:2206.07136 (AUTO-S); Goodfellow, arXiv:1510.01799v2 (norms of linear layers); Li et al.,
arXiv:2110.05679v6, Section 4 (positions).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch.nn import functional

from .. import check
from ..errors import InvalidInput
from ..spec import Entry, Registry, kebab_case

SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-30, 1e30  # beyond, products of float32 gradients and factors are not normal
SMALLEST_GAMMA = 1e-6  # so no weight exceeds 1e36, and the weight of a zero gradient is a number in float32 too
CLIP_RULES: Registry[Entry] = Registry("clipping", supplied=("norm",), by_position=True)


def _require_range(least: float, **named: float) -> None:
    ((name, number),) = named.items()
    if not least <= check.positive(**named) <= LARGEST_CLIP_NORM:
        raise InvalidInput(
            f"{name} must be between {least:g} and {LARGEST_CLIP_NORM:g}, got {number:g}; rescale the loss."
        )


@dataclasses.dataclass(frozen=True)
class ClipRule(abc.ABC):
    """A weight for each gradient, which is no longer than the clipping norm `norm`, in [1e-30, 1e30], afterwards."""

    norm: float

    def __post_init__(self) -> None:
        _require_range(SMALLEST_CLIP_NORM, clip_norm=self.norm)

    def __str__(self) -> str:
        """Its name and numbers without the norm; runs of different texts share no noise and no checkpoint."""
        values = [str(getattr(self, field.name)) for field in dataclasses.fields(self) if field.name != "norm"]
        return ":".join([kebab_case(type(self).__name__), *filter(None, values)])

    @abc.abstractmethod
    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        """Weights of gradients by their norms, float64, for a clipping norm a little below `self.norm`.

        Guarantees: at most norm / norms (1 + 2^-52), at most 1e36, and 0 or nan where norms are not finite.
        """

    def parts(self, names: Iterable[str]) -> list[tuple[ClipRule, list[str]]]:
        """Parameters that are clipped together, in the module's order; squares of the norms add up to C^2 at most."""
        return [(self, [*names])]

    @property
    def words(self) -> str:
        return ""  # of the flat rule a statement says nothing


@CLIP_RULES.register()
@dataclasses.dataclass(frozen=True)
class Flat(ClipRule):
    """A gradient longer than the clipping norm C is scaled to norm C: min(1, C / ||g||) g."""

    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        return (norm / norms).clamp(max=1.0)  # norm 0: inf -> 1; norm inf: 0; norm nan: nan


@CLIP_RULES.register(example="automatic:0.01")
@dataclasses.dataclass(frozen=True)
class Automatic(ClipRule):
    """Every gradient is normalised, C / (||g|| + gamma) g: C scales gradients and noise alike, gamma decides."""

    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_range(SMALLEST_GAMMA, gamma=self.gamma)

    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        return norm / (norms + self.gamma)

    @property
    def words(self) -> str:
        return f"{self}, each gradient g times {self.norm:g} / (||g|| + {self.gamma:g})"


@CLIP_RULES.register(example="quantile:0.7")
@dataclasses.dataclass(frozen=True)
class Quantile(ClipRule):
    """Flat at a norm that follows a quantile of the norms of a node's records, and divided by it (`record_clipping`).

    Attributes: quantile: share of the norms below, in (0, 1); share: of C that pays for the quantile, in (0, 1).
    """

    quantile: float = 0.7
    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check.open_unit(quantile=self.quantile)
        check.open_unit(share=self.share)

    weights = Flat.weights

    @property
    def words(self) -> str:
        return f"{self}, at a norm that each model learns from a share {self.share:g} of the clipping norm"


@CLIP_RULES.register(example="layers:1:2")
@dataclasses.dataclass(frozen=True)
class Layers(ClipRule):
    """Flat for each layer at its own norm C_l, sum C_l^2 = C^2; a layer has the parameters of one submodule.

    A layer whose gradient is not finite gives zero and counts as one dropped gradient, beside the other layers.

    Attributes: ratios: of the C_l, in the order of the layers, as a text: "1:2"; default all C_l are equal.
    """

    ratios: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            numbers = [float(ratio) for ratio in self.ratios.split(":") if ratio]
        except ValueError:
            raise InvalidInput(f"ratios must be numbers > 0 as in layers:1:2, got {self.ratios!r}.") from None
        for number in numbers:
            _require_range(SMALLEST_CLIP_NORM, ratio=number)
        object.__setattr__(self, "ratios", ":".join(map(str, numbers)))

    weights = Flat.weights

    def parts(self, names: Iterable[str]) -> list[tuple[ClipRule, list[str]]]:
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        ratios = [float(ratio) for ratio in self.ratios.split(":") if ratio] or [1.0] * len(layers)
        if len(ratios) != len(layers):
            raise InvalidInput(
                f"clipping {self} has {len(ratios)} ratios, and the module has {len(layers)} layers with parameters: "
                f"{', '.join(layer or 'itself' for layer in layers)}; give one for each, or layers alone."
            )
        whole = math.hypot(*ratios) * (1 + 2.0**-50)  # more than what rounds up below
        return [(Flat(self.norm * ratio / whole), group) for ratio, group in zip(ratios, layers.values(), strict=True)]

    @property
    def words(self) -> str:
        return f"{self}, each layer at its share of the clipping norm, whose squares add up to its square"


def parse_rule(text: str, norm: float) -> ClipRule:
    """The clip rule that a text names.

    >>> str(parse_rule("automatic", 1.0)), parse_rule("automatic:0.1", 2.0)
    ('automatic:0.01', Automatic(norm=2.0, gamma=0.1))
    """
    rule: ClipRule = CLIP_RULES.make(check.text("'automatic:0.01'", clipping=text), norm=norm)
    return rule


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
CANCELLATION = 2.0**-27  # share of T^2, T = sum_p ||a_p|| ||b_p||, added to ||G||^2 where positions may cancel
LARGEST_SUM = 2**22  # most terms, I + O + P^2, for which `norm_bounds` is proved; weights with more are not factored
UNDERFLOW = 2.0**-960  # added to each entry's share of a squared norm: squares that leave float64 are smaller


def relative_slack(dimension: int, dtype: torch.dtype) -> float:
    """How far below `clip_norm` gradients are shrunk: about 2.4e-7 in float32, 4e-16 + 2e-16 d in float64.

    With u the unit roundoff of `dtype` and v = 2^-53 that of float64: the norm is summed in float64, so its
    relative error is below (d + 8) v however the terms are grouped; target, gamma and quotient add 4 v;
    rounding the factor to `dtype` adds u and so does each product. The slack 4 u + 2 (d + 16) v exceeds the
    sum of these, 2 u + (d + 12) v, and its second-order terms while d < 2^40. Squares that underflow take
    1e-161 sqrt(d) from a norm, a share of 1e-130 sqrt(d) of clip_norm or gamma at most.
    """
    return 2 * torch.finfo(dtype).eps + (dimension + 16) * torch.finfo(torch.float64).eps


def clip_factor(
    norms: torch.Tensor, clip_norm: float | ClipRule, *, dimension: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The factor by which each gradient is multiplied, for the flat rule min(1, target / norm), in `dtype`.

    Args: norms: float64 L2 norms of gradients of `dimension` entries, any shape; dtype: of the gradients.
    Returns:
        Factors >= 0, of the shape of `norms`, at most 1 by the flat rule; 0 for non-finite norms, and for norms so
        large that the factor would be no normal number of `dtype` (norm > 8e37 * clip_norm in float32).
    Guarantees:
        If the norms were summed in float64, the exact norm of the rounded product factor * gradient never
        exceeds clip_norm. By the flat rule, where the factor is neither 0 nor 1, that norm is below clip_norm by a
        relative amount of at most twice `relative_slack`.
    Raises: InvalidInput: clip_norm out of range, norms not float64, or dtype neither float32 nor float64.
    """
    rule = clip_norm if isinstance(clip_norm, ClipRule) else Flat(clip_norm)
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"gradients must be float32 or float64 to be clipped safely, got {dtype}.")
    if norms.dtype != torch.float64:
        raise InvalidInput(f"norms must be float64, got {norms.dtype}; sum the squares in float64.")
    factor = rule.weights(norms, rule.norm * (1 - relative_slack(dimension, dtype)))
    # A subnormal factor has a large relative error, possibly upwards: zero is the safe one, also in the place of nan.
    return torch.where(factor >= torch.finfo(dtype).tiny, factor, 0.0).to(dtype)


_dropped: ContextVar[list[torch.Tensor] | None] = ContextVar("dropped records", default=None)


@contextlib.contextmanager
def counting_dropped() -> Iterator[Callable[[], int]]:
    """Counts gradients that are not finite, and so contribute zero; no guarantee covers their number."""
    counts: list[torch.Tensor] = []
    token = _dropped.set(counts)
    try:
        yield lambda: sum(int(count) for count in counts)
    finally:
        _dropped.reset(token)


def _all_finite(norms: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether all norms are finite, without waiting for a device; counts those that are not."""
    finite = torch.isfinite(norms)
    if norms.device.type == "cpu" and bool(finite.all()):
        return True
    if (counts := _dropped.get()) is not None:
        dropped = (mask & ~finite).sum()
        counts[:] = [counts[0] + dropped] if counts else [dropped]
    return False


def _at_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function without torch.autocast, entered only where it is on: leaving it takes longer than a small sum."""

    @functools.wraps(function)
    def outside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return outside


def gradient_norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """L2 norms over all parameters, (n, B) in float64, of tensors (n, B, ...)."""
    squares = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        norm = torch.linalg.vector_norm(gradient.unsqueeze(-1).flatten(2), dim=2, dtype=torch.float64)
        squares = squares + norm.square()
    return squares.sqrt()


@_at_full_precision
def clipped_sums(
    gradients: Sequence[torch.Tensor], mask: torch.Tensor, clip_norm: float | ClipRule
) -> list[torch.Tensor]:
    """Sums over the batch of the clipped gradients of each node, one tensor (n, ...) per parameter.

    Args: gradients: one tensor (n, B, ...) per parameter, all of one dtype; mask: bool (n, B), False without a record.
    Guarantees:
        Every summand has exact norm <= clip_norm; a masked record and one with a non-finite gradient contribute zero.
        The rounding of the sum itself is not covered: two sums of B summands that differ in one of them
        differ by at most clip_norm (1 + 2 B^2 eps) with eps of the dtype (1e-5 relative at B = 7 in float32).
    Raises: InvalidInput: as `clip_factor`; the shapes are not checked here.
    """
    dimension = sum(gradient[0, 0].numel() for gradient in gradients)
    norms = gradient_norms(gradients)
    factor = clip_factor(norms, clip_norm, dimension=dimension, dtype=gradients[0].dtype)
    clean = _all_finite(norms, mask)
    factor = torch.where(mask, factor, 0.0)
    # The product is elementwise, not a matrix product: those may round their inputs to TF32 or bfloat16.
    # Zeroing non-finite entries makes 0 * inf = 0; the other records have none.
    finite = gradients if clean else [gradient.nan_to_num(0.0, 0.0, 0.0) for gradient in gradients]
    return [(gradient * _like(factor, gradient)).sum(1) for gradient in finite]


def clipped_rows(gradients: torch.Tensor, present: torch.Tensor, clip_norm: float | ClipRule) -> torch.Tensor:
    """Each node's gradient clipped as a whole, for user-level privacy.

    Args: gradients: (n, d); present: bool (n,), False where the node holds no record in this batch.
    Guarantees:
        Every row has exact norm <= clip_norm, and is zero where it is not present or not finite. Whatever becomes of
        the data of a node, its row moves by at most 2 clip_norm, and by clip_norm if it is replaced by zero.
    Raises: InvalidInput: as `clip_factor`; the shapes are not checked here.
    """
    return clipped_sums([gradients.unsqueeze(1)], present.unsqueeze(1), clip_norm)[0]


class Factors(NamedTuple):
    """One weight's per-record gradients: of record r of node u in group g the matrix (O, I) sum_p b_p a_p^T.

    Attributes:
        inputs: a, shape (n, B, groups, P, I); float32 or float64.
        backprops: b, shape (n, B, groups, P, O), of the same type.
        bias: whether there is a bias, whose gradient is sum_p b_p: that of one more input, which is 1. I counts it.
    """

    inputs: torch.Tensor
    backprops: torch.Tensor
    bias: bool = False

    @property
    def entries(self) -> int:
        return self.inputs.shape[2] * (self.inputs.shape[4] + self.bias) * self.backprops.shape[4]


def norm_bounds(plain: Sequence[torch.Tensor], factors: Sequence[Factors]) -> torch.Tensor:
    """Upper bounds on the L2 norms of per-record gradients over all parameters together, (n, B) in float64.

    Args: plain: gradients (n, B, ...) of parameters without factors; factors: of the others, within `LARGEST_SUM`.
    Guarantees:
        With u = 2^-53, c in [0, 1e36], w_p = b_p c rounded in float64 and D the entries of all gradients, the norm of
        (sum_p w_p a_p^T over factors, c g rounded over plain g) is at most c (1 + (D + 11) u) times the bound, plus
        1e-150 max(1, c) sqrt(D): in exact arithmetic on the given floats, if nothing overflows, as where c times the
        bound is at most 1e30, whatever their size. Not finite where an a, b or g is not; above the exact norm by a
        share of at most 2^-27 (T / ||G||)^2, or (I + O + 32) 2^-50 if P = 1, and (D + 8) u.

    Proof, one group; groups and parameters add up as squares, their rounding is that of `gradient_norms`.
        S = ||G||^2 is a sum of P^2 terms (a_p . a_q)(b_p . b_q). However it is grouped, float64 errs by at most
        1.01 (I + O + P^2 + 4) u sum_pq (|a_p| . |a_q|)(|b_p| . |b_q|) <= 2^-30 T^2, by Cauchy-Schwarz. The computed
        T is at least T (1 - 2^-30), with ||a_p||^2 + 1 for an input and the 1 of a bias, so S + 2^-27 T^2 as
        computed is at least S + 2^-28 T^2. The rounding of the w_p changes c G by at most u c T, and
        (||G|| + u T)^2 <= S + 3 u T^2 since ||G|| <= T: the share covers it.
        Underflow, only in float64: a product errs by up to 2^-1022, so a_p . a_q by I 2^-1022 and S by
        I 2^-1022 (sum ||b_p||)^2, O 2^-1022 (sum ||a_p||)^2 and less. `UNDERFLOW` adds I 2^-960 to each ||a_p||^2,
        unless the 1 of a bias is there, and O 2^-960 to each ||b_p||^2, so 2^-27 T^2 grows by at least 2^-987 times the
        same. Underflowing w_p move an entry by 2^-1022 and meet ||a_p|| < 2^512, as squares beyond give no finite
        bound: the last term.
        With P = 1 nothing cancels: S = T^2, a computed square errs by a share of (I + 4) u, T^2 by (I + O + 12) u, and
        the rounding of w adds 2 u: less than (I + O + 32) 2^-50 = 8 (I + O + 32) u.
    """
    squares: torch.Tensor | float = gradient_norms(plain).square() if plain else 0.0
    for inputs, backprops, bias in factors:
        a, b = inputs.double(), backprops.double()
        lengths = _squares(a, bias) * _squares(b, False)  # squared
        if inputs.shape[3] > 1:
            triangle = lengths.sqrt().sum(-1).square()
            exact = ((a @ a.mT + 1.0 * bias) * (b @ b.mT)).sum((-2, -1))
            squares = squares + (exact + CANCELLATION * triangle).sum(-1)
        else:
            share = (inputs.shape[4] + backprops.shape[4] + 32) * 2.0**-50
            squares = squares + ((1 + share) * lengths).sum((-2, -1))
    return torch.as_tensor(squares).sqrt()


def _squares(vectors: torch.Tensor, bias: bool) -> torch.Tensor:
    """Squared L2 norms along the last dimension, with a 1 for a bias, each a little too large."""
    return torch.linalg.vecdot(vectors, vectors) + max(float(bias), vectors.shape[-1] * UNDERFLOW)


@_at_full_precision
def ghost_clipped_sums(
    plain: Sequence[torch.Tensor], factors: Sequence[Factors], mask: torch.Tensor, clip_norm: float | ClipRule
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Sums over the batch of the clipped gradients of each node.

    Args: plain, factors: as for `norm_bounds`, of one dtype, at least one of them; mask: as of `clipped_sums`.
    Returns:
        One tensor (n, ...) per plain parameter and one (n, groups, O, I) per weight with factors, with a bias in the
        last column, in float64 whatever the gradients are.
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
        InvalidInput: as `clip_factor`; the shapes are not checked here.
    Cost: 2 n B P I O float64 operations per weight, and for norms 2 n B P^2 (I + O) if P > 1; memory
        n I O + n B P (I + O + P).
    """
    dimension = sum(gradient[0, 0].numel() for gradient in plain) + sum(weight.entries for weight in factors)
    rounded_to = (plain or factors[0])[0].dtype
    factors = [Factors(inputs.double(), backprops.double(), bias) for inputs, backprops, bias in factors]
    bounds = norm_bounds(plain, factors) * (1 + torch.finfo(rounded_to).eps)
    factor = clip_factor(bounds, clip_norm, dimension=dimension, dtype=torch.float64)
    clean = _all_finite(bounds, mask)  # and so is all that they bound
    factor = torch.where(mask, factor, 0.0)

    def finite(values: torch.Tensor) -> torch.Tensor:
        """Values, zero where the factor is zero: 0 * inf would be nan."""
        return values if clean else torch.where(_like(factor, values) > 0, values, 0.0)

    sums, weight_sums = [(finite(gradient) * _like(factor, gradient)).sum(1) for gradient in plain], []
    for inputs, backprops, bias in factors:
        a, w = finite(inputs), finite(backprops) * _like(factor, backprops)
        a = functional.pad(a, (0, 1), value=1.0) if bias else a
        a, w = (part.transpose(1, 2).flatten(2, 3) for part in (a, w))  # (n, g, B P, I) and (n, g, B P, O)
        weight_sums.append(w.mT @ a)
    return sums, weight_sums


def _like(factor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The factors (n, B) in a shape that broadcasts over values (n, B, ...)."""
    return factor.reshape(*factor.shape, *(1,) * (values.ndim - 2))

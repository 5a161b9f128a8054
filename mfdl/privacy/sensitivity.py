"""Sensitivity of views under a participation scheme: an upper bound, exact or certified, and what attains it.

The Gram X_u comes from `forms`, the maximum over gradients and patterns from `patterns`; here their
rounding errors meet, and a leak becomes an infinite value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from .. import check
from ..algorithms import LinearAlgorithm
from ..display import short_repr
from ..errors import InvalidInput
from ..factorization.structured_sensitivity import structured_bound
from ..floats import UNIT
from ..participation import Participation
from ..sensitivity.elliptope import TOLERANCE
from ..sensitivity.patterns import PatternBound, bounds, diagonal_bounds
from ..storable import storable
from ..trust import TrustModel
from .forms import INJECTIONS, ViewGram, view_grams
from .forms._base import Structured

EXACT = 1e-6  # relative: noise whose inverse rounds by more has an upper bound, not a value


@storable
@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """How far one record moves the view, per unit record shift and unit noise.

    Attributes:
        squared: sens^2, never below the truth; may be inf.
        exact: True if `squared` is the true value up to `tolerance`, False if it is only an upper bound.
        pattern: the steps that attain `lower`.
        node: index of the node that holds the record.
        tolerance: relative slack of `squared` over `lower`, where exact.
        lower: attained by some gradients, never above the truth.
        why: what leaks, if the value is infinite; where it is an upper bound, what makes it one.
        form: how the Gram was computed.
    """

    __repr__ = short_repr

    squared: float
    exact: bool
    pattern: tuple[int, ...]
    node: int
    tolerance: float
    lower: float = 0.0
    why: str = ""
    form: str = ""

    @property
    def bound(self) -> str:
        """ "exact" or "upper"."""
        return "exact" if self.exact else "upper"

    @property
    def value(self) -> float:
        """sens, rounded up."""
        return math.inf if math.isinf(self.squared) else math.nextafter(math.sqrt(self.squared), math.inf)


def sensitivities(
    grams: Sequence[ViewGram], participation: Participation, *, nodes: Sequence[int], method: str = "exact"
) -> list[Sensitivity]:
    """One Sensitivity per Gram.

    Args: grams: of the victims `nodes`; method: "exact" or "certified", see `patterns.bounds`.

    Guarantees: never below the true value; infinite where a record can take part in a step that leaks.
    Raises: InvalidInput: a participation with another number of steps.
    """
    distinct = {id(g): g for g in grams}
    for gram in distinct.values():
        if participation.num_steps != len(gram.values):
            raise InvalidInput(
                f"participation must have the mechanism's {len(gram.values)} steps, got {participation.num_steps} "
                f"({participation.describe()}); patterns of another length miss steps that a record can join."
            )
    found: dict[int, PatternBound] = {}
    of_shape: dict[int, dict[int, ViewGram]] = {}
    for key, gram in distinct.items():
        if _leaks(gram, participation):
            continue
        if gram.structured is not None:
            found[key] = _weighted(gram.structured, participation, method)
        else:
            of_shape.setdefault(gram.values.ndim, {})[key] = gram
    for ndim, chosen in of_shape.items():
        values, errors = np.stack([g.values for g in chosen.values()]), np.stack([g.errors for g in chosen.values()])
        if ndim == 1:
            bounded = diagonal_bounds(values, participation, errors)
        else:
            bounded = bounds(values, participation, method, errors)
        found |= {key: bounded[i] for i, key in enumerate(chosen)}
    out = []
    for gram, node in zip(grams, nodes, strict=True):
        if id(gram) not in found:
            step = int(np.argmax(gram.leaks))
            lower = 0.0 if gram.upper else math.inf
            out.append(Sensitivity(math.inf, not gram.upper, (step,), node, 0.0, lower, gram.why, gram.form))
            continue
        one = found[id(gram)]
        upper = one.upper * gram.inflation * (1 + 4 * UNIT)
        attained = one.lower / gram.inflation * (1 - 4 * UNIT)  # the order holds downward by the same factor
        exact = one.exact and not gram.upper and gram.inflation <= 1 + EXACT
        lower = 0.0 if gram.upper else attained
        slack = upper / attained - 1 if attained > 0 else 0.0
        why = "" if exact else _why_upper(gram, one)
        out.append(Sensitivity(upper, exact, one.pattern, node, max(slack, 0.0), lower, why, gram.form))
    return out


def _weighted(of: Structured, participation: Participation, method: str) -> PatternBound:
    """weight ||C g||^2."""
    one = structured_bound(of.encoder, participation, method)
    upper = one.upper * (of.weight + of.error) * (1 + 4 * UNIT)
    lower = one.lower * max(of.weight - of.error, 0.0) * (1 - 4 * UNIT)
    return PatternBound(upper, lower, upper <= (1 + TOLERANCE) * lower, one.pattern)


def _why_upper(gram: ViewGram, bound: PatternBound) -> str:
    """What makes a finite number an upper bound, and what would give a better one."""
    if gram.upper and gram.form == INJECTIONS:
        return (
            "ranks of this view cannot be told in float64, or it is too large, so every injected sum (gradient plus "
            "noise) counts as seen; fewer steps or nodes, or noise of one size, would give its own number"
        )
    if gram.upper:
        return f"bounded by a view that shows more ({gram.form}); a smaller problem would give its own number"
    if gram.inflation > 1 + EXACT:
        return (
            f"rounding of the noise as it is injected may add a factor {gram.inflation:.3g}; a better conditioned "
            "encoder would make it exact"
        )
    return (
        "bounds over gradients and participation patterns do not meet; method='exact', or a participation of fewer "
        "patterns, may give a smaller one"
    )


def _leaks(gram: ViewGram, participation: Participation) -> bool:
    if math.isinf(gram.inflation):
        return True
    return bool(gram.leaks.any()) and participation.patterns_of_record().reaches(gram.leaks)


def sensitivity_of_gram(
    gram: ViewGram, participation: Participation, *, node: int = 0, method: str = "exact"
) -> Sensitivity:
    """`sensitivities` of one Gram."""
    return sensitivities([gram], participation, nodes=[node], method=method)[0]


def worst_sensitivity(
    algorithm: LinearAlgorithm, trust: TrustModel, participation: Participation | None = None
) -> Sensitivity:
    """The largest sensitivity over all victims, for gradients fixed in advance; see `accounting` for adaptive ones."""
    check.instance(LinearAlgorithm, algorithm=algorithm)
    check.instance(TrustModel, trust=trust)
    scheme = algorithm.participation if participation is None else participation
    check.instance(Participation, participation=scheme)
    scheme.require_nodes(algorithm.num_nodes)
    found: list[Sensitivity] = []
    for model, victims in trust.members(algorithm):
        grams = view_grams(model.view(algorithm, victims[0] if victims else 0), victims)
        found += sensitivities(grams, scheme, nodes=victims)
    return max(found, key=lambda s: s.squared)

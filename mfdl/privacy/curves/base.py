"""What a privacy curve is, and the search for the least noise at which it meets a target.

A curve gives epsilon at delta of one run or of several, under one adjacency, never below the truth.

The search finds the root of the excess, the logarithm of the privacy loss at a noise multiplier over the target, from
above: a multiplier at which the excess was computed and is at most 0, so the target is never missed; where the excess
decreases, the least such multiplier is below it by at most the precision of the last pass.

The trade-off between both errors of an attacker who decides which of two adjacent data sets was used: for every epsilon
>= 0 an attacker with false positive rate a has a true positive rate of at most delta + e^epsilon a, and of at most 1 -
e^-epsilon (1 - a - delta); the least of all of them is the trade-off curve. A search looks at some epsilon, and each of
them is a bound, so the search decides how close the number is, not whether it holds.

Source: Dong, Roth, Su, arXiv:1905.02383, Proposition 6 (the dual of the trade-off curve).
"""

from __future__ import annotations

import abc
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput, UnsupportedMechanism
from ...extensions import public
from .. import gaussian

if TYPE_CHECKING:
    from dp_accounting import DpEvent


PRECISION = 1e-4  # of epsilon in the search; the rate is flat there, so it is off by far less

FARTHEST = 700.0  # epsilon up to which e^epsilon is a float
RANGE = [2.0**k for k in range(-3, 10)]
"""Of epsilon, where a rate below 1 is looked for: e^-512 is the last that tells 1 from it."""


def true_positive_rate(delta: Callable[[float], float], false_positive_rate: float) -> float:
    """At most this, in (0, 1], for a false positive rate in (0, 1); delta at epsilon >= 0 is never below the true one.

    >>> from mfdl.privacy import gaussian
    >>> round(true_positive_rate(lambda epsilon: gaussian.delta_from_mu(1.0, epsilon), 0.01), 6)
    0.092362
    """
    a = false_positive_rate

    def small(epsilon: float) -> float:
        return delta(epsilon) + math.exp(epsilon) * a

    def large(epsilon: float) -> float:
        return math.exp(-epsilon) * (a + delta(epsilon)) - math.expm1(-epsilon)

    best = min(_least(small, min(-math.log(a), FARTHEST)), next(filter(lambda rate: rate < 1, map(large, RANGE)), 1.0))
    if best < 1:  # large(epsilon) >= 1 - e^-epsilon (1 - a), which is above it beyond
        best = min(best, _least(large, math.log((1 - a) / (1 - best))))
    return min(1.0, UP * best)


def _least(bound: Callable[[float], float], most: float) -> float:
    """The least value found on [0, most] of a function that falls and then rises."""
    from scipy.optimize import minimize_scalar  # a tenth of a second

    searched = minimize_scalar(bound, bounds=(0.0, most), method="bounded", options={"xatol": PRECISION})
    return min(bound(0.0), float(searched.fun))


UP = 1 + 2.0**-40
"""Factor for numbers that are rounded up before they are used: far more than their own roundoff."""
RENYI_ORDERS = np.array([*range(2, 33), *range(36, 65, 4), 80, 128, 256], dtype=np.float64)
"""Orders over which an epsilon by Renyi divergences is the least."""
ROOM = 1.05
"""How far above the known multiplier a pass may end if a finer pass follows: its excess is coarse."""
Excess = Callable[[float, int], float]
"""From a noise multiplier and a resolution to the excess; may be infinite."""


@dataclasses.dataclass(frozen=True)
class PrivacyCurve(abc.ABC):
    """Privacy loss at one noise multiplier: epsilon at delta and delta at epsilon, neither below the true value.

    Attributes:
        adjacency: one of `gaussian.ADJACENCIES`.
        noise_multiplier: std of the noise over (sensitivity * clipping norm), under every adjacency; 0 without noise.
        bound: "exact", "upper", or "monte-carlo": upper except with a stated probability over samples.
        method: "exact", "certified" or "monte-carlo".
        mu: mu of Gaussian differential privacy; None where the curve is not Gaussian.
        noise_on: where the noise is added, and what its multiplier is relative to, in words.
        retry_step: relative increase of the noise if calibration misses its target: by rounding only, by default.
    """

    method: ClassVar[str]
    noise_on: ClassVar[str]
    retry_step: ClassVar[float] = 2.0**-52

    if TYPE_CHECKING:  # fields in some curves, derived in others

        @property
        def adjacency(self) -> str: ...

        @property
        def noise_multiplier(self) -> float: ...

        @property
        def bound(self) -> str: ...

        @property
        def mu(self) -> float | None: ...

        @property
        def runs(self) -> int: ...

    else:
        bound, runs = "upper", 1

    @property
    @abc.abstractmethod
    def public_mu(self) -> float:
        """mu of the same noise with public batches, rounded up; inf without noise."""

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta in (0, 1), never below the true one; inf without noise."""

    @abc.abstractmethod
    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon >= 0, never below the true one; 1 without noise."""

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true positive rate at a false positive rate in (0, 1), rounded up. Cost: 30 times `delta`."""
        return true_positive_rate(self.delta, check.open_unit(false_positive_rate=false_positive_rate))

    def dp_event(self) -> DpEvent:
        """The curve as an event of dp-accounting; see `Guarantee.dp_event`."""
        raise UnsupportedMechanism(
            f"no event of dp-accounting has the curve of a {type(self).__name__}; compose guarantees with "
            "compose_with, or take the same noise with public batches, an upper bound: dp_event(public_batches=True)."
        )

    def renyi_divergences(self, orders: FloatArray) -> FloatArray:
        """Upper bounds on Renyi divergences of orders >= 1, in both directions; by default with public batches."""
        return np.asarray(orders) * (self.public_mu * self.public_mu / 2 * UP)

    def renyi_epsilon(self, delta: float) -> float:
        """An epsilon at this delta by Renyi divergences of `RENYI_ORDERS` (arXiv:2004.00010, Proposition 12)."""
        orders, lost = RENYI_ORDERS, self.renyi_divergences(RENYI_ORDERS)
        converted = lost + np.log1p(-1 / orders) - np.log(check.open_unit(delta=delta) * orders) / (orders - 1)
        return max(0.0, float(np.min(converted, where=~np.isnan(converted), initial=math.inf)))

    def public_epsilon(self, delta: float) -> float:
        """epsilon of the same noise with public batches: secrecy never costs."""
        return gaussian.epsilon_from_mu(self.public_mu, check.open_unit(delta=delta))

    def public_delta(self, epsilon: float) -> float:
        """delta of the same noise with public batches."""
        return gaussian.delta_from_mu(self.public_mu, epsilon)

    @abc.abstractmethod
    def at(self, noise_multiplier: float) -> Self:
        """The same curve at another noise multiplier."""

    @abc.abstractmethod
    def least_multiplier(self, epsilon: float, delta: float, by: str = "tightest") -> float:
        """The least noise multiplier found at which the curve meets (epsilon, delta): it never misses the target.

        Args: by: "tightest" of all bounds, or another accounting that the curve names.
        Raises: InvalidInput: epsilon not > 0, delta outside (0, 1), another `by`.
        """

    def retried(self) -> Self:
        """The curve for another try of calibration: itself, or with fresh samples."""
        return self

    @abc.abstractmethod
    def certified_runs(self) -> tuple[PrivacyCurve, ...]:
        """Certified curves of the runs, as they compose. Raises: UnsupportedMechanism: the curve does not compose."""

    @abc.abstractmethod
    def composed_with(self, other: PrivacyCurve) -> PrivacyCurve:
        """The curve of all runs of both, with independent noise and batches; raises where they do not compose."""

    @property
    def bound_in_words(self) -> str:
        return "exact" if self.bound == "exact" else "upper bound"

    def remark(self, delta: float) -> str:
        """Words beside epsilon at this delta; may be empty."""
        return ""

    def facts(self, delta: float) -> dict[str, Any]:
        """JSON fields that hold at one delta only."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; infinity is the text "inf"."""
        return {name: json_value(value) for name, value in dataclasses.asdict(self).items()}


def public_mu(adjacency: str, noise_multiplier: float, uses: int = 1) -> float:
    """mu of noise of this multiplier with public batches and so many uses, rounded up; inf without noise."""
    if not noise_multiplier:
        return math.inf
    return gaussian.record_shift(adjacency, 1.0) * math.sqrt(uses) / noise_multiplier * (1 + 1e-15)


def json_value(value: Any) -> Any:
    """A JSON value: tuples as lists, infinity as the text "inf", at every depth."""
    if isinstance(value, dict):
        return {name: json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return "inf" if value == math.inf else value


# ---- the search for the least noise ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass: resolution of the excess, factor > 1 between bracketing multipliers, relative precision of the root."""

    resolution: int
    step: float
    precision: float


def least_multiplier(excess: Excess, known: float, passes: Sequence[Pass]) -> float:
    """The least multiplier where the excess of the last pass is <= 0; `known`, which meets the target, if none."""
    near = known
    for number, each in enumerate(passes, 1):
        most = known if number == len(passes) else ROOM * known
        near = _crossing(excess, near, each, most)
        if near > most:
            return known
    return near


def raised(number: float, misses: Callable[[float], bool], step: float = 2.0**-52) -> float:
    """A noise that misses its target by rounding, for example, raised by steps that double until it meets it."""
    while misses(number):
        number, step = max(number * (1 + step), sys.float_info.min), 2 * step
    return number


def _crossing(excess: Excess, start: float, search: Pass, most: float) -> float:
    """A multiplier with excess <= 0, at most `precision` above one where it is not; inf where `most` misses."""
    good, under = start, excess(start, search.resolution)
    bad, over = good, under
    while not under <= 0:
        if good >= most:
            return math.inf
        bad, over, good = good, under, good * search.step
        under = excess(good, search.resolution)
    while over <= 0:
        good, under, bad = bad, over, bad / search.step
        over = excess(bad, search.resolution)
    while good > bad * (1 + search.precision):
        ratio = math.log(good / bad)
        share = over / (over - under) if math.isfinite(over) and under < over else 0.5
        aim = ratio * min(max(share, 0.05), 0.95)
        for at in (aim + search.precision / 3, aim - search.precision / 3):  # either side of where the root should be
            middle = bad * math.exp(min(max(at, ratio / 20), ratio * 0.95))
            if not bad < middle < good:
                continue
            value = excess(middle, search.resolution)
            if not value <= 0:
                bad, over = middle, value
                break
            good, under = middle, value
            ratio = math.log(good / bad)
    return good


# ---- curves as JSON objects, by their kind and their fields ---------------------------------------------------------

KIND, CURVES = "kind", "mfdl.privacy.curves"
KINDS = {
    "gaussian": "Gaussian",
    "poisson": "PoissonGaussian",
    "balls-in-bins": "BallsInBinsGaussian",
    "chain": "BinChain",
    "monte-carlo": "MonteCarloCurve",
    "samples": "MonteCarlo",
    "composed": "Composed",
    "product": "ProductGaussian",
    "least": "LeastCurve",
}
"""Curves that a file may hold, each of this package; a further curve is one more line here."""


def curve_to_dict(curve: PrivacyCurve) -> dict[str, Any]:
    """A JSON object; infinity is the text "inf"."""
    packed = _packed(curve)
    assert isinstance(packed, dict)
    return packed


def curve_from_dict(data: Any) -> PrivacyCurve:
    """The inverse of `curve_to_dict`. Raises: InvalidInput: an unknown kind, other fields, or a number out of range."""
    curve = _unpacked(data)
    if not isinstance(curve, PrivacyCurve):
        raise InvalidInput(f"curve must be a JSON object with a {KIND} of {', '.join(KINDS)}, got {data!r:.200}.")
    return curve


def _packed(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind = next((name for name, curve in KINDS.items() if type(value).__name__ == curve), None)
        if kind is None:
            raise InvalidInput(f"a {type(value).__name__} cannot be stored: the known curves are {', '.join(KINDS)}.")
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {KIND: kind, **{name: _packed(each) for name, each in fields.items()}}
    if isinstance(value, tuple):
        return [_packed(each) for each in value]
    return "inf" if value == math.inf else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get(KIND) not in KINDS:
            raise InvalidInput(f"{KIND} of a curve must be one of {', '.join(KINDS)}, got {value.get(KIND)!r}.")
        fields = {name: _unpacked(each) for name, each in value.items() if name != KIND}
        try:
            return public(CURVES, KINDS[value[KIND]])(**fields)
        except TypeError as error:
            raise InvalidInput(f"a curve of {KIND} {value[KIND]!r} has other fields: {error}.") from None
    if isinstance(value, list):
        return tuple(_unpacked(each) for each in value)
    return math.inf if value == "inf" else value

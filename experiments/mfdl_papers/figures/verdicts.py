"""From numbers to a verdict: the rules that hold in quick and in full mode alike.

Orders of curves are judged on losses paired by seed:

- `ordered`: a claim that one curve lies below another at every point. confirmed: at every point the mean over seeds of
  log(lower / upper) is below 0 by more than its 95 % interval; direction only: the mean is below 0 at no less than half
  of the points; else refuted.
- `tied`: a claim that two curves meet at a point. confirmed: the 95 % interval of the mean of log(a / b) holds 0 and
  reaches no further than a factor of two; direction only: the means are within a factor of two; else refuted.

A run that diverged counts as an infinite loss. One seed alone has no interval: it gives a direction at most.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from mfdl.errors import InvalidInput, require_known

CONFIRMED, DIRECTION, REFUTED, NOT_RUN = "confirmed", "direction only", "refuted", "not run"
VERDICTS = (CONFIRMED, DIRECTION, REFUTED, NOT_RUN)
LEVEL = 0.95  # of the intervals
Pair = tuple[np.ndarray, np.ndarray]
TIE = math.log(2.0)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One claim of a figure, judged.

    Attributes:
        claim: what the paper says.
        verdict: one of `VERDICTS`.
        finding: our numbers in words, or why nothing was run.
        value: the number that the rule read; None where there is none.
        spread: standard deviation of `value` over seeds or draws; None where there is one value only.
    """

    claim: str
    verdict: str
    finding: str
    value: float | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        require_known("verdict", self.verdict, VERDICTS)

    @classmethod
    def not_run(cls, claim: str, reason: str) -> Verdict:
        """A claim that could not be tried, and why."""
        return cls(claim, NOT_RUN, reason)

    def result(self) -> dict[str, Any]:
        """JSON-ready; infinities are the text "inf"."""
        from mfdl.runs.output import json_number

        numbers = {name: json_number(getattr(self, name)) for name in ("value", "spread")}
        return {"claim": self.claim, "verdict": self.verdict, "said": self.finding, **numbers}


def measured(values: np.ndarray, claimed: float, *, none: float = 0.0) -> tuple[str, float, float | None]:
    """The verdict on a claimed size of an effect, with mean and standard deviation of the values.

    Args:
        values: one per seed, shape (seeds,); a value that is not finite says that there was no such effect.
        claimed: what the paper gives; none: what no effect would be. The claimed side is that of `claimed`.

    >>> import numpy as np
    >>> measured(np.array([0.30, 0.32, 0.35]), 0.31)[0], measured(np.array([0.10, 0.12, 0.11]), 0.31)[0]
    ('confirmed', 'direction only')

    Raises: InvalidInput: no value, or a claim of no effect.
    """
    import numpy as np

    if len(values) == 0 or claimed == none:
        raise InvalidInput(f"a verdict needs values and a claimed effect, got {len(values)} values and {claimed}.")
    if not np.isfinite(values).all():
        return REFUTED, math.nan, None
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    half = _half_interval(spread, len(values))
    side = math.copysign(1.0, claimed - none)
    if side * (mean - none) > half and side * (claimed - mean) <= half:
        return CONFIRMED, mean, spread
    return (DIRECTION if side * (mean - none) > 0 else REFUTED), mean, spread


def _half_interval(spread: float | None, count: int) -> float:
    """Half the Student t interval of a mean; none for one value, which has to reach the claim by itself."""
    if spread is None:
        return 0.0
    from scipy import stats

    return float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * spread / math.sqrt(count)


def everywhere(holds: Mapping[Any, bool]) -> str:
    """The verdict on a claim of every point.

    >>> everywhere({"ring": True, "torus": True}), everywhere({"ring": True, "torus": False, "complete": False})
    ('confirmed', 'refuted')

    Raises: InvalidInput: no point.
    """
    if not holds:
        raise InvalidInput("a verdict needs at least one point.")
    true = sum(map(bool, holds.values()))
    return CONFIRMED if true == len(holds) else DIRECTION if 2 * true >= len(holds) else REFUTED


def overall(verdicts: Iterable[Verdict]) -> str:
    """The verdict on all that a figure claims: the worst of what was run.

    >>> overall([Verdict("a", "confirmed", ""), Verdict("b", "refuted", ""), Verdict.not_run("c", "no data")])
    'refuted'
    """
    given = {part.verdict for part in verdicts}
    return next((verdict for verdict in (REFUTED, DIRECTION, CONFIRMED) if verdict in given), NOT_RUN)


def mean_log_ratio(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Mean over seeds of log(a / b) and half of its 95 % interval, inf for one seed; shapes (seeds,).

    >>> mean_log_ratio(np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    (0.0, 0.0)

    Raises: InvalidInput: no seeds, or not as many of both.
    """
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InvalidInput(f"paired losses must have one number for each seed, got shapes {a.shape} and {b.shape}.")
    a, b = (np.where(np.isnan(x), math.inf, x) for x in (a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(a == b, 0.0, np.log(a) - np.log(b))
    mean = float(np.mean(logs)) if np.isfinite(logs).all() else _of_infinite(logs)
    if len(logs) == 1 or not np.isfinite(logs).all():
        return mean, 0.0 if math.isinf(mean) and (logs == logs[0]).all() and len(logs) > 1 else math.inf
    spread = float(np.std(logs, ddof=1))
    return mean, float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * spread / math.sqrt(len(logs))


def _of_infinite(logs: np.ndarray) -> float:
    """Of both signs nothing is below anything."""
    signs = np.sign(logs[np.isinf(logs)])
    return float(signs[0]) * math.inf if (signs == signs[0]).all() else 0.0


def ordered(points: Mapping[Any, Pair]) -> str:
    """The verdict on "the first is below the second at every point".

    >>> low, high = np.array([1.0, 1.1, 0.9]), np.array([3.0, 3.2, 3.1])
    >>> ordered({3: (low, high)}), ordered({3: (low, high), 10: (high, low)}), ordered({3: (high, low)})
    ('confirmed', 'direction only', 'refuted')

    Raises: InvalidInput: no point, or losses that are not paired.
    """
    if not points:
        raise InvalidInput("a verdict needs at least one point.")
    means = [mean_log_ratio(lower, upper) for lower, upper in points.values()]
    if all(mean < 0 and mean + half <= 0 for mean, half in means):
        return CONFIRMED
    return DIRECTION if 2 * sum(mean < 0 for mean, _ in means) >= len(means) else REFUTED


def clear(points: Mapping[Any, Pair]) -> int:
    """At how many points the first is below the second by more than its 95 % interval."""
    return sum(mean < 0 and mean + half <= 0 for mean, half in (mean_log_ratio(*pair) for pair in points.values()))


def jackknifed(statistic: Callable[..., float], *losses: np.ndarray) -> np.ndarray:
    """Pseudo-values of a statistic of means over seeds, the last axis of every array, shape (seeds,).

    Their mean is the statistic, their deviation / sqrt(seeds) its standard error. The statistic alone, shape (1,),
    where there is one seed or a value is not finite.
    """
    count, whole = losses[0].shape[-1], statistic(*losses)
    rest = [statistic(*(np.delete(values, i, axis=-1) for values in losses)) for i in range(count if count > 1 else 0)]
    usable = rest and np.isfinite([whole, *rest]).all()
    return count * whole - (count - 1) * np.array(rest) if usable else np.array([whole])


def tied(a: np.ndarray, b: np.ndarray) -> str:
    """The verdict on "the two meet".

    >>> tied(np.array([1.0, 1.2, 0.9]), np.array([1.1, 1.1, 1.0])), tied(np.array([1.0]), np.array([4.0]))
    ('confirmed', 'refuted')
    """
    mean, half = mean_log_ratio(a, b)
    if abs(mean) <= half <= TIE:
        return CONFIRMED
    return DIRECTION if abs(mean) <= TIE else REFUTED


def lowest(curves: Mapping[Any, np.ndarray]) -> Any:
    """The name with the smallest mean over seeds; a run that diverged is infinitely bad."""
    return min(curves, key=lambda name: float(np.where(np.isnan(curves[name]), math.inf, curves[name]).mean()))


def of_means(a: np.ndarray, b: np.ndarray) -> float:
    """mean(a) / mean(b), a diverged run being infinitely bad; nan where both are."""
    above, below = (float(np.where(np.isnan(x), math.inf, x).mean()) for x in (a, b))
    return math.nan if math.isinf(below) and math.isinf(above) else above / below

"""From numbers to a verdict: the rules that hold in quick and in full mode alike.

- `measured`: a claimed size, measured once per seed. confirmed: the mean lies on the claimed side of no effect by more
  than its 95 % interval, and that interval reaches what is claimed; direction only: the mean is on the claimed side;
  else refuted.
- `everywhere`: a claim of every point (graph, budget, distance). confirmed: it holds at all of them; direction only: at
  no less than half of them; else refuted.
- A claim of several parts is confirmed if all of them are and refuted if one is (`overall`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mfdl.errors import InvalidInput, require_known

if TYPE_CHECKING:
    import numpy as np

CONFIRMED, DIRECTION, REFUTED, NOT_RUN = "confirmed", "direction only", "refuted", "not run"
VERDICTS = (CONFIRMED, DIRECTION, REFUTED, NOT_RUN)
LEVEL = 0.95  # of the intervals


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

"""From numbers to a verdict: one rule for every claim.

A claim is about an effect at each of its points (graph, budget, step). An `Effect` is positive on the claimed side, and
`claimed` is its least claimed size (0: only a direction is claimed). It has an interval [low, high]: of seeds or draws
the Student t interval of the mean; of a number without randomness the number and its error. The intervals of a claim
hold jointly at 95 %: with n sampled points each is taken at 1 - 0.05 / n (Bonferroni). One seed has no interval.

|                                       | reaches the claimed size | excludes it    |
| ------------------------------------- | ------------------------ | -------------- |
| the interval excludes no effect       | confirmed                | direction only |
| it does not                           | not settled              | refuted        |

low > 0 excludes no effect; high >= claimed reaches the claimed size (high > 0 where only a direction is claimed). The
mean of a confirmed size is at least half of the claimed one. With probability 95 % or more (normal differences,
independent seeds) no confirmed claim has an effect <= 0 and no refuted one an effect of the claimed size.

A claim of every point: refuted if one point is, else not settled if one is not, else direction only if one is. A claim
of some point: the best word of its points. A comparison of runs that learned nothing supports no verdict: not settled.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mfdl.errors import InvalidInput, require_known

CONFIRMED, DIRECTION, UNSETTLED, REFUTED = "confirmed", "direction only", "not settled", "refuted"
NOT_RUN = "not run"
VERDICTS = (CONFIRMED, DIRECTION, UNSETTLED, REFUTED, NOT_RUN)
WORST_FIRST = (REFUTED, UNSETTLED, DIRECTION, CONFIRMED)
BEST_FIRST = (CONFIRMED, DIRECTION, UNSETTLED, REFUTED)
LEVEL = 0.95  # of all intervals of a claim together
QUANTIFIERS = ("every", "some")


@dataclasses.dataclass(frozen=True)
class Effect:
    """The effect of a claim at one point, positive on the claimed side.

    Attributes:
        at: the point, in words.
        values: one per seed or draw; exactly one where `error` is given. inf: the other side diverged.
        claimed: the least effect that is claimed, >= 0; 0: a direction.
        error: of a number without randomness, its largest error (0: exact); None: `values` are a sample.
        unsupported: why this point supports no verdict; empty where it does.
    """

    at: str
    values: Sequence[float]
    claimed: float = 0.0
    error: float | None = None
    unsupported: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(map(float, self.values)))
        if not self.values or (self.error is not None and len(self.values) > 1):
            raise InvalidInput(
                f"an effect has a value for each seed, or one with its error; got {len(self.values)} at {self.at!r}."
            )
        if not self.claimed >= 0 or not (self.error is None or self.error >= 0):
            raise InvalidInput(f"claimed effect and error must be >= 0, got {self.claimed} and {self.error}.")

    @classmethod
    def sampled(cls, at: Any, values: Iterable[float], claimed: float = 0.0, *, unsupported: str = "") -> Effect:
        return cls(str(at), tuple(values), claimed, unsupported=unsupported)

    @classmethod
    def exact(cls, at: Any, value: float, claimed: float = 0.0, *, error: float = 0.0) -> Effect:
        """Effect of a number without randomness."""
        return cls(str(at), (value,), claimed, error)

    @property
    def mean(self) -> float:
        """Mean of the values; nan where they are infinite on both sides."""
        return sum(self.values) / len(self.values)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """[low, high]; everything where one seed, or infinite values beside finite ones, give none.

        >>> Effect.exact("here", 2.0, error=0.5).interval(), Effect("here", [1.0]).interval()
        ((1.5, 2.5), (-inf, inf))
        """
        if self.error is not None:
            return self.values[0] - self.error, self.values[0] + self.error
        values, count = self.values, len(self.values)
        if count > 1 and math.isinf(values[0]) and len(set(values)) == 1:
            return values[0], values[0]
        if count == 1 or not all(map(math.isfinite, values)):
            return -math.inf, math.inf
        from scipy import special

        half = float(special.stdtrit(count - 1, (1 + level) / 2)) * statistics.stdev(values) / math.sqrt(count)
        return self.mean - half, self.mean + half

    def word(self, level: float = LEVEL) -> str:
        """The verdict on this point.

        >>> [Effect("", values, 0.31).word() for values in ([0.3, 0.32, 0.35], [0.1, 0.12, 0.11], [0.9, -0.8, 0.85])]
        ['confirmed', 'direction only', 'not settled']
        """
        low, high = self.interval(level)
        if self.unsupported or math.isnan(low):
            return UNSETTLED
        reaches = high > 0 if self.claimed == 0 else high >= self.claimed
        if low > 0:
            return CONFIRMED if reaches else DIRECTION
        return UNSETTLED if reaches else REFUTED

    def result(self, level: float = LEVEL) -> dict[str, Any]:
        """JSON-ready, with the interval at a level; infinities are the text "inf"."""
        from mfdl.runs.output import json_number

        low, high = map(json_number, self.interval(level))
        fields = {**dataclasses.asdict(self), "values": [json_number(value) for value in self.values]}
        return {**fields, "low": low, "high": high}

    @classmethod
    def from_result(cls, fields: Mapping[str, Any]) -> Effect:
        values = [math.nan if value is None else float(value) for value in fields["values"]]
        return cls(fields["at"], values, *(fields[name] for name in ("claimed", "error", "unsupported")))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One claim of a figure, judged by its effects.

    Attributes:
        effects: one per point; empty: nothing was run.
        finding: our numbers in words, or why nothing was run.
        value, spread: the number that the finding is about, and its standard deviation over seeds or draws.
        quantifier: whether the claim is of "every" point or of "some" point.
    """

    claim: str
    effects: Sequence[Effect]
    finding: str
    value: float | None = None
    spread: float | None = None
    quantifier: str = "every"

    def __post_init__(self) -> None:
        require_known("quantifier", self.quantifier, QUANTIFIERS)

    @classmethod
    def not_run(cls, claim: str, reason: str) -> Verdict:
        """A claim that could not be tried, and why."""
        return cls(claim, (), reason)

    @property
    def level(self) -> float:
        """Level of the interval of each sampled effect."""
        return joint_level(self.effects)

    @property
    def words(self) -> list[str]:
        return [effect.word(self.level) for effect in self.effects]

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return worst(self.words) if self.quantifier == "every" else worst(self.words, BEST_FIRST)

    @property
    def remark(self) -> str:
        """Points that a claim of some point rests on if others show no effect, and how many support no verdict."""
        reasons = [effect.unsupported for effect in self.effects if effect.unsupported]
        counted = (f"{reasons.count(text)} of {len(self.effects)}: {text}" for text in dict.fromkeys(reasons))
        unsupported = f"points without a verdict, {'; '.join(counted)}" if reasons else ""
        return "; ".join(filter(None, (self._rests_on, unsupported)))

    @property
    def _rests_on(self) -> str:
        points = list(zip(self.effects, self.words, strict=True))
        empty = sum(word in (UNSETTLED, REFUTED) for effect, word in points if not effect.unsupported)
        supporting = [effect.at for effect, word in points if word == CONFIRMED]
        if self.quantifier == "every" or not empty or not supporting:
            return ""
        return f"rests on {', '.join(supporting)}: at {empty} of {len(points)} points the interval includes no effect"

    def result(self) -> dict[str, Any]:
        """JSON-ready; `from_result` reads it."""
        from mfdl.runs.output import json_number

        numbers = {name: json_number(getattr(self, name)) for name in ("value", "spread")}
        words = {"claim": self.claim, "verdict": self.verdict, "finding": self.finding, "remark": self.remark}
        effects = [effect.result(self.level) for effect in self.effects]
        return {**words, **numbers, "quantifier": self.quantifier, "effects": effects}

    @classmethod
    def from_result(cls, fields: Mapping[str, Any]) -> Verdict:
        """From `result`; the verdict is computed anew."""
        effects = [Effect.from_result(effect) for effect in fields["effects"]]
        value, spread = (None if fields[name] is None else float(fields[name]) for name in ("value", "spread"))
        return cls(fields["claim"], effects, fields["finding"], value, spread, fields["quantifier"])


def joint_level(effects: Iterable[Effect]) -> float:
    """The level of each interval at which all of them hold together at `LEVEL` (Bonferroni)."""
    sampled = sum(effect.error is None and not effect.unsupported for effect in effects)
    return 1 - (1 - LEVEL) / max(1, sampled)


def worst(words: Iterable[str], order: Sequence[str] = WORST_FIRST) -> str:
    """The first of `order` that occurs; "not run" where nothing was.

    >>> worst(["confirmed", "not settled", "not run"]), worst([])
    ('not settled', 'not run')
    """
    given = set(words)
    return next((word for word in order if word in given), NOT_RUN)


def overall(verdicts: Iterable[Verdict]) -> str:
    return worst(part.verdict for part in verdicts)

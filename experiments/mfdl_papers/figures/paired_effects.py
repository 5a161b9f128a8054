"""Effects of losses that are paired by seed, for `verdicts`: orders, ties, sizes of statistics of means.

A run that diverged has an infinite loss. A comparison supports a verdict only if one of its sides learned: no seed
diverged and the mean over seeds is below the loss of a guess, where the task has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mfdl.errors import InvalidInput

from .verdicts import Effect, joint_level

if TYPE_CHECKING:
    from mfdl.training.tasks import Task

Pair = tuple[np.ndarray, np.ndarray]
TIE = math.log(2.0)
"""Two losses tie within this logarithm of their ratio."""


def log_ratios(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(a / b) seed by seed, shape (seeds,); 0 where both diverged.

    >>> log_ratios(np.array([1.0, np.nan]), np.array([1.0, 1.0]))
    array([ 0., inf])

    Raises: InvalidInput: no seeds, or not as many of both.
    """
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InvalidInput(f"paired losses must have one number for each seed, got shapes {a.shape} and {b.shape}.")
    a, b = (np.where(np.isnan(x), math.inf, x) for x in (a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: np.ndarray = np.where(a == b, 0.0, np.log(a) - np.log(b))
    return ratios


def learned(losses: np.ndarray, guess: float | None) -> bool:
    """Whether no seed diverged and the mean is below that of a guess (None: the task has none)."""
    return bool(np.isfinite(losses).all()) and (guess is None or float(losses.mean()) < guess)


def unsupported(a: np.ndarray, b: np.ndarray, guess: float | None) -> str:
    """Why two lines support no verdict; empty where one of them learned."""
    if learned(a, guess) or learned(b, guess):
        return ""
    if not (np.isfinite(a).all() or np.isfinite(b).all()):
        return "both diverged"
    return "" if guess is None else f"neither has a loss below that of a guess, {guess:.3g}"


def below(points: Mapping[Any, Pair], *, guess: float | None = None, factor: float = 1.0) -> list[Effect]:
    """Of "the first loss is below `factor` times the second at every point": log(factor second / first) by seed."""
    return [
        Effect.sampled(at, math.log(factor) + log_ratios(upper, lower), unsupported=unsupported(lower, upper, guess))
        for at, (lower, upper) in points.items()
    ]


def tied(at: str, a: np.ndarray, b: np.ndarray, *, guess: float | None = None) -> list[Effect]:
    """Of "the two meet", as a test of equivalence: each is below two times the other."""
    return [effect for pair in ((a, b), (b, a)) for effect in below({at: pair}, guess=guess, factor=math.exp(TIE))]


def clear(effects: Sequence[Effect]) -> int:
    """At how many points the effect is positive beyond its interval, all intervals together."""
    level = joint_level(effects)
    return sum(not effect.unsupported and effect.interval(level)[0] > 0 for effect in effects)


def jackknifed(statistic: Callable[..., float], *losses: np.ndarray) -> np.ndarray:
    """Pseudo-values of a statistic of means over seeds, the last axis of every array, shape (seeds,).

    Their mean is the statistic, their deviation / sqrt(seeds) its standard error. The statistic alone, shape (1,),
    where there is one seed or a value is not finite.
    """
    count, whole = losses[0].shape[-1], statistic(*losses)
    rest = [statistic(*(np.delete(values, i, axis=-1) for values in losses)) for i in range(count if count > 1 else 0)]
    usable = rest and np.isfinite([whole, *rest]).all()
    return count * whole - (count - 1) * np.array(rest) if usable else np.array([whole])


def lowest(curves: Mapping[Any, np.ndarray]) -> Any:
    """The name with the smallest mean over seeds; a run that diverged is infinitely bad."""
    return min(curves, key=lambda name: float(np.where(np.isnan(curves[name]), math.inf, curves[name]).mean()))


def of_means(a: np.ndarray, b: np.ndarray) -> float:
    """mean(a) / mean(b), a diverged run being infinitely bad; nan where both are."""
    above, below = (float(np.where(np.isnan(x), math.inf, x).mean()) for x in (a, b))
    return math.nan if math.isinf(below) and math.isinf(above) else above / below


def deviation(values: np.ndarray) -> float | None:
    """Over seeds; None for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 and np.isfinite(values).all() else None


def guess_of(task: Task) -> float | None:
    """The loss that a run has to beat: of a constant guess, else of the first model; None where that is the best."""
    from mfdl.training.learned import AT_BEST, chance, untrained

    loss = float((chance(task) or untrained(task, 1)).loss)
    return loss if loss > AT_BEST else None

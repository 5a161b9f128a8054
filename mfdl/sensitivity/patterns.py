"""Sensitivity of view Grams over all participation patterns: certified upper bounds, and values attained.

Bounds on sens^2 = max over patterns pi and ||g_t|| <= 1 of sum_{s,t in pi} X[s, t] <g_s, g_t>. Schemes with few
patterns are enumerated, each pattern bounded by `elliptope`. The others (once per epoch, min-separation) have too many;
they get one dual point for all:

    Call (s, t) free if s != t and no pattern holds both. Let Y be symmetric with Y = X outside the free entries,
    whatever it is on them, and let lam >= 0 with diag(lam) >= Y. For every pattern pi and ||g_t|| <= 1,
        sum_{s,t in pi} X[s,t] <g_s, g_t> = sum_{s,t in pi} Y[s,t] <g_s, g_t> <= sum_{t in pi} lam_t ||g_t||^2
                                         <= sum_{t in pi} lam_t,
    the equality because no entry of pi x pi is free, the first inequality by taking the vectors g_t, zero outside
    pi, in diag(lam) - Y >= 0. So the weight of the heaviest pattern of lam bounds sens^2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from mfdl_solvers.arithmetic import blas_threads
from mfdl_solvers.pattern_sets import Pattern, PatternSet
from mfdl_solvers.ties import equal_to_largest, first_largest

from ..check import FloatArray
from ..errors import InvalidInput
from ..floats import LARGEST, UNIT
from ..participation import Participation
from .elliptope import TOLERANCE, BoolArray, close, closed_form_bounds, maximise, scale_to_feasible

MAX_ENUMERATED = 4096  # schemes with more patterns are bounded by one lam for all patterns
METHODS = ("exact", "certified")

_BLOCK_ENTRIES = 4_000_000  # entries of the pattern blocks gathered at once, 32 MB an array
_SMOOTHING = ((0.1, 100), (0.02, 200), (0.004, 300))  # (relative smoothing of both maxima, steps) of each stage
_BRIEFLY = ((0.1, 30),)
_SEARCH_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class PatternBound:
    """Bounds on sens^2 of one victim, per unit record shift and unit noise.

    Attributes:
        upper: never below the truth; may be inf.
        lower: never above the truth; attained on `pattern`, or on one that shows the same up to rounding.
    """

    upper: float
    lower: float
    exact: bool
    pattern: tuple[int, ...]

    @classmethod
    def between(cls, upper: float, lower: float, pattern: Sequence[int]) -> PatternBound:
        return cls(upper, lower, upper <= (1 + TOLERANCE) * lower, tuple(pattern))


@dataclasses.dataclass(frozen=True, eq=False)
class PatternBounds:
    """The same for V victims: arrays of shape (V,), and one pattern each."""

    upper: FloatArray
    lower: FloatArray
    exact: BoolArray
    patterns: tuple[tuple[int, ...], ...]

    def __getitem__(self, victim: int) -> PatternBound:
        return PatternBound(
            float(self.upper[victim]), float(self.lower[victim]), bool(self.exact[victim]), self.patterns[victim]
        )


def bound(
    gram: ArrayLike,
    participation: Participation,
    method: str = "exact",
    entry_error: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
) -> PatternBound:
    """`bounds` for one victim: gram and entry_error have shape (T, T)."""
    X = np.asarray(gram, dtype=np.float64)
    if X.ndim != 2:
        raise InvalidInput(f"gram must have shape (T, T), got {X.shape}; use bounds for a batch.")
    error = None if entry_error is None else np.asarray(entry_error, dtype=np.float64)[None]
    return bounds(X[None], participation, method, error, tolerance)[0]


def bounds(
    grams: ArrayLike,
    participation: Participation,
    method: str = "exact",
    entry_error: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
) -> PatternBounds:
    """Bounds on sens^2 over the patterns of a participation, for a batch of victims.

    Args:
        grams: X of each victim, symmetric positive semidefinite up to rounding, shape (V, T, T).
        method: "certified" is fast: closed-form dual points of each pattern, or, when there are more than
            MAX_ENUMERATED patterns, one lam after a few steps of optimisation. "exact" closes the gap: the
            interior-point method of `elliptope` on each pattern that can matter, or lam and the free entries optimised
            to the end and a search for a bad pattern.
        entry_error: bound on |X - true X| for each entry, shape of grams; None for exact entries.

    Guarantees: upper is never below and lower never above the true value, whatever the method. With method "exact" and
        enumerated patterns, `exact` is True unless rounding errors or entry_error exceed the tolerance. Without
        enumeration it is True only where the two bounds happen to meet.
    Raises: InvalidInput: wrong shape, nan, another number of steps, unknown method.
    Cost: O(V sum over patterns of |pi|^3); without enumeration about 40 ("certified") or a few hundred ("exact")
        eigenvalue decompositions of size T a victim.
    """
    X = np.asarray(grams, dtype=np.float64)
    if X.ndim != 3 or X.shape[1] != X.shape[2]:
        raise InvalidInput(f"grams must have shape (V, T, T), got {X.shape}; use bound for one matrix.")
    if np.isnan(X).any():
        raise InvalidInput(f"grams must not be nan, got nan at index {tuple(np.argwhere(np.isnan(X))[0].tolist())}.")
    if participation.num_steps != X.shape[1]:
        raise InvalidInput(
            f"participation must have the mechanism's {X.shape[1]} steps, got {participation.num_steps} "
            f"({participation.describe()}); patterns of another length miss steps that a record can join."
        )
    if method not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    error = np.zeros_like(X) if entry_error is None else np.asarray(entry_error, dtype=np.float64)
    if error.shape != X.shape or not (error >= 0).all():
        raise InvalidInput(f"entry_error must be >= 0 with the shape of grams, {X.shape}, got shape {error.shape}.")
    # matrices this small lose by threads, and lose a hundredfold when other processes hold the cores
    with blas_threads(0):
        return _bounds(X, error, participation, method, tolerance)


def diagonal_bounds(diagonals: FloatArray, participation: Participation, errors: FloatArray) -> PatternBounds:
    """`bounds` for diagonal Grams, held as their diagonals >= 0, shape (V, T): the heaviest pattern of the diagonal.

    For X = diag(x) the maximum over ||g_t|| <= 1 of sum_t x_t ||g_t||^2 is sum_{t in pi} x_t. Exact, O(T) a pattern.
    """
    high, low = diagonals + errors, np.clip(diagonals - errors, 0.0, None)
    rounding = 2 * (participation.num_steps + 1) * UNIT
    patterns = participation.patterns_of_record()
    if patterns.few:
        listed = list(patterns.patterns())
        upper = np.max([high[:, pattern].sum(axis=1) for pattern in listed], axis=0)
        sums = np.array([low[:, pattern].sum(axis=1) for pattern in listed])
        lower = sums.max(axis=0)
        attained = [tuple(listed[index].tolist()) for index in _first_largest_of_rows(sums.T).tolist()]
    else:
        attained = [patterns.heaviest(row)[1] for row in low]
        lower = np.array([row[list(pattern)].sum() for row, pattern in zip(low, attained, strict=True)])
        upper = np.array([patterns.heaviest(row)[0] for row in high])
    upper, lower = upper * (1 + rounding), lower * (1 - rounding)
    return PatternBounds(upper, lower, close(upper, lower, TOLERANCE), tuple(attained))


def _bounds(
    X: FloatArray, error: FloatArray, participation: Participation, method: str, tolerance: float
) -> PatternBounds:
    patterns = participation.patterns_of_record()
    if patterns.few or patterns.num_patterns <= MAX_ENUMERATED:
        listed = list(patterns.patterns())
        size = sum(pattern.size**2 for pattern in listed)
        step = max(1, _BLOCK_ENTRIES // max(1, size))
        parts = [
            _enumerated(X[start : start + step], error[start : start + step], listed, method, tolerance)
            for start in range(0, len(X), step)
        ]
        if not parts:
            return PatternBounds(np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool), ())
        upper, lower = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        attained = tuple(tuple(int(t) for t in listed[index]) for p in parts for index in p[2].tolist())
        return PatternBounds(upper, lower, close(upper, lower, tolerance), attained)
    bounds_by_gram = [_by_one_dual(X[v], error[v], patterns, method, tolerance) for v in range(len(X))]
    upper, lower = np.array([f[0] for f in bounds_by_gram]), np.array([f[1] for f in bounds_by_gram])
    return PatternBounds(upper, lower, close(upper, lower, tolerance), tuple(f[2] for f in bounds_by_gram))


def _enumerated(
    X: FloatArray, error: FloatArray, patterns: list[Pattern], method: str, tolerance: float
) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """(upper, lower, index of the pattern behind lower) of each victim, over all patterns."""
    V = len(X)
    upper, lower = np.empty((V, len(patterns))), np.empty((V, len(patterns)))
    sizes = np.array([pattern.size for pattern in patterns])
    for size in np.unique(sizes):
        of_size = np.flatnonzero(sizes == size)
        index = np.stack([patterns[p] for p in of_size.tolist()])
        rows, columns = index[:, :, None], index[:, None, :]
        blocks, errors = (array[:, rows, columns].reshape(-1, size, size) for array in (X, error))
        high, low = closed_form_bounds(blocks, errors, tolerance=tolerance)
        upper[:, of_size], lower[:, of_size] = high.reshape(V, -1), low.reshape(V, -1)
    if method == "exact":
        for first in (True, False):  # the most promising pattern of each victim rules out most of the others
            worth = ~close(upper, lower.max(axis=1, keepdims=True), tolerance)
            if first:
                worth &= np.arange(len(patterns)) == _first_largest_of_rows(upper)[:, None]
            for size in np.unique(sizes[worth.any(axis=0)]):
                victims, chosen = np.nonzero(worth & (sizes == size))
                index = np.stack([patterns[p] for p in chosen.tolist()])
                at = victims[:, None, None], index[:, :, None], index[:, None, :]
                value = maximise(X[at], error[at], tolerance)
                upper[victims, chosen], lower[victims, chosen] = value.upper, value.lower
    return upper.max(axis=1), lower.max(axis=1), _first_largest_of_rows(lower)


def _first_largest_of_rows(values: FloatArray) -> NDArray[np.intp]:
    return equal_to_largest(values, axis=1).argmax(axis=1)  # exact: booleans


def _by_one_dual(
    X: FloatArray, error: FloatArray, patterns: PatternSet, method: str, tolerance: float
) -> tuple[float, float, tuple[int, ...]]:
    """(upper, lower, pattern) of one victim by one lam for all patterns."""
    unbounded = np.isinf(X) | np.isinf(error)
    if unbounded.any():
        _, pattern = patterns.heaviest(np.asarray(unbounded.any(axis=1), dtype=np.float64))
        at = np.ix_(pattern, pattern)
        return math.inf, float(closed_form_bounds(X[at][None], error[at][None])[1][0]), pattern
    size = float(np.abs(X).max())
    exponent = int(np.frexp(size)[1])
    X, error = np.ldexp(X, -exponent), np.ldexp(error, -exponent) + (2.0**-1074 if size > 0 else 0.0)
    free = patterns.free()
    asymmetry = np.abs(X - X.T)
    # free entries of Y are ours to choose: exactly symmetric and without error
    Y = np.where(free, 0.0, 0.5 * X + 0.5 * X.T)
    # errors add at most sum_{s,t in pi} error[s, t] to the form of a pattern, and so at most their row sums over pi
    slack = np.where(free, 0.0, error + asymmetry).sum(axis=1) * (1 + 4 * len(X) * UNIT)
    upper, tried = math.inf, []

    def consider(lam: FloatArray) -> None:
        nonlocal upper
        value, pattern = patterns.heaviest((lam + slack) * (1 + 2 * UNIT))
        upper = min(upper, value)
        if pattern not in tried:
            tried.append(pattern)

    start = np.abs(Y).sum(axis=1) * (1 + 2 * len(X) * UNIT)
    consider(start)
    for direction in (start, np.ones(len(X))):
        consider(scale_to_feasible(Y[None], direction[None])[0])
    lower, best = 0.0, tried[0]
    if size > 0:
        for filled, direction in _improved(Y, start, free, patterns, _BRIEFLY if method == "certified" else _SMOOTHING):
            consider(scale_to_feasible(filled[None], direction[None])[0])
    if size > 0 and method == "certified":
        lower, best = _attained(X, error, sorted(tried), tolerance, closed_form_bounds)
    elif size > 0:
        candidates = {*tried, *(_searched(X, pattern, patterns) for pattern in tried)}
        lower, best = _attained(X, error, sorted(candidates), tolerance, _both)
    with np.errstate(over="ignore"):
        high, low = float(np.ldexp(upper, exponent)), float(np.ldexp(lower, exponent))
    high = math.nextafter(high, math.inf) if 0 < high < 2.0**-1000 else high
    return high, min(low, LARGEST), best


def _both(grams: FloatArray, error: FloatArray, *, tolerance: float) -> tuple[FloatArray, FloatArray]:
    value = maximise(grams, error, tolerance)
    return value.upper, value.lower


def _attained(
    X: FloatArray,
    error: FloatArray,
    patterns: Sequence[tuple[int, ...]],
    tolerance: float,
    evaluate: Callable[..., tuple[FloatArray, FloatArray]],
) -> tuple[float, tuple[int, ...]]:
    values = []
    for pattern in patterns:
        at = np.ix_(pattern, pattern)
        values.append(float(evaluate(X[at][None], error[at][None], tolerance=tolerance)[1][0]))
    return max(values), patterns[first_largest(values)]


def _searched(X: FloatArray, pattern: tuple[int, ...], patterns: PatternSet) -> tuple[int, ...]:
    """A pattern that no neighbour beats, judged by the closed-form upper bound; no guarantee rests on it."""
    value = 0.0
    for _ in range(_SEARCH_ROUNDS):
        candidates = [pattern, *patterns.neighbours(pattern)]
        judged = np.empty(len(candidates))
        lengths = np.array([len(c) for c in candidates])
        for length in np.unique(lengths):
            index = np.array([c for c in candidates if len(c) == length], dtype=np.intp)
            judged[lengths == length] = closed_form_bounds(X[index[:, :, None], index[:, None, :]])[0]
        best = first_largest(judged)
        if judged[best] <= max(value, judged[0]) * (1 + 1e-9):
            return pattern
        value, pattern = float(judged[best]), candidates[best]
    return pattern


def _improved(
    Y: FloatArray, start: FloatArray, free: BoolArray, patterns: PatternSet, plan: Sequence[tuple[float, int]]
) -> list[tuple[FloatArray, FloatArray]]:
    """Better (Y, direction of lam): L-BFGS on log heaviest(lam) + log lambda_max(D^-1/2 Y D^-1/2), D = diag(lam).

    Both maxima are smoothed by log-sum-exp with widths proportional to sum(lam) and to the trace, less at each
    stage. The objective does not change when lam is scaled, and its unsmoothed value at any point is the bound that
    `scale_to_feasible` certifies there, so an early stop is safe.
    """
    T = len(Y)
    rows, columns = np.nonzero(np.triu(free))
    base = np.maximum(start, 1e-12 * start.max())
    unit = np.sqrt(base[rows] * base[columns])

    def assemble(point: FloatArray) -> tuple[FloatArray, FloatArray]:
        full = Y.copy()
        full[rows, columns] = full[columns, rows] = unit * point[T:]
        return full, base * np.exp(np.clip(point[:T], -50, 50))

    def objective(point: FloatArray, cool: float, calm: float) -> tuple[float, FloatArray]:
        full, lam = assemble(point)
        heat = cool * lam.sum()
        log_sum, share = patterns.log_sum(lam / heat)
        weight = heat * log_sum
        by_lam = share + cool * (log_sum - share @ lam / heat)
        root = 1 / np.sqrt(lam)
        M = full * root[:, None] * root[None, :]
        values, vectors = np.linalg.eigh(M)
        warm = calm * np.trace(M)
        powers = np.exp((values - values[-1]) / warm)
        log_powers = math.log(powers.sum())
        powers /= powers.sum()
        top = values[-1] + warm * log_powers
        entropy = log_powers - powers @ (values - values[-1]) / warm
        slope = (vectors * (powers + calm * entropy)) @ vectors.T  # of the smoothed lambda_max, by entries of M
        by_free = 2 * unit * (slope * root[:, None] * root[None, :])[rows, columns] / top
        by_log_lam = by_lam * lam / weight - (slope * M).sum(axis=1) / top
        return math.log(weight) + math.log(top), np.concatenate([by_log_lam, by_free])

    point = np.zeros(T + rows.size)
    stages = []
    for smoothing, steps in plan:
        full, lam = assemble(point)
        M = full / np.sqrt(lam)[:, None] / np.sqrt(lam)[None, :]
        cool = smoothing * patterns.heaviest(lam)[0] / (max(patterns.log_count, 1.0) * lam.sum())
        calm = smoothing * float(np.linalg.eigvalsh(M)[-1]) / (math.log(T + 1) * float(np.trace(M)))
        point = scipy.optimize.minimize(
            objective,
            point,
            args=(cool, calm),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "maxcor": 20, "ftol": 1e-8},
        ).x
        stages.append(assemble(point))
    return stages

"""Sensitivity of a Gram, slowly: a semidefinite program, all signs, ascent, all patterns.

Nothing is shared with the code under test. Sizes: 2^k signs, 2^T subsets, one semidefinite program a matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import extras
from ...check import FloatArray
from ...participation import Participation
from .optimal_losses import optimal_value


def brute_force_sensitivity(encoder: FloatArray, participation: Participation) -> float:
    """max ||C g|| over scalar g_t in [-1, 1] on one pattern: at a corner, since a norm is convex. O(2^k).

    A lower bound for vectors g_t in the unit ball; equal to it when C^T C >= 0 on the patterns.
    """
    return max(
        float(np.linalg.norm(encoder[:, steps] @ np.array(signs)))
        for steps in participation.patterns()
        for signs in itertools.product((-1.0, 1.0), repeat=len(steps))
    )


def vector_sensitivity_lower_bound(
    encoder: FloatArray,
    participation: Participation,
    *,
    dimension: int = 3,
    starts: int = 8,
    rounds: int = 100,
    seed: int = 0,
) -> float:
    """A lower bound on max ||C g||_F over g_t in the unit ball of R^dimension, by ascent from random starts.

    See `ascended_value`. Each value belongs to an admissible g, so it is a lower bound whether or not the ascent has
    ended.
    """
    gram, ascent = encoder.T @ encoder, {"dimension": dimension, "starts": starts, "rounds": rounds, "seed": seed}
    return max(ascended_value(gram[np.ix_(steps, steps)], **ascent) for steps in participation.patterns()) ** 0.5


def elliptope_reference(gram: FloatArray) -> float:
    """max <X, U> over U >= 0, diag U = 1, by cvxpy (CLARABEL): accurate to about 1e-7 of the trace of |X|."""
    cp = extras.imported("cvxpy", "this oracle")

    scale = float(np.abs(gram).max())
    if scale == 0:
        return 0.0
    U = cp.Variable(gram.shape, PSD=True)
    return scale * optimal_value(cp.Maximize(cp.trace(gram / scale @ U)), [cp.diag(U) == 1], inaccurate=True)


def largest_signed_sum(gram: Any) -> Any:
    """max over d in {-1, 1}^k of d^T X d, in the arithmetic of the entries (float or Fraction); O(2^k k^2)."""
    k = len(gram)
    steps = range(k)
    return max(
        sum((signs[s] * signs[t] * gram[s][t] for s in steps for t in steps), 0 * gram[0][0])
        for signs in itertools.product((-1, 1), repeat=k)
    )


def signed_sum_over_patterns(gram: FloatArray, patterns: Iterable[Sequence[int]]) -> float:
    """The largest d^T X d over the patterns and all signs d on each: gradients of one coordinate. O(2^k k^2) a pattern.

    >>> signed_sum_over_patterns(np.array([[1.0, 0.0, -2.0], [0.0, 1.0, 0.0], [-2.0, 0.0, 5.0]]), [(0, 2), (1,)])
    10.0
    """
    by_length: dict[int, list[Sequence[int]]] = {}
    for pattern in patterns:
        by_length.setdefault(len(pattern), []).append(pattern)
    largest = 0.0
    for length, steps in by_length.items():
        index = np.array(steps, dtype=np.intp)
        signs = np.array([(1, *rest) for rest in itertools.product((-1, 1), repeat=length - 1)], dtype=np.float64)
        blocks = gram[index[:, :, None], index[:, None, :]]
        largest = max(largest, float(np.einsum("ds,pst,dt->pd", signs, blocks, signs).max()))
    return largest


def ascended_value(gram: FloatArray, *, dimension: int, starts: int = 5, rounds: int = 200, seed: int = 0) -> float:
    """A value of sum X[s, t] <g_s, g_t> attained by unit vectors of a given dimension, by coordinate ascent.

    One step turns g_s towards sum_{t != s} X[s, t] g_t, the best vector with the others held.
    """
    rng = np.random.default_rng(seed)
    best = 0.0
    for _ in range(starts):
        g = rng.standard_normal((len(gram), dimension))
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        for _ in range(rounds):
            for s in range(len(gram)):
                pull = gram[s] @ g - gram[s, s] * g[s]
                if np.linalg.norm(pull) > 0:
                    g[s] = pull / np.linalg.norm(pull)
        best = max(best, float(np.sum(gram * (g @ g.T))))
    return best


def separated_patterns(num_steps: int, max_participations: int, separation: int) -> list[tuple[int, ...]]:
    """The maximal sets of at most k steps with gaps >= b, by testing every subset; sorted.

    >>> separated_patterns(4, 2, 3)
    [(0, 3), (1,), (2,)]
    """
    admissible = [
        set(steps)
        for size in range(1, max_participations + 1)
        for steps in itertools.combinations(range(num_steps), size)
        if all(abs(s - t) >= separation for s, t in itertools.combinations(steps, 2))
    ]
    return sorted(tuple(sorted(a)) for a in admissible if not any(a < other for other in admissible))


def once_per_epoch_patterns(epochs: int, period: int) -> list[tuple[int, ...]]:
    """The sets with one step in each epoch, by testing every subset of that size; sorted.

    >>> once_per_epoch_patterns(2, 2)
    [(0, 2), (0, 3), (1, 2), (1, 3)]
    """
    return [
        steps
        for steps in itertools.combinations(range(epochs * period), epochs)
        if sorted(t // period for t in steps) == list(range(epochs))
    ]


def largest_over_patterns(gram: FloatArray, patterns: Iterable[tuple[int, ...]]) -> float:
    """The largest `elliptope_reference` over the patterns."""
    return max(elliptope_reference(gram[np.ix_(steps, steps)]) for steps in patterns)

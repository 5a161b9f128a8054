"""Sensitivity of a Gram, slowly: a semidefinite program, all signs, ascent, all patterns.

Nothing is shared with the code under test. Sizes: 2^k signs, 2^T subsets, one semidefinite program a matrix.

Optimal losses by semidefinite programs (cvxpy, Clarabel): encoders, and noise from seeds shared in groups.

Groups: with R = s I + sum_k R_k, R_k on group k, a coalition I knows the seeds of the groups that it meets. What is
left is M_I = s I + sum of the other R_k, and one unit of signal at node i costs [M_I^-1]_ii. Every coalition is tried.
Sizes: at most about eight nodes.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import errors
from ...check import FloatArray
from ...factorization import FactorizationProblem
from ...participation import Participation


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
    cp = errors.imported("cvxpy", "this oracle")

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


def optimal_value(objective: Any, constraints: list[Any], *, inaccurate: bool = False) -> float:
    """Optimum of `cvxpy.Minimize` or `Maximize`, accurate to about 1e-7 of its scale.

    Raises: RuntimeError: the solver ends otherwise; inaccurate solutions count only with `inaccurate`.
    """
    cp = errors.imported("cvxpy", "this oracle")  # a second, which `import mfdl.testing` need not take

    program = cp.Problem(objective, constraints)
    with warnings.catch_warnings():  # the status says it
        warnings.simplefilter("ignore", UserWarning)
        program.solve(solver=cp.CLARABEL)
    if program.status not in ((cp.OPTIMAL, cp.OPTIMAL_INACCURATE) if inaccurate else (cp.OPTIMAL,)):
        raise RuntimeError(f"the reference solver ended with status {program.status!r}.")
    return float(program.value)


def optimal_loss_reference(problem: FactorizationProblem, *, restricted: bool = True) -> float:
    """min tr(H X^-1) at unit sensitivity as a semidefinite program (cvxpy, CLARABEL).

    Args:
        problem: H and classes.
        restricted: True for X with zero in-class off-diagonal entries and class diagonals that sum to at most 1;
            False for every X whose exact sensitivity, over vectors in any dimension, is at most 1: on each class
            max <X_c, G> over G >= 0 with diag G <= 1, written by its dual min sum(lam), diag(lam) >= X_c.

    Returns: the optimal value, accurate to about 1e-6 of itself when H is well conditioned.
    """
    cp = errors.imported("cvxpy", "this oracle")

    T = problem.size
    scale = float(np.trace(problem.error_gram))
    values, vectors = np.linalg.eigh(problem.error_gram / scale)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    X = cp.Variable((T, T), PSD=True)
    constraints: list[Any] = []
    for label in np.unique(problem.classes):
        members = np.flatnonzero(problem.classes == label)
        if restricted:
            constraints.append(sum(X[t, t] for t in members) <= 1)
            constraints += [X[s, t] == 0 for s, t in itertools.combinations(members, 2)]
        else:
            picked = np.eye(T)[members]
            bound = cp.Variable(members.size)
            constraints += [cp.sum(bound) <= 1, cp.diag(bound) - picked @ X @ picked.T >> 0]
    return scale * optimal_value(cp.Minimize(cp.matrix_frac(root, X)), constraints)


def coalition_inverse_diagonal(
    private_variance: float, parts: Sequence[FloatArray], groups: Sequence[Sequence[int]], num_nodes: int, size: int
) -> float:
    """max [M_I^-1]_ii over all coalitions I of at most `size` nodes and all i outside, one by one; inf if singular.

    Nodes of the coalition are left out of M_I: they are independent of the others given what the coalition knows.

    >>> coalition_inverse_diagonal(0.5, [np.eye(2)], [(0, 1)], 2, 0)
    0.6666666666666666
    >>> coalition_inverse_diagonal(0.5, [np.eye(2)], [(0, 1)], 2, 1)
    2.0
    """
    worst = 0.0
    for coalition in _coalitions(num_nodes, size):
        rest = [i for i in range(num_nodes) if i not in coalition]
        M = private_variance * np.eye(num_nodes)
        for group, part in zip(groups, parts, strict=True):
            if not set(group) & set(coalition):
                M[np.ix_(group, group)] += part
        left = M[np.ix_(rest, rest)]
        if rest and np.linalg.matrix_rank(left, tol=1e-14 * np.abs(left).max(initial=0.0)) < len(rest):
            return float("inf")
        worst = max(worst, float(np.linalg.inv(left).diagonal().max(initial=0.0)))
    return worst


def coalition_loss_reference(
    error_gram: FloatArray, groups: Sequence[Sequence[int]], size: int, *, private: bool = True
) -> float:
    """min tr(H R) with max [M_I^-1]_ii <= 1 over all coalitions of at most `size` nodes (cvxpy, CLARABEL).

    Written with e_i^T M^-1 e_i as cvxpy's `matrix_frac`, and with every subset, none left out.

    Args:
        error_gram: H, positive definite, shape (n, n).
        groups: node indices of each group; size: largest coalition, below n.
        private: whether s > 0 is allowed.

    Returns: the optimal value, accurate to about 1e-6 of itself; inf when there is no such noise.
    Raises: RuntimeError: the solver reports an inaccurate solution, as it may for nearly singular H.
    """
    cp = errors.imported("cvxpy", "this oracle")

    n = len(error_gram)
    scale = float(np.trace(error_gram))
    s: Any = cp.Variable(nonneg=True) if private else 0.0
    parts = [cp.Variable((len(group), len(group)), PSD=True) for group in groups]
    lifted = [
        np.eye(n)[:, list(group)] @ part @ np.eye(n)[list(group)] for group, part in zip(groups, parts, strict=True)
    ]
    constraints = []
    for coalition in _coalitions(n, size):
        unknown = [part for group, part in zip(groups, lifted, strict=True) if not set(group) & set(coalition)]
        M = s * np.eye(n) + sum(unknown)
        rest = np.array([i for i in range(n) if i not in coalition])
        selection = np.eye(n)[rest]
        for i in range(len(rest)):
            if not private and not any(rest[i] in group and not set(group) & set(coalition) for group in groups):
                return float("inf")
            constraints.append(cp.matrix_frac(np.eye(len(rest))[i], selection @ M @ selection.T) <= 1)
    return scale * optimal_value(
        cp.Minimize(cp.trace((error_gram / scale) @ (s * np.eye(n) + sum(lifted)))), constraints
    )


def _coalitions(num_nodes: int, size: int) -> list[tuple[int, ...]]:
    return [c for q in range(min(size, num_nodes - 1) + 1) for c in itertools.combinations(range(num_nodes), q)]

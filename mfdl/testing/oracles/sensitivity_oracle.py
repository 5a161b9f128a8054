"""Sensitivity of a Gram, optimal losses and shift reduction, slowly; nothing is shared with the code under test.

Sensitivity: a semidefinite program, all signs, ascent, all patterns. Sizes: 2^k signs, 2^T subsets.

Optimal losses by semidefinite programs (cvxpy, Clarabel). Groups: with R = s I + sum_k R_k, R_k on group k, a coalition
I knows the seeds of the groups that it meets. What is left is M_I = s I + sum of the other R_k, and one unit of signal
at node i costs [M_I^-1]_ii. Every coalition is tried. Sizes: at most about eight nodes.

`privacy.shift_reduction`: `quadratic_program_value` writes the program down for a general solver, `exact_cost` repeats
the recursion in rational arithmetic, `LinearSystem` is a run with gradients linear in the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ... import errors
from ...check import FloatArray
from ...factorization import FactorizationProblem
from ...participation import Participation
from ...privacy.shift_problem import ShiftProblem


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
    encoder: FloatArray, participation: Participation, *, dimension: int = 3, **ascent: int
) -> float:
    """A lower bound on max ||C g||_F over g_t in the unit ball of R^dimension, by `ascended_value`."""
    gram, ascent = encoder.T @ encoder, {"dimension": dimension, "starts": 8, "rounds": 100, **ascent}
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

    Args: error_gram: H, positive definite, shape (n, n); private: whether s > 0 is allowed.
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
    R = s * np.eye(n) + sum(lifted)
    return scale * optimal_value(cp.Minimize(cp.trace((error_gram / scale) @ R)), constraints)


def _coalitions(num_nodes: int, size: int) -> list[tuple[int, ...]]:
    return [c for q in range(min(size, num_nodes - 1) + 1) for c in itertools.combinations(range(num_nodes), q)]


def cost_matrices(problem: ShiftProblem) -> list[FloatArray]:
    """One (T, T) form per node, as the docstring of `ShiftProblem` states it."""
    T, n = problem.num_steps, problem.num_nodes
    if problem.noise_weights is not None:
        return [np.diag(problem.noise_weights[:, j]) for j in range(n)]
    if problem.noise_gram is None:
        return [np.eye(T)] * n
    forms = []
    for j in range(n):
        magnitudes = np.abs(problem.noise_gram if problem.noise_gram.ndim == 2 else problem.noise_gram[j])
        convex = np.linalg.eigvalsh(magnitudes).min() >= 0
        forms.append(magnitudes if convex else np.diag(magnitudes.sum(axis=1)))
    return forms


def quadratic_program_value(problem: ShiftProblem, victim: int, pattern: Sequence[int]) -> float:
    """The optimum by a general interior-point solver; inf if the constraints contradict each other, nan if it fails."""
    cp = errors.imported("cvxpy", "this oracle")  # here, not above: half of what `import mfdl.testing` would cost

    R, n = problem.num_rounds, problem.num_nodes
    r = cp.Variable((R, n), nonneg=True)
    a = cp.Variable((R, n), nonneg=True)
    s: list[Any] = [cp.Constant(np.zeros(n))]
    constraints = []
    for k in range(R):
        t = int(problem.step_of_round[k])
        rate = 0.0 if t < 0 else problem.rates[t]
        acts = np.zeros(n, dtype=bool) if t < 0 else problem.present[t]
        growth = np.array([problem.lipschitz[t] if acting else 1.0 for acting in acts])
        source = np.zeros(n)
        if acts[victim] and t in list(pattern):
            source[victim] = rate / problem.divisors[victim]
        constraints.append(r[k] + a[k] == cp.multiply(growth, s[k]) + source)
        s.append(problem.mixing[k].toarray() @ r[k])
        for j in range(n):
            if problem.seen[k, j]:
                constraints.append(r[k, j] == 0)
            if not acts[j] or rate == 0 or not problem.noisy[j]:
                constraints.append(a[k, j] == 0)
    for k in range(R + 1):
        constraints += [s[k][j] == 0 for j in range(n) if problem.pinned[k, j]]
    total: Any = cp.Constant(0.0)
    active = [(t, k) for k, t in enumerate(problem.step_of_round) if t >= 0 and problem.rates[t] > 0]
    if active:
        steps, rounds = [t for t, _ in active], [k for _, k in active]
        for j, form in enumerate(cost_matrices(problem)):
            if problem.noisy[j]:
                b = cp.multiply(a[rounds, j], problem.divisors[j] / problem.rates[steps])
                total = total + cp.quad_form(b, cp.psd_wrap(form[np.ix_(steps, steps)]))
    program = cp.Problem(cp.Minimize(total), constraints)
    for tolerance in (1e-11, 1e-9, 1e-8):  # degenerate instances stop the solver short of the first
        with contextlib.suppress(cp.error.SolverError), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": tried again
            program.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=10 * tolerance, tol_feas=tolerance)
            if program.status == cp.INFEASIBLE:
                return math.inf
            if program.status == cp.OPTIMAL:
                return float(program.value)
    return math.nan


def exact_cost(problem: ShiftProblem, victim: int, pattern: Sequence[int], shifts: FloatArray) -> Fraction:
    """The cost of the given r in rational arithmetic; nodes without noise pass on what they carry."""
    R, n = problem.num_rounds, problem.num_nodes
    forms = cost_matrices(problem)
    s = [Fraction(0)] * n
    b = [[Fraction(0)] * problem.num_steps for _ in range(n)]
    for k in range(R):
        t = int(problem.step_of_round[k])
        r = []
        for j in range(n):
            acts = t >= 0 and problem.present[t, j]
            d = (Fraction(problem.lipschitz[t]) if acts else Fraction(1)) * s[j]
            if acts and j == victim and t in list(pattern):
                d += Fraction(problem.rates[t]) / Fraction(problem.divisors[j])
            if acts and problem.rates[t] > 0 and problem.noisy[j]:
                carried = min(d, Fraction(shifts[k, j]))
                b[j][t] = (d - carried) * Fraction(problem.divisors[j]) / Fraction(problem.rates[t])
            else:
                carried = d
            assert carried == 0 or not problem.seen[k, j]
            r.append(carried)
        W = problem.mixing[k].toarray()
        s = [sum((Fraction(W[i, j]) * r[j] for j in range(n)), Fraction(0)) for i in range(n)]
        assert not any(s[j] for j in range(n) if problem.pinned[k + 1, j])
    steps = range(problem.num_steps)
    terms = (Fraction(forms[j][x, y]) * b[j][x] * b[j][y] for j in range(n) for x in steps for y in steps)
    return sum(terms, Fraction(0))


@dataclasses.dataclass(frozen=True, eq=False)
class LinearSystem:
    """A run in which the local map of node j in step t is multiplication by slopes[t, j], |slope| <= L_t.

    Attributes: problem: the input of shift reduction: |W|, L_t, masks; mixing: (R, n, n) the matrices themselves, with
        signs; slopes: (T, n); encoders: (n, T, T) lower triangular C_j; the noise of node j is C_j^-1 Z_j.
    """

    problem: ShiftProblem
    mixing: FloatArray
    slopes: FloatArray
    encoders: FloatArray

    def true_loss(self, victim: int, pattern: Sequence[int]) -> tuple[float, float]:
        """(mu^2, leak): the largest over the signs of the record's effect, and the part that no noise hides.

        The view is A v + B Z with v the effect of the record on its gradients, so mu^2 = ||B^+ A v||^2 where A v lies
        in the range of B, and `leak` is the relative distance to it.
        """
        p = self.problem
        T, n = p.num_steps, p.num_nodes
        models = np.zeros((n, T + n * T))  # of the record at each step, and of everybody's noise
        noise = np.linalg.inv(self.encoders) * p.noisy[:, None, None]  # known noise is subtracted
        rows: list[FloatArray] = []
        for k in range(p.num_rounds + 1):
            rows += list(models[p.pinned[k]])
            if k == p.num_rounds:
                break
            t = int(p.step_of_round[k])
            if t >= 0:
                models = np.where(p.present[t], self.slopes[t], 1.0)[:, None] * models
                models[victim, t] += p.present[t, victim] * p.rates[t] / p.divisors[victim]
                for j in np.flatnonzero(p.present[t]):
                    models[j, T + j * T : T + (j + 1) * T] += p.rates[t] / p.divisors[j] * noise[j, t]
            rows += list(models[p.seen[k]])
            models = self.mixing[k] @ models
        if not rows:
            return 0.0, 0.0
        view = np.array(rows)
        scale = np.linalg.norm(view, axis=1, keepdims=True)
        view = view / np.where(scale > 0, scale, 1.0)
        A, B = view[:, list(pattern)], view[:, T:]
        U, sigma, _ = np.linalg.svd(B, full_matrices=False)
        keep = sigma > 1e-9
        worst = leak = 0.0
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern)):
            seen = A @ np.array(signs)
            inside = U[:, keep].T @ seen
            leak = max(leak, float(np.linalg.norm(seen - U[:, keep] @ inside)))
            worst = max(worst, float(((inside / sigma[keep]) ** 2).sum()))
        return worst, leak

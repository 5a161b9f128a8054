"""Slow, obvious oracles for `privacy.adaptive.shift_reduction`.

`quadratic_program_value` writes the program down variable by variable for a general solver. `exact_cost` repeats the
recursion in rational arithmetic. `LinearSystem` is a concrete training run whose gradients are linear in the model, so
that what the attacker sees is Gaussian and the true loss is dense linear algebra.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ... import errors
from ...check import FloatArray
from ...privacy.adaptive.shift_problem import ShiftProblem


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
    return sum(
        (Fraction(forms[j][x, y]) * b[j][x] * b[j][y] for j in range(n) for x in steps for y in steps), Fraction(0)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class LinearSystem:
    """A run in which the local map of node j in step t is multiplication by slopes[t, j], |slope| <= L_t.

    Attributes:
        problem: the input of shift reduction: |W|, L_t, masks.
        mixing: (R, n, n) the matrices themselves, with signs.
        slopes: (T, n).
        encoders: (n, T, T) lower triangular C_j; the noise of node j is C_j^-1 Z_j.
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

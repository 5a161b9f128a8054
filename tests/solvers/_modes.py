"""Random problems over time x nodes, and what they are as dense arrays."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from vocabulary import dynamics_on

from mfdl.objective import NoiseObjective
from mfdl.testing import rational
from mfdl.testing.oracles.dense_views import flint_matrix
from mfdl_solvers import FactorizationProblem, ModeProblem

FLORENTINE = ("florentine", 32, 8)


@st.composite
def mode_problems(draw, max_nodes=3, max_steps=4, ridges=(1.0, 1e-2, 0.0), zero_modes=True):
    """H_k of integers and of any rank, zero included, plus a ridge; U the Q of a matrix of integers."""
    n, T = draw(st.integers(1, max_nodes)), draw(st.integers(1, max_steps))
    ridge = draw(st.sampled_from(ridges))
    grams = np.zeros((n, T, T))
    for k in range(n):
        rank = draw(st.integers(0 if zero_modes else 1, T))
        entries = draw(st.lists(st.integers(-3, 3), min_size=rank * T, max_size=rank * T))
        B = np.array(entries, dtype=float).reshape(rank, T)
        grams[k] = B.T @ B + (ridge * np.eye(T) if rank or not zero_modes else 0.0)
    if not grams.any():
        grams[0, 0, 0] = 1.0
    matrix = np.array(draw(st.lists(st.integers(-2, 2), min_size=n * n, max_size=n * n)), dtype=float).reshape(n, n)
    U = np.linalg.qr(matrix + 5 * np.eye(n))[0]
    labels = draw(st.lists(st.integers(0, T - 1), min_size=T, max_size=T))
    return ModeProblem(grams, U, np.array(labels, dtype=np.intp))


def graph_problem(graph, num_steps, period, **options):
    """Metropolis-Hastings weights, every model counted after averaging, records that take part every `period` steps."""
    U, grams = NoiseObjective(dynamics_on(graph), num_steps, **options).by_modes()
    return ModeProblem(grams, U, np.arange(num_steps) % period)


def dense_gram(problem):
    """H over time x nodes, flat index t n + u."""
    return sum(np.kron(H, np.outer(u, u)) for H, u in zip(problem.grams, problem.vectors.T, strict=True))


def dense_problem(problem):
    labels = [c * problem.num_nodes + u for c in problem.classes for u in range(problem.num_nodes)]
    return FactorizationProblem(dense_gram(problem), np.array(labels))


def largest_class_sum(problem, X):
    """max over nodes and classes of sum |X| over the pairs of that class's steps at that node, by loops."""
    n, sums = problem.num_nodes, {}
    for s, a in enumerate(problem.classes):
        for t, b in enumerate(problem.classes):
            if a == b:
                for u in range(n):
                    sums[a, u] = sums.get((a, u), 0.0) + abs(X[s * n + u, t * n + u])
    return max(sums.values())


def dense_loss(problem, X):
    """largest class sum * tr(H X^-1)."""
    return largest_class_sum(problem, X) * float(np.trace(np.linalg.solve(X, dense_gram(problem))))


def exact_loss(problem, blocks, vectors):
    """The same for X = sum_k X_k (x) f_k f_k^T in fractions: X^-1 may have entries of 1e8, X in floats loses them."""
    Y = _kronecker_sum(blocks, vectors).solve(_kronecker_sum(problem.grams, problem.vectors))
    trace = sum(Y[i, i] for i in range(Y.nrows()))
    X = sum(np.kron(block, np.outer(f, f)) for block, f in zip(blocks, vectors.T, strict=True))
    return largest_class_sum(problem, X) * float(Fraction(int(trace.p), int(trace.q)))


def _kronecker_sum(blocks, vectors):
    """sum_k blocks_k (x) v_k v_k^T of the floats as they are, as a matrix of fractions."""
    total = 0
    for block, v in zip(blocks, vectors.T, strict=True):
        column = [Fraction(float(x)) for x in v]
        rows = [[b * x * y for b in row for y in column] for row in rational(block) for x in column]
        total = flint_matrix(rows) + total if total else flint_matrix(rows)
    return total


def product_gram(solved):
    return np.kron(solved.time.gram, solved.space.gram)


def per_mode_gram(solved):
    return sum(np.kron(X, np.outer(f, f)) for X, f in zip(solved.grams, solved.basis.T, strict=True))

"""Slow, obvious, dense oracles: every formula written out, nothing shared with the code under test.

Sizes: the workload oracles hold (T n) x (T n) arrays, `brute_force_sensitivity` tries 2^k signs, and
`optimal_loss_reference` solves a semidefinite program; keep T n below a few hundred and T below ten.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..check import FloatArray
from ..gossip import Gossip
from ..participation import Participation

if TYPE_CHECKING:
    from solvers import FactorizationProblem


def dense_gossip_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """W_T, shape (T n, T n): block (t, s) is the product W_{t-1} ... W_s, the identity for t = s."""
    n = gossip.num_nodes
    workload = np.zeros((num_steps * n, num_steps * n))
    for s in range(num_steps):
        product = np.eye(n)
        for t in range(s, num_steps):
            workload[t * n : (t + 1) * n, s * n : (s + 1) * n] = product
            product = gossip.at(t).dense() @ product
    return workload


def dense_node_error_grams(gossip: Gossip, num_steps: int, objective: str = "post-average") -> FloatArray:
    """H_u = A_u^T A_u, shape (n, T, T); A_u: the columns of node u in the workload of the counted models."""
    n = gossip.num_nodes
    workload = dense_gossip_workload(gossip, num_steps)
    if objective == "post-average":
        averaging = np.zeros_like(workload)
        for t in range(num_steps):
            averaging[t * n : (t + 1) * n, t * n : (t + 1) * n] = gossip.at(t).dense()
        workload = averaging @ workload
    return np.stack([workload[:, node::n].T @ workload[:, node::n] for node in range(n)])


def dense_error_gram(gossip: Gossip, num_steps: int, objective: str = "post-average") -> FloatArray:
    """H = sum over nodes of H_u, shape (T, T)."""
    return dense_node_error_grams(gossip, num_steps, objective).sum(axis=0)


def prefix_sum(num_steps: int) -> FloatArray:
    """Ones on and below the diagonal, shape (T, T).

    >>> prefix_sum(2)
    array([[1., 0.],
           [1., 1.]])
    """
    return np.array([[float(s <= t) for s in range(num_steps)] for t in range(num_steps)])


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

    One step turns every g_t towards the gradient of ||C g||_F^2, a convex function, so it never falls. Each value
    belongs to an admissible g, so it is a lower bound whether or not the ascent has ended.
    """
    rng = np.random.default_rng(seed)
    best = 0.0
    for steps in participation.patterns():
        C = encoder[:, steps]
        for _ in range(starts):
            g = rng.standard_normal((len(steps), dimension))
            g /= np.linalg.norm(g, axis=1, keepdims=True)
            for _ in range(rounds):
                slope = C.T @ (C @ g)
                length = np.linalg.norm(slope, axis=1, keepdims=True)
                g = np.where(length > 0, slope / np.where(length > 0, length, 1.0), g)
            best = max(best, float(np.linalg.norm(C @ g)))
    return best


def exact_gram(encoder: ArrayLike) -> list[list[Fraction]]:
    """C^T C in rational arithmetic; the entries of C are taken as the exact binary numbers they are.

    >>> exact_gram([[1, 0], [2, 3]])[0]
    [Fraction(5, 1), Fraction(6, 1)]
    """
    C = [[Fraction(entry) for entry in row] for row in np.asarray(encoder).tolist()]
    columns = range(len(C[0]))
    return [[sum((row[s] * row[t] for row in C), Fraction(0)) for t in columns] for s in columns]


def optimal_loss_reference(problem: FactorizationProblem, *, restricted: bool = True) -> float:
    """min tr(H X^-1) at unit sensitivity as a semidefinite program (cvxpy, CLARABEL).

    Args:
        problem: H and classes.
        restricted: True for X with zero in-class off-diagonal entries and class diagonals that sum to at most 1;
            False for every X whose exact sensitivity, over vectors in any dimension, is at most 1: on each class
            max <X_c, G> over G >= 0 with diag G <= 1, written by its dual min sum(lam), diag(lam) >= X_c.

    Returns: the optimal value, accurate to about 1e-6 of itself when H is well conditioned.
    """
    import cvxpy as cp

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
    task = cp.Problem(cp.Minimize(cp.matrix_frac(root, X)), constraints)
    task.solve(solver=cp.CLARABEL)
    if task.status != cp.OPTIMAL:
        raise RuntimeError(f"the reference solver ended with status {task.status!r}.")
    return float(task.value) * scale

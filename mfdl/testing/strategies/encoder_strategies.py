"""Hypothesis strategies for encoders, factorization problems and factorizations; small integers and eighths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from ...check import FloatArray
from ...factorization import Factorization, FactorizationProblem, evaluate, solve_problem
from ._draws import integer_arrays, lists_of, some_of

FACTORIZATION_KINDS = ("given", "optimal")


@st.composite
def encoders(draw: st.DrawFn, max_steps: int = 8, *, size: int | None = None, non_negative: bool = False) -> FloatArray:
    """Causal encoders: eighths, diagonal in [1, 2], entries below it in [-1/2, 1/2] (or [0, 1/2]).

    `size` fixes T; otherwise T is 1 to `max_steps`.
    """
    T = draw(st.integers(1, max_steps)) if size is None else size
    return _causal(draw, T, (0 if non_negative else -4, 4), (8, 16)) / 8


def _causal(draw: st.DrawFn, T: int, below: tuple[int, int], diagonal: tuple[int, int]) -> FloatArray:
    """A lower triangular matrix of integers within these bounds."""
    C = np.zeros((T, T))
    C[np.tril_indices(T, -1)] = draw(lists_of(st.integers(*below), T * (T - 1) // 2))
    return C + np.diag(draw(lists_of(st.integers(*diagonal), T)))


@st.composite
def integer_encoders(draw: st.DrawFn, max_steps: int = 6, largest: int = 4, *, size: int | None = None) -> FloatArray:
    """Causal encoders of small integers with a positive diagonal; they shrink to the identity.

    `size` fixes T; otherwise T is 1 to `max_steps`.
    """
    T = draw(st.integers(1, max_steps)) if size is None else size
    return _causal(draw, T, (-largest, largest), (1, largest))


def random_encoder(rng: np.random.Generator, num_steps: int, num_nodes: int | None = None) -> FloatArray:
    """A well-conditioned causal encoder with entries of both signs, (T, T) or (n, T, T)."""
    shape = (num_steps, num_steps) if num_nodes is None else (num_nodes, num_steps, num_steps)
    below = np.tril(rng.uniform(-1, 1, shape), -1)
    diagonal: FloatArray = rng.uniform(0.5, 2, shape[:-1])
    return below + diagonal[..., None] * np.eye(num_steps)


@st.composite
def factorization_problems(
    draw: st.DrawFn, max_size: int = 6, *, ridges: Sequence[float] = (1.0, 1e-2, 1e-6, 0.0)
) -> FactorizationProblem:
    """H = B^T B + ridge I with B of integers and of any rank (never zero), and any class labels.

    The ridges 1e-6 and 0 give nearly singular and, when B has few rows, singular H.
    """
    T = draw(st.integers(1, max_size))
    B = draw(integer_arrays(3, draw(st.integers(1, T)), T))
    if not B.any():
        B[0, 0] = 1
    labels = draw(lists_of(st.integers(0, T - 1), T))
    ridge = draw(st.sampled_from(list(ridges)))
    return FactorizationProblem(B.T @ B + ridge * np.eye(T), np.array(labels, dtype=np.intp))


@st.composite
def factorizations(
    draw: st.DrawFn,
    max_size: int = 4,
    *,
    kinds: Sequence[str] = FACTORIZATION_KINDS,
    ridges: Sequence[float] = (1.0, 1e-2),
    tolerance: float = 1e-4,
) -> tuple[FactorizationProblem, Factorization]:
    """A problem with a factorization of it, which carries loss, lower bound and gap.

    `optimal` is the solver's, to the tolerance; `given` a small integer encoder scaled to sensitivity at most 1, with
    the solver's lower bound. Costs some milliseconds each.

    Raises: InvalidInput: an unknown kind; NotConverged: the solver stopped, which small ridges can bring about.
    """
    kind = draw(st.sampled_from(some_of(FACTORIZATION_KINDS, kinds)))
    posed = draw(factorization_problems(max_size, ridges=ridges))
    best = solve_problem(posed, tolerance=tolerance).require_converged(tolerance)
    if kind == "optimal":
        return posed, best
    encoder = draw(integer_encoders(size=posed.size, largest=2))
    return posed, evaluate(posed, encoder, lower_bound=best.lower_bound)

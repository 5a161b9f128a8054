"""H over steps: what independent unit noise at each step, alike at all nodes, costs the counted models.

Plain gossip with every model counted alike has

    H[s, t] = sum over r >= max(s, t) of tr((W^(r-s+p))^T W^(r-t+p)),

p = 1 for the models after averaging ("post-average") and 0 for the messages ("message"). The total noise in
the counted models under local noise C_local^-1 is then eta_0^2 nu^2 tr(H X^-1), X = C_local^T C_local, per
coordinate. A schedule multiplies H[s, t] by (eta_s / eta_0) (eta_t / eta_0); momentum and weight decay put the response
of their recursion in the place of W^a; step weights w_r weigh the terms and a target Q stands inside the trace. The
per-node form H_u keeps the columns of node u, and sum_u H_u = H.

Cost: reversible W (D W symmetric for some positive D; every symmetric and every uniform one) with
max D / min D up to MAX_MEASURE_RATIO n^3 + n T^2 time, n^2 + T^2 memory, and T^3 with unequal step weights;
a schedule together with momentum or decay n T^3; general W n T (nnz(W) + n T) time;
time-varying W n T^2 (nnz(W) + n T).
No (n T) x (n T) array. Source: arXiv:2510.17480, Lemma 10 and Definition 9 in corrected, closed form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..dynamics.responses import Averaging, ByModes, ByNodes, Entries
from ..error_weights import ErrorWeights
from ..errors import UnsupportedMechanism
from ..gossip.changing import presence
from ..threads import blas_threads
from . import _released
from ._counted import Counted, finite_gram
from ._modes import Modes
from .measure import SpectralMeasure
from .spectral import MAX_DENSE, known_measure

BLOCK_BYTES = 128 * 2**20  # working memory for blocks of columns of W^a
MAX_WORK = 5e12  # operations of the form over nodes: about half an hour


def error_gram(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    present: ArrayLike | None = None,
) -> FloatArray:
    """H for the sum over all nodes.

    Args:
        dynamics: gossip, step sizes, momentum, decay.
        num_steps: T >= 1.
        weights: which models count; default all alike.
        objective: "post-average" (models after averaging) or "message" (before).
        present: who is there in each step, bool (T, n); noise of those who are away enters nothing, as
            `algorithms.with_absences` runs. Default everybody.

    Returns: H, shape (T, T), symmetric positive semidefinite.
    Raises: InvalidInput: num_steps < 1, unknown objective, a sequence, schedule, weights or present of another length,
        an error beyond float64. UnsupportedMechanism: more than MAX_WORK operations; `estimated_error_gram` has an
        answer.
    """
    if present is not None:
        there = presence(present, dynamics.num_nodes, num_steps).astype(float)
        grams = node_error_grams(dynamics, num_steps, weights=weights, objective=objective)
        return functools.reduce(np.add, (np.outer(up, up) * H for up, H in zip(there.T, grams, strict=True)))
    counted = Counted.of(dynamics, num_steps, weights, objective)
    measure = known_measure(counted)
    if measure is not None:
        return of_measure(counted, measure)
    if not in_reach(counted):
        raise UnsupportedMechanism(
            f"the error Gram of {dynamics.num_nodes:,} nodes over {num_steps:,} steps is known in closed form on "
            "rings, tori, hypercubes and complete graphs, and not for this gossip; estimated_error_gram says how far "
            "it may be off, and factorize takes it."
        )
    with blas_threads(max(dynamics.num_nodes, num_steps)):
        if counted.released is not None:
            return finite_gram(lambda: _released.over_steps(counted))
        modes = Modes.of(counted) if dynamics.num_nodes <= MAX_DENSE else None
        if modes is not None:
            gram = functools.partial(_gram, counted, modes.averaging, modes.entries, modes.coupling)
            return finite_gram(lambda: counted.over_steps(gram()))
        return finite_gram(lambda: _by_nodes(counted, np.arange(dynamics.num_nodes)))


def in_reach(counted: Counted, work: float = MAX_WORK) -> bool:
    """Whether the exact Gram is to be had in closed form, by modes, or by nodes in at most so many operations."""
    gossip, n, T = counted.dynamics.gossip, counted.dynamics.num_nodes, counted.num_steps
    if gossip.is_constant:
        W = gossip.at(0)
        if n <= MAX_DENSE and W.is_reversible:
            return True
        if W.is_symmetric and (counted.of_average or W.closed_spectrum is not None):
            return True
    by_nodes = n * T * (gossip.at(0).weights.nnz + n * T)
    return by_nodes * (1 if counted.shift_invariant or counted.released is not None else T) <= work


def of_measure(counted: Counted, measure: SpectralMeasure) -> FloatArray:
    """H of what is counted of gossip with this measure."""
    few = measure.reduced(2 * counted.num_steps)
    if counted.released is not None:
        e = _released.over_modes(counted, few.eigenvalues) * np.sqrt(few.weights)
        return finite_gram(lambda: e @ e.T)
    modes = ByModes(few.eigenvalues)
    entries = np.arange(modes.size), np.zeros(modes.size, dtype=np.intp)
    with blas_threads(max(modes.size, counted.num_steps)):
        return finite_gram(lambda: counted.over_steps(_gram(counted, modes, entries, few.weights)))


def node_error_grams(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> Iterator[FloatArray]:
    """H_u for u = 0..n-1, one at a time, each shape (T, T); cost per node T nnz(W) + n T^2.

    Raises: as `error_gram`.
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    if counted.released is not None:
        return (finite_gram(functools.partial(np.matmul, e, e.T)) for e in _released.over_both(counted).swapaxes(0, 1))
    nodes = (np.array([node]) for node in range(dynamics.num_nodes))
    return (finite_gram(functools.partial(_by_nodes, counted, node)) for node in nodes)


def prefix_sum_gram(num_steps: int) -> FloatArray:
    """A^T A for the prefix sums A (ones lower triangular): H[s, t] = T - max(s, t). D-MF uses it."""
    check.integer_at_least(1, num_steps=num_steps)
    index = np.arange(num_steps)
    return (num_steps - np.maximum.outer(index, index)).astype(np.float64)


def _by_nodes(counted: Counted, nodes: np.ndarray) -> FloatArray:
    """H of injections at the given nodes, by the recursion over nodes, in blocks of them."""
    averaging = ByNodes(counted.dynamics)
    width = max(1, BLOCK_BYTES // (16 * counted.dynamics.num_nodes * counted.num_steps))
    blocks = (nodes[start : start + width] for start in range(0, nodes.size, width))
    grams = (_gram(counted, averaging, (block, np.arange(block.size))) for block in blocks)
    return counted.over_steps(functools.reduce(np.add, grams))


def _gram(counted: Counted, averaging: Averaging, entries: Entries, coupling: FloatArray | None = None) -> FloatArray:
    """sum_r w_r y_r^T M y_r, y_r what step r makes of each injection and M the coupling (or its diagonal), or Q.

    Where only the age of an injection matters, the Gram of responses by age instead (see `Counted.over_steps`).
    """
    T, by_age, ages = counted.num_steps, counted.shift_invariant, np.empty((0, 0))
    total = np.zeros((T, T))

    def gram(rows: FloatArray) -> FloatArray:
        if coupling is None:
            return rows @ rows.T
        return rows @ (coupling @ rows.T if coupling.ndim == 2 else coupling[:, None] * rows.T)

    for r, y in enumerate(counted.responses(averaging, entries, by_age=by_age)):
        weight = counted.step_weights[r]
        if not (weight or by_age):
            continue
        kept = counted.of_nodes(y) if coupling is None else y
        rows = kept.transpose(1, 0, 2).reshape(kept.shape[1], -1)  # one per injection
        if by_age:
            ages = ages if r else np.empty((T, rows.size))
            ages[r] = rows
        else:
            total[: r + 1, : r + 1] += weight * gram(rows)
    if by_age:
        total = gram(ages)
    return (total + total.T) / 2

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
from collections.abc import Callable, Iterator

import numpy as np

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..threads import blas_threads
from ._counted import Counted, finite_gram
from ._mode_responses import Modes

BLOCK_BYTES = 128 * 2**20  # working memory for blocks of columns of W^a


def error_gram(
    dynamics: Dynamics,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> FloatArray:
    """H for the sum over all nodes.

    Args:
        dynamics: gossip, step sizes, momentum, decay.
        num_steps: T >= 1.
        weights: which models count; default all alike.
        objective: "post-average" (models after averaging) or "message" (before).

    Returns: H, shape (T, T), symmetric positive semidefinite.
    Raises: InvalidInput: num_steps < 1, unknown objective, a sequence, schedule or weights of another length, an error
        beyond float64.
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    with blas_threads(max(dynamics.num_nodes, num_steps)):
        modes = Modes.of(counted)
        if modes is not None:
            return finite_gram(lambda: _by_modes(modes))
        return finite_gram(lambda: _by_columns(counted, np.arange(dynamics.num_nodes)))


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
    nodes = (np.array([node]) for node in range(dynamics.num_nodes))
    return (finite_gram(functools.partial(_by_columns, counted, node)) for node in nodes)


def prefix_sum_gram(num_steps: int) -> FloatArray:
    """A^T A for the prefix sums A (ones lower triangular): H[s, t] = T - max(s, t). D-MF uses it."""
    check.integer_at_least(1, num_steps=num_steps)
    index = np.arange(num_steps)
    return (num_steps - np.maximum.outer(index, index)).astype(np.float64)


def _by_modes(modes: Modes) -> FloatArray:
    """sum_r w_r y_r^T M y_r with M = (U^T D^-1/2 Q D^-1/2 U) * (U^T D U) entrywise, M = I where modes are decoupled."""
    counted = modes.counted
    M = None if modes.decoupled else modes.target() * modes.injected()
    if counted.shift_invariant:
        h = modes.by_age()
        powers = h @ h.T if M is None else h @ M @ h.T
        return counted.scaled(counted.summed_over_models((powers + powers.T) / 2))
    H = np.zeros((counted.num_steps,) * 2)
    for weight, y in zip(counted.step_weights, modes.by_step(), strict=True):
        if weight:
            H += weight * (y.T @ (y if M is None else M @ y))
    return (H + H.T) / 2


def _by_columns(counted: Counted, columns: np.ndarray) -> FloatArray:
    """H of injections at the given nodes, by the recursion itself."""
    n, T = counted.dynamics.num_nodes, counted.num_steps
    if counted.shift_invariant:
        powers = _sum_blocks(columns, lambda part: _power_gram(counted, part), bytes_per_column=8 * n * T)
        return counted.scaled(counted.summed_over_models(powers))
    return _sum_blocks(columns, lambda part: _impulse_gram(counted, part), bytes_per_column=16 * n * T)


def _power_gram(counted: Counted, columns: np.ndarray) -> FloatArray:
    """G[a, b] = sum over the given columns c of <F h_a e_c, F h_b e_c>, h_a what is counted a steps later."""
    dynamics, T = counted.dynamics, counted.num_steps
    W, shrink = dynamics.step_weights(0), float(counted.shrink[0])
    unit = np.zeros((dynamics.num_nodes, columns.size))
    unit[columns, np.arange(columns.size)] = 1.0
    model, buffer = np.zeros_like(unit), 1.0
    stack: FloatArray | None = None
    for a in range(T):
        message = shrink * model + buffer * unit
        model, buffer = W @ message, dynamics.momentum * buffer
        row = counted.counts(model if counted.after_averaging else message).ravel()
        if stack is None:
            stack = np.empty((T, row.size))
        stack[a] = row
    assert stack is not None
    return stack @ stack.T


def _impulse_gram(counted: Counted, columns: np.ndarray) -> FloatArray:
    """H restricted to the given nodes, with no structure in time: impulses of every step are carried together."""
    dynamics, T = counted.dynamics, counted.num_steps
    n, width = dynamics.num_nodes, columns.size
    model = np.zeros((n, T, width))  # [:, s]: what unit injections of step s have become
    buffer = np.zeros(T)  # the same in the momentum buffers, where it stays at its own node
    where = np.arange(width)
    H = np.zeros((T, T))
    for r in range(T):
        W, so_far = dynamics.step_weights(r), r + 1
        buffer *= dynamics.momentum
        buffer[r] = 1.0
        message = counted.shrink[r] * model[:, :so_far]
        message[columns, :, where] += counted.rates[r] * buffer[:so_far]
        averaged = (W @ message.reshape(n, -1)).reshape(n, so_far, width)
        if counted.step_weights[r]:
            kept = counted.counts(averaged if counted.after_averaging else message)
            flat = kept.transpose(1, 0, 2).reshape(so_far, -1)
            H[:so_far, :so_far] += counted.step_weights[r] * (flat @ flat.T)
        model[:, :so_far] = averaged
    return H


def _sum_blocks(columns: np.ndarray, gram: Callable[[np.ndarray], FloatArray], *, bytes_per_column: int) -> FloatArray:
    width = int(np.clip(BLOCK_BYTES // max(bytes_per_column, 1), 1, columns.size))
    blocks = (gram(columns[start : start + width]) for start in range(0, columns.size, width))
    total = next(blocks)
    for block in blocks:
        total += block
    return total

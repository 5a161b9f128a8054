"""H over steps, nodes, and both: the cost of noise in the counted models.

H over steps is the cost of independent unit noise at each step, alike at all nodes. Plain gossip with every model
counted alike has

    H[s, t] = sum over r >= max(s, t) of tr((W^(r-s+p))^T W^(r-t+p)),

p = 1 for the models after averaging ("post-average") and 0 for the messages ("message"). A schedule multiplies H[s, t]
by (eta_s / eta_0) (eta_t / eta_0); momentum and weight decay put the response of their recursion in the place of W^a;
step weights w_r weigh the terms and a target Q stands inside the trace. The per-node form H_u takes the columns of node
u, and sum_u H_u = H.

Where released models count, H is made of products e_s^T e_t, e_s the effect of a unit injection of step s on
F sum_r a_r theta_{r+1}: one backward recursion gives them.

Cost, times the directions: reversible W (D W symmetric for some positive D; every symmetric and every uniform one) with
max D / min D up to MAX_MEASURE_RATIO n^3 + n T^2 time, n^2 + T^2 memory, and T^3 with unequal step weights;
a schedule together with momentum or decay n T^3; general W n T (nnz(W) + n T) time;
time-varying W n T^2 (nnz(W) + n T).
No (n T) x (n T) array. Source: arXiv:2510.17480, Lemma 10 and Definition 9 in corrected, closed form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from mfdl_solvers.arithmetic import blas_threads

from ..check import FloatArray
from ..dynamics import Averaging, ByModes, ByNodes, Entries
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip.changing import presence
from ..noise.general import require_joint_size
from .counted_models import CountedModels, finite_gram, over_kinds
from .spectra import MAX_DENSE, Modes, SpectralMeasure, known_measure

BLOCK_BYTES = 128 * 2**20  # working memory for blocks of columns of W^a, and for effects on released models
MAX_WORK = 5e12  # operations of the form over nodes: about half an hour


@over_kinds
def over_steps(counted: CountedModels, present: ArrayLike | None = None) -> FloatArray:
    """H of noise correlated in time, alike at all nodes: tr(H N N^T) is the variance; shape (T, T).

    Args: present: who is there in each step, bool (T, n); noise of nodes that are offline enters nothing, as
        `algorithms.with_dropout` runs. Default everybody.
    Returns: symmetric positive semidefinite.
    Raises: InvalidInput: `present` of another shape. UnsupportedMechanism: more than half an hour of work;
        `estimated` has an answer.
    Cost: see `mfdl.objective.time_grams`.
    """
    dynamics, T = counted.dynamics, counted.num_steps
    if present is not None:
        steps_of_node = presence(present, dynamics.num_nodes, T).astype(float).T
        pairs = zip(steps_of_node, over_steps_of_nodes(counted), strict=True)
        return functools.reduce(np.add, (np.outer(steps, steps) * H for steps, H in pairs))
    measure = known_measure(counted)
    if measure is not None:
        return measure_gram(counted, measure)
    if not in_reach(counted, MAX_WORK):
        raise UnsupportedMechanism(
            f"the error Gram of {dynamics.num_nodes:,} nodes over {T:,} steps is known in closed form on rings, tori, "
            "hypercubes and complete graphs, and not for this gossip; NoiseObjective.estimated says how far it may be "
            "off, and factorize takes it."
        )
    with blas_threads(max(dynamics.num_nodes, T)):
        if counted.released is not None:
            return finite_gram(lambda: _released_gram(counted))
        modes = Modes.from_models(counted) if dynamics.num_nodes <= MAX_DENSE else None
        if modes is not None:
            return finite_gram(lambda: _over_ages(counted, modes.averaging, modes.entries, modes.coupling))
        return finite_gram(lambda: _by_nodes(counted, np.arange(dynamics.num_nodes)))


def in_reach(counted: CountedModels, work: float) -> bool:
    """Whether the exact Gram is known in closed form, by modes, or by nodes in at most so many operations."""
    gossip, n, T = counted.dynamics.gossip, counted.dynamics.num_nodes, counted.num_steps
    if gossip.is_constant:
        W = gossip.at(0)
        if n <= MAX_DENSE and W.is_reversible:
            return True
        if W.is_symmetric and (counted.weights.is_average or W.closed_spectrum is not None):
            return True
    by_nodes = n * T * (gossip.at(0).weights.nnz + n * T) * len(counted.directions)
    return by_nodes * (1 if counted.shift_invariant or counted.released is not None else T) <= work


def measure_gram(counted: CountedModels, measure: SpectralMeasure) -> FloatArray:
    """H of the counted models under gossip with this measure."""
    few = measure.reduced(2 * counted.num_steps)
    if counted.released is not None:

        def released_gram(direction: CountedModels) -> FloatArray:
            e = effects_by_modes(direction, few.eigenvalues) * np.sqrt(few.weights)
            return e @ e.T

        return finite_gram(lambda: counted.over_directions(released_gram))
    modes = ByModes(few.eigenvalues)
    entries = np.arange(modes.size), np.zeros(modes.size, dtype=np.intp)
    with blas_threads(max(modes.size, counted.num_steps)):
        return finite_gram(lambda: _over_ages(counted, modes, entries, few.weights))


def over_steps_of_nodes(counted: CountedModels) -> Iterator[FloatArray]:
    """H_u of the noise of node u, for u = 0..n-1, one at a time, each shape (T, T); their sum is `over_steps`.

    Cost: per node T nnz(W) + n T^2.
    """
    (_, first), *others = kinds = counted.kinds
    if others:
        factors = [factor for factor, _ in kinds]
        by_node = zip(*(over_steps_of_nodes(kind) for _, kind in kinds), strict=True)
        return (np.tensordot(factors, grams, 1) for grams in by_node)
    if first.released is None:
        nodes = (np.array([node]) for node in range(first.dynamics.num_nodes))
        return (finite_gram(functools.partial(_by_nodes, first, node)) for node in nodes)
    averaging = ByNodes(first.dynamics)
    if first.curvature is None:
        effects_at = first.all_effects(averaging, first.form).swapaxes(0, 1)
        return (finite_gram(functools.partial(np.matmul, e, e.T)) for e in effects_at)

    def all_grams(direction: CountedModels) -> FloatArray:  # n T^2 numbers, in place of the effects of every direction
        effects_at = direction.all_effects(averaging, first.form).swapaxes(0, 1)
        return effects_at @ effects_at.swapaxes(1, 2)

    return iter(finite_gram(lambda: first.over_directions(all_grams)))


MAX_STEPS_ALONE = 512  # T^3 numbers are 1 GB


def over_each_step(counted: CountedModels) -> FloatArray:
    """w_r H_r of each step r whose models count, shape (counted steps, T, T); their sum is `over_steps`.

    tr(H_r N N^T) is the variance in the models after step r alone, of which encoders may minimise the largest.

    Raises: InvalidInput: released models. UnsupportedMechanism: T above 512; as `over_steps`.
    Cost: T^3 numbers; T^2 times the modes of the gossip for each step, n T^3 nnz(W) where it has none.
    """
    dynamics, T = counted.dynamics, counted.num_steps
    if counted.released is not None:
        raise InvalidInput(
            f"error weights {counted.weights.describe()} count one released model, so there is no largest error among "
            "steps; take step weights such as all or last:M."
        )
    if T > MAX_STEPS_ALONE:
        raise UnsupportedMechanism(
            f"the error Gram of each step alone takes T^3 numbers and is for {MAX_STEPS_ALONE} steps at most, got {T}; "
            "take the sum of the errors."
        )
    measure, n = known_measure(counted), dynamics.num_nodes
    modes = Modes.from_models(counted) if measure is None and n <= MAX_DENSE else None
    averaging: Averaging
    coupling: FloatArray | None
    if measure is not None:
        few = measure.reduced(2 * T)
        averaging, coupling = ByModes(few.eigenvalues), few.weights
    elif modes is not None:
        averaging, coupling = modes.averaging, modes.coupling
    elif in_reach(counted, MAX_WORK):
        blocks = (np.array([node]) for node in range(n))
        by_node = ByNodes(dynamics)
        grams = (_step_grams(counted, by_node, (node, np.zeros(1, np.intp))) for node in blocks)
        return finite_gram(lambda: functools.reduce(np.add, grams))
    else:
        raise UnsupportedMechanism(f"the error Grams of {n:,} nodes are not covered for this gossip; take fewer nodes.")
    entries = np.arange(averaging.size), np.zeros(averaging.size, dtype=np.intp)
    with blas_threads(max(averaging.size, T)):
        return finite_gram(lambda: _step_grams(counted, averaging, entries, coupling))


def _step_grams(
    counted: CountedModels, averaging: Averaging, entries: Entries, coupling: FloatArray | None = None
) -> FloatArray:
    """w_r H_r of each step that counts, shape (steps, T, T), summed over the directions of the curvature."""
    T, steps = counted.num_steps, np.flatnonzero(counted.step_weights)
    place = {int(r): at for at, r in enumerate(steps)}

    def direction_gram(direction: CountedModels) -> FloatArray:
        grams = np.zeros((steps.size, T, T))
        for r, y in enumerate(direction.responses(averaging, entries)):
            if r in place:
                rows = _rows(direction, y, coupling)
                grams[place[r], : r + 1, : r + 1] = direction.step_weights[r] * _coupled(rows, coupling)
        return grams

    return counted.over_directions(direction_gram)


def by_modes(counted: CountedModels) -> tuple[FloatArray, FloatArray]:
    """(U, H_k): eigenvectors of the gossip, shape (n, n), and one H over steps for each, shape (n, T, T).

    H over steps x nodes is sum_k H_k (x) u_k u_k^T, since each mode is a scalar recursion and no two meet in the
    counted models. sum_k H_k is `over_steps`, sum_k tr(H_k) u_k u_k^T is `over_nodes`.

    Raises: UnsupportedMechanism: gossip that is not constant and symmetric, or a target that couples modes (some
        nodes only; the average of doubly stochastic gossip does not).
    Cost: n T^3 time, n T^2 memory.
    """
    (_, counted), *others = kinds = counted.kinds
    if others:
        (U, *_), grams = zip(*(by_modes(kind) for _, kind in kinds), strict=True)  # of one matrix: the same vectors
        return U, functools.reduce(np.add, (factor * H for (factor, _), H in zip(kinds, grams, strict=True)))
    gossip = counted.dynamics.gossip
    modes = Modes.from_models(counted) if gossip.is_constant and gossip.at(0).is_symmetric else None
    if modes is None or not modes.symmetric:
        raise UnsupportedMechanism(
            "noise correlated over time and nodes at once is factorized by the modes of one symmetric gossip matrix; "
            "this gossip has none. Use metropolis-hastings, or joint for small problems."
        )
    target = np.ones(modes.lam.size)
    if counted.released is not None and counted.weights.uniform_target:
        target = (counted.times_node_factor(modes.vectors) ** 2).sum(axis=0)  # further rounds are of the same modes
    elif modes.coupling is not None:
        if not counted.weights.is_average:
            raise UnsupportedMechanism(
                "a target of some nodes couples the modes of the gossip; use target 'nodes' or 'average', or "
                "joint for small problems."
            )
        # 1 1^T / n is the projection on the eigenvector 1: of that eigenvalue there may be others, all orthogonal to it
        target = (modes.vectors.sum(axis=0) ** 2) / modes.lam.size
        if (np.minimum(target, 1 - target) > 1e-9).any():
            raise UnsupportedMechanism("the average of the models is not a mode of this gossip.")
        target = np.round(target)

    def direction_gram(direction: CountedModels) -> FloatArray:
        if direction.released is None:
            return _mode_grams(direction, modes, target)
        e = effects_by_modes(direction, modes.lam) * np.sqrt(target)
        return np.asarray(np.einsum("sk,tk->kst", e, e))

    return modes.vectors, finite_gram(lambda: counted.over_directions(direction_gram))


def _mode_grams(counted: CountedModels, modes: Modes, target: FloatArray) -> FloatArray:
    T, n = counted.num_steps, modes.lam.size
    grams = np.zeros((n, T, T))
    root = np.sqrt(counted.step_weights)
    with blas_threads(max(n, T)):
        responses = np.zeros((n, T, T))  # mode, step r, step s of the injection
        for r, y in enumerate(counted.responses(modes.averaging, modes.entries)):
            responses[:, r, : r + 1] = root[r] * y[:, :, 0]
        for k in np.flatnonzero(target):
            grams[k] = responses[k].T @ responses[k]
    return grams


def _by_nodes(counted: CountedModels, nodes: np.ndarray) -> FloatArray:
    """H of injections at the given nodes, by the recursion over nodes, in blocks of them."""
    averaging = ByNodes(counted.dynamics)
    width = max(1, BLOCK_BYTES // (16 * counted.dynamics.num_nodes * counted.num_steps))
    blocks = (nodes[start : start + width] for start in range(0, nodes.size, width))
    grams = (_over_ages(counted, averaging, (block, np.arange(block.size))) for block in blocks)
    return functools.reduce(np.add, grams)


def _over_ages(
    counted: CountedModels, averaging: Averaging, entries: Entries, coupling: FloatArray | None = None
) -> FloatArray:
    return counted.over_directions(lambda each: each.over_ages(_gram(each, averaging, entries, coupling)))


def _gram(
    counted: CountedModels, averaging: Averaging, entries: Entries, coupling: FloatArray | None = None
) -> FloatArray:
    """sum_r w_r y_r^T M y_r, y_r the responses of step r to each injection and M the coupling (or its diagonal), or Q.

    Where only the age of an injection matters, the Gram of responses by age instead (see `CountedModels.over_ages`).
    """
    T, by_age, ages = counted.num_steps, counted.shift_invariant, np.empty((0, 0))
    total = np.zeros((T, T))

    for r, y in enumerate(counted.responses(averaging, entries, by_age=by_age)):
        weight = counted.step_weights[r]
        if not (weight or by_age):
            continue
        rows = _rows(counted, y, coupling)
        if by_age:
            ages = ages if r else np.empty((T, rows.size))
            ages[r] = rows
        else:
            total[: r + 1, : r + 1] += weight * _coupled(rows, coupling)
    if by_age:
        total = _coupled(ages, coupling)
    return (total + total.T) / 2


def _rows(counted: CountedModels, responses: FloatArray, coupling: FloatArray | None) -> FloatArray:
    """What counts of the responses of a step, one row per injection."""
    models = counted.times_node_factor(responses) if coupling is None else responses
    return models.transpose(1, 0, 2).reshape(models.shape[1], -1)


def _coupled(rows: FloatArray, coupling: FloatArray | None) -> FloatArray:
    """rows M rows^T, M the coupling, or its diagonal, or I."""
    if coupling is None:
        return rows @ rows.T
    return np.asarray(rows @ (coupling @ rows.T if coupling.ndim == 2 else coupling[:, None] * rows.T))


def effects_by_modes(counted: CountedModels, eigenvalues: FloatArray) -> FloatArray:
    """e_s of each mode of one step's averaging, shape (T, modes)."""
    return counted.all_effects(ByModes(eigenvalues), np.ones(eigenvalues.size))


def _released_gram(counted: CountedModels) -> FloatArray:
    """By modes where there are any, else over nodes in blocks of rows of the form."""
    modes = Modes.from_models(counted)
    T, averaging, form = counted.num_steps, ByNodes(counted.dynamics), counted.form

    def direction_gram(direction: CountedModels) -> FloatArray:
        if modes is not None:
            e = effects_by_modes(direction, modes.lam)
            return np.asarray(e @ (e.T if modes.coupling is None else modes.coupling @ e.T))
        width = max(1, BLOCK_BYTES // (8 * T * direction.dynamics.num_nodes))
        starts = range(0, form.shape[1], width)
        blocks = (direction.all_effects(averaging, form[:, at : at + width]).reshape(T, -1) for at in starts)
        return functools.reduce(np.add, (e @ e.T for e in blocks))

    H = counted.over_directions(direction_gram)
    return np.asarray((H + H.T) / 2)


@over_kinds
def over_nodes(counted: CountedModels) -> FloatArray:
    """H of noise fresh in each step: covariance R over nodes leaves variance tr(H R); shape (n, n).

    Returns: symmetric positive semidefinite; its trace is that of `over_steps`. One step gives W^T W, the criterion
        tr(W R W^T).
    Cost: T n nnz(W) time, by a cost-to-go backwards in time; n^3 + n T by one eigendecomposition for constant
        symmetric W, every node counted, where that is less; n^2 memory.
    Source: arXiv:2501.14644v2, Theorem 1 for one step; see `mfdl.objective.time_grams`.
    """
    gossip, n = counted.dynamics.gossip, counted.dynamics.num_nodes
    if counted.released is not None:
        return finite_gram(lambda: _node_gram_of_released(counted))
    has_modes = counted.node_factor is None and gossip.is_constant and gossip.at(0).is_symmetric
    if has_modes and counted.num_steps * counted.dynamics.step_weights(0).nnz > n * n:
        with blas_threads(n):
            return finite_gram(lambda: _by_modes(counted))
    return finite_gram(lambda: _node_gram(counted))


def _by_modes(counted: CountedModels) -> FloatArray:
    """U f(lam) U^T, f(lam) the cost of an injection in each mode."""
    modes = Modes.from_models(counted)
    assert modes is not None
    costs = counted.over_directions(lambda each: each.fresh_costs(modes.averaging, np.ones_like(modes.lam)))
    H: FloatArray = (modes.vectors * costs) @ modes.vectors.T
    return (H + H.T) / 2


def _node_gram(counted: CountedModels) -> FloatArray:
    F = sp.eye_array(counted.dynamics.num_nodes) if counted.node_factor is None else counted.node_factor
    averaging, Q = ByNodes(counted.dynamics), sp.csr_array(F.T @ F)
    H = counted.over_directions(lambda each: each.fresh_costs(averaging, Q))
    return (H + H.T) / 2


def _node_gram_of_released(counted: CountedModels) -> FloatArray:
    """By modes of symmetric gossip, U (sum_s f_s f_s^T * U^T Q U) U^T entrywise; else the steps one by one."""
    modes, n = Modes.from_models(counted), counted.dynamics.num_nodes
    with blas_threads(n):
        if modes is not None and modes.symmetric:
            f = counted.over_directions(lambda each: _square(effects_by_modes(each, modes.lam).T))
            counts = counted.times_node_factor(modes.vectors)
            H = modes.vectors @ (f * (counts.T @ counts)) @ modes.vectors.T
        else:
            averaging, form = ByNodes(counted.dynamics), counted.form
            H = counted.over_directions(
                lambda each: functools.reduce(np.add, (_square(e) for _, e in each.effects(averaging, form)))
            )
    return np.asarray((H + H.T) / 2)


def _square(rows: FloatArray) -> FloatArray:
    return np.asarray(rows @ rows.T)


@over_kinds
def over_both(counted: CountedModels) -> FloatArray:
    """H of any noise: covariance Sigma over steps x nodes leaves tr(H Sigma); shape (T n, T n), time-major.

    Raises: UnsupportedMechanism: T n above 4096.
    Cost: T (T n)^2 nnz(W) / n time, a few arrays of (T n)^2.
    """
    n, T = counted.dynamics.num_nodes, counted.num_steps
    require_joint_size(T, n, "use per-mode or kronecker, which scale")
    averaging, form = ByNodes(counted.dynamics), counted.form

    def released_gram(direction: CountedModels) -> FloatArray:
        e = direction.all_effects(averaging, form).reshape(T * n, -1)
        return e @ e.T

    direction_gram = _sum_of_steps if counted.released is None else released_gram
    return finite_gram(lambda: counted.over_directions(direction_gram))


def _sum_of_steps(counted: CountedModels) -> FloatArray:
    n, size = counted.dynamics.num_nodes, counted.dynamics.num_nodes * counted.num_steps
    every = np.arange(n)
    H = np.zeros((size, size))
    for r, y in enumerate(counted.responses(ByNodes(counted.dynamics), (every, every))):
        if counted.step_weights[r]:
            models = counted.times_node_factor(y)
            rows = models.reshape(models.shape[0], -1)
            H[: rows.shape[1], : rows.shape[1]] += counted.step_weights[r] * (rows.T @ rows)
    return H

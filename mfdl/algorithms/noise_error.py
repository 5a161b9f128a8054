"""The variance that an algorithm's noise leaves in its models, for every recursion.

Of plain gossip with noise on gradients it is `NoiseObjective.noise_error` of the algorithm's noise; of noise on
messages, or a recursion that is not plain gossip, the algorithm's own maps, run backwards as a cost-to-go. No array has
more than n^2, T^2 or (state)^2 entries, or n T^2 for noise correlated over both.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..objective import ErrorWeights, Estimate, NoiseObjective, Probes
from ..objective.error_weights import ALL_MODELS
from ..objective.spectra import MAX_DENSE
from .linear_algorithm import LinearAlgorithm
from .round import Round


def noise_error(
    algorithm: LinearAlgorithm,
    *,
    weights: ErrorWeights = ALL_MODELS,
    counted_models: str = "post-average",
    probes: Probes | None = None,
) -> Estimate:
    """Total variance in the counted models, per unit nu^2 and coordinate, at learning rate 1, with its 95 % interval.

    Counted are, for each of the T gradient steps, all n models after all K averaging rounds of the step
    ("post-average"; the models between two rounds do not count), or all messages of the round that takes the
    gradients ("message": n models before averaging, or one row per receiver where messages differ, those to itself
    included); `weights` may weigh steps and nodes, or count the average.

    Noise on gradient sums enters through the learning rate and the divisors m_u: the variance of the models themselves
    is eta_0^2 nu^2 times the value, eta_0 the first rate of a schedule. Noise on messages is added after the learning
    rate, which then plays no part: the variance is nu^2 times the value.

    Args: weights, counted_models: as for `NoiseObjective`; probes: beyond 5000 nodes, default 8 of seed 0.
    Returns: of error 0 up to 5000 nodes, and beyond where `NoiseObjective.noise_error` is exact.
    Raises: InvalidInput: as `NoiseObjective`. UnsupportedMechanism: as `NoiseObjective.noise_error`; noise correlated
        in time, or more than 5000 nodes, in a recursion that is not plain gossip; messages of one with a target over
        nodes; a curvature of the loss there.
    Cost: that of `NoiseObjective.noise_error`; from the maps, per round about (state) nnz(maps) time and (state)^2
        memory.
    """
    check.instance(LinearAlgorithm, algorithm=algorithm)
    counted = NoiseObjective(algorithm.dynamics, algorithm.num_steps, weights, counted_models)
    noise, n = algorithm.noise, algorithm.num_nodes
    if noise.is_zero:
        return Estimate(0.0, 0.0)
    if algorithm.is_plain:
        return counted.noise_error(noise, algorithm.divisors, probes)
    if weights.curvature is not None:
        raise UnsupportedMechanism(
            f"curvature is covered of plain gossip with noise on gradients, and {algorithm.name!r} has another "
            "recursion; leave it out of the error weights."
        )
    (_, first), *others = kinds = counted.kinds
    if others:
        costs = [noise_error(algorithm, weights=kind.weights).scaled(factor) for factor, kind in kinds]
        return Estimate(sum(cost.value for cost in costs), sum(cost.error for cost in costs))
    if n > MAX_DENSE:
        raise UnsupportedMechanism(
            f"the error of {algorithm.name} on {n} nodes is not covered: beyond {MAX_DENSE:,} nodes it is "
            "computed for plain gossip with noise on gradients only."
        )
    if not noise.fresh:
        raise UnsupportedMechanism(
            f"the error of noise correlated in time is covered for plain gossip with noise on gradients, and "
            f"{algorithm.name!r} has another recursion."
        )
    if noise.causal is None:
        raise UnsupportedMechanism(f"the error of noise {noise.kind} is not covered.")
    counted = first
    total = (_by_recursion if counted.released is None else _of_released)(algorithm, noise.causal.mixing, counted)
    rate = 1.0 if algorithm.noise_on_messages else float(algorithm.dynamics.learning_rates(algorithm.num_steps)[0])
    return Estimate(total / rate**2, 0.0)


def _by_recursion(algorithm: LinearAlgorithm, factor: sp.csr_array, counted: NoiseObjective) -> float:
    """Noise fresh in each step through the algorithm's own maps.

    With V the cost-to-go of the state, s^T V s = expected counted variance that s causes from here on: a round with
    m = P s + R e, s' = K m + F s + L e has V = A^T V' A (+ w P^T P where messages count), A = K P + F, and its noise
    adds tr(V' B B^T) (+ w ||R f||_F^2), B = (K R + L) f, f the step's factor. V' gains w M^T Q M where models count.
    """
    models = counted.after_averaging
    if not models and not counted.weights.uniform_target:
        raise UnsupportedMechanism("messages of a recursion that is not plain gossip have no target over nodes.")
    counted_models = counted.weights.node_factor(algorithm.num_nodes) @ algorithm.model_from_state
    form = (counted_models.T @ counted_models).toarray()
    steps = np.array(algorithm.step_of_round)
    of_round = counted.step_weights[np.maximum.accumulate(steps)]  # gossip belongs to the step before
    last_of_step = np.append(steps[1:] >= 0, True)
    uses = np.bincount(algorithm.kind_of_round)
    of_kind: dict[int, tuple[sp.csr_array, FloatArray | None, float]] = {}
    V = np.zeros(form.shape)
    total = 0.0
    for r in range(steps.size - 1, -1, -1):
        number, weight = int(algorithm.kind_of_round[r]), float(of_round[r])
        kind = algorithm.kinds[number]
        A, entering, sent = of_kind.get(number) or _round_maps(kind, factor, V.shape[0])
        if uses[number] > 1:  # with a schedule every round is another one, and memory is that of one
            of_kind[number] = A, entering, sent
        if models and last_of_step[r]:
            V = V + weight * form
        if steps[r] >= 0 and entering is not None:
            total += float(np.sum(V * entering))
        V = A.T @ np.asarray(A.T @ V).T
        if not models and steps[r] >= 0:
            total += weight * sent
            if (P := kind.message_from_state) is not None:
                V = V + weight * (P.T @ P).toarray()
    return total


def _of_released(algorithm: LinearAlgorithm, factor: sp.csr_array, counted: NoiseObjective) -> float:
    """Noise fresh in each step in the released models, through the algorithm's own maps: |F W^g R (I (x) f)|^2."""
    assert counted.released is not None
    releasing = algorithm.releasing(counted.released)
    rows, further = counted.weights.node_factor(algorithm.num_nodes), releasing.released_by_gossip
    rows = rows if further is None else rows @ further
    effects = releasing.released_from_injected_noise.rmatmat(rows.T.toarray())
    by_step = effects.reshape(algorithm.num_steps, factor.shape[0], -1)
    return float(sum(np.square(factor.T @ e).sum() for e in by_step))


def _round_maps(kind: Round, factor: sp.csr_array, state: int) -> tuple[sp.csr_array, FloatArray | None, float]:
    """(A, covariance of what the step's noise adds to the state, its variance in the messages) of one round."""
    P, R, K = kind.message_from_state, kind.message_from_noise, kind.state_from_message
    A = sp.csr_array((state, state)) if kind.state_from_state is None else kind.state_from_state
    if K is not None and P is not None:
        A = sp.csr_array(A + K @ P)
    sent = None if R is None else sp.csr_array(R @ factor)
    B = None if K is None or sent is None else sp.csr_array(K @ sent)
    if kind.state_from_noise is not None:
        direct = sp.csr_array(kind.state_from_noise @ factor)
        B = direct if B is None else sp.csr_array(B + direct)
    covariance = None if B is None else (B @ B.T).toarray()
    return A, covariance, 0.0 if sent is None else float(sent.power(2).sum())

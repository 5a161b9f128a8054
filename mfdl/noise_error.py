"""How much noise an algorithm puts into its models, for every noise operator.

In: a `LinearAlgorithm`. Out: one float, the total variance of the counted models per coordinate and unit nu^2. Which
Gram matrix it comes from depends on the noise:

- on gradient sums, correlated in time at each node: tr(N^T H N) with the error Gram over steps, one per node if needed;
  of an encoder with structure by the modes of the gossip, where there are modes, without an array of T x T;
- on gradient sums, fresh in each step with factor F over nodes: tr(F^T H F) with the error Gram over nodes;
- on gradient sums, correlated over both: sum_k tr(E_k^T H(f_k) E_k), H(f)[s, t] = f^T H[s, t] f the error Gram over
  steps of what is spread over nodes by f, from the modes of the gossip; by the error Gram over steps x nodes where
  there are none, or where the noise itself is a matrix of that size;
- on messages, or a recursion that is not plain gossip: the algorithm's own maps, run backwards as a cost-to-go.

`estimated_noise_error` is the same on graphs of any size: without an array over nodes, where that takes an error bar.

No array has more than n^2, T^2 or (state)^2 entries, or n T^2 for noise correlated over both; (T n)^2 only where said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .algorithms import LinearAlgorithm, Round
from .check import FloatArray
from .dynamics import Dynamics
from .error_gram import (
    Estimate,
    EstimatedGram,
    Probes,
    error_gram,
    exact_or_estimated,
    fresh_noise_cost,
    mode_error_grams,
    node_error_grams,
    space_time_error_gram,
    spatial_error_gram,
)
from .error_gram.fresh import same_size
from .error_gram.space_time import MAX_SIZE
from .error_gram.spectral import MAX_DENSE
from .error_weights import ErrorWeights, Target
from .errors import UnsupportedMechanism
from .factorization.long_runs import loss_of
from .factorization.search import Setting
from .noise import CausalNoise
from .noise.strategy import MAX_DENSE_STEPS, Strategy, shipped
from .participation import EveryStep


def noise_error(
    algorithm: LinearAlgorithm, *, objective: str = "post-average", weights: ErrorWeights | None = None
) -> float:
    """Total variance in the counted models, per unit nu^2 and coordinate, at learning rate 1.

    Counted are, for each of the T gradient steps, all n models after all K averaging rounds of the step
    ("post-average"; the models between two rounds do not count), or all messages of the round that takes the
    gradients ("message": n models before averaging, or one row per receiver where messages differ, own ones
    included); `weights` may weigh steps and nodes, or count the average.

    Noise on gradient sums enters through the learning rate and the divisors m_u: the variance of the models themselves
    is eta_0^2 nu^2 times the value, eta_0 the first rate of a schedule. Noise on messages is added after the learning
    rate, which then plays no part: the variance is nu^2 times the value.

    Args: objective: "post-average" or "message".
    Raises: InvalidInput: unknown objective. UnsupportedMechanism: a noise operator that is not known here; noise
        correlated in time in a recursion that is not plain gossip; noise correlated over steps and nodes on gossip
        without modes (not constant and symmetric, or counted at some nodes only) for T n above 4096.
    Cost: that of the error Gram over steps (noise correlated in time; one per node if encoders or divisors differ),
        over nodes (fresh noise), by modes or over steps x nodes (noise correlated over both); from the maps, per
        round about (state) nnz(maps) time and (state)^2 memory.
    """
    target = Target.of(objective, weights)
    released = target.weights.released
    noise, dynamics, m = algorithm.noise.causal, algorithm.dynamics, algorithm.divisors
    T = algorithm.num_steps
    if algorithm.noise.is_zero:
        return 0.0
    if not (algorithm.is_plain or algorithm.noise.fresh):
        raise UnsupportedMechanism(
            f"the error of noise correlated in time is covered for plain gossip with noise on gradients, and "
            f"{algorithm.name!r} has another recursion."
        )
    if (joint := algorithm.noise.joint) is not None:
        N = joint.inverse / np.tile(m, T)[:, None]
        return float(np.sum(N * (space_time_error_gram(dynamics, T, **vars(target)) @ N)))
    if noise is None:
        raise UnsupportedMechanism(f"the error of noise {algorithm.noise.kind} is not covered.")
    if not noise.fresh:
        own = noise.factor is None or noise.local
        return (_local if own else _over_time_and_nodes)(noise, dynamics, m, target)
    if not algorithm.is_plain and released is not None:
        return _of_released(algorithm.releasing(released), noise.mixing, target)
    if not algorithm.is_plain:
        return _by_recursion(algorithm, noise.mixing, target)
    H = spatial_error_gram(dynamics, num_steps=T, **vars(target))
    F = _divided(noise, m)
    return float((F * (H @ F)).sum())


def estimated_noise_error(
    algorithm: LinearAlgorithm,
    *,
    objective: str = "post-average",
    weights: ErrorWeights | None = None,
    probes: Probes | None = None,
) -> Estimate:
    """`noise_error` on graphs of any size, with half the width of its 95 % interval: 0 where it is exact.

    Exact up to MAX_DENSE nodes, and beyond of noise of one size at each node on gossip whose eigenvalues are known.

    Args: those of `noise_error`; probes: default 8 of seed 0.
    Raises: those of `noise_error`; UnsupportedMechanism: beyond MAX_DENSE nodes, noise neither fresh in each step nor
        alike at all nodes, a recursion that is not plain gossip, or gossip that varies or is not symmetric.
    """
    noise, dynamics, m = algorithm.noise.causal, algorithm.dynamics, algorithm.divisors
    target: dict[str, Any] = {"objective": objective, "weights": weights}
    if algorithm.num_nodes <= MAX_DENSE or algorithm.noise.is_zero:
        return Estimate(noise_error(algorithm, **target), 0.0)
    if not algorithm.is_plain or noise is None:
        raise UnsupportedMechanism(
            f"the error of {algorithm.name!r} on {algorithm.num_nodes:,} nodes is not covered: beyond {MAX_DENSE:,} "
            "nodes it is told of plain gossip with noise on gradients."
        )
    F, T = _divided(noise, m), algorithm.num_steps
    if noise.fresh:
        return fresh_noise_cost(dynamics, F, T, probes=probes, **target)
    if not noise.shared or (size := same_size(F)) is None:
        raise UnsupportedMechanism(
            f"the error of noise correlated in time is covered beyond {MAX_DENSE:,} nodes where it is alike at all "
            f"nodes, got {algorithm.num_nodes:,} nodes that differ."
        )
    if (structure := noise.strategy) is not None:
        value = _of_structure(structure, dynamics, Target.of(**target))
        if value is not None:
            return Estimate(size * value, 0.0)
    N = noise.inverse_of(0)
    H = exact_or_estimated(dynamics, T, probes=probes, **target)
    estimate = H.cost(N @ N.T) if isinstance(H, EstimatedGram) else Estimate(float(np.sum(N * (H @ N))), 0.0)
    return Estimate(size * estimate.value, size * estimate.error)


def _divided(noise: CausalNoise, divisors: FloatArray) -> sp.csr_array:
    """The factor of a step's noise over what each node's sum is divided by."""
    return sp.csr_array(sp.diags_array(1 / divisors) @ noise.mixing)


def _local(noise: CausalNoise, dynamics: Dynamics, divisors: FloatArray, target: Target) -> float:
    """sum_u tr(N_u^T H_u N_u) s_u^2 / m_u^2; one Gram for all nodes where encoders, scales and divisors agree."""
    T = noise.num_steps
    divisors = divisors / noise.node_scales
    if noise.shared and (divisors == divisors[0]).all():
        value = None if noise.strategy is None else _of_structure(noise.strategy, dynamics, target)
        if value is None:
            N = noise.inverse_of(0)  # refused here where T is too large for arrays of T x T
            value = float(np.sum(N * (error_gram(dynamics, T, **vars(target)) @ N)))
        return value / float(divisors[0]) ** 2
    grams = node_error_grams(dynamics, T, **vars(target))
    pairs = ((noise.inverse_of(u), H / divisors[u] ** 2) for u, H in enumerate(grams))
    return sum(float(np.sum(N * (H @ N))) for N, H in pairs)


def _of_structure(strategy: Strategy, dynamics: Dynamics, target: Target) -> float | None:
    """tr(N^T H N) by the modes of the gossip; None where the arrays of `_local` say it."""
    if not shipped(strategy):  # one's own may have other products
        return None
    setting = Setting(dynamics, EveryStep(strategy.size), weights=target.weights, objective=target.objective)
    try:
        return loss_of(setting, strategy)  # type: ignore[arg-type]
    except UnsupportedMechanism:
        if strategy.size > MAX_DENSE_STEPS:
            raise
        return None


def _over_time_and_nodes(noise: CausalNoise, dynamics: Dynamics, divisors: FloatArray, target: Target) -> float:
    T, n = noise.num_steps, noise.num_nodes
    F = (sp.diags_array(1 / divisors) @ noise.mixing).toarray()
    try:
        U, grams = mode_error_grams(dynamics, T, **vars(target))
        parts = (U.T @ F) ** 2  # (modes, columns): of column k in mode l
    except UnsupportedMechanism:
        if T * n > MAX_SIZE:
            raise
        blocks = space_time_error_gram(dynamics, T, **vars(target)).reshape(T, n, T, n)
        grams = np.einsum("ik,sitk->kst", F, np.tensordot(blocks, F, 1))  # H(f_k) itself
        parts = np.eye(F.shape[1])
    if noise.shared:
        total, E = np.tensordot(parts.sum(axis=1), grams, 1), noise.inverse_of(0)
        return float(np.sum(E * (total @ E)))
    pairs = ((noise.inverse_of(k), np.tensordot(part, grams, 1)) for k, part in enumerate(parts.T))
    return sum(float(np.sum(E * (H @ E))) for E, H in pairs)


def _by_recursion(algorithm: LinearAlgorithm, factor: sp.csr_array, target: Target) -> float:
    """Noise fresh in each step through the algorithm's own maps.

    With V the cost-to-go of the state, s^T V s = expected counted variance that s causes from here on: a round with
    m = P s + R e, s' = K m + F s + L e has V = A^T V' A (+ w P^T P where messages count), A = K P + F, and its noise
    adds tr(V' B B^T) (+ w ||R f||_F^2), B = (K R + L) f, f the step's factor. V' gains w M^T Q M where models count.
    """
    models, weights = target.after_averaging, target.weights
    if not models and not weights.uniform_target:
        raise UnsupportedMechanism("messages of a recursion that is not plain gossip have no target over nodes.")
    counted_models = weights.node_factor(algorithm.num_nodes) @ algorithm.model_from_state
    counted = (counted_models.T @ counted_models).toarray()
    steps = np.array(algorithm.step_of_round)
    of_round = weights.of_steps(algorithm.num_steps)[np.maximum.accumulate(steps)]  # gossip belongs to the step before
    last_of_step = np.append(steps[1:] >= 0, True)
    uses = np.bincount(algorithm.kind_of_round)
    made: dict[int, tuple[sp.csr_array, FloatArray | None, float]] = {}
    V = np.zeros(counted.shape)
    total = 0.0
    for r in range(steps.size - 1, -1, -1):
        number, weight = int(algorithm.kind_of_round[r]), float(of_round[r])
        kind = algorithm.kinds[number]
        A, entering, sent = made.get(number) or _round_maps(kind, factor, V.shape[0])
        if uses[number] > 1:  # with a schedule every round is another one, and memory is that of one
            made[number] = A, entering, sent
        if models and last_of_step[r]:
            V = V + weight * counted
        if steps[r] >= 0 and entering is not None:
            total += float(np.sum(V * entering))
        V = A.T @ np.asarray(A.T @ V).T
        if not models and steps[r] >= 0:
            total += weight * sent
            if (P := kind.message_from_state) is not None:
                V = V + weight * (P.T @ P).toarray()
    return total / _rate_squared(algorithm)


def _of_released(algorithm: LinearAlgorithm, factor: sp.csr_array, target: Target) -> float:
    """Noise fresh in each step in what an algorithm releases, through its own maps: |F W^g R (I (x) f)|^2."""
    counted = target.weights.node_factor(algorithm.num_nodes)
    further = algorithm.released_by_gossip
    rows = counted if further is None else counted @ further
    effects = algorithm.released_from_injected_noise.rmatmat(rows.T.toarray())
    by_step = effects.reshape(algorithm.num_steps, factor.shape[0], -1)
    return float(sum(np.square(factor.T @ e).sum() for e in by_step)) / _rate_squared(algorithm)


def _rate_squared(algorithm: LinearAlgorithm) -> float:
    """eta_0^2, in which errors are stated unless noise is added after the learning rate."""
    if algorithm.noise_on_messages:
        return 1.0
    return float(algorithm.dynamics.learning_rates(algorithm.num_steps)[0]) ** 2


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

"""The variance that an algorithm's noise leaves in its models, for every recursion.

Of plain gossip with noise on gradients it is `NoiseObjective.noise_error`; of other recursions the algorithm's own maps
are run backwards as a cost-to-go. `input_scales` compares algorithms with the same maps up to constants on what enters,
such as another learning rate: a run of one is a run of the other with inputs multiplied by these constants.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..objective import ErrorWeights, NoiseObjective, Probes
from ..objective.error_weights import ALL_MODELS
from ..objective.estimated_grams import Estimate
from ..objective.spectra import MAX_DENSE
from ..operators import Map
from .linear_algorithm import LinearAlgorithm
from .round import Round

MAX_ROW_ENTRIES = 20_000_000
"""Largest map from noise to counted models that is formed."""


def noise_error(
    algorithm: LinearAlgorithm,
    *,
    weights: ErrorWeights = ALL_MODELS,
    counted_models: str = "post-average",
    probes: Probes | None = None,
) -> Estimate:
    """Total variance in the counted models, per unit nu^2 and coordinate, at learning rate 1, with its 95 % interval.

    Counted are, for each of the T gradient steps, all n models after all K averaging rounds of the step
    ("post-average"), or all messages of the round that takes the gradients ("message": n models before averaging, or
    one row per receiver where messages differ, those to itself included); `weights` may weigh steps and nodes.

    The variance of the models themselves is eta_0^2 nu^2 times the value, eta_0 the first learning rate; that of noise
    on messages, which is added after the learning rate, nu^2 times the value.

    Args: weights, counted_models: as for `NoiseObjective`; probes: beyond 5000 nodes, default 8 of seed 0.
    Returns: of error 0 up to 5000 nodes, and beyond where `NoiseObjective.noise_error` is exact.
    Raises: as `NoiseObjective.noise_error`; UnsupportedMechanism: of a recursion that is not plain gossip more than
        5000 nodes, messages or released models of noise correlated in time, messages with a target, a curvature.
    Cost: that of `NoiseObjective.noise_error`; from the maps, per round about (state) nnz(maps).
    """
    check.instance(LinearAlgorithm, algorithm=algorithm)
    counted = NoiseObjective(algorithm.dynamics, algorithm.num_steps, weights, counted_models)
    noise, n = algorithm.noise, algorithm.num_nodes
    if noise.is_zero:
        return Estimate(0.0, 0.0)
    if algorithm.is_plain and (noise.causal or noise.joint) is not None:
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
    counted, rate = first, 1.0
    if not algorithm.noise_on_messages:
        rate = float(algorithm.dynamics.learning_rates(algorithm.num_steps)[0])
    if (factor := noise.step_factor) is None:
        effects = noise.rmatmat(algorithm.effects_of_noise(counted).T)
        return Estimate(float(np.square(effects).sum()) / rate**2, 0.0)
    total = (_by_recursion if counted.released is None else _released_error)(algorithm, factor, counted)
    return Estimate(total / rate**2, 0.0)


def counted_rows(algorithm: LinearAlgorithm, weights: ErrorWeights = ALL_MODELS) -> FloatArray:
    """Counted models after each step <- injected noise, shape (rows, T slots); its squares sum to the variance.

    Raises: UnsupportedMechanism: released models or a curvature, or more than MAX_ROW_ENTRIES entries.
    """
    n, T = algorithm.num_nodes, algorithm.num_steps
    if weights.released is not None or weights.curvature is not None:
        raise UnsupportedMechanism("noise on messages counts models by steps and nodes; leave out released, curvature.")
    if (entries := T * n * T * algorithm.noise.slots_per_step) > MAX_ROW_ENTRIES:
        raise UnsupportedMechanism(
            f"the map from noise to models of {algorithm.name!r} has {T * n:,} rows and {entries:,} entries, at most "
            f"{MAX_ROW_ENTRIES:,} are formed; take fewer nodes, steps or rounds."
        )
    return algorithm.effects_of_noise(NoiseObjective(algorithm.dynamics, T, weights))


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


def _released_error(algorithm: LinearAlgorithm, factor: sp.csr_array, counted: NoiseObjective) -> float:
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


TOLERANCE = 1e-14  # relative, of the ratios of entries: rates and divisors are multiplied in any order


@dataclasses.dataclass(frozen=True, eq=False)
class InputScales:
    """Factors of each node's gradients, shape (n,), and of each injection slot, shape (slots,)."""

    gradient: FloatArray
    noise: FloatArray


def input_scales(algorithm: LinearAlgorithm, base: LinearAlgorithm) -> InputScales | None:
    """The constants with which `base` does what `algorithm` does; None where there are none.

    Every other map, the released model and the order of rounds must be equal. Momentum and weight decay put the rate
    into maps of the state, so algorithms with them agree at equal rates only. Noise operators are not compared.

    Cost: O(entries) of the distinct maps.
    """
    if not _same_recursion(algorithm, base):
        return None
    gradient, noise = _Ratios(base.sizes["nodes"]), _Ratios(base.sizes["injection slots"])
    for first, other in zip(algorithm.kinds, base.kinds, strict=True):
        state = ("message_from_state", "state_from_message", "state_from_state")
        fits = all(_equal(getattr(first, name), getattr(other, name)) for name in state)
        for ratios, source in ((gradient, "gradient"), (noise, "noise")):
            for name in (f"message_from_{source}", f"state_from_{source}"):
                fits = fits and ratios.take(getattr(first, name), getattr(other, name))
        if not fits:
            return None
    return InputScales(gradient.scales, noise.scales)


def _same_recursion(algorithm: LinearAlgorithm, base: LinearAlgorithm) -> bool:
    return (
        algorithm.sizes == base.sizes
        and algorithm.step_of_round == base.step_of_round
        and np.array_equal(algorithm.kind_of_round, base.kind_of_round)
        and algorithm.released == base.released
        and algorithm.noise_enters_with_gradients == base.noise_enters_with_gradients
        and all(
            _equal(getattr(algorithm, name), getattr(base, name))
            for name in ("model_from_state", "state_from_start", "released_by_gossip")
        )
    )


def _equal(first: Map, other: Map) -> bool:
    if first is None or other is None or first is other:
        return first is other
    return _same_places(first, other) and np.array_equal(first.data, other.data)


def _same_places(first: sp.csr_array, other: sp.csr_array) -> bool:
    same = first.shape == other.shape and np.array_equal(first.indptr, other.indptr)
    return same and np.array_equal(first.indices, other.indices)


class _Ratios:
    """The ratio of each column of maps of one algorithm to that of another, if it is a constant."""

    def __init__(self, size: int) -> None:
        self._of_column = np.full(size, np.nan)

    def take(self, scaled: Map, other: Map) -> bool:
        if scaled is None or other is None:
            return scaled is other
        if not _same_places(scaled, other):
            return False
        with np.errstate(all="ignore"):
            ratios = scaled.data / other.data
        first = np.isnan(self._of_column[other.indices])
        self._of_column[other.indices[first]] = ratios[first]
        wanted = self._of_column[other.indices]
        with np.errstate(invalid="ignore"):
            return bool((np.abs(ratios - wanted) <= TOLERANCE * np.abs(wanted)).all())

    @property
    def scales(self) -> FloatArray:
        return np.where(np.isnan(self._of_column), 1.0, self._of_column)

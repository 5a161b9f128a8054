"""Noise that is optimal for a trust model: one slot a message, correlated over the rounds and steps of its node.

With K gossip rounds a step, node v adds noise to each of its messages: slot 0 with the gradient, slot k in round k,
and, where models are published, slot K to the model that it then sends to everybody and goes on from. All noise of a
step is drawn with the gradient and waits in the state of the node for its round. "Optimal" is within this class:
Gaussian noise that each node draws alone, one slot a message, at a price of noise.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..entries import to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from ..factorization.trust_noise import AttackerView, optimal_local_noise
from ..gossip import GossipMatrix
from ..noise import NoiseOperator, ScheduledNoise, StepNoise
from ..objective import ErrorWeights
from ..objective.error_weights import ALL_MODELS
from ..participation import Participation
from .checks import builder
from .error_in_models import counted_rows
from .gossip_sgd import receivers
from .linear_algorithm import LinearAlgorithm
from .mechanism_names import MECHANISMS
from .round import Round

if TYPE_CHECKING:
    from collections.abc import Iterable

    class TrustModel(Protocol):
        """The method of a trust model that is called here; its package stands on this one."""

        def members(self, algorithm: LinearAlgorithm) -> Iterable[tuple[Any, tuple[int, ...]]]:
            """The models that it is the worst case of, with their victims."""


MAX_ENTRIES = 20_000_000
"""Largest V of one attacker that is formed."""


@builder
def message_noise(
    dynamics: Dynamics,
    participation: Participation,
    noise: NoiseOperator | None = None,
    *,
    published: bool = True,
    name: str = "message-noise",
) -> LinearAlgorithm:
    """D-SGD with noise on every message: in round k of a step node v adds the noise of slot k n + v.

    >>> import mfdl
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"), 0.1, gossip_rounds=2)
    >>> algorithm = message_noise(dynamics, mfdl.EveryStep(3))
    >>> len(algorithm.rounds), algorithm.noise.slots_per_step
    (9, 12)

    Args:
        noise: N over T steps x (K + 1) n slots, K n where models are not published; default independent.
        published: after its K rounds each step has a round in which every node sends its model to all others.
    Raises: UnsupportedMechanism: momentum or weight decay.
    """
    if not dynamics.is_plain:
        raise UnsupportedMechanism(f"{name} covers neither momentum nor weight decay; leave them out.")
    n, T, K = dynamics.num_nodes, participation.num_steps, dynamics.gossip_rounds
    slots = K + check.flag(published=published)
    if noise is None:
        noise = StepNoise(sp.eye_array(slots * n), _holders(n, slots), T, n)
    everybody = sp.csr_array(~np.eye(n, dtype=bool))

    def block(rows: int, columns: int, ones: list[tuple[int, int]]) -> sp.csr_array:
        places = sp.coo_array((np.ones(len(ones)), tuple(zip(*ones, strict=True)) or ([], [])), (rows, columns))
        return sp.csr_array(sp.kron(places, sp.eye_array(n)))

    @functools.cache
    def exchange(k: int, gossip: GossipMatrix | None, rate: float) -> Round:
        """Round k; the state is the models and the noise of slots 1, 2, ... that waits."""
        to_models = sp.eye_array(n) if gossip is None else gossip.weights
        return Round(
            message_from_state=block(1, slots, [(0, 0), (0, k)] if k else [(0, 0)]),
            message_from_gradient=None if k else -rate * sp.eye_array(n),
            message_from_noise=None if k else -rate * block(1, slots, [(0, 0)]),
            state_from_message=sp.csr_array(sp.kron(np.eye(slots, 1), to_models)),
            state_from_state=block(slots, slots, [(j, j) for j in range(k + 1, slots)]) if k else None,
            state_from_noise=None if k else -rate * block(slots, slots, [(j, j) for j in range(1, slots)]),
            receivers=everybody if gossip is None else receivers(gossip.weights),
        )

    rates = dynamics.learning_rates(T).tolist()
    rounds = [
        exchange(k, dynamics.gossip.at(t * K + k) if k < K else None, 0.0 if k else rates[t])
        for t in range(T)
        for k in range(slots)
    ]
    return LinearAlgorithm(
        name=name,
        dynamics=dynamics,
        participation=participation,
        rounds=tuple(rounds),
        noise=noise,
        model_from_state=block(1, slots, [(0, 0)]),
        message_sender=np.arange(n),
        divisors=np.ones(n),
        step_of_round=tuple(t if k == 0 else -1 for t in range(T) for k in range(slots)),
    )


@MECHANISMS.register(paper="this library", trust="pndp", models=("pndp",))
@builder
def trust_optimal(
    dynamics: Dynamics,
    participation: Participation,
    trust: TrustModel | None = None,
    *,
    published: bool = True,
    release: str | None = None,
    price: float = 1e-3,
    weights: ErrorWeights | None = None,
    tolerance: float = 1e-3,
    max_iterations: int = 200,
) -> LinearAlgorithm:
    """Local noise on every message, correlated over rounds and steps, that costs least under a trust model.

    >>> import mfdl
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=6"), gossip_rounds=4)
    >>> algorithm = trust_optimal(dynamics, mfdl.EveryStep(1), mfdl.trust.AnyReceiver())
    >>> round(algorithm.factorization.objective, 3), algorithm.factorization.gap < 1e-3
    (0.158, True)

    Args:
        trust: the attackers; masks of `TrustModel.from_masks` are over the messages of `message_noise`. Default: any
            one other node, from what it receives (`trust.AnyReceiver`).
        published: every node sends its model to all others after each step, so that numbers hold for adaptive
            gradients; else messages stay between neighbours, and several steps are accounted as if all were seen.
        release: final models besides, as for `Privacy`; default the trust model's.
        price: rho > 0, what a unit of noise variance costs beside the error; without it noise grows without bound.
        weights: which models count; default all nodes' after every step.
        tolerance: relative gap of the certificate; max_iterations: Newton steps.

    Its `factorization` is the certificate: objective = mean variance in the counted models at learning rate 1 + price *
    trace of the noise, at mu = 1 and record shift 1; no noise of this class costs less than its lower bound.
    Sparse regular graphs gain much over mafalda with the same rounds, dense or irregular ones little.

    Raises: InvalidInput: a record that an attacker sees without noise, a problem too large (with its numbers).
        UnsupportedMechanism: momentum, decay, curvature or released models as weights, too many patterns.
    Cost: a dense Newton method over n L (L + 1) / 2 unknowns, L = T (K + 1); V of every attacker is formed.
    """
    price, base = check.positive(price=price), message_noise(dynamics, participation, published=published)
    views = _received(base) if trust is None else _seen(base, trust, release)
    costs = _costs(base, weights or ALL_MODELS)
    costs += price * np.eye(costs.shape[1])
    noise = optimal_local_noise(views, costs, participation, tolerance=tolerance, max_iterations=max_iterations)
    operator = covariance_noise(noise.require_converged(tolerance).covariances, participation.num_steps)
    algorithm = message_noise(dynamics, participation, operator, published=published, name="trust-optimal")
    return dataclasses.replace(algorithm, factorization=noise)


def covariance_noise(covariances: FloatArray, num_steps: int) -> ScheduledNoise:
    """Noise whose covariance over the slots of node v, time-major, is covariances[v]; shape (n, L, L)."""
    n, L = covariances.shape[:2]
    slots = L // num_steps
    places = np.arange(L) // slots * (slots * n) + np.arange(L) % slots * n  # of node 0: (t, k) at t slots n + k n
    factors = np.linalg.cholesky(covariances)
    rows, columns = (np.broadcast_to(part, (n, L, L)) for part in (places[:, None], places[None, :]))
    nodes = np.arange(n)[:, None, None]
    entries = (factors.ravel(), ((rows + nodes).ravel(), (columns + nodes).ravel()))
    mixing = sp.csr_array(sp.coo_array(entries, shape=(n * L, n * L)))
    mixing.eliminate_zeros()
    return ScheduledNoise(None, mixing, _holders(n, slots), num_steps=num_steps, num_nodes=n)


def _holders(n: int, slots: int) -> sp.csr_array:
    return sp.csr_array(sp.kron(np.ones((slots, 1)), sp.eye_array(n)), dtype=bool)


def _seen(base: LinearAlgorithm, trust: TrustModel, release: str | None) -> list[AttackerView]:
    """One view for each of the members of a trust model that has victims."""
    views, n, T = [], base.num_nodes, base.num_steps
    for model, victims in trust.members(base):
        if not victims:
            continue
        view = model.view(base, victims[0], release=release)
        _require_entries(*view.noise.shape)
        if view.known_gradients[:, list(victims)].any():
            raise InvalidInput(f"{view.attacker}, knows gradients of its victims, which no noise can hide.")
        A, V = view.dense_gradients_by_time(), to_dense(view.noise)
        views.append(AttackerView(A.reshape(len(A), T, n), _by_node(V, T, n), victims, view.attacker))
    return views


def _received(base: LinearAlgorithm) -> list[AttackerView]:
    """One view for each node: the messages that it receives and all final models, without its own noise."""
    n, T, S = base.num_nodes, base.num_steps, base.messages_per_round
    from_gradients = base.messages_from_gradients, base.released_from_gradients
    from_noise = base.messages_from_injected_noise, base.released_from_injected_noise
    _require_entries(from_noise[0].shape[0] + n, base.noise.shape[0])
    A, V = (np.concatenate([to_dense(part) for part in parts]) for parts in (from_gradients, from_noise))
    A, V = A.reshape(len(A), T, n), _by_node(V, T, n)
    heard = [np.ones((S, n)) if kind.receivers is None else kind.receivers.toarray() for kind in base.kinds]
    received = np.concatenate([*(heard[kind] for kind in base.kind_of_round), 1 - np.eye(n)]) > 0
    views = []
    for u in range(n):
        rows, others = received[:, u], np.arange(n) != u
        views.append(AttackerView(A[rows], V[rows] * others[:, None], np.flatnonzero(others).tolist(), f"node {u}"))
    return views


def _require_entries(rows: int, columns: int) -> None:
    if rows * columns > MAX_ENTRIES:
        raise UnsupportedMechanism(
            f"trust-optimal forms the view of an attacker, {rows:,} x {columns:,} entries of at most {MAX_ENTRIES:,}; "
            "take fewer nodes, steps or rounds."
        )


def _by_node(rows: FloatArray, num_steps: int, n: int) -> FloatArray:
    """Columns (t, k, v) to (rows, v, (t, k))."""
    slots = rows.shape[1] // n
    return rows.reshape(len(rows), num_steps, slots // num_steps, n).transpose(0, 3, 1, 2).reshape(len(rows), n, slots)


def _costs(base: LinearAlgorithm, weights: ErrorWeights) -> FloatArray:
    """H_v: mean variance in the counted models per unit of noise at learning rate 1, shape (n, L, L)."""
    n, T = base.num_nodes, base.num_steps
    rows = counted_rows(base, weights) / base.dynamics.learning_rates(T)[0]
    by_node = _by_node(rows, T, n).transpose(1, 0, 2)
    return np.asarray(by_node.transpose(0, 2, 1) @ by_node) / (n * weights.of_steps(T).sum())

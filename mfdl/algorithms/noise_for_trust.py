"""Noise that is optimal for a trust model: one slot a message, correlated over the rounds and steps of its node.

With K gossip rounds a step, node v adds noise to each of its messages: slot 0 with the gradient, slot k in round k,
and, where models are published, slot K to the model that it then sends to all and goes on from. All noise of a step is
drawn with the gradient and waits in the state for its round. "Optimal" is within this class: Gaussian noise that each
node draws alone, at a price of noise. Groups that share a seed draw noise for all of their messages besides.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..entries import to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from ..factorization.trust_noise import AttackerView, optimal_local_noise
from ..gossip.matrix import vertex_symmetries
from ..noise import NoiseOperator, ScheduledNoise, StepNoise
from ..objective import ErrorWeights
from ..objective.error_weights import ALL_MODELS
from ..participation import Participation
from .building import MECHANISMS, builder
from .error_in_models import counted_rows
from .gossip_sgd import receivers
from .linear_algorithm import LinearAlgorithm
from .round import Round

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    class TrustModel(Protocol):
        """The methods that are called here of a trust model; `mfdl.trust` imports this package."""

        def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]: ...
        def members(self, algorithm: LinearAlgorithm) -> Iterable[tuple[Any, tuple[int, ...]]]: ...


MAX_ENTRIES = 20_000_000  # of V of one attacker
ALIKE = 1e-12  # up to which views and costs count as equal when nodes are permuted: above rounding


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
        published: after its K rounds each step has one in which every node sends its model to all others.
    Raises: UnsupportedMechanism: momentum or weight decay.
    """
    if not dynamics.is_plain:
        raise UnsupportedMechanism(f"{name} covers neither momentum nor weight decay; leave them out.")
    n, T, K = dynamics.num_nodes, participation.num_steps, dynamics.gossip_rounds
    slots = K + check.flag(published=published)
    noise = _Blocks(n, T, slots).base_noise() if noise is None else noise
    everybody = sp.csr_array(~np.eye(n, dtype=bool))

    def block(rows: int, columns: int, ones: list[tuple[int, int]]) -> sp.csr_array:
        places = sp.coo_array((np.ones(len(ones)), tuple(zip(*ones, strict=True)) or ([], [])), (rows, columns))
        return sp.csr_array(sp.kron(places, sp.eye_array(n)))

    @functools.cache
    def exchange(k: int, number: int, rate: float) -> Round:
        """Round k, of that number; the state is the models and the noise of slots 1, 2, ... that waits."""
        to_models = dynamics.round_weights(number) if k < K else sp.eye_array(n)
        return Round(
            message_from_state=block(1, slots, [(0, 0), (0, k)] if k else [(0, 0)]),
            message_from_gradient=None if k else -rate * sp.eye_array(n),
            message_from_noise=None if k else -rate * block(1, slots, [(0, 0)]),
            state_from_message=sp.csr_array(sp.kron(np.eye(slots, 1), to_models)),
            state_from_state=block(slots, slots, [(j, j) for j in range(k + 1, slots)]) if k else None,
            state_from_noise=None if k else -rate * block(slots, slots, [(j, j) for j in range(1, slots)]),
            receivers=receivers(to_models) if k < K else everybody,
        )

    rates = dynamics.learning_rates(T).tolist()
    rounds = [
        exchange(k, k if dynamics.gossip.is_constant else t * K + k, 0.0 if k else rates[t])
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
    budgets: FloatArray | None = None,
    seeds: Sequence[Sequence[int]] = (),
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
        published: as for `message_noise`: numbers hold for adaptive gradients; else messages stay between neighbours,
            and several steps are accounted as if all were seen.
        release: final models besides, as for `Privacy`; default the trust model's.
        price: rho > 0, what a unit of noise variance costs beside the error; without it noise grows without bound.
        weights: which models count; default all nodes' after every step.
        budgets: mu[u, v] > 0 of what node v may learn of u, shape (n, n), relative to the largest; default equal.
        seeds: groups of nodes that share one; tolerance: relative gap; max_iterations: Newton steps.

    Its `factorization` is the certificate: objective = mean variance in the counted models at learning rate 1 + price *
    trace of the noise, at mu = 1 and record shift 1; no noise of this class costs less than its lower bound. Sparse
    regular graphs gain much over mafalda, others little.
    Raises: InvalidInput: a record that an attacker sees without noise, a problem too large (with its numbers).
        UnsupportedMechanism: momentum, decay, curvature or released models as weights, too many patterns.
    Cost: a dense Newton method over n L (L + 1) / 2 unknowns, L = T (K + 1); V of every attacker is formed.
    """
    price, n, T = check.positive(price=price), dynamics.num_nodes, participation.num_steps
    blocks = _Blocks(n, T, dynamics.gossip_rounds + check.flag(published=published), seeds)
    rates = dynamics.learning_rates(T)
    unit = dataclasses.replace(dynamics, learning_rate=rates / rates[0])  # one problem for every first rate
    base = message_noise(unit, participation, blocks.base_noise(), published=published)
    views = _received(base, blocks) if trust is None else _seen(base, blocks, trust, release)
    if budgets is not None:
        views = _within(views, budgets, n)
    costs = blocks.costs(base, weights or ALL_MODELS, price)
    alike = len(seeds) == 0 and budgets is None and _symmetric(base, views, costs)
    if alike:  # one attacker and one covariance stand for all
        views, counted = views[:1], costs.sum(axis=0, keepdims=True)
    else:
        counted = costs
    noise = optimal_local_noise(views, counted, participation, tolerance=tolerance, max_iterations=max_iterations)
    covariances = np.broadcast_to(noise.require_converged(tolerance).covariances, costs.shape).copy()
    noise = dataclasses.replace(noise, covariances=covariances)
    operator = blocks.noise(covariances)
    algorithm = message_noise(dynamics, participation, operator, published=published, name="trust-optimal")
    return dataclasses.replace(algorithm, factorization=noise)


class _Blocks:
    """Base noise of independent blocks, of each node and of each seed: columns (step, slot, member of a block).

    Attributes: owner, node, slot: of each column of a step, its block, member and slot.
    """

    def __init__(self, n: int, num_steps: int, slots: int, seeds: Sequence[Sequence[int]] = ()) -> None:
        self.n, self.num_steps, self.slots = n, num_steps, slots
        members = [[v] for v in range(n)]
        for number, group in enumerate(seeds):
            nodes = [check.integer_at_least(0, **{f"seeds[{number}]": v}) for v in group]
            if len(nodes) < 2 or len(set(nodes)) < len(nodes) or max(nodes) >= n:
                raise InvalidInput(f"seeds must be groups of at least two nodes below {n}, got {group!r}.")
            members.append(sorted(nodes))
        self.members = members
        of_slot = [(block, v) for block, nodes in enumerate(members) for v in nodes]
        self.owner, self.node = np.tile(np.array(of_slot), (slots, 1)).T
        self.slot = np.repeat(np.arange(slots), len(of_slot))
        steps = np.arange(num_steps)[:, None] * self.owner.size
        places = [(steps + np.flatnonzero(self.owner == block)).ravel() for block in range(len(members))]
        self.sizes = [len(part) for part in places]
        self.places = np.full((len(members), max(self.sizes)), -1)  # columns of each block, time-major; -1: no column
        for block, part in enumerate(places):
            self.places[block, : part.size] = part

    def base_noise(self) -> StepNoise:
        return StepNoise(self._added(), self.holders(), self.num_steps, self.n)

    def _added(self) -> sp.csr_array:
        columns = np.arange(self.owner.size)
        shape = (self.slots * self.n, columns.size)
        return sp.csr_array((np.ones(columns.size), (self.slot * self.n + self.node, columns)), shape=shape)

    def holders(self) -> sp.csr_array:
        of_blocks = np.zeros((len(self.members), self.n), dtype=bool)
        for block, nodes in enumerate(self.members):
            of_blocks[block, nodes] = True
        return sp.csr_array(of_blocks[self.owner])

    def split(self, rows: FloatArray) -> FloatArray:
        return np.asarray(np.concatenate([rows, np.zeros((len(rows), 1))], axis=1)[:, self.places])

    def costs(self, base: LinearAlgorithm, weights: ErrorWeights, price: float) -> FloatArray:
        """H_v + price I, (blocks, L, L): mean variance in the counted models per unit of noise."""
        rows = base.noise.rmatmat(counted_rows(base, weights).T).T
        by_block = self.split(rows).transpose(1, 0, 2)
        mean = by_block.transpose(0, 2, 1) @ by_block / (self.n * weights.weights_by_step(self.num_steps).sum())
        return np.asarray(mean + price * np.eye(mean.shape[1]))

    def noise(self, covariances: FloatArray) -> ScheduledNoise:
        factors = [np.linalg.cholesky(S[:size, :size]) for S, size in zip(covariances, self.sizes, strict=True)]
        rows, columns = [], []
        for places, size in zip(self.places, self.sizes, strict=True):
            rows.append(np.repeat(places[:size], size))
            columns.append(np.tile(places[:size], size))
        values, at = np.concatenate([F.ravel() for F in factors]), (np.concatenate(rows), np.concatenate(columns))
        correlated = sp.csr_array(sp.coo_array((values, at), shape=(self.num_steps * self.owner.size,) * 2))
        mixing = sp.csr_array(sp.kron(sp.eye_array(self.num_steps), self._added()) @ correlated)
        mixing.eliminate_zeros()
        return ScheduledNoise(None, mixing, self.holders(), num_steps=self.num_steps, num_nodes=self.n)


def _within(views: Sequence[AttackerView], budgets: FloatArray, n: int) -> list[AttackerView]:
    if budgets.shape != (n, n) or any(len(view.attackers) != 1 for view in views):
        raise InvalidInput(
            f"budgets must have a row for each victim and a column for each attacker, shape ({n}, {n}), under a trust "
            f"model of single attackers (AnyReceiver), got shape {budgets.shape}."
        )
    pairs = [budgets[list(view.victims), view.attackers[0]] for view in views]
    largest = max(part.max() for part in pairs)
    return [view._replace(budgets=part / largest) for view, part in zip(views, pairs, strict=True)]


def _symmetric(base: LinearAlgorithm, views: Sequence[AttackerView], costs: FloatArray) -> bool:
    """Whether permutations of the nodes move the first attacker to every node, with its view, victims and costs."""
    n = base.num_nodes
    single = [view.attackers for view in views] == [(u,) for u in range(n)]
    if not single or n == 1 or not base.dynamics.gossip.is_constant:
        return False
    symmetries = vertex_symmetries(base.dynamics.gossip.at(0).weights.toarray())
    if symmetries is None or np.abs(costs - costs[0]).max() > ALIKE:
        return False
    first = _sorted_rows(views[0], np.arange(n))
    for view, moved in zip(views, symmetries, strict=True):
        rows = _sorted_rows(view, moved)
        if rows.shape != first.shape or np.abs(rows - first).max() > ALIKE:
            return False
    return all(len(view.victims) == n - 1 for view in views)


def _sorted_rows(view: AttackerView, moved: NDArray[np.intp]) -> FloatArray:
    parts = view.gradients[:, :, moved], view.noise[:, moved]
    rows = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    return np.asarray(rows[np.lexsort(np.round(rows, 9).T)])  # exact: rounded before


def _seen(base: LinearAlgorithm, blocks: _Blocks, trust: TrustModel, release: str | None) -> list[AttackerView]:
    views, n, T = [], base.num_nodes, base.num_steps
    for model, victims in trust.members(base):
        if not victims:
            continue
        view = model.view(base, victims[0], release=release)
        _require_entries(*view.noise.shape)
        if view.known_gradients[:, list(victims)].any():
            raise InvalidInput(f"{view.attacker}, knows gradients of its victims, which no noise can hide.")
        A, V = view.dense_gradients_by_time(), view.dense_noise()
        attackers, equal = model.attackers(base), np.ones(len(victims))
        views.append(AttackerView(A.reshape(len(A), T, n), blocks.split(V), victims, equal, view.attacker, attackers))
    return views


def _received(base: LinearAlgorithm, blocks: _Blocks) -> list[AttackerView]:
    """One view for each node: received messages and all final models, without the noise that it holds."""
    n, T, S = base.num_nodes, base.num_steps, base.messages_per_round
    from_gradients = base.messages_from_gradients, base.released_from_gradients
    from_noise = base.messages_from_noise, base.released_from_injected_noise @ base.noise
    _require_entries(*from_noise[0].shape)
    A, V = (np.concatenate([to_dense(part) for part in parts]) for parts in (from_gradients, from_noise))
    A, V = A.reshape(len(A), T, n), blocks.split(V)
    heard = [np.ones((S, n)) if kind.receivers is None else kind.receivers.toarray() for kind in base.kinds]
    received = np.concatenate([*(heard[kind] for kind in base.kind_of_round), 1 - np.eye(n)]) > 0
    views = []
    for u in range(n):
        rows, others = received[:, u], np.flatnonzero(np.arange(n) != u).tolist()
        unknown = np.array([[u not in nodes] for nodes in blocks.members])
        views.append(AttackerView(A[rows], V[rows] * unknown, others, np.ones(n - 1), f"node {u}", (u,)))
    return views


def _require_entries(rows: int, columns: int) -> None:
    if rows * columns > MAX_ENTRIES:
        raise UnsupportedMechanism(
            f"trust-optimal forms the view of an attacker, {rows:,} x {columns:,} entries of at most {MAX_ENTRIES:,}; "
            "take fewer nodes, steps or rounds."
        )

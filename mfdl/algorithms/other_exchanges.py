"""Algorithms with other messages than the plain round: push-sum, a token, different noise on each message, dropout.

In `zip_dl` noise cancels in the averages of receivers: node a draws Y_{a->v} for every v of its closed neighbourhood
(d_a nodes, itself included) and sends

    x_a + Z_{a->v},    Z_{a->v} = Y_{a->v} - (1 / (d_a W_va)) sum_j W_ja Y_{a->j},

so that sum_v W_va Z_{a->v} = 0. The message a -> a is never transmitted unless `self_messages`.

An offline node (`with_dropout`) takes no gradient, adds no noise and sends nothing. Noise that it shares, and would
have cancelled, stays in the models of others, unless it is recovered (`recovered`): other holders add a column, and the
noise must be accounted anew. Walks and patterns are public and sampled before training.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..gossip import GossipMatrix
from ..gossip.changing import Present, checked_walk, presence, token_passing
from ..gossip.directed import PushSum
from ..noise import NoiseOperator, ScheduledNoise, StepNoise
from ..operators import Map
from ..participation import Participation
from .building import MECHANISMS, builder
from .gossip_sgd import decentralized, receivers
from .linear_algorithm import LinearAlgorithm
from .maps import Maps, from_maps
from .round import MAPS, SHAPES, Round


@builder
def push_sum(
    dynamics: Dynamics, participation: Participation, *, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """Stochastic gradient push: sums x take the steps, models are z = x / w, and the average of x is kept.

        x_{t+1} = S_t (x_t - eta_t i_t(z_t)),  that is  z_{t+1} = W_t (z_t - (eta_t / w_t) i_t),  i = g + e

    Weights are public, so a share of a sum shows z_t - (eta_t / w_t) i_t. D-SGD on the same gossip (`dp_dsgd`) leaves
    1 / w_t out: then nodes that many send to count more than others.

    Cost: one round for each step, O(nodes + edges).

    >>> import mfdl, networkx
    >>> links = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.push_sum(links, rounds=6), 0.1)
    >>> push_sum(dynamics, mfdl.Cyclic(epochs=2, period=3)).name
    'push-sum'

    Args: noise: on gradient sums; default fresh independent noise.
    Guarantees: where all messages are seen losses are those of D-SGD with the same noise, on any graph.
    Raises: InvalidInput: other gossip, or fewer rounds than steps. UnsupportedMechanism: momentum, weight decay, or
        several gossip rounds per step.
    Source: arXiv:1811.10792, Algorithm 1.
    """
    gossip = dynamics.gossip
    if not isinstance(gossip, PushSum):
        raise InvalidInput(
            f"push-sum needs gossip of gossip.push_sum(graph, rounds), which knows its weights, got {gossip.name!r}."
        )
    if not (dynamics.has_one_round and dynamics.is_plain):
        raise UnsupportedMechanism("push-sum covers one gossip round per step, neither momentum nor weight decay.")
    T, n = participation.num_steps, dynamics.num_nodes
    eye = sp.csr_array(sp.eye_array(n))
    if len(gossip.matrices) < T:
        raise InvalidInput(f"push-sum needs a round for each of {T} steps, got {len(gossip.matrices)} rounds.")
    rates = dynamics.learning_rates(T)[:, None] / gossip.push_weights[:T]

    def step(t: int) -> Maps:
        W, entering = gossip.at(t).weights, sp.diags_array(-rates[t])
        return {"P": eye, "Q": entering, "R": entering, "K": W, "receivers": receivers(W)}

    return from_maps(step, participation, dynamics, noise=noise, name="push-sum", message_sender=np.arange(n))


@builder
def random_walk(
    dynamics: Dynamics,
    participation: Participation,
    *,
    walk: ArrayLike,
    to_all: bool = True,
    noise: NoiseOperator | None = None,
) -> LinearAlgorithm:
    """Random-walk SGD: in step t node walk[t] sends theta - eta_t (g + e) to node walk[t + 1], whose model it becomes.

    All others keep the token as they last had it. What stays at its node is not sent. Privacy losses hold given the
    walk (docs/random_walks.md).

    >>> import mfdl
    >>> W = mfdl.gossip.metropolis_hastings("ring:n=4")
    >>> walk = mfdl.gossip.sampled_walk(W, steps=8, seed=0)
    >>> algorithm = random_walk(mfdl.Dynamics(W, 0.1), mfdl.EveryStep(8), walk=walk)
    >>> int(algorithm.sent.sum()), int((walk[1:-1] != walk[:-2]).sum()) + 1  # the last goes to all
    (5, 5)

    Args:
        participation: of all steps; a record takes part in those of them in which its node holds the token.
        walk: node indices (T + 1,), as `gossip.sampled_walk` makes it; each move has a weight in the gossip.
        to_all: after the last step all nodes get the token, so that final models are the token; else only walk[T].
    Guarantees: an attacker that the token reaches now and then sees the m visits of a record between two of its own
        under the noise of all L steps between them: sens^2 = sum m^2 / L for non-adaptive gradients, where noise is
        fresh and the rate constant.
    Raises: InvalidInput: no such walk. UnsupportedMechanism: momentum, weight decay, or several rounds per step.
    Cost: training takes gradients at all nodes and drops those of others.
    Source: random-walk SGD, private in arXiv:2402.07471 and arXiv:2510.19934.
    """
    if not (dynamics.has_one_round and dynamics.is_plain):
        raise UnsupportedMechanism(
            "random-walk covers one round per step, neither momentum nor weight decay: both would move models of nodes "
            "that do not hold the token."
        )
    T, n = participation.num_steps, dynamics.num_nodes
    nodes = checked_walk(walk, dynamics.gossip, T)
    token = dataclasses.replace(dynamics, gossip=token_passing(nodes, dynamics.gossip.labels, to_all=to_all))
    holds = np.arange(n) == nodes[:-1, None]
    algorithm = with_dropout(decentralized("random-walk", token, participation, noise), holds)
    leaves = nodes[1:] != nodes[:-1]
    if to_all:
        leaves[-1] = n > 1
    return dataclasses.replace(algorithm, name="random-walk", transmitted=algorithm.sent & leaves[:, None])


@MECHANISMS.register(
    paper="arXiv:2403.11795, Algorithm 1",
    erratum="infinite loss where self-messages count as seen; grows with T where they do not (as 2510.17480 has it)",
    trust="pndp",
    models=("pndp",),
    release="none",
)
@builder
def zip_dl(
    dynamics: Dynamics, participation: Participation, *, sigma: float = 1.0, self_messages: bool = False
) -> LinearAlgorithm:
    """Zip-DL: noise per message that cancels in the average: nothing is private once final models are released.

    Args: sigma: standard deviation of Y, after the learning rate, in units of noise_std; self_messages: count a -> a as
        transmitted; then a node's messages average to its model without noise, and nothing is private.
    Raises: InvalidInput: W not symmetric; UnsupportedMechanism: time-varying W, several gossip rounds, momentum or
        weight decay.
    """
    if not (dynamics.gossip.is_constant and dynamics.has_one_round):
        raise UnsupportedMechanism("zip-dl covers constant gossip with one round per step.")
    if not dynamics.is_plain:
        raise UnsupportedMechanism("zip-dl covers neither momentum nor weight decay; its noise is on the messages.")
    gossip = dynamics.gossip.at(0)
    if not gossip.is_symmetric:
        raise InvalidInput("zip-dl needs a symmetric gossip matrix, so that weights cancel; use metropolis-hastings.")
    scale = check.positive(sigma=sigma)
    n, T = dynamics.num_nodes, participation.num_steps
    self_messages = check.flag(self_messages=self_messages)
    sender, receiver, weight = _links(gossip)
    S = sender.size
    rows = np.arange(S)
    sends = matrices.sparse_matrix(sends=sp.csr_array((np.ones(S), (rows, sender)), shape=(S, n)))
    average = matrices.sparse_matrix(average=sp.csr_array((weight, (receiver, rows)), shape=(n, S)))
    received = (sender != receiver) | self_messages
    receivers = sp.csr_array((received, (rows, receiver)), shape=(S, n))

    @functools.cache
    def at_rate(eta: float) -> Round:
        return Round(
            message_from_state=sends,
            message_from_gradient=-eta * sends,
            message_from_noise=sp.eye_array(S),
            state_from_message=average,
            receivers=receivers,
        )

    return LinearAlgorithm(
        name="zip-dl",
        dynamics=dynamics,
        participation=participation,
        rounds=tuple(map(at_rate, dynamics.learning_rates(T).tolist())),
        noise=StepNoise(scale * _cancelling(sender, weight), sends != 0, T, n),
        model_from_state=sp.csr_array(sp.eye_array(n)),
        message_sender=sender,
        divisors=np.ones(n),
        transmitted=received,
        noise_on_messages=True,
    )


def _links(gossip: GossipMatrix) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    """(sender, receiver, weight) of each message, by sender, those to itself included."""
    if (alone := gossip.weights.diagonal() == 0).any():
        node = gossip.labels[np.argmax(alone)]  # exact: booleans
        raise InvalidInput(
            f"zip-dl needs a positive self weight at every node, got 0 at node {node}; its noise is divided by it."
        )
    W = sp.coo_array(sp.csr_array(gossip.weights.T))
    sender, receiver = (nodes.astype(np.intp) for nodes in W.coords)
    return sender, receiver, W.data


def _cancelling(sender: NDArray[np.intp], weight: FloatArray) -> sp.csr_array:
    """Z <- Y: I - 1 w^T / (d w) for the messages of each sender."""
    weights = (weight[sender == node] for node in np.unique(sender))
    blocks = [sp.csr_array(np.eye(w.size) - np.outer(1.0 / (w.size * w), w)) for w in weights]
    return sp.csr_array(sp.block_diag(blocks))


ENTERING = tuple(name for name in MAPS if SHAPES[name][1] in ("nodes", "injection slots"))


def with_dropout(algorithm: LinearAlgorithm, present: ArrayLike, *, recovery: str | None = None) -> LinearAlgorithm:
    """The algorithm as it runs when nodes drop out in some steps.

    Cost: one round for each distinct pattern.

    >>> import mfdl
    >>> W = mfdl.gossip.metropolis_hastings("ring:n=4")
    >>> present = mfdl.gossip.sampled_presence(num_nodes=4, rounds=6, rate=0.2, seed=0)
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.node_dropout(W, present), 0.1)
    >>> with_dropout(mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=2, period=3)), present).name
    'dp-dsgd with dropout'

    Args:
        algorithm: on gossip in which offline nodes exchange nothing (`gossip.node_dropout`, of the same pattern).
        present: which nodes are online in each step, bool (T, n), public.
        recovery: of the noise that offline nodes do not add, see `recovered`; default none. The loss may grow.
    Guarantees: where noise enters with gradients, and the messages that are seen show every injected sum of
        `algorithm`, no loss without recovery is above that of `algorithm`; nor, of noise fresh in each step that is
        dropped where up to q nodes are offline, against c of the nodes together, above that of `algorithm` under
        `trust.Coalitions(q + c)`. Where messages are hidden, or are sums of several steps (`local_steps`), it may be,
        as noise of steps missed covers nothing: account for what comes back.
    Raises: InvalidInput: slots that are no nodes, an offline node whose messages others use, a recovery that this noise
        does not support.
    """
    check.instance(LinearAlgorithm, algorithm=algorithm)
    online = presence(present, algorithm.num_nodes, algorithm.num_steps)
    if algorithm.noise.slots_per_step != algorithm.num_nodes:
        raise InvalidInput(
            f"dropout needs noise with one slot for each node, but {algorithm.name} has "
            f"{algorithm.noise.slots_per_step} for {algorithm.num_nodes} nodes; take noise that enters "
            "with gradients."
        )
    noise = algorithm.noise if recovery is None else recovered(algorithm.noise, online, recovery)
    rounds, steps = [], np.maximum.accumulate(np.array(algorithm.step_of_round))
    maps: dict[tuple[int, bytes], Map] = {}
    number = matrices.numbered()

    def without(matrix: Map, up: np.ndarray) -> Map:
        if matrix is None:
            return None
        key = number(matrix), up.tobytes()
        if key not in maps:
            maps[key] = sp.csr_array(matrix @ sp.diags_array(up.astype(float)))
        return maps[key]

    for exchange, step in zip(algorithm.rounds, steps.tolist(), strict=True):
        changed = {name: without(getattr(exchange, name), online[step]) for name in ENTERING}
        rounds.append(exchange.with_maps(**changed))
    sent = algorithm.sent & online[steps][:, algorithm.message_sender]
    name = f"{algorithm.name} with dropout" + (f", {recovery}" if recovery else "")
    return dataclasses.replace(algorithm, name=name, rounds=tuple(rounds), transmitted=sent, noise=noise)


RECOVERIES = ("drop", "substitute", "catch-up")


def recovered(noise: NoiseOperator, online: Present, recovery: str) -> NoiseOperator:
    """The noise that is added when nodes are offline; online: bool (T, n).

    "drop": no node adds a column that an offline node would add as well. "substitute": the online holders of a column
    add the part of the offline ones, in equal shares. "catch-up": a node that comes back adds the noise of its missed
    steps besides that of the step. The first two need to know which nodes are offline before noise is added.
    Raises: InvalidInput: another recovery, or user-defined noise, whose columns are unknown.
    """
    require_known("recovery", recovery, RECOVERIES)
    causal = noise.causal
    if causal is None or not causal.in_blocks:
        raise InvalidInput(
            f"recovery={recovery!r} needs a CausalNoise with explicit encoders, got "
            f"{type(noise).__name__}; leave recovery out."
        )
    if causal.is_zero:
        return noise
    F, holders = causal.mixing.toarray(), causal.holders().toarray().T.astype(bool)  # both (n, columns)
    if recovery == "catch-up":
        S = _caught_up(F, online)
    else:
        plan, plans = _dropped if recovery == "drop" else _substituted, {}
        for up in np.unique(online, axis=0):
            plans[up.tobytes()] = sp.csr_array(plan(F, holders, up))
        S = sp.block_diag([plans[up.tobytes()] for up in online], format="csr")
    sizes = {"num_steps": causal.num_steps, "num_nodes": causal.num_nodes}
    return ScheduledNoise(causal.encoder, S, causal.holders(), **sizes)


def _dropped(F: NDArray[np.float64], holders: NDArray[np.bool_], up: NDArray[np.bool_]) -> NDArray[np.float64]:
    missed = (F[~up] != 0).any(axis=0)
    return np.asarray(F * up[:, None] * ~missed)


def _substituted(F: NDArray[np.float64], holders: NDArray[np.bool_], up: NDArray[np.bool_]) -> NDArray[np.float64]:
    present = holders & up[:, None]
    lacking = F[~up].sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    return np.asarray((F + lacking) * present)


def _caught_up(F: NDArray[np.float64], online: Present) -> sp.csr_array:
    """Row (t, u) adds F_u of step t and of the steps that u missed right before."""
    T, n = online.shape
    back = np.where(online, np.arange(T)[:, None], T)
    at = np.minimum.accumulate(back[::-1], axis=0)[::-1]  # when each node is next there, T for never
    t, u = np.nonzero(at < T)
    when = sp.csr_array((np.ones(t.size), (at[t, u] * n + u, t * n + u)), shape=(T * n, T * n))
    return sp.csr_array(when @ sp.kron(sp.eye_array(T), sp.csr_array(F)))

"""Node dropout: the algorithm that runs, and is accounted, when nodes are offline in some steps, and recovery of noise.

An offline node takes no gradient, adds no noise and sends nothing. Noise that others share with it, and that it would
have cancelled, stays in their models, unless it is recovered. The pattern is public and sampled before training.

Recovery (`recovered`) changes which node adds which column of the noise when. The noise is then smaller or otherwise
correlated, so it must be accounted anew. No node learns a secret that it did not hold: only holders add a column.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices
from ..errors import InvalidInput, require_known
from ..gossip.changing import Present, presence
from ..noise import NoiseOperator, ScheduledNoise
from ..operators.linear_recursions import Map
from .linear_algorithm import LinearAlgorithm
from .round import MAPS, SHAPES

ENTERING = tuple(name for name in MAPS if SHAPES[name][1] in ("nodes", "injection slots"))


def with_dropout(algorithm: LinearAlgorithm, present: ArrayLike, *, recovery: str | None = None) -> LinearAlgorithm:
    """The algorithm as it runs when nodes drop out in some steps.

    >>> import mfdl
    >>> W = mfdl.gossip.metropolis_hastings("ring:n=4")
    >>> present = mfdl.gossip.sampled_presence(num_nodes=4, rounds=6, rate=0.2, seed=0)
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.node_dropout(W, present), 0.1)
    >>> with_dropout(mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=2, period=3)), present).name
    'dp-dsgd with dropout'

    Args:
        algorithm: on gossip in which offline nodes exchange nothing (`gossip.node_dropout`, of the same pattern), with
            one injection slot for each node.
        present: which nodes are online in each step, bool (T, n), public.
        recovery: recovery of the noise that offline nodes do not add, see `recovered`: "drop", "substitute" or
            "catch-up"; default none. It changes the noise, so the privacy loss may grow.

    Returns: an algorithm under the same participation: the privacy loss of a record is that of the steps in which its
        node is online. Noise is the same function of key and step, so the noise of missed steps is never used; with
        "catch-up" once, when the node comes back.
    Guarantees: where noise enters with gradients, and the messages that are seen show every injected sum of
        `algorithm`, no loss without recovery is above that of `algorithm`; nor, of noise fresh in each step that is
        dropped where up to q nodes are offline, against c of the nodes together, above that of `algorithm` under
        `trust.Coalitions(q + c)`. Where messages are hidden, or are sums of several steps (`local_steps`), it may be,
        as noise of steps missed covers nothing: account for what comes back.
    Raises: InvalidInput: another shape, slots that are no nodes, an offline node whose messages others use, an unknown
        recovery, or one that this noise does not support.
    Cost: one round for each distinct pattern.
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
    """The noise that is added when nodes are offline.

    Args:
        noise: a `CausalNoise` with one slot for each node; there: bool (T, n).
        recovery: "drop": no node adds a column that an offline node would add as well. "substitute"
            (substitute): the online holders of a column add the part of the offline ones, in equal shares. "catch-up":
            a node that comes back adds the noise of its missed steps besides that of the step. The first two need to
            know which nodes are offline before noise is added.

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

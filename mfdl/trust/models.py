"""The trust models that this library ships.

`neighbourhood` bounds one victim in a graph too large to account, by attackers who see all messages but those near the
victim. A larger view never gives a smaller bound, and what is left is small: a message of j that is seen shows the
gradient and noise of j, but for what hidden neighbours of j contributed, so that of the whole W only the weights to and
from hidden nodes count.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check
from ..algorithms import LinearAlgorithm
from ..algorithms.round import Round
from ..display import short_repr
from ..errors import InvalidInput, UnsupportedMechanism
from ..gossip import GossipMatrix
from ..spec import stored_as
from .base import MODELS, Mask, TrustModel, held_by, node_indices, shipped
from .knowledge import Knowledge

MAX_COALITIONS = 20_000


def _together(nodes: Sequence[int | str]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(str(node) for node in nodes)} together"


def _listed(least: int, **named: Any) -> tuple[int | str, ...]:
    """Nodes as a tuple: a list of at least `least` of them, each an index or a label as text."""
    name, nodes = check.name_and_value(named)
    if isinstance(nodes, np.ndarray):
        nodes = nodes.tolist()
    if isinstance(nodes, str) or not isinstance(nodes, Sequence) or len(nodes) < least:
        wanted = "of at least one node" if least else "of nodes"
        raise InvalidInput(f"{name} must be a list {wanted}, e.g. [0] or ['Medici'], got {nodes!r}.")
    return tuple(nodes)


def _all_seen(algorithm: LinearAlgorithm) -> Mask:
    return algorithm.sent


def _held_alone(algorithm: LinearAlgorithm, by: int | None = None) -> Mask:
    """Parts of the noise held by one node and no other, (parts,); by a given one, if any."""
    holders = sp.csr_array(algorithm.holders)
    alone: Mask = np.asarray(holders.sum(axis=1)).ravel() == 1
    return alone if by is None else alone & holders[:, [by]].toarray().ravel()


def _received(receivers: sp.csr_array | None, nodes: Sequence[int], messages: int) -> Mask:
    if receivers is None:
        raise UnsupportedMechanism(
            "this algorithm does not say who receives its messages, so PNDP is not defined for it."
        )
    return np.asarray(receivers[:, list(nodes)].sum(axis=1)).ravel().reshape(messages) > 0


def _colluders_knowledge(algorithm: LinearAlgorithm, nodes: Sequence[int], seen: Mask) -> Knowledge:
    """Joint knowledge of nodes that see these messages: their gradients, and what any of them holds."""
    return Knowledge.from_masks(
        algorithm,
        seen=seen,
        known_gradients=np.isin(np.arange(algorithm.num_nodes), nodes),
        known_noise=held_by(algorithm, nodes),
    )


@MODELS.register(seen="all", gradients_known="none", noise_known="every part but what the victim alone holds")
@shipped
@dataclasses.dataclass(frozen=True)
class LDP(TrustModel):
    """Local: every message is public and shared secrets protect nobody; a node's own noise alone does.

    No trust model protects less: it is as if all others colluded. Where private noise says nothing of other nodes
    (`LinearAlgorithm.private_noise_is_separate`) their noise need not be known for that, and one view serves everybody.
    """

    name = "ldp"
    attacker = "anyone who sees all messages and all shared secrets"

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        if algorithm.private_noise_is_separate and not self._overrides_shipped():
            yield self, tuple(range(algorithm.num_nodes))
        else:
            yield from super().members(algorithm)

    def _release(self, algorithm: LinearAlgorithm, release: str | None, knowledge: Knowledge) -> str:
        """An average of hidden models mixes private noise, so it counts as all models."""
        chosen = super()._release(algorithm, release, knowledge)
        return "all" if chosen == "average" and algorithm.private_noise_is_separate else chosen

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        hidden = _held_alone(algorithm, None if algorithm.private_noise_is_separate else victim)
        return Knowledge.from_masks(algorithm, seen=_all_seen(algorithm), known_noise=~hidden)


@shipped
@dataclasses.dataclass(frozen=True)
class PNDP(TrustModel):
    """Pairwise network DP: the attackers see what they receive, and know their own gradients and noise."""

    attacker_nodes: tuple[int | str, ...]
    name = "pndp"
    same_for_all_victims = True

    def __init__(self, attackers: Sequence[int | str]) -> None:
        object.__setattr__(self, "attacker_nodes", _listed(1, attackers=attackers))

    def stored_fields(self) -> dict[str, Any]:
        return {"attackers": self.attacker_nodes}

    @property
    def attacker(self) -> str:
        return f"{_together(self.attacker_nodes)}, from the messages received"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return node_indices(algorithm, self.attacker_nodes)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        nodes = self.attackers(algorithm)
        received = [_received(kind.receivers, nodes, algorithm.messages_per_round) for kind in algorithm.kinds]
        return _colluders_knowledge(algorithm, nodes, np.stack(received)[algorithm.kind_of_round] & algorithm.sent)


@shipped
@dataclasses.dataclass(frozen=True)
class AnyReceiver(TrustModel):
    """The worst of PNDP against every single node other than the victim, or every `size` of them together."""

    __repr__ = short_repr
    size: int = 1
    name = "pndp"

    def __post_init__(self) -> None:
        check.integer_at_least(1, size=self.size)

    @property
    def attacker(self) -> str:
        if self.size == 1:
            return "any one other node, from the messages it receives"
        return f"any {self.size} other nodes together, from the messages they receive"

    def _parameters(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        return () if self.size == 1 else (self.size,)

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        n = algorithm.num_nodes
        sets = [(v,) for v in range(n)] if self.size == 1 else _sets_of_nodes(self.size, n, "PNDP(nodes)")
        for nodes in sets:
            yield PNDP([f"#{node}" for node in nodes]), tuple(u for u in range(n) if u not in nodes)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        raise UnsupportedMechanism("a set of attackers has no single view; iterate over members(algorithm).")


@MODELS.register(
    attacker="some nodes together, from the messages they receive",
    seen="those they receive",
    gradients_known="their own",
    noise_known="what they hold",
)
def pndp(attackers: Sequence[int | str] | None = None) -> TrustModel:
    """PNDP of these attackers together, or of any one node."""
    return AnyReceiver() if attackers is None else PNDP(attackers)


@MODELS.register(attacker="an outsider on every link", seen="all", gradients_known="none", noise_known="none")
@shipped
@dataclasses.dataclass(frozen=True)
class Eavesdropper(TrustModel):
    """An outsider sees all messages and knows no secret: SecLDP of DECOR."""

    name = "eavesdropper"
    attacker = "an eavesdropper who sees all messages and no secret"
    same_for_all_victims = True

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return _colluders_knowledge(algorithm, (), _all_seen(algorithm))


@shipped
@dataclasses.dataclass(frozen=True)
class Colluding(TrustModel):
    """Some nodes see all messages and know the secrets that any of them holds: SecLDP of DECOR with colluders."""

    colluders: tuple[int | str, ...]
    name = "colluding"
    same_for_all_victims = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "colluders", _listed(1, colluders=self.colluders))

    @property
    def attacker(self) -> str:
        return f"{_together(self.colluders)}, with all messages seen"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return node_indices(algorithm, self.colluders)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return _colluders_knowledge(algorithm, self.attackers(algorithm), _all_seen(algorithm))


@MODELS.register(
    attacker="some nodes together, who see all messages",
    seen="all",
    gradients_known="those of the colluders",
    noise_known="whatever any of them holds",
)
def colluding(colluders: Sequence[int | str]) -> TrustModel:
    """These colluders; without any, an eavesdropper."""
    nodes = _listed(0, colluders=colluders)
    return Colluding(nodes) if nodes else Eavesdropper()


@shipped
@dataclasses.dataclass(frozen=True)
class Coalitions(TrustModel):
    """The worst of all sets of `size` colluding nodes that do not contain the victim; all messages are seen."""

    size: int
    name = "coalitions"

    def __post_init__(self) -> None:
        check.integer_at_least(0, size=self.size)

    @property
    def attacker(self) -> str:
        return f"any {self.size} node{'s together, who see' if self.size != 1 else ', who sees'} all messages"

    def _parameters(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        return (self.size,)

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        n = algorithm.num_nodes
        for nodes in _sets_of_nodes(self.size, n, "Colluding(nodes)"):
            yield colluding(nodes), tuple(u for u in range(n) if u not in nodes)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        raise UnsupportedMechanism("a set of coalitions has no single view; iterate over members(algorithm).")


def _sets_of_nodes(size: int, n: int, single: str) -> Iterator[tuple[int, ...]]:
    if size >= n:
        raise InvalidInput(f"size must be below num_nodes={n}, since a victim is left out, got {size}.")
    if math.comb(n, size) > MAX_COALITIONS:
        raise UnsupportedMechanism(
            f"{math.comb(n, size)} coalitions of size {size} exceed {MAX_COALITIONS}; name the coalitions with "
            f"{single}, or use FullCollusion(), which bounds them all."
        )
    return itertools.combinations(range(n), size)


@MODELS.register(
    attacker="any q nodes together, who see all messages",
    seen="all",
    gradients_known="as for colluding, for every set of q nodes without the victim",
    noise_known="the same",
)
def coalitions(coalition_size: int) -> TrustModel:
    """Coalitions of this many nodes."""
    return Coalitions(check.integer_at_least(0, coalition_size=coalition_size))


@MODELS.register(seen="all", gradients_known="all but the victim's", noise_known="all but what only the victim holds")
@shipped
@dataclasses.dataclass(frozen=True)
class FullCollusion(TrustModel):
    """All nodes but the victim collude; for node-local noise the same loss as LDP."""

    name = "full-collusion"
    attacker = "all other nodes together, who see all messages"

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        anew = self._overrides_shipped()
        for victim in range(algorithm.num_nodes):
            yield self if anew else _all_but([victim], algorithm), (victim,)

    def against_owners(self, algorithm: LinearAlgorithm, owners: Sequence[int]) -> TrustModel | None:
        """All nodes but the owners of the record; not known of a subclass with attackers of its own."""
        anew = self._overrides_shipped() or type(self).members is not FullCollusion.members
        return None if anew else _all_but(owners, algorithm)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return _all_but([victim], algorithm).knowledge(algorithm, victim)


def _all_but(victims: Sequence[int], algorithm: LinearAlgorithm) -> TrustModel:
    return colluding(tuple(u for u in range(algorithm.num_nodes) if u not in victims))


@MODELS.register(seen="the average of the messages of each round", gradients_known="none", noise_known="none")
@shipped
@dataclasses.dataclass(frozen=True)
class Central(TrustModel):
    """Only the average of the messages of each round is seen: of all of them, whatever their kind, weighed alike.

    Nodes that are offline in a round send nothing, so their messages do not enter the average.
    """

    name = "central"
    same_for_all_victims = True
    attacker = "anyone who sees the average of the messages of each round"

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        S = algorithm.messages_per_round
        return Knowledge.from_masks(algorithm, combination=sp.csr_array(np.full((1, S), 1.0 / S)))


@MODELS.register(
    attacker="anyone who sees the sum of the messages that each node receives",
    seen="the sum of the messages that each node receives",
    gradients_known="those of the attackers",
    noise_known="what they hold",
)
@shipped
@dataclasses.dataclass(frozen=True)
class SecureSum(TrustModel):
    """Secure aggregation: of the messages that a node receives, only their sum over its neighbours is seen.

    Each message counts in the sum with the weight that the receiver gives it, as its next model needs; a public factor
    of the weights of a round, as in rounds of a polynomial of W, shows nothing else. With attackers:
    they see their own sums and know their own gradients and noise. Without: somebody who sees the sums of all nodes,
    and no secret. Source: arXiv:2505.19969, whose secure summation this is.
    """

    attacker_nodes: tuple[int | str, ...] = ()
    name = "secure-sum"
    same_for_all_victims = True

    def __init__(self, attackers: Sequence[int | str] = ()) -> None:
        object.__setattr__(self, "attacker_nodes", _listed(0, attackers=attackers))

    def stored_fields(self) -> dict[str, Any]:
        return {"attackers": self.attacker_nodes}

    @property
    def attacker(self) -> str:
        if not self.attacker_nodes:
            return "anyone who sees the sum of the messages that each node receives"
        return f"{_together(self.attacker_nodes)}, from the sum of the messages that each receives"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return node_indices(algorithm, self.attacker_nodes)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        nodes, sums = self.attackers(algorithm), _sums_over_neighbours(algorithm)
        masks = _colluders_knowledge(algorithm, nodes, np.zeros(algorithm.messages_per_round, dtype=bool))
        return dataclasses.replace(masks, combination=sp.csr_array(sums[list(nodes)]) if nodes else sums)


def _sums_over_neighbours(algorithm: LinearAlgorithm) -> sp.csr_array:
    """(n, messages per round): what enters the next model of each node from the messages that it receives.

    Raises: UnsupportedMechanism: who receives what, or its share of a sum, is not the same in every round or not known,
        or messages enter more than the model of a node, whose parts would have sums of their own.
    """
    model = algorithm.model_from_state
    picks = model.nnz == model.shape[0] and (model @ model.T != sp.eye_array(model.shape[0])).nnz == 0
    sums = [_sums_of_round(kind, model) if picks else None for kind in algorithm.kinds]
    first = sums[0]
    if first is None or not all(_are_multiples(other, first) for other in sums) or algorithm.transmitted.ndim > 1:
        raise UnsupportedMechanism(
            "secure-sum is for algorithms whose nodes receive the same messages with the same weights in every round, "
            f"but for a factor, and take them into their models alone, which {algorithm.name!r} does not; give the "
            "sums that are seen with TrustModel.from_masks(combinations=...), and leave models unpublished "
            "(published=False)."
        )
    return first


def _sums_of_round(kind: Round, model: sp.csr_array) -> sp.csr_array | None:
    """The sums of one round; None where they are not known, or are not all that enters the state."""
    if kind.state_from_message is None or kind.receivers is None:
        return None
    into_models = model @ kind.state_from_message
    if (model.T @ into_models != kind.state_from_message).nnz:
        return None
    sums = sp.csr_array(into_models.multiply(kind.receivers.T.astype(np.float64)))
    sums.sort_indices()
    return sums


def _are_multiples(sums: sp.csr_array | None, first: sp.csr_array) -> bool:
    """Whether each row is a multiple, not zero, of that row of `first`, to rounding."""
    if sums is None or not (np.array_equal(sums.indptr, first.indptr) and np.array_equal(sums.indices, first.indices)):
        return False
    ratios, starts = sums.data / first.data, np.repeat(first.indptr[:-1], np.diff(first.indptr))
    return bool((ratios != 0).all() and np.allclose(ratios, ratios[starts], rtol=1e-12, atol=0.0))


@MODELS.register(
    name="released", seen="none; the final models are published", gradients_known="none", noise_known="none"
)
@shipped
@dataclasses.dataclass(frozen=True)
class ReleasedOnly(TrustModel):
    """No message is seen; only the released models are (all final ones, or their average)."""

    name = "released"
    same_for_all_victims = True
    attacker = "anyone who sees the released models"

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return Knowledge.from_masks(algorithm)


Nodes = NDArray[np.intp]


@stored_as(GossipMatrix)
class _NearVictim(GossipMatrix):
    """Weights around one victim; `Dynamics` refuses polynomials whose roots are those of the whole graph."""


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The part of a graph around one victim.

    Attributes:
        gossip: weights among the hidden nodes and those beside them, labels as in the graph; the rest of each row of a
            node that is seen stands on its diagonal.
        trust: the attackers, who see all messages but those of `hidden`.
        nodes: their indices in the graph, increasing; hidden: a mask of them, shape (nodes,).
        victim: the index of the victim among them.
    """

    gossip: GossipMatrix
    trust: TrustModel
    nodes: Nodes
    hidden: NDArray[np.bool_]
    victim: int


def neighbourhood(
    gossip: GossipMatrix, victim: int, attackers: Sequence[int], *, radius: int = 1, release: str = "none"
) -> Neighbourhood:
    """Gossip and trust model whose loss for one victim bounds that of PNDP in the whole graph.

    Any algorithm of plain gossip, rounds as powers of W, with noise that each node draws for itself, built on `.gossip`
    with the same steps, participation and encoder, and accounted under `.trust` for `.victim`, loses at least what it
    loses in the graph. Hidden are the nodes within `radius` hops of the victim whose messages no attacker receives; the
    larger, the closer the bound, and exact where it reaches all nodes.

    Args: gossip: constant, of the whole graph; victim, attackers: by index in it; release: as `TrustModel.from_masks`.

    Raises: InvalidInput: indices out of range, a victim that attacks.
    Cost: O(weights of W) once where W is not symmetric, else the weights of the nodes within radius + 1 hops.
    """
    check.instance(GossipMatrix, gossip=gossip)
    check.integer_at_least(0, radius=radius)
    attackers = check.listed("node indices, e.g. [0]", attackers=attackers)
    inside = [check.integer_at_least(0, node=node) for node in (victim, *attackers)]
    if max(inside) >= gossip.num_nodes or victim in attackers or not attackers:
        raise InvalidInput(
            f"victim and attackers must be different nodes below {gossip.num_nodes}, at least one of them attacking, "
            f"got victim {victim} and attackers {list(attackers)}."
        )
    given = gossip.weights
    received = given if gossip.is_symmetric else sp.csr_array(given.T)
    ball = np.array([victim])
    for _ in range(radius):
        ball = _with_neighbours(ball, given, received)
    attacking = np.unique(np.asarray(attackers, dtype=np.intp))
    hidden = np.setdiff1d(ball, np.union1d(attacking, _columns(given, attacking)))
    nodes = np.union1d(_with_neighbours(hidden, given, received), np.append(attacking, victim))
    is_hidden = np.isin(nodes, hidden)
    W = sp.csr_array(given[nodes][:, nodes])
    either = sp.diags_array(is_hidden.astype(float))
    visible = sp.csr_array(either @ W + W @ either - either @ W @ either)  # weights to or from a hidden node
    rest = np.where(is_hidden, 0.0, 1.0 - visible.sum(axis=1))
    labels = tuple(gossip.labels[i] for i in nodes.tolist())
    attack = np.isin(nodes, attacking)
    trust = TrustModel.from_masks(
        seen=~is_hidden,
        known_gradients=attack,
        known_noise=attack,
        attackers=np.flatnonzero(attack).tolist(),
        name=f"pndp, told all messages but those of {int(is_hidden.sum())} nodes near the victim",
        release=release,
    )
    part = _NearVictim(visible + sp.diags_array(np.clip(rest, 0.0, 1.0)), labels, f"{gossip.name}, near one victim")
    return Neighbourhood(part, trust, nodes, is_hidden, int(np.searchsorted(nodes, victim)))


def _columns(W: sp.csr_array, rows: Nodes) -> Nodes:
    return np.unique(W[rows].indices).astype(np.intp)


def _with_neighbours(nodes: Nodes, given: sp.csr_array, received: sp.csr_array) -> Nodes:
    return np.unique(np.concatenate([nodes, _columns(given, nodes), _columns(received, nodes)]))

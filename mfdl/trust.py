"""Trust models: three masks over an algorithm, and nothing else.

A trust model says which messages an attacker sees (or which linear map of them), which gradient columns it knows
and which parts of the base noise it knows. What is left is a `View` (A, B). The whole privacy model of the library:

| model | messages seen | gradients known | noise known |
| --- | --- | --- | --- |
| LDP | all | none | every part but what the victim alone holds |
| PNDP(attackers) | those they receive | their own | what they hold |
| SecLDP() eavesdropper | all | none | none |
| SecLDP(colluders) | all | those of the colluders | whatever any of them holds |
| Coalitions(q) | all | as SecLDP, for every set of q nodes without the victim | the same |
| FullCollusion | all | all but the victim's | all but what only the victim holds |
| Central | the average of the messages of each round | none | none |
| ReleasedOnly | none; the final models are published | none | none |

`AnyReceiver` is the worst of PNDP over every single attacker. Where messages are hidden, the view also contains the
released models (`release`). A researcher's own model is `TrustModel.from_masks`, or a bare `View(A, B)`. Nodes are
indices 0..n-1, or labels as strings.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from . import check
from .algorithms import LinearAlgorithm
from .errors import InvalidInput, UnsupportedMechanism, unknown_name
from .view import RELEASES, AlgorithmView, Knowledge

__all__ = [
    "LDP",
    "MODELS",
    "PNDP",
    "AnyReceiver",
    "Central",
    "Coalitions",
    "FullCollusion",
    "ReleasedOnly",
    "SecLDP",
    "TrustModel",
    "named",
    "nodes_of",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Mask = NDArray[np.bool_]
MaskRule = Callable[..., ArrayLike] | ArrayLike | None
MAX_COALITIONS = 20_000


class TrustModel(abc.ABC):
    """Who sees and knows what.

    Attributes:
        name: for tables and guarantees.
        default_release: "all" where messages are hidden (the safe side), else "not applicable" (and yet "all" for an
            algorithm some of whose messages are never sent, or a model that does not see them all).
        same_for_all_victims: `knowledge` does not look at the victim; then one view serves all of them.
    """

    name: str
    default_release: str = "not applicable"
    same_for_all_victims: bool = False

    @abc.abstractmethod
    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        """The three masks against one victim (most models give the same for every victim)."""

    @property
    def attacker(self) -> str:
        """Who observes, in words."""
        return self.name

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        """Nodes that observe; they are no victims."""
        return ()

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        """The models this one is the worst case of, each with the victims it is asked about.

        Itself and everybody but the attackers, unless it ranges over coalitions or its masks depend on the victim.
        """
        inside = set(self.attackers(algorithm))
        asked = tuple(u for u in range(algorithm.num_nodes) if u not in inside)
        if self.same_for_all_victims and not self._overrides_shipped():
            yield self, asked
            return
        for victim in asked:
            yield _Against(self, victim), (victim,)

    def _overrides_shipped(self) -> bool:
        """Whether `knowledge` was written anew for a model that this library ships, and may look at the victim."""
        above = [kind for kind in type(self).__mro__[1:] if issubclass(kind, TrustModel) and kind is not TrustModel]
        shipped = [kind for kind in above if kind.__module__ == __name__]
        return bool(shipped) and type(self).knowledge is not shipped[0].knowledge

    def sees_at_least(self, other: TrustModel, algorithm: LinearAlgorithm, victim: int | None = None) -> bool:
        """Whether this model sees and knows everything the other does; its exact loss is then never smaller.

        Against one victim, or by default against every one. Released models count as each model publishes them by
        default. Both must have one view per victim (coalitions have several: compare their members).
        """
        if victim is None:
            return all(self.sees_at_least(other, algorithm, u) for u in range(algorithm.num_nodes))
        own, theirs = self.knowledge(algorithm, victim), other.knowledge(algorithm, victim)
        released = (self._release(algorithm, None, own), other._release(algorithm, None, theirs))
        order = ("none", "average", "all")
        enough = released[0] == "not applicable" or (
            released[1] != "not applicable" and order.index(released[0]) >= order.index(released[1])
        )
        return enough and own.covers(theirs)

    def _release(self, algorithm: LinearAlgorithm, release: str | None, knowledge: Knowledge) -> str:
        """What is published on top of the messages; "not applicable" where all of them are seen and determine it."""
        if release not in (None, *RELEASES):
            raise InvalidInput(f"release must be one of {', '.join(RELEASES)}, got {release!r}.")
        everything = knowledge.combination is None and bool((knowledge.seen >= algorithm.sent).all())
        if everything and self.default_release == "not applicable" and algorithm.of_all_sent.final_models:
            return "not applicable"
        if release in (None, "not applicable"):
            release = self.default_release
        return "all" if release == "not applicable" else str(release)  # never less than what a hidden view may hold

    def fingerprint(self, algorithm: LinearAlgorithm) -> str:
        """16 hex digits of the nodes and of what this model sees and knows of the algorithm.

        Shipped models count by name and parameters, attackers as the nodes that they are; any other by its masks.
        """
        digest = hashlib.sha256(repr(algorithm.dynamics.gossip.labels).encode())
        digest.update(repr(self._identity(algorithm)).encode())
        return digest.hexdigest()[:16]

    def _identity(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        """What decides the masks; nothing that depends on wording."""
        if type(self).__module__ == __name__ and not isinstance(self, _Masks):
            return (type(self).__name__, *self._parameters(algorithm))
        masks = (
            (victims, model.knowledge(algorithm, victims[0] if victims else 0).digest())
            for model, victims in self.members(algorithm)
        )
        return (self.attackers(algorithm), *masks)

    def _parameters(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        """The parameters of a shipped model, nodes as indices."""
        return self.attackers(algorithm)

    def view(self, algorithm: LinearAlgorithm, victim: int = 0, *, release: str | None = None) -> AlgorithmView:
        """What the attacker has, as (A, B).

        Args: release: "none", "average" or "all" final models published; default `default_release`.
        """
        knowledge = self.knowledge(algorithm, victim)
        chosen = self._release(algorithm, release, knowledge)
        return AlgorithmView(algorithm, knowledge, release=chosen, attacker=self.attacker)

    def all_messages(self) -> TrustModel:
        """The same attackers with every message seen: its number holds for adaptive gradients too."""
        return _AllMessages(self)

    @staticmethod
    def from_masks(
        *,
        seen: MaskRule = None,
        known_gradients: MaskRule = None,
        known_noise: MaskRule = None,
        attackers: Sequence[int | str] = (),
        name: str = "custom",
        release: str = "all",
    ) -> TrustModel:
        """A trust model from masks, each an array or a function of the algorithm (and, optionally, the victim).

        Args:
            seen: bool (rounds, messages per round), or (messages per round,) for every round; default none.
            known_gradients: bool (T, n) or (n,) for every step; default none.
            known_noise: bool (T, parts per step) or (parts per step,); default none.
            attackers: nodes that are left out as victims; default none.
            release: which final models are published besides, unless the caller of `view` says otherwise.
        """
        return _Masks(seen, known_gradients, known_noise, name, release, tuple(attackers))


def nodes_of(algorithm: LinearAlgorithm, nodes: Sequence[int | str]) -> tuple[int, ...]:
    """Indices of nodes given as indices or as label strings ("#3" is index 3)."""
    labels = list(algorithm.dynamics.gossip.labels)
    n = algorithm.num_nodes
    found = []
    for node in nodes:
        if isinstance(node, str):
            by_text = {str(label): i for i, label in enumerate(labels)}
            if node.startswith("#") and node[1:].isdecimal():
                node = int(node[1:])
            elif node in by_text:
                node = by_text[node]
            else:
                raise InvalidInput(f"node {node!r} is not in the graph; labels start {[str(x) for x in labels[:5]]}.")
        index = check.integer_at_least(0, node=node)
        if index >= n:
            raise InvalidInput(f"node index must be below num_nodes={n}, got {index}.")
        found.append(index)
    return tuple(sorted(set(found)))


def _together(nodes: Sequence[int | str]) -> str:
    """The attackers in words."""
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(str(node) for node in nodes)} together"


def _all_seen(algorithm: LinearAlgorithm) -> Mask:
    return algorithm.sent


def _held_by(algorithm: LinearAlgorithm, nodes: Sequence[int]) -> Mask:
    """(T, parts): held by at least one of the nodes."""
    held = algorithm.holders[:, list(nodes)].sum(axis=1) > 0
    return np.broadcast_to(np.asarray(held).ravel(), (algorithm.num_steps, held.size))


def _held_alone(algorithm: LinearAlgorithm, by: int | None = None) -> Mask:
    """(parts,): held by one node and no other; by a given one, if any."""
    holders = sp.csr_array(algorithm.holders)
    alone: Mask = np.asarray(holders.sum(axis=1)).ravel() == 1
    return alone if by is None else alone & holders[:, [by]].toarray().ravel()


def _received(receivers: sp.csr_array | None, nodes: Sequence[int], messages: int) -> Mask:
    """Which message rows of a round reach one of the nodes."""
    if receivers is None:
        raise UnsupportedMechanism(
            "this algorithm does not say who receives its messages, so PNDP is not defined for it."
        )
    got: Mask = np.asarray(receivers[:, list(nodes)].sum(axis=1)).ravel().reshape(messages) > 0
    return got


def _gradients_of(algorithm: LinearAlgorithm, nodes: Sequence[int]) -> Mask:
    known = np.zeros((algorithm.num_steps, algorithm.num_nodes), dtype=bool)
    known[:, list(nodes)] = True
    return known


@dataclasses.dataclass(frozen=True)
class LDP(TrustModel):
    """Local: every message is public and shared secrets protect nobody; a node's own noise alone does.

    No trust model protects less: it is as if all others colluded. Where private noise says nothing of other nodes
    (`LinearAlgorithm.private_noise_is_separate`) their noise need not be known for that, and one view serves everybody.
    """

    name = "ldp"

    @property
    def attacker(self) -> str:
        return "anyone who sees all messages and all shared secrets"

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        if algorithm.private_noise_is_separate and not self._overrides_shipped():
            yield self, tuple(range(algorithm.num_nodes))
        else:
            yield from super().members(algorithm)

    def _release(self, algorithm: LinearAlgorithm, release: str | None, knowledge: Knowledge) -> str:
        """An average of hidden models mixes private noise, so who gets it counts as having all models."""
        chosen = super()._release(algorithm, release, knowledge)
        return "all" if chosen == "average" and algorithm.private_noise_is_separate else chosen

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        hidden = _held_alone(algorithm, None if algorithm.private_noise_is_separate else victim)
        return Knowledge.of(algorithm, seen=_all_seen(algorithm), known_noise=~hidden)


@dataclasses.dataclass(frozen=True)
class PNDP(TrustModel):
    """Pairwise network DP: the attackers see what they receive, and know their own gradients and noise."""

    attacker_nodes: tuple[int | str, ...]
    name = "pndp"
    default_release = "all"
    same_for_all_victims = True

    def __init__(self, attackers: Sequence[int | str]) -> None:
        if isinstance(attackers, str) or not isinstance(attackers, Sequence) or not len(attackers):
            raise InvalidInput(f"attackers must be a list of at least one node, got {attackers!r}.")
        object.__setattr__(self, "attacker_nodes", tuple(attackers))

    @property
    def attacker(self) -> str:
        return f"{_together(self.attacker_nodes)}, from the messages received"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return nodes_of(algorithm, self.attacker_nodes)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        nodes = self.attackers(algorithm)
        received = [_received(kind.receivers, nodes, algorithm.messages_per_round) for kind in algorithm.kinds]
        return Knowledge.of(
            algorithm,
            seen=np.stack(received)[algorithm.kind_of_round] & algorithm.sent,
            known_gradients=_gradients_of(algorithm, nodes),
            known_noise=_held_by(algorithm, nodes),
        )


@dataclasses.dataclass(frozen=True)
class AnyReceiver(TrustModel):
    """The worst of PNDP against every single node other than the victim."""

    name = "pndp"
    default_release = "all"

    @property
    def attacker(self) -> str:
        return "any one other node, from the messages it receives"

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        for node in range(algorithm.num_nodes):
            yield PNDP([node]), tuple(u for u in range(algorithm.num_nodes) if u != node)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        raise UnsupportedMechanism("a set of attackers has no single view; iterate over members(algorithm).")


@dataclasses.dataclass(frozen=True)
class SecLDP(TrustModel):
    """All messages are seen; secrets are known only if a colluder holds them. No colluders: an eavesdropper."""

    colluders: tuple[int | str, ...] = ()
    same_for_all_victims = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return "colluding" if self.colluders else "eavesdropper"

    @property
    def attacker(self) -> str:
        if not self.colluders:
            return "an eavesdropper who sees all messages and no secret"
        return f"{_together(self.colluders)}, with all messages seen"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return nodes_of(algorithm, self.colluders)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        nodes = self.attackers(algorithm)
        return Knowledge.of(
            algorithm,
            seen=_all_seen(algorithm),
            known_gradients=_gradients_of(algorithm, nodes),
            known_noise=_held_by(algorithm, nodes),
        )


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
        if self.size >= n:
            raise InvalidInput(f"size must be below num_nodes={n}, since a victim is left out, got {self.size}.")
        if math.comb(n, self.size) > MAX_COALITIONS:
            raise UnsupportedMechanism(
                f"{math.comb(n, self.size)} coalitions of size {self.size} exceed {MAX_COALITIONS}; name the "
                "coalitions with SecLDP(colluders=...), or use FullCollusion(), which bounds them all."
            )
        for nodes in itertools.combinations(range(n), self.size):
            yield SecLDP(nodes), tuple(u for u in range(n) if u not in nodes)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        raise UnsupportedMechanism("a set of coalitions has no single view; iterate over members(algorithm).")


@dataclasses.dataclass(frozen=True)
class FullCollusion(TrustModel):
    """Everybody but the victim colludes; for node-local noise the same loss as LDP."""

    name = "full-collusion"

    @property
    def attacker(self) -> str:
        return "all other nodes together, who see all messages"

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        everybody = range(algorithm.num_nodes)
        if self._overrides_shipped():
            yield from super().members(algorithm)
            return
        for victim in everybody:
            yield SecLDP(tuple(u for u in everybody if u != victim)), (victim,)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return SecLDP(tuple(u for u in range(algorithm.num_nodes) if u != victim)).knowledge(algorithm, victim)


@dataclasses.dataclass(frozen=True)
class Central(TrustModel):
    """Only the average of the messages of each round is seen: of all of them, whatever their kind, weighed alike."""

    name = "central"
    default_release = "all"
    same_for_all_victims = True

    @property
    def attacker(self) -> str:
        return "anyone who sees the average of the messages of each round"

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        S = algorithm.messages_per_round
        average = sp.csr_array(np.full((1, S), 1.0 / S))
        return Knowledge.of(algorithm, combination=average)


@dataclasses.dataclass(frozen=True)
class ReleasedOnly(TrustModel):
    """No message is seen; only the released models are (all final ones, or their average)."""

    name = "released"
    default_release = "all"
    same_for_all_victims = True

    @property
    def attacker(self) -> str:
        return "anyone who sees the released models"

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return Knowledge.of(algorithm)


@dataclasses.dataclass(frozen=True)
class _AllMessages(TrustModel):
    """Another model's attackers, with every message seen."""

    model: TrustModel

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.model.name}, all messages seen"

    @property
    def attacker(self) -> str:
        return f"{self.model.attacker}, and all other messages"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return self.model.attackers(algorithm)

    def _parameters(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        return self.model._identity(algorithm)

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        for model, victims in self.model.members(algorithm):
            yield _AllMessages(model), victims

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        own = self.model.knowledge(algorithm, victim)
        return dataclasses.replace(own, seen=own.seen | algorithm.sent, combination=None)


@dataclasses.dataclass(frozen=True, eq=False)
class _Masks(TrustModel):
    seen: MaskRule
    known_gradients: MaskRule
    known_noise: MaskRule
    name: str
    default_release: str = "all"
    attacking: tuple[int | str, ...] = ()

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return nodes_of(algorithm, self.attacking)

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        takes = any(_takes_victim(rule) for rule in (self.seen, self.known_gradients, self.known_noise))
        inside = self.attackers(algorithm)
        asked = tuple(u for u in range(algorithm.num_nodes) if u not in inside)
        for victims in [(u,) for u in asked] if takes else [asked]:
            yield (_Against(self, victims[0]) if takes else self), victims

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        def mask(rule: MaskRule) -> Any:
            if not callable(rule):
                return rule
            return rule(algorithm, victim) if _takes_victim(rule) else rule(algorithm)

        return Knowledge.of(
            algorithm,
            seen=mask(self.seen),
            known_gradients=mask(self.known_gradients),
            known_noise=mask(self.known_noise),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Against(TrustModel):
    """A model with victim-dependent masks, held against one victim."""

    model: TrustModel
    victim: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.model.name)
        object.__setattr__(self, "default_release", self.model.default_release)

    @property
    def attacker(self) -> str:
        return self.model.attacker

    def _parameters(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        return (self.victim, *self.model._identity(algorithm))

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return self.model.knowledge(algorithm, self.victim)


def _takes_victim(rule: MaskRule) -> bool:
    """Whether a mask rule is a function of (algorithm, victim); a second parameter with a default is no victim."""
    if not callable(rule):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(rule).parameters.values() if p.kind in positional]
    return len(parameters) > 1 and (parameters[1].default is inspect.Parameter.empty or parameters[1].name == "victim")


def named(
    name: str,
    *,
    attackers: Sequence[int | str] | None = None,
    colluders: Sequence[int | str] | None = None,
    coalition_size: int | None = None,
) -> TrustModel:
    """The trust model of a name in MODELS, with the nodes or the size that it needs.

    Args: attackers: of pndp; None: any one node. colluders: of colluding. coalition_size: of coalitions.
    Raises: InvalidInput: unknown name, a missing argument, or one that belongs to another model.
    """
    if not isinstance(name, str) or name not in MODELS:
        raise unknown_name("trust model", name, MODELS)
    given = {"attackers": attackers, "colluders": colluders, "coalition_size": coalition_size}
    owner = {"attackers": "pndp", "colluders": "colluding", "coalition_size": "coalitions"}
    for argument, value in given.items():
        if value is not None and owner[argument] != name:
            raise InvalidInput(f"{argument} belongs to trust model {owner[argument]}, not to {name}; leave it out.")
        if value is None and owner[argument] == name and name != "pndp":
            raise InvalidInput(f"trust model {name} needs {argument}.")
    if name == "pndp":
        return AnyReceiver() if attackers is None else PNDP(attackers)
    if name == "colluding":
        if isinstance(colluders, str) or not isinstance(colluders, Sequence):
            raise InvalidInput(f"colluders must be a list of nodes, got {colluders!r}.")
        return SecLDP(tuple(colluders))
    if name == "coalitions":
        return Coalitions(check.integer_at_least(0, coalition_size=coalition_size))
    return MODELS[name]()


MODELS: dict[str, type[TrustModel]] = {
    "ldp": LDP,
    "pndp": PNDP,
    "eavesdropper": SecLDP,
    "colluding": SecLDP,
    "coalitions": Coalitions,
    "full-collusion": FullCollusion,
    "central": Central,
    "released": ReleasedOnly,
}

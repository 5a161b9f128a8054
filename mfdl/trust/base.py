"""What a trust model is: who sees and knows what of an algorithm, against which victims; and trust models by name."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .. import check
from ..algorithms import LinearAlgorithm
from ..display import short_repr
from ..entries import exact_entries
from ..errors import InvalidInput
from ..spec import Entry, Registry, storable
from .knowledge import Knowledge, Mask
from .view import RELEASES, AlgorithmView

MaskRule = Callable[..., ArrayLike] | ArrayLike | None
Model = TypeVar("Model", bound=type)
_SHIPPED: set[type] = set()


def shipped(kind: Model) -> Model:
    """Marks a trust model whose name and parameters decide its masks, and may be stored; a subclass is not marked."""
    _SHIPPED.add(kind)
    return storable(kind)


class TrustModel(abc.ABC):
    """An attacker: who sees and knows what.

    Attributes:
        attacker: who observes, in words; default the name.
        default_release: final models published, unless the caller says otherwise, where the messages seen do not
            determine them: where some are hidden, or never sent. "all" is the safe side.
        same_for_all_victims: `knowledge` does not depend on the victim; then one view serves all of them.
    """

    name: str
    default_release: str = "all"
    same_for_all_victims: bool = False

    @abc.abstractmethod
    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        """The three masks against one victim (most models give the same for every victim)."""

    @property
    def attacker(self) -> str:
        return self.name

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        """Nodes that observe; they are no victims."""
        return ()

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        """The models this one is the worst case of, each with its victims: by default itself, and all but attackers."""
        inside = set(self.attackers(algorithm))
        honest = tuple(u for u in range(algorithm.num_nodes) if u not in inside)
        together = self.same_for_all_victims and not self._overrides_shipped()
        for victims in [honest] if together else [(u,) for u in honest]:
            yield self, victims

    def against_owners(self, algorithm: LinearAlgorithm, owners: Sequence[int]) -> TrustModel | None:
        """Attackers of a record of these nodes, where each of `members` has one of them; None: not known."""
        return None

    def _overrides_shipped(self) -> bool:
        """Whether `knowledge` was written anew for a model that this library ships, and may look at the victim."""
        if type(self) in _SHIPPED:
            return False
        above = [kind for kind in type(self).__mro__ if kind in _SHIPPED]
        return bool(above) and type(self).knowledge is not above[0].knowledge  # type: ignore[attr-defined]

    def sees_at_least(self, other: TrustModel, algorithm: LinearAlgorithm, victim: int | None = None) -> bool:
        """Whether this model sees and knows everything the other does; its exact loss is then never smaller.

        Released models count as each model publishes them by default. Both must have one view per victim.
        """
        check.instance(TrustModel, other=other)
        check.instance(LinearAlgorithm, algorithm=algorithm)
        if victim is None:
            return all(self.sees_at_least(other, algorithm, u) for u in range(algorithm.num_nodes))
        mine, theirs = self.knowledge(algorithm, victim), other.knowledge(algorithm, victim)
        released = (self._release(algorithm, None, mine), other._release(algorithm, None, theirs))
        return RELEASES.index(released[0]) >= RELEASES.index(released[1]) and mine.covers(theirs)

    def _release(self, algorithm: LinearAlgorithm, release: str | None, knowledge: Knowledge) -> str:
        """Models published on top of the messages; "not applicable" where all of these are seen and determine them."""
        if release is not None:
            _require_release(release)
        if knowledge.sees_all(algorithm) and algorithm.released_by_messages:
            return "not applicable"
        if release in (None, "not applicable"):
            release = self.default_release
        if release == "none" and not algorithm.released.is_last:
            raise InvalidInput(
                f"release must be average or all where messages are hidden and the algorithm releases "
                f"{algorithm.released.describe()}, which is then seen, got 'none'; or let it release the last models "
                "(algorithm.releasing('last')), which may stay hidden."
            )
        return "all" if release == "not applicable" else str(release)  # never less than what a hidden view may hold

    def fingerprint(self, algorithm: LinearAlgorithm) -> str:
        """16 hex digits of the nodes and of what this model sees and knows: masks, or names of shipped models."""
        digest = hashlib.sha256(repr(algorithm.dynamics.gossip.labels).encode())
        digest.update(repr(self._identity(algorithm)).encode())
        return digest.hexdigest()[:16]

    def _identity(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        """The parts that decide the masks; nothing that depends on wording."""
        if type(self) in _SHIPPED:
            return (type(self).__name__, *self._parameters(algorithm))
        masks = (
            (victims, model.knowledge(algorithm, victims[0] if victims else 0).digest())
            for model, victims in self.members(algorithm)
        )
        return (self.attackers(algorithm), *masks)

    def _parameters(self, algorithm: LinearAlgorithm) -> tuple[Any, ...]:
        return self.attackers(algorithm)

    def view(self, algorithm: LinearAlgorithm, victim: int = 0, *, release: str | None = None) -> AlgorithmView:
        """The view (A, B). Args: release: "none", "average" or "all" final models; default `default_release`."""
        check.instance(LinearAlgorithm, algorithm=algorithm)
        if check.integer_at_least(0, victim=victim) >= algorithm.num_nodes:
            raise InvalidInput(f"victim must be a node index below {algorithm.num_nodes}, got {victim}.")
        knowledge = self.knowledge(algorithm, victim)
        chosen = self._release(algorithm, release, knowledge)
        return AlgorithmView(algorithm, knowledge, release=chosen, attacker=self.attacker)

    def hides_messages(self, algorithm: LinearAlgorithm) -> bool:
        """Whether there is a message that is sent and, against some victim, not seen."""
        members = ((model, victims[0]) for model, victims in self.members(algorithm) if victims)
        return not all(model.knowledge(algorithm, victim).sees_all(algorithm) for model, victim in members)

    def all_messages(self) -> TrustModel:
        """The same attackers with every message seen: its number holds for adaptive gradients too."""
        return _AllMessages(self)

    @staticmethod
    def from_masks(
        *,
        seen: MaskRule = None,
        known_gradients: MaskRule = None,
        known_noise: MaskRule = None,
        combinations: MaskRule = None,
        attackers: Sequence[int | str] = (),
        name: str = "custom",
        release: str = "all",
    ) -> TrustModel:
        """A trust model from masks, each an array or a function of the algorithm (and, optionally, the victim).

        Args:
            seen: bool (rounds, messages per round), or (messages per round,) for every round; default none.
            combinations: numbers (c, messages per round), array or sparse: linear combinations of the messages of a
                round, seen in every round. A message that is not sent in a round is left out of them there, unless it
                never is. Besides them, `seen` must be of every round alike.
            known_gradients: bool (T, n) or (n,) for every step; default none.
            known_noise: bool (T, parts per step) or (parts per step,); default the noise whose secret an attacker
                holds, none without attackers.
            attackers: nodes that attack together, and are left out as victims; default none, an outsider.
            release: which final models are published besides, "none", "average" or "all", unless the caller of `view`
                says otherwise.

        Raises: InvalidInput: another release; an array of anything but bool, such as indices.
        """
        _require_release(release)
        attacking = tuple(check.listed("node indices or labels", attackers=attackers))
        for rule in ({"seen": seen}, {"known_gradients": known_gradients}, {"known_noise": known_noise}):
            _require_flags(**rule)
        return _Masks(seen, known_gradients, known_noise, combinations, name, release, attacking)


def _require_flags(**named: MaskRule) -> None:
    ((name, rule),) = named.items()
    if rule is None or callable(rule):
        return
    mask = check.as_array(**named)
    if mask.dtype != bool:
        raise InvalidInput(
            f"{name} must be a boolean mask, got {check.brief(rule)} of {mask.dtype}; from indices it is "
            "np.isin(np.arange(length), indices), from 0 and 1 mask.astype(bool)."
        )


def _require_release(release: str) -> None:
    if not isinstance(release, str) or release not in RELEASES:
        raise InvalidInput(f"release must be one of {', '.join(RELEASES)}, got {check.brief(release)}.")


def node_indices(algorithm: LinearAlgorithm, nodes: Sequence[int | str]) -> tuple[int, ...]:
    """Indices of nodes given as indices or label strings ("#3" is index 3). Raises: InvalidInput: none, or two."""
    check.instance(LinearAlgorithm, algorithm=algorithm)
    labels, n = list(algorithm.dynamics.gossip.labels), algorithm.num_nodes
    indices = []
    for node in check.listed("node indices or labels, e.g. [0]", nodes=nodes):
        if isinstance(node, str) and node.startswith("#") and node[1:].isdecimal():
            node = int(node[1:])
        elif isinstance(node, str):
            by_text = {str(label): i for i, label in enumerate(labels)}
            if node not in by_text:
                raise InvalidInput(f"node {node!r} is not in the graph; labels start {[str(x) for x in labels[:5]]}.")
            node = by_text[node]
        elif node in labels and labels.index(node) != node:
            raise InvalidInput(
                f"node {node} may be the node with this label or the one at this index; write '{node}' for the label, "
                f"or '#{node}' for the index."
            )
        index = check.integer_at_least(0, node=node)
        if index >= n:
            raise InvalidInput(f"node index must be below num_nodes={n}, got {index}.")
        indices.append(index)
    return tuple(sorted(set(indices)))


def held_by(algorithm: LinearAlgorithm, nodes: Sequence[int]) -> Mask:
    """Parts of the noise held by at least one of the nodes, (parts,)."""
    return np.asarray(algorithm.holders[:, list(nodes)].sum(axis=1) > 0).ravel()


@dataclasses.dataclass(frozen=True, eq=False)
class _Masks(TrustModel):
    __repr__ = short_repr
    seen: MaskRule
    known_gradients: MaskRule
    known_noise: MaskRule
    combinations: MaskRule
    name: str
    default_release: str = "all"
    attacking: tuple[int | str, ...] = ()

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return node_indices(algorithm, self.attacking)

    @property
    def same_for_all_victims(self) -> bool:  # type: ignore[override]
        return not any(map(_takes_victim, (self.seen, self.known_gradients, self.known_noise, self.combinations)))

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        def mask(rule: MaskRule) -> Any:
            if not callable(rule):
                return rule
            return rule(algorithm, victim) if _takes_victim(rule) else rule(algorithm)

        names = ("seen", "known_gradients", "known_noise")
        given = {name: mask(getattr(self, name)) for name in names}
        if given["known_noise"] is None and self.attacking:
            given["known_noise"] = held_by(algorithm, self.attackers(algorithm))
        masks = Knowledge.from_masks(algorithm, **given)
        return masks if self.combinations is None else _combining(masks, mask(self.combinations))


def _combining(masks: Knowledge, given: Any) -> Knowledge:
    """The masks with combinations of messages seen; messages seen by themselves become rows of one."""
    rows, messages = sp.csr_array(exact_entries("combinations", given), dtype=np.float64), masks.seen.shape[1]
    if rows.shape[1] != messages:
        raise InvalidInput(f"combinations must have a column for each of {messages} messages, got shape {rows.shape}.")
    if (masks.seen != masks.seen[:1]).any():
        raise InvalidInput(
            "with combinations, seen must be the same mask in every round, got a mask that changes; "
            "leave one of them out, or give the view as matrices, mfdl.View(A, B)."
        )
    single = sp.csr_array(sp.eye_array(messages, format="csr")[np.flatnonzero(masks.seen[0])])
    combination = sp.csr_array(sp.vstack([rows, single]))
    combination.eliminate_zeros()
    return dataclasses.replace(masks, seen=np.zeros_like(masks.seen), combination=combination)


@dataclasses.dataclass(frozen=True)
class _AllMessages(TrustModel):
    model: TrustModel

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.model.name}, all messages seen"

    @property
    def attacker(self) -> str:
        return f"{self.model.attacker}, and all other messages"

    def attackers(self, algorithm: LinearAlgorithm) -> tuple[int, ...]:
        return self.model.attackers(algorithm)

    def members(self, algorithm: LinearAlgorithm) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        return ((_AllMessages(model), victims) for model, victims in self.model.members(algorithm))

    def against_owners(self, algorithm: LinearAlgorithm, owners: Sequence[int]) -> TrustModel | None:
        model = self.model.against_owners(algorithm, owners)
        return None if model is None else _AllMessages(model)

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        return self.model.knowledge(algorithm, victim).with_all_sent(algorithm)


def _takes_victim(rule: MaskRule) -> bool:
    """Whether a mask rule is a function of (algorithm, victim); a second parameter with a default is no victim."""
    if not callable(rule):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(rule).parameters.values() if p.kind in positional]
    return len(parameters) > 1 and (parameters[1].default is inspect.Parameter.empty or parameters[1].name == "victim")


@dataclasses.dataclass(frozen=True)
class TrustEntry(Entry):
    """A trust model in words: who observes, which messages are seen, which gradients and noise are known."""

    attacker: str = ""
    seen: str = ""
    gradients_known: str = ""
    noise_known: str = ""

    @property
    def observer(self) -> str:
        return self.attacker or str(getattr(self.build, "attacker", self.name))

    @property
    def hides_messages(self) -> bool:
        return self.seen != "all"

    @property
    def release(self) -> str:
        if self.hides_messages:
            return "all final models are part of the view, unless --release says none or average"
        return "released models add nothing, unless some messages are never sent: then they are part of the view"


MODELS: Registry[TrustEntry] = Registry("trust model", TrustEntry)


def named(name: str, **parameters: Any) -> TrustModel:
    """The trust model of a name in MODELS, with the nodes or the size that it needs.

    >>> named("colluding", colluders=[0, 2])
    Colluding(colluders=(0, 2))

    Args: parameters: of that model, None for those not given. attackers: of pndp; None: any one node. colluders: of
        colluding. coalition_size: of coalitions.
    Raises: InvalidInput: unknown name, a missing argument, or one that belongs to another model.
    """
    entry = MODELS.entry(name)
    given = {argument: value for argument, value in parameters.items() if value is not None}
    for argument in given:
        owners = models_by_parameter().get(argument, (name,))
        if name not in owners:
            raise InvalidInput(f"{argument} belongs to trust model {' or '.join(owners)}, not to {name}; leave it out.")
    for argument, parameter in entry.signature.items():
        if parameter.required and argument not in given:
            raise InvalidInput(f"trust model {name} needs {argument}.")
    model: TrustModel = MODELS.make(name, given=given)
    return model


def models_by_parameter() -> dict[str, tuple[str, ...]]:
    """Every parameter of a trust model, with the names of the models that have it.

    >>> models_by_parameter()["coalition_size"]
    ('coalitions',)
    """
    parameters = dict.fromkeys(name for entry in MODELS.values() for name in entry.signature)
    return {key: tuple(name for name, entry in MODELS.items() if key in entry.signature) for key in parameters}


def table() -> str:
    rows = [("model", "messages seen", "gradients known", "noise known"), ("---",) * 4]
    for name, entry in MODELS.items():
        form = f"{name}({', '.join(entry.signature)})" if entry.signature else name
        rows.append((form, entry.seen, entry.gradients_known, entry.noise_known))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

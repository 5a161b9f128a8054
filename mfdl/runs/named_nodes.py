"""Nodes by label and trust models by name, from the texts of options."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse.csgraph

from .. import graphs, trust
from ..errors import InvalidInput, require_known
from ..graphs import SparseGraph
from ..privacy.owners import Owners, Victim, victim_nodes
from ..spec import Parameter
from ..trust import TrustModel
from .option_files import split

if TYPE_CHECKING:
    import networkx as nx


DEFAULT_SIZE = 1  # of coalitions


@dataclasses.dataclass(frozen=True)
class Named:
    """The nodes that options name; anybody: without their options, pndp is any node, and coalitions have one node."""

    graph: nx.Graph | SparseGraph
    attackers: str | None = None
    colluders: str | None = None
    coalition_size: int | None = None
    all_attackers: bool = False
    anybody: bool = False

    @functools.cached_property
    def labels(self) -> list[str]:
        return [str(label) for label in graphs.labels(self.graph)]

    def indices(self, option: str, text: str) -> tuple[int, ...]:
        labels = split(text)
        if not labels:
            raise InvalidInput(f"--{option} must name at least one node, got {text!r}.")
        return tuple(sorted({graphs.label_index(self.graph, label) for label in labels}))

    def owners(self, text: str | None, *, same_steps: bool) -> Owners:
        """Nodes that may hold one record, of Q or A+B,C+D; None: one node."""
        if text is None:
            return Owners()
        groups = split(text)
        if len(groups) == 1 and groups[0].isdecimal():
            return Owners(int(groups[0]), same_steps=same_steps)
        members = [[label.strip() for label in group.split("+")] for group in groups]
        if not groups or any(len(group) < 2 or not all(group) for group in members):
            raise InvalidInput(f"--owners must be a number Q or groups of labels A+B,C+D, got {text!r}.")
        indices = [tuple(graphs.label_index(self.graph, label) for label in group) for group in members]
        return Owners(indices, same_steps=same_steps)

    def budgets(self, path: Path) -> dict[Any, float]:
        """mu by the label of each node, from a JSON file of labels as texts."""
        try:
            given = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not JSON"
            raise InvalidInput(f'cannot read --budgets {path}: {reason}; give {{"LABEL": mu, ...}}.') from None
        if not isinstance(given, dict):
            raise InvalidInput(f'--budgets {path} must hold one object {{"LABEL": mu, ...}}.')
        ordered = graphs.labels(self.graph)
        return {ordered[graphs.label_index(self.graph, label)]: mu for label, mu in given.items()}

    def require_used(self, trusts: Sequence[str]) -> None:
        """Refuses options that no trust model of this call reads, and a missing one."""
        for name in trusts:
            require_known("trust model", name, trust.base.MODELS)
        for field, owners in _models_by_field().items():
            if self._gives(field) and not set(owners) & set(trusts):
                owner = " or ".join(owners)
                raise InvalidInput(f"{_flag(field)} belongs to trust model {owner}, not to {trusts[0]}; leave it out.")
        if self.all_attackers and self.attackers is not None:
            raise InvalidInput("give --attackers or --all-attackers, not both.")
        if self.all_attackers and trusts[0] != "pndp":
            raise InvalidInput(f"--all-attackers needs --trust pndp, got {trusts[0]}; name them with --attackers.")
        for name in trusts:
            for parameter in trust.base.MODELS[name].signature.values():
                if not self._may_lack(parameter) and not any(map(self._gives, _parameter_fields(parameter))):
                    options = " or ".join(parameter_options(parameter))
                    raise InvalidInput(
                        f"trust model {name} needs {options}; labels start {', '.join(self.labels[:5])}."
                    )

    def model(self, name: str, attacker: int | None = None) -> TrustModel:
        """The named trust model; attacker: the single attacker of pndp instead of the given ones."""
        given: dict[str, Any] = {}
        for parameter in trust.base.MODELS.entry(name).signature.values():
            value = getattr(self, parameter.name, None)
            if value is None and attacker is None and self._may_lack(parameter):
                given[parameter.name] = DEFAULT_SIZE if parameter.required else None
            elif parameter.type is not None:
                given[parameter.name] = value
            else:
                given[parameter.name] = self._nodes(parameter.name, value or "", attacker)
        return trust.named(name, **given)

    def _gives(self, field: str) -> bool:
        return getattr(self, field, None) not in (None, False)

    def _may_lack(self, parameter: Parameter) -> bool:
        """Whether a parameter of a trust model may be left out: None, for any node, only where that is allowed."""
        if parameter.required:
            return self.anybody and parameter.type is int
        return self.anybody or parameter.default is not None

    def _nodes(self, option: str, text: str, attacker: int | None) -> list[str | int]:
        """The nodes of A,B or one attacker: labels, which guarantees print; indices where labels read like them."""
        indices = self.indices(option, text) if attacker is None else (attacker,)
        return [u if self.labels[u].startswith("#") else self.labels[u] for u in indices]

    def distances(self, attackers: Sequence[int]) -> dict[int, int]:
        """Hops from the nearest attacker, by node index; empty without attackers."""
        if not attackers:
            return {}
        links = graphs.adjacency(self.graph)
        hops = scipy.sparse.csgraph.dijkstra(links, unweighted=True, indices=list(attackers), min_only=True)
        return {int(u): int(hops[u]) for u in np.flatnonzero(np.isfinite(hops))}

    @staticmethod
    def distance(victim: Victim, hops: Mapping[int, int]) -> int | None:
        """Distance of a node, or of the nearest owner of a record; None if none is connected to an attacker."""
        return min((hops[u] for u in victim_nodes(victim) if u in hops), default=None)


def parameter_options(parameter: Parameter) -> tuple[str, ...]:
    """Options of the command line for a parameter of a trust model, as they are typed."""
    value = "Q" if parameter.type is int else "A,B"
    first, *others = _parameter_fields(parameter)
    return (f"{_flag(first)} {value}", *map(_flag, others))


def _models_by_field() -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for name, entry in trust.base.MODELS.items():
        for parameter in entry.signature.values():
            for field in _parameter_fields(parameter):
                owners.setdefault(field, []).append(name)
    return owners


def _parameter_fields(parameter: Parameter) -> tuple[str, ...]:
    """Fields of `Named` for a parameter of a trust model; with None for any node, `all_` of it too."""
    every = f"all_{parameter.name}"
    takes_all = not parameter.required and parameter.default is None and every in Named.__dataclass_fields__
    return (parameter.name, every) if takes_all else (parameter.name,)


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"

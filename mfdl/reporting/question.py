"""What several commands ask about: nodes by label, trust models by name, participation.

In: the texts of the options. Out: objects of the library, or one refusal that says what to change.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import scipy.sparse.csgraph

from .. import graphs, trust
from ..errors import InvalidInput
from ..graphs import SparseGraph
from ..participation import (
    BallsInBins,
    Cyclic,
    EveryStep,
    MinSeparation,
    OncePerEpoch,
    Participation,
    Single,
)
from ..trust import TrustModel
from .options import require_one_of, require_steps, split

if TYPE_CHECKING:
    from .options import TakesPart

PARTICIPATIONS = ("cyclic", "once-per-epoch", "every-step", "single", "min-separation", BallsInBins.scheme)


def participation_of(config: TakesPart, typed: Collection[str]) -> Participation:
    """See `TakesPart.scheme`."""
    name, epochs, period = config.participation, config.epochs, config.period
    require_one_of("participation", name, PARTICIPATIONS)
    T = epochs * period if config.steps is None else config.steps
    require_steps(max(T, epochs * period))
    scheme: Participation
    if name == "min-separation":
        scheme = MinSeparation(steps=T, max_participations=epochs, separation=period)
    elif name in ("every-step", "single"):
        defaults = {field.name: field.default for field in dataclasses.fields(config)}
        given = (epochs, period) != (defaults["epochs"], defaults["period"]) or {"epochs", "period"} & set(typed)
        if config.steps is not None and given and epochs * period != T:
            raise InvalidInput(
                f"--steps must be epochs * period, got --steps {T} with {epochs} epochs of {period} steps; "
                f"{name} participation needs --steps alone."
            )
        scheme = EveryStep(T) if name == "every-step" else Single(T)
    else:
        scheme = Cyclic(epochs=epochs, period=period, steps=config.steps)  # refuses steps that do not fit
        if name == "once-per-epoch":
            scheme = OncePerEpoch(epochs=epochs, period=period)
        if name == BallsInBins.scheme:
            scheme = BallsInBins(epochs=epochs, bins=period)
    if config.unit == "user" and not scheme.in_every_step:
        raise InvalidInput(
            f"--unit user needs --participation every-step, as a user's data take part in every step, got "
            f"{scheme.describe()}."
        )
    return scheme


@dataclasses.dataclass(frozen=True)
class Named:
    """The nodes that the options name, and the trust models made of them.

    Attributes: anybody: without --attackers, pndp is any single node, and coalitions without a size are of one.
    """

    graph: nx.Graph | SparseGraph
    attackers: str | None = None
    colluders: str | None = None
    coalition_size: int | None = None
    all_attackers: bool = False
    anybody: bool = False

    @functools.cached_property
    def labels(self) -> list[str]:
        """Of all nodes, by index."""
        return [str(label) for label in graphs.labels(self.graph)]

    def indices(self, option: str, text: str) -> tuple[int, ...]:
        """The nodes of A,B."""
        labels = split(text)
        if not labels:
            raise InvalidInput(f"--{option} must name at least one node, got {text!r}.")
        return tuple(sorted({graphs.index_of(self.graph, label) for label in labels}))

    def budgets(self, path: Path) -> dict[Any, float]:
        """mu by the label of each node, from a JSON file of labels as texts.

        Raises: InvalidInput: no such file, or one that holds something else.
        """
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not JSON"
            raise InvalidInput(f'cannot read --budgets {path}: {reason}; give {{"LABEL": mu, ...}}.') from None
        if not isinstance(given, dict):
            raise InvalidInput(f'--budgets {path} must hold one object {{"LABEL": mu, ...}}.')
        ordered = graphs.labels(self.graph)
        return {ordered[graphs.index_of(self.graph, label)]: mu for label, mu in given.items()}

    def require_used(self, trusts: Sequence[str]) -> None:
        """Refuses options that no trust model of this call reads, and a missing one."""
        for name in trusts:
            require_one_of("trust model", name, trust.MODELS)
        flags = {
            "--attackers": (self.attackers is not None, "pndp"),
            "--all-attackers": (self.all_attackers, "pndp"),
            "--colluders": (self.colluders is not None, "colluding"),
            "--coalition-size": (self.coalition_size is not None, "coalitions"),
        }
        for flag, (given, owner) in flags.items():
            if given and owner not in trusts:
                raise InvalidInput(f"{flag} belongs to trust model {owner}, not to {trusts[0]}; leave it out.")
        if self.all_attackers and self.attackers is not None:
            raise InvalidInput("give --attackers or --all-attackers, not both.")
        if self.all_attackers and trusts[0] != "pndp":
            raise InvalidInput(f"--all-attackers needs --trust pndp, got {trusts[0]}; name them with --attackers.")
        missing = {"colluding": "--colluders A,B"} if self.colluders is None else {}
        if not self.anybody and self.attackers is None and not self.all_attackers:
            missing["pndp"] = "--attackers A,B or --all-attackers"
        if not self.anybody and self.coalition_size is None:
            missing["coalitions"] = "--coalition-size Q"
        for name in trusts:
            if name in missing:
                raise InvalidInput(
                    f"trust model {name} needs {missing[name]}; labels start {', '.join(self.labels[:5])}."
                )

    def model(self, name: str, attacker: int | None = None) -> TrustModel:
        """The named trust model; attacker: the single attacker of pndp instead of the given ones."""
        who = {"pndp": "attackers", "colluding": "colluders"}.get(name)
        if who is None:
            size = 1 if self.anybody and self.coalition_size is None else self.coalition_size
            return trust.named(name, coalition_size=size if name == "coalitions" else None)
        if attacker is None and self.anybody and getattr(self, who) is None:
            return trust.named(name)
        indices = self.indices(who, getattr(self, who) or "") if attacker is None else (attacker,)
        # labels, which guarantees print; the index where the label reads like one
        nodes: Any = [u if self.labels[u].startswith("#") else self.labels[u] for u in indices]
        return trust.named(name, **{who: nodes})

    def distances(self, attackers: Sequence[int]) -> dict[int, int]:
        """Hops from the nearest attacker, by node index; empty without attackers."""
        if not attackers:
            return {}
        links = graphs.adjacency(self.graph)
        hops = scipy.sparse.csgraph.dijkstra(links, unweighted=True, indices=list(attackers), min_only=True)
        return {int(u): int(hops[u]) for u in np.flatnonzero(np.isfinite(hops))}

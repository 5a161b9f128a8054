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
| SecureSum | the sum of the messages that each node receives | those of the attackers | what they hold |
| ReleasedOnly | none; the final models are published | none | none |

`AnyReceiver` is the worst of PNDP over every single attacker. Where messages are hidden, the view also contains the
released models (`release`). `neighbourhood` bounds PNDP of one victim in a graph of any size. A researcher's own model
is `TrustModel.from_masks`, or a bare `View(A, B)`. Nodes are indices 0..n-1, or labels as strings.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import check
from ..errors import InvalidInput, unknown_name
from .base import TrustModel, nodes_of
from .models import LDP, PNDP, AnyReceiver, Central, Coalitions, FullCollusion, ReleasedOnly, SecLDP, SecureSum
from .near import Neighbourhood, neighbourhood

__all__ = [
    "LDP",
    "MODELS",
    "PNDP",
    "AnyReceiver",
    "Central",
    "Coalitions",
    "FullCollusion",
    "Neighbourhood",
    "ReleasedOnly",
    "SecLDP",
    "SecureSum",
    "TrustModel",
    "named",
    "neighbourhood",
    "nodes_of",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def named(
    name: str,
    *,
    attackers: Sequence[int | str] | None = None,
    colluders: Sequence[int | str] | None = None,
    coalition_size: int | None = None,
) -> TrustModel:
    """The trust model of a name in MODELS, with the nodes or the size that it needs.

    Args:
        attackers: of pndp, None: any one node; of secure-sum, None: somebody who sees all sums.
        colluders: of colluding. coalition_size: of coalitions.

    Raises: InvalidInput: unknown name, a missing argument, or one that belongs to another model.
    """
    if not isinstance(name, str) or name not in MODELS:
        raise unknown_name("trust model", name, MODELS)
    given = {"attackers": attackers, "colluders": colluders, "coalition_size": coalition_size}
    owner = {"attackers": "pndp", "colluders": "colluding", "coalition_size": "coalitions"}
    for argument, value in given.items():
        if value is not None and owner[argument] != name and (argument, name) != ("attackers", "secure-sum"):
            raise InvalidInput(f"{argument} belongs to trust model {owner[argument]}, not to {name}; leave it out.")
        if value is None and owner[argument] == name and name != "pndp":
            raise InvalidInput(f"trust model {name} needs {argument}.")
    if name == "secure-sum":
        return SecureSum(() if attackers is None else attackers)
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
    "secure-sum": SecureSum,
    "released": ReleasedOnly,
}

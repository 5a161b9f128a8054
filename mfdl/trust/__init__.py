"""Trust models: three masks over an algorithm, and nothing else.

A trust model says which messages an attacker sees (or which linear map of them), which gradient columns it knows
and which parts of the base noise it knows. What is left is a `View` (A, B). The table below is the whole privacy model
of the library, by the names that `named` and the command line take: pndp is `PNDP(attackers)` or `AnyReceiver`, the
worst of PNDP over every single attacker; eavesdropper and colluding are SecLDP of DECOR, against an outsider and
against nodes. Where messages are hidden, the view also contains the released models (`release`). `neighbourhood`
bounds PNDP of one victim in a graph of any size. A model of your own is `TrustModel.from_masks`, or a bare
`View(A, B)`. Nodes are indices 0..n-1, or labels as strings.
"""

from __future__ import annotations

from .base import TrustModel, named, table
from .models import (
    LDP,
    PNDP,
    AnyReceiver,
    Central,
    Coalitions,
    Colluding,
    Eavesdropper,
    FullCollusion,
    ReleasedOnly,
    SecureSum,
    neighbourhood,
)

__all__ = [
    "LDP", "PNDP", "AnyReceiver", "Central", "Coalitions", "Colluding", "Eavesdropper", "FullCollusion",
    "ReleasedOnly", "SecureSum", "TrustModel", "named", "neighbourhood",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


__doc__ = f"{__doc__}\n{table()}\n"

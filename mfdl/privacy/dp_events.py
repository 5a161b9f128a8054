"""A guarantee as an event of dp-accounting, whose accountants compose it with mechanisms of other libraries.

An event has no trust model, no adjacency and no victim: it is stated beside them here. The noise multiplier of a
Gaussian event is 1 / mu, so that the adjacency is in it: every accountant of dp-accounting takes the event under its
default relation, and another relation gives no smaller loss.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .. import check
from ..errors import UnsupportedMechanism
from .curves import Gaussian, PrivacyCurve

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclasses.dataclass(frozen=True)
class AccountedEvent:
    """An event of dp-accounting, and the conditions under which it describes a mechanism.

    Attributes: event: a `dp_accounting.DpEvent`; conditions: those of the guarantee, one a line.
    """

    event: DpEvent
    conditions: str

    def __str__(self) -> str:
        return f"{self.event!r}\n{self.conditions}"


def event_of(curve: PrivacyCurve, conditions: str, *, adaptive: bool, public_batches: bool) -> AccountedEvent:
    """Of a curve for adaptive gradients. Args, Raises: as `Guarantee.dp_event`; conditions: those of the guarantee."""
    if not adaptive:
        raise UnsupportedMechanism(
            "an event is composed adaptively, and this guarantee is for non-adaptive gradients; use the adaptive "
            "number of the mechanism."
        )
    lines = ["read it with an accountant's default relation, ADD_OR_REMOVE_ONE", conditions]
    if check.flag(public_batches=public_batches) and curve.mu is None:
        curve = Gaussian(curve.public_mu, curve.adjacency, "upper")
        lines.insert(1, "an upper bound: the event is that of the same noise with public batches")
    return AccountedEvent(curve.dp_event(), "\n".join(lines))

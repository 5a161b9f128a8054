"""Trust models: who sees what.

A trust model says which messages an attacker sees, which gradients and which noise it knows. Here: LDP, where
every message is public and nothing else is known, so that each node is protected by its own noise alone.
"""

from __future__ import annotations

import abc
import dataclasses


class TrustModel(abc.ABC):
    """What an attacker sees and knows; `name` and `attacker` go into every guarantee."""

    name: str
    attacker: str


@dataclasses.dataclass(frozen=True)
class LDP(TrustModel):
    """Local: all messages are seen; no gradient and no node's own noise is known."""

    name = "ldp"
    attacker = "anyone who sees all messages"

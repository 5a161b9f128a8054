"""`PublishedBound`, the result of every published privacy bound, and the wording that several of them share."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mfdl import check
from mfdl.check import FloatArray
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.gossip import Gossip, GossipMatrix
from mfdl.privacy.gaussian import mu_from_epsilon

Quantity = Literal["sensitivity_squared", "mu", "renyi slope", "epsilon"]

NON_ADAPTIVE = "for non-adaptive gradients"


@dataclass(frozen=True, eq=False)
class PublishedBound:
    """One published number, or one per victim, and what to think of it.

    Attributes:
        value: the number; an array in node order where it is one per victim, inf for the attackers themselves.
        quantity: "sensitivity_squared" (mu^2 per unit record shift and noise), "mu", "renyi slope" (Rényi loss
            of order a is a * value, for all a > 1, so value = mu^2 / 2) or "epsilon" (at the delta given).
        source: paper and item; erratum: what is wrong or missing in it.
        validity: "bound ...", "heuristic ..." or "refuted: ...", with the conditions.
    """

    value: float | FloatArray
    quantity: Quantity
    source: str
    erratum: str
    validity: str

    def __post_init__(self) -> None:
        if isinstance(self.value, np.ndarray):
            self.value.setflags(write=False)

    @property
    def valid(self) -> bool | None:
        """True if proved under the conditions in `validity`, False if refuted, None if neither."""
        return None if self.validity.startswith("heuristic") else self.validity.startswith("bound")

    @property
    def mu(self) -> float | FloatArray:
        """The same number as a Gaussian DP parameter, per unit record shift and noise for a sensitivity.

        Raises: InvalidInput: the quantity is an epsilon, which fixes no mu without its delta.
        """
        if self.quantity == "mu":
            return self.value
        if self.quantity == "epsilon":
            raise InvalidInput("a bound on epsilon has no mu of its own; use gaussian.mu_from_epsilon with its delta.")
        squared = self.value if self.quantity == "sensitivity_squared" else 2 * self.value
        mu = np.nextafter(np.sqrt(squared), math.inf) * (np.asarray(squared) > 0)
        return mu if isinstance(self.value, np.ndarray) else float(mu)


def exact_route(epsilon: float, delta: float, quantity: str) -> str:
    mu = mu_from_epsilon(epsilon, delta)
    return (
        f"the exact mu for this budget is mu_from_epsilon({epsilon:g}, {delta:g}) = {mu:.6g}: choose the noise so that "
        f"{quantity} stays below it"
    )


def constant(gossip: Any) -> GossipMatrix:
    """The W of a gossip. Raises: UnsupportedMechanism: W changes over time."""
    check.instance(Gossip, gossip=gossip)
    if not gossip.is_constant:
        raise UnsupportedMechanism(f"gossip {gossip.name!r} must be the same in every step; this bound has one W.")
    matrix: GossipMatrix = gossip.at(0)
    return matrix


def node_index(labels: tuple[Hashable, ...], label: Hashable) -> int:
    """Index of a label, or of an index written "#0". Raises: InvalidInput: neither."""
    if label in labels:
        return labels.index(label)
    by_text = {f"#{index}": index for index in range(len(labels))} | {str(known): i for i, known in enumerate(labels)}
    if str(label) in by_text:
        return by_text[str(label)]
    raise InvalidInput(
        f"attacker {str(label)!r} is not a node; give one of its {len(labels)} labels, from {labels[0]!r}, or an "
        f"index, '#0' to '#{len(labels) - 1}'."
    )

"""Privacy curves by victim, for nodes with different budgets: pairs of a node label and its curve.

In: pairs given by a caller, an accountant or a file. Out: checked pairs, none above the curve of everybody; their
budgets in words; their JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import check
from ..display import rounded_up
from ..errors import InvalidInput
from .curves import PrivacyCurve, curve_from_dict, curve_to_dict

Victims = tuple[tuple[str, PrivacyCurve], ...]

NAMED = 5
"""Nodes of one budget that a field names; `Guarantee.victims` has them all."""
ROUNDING = 1e-12  # relative: a caller may have multiplied in another order


def checked_victims(given: Any, worst: PrivacyCurve) -> Victims:
    """Pairs (label, curve). Raises: InvalidInput: others, a label twice, one above that of everybody."""
    pairs = _pairs(given, lambda curve: curve)
    labels = {label for label, _ in pairs if isinstance(label, str)}
    if len(labels) != len(pairs):
        raise InvalidInput("victims must name each victim once, by a text.")
    for _, curve in pairs:
        check.instance(PrivacyCurve, victims=curve)
        if worst.mu is None or curve.mu is None or not curve.mu <= worst.mu * (1 + ROUNDING):
            raise InvalidInput(f"victims must have Gaussian curves with mu from 0 to {worst.mu!r}, the largest.")
    return pairs


def mu_in_words(victims: Victims) -> str:
    """The mu of each victim, those of one budget together."""
    labels_of: dict[str, list[str]] = {}
    for label, curve in victims:
        labels_of.setdefault(rounded_up(curve.mu, 6) if curve.mu is not None else "?", []).append(label)
    budgets = []
    for budget, labels in sorted(labels_of.items(), key=lambda pair: float(pair[0])):  # exact: as printed
        more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
        budgets.append(f"{budget} for {'node' if len(labels) == 1 else 'nodes'} {', '.join(labels[:NAMED])}{more}")
    more = f"; and {len(budgets) - NAMED} further budgets" if len(budgets) > NAMED else ""
    return "; ".join(budgets[:NAMED]) + more


def victims_to_json(victims: Victims) -> list[list[Any]]:
    """A list of label and curve for each victim."""
    return [[label, curve_to_dict(curve)] for label, curve in victims]


def victims_from_json(given: Any) -> Victims:
    """The inverse of `victims_to_json`. Raises: InvalidInput: other JSON."""
    return _pairs(given, curve_from_dict)


def _pairs(given: Any, curve_of: Callable[[Any], PrivacyCurve]) -> Victims:
    try:
        return tuple((label, curve_of(curve)) for label, curve in given)
    except (TypeError, ValueError):
        raise InvalidInput(f"victims must be pairs of a label and its curve, got {check.brief(given)}.") from None

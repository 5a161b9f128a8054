"""Losses of the nodes in a view that has no algorithm and no trust model: matrices alone.

The machinery is that of every view (`forms`, `sensitivity`). What matrices cannot say is how gradients depend on what
was sent: a number holds for gradients fixed in advance, and for adaptive ones where `adaptive` proves it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import check
from ..errors import InvalidInput, require_known
from ..participation import Participation
from ..sensitivity.patterns import METHODS
from ..view import View
from .accounting import THE_VIEW, VictimLoss
from .adaptive import is_adaptive
from .forms import view_grams
from .guarantee import UNITS
from .sensitivity import Sensitivity, sensitivities

NOT_PROVEN = (
    "A and B do not say at which models gradients are taken, so nothing proves the number for adaptive gradients; "
    "View(A, B, models=(M_G, M_Z), row_steps=...) does where every model is a combination of rows seen before"
)


def view_losses(
    view: View,
    participation: Participation,
    victims: Sequence[int] | None = None,
    method: str = "exact",
    *,
    unit: str = "record",
) -> list[VictimLoss]:
    """What each node loses in a view, in node order.

    Args:
        view: `mfdl.View(A, B, num_nodes=n)`, or that of a trust model.
        participation: over the steps of the view; each node's number is for `of_node(victim)`.
        victims: node indices; default all but those all of whose gradients are marked as known, who attack.
        method: "exact" or "certified", as of `mfdl.victim_losses`.
        unit: "record" or "user".

    Guarantees: no number is below the truth for the matrices given; infinite where a noiseless combination shows a
        gradient of a step in which the node takes part, or the attacker knows one. The number for adaptive gradients is
        that for gradients fixed in advance where `adaptive`, else infinite: no view is known that shows more.
    Raises: InvalidInput: arguments that do not fit, or no victim. UnsupportedMechanism: participation in secret, or a
        view too large for a dense decomposition.
    """
    check.instance(View, view=view)
    check.instance(Participation, participation=participation)
    participation.require_public()
    scheme = participation
    n, T = view.axis.num_nodes, view.axis.num_steps
    if scheme.num_steps != T:
        raise InvalidInput(
            f"participation must have the {T} steps of the view, columns of A over num_nodes={n}, got "
            f"{scheme.num_steps} ({scheme.describe()})."
        )
    scheme.require_nodes(n)
    require_known("method", method, METHODS)
    require_known("unit", unit, UNITS)
    grams = dict(zip(chosen := _victims(view, victims), view_grams(view, chosen), strict=True))
    fixed: dict[int, Sensitivity] = {}
    for shared, nodes in scheme.shared_by(chosen):
        answers = sensitivities([grams[u] for u in nodes], shared, nodes=nodes, method=method)
        fixed |= zip(nodes, answers, strict=True)
    adaptive = is_adaptive(view, scheme, unit=unit)
    return [
        VictimLoss(
            fixed[u],
            fixed[u] if adaptive or math.isinf(fixed[u].squared) else _unproven(fixed[u]),
            adaptive,
            THE_VIEW,
            view.attacker,
            view.release,
            unit,
        )
        for u in chosen
    ]


def _unproven(fixed: Sensitivity) -> Sensitivity:
    return Sensitivity(math.inf, False, fixed.pattern, fixed.node, 0.0, 0.0, NOT_PROVEN, fixed.form)


def _victims(view: View, victims: Sequence[int] | None) -> list[int]:
    n = view.axis.num_nodes
    if victims is None:
        chosen = np.flatnonzero(~view.marked_gradients.all(axis=0)).tolist()
    else:
        listed = check.listed("node indices, or None for all", victims=victims)
        chosen = sorted({check.integer_at_least(0, victim=u) for u in listed})
    if not chosen:
        raise InvalidInput("no victim is left: all gradients of every node are marked as known, or victims is empty.")
    if chosen[-1] >= n:
        raise InvalidInput(f"victim must be a node index below {n}, got {chosen[-1]}.")
    return chosen

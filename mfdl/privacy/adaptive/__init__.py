"""Does a number hold when gradients are chosen adaptively? The row-space test.

The Gaussian formula needs every gradient to be a function of what the attacker has already seen: for every node and
step (one whose gradient is known included: it shows its model), the row of the model operator (over G and Z jointly)
must lie in the row space of the strictly earlier rows of [A B], plus unit rows for known columns. It is not enough
that a gradient does not move with the record: it can cancel noise that the attacker never sees.

One weaker condition is enough where the unit of privacy is all data of a node, in every step: that a model differs from
what the attacker knows by earlier gradients of the same node alone (proof: `forms.node_recursions`). For a record it is
not, whatever its steps: the record that moves one gradient then moves, through the model, the gradients of the node's
other records.

A bare view O = A G + B Z does not say at which models gradients are taken: the average of all messages of DP-D-SGD is
the same on every graph, and only on the complete one it is every model. So from A and B alone a single step counts as
adaptive, whose models are public; more steps need the models, M = M_G G + M_Z Z, and for each row the step after whose
gradients it is seen (`View`, `models` and `row_steps`). The condition is then the same: for every step and node, the
row of [M_G M_Z] lies in the span of the rows of [A B] seen before, plus unit rows for known columns. A row cannot be
seen before the last gradient in it is taken.

The test is run on the maps, never inferred from a name: first where they have entries (`workloads.flow`), then, for
users, the recursions of the nodes, then, for small views, exact ranks (`row_spaces`). A larger view that
fails the first two is called not adaptive, which is the safe side.
"""

from __future__ import annotations

from ...participation import Participation
from ...trust.view import AlgorithmView, View
from ..forms.known_states import states_are_multiples
from ..forms.node_recursions import recursions
from ..row_spaces import spans_models


def is_adaptive(view: View, participation: Participation | None = None, *, unit: str = "record") -> bool:
    """Whether the number of a view for non-adaptive gradients holds for adaptive ones too.

    Args: participation, unit: what the number is for; by default it is to hold for any.

    Guarantees: True only if every gradient is taken at a model that the attacker knows (the row-space condition), or,
        for unit "user" with participation in every step, at one that differs from what the attacker knows by the
        node's own earlier gradients alone (`forms.node_recursions`). No tolerance decides it: maps count as they are.
    A bare view (no algorithm) is adaptive if it has one step, or models that earlier rows span.
    """
    if not isinstance(view, AlgorithmView):
        return view.axis.num_steps == 1 or spans_models(view)
    if view.flow is not None and view.flow.models:
        return True
    combination = view.knowledge.combination
    if combination is not None and states_are_multiples(view.algorithm, combination):
        return True
    every_gradient_moves = unit == "user" and participation is not None and participation.in_every_step
    if every_gradient_moves and recursions(view) is not None:
        return True
    return spans_models(view)

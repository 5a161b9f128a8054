"""What one victim loses: a number for non-adaptive gradients, one for adaptive gradients, and why.

Records that several nodes hold: exact from X_S (`forms.joint_grams`) and joint patterns (`participation.by_node`).
Where the owners share no noise X_S is block diagonal, and squared sensitivities add up. Where no form has it, sens_S <=
sum_u sens_u (`privacy.owners`).

A number holds when gradients are chosen adaptively if every gradient is a function of what the attacker has already
seen: for every node and step (one whose gradient is known included: it shows its model), the row of the model operator
(over G and Z jointly) must lie in the row space of the strictly earlier rows of [A B], plus unit rows for known
columns. It is not enough that a gradient does not move with the record: it can cancel noise that the attacker never
sees.

One weaker condition is enough where the unit of privacy is all data of a node, in every step: that a model differs from
what the attacker knows by earlier gradients of the same node alone (proof: `forms.node_recursions`). For a record it is
not: the record that moves one gradient then moves, through the model, the gradients of the node's other records.

A bare view O = A G + B Z does not say at which models gradients are taken: the average of all messages of DP-D-SGD is
the same on every graph, and only on the complete one it is every model. So from A and B alone a single step counts as
adaptive, whose models are public; more steps need the models, M = M_G G + M_Z Z, and for each row the step after whose
gradients it is seen (`View`, `models` and `row_steps`).

The test is run on the maps, never inferred from a name: first where they have entries (`workloads.flow`), then, for
users, the recursions of the nodes, then, for small views, exact ranks (`row_spaces`). A larger view that fails the
first two is called not adaptive, which is the safe side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Self

from mfdl_solvers.ties import first_largest

from .. import check
from ..display import short_repr
from ..floats import UNIT
from ..participation import Participation
from ..participation.by_node import JointParticipation
from ..trust.view import AlgorithmView, View
from . import gaussian
from .forms import INJECTIONS, Blocks, Group, ViewGram
from .forms.known_states import states_are_multiples
from .forms.node_recursions import recursions
from .gram_sensitivity import Sensitivity, sensitivities
from .owners import Victim, victim_nodes
from .questions import Fingerprint
from .row_spaces import spans_models

if TYPE_CHECKING:
    from .curves import PrivacyCurve
    from .questions import Privacy, Target


def is_adaptive(view: View, participation: Participation | None = None, *, unit: str = "record") -> bool:
    """Whether the number of a view for non-adaptive gradients holds for adaptive ones too: the row-space test.

    Args: participation, unit: what the number is for; by default it is to hold for any.

    Guarantees: True only if the row-space condition holds, or, for unit "user" with participation in every step, that
        of `forms.node_recursions`. No tolerance decides it: maps count as they are.
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


THE_VIEW = "the view"
SHIFT_REDUCTION = "shift reduction"
ALL_MESSAGES = "all messages seen"
MOST_SHOWN = ("not applicable", "none", "average", "all")
_RULES = {
    ALL_MESSAGES: """gradients depend on noise that this attacker does not see, so the number is the one for the
        same attackers if they see every message. For plain gossip whose local maps have a public Lipschitz constant,
        lipschitz=L can give a smaller number by shift reduction""",
    INJECTIONS: """even if every message is seen, gradients depend on unseen noise, so every injected sum (gradient
        plus noise) is assumed to be seen. The number is exact if the messages determine these sums""",
    SHIFT_REDUCTION: """messages are hidden and gradients are adaptive, so the number comes from shift reduction with
        the given Lipschitz constant. A smaller constant gives a smaller number""",
}


@dataclasses.dataclass(frozen=True)
class VictimSensitivity:
    """The loss of one victim, per unit record shift and unit noise: two sensitivities, and their conditions.

    Attributes:
        non_adaptive_sensitivity: of the linear view, for gradients that are functions of the data alone;
            adaptive_sensitivity: for gradients chosen adaptively, as in training. Either may be infinite.
        adaptive: whether the first already holds for adaptive gradients.
        adaptive_by: the rule that gave the second: THE_VIEW, SHIFT_REDUCTION, ALL_MESSAGES or INJECTIONS.
        attacker: who attains the first number; release: which final models the view holds.
        unit: "record" or "user"; fingerprint: of the question this answers; a copy with other fields has none.
        lipschitz: the constant that the second number rests on, if any; of constants for single steps the smallest.
    """

    __repr__ = short_repr

    non_adaptive_sensitivity: Sensitivity
    adaptive_sensitivity: Sensitivity
    adaptive: bool
    adaptive_by: str
    attacker: str
    release: str
    unit: str = "record"
    lipschitz: float | None = None
    fingerprint: Fingerprint | None = dataclasses.field(default=None, init=False)

    @property
    def victim(self) -> Victim:
        return self.non_adaptive_sensitivity.node

    @property
    def node(self) -> int:
        assert isinstance(self.victim, int)
        return self.victim

    @property
    def sensitivity_squared(self) -> float:
        return self.non_adaptive_sensitivity.squared

    @property
    def adaptive_sensitivity_squared(self) -> float:
        return self.adaptive_sensitivity.squared

    @property
    def bound(self) -> str:
        return self.non_adaptive_sensitivity.bound

    @property
    def adaptive_bound(self) -> str:
        return self.adaptive_sensitivity.bound

    @property
    def adaptive_why(self) -> str:
        """The cause of an infinite second number, if not the first."""
        return "" if self.adaptive else self.adaptive_sensitivity.why

    def number(self, *, adaptive: bool = True) -> Sensitivity:
        wanted = adaptive if isinstance(adaptive, bool) else check.flag(adaptive=adaptive)
        return self.adaptive_sensitivity if wanted else self.non_adaptive_sensitivity

    def for_gradients(self, *, adaptive: bool) -> VictimSensitivity:
        return self

    def mu(self, *, record_shift: float, noise_std: float, adaptive: bool = True) -> float:
        return gaussian.mu_from_noise_std(self.number(adaptive=adaptive).value, record_shift, noise_std)

    def answering(self, fingerprint: Fingerprint | None) -> Self:
        answer = object.__new__(type(self))  # of a million victims `copy.copy` takes ten times as long
        answer.__dict__.update(self.__dict__, fingerprint=fingerprint)
        return answer

    def raised_to(self, largest: Sensitivity, *, adaptive: bool = True) -> Self:
        number = self.number(adaptive=adaptive).raised_to(largest)
        if number is self.number(adaptive=adaptive):
            return self
        fixed = number if self.adaptive or not adaptive else self.non_adaptive_sensitivity
        in_training = number if self.adaptive or adaptive else self.adaptive_sensitivity
        raised = dataclasses.replace(self, non_adaptive_sensitivity=fixed, adaptive_sensitivity=in_training)
        return raised.answering(self.fingerprint)

    retry_step = 2.0**-52
    """By what share calibration adds noise where the target is still missed: here by rounding only."""

    def sensitivity(self, *, adaptive: bool = True) -> float:
        return self.number(adaptive=adaptive).value

    def curve(self, privacy: Privacy, noise_std: float, *, adaptive: bool = True, tries: int = 0) -> PrivacyCurve:
        """The privacy curve at this noise. Args: tries: how often fresh samples were drawn before."""
        from .curves import Gaussian

        mu = self.mu(record_shift=privacy.record_shift, noise_std=noise_std, adaptive=adaptive)
        return Gaussian(mu, privacy.adjacency, self.number(adaptive=adaptive).bound)

    def least_noise(self, privacy: Privacy, target: Target, *, adaptive: bool = True) -> float:
        """The least standard deviation that meets a target, but for rounding. Raises: InvalidInput: an infinite one."""
        return gaussian.noise_std(1 / target.largest_mu, self.sensitivity(adaptive=adaptive), privacy.record_shift)

    def explanation(self, *, adaptive: bool = True, victim: str = "") -> str:
        """The rule that gave an upper bound or infinity, and what would give a better number; empty where exact."""
        number = self.number(adaptive=adaptive)
        if math.isinf(number.squared):
            reason = (adaptive and self.adaptive_why) or self.non_adaptive_sensitivity.why or "no rule covers this view"
            return f"No finite number: {reason}{victim and f' ({victim})'}."
        if number.bound == "exact":
            return ""
        if not adaptive or self.adaptive:
            return f"Upper bound: {self.non_adaptive_sensitivity.why}." if self.non_adaptive_sensitivity.why else ""
        non_adaptive = ""
        if self.sensitivity_squared < number.squared:
            share = math.sqrt(self.sensitivity_squared / number.squared)
            non_adaptive = f"; for non-adaptive gradients mu is {share:.3g} times that"
        rule = _RULES.get(self.adaptive_by) or self.adaptive_why or "bounds do not meet"
        return f"Upper bound: {' '.join(rule.split())}{non_adaptive}."


def pointwise_worst(a: VictimSensitivity, b: VictimSensitivity) -> VictimSensitivity:
    """The pointwise worst of two attacking sets, `a` where they tie, with the larger release."""
    first, second = worst_loss([a, b], adaptive=False), worst_loss([a, b])
    return dataclasses.replace(
        first,
        adaptive_sensitivity=second.adaptive_sensitivity,
        adaptive_by=second.adaptive_by,
        adaptive=a.adaptive and b.adaptive,
        release=max(a.release, b.release, key=MOST_SHOWN.index),  # exact: a place in a tuple
        lipschitz=b.lipschitz if a.lipschitz is None else a.lipschitz,
    )


def worst_loss(losses: Sequence[VictimSensitivity], *, adaptive: bool = True) -> VictimSensitivity:
    """The first of the losses whose number is the largest up to rounding, raised to it, so that no loss is larger."""
    numbers = [loss.number(adaptive=adaptive) for loss in losses]
    largest = max(numbers, key=attrgetter("squared"))  # bound
    if largest is numbers[0]:  # the usual case of two attacking sets, of which there are many
        return losses[0]
    return losses[first_largest([number.squared for number in numbers])].raised_to(largest, adaptive=adaptive)


ADDED = "sum over the owners"
MOST_ENTRIES = 2**26  # of joint Grams at a time: half a gigabyte, and as much for their errors
JointGrams = Callable[[Sequence[Group]], Mapping[Group, ViewGram | Blocks]]
"""From groups of owners to X_S of those that some form covers."""
WHY_ADDED = (
    "the losses to each owner's copy are added up, since this view has no form for the owners together; fewer steps or "
    "nodes may have one"
)


@dataclasses.dataclass(frozen=True)
class JointConditions:
    scheme: Participation
    same_steps: bool
    method: str


def nodes_and_groups(victims: Sequence[Victim]) -> tuple[list[int], list[Group]]:
    groups = [victim for victim in victims if isinstance(victim, tuple)]
    return sorted({u for victim in victims for u in victim_nodes(victim)}), groups


def victim_sensitivities(
    grams: Sequence[ViewGram], joint: JointGrams, victims: Sequence[Victim], conditions: JointConditions
) -> list[Sensitivity]:
    """One Sensitivity for each victim, each node under its own participation.

    Args: grams: of the nodes of `nodes_and_groups`, in their order; joint: makes those of some groups, of as many at a
        time as memory holds.
    """
    nodes, groups = nodes_and_groups(victims)
    of, alone = dict(zip(nodes, grams, strict=True)), dict[int, Sensitivity]()
    for shared, alike in conditions.scheme.shared_by(nodes):
        values = sensitivities([of[u] for u in alike], shared, nodes=alike, method=conditions.method)
        alone |= zip(alike, values, strict=True)
    by_group: dict[Group, Sensitivity] = {}
    largest = (conditions.scheme.num_steps * max(map(len, groups), default=1)) ** 2
    at_once = max(1, MOST_ENTRIES // largest)
    for first in range(0, len(groups), at_once):
        part = groups[first : first + at_once]
        together = joint_sensitivities(part, joint(part), alone, conditions)
        by_group |= zip(part, together, strict=True)
    return [by_group[victim] if isinstance(victim, tuple) else alone[victim] for victim in victims]


def joint_sensitivities(
    groups: Sequence[Group],
    grams: Mapping[Group, ViewGram | Blocks],
    alone: Mapping[int, Sensitivity],
    conditions: JointConditions,
) -> list[Sensitivity]:
    """One Sensitivity for each group of owners; patterns are of pairs, i T + t for step t of the i-th owner.

    Args: grams: of those groups that a form covers; alone: of every owner.

    Guarantees: never below the true value for the joint patterns; a step that leaks at one owner makes it infinite.
    """
    joint: dict[Group, Sensitivity] = _block_sums(groups, grams, alone, conditions)
    together = {group: gram for group in groups if isinstance(gram := grams.get(group), ViewGram)}
    batches: list[tuple[JointParticipation, list[Group]]] = []
    for group in together:
        participation = JointParticipation.from_scheme(conditions.scheme, group, same_steps=conditions.same_steps)
        members = next((members for seen, members in batches if seen == participation), None)
        if members is None:
            batches.append((participation, members := []))
        members.append(group)
    for participation, members in batches:
        batch = [together[group] for group in members]
        joint |= zip(members, sensitivities(batch, participation, nodes=members, method=conditions.method), strict=True)
    return [_least(joint.get(group), added(group, alone)) for group in groups]


def added(group: Group, alone: Mapping[int, Sensitivity], *, attained: bool = True) -> Sensitivity:
    """The bound (sum_u sens_u)^2, attained where an owner's own number is infinite.

    Args: attained: whether one counted attacker attains an infinite number; not if those of the owners are of several
        views.
    """
    parts = [alone[u] for u in group]
    lower = max(part.lower for part in parts) if attained else 0.0
    squared = sum(part.value for part in parts) ** 2 * (1 + 4 * len(parts) * UNIT)
    known = math.isinf(squared) and math.isinf(lower)
    leaks = next((part.why for part in parts if math.isinf(part.squared) and part.why), WHY_ADDED)
    why = leaks if math.isinf(squared) else WHY_ADDED
    return Sensitivity(squared, known, (), group, 0.0, lower, why, ADDED)


def _least(joint: Sensitivity | None, bound: Sensitivity) -> Sensitivity:
    if joint is None or joint.exact or joint.squared <= bound.squared:
        return bound if joint is None else joint
    return dataclasses.replace(bound, lower=joint.lower, pattern=joint.pattern)


def _block_sums(
    groups: Sequence[Group],
    grams: Mapping[Group, ViewGram | Blocks],
    alone: Mapping[int, Sensitivity],
    conditions: JointConditions,
) -> dict[Group, Sensitivity]:
    """Squared sensitivities of owners that share no noise add up, each over patterns of its own.

    They are those of the owners alone, unless X_S is bounded by the blocks of a view that shows more.
    """
    blocks = {group: gram.parts for group in groups if isinstance(gram := grams.get(group), Blocks)}
    bounds = [(group, of) for group, of in blocks.items() if any(X.upper for X in of)]
    parts = {(u, id(X)): X for group, of in bounds for u, X in zip(group, of, strict=True)}
    numbers: dict[tuple[int, int], Sensitivity] = {}
    for shared, nodes in conditions.scheme.shared_by(sorted({u for u, _ in parts})):
        chosen = [key for key in parts if key[0] in set(nodes)]
        of_nodes = [u for u, _ in chosen]
        values = sensitivities([parts[key] for key in chosen], shared, nodes=of_nodes, method=conditions.method)
        numbers |= zip(chosen, values, strict=True)
    return {
        group: _sum(group, [numbers.get((u, id(X)), alone[u]) for u, X in zip(group, of, strict=True)], of, conditions)
        for group, of in blocks.items()
    }


def _sum(group: Group, values: list[Sensitivity], of: Sequence[ViewGram], conditions: JointConditions) -> Sensitivity:
    T, same_steps = conditions.scheme.num_steps, conditions.same_steps
    patterns = [value.pattern for value in values]
    if same_steps:
        JointParticipation.from_scheme(conditions.scheme, group, same_steps=True)  # refuses what has no common steps
    attained = not same_steps or all(X is of[0] for X in of) or all(p == patterns[0] for p in patterns)
    squared = sum(value.squared for value in values) * (1 + 2 * len(values) * UNIT)
    lower = sum(v.lower for v in values) * (1 - 2 * len(values) * UNIT) if attained else max(v.lower for v in values)
    infinite = [value for value in values if math.isinf(value.squared)]
    exact = any(v.exact for v in infinite) if infinite else attained and all(value.exact for value in values)
    why = next((value.why for value in infinite or values if value.why), "")
    return Sensitivity(
        squared,
        exact,
        tuple(t + i * T for i, pattern in enumerate(patterns) for t in pattern) if attained else (),
        group,
        max(squared / lower - 1, 0.0) if 0 < lower < math.inf else 0.0,
        lower,
        why or ("" if exact or infinite else "the owners need not be worst in the same steps"),
        values[0].form,
    )

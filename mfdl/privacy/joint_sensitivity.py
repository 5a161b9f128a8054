"""Sensitivity of records that several nodes hold: exact from X_S, or the sum over the owners.

X_S is that of `forms.joint_grams`, its patterns those of `participation.joint_participation`. Where the owners share no
noise it is block diagonal, and squared sensitivities add up. Where no form has it, sens_S <= sum_u sens_u
(`privacy.owners`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from ..floats import UNIT
from ..participation import Participation
from ..participation.joint_participation import JointParticipation
from .forms import Blocks, Group, ViewGram
from .gram_sensitivity import Sensitivity, sensitivities
from .owners import Victim, nodes_of

ADDED = "sum over the owners"
MOST_ENTRIES = 2**26
"""Of joint Grams at a time: half a gigabyte, and as much for their errors."""
JointGrams = Callable[[Sequence[Group]], Mapping[Group, ViewGram | Blocks]]
"""From groups of owners to X_S of those that some form covers."""
WHY_ADDED = (
    "the losses to each owner's copy are added up, since this view has no form for the owners together; fewer steps or "
    "nodes may have one"
)


@dataclasses.dataclass(frozen=True)
class JointConditions:
    """Under which a record of several owners is accounted.

    Attributes: scheme: of the algorithm; same_steps: of `Owners`; method: "exact" or "certified".
    """

    scheme: Participation
    same_steps: bool
    method: str


def nodes_and_groups(victims: Sequence[Victim]) -> tuple[list[int], list[Group]]:
    """Every node among victims and owners, ascending; and the groups."""
    groups = [victim for victim in victims if isinstance(victim, tuple)]
    return sorted({u for victim in victims for u in nodes_of(victim)}), groups


def victim_sensitivities(
    grams: Sequence[ViewGram],
    joint: JointGrams,
    victims: Sequence[Victim],
    conditions: JointConditions,
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
    joint: dict[Group, Sensitivity] = _of_blocks(groups, grams, alone, conditions)
    together = [(group, gram) for group in groups if isinstance(gram := grams.get(group), ViewGram)]
    batches: list[tuple[JointParticipation, list[tuple[Group, ViewGram]]]] = []
    for pair in together:
        participation = JointParticipation.of(conditions.scheme, pair[0], same_steps=conditions.same_steps)
        members = next((of for seen, of in batches if seen == participation), None)
        if members is None:
            batches.append((participation, members := []))
        members.append(pair)
    for participation, members in batches:
        nodes = [group for group, _ in members]
        values = sensitivities([gram for _, gram in members], participation, nodes=nodes, method=conditions.method)
        joint |= zip(nodes, values, strict=True)
    return [_least(joint.get(group), added(group, alone)) for group in groups]


def added(group: Group, alone: Mapping[int, Sensitivity], *, attained: bool = True) -> Sensitivity:
    """The bound (sum_u sens_u)^2, attained where an owner's own number is infinite.

    Args: attained: whether one counted attacker attains an infinite number; not if those of the owners are of
        several views.
    """
    parts = [alone[u] for u in group]
    lower = max(part.lower for part in parts) if attained else 0.0
    squared = sum(part.value for part in parts) ** 2 * (1 + 4 * len(parts) * UNIT)
    known = math.isinf(squared) and math.isinf(lower)
    leaks = next((part.why for part in parts if math.isinf(part.squared) and part.why), WHY_ADDED)
    why = leaks if math.isinf(squared) else WHY_ADDED
    return Sensitivity(squared, known, (), group, 0.0, lower, why, ADDED)


def _least(joint: Sensitivity | None, bound: Sensitivity) -> Sensitivity:
    """The joint number, unless it is an upper bound above the other one."""
    if joint is None or joint.exact or joint.squared <= bound.squared:
        return bound if joint is None else joint
    return dataclasses.replace(bound, lower=joint.lower, pattern=joint.pattern)


def _of_blocks(
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


def _sum(
    group: Group, values: Sequence[Sensitivity], of: Sequence[ViewGram], conditions: JointConditions
) -> Sensitivity:
    T, same_steps = conditions.scheme.num_steps, conditions.same_steps
    patterns = [value.pattern for value in values]
    if same_steps:
        JointParticipation.of(conditions.scheme, group, same_steps=True)  # refuses what has no common steps
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

"""The losses of all victims under a trust model, over its attacking sets.

The number for adaptive gradients is the number of the linear view if `adaptive`; otherwise the privacy loss to the same
attackers if they see every message (and the same released models), or, given a Lipschitz constant L, shift reduction
if that is smaller. (With L < 1 it can be smaller than the number for non-adaptive gradients, because non-adaptive
gradients need not come from contractive local maps.) No exact or certified number exceeds the all-messages value, since
that view contains this one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import check
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, require_known
from ..floats import UNIT
from ..participation import Participation
from ..progress import Progress, reporter
from ..sensitivity.patterns import MAX_ENUMERATED, METHODS
from ..trust import TrustModel
from ..trust.knowledge import Knowledge
from ..trust.view import AlgorithmView, View
from .adaptive import is_adaptive
from .forms import (
    INJECTIONS,
    Group,
    ViewGram,
    injection_bound,
    joint_grams,
    joint_injection_bounds,
    view_grams,
)
from .forms.node_recursions import recursions
from .gram_sensitivity import Sensitivity
from .owners import Owners, Victim, checked_victim, in_order, nodes_of, require_nodes, require_one_owner, within
from .questions import UNITS, Fingerprint
from .symmetry import Symmetries, corresponds
from .victim_sensitivity import (
    ALL_MESSAGES,
    SHIFT_REDUCTION,
    THE_VIEW,
    JointConditions,
    JointGrams,
    VictimSensitivity,
    added,
    nodes_and_groups,
    pointwise_worst,
    victim_sensitivities,
)

TIGHT = 1e-10
"""Relative slack of an exact number for which the view with all messages seen is not asked."""


def sensitivity_by_victim(
    algorithm: LinearAlgorithm,
    trust: TrustModel,
    *,
    victims: Sequence[Victim] | None = None,
    participation: Participation | None = None,
    release: str | None = None,
    method: str = "exact",
    lipschitz: float | Sequence[float] | None = None,
    unit: str = "record",
    owners: Any = 1,
    progress: Progress = "auto",
) -> list[VictimSensitivity]:
    """The losses of the given victims in their order; default all nodes that do not attack, in node order.

    Args:
        victims: nodes; a group such as (0, 3) stands for a record that nodes 0 and 3 both hold.
        participation: default that of the algorithm; the number of a victim is for `participation.of_node(victim)`.
        release: see `TrustModel.view`.
        method: "exact" (upper and lower bound meet within 1e-6) or "certified" (fast upper bound).
        lipschitz: L for shift reduction; None: the all-messages value stands in where the view is not adaptive.
        unit: "record" or "user", the unit of privacy; some views have an adaptive number for users alone.
        owners: which nodes may hold one record, as for `Owners`: by default its groups are victims besides the nodes.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called after each attacking set.

    A victim that is asked for and attacks has infinite loss. Over several attacking sets (coalitions) the worst counts.
    For a group these are the sets without an owner. If every set has one, the losses of the owners are added up, unless
    the view of `TrustModel.against_owners` loses less.
    """
    owners = Owners.of(owners)
    check.instance(TrustModel, trust=trust)
    scheme = asked_participation(algorithm, participation)
    scheme.require_nodes(algorithm.num_nodes)
    if victims is not None and not isinstance(victims, Iterable):
        raise InvalidInput(f"victims must be a list of node indices, or None for all, got {check.brief(victims)}.")
    order = None if victims is None else list(dict.fromkeys(map(checked_victim, victims)))
    for victim in order or ():
        require_nodes(victim, algorithm.num_nodes)
    if lipschitz is not None:
        from .adaptive.shift_reduction import lipschitz_factors

        lipschitz_factors(lipschitz, algorithm.num_steps)
    require_known("unit", unit, UNITS)
    require_known("method", method, METHODS)
    groups = _groups(algorithm, trust, owners) if order is None else [v for v in order if isinstance(v, tuple)]
    require_one_owner(unit, groups)
    wanted = None if order is None else {u for victim in order for u in nodes_of(victim)}
    request = _Asked(algorithm, scheme, release, method, lipschitz, unit, owners.same_steps)
    worst: dict[Victim, VictimSensitivity] = {}
    report = reporter(progress, words=0)
    sets: Iterable[tuple[TrustModel, list[Victim]]] = (
        (model, [*(u for u in honest if wanted is None or u in wanted), *within(groups, honest)])
        for model, honest in trust.members(algorithm)
    )
    total = None
    if report.counts:
        sets = list(sets)
        total = sum(len(chosen) for _, chosen in sets)
    with report.bar(f"losses of {algorithm.name} under {trust.name}", total) as advance:
        against = request.against if order is not None or groups else _Images(request).against
        for model, chosen in sets:
            for u, loss in zip(chosen, against(model, chosen), strict=True) if chosen else ():
                worst[u] = pointwise_worst(worst[u], loss) if u in worst else loss
            advance(len(chosen))
    attacking = sorted((wanted or {u for group in groups for u in group}) - set(worst))
    for u in attacking:
        released = model.view(algorithm, u, release=release).release
        infinite = Sensitivity(math.inf, True, (), u, 0.0, math.inf, "the victim is one of the attackers")
        worst[u] = VictimSensitivity(infinite, infinite, True, THE_VIEW, trust.attacker, released, unit)
    for group in groups:
        if group not in worst:
            worst[group] = _summed_over_owners(group, worst, knows=not set(group).isdisjoint(attacking))
            if (others := trust.against_owners(algorithm, group)) is not None:
                worst[group] = _pointwise_least(worst[group], *request.against(others, [group]))
    if not worst:
        raise InvalidInput(f"no victim is left: every node is an attacker ({trust.attacker}).")
    fingerprint = Fingerprint.of(algorithm, trust, scheme, "", unit, owners)
    losses = [worst[u] for u in (in_order(worst) if order is None else order)]
    of_release = {name: dataclasses.replace(fingerprint, release=name) for name in {loss.release for loss in losses}}
    return [loss.answering(of_release[loss.release]) for loss in losses]


def asked_participation(algorithm: LinearAlgorithm, participation: Participation | None) -> Participation:
    """The participation that a question is about: default the algorithm's own.

    Raises: InvalidInput: algorithm is no LinearAlgorithm, or participation no Participation. UnsupportedMechanism: its
        patterns are drawn secretly.
    """
    check.instance(LinearAlgorithm, algorithm=algorithm)
    scheme = algorithm.participation if participation is None else participation
    check.instance(Participation, participation=scheme)
    scheme.require_public()
    return scheme


def _groups(algorithm: LinearAlgorithm, trust: TrustModel, owners: Owners) -> list[Group]:
    """Those that may hold one record; any q nodes are of those that do not attack."""
    honest: set[int] = set()
    if owners.most > 1:
        honest = honest.union(*(of_member for _, of_member in trust.members(algorithm)))
    return owners.among(sorted(honest), algorithm.num_nodes)


def _summed_over_owners(group: Group, alone: Mapping[Victim, VictimSensitivity], *, knows: bool) -> VictimSensitivity:
    """Sum of the owners' losses: an upper bound on those of their record where each attacking set has an owner.

    Args: knows: whether an owner attacks in every set, so that the attacker knows the record.
    """
    losses = [alone[u] for u in group]
    both = functools.reduce(pointwise_worst, losses)
    fixed, adaptive = (
        added(group, {u: loss.number(adaptive=is_ad) for u, loss in zip(group, losses, strict=True)}, attained=knows)
        for is_ad in (False, True)
    )
    return dataclasses.replace(both, non_adaptive_sensitivity=fixed, adaptive_sensitivity=adaptive)


def _pointwise_least(summed: VictimSensitivity, view: VictimSensitivity) -> VictimSensitivity:
    """The loss to the view of all non-owners, with the sum over the owners where that is smaller."""
    if summed.adaptive_sensitivity.squared < view.adaptive_sensitivity.squared:
        return summed
    if summed.non_adaptive_sensitivity.squared < view.non_adaptive_sensitivity.squared:
        return dataclasses.replace(view, non_adaptive_sensitivity=summed.non_adaptive_sensitivity)
    return view


def _is_tight(s: Sensitivity) -> bool:
    """Whether no view that sees more could lower the number by more than rounding."""
    return s.exact and (math.isinf(s.squared) or s.tolerance <= TIGHT)


def _capped(s: Sensitivity, ceiling: Sensitivity) -> Sensitivity:
    """An upper bound never above that of the view that sees more."""
    if s.squared <= ceiling.squared or math.isinf(s.squared):
        return s
    return dataclasses.replace(s, squared=ceiling.squared, exact=s.exact and ceiling.exact)


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of every view: the arguments of `sensitivity_by_victim`."""

    algorithm: LinearAlgorithm
    scheme: Participation
    release: str | None
    method: str
    lipschitz: float | Sequence[float] | None
    unit: str
    same_steps: bool = False

    def against(self, model: TrustModel, victims: list[Victim]) -> list[VictimSensitivity]:
        view = model.view(self.algorithm, nodes_of(victims[0])[0], release=self.release)
        adaptive = non_adaptive = self.of_view(view, victims)
        holds = is_adaptive(view, self.scheme, unit=self.unit)
        rules, rests_on = [THE_VIEW] * len(victims), None
        if not holds or not (view.knowledge.sees_all(self.algorithm) or all(map(_is_tight, non_adaptive))):
            ceiling = self.all_messages(view, victims)
            adaptive = non_adaptive = [_capped(s, c) for s, c in zip(non_adaptive, ceiling, strict=True)]
        if not holds:  # of this view only an upper bound
            rules = [INJECTIONS if c.form == INJECTIONS else ALL_MESSAGES for c in ceiling]
            adaptive = [
                dataclasses.replace(s, squared=c.squared, exact=False, lower=0.0, form=rule, why=c.why)
                for s, c, rule in zip(non_adaptive, ceiling, rules, strict=True)
            ]
        if not holds and self.lipschitz is not None:
            rests_on = float(np.min(self.lipschitz))  # which promises every step's own constant
            for i, x in enumerate(self.shift_reduction(view, victims)):
                if x < adaptive[i].squared:
                    adaptive[i] = dataclasses.replace(adaptive[i], squared=x, exact=False, form=SHIFT_REDUCTION, why="")
                    rules[i] = SHIFT_REDUCTION
        return [
            VictimSensitivity(s, t, holds, rule, model.attacker, view.release, self.unit, on)
            for s, t, rule in zip(non_adaptive, adaptive, rules, strict=True)
            for on in (rests_on if rule == SHIFT_REDUCTION else None,)
        ]

    def of_view(self, view: View, victims: Sequence[Victim]) -> list[Sensitivity]:
        nodes, _ = nodes_and_groups(victims)
        return self.sensitivities(view_grams(view, nodes), functools.partial(joint_grams, view), victims)

    def sensitivities(
        self, grams: Sequence[ViewGram], joint: JointGrams, victims: Sequence[Victim]
    ) -> list[Sensitivity]:
        return victim_sensitivities(grams, joint, victims, JointConditions(self.scheme, self.same_steps, self.method))

    def all_messages(self, view: AlgorithmView, victims: list[Victim]) -> list[Sensitivity]:
        """The losses to the same attackers with every message seen, and with the models released that `view` holds.

        Where that is no number for adaptive gradients: with every injected sum seen, if noise enters where gradients
        do. Released models are a function of messages that all are seen, unless some are never sent; then they are
        asked for.
        """
        known = view.knowledge.with_all_sent(self.algorithm)
        release = "not applicable" if self.algorithm.released_by_messages else view.release
        more = View.of(self.algorithm, known, release=release, attacker=view.attacker)
        covers = known.covers(view.knowledge)
        if covers and is_adaptive(more, self.scheme, unit=self.unit):
            return self.of_view(more, victims)
        nodes, _ = nodes_and_groups(victims)
        grams, joint = injection_bound(view, nodes), functools.partial(joint_injection_bounds, view)
        if grams is None:
            why = (
                self.why_not_adaptive(more)
                if covers
                else "the view is not a function of the sent messages, so they do not bound it"
            )
            grams = [ViewGram.silent(self.algorithm.num_steps, why)] * len(nodes)
        return self.sensitivities(grams, joint, victims)

    def why_not_adaptive(self, more: AlgorithmView) -> str:
        """What stands in the way with all messages seen, and the way out if there is one."""
        unreleased = View.of(self.algorithm, more.knowledge, release="none", attacker=more.attacker)
        if recursions(unreleased) is None:
            return "even with every message seen, some gradient depends on noise that is not"
        if not more.unreleased:
            cause = "messages that are never sent enter the models, and no adaptive number covers released models then"
        else:
            cause = (
                "messages that are never sent enter the models, so a node's model depends on its own earlier "
                "gradients even for an attacker that sees all sent messages, and a record moves the "
                "gradients of the node's other records"
            )
        covered = self.unit == "user" and self.scheme.in_every_step
        needed = [] if covered else [f"unit='user' with EveryStep({self.scheme.num_steps})"]
        return f"{cause}; what can be accounted is {' and '.join([*needed, 'release=' + repr('none')])}"

    def shift_reduction(self, view: View, victims: list[Victim]) -> list[float]:
        """Of several owners (sum_u sens_u)^2."""
        from .adaptive import shift_reduction
        from .adaptive.repeated_rounds import worst_patterns

        assert self.lipschitz is not None
        nodes, _ = nodes_and_groups(victims)
        problem = shift_reduction.shift_problem(view, self.lipschitz)

        def shifts(nodes: list[int], participation: Participation) -> list[float]:
            if participation.num_patterns <= MAX_ENUMERATED:
                patterns = [tuple(int(t) for t in pattern) for pattern in participation.patterns()]
            else:  # a record that joins every step needs shifts at least as large as one that joins some
                patterns = [tuple(range(problem.num_steps))]
            worst = worst_patterns(problem, patterns)
            squared = shift_reduction.solve(problem, nodes, worst).sensitivity_squared.max(axis=1)
            moved = sorted({t for pattern in patterns for t in pattern})
            # a gradient that the attacker knows and the record moves is seen as it is, whatever the models
            return np.where(view.known_gradients[np.ix_(moved, nodes)].any(axis=0), math.inf, squared).tolist()

        roots: dict[int, float] = {}
        for participation, alike in self.scheme.shared_by(nodes):
            roots |= zip(alike, np.sqrt(shifts(alike, participation)).tolist(), strict=True)
        squared = [(sum(roots[u] for u in nodes_of(victim)), len(nodes_of(victim))) for victim in victims]
        return [root**2 * (1 + 4 * count * UNIT) for root, count in squared]


class _Images:
    """Losses to single attackers, those that are images of others under a symmetry of the algorithm not anew."""

    def __init__(self, request: _Asked) -> None:
        self._request = request
        self._symmetries = Symmetries(request.algorithm, request.scheme)
        self._others: list[tuple[TrustModel, int, Knowledge, list[VictimSensitivity]]] = []

    def against(self, model: TrustModel, victims: list[Victim]) -> list[VictimSensitivity]:
        algorithm, attackers = self._request.algorithm, model.attackers(self._request.algorithm)
        if len(attackers) != 1 or not self._symmetries.possible or not model.same_for_all_victims:
            return self._request.against(model, victims)
        masks, attacker = model.knowledge(algorithm, nodes_of(victims[0])[0]), attackers[0]
        for other, node, other_masks, losses in self._others:
            if type(other) is not type(model) or other.default_release != model.default_release:
                continue
            permutation = self._symmetries.taking(node, attacker)
            if permutation is None or not corresponds(permutation, other_masks, masks):
                continue
            images: dict[Victim, VictimSensitivity] = {int(permutation[loss.node]): loss for loss in losses}
            if set(images) == set(victims):
                return [_renamed(images[u], u, model.attacker) for u in victims]
        losses = self._request.against(model, victims)
        if all(math.isfinite(loss.adaptive_sensitivity_squared) for loss in losses):  # no leak names its rows
            self._others.append((model, attacker, masks, losses))
        return losses


def _renamed(loss: VictimSensitivity, node: Victim, attacker: str) -> VictimSensitivity:
    fixed, adaptive = (dataclasses.replace(loss.number(adaptive=is_ad), node=node) for is_ad in (False, True))
    adaptive = fixed if loss.adaptive_sensitivity is loss.non_adaptive_sensitivity else adaptive
    return dataclasses.replace(loss, non_adaptive_sensitivity=fixed, adaptive_sensitivity=adaptive, attacker=attacker)

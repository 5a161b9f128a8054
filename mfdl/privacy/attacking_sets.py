"""The losses of all victims under a trust model, over its attacking sets.

The number for adaptive gradients is the number of the linear view if `adaptive`; otherwise the privacy loss to the same
attackers if they see every message (and the same released models), or, given a Lipschitz constant L, shift reduction if
that is smaller. (With L < 1 it can be smaller than the number for non-adaptive gradients.) No exact or certified number
exceeds the all-messages value, since that view contains this one.

Symmetries: a permutation of the nodes that changes no map, no noise and no participation of an algorithm makes one view
of another: what a learns of u, its image learns of the image of u. Candidates come from colours: one node is told
apart, then nodes by the weights of those told apart, until each has a colour of its own. Colours come from rounded sums
and prove nothing; a candidate counts where every map, entry by entry, the noise and the masks are the same after it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check
from ..algorithms import LinearAlgorithm
from ..algorithms.round import SHAPES
from ..errors import InvalidInput, require_known
from ..floats import UNIT
from ..participation import Participation
from ..progress import Progress, reporter
from ..sensitivity.patterns import MAX_ENUMERATED, METHODS
from ..trust import TrustModel
from ..trust.knowledge import Knowledge
from ..trust.view import AlgorithmView, View
from .forms import INJECTIONS, Group, ViewGram, injection_bound, joint_grams, joint_injection_bounds, view_grams
from .forms.node_recursions import recursions
from .gram_sensitivity import Sensitivity
from .owners import Owners, Victim, checked_victim, in_order, require_nodes, require_one_owner, victim_nodes, within
from .questions import UNITS, Fingerprint
from .victim_sensitivity import (
    ALL_MESSAGES,
    SHIFT_REDUCTION,
    THE_VIEW,
    JointConditions,
    VictimSensitivity,
    added,
    is_adaptive,
    nodes_and_groups,
    pointwise_worst,
    victim_sensitivities,
)

TIGHT = 1e-10  # relative slack of an exact number, which no view that sees more could lower by more than rounding


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
        participation: default that of the algorithm; the number of a victim is for `participation.at_node(victim)`.
        release: see `TrustModel.view`.
        method: "exact" (upper and lower bound meet within 1e-6) or "certified" (fast upper bound).
        lipschitz: L for shift reduction; None: the all-messages value stands in where the view is not adaptive.
        unit: "record" or "user"; some views have an adaptive number for users alone.
        owners: which nodes may hold one record, as for `Owners`: by default its groups are victims besides the nodes.
        progress: see `mfdl.progress`; a function is called after each attacking set.

    A victim that attacks has infinite loss. Over several attacking sets (coalitions) the worst counts. For a group
    these are the sets without an owner. If every set has one, the losses of the owners are added up, unless the view of
    `TrustModel.against_owners` loses less.
    """
    owners = Owners.from_value(owners)
    check.instance(TrustModel, trust=trust)
    check.instance(LinearAlgorithm, algorithm=algorithm)
    scheme = algorithm.participation if participation is None else participation
    check.instance(Participation, participation=scheme)
    scheme.require_public()
    scheme.require_nodes(algorithm.num_nodes)
    if victims is not None and not isinstance(victims, Iterable):
        raise InvalidInput(f"victims must be a list of node indices, or None for all, got {check.brief(victims)}.")
    order = None if victims is None else list(dict.fromkeys(map(checked_victim, victims)))
    for victim in order or ():
        require_nodes(victim, algorithm.num_nodes)
    if lipschitz is not None:
        from .shift_reduction import lipschitz_factors

        lipschitz_factors(lipschitz, algorithm.num_steps)
    require_known("unit", unit, UNITS)
    require_known("method", method, METHODS)
    if order is not None:
        groups = [v for v in order if isinstance(v, tuple)]
    else:
        members = trust.members(algorithm) if owners.most > 1 else ()
        groups = owners.among(sorted({u for _, honest in members for u in honest}), algorithm.num_nodes)
    require_one_owner(unit, groups)
    wanted = None if order is None else {u for victim in order for u in victim_nodes(victim)}
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
    fingerprint = Fingerprint.from_question(algorithm, trust, scheme, "", unit, owners)
    losses = [worst[u] for u in (in_order(worst) if order is None else order)]
    of_release = {name: dataclasses.replace(fingerprint, release=name) for name in {loss.release for loss in losses}}
    return [loss.answering(of_release[loss.release]) for loss in losses]


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


def _capped(s: Sensitivity, ceiling: Sensitivity) -> Sensitivity:
    if s.squared <= ceiling.squared or math.isinf(s.squared):
        return s
    return dataclasses.replace(s, squared=ceiling.squared, exact=s.exact and ceiling.exact)


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    algorithm: LinearAlgorithm
    scheme: Participation
    release: str | None
    method: str
    lipschitz: float | Sequence[float] | None
    unit: str
    same_steps: bool = False

    def against(self, model: TrustModel, victims: list[Victim]) -> list[VictimSensitivity]:
        view = model.view(self.algorithm, victim_nodes(victims[0])[0], release=self.release)
        adaptive = non_adaptive = self.view_sensitivities(view, victims)
        holds = is_adaptive(view, self.scheme, unit=self.unit)
        rules, rests_on = [THE_VIEW] * len(victims), None
        tight = all(s.exact and (math.isinf(s.squared) or s.tolerance <= TIGHT) for s in non_adaptive)
        if not holds or not (view.knowledge.sees_all(self.algorithm) or tight):
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

    def view_sensitivities(self, view: View, victims: Sequence[Victim]) -> list[Sensitivity]:
        nodes, _ = nodes_and_groups(victims)
        joint = functools.partial(joint_grams, view)
        return victim_sensitivities(view_grams(view, nodes), joint, victims, self.conditions)

    @property
    def conditions(self) -> JointConditions:
        return JointConditions(self.scheme, self.same_steps, self.method)

    def all_messages(self, view: AlgorithmView, victims: list[Victim]) -> list[Sensitivity]:
        """The losses to the same attackers with every message seen, and with the models released that `view` holds.

        Where that is no number for adaptive gradients: with every injected sum seen, if noise enters where gradients
        do. Released models are a function of messages that all are seen, unless some are never sent; then they are
        added.
        """
        known = view.knowledge.with_all_sent(self.algorithm)
        release = "not applicable" if self.algorithm.released_by_messages else view.release
        more = AlgorithmView(self.algorithm, known, release=release, attacker=view.attacker)
        covers = known.covers(view.knowledge)
        if covers and is_adaptive(more, self.scheme, unit=self.unit):
            return self.view_sensitivities(more, victims)
        nodes, _ = nodes_and_groups(victims)
        grams, joint = injection_bound(view, nodes), functools.partial(joint_injection_bounds, view)
        if grams is None:
            why = (
                self.why_not_adaptive(more)
                if covers
                else "the view is not a function of the sent messages, so they do not bound it"
            )
            grams = [ViewGram.silent(self.algorithm.num_steps, why)] * len(nodes)
        return victim_sensitivities(grams, joint, victims, self.conditions)

    def why_not_adaptive(self, more: AlgorithmView) -> str:
        """The obstacle with all messages seen, and the way out if there is one."""
        unreleased = AlgorithmView(self.algorithm, more.knowledge, release="none", attacker=more.attacker)
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
        from . import shift_reduction
        from .shift_problem import worst_patterns

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
        squared = [(sum(roots[u] for u in victim_nodes(victim)), len(victim_nodes(victim))) for victim in victims]
        return [root**2 * (1 + 4 * count * UNIT) for root, count in squared]


class _Images:
    """Losses to single attackers; images of others under a symmetry of the algorithm are not computed anew."""

    def __init__(self, request: _Asked) -> None:
        self._request = request
        self._symmetries = Symmetries(request.algorithm, request.scheme)
        self._others: list[tuple[TrustModel, int, Knowledge, list[VictimSensitivity]]] = []

    def against(self, model: TrustModel, victims: list[Victim]) -> list[VictimSensitivity]:
        algorithm, attackers = self._request.algorithm, model.attackers(self._request.algorithm)
        if len(attackers) != 1 or not self._symmetries.possible or not model.same_for_all_victims:
            return self._request.against(model, victims)
        masks, attacker = model.knowledge(algorithm, victim_nodes(victims[0])[0]), attackers[0]
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


Nodes = NDArray[np.intp]
MAX_NODES = 400
MAX_CHOICES = 6  # nodes that are told apart by hand before a graph counts as one without symmetries that are worth it
MAX_WRONG = 4  # candidates that change something before no more are looked at
DIGITS = 9
MAX_NOISE = 2**20  # entries of N that are compared


class Symmetries:
    """Permutations that take one node to another, of one algorithm and participation."""

    def __init__(self, algorithm: LinearAlgorithm, scheme: Participation) -> None:
        self._algorithm, n = algorithm, algorithm.num_nodes
        self._orders: dict[int, Nodes | None] = {}
        self._wrong = 0
        sizes = algorithm.sizes
        blocks = all(size % n == 0 for size in sizes.values()) and algorithm.noise.columns_per_step % n == 0
        self.possible = 2 < n <= MAX_NODES and blocks and len(scheme.shared_by(range(n))) == 1
        if self.possible:
            self._weights = np.zeros((n, n))  # of at most MAX_NODES nodes
            for i, (matrix, rows, columns) in enumerate(_maps(algorithm)):
                dense = matrix.toarray().astype(np.float64).reshape(sizes[rows] // n, n, sizes[columns] // n, n)
                mixing = np.sqrt(2.0 + i + np.arange(dense.shape[0] * dense.shape[2])).reshape(dense.shape[::2])
                self._weights += np.einsum("iujv,ij->uv", dense, mixing)
            self._colours = self._refined(np.zeros(n, dtype=np.intp))

    def taking(self, first: int, second: int) -> Nodes | None:
        """pi with pi[first] = second, or None where none is found."""
        if not self.possible or self._colours[first] != self._colours[second]:
            return None
        before, after = self._order(first), self._order(second)
        if before is None or after is None:
            return None
        permutation = np.empty_like(before)
        permutation[before] = after
        if self._holds(permutation):
            return permutation
        self._wrong += 1
        self.possible = self._wrong < MAX_WRONG
        return None

    def _order(self, node: int) -> Nodes | None:
        if node not in self._orders:
            colour = np.zeros(len(self._weights), dtype=np.intp)
            chosen: int | None = node
            for _ in range(MAX_CHOICES):
                colour = self._refined(np.where(np.arange(len(colour)) == chosen, -1, colour))
                numbers, counts = np.unique(colour, return_counts=True)
                chosen = None if counts.max() == 1 else int(np.argmax(colour == numbers[counts > 1][0]))  # exact: flags
                if chosen is None:
                    break
            self._orders[node] = np.argsort(colour) if chosen is None else None  # exact: integers
        return self._orders[node]

    def _refined(self, colour: Nodes) -> Nodes:
        """Colours split by the weights of nodes of each colour, until nothing splits; numbered by what they are."""
        spread = np.cos(1.0 + np.arange(len(colour)))
        while True:
            _, colour = np.unique(colour, return_inverse=True)
            sums = np.round([self._weights @ spread[colour], self._weights.T @ spread[colour]], DIGITS)
            _, finer = np.unique(np.vstack([colour, sums]).T, axis=0, return_inverse=True)
            if finer.max() == colour.max():
                return np.asarray(colour, dtype=np.intp)
            colour = finer

    def _holds(self, permutation: Nodes) -> bool:
        algorithm, n = self._algorithm, self._algorithm.num_nodes
        sizes = {name: _lifted(permutation, size) for name, size in algorithm.sizes.items()}
        if any((matrix[sizes[rows]][:, sizes[columns]] != matrix).nnz for matrix, rows, columns in _maps(algorithm)):
            return False
        messages = sizes["messages"]
        sender, sent = algorithm.message_sender, algorithm.sent
        if (sender[messages] != permutation[sender]).any() or (sent[:, messages] != sent).any():
            return False
        noise, causal = algorithm.noise, algorithm.noise.causal
        parts = _lifted(permutation, noise.columns_per_step)
        if (algorithm.holders[parts][:, permutation] != algorithm.holders).nnz:
            return False
        if noise.local and causal is not None and causal.shared and noise.slots_per_step == n:
            return bool((causal.node_scales[permutation] == causal.node_scales).all())
        if noise.shape[0] * noise.shape[1] > MAX_NOISE:
            return False
        N = noise.matmat(np.eye(noise.shape[1]))
        N = N.reshape(noise.num_steps, noise.slots_per_step, noise.num_steps, -1)
        return bool((N[:, sizes["injection slots"]][:, :, :, parts] == N).all())


def corresponds(permutation: Nodes, masks: Knowledge, image: Knowledge) -> bool:
    """Whether one attacker knows of the images of nodes the same as another of the nodes."""
    if masks.combination is not None or image.combination is not None:
        return False
    names = ("seen", "known_gradients", "known_noise")
    pairs = ((getattr(masks, name), getattr(image, name)) for name in names)
    return all((after[:, _lifted(permutation, after.shape[1])] == before).all() for before, after in pairs)


def _maps(algorithm: LinearAlgorithm) -> list[tuple[sp.csr_array, str, str]]:
    maps: list[tuple[Any, str, str]] = [(algorithm.model_from_state, "nodes", "state")]
    for kind in algorithm.kinds:
        maps += [(getattr(kind, name), *axes) for name, axes in SHAPES.items() if getattr(kind, name) is not None]
    if algorithm.state_from_start is not None:
        maps.append((algorithm.state_from_start, "state", "nodes"))
    return maps


def _lifted(permutation: Nodes, size: int) -> Nodes:
    n = len(permutation)
    return (np.arange(size // n)[:, None] * n + permutation).ravel()

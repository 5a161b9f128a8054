"""Losses of all victims under a trust model: for gradients fixed in advance, and for adaptive ones.

Every victim gets two numbers. `sensitivity_squared` is that of the linear view, for gradients that are functions of the
data alone. `adaptive_sensitivity_squared` holds for training: the same number where `adaptivity` shows that it may;
otherwise the loss to the same attackers with every message seen (and the same models released), or, given a Lipschitz
constant L, shift reduction if that is smaller. (With L < 1 it can be smaller than the first number: local maps that
contract are a promise which gradients fixed in advance do not keep.) No exact or certified number exceeds the
all-messages value, since that view contains this one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from .. import check
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, unknown_name
from ..participation import Participation, in_every_step
from ..trust import TrustModel
from ..view import View
from .adaptive import is_adaptive, shift_reduction
from .adaptive.hidden_messages import lipschitz_factors, shift_problem
from .adaptive.shift_reduction import ShiftProblem
from .fingerprint import Fingerprint
from .forms import INJECTIONS, ViewGram, injection_bound, view_grams, with_known_gradients
from .forms.own_states import own_states
from .guarantee import UNITS
from .sensitivity import Sensitivity, sensitivities
from .sensitivity.patterns import MAX_ENUMERATED

SHIFT_REDUCTION = "shift reduction"
ALL_MESSAGES = "all messages seen"
ADAPTIVE_BY = ("the view", SHIFT_REDUCTION, ALL_MESSAGES, INJECTIONS)


@dataclasses.dataclass(frozen=True)
class VictimLoss:
    """What one victim loses, per unit record shift and unit noise.

    Attributes:
        victim: node index.
        sensitivity_squared: for gradients fixed in advance; may be inf.
        adaptive_sensitivity_squared: for gradients chosen adaptively; may be inf.
        bound: "exact" or "upper", of `sensitivity_squared`.
        adaptive: whether the first number already holds for adaptive gradients.
        adaptive_by: where the second comes from, one of ADAPTIVE_BY.
        adaptive_bound: "exact" or "upper", of the second.
        fixed: the Sensitivity behind the first number.
        attacker: who attains the first number.
        release: which final models the view holds.
        adaptive_why: what makes the second number infinite, if not the first.
        unit: "record" or "user"; fingerprint: of the question this answers.
        lipschitz: the constant that the second number, or one that it is the worst of, rests on, if any.
    """

    victim: int
    sensitivity_squared: float
    adaptive_sensitivity_squared: float
    bound: str
    adaptive: bool
    adaptive_by: str
    adaptive_bound: str
    fixed: Sensitivity
    attacker: str
    release: str
    adaptive_why: str = ""
    unit: str = "record"
    fingerprint: Fingerprint | None = None
    lipschitz: float | None = None


def victim_losses(
    algorithm: LinearAlgorithm,
    trust: TrustModel,
    *,
    victims: Sequence[int] | None = None,
    participation: Participation | None = None,
    release: str | None = None,
    method: str = "exact",
    lipschitz: float | Sequence[float] | None = None,
    unit: str = "record",
    progress: Callable[[], None] | None = None,
) -> list[VictimLoss]:
    """The losses of the given victims (default: all nodes that do not attack), in node order.

    Args:
        participation: default the algorithm's own; each victim's number is for its own one, `of_node(victim)`.
        release: see `TrustModel.view`.
        method: "exact" (upper and lower bound meet within 1e-6) or "certified" (fast upper bound).
        lipschitz: L for shift reduction; None: the all-messages value stands in where the view is not adaptive.
        unit: "record" or "user", the unit of privacy; some views have an adaptive number for users alone.
        progress: called after each attacking set.

    A victim that is asked for and attacks has infinite loss. Over several attacking sets (coalitions) the worst counts.
    """
    if not isinstance(trust, TrustModel):
        raise InvalidInput(f"trust must be a trust model such as mfdl.trust.LDP(), got {trust!r}.")
    scheme = participation or algorithm.participation
    scheme.require_nodes(algorithm.num_nodes)
    wanted = None if victims is None else {check.integer_at_least(0, victim=u) for u in victims}
    if wanted and max(wanted) >= algorithm.num_nodes:
        raise InvalidInput(f"victim must be a node index below {algorithm.num_nodes}, got {max(wanted)}.")
    if lipschitz is not None:
        lipschitz_factors(lipschitz, algorithm.num_steps)
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
    worst: dict[int, VictimLoss] = {}
    for model, asked in trust.members(algorithm):
        chosen = [u for u in asked if wanted is None or u in wanted]
        if chosen:
            for loss in _against(algorithm, model, chosen, scheme, release, method, lipschitz, unit):
                before = worst.get(loss.victim)
                worst[loss.victim] = loss if before is None else _worse(before, loss)
        if progress is not None:
            progress()
    for u in sorted((wanted or set()) - set(worst)):
        worst[u] = _attacks_itself(u, trust, release)
    if not worst:
        raise InvalidInput(f"no victim is left: {trust.attacker} leave nobody whose loss could be asked for.")
    question = Fingerprint.of(algorithm, trust, scheme, "", unit)
    return [
        dataclasses.replace(
            loss,
            unit=unit,
            fingerprint=dataclasses.replace(question, release=loss.release),
        )
        for _, loss in sorted(worst.items())
    ]


def _worse(a: VictimLoss, b: VictimLoss) -> VictimLoss:
    """The pointwise worst of two attacking sets."""
    first = max(a, b, key=lambda loss: loss.sensitivity_squared)
    second = max(a, b, key=lambda loss: loss.adaptive_sensitivity_squared)
    return dataclasses.replace(
        first,
        adaptive_sensitivity_squared=second.adaptive_sensitivity_squared,
        adaptive_by=second.adaptive_by,
        adaptive_bound=second.adaptive_bound,
        adaptive=a.adaptive and b.adaptive,
        adaptive_why=second.adaptive_why or second.fixed.why,
        lipschitz=b.lipschitz if a.lipschitz is None else a.lipschitz,
    )


def _attacks_itself(victim: int, trust: TrustModel, release: str | None) -> VictimLoss:
    why = "the victim is one of the attackers"
    infinite = Sensitivity(math.inf, True, (), victim, 0.0, math.inf, why)
    shown = trust.default_release if release is None else release
    return VictimLoss(victim, math.inf, math.inf, "exact", True, "the view", "exact", infinite, trust.attacker, shown)


def _against(
    algorithm: LinearAlgorithm,
    model: TrustModel,
    victims: list[int],
    scheme: Participation,
    release: str | None,
    method: str,
    lipschitz: float | Sequence[float] | None,
    unit: str,
) -> list[VictimLoss]:
    view = model.view(algorithm, victims[0], release=release)
    fixed = _of_victims(view_grams(view, victims), victims, scheme, method)
    adaptive = is_adaptive(view, scheme, unit=unit)
    hidden = model.default_release != "not applicable"
    if adaptive and not hidden:
        return [_loss(s, s.squared, s.exact, "the view", model, view, adaptive) for s in fixed]
    ceiling = _all_messages(algorithm, model, view, victims, scheme, method, unit)
    fixed = [_capped(s, c) for s, c in zip(fixed, ceiling, strict=True)]
    if adaptive:
        return [_loss(s, s.squared, s.exact, "the view", model, view, adaptive) for s in fixed]
    held = [  # of this view only an upper bound
        (c.squared, False, INJECTIONS if c.form == INJECTIONS else ALL_MESSAGES, c.why) for c in ceiling
    ]
    if lipschitz is not None:
        shifted = _shift_reduction(view, victims, scheme, lipschitz)
        held = [(s, False, SHIFT_REDUCTION, "") if s < h[0] else h for s, h in zip(shifted, held, strict=True)]
    found = [
        _loss(s, value, exact, by, model, view, adaptive, why)
        for s, (value, exact, by, why) in zip(fixed, held, strict=True)
    ]
    largest = None if lipschitz is None else float(np.max(lipschitz))
    return [dataclasses.replace(x, lipschitz=largest) if x.adaptive_by == SHIFT_REDUCTION else x for x in found]


def _of_victims(
    grams: Sequence[ViewGram], victims: Sequence[int], scheme: Participation, method: str
) -> list[Sensitivity]:
    """`sensitivities` of the victims, each under the participation of its own records."""
    gram_of = dict(zip(victims, grams, strict=True))
    found: dict[int, Sensitivity] = {}
    for own, nodes in scheme.shared_by(victims):
        found |= zip(nodes, sensitivities([gram_of[u] for u in nodes], own, nodes=nodes, method=method), strict=True)
    return [found[u] for u in victims]


def _loss(
    fixed: Sensitivity,
    adaptive_squared: float,
    exact: bool,
    by: str,
    model: TrustModel,
    view: View,
    adaptive: bool,
    why: str = "",
) -> VictimLoss:
    return VictimLoss(
        victim=fixed.node,
        sensitivity_squared=fixed.squared,
        adaptive_sensitivity_squared=adaptive_squared,
        bound="exact" if fixed.exact else "upper",
        adaptive=adaptive,
        adaptive_by=by,
        adaptive_bound="exact" if exact else "upper",
        fixed=fixed,
        attacker=model.attacker,
        release=view.release,
        adaptive_why=why,
    )


def _capped(s: Sensitivity, ceiling: Sensitivity) -> Sensitivity:
    """An upper bound never above that of the view that sees more."""
    if s.squared <= ceiling.squared or math.isinf(s.squared):
        return s
    return dataclasses.replace(s, squared=ceiling.squared, exact=s.exact and ceiling.exact)


def _all_messages(
    algorithm: LinearAlgorithm,
    model: TrustModel,
    view: View,
    victims: list[int],
    scheme: Participation,
    method: str,
    unit: str,
) -> list[Sensitivity]:
    """The losses to the same attackers with every message seen, and with the models released that `view` holds.

    Where that is no number for adaptive gradients: with every injected sum seen, if noise enters where gradients do.
    Released models are a function of messages that all are seen, unless some are never sent; then they are asked for.
    """
    more = model.all_messages().view(algorithm, victims[0], release=view.release)
    assert more.knowledge is not None
    assert view.knowledge is not None
    covers = more.knowledge.covers(view.knowledge)
    if covers and is_adaptive(more, scheme, unit=unit):
        return _of_victims(view_grams(more, victims), victims, scheme, method)
    bound = injection_bound(algorithm, view.knowledge, victims)
    if bound is not None:
        known = [with_known_gradients(view, u, gram) for u, gram in zip(victims, bound, strict=True)]
        return _of_victims(known, victims, scheme, method)
    why = (
        _why_not_adaptive(algorithm, more, scheme, unit)
        if covers
        else "what it shows is no function of the messages that are sent, so those do not bound it"
    )
    infinite = ViewGram(np.ones(algorithm.num_steps), np.zeros(algorithm.num_steps), math.inf, why=why)
    return _of_victims([infinite] * len(victims), victims, scheme, method)


def _why_not_adaptive(algorithm: LinearAlgorithm, more: View, scheme: Participation, unit: str) -> str:
    """What stands in the way with all messages seen, and the way out if there is one."""
    assert more.knowledge is not None
    unreleased = View.of(algorithm, more.knowledge, release="none", attacker=more.attacker)
    if own_states(unreleased) is None:
        return "even with every message seen, some gradient depends on noise that is not"
    if more.release not in ("none", "not applicable"):
        cause = "messages that are never sent enter the models, and no number for training covers released models then"
    else:
        cause = (
            "messages that are never sent enter the models, so a node's model depends on its own earlier gradients "
            "even for one who sees all that are sent, and a record moves the gradients of the node's other records"
        )
    covered = unit == "user" and in_every_step(scheme)
    needed = [] if covered else [f"unit='user' with EveryStep({scheme.num_steps})"]
    return f"{cause}; what can be accounted is {' and '.join([*needed, 'release=' + repr('none')])}"


def _shift_reduction(
    view: View, victims: list[int], scheme: Participation, lipschitz: float | Sequence[float]
) -> list[float]:
    problem = shift_problem(view, lipschitz)
    found: dict[int, float] = {}
    for own, nodes in scheme.shared_by(victims):
        found |= zip(nodes, _shifts_of_nodes(view, problem, nodes, own), strict=True)
    return [found[u] for u in victims]


def _shifts_of_nodes(view: View, problem: ShiftProblem, nodes: list[int], own: Participation) -> list[float]:
    """Shift reduction of nodes that share a participation."""
    if own.num_patterns <= MAX_ENUMERATED:
        patterns = [tuple(int(t) for t in pattern) for pattern in own.patterns()]
    else:  # a record that joins every step needs shifts at least as large as one that joins some
        patterns = [tuple(range(problem.num_steps))]
    found = shift_reduction.solve(problem, nodes, patterns)
    moved = np.zeros(problem.num_steps, dtype=bool)
    moved[[t for pattern in patterns for t in pattern]] = True
    return [  # a gradient that the attacker knows and the record moves is seen as it is, whatever the models
        math.inf if view.known_gradients[moved, u].any() else float(row.max())
        for u, row in zip(nodes, found.sensitivity_squared, strict=True)
    ]


def worst_adaptive(losses: Sequence[VictimLoss]) -> Sensitivity:
    """The largest adaptive number as a Sensitivity: what calibration and training use."""
    worst = max(losses, key=lambda loss: loss.adaptive_sensitivity_squared)
    if worst.adaptive:
        return worst.fixed
    return dataclasses.replace(
        worst.fixed,
        squared=worst.adaptive_sensitivity_squared,
        exact=worst.adaptive_bound == "exact",
        form=worst.adaptive_by,
        why=worst.adaptive_why,
    )

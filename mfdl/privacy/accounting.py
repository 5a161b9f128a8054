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
from ..view import AlgorithmView, View
from . import gaussian
from .adaptive import is_adaptive, shift_reduction
from .adaptive.hidden_messages import lipschitz_factors, shift_problem
from .adaptive.shift_problem import ShiftProblem
from .fingerprint import Fingerprint
from .forms import INJECTIONS, ViewGram, injection_bound, view_grams
from .forms.recursions import recursions
from .guarantee import UNITS
from .sensitivity import Sensitivity, sensitivities
from .sensitivity.patterns import MAX_ENUMERATED

THE_VIEW = "the view"
SHIFT_REDUCTION = "shift reduction"
ALL_MESSAGES = "all messages seen"
ADAPTIVE_BY = (THE_VIEW, SHIFT_REDUCTION, ALL_MESSAGES, INJECTIONS)


@dataclasses.dataclass(frozen=True)
class VictimLoss:
    """What one victim loses, per unit record shift and unit noise: two sensitivities, and what they are about.

    Attributes:
        fixed: for gradients fixed in advance; trained: for gradients chosen adaptively. Either may be infinite.
        adaptive: whether the first already holds for adaptive gradients.
        adaptive_by: where the second comes from, one of ADAPTIVE_BY.
        attacker: who attains the first number; release: which final models the view holds.
        unit: "record" or "user"; fingerprint: of the question this answers; a copy with other fields has none.
        lipschitz: the constant that the second number, or one that it is the worst of, rests on, if any.
    """

    fixed: Sensitivity
    trained: Sensitivity
    adaptive: bool
    adaptive_by: str
    attacker: str
    release: str
    unit: str = "record"
    fingerprint: Fingerprint | None = dataclasses.field(default=None, init=False)
    lipschitz: float | None = None

    def _answering(self, question: Fingerprint) -> VictimLoss:
        answer = dataclasses.replace(self, unit=question.unit)
        object.__setattr__(answer, "fingerprint", dataclasses.replace(question, release=self.release))
        return answer

    @property
    def victim(self) -> int:
        """Node index."""
        return self.fixed.node

    @property
    def sensitivity_squared(self) -> float:
        """For gradients fixed in advance; may be inf."""
        return self.fixed.squared

    @property
    def adaptive_sensitivity_squared(self) -> float:
        """For gradients chosen adaptively; may be inf."""
        return self.trained.squared

    @property
    def bound(self) -> str:
        """ "exact" or "upper", of `sensitivity_squared`."""
        return self.fixed.bound

    @property
    def adaptive_bound(self) -> str:
        """ "exact" or "upper", of `adaptive_sensitivity_squared`."""
        return self.trained.bound

    @property
    def adaptive_why(self) -> str:
        """What makes the second number infinite, if not the first."""
        return "" if self.adaptive else self.trained.why

    def held(self, *, adaptive: bool = True) -> Sensitivity:
        """The number that holds for training, or that for gradients fixed in advance."""
        return self.trained if adaptive else self.fixed

    def mu(self, *, record_shift: float, noise_std: float, adaptive: bool = True) -> float:
        """The Gaussian DP parameter, rounded up; inf without noise."""
        return gaussian.mu_from_noise_std(self.held(adaptive=adaptive).value, record_shift, noise_std)


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
    return [loss._answering(question) for _, loss in sorted(worst.items())]


def _worse(a: VictimLoss, b: VictimLoss) -> VictimLoss:
    """The pointwise worst of two attacking sets."""
    first = max(a, b, key=lambda loss: loss.sensitivity_squared)
    second = max(a, b, key=lambda loss: loss.adaptive_sensitivity_squared)
    return dataclasses.replace(
        first,
        trained=second.trained,
        adaptive_by=second.adaptive_by,
        adaptive=a.adaptive and b.adaptive,
        lipschitz=b.lipschitz if a.lipschitz is None else a.lipschitz,
    )


def _attacks_itself(victim: int, trust: TrustModel, release: str | None) -> VictimLoss:
    infinite = Sensitivity(math.inf, True, (), victim, 0.0, math.inf, "the victim is one of the attackers")
    shown = trust.default_release if release is None else release
    return VictimLoss(infinite, infinite, True, THE_VIEW, trust.attacker, shown)


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
    trained = [(s, THE_VIEW) for s in fixed]
    if not adaptive or model.default_release != "not applicable":
        ceiling = _all_messages(algorithm, model, view, victims, scheme, method, unit)
        fixed = [_capped(s, c) for s, c in zip(fixed, ceiling, strict=True)]
        trained = [(s, THE_VIEW) for s in fixed]
        if not adaptive:  # of this view only an upper bound
            trained = [(_upper(s, c, by), by) for s, c in zip(fixed, ceiling, strict=True) for by in (_rule_of(c),)]
    largest = None
    if not adaptive and lipschitz is not None:
        shifts = _shift_reduction(view, victims, scheme, lipschitz)
        largest = float(np.max(lipschitz))
        trained = [
            (dataclasses.replace(t, squared=x, exact=False, form=SHIFT_REDUCTION, why=""), SHIFT_REDUCTION)
            if x < t.squared
            else (t, by)
            for x, (t, by) in zip(shifts, trained, strict=True)
        ]
    return [
        VictimLoss(
            s, t, adaptive, by, model.attacker, view.release, lipschitz=largest if by == SHIFT_REDUCTION else None
        )
        for s, (t, by) in zip(fixed, trained, strict=True)
    ]


def _rule_of(ceiling: Sensitivity) -> str:
    return INJECTIONS if ceiling.form == INJECTIONS else ALL_MESSAGES


def _upper(fixed: Sensitivity, ceiling: Sensitivity, by: str) -> Sensitivity:
    """The ceiling as an upper bound on what the view of `fixed` shows."""
    return dataclasses.replace(fixed, squared=ceiling.squared, exact=False, lower=0.0, form=by, why=ceiling.why)


def _of_victims(
    grams: Sequence[ViewGram], victims: Sequence[int], scheme: Participation, method: str
) -> list[Sensitivity]:
    """`sensitivities` of the victims, each under the participation of its own records."""
    gram_of = dict(zip(victims, grams, strict=True))
    found: dict[int, Sensitivity] = {}
    for own, nodes in scheme.shared_by(victims):
        found |= zip(nodes, sensitivities([gram_of[u] for u in nodes], own, nodes=nodes, method=method), strict=True)
    return [found[u] for u in victims]


def _capped(s: Sensitivity, ceiling: Sensitivity) -> Sensitivity:
    """An upper bound never above that of the view that sees more."""
    if s.squared <= ceiling.squared or math.isinf(s.squared):
        return s
    return dataclasses.replace(s, squared=ceiling.squared, exact=s.exact and ceiling.exact)


def _all_messages(
    algorithm: LinearAlgorithm,
    model: TrustModel,
    view: AlgorithmView,
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
    covers = more.knowledge.covers(view.knowledge)
    if covers and is_adaptive(more, scheme, unit=unit):
        return _of_victims(view_grams(more, victims), victims, scheme, method)
    if (bound := injection_bound(view, victims)) is not None:
        return _of_victims(bound, victims, scheme, method)
    why = (
        _why_not_adaptive(algorithm, more, scheme, unit)
        if covers
        else "what it shows is no function of the messages that are sent, so those do not bound it"
    )
    return _of_victims([ViewGram.silent(algorithm.num_steps, why)] * len(victims), victims, scheme, method)


def _why_not_adaptive(algorithm: LinearAlgorithm, more: AlgorithmView, scheme: Participation, unit: str) -> str:
    """What stands in the way with all messages seen, and the way out if there is one."""
    unreleased = View.of(algorithm, more.knowledge, release="none", attacker=more.attacker)
    if recursions(unreleased) is None:
        return "even with every message seen, some gradient depends on noise that is not"
    if not more.unreleased:
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
    return max((loss.trained for loss in losses), key=lambda s: s.squared)

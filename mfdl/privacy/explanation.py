"""Why a number is what it is, in words: the rule that gave an upper bound or none, and what would give a better one."""

from __future__ import annotations

import math

from .accounting import ALL_MESSAGES, SHIFT_REDUCTION, VictimLoss
from .forms import INJECTIONS

_RULES = {
    ALL_MESSAGES: """gradients depend on noise that this attacker does not see, so the number is that of the same
        attackers with every message seen. For plain gossip whose local maps have a public Lipschitz constant,
        lipschitz=L can give a smaller one by shift reduction""",
    INJECTIONS: """even with every message seen, gradients depend on noise that is not, so every injected sum (gradient
        plus noise) counts as seen. Messages that determine these sums would make it exact""",
    SHIFT_REDUCTION: """messages are hidden and gradients chosen adaptively, so this is what shift reduction gives for
        the Lipschitz constant given. A smaller constant gives a smaller one""",
}


def explanation(loss: VictimLoss, *, adaptive: bool = True, whose: str = "") -> str:
    """One or two sentences on a victim's number, for adaptive gradients or for gradients fixed in advance.

    Empty where the number is exact. Args: whose: the victim in words, named where the number is infinite.
    """
    own = loss.fixed
    squared = loss.adaptive_sensitivity_squared if adaptive else loss.sensitivity_squared
    if math.isinf(squared):
        reason = (adaptive and loss.adaptive_why) or own.why or "no rule covers this view"
        return f"No finite number: {reason}{whose and f' ({whose})'}."
    if (loss.adaptive_bound if adaptive else loss.bound) == "exact":
        return ""
    if not adaptive or loss.adaptive:
        return f"Upper bound: {own.why}." if own.why else ""
    fixed = ""
    if loss.sensitivity_squared < squared:
        share = math.sqrt(loss.sensitivity_squared / squared)
        fixed = f"; for gradients fixed in advance mu is {share:.3g} times that"
    rule = _RULES.get(loss.adaptive_by) or loss.adaptive_why or "bounds do not meet"
    return f"Upper bound: {' '.join(rule.split())}{fixed}."

"""Learning rates that fall as published experiments have it, by name: constant, inverse-time:T0, inverse-sqrt."""

from __future__ import annotations

import numpy as np

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, require_known

SCHEDULES = ("constant", "inverse-time", "inverse-sqrt")


def schedule(rule: str, first_rate: float, num_steps: int) -> float | FloatArray:
    """The learning rates that a rule names, for `Dynamics`: public, and the first one is `first_rate` under every rule.

    >>> schedule("inverse-time:2", 0.6, 3), schedule("inverse-sqrt", 0.6, 4)[3], schedule("constant", 0.6, 3)
    (array([0.6, 0.4, 0.3]), np.float64(0.3), 0.6)

    Args:
        rule: with t = 0 at the first step "constant", first_rate; "inverse-time:T0", first_rate / (1 + t / T0), T0 > 0
            steps; "inverse-sqrt", first_rate / sqrt(t + 1).
        num_steps: T.

    Returns: one number for "constant", else shape (T,).
    Raises: InvalidInput: another rule, or T0 no number > 0.
    Source: eta / (1 + t / 5000) the a9a experiment of arXiv:2405.01031's code; eta_1 / sqrt(t), t = 1, ..., T, the
        quadratic one of arXiv:2501.14644v2.
    """
    name, colon, scale = str(rule).partition(":")
    require_known("learning rate schedule", name, SCHEDULES)
    first_rate, num_steps = check.positive(first_rate=first_rate), check.integer_at_least(1, num_steps=num_steps)
    if bool(colon) != (name == "inverse-time"):
        form = "inverse-time:T0, T0 the steps after which the rate is half" if not colon else name
        raise InvalidInput(f"learning rate schedule {name} is written {form}, got {rule!r}.")
    if name == "constant":
        return first_rate
    step = np.arange(num_steps)
    if name == "inverse-sqrt":
        return np.asarray(first_rate / np.sqrt(step + 1.0))
    try:
        steps = check.positive(T0=float(scale))
    except ValueError:
        raise InvalidInput(f"T0 of learning rate schedule inverse-time must be a number > 0, got {scale!r}.") from None
    return np.asarray(first_rate / (1 + step / steps))

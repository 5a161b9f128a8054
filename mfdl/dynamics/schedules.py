"""Learning rates that fall as published experiments have it, by name: constant, inverse-time:T0, inverse-sqrt."""

from __future__ import annotations

import numpy as np

from .. import check
from ..check import FloatArray
from ..spec import Entry, Registry

SCHEDULES: Registry[Entry] = Registry("learning rate schedule", supplied=("first_rate", "num_steps"), by_position=True)
"""Functions to the rates of all steps, by name; `first_rate` is the rate at t = 0, `num_steps` is T."""


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
    first_rate, num_steps = check.positive(first_rate=first_rate), check.integer_at_least(1, num_steps=num_steps)
    rates: float | FloatArray = SCHEDULES.make(str(rule), first_rate=first_rate, num_steps=num_steps)
    return rates


@SCHEDULES.register()
def constant(first_rate: float) -> float:
    """The first rate at every step."""
    return first_rate


@SCHEDULES.register(example="inverse-time:5000")
def inverse_time(first_rate: float, num_steps: int, T0: float) -> FloatArray:
    """The first rate over 1 + t / T0: half of it after T0 steps."""
    steps = check.positive(T0=T0)
    return np.asarray(first_rate / (1 + np.arange(num_steps) / steps))


@SCHEDULES.register()
def inverse_sqrt(first_rate: float, num_steps: int) -> FloatArray:
    """The first rate over sqrt(t + 1)."""
    return np.asarray(first_rate / np.sqrt(np.arange(num_steps) + 1.0))

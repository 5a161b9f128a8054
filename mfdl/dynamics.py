"""Dynamics: how models move. ErrorWeights: which models count. Error Gram = f(Dynamics, ErrorWeights).

`Dynamics` is the one place where step sizes live: the executor, the accountant and the error Gram read
them here. One training step is

    theta_{t+1} = W_t (theta_t - eta_t (gradients_t + injected noise_t)).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from . import check
from .check import FloatArray
from .errors import InvalidInput
from .gossip import Gossip

# Beyond it the accountants' rank tests in float64 could take what a small step adds for rounding, which starts at 1e13.
MAX_RATE_RATIO = 1e6


@dataclasses.dataclass(frozen=True, eq=False)
class Dynamics:
    """Gossip and step size.

    Attributes:
        gossip: the averaging matrix, constant or one per step.
        learning_rate: eta > 0, the same at every step, or a schedule: one eta_t > 0 per step, shape (T,), kept as
            an own read-only array; the largest at most MAX_RATE_RATIO times the smallest. Step sizes are public
            constants, chosen before training.
        gossip_rounds: K >= 1 averaging rounds per gradient step; round j of step t uses gossip.at(t K + j).

    Raises: InvalidInput: a rate that is not a finite number > 0, a schedule that is empty or spans too much, K < 1.
    """

    gossip: Gossip
    learning_rate: float | Sequence[float] | FloatArray = 1.0
    gossip_rounds: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "gossip_rounds", check.integer_at_least(1, gossip_rounds=self.gossip_rounds))
        object.__setattr__(self, "learning_rate", _checked_rate(self.learning_rate))

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.gossip.num_nodes

    def step_weights(self, step: int) -> sp.csr_array:
        """The averaging of one whole step: the product of its K matrices, csr (n, n)."""
        first = step * self.gossip_rounds
        total = self.gossip.at(first).weights
        for later in range(first + 1, first + self.gossip_rounds):
            total = self.gossip.at(later).weights @ total
        return sp.csr_array(total)

    def learning_rates(self, num_steps: int) -> FloatArray:
        """eta_t for t < num_steps, shape (num_steps,), an own array.

        >>> from mfdl import gossip
        >>> Dynamics(gossip.metropolis_hastings("ring:n=4"), 1 / np.sqrt([1, 4, 16])).learning_rates(3)
        array([1.  , 0.5 , 0.25])

        Raises: InvalidInput: a schedule of another length than num_steps.
        """
        rate = self.learning_rate
        if isinstance(rate, float):
            return np.full(num_steps, rate)
        if len(rate) != num_steps:
            raise InvalidInput(
                f"learning_rate must be one number or one for each of {num_steps} steps, got a schedule of "
                f"{len(rate)}; give as many rates as there are steps."
            )
        return np.array(rate)

    def relative_rates(self, num_steps: int) -> FloatArray:
        """eta_t / eta_0, shape (num_steps,): all ones for a constant rate. Errors are stated in units of eta_0."""
        rates = self.learning_rates(num_steps)
        return rates / rates[:1]


def _checked_rate(rate: object) -> float | FloatArray:
    try:
        one_number = np.ndim(rate) == 0  # type: ignore[arg-type]
    except ValueError:  # a ragged list
        one_number = False
    if one_number:
        return check.positive(learning_rate=rate)
    schedule = check.finite_array(1, learning_rate=rate)
    if schedule.size == 0:
        raise InvalidInput("learning_rate must hold one number > 0 per step, got an empty schedule.")
    if (schedule <= 0).any():
        step = int(np.argmax(schedule <= 0))
        raise InvalidInput(f"learning_rate must be a finite number > 0 at every step, got {schedule[step]} at {step}.")
    if schedule.max() > MAX_RATE_RATIO * schedule.min():
        raise InvalidInput(
            f"learning_rate must not span more than a factor {MAX_RATE_RATIO:g}, got {schedule.min():g} to "
            f"{schedule.max():g}: smaller steps cannot be told from rounding where privacy is accounted; raise the "
            "smallest rate, or end training earlier."
        )
    schedule.setflags(write=False)
    return schedule


@dataclasses.dataclass(frozen=True)
class ErrorWeights:
    """Which models the error counts: here every node's model at every step, alike."""

    def step_weights(self, num_steps: int) -> FloatArray:
        """Weight of the model of each step, shape (num_steps,)."""
        return np.ones(num_steps)

"""Dynamics: how models move, the one place where step sizes live. The executor, the accountant and the error Gram read
them here. One training step is, for every node at once,

    v_{t+1} = momentum v_t + (gradients_t + injected noise_t)
    theta_{t+1} = W_t ((1 - eta_t weight_decay) theta_t - eta_t v_{t+1}),

v the buffer that each node keeps to itself. `ErrorWeights` says which of these models count.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnusualSetting
from ..gossip import Gossip
from ..shown import short_repr
from ..storable import storable

# Beyond it the accountants' rank tests in float64 could take what a small step adds for rounding, which starts at 1e13.
MAX_RATE_RATIO = 1e6
MAX_RATE = 1e6  # far beyond any that trains: models would be nothing but rounding


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class Dynamics:
    """Gossip, step sizes, momentum and weight decay.

    Attributes:
        gossip: the averaging matrix, constant or one per step.
        learning_rate: 0 < eta <= MAX_RATE, the same at every step, or a schedule: one eta_t per step, shape (T,), kept
            as an own read-only array; the largest at most MAX_RATE_RATIO times the smallest. Step sizes are public
            constants, chosen before training.
        gossip_rounds: K >= 1 averaging rounds per gradient step; round j of step t uses gossip.at(t K + j).
        momentum: 0 <= beta < 1 (heavy ball); the buffer is local and never sent.
        weight_decay: lambda >= 0, outside of clipping; eta_t lambda < 1 at every step.

    Momentum and decay change what noise costs and what hidden messages hide; where every message is seen the privacy
    of a mechanism does not depend on them.

    Raises: InvalidInput: a rate that is not a finite number > 0, a schedule that is empty or spans too much, K < 1,
        momentum outside [0, 1), a decay that is negative or turns models round.
    """

    __repr__ = short_repr

    gossip: Gossip
    learning_rate: float | Sequence[float] | FloatArray = 1.0
    gossip_rounds: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check.instance(Gossip, gossip=self.gossip)
        object.__setattr__(self, "gossip_rounds", check.integer_at_least(1, gossip_rounds=self.gossip_rounds))
        object.__setattr__(self, "learning_rate", _checked_rate(self.learning_rate))
        momentum = check.non_negative(momentum=self.momentum)
        if momentum >= 1:
            raise InvalidInput(f"momentum must lie in [0, 1), got {momentum:g}: the buffer would never forget.")
        decay = check.non_negative(weight_decay=self.weight_decay)
        largest = float(np.max(self.learning_rate))
        if decay * largest >= 1:
            raise InvalidInput(
                f"weight_decay times the largest learning rate must be below 1, got {decay:g} * {largest:g}: models "
                "would change sign; lower one of them."
            )
        object.__setattr__(self, "momentum", momentum)
        object.__setattr__(self, "weight_decay", decay)
        if self.num_nodes > 1 and self.gossip.is_identity:
            warnings.warn(
                f"gossip {self.gossip.name!r} is the identity matrix on its {self.num_nodes} nodes: nodes never "
                "average, so each trains alone; give edges positive weight, e.g. by "
                "mfdl.gossip.metropolis_hastings(graph).",
                UnusualSetting,
                stacklevel=4,
            )

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.gossip.num_nodes

    def step_weights(self, step: int) -> sp.csr_array:
        """The averaging of one whole step: the product of its K matrices, csr (n, n)."""
        first = check.integer_at_least(0, step=step) * self.gossip_rounds
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
        rate, num_steps = self.learning_rate, check.integer_at_least(0, num_steps=num_steps)
        if isinstance(rate, float):
            return np.full(num_steps, rate)
        if len(rate) != num_steps:
            raise InvalidInput(
                f"learning_rate must be one number or one for each of {num_steps} steps, got a schedule of "
                f"{len(rate)}; give as many rates as there are steps."
            )
        return np.array(rate)

    def shrink_factors(self, num_steps: int) -> FloatArray:
        """1 - eta_t weight_decay, shape (num_steps,): what a model keeps of itself in a step."""
        return 1.0 - self.weight_decay * self.learning_rates(num_steps)

    @property
    def is_plain(self) -> bool:
        """Without momentum and weight decay."""
        return self.momentum == 0.0 and self.weight_decay == 0.0

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
        number = check.positive(learning_rate=rate)
        _require_rate(number)
        return number
    schedule = check.finite_array(1, learning_rate=rate)
    if schedule.size == 0:
        raise InvalidInput("learning_rate must hold one number > 0 per step, got an empty schedule.")
    if (schedule <= 0).any():
        step = int(np.argmax(schedule <= 0))
        raise InvalidInput(f"learning_rate must be a finite number > 0 at every step, got {schedule[step]} at {step}.")
    _require_rate(float(schedule.max()))
    if schedule.max() > MAX_RATE_RATIO * schedule.min():
        raise InvalidInput(
            f"learning_rate must not span more than a factor {MAX_RATE_RATIO:g}, got {schedule.min():g} to "
            f"{schedule.max():g}: smaller steps cannot be told from rounding where privacy is accounted; raise the "
            "smallest rate, or end training earlier."
        )
    schedule.setflags(write=False)
    return schedule


def _require_rate(largest: float) -> None:
    if not largest <= MAX_RATE:
        raise InvalidInput(
            f"learning_rate must be at most {MAX_RATE:g}, got {largest:g}; no model trains at such steps."
        )

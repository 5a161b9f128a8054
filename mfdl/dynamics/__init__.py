"""Dynamics: how models move, their rounds as sparse maps, learning rates by name, and how injections propagate.

Step sizes live here alone. One training step is, for every node at once,

    v_{t+1} = momentum v_t + (gradients_t + injected noise_t)
    theta_{t+1} = W_t ((1 - eta_t weight_decay) theta_t - eta_t v_{t+1}),

v the local buffer of each node. In units of the first learning rate, with c_t = 1 - eta_t weight_decay and rho_t =
eta_t / eta_0, unit injections x propagate (`responses`; `cost_to_go` sums their cost over later models) by

    v_{t+1} = momentum v_t + x_t,   mu_t = c_t theta_t + rho_t v_{t+1},   theta_{t+1} = W_t mu_t,

mu the messages. W_t is an `Averaging`: sparse over nodes, one number per mode over the modes of constant gossip.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check, matrices
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput, UnusualSetting, require_known
from ..gossip import Gossip
from ..operators import RecursionMaps
from ..spec import Entry, Registry, storable
from . import polynomials
from .polynomials import POLYNOMIALS, POWERS

__all__ = ["SCHEDULES", "Dynamics", "schedule"]

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
        polynomial: p of degree K with p(1) = 1, the averaging of a step is p(W): "powers", W^K; for one symmetric,
            connected matrix also "least-noise", which leaves least noise in the models, and "chebyshev", whose largest
            modulus on the interval of the other eigenvalues is least. Round j averages with (W - r_j I) / (1 - r_j),
            r_j = `shifts[j]` the roots of p: with the same neighbours, and a node's own model may weigh less than 0.

    Momentum and decay change the cost of noise, and the privacy of hidden messages; if every message is seen, the
    privacy of a mechanism does not depend on them.

    Raises: InvalidInput: a rate that is not a finite number > 0, a schedule that is empty or spans too much, K < 1,
        momentum outside [0, 1), a decay that is negative or reverses the sign of models.
    """

    __repr__ = short_repr

    gossip: Gossip
    learning_rate: float | Sequence[float] | FloatArray = 1.0
    gossip_rounds: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    polynomial: str = POWERS

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
        require_known("polynomial", self.polynomial, POLYNOMIALS)
        if self.polynomial != POWERS:
            polynomials.require_one_symmetric_matrix(self.polynomial, self.gossip)
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
        return self.gossip.num_nodes

    @functools.cached_property
    def shifts(self) -> tuple[float, ...]:
        """r_j of each round of a step, K numbers below 1: zeros for powers, else in an order whose products stay small.

        >>> from mfdl import gossip
        >>> ring = gossip.metropolis_hastings("ring:n=16")
        >>> [round(r, 3) for r in Dynamics(ring, gossip_rounds=3, polynomial="chebyshev").shifts]
        [-0.247, 0.863, 0.308]
        """
        if self.polynomial == POWERS:
            return (0.0,) * self.gossip_rounds
        return polynomials.roots(self.polynomial, self.gossip.at(0), self.gossip_rounds)

    @functools.cached_property
    def _shifted(self) -> tuple[sp.csr_array, ...]:
        return tuple(polynomials.shifted(self.gossip.at(0).weights, shift) for shift in self.shifts)

    @property
    def has_one_round(self) -> bool:
        """Whether the averaging of step t is `gossip.at(t)`."""
        return self.gossip_rounds == 1 and self.polynomial == POWERS

    def round_weights(self, number: int) -> sp.csr_array:
        """The averaging of one round, csr (n, n), rows sum to 1: round j of step t has the number t K + j."""
        if self.polynomial == POWERS:
            return self.gossip.at(number).weights
        return self._shifted[number % self.gossip_rounds]

    def step_weights(self, step: int) -> sp.csr_array:
        """The averaging of one whole step: the product of its K matrices, csr (n, n)."""
        first = check.integer_at_least(0, step=step) * self.gossip_rounds
        total = self.round_weights(first)
        for later in range(first + 1, first + self.gossip_rounds):
            total = self.round_weights(later) @ total
        return sp.csr_array(total)

    def step_eigenvalues(self, eigenvalues: FloatArray) -> FloatArray:
        """Eigenvalues p(lambda) of a whole step, from those of constant W."""
        if self.polynomial == POWERS:
            return np.asarray(eigenvalues**self.gossip_rounds)
        return polynomials.values(eigenvalues, self.shifts)

    def learning_rates(self, num_steps: int) -> FloatArray:
        """eta_t for t < num_steps, shape (num_steps,), an own array.

        Raises: InvalidInput: a schedule of another length than num_steps.

        >>> from mfdl import gossip
        >>> Dynamics(gossip.metropolis_hastings("ring:n=4"), 1 / np.sqrt([1, 4, 16])).learning_rates(3)
        array([1.  , 0.5 , 0.25])
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
        step = int(np.argmax(schedule <= 0))  # exact: booleans
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


class PlainRounds:
    """The rounds of `dynamics` as sparse maps; gradients and noise enter by the same maps.

    The state is the models, followed by the buffers if there is momentum; `model_from_state` is M, csr (n, state).
    """

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics = dynamics
        n, beta = dynamics.num_nodes, dynamics.momentum
        eye, zero = matrices.sparse_matrix(eye=sp.eye_array(n)), sp.csr_array((n, n))
        self._eye, self._buffers = eye, beta > 0
        self._both = matrices.sparse_matrix(both=sp.hstack([eye, eye]))
        self.model_from_state = matrices.sparse_matrix(models=sp.hstack([eye, zero]) if self._buffers else eye)

        def stacked(parts: list[sp.csr_array]) -> sp.csr_array:
            return matrices.sparse_matrix(parts=sp.vstack(parts))

        self._entering = matrices.once(lambda m: eye if m is None else matrices.with_entries(eye, 1 / m))
        self._to_models = matrices.once(lambda weights: stacked([weights, zero]))
        self._to_buffers = matrices.once(lambda entering: stacked([zero, entering]))
        self._decayed = matrices.once(
            lambda step: matrices.sparse_matrix(decayed=sp.block_diag([zero, beta * eye if step else eye]))
        )

    def schedule(self, num_steps: int) -> list[tuple[int, sp.csr_array, float]]:
        """(gradient step or -1, averaging matrix, learning rate or 0) of every round: K for each step."""
        K, at = self.dynamics.gossip_rounds, self.dynamics.round_weights
        rates = self.dynamics.learning_rates(num_steps).tolist()
        return [
            (t, at(t * K), rate) if j == 0 else (-1, at(t * K + j), 0.0)
            for t, rate in enumerate(rates)
            for j in range(K)
        ]

    def step_maps(self, weights: sp.csr_array, rate: float, divisors: FloatArray | None = None) -> RecursionMaps:
        """A gradient step of the given rate followed by averaging; averaging alone at rate 0. divisors: m_u, (n,)."""
        n, decay, beta = self.dynamics.num_nodes, self.dynamics.weight_decay, self.dynamics.momentum
        shrink, entering = 1 - rate * decay, self._entering(divisors)
        injection = matrices.with_entries(entering, -rate * entering.data) if rate else None
        if not self._buffers:
            models = self._eye if shrink == 1 else matrices.with_entries(self._eye, np.full(n, shrink))
            return RecursionMaps(models, injection, weights)
        return RecursionMaps(
            matrices.with_entries(self._both, np.tile([shrink, -rate * beta], n)),
            injection,
            self._to_models(weights),
            self._decayed(bool(rate)),
            self._to_buffers(entering) if rate else None,
        )


SCHEDULES: Registry[Entry] = Registry("learning rate schedule", supplied=("first_rate", "num_steps"), by_position=True)
"""Functions to the rates of all steps, by name; `first_rate` is the rate at t = 0, `num_steps` is T."""


def schedule(rule: str, first_rate: float, num_steps: int) -> float | FloatArray:
    """The learning rates that a rule names, for `Dynamics`: public, and the first one is `first_rate` under every rule.

    >>> schedule("inverse-time:2", 0.6, 3), schedule("inverse-sqrt", 0.6, 4)[3], schedule("constant", 0.6, 3)
    (array([0.6, 0.4, 0.3]), np.float64(0.3), 0.6)

    Args:
        rule: with t = 0 at the first step "constant", first_rate; "inverse-time:T0", first_rate / (1 + t / T0), T0 > 0
            steps; "inverse-sqrt", first_rate / sqrt(t + 1); "step-decay:T0:F", first_rate for t < T0, then F times it,
            0 < F, T0 >= 1.

    Returns: one number for "constant", else shape (T,).
    Raises: InvalidInput: another rule, or T0 or F out of range.
    Source: eta / (1 + t / 5000) the a9a experiment of arXiv:2405.01031's code; eta_1 / sqrt(t), t = 1, ..., T, the
        quadratic one of arXiv:2501.14644v2; the step decay FEMNIST in the code of arXiv:2510.17480.
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
    return np.asarray(first_rate / (1 + np.arange(num_steps) / check.positive(T0=T0)))


@SCHEDULES.register()
def inverse_sqrt(first_rate: float, num_steps: int) -> FloatArray:
    """The first rate over sqrt(t + 1)."""
    return np.asarray(first_rate / np.sqrt(np.arange(num_steps) + 1.0))


@SCHEDULES.register(example="step-decay:80:0.1")
def step_decay(first_rate: float, num_steps: int, T0: int, factor: float) -> FloatArray:
    """The first rate for T0 steps, then `factor` times it."""
    start, factor = check.integer_at_least(1, T0=T0), check.positive(factor=factor)
    return np.where(np.arange(num_steps) < start, first_rate, factor * first_rate)


Entries: TypeAlias = tuple[NDArray[np.intp], NDArray[np.intp]]


class ByNodes:
    """W_t of each step over nodes, K sparse products, and quadratic forms of models, n x n, carried back over it."""

    def __init__(self, dynamics: Dynamics) -> None:
        self.size = dynamics.num_nodes
        self._constant = dynamics.gossip.is_constant
        self._of_step = functools.lru_cache(maxsize=1)(dynamics.step_weights)  # used more than once a step

    def weights(self, step: int) -> sp.csr_array:
        return self._of_step(0 if self._constant else step)

    def times(self, step: int, models: FloatArray) -> FloatArray:
        return np.asarray(self.weights(step) @ models.reshape(len(models), -1)).reshape(models.shape)

    def back(self, step: int, form: FloatArray) -> FloatArray:
        """W_t^T X."""
        return np.asarray(self.weights(step).T @ form)

    def around(self, step: int, form: FloatArray) -> FloatArray:
        return self.back(step, self.back(step, form).T)

    def twice(self, form: FloatArray) -> FloatArray:
        return form + form.T


class ByModes:
    """As `ByNodes` over the eigenvectors of constant symmetric gossip: forms diagonal there, as their diagonal (n,)."""

    def __init__(self, eigenvalues: FloatArray) -> None:
        self.eigenvalues, self.size = eigenvalues, eigenvalues.size

    def times(self, step: int, models: FloatArray) -> FloatArray:
        return (models.T * self.eigenvalues).T

    def back(self, step: int, form: FloatArray) -> FloatArray:
        return self.eigenvalues * form

    def around(self, step: int, form: FloatArray) -> FloatArray:
        return self.eigenvalues**2 * form

    def twice(self, form: FloatArray) -> FloatArray:
        return 2 * form


Averaging: TypeAlias = ByNodes | ByModes


def responses(
    dynamics: Dynamics,
    num_steps: int,
    averaging: Averaging,
    entries: Entries,
    *,
    sizes: FloatArray | None = None,
    by_age: bool = False,
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """(messages, models) of each step r: the responses to unit injections of the steps so far.

    Args:
        entries: (rows, columns), integers of one length: column columns[i] of an injection enters at node (or mode)
            rows[i], so that a response is [at, step of injection, column].
        sizes: of the entries, in their order; default 1.
        by_age: follow the injections of step 0 alone, at rate 1: response [:, 0] of step a is that of any injection a
            steps old, where nothing but the rate depends on the step.

    Yields arrays (n, min(r + 1, injections), columns), to be read before the next ones.
    """
    rows, columns = entries
    T, injections = num_steps, 1 if by_age else num_steps
    rates = np.ones(T) if by_age else dynamics.relative_rates(T)
    shrink = dynamics.shrink_factors(T)
    model = np.zeros((averaging.size, injections, int(np.max(columns)) + 1))
    buffer = np.zeros(injections)  # of each injection, at its own node, where it stays
    for r in range(T):
        so_far = min(r + 1, injections)
        buffer *= dynamics.momentum
        if r < injections:
            buffer[r] = 1.0
        first = 0 if dynamics.momentum else r  # without it only the injection of this step enters
        message = shrink[r] * model[:, :so_far]
        if first < so_far:
            entering = rates[r] * buffer[first:so_far]
            message[rows, first:, columns] += entering if sizes is None else sizes[:, None] * entering
        averaged = averaging.times(r, message)
        yield message, averaged
        if so_far == injections:
            model = averaged
        else:
            model[:, :so_far] = averaged


def cost_to_go(
    dynamics: Dynamics, num_steps: int, averaging: Averaging, counts: Callable[[int], Any], *, after_averaging: bool
) -> FloatArray:
    """sum_s of the quadratic cost of an injection of step s, over all models that count from there on.

    Args: counts: the form w_r Q of the models of step r; after_averaging: of theta_{r+1}, else of mu_r.

    The cost of (theta, v) from step r on has blocks A, B, D. In (mu, v') it is mu^T P mu + 2 mu^T R v' + v'^T D v' with
    P = W^T (w_r Q + A) W and R = W^T B (messages counted: P = w_r Q + W^T A W).
    """
    beta = dynamics.momentum
    rates, shrink = dynamics.relative_rates(num_steps), dynamics.shrink_factors(num_steps)
    total = A = B = D = np.zeros(np.shape(counts(0)))
    for r in range(num_steps - 1, -1, -1):
        P = averaging.around(r, A + counts(r)) if after_averaging else averaging.around(r, A) + counts(r)
        entering = rates[r] ** 2 * P
        if beta:
            R = averaging.back(r, B)
            entering = entering + rates[r] * averaging.twice(R) + D
            B, D = shrink[r] * beta * (rates[r] * P + R), beta**2 * entering
        total, A = total + entering, shrink[r] ** 2 * P
    return total


def effects(
    dynamics: Dynamics, num_steps: int, averaging: Averaging, weights: FloatArray, form: FloatArray
) -> Iterator[tuple[int, FloatArray]]:
    """(s, what a unit injection of step s does to sum_r weights[r] form^T theta_{r+1}), the last step first."""
    rates, shrink = dynamics.relative_rates(num_steps), dynamics.shrink_factors(num_steps)
    model, buffer = np.zeros_like(form), np.zeros_like(form)
    for s in range(num_steps - 1, -1, -1):
        message = averaging.back(s, model + weights[s] * form)
        buffer = rates[s] * message + dynamics.momentum * buffer
        yield s, buffer
        model = shrink[s] * message


def __dir__() -> list[str]:
    return sorted(__all__)

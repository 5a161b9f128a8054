"""Which models the error counts (`ErrorWeights`), and how injected noise propagates into them.

The counted variance is sum_r w_r theta_r^T Q theta_r over the models theta_r after step r. w_r is the weight of a step;
Q over nodes says whether every node's model counts, some nodes' models, or their average. Noise in models that do not
count costs nothing, so mechanisms that know the weights put it there. If released models count, the variance is
(sum_r a_r theta_r)^T Q (sum_r a_r theta_r), a the weights of a `ReleasedModel`.

`NoiseObjective` is `CountedModels` with public methods; the modules that compute Gram matrices take it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..dynamics import Dynamics
from ..dynamics.responses import Averaging, Entries, cost_to_go, effects, responses
from ..errors import InvalidInput, require_known, unknown_name
from ..released import ReleasedModel, StepWeights
from ..spec import Entry, Registry

NODES, AVERAGE = "nodes", "average"

STEP_WEIGHTS: Registry[Entry] = Registry("step_weights", by_position=True)
"""Functions to the weights w_r, or a_r of released models, by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class ErrorWeights:
    """Weights of steps and the target over nodes.

    Attributes:
        step_weights: "all" (alike), "last" or "last:M" or "last:M:FLOOR" (1 on the last M steps, FLOOR before, default
            1 and 0), "exponential:H" (halved every H steps back from the end), or one weight >= 0 per step, shape (T,).
            "released:MODEL": the released models alone, MODEL as `ReleasedModel` reads it, as in "released:average:48".
        target: "nodes" (every node's model alike), "average" (their average, counted n times to be comparable), or one
            weight >= 0 per node, shape (n,), such as a 0/1 mask of the nodes whose models are used.

    Raises: InvalidInput: unknown names, numbers that are negative, not finite or all zero.

    >>> ErrorWeights("last:2:0.1").of_steps(4)
    array([0.1, 0.1, 1. , 1. ])
    >>> ErrorWeights("exponential:1").of_steps(3)
    array([0.25, 0.5 , 1.  ])
    """

    __repr__ = short_repr

    step_weights: str | Sequence[float] | FloatArray = "all"
    target: str | Sequence[float] | FloatArray = NODES

    def __post_init__(self) -> None:
        if isinstance(self.step_weights, str):
            STEP_WEIGHTS.make(self.step_weights)
        else:
            object.__setattr__(self, "step_weights", _non_negative("step_weights", self.step_weights))
        if isinstance(self.target, str):
            if self.target not in (NODES, AVERAGE):
                raise unknown_name("target", self.target, (NODES, AVERAGE))
        else:
            object.__setattr__(self, "target", _non_negative("target", self.target))

    @property
    def released(self) -> ReleasedModel | None:
        """What is released, where that is what counts."""
        if not isinstance(self.step_weights, str):
            return None
        entry, arguments = STEP_WEIGHTS.read(self.step_weights)
        return ReleasedModel(**arguments) if entry.build is released_models else None

    @property
    def uniform_target(self) -> bool:
        """Every node's model counts alike."""
        return isinstance(self.target, str) and self.target == NODES

    @property
    def of_average(self) -> bool:
        """The average of the models counts."""
        return isinstance(self.target, str) and self.target == AVERAGE

    def of_steps(self, num_steps: int) -> FloatArray:
        """w_r for the model after step r, shape (num_steps,), an own array; a_r of what is released.

        Raises: InvalidInput: weights for another number of steps, or more last steps than there are.
        """
        num_steps = check.integer_at_least(1, num_steps=num_steps)
        if not isinstance(self.step_weights, str):
            if len(self.step_weights) != num_steps:
                raise InvalidInput(
                    f"step_weights must hold one weight for each of {num_steps} steps, got {len(self.step_weights)}."
                )
            return np.array(self.step_weights)
        weights: StepWeights = STEP_WEIGHTS.make(self.step_weights)
        return weights(num_steps)

    def of_nodes(self, num_nodes: int) -> FloatArray | None:
        """The diagonal of Q, shape (n,); None for the average, whose Q = 1 1^T / n is not diagonal."""
        if isinstance(self.target, str):
            return np.ones(num_nodes) if self.target == NODES else None
        if len(self.target) != num_nodes:
            raise InvalidInput(
                f"target must hold one weight for each of {num_nodes} nodes, got {len(self.target)}; a list of nodes "
                "is a mask, 1 for those that count."
            )
        return np.array(self.target)

    def node_factor(self, num_nodes: int) -> sp.csr_array:
        """F with F^T F = Q, csr (rows, n): what is counted of the models of one step."""
        of_nodes = self.of_nodes(num_nodes)
        if of_nodes is None:
            return sp.csr_array(np.full((1, num_nodes), num_nodes**-0.5))
        counted = np.flatnonzero(of_nodes)
        shape = (counted.size, num_nodes)
        return sp.csr_array((np.sqrt(of_nodes[counted]), (np.arange(counted.size), counted)), shape=shape)

    def describe(self) -> str:
        """Both in words short enough for a legend."""
        steps = self.step_weights if isinstance(self.step_weights, str) else f"given:{_short_hash(self.step_weights)}"
        if isinstance(self.target, str):
            return steps if self.target == NODES else f"{steps}/{self.target}"
        return f"{steps}/nodes:{_short_hash(self.target)}"

    @classmethod
    def parse(cls, text: str) -> ErrorWeights:
        """From "STEPS" or "STEPS/TARGET", as the command line writes them.

        >>> ErrorWeights.parse("last:3/average").describe()
        'last:3/average'
        """
        steps, _, target = check.text("'last:3/average'", text=text).partition("/")
        return cls(steps.strip(), target.strip() or NODES)

    @classmethod
    def for_training(cls, num_steps: int, evaluated_steps: int, *, floor: float = 0.01) -> ErrorWeights:
        """Weights for a run whose models are used (deployed, evaluated, averaged) in its last steps only.

        The floor keeps the error Gram regular and the models on their way usable: gradients are taken at them.

        Args: num_steps: T; evaluated_steps: how many of the last models are used; floor: weight of earlier ones.

        >>> ErrorWeights.for_training(320, 48).step_weights
        'last:48:0.01'
        """
        check.integer_at_least(1, num_steps=num_steps)
        check.integer_at_least(1, evaluated_steps=evaluated_steps)
        if evaluated_steps > num_steps:
            raise InvalidInput(f"evaluated_steps must be at most num_steps={num_steps}, got {evaluated_steps}.")
        return cls(f"last:{evaluated_steps}:{check.non_negative(floor=floor):g}")


@STEP_WEIGHTS.register(name="all")
def all_steps() -> StepWeights:
    """All steps alike."""
    return np.ones


@STEP_WEIGHTS.register(example="last:48:0.01")
def last(steps: float = 1, floor: float = 0.0) -> StepWeights:
    """1 on the last steps, the floor before."""
    if not np.isfinite(steps) or steps < 1 or steps != int(steps) or not (np.isfinite(floor) and floor >= 0):
        raise InvalidInput(
            f"step_weights last counts a whole number of steps >= 1, with a floor >= 0, got {steps:g} and {floor:g}."
        )

    def of_steps(num_steps: int) -> FloatArray:
        if steps > num_steps:
            raise InvalidInput(f"step_weights last:{steps:g} counts the last {steps:g} of {num_steps} steps.")
        return np.where(np.arange(num_steps) >= num_steps - int(steps), 1.0, floor)

    return of_steps


@STEP_WEIGHTS.register(example="exponential:10")
def exponential(half_life: float) -> StepWeights:
    """Halved every so many steps back from the end."""
    half_life = check.positive(half_life=half_life)

    def of_steps(num_steps: int) -> FloatArray:
        with np.errstate(over="ignore"):  # a half-life next to zero: earlier steps count nothing
            return np.asarray(0.5 ** (np.arange(num_steps)[::-1] / half_life))

    return of_steps


@STEP_WEIGHTS.register(name="released", example="released:average:48")
def released_models(model: str) -> StepWeights:
    """What is released, and nothing else."""
    return ReleasedModel(model).of_steps


ALL_MODELS = ErrorWeights()
"""All steps and nodes alike: the default."""


def _non_negative(name: str, values: Any) -> FloatArray:
    array = check.finite_array(1, **{name: values})
    if array.size == 0 or (array < 0).any() or not array.any():
        raise InvalidInput(f"{name} must be numbers >= 0, not all zero, got {values!r}.")
    array.setflags(write=False)
    return array


def _short_hash(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype=np.float64).tobytes()).hexdigest()[:8]


COUNTED_MODELS = ("post-average", "message")
"""The models after the averaging of a step count, or the messages before it."""


@dataclasses.dataclass(frozen=True, eq=False)
class CountedModels:
    """Dynamics over a number of steps, and the weights of the models that count; see `NoiseObjective`."""

    __repr__ = short_repr

    dynamics: Dynamics
    num_steps: int
    weights: ErrorWeights = ALL_MODELS
    counted_models: str = "post-average"

    def __post_init__(self) -> None:
        check.instance(Dynamics, dynamics=self.dynamics)
        require_known("counted_models", self.counted_models, COUNTED_MODELS)
        if not isinstance(self.weights, ErrorWeights):
            raise InvalidInput(
                f"weights must be ErrorWeights, got {self.weights!r}; make them with ErrorWeights(step_weights, "
                "target), or ErrorWeights.parse(text) from what the command line takes."
            )
        if self.released is not None and not self.after_averaging:
            raise InvalidInput(
                f"error weights {self.weights.describe()} count released models, which are taken after averaging; use "
                f"objective post-average, got {self.counted_models!r}."
            )
        object.__setattr__(self, "num_steps", check.integer_at_least(1, num_steps=self.num_steps))
        self.weights.of_nodes(self.dynamics.num_nodes)
        _ = self.rates, self.step_weights  # refused here where they are of another length

    # ---- which models count ------------------------------------------------------------------------------------------

    @property
    def after_averaging(self) -> bool:
        """Models count after averaging, else before."""
        return self.counted_models == "post-average"

    @property
    def released(self) -> ReleasedModel | None:
        """The released sum of models, where that is what counts."""
        return self.weights.released

    @cached_property
    def rates(self) -> FloatArray:
        """eta_t / eta_0, shape (T,)."""
        return self.dynamics.relative_rates(self.num_steps)

    @cached_property
    def step_weights(self) -> FloatArray:
        """w_r, or a_r of released models, shape (T,)."""
        return self.weights.of_steps(self.num_steps)

    @cached_property
    def target_factor(self) -> sp.csr_array | None:
        """F with F^T F = Q, csr (rows, n); None where F = I."""
        return None if self.weights.uniform_target else self.weights.node_factor(self.dynamics.num_nodes)

    @cached_property
    def node_factor(self) -> sp.csr_array | None:
        """`target_factor` after the averaging rounds of what is released; None where that is I.

        Raises: InvalidInput: a sequence of gossip that ends before these rounds.
        """
        F, dynamics = self.target_factor, self.dynamics
        if self.released is None:
            return F
        further = self.released.further_gossip(dynamics.gossip, self.num_steps * dynamics.gossip_rounds)
        return F if further is None else sp.csr_array(further if F is None else F @ further)

    @property
    def form(self) -> FloatArray:
        """`node_factor` transposed, dense, shape (n, rows)."""
        F = sp.eye_array(self.dynamics.num_nodes) if self.node_factor is None else self.node_factor
        return np.asarray(F.T.toarray())

    def of_nodes(self, models: FloatArray) -> FloatArray:
        """`node_factor` times models of shape (n, ...)."""
        if self.node_factor is None:
            return models
        flat = models.reshape(models.shape[0], -1)
        return np.asarray(self.node_factor @ flat).reshape(-1, *models.shape[1:])

    @property
    def shift_invariant(self) -> bool:
        """The effect of an injection depends, but for its own rate, on its age alone."""
        constant_rate = bool((self.rates == 1.0).all())
        return self.dynamics.gossip.is_constant and (constant_rate or self.dynamics.is_plain)

    # ---- what injections do to them ----------------------------------------------------------------------------------

    def responses(
        self, averaging: Averaging, entries: Entries, *, sizes: FloatArray | None = None, by_age: bool = False
    ) -> Iterator[FloatArray]:
        """What may count of each step, messages or models: see `dynamics.responses`."""
        for message, model in responses(self.dynamics, self.num_steps, averaging, entries, sizes=sizes, by_age=by_age):
            yield model if self.after_averaging else message

    def effects(self, averaging: Averaging, form: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """(s, e_s): what a unit injection of step s does to form^T sum_r a_r theta_{r+1}, the last step first."""
        return effects(self.dynamics, self.num_steps, averaging, self.step_weights, form)

    def all_effects(self, averaging: Averaging, form: FloatArray) -> FloatArray:
        """e_s of all steps, shape (T, *form.shape)."""
        stacked = np.empty((self.num_steps, *form.shape))
        for s, e in self.effects(averaging, form):
            stacked[s] = e
        return stacked

    def fresh_costs(self, averaging: Averaging, form: Any) -> FloatArray:
        """What noise fresh in each step costs: the quadratic form over nodes, or its diagonal over modes.

        Args: form: of the models of one step, as `averaging` takes it.
        """
        w = self.step_weights
        return cost_to_go(
            self.dynamics, self.num_steps, averaging, lambda r: w[r] * form, after_averaging=self.after_averaging
        )

    def over_ages(self, gram: FloatArray) -> FloatArray:
        """H from sum_r w_r y_r^T Q y_r, which it is, or from the Gram of responses by their age at rate 1.

        H[s, t] = rho_s rho_t sum_{r >= max(s, t)} w_r gram[r - s, r - t]: with t = s + lag the terms run down diagonal
        `lag`; with equal weights they are cumulative sums, with others one correlation per lag.
        """
        if not self.shift_invariant:
            return gram
        T, w = self.num_steps, self.step_weights
        alike = bool((w == w[0]).all())
        H = np.empty((T, T))
        for lag in range(T):
            entries = np.diagonal(gram, -lag)  # gram[j + lag, j], j < T - lag
            if alike:
                running = w[0] * np.cumsum(entries)[::-1]  # entry s: sum of the first T - lag - s terms
            else:
                running = np.convolve(w[lag:], entries[::-1])[T - lag - 1 :]  # entry s: sum_j w[s + lag + j] entries[j]
            steps = np.arange(T - lag)
            H[steps, steps + lag] = running
            H[steps + lag, steps] = running
        return H if (self.rates == 1.0).all() else H * np.outer(self.rates, self.rates)


def finite_gram(compute: Callable[[], FloatArray]) -> FloatArray:
    """The result of `compute`; raises InvalidInput where it, and with it every loss, is beyond float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        H = compute()
        total = float(np.trace(H, axis1=-2, axis2=-1).sum())
    if not (np.isfinite(total) and np.isfinite(H).all()):
        raise InvalidInput(
            "the error is beyond float64 with these error weights and relative step sizes; take smaller error weights: "
            "a common factor of all of them only scales the error."
        )
    return H

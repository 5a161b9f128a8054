"""Which models the error counts, and how injected noise propagates into them: `CountedModels`.

The variance is a sum over the kinds of weights (`ErrorWeights.kinds`) and over the directions of the curvature; each
term is `CountedModels` too, of one kind, along one direction. `NoiseObjective` adds the forms as methods.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..dynamics import Averaging, Dynamics, Entries, cost_to_go, effects, responses
from ..errors import InvalidInput, require_known
from ..released import ReleasedModel
from .curvature import Curvature, CurvedDynamics
from .error_weights import ALL_MODELS, ErrorWeights

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
        if (self.released is not None or self.weights.on_the_way) and not self.after_averaging:
            raise InvalidInput(
                f"error weights {self.weights.describe()} count models that are released, or at which gradients are "
                f"taken; both are taken after averaging: use objective post-average, got {self.counted_models!r}."
            )
        object.__setattr__(self, "num_steps", check.integer_at_least(1, num_steps=self.num_steps))
        self.weights.target_diagonal(self.dynamics.num_nodes)
        _ = self.rates, self.step_weights  # refused here where they are of another length
        if self.curvature is not None:
            self.curvature.require_stable(self.dynamics)

    @property
    def curvature(self) -> Curvature | None:
        """Of the loss; None: every direction alike, and nothing is taken back."""
        assert not isinstance(self.weights.curvature, str)  # parsed where it was given
        return self.weights.curvature

    @property
    def kinds(self) -> tuple[tuple[float, Self], ...]:
        """(factor, counted) of step by step or released models: their sum counts."""
        kinds = self.weights.kinds(self.num_steps)
        if len(kinds) == 1:
            return ((1.0, self),)
        return tuple((factor, dataclasses.replace(self, weights=weights)) for factor, weights in kinds)

    @cached_property
    def directions(self) -> tuple[tuple[float, CountedModels], ...]:
        """(w_j, counted along direction j) of the curvature, compressed; itself alone without one."""
        if self.curvature is None:
            return ((1.0, self),)
        few, weights = self.curvature.compressed(self.num_steps), dataclasses.replace(self.weights, curvature=None)
        return tuple(
            (w, dataclasses.replace(self, weights=weights, dynamics=CurvedDynamics.along(self.dynamics, eigenvalue)))
            for w, eigenvalue in few.pairs
            if w
        )

    def over_directions(self, form: Callable[[CountedModels], FloatArray]) -> FloatArray:
        """The sum of w_j form(counted along direction j)."""
        (first, direction), *others = self.directions
        total = form(direction) if first == 1.0 else first * form(direction)
        for weight, direction in others:
            total = total + weight * form(direction)
        return total

    @property
    def after_averaging(self) -> bool:
        return self.counted_models == "post-average"

    @property
    def released(self) -> ReleasedModel | None:
        return self.weights.released

    @cached_property
    def rates(self) -> FloatArray:
        """eta_t / eta_0, shape (T,)."""
        return self.dynamics.relative_rates(self.num_steps)

    @cached_property
    def step_weights(self) -> FloatArray:
        """w_r, or a_r of released models, shape (T,)."""
        return self.weights.weights_by_step(self.num_steps)

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

    def times_node_factor(self, models: FloatArray) -> FloatArray:
        if self.node_factor is None:
            return models
        flat = models.reshape(models.shape[0], -1)
        return np.asarray(self.node_factor @ flat).reshape(-1, *models.shape[1:])

    @property
    def shift_invariant(self) -> bool:
        """The effect of an injection depends, but for its own rate, on its age alone."""
        constant_rate = bool((self.rates == 1.0).all())
        alike = self.dynamics.is_plain and self.curvature is None
        return self.dynamics.gossip.is_constant and (constant_rate or alike)

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
        """What noise fresh in each step costs, over nodes or modes; form: of the models of one step."""
        w, after = self.step_weights, self.after_averaging
        return cost_to_go(self.dynamics, self.num_steps, averaging, lambda r: w[r] * form, after_averaging=after)

    def over_ages(self, gram: FloatArray) -> FloatArray:
        """H from sum_r w_r y_r^T Q y_r, which it is, or from the Gram of responses by their age at rate 1.

        H[s, t] = rho_s rho_t sum_{r >= max(s, t)} w_r gram[r - s, r - t]: along diagonal t - s a cumulative sum with
        equal weights, else a correlation.
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


def over_kinds(form: Callable[..., FloatArray]) -> Callable[..., FloatArray]:
    """A form of `CountedModels` of one kind as one of any: the sum over the kinds."""

    @functools.wraps(form)
    def total(counted: CountedModels, *args: Any, **options: Any) -> FloatArray:
        (_, first), *others = kinds = counted.kinds
        if not others:
            return form(first, *args, **options)
        return functools.reduce(np.add, (factor * form(kind, *args, **options) for factor, kind in kinds))

    return total


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

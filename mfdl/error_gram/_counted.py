"""What all error Grams are asked, checked once: dynamics, steps, which models, with which weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..errors import InvalidInput, unknown_name

OBJECTIVES = ("post-average", "message")


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
    """Checked arguments.

    Attributes:
        num_steps: T.
        after_averaging: models count after averaging, else before.
        rates: eta_t / eta_0, shape (T,); shrink: 1 - eta_t decay, shape (T,).
        step_weights: w_r, shape (T,).
        node_factor: F with F^T F = Q, csr (rows, n); None where Q = I.
    """

    dynamics: Dynamics
    num_steps: int
    after_averaging: bool
    rates: FloatArray
    shrink: FloatArray
    step_weights: FloatArray
    node_factor: sp.csr_array | None

    @classmethod
    def of(cls, dynamics: Dynamics, num_steps: int, weights: ErrorWeights | None, objective: str) -> Counted:
        """Raises: InvalidInput: num_steps < 1, unknown objective, weights that are no ErrorWeights, weights or a
        schedule of another length.
        """
        check.integer_at_least(1, num_steps=num_steps)
        if objective not in OBJECTIVES:
            raise unknown_name("objective", objective, OBJECTIVES)
        weights = ErrorWeights() if weights is None else weights
        if not isinstance(weights, ErrorWeights):
            raise InvalidInput(
                f"weights must be ErrorWeights, got {weights!r}; make them with ErrorWeights(step_weights, target), or "
                "ErrorWeights.parse(text) from what the command line takes."
            )
        return cls(
            dynamics,
            num_steps,
            objective == "post-average",
            dynamics.relative_rates(num_steps),
            dynamics.shrink_factors(num_steps),
            weights.of_steps(num_steps),
            None if weights.uniform_target else weights.node_factor(dynamics.num_nodes),
        )

    @property
    def shift_invariant(self) -> bool:
        """What an injection does depends, but for its own rate, on how long ago it was and nothing else."""
        constant_rate = bool((self.rates == 1.0).all())
        return self.dynamics.gossip.is_constant and (constant_rate or self.dynamics.is_plain)

    def scaled(self, H: FloatArray) -> FloatArray:
        """H of a shift-invariant recursion at rate 1, with the columns of step s multiplied by its rate."""
        if not (self.rates == 1.0).all():
            H *= np.outer(self.rates, self.rates)
        return H

    def summed_over_models(self, powers: FloatArray) -> FloatArray:
        """H[s, t] = sum_{r >= max(s, t)} w_r powers[r - s, r - t], from the Gram of responses by their age.

        With t = s + lag the terms run down diagonal `lag` of `powers`; with equal weights they are cumulative sums,
        with others one correlation per lag.
        """
        T, w = self.num_steps, self.step_weights
        alike = bool((w == w[0]).all())
        H = np.empty((T, T))
        for lag in range(T):
            entries = np.diagonal(powers, -lag)  # powers[j + lag, j], j < T - lag
            if alike:
                running = w[0] * np.cumsum(entries)[::-1]  # entry s: sum of the first T - lag - s terms
            else:
                running = np.convolve(w[lag:], entries[::-1])[T - lag - 1 :]  # entry s: sum_j w[s + lag + j] entries[j]
            steps = np.arange(T - lag)
            H[steps, steps + lag] = running
            H[steps + lag, steps] = running
        return H

    def counts(self, models: FloatArray) -> FloatArray:
        """F models, for models of shape (n, ...)."""
        if self.node_factor is None:
            return models
        flat = models.reshape(models.shape[0], -1)
        return np.asarray(self.node_factor @ flat).reshape(-1, *models.shape[1:])


def finite_gram(compute: Callable[[], FloatArray]) -> FloatArray:
    """What `compute` returns; raises InvalidInput where that, and with it every loss, is beyond float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        H = compute()
        total = float(np.trace(H, axis1=-2, axis2=-1).sum())
    if not (np.isfinite(total) and np.isfinite(H).all()):
        raise InvalidInput(
            "the error is beyond float64 with these error weights and relative step sizes; take smaller error weights: "
            "a common factor of all of them only scales the error."
        )
    return H

"""What all error Grams are asked, checked once: dynamics, steps, which models, with which weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse as sp

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..dynamics.responses import Averaging, Entries, responses
from ..error_weights import AVERAGE, ErrorWeights, Target
from ..errors import InvalidInput
from ..released import Released


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
    """Checked arguments.

    Attributes:
        num_steps: T.
        after_averaging: models count after averaging, else before.
        rates: eta_t / eta_0, shape (T,).
        step_weights: w_r, shape (T,).
        node_factor: F with F^T F = Q, csr (rows, n), after the averaging rounds of what is released; None where F = I.
        weight_of_nodes: tr(Q), those rounds left out; of_average: what counts is the average of the models.
        released: what of them is, where one sum of them counts (`_released`).
    """

    dynamics: Dynamics
    num_steps: int
    after_averaging: bool
    rates: FloatArray
    step_weights: FloatArray
    node_factor: sp.csr_array | None
    weight_of_nodes: float
    of_average: bool
    released: Released | None

    @classmethod
    def of(cls, dynamics: Dynamics, num_steps: int, chosen: ErrorWeights | None, objective: str) -> Counted:
        """Raises: InvalidInput: num_steps < 1, unknown objective, weights or a schedule of another length."""
        check.instance(Dynamics, dynamics=dynamics)
        target = Target.of(objective, chosen)
        check.integer_at_least(1, num_steps=num_steps)
        weights = target.weights
        F = None if weights.uniform_target else weights.node_factor(dynamics.num_nodes)
        further = None
        if weights.released is not None:
            further = weights.released.further_gossip(dynamics.gossip, num_steps * dynamics.gossip_rounds)
        return cls(
            dynamics,
            num_steps,
            target.after_averaging,
            dynamics.relative_rates(num_steps),
            weights.of_steps(num_steps),
            F if further is None else sp.csr_array(further if F is None else F @ further),
            float(dynamics.num_nodes if F is None else F.data @ F.data),
            isinstance(weights.target, str) and weights.target == AVERAGE,
            weights.released,
        )

    @property
    def shift_invariant(self) -> bool:
        """What an injection does depends, but for its own rate, on how long ago it was and nothing else."""
        constant_rate = bool((self.rates == 1.0).all())
        return self.dynamics.gossip.is_constant and (constant_rate or self.dynamics.is_plain)

    def over_steps(self, gram: FloatArray) -> FloatArray:
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

    def responses(
        self, averaging: Averaging, entries: Entries, *, sizes: FloatArray | None = None, by_age: bool = False
    ) -> Iterator[FloatArray]:
        """What may count of each step, messages or models: see `dynamics.responses`."""
        for message, model in responses(self.dynamics, self.num_steps, averaging, entries, sizes=sizes, by_age=by_age):
            yield model if self.after_averaging else message

    def of_nodes(self, models: FloatArray) -> FloatArray:
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

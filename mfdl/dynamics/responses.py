"""How injections propagate: the recursion of `Dynamics` in numbers, forwards from injections and backwards from models.

In units of the first learning rate, with c_t = 1 - eta_t weight_decay and rho_t = eta_t / eta_0, a step is

    v_{t+1} = momentum v_t + x_t,   mu_t = c_t theta_t + rho_t v_{t+1},   theta_{t+1} = W_t mu_t,

mu the messages. `responses` follows unit injections x; `cost_to_go` sums the cost of an injection over later models.
Both take W_t from an `Averaging`: sparse over nodes, one number per mode over the modes of constant gossip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..check import FloatArray
from .dynamics import Dynamics

Entries: TypeAlias = tuple[NDArray[np.intp], NDArray[np.intp]]


class ByNodes:
    """W_t of each step over nodes, K sparse products, and quadratic forms of models, n x n, carried back over it."""

    def __init__(self, dynamics: Dynamics) -> None:
        self.size = dynamics.num_nodes
        self._constant = dynamics.gossip.is_constant
        self._of_step = functools.lru_cache(maxsize=1)(dynamics.step_weights)  # used more than once a step

    def weights(self, step: int) -> sp.csr_array:
        """W_t, the product of its K matrices."""
        return self._of_step(0 if self._constant else step)

    def times(self, step: int, models: FloatArray) -> FloatArray:
        """W_t x, for x of shape (n, ...)."""
        return np.asarray(self.weights(step) @ models.reshape(len(models), -1)).reshape(models.shape)

    def back(self, step: int, form: FloatArray) -> FloatArray:
        """W_t^T X."""
        return np.asarray(self.weights(step).T @ form)

    def around(self, step: int, form: FloatArray) -> FloatArray:
        """W_t^T X W_t for symmetric X."""
        return self.back(step, self.back(step, form).T)

    def twice(self, form: FloatArray) -> FloatArray:
        """X + X^T."""
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
        total = total + entering
        A = shrink[r] ** 2 * P
    return total


def effects(
    dynamics: Dynamics, num_steps: int, averaging: Averaging, weights: FloatArray, form: FloatArray
) -> Iterator[tuple[int, FloatArray]]:
    """(s, what a unit injection of step s does to sum_r weights[r] form^T theta_{r+1}), the last step first.

    Args: form: over nodes shape (n, rows), over modes (n,); so are the effects.
    """
    rates, shrink = dynamics.relative_rates(num_steps), dynamics.shrink_factors(num_steps)
    model, buffer = np.zeros_like(form), np.zeros_like(form)
    for s in range(num_steps - 1, -1, -1):
        message = averaging.back(s, model + weights[s] * form)
        buffer = rates[s] * message + dynamics.momentum * buffer
        yield s, buffer
        model = shrink[s] * message

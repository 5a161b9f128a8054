"""Covariances of node-local noise that are the best for given views: arrays of a trust model in, certified noise out.

Per attacker a view O = A G + V Z, Z with one column for each slot of each node, and a shift for every record: its
columns of A added up over the steps of a pattern, with signs. Signs are every extreme gradient of patterns of one or
two steps; of longer ones they are some, so that the lower bound holds, and accounting decides what noise is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.local_noise import LocalCovariances, LocalNoiseProblem, NoiseView
from mfdl_solvers.local_noise_solver import solve_local_noise

from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..participation import Participation
from ..storable import storable
from .setting import checked_stopping, solver_refusals
from .solutions import solved

MAX_SHIFTS = 20_000
"""Shifts of all attackers, victims, patterns and signs together."""
storable(LocalCovariances)


class AttackerView(NamedTuple):
    """What an attacker sees: A, shape (rows, T, n); V, shape (rows, n, slots of a node); its victims; its name."""

    gradients: FloatArray
    noise: FloatArray
    victims: Sequence[int]
    name: str


def optimal_local_noise(
    views: Sequence[AttackerView],
    costs: FloatArray,
    participation: Participation,
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 200,
) -> LocalCovariances:
    """The cheapest independent noise of nodes at mu = 1 and record shift 1 for every attacker, victim and pattern.

    Args: costs: H_v + price I of each node, shape (n, slots, slots), positive definite.
    Raises: InvalidInput: a record that some attacker sees without noise, or a problem beyond the solver's size.
        UnsupportedMechanism: more than MAX_SHIFTS shifts, or patterns that are not listed.
    """
    signs = list(_signed(participation, sum(len(view.victims) for view in views)))
    steps = np.zeros((participation.num_steps, len(signs)))
    for number, (pattern, sign) in enumerate(signs):
        steps[pattern, number] = sign
    with solver_refusals():
        problem = LocalNoiseProblem(costs, [_solver_view(view, steps) for view in views])
        return solved(solve_local_noise, problem, stopping=checked_stopping(tolerance, max_iterations))


def _solver_view(view: AttackerView, steps: FloatArray) -> NoiseView:
    shifts = np.einsum("rtv,tp->rvp", view.gradients[:, :, list(view.victims)], steps)
    shifts = shifts.reshape(len(shifts), shifts.shape[1] * shifts.shape[2])
    return NoiseView(view.noise, shifts, np.ones(shifts.shape[1]), view.name)


def _signed(participation: Participation, pairs: int) -> Iterator[tuple[NDArray[np.intp], FloatArray]]:
    """Every pattern with every choice of signs, the first of them +1."""
    uses = participation.patterns_of_record().uses
    count = participation.num_patterns * 2.0 ** (uses - 1) * pairs
    if not (math.isfinite(count) and count <= MAX_SHIFTS):
        raise UnsupportedMechanism(
            f"trust-optimal lists every pattern with its signs for each attacker and victim, at most {MAX_SHIFTS:,} "
            f"together; {participation.describe()} has {participation.num_patterns:,g} patterns of up to {uses} steps, "
            f"{count:,.3g} for {pairs:,} pairs; take fewer epochs or nodes."
        )
    for pattern in participation.patterns():
        for rest in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            yield pattern, np.array([1.0, *rest])

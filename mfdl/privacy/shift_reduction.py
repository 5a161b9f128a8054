"""Shift reduction: a privacy bound with hidden messages that holds for adaptively chosen gradients.

Statement, conditions and proof: `docs/shift_reduction.md`. Symbols: `docs/notation.md`, and per round r and node j

    s_j(r)  bound on how far the two neighbouring runs differ in j's model before round r,
    d_j(r)  the same after the local step, L s_j(r) plus the victim's own source,
    a_j(r)  the part that j's noise absorbs,    r_j(r) = d_j(r) - a_j(r)  the part that j's message still carries,

with s(0) = 0 and s(r + 1) = |W_r| r(r). Every feasible choice of r gives a valid bound, so the solver is not trusted:
what is returned is recomputed from a repaired point, rounded up (`System.repaired`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import UNIT
from ..noise import CausalNoise
from ..trust.view import AlgorithmView, View
from .forms.base import gradients_enter, is_plain_gossip
from .forms.separable import SINGULAR, injected_inflation
from .shift_problem import BoolArray, Repaired, ShiftProblem, ShortRun, System, products

CONVERGED_GAP = 1e-4
CHUNK_ENTRIES = 2**21  # entries of one (rounds, nodes, columns) array: 16 MB; some twelve are alive at a time
UP = 1 + 8 * UNIT  # of 1 / s^2: more than its own rounding


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftBound:
    """The bound for each victim (first axis) and pattern (second axis), per unit record shift and unit noise.

    Attributes:
        sensitivity_squared: (V, P) mu^2, never below the true value under the conditions of the theorem; may be inf.
        lower_estimate: (V, P) value of a dual feasible point: no choice of shifts goes lower, up to rounding. It is no
            lower bound on the privacy loss.
        iterations: the largest number of iterations used by a group of victims.
        shifts: (V, P, R, n) the r that attains `sensitivity_squared`, if `return_shifts`.
    """

    sensitivity_squared: FloatArray
    lower_estimate: FloatArray
    iterations: int
    shifts: FloatArray | None = None

    @property
    def relative_gap(self) -> FloatArray:
        """(V, P) how much of the value could at most be won by solving further; 0 where it is 0 or inf."""
        value = self.sensitivity_squared
        open_ = np.isfinite(value) & (value > 0)
        return np.where(open_, 1 - self.lower_estimate / np.where(open_, value, 1.0), 0.0)

    @property
    def converged(self) -> bool:
        """Whether every relative gap is at most 1e-4."""
        return bool((self.relative_gap <= CONVERGED_GAP).all())


def solve(
    problem: ShiftProblem,
    victims: Sequence[int],
    patterns: Sequence[Sequence[int]],
    *,
    iterations: int = 20_000,
    tolerance: float | None = None,
    return_shifts: bool = False,
) -> ShiftBound:
    """mu^2 of each victim under each pattern: the smallest total cost of absorbing what its record changes.

    Accelerated projected gradients on r >= 0, all victims, patterns and rounds at once, with a restart per column and
    diagonal step sizes from the row sums of the Hessian; a >= 0 is kept by an augmented Lagrangian where noise is
    correlated in time, and holds by itself otherwise.

    Args:
        patterns: for each pattern the steps in which the record takes part.
        iterations: most iterations per group of columns; 0 returns the value in which every noisy node absorbs all.
        tolerance: columns whose relative gap is at most this are finished; default 1e-9, and 1e-6 for noise correlated
            in time.
        return_shifts: also return the point; V P R n numbers.

    Guarantees: never below the optimum of the program, whatever the solver did. inf where a difference would be seen
        without noise.
    Cost: per iteration and column, two passes over all nonzero weights of all rounds; a run that repeats itself takes
        its iterations at the length of three periods (`ShortRun`). Memory for some twelve arrays of 16 MB, or of R n
        numbers.
    """
    iterations = check.integer_at_least(0, iterations=iterations)
    tolerance = None if tolerance is None else check.non_negative(tolerance=tolerance)
    columns = _columns(problem, victims, patterns)
    with np.errstate(over="ignore", invalid="ignore"):  # a value that overflows is returned as inf
        return _solve(problem, columns, (len(victims), len(patterns)), iterations, tolerance, return_shifts)


def _solve(
    problem: ShiftProblem,
    columns: list[tuple[int, NDArray[np.int64]]],
    shape: tuple[int, int],
    iterations: int,
    tolerance: float | None,
    return_shifts: bool,
) -> ShiftBound:
    system = System(problem)
    if tolerance is None:
        tolerance = 1e-9 if system.cost.matrix is None else 1e-6
    value = np.full(len(columns), math.inf)
    lower = np.full(len(columns), math.inf)
    shifts = np.zeros((len(columns), problem.num_rounds, problem.num_nodes)) if return_shifts else None
    open_columns = [k for k, (u, steps) in enumerate(columns) if not system.leaks(u, steps)]
    width = max(1, CHUNK_ENTRIES // (problem.num_rounds * problem.num_nodes))
    most = 0
    for start in range(0, len(open_columns), width):
        chunk = open_columns[start : start + width]
        minimum = _minimum(system, [columns[k] for k in chunk], iterations, tolerance)
        value[chunk], lower[chunk], most = minimum.value, minimum.lower, max(most, minimum.iterations)
        if shifts is not None:
            shifts[chunk] = np.moveaxis(minimum.shifts, 2, 0)
    return ShiftBound(
        value.reshape(shape),
        lower.reshape(shape),
        most,
        None if shifts is None else shifts.reshape(*shape, problem.num_rounds, problem.num_nodes),
    )


def _columns(
    problem: ShiftProblem, victims: Sequence[int], patterns: Sequence[Sequence[int]]
) -> list[tuple[int, NDArray[np.int64]]]:
    """(victim, steps), victims first."""
    nodes = [check.integer_at_least(0, victim=u) for u in victims]
    if any(u >= problem.num_nodes for u in nodes):
        raise InvalidInput(f"victim must be a node index below {problem.num_nodes}, got {max(nodes)}.")
    checked: list[NDArray[np.int64]] = []
    for pattern in patterns:
        steps = np.array([check.integer_at_least(0, step=t) for t in pattern], dtype=np.int64)
        if steps.size == 0 or steps.max() >= problem.num_steps or np.unique(steps).size < steps.size:
            raise InvalidInput(
                f"a pattern must hold distinct steps from 0 .. {problem.num_steps - 1}, at least one, got "
                f"{steps.tolist()}."
            )
        checked.append(steps)
    return [(u, steps) for u in nodes for steps in checked]


def lipschitz_factors(lipschitz: float | Sequence[float], num_steps: int) -> FloatArray:
    """L of each step, checked, shape (T,)."""
    try:
        given = np.asarray(lipschitz)
        if given.dtype.kind not in "fiu":
            raise TypeError
        given = given.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"lipschitz must be one number or one for each step, got {lipschitz!r}.") from None
    if given.shape not in ((), (num_steps,)):
        raise InvalidInput(
            f"lipschitz must be one number or one for each of {num_steps} steps, got shape {given.shape}."
        )
    if not (np.isfinite(given) & (given >= 0)).all():
        raise InvalidInput(f"lipschitz must be finite and >= 0, got {lipschitz!r}.")
    return np.broadcast_to(given, (num_steps,))


def shift_problem(view: View, lipschitz: float | Sequence[float]) -> ShiftProblem:
    """The ShiftProblem of a view.

    Args: lipschitz: L of the local maps x -> x - eta_t g(x), one number or one per step; the caller answers for it.
    Raises: UnsupportedMechanism: outside the conditions of the proof, by name.
    """
    if not isinstance(view, AlgorithmView):
        raise UnsupportedMechanism("shift reduction needs the algorithm behind a view; a bare view has none.")
    algorithm, knowledge = view.algorithm, view.knowledge
    if knowledge.combination is not None:
        raise UnsupportedMechanism("shift reduction covers seen messages, not seen averages of them.")
    noise = algorithm.noise.causal
    if noise is None or not noise.local or not is_plain_gossip(algorithm, node_dropout=True):
        raise UnsupportedMechanism(
            f"shift reduction covers plain gossip with node-local noise; {algorithm.name!r} has another recursion or "
            f"noise ({algorithm.noise.kind}), for which it is not proved."
        )
    known = knowledge.known_noise
    if (known.any(axis=0) & ~known.all(axis=0)).any():
        raise UnsupportedMechanism("shift reduction needs a node's noise to be known at all steps or at none.")
    T, n, R = algorithm.num_steps, algorithm.num_nodes, len(algorithm.rounds)
    factors = lipschitz_factors(lipschitz, T)
    rates = algorithm.dynamics.learning_rates(T)
    present = gradients_enter(algorithm)
    for gossip_round, step in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        if step >= 0 and gossip_round.message_from_gradient is not None:
            injected = -gossip_round.message_from_gradient.diagonal() * algorithm.divisors
            if np.abs(injected - rates[step] * present[step]).max() > 1e-12 * abs(rates[step]):
                raise UnsupportedMechanism(f"shift reduction: {algorithm.name!r} injects at other rates.")
    pinned = np.zeros((R + 1, n), dtype=bool)
    for r, step in enumerate(algorithm.step_of_round):
        if step >= 0:
            pinned[r] = knowledge.known_gradients[step] & present[step]
    if not view.unreleased:  # the average, over nodes or over steps, is a function of all of them
        pinned[[*algorithm.released_after_rounds]] = True
    absolute = [abs(kind.state_from_message) for kind in algorithm.kinds]  # type: ignore[arg-type]
    gram = _local_gram(noise)
    scaled = gram is None and noise.factor is not None
    weights = np.broadcast_to(UP / noise.node_scales**2, (T, n)) if scaled else None
    return ShiftProblem(
        mixing=[absolute[kind] for kind in algorithm.kind_of_round],
        step_of_round=list(algorithm.step_of_round),
        rates=rates,
        lipschitz=factors,
        divisors=algorithm.divisors,
        seen=knowledge.seen,
        pinned=pinned,
        noisy=~known[0] if known.size else np.zeros(n, dtype=bool),
        noise_gram=gram,
        noise_weights=weights,
        present=present,
    )


def _local_gram(noise: CausalNoise) -> FloatArray | None:
    """C^T C, shape (T, T) or (n, T, T) over the nodes' s^2, times what rounding of noise as it is injected may add.

    None without correlation over time. That holds in the positive semidefinite order, hence for the norms of shifts,
    which the bound sums entry by entry.
    """
    if (C := noise.written.array) is None:
        return None
    if math.isinf(inflation := injected_inflation(noise)):
        raise UnsupportedMechanism(f"shift reduction needs noise that is what it is accounted for, but {SINGULAR}.")
    gram = np.asarray(inflation * (C.swapaxes(-1, -2) @ C))
    return gram if noise.factor is None else gram * (UP / noise.node_scales**2)[:, None, None]


CHECK_EVERY = 25  # iterations between two certificates
SINGLE_ITERATIONS = 400  # of them in float32


@dataclasses.dataclass(eq=False)
class ShiftMinimum:
    value: FloatArray
    lower: FloatArray
    shifts: FloatArray
    iterations: int

    def improve(self, columns: NDArray[np.int64], point: Repaired, lower: FloatArray) -> None:
        better = point.value < self.value[columns]
        self.value[columns[better]] = point.value[better]
        self.shifts[:, :, columns[better]] = point.shifts[:, :, better]
        self.lower[columns] = np.fmax(self.lower[columns], lower)

    def finished(self, columns: NDArray[np.int64], tolerance: float) -> BoolArray:
        value = self.value[columns]
        return (self.lower[columns] >= (1 - tolerance) * value) | ~np.isfinite(value)


def _minimum(
    system: System, columns: list[tuple[int, NDArray[np.int64]]], iterations: int, tolerance: float
) -> ShiftMinimum:
    """One that repeats itself starts from where a short one ends."""
    short, start = ShortRun.from_problem(system.problem, columns) if iterations else None, None
    if short is not None:
        alike = System(short.problem)
        ends = minimise(alike, alike.sources(short.columns), min(iterations, SINGLE_ITERATIONS), tolerance / 4)
        start = short.stretched(ends.shifts)
    return minimise(system, system.sources(columns), iterations, tolerance, start)


def minimise(
    system: System, source: FloatArray, iterations: int, tolerance: float, start: FloatArray | None = None
) -> ShiftMinimum:
    """The best repaired point met, with the best dual value, for every column of `source`.

    The first steps are in float32, as all that is compared is computed in float64. Args: start: (R, n, B) shifts.
    """
    columns = np.arange(source.shape[2])
    point = system.repaired(np.zeros_like(source) if start is None else start, source)
    best = ShiftMinimum(point.value.copy(), _dual_value(system, point, source), point.shifts.copy(), 0)
    two_sided = system.cost.matrix is None
    steps = system.in_single_precision() if two_sided else system
    dtype: Any = steps.growth.dtype
    penalty = np.zeros_like(system.scale) if two_sided else system.curvature
    tau = _step_sizes(system, penalty).astype(dtype)
    weight = np.zeros_like(tau)
    np.divide(1.0, tau, out=weight, where=tau > 0)
    keep = ~best.finished(columns, tolerance)
    columns, source = columns[keep], source[:, :, keep]
    moved, momentum = source.astype(dtype), np.ones(columns.size, dtype)
    current = (point.shifts[:, :, keep] * system.free[:, :, None]).astype(dtype)
    ahead, multiplier = current.copy(), np.zeros_like(source[:, :, :1])
    while columns.size and best.iterations < iterations:
        best.iterations += 1
        if best.iterations > SINGLE_ITERATIONS and steps is not system:
            steps, dtype = system, np.float64
            tau, weight, moved, current, ahead = (x.astype(dtype) for x in (tau, weight, moved, current, ahead))
        a = _absorbed(steps, ahead, moved)
        gradient = _gradient(steps, a)
        if not two_sided:
            gradient -= np.maximum(multiplier - penalty[:, :, None] * a, 0.0)
        new = _prices(steps, gradient)
        gradient -= new
        gradient *= tau
        np.add(ahead, gradient, out=new)
        np.maximum(new, 0.0, out=new)
        step = new - current
        ahead -= new
        ahead *= weight
        uphill = np.einsum("rnb,rnb->b", ahead, step) > 0
        momentum[uphill] = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        step *= np.where(uphill, 0.0, (momentum - 1) / following).astype(dtype)
        np.add(new, step, out=ahead)
        momentum, current = following, new
        if best.iterations % CHECK_EVERY and best.iterations < iterations:
            continue
        point = system.repaired(current.astype(np.float64), source)
        best.improve(columns, point, _dual_value(system, point, source))
        if not two_sided:
            multiplier = np.maximum(multiplier - penalty[:, :, None] * _absorbed(system, current, source), 0.0)
        keep = ~best.finished(columns, tolerance)
        if not keep.all():
            columns, momentum = columns[keep], momentum[keep]
            source, moved, current, ahead = (array[:, :, keep] for array in (source, moved, current, ahead))
            multiplier = multiplier if two_sided else multiplier[:, :, keep]
    return best


# The recursion, forward for what is absorbed and backward for prices. Only nodes without noise pass on what depends on
# earlier rounds: all other products are made at once.


def _absorbed(system: System, shifts: FloatArray, source: FloatArray) -> FloatArray:
    """a = d - r for any r on the free entries: linear, nothing clipped, entries without noise 0."""
    d = source.copy()
    d[1:] += system.growth[1:, :, None] * products(system.forward_weights[:-1], shifts[:-1])
    for r in system.passing:
        passed = np.where(system.forced[r][:, None], d[r], 0.0)
        d[r + 1] += system.growth[r + 1][:, None] * (system.forward_weights[r] @ passed)
    d -= shifts
    d *= system.noise[:, :, None]
    return d


def _prices(system: System, gradient: FloatArray) -> FloatArray:
    """The price of r, (R, n, B), for the price `gradient` of a, by the transposed recursion."""
    of_d = gradient * system.growth[:, :, None]
    for r in reversed(system.passing):
        carried = system.growth[r][:, None] * (system.backward_weights[r] @ of_d[r + 1])
        np.copyto(of_d[r], carried, where=system.forced[r][:, None])
    of_r = np.zeros_like(gradient)
    of_r[:-1] = products(system.backward_weights[:-1], of_d[1:])
    return of_r


def _feasible_prices(system: System, gradient: FloatArray, shifts: FloatArray) -> FloatArray:
    """The price of d, (R, n, B), feasible for the dual: at free entries at most the price of r."""
    of_d, of_r = gradient, np.zeros(gradient.shape[1:])
    for r in range(len(gradient) - 1, -1, -1):
        if system.cost.matrix is None:
            dear = of_r <= gradient[r] + system.curvature[r][:, None] * shifts[r]
        else:
            dear = of_r <= gradient[r]
        np.copyto(of_d[r], of_r, where=dear & system.free[r][:, None] | system.forced[r][:, None])
        if r:
            of_r = system.backward_weights[r - 1] @ (system.growth[r][:, None] * of_d[r])
    return of_d


def _gradient(system: System, absorbed: FloatArray) -> FloatArray:
    """Half the derivative of the cost by a, (R, n, B)."""
    if system.cost.matrix is None:
        return absorbed * system.curvature[:, :, None]
    g = np.zeros_like(absorbed)
    scale = system.scale[system.step_rounds][:, :, None]
    g[system.step_rounds] = scale * system.cost.apply(scale * absorbed[system.step_rounds])
    return g


def _dual_value(system: System, point: Repaired, source: FloatArray) -> FloatArray:
    """A lower bound on the optimum from a primal point, (B,); equal to its cost exactly at an optimum.

    With prices q of d that satisfy q <= Q x at noisy entries for some x >= 0, and q <= (price of r) at free ones, weak
    duality gives 2 theta <source, q> - theta^2 x^T Q x for every theta >= 0; the best theta gives the square below.
    """
    gradient = _gradient(system, point.absorbed)
    spent = np.einsum("rnb,rnb->b", point.absorbed, gradient)  # x = a
    q = _feasible_prices(system, gradient, point.shifts)
    if system.cost.matrix is None:  # x = Q^-1 q
        inverse = np.zeros_like(system.curvature)
        np.divide(1.0, system.curvature, out=inverse, where=system.noise)
        spent = np.einsum("rn,rnb,rnb->b", inverse, q, q)
    attained = np.maximum(np.einsum("rnb,rnb->b", source, q), 0.0)
    positive = spent > 0
    return np.where(positive, attained**2 / np.where(positive, spent, 1.0), 0.0)


def _step_sizes(system: System, extra: FloatArray) -> FloatArray:
    """(R, n, 1) diagonal tau with diag(1 / tau) >= Hessian, whose curvature (R, n) by the penalty is `extra`."""
    unit = np.zeros_like(system.scale)
    np.divide(1.0, system.scale, out=unit, where=system.free)
    unit = unit[:, :, None]
    a = _absorbed(system, unit, np.zeros_like(unit)) + 2 * unit
    tau = np.zeros_like(unit)
    gradient = _gradient(system, a) + extra[:, :, None] * a
    np.divide(unit, _prices(system, gradient) + gradient, out=tau, where=system.free[:, :, None])
    return tau

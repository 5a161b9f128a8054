"""A certified lower bound on what any encoder costs, in O(T) for each mode pair, without an array over steps x steps.

For weights v_t > 0 and w = sum over classes of their largest v, every C of unit sensitivity costs at least

    (tr G^1/2)^2 / w,    G = V^1/2 H V^1/2,    V = diag(v)

(`mfdl_solvers.certificate`, which has more general V). The trace of the root is an integral of log determinants,

    sqrt(x) = 1/(2 pi) int log(1 + x e^-u) e^(u/2) du,

by the trapezoid rule: of step h it is above sqrt(x) by at most `_above(h)` for every x (Poisson's formula), and what
it leaves out at both ends is positive. A log determinant is a sum of innovations: H is the covariance of a linear
recursion that runs back in time, and G + e^u I that of its observation in white noise (Kalman's filter).

Where nothing depends on the step innovations only grow: once they hardly do, the rest is counted at the last one.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np

from ..arithmetic import EPS, Array
from ..encoders import Encoder
from ..encoders.coefficients import solve_banded
from ..encoders.structured_encoders import columns_from_rows
from ..pattern_sets import Spaced
from ..problem import STATIONARY, Certified, ProblemError, relative_gap
from .cost import ModeCost, gram_diagonals, noising_objective
from .searches import SEARCHES, SearchedEncoder, bands_objective

STEP = 1.5  # of the integral
BELOW, ABOVE = 24.0, 18.0  # how far beyond the logarithms of the smallest and largest eigenvalue it goes
CHECK_EVERY, SETTLED = 64, 1e-9  # steps between looks, and how little the logarithm of an innovation grows between them
PROBES, BINS = 24, 64


def lower_bound(cost: ModeCost, patterns: Spaced, encoder: Encoder) -> float:
    """No C costs less at unit sensitivity; weighted by a good `encoder` where there is one use only.

    Cost: T modes^2 for each of about fifty points of the integral, less where nothing depends on the step.
    """
    bound = weights_bound(cost, patterns, np.ones(cost.size))
    if patterns.uses == 1:
        bound = max(bound, weights_bound(cost, patterns, weights_from(cost, encoder)))
    return bound


def weights_bound(cost: ModeCost, patterns: Spaced, weights: Array) -> float:
    """The bound of V = diag(v), v > 0 of shape (T,)."""
    steps = np.arange(cost.size)
    k, b = patterns.uses, patterns.gap
    classes = steps // (k * b) * b + steps % b  # disjoint patterns, periodic or not
    v = weights / weights.max()
    top = np.zeros(classes.max() + 1)
    np.maximum.at(top, classes, v)
    w = float(top.sum()) * (1 + 8 * cost.size * EPS)
    return trace_of_root(cost, v) ** 2 / w


def trace_of_root(cost: ModeCost, weights: Array) -> float:
    """tr (V^1/2 H V^1/2)^1/2, rounded and approximated downwards."""
    ends = _eigenvalue_range(cost, weights)
    points = np.arange(math.log(ends[0]) - BELOW, math.log(ends[1]) + ABOVE, STEP)
    total = float(np.exp(points / 2) @ _log_determinants(cost, weights, np.exp(-points)))
    return total * STEP / (2 * math.pi) / (1 + _above(STEP)) * (1 - 64 * cost.size * EPS)


def weights_from(cost: ModeCost, encoder: Encoder) -> Array:
    """About diag(X^-1 H X^-1), dual to an optimal X: by random probes of fixed seed, as means of intervals."""
    rng, T = np.random.default_rng(0), cost.size
    squares = np.zeros(T)
    for lam, m in zip(cost.eigenvalues, cost.weights, strict=True):
        probes = np.sqrt(cost.step_weights)[:, None] * rng.standard_normal((T, PROBES))
        sent = solve_banded(columns_from_rows(cost.inverse_bands(lam)), probes, transposed=True)
        squares += m * (encoder.solve(encoder.transposed_solve(sent)) ** 2).sum(axis=1)
    ages = np.unique(np.geomspace(1, T, BINS).astype(np.intp))
    edges = np.unique(np.concatenate([[0, T], ages[ages < T // 2], T - ages[ages < T // 2]]))
    means = np.add.reduceat(squares, edges[:-1]) / np.diff(edges)
    return np.interp(np.arange(T), (edges[:-1] + edges[1:] - 1) / 2, means)


def _above(step: float) -> float:
    """How far above sqrt(x) the trapezoid rule may be, relative: sum over n of 1 / (|a_n| cosh(2 pi^2 n / step))."""
    frequencies = 2 * math.pi * np.arange(1, 8) / step
    return float((1 / (np.hypot(0.5, frequencies) * np.cosh(math.pi * frequencies))).sum()) * (1 + 1e-6)


def _eigenvalue_range(cost: ModeCost, weights: Array) -> tuple[float, float]:
    """About the smallest and the largest eigenvalue of G; where they are wrong the bound is lower, not invalid."""
    T, mass = cost.size, float(cost.weights.sum())
    w, rates = float(cost.step_weights.max()), np.asarray(cost.rates)
    largest = mass * w * T * T * float(rates.max()) ** 2 * float(weights.max()) / (1 - cost.momentum) ** 2
    least = mass * w * float(rates.min()) ** 2 * float(weights.min()) / 16
    return least, largest


def _log_determinants(cost: ModeCost, weights: Array, levels: Array) -> Array:
    """log det(I + level G) for each level, from the last step to the first."""
    T, lam = cost.size, cost.eigenvalues
    rates, shrink, beta = np.asarray(cost.rates), np.asarray(cost.shrink), cost.momentum
    alike = cost.by_age and np.ptp(cost.step_weights) == 0 and np.ptp(weights) == 0
    total, active = np.zeros(levels.size), np.arange(levels.size)
    # covariances of the modes p, with the sum q that is observed, and of q
    P, r, q = np.zeros((levels.size, lam.size, lam.size)), np.zeros((levels.size, lam.size)), np.zeros(levels.size)
    diagonal = np.arange(lam.size)
    before = np.zeros(levels.size)
    for t in range(T - 1, -1, -1):
        decay = (shrink[t + 1] if t + 1 < T else 0.0) * lam
        P *= decay[:, None] * decay
        P[:, diagonal, diagonal] += levels[active, None] * cost.step_weights[t] * cost.weights
        sums = P.sum(axis=2)
        carried = beta * decay * r
        q = rates[t] ** 2 * sums.sum(axis=1) + 2 * rates[t] * carried.sum(axis=1) + beta**2 * q
        r = rates[t] * sums + carried
        seen = 1 + weights[t] * q
        innovation = np.log1p(weights[t] * q)
        total[active] += innovation
        P -= (weights[t] / seen)[:, None, None] * r[:, :, None] * r[:, None, :]
        r /= seen[:, None]
        q /= seen
        if alike and t and (T - t) % CHECK_EVERY == 0:
            done = innovation - before <= SETTLED * innovation
            total[active[done]] += t * innovation[done]
            go_on = ~done
            active, P, r, q, before = active[go_on], P[go_on], r[go_on], q[go_on], innovation[go_on]
            if not active.size:
                break
    return total


FORMS = tuple(SEARCHES)
VARYING = ("banded", "banded-inverse")
USUAL_BANDWIDTH, USUAL_BUFFERS = 32, 6
MAX_COLUMNS = 4096  # steps up to which an encoder of any structure is put to the test column by column
SquaredSensitivity = Callable[[Encoder], tuple[float, bool]]
"""A bound on how far, squared, one record moves C G, never below it, and whether it is attained: the caller's, who
knows when records take part. Here every encoder is scaled by it."""


@dataclasses.dataclass(frozen=True)
class Form:
    """What kind of encoder is searched.

    Attributes:
        name: "toeplitz" (banded by `bandwidth`), "banded", "buffered" (BLT), "inverse" (C^-1 Toeplitz and banded) or
            "banded-inverse" (C^-1 banded).
        bandwidth: diagonals of C, or of C^-1; default as many as uses are apart for "toeplitz", else at most 32.
        buffers: exponentials of a buffered one.
    Raises: ProblemError: another name, numbers below 1.
    """

    name: str = "toeplitz"
    bandwidth: int | None = None
    buffers: int = USUAL_BUFFERS

    def __post_init__(self) -> None:
        if self.name not in FORMS:
            raise ProblemError(f"form must be one of {', '.join(FORMS)}, got {self.name!r}.")
        if self.buffers < 1 or (self.bandwidth is not None and self.bandwidth < 1):
            raise ProblemError(f"bandwidth and buffers must be >= 1, got {self.bandwidth} and {self.buffers}.")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StructuredFactorization(Certified):
    """An encoder with structure, with what it costs and how far that is from the best of any structure.

    Attributes:
        encoder: C, of sensitivity at most `sensitivity`.
        objective: sensitivity^2 tr(H C^-1 C^-T), per unit noise variance and coordinate.
        lower_bound: no C of any shape has a smaller objective.
        sensitivity: an upper bound, 1 up to rounding; sensitivity_exact: none is smaller.
    """

    encoder: Encoder
    sensitivity: float
    sensitivity_exact: bool

    @property
    def structure_facts(self) -> dict[str, float]:
        """Rows that a stream of the noise keeps, and whether the sensitivity is attained."""
        return {"memory": self.encoder.memory, "sensitivity_exact": self.sensitivity_exact}


def best(
    cost: ModeCost, patterns: Spaced, form: Form, squared: SquaredSensitivity, *, max_iterations: int = 500
) -> StructuredFactorization:
    """The best of a form, as far as the search can tell ("stationary"), and a bound on all encoders.

    Raises: as `best_encoder`.
    """
    began = time.perf_counter()
    searched = best_encoder(cost, patterns, form, max_iterations=max_iterations)
    size = squared(searched.encoder)[0]
    if not 0 < size < math.inf:
        raise ProblemError(
            f"encoder must have a sensitivity that float64 can tell, got {size}; use one whose inverse is better "
            "conditioned."
        )
    scaled = searched.encoder.scaled(size**-0.5)
    after, exact = squared(scaled)
    total = after * objective(cost, scaled)
    bound = lower_bound(cost, patterns, scaled)
    notes = () if exact else ("the sensitivity is an upper bound: the true objective may be smaller",)
    assert relative_gap(total, bound) > -1e-6
    return StructuredFactorization(
        encoder=scaled,
        objective=total,
        lower_bound=min(bound, total),
        status=STATIONARY,
        iterations=searched.iterations,
        seconds=time.perf_counter() - began,
        sensitivity=after**0.5,
        sensitivity_exact=exact,
        notes=notes,
    )


def best_encoder(cost: ModeCost, patterns: Spaced, form: Form, *, max_iterations: int = 500) -> SearchedEncoder:
    """The encoder of `best` alone, of any scale, without the cost of a bound.

    Raises: ProblemError: a band wider than uses are apart where it must not be; rates that change, but for VARYING
        forms.
    """
    if not cost.by_age and form.name not in VARYING:
        raise ProblemError(f"form {form.name!r} takes rates that do not change over the steps; use form 'banded'.")
    usual = None if form.name == "toeplitz" else min(patterns.gap, USUAL_BANDWIDTH)
    width = form.bandwidth or usual
    size = {"buffers": form.buffers} if form.name == "buffered" else {"bandwidth": width}
    return SEARCHES[form.name](cost, patterns, **size, max_iterations=max_iterations)


def objective(cost: ModeCost, encoder: Encoder) -> float:
    """tr(H C^-1 C^-T). Raises: ProblemError: no structure that makes it cheap, at more than MAX_COLUMNS steps."""
    if cost.by_age and (series := encoder.noise_series()) is not None:
        return cost.series_objective(series)[0]
    if (rows := encoder.diagonals()) is not None:
        return bands_objective(cost, rows)[0]
    if (rows := encoder.noise_diagonals()) is not None:
        columns = columns_from_rows(rows)
        return noising_objective(gram_diagonals(cost, columns.shape[1]), columns)[0]
    if cost.size > MAX_COLUMNS:
        raise ProblemError(
            f"the objective of a {type(encoder).__name__} encoder is computed column by column up to {MAX_COLUMNS} "
            f"steps, got {cost.size}; use rates that do not change, or a Banded one."
        )
    return cost.encoder_objective(encoder)

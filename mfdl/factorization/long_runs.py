"""Noise over many steps: the best encoder of a form with structure, against gossip, without an array of T x T.

In: what `factorize` takes. Out: an encoder (`mfdl.factorization.encoders`) that `CausalNoise` and `mf_dsgd` take,
with objective, a certified lower bound on the objective of any encoder, and their gap. The error Gram is known by the
spectral measure of the gossip alone: each of its eigenvalues is a scalar recursion.

Sensitivity of an encoder with structure: from its coefficients or bands, never from an array of T x T.

Toeplitz C (buffered ones too) go to `toeplitz_bound`, banded ones to `banded_bound`, and to both where C is both. Where
C^-1 = N is given and D is its diagonal, |C| <= M = (2 D - |N|)^-1 entry by entry (the comparison matrix of a triangular
N), and C = M where no entry of N beside the diagonal is positive. M comes by substitution, from terms >= 0 alone, so
its rounding is relative. The coefficients of a Toeplitz C are found likewise, and certified by what N leaves of them:
with N c = e + r, c is off by N^-1 r, at most M |r|.

A number that no rule gives, or that may be improved, is that of the Gram matrix itself, where T lets it be written out:
where N is given, times (1 - ||C N - I||)^-2 for the C that is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

import mfdl_solvers
from mfdl_solvers import Stopping, structured
from mfdl_solvers.encoders import Encoder, inflation_of, rounding_of_substitution
from mfdl_solvers.pattern_sets import PERIODIC, Spaced
from mfdl_solvers.structured import FORMS, Form, ModeCost, StructuredFactorization
from mfdl_solvers.ties import first_largest, first_maximum

from .. import check
from ..check import integer_at_least
from ..dynamics import Dynamics
from ..errors import UnsupportedMechanism, require_known
from ..floats import UNIT
from ..noise.encoder_arguments import MAX_DENSE_STEPS
from ..objective import ErrorWeights
from ..objective.spectra import SpectralMeasure
from ..participation import Participation
from ..progress import Progress, reporter
from ..sensitivity.banded_bounds import BandedGram, banded_bound, toeplitz_bound
from ..sensitivity.elliptope import TOLERANCE
from ..sensitivity.patterns import PatternBound, bound
from ..spec import refusing
from .setting import Setting, solver_refusals
from .temporal import problem

USUAL_ITERATIONS = 500
USUAL_BUFFERS = structured.bound.USUAL_BUFFERS
DENSE_BOUND_STEPS = 1024
"""Steps up to which the lower bound is that of the dense problem, by its own solver."""
DENSE_BOUND_TOLERANCE, DENSE_BOUND_ITERATIONS = 1e-3, 300


def _form(participation: Participation, form: str, bandwidth: int | None, buffers: int) -> Form:
    """Checked; raises InvalidInput."""
    require_known("form", form, FORMS)
    if bandwidth is not None:
        check.at_most_steps(participation.num_steps, bandwidth=bandwidth)
    return Form(form, bandwidth, integer_at_least(1, buffers=buffers))


@refusing({})
@solver_refusals()
def best_of_form(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    max_iterations: int = USUAL_ITERATIONS,
    progress: Progress = "auto",
    measure: SpectralMeasure | None = None,
    bandwidth: int | None = None,
    buffers: int = USUAL_BUFFERS,
    form: str = "toeplitz",
) -> Encoder:
    """The encoder of `factorize_long`, without what its bound costs: the search alone.

    Args, Raises: as `factorize_long`.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    chosen = _form(participation, form, bandwidth, buffers)
    limit = integer_at_least(1, max_iterations=max_iterations)
    cost, patterns = mode_cost(setting, measure), spaced_patterns(participation)
    with reporter(progress).status(f"searching {cost.size:,} steps, {form}"):
        return structured.best_encoder(cost, patterns, chosen, max_iterations=limit).encoder


@refusing({})
@solver_refusals()
def factorize_long(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    max_iterations: int = USUAL_ITERATIONS,
    progress: Progress = "auto",
    measure: SpectralMeasure | None = None,
    bandwidth: int | None = None,
    buffers: int = USUAL_BUFFERS,
    form: str = "toeplitz",
) -> StructuredFactorization:
    """The best encoder of a form, with objective, certified lower bound and gap; status "stationary".

    Args:
        dynamics, participation: what trains, and who takes part when.
        weights, counted_models: which models count; default all alike, after averaging ("message": before).
        max_iterations: of the search. There is no tolerance: the objective is at most the gap above the optimum.
        measure: of one step's averaging, where it is not that of `NoiseObjective.spectral_measure`.
        bandwidth: diagonals of C or of its inverse; default as many as uses of a record are apart, and at most 32 of a
            form that is not "toeplitz".
        buffers: how many exponentials.
        form: "toeplitz", "banded", "buffered" (BLT: exponentials, constant memory), "inverse" (C^-1 Toeplitz and
            banded, as BISR and DP-lambda-CGD) or "banded-inverse" (C^-1 banded, every entry free).

    Guarantees: the sensitivity of the encoder is at most 1, whatever the search did: exact, or an upper bound (then a
        note says so). lower_bound holds for encoders of any shape.
    Raises: UnsupportedMechanism: gossip without a spectral measure, participation without a structure, released models;
        InvalidInput: names and numbers out of range, a band wider than uses of a record are apart, a schedule of rates
        (forms other than the banded ones).
    Cost: O(T log T) a mode and iteration (banded: T bandwidth^2; banded inverse: T bandwidth (bandwidth + period),
        whatever the modes), and T modes^2 for the bound; up to DENSE_BOUND_STEPS a dense factorization besides, whose
        bound is the better one for several uses.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    chosen = _form(participation, form, bandwidth, buffers)
    limit = integer_at_least(1, max_iterations=max_iterations)
    cost, patterns = mode_cost(setting, measure), spaced_patterns(participation)
    with reporter(progress).status(f"factorizing {cost.size:,} steps, {form}"):
        squared = _squared_sensitivity(participation)
        best = structured.best(cost, patterns, chosen, squared, max_iterations=limit)
        return _bounded(setting, best) if patterns.kind == PERIODIC else best


@solver_refusals()
def evaluate_long(
    setting: Setting, encoder: Encoder, *, measure: SpectralMeasure | None = None
) -> StructuredFactorization:
    """A given encoder in a setting: objective at unit sensitivity, lower bound, status "fixed".

    Raises: as `factorize_long`.
    """
    cost, patterns = mode_cost(setting, measure), spaced_patterns(setting.participation)
    return structured.evaluate(cost, patterns, encoder, _squared_sensitivity(setting.participation))


def _squared_sensitivity(participation: Participation) -> Callable[[Encoder], tuple[float, bool]]:
    """The accountant's, without what it takes where it is not exact."""

    def squared(encoder: Encoder) -> tuple[float, bool]:
        bound = structured_bound(encoder, participation, "certified")
        return bound.upper, bound.exact

    return squared


def _bounded(setting: Setting, solved: StructuredFactorization) -> StructuredFactorization:
    """With the lower bound of the dense problem, where its arrays are small."""
    if setting.participation.num_steps > DENSE_BOUND_STEPS:
        return solved
    posed = problem(
        setting.dynamics, setting.participation, weights=setting.weights, counted_models=setting.counted_models
    )
    dense = mfdl_solvers.solve(posed, Stopping(DENSE_BOUND_TOLERANCE, DENSE_BOUND_ITERATIONS))
    bound = min(
        solved.objective, max(solved.lower_bound, dense.lower_bound)
    )  # rounding alone can lift it above the objective
    return dataclasses.replace(solved, lower_bound=bound)


def mode_cost(setting: Setting, measure: SpectralMeasure | None = None) -> ModeCost:
    """`NoiseObjective.mode_cost` of a setting; raises InvalidInput: a participation for another number of nodes."""
    setting.participation.require_nodes(setting.dynamics.num_nodes)
    return setting.noise_objective.mode_cost(measure)


def spaced_patterns(participation: Participation) -> Spaced:
    """Patterns of k uses that are b steps apart, or at least that; raises UnsupportedMechanism: any other."""
    patterns = participation.patterns_of_record()
    if isinstance(patterns, Spaced):
        return patterns
    raise UnsupportedMechanism(
        f"forms with structure take cyclic, single, every-step and min-separation participation, got "
        f"{participation.describe()}; use factorize."
    )


MAX_PRODUCTS = 10**10  # of a substitution
IMPROVED = 512  # T up to which a bound that is not exact is improved by the Gram matrix
BLOCK = 10**6  # numbers of one substitution at once


def structured_bound(encoder: Encoder, participation: Participation, method: str = "exact") -> PatternBound:
    """Bounds on max over patterns and ||g_t|| <= 1 of ||C g||^2.

    Guarantees: upper is never below, lower never above the true value; exact where they meet within TOLERANCE.
    Raises: UnsupportedMechanism: a participation that takes C^T C as an array, over more steps than that is formed for.
    """
    bounds = [each for each in _by_structure(encoder, participation) if each is not None]
    best = _best(bounds) if bounds else None
    T = encoder.size
    improved = min(IMPROVED, MAX_DENSE_STEPS) if method == "exact" else 0
    if best is not None and (best.exact or improved < T):
        return best
    if T > MAX_DENSE_STEPS:
        raise UnsupportedMechanism(
            f"the sensitivity of a {type(encoder).__name__} encoder under {participation.describe()} takes an array "
            f"of T x T, which is limited to {MAX_DENSE_STEPS} steps, got {T}; use cyclic participation of fewer "
            "classes, or an encoder that is Toeplitz or banded itself."
        )
    C = np.tril(encoder.dense())
    off = encoder.entry_rounding * np.asarray(np.abs(C).T @ np.abs(C))
    written = bound(C.T @ C, participation, method, off + 2 * (T + 2) * UNIT * (np.abs(C).T @ np.abs(C)))
    more = inflation_of(encoder.written_defect(C))
    written = dataclasses.replace(written, upper=written.upper * more, lower=written.lower / more)
    return _best([*bounds, written])


def _best(bounds: list[PatternBound]) -> PatternBound:
    upper, lower = min(each.upper for each in bounds), max(each.lower for each in bounds)
    pattern = first_maximum(bounds, lambda each: each.lower).pattern
    return PatternBound(upper, lower, upper <= (1 + TOLERANCE) * lower, pattern)


def _by_structure(encoder: Encoder, participation: Participation) -> Iterator[PatternBound | None]:
    if (c := encoder.certified_series()) is not None:
        yield toeplitz_bound(c, participation)
    if (rows := encoder.diagonals()) is not None:
        yield banded_bound(BandedGram.of_rows(rows), participation)
    yield _of_comparison(encoder, participation)


def _of_comparison(encoder: Encoder, participation: Participation) -> PatternBound | None:
    """||M 1_pattern||^2 of patterns that are classes, where the diagonals of C^-1 were given."""
    rows, patterns = encoder.noise_diagonals(), participation.patterns_of_record()
    if rows is None or patterns.kind != PERIODIC:
        return None
    T, w = rows.shape
    b = patterns.gap
    if T * w * b > MAX_PRODUCTS:
        return None
    squares = np.zeros(b)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, b, width := max(1, BLOCK // w)):
            classes = np.arange(start, min(start + width, b))
            for row in encoder.class_sums(b, classes) or ():
                squares[start : start + width] += row**2
    rounding = 2 * rounding_of_substitution(T, w) + 4 * (T + 4) * UNIT
    largest = float(squares.max())
    upper = largest * (1 + 2 * rounding)
    if not math.isfinite(upper):
        return PatternBound(math.inf, 0.0, False, (int(np.argmax(~np.isfinite(squares))),))  # exact: booleans
    lower = largest * (1 - 2 * rounding) if encoder.nonnegative else 0.0
    return PatternBound(upper, lower, upper <= (1 + TOLERANCE) * lower, tuple(range(first_largest(squares), T, b)))

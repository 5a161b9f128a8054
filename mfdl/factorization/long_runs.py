"""Noise over many steps: the best encoder of a form with structure, against gossip, without an array of T x T.

In: what `factorize` takes. Out: an encoder (`mfdl.factorization.encoders`) that `CausalNoise` and `mf_dsgd` take,
with objective, a certified lower bound on the objective of any encoder, and their gap. The error Gram is known by the
spectral measure of the gossip alone: each of its eigenvalues is a scalar recursion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import mfdl_solvers
from mfdl_solvers import Stopping, structured
from mfdl_solvers.encoders import Encoder
from mfdl_solvers.pattern_sets import PERIODIC, Spaced
from mfdl_solvers.structured import FORMS, Form, ModeCost, StructuredFactorization

from .. import check
from ..check import integer_at_least
from ..dynamics import Dynamics
from ..errors import UnsupportedMechanism, require_known
from ..objective import ErrorWeights
from ..objective.spectra import SpectralMeasure
from ..participation import Participation
from ..progress import Progress, reporter
from ..sensitivity.encoder_bounds import structured_bound
from ..spec import refusing
from .setting import Setting, solver_refusals
from .temporal import problem

USUAL_ITERATIONS = 500
USUAL_BUFFERS = structured.bound.USUAL_BUFFERS
DENSE_BOUND_STEPS = 1024
"""Steps up to which the lower bound is that of the dense problem, by its own solver."""
DENSE_BOUND_TOLERANCE, DENSE_BOUND_ITERATIONS = 1e-3, 300


def _form(participation: Participation, form: str, bandwidth: int | None, buffers: int) -> Form:
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
    """A given encoder in a setting: objective at unit sensitivity, lower bound, status "fixed"."""
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
    counted = {"weights": setting.weights, "counted_models": setting.counted_models}
    posed = problem(setting.dynamics, setting.participation, **counted)  # type: ignore[arg-type]
    dense = mfdl_solvers.solve(posed, Stopping(DENSE_BOUND_TOLERANCE, DENSE_BOUND_ITERATIONS))
    # rounding alone can lift it above the objective
    bound = min(solved.objective, max(solved.lower_bound, dense.lower_bound))
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

"""One door to all forms of structured encoders: the best of a form, or a given one, with objective, bound and gap."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from ..encoders import Encoder
from ..encoders.banded_encoder import columns_of
from ..pattern_sets import Spaced
from ..problem import FIXED, STATIONARY, Certified, ProblemError, relative_gap
from .banded_search import best_banded, best_banded_inverse, of_bands
from .bound import lower_bound
from .cost import ModeCost, gram_diagonals, of_noising
from .toeplitz_search import SearchedEncoder, best_buffered, best_inverse, best_toeplitz

FORMS = ("toeplitz", "banded", "buffered", "inverse", "banded-inverse")
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
    def of_structure(self) -> dict[str, float]:
        """Rows that a stream of the noise keeps, and whether the sensitivity is attained."""
        return {"memory": self.encoder.memory, "sensitivity_exact": self.sensitivity_exact}


def best(
    cost: ModeCost, patterns: Spaced, form: Form, squared: SquaredSensitivity, *, max_iterations: int = 500
) -> StructuredFactorization:
    """The best encoder of a form, as far as the search can tell (status "stationary"), and a bound on all others.

    Raises: as `best_encoder`.
    """
    began = time.perf_counter()
    searched = best_encoder(cost, patterns, form, max_iterations=max_iterations)
    return _certified(cost, patterns, searched, squared, STATIONARY, began)


def best_encoder(cost: ModeCost, patterns: Spaced, form: Form, *, max_iterations: int = 500) -> SearchedEncoder:
    """The encoder of `best` alone, of any scale, without the cost of a bound.

    Raises: ProblemError: a band wider than uses are apart where it must not be; rates that change over the steps, which
        VARYING forms alone take.
    """
    if not cost.by_age and form.name not in VARYING:
        raise ProblemError(f"form {form.name!r} takes rates that do not change over the steps; use form 'banded'.")
    width = min(patterns.gap, USUAL_BANDWIDTH) if form.bandwidth is None else form.bandwidth
    if form.name == "toeplitz":
        return best_toeplitz(cost, patterns, bandwidth=form.bandwidth, max_iterations=max_iterations)
    if form.name == "banded":
        return best_banded(cost, patterns, bandwidth=width, max_iterations=max_iterations)
    if form.name == "buffered":
        return best_buffered(cost, patterns, buffers=form.buffers, max_iterations=max_iterations)
    if form.name == "inverse":
        return best_inverse(cost, patterns, bandwidth=width, max_iterations=max_iterations)
    return best_banded_inverse(cost, patterns, bandwidth=width, max_iterations=max_iterations)


def evaluate(
    cost: ModeCost, patterns: Spaced, encoder: Encoder, squared: SquaredSensitivity
) -> StructuredFactorization:
    """A given encoder: status "fixed"."""
    if encoder.size != cost.size:
        raise ProblemError(f"encoder must be over {cost.size} steps, got {encoder.size}.")
    return _certified(cost, patterns, SearchedEncoder(encoder, 0), squared, FIXED, time.perf_counter())


def objective(cost: ModeCost, encoder: Encoder) -> float:
    """tr(H C^-1 C^-T).

    Raises: ProblemError: neither C nor C^-1 banded or Toeplitz, or Toeplitz at rates that change, at more than
        MAX_COLUMNS steps.
    """
    if cost.by_age and (series := encoder.noise_series()) is not None:
        return cost.of_series(series)[0]
    if (rows := encoder.diagonals()) is not None:
        return of_bands(cost, rows)[0]
    if (rows := encoder.noise_diagonals()) is not None:
        columns = columns_of(rows)
        return of_noising(gram_diagonals(cost, columns.shape[1]), columns)[0]
    if cost.size > MAX_COLUMNS:
        raise ProblemError(
            f"the objective of a {type(encoder).__name__} encoder is computed column by column up to {MAX_COLUMNS} "
            f"steps, got {cost.size}; use rates that do not change, or a Banded one."
        )
    return cost.of_columns(encoder)


def _certified(
    cost: ModeCost, patterns: Spaced, searched: SearchedEncoder, squared: SquaredSensitivity, status: str, began: float
) -> StructuredFactorization:
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
        status=status,
        iterations=searched.iterations,
        seconds=time.perf_counter() - began,
        sensitivity=after**0.5,
        sensitivity_exact=exact,
        notes=notes,
    )

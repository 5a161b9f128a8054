"""Sensitivity of encoders with structure: by series, diagonals or inverse, else by C^T C as an array."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from mfdl_solvers.encoders import Encoder, inflation_of, rounding_of_substitution
from mfdl_solvers.pattern_sets import PERIODIC
from mfdl_solvers.ties import first_largest, first_maximum

from ..errors import UnsupportedMechanism
from ..floats import UNIT
from ..noise.encoder_arguments import MAX_DENSE_STEPS
from ..participation import Participation
from .banded_bounds import BandedGram, banded_bound, toeplitz_bound
from .elliptope import TOLERANCE
from .patterns import PatternBound, bound

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

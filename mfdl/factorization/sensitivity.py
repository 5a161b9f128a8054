"""Sensitivity of an encoder with structure: from its coefficients or bands, never from an array of T x T.

Toeplitz (buffered ones too) and banded C go to `toeplitz` and `banded`, both where C is both. Where C^-1 = N is given
and D is its diagonal, |C| <= M = (2 D - |N|)^-1 entry by entry (the comparison matrix of a triangular N), and C = M
where no entry of N beside the diagonal is positive. M comes by substitution, from terms >= 0 alone, so its rounding is
relative. The coefficients of a Toeplitz C are found likewise, and certified by what N leaves of them: with N c = e + r,
c is off by N^-1 r, at most M |r|.

A number that no rule gives, or that may be improved, is that of the Gram matrix itself, where T lets it be written out:
where N is given, times (1 - ||C N - I||)^-2 for the C that is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import scipy.linalg

from mfdl_solvers.pattern_sets import PERIODIC

from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..floats import UNIT
from ..noise.inverses import inflation_of
from ..noise.strategy import MAX_DENSE_STEPS, Encoder, shipped
from ..participation import Participation
from ..sensitivity.banded import BandedGram, banded_bound
from ..sensitivity.elliptope import TOLERANCE
from ..sensitivity.patterns import PatternBound, bound
from ..sensitivity.toeplitz import Coefficients, toeplitz_bound
from .encoders import Banded, Buffered, Inverse, Toeplitz

MAX_BANDS = 5 * 10**7  # numbers in the bands of C, 400 MB
MAX_PRODUCTS = 10**10  # of a substitution
IMPROVED = 512  # T up to which a bound that is not exact is improved by the Gram matrix
BLOCK = 10**6  # numbers of one substitution at once


def structured_bound(encoder: Encoder, participation: Participation, method: str = "exact") -> PatternBound:
    """Bounds on max over patterns and ||g_t|| <= 1 of ||C g||^2.

    Guarantees: upper is never below, lower never above the true value; exact where they meet within TOLERANCE.
    Raises: UnsupportedMechanism: a participation that takes C^T C as an array, over more steps than that is formed for.
    """
    found = [each for each in _by_structure(encoder, participation) if each is not None]
    best = _best(found) if found else None
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
    off = _relative(encoder) * np.asarray(np.abs(C).T @ np.abs(C))
    written = bound(C.T @ C, participation, method, off + 2 * (T + 2) * UNIT * (np.abs(C).T @ np.abs(C)))
    if isinstance(encoder, Inverse):  # C as it is written out may be far from N^-1, beside its own entries too
        more = inflation_of(C, encoder.noising.dense())
        written = dataclasses.replace(written, upper=written.upper * more, lower=written.lower / more)
    return _best([*found, written])


def _relative(encoder: Encoder) -> float:
    """How far entries of X may be off beside |C|^T |C|, from what makes C of other numbers."""
    return 0.0 if isinstance(encoder, Banded) else 64 * encoder.size * UNIT


def _best(found: list[PatternBound]) -> PatternBound:
    upper, attained = min(each.upper for each in found), max(found, key=lambda each: each.lower)
    exact = upper <= (1 + TOLERANCE) * attained.lower
    return dataclasses.replace(attained, upper=upper, exact=exact)


def coefficients_of(encoder: Encoder) -> Coefficients | None:
    """c of a Toeplitz C that the library ships, however it is given; None for another, or too many products."""
    if not shipped(encoder):  # a class of one's own may have other products
        return None
    if isinstance(encoder, Inverse):
        return _inverted(encoder.noising) if isinstance(encoder.noising, Toeplitz) else None
    if isinstance(encoder, Buffered):
        return _of_exponentials(encoder)
    if not isinstance(encoder, Toeplitz):
        return None
    c = np.zeros(encoder.size)
    c[: encoder.series.size] = encoder.series
    return Coefficients(c, np.zeros(encoder.size))


def _by_structure(encoder: Encoder, participation: Participation) -> list[PatternBound | None]:
    if not shipped(encoder):
        return []
    if isinstance(encoder, Inverse) and isinstance(encoder.noising, Banded):
        return [_of_comparison(encoder.noising, participation)]
    found = [_of_coefficients(coefficients_of(encoder), participation)]
    if isinstance(encoder, Toeplitz):
        T, series = encoder.size, encoder.series
        if series.size * T <= MAX_BANDS and series.size < T:
            rows = np.broadcast_to(series, (T, series.size))
            found.append(banded_bound(BandedGram.of_rows(rows), participation))
        return found
    if isinstance(encoder, Banded):
        return [banded_bound(BandedGram.of_rows(encoder.rows), participation)]
    return found


def _of_coefficients(c: Coefficients | None, participation: Participation) -> PatternBound | None:
    return None if c is None else toeplitz_bound(c, participation)


def _of_exponentials(encoder: Buffered) -> Coefficients:
    """The coefficients of a buffered encoder; powers, products and sums of them lose a few units each."""
    absolute = Buffered(np.abs(encoder.scales), np.abs(encoder.decays), encoder.size, encoder.diagonal).series
    return Coefficients(encoder.series, 4 * (len(encoder.scales) + 8) * UNIT * absolute)


# ---- where the inverse is given -------------------------------------------------------------------------------------


def _inverted(noising: Toeplitz) -> Coefficients | None:
    """c with N c = e."""
    T, N = noising.size, noising.series
    if T * N.size > MAX_BANDS:
        return None
    start = np.zeros(T)
    start[0] = 1.0
    comparison = np.concatenate([N[:1], -np.abs(N[1:])])
    with np.errstate(over="ignore", invalid="ignore"):
        c = _substituted(N, start)
        left, size = -start, start.copy()
        for j, weight in enumerate(N.tolist()):
            left[j:] += weight * c[: T - j]
            size[j:] += abs(weight) * np.abs(c[: T - j])
        left = np.abs(left) + 2 * (N.size + 4) * UNIT * size
        errors = _substituted(comparison, left) * (1 + _of_substitution(T, N.size))
    errors[~np.isfinite(errors)] = math.inf
    return Coefficients(np.where(np.isfinite(c), c, 0.0), errors)


def _substituted(series: FloatArray, right: FloatArray) -> FloatArray:
    """x with series * x = right, by substitution, which leaves terms >= 0 such."""
    bands = np.repeat(series[:, None], len(right), axis=1)
    return np.asarray(scipy.linalg.lapack.dtbtrs(bands, right, uplo="L")[0]).ravel()


def _of_substitution(steps: int, width: int) -> float:
    """Relative rounding of substitution with terms >= 0: at most width + 2 units in each step on the way."""
    return 4 * (width + 4) * steps * UNIT


def _of_comparison(noising: Banded, participation: Participation) -> PatternBound | None:
    """||M 1_pattern||^2 of patterns that are classes."""
    rows, patterns = noising.rows, participation.patterns_of_record()
    if patterns.kind != PERIODIC:
        return None
    T, w = rows.shape
    b = patterns.gap
    if T * w * b > MAX_PRODUCTS:
        return None
    squares = np.zeros(b)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, b, width := max(1, BLOCK // w)):
            for row in comparison_rows(noising, b, np.arange(start, min(start + width, b))):
                squares[start : start + width] += row**2
    worst = int(squares.argmax())
    rounding = 2 * _of_substitution(T, w) + 4 * (T + 4) * UNIT
    upper = float(squares[worst]) * (1 + 2 * rounding)
    if not math.isfinite(upper):
        return PatternBound(math.inf, 0.0, False, (worst,))
    lower = float(squares[worst]) * (1 - 2 * rounding) if (rows[:, 1:] <= 0).all() else 0.0
    return PatternBound(upper, lower, upper <= (1 + TOLERANCE) * lower, tuple(range(worst, T, b)))


def comparison_rows(noising: Banded, period: int, classes: np.ndarray) -> Iterator[FloatArray]:
    """The sums of each row of M over the steps of some classes t mod period, shape (classes,), rows one by one.

    x_t = (e_t + sum_j |N[t, t - j]| x_(t - j)) / N[t, t], of terms >= 0.
    """
    T, w = noising.rows.shape
    recent, sizes = np.zeros((max(w - 1, 1), classes.size)), np.abs(noising.rows)
    for t in range(T):
        made = (classes == t % period).astype(np.float64)
        for j in range(1, min(w, t + 1)):
            made += sizes[t, j] * recent[(t - j) % len(recent)]
        made /= sizes[t, 0]
        recent[t % len(recent)] = made
        yield made

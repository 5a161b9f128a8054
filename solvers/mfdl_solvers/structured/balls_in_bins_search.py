"""Encoders with structure for balls-in-bins: least error under bounds on M = (|C| E)^T (|C| E), without a T x T array.

The problem of `mfdl_solvers.balls_in_bins_encoder`, among C >= 0 that are Toeplitz or banded: entries are a shape
times squares, and L-BFGS minimises the scale-free log tr(H C^-1 C^-T) + log ||M_rq / cap_rq||_p for growing p. Nothing
rests on the search: the answer carries its own M, rounded up.

The lower bound is that of `bound`: V = diag(v) has sum_t v_t X_tt <= sum_r (max v over r) M_rr, so it holds for every C
with M_rr <= 1, however bins are correlated, and is loose where they hardly are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import scipy

from ..balls_in_bins_encoder import LOOK_EVERY, MEMORY, Slows, largest_beside, norm
from ..encoders import Banded, Encoder, Toeplitz, bins
from ..iterations import minimise
from ..pattern_sets import Periodic
from ..problem import STATIONARY, Array, Certified, ProblemError
from .bound import lower_bound
from .bound import objective as objective_of
from .cost import ModeCost, gram_diagonals
from .searches import bands_objective, log_loss, rows_from_columns, spread

FORMS = ("toeplitz", "banded")
NORMS = (8, 32, 128, 512)  # p of the norms that stand for the largest entry of M, one stage each
USUAL_BANDWIDTH = 32
BANDED_NORMS = (32, 128, 512)
TOLERANCE = 1e-4  # a stage ends when iterations win less than that each
AGES = 20.0  # first coefficients fall by e over so many steps
BESIDE = 0.1  # the first of them, relative to the diagonal
LEAST = 1e-3  # of these first coefficients: what a start from elsewhere has at least


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class BinEncoder(Certified):
    """An encoder with structure for balls-in-bins, no entry negative.

    Attributes:
        encoder: C; bin_gram: M, shape (b, b), rounded up, its largest diagonal entry 1 up to rounding.
        objective: tr(H C^-1 C^-T); lower_bound: no causal C of any shape and signs with M_rr <= 1 has less.
    """

    encoder: Encoder
    bin_gram: Array
    bound_over: ClassVar[str] = "encoder, of any shape and however its bins are correlated"

    @property
    def structure_facts(self) -> dict[str, float]:
        """Rows that a stream of the noise keeps."""
        return {"memory": self.encoder.memory}

    @property
    def correlation(self) -> float:
        """The largest M_rq of two bins."""
        return largest_beside(self.bin_gram)


def solve_form(
    cost: ModeCost,
    num_bins: int,
    correlation: float,
    form: str,
    *,
    bandwidth: int | None = None,
    start: BinEncoder | None = None,
    max_iterations: int = 1200,
) -> BinEncoder:
    """C of a form for bins t mod b, M_rq at most about `correlation` times M_rr.

    Args:
        form: "toeplitz" or "banded"; bandwidth: diagonals of C, default b, of "banded" at most 32.
        start: that of another correlation, to start from.
        max_iterations: of all stages.

    Raises: ProblemError: bins that do not divide T, a correlation out of [0, 1], another form, rates that change over
        the steps for "toeplitz".
    Cost: an iteration is O(modes T + T log T), of banded ones O(modes T bandwidth^2); some hundred of them.
    """
    T = cost.size
    if num_bins < 1 or T % num_bins:
        raise ProblemError(f"bins must divide the {T} steps, got {num_bins}.")
    if not 0 <= correlation <= 1:
        raise ProblemError(f"correlation must lie in [0, 1], got {correlation!r}.")
    if form not in FORMS:
        raise ProblemError(f"form must be one of {', '.join(FORMS)} for balls-in-bins, got {form!r}.")
    if form == "toeplitz" and not cost.by_age:
        raise ProblemError("form 'toeplitz' takes rates that do not change over the steps; use form 'banded'.")
    began, search = time.perf_counter(), _toeplitz if form == "toeplitz" else _banded
    width = min(T, bandwidth or (num_bins if form == "toeplitz" else min(num_bins, USUAL_BANDWIDTH)))
    alone = correlation == 0 or num_bins == 1 or width == 1
    encoder, iterations = search(cost, num_bins, 0.0 if alone else correlation, width, start, max_iterations)
    M = encoder.bin_gram(num_bins)
    assert M is not None
    scale = float(M.diagonal().max())
    encoder, M = encoder.scaled(scale**-0.5), M / scale
    objective = objective_of(cost, encoder)
    return BinEncoder(
        encoder=encoder,
        bin_gram=M,
        objective=objective,
        lower_bound=min(objective, lower_bound(cost, Periodic(T, T // num_bins, num_bins), encoder)),
        status=STATIONARY,
        iterations=iterations,
        seconds=time.perf_counter() - began,
    )


def _padded(series: Array, size: int) -> Array:
    return np.concatenate([series, np.zeros(size - series.size)])


# ---- Toeplitz --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Lags:
    """||M_rq / cap_rq||_p over the lags of bins, the largest M of each lag, as `toeplitz.log_loss` takes it."""

    bins: int
    correlation: float
    p: int

    def squared_size(self, series: Array) -> tuple[float, Array]:
        """The norm and its gradient in c >= 0, shape (T,)."""
        T, b = series.size, self.bins
        w = bins.folded(series, b)
        length = scipy.fft.next_fast_len(T + b, real=True)
        spectrum = scipy.fft.rfft(w, length)
        sums = np.maximum(scipy.fft.irfft(np.abs(spectrum) ** 2, length)[:b], 0.0)  # of M_(0, l)
        caps = np.concatenate([[1.0], np.full(b - 1, self.correlation)])
        size, slope = norm(sums / caps, self.p)
        of_lags = scipy.fft.rfft(slope / caps, length).real  # of both l and -l, together
        of_w = scipy.fft.irfft(2 * spectrum * of_lags, length)[:T]
        value = float(np.exp(size))
        return value, value * bins.folded(of_w[::-1], b)[::-1]


def _toeplitz(
    cost: ModeCost, num_bins: int, correlation: float, width: int, start: BinEncoder | None, max_iterations: int
) -> tuple[Encoder, int]:
    if correlation == 0:
        return Toeplitz([1.0], cost.size), 0
    first = BESIDE * np.exp(-np.arange(1, width) / AGES)
    begin = first if start is None else np.maximum(_after_first(start.encoder, width), LEAST * first)
    knots, iterations = spread(width - 1, num_bins), 0
    for p in NORMS:
        lags, shape = _Lags(num_bins, correlation, p), begin

        def series(x: Array, shape: Array = shape) -> Array:
            return np.concatenate([[1.0], shape * (knots @ x) ** 2])

        def value_and_gradient(x: Array, lags: _Lags = lags, shape: Array = shape) -> tuple[float, Array]:
            c = np.concatenate([[1.0], shape * (knots @ x) ** 2])
            value, gradient = log_loss(cost, lags, _padded(c, cost.size), width, free_encoder=True)
            return value, knots.T @ (gradient[1:] * shape * 2 * (knots @ x))

        x, more = _stage(value_and_gradient, np.ones(knots.shape[1]), max_iterations - iterations)
        begin, iterations = series(x)[1:], iterations + more
    return Toeplitz(np.concatenate([[1.0], begin]), cost.size), iterations


def _after_first(encoder: Encoder, width: int) -> Array:
    """c_j / c_0 for 0 < j < width."""
    series = encoder.envelope()
    return _padded(series, max(width, series.size))[1:width] / series[0]


# ---- banded ----------------------------------------------------------------------------------------------------------


def _banded(
    cost: ModeCost, num_bins: int, correlation: float, width: int, start: BinEncoder | None, max_iterations: int
) -> tuple[Encoder, int]:
    T = cost.size
    if correlation == 0:
        return _best_diagonal(cost, num_bins), 0
    begin = _begin(cost, num_bins, correlation, width, start)
    inside = np.arange(T)[:, None] >= np.arange(width)
    caps, iterations = np.where(np.eye(num_bins, dtype=bool), 1.0, correlation), 0
    for p in BANDED_NORMS:

        def rows(x: Array, shape: Array = begin) -> Array:
            bands = np.zeros((T, width))
            bands[inside] = shape[inside] * x**2
            return bands

        def value_and_gradient(x: Array, p: int = p, shape: Array = begin) -> tuple[float, Array]:
            bands = rows(x, shape)
            if not (bands[:, 0] > 0).all():
                return np.inf, x
            value, gradient = bands_objective(cost, bands)
            if not 0 < value < np.inf:
                return np.inf, x
            size, of_rows = _norm_of_rows(bands, caps, p)
            return float(np.log(value)) + size, ((gradient / value + of_rows)[inside] * shape[inside] * 2 * x)

        x, more = _stage(value_and_gradient, np.ones(int(inside.sum())), max_iterations - iterations)
        begin, iterations = rows(x, begin), iterations + more
    return Banded(begin), iterations


def _best_diagonal(cost: ModeCost, num_bins: int) -> Banded:
    """X_tt in proportion to sqrt(H_tt) within each bin."""
    weights, bins = np.sqrt(gram_diagonals(cost, 1)[:, 0]), np.arange(cost.size) % num_bins
    sums = np.bincount(bins, weights=weights)
    return Banded(np.sqrt(weights / sums[bins])[:, None])


def _begin(cost: ModeCost, num_bins: int, correlation: float, width: int, start: BinEncoder | None) -> Array:
    """Rows to start from: those of another correlation, or of the best Toeplitz C, scaled as the best diagonal one."""
    T = cost.size
    floor = np.concatenate([[1.0], BESIDE * np.exp(-np.arange(1, width) / AGES)])
    rows = None if start is None else start.encoder.diagonals()
    if rows is not None and rows.shape[1] == width:
        return np.where(rows_from_columns(np.ones((T, width))) > 0, np.maximum(rows, LEAST * floor * rows[:, :1]), 0.0)
    alike = cost if cost.by_age else cost.at_mean_rates
    series, _ = _toeplitz(alike, num_bins, correlation, width, None, 1200)
    scales = _best_diagonal(cost, num_bins).rows[:, 0]
    columns = np.tile(np.maximum(_padded(series.envelope(), width), LEAST * floor), (T, 1))
    return np.asarray(rows_from_columns(columns * scales[:, None]))


def _norm_of_rows(rows: Array, caps: Array, p: int) -> tuple[float, Array]:
    """log ||M_rq / cap_rq||_p of C[t, t - j] = rows[t, j] >= 0 and its gradient in the rows."""
    T, width = rows.shape
    b = len(caps)
    size, slope = norm(bins.from_rows(rows, b) / caps, p)
    of_M = slope / caps
    steps, by_bin = np.arange(b), rows.reshape(-1, b, width).transpose(1, 0, 2)
    at = (steps[:, None] - np.arange(width)) % b  # bin of each entry of a row
    of_rows = 2 * by_bin @ of_M[at[:, :, None], at[:, None, :]]
    return size, of_rows.transpose(1, 0, 2).reshape(T, width)


def _stage(function: Callable[[Array], tuple[float, Array]], start: Array, max_iterations: int) -> tuple[Array, int]:
    stop, most = Slows(TOLERANCE * LOOK_EVERY), max(max_iterations, 0)
    minimum = minimise(function, start, stop=stop, max_iterations=most, memory=MEMORY)
    return minimum.point, minimum.iterations

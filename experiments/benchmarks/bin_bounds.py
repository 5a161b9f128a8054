"""Bounds of balls-in-bins beside each other: Monte Carlo, hull and strides, chain; epsilon and seconds.

Nine matrices M of 16 bins at two multipliers of the noise each, chosen so that hull and strides certify epsilon = 0.726
and 1.993 at delta = 1e-5 (zero-out); three of them at low noise, multipliers 0.3 and 0.5. Monte Carlo is an interval:
the mean of 2^18 samples, less and plus three standard errors, turned into epsilon. With a path: also a table for the
pages.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
import time
from pathlib import Path

import numpy as np
from _measure import report

from mfdl.check import FloatArray
from mfdl.privacy.curves import BallsInBinsGaussian, chain_above, correlations, monte_carlo

BINS, DELTA, SAMPLES, SEED = 16, 1e-5, 2**18, 0
EPSILONS, LOW_NOISE = (0.726, 1.993), (0.3, 0.5)
AT_LOW_NOISE = ("equal correlation 0.3", "root of prefix sums, 1 epoch", "its first 16 coefficients, 10 epochs")


def of_coefficients(coefficients: FloatArray, epochs: int) -> FloatArray:
    """M over its largest entry, of a Toeplitz encoder."""
    steps = BINS * epochs
    C = sum(np.diag(np.full(steps - j, x), -j) for j, x in enumerate(coefficients[:steps]))
    V = C.reshape(steps, epochs, BINS).sum(axis=1)
    return (V.T @ V) / float((V.T @ V).diagonal().max())


def matrices() -> dict[str, FloatArray]:
    root = np.cumprod([1.0, *[(2 * j - 1) / (2 * j) for j in range(1, 640)]])  # of prefix sums
    lags = np.abs(np.arange(BINS)[:, None] - np.arange(BINS))
    lags = np.minimum(lags, BINS - lags)
    return {
        "equal correlation 0.3": np.where(lags == 0, 1.0, 0.3),
        "root of prefix sums, 1 epoch": of_coefficients(root, 1),
        "root of prefix sums, 4 epochs": of_coefficients(root, 4),
        "root of prefix sums, 10 epochs": of_coefficients(root, 10),
        "its first 16 coefficients, 10 epochs": of_coefficients(root[:16], 10),
        "its first 4 coefficients, 10 epochs": of_coefficients(root[:4], 10),
        "coefficients 1 / (j + 1), 10 epochs": of_coefficients(1 / np.arange(1.0, 161), 10),
        "0.6 to the power of the lag, cyclic": 0.6**lags,
        "neighbours 0.45, others 0": np.where(lags == 0, 1.0, np.where(lags == 1, 0.45, 0.0)),
    }


def sampled(M: FloatArray, multiplier: float, near: float) -> tuple[float, float]:
    """The interval of epsilon, of both directions the larger."""
    pair, ends = monte_carlo.Pair.from_gram(M / multiplier**2), []
    for way in ("kept", "lost"):
        rng, guess = np.random.default_rng(SEED), near
        for count in (2**14, 2**14, SAMPLES):
            draws = pair.draws(way, pair.mixture(way, guess, 2**20, 1e-3, rng), count, rng)
            guess = crossing(draws, 0.0)
        ends.append((crossing(draws, -3.0), crossing(draws, 3.0)))
    return max(low for low, _ in ends), max(high for _, high in ends)


def crossing(draws: monte_carlo.Draws, errors: float) -> float:
    """epsilon where the mean and so many standard errors are DELTA."""
    low, high = 0.0, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        mean, second = draws.moments(middle)
        above = mean + errors * math.sqrt(max(second - mean * mean, 0.0) / draws.a.size) > DELTA
        low, high = (middle, high) if above else (low, middle)
    return high


def timed(work, *arguments):
    began = time.perf_counter()
    return work(*arguments), time.perf_counter() - began


def row(name: str, M: FloatArray, target: float) -> dict[str, str]:
    """One line of the table."""
    hull, (chain, fit) = BallsInBinsGaussian(1.0, BINS, correlations(M), "zero-out"), timed(chain_above, M)
    multiplier = target if target in LOW_NOISE else hull.least_multiplier(target, DELTA)
    before, hull_seconds = timed(hull.at(multiplier).epsilon, DELTA)
    after, seconds = before, 0.0
    if chain is not None:
        after, seconds = timed(chain.epsilon, multiplier, "zero-out", DELTA, before)
    (low, high), samples = timed(sampled, M, multiplier, before)
    return {
        "M": name, "multiplier": f"{multiplier:.3f}", "Monte Carlo": f"{low:.4g} to {high:.4g}",
        "hull and strides": f"{before:.4g}", "certified now": f"{after:.4g}",
        "above Monte Carlo": f"{100 * (2 * after / (low + high) - 1):.1f} %",
        "seconds: samples, hull, chain": f"{samples:.1f}, {hull_seconds:.1f}, {seconds + fit:.1f}",
    }  # fmt: skip


def main(table: Path | None) -> None:
    rows = []
    for targets, names in ((EPSILONS, matrices()), (LOW_NOISE, AT_LOW_NOISE)):
        for name, target in itertools.product(names, targets):
            rows.append(row(name, matrices()[name], target))
            report("bin-bounds", **rows[-1])
    if table is not None:
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)

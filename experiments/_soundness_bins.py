"""Statements on balls-in-bins: the accounted delta is never below an oracle's, and close to it where the page says so.

Bins without correlation are compared with atoms merged into their means (`mfdl.testing.oracles.curve_oracles`), one
bin and two bins of a replaced record with the Gaussian that they are, two correlated bins with quadrature over the
plane of their means.
"""

from __future__ import annotations

import math

import numpy as np
from _campaign import Case, Excluded, Statement, shortfall

from mfdl.privacy import gaussian
from mfdl.privacy.curves import BallsInBinsGaussian, chain_above, correlations
from mfdl.privacy.curves.balls_in_bins import MOST_TIGHT
from mfdl.testing.oracles import curve_oracles as oracle
from mfdl.testing.oracles.curve_oracles import two_bin_delta

STATEMENTS: dict[str, Statement] = {}
FEW_BINS = 8
POINTS = {True: 250, False: 600}  # atoms of the oracle, for few bins and for more
QUADRATURE = 5e-3  # relative: what 801 points miss at the kink, where delta is small
CLOSE, APART = 1.02, 1e-3  # how far above the true epsilon an answer may be that is called tight


def statement(name: str, *, tolerance: float = 1e-9, share: float = 1.0):
    def register(differ):
        STATEMENTS[name] = Statement(name, differ, tolerance, share)
        return differ

    return register


def drawn_bins(rng: np.random.Generator, most: int = MOST_TIGHT) -> tuple[BallsInBinsGaussian, float]:
    """Bins without correlation, and a delta."""
    bins, adjacency = round(most ** rng.uniform()), str(rng.choice(["zero-out", "add-remove", "replace-one"]))
    multiplier = math.exp(rng.uniform(math.log(0.12), math.log(10)))
    return BallsInBinsGaussian(multiplier, bins, ((bins, 0.0),), adjacency), 10.0 ** rng.uniform(-12, -1)


def true_delta(bins: BallsInBinsGaussian, epsilon: float) -> float:
    shift = 1 / bins.noise_multiplier
    if bins.bins == 1 or (bins.bins == 2 and bins.adjacency == "replace-one"):
        mu = shift * math.sqrt(2.0 if bins.bins == 2 else 4.0 if bins.adjacency == "replace-one" else 1.0)
        return gaussian.delta_from_mu(mu, epsilon) * (1 - 1e-8)
    directions = ("replaced",) if bins.adjacency == "replace-one" else ("kept", "lost")
    return max(
        oracle.allocation_delta(shift, bins.bins, epsilon, way, POINTS[bins.bins <= FEW_BINS]) for way in directions
    )


def words(bins: BallsInBinsGaussian, delta: float) -> str:
    return f"{bins.bins} bins, multiplier {bins.noise_multiplier!r}, {bins.adjacency}, delta {delta!r}"


def label(bins: BallsInBinsGaussian) -> str:
    noise = "below 0.5" if bins.noise_multiplier < 0.5 else "0.5 to 2" if bins.noise_multiplier < 2 else "2 and more"
    return f"{bins.adjacency} | {noise} | balls-in-bins: adjacency by noise multiplier"


@statement("balls-in-bins: true delta <= the delta asked for", share=0.02)
def at_epsilon(rng: np.random.Generator) -> Case:
    bins, delta = drawn_bins(rng)
    return Case(shortfall(true_delta(bins, bins.epsilon(delta)), delta), label(bins), bins.bins, words(bins, delta))


@statement("balls-in-bins called tight: epsilon <= 1.02 true + 0.001", tolerance=0, share=0.02)
def tight(rng: np.random.Generator) -> Case:
    bins, delta = drawn_bins(rng)
    if not bins.tight(delta):
        raise Excluded("not called tight")
    less = (bins.epsilon(delta) - APART) / CLOSE
    off = 0.0 if less <= 0 or true_delta(bins, less) > delta else 1.0
    return Case(off, label(bins), bins.bins, words(bins, delta))


@statement("balls-in-bins: true delta <= delta at an epsilon", share=0.02)
def at_delta(rng: np.random.Generator) -> Case:
    bins, _ = drawn_bins(rng)
    epsilon = float(rng.choice([0.0, 1e-6, rng.uniform(0, 1), rng.uniform(0, 12)]))
    off = shortfall(true_delta(bins, epsilon), bins.delta(epsilon))
    return Case(off, label(bins), bins.bins, f"epsilon {epsilon!r}, {words(bins, 0.0)}")


@statement("two bins, any M: true delta <= delta at an epsilon", tolerance=QUADRATURE, share=0.02)
def of_two(rng: np.random.Generator) -> Case:
    """Entries of M alike or not, bins correlated or hardly, noise down to where quadrature ends."""
    d = np.array([1.0, rng.choice([1.0, rng.uniform(0.01, 1)])])
    c = float(rng.choice([0.0, 1e-6, rng.uniform(0, 1), 1.0])) * math.sqrt(d[1])
    M, multiplier = np.array([[d[0], c], [c, d[1]]]), math.exp(rng.uniform(math.log(0.5), math.log(5)))
    adjacency, epsilon = str(rng.choice(["zero-out", "replace-one"])), float(rng.choice([0.0, rng.uniform(0, 3)]))
    bins = BallsInBinsGaussian(multiplier, 2, correlations(M), adjacency, chain_above(M))
    directions = ("replaced",) if adjacency == "replace-one" else ("kept", "lost")
    true = max(two_bin_delta(M / multiplier**2, epsilon, way, 801) for way in directions)
    text = f"M {M.tolist()}, multiplier {multiplier!r}, {adjacency}, epsilon {epsilon!r}"
    return Case(shortfall(true, bins.delta(epsilon)), label(bins), 2, text)

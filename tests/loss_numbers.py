"""Numbers of a Gaussian mechanism over the ranges for which its conversions state an accuracy, and what they err by."""

import math

import mpmath
from hypothesis import strategies as st

SLACK = 1e-9  # the documented relative slack of delta
EXTRA_DIGITS = 110  # the oracle's digits where epsilon / mu may be as large as 5e8


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


mus = log_uniform(1e-6, 100.0)
deltas = log_uniform(1e-300, 0.5)
epsilons = log_uniform(1e-8, 2000.0)


@st.composite
def mu_and_epsilon(draw):
    """Pairs with delta between about 1e-300 and 1: epsilon is drawn through a = epsilon/mu - mu/2."""
    mu = draw(mus)
    return mu, mu * (draw(st.floats(max(-0.5 * mu, -37.0), 37.0)) + 0.5 * mu)


def exact_a(mu, epsilon):
    """epsilon / mu - mu / 2 with 1000 digits, of which up to 950 cancel."""
    return mpmath.mpf(epsilon) / mpmath.mpf(mu) - mpmath.mpf(mu) / 2

"""The numbers of the page on budgets that other tools print, from the normal distribution function alone."""

import math
import re
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

PAGE = (Path(__file__).parents[2] / "docs" / "howto_epsilon.md").read_text(encoding="utf-8")
DELTA = 1e-5
CLASSICAL = math.sqrt(2 * math.log(1.25 / DELTA)) / 3


def epsilon(sensitivity, noise_std, releases=1):
    """Where the largest difference of probabilities of two Gaussians, P(A) - e^epsilon Q(A), is delta."""
    distance = sensitivity * math.sqrt(releases) / noise_std

    def excess(epsilon):
        left = norm.cdf(distance / 2 - epsilon / distance)
        right = math.exp(epsilon + norm.logcdf(-distance / 2 - epsilon / distance))
        return left - right - DELTA

    return brentq(excess, 0, 500, xtol=1e-10)


def is_rounded_up(printed, value, above=0.0):
    """Whether a number of three digits is the next one above a value, or of an upper bound so much above it."""
    return value <= float(printed) <= value + above + 0.001


@pytest.mark.parametrize("rounds", [1, 10, 100])
@pytest.mark.parametrize(("adjacency", "sensitivity"), [("zero-out", 1), ("replace-one", 2)])
def test_noise_for_each_message(adjacency, sensitivity, rounds):
    (printed,) = re.findall(rf"^{adjacency} +{rounds} rounds  epsilon ([\d.]+)$", PAGE, re.MULTILINE)
    assert is_rounded_up(printed, epsilon(sensitivity, CLASSICAL, rounds))


def test_a_whole_algorithm_has_the_same_numbers():
    printed = re.findall(r"^[\w-]+ +epsilon ([\d.]+), exact$", PAGE, re.MULTILINE)
    assert all(is_rounded_up(x, epsilon(shift, CLASSICAL, 100)) for x, shift in zip(printed, (1, 2), strict=True))


def renyi(distance):
    """The least epsilon over the orders (Canonne, Kamath, Steinke, arXiv:2004.00010v7, Proposition 12)."""
    orders = [1 + x / 100 for x in range(1, 6400)]
    return min(a * distance**2 / 2 + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a in orders)


def test_one_mechanism_under_two_adjacencies():
    zero_out_renyi, zero_out, replaced, replaced_renyi = re.findall(r"^'([\d.]+)'$", PAGE, re.MULTILINE)
    assert is_rounded_up(zero_out, epsilon(1, 1))
    assert is_rounded_up(replaced, epsilon(2, 1))
    assert is_rounded_up(zero_out_renyi, renyi(1), above=0.001)  # its orders are fewer
    assert is_rounded_up(replaced_renyi, renyi(2), above=0.001)


def test_what_the_prose_says_of_these_numbers():
    assert epsilon(1, CLASSICAL) < 3 < epsilon(2, CLASSICAL)
    assert epsilon(1, CLASSICAL, 100) < epsilon(2, CLASSICAL, 100) < 300
    assert 2 * 4.73 < epsilon(2, 1) < 9.998

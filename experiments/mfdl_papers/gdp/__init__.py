"""Gaussian differential privacy, arXiv:1905.02383: claims about one Gaussian release and two together, by integration.

Corollaries 2.13 and 3.3."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from mfdl.testing.oracles.curve_oracles import exact_delta

from ..paper_claims import statements

MUS = st.integers(1, 12).map(lambda quarters: quarters / 4)

published_claim = statements(mu=MUS)


@published_claim("gdp-delta", epsilon=st.integers(0, 10), tolerance=1e-8, examples=60)
def gdp_delta(mu: float, epsilon: int) -> Any:
    start = epsilon / mu + mu / 2  # where the ratio of the densities reaches e^eps
    scale = -((start - mu) ** 2) / 2

    def excess(x: float) -> float:
        return math.exp(-((x - mu) ** 2) / 2 - scale) - math.exp(epsilon - x**2 / 2 - scale)

    ends = [start + width / (1 + start) for width in (0, 4, 16, 64)]
    integral = sum(quad(excess, a, b, epsabs=0.0, epsrel=1e-10)[0] for a, b in itertools.pairwise(ends))
    off = math.exp(scale) / math.sqrt(2 * math.pi) * integral / float(exact_delta(mu, epsilon)) - 1
    return 0.0, abs(off)


@published_claim("gdp-composition", first=MUS, second=MUS, epsilon=st.integers(0, 8), tolerance=1e-7, examples=100)
def gdp_composition(first: float, second: float, epsilon: int) -> Any:
    x, step = np.linspace(first - 14, first + 30, 6000, retstep=True)  # the first release; the second by its integral
    left = epsilon - (first * x - first**2 / 2)
    inner = ndtr(second / 2 - left / second) - np.exp(left + log_ndtr(-left / second - second / 2))
    delta = float((norm.pdf(x, first) * inner).sum() * step)
    return 0.0, abs(delta / float(exact_delta(math.hypot(first, second), epsilon)) - 1)

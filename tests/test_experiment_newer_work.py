"""The Renyi accountant that newer works are measured with, against enumeration."""

import itertools
import math

import newer_work
import numpy as np
import pytest


@pytest.mark.parametrize("bins", [3, 4, 5])
def test_moments_of_cyclic_bands_are_those_of_all_sequences(bins):
    G, lag = np.random.default_rng(bins).uniform(0, 1, (bins, bins)), np.subtract.outer(range(bins), range(bins)) % bins
    G = np.where(np.minimum(lag, bins - lag) < 2, G + G.T, 0.0)
    moments = newer_work.log_moments(G, 4)
    for order in (2, 3, 4):
        sequences = np.array(list(itertools.product(range(bins), repeat=order)))
        pairs = G[sequences[:, :, None], sequences[:, None, :]]
        exponents = (pairs.sum(axis=(1, 2)) - G[sequences, sequences].sum(axis=1)) / 2
        assert moments[order] == pytest.approx(math.log(np.exp(exponents).sum()), rel=1e-12)

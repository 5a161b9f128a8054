"""Pairwise noise cancels in the sum of all nodes, and drawn once for all steps it protects no difference over time."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip, spatial
from mfdl.dynamics import Dynamics
from mfdl.noise import StepNoise
from mfdl.participation import Cyclic
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import noise_stream

KEY = NoiseKey.from_seed(21)
T, D = 3, 20_000  # coordinates are samples
PART = Cyclic(1, T)


# ---- the counterexample: pairwise noise drawn once ------------------------------------------------------------------

RING, LOCAL, PAIR, STEPS, DELTA = "ring:n=16", 22.97, 94.0, 3500, 1e-5


def epsilon(loss):
    """(epsilon, DELTA) of the Renyi slope rho = (2 C)^2 loss / 2 at C = 1: rho + 2 sqrt(rho log(1 / DELTA))."""
    rho = 2 * loss
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def reused_covariance(steps, L):
    """sigma_local^2 I + sigma_pair^2 (11^T over time) (x) L."""
    return LOCAL**2 * np.eye(steps * len(L)) + PAIR**2 * np.kron(np.ones((steps, steps)), L)


@pytest.mark.parametrize("steps", [2, 4, 6])
def test_reused_pairwise_noise_protects_no_alternating_difference(steps):
    """By trying all signs of one record's gradient: the worst loss is steps / sigma_local^2, as without pairs at all.

    It is no larger either: the reused covariance is at least sigma_local^2 I, so its inverse at most 1 / sigma_local^2.
    """
    L = spatial.laplacian(RING).toarray()
    gram = np.linalg.inv(reused_covariance(steps, L))[::16, ::16]  # rows of node 0; all nodes of a ring are alike
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=steps)))
    losses = np.einsum("ks,st,kt->k", signs, gram, signs)
    assert losses.max() == pytest.approx(steps / LOCAL**2, rel=1e-9)
    assert signs[losses.argmax()].sum() == 0
    fresh_loss = steps * spatial.inverse_diagonal(spatial.decor_covariance(L, LOCAL, PAIR))
    assert losses.max() / fresh_loss == pytest.approx(7.9, abs=0.05)
    assert losses[-1] < fresh_loss  # a constant gradient is hidden better: all is lost in what changes over time


def test_the_published_setting_claims_10_46_and_has_37_99():
    """Ring of 16, 3500 steps (an even number, so that an alternating difference sums to zero), clip norm 1."""
    claimed = STEPS * spatial.inverse_diagonal(spatial.decor_covariance(spatial.laplacian(RING), LOCAL, PAIR))
    true = STEPS / LOCAL**2
    assert true / claimed == pytest.approx(7.9, abs=0.05)
    assert epsilon(claimed) == pytest.approx(10.46, abs=0.01)
    assert epsilon(true) == pytest.approx(37.99, abs=0.01)


def test_in_samples_reuse_takes_pairwise_noise_out_of_differences_over_time():
    """Variance of noise_0 - noise_1 at a node: 2 (sigma_local^2 + 2 sigma_pair^2) fresh, 2 sigma_local^2 reused."""
    one = algorithms.decor(Dynamics(gossip.metropolis_hastings(RING)), PART, sigma_local=LOCAL, sigma_pair=PAIR)
    private = StepNoise(LOCAL * np.eye(16), np.eye(16, dtype=bool), T, 16)
    incidence = spatial.incidence(RING)
    pairs = StepNoise(PAIR * incidence, (incidence.T != 0).tocsr(), T, 16)
    keys = HolderKeys.simulated(KEY)
    own, shared, stream = (noise_stream(noise, 1.0, keys, D) for noise in (private, pairs, one.noise))
    spread = 6 * math.sqrt(2 / D)  # of a relative variance
    fresh_difference = (stream.step(0) - stream.step(1)).var(axis=1)
    assert_allclose(fresh_difference, 2 * (LOCAL**2 + 2 * PAIR**2), rtol=spread)
    reused_difference = (own.step(0) + shared.step(0) - own.step(1) - shared.step(0)).var(axis=1)
    assert_allclose(reused_difference, 2 * LOCAL**2, rtol=spread)
    assert_allclose(stream.step(0), own.step(0) + shared.step(0), atol=1e-10)

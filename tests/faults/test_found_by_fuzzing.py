"""What campaigns of malformed input have found, one call each."""

import math

import numpy as np
import pytest

import mfdl
from mfdl.audit import audit
from mfdl.errors import InvalidInput
from mfdl.factorization import optimal_covariance
from mfdl.objective import ErrorWeights
from mfdl.participation import Cyclic, Explicit
from mfdl.privacy.accounting import victim_losses

RING = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=3"))
PLAIN = mfdl.algorithms.dp_dsgd(RING, Cyclic(epochs=1, period=2))
HOW = {"adjacency": "zero-out", "clip_norm": 1.0}


def bad_npy(folder):
    (folder / "W.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': (\n        ")
    return mfdl.gossip.load(str(folder / "W.npy"), mfdl.graphs.load("ring:n=3"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: ErrorWeights("last:inf"), "whole number of steps"),
        (lambda _: ErrorWeights("last:nan"), "whole number of steps"),
        (lambda _: mfdl.trust.named(["ldp"]), "unknown trust model"),
        (lambda _: mfdl.trust.named(0.5), "unknown trust model"),
        (lambda _: Explicit(3, 2), "sequences of steps"),
        (lambda _: mfdl.gossip.from_array([[1.0], [0.5, 0.5]]), "weights must be"),
        (lambda _: mfdl.gossip.from_array(np.eye(2) * 1j), "real numbers"),
        (lambda _: victim_losses(PLAIN, mfdl.trust.LDP(), lipschitz=1j), "lipschitz must be"),
        (lambda _: victim_losses(PLAIN, 1j), "trust must be a trust model"),
        (lambda _: optimal_covariance(RING, max_inverse_diagonal=1e-307), "max_inverse_diagonal"),
        (lambda _: audit(PLAIN, trust=mfdl.trust.LDP(), noise_std=1e-9, **HOW), "at most 1e\\+06 to be audited"),
        (lambda _: audit(PLAIN, trust=mfdl.trust.LDP(), noise_std=1.0, trials=10**9, **HOW), "trials must be at most"),
        (bad_npy, "not a .npy file"),
    ],
)
def test_refused_in_words(call, words, tmp_path):
    with pytest.raises(InvalidInput, match=words):
        call(tmp_path)


def test_a_half_life_next_to_zero_counts_the_last_step_alone():
    assert ErrorWeights("exponential:5e-324").of_steps(3).tolist() == [0, 0, 1]


def test_an_encoder_that_overflows_is_refused():
    C = np.array([[1.0, 0.0], [9e153, 1 / 9e153]])
    with pytest.raises(InvalidInput, match="diagonal of at least 1e-60 and entries of at most"):
        mfdl.algorithms.mf_dsgd(RING, Cyclic(epochs=1, period=2), C)


def test_an_encoder_whose_inverse_overflows_has_no_claim():
    C = np.eye(8)
    C[np.arange(1, 8), np.arange(7)], C[-1, -1] = 1e55, 1e-55
    algorithm = mfdl.algorithms.mf_dsgd(RING, Cyclic(epochs=1, period=8), C)
    assert all(math.isinf(one.sensitivity_squared) for one in victim_losses(algorithm, mfdl.trust.LDP()))


def test_extreme_noise_has_its_limits_in_a_reconstruction():
    found = mfdl.audit.reconstruct(PLAIN, mfdl.trust.LDP(), noise_std=1e-150, clip_norm=1e150)
    assert not found.hidden.any()
    found = mfdl.audit.reconstruct(PLAIN, mfdl.trust.LDP(), noise_std=1e150, clip_norm=1e-150)
    assert found.posterior_ratio.min() == 1

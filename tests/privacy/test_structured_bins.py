"""What balls-in-bins sees of structured encoders: never below the dense M, equal where no signs are lost, at any T."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import unsupported

import mfdl
from mfdl.factorization.encoders import Banded, Inverse, Toeplitz, bins
from mfdl.noise import CausalNoise
from mfdl.privacy.bin_gram import streamed, structured_gram, time_gram

sys.path.append(str(Path(__file__).parents[1] / "solvers"))
from _encoders import banded, buffered, inverse, toeplitz


def dense_gram(C, num_bins):
    V = np.abs(C).reshape(len(C), -1, num_bins).sum(axis=1)
    return V.T @ V


@examples(80)
@given(
    data=st.data(),
    num_bins=st.integers(1, 4),
    epochs=st.integers(1, 3),
    kind=st.sampled_from([toeplitz, banded, buffered, inverse]),
)
def test_it_is_never_below_the_dense_M_and_equal_where_no_signs_are_lost(data, num_bins, epochs, kind):
    encoder, C = data.draw(kind(num_bins * epochs))
    M, true = structured_gram(encoder, num_bins), dense_gram(C, num_bins)
    assert (true * (1 - 1e-12) <= M).all()
    if not (isinstance(encoder, Inverse) and isinstance(encoder.noising, Banded)) or encoder.nonnegative:
        assert_allclose(M, true, rtol=1e-9, atol=1e-9 * true.max())


@examples(30)
@given(seed=st.integers(0, 9999), num_bins=st.integers(1, 3), epochs=st.integers(1, 3), off=st.floats(1e-3, 0.9))
def test_noise_that_is_off_by_rounding_of_any_kind_is_covered(seed, num_bins, epochs, off):
    """(I + Delta)^-1 C for any Delta of that size."""
    rng, T = np.random.default_rng(seed), num_bins * epochs
    C = np.tril(rng.standard_normal((T, T)))
    wrong = np.tril(rng.standard_normal((T, T)))
    wrong *= off / np.linalg.norm(wrong)
    added = np.linalg.solve(np.eye(T) + wrong, C)
    assert (dense_gram(added, num_bins) <= streamed(dense_gram(C, num_bins), (1 - off) ** -2) * (1 + 1e-12)).all()


def algorithm(encoder, bins):
    T = encoder.size
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=3"), 0.1)
    return mfdl.algorithms.mf_dsgd(dynamics, mfdl.BallsInBins(epochs=T // bins, bins=bins), encoder)


def test_an_algorithm_has_the_M_of_its_encoder_written_out():
    encoder = Toeplitz([1.0, 0.5, 0.25], 12)
    built = algorithm(encoder, 4)
    written = CausalNoise(encoder.dense(), num_steps=12, num_nodes=3)
    assert_allclose(time_gram(built, [0, 1], 4), dense_gram(encoder.dense(), 4), rtol=1e-9)
    assert_allclose(structured_gram(encoder, 4), dense_gram(written.encoder_of(0), 4), rtol=1e-9)


def test_what_is_singular_or_too_large_is_refused(monkeypatch):
    unsupported("singular to working precision", lambda: structured_gram(Inverse(Toeplitz([1.0, -1e5], 64)), 4))
    unsupported("up to 4096 bins, got 8,192", lambda: time_gram(algorithm(Toeplitz([1.0, 0.5], 12), 4), [0], 8192))
    monkeypatch.setattr(bins, "MAX_PRODUCTS", 10)
    for encoder in (Toeplitz([1.0, 0.5], 12), Banded(np.ones((12, 1))), Inverse(Banded(np.ones((12, 1))))):
        unsupported("products, allowed are 1e", structured_gram, encoder, 4)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [Toeplitz(0.5 ** np.arange(8), 10_000), Banded(np.tri(10_000, 3))])
def test_ten_thousand_steps_take_no_array_of_steps_times_steps(encoder):
    tracemalloc.start()
    M = time_gram(algorithm(encoder, 50), [0], 50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000**2 / 4  # bytes: a thirty-second part of one such array
    assert np.isfinite(M).all()

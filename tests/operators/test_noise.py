"""Noise operators: causality, what is variance and what is held by whom, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl.errors import InvalidInput
from mfdl.operators import IndependentNoise, LocalNoise, ZeroNoise
from mfdl.testing import encoders


@st.composite
def local_noise(draw):
    n, T = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    if draw(st.booleans()):
        return LocalNoise(draw(encoders(size=T)), n)
    return LocalNoise(np.stack([draw(encoders(size=T)) for _ in range(n)]), n)


@settings(deadline=None)
@given(noise=local_noise())
def test_local_noise_is_causal_and_local(noise):
    T, n = noise.num_steps, noise.num_nodes
    by_step = noise.to_dense().reshape(T, n, T, n)
    for t in range(T):
        assert not by_step[t, :, t + 1 :].any()  # no base noise of a later step, exactly
        for u in range(n):
            others = [v for v in range(n) if v != u]
            assert not by_step[t, u][:, others].any()


@settings(deadline=None)
@given(noise=local_noise())
def test_inverse_and_variances(noise):
    T, n = noise.num_steps, noise.num_nodes
    N = noise.to_dense()
    # encoders of at most six steps, well conditioned: inverse entries below 1.5^6
    assert_allclose(noise.variances(), (N @ N.T).diagonal().reshape(T, n), rtol=1e-12)
    for u in range(n):
        assert_allclose(noise.inverse_of(u) @ noise.encoder_of(u), np.eye(T), atol=1e-12)
        assert_allclose(N[u::n, u::n], noise.inverse_of(u), atol=1e-14)


@settings(deadline=None)
@given(noise=local_noise())
def test_covariance_is_the_inverse_gram_of_the_encoder(noise):
    # (C^T C)^-1, and not (C C^T)^-1
    n = noise.num_nodes
    N = noise.to_dense()
    for u in range(n):
        C = noise.encoder_of(u)
        covariance = (N @ N.T)[u::n, u::n]
        assert_allclose(covariance @ (C.T @ C), np.eye(noise.num_steps), atol=1e-9)


def test_shared_and_repeated_encoder_agree():
    C = np.array([[1.0, 0.0], [-0.5, 2.0]])
    shared, repeated = LocalNoise(C, 3), LocalNoise(np.stack([C] * 3), 3)
    assert shared.shared
    assert not repeated.shared
    assert_allclose(shared.to_dense(), repeated.to_dense())
    assert_allclose(shared.variances(), repeated.variances())
    assert_array_equal(shared.encoder_of(2), repeated.encoder_of(2))


def test_independent_noise_is_local_noise_with_the_identity():
    independent, local = IndependentNoise(3, 2), LocalNoise(np.eye(3), 2)
    assert_array_equal(independent.to_dense(), local.to_dense())
    assert_array_equal(independent.variances(), local.variances())
    assert independent.columns_per_step == local.columns_per_step == 2


def test_zero_noise_has_no_columns():
    noise = ZeroNoise(3, 2)
    assert noise.shape == (6, 0)
    assert noise.columns_per_step == 0
    assert_array_equal(noise.variances(), np.zeros((3, 2)))


def test_encoder_is_an_own_read_only_copy():
    C = np.eye(2)
    noise = LocalNoise(C, 1)
    C[1, 0] = 5
    assert noise.encoder[1, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        noise.encoder[0, 0] = 2


def test_content_tells_encoders_apart():
    assert LocalNoise(np.eye(2), 1).content() != LocalNoise(2 * np.eye(2), 1).content()


@pytest.mark.parametrize(
    ("encoder", "nodes", "message"),
    [
        ([[1.0, 0.1], [0.0, 1.0]], 2, "encoder must be causal"),
        ([[1.0, 0.0], [3.0, 0.0]], 2, "positive diagonal, got 0 at step 1[.]"),
        ([[-1.0, 0.0], [0.0, 1.0]], 2, "positive diagonal, got -1 at step 0[.]"),
        (np.stack([np.eye(2), np.diag([1.0, -2.0])]), 2, "positive diagonal, got -2 at step 1 of node 1[.]"),
        ([1.0, 2.0], 2, r"shape \(T, T\) or \(n, T, T\), got \(2,\)"),
        ([[1.0, 0.0]], 2, r"shape \(T, T\) or \(2, T, T\), got \(1, 2\)"),
        (np.stack([np.eye(2)] * 3), 2, r"or \(2, T, T\), got \(3, 2, 2\)"),
        ([[1.0, 0.0], [np.nan, 1.0]], 2, "encoder must be finite"),
        (np.stack([np.eye(2), np.array([[1.0, 1.0], [0.0, 1.0]])]), 2, "encoder must be causal"),
    ],
)
def test_bad_encoders_are_refused(encoder, nodes, message):
    with pytest.raises(InvalidInput, match=message):
        LocalNoise(encoder, nodes)

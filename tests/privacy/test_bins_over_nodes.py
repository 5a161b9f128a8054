"""Balls-in-bins where noise correlates time and nodes: M by brute force, and delta by quadrature of the true law."""

import dataclasses
import math

import numpy as np
import pytest
from _privacy import applied
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl import BallsInBins, Dynamics, algorithms, gossip, trust
from mfdl.noise import JointNoise, SpatioTemporalNoise

KINDS = ("joint", "block", "per-mode", "kronecker")


def drawn(kind, n, T, seed):
    """A noise over both of seeds that all nodes hold; signs mixed."""
    rng = np.random.default_rng(seed)

    def encoder(size):
        return np.tril(rng.uniform(-1, 1, (size, size)), -1) / 2 + np.diag(rng.uniform(0.5, 2.0, size))

    F = rng.uniform(-1, 1, (n, n)) + 2 * np.eye(n)
    if kind == "joint":
        return JointNoise(encoder(T * n), T, n)
    if kind == "block":
        return JointNoise(np.kron(np.eye(T), F) @ encoder(T * n), T, n)
    C = np.stack([encoder(T) for _ in range(n)]) if kind == "per-mode" else encoder(T)
    return SpatioTemporalNoise(C, F, np.ones((n, n), dtype=bool), n)


def guarantee_of(noise, epochs, bins, model=None, **options):
    W = gossip.metropolis_hastings(f"complete:n={noise.num_nodes}" if noise.num_nodes > 2 else "path:n=2")
    algorithm = algorithms.dp_dsgd(Dynamics(W, 0.5), BallsInBins(epochs, bins))
    defaults = {"trust": model or trust.Eavesdropper(), "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 1.0}
    return applied(mfdl.account, dataclasses.replace(algorithm, noise=noise), defaults | options)


def blocks_of(noise):
    """C[t, ., s, u] of the dense inverse of N, shape (T, n, T, n)."""
    T, n = noise.num_steps, noise.num_nodes
    return np.linalg.inv(noise.to_dense()).reshape(T, n, T, n)


def brute_force(noise, bins):
    """(largest M_rr, largest M_rq) over the nodes, by the sums of the definition."""
    C, largest, apart = blocks_of(noise), 0.0, 0.0
    for u in range(noise.num_nodes):
        M = np.zeros((bins, bins))
        for t in range(noise.num_steps):
            v = [sum(math.hypot(*C[t, :, s, u]) for s in range(r, t + 1, bins)) for r in range(bins)]
            M += np.outer(v, v)
        largest = max(largest, M.diagonal().max())
        apart = max(apart, (M - np.diag(M.diagonal())).max())
    return largest, apart


@examples(120)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(2, 3),
    epochs=st.integers(1, 3),
    bins=st.integers(2, 3),
    seed=st.integers(0, 9999),
)
def test_what_counts_of_the_noise_is_its_definition(kind, n, epochs, bins, seed):
    """Never below, and equal up to rounding, whichever structure the noise has."""
    noise = drawn(kind, n, epochs * bins, seed)
    guarantee = guarantee_of(noise, epochs, bins)
    largest, apart = brute_force(noise, bins)
    assert guarantee.sensitivity >= math.sqrt(largest) * (1 - 1e-12)
    assert guarantee.sensitivity == pytest.approx(math.sqrt(largest), rel=1e-8)
    correlation, rho = guarantee.curve.correlations[0]
    assert correlation == bins
    assert rho * guarantee.sensitivity**2 >= apart * (1 - 1e-9)
    assert rho == pytest.approx(apart / largest, rel=1e-8)
    hidden = guarantee_of(noise, epochs, bins, trust.ReleasedOnly())
    assert hidden.sensitivity == guarantee.sensitivity
    assert "assumed to be seen" in hidden.why


def true_delta(shifts, std, epsilon):
    """Hockey-stick divergence of (N(m_0) + N(m_1)) / 2 against N(0), the larger direction, over the plane of both."""
    gram = shifts @ shifts.T / std**2
    root = np.linalg.cholesky(gram + 1e-14 * np.eye(2))
    grid = np.linspace(-8.0, 8.0, 401)
    x, y = np.meshgrid(grid, grid)
    density = np.exp(-(x**2 + y**2) / 2) / (2 * np.pi) * (grid[1] - grid[0]) ** 2
    seen = np.stack([x.ravel(), y.ravel()]).T @ root.T
    S = np.exp(seen - gram.diagonal() / 2).mean(axis=1)
    e = math.exp(epsilon)
    return max(float(np.maximum(S - e, 0) @ density.ravel()), float(np.maximum(1 - e * S, 0) @ density.ravel()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("seed", range(12))
def test_no_gradients_lose_more_than_is_certified(kind, seed):
    """Two bins, all signs of scalar gradients: the law by quadrature in the plane of the two shifts."""
    n, epochs, std = 2, 2, 2.5
    noise, rng = drawn(kind, n, 2 * epochs, seed), np.random.default_rng(seed)
    guarantee, C = guarantee_of(noise, epochs, 2, noise_std=std), blocks_of(noise)
    certified = {epsilon: guarantee.delta(epsilon) for epsilon in (0.2, 1.0)}
    for u in range(n):
        for _ in range(3):
            g = rng.choice([-1.0, 1.0], 2 * epochs)
            shifts = np.stack([sum(C[:, :, s, u] * g[s] for s in range(r, 2 * epochs, 2)).ravel() for r in range(2)])
            for epsilon, delta in certified.items():
                assert true_delta(shifts, std, epsilon) <= delta * (1 + 1e-3)


def test_equal_encoders_for_all_columns_are_one_encoder():
    shared = drawn("kronecker", 3, 6, 0)
    alike = SpatioTemporalNoise(np.stack([shared.encoder.array] * 3), shared.factor, np.ones((3, 3), dtype=bool), 3)
    shared_curve, other = (guarantee_of(noise, 2, 3) for noise in (shared, alike))
    assert other.sensitivity == pytest.approx(shared_curve.sensitivity, rel=1e-9)
    assert other.epsilon(1e-5) == pytest.approx(shared_curve.epsilon(1e-5), rel=1e-6)
    assert guarantee_of(alike, 2, 3, trust.LDP()).epsilon(1e-5) == math.inf

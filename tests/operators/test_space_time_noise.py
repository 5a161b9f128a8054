"""Noise over time and nodes: against its definition entry by entry, what is refused, and what it costs the models."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import algorithms, gossip
from mfdl.algorithms.dsgd import decentralized
from mfdl.dynamics import Dynamics
from mfdl.error_gram import OBJECTIVES
from mfdl.error_weights import ErrorWeights
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise_error import noise_error
from mfdl.operators import JointNoise, LocalNoise, SpaceTimeNoise, StepNoise
from mfdl.participation import Cyclic
from mfdl.testing.strategies import encoders, gossip_matrices, gossip_sequences

KINDS = ("shared", "per column", "joint")


def by_definition(inverses, factor):
    """N[(t, i), (s, k)] = F[i, k] E_k[t, s], one entry at a time."""
    (n, columns), T = factor.shape, inverses.shape[-1]
    N = np.zeros((T, n, T, columns))
    for t, i, s, k in np.ndindex(N.shape):
        N[t, i, s, k] = factor[i, k] * inverses[k][t, s]
    return N.reshape(T * n, T * columns)


@st.composite
def noises(draw, kinds=KINDS, max_steps=4, max_nodes=4, *, num_nodes=None):
    """(noise, the dense matrix it stands for); factors of small integers, zero columns and singular ones included."""
    kind, T = draw(st.sampled_from(kinds)), draw(st.integers(1, max_steps))
    n = draw(st.integers(1, max_nodes)) if num_nodes is None else num_nodes
    if kind == "joint":
        C = draw(encoders(size=T * n))
        return JointNoise(C, T, n), np.linalg.inv(C)
    columns = draw(st.integers(1, n + 2))
    entries = draw(st.lists(st.integers(-2, 2), min_size=n * columns, max_size=n * columns))
    F = np.array(entries, dtype=float).reshape(n, columns)
    more = draw(st.lists(st.booleans(), min_size=n * columns, max_size=n * columns))
    holders = (F.T != 0) | np.array(more).reshape(columns, n)
    C = np.stack([draw(encoders(size=T)) for _ in range(1 if kind == "shared" else columns)])
    sparse = draw(st.booleans())
    noise = SpaceTimeNoise(C[0] if kind == "shared" else C, sp.csr_array(F) if sparse else F, holders, n)
    assert_array_equal(noise.holders().toarray(), holders)
    return noise, by_definition(np.linalg.inv(np.broadcast_to(C, (columns, T, T))), F)


@examples(80)
@given(case=noises(), width=st.integers(0, 3), seed=st.integers(0, 99))
def test_products_transposes_and_variances_are_those_of_the_definition(case, width, seed):
    noise, dense = case
    close = {"rtol": 1e-11, "atol": 1e-11}  # inverses of at most 16 steps, entries below 1.5^16 = 660
    assert noise.shape == dense.shape
    assert_allclose(noise.to_dense(), dense, **close)
    assert_allclose(noise.T @ np.eye(len(dense)), dense.T, **close)
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((noise.shape[1], width)), rng.standard_normal((noise.shape[0], width))
    assert_allclose(Y.T @ (noise @ X), (noise.T @ Y).T @ X, rtol=1e-9, atol=1e-9)
    T, n = noise.num_steps, noise.num_nodes
    assert_allclose(noise.variances(), (dense**2).sum(axis=1).reshape(T, n), rtol=1e-10, atol=1e-12)
    assert (noise.slots_per_step, noise.columns_per_step * T) == (n, dense.shape[1])
    later = noise.to_dense().reshape(T, n, T, -1)
    assert not any(later[t, :, t + 1 :].any() for t in range(T))  # no base noise of a later step, exactly


@examples(40)
@given(T=st.integers(1, 3), n=st.integers(1, 3), data=st.data())
def test_covariances(T, n, data):
    """(C^T C)^-1 (x) F F^T, the inverse of sum_k C_k^T C_k (x) g_k g_k^T, and (C^T C)^-1."""
    entries = data.draw(st.lists(st.integers(-2, 2), min_size=n * n, max_size=n * n))
    F = np.array(entries, dtype=float).reshape(n, n) + 5 * n * np.eye(n)  # diagonally dominant
    C, joint = np.stack([data.draw(encoders(size=T)) for _ in range(n)]), data.draw(encoders(size=T * n))
    everybody, G = np.ones((n, n), dtype=bool), np.linalg.inv(F)
    shared, adapted = SpaceTimeNoise(C[0], F, everybody, n).to_dense(), SpaceTimeNoise(C, F, everybody, n).to_dense()
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert_allclose(shared @ shared.T, np.kron(np.linalg.inv(C[0].T @ C[0]), F @ F.T), **close)
    precision = sum(np.kron(C[k].T @ C[k], np.outer(G[k], G[k])) for k in range(n))
    assert_allclose(adapted @ adapted.T @ precision, np.eye(T * n), **close)
    N = JointNoise(joint, T, n).to_dense()
    assert_allclose(N @ N.T @ (joint.T @ joint), np.eye(T * n), rtol=1e-6, atol=1e-6)


def test_special_cases_are_the_other_noises():
    C, F = np.array([[1.0, 0.0], [-0.5, 2.0]]), np.array([[1.0, 2.0], [0.0, -1.0]])
    own, all_nodes = np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool)
    assert_allclose(SpaceTimeNoise(C, np.eye(2), own, 2).to_dense(), LocalNoise(C, 2).to_dense())
    fresh = StepNoise(F, sp.csr_array(all_nodes), 2, 2)
    assert_allclose(SpaceTimeNoise(np.eye(2), F, all_nodes, 2).to_dense(), fresh.to_dense())
    alike = SpaceTimeNoise(np.stack([C, C]), F, all_nodes, 2)
    assert not alike.shared
    assert_allclose(alike.to_dense(), SpaceTimeNoise(C, F, all_nodes, 2).to_dense())
    assert_allclose(JointNoise(np.kron(C, np.eye(2)), 2, 2).to_dense(), LocalNoise(C, 2).to_dense())
    assert JointNoise(np.kron(C, np.eye(2)), 2, 2).holders().toarray().all()


def test_content_tells_encoder_factor_and_holders_apart():
    C, F, held = np.eye(2), np.eye(3), np.eye(3, dtype=bool)
    contents = [
        SpaceTimeNoise(C, F, held, 3).content(),
        SpaceTimeNoise(2 * C, F, held, 3).content(),
        SpaceTimeNoise(C, 2 * F, held, 3).content(),
        SpaceTimeNoise(C, F, np.ones((3, 3), dtype=bool), 3).content(),
        SpaceTimeNoise(np.stack([C] * 3), F, held, 3).content(),
        JointNoise(np.eye(6), 2, 3).content(),
        JointNoise(2 * np.eye(6), 2, 3).content(),
    ]
    assert len(set(contents)) == len(contents)
    assert SpaceTimeNoise(C, sp.csr_array(F), sp.csr_array(held), 3).content() == contents[0]


def test_entries_given_twice_add_up():
    twice = sp.csr_array((np.array([1.0, 2.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert twice.nnz == 3
    noise = SpaceTimeNoise(np.eye(1), twice, np.eye(2, dtype=bool), 2)
    assert_array_equal(noise.to_dense(), np.diag([3.0, 1.0]))
    assert_array_equal(noise.variances(), [[9.0, 1.0]])


@pytest.mark.parametrize(
    ("encoder", "factor", "holders", "message"),
    [
        ([[1.0, 0.1], [0.0, 1.0]], np.eye(2), np.eye(2), "encoder must be causal"),
        (np.stack([np.eye(2), np.diag([1.0, -2.0])]), np.eye(2), np.eye(2), "got -2 at step 1 of column 1[.]"),
        (np.stack([np.eye(2)] * 3), np.eye(2), np.eye(2), r"or \(2, T, T\), got \(3, 2, 2\)"),
        (np.eye(2), np.eye(3), np.eye(3), r"factor must have shape \(2, columns\)"),
        (np.eye(2), np.zeros((2, 0)), np.zeros((0, 2)), "at least one column"),
        (np.eye(2), np.eye(2), np.ones((2, 3)), r"holders must have shape \(2, 2\), got \(2, 3\)"),
        (np.eye(2), [[1.0, np.nan], [0.0, 1.0]], np.ones((2, 2)), "factor must be finite"),
        (np.eye(2), [[1.0, 0.5], [0.0, 1.0]], np.eye(2), r"factor\[0, 1\] = 0.5 while node 0 does not hold column 1"),
    ],
)
def test_bad_space_time_noise_is_refused(encoder, factor, holders, message):
    with pytest.raises(InvalidInput, match=message):
        SpaceTimeNoise(np.asarray(encoder), np.asarray(factor), np.asarray(holders, dtype=bool), 2)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (np.eye(3), r"encoder must have shape \(4, 4\) for 2 steps x 2 nodes, got \(3, 3\)"),
        (np.eye(4) + np.eye(4, k=1), "encoder must be causal"),
        (np.diag([1.0, 1.0, 1.0, 0.0]), "got 0 at step 1 of node 1[.]"),
        (np.full((4, 4), np.inf), "encoder must be finite"),
    ],
)
def test_bad_joint_noise_is_refused(encoder, message):
    with pytest.raises(InvalidInput, match=message):
        JointNoise(encoder, 2, 2)


def test_joint_noise_that_is_too_large_is_refused_before_it_is_made():
    with pytest.raises(UnsupportedMechanism, match=r"4096, got 4097 \* 1 = 4097"):
        JointNoise(np.eye(1), 4097, 1)


def test_encoders_are_own_read_only_copies():
    C, J = np.eye(2), np.eye(2)
    one, joint = SpaceTimeNoise(C, np.eye(1), np.ones((1, 1), dtype=bool), 1), JointNoise(J, 2, 1)
    C[1, 0] = J[1, 0] = 5
    assert one.encoder[1, 0] == joint.encoder[1, 0] == 0
    for array in (one.encoder, joint.encoder):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 2


# ---- what it costs the models ---------------------------------------------------------------------------------------


def counted_variance(one, objective, weights):
    """sum_r w_r ||F models_r||_F^2 from the algorithm's own operators, at a first rate of 1."""
    T, n = one.num_steps, one.num_nodes
    if objective == "message":
        rows = one.messages_from_noise
        rows = np.asarray(rows @ np.eye(rows.shape[1])).reshape(len(one.rounds), n, -1)[
            np.array(one.step_of_round) >= 0
        ]
    else:
        before, final = one.models_from_noise(), one.models_from_noise(final=True)
        unit = np.eye(before.shape[1])
        rows = np.concatenate([(before @ unit).reshape(T, n, -1)[1:], (final @ unit)[None]])
    counted = weights.node_factor(n).toarray()
    total = sum(w * np.sum((counted @ models) ** 2) for w, models in zip(weights.of_steps(T), rows, strict=True))
    return total / one.dynamics.learning_rates(T)[0] ** 2


WEIGHTS = (ErrorWeights(), ErrorWeights("exponential:2", "average"))


@st.composite
def noisy(draw):
    """Any gossip: with modes or without, momentum, decay, schedules and divisors."""
    W = draw(st.one_of(gossip_matrices(max_nodes=3), gossip_sequences(max_nodes=3)))
    W = W if W.is_constant else gossip.sequence(W.matrices)
    noise, _ = draw(noises(max_steps=3, num_nodes=W.num_nodes))
    T, n = noise.num_steps, noise.num_nodes
    rates = draw(st.one_of(st.just(0.5), st.lists(st.sampled_from([0.25, 0.5]), min_size=T, max_size=T)))
    beta, decay = draw(st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.9, 0.5)]))
    dynamics = Dynamics(W, rates, draw(st.integers(1, 2)), momentum=beta, weight_decay=decay)
    one = decentralized("test", dynamics, Cyclic(1, T), noise)
    return one.with_divisors(np.arange(1, n + 1)) if draw(st.booleans()) else one


@examples(120)
@given(one=noisy(), objective=st.sampled_from(OBJECTIVES), which=st.integers(0, 2))
def test_the_error_is_the_norm_of_the_operators(one, objective, which):
    weights = [*WEIGHTS, ErrorWeights("last", np.arange(1.0, one.num_nodes + 1))][which]
    expected = counted_variance(one, objective, weights)
    assert_allclose(noise_error(one, objective=objective, weights=weights), expected, rtol=1e-8, atol=1e-12)


def test_the_error_by_modes_needs_no_array_of_time_by_nodes():
    """T n = 8192 is more than such an array may have; and time (x) space of a diagonal F is local noise."""
    T, n = 64, 128
    dynamics, part = Dynamics(gossip.metropolis_hastings(f"ring:n={n}"), 0.1), Cyclic(1, T)
    C = np.tri(T)
    noise = SpaceTimeNoise(C, np.eye(n), np.eye(n, dtype=bool), n)
    found = noise_error(decentralized("test", dynamics, part, noise))
    assert_allclose(found, noise_error(algorithms.mf_dsgd(dynamics, part, C)), rtol=1e-9)
    star = Dynamics(gossip.uniform(f"star:n={n}"), 0.1)
    with pytest.raises(UnsupportedMechanism, match="this gossip has none"):
        noise_error(decentralized("test", star, part, noise))


def test_the_error_outside_plain_gossip_is_refused():
    noise = SpaceTimeNoise(np.eye(2), np.eye(4), np.eye(4, dtype=bool), 4)
    one = decentralized("test", Dynamics(gossip.metropolis_hastings("ring:n=4")), Cyclic(1, 2), noise)
    rounds = tuple(dataclasses.replace(r, state_from_state=sp.csr_array(0.5 * sp.eye_array(4))) for r in one.rounds)
    with pytest.raises(UnsupportedMechanism, match="'test' has another recursion"):
        noise_error(dataclasses.replace(one, rounds=rounds))

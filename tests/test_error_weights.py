"""Which models count, under every dynamics: every error Gram against a run of the recursion on unit injections."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import algorithms, gossip
from mfdl.dynamics import Dynamics
from mfdl.error_gram import (
    OBJECTIVES,
    error_gram,
    mode_error_grams,
    node_error_grams,
    space_time_error_gram,
    spatial_error_gram,
)
from mfdl.error_weights import ErrorWeights
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise_error import noise_error
from mfdl.participation import Cyclic
from mfdl.testing import gossip_matrices, gossip_sequences
from mfdl.testing.strategies import random_encoder

CLOSE = {"rtol": 1e-8, "atol": 1e-9}
OBJECTIVE = st.sampled_from(OBJECTIVES)
SMALL = st.sampled_from([0.0, 0.25, 0.5, 0.9])


@st.composite
def dynamics_and_steps(draw, kinds=("symmetric", "uniform", "general", "singular"), sequences=True):
    """Any gossip, constant rate or schedule, momentum, decay, one or two rounds, and a number of steps it reaches."""
    T, K = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2]))
    if sequences and draw(st.integers(0, 3)) == 3:
        W = draw(gossip_sequences(max_nodes=4, max_length=4))
        T = T if W.repeat else max(1, len(W.matrices) // K)
        K = K if W.repeat or len(W.matrices) >= K else 1
    else:
        W = draw(gossip_matrices(max_nodes=5, kinds=kinds))
    rate = draw(st.sampled_from([1.0, 0.5, None]))
    if rate is None:
        rate = draw(st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=T, max_size=T))
    return Dynamics(W, rate, gossip_rounds=K, momentum=draw(SMALL), weight_decay=draw(SMALL)), T


@st.composite
def error_weights(draw, T, n):
    steps = draw(st.sampled_from(["all", "last", "last:1:0.5", "exponential:2", None]))
    if steps is None:
        steps = draw(st.lists(st.integers(0, 3), min_size=T, max_size=T).filter(any))
    target = draw(st.sampled_from(["nodes", "average", None]))
    if target is None:
        target = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n).filter(any))
    return ErrorWeights(steps, target)


def dense_oracle(dynamics, T, weights, objective):
    """H over steps x nodes, one unit injection at a time, counting entry by entry; in units of eta_0^2."""
    n, K = dynamics.num_nodes, dynamics.gossip_rounds
    rates, w = dynamics.learning_rates(T), weights.of_steps(T)
    diagonal = weights.of_nodes(n)
    Q = np.full((n, n), 1 / n) if diagonal is None else np.diag(diagonal)
    seen = np.zeros((T, n, T * n))
    for s in range(T):
        for u in range(n):
            theta, v = np.zeros(n), np.zeros(n)
            for r in range(T):
                v = dynamics.momentum * v
                if r == s:
                    v[u] += 1.0
                message = (1 - rates[r] * dynamics.weight_decay) * theta - rates[r] * v
                theta = message
                for j in range(K):
                    theta = dynamics.gossip.at(r * K + j).dense() @ theta
                seen[r, :, s * n + u] = theta if objective == "post-average" else message
    return sum(w[r] * seen[r].T @ Q @ seen[r] for r in range(T)) / rates[0] ** 2


@examples(150)
@given(case=dynamics_and_steps(), objective=OBJECTIVE, data=st.data())
def test_every_error_gram_is_that_of_the_recursion(case, objective, data):
    dynamics, T = case
    n = dynamics.num_nodes
    weights = data.draw(error_weights(T, n))
    H = dense_oracle(dynamics, T, weights, objective)
    found = {"weights": weights, "objective": objective}
    assert_allclose(space_time_error_gram(dynamics, T, **found), H, **CLOSE)
    blocks = H.reshape(T, n, T, n)
    assert_allclose(error_gram(dynamics, T, **found), np.einsum("sutu->st", blocks), **CLOSE)
    per_node = np.stack(list(node_error_grams(dynamics, T, **found)))
    assert_allclose(per_node, np.einsum("sutu->ust", blocks), **CLOSE)
    over_nodes = spatial_error_gram(dynamics, num_steps=T, **found)
    assert_allclose(over_nodes, np.einsum("susv->uv", blocks), **CLOSE)


@examples(80)
@given(case=dynamics_and_steps(kinds=("symmetric", "singular"), sequences=False), objective=OBJECTIVE, data=st.data())
def test_modes_add_up_to_the_gram_over_steps_and_nodes(case, objective, data):
    dynamics, T = case
    n = dynamics.num_nodes
    steps = data.draw(error_weights(T, n)).step_weights
    weights = ErrorWeights(steps, data.draw(st.sampled_from(["nodes", "average"])))
    U, grams = mode_error_grams(dynamics, T, weights=weights, objective=objective)
    H = sum(np.kron(H_k, np.outer(u, u)) for H_k, u in zip(grams, U.T, strict=True))
    assert_allclose(H, dense_oracle(dynamics, T, weights, objective), **CLOSE)


@examples(60)
@given(case=dynamics_and_steps(), objective=OBJECTIVE, data=st.data())
def test_the_error_of_an_algorithm_is_that_of_its_recursion(case, objective, data):
    dynamics, T = case
    n = dynamics.num_nodes
    weights = data.draw(error_weights(T, n))
    m = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=n, max_size=n)))
    kind = data.draw(st.sampled_from(["independent", "shared", "per node", "over nodes"]))
    part = Cyclic(1, T)
    if kind == "independent":
        one, N = algorithms.dp_dsgd(dynamics, part), np.eye(T * n)
    elif kind == "over nodes":
        factor = np.random.default_rng(T).integers(-2, 3, (n, n)) + 3 * np.eye(n)
        one = algorithms.spatial_covariance(dynamics, part, factor @ factor.T)
        N = np.kron(np.eye(T), factor)
    else:
        C = random_encoder(np.random.default_rng(T), T, n if kind == "per node" else None)
        one = algorithms.mf_dsgd(dynamics, part, C)
        blocks = np.zeros((T, n, T, n))
        for u in range(n):
            blocks[:, u, :, u] = np.linalg.inv(C if kind == "shared" else C[u])
        N = blocks.reshape(T * n, T * n)
    N = N / np.tile(m, T)[:, None]
    expected = np.trace(N.T @ dense_oracle(dynamics, T, weights, objective) @ N)
    found = noise_error(one.with_divisors(m), objective=objective, weights=weights)
    assert found == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("all", [1, 1, 1, 1]),
        ("last", [0, 0, 0, 1]),
        ("last:3", [0, 1, 1, 1]),
        ("last:2:0.25", [0.25, 0.25, 1, 1]),
        ("exponential:2", [2**-1.5, 0.5, 2**-0.5, 1]),
    ],
)
def test_step_weights_by_name(text, weights):
    found = ErrorWeights.parse(text)
    assert_allclose(found.of_steps(4), weights)
    assert found.describe() == text
    assert found.uniform_target


def test_targets():
    assert ErrorWeights("last", [0, 1, 0]).of_nodes(3).tolist() == [0, 1, 0]
    assert ErrorWeights("last", "average").of_nodes(3) is None
    F = ErrorWeights("all", [0, 4, 1]).node_factor(3).toarray()
    assert_array_equal(F.T @ F, np.diag([0, 4, 1]))
    assert_allclose(ErrorWeights("all", "average").node_factor(4).toarray(), np.full((1, 4), 0.5))
    one, other = ErrorWeights([1, 2]).describe(), ErrorWeights([1, 3]).describe()
    assert one.startswith("given:")
    assert one != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lats",), "did you mean"),
        (("last:0",), "a whole number of steps >= 1"),
        (("last:2.5",), "a whole number of steps >= 1"),
        (("last:2:-1",), "floor >= 0"),
        (("last:2:1:1",), "must be all, last"),
        (("all:3",), "must be all, last"),
        (("exponential",), "must be all, last"),
        (("exponential:0",), "half-life > 0"),
        (("exponential:x",), "must be numbers"),
        (([1, -1],), "step_weights must be numbers >= 0"),
        (([0, 0],), "not all zero"),
        (([],), "not all zero"),
        (([np.nan],), "must be finite"),
        (("all", "averag"), "did you mean"),
        (("all", [0, 0]), "target must be numbers >= 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        ErrorWeights(*arguments)


def test_weights_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match="one weight for each of 3 steps, got 2"):
        ErrorWeights([1, 2]).of_steps(3)
    with pytest.raises(InvalidInput, match="counts the last 4 of 3 steps"):
        ErrorWeights("last:4").of_steps(3)
    with pytest.raises(InvalidInput, match="each of 3 nodes, got 2"):
        ErrorWeights("all", [1, 2]).of_nodes(3)


@pytest.mark.parametrize("gram", [error_gram, mode_error_grams, node_error_grams, space_time_error_gram])
def test_what_is_no_error_weights_is_refused(gram):
    for given_weights in ("last:1", [1.0, 1.0], 3):
        with pytest.raises(InvalidInput, match=r"weights must be ErrorWeights, got .*ErrorWeights\.parse"):
            gram(Dynamics(gossip.metropolis_hastings("path:n=3")), 2, weights=given_weights)


@pytest.mark.parametrize("gram", [error_gram, mode_error_grams, node_error_grams, space_time_error_gram])
@pytest.mark.parametrize(("rate", "weight"), [(1.0, 1.7e308), ([1e-6, 1.0, 1.0, 1.0], 1e300)])
def test_an_error_beyond_float64_is_refused(gram, rate, weight):
    dynamics, weights = Dynamics(gossip.metropolis_hastings("path:n=3"), rate), ErrorWeights([weight] * 4)
    with pytest.raises(InvalidInput, match="beyond float64"):
        [*gram(dynamics, 4, weights=weights)]
    with pytest.raises(InvalidInput, match="beyond float64"):
        spatial_error_gram(dynamics, num_steps=4, weights=weights)


def test_what_has_no_modes_is_refused_by_name():
    path = Dynamics(gossip.uniform("path:n=4"))
    with pytest.raises(UnsupportedMechanism, match="modes of one symmetric gossip matrix"):
        mode_error_grams(path, 3)
    with pytest.raises(UnsupportedMechanism, match="couples the modes"):
        mode_error_grams(Dynamics(gossip.metropolis_hastings("path:n=4")), 3, weights=ErrorWeights("all", [1, 0, 0, 0]))
    with pytest.raises(UnsupportedMechanism, match=r"T n = 4096, got 1025 \* 4 = 4100"):
        space_time_error_gram(path, 1025)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"momentum": -0.1}, "momentum must be a finite number >= 0"),
        ({"weight_decay": -1}, "weight_decay must be a finite number >= 0"),
        ({"weight_decay": 2.0}, "must be below 1, got 2"),
    ],
)
def test_dynamics_that_do_not_settle_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        Dynamics(gossip.metropolis_hastings("path:n=3"), 0.5, **options)


def test_the_proposed_weights_keep_the_gram_regular():
    weights = ErrorWeights.for_training(12, 3)
    assert_array_equal(weights.of_steps(12), [0.01] * 9 + [1] * 3)
    H = error_gram(Dynamics(gossip.metropolis_hastings("ring:n=5")), 12, weights=weights)
    assert np.linalg.eigvalsh(H)[0] > 1e-8 * np.linalg.eigvalsh(H)[-1]
    with pytest.raises(InvalidInput, match="at most num_steps=3, got 4"):
        ErrorWeights.for_training(3, 4)

"""Error Gram matrices: every form against the dense workload, numbers computed independently, and their growth."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from mfdl import gossip
from mfdl.dynamics import Dynamics
from mfdl.error_gram import (
    OBJECTIVES,
    _modes,
    error_gram,
    node_error_grams,
    prefix_sum_gram,
    spatial_error_gram,
    temporal,
)
from mfdl.errors import InvalidInput
from mfdl.gossip import Gossip, GossipMatrix
from mfdl.testing import (
    dense_error_gram,
    dense_gossip_workload,
    dense_node_error_grams,
    gossip_matrices,
    gossip_sequences,
    prefix_sum,
)

STEPS = st.integers(1, 6)
OBJECTIVE = st.sampled_from(OBJECTIVES)
CLOSE = {"rtol": 1e-9, "atol": 1e-10}  # the closed form may lose MAX_MEASURE_RATIO times 1e-16


@st.composite
def cases(draw):
    """Constant gossip of every kind, and sequences, with a number of steps they reach."""
    if draw(st.booleans()):
        return draw(gossip_matrices(max_nodes=6)), draw(STEPS)
    W = draw(gossip_sequences(max_nodes=5, max_length=5))
    return W, draw(st.integers(1, 6 if W.repeat else len(W.matrices)))


@examples(200)
@given(case=cases(), objective=OBJECTIVE)
def test_matches_the_dense_workload(case, objective):
    W, T = case
    H = error_gram(Dynamics(W), T, objective=objective)
    assert_allclose(H, dense_error_gram(W, T, objective), **CLOSE)


@settings(deadline=None)
@given(case=cases(), objective=OBJECTIVE)
def test_symmetric_and_positive_semidefinite(case, objective):
    W, T = case
    H = error_gram(Dynamics(W), T, objective=objective)
    assert_array_equal(H, H.T)
    eigenvalues = np.linalg.eigvalsh(H)
    assert eigenvalues[0] >= -1e-10 * eigenvalues[-1]


@settings(deadline=None)
@given(case=cases(), objective=OBJECTIVE)
def test_nodes_match_dense_and_sum_to_the_total(case, objective):
    W, T = case
    grams = np.stack(list(node_error_grams(Dynamics(W), T, objective=objective)))
    assert_allclose(grams, dense_node_error_grams(W, T, objective), **CLOSE)
    assert_allclose(grams.sum(axis=0), error_gram(Dynamics(W), T, objective=objective), **CLOSE)


@settings(deadline=None)
@given(W=gossip_matrices(max_nodes=6), T=STEPS, objective=OBJECTIVE)
def test_a_repeated_matrix_is_constant_gossip(W, T, objective):
    repeated = gossip.sequence([W] * T, repeat=False)
    assert not repeated.is_constant
    H = error_gram(Dynamics(W), T, objective=objective)
    assert_allclose(error_gram(Dynamics(repeated), T, objective=objective), H, **CLOSE)


@settings(deadline=None)
@given(case=cases(), objective=OBJECTIVE, width=st.integers(1, 3))
def test_blocks_of_columns_do_not_matter(case, objective, width):
    W, T = case
    H = error_gram(Dynamics(W), T, objective=objective)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temporal, "BLOCK_BYTES", width * 16 * W.num_nodes * T)
        patch.setattr(_modes, "MAX_MEASURE_RATIO", 0.0)  # the general form for every constant matrix
        assert_allclose(error_gram(Dynamics(W), T, objective=objective), H, **CLOSE)


@pytest.mark.parametrize("nodes", [20, 24, 40])
def test_reversible_gossip_with_a_wide_measure_is_not_left_to_the_closed_form(nodes):
    # a path with drift is reversible, its measure spans 6^n: the closed form loses every digit at n = 24
    W = np.diag(np.full(nodes - 1, 0.6), 1) + np.diag(np.full(nodes - 1, 0.1), -1)
    W += np.diag(1 - W.sum(axis=1))
    path = gossip.from_array(W)
    assert_allclose(error_gram(Dynamics(path), 6), dense_error_gram(path, 6), rtol=1e-12)


@settings(deadline=None)
@given(W=gossip_matrices(max_nodes=6, kinds=["symmetric", "singular"]), T=STEPS)
def test_post_average_never_exceeds_message_for_symmetric_gossip(W, T):
    # averaging is a contraction, so H_message - H_post is positive semidefinite
    message, post = (error_gram(Dynamics(W), T, objective=o) for o in ("message", "post-average"))
    assert np.linalg.eigvalsh(message - post)[0] >= -1e-10 * np.trace(message)


@settings(deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_total_noise_in_the_models_is_the_trace(case, seed):
    # E ||models||^2 under C_local^-1 unit noise, from the dense workload, against tr(H X^-1)
    W, T = case
    n = W.num_nodes
    C = np.tril(np.random.default_rng(seed).uniform(-0.5, 0.5, (T, T)), -1) + np.eye(T)
    averaging = np.zeros((T * n, T * n))
    for t in range(T):
        averaging[t * n : (t + 1) * n, t * n : (t + 1) * n] = W.at(t).dense()
    response = averaging @ dense_gossip_workload(W, T) @ np.kron(np.linalg.inv(C), np.eye(n))
    assert_allclose(
        np.trace(error_gram(Dynamics(W), T) @ np.linalg.inv(C.T @ C)), np.linalg.norm(response) ** 2, rtol=1e-8
    )


@settings(deadline=None)
@given(W=gossip_sequences(max_nodes=4, max_length=4), T=st.integers(1, 4), K=st.integers(1, 3), objective=OBJECTIVE)
def test_several_gossip_rounds_are_one_step_of_their_product(W, T, K, objective):
    W = gossip.sequence(W.matrices)  # repeated, and constant when all are equal
    steps = []
    for t in range(T):
        product = np.eye(W.num_nodes)
        for j in range(K):
            product = W.at(t * K + j).dense() @ product
        steps.append(gossip.from_array(product))
    dynamics = Dynamics(W, gossip_rounds=K)
    grams = dense_node_error_grams(gossip.sequence(steps), T, objective)
    assert_allclose(error_gram(dynamics, T, objective=objective), grams.sum(axis=0), **CLOSE)
    assert_allclose(np.stack(list(node_error_grams(dynamics, T, objective=objective))), grams, **CLOSE)


def test_learning_rate_does_not_enter():
    W = gossip.uniform("florentine")
    assert_array_equal(error_gram(Dynamics(W, 0.1), 5), error_gram(Dynamics(W), 5))


def test_numbers_computed_independently_for_florentine():
    dynamics = Dynamics(gossip.uniform("florentine"))
    H = error_gram(dynamics, 64)
    assert_allclose(np.trace(H), 2908.732622132038, rtol=1e-10)
    assert_allclose(H[0, 0], 81.48200534593349, rtol=1e-10)
    assert_allclose(H[0, 63], 1.114204586438538, rtol=1e-10)
    message = error_gram(dynamics, 64, objective="message")
    assert_allclose(np.trace(message), 3787.250616786104, rtol=1e-10)


def test_one_step_and_one_node():
    W = gossip.uniform("star:n=5")
    assert_allclose(error_gram(Dynamics(W), 1), [[np.sum(W.dense() ** 2)]])
    assert_allclose(error_gram(Dynamics(W), 1, objective="message"), [[5.0]])
    alone = gossip.from_array([[1.0]])
    assert_array_equal(error_gram(Dynamics(alone), 4), prefix_sum_gram(4))


@pytest.mark.parametrize("T", [1, 2, 7])
def test_prefix_sum_gram(T):
    assert_array_equal(prefix_sum_gram(T), prefix_sum(T).T @ prefix_sum(T))


def test_bad_arguments_are_refused_at_the_call():
    dynamics = Dynamics(gossip.uniform("ring:n=5"))
    for function in (error_gram, node_error_grams):
        with pytest.raises(InvalidInput, match="unknown objective 'mesage'; did you mean 'message'"):
            function(dynamics, 3, objective="mesage")
        with pytest.raises(InvalidInput, match="num_steps must be an integer >= 1, got 0"):
            function(dynamics, 0)
    with pytest.raises(InvalidInput, match="num_steps must be an integer >= 1"):
        prefix_sum_gram(0)


def test_gossip_that_ends_before_the_last_step_is_refused():
    short = gossip.sequence([gossip.uniform("ring:n=5")] * 3, repeat=False)
    with pytest.raises(InvalidInput, match="step must be below 3"):
        error_gram(Dynamics(short), 4)


# Schedules


def schedules(T):
    return st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0]), min_size=T, max_size=T)


@settings(deadline=None)
@given(case=cases(), objective=OBJECTIVE, data=st.data())
def test_a_schedule_scales_rows_and_columns_in_units_of_the_first_rate(case, objective, data):
    # from the dense workload: noise of step s enters times eta_s; eta_0^2 H is what is left in the models
    W, T = case
    rates = np.array(data.draw(schedules(T)))
    dynamics = Dynamics(W, rates)
    grams = dense_node_error_grams(W, T, objective) * np.outer(rates, rates)
    assert_allclose(rates[0] ** 2 * error_gram(dynamics, T, objective=objective), grams.sum(axis=0), **CLOSE)
    nodes = np.stack(list(node_error_grams(dynamics, T, objective=objective)))
    assert_allclose(rates[0] ** 2 * nodes, grams, **CLOSE)


def test_a_schedule_of_equal_rates_is_a_constant_rate():
    W = gossip.metropolis_hastings("star:n=5")
    assert_array_equal(error_gram(Dynamics(W, [0.3] * 4), 4), error_gram(Dynamics(W, 0.3), 4))
    assert_array_equal(
        spatial_error_gram(Dynamics(W, [0.3] * 4), num_steps=4), spatial_error_gram(Dynamics(W), num_steps=4)
    )


def test_a_schedule_of_another_length_is_refused_at_the_call():
    dynamics = Dynamics(gossip.uniform("ring:n=5"), [1.0, 0.5])
    for call in (error_gram, node_error_grams, lambda d, T: spatial_error_gram(d, num_steps=T)):
        with pytest.raises(InvalidInput, match="one for each of 3 steps, got a schedule of 2"):
            call(dynamics, 3)


# Over nodes


def dense_spatial_gram(W, T, rates, objective):
    """sum over steps of eta_s^2 A_s^T A_s, A_s the columns of step s in the workload of the counted models."""
    n = W.num_nodes
    workload = dense_gossip_workload(W, T)
    if objective == "post-average":
        workload = np.concatenate([W.at(t).dense() @ workload[t * n : (t + 1) * n] for t in range(T)])
    columns = [workload[:, s * n : (s + 1) * n] for s in range(T)]
    return sum(rate**2 * A.T @ A for rate, A in zip(rates, columns, strict=True))


@examples(200)
@given(case=cases(), objective=OBJECTIVE, data=st.data())
def test_the_gram_over_nodes_matches_the_dense_workload(case, objective, data):
    W, T = case
    rates = np.array(data.draw(schedules(T)))
    H = spatial_error_gram(Dynamics(W, rates), num_steps=T, objective=objective)
    assert_array_equal(H, H.T)
    assert_allclose(rates[0] ** 2 * H, dense_spatial_gram(W, T, rates, objective), **CLOSE)


@settings(deadline=None)
@given(case=cases(), objective=OBJECTIVE, data=st.data())
def test_both_grams_have_one_trace(case, objective, data):
    # independent unit noise at every node and step, counted over steps or over nodes
    W, T = case
    dynamics = Dynamics(W, data.draw(schedules(T)))
    over_nodes = spatial_error_gram(dynamics, num_steps=T, objective=objective)
    assert_allclose(np.trace(over_nodes), np.trace(error_gram(dynamics, T, objective=objective)), rtol=1e-9)


def test_one_step_over_nodes_is_the_square_of_the_weights():
    W = gossip.uniform("star:n=5")
    assert_allclose(spatial_error_gram(Dynamics(W)), W.dense().T @ W.dense(), rtol=1e-15)
    assert_array_equal(spatial_error_gram(Dynamics(W), objective="message"), np.eye(5))
    with pytest.raises(InvalidInput, match="unknown objective 'mesage'"):
        spatial_error_gram(Dynamics(W), objective="mesage")
    with pytest.raises(InvalidInput, match="num_steps must be an integer >= 1"):
        spatial_error_gram(Dynamics(W), num_steps=0)


@settings(deadline=None)
@given(W=gossip_sequences(max_nodes=4, max_length=4), T=st.integers(1, 4), K=st.integers(1, 3), objective=OBJECTIVE)
def test_several_gossip_rounds_over_nodes_are_one_step_of_their_product(W, T, K, objective):
    W = gossip.sequence(W.matrices)
    products = []
    for t in range(T):
        product = np.eye(W.num_nodes)
        for j in range(K):
            product = W.at(t * K + j).dense() @ product
        products.append(gossip.from_array(product))
    H = spatial_error_gram(Dynamics(W, gossip_rounds=K), num_steps=T, objective=objective)
    assert_allclose(H, dense_spatial_gram(gossip.sequence(products), T, np.ones(T), objective), **CLOSE)


# Growth


def peak_bytes(W: Gossip, T: int) -> int:
    W.at(0).reversible_measure  # noqa: B018 - cached, and no part of the Gram
    tracemalloc.start()
    try:
        error_gram(Dynamics(W), T)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def general(nodes: int) -> GossipMatrix:
    """A ring walked mostly one way: not reversible."""
    ahead, behind = np.roll(np.eye(nodes), 1, axis=1), np.roll(np.eye(nodes), -1, axis=1)
    return gossip.from_array(0.5 * np.eye(nodes) + 0.4 * ahead + 0.1 * behind)


@pytest.mark.parametrize("make", [gossip.metropolis_hastings, gossip.uniform], ids=["symmetric", "reversible"])
def test_closed_form_memory_is_n_squared_and_not_n_t_squared(make):
    n, T = 400, 64
    W = make(f"erdos-renyi:n={n},p=0.05,seed=1")
    peak = peak_bytes(W, T)
    assert peak < (n * T) ** 2 * 8 / 200  # 5.2 GB dense
    assert peak < 12 * 8 * (n**2 + n * T + T**2)
    assert peak_bytes(W, 2 * T) < 1.5 * peak  # n^2 rules, T does not


@pytest.mark.parametrize("make", [gossip.metropolis_hastings, gossip.uniform], ids=["symmetric", "reversible"])
def test_memory_over_nodes_does_not_grow_with_the_steps(make):
    dynamics = Dynamics(make("erdos-renyi:n=200,p=0.05,seed=1"))
    peaks = []
    for T in (64, 256):
        tracemalloc.start()
        try:
            spatial_error_gram(dynamics, num_steps=T)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 12 * 8 * 200**2


def test_general_form_works_in_blocks_of_bounded_size(monkeypatch):
    assert general(7).reversible_measure is None
    budget = 2**21
    monkeypatch.setattr(temporal, "BLOCK_BYTES", budget)
    n, T = 200, 32  # all columns at once: 10 MB, dense: 328 MB
    W = general(n)
    assert peak_bytes(W, T) < 3 * budget
    assert peak_bytes(gossip.sequence([W, gossip.metropolis_hastings(f"ring:n={n}")]), T) < 6 * budget


@pytest.mark.slow
def test_a_ring_of_3000_nodes_and_128_steps_is_factorized_in_memory():
    code = (
        "import resource\n"
        "from mfdl import gossip\n"
        "from mfdl.dynamics import Dynamics\n"
        "from mfdl.factorization import factorize\n"
        "from mfdl.participation import Cyclic\n"
        "found = factorize(Dynamics(gossip.metropolis_hastings('ring:n=3000')), Cyclic(8, 16))\n"
        "print(found.status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, peak = done.stdout.split()
    assert status == "optimal"
    assert int(peak) < 2.5e9

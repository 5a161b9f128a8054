"""Error Gram matrices: every form against a run of the recursion on unit injections, and against dense workloads."""

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
    mode_error_grams,
    node_error_grams,
    prefix_sum_gram,
    space_time_error_gram,
    spatial_error_gram,
    temporal,
)
from mfdl.error_weights import ErrorWeights
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.gossip import Gossip, GossipMatrix
from mfdl.testing import dense_error_gram, gossip_matrices, gossip_sequences, prefix_sum

STEPS = st.integers(1, 6)
OBJECTIVE = st.sampled_from(OBJECTIVES)
SMALL = st.sampled_from([0.0, 0.25, 0.5, 0.9])
CLOSE = {"rtol": 1e-8, "atol": 1e-9}  # the closed form may lose MAX_MEASURE_RATIO times 1e-16
GRAMS = (error_gram, mode_error_grams, node_error_grams, space_time_error_gram)


@st.composite
def dynamics_and_steps(draw, kinds=("symmetric", "uniform", "general", "singular"), sequences=True):
    """Any gossip, constant rate or schedule, momentum, decay, one or two rounds, and a number of steps it reaches."""
    T, K = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3]))
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
def error_weights(draw, T, n, *, released=None):
    """Of steps by name or by number, of nodes or their average; released models where these may count."""
    names = [f"released:{draw(released)}"] if released is not None and draw(st.booleans()) else ["all", "last"]
    steps = draw(st.sampled_from([*names, "last:1:0.5", "exponential:2", None]))
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
    if weights.released is not None:
        after = sum(w[r] * seen[r] for r in range(T))
        for j in range(weights.released.rounds_of_gossip):
            after = dynamics.gossip.at(T * K + j).dense() @ after
        return after.T @ Q @ after / rates[0] ** 2
    return sum(w[r] * seen[r].T @ Q @ seen[r] for r in range(T)) / rates[0] ** 2


def released_models(dynamics, T, objective):
    """Names of what this many steps can release, and further gossip where there is any."""
    if objective == "message":
        return None
    more = st.integers(0, 2 if dynamics.gossip.is_constant else 0).map("+{}".format)
    return st.tuples(st.sampled_from(["last", "average:1", f"average:{T}", "exponential:1.5"]), more).map("".join)


@examples(300)
@given(case=dynamics_and_steps(), objective=OBJECTIVE, data=st.data())
def test_every_error_gram_is_that_of_the_recursion(case, objective, data):
    dynamics, T = case
    n = dynamics.num_nodes
    weights = data.draw(error_weights(T, n, released=released_models(dynamics, T, objective)))
    H = dense_oracle(dynamics, T, weights, objective)
    found = {"weights": weights, "objective": objective}
    assert_allclose(space_time_error_gram(dynamics, T, **found), H, **CLOSE)
    blocks = H.reshape(T, n, T, n)
    over_steps = error_gram(dynamics, T, **found)
    assert_array_equal(over_steps, over_steps.T)
    assert_allclose(over_steps, np.einsum("sutu->st", blocks), **CLOSE)
    per_node = np.stack(list(node_error_grams(dynamics, T, **found)))
    assert_allclose(per_node, np.einsum("sutu->ust", blocks), **CLOSE)
    over_nodes = spatial_error_gram(dynamics, num_steps=T, **found)
    assert_array_equal(over_nodes, over_nodes.T)
    assert_allclose(over_nodes, np.einsum("susv->uv", blocks), **CLOSE)


@examples(80)
@given(case=dynamics_and_steps(kinds=("symmetric", "singular"), sequences=False), objective=OBJECTIVE, data=st.data())
def test_modes_add_up_to_the_gram_over_steps_and_nodes(case, objective, data):
    dynamics, T = case
    n = dynamics.num_nodes
    steps = data.draw(error_weights(T, n, released=released_models(dynamics, T, objective))).step_weights
    weights = ErrorWeights(steps, data.draw(st.sampled_from(["nodes", "average"])))
    U, grams = mode_error_grams(dynamics, T, weights=weights, objective=objective)
    H = sum(np.kron(H_k, np.outer(u, u)) for H_k, u in zip(grams, U.T, strict=True))
    assert_allclose(H, dense_oracle(dynamics, T, weights, objective), **CLOSE)


@st.composite
def cases(draw):
    """Constant gossip of every kind, and sequences, with a number of steps they reach."""
    if draw(st.booleans()):
        return draw(gossip_matrices(max_nodes=6)), draw(STEPS)
    W = draw(gossip_sequences(max_nodes=5, max_length=5))
    return W, draw(st.integers(1, 6 if W.repeat else len(W.matrices)))


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


def test_numbers_computed_independently_for_florentine():
    dynamics = Dynamics(gossip.uniform("florentine"))
    H = error_gram(dynamics, 64)
    assert_allclose(np.trace(H), 2908.732622132038, rtol=1e-10)
    assert_allclose(H[0, 0], 81.48200534593349, rtol=1e-10)
    assert_allclose(H[0, 63], 1.114204586438538, rtol=1e-10)
    message = error_gram(dynamics, 64, objective="message")
    assert_allclose(np.trace(message), 3787.250616786104, rtol=1e-10)


@pytest.mark.parametrize("T", [1, 2, 7])
def test_prefix_sum_gram(T):
    assert_array_equal(prefix_sum_gram(T), prefix_sum(T).T @ prefix_sum(T))


@pytest.mark.parametrize("gram", [*GRAMS, lambda d, T, **options: spatial_error_gram(d, num_steps=T, **options)])
@pytest.mark.parametrize(
    ("dynamics", "options", "message"),
    [
        ({}, {"objective": "mesage"}, "unknown objective 'mesage'; did you mean 'message'"),
        ({}, {"num_steps": 0}, "num_steps must be an integer >= 1, got 0"),
        ({"learning_rate": [1.0, 0.5]}, {}, "one for each of 3 steps, got a schedule of 2"),
        ({}, {"weights": "last:1"}, r"weights must be ErrorWeights, got .*ErrorWeights\.parse"),
        ({}, {"weights": [1.0, 1.0]}, r"weights must be ErrorWeights, got .*ErrorWeights\.parse"),
        ({}, {"weights": ErrorWeights([1.7e308] * 3)}, "beyond float64"),
        ({"learning_rate": [1e-6, 1.0, 1.0]}, {"weights": ErrorWeights([1e300] * 3)}, "beyond float64"),
    ],
)
def test_bad_arguments_are_refused(gram, dynamics, options, message):
    options = {"num_steps": 3, **options}
    with pytest.raises(InvalidInput, match=message):
        [*gram(Dynamics(gossip.metropolis_hastings("path:n=3"), **dynamics), options.pop("num_steps"), **options)]


def test_what_has_no_gram_is_refused_by_name():
    short = gossip.sequence([gossip.uniform("ring:n=5")] * 3, repeat=False)
    with pytest.raises(InvalidInput, match="step must be below 3"):
        error_gram(Dynamics(short), 4)
    with pytest.raises(InvalidInput, match="num_steps must be an integer >= 1"):
        prefix_sum_gram(0)
    path = Dynamics(gossip.uniform("path:n=4"))
    with pytest.raises(UnsupportedMechanism, match="modes of one symmetric gossip matrix"):
        mode_error_grams(path, 3)
    with pytest.raises(UnsupportedMechanism, match="couples the modes"):
        mode_error_grams(Dynamics(gossip.metropolis_hastings("path:n=4")), 3, weights=ErrorWeights("all", [1, 0, 0, 0]))
    with pytest.raises(UnsupportedMechanism, match=r"T n = 4096, got 1025 \* 4 = 4100"):
        space_time_error_gram(path, 1025)


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

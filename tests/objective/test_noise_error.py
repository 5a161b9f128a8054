"""Noise in the models of every builder: against the operators written out and the definition by hand, and estimated."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from noises import OVER_BOTH, cases
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, ErrorWeights, InvalidInput, UnsupportedMechanism, algorithms, gossip, graphs
from mfdl.algorithms import error_in_models, noise_error
from mfdl.algorithms.gossip_sgd import decentralized
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.gossip import GossipMatrix
from mfdl.graphs import SparseGraph
from mfdl.noise import IndependentNoise, NoiseOperator, SpatioTemporalNoise
from mfdl.objective import NoiseObjective, estimated_grams, noise_objective, time_grams
from mfdl.objective.counted_models import COUNTED_MODELS
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.testing import connected_graphs, gossip_matrices, gossip_sequences
from mfdl.testing.strategies import MEMORY_NAMES, linear_algorithms, random_encoder

LOCAL = ("dp-dsgd", "muffliato", "anti-pgd", "mf-shared", "mf-per-node")
STRUCTURED = ("bisr", "buffered", "banded", "banded-inverse")
ACROSS = ("decor", "spatial", "groups")
EVERY, STEPS = ErrorWeights(), st.sampled_from(["all", "last", "exponential:2"])


def dense(operator):
    return np.asarray(operator @ np.eye(operator.shape[1]))


def error(algorithm, **counted):
    """That of a graph whose error is exact."""
    estimate = noise_error(algorithm, **counted)
    assert estimate.error == 0.0
    return estimate.value


def counted_variance(algorithm, counted_models, weights=EVERY):
    """||models after the averaging of each step||_F^2 (or of the messages), from the algorithm's own operators.

    models_from_noise are the models at which gradients are taken, those after the steps before; then the final ones.
    """
    T = algorithm.num_steps
    if counted_models == "post-average":
        before = dense(algorithm.models_from_noise()).reshape(T, algorithm.num_nodes, -1)
        rows = [*before[1:], dense(algorithm.models_from_noise(final=True))]
    else:
        rows = dense(algorithm.messages_from_noise).reshape(len(algorithm.rounds), algorithm.messages_per_round, -1)
        rows = rows[np.array(algorithm.step_of_round) >= 0]
    if not weights.uniform_target:
        rows = [weights.node_factor(algorithm.num_nodes) @ row for row in rows]
    total = sum(w * np.sum(row**2) for w, row in zip(weights.weights_by_step(T), rows, strict=True))
    first = 1.0 if algorithm.noise_on_messages else algorithm.dynamics.learning_rates(algorithm.num_steps)[0]
    return total / first**2


def build(name, dynamics, part, rng):
    n, T = dynamics.num_nodes, part.num_steps
    F, width = rng.integers(-2, 3, (n, n + 1)).astype(float), min(T, 2)
    R, rows = F @ F.T + np.eye(n), rng.uniform(0.5, 1.5, (T, width))
    banded = Banded(np.where(np.arange(width) <= np.arange(T)[:, None], rows, 0.0))
    encoders = {
        "mf-shared": random_encoder(rng, T), "mf-per-node": random_encoder(rng, T, n), "banded": banded,
        "banded-inverse": Inverse(banded), "buffered": Buffered([0.5, 0.25], [0.9, -0.5], T),
    }  # fmt: skip
    if name in encoders:
        return algorithms.mf_dsgd(dynamics, part, encoders[name])
    if name == "spatial":
        return algorithms.spatial_covariance(dynamics, part, R)
    if name == "groups":
        diagonals, groups = [np.diag(np.eye(n)[u]) for u in range(n)], [list(range(n)), *[[u] for u in range(n)]]
        return algorithms.spatial_covariance(dynamics, part, [R, *diagonals], groups=groups)
    return algorithms.build(name, dynamics, part)


@st.composite
def noisy(draw, names=LOCAL + STRUCTURED + ACROSS + OVER_BOTH):
    """Builders on constant and time-varying gossip of every kind, 1 to 3 rounds per step, schedules and divisors."""
    W = draw(st.one_of(gossip_matrices(max_nodes=4), gossip_sequences(max_nodes=4)))
    W = W if W.is_constant else gossip.sequence(W.matrices)
    name = draw(st.sampled_from(names))
    noise = draw(cases((name,), max_steps=3, num_nodes=W.num_nodes))[0] if name in OVER_BOTH else None
    T = draw(st.integers(1, 4)) if noise is None else noise.num_steps
    schedules = st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0]), min_size=T, max_size=T)
    rates = draw(st.one_of(st.sampled_from([1.0, 0.3]), schedules))
    small = st.sampled_from([0.0, 0.0, 0.25])
    dynamics = Dynamics(W, rates, gossip_rounds=draw(st.integers(1, 3)), momentum=draw(small), weight_decay=draw(small))
    if noise is None:
        algorithm = build(name, dynamics, Cyclic(1, T), np.random.default_rng(draw(st.integers(0, 99))))
    else:
        algorithm = decentralized(name, dynamics, Cyclic(1, T), noise)
    divisors = draw(st.sampled_from(["none", "equal", "own"]))
    if divisors == "equal":
        return algorithm.with_divisors(np.full(algorithm.num_nodes, 3.0))
    if divisors == "own":
        n = algorithm.num_nodes
        return algorithm.with_divisors(draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)))
    return algorithm


@given(
    200, algorithm=noisy(), counted_models=st.sampled_from(COUNTED_MODELS), steps=STEPS,
    target=st.sampled_from(["nodes", "average", "own"]),
)  # fmt: skip
def test_it_is_the_norm_of_the_operators(algorithm, counted_models, steps, target):
    assert "is_plain" in vars(algorithm)  # the builder knows it
    assert dataclasses.replace(algorithm).is_plain  # and the maps say so too
    assert "is_plain" not in vars(dataclasses.replace(algorithm))  # a copy could have other fields: the maps decide
    weights = ErrorWeights(steps, np.arange(1.0, algorithm.num_nodes + 1) if target == "own" else target)
    expected = counted_variance(algorithm, counted_models, weights)
    of_noise = NoiseObjective(algorithm.dynamics, algorithm.num_steps, weights, counted_models).noise_error
    assert_allclose(error(algorithm, counted_models=counted_models, weights=weights), expected, rtol=1e-9, atol=1e-12)
    assert_allclose(of_noise(algorithm.noise, algorithm.divisors).value, expected, rtol=1e-9, atol=1e-12)


# Noise on messages
@st.composite
def zip_cases(draw):
    W = gossip.metropolis_hastings(draw(connected_graphs(max_nodes=6)))
    T = draw(st.integers(1, 4))
    rate = draw(st.one_of(st.just(0.3), st.lists(st.sampled_from([0.1, 0.5, 2.0]), min_size=T, max_size=T)))
    sigma, self_messages = draw(st.sampled_from([1.0, 0.5])), draw(st.booleans())
    return W, T, algorithms.zip_dl(Dynamics(W, rate), Cyclic(1, T), sigma=sigma, self_messages=self_messages), sigma


@given(60, case=zip_cases(), counted_models=st.sampled_from(COUNTED_MODELS), divide=st.booleans())
def test_noise_on_messages_is_the_norm_of_the_operators(case, counted_models, divide):
    _, _, algorithm, _ = case
    if divide:  # which leaves such noise alone
        algorithm = algorithm.with_divisors(np.arange(1, algorithm.num_nodes + 1))
    expected = counted_variance(algorithm, counted_models)
    assert_allclose(error(algorithm, counted_models=counted_models), expected, rtol=1e-9, atol=1e-12)


@given(60, case=zip_cases())
def test_zip_dl_by_its_definition(case):
    """Node v adds xi_v = sum_a W_va Z_{a->v} per step, Z = Y - (w^T Y) / (d w): sum_j (T - j) ||W^j [xi <- Y]||_F^2."""
    W, T, algorithm, sigma = case
    weights = W.dense()
    n = W.num_nodes
    blocks = []
    for a in range(n):
        near = np.flatnonzero(weights[:, a])
        w = weights[near, a]
        hat = np.eye(near.size) - np.outer(1 / (near.size * w), w)
        block = np.zeros((n, near.size))
        block[near] = w[:, None] * hat
        blocks.append(block)
    entering = sigma * np.hstack(blocks)
    assert_allclose(entering.sum(axis=0), 0.0, atol=1e-12)  # the average never sees it
    expected = sum((T - j) * np.sum((np.linalg.matrix_power(weights, j) @ entering) ** 2) for j in range(T))
    assert_allclose(error(algorithm), expected, rtol=1e-9, atol=1e-12)


# Recursions that are not the gossip of their dynamics
def with_memory(algorithm, keep):
    """Half of the step is kept back: the next state is (1 - keep) K m + keep * (the last one)."""
    eye = sp.csr_array(sp.eye_array(algorithm.model_from_state.shape[1]))
    rounds = tuple(
        dataclasses.replace(r, state_from_message=(1 - keep) * r.state_from_message, state_from_state=keep * eye)
        for r in algorithm.rounds
    )
    return dataclasses.replace(algorithm, rounds=rounds)


@given(60, noisy(names=("dp-dsgd", "decor", "spatial")), st.sampled_from(COUNTED_MODELS), STEPS, st.booleans())
def test_fresh_noise_goes_through_any_recursion(algorithm, counted_models, steps, direct):
    other = with_memory(algorithm, 0.25)
    if direct:  # the noise also enters the next state directly
        other = every_round(other, state_from_noise=lambda r: r.state_from_message @ r.message_from_noise)
    assert not other.is_plain
    expected = counted_variance(other, counted_models, ErrorWeights(steps))
    value = error(other, counted_models=counted_models, weights=ErrorWeights(steps))
    assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


@given(60, noisy(), STEPS, st.sampled_from(["nodes", "average"]))
def test_noise_correlated_in_time_goes_through_any_recursion(algorithm, steps, target):
    other, weights = with_memory(algorithm, 0.25), ErrorWeights(steps, target)
    expected = counted_variance(other, "post-average", weights)
    assert_allclose(error(other, weights=weights), expected, rtol=1e-9, atol=1e-12)


def every_round(algorithm, **changes):
    """The same algorithm with maps of each round replaced; each change is a function of the round."""
    rounds = tuple(
        dataclasses.replace(r, **{name: change(r) for name, change in changes.items()})
        if r.message_from_noise is not None
        else r
        for r in algorithm.rounds
    )
    return dataclasses.replace(algorithm, rounds=rounds)


@pytest.mark.parametrize("change", ["rates", "weights", "divisors", "noise", "memory", "own noise", "on messages"])
def test_the_maps_decide_where_dynamics_says_otherwise(change):
    """Another rate, matrix or divisor than in the rounds, or a map that plain gossip has not, is noticed."""
    W = gossip.metropolis_hastings("ring:n=4")
    algorithm = algorithms.decor(Dynamics(W, [0.5, 0.25]), Cyclic(1, 2))
    other = {
        "rates": dataclasses.replace(algorithm, dynamics=Dynamics(W, [0.5, 0.5])),
        "weights": dataclasses.replace(algorithm, dynamics=Dynamics(gossip.uniform("star:n=4"), [0.5, 0.25])),
        "divisors": dataclasses.replace(algorithm, divisors=np.array([1.0, 2.0, 1.0, 1.0])),
        "noise": every_round(algorithm, message_from_noise=lambda r: 2 * r.message_from_noise),
        "memory": every_round(algorithm, state_from_state=lambda r: sp.csr_array(0.5 * sp.eye_array(4))),
        "own noise": every_round(algorithm, state_from_noise=lambda r: r.message_from_noise),
        "on messages": dataclasses.replace(algorithm, noise_on_messages=True),
    }[change]
    assert algorithm.is_plain
    assert not other.is_plain
    for counted_models in COUNTED_MODELS:
        expected = counted_variance(other, counted_models)
        assert_allclose(error(other, counted_models=counted_models), expected, rtol=1e-12)
    if change in ("rates", "weights", "divisors"):  # the maps are the same
        assert_allclose(error(other), error(algorithm), rtol=1e-12)


@given(
    40, algorithm=linear_algorithms((*MEMORY_NAMES, "dp-dsgd", "mf-shared", "decor"), max_epochs=2, varying=False),
    model=st.sampled_from(["last", "average:1", "exponential:2"]), rounds=st.integers(0, 2),
    target=st.sampled_from(["nodes", "average"]),
)  # fmt: skip
def test_the_noise_in_released_models_is_that_of_the_operators(algorithm, model, rounds, target):
    releasing, noise = algorithm.releasing(mfdl.released.ReleasedModel(model, rounds)), algorithm.noise
    F, further = ErrorWeights("all", target).node_factor(algorithm.num_nodes), releasing.released_by_gossip
    rows = (F if further is None else F @ further) @ dense(releasing.released_from_injected_noise @ noise)
    expected = float((rows**2).sum()) / float(algorithm.dynamics.learning_rates(algorithm.num_steps)[0]) ** 2
    weights = ErrorWeights(f"released:{releasing.released.describe()}", target)
    assert_allclose(error(algorithm, weights=weights), expected, rtol=1e-8, atol=1e-12)


# Growth
@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("name", ["decor", "zip-dl"])
@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps(name, schedule):
    W = gossip.metropolis_hastings("erdos-renyi:n=120,p=0.1,seed=1")
    peaks = []
    for T in (32, 128):
        dynamics = Dynamics(W, np.linspace(1.0, 0.5, T) if schedule else 1.0)
        algorithm = algorithms.build(name, dynamics, Cyclic(1, T))
        tracemalloc.start()
        try:
            error(algorithm)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    slots = algorithm.noise.slots_per_step
    assert peaks[1] < 1.2 * peaks[0] < 16 * 8 * 120 * max(120, slots)  # (n T)^2 would be 1.9 GB


def test_over_more_steps_than_an_array_has_encoders_of_every_structure_have_one_error():
    """C with one diagonal is fresh noise, which goes by the error over nodes; and the three ways agree on one C."""
    T, weights = 4100, ErrorWeights("last:9:0.01")
    dynamics, part = dynamics_on("star:n=4", 0.1, momentum=0.5), Cyclic(5, T // 5)
    rows = np.tile([1.0, -0.5], (T, 1))
    rows[0, 1] = 0.0
    encoders = [Toeplitz([1.0], T), Inverse(Toeplitz([1.0, -0.5], T)), Inverse(Banded(rows)), Buffered([0.5], [0.5], T)]
    fresh, *others = [error(algorithms.mf_dsgd(dynamics, part, C), weights=weights) for C in encoders]
    assert_allclose(fresh, error(algorithms.dp_dsgd(dynamics, part), weights=weights), rtol=1e-9)
    assert_allclose(others, others[0], rtol=1e-9)
    with pytest.raises(UnsupportedMechanism, match="constant symmetric"):
        noise_error(algorithms.mf_dsgd(Dynamics(gossip.uniform("star:n=4")), part, encoders[3]))


def test_the_error_by_modes_needs_no_array_of_time_by_nodes():
    """T n = 8192 is more than such an array may have; and time (x) space of a diagonal F is local noise."""
    T, n = 64, 128
    dynamics, part = dynamics_on(f"ring:n={n}", 0.1), Cyclic(1, T)
    C = np.tri(T)
    noise = SpatioTemporalNoise(C, -np.eye(n), np.eye(n, dtype=bool), n)  # not told to be local by its sign
    both = error(decentralized("test", dynamics, part, noise))
    assert_allclose(both, error(algorithms.mf_dsgd(dynamics, part, C)), rtol=1e-9)
    star = Dynamics(gossip.uniform(f"star:n={n}"), 0.1)
    unsupported("this gossip", lambda: noise_error(decentralized("test", star, part, noise)))


# Large graphs
@pytest.fixture
def large(monkeypatch):
    def above(nodes):
        for module in (noise_objective, error_in_models):
            monkeypatch.setattr(module, "MAX_DENSE", nodes)

    return above


@pytest.mark.parametrize("name", ["dp-dsgd", "decor", "anti-pgd", "bisr", "none"])
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_an_estimate_holds_the_exact_error(name, divisor, large, monkeypatch):
    dynamics, part = dynamics_on("regular:n=200,degree=6"), Cyclic(3, 2)
    algorithm = algorithms.build(name, dynamics, part).with_divisors(np.full(200, divisor))
    exact = error(algorithm)
    assert exact > 0 or name == "none"
    large(100)
    monkeypatch.setattr(estimated_grams, "EXACT_WORK", 0)  # what probes are spared, which small graphs have
    monkeypatch.setattr(time_grams, "MAX_DENSE", 0)
    estimate = noise_error(algorithm)
    assert abs(estimate.value - exact) <= estimate.error or estimate.value == pytest.approx(exact, rel=1e-9)


def test_a_comparison_makes_no_graph_of_networkx_and_no_array_over_nodes(tmp_path, monkeypatch, large):
    def refuse(*_):
        raise AssertionError("not on a graph of 100,000 nodes")

    large(10)
    for forbidden in (SparseGraph, "networkx"), (GossipMatrix, "graph"), (GossipMatrix, "dense"), (graphs, "load"):
        monkeypatch.setattr(*forbidden, refuse)
    config = Experiment(
        graph="regular:n=40,degree=4", task="logistic:train_records=80", mechanisms=("dp-dsgd",), epochs=1, period=2,
        seeds=1,
    )  # fmt: skip
    (row,) = run_comparison(config, tmp_path, progress=False)["mechanisms"]
    assert 0 < row["objective_error"] < row["objective"]


def test_a_mechanism_says_how_far_its_objective_may_be_off(large):
    algorithm = algorithms.dp_dsgd(dynamics_on("regular:n=40,degree=4"), Cyclic(1, 2))
    question = {"trust": mfdl.trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    exact = mfdl.calibrate(algorithm, mfdl.Privacy(**question), mu=1.0)
    assert exact.objective_error == 0.0
    large(10)
    estimate = mfdl.calibrate(algorithm, mfdl.Privacy(**question), mu=1.0)
    assert 0 < abs(estimate.objective - exact.objective) <= estimate.objective_error


# Refusals
class Scaled(NoiseOperator):
    num_steps, num_nodes = 4, 4

    def __init__(self):
        super().__init__((16, 16))

    _matmat = _rmatmat = staticmethod(np.copy)

    def variances(self):
        return np.ones((4, 4))


PART, RING, STAR = Cyclic(2, 2), dynamics_on("ring:n=4"), Dynamics(gossip.uniform("star:n=4"))
PLAIN, ZIP = algorithms.dp_dsgd(RING, PART), algorithms.zip_dl(RING, PART)
AT_EACH_NODE = algorithms.mf_dsgd(RING, PART, np.stack([np.eye(4) + np.tri(4)] * 4))


@each(
    "nodes, call, message",
    (9, lambda: noise_error(PLAIN, counted_models="mesage"), "unknown counted_models 'mesage'; did you mean"),
    (9, lambda: noise_error(PLAIN.noise), "algorithm must be a LinearAlgorithm"),
    (9, lambda: noise_error(dataclasses.replace(PLAIN, noise=Scaled()), counted_models="message"), "do not count"),
    (9, lambda: NoiseObjective(RING, 4).noise_error(IndependentNoise(3, 4)), "must cover 4 steps x 4 nodes"),
    (9, lambda: NoiseObjective(RING, 4).noise_error(ZIP.noise), "one injection slot a node"),
    (9, lambda: NoiseObjective(RING, 4).noise_error(PLAIN.noise, [1, 2, 0, 1]), "one number > 0 for each of 4"),
    (9, lambda: NoiseObjective(RING, 4).noise_error(PLAIN), "noise must be a noise operator"),
    (3, lambda: noise_error(algorithms.dp_dsgd(STAR, PART)), "constant symmetric gossip"),
    (3, lambda: noise_error(AT_EACH_NODE), "alike at all nodes"),
    (3, lambda: noise_error(ZIP), "plain gossip with noise on gradients"),
)
def test_refusals(nodes, call, message, large):
    large(nodes)
    refuses(message, call, error=(InvalidInput, UnsupportedMechanism))

"""Noise in the models of every builder against the operators written out, and against the definition by hand."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from noises import OVER_BOTH, cases
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip
from mfdl.algorithms.dsgd import decentralized
from mfdl.dynamics import Dynamics
from mfdl.error_gram import OBJECTIVES
from mfdl.error_weights import ErrorWeights
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.factorization.strategies import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import NoiseOperator, SpaceTimeNoise
from mfdl.noise_error import noise_error
from mfdl.participation import Cyclic
from mfdl.testing import connected_graphs, gossip_matrices, gossip_sequences
from mfdl.testing.strategies import random_encoder

LOCAL = ("dp-dsgd", "muffliato", "anti-pgd", "mf-shared", "mf-per-node")
STRUCTURED = ("bisr", "buffered", "banded", "banded-inverse")
ACROSS = ("decor", "spatial", "groups")


def dense(operator):
    return np.asarray(operator @ np.eye(operator.shape[1]))


def counted_variance(one, objective, weights=None):
    """||models after the averaging of each step||_F^2 (or of the messages), from the algorithm's own operators.

    models_from_noise are the models at which gradients are taken, those after the steps before; then the final ones.
    """
    weights, T = weights or ErrorWeights(), one.num_steps
    if objective == "post-average":
        before = dense(one.models_from_noise()).reshape(T, one.num_nodes, -1)
        rows = [*before[1:], dense(one.models_from_noise(final=True))]
    else:
        rows = dense(one.messages_from_noise).reshape(len(one.rounds), one.messages_per_round, -1)
        rows = rows[np.array(one.step_of_round) >= 0]
    if not weights.uniform_target:
        rows = [weights.node_factor(one.num_nodes) @ row for row in rows]
    total = sum(w * np.sum(row**2) for w, row in zip(weights.of_steps(T), rows, strict=True))
    first = 1.0 if one.noise_on_messages else one.dynamics.learning_rates(one.num_steps)[0]
    return total / first**2


def build(name, dynamics, part, rng):
    n, T = dynamics.num_nodes, part.num_steps
    F = rng.integers(-2, 3, (n, n + 1)).astype(float)
    match name:
        case "none" | "dp-dsgd" | "anti-pgd" | "decor" | "zip-dl" | "muffliato":
            return algorithms.build(name, dynamics, part)
        case "mf-shared":
            return algorithms.mf_dsgd(dynamics, part, random_encoder(rng, part.num_steps))
        case "mf-per-node":
            return algorithms.mf_dsgd(dynamics, part, random_encoder(rng, part.num_steps, n))
        case "spatial":
            return algorithms.spatial_covariance(dynamics, part, F @ F.T + np.eye(n))
        case "bisr":
            return algorithms.bisr(dynamics, part)
        case "buffered":
            return algorithms.mf_dsgd(dynamics, part, Buffered([0.5, 0.25], [0.9, -0.5], T))
        case "banded" | "banded-inverse":
            rows = rng.uniform(0.5, 1.5, (T, min(T, 2)))
            C = Banded(np.where(np.arange(min(T, 2)) <= np.arange(T)[:, None], rows, 0.0))
            return algorithms.mf_dsgd(dynamics, part, C if name == "banded" else Inverse(C))
        case "groups":
            diagonals = [np.diag(np.eye(n)[u]) for u in range(n)]
            return algorithms.spatial_covariance(
                dynamics, part, [F @ F.T + np.eye(n), *diagonals], groups=[list(range(n)), *[[u] for u in range(n)]]
            )
    raise AssertionError(name)


@st.composite
def noisy(draw, names=LOCAL + STRUCTURED + ACROSS + OVER_BOTH):
    """Builders on constant and time-varying gossip of every kind, 1 to 3 rounds per step, schedules and divisors."""
    W = draw(st.one_of(gossip_matrices(max_nodes=4), gossip_sequences(max_nodes=4)))
    W = W if W.is_constant else gossip.sequence(W.matrices)
    name = draw(st.sampled_from(names))
    noise = draw(cases((name,), max_steps=3, num_nodes=W.num_nodes))[0] if name in OVER_BOTH else None
    T = draw(st.integers(1, 4)) if noise is None else noise.num_steps
    rates = draw(
        st.one_of(st.sampled_from([1.0, 0.3]), st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0]), min_size=T, max_size=T))
    )
    small = st.sampled_from([0.0, 0.0, 0.25])
    dynamics = Dynamics(W, rates, gossip_rounds=draw(st.integers(1, 3)), momentum=draw(small), weight_decay=draw(small))
    if noise is None:
        one = build(name, dynamics, Cyclic(1, T), np.random.default_rng(draw(st.integers(0, 99))))
    else:
        one = decentralized(name, dynamics, Cyclic(1, T), noise)
    divisors = draw(st.sampled_from(["none", "equal", "own"]))
    if divisors == "equal":
        return one.with_divisors(np.full(one.num_nodes, 3.0))
    if divisors == "own":
        return one.with_divisors(draw(st.lists(st.integers(1, 5), min_size=one.num_nodes, max_size=one.num_nodes)))
    return one


@examples(200)
@given(
    one=noisy(),
    objective=st.sampled_from(OBJECTIVES),
    steps=st.sampled_from(["all", "last", "exponential:2"]),
    target=st.sampled_from(["nodes", "average", "own"]),
)
def test_it_is_the_norm_of_the_operators(one, objective, steps, target):
    assert "is_plain" in vars(one)  # the builder knows it
    assert dataclasses.replace(one).is_plain  # and the maps say so too
    assert "is_plain" not in vars(dataclasses.replace(one))  # a copy could have other fields: the maps decide
    weights = ErrorWeights(steps, np.arange(1.0, one.num_nodes + 1) if target == "own" else target)
    expected = counted_variance(one, objective, weights)
    assert_allclose(noise_error(one, objective=objective, weights=weights), expected, rtol=1e-9, atol=1e-12)


# Noise on messages


@st.composite
def zip_cases(draw):
    W = gossip.metropolis_hastings(draw(connected_graphs(max_nodes=6)))
    T = draw(st.integers(1, 4))
    rate = draw(st.one_of(st.just(0.3), st.lists(st.sampled_from([0.1, 0.5, 2.0]), min_size=T, max_size=T)))
    sigma, self_messages = draw(st.sampled_from([1.0, 0.5])), draw(st.booleans())
    return W, T, algorithms.zip_dl(Dynamics(W, rate), Cyclic(1, T), sigma=sigma, self_messages=self_messages), sigma


@examples(60)
@given(case=zip_cases(), objective=st.sampled_from(OBJECTIVES), divide=st.booleans())
def test_noise_on_messages_is_the_norm_of_the_operators(case, objective, divide):
    _, _, one, _ = case
    one = one.with_divisors(np.arange(1, one.num_nodes + 1)) if divide else one  # they leave such noise alone
    assert_allclose(noise_error(one, objective=objective), counted_variance(one, objective), rtol=1e-9, atol=1e-12)


@examples(60)
@given(case=zip_cases())
def test_zip_dl_by_its_definition(case):
    """Node v adds xi_v = sum_a W_va Z_{a->v} per step, Z = Y - (w^T Y) / (d w): sum_j (T - j) ||W^j [xi <- Y]||_F^2."""
    W, T, one, sigma = case
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
    assert_allclose(noise_error(one), expected, rtol=1e-9, atol=1e-12)


def test_the_learning_rate_does_not_scale_noise_on_messages():
    W, part = gossip.metropolis_hastings("ring:n=5"), Cyclic(2, 2)
    slow, fast = (algorithms.zip_dl(Dynamics(W, rate), part) for rate in (0.1, 1.0))
    assert noise_error(slow) == noise_error(fast) > 0


# What is counted


def test_without_noise_it_is_zero_and_bad_names_are_refused():
    one = algorithms.dsgd(Dynamics(gossip.metropolis_hastings("ring:n=5")), Cyclic(2, 2))
    assert noise_error(one) == 0.0
    with pytest.raises(InvalidInput, match="unknown objective 'mesage'; did you mean 'message'"):
        noise_error(one, objective="mesage")


# Recursions that are not the gossip of their dynamics


def with_memory(one, keep):
    """Half of the step is kept back: the next state is (1 - keep) K m + keep * (the last one)."""
    eye = sp.csr_array(sp.eye_array(one.model_from_state.shape[1]))
    rounds = tuple(
        dataclasses.replace(r, state_from_message=(1 - keep) * r.state_from_message, state_from_state=keep * eye)
        for r in one.rounds
    )
    return dataclasses.replace(one, rounds=rounds)


@examples(60)
@given(one=noisy(names=("dp-dsgd", "decor", "spatial")), objective=st.sampled_from(OBJECTIVES), own=st.booleans())
def test_fresh_noise_goes_through_any_recursion(one, objective, own):
    other = with_memory(one, 0.25)
    if own:  # the noise also enters the next state directly
        other = every_round(other, state_from_noise=lambda r: r.state_from_message @ r.message_from_noise)
    assert not other.is_plain
    assert_allclose(noise_error(other, objective=objective), counted_variance(other, objective), rtol=1e-9, atol=1e-12)


def test_noise_correlated_in_time_is_refused_outside_plain_gossip():
    one = algorithms.anti_pgd(Dynamics(gossip.metropolis_hastings("ring:n=5")), Cyclic(2, 2))
    with pytest.raises(UnsupportedMechanism, match="'anti-pgd' has another recursion"):
        noise_error(with_memory(one, 0.5))


def every_round(one, **changes):
    """The same algorithm with maps of each round replaced; each change is a function of the round."""
    rounds = tuple(
        dataclasses.replace(r, **{name: change(r) for name, change in changes.items()})
        if r.message_from_noise is not None
        else r
        for r in one.rounds
    )
    return dataclasses.replace(one, rounds=rounds)


@pytest.mark.parametrize("change", ["rates", "weights", "divisors", "noise", "memory", "own noise", "on messages"])
def test_the_maps_decide_where_dynamics_says_otherwise(change):
    """Another rate, matrix or divisor than in the rounds, or a map that plain gossip has not, is noticed."""
    W = gossip.metropolis_hastings("ring:n=4")
    one = algorithms.decor(Dynamics(W, [0.5, 0.25]), Cyclic(1, 2))
    other = {
        "rates": dataclasses.replace(one, dynamics=Dynamics(W, [0.5, 0.5])),
        "weights": dataclasses.replace(one, dynamics=Dynamics(gossip.uniform("star:n=4"), [0.5, 0.25])),
        "divisors": dataclasses.replace(one, divisors=np.array([1.0, 2.0, 1.0, 1.0])),
        "noise": every_round(one, message_from_noise=lambda r: 2 * r.message_from_noise),
        "memory": every_round(one, state_from_state=lambda r: sp.csr_array(0.5 * sp.eye_array(4))),
        "own noise": every_round(one, state_from_noise=lambda r: r.message_from_noise),
        "on messages": dataclasses.replace(one, noise_on_messages=True),
    }[change]
    assert one.is_plain
    assert not other.is_plain
    for objective in OBJECTIVES:
        assert_allclose(noise_error(other, objective=objective), counted_variance(other, objective), rtol=1e-12)
    if change in ("rates", "weights", "divisors"):  # the maps are the same
        assert_allclose(noise_error(other), noise_error(one), rtol=1e-12)


def test_unknown_noise_is_refused():
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=4")), Cyclic(1, 2))

    class Scaled(NoiseOperator):
        num_steps, num_nodes = 2, 4

        def __init__(self):
            super().__init__((8, 8))

        _matmat = _rmatmat = staticmethod(np.copy)

        def variances(self):
            return np.ones((2, 4))

    with pytest.raises(UnsupportedMechanism, match="noise Scaled is not covered"):
        noise_error(dataclasses.replace(one, noise=Scaled()))


# Growth


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("name", ["decor", "zip-dl"])
@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps(name, schedule):
    W = gossip.metropolis_hastings("erdos-renyi:n=120,p=0.1,seed=1")
    peaks = []
    for T in (32, 128):
        dynamics = Dynamics(W, np.linspace(1.0, 0.5, T) if schedule else 1.0)
        one = algorithms.build(name, dynamics, Cyclic(1, T))
        tracemalloc.start()
        try:
            noise_error(one)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    slots = one.noise.slots_per_step
    assert peaks[1] < 1.2 * peaks[0] < 16 * 8 * 120 * max(120, slots)  # (n T)^2 would be 1.9 GB


def test_over_more_steps_than_an_array_has_encoders_of_every_structure_have_one_error():
    """C with one diagonal is fresh noise, which goes by the error over nodes; and the three ways agree on one C."""
    T, weights = 4100, ErrorWeights("last:9:0.01")
    dynamics, part = Dynamics(gossip.metropolis_hastings("star:n=4"), 0.1, momentum=0.5), Cyclic(5, T // 5)
    rows = np.tile([1.0, -0.5], (T, 1))
    rows[0, 1] = 0.0
    encoders = [Toeplitz([1.0], T), Inverse(Toeplitz([1.0, -0.5], T)), Inverse(Banded(rows)), Buffered([0.5], [0.5], T)]
    fresh, *others = [noise_error(algorithms.mf_dsgd(dynamics, part, C), weights=weights) for C in encoders]
    assert_allclose(fresh, noise_error(algorithms.dp_dsgd(dynamics, part), weights=weights), rtol=1e-9)
    assert_allclose(others, others[0], rtol=1e-9)
    with pytest.raises(UnsupportedMechanism, match="constant symmetric"):
        noise_error(algorithms.mf_dsgd(Dynamics(gossip.uniform("star:n=4")), part, encoders[3]))


# Noise over time and nodes


def test_the_error_by_modes_needs_no_array_of_time_by_nodes():
    """T n = 8192 is more than such an array may have; and time (x) space of a diagonal F is local noise."""
    T, n = 64, 128
    dynamics, part = Dynamics(gossip.metropolis_hastings(f"ring:n={n}"), 0.1), Cyclic(1, T)
    C = np.tri(T)
    noise = SpaceTimeNoise(C, -np.eye(n), np.eye(n, dtype=bool), n)  # not told to be local by its sign
    found = noise_error(decentralized("test", dynamics, part, noise))
    assert_allclose(found, noise_error(algorithms.mf_dsgd(dynamics, part, C)), rtol=1e-9)
    star = Dynamics(gossip.uniform(f"star:n={n}"), 0.1)
    with pytest.raises(UnsupportedMechanism, match="this gossip has none"):
        noise_error(decentralized("test", star, part, noise))

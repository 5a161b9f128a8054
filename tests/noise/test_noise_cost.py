"""What noise costs the models, whatever its structure, against the algorithm's own operators."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from noises import LOCAL, OVER_BOTH, cases
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip
from mfdl.algorithms.dsgd import decentralized
from mfdl.dynamics import Dynamics
from mfdl.error_gram import OBJECTIVES
from mfdl.error_weights import ErrorWeights
from mfdl.errors import UnsupportedMechanism
from mfdl.noise import SpaceTimeNoise
from mfdl.noise_error import noise_error
from mfdl.participation import Cyclic
from mfdl.testing.strategies import gossip_matrices, gossip_sequences


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


COVERED = (*LOCAL, *OVER_BOTH, "step", "zero")
WEIGHTS = (ErrorWeights(), ErrorWeights("exponential:2", "average"))


@st.composite
def noisy(draw):
    """Any gossip: with modes or without, momentum, decay, schedules and divisors."""
    W = draw(st.one_of(gossip_matrices(max_nodes=3), gossip_sequences(max_nodes=3)))
    W = W if W.is_constant else gossip.sequence(W.matrices)
    noise, _ = draw(cases(COVERED, max_steps=3, num_nodes=W.num_nodes))
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

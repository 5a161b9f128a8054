"""Training under noise over steps and nodes: resumes to the same run, and injects what was accounted."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.mechanism import calibrate
from mfdl.noise_error import noise_error
from mfdl.participation import Cyclic
from mfdl.testing.tasks import still_task
from mfdl.training import replay
from mfdl.training.keys import normals
from mfdl.training.replay import replay as train

torch.set_num_threads(1)
RATE = 0.5
NODES, SCHEME = 4, Cyclic(3, 2)
PATH = Dynamics(gossip.metropolis_hastings("path:n=4"), RATE)
W = PATH.gossip.dense()
TRIPLES = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
KINDS = ("time-space", "groups", "adapted", "space-time")


@functools.cache
def mechanism(kind):
    """Calibrated to mu = 0.8 against an eavesdropper, or against any single node with groups."""
    options = {"groups": TRIPLES, "coalition_size": 1} if kind == "groups" else {}
    one = algorithms.build(kind if kind != "groups" else "time-space", PATH, SCHEME, **options)
    model = trust.Coalitions(1) if kind == "groups" else trust.SecLDP()
    return calibrate(one, trust=model, adjacency="zero-out", clip_norm=1.0, mu=0.8)


def silent_task(dimension):
    """One record per node and step: messages are the noise alone, all divisors 1."""
    return still_task(NODES, np.ones((NODES * SCHEME.period, 1)), dimension)


@pytest.fixture
def keys(monkeypatch):
    """The key of each run, as it is given to the stream of noise."""
    seen, make = [], replay.noise_stream
    monkeypatch.setattr(replay, "noise_stream", lambda *args: (seen.append(args[2]), make(*args))[1])
    return seen


def base_noise(noise, key, dim):
    """Z by definition: column k is stream j of the key of its holders, the j-th of their columns; (T columns, dim)."""
    columns, seen = [], {}
    for held in noise.holders().toarray():
        holders = tuple(int(u) for u in np.flatnonzero(held))
        columns.append((key.derive("holders", *holders), seen.setdefault(holders, 0)))
        seen[holders] += 1
    return np.concatenate([normals(own, s, [j], dim) for s in range(noise.num_steps) for own, j in columns])


def sent(injected):
    """Messages of a run without gradients, from what is injected, (T, n, ...): the recursion by hand."""
    theta, messages = np.zeros_like(injected[0]), []
    for xi in injected:
        messages.append(theta - RATE * xi)
        theta = np.tensordot(W, messages[-1], 1)
    return np.stack(messages), theta


def injected_covariance(one):
    """(T n, T n) per nu^2, from what the factorization says of itself."""
    found = one.factorization
    if found.kind == "space-time":
        return np.linalg.inv(found.encoder.T @ found.encoder)
    if found.kind == "time-space":
        return np.kron(np.linalg.inv(found.encoder.T @ found.encoder), found.space.covariance)
    return sum(
        np.kron(np.linalg.inv(C.T @ C), np.outer(g, g)) for C, g in zip(found.encoder, found.directions.T, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_the_noise_operator_on_the_base_noise(kind, keys):
    made, dim = mechanism(kind), 30
    noise = made.algorithm.noise
    run = train(made, silent_task(dim), seeds=[2], keep_messages=True, dtype=torch.float64).seeds[0]
    Z = made.noise_std * base_noise(noise, keys[-1], dim)
    injected = (noise.to_dense() @ Z).reshape(6, NODES, dim)
    messages, models = sent(injected)
    assert_allclose(run.messages, messages, rtol=1e-9, atol=1e-9)
    assert_allclose(run.models, models, rtol=1e-9, atol=1e-9)
    assert np.abs(run.messages).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_injected_has_the_covariance_of_the_factorization_and_costs_what_is_accounted(kind):
    """With the test above: messages and models of a run have the covariance that was accounted."""
    algorithm = mechanism(kind).algorithm
    N = algorithm.noise.to_dense()
    assert_allclose(N @ N.T, injected_covariance(algorithm), rtol=1e-8, atol=1e-10)
    messages, models = sent(N.reshape(6, NODES, -1))
    averaged = np.concatenate([messages[1:] + RATE * N.reshape(6, NODES, -1)[1:], models[None]])
    assert np.sum(averaged**2) / RATE**2 == pytest.approx(noise_error(algorithm), rel=1e-8)


def test_noise_of_more_correlation_is_less_in_the_models_at_equal_privacy():
    """What all of it is for: mu = 0.8 for an outsider each time, and each time less noise."""
    errors = []
    for kind in ("dp-dsgd", "mafalda", "time-space", "adapted", "space-time"):
        one = algorithms.build(kind, PATH, SCHEME)
        made = calibrate(one, trust=trust.SecLDP(), adjacency="zero-out", clip_norm=1.0, mu=0.8)
        errors.append(made.noise_std**2 * noise_error(one))
    assert all(later < 1.001 * earlier for earlier, later in itertools.pairwise(errors))
    assert errors[2] < 0.8 * errors[1] < 0.8 * errors[0]
    assert errors[-1] < 0.75 * errors[1]
    assert mechanism("groups").guarantee.mu == pytest.approx(0.8, rel=1e-6)

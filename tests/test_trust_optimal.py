"""Noise that is optimal for a trust model: the library's own accounting, mafalda where all is seen, and `optimize`."""

from __future__ import annotations

import dataclasses

import networkx as nx
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, Privacy, TrustModel
from mfdl.algorithms import mafalda, message_noise, muffliato, noise_error, trust_optimal
from mfdl.factorization import NotConverged, factorize_nodes
from mfdl.gossip import metropolis_hastings
from mfdl.trust import AnyReceiver, Coalitions, Eavesdropper

GAP = 1e-3


def dynamics(graph="ring:n=5", rounds=2, rate=0.3):
    return Dynamics(metropolis_hastings(graph), rate, gossip_rounds=rounds)


def privacy(trust, **fields):
    return Privacy(trust, adjacency="zero-out", clip_norm=1.0, **fields)


@st.composite
def settings_of_noise(draw):
    graph = nx.gnp_random_graph(draw(st.integers(2, 4)), 0.6, seed=draw(st.integers(0, 99)))
    nx.add_path(graph, sorted(graph))
    scheme = draw(st.sampled_from([EveryStep(1), Cyclic(epochs=1, period=2), EveryStep(2), EveryStep(3), Cyclic(2, 2)]))
    return dynamics(graph, draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 0.3]))), scheme


@examples(20)
@given(
    setting=settings_of_noise(),
    trust=st.sampled_from([AnyReceiver(), Eavesdropper(), Coalitions(1)]),
    published=st.booleans(),
)
def test_the_accounted_mu_of_the_finished_algorithm_is_1(setting, trust, published):
    (run, scheme), release = setting, None if published else "none"
    algorithm = trust_optimal(run, scheme, trust, published=published, release=release, tolerance=GAP)
    losses = mfdl.losses(algorithm, privacy(trust, release=release), progress=False)
    assert losses.guarantee(1.0).mu >= 1 - GAP
    if scheme.num_steps == 1 or published:
        assert losses.guarantee(1.0).mu <= 1 + 1e-6
        assert scheme == EveryStep(3) or losses.guarantee(1.0).mu >= 1 - 1e-6  # of two steps signs are all there is
        assert losses.guarantee(1.0).adaptive
    certificate = algorithm.factorization
    assert certificate.lower_bound <= certificate.objective <= certificate.lower_bound * (1 + GAP)
    error = noise_error(algorithm).value / (run.num_nodes * scheme.num_steps)
    price = 1e-3 * certificate.covariances.trace(axis1=1, axis2=2).sum()
    assert error + price == pytest.approx(certificate.objective, rel=1e-9)


@pytest.mark.parametrize("scheme", [EveryStep(3), Cyclic(epochs=2, period=3), Cyclic(epochs=1, period=4)], ids=str)
def test_if_all_is_seen_it_is_the_best_encoder_of_each_node(scheme):
    """One slot a step and every message seen: mafalda's problem, with an encoder for each node; the price vanishes."""
    run = dynamics("star:n=4", rounds=1)
    algorithm = trust_optimal(run, scheme, Eavesdropper(), published=False, release="none", price=1e-7, tolerance=GAP)
    nodes = factorize_nodes(run, scheme, tolerance=GAP)
    objective = algorithm.factorization.objective * run.num_nodes * scheme.num_steps
    assert objective == pytest.approx(nodes.objective, rel=3 * GAP)


def test_gradients_that_are_worse_than_all_signs_are_met_too():
    """On a path signs alone leave mu = 1.0002 after five steps of one record."""
    algorithm = trust_optimal(dynamics("path:n=4", rounds=1), EveryStep(5), AnyReceiver(), tolerance=GAP)
    assert 1 - GAP <= mfdl.account(algorithm, privacy(AnyReceiver()), noise_std=1.0, progress=False).mu <= 1 + 1e-6
    assert algorithm.factorization.gap <= GAP


def test_less_noise_than_muffliato_and_mafalda_on_a_ring_and_none_gained_on_a_complete_graph():
    scheme = EveryStep(1)
    for graph, share in (("ring:n=6", 0.9), ("complete:n=6", 1.0)):
        run = dynamics(graph, rounds=4)
        best = mfdl.optimize(run, scheme, privacy(AnyReceiver()), mu=1.0, progress=False)
        other = mfdl.calibrate(muffliato(run, scheme), privacy(AnyReceiver()), mu=1.0, progress=False)
        errors = [noise_error(m.algorithm).value * m.noise_std**2 for m in (best, other)]
        assert errors[0] <= errors[1] * share * (1 + GAP)


def test_optimize_takes_mafalda_if_all_is_seen_and_trains():
    run, scheme = dynamics("ring:n=4"), EveryStep(2)
    seen = mfdl.optimize(run, scheme, privacy(mfdl.trust.LDP()), mu=1.0, progress=False)
    assert seen.algorithm.content_hash == mafalda(run, scheme, tolerance=1e-3).content_hash
    mechanism = mfdl.optimize(run, scheme, privacy(AnyReceiver()), epsilon=1.0, delta=1e-6, progress=False)
    assert mechanism.guarantee.epsilon(1e-6) <= 1.0
    result = mfdl.replay(mechanism, mfdl.tasks.load("least-squares", 4), seeds=[0], progress=False)
    assert len(result.seeds) == 1


def test_masks_of_a_trust_model_of_the_caller():
    """An outsider who taps one node in some rounds: less is seen, so less noise is needed."""
    run, scheme = dynamics("ring:n=4"), EveryStep(1)
    rounds = np.zeros((3, 4), dtype=bool)
    rounds[:2, 1] = True
    tap = TrustModel.from_masks(seen=rounds, name="tap", release="none")
    tapped = mfdl.optimize(run, scheme, privacy(tap), mu=1.0, progress=False)
    everything = trust_optimal(run, scheme, Eavesdropper()).factorization
    assert tapped.algorithm.factorization.objective < everything.objective


def test_covariances_are_those_of_the_noise():
    algorithm = trust_optimal(dynamics("path:n=3"), EveryStep(2), AnyReceiver())
    N = algorithm.noise.to_dense()
    C = (N @ N.T).reshape(2, 3, 3, 2, 3, 3)  # step, slot, node
    for v, S in enumerate(algorithm.factorization.covariances):
        np.testing.assert_allclose(C[:, :, v, :, :, v].reshape(6, 6), S, atol=1e-12)
    C[:, :, np.arange(3), :, :, np.arange(3)] = 0
    assert not C.any()


def test_what_is_not_covered_is_refused():
    run, scheme = dynamics(), EveryStep(2)
    unsupported("momentum", lambda: message_noise(dataclasses.replace(run, momentum=0.5), scheme))
    unsupported("every pattern", lambda: trust_optimal(run, EveryStep(30), AnyReceiver()))
    with pytest.raises(InvalidInput, match="unknown entries"):
        trust_optimal(dynamics("path:n=20", rounds=5), Cyclic(epochs=1, period=6), AnyReceiver())
    refuses("price", lambda: trust_optimal(run, scheme, AnyReceiver(), price=0.0))
    refuses(".", lambda: trust_optimal(run, scheme, AnyReceiver(), max_iterations=2), error=NotConverged)
    refuses("no attacker sees", lambda: trust_optimal(run, scheme, TrustModel.from_masks(name="blind", release="none")))


def test_where_hidden_messages_count_as_seen_mafalda_is_returned():
    run, scheme = Dynamics(mfdl.gossip.metropolis_hastings("path:n=4"), 0.3, gossip_rounds=2), EveryStep(3)
    best = mfdl.optimize(run, scheme, privacy(AnyReceiver()), mu=1.0, published=False, progress=False)
    assert best.algorithm.name == "mafalda"
    optimal = trust_optimal(run, scheme, AnyReceiver(), published=False)
    assert best.objective < 0.5 * mfdl.calibrate(optimal, privacy(AnyReceiver()), mu=1.0).objective

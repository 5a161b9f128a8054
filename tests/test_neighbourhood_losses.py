"""The loss of a victim of a large graph by its neighbourhood, which tells the attacker more than the graph does."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import refuses

from mfdl import Cyclic, Dynamics, TrustModel, algorithms, gossip, trust
from mfdl.factorization import square_root_encoder
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import gossip_matrices
from mfdl.trust import neighbourhood


def loss(built, model, victim, release):
    (of_victim,) = sensitivity_by_victim(built, model, victims=[victim], release=release)
    return of_victim


@examples(60)
@given(
    W=gossip_matrices(min_nodes=3, max_nodes=7),
    data=st.data(),
    radius=st.integers(0, 3),
    correlated=st.booleans(),
    release=st.sampled_from(["none", "all"]),
)
def test_a_neighbourhood_loses_what_the_graph_loses_to_one_who_is_told_more(W, data, radius, correlated, release):
    victim, attacker = data.draw(st.permutations(range(W.num_nodes)).map(lambda order: order[:2]))
    near, scheme = neighbourhood(W, victim, [attacker], radius=radius, release=release), Cyclic(epochs=2, period=2)

    def built(matrix):
        dynamics = Dynamics(matrix, 0.5)
        if correlated:
            return algorithms.mf_dsgd(dynamics, scheme, square_root_encoder(4))
        return algorithms.dp_dsgd(dynamics, scheme)

    whole, inside = built(W), loss(built(near.gossip), near.trust, near.victim, release)
    seen, attacks = np.ones(W.num_nodes, dtype=bool), np.arange(W.num_nodes) == attacker
    seen[near.nodes[near.hidden]] = False
    informed = TrustModel.from_masks(
        seen=seen, known_gradients=attacks, known_noise=attacks, attackers=[attacker], release=release
    )
    same, pndp = (loss(whole, model, victim, release) for model in (informed, trust.PNDP([attacker])))
    assume(np.isfinite(same.sensitivity_squared))
    assert inside.sensitivity_squared == pytest.approx(same.sensitivity_squared, rel=1e-6)
    assert inside.adaptive_sensitivity_squared >= same.adaptive_sensitivity_squared * (1 - 1e-6)
    assert inside.sensitivity_squared >= pndp.sensitivity_squared * (1 - 1e-6)


def test_a_victim_among_a_hundred_thousand_comes_closer_with_the_radius():
    ring = gossip.metropolis_hastings("ring:n=100000")
    collected = []
    for radius in (0, 1, 4, 7):
        near = neighbourhood(ring, 50, [46], radius=radius)
        built = algorithms.dp_dsgd(Dynamics(near.gossip), Cyclic(epochs=4, period=2))
        collected.append(loss(built, near.trust, near.victim, "none").sensitivity_squared)
    small = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=40")), Cyclic(epochs=4, period=2))
    exact = loss(small, trust.PNDP([6]), 10, "none").sensitivity_squared
    assert collected == sorted(collected, reverse=True)
    assert collected[0] > 2 * collected[-1]
    assert exact * (1 - 1e-9) <= collected[-1] <= 1.05 * exact


def test_refusals():
    W = gossip.metropolis_hastings("ring:n=5")
    for victim, attackers in ((0, [0]), (5, [1]), (0, [7]), (0, [])):
        refuses("different nodes below 5", neighbourhood, W, victim, attackers)

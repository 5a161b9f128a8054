"""Noise over time and nodes from seeds in groups: what it is worth against who holds some of them."""

from __future__ import annotations

import math

from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from spatio_temporal_cases import KINDS, RING, SCHEME, half_lazy, sensitivities_squared, worst_loss

from mfdl import Cyclic, Dynamics, algorithms, gossip, trust
from mfdl.algorithms import noise_error, spatio_temporal_noise
from mfdl.factorization import optimal_covariance, optimal_joint, optimal_kronecker
from mfdl.testing import coalition_inverse_diagonal, connected_graphs

TRIPLES = [[u, (u + 1) % 5, (u + 2) % 5] for u in range(5)]


@st.composite
def grouped(draw):
    """(dynamics, participation, groups, q) with q < n; groups overlap and may leave nodes without a seed."""
    dynamics = Dynamics(half_lazy(draw(connected_graphs(3, 5))), momentum=draw(st.sampled_from([0.0, 0.5])))
    n = dynamics.num_nodes
    group = st.sets(st.integers(0, n - 1), min_size=2, max_size=3).map(sorted)
    groups = draw(st.none() | st.lists(group, min_size=1, max_size=4))
    return dynamics, draw(st.sampled_from([Cyclic(2, 2), Cyclic(1, 3), Cyclic(3, 1)])), groups, draw(st.integers(1, 2))


@examples(12)
@given(case=grouped())
def test_every_coalition_is_held_off_and_nothing_is_wasted(case):
    """Against each set of at most q nodes, one by one; the library's accountant and R by hand agree."""
    dynamics, scheme, groups, q = case
    assume(q < dynamics.num_nodes)
    factorization = optimal_kronecker(dynamics, scheme, groups=groups, coalition_size=q)
    assert factorization.coalition_size == q
    algorithm = spatio_temporal_noise(dynamics, scheme, factorization)
    space, X = factorization.space, factorization.encoder.T @ factorization.encoder
    over_nodes = coalition_inverse_diagonal(space.private_variance, space.parts, space.groups, dynamics.num_nodes, q)
    least, most = sensitivities_squared(X, scheme, 1)[0]
    accounted = max(worst_loss(algorithm, trust.Coalitions(size)) for size in range(q + 1))
    assert over_nodes * least * (1 - 1e-8) <= accounted <= over_nodes * most * (1 + 1e-6)
    assert 1 - 1e-3 <= accounted <= 1 + 1e-6
    assert_allclose(noise_error(algorithm).value * factorization.sensitivity**2, factorization.objective, rtol=1e-9)
    alone = algorithms.mafalda(dynamics, scheme).factorization.objective  # seeds left unused: every node for itself
    halves = (
        scheme.epochs
        * optimal_covariance(dynamics, horizon=scheme.num_steps, groups=groups, coalition_size=q).objective
    )
    assert factorization.objective <= min(alone, halves) * (1 + 2e-3)
    assert factorization.lower_bound <= optimal_joint(dynamics, scheme).objective * (1 + 1e-9)
    assert factorization.lower_bound <= factorization.objective


def test_seeds_of_three_help_against_single_insiders():
    """On a ring the triples u, u + 1, u + 2 leave every node a seed that a given other node lacks."""
    factorization = optimal_kronecker(RING, SCHEME, groups=TRIPLES, coalition_size=1)
    alone = algorithms.mafalda(RING, SCHEME).factorization.objective
    assert factorization.objective < 0.99 * alone
    assert (
        factorization.objective
        < 0.75 * SCHEME.epochs * optimal_covariance(RING, horizon=6, groups=TRIPLES, coalition_size=1).objective
    )
    assert factorization.status == "stationary"
    assert 0 < factorization.space.private_variance < 0.9
    assert {frozenset(group) for group in factorization.space.groups} == {frozenset(group) for group in TRIPLES}
    outsider = optimal_kronecker(RING, SCHEME, groups=TRIPLES)
    assert outsider.objective < 0.9 * factorization.objective
    algorithm = spatio_temporal_noise(RING, SCHEME, outsider)
    assert worst_loss(algorithm) <= 1 + 1e-6 < 1.1 < worst_loss(algorithm, trust.Coalitions(1))


def test_pairs_on_a_complete_graph_against_one_and_two_insiders():
    complete = Dynamics(gossip.metropolis_hastings("complete:n=5"))
    alone = algorithms.mafalda(complete, SCHEME).factorization.objective
    factorization = [optimal_kronecker(complete, SCHEME, coalition_size=q) for q in (1, 2)]
    assert_allclose(
        [solution.objective / alone for solution in factorization], [1 / 4, 1 / 3], rtol=1e-3
    )  # n - q nodes hide together
    for solution, q in zip(factorization, (1, 2), strict=True):
        assert solution.coalition_size == q
        algorithm = spatio_temporal_noise(complete, SCHEME, solution)
        assert_allclose(worst_loss(algorithm, trust.Coalitions(q)), 1.0, rtol=1e-6)
        assert worst_loss(algorithm, trust.Coalitions(q + 1)) > 1.2


def test_one_seed_for_all_is_nothing_to_who_holds_it():
    """Against insiders it is as good as no seed: private noise alone is used, or their loss is infinite."""
    everybody = [list(range(5))]
    factorization = optimal_kronecker(RING, SCHEME, groups=everybody, coalition_size=1)
    assert any("shared seeds cannot help" in note for note in factorization.notes)
    assert_allclose(factorization.space.private_variance, 1.0, rtol=1e-9)
    assert_allclose(factorization.objective, algorithms.mafalda(RING, SCHEME).factorization.objective, rtol=1e-3)
    for kind, solve in KINDS.items():
        algorithm = spatio_temporal_noise(RING, SCHEME, solve(RING, SCHEME))
        inside = worst_loss(algorithm, trust.Coalitions(1))
        if kind == "kronecker":  # the least eigenvalue of R is kept private
            s = algorithm.factorization.space.private_variance
            assert_allclose(inside, 1 / s, rtol=1e-6)
            assert inside > 1.2
        else:
            assert math.isinf(inside)

"""Builders of noise over steps and nodes, and every registered name built by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses

from mfdl import Cyclic, Dynamics, ErrorWeights, algorithms, gossip, trust
from mfdl.algorithms import joint, kronecker, noise_error, per_mode, registry, spatio_temporal_noise
from mfdl.factorization import NotConverged, optimal_joint, optimal_kronecker, optimal_per_mode
from mfdl.noise import JointNoise, SpatioTemporalNoise
from mfdl.privacy import sensitivity_by_victim

PATH = Dynamics(gossip.metropolis_hastings("path:n=4"), 0.5)
SCHEME = Cyclic(2, 2)
BUILDERS = {"kronecker": kronecker, "per-mode": per_mode, "joint": joint}
SOLVERS = {"kronecker": optimal_kronecker, "per-mode": optimal_per_mode, "joint": optimal_joint}
MARK = "last:2:0.1"


@pytest.mark.parametrize("name", registry.MECHANISMS)
def test_every_name_builds_and_runs_under_its_own_trust_models(name):
    given = {"muffliato": {"gossip_rounds": 2}, "bsr": {"bandwidth": 2}}.get(name, {})
    algorithm = algorithms.build(name, PATH, SCHEME, **given)
    assert algorithm.name == registry.check_name(name) == name
    assert (algorithm.num_steps, algorithm.num_nodes) == (4, 4)
    for model in registry.MECHANISMS[name].models[:1]:
        losses = sensitivity_by_victim(algorithm, trust.named(model), release=registry.MECHANISMS[name].release)
        assert all(0 < loss.sensitivity_squared < np.inf for loss in losses)


@pytest.mark.parametrize("name", registry.MECHANISMS)
def test_error_weights_are_for_those_that_optimise(name):
    weights, weighted = ErrorWeights.parse(MARK), registry.MECHANISMS[name].weighted
    if not weighted:
        refuses("optimises nothing, so it takes no error", algorithms.build, f"{name}@{MARK}", PATH, SCHEME)
        return
    plain, marked = (algorithms.build(text, PATH, SCHEME) for text in (name, f"{name}@{MARK}"))
    if name == "decor":  # without weights it builds a given ratio
        plain = registry.build_tuned(name, PATH, SCHEME)
        refuses("chooses sigma_ldp, sigma_cor", algorithms.build, f"{name}@{MARK}", PATH, SCHEME, sigma_cor=2.0)
    assert marked.name == f"{name}@{MARK}"
    costs = [
        noise_error(algorithm, weights=weights).value
        * max(loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper()))
        for algorithm in (plain, marked)
    ]
    assert costs[1] < costs[0] * 0.999


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("options", [{}, {"weights": ErrorWeights.parse(MARK), "counted_models": "message"}])
def test_a_builder_is_its_factorization_and_the_noise_of_it(kind, options):
    algorithm, solved = BUILDERS[kind](PATH, SCHEME, **options), SOLVERS[kind](PATH, SCHEME, **options)
    assert algorithm.name == algorithm.factorization.kind == kind
    assert_allclose(algorithm.factorization.objective, solved.objective, rtol=2e-3)
    assert_allclose(noise_error(algorithm, **options).value, algorithm.factorization.objective, rtol=1e-8)
    assert isinstance(algorithm.noise, JointNoise if kind == "joint" else SpatioTemporalNoise)
    holders = algorithm.noise.holders().toarray()
    private = algorithm.factorization.space.private_variance if kind == "kronecker" else 0.0
    assert holders[-4:].all()  # the columns of the one seed
    assert_array_equal(holders[:4], np.eye(4, dtype=bool) if private else np.ones((4, 4), dtype=bool))
    assert spatio_temporal_noise(PATH, SCHEME, solved, name="mine").name == "mine"


def test_directions_and_encoders_belong_together():
    """The noise of `per_mode` is sum_k E_k E_k^T (x) g_k g_k^T: other pairs of the same parts cost more."""
    solved = optimal_per_mode(PATH, SCHEME)
    loss = noise_error(spatio_temporal_noise(PATH, SCHEME, solved)).value
    for other in (
        dataclasses.replace(solved, encoder=solved.encoder[::-1].copy()),
        dataclasses.replace(solved, directions=solved.directions[:, ::-1].copy()),
        dataclasses.replace(solved, directions=solved.directions.T.copy()),
    ):
        algorithm = spatio_temporal_noise(PATH, SCHEME, other)
        worst = max(loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper()))
        assert noise_error(algorithm).value * worst > loss * 1.05


def test_groups_reach_the_noise():
    triples = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
    algorithm = kronecker(PATH, SCHEME, groups=triples, coalition_size=1)
    holders = {tuple(np.flatnonzero(row)) for row in algorithm.noise.holders().toarray()}
    assert {(u,) for u in range(4)} <= holders
    assert holders - {(u,) for u in range(4)} <= {tuple(sorted(group)) for group in triples}
    assert algorithm.factorization.coalition_size == 1
    tuned = registry.build_tuned(
        "kronecker", Dynamics(gossip.metropolis_hastings("ring:n=4")), SCHEME, coalition_size=1
    )
    assert tuned.factorization.coalition_size == 1
    by_name = algorithms.build("kronecker", PATH, SCHEME, coalition_size=1)
    assert max(loss.sensitivity_squared for loss in sensitivity_by_victim(by_name, trust.Coalitions(1))) <= 1 + 1e-6


def test_a_kind_that_is_none_is_refused():
    solved = optimal_kronecker(PATH, SCHEME)
    for change in ({"kind": "other"}, {"kind": "per-mode"}, {"space": None}, {"directions": np.eye(4)}):
        refuses("is one of kronecker, per-mode, joint", dataclasses.replace, solved, **change)
    refuses(".", lambda: dataclasses.replace(solved, status="stopped").require_converged(1e-4), error=NotConverged)

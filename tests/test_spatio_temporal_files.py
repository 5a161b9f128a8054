"""Noise over time and nodes in a file and back: all numbers, its own run alone, privacy from the arrays."""

from __future__ import annotations

import dataclasses

import pytest
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses
from spatio_temporal_cases import KINDS, PATH, RING, SCHEME, worst_loss

from mfdl import Cyclic, Dynamics, EveryStep, algorithms, factorization, gossip
from mfdl.algorithms import spatio_temporal_noise
from mfdl.algorithms.registry import LOCAL, SHARED, models_of


@pytest.fixture
def written(tmp_path):
    def write(kind="kronecker", groups=None, coalition_size=0):
        options = {"groups": groups, "coalition_size": coalition_size} if groups else {}
        curve = KINDS[kind](PATH, SCHEME, **options)
        path = tmp_path / f"{kind}.npz"
        factorization.save(path, curve, header={"graph": "path:n=4"})
        return curve, path

    return write


@pytest.mark.parametrize(
    ("kind", "groups", "q"), [*((kind, None, 0) for kind in KINDS), ("kronecker", [[0, 1, 2], [1, 2, 3], [0, 3]], 1)]
)
def test_files_keep_everything(written, kind, groups, q):
    solution, path = written(kind, groups, q)
    loaded = factorization.load(path).factorization
    sizes = "num_steps num_nodes objective lower_bound independent_objective iterations sensitivity coalition_size"
    for name in [*sizes.split(), "seconds", "gap", "kind", "status", "participation", "gossip_hash", "notes"]:
        assert getattr(loaded, name) == getattr(solution, name)
    assert_array_equal(loaded.encoder, solution.encoder)
    assert (loaded.space is None, loaded.directions is None) == (kind != "kronecker", kind != "per-mode")
    algorithm = spatio_temporal_noise(PATH, SCHEME, solution)
    again = algorithms.build(f"file:{path}", PATH, SCHEME)
    assert again.name == f"file:{path}"
    assert again.noise.content() == algorithm.noise.content()
    assert_array_equal(again.noise.holders().toarray(), algorithm.noise.holders().toarray())
    assert again.factorization.objective == solution.objective
    private = groups is not None  # these seeds cannot help, so that each node holds its own noise
    assert models_of(again.name, again) == (LOCAL if private else SHARED)
    if kind == "kronecker":
        assert (loaded.space.groups, loaded.space.private_variance) == (
            solution.space.groups,
            solution.space.private_variance,
        )
        assert_array_equal(loaded.space.covariance, solution.space.covariance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_belongs_to_its_nodes_gossip_and_participation(written, kind):
    _, path = written(kind)
    for dynamics, scheme, message in (
        (RING, SCHEME, "made for 4 nodes and 6 steps, not for 5 and 6; factorize again"),
        (PATH, Cyclic(2, 2), "made for 4 nodes and 6 steps, not for 4 and 4"),
        (PATH, Cyclic(3, 2), r"was made for .*'period': 3.*, not for .*'period': 2.*; factorize again"),
        (PATH, EveryStep(6), "factorize again with this participation"),
        (Dynamics(gossip.metropolis_hastings("star:n=4")), SCHEME, "another gossip matrix"),
    ):
        refuses(message, algorithms.build, f"file:{path}", dynamics, scheme)


def test_privacy_is_accounted_from_the_arrays_and_not_from_the_header(written):
    """Whoever makes an encoder in a file twice as weak finds four times the loss, whatever the header claims."""
    solution, path = written()
    factorization.save(path, dataclasses.replace(solution, encoder=2 * solution.encoder), header={})
    assert_allclose(worst_loss(algorithms.build(f"file:{path}", PATH, SCHEME)), 4.0, rtol=1e-6)

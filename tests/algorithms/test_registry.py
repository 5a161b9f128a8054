"""Algorithms by name."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from refusals import refuses

import mfdl
from mfdl import Cyclic, Dynamics, algorithms, factorization, gossip
from mfdl.algorithms import mechanism_names, registry
from mfdl.algorithms.registry import MECHANISMS
from mfdl.commands import main
from mfdl.objective import NoiseObjective
from mfdl.participation import Single
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment

DYN = Dynamics(gossip.uniform("star:n=4"), 0.3)
PART = Cyclic(epochs=2, period=3)


@pytest.fixture
def saved(tmp_path):
    def save(header, nodes=False):
        make = factorization.factorize_nodes if nodes else factorization.factorize
        path = tmp_path / "encoder.npz"
        factorization.save(path, make(DYN, PART), grams=NoiseObjective(DYN, 6).over_steps(), header=header)
        return path

    return save


def test_an_unknown_name_is_refused_with_the_nearest():
    refuses("unknown mechanism 'mafalada'; did you mean", algorithms.build, "mafalada", DYN, PART)


@pytest.mark.parametrize("nodes", [False, True])
def test_a_file_gives_its_encoder(saved, nodes):
    path = saved({"participation": PART}, nodes)
    algorithm = algorithms.build(f"file:{path}", DYN, PART)
    wanted = algorithms.build("mafalda-l" if nodes else "mafalda", DYN, PART)
    assert_array_equal(algorithm.noise.encoder.array, wanted.noise.encoder.array)
    assert algorithm.name == f"file:{path}"


def test_a_file_for_another_participation_or_number_of_nodes_is_refused(saved):
    path = saved({"participation": PART})
    for other in (Cyclic(3, 2), Single(6)):
        refuses(r"was made for .*'period': 3.*factorize again", algorithms.build, f"file:{path}", DYN, other)
    path = saved({}, nodes=True)
    refuses(r"\(T, T\) or \(5", lambda: algorithms.build(f"file:{path}", Dynamics(gossip.uniform("star:n=5")), PART))
    refuses("T = 8 steps", lambda: algorithms.build(f"file:{path}", DYN, Cyclic(4, 2)))


def test_an_encoder_per_node_belongs_to_its_gossip_and_a_shared_one_goes_anywhere(saved):
    """Node 1 of a path is no leaf: encoders made for it would go to a leaf of the star."""
    path = gossip.metropolis_hastings("path:n=4")
    header = {"participation": PART, "gossip_hash": DYN.gossip.content_hash}
    by_node = saved(header, nodes=True)
    assert algorithms.build(f"file:{by_node}", DYN, PART).noise.encoder.array.shape == (4, 6, 6)
    refuses("encoder for each node of another", lambda: algorithms.build(f"file:{by_node}", Dynamics(path), PART))
    shared = saved(header)
    encoder = algorithms.build(f"file:{shared}", DYN, PART).noise.encoder.array
    for other in (path, gossip.metropolis_hastings("ring:n=7")):
        algorithm = algorithms.build(f"file:{shared}", Dynamics(other), PART)
        assert_array_equal(algorithm.noise.encoder.array, encoder)
        assert algorithm.factorization is None  # the loss in the file is not claimed of this graph


def test_a_file_that_is_none_is_refused(tmp_path):
    refuses("cannot read", algorithms.build, f"file:{tmp_path / 'missing.npz'}", DYN, PART)
    np.savez(tmp_path / "other.npz", encoder=np.eye(6))
    refuses("is no factorization that mfdl wrote", algorithms.build, f"file:{tmp_path / 'other.npz'}", DYN, PART)


# ---- noise that nodes share, where it counts as known -------------------------------------------------------------


@pytest.mark.parametrize("name", [*MECHANISMS])
def test_shared_noise_is_told_by_its_holders_as_the_table_tells_it(name):
    """One rule for mechanisms by name, files and algorithms of one's own."""
    parameters = {"decor": {"sigma_ldp": 1.0, "sigma_cor": 2.0}}.get(name, {})
    algorithm = algorithms.build(
        name, Dynamics(gossip.metropolis_hastings("star:n=4"), 0.3), Cyclic(1, 2), **parameters
    )
    shared = mechanism_names.shares_noise(algorithm)
    assert shared == (registry.MECHANISMS[name].models[:1] == ("eavesdropper",))
    for trust_model in mechanism_names.ALONE:
        assert bool(mechanism_names.misplaced(algorithm, trust_model)) == shared
    assert mechanism_names.misplaced(algorithm, "eavesdropper") == ""


@pytest.mark.parametrize("name", [name for name, entry in MECHANISMS.items() if entry.takes("horizon")])
@pytest.mark.slow
def test_noise_made_for_one_step_says_so_in_a_run_of_several(name, tmp_path):
    def built(name, steps, **parameters):
        return registry.build_tuned(name, DYN, Cyclic(1, steps), **parameters)

    note = registry.shortsighted(built(name, 3))
    assert f"{name} minimises the noise in the models after one step, as published, but this run has 3 steps" in note
    assert registry.shortsighted(built(name, 1)) == ""
    assert registry.shortsighted(built(f"{name}@all", 3)) == ""
    path = tmp_path / "noise.npz"
    factorization.save(path, built(name, 3).factorization, header={})
    assert note.removeprefix(name) in registry.shortsighted(registry.build(f"file:{path}", DYN, Cyclic(1, 3)))
    mechanism = mfdl.calibrate(
        built(name, 3), mfdl.Privacy(mfdl.trust.Eavesdropper(), adjacency="zero-out", clip_norm=1.0), noise_std=0.1
    )
    task = mfdl.tasks.digits(4)
    assert note in mfdl.replay(mechanism, task, seeds=[0]).judged.advice
    config = Experiment(
        graph="star:n=4", epochs=1, period=3, seeds=1, trust="eavesdropper", mechanisms=(name, f"{name}@all")
    )
    advice = run_comparison(config, tmp_path / "compared", progress=False)["advice"]
    assert [note == warning for warning in advice if "one step" in warning] == [True]


def test_python_says_so_as_the_command_line_does(capsys):
    """`calibrate` and `account` note it, `mfdl account` says the same words, a ranking refuses."""
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    corn = algorithms.corn(DYN, Cyclic(1, 2))
    guarantee = mfdl.calibrate(corn, mfdl.Privacy(mfdl.trust.LDP(), **options), mu=1.0).guarantee
    note = mechanism_names.misplaced(corn, "ldp")
    assert "noise shared between nodes is assumed to be known" in note
    assert "eavesdropper, coalitions, colluding" in note
    assert note in str(guarantee)
    assert note in mfdl.account(corn, mfdl.Privacy(mfdl.trust.LDP(), **options), noise_std=1.0).why
    assert mfdl.account(corn, mfdl.Privacy(mfdl.trust.Eavesdropper(), **options), noise_std=1.0).why == ""
    assert (
        main(["account", "--graph", "star:n=4", "--mechanism", "corn", "--epochs", "1", "--period", "2", "--json"]) == 0
    )
    assert note in json.loads(capsys.readouterr().out)["guarantee"]

"""Runs in files: every number as it was, with the mechanism that trained, and never a key."""

import dataclasses
import math
import stat

import numpy as np
import pytest
import torch
from archives import parsed
from small_tasks import classes, regression

import mfdl
from mfdl import Cyclic, Dynamics, InvalidInput, Mechanism, NoiseKey, algorithms, gossip, replay, trust
from mfdl.privacy.guarantee import STATED
from mfdl.training.run import Run


def mechanism(name="bsr", model=None, **parameters):
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.1)
    algorithm = algorithms.build(name, dynamics, Cyclic(2, 3), **parameters)
    asked = {"adjacency": "zero-out", "clip_norm": 0.5, "noise_std": 1.0}
    return mfdl.with_noise(algorithm, trust=model or trust.SecLDP(), **asked)


def same(run, other):
    assert run.task_name == other.task_name
    assert (run.chance_loss, run.chance_accuracy) == (other.chance_loss, other.chance_accuracy)
    assert len(run.seeds) == len(other.seeds)
    for one, two in zip(run.seeds, other.seeds, strict=True):
        for name, value in vars(one).items():
            again = getattr(two, name)
            if isinstance(value, np.ndarray):
                assert again.dtype == value.dtype
                assert np.array_equal(again, value, equal_nan=True), name
            else:
                assert again == value, name
                assert type(again) is type(value), name


@pytest.mark.parametrize("name", ["bsr", "mafalda-l", "decor", "space-time", "corn", "gradient-tracking"])
def test_a_loaded_mechanism_replays_bit_for_bit(tmp_path, name):
    parameters = {"decor": {"sigma_local": 1.0, "sigma_pair": 2.0}, "corn": {"coalition_size": 0}}.get(name, {})
    saved = mechanism(name, **parameters)
    saved.save(tmp_path / "m")
    how = {"task": regression(), "seeds": [3], "keep_messages": True, "dtype": torch.float64}
    before, after = (replay(one, **how) for one in (saved, Mechanism.load(tmp_path / "m")))
    assert before.seeds[0].key_id == after.seeds[0].key_id
    assert np.array_equal(before.seeds[0].messages, after.seeds[0].messages)
    assert np.array_equal(before.seeds[0].models, after.seeds[0].models)


@pytest.mark.parametrize("task", [regression, classes])
@pytest.mark.parametrize("name", ["run", "run.npz"])
def test_runs_come_back_as_they_were(tmp_path, task, name):
    run = replay(mechanism(), task(), seeds=[0, 1], keep_messages=True)
    run.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    loaded = Run.load(tmp_path / name)
    same(run, loaded)
    assert loaded.mechanism.guarantee == run.mechanism.guarantee
    assert loaded.mechanism.content_hash == run.mechanism.content_hash
    assert repr(loaded) == repr(run)
    assert loaded.rows() == run.rows()
    assert loaded.chance_loss == run.chance_loss is not None
    assert loaded.chance_accuracy == run.chance_accuracy


def test_a_run_that_diverged_or_was_stopped_comes_back(tmp_path):
    run = replay(mechanism(), regression(), seeds=[0], stop_after=1)
    object.__setattr__(run.seeds[0], "loss", np.full_like(run.seeds[0].loss, math.nan))
    run.save(tmp_path / "run")
    same(run, Run.load(tmp_path / "run"))


def test_the_file_is_its_owners_and_says_what_is_not_private(tmp_path):
    path = tmp_path / "run"
    tmp_path.chmod(0o755)  # a folder that everybody may read
    replay(mechanism(), regression(), seeds=[0]).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header, _ = parsed(path)
    beside = ["untrained_loss", "untrained_accuracy", "metrics", "released", "chance_loss", "chance_accuracy"]
    assert header["content"]["not_private"] == ["loss", "accuracy", "diverged", "training_seconds", *beside]


def test_no_key_is_in_a_file(tmp_path):
    secret = bytes(range(7, 39))
    run = replay(mechanism(), regression(), key=NoiseKey(secret))
    for path, kept in ((tmp_path / "run", run), (tmp_path / "mechanism", run.mechanism)):
        kept.save(path)
        data = path.read_bytes()
        assert secret not in data
        assert secret.hex().encode() not in data


def test_the_mechanism_of_a_run_is_accounted_anew_or_says_that_it_was_not(tmp_path):
    own = mfdl.TrustModel.from_masks(seen=lambda algorithm: algorithm.sent, name="all seen")
    run = replay(mechanism(model=own), regression(), seeds=[0])
    run.save(tmp_path / "run")
    assert STATED in repr(Run.load(tmp_path / "run"))
    assert STATED not in repr(Run.load(tmp_path / "run", trust=own))
    with pytest.raises(InvalidInput, match="another trust model"):
        Run.load(tmp_path / "run", trust=trust.LDP())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": np.ones((1, 9))}, "arrays of other sizes than"),
        ({"models": np.ones((9, 2))}, "arrays of other sizes than"),
        ({"finished_steps": 99}, "arrays of other sizes than"),
        ({"finished_steps": -1}, "arrays of other sizes than"),
        ({"steps": np.zeros((2, 2), dtype=int)}, "arrays of other sizes than"),
    ],
    ids=["loss", "models", "late", "early", "steps"],
)
def test_seeds_that_do_not_fit_the_mechanism_are_refused(tmp_path, change, said):
    run = replay(mechanism(), regression(), seeds=[0])
    seeds = (dataclasses.replace(run.seeds[0], **change),)
    dataclasses.replace(run, seeds=seeds).save(tmp_path / "run")
    with pytest.raises(InvalidInput, match=said):
        Run.load(tmp_path / "run")


def test_a_changed_bit_in_any_number_is_found(tmp_path):
    path = tmp_path / "run"
    replay(mechanism(), regression(), seeds=[0]).save(path)
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[:8], "little")  # of the numbers, behind the header
    for place in np.random.default_rng(0).integers(first, len(data), 30):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(InvalidInput, match="damaged or was edited"):
            Run.load(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    mechanism().save(tmp_path / "m")
    with pytest.raises(InvalidInput, match=r"holds a mechanism, not a run; read it with Mechanism\.load"):
        Run.load(tmp_path / "m")

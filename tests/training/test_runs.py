"""Runs: what they report and release, and that files hold every number with the mechanism, and never a key."""

import dataclasses
import math
import stat

import numpy as np
import pytest
import torch
from archives import parsed
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refuses
from small_tasks import classes, regression

import mfdl
from mfdl import Cyclic, Mechanism, NoiseKey, Privacy, Run, algorithms, calibrate, gossip, replay, trust
from mfdl.dynamics import Dynamics
from mfdl.privacy.guarantee import STATED
from mfdl.training.run import final_steps


def mechanism(name="bsr", model=None, **parameters):
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.1)
    algorithm = algorithms.build(name, dynamics, Cyclic(2, 3), **parameters)
    options = {"adjacency": "zero-out", "clip_norm": 0.5}
    return mfdl.calibrate(algorithm, mfdl.Privacy(model or trust.Eavesdropper(), **options), noise_std=1.0)


def same(run, other):
    assert run.task_name == other.task_name
    assert (run.chance_loss, run.chance_accuracy) == (other.chance_loss, other.chance_accuracy)
    assert len(run.seeds) == len(other.seeds)
    for seed_run, two in zip(run.seeds, other.seeds, strict=True):
        for name, value in vars(seed_run).items():
            again = getattr(two, name)
            if isinstance(value, np.ndarray):
                assert again.dtype == value.dtype
                assert np.array_equal(again, value, equal_nan=True), name
            else:
                assert again == value, name
                assert type(again) is type(value), name


@pytest.mark.parametrize("name", ["bsr", "mafalda-l", "decor", "joint", "corn", "gradient-tracking"])
def test_a_loaded_mechanism_replays_bit_for_bit(tmp_path, name):
    parameters = {"decor": {"sigma_ldp": 1.0, "sigma_cor": 2.0}, "corn": {"coalition_size": 0}}.get(name, {})
    saved = mechanism(name, **parameters)
    saved.save(tmp_path / "m")
    options = {"task": regression(), "seeds": [3], "keep_messages": True, "dtype": torch.float64}
    before, after = (replay(replayed, **options) for replayed in (saved, Mechanism.load(tmp_path / "m")))
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
    beside = ["untrained_loss", "untrained_accuracy", "metrics", "released", "dropped_records"]
    beside += ["chance_loss", "chance_accuracy"]
    assert header["content"]["not_private"] == ["loss", "accuracy", "diverged", "training_seconds", *beside]


def test_no_key_is_in_a_file(tmp_path):
    secret = bytes(range(7, 39))
    run = replay(mechanism(), regression(), key=NoiseKey(secret))
    for path, saved in ((tmp_path / "run", run), (tmp_path / "mechanism", run.mechanism)):
        saved.save(path)
        data = path.read_bytes()
        assert secret not in data
        assert secret.hex().encode() not in data


def test_the_mechanism_of_a_run_is_accounted_anew_or_says_that_it_was_not(tmp_path):
    masked = mfdl.TrustModel.from_masks(seen=lambda algorithm: algorithm.sent, name="all seen")
    run = replay(mechanism(model=masked), regression(), seeds=[0])
    run.save(tmp_path / "run")
    assert STATED in repr(Run.load(tmp_path / "run"))
    assert STATED not in repr(Run.load(tmp_path / "run", trust=masked))
    refuses("another trust model", lambda: Run.load(tmp_path / "run", trust=trust.LDP()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": np.ones((1, 9))}, "arrays of other sizes than"),
        ({"models": np.ones((9, 2))}, "arrays of other sizes than"),
        ({"finished_steps": 99}, "arrays of other sizes than"),
        ({"finished_steps": -1}, "arrays of other sizes than"),
        ({"steps": np.zeros((2, 2), dtype=int)}, "arrays of other sizes than"),
    ],
    ids=["loss", "models", "late", "early", "steps"],
)
def test_seeds_that_do_not_fit_the_mechanism_are_refused(tmp_path, change, message):
    run = replay(mechanism(), regression(), seeds=[0])
    seeds = (dataclasses.replace(run.seeds[0], **change),)
    dataclasses.replace(run, seeds=seeds).save(tmp_path / "run")
    refuses(message, Run.load, tmp_path / "run")


def test_a_changed_bit_in_any_number_is_found(tmp_path):
    path = tmp_path / "run"
    replay(mechanism(), regression(), seeds=[0]).save(path)
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[:8], "little")  # of the numbers, behind the header
    for place in np.random.default_rng(0).integers(first, len(data), 30):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refuses("damaged or was edited", Run.load, path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    mechanism().save(tmp_path / "m")
    refuses("holds a mechanism, not a run; read", Run.load, tmp_path / "m")


NODES, STAR, TASK = 4, gossip.uniform("star:n=4"), regression(30)
PART = Cyclic(epochs=3, period=2)


def dp_dsgd_mechanism(participation=PART, learning_rate=0.1, mu=1.0):
    algorithm = algorithms.dp_dsgd(Dynamics(STAR, learning_rate), participation)
    return calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=mu)


@pytest.mark.parametrize("mu", [1e-33, 1e-26])
def test_divergence_is_recorded_and_shown(mu, tmp_path):
    calibrated = dp_dsgd_mechanism(learning_rate=1e6, mu=mu)
    for stop in (2, None, None):  # at last read back, no step left to run
        run = replay(calibrated, TASK, seeds=[0, 1], stop_after=stop, checkpoint_folder=tmp_path)
        assert run.diverged_seeds == [0, 1]
        assert run.final_test_losses == [None, None]
    assert not np.isfinite(run.seeds[0].loss).all()
    assert run.seeds[0].finished_steps == 6
    healthy = replay(dp_dsgd_mechanism(), TASK, seeds=[0])
    assert healthy.diverged_seeds == []
    assert np.isfinite(healthy.final_test_losses).all()


def test_the_final_loss_is_the_mean_over_nodes_and_the_last_quarter_of_a_short_run():
    calibrated = dp_dsgd_mechanism(participation=Cyclic(31, 2))  # 62 steps
    run = replay(calibrated, classes(30), seeds=[0], eval_every=4).seeds[0]
    assert run.steps.tolist() == [*range(4, 61, 4), 62]
    late = run.steps >= 48
    assert [final_steps(T) for T in (62, 200, 320)] == [16, 50, 50]  # the last 16 steps are 47 to 62
    assert_allclose(run.final_test_loss, run.loss[late].mean(), rtol=1e-14)
    assert_allclose(run.final_accuracy, run.accuracy[late].mean(), rtol=1e-14)
    assert run.final_test_loss != pytest.approx(run.loss.mean(), rel=1e-6)
    early = dataclasses.replace(run, steps=run.steps[:1], loss=run.loss[:1])  # evaluated after 4 of 62 steps
    assert early.final_test_loss is None


def test_evaluations_change_no_model_and_are_rows_of_a_table():
    models = []
    for every, steps in ((None, [2, 4, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (100, [6])):
        run = replay(dp_dsgd_mechanism(), TASK, seeds=[0], eval_every=every, device="cpu")
        (seed,) = run.seeds
        models.append(seed.models)
        assert_array_equal(models[-1], models[0])
        assert seed.messages is None  # kept only when asked for
        assert seed.steps.tolist() == steps
        assert seed.loss.shape == (len(steps), NODES)
        again = TASK.instance(0, 2).evaluate(torch.as_tensor(seed.models, dtype=torch.float32))
        assert_array_equal(seed.loss[-1], again.loss.numpy())  # float32 models pass through float64 unchanged
        rows = run.rows()
        assert len(rows) == len(steps) * NODES
        row = {"mechanism": "dp-dsgd", "seed": 0, "step": 6, "node": str(STAR.labels[-1])}
        assert rows[-1] == row | {"loss": seed.loss[-1, -1], "accuracy": None}
        assert run.node_steps_per_second > 0


@pytest.mark.parametrize("model", ["average:4", "exponential:2+1"])
@pytest.mark.parametrize("stops", [(2, None), (5, 6, None)])
def test_what_is_released_is_the_mean_of_the_models_however_often_a_run_stops(model, stops, tmp_path):
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("star:n=4"), 0.1), Cyclic(3, 2)).releasing(model)
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    seen = []
    (seed,) = replay(
        calibrated, TASK, seeds=[0], eval_every=1, on_evaluation=lambda row: seen.append(row.models), device="cpu"
    ).seeds
    mean = np.tensordot(algorithm.released.of_steps(6), np.stack(seen), 1)
    further = algorithm.released_by_gossip
    assert_allclose(seed.models, mean if further is None else further @ mean, rtol=1e-6, atol=1e-7)
    again = TASK.instance(0, 2).evaluate(torch.as_tensor(seed.models, dtype=torch.float32))
    assert_array_equal(seed.released["loss"], again.loss.double().numpy())
    assert seed.final_test_loss == seed.released["loss"].mean() != seed.last("loss")
    assert seed.final("loss", 1) == seed.last("loss", 1) == seed.loss[-1].mean()
    for stop in stops:
        run = replay(calibrated, TASK, seeds=[0], stop_after=stop, checkpoint_folder=tmp_path, device="cpu")
        assert bool(run.seeds[0].released) == (stop in (6, None))
    assert_array_equal(run.seeds[0].models, seed.models)
    assert_array_equal(run.seeds[0].released["loss"], seed.released["loss"])
    assert_array_equal(Run.load(run.save(tmp_path / "run.npz")).seeds[0].released["loss"], seed.released["loss"])


def test_the_last_models_are_not_told_twice():
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("star:n=4"), 0.1), Cyclic(3, 2))
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    (seed,) = replay(calibrated, TASK, seeds=[0]).seeds
    assert seed.released == {}
    assert seed.final_test_loss == seed.last("loss")

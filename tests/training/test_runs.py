"""Runs: what they report and release, what files hold, and runs that train together."""

import dataclasses
import functools
import math
import stat

import numpy as np
import pytest
import torch
from archives import parsed
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, regression
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

import mfdl
from mfdl import BallsInBins, Cyclic, EveryStep, Mechanism, Privacy, Run, algorithms, calibrate, gossip, replay, trust
from mfdl.algorithms.error_in_models import input_scales
from mfdl.dynamics import Dynamics
from mfdl.participation import ParticipationByNode
from mfdl.privacy.guarantee import STATED
from mfdl.testing import build_algorithm
from mfdl.testing.tasks import linear_task
from mfdl.training import replay as replaying
from mfdl.training import seed_replay
from mfdl.training.replay import replays
from mfdl.training.replay_config import ReplayConfig


def mechanism(name="bsr", model=None, **parameters):
    dynamics = dynamics_on("ring:n=4", 0.1)
    algorithm = algorithms.build(name, dynamics, Cyclic(2, 3), **parameters)
    options = {"adjacency": "zero-out", "clip_norm": 0.5}
    return mfdl.calibrate(algorithm, mfdl.Privacy(model or trust.Eavesdropper(), **options), noise_std=1.0)


def same(run, other):
    assert run.task_name == other.task_name
    assert (run.chance_loss, run.chance_accuracy) == (other.chance_loss, other.chance_accuracy)
    for seed_run, two in zip(run.seeds, other.seeds, strict=True):
        for name, value in vars(seed_run).items():
            again = getattr(two, name)
            np.testing.assert_equal(again, value, err_msg=name)
            assert type(again) is type(value), name
            assert getattr(again, "dtype", None) == getattr(value, "dtype", None), name


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
    run = replay(mechanism(), regression(), key=mfdl.NoiseKey(secret))
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


@each(
    "change",
    {"loss": np.ones((1, 9))}, {"models": np.ones((9, 2))}, {"finished_steps": 99}, {"finished_steps": -1},
    {"steps": np.zeros((2, 2), dtype=int)},
)  # fmt: skip
def test_seeds_that_do_not_fit_the_mechanism_are_refused(tmp_path, change):
    run = replay(mechanism(), regression(), seeds=[0])
    seeds = (dataclasses.replace(run.seeds[0], **change),)
    dataclasses.replace(run, seeds=seeds).save(tmp_path / "run")
    refuses("arrays of other sizes than", Run.load, tmp_path / "run")


NODES, STAR, TASK = 4, gossip.uniform("star:n=4"), regression(30)
PART = Cyclic(epochs=3, period=2)


def dp_dsgd_mechanism(participation=PART, learning_rate=0.1, mu=1.0):
    algorithm = algorithms.dp_dsgd(Dynamics(STAR, learning_rate), participation)
    return calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=mu)


@pytest.mark.parametrize("mu", [1e-33, 1e-26])
def test_divergence_is_recorded_and_shown(mu, tmp_path):
    calibrated = dp_dsgd_mechanism(learning_rate=1e6, mu=mu)
    for stop in (2, None, None):  # at last read back, no step left to run
        run = replay(calibrated, TASK, seeds=[0, 1], stop_after=stop, checkpoint_folder=tmp_path)
        assert (run.diverged_seeds, run.final_test_losses) == ([0, 1], [None, None])
    assert not np.isfinite(run.seeds[0].loss).all()
    assert run.seeds[0].finished_steps == 6
    healthy = replay(dp_dsgd_mechanism(), TASK, seeds=[0])
    assert healthy.diverged_seeds == []
    assert np.isfinite(healthy.final_test_losses).all()


def test_evaluations_change_no_model_and_are_rows_of_a_table():
    models = []
    for every, steps in ((None, [2, 4, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (100, [6])):
        run = replay(dp_dsgd_mechanism(), TASK, seeds=[0], eval_every=every, device="cpu")
        (seed,) = run.seeds
        models.append(seed.models)
        assert_array_equal(models[-1], models[0])
        assert seed.messages is None  # kept only when asked for
        assert (seed.released, seed.final_test_loss) == ({}, seed.last("loss"))  # the last models
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
    algorithm = algorithms.dp_dsgd(dynamics_on("star:n=4", 0.1), Cyclic(3, 2)).releasing(model)
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    seen = []
    options = {"seeds": [0], "device": "cpu"}
    (seed,) = replay(calibrated, TASK, eval_every=1, on_evaluation=lambda row: seen.append(row.models), **options).seeds
    mean = np.tensordot(algorithm.released.weights_by_step(6), np.stack(seen), 1)
    further = algorithm.released_by_gossip
    assert_allclose(seed.models, mean if further is None else further @ mean, rtol=1e-6, atol=1e-7)
    again = TASK.instance(0, 2).evaluate(torch.as_tensor(seed.models, dtype=torch.float32))
    assert_array_equal(seed.released["loss"], again.loss.double().numpy())
    assert seed.final_test_loss == seed.released["loss"].mean() != seed.last("loss")
    assert seed.final("loss", 1) == seed.last("loss", 1) == seed.loss[-1].mean()
    for stop in stops:
        run = replay(calibrated, TASK, stop_after=stop, checkpoint_folder=tmp_path, **options)
        assert bool(run.seeds[0].released) == (stop in (6, None))
    assert_array_equal(run.seeds[0].models, seed.models)
    assert_array_equal(run.seeds[0].released["loss"], seed.released["loss"])
    assert_array_equal(Run.load(run.save(tmp_path / "run.npz")).seeds[0].released["loss"], seed.released["loss"])


BATCHED_NODES = 4
RING = gossip.metropolis_hastings("ring:n=4")
SCHEMES = {
    "cyclic": Cyclic(2, 3),
    "by node": ParticipationByNode([Cyclic(6 // b, b) for b in (1, 2, 3, 6)]),
    "every": EveryStep(6),
    "bins": BallsInBins(epochs=2, bins=3),
}
NAMES = ("none", "dp-dsgd", "mafalda", "corn", "muffliato", "gradient-tracking", "two-hop-dsgd", "zip-dl")
NAMES_OF = {"cyclic": NAMES[:-1], "bins": ("dp-dsgd", "mafalda", "none"), "by node": ("dp-dsgd", "none")}
TASKS = {
    "network": functools.cache(lambda: regression(36, public_constants="none")),
    "classes": functools.cache(lambda: classes(41, partition="dirichlet:alpha=1")),
    "linear": functools.cache(lambda: linear_task(BATCHED_NODES, np.random.default_rng(0).normal(size=(24, 3)))),
}


@functools.cache
def batched_mechanism(name, scheme, rate, unit="record", momentum=0.0, gossip_rounds=1, decay=0.0):
    dynamics = Dynamics(RING, rate, momentum=momentum, gossip_rounds=gossip_rounds, weight_decay=decay)
    chosen = build_algorithm(name, dynamics, SCHEMES[scheme])
    model = trust.LDP() if name == "none" or scheme == "bins" or chosen.noise.local else trust.Eavesdropper()
    target = {"noise_std": 0.0} if name == "none" else {"noise_std": 0.3}
    target = {"epsilon": 2.0, "delta": 1e-3} if name != "none" and scheme == "bins" else target
    return calibrate(chosen, Privacy(model, adjacency="zero-out", clip_norm=0.7, unit=unit), **target)


def alone(config):
    return [replay(**{**vars(config), "seeds": [seed]}).seeds[0] for seed in config.seeds]


def assert_close(run, other, tolerance=1e-10):
    exact = ("seed", "diverged", "finished_steps", "key_id", "seeded_noise", "untrained_loss", "untrained_accuracy")
    assert all(getattr(run, name) == getattr(other, name) for name in exact)
    assert_array_equal(run.steps, other.steps)
    for kind in ("measured", "released"):
        values, two = getattr(run, kind), getattr(other, kind)
        assert values.keys() == two.keys()
        for name in values:
            assert values[name].shape == two[name].shape
            assert_allclose(values[name], two[name], rtol=tolerance, atol=tolerance)
    assert_allclose(run.models, other.models, rtol=tolerance, atol=tolerance)


@st.composite
def configs(draw):
    """Runs of one task and scheme at several rates, with seeds."""
    scheme = draw(st.sampled_from(sorted(SCHEMES)))
    names = draw(st.lists(st.sampled_from(NAMES_OF.get(scheme, NAMES)), min_size=1, max_size=2))
    unit = "user" if scheme == "every" else "record"
    task = TASKS[draw(st.sampled_from(sorted(TASKS) if unit == "user" else ["linear", "network"]))]()
    momentum, rounds, decay = (draw(st.sampled_from(each)) for each in ([0.0, 0.0, 0.5], [1, 2], [0.0, 0.0, 0.1]))
    metrics = draw(st.sampled_from([(), ("average_loss",), ("train_loss", "average_train_loss")]))
    chosen = []
    for rate in draw(st.lists(st.sampled_from([0.1, 0.25, 0.7]), min_size=1, max_size=2, unique=True)):
        for name in names:
            plain = name in ("none", "dp-dsgd")
            calibrated = batched_mechanism(name, scheme, rate, unit, *((momentum, rounds, decay) if plain else ()))
            seeds = draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
            options = {"seeds": seeds, "metrics": metrics, "dtype": torch.float64, "device": "cpu"}
            chosen.append(ReplayConfig(calibrated, task, **options))
    return chosen


@given(configs())
def test_runs_together_are_the_runs_alone(chosen):
    together = replays(chosen, lambda *_: None)
    for config, run in zip(chosen, together, strict=True):
        for of_batch, other in zip(run.seeds, alone(config), strict=True):
            assert_close(of_batch, other)


@pytest.mark.parametrize("rates", [(0.25,), (0.25, 0.5)])
def test_noise_of_each_run_is_that_of_the_run_alone_bit_for_bit(rates, monkeypatch):
    noise_stream, steps = seed_replay.noise_stream, []

    def recorded(*args, **slots):
        stream, seen = noise_stream(*args, **slots), []
        step = stream.step
        stream.step = lambda t: seen.append(step(t).copy()) or step(t)
        steps.append(seen)
        return stream

    monkeypatch.setattr(seed_replay, "noise_stream", recorded)
    chosen = [
        ReplayConfig(batched_mechanism("mafalda", "cyclic", rate), TASKS["network"](), seeds=[3, 4], device="cpu")
        for rate in rates
    ]
    injected, entered = replaying.Releasing, []  # what the executor of all runs is given
    monkeypatch.setattr(replaying, "Releasing", lambda executor, d: watch(executor) or injected(executor, d))

    def watch(executor):
        step = executor.step
        executor.step = lambda t, state, g, noise, *more: (
            entered.append(noise.copy()) or step(t, state, g, noise, *more)
        )

    replays(chosen, lambda *_: None)
    together = list(steps)
    steps.clear()
    for config in chosen:
        alone(config)
    assert len(together) == len(steps) == 2 * len(rates)
    for t, columns in enumerate(entered):
        assert_array_equal(columns, np.concatenate([of_run[t] for of_run in steps], axis=1))
    assert len({np.stack(of_run).tobytes() for of_run in steps}) == len(steps)


def test_runs_of_equal_tasks_train_together():
    """Which runs train together decides their last bits, and must not depend on which thread loaded the task."""
    sizes = 36, 36, 37
    tasks = (regression(size, public_constants="none") for size in sizes)
    chosen = [
        ReplayConfig(batched_mechanism("dp-dsgd", "cyclic", 0.25), task, seeds=[0], device="cpu") for task in tasks
    ]
    first, equal, other = map(replaying.shared_by, chosen)
    assert first == equal != other


def test_a_run_that_diverges_leaves_the_others_alone():
    task = regression(37)
    tame, wild = (batched_mechanism("dp-dsgd", "cyclic", rate) for rate in (0.25, 1e6))
    wild = calibrate(wild.algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=0.7), noise_std=1e33)
    chosen = [ReplayConfig(calibrated, task, seeds=[1, 2], device="cpu") for calibrated in (tame, wild)]
    calm, diverged = replays(chosen, lambda *_: None)
    assert [run.diverged for run in (*calm.seeds, *diverged.seeds)] == [False, False, True, True]
    for together, other in zip(calm.seeds, alone(chosen[0]), strict=True):
        assert_close(together, other, 1e-5)


def test_only_constants_on_inputs_are_scaled():
    plain, double = (batched_mechanism("dp-dsgd", "cyclic", rate).algorithm for rate in (0.25, 0.5))
    divided = double.with_divisors([1.0, 2.0, 4.0, 8.0])
    scales = input_scales(divided, plain)
    assert_array_equal(scales.gradient, [2.0, 1.0, 0.5, 0.25])
    assert_array_equal(scales.noise, scales.gradient)
    for more in ({"momentum": 0.5}, {"decay": 0.1}):
        moving = [batched_mechanism("dp-dsgd", "cyclic", rate, **more).algorithm for rate in (0.25, 0.5)]
        assert input_scales(*moving) is None
        assert_array_equal(input_scales(moving[0], moving[0]).gradient, 1.0)
    assert input_scales(moving[0], plain) is None
    assert input_scales(plain.releasing("average:2"), plain) is None
    assert input_scales(batched_mechanism("dp-dsgd", "cyclic", 0.25, gossip_rounds=2).algorithm, plain) is None


def test_modules_with_frozen_numbers_of_their_own_do_not_train_together():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2).requires_grad_(False)
            self.outer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.outer(self.inner(x))

    task, plain = regression(30, build=Frozen), batched_mechanism("dp-dsgd", "cyclic", 0.25)
    chosen = ReplayConfig(plain, task, seeds=[0, 1], dtype=torch.float64)
    for together, other in zip(replays([chosen], lambda *_: None)[0].seeds, alone(chosen), strict=True):
        assert_close(together, other)


def test_gradients_that_are_not_finite_are_counted_by_run(tmp_path):
    targets = np.random.default_rng(0).standard_normal(37)
    targets[:2] = 3e38  # finite, and no gradient is
    task = regression(37, targets=targets)
    config = ReplayConfig(batched_mechanism("dp-dsgd", "cyclic", 0.25), task, seeds=[1, 2], device="cpu")
    (together,) = replays([config], lambda *_: None)
    epochs = SCHEMES["cyclic"].epochs
    assert [run.dropped_records for run in together.seeds] == [2 * epochs] * 2
    assert [run.dropped_records for run in alone(config)] == [2 * epochs] * 2
    assert f"dp-dsgd: {4 * epochs} gradients were not finite and counted as zero" in together.outcome
    stopped = {**vars(config), "seeds": [1], "checkpoint_folder": tmp_path}
    assert replay(**{**stopped, "stop_after": 1}).seeds[0].dropped_records <= 2
    assert replay(**stopped).seeds[0].dropped_records == 2 * epochs  # it counts on after a stop
    assert replay(**{**vars(config), "task": regression(37)}).seeds[0].dropped_records == 0


def test_a_run_that_was_stopped_has_spent_less():
    config = ReplayConfig(batched_mechanism("dp-dsgd", "cyclic", 0.25), regression(37), seeds=[1], device="cpu")
    period = SCHEMES["cyclic"].period
    part, whole = (replay(**{**vars(config), "stop_after": steps}) for steps in (period, None))
    assert part.guarantee_so_far().mu < 0.9 * whole.guarantee_so_far().mu
    assert whole.guarantee_so_far() is whole.mechanism.guarantee
    assert part.mechanism.guarantee_after(0) is None

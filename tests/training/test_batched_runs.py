"""Runs that train together are those that train alone, with the very same noise."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, regression

from mfdl import BallsInBins, Cyclic, Dynamics, EveryStep, Privacy, calibrate, gossip, replay, trust
from mfdl.algorithms.error_in_models import input_scales
from mfdl.participation import ParticipationByNode
from mfdl.testing import build_algorithm
from mfdl.testing.tasks import linear_task
from mfdl.training import batched_runs, seed_replay
from mfdl.training.replay import replays
from mfdl.training.replay_config import ReplayConfig

torch.set_num_threads(1)
NODES = 4
RING = gossip.metropolis_hastings("ring:n=4")
SCHEMES = {
    "cyclic": Cyclic(2, 3),
    "by node": ParticipationByNode([Cyclic(6 // b, b) for b in (1, 2, 3, 6)]),
    "every": EveryStep(6),
    "bins": BallsInBins(epochs=2, bins=3),
}
"""Schemes of six steps."""
NAMES = ("none", "dp-dsgd", "mafalda", "corn", "muffliato", "gradient-tracking", "two-hop-dsgd", "zip-dl")
NAMES_OF = {"cyclic": NAMES[:-1], "bins": ("dp-dsgd", "mafalda", "none"), "by node": ("dp-dsgd", "none")}
TASKS = {
    "network": functools.cache(lambda: regression(36, public_constants="none")),
    "classes": functools.cache(lambda: classes(41, partition="dirichlet:alpha=1")),
    "linear": functools.cache(lambda: linear_task(NODES, np.random.default_rng(0).normal(size=(24, 3)))),
}


@functools.cache
def mechanism(name, scheme, rate, unit="record", momentum=0.0, gossip_rounds=1, decay=0.0):
    dynamics = Dynamics(RING, rate, momentum=momentum, gossip_rounds=gossip_rounds, weight_decay=decay)
    chosen = build_algorithm(name, dynamics, SCHEMES[scheme])
    if name == "none":
        return calibrate(chosen, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=0.7, unit=unit), noise_std=0.0)
    if scheme == "bins":
        return calibrate(chosen, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=0.7), epsilon=2.0, delta=1e-3)
    model = trust.LDP() if chosen.noise.local else trust.Eavesdropper()
    return calibrate(chosen, Privacy(model, adjacency="zero-out", clip_norm=0.7, unit=unit), noise_std=0.3)


def alone(config):
    return [replay(**{**vars(config), "seeds": [seed]}).seeds[0] for seed in config.seeds]


def assert_close(run, other, tolerance=1e-10):
    """All that a run reports but its seconds."""
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
            calibrated = mechanism(name, scheme, rate, unit, *((momentum, rounds, decay) if plain else ()))
            seeds = draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
            chosen.append(
                ReplayConfig(calibrated, task, seeds=seeds, metrics=metrics, dtype=torch.float64, device="cpu")
            )
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
        ReplayConfig(mechanism("mafalda", "cyclic", rate), TASKS["network"](), seeds=[3, 4], device="cpu")
        for rate in rates
    ]
    injected, entered = batched_runs.Releasing, []  # what the executor of all runs is given
    monkeypatch.setattr(batched_runs, "Releasing", lambda executor, d: watch(executor) or injected(executor, d))

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
    chosen = [ReplayConfig(mechanism("dp-dsgd", "cyclic", 0.25), task, seeds=[0], device="cpu") for task in tasks]
    first, equal, other = map(batched_runs.shared_by, chosen)
    assert first == equal != other


def test_a_run_that_diverges_leaves_the_others_alone():
    task = regression(37)
    chosen = [
        ReplayConfig(mechanism("dp-dsgd", "cyclic", rate), task, seeds=[1, 2], device="cpu", dtype=torch.float32)
        for rate in (0.25, 1e6)
    ]
    wild = calibrate(
        chosen[1].mechanism.algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=0.7), noise_std=1e33
    )
    chosen[1] = dataclasses.replace(chosen[1], mechanism=wild)
    calm, diverged = replays(chosen, lambda *_: None)
    assert [run.diverged for run in (*calm.seeds, *diverged.seeds)] == [False, False, True, True]
    for together, other in zip(calm.seeds, alone(chosen[0]), strict=True):
        assert_close(together, other, 1e-5)


def test_only_constants_on_inputs_are_scaled():
    plain, double = (mechanism("dp-dsgd", "cyclic", rate).algorithm for rate in (0.25, 0.5))
    divided = double.with_divisors([1.0, 2.0, 4.0, 8.0])
    scales = input_scales(divided, plain)
    assert_array_equal(scales.gradient, [2.0, 1.0, 0.5, 0.25])
    assert_array_equal(scales.noise, scales.gradient)
    for more in ({"momentum": 0.5}, {"decay": 0.1}):
        moving = [mechanism("dp-dsgd", "cyclic", rate, **more).algorithm for rate in (0.25, 0.5)]
        assert input_scales(*moving) is None
        assert_array_equal(input_scales(moving[0], moving[0]).gradient, 1.0)
    assert input_scales(moving[0], plain) is None
    assert input_scales(plain.releasing("average:2"), plain) is None
    assert input_scales(mechanism("dp-dsgd", "cyclic", 0.25, gossip_rounds=2).algorithm, plain) is None


def test_modules_with_frozen_numbers_of_their_own_do_not_train_together():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2).requires_grad_(False)
            self.outer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.outer(self.inner(x))

    chosen = ReplayConfig(
        mechanism("dp-dsgd", "cyclic", 0.25), regression(30, build=Frozen), seeds=[0, 1], dtype=torch.float64
    )
    for together, other in zip(replays([chosen], lambda *_: None)[0].seeds, alone(chosen), strict=True):
        assert_close(together, other)


def test_gradients_that_are_not_finite_are_counted_by_run(tmp_path):
    targets = np.random.default_rng(0).standard_normal(37)
    targets[:2] = 3e38  # finite, and no gradient is
    task = regression(37, targets=targets)
    config = ReplayConfig(mechanism("dp-dsgd", "cyclic", 0.25), task, seeds=[1, 2], device="cpu", dtype=torch.float32)
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
    config = ReplayConfig(mechanism("dp-dsgd", "cyclic", 0.25), regression(37), seeds=[1], device="cpu")
    period = SCHEMES["cyclic"].period
    part, whole = (replay(**{**vars(config), "stop_after": steps}) for steps in (period, None))
    assert part.guarantee_so_far().mu < 0.9 * whole.guarantee_so_far().mu
    assert whole.guarantee_so_far() is whole.mechanism.guarantee
    assert part.mechanism.guarantee_after(0) is None

"""replay: resuming, keys, refusals, what was accounted is what runs, and noise of the accounted size."""

import dataclasses
import functools
import itertools
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, regression
from vocabulary import each, refuses, unsupported

from mfdl import Cyclic, EveryStep, InvalidInput, NoiseKey, Privacy, algorithms, gossip, trust
from mfdl import replay as train
from mfdl.dynamics import Dynamics
from mfdl.metrics import not_private_fields
from mfdl.noise import stream
from mfdl.noise_scale import calibrate
from mfdl.participation import Explicit, OncePerEpoch, Single
from mfdl.privacy.questions import UNITS
from mfdl.testing import NAMES, build_algorithm
from mfdl.testing.tasks import still_task
from mfdl.training import checkpoint, executor, seed_replay
from mfdl.training.column_generators import PhiloxColumns
from mfdl.training.replay_config import EvaluatedStep
from mfdl.training.tasks import Task
from mfdl.training.tasks.instance import TaskInstance

NODES = 4
STAR, RING = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
PART = Cyclic(epochs=3, period=2)
LDP = {"trust": trust.LDP(), "adjacency": "zero-out"}


def silent_task(period: int, dimension: int) -> Task:
    """One record per node and step, so that all divisors are 1."""
    return still_task(NODES, np.ones((NODES * period, 1)), dimension)


@functools.cache
def mechanism(name="mf-shared", W=STAR, participation=PART, mu=1.0, clip_norm=1.0, learning_rate=0.1, unit="record"):
    algorithm = build_algorithm(name, Dynamics(W, learning_rate), participation)
    if name == "none":
        return calibrate(algorithm, Privacy(clip_norm=clip_norm, unit=unit, **LDP), noise_std=0.0)
    options = LDP | {"trust": trust.Eavesdropper()} if name == "joint" else LDP
    return calibrate(algorithm, Privacy(clip_norm=clip_norm, unit=unit, **options), mu=mu)


TASK = regression(30)


def assert_same(first, second):
    for name in ("key_id", "finished_steps", "diverged", "steps", "models", "measured"):
        np.testing.assert_equal(getattr(first, name), getattr(second, name))


@pytest.fixture
def witnessed(monkeypatch):
    """What happened in every run: instances, gradients by step, injected noise by step."""
    seen = {"instances": [], "gradients": [], "noise": []}
    instance, sums, make = Task.instance, TaskInstance.clipped_gradient_sums, seed_replay.noise_stream

    def keep_instance(self, *args, **kwargs):
        seen["instances"].append(instance(self, *args, **kwargs))
        return seen["instances"][-1]

    def keep_sums(self, models, step, clip_norm, scales):
        seen["gradients"].append(sums(self, models, step, clip_norm, scales))
        return seen["gradients"][-1]

    def keep_stream(*args, **slots):
        stream = make(*args, **slots)
        step = stream.step

        def keep_step(t):
            seen["noise"].append(step(t).copy())
            return step(t)

        stream.step = keep_step
        return stream

    monkeypatch.setattr(Task, "instance", keep_instance)
    monkeypatch.setattr(TaskInstance, "clipped_gradient_sums", keep_sums)
    monkeypatch.setattr(seed_replay, "noise_stream", keep_stream)
    return seen


@each(
    "name, unit, period",
    *((name, "record", None) for name in ("dp-dsgd", "mf-per-node", "joint")),
    ("mf-per-node", "user", 2),
    *(pytest.param(name, unit, None, marks=pytest.mark.slow) for name in ("none", "mf-shared") for unit in UNITS),
)
def test_resumed_after_any_step_equals_uninterrupted_bit_for_bit(name, unit, period, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_STEPS", 4)  # stops fall within and between blocks of noise
    calibrated = mechanism(name, RING, PART if unit == "record" else EveryStep(6), clip_norm=0.2, unit=unit)
    options = {"seeds": [3], "period": period}
    whole = train(calibrated, TASK, keep_messages=True, **options).seeds[0]
    evaluated = [1, 2, 3, 4, 5, 6] if (unit, period) == ("user", None) else [2, 4, 6]
    for stop in (1, 4, 6):
        folder = tmp_path / str(stop)
        part = train(calibrated, TASK, stop_after=stop, checkpoint_folder=folder, **options).seeds[0]
        assert part.finished_steps == stop
        assert part.steps.tolist() == [s for s in evaluated if s <= stop]
        rest = train(calibrated, TASK, checkpoint_folder=folder, keep_messages=True, **options).seeds[0]
        assert_same(rest, whole)
        if stop < 6:
            assert_array_equal(rest.messages, whole.messages[stop:])
    assert_same(train(calibrated, TASK, checkpoint_folder=folder, **options).seeds[0], whole)  # a finished run stays
    other = {"seeds": [4]} if unit == "record" else {"period": 3}
    assert not np.isclose(train(calibrated, TASK, **(options | other)).seeds[0].models, whole.models).any()


def test_a_run_of_one_unit_does_not_go_on_as_another(tmp_path):
    record, user = (mechanism("dp-dsgd", participation=EveryStep(6), unit=unit) for unit in ("record", "user"))
    assert record.noise_std == user.noise_std
    for calibrated, other, period, why in (
        (record, user, None, "unit is 'record', expected 'user'"),
        (user, record, None, "unit is 'user', expected 'record'"),
        (user, user, 2, "period is 1, expected 2"),
    ):
        train(calibrated, TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path / calibrated.unit)
        with pytest.raises(InvalidInput, match=f"the checkpoint's {why}"):
            train(other, TASK, seeds=[0], period=period, checkpoint_folder=tmp_path / calibrated.unit)
    assert train(user, TASK, seeds=[0], checkpoint_folder=tmp_path / "user").seeds[0].finished_steps == 6


def test_across_several_stops_and_seeds(tmp_path):
    calibrated, task = mechanism("mf-shared", participation=Cyclic(5, 4)), classes(30)
    options = {"seeds": [0, 5], "eval_every": 5}
    whole = train(calibrated, task, checkpoint_folder=tmp_path / "whole", **options)  # each seed alone, as below
    for stop in (1, 7, 8, 3, 17, 20):  # going back is no step: 3 leaves what stands at 8
        stopped = train(calibrated, task, stop_after=stop, checkpoint_folder=tmp_path / "stopped", **options)
        assert [seed.finished_steps for seed in stopped.seeds] == [8 if stop == 3 else stop] * 2
    for seed, other in zip(stopped.seeds, whole.seeds, strict=True):
        assert_same(seed, other)
    assert stopped.seeds[0].steps.tolist() == [5, 10, 15, 20]
    assert stopped.seeds[0].accuracy.shape == (4, NODES)


@pytest.mark.parametrize("name", ["dp-dsgd", "zip-dl"])  # noise enters with gradients, or with messages
def test_factors_of_products_begin_where_torch_allocates(name, tmp_path, monkeypatch):
    """A product may round by the address of its factors, and numpy's addresses differ from run to run."""
    offsets, add_to = [], executor._TorchMap.add_to

    def add_and_note(self, total, x):
        offsets.extend(factor.data_ptr() % 64 for factor in (self.data, x))
        return add_to(self, total, x)

    monkeypatch.setattr(executor._TorchMap, "add_to", add_and_note)
    task, options = silent_task(2, dimension=3), {"seeds": [0, 1], "dtype": torch.float64}
    calibrated = calibrate(
        build_algorithm(name, Dynamics(RING, 0.1), PART), Privacy(clip_norm=1.0, **LDP), noise_std=1.0
    )
    train(calibrated, task, **options)
    for stop in (1, 2, 3, 4, 6):
        train(calibrated, task, stop_after=stop, checkpoint_folder=tmp_path, **options)
    assert set(offsets) == {0}


class CrashAt(Exception):
    def __init__(self, step):
        self.left = step

    def progress(self, done):
        self.left -= 1
        if not self.left:
            raise self


def test_an_interrupted_run_goes_on_from_its_last_checkpoint(tmp_path):
    calibrated = mechanism()
    whole = train(calibrated, TASK, seeds=[1]).seeds[0]
    with pytest.raises(CrashAt):
        train(calibrated, TASK, seeds=[1], checkpoint_folder=tmp_path, progress=CrashAt(5).progress)
    assert checkpoint.load(tmp_path / "seed-1").step == 4
    progressed = []
    resumed = train(calibrated, TASK, seeds=[1], checkpoint_folder=tmp_path, progress=progressed.append)
    assert_same(resumed.seeds[0], whole)
    assert progressed == [4, 1, 1]


def test_every_evaluation_is_told_once_with_what_the_run_will_report(tmp_path):
    reported = []

    def spoil(evaluated):
        reported.append(dataclasses.replace(evaluated, loss=evaluated.loss.copy(), models=evaluated.models.copy()))
        evaluated.loss[:] = evaluated.models[:] = math.nan  # copies: nothing of the run changes
        return True

    calibrated, task = mechanism(), classes(30)
    options = {"seeds": [1, 2], "dtype": torch.float64}
    whole = train(calibrated, task, on_evaluation=spoil, **options)
    for run in whole.seeds:  # without the function, several seeds would train together, which rounds otherwise
        assert_same(run, train(calibrated, task, **options | {"seeds": [run.seed]}).seeds[0])
    assert [(each.seed, each.step) for each in reported] == [(seed, step) for seed in (1, 2) for step in (2, 4, 6)]
    for run, mine in zip(whole.seeds, (reported[:3], reported[3:]), strict=True):
        assert_array_equal(run.loss, [each.loss for each in mine])
        assert_array_equal(run.accuracy, [each.accuracy for each in mine])
        assert_array_equal(run.models, mine[-1].models)
        assert not any(each.diverged for each in mine)
    assert not_private_fields(EvaluatedStep) == ("loss", "accuracy", "models", "diverged", "metrics")
    later = []
    train(calibrated, task, stop_after=3, checkpoint_folder=tmp_path, **options)
    train(calibrated, task, checkpoint_folder=tmp_path, on_evaluation=lambda each: later.append(each.step), **options)
    assert later == [4, 6] * 2


def test_what_a_callback_raises_ends_the_run_after_its_checkpoint(tmp_path):
    calibrated, reported = mechanism(), []

    def stop(evaluated):
        reported.append(evaluated.step)
        if evaluated.step == 4:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        train(calibrated, TASK, seeds=[1], checkpoint_folder=tmp_path, on_evaluation=stop)
    assert checkpoint.load(tmp_path / "seed-1").step == 4
    resumed = train(calibrated, TASK, seeds=[1], checkpoint_folder=tmp_path, on_evaluation=stop)
    assert reported == [2, 4, 6]
    assert_same(resumed.seeds[0], train(calibrated, TASK, seeds=[1]).seeds[0])


def test_a_callback_learns_of_divergence_and_regression_has_no_accuracy():
    reported = []
    calibrated = calibrate(
        algorithms.dsgd(Dynamics(RING, 1e5), Cyclic(30, 2)), Privacy(clip_norm=1e30, **LDP), noise_std=0.0
    )
    train(calibrated, TASK, seeds=[0], on_evaluation=reported.append)
    assert [row.diverged for row in reported] == sorted(row.diverged for row in reported)
    assert reported[-1].diverged
    assert all(row.accuracy is None for row in reported)


def test_a_run_stopped_before_its_first_evaluation_takes_its_steps_again_under_the_same_noise(tmp_path, witnessed):
    """The nonce of a secret key is on the disk before the first draw; else one step would leave under two noises."""
    calibrated, key = mechanism(), NoiseKey.from_entropy()
    with pytest.raises(CrashAt):
        train(calibrated, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path, progress=CrashAt(1).progress)
    assert (checkpoint.load(tmp_path / "seed-1").step, len(witnessed["noise"])) == (0, 1)
    train(calibrated, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path, stop_after=1)
    first, again = witnessed["noise"]
    assert_array_equal(first, again)
    assert np.abs(first).max() > 0


def test_a_folder_takes_one_run_at_a_time(tmp_path):
    calibrated, key = mechanism(), NoiseKey.from_entropy()
    refused = []

    def second(done):
        with pytest.raises(InvalidInput, match="seed-1 is in use by another run") as caught:
            train(calibrated, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path)
        refused.append(caught)

    first = train(calibrated, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path, progress=second).seeds[0]
    assert len(refused) == first.finished_steps == 6
    assert_same(train(calibrated, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path).seeds[0], first)


def test_stop_at_step_zero(tmp_path):
    run = train(mechanism(), TASK, seeds=[0], stop_after=0, checkpoint_folder=tmp_path).seeds[0]
    assert_array_equal(run.models, TASK.instance(0, 2).initial_parameters.double().numpy())
    assert (run.finished_steps, run.loss.shape) == (0, (0, NODES))
    assert run.final_test_loss is run.final_accuracy is run.messages is None


OTHERS = [
    ({"mechanism": mechanism(mu=2.0)}, "mechanism_hash"), ({"mechanism": mechanism("dp-dsgd")}, "mechanism_hash"),
    ({"mechanism": mechanism(clip_norm=2.0)}, "mechanism_hash"),
    ({"mechanism": mechanism(learning_rate=0.2)}, "mechanism_hash"),
    ({"mechanism": mechanism(participation=Cyclic(2, 3))}, "mechanism_hash"),
    ({"mechanism": mechanism(W=gossip.sequence([STAR, RING, STAR]))}, "mechanism_hash"),
    ({"task": regression(30, data_seed=1)}, "task_hash"), ({"dtype": torch.float64}, "key_id"),
    ({"key": NoiseKey.from_seed(99)}, "key_id"), ({"key": NoiseKey.from_entropy()}, "key_id"),
    ({"seeds": [1]}, "(key_id|seed)"),
]  # fmt: skip


def test_a_checkpoint_of_something_else_is_refused(tmp_path, monkeypatch):
    options = {"mechanism": mechanism(), "task": TASK, "seeds": [0], "checkpoint_folder": tmp_path}
    train(stop_after=3, **options)
    shutil.copytree(tmp_path / "seed-0", tmp_path / "seed-1")
    for other, field in OTHERS:
        refuses(f"the checkpoint's {field} is", train, **options | other)
        assert checkpoint.load(tmp_path / "seed-0").step == 3  # left as it was
    monkeypatch.setattr(PhiloxColumns, "name", "another/1")
    refuses("the checkpoint's generator is '.*', expected", train, **options)
    checkpoint.save(tmp_path / "seed-0", step=1, models={"state": torch.zeros(2)}, metadata={})
    refuses("has no field", train, **options)
    key = NoiseKey.from_entropy()  # of both runs, as is the split: only the seed tells them apart
    train(mechanism(), TASK, seeds=[0], key=key, stop_after=3, checkpoint_folder=tmp_path / "own")
    (tmp_path / "own" / "seed-0").rename(tmp_path / "own" / "seed-1")
    options |= {"seeds": [1], "key": key, "checkpoint_folder": tmp_path / "own"}
    refuses("the checkpoint's seed is 0, expected 1", train, **options)


def test_a_seed_repeats_a_run_and_no_seed_never_does():
    first, second = (train(mechanism(), TASK, seeds=[2]).seeds[0] for _ in range(2))
    assert_same(first, second)
    free, again = (train(mechanism(), TASK).seeds[0] for _ in range(2))
    assert free.seed is None
    assert free.key_id != again.key_id
    assert not np.array_equal(free.models, again.models)


def base_noise(calibrated, seen, D):
    """Z over nu of the last run, from what was injected: C N Z; (T, n, D)."""
    T, noise = calibrated.algorithm.num_steps, calibrated.algorithm.noise
    injected = np.stack(seen["noise"][-T:])
    encoders = [noise.column_encoder(u) if hasattr(noise, "column_encoder") else np.eye(T) for u in range(NODES)]
    base = np.stack([C @ injected[:, u] for u, C in enumerate(encoders)], axis=1)
    return base.reshape(T, NODES, D) / calibrated.noise_std


def largest_cosine(samples, pairs):
    """Independent Gaussian vectors in R^N have |cosine| above c with probability at most 2 exp(-N c^2 / 2).

    All pairs together raise a false alarm with probability 1e-9.
    """
    return math.sqrt(2 * math.log(2 * pairs / 1e-9) / samples)


DIM = 400


def test_no_two_mechanisms_tasks_splits_or_keys_share_noise(witnessed):
    sequences = [
        gossip.sequence([STAR if c == "A" else RING for c in order]) for order in ("AABAAA", "ABBAAA", "BABABA")
    ]
    still = silent_task(2, DIM)
    user = mechanism("dp-dsgd", participation=EveryStep(6), unit="user")
    cases = [(mechanism(name), still, 0, None) for name in ("dp-dsgd", "anti-pgd", "mf-shared", "mf-per-node")]
    cases += [(mechanism("dp-dsgd", W=W), still, 0, None) for W in sequences]
    cases += [
        (mechanism("dp-dsgd", mu=2.0), still, 0, None),
        (mechanism("dp-dsgd", clip_norm=2.0), still, 0, None),
        (mechanism("dp-dsgd", learning_rate=0.2), still, 0, None),
        (mechanism("dp-dsgd", participation=Cyclic(2, 3)), silent_task(3, DIM), 0, None),
        (mechanism("dp-dsgd", participation=Cyclic(6, 1)), silent_task(1, DIM), 0, None),
        (mechanism("dp-dsgd"), still_task(NODES, np.zeros((8, 1)), DIM), 0, None),  # other data
        (mechanism("dp-dsgd"), still, 1, None),
        (mechanism("dp-dsgd"), still, 0, NoiseKey.from_seed(1)),
        (mechanism("dp-dsgd", participation=EveryStep(6)), still, 0, None),
    ]
    plans = [*((*case, None) for case in cases), *((user, still, 0, None, period) for period in (1, 2))]
    collected = []
    for calibrated, task, seed, key, period in plans:
        train(calibrated, task, seeds=[seed], key=key, period=period, dtype=torch.float64)
        collected.append(base_noise(calibrated, witnessed, DIM))
    limit = largest_cosine(collected[0].size, len(collected) ** 2 // 2)
    assert limit < 0.1
    for (i, first), (j, second) in itertools.combinations(enumerate(collected), 2):
        cosine = np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second)
        assert abs(cosine) < limit, f"cases {i} and {j} share noise"


@pytest.mark.parametrize("name", ["dp-dsgd", "anti-pgd", "mf-per-node"])
def test_segments_of_noise_are_never_reused(name, witnessed, tmp_path):
    part = Cyclic(epochs=5, period=2)
    calibrated, task = mechanism(name, participation=part), silent_task(2, DIM)
    for stop in (5, None):
        train(calibrated, task, seeds=[0], dtype=torch.float64, stop_after=stop, checkpoint_folder=tmp_path)
    assert len(witnessed["noise"]) == 10
    rows = base_noise(calibrated, witnessed, DIM).reshape(-1, DIM)
    normed = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(normed @ normed.T) - np.eye(len(rows))
    assert cosines.max() < largest_cosine(DIM, len(rows) ** 2 // 2) < 0.5


def test_noise_is_not_in_the_checkpoint(tmp_path, witnessed):
    train(mechanism(), TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path, dtype=torch.float64)
    saved = checkpoint.load(tmp_path / "seed-0")
    assert set(saved.models) == {"state", "evaluated_steps", "loss"}
    data = b"".join(path.read_bytes() for path in Path(tmp_path / "seed-0").iterdir())
    assert not any(np.float64(z).tobytes() in data for noise in witnessed["noise"] for z in noise.ravel())


def test_all_mechanisms_of_one_seed_share_split_order_and_start(witnessed):
    for name in ("none", "dp-dsgd", "mf-shared"):
        train(mechanism(name), TASK, seeds=[4, 5], stop_after=0)
    by_seed = [witnessed["instances"][0::2], witnessed["instances"][1::2]]
    for same in by_seed:
        for other in same[1:]:
            assert torch.equal(other.record_index, same[0].record_index)
            assert torch.equal(other.initial_parameters, same[0].initial_parameters)
            assert torch.equal(other.public_batch_sizes, same[0].public_batch_sizes)
    assert not torch.equal(by_seed[0][0].record_index, by_seed[1][0].record_index)
    assert not torch.equal(by_seed[0][0].initial_parameters, by_seed[1][0].initial_parameters)


@pytest.mark.parametrize("participation", [Single(6), OncePerEpoch(3, 2), Explicit([[0, 3], [1, 2, 4, 5]], 6)])
def test_other_participation_than_the_executor_implements_is_refused(participation):
    algorithm = algorithms.dp_dsgd(Dynamics(STAR, 0.1), participation)
    calibrated = calibrate(algorithm, Privacy(clip_norm=1.0, **LDP), mu=1.0)
    unsupported("the executor feeds each record", train, calibrated, TASK, seeds=[0])


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda"])
def test_a_device_that_cannot_be_used_is_refused_before_any_run(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # says "cuda" of a machine without it
    if device == "cuda" and torch.cuda.device_count():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InvalidInput, match=f"device '{device}' cannot be used: .*; use cpu, the only one here, or lea"):
        train(mechanism(), TASK, device=device)


def test_a_secret_given_for_a_key_is_not_shown():
    with pytest.raises(InvalidInput, match="key must be a NoiseKey, got bytes; use NoiseKey") as caught:
        train(mechanism(), TASK, key=b"a secret")
    assert "a secret" not in str(caught.value)


@each(
    "arguments, message",
    ({"seeds": []}, "seeds must hold at least one seed"),
    ({"seeds": [-1]}, "seed must be an integer >= 0"),
    ({"seeds": [0.5]}, "seed must be an integer >= 0"),
    ({"eval_every": 0}, "eval_every must be an integer >= 1"),
    ({"stop_after": -1}, "stop_after must be an integer >= 0"),
    ({"mechanism": mechanism(participation=Cyclic(1, 8))}, "each node needs at least period=8 records"),
    ({"mechanism": mechanism(participation=EveryStep(8), unit="user"), "period": 8}, "at least period=8 records"),
    ({"period": 3}, "period must be 2, the one of cyclic participation"),
    ({"on_evaluation": 3}, "on_evaluation must be .*, got"),
    *(({"progress": progress}, "progress must be .*, got") for progress in ("yes", 1)),
    *(
        ({"dtype": dtype}, r"dtype must be torch\.float32 or torch\.float64, got")
        for dtype in (torch.float16, torch.int64, "float32", float, None)
    ),
)
def test_bad_arguments_are_refused(arguments, message, tmp_path):
    arguments = {
        "mechanism": mechanism(),
        "task": TASK,
        "seeds": [0],
        "checkpoint_folder": tmp_path / "new",
    } | arguments
    refuses(message, train, **arguments)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_kept_are_the_operators_on_what_happened(name, witnessed):
    calibrated = mechanism(name, W=gossip.sequence([STAR, RING, STAR, STAR, RING]), clip_norm=0.5)
    run = train(calibrated, TASK, seeds=[1], keep_messages=True, dtype=torch.float64).seeds[0]
    instance = witnessed["instances"][0]
    assert instance.public_batch_sizes.tolist() == [4, 4, 4, 4]  # 7 or 8 records, two batches
    algorithm = calibrated.algorithm.with_divisors(instance.public_batch_sizes.cpu().numpy())
    G = torch.cat(witnessed["gradients"]).cpu().numpy()
    E = np.concatenate(witnessed["noise"])
    start = np.tile(instance.initial_parameters[0].cpu().numpy(), (NODES, 1))  # equal rows: averaging keeps them
    wanted = algorithm.messages_from_gradients @ G + algorithm.messages_from_injected_noise @ E
    assert run.messages.shape == (6, NODES, instance.dimension)
    assert_allclose(run.messages, wanted.reshape(run.messages.shape) + start, rtol=1e-10, atol=1e-10)
    final = algorithm.models_from_gradients(final=True) @ G
    if name == "none":
        assert not E.any()
    else:
        Z = np.linalg.solve(calibrated.algorithm.noise @ np.eye(24), E)
        final += algorithm.models_from_noise(final=True) @ Z
    assert_allclose(run.models, final + start, rtol=1e-9, atol=1e-9)
    # Sums of at most 4 clipped gradients enter, not means.
    assert np.linalg.norm(G, axis=1).max() <= 4 * 0.5 * (1 + 1e-9)

"""replay: resuming, keys, refusals, what was accounted is what runs, and noise of the accounted size."""

import base64
import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.mechanism import calibrate, without_noise
from mfdl.noise_error import noise_error
from mfdl.participation import Cyclic, EveryStep, Explicit, OncePerEpoch, Single
from mfdl.testing.strategies import NAMES, build_algorithm
from mfdl.testing.tasks import still_task
from mfdl.training import checkpoint, replay, streams, tasks
from mfdl.training.keys import NoiseKey
from mfdl.training.replay import replay as train
from mfdl.training.run import LAST_STEPS
from mfdl.training.tasks import Task, TaskInstance

torch.set_num_threads(1)
NODES = 4
STAR, RING = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
PART = Cyclic(epochs=3, period=2)
LDP = {"trust": trust.LDP(), "adjacency": "zero-out"}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def classifier() -> nn.Module:
    return nn.Linear(3, 3)


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.squeeze() - target).square()


def make_task(num_records=30, num_nodes=NODES, build=mlp, data_seed=0, **changes) -> Task:
    rng = np.random.default_rng(data_seed)
    arguments = {
        "kind": "regression",
        "build_module": build,
        "loss": squared,
        "features": rng.standard_normal((num_records, 3)),
        "targets": rng.standard_normal(num_records),
        "test_features": rng.standard_normal((7, 3)),
        "test_targets": rng.standard_normal(7),
    }
    return tasks.from_module("synthetic", num_nodes, **(arguments | changes))


def make_classification() -> Task:
    rng = np.random.default_rng(0)
    return make_task(
        build=classifier,
        kind="classification",
        loss=nn.functional.cross_entropy,
        targets=rng.integers(0, 3, 30),
        test_targets=rng.integers(0, 3, 7),
    )


def silent_task(period: int, dimension: int) -> Task:
    """One record per node and step, so that all divisors are 1."""
    return still_task(NODES, np.ones((NODES * period, 1)), dimension)


def mechanism(name="mf-shared", W=STAR, participation=PART, mu=1.0, clip_norm=1.0, learning_rate=0.1, unit="record"):
    one = build_algorithm(name, Dynamics(W, learning_rate), participation)
    if name == "none":
        return without_noise(one, **LDP, clip_norm=clip_norm, unit=unit)
    return calibrate(one, **LDP, clip_norm=clip_norm, mu=mu, unit=unit)


TASK = make_task()


def assert_same(first, second):
    """Every bit of what a run reports, messages and seconds aside."""
    assert first.key_id == second.key_id
    assert first.finished_steps == second.finished_steps
    assert first.diverged == second.diverged
    assert_array_equal(first.steps, second.steps)
    assert_array_equal(first.loss, second.loss)
    assert_array_equal(first.models, second.models)
    assert (first.accuracy is None) == (second.accuracy is None)
    if first.accuracy is not None:
        assert_array_equal(first.accuracy, second.accuracy)


@pytest.fixture
def witnessed(monkeypatch):
    """What happened in every run: instances, gradients by step, injected noise by step."""
    seen = {"instances": [], "gradients": [], "noise": []}
    instance, sums, make = Task.instance, TaskInstance.clipped_gradient_sums, replay.noise_stream

    def keep_instance(self, *args, **kwargs):
        seen["instances"].append(instance(self, *args, **kwargs))
        return seen["instances"][-1]

    def keep_sums(self, models, step, clip_norm):
        seen["gradients"].append(sums(self, models, step, clip_norm))
        return seen["gradients"][-1]

    def keep_stream(*args):
        stream = make(*args)
        step = stream.step

        def keep_step(t):
            seen["noise"].append(step(t).copy())
            return step(t)

        stream.step = keep_step
        return stream

    monkeypatch.setattr(Task, "instance", keep_instance)
    monkeypatch.setattr(TaskInstance, "clipped_gradient_sums", keep_sums)
    monkeypatch.setattr(replay, "noise_stream", keep_stream)
    return seen


# ---- stop and resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "dp-dsgd", "mf-shared", "mf-per-node"])
def test_resumed_after_any_step_equals_uninterrupted_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "BLOCK_STEPS", 4)  # stops fall within and between blocks of noise
    made = mechanism(name)
    whole = train(made, TASK, seeds=[3]).seeds[0]
    assert whole.finished_steps == 6
    for stop in range(7):
        folder = tmp_path / str(stop)
        part = train(made, TASK, seeds=[3], stop_after=stop, checkpoint_folder=folder).seeds[0]
        assert part.finished_steps == stop
        assert part.steps.tolist() == [s for s in (2, 4, 6) if s <= stop]
        assert_same(train(made, TASK, seeds=[3], checkpoint_folder=folder).seeds[0], whole)
        assert_same(train(made, TASK, seeds=[3], checkpoint_folder=folder).seeds[0], whole)  # a finished run stays


@pytest.mark.parametrize("name", ["none", "mf-per-node"])
@pytest.mark.parametrize("period", [None, 2])
def test_a_user_level_run_resumes_after_any_step(name, period, tmp_path):
    made = mechanism(name, participation=EveryStep(6), unit="user", clip_norm=0.2)
    whole = train(made, TASK, seeds=[3], period=period).seeds[0]
    assert whole.steps.tolist() == ([1, 2, 3, 4, 5, 6] if period is None else [2, 4, 6])
    assert_same(train(made, TASK, seeds=[3], period=period).seeds[0], whole)
    for stop in range(7):
        folder = tmp_path / str(stop)
        part = train(made, TASK, seeds=[3], period=period, stop_after=stop, checkpoint_folder=folder).seeds[0]
        assert part.finished_steps == stop
        assert_same(train(made, TASK, seeds=[3], period=period, checkpoint_folder=folder).seeds[0], whole)
    other = train(made, TASK, seeds=[3], period=3).seeds[0]
    assert not np.array_equal(other.models, whole.models)


def test_a_run_of_one_unit_does_not_go_on_as_another(tmp_path):
    every = EveryStep(6)
    record, user = (mechanism("dp-dsgd", participation=every, unit=unit) for unit in ("record", "user"))
    assert record.noise_std == user.noise_std
    train(record, TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path / "record")
    with pytest.raises(InvalidInput, match="the checkpoint's unit is 'record', expected 'user'"):
        train(user, TASK, seeds=[0], checkpoint_folder=tmp_path / "record")
    train(user, TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path / "user")
    with pytest.raises(InvalidInput, match="the checkpoint's unit is 'user', expected 'record'"):
        train(record, TASK, seeds=[0], checkpoint_folder=tmp_path / "user")
    with pytest.raises(InvalidInput, match="the checkpoint's period is 1, expected 2"):
        train(user, TASK, seeds=[0], period=2, checkpoint_folder=tmp_path / "user")
    assert train(user, TASK, seeds=[0], checkpoint_folder=tmp_path / "user").seeds[0].finished_steps == 6


def test_every_step_at_record_level_is_cyclic_with_period_one():
    runs = [
        train(mechanism("none", participation=part), TASK, seeds=[0]).seeds[0] for part in (EveryStep(6), Cyclic(6, 1))
    ]
    assert_array_equal(runs[0].models, runs[1].models)
    assert_array_equal(runs[0].steps, runs[1].steps)
    assert train(mechanism(participation=EveryStep(6)), TASK, seeds=[0]).seeds[0].finished_steps == 6


@pytest.mark.parametrize("task", [TASK, make_classification()], ids=["regression", "classification"])
def test_across_several_stops_and_seeds(task, tmp_path):
    made = mechanism("mf-shared", participation=Cyclic(9, 4))
    whole = train(made, task, seeds=[0, 5], eval_every=5)
    for stop in (1, 7, 8, 8, 3, 31, 33, 36):  # going back is no step: 3 leaves what stands at 8
        stopped = train(made, task, seeds=[0, 5], eval_every=5, stop_after=stop, checkpoint_folder=tmp_path)
        assert [one.finished_steps for one in stopped.seeds] == [max(stop, 8) if stop == 3 else stop] * 2
    for one, other in zip(stopped.seeds, whole.seeds, strict=True):
        assert_same(one, other)
    assert stopped.seeds[0].steps.tolist() == [5, 10, 15, 20, 25, 30, 35, 36]
    assert (stopped.seeds[0].accuracy is None) == (task.kind == "regression")


def test_an_interrupted_run_goes_on_from_its_last_checkpoint(tmp_path):
    made = mechanism()
    whole = train(made, TASK, seeds=[1]).seeds[0]

    class Crash(Exception):
        pass

    steps = itertools.count(1)

    def crash(done):
        if next(steps) == 5:
            raise Crash

    with pytest.raises(Crash):
        train(made, TASK, seeds=[1], checkpoint_folder=tmp_path, progress=crash)
    assert checkpoint.load(tmp_path / "seed-1").step == 4
    progressed = []
    resumed = train(made, TASK, seeds=[1], checkpoint_folder=tmp_path, progress=progressed.append)
    assert_same(resumed.seeds[0], whole)
    assert progressed == [4, 1, 1]


def test_a_run_stopped_before_its_first_evaluation_takes_its_steps_again_under_the_same_noise(tmp_path, witnessed):
    """The nonce of a secret key is on the disk before the first draw; else one step would leave under two noises."""
    made, key = mechanism(), NoiseKey.from_entropy()

    class Crash(Exception):
        pass

    def crash(done):
        raise Crash

    with pytest.raises(Crash):
        train(made, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path, progress=crash)
    assert checkpoint.load(tmp_path / "seed-1").step == 0
    assert len(witnessed["noise"]) == 1
    train(made, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path, stop_after=1)
    first, again = witnessed["noise"]
    assert_array_equal(first, again)
    assert np.abs(first).max() > 0


def test_a_folder_takes_one_run_at_a_time(tmp_path):
    """Two would remove each other's files, and with a secret key begin with two noises."""
    made, key = mechanism(), NoiseKey.from_entropy()
    refused = []

    def second(done):
        with pytest.raises(InvalidInput, match="seed-1 is in use by another run") as caught:
            train(made, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path)
        refused.append(caught)

    one = train(made, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path, progress=second).seeds[0]
    assert len(refused) == one.finished_steps == 6
    assert_same(train(made, TASK, key=key, seeds=[1], checkpoint_folder=tmp_path).seeds[0], one)


def test_stop_at_step_zero(tmp_path):
    one = train(mechanism(), TASK, seeds=[0], stop_after=0, checkpoint_folder=tmp_path).seeds[0]
    start = TASK.instance(0, 2).initial_parameters.double().numpy()
    assert_array_equal(one.models, start)
    assert one.finished_steps == 0
    assert one.loss.shape == (0, NODES)
    assert one.final_loss is None
    assert one.final_accuracy is None
    assert one.messages is None


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"made": mechanism(mu=2.0)}, "mechanism_hash"),
        ({"made": mechanism("dp-dsgd")}, "mechanism_hash"),
        ({"made": mechanism(clip_norm=2.0)}, "mechanism_hash"),
        ({"made": mechanism(learning_rate=0.2)}, "mechanism_hash"),
        ({"made": mechanism(participation=Cyclic(2, 3))}, "mechanism_hash"),
        ({"made": mechanism(W=gossip.sequence([STAR, RING, STAR]))}, "mechanism_hash"),
        ({"task": make_task(data_seed=1)}, "task_hash"),
        ({"dtype": torch.float64}, "key_id"),
        ({"key": NoiseKey.from_seed(99)}, "key_id"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(other, field, tmp_path):
    train(mechanism(), TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path)
    arguments = {"made": mechanism(), "task": TASK} | other
    made, task = arguments.pop("made"), arguments.pop("task")
    with pytest.raises(InvalidInput, match=f"the checkpoint's {field} is"):
        train(made, task, seeds=[0], checkpoint_folder=tmp_path, **arguments)
    assert checkpoint.load(tmp_path / "seed-0").step == 3  # left as it was


def test_a_checkpoint_of_another_seed_is_refused(tmp_path):
    train(mechanism(), TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path)
    (tmp_path / "seed-0").rename(tmp_path / "seed-1")
    with pytest.raises(InvalidInput, match=r"the checkpoint's (key_id|seed) is"):
        train(mechanism(), TASK, seeds=[1], checkpoint_folder=tmp_path)


def test_a_checkpoint_of_another_seed_is_refused_under_one_key_too(tmp_path):
    """The split comes from the checkpoint then, and so does the key: only the seed tells them apart."""
    key = NoiseKey.from_entropy()
    train(mechanism(), TASK, seeds=[0], key=key, stop_after=3, checkpoint_folder=tmp_path)
    (tmp_path / "seed-0").rename(tmp_path / "seed-1")
    with pytest.raises(InvalidInput, match="the checkpoint's seed is 0, expected 1"):
        train(mechanism(), TASK, seeds=[1], key=key, checkpoint_folder=tmp_path)


def test_a_checkpoint_of_another_rule_of_noise_is_refused(tmp_path, monkeypatch):
    train(mechanism(), TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path)
    monkeypatch.setattr(replay, "GENERATOR", "another/1")
    with pytest.raises(InvalidInput, match=r"the checkpoint's generator is '.*', expected 'another/1'"):
        train(mechanism(), TASK, seeds=[0], checkpoint_folder=tmp_path)


def test_a_checkpoint_of_no_replay_is_refused(tmp_path):
    checkpoint.save(tmp_path / "seed-0", step=1, models={"state": torch.zeros(2)}, metadata={})
    with pytest.raises(InvalidInput, match="has no field"):
        train(mechanism(), TASK, seeds=[0], checkpoint_folder=tmp_path)


# ---- keys -------------------------------------------------------------------------------------------------


def test_a_seed_repeats_a_run_and_no_seed_never_does():
    first, second = (train(mechanism(), TASK, seeds=[2]).seeds[0] for _ in range(2))
    assert_same(first, second)
    free, again = (train(mechanism(), TASK).seeds[0] for _ in range(2))
    assert free.seed is None
    assert free.key_id != again.key_id
    assert not np.array_equal(free.models, again.models)


def test_unseeded_runs_go_on_with_their_key_only(tmp_path):
    key = NoiseKey.from_entropy()
    made = mechanism()
    part = train(made, TASK, key=key, stop_after=3, checkpoint_folder=tmp_path).seeds[0]
    with pytest.raises(InvalidInput, match="unseeded run, whose noise key was never written; pass key="):
        train(made, TASK, checkpoint_folder=tmp_path)
    with pytest.raises(InvalidInput, match="the checkpoint's key_id is"):
        train(made, TASK, key=NoiseKey.from_entropy(), checkpoint_folder=tmp_path)
    done = train(made, TASK, key=key, checkpoint_folder=tmp_path).seeds[0]
    assert done.key_id == part.key_id
    assert done.finished_steps == 6
    train(made, TASK, stop_after=3, checkpoint_folder=tmp_path / "lost")
    with pytest.raises(InvalidInput, match="unseeded run"):
        train(made, TASK, checkpoint_folder=tmp_path / "lost")


def base_noise(made, seen, D):
    """Z over nu of the last run, from what was injected: C N Z; (T, n, D)."""
    T, noise = made.algorithm.num_steps, made.algorithm.noise
    injected = np.stack(seen["noise"][-T:])
    encoders = [noise.encoder_of(u) if hasattr(noise, "encoder_of") else np.eye(T) for u in range(NODES)]
    return np.stack([C @ injected[:, u] for u, C in enumerate(encoders)], axis=1).reshape(T, NODES, D) / made.noise_std


def cosine(first, second):
    return float(np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second))


def largest_cosine(samples, pairs):
    """Independent Gaussian vectors in R^N have |cosine| above c with probability at most 2 exp(-N c^2 / 2).

    All pairs together raise a false alarm with probability 1e-9.
    """
    return math.sqrt(2 * math.log(2 * pairs / 1e-9) / samples)


DIM = 400


def test_no_two_mechanisms_tasks_splits_or_keys_share_noise(witnessed):
    """Whatever differs, noise is fresh: a difference of two messages never cancels it."""
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
    found = []
    for made, task, seed, key, period in plans:
        train(made, task, seeds=[seed], key=key, period=period, dtype=torch.float64)
        found.append(base_noise(made, witnessed, DIM))
    pairs = list(itertools.combinations(range(len(found)), 2))
    limit = largest_cosine(found[0].size, len(pairs))
    assert limit < 0.1
    for i, j in pairs:
        assert abs(cosine(found[i], found[j])) < limit, f"cases {i} and {j} share noise"


@pytest.mark.parametrize("name", ["dp-dsgd", "anti-pgd", "mf-shared", "mf-per-node"])
def test_segments_of_noise_are_never_reused(name, witnessed, tmp_path):
    """Base noise of any two (step, node), over epochs and a stop in between; false-alarm rate 1e-9."""
    part = Cyclic(epochs=5, period=2)
    made, task = mechanism(name, participation=part), silent_task(2, DIM)
    train(made, task, seeds=[0], dtype=torch.float64, stop_after=5, checkpoint_folder=tmp_path)
    train(made, task, seeds=[0], dtype=torch.float64, checkpoint_folder=tmp_path)
    assert len(witnessed["noise"]) == 10
    Z = base_noise(made, witnessed, DIM)
    epochs = Z.reshape(5, -1)
    pairs = list(itertools.combinations(range(5), 2))
    limit = largest_cosine(epochs.shape[1], len(pairs))
    assert limit < 0.15
    assert max(abs(cosine(epochs[i], epochs[j])) for i, j in pairs) < limit
    rows = Z.reshape(-1, DIM)
    normed = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(normed @ normed.T) - np.eye(len(rows))
    assert cosines.max() < largest_cosine(DIM, len(rows) ** 2 // 2)


def test_no_secret_is_in_any_byte_of_a_checkpoint(tmp_path, monkeypatch):
    made_secrets = set()
    construct = NoiseKey.__init__

    def remember(self, secret, *, seeded=False):
        made_secrets.add(secret)
        construct(self, secret, seeded=seeded)

    monkeypatch.setattr(NoiseKey, "__init__", remember)
    train(mechanism(), TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path)
    train(mechanism(), TASK, key=NoiseKey.from_entropy(), checkpoint_folder=tmp_path)
    train(mechanism(), TASK, stop_after=1, checkpoint_folder=tmp_path / "free")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made_secrets) >= 6
    assert len(files) == 6
    for path in files:
        data = path.read_bytes() + str(path).encode()
        for secret in made_secrets:
            for half in (secret[:16], secret[16:]):
                forms = (half, half[::-1], half.hex().encode(), half.hex().upper().encode())
                forms += (base64.b64encode(half)[:20], repr(half).encode(), str(int.from_bytes(half)).encode())
                assert not any(form in data for form in forms)
    pointer = json.loads((tmp_path / "seed-0" / "checkpoint.json").read_text())
    assert pointer["metadata"]["key_id"]


def test_noise_is_not_in_the_checkpoint(tmp_path, witnessed):
    train(mechanism(), TASK, seeds=[0], stop_after=3, checkpoint_folder=tmp_path, dtype=torch.float64)
    saved = checkpoint.load(tmp_path / "seed-0")
    assert set(saved.models) == {"state", "evaluated_steps", "loss"}
    data = b"".join(path.read_bytes() for path in Path(tmp_path / "seed-0").iterdir())
    assert not any(np.float64(z).tobytes() in data for noise in witnessed["noise"] for z in noise.ravel())


# ---- what mechanisms share --------------------------------------------------------------------------------


def test_all_mechanisms_of_one_seed_share_split_order_and_start(witnessed):
    for name in ("none", "dp-dsgd", "anti-pgd", "mf-shared"):
        train(mechanism(name), TASK, seeds=[4, 5])
    by_seed = [witnessed["instances"][0::2], witnessed["instances"][1::2]]
    for same in by_seed:
        for other in same[1:]:
            assert torch.equal(other.record_index, same[0].record_index)
            assert torch.equal(other.initial_parameters, same[0].initial_parameters)
            assert torch.equal(other.public_batch_sizes, same[0].public_batch_sizes)
    assert not torch.equal(by_seed[0][0].record_index, by_seed[1][0].record_index)
    assert not torch.equal(by_seed[0][0].initial_parameters, by_seed[1][0].initial_parameters)


# ---- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [Single(6), OncePerEpoch(3, 2), Explicit([[0, 3], [1, 2, 4, 5]], 6)])
def test_other_participation_than_the_executor_implements_is_refused(participation):
    one = algorithms.dp_dsgd(Dynamics(STAR, 0.1), participation)
    made = calibrate(one, **LDP, clip_norm=1.0, mu=1.0)
    with pytest.raises(UnsupportedMechanism, match="the executor feeds each record to the same step of every epoch"):
        train(made, TASK, seeds=[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": make_task(num_nodes=5)}, "task has 5 nodes but the mechanism has 4"),
        ({"seeds": []}, "seeds must hold at least one seed"),
        ({"seeds": [-1]}, "seed must be an integer >= 0"),
        ({"seeds": [0.5]}, "seed must be an integer >= 0"),
        ({"eval_every": 0}, "eval_every must be an integer >= 1"),
        ({"stop_after": -1}, "stop_after must be an integer >= 0"),
        ({"made": mechanism(participation=Cyclic(1, 8))}, "each node needs at least period=8 records"),
        ({"made": mechanism(participation=EveryStep(8), unit="user"), "period": 8}, "at least period=8 records"),
        ({"period": 3}, "period must be 2, the one of cyclic participation"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path):
    arguments = {"made": mechanism(), "task": TASK, "seeds": [0]} | arguments
    made, task = arguments.pop("made"), arguments.pop("task")
    with pytest.raises(InvalidInput, match=message):
        train(made, task, checkpoint_folder=tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_batch_norm_is_refused():
    def build():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    with pytest.raises(UnsupportedMechanism, match=r"layer '1' \(BatchNorm1d\) mixes the records"):
        make_task(build=build)


# ---- what runs is what was accounted ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_kept_are_the_operators_on_what_happened(name, witnessed):
    made = mechanism(name, W=gossip.sequence([STAR, RING, STAR, STAR, RING]), clip_norm=0.5)
    run = train(made, TASK, seeds=[1], keep_messages=True, dtype=torch.float64).seeds[0]
    instance = witnessed["instances"][0]
    assert instance.public_batch_sizes.tolist() == [4, 4, 4, 4]  # 7 or 8 records, two batches
    one = made.algorithm.with_divisors(instance.public_batch_sizes.numpy())
    G = torch.cat(witnessed["gradients"]).numpy()
    E = np.concatenate(witnessed["noise"])
    start = np.tile(instance.initial_parameters[0].numpy(), (NODES, 1))  # equal rows: averaging keeps them
    wanted = one.messages_from_gradients @ G + one.messages_from_injected_noise @ E
    assert run.messages.shape == (6, NODES, instance.dimension)
    assert_allclose(run.messages, wanted.reshape(run.messages.shape) + start, rtol=1e-10, atol=1e-10)
    final = one.models_from_gradients(final=True) @ G
    if name == "none":
        assert not E.any()
    else:
        Z = np.linalg.solve(made.algorithm.noise @ np.eye(24), E)
        final += one.models_from_noise(final=True) @ Z
    assert_allclose(run.models, final + start, rtol=1e-9, atol=1e-9)
    # Sums of at most 4 clipped gradients enter, not means.
    assert np.linalg.norm(G, axis=1).max() <= 4 * 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("victim", [(2, 1, 0), (0, 0, 3)])
def test_removing_a_record_moves_messages_by_at_most_the_clipping_norm(victim, monkeypatch, witnessed):
    """Zero-out: same noise; the messages before the record's first step are unchanged, then one row moves."""
    node, step_class, _ = victim
    made = mechanism("mf-shared", clip_norm=0.01, learning_rate=0.3)  # small: every gradient is clipped
    arguments = {"seeds": [0], "keep_messages": True, "dtype": torch.float64}
    with_record = train(made, TASK, **arguments).seeds[0].messages
    taken = list(witnessed["gradients"])
    keep = Task.instance

    def without_record(self, *args, **kwargs):
        instance = keep(self, *args, **kwargs)
        assert instance.mask[victim]
        mask = instance.mask.clone()
        mask[victim] = False
        return dataclasses.replace(instance, mask=mask)

    monkeypatch.setattr(Task, "instance", without_record)
    without = train(made, TASK, **arguments).seeds[0].messages
    moved = with_record - without
    assert not moved[:step_class].any()
    others = np.arange(NODES) != node
    assert not moved[step_class, others].any()
    reach = 0.3 * 0.01 / 4  # learning rate, clipping norm, public batch size
    assert 0.9 * reach < np.linalg.norm(moved[step_class, node]) <= reach * (1 + 1e-9)
    # At equal models it moves the sums of its own node and steps alone, each by at most the clipping norm.
    full = witnessed["instances"][0]
    mask = full.mask.clone()
    mask[victim] = False
    reduced = dataclasses.replace(full, mask=mask)
    for t in range(6):
        models = full.initial_parameters + 0.1 * t
        change = full.clipped_gradient_sums(models, t, 0.01) - reduced.clipped_gradient_sums(models, t, 0.01)
        norms = change.norm(dim=1).numpy()
        assert not norms[others].any()
        assert norms[node] <= 0.01 * (1 + 1e-9)
        assert (norms[node] > 0) == (t % 2 == step_class)
    assert torch.equal(full.public_batch_sizes, reduced.public_batch_sizes)
    assert len(taken) == 6


def test_the_noise_in_the_models_is_what_the_mechanism_says(witnessed):
    """DP-D-SGD, zero gradients: squares of the models add up to nu^2 eta^2 d noise_error.

    The sum is a quadratic form in Gaussians, F = sum_i lam_i chi^2_d,i, with sum lam = noise_error and, by Laurent
    and Massart, |F / d - sum lam| <= 2 |lam|_2 sqrt(x / d) + 2 max(lam) x / d except with probability 2 e^-x:
    2e-10 at x = 23. With T n = 24 terms, |lam|_2 and max(lam) are at most sum lam = noise_error.
    """
    d, x = 40_000, 23.0
    part = Cyclic(epochs=3, period=2)
    made = mechanism("dp-dsgd", participation=part, learning_rate=0.5, mu=0.8)
    run = train(made, silent_task(2, d), seeds=[0], keep_messages=True, dtype=torch.float64).seeds[0]
    assert not torch.cat(witnessed["gradients"]).any()
    W = STAR.dense()
    averaged = np.stack([W @ sent for sent in run.messages])  # theta_1 .. theta_T
    assert_allclose(averaged[-1], run.models, atol=1e-12)
    scale = (made.noise_std * 0.5) ** 2 * d
    tolerance = 2 * math.sqrt(x / d) + 2 * x / d
    assert tolerance < 0.05
    assert abs(np.sum(averaged**2) / scale / noise_error(made.algorithm) - 1) < tolerance
    # The final models alone, against the operator that was derived for them: eta^2 nu^2 ||B||_F^2.
    final = made.algorithm.models_from_noise(final=True) @ np.eye(24)
    assert abs(np.sum(run.models**2) / (made.noise_std**2 * d * np.sum(final**2)) - 1) < tolerance
    # And by hand: sum over steps of eta^2 ||W^(T - t)||_F^2.
    powers = [np.linalg.matrix_power(W, j) for j in range(1, 7)]
    assert_allclose(np.sum(final**2), 0.25 * sum(np.sum(P**2) for P in powers), rtol=1e-12)


def test_correlated_noise_reaches_the_models_as_accounted():
    """The same for a shared and for per-node encoders, at a looser stated tolerance; 2e-10 as above."""
    d, x = 20_000, 23.0
    for name in ("anti-pgd", "mf-per-node", "mafalda"):
        made = mechanism(name, learning_rate=0.5, mu=0.8)
        run = train(made, silent_task(2, d), seeds=[0], keep_messages=True, dtype=torch.float64).seeds[0]
        averaged = np.stack([STAR.dense() @ sent for sent in run.messages])
        ratio = np.sum(averaged**2) / ((made.noise_std * 0.5) ** 2 * d * noise_error(made.algorithm))
        assert abs(ratio - 1) < 2 * math.sqrt(x / d) + 2 * x / d


# ---- what a run reports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-33, 1e-26])
def test_divergence_is_recorded_and_shown(mu, tmp_path):
    made = mechanism("dp-dsgd", learning_rate=1e6, mu=mu)
    part = train(made, TASK, seeds=[0, 1], stop_after=2, checkpoint_folder=tmp_path)
    run = train(made, TASK, seeds=[0, 1], checkpoint_folder=tmp_path)
    finished = train(made, TASK, seeds=[0, 1], checkpoint_folder=tmp_path)  # read back, no step left to run
    for found in (part, run, finished):
        assert found.diverged_seeds == [0, 1]
        assert found.final_losses == [None, None]
    assert not np.isfinite(run.seeds[0].loss).all()
    assert run.seeds[0].finished_steps == 6
    healthy = train(mechanism(), TASK, seeds=[0])
    assert healthy.diverged_seeds == []
    assert not healthy.seeds[0].diverged
    assert np.isfinite(healthy.final_losses).all()


def test_the_final_loss_is_the_mean_over_nodes_and_the_last_fifty_steps():
    made = mechanism("dp-dsgd", participation=Cyclic(31, 2))  # 62 steps
    one = train(made, make_classification(), seeds=[0], eval_every=4).seeds[0]
    assert one.steps.tolist() == [*range(4, 61, 4), 62]
    late = [s > 62 - LAST_STEPS for s in one.steps]
    assert LAST_STEPS == 50
    assert one.steps[late][0] == 16  # the last 50 steps are 13 to 62
    assert_allclose(one.final_loss, np.mean([one.loss[i] for i in range(16) if late[i]]), rtol=1e-14)
    assert_allclose(one.final_accuracy, one.accuracy[late].mean(), rtol=1e-14)
    assert one.final_loss != pytest.approx(one.loss.mean(), rel=1e-6)


def test_no_evaluation_in_the_last_fifty_steps_gives_no_final_loss():
    made = mechanism("dp-dsgd", participation=Cyclic(31, 2))
    one = train(made, TASK, seeds=[0], eval_every=5, stop_after=58).seeds[0]
    early = dataclasses.replace(one, steps=one.steps[:1], loss=one.loss[:1])  # evaluated after 5 of 58 steps
    assert early.final_loss is None
    assert one.final_loss is not None


@pytest.mark.parametrize(("every", "steps"), [(None, [2, 4, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (100, [6])])
def test_evaluations(every, steps):
    run = train(mechanism(), TASK, seeds=[0], eval_every=every)
    one = run.seeds[0]
    assert one.steps.tolist() == steps
    assert one.loss.shape == (len(steps), NODES)
    instance = TASK.instance(0, 2)
    found = instance.evaluate(torch.as_tensor(one.models, dtype=torch.float32))
    assert_array_equal(one.loss[-1], found.loss.numpy())  # float32 models pass through float64 unchanged
    rows = run.rows()
    assert len(rows) == len(steps) * NODES
    assert rows[-1] == {
        "mechanism": "mf-shared",
        "seed": 0,
        "step": 6,
        "node": str(STAR.labels[-1]),
        "loss": one.loss[-1, -1],
        "accuracy": None,
    }
    assert run.node_steps_per_second > 0


def test_evaluating_more_often_changes_no_model():
    often, seldom = (train(mechanism(), TASK, seeds=[0], eval_every=e).seeds[0].models for e in (1, 100))
    assert_array_equal(often, seldom)


def test_messages_are_kept_only_when_asked_for():
    assert train(mechanism(), TASK, seeds=[0]).seeds[0].messages is None


# ---- what a guarantee speaks of ------------------------------------------------------------------------------------


def test_divisors_that_a_guarantee_does_not_cover_are_refused():
    """Five nodes with 4, 4, 4, 3, 3 records: under PNDP unequal divisors change the loss, under LDP they cancel."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((18, 2)).astype(np.float32), rng.standard_normal(18).astype(np.float32)
    task = tasks.from_module(
        "small", 5, kind="regression", build_module=_line, loss=_half_square,
        features=x, targets=y, test_features=x[:3], test_targets=y[:3],
    )  # fmt: skip
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=5"), learning_rate=0.1)
    one = algorithms.dp_dsgd(dynamics, Cyclic(2, 3))
    common = {"adjacency": "zero-out", "clip_norm": 1.0, "mu": 1.0}
    assert task.public_batch_sizes(3).tolist() == [2, 2, 2, 1, 1]
    assert task.instance(7, 3).public_batch_sizes.tolist() == [2, 2, 2, 1, 1]
    train(calibrate(one, trust=trust.LDP(), **common), task, seeds=[0])
    hidden = calibrate(one, trust=trust.PNDP([0]), **common)
    with pytest.raises(InvalidInput, match=r"depends on public batch sizes.*with_divisors\(task.public_batch_sizes"):
        train(hidden, task, seeds=[0])
    maps = {name: m for name, m in vars(one.rounds[0]).items() if m is not None}
    maps["message_from_noise"] = sp.csr_array(-0.1 * np.roll(np.eye(5), 1, axis=0))  # a node's noise in its neighbour's
    apart = algorithms.from_maps(maps, Cyclic(2, 3), dynamics, message_sender=range(5))
    with pytest.raises(InvalidInput, match="depends on public batch sizes"):
        train(calibrate(apart, trust=trust.SecLDP(), **common), task, seeds=[0])
    fitted = one.with_divisors(task.public_batch_sizes(3))
    train(calibrate(fitted, trust=trust.PNDP([0]), **common), task, seeds=[0])
    resting = calibrate(fitted, trust=trust.PNDP([0]), lipschitz=1.0, release="none", **common)
    assert resting.lipschitz == 1.0  # the worst victim may not need it, others do
    assert "Lipschitz" in str(resting.guarantee)
    with pytest.raises(
        InvalidInput, match="assumes local maps with Lipschitz constant 1, and task 'small' claims None"
    ):
        train(resting, task, seeds=[0])
    train(resting, dataclasses.replace(task, lipschitz=1.0), seeds=[0])


def _line():
    return torch.nn.Linear(2, 1)


def _half_square(output, target):
    return 0.5 * (output.squeeze(-1) - target).square()


def test_add_remove_is_refused_in_training():
    """Without one record the split, the map and the batch sizes of the others would be other ones."""
    one = algorithms.dp_dsgd(
        Dynamics(gossip.metropolis_hastings(f"ring:n={TASK.num_nodes}"), learning_rate=0.1), Cyclic(2, 3)
    )
    made = calibrate(one, trust=trust.LDP(), adjacency="add-remove", clip_norm=1.0, mu=1.0)
    with pytest.raises(UnsupportedMechanism, match="number of records is not public"):
        train(made, TASK, seeds=[0])
    every = algorithms.dp_dsgd(one.dynamics, EveryStep(6))
    user = calibrate(every, trust=trust.LDP(), adjacency="add-remove", clip_norm=1.0, mu=1.0, unit="user")
    with pytest.raises(UnsupportedMechanism, match="number of records is not public"):
        train(user, TASK, seeds=[0])


def test_a_mechanism_cannot_outgrow_its_guarantee():
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=5"), learning_rate=0.1), Cyclic(2, 3))
    made = calibrate(one, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0)
    for change in ({"clip_norm": 10.0}, {"noise_std": made.noise_std / 2}):
        with pytest.raises(InvalidInput, match="calibrate or account anew"):
            dataclasses.replace(made, **change)

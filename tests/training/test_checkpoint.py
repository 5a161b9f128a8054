"""Checkpoints: round trips, crashes at each write, damage, secrets."""

import numpy as np
import pytest
import torch
from archives import edited
from small_tasks import regression
from vocabulary import ZERO_OUT, each, given, refuses, st

import mfdl
from mfdl import Dynamics, EveryStep, InvalidInput, NoiseKey, algorithms, files, gossip, replay, trust
from mfdl.training import checkpoint
from mfdl.training.replay import ReplayConfig, fed

KEY = NoiseKey.from_seed(1)
METADATA = {"mechanism_hash": "ab", "key_id": KEY.key_id, "shape": [2, 3], "more": {"x": None, "y": 0.5}}


def models(value: float) -> dict[str, torch.Tensor]:
    return {"models": torch.full((3, 2), value), "momentum": torch.arange(4, dtype=torch.float64)}


def save(folder, step: int, value: float) -> None:
    checkpoint.save(folder, step=step, models=models(value), metadata=METADATA)


def test_round_trip_keeps_values_types_and_metadata(tmp_path):
    row = torch.arange(3.0, requires_grad=True)
    tensors = {**models(0.1), "a": row.expand(4, 3), "b": row, "c": row.expand(4, 3).T}  # some share memory
    checkpoint.save(tmp_path / "new" / "run", step=5, models=tensors, metadata=METADATA)
    loaded = checkpoint.load(tmp_path / "new" / "run")
    assert (loaded.step, loaded.metadata, set(loaded.models)) == (5, METADATA, {*tensors})
    for name, tensor in tensors.items():
        assert loaded.models[name].dtype == tensor.dtype
        assert torch.equal(loaded.models[name], tensor)


@each(
    "content, message",
    ({"step": -1}, "step must be an integer >= 0"),
    ({"models": [1.0]}, "does not hold a checkpoint"),
    ({"models": {"dict": {"a": "text"}}}, "does not hold a checkpoint"),
    ({"private": None}, "does not hold a checkpoint"),
)
def test_content_that_is_no_checkpoint_is_refused(tmp_path, content, message):
    save(tmp_path, 1, 0.1)
    edited(tmp_path / checkpoint.FILE, lambda header, _: header["content"].update(content))
    refuses(message, checkpoint.load, tmp_path)


@pytest.fixture
def killed_run(tmp_path):
    """(arguments of `replay`, folder, current files): killed before its last checkpoint removed older files."""
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.uniform("ring:n=4"), 0.1), EveryStep(2))
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), noise_std=0.0)
    run = {"mechanism": mechanism, "task": regression(8), "seeds": [0], "eval_every": 1, "progress": False}
    run["checkpoint_folder"] = tmp_path / "run"
    folder = tmp_path / "run" / "seed-0"
    replay(**run, stop_after=1)
    older = {path: path.read_bytes() for path in folder.iterdir()}
    replay(**run)
    current = sorted(folder.iterdir())
    for path, content in older.items():
        if path not in current:
            path.write_bytes(content)
    for path in current:
        (folder / f".{path.name}.abcd.tmp").write_bytes(b"the start of a file")
    return run, folder, current


def test_a_resumed_run_that_has_nothing_left_to_save_removes_what_killed_runs_left(killed_run):
    run, folder, current = killed_run
    replay(**run)
    assert sorted(folder.iterdir()) == current


def test_what_reads_a_folder_or_is_refused_there_removes_nothing(killed_run):
    run, folder, current = killed_run
    litter = sorted(folder.iterdir())
    assert len(litter) > len(current)
    checkpoint.load(folder)
    next(fed(ReplayConfig(**run)))
    refuses("the checkpoint's task_hash is", lambda: replay(**run | {"task": regression(9)}))
    with files.held_alone(folder), pytest.raises(InvalidInput, match="is in use by another run"):
        replay(**run)
    assert sorted(folder.iterdir()) == litter


@each(
    "changed, message",
    ({"key": KEY}, r"metadata\['key'\] holds a NoiseKey, whose secret must not be stored; store key.key_id"),
    ({"a": [{"b": KEY}]}, r"metadata\['a'\]\[0\]\['b'\] holds a NoiseKey"),
    ({"a": b"secret"}, r"metadata\['a'\] holds bytes"),
    ({"a": (1, bytearray(2))}, r"metadata\['a'\]\[1\] holds bytes"),
    ({"a": np.float64("nan")}, "must be plain JSON"),
    ({"a": np.ones(2)}, "got ndarray"),
    ({"a": float("inf")}, "got inf"),
    ({"a": {1: 2}}, "must have string keys, got int"),
)
def test_secrets_and_unclear_values_are_refused_and_nothing_is_written(tmp_path, changed, message):
    refuses(message, lambda: checkpoint.save(tmp_path / "run", step=0, models=models(0.1), metadata=changed))
    for wrong, why in (
        ({"models": {"a": [1.0]}}, r"models must map names to tensors, got 'a': list"),
        ({"models": {"a": torch.zeros(1, dtype=torch.bfloat16)}}, "models must have types that numpy has"),
        ({"step": -1}, "step must be an integer >= 0, got -1"),
    ):
        refuses(why, checkpoint.save, tmp_path / "run", **{"step": 0, "models": {}, "metadata": {}} | wrong)
    assert not (tmp_path / "run").exists()


def test_require_match_names_the_field_that_differs():
    checkpoint.require_match(METADATA)
    checkpoint.require_match(METADATA, mechanism_hash="ab", shape=(2, 3), more={"y": 0.5, "x": None})
    other = {"key_id": KEY.key_id, "mechanism_hash": "cd"}
    for metadata, expected, why in (
        (METADATA, other, "checkpoint's mechanism_hash is 'ab', expected 'cd'"),
        (METADATA, {"task_hash": "x"}, "no field 'task_hash', expected 'x'"),
        (METADATA, {"key_id": KEY}, "key_id holds a NoiseKey"),
        ({"seeded": True}, {"seeded": 1}, "checkpoint's seeded is True, expected 1"),
    ):
        refuses(why, checkpoint.require_match, metadata, **expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(30, metadata=st.dictionaries(st.text(), JSON, max_size=3))
def test_any_plain_metadata_survives(tmp_path_factory, metadata):
    folder = tmp_path_factory.mktemp("run")
    checkpoint.save(folder, step=0, models={}, metadata=metadata)
    assert checkpoint.load(folder).metadata == metadata
    checkpoint.require_match(checkpoint.load(folder).metadata, **{k: v for k, v in metadata.items() if k != "metadata"})

"""No file holds what the noise is made from, and files with private state say so and belong to their owner."""

import base64
import stat

import pytest
import torch
from noises import philox_key
from small_tasks import regression
from vocabulary import ZERO_OUT, dynamics_on, refuses

from mfdl import Cyclic, NoiseKey, Privacy, calibrate, replay, trust
from mfdl.algorithms import registry
from mfdl.training import checkpoint

SECRET = bytes(range(100, 132))


def trained(folder, name="mafalda-l", key=None, **more):
    task = regression(24, build=lambda: torch.nn.Linear(3, 1))
    algorithm = registry.build(name, dynamics_on("ring:n=4", 0.1), Cyclic(epochs=2, period=2))
    mechanism = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    return replay(mechanism, task, key=key, checkpoint_folder=folder, **more)


@pytest.fixture
def secrets(monkeypatch):
    """Every secret of the process: given, drawn and derived ones, and the keys of the generator."""
    secrets_seen = {SECRET}
    init = NoiseKey.__init__

    def recorded(self, secret, **options):
        init(self, secret, **options)
        secrets_seen.update((secret, philox_key(secret)))

    monkeypatch.setattr(NoiseKey, "__init__", recorded)
    return secrets_seen


def spellings(secret):
    """How a secret may stand in a file: bytes, hex, base64, decimal of either byte order, a list of numbers, repr."""
    words = [int.from_bytes(secret[i : i + 8], "little") for i in range(0, len(secret) - 7, 8)]
    yield from (secret, secret[::-1], repr(secret)[2:-1].encode())
    yield from (secret.hex().encode(), secret.hex().upper().encode())
    yield base64.b64encode(secret)[:-2]
    yield base64.urlsafe_b64encode(secret)[:-2]
    yield from (str(int.from_bytes(secret, order)).encode() for order in ("little", "big"))
    yield from (str(word).encode() for word in words)
    yield from (mark.join(str(byte) for byte in secret).encode() for mark in (",", ", ", " ", ",\n        "))


def leaks(folder, secrets):
    return [
        (path.name, spelt)
        for path in folder.rglob("*")
        if path.is_file()
        for secret in secrets
        for spelt in spellings(secret)
        if spelt in path.read_bytes()
    ]


@pytest.mark.parametrize("name", ["dp-dsgd", "mafalda-l"])
@pytest.mark.parametrize("seeds", [[3], None])
def test_no_file_of_a_run_holds_a_secret(name, seeds, tmp_path, secrets):
    for stop in (1, 2, None):
        trained(tmp_path, name, NoiseKey(SECRET), seeds=seeds, stop_after=stop, publish=True)
    assert len(secrets) > 5
    assert (len([path for path in tmp_path.rglob("*") if path.is_file()]), leaks(tmp_path, secrets)) == (1, [])


def test_the_search_finds_what_is_there(tmp_path, secrets):
    for number, spelt in enumerate(spellings(SECRET)):
        (tmp_path / "file").write_bytes(b"before" + spelt + b"after")
        assert leaks(tmp_path, {SECRET}), number


def test_a_drawn_key_is_not_written_and_asked_again(tmp_path, secrets):
    trained(tmp_path, seeds=None, stop_after=2)
    assert leaks(tmp_path, secrets) == []
    refuses("whose noise key was never written; pass", trained, tmp_path, seeds=None)
    refuses("checkpoint's key_id is", lambda: trained(tmp_path, key=NoiseKey(SECRET)))


def test_private_parts_are_named_and_only_the_owner_reads(tmp_path):
    trained(tmp_path, key=NoiseKey(SECRET), seeds=[3], stop_after=2)
    (file,) = tmp_path.rglob(checkpoint.FILE)
    private = ("diverged", "dropped_records", "evaluated_steps", "loss", "state", "task_hash")
    assert checkpoint.load(file.parent).private == private
    for path in file.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_seed_that_decides_the_noise_is_marked(tmp_path):
    for name, key in (("seeded", None), ("secret", NoiseKey(SECRET))):
        trained(tmp_path / name, key=key, seeds=[3], stop_after=2)
        assert checkpoint.load(tmp_path / name / "seed-3").metadata["seeded_noise"] is (key is None)


def test_names_of_private_parts_must_exist(tmp_path):
    models = {"a": torch.zeros(1)}
    words = "private must name tensors or metadata of the checkpoint, got 'b'"
    refuses(words, checkpoint.save, tmp_path, step=0, models=models, metadata={}, private=["a", "b"])
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_goes_with_the_next_checkpoint(tmp_path):
    checkpoint.save(tmp_path, step=1, models={}, metadata={})
    (tmp_path / f".{checkpoint.FILE}.x.tmp").write_text("a part")
    (tmp_path / ".other.tmp").write_text("of somebody else")
    checkpoint.save(tmp_path, step=2, models={}, metadata={})
    assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / ".other.tmp").exists()

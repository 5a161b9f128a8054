"""Writes interrupted by a full disk at every moment, or by SIGKILL: words, the old files, no part of a new one.

After a kill the end is the same, no noise is used twice for two purposes, and none is skipped.
"""

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from finished_runs import content, refused
from vocabulary import each, refuses

from mfdl import Cyclic, Dynamics, InvalidInput, factorization, files
from mfdl.commands import main
from mfdl.gossip import metropolis_hastings
from mfdl.training import checkpoint

GOSSIP = metropolis_hastings("ring:n=4")
MOMENTS = ("mkdir", "mkstemp", "fdopen", "write", "flush", "chmod", "fsync", "replace")


class Full:
    def __init__(self, monkeypatch, fail_at):
        self.count, self.fail_at = 0, fail_at
        of_os = [(files.os, name) for name in ("chmod", "fsync", "replace")]
        for owner, name in ((files.Path, "mkdir"), (files.tempfile, "mkstemp"), *of_os):
            monkeypatch.setattr(owner, name, self.watched(name, getattr(owner, name)))
        fdopen = files.os.fdopen

        def opened(descriptor, mode):
            file = fdopen(descriptor, mode)
            try:
                self.moment("fdopen")
            except OSError:
                file.close()
                raise
            return Stream(file, self)

        monkeypatch.setattr(files.os, "fdopen", opened)

    def watched(self, name, real):
        def call(*args, **kwargs):
            self.moment(name)
            return real(*args, **kwargs)

        return call

    def moment(self, name):
        assert name in MOMENTS
        self.count += 1
        if self.count == self.fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Stream:
    def __init__(self, file, full):
        self.file, self.full = file, full

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def fileno(self):
        return self.file.fileno()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.full.moment("write")  # half of it is on the disk
        self.file.write(data[len(data) // 2 :])

    def flush(self):
        self.full.moment("flush")
        self.file.flush()


def save_checkpoint(folder, value):
    models = {"models": torch.full((50,), float(value))}
    checkpoint.save(folder, step=value, models=models, metadata={"value": value})


def load_checkpoint(folder):
    return checkpoint.load(folder).step


def save_factorization(folder, value):
    solved = factorization.factorize(Dynamics(GOSSIP), Cyclic(epochs=1, period=2))
    factorization.save(folder / "f", solved, header={"value": value})


def load_factorization(folder):
    return factorization.load(folder / "f").header["value"]


def save_json(folder, value):
    files.atomic_write_json(folder / "a.json", [value])


def load_json(folder):
    return json.loads((folder / "a.json").read_text())[0]


WRITERS = {
    "checkpoint": (save_checkpoint, load_checkpoint),
    "factorization": (save_factorization, load_factorization),
    "json": (save_json, load_json),
}


@pytest.mark.parametrize("name", WRITERS)
def test_full_at_every_moment(name, tmp_path, monkeypatch):
    """Each call that can meet ENOSPC meets it once; a folder's own flush may fail, as the file then has its name."""
    save, load = WRITERS[name]
    save(tmp_path, 1)
    for fail_at in range(1, 50):
        before, loaded = content(tmp_path), load(tmp_path)
        with monkeypatch.context() as patch:
            full = Full(patch, fail_at)
            try:
                save(tmp_path, 2)
                refused = ""
            except InvalidInput as error:
                refused = str(error)
        assert not [path for path in content(tmp_path) if path.endswith(".tmp")]
        if refused:
            assert all(words in refused for words in (f"cannot write {tmp_path}", "No space left on device"))
            assert load(tmp_path) == loaded == 1
            assert before.items() <= content(tmp_path).items()
        else:
            assert load(tmp_path) == 2
            if full.count < fail_at:
                break
            save(tmp_path, 1)
    assert fail_at > len(MOMENTS)


@contextmanager
def small_files(size):
    """Real writes that fail after this many bytes; Python ignores SIGXFSZ, so the write fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_real_limit_of_the_file_size(name, size, tmp_path):
    save, load = WRITERS[name]
    save(tmp_path, 1)
    before = content(tmp_path)
    with small_files(size), pytest.raises(InvalidInput, match=f"cannot write {tmp_path}.*File too large"):
        save(tmp_path, 2)
    assert content(tmp_path) == before
    assert load(tmp_path) == 1


@each(
    "name, more",
    ("factorize", ["--out", "new/f"]), ("account", ["--jobs", "1", "--out", "new"]),
    ("compare", ["--seeds", "1", "--mechanisms", "dp-dsgd", "--out", "new"]),
)  # fmt: skip
def test_commands_say_it_in_one_line(name, more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with small_files(0):
        code = main([name, "--graph", "ring:n=4", "--epochs", "1", "--period", "2", *more])
    output = capsys.readouterr().err.strip().splitlines()[-1]
    assert (code, output.startswith("mfdl: cannot write new"), content(tmp_path)) == (2, True, {})


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    """As root the mode of a folder stops nobody, so there the answer of the system is played."""
    folder = tmp_path / "closed"
    save_checkpoint(folder, 1)
    before = content(tmp_path)
    folder.chmod(0o555)
    if os.geteuid() == 0:

        def closed(*_, **__):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(files.tempfile, "mkstemp", closed)
        monkeypatch.setattr(files.tempfile, "TemporaryFile", closed)
    refuses(f"cannot write {folder}.*Permission denied; choose a folder", save_checkpoint, folder, 2)
    refused(capsys, "Permission denied", "factorize", "--graph", "ring:n=4", "--out", str(folder / "f"))
    assert content(tmp_path) == before
    folder.chmod(0o755)


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refuses(f"cannot write {pipe}: it is a device, a pipe or a socket", files.atomic_write_bytes, pipe, b"x")
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["\x00", "a\x00b", "\udcff" * 300, "a" * 5000])
def test_names_no_file_can_have(name, tmp_path):
    refuses("cannot write", files.atomic_write_bytes, tmp_path / name, b"x")
    assert content(tmp_path) == {}


def test_text_that_is_no_utf8(tmp_path):
    for write, value in ((files.atomic_write_text, "\ud800"), (files.atomic_write_json, {"a": "\udcff"})):
        refuses("which UTF-8 cannot hold", write, tmp_path / "a", value)
    assert content(tmp_path) == {}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.slow
def test_an_answer_sent_to_a_full_disk():
    with open("/dev/full", "wb") as full:
        code = "import sys; from mfdl.commands import main; sys.exit(main(['trust', 'list', '--json']))"
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, timeout=600)
    words = b"mfdl: cannot write the answer to standard output: No space left on device; redirect it.\n"
    assert (done.returncode, done.stderr) == (2, words)


COMMAND = Path(__file__).parents[2] / "experiments" / "faults.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and fork")
@pytest.mark.parametrize(("runs", "kills"), [(2, 4), (7, 5)])
def test_a_few_kills(runs, kills, tmp_path):
    """A process of its own: it forks, which a process with threads should not."""
    report = tmp_path / "report.json"
    arguments = ["kill", "--runs", str(runs), "--seed", "1", "--out", str(report)]
    done = subprocess.run([sys.executable, str(COMMAND), *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(report.read_text())
    assert (content["faults"], content["training"]) == ([], len({k for k in range(runs) if k not in (1, 3, 6)}))
    assert content["kills"] >= kills
    assert content["sweep"] == 1

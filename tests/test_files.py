"""Atomic files, with failures injected at each moment of a write."""

import json
import os
import stat
import subprocess
import sys

import pytest

from mfdl import files
from mfdl.errors import InvalidInput


def test_bytes_text_and_json_arrive_whole(tmp_path):
    assert files.atomic_write_bytes(tmp_path / "new" / "folder" / "a", b"\x00\r\n").read_bytes() == b"\x00\r\n"
    assert files.atomic_write_text(str(tmp_path / "b"), "µ\r\n").read_bytes() == "µ\r\n".encode()
    path = files.atomic_write_json(tmp_path / "c", {"b": [1, 2.5, None], "a": "µ"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "µ",\n  "b": [\n    1,\n    2.5,\n    null\n  ]\n}\n'
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c", "new"]


def test_an_existing_file_is_replaced_and_keeps_its_mode(tmp_path):
    path = files.atomic_write_bytes(tmp_path / "a", b"old")
    os.chmod(path, 0o640)
    files.atomic_write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    files.atomic_write_bytes(path, b"newer", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_new_files_can_be_read_by_whom_the_folder_lets_in(tmp_path):
    os.chmod(tmp_path, 0o755)
    assert stat.S_IMODE(files.atomic_write_bytes(tmp_path / "a", b"").stat().st_mode) == 0o644
    assert stat.S_IMODE(files.atomic_write_bytes(tmp_path / "b", b"", private=True).stat().st_mode) == 0o600


def test_a_folder_that_all_may_write_to_makes_no_file_that_all_may_change(tmp_path):
    os.chmod(tmp_path, 0o1777)  # as /tmp
    assert stat.S_IMODE(files.atomic_write_bytes(tmp_path / "a", b"").stat().st_mode) == 0o664


def test_new_folders_are_as_durable_as_the_file(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "_sync_folder", synced.append)
    files.atomic_write_bytes(tmp_path / "new" / "folder" / "a", b"x")
    assert synced == [tmp_path, tmp_path / "new", tmp_path / "new" / "folder"]


@pytest.mark.skipif(files.fcntl is None, reason="no locks of this kind")
def test_a_folder_is_held_by_one_until_its_end_or_its_death(tmp_path):
    folder = tmp_path / "new" / "run"
    in_use = f"{folder} is in use by another run; wait for its end, or choose another folder"
    with files.held_alone(folder):
        with pytest.raises(InvalidInput, match=in_use), files.held_alone(folder):
            pass
        with files.held_alone(tmp_path / "other"):
            pass
    code = "import os, sys; from mfdl import files; h = files.held_alone(sys.argv[1]); h.__enter__(); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"1\n"
        with pytest.raises(InvalidInput, match=in_use), files.held_alone(folder):
            pass
        process.kill()
    with files.held_alone(folder):
        files.atomic_write_bytes(folder / "a", b"x")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]
    assert not (tmp_path / "other").exists()  # nothing came into it


def test_without_locks_nobody_is_kept_out(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    with files.held_alone(tmp_path), files.held_alone(tmp_path / "new"), files.held_alone(tmp_path):
        assert (tmp_path / "new").is_dir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match=r"cannot write .*file: "), files.held_alone(tmp_path / "file"):
        pass


@pytest.mark.parametrize("moment", ["fsync", "replace", "fdopen"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, moment, error):
    path = files.atomic_write_bytes(tmp_path / "a", b"old")

    def crash(*args, **kwargs):
        if moment == "fdopen":
            os.close(args[0])
        raise error

    monkeypatch.setattr(files.os, moment, crash)
    expected = InvalidInput if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match="disk full" if isinstance(error, OSError) else None):
        files.atomic_write_bytes(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_data_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    files.atomic_write_bytes(tmp_path / "a", b"x")
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def test_targets_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file" / "below", tmp_path / "folder"):
        with pytest.raises(InvalidInput, match=f"cannot write {target}: .*choose a folder"):
            files.atomic_write_bytes(target, b"x")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("value", [{"a": float("nan")}, [float("inf")], b"x", {1: 2, "a": 3}, {"a": {1, 2}}])
def test_values_that_are_not_json(tmp_path, value):
    with pytest.raises(InvalidInput, match=r"cannot write .* as JSON: .*give plain strings"):
        files.atomic_write_json(tmp_path / "a", value)
    assert list(tmp_path.iterdir()) == []


def test_json_can_be_private(tmp_path):
    path = files.atomic_write_json(tmp_path / "a", [1], private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == [1]

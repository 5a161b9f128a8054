"""Atomic files, with failures injected at each moment of a write; and what a file of noise may claim."""

import dataclasses
import json
import math
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from mfdl import factorization, files, gossip
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.factorization import SpatialFactorization
from mfdl.participation import Cyclic


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


@pytest.mark.parametrize(
    ("folder", "private", "file"),
    [(0o755, False, 0o644), (0o755, True, 0o600), (0o1777, False, 0o664)],  # /tmp the last
)
def test_new_files_can_be_read_by_whom_the_folder_lets_in(tmp_path, folder, private, file):
    """A folder that all may write to, as /tmp, makes no file that all may change."""
    os.chmod(tmp_path, folder)
    path = files.atomic_write_json(tmp_path / "a", [1], private=private)
    assert stat.S_IMODE(path.stat().st_mode) == file
    assert json.loads(path.read_text()) == [1]


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


# ---- factorizations in files: their claims ---------------------------------------------------------------

PATH = Dynamics(gossip.metropolis_hastings("path:n=4"))
SCHEME = Cyclic(2, 2)
GROUPS = [[0, 1, 2], [1, 2, 3]]
SOLVED = {
    "time-space": factorization.optimal_time_space(PATH, SCHEME, groups=GROUPS, coalition_size=1),
    "adapted": factorization.optimal_adapted(PATH, SCHEME),
    "space-time": factorization.optimal_space_time(PATH, SCHEME),
    "corn": factorization.optimal_covariance(PATH, groups=GROUPS),
    "pairwise": factorization.optimal_pairwise(PATH),
    "nodes": factorization.factorize_nodes(PATH, SCHEME),
}


def write(path, solved):
    if isinstance(solved, SpatialFactorization):
        factorization.save_spatial(path, solved, header={})
    elif isinstance(solved, factorization.SpaceTimeFactorization):
        factorization.save_space_time(path, solved, header={})
    else:
        factorization.save(path, solved, grams=np.eye(4), header={})
    return path


def tampered(path, kind, where, change):
    """The file of a solution with one change: of an array, or of the number in the header at `where`."""
    write(path, SOLVED[kind])
    with np.load(path) as data:
        kept = {name: data[name] for name in data.files}
    facts = json.loads(bytes(kept["header"]).decode())
    *outer, name = where.split(".")
    inside = facts
    for one in outer:
        inside = inside[one]
    holder = inside if name in inside else kept
    holder[name] = change(holder[name]) if callable(change) else change
    kept["header"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})
    return path


@examples(40)
@given(data=st.data())
def test_groups_in_any_order_load_as_the_same_covariance(tmp_path_factory, data):
    """Parts stay with their nodes, whatever order the nodes of a group are written in."""
    n = data.draw(st.integers(2, 5))
    nodes = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    groups = tuple(map(tuple, data.draw(st.lists(nodes, min_size=1, max_size=3))))
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    roots = [numbers.normal(size=(len(group), len(group))) for group in groups]
    space = dataclasses.replace(
        SOLVED["corn"],
        num_nodes=n,
        private_variance=2.0,
        groups=groups,
        parts=tuple(root @ root.T for root in roots),
        max_inverse_diagonal=1.0,
    )
    wanted = 2.0 * np.eye(n)
    for group, root in zip(groups, roots, strict=True):
        spread = np.zeros((n, len(group)))
        spread[list(group)] = root
        wanted += spread @ spread.T
    both = dataclasses.replace(SOLVED["time-space"], num_nodes=n, space=space)
    folder = tmp_path_factory.mktemp("groups")
    over_nodes = factorization.load(write(folder / "R.npz", space))
    over_both = factorization.load(write(folder / "both.npz", both)).space
    for kept in (over_nodes, over_both):
        np.testing.assert_allclose(kept.covariance, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
        F, held = (array.toarray() for array in kept.factor())
        np.testing.assert_allclose(F @ F.T, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())
        assert not F[~held.T].any()
        assert kept.groups == tuple(tuple(sorted(group)) for group in groups)


@pytest.mark.parametrize("kind", SOLVED)
def test_what_the_solvers_write_loads_finished_or_not(tmp_path, kind):
    kept = factorization.load(write(tmp_path / "a.npz", SOLVED[kind]))
    assert (kept.loss, kept.lower_bound) == (SOLVED[kind].loss, SOLVED[kind].lower_bound)
    if kind == "nodes":
        assert_array_equal(kept.encoder, SOLVED[kind].encoder)
        return
    for status in ("optimal", "stationary", "stopped", "fixed"):
        unfinished = dataclasses.replace(SOLVED[kind], status=status, lower_bound=0.0)
        kept = factorization.load(write(tmp_path / "a.npz", unfinished))
        assert (kept.status, kept.loss, kept.gap) == (status, SOLVED[kind].loss, math.inf)
    rounded = dataclasses.replace(SOLVED[kind], lower_bound=SOLVED[kind].loss * (1 + 1e-9))
    assert factorization.load(write(tmp_path / "a.npz", rounded)).gap < 0


NAN, INF = float("nan"), float("inf")
ENDS = [
    ("loss", np.float64(NAN), "loss"),
    ("loss", np.complex128(1j), "loss must be real"),
    ("lower_bound", np.float64(1e9), "at most the loss"),
    ("lower_bound", np.float64(INF), "lower_bound must be a finite number"),
    ("lower_bound", np.float64(-1.0), "lower_bound must be a finite number >= 0"),
]
HEAD = [
    ("loss", np.float64(INF), "loss must be a finite number"),
    ("status", 17, "status must be one of"),
    ("status", "fine", "status must be one of"),
    ("notes", "abc", "notes must be a list of texts"),
]
JOINT = [
    ("space_time.sensitivity", 0.01, "sensitivity must be 1"),
    ("space_time.sensitivity", None, "sensitivity"),
    ("space_time.sensitivity", NAN, "sensitivity"),
    ("space_time.num_steps", 4.0, "num_steps must be an integer"),
    ("space_time.num_nodes", True, "num_nodes must be an integer"),
    ("space_time.iterations", -1, "iterations"),
    ("space_time.seconds", INF, "seconds"),
    ("space_time.independent_loss", NAN, "independent_loss"),
    ("space_time.participation", "cyclic", "participation"),
    ("space_time.gossip_hash", 3, "gossip"),
    ("encoder", lambda C: C + 1j, "encoder must be real"),
]
NODES = [
    ("spatial.coalition_size", "x", "coalition_size must be an integer"),
    ("spatial.coalition_size", 4, "coalition_size must be below 4 nodes"),
    ("spatial.max_inverse_diagonal", -1, "max_inverse_diagonal must be a finite number > 0"),
    ("spatial.max_inverse_diagonal", 0.5, "max_inverse_diagonal must bound"),
    ("spatial.num_nodes", 4.0, "num_nodes must be an integer"),
    ("spatial.independent_loss", -1, "independent_loss"),
    ("spatial.bound_over", 3, "bound_over"),
    ("spatial.gossip_hash", None, "gossip_hash"),
    ("spatial.sigma_pair", 1.0, "sigma_local"),
    ("group_parts", lambda flat: np.append(flat, 0.0), "entries of parts, got"),
    ("group_parts", lambda flat: flat + 1j, "group_parts must be real"),
    ("group_parts", np.tile(-np.eye(3).ravel(), 2), "positive semidefinite"),
    ("group_parts", lambda flat: np.tile(np.triu(np.ones((3, 3))).ravel(), 2), "symmetric"),
    ("group_parts", lambda flat: NAN * flat, "symmetric"),
    ("group_parts", None, "not a factorization file"),
    ("group_nodes", lambda nodes: np.append(nodes, 0), "nodes and"),
    ("group_nodes", lambda nodes: np.append(nodes[:-1], 7), "indices below 4"),
    ("spatial.private_variance", -1.0, "private_variance"),
]
FORMS = [
    ("time-space", "encoder", np.eye(5), r"over 4 steps, got shape \(5, 5\)"),
    ("time-space", "encoder", np.eye(4) + np.eye(4, k=1), "causal"),
    ("time-space", "encoder", np.full((4, 4), NAN), "finite"),
    ("time-space", "encoder", -np.eye(4), "positive diagonal|> 0"),
    ("time-space", "space.spatial.num_nodes", 5, "nodes|factor"),
    ("time-space", "space_time.kind", "adapted", "adapted alone has directions"),
    ("time-space", "space_time.kind", "space-time", r"encoder must have shape \(16, 16\)"),
    ("time-space", "space_time.kind", "other", "one of time-space, adapted, space-time"),
    ("time-space", "directions", np.eye(4), "adapted alone has directions"),
    ("adapted", "directions", np.eye(5), "factor must have shape"),
    ("adapted", "directions", None, "adapted alone has directions"),
    ("adapted", "directions", np.full((4, 4), INF), "finite"),
    ("adapted", "directions", lambda G: G * 1j, "directions must be real"),
    ("adapted", "encoder", lambda C: C[:3], "3"),
    ("adapted", "space_time.kind", "space-time", "adapted alone has directions"),
    ("space-time", "encoder", np.eye(15), r"shape \(16, 16\) for 4 steps x 4 nodes"),
    ("space-time", "encoder", None, "not a factorization file"),
    ("space-time", "space_time.kind", "time-space", "not a factorization file"),
    ("space-time", "format", 2, "has format 2, this version reads format 1"),
]
TAMPERED = [
    *(("nodes", *case) for case in [*ENDS, ("encoder", lambda C: C + 1j, "encoder must be real")]),
    *((kind, *case) for kind in ("time-space", "adapted", "space-time") for case in [*ENDS, *HEAD, *JOINT]),
    *FORMS,
    *(("corn", *case) for case in [*ENDS, *HEAD, *NODES]),
    ("corn", "covariance", lambda R: 2 * R, "covariance must be that of its groups"),
    ("corn", "covariance", np.eye(5), "covariance must be that of its groups"),
    ("corn", "group_parts", lambda flat: 0.9 * flat, "covariance must be that of its groups"),
    *(("time-space", f"space.{where}" if "." in where else where, *rest) for where, *rest in NODES),
    ("time-space", "space.loss", NAN, "loss"),
    ("time-space", "space.lower_bound", 1e9, "at most the loss"),
    ("time-space", "space.status", "fine", "status must be one of"),
    ("time-space", "space.spatial.gossip_hash", "other", "same gossip matrix"),
    ("pairwise", "spatial.sigma_local", 0.01, "sigma_local and sigma_pair must be those"),
    ("pairwise", "spatial.sigma_pair", 0.01, "sigma_local and sigma_pair must be those"),
    ("pairwise", "spatial.sigma_pair", None, "sigma_pair"),
]


@pytest.mark.parametrize(("kind", "where", "change", "message"), TAMPERED)
def test_a_claim_that_cannot_be_true_is_refused(tmp_path, kind, where, change, message):
    path = tampered(tmp_path / "a.npz", kind, where, change)
    with pytest.raises(InvalidInput, match=message) as refused:
        factorization.load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("kind", SOLVED)
def test_a_truncated_file_is_refused(tmp_path, kind):
    path = write(tmp_path / "a.npz", SOLVED[kind])
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="is not a factorization file"):
            factorization.load(path)

"""Atomic files, with failures injected at each moment of a write; and what a file of noise may claim."""

import copy
import dataclasses
import json
import math
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from vocabulary import dynamics_on, each, given, refuses, st

from mfdl import Cyclic, InvalidInput, factorization, files


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
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)
    files.atomic_write_bytes(path, b"newer", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@each("folder, private, file", (0o755, False, 0o644), (0o755, True, 0o600), (0o1777, False, 0o664))  # /tmp the last
def test_new_files_can_be_read_by_whom_the_folder_lets_in(tmp_path, folder, private, file):
    os.chmod(tmp_path, folder)
    path = files.atomic_write_json(tmp_path / "a", [1], private=private)
    assert (stat.S_IMODE(path.stat().st_mode), json.loads(path.read_text())) == (file, [1])


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
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], **pipes) as process:
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
    refuses("disk full" if isinstance(error, OSError) else None, files.atomic_write_bytes, path, b"new", error=expected)
    monkeypatch.undo()
    assert (path.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (b"old", ["a"])


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
        refuses(f"cannot write {target}: .*choose a folder", files.atomic_write_bytes, target, b"x")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("value", [{"a": float("nan")}, [float("inf")], b"x", {1: 2, "a": 3}, {"a": {1, 2}}])
def test_values_that_are_not_json(tmp_path, value):
    refuses("cannot write .* as JSON: .*give plain", files.atomic_write_json, tmp_path / "a", value)
    assert list(tmp_path.iterdir()) == []


PATH = dynamics_on("path:n=4")
SCHEME = Cyclic(2, 2)
GROUPS = [[0, 1, 2], [1, 2, 3]]
SOLVED = {
    "kronecker": factorization.optimal_kronecker(PATH, SCHEME, groups=GROUPS, coalition_size=1),
    "per-mode": factorization.optimal_per_mode(PATH, SCHEME),
    "joint": factorization.optimal_joint(PATH, SCHEME),
    "corn": factorization.optimal_covariance(PATH, groups=GROUPS),
    "pairwise": factorization.optimal_pairwise(PATH),
    "nodes": factorization.factorize_nodes(PATH, SCHEME),
}


def write(path, solved):
    return factorization.save(path, solved, header={})


def inside(claim, names):
    for name in names:
        claim = claim[int(name)] if name.isdecimal() else getattr(claim, name)
    return claim


def tampered(path, kind, where, change):
    """The file of a solution with one attribute changed, at `where`."""
    claim = copy.deepcopy(SOLVED[kind])
    *outer, name = where.split(".")
    holder = inside(claim, outer)
    object.__setattr__(holder, name, change(getattr(holder, name)) if callable(change) else change)
    return write(path, claim)


@given(40, data=st.data())
def test_groups_in_any_order_load_as_the_same_covariance(tmp_path_factory, data):
    n = data.draw(st.integers(2, 5))
    nodes = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    groups = tuple(map(tuple, data.draw(st.lists(nodes, min_size=1, max_size=3))))
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    roots = [numbers.normal(size=(len(group), len(group))) for group in groups]
    space = dataclasses.replace(
        SOLVED["corn"], num_nodes=n, private_variance=2.0, groups=groups,
        parts=tuple(root @ root.T for root in roots), max_inverse_diagonal=1.0,
    )  # fmt: skip
    wanted = 2.0 * np.eye(n)
    for group, root in zip(groups, roots, strict=True):
        spread = np.zeros((n, len(group)))
        spread[list(group)] = root
        wanted += spread @ spread.T
    both = dataclasses.replace(SOLVED["kronecker"], num_nodes=n, space=space)
    folder = tmp_path_factory.mktemp("groups")
    over_nodes = factorization.load(write(folder / "R.npz", space)).factorization
    over_both = factorization.load(write(folder / "both.npz", both)).factorization.space
    for loaded in (over_nodes, over_both):
        np.testing.assert_allclose(loaded.covariance, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
        F, holders = (array.toarray() for array in loaded.factor())
        np.testing.assert_allclose(F @ F.T, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())
        assert not F[~holders.T].any()
        assert loaded.groups == groups


@pytest.mark.parametrize("kind", SOLVED)
def test_what_the_solvers_write_loads_finished_or_not(tmp_path, kind):
    loaded = factorization.load(write(tmp_path / "a.npz", SOLVED[kind])).factorization
    assert (loaded.objective, loaded.lower_bound) == (SOLVED[kind].objective, SOLVED[kind].lower_bound)
    if kind == "nodes":
        assert_array_equal(loaded.encoder, SOLVED[kind].encoder)
        return
    for status in ("optimal", "stationary", "stopped", "fixed"):
        unfinished = dataclasses.replace(SOLVED[kind], status=status, lower_bound=0.0)
        loaded = factorization.load(write(tmp_path / "a.npz", unfinished)).factorization
        assert (loaded.status, loaded.objective, loaded.gap) == (status, SOLVED[kind].objective, math.inf)
    rounded = dataclasses.replace(SOLVED[kind], lower_bound=SOLVED[kind].objective * (1 + 1e-9))
    assert factorization.load(write(tmp_path / "a.npz", rounded)).factorization.gap < 0


NAN, INF = float("nan"), float("inf")
ENDS = [
    ("objective", NAN, "objective"), ("lower_bound", 1e9, "at most the objective"),
    ("lower_bound", INF, "lower_bound must be a finite number"),
    ("lower_bound", -1.0, "lower_bound must be a finite number >= 0"), ("status", 17, "status must be one of"),
    ("status", "fine", "status must be one of"), ("notes", "abc", "notes must be a tuple of texts"),
    ("iterations", -1, "iterations"), ("seconds", INF, "seconds"),
]  # fmt: skip
FINITE = [*ENDS, ("objective", INF, "objective must be a finite number")]
JOINT = [
    ("sensitivity", 0.01, "sensitivity must be 1"), ("sensitivity", None, "sensitivity"),
    ("sensitivity", NAN, "sensitivity"), ("num_steps", 4.0, "num_steps must be an integer"),
    ("num_nodes", True, "num_nodes must be an integer"), ("independent_objective", NAN, "independent_objective"),
    ("participation", "cyclic", "participation"), ("gossip_hash", 3, "gossip"),
    ("encoder", lambda C: C != 0, "encoder must be real"),
]  # fmt: skip
NODES = [
    ("coalition_size", "x", "coalition_size must be an integer"),
    ("coalition_size", 4, "coalition_size must be below 4 nodes"),
    ("max_inverse_diagonal", -1, "max_inverse_diagonal must be a finite number > 0"),
    ("max_inverse_diagonal", 0.5, "max_inverse_diagonal must bound"),
    ("num_nodes", 4.0, "num_nodes must be an integer"), ("independent_objective", -1, "independent_objective"),
    ("horizon", 0, "horizon"), ("bound_over", 3, "bound_over"), ("gossip_hash", None, "gossip_hash"),
    ("sigma_cor", 1.0, "sigma_ldp"), ("parts", lambda parts: parts[:1], "parts must be one for each of 2 groups"),
    ("parts", lambda parts: (parts[0][:2], parts[1]), r"parts must have shape \(3, 3\)"),
    ("parts", lambda parts: tuple(part != 0 for part in parts), "parts must be real"),
    ("parts", lambda parts: (-np.eye(3), -np.eye(3)), "positive semidefinite"),
    ("parts", lambda parts: (np.triu(np.ones((3, 3))), parts[1]), "symmetric"),
    ("parts", lambda parts: (NAN * parts[0], parts[1]), "symmetric"),
    ("parts", None, "does not hold a factorization"), ("groups", ((0, 1, 2), (1, 2, 2)), "distinct nodes"),
    ("groups", ((0, 1, 2), (1, 2, 7)), "indices below 4"), ("private_variance", -1.0, "private_variance"),
]  # fmt: skip
FORMS = [
    ("kronecker", "encoder", np.eye(5), r"over 4 steps, got shape \(5, 5\)"),
    ("kronecker", "encoder", np.eye(4) + np.eye(4, k=1), "causal"),
    ("kronecker", "encoder", np.full((4, 4), NAN), "finite"),
    ("kronecker", "encoder", -np.eye(4), "positive diagonal|> 0"),
    ("kronecker", "space.num_nodes", 5, "nodes|factor"),
    ("kronecker", "kind", "per-mode", "per-mode alone has directions"),
    ("kronecker", "kind", "joint", "kronecker alone has a covariance"),
    ("kronecker", "kind", "other", "one of kronecker, per-mode, joint"),
    ("kronecker", "directions", np.eye(4), "per-mode alone has directions"),
    ("kronecker", "space", "text", "does not hold a factorization"),
    ("per-mode", "directions", np.eye(5), "factor must have shape"),
    ("per-mode", "directions", None, "per-mode alone has directions"),
    ("per-mode", "directions", np.full((4, 4), INF), "finite"),
    ("per-mode", "directions", lambda G: G != 0, "directions must be real"),
    ("per-mode", "encoder", lambda C: C[:3], "3"),
    ("per-mode", "kind", "joint", "per-mode alone has directions"),
    ("joint", "encoder", np.eye(15), r"shape \(16, 16\) for 4 steps x 4 nodes"),
    ("joint", "encoder", None, "does not hold a factorization"),
    ("joint", "kind", "kronecker", "kronecker alone has a covariance"),
]
TAMPERED = [
    *(("nodes", f"nodes.0.{where}", *rest) for where, *rest in [*ENDS, ("encoder", np.ones((2, 3)), "does not hold")]),
    *((kind, *case) for kind in ("kronecker", "per-mode", "joint") for case in [*FINITE, *JOINT]),
    *FORMS,
    *(("corn", *case) for case in [*FINITE, *NODES]),
    *(("kronecker", f"space.{where}", *rest) for where, *rest in [*FINITE, *NODES]),
    ("kronecker", "space.gossip_hash", "other", "same gossip matrix"),
    ("pairwise", "sigma_ldp", 0.01, "sigma_ldp and sigma_cor must be those"),
    ("pairwise", "sigma_cor", 0.01, "sigma_ldp and sigma_cor must be those"),
    ("pairwise", "sigma_cor", None, "sigma_cor"),
]


@pytest.mark.parametrize(("kind", "where", "change", "message"), TAMPERED)
def test_a_claim_that_cannot_be_true_is_refused(tmp_path, kind, where, change, message):
    path = tampered(tmp_path / "a.npz", kind, where, change)
    with pytest.raises(InvalidInput, match=message) as refused:
        factorization.load(path)
    assert str(path) in str(refused.value)

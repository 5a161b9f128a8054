"""Processes killed at random times: a resumed run ends as an undisturbed one.

One run of `kill` takes a mechanism in turn, and SIGKILLs a training process with checkpoints, then its successor, until
one of them gets to the end. Every process appends to a journal its draws, (key, column, step) with a digest of the
numbers, and what the nodes sent, (step) with digests of gradients, noise and messages. Required:

- the models, losses and steps at the end have the bits of an undisturbed run;
- the journal, repetitions aside, is that of the undisturbed run: nothing is skipped, no place of the noise is used for
  two purposes, and no step is published twice with different content;
- a process resumes at the last checkpoint, and draws nothing of earlier steps.

Every fifth run is `mfdl compare` (finished seeds are not trained again; the same results), every tenth but not those
`mfdl factorize --out` (no file, or the whole file), and as often a sweep, which is also killed before, within or after
one of the files that it writes (the same bytes; no finished cell is trained again). Processes are forks, so that a kill
costs no start of Python.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from _fault_files import small_training
from _fault_judge import command, whole
from rich.console import Console
from rich.progress import Progress

import mfdl
from mfdl import factorization, files
from mfdl.runs import Store
from mfdl.training import checkpoint, executor, keys, replay
from mfdl.training.column_generators import ChaChaColumns, PhiloxColumns

MECHANISMS = ("dp-dsgd", "mafalda", "mafalda-l", "anti-pgd")
SECRET = bytes(range(32))  # of an entropy key that the user keeps: the checkpoint cannot hold it
STEP_SECONDS = 0.01  # slept in every training step, so that kills fall into steps and between them
GRACE_SECONDS = 600.0  # ends a process that hangs; on a busy machine an honest one takes long
COMPARE = [
    "compare",
    "--graph",
    "ring:n=4",
    "--epochs",
    "2",
    "--period",
    "4",
    "--seeds",
    "3",
    "--mechanisms",
    "dp-dsgd,bsr",
]
SWEEP = {"graph": "ring:n=4", "task": "digits", "epochs": 2, "period": 3, "seeds": 1, "mu": [0.5, 2.0]}
SWEEP |= {"mechanisms": ("none", "dp-dsgd", "mafalda")}
FACTORIZE = ["factorize", "--graph", "ring:n=6", "--epochs", "3", "--period", "3", "--mechanism", "mafalda-l"]


class Fault(AssertionError):
    """What a killed run did that it must not."""


def kill(runs: int, seed: int) -> dict[str, Any]:
    """Kills and resumes; returns counts and every fault."""
    torch.set_num_threads(1)
    counts = {
        "training": 0,
        "compare": 0,
        "factorize": 0,
        "sweep": 0,
        "kills": 0,
        "kills after a checkpoint": 0,
        "steps repeated": 0,
    }
    faults: list[str] = []
    began = time.perf_counter()
    _warm_up({_kind(k) for k in range(runs)})
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("runs", total=runs)
        for k in range(runs):
            random = Random(f"{seed} {k}")
            kind = _kind(k)
            with tempfile.TemporaryDirectory(prefix="mfdl-kill-") as folder:
                try:
                    _KINDS[kind](Path(folder), random, k, counts)
                    counts[kind] += 1
                except Fault as fault:
                    faults.append(f"run {k} ({kind}): {fault}")
            progress.advance(bar)
    return {"seed": seed, "runs": runs, **counts, "seconds": round(time.perf_counter() - began, 1), "faults": faults}


def _kind(k: int) -> str:
    return "compare" if k % 5 == 3 else {1: "sweep", 6: "factorize"}.get(k % 10, "training")


def _warm_up(kinds: set[str]) -> None:
    """Everything imported and tried once here, so that no fork has to: they start as the work does."""
    with tempfile.TemporaryDirectory() as folder:
        mechanism, task = small_training()
        replay.replay(mechanism, task, seeds=[0], checkpoint_folder=folder)
        if "compare" in kinds:
            _messages_of([*COMPARE, "--seeds", "1", "--out", f"{folder}/c"])()
        if "sweep" in kinds:
            _sweeping(Path(folder) / "s")
        if "factorize" in kinds:
            _messages_of([*FACTORIZE, "--out", f"{folder}/f.mfdl"])()


# ---- a process, and its end -------------------------------------------------------------------------------------


def forked(work: Callable[[], None], killed_after: float | None) -> bool:
    """Runs the work in a fork; whether it came to its end, or was killed first. Raises Fault if it failed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    began = time.perf_counter()
    limit = GRACE_SECONDS if killed_after is None else killed_after
    while time.perf_counter() - began < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                return False
            if status:
                raise Fault(f"a process ended with status {status}; its words are on stderr")
            return True
        time.sleep(min(0.001, limit))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if killed_after is None:
        raise Fault(f"a process did not end within {GRACE_SECONDS:g} s")
    return False


def _until_the_end(work: Callable[[], None], whole_seconds: float, random: Random, after: Callable[[], None]) -> int:
    """Kills at random times until a process is quick enough; how often."""
    kills = 0
    while kills < 6:
        if forked(work, random.uniform(0, whole_seconds * (0.9 if kills == 0 else 1.3))):
            return kills  # 0 where the machine was suddenly quicker
        kills += 1
        after()
    forked(work, None)
    return kills


# ---- training ---------------------------------------------------------------------------------------------------


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def train_with_journal(name: str, folder: Path | None, journal: Path, result: Path, dies_at: int | None = None) -> None:
    """One training process, killed by itself once step `dies_at` is sent; patches this process, so it is for forks."""
    log = journal.open("a", buffering=1)  # a line is one write: a kill cuts none in two
    step = executor.Executor.step

    def log_draws_of(generator: Any) -> None:
        start, block = generator.__init__, generator.block

        def started(self: Any, secrets: Any, indices: Any, shard: int) -> None:
            start(self, secrets, indices, shard)
            self.columns = [*zip(map(hashlib.sha256, secrets), indices.tolist(), strict=True)]

        def block_logged(self: Any, steps: Any, dim: int, tensor: int) -> Any:
            drawn = block(self, steps, dim, tensor)
            for t, rows in zip(np.asarray(steps).tolist(), drawn, strict=True):
                for (secret, index), row in zip(self.columns, rows, strict=True):
                    log.write(f"draw {secret.hexdigest()[:16]} {index} {t} {tensor} {_digest(row)}\n")
            return drawn

        generator.__init__, generator.block = started, block_logged

    def step_logged(self: Any, t: int, state: Any, gradients: Any, noise: Any, rule: Any) -> Any:
        messages, following = step(self, t, state, gradients, noise, rule)
        log.write(f"sent {t} {_digest(gradients)} {_digest(noise)} {_digest(messages)}\n")
        if t == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(STEP_SECONDS)
        return messages, following

    log_draws_of(PhiloxColumns)
    log_draws_of(ChaChaColumns)
    executor.Executor.step = step_logged  # type: ignore[method-assign]
    mechanism, task = small_training(name)
    log.write("begin\n")
    run = replay.replay(mechanism, task, seeds=[0], key=keys.NoiseKey(SECRET), checkpoint_folder=folder)
    (seed_run,) = run.seeds
    buffer = io.BytesIO()
    np.savez(buffer, steps=seed_run.steps, loss=np.asarray(seed_run.loss), models=seed_run.models)
    result.write_bytes(buffer.getvalue())


def _training(folder: Path, random: Random, k: int, counts: dict[str, int]) -> None:
    name = MECHANISMS[k % len(MECHANISMS)]
    run, journal, result = folder / "run", folder / "journal", folder / "result.npz"

    def work(dies_at: int | None = None) -> None:
        train_with_journal(name, run, journal, result, dies_at)

    # the nonce is drawn at the start of a run: both take over the same checkpoint of step 0
    forked(lambda: _begin(name, run), None)
    contents = {path: path.read_bytes() for path in (run / "seed-0").iterdir()}
    began = time.perf_counter()
    forked(work, None)
    seconds = time.perf_counter() - began
    undisturbed, whole_journal = result.read_bytes(), _journal(journal)
    for path in (result, journal, *(run / "seed-0").iterdir()):
        path.unlink()
    for path, content in contents.items():
        path.write_bytes(content)

    seen: list[int] = []

    def after() -> None:
        try:
            seen.append(checkpoint.load(run / "seed-0").step)
        except Exception as error:
            raise Fault(f"the checkpoint after a kill cannot be read: {error}") from error

    forked(partial(work, random.choice(_sent(set(whole_journal)))), None)  # one kill at least, however slow the machine
    after()
    counts["kills"] += 1 + _until_the_end(work, seconds, random, after)
    counts["kills after a checkpoint"] += sum(step > 0 for step in seen)
    if result.read_bytes() != undisturbed:
        raise Fault("the result differs from the undisturbed one")
    lines = _journal(journal)
    counts["steps repeated"] += sum(line.startswith("sent") for line in lines) - len(_sent(set(lines)))
    if set(lines) != set(whole_journal):
        wrong = sorted(set(lines) ^ set(whole_journal))[0]
        raise Fault(f"the journal differs from the undisturbed one, first in {wrong!r}")
    for kind, length in (("draw", 5), ("sent", 2)):
        places = [tuple(line.split()[:length]) for line in set(lines) if line.startswith(kind)]
        if len(places) != len(set(places)):
            raise Fault(f"one place of {kind} has two contents")
    _require_continuation(journal, seen)
    if [path.name for path in (run / "seed-0").iterdir()] != [checkpoint.FILE]:
        raise Fault(f"litter: {[path.name for path in (run / 'seed-0').iterdir()]}")


def _begin(name: str, run: Path) -> None:
    mechanism, task = small_training(name)
    replay.replay(mechanism, task, seeds=[0], key=keys.NoiseKey(SECRET), checkpoint_folder=run, stop_after=0)


def _journal(path: Path) -> list[str]:
    return [line for line in path.read_text().split("\n")[:-1] if line != "begin"] if path.exists() else []


def _sent(lines: set[str]) -> list[int]:
    return sorted(int(line.split()[1]) for line in lines if line.startswith("sent"))


def _require_continuation(journal: Path, seen: list[int]) -> None:
    """Every process starts at the step of the checkpoint that it found and goes on without a gap."""
    starts = [0, *seen]
    processes = [part.split("\n") for part in journal.read_text().split("begin\n")[1:]]
    if len(processes) < len(starts):  # killed before it began
        starts = [start for start in starts if start in {(_sent(set(p)) or [start])[0] for p in processes}]
    for lines in processes:
        steps = [int(line.split()[1]) for line in lines if line.startswith("sent")]
        if steps and (steps[0] not in starts or steps != list(range(steps[0], steps[0] + len(steps)))):
            raise Fault(f"a process took the steps {steps}, checkpoints stood at {starts}")


# ---- commands ---------------------------------------------------------------------------------------------------


def _messages_of(arguments: list[str]) -> Callable[[], None]:
    def work() -> None:
        done = command(arguments)
        if done.kind != "accepted":
            raise Fault(done.detail)

    return work


def _compare(folder: Path, random: Random, k: int, counts: dict[str, int]) -> None:
    out, calm = folder / "out", folder / "calm"
    began = time.perf_counter()
    forked(_messages_of([*COMPARE, "--out", str(calm)]), None)
    seconds = time.perf_counter() - began
    work, finished = _messages_of([*COMPARE, "--out", str(out)]), dict[tuple[str, int], Any]()

    def after() -> None:
        for path in out.rglob("*.*") if out.exists() else ():  # a line of timings may be cut short
            if path.suffix not in (".tmp", ".jsonl") and not whole(path.name, path.read_bytes()):
                raise Fault(f"{path.name} is a part of a file")
        if (out / "results.json").exists():
            for run in json.loads((out / "results.json").read_text())["runs"]:
                finished[run["mechanism"], run["seed"]] = run

    counts["kills"] += _until_the_end(work, seconds, random, after)
    counts["kills after a checkpoint"] += bool(finished)
    ours, theirs = (json.loads((results_of / "results.json").read_text()) for results_of in (out, calm))
    by_run = {(run["mechanism"], run["seed"]): run for run in ours["runs"]}
    again = [key for key, run in finished.items() if by_run[key] != run]  # its seconds tell
    if again:
        raise Fault(f"finished runs were trained again: {again}")
    if _timeless(ours) != _timeless(theirs):
        raise Fault("results.json differs from the undisturbed one")
    if (out / "steps.mfdl").read_bytes() != (calm / "steps.mfdl").read_bytes():
        raise Fault("steps.mfdl differs from the undisturbed one")
    if {path.name for path in out.rglob("*")} != {path.name for path in calm.rglob("*")}:
        raise Fault(f"litter: {sorted(path.name for path in out.rglob('*'))}")


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in ("seconds", "node_steps_per_second", "out")}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _factorize(folder: Path, random: Random, k: int, counts: dict[str, int]) -> None:
    out, calm = folder / "out.mfdl", folder / "calm.mfdl"
    began = time.perf_counter()
    forked(_messages_of([*FACTORIZE, "--out", str(calm)]), None)
    seconds = time.perf_counter() - began

    def after() -> None:
        if out.exists() and not whole(out.name, out.read_bytes()):
            raise Fault("the factorization file is a part of one")

    counts["kills"] += _until_the_end(_messages_of([*FACTORIZE, "--out", str(out)]), seconds, random, after)
    ours, theirs = (factorization.load(path) for path in (out, calm))
    if not np.array_equal(ours.encoder, theirs.encoder) or not np.array_equal(ours.error_gram, theirs.error_gram):
        raise Fault("the factorization differs from the undisturbed one")


# ---- sweeps -----------------------------------------------------------------------------------------------------


def _sweeping(folder: Path, dies_at: tuple[int, str] | None = None) -> None:
    """A sweep in this process, which kills itself before, within or after the writing of a file."""
    write, written = files.atomic_write_bytes, 0

    def deadly(path: Any, data: bytes, **options: Any) -> Path:
        nonlocal written
        written += 1
        if dies_at is not None and written == dies_at[0]:
            if dies_at[1] == "after":
                write(path, data, **options)
            elif dies_at[1] == "within":
                Path(path).parent.mkdir(parents=True, exist_ok=True)  # as the writing itself does first
                (Path(path).parent / f".{Path(path).name}.x.tmp").write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, data, **options)

    files.atomic_write_bytes = deadly
    mfdl.sweep(out=folder, progress=False, **SWEEP)


def _sweep(folder: Path, random: Random, k: int, counts: dict[str, int]) -> None:
    out, calm = folder / "out", folder / "calm"
    began = time.perf_counter()
    forked(partial(_sweeping, calm), None)
    seconds, finished = time.perf_counter() - began, dict[str, int]()  # cells, and how often they were run until then

    def runs() -> list[str]:
        return [timing["cell"] for timing in Store(out).timings()]

    def after() -> None:
        for path in out.rglob("*.*") if out.exists() else ():
            if path.suffix in (".json", ".mfdl") and not whole(path.name, path.read_bytes()):
                raise Fault(f"{path.name} is a part of a file")
        if failed := sorted((out / "failed").glob("*.json")):  # tried again by right, but nothing here may fail
            raise Fault(f"a cell failed: {json.loads(failed[0].read_text())['error']}")
        for path in (out / "cells").glob("*.json"):
            finished.setdefault(path.stem, runs().count(path.stem))

    files_of = len(list(calm.rglob("*.*")))
    for when in ("before", "within", "after"):
        forked(partial(_sweeping, out, (random.randint(2, files_of // 3), when)), None)
        counts["kills"] += 1
        after()
    counts["kills"] += _until_the_end(partial(_sweeping, out), seconds, random, after)
    counts["kills after a checkpoint"] += bool(finished)
    ours, theirs = (
        {path.relative_to(place): path.read_bytes() for path in _but_timings(place)} for place in (out, calm)
    )
    if wrong := sorted(str(name) for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        raise Fault(f"the store differs from the undisturbed one, first in {wrong[0]}")
    if again := sorted(cell for cell, times in finished.items() if runs().count(cell) > times):
        raise Fault(f"finished cells were trained again: {again}")


def _but_timings(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() and path.name != "timings.jsonl"]


_KINDS = {"training": _training, "compare": _compare, "factorize": _factorize, "sweep": _sweep}

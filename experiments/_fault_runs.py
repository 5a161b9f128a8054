"""Runs to go on with after somebody has been at their folder: checkpoints, and results of a comparison."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from _fault_judge import Outcome, command
from _fault_pools import BASE
from _fault_values import dumped, json_value, place, spoilt

import mfdl
from mfdl import archive, gossip, trust
from mfdl.algorithms import registry
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic
from mfdl.training import checkpoint, tasks
from mfdl.training.replay import replay


def small_training(mechanism: str = "dp-dsgd") -> tuple[Any, Any]:
    """A calibrated mechanism and a task that train in milliseconds."""
    rng = np.random.default_rng(0)
    task = tasks.from_module(
        "faults",
        4,
        kind="regression",
        build_module=_linear,
        loss=_squared,
        features=rng.standard_normal((30, 3)),
        targets=rng.standard_normal(30),
        test_features=rng.standard_normal((7, 3)),
        test_targets=rng.standard_normal(7),
    )
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.1)
    algorithm = registry.build(mechanism, dynamics, Cyclic(epochs=3, period=2))
    return calibrate(algorithm, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0), task


def _linear() -> torch.nn.Module:
    return torch.nn.Linear(3, 1)


def _squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.squeeze() - target).square()


def checkpoint_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    mechanism, task = small_training()
    run = folder / "run"
    replay(mechanism, task, seeds=[0], stop_after=3, checkpoint_folder=run)
    place_of = run / "seed-0"
    file = place_of / checkpoint.FILE
    way = random.randrange(4)
    if way == 0:
        file.write_bytes(spoilt(random, file.read_bytes()))
    elif way == 1:  # under a checksum that fits
        header, arrays, _ = archive.decoded(file.read_bytes())
        spoilt_part = random.choice((header, header["content"]))
        spoilt_part[random.choice(list(spoilt_part))] = json_value(random)
        with contextlib.suppress(ValueError):  # what no JSON holds
            file.write_bytes(archive.encoded(header, arrays))
    elif way == 2:  # a whole checkpoint, but not of this run
        saved = checkpoint.load(place_of)
        models, metadata = dict(saved.models), saved.metadata
        key = random.choice(list(metadata))
        metadata[key] = json_value(random)
        if random.random() < 0.3:
            del metadata[key]
        name = random.choice(list(models))
        models[name] = random.choice(
            (torch.zeros(0), models[name][:1], models[name].reshape(-1), models[name] * math.nan)
        )
        if random.random() < 0.3:
            del models[name]
        with contextlib.suppress(mfdl.InvalidInput):  # metadata that no file can hold
            checkpoint.save(place_of, step=random.choice((3, 0, 4, 99, 10**12)), models=models, metadata=metadata)
    else:
        file.unlink()
        place(random, file, b"")
    return lambda: (replay(mechanism, task, seeds=[0], checkpoint_folder=run), None)[1]


def compare_folder(random: Random, folder: Path) -> Callable[[], Outcome]:
    """A results folder that was tampered with, and the same command again."""
    arguments = ["compare", *BASE["compare"], "--out", "out"]
    out = folder / "out"
    finished = _finished_comparison()
    out.mkdir()
    for name, content in finished.items():
        (out / name).write_bytes(content)
    for _ in range(random.choice((1, 2))):
        target = out / random.choice(list(finished))
        if target.is_dir() or not target.exists():
            continue
        content = target.read_bytes()
        if target.suffix == ".json" and random.random() < 0.7:
            results = json.loads(content)
            if isinstance(results, dict) and results:
                results[random.choice([*results, "runs", "runs"])] = json_value(random)
                if isinstance(results.get("runs"), list) and random.random() < 0.3:
                    results["runs"] = [json_value(random)]
            target.write_bytes(dumped(results))
        else:
            target.unlink()
            place(random, target, spoilt(random, content))
    more = ["--overwrite"] if random.random() < 0.3 else []
    return lambda: command([*arguments, *more])


@functools.cache
def _finished_comparison() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        done = command(["compare", *BASE["compare"], "--out", folder])
        assert done.kind == "accepted", done.detail
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

"""Malformed files for every reader: graphs, gossip, factorizations, groups, options, checkpoints, results."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from _fault_judge import Outcome, command, content_of
from _fault_values import BASE, GRAPHS, NUMBERS, OPTIONS, array, dumped, json_value, place, spoilt

import mfdl
from mfdl import Privacy, archive, factorization, gossip, graphs, trust
from mfdl.algorithms import registry
from mfdl.dynamics import Dynamics
from mfdl.graphs.file_links import SUFFIXES
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic
from mfdl.training import checkpoint, tasks
from mfdl.training.replay import replay


def config_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    """--config: TOML of options, or the results.json of an earlier call."""
    name = random.choice(tuple(BASE))
    flags = list(OPTIONS[name])
    values = {flag.lstrip("-"): json_value(random) for flag in random.choices(flags, k=random.randrange(1, 4))}
    if random.random() < 0.5:
        path = folder / "results.json"
        content = dumped({"config": values} if random.random() < 0.8 else json_value(random))
        if random.random() < 0.05:
            content = b"[" * 100_000
    else:
        path = folder / "options.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        if random.random() < 0.5:
            lines.append(f"[{random.choice((name, 'compare', 'x'))}]")
            lines.append(f'graph = "{random.choice(GRAPHS[:10])}"')
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
        if random.random() < 0.05:
            content = b"epochs = " + b"[" * 100_000
    if random.random() < 0.3:
        content = spoilt(random, content)
    place(random, path, content)
    arguments = [name, *BASE[name], "--config", str(path)]
    return lambda: command(arguments)


def graph_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    header = random.choice(("", "Source,Target\n", "Source,Target,Weight\n", "target source\n", "Source,Source\n"))
    comma = "," if "," in header or random.random() < 0.5 else " "
    labels = ("0", "1", "2", "a", "é", "-1", "007", "1e3", "", '"x', "#", "99999999999999999999", "\u2028", "nan")
    lines = []
    for _ in range(random.randrange(6)):
        fields = [random.choice(labels[:3] if random.random() < 0.8 else labels) for _ in range(2)]
        if random.random() < 0.2:
            fields.append(random.choice(NUMBERS))
        lines.append(comma.join(fields))
    content = (header + "\n".join(lines)).encode("utf-8", "surrogatepass")
    if random.random() < 0.5:
        content = spoilt(random, content)
    path = place(random, folder / f"g{random.choice(SUFFIXES)}", content)
    if random.random() < 0.5:
        return lambda: (graphs.load(path), None)[1]
    return lambda: command(["factorize", "--graph", str(path), "--epochs", "1", "--period", "2", "--mechanism", "bsr"])


def gossip_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    W = gossip.metropolis_hastings("ring:n=4").dense()
    if random.random() < 0.4:
        W[random.randrange(4), random.randrange(4)] = random.choice((math.nan, math.inf, -1.0, 1e308, 0.5, 0.0))
    if random.random() < 0.2:
        W = random.choice(
            (W[:2], W[0], W.astype(complex), W.astype("U8"), W[::-1], np.eye(4), np.eye(4, dtype=np.float16))
        )
    if random.random() < 0.5:
        buffer = io.BytesIO()
        np.save(buffer, W)
        path, content = folder / "w.npy", buffer.getvalue()
        if random.random() < 0.2:
            content = content.replace(b"(4, 4)", random.choice((b"(9,9,)", b"(-1,4)", b"(4, -)", b"()    ", b"(4,4e)")))
        if random.random() < 0.1:
            content = content[:8] + content[8:].replace(b"(4, 4), }" + b" " * 12, b"(4, 10000000000), }" + b"  ")
    else:
        rows = [",".join(str(x) for x in np.atleast_1d(row)) for row in W]
        path, content = folder / "w.csv", "\n".join(rows).encode()
    if random.random() < 0.5:
        content = spoilt(random, content)
    place(random, path, content)
    if random.random() < 0.5:
        return lambda: (gossip.load(path, "ring:n=4"), None)[1]
    return lambda: command(["account", *BASE["account"], "--gossip", str(path)])


@functools.cache
def _valid(kind: str) -> bytes:
    """A factorization file that works, over time or over nodes."""
    dynamics, steps = Dynamics(gossip.metropolis_hastings("ring:n=4")), Cyclic(epochs=2, period=2)
    if kind == "t":
        solved, header = factorization.factorize(dynamics, steps), {"participation": steps}
    else:
        solved, header = factorization.optimal_covariance(dynamics), {}
    with tempfile.TemporaryDirectory() as folder:
        return factorization.save(Path(folder) / "valid", solved, header=header).read_bytes()


def _spoil_entry(random: Random, entries: dict[str, Any]) -> None:
    """One entry of the header, of an object in it or of its fields is another, or gone."""
    while (
        inner := [value for value in entries.values() if isinstance(value, dict) and value]
    ) and random.random() < 0.8:
        entries = random.choice(inner)
    name = random.choice(list(entries))
    if random.random() < 0.2:
        del entries[name]
    else:
        entries[name] = json_value(random)


def _spoil_array(random: Random, arrays: dict[str, Any]) -> None:
    name = random.choice(list(arrays))
    if random.random() < 0.3:
        del arrays[name]
    elif random.random() < 0.6 and arrays[name].size and arrays[name].dtype.kind in "fi":
        flat = arrays[name].reshape(-1)
        flat[random.randrange(flat.size)] = random.choice((0, -1, 99, 10**9))
        if arrays[name].dtype.kind == "f" and random.random() < 0.6:
            flat[random.randrange(flat.size)] = random.choice((math.nan, math.inf, -1e308, 1e-308))
    else:
        value = array(random)
        if isinstance(value, np.ndarray) and value.dtype.name in archive.TYPES:
            arrays[name] = np.array(value, order="C")


def factorization_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    content = _valid(random.choice("ts"))
    header, arrays, _ = archive.decoded(content)
    for _ in range(random.randrange(3)):
        if arrays and random.random() < 0.5:
            _spoil_array(random, arrays)
        elif header:
            _spoil_entry(random, header)
    with contextlib.suppress(ValueError, TypeError):  # what no JSON holds
        content = archive.encoded(header, arrays)  # under a checksum that fits
    if random.random() < 0.35:
        content = spoilt(random, content)
    path = place(random, folder / "f.mfdl", content)
    common = ["--graph", "ring:n=4", "--epochs", "2", "--period", "2"]
    way = random.randrange(4)
    if way == 0:
        return lambda: (factorization.load(path), None)[1]
    if way == 1:
        return lambda: command(["factorize", "--mechanism", f"file:{path}", *common])
    if way == 2:
        return lambda: command(
            ["account", "--mechanism", f"file:{path}", *common, "--trust", "eavesdropper", "--jobs", "1"]
        )
    return lambda: command(["compare", "--mechanisms", f"file:{path}", *common, "--seeds", "1", "--out", "out"])


def groups_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    value = random.choice(([[0, 1], [1, 2]], [[0, 1], json_value(random)], [json_value(random)], json_value(random),
    [[]],
                           [[0, 0]], [[0, 99]], [[True, 1]], [["0", "1"]], [[0.0]]))  # fmt: skip
    content = dumped(value) if random.random() < 0.97 else b"[" * 100_000
    if random.random() < 0.3:
        content = spoilt(random, content)
    path = place(random, folder / "groups.json", content)
    return lambda: command(["factorize", "--graph", "ring:n=4", "--mechanism", "corn", "--groups", str(path)])


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
    return calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0), task


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
    for name, content in finished.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
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
        return content_of(Path(folder))

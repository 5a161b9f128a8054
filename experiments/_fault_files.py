"""Malformed files for every door that reads one: graphs, gossip, factorizations, groups, options."""

from __future__ import annotations

import functools
import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from _fault_judge import Outcome, command
from _fault_pools import BASE, GRAPHS, NUMBERS, OPTIONS
from _fault_values import array, dumped, json_value, place, spoilt

from mfdl import factorization, gossip, graphs
from mfdl.dynamics import Dynamics
from mfdl.participation import Cyclic


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
    path = place(random, folder / f"g{random.choice(graphs.FILE_SUFFIXES)}", content)
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
def _valid_arrays(kind: str) -> dict[str, Any]:
    """The arrays of a factorization file that works, over time or over nodes."""
    dynamics, steps = Dynamics(gossip.metropolis_hastings("ring:n=4")), Cyclic(epochs=2, period=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "valid.npz"
        if kind == "t":
            header = {"participation": steps.to_dict()}
            factorization.save(path, factorization.factorize(dynamics, steps), grams=np.eye(4), header=header)
        else:
            factorization.save_spatial(path, factorization.optimal_covariance(dynamics), header={})
        with np.load(path) as arrays:
            return {key: arrays[key] for key in arrays.files}


def factorization_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    kind = random.choice("ts")
    arrays = dict(_valid_arrays(kind))
    header = json.loads(bytes(arrays["header"]))
    for _ in range(random.randrange(3)):
        key = random.choice(list(arrays))
        if key == "header":
            name = random.choice([*header, "spatial"])
            header[name] = json_value(random)
            if kind == "s" and isinstance(header.get("spatial"), dict) and random.random() < 0.7 and header["spatial"]:
                inner = random.choice(list(header["spatial"]))
                header["spatial"][inner] = json_value(random)
            if random.random() < 0.2:
                header.pop(name)
            arrays["header"] = np.frombuffer(
                json.dumps(header if random.random() < 0.95 else [1]).encode(), dtype=np.uint8
            )
        elif random.random() < 0.2:
            del arrays[key]
        elif random.random() < 0.5:
            value = np.array(arrays[key])
            if value.size and value.dtype.kind in "fi":
                flat = value.reshape(-1)
                flat[random.randrange(flat.size)] = random.choice((0, -1, 99, 10**9))
                if value.dtype.kind == "f" and random.random() < 0.6:
                    flat[random.randrange(flat.size)] = random.choice((math.nan, math.inf, -1e308, 1e-308))
            arrays[key] = value
        else:
            value = array(random)
            try:  # savez takes what asarray takes
                arrays[key] = np.asarray(value if value is not None else "x")
            except ValueError:
                arrays[key] = np.asarray("x")
        if "header" not in arrays or not arrays:
            break
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=True, **arrays)
    content = buffer.getvalue()
    if random.random() < 0.05:
        content = _bomb(random)
    elif random.random() < 0.35:
        content = spoilt(random, content)
    path = place(random, folder / "f.npz", content)
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


def _bomb(random: Random) -> bytes:
    """A small archive that claims to be, or is, very large inside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        shape = random.choice(((10**9, 10**9), (10**6, 10**6), (40_000, 40_000)))
        claim = io.BytesIO()
        np.lib.format.write_array_header_1_0(claim, {"descr": "<f8", "fortran_order": False, "shape": shape})
        archive.writestr("encoder.npy", claim.getvalue() + b"\0" * 10**6)
        archive.writestr("header.npy", claim.getvalue())
    content = buffer.getvalue()
    if random.random() < 0.5:  # the directory lies about the size too
        content = content.replace(
            (10**6 + len(claim.getvalue())).to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little")
        )
    return content


def groups_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    value = random.choice(([[0, 1], [1, 2]], [[0, 1], json_value(random)], [json_value(random)], json_value(random),
    [[]],
                           [[0, 0]], [[0, 99]], [[True, 1]], [["0", "1"]], [[0.0]]))  # fmt: skip
    content = dumped(value) if random.random() < 0.97 else b"[" * 100_000
    if random.random() < 0.3:
        content = spoilt(random, content)
    path = place(random, folder / "groups.json", content)
    return lambda: command(["factorize", "--graph", "ring:n=4", "--mechanism", "corn", "--groups", str(path)])

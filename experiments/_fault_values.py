"""Numbers, arrays, JSON values and bytes with something wrong, drawn from a source of chance."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from _fault_pools import NUMBERS, TEXTS


def spoilt(random: Random, content: bytes) -> bytes:
    """The bytes with one thing wrong: cut, flipped, filled in, swapped for garbage."""
    fault = random.choice(("cut", "flip", "insert", "empty", "garbage", "double", "nul", "bom", "latin", "lines"))
    if fault == "cut":
        return content[: random.randrange(len(content) + 1)]
    if fault == "flip" and content:
        at = random.randrange(len(content))
        return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]
    if fault == "insert":
        at = random.randrange(len(content) + 1)
        return content[:at] + random.choice(TEXTS + NUMBERS).encode("utf-8", "surrogatepass") + content[at:]
    if fault == "garbage":
        return random.randbytes(random.randrange(200))
    if fault == "double":
        return content + content
    if fault == "lines":
        return content.replace(b"\n", random.choice((b"\r", b"\r\n", b"", b"\n\n")))
    return {"nul": b"\0" + content, "bom": b"\xef\xbb\xbf" + content, "latin": b"\xe9" + content}.get(fault, b"")


def place(random: Random, path: Path, content: bytes) -> Path:
    """The file, or a folder, a dangling link or nothing in its place."""
    chance = random.random()
    if chance < 0.02:
        path.mkdir()
    elif chance < 0.04:
        path.symlink_to("nowhere")
    elif chance > 0.06:
        path.write_bytes(content)
    return path


def number(random: Random) -> Any:
    """A number or what someone took for one."""
    return random.choice(
        (0, -1, 1, 2, 3, 5, 0.5, -0.5, 1e308, -1e308, 1e-308, math.nan, math.inf, -math.inf, 10**30, 10**9, 2**31,
         2**63, True, None, "1", "", "nan", b"1", [], [1], (1, 2), {}, 1j, np.float64("nan"),
         np.int64(2), np.float32(0.5),
         np.array(2), np.array([1.0]), np.bool_(True), np.datetime64("2020-01-01"), object(), 10**400, Ellipsis)
    )  # fmt: skip


def array(random: Random, n: int = 3) -> Any:
    """An array or what someone took for one."""
    good = np.full((n, n), 1.0 / n)
    entry = good.copy()
    entry[random.randrange(n), random.randrange(n)] = random.choice((math.nan, math.inf, -1.0, 1e308, 2.0, 0.0))
    return random.choice(
        (good, entry, entry, entry, good[0], good[:2], good[None], good.astype(complex), good.astype(object), [[1],
        [1, 2]],
         good.astype("U9"), np.zeros((0, 0)), np.zeros((0, 3)), np.eye(n), np.array(1.0), None, "x", [[None]], [["a"]],
         np.full((n, n), np.datetime64("2020-01-01")), np.ones((n, n), bool), np.full((n, n), 10**30, dtype=object))
    )  # fmt: skip


def json_value(random: Random, depth: int = 2) -> Any:
    kinds = ("number", "text", "null", "bool", "list", "dict")
    kind = random.choice(kinds if depth else kinds[:4])
    if kind == "number":
        return random.choice((0, -1, 1, 2, 3.5, 10**30, 1e308, -0.0))
    if kind == "list":
        return [json_value(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == "dict":
        return {
            random.choice(("a", "format", "", "é")): json_value(random, depth - 1) for _ in range(random.randrange(3))
        }
    return {"text": random.choice(TEXTS), "null": None, "bool": True}[kind]


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()

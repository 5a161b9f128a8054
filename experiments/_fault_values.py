"""Draws of malformed input: texts, names and options; numbers, arrays, JSON values and bytes with a fault."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

NUMBERS = (
    "0", "-1", "1", "2", "3", "nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "5e-324", "-0.0", "1e400", "0.5",
    "-0.5", "99999999999999999999", "1000000000", "true", "", "  ", "½", "\u0661", "0x10", "1_0", "1e5", "9" * 400,
    "2.5", "-1e-9", "1 ", "None", "1,2", "1;2", "NaN%", "+1", "1e-12", "0.999999999999", "1.0000000001", "2147483648",
    "-2147483649",
)  # fmt: skip
TEXTS = (
    "", " ", "é", "日本", "\x00", "a" * 3000, "../..", "/", "/nonexistent/x", "-", "--", "\udcff", "\ud800", "[bold]",
    "%s", "{0}", "#0", "#99", "#-1", "0", "None", ",", ",,", "=", "@", ":", "a=b", "\n", "\u202e", "nul", "~", "$HOME",
    "*", ".",
)  # fmt: skip
GRAPHS = (
    "ring:n=4", "ring:n=0", "ring:n=-1", "ring:n=99999999999", "ring:n=20000000", "ring", "ring:n=4,n=4", "ring:n=nan",
    "ring:n=1", "ring:n=2", "path:n=3", "star:n=4", "complete:n=3", "complete:n=1000000", "torus:n=4",
    "torus:rows=2,cols=2", "torus:n=5", "torus:rows=-1,cols=-1", "hypercube:dim=2", "hypercube:dim=99",
    "regular:n=4,degree=2,seed=0", "regular:n=4,degree=9", "regular:n=5,degree=3", "regular:n=4,degree=-2",
    "erdos-renyi:n=4,p=1", "erdos-renyi:n=4,p=nan", "erdos-renyi:n=4,p=0", "erdos-renyi:n=4,p=2",
    "erdos-renyi:n=4,p=1,seed=-1", "expander:n=4", "expander:n=3", "florentine", "florentine:n=3", "ego-facebook",
    "ring:", "ring:n", "ring:=4", "ring:n=4,", "ring:n=\uff14", "Ring:n=4", "ring :n=4",
    "regular:n=4,degree=2,seed=999999999999999999",
)  # fmt: skip
MECHANISMS = (
    "dp-dsgd", "mafalda", "d-mf", "bsr", "anti-pgd", "none", "cdp", "corn", "decor", "corn-pairwise", "zip-dl",
    "muffliato", "mafalda-l", "mafald", "mafalda@", "mafalda@last:0", "mafalda@last:1", "mafalda@last:99",
    "mafalda@last:nan", "mafalda@last:-1", "mafalda@last:1:-1", "mafalda@last:1:inf", "mafalda@exponential:0",
    "mafalda@exponential:1e-308", "mafalda@all/average", "mafalda@all/nobody", "mafalda@@", "bsr@all", "@", "file:",
    "file:nowhere.mfdl", "file:.", "file:\x00", "dp-dsgd,dp-dsgd", "none,", "mafalda@last:" + "9" * 500,
    "mafalda@exponential:" + "9" * 500,
)  # fmt: skip
TRUSTS = ("ldp", "pndp", "eavesdropper", "colluding", "coalitions", "full-collusion", "central", "released", "lpd")
NODES = (
    "0", "0,1", "1,1", "#0", "#9", "Medici", "0,,1", ",", "é", "0;1", "-1", "99999999999999999999", "#", "#x", "#-1",
)  # fmt: skip
SETTINGS = (
    "bandwidth=2", "bandwidth=0", "bandwidth=-1", "bandwidth=99", "bandwidth=nan", "gossip_rounds=2", "gossip_rounds=0",
    "sigma_ldp=1", "sigma_ldp=nan", "sigma_ldp=-1", "sigma_cor=0", "sigma=1", "sigma=inf", "sigma=0",
    "self_messages=true", "self_messages=maybe", "coalition_size=1", "coalition_size=99", "horizon=0", "horizon=3", "=",
    "x", "bandwidth", "bandwidth=", "Bandwidth=2", "bandwidth=2=3", "gossip_rounds=" + "9" * 30, "horizon=1000000000",
)  # fmt: skip
NAMES = (
    "post-average", "message", "dense", "autodiff", "newton", "conic", "record", "user", "replace-one", "zero-out",
    "add-remove", "average", "all", "none", "exact", "certified", "cyclic", "once-per-epoch", "every-step", "single",
    "min-separation", "metropolis-hastings", "uniform", "dirichlet:alpha=10", "dirichlet:alpha=nan",
    "dirichlet:alpha=1,min_records=0", "dirichlet:", "digits", "rotated-quadratics", "cpu", "cuda", "cuda:99",
    "housing", "mnist", "a9a", "last:1", "last:99", "exponential:0",
)  # fmt: skip
BASE = {
    "factorize": ["--graph", "ring:n=4", "--epochs", "2", "--period", "2"],
    "account": ["--graph", "ring:n=4", "--epochs", "2", "--period", "2", "--jobs", "1"],
    "compare": ["--graph", "ring:n=4", "--epochs", "1", "--period", "2", "--seeds", "1", "--mechanisms", "dp-dsgd"],
    "audit": ["--graph", "ring:n=3", "--epochs", "1", "--period", "2", "--mechanism", "dp-dsgd", "--trust", "ldp"],
    "attack": ["--graph", "ring:n=4", "--attackers", "0", "--steps", "3"],
}
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "factorize": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanism": MECHANISMS, "--epochs": NUMBERS, "--period": NUMBERS,
        "--counted-models": NAMES, "--tolerance": NUMBERS, "--solver": NAMES, "--max-iterations": NUMBERS,
        "--coalition": NUMBERS, "--groups": TEXTS, "--max-inverse-diagonal": NUMBERS, "--horizon": NUMBERS,
        "--device": NAMES, "--jobs": NUMBERS, "--out": (*TEXTS, "a.mfdl", "no/such/folder/b.mfdl"),
        "--config": TEXTS, "--json": (), "--largest-component": (), "--error-weights": NAMES, "--momentum": NUMBERS,
        "--weight-decay": NUMBERS, "--lr": NUMBERS,
    },
    "account": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanism": MECHANISMS, "--set": SETTINGS, "--trust": TRUSTS,
        "--attackers": NODES, "--colluders": NODES, "--coalition-size": NUMBERS, "--all-attackers": (),
        "--victims": NODES, "--epochs": NUMBERS, "--period": NUMBERS, "--participation": NAMES, "--steps": NUMBERS,
        "--noise-std": NUMBERS, "--noise-multiplier": NUMBERS, "--mu": NUMBERS, "--calibrate-under": TRUSTS,
        "--unit": NAMES, "--clip-norm": NUMBERS, "--adjacency": NAMES, "--delta": NUMBERS, "--lipschitz": NUMBERS,
        "--release": NAMES, "--bound": NAMES, "--json": (), "--jobs": ("0", "-1", "nan", "1"),
    },
    "compare": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanisms": MECHANISMS, "--task": NAMES, "--epochs": NUMBERS,
        "--period": NUMBERS, "--mu": NUMBERS, "--epsilon": NUMBERS, "--delta": NUMBERS, "--adjacency": NAMES,
        "--clip-norm": NUMBERS, "--unit": NAMES, "--trust": TRUSTS, "--attackers": NODES, "--colluders": NODES,
        "--coalition-size": NUMBERS, "--release": NAMES, "--across-trust-models": (), "--set": SETTINGS,
        "--partition": NAMES, "--error-weights": NAMES, "--lr": NUMBERS, "--momentum": NUMBERS,
        "--weight-decay": NUMBERS, "--seeds": NUMBERS, "--first-seed": NUMBERS, "--eval-every": NUMBERS,
        "--device": NAMES, "--jobs": ("0", "-1", "nan", "1"), "--json": (),
    },
    "audit": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanism": MECHANISMS, "--trust": TRUSTS, "--attackers": NODES,
        "--colluders": NODES, "--coalition-size": NUMBERS, "--epochs": NUMBERS, "--period": NUMBERS, "--steps": NUMBERS,
        "--participation": NAMES, "--unit": NAMES, "--noise-std": NUMBERS, "--mu": NUMBERS, "--clip-norm": NUMBERS,
        "--adjacency": NAMES, "--delta": NUMBERS, "--trials": NUMBERS, "--level": NUMBERS, "--seed": NUMBERS,
        "--out": TEXTS, "--config": TEXTS, "--json": (),
    },
    "attack": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanism": MECHANISMS, "--set": SETTINGS, "--trust": TRUSTS,
        "--attackers": NODES, "--colluders": NODES, "--steps": NUMBERS, "--gradients": NAMES, "--noise-std": NUMBERS,
        "--mu": NUMBERS, "--clip-norm": NUMBERS, "--adjacency": NAMES, "--release": NAMES, "--out": TEXTS,
        "--config": TEXTS, "--json": (), "--largest-component": (),
    },
}  # fmt: skip


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

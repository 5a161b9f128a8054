"""Malformed input for every door of the library, and the judge of how each door answers.

A case is drawn from a `random.Random`, so a seed repeats it and Hypothesis can shrink it. Most start from something
that works and spoil one to three places; what happens to be valid may succeed; sizes are small so that it ends soon.

In: a surface's name, a source of chance, an empty folder. Out: an `Outcome`: accepted, refused, stopped (a solver
before its tolerance), or one of FAULTS.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import signal
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import mfdl
from mfdl import check, data, download, error_weights, factorization, gossip, graphs, trust
from mfdl.algorithms import registry
from mfdl.cli import main
from mfdl.dynamics import Dynamics
from mfdl.mechanism import calibrate
from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Single
from mfdl.privacy import gaussian
from mfdl.reporting.comparison_config import ComparisonConfig
from mfdl.training import checkpoint, tasks
from mfdl.training.keys import NoiseKey, normals
from mfdl.training.replay import replay
from mfdl.training.tasks import partition

GOOD = ("accepted", "refused", "stopped")
FAULTS = ("traceback", "hang", "partial file", "no words", "wrong code")
SECONDS = 30.0  # of one case; the slowest valid one takes a tenth of it on an idle core

NUMBERS = (
    "0", "-1", "1", "2", "3", "nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "5e-324", "-0.0", "1e400", "0.5",
    "-0.5",
    "99999999999999999999", "1000000000", "true", "", "  ", "½", "\u0661", "0x10", "1_0", "1e5", "9" * 400, "2.5",
    "-1e-9",
    "1 ", "None", "1,2", "1;2", "NaN%", "+1", "1e-12", "0.999999999999", "1.0000000001", "2147483648", "-2147483649",
)  # fmt: skip
TEXTS = (
    "", " ", "é", "日本", "\x00", "a" * 3000, "../..", "/", "/nonexistent/x", "-", "--", "\udcff", "\ud800", "[bold]",
    "%s",
    "{0}", "#0", "#99", "#-1", "0", "None", ",", ",,", "=", "@", ":", "a=b", "\n", "\u202e", "nul", "~", "$HOME", "*",
    ".",
)  # fmt: skip
GRAPHS = (
    "ring:n=4", "ring:n=0", "ring:n=-1", "ring:n=99999999999", "ring:n=20000000", "ring", "ring:n=4,n=4", "ring:n=nan",
    "ring:n=1", "ring:n=2", "path:n=3", "star:n=4", "complete:n=3", "complete:n=1000000", "torus:n=4",
    "torus:rows=2,cols=2",
    "torus:n=5", "torus:rows=-1,cols=-1", "hypercube:dim=2", "hypercube:dim=99", "regular:n=4,degree=2,seed=0",
    "regular:n=4,degree=9", "regular:n=5,degree=3", "regular:n=4,degree=-2", "erdos-renyi:n=4,p=1",
    "erdos-renyi:n=4,p=nan",
    "erdos-renyi:n=4,p=0", "erdos-renyi:n=4,p=2", "erdos-renyi:n=4,p=1,seed=-1", "expander:n=4", "expander:n=3",
    "florentine",
    "florentine:n=3", "ego-facebook", "ring:", "ring:n", "ring:=4", "ring:n=4,", "ring:n=\uff14", "Ring:n=4",
    "ring :n=4",
    "regular:n=4,degree=2,seed=999999999999999999",
)  # fmt: skip
MECHANISMS = (
    "dp-dsgd", "mafalda", "d-mf", "bsr", "anti-pgd", "none", "cdp", "corn", "decor", "corn-pairwise", "zip-dl",
    "muffliato",
    "mafalda-l", "mafald", "mafalda@", "mafalda@last:0", "mafalda@last:1", "mafalda@last:99", "mafalda@last:nan",
    "mafalda@last:-1", "mafalda@last:1:-1", "mafalda@last:1:inf", "mafalda@exponential:0", "mafalda@exponential:1e-308",
    "mafalda@all/average", "mafalda@all/nobody", "mafalda@@", "bsr@all", "@", "file:", "file:nowhere.npz", "file:.",
    "file:\x00", "dp-dsgd,dp-dsgd", "none,", "mafalda@last:" + "9" * 500, "mafalda@exponential:" + "9" * 500,
)  # fmt: skip
TRUSTS = ("ldp", "pndp", "eavesdropper", "colluding", "coalitions", "full-collusion", "central", "released", "lpd")
NODES = (
    "0",
    "0,1",
    "1,1",
    "#0",
    "#9",
    "Medici",
    "0,,1",
    ",",
    "é",
    "0;1",
    "-1",
    "99999999999999999999",
    "#",
    "#x",
    "#-1",
)
SETTINGS = (
    "bandwidth=2", "bandwidth=0", "bandwidth=-1", "bandwidth=99", "bandwidth=nan", "gossip_rounds=2", "gossip_rounds=0",
    "sigma_local=1", "sigma_local=nan", "sigma_local=-1", "sigma_pair=0", "sigma=1", "sigma=inf", "sigma=0",
    "self_messages=true", "self_messages=maybe", "coalition_size=1", "coalition_size=99", "horizon=0", "horizon=3", "=",
    "x", "bandwidth", "bandwidth=", "Bandwidth=2", "bandwidth=2=3", "gossip_rounds=" + "9" * 30, "horizon=1000000000",
)  # fmt: skip
NAMES = ("post-average", "message", "dense", "autodiff", "newton", "conic", "record", "user", "replace-one", "zero-out",
         "add-remove", "average", "all", "none", "exact", "certified", "cyclic", "once-per-epoch", "every-step",
         "single",
         "min-separation", "metropolis-hastings", "uniform", "dirichlet:alpha=10", "dirichlet:alpha=nan",
         "dirichlet:alpha=1,min_records=0", "dirichlet:", "digits", "rotated-quadratics", "cpu", "cuda", "cuda:99",
         "housing", "mnist", "a9a", "last:1", "last:99", "exponential:0")  # fmt: skip

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
        "--objective": NAMES, "--tolerance": NUMBERS, "--solver": NAMES, "--max-iterations": NUMBERS,
        "--coalition": NUMBERS,
        "--groups": TEXTS, "--max-inverse-diagonal": NUMBERS, "--horizon": NUMBERS, "--device": NAMES,
        "--jobs": NUMBERS,
        "--out": (*TEXTS, "a.npz", "no/such/folder/b.npz", "a.npy"), "--config": TEXTS, "--json": (),
        "--largest-component": (), "--error-weights": NAMES, "--momentum": NUMBERS, "--weight-decay": NUMBERS,
        "--lr": NUMBERS,
    },
    "account": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanism": MECHANISMS, "--set": SETTINGS, "--trust": TRUSTS,
        "--attackers": NODES, "--colluders": NODES, "--coalition-size": NUMBERS, "--all-attackers": (),
        "--victims": NODES,
        "--epochs": NUMBERS, "--period": NUMBERS, "--participation": NAMES, "--steps": NUMBERS, "--noise-std": NUMBERS,
        "--noise-multiplier": NUMBERS, "--mu": NUMBERS, "--calibrate-under": TRUSTS, "--unit": NAMES,
        "--clip-norm": NUMBERS,
        "--adjacency": NAMES, "--delta": NUMBERS, "--lipschitz": NUMBERS, "--release": NAMES, "--bound": NAMES,
        "--json": (),
        "--jobs": ("0", "-1", "nan", "1"),
    },
    "compare": {
        "--graph": GRAPHS, "--gossip": NAMES, "--mechanisms": MECHANISMS, "--task": NAMES, "--epochs": NUMBERS,
        "--period": NUMBERS, "--mu": NUMBERS, "--epsilon": NUMBERS, "--delta": NUMBERS, "--adjacency": NAMES,
        "--clip-norm": NUMBERS, "--unit": NAMES, "--trust": TRUSTS, "--attackers": NODES, "--colluders": NODES,
        "--coalition-size": NUMBERS, "--release": NAMES, "--across-trust-models": (), "--set": SETTINGS,
        "--partition": NAMES,
        "--error-weights": NAMES, "--lr": NUMBERS, "--momentum": NUMBERS, "--weight-decay": NUMBERS, "--seeds": NUMBERS,
        "--first-seed": NUMBERS, "--eval-every": NUMBERS, "--device": NAMES, "--jobs": ("0", "-1", "nan", "1"),
        "--json": (),
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


class _TooLong(BaseException):
    """Not an Exception, so that nothing of the library takes it for one of its own."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a door answered; `detail` is what it said, or the traceback."""

    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


def run_case(surface: str, random: Random, folder: Path, seconds: float = SECONDS) -> Outcome:
    """Draws one case of a surface, tries it in an empty folder and judges what happened there."""
    with _confined(folder):
        act = SURFACES[surface](random, folder)
        before = _content(folder)
        outcome = _judged(act, seconds)
        return _check_files(folder, before, outcome) if outcome.good else outcome


def _judged(act: Callable[[], Outcome | None], seconds: float) -> Outcome:
    def too_long(*_: object) -> None:
        raise _TooLong

    earlier = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again: a callback of the garbage collector swallows one
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning of numpy is a case nobody thought of
            return act() or Outcome("accepted")
    except mfdl.InvalidInput as error:
        return Outcome("refused", str(error)) if len(str(error)) > 15 else Outcome("no words", repr(error))
    except factorization.NotConverged as error:
        return Outcome("stopped", str(error))
    except _TooLong:
        return Outcome("hang", f"more than {seconds:g} s: {''.join(traceback.format_exc()[-1500:])}")
    except BaseException as error:  # SystemExit too: the judge decides, and goes on
        if isinstance(error, KeyboardInterrupt):
            raise
        return Outcome("traceback", traceback.format_exc()[-3000:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


@contextlib.contextmanager
def _confined(folder: Path) -> Iterator[None]:
    """In the folder, without a network, and with an empty data folder."""

    def no_network(url: str, target: Path) -> None:
        raise download.NotDelivered("there is no network here")

    earlier, fetched, home = Path.cwd(), download.download, os.environ.get(data.ENVIRONMENT_VARIABLE)
    os.chdir(folder)
    download.download = no_network
    os.environ[data.ENVIRONMENT_VARIABLE] = str(folder / "data")
    try:
        yield
    finally:
        os.chdir(earlier)
        download.download = fetched
        if home is None:
            del os.environ[data.ENVIRONMENT_VARIABLE]
        else:
            os.environ[data.ENVIRONMENT_VARIABLE] = home


def command(arguments: list[str]) -> Outcome:
    """`mfdl ARGUMENTS` in this process, with streams as strict as a terminal's."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors=errors) for errors in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
        out.flush()
        err.flush()
    said = err.buffer.getvalue().decode("utf-8").strip()  # type: ignore[attr-defined]
    called = f"mfdl {' '.join(arguments)!a}: {said}"
    if code == 0:
        return Outcome("accepted", called)
    last = said.splitlines()[-1] if said else ""
    if code in (2, 3) and "Traceback" in said:
        return Outcome("traceback", called)
    if code == 3:
        return Outcome("stopped", called)
    if code != 2:
        return Outcome("wrong code", f"{code}: {called}")
    if not last.startswith("mfdl: ") or len(last) < 20:
        return Outcome("no words", called)
    return Outcome("refused", called)


# ---- what is left in the folder --------------------------------------------------------------------------------


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _check_files(folder: Path, before: dict[str, bytes], outcome: Outcome) -> Outcome:
    after = _content(folder)
    for name, content in after.items():
        if before.get(name) != content and not whole(name, content):
            return Outcome("partial file", f"{name} ({len(content)} bytes) after: {outcome.detail}")
    gone = set(before) - set(after)
    if outcome.kind == "refused" and gone:
        return Outcome("partial file", f"{sorted(gone)[0]} is gone after: {outcome.detail}")
    return outcome


def whole(name: str, content: bytes) -> bool:
    """Whether a file the library wrote can be read to its end."""
    suffix = Path(name).suffix
    try:
        if suffix == ".json":
            json.loads(content)
        elif suffix == ".npz":
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                for array in arrays.files:
                    arrays[array]
        elif suffix == ".png":
            return content.endswith(b"IEND\xaeB`\x82")
        elif suffix == ".svg":
            return content.rstrip().endswith(b"</svg>")
        elif suffix == ".csv":
            return content.endswith(b"\n")
        elif suffix == ".parquet":
            import pyarrow.parquet as pq

            pq.read_table(io.BytesIO(content))
        elif suffix == ".safetensors":
            import safetensors.torch

            safetensors.torch.load(content)
        else:
            return False  # .tmp, and whatever nobody should have written
    except Exception:
        return False
    return True


# ---- values and bytes ------------------------------------------------------------------------------------------


def spoilt(random: Random, content: bytes) -> bytes:
    """The bytes with one thing wrong: cut, flipped, filled in, swapped for garbage."""
    how = random.choice(("cut", "flip", "insert", "empty", "garbage", "double", "nul", "bom", "latin", "lines"))
    if how == "cut":
        return content[: random.randrange(len(content) + 1)]
    if how == "flip" and content:
        at = random.randrange(len(content))
        return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]
    if how == "insert":
        at = random.randrange(len(content) + 1)
        return content[:at] + random.choice(TEXTS + NUMBERS).encode("utf-8", "surrogatepass") + content[at:]
    if how == "garbage":
        return random.randbytes(random.randrange(200))
    if how == "double":
        return content + content
    if how == "lines":
        return content.replace(b"\n", random.choice((b"\r", b"\r\n", b"", b"\n\n")))
    return {"nul": b"\0" + content, "bom": b"\xef\xbb\xbf" + content, "latin": b"\xe9" + content}.get(how, b"")


def place(random: Random, path: Path, content: bytes) -> Path:
    """The file, or a folder, a dangling link or nothing in its place."""
    how = random.random()
    if how < 0.02:
        path.mkdir()
    elif how < 0.04:
        path.symlink_to("nowhere")
    elif how > 0.06:
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


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


# ---- surfaces: each draws a case and returns what to try ----------------------------------------------------------


def _flags(name: str) -> Callable[[Random, Path], Callable[[], Outcome]]:
    """The options of one command, one to three of them spoilt."""

    def drawn(random: Random, folder: Path) -> Callable[[], Outcome]:
        arguments = [name, *BASE[name]]
        if name == "compare":
            arguments += ["--out", "out"]
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            flag = random.choice(list(OPTIONS[name]))
            allowed = OPTIONS[name][flag]
            arguments.append(flag)
            if allowed:
                arguments.append(random.choice(allowed if random.random() < 0.8 else TEXTS + NUMBERS))
        if random.random() < 0.1:
            arguments.insert(random.randrange(1, len(arguments) + 1), random.choice(TEXTS))
        if random.random() < 0.05:
            arguments.pop(random.randrange(1, len(arguments)))
        return lambda: command(arguments)

    return drawn


def _names(random: Random, folder: Path) -> Callable[[], Outcome]:
    words = ("mechanisms", "trust", "data", "list", "explain", "fetch", "--json", "--all", "--data-home", "--help",
    "--version",
             "facebook", "mnist", *TRUSTS, *TEXTS)  # fmt: skip
    arguments = [random.choice(words) for _ in range(random.randrange(1, 5))]
    return lambda: command(arguments)


def _config(random: Random, folder: Path) -> Callable[[], Outcome]:
    """--config: TOML of options, or the results.json of an earlier call."""
    name = random.choice(tuple(BASE))
    flags = list(OPTIONS[name])
    values = {flag.lstrip("-"): json_value(random) for flag in random.choices(flags, k=random.randrange(1, 4))}
    if random.random() < 0.5:
        path = folder / "results.json"
        content = _dumped({"config": values} if random.random() < 0.8 else json_value(random))
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


def _graph_file(random: Random, folder: Path) -> Callable[[], Outcome]:
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


def _gossip_file(random: Random, folder: Path) -> Callable[[], Outcome]:
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


_VALID: dict[str, dict[str, Any]] = {}


def _valid_arrays(kind: str) -> dict[str, Any]:
    """The arrays of a factorization file that works, made once."""
    if "t" not in _VALID:
        dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"))
        temporal = factorization.factorize(dynamics, Cyclic(epochs=2, period=2))
        spatial = factorization.optimal_covariance(dynamics)
        import tempfile

        with tempfile.TemporaryDirectory() as kept:
            header = {"participation": Cyclic(epochs=2, period=2).to_dict()}
            factorization.save(Path(kept) / "t.npz", temporal, grams=np.eye(4), header=header)
            factorization.save_spatial(Path(kept) / "s.npz", spatial, header={})
            for name in "ts":
                with np.load(Path(kept) / f"{name}.npz") as arrays:
                    _VALID[name] = {key: arrays[key] for key in arrays.files}
    return dict(_VALID[kind])


def _factorization_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    kind = random.choice("ts")
    arrays = _valid_arrays(kind)
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


def _groups_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    value = random.choice(([[0, 1], [1, 2]], [[0, 1], json_value(random)], [json_value(random)], json_value(random),
    [[]],
                           [[0, 0]], [[0, 99]], [[True, 1]], [["0", "1"]], [[0.0]]))  # fmt: skip
    content = _dumped(value) if random.random() < 0.97 else b"[" * 100_000
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
    return calibrate(algorithm, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0), task


def _linear() -> torch.nn.Module:
    return torch.nn.Linear(3, 1)


def _squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.squeeze() - target).square()


def _checkpoint_file(random: Random, folder: Path) -> Callable[[], Outcome]:
    mechanism, task = small_training()
    run = folder / "run"
    replay(mechanism, task, seeds=[0], stop_after=3, checkpoint_folder=run)
    place_of = run / "seed-0"
    pointer = place_of / checkpoint.POINTER
    (tensors,) = place_of.glob("*.safetensors")
    content = json.loads(pointer.read_text())
    how = random.randrange(5)
    if how == 0:
        tensors.write_bytes(spoilt(random, tensors.read_bytes()))
    elif how == 1:
        pointer.write_bytes(spoilt(random, pointer.read_bytes()))
    elif how == 2:
        content[random.choice(list(content))] = json_value(random)
        pointer.write_bytes(_dumped(content) if random.random() < 0.95 else b"[" * 100_000)
    elif how == 3:  # a whole checkpoint, but not of this run
        metadata = content["metadata"]
        key = random.choice(list(metadata))
        metadata[key] = json_value(random)
        if random.random() < 0.3:
            del metadata[key]
        found = checkpoint.load(place_of)
        models = dict(found.models)
        name = random.choice(list(models))
        models[name] = random.choice(
            (torch.zeros(0), models[name][:1], models[name].reshape(-1), models[name] * math.nan)
        )
        if random.random() < 0.3:
            del models[name]
        with contextlib.suppress(mfdl.InvalidInput):  # metadata that no file can hold
            checkpoint.save(place_of, step=random.choice((3, 0, 4, 99, 10**12)), models=models, metadata=metadata)
    else:
        target = random.choice((pointer, tensors))
        target.unlink()
        place(random, target, b"")
    return lambda: (replay(mechanism, task, seeds=[0], checkpoint_folder=run), None)[1]


def _compare_folder(random: Random, folder: Path) -> Callable[[], Outcome]:
    """A results folder that was tampered with, and the same command again."""
    arguments = ["compare", *BASE["compare"], "--out", "out"]
    out = folder / "out"
    kept = _finished_comparison(arguments)
    out.mkdir()
    for name, content in kept.items():
        (out / name).write_bytes(content)
    for _ in range(random.choice((1, 2))):
        target = out / random.choice(list(kept))
        if target.is_dir() or not target.exists():
            continue
        content = target.read_bytes()
        if target.suffix == ".json" and random.random() < 0.7:
            found = json.loads(content)
            if isinstance(found, dict) and found:
                found[random.choice([*found, "runs", "runs"])] = json_value(random)
                if isinstance(found.get("runs"), list) and random.random() < 0.3:
                    found["runs"] = [json_value(random)]
            target.write_bytes(_dumped(found))
        else:
            target.unlink()
            place(random, target, spoilt(random, content))
    more = ["--overwrite"] if random.random() < 0.3 else []
    return lambda: command([*arguments, *more])


def _finished_comparison(arguments: list[str]) -> dict[str, bytes]:
    if "compare" not in _VALID:
        import tempfile

        with tempfile.TemporaryDirectory() as kept:
            done = command([*arguments[:-1], kept])
            assert done.kind == "accepted", done.detail
            _VALID["compare"] = {path.name: path.read_bytes() for path in Path(kept).iterdir()}
    return dict(_VALID["compare"])


def _api(random: Random, folder: Path) -> Callable[[], Any]:
    """A public constructor or function with numbers of any kind."""
    a, b, c = (number(random) for _ in range(3))
    W = gossip.metropolis_hastings("ring:n=4")
    text = random.choice(TEXTS + NUMBERS + GRAPHS + MECHANISMS + SETTINGS + NAMES)
    small = random.choice((1, 2, 3))
    fields: dict[str, Any] = {
        random.choice([f.name for f in dataclasses.fields(ComparisonConfig)]): random.choice((a, text, (text,)))
    }
    calls: tuple[Callable[[], Any], ...] = (
        lambda: Cyclic(epochs=a, period=small),
        lambda: Cyclic(epochs=a, period=b, steps=c),
        lambda: EveryStep(a),
        lambda: Single(a),
        lambda: OncePerEpoch(epochs=a, period=small),
        lambda: MinSeparation(steps=a, max_participations=b, separation=c),
        lambda: Explicit(a, b),
        lambda: Dynamics(W, a, momentum=b if random.random() < 0.5 else 0.0),
        lambda: Dynamics(W, 0.1, weight_decay=a, gossip_rounds=small),
        lambda: Dynamics(W, 0.1, gossip_rounds=a),
        lambda: gossip.from_array(array(random)),
        lambda: gossip.from_array(array(random, 4), "ring:n=4"),
        lambda: gossip.load(random.choice((text, a)), "ring:n=4"),
        lambda: graphs.load(random.choice((text, a))),
        lambda: error_weights.ErrorWeights.parse(text).of_steps(4),
        lambda: error_weights.ErrorWeights(random.choice((a, [a, b])), random.choice(("nodes", "average", a, [a]))),
        lambda: gaussian.record_shift(random.choice(("zero-out", "replace-one", text)), a),
        lambda: gaussian.epsilon_from_mu(a, b),
        lambda: gaussian.epsilon_from_mu(a, 1e-6),
        lambda: gaussian.mu_from_epsilon(a, b),
        lambda: gaussian.mu_from_epsilon(1.0, a),
        lambda: gaussian.noise_std(a, b, c),
        lambda: registry.check_name(text),
        lambda: registry.parse_parameters(random.choice(MECHANISMS), [text]),
        lambda: trust.named(random.choice((*TRUSTS, text)), attackers=a, colluders=b, coalition_size=c),
        lambda: trust.named("coalitions", coalition_size=a),
        lambda: trust.named("pndp", attackers=random.choice((a, [a], [text]))),
        lambda: NoiseKey.from_seed(a),
        lambda: NoiseKey(a),
        lambda: NoiseKey.from_seed(0).derive(a),
        lambda: normals(NoiseKey.from_seed(0), a if a not in (10**9,) else 1, [0], 2),
        lambda: normals(NoiseKey.from_seed(0), 0, random.choice((a, [a])), 2),
        lambda: partition.parse(text),
        lambda: check.finite_array(2, value=array(random)),
        lambda: check.square_array(value=array(random)),
        lambda: check.integer_at_least(1, value=a),
        lambda: check.positive(value=a),
        lambda: check.non_negative(value=a),
        lambda: check.open_unit(value=a),
        lambda: ComparisonConfig(**fields),
        lambda: factorization.factorize(Dynamics(W), Cyclic(epochs=1, period=2), tolerance=a),
        lambda: factorization.optimal_covariance(Dynamics(W), max_inverse_diagonal=a, horizon=1),
        lambda: factorization.optimal_covariance(Dynamics(W), coalition_size=a),
        lambda: checkpoint.save(folder / "c", step=a, models={}, metadata={"x": b}),
        lambda: _calibrated(random, a, b),
        lambda: _replayed(random, a, folder),
    )
    call = random.choice(calls)
    return lambda: (call(), None)[1]


def _calibrated(random: Random, a: Any, b: Any) -> Any:
    algorithm = registry.build("dp-dsgd", Dynamics(gossip.metropolis_hastings("ring:n=4")), EveryStep(2))
    arguments: dict[str, Any] = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "mu": 1.0}
    arguments[random.choice(("mu", "clip_norm", "adjacency", "trust", "unit", "release", "lipschitz", "method"))] = a
    return calibrate(algorithm, **arguments)


def _replayed(random: Random, a: Any, folder: Path) -> Any:
    mechanism, task = small_training()
    arguments: dict[str, Any] = {"seeds": [0], "stop_after": 2}
    name = random.choice(("seeds", "key", "period", "eval_every", "stop_after"))
    arguments[name] = a
    return replay(mechanism, task, **arguments)


RARE = {"folders of mfdl compare": 8, "checkpoints": 2, "mfdl compare": 2}
"""Surfaces whose valid cases train, and so get one case where others get this many."""

SURFACES: dict[str, Callable[[Random, Path], Callable[[], Any]]] = {
    "mfdl factorize": _flags("factorize"),
    "mfdl account": _flags("account"),
    "mfdl compare": _flags("compare"),
    "mfdl audit": _flags("audit"),
    "mfdl attack": _flags("attack"),
    "mfdl mechanisms, trust, data": _names,
    "--config files": _config,
    "graph files": _graph_file,
    "gossip files": _gossip_file,
    "factorization files": _factorization_file,
    "groups files": _groups_file,
    "checkpoints": _checkpoint_file,
    "folders of mfdl compare": _compare_folder,
    "public API": _api,
}

ORDER = tuple(name for turn in range(8) for name in SURFACES if turn % RARE.get(name, 1) == 0)
"""Surfaces of the numbered cases, over and over."""

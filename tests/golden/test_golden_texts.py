"""Answers and help of every command, statements of guarantees, and the modules that each start loads."""

import json
import re
import subprocess
import sys

import pytest
from _cases import TRUST, fixed, mfdl_prints
from _privacy import applied
from _stored import compare
from test_golden_help import commands, help_of
from vocabulary import ZERO_OUT

from mfdl import Privacy, calibrate, data, losses
from mfdl.privacy import MonteCarlo

SMALL = ("--graph", "path:n=3", "--epochs", "2", "--period", "2")
BINS = ("--participation", "balls-in-bins", "--epsilon", "4", "--delta", "1e-6", "--adjacency", "zero-out")
TRAINED = ("--mechanism", "dp-dsgd", "--lr", "0.1", "--seeds", "1")
CALLS = {
    "account": ("account", *SMALL, "--mechanism", "dp-dsgd", "--trust", "pndp", "--attackers", "0"),
    "account, balls-in-bins": ("account", *SMALL, "--mechanism", "dp-dsgd", *BINS),
    "attack": ("attack", "--graph", "path:n=3", "--steps", "2", "--attackers", "0"),
    "audit": ("audit", *SMALL, "--mechanism", "dp-dsgd", "--trust", "ldp", "--trials", "100"),
    "audit, balls-in-bins": ("audit", *SMALL, *BINS, "--mechanism", "dp-dsgd", "--trust", "ldp", "--trials", "300"),
    "claims": ("claims", "--only", "gdp-composition", "--examples", "1", "--jobs", "1"),
    "compare": ("compare", *SMALL, *TRAINED, "--out", "compared"),
    "data fetch": ("data", "fetch", "libsvm/a9a", "--data-home", "home"),
    "data inspect": ("data", "inspect", "own.csv:target=price,kind=regression", "--graph", "path:n=3"),
    "graph inspect": ("graph", "inspect", "own.edges"),
    "data list": ("data", "list", "--data-home", "home"),
    "factorize": ("factorize", *SMALL, "--mechanism", "mafalda"),
    "factorize, balls-in-bins": ("factorize", *SMALL, "--mechanism", "mafalda-bins", *BINS),
    "factorize, over nodes": ("factorize", *SMALL[:2], "--mechanism", "corn"),
    "factorize, over time and nodes": ("factorize", *SMALL, "--mechanism", "kronecker"),
    "mechanisms": ("mechanisms",),
    "mechanisms, cited": ("mechanisms", "--cite"),
    "plan": (
        "plan", *SMALL[:2], *("--records", "9", "--mu", "1", "--batches", "1", "--epochs", "2"), "--curvature",
        "power:1",
    ),
    "report": ("report", "compared"),
    "reproduce": ("reproduce", "whisper-tables", "--quick", "--out", "reproduced"),
    "reproduce, listed": ("reproduce", "--list"),
    "sweep": ("sweep", "sweep.toml", "--out", "swept", "--jobs", "1"),
    "sweep, status": ("sweep", "--status", "swept"),
    "trust explain": ("trust", "explain", "pndp"),
    "trust list": ("trust", "list"),
}  # fmt: skip
SWEEP = 'graph = "path:n=3"\nepochs = 2\nperiod = 2\nseeds = 1\nmechanisms = ["dp-dsgd"]\nlr = [0.1]\nmu = [1]\n'


def structure(value):
    """Keys of objects, the kinds of what lists hold, and the kind of everything else."""
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    if isinstance(value, list):
        kinds = {json.dumps(structure(item), sort_keys=True) for item in value}
        return [json.loads(kind) for kind in sorted(kinds)]
    kinds = {bool: "yes or no", str: "text", type(None): "null"}
    return kinds.get(type(value), "number")


def test_keys_of_every_answer(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "fetch", lambda name, home: tmp_path / name)  # no download in a test
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "own.csv").write_text("age,price\n" + "".join(f"{row},{row / 4}\n" for row in range(30)))
    (tmp_path / "own.edges").write_text("a b\nb c\n")
    values = {}
    for name, arguments in CALLS.items():
        code, out = mfdl_prints(*arguments, "--json")
        assert out, f"mfdl {' '.join(arguments)} --json answers nothing (exit code {code})"
        values[name] = structure(json.loads(out))
    compare("answers", values)


def test_every_command_with_json_is_called():
    called = {tuple(name.partition(",")[0].split()) for name in CALLS}
    able = {command for command in commands() if any(line.startswith("  --json ") for line in help_of(command))}
    assert able == called


def at_mu_1(name, scheme, trust, **changes):
    return applied(calibrate, fixed(name, scheme), {"trust": TRUST[trust], **ZERO_OUT, "mu": 1.0, **changes}).guarantee


def with_noise(name, scheme, trust, **changes):
    privacy = Privacy(TRUST[trust], **ZERO_OUT, **changes)
    return calibrate(fixed(name, scheme), privacy, noise_std=2.0).guarantee


def of_victim(victim, **changes):
    question = Privacy(TRUST["pndp"], **changes, **ZERO_OUT)
    return losses(fixed("dp-dsgd", "cyclic"), question).by_victim(2.0)[victim]


def guarantees():
    public = at_mu_1("dp-dsgd", "cyclic", "ldp")
    bins = with_noise("dp-dsgd", "balls-in-bins", "ldp")
    lipschitz = of_victim(2, lipschitz=1.0)
    budgets = dict(enumerate((1.0, 0.5, 2.0, 1.0)))
    return {
        "public, exact": public,
        "public, epsilon": at_mu_1("bsr", "cyclic", "ldp", mu=None, epsilon=4.0, delta=1e-6),
        "public, infinite": with_noise("none", "cyclic", "ldp"),
        "public, replace-one": at_mu_1("anti-pgd", "once-per-epoch", "ldp", adjacency="replace-one"),
        "public, by node": at_mu_1("dp-dsgd", "by-node", "ldp"),
        "PNDP": at_mu_1("muffliato", "cyclic", "pndp"),
        "PNDP of one victim, which rests on a Lipschitz constant": lipschitz,
        "Eavesdropper": at_mu_1("decor", "cyclic", "eavesdropper"),
        "Colluding": at_mu_1("decor", "cyclic", "colluding"),
        "FullCollusion, shared noise counts as known": at_mu_1("decor", "cyclic", "full-collusion"),
        "central": at_mu_1("cdp", "cyclic", "central"),
        "released": at_mu_1("dp-dsgd", "cyclic", "released"),
        "of a user": at_mu_1("bsr", "every-step", "ldp", unit="user"),
        "budgets of nodes": at_mu_1("dp-dsgd", "cyclic", "ldp", mu=budgets),
        "Poisson": with_noise("dp-dsgd", "poisson", "ldp"),
        "balls-in-bins, certified": bins,
        "balls-in-bins, correlated over time": with_noise("mafalda-bins", "balls-in-bins", "ldp"),
        "balls-in-bins, Monte Carlo": with_noise("bsr", "balls-in-bins", "ldp", method=MonteCarlo(16384, seed=3)),
        "composed, public": public.compose_with(at_mu_1("bsr", "single", "ldp", mu=0.5)),
        "composed, PNDP of one victim, which rests on a Lipschitz constant": lipschitz.compose_with(lipschitz),
        "composed, balls-in-bins": bins.compose_with(bins),
        "composed, mixed": bins.compose_with(public),
    }


def test_guarantees_as_dictionaries():
    compare("guarantees", {name: _fields(guarantee) for name, guarantee in guarantees().items()}, relative=1e-9)


def _fields(guarantee):
    fields = guarantee.to_dict()
    if re.fullmatch("[0-9a-f]{16}", fields["seal"]):
        fields["seal"] = "16 hex digits"
    return fields | ({"tolerance": "below 1e-9"} if fields.get("tolerance", 1.0) < 1e-9 else {})


HEAVY = (
    "cvxpy", "flint", "joblib", "matplotlib", "networkx", "numpy", "pandas", "pyarrow", "rich", "scipy", "scipy.fft",
    "scipy.optimize", "scipy.spatial", "sklearn", "sympy", "torch", "torch._dynamo",
)  # fmt: skip
STARTS = {
    "import mfdl": "import mfdl",
    **{
        f"mfdl {words}": f"from mfdl.commands import main; main({words.split()!r})"
        for words in ("--version", "--help", "account --help", "account", "graph inspect sites.edges")
    },
}
TRAINING = """
import mfdl
W = mfdl.gossip.metropolis_hastings("ring:n=4")
privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0)
mechanism = mfdl.calibrate(mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.1), mfdl.Cyclic(2, 1)), privacy, mu=1.0)
for task in (mfdl.tasks.load("logistic:dimension=3,train_records=40", 4), mfdl.tasks.least_squares(4, dimension=3)):
    mfdl.replay(mechanism, task, seeds=[0], progress=False)
"""
STARTS["training"] = TRAINING
CODE = f"""
import contextlib, io, json, sys
before = set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()):
    exec(sys.argv[1])
new = set(sys.modules) - before
ours = sorted(name for name in new if name.split(".")[0].startswith("mfdl"))
print(json.dumps({{"modules": ours, "heavy": [name for name in {HEAVY!r} if name in new]}}))
"""


def test_what_each_start_loads(tmp_path):
    (tmp_path / "sites.edges").write_text("a b\nb c\n", encoding="utf-8")
    loaded = {}
    for start, code in STARTS.items():
        ran = [sys.executable, "-c", CODE, code]
        done = subprocess.run(ran, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        loaded[start] = json.loads(done.stdout)
    heavy = {start: " ".join(each["heavy"]) for start, each in loaded.items()}
    compare("imports", {"modules of import mfdl": loaded["import mfdl"]["modules"], "heavy": heavy})

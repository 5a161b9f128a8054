"""The JSON answer of every command: its keys, and what kind of value stands under each."""

import json

import pytest
from _cases import mfdl_prints
from _stored import compare
from test_golden_help import commands, help_of

import mfdl

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
        "plan",
        *SMALL[:2],
        *("--records", "9", "--mu", "1", "--batches", "1", "--epochs", "2"),
        "--curvature",
        "power:1",
    ),
    "report": ("report", "compared"),
    "reproduce": ("reproduce", "whisper-tables", "--quick", "--out", "reproduced"),
    "reproduce, listed": ("reproduce", "--list"),
    "sweep": ("sweep", "sweep.toml", "--out", "swept", "--jobs", "1"),
    "sweep, status": ("sweep", "--status", "swept"),
    "trust explain": ("trust", "explain", "pndp"),
    "trust list": ("trust", "list"),
}
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
    monkeypatch.setattr(mfdl.data, "fetch", lambda name, home: tmp_path / name)  # no download in a test
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

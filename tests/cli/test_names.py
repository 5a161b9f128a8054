"""`mfdl mechanisms` and `mfdl trust`: the names the other commands take, in one list that is true."""

import inspect
import json
import re

from mfdl import Dynamics, algorithms, gossip, trust
from mfdl.algorithms.registry import MECHANISMS, OF_SECRET_BINS
from mfdl.cli import main
from mfdl.cli.names import TRUST
from mfdl.participation import EveryStep

EVERY = {**MECHANISMS, **OF_SECRET_BINS}


def test_mechanisms_as_json_are_the_registry(capsys):
    assert main(["mechanisms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(EVERY)
    for row in rows:
        assert set(row) == {"name", "summary", "trust", "paper", "erratum", "models", "parameters"}
    parameters = {row["name"]: row["parameters"] for row in rows}
    assert parameters["decor"] == {"sigma_local": "float", "sigma_pair": "float"}
    assert parameters["zip-dl"]["self_messages"] == "bool"


def test_mechanisms_as_a_table(capsys):
    assert main(["mechanisms"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for name in EVERY:
        assert name in said.out
    assert "file:FILE" in said.out


def test_trust_names_are_those_of_the_library():
    assert list(TRUST) == list(trust.MODELS)


def test_trust_table_says_what_the_module_says():
    rows = re.findall(r"^\| (?!model|---)(.+) \|$", inspect.getdoc(trust) or "", re.MULTILINE)
    assert len(rows) == len(TRUST)
    for row, one in zip(rows, TRUST.values(), strict=True):
        _, seen, gradients, noise = (cell.strip() for cell in row.split("|"))
        assert (seen, gradients, noise) == (one.seen, one.gradients_known, one.noise_known)


def test_trust_says_where_released_models_count():
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=4")), EveryStep(1))
    needed = {"colluding": {"colluders": [0]}, "coalitions": {"coalition_size": 1}}
    hidden = {name for name in TRUST if trust.named(name, **needed.get(name, {})).hides_messages(one)}
    assert {name for name, one in TRUST.items() if one.released} == hidden


def test_trust_list(capsys):
    assert main(["trust", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(TRUST)
    keys = {"name", "attacker", "seen", "gradients_known", "noise_known", "release", "options"}
    assert all(set(row) == keys for row in rows)
    assert main(["trust", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in TRUST)


def test_trust_explain(capsys):
    for name, words in TRUST.items():
        assert main(["trust", "explain", name]) == 0
        shown = capsys.readouterr().out
        assert all(part in shown for part in (words.attacker, words.seen, words.noise_known, *words.options))
        assert main(["trust", "explain", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == name
    assert main(["trust", "explain", "eavesdroper"]) == 2
    assert "unknown trust model 'eavesdroper'; did you mean 'eavesdropper'?" in capsys.readouterr().err

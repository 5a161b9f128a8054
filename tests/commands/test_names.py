"""`mfdl mechanisms` and `mfdl trust`: the names the other commands take, in one list that is true."""

import json

from mfdl import Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.algorithms.registry import MECHANISMS, OF_BALLS_IN_BINS
from mfdl.commands import main
from mfdl.trust.base import MODELS

EVERY = {**MECHANISMS, **OF_BALLS_IN_BINS}


def test_mechanisms_as_json_are_the_registry(capsys):
    assert main(["mechanisms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(EVERY)
    for row in rows:
        assert set(row) == {"name", "summary", "trust", "paper", "erratum", "models", "parameters"}
    parameters = {row["name"]: row["parameters"] for row in rows}
    assert parameters["decor"] == {"sigma_ldp": "float", "sigma_cor": "float"}
    assert parameters["zip-dl"]["self_messages"] == "bool"


def test_mechanisms_as_a_table(capsys):
    assert main(["mechanisms"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    for name in EVERY:
        assert name in output.out
    assert "file:FILE" in output.out


def test_help_of_the_module_has_a_row_for_every_trust_model():
    rows = [line.strip("| ").split(" | ") for line in (trust.__doc__ or "").splitlines() if line.startswith("| ")]
    assert [row[0].partition("(")[0] for row in rows[2:]] == list(MODELS)
    assert [row[1:] for row in rows[2:]] == [
        [entry.seen, entry.gradients_known, entry.noise_known] for entry in MODELS.values()
    ]


def test_trust_says_where_messages_are_hidden():
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=4")), EveryStep(1))
    needed = {"colluding": {"colluders": [0]}, "coalitions": {"coalition_size": 1}}
    for name, entry in MODELS.items():
        assert entry.hides_messages == trust.named(name, **needed.get(name, {})).hides_messages(algorithm), name


def test_trust_list(capsys):
    assert main(["trust", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(MODELS)
    keys = {"name", "attacker", "seen", "gradients_known", "noise_known", "release", "options"}
    assert all(set(row) == keys for row in rows)
    assert {row["name"]: row["options"] for row in rows if row["options"]} == {
        "pndp": ["--attackers A,B", "--all-attackers"],
        "colluding": ["--colluders A,B"],
        "coalitions": ["--coalition-size Q"],
        "secure-sum": ["--attackers A,B"],
    }
    assert main(["trust", "list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in MODELS)


def test_trust_explain(capsys):
    for name, entry in MODELS.items():
        assert main(["trust", "explain", name, "--json"]) == 0
        words = json.loads(capsys.readouterr().out)
        assert (words["name"], words["attacker"]) == (name, entry.observer)
        assert main(["trust", "explain", name]) == 0
        output = capsys.readouterr().out
        assert all(part in output for part in (words["attacker"], words["seen"], *words["options"]))
    assert main(["trust", "explain", "eavesdroper"]) == 2
    assert "unknown trust model 'eavesdroper'; did you mean 'eavesdropper'?" in capsys.readouterr().err

"""`mfdl account --participation balls-in-bins`: epsilon of every victim, mu null, what has no meaning there refused."""

import json

import numpy as np
import pytest

import mfdl
from mfdl import BallsInBins, trust
from mfdl.algorithms import mf_dsgd, registry
from mfdl.commands import main

ASKED = ["--participation", "balls-in-bins", "--epochs", "2", "--period", "3", "--adjacency", "zero-out"]
SMALL = ["--graph", "path:n=3", "--delta", "1e-5"]
BINS = BallsInBins(2, 3)


def account(capsys, *arguments):
    assert main(["account", "--json", *SMALL, *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_epsilon_is_met_and_mu_is_null_under_the_keys_of_any_account(capsys):
    answer = account(capsys, *ASKED, "--epsilon", "1.5")
    public = account(capsys, "--epsilon", "1.5", *ASKED[2:])
    assert answer["noise_std"] < 0.9 * public["noise_std"]
    assert public["worst_epsilon_adaptive"] == pytest.approx(1.5, rel=1e-6)
    assert 1.49 < answer["worst_epsilon"] == answer["worst_epsilon_adaptive"] <= 1.5
    assert set(answer) == set(public)
    assert answer["worst_mu"] is answer["worst_mu_adaptive"] is None
    assert answer["participation"] == {"scheme": "balls-in-bins", "epochs": 2, "bins": 3}
    for part in (
        "balls-in-bins (epochs=2, bins=3)",
        "epsilon: 1.5 at delta = 1e-05",
        "gradients: adaptive or non-adaptive",
    ):
        assert part in answer["guarantee"]
    for row, other in zip(answer["victims"], public["victims"], strict=True):
        assert set(row) == set(other)
        assert {row[key] for key in ("mu", "mu_adaptive", "sensitivity_squared", "adaptive_sensitivity_squared")} == {
            None
        }
        assert row["epsilon"] == row["epsilon_adaptive"] <= answer["worst_epsilon"]


def test_every_victim_has_the_number_of_its_own_encoder(capsys):
    """mafalda-l: each node's epsilon is that of an algorithm whose encoder is that node's everywhere."""
    answer = account(capsys, *ASKED, "--noise-std", "2", "--mechanism", "mafalda-l", "--victims", "0,1")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=3"))
    causal = registry.build("mafalda-l", dynamics, BINS).noise.causal
    options = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    for u, row in enumerate(answer["victims"]):
        alone = mf_dsgd(dynamics, BINS, causal.encoder_of(u))
        assert row["epsilon"] == pytest.approx(
            mfdl.account(alone, mfdl.Privacy(**options), noise_std=2.0).epsilon(1e-5), rel=1e-9
        )
    first, second = (row["epsilon"] for row in answer["victims"])
    assert abs(first - second) > 1e-3 * first
    assert answer["worst_epsilon"] == max(first, second)


def test_a_victim_that_attacks_and_no_noise_are_infinite_and_pictures_are_drawn(capsys, tmp_path):
    pndp = ["--trust", "pndp", "--attackers", "0"]
    answer = account(capsys, *ASKED, *pndp, "--victims", "0,2", "--noise-std", "2", "--out", str(tmp_path))
    attacker, victim = answer["victims"]
    assert (attacker["epsilon"], attacker["distance"], victim["distance"]) == ("inf", 0, 2)
    assert np.isfinite(victim["epsilon"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json", "account.png", "account.svg", "graph.png", "graph.svg"
    }  # fmt: skip
    assert "ε at δ = 1e-05" in (tmp_path / "account.svg").read_text()
    assert json.loads((tmp_path / "results.json").read_text()) == answer
    none = account(capsys, *ASKED, "--mechanism", "none")
    assert {row["epsilon"] for row in none["victims"]} == {none["worst_epsilon"]} == {"inf"}
    assert "no finite guarantee" in none["guarantee"]


def test_the_table_has_no_column_of_mu(capsys):
    assert main(["account", *SMALL, *ASKED, "--noise-std", "2", "--trust", "pndp", "--attackers", "0"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "epsilon by distance" in output
    assert "mu by distance" not in output
    assert "│ mu" not in output
    assert "no mu" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mu", "1"], "--mu 1.0: --participation balls-in-bins has no mu; give --epsilon"),
        (["--noise-multiplier", "1"], "give --noise-std, or --epsilon"),
        (["--lipschitz", "1"], "--lipschitz 1.0"),
        (["--trust", "pndp", "--attackers", "0", "--release", "none"], "--release none"),
        (["--trust", "pndp", "--all-attackers"], "--all-attackers: "),
        (["--unit", "user"], "--unit user needs"),
        (["--steps", "7"], "steps must be"),
        (["--epsilon", "0"], "epsilon must be"),
        (["--epsilon", "1", "--noise-std", "1"], "got --noise-std and --epsilon"),
        (["--mechanism", "zip-dl"], "take dp_dsgd, decor or corn"),
        (["--epsilon", "1", "--mechanism", "none"], "no noise to scale"),
    ],
)
def test_what_has_no_meaning_there_is_refused_in_one_line(arguments, message, capsys):
    assert main(["account", *SMALL, *ASKED, *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)

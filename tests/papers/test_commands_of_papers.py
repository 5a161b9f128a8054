"""`mfdl claims`, and published bounds in the picture of `mfdl account`."""

import dataclasses
import json

import numpy as np
import pytest

import mfdl
import mfdl_papers as papers
from mfdl import extensions, gossip
from mfdl.commands import main
from mfdl_papers import published_claims
from mfdl_papers.paper_commands import ClaimsConfig, run_claims

KEYS = {"id", "paper", "item", "statement", "verdict", "counterexample"}
ADDED_KEYS = {"erratum", "registered", "as_registered", "tried", "seconds"}
REFUTED = "mafalda-equation-8-square"


@pytest.mark.slow
def test_json_rows_and_exit_code(capsys):
    assert main(["claims", "--json", "--only", REFUTED, "--jobs", "1"]) == 0
    output = capsys.readouterr()
    (row,) = json.loads(output.out)
    assert set(row) == KEYS | ADDED_KEYS
    assert (row["id"], row["verdict"], row["registered"]) == (REFUTED, "refuted", "refuted")
    assert "claimed" in row["counterexample"]
    (again,) = run_claims(ClaimsConfig(only=(REFUTED,), jobs=1))
    assert again | {"seconds": 0} == row | {"seconds": 0}


def test_exit_code_1_when_a_verdict_is_not_the_one_on_record(capsys, monkeypatch):
    other = [dataclasses.replace(claim, expect="holds") for claim in published_claims()]
    monkeypatch.setattr("mfdl_papers.paper_claims.published_claims", lambda: other)
    assert main(["claims", "--only", REFUTED, "--jobs", "1"]) == 1
    assert "not as on record: " + REFUTED in " ".join(capsys.readouterr().out.split())


def test_files(capsys, tmp_path):
    assert main(["claims", "--only", REFUTED, "--jobs", "1", "--out", str(tmp_path / "new")]) == 0
    rows = json.loads((tmp_path / "new" / "claims.json").read_text(encoding="utf-8"))
    assert [row["id"] for row in rows] == [REFUTED]
    page = (tmp_path / "new" / "claims.md").read_text(encoding="utf-8")
    assert f"`{REFUTED}`" in page
    assert rows[0]["counterexample"] in page
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "mafalda-theorem-7-adaptiv"], "did you mean"),
        (["--examples", "0"], "examples must be"),
        (["--seed", "-1"], "seed must be"),
        (["--jobs", "0"], "jobs must be"),
    ],
)
def test_bad_input_is_answered_before_any_work(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("mfdl.testing.check_claim", lambda *_, **__: pytest.fail("worked"))
    assert main(["claims", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message.lower() in output.err.lower()


def test_a_folder_that_cannot_be_written_is_refused_first(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("mfdl.testing.check_claim", lambda *_, **__: pytest.fail("worked"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["claims", "--out", str(tmp_path / "file" / "below")]) == 2
    assert "cannot write" in capsys.readouterr().err


ONE, ANY = [(0,)], [(0,), (2,)]


def algorithm(scheme, rounds=1):
    W = gossip.metropolis_hastings("path:n=4")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, gossip_rounds=rounds), scheme)


def bounds_in_the_picture(mechanism, trust, of, attackers):
    (published_losses,) = extensions.every(extensions.PUBLISHED_LOSSES)
    return published_losses(mechanism, trust, of, attackers)


@pytest.mark.parametrize("scheme", [mfdl.EveryStep(3), mfdl.participation.Single(3), mfdl.Cyclic(1, 3)])
def test_both_bounds_of_every_attacker(scheme):
    of = algorithm(scheme, rounds=2)
    squared, coded = bounds_in_the_picture("dp-dsgd", "pndp", of, ANY)
    known = {"num_steps": 3, "gossip_rounds": 2, "every_step": scheme == mfdl.EveryStep(3)}
    for published, bound in ((squared, papers.muffliato_squared), (coded, papers.muffliato_as_coded)):
        assert list(published.squared) == ANY
        for (node,), values in published.squared.items():
            printed = bound(of.dynamics.gossip, f"#{node}", **known)
            np.testing.assert_array_equal(values, printed.value)
            assert published.validity == printed.validity


@pytest.mark.parametrize(
    ("mechanism", "trust", "scheme", "attackers"),
    [
        ("bsr", "pndp", mfdl.EveryStep(4), ONE),
        ("dp-dsgd", "ldp", mfdl.EveryStep(4), [()]),
        ("dp-dsgd", "pndp", mfdl.Cyclic(2, 2), ONE),
        ("muffliato", "pndp", mfdl.EveryStep(4), [(0, 1)]),
    ],
)
def test_nothing_is_stated_elsewhere(mechanism, trust, scheme, attackers):
    assert bounds_in_the_picture(mechanism, trust, algorithm(scheme), attackers) == []

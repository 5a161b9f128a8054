"""`mfdl audit`: its table, files, refusals and exit codes."""

import json

import pytest

from mfdl.audit import Training
from mfdl.cli import main

SMALL = ["--graph", "path:n=3", "--trials", "400"]


def test_a_claim_that_holds_exits_with_zero_and_writes_what_it_found(tmp_path, capsys):
    assert main(["audit", "--mechanism", "dp-dsgd", "--trust", "ldp", *SMALL, "--out", str(tmp_path)]) == 0
    assert "No claim is refuted." in capsys.readouterr().out
    kept = json.loads((tmp_path / "audit.json").read_text())
    assert kept["cells"][0]["audit"]["mu_claimed"] == pytest.approx(1.0)
    assert kept["config"]["trials"] == 400
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert "dp-dsgd,ldp" in (tmp_path / "audit.csv").read_text()


def test_a_refuted_claim_exits_with_one(monkeypatch, capsys):
    honest = Training.stream

    def halved(self, key, dim, first_step):
        stream = honest(self, key, dim, first_step)
        stream.noise_std /= 2
        return stream

    monkeypatch.setattr(Training, "stream", halved)
    assert main(["audit", "--mechanism", "dp-dsgd", *SMALL, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["violations"] == 1
    assert answer["cells"][0]["audit"]["violated"]


def test_a_matrix_reads_the_names_it_is_given_and_says_where_nothing_is_claimed(capsys):
    names = ["--mechanism", "cdp", "--mechanism", "none"]
    assert main(["audit", "--matrix", *names, "--trust", "central", *SMALL, "--noise-std", "1.5", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(c["mechanism"], c["audit"] is None) for c in cells] == [("cdp", False), ("none", True)]
    assert "no noise" in cells[1]["why"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--mechanism", "none"], "nothing finite is claimed"),
        (["--mechanism", "mafaldo"], "mafalda"),
        (["--trust", "lpd"], "ldp"),
        (["--mu", "1", "--noise-std", "1"], "at most one of --noise-std and --mu"),
        (["--trials", "20"], "trials must be at least"),
        (["--unit", "user"], "every-step"),
        (["--attackers", "0"], "--attackers belongs to trust model pndp, not to ldp"),
        (["--colluders", "0"], "--colluders belongs to trust model colluding"),
        (["--coalition-size", "2"], "--coalition-size belongs to trust model coalitions"),
    ],
)
def test_refusals_exit_with_two_and_say_what_to_change(arguments, why, capsys):
    assert main(["audit", "--graph", "path:n=3", *arguments]) == 2
    assert why in capsys.readouterr().err

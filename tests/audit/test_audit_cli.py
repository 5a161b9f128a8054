"""`mfdl audit`: its table, files, refusals and exit codes."""

import json

import pytest

from mfdl import files
from mfdl.audit import Training
from mfdl.audit.audit_cells import COLUMNS, AuditCell
from mfdl.commands import main

UNSEEN = ["--mechanism", "zip-dl", "--trust", "released", "--unit", "user", "--participation", "every-step"]
SMALL = ["--graph", "path:n=3", "--trials", "400"]


def test_a_matrix_of_names_is_written_once_and_says_where_nothing_is_claimed(tmp_path, monkeypatch, capsys):
    written, write = [], files.atomic_write_json
    monkeypatch.setattr(files, "atomic_write_json", lambda path, text: (written.append(text), write(path, text)))
    names = ["--mechanism", "dp-dsgd", "--mechanism", "none"]
    assert main(["audit", "--matrix", *names, "--trust", "ldp", *SMALL, "--out", str(tmp_path)]) == 0
    assert "No claim is refuted." in capsys.readouterr().out
    (answer,) = written
    assert json.loads(json.dumps(answer)) == json.loads((tmp_path / "audit.json").read_text())
    assert {"level", "violations", "cells", "graph", "versions", "config", "seconds"} == answer.keys()
    assert [(c["mechanism"], c["audit"] is None) for c in answer["cells"]] == [("dp-dsgd", False), ("none", True)]
    assert answer["cells"][0]["audit"]["mu_claimed"] == pytest.approx(1.0)
    assert "no noise" in answer["cells"][1]["why"]
    assert answer["config"]["trials"] == 400
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert "dp-dsgd,ldp" in (tmp_path / "audit.csv").read_text()
    assert main(["audit", "--config", str(tmp_path / "audit.json"), "--json"]) == 0


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


def test_a_table_row_is_about_one_victim(monkeypatch, capsys):
    monkeypatch.setattr(AuditCell, "row", lambda self: dict.fromkeys(COLUMNS, 7.25))
    assert main(["audit", *SMALL]) == 0
    assert capsys.readouterr().out.count("7.25") == 4


def test_trust_models_are_named_as_for_account(capsys):
    def attackers(*models):
        assert main(["audit", "--mechanism", "dp-dsgd", *SMALL, "--json", *models]) == 0
        cells = json.loads(capsys.readouterr().out)["cells"]
        return [{canary["attacker"] for canary in cell["audit"]["canaries"]} for cell in cells]

    any_node, any_coalition = attackers("--trust", "pndp", "--trust", "coalitions")
    assert len(any_node) > 1
    assert all(each.startswith("node ") and each.endswith("with all messages seen") for each in any_coalition)
    named = "--trust", "pndp", "--attackers", "2", "--trust", "coalitions", "--coalition-size", "2"
    second, pairs = attackers(*named)
    assert second == {"node 2, from the messages received"}
    assert all(pair.startswith("nodes ") for pair in pairs)


ONE_RUN = ["--one-run", "--mechanism", "mafalda", "--trust", "pndp", "--attackers", "1", "--victim", "0", "--json"]


def test_one_run_is_audited_by_its_canaries_and_shows_the_planted_bug(tmp_path, capsys):
    sizes = ["--canaries", "600", "--patterns", "2", "--graph", "ring:n=4"]
    assert main(["audit", *ONE_RUN, *sizes, "--planted", "--out", str(tmp_path)]) == 0
    honest, half = json.loads(capsys.readouterr().out)["cells"]
    assert (honest["planted"], half["planted"]) == ("", "half the noise")
    assert half["mechanism"] == "mafalda (half the noise)"
    assert (honest["audit"]["violated"], half["audit"]["violated"]) == (False, True)
    result = honest["audit"]
    assert (result["trials"], len(result["patterns"]), result["victim"]) == (600, 2, 0)
    assert result["attacker"] == "node 1, from the messages received"
    assert result["level"] == pytest.approx(0.975)  # of two cells
    assert result["mu_audited"] == max(result["mu_guesses"], result["mu_gaussian"]) < result["mu_claimed"]
    assert result["epsilon_guesses"] <= result["epsilon_audited"] < result["epsilon_claimed"]
    rows = (tmp_path / "audit.csv").read_text().splitlines()
    assert rows[1].startswith(f"mafalda,pndp,{result['mu_claimed']},{result['mu_audited']}")
    assert main(["audit", "--config", str(tmp_path / "audit.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == [honest, half]


def test_one_run_shows_the_sentence_and_the_columns_of_many_runs(capsys):
    assert main(["audit", *ONE_RUN[:-1], "--graph", "ring:n=4"]) == 0
    out = capsys.readouterr().out
    assert "one run each" in out
    assert "one run with 1000 canaries" in " ".join(out.split())
    assert "No claim is refuted." in out


def test_a_bug_that_one_run_cannot_show_and_a_refuted_claim_exit_with_one(monkeypatch, capsys):
    weak = ["--canaries", "50", "--mu", "0.01", "--graph", "ring:n=4"]
    assert main(["audit", *ONE_RUN[:-1], *weak, "--planted"]) == 1
    assert "a planted bug that the audit did not detect" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(Training, "clip", lambda self, gradients: gradients)
    assert main(["audit", *ONE_RUN, "--graph", "ring:n=4"]) == 1
    assert json.loads(capsys.readouterr().out)["violations"] == 1


def test_a_matrix_of_single_runs_says_where_nothing_is_claimed(capsys):
    names = ["--mechanism", "dp-dsgd", "--mechanism", "none", "--trust", "ldp", "--trust", "released"]
    assert main(["audit", "--matrix", "--one-run", *names, "--graph", "path:n=3", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["audit"] is None for cell in cells][:3:2] == [False, True]
    assert all(cell["why"] for cell in cells if cell["audit"] is None)


def test_a_victim_is_audited_alone(capsys):
    assert main(["audit", *SMALL, "--victim", "#1", "--json"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert {canary["victim"] for canary in cell["audit"]["canaries"]} == {1}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--mechanism", "none"], "no finite privacy loss is claimed"),
        (UNSEEN, "nothing of the record is seen"),
        (["--mechanism", "mafaldo"], "mafalda"),
        (["--trust", "lpd"], "ldp"),
        (["--mu", "1", "--noise-std", "1"], "at most one of --noise-std, --mu"),
        (["--trials", "20"], "trials must be at least"),
        (["--unit", "user"], "every-step"),
        (["--participation", "balls-in-bins"], "give --epsilon or --noise-std"),
        (["--planted"], "add --participation balls-in-bins (its bins are public) or --one-run"),
        (["--canaries", "100"], "--canaries 100 is for --one-run"),
        (["--patterns", "2"], "--patterns 2 is for --one-run"),
        (["--victim", "0,1"], "--victim must name one node, got 0,1"),
        (["--victim", "9"], "9"),
        (["--one-run", "--canaries", "20"], "trials must be from 50 to 4096 canaries"),
        (["--one-run", "--trials", "500"], "--one-run has one; give --canaries"),
        (["--one-run", "--trials", "4000"], "--trials 4000 counts runs"),  # the default, typed
        (["--one-run", "--unit", "user", "--participation", "every-step"], "--unit user has one user"),
        (
            ["--one-run", "--participation", "balls-in-bins", "--epsilon", "2", "--delta", "1e-6"],
            "records of public batches",
        ),
        (
            ["--one-run", "--participation", "cyclic-poisson", "--sampling-rate", "0.5", "--noise-std", "1"],
            "public batch",
        ),
        (["--one-run", "--trust", "pndp", "--attackers", "1", "--victim", "1"], "the victim is one of the attackers"),
        (["--one-run", "--mechanism", "none"], "no finite privacy loss is claimed"),
        (["--trust", "pndp", "--attackers", ""], "--attackers must name at least one node"),
        (["--trust", "colluding"], "trust model colluding needs --colluders A,B; labels start 0, 1, 2"),
        (["--attackers", "0"], "--attackers belongs to trust model pndp or secure-sum, not to ldp"),
        (["--colluders", "0"], "--colluders belongs to trust model colluding"),
        (["--coalition-size", "2"], "--coalition-size belongs to trust model coalitions"),
    ],
)
def test_refusals_exit_with_two_and_say_what_to_change(arguments, why, capsys):
    assert main(["audit", "--graph", "path:n=3", *arguments]) == 2
    assert why in capsys.readouterr().err

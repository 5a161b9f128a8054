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
        (["--planted"], "add --participation balls-in-bins"),
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

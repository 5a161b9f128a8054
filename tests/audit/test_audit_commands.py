"""`mfdl audit` and `mfdl attack`: their keys, tables, files, refusals in one line and exit codes."""

import json
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from vocabulary import each

from mfdl import files
from mfdl.audit import Training
from mfdl.audit.audit_cells import COLUMNS, AuditCell
from mfdl.commands import main
from mfdl.commands.loss_pictures import colour_class

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
    assert (main(["audit", *SMALL]), capsys.readouterr().out.count("7.25")) == (0, 4)


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


def test_a_bug_that_one_run_cannot_show_and_a_refuted_claim_exit_with_one(monkeypatch, capsys):
    weak = ["--canaries", "50", "--mu", "0.01", "--graph", "ring:n=4"]
    assert main(["audit", *ONE_RUN[:-1], *weak, "--planted"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "a planted bug that the audit did not detect" in out
    assert "one run each" in out
    monkeypatch.setattr(Training, "clip", lambda self, gradients: gradients)
    assert main(["audit", *ONE_RUN, "--graph", "ring:n=4"]) == 1
    assert json.loads(capsys.readouterr().out)["violations"] == 1


def test_a_victim_is_audited_alone(capsys):
    assert main(["audit", *SMALL, "--victim", "#1", "--json"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert {canary["victim"] for canary in cell["audit"]["canaries"]} == {1}


@each(
    "arguments, why",
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
    (["--one-run", "--participation", "balls-in-bins", "--epsilon", "2", "--delta", "1e-6"], "records of public"),
    (["--one-run", "--participation", "cyclic-poisson", "--sampling-rate", "0.5", "--noise-std", "1"], "public batch"),
    (["--one-run", "--trust", "pndp", "--attackers", "1", "--victim", "1"], "the victim is one of the attackers"),
    (["--one-run", "--mechanism", "none"], "no finite privacy loss is claimed"),
    (["--trust", "pndp", "--attackers", ""], "--attackers must name at least one node"),
    (["--trust", "colluding"], "trust model colluding needs --colluders A,B; labels start 0, 1, 2"),
    (["--attackers", "0"], "--attackers belongs to trust model pndp or secure-sum, not to ldp"),
    (["--colluders", "0"], "--colluders belongs to trust model colluding"),
    (["--coalition-size", "2"], "--coalition-size belongs to trust model coalitions"),
)
def test_refusals_exit_with_two_and_say_what_to_change(arguments, why, capsys):
    assert main(["audit", "--graph", "path:n=3", *arguments]) == 2
    assert why in capsys.readouterr().err


PATH = ["--graph", "path:n=5", "--attackers", "0", "--release", "none", "--gradients", "first-step"]
KEYS = {
    "mechanism", "graph", "graph_hash", "gossip", "nodes", "steps", "trust", "attackers", "release", "gradients",
    "unit", "clip_norm", "guarantee", "notes", "versions", "config", "without_noise", "with_noise", "seconds",
    "mu", "epsilon", "delta",
}  # fmt: skip
NODE_KEYS = {"node", "distance", "status", "exposed_steps", "undecided_steps", "error_std", "posterior_ratio"}


def attack(capsys, *arguments):
    assert main(["attack", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_keys_and_words(capsys):
    answer = attack(capsys, *PATH, "--steps", "2")
    assert set(answer) == KEYS
    bare, noisy = answer["without_noise"], answer["with_noise"]
    assert set(bare) == set(noisy) == {"noise_std", "nodes", "exposed", "num_combinations", "combinations"}
    assert all(set(node) == NODE_KEYS for node in bare["nodes"] + noisy["nodes"])
    assert [node["status"] for node in bare["nodes"]] == ["attacker", "exposed", "exposed", "hidden", "hidden"]
    assert (bare["exposed"], [node["distance"] for node in bare["nodes"]]) == (["1", "2"], [0, 1, 2, 3, 4])
    assert ([node["error_std"] for node in bare["nodes"]], noisy["exposed"]) == ([0, 0, 0, "inf", "inf"], [])
    assert answer["attackers"] == ["0"]
    assert "protects: a record of every node\n" in answer["guarantee"]
    assert "\nmu: 1\n" in answer["guarantee"]
    assert (answer["unit"], answer["notes"]) == ("record", [])


ZIP_DL = ["--mechanism", "zip-dl", "--graph", "path:n=4", "--attackers", "0", "--steps", "4"]


@pytest.mark.parametrize(("mechanism", "noise"), [("zip-dl", ["--mu", "0.5"]), ("dp-dsgd", ["--noise-std", "2"])])
def test_at_user_level_the_guarantee_is_that_of_the_accountant(capsys, mechanism, noise):
    shared = [*ZIP_DL, "--mechanism", mechanism, "--unit", "user", "--release", "none", *noise]
    answer = attack(capsys, *shared)
    assert main(["account", "--json", *shared, "--trust", "pndp", "--participation", "every-step"]) == 0
    accounted = json.loads(capsys.readouterr().out)
    assert (answer["unit"], answer["config"]["unit"], answer["notes"]) == ("user", "user", [])
    assert answer["with_noise"]["noise_std"] == accounted["noise_std"]
    words, worst = answer["guarantee"], accounted["guarantee"]
    assert "\nprotects: all data of every node (user level, each node by itself)\n" in words
    assert words[words.index("\nadjacency") :] == worst[worst.index("\nadjacency") :]  # the worst node has a name
    victims = [node for node in answer["with_noise"]["nodes"] if node["status"] != "attacker"]
    assert [node["status"] for node in victims] == ["hidden"] * 3
    mu = accounted["worst_mu_adaptive"]
    assert all(float(node["error_std"]) * mu >= 2 - 1e-9 for node in victims)  # user shift 2: no estimate is better


def test_a_refusal_names_a_way_out_that_this_command_has(capsys):
    assert main(["attack", *ZIP_DL]) == 2
    (way,) = re.findall("what can be accounted is (.*?);", capsys.readouterr().err)
    assert way == "--unit user and --release none"
    assert main(["attack", *ZIP_DL, *way.replace(" and ", " ").split()]) == 0
    assert " mu: 1 " in " ".join(capsys.readouterr().out.split())


def test_an_infinite_loss_says_why_and_how_to_leave_it(capsys):
    arguments = [*ZIP_DL, "--release", "none", "--noise-std", "1"]
    answer = attack(capsys, *arguments)
    assert "\nmu: inf: no finite guarantee" in answer["guarantee"]
    (note,) = answer["notes"]
    assert note.startswith("Infinite loss: messages that are never sent enter the models")
    assert "what can be accounted is --unit user and --release none." in note
    assert main(["attack", *arguments]) == 0
    assert f"Note: {note}" in " ".join(capsys.readouterr().out.split())


def test_combinations_name_nodes_and_steps(capsys):
    answer = attack(
        capsys, "--graph", "star:n=4", "--attackers", "1", "--release", "none", "--steps", "2", "--gradients",
        "per-step", "--mechanism", "d-sgd",
    )  # fmt: skip
    assert "with_noise" not in answer
    assert (answer["mechanism"], answer["guarantee"]) == ("none", None)
    bare = answer["without_noise"]
    assert bare["nodes"][0]["exposed_steps"] == [0]
    assert bare["num_combinations"] == len(bare["combinations"]) == 1
    (terms,) = bare["combinations"]  # the hub's second message: W of the leaves' first gradients, and its own second
    assert {(term["node"], term["step"]) for term in terms} == {("2", 0), ("3", 0), ("0", 1)}
    weights = {(term["node"], term["step"]): term["weight"] for term in terms}
    assert weights["2", 0] == pytest.approx(weights["3", 0]) == 1.0
    assert weights["0", 1] == pytest.approx(4)  # leaves give their gradients weight 1 / 4


@pytest.mark.slow
def test_pictures_and_words(capsys, tmp_path):
    assert main(["attack", *PATH, "--steps", "3", "--out", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert "Without noise: 3 of 4 nodes are exposed: 1, 2, 3; 1 hidden." in out
    assert "0 of 4 nodes are exposed; 4 hidden." in out
    assert set(json.loads((tmp_path / "new" / "results.json").read_text())) == KEYS
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["attack.png", "attack.svg", "results.json"]
    picture = np.asarray(matplotlib.image.imread(tmp_path / "new" / "attack.png"))[:, :, :3]
    half = picture.shape[1] // 2
    above = int(0.8 * picture.shape[0])  # the legend shows every colour below

    def has(colour, part):
        return bool((np.abs(part[:above] - np.array(colour) / 255).max(axis=2) < 0.02).any())

    red, green = (213, 0, 47), (0, 158, 115)
    assert has(red, picture[:, :half])
    assert not has(red, picture[:, half:])
    assert has(green, picture[:, half:])


@pytest.mark.parametrize(("ratio", "colour"), [(1e-4, "partly"), (0.7, "partly"), (0.71, "hidden"), (1.0, "hidden")])
def test_a_good_guess_without_an_unbiased_estimate_is_not_green(ratio, colour):
    assert colour_class({"status": "hidden", "error_std": "inf", "posterior_ratio": ratio}) == colour


def test_the_run_can_be_repeated_from_its_results(capsys, tmp_path):
    first = attack(capsys, *PATH, "--steps", "2", "--unit", "user", "--out", str(tmp_path))
    again = attack(capsys, "--config", str(tmp_path / "results.json"))
    assert {**first, "seconds": 0, "config": 0} == {**again, "seconds": 0, "config": 0}


@pytest.mark.parametrize("trust", ["ldp", "eavesdropper", "colluding", "central", "released"])
def test_other_trust_models(capsys, trust):
    colluders = ["--colluders", "1"] if trust == "colluding" else []
    answer = attack(capsys, "--graph", "ring:n=4", "--steps", "2", "--trust", trust, *colluders)
    words = {node["status"] for node in answer["without_noise"]["nodes"]}
    assert trust not in ("ldp", "eavesdropper") or words == {"exposed"}
    assert not answer["with_noise"]["exposed"]


@each(
    "arguments, message", (["--graph", "ring:n=4"], "needs --attackers A,B"),
    (["--graph", "ring:n=4", "--attackers", "9"], "node '9' is not in graph"),
    (["--graph", "ring:n=4", "--attackers", "0", "--trust", "ldp"], "--attackers belongs to trust model pndp"),
    (["--trust", "coalitions"], "has several possible attackers"), (["--trust", "pndpp"], "did you mean 'pndp'"),
    (["--attackers", "Medici", "--steps", "0"], "steps must be an integer >= 1"),
    (["--attackers", "Medici", "--mu", "0"], "mu must be a finite number > 0"),
    (["--attackers", "Medici", "--mu", "1", "--noise-std", "1"], "--noise-std or --mu, not both"),
    (["--attackers", "Medici", "--mechanism", "d-sgd", "--mu", "1"], "need a mechanism with noise"),
    (["--attackers", "Medici", "--gradients", "constnat"], "did you mean 'constant'"),
    (["--attackers", "Medici", "--mechanism", "mafald"], "did you mean 'mafalda'"),
    (["--attackers", "Medici", "--mechanism", "d-sgd", "--unit", "usr"], "did you mean 'user'"),
    (["--attackers", "Medici", "--release", "some"], "unknown release 'some'"),
    (["--attackers", "Medici", "--steps", "2000", "--gradients", "per-step"], "use fewer steps")
)  # fmt: skip
def test_refusals_are_one_line(capsys, arguments, message):
    assert main(["attack", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


# ---- docs/howto_attack.md --------------------------------------------------------------------------------------------
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "howto_attack.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```console\n\$ mfdl (.*?)\n\.\.\.\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
@pytest.mark.slow
def test_the_commands_of_the_page_say_what_the_page_shows(capsys, monkeypatch, tmp_path, command, printed):
    monkeypatch.chdir(tmp_path)
    assert main(command.replace("\\\n", " ").split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    for line in printed.strip().splitlines():
        assert line.removesuffix(" ...") in out
    if "--out" in command:
        assert (tmp_path / "attack" / "attack.png").stat().st_size > 0


def test_the_page_shows_both_units_of_privacy():
    assert ["--unit user" in command for command, _ in COMMANDS] == [False, True]


@pytest.mark.parametrize("status", ["exposed", "partly exposed", "undecided", "in a combination", "hidden"])
def test_the_page_explains_every_status(status):
    rows = (DOCS / "tables" / "reconstruction_status.csv").read_text(encoding="utf-8")
    assert "tables/reconstruction_status.csv" in PAGE
    assert f"\n{status}," in rows

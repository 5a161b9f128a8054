"""`mfdl attack`: its keys, a graph exposed without noise and safe with it, refusals in one line, and the page on it."""

import json
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from mfdl.commands import main
from mfdl.commands.loss_pictures import colour_class

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
    assert bare["exposed"] == ["1", "2"]
    assert [node["distance"] for node in bare["nodes"]] == [0, 1, 2, 3, 4]
    assert [node["error_std"] for node in bare["nodes"]] == [0, 0, 0, "inf", "inf"]
    assert noisy["exposed"] == []
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


def test_the_unit_of_privacy_is_part_of_the_guarantee(capsys):
    by_record, by_user = (attack(capsys, *PATH, "--steps", "2", "--unit", unit) for unit in ("record", "user"))
    assert "protects: a record of every node\n" in by_record["guarantee"]
    assert "all data of every node (user level" in by_user["guarantee"]
    assert by_record["with_noise"] == by_user["with_noise"]  # in clipping norms of what the unit clips
    assert main(["attack", *PATH, "--steps", "2", "--unit", "user"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "user level" in out.split("node")[0]  # the title
    assert "a coordinate of a node's clipped mean gradient" in out


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
    """x + 1e-4 y under next to no noise: no unbiased estimate of x, and yet it is known."""
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graph", "ring:n=4"], "needs --attackers A,B"),
        (["--graph", "ring:n=4", "--attackers", "9"], "node '9' is not in graph"),
        (["--graph", "ring:n=4", "--attackers", "0", "--trust", "ldp"], "--attackers belongs to trust model pndp"),
        (["--trust", "coalitions"], "has several possible attackers"),
        (["--trust", "pndpp"], "did you mean 'pndp'"),
        (["--attackers", "Medici", "--steps", "0"], "steps must be an integer >= 1"),
        (["--attackers", "Medici", "--mu", "0"], "mu must be a finite number > 0"),
        (["--attackers", "Medici", "--mu", "1", "--noise-std", "1"], "--noise-std or --mu, not both"),
        (["--attackers", "Medici", "--mechanism", "d-sgd", "--mu", "1"], "need a mechanism with noise"),
        (["--attackers", "Medici", "--gradients", "constnat"], "did you mean 'constant'"),
        (["--attackers", "Medici", "--mechanism", "mafald"], "did you mean 'mafalda'"),
        (["--attackers", "Medici", "--mechanism", "d-sgd", "--unit", "usr"], "did you mean 'user'"),
        (["--attackers", "Medici", "--release", "some"], "unknown release 'some'"),
        (["--attackers", "Medici", "--steps", "2000", "--gradients", "per-step"], "use fewer steps"),
    ],
)
def test_refusals_are_one_line(capsys, arguments, message):
    assert main(["attack", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


# ---- docs/howto_attack.md --------------------------------------------------------------------------------------------


PAGE = (Path(__file__).parents[2] / "docs" / "howto_attack.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```console\n\$ mfdl (.*?)\n\.\.\.\n(.*?)```", PAGE.replace("\\\n", ""), re.DOTALL)


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
@pytest.mark.slow
def test_the_commands_of_the_page_say_what_the_page_shows(capsys, monkeypatch, tmp_path, command, printed):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    for line in printed.strip().splitlines():
        assert line.removesuffix(" ...") in out
    if "--out" in command:
        assert (tmp_path / "attack" / "attack.png").stat().st_size > 0


def test_the_page_shows_both_units_of_privacy():
    assert ["--unit user" in command for command, _ in COMMANDS] == [False, True]


@pytest.mark.parametrize("status", ["exposed", "partly exposed", "undecided", "in a combination", "hidden"])
def test_the_page_explains_every_status(status):
    assert f"| {status} |" in PAGE

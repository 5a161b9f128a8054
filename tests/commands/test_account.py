"""`mfdl account`: keys pinned, the numbers of the library reached, balls-in-bins, bad input refused in one line."""

import json
import re

import numpy as np
import pytest
from finished_runs import answer_of, printed, refused
from vocabulary import dynamics_on, each

import mfdl
from mfdl import BallsInBins, Cyclic, EveryStep, Privacy, algorithms, graphs, privacy, trust
from mfdl.algorithms import mf_dsgd, registry
from mfdl.commands import main
from mfdl.commands.account import AccountConfig
from mfdl.privacy import sensitivity_by_victim

VICTIM_KEYS = {
    "victim", "distance", "sensitivity_squared", "adaptive_sensitivity_squared", "mu", "mu_adaptive", "epsilon",
    "epsilon_adaptive", "bound", "adaptive_bound", "adaptive_by",
}  # fmt: skip
COMMON_KEYS = {
    "trust", "adjacency", "unit", "participation", "release", "adaptive", "attackers", "noise_std", "clip_norm",
    "delta", "mechanism", "graph", "graph_hash", "gossip", "nodes", "steps", "guarantee", "notes", "versions", "config",
    "seconds", "worst_mu", "worst_mu_adaptive", "worst_epsilon",
    "worst_epsilon_adaptive", "tied",
}  # fmt: skip
FILES = {"results.json", "account.png", "account.svg", "graph.png", "graph.svg"}
SMALL = ["--graph", "ring:n=5", "--epochs", "2", "--period", "2"]
PNDP = ["--trust", "pndp", "--attackers", "0", "--release", "none"]
PATH = ["--graph", "path:n=4", "--participation", "every-step", "--steps", "4", *PNDP]
DECOR = [*SMALL, "--mechanism", "decor", "--set", "sigma_cor=2"]


def account(capsys, *arguments):
    return answer_of(capsys, "account", *arguments)


class TestAnswer:
    def test_keys(self, capsys):
        answer = account(capsys, *PATH)
        assert set(answer) == COMMON_KEYS | {"victims"}
        assert [row["victim"] for row in answer["victims"]] == ["1", "2", "3"]
        assert [row["distance"] for row in answer["victims"]] == [1, 2, 3]
        assert all(set(row) == VICTIM_KEYS for row in answer["victims"])
        assert answer["participation"] == {"scheme": "every-step", "steps": 4}
        assert (answer["attackers"], answer["trust"], answer["release"]) == (["0"], "pndp", "none")
        assert (answer["adaptive"], answer["unit"]) == (False, "record")
        assert (answer["noise_std"], answer["delta"], answer["clip_norm"]) == (1.0, 1e-6, 1.0)
        assert "on the sum of clipped gradients" in answer["guarantee"]

    @pytest.mark.parametrize("bound", ["exact", "certified"])
    @pytest.mark.parametrize("lipschitz", [None, 1.0])
    def test_rows_are_the_losses_of_the_library(self, bound, lipschitz, capsys):
        arguments = [] if lipschitz is None else ["--lipschitz", str(lipschitz)]
        answer = account(capsys, *PATH, "--bound", bound, *arguments, "--noise-std", "3", "--clip-norm", "2")
        algorithm = algorithms.dp_dsgd(dynamics_on(graphs.load("path:n=4")), EveryStep(4))
        losses = sensitivity_by_victim(
            algorithm, mfdl.trust.PNDP([0]), release="none", lipschitz=lipschitz, method=bound
        )
        for row, loss in zip(answer["victims"], losses, strict=True):
            numbers = ("sensitivity_squared", "adaptive_sensitivity_squared")
            for key in (*numbers, "bound", "adaptive_bound", "adaptive_by"):
                assert row[key] == getattr(loss, key)
            for adaptive in (False, True):
                mu = loss.mu(record_shift=4.0, noise_std=3.0, adaptive=adaptive)
                assert row["mu_adaptive" if adaptive else "mu"] == mu
                epsilon = privacy.gaussian.epsilon_from_mu(mu, 1e-6)
                assert row["epsilon_adaptive" if adaptive else "epsilon"] == epsilon

    def test_ldp_is_adaptive_and_has_no_place(self, capsys):
        answer = account(capsys, *SMALL)
        assert (answer["adaptive"], answer["attackers"], answer["notes"]) == (True, [], [])
        assert (answer["release"], {row["distance"] for row in answer["victims"]}) == ("not applicable", {None})
        assert {row["adaptive_by"] for row in answer["victims"]} == {"the view"}

    @each(
        "trust, attackers",
        (["eavesdropper"], []), (["colluding", "--colluders", "0,#2"], ["0", "2"]),
        (["coalitions", "--coalition-size", "1"], []), (["full-collusion"], []), (["central"], []),
        (["released", "--release", "average"], []), (["pndp", "--attackers", "3,0"], ["0", "3"]),
    )  # fmt: skip
    def test_every_trust_name(self, trust, attackers, capsys):
        answer = account(capsys, *DECOR, "--trust", *trust)
        assert answer["attackers"] == attackers
        assert [row["victim"] for row in answer["victims"]] == [u for u in "01234" if u not in attackers]

    @each(
        "options, expected",
        (["cyclic"], {"scheme": "cyclic", "epochs": 2, "period": 2}),
        (["once-per-epoch"], {"scheme": "once-per-epoch", "epochs": 2, "period": 2}),
        (["every-step"], {"scheme": "every-step", "steps": 4}),
        (["single"], {"scheme": "single", "steps": 4}),
        (
            ["min-separation", "--steps", "5"],
            {"scheme": "min-separation", "steps": 5, "max_participations": 2, "separation": 2},
        ),
    )
    def test_participation(self, options, expected, capsys):
        assert account(capsys, *SMALL, "--participation", *options)["participation"] == expected

    def test_a_covariance_is_made_against_the_coalitions_asked_about(self, capsys):
        """On a ring of 8 the covariance for an outsider loses more to single nodes than one made for them."""
        requested = ["--graph", "ring:n=8", "--mechanism", "corn", "--trust", "coalitions", "--coalition-size", "1"]
        requested += ["--epochs", "2", "--period", "1"]
        answers, other = (account(capsys, *requested, *more) for more in ([], ["--set", "coalition_size=0"]))
        losses = [max(row["sensitivity_squared"] for row in answer["victims"]) for answer in (answers, other)]
        assert losses[0] <= 2 * (1 + 1e-9) < losses[1]


class TestUnit:
    def test_a_user(self, capsys, tmp_path):
        options = [*PATH, "--unit", "user", "--noise-std", "2"]
        user, record = account(capsys, *options, "--out", str(tmp_path)), account(capsys, *PATH, "--noise-std", "2")
        assert (user["unit"], user["config"]["unit"]) == ("user", "user")
        assert "all data of node 1 (user level)" in user["guarantee"]
        assert "on clipped mean gradients" in user["guarantee"]
        assert user["victims"] == record["victims"]
        lines = re.findall("<!-- (.*?) -->", (tmp_path / "account.svg").read_text())  # the texts, as they are wrapped
        assert "noise std 2, user level, replace-one with clipping norm 1" in " ".join(lines)
        assert main(["account", *options]) == 0
        assert "user level" in " ".join(capsys.readouterr().out.split())

    def test_calibrated_for_a_user(self, capsys):
        user = ["--participation", "every-step", "--unit", "user", "--mu", "0.7", "--clip-norm", "3"]
        assert account(capsys, *SMALL, *user)["noise_std"] == pytest.approx(2 * 3 * np.sqrt(4) / 0.7)


class TestBudgets:
    def test_each_node_meets_its_own(self, capsys, tmp_path):
        (tmp_path / "mu.json").write_text(json.dumps({"0": 0.5, "1": 1.0, "2": 1.0, "3": 0.25, "4": 2}))
        answer = account(capsys, *SMALL, "--budgets", str(tmp_path / "mu.json"))
        assert [row["mu_adaptive"] for row in answer["victims"]] == pytest.approx([0.5, 1.0, 1.0, 0.25, 2.0])
        assert answer["noise_std"] == pytest.approx(2 * np.sqrt(2) / 2)

    @each(
        "content, message",
        ("[1, 2]", "must hold one object"), ("{", "not JSON"), ('{"0": 1}', "budget > 0"), ('{"x": 1}', "x"),
    )  # fmt: skip
    def test_files_of_something_else_are_refused(self, content, message, capsys, tmp_path):
        (tmp_path / "mu.json").write_text(content)
        refused(capsys, message, "account", *SMALL, "--budgets", str(tmp_path / "mu.json"))


class TestNoise:
    @each(
        "options",
        [], ["--calibrate-under", "ldp"], ["--trust", "pndp", "--attackers", "0"],
        ["--trust", "pndp", "--attackers", "0", "--calibrate-under", "pndp"],
        ["--trust", "pndp", "--all-attackers", "--jobs", "1", "--release", "none", "--lipschitz", "0.5"],
        ["--trust", "pndp", "--all-attackers", "--jobs", "1", "--calibrate-under", "pndp"],
    )  # fmt: skip
    def test_mu_is_met_and_not_exceeded(self, options, capsys):
        assert 0.69 < account(capsys, *SMALL, "--mu", "0.7", *options)["worst_mu_adaptive"] <= 0.7 * (1 + 1e-9)

    @each(
        "options, under",
        ([*SMALL, *PNDP], ["ldp"]), ([*DECOR, "--trust", "eavesdropper"], ["colluding", "--colluders", "0"]),
    )  # fmt: skip
    def test_calibrated_under_another_model(self, options, under, capsys):
        noised = account(capsys, *options[: options.index("--trust")], "--trust", *under, "--mu", "0.7")["noise_std"]
        answer = account(capsys, *options, "--mu", "0.7", "--calibrate-under", *under)
        assert answer["noise_std"] == noised
        assert answer["worst_mu"] < 0.7

    def test_multiplier(self, capsys):
        answer = account(capsys, *SMALL, "--noise-multiplier", "2")
        assert answer["worst_mu_adaptive"] == pytest.approx(0.5)
        assert answer["noise_std"] == pytest.approx(2 * np.sqrt(2) * 2)

    @each("options", ["--noise-std", "0"], ["--mechanism", "none"], ["--mechanism", "none", "--noise-std", "2"])
    def test_no_noise_is_infinite_and_no_error(self, options, capsys, tmp_path):
        answer = account(capsys, *SMALL, *options, "--out", str(tmp_path))
        assert answer["noise_std"] == 0.0
        for row in answer["victims"]:
            assert row["mu"] == row["epsilon"] == row["mu_adaptive"] == row["epsilon_adaptive"] == "inf"
            assert row["sensitivity_squared"] == ("inf" if "none" in options else pytest.approx(2))
        assert any("noise_std is 0" in note for note in answer["notes"])
        assert "no finite guarantee" in answer["guarantee"]
        assert (tmp_path / "account.png").stat().st_size > 5000


def test_a_victim_that_attacks_is_infinite_and_said_so(capsys):
    answer = account(capsys, *PATH, "--victims", "2,0")
    attacker, victim = answer["victims"]
    assert (attacker["victim"], victim["victim"], attacker["distance"]) == ("0", "2", 0)
    assert attacker["mu"] == attacker["sensitivity_squared"] == "inf" != victim["mu"]
    assert "0 is one of the attackers: its loss is infinite." in answer["notes"]


@pytest.mark.parametrize("same_steps", [False, True])
@pytest.mark.parametrize("given", ["2", "1+2,3+1"])
def test_owners_of_one_record_are_victims(given, same_steps, capsys, tmp_path):
    options = [
        "--owners", given, *["--same-steps"] * same_steps, "--epsilon", "2", "--delta", "1e-6", "--out",
        str(tmp_path),
    ]  # fmt: skip
    answer = account(capsys, *PATH, *options)
    algorithm = algorithms.dp_dsgd(dynamics_on(graphs.load("path:n=4")), EveryStep(4))
    owners = privacy.Owners(2 if given == "2" else [(1, 2), (1, 3)], same_steps=same_steps)
    losses = sensitivity_by_victim(algorithm, mfdl.trust.PNDP([0]), release="none", owners=owners)
    groups = {"2": ["1 and 2", "1 and 3", "2 and 3"], "1+2,3+1": ["1 and 2", "1 and 3"]}[given]
    assert [row["victim"] for row in answer["victims"]] == ["1", "2", "3", *groups]
    assert [row["distance"] for row in answer["victims"]][3:5] == [1, 1]
    for row, loss in zip(answer["victims"], losses, strict=True):
        assert row["adaptive_sensitivity_squared"] == pytest.approx(loss.adaptive_sensitivity_squared)
    assert answer["worst_epsilon_adaptive"] == max(row["epsilon_adaptive"] for row in answer["victims"]) <= 2
    assert "may hold the same record" in answer["guarantee"]
    assert (tmp_path / "graph.png").exists()


FLORENTINE = ["--trust", "pndp", "--attackers", "Acciaiuoli"]


@each(
    "arguments, message",
    (["--trust", "pndp", "--attackers", "Medicci"], "did you mean 'Medici'?"),
    (["--trust", "pndp", "--attackers", "#15"], "'#0' to '#14'"),
    ([*FLORENTINE, "--victims", "Strozi"], "did you mean 'Strozzi'?"),
    (["--graph", "path:n=2", "--trust", "pndp", "--attackers", "0,1"], "no victim is left"),
    (["--trust", "pnpd", "--attackers", "Medici"], "unknown trust model 'pnpd'; did you mean 'pndp'?"),
    (["--trust", "pndp"], "trust model pndp needs --attackers A,B or --all-attackers"),
    (["--trust", "pndp", "--attackers", ","], "--attackers must name at least one node"),
    (["--trust", "colluding"], "needs --colluders"), (["--trust", "coalitions"], "needs --coalition-size"),
    (["--attackers", "Medici"], "--attackers belongs to trust model pndp or secure-sum, not to ldp"),
    (["--trust", "pndp", "--attackers", "Medici", "--all-attackers"], "not both"),
    ([*FLORENTINE, "--lipschitz", "-1"], "lipschitz must be"), (["--noise-std", "-1"], "noise_std must be"),
    (["--noise-std", "nan"], "noise_std must be"), (["--mu", "0"], "mu must be"),
    (["--mu", "1", "--noise-std", "1"], "got --noise-std and --mu"), (["--calibrate-under", "ldp"], "give --mu"),
    (["--mu", "1", "--calibrate-under", "pndp"], "trust model pndp needs"),
    (["--mu", "1", "--mechanism", "none"], "no noise to scale"),
    (["--steps", "7"], "steps must be epochs * period, got steps=7"),
    (["--participation", "every-step", "--steps", "7", "--epochs", "2"], "--steps must be epochs * period"),
    (["--participation", "every-step", "--steps", "7", "--epochs", "20", "--period", "16"], "with 20 epochs of 16"),
    (["--participation", "every-step", "--steps", "0"], "steps must be"),
    (["--participation", "cylic"], "did you mean 'cyclic'?"), (["--release", "some"], "unknown release 'some'"),
    (["--bound", "exat"], "did you mean 'exact'?"), (["--adjacency", "replace"], "did you mean 'replace-one'?"),
    (["--delta", "1"], "delta must be"), (["--clip-norm", "0"], "clip_norm must be"),
    (["--mechanism", "dpdsgd"], "did you mean 'dp-dsgd'?"), (["--mechanism", "decor", "--set", "sigma=2"], "sigma"),
    (["--mechanism", "zip-dl", "--gossip", "uniform"], "symmetric"), (["--jobs", "0"], "jobs must be"),
    (["--unit", "users"], "unknown unit 'users'; did you mean 'user'"),
    (["--unit", "user"], "--unit user needs --participation every-step"),
    ([*PATH, "--unit", "user", "--lipschitz", "1"], "--lipschitz belongs to per-record clipping"),
    (["--same-steps"], "give --owners"), (["--owners", "2", "--victims", "Medici"], "leave out --victims"),
    (["--owners", "Medici"], "must be a number Q or groups of labels A+B,C+D, got 'Medici'"),
    (["--owners", "Medici+Medicci"], "did you mean 'Medici'?"),
    (["--owners", "2", "--participation", "balls-in-bins", "--epsilon", "1", "--delta", "1e-6"], "several owners"),
    (["--out", __file__], "it is a file; give a folder"),
)  # fmt: skip
def test_refused_in_one_line(arguments, message, capsys):
    refused(capsys, message, "account", *arguments)


def test_table_and_sentences(capsys):
    user = ["--participation", "every-step", "--steps", "10", "--gossip", "uniform", "--adjacency", "zero-out"]
    output = " ".join(printed(capsys, "account", *FLORENTINE, *user, "--release", "none").split())
    for part in ("Medici", "mu by distance", "protects: a record of Medici", "non-adaptive gradients only"):
        assert part in output
    assert "for adaptive ones each victim has mu <= 3.163, epsilon" in output  # one number, and no column of it
    assert "│ 3.066 │" in output  # sqrt(9.3986) = 3.06571


@each(
    "options, rows",
    ([], ["all 5 nodes"]),
    (["--victims", "0,2"], ["all 2 victims"]),
    (["--participation", "balls-in-bins", "--epsilon", "3", "--delta", "1e-6"], ["all 5 nodes"]),
    (["--trust", "pndp", "--attackers", "0"], ["1, one of 2 victims", "2, one of 2 victims"]),
)
def test_equal_losses_are_one_row(options, rows, capsys):
    """Up to rounding; a row for each of ten equal nodes said nothing, and "the 10 largest" was not true of them."""
    output = printed(capsys, "account", *SMALL, *options)
    lines = [line for line in output.splitlines() if line.startswith(("all", "1, ", "2, "))]
    assert [line.partition("│")[0].strip() for line in lines] == rows
    assert "largest of" not in output


class TestFiles:
    def test_one_attacker(self, tmp_path, capsys):
        answer = account(capsys, *PATH, "--mu", "0.5", "--out", str(tmp_path / "a"))
        names = {path.name for path in (tmp_path / "a").iterdir()}
        assert names == FILES
        assert json.loads((tmp_path / "a" / "results.json").read_text()) == answer
        again = account(capsys, "--config", str(tmp_path / "a" / "results.json"))
        assert {**again, "seconds": 0} == {**answer, "seconds": 0}

    @pytest.mark.slow
    def test_all_attackers_then_another_question(self, tmp_path, capsys):
        ring = [*SMALL, "--trust", "pndp", "--release", "none", "--out", str(tmp_path)]
        answer = account(capsys, *ring, "--all-attackers", "--jobs", "1")
        assert set(answer) == COMMON_KEYS
        assert [each["attacker"] for each in answer["attackers"]] == ["0", "1", "2", "3", "4"]
        assert [row["victim"] for row in answer["attackers"][0]["victims"]] == ["1", "2", "3", "4"]
        assert answer["worst_mu"] == max(row["mu"] for each in answer["attackers"] for row in each["victims"])
        assert answer["worst_epsilon"] == max(row["epsilon"] for each in answer["attackers"] for row in each["victims"])
        with np.load(tmp_path / "pairwise.npz") as saved:
            assert list(saved["labels"]) == ["0", "1", "2", "3", "4"]
            for key in ("mu", "mu_adaptive"):
                assert np.isinf(np.diag(saved[key])).all()
                assert list(saved[key][1:, 0]) == [row[key] for row in answer["attackers"][0]["victims"]]
        assert (tmp_path / "pairwise.png").exists()
        alone = account(capsys, *ring, "--attackers", "0")
        assert alone["victims"] == answer["attackers"][0]["victims"]
        assert not list(tmp_path.glob("pairwise.*"))  # of the earlier question


ASKED = ["--participation", "balls-in-bins", "--epochs", "2", "--period", "3", "--adjacency", "zero-out"]
BINNED = ["--graph", "path:n=3", "--delta", "1e-5"]
BINS = BallsInBins(2, 3)


def account_bins(capsys, *arguments):
    return account(capsys, *BINNED, *arguments)


def test_epsilon_is_met_and_mu_is_null_under_the_keys_of_any_account(capsys):
    answer = account_bins(capsys, *ASKED, "--epsilon", "1.5")
    public = account_bins(capsys, "--epsilon", "1.5", *ASKED[2:])
    assert answer["noise_std"] < 0.9 * public["noise_std"]
    assert public["worst_epsilon_adaptive"] == pytest.approx(1.5, rel=1e-6)
    assert 1.49 < answer["worst_epsilon"] == answer["worst_epsilon_adaptive"] <= 1.5
    assert set(answer) == set(public)
    assert answer["worst_mu"] is answer["worst_mu_adaptive"] is None
    assert answer["participation"] == {"scheme": "balls-in-bins", "epochs": 2, "bins": 3}
    for part in ("balls-in-bins (epochs=2, bins=3)", "epsilon: 1.5 at delta = 1e-05", "adaptive or non-adaptive"):
        assert part in answer["guarantee"]
    for row, other in zip(answer["victims"], public["victims"], strict=True):
        assert set(row) == set(other)
        null = ("mu", "mu_adaptive", "sensitivity_squared", "adaptive_sensitivity_squared")
        assert {row[key] for key in null} == {None}
        assert row["epsilon"] == row["epsilon_adaptive"] <= answer["worst_epsilon"]


def test_every_victim_has_the_number_of_its_own_encoder(capsys):
    answer = account_bins(capsys, *ASKED, "--noise-std", "2", "--mechanism", "mafalda-l", "--victims", "0,1")
    dynamics = dynamics_on("path:n=3")
    causal = registry.build("mafalda-l", dynamics, BINS).noise.causal
    options = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    for u, row in enumerate(answer["victims"]):
        alone = mfdl.account(mf_dsgd(dynamics, BINS, causal.column_encoder(u)), Privacy(**options), noise_std=2.0)
        assert row["epsilon"] == pytest.approx(alone.epsilon(1e-5), rel=1e-9)
    first, second = (row["epsilon"] for row in answer["victims"])
    assert abs(first - second) > 1e-3 * first
    assert answer["worst_epsilon"] == max(first, second)


def test_a_victim_that_attacks_and_no_noise_are_infinite_and_pictures_are_drawn(capsys, tmp_path):
    pndp = ["--trust", "pndp", "--attackers", "0"]
    answer = account_bins(capsys, *ASKED, *pndp, "--victims", "0,2", "--noise-std", "2", "--out", str(tmp_path))
    attacker, victim = answer["victims"]
    assert (attacker["epsilon"], attacker["distance"], victim["distance"]) == ("inf", 0, 2)
    assert np.isfinite(victim["epsilon"])
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "ε at δ = 1e-05" in (tmp_path / "account.svg").read_text()
    assert json.loads((tmp_path / "results.json").read_text()) == answer
    none = account_bins(capsys, *ASKED, "--mechanism", "none")
    assert {row["epsilon"] for row in none["victims"]} == {none["worst_epsilon"]} == {"inf"}
    assert "no finite guarantee" in none["guarantee"]


def test_the_table_has_no_column_of_mu(capsys):
    output = " ".join(
        printed(capsys, "account", *BINNED, *ASKED, "--noise-std", "2", "--trust", "pndp", "--attackers", "0").split()
    )
    assert "epsilon by distance" in output
    assert "mu by distance" not in output
    assert "│ mu" not in output
    assert "no mu" in output


@each(
    "arguments, message",
    (["--mu", "1"], "--mu 1.0: --participation balls-in-bins has no mu; give --epsilon"),
    (["--noise-multiplier", "1"], "give --noise-std, or --epsilon"), (["--lipschitz", "1"], "--lipschitz 1.0"),
    (["--trust", "pndp", "--attackers", "0", "--release", "none"], "--release none"),
    (["--trust", "pndp", "--all-attackers"], "--all-attackers: "), (["--unit", "user"], "--unit user needs"),
    (["--steps", "7"], "steps must be"), (["--epsilon", "0"], "epsilon must be"),
    (["--epsilon", "1", "--noise-std", "1"], "got --noise-std and --epsilon"),
    (["--mechanism", "zip-dl"], "take dp_dsgd, decor or corn"),
    (["--epsilon", "1", "--mechanism", "none"], "no noise to scale"),
)  # fmt: skip
def test_what_has_no_meaning_there_is_refused_in_one_line(arguments, message, capsys):
    refused(capsys, message, "account", *BINNED, *ASKED, *arguments)


def test_balls_in_bins_are_k_epochs_of_b_bins():
    scheme = AccountConfig(participation="balls-in-bins", epochs=2, period=3).scheme()
    assert (scheme, scheme.public) == (BINS, Cyclic(epochs=2, period=3))


@pytest.mark.parametrize("name", ["mafalda", "mafalda@last:2", "bsr", "dp-dsgd"])
def test_an_algorithm_of_secret_bins_is_that_of_public_ones_but_for_who_knows_the_map(name):
    dynamics = dynamics_on("path:n=3")
    public, secret = (registry.build(name, dynamics, scheme) for scheme in (BINS.public, BINS))
    assert (secret.participation, secret.name) == (BINS, public.name)
    assert registry.build_tuned(name, dynamics, BINS).content_hash == secret.content_hash != public.content_hash
    encoders = [algorithm.noise.causal.column_inverse(0) for algorithm in (public, secret)]
    assert np.array_equal(*encoders)

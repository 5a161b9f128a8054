"""`mfdl account`: keys pinned, published numbers reached, bad input refused in one line."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import mfdl
from mfdl.cli import main
from mfdl.participation import EveryStep
from mfdl.privacy.accounting import victim_losses

VICTIM_KEYS = {
    "victim", "distance", "sensitivity_squared", "adaptive_sensitivity_squared", "mu", "mu_adaptive", "epsilon",
    "epsilon_adaptive", "bound", "adaptive_bound", "adaptive_by",
}  # fmt: skip
COMMON_KEYS = {
    "trust", "adjacency", "unit", "participation", "release", "adaptive", "attackers", "noise_std", "clip_norm",
    "delta", "mechanism", "graph", "graph_hash", "gossip", "nodes", "steps", "guarantee", "notes", "versions", "config",
    "seconds", "worst_mu", "worst_mu_adaptive",
}  # fmt: skip
USER_LEVEL = ["--participation", "every-step", "--steps", "10", "--gossip", "uniform", "--adjacency", "zero-out"]
PNDP = ["--trust", "pndp", "--attackers", "Acciaiuoli"]
SMALL = ["--graph", "ring:n=5", "--epochs", "2", "--period", "2"]


def account(capsys, *arguments):
    assert main(["account", "--json", *arguments]) == 0
    said = capsys.readouterr()
    return json.loads(said.out)


def refused(capsys, *arguments):
    assert main(["account", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def by_name(answer):
    return {row["victim"]: row for row in answer["victims"]}


class TestAnswer:
    def test_keys(self, capsys):
        answer = account(capsys, *PNDP, *USER_LEVEL)
        assert set(answer) == COMMON_KEYS | {"victims"}
        assert len(answer["victims"]) == 14
        assert all(set(row) == VICTIM_KEYS for row in answer["victims"])
        assert answer["attackers"] == ["Acciaiuoli"]
        assert answer["participation"] == {"scheme": "every-step", "steps": 10}
        assert (answer["trust"], answer["release"], answer["adaptive"]) == ("pndp", "all", False)
        assert (answer["noise_std"], answer["delta"], answer["clip_norm"]) == (1.0, 1e-6, 1.0)

    def test_all_attackers(self, capsys):
        answer = account(capsys, "--trust", "pndp", "--all-attackers", "--jobs", "1", *USER_LEVEL, "--release", "none")
        assert set(answer) == COMMON_KEYS
        assert [one["attacker"] for one in answer["attackers"]][:2] == ["Acciaiuoli", "Medici"]
        for one in answer["attackers"]:
            assert set(one) == {"attacker", "victims"}
            assert len(one["victims"]) == 14
            assert one["attacker"] not in {row["victim"] for row in one["victims"]}
        alone = account(capsys, *PNDP, *USER_LEVEL, "--release", "none")
        assert answer["attackers"][0]["victims"] == alone["victims"]
        assert answer["worst_mu"] == max(row["mu"] for one in answer["attackers"] for row in one["victims"])

    def test_florentine_numbers_of_the_published_figure(self, capsys):
        answer = account(capsys, *PNDP, *USER_LEVEL, "--release", "none")
        rows = answer["victims"]
        assert by_name(answer)["Medici"]["sensitivity_squared"] == pytest.approx(9.3986, abs=5e-5)
        assert by_name(answer)["Medici"]["bound"] == "exact"
        means = {d: np.mean([row["sensitivity_squared"] for row in rows if row["distance"] == d]) for d in (1, 2, 3, 4)}
        for distance, mean in {1: 9.40, 2: 0.454, 3: 0.147, 4: 0.0488}.items():
            assert means[distance] == pytest.approx(mean, rel=5e-3)
        assert all(row["sensitivity_squared"] <= 10 for row in rows)
        assert all(row["adaptive_sensitivity_squared"] == pytest.approx(10) for row in rows)
        assert all(row["mu"] == pytest.approx(np.sqrt(row["sensitivity_squared"])) for row in rows)

    def test_certified_is_above_exact_and_not_above_ldp(self, capsys):
        options = (*PNDP, *USER_LEVEL, "--release", "none")
        exact = by_name(account(capsys, *options))
        certified = by_name(account(capsys, *options, "--bound", "certified"))
        for name, row in certified.items():
            assert exact[name]["sensitivity_squared"] <= row["sensitivity_squared"] * (1 + 1e-6)
            assert row["sensitivity_squared"] <= 10 * (1 + 1e-12)
        assert certified["Medici"]["bound"] == "upper"

    def test_sensitivities_do_not_depend_on_the_noise(self, capsys):
        one = account(capsys, *SMALL, "--trust", "pndp", "--attackers", "#0")
        two = account(
            capsys, *SMALL, "--trust", "pndp", "--attackers", "#0", "--noise-std", "3", "--clip-norm", "2",
            "--adjacency", "zero-out",
        )  # fmt: skip
        for a, b in zip(one["victims"], two["victims"], strict=True):
            assert a["sensitivity_squared"] == b["sensitivity_squared"]
            assert a["mu"] == pytest.approx(3 * b["mu"])  # 2 / 1 against 2 / 3

    def test_ldp_is_adaptive(self, capsys):
        answer = account(capsys, *SMALL)
        assert answer["adaptive"] is True
        assert answer["attackers"] == []
        assert answer["release"] == "not applicable"
        assert answer["notes"] == []
        for row in answer["victims"]:
            assert row["distance"] is None
            assert row["sensitivity_squared"] == row["adaptive_sensitivity_squared"] == pytest.approx(2)
            assert row["adaptive_by"] == "the view"

    def test_lipschitz_lowers_adaptive_numbers(self, capsys):
        options = (*PNDP, *USER_LEVEL, "--release", "none")
        plain = by_name(account(capsys, *options))
        shifted = by_name(account(capsys, *options, "--lipschitz", "1"))
        far = shifted["Lamberteschi"]
        assert far["adaptive_by"] == "shift reduction"
        assert far["sensitivity_squared"] <= far["adaptive_sensitivity_squared"] < 1
        assert plain["Lamberteschi"]["adaptive_by"] == "all messages seen"
        assert (far["bound"], far["adaptive_bound"]) == ("exact", "upper")  # of shift reduction, whatever the view
        assert plain["Medici"]["adaptive_bound"] == "upper"

    def test_each_number_has_the_bound_of_its_loss(self, capsys):
        options = ["--graph", "path:n=4", "--participation", "every-step", "--steps", "4", "--trust", "pndp"]
        answer = account(capsys, *options, "--attackers", "0", "--release", "none", "--lipschitz", "1")
        algorithm = mfdl.algorithms.dp_dsgd(
            mfdl.Dynamics(mfdl.gossip.metropolis_hastings(mfdl.graphs.load("path:n=4"))), EveryStep(4)
        )
        losses = victim_losses(algorithm, mfdl.trust.PNDP([0]), release="none", lipschitz=1.0)
        found = {(row["bound"], row["adaptive_bound"]) for row in answer["victims"]}
        assert found == {("exact", "upper")}
        assert [(one.bound, one.adaptive_bound) for one in losses] == [
            (row["bound"], row["adaptive_bound"]) for row in answer["victims"]
        ]
        for row in account(capsys, *SMALL)["victims"]:
            assert row["bound"] == row["adaptive_bound"] == "exact"

    @pytest.mark.parametrize(
        ("trust", "attackers"),
        [
            (["eavesdropper"], []),
            (["colluding", "--colluders", "0,#2"], ["0", "2"]),
            (["coalitions", "--coalition-size", "1"], []),
            (["full-collusion"], []),
            (["central"], []),
            (["released", "--release", "average"], []),
            (["pndp", "--attackers", "3,0"], ["0", "3"]),
        ],
    )
    def test_every_trust_name(self, trust, attackers, capsys):
        answer = account(capsys, *SMALL, "--mechanism", "decor", "--set", "sigma_pair=2", "--trust", *trust)
        assert answer["attackers"] == attackers
        assert len(answer["victims"]) == 5 - len(attackers)
        assert {row["victim"] for row in answer["victims"]}.isdisjoint(attackers)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["cyclic"], {"scheme": "cyclic", "epochs": 2, "period": 2}),
            (["once-per-epoch"], {"scheme": "once-per-epoch", "epochs": 2, "period": 2}),
            (["every-step"], {"scheme": "every-step", "steps": 4}),
            (["single"], {"scheme": "single", "steps": 4}),
            (
                ["min-separation", "--steps", "5"],
                {"scheme": "min-separation", "steps": 5, "max_participations": 2, "separation": 2},
            ),
        ],
    )
    def test_participation(self, options, expected, capsys):
        assert account(capsys, *SMALL, "--participation", *options)["participation"] == expected


class TestUnit:
    def test_the_default_is_a_record(self, capsys):
        answer = account(capsys, *SMALL)
        assert answer["unit"] == "record"
        assert "a record of" in answer["guarantee"]
        assert "noise scaled to the sum of clipped gradients" in answer["guarantee"]

    def test_a_user(self, capsys):
        user = account(capsys, *PNDP, *USER_LEVEL, "--unit", "user", "--noise-std", "2")
        record = account(capsys, *PNDP, *USER_LEVEL, "--noise-std", "2")
        assert user["unit"] == "user"
        assert "all data of Medici (user level)" in user["guarantee"]
        assert "noise scaled to clipped mean gradients" in user["guarantee"]
        assert user["victims"] == record["victims"]  # whose data it is decides what is clipped, not the number

    def test_calibrated_for_a_user(self, capsys):
        answer = account(
            capsys, *SMALL, "--participation", "every-step", "--unit", "user", "--mu", "0.7", "--clip-norm", "3"
        )
        assert answer["noise_std"] == pytest.approx(2 * 3 * np.sqrt(4) / 0.7)

    def test_shown(self, capsys, tmp_path):
        arguments = [*PNDP, *USER_LEVEL, "--unit", "user", "--out", str(tmp_path)]
        assert main(["account", *arguments]) == 0
        assert "user level" in " ".join(capsys.readouterr().out.split())
        lines = re.findall("<!-- (.*?) -->", (tmp_path / "account.svg").read_text())  # the texts, as they are wrapped
        assert "noise std 1, user level, zero-out with clipping norm 1" in " ".join(lines)
        assert json.loads((tmp_path / "results.json").read_text())["config"]["unit"] == "user"


class TestNoise:
    def test_mu_is_met_and_not_exceeded(self, capsys):
        answer = account(capsys, *SMALL, "--mu", "0.7")
        assert answer["worst_mu_adaptive"] <= 0.7
        assert answer["worst_mu_adaptive"] == pytest.approx(0.7)

    def test_mu_for_the_worst_of_all_attackers(self, capsys):
        answer = account(
            capsys, *SMALL, "--trust", "pndp", "--all-attackers", "--jobs", "1", "--mu", "0.7", "--lipschitz", "0.5",
            "--release", "none",
        )  # fmt: skip
        assert 0.69 < answer["worst_mu_adaptive"] <= 0.7 * (1 + 1e-9)

    def test_calibrated_under_another_model(self, capsys):
        under_ldp = account(capsys, *SMALL, "--mu", "0.7")["noise_std"]
        answer = account(
            capsys, *SMALL, "--trust", "pndp", "--attackers", "0", "--release", "none", "--mu", "0.7",
            "--calibrate-under", "ldp",
        )  # fmt: skip
        assert answer["noise_std"] == under_ldp
        assert answer["worst_mu"] < 0.7

    def test_calibrated_under_a_model_that_needs_more_noise(self, capsys):
        options = [*SMALL, "--mechanism", "decor", "--set", "sigma_pair=2", "--mu", "0.7"]
        colluding = [*options, "--trust", "colluding", "--colluders", "0"]
        more = account(capsys, *colluding)["noise_std"]
        outside = [*options, "--trust", "eavesdropper"]
        assert account(capsys, *outside)["noise_std"] < 0.99 * more
        found = account(capsys, *outside, "--calibrate-under", "colluding", "--colluders", "0")
        assert found["noise_std"] == more
        assert found["worst_mu_adaptive"] < 0.7

    @pytest.mark.parametrize(
        "attackers", [["pndp", "--all-attackers", "--jobs", "1"], ["pndp", "--attackers", "0"], ["ldp"]]
    )
    def test_calibrated_under_the_model_that_is_asked(self, attackers, capsys):
        options = [*SMALL, "--trust", *attackers, "--mu", "0.7"]
        named = account(capsys, *options, "--calibrate-under", attackers[0])
        assert named["noise_std"] == account(capsys, *options)["noise_std"]
        assert named["worst_mu_adaptive"] == pytest.approx(0.7)

    def test_multiplier(self, capsys):
        answer = account(capsys, *SMALL, "--noise-multiplier", "2")
        assert answer["worst_mu_adaptive"] == pytest.approx(0.5)
        assert answer["noise_std"] == pytest.approx(2 * np.sqrt(2) * 2)

    def test_no_noise_is_infinite_and_no_error(self, capsys):
        answer = account(capsys, *SMALL, "--noise-std", "0")
        for row in answer["victims"]:
            assert row["mu"] == row["epsilon"] == row["mu_adaptive"] == row["epsilon_adaptive"] == "inf"
            assert row["sensitivity_squared"] == pytest.approx(2)
        assert any("noise_std is 0" in note for note in answer["notes"])
        assert "no finite guarantee" in answer["guarantee"]

    def test_mechanism_without_noise(self, capsys):
        for given in ([], ["--noise-std", "2"]):
            answer = account(capsys, *SMALL, "--mechanism", "none", *given)
            assert answer["noise_std"] == 0.0
            for row in answer["victims"]:
                assert row["sensitivity_squared"] == row["mu"] == row["mu_adaptive"] == "inf"
            assert any("noise_std is 0" in note for note in answer["notes"])
            assert "no finite guarantee" in answer["guarantee"]


class TestBadInput:
    def test_attacker_not_in_the_graph(self, capsys):
        assert "did you mean 'Medici'?" in refused(capsys, "--trust", "pndp", "--attackers", "Medicci")

    def test_index_beyond_the_graph(self, capsys):
        assert "'#0' to '#14'" in refused(capsys, "--trust", "pndp", "--attackers", "#15")

    def test_victim_not_in_the_graph(self, capsys):
        assert "did you mean 'Strozzi'?" in refused(capsys, *PNDP, "--victims", "Strozi")

    def test_victim_that_attacks_is_infinite_and_said_so(self, capsys):
        answer = account(capsys, *PNDP, *USER_LEVEL, "--victims", "Medici,Acciaiuoli", "--release", "none")
        rows = by_name(answer)
        assert list(rows) == ["Acciaiuoli", "Medici"]
        assert rows["Acciaiuoli"]["mu"] == rows["Acciaiuoli"]["sensitivity_squared"] == "inf"
        assert rows["Acciaiuoli"]["distance"] == 0
        assert rows["Medici"]["sensitivity_squared"] == pytest.approx(9.3986, abs=5e-5)
        assert "Acciaiuoli is one of the attackers: its loss is infinite." in answer["notes"]

    def test_everybody_attacks(self, capsys):
        assert "no victim is left" in refused(
            capsys, "--graph", "path:n=2", "--trust", "pndp", "--attackers", "0,1", "--gossip", "uniform"
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--trust", "pnpd", "--attackers", "Medici"], "unknown trust model 'pnpd'; did you mean 'pndp'?"),
            (["--trust", "pndp"], "trust model pndp needs --attackers A,B or --all-attackers"),
            (["--trust", "pndp", "--attackers", ","], "--attackers must name at least one node"),
            (["--trust", "colluding"], "needs --colluders"),
            (["--trust", "coalitions"], "needs --coalition-size"),
            (["--attackers", "Medici"], "--attackers belongs to trust model pndp, not to ldp"),
            (["--trust", "pndp", "--attackers", "Medici", "--all-attackers"], "not both"),
            ([*PNDP, "--lipschitz", "-1"], "lipschitz must be"),
            (["--noise-std", "-1"], "noise_std must be"),
            (["--noise-std", "nan"], "noise_std must be"),
            (["--mu", "0"], "mu must be"),
            (["--mu", "1", "--noise-std", "1"], "got --noise-std and --mu"),
            (["--calibrate-under", "ldp"], "give --mu"),
            (["--mu", "1", "--calibrate-under", "pndp"], "trust model pndp needs"),
            (["--mu", "1", "--mechanism", "none"], "no noise to scale"),
            (["--steps", "7"], "steps must be epochs * period, got steps=7"),
            (["--participation", "every-step", "--steps", "7", "--epochs", "2"], "--steps must be epochs * period"),
            (["--participation", "every-step", "--steps", "0"], "steps must be"),
            (["--participation", "cylic"], "did you mean 'cyclic'?"),
            (["--release", "some"], "unknown release 'some'"),
            (["--bound", "exat"], "did you mean 'exact'?"),
            (["--adjacency", "replace"], "did you mean 'replace-one'?"),
            (["--delta", "1"], "delta must be"),
            (["--clip-norm", "0"], "clip_norm must be"),
            (["--mechanism", "dpdsgd"], "did you mean 'dp-dsgd'?"),
            (["--mechanism", "decor", "--set", "sigma=2"], "sigma"),
            (["--mechanism", "zip-dl", "--gossip", "uniform"], "symmetric"),
            (["--jobs", "0"], "jobs must be"),
            (["--unit", "users"], "unknown unit 'users'; did you mean 'user'"),
            (["--unit", "user"], "--unit user needs --participation every-step"),
            ([*PNDP, *USER_LEVEL, "--unit", "user", "--lipschitz", "1"], "--lipschitz belongs to per-record clipping"),
        ],
    )
    def test_one_line(self, arguments, message, capsys):
        assert message in refused(capsys, *arguments)

    def test_out_that_is_a_file(self, tmp_path, capsys):
        (tmp_path / "file").write_text("")
        assert "it is a file; give a folder" in refused(capsys, *SMALL, "--out", str(tmp_path / "file"))


class TestShown:
    def test_table_and_sentences(self, capsys):
        assert main(["account", *PNDP, *USER_LEVEL, "--release", "none"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        for part in ("Medici", "mu by distance", "a record of Medici is covered by mu-GDP", "fixed in advance only"):
            assert part in shown
        assert "3.066" in shown  # sqrt(9.3986) = 3.06571, rounded up
        assert "3.163" in shown  # sqrt(10) = 3.16228, rounded up
        assert "│ <= 3.163 │" in shown  # an upper bound, which the fixed number beside it is not
        assert "│ 3.066 │" in shown

    def test_help_stays_light(self):
        code = (
            "import sys\nfrom mfdl.cli import main\nmain(['account', '--help'])\nmain(['trust', 'list', '--json'])\n"
            "print([m for m in ('torch', 'cvxpy', 'scipy', 'matplotlib', 'networkx', 'joblib') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


class TestFiles:
    def test_one_attacker(self, tmp_path, capsys):
        answer = account(capsys, *PNDP, *USER_LEVEL, "--out", str(tmp_path / "a"))
        names = {path.name for path in (tmp_path / "a").iterdir()}
        assert names == {"results.json", "account.png", "account.svg", "graph.png", "graph.svg"}
        assert json.loads((tmp_path / "a" / "results.json").read_text()) == answer
        svg = (tmp_path / "a" / "account.svg").read_text()
        assert "<svg" in svg

    def test_all_attackers_then_another_question(self, tmp_path, capsys):
        ring = [*SMALL, "--trust", "pndp", "--release", "none"]
        answer = account(capsys, *ring, "--all-attackers", "--jobs", "2", "--out", str(tmp_path))
        with np.load(tmp_path / "pairwise.npz") as saved:
            assert list(saved["labels"]) == ["0", "1", "2", "3", "4"]
            mu, adaptive = saved["mu"], saved["mu_adaptive"]
        assert np.isinf(np.diag(mu)).all()
        first = {row["victim"]: row for row in answer["attackers"][0]["victims"]}
        for u in range(1, 5):
            assert mu[u, 0] == first[str(u)]["mu"]
            assert adaptive[u, 0] == first[str(u)]["mu_adaptive"]
        assert (tmp_path / "pairwise.png").exists()
        account(capsys, *ring, "--attackers", "0", "--out", str(tmp_path))
        assert not (tmp_path / "pairwise.png").exists()  # of the earlier question
        assert not (tmp_path / "pairwise.npz").exists()

    @pytest.mark.parametrize("arguments", [["--trust", "ldp"], ["--mechanism", "none"], ["--noise-std", "0"]])
    def test_pictures_without_a_place_or_a_finite_loss(self, arguments, tmp_path, capsys):
        account(capsys, *SMALL, *arguments, "--out", str(tmp_path))
        assert (tmp_path / "account.png").stat().st_size > 5000

    def test_results_are_a_config(self, tmp_path, capsys):
        first = account(capsys, *SMALL, "--trust", "pndp", "--attackers", "1", "--mu", "0.5", "--out", str(tmp_path))
        again = account(capsys, "--config", str(tmp_path / "results.json"))
        for answer in (first, again):
            answer.pop("seconds")
        assert again == first


def test_a_covariance_is_made_against_the_coalitions_asked_about(capsys):
    """On a ring of 8 the covariance for an outsider loses more to single nodes than one made for them."""
    asked = ["--graph", "ring:n=8", "--mechanism", "corn", "--trust", "coalitions", "--coalition-size", "1"]
    losses = {}
    for size in (None, 0):
        more = [] if size is None else ["--set", f"coalition_size={size}"]
        answer = account(capsys, *asked, *more, "--epochs", "2", "--period", "1")
        losses[size] = max(one["sensitivity_squared"] for one in answer["victims"])
    assert losses[None] <= 2 * (1 + 1e-9) < losses[0]

"""`mfdl factorize`: the contract of flags, JSON, exit codes and the file it keeps."""

import json

import numpy as np
import pytest

import mfdl
from mfdl.cli import main

SMALL = ["--graph", "path:n=4", "--epochs", "3", "--period", "4"]
KEYS = {
    "mechanism", "nodes", "steps", "epochs", "period", "objective", "loss", "lower_bound", "gap", "sensitivity",
    "status", "iterations", "seconds",
}  # fmt: skip
ASKED_KEYS = {"error_weights", "momentum", "weight_decay", "lr"}
ADDED_KEYS = {"graph", "gossip", "graph_hash", "notes"} | ASKED_KEYS


def factorize(capsys, *arguments, code=0):
    assert main(["factorize", *SMALL, "--json", *arguments]) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def problem():
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(mfdl.graphs.load("path:n=4")))
    part = mfdl.Cyclic(epochs=3, period=4)
    return dynamics, part


@pytest.mark.parametrize(
    ("mechanism", "status"),
    [
        ("mafalda", "optimal"),
        ("mafalda-classes", "optimal"),
        ("mafalda-l", "optimal"),
        ("d-mf", "fixed"),
        ("bsr", "fixed"),
    ],
)
def test_json_keys_and_certificate(mechanism, status, capsys):
    answer = factorize(capsys, "--mechanism", mechanism)
    assert set(answer) == KEYS | ADDED_KEYS
    assert answer["status"] == status
    assert (answer["nodes"], answer["steps"], answer["epochs"], answer["period"]) == (4, 12, 3, 4)
    assert answer["gap"] == pytest.approx(answer["loss"] / answer["lower_bound"] - 1)
    assert 0 <= answer["gap"] <= (1e-4 if status == "optimal" else 2.0)
    assert answer["sensitivity"] == pytest.approx(1.0)


def test_loss_is_the_objective_of_the_algorithm_at_the_decentralized_gram(problem, capsys):
    dynamics, part = problem
    H = mfdl.factorization.problem(dynamics, part).error_gram
    for name in ("d-mf", "bsr"):
        C = mfdl.algorithms.registry.build(name, dynamics, part).noise.encoder
        X = C.T @ C
        squared = max(np.abs(X[np.ix_(p, p)]).sum() for p in part.patterns())
        assert factorize(capsys, "--mechanism", name)["loss"] == pytest.approx(squared * np.trace(H @ np.linalg.inv(X)))


def test_the_order_of_the_mechanisms(capsys):
    loss = {name: factorize(capsys, "--mechanism", name)["loss"] for name in ("mafalda-l", "mafalda", "d-mf", "bsr")}
    assert loss["mafalda-l"] <= loss["mafalda"] * (1 + 1e-4)
    assert loss["mafalda"] <= min(loss["d-mf"], loss["bsr"]) * (1 + 1e-4)


def test_objective_and_solver(capsys):
    post = factorize(capsys)["loss"]
    message = factorize(capsys, "--objective", "message")["loss"]
    assert message > post
    autodiff = factorize(capsys, "--solver", "autodiff", "--device", "cpu")
    assert autodiff["status"] == "optimal"
    assert autodiff["loss"] == pytest.approx(post, rel=2e-4)


def test_stopped_exits_3_with_the_json(capsys):
    answer = factorize(capsys, "--max-iterations", "1", "--tolerance", "1e-9", code=3)
    assert answer["status"] == "stopped"
    assert answer["loss"] >= answer["lower_bound"]


def test_stopped_prefix_sums_do_not_pass_as_fixed(capsys):
    answer = factorize(capsys, "--mechanism", "d-mf", "--max-iterations", "1", "--tolerance", "1e-9", code=3)
    assert answer["status"] == "stopped"
    assert any("stopped" in note for note in answer["notes"])


@pytest.mark.parametrize("mechanism", ["mafalda", "mafalda-l"])
def test_out_file_and_file_mechanism(mechanism, tmp_path, capsys, problem):
    file = tmp_path / "deep" / "enc.npz"
    answer = factorize(capsys, "--mechanism", mechanism, "--out", str(file))
    with np.load(file, allow_pickle=False) as saved:
        assert set(saved.files) == {"encoder", "error_gram", "loss", "lower_bound", "header"}
    kept = mfdl.factorization.load(file)
    assert kept.loss == answer["loss"]
    assert kept.lower_bound == answer["lower_bound"]
    assert kept.encoder.shape == kept.error_gram.shape
    graph = mfdl.graphs.load("path:n=4")
    assert kept.header["graph_hash"] == mfdl.graphs.content_hash(graph)
    assert kept.header["gossip_hash"] == problem[0].gossip.content_hash
    assert kept.header["participation"] == {"scheme": "cyclic", "epochs": 3, "period": 4}
    assert kept.header["learning_rate"] == "constant, 1; H and loss are in units of its square"
    assert kept.header["node_labels"] == ["0", "1", "2", "3"]
    assert {"mfdl", "numpy", "scipy", "torch", "python"} <= set(kept.header["versions"])
    again = factorize(capsys, "--mechanism", f"file:{file}")
    assert again["status"] == "fixed"
    assert again["loss"] == pytest.approx(answer["loss"])
    assert again["lower_bound"] == pytest.approx(answer["lower_bound"])


def test_table_and_sentence(capsys):
    assert main(["factorize", *SMALL, "--mechanism", "bsr"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "lower bound" in shown
    assert "can save more than" in shown


def bad(capsys, *arguments):
    assert main(["factorize", *arguments, "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err


class TestBadInput:
    def test_disconnected(self, tmp_path, capsys):
        file = tmp_path / "g.csv"
        file.write_text("1,2\n3,4\n4,5\n")
        assert "--largest-component" in bad(capsys, "--graph", str(file))
        assert main(["factorize", "--graph", str(file), "--largest-component", "--epochs", "2", "--period", "2"]) == 0

    def test_rows_that_do_not_sum_to_one(self, tmp_path, capsys):
        W = np.eye(4)
        W[2, 3] = 0.25
        np.save(tmp_path / "w.npy", W)
        said = bad(capsys, "--graph", "path:n=4", "--gossip", str(tmp_path / "w.npy"))
        assert "row" in said
        assert "1.25" in said

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--gossip", "unifrom"], "did you mean 'uniform'"),
            (["--graph", "florentin"], "did you mean 'florentine'"),
            (["--objective", "post"], "unknown objective 'post'"),
            (["--solver", "densee"], "did you mean 'dense'"),
            (["--epochs", "0"], "epochs must be an integer >= 1"),
            (["--period", "-2"], "period must be an integer >= 1"),
            (["--tolerance", "0"], "tolerance must be"),
            (["--max-iterations", "0"], "max_iterations must be"),
            (["--jobs", "0"], "jobs must be"),
            (["--mechanism", "file:none.npz"], "no factorization file"),
            (["--mechanism", "none"], "unknown mechanism 'none'"),
            (["--mechanism", "mafalda-l", "--solver", "autodiff"], "--solver dense only"),
        ],
    )
    def test_values(self, arguments, message, capsys):
        assert message in bad(capsys, *arguments)

    @pytest.mark.parametrize("name", ["file/enc.npz", "enc.npy", "taken.npz"])
    def test_unwritable_output_is_found_before_the_work(self, name, tmp_path, capsys, monkeypatch):
        (tmp_path / "file").write_text("")
        (tmp_path / "taken.npz").mkdir()
        monkeypatch.setattr(mfdl.factorization, "solve_problem", None)  # would be a TypeError if it were reached
        before = sorted(tmp_path.rglob("*"))
        bad(capsys, *SMALL, "--out", str(tmp_path / name))
        assert sorted(tmp_path.rglob("*")) == before

    def test_file_made_for_other_steps(self, tmp_path, capsys):
        file = tmp_path / "e.npz"
        factorize(capsys, "--out", str(file))
        assert "was made for" in bad(capsys, "--graph", "path:n=4", "--mechanism", f"file:{file}")


# ---- noise over nodes -----------------------------------------------------------------------------------------------

SPATIAL_KEYS = {
    "mechanism", "graph", "nodes", "objective", "loss", "lower_bound", "gap", "status", "iterations", "seconds",
    "gossip", "graph_hash", "notes", "steps", "epochs", "period", "max_inverse_diagonal", "coalition", "groups",
    "horizon", "private_std", "sigma_local", "sigma_pair", "independent_loss", "bound_over",
} | ASKED_KEYS  # fmt: skip


def spatial(capsys, *arguments, code=0):
    assert main(["factorize", "--json", *arguments]) == code
    return json.loads(capsys.readouterr().out)


def test_corn_on_florentine(capsys):
    """tr(W R W^T) at r = 1: certified optimum 4.4637658, independent noise 5.6569615; r scales it."""
    answer = spatial(capsys, "--mechanism", "corn", "--tolerance", "1e-6")
    assert set(answer) == SPATIAL_KEYS
    assert answer["loss"] == pytest.approx(4.4637658, rel=2e-6)
    assert answer["independent_loss"] == pytest.approx(5.656961451)
    assert (answer["steps"], answer["epochs"], answer["period"]) == (None, None, None)
    assert answer["status"] == "optimal"
    assert answer["gap"] <= 1e-6
    scaled = spatial(capsys, "--mechanism", "corn", "--max-inverse-diagonal", "0.02")
    assert scaled["loss"] == pytest.approx(4.4637658 / 0.02, rel=2e-4)


def test_the_family_is_ordered(capsys):
    graph = ["--graph", "erdos-renyi:n=12,p=0.6,seed=1"]
    corn, pairwise, decor = (spatial(capsys, "--mechanism", m, *graph) for m in ("corn", "corn-pairwise", "decor"))
    assert corn["loss"] <= pairwise["loss"] * (1 + 1e-4)
    assert pairwise["loss"] == decor["loss"] <= decor["independent_loss"] * (1 + 1e-9)
    against_one = spatial(capsys, "--mechanism", "decor", "--coalition", "1", *graph)
    edges = spatial(capsys, "--mechanism", "corn", "--coalition", "1", "--tolerance", "1e-3", *graph)
    assert corn["loss"] < edges["loss"] <= against_one["loss"] * (1 + 1e-3)
    assert edges["groups"] > 12


def test_groups_from_a_file_and_the_covariance_as_a_mechanism(capsys, tmp_path):
    (tmp_path / "g.json").write_text(json.dumps([[0, 1, 2], [3, 4]]))
    kept = tmp_path / "R.npz"
    answer = spatial(
        capsys, "--mechanism", "corn", "--graph", "ring:n=5", "--groups", str(tmp_path / "g.json"), "--out", str(kept),
        "--tolerance", "1e-3",
    )  # fmt: skip
    assert answer["groups"] == 2
    asked = ["--graph", "ring:n=5", "--mechanisms", f"dp-dsgd,file:{kept}", "--trust", "eavesdropper", "--epochs", "1"]
    assert main(["compare", *asked, "--period", "2", "--seeds", "1", "--out", str(tmp_path / "c"), "--json"]) == 0
    objective = [one["objective"] for one in json.loads(capsys.readouterr().out)["mechanisms"]]
    assert objective[1] < objective[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mechanism", "corn", "--epochs", "3"], "--epochs does not apply to corn"),
        (["--mechanism", "decor", "--period", "3"], "--period does not apply to decor"),
        (["--mechanism", "mafalda", "--coalition", "1"], "--coalition does not apply to mafalda"),
        (["--mechanism", "corn-pairwise", "--coalition", "1"], "--coalition does not apply"),
        (["--mechanism", "decor", "--groups", "g.json"], "--groups does not apply"),
        (["--mechanism", "corn", "--coalition", "15"], "below the number of nodes"),
        (["--mechanism", "corn", "--groups", "absent.json"], "cannot read"),
        (["--mechanism", "corn", "--max-inverse-diagonal", "0"], "max_inverse_diagonal"),
        (["--mechanism", "corm"], "did you mean 'corn'"),
        (["--mechanism", "corn", "--coalition", "1", "--solver", "simplex"], "solver"),
    ],
)
def test_bad_options_of_noise_over_nodes(capsys, arguments, text):
    assert main(["factorize", *arguments]) == 2
    said = capsys.readouterr()
    assert text in said.err
    assert said.out == ""


def test_a_covariance_is_not_put_to_the_test_of_encoders(capsys, tmp_path):
    kept = tmp_path / "R.npz"
    assert main(["factorize", "--mechanism", "corn", "--graph", "ring:n=5", "--out", str(kept)]) == 0
    capsys.readouterr()
    assert main(["factorize", "--mechanism", f"file:{kept}", "--graph", "ring:n=5"]) == 2
    assert "holds noise correlated over nodes" in capsys.readouterr().err
    assert main(["compare", "--graph", "star:n=5", "--mechanisms", f"file:{kept}", "--trust", "eavesdropper"]) == 2
    assert "made for another gossip matrix" in capsys.readouterr().err


@pytest.mark.parametrize("mechanism", ["mafalda", "time-space", "corn"])
def test_the_loss_is_in_units_of_the_squared_learning_rate(capsys, mechanism):
    """Only lr times decay counts: half the rate and twice the decay are the same problem, in the same units."""

    def loss(lr, decay):
        options = [] if mechanism == "corn" else ["--epochs", "2", "--period", "2"]
        rates = ["--lr", str(lr), "--weight-decay", str(decay)]
        assert main(["factorize", "--mechanism", mechanism, "--graph", "ring:n=4", *options, *rates, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["loss"]

    assert loss(0.5, 0.4) == pytest.approx(loss(1.0, 0.2), rel=1e-12)
    if mechanism != "corn":  # one step: its decay meets no noise of an earlier one
        assert loss(0.5, 0.4) < 0.95 * loss(0.5, 0.0)


def test_the_certificate_says_what_it_ranges_over(capsys, tmp_path):
    (tmp_path / "g.json").write_text("[[0, 1], [1, 2]]")
    grouped = ["factorize", "--mechanism", "corn", "--graph", "ring:n=6", "--groups", str(tmp_path / "g.json")]
    decor = ["factorize", "--mechanism", "decor", "--graph", "ring:n=6", "--coalition", "1"]
    for arguments, text in (
        (grouped, "No private noise with these 2 seed groups, against an outsider, can save"),
        (decor, "against an outsider, can save"),
        (["factorize", "--mechanism", "corn", "--graph", "ring:n=6"], "No covariance over nodes can save"),
    ):
        assert main(arguments) == 0
        assert text in " ".join(capsys.readouterr().out.split())


def test_spatial_table(capsys):
    assert main(["factorize", "--mechanism", "decor", "--graph", "ring:n=6"]) == 0
    shown = capsys.readouterr().out
    for part in ("pairwise std", "private std", "an outsider", "No covariance over nodes can save"):
        assert part in shown


# ---- noise over time and nodes --------------------------------------------------------------------------------------

JOINT_KEYS = KEYS | ADDED_KEYS | {"coalition", "groups", "private_std", "independent_loss", "bound_over"}


def test_florentine_over_time_and_nodes(capsys):
    """T = 32: independent 4374.8, MAFALDA 1702.1, time-space 1192.3, adapted 1123.2, the joint optimum 1085.5."""
    asked = ["--graph", "florentine", "--epochs", "4", "--period", "8"]
    found = {
        name: factorize(capsys, *asked, "--mechanism", name)
        for name in ("mafalda", "time-space", "adapted", "space-time")
    }
    assert set(found["adapted"]) == JOINT_KEYS
    loss = {name: answer["loss"] for name, answer in found.items()}
    assert loss["mafalda"] == pytest.approx(1702.1, rel=2e-4)
    assert loss["time-space"] == pytest.approx(1192.3, rel=2e-4)
    assert loss["adapted"] == pytest.approx(1123.2, rel=5e-4)
    assert loss["space-time"] == pytest.approx(1085.5, rel=2e-4)
    assert found["space-time"]["gap"] <= 1e-4
    for name in ("time-space", "adapted", "space-time"):
        assert found[name]["lower_bound"] <= loss["space-time"]
        assert found[name]["independent_loss"] == pytest.approx(4374.8, rel=1e-5)
        assert found[name]["sensitivity"] == pytest.approx(1)


def test_weights_momentum_and_decay_reach_the_problem(capsys):
    plain = factorize(capsys, "--mechanism", "time-space")["loss"]
    last = factorize(capsys, "--mechanism", "time-space", "--error-weights", "last:4:0.01")
    assert last["error_weights"] == "last:4:0.01"
    assert last["loss"] < plain
    assert factorize(capsys, "--mechanism", "time-space", "--momentum", "0.9")["loss"] > plain
    assert factorize(capsys, "--mechanism", "time-space", "--weight-decay", "0.5")["loss"] < plain
    corn = spatial(capsys, "--mechanism", "corn", "--horizon", "8", "--error-weights", "last:2")
    assert corn["loss"] < spatial(capsys, "--mechanism", "corn", "--horizon", "8")["loss"]


def test_seed_groups_over_time_and_nodes_as_a_mechanism(capsys, tmp_path):
    """A seed for every pair of nodes, against any one insider, on a ring of six: better than no seed at all."""
    (tmp_path / "g.json").write_text(json.dumps([[i, j] for i in range(6) for j in range(i)]))
    small = ["--graph", "ring:n=6", "--epochs", "2", "--period", "3"]
    asked = [*small, "--mechanism", "time-space", "--coalition", "1", "--tolerance", "1e-3"]
    kept = tmp_path / "both.npz"
    answer = factorize(capsys, *asked, "--groups", str(tmp_path / "g.json"), "--out", str(kept))
    alone = factorize(capsys, *small, "--mechanism", "mafalda")
    assert (answer["coalition"], answer["groups"]) == (1, 15)
    assert answer["loss"] < 0.9 * alone["loss"]
    asked = ["--mechanisms", f"mafalda,file:{kept}", "--trust", "coalitions", "--coalition-size", "1", "--seeds", "1"]
    assert main(["compare", *small, *asked, "--out", str(tmp_path / "c"), "--json"]) == 0
    objective = [one["objective"] for one in json.loads(capsys.readouterr().out)["mechanisms"]]
    assert objective[1] == pytest.approx(objective[0] * answer["loss"] / alone["loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mechanism", "adapted", "--coalition", "1"], "--coalition does not apply to adapted"),
        (["--mechanism", "space-time", "--groups", "g.json"], "--groups does not apply to space-time"),
        (["--mechanism", "time-space", "--horizon", "2"], "--horizon does not apply to time-space"),
        (["--mechanism", "time-space", "--solver", "autodiff"], "--solver does not apply to time-space"),
        (["--mechanism", "time-space", "--error-weights", "first:3"], "first"),
        (["--mechanism", "time-space", "--error-weights", "last:4000"], "counts the last 4000"),
        (["--mechanism", "time-space", "--gossip", "uniform"], "metropolis-hastings"),
        (["--mechanism", "space-time", "--epochs", "100"], "limited to T n"),
    ],
)
def test_bad_input_over_time_and_nodes(arguments, text, capsys):
    assert text in bad(capsys, "--graph", "florentine", *arguments)

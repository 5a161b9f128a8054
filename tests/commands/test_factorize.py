"""`mfdl factorize`: the contract of flags, JSON, exit codes and the file it keeps; `--curvature` of the commands."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from finished_runs import answer_of, printed, refused
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, each, refuses

import mfdl
from mfdl import Cyclic, ErrorWeights, factorization
from mfdl.commands.factorize import FactorizeConfig, _show
from mfdl.commands.factorize_jobs import run_factorize
from mfdl.factorization import load
from mfdl.runs.cells import Cell
from mfdl.runs.experiment import Experiment
from mfdl.runs.sweep_config import SweepConfig

SMALL = ["--graph", "path:n=4", "--epochs", "3", "--period", "4"]
RING = ["--graph", "ring:n=6"]
KEYS = {
    "mechanism", "nodes", "steps", "epochs", "period", "counted_models", "objective", "lower_bound", "gap", "status",
    "iterations", "seconds", "graph", "gossip", "graph_hash", "notes", "error_weights", "momentum", "weight_decay",
    "lr",
}  # fmt: skip
TEMPORAL_KEYS = KEYS | {"sensitivity"}
SHARED_KEYS = {"coalition", "groups", "private_std", "independent_objective", "bound_over"}
SPATIAL_KEYS = KEYS | SHARED_KEYS | {"max_inverse_diagonal", "horizon", "sigma_ldp", "sigma_cor"}
JOINT_KEYS = TEMPORAL_KEYS | SHARED_KEYS


def factorized(capsys, *arguments, code=0):
    return answer_of(capsys, "factorize", *arguments, code=code)


def factorize(capsys, *arguments, code=0):
    return factorized(capsys, *SMALL, *arguments, code=code)


@each(
    "mechanism, status",
    ("mafalda", "optimal"), ("mafalda-classes", "optimal"), ("mafalda-l", "optimal"), ("d-mf", "fixed"),
    ("bsr", "fixed"),
)  # fmt: skip
def test_json_keys_and_certificate(mechanism, status, capsys):
    answer = factorize(capsys, "--mechanism", mechanism)
    assert (set(answer), answer["status"]) == (TEMPORAL_KEYS, status)
    assert (answer["nodes"], answer["steps"], answer["epochs"], answer["period"]) == (4, 12, 3, 4)
    assert answer["gap"] == pytest.approx(answer["objective"] / answer["lower_bound"] - 1)
    assert 0 <= answer["gap"] <= (1e-4 if status == "optimal" else 2.0)
    assert answer["sensitivity"] == pytest.approx(1.0)


def test_loss_is_the_objective_of_the_algorithm_at_the_decentralized_gram(capsys):
    dynamics = dynamics_on(mfdl.graphs.load("path:n=4"))
    part = mfdl.Cyclic(epochs=3, period=4)
    H = mfdl.factorization.problem(dynamics, part).error_gram
    for name in ("d-mf", "bsr"):
        C = mfdl.algorithms.registry.build(name, dynamics, part).noise.encoder.dense()
        X = C.T @ C
        objective = max(np.abs(X[np.ix_(p, p)]).sum() for p in part.patterns()) * np.trace(H @ np.linalg.inv(X))
        assert factorize(capsys, "--mechanism", name)["objective"] == pytest.approx(objective)


def test_objective_weights_and_solver_reach_the_problem(capsys):
    plain = factorize(capsys)["objective"]
    assert factorize(capsys, "--counted-models", "message")["objective"] > plain
    autodiff = factorize(capsys, "--solver", "autodiff", "--device", "cpu")
    assert (autodiff["status"], autodiff["objective"]) == ("optimal", pytest.approx(plain, rel=2e-4))
    both = factorize(capsys, "--mechanism", "kronecker")["objective"]
    last = factorize(capsys, "--mechanism", "kronecker", "--error-weights", "last:4:0.01")
    assert (last["error_weights"], last["objective"] < both) == ("last:4:0.01", True)
    assert factorize(capsys, "--mechanism", "kronecker", "--momentum", "0.9")["objective"] > both
    assert factorize(capsys, "--mechanism", "kronecker", "--weight-decay", "0.5")["objective"] < both
    corn = [
        factorized(capsys, *RING, "--mechanism", "corn", "--horizon", "8", *w)["objective"]
        for w in (["--error-weights", "last:2"], [])
    ]
    assert corn[0] < corn[1]


@pytest.mark.parametrize("mechanism", ["mafalda", "kronecker", "corn"])
def test_the_loss_is_in_units_of_the_squared_learning_rate(capsys, mechanism):
    """Only lr times decay counts: half the rate and twice the decay are the same problem, in the same units."""

    def objective(lr, decay):
        options = [] if mechanism == "corn" else ["--epochs", "2", "--period", "2"]
        rates = ["--lr", str(lr), "--weight-decay", str(decay)]
        return factorized(capsys, "--mechanism", mechanism, "--graph", "ring:n=4", *options, *rates)["objective"]

    assert objective(0.5, 0.4) == pytest.approx(objective(1.0, 0.2), rel=1e-12)
    if mechanism != "corn":  # one step: its decay meets no noise of an earlier one
        assert objective(0.5, 0.4) < 0.95 * objective(0.5, 0.0)


@pytest.mark.parametrize("mechanism", ["mafalda", "d-mf"])  # stopped prefix sums do not pass as fixed
def test_stopped_exits_3_with_the_json(mechanism, capsys):
    answer = factorize(capsys, "--mechanism", mechanism, "--max-iterations", "1", "--tolerance", "1e-9", code=3)
    assert answer["status"] == "stopped"
    assert answer["objective"] >= answer["lower_bound"]
    assert mechanism == "mafalda" or any("stopped" in note for note in answer["notes"])


@pytest.mark.parametrize("mechanism", ["mafalda", "mafalda-l"])
def test_out_file_and_file_mechanism(mechanism, tmp_path, capsys):
    file = tmp_path / "deep" / "enc.npz"
    answer = factorize(capsys, "--mechanism", mechanism, "--out", str(file))
    loaded = mfdl.factorization.load(file)
    assert loaded.factorization.objective == answer["objective"]
    assert loaded.factorization.lower_bound == answer["lower_bound"]
    assert loaded.encoder.shape == loaded.error_gram.shape
    graph = mfdl.graphs.load("path:n=4")
    expected = {
        "graph_hash": mfdl.graphs.content_hash(graph),
        "gossip_hash": mfdl.gossip.metropolis_hastings(graph).content_hash,
        "participation": mfdl.Cyclic(epochs=3, period=4),
        "learning_rate": "constant, 1; H and objective are in units of its square",
        "node_labels": ["0", "1", "2", "3"],
    }
    assert {name: loaded.header[name] for name in expected} == expected
    assert {"mfdl", "numpy", "scipy", "torch", "python"} <= set(loaded.header["versions"])
    again = factorize(capsys, "--mechanism", f"file:{file}")
    assert (again["status"], again["objective"]) == ("fixed", pytest.approx(answer["objective"]))
    assert again["lower_bound"] == pytest.approx(answer["lower_bound"])
    refused(capsys, "was made for", "factorize", "--graph", "path:n=4", "--mechanism", f"file:{file}")  # of other steps


def test_noise_over_nodes(capsys):
    corn = factorized(capsys, *RING, "--mechanism", "corn", "--tolerance", "1e-6")
    assert (set(corn), corn["steps"], corn["epochs"], corn["period"]) == (SPATIAL_KEYS, None, None, None)
    assert (corn["status"], corn["gap"] <= 1e-6) == ("optimal", True)
    pairwise, decor = (factorized(capsys, *RING, "--mechanism", name) for name in ("corn-pairwise", "decor"))
    assert corn["objective"] <= pairwise["objective"] * (1 + 1e-4)
    assert pairwise["objective"] == decor["objective"] <= decor["independent_objective"] * (1 + 1e-9)
    scaled = factorized(capsys, *RING, "--mechanism", "corn", "--max-inverse-diagonal", "0.02")
    assert scaled["objective"] == pytest.approx(corn["objective"] / 0.02, rel=2e-4)
    insider = ["--coalition", "1", "--tolerance", "1e-3"]
    edges = factorized(capsys, *RING, "--mechanism", "corn", *insider)
    assert corn["objective"] < edges["objective"]
    assert (edges["coalition"], edges["groups"]) == (1, 6)


def test_noise_over_time_and_nodes(capsys):
    names = ("mafalda", "kronecker", "per-mode", "joint")
    separate, product, per_mode, joint = (factorize(capsys, "--mechanism", name) for name in names)
    for answer in (product, per_mode, joint):
        assert (set(answer), answer["sensitivity"]) == (JOINT_KEYS, pytest.approx(1))
        assert answer["lower_bound"] <= joint["objective"]
    best = [answer["objective"] * slack for answer, slack in ((joint, 1), (per_mode, 1 + 1e-3), (product, 1 + 2e-3))]
    assert best == sorted(best)
    assert best[-1] < separate["objective"]


def objectives(names, ring, part, trust):
    dynamics = dynamics_on(ring)
    options = {"trust": trust, "adjacency": "replace-one", "clip_norm": 1.0}
    build = mfdl.algorithms.registry.build
    return [mfdl.calibrate(build(name, dynamics, part), mfdl.Privacy(**options), mu=2.0).objective for name in names]


def test_groups_from_a_file_and_the_covariance_as_a_mechanism(capsys, tmp_path):
    (tmp_path / "g.json").write_text(json.dumps([[0, 1, 2], [3, 4]]))
    covariance_file, ring = tmp_path / "R.npz", ["--graph", "ring:n=5"]
    groups = ["--groups", str(tmp_path / "g.json"), "--out", str(covariance_file), "--tolerance", "1e-3"]
    assert factorized(capsys, "--mechanism", "corn", *ring, *groups)["groups"] == 2
    part = mfdl.Cyclic(epochs=1, period=2)
    file = f"file:{covariance_file}"
    independent, correlated = objectives(["dp-dsgd", file], ring[1], part, mfdl.trust.Eavesdropper())
    assert correlated < independent  # it is not put to the test of encoders, nor used on another graph
    refused(capsys, "holds noise correlated over nodes", "factorize", "--mechanism", file, *ring)
    other = ["compare", "--graph", "star:n=5", "--mechanisms", file, "--trust", "eavesdropper"]
    refused(capsys, "another gossip", *other)


def test_seed_groups_over_time_and_nodes_as_a_mechanism(capsys, tmp_path):
    """A seed for every pair of nodes, against any one insider, on a ring of six: better than no seed at all."""
    (tmp_path / "g.json").write_text(json.dumps([[i, j] for i in range(6) for j in range(i)]))
    small, saved = [*RING, "--epochs", "2", "--period", "2"], tmp_path / "both.npz"
    options = [*small, "--mechanism", "kronecker", "--coalition", "1", "--tolerance", "1e-3"]
    answer = factorized(capsys, *options, "--groups", str(tmp_path / "g.json"), "--out", str(saved))
    alone = factorized(capsys, *small, "--mechanism", "mafalda")
    assert (answer["coalition"], answer["groups"]) == (1, 15)
    assert answer["objective"] < 0.95 * alone["objective"]
    part = mfdl.Cyclic(epochs=2, period=2)
    without, shared = objectives(["mafalda", f"file:{saved}"], RING[1], part, mfdl.trust.Coalitions(1))
    assert shared == pytest.approx(without * answer["objective"] / alone["objective"], rel=1e-3)


@each(
    "options, texts",
    (
        ["--mechanism", "bsr", *SMALL],
        ["lower bound", "gap │ at most 9.325 %", "9.325 % above that of the best encoder of any shape (certified)"],
    ),
    (
        ["--mechanism", "corn", *RING, "--groups", "g.json"],
        ["at most", "above that of the best private noise with these 2 seed groups, against an outsider (cert"],
    ),
    (["--mechanism", "corn", *RING], ["above that of the best covariance over nodes (certified)"]),
    (
        ["--mechanism", "decor", *RING, "--coalition", "1"],
        ["best covariance over nodes, against an outsider (certified)"],
    ),
    (["--mechanism", "decor", *RING], ["pairwise std", "private std", "an outsider", "the best covariance over nodes"]),
)
def test_the_table_and_what_the_certificate_ranges_over(options, texts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.json").write_text("[[0, 1], [1, 2]]")
    output = " ".join(printed(capsys, "factorize", *options).split())
    assert all(text in output for text in texts)


@each(
    "arguments, message",
    (["--gossip", "unifrom"], "did you mean 'uniform'"), (["--graph", "florentin"], "did you mean 'florentine'"),
    (["--graph", "parts.csv"], "--largest-component"), (["--graph", "path:n=4", "--gossip", "w.npy"], "1.25"),
    (["--counted-models", "post"], "unknown counted_models 'post'"),
    (["--solver", "densee"], "did you mean 'dense'"), (["--epochs", "0"], "epochs must be an integer >= 1"),
    (["--period", "-2"], "period must be an integer >= 1"), (["--tolerance", "0"], "tolerance must be"),
    (["--max-iterations", "0"], "max_iterations must be"), (["--jobs", "0"], "jobs must be"),
    (["--out", "parts.csv/enc.npz"], "cannot write"), (["--out", "taken.npz"], "it is a folder"),
    (["--mechanism", "file:none.npz"], "cannot read"), (["--mechanism", "none"], "unknown mechanism 'none'"),
    (["--mechanism", "mafalda-l", "--solver", "autodiff"], "--solver dense only"),
    (["--mechanism", "mafalda", "--coalition", "1"], "--coalition does not apply to mafalda"),
    (["--mechanism", "corm"], "did you mean 'corn'"),
    (["--mechanism", "corn", "--epochs", "3"], "--epochs does not apply to corn"),
    (["--mechanism", "corn", "--coalition", "15"], "below the number of nodes"),
    (["--mechanism", "corn", "--groups", "absent.json"], "cannot read"),
    (["--mechanism", "corn", "--max-inverse-diagonal", "0"], "max_inverse_diagonal"),
    (["--mechanism", "corn", "--coalition", "1", "--solver", "simplex"], "solver"),
    (["--mechanism", "corn-pairwise", "--coalition", "1"], "--coalition does not apply"),
    (["--mechanism", "decor", "--period", "3"], "--period does not apply to decor"),
    (["--mechanism", "decor", "--groups", "g.json"], "--groups does not apply"),
    (["--mechanism", "per-mode", "--coalition", "1"], "--coalition does not apply to per-mode"),
    (["--mechanism", "joint", "--groups", "g.json"], "--groups does not apply to joint"),
    (["--mechanism", "joint", "--epochs", "100"], "limited to T n"),
    (["--mechanism", "kronecker", "--horizon", "2"], "--horizon does not apply to kronecker"),
    (["--mechanism", "kronecker", "--solver", "autodiff"], "--solver does not apply to kronecker"),
    (["--mechanism", "kronecker", "--error-weights", "first:3"], "first"),
    (["--mechanism", "kronecker", "--error-weights", "last:4000"], "counts the last 4000"),
    (["--mechanism", "kronecker", "--gossip", "uniform"], "metropolis-hastings"),
)  # fmt: skip
def test_refused_in_one_line_before_any_work(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mfdl.factorization, "solve_problem", None)  # would be a TypeError if it were reached
    (tmp_path / "parts.csv").write_text("1,2\n3,4\n4,5\n")
    (tmp_path / "taken.npz").mkdir()
    np.save(tmp_path / "w.npy", np.eye(4) + 0.25 * np.eye(4, k=1) * (np.arange(4) == 2)[:, None])
    before = sorted(tmp_path.rglob("*"))
    refused(capsys, message, "factorize", *arguments, "--json")
    assert sorted(tmp_path.rglob("*")) == before


@each(
    "fields, message",
    ({"mechanism": "mafalda", "horizon": 3}, "--horizon does not apply to mafalda: .*; got 3, leave it out"),
    ({"mechanism": "mafalda", "max_inverse_diagonal": 2.0}, "--max-inverse-diagonal does not apply to mafalda"),
    ({"mechanism": "corn", "period": 4}, "--period does not apply to corn: .*; got 4, leave it out or at 16"),
    ({"mechanism": "decor", "tolerance": 0.1}, "--tolerance does not apply to decor"),
    ({"mechanism": "per-mode", "groups": Path("g.json")}, "--groups does not apply to per-mode"),
)
def test_a_field_that_the_mechanism_does_not_have_is_refused_from_python_too(fields, message):
    refuses(message, FactorizeConfig, **fields)
    usual = {name: getattr(FactorizeConfig, name) for name in fields} | {"mechanism": fields["mechanism"]}
    assert FactorizeConfig(**usual) == FactorizeConfig(mechanism=fields["mechanism"])


def test_a_typed_default_is_answered_without_a_riddle(capsys):
    joint = ["factorize", "--graph", "ring:n=4", "--mechanism", "joint"]
    refused(capsys, "got 'dense', leave it out.\n", *joint, "--solver", "dense")


def test_the_largest_component_of_a_graph_in_parts(tmp_path, capsys):
    (tmp_path / "g.csv").write_text("1,2\n3,4\n4,5\n")
    options = ["--graph", str(tmp_path / "g.csv"), "--largest-component", "--epochs", "2", "--period", "2"]
    assert factorized(capsys, *options)["nodes"] == 3


def test_noise_is_made_for_what_is_released(capsys):
    named = factorize(capsys, "--release-model", "average:4")
    assert named["error_weights"] == "released:average:4"
    assert named["gap"] <= 1e-4
    assert named["objective"] < factorize(capsys, "--error-weights", "all")["objective"]
    averaged = factorize(capsys, "--release-model", "average:4+1", "--error-weights", "released/average")
    assert averaged["error_weights"] == "released:average:4+1/average"
    assert factorize(capsys, "--release-model", "average:4", "--error-weights", "all")["error_weights"] == "all"


@pytest.mark.parametrize(("error", "gap"), [(12.0, "within the error of the estimate"), (0.01, "at most 0.1 %")])
def test_a_gap_is_no_smaller_than_the_error_of_the_estimate(error, gap, capsys):
    same = {"mechanism": "mafalda", "graph": "ring", "nodes": 10**5, "gossip": "g", "counted_models": "post-average"}
    answer = {**same, "steps": 8, "epochs": 2, "period": 4, "error_weights": None, "objective": 3000.0}
    answer |= {"lower_bound": 2997.0, "gap": 1e-3, "status": "optimal", "iterations": 1, "seconds": 0.1, "notes": []}
    _show({**answer, "objective_error": error}, None)
    output = " ".join(capsys.readouterr().out.split())
    assert gap in output
    assert ("lower bound" in output) == (error == 0.01)
    assert ("up to the error of the estimate, 0.4 %" in output) == (error == 12.0)


CURVED = {"graph": "ring:n=4", "epochs": 2, "period": 3, "curvature": "power:1:20"}


@pytest.mark.parametrize("mechanism", ["mafalda", "kronecker", "corn", "bsr"])
def test_factorize_is_for_the_curvature_at_the_rate(mechanism, tmp_path):
    over_time = {} if mechanism == "corn" else {"epochs": 2, "period": 3}
    config = FactorizeConfig(mechanism=mechanism, graph="ring:n=4", curvature="power:1:20", **over_time)
    rates = (0.5, 1.5)
    results = [run_factorize(dataclasses.replace(config, lr=lr, typed=()), tmp_path / f"{lr}.mfdl") for lr in rates]
    assert results[0]["error_weights"] == "all/curvature=power:1:20"
    assert results[0]["objective"] >= results[0]["lower_bound"] > 0
    assert load(tmp_path / "0.5.mfdl").header["error_weights"] == "all/curvature=power:1:20"
    if mechanism == "corn":  # one step, after which nothing contracts
        assert_allclose(results[0]["objective"], results[1]["objective"])
        return
    assert results[1]["objective"] != pytest.approx(results[0]["objective"], rel=1e-3)  # in units of the squared rate
    if mechanism == "mafalda":
        dynamics = dynamics_on("ring:n=4", 0.5)
        weights = ErrorWeights(curvature="power:1:20")
        best = factorization.factorize(dynamics, Cyclic(2, 3), weights=weights)
        assert_allclose(results[0]["objective"], best.objective)


def test_released_models_and_those_on_the_way_keep_the_curvature():
    config = FactorizeConfig(**CURVED, error_weights="released/on-the-way=0.3", release_model="average:2")
    assert config.weights.describe() == "released:average:2/on-the-way=0.3/curvature=power:1:20"
    released = FactorizeConfig(**CURVED, release_model="last+2")
    assert released.weights.describe() == "released:last+2/curvature=power:1:20"


def test_mechanisms_that_optimise_are_named_by_it():
    names = ("none", "dp-dsgd", "mafalda", "mafalda@last:2", "mafalda@all/curvature=power:2:5")
    config = Experiment(mechanisms=names, **CURVED)
    expected = (
        "none", "dp-dsgd", "mafalda@all/curvature=power:1:20", "mafalda@last:2/curvature=power:1:20",
        "mafalda@all/curvature=power:2:5",
    )  # fmt: skip
    assert (config.mechanisms, Experiment(**{**CURVED, "mechanisms": expected}).mechanisms) == (expected, expected)
    cells = [
        Cell(Experiment(mechanisms=(name,), **{**CURVED, "curvature": curvature}, seeds=1))
        for name, curvature in ((expected[2], None), ("mafalda", "power:1:20"))
    ]
    assert cells[0] == cells[1]
    sweep = SweepConfig(mechanisms=("dp-dsgd", "mafalda"), learning_rate=[0.1, 0.2], **CURVED)
    assert {cell.mechanism for cell in sweep.cells()} == {"dp-dsgd", "mafalda@all/curvature=power:1:20"}


@each(
    "changed, message",
    ({"learning_rate": 2.0}, "training diverges; lower the rate"),
    ({"momentum": 0.5}, "covered without momentum"),
    ({"clip_schedule": "inverse-sqrt"}, "scales gradients, and with them the curvature"),
    ({"curvature": "powr:1"}, "did you mean 'power'"),
    ({"curvature": "nowhere.npy"}, "cannot be read"),
)
def test_runs_that_do_not_have_it_are_refused_before_any_work(changed, message):
    refuses(message, Experiment, **{"mechanisms": ("mafalda",), **CURVED, **changed})


def test_a_file_that_changes_is_read_again(tmp_path):
    file = tmp_path / "public.npy"
    largest = []
    for scale, stamp in ((1.0, 1), (2.0, 2)):
        np.save(file, scale * np.eye(3))
        os.utime(file, (stamp, stamp))
        largest.append(ErrorWeights(curvature=f"features:{file}").curvature.largest)
    assert_allclose(largest, [1 / 3, 4 / 3])

"""The figures of the DECOR paper: verdicts on made-up numbers, couples of noise, tiny runs."""

import json

import numpy as np
import pytest

import mfdl
from mfdl import algorithms
from mfdl.cli import main
from mfdl.decor_search import decor_couples
from mfdl_papers.decor import accountant, couples, tradeoff

SEEDS = np.array([1.0, 1.1, 0.95])


def curves(ldp, decor, cdp, graphs=("ring",)):
    lines = {"LDP": ldp, "DECOR": decor, "CDP": cdp}
    lines = {name: np.outer(values, SEEDS) * (1 + 1e-3 * i) for i, (name, values) in enumerate(lines.items())}
    return tradeoff.BudgetCurves((3.0, 10.0), dict.fromkeys(graphs, lines), {graph: ["small"] * 2 for graph in graphs})


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        (curves([100, 30], [5, 2], [4, 1.5]), ["confirmed", "confirmed", "confirmed"]),
        (curves([10, 3], [5, 2], [4, 0.5]), ["confirmed", "direction only", "direction only"]),
        (curves([10, 3], [5, 4], [4, 0.5]), ["direction only", "direction only", "direction only"]),
        (curves([10, 3], [20, 4], [4, 0.5]), ["refuted", "refuted", "refuted"]),
    ],
)
def test_verdicts_of_figure_1(given, verdicts):
    assert [one.verdict for one in tradeoff.judged(given)] == verdicts


def test_the_factor_is_the_geometric_mean_over_points():
    _, ten, _ = tradeoff.judged(curves([100, 40], [10, 1], [1, 1]))
    assert ten.value == pytest.approx(20, rel=2e-3)


def test_couples_of_the_figure_are_those_of_the_search():
    """One ratio for every budget: the search at another budget, and what the cell of the figure is calibrated to."""
    points = tradeoff.runs((10.0,), [1], lambda graph, mechanism, epsilon: tradeoff.SETTINGS)
    assert len(points) == 3 * 5
    assert points["ring", "CDP", 10.0] == points["torus", "CDP", 10.0]
    graph = mfdl.graphs.load("torus:n=16")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))
    given = {"epsilon": 3.0, "delta": 1e-5, "adjacency": "replace-one", "clip_norm": 1.0}
    couples = decor_couples(dynamics, mfdl.EveryStep(50), **given)
    for name, couple in zip(tradeoff.COUPLES, couples, strict=True):
        (config,) = points["torus", name, 10.0]
        built = algorithms.decor(dynamics, mfdl.EveryStep(50), **config.parameters("decor"))
        mechanism = mfdl.calibrate(built, trust=mfdl.trust.SecLDP(), unit="user", **given)
        assert mechanism.noise_std == pytest.approx(couple.sigma_local, rel=1e-9)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(tradeoff, "SETTINGS", {**tradeoff.SETTINGS, "epochs": 20, "eval_every": 5})
    monkeypatch.setattr(tradeoff, "QUICK_EPSILONS", (10.0,))
    monkeypatch.setattr(tradeoff, "seeds_of", lambda scale, quick, full: range(1, 2))
    monkeypatch.setattr(tradeoff, "GRAPHS", {"ring": "ring:n=16", "complete": "complete:n=16"})


@pytest.mark.slow
def test_figure_1a_of_few_steps_is_written_and_trained_once(tmp_path, capsys, tiny, monkeypatch):
    asked = ["reproduce", "decor-1a", "--quick", "--json", "--jobs", "1", "--out", str(tmp_path)]
    assert main(asked) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["claims"]) == 3
    assert set(answer["numbers"]["chosen couples"]) == {"ring", "complete"}
    cells = {path: path.read_bytes() for path in (tmp_path / "decor-1a" / "store" / "cells").iterdir()}
    assert len(cells) == 2 * (2 * 4 + 1)  # json and parquet; CDP is shared by the graphs
    monkeypatch.setattr("mfdl.sweeps.running.trained", None)
    assert main(asked) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "seconds": 0} == {**answer, "seconds": 0}
    assert {path: path.read_bytes() for path in cells} == cells


def made_up(ring, torus, complete, theorem=2.0):
    lines = dict(zip(tradeoff.GRAPHS, map(np.array, (ring, torus, complete)), strict=True))
    lines |= {f"{graph}, Theorem 1": theorem * values for graph, values in lines.items()}
    return lines | {"LDP": np.full(3, 8.0), "CDP": np.ones(3)}


GOOD = ([8, 4, 1.02], [7, 3, 1.01], [6, 2, 1.0])


@pytest.mark.parametrize(
    ("q0", "q1", "verdicts"),
    [
        (made_up(*GOOD), made_up(*GOOD), ["confirmed"] * 4),
        (
            made_up(*GOOD[::-1], theorem=0.5),
            made_up(*GOOD),
            ["confirmed", "direction only", "direction only", "direction only"],
        ),
        (
            made_up(*[[1, 2, 8]] * 3, theorem=0.5),
            made_up(*[[0.5, 1, 4]] * 3, theorem=0.5),
            ["refuted", "confirmed", "refuted", "refuted"],
        ),
    ],
)
def test_verdicts_of_the_accountant(q0, q1, verdicts):
    assert [one.verdict for one in accountant.judged({0: q0, 1: q1})] == verdicts


def test_the_accountant_is_that_of_the_closed_forms():
    """Complete graph and ring of 16 by their eigenvalues."""
    lines = accountant.curves(50.0, (0.0, 2.0), 0, lambda inverse: inverse)
    assert lines["ring"][0] == pytest.approx(lines["LDP"][0])
    local, pair = 50.0**2, 100.0**2
    k = np.arange(16)
    assert lines["complete"][1] == pytest.approx(1 / (16 * local) + (1 - 1 / 16) / (local + 16 * pair))
    assert lines["ring"][1] == pytest.approx((1 / (local + 2 * pair * (1 - np.cos(2 * np.pi * k / 16)))).mean())
    assert accountant.user_level(0.0004) == pytest.approx(mfdl.privacy.gaussian.epsilon_from_mu(2 * np.sqrt(0.4), 1e-5))


@pytest.mark.parametrize(
    ("published", "own", "verdicts"),
    [(9.9, 10.0, ["confirmed", "confirmed", "confirmed"]), (10.8, 11.0, ["refuted", "refuted", "refuted"])],
)
def test_verdicts_of_the_search(published, own, verdicts, monkeypatch):
    monkeypatch.setattr(couples, "STORED", {"ring": [published / 10 * target for target in couples.EPSILONS]})
    local = couples.gaussian_ldp(10.0) * (0.26 if own == 10.0 else 0.9)
    judged = couples.judged({("ring", 10.0): [((1, 1), published)]}, {("ring", 10.0): [((local, 1.0), own)]})
    assert [one.verdict for one in judged] == verdicts


def test_the_search_of_the_code_overshoots_and_ours_does_not():
    """The published couple of the complete graph has 10.80 for 10."""
    first = couples.published_search("complete:n=16", 10.0)[0][1]
    assert first == pytest.approx(10.80, abs=0.01)
    assert couples.converted(couples.step_budget(10.0)) == pytest.approx(10.0)
    assert [epsilon for _, epsilon in couples.own_search("ring:n=16", 10.0)] == pytest.approx([10.0] * 6, rel=1e-9)


def test_figure_2_in_one_call(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(accountant, "RATIOS", (0.1, 1.0, 1000.0))
    assert main(["reproduce", "decor-2", "--json", "--out", str(tmp_path)]) == 0
    assert [one["verdict"] for one in json.loads(capsys.readouterr().out)["claims"]] == ["confirmed"] * 4

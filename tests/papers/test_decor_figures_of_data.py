"""DECOR's figures on a9a and MNIST: verdicts on made-up numbers, published choices, runs that are kept."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mfdl.errors import InvalidInput
from mfdl_papers.decor import logistic, mnist, tradeoff
from mfdl_papers.figures import RunScale, named, verdicts

SEEDS = np.array([1.0, 1.02, 0.99])


def test_published_rates_and_clipping_norms_of_a9a():
    ldp = [logistic.published("ring", "dp-dsgd", e) for e in (3, 5, 7, 10, 15, 40)]
    assert ldp == [(0.005, 0.01)] * 2 + [(0.01, 0.01)] * 2 + [(0.05, 0.01)] * 2
    for graph, mechanism in (("complete", "cdp"), ("complete", "decor")):
        assert [logistic.published(graph, mechanism, e) for e in (7, 10)] == [(0.05, 0.01), (0.01, 0.1)]
    assert [logistic.published("torus", "decor", e) for e in (10, 15)] == [(0.005, 0.1), (0.01, 0.1)]


def grid_of(best, loss):
    return {(r, c): loss * SEEDS * (1 if (r, c) == best else 3) for r in logistic.RATES for c in logistic.CLIPS}


@pytest.mark.parametrize(
    ("ldp", "decor", "loss", "verdicts"),
    [
        ((0.01, 0.01), (0.005, 0.1), 0.1, ["confirmed", "confirmed"]),
        ((0.05, 0.01), (0.005, 0.1), 0.1, ["direction only", "confirmed"]),
        ((0.05, 0.01), (0.1, 0.1), 2.0, ["refuted", "refuted"]),
    ],
)
def test_verdicts_of_the_grid(ldp, decor, loss, verdicts):
    found = {("ring", "LDP", 10.0): grid_of(ldp, 1.0), ("ring", "DECOR", 10.0): grid_of(decor, loss)}
    assert [one.verdict for one in logistic.judged_grid(found)] == verdicts


def test_the_least_loss_is_taken_off_and_nothing_is_below_it():
    assert logistic.excess(np.array([0.4236, 0.2, np.nan]))[:2] == pytest.approx([0.1, 1e-6])


def test_grid_of_few_steps(tmp_path, monkeypatch):
    """Every run is a cell with its rate, its clipping norm and the train loss of the average model."""
    monkeypatch.setattr(logistic, "QUICK_PASSES", 1)
    monkeypatch.setattr(logistic, "RATES", (0.05,))
    monkeypatch.setattr(logistic, "CLIPS", (0.01, 0.1))
    monkeypatch.setattr(logistic, "seeds_of", lambda scale, quick, full: range(1, 2))
    seen = {}

    def losses(figure, scale, points, *, last_steps, column):
        seen.update(points)
        return {point: np.array([0.5 + config.clip_norm for config in configs]) for point, configs in points.items()}

    monkeypatch.setattr(logistic, "losses", losses)
    done = logistic.run_grid(named("decor-d2"), RunScale(quick=True, out=tmp_path))
    assert len(seen) == 2 * 3
    (config,) = seen["ring", "LDP", 10.0, (0.05, 0.1)]
    assert (config.learning_rate, config.clip_norm, config.metrics) == (0.05, 0.1, ("average_train_loss",))
    assert (config.lr_schedule, config.epochs * config.period) == ("inverse-time:5000", 32)
    assert len(done.verdicts) == 2
    assert len(done.tables) == 3


def accuracies(ldp, decor, cdp):
    lines = {"LDP": ldp, "DECOR": decor, "CDP": cdp}
    return {name: np.array(values)[:, None] + np.array([0.0, 0.001]) for name, values in lines.items()}


@pytest.mark.parametrize(
    ("ring", "torus", "verdicts"),
    [
        (
            accuracies([0.7, 0.9], [0.895, 0.9], [0.9, 0.9]),
            accuracies([0.7, 0.9], [0.9, 0.9], [0.9, 0.9]),
            ["confirmed"] * 2,
        ),
        (
            accuracies([0.85, 0.9], [0.8, 0.9], [0.9, 0.9]),
            accuracies([0.85, 0.9], [0.9, 0.8], [0.9, 0.9]),
            ["direction only"] * 2,
        ),
        (
            accuracies([0.95, 0.9], [0.8, 0.8], [0.9, 0.9]),
            accuracies([0.95, 0.9], [0.8, 0.9], [0.9, 0.9]),
            ["refuted"] * 2,
        ),
    ],
)
def test_verdicts_of_figure_1c(ring, torus, verdicts):
    complete = accuracies(ring["LDP"][:, 0], [0.0, 0.0], ring["CDP"][:, 0])
    judged = mnist.judged({"ring": ring, "torus": torus, "complete": complete})
    assert [one.verdict for one in judged] == verdicts


def test_published_rates_and_clipping_norms_of_mnist():
    assert mnist.published("ring", "LDP", 0.83) == (1.0, 1.0)
    assert mnist.published("complete", "CDP", 7.51) == mnist.published("complete", "DECOR", 0.83) == (5.0, 1.0)
    assert [mnist.published("torus", "DECOR", e) for e in (0.83, 7.51)] == [(5.0, 1.0), (1.0, 5.0)]
    assert [mnist.published("ring", "DECOR", e) for e in (4.35, 7.51)] == [(2.0, 1.0), (1.0, 1.5)]


def test_runs_of_mnist_are_kept_and_shared(tmp_path, monkeypatch):
    tried = []

    def train(wanted):
        tried.append(wanted)
        if len(tried) == 3:
            raise InvalidInput("stopped")
        return {"accuracy": {"LDP": 0.7, "DECOR": 0.9, "CDP": 0.9}[wanted.line], "task": "made up"}

    monkeypatch.setattr(mnist, "train", train)
    monkeypatch.setattr(mnist.tasks, "load", lambda name, nodes, data_home: SimpleNamespace(name="mnist-mlp"))
    monkeypatch.setattr(mnist, "QUICK_EPSILONS", (0.83, 7.51))
    asked = named("decor-1c"), RunScale(quick=True, jobs=1, out=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match="stopped"):
        mnist.run(*asked)
    done = mnist.run(*asked)
    assert len(tried) == 7
    assert len(set(tried)) == 6
    assert [one.verdict for one in done.verdicts] == ["confirmed", "confirmed"]
    kept = json.loads((tmp_path / "decor-1c" / "runs" / "CDP-complete-0.83-1-200.json").read_text())
    assert kept["accuracy"] == 0.9


def test_the_couple_of_a_run_is_the_best_of_its_mean():
    found = {("ring", "small", 3.0): 2 * SEEDS, ("ring", "middle", 3.0): SEEDS, ("ring", "large", 3.0): 3 * SEEDS}
    found |= {("ring", name, 3.0): 5 * SEEDS for name in ("LDP", "CDP")}
    curves = tradeoff.BudgetCurves.of((3.0,), found)
    assert curves.chosen == {"ring": ["middle"]}
    assert verdicts.of_means(curves.lines["ring"]["DECOR"][0], SEEDS) == pytest.approx(1.0)


def test_without_the_training_images_figure_1c_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist.tasks, "load", lambda name, nodes, data_home: SimpleNamespace(name="mnist-10k-mlp"))
    monkeypatch.setattr(mnist, "train", None)
    done = mnist.run(named("decor-1c"), RunScale(quick=True, jobs=1, out=tmp_path))
    assert [one.verdict for one in done.verdicts] == ["not run", "not run"]
    assert "60,000 training images" in done.missing[0]

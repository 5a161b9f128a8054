"""The loss table: choosing and comparing by seeds, and runs that are those of `replay` and are never run twice."""

import csv
import dataclasses
import itertools
import json
import math
from pathlib import Path

import _loss_runs as loss_runs
import _ranking as ranking
import _tradeoff as tradeoff
import _training as training
import numpy as np
import pytest
import torch
import which_mechanism as which
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from rich.progress import Progress
from scipy import stats

import mfdl
from mfdl import trust
from mfdl.algorithms import registry

SCENE = loss_runs.SCENES["quick"]
SMALL = ["--quick", "--mechanisms", "none,mafalda,mafalda-l,corn", "--budgets", "0.5,1"]


def losses(size):
    numbers = st.floats(0.1, 10, allow_subnormal=False)
    return st.lists(numbers, min_size=size, max_size=size).map(np.array)


# ---- statistics ------------------------------------------------------------------------------------------------------


@given(values=losses(6))
def test_interval_of_a_mean_is_students(values):
    found = ranking.of_mean(values)
    expected = stats.ttest_1samp(values + np.arange(6), 0).confidence_interval(0.95)
    shifted = ranking.of_mean(values + np.arange(6))  # ttest warns of values that are all equal
    assert_allclose([shifted.middle - shifted.half, shifted.middle + shifted.half], expected, rtol=1e-9)
    assert_allclose(found.middle, values.mean())


@given(above=losses(7), below=losses(7))
def test_interval_of_a_ratio_is_the_delta_methods(above, below):
    found = ranking.of_ratio(above, below)
    gradient = np.array([1 / below.mean(), -above.mean() / below.mean() ** 2])
    variance = gradient @ np.cov(above, below) @ gradient / 7
    assert_allclose(found.middle, above.mean() / below.mean())
    assert_allclose(found.half, stats.t.ppf(0.975, 6) * math.sqrt(max(variance, 0.0)), rtol=1e-6, atol=1e-7)


def test_the_ratios_interval_holds_the_true_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        common = rng.normal(size=10)  # paired: most of the spread is between seeds
        below, above = 3 + common + 0.3 * rng.normal(size=10), 1.5 + 0.5 * common + 0.3 * rng.normal(size=10)
        found = ranking.of_ratio(above, below)
        hits += abs(found.middle - 0.5) <= found.half
    assert 0.92 < hits / 2000 < 0.98


@given(
    loss=losses(5),
    reference=losses(5),
    ideal=losses(5),
    lost=st.sets(st.integers(0, 4), max_size=2),
    whose=st.integers(0, 2),
)
def test_against_uses_the_seeds_at_which_all_runs_ended(loss, reference, ideal, lost, whose):
    reference = reference + 11  # above the ideal
    kept = [k for k in range(5) if k not in lost]
    full = [loss.copy(), reference.copy(), ideal.copy()]
    full[whose][list(lost)] = math.nan
    found, small = ranking.against(*full), ranking.against(loss[kept], reference[kept], ideal[kept])
    assert found == small
    assert found.pairs == len(kept)
    assert found.wins == sum(loss[k] < reference[k] for k in kept)
    assert_allclose(found.reduction.middle, 1 - loss[kept].mean() / reference[kept].mean(), atol=1e-12)
    assert_allclose(found.difference.middle, (loss - reference)[kept].mean(), atol=1e-12)
    way = (reference - loss)[kept].mean() / (reference - ideal)[kept].mean()
    assert_allclose(found.share.middle, way, atol=1e-12)


def test_without_noise_is_all_of_the_way_and_the_reference_none_of_it():
    rng = np.random.default_rng(1)
    ideal, reference = rng.uniform(1, 2, 6), rng.uniform(4, 5, 6)
    assert_allclose(dataclasses.astuple(ranking.against(ideal, reference, ideal).share), [1, 0], atol=1e-12)
    assert_allclose(dataclasses.astuple(ranking.against(reference, reference, ideal).share), [0, 0], atol=1e-12)


@given(table=st.lists(losses(3), min_size=1, max_size=7), share=st.floats(0.05, 1), bad=st.integers(0, 6))
def test_advancing_keeps_the_best_share_and_never_a_diverged_run_before_a_finished_one(table, share, bad):
    found = dict(enumerate(table))
    if bad in found:
        found[bad] = np.array([0.0, math.nan, 0.0])
    kept = ranking.advancing(found, share, 2)
    assert len(kept) == min(len(found), max(2, math.ceil(share * len(found))))
    worst_kept = max(math.inf if np.isnan(found[k]).any() else found[k].mean() for k in kept)
    assert all(np.isnan(found[k]).any() or found[k].mean() >= worst_kept for k in found if k not in kept)


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench():
    return loss_runs.Bench(SCENE, None)


@pytest.mark.parametrize("name", ["none", "mafalda", "corn", "time-space"])
def test_models_are_those_of_replay(bench, name):
    mechanism = bench.mechanism(loss_runs.Setting("quick", name, 0.3, None if name == "none" else 0.5))
    expected = mfdl.replay(mechanism, bench.task, seeds=[3], eval_every=2).seeds[0]
    found = list(training.models_after(mechanism, bench.task, 3, SCENE.evaluated, period=SCENE.period))
    assert len(found) == len(SCENE.evaluated) == 3
    assert_allclose(found[-1][1].double().numpy(), expected.models, rtol=1e-5, atol=1e-6)
    for row, (instance, models) in zip(expected.loss, found, strict=True):
        assert_allclose(training.record_losses(instance, models).mean(axis=1), row, rtol=1e-5)


def test_models_after_refuses_what_replay_refuses(bench):
    mechanism = bench.mechanism(loss_runs.Setting("quick", "dp-dsgd", 0.3, 0.5))
    other = mfdl.tasks.load("digits", 5)
    with pytest.raises(mfdl.InvalidInput, match="task has 5 nodes"):
        next(training.models_after(mechanism, other, 0, [2], period=2))


@pytest.mark.parametrize("name", ["mafalda@last:2:0.01", "mafalda-l", "corn@all", "time-space", "adapted"])
def test_a_factorization_serves_every_constant_rate(bench, name):
    bench.mechanism(loss_runs.Setting("quick", name, 0.3, 0.5))
    dynamics = dataclasses.replace(bench.dynamics, learning_rate=0.03)
    expected = registry.build_tuned(name, dynamics, bench.participation)
    found = loss_runs.with_rate(bench.made[name], 0.03)
    Z = np.random.default_rng(0).standard_normal((expected.noise.shape[1], 3))
    assert_allclose(found.noise @ Z, expected.noise @ Z, rtol=1e-6, atol=1e-9)
    G = np.random.default_rng(1).standard_normal(expected.messages_from_gradients.shape[1])
    assert_allclose(found.messages_from_gradients @ G, expected.messages_from_gradients @ G, rtol=1e-12)
    assert found.name == name


@pytest.mark.parametrize("name", [n for n in which.MECHANISMS if n in registry.MECHANISMS and n != "none"])
def test_one_calibration_serves_both_rankings(bench, name):
    mechanism = bench.mechanism(loss_runs.Setting("quick", name, 0.1, 0.5))
    assert mechanism.guarantee.mu <= 0.5
    outside = mfdl.calibrate(
        mechanism.algorithm, trust=trust.SecLDP(), adjacency=loss_runs.ADJACENCY, clip_norm=loss_runs.CLIP_NORM, mu=0.5
    )
    assert_allclose(mechanism.noise_std, outside.noise_std, rtol=1e-9)
    assert mechanism.guarantee.trust == registry.MECHANISMS[name].models[0]


def test_a_run_keeps_mean_median_and_the_loss_without_the_farthest_record(bench):
    mechanism = bench.mechanism(loss_runs.Setting("quick", "none", 0.3, None))
    features = bench.task.test_features.copy()
    features[17, 5] = -50.0
    task = dataclasses.replace(bench.task, test_features=features)
    record = loss_runs.one_run(mechanism, task, SCENE, 4)
    every = np.stack(
        [training.record_losses(i, m) for i, m in training.models_after(mechanism, task, 4, (2, 4, 6), period=2)]
    )
    assert_allclose(record["loss"], every.mean())
    assert_allclose(record["by_evaluation"], every.mean(axis=(1, 2)))
    assert_allclose(record["worst_node"], every.mean(axis=(0, 2)).max())
    assert_allclose(record["without_extreme"], every[:, :, np.arange(every.shape[2]) != 17].mean())
    assert_allclose(record["median"], np.median(every, axis=2).mean())
    assert record["without_extreme"] != record["loss"]
    assert record["mu"] is None
    assert not record["diverged"]


def test_a_diverged_run_has_no_number(bench, monkeypatch):
    mechanism = bench.mechanism(loss_runs.Setting("quick", "none", 0.3, None))
    infinite = torch.full((4, 650), math.inf)
    instance = bench.task.instance(0, 2)
    monkeypatch.setattr(loss_runs, "models_after", lambda *_, **__: [(instance, infinite)])
    record = loss_runs.one_run(mechanism, bench.task, SCENE, 0)
    assert record["diverged"]
    assert record["loss"] is None


def test_every_run_has_a_file_of_its_own():
    names = [f"{base}@{text}" for base in which.MECHANISMS for text in loss_runs.WEIGHTS] + list(which.MECHANISMS)
    every = itertools.product(loss_runs.SCENES, names, loss_runs.RATES, (*which.BUDGETS, None))
    paths = [loss_runs.Setting(*one).path(Path("out"), seed) for one in every for seed in (1, 11)]
    assert len(set(paths)) == len(paths)


# ---- the whole -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("which")
    assert which.main([*SMALL, "--out", str(out)]) == 0
    return out


def read(out):
    rows = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    return rows, json.loads((out / "runs.json").read_text())["runs"]


@pytest.mark.slow
def test_rows_are_means_over_the_seeds_of_the_table(small):
    rows, runs = read(small)
    for one in runs:  # what was trained keeps its budget
        assert one["mu"] is None if one["mechanism"] == "none" else 0 <= one["budget"] - one["mu"] < 1e-9
    for row in rows:
        found = [
            one["loss"]
            for one in runs
            if (one["mechanism"], one["rate"]) == (row["setting"], float(row["rate"]))
            and one["seed"] in (100, 101)
            and one["budget"] in (None, float(row["mu"]))
        ]
        assert len(found) == int(row["seeds"]) == 2
        assert_allclose(np.mean(found), float(row["loss"]))
    by_label = {(row["mechanism"], row["mu"]): row for row in rows}
    reference, other = float(by_label["mafalda", "1.0"]["loss"]), by_label["corn", "1.0"]
    assert_allclose(float(other["reduction"]), (reference - float(other["loss"])) / reference)
    reference = float(by_label["mafalda", "1.0"]["median"])
    assert_allclose(float(other["median_reduction"]), (reference - float(other["median"])) / reference)
    assert by_label["corn", "0.5"]["rankings"] == "eavesdropper"
    assert by_label["mafalda", "0.5"]["rankings"] == by_label["none", "1.0"]["rankings"] == "ldp+eavesdropper"


@pytest.mark.slow
def test_both_rankings_are_written_and_drawn(small):
    text = (small / "table.md").read_text()
    local, outside = (part.split("\n\n**")[0] for part in text.split("mu = 0.5, ")[1:])
    assert local.startswith("everybody sees every message (LDP)")
    assert "| mafalda, weighted |" in local
    assert "| corn" not in local
    assert "| mafalda, weighted |" in outside
    assert "| corn, weighted |" in outside
    assert (small / "tradeoff-quick.png").stat().st_size > 10_000


@pytest.mark.slow
def test_weights_are_chosen_at_the_first_budget_and_relatives_follow(small):
    by_label = {(row["mechanism"], row["mu"]): row for row in read(small)[0]}
    for label in ("mafalda, weighted", "corn, weighted"):
        assert by_label[label, "0.5"]["setting"] == by_label[label, "1.0"]["setting"]
    for mu in ("0.5", "1.0"):
        assert by_label["mafalda-l", mu]["rate"] == by_label["mafalda", mu]["rate"]
    assert ("mafalda-l, weighted", "0.5") not in by_label


@pytest.mark.slow
def test_the_choice_is_the_best_mean_of_the_first_five_seeds(small):
    rows, runs = read(small)
    chosen = {row["mechanism"]: row for row in rows if row["mu"] == "0.5"}
    for label, names in {"mafalda": {"mafalda"}, "mafalda, weighted": {"mafalda", "mafalda@last:2:0.01"}}.items():
        tried = {}
        for one in runs:
            if one["mechanism"] in names and one["seed"] < 100 and one["budget"] == 0.5:
                tried.setdefault((one["mechanism"], one["rate"]), {})[one["seed"]] = one["loss"]
        assert set(tried) == set(itertools.product(names, SCENE.rates))
        early = sorted(tried, key=lambda key: tried[key][0] + tried[key][1])
        best = min(early[:2], key=lambda key: np.mean([tried[key][seed] for seed in range(5)]))
        assert (chosen[label]["setting"], float(chosen[label]["rate"])) == best


@pytest.mark.slow
def test_a_stopped_table_goes_on_and_trains_only_what_is_missing(small, monkeypatch):
    before = read(small)[0]
    (path,) = (small / "runs").rglob("corn-mu0.5-rate0.1-seed1.json")
    lost = json.loads(path.read_text())
    path.unlink()
    trained, run = [], loss_runs.one_run

    def count(mechanism, task, scene, seed):
        trained.append((mechanism.algorithm.name, seed))
        return run(mechanism, task, scene, seed)

    monkeypatch.setattr(loss_runs, "one_run", count)
    which.main([*SMALL, "--out", str(small)])
    assert trained == [("corn", 1)]
    assert_allclose(json.loads(path.read_text())["loss"], lost["loss"], rtol=1e-6)
    assert [row["setting"] for row in read(small)[0]] == [row["setting"] for row in before]


def test_a_factorization_that_does_not_converge_leaves_its_mechanism_out(tmp_path, monkeypatch, capsys):
    build = registry.build_tuned

    def stubborn(name, *arguments, **more):
        if name == "corn@all":
            raise mfdl.InvalidInput("not today")
        return build(name, *arguments, **more)

    monkeypatch.setattr(registry, "build_tuned", stubborn)
    settings = [loss_runs.Setting("quick", name, 0.1, 0.5) for name in ("corn@all", "corn")]
    runs = loss_runs.Runs(tmp_path, loss_runs.SCENES, 1, None)
    with Progress(disable=True) as progress:
        runs.finish(settings, [0, 1], "some", progress)
    assert "left out: corn@all: not today" in capsys.readouterr().out
    assert runs.losses(settings[0], [0]) is None
    assert np.isfinite(runs.losses(settings[1], [0, 1])).all()


def test_unknown_names_are_said_and_left_out():
    said = []
    assert which.known(["mafalda", "space-age"], said.append) == ["mafalda"]
    assert len(said) == 1
    assert said[0].startswith("left out: space-age: this version has no mechanism of that name; it has none, ")


def test_an_unknown_scene_is_refused(capsys):
    with pytest.raises(SystemExit):
        which.main(["--scenes", "moon"])
    assert "no scene 'moon'; there are ego, florentine" in capsys.readouterr().err


# ---- the picture -----------------------------------------------------------------------------------------------------


def points(losses):
    return [
        tradeoff.Point(label, eps, ranking.Interval(loss, 0.1)) for label, row in losses.items() for eps, loss in row
    ]


FEW = {
    "none": [(1.0, 0.5), (2.0, 0.5)],
    "dp-dsgd": [(1.0, 4.0), (2.0, 2.0)],
    "mafalda": [(1.0, 2.0), (2.0, 1.0)],
    "bsr": [(1.0, 2.1), (2.0, 1.2)],
    "d-mf": [(1.0, 2.5), (2.0, 1.3)],
    "adapted": [(1.0, 0.6)],
    "time-space, weighted": [(1.0, 1.5), (2.0, 0.9)],
}


def test_few_lines_are_named_and_the_others_are_grey_and_listed():
    figure = tradeoff.draw({"a panel": points(FEW), "empty": []}, "ego", 1e-5)
    (axes,) = figure.axes
    words = [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    for name in ("none", "dp-dsgd", "mafalda", "time-space, weighted"):
        assert words.count(name) == 1
    assert "best here" in words
    assert "grey: bsr; d-mf; adapted" in words
    assert axes.get_legend() is None
    grey = [line for line in axes.get_lines() if line.get_color() == tradeoff.OTHER]
    assert [list(line.get_ydata()) for line in grey] == [[2.1, 1.2], [2.5, 1.3], [0.6]]
    assert any("μ = " in t.get_text() for t in axes.get_xticklabels())


def test_the_best_was_trained_at_every_budget_and_has_noise():
    assert tradeoff.best_of(points(FEW)) == "time-space, weighted"
    assert tradeoff.best_of(points({"none": [(1.0, 0.5)]})) is None


def test_an_interval_that_reaches_below_zero_is_drawn_on_a_logarithmic_axis():
    wide = [
        tradeoff.Point("mafalda", 1.0, ranking.Interval(0.5, 2.0)),
        tradeoff.Point("none", 1.0, ranking.of_mean(np.ones(1))),
    ]
    axes = tradeoff.draw({"a": wide}, "s", 1e-5).axes[0]
    assert 0 < axes.get_ylim()[0] < axes.get_ylim()[1] < 10

"""Experiments beside the library: statistics, small runs that resume, rows and tables, and benchmarks."""

import itertools
import json
import math
import sys
from importlib import import_module
from pathlib import Path

import _paired_statistics as statistics
import membership as experiment
import newer_work
import numpy as np
import optimal_noise
import pytest
import which_step_rule
from numpy.testing import assert_allclose
from scipy import stats
from vocabulary import each, given, refuses, st

import mfdl
from mfdl.training import step_rules


def seen_with(distance, draws, seed=0):
    """Scores of records that are N(0, 1), moved by `distance` where the record is in its slot, and the coins."""
    rng = np.random.default_rng(seed)
    coins = np.array([experiment.coins(draw) for draw in range(draws)])
    present = np.concatenate([coins == 0, coins == 1], axis=1)[:, None, :]
    own_scale = rng.uniform(0.5, 2.0, present.shape[2])  # records differ
    noise = rng.standard_normal((draws, experiment.SEEDS, present.shape[2]))
    return own_scale * (distance * present + noise), coins


@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0])
def test_the_attack_reaches_what_is_possible_for_known_normal_scores(distance):
    ratios = experiment.attacked(*seen_with(distance, draws=200))
    mu = distance * np.sqrt(2)  # both records of a slot tell
    assert experiment.advantage(ratios) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, abs=0.03)
    expected = stats.norm.cdf(stats.norm.ppf(experiment.FALSE_POSITIVES) + mu)
    assert experiment.true_positive_rate(ratios) == pytest.approx(expected, abs=0.05)


def test_where_scores_tell_nothing_the_attack_has_no_advantage():
    """Also with few shadow runs, of which a run that is attacked is none."""
    answers = [experiment.success(experiment.attacked(*seen_with(0.0, 32, seed)), "advantage") for seed in range(8)]
    assert abs(np.mean([answer.value for answer in answers])) < 0.02
    assert sum(answer.low <= 0 <= answer.high for answer in answers) >= 6


def test_too_few_draws_are_refused():
    refuses("give more --draws", experiment.attacked, *seen_with(1.0, draws=4), error=SystemExit)


def mechanisms(epochs):
    return {"dp-dsgd": ("dp-dsgd", mfdl.Cyclic(epochs, experiment.PERIOD), mfdl.trust.LDP())}


def test_scores_are_read_only_under_the_settings_that_they_were_computed_with(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "MECHANISMS", mechanisms(2))
    calls = []
    monkeypatch.setattr(experiment, "trained", lambda *arguments: (calls.append(arguments), np.ones((2, 3)))[1])

    def trainings(epsilon=4.0, draw=0, **changed):
        experiment.mechanism.cache_clear()
        calls.clear()
        with monkeypatch.context() as patch:
            for name, value in changed.items():
                patch.setattr(experiment, name, value)
            assert np.array_equal(experiment.stored(tmp_path, "dp-dsgd", epsilon, draw), np.ones((2, 3)))
        experiment.mechanism.cache_clear()
        return len(calls)

    for changed in ({}, {"RATE": 2.0}, {"DELTA": 1e-6}, {"SEEDS": 5}, {"SLOTS": 16}, {"MECHANISMS": mechanisms(3)}):
        assert (trainings(**changed), trainings(**changed)) == (1, 0), changed
    # written alike in the name of the folder
    assert (trainings(epsilon=4.0000001), trainings(epsilon=4.0000001), trainings()) == (1, 0, 0)


@pytest.mark.slow
def test_a_draw_holds_one_record_of_each_slot():
    features, targets = experiment.records()
    chosen = np.arange(experiment.SLOTS) + experiment.SLOTS * experiment.coins(7)
    task = experiment.task(7)
    assert np.array_equal(task.targets, targets[chosen])
    assert np.allclose(task.features, features[chosen])
    assert len(task.test_targets) == len(targets) - 2 * experiment.SLOTS


@pytest.mark.slow
def test_a_small_run_stays_below_its_bounds_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "MECHANISMS", mechanisms(8))
    experiment.mechanism.cache_clear()
    command = ["--out", str(tmp_path), "--draws", "22", "--epsilons", "4"]
    assert experiment.main(command) == 0
    table = capsys.readouterr().out
    first, private = json.loads((tmp_path / "results.json").read_text())
    assert first["mechanism"] == "no noise"
    assert first["reached"]["advantage"]["low"] > 0.3
    assert private["reached"]["advantage"]["low"] <= private["bound"]["advantage"] < 0.4
    assert private["reached"]["tpr"]["low"] <= private["bound"]["tpr"]
    assert (tmp_path / "membership.png").exists()
    monkeypatch.setattr(experiment, "trained", None)  # what is there is not trained again
    assert experiment.main(command) == 0
    assert capsys.readouterr().out == table
    experiment.mechanism.cache_clear()


RESULT = {
    "rates": dict.fromkeys(optimal_noise.MECHANISMS, 1.0),
    "accounting": 0.0,
    "better noise": 0.2,
    "losses": {
        label: np.array([1.0, 1.1, 1.3]) * factor
        for label, factor in zip(optimal_noise.MECHANISMS, (1.0, 1.6, 1.5, 1.4), strict=True)
    },
}


@pytest.mark.parametrize("name", ["logistic/ring/full", "housing-linear/florentine/epoch"])
def test_every_row_is_one_run_under_one_trust_model_and_budget(name, tmp_path):
    trial = optimal_noise.trial(name, tmp_path, report=True)
    trial.plan.tuning.require_fresh(trial.plan.seeds)
    task, _, design = name.split("/")
    for label, row in trial.rows.items():
        config = trial.cell(label, row.rates[0], trial.plan.seeds[0]).config
        assert ([*config.mechanisms], config.task) == ([optimal_noise.MECHANISMS[label]], task)
        if label != optimal_noise.NO_NOISE:
            assert (config.trust, config.epsilon) == ("pndp", optimal_noise.TASKS[task][0])
        assert (config.epochs, config.period, config.gossip_rounds) == ((4, 1, 4) if design == "full" else (1, 4, 4))


def test_the_table_pairs_seeds_and_pools_the_scenes_of_a_graph():
    results = [{**RESULT, "name": f"{task}/ring/full"} for task in optimal_noise.TASKS]
    lines = optimal_noise.table(results)
    assert lines[2].startswith("| logistic/ring/full | 0.0 % | 20.0 % | 1.1333 (1) |")
    assert "| -6.7 % [-6.7 %, -6.7 %] | 20.0 % [20.0 %, 20.0 %] |" in lines[2]
    assert lines[4].startswith("| ring, mean of 2 |")
    assert lines[-1].endswith("against MAFALDA -6.7 % [-6.7 %, -6.7 %], against DP-D-SGD -12.5 % [-12.5 %, -12.5 %].")
    (axes,) = optimal_noise.draw(results).axes
    assert len(axes.containers) == len(results)


@pytest.mark.slow
@each(
    "module, scene, lines",
    (optimal_noise, "logistic/ring/full", ["| logistic/ring/full |"]),
    (which_step_rule, "logistic/mafalda", ["| logistic | mafalda | nesterov:0.9 |", "log(curvature / plain)"]),
)
def test_a_small_version_runs_and_is_reported(module, scene, lines, tmp_path, capsys):
    command = ["--quick", "--scenes", scene, "--out", str(tmp_path)]
    assert module.main(command) == 0
    ran = capsys.readouterr().out
    assert module.main([*command, "--report"]) == 0
    assert capsys.readouterr().out == ran
    assert all(line in ran for line in lines)


@pytest.mark.parametrize("task", which_step_rule.TASKS)
@pytest.mark.parametrize("design", which_step_rule.DESIGNS)
def test_every_row_is_a_run_and_every_rule_is_one(task, design, tmp_path):
    trial = which_step_rule.trial(task, design, tmp_path, report=True)
    assert list(trial.rows)[:2] == list(which_step_rule.ENDS)
    assert any(rule.label not in trial.rows for rule in which_step_rule.RULES)
    trial.plan.tuning.require_fresh(trial.plan.seeds)
    for label, row in trial.rows.items():
        config = trial.cell(label, row.rates[0], trial.plan.seeds[0]).config
        assert (config.task, config.learning_rate, config.first_seed) == (task, row.rates[0], trial.plan.seeds[0])
        assert config.gossip_rounds == (5 if design == "full" and label not in which_step_rule.ENDS else 1)
        assert config.precondition == ("power:0.5" if row.preconditioned else None)
        assert (config.step_rule is None) == ("step_rule" not in row.options)
        if config.step_rule:
            assert str(step_rules.parse(config.step_rule)).startswith(label)


def test_a_share_is_that_of_the_gap():
    losses = {"plain": [0.6, 0.4], "no noise": [0.4, 0.2], "last model": [0.8, 0.6]}
    losses = {label: np.array(values) for label, values in losses.items()}
    line = which_step_rule.line("t", "full", "plain", 0.5, losses)
    assert line.startswith("| t | full | plain | 0.5 | 0.5000 +- 0.1414 | 50% [")


@pytest.mark.parametrize("bins", [3, 4, 5])
def test_moments_of_cyclic_bands_are_those_of_all_sequences(bins):
    G, lag = np.random.default_rng(bins).uniform(0, 1, (bins, bins)), np.subtract.outer(range(bins), range(bins)) % bins
    G = np.where(np.minimum(lag, bins - lag) < 2, G + G.T, 0.0)
    moments = newer_work.log_moments(G, 4)
    for order in (2, 3, 4):
        sequences = np.array(list(itertools.product(range(bins), repeat=order)))
        pairs = G[sequences[:, :, None], sequences[:, None, :]]
        exponents = (pairs.sum(axis=(1, 2)) - G[sequences, sequences].sum(axis=1)) / 2
        assert moments[order] == pytest.approx(math.log(np.exp(exponents).sum()), rel=1e-12)


P = st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.02, 0.05, 1.0])


@given(200, p_values=st.lists(P, min_size=1, max_size=6))
def test_holm_is_closed_testing_by_bonferroni(p_values):
    """A hypothesis is rejected at alpha if every set of hypotheses that holds it is, by Bonferroni."""
    corrected, m = statistics.holm(p_values), range(len(p_values))
    for k in m:
        sets = (s for size in m for s in itertools.combinations(m, size + 1) if k in s)
        assert_allclose(corrected[k], max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets), rtol=1e-12)


def made_up(rng, scenes, seeds, spread, noise):
    """Scenes whose mean log ratio is -.3 in all, each with its own, and the seeds of a scene shared by all rows."""
    for _ in range(scenes):
        common = rng.normal(size=seeds) * 0.4
        effect = -0.3 + spread * rng.normal()
        yield {
            "reference": np.exp(common),
            "loss": np.exp(common + effect + noise * rng.normal(size=seeds)),
            "none": np.exp(common) / 2,
        }


@pytest.mark.parametrize("scenes", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 9))])
def test_intervals_hold_the_truth_about_as_often_as_they_say(scenes, monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    rng, hits, tries = np.random.default_rng(scenes), 0, 200
    for k in range(tries):
        drawn = list(made_up(rng, scenes, 8, 0.2 * (scenes > 1), 0.1))
        estimate = statistics.over_scenes(statistics.log_ratio, drawn, seed=k)
        hits += estimate.low <= -0.3 <= estimate.high
    assert 0.91 <= hits / tries <= 0.995  # .95 +- 2.6 standard errors; scenes and seeds both drawn err to the wide side


@given(50, losses=st.lists(st.tuples(*[st.floats(0.1, 10)] * 3), min_size=2, max_size=6), scale=st.floats(0.01, 100))
def test_ratios_and_shares_are_those_of_the_definitions(losses, scale):
    loss, reference, none = np.array(losses).T + np.array([[0.0], [20.0], [0.0]])
    drawn, gap = {"loss": loss, "reference": reference, "none": none}, reference.sum() - none.sum()
    assert_allclose(statistics.log_ratio(drawn), np.log(loss / reference).mean())
    assert_allclose(statistics.share(drawn), (reference.sum() - loss.sum()) / gap, atol=1e-12)
    scaled = {name: values * scale for name, values in drawn.items()}
    assert_allclose(statistics.share(scaled), statistics.share(drawn), atol=1e-9)
    assert_allclose(statistics.log_ratio(scaled), statistics.log_ratio(drawn), atol=1e-9)
    assert_allclose(statistics.share({**drawn, "loss": none}), 1)
    assert statistics.share({**drawn, "loss": reference}) == 0


def test_the_order_of_pairs_and_which_is_first_do_not_change_a_test():
    rng = np.random.default_rng(0)
    loss, reference = np.exp(rng.normal(size=(2, 20)) * 0.1) * np.array([[0.95], [1.0]])
    p = statistics.signed_rank(loss, reference)
    assert_allclose(p, statistics.signed_rank(reference[::-1], loss[::-1]))
    assert_allclose(p, stats.wilcoxon(np.log(loss), np.log(reference)).pvalue)
    assert statistics.signed_rank(loss, loss) == 1.0
    assert_allclose(statistics.signed_rank(loss / 9, reference), 2 / 2**20)  # all pairs on one side


def test_one_extreme_pair_does_not_decide_a_share_of_seeds_that_all_agree():
    """Pairs stay together when seeds are drawn: rows that differ by a constant factor have an interval of no width."""
    reference = np.array([1.0, 2.0, 50.0, 3.0])
    drawn = {"loss": reference / 2, "reference": reference, "none": reference / 4}
    estimate = statistics.over_scenes(statistics.log_ratio, [drawn])
    assert_allclose([estimate.middle, estimate.low, estimate.high], -math.log(2))


FOLDER = Path(__file__).parents[1] / "experiments" / "benchmarks"


@pytest.fixture(scope="module")
def script():
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if (FOLDER / f"{name}.py").is_file():  # their names are common words
            del sys.modules[name]


@given(exponent=st.floats(-1, 4), factor=st.floats(1e-6, 1e3), sizes=st.sets(st.integers(1, 10**6), min_size=2))
def test_the_slope_of_a_power_is_its_exponent(script, exponent, factor, sizes):
    sizes = sorted(sizes)
    slope = script("_measure").slope(sizes, [factor * size**exponent for size in sizes])
    assert abs(slope - exponent) < 1e-6 * max(1, 1 / (sizes[-1] / sizes[0] - 1))


def test_a_row_says_where_when_and_by_what_it_was_measured(script, capsys):
    measure = script("_measure")
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    measure.report("some", mfdl=measure.seconds(lambda: None, repeats=3, warm_up=1, clock=lambda: next(clock)))
    row = json.loads(capsys.readouterr().out)
    assert row["benchmark"] == "some"
    assert row["mfdl"].pop("cpu") >= 0
    assert row["mfdl"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert row["peak_megabytes"] > 10
    assert {"python", "mfdl", "numpy", "torch", "cvxpy"} <= set(row["versions"])
    assert {"machine", "processor", "cores", "memory_gigabytes", "load"} == set(row["machine"])
    assert len(row["date"]) == len("2026-11-23")


@pytest.mark.parametrize("curve", ["stream-dense", "stream-banded", "stream-buffered"])
def test_memory_of_a_stream_does_not_grow_with_its_steps(script, curve, monkeypatch):
    monkeypatch.setattr(script("growth"), "DIM", 2**10)
    row = script("growth").measured(curve, (128, 256))
    assert row["rows"][1] < 1.1 * row["rows"][0], row["rows"]


def test_objectives_beside_opake_are_those_of_the_solvers(script):
    """Prefix sums at unit sensitivity, here by dense arithmetic."""
    peers = script("opake_peers")
    options = {"form": "toeplitz", "bandwidth": peers.GAP, "max_iterations": 3}
    factorized = mfdl.factorization.factorize_long(peers.ONE_NODE, peers.CYCLIC, **options)
    total, largest = peers.squared_error(factorized.encoder)
    assert total == pytest.approx(factorized.objective, rel=1e-6)
    assert largest <= total <= peers.STEPS * largest

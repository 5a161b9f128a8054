"""The experiment on membership inference: the attack on known distributions, the game, and a small run that resumes."""

import json

import membership as experiment
import numpy as np
import pytest
from refusals import refuses
from scipy import stats

import mfdl


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
    refuses("give more --draws", lambda: experiment.attacked(*seen_with(1.0, draws=4)), error=SystemExit)


def test_coins_are_fair():
    coins = np.array([experiment.coins(draw) for draw in range(400)])
    assert abs(coins.mean() - 0.5) < 0.02
    assert np.abs(coins.mean(axis=0) - 0.5).max() < 0.12


def test_scores_are_read_only_under_the_settings_that_they_were_computed_with(tmp_path, monkeypatch):
    small = {"dp-dsgd": ("dp-dsgd", mfdl.Cyclic(2, experiment.PERIOD), mfdl.trust.LDP())}
    monkeypatch.setattr(experiment, "MECHANISMS", small)
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

    longer = {"dp-dsgd": ("dp-dsgd", mfdl.Cyclic(3, experiment.PERIOD), mfdl.trust.LDP())}
    for changed in ({}, {"RATE": 2.0}, {"DELTA": 1e-6}, {"SEEDS": 5}, {"SLOTS": 16}, {"MECHANISMS": longer}):
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
    short = {"dp-dsgd": ("dp-dsgd", mfdl.Cyclic(8, experiment.PERIOD), mfdl.trust.LDP())}
    monkeypatch.setattr(experiment, "MECHANISMS", short)
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

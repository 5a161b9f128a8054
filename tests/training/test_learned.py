"""Baselines and verdicts: what training is held against, when a title may praise it, which knob the advice names."""

import numpy as np
import pytest
import small_tasks
import torch

import mfdl
from mfdl.training import learned, tasks
from mfdl.training.learned import Baseline, Ended, Judged

START, GUESS = Baseline(2.0, 0.1), Baseline(2.5, 0.2)


def test_untrained_is_what_every_nodes_first_model_shows():
    for task in (small_tasks.classes(), small_tasks.regression()):
        instance = task.instance(3, 2)
        expected = instance.evaluate(instance.initial_parameters)
        untrained = learned.untrained(task, 3)
        assert untrained.loss == pytest.approx(float(expected.loss[1]), rel=1e-12)
        if expected.accuracy is None:
            assert untrained.accuracy is None
        else:
            assert untrained.accuracy == pytest.approx(float(expected.accuracy[1]))


def test_chance_of_classes_is_equal_scores_and_the_commonest_class():
    task = small_tasks.classes(targets=np.array([2] * 30 + [0] * 20 + [1] * 10))
    chance = learned.chance(task)
    assert chance.loss == pytest.approx(np.log(3), rel=1e-6)
    assert chance.accuracy == pytest.approx(np.mean(task.test_targets == 2))


def test_chance_of_regression_is_the_mean_of_the_train_targets():
    task = small_tasks.regression()
    expected = np.mean((task.test_targets - task.targets.mean()) ** 2)
    assert learned.chance(task).loss == pytest.approx(expected, rel=1e-5)


def test_no_chance_where_a_guess_means_nothing():
    assert learned.chance(tasks.rotated_quadratics(4)) is None  # an output of two numbers
    assert learned.chance(small_tasks.regression(targets=np.ones(40))) is None
    assert learned.chance(small_tasks.regression(loss=lambda out, y: (out[0] - y).square() / 0.0)) is None


@pytest.mark.parametrize(
    ("ended", "finding", "knob"),
    [
        ([Ended("a", True, [1.0, 1.2])], "", None),
        ([Ended("a", True, [2.2, 2.2])], "a does not beat the untrained model (test loss 2)", "noise outweighs"),
        ([Ended("a", True, [9.0]), Ended("b", True, [1.0])], "", "a (loss 9)"),
        ([Ended("a", True, [9.0]), Ended("b", True, [3.0])], "No private mechanism beats the untrained model", "mu"),
        ([Ended("a", True, [2.01])], "a does not beat the untrained model", "more epochs"),
        ([Ended("a", True, [None, 1.0], diverged=1)], "a diverged", "in 1 of 2 seeds: lower the learning rate"),
        ([Ended("none", False, [9.0]), Ended("a", True, [9.0])], "a does not", "lower the learning rate, as without"),
        ([Ended("none", False, [1.99]), Ended("a", True, [2.5])], "a does not", "a smaller clipping norm"),
        ([Ended("none", False, [0.5]), Ended("a", True, [2.01])], "a does not", "noise outweighs"),
        ([Ended("none", False, [0.1])], "", None),
        ([Ended("a", True, [])], "", None),
    ],
)
def test_title_and_knob(ended, finding, knob):
    verdict = Judged(ended, START, GUESS)
    assert verdict.finding.startswith(finding)
    assert bool(verdict.finding) == bool(finding)
    assert (knob is None) == (not verdict.advice)
    assert knob is None or knob in " ".join(verdict.advice)


def test_chance_counts_where_the_start_is_worse_than_it():
    verdict = Judged([Ended("a", True, [2.7], [0.15])], Baseline(3.0, 0.1), GUESS)
    assert verdict.finding == "a does not beat chance (test loss 2.5)"
    assert "loss 2.7, accuracy 15.0%" in verdict.advice[0]


def test_a_start_at_the_optimum_is_nothing_to_beat():
    assert Ended("a", True, [1.0]).beats(Baseline(1e-14)) is None
    assert Judged([Ended("a", True, [1.0])], Baseline(0.0), None).finding == ""


def test_means_over_seeds_need_every_seed():
    assert learned.mean_baseline([START, GUESS]) == Baseline(2.25, pytest.approx(0.15))
    assert learned.mean_baseline([START, None]) is None
    assert learned.mean_baseline([]) is None


@pytest.fixture(scope="module")
def run():
    """Far too little privacy budget for anything to be learned."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=3"), learning_rate=0.5)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=2, period=2))
    mechanism = mfdl.calibrate(
        algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="replace-one", clip_norm=1.0), epsilon=0.1, delta=1e-5
    )
    return mfdl.replay(mechanism, mfdl.tasks.digits(3), seeds=range(2))


def test_a_run_keeps_what_it_is_held_against(run):
    assert run.seeds[0].untrained_loss == pytest.approx(np.log(10), rel=1e-6)  # all scores zero
    assert run.chance_loss == pytest.approx(np.log(10), rel=1e-6)
    assert 0.05 < run.chance_accuracy < 0.2
    assert run.judged.none_beats(run.judged.untrained)


def test_words_and_title_of_a_run_that_learned_nothing_say_so(run):
    assert "Not below the loss of the untrained model" in run.outcome
    assert "a larger mu" in repr(run)
    figure = run.plot()
    words = " ".join(" ".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))).split())
    assert "dp-dsgd does not beat the untrained model (test loss 2.3): digits" in words
    assert "(mu = " in words
    assert "epsilon = 0.1" in words
    assert "at delta = 1e-05" in words
    assert "untrained" in words


def test_untrained_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    learned.untrained(small_tasks.classes(), 0)
    learned.chance(small_tasks.classes())
    assert torch.equal(before, torch.get_rng_state())

"""Metrics on request, baselines and verdicts: what they are, and that asking changes nothing else."""

import dataclasses

import numpy as np
import pytest
import torch
from finished_runs import step_frame
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, module_at, regression, some_models
from vocabulary import dynamics_on, each, given, refuses, st

import mfdl
from mfdl import Cyclic, algorithms, replay, trust
from mfdl.metrics import METRICS, requested
from mfdl.runs import comparing, load_steps
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.runs.rendering import plot_comparison
from mfdl.training import checkpoint, learned, tasks
from mfdl.training.learned import Baseline, Ended, Judged
from mfdl.training.run import Run, final_steps

OF_REGRESSION = tuple(name for name in METRICS if name != "average_accuracy")
MECHANISM = mfdl.calibrate(
    algorithms.dp_dsgd(dynamics_on("ring:n=4", 0.1), Cyclic(3, 2)),
    mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=0.5),
    noise_std=0.1,
)


def measured_slowly(task, row, features, targets):
    """Loss and share of hits of one model, record by record."""
    module = module_at(task, row)
    losses, hits = [], []
    with torch.no_grad():
        for x, y in zip(torch.tensor(features), torch.tensor(targets), strict=True):
            output = module(x.to(row.dtype)[None])[0]
            losses.append(float(task.loss(output, y if y.dtype == torch.int64 else y.to(row.dtype))))
            hits.append(float(output.argmax() == y))
    return np.mean(losses), np.mean(hits)


@given(
    20, build=st.sampled_from([regression, classes]), partition=st.sampled_from(["uniform", "dirichlet:alpha=1"]),
    num_records=st.integers(40, 60), seed=st.integers(0, 5),
    metric_names=st.lists(st.sampled_from(METRICS), max_size=5),
)  # fmt: skip
def test_metrics_are_means_over_records_and_asking_changes_no_other(build, partition, num_records, seed, metric_names):
    if build is regression:
        partition, metric_names = "uniform", [name for name in metric_names if name != "average_accuracy"]
    task = build(num_records, partition=partition)
    instance = task.instance(seed, 2, dtype=torch.float64)
    models = some_models(instance, seed)
    plain, more = instance.evaluate(models), instance.evaluate(models, metric_names)
    assert_array_equal(more.loss, plain.loss)
    assert plain.metrics == {}
    assert tuple(more.metrics) == requested(metric_names)
    train, test = (task.features, task.targets), (task.test_features, task.test_targets)
    average = models.mean(0)
    wanted = {
        "train_loss": [measured_slowly(task, row, *train)[0] for row in models],
        "average_loss": measured_slowly(task, average, *test)[0],
        "average_accuracy": measured_slowly(task, average, *test)[1],
        "average_train_loss": measured_slowly(task, average, *train)[0],
    }
    for name, value in more.metrics.items():
        assert_allclose(value, wanted[name], rtol=1e-6, err_msg=name)  # float32 scores of oracle and library


def test_a_record_that_takes_no_part_counts_in_no_train_loss():
    instance = classes().instance(0, 2, dtype=torch.float64)
    models = some_models(instance)
    whole = instance.evaluate(models, ["train_loss"]).metrics["train_loss"]
    instance.mask[0] = False
    left = instance.evaluate(models, ["train_loss"]).metrics["train_loss"]
    assert (left != whole).all()
    task = instance.task
    records = instance.record_index[1:][instance.mask[1:]].numpy()
    by_hand = measured_slowly(task, models[2], task.features[records], task.targets[records])[0]
    assert_allclose(left[2], by_hand, rtol=1e-6)


def test_a_run_keeps_what_was_asked_in_arrays_rows_frames_and_files(tmp_path):
    plain = replay(MECHANISM, classes(), seeds=[0, 1], eval_every=1)
    run = replay(MECHANISM, classes(), seeds=[0, 1], eval_every=1, metrics=["average-loss", "train_loss"])
    assert plain.seeds[0].metrics == {}
    assert list(run.seeds[0].metrics) == ["train_loss", "average_loss"]
    for without, other in zip(plain.seeds, run.seeds, strict=True):
        assert_array_equal(without.loss, other.loss)
        assert_array_equal(without.models, other.models)
        assert (other.metrics["train_loss"].shape, other.metrics["average_loss"].shape) == ((6, 4), (6,))
    assert run.rows()[0].keys() - plain.rows()[0].keys() == {"train_loss", "average_loss"}
    frame = run.to_pandas()
    assert list(frame.columns) == [*plain.to_pandas().columns, "train_loss", "average_loss"]
    by_step = frame[frame["seed"] == 1].groupby("step")
    assert_allclose(by_step["average_loss"].mean(), run.seeds[1].metrics["average_loss"], rtol=1e-12)
    assert_allclose(by_step["train_loss"].mean(), run.seeds[1].metrics["train_loss"].mean(axis=1), rtol=1e-12)
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert again.rows() == run.rows()
    assert list(again.to_pandas().columns) == list(frame.columns)
    for metric in ("train_loss", "average_loss"):
        assert isinstance(again.plot(metric=metric), Figure)
    refuses("did not measure 'average_train_loss'", run.plot, metric="average_train_loss")


def test_final_means_are_over_the_steps_asked_for():
    assert [final_steps(T) for T in (62, 200, 320)] == [16, 50, 50]  # a quarter of a short run
    seed = replay(MECHANISM, classes(), seeds=[0], eval_every=1, metrics=METRICS).seeds[0]
    early = dataclasses.replace(seed, steps=seed.steps[:1], loss=seed.loss[:1])  # not evaluated at its end
    assert early.final_test_loss is None
    for name, values in seed.measured.items():
        assert_allclose(seed.final(name), values[-final_steps(6) :].mean(), rtol=1e-14)
        assert_allclose(seed.final(name, 4), values[2:].mean(), rtol=1e-14)
    assert seed.final("loss", 4) != seed.final_test_loss == seed.final()
    assert replay(MECHANISM, regression(), seeds=[0]).seeds[0].final("average_loss") is None
    for wrong in ({"metric": "los"}, {"last_steps": 0}):
        refuses(next(iter(wrong)), seed.final, **wrong)


def test_evaluations_tell_metrics_while_they_train():
    reported = []
    run = replay(MECHANISM, classes(), seeds=[0], eval_every=2, metrics=METRICS, on_evaluation=reported.append)
    for name, values in run.seeds[0].metrics.items():
        assert_array_equal([step.metrics[name] for step in reported], values)


@pytest.mark.parametrize("options", [(), METRICS])
def test_a_stopped_run_goes_on_with_its_metrics(tmp_path, options):
    arguments = {"task": classes(), "seeds": [0], "eval_every": 1, "metrics": options}
    whole = replay(MECHANISM, **arguments).seeds[0]
    for stop in (0, 2, 2, None, None):
        resumed = replay(MECHANISM, **arguments, stop_after=stop, checkpoint_folder=tmp_path).seeds[0]
    for name, values in whole.measured.items():
        assert_array_equal(resumed.measured[name], values)
    arguments |= {"metrics": ["train_loss"], "checkpoint_folder": tmp_path}
    refuses("the checkpoint's metrics is", replay, MECHANISM, **arguments)
    saved = checkpoint.load(next(tmp_path.iterdir()))
    assert ("metrics" in saved.metadata) == bool(options)
    assert set(options) <= set(saved.private)


@each(
    "options, message",
    ("train_loss", "metrics must be a list of names"),
    (["train_los"], "did you mean 'train_loss'"),
    (["average-accuracy"], "task 'small' is a regression"),
)
def test_what_cannot_be_measured_is_refused_before_work(options, message):
    refuses(message, lambda: replay(MECHANISM, regression(), seeds=[0], metrics=options))


@pytest.mark.slow
def test_a_comparison_keeps_what_was_asked_and_goes_on(tmp_path):
    options = {"graph": "ring:n=4", "epochs": 2, "period": 4, "seeds": 2, "mechanisms": ("none", "dp-dsgd")}
    plain = run_comparison(Experiment(**options), tmp_path / "plain")
    config = Experiment(**options, metrics="average-loss,train-loss")
    result = run_comparison(config, tmp_path / "more")
    names = {"train_loss", "average_loss"}
    assert {key for run in result["runs"] for key in run} - {key for run in plain["runs"] for key in run} == {
        f"final_{name}" for name in names
    }
    assert set(result["mechanisms"][0]) - set(plain["mechanisms"][0]) == {
        f"final_{name}_{kind}" for name in names for kind in ("mean", "std")
    }
    assert set(result["not_private"]) - set(plain["not_private"]) == names | {f"final_{name}" for name in names}
    assert "metrics" not in plain["config"]
    assert Experiment.load(tmp_path / "more" / "results.json").metrics == ("train_loss", "average_loss")
    tables = [step_frame(tmp_path / folder / comparing.STEPS) for folder in ("plain", "more")]
    assert list(tables[1].columns) == [*tables[0].columns, "average_loss", "train_loss"]
    assert tables[1][tables[0].columns].equals(tables[0])
    ended, runs = result["runs"][0], load_steps(tmp_path / "more" / comparing.STEPS)
    rows = tables[1].query("mechanism == 'none' and seed == 0 and step > 6")
    assert_allclose(ended["final_train_loss"], rows["train_loss"].mean(), rtol=1e-12)
    assert_allclose(ended["final_average_loss"], rows["average_loss"].mean(), rtol=1e-12)
    assert isinstance(plot_comparison(result, runs, metric="average_loss"), Figure)
    refuses("did not measure", plot_comparison, plain, tables[0], metric="average_loss")
    seen = []
    assert run_comparison(config, tmp_path / "more", progress=lambda steps, doing: seen.append(doing)) == result
    assert not any("seed" in doing for doing in seen)  # found finished


def test_a_comparison_of_a_regression_refuses_accuracies(tmp_path):
    config = Experiment(task="least-squares", period=1, epochs=2, unit="user", metrics=["average_accuracy"])
    refuses("is a regression", run_comparison, config, tmp_path)


START, GUESS = Baseline(2.0, 0.1), Baseline(2.5, 0.2)


def test_untrained_is_what_every_nodes_first_model_shows():
    for task in (classes(), regression()):
        instance = task.instance(3, 2)
        expected = instance.evaluate(instance.initial_parameters)
        accuracy = None if expected.accuracy is None else pytest.approx(float(expected.accuracy[1]))
        loss = pytest.approx(float(expected.loss[1]), rel=1e-12)
        assert learned.untrained(task, 3) == Baseline(loss, accuracy)


def test_chance_of_classes_is_equal_scores_and_the_commonest_class():
    task = classes(targets=np.array([2] * 30 + [0] * 20 + [1] * 10))
    chance = learned.chance(task)
    assert chance.loss == pytest.approx(np.log(3), rel=1e-6)
    assert chance.accuracy == pytest.approx(np.mean(task.test_targets == 2))


def test_chance_of_regression_is_the_mean_of_the_train_targets():
    task = regression()
    expected = np.mean((task.test_targets - task.targets.mean()) ** 2)
    assert learned.chance(task).loss == pytest.approx(expected, rel=1e-5)


def test_no_chance_where_a_guess_means_nothing():
    assert learned.chance(tasks.rotated_quadratics(4)) is None  # an output of two numbers
    assert learned.chance(regression(targets=np.ones(40))) is None
    assert learned.chance(regression(loss=lambda out, y: (out[0] - y).square() / 0.0)) is None


@each(
    "ended, finding, knob",
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
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", 0.5), Cyclic(2, 2))
    privacy = mfdl.Privacy(trust.LDP(), adjacency="replace-one", clip_norm=1.0)
    return replay(mfdl.calibrate(algorithm, privacy, epsilon=0.1, delta=1e-5), tasks.digits(3), seeds=range(2))


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
    title = "dp-dsgd does not beat the untrained model (test loss 2.3): digits"
    assert all(part in words for part in (title, "(mu = ", "epsilon = 0.1", "at delta = 1e-05", "untrained"))


def test_untrained_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    learned.untrained(classes(), 0)
    learned.chance(classes())
    assert torch.equal(before, torch.get_rng_state())

"""Pictures: every mechanism is named, divergence is said, nothing needs a display."""

import io
import sys

import matplotlib.figure
import numpy as np
import pytest

import mfdl
from mfdl.pictures.curves import Curves, calm_range
from mfdl.pictures.style import KNOWN, mechanism_looks
from mfdl.runs.rendering import plot_comparison
from mfdl.runs.store import RunSteps
from mfdl.training.run import plot_runs


def result_of(mechanisms, seeds=(0, 1), diverged=()):
    finals = {(m, s): None if m in diverged else 0.5 + i + 0.1 * s for i, m in enumerate(mechanisms) for s in seeds}
    return {
        "task": "digits", "graph": "ring:n=2", "gossip": "metropolis-hastings", "nodes": 2, "learning_rate": 0.5,
        "participation": {"scheme": "cyclic", "epochs": 2, "period": 5}, "mu": 2.0, "seeds": list(seeds),
        "epsilon": 11.2, "delta": 1e-6, "trust": "ldp", "adjacency": "replace-one", "clip_norm": 1.0, "unit": "record",
        "across_trust_models": False, "mechanisms": [{"mechanism": m} for m in mechanisms],
        "runs": [{"mechanism": m, "seed": s, "final_test_loss": f} for (m, s), f in finals.items()],
    }  # fmt: skip


def steps_of(mechanisms, seeds=(0, 1), diverged=()):
    runs = []
    for i, m in enumerate(mechanisms):
        for s in seeds:
            losses = np.array([[1.0 + i + 0.1 * s + 1 / t + u for u in range(3)] for t in (5, 10)])
            if m in diverged:
                losses[1] = np.inf
            runs.append(RunSteps({"mechanism": m, "seed": s}, np.array([5, 10]), ("0", "1", "2"), {"loss": losses}))
    return runs


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def compared(*names, seeds=(0, 1), diverged=()):
    return plot_comparison(result_of(names, seeds, diverged), steps_of(names, seeds, diverged))


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_picture_names_every_mechanism_and_carries_the_caption(seeds):
    names = ["none", "dp-dsgd", "d-mf", "mafalda"]
    figure = compared(*names, seeds=seeds)
    words = texts(figure)
    assert all(words.count(name) >= 2 for name in names)  # at its line and at its final loss
    caption = " ".join(" ".join(words).split())
    for part in (
        "under trust model ldp",
        "replace-one",
        "Task digits",
        "ring:n=2",
        "seeds 0 to 2" if len(seeds) > 1 else "seed 0",
    ):
        assert part in caption
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind)
        assert len(buffer.getvalue()) > 5000


def test_lines_are_means_over_nodes_and_seeds():
    lines = [line for line in compared("none", "mafalda").axes[0].get_lines() if list(line.get_xdata()) == [5, 10]]
    np.testing.assert_allclose(lines[0].get_ydata(), [1.0 + 0.05 + 0.2 + 1.0, 1.0 + 0.05 + 0.1 + 1.0])
    assert lines[1].get_color() == KNOWN["mafalda"][0]


def test_title_claims_no_more_than_every_seed_shows():
    names = ["none", "dp-dsgd", "mafalda"]
    result = result_of(names)
    title = "dp-dsgd ends with the lowest test loss in each of 2 seeds"
    assert any(title in t for t in texts(plot_comparison(result, steps_of(names))))
    result["runs"][2]["final_test_loss"] = 9.0  # seed 0 of dp-dsgd now ends above mafalda
    assert any("no mechanism is ahead in every seed" in t for t in texts(plot_comparison(result, steps_of(names))))


@pytest.mark.parametrize("diverged", [("anti-pgd",), ("anti-pgd", "none")])
def test_divergence_is_said_and_does_not_break_the_picture(diverged):
    figure = compared("none", "anti-pgd", diverged=diverged)
    figure.savefig(io.BytesIO(), format="png")
    assert sum("diverged in 2 of 2 seeds" in t for t in texts(figure)) == len(diverged)
    assert all(np.isfinite(axes.get_ylim()).all() for axes in figure.axes)
    over_steps = figure.axes[0]
    leads = [line.get_ydata() for line in over_steps.get_lines() if line.get_transform() == over_steps.transAxes]
    assert len(leads) == 2
    assert np.max(leads) <= 1


def test_a_diverging_run_does_not_squeeze_the_others_flat():
    steps = [np.array([1, 2])]
    calm = Curves("calm", mechanism_looks(["a"])[0], steps, [np.array([1.0, 2.0])], [2.0])
    wild = Curves("wild", mechanism_looks(["b"])[0], steps, [np.array([3.0, 1e30])], [None])
    assert calm_range([calm, wild], [2.5]) == (1.0, 2.5)
    assert calm_range([wild]) == (3.0, 3000.0)


@pytest.mark.parametrize("last", [None, 500.0])
def test_logarithmic_only_when_ranges_demand_it(last):
    runs = steps_of(["none", "mafalda"])
    if last is not None:
        runs[-1].values["loss"][-1, -1] = last
    scale = plot_comparison(result_of(["none", "mafalda"]), runs).axes[0].get_yscale()
    assert scale == ("linear" if last is None else "log")


def trained(build, steps, noise_std=20.0):
    graph = mfdl.graphs.load("ring:n=3")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.5)
    protected = {"trust": mfdl.trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    mechanism = mfdl.calibrate(
        build(dynamics, mfdl.EveryStep(steps)), mfdl.Privacy(**protected), noise_std=noise_std * steps
    )
    return mfdl.replay(mechanism, mfdl.tasks.load("digits", graph), seeds=[0], eval_every=1, progress=False)


def test_runs_can_be_plotted_without_pyplot():
    run, before = trained(mfdl.algorithms.dp_dsgd, 2), "matplotlib.pyplot" in sys.modules
    figure = run.plot()
    assert ("matplotlib.pyplot" in sys.modules) == before
    words = " ".join(" ".join(texts(figure)).split())
    assert "dp-dsgd" in words
    assert "The guarantee is mu = " in words
    assert len(figure.axes) == 1  # one mechanism has no bars to compare: its final loss stands below its name
    assert f"final {run.final_test_losses[0]:.2f}, accuracy" in words
    assert len(plot_runs([run, run]).axes) == 2


def test_a_caption_has_three_lines_of_whole_sentences():
    result = result_of(["none", "mafalda"]) | {"advice": ["A long piece of advice on this run." for _ in range(30)]}
    (caption,) = [t for t in texts(plot_comparison(result, steps_of(["none", "mafalda"]))) if t.startswith("Task")]
    assert caption.count("\n") == 2
    assert caption.endswith("A long piece of advice on this run.")
    assert "mafalda has mu = 2, epsilon = 11.2 at delta = 1e-06" in " ".join(caption.split())


def test_numbers_stand_right_of_bars_and_levels():
    right = compared("none", "dp-dsgd", "mafalda").axes[1]
    numbers = [text for text in right.texts if text.get_text().replace(".", "").isdigit()]
    assert len(numbers) == 3
    assert all((text.xy[0], text.xycoords) == (1, ("axes fraction", "data")) for text in numbers)


def test_a_title_never_praises_models_that_learned_nothing():
    """What the judges find stands in the title with epsilon; the untrained loss is a line, accuracy beside the loss."""
    names = ["none", "mafalda"]
    finding = "mafalda does not beat the untrained model (test loss 0.9)"
    judged = {"finding": finding, "advice": ["try more."], "untrained_loss_mean": 0.9}
    result = result_of(names) | judged
    result["mechanisms"] = [{"mechanism": m, "final_accuracy_mean": 0.25} for m in names]
    figure = plot_comparison(result, steps_of(names))
    words = texts(figure)
    assert f"{finding} at μ = 2, ε = 11.2 at δ = 1e-06" in words
    assert not any("lowest" in text for text in words)
    assert {"untrained", "accuracy 25%"} <= set(words)
    assert any("try more." in " ".join(text.split()) for text in words)
    assert any(np.allclose(line.get_ydata(), 0.9) for line in figure.axes[0].get_lines())


def test_runs_in_the_same_axes_share_a_legend_and_stay_in_view():
    runs = [trained(mfdl.algorithms.dp_dsgd, 8), trained(mfdl.algorithms.anti_pgd, 4)]
    ax = matplotlib.figure.Figure().add_subplot()
    for run in (runs[0], *runs):
        run.plot(ax=ax)
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [name for name in named if name != "untrained"] == ["dp-dsgd", "anti-pgd"]
    assert named.count("untrained") <= 1
    assert ax.get_xlim()[1] == 8
    low, high = ax.get_ylim()
    drawn = np.concatenate([line.get_ydata() for line in ax.lines])
    assert low <= drawn.min()
    assert drawn.max() <= high

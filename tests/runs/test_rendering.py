"""Pictures of runs and of accounting: every mechanism is named, divergence is said, nothing needs a display."""

import io
import sys

import joblib
import matplotlib.figure
import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure
from vocabulary import ZERO_OUT, dynamics_on, each

from mfdl import Dynamics, EveryStep, Privacy, algorithms, calibrate, gossip, graphs, replay, tasks, trust
from mfdl.pictures.curves import Curves, calm_range
from mfdl.pictures.drawings import MAX_LABELLED
from mfdl.pictures.style import KNOWN, mechanism_looks, write_figure
from mfdl.privacy import sensitivity_by_victim
from mfdl.runs import privacy_plots as pictures
from mfdl.runs.pairwise_losses import pairwise_losses, pairwise_matrix
from mfdl.runs.rendering import plot_comparison
from mfdl.runs.store import RunSteps
from mfdl.training.run import plot_runs
from mfdl.trust import PNDP


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


def drawn_texts(figure):
    """All words of a picture that could be written to a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 5000
    return " ".join(" ".join(texts(figure)).split())


def compared(*names, seeds=(0, 1), diverged=()):
    return plot_comparison(result_of(names, seeds, diverged), steps_of(names, seeds, diverged))


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_picture_names_every_mechanism_and_carries_the_caption(seeds):
    names = ["none", "dp-dsgd", "d-mf", "mafalda"]
    figure = compared(*names, seeds=seeds)
    words, caption = texts(figure), drawn_texts(figure)
    assert all(words.count(name) >= 2 for name in names)  # at its line and at its final loss
    trained = "seeds 0 to 2" if len(seeds) > 1 else "seed 0"
    assert all(part in caption for part in ("under trust model ldp", "replace-one", "Task digits", "ring:n=2", trained))


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
    assert (calm_range([calm, wild], [2.5]), calm_range([wild])) == ((1.0, 2.5), (3.0, 3000.0))


@pytest.mark.parametrize("last", [None, 500.0])
def test_logarithmic_only_when_ranges_demand_it(last):
    runs = steps_of(["none", "mafalda"])
    if last is not None:
        runs[-1].values["loss"][-1, -1] = last
    scale = plot_comparison(result_of(["none", "mafalda"]), runs).axes[0].get_yscale()
    assert scale == ("linear" if last is None else "log")


def trained(build, steps, noise_std=20.0):
    graph = graphs.load("ring:n=3")
    dynamics = dynamics_on(graph, 0.5)
    privacy = Privacy(trust.LDP(), **ZERO_OUT)
    mechanism = calibrate(build(dynamics, EveryStep(steps)), privacy, noise_std=noise_std * steps)
    return replay(mechanism, tasks.load("digits", graph), seeds=[0], eval_every=1, progress=False)


def test_runs_can_be_plotted_without_pyplot():
    run, before = trained(algorithms.dp_dsgd, 2), "matplotlib.pyplot" in sys.modules
    figure = run.plot()
    assert ("matplotlib.pyplot" in sys.modules) == before
    words = " ".join(" ".join(texts(figure)).split())
    assert all(words in words for words in ("dp-dsgd", "The guarantee is mu = "))
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
    runs = [trained(algorithms.dp_dsgd, 8), trained(algorithms.anti_pgd, 4)]
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


def curve(losses, distances=None):
    hops = np.arange(1, len(losses) + 1) if distances is None else np.array(distances)
    return pictures.Curve("non-adaptive", "ours", "words below", hops, np.array(losses, dtype=float))


def plotted(losses, distances=None, plot=pictures.plot_by_distance, **more):
    figure = plot([curve(losses, distances)], title="Title", caption="Caption", **more)
    return figure, next((line for line in figure.axes[0].get_lines() if line.get_marker() == "o"), None)


class TestByDistance:
    def test_lines_are_means_and_bars_the_range(self):
        figure, line = plotted([9.0, 1.0, 3.0, 0.5], [1, 2, 2, 3], local=10.0)
        np.testing.assert_allclose(line.get_ydata(), [9.0, 2.0, 0.5])
        (bars,) = figure.axes[0].collections
        np.testing.assert_allclose([s[:, 1] for s in bars.get_segments()], [[9, 9], [1, 3], [0.5, 0.5]])
        assert figure.axes[0].get_yscale() == "log"
        words = drawn_texts(figure)
        parts = ("Title", "Caption", "ours", "words below", "LDP", "distance from the attacker")
        assert all(part in words for part in parts)

    @pytest.mark.parametrize("losses", [[np.inf, 1.0, 0.5], [np.inf, np.inf], [np.inf]])
    def test_infinite_losses_are_counted_in_words(self, losses):
        words = "1 infinite losses are not drawn" if 1.0 in losses else "every loss is infinite"
        assert words in drawn_texts(plotted(losses, local=np.inf)[0])

    def test_zero_losses_do_not_stretch_the_axis(self):
        assert plotted([1.0, 0.0, 1e-300])[0].axes[0].get_ylim()[0] > 1e-3

    def test_by_victim_sorts(self):
        figure, line = plotted([1.0, 3.0, 2.0], plot=pictures.plot_by_victim, local=4.0)
        np.testing.assert_allclose(line.get_ydata(), [3.0, 2.0, 1.0])
        assert "victims" in drawn_texts(figure)


@pytest.mark.parametrize("size", [3, 50])
def test_heat_map_has_every_pair(size):
    matrix = np.random.default_rng(0).uniform(0.01, 3.0, (size, size))
    np.fill_diagonal(matrix, np.inf)
    figure = pictures.plot_pairwise(matrix, [f"n{i}" for i in range(size)], title="t", caption="c")
    words = drawn_texts(figure)
    (image,) = figure.axes[0].get_images()
    assert (image.get_array().mask.sum(), "n2" in words) == (size, size <= MAX_LABELLED)
    assert "(logarithmic)" in words


@pytest.mark.parametrize("losses", [[np.inf, 1.0, np.nan, 2.0], [np.inf, np.inf, np.inf, np.inf]])
def test_graph_marks_the_attacker(losses):
    graph = nx.relabel_nodes(nx.path_graph(4), dict(enumerate("abcd")))
    words = drawn_texts(pictures.plot_graph(graph, losses, [0], title="t", caption="c"))
    assert "a (attacker)" in words
    assert "d" in words.split()


def test_files_are_written_whole(tmp_path):
    png, svg = write_figure(tmp_path / "new", "name", plotted([1.0, 2.0])[0])
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert svg.read_text().lstrip().startswith("<?xml")
    assert sorted(p.name for p in png.parent.iterdir()) == ["name.png", "name.svg"]


@each(
    "plot, data",
    (pictures.plot_by_distance, ([curve([1.0, 2.0])],)),
    (pictures.plot_by_victim, ([curve([1.0, 2.0])],)),
    (pictures.plot_pairwise, ([[np.inf, 1.0], [2.0, np.inf]], "ab")),
    (pictures.plot_graph, (nx.path_graph(3), [np.inf, 1.0, 2.0], [0])),
)
def test_pictures_draw_into_axes_of_the_callers_and_return_them(plot, data):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot(*data, title="Title", ax=right) is right
    assert right.get_title(loc="left") == "Title"
    assert not left.has_data()
    assert isinstance(plot(*data, title="Title"), Figure)
    figure.canvas.draw()


@pytest.fixture(scope="module")
def algorithm():
    return algorithms.dp_dsgd(Dynamics(gossip.uniform("path:n=4")), EveryStep(3))


def all_losses(algorithm, *attackers, **more):
    by_attacker = pairwise_losses(algorithm, lambda v: PNDP([v]), *attackers, release="none", **more)
    return {v: {loss.victim: loss.sensitivity_squared for loss in losses} for v, losses in by_attacker.items()}


class TestPairwise:
    def test_every_attacker_alone_and_in_order(self, algorithm):
        calls = []
        by_attacker = all_losses(algorithm, [2, 0], jobs=1, progress=lambda: calls.append(1))
        assert (list(by_attacker), len(calls)) == ([2, 0], 2)
        for v, losses in by_attacker.items():
            assert list(losses) == [u for u in range(4) if u != v]
            alone = sensitivity_by_victim(algorithm, PNDP([v]), release="none")
            assert list(losses.values()) == [loss.sensitivity_squared for loss in alone]

    @pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
    def test_workers_give_the_same(self, algorithm, backend):
        with joblib.parallel_config(backend=backend):
            alone, shared = (all_losses(algorithm, jobs=jobs, victims=[0, 1]) for jobs in (1, 2))
        assert list(shared) == [0, 1, 2, 3]
        for v in alone:
            assert (list(shared[v]), shared[v]) == ([u for u in (0, 1) if u != v], pytest.approx(alone[v], rel=1e-9))

    def test_matrix(self, algorithm):
        by_attacker = pairwise_losses(algorithm, lambda v: PNDP([v]), [0, 3], release="none", jobs=1)
        mu = pairwise_matrix(by_attacker, 4, lambda loss: loss.mu(record_shift=2.0, noise_std=0.5, adaptive=False))
        assert np.isinf(mu[[0, 3], [0, 3]]).all()
        assert np.isnan(mu[:, [1, 2]]).all()
        assert mu[1, 0] == pytest.approx(4 * np.sqrt(by_attacker[0][0].sensitivity_squared))
        assert mu[1, 0] > mu[2, 0] > mu[3, 0] > 0

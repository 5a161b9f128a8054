"""Pictures of accounting, and all attackers in parallel."""

import io

import joblib
import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure
from refusals import refuses

import mfdl
from mfdl.participation import EveryStep
from mfdl.pictures.drawings import MAX_LABELLED
from mfdl.pictures.style import write_figure
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.runs import privacy_plots as pictures
from mfdl.runs.pairwise_losses import pairwise_losses, pairwise_matrix
from mfdl.trust import PNDP


def texts(figure):
    """All words of a picture that could be written to a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 5000
    return " ".join(" ".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))).split())


def curve(losses, distances=None):
    hops = np.arange(1, len(losses) + 1) if distances is None else np.array(distances)
    return pictures.Curve("non-adaptive", "ours", "words below", hops, np.array(losses, dtype=float))


def plotted(losses, distances=None, plot=pictures.plot_by_distance, **more):
    """The picture, and its line of means."""
    figure = plot([curve(losses, distances)], title="Title", caption="Caption", **more)
    return figure, next((line for line in figure.axes[0].get_lines() if line.get_marker() == "o"), None)


class TestByDistance:
    def test_lines_are_means_and_bars_the_range(self):
        figure, line = plotted([9.0, 1.0, 3.0, 0.5], [1, 2, 2, 3], local=10.0)
        np.testing.assert_allclose(line.get_ydata(), [9.0, 2.0, 0.5])
        (bars,) = figure.axes[0].collections
        np.testing.assert_allclose([s[:, 1] for s in bars.get_segments()], [[9, 9], [1, 3], [0.5, 0.5]])
        assert figure.axes[0].get_yscale() == "log"
        words = texts(figure)
        for part in ("Title", "Caption", "ours", "words below", "LDP", "distance from the attacker"):
            assert part in words

    @pytest.mark.parametrize("losses", [[np.inf, 1.0, 0.5], [np.inf, np.inf], [np.inf]])
    def test_infinite_losses_are_counted_in_words(self, losses):
        words = "1 infinite losses are not drawn" if 1.0 in losses else "every loss is infinite"
        assert words in texts(plotted(losses, local=np.inf)[0])

    def test_zero_losses_do_not_stretch_the_axis(self):
        assert plotted([1.0, 0.0, 1e-300])[0].axes[0].get_ylim()[0] > 1e-3

    def test_by_victim_sorts(self):
        figure, line = plotted([1.0, 3.0, 2.0], plot=pictures.plot_by_victim, local=4.0)
        np.testing.assert_allclose(line.get_ydata(), [3.0, 2.0, 1.0])
        assert "victims" in texts(figure)

    def test_groups(self):
        far, near = pictures.by_distance([2, 1, 2], [1.0, 5.0, 3.0])[::-1]
        assert (near.distance, near.victims, near.mean) == (1, 1, 5.0)
        assert (far.lowest, far.mean, far.highest) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("size", [3, 50])
def test_heat_map_has_every_pair(size):
    matrix = np.random.default_rng(0).uniform(0.01, 3.0, (size, size))
    np.fill_diagonal(matrix, np.inf)
    figure = pictures.plot_pairwise(matrix, [f"n{i}" for i in range(size)], title="t", caption="c")
    words = texts(figure)
    (image,) = figure.axes[0].get_images()
    assert image.get_array().mask.sum() == size
    assert ("n2" in words) == (size <= MAX_LABELLED)
    assert "(logarithmic)" in words


@pytest.mark.parametrize("losses", [[np.inf, 1.0, np.nan, 2.0], [np.inf, np.inf, np.inf, np.inf]])
def test_graph_marks_the_attacker(losses):
    graph = nx.relabel_nodes(nx.path_graph(4), dict(enumerate("abcd")))
    words = texts(pictures.plot_graph(graph, losses, [0], title="t", caption="c"))
    assert "a (attacker)" in words
    assert "d" in words.split()


def test_files_are_written_whole(tmp_path):
    png, svg = write_figure(tmp_path / "new", "name", plotted([1.0, 2.0])[0])
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert svg.read_text().lstrip().startswith("<?xml")
    assert sorted(p.name for p in png.parent.iterdir()) == ["name.png", "name.svg"]


@pytest.mark.parametrize(
    ("plot", "data"),
    [
        (pictures.plot_by_distance, ([curve([1.0, 2.0])],)),
        (pictures.plot_by_victim, ([curve([1.0, 2.0])],)),
        (pictures.plot_pairwise, ([[np.inf, 1.0], [2.0, np.inf]], "ab")),
        (pictures.plot_graph, (nx.path_graph(3), [np.inf, 1.0, 2.0], [0])),
    ],
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
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.uniform("path:n=4")), EveryStep(3))


def all_losses(algorithm, *attackers, **more):
    """Of each attacker the squared sensitivity of each victim."""
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
            assert list(shared[v]) == [u for u in (0, 1) if u != v]
            assert shared[v] == pytest.approx(alone[v], rel=1e-9)

    def test_matrix(self, algorithm):
        by_attacker = pairwise_losses(algorithm, lambda v: PNDP([v]), [0, 3], release="none", jobs=1)
        mu = pairwise_matrix(by_attacker, 4, lambda loss: loss.mu(record_shift=2.0, noise_std=0.5, adaptive=False))
        assert np.isinf(mu[[0, 3], [0, 3]]).all()
        assert np.isnan(mu[:, [1, 2]]).all()
        assert mu[1, 0] == pytest.approx(4 * np.sqrt(by_attacker[0][0].sensitivity_squared))
        assert mu[1, 0] > mu[2, 0] > mu[3, 0] > 0

    def test_no_noise_is_infinite(self, algorithm):
        (loss,) = sensitivity_by_victim(algorithm, PNDP([0]), victims=[1])
        assert loss.mu(record_shift=1.0, noise_std=0.0) == np.inf

    def test_jobs(self, algorithm):
        refuses("jobs", pairwise_losses, algorithm, lambda v: PNDP([v]), jobs=0)

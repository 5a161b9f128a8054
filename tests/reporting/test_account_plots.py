"""Pictures of accounting, and all attackers in parallel."""

import io

import joblib
import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure

import mfdl
from mfdl.participation import EveryStep
from mfdl.pictures.networks import MAX_LABELLED
from mfdl.privacy.accounting import victim_losses
from mfdl.reporting import account as pictures
from mfdl.reporting.pairwise import pairwise_losses, pairwise_matrix
from mfdl.trust import PNDP


def texts(figure):
    return " ".join(" ".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))).split())


def drawn(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 5000
    return texts(figure)


def curve(kind, losses, distances=None, name="ours"):
    hops = np.arange(1, len(losses) + 1) if distances is None else np.array(distances)
    return pictures.Curve(kind, name, "words below", hops, np.array(losses, dtype=float))


class TestByDistance:
    def test_lines_are_means_and_bars_the_range(self):
        one = curve("fixed", [9.0, 1.0, 3.0, 0.5], [1, 2, 2, 3])
        figure = pictures.plot_by_distance([one], title="Title", caption="Caption", local=10.0)
        axes = figure.axes[0]
        line = next(line for line in axes.get_lines() if line.get_marker() == "o")
        np.testing.assert_allclose(line.get_ydata(), [9.0, 2.0, 0.5])
        (bars,) = axes.collections
        np.testing.assert_allclose([s[:, 1] for s in bars.get_segments()], [[9, 9], [1, 3], [0.5, 0.5]])
        assert axes.get_yscale() == "log"
        said = drawn(figure)
        for part in ("Title", "Caption", "ours", "words below", "LDP", "distance from the attacker"):
            assert part in said

    def test_infinite_losses_are_counted_in_words(self):
        one = curve("fixed", [np.inf, 1.0, 0.5], [1, 2, 3])
        assert "1 infinite losses are not drawn" in drawn(pictures.plot_by_distance([one], title="t", caption="c"))

    @pytest.mark.parametrize("losses", [[np.inf, np.inf], [np.inf]])
    def test_nothing_finite_is_said(self, losses):
        figure = pictures.plot_by_distance([curve("fixed", losses)], title="t", caption="c", local=np.inf)
        assert "every loss is infinite" in drawn(figure)

    def test_zero_losses_do_not_stretch_the_axis(self):
        figure = pictures.plot_by_distance([curve("fixed", [1.0, 0.0, 1e-300])], title="t", caption="c")
        drawn(figure)
        assert figure.axes[0].get_ylim()[0] > 1e-3

    def test_by_victim_sorts(self):
        figure = pictures.plot_by_victim([curve("fixed", [1.0, 3.0, 2.0])], title="t", caption="c", local=4.0)
        line = next(line for line in figure.axes[0].get_lines() if line.get_marker() == "o")
        np.testing.assert_allclose(line.get_ydata(), [3.0, 2.0, 1.0])
        assert "victims" in drawn(figure)

    def test_groups(self):
        far, near = pictures.by_distance([2, 1, 2], [1.0, 5.0, 3.0])[::-1]
        assert (near.distance, near.victims, near.mean) == (1, 1, 5.0)
        assert (far.lowest, far.mean, far.highest) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("size", [3, 50])
def test_heat_map_has_every_pair(size):
    matrix = np.random.default_rng(0).uniform(0.01, 3.0, (size, size))
    np.fill_diagonal(matrix, np.inf)
    figure = pictures.plot_pairwise(matrix, [f"n{i}" for i in range(size)], title="t", caption="c")
    said = drawn(figure)
    (image,) = figure.axes[0].get_images()
    assert image.get_array().mask.sum() == size
    assert ("n2" in said) == (size <= MAX_LABELLED)
    assert "(logarithmic)" in said


@pytest.mark.parametrize("losses", [[np.inf, 1.0, np.nan, 2.0], [np.inf, np.inf, np.inf, np.inf]])
def test_graph_marks_the_attacker(losses):
    graph = nx.relabel_nodes(nx.path_graph(4), dict(enumerate("abcd")))
    figure = pictures.plot_graph(graph, losses, [0], title="t", caption="c")
    said = drawn(figure)
    assert "a (attacker)" in said
    assert "d" in said.split()


def test_files_are_written_whole(tmp_path):
    figure = pictures.plot_by_distance([curve("fixed", [1.0, 2.0])], title="t", caption="c")
    png, svg = pictures.write_figure(tmp_path / "new", "name", figure)
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert svg.read_text().lstrip().startswith("<?xml")
    assert sorted(p.name for p in png.parent.iterdir()) == ["name.png", "name.svg"]


@pytest.fixture(scope="module")
def algorithm():
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.uniform("path:n=4")), EveryStep(3))


class TestPairwise:
    def test_every_attacker_alone_and_in_order(self, algorithm):
        calls = []
        found = pairwise_losses(
            algorithm, lambda v: PNDP([v]), [2, 0], release="none", jobs=1, progress=lambda: calls.append(1)
        )
        assert list(found) == [2, 0]
        assert len(calls) == 2
        for v, losses in found.items():
            alone = victim_losses(algorithm, PNDP([v]), release="none")
            assert [one.victim for one in losses] == [u for u in range(4) if u != v]
            assert [one.sensitivity_squared for one in losses] == [one.sensitivity_squared for one in alone]

    @pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
    def test_workers_give_the_same(self, algorithm, backend):
        with joblib.parallel_config(backend=backend):
            here, there = (
                pairwise_losses(algorithm, lambda v: PNDP([v]), release="none", jobs=jobs, victims=[0, 1])
                for jobs in (1, 2)
            )
        assert list(there) == [0, 1, 2, 3]
        for v in here:
            assert [one.victim for one in there[v]] == [u for u in (0, 1) if u != v]
            np.testing.assert_allclose(
                [one.sensitivity_squared for one in there[v]], [one.sensitivity_squared for one in here[v]], rtol=1e-9
            )

    def test_matrix(self, algorithm):
        found = pairwise_losses(algorithm, lambda v: PNDP([v]), [0, 3], release="none", jobs=1)
        mu = pairwise_matrix(found, 4, lambda one: one.mu(record_shift=2.0, noise_std=0.5, adaptive=False))
        assert np.isinf(mu[0, 0])
        assert np.isinf(mu[3, 3])
        assert np.isnan(mu[:, [1, 2]]).all()
        assert mu[1, 0] == pytest.approx(4 * np.sqrt(found[0][0].sensitivity_squared))
        assert mu[1, 0] > mu[2, 0] > mu[3, 0] > 0

    def test_no_noise_is_infinite(self, algorithm):
        (loss,) = victim_losses(algorithm, PNDP([0]), victims=[1])
        assert loss.mu(record_shift=1.0, noise_std=0.0) == np.inf

    def test_jobs(self, algorithm):
        with pytest.raises(mfdl.InvalidInput, match="jobs"):
            pairwise_losses(algorithm, lambda v: PNDP([v]), jobs=0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: pictures.plot_by_distance([curve("fixed", [1.0, 2.0])], title="Title", ax=ax),
        lambda ax: pictures.plot_by_victim([curve("fixed", [1.0, 2.0])], title="Title", ax=ax),
        lambda ax: pictures.plot_pairwise([[np.inf, 1.0], [2.0, np.inf]], "ab", title="Title", ax=ax),
        lambda ax: pictures.plot_graph(nx.path_graph(3), [np.inf, 1.0, 2.0], [0], title="Title", ax=ax),
    ],
    ids=["distance", "victim", "pairwise", "graph"],
)
def test_pictures_draw_into_axes_of_the_callers_and_return_them(draw):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw(right) is right
    assert right.get_title(loc="left") == "Title"
    assert not left.has_data()
    assert isinstance(draw(None), Figure)
    figure.canvas.draw()

"""Results as data frames and heat maps: every number is that of the objects, and the names are those promised."""

import math
import re
import sys

import networkx as nx
import numpy as np
import pytest
from _privacy import applied
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from small_tasks import classes, regression
from vocabulary import dynamics_on, each, refuses

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, Losses, Privacy, account, algorithms, gossip, graphs, replay, trust
from mfdl.pictures.drawings import MAX_NUMBERED, cell_text, heat_map
from mfdl.training.run import RUN_COLUMNS, plot_runs

RING = dynamics_on("ring:n=4", 0.5)
ASKED = {"adjacency": "replace-one", "clip_norm": 0.5}


def trained(task=regression, dynamics=RING, **options):
    mechanism = mfdl.calibrate(algorithms.dp_dsgd(dynamics, Cyclic(2, 2)), Privacy(trust.LDP(), **ASKED), noise_std=1.0)
    return replay(mechanism, task(), seeds=[0, 5], **options)


@pytest.mark.parametrize("task", [regression, classes])
def test_a_run_in_long_format_says_everything_in_each_row(task):
    run = trained(task, eval_every=1)
    frame, guarantee = run.to_pandas(), run.mechanism.guarantee
    assert (tuple(frame.columns), len(frame)) == (RUN_COLUMNS, 2 * run.seeds[0].steps.size * 4)
    same = {
        "mechanism": "dp-dsgd", "trust": "ldp", "mu": guarantee.mu, "epsilon": guarantee.epsilon(1e-6), "delta": 1e-6,
        "lr": 0.5, "graph": "ring:n=4", "graph_hash": graphs.content_hash(graphs.load("ring:n=4")),
        "gossip": "metropolis-hastings", "gossip_hash": RING.gossip.content_hash, "task": "small",
        "config_hash": run.mechanism.content_hash,
    }  # fmt: skip
    for name, value in same.items():
        assert frame[name].unique().tolist() == [value]
    for seed in run.seeds:
        of_seed = frame[frame["seed"] == seed.seed]
        assert np.array_equal(of_seed["loss"].to_numpy().reshape(seed.loss.shape), seed.loss)
        assert of_seed["step"].tolist() == np.repeat(seed.steps, 4).tolist()
        assert of_seed["node"].tolist() == ["0", "1", "2", "3"] * seed.steps.size
        accuracy = of_seed["accuracy"].to_numpy()
        assert accuracy.dtype == float
        if task is regression:
            assert np.isnan(accuracy).all()
        else:
            assert np.array_equal(accuracy.reshape(seed.accuracy.shape), seed.accuracy)


def test_a_run_names_the_graph_of_all_its_rounds():
    star, path = gossip.metropolis_hastings("star:n=4"), gossip.uniform("path:n=4")
    unnamed = gossip.from_array(star.weights)
    whole = nx.compose(graphs.load("star:n=4"), graphs.load("path:n=4"))
    for given, name, graph in (
        (unnamed, "4 nodes, 3 edges", graphs.load("star:n=4")),
        (gossip.metropolis_hastings(nx.Graph([("b", "a"), ("a", "c"), ("c", "d")])), "4 nodes, 3 edges", None),
        (gossip.sequence([star, path]), "4 nodes, 5 edges", whole),
        (gossip.sequence([star, unnamed]), "star:n=4", graphs.load("star:n=4")),
    ):
        row = trained(dynamics=Dynamics(given, 0.5)).to_pandas().iloc[0]
        assert row["graph"] == name
        assert graph is None or row["graph_hash"] == graphs.content_hash(graph)
        assert row["gossip_hash"] == given.content_hash


def test_the_rate_of_a_schedule_is_that_of_the_step():
    dynamics = Dynamics(RING.gossip, learning_rate=[0.5, 0.25, 0.125, 0.0625])
    frame = trained(dynamics=dynamics, eval_every=1).to_pandas()
    rates = dict(zip(frame["step"], frame["lr"], strict=True))
    assert {step: rate for step, rate in rates.items() if step} == {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.0625}


def test_without_pandas_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    losses = Losses.from_algorithm(algorithms.dp_dsgd(RING, EveryStep(2)), Privacy(trust.LDP(), **ASKED))
    for table in (trained().to_pandas, losses.to_pandas):
        refuses(re.escape("pip install 'mfdl[tables]'"), table)


@pytest.fixture(scope="module")
def florentine():
    dynamics = dynamics_on("florentine", learning_rate=0.5)
    return algorithms.dp_dsgd(dynamics, EveryStep(3))


@pytest.fixture(scope="module")
def pairs(florentine):
    return mfdl.pairwise(florentine, Privacy(release="none", **ASKED))


@pytest.mark.parametrize("adaptive", [True, False])
def test_every_node_against_every_attacker_as_a_table(florentine, pairs, adaptive):
    frame = pairs.to_pandas(noise_std=2.0, adaptive=adaptive, delta=1e-5)
    assert len(frame) == 15 * 14
    assert not frame.duplicated(["attacker", "victim"]).any()
    hops = dict(nx.all_pairs_shortest_path_length(graphs.load("florentine")))
    for row in frame.itertuples():
        assert row.distance == hops[row.attacker][row.victim]
        assert row.epsilon == mfdl.privacy.gaussian.epsilon_from_mu(row.mu, 1e-5)
    attacker = frame[frame["attacker"] == "Medici"].set_index("victim")
    options = {"release": "none", **ASKED}
    for loss in mfdl.privacy.sensitivity_by_victim(florentine, trust.PNDP(["Medici"]), release="none"):
        row = attacker.loc[florentine.dynamics.gossip.labels[loss.victim]]
        assert row["mu"] == loss.mu(record_shift=1.0, noise_std=2.0, adaptive=adaptive)
        assert row["adaptive"] == (adaptive or loss.adaptive)
        assert row["bound"] == (loss.adaptive_bound if adaptive else loss.bound)
        assert row["trust"] == "pndp"
    if adaptive:
        assert attacker["mu"].max() == account(florentine, Privacy(trust.PNDP(["Medici"]), **options), noise_std=2.0).mu


def test_the_matrix_and_its_worst_pair(pairs):
    mu = pairs.matrix(noise_std=2.0, adaptive=False)
    assert np.isinf(mu.diagonal()).all()
    attacker, victim = pairs.worst(adaptive=False)
    off = np.where(np.isinf(mu), 0.0, mu)
    assert mu[victim, attacker] == pytest.approx(off.max(), rel=1e-9)  # the first of those that tie
    assert pairs.tied(adaptive=False) == np.isclose(off, off.max(), rtol=1e-9).sum()
    labels = list(pairs.algorithm.dynamics.gossip.labels)
    for row in pairs.rows(2.0, adaptive=False):
        assert mu[labels.index(row["victim"]), labels.index(row["attacker"])] == row["mu"]
    epsilon = pairs.matrix(noise_std=2.0, metric="epsilon", adaptive=False)
    assert epsilon[victim, attacker] == mfdl.privacy.gaussian.epsilon_from_mu(mu[victim, attacker], 1e-6)


def test_a_heat_map_of_one_number_says_why(pairs):
    for adaptive in (True, False):
        title = pairs.heatmap(adaptive=adaptive).get_title(loc="left")
        assert ("all equal: the bound with all messages seen" in title) == adaptive
    public = mfdl.pairwise(pairs.algorithm, Privacy(**ASKED), make_trust=lambda v: trust.LDP())
    assert "all equal" not in public.heatmap().get_title(loc="left")


def test_losses_of_one_question_have_one_attacker(florentine):
    losses = Losses.from_algorithm(florentine, Privacy(trust.PNDP(["Medici", "Pazzi"]), release="none", **ASKED))
    frame = losses.to_pandas()
    assert frame["attacker"].unique().tolist() == ["Medici, Pazzi"]
    assert (frame.set_index("victim").loc["Salviati", "distance"], frame["noise_std"].unique().tolist()) == (1, [1.0])
    public = Losses.from_algorithm(florentine, Privacy(trust.LDP(), **ASKED)).to_pandas()
    assert public["attacker"].unique().tolist() == [trust.LDP().attacker]
    assert public["distance"].isna().all()


def test_distances_follow_links_of_any_round():
    W = [[[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]], [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]]
    sequence = gossip.sequence([gossip.from_array(np.array(matrix)) for matrix in W])
    losses = mfdl.pairwise(algorithms.dp_dsgd(Dynamics(sequence), EveryStep(2)), Privacy(release="none", **ASKED))
    distance = {(row["attacker"], row["victim"]): row["distance"] for row in losses.rows()}
    assert (distance["0", "1"], distance["0", "2"]) == (1, 2)
    apart = algorithms.dp_dsgd(Dynamics(gossip.from_array(np.eye(2))), EveryStep(2))
    rows = mfdl.pairwise(apart, Privacy(release="none", **ASKED)).rows(adaptive=False)
    assert [row["distance"] for row in rows] == [None, None]
    assert all(row["mu"] <= 1e-300 for row in rows)


@each(
    "options, message",
    ({"adjacency": "neighbours"}, "adjacency"), ({"clip_norm": 0.0}, "clip_norm"),
    ({"attackers": [4]}, "attackers must be node indices below 4"),
    ({"attackers": []}, "attackers must be node indices below 4"),
    ({"attackers": [1], "victims": [1]}, "at least one attacker that has a victim"),
    ({"unit": "user"}, "unit 'user' needs participation in every step"), ({"jobs": 0}, "jobs"),
    ids=["adjacency", "clip", "attackers", "nobody", "itself", "unit", "jobs"],
)  # fmt: skip
def test_what_is_asked_of_pairs_is_checked(options, message):
    refuses(message, lambda: applied(mfdl.pairwise, algorithms.dp_dsgd(RING, Cyclic(2, 2)), ASKED | options))


def cells(axes):
    return [text.get_text() for text in axes.texts]


def test_heat_maps_draw_into_axes_and_return_them(florentine, pairs):
    axes_of_its_own = pairs.heatmap(noise_std=2.0)
    assert isinstance(axes_of_its_own, Axes)
    assert isinstance(axes_of_its_own.figure, Figure)
    given = Figure().subplots()
    assert pairs.heatmap(given, metric="epsilon", noise_std=2.0) is given
    assert (len(cells(given)), given.get_xlabel(), given.get_ylabel()) == (15 * 15, "attacker", "victim")
    assert [tick.get_text() for tick in given.get_yticklabels()] == list(florentine.dynamics.gossip.labels)
    losses = Losses.from_algorithm(florentine, Privacy(trust.PNDP(["Pazzi"]), release="none", **ASKED))
    assert len(cells(losses.heatmap(adaptive=False))) == 14
    refuses("metric", pairs.heatmap, metric="loss")


@pytest.mark.parametrize("size", [2, MAX_NUMBERED, MAX_NUMBERED + 1])
def test_cells_carry_numbers_up_to_twenty_nodes(size):
    values = np.full((size, size), 0.1234)
    np.fill_diagonal(values, math.inf)
    values[0, 1] = math.nan
    axes = heat_map(values, [str(i) for i in range(size)], [str(i) for i in range(size)], "μ", title="t")
    wanted = size <= MAX_NUMBERED
    assert (cells(axes).count("0.13"), cells(axes).count("∞")) == (wanted * (size * size - size - 1), wanted * size)


def test_a_number_in_a_cell_is_never_below_the_value():
    rng = np.random.default_rng(0)
    for value in 10.0 ** rng.uniform(-12, 9, 2000):
        printed = float(cell_text(float(value)))
        assert value * (1 - 1e-8) <= printed <= value * 2


@pytest.mark.slow
def test_notebooks_show_table_and_heat_map(pairs):  # those of `Losses`: tests/test_spec.py
    assert len(repr(pairs)) < 1500
    assert all(part in pairs._repr_html_() for part in ("<table>", "<img"))


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_runs_draw_into_axes_and_return_them(metric):
    run = trained(classes, eval_every=1)
    figure = run.plot(metric=metric)
    assert isinstance(figure, Figure)
    assert [axes.get_title(loc="left").split(" ")[:3] for axes in figure.axes] == [["Test", metric, "while"]]
    both = plot_runs([run, run], metric=metric)
    assert both.axes[1].get_title(loc="left").split(" ")[:3] == ["Final", "test", metric]
    axes = Figure().subplots()
    assert run.plot(axes, metric=metric) is axes
    values = [getattr(seed, metric).mean(axis=1) for seed in run.seeds]
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), np.mean(values, axis=0))
    assert metric in axes.get_title(loc="left")
    assert plot_runs([run, run], ax=Figure().subplots(), metric=metric).get_legend() is not None


def test_what_a_picture_cannot_show_is_refused():
    run = trained()
    refuses("task 'small' is a regression", run.plot, metric="accuracy")
    refuses("metric", run.plot, metric="mu")
    refuses("at least one run", plot_runs, [])

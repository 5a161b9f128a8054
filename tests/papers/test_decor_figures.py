"""DECOR: verdicts on made-up numbers, stored runs, its accountant beside integrals, pairs at example level."""

import functools
import json
import math
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from mnist_files import register_mnist
from vocabulary import dynamics_on, each, given, refuses, st

import mfdl
import mfdl_papers as papers
from mfdl import EveryStep, InvalidInput, Privacy, algorithms, calibrate, data, trust
from mfdl.decor_search import decor_deviations
from mfdl_papers.decor import accountant, budget_curves, deviation_pairs, logistic, mnist, rate_comparison
from mfdl_papers.figures import RunScale, named, trained_panels

SEEDS = np.array([1.0, 1.1, 0.95])


def curves(ldp, decor, cdp):
    lines = {"LDP": ldp, "DECOR": decor, "CDP": cdp}
    lines = {name: np.outer(values, SEEDS) * (1 + 1e-3 * i) for i, (name, values) in enumerate(lines.items())}
    return budget_curves.BudgetCurves((3.0, 10.0), {"ring": lines}, {"ring": ["small"] * 2})


@each(
    "given, verdicts",
    (curves([100, 30], [5, 2], [4, 1.5]), ["confirmed", "confirmed", "confirmed"]),
    (curves([10, 3], [5, 2], [4, 0.5]), ["confirmed", "direction only", "refuted"]),
    (curves([10, 3], [5, 4], [4, 0.5]), ["refuted", "direction only", "refuted"]),
    (curves([10, 3], [20, 4], [4, 0.5]), ["refuted", "refuted", "refuted"]),
)
def test_verdicts_of_figure_1(given, verdicts):
    assert [part.verdict for part in budget_curves.judged(given)] == verdicts


def test_the_factor_is_the_geometric_mean_over_points():
    _, ten, _ = budget_curves.judged(curves([100, 40], [10, 1], [1, 1]))
    assert ten.value == pytest.approx(20, rel=2e-3)


def test_pairs_of_the_figure_are_those_of_the_search():
    """One ratio for every budget: the search at another budget, and what the cell of the figure is calibrated to."""
    points = budget_curves.runs((10.0,), [1], functools.partial(budget_curves.at_rate, 1.0))
    assert len(points) == 3 * 5
    assert points["ring", "CDP", 10.0] == points["torus", "CDP", 10.0]
    graph = mfdl.graphs.load("torus:n=16")
    dynamics = dynamics_on(graph)
    target, clipping = {"epsilon": 3.0, "delta": 1e-5}, {"adjacency": "replace-one", "clip_norm": 1.0}
    privacy = Privacy(trust.Eavesdropper(), unit="user", **clipping)
    pairs = decor_deviations(dynamics, EveryStep(50), privacy, **target)
    for name, pair in zip(budget_curves.PAIRS, pairs, strict=True):
        (config,) = points["torus", name, 10.0]
        built = algorithms.decor(dynamics, EveryStep(50), **config.parameters("decor"))
        mechanism = calibrate(built, privacy, **target)
        assert mechanism.noise_std == pytest.approx(pair.sigma_ldp, rel=1e-9)


def test_each_line_is_shown_at_the_rate_and_pair_that_is_best_on_other_seeds(tmp_path, monkeypatch):
    """Losses that are least at another rate and pair for each line, and the other way round on the seeds shown."""
    best_factors = {"dp-dsgd": 0.25, "cdp": 1.0, "decor": 0.5}
    calls = []

    def losses(figure, scale, points, *, last_steps):
        calls.append({config.first_seed for configs in points.values() for config in configs})
        return {key: np.array([loss(config, len(calls)) for config in configs]) for key, configs in points.items()}

    def loss(config, call):
        is_best = np.isclose(config.learning_rate, best_factors[config.mechanisms[0]] * 1.668e-3)
        is_best &= config.settings in middle_pairs
        return float(is_best) if call == 2 else 2.0 - is_best

    figure, scale = named("decor-1a"), RunScale(quick=True, out=tmp_path)
    points = budget_curves.runs((3.0,), [1], functools.partial(budget_curves.at_rate, 1.0))
    middle_pairs = {(), *(points[graph, "middle", 3.0][0].settings for graph in budget_curves.GRAPHS)}
    monkeypatch.setattr(budget_curves, "losses", losses)
    monkeypatch.setattr(budget_curves, "QUICK_EPSILONS", (3.0,))
    done = budget_curves.run(figure, scale)
    assert calls == [{101}, {1, 2, 3}]
    assert set(budget_curves.TUNING_SEEDS).isdisjoint(range(1, 6))
    assert done.numbers["chosen rates"]["ring"]["LDP"] == pytest.approx([0.25 * 1.668e-3])
    assert done.numbers["chosen pairs"] == {graph: ["middle"] for graph in budget_curves.GRAPHS}
    for panel in done.numbers["panels"]:
        assert panel["lines"] == {name: [[1.0] * 3] for name in ("LDP", "DECOR", "CDP")}
    assert done.tables[-1].rows[0] == ("3", *["0.25*", "0.5", "1*"] * 3)


def test_the_second_reading_has_the_noise_of_cdp_on_the_same_graph(tmp_path, monkeypatch):
    points = budget_curves.on_the_same_graph((10.0,), [1], functools.partial(budget_curves.at_rate, 1.0))
    (cdp,), (decor,) = (points["ring", line, 10.0] for line in ("CDP", "DECOR"))
    assert cdp.graph == decor.graph == "ring:n=16"
    assert (*decor.mechanisms, decor.trust, decor.epsilon) == (budget_curves.BEST_PAIR, "eavesdropper", 10.0)
    dynamics, steps = dynamics_on("ring:n=16"), EveryStep(50)
    clipping = {"adjacency": "replace-one", "clip_norm": 1.0, "unit": "user"}
    server = calibrate(algorithms.cdp(dynamics, steps), Privacy(trust.Central(), **clipping), epsilon=10.0, delta=1e-5)
    same = calibrate(algorithms.dp_dsgd(dynamics, steps), Privacy(trust.LDP(), **clipping), mu=cdp.mu)
    assert same.noise_std == pytest.approx(server.noise_std, rel=1e-6)

    def losses(figure, scale, points, *, last_steps):
        return {
            key: np.array([3.0 if config.mechanisms == decor.mechanisms else 1.0 + config.first_seed / 100])
            for key, (config, *_) in points.items()
        }

    monkeypatch.setattr(budget_curves, "losses", losses)
    done = budget_curves.run_on_the_same_graph(named("decor-1a-same-graph"), RunScale(quick=True, out=tmp_path))
    assert done.verdicts[0].finding == "DECOR / CDP: ring 2.97 to 2.97"
    assert [set(panel["lines"]) for panel in done.numbers["panels"]] == [{"DECOR", "CDP"}]


def made_up(ring, torus, complete, theorem=2.0):
    lines = dict(zip(budget_curves.GRAPHS, map(np.array, (ring, torus, complete)), strict=True))
    lines |= {f"{graph}, Theorem 1": theorem * values for graph, values in lines.items()}
    return lines | {"LDP": np.full(3, 8.0), "CDP": np.ones(3)}


GOOD = ([8, 4, 1.02], [7, 3, 1.01], [6, 2, 1.0])


@each(
    "q0, q1, verdicts",
    (made_up(*GOOD), made_up(*GOOD), ["confirmed"] * 4),
    (made_up(*GOOD[::-1], theorem=0.5), made_up(*GOOD), ["confirmed", "refuted", "refuted", "refuted"]),
    (
        made_up(*[[1, 2, 8]] * 3, theorem=0.5), made_up(*[[0.5, 1, 4]] * 3, theorem=0.5),
        ["refuted", "confirmed", "refuted", "refuted"],
    ),
)  # fmt: skip
def test_verdicts_of_the_accountant(q0, q1, verdicts):
    assert [part.verdict for part in accountant.judged({0: q0, 1: q1})] == verdicts


def test_curves_are_those_of_the_accountant_by_ratio():
    lines = accountant.curves(50.0, (0.0, 2.0), 0, lambda inverse: inverse)
    assert lines["ring"][0] == pytest.approx(lines["LDP"][0])
    slope = papers.decor_accountant("ring:n=16", sigma_ldp=50.0, sigma_cor=100.0).value
    assert lines["ring"][1] == pytest.approx(slope / 2)
    assert accountant.user_level(0.0004) == pytest.approx(mfdl.privacy.gaussian.epsilon_from_mu(2 * np.sqrt(0.4), 1e-5))


@each("published, exact, word", (9.9, 10.0, "confirmed"), (10.8, 11.0, "refuted"))
def test_verdicts_of_the_search(published, exact, word, monkeypatch):
    of_targets = [published / 10 * target for target in deviation_pairs.EPSILONS]
    monkeypatch.setattr(deviation_pairs, "STORED", {"ring": of_targets})
    local = deviation_pairs.gaussian_ldp(10.0) * (0.26 if exact == 10.0 else 0.9)
    judged = deviation_pairs.judged({("ring", 10.0): [((1, 1), published)]}, {("ring", 10.0): [((local, 1.0), exact)]})
    assert [part.verdict for part in judged] == [word] * 3


def test_the_search_of_the_code_overshoots_and_ours_does_not():
    first = deviation_pairs.published_search("complete:n=16", 10.0)[0][1]
    assert first == pytest.approx(10.80, abs=0.01)
    assert deviation_pairs.converted(deviation_pairs.step_budget(10.0)) == pytest.approx(10.0)
    ours = [epsilon for _, epsilon in deviation_pairs.own_search("ring:n=16", 10.0)]
    assert ours == pytest.approx([10.0] * 6, rel=1e-9)


def test_figure_2_in_one_call(reproduced, monkeypatch):
    monkeypatch.setattr(accountant, "RATIOS", (0.1, 1.0, 1000.0))
    assert [part["verdict"] for part in reproduced("decor-2")["claims"]] == ["confirmed"] * 4


def test_published_rates_and_clipping_norms_of_a9a():
    ldp = [logistic.published("ring", "dp-dsgd", e) for e in (3, 5, 7, 10, 15, 40)]
    assert ldp == [(0.005, 0.01)] * 2 + [(0.01, 0.01)] * 2 + [(0.05, 0.01)] * 2
    for graph, mechanism in (("complete", "cdp"), ("complete", "decor")):
        assert [logistic.published(graph, mechanism, e) for e in (7, 10)] == [(0.05, 0.01), (0.01, 0.1)]
    assert [logistic.published("torus", "decor", e) for e in (10, 15)] == [(0.005, 0.1), (0.01, 0.1)]


def grid_of(best, loss):
    return {(r, c): loss * SEEDS * (1 if (r, c) == best else 3) for r in logistic.RATES for c in logistic.CLIPS}


@each(
    "ldp, decor, loss, verdicts",
    ((0.01, 0.01), (0.005, 0.1), 0.1, ["confirmed", "confirmed"]),
    ((0.05, 0.01), (0.005, 0.1), 0.1, ["refuted", "confirmed"]),
    ((0.05, 0.01), (0.1, 0.1), 2.0, ["refuted", "refuted"]),
)
def test_verdicts_of_the_grid(ldp, decor, loss, verdicts):
    final_test_losses = {("ring", "LDP", 10.0): grid_of(ldp, 0.2), ("ring", "DECOR", 10.0): grid_of(decor, loss / 5)}
    judged = logistic.judged_grid(final_test_losses)
    assert [part.verdict for part in judged] == verdicts
    best = (ldp == (0.01, 0.01)) + (decor == (0.005, 0.1))
    assert judged[0].finding.startswith(f"it has the lowest mean loss in {best} of 2 grids of 12 settings")
    assert judged[0].finding.endswith("up to 3 times the lowest in the others") == (best < 2)
    assert judged[1].finding.startswith(f"LDP / DECOR from {1 / loss:.3g} to {1 / loss:.3g} over 1 points")
    shorter = logistic.judged_grid(final_test_losses, "a fifth of the steps")[0]
    assert (shorter.verdict, "a fifth of the steps" in shorter.remark) == ("not settled", True)


def test_the_least_loss_is_taken_off_and_nothing_is_below_it():
    assert logistic.excess(np.array([0.4236, 0.2, np.nan]))[:2] == pytest.approx([0.1, 1e-6])


def test_grid_of_few_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(logistic, "QUICK_PASSES", 1)
    monkeypatch.setattr(logistic, "RATES", (0.005, 0.01))
    monkeypatch.setattr(logistic, "CLIPS", (0.01, 0.1))
    monkeypatch.setattr(logistic, "published_seeds", lambda scale, quick, full: range(1, 2))
    seen = {}

    def losses(figure, scale, points, *, last_steps, column):
        seen.update(points)
        return {point: np.array([0.5 + config.clip_norm for config in configs]) for point, configs in points.items()}

    monkeypatch.setattr(logistic, "losses", losses)
    done = logistic.run_grid(named("decor-d2"), RunScale(quick=True, out=tmp_path))
    assert len(seen) == 4 * 3
    (config,) = seen["ring", "LDP", 10.0, (0.01, 0.1)]
    assert (config.learning_rate, config.clip_norm, config.metrics) == (0.01, 0.1, ("average_train_loss",))
    assert (config.lr_schedule, config.epochs * config.period) == ("inverse-time:5000", 32)
    assert (len(done.verdicts), len(done.tables)) == (2, 3)


def accuracies(ldp, decor, cdp):
    lines = {"LDP": ldp, "DECOR": decor, "CDP": cdp}
    return {name: np.array(values)[:, None] + np.array([0.0, 0.001]) for name, values in lines.items()}


@each(
    "ldp, ring, torus, verdicts",
    (0.7, [0.895, 0.9], [0.9, 0.9], ["confirmed"] * 2),
    (0.85, [0.8, 0.9], [0.9, 0.8], ["direction only", "refuted"]),
    (0.95, [0.8, 0.8], [0.8, 0.9], ["refuted"] * 2),
)
def test_verdicts_of_figure_1c(ldp, ring, torus, verdicts):
    decor = {"ring": ring, "torus": torus, "complete": [0.0, 0.0]}
    judged = mnist.judged({graph: accuracies([ldp, 0.9], some, [0.9, 0.9]) for graph, some in decor.items()})
    assert [part.verdict for part in judged] == verdicts


def test_published_rates_and_clipping_norms_of_mnist():
    assert mnist.published("ring", "LDP", 0.83) == (1.0, 1.0)
    assert mnist.published("complete", "CDP", 7.51) == mnist.published("complete", "DECOR", 0.83) == (5.0, 1.0)
    assert [mnist.published("torus", "DECOR", e) for e in (0.83, 7.51)] == [(5.0, 1.0), (1.0, 5.0)]
    assert [mnist.published("ring", "DECOR", e) for e in (4.35, 7.51)] == [(2.0, 1.0), (1.0, 1.5)]


def test_runs_of_mnist_are_kept_and_shared(tmp_path, monkeypatch):
    tried = []

    def train(wanted):
        tried.append(wanted)
        if len(tried) == 3:
            raise InvalidInput("stopped")
        return {"accuracy": {"LDP": 0.7, "DECOR": 0.9, "CDP": 0.9}[wanted.line], "task": "made up"}

    monkeypatch.setattr(mnist, "train", train)
    monkeypatch.setattr(mnist.tasks, "load", lambda name, nodes, data_home: SimpleNamespace(name="mnist-mlp"))
    monkeypatch.setattr(mnist, "QUICK_EPSILONS", (0.83, 7.51))
    arguments = named("decor-1c"), RunScale(quick=True, jobs=1, out=tmp_path, progress=False)
    refuses("stopped", mnist.run, *arguments)
    done = mnist.run(*arguments)
    assert (len(tried), len(set(tried))) == (7, 6)
    assert [part.verdict for part in done.verdicts] == ["not settled", "not settled"]  # one seed
    stored = json.loads((tmp_path / "decor-1c" / "runs" / "CDP-complete-0.83-1-200.json").read_text())
    assert stored["accuracy"] == 0.9


def test_the_pair_of_a_run_is_the_best_of_its_mean():
    factors = {"small": 2, "middle": 1, "large": 3, "LDP": 5, "CDP": 5}
    final_test_losses = {("ring", name, 3.0): factor * SEEDS for name, factor in factors.items()}
    curves = budget_curves.BudgetCurves.from_losses((3.0,), final_test_losses)
    assert curves.chosen == {"ring": ["middle"]}
    assert trained_panels.mean_ratio(curves.lines["ring"]["DECOR"][0], SEEDS) == pytest.approx(1.0)


def test_without_the_training_images_figure_1c_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist.tasks, "load", lambda name, nodes, data_home: SimpleNamespace(name="mnist-10k-mlp"))
    monkeypatch.setattr(mnist, "train", None)
    done = mnist.run(named("decor-1c"), RunScale(quick=True, jobs=1, out=tmp_path))
    assert [part.verdict for part in done.verdicts] == ["not run", "not run"]
    assert "60,000 training images" in done.missing[0]


@pytest.mark.slow
def test_figure_1c_is_trained_on_files_of_the_format_of_mnist(tmp_path, reproduced, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2112, 28, 28)).astype(np.uint8)
    put = register_mnist(monkeypatch, tmp_path, images, np.arange(2112) % 10, 2048)
    home = put(*data.mnist_files("train"), *data.mnist_files("test"))
    monkeypatch.setattr(mnist, "QUICK_STEPS", 2)
    answer = reproduced("decor-1c", "--data-home", home, out=tmp_path / "out")
    assert [part["verdict"] for part in answer["claims"]] == ["not settled"] * 2  # one seed
    assert answer["settings"]["task"] == "mnist-mlp"
    runs = {path.name.partition("-")[0]: json.loads(path.read_text()) for path in tmp_path.glob("out/decor-1c/runs/*")}
    assert set(runs) == {"LDP", "DECOR", "CDP"}
    for line, run in runs.items():
        assert 0 <= run["accuracy"] <= 1
        assert f"trust model: {'ldp' if line == 'LDP' else 'eavesdropper'}" in run["guarantee"]
        assert "epsilon: 0.83 at delta = 1e-05" in run["guarantee"]
    assert runs["CDP"]["noise_std"] < runs["DECOR"]["noise_std"] < runs["LDP"]["noise_std"]


def divergence(order, std, rate, common):
    """D_order of (1 - g) N(c) + g N(1) from (1 - g) N(c) + g N(-1) on a grid; the means are of a batch's output."""
    x = np.linspace(-14 * std - 20, 14 * std + 20, 60_001)

    def log_density(mean):
        parts = [-((x - m) ** 2) / (2 * std**2) + np.log(w) for m, w in ((common, 1 - rate), (mean, rate)) if w > 0]
        return np.logaddexp.reduce(parts) - math.log(std * math.sqrt(2 * math.pi))

    return math.log(np.trapezoid(np.exp(order * log_density(1.0) + (1 - order) * log_density(-1.0)), x)) / (order - 1)


@given(st.integers(2, 8), st.floats(0.8, 8), st.floats(0.01, 1), st.floats(-1, 1))
def test_the_sampled_bound_is_above_the_divergence_of_every_batch(order, std, rate, common):
    slope = 2**2 / (2 * std**2)  # a replaced record moves the mean by 2
    bound = papers.sampled_renyi(slope, order=order, rate=rate)
    assert bound >= divergence(order, std, rate, common) * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(0.8, 0.01, 100), (2.0, 0.1, 10), (5.0, 0.02, 1000)])
def test_epsilon_is_no_lower_than_that_of_another_implementation(multiplier, rate, steps):
    import dp_accounting
    from dp_accounting import rdp

    replace_one = dp_accounting.NeighboringRelation.REPLACE_ONE
    # its best orders are 5, 12 and 17; those beyond 200 take seconds
    accountant = rdp.RdpAccountant(orders=list(range(2, 41)), neighboring_relation=replace_one)
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, round(1000 * rate), gaussian)
    theirs = accountant.compose(event, steps).get_epsilon(1e-5)
    ours = papers.sampled_epsilon(1 / (2 * multiplier**2), 1e-5, rate=rate, num_steps=steps)
    assert ours.valid
    assert theirs <= ours.value <= 3 * theirs + 1


def test_steps_add_up_and_numbers_out_of_range_are_refused():
    single_step, ten = (papers.sampled_renyi(0.1, order=4, rate=0.05, num_steps=t) for t in (1, 10))
    assert (ten, papers.sampled_renyi(0.0, order=2, rate=0.5)) == (pytest.approx(10 * single_step), 0.0)
    for wrong in ({"order": 1, "rate": 0.5}, {"order": 2, "rate": 1.5}, {"order": 2, "rate": 0.0}):
        refuses(".", papers.sampled_renyi, 0.1, **wrong)


def test_rates_are_the_printed_formulas():
    common = {"epsilon": 2.0, "dimension": 3}
    assert papers.central_rate(10, **common) == pytest.approx(3 / (100 * 4))
    assert papers.local_rate(10, **common) == pytest.approx(3 / (10 * 4))
    ring = np.roll(np.eye(10), 1, 1)
    mixing = 1 - np.sort(np.linalg.eigvalsh((np.eye(10) + ring + ring.T) / 3) ** 2)[-2]
    assert papers.muffliato_rate("ring:n=10", **common) == pytest.approx(2 / math.sqrt(mixing) * 3 / 400)
    lines = rate_comparison.rates("ring")
    assert lines["DECOR"] / lines["central"] == pytest.approx(32 * math.log(1e5))


def test_verdicts_on_rates():
    lines = {family: rate_comparison.rates(family) for family in ("ring", "complete")}
    assert [part.verdict for part in rate_comparison.judged(lines)] == ["confirmed", "confirmed"]
    lines["ring"]["DECOR"] = lines["ring"]["local"]
    lines["ring"]["Muffliato"] = lines["ring"]["central"]
    assert [part.verdict for part in rate_comparison.judged(lines)] == ["refuted", "refuted"]


@pytest.mark.parametrize("spec", ["path:n=4", "star:n=5", "complete:n=4"])
def test_the_flow_is_of_least_energy(spec):
    graph = mfdl.graphs.load(spec)
    K, n = nx.incidence_matrix(graph, oriented=True).toarray(), len(graph)
    flows = [np.linalg.lstsq(K, np.eye(n)[i] - 1 / n, rcond=None)[0] for i in range(n)]
    expected = 2 * max(1 / (n * 4) + t @ t / 9 for t in flows)
    assert papers.flow_theorem(graph, sigma_ldp=2.0, sigma_cor=3.0).value == pytest.approx(expected)


def test_a_flow_needs_noise_on_its_edges():
    assert papers.flow_theorem("ring:n=4", sigma_ldp=1.0, sigma_cor=0.0).value == math.inf
    alone = papers.flow_theorem("star:n=4", sigma_ldp=2.0, sigma_cor=3.0, num_colluders=1)
    assert alone.value == pytest.approx(2 / 4)  # without the centre each node hides by its own noise alone
    for wrong in ({"epsilon": 0.0, "delta": 0.1}, {"epsilon": 1.0, "delta": 1.0}):
        refuses(".", papers.largest_theta, **wrong)


@pytest.mark.parametrize(("label", "library", "paper"), [(0.001, 0.83, 5.5), (0.1, 4.35, 112), (1.0, 7.51, 1012)])
def test_labels_of_the_code_are_divergences_of_one_step(label, library, paper):
    limit = accountant.largest_inverse(lambda inverse: accountant.coded(inverse) <= label)
    assert accountant.coded(limit) <= label
    assert accountant.coded(limit) == pytest.approx(label, rel=1e-5)
    assert accountant.example_level(limit) == pytest.approx(library, rel=5e-3)
    assert accountant.composed(limit) == pytest.approx(paper, rel=1e-2)


@pytest.mark.parametrize("spec", ["ring:n=6", "star:n=5", "complete:n=4"])
def test_pairs_stay_in_the_box_and_below_the_limit(spec):
    L = mfdl.node_covariances.laplacian(mfdl.graphs.load(spec)).toarray()
    limit = 2e4
    within = accountant.pairs_within(spec, limit, 7)
    assert within
    for (local, pair), inverse in within:
        assert accountant.LOCAL[0] <= local <= accountant.LOCAL[1]
        assert accountant.PAIR[0] <= pair <= accountant.PAIR[1] * (1 + 1e-8)
        worst = np.linalg.inv(local**2 * np.eye(len(L)) + pair**2 * L).diagonal().max()
        assert worst == pytest.approx(inverse)
        assert inverse <= limit
        assert inverse >= limit * (1 - 1e-6) or pair == accountant.PAIR[0]

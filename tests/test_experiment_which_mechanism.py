"""The comparison: rates and budgets chosen as the protocol says, rows and tables, and runs that are never run twice."""

import json
import math

import _comparison_picture as picture
import _comparison_tables as tables
import _limits as limits
import _protocol as protocol
import _scenes as scenes
import numpy as np
import pytest
import which_mechanism as which
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

import mfdl
from mfdl.algorithms import noise_error, registry
from mfdl.runs import Engine, running
from mfdl.runs.cells import Shared

ROWS = ("no noise", "DP-D-SGD", "MAFALDA")
SEEDS = protocol.TUNING.rounds()[-1]


# ---- rates -----------------------------------------------------------------------------------------------------------
def made_up(loss, scene=scenes.QUICK, plan=None):
    """A trial whose runs are a function of (label, rate, seed) to (last loss, loss of the released model)."""
    trial, requested = protocol.Trial(scene, 0.726, None, Engine(), plan or protocol.Plan()), []

    def run(wanted, seeds):
        for label, rate in dict.fromkeys(wanted):
            for seed in seeds:
                requested.append((label, rate, seed))
                last, released = loss(label, rate, seed)
                trial._records[label, rate, seed] = {"last_test_loss": last, "final_test_loss": released}

    trial.run = run
    return trial, requested


def valley(best, steep=1.0):
    return lambda rate: 1 + steep * math.log10(rate / best) ** 2


@given(
    30, best=st.sampled_from(protocol.RATES[1:-1]), other=st.sampled_from(protocol.RATES[1:-1]),
    noise=st.floats(0, 1e-3),
)  # fmt: skip
def test_the_last_and_the_released_model_each_have_the_best_rate_of_the_grid(best, other, noise):
    trial, requested = made_up(lambda _, rate, seed: (valley(best)(rate) + noise * (seed % 3), valley(other)(rate)))
    trial.choose(["MAFALDA"])
    assert trial.chosen == {("MAFALDA", "last"): best, ("MAFALDA", "released"): other}
    first = {(rate, seed) for _, rate, seed in requested if seed in SEEDS[:2]}
    assert first == {(rate, seed) for rate in protocol.RATES for seed in SEEDS[:2]}  # 7 x 2
    assert {seed for _, _, seed in requested} == set(SEEDS)
    for optimum in {best, other}:
        assert 3 <= len({rate for _, rate, seed in requested if seed == SEEDS[4]}) <= 6  # 3 x 5, of each measure
        assert (optimum, SEEDS[4]) in {(rate, seed) for _, rate, seed in requested}


@each("best, chosen", (4.0, 4.64), (2.15, 2.15), (0.005, 0.00464), (1e9, 21.5), (1.0, 1.0), (1e-9, 0.000464))
def test_the_grid_goes_on_where_the_best_is_at_its_end(best, chosen):
    """Up to four times, and no further than one rate beyond the best."""
    trial, _ = made_up(lambda *run: (valley(best)(run[1]),) * 2)
    trial.choose(["MAFALDA"])
    assert_allclose(trial.chosen["MAFALDA", "last"], chosen, rtol=0.01)  # rates have three digits


def extreme(_, rate, seed):
    return (valley(0.1)(rate) + 1e6 * ((rate, seed) == (0.1, SEEDS[4])),) * 2


def diverging(_, rate, seed):
    return (None, None) if rate > 0.05 and seed == SEEDS[1] else (1 / rate, 1 / rate)


@each("loss, chosen", (extreme, 0.1), (diverging, 0.0464))
def test_ranks_choose_so_that_one_extreme_seed_does_not_and_a_rate_that_diverges_is_the_worst(loss, chosen):
    trial, _ = made_up(loss)
    trial.choose(["MAFALDA"])
    assert trial.chosen["MAFALDA", "last"] == chosen


def test_a_row_that_follows_another_has_its_rate_and_is_not_tuned():
    trial, requested = made_up(lambda *run: (valley(0.1)(run[1]),) * 2)
    follower = "DECOR; full batches; coalitions of 1"
    trial.choose([follower, "CorN; full batches"])
    assert trial.chosen[follower, "released"] == trial.chosen["CorN; full batches", "released"] == 0.1
    assert follower not in {label for label, _, _ in requested}


# ---- scenes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", which.SCENES)
def test_scenes_are_named_by_what_they_are(name):
    place = scenes.scene(name)
    assert place.name == name
    assert place.task == name.split("/")[0]
    config = place.config(scenes.ROWS["MAFALDA"], 0.726, 0.1, 7)
    assert (config.epsilon, config.first_seed, config.learning_rate, config.adjacency) == (0.726, 7, 0.1, "zero-out")
    assert config.eval_every == config.epochs * config.period  # the last model alone


def test_scenes_of_one_budget_or_skewed():
    place = scenes.scene("a9a/ego/dirichlet/epsilon=1.993")
    assert (place.partition, place.epsilons) == ("dirichlet:alpha=1,min_records=16", (1.993,))
    for wrong, message in {"moon/ego": "no scene 'moon/ego'", "a9a/ego/uniform": "cannot read 'uniform'"}.items():
        refuses(message, scenes.scene, wrong, error=ValueError)


@pytest.mark.parametrize("row", scenes.ROWS.values(), ids=lambda row: row.label)
def test_every_row_is_a_mechanism_held_to_a_trust_model_that_it_is_meant_for(row):
    assert set(row.rankings) <= set(tables.RANKINGS)
    place = scenes.QUICK if scenes.QUICK.has(row) else scenes.scene("logistic/torus")
    config = place.config(row, 0.726, 0.1, 7)
    assert (config.precondition is not None) == row.preconditioned
    entry = registry.find_entry(*config.mechanisms)
    assert not entry.models or row.trust["trust"] in entry.models
    assert "," not in row.label  # --rows splits there


@pytest.mark.slow
def test_the_encoders_for_secret_bins_meet_the_budget_and_are_the_best_at_what_each_is_made_for():
    def root_error(label, weights):
        config = scenes.QUICK.config(scenes.ROWS[label], 0.726, 0.1, 7)
        mechanism = Shared().accounted(config, *config.mechanisms).mechanism(config.target)
        assert mechanism.guarantee.epsilon(scenes.DELTA) <= 0.726
        return mechanism.noise_std * noise_error(mechanism.algorithm, weights=mfdl.ErrorWeights(weights)).value ** 0.5

    labels = (scenes.SECRET_BINS, scenes.SECRET_AVERAGE, scenes.SECRET_INDEPENDENT, scenes.REFERENCE)
    for best, weights in zip(labels, ("all", "released:average:2"), strict=False):
        errors = {label: root_error(label, weights) for label in labels}
        assert min(errors, key=errors.get) == best


@each(
    "cost, epsilons, tested",
    ([1.5], [0.726], True), ([1.1, 1.3], [0.726, 0.331], True), ([1.1, 1.1], [0.726, 0.331], False),
)  # fmt: skip
def test_a_scene_counts_where_noise_costs_enough_and_is_else_tried_at_a_smaller_budget(
    tmp_path, monkeypatch, cost, epsilons, tested
):
    seen = []

    class Made(protocol.Trial):
        def run(self, wanted, seeds):
            if self.epsilon not in seen:
                seen.append(self.epsilon)
            for label, rate in dict.fromkeys(wanted):
                for seed in seeds:
                    loss = valley(0.1)(rate) * (1 if label == "no noise" else cost[epsilons.index(self.epsilon)])
                    self._records[label, rate, seed] = {"last_test_loss": loss, "final_test_loss": loss}

    monkeypatch.setattr(protocol, "Trial", Made)
    rows = [scenes.ROWS[label] for label in ROWS]
    answer = protocol.compared(scenes.scene("logistic/ego"), rows, tmp_path, Engine(), protocol.Plan(), lambda _: None)
    assert seen == epsilons
    assert (answer["epsilon"], answer["counts"]) == (epsilons[-1], tested)
    assert len(answer["rows"]) == (6 if tested else 0)
    assert json.loads((tmp_path / "logistic-ego" / "result.json").read_text()) == json.loads(json.dumps(answer))


def test_rows_of_an_earlier_answer_stay_where_this_one_has_none_of_them():
    earlier = some()
    now = {**earlier, "rows": [], "rates": []}
    assert protocol.with_earlier(now, earlier) == {**earlier, "rates": sorted(earlier["rates"], key=by_label)}
    again = [{**row, "losses": [1.0]} for row in earlier["rows"] if row["label"] == "MAFALDA"]
    joined = protocol.with_earlier({**now, "rows": again}, earlier)["rows"]
    others = [row for row in earlier["rows"] if row["label"] != "MAFALDA"]
    assert joined == again + others
    for other in ({**earlier, "epsilon": 1.0}, {}):
        assert protocol.with_earlier(now, other) == now
    assert protocol.with_earlier(now | {"counts": False}, earlier)["rows"] == []


def by_label(attempt):
    return attempt["label"], attempt["measure"], attempt["lr"]


# ---- tables ----------------------------------------------------------------------------------------------------------
def answer(name, losses, epsilon=0.726, counts=True, partition="uniform"):
    """losses: by (label, measure), for each seed of the test."""
    rows = [
        {"label": label, "measure": measure, "losses": list(values), "lr": 0.1}
        | {"batches": scenes.ROWS[label].batches, "rankings": list(scenes.ROWS[label].rankings)}
        | {"gradient_evaluations": 10, "exchanges": 160, "preconditioned": False, "clip_norm": 1.0}
        for (label, measure), values in losses.items()
    ]
    rates = [{"label": r["label"], "measure": r["measure"], "lr": 0.1, "loss": 1.0} for r in rows]
    of = {"name": name, "task": name.split("/")[0], "graph": "ring:n=4", "partition": partition, "epsilon": epsilon}
    return {**of, "delta": 1e-5, "cost_of_noise": 1.5, "counts": counts, "rows": rows, "rates": rates}


def some(factor=0.7, **more):
    rng = np.random.default_rng(0)
    common = np.exp(rng.normal(size=20))
    losses = {
        ("no noise", "last"): common / 2, ("no noise", "released"): common / 1.9, ("MAFALDA", "last"): common,
        ("MAFALDA", "released"): common * factor * np.exp(0.01 * rng.normal(size=20)), ("CorN", "last"): common * 1.2,
    }  # fmt: skip
    return answer("logistic/ego", losses, **more)


def test_shares_and_ratios_of_a_table():
    drawn = [some(), some(), some(counts=False, factor=99.0)]
    by_place = {line.place: line for line in tables.lines(drawn, "ldp")}
    assert ("CorN", "last") not in by_place
    assert (by_place["MAFALDA", "last"].share.middle, by_place["no noise", "last"].share.middle) == (0, 1)
    assert_allclose(by_place["MAFALDA", "released"].ratio.middle, 0.7, rtol=0.01)
    assert_allclose(by_place["MAFALDA", "released"].share.middle, 0.6, rtol=0.05)
    assert (by_place["MAFALDA", "released"].better, by_place["MAFALDA", "released"].scenes) == (2, 2)
    outside = {line.place: line for line in tables.lines(drawn, "eavesdropper")}
    assert (outside["CorN", "last"].better, outside["CorN", "last"].worse) == (0, 2)
    assert_allclose(outside["CorN", "last"].share.middle, -0.4)


def test_scenes_of_other_budgets_and_partitions_are_not_pooled():
    requested = some(epsilon=0.331) | {"name": "logistic/ego/epsilon=0.331"}
    text = tables.pooled([some(), requested, some(partition="dirichlet:alpha=1")])
    for kind in (
        "uniform partition, epsilon below",
        "uniform partition, epsilon 0.331 as",
        "skewed partition, epsilon b",
    ):
        assert f"(LDP); {kind}" in text


def test_a_diverged_run_makes_its_row_infinitely_bad():
    bad = some()
    next(row for row in bad["rows"] if row["label"] == "CorN")["losses"][3] = None
    line = next(line for line in tables.lines([bad], "eavesdropper") if line.place[0] == "CorN")
    assert (line.ratio.middle, line.share.middle) == (math.inf, -math.inf)


def test_pictures_have_a_panel_for_each_scene_that_counts_and_limits_a_tick_for_each_trust_model(monkeypatch):
    for module in (tables, picture):
        monkeypatch.setattr(module, "limit", lambda answer, ranking: 0.1)
    figure = picture.draw([some(), some(epsilon=1.993), some(counts=False)])
    limits = picture.draw_limits([some(), some()])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["logistic/ego, ε 0.726", "logistic/ego, ε 1.993"]
    assert [tick.get_text() for tick in limits.axes[0].get_xticklabels()] == ["LDP", "eavesdropper"]
    assert len(limits.axes) == 2
    refuses("no scene counts", picture.draw, [some(counts=False)], error=ValueError)


def test_a_column_for_each_task_has_shares_of_both_gaps_and_the_costs():
    header, body = tables.by_task([some(), some()], "ldp")
    assert list(header[5:]) == ["logistic"]
    by_place = {(label, measure): cells for label, measure, *cells in body}
    assert ("CorN", "last") not in by_place
    _, evaluations, exchanges, shares = by_place["MAFALDA", "released"]
    assert (evaluations, exchanges) == ("10", "160")
    assert shares.startswith("6")
    better = some()
    fuller = next(row for row in better["rows"] if row["label"] == "no noise") | {"label": scenes.NO_NOISE_FULL}
    better["rows"].append(fuller | {"losses": [loss / 2 for loss in fuller["losses"]]})
    _, body = tables.by_task([better], "ldp")
    reference, best = next(cells[-1] for cells in body if cells[:2] == ["MAFALDA", "released"]).split(";")
    assert float(best.strip("% ")) < float(reference.partition("%")[0])


# ---- limits ----------------------------------------------------------------------------------------------------------


@given(10, variance=st.floats(1e-3, 10.0), seed=st.integers(0, 100))
def test_the_limit_is_the_excess_loss_of_the_best_shrunk_newton_step(variance, seed):
    rng = np.random.default_rng(seed)
    eigenvalues, distances = 10.0 ** rng.uniform(-2, 1, 3), rng.uniform(0.1, 3, 3)
    loss = limits.Quadratic(eigenvalues, distances, 1, 0.0, 0.0)
    noise = rng.normal(size=(200_000, 3)) * variance**0.5
    step = distances + noise / eigenvalues  # from the start, along each direction

    def mean_excess(shrink):
        return float((0.5 * eigenvalues * (shrink * step - distances) ** 2).mean(axis=0).sum())

    gains = eigenvalues**2 * distances**2
    best = gains / (gains + variance)
    assert_allclose(mean_excess(1.0), loss.newton(variance), rtol=0.03)
    assert_allclose(mean_excess(best), loss.limit(variance), rtol=0.03)
    for other in (best * 0.8, np.minimum(1.0, best * 1.2), 0.0):
        assert mean_excess(other) >= loss.limit(variance) * 0.97
    assert loss.limit(variance) <= min(loss.newton(variance), float((0.5 * eigenvalues * distances**2).sum()))


@pytest.mark.parametrize("ranking", ["ldp", "eavesdropper", "coalitions:1", "coalitions:2", "pndp", "central"])
def test_no_mechanism_has_less_noise_in_the_mean_than_the_limit_and_one_comes_near_it(ranking):
    """One step on a complete graph; DECOR with much pairwise noise where nodes share seeds."""
    n, mu, (name, _, size) = 6, 0.7, ranking.partition(":")
    setting = dynamics_on(f"complete:n={n}"), mfdl.EveryStep(1)
    if name in ("ldp", "central"):
        algorithm = mfdl.algorithms.dp_dsgd(*setting)
    else:
        algorithm = mfdl.algorithms.decor(*setting, sigma_ldp=1.0, sigma_cor=300.0)
    trust = mfdl.trust.named(name, coalition_size=int(size) if size else None)
    privacy = mfdl.Privacy(trust, **ZERO_OUT, release="average" if name == "central" else None)
    std = mfdl.calibrate(algorithm, privacy, mu=mu).noise_std
    bound = limits.least_noise_std(1.0, mu, 1, n, limits.colluders(ranking, n)) ** 2  # one record a node
    measured = std**2 / n  # private noise alone does not cancel in the mean
    assert bound * (1 - 1e-6) <= measured <= bound * 1.01


def test_the_optimum_of_a_task_is_one_and_its_curvature_that_of_the_loss():
    known = limits.quadratic("logistic:dimension=3,train_records=200,margin=2")
    assert known.optimum < known.start == pytest.approx(math.log(2))
    assert len(known.eigenvalues) == 4  # three weights and a bias; moving both scores alike changes nothing
    gain = 0.5 * (known.eigenvalues * known.distances**2).sum()
    assert gain == pytest.approx(known.start - known.optimum, rel=0.5)


def test_a_row_at_its_limit_has_closed_all_that_can_be_closed(monkeypatch):
    monkeypatch.setattr(tables, "limit", lambda answer, ranking: 0.1)
    drawn = some()
    best = tables.without_noise(drawn, ["no noise"])
    drawn["rows"] += answer("logistic/ego", {("CDP; full batches", "released"): best + 0.1})["rows"]
    header, body = tables.by_trust([drawn])
    (line,) = [line for line in body if line[0] == "central"]
    assert line[3].startswith("100% [100%, 100%]")
    assert len(header) == len(line)
    (closed,) = [line for line in tables.limit_cells([drawn])[1] if line[1] == "central"]
    assert (closed[2], closed[3], closed[4]) == ("CDP; full batches", "0.1", "0.1000 [0.1000, 0.1000]")
    monkeypatch.setattr(tables, "limit", lambda answer, ranking: None)
    assert tables.by_trust([drawn])[1] == tables.limit_cells([drawn])[1] == []


# ---- the whole -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_comparison_that_was_stopped_goes_on_and_ends_as_one_that_was_not(tmp_path, monkeypatch):
    work, count, stop_at = running.work, [0], [0]

    def counted(requested, **options):
        count[0] += 1
        if count[0] == stop_at[0]:
            raise KeyboardInterrupt
        return work(requested, **options)

    monkeypatch.setattr(running, "work", counted)

    command = ["--quick", "--rows", ",".join(ROWS), "--out"]
    assert which.main([*command, str(tmp_path / "whole")]) == 0
    jobs, stop_at[0], count[0] = count[0], count[0] // 2, 0
    refuses(None, which.main, [*command, str(tmp_path / "stopped")], error=KeyboardInterrupt)
    assert which.main([*command, str(tmp_path / "stopped")]) == 0
    trained = count[0]
    assert which.main([*command, str(tmp_path / "stopped")]) == 0
    assert count[0] == trained
    for name in ("results.json", "tables.md", "quick/result.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()
    assert trained == jobs + 1  # the one that was interrupted
    (scene,) = json.loads((tmp_path / "whole" / "results.json").read_text())["scenes"]
    for row in scene["rows"]:
        assert row["label"] == "no noise" or row["epsilon"] <= 0.726
    assert (tmp_path / "whole" / "comparison.png").stat().st_size > 10_000


def test_unknown_scenes_and_rows_are_refused(capsys):
    for wrong, message in {"--scenes": "no scene 'moon'", "--rows": "no row 'moon'; there are no noise"}.items():
        refuses(None, which.main, [wrong, "moon"], error=SystemExit)
        assert message in capsys.readouterr().err

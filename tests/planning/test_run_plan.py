"""`mfdl.plan`: names of designs, closed forms, predictions against the recursion, budgets of cost, and refusals."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from last_bits import nudged
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

import mfdl
from mfdl import ErrorWeights, InvalidInput, UnsupportedMechanism, algorithms, trust
from mfdl.algorithms import registry
from mfdl.factorization import NotConverged
from mfdl.planning import Design
from mfdl.planning.design import DesignGrid
from mfdl.planning.run_plan import PlannedDesign, pareto_optimal

RING = "ring:n=4"
PRIVACY = mfdl.Privacy(**ZERO_OUT)
SMALL = {"batches": [1, 2], "epochs": [2, 4], "gossip_rounds": [1, 3], "max_steps": 8}


@given(
    40, b=st.integers(1, 20), k=st.integers(1, 20), rounds=st.integers(1, 9),
    name=st.sampled_from(["dp-dsgd", "mafalda@last:1", "mafalda-bins"]), bins=st.booleans(),
    model=st.sampled_from(["last", "average:1", "exponential:2+1"]),
)  # fmt: skip
def test_every_design_is_read_back(b, k, rounds, name, bins, model):
    bins &= b > 1
    scheme, name = "balls-in-bins" if bins else "cyclic", name if bins else name.removesuffix("-bins")
    design = Design(name, b, k, rounds, scheme, model)
    assert Design.parse(design.name) == dataclasses.replace(design) == design
    assert (str(design), design.scheme().num_steps) == (design.name, b * k)


@each(
    "text, words",
    ("dp-dsgd", "needs b=NUMBER"), ("dp-dsgd,b=2", "needs k=NUMBER"), ("dp-dsg,b=1,k=2", "did you mean 'dp-dsgd'"),
    ("dp-dsgd,b=x,k=2", "b of design .* must be a whole number, got 'x'"),
    ("dp-dsgd,b=0,k=2", "batches must be an integer >= 1"),
    ("dp-dsgd,b=1,k=2,round=3", "unknown number of a design 'round'; did you mean 'rounds'"),
    ("dp-dsgd,b=1,k=2,b=3", "gives 'b=3' after another batches"), ("dp-dsgd,b=1,k=2,bins", "at least two bins"),
    ("dp-dsgd,b=1,k=2,average:3", "averages the last 3 of 2 models"),
    ("dp-dsgd,b=1,k=2,avrage:2", "did you mean 'average'"), ("mafalda-bins,b=2,k=2", "made for balls-in-bins"),
)  # fmt: skip
def test_other_texts_are_refused_as_designs(text, words):
    refuses(words, Design.parse, text)


@given(
    20, b=st.sampled_from([1, 2, 5]), k=st.integers(1, 6), mu=st.sampled_from([0.2, 1.0]),
    clip=st.sampled_from([1.0, 2.0]),
)  # fmt: skip
def test_independent_noise_of_an_averaged_step_has_a_closed_form(b, k, mu, clip):
    design = Design("dp-dsgd", b, k)
    plan = mfdl.plan(RING, 50, mfdl.Privacy(adjacency="zero-out", clip_norm=clip), mu=mu, designs=[design])
    T = design.num_steps
    assert plan.best.step_noise_std == pytest.approx(clip * math.sqrt(T * b) / (mu * 50))


@each(
    "model, mechanisms",
    (trust.LDP(), ["dp-dsgd", "bsr", "mafalda", "mafalda-l"]),
    (trust.Eavesdropper(), ["corn", "kronecker", "per-mode"]),
    (trust.Coalitions(1), ["decor", "corn", "kronecker@released"]),
    (trust.Colluding([0]), ["decor"]), (trust.SecureSum(), ["mafalda"]), (trust.Central(), ["cdp"]),
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_a_calibration_and_noise_are_those_of_each_design_as_it_is_built(model, mechanisms):
    small, privacy = SMALL | {"batches": [2], "epochs": [2]}, mfdl.Privacy(model, adjacency="zero-out", clip_norm=1.0)
    plan = mfdl.plan(RING, 50, privacy, mu=1.0, mechanisms=mechanisms, **small)
    assert len({planned.design.mechanism.partition("@")[0] for planned in plan.designs}) == len(mechanisms)
    for planned in plan.designs[::3]:
        design = planned.design
        rounds = {"gossip_rounds": design.gossip_rounds, "polynomial": design.polynomial}
        dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(RING), 0.3, **rounds)
        against = {"coalition_size": 1 if model.name in ("coalitions", "colluding") else 0}
        algorithm = registry.build_tuned(design.mechanism, dynamics, design.scheme(), **against)
        algorithm = algorithm.releasing(design.release_model)
        mechanism = mfdl.calibrate(algorithm, privacy, mu=1.0)
        assert planned.guarantee.noise_std == pytest.approx(mechanism.guarantee.noise_std, rel=1e-6)
        variance = algorithms.noise_error(algorithm, weights=ErrorWeights(f"released:{design.release_model}")).value / 4
        rate = planned.learning_time / design.num_steps
        assert planned.published_noise_std == pytest.approx(rate * planned.step_noise_std * math.sqrt(variance))


def test_hidden_messages_are_accounted_for_each_design_as_it_is_built():
    design = Design("muffliato", 2, 2, 2, release_model="average:2")
    plan = mfdl.plan(RING, 10, mfdl.Privacy(trust.named("pndp"), **ZERO_OUT), mu=1.0, designs=[design])
    dynamics = dynamics_on(RING, 1.0, gossip_rounds=2)
    algorithm = algorithms.muffliato(dynamics, design.scheme()).releasing("average:2").with_divisors(np.full(4, 5.0))
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.named("pndp"), **ZERO_OUT), mu=1.0)
    assert plan.best.guarantee.noise_std == pytest.approx(mechanism.guarantee.noise_std)
    assert plan.best.guarantee.fingerprint == mechanism.guarantee.fingerprint  # with its rounds and its released model
    assert plan.best.guarantee.trust == "pndp"


def test_rows_are_sorted_and_the_front_is_marked():
    plan = mfdl.plan(RING, 50, PRIVACY, mu=1.0, curvature="power:1:3", **SMALL)
    losses = [row["predicted_excess_loss"] for row in plan.rows]
    assert losses == pytest.approx(sorted(losses), rel=1e-9)
    front = [row for row in plan.rows if row["pareto"]]
    assert plan.best.design.name == front[0]["design"]
    for row in plan.rows:
        parts = [row["loss_of_bias"], row["loss_of_published_noise"], row["loss_of_noise_on_the_way"]]
        assert row["predicted_excess_loss"] == pytest.approx(sum(parts))
        assert any(
            other["predicted_excess_loss"] <= 1.01 * row["predicted_excess_loss"]
            and other["gradient_evaluations"] <= row["gradient_evaluations"]
            and other["messages"] <= row["messages"]
            for other in front
        )
    assert list(plan.to_pandas()["design"]) == [row["design"] for row in plan.rows]
    assert plan.plot().axes


def test_without_a_curvature_designs_are_compared_at_one_learning_time():
    plan, double = (mfdl.plan(RING, 50, PRIVACY, mu=1.0, learning_time=time, **SMALL) for time in (1.0, 2.0))
    assert plan.best.excess is None
    assert [row["design"] for row in plan.rows] == [row["design"] for row in double.rows]
    assert double.best.published_noise_std == pytest.approx(2 * plan.best.published_noise_std)


def test_what_is_dearer_than_the_budgets_of_cost_is_left_out():
    plan = mfdl.plan(RING, 50, PRIVACY, mu=1.0, gradients_per_record=2, messages=12, **SMALL)
    assert {row["gradient_evaluations"] for row in plan.rows} == {2}
    assert max(row["messages"] for row in plan.rows) <= 12
    assert plan.best.messages == 2 * plan.best.design.num_steps * plan.best.design.gossip_rounds  # two neighbours


@pytest.mark.parametrize(
    ("model", "mechanism"),
    [(trust.Eavesdropper(), "corn"), (trust.Coalitions(1), "decor"), (trust.Central(), "cdp"), (trust.LDP(), None)],
    ids=lambda value: getattr(value, "name", value),
)
def test_mechanisms_and_polynomials_that_are_tried_follow_from_the_trust_model(model, mechanism):
    privacy = mfdl.Privacy(model, adjacency="zero-out", clip_norm=1.0)
    plan = mfdl.plan(RING, 50, privacy, mu=1.0, batches=[1], epochs=[4], gossip_rounds=[1, 3], release_models=["last"])
    tried = {(each.design.mechanism, each.design.gossip_rounds, each.design.polynomial) for each in plan.designs}
    names, rounds = {"dp-dsgd", "mafalda", mechanism} - {None}, {(1, "powers"), (3, "powers"), (3, "least-noise")}
    if mechanism == "cdp":
        names, rounds = {"cdp"}, {(1, "powers")}  # a server averages once
        assert plan.best.messages == 4 * 3
    assert tried == {(name, *how) for name in names for how in rounds}


def test_encoders_for_public_batches_are_not_combined_with_secret_ones_unless_these_alone_are_wanted():
    both = mfdl.plan(RING, 50, PRIVACY, epsilon=1.0, delta=1e-5, **SMALL)
    assert {planned.design.label for planned in both.designs} == {"dp-dsgd", "dp-dsgd,bins", "mafalda"}
    secret = DesignGrid(["mafalda"], [2], [2], [1], ["balls-in-bins"], ["last"], 8)
    assert [design.label for design in secret] == ["mafalda,bins"]


@each(
    "changed, error, words",
    ({"designs": ["none,b=1,k=2"]}, InvalidInput, "mechanism none has no privacy"),
    ({"records": 0}, InvalidInput, "records must be an integer >= 1"),
    ({"mu": None}, InvalidInput, "exactly one target"),
    ({"epsilon": 1.0, "delta": 1e-5}, InvalidInput, "exactly one target"),
    ({"participations": ["balls-in-bins"]}, InvalidInput, "balls-in-bins has no mu"),
    ({"participations": ["bins"]}, InvalidInput, "unknown participation"),
    ({"mechanisms": ["decor"]}, UnsupportedMechanism, "does not protect as it is meant to under trust model ldp"),
    ({"mechanisms": ["gradient-tracking"]}, UnsupportedMechanism, "is not predicted"),
    ({"gradients_per_record": 1}, InvalidInput, "no design is left of 48"),
    ({"records": 1, "batches": [2]}, InvalidInput, "no design is left"),
    ({"curvature": "powr:1"}, InvalidInput, "unknown curvature 'powr'; did you mean 'power'"),
    ({"curvature": [1.0]}, InvalidInput, "curvature must be"),
    ({"mechanisms": ["mafalda@all/curvature=power:1"]}, UnsupportedMechanism, "depends on the learning rate"),
    ({"start_distance": 0.0}, InvalidInput, "start_distance must be"),
    ({"learning_time": -1.0}, InvalidInput, "learning_time must be"),
    ({"release_models": ["average:0%"]}, InvalidInput, "0 < P <= 100"),
)
def test_what_is_refused(changed, error, words):
    given = {"graph": RING, "records": 50, "privacy": PRIVACY, "mu": 1.0, **SMALL, **changed}
    refuses(words, mfdl.plan, **given, error=error)


def test_released_weights_are_those_of_the_model_that_is_published():
    design = Design("mafalda@released", 2, 2, release_model="average:3")
    assert (design.mechanism, Design.parse(design.name)) == ("mafalda@released:average:3", design)
    grid = DesignGrid(["mafalda@released"], [2], [4], [1], ["cyclic"], ["last", "average:50%"], 8)
    assert [each.mechanism for each in grid] == ["mafalda@released:last", "mafalda@released:average:4"]


@given(st.lists(st.tuples(*[st.integers(1, 4).map(float)] * 3), min_size=1, max_size=12))
def test_every_point_is_beaten_by_the_front_or_on_it(costs):
    front = [costs[i] for i in pareto_optimal(costs)]
    for cost in costs:
        assert any(all(a <= b for a, b in zip(point, cost, strict=True)) for point in front)
    for point in front:
        assert not any(all(a <= b for a, b in zip(c, point, strict=True)) and c != point for c in costs)


@given(st.lists(st.tuples(*[st.integers(1, 3).map(float)] * 3), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_the_last_bits_of_losses_choose_no_design(costs, seed):
    losses = nudged([loss for loss, *_ in costs], seed)
    changed = [(loss, *others) for loss, (_, *others) in zip(losses, costs, strict=True)]
    assert pareto_optimal(changed) == pareto_optimal(costs)


def test_designs_of_equal_loss_are_sorted_by_their_costs(monkeypatch):
    losses = itertools.cycle(nudged(np.ones(7), 0))
    monkeypatch.setattr(PlannedDesign, "loss", property(lambda self: next(losses)))
    designs = mfdl.plan(RING, 50, PRIVACY, mu=1.0, **SMALL).designs
    costs = [(each.gradient_evaluations, each.messages) for each in designs]
    assert costs == sorted(costs)


def test_designs_whose_encoder_is_not_solved_are_left_out_and_named(monkeypatch):
    build, solved = registry.build_tuned, []

    def stops(name, *given, **named):
        if name == "mafalda":
            solved.append(name)
            raise NotConverged(SimpleNamespace(iterations=1, distance="far above the optimum"), 1e-4)
        return build(name, *given, **named)

    monkeypatch.setattr(registry, "build_tuned", stops)
    names = ["dp-dsgd,b=1,k=2", "mafalda,b=1,k=2", "mafalda,b=1,k=2,average:2"]
    plan = mfdl.plan(RING, 50, PRIVACY, mu=1.0, designs=names)
    assert ([planned.design.name for planned in plan.designs], plan.left_out) == (names[:1], tuple(names[1:]))
    assert solved == ["mafalda"]  # once for both
    refuses(None, mfdl.plan, RING, 50, PRIVACY, mu=1.0, designs=names[1:], error=NotConverged)

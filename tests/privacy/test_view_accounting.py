"""A view given as matrices is accounted and calibrated like an algorithm, and says that it proves no adaptivity."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, Guarantee, InvalidInput, View, algorithms, gossip, trust
from mfdl.privacy.gaussian import ADJACENCIES
from mfdl.testing.tasks import linear_task

CLIP = {"adjacency": "zero-out", "clip_norm": 1.0}
PATH = Dynamics(gossip.from_array(np.array([[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]])), 1.0)
MODELS = {"ldp": trust.LDP(), "eavesdropper": trust.Eavesdropper(), "pndp": trust.PNDP([0]), "central": trust.Central()}


def matrices(algorithm, model):
    """What a trust model shows, as a researcher would write it down."""
    of_algorithm = model.view(algorithm, 1, release="none" if model.hides_messages(algorithm) else None)
    return View(
        of_algorithm.dense_gradients_by_time(),
        of_algorithm.dense_noise(),
        num_nodes=algorithm.num_nodes,
        known_gradients=of_algorithm.known_gradients,
    )


@given(
    model=st.sampled_from(sorted(MODELS)), adjacency=st.sampled_from(ADJACENCIES),
    noise_std=st.sampled_from([0.0, 0.5, 4.0]), scheme=st.sampled_from([EveryStep(2), Cyclic(1, 2)]),
)  # fmt: skip
def test_matrices_have_the_numbers_of_their_algorithm(model, adjacency, noise_std, scheme):
    algorithm, asker = algorithms.dp_dsgd(PATH, scheme), MODELS[model]
    view = matrices(algorithm, asker)
    options = {"adjacency": adjacency, "clip_norm": 0.5}
    of_view = mfdl.account(view, mfdl.Privacy(participation=scheme, **options), noise_std=noise_std)
    of_nodes = {loss.victim: loss for loss in mfdl.privacy.sensitivity_by_victim(algorithm, asker, release="none")}
    shift = of_view.record_shift
    for u, curve in of_view.by_victim().items():
        true = of_nodes[int(u)].mu(record_shift=shift, noise_std=noise_std, adaptive=False)
        assert curve.mu == pytest.approx(true, rel=1e-6)
    assert of_view.mu == max(curve.mu for curve in of_view.by_victim().values())
    assert not of_view.adaptive
    assert "non-adaptive gradients" in of_view.sentence()
    assert "View(A, B, models=(M_G, M_Z), row_steps=...)" in of_view.why


@given(mu=st.floats(1e-3, 10), epsilon=st.floats(0.05, 10), delta=st.sampled_from([1e-9, 1e-5]))
def test_calibrated_noise_meets_its_target(mu, epsilon, delta):
    view = matrices(algorithms.dp_dsgd(PATH, EveryStep(2)), MODELS["pndp"])
    by_mu = mfdl.calibrate(view, mfdl.Privacy(participation=EveryStep(2), **CLIP), mu=mu)
    assert mu * (1 - 1e-12) <= by_mu.guarantee.mu <= mu
    by_epsilon = mfdl.calibrate(view, mfdl.Privacy(participation=EveryStep(2), **CLIP), epsilon=epsilon, delta=delta)
    assert epsilon * (1 - 1e-6) <= by_epsilon.guarantee.epsilon(delta) <= epsilon
    again = mfdl.account(view, mfdl.Privacy(participation=EveryStep(2), **CLIP), noise_std=by_epsilon.noise_std)
    assert again == by_epsilon.guarantee
    assert Guarantee.from_dict(json.loads(json.dumps(again.to_dict()))) == again


def test_a_view_that_is_proven_adaptive_has_an_adaptive_guarantee():
    single = View([[1.0, 1.0]], [[1.0, 1.0]], num_nodes=2)  # of one step: no gradient follows what is seen
    guarantee = mfdl.account(single, mfdl.Privacy(participation=EveryStep(1), **CLIP), noise_std=1.0)
    assert guarantee.adaptive
    assert guarantee.mu == pytest.approx(math.sqrt(0.5))
    assert guarantee.compose_with(guarantee).mu == pytest.approx(1.0)


def test_a_combination_without_noise_is_infinite_and_cannot_be_calibrated():
    leaking = View(np.eye(2), [[1.0, 0.0], [0.0, 0.0]], num_nodes=2)
    guarantee = mfdl.account(leaking, mfdl.Privacy(participation=EveryStep(1), **CLIP), noise_std=3.0)
    assert {u: curve.mu for u, curve in guarantee.by_victim().items()}["1"] == math.inf
    assert guarantee.mu == math.inf
    refuses("infinite loss", lambda: mfdl.calibrate(leaking, mfdl.Privacy(participation=EveryStep(1), **CLIP), mu=1.0))


def test_what_a_view_lacks_is_refused_with_the_way_out():
    view = matrices(algorithms.dp_dsgd(PATH, EveryStep(2)), MODELS["pndp"])
    calibrated = mfdl.calibrate(view, mfdl.Privacy(participation=EveryStep(2), **CLIP), mu=1.0)
    refuses("build the algorithm, e", lambda: mfdl.replay(calibrated, linear_task(3, np.ones((6, 1))), seeds=[0]))
    refuses("for another", lambda: mfdl.Mechanism(algorithms.dp_dsgd(PATH, EveryStep(2)), calibrated.guarantee))
    for options, message in (
        ({}, "a View needs Privacy\\(participation"),
        ({"participation": EveryStep(2), "trust": trust.LDP()}, "trust must be left out with a View"),
        ({"participation": EveryStep(3)}, "must have the 2 steps of the view"),
        ({"participation": EveryStep(2), "release": "all"}, "release must be left out with a View"),
        ({"participation": EveryStep(2), "lipschitz": 1.0}, "lipschitz must be left out with a View"),
    ):
        with pytest.raises(InvalidInput, match=message):
            mfdl.account(view, mfdl.Privacy(**CLIP, **options), noise_std=1.0)
    refuses("only adaptive guarantees compose", calibrated.guarantee.compose_with, calibrated.guarantee)
    with pytest.raises(InvalidInput, match="participation is given beside a View or a name alone"):
        mfdl.calibrate(
            algorithms.dp_dsgd(PATH, EveryStep(2)),
            mfdl.Privacy(trust.LDP(), participation=Cyclic(1, 2), **CLIP),
            mu=1.0,
        )


@given(view=st.sampled_from([0, 1, 2]).map(lambda seed: drawn_view(seed)), noise_std=st.floats(0.5, 20.0))
def test_matrices_go_through_the_three_doors_and_answer_for_each_victim(view, noise_std):
    """Each victim has the number that an account of it alone has; the guarantee of all is the worst of them."""
    privacy = mfdl.Privacy(adjacency="replace-one", clip_norm=0.5, participation=EveryStep(2))
    losses = mfdl.losses(view, privacy)
    each = {guarantee.victim: guarantee.mu for guarantee in losses.by_victim(noise_std, adaptive=False)}
    alone = {
        str(victim): mfdl.losses(view, privacy, victims=[victim]).by_victim(noise_std, adaptive=False)[0].mu
        for victim in range(view.num_nodes)
    }
    assert each == pytest.approx(alone)
    guarantee = mfdl.account(view, privacy, noise_std=noise_std)
    assert guarantee.mu == pytest.approx(max(each.values()))
    assert {name: curve.mu for name, curve in guarantee.by_victim().items()} == pytest.approx(each)
    assert mfdl.calibrate(view, privacy, noise_std=noise_std).guarantee.seal == guarantee.seal


def drawn_view(seed):
    rng = np.random.default_rng(seed)
    return mfdl.View(rng.normal(size=(5, 6)), rng.normal(size=(5, 7)), num_nodes=3)


def test_a_name_goes_through_the_three_doors():
    dynamics, scheme = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=3"), 0.1), mfdl.Cyclic(2, 2)
    privacy = mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0)
    named = dataclasses.replace(privacy, participation=scheme)
    algorithm = mfdl.algorithms.build("bsr", dynamics, scheme)
    seal = mfdl.account(algorithm, privacy, noise_std=2.0).seal
    assert mfdl.account("bsr", named, noise_std=2.0, dynamics=dynamics).seal == seal
    assert mfdl.losses("bsr", named, dynamics=dynamics).guarantee(2.0).seal == seal
    assert mfdl.calibrate("bsr", named, noise_std=2.0, dynamics=dynamics).guarantee.seal == seal
    for wrong, message in (
        (lambda: mfdl.account("bsr", privacy, noise_std=2.0, dynamics=dynamics), "needs dynamics"),
        (lambda: mfdl.account("bsr", named, noise_std=2.0), "needs dynamics"),
        (lambda: mfdl.account(algorithm, privacy, noise_std=2.0, dynamics=dynamics), "this one has its own"),
        (lambda: mfdl.account("bsq", named, noise_std=2.0, dynamics=dynamics), "did you mean 'bsr'"),
        (lambda: mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0), "give it to mfdl.calibrate"),
        (lambda: mfdl.calibrate(algorithm, privacy, noise_std=1.0, mu=1.0), "mu must be left out"),
        (lambda: mfdl.account(algorithm, privacy, noise_std=1.0, adjacency="zero-out"), "give it to mfdl.Privacy"),
    ):
        refuses(message, wrong)

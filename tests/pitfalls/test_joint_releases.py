"""Outputs that share noise are one release: what they show together is never less than what one of them shows."""

import dataclasses
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import account
from mfdl.participation import EveryStep
from mfdl.privacy.forms import view_grams
from mfdl.privacy.sensitivity import sensitivities
from mfdl.testing.oracles import largest_signed_sum, of_node, pinv_gram
from mfdl.testing.strategies import view_cases
from mfdl.view import View

TOLERANCE = 3e-6  # relative; the semidefinite bounds of both sides stop within 1e-6 of the truth


def squared(view, victims, scheme):
    return np.array([s.squared for s in sensitivities(view_grams(view, victims), scheme, nodes=victims)])


@examples(60)
@given(case=view_cases(kinds=("pndp", "central", "masks")), release=st.sampled_from(["average", "all"]))
def test_messages_and_models_together_show_no_less_than_either(case, release):
    """Messages alone, models alone, both: in any trust model, with any local noise."""
    one, victims = case.algorithm, list(case.honest)
    knowledge = case.model.view(one, victims[0], release=release).knowledge
    nothing = dataclasses.replace(knowledge, seen=np.zeros_like(knowledge.seen), combination=None)

    def loss(known, what):
        return squared(View.of(one, known, release=what, attacker="anyone"), victims, one.participation)

    both = loss(knowledge, release)
    for marginal in (loss(knowledge, "none"), loss(nothing, release)):
        assert (both >= marginal * (1 - TOLERANCE) - TOLERANCE).all()


def test_two_noisy_outputs_may_show_everything():
    """g + z and 2 g + z: each has a finite loss, their difference has no noise."""
    first, second = (View(np.array([[a]]), np.array([[1.0]])) for a in (1.0, 2.0))
    together = View(np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]]))
    found = [squared(view, [0], EveryStep(1))[0] for view in (first, second, together)]
    assert found == [pytest.approx(1.0), pytest.approx(4.0), math.inf]


@pytest.mark.parametrize("name", ["dp-dsgd", "anti-pgd"])
def test_released_models_are_accounted_together_with_the_messages(name):
    """The far end of a path of four, the average of the final models published: joint Gram by pseudo-inverse.

    The neighbour's messages take noise out of the average, so both show more than the sum of what each shows.
    """
    T, victim = 3, 3
    dynamics = Dynamics(gossip.metropolis_hastings("path:n=4"), 0.5)
    one = algorithms.build(name, dynamics, EveryStep(T))
    view = trust.PNDP([0]).view(one, victim, release="average")
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    assert len(A) == T + 1
    truth, largest = {}, {}
    for what, rows in {"messages": slice(0, T), "average": slice(T, None), "both": slice(None)}.items():
        X, leaks = pinv_gram(of_node(A[rows], victim, 4), B[rows])
        assert not leaks.any()
        truth[what] = largest_signed_sum(X.tolist())
        largest[what] = float(np.abs(X).sum())
    assert truth["both"] > 1.2 * (truth["messages"] + truth["average"])
    found = squared(view, [victim], one.participation)[0]
    assert truth["both"] * (1 - 1e-9) <= found <= largest["both"] * (1 + 1e-9)


def test_steps_of_one_record_are_accounted_together():
    """Anti-correlated noise: a step by itself is worth T - t, all steps of a record together 1^2 + ... + T^2."""
    one = algorithms.anti_pgd(Dynamics(gossip.metropolis_hastings("ring:n=3")), EveryStep(4))
    common = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 1.0}
    found = account(one, **common).mu ** 2
    C = np.tri(4)
    assert np.trace(C.T @ C) == 10  # the sum over steps
    assert found == pytest.approx(np.sum(C.T @ C))
    assert np.sum(C.T @ C) == 30

"""Outputs that share noise are accounted as one release, and there is no step beyond the last one."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from mfdl import Cyclic, EveryStep, InvalidInput, NoiseKey, Privacy, View, account, algorithms, calibrate, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.privacy.forms import view_grams
from mfdl.privacy.gram_sensitivity import sensitivities
from mfdl.testing import largest_signed_sum, of_node, pinv_gram, view_cases
from mfdl.training.executor import Executor
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import node_noise, noise_stream

TOLERANCE = 3e-6  # relative; the semidefinite bounds of both sides stop within 1e-6 of the truth


def squared(view, victims, scheme):
    return np.array([s.squared for s in sensitivities(view_grams(view, victims), scheme, nodes=victims)])


@examples(60)
@given(case=view_cases(kinds=("pndp", "central", "masks")), release=st.sampled_from(["average", "all"]))
def test_messages_and_models_together_show_no_less_than_either(case, release):
    """Messages alone, models alone, both: in any trust model, with any local noise."""
    algorithm, victims = case.algorithm, list(case.honest)
    knowledge = case.model.view(algorithm, victims[0], release=release).knowledge
    nothing = dataclasses.replace(knowledge, seen=np.zeros_like(knowledge.seen), combination=None)

    def loss(known, outputs):
        return squared(View.of(algorithm, known, release=outputs, attacker="anyone"), victims, algorithm.participation)

    both = loss(knowledge, release)
    for marginal in (loss(knowledge, "none"), loss(nothing, release)):
        assert (both >= marginal * (1 - TOLERANCE) - TOLERANCE).all()


def test_two_noisy_outputs_may_show_everything():
    """g + z and 2 g + z: each has a finite loss, their difference has no noise."""
    first, second = (View(np.array([[a]]), np.array([[1.0]])) for a in (1.0, 2.0))
    together = View(np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]]))
    losses = [squared(view, [0], EveryStep(1))[0] for view in (first, second, together)]
    assert losses == [pytest.approx(1.0), pytest.approx(4.0), math.inf]


@pytest.mark.parametrize("name", ["dp-dsgd", "anti-pgd"])
def test_released_models_are_accounted_together_with_the_messages(name):
    """The far end of a path of four, the average of the final models published: joint Gram by pseudo-inverse.

    The neighbour's messages take noise out of the average, so both show more than the sum of what each shows.
    """
    T, victim = 3, 3
    dynamics = Dynamics(gossip.metropolis_hastings("path:n=4"), 0.5)
    algorithm = algorithms.build(name, dynamics, EveryStep(T))
    view = trust.PNDP([0]).view(algorithm, victim, release="average")
    A, B = view.dense_gradients_by_time(), view.dense_noise()
    assert len(A) == T + 1
    truth, largest = {}, {}
    for outputs, rows in {"messages": slice(0, T), "average": slice(T, None), "both": slice(None)}.items():
        X, leaks = pinv_gram(of_node(A[rows], victim, 4), B[rows])
        assert not leaks.any()
        truth[outputs] = largest_signed_sum(X.tolist())
        largest[outputs] = float(np.abs(X).sum())
    assert truth["both"] > 1.2 * (truth["messages"] + truth["average"])
    loss = squared(view, [victim], algorithm.participation)[0]
    assert truth["both"] * (1 - 1e-9) <= loss <= largest["both"] * (1 + 1e-9)


def test_steps_of_one_record_are_accounted_together():
    """Anti-correlated noise: a step by itself is worth T - t, all steps of a record together 1^2 + ... + T^2."""
    algorithm = algorithms.anti_pgd(Dynamics(gossip.metropolis_hastings("ring:n=3")), EveryStep(4))
    common = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    guarantee = account(algorithm, Privacy(**common), noise_std=1.0).mu ** 2
    C = np.tri(4)
    assert np.trace(C.T @ C) == 10  # the sum over steps
    assert guarantee == pytest.approx(np.sum(C.T @ C))
    assert np.sum(C.T @ C) == 30


DYN = Dynamics(gossip.metropolis_hastings("path:n=3"), 0.1)
KEY = NoiseKey.from_seed(0)
T = 4
ALGORITHMS = {
    "dp-dsgd": algorithms.dp_dsgd(DYN, EveryStep(T)),
    "anti-pgd": algorithms.anti_pgd(DYN, Cyclic(2, 2)),
    "decor": algorithms.decor(DYN, EveryStep(T)),
    "two rounds": algorithms.dp_dsgd(Dynamics(DYN.gossip, 0.1, gossip_rounds=2), EveryStep(T)),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_neither_noise_nor_a_step_beyond_the_last(algorithm):
    executor, stream = Executor(algorithm, dtype=torch.float64), noise_stream(algorithm.noise, 1.0, KEY, 2)
    state, zero = (make(torch.zeros(3, 2, dtype=torch.float64)) for make in (executor.initial_state, torch.clone))
    executor.step(T - 1, state, zero, zero)
    assert stream.step(T - 1).shape == (3, 2)
    for t in (T, T + 1, -1, 10**6):
        refused = rf"step must lie in \[0, {T}\), got {t}"
        refuses(f"{refused}: the algorithm was accounted", executor.step, t, state, zero, zero)
        refuses(f"{refused}.*calibrate a longer one", stream.step, t)
        for node in range(3):
            with pytest.raises(InvalidInput, match=refused):
                node_noise(algorithm.noise, node, HolderKeys.simulated(KEY), 1.0, t, 2)


def test_a_participation_of_more_steps_is_another_mechanism():
    calibrated = calibrate(
        ALGORITHMS["dp-dsgd"], Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), noise_std=0.0
    )
    longer = algorithms.dp_dsgd(DYN, EveryStep(T + 1))
    refuses("calibrate or account anew", lambda: type(calibrated)(longer, calibrated.guarantee))


def test_a_schedule_of_step_sizes_ends_with_the_mechanism():
    rates = Dynamics(DYN.gossip, np.full(T, 0.1))
    with pytest.raises(InvalidInput, match=f"one for each of {T + 1} steps, got a schedule of {T}"):
        algorithms.dp_dsgd(rates, EveryStep(T + 1))

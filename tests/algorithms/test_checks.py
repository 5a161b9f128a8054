"""What an algorithm is refused for when it is made, in one line: what, the value, what is allowed, the way out."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import mfdl
from mfdl import Dynamics, EveryStep, InvalidInput, LinearAlgorithm, algorithms, gossip
from mfdl.algorithms import from_maps
from mfdl.algorithms.round import Round
from mfdl.noise import IndependentNoise, StepNoise

N, T = 3, 2
W = np.full((N, N), 0.25) + 0.25 * np.eye(N)
ONE = np.eye(N)
base = algorithms.dp_dsgd(Dynamics(gossip.from_array(W)), EveryStep(T))
HEARD = ~np.eye(N, dtype=bool)


def changed(**fields):
    return dataclasses.replace(base, **fields)


def round_of(**maps):
    return dataclasses.replace(base.rounds[0], **maps)


def encoded(encoder):
    return algorithms.mf_dsgd(base.dynamics, EveryStep(T), encoder)


def nan_at(place):
    broken = ONE.copy()
    broken[place] = np.nan
    return broken


REFUSED = {
    "a map of other nodes": (
        lambda: changed(rounds=[round_of(state_from_message=np.eye(2))] * T),
        r"state_from_message must have shape \(state, messages\) with 3 (state|messages), .* got \(2, 2\)",
    ),
    "one round of other sizes": (
        lambda: changed(rounds=[base.rounds[0], Round(message_from_state=np.eye(5), message_from_gradient=np.eye(5))]),
        "message_from_state must have shape",
    ),
    "not a number": (lambda: Round(message_from_state=nan_at((1, 1))), r"message_from_state must .*finite.* got"),
    "not a number, sparse": (
        lambda: Round(message_from_state=sp.csr_array(nan_at((1, 2)))),
        r"message_from_state must hold finite numbers, .* got nan at \(1, 2\)",
    ),
    "complex": (lambda: Round(message_from_state=1j * ONE), "message_from_state must be.*real"),
    "complex, sparse": (lambda: Round(message_from_state=sp.csr_array(1j * ONE)), "must be real numbers, got dtype"),
    "an entry that squares to infinity": (
        lambda: Round(state_from_state=1e80 * ONE),
        "of size 1e-60 to 1e.60, got 1e.80",
    ),
    "an entry that squares to zero": (lambda: Round(state_from_state=1e-200 * ONE), "got 1e-200 at"),
    "a vector for a map": (lambda: Round(message_from_state=np.ones(3)), "message_from_state must"),
    "receivers that are weights": (lambda: Round(receivers=W), "receivers must be a boolean matrix"),
    "divisors of other nodes": (
        lambda: changed(divisors=np.ones(5)),
        "divisors must be 3 finite numbers > 0, one per node",
    ),
    **{
        f"a divisor of {bad}": (
            lambda bad=bad: base.with_divisors([1, 2, bad]),
            "divisors must be 3 finite numbers > 0",
        )
        for bad in (-1, np.inf, np.nan)
    },
    "an encoder of other steps": (lambda: encoded(np.eye(5)), "encoder must be T x T with T = 2"),
    "encoders of other nodes": (lambda: encoded(np.stack([np.eye(2)] * 4)), r"shape \(T, T\) or \(3, T, T\)"),
    "an encoder that looks ahead": (lambda: encoded(np.eye(2) + np.eye(2, k=1)), "causal"),
    "an encoder that adds nothing": (lambda: encoded(np.diag([1.0, 0])), "positive diagonal"),
    "divisors in words": (lambda: changed(divisors="many"), "divisors must be 3 finite numbers > 0"),
    "a divisor of zero": (lambda: changed(divisors=[1, 0, 1]), "divisors must be 3 finite numbers > 0"),
    "divisors far apart": (lambda: base.with_divisors([1, 1e9, 1]), "divisors must lie within a factor of 1e.06"),
    "steps out of order": (
        lambda: changed(step_of_round=(1, 0)),
        r"step_of_round must hold the steps 0 .. T - 1 in order, .* got \[1, 0\]",
    ),
    "a step twice": (lambda: changed(step_of_round=(0, 0)), "each once"),
    "gossip before the first step": (
        lambda: changed(rounds=[Round(message_from_state=ONE), *base.rounds], step_of_round=(-1, 0, 1)),
        r"got \[-1, 0, 1\]",
    ),
    "a gossip round that carries a gradient": (
        lambda: changed(rounds=base.rounds * 2, step_of_round=(0, -1, 1, -1)),
        r"round 1 is pure gossip \(step -1\) but has a map of gradients or noise",
    ),
    "a gossip round with noise alone": (
        lambda: changed(
            rounds=[base.rounds[0], Round(message_from_noise=ONE, state_from_message=W), base.rounds[0]],
            step_of_round=(0, -1, 1),
        ),
        "round 1 is pure gossip",
    ),
    "steps as text": (lambda: changed(step_of_round="01"), "step_of_round must hold 2 integers"),
    "senders out of range": (lambda: changed(message_sender=[0, 1, 7]), r"message_sender must .*7"),
    "senders as fractions": (lambda: changed(message_sender=[0, 1, 1.5]), "message_sender must"),
    "a mask of no shape that fits": (
        lambda: changed(transmitted=np.ones((5, N), dtype=bool)),
        r"transmitted must be a boolean array of shape \(3,\), or \(2, 3\) for each round",
    ),
    "a receiver that is left out": (
        lambda: changed(rounds=[round_of(receivers=HEARD & (np.arange(N) != 2))] * T),
        "message 0 of round 1, sent by node 0, enters the models of node 2, which is not among its receivers; mark",
    ),
    "a receiver that an earlier round leaves out": (
        lambda: changed(rounds=[round_of(receivers=HEARD & (np.arange(N) != 2)), base.rounds[0]]),
        "message 0 of round 0, sent by node 0, enters the models of node 2, which is not among its receivers; mark",
    ),
    "a receiver that uses it a step later": (
        lambda: from_maps(
            {
                "P": np.eye(2, 4),
                "Q": np.eye(2),
                "K": np.vstack([np.zeros((2, 2)), np.eye(2)]),
                "F": np.block([[np.eye(2), 0.5 * np.array([[0, 1], [1, 0]])], [np.zeros((2, 4))]]),
                "receivers": np.zeros((2, 2), dtype=bool),
            },
            EveryStep(3),
        ),
        "message 0 of round 1, sent by node 0, enters the models of node 1",
    ),
    "a message that others use but nobody sends": (
        lambda: changed(transmitted=[True, False, True]),
        "message 1 of round 0 enters models of other nodes than its sender 1, but is not sent",
    ),
    "noise of others in a message": (
        lambda: changed(noise=StepNoise([[1, 1, 0], [0, 1, 0], [0, 0, 1]], np.eye(N, dtype=bool), T, N)),
        r"a node can only add noise that it holds, got factor\[0, 1\] = 1 .*; add it to holders or make the entry zero",
    ),
    "noise of others in more messages than nodes": (
        lambda: from_maps(
            {"P": np.eye(3, 2), "Q": np.eye(3, 2), "R": np.eye(3), "K": np.ones((2, 3))},
            EveryStep(T),
            noise=StepNoise(np.eye(3), [[True, False], [False, True], [True, False]], T, 2),
            message_sender=[0, 1, 1],
        ),
        "message 2 of node 1 has part 2 of the noise, which that node does not hold",
    ),
    "noise of other steps": (
        lambda: changed(noise=IndependentNoise(5, N)),
        "noise must cover 2 steps x 3 nodes, got 5 x 3",
    ),
    "noise as an array": (lambda: changed(noise=np.eye(6)), "noise must be a noise operator .* got ndarray"),
    "a graph for dynamics": (lambda: changed(dynamics=nx.path_graph(3)), "dynamics must be a Dynamics, .* got Graph"),
    "a graph for gossip": (
        lambda: Dynamics(nx.path_graph(3)),
        r"gossip must be a gossip matrix .*, got Graph; .* mfdl.gossip.metropolis_hastings\(graph\)",
    ),
    "an array for gossip": (lambda: Dynamics(W), r"got ndarray; .* mfdl.gossip.from_array\(W\)"),
    "a rate that trains nothing": (lambda: Dynamics(base.dynamics.gossip, 1e30), "learning_rate must .*1e.30"),
    "participation of other steps": (lambda: changed(participation=EveryStep(7)), "participation has 7 steps .* has 2"),
    "rounds as maps": (lambda: changed(rounds=[{"P": W}] * T), "rounds must be Round objects, at least one, got dict"),
    "no rounds": (lambda: changed(rounds=[]), "rounds must be Round objects, at least one, got none"),
    "models of other nodes": (
        lambda: changed(model_from_state=np.eye(2, 3)),
        "model_from_state must have one row for each of 3",
    ),
    "starts of other sizes": (
        lambda: changed(state_from_start=np.eye(4)),
        r"state_from_start must have shape \(3, 3\)",
    ),
    "a directed graph": (
        lambda: gossip.metropolis_hastings(nx.DiGraph([(0, 1), (1, 2), (2, 0)])),
        "is directed, and 3 of its 3 edges have no reverse, .*from_array",
    ),
    "an algorithm for a mechanism": (lambda: mfdl.replay(base, object()), "mechanism must be .* got LinearAlgorithm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_when_it_is_made(case):
    make, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_dense_maps_are_taken_and_are_the_same_algorithm():
    maps = {name: m.toarray() for name, m in vars(base.rounds[0]).items() if m is not None}
    dense = changed(rounds=[Round(**maps)] * T)
    assert dense.content_hash == base.content_hash
    assert all(isinstance(m, sp.csr_array) for m in dense.rounds[0].maps())


def test_what_was_accounted_cannot_be_written():
    mechanism = mfdl.calibrate(base, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    noise = StepNoise(np.eye(N), np.eye(N, dtype=bool), T, N)
    arrays = [m.data for m in mechanism.algorithm.rounds[0].maps()]
    arrays += [base.divisors, base.message_sender, base.transmitted, base.model_from_state.data, noise.factor.data]
    arrays += [base.rounds[0].receivers.data, base.kind_of_round]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.rounds = ()


def test_a_caller_keeps_the_arrays_that_were_given():
    given = ONE.copy()
    round_ = Round(message_from_state=given, message_from_gradient=given)
    given[0, 0] = 7.0
    assert round_.message_from_state.toarray()[0, 0] == 1.0
    assert round_.message_from_state is round_.message_from_gradient  # one map, checked and kept once


def test_the_zero_map_has_one_form():
    assert Round(message_from_state=ONE, state_from_state=np.zeros((N, N))).state_from_state is None


def test_transmitted_may_differ_between_rounds():
    mask = np.array([[True, True, False], [False, False, True]])
    alone = round_of(state_from_message=ONE, receivers=None)  # nobody uses a message of another
    algorithm = changed(rounds=[alone] * T, transmitted=mask)
    assert (algorithm.sent == mask).all()
    assert changed(rounds=[alone] * T, transmitted=np.stack([mask[0]] * T)).transmitted.shape == (N,)
    assert isinstance(algorithm, LinearAlgorithm)

"""An algorithm of one's own: what is inferred is what the built-in would have; what is asked for, and refused."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, algorithms, gossip, trust
from mfdl.algorithms import from_maps
from mfdl.algorithms.round import Round
from mfdl.noise import IndependentNoise, StepNoise
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import dyadic_gossip
from mfdl.testing.tasks import linear_task

PATH = gossip.metropolis_hastings("path:n=3")
W = PATH.weights.toarray()
ONE = np.eye(3)


@given(30, dyadic_gossip())
def test_who_hears_whom_is_inferred(matrix):
    w, n = matrix.weights.toarray(), matrix.num_nodes
    mapped = from_maps({"P": np.eye(n), "Q": -np.eye(n), "K": w}, EveryStep(2))
    assert (mapped.rounds[0].receivers.toarray() == (w.T != 0) & ~np.eye(n, dtype=bool)).all()
    assert ((mapped.dynamics.gossip.at(0).weights.toarray() != 0) == ((w != 0) | np.eye(n, dtype=bool))).all()
    assert mapped.message_sender.tolist() == list(range(n))


def test_a_message_that_is_used_later_is_received_when_it_is_sent():
    """Node 0 uses node 1's message one step later: the state that waits is its own."""
    waits = {"P": np.eye(2, 3), "Q": np.eye(2), "K": [[1, 0], [0, 1], [0, 1]], "F": [[0, 0, 0.5], [0, 0, 0], [0, 0, 0]]}
    mapped = from_maps(waits, EveryStep(3))
    assert mapped.rounds[0].receivers.toarray().tolist() == [[False, False], [True, False]]
    assert all(exchange.receivers.nnz == 1 for exchange in mapped.rounds)  # also in the last, where nobody waits


def test_noise_enters_where_gradients_do_unless_it_is_said():
    together = from_maps({"P": ONE, "Q": ONE, "K": W, "J": ONE}, EveryStep(2))
    assert together.noise_enters_with_gradients
    apart = from_maps({"P": ONE, "Q": ONE, "K": W, "J": ONE, "R": 2 * ONE, "L": None}, EveryStep(2))
    assert not apart.noise_enters_with_gradients
    assert apart.rounds[0].state_from_noise is None
    assert from_maps({"P": ONE, "Q": ONE, "K": W}, EveryStep(2)).rounds[0].message_from_noise is not None


def test_a_message_may_take_slots_that_stay_without_noise():
    silent = StepNoise(sp.csr_array((6, 3)), sp.csr_array(np.ones((3, 3), dtype=bool)), 2, 3)
    mapped = from_maps({"P": ONE, "Q": ONE, "K": W, "R": np.ones((3, 6))}, EveryStep(2), noise=silent)
    assert mapped.rounds[0].message_from_noise.nnz == 18


def test_nobody_has_to_send_anything():
    alone = from_maps({"P": np.zeros((0, 1)), "F": [[1]], "J": [[1]]}, EveryStep(2))
    assert alone.sent.shape == (2, 0)


def test_long_names_sparse_maps_and_steps_by_function():
    rates = [1.0, 0.5, 0.25]
    by_step = from_maps(
        lambda t: {
            "message_from_state": sp.eye_array(3),
            "message_from_gradient": -rates[t] * sp.eye_array(3),
            "state_from_message": PATH.weights,
        },
        EveryStep(3),
        Dynamics(PATH, rates),
        name="dp-dsgd",
    )
    assert by_step.content_hash == algorithms.dp_dsgd(Dynamics(PATH, rates), EveryStep(3)).content_hash


def test_a_list_of_maps_is_a_step_and_its_gossip_rounds():
    first = {"P": ONE, "Q": -ONE, "K": W}
    mapped = from_maps([first, {"P": ONE, "K": W}], EveryStep(2), name="muffliato")
    assert mapped.step_of_round == (0, -1, 1, -1)
    reference = algorithms.muffliato(Dynamics(PATH), EveryStep(2), gossip_rounds=2)
    for ours, theirs in zip(
        sensitivity_by_victim(mapped, trust.LDP()), sensitivity_by_victim(reference, trust.LDP()), strict=True
    ):
        assert ours.sensitivity_squared == theirs.sensitivity_squared


@each(
    "maps, way_out",
    ({"P": ONE, "Q": -ONE}, r"give K \(state from message\)"),
    ({"P": ONE, "Q": -ONE, "F": ONE, "K": None}, r"give K \(state from message\)"),
    ({"P": ONE, "K": W, "R": ONE}, r"give Q \(message from gradient\) with K"),
    (Round(ONE, ONE, ONE), r"give K \(state from message\)"),
)
def test_maps_that_train_nothing_are_refused(maps, way_out):
    dynamics = dynamics_on("path:n=3")
    with pytest.raises(InvalidInput, match=f"no gradient ever enters a model .*: nothing would be trained; {way_out}"):
        from_maps(maps, EveryStep(2), dynamics, message_sender=range(3))


def test_an_error_names_the_step_and_the_letter():
    def at(t):
        return {"P": ONE, "Q": -ONE, "K": np.eye(2 + (t != 1), 3)}

    refuses("^step 1: K = state_from_message must have", lambda: from_maps(at, EveryStep(2)))
    with pytest.raises(InvalidInput, match=r"^step 1: unknown map 'X'"):
        from_maps(lambda t: {"P": ONE, "Q": ONE, "K": W} | ({"X": W} if t else {}), EveryStep(2))
    refuses("^step 1: rounds", lambda: from_maps(lambda t: W if t else {"P": ONE, "Q": ONE, "K": W}, EveryStep(2)))
    with pytest.raises(InvalidInput, match=r"^step 1: Q = message_from_gradient must be finite"):
        from_maps(lambda t: {"P": ONE, "Q": np.nan * ONE if t else ONE, "K": W}, EveryStep(2))
    with pytest.raises(InvalidInput, match=r"^state_from_message must have"):
        from_maps({"P": ONE, "Q": ONE, "state_from_message": np.eye(2)}, EveryStep(2))


@each(
    "maps, options, message",
    ({"P": ONE, "Q": ONE, "X": ONE}, {}, "unknown map 'X'"),
    ({"P": ONE}, {}, r"number of nodes cannot be inferred from the maps; give a gradient map \(Q or J\)"),
    ({"J": ONE}, {}, r"number of messages cannot be inferred from the maps; give P"),
    ({"P": np.ones((1, 3)), "Q": np.ones((1, 3))}, {}, "sender of message 0 cannot be inferred: .*; give"),
    ({"P": ONE, "Q": np.eye(2)}, {}, "message_from_gradient must have shape"),
    ({"P": ONE, "Q": ONE, "K": W}, {"noise": IndependentNoise(3, 3)}, "noise must cover 2 steps x 3 nodes"),
    ({"P": ONE, "Q": ONE}, {"transmitted": [True]}, "transmitted must be a boolean array"),
    ({"P": ONE, "Q": ONE}, {"model_from_state": np.eye(3, 4)}, "with 4 state, as the algorithm has"),
    ({"P": ONE, "Q": ONE}, {"model_from_state": np.eye(2, 3)}, "one row for each of 3 nodes"),
    ({"P": ONE, "Q": ONE}, {"message_sender": [0, 1, 9]}, "message_sender must"),
)
def test_what_cannot_be_told_is_asked_for(maps, options, message):
    refuses(message, lambda: from_maps(maps, EveryStep(2), **options))


def on_messages(**more):
    """Each node sends its model to either neighbour of a triangle, with noise of its own on every message."""
    sender = np.repeat(np.arange(3), 2)
    receiver = np.array([1, 2, 0, 2, 0, 1])
    S = np.eye(3)[sender]
    K = np.eye(3)[:, receiver] / 3
    noise = StepNoise(sp.eye_array(6), S != 0, 4, 3)
    maps = {"P": S, "Q": -0.5 * S, "R": np.eye(6), "K": K, "F": np.eye(3) / 3}
    return from_maps(maps, more.pop("participation", EveryStep(4)), noise=noise, **more)


@pytest.mark.parametrize("unit", ["user", "record"])
def test_noise_on_messages_is_calibrated_and_replayed(unit):
    algorithm = on_messages(participation=EveryStep(4) if unit == "user" else Cyclic(2, 2))
    assert algorithm.noise_on_messages
    task = linear_task(3, np.random.default_rng(0).uniform(size=(12, 2)))
    if unit == "record":
        algorithm = algorithm.with_divisors(task.public_batch_sizes(2))
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), unit=unit, **ZERO_OUT), mu=2.0)
    run = mfdl.replay(mechanism, task, seeds=[0], progress=False)
    assert run.seeds[0].finished_steps == 4


def test_where_noise_is_added_is_inferred_and_may_be_said():
    assert not on_messages(noise_on_messages=False).noise_on_messages
    assert not from_maps({"P": ONE, "Q": -ONE, "K": W}, EveryStep(2)).noise_on_messages
    refuses("noise_on_messages must be True, False", on_messages, noise_on_messages="yes")
    halved = on_messages(noise_on_messages=False).with_divisors(np.full(3, 2.0))
    assert_allclose(halved.rounds[0].message_from_noise.toarray(), np.eye(6) / 2)  # each slot has noise of one node
    shared = StepNoise(np.ones((6, 3)), np.ones((3, 3), dtype=bool), 4, 3)
    refuses("say noise_on_messages=True", lambda: dataclasses.replace(halved, noise=shared).with_divisors(np.ones(3)))


N, T = 3, 2
WEIGHTS = np.full((N, N), 0.25) + 0.25 * np.eye(N)
ONES = np.eye(N)
base = algorithms.dp_dsgd(Dynamics(gossip.from_array(WEIGHTS)), EveryStep(T))
HEARD = ~np.eye(N, dtype=bool)


def changed(**fields):
    return dataclasses.replace(base, **fields)


def round_of(**maps):
    return dataclasses.replace(base.rounds[0], **maps)


def encoded(encoder):
    return algorithms.mf_dsgd(base.dynamics, EveryStep(T), encoder)


def nan_at(place):
    broken = ONES.copy()
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
    "not a number, sparse": (lambda: Round(message_from_state=sp.csr_array(nan_at((1, 2)))), "message_from_state must"),
    "complex": (lambda: Round(message_from_state=1j * ONES), "message_from_state must be.*real"),
    "complex, sparse": (lambda: Round(message_from_state=sp.csr_array(1j * ONES)), "must be real numbers, got dtype"),
    "an entry that squares to infinity": (lambda: Round(state_from_state=1e80 * ONES), "of size 1e-60 to 1e.60, got"),
    "an entry that squares to zero": (lambda: Round(state_from_state=1e-200 * ONES), "got 1e-200 at"),
    "a vector for a map": (lambda: Round(message_from_state=np.ones(3)), "message_from_state must"),
    "receivers that are weights": (lambda: Round(receivers=WEIGHTS), "receivers must be a boolean matrix"),
    "divisors of other nodes": (lambda: changed(divisors=np.ones(5)), "divisors must be 3 finite numbers > 0, one per"),
    "a divisor below zero": (lambda: base.with_divisors([1, 2, -1]), "divisors must be 3 finite numbers > 0"),
    "an infinite divisor": (lambda: base.with_divisors([1, 2, np.inf]), "divisors must be 3 finite numbers > 0"),
    "a divisor that is no number": (
        lambda: base.with_divisors([1, 2, np.nan]),
        "divisors must be 3 finite numbers > 0",
    ),
    "an encoder of other steps": (lambda: encoded(np.eye(5)), "encoder must be T x T with T = 2"),
    "divisors in words": (lambda: changed(divisors="many"), "divisors must be 3 finite numbers > 0"),
    "a divisor of zero": (lambda: changed(divisors=[1, 0, 1]), "divisors must be 3 finite numbers > 0"),
    "divisors far apart": (lambda: base.with_divisors([1, 1e9, 1]), "divisors must lie within a factor of 1e.06"),
    "steps out of order": (lambda: changed(step_of_round=(1, 0)), "step_of_round must hold the steps 0 .. T - 1"),
    "a step twice": (lambda: changed(step_of_round=(0, 0)), "each once"),
    "gossip before the first step": (
        lambda: changed(rounds=[Round(message_from_state=ONES), *base.rounds], step_of_round=(-1, 0, 1)),
        r"got \[-1, 0, 1\]",
    ),
    "a gossip round that carries a gradient": (
        lambda: changed(rounds=base.rounds * 2, step_of_round=(0, -1, 1, -1)),
        r"round 1 is pure gossip \(step -1\) but has a map of gradients or noise",
    ),
    "a gossip round with noise alone": (
        lambda: changed(
            rounds=[base.rounds[0], Round(message_from_noise=ONES, state_from_message=WEIGHTS), base.rounds[0]],
            step_of_round=(0, -1, 1),
        ),
        "round 1 is pure gossip",
    ),
    "steps as text": (lambda: changed(step_of_round="01"), "step_of_round must hold 2 integers"),
    "senders out of range": (lambda: changed(message_sender=[0, 1, 7]), r"message_sender must .*7"),
    "senders as fractions": (lambda: changed(message_sender=[0, 1, 1.5]), "message_sender must"),
    "a mask of no shape that fits": (lambda: changed(transmitted=np.ones((5, N), dtype=bool)), "transmitted must"),
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
    "noise of other steps": (lambda: changed(noise=IndependentNoise(5, N)), "noise must cover 2 steps x 3 nodes, got"),
    "noise as an array": (lambda: changed(noise=np.eye(6)), "noise must be a noise operator .* got ndarray"),
    "a graph for dynamics": (lambda: changed(dynamics=nx.path_graph(3)), "dynamics must be a Dynamics, .* got Graph"),
    "a graph for gossip": (lambda: Dynamics(nx.path_graph(3)), "gossip must be a gossip matrix .*, got Graph"),
    "an array for gossip": (lambda: Dynamics(WEIGHTS), r"got ndarray; .* mfdl.gossip.from_array\(W\)"),
    "a rate that trains nothing": (lambda: Dynamics(base.dynamics.gossip, 1e30), "learning_rate must .*1e.30"),
    "participation of other steps": (lambda: changed(participation=EveryStep(7)), "participation has 7 steps .* has 2"),
    "rounds as maps": (lambda: changed(rounds=[{"P": WEIGHTS}] * T), "rounds must be Round objects, at least one, got"),
    "no rounds": (lambda: changed(rounds=[]), "rounds must be Round objects, at least one, got none"),
    "models of other nodes": (lambda: changed(model_from_state=np.eye(2, 3)), "model_from_state must have one row"),
    "starts of other sizes": (lambda: changed(state_from_start=np.eye(4)), r"state_from_start must have shape \(3"),
    "a directed graph": (lambda: gossip.metropolis_hastings(nx.DiGraph([(0, 1), (1, 2), (2, 0)])), "is directed"),
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
    mechanism = mfdl.calibrate(base, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=1.0)
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
    given = ONES.copy()
    round_ = Round(message_from_state=given, message_from_gradient=given)
    given[0, 0] = 7.0
    assert round_.message_from_state.toarray()[0, 0] == 1.0
    assert round_.message_from_state is round_.message_from_gradient  # one map, checked and kept once

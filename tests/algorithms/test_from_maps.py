"""An algorithm of one's own: what is inferred is what the built-in would have, and what cannot be told is asked for."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from numpy.testing import assert_allclose
from refusals import refuses

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, algorithms, gossip, trust
from mfdl.algorithms import from_maps
from mfdl.algorithms.round import Round
from mfdl.noise import IndependentNoise, LocalNoise, StepNoise
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import dyadic_gossip
from mfdl.testing.tasks import linear_task

PATH = gossip.metropolis_hastings("path:n=3")
W = PATH.weights.toarray()
ONE = np.eye(3)


def test_dp_dsgd_from_its_arrays_is_dp_dsgd():
    dynamics = Dynamics(PATH, 0.5)
    mapped = from_maps({"P": ONE, "Q": -0.5 * ONE, "K": W}, Cyclic(2, 2), dynamics, name="dp-dsgd")
    assert mapped.content_hash == algorithms.dp_dsgd(dynamics, Cyclic(2, 2)).content_hash


@examples(30)
@given(dyadic_gossip())
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
    assert all(
        exchange.receivers.nnz == 1 for exchange in mapped.rounds
    )  # also in the last round, where nobody waits any more


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


def test_noise_of_ones_own():
    encoder = np.array([[1.0, 0], [0.5, 1.0]])
    mapped = from_maps({"P": ONE, "Q": -ONE, "K": W}, EveryStep(2), Dynamics(PATH), noise=LocalNoise(encoder, 3))
    reference = algorithms.mf_dsgd(Dynamics(PATH), EveryStep(2), encoder)
    (ours, *_), (theirs, *_) = (sensitivity_by_victim(algorithm, trust.LDP()) for algorithm in (mapped, reference))
    assert ours.sensitivity_squared == theirs.sensitivity_squared


@pytest.mark.parametrize(
    ("maps", "way_out"),
    [
        ({"P": ONE, "Q": -ONE}, r"give K \(state from message\)"),
        ({"P": ONE, "Q": -ONE, "F": ONE, "K": None}, r"give K \(state from message\)"),
        ({"P": ONE, "K": W, "R": ONE}, r"give Q \(message from gradient\) with K"),
        (Round(ONE, ONE, ONE), r"give K \(state from message\)"),
    ],
)
def test_maps_that_train_nothing_are_refused(maps, way_out):
    dynamics = Dynamics(gossip.metropolis_hastings("path:n=3"))
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


@pytest.mark.parametrize(
    ("maps", "options", "message"),
    [
        ({"P": ONE, "Q": ONE, "X": ONE}, {}, "unknown map 'X'"),
        ({"P": ONE}, {}, r"number of nodes cannot be inferred from the maps; give a gradient map \(Q or J\)"),
        ({"J": ONE}, {}, r"number of messages cannot be inferred from the maps; give P"),
        (
            {"P": np.ones((1, 3)), "Q": np.ones((1, 3))},
            {},
            "sender of message 0 cannot be inferred: .*; give message_sender",
        ),
        ({"P": ONE, "Q": np.eye(2)}, {}, "message_from_gradient must have shape"),
        ({"P": ONE, "Q": ONE, "K": W}, {"noise": IndependentNoise(3, 3)}, "noise must cover 2 steps x 3 nodes"),
        ({"P": ONE, "Q": ONE}, {"transmitted": [True]}, "transmitted must be a boolean array"),
        ({"P": ONE, "Q": ONE}, {"model_from_state": np.eye(3, 4)}, "with 4 state, as the algorithm has"),
        ({"P": ONE, "Q": ONE}, {"model_from_state": np.eye(2, 3)}, "one row for each of 3 nodes"),
        ({"P": ONE, "Q": ONE}, {"message_sender": [0, 1, 9]}, "message_sender must"),
    ],
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
    options = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "unit": unit}
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(**options), mu=2.0)
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

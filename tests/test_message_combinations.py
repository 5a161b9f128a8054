"""Models that see linear combinations of messages, and `gossip.average` in a loop of one's own."""

import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose
from path_algorithms import DP, MH, PATH, ZIP
from torch import nn
from vocabulary import each, given, refuses, st, unsupported

from mfdl import Dynamics, EveryStep, TrustModel, algorithms, archive, gossip, trust
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import dyadic_gossip, exact_leaks, exact_run, exact_view, exact_view_gram, largest_signed_sum

FROM_MASKS = TrustModel.from_masks


# ---- combinations of messages ----------------------------------------------------------------------------------------
def exactly(algorithm, rows, known_noise, release):
    """(A, B) of combinations, over the rationals."""
    sent = np.broadcast_to(algorithm.transmitted, (len(algorithm.rounds), algorithm.messages_per_round))
    fractions = [[Fraction(x) for x in row] for row in rows.tolist()]
    return exact_view(exact_run(algorithm), sent, known_noise, release=release, combination=fractions)


def check(loss, leaks, X, columns, *, tight):
    """Infinite where a gradient of these columns leaks, else never below the largest signed sum, and that if tight."""
    if any(leaks[column] for column in columns):
        assert loss.sensitivity_squared == math.inf
        return
    exact = largest_signed_sum([[X[s][t] for t in columns] for s in columns])
    assert Fraction(loss.sensitivity_squared) >= exact * (1 - Fraction(1, 10**9))
    assert not tight or loss.sensitivity_squared <= float(exact) * (1 + 2e-6) + 1e-12
    assert loss.adaptive_sensitivity_squared >= float(exact) * (1 - 1e-9)


@given(60, data=st.data(), release=st.sampled_from(["none", "average", "all"]))
def test_losses_to_who_sees_combinations_are_never_below_the_rational_ones(data, release):
    W = data.draw(dyadic_gossip(max_nodes=4))
    build = data.draw(st.sampled_from([algorithms.dp_dsgd, algorithms.anti_pgd, algorithms.muffliato]))
    built, n = build(Dynamics(W), EveryStep(2)), W.num_nodes
    entries = data.draw(st.lists(st.integers(-2, 2), min_size=2 * n, max_size=2 * n))
    rows, seen = np.reshape(entries, (2, n)), np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    known = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    make = data.draw(st.sampled_from([np.asarray, sp.csr_array, lambda x: lambda algorithm: x]))
    model = FROM_MASKS(seen=seen, combinations=make(rows.astype(float)), known_noise=known, release=release)
    every = np.vstack([rows, np.eye(n)[seen]])
    A, B = exactly(built, every, np.flatnonzero(np.tile(known, 2)).tolist(), release)
    leaks, X = exact_leaks(A, B), exact_view_gram(A, B)
    for loss in sensitivity_by_victim(built, model):
        check(loss, leaks, X, [loss.victim, n + loss.victim], tight=loss.bound == "exact")


def test_unit_rows_are_messages_and_their_mean_is_the_central_model():
    for release in ("none", "all"):
        for rows, other in (
            (np.eye(4)[[1, 3]], FROM_MASKS(seen=np.array([False, True, False, True]), release=release)),
            (np.ones((1, 4)), trust.Central()),
        ):
            model = FROM_MASKS(combinations=rows, release=release)
            pairs = zip(
                sensitivity_by_victim(DP, model), sensitivity_by_victim(DP, other, release=release), strict=True
            )
            for loss, expected in pairs:
                assert loss.sensitivity_squared == pytest.approx(expected.sensitivity_squared, rel=1e-6)


def test_who_sees_every_message_sees_all_combinations():
    summed = FROM_MASKS(combinations=np.ones((1, 4)), release="none")
    assert trust.Eavesdropper().sees_at_least(summed, DP)
    assert not summed.sees_at_least(trust.Eavesdropper(), DP)
    assert not FROM_MASKS(seen=np.array([True, True, True, False]), release="none").sees_at_least(summed, DP)
    two = FROM_MASKS(combinations=np.array([[1.0, 1, 0, 0]]), release="none")
    assert FROM_MASKS(seen=np.array([True, True, False, False]), release="none").sees_at_least(two, DP)
    assert not summed.sees_at_least(two, DP)
    assert summed.fingerprint(DP) != two.fingerprint(DP)
    by_victim = FROM_MASKS(combinations=lambda algorithm, victim: np.eye(4)[[victim]], release="none")
    assert [loss.sensitivity_squared for loss in sensitivity_by_victim(DP, by_victim)] != [0.0] * 4


@each(
    "given, text",
    ({"combinations": np.ones((1, 3))}, "a column for each of 4 messages"),
    ({"combinations": np.ones(4)}, "combinations must have 2 dimensions"),
    ({"combinations": [[np.inf, 0, 0, 0]]}, "combinations must be finite"),
    ({"combinations": np.ones((1, 4)), "seen": np.eye(2, 4, dtype=bool)}, "seen must be the same mask in every"),
)
def test_combinations_that_do_not_fit(given, text):
    refuses(text, lambda: sensitivity_by_victim(DP, FROM_MASKS(**given)))


# ---- secure sums ----------------------------------------------------------------------------------------------------
def test_sums_are_those_of_the_receivers():
    """Path 0 - 1 - 2 - 3 with Metropolis weights: 1/3 each inside, from and to the ends too."""
    third = 1 / 3
    all_sums = trust.SecureSum().knowledge(DP, 0).combination.toarray()
    assert_allclose(all_sums, third * np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]))
    of_one = trust.SecureSum([1]).knowledge(DP, 0)
    assert_allclose(of_one.combination.toarray(), all_sums[[1]])
    assert of_one.known_gradients[0].tolist() == of_one.known_noise[0].tolist() == [False, True, False, False]
    messages = trust.SecureSum([0]).knowledge(ZIP, 1).combination.toarray()  # 00 01, 10 11 12, 21 22
    assert np.flatnonzero(messages[0]).tolist() == [2]


@given(40, W=dyadic_gossip(max_nodes=4), attacked=st.booleans(), steps=st.integers(1, 2))
def test_a_secure_sum_shows_no_more_than_the_neighbourhood_and_no_less_than_the_rational_truth(W, attacked, steps):
    algorithm, n = algorithms.dp_dsgd(Dynamics(W), EveryStep(steps)), W.num_nodes
    model = trust.SecureSum([0] if attacked else [])
    summed = {loss.victim: loss for loss in sensitivity_by_victim(algorithm, model, release="none")}
    sums = model.knowledge(algorithm, 1).combination.toarray()
    known = [t * n for t in range(steps)] if attacked else []
    A, B = exactly(algorithm, sums, known, "none")
    leaks, X = exact_leaks(A, B), exact_view_gram(A, B)
    for u, loss in summed.items():
        check(loss, leaks, X, [t * n + u for t in range(steps)], tight=True)
    plain = trust.PNDP([0]) if attacked else trust.Eavesdropper()
    for loss in sensitivity_by_victim(algorithm, plain, release="none"):
        assert summed[loss.victim].sensitivity_squared <= loss.sensitivity_squared * (1 + 1e-6)


def test_secure_sums_need_the_same_messages_in_every_round():
    W = MH("path:n=4").dense()
    W[1] = [0.2, 0.3, 0.5, 0.0]  # the same edges with other shares
    other = gossip.from_array(W)
    for algorithm in (
        algorithms.gradient_tracking(PATH, EveryStep(2)),
        algorithms.delayed_dsgd(PATH, EveryStep(2)),
        algorithms.dp_dsgd(Dynamics(gossip.sequence([MH("path:n=4"), MH("ring:n=4")])), EveryStep(2)),
        algorithms.dp_dsgd(Dynamics(gossip.sequence([MH("path:n=4"), other])), EveryStep(2)),
    ):
        unsupported("secure-sum is for algorithms whose nodes", trust.SecureSum().view, algorithm, 0)


def test_a_secure_sum_by_name_and_saved():
    assert trust.named("secure-sum") == trust.SecureSum()
    assert trust.named("secure-sum", attackers=[1]) == trust.SecureSum([1])
    assert archive.copied(trust.SecureSum([1, "b"]), "trust") == trust.SecureSum([1, "b"])
    assert trust.SecureSum([0]).attackers(DP) == (0,)
    assert [loss.victim for loss in sensitivity_by_victim(DP, trust.SecureSum([0]))] == [1, 2, 3]


N = 33
COMPLETE = gossip.metropolis_hastings(nx.complete_graph(N))


class Buffered(nn.Module):
    """A linear layer with a table of places, a mask and a counter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("places", torch.tensor([3, 1, 2, 0]))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.tensor(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_averaging_loop_keeps_integers_and_averages_numbers(dtype):
    modules = [Buffered().to(dtype) for _ in range(N)]
    messages = {j: {name: x.clone() for name, x in m.state_dict().items()} for j, m in enumerate(modules)}
    exact = torch.stack([messages[j]["linear.weight"].double() for j in range(N)])
    for i, module in enumerate(modules):
        module.load_state_dict(gossip.average(messages, COMPLETE, i))
        wanted = torch.einsum("j,jab->ab", torch.tensor(COMPLETE.weights.toarray()[i]), exact)
        eps = max(torch.finfo(dtype).eps, N * torch.finfo(torch.float32).eps if dtype != torch.float64 else 1e-14)
        assert (module.linear.weight.double() - wanted).abs().max() <= eps * exact.abs().max()
        assert (module.places.tolist(), module.mask.tolist()) == ([3, 1, 2, 0], [True, False, True])
        assert module.count == 5
    assert all(m["places"].tolist() == [3, 1, 2, 0] for m in messages.values())


def test_equal_models_of_few_bits_stay_equal():
    for dtype in (torch.bfloat16, torch.float16):
        ones = gossip.average({j: torch.ones(3, dtype=dtype) for j in range(N)}, COMPLETE, 0)
        assert ones.dtype == dtype
        assert (ones == 1).all()
    halves = gossip.average({j: np.ones(3, dtype=np.float16) for j in range(N)}, COMPLETE, 0)
    assert halves.dtype == np.float16
    assert (halves == 1).all()


@each(
    "other, words",
    ({"places": torch.tensor([3, 1, 0, 2])}, "'places', of type torch.int64, must be equal.*of node 7 than"),
    ({"mask": torch.tensor([True, True, True])}, "'mask', of type torch.bool"),
    ({"count": torch.tensor(6)}, "'count', of type torch.int64"),
    ({"linear.bias": torch.zeros(1)}, r"'linear.bias' must have one shape.*\(3,\).*of node 0 and .*\(1,\).*node 7"),
    ({"linear.bias": torch.zeros(3, dtype=torch.float64)}, "'linear.bias' must have one shape and type"),
    ({"linear.bias": np.zeros(3, dtype=np.float32)}, "'linear.bias' must have one shape and type"),
)
def test_what_is_no_average_is_refused_with_its_name(other, words):
    messages = {j: Buffered().state_dict() for j in range(N)}
    messages[7] = {**messages[7], **other}
    refuses(words, gossip.average, messages, COMPLETE, 3)


def test_shapes_that_numpy_would_broadcast_are_refused():
    W = gossip.metropolis_hastings(nx.complete_graph(3))
    shapes = [(2,), (1,), (2,)]
    refuses("messages must", lambda: gossip.average({j: np.zeros(shape) for j, shape in enumerate(shapes)}, W, 0))
    assert gossip.average(dict.fromkeys(range(3), 7), W, 0) == 7
    refuses("cast it to a floating-point type", gossip.average, {0: 1, 1: 2, 2: 3}, W, 0)

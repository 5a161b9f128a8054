"""Matrices without an algorithm: losses against rational arithmetic, against builders, and what counts as adaptive."""

import functools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from _scaled import integers, scales
from scipy.sparse.linalg import aslinearoperator
from vocabulary import each, given, refuses, st, unsupported

from mfdl import Cyclic, Dynamics, EveryStep, PoissonSampling, View, algorithms, gossip, privacy, trust
from mfdl.entries import as_fractions
from mfdl.participation import Explicit, ParticipationByNode, Single
from mfdl.privacy import view_losses
from mfdl.privacy.victim_sensitivity import is_adaptive
from mfdl.testing import gossip_messages, oracles, pairwise_factor, received, view_cases

SCHEMES = (EveryStep(2), Single(2), Explicit([[1]], 2), Explicit([[0]], 2))


@st.composite
def matrices(draw):
    """(A, B, nodes) over two steps: B of any rank, A in its range or not, rows and columns of sizes of their own."""
    n, rows, noises = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    B = integers(draw, rows, depth := draw(st.integers(0, min(rows, noises)))) @ integers(draw, depth, noises)
    A = B @ integers(draw, noises, 2 * n)
    if draw(st.booleans()):
        A += integers(draw, rows, 2 * n) * draw(st.sampled_from([1.0, 2.0**-40]))
    if draw(st.booleans()):
        rows_by = scales(draw, rows)[:, None]
        A, B = A * rows_by * scales(draw, 2 * n), B * rows_by * scales(draw, noises)
    return A, B, n


@given(600, case=matrices(), scheme=st.sampled_from(SCHEMES))
def test_no_loss_is_below_the_rational_truth(case, scheme):
    A, B, n = case
    leaks, X = (
        oracles.exact_leaks(oracles.rational(A), oracles.rational(B)),
        oracles.exact_view_gram(oracles.rational(A), oracles.rational(B)),
    )
    for loss in view_losses(View(A, B, num_nodes=n), scheme):
        sensitivity = loss.non_adaptive_sensitivity
        patterns = [[t * n + loss.victim for t in pattern] for pattern in scheme.patterns()]
        if any(leaks[column] for pattern in patterns for column in pattern):
            assert sensitivity.squared == math.inf
            assert sensitivity.why
            continue
        truth = max(oracles.largest_signed_sum([[X[s][t] for t in pattern] for s in pattern]) for pattern in patterns)
        assert sensitivity.squared == math.inf or Fraction(sensitivity.squared) >= truth >= Fraction(sensitivity.lower)
        if sensitivity.exact:
            assert sensitivity.squared <= float(truth) * (1 + 2e-6)


def test_a_leak_in_one_step_leaves_the_other_its_number():
    """Step 0 shows without noise; step 1 has noise too faint for float64 beside that of other rows."""
    A = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    B = np.array([[0.0, 0.0], [1.0, 2.0**-60], [1.0, 0.0]])
    A[1, 1] += 1.0  # the difference of the last rows is g_1 + 2^-60 z
    view = View(A, B)
    schemes = (EveryStep(2), Explicit([[0]], 2), Explicit([[1]], 2))
    (both,), (first,), (second,) = (view_losses(view, scheme) for scheme in schemes)
    assert both.sensitivity_squared == first.sensitivity_squared == math.inf
    assert "step 0 shows without noise" in both.non_adaptive_sensitivity.why
    assert (second.bound, second.sensitivity_squared) == ("exact", pytest.approx(2.0**120, rel=1e-6))


@given(100, case=matrices(), data=st.data())
def test_known_noise_is_noise_that_is_not_there(case, data):
    A, B, n = case
    known = np.array(data.draw(st.lists(st.booleans(), min_size=B.shape[1], max_size=B.shape[1])))
    expected = view_losses(View(A, oracles.without_noise(B, np.flatnonzero(known)), num_nodes=n), EveryStep(2))
    for make in (np.asarray, sp.csr_array, lambda M: np.array(M.astype(object) * Fraction(1), dtype=object)):
        losses = view_losses(View(make(A), make(B), num_nodes=n, known_noise=known), EveryStep(2))
        for loss, other in zip(losses, expected, strict=True):
            assert loss.sensitivity_squared == pytest.approx(other.sensitivity_squared, rel=1e-6)
    for loss, other in zip(  # products of an operator round: the same, or on the safe side
        view_losses(View(aslinearoperator(A) @ aslinearoperator(np.eye(2 * n)), aslinearoperator(B), num_nodes=n,
                         known_noise=known), EveryStep(2)),
        expected,
        strict=True,
    ):  # fmt: skip
        assert loss.sensitivity_squared >= other.sensitivity_squared * (1 - 1e-9)


def test_noise_that_cancels_in_an_operator_is_no_noise():
    """0.1 + 0.2 - 0.3 in a product: rounding leaves 1e-17 of it, where in truth there is no noise."""
    first, second = np.array([[1.0, 1.0, -1.0], [0.0, 0.0, 10.0]]), np.array([[0.1], [0.2], [0.3]])
    B = aslinearoperator(first) @ aslinearoperator(second)
    assert 0 < abs(B.matvec([1.0])[0]) < 1e-15
    for scheme in (EveryStep(1), EveryStep(2)):
        for faint in (1.0, 1e-16):  # next to which the rounding of B would pass for noise
            (loss,) = view_losses(View(np.diag([faint, 1.0])[:, : scheme.num_steps], B), scheme)
            assert loss.sensitivity_squared == math.inf


@given(60, faint=st.floats(1e-5, 1e-4), off=st.floats(-1.0, 1.0))
def test_products_of_an_operator_are_not_taken_for_exact(faint, off):
    """Noise of 1e-5 beside noise of one, from an operator that is off by 2^-46 of its largest entry."""
    computed = np.diag([faint + off * 2.0**-46, 1.0])
    products = aslinearoperator(computed) @ aslinearoperator(np.eye(2))
    (loss,) = view_losses(View(np.eye(2)[:, :1], products), EveryStep(1))
    number = loss.non_adaptive_sensitivity
    assert Fraction(number.squared) >= 1 / Fraction(faint) ** 2 >= Fraction(number.lower)


def test_a_combination_that_is_redundant_up_to_rounding_in_an_operator_may_be_a_leak():
    """Of the matrices it is one, by 2^-48 in one entry; their products cannot tell, so the loss is an upper bound."""
    A, B = np.zeros((3, 4)), np.array([[0.0, -4, 6, 0], [0, -2, 3, 0], [0, -2, 3, 0]])
    A[:, 0] = 16, 8, 8 + 2.0**-48
    products = aslinearoperator(A) @ aslinearoperator(np.eye(4)), aslinearoperator(B)
    for matrices_or_products in ((A, B), products):
        first, _ = view_losses(View(*matrices_or_products, num_nodes=2), EveryStep(2))
        assert first.sensitivity_squared == math.inf
    assert (first.bound, bool(first.non_adaptive_sensitivity.why)) == ("upper", True)


@given(60, case=view_cases(exact=True))
def test_written_out_as_matrices_a_view_loses_what_its_builder_says(case):
    view = View(case.A, case.B, num_nodes=case.algorithm.num_nodes, known_gradients=case.known_gradients)
    scheme = case.algorithm.participation
    of_builder = privacy.sensitivity_by_victim(case.algorithm, case.model, release=case.release)
    by_victim = {loss.victim: loss for loss in of_builder}
    shared = sorted(set(by_victim) & {*range(case.algorithm.num_nodes)})
    for loss in view_losses(view, scheme, shared):
        if loss.bound == by_victim[loss.victim].bound == "exact":
            assert loss.sensitivity_squared == pytest.approx(by_victim[loss.victim].sensitivity_squared, rel=3e-6)
        else:
            assert loss.sensitivity_squared >= by_victim[loss.victim].non_adaptive_sensitivity.lower * (1 - 1e-6)


RING = gossip.metropolis_hastings("ring:n=5")  # weights 1/3
EDGES = [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]
T = 2


def same(algorithm, model, view):
    by_victim = {loss.victim: loss for loss in privacy.sensitivity_by_victim(algorithm, model, release="none")}
    losses = view_losses(view, algorithm.participation)
    assert {loss.victim for loss in losses} == set(by_victim)
    for loss in losses:
        assert loss.bound == "exact"
        assert loss.sensitivity_squared == pytest.approx(by_victim[loss.victim].sensitivity_squared, rel=3e-6)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_hub_that_has_no_weight_of_its_own_by_hand(rounds):
    """w_ij = 1 / max(degree) with 1 - sum(w) on the diagonal, which for a hub is the rounding of 0."""
    G = nx.star_graph(6)
    exact = np.array([[Fraction(0)] * 7 for _ in range(7)])
    for i, j in G.edges:
        exact[i, j] = exact[j, i] = Fraction(1, max(G.degree[i], G.degree[j]))
    floats = exact.astype(float)
    floats += np.diag(1 - floats.sum(axis=1))
    exact += np.diag(1 - exact.sum(axis=1))
    assert floats[0, 0] != 0
    W, identity, R = gossip.from_array(floats), np.diag([Fraction(1)] * 7), T * rounds
    powers = [functools.reduce(np.dot, [exact] * k, identity) for k in range(R)]
    ages = np.subtract.outer(np.arange(R), rounds * np.arange(T))
    messages = np.block([[powers[age] if age >= 0 else 0 * identity for age in row] for row in ages])
    algorithm = algorithms.dp_dsgd(Dynamics(W, gossip_rounds=rounds), EveryStep(T))
    seen, attacks = messages[oracles.received(W, R, [1]).ravel()], np.arange(7) == 1
    by_hand = View(seen, seen, num_nodes=7, known_gradients=attacks, known_noise=np.tile(attacks, T))
    same(algorithm, trust.PNDP([1]), by_hand)
    losses = privacy.sensitivity_by_victim(algorithm, trust.PNDP([1]), release="none")
    assert all(loss.bound == "exact" for loss in losses)


def models_of(algorithm):
    unit = np.eye(algorithm.noise.shape[1])
    return algorithm.models_from_gradients().to_dense(), algorithm.models_from_noise() @ unit


def steps_of(case):
    per_step = len(case.algorithm.rounds) // case.algorithm.num_steps
    return np.minimum(case.round_of_row // per_step, case.algorithm.num_steps - 1)


@given(200, case=view_cases(exact=True), data=st.data())
def test_with_its_models_a_bare_view_is_adaptive_where_that_of_its_algorithm_is(case, data):
    algorithm = case.algorithm
    model = case.model.view(algorithm, case.honest[0] if case.honest else 0, release=case.release)
    known = np.isin(np.arange(algorithm.noise.shape[1]), case.known_noise)
    options = {"num_nodes": algorithm.num_nodes, "known_gradients": case.known_gradients, "known_noise": known}
    view = View(case.A, case.A @ case.noising, models=models_of(algorithm), row_steps=steps_of(case), **options)
    assert is_adaptive(view) == is_adaptive(model)
    assert is_adaptive(View(case.A, case.B, **options)) == (algorithm.num_steps == 1)  # without them one step is
    rows = len(case.A)
    later = steps_of(case) + np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    later = np.minimum(later, algorithm.num_steps - 1).astype(int)
    delayed = View(case.A, case.B, models=models_of(algorithm), row_steps=later, **options)
    assert is_adaptive(view) or not is_adaptive(delayed)  # who sees rows later knows no more models


def test_models_and_times_decide_what_is_adaptive():
    encoder = np.array([[1.0, 0, 0], [0.5, 1, 0], [0.25, 0.5, 1]])
    algorithm = algorithms.mf_dsgd(Dynamics(gossip.from_array(np.full((2, 2), 0.5))), EveryStep(3), encoder)
    W_T, _ = oracles.gossip_messages(algorithm.dynamics.gossip, 3)
    N, times = oracles.local_noising(np.stack([encoder] * 2)), np.repeat(np.arange(3), 2)
    seen = View(W_T, W_T @ N, num_nodes=2, models=models_of(algorithm), row_steps=times)
    gram = encoder.T @ encoder
    for loss in view_losses(seen, EveryStep(3)):
        assert loss.adaptive
        assert loss.adaptive_sensitivity_squared == loss.sensitivity_squared == pytest.approx(gram.sum(), rel=1e-6)
    at_the_end = View(W_T, W_T @ N, num_nodes=2, models=models_of(algorithm), row_steps=[2] * 6)
    assert not is_adaptive(at_the_end)
    first, second = models_of(algorithm)[0][:4, :4], models_of(algorithm)[1][:4, :4]
    for steps, expected in (([0, 0, 1, 1], True), ([1, 1, 1, 1], False), ([0, 1, 1, 1], False)):
        short = View(W_T[:4, :4], (W_T @ N)[:4, :4], num_nodes=2, models=(first, second), row_steps=steps)
        assert is_adaptive(short) == expected
    own_noise = models_of(algorithm)[1].copy()
    own_noise[2, 0] += 1.0  # in the second model of node 0 alone: noise that no message has by itself
    other = View(W_T, W_T @ N, num_nodes=2, models=(models_of(algorithm)[0], own_noise), row_steps=times)
    assert not is_adaptive(other)
    assert is_adaptive(View(W_T, W_T @ N, num_nodes=2, models=(models_of(algorithm)[0], own_noise), row_steps=times,
                            known_noise=np.arange(6) == 0))  # fmt: skip
    hidden = View(W_T[1::2], (W_T @ N)[1::2], num_nodes=2, models=models_of(algorithm), row_steps=[0, 1, 2])
    assert not is_adaptive(hidden)
    combined = View(W_T[1::2], (W_T @ N)[1::2], num_nodes=2, models=models_of(algorithm), row_steps=[0, 1, 2],
                    known_noise=np.ones(6, bool), known_combinations=np.ones((1, 6)))  # fmt: skip
    assert not is_adaptive(combined)  # gradients in a known combination are not known one by one


@each(
    "models, row_steps, text",
    (np.zeros((4, 4)), None, "models must be two matrices"),
    ((np.zeros((4, 4)), np.zeros((4, 4))), None, "with models, row_steps must give"),
    ((np.zeros((4, 4)), np.zeros((4, 3))), [0, 0, 1, 1], r"models\[1\] must have shape"),
    ((np.zeros((2, 4)), np.zeros((4, 4))), [0, 0, 1, 1], r"models\[0\] must have shape"),
    ((np.eye(4), np.zeros((4, 4))), [0, 0, 1, 1], "gradients of earlier steps alone"),
    ((np.eye(4, k=-1), np.zeros((4, 4))), [0, 0, 1, 1], "gradients of earlier steps alone"),
    ((np.zeros((4, 4)), np.zeros((4, 4))), [0, 0, 1, 0], "got step 0 for row 3, which holds a gradient of step 1"),
    ((np.zeros((4, 4)), np.zeros((4, 4))), [0, 0, 1, 2], "row_steps must be 4 steps below 2"),
    ((np.zeros((4, 4)), np.zeros((4, 4))), [0.0, 0, 1, 1], "row_steps must be 4 steps below 2"),
)
def test_models_that_do_not_fit(models, row_steps, text):
    refuses(text, View, np.eye(4), np.eye(4), num_nodes=2, models=models, row_steps=row_steps)


def test_the_average_of_all_messages_is_not_proven_adaptive():
    """Its A and B are those of the complete graph, where it is, and of the ring, where gradients see more."""
    ring, full = gossip.metropolis_hastings("ring:n=4"), gossip.from_array(np.full((4, 4), 0.25))
    views = []
    for W in (ring, full):
        messages, _ = oracles.gossip_messages(W, 2)
        views.append(messages.reshape(2, 4, 8).mean(axis=1))
    assert np.array_equal(*views)
    (loss, *_) = view_losses(View(views[0], views[0], num_nodes=4), EveryStep(2))
    assert not loss.adaptive
    assert loss.adaptive_sensitivity_squared == math.inf
    assert "do not say at which models" in loss.adaptive_sensitivity.why
    assert loss.sensitivity_squared == pytest.approx(0.5)


def test_victims_and_participation_by_node():
    by_node = ParticipationByNode([Single(2), EveryStep(2), Single(2)])
    view = View(np.eye(6), np.eye(6), num_nodes=3, known_gradients=np.array([True, False, False]))
    assert [loss.victim for loss in view_losses(view, by_node)] == [1, 2]
    assert [round(loss.sensitivity_squared, 6) for loss in view_losses(view, by_node)] == [2.0, 1.0]
    by_victim = view_losses(view, by_node, [2, 0])
    assert [(loss.victim, loss.sensitivity_squared < math.inf) for loss in by_victim] == [(0, False), (2, True)]
    assert "knows the gradient" in by_victim[0].non_adaptive_sensitivity.why
    partly = View(np.eye(6), np.eye(6), num_nodes=3, known_gradients=np.array([[False] * 3, [True, False, False]]))
    assert [loss.sensitivity_squared for loss in view_losses(partly, Explicit([[0]], 2))] == pytest.approx([1.0] * 3)
    assert view_losses(partly, EveryStep(2))[0].sensitivity_squared == math.inf
    touched = View(np.eye(6), np.eye(6), num_nodes=3, known_combinations=[[1, 1, 0, 0, 0, 0]])
    assert [loss.sensitivity_squared < math.inf for loss in view_losses(touched, EveryStep(2))] == [False, False, True]


def test_the_content_hash_is_of_all_that_a_view_says():
    A, options = np.eye(4), {"num_nodes": 2}
    models = {"models": (np.zeros((4, 4)), np.zeros((4, 4))), "row_steps": [0, 0, 1, 1]}
    views = [
        View(A, A, **options), View(A, A), View(2 * A, A, **options), View(A, 2 * A, **options),
        View(A, A, **options, known_gradients=[True, False]),
        View(A, A, **options, known_noise=[True, False, False, False]),
        View(A, A, **options, known_combinations=[[1, 0, 0, 0]]), View(A, A, **options, **models),
        View(A, A, **options, **(models | {"row_steps": [0, 1, 1, 1]})), View(as_fractions(A / 3), A, **options),
    ]  # fmt: skip
    assert len({view.content_hash for view in views}) == len(views)
    for make in (sp.csr_array, aslinearoperator):
        assert View(make(A), make(A), **options).content_hash == views[0].content_hash


def test_the_view_of_a_trust_model_is_a_view():
    algorithm = algorithms.dp_dsgd(Dynamics(RING), Cyclic(2, 2))
    of_algorithm = privacy.sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")
    view = trust.PNDP([0]).view(algorithm, 1, release="none")
    assert view.content_hash != trust.PNDP([1]).view(algorithm, 0, release="none").content_hash
    losses = view_losses(view, algorithm.participation)
    assert [loss.victim for loss in losses] == [loss.victim for loss in of_algorithm]
    for loss, expected in zip(losses, of_algorithm, strict=True):
        assert loss.sensitivity_squared == pytest.approx(expected.sensitivity_squared, rel=1e-9)


def test_what_does_not_fit():
    view = View(np.eye(4), np.eye(4), num_nodes=2)
    for given_view, scheme, options, text in (
        (np.eye(4), EveryStep(2), {}, "view must be a View"),
        (view, None, {}, "participation must be"),
        (view, EveryStep(3), {}, "participation must have the 2 steps of the view"),
        (view, EveryStep(2), {"victims": [2]}, "victim must be a node index below 2"),
        (view, EveryStep(2), {"victims": 1}, "victims must be a list"),
        (view, EveryStep(2), {"method": "fast"}, "method"),
        (view, EveryStep(2), {"unit": "group"}, "unit"),
        (view, ParticipationByNode([Single(2)] * 3), {}, "3"),
        (View(np.eye(4), np.eye(4), num_nodes=2, known_gradients=np.ones(2, bool)), EveryStep(2), {}, "no victim"),
    ):
        refuses(text, view_losses, given_view, scheme, **options)
    unsupported("no public patterns", lambda: view_losses(view, PoissonSampling(0.5, 2)))
    refuses("known_noise must be a boolean mask", View, np.eye(2), np.eye(2), known_noise=np.ones(3, dtype=bool))
    refuses("entries that are 0 or at least 1e-300", lambda: View([[Fraction(1, 10**320)]], [[1]]))
    refuses("finite", lambda: View([[Fraction(1), math.nan]], [[1]]))
    refuses("next to fractions", as_fractions, [[2**0.5]])
    refuses("float64", as_fractions, np.array([[0.1]], dtype=np.float32), decimals=True)


@given(100, st.lists(st.fractions(-1000, 1000, max_denominator=4096), min_size=1, max_size=8))
def test_floats_stand_for_the_fractions_that_they_round(fractions):
    floats = np.array([[float(x) for x in fractions]])
    assert as_fractions(floats)[0].tolist() == [x if Fraction(float(x)) != x else Fraction(float(x)) for x in fractions]


def test_decor_by_hand():
    W_T, _ = gossip_messages(RING, T)
    noise = np.kron(np.eye(T), pairwise_factor(EDGES, 5, 0.5, 2.0))
    algorithm = algorithms.decor(Dynamics(RING), EveryStep(T), sigma_ldp=0.5, sigma_cor=2.0)
    same(algorithm, trust.Eavesdropper(), View(W_T, W_T @ noise, num_nodes=5))
    holders = np.tile([u == 0 for u in range(5)] + [0 in edge for edge in EDGES], T)
    known = np.arange(5) == 0
    colluder = View(W_T, W_T @ noise, num_nodes=5, known_gradients=known, known_noise=holders)
    same(algorithm, trust.Colluding((0,)), colluder)


@pytest.mark.parametrize("rounds", [1, 3])
def test_muffliato_and_pndp_by_hand(rounds):
    algorithm = algorithms.muffliato(Dynamics(RING), EveryStep(T), gossip_rounds=rounds)
    W_T, _ = (as_fractions(M) for M in gossip_messages(RING, T, gossip_rounds=rounds))
    same(algorithm, trust.LDP(), View(W_T, W_T, num_nodes=5))
    seen = W_T[received(RING, T * rounds, [0]).ravel()]
    zero = np.arange(5) == 0
    attacked = View(seen, seen, num_nodes=5, known_gradients=zero, known_noise=np.tile(zero, T))
    same(algorithm, trust.PNDP([0]), attacked)


def test_zip_dl_by_hand():
    """Path of three nodes: node a draws Y to itself and its neighbours; what it sends is x + (I - u w^T) Y."""
    W, T = gossip.metropolis_hastings("path:n=3"), 2
    algorithm = algorithms.zip_dl(Dynamics(W), EveryStep(T))
    dense, pairs = W.dense(), [(a, b) for a in range(3) for b in range(3) if W.dense()[b, a]]
    to_messages = np.array([[float(a == u) for u in range(3)] for a, _ in pairs])
    averaging = np.array([[dense[i, j] * (to == i) for j, to in pairs] for i, _ in pairs])
    spread = np.zeros((len(pairs), len(pairs)))
    for a in range(3):
        mine = [k for k, (sender, _) in enumerate(pairs) if sender == a]
        w = np.array([dense[pairs[k][1], a] for k in mine])
        spread[np.ix_(mine, mine)] = np.eye(len(mine)) - np.outer(1 / (len(mine) * w), w)
    blocks = [
        [np.linalg.matrix_power(averaging, t - s) if t >= s else 0 * averaging for s in range(T)] for t in range(T)
    ]
    messages = np.block(blocks)
    A, B = -messages @ np.kron(np.eye(T), to_messages), -messages @ np.kron(np.eye(T), spread)
    sent = np.tile([a != b for a, b in pairs], T)
    same(algorithm, trust.Eavesdropper(), View(as_fractions(A[sent]), as_fractions(B[sent]), num_nodes=3))

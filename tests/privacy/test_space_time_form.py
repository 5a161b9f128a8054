"""Losses under noise over time and nodes against views written out, and against rational numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from exact import inverse
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, st, unsupported

from mfdl import Cyclic, Dynamics, EveryStep, gossip, trust
from mfdl.algorithms.gossip_sgd import decentralized
from mfdl.factorization.encoders import Dense
from mfdl.noise import JointNoise, SpatioTemporalNoise
from mfdl.privacy.forms import view_gram, view_grams
from mfdl.privacy.forms.separable import encoder_gram, inverse_factor
from mfdl.privacy.gram_sensitivity import sensitivities
from mfdl.testing import gossip_matrices, integer_encoders, oracles

KINDS = ("shared", "per column", "joint", "block")


@st.composite
def noises(draw, num_nodes, kinds=KINDS, max_steps=3, *, columns=None):
    """Small integers: singular factors, missing noise and columns of several holders included."""
    kind, T, n = draw(st.sampled_from(kinds)), draw(st.integers(1, max_steps)), num_nodes
    if kind == "joint":
        return JointNoise(draw(integer_encoders(size=T * n, largest=2)), T, n)
    if kind == "block":  # full inside a step, in groups of nodes that share noise
        group = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
        within = np.kron(np.ones((T, T)), group[:, None] == group)
        above = np.array(draw(st.lists(st.integers(-2, 2), min_size=n * n, max_size=n * n)), dtype=float)
        U = np.eye(n) + np.triu(above.reshape(n, n), 1)
        C = (draw(integer_encoders(size=T * n, largest=2)) * within) @ (np.kron(np.eye(T), U) * within)
        return JointNoise(C, T, n, holders=draw(st.sampled_from([None, "use"])))
    m = columns or draw(st.integers(1, n + 2))
    F = np.array(draw(st.lists(st.integers(-2, 2), min_size=n * m, max_size=n * m)), dtype=float).reshape(n, m)
    more = draw(st.lists(st.booleans(), min_size=n * m, max_size=n * m))
    holders = (F.T != 0) | np.array(more).reshape(m, n)
    C = np.stack([draw(integer_encoders(size=T, largest=3)) for _ in range(1 if kind == "shared" else m)])
    return SpatioTemporalNoise(C[0] if kind == "shared" else C, F, holders, n)


def algorithm_with(noise, gossip_matrix=None, **dynamics):
    W = gossip_matrix or gossip.metropolis_hastings(f"complete:n={noise.num_nodes}")
    return decentralized("test", Dynamics(W, **dynamics), Cyclic(1, noise.num_steps), noise)


def exact_noise(noise):
    """N over the rationals: C^-1 without rounding, F the floats that they are; by the definition."""
    T, n = noise.num_steps, noise.num_nodes
    if isinstance(noise, JointNoise):
        return inverse(oracles.rational(noise.encoder.array))
    F, columns = oracles.rational(noise.factor.toarray()), noise.factor.shape[1]
    E = [inverse(oracles.rational(noise.column_encoder(k))) for k in range(columns)]
    return [
        [F[i][k] * E[k][t][s] for s in range(T) for k in range(columns)] for t in range(T) for i in range(n)
    ]  # fmt: skip


def exact_answer(noise, known, node):
    """(X_u, leaks) from the injections alone: known a mask over (T, columns)."""
    B = [[Fraction(0) if k else x for x, k in zip(row, known.ravel(), strict=True)] for row in exact_noise(noise)]
    A = oracles.rational(oracles.node_columns(np.eye(noise.shape[0]), node, noise.num_nodes))
    return oracles.exact_view_gram(A, B), oracles.exact_leaks(A, B)


def has_residue(noise):
    exact = np.array(exact_noise(noise), dtype=object)
    return bool(((exact == 0) & (noise.matmat(np.eye(noise.shape[1])) != 0)).any())


def held_by(noise, nodes):
    known = noise.holders().toarray()[:, list(nodes)].any(axis=1)
    return np.tile(known, (noise.num_steps, 1))


@st.composite
def seen_by_all(draw, kinds=KINDS):
    """(noise, trust model, known columns, victims)."""
    n = draw(st.integers(1, 3))
    noise = draw(noises(n, kinds))
    who = draw(st.sampled_from(["ldp", "eavesdropper", "colluding"]))
    if who == "ldp":  # what one node alone holds, and adds, is unknown
        known = np.tile(noise.holders().toarray().sum(axis=1) != 1, (noise.num_steps, 1))
        return noise, trust.LDP(), known, range(n)
    inside = draw(st.sets(st.integers(0, n - 1), max_size=n - 1)) if who == "colluding" else set()
    model = trust.named("colluding", colluders=sorted(inside))
    return noise, model, held_by(noise, inside), [u for u in range(n) if u not in inside]


@given(150, case=seen_by_all())
def test_all_messages_seen_over_the_rationals(case):
    """Grams within their stated errors of the exact ones, leaks exactly the leaks, sensitivities never below."""
    noise, model, known, victims = case
    algorithm = algorithm_with(noise)
    view, scheme = model.view(algorithm, victims[0]), EveryStep(noise.num_steps)
    grams = view_grams(view, list(victims))
    for u, gram, sensitivity in zip(victims, grams, sensitivities(grams, scheme, nodes=victims), strict=True):
        exact, leaks = exact_answer(noise, known, u)
        if any(leaks):
            assert math.isinf(sensitivity.squared)
            assert gram.why
            assert_array_equal(gram.leaks | math.isinf(gram.inflation), leaks if gram.form == "dense form" else True)
            continue
        if math.isinf(gram.inflation) and has_residue(noise):  # which may be a faint share of a column
            assert math.isinf(sensitivity.squared)
            assert not sensitivity.exact
            continue
        assert not gram.leaks.any()
        assert gram.inflation < 1 + 1e-9
        assert Fraction(sensitivity.squared) >= oracles.largest_signed_sum(exact)
        assert_allclose(gram.matrix, oracles.to_float(exact), rtol=1e-7, atol=1e-9)
        slack = float(gram.inflation - 1) * np.abs(gram.matrix).max()
        assert (np.abs(gram.matrix - oracles.to_float(exact)) <= gram.entry_error * (1 + 1e-9) + slack + 1e-15).all()


@given(60, data=st.data(), momentum=st.sampled_from([0.0, 0.5]), kinds=st.sampled_from(KINDS))
def test_the_gossip_drops_out(data, momentum, kinds):
    W = data.draw(gossip_matrices(max_nodes=3))
    n = W.num_nodes
    noise = data.draw(noises(n, (kinds,), max_steps=2))
    algorithm = algorithm_with(noise, W, learning_rate=0.5, momentum=momentum)
    square = kinds in ("joint", "block") or noise.factor.shape[0] == noise.factor.shape[1]
    A, _ = oracles.gossip_messages(W, noise.num_steps, rate=0.5)
    if momentum:  # the injection of step s enters the step t >= s with momentum^(t - s)
        buffer = momentum ** np.subtract.outer(np.arange(noise.num_steps), np.arange(noise.num_steps)).clip(0)
        A = A @ np.kron(np.tril(buffer), np.eye(n))
    for u in range(n):
        gram = view_gram(algorithm, trust.Eavesdropper(), u)
        X, outside = oracles.pinv_gram(oracles.node_columns(A, u, n), A @ noise.to_dense())
        assert gram.leaks.any() == outside.any()
        if not outside.any():
            assert_allclose(gram.matrix, X, rtol=1e-6, atol=1e-7)
        if kinds != "per column":
            assert gram.form == "all messages seen"
        elif not square:
            assert gram.form == "dense form"
        elif np.linalg.matrix_rank(noise.factor.toarray()) == n:
            assert gram.form == "all messages seen"


@given(80, data=st.data(), released=st.sampled_from(["none", "all", "average"]))
def test_hidden_messages_go_through_the_dense_form(data, released):
    """PNDP and Central against their views written out; released models are further rows."""
    W = data.draw(gossip_matrices(max_nodes=3, min_nodes=2))
    n = W.num_nodes
    noise = data.draw(noises(n, max_steps=2))
    T, algorithm = noise.num_steps, algorithm_with(noise, W, learning_rate=0.5)
    messages, final = oracles.gossip_messages(W, T, rate=0.5)
    last = {"none": np.zeros((0, T * n)), "all": final, "average": final.mean(axis=0, keepdims=True)}[released]
    N = noise.to_dense()
    attacker, victim = data.draw(st.permutations(range(n)))[:2]
    hidden = N * ~held_by(noise, [attacker]).ravel()
    rows = messages[oracles.received(W, T, [attacker]).ravel()]
    average = messages.reshape(T, n, T * n).mean(axis=1)
    for model, A, B in ((trust.PNDP([attacker]), rows, hidden), (trust.Central(), average, N)):
        A = np.vstack([A, last])
        seen = np.where(np.abs(A @ B) > 1e-14 * (np.abs(A) @ np.abs(B)), A @ B, 0.0)  # noise that cancels is none
        X, outside = oracles.pinv_gram(oracles.node_columns(A, victim, n), seen)
        gram = view_grams(model.view(algorithm, victim, release=released), [victim])[0]
        leaks = gram.leaks | math.isinf(gram.inflation)
        if model.name == "pndp" and gram.form != "dense form":
            assert gram.form == "all messages seen"  # the attacker receives all there is
        if gram.upper and leaks.any():  # the rank of the view cannot be told in float64
            continue
        if outside.any() or leaks.any():
            assert outside.any() == leaks.any()
            continue
        if gram.upper and has_residue(noise):
            assert (gram.matrix.diagonal() >= X.diagonal() * (1 - 1e-6)).all()
            continue
        assert_allclose(gram.matrix, X, rtol=1e-6, atol=1e-7)


def test_columns_known_in_some_steps_only():
    rng = np.random.default_rng(5)
    C, F = np.array([[1.0, 0.0], [-0.5, 2.0]]), rng.integers(-3, 4, (2, 4)).astype(float)
    known = np.array([[True, False, False, False], [False, False, True, False]])
    for noise in (
        SpatioTemporalNoise(C, F, np.ones((4, 2), dtype=bool), 2),
        SpatioTemporalNoise(np.stack([C, 2 * C, np.eye(2), C.T * np.eye(2)]), F, np.ones((4, 2), dtype=bool), 2),
    ):
        model = trust.TrustModel.from_masks(seen=np.ones(2, dtype=bool), known_noise=known, release="none")
        gram = view_gram(algorithm_with(noise), model, 0)
        assert gram.form == "dense form"
        X, _ = oracles.pinv_gram(oracles.node_columns(np.eye(4), 0, 2), noise.to_dense() * ~known.ravel())
        assert_allclose(gram.matrix, X, rtol=1e-9)


def test_a_view_without_a_form_that_is_too_large_is_refused():
    T, n = 150, 80
    F = np.ones((n, n + 1))
    noise = SpatioTemporalNoise(np.stack([np.eye(T)] * (n + 1)), F, np.ones((n + 1, n), dtype=bool), n)
    unsupported("no structured form", lambda: view_gram(algorithm_with(noise), trust.Eavesdropper(), 0))


def ill_conditioned(seed, n=4, weak=1e-7):
    """Rows that are almost dependent, so that columns of F^-1 cancel."""
    rng = np.random.default_rng(seed)
    F = rng.standard_normal((n, n))
    F[-1] = F[0] + weak * rng.standard_normal(n)
    return F


def test_the_inverse_factor_is_as_close_as_it_says():
    for seed in range(20):
        F = ill_conditioned(seed)
        G, bound = inverse_factor(F)
        exact = inverse(oracles.rational(F))
        off = np.abs((np.array(exact) - np.array(oracles.rational(G))).astype(float))
        assert (off <= bound[:, None] * np.linalg.norm(G, axis=0)).all()
        assert bound.max() < 1e-3
        assert np.abs(oracles.to_float(exact)).max() > 1e5
    assert inverse_factor(np.ones((2, 2))) is None
    assert inverse_factor(np.array([[1.0, 1.0], [1.0, 1.0 + 2**-52]])) is None
    assert inverse_factor(np.full((1, 1), 5e-324)) is None  # its inverse is infinite in float64


def test_a_strong_encoder_on_a_weak_column_is_not_under_reported():
    """X = sum_k g_k^2 C_k^T C_k over the rationals: what the inverse of F gets wrong is within the errors.

    Node 0 hardly enters column 1 of F^-1, while its other entries are large, and the encoder of column 1 is 2^40.
    """
    scales, off_axis = [1.0, 2.0**40, 1.0, 1.0], np.array([1.0, 0.0, -1.0, 1.0]) / math.sqrt(3)
    for seed in range(20):
        F = np.random.default_rng(seed).standard_normal((4, 4))
        F -= np.outer(F @ off_axis, off_axis)
        F[-1] = F[0] + 1e-6 * off_axis
        gram = view_gram(algorithm_with(of_one_step(scales, F)), trust.Eavesdropper(), 0)
        assert gram.form == "all messages seen"
        assert upper_end(gram) >= weighted(inverse(oracles.rational(F)), scales)


def test_an_inverse_that_is_off_is_paid_for_column_by_column(monkeypatch):
    """With G = I for F^-1 = [[1, 0], [-d, 1]], ||G F - I|| = d, and X = 1 + (2^20 d)^2: no factor (1 - d)^-2."""
    d, scales = 2.0**-10, [1.0, 2.0**20]
    F = np.array([[1.0, 0.0], [d, 1.0]])
    monkeypatch.setattr(np.linalg, "inv", lambda matrix: np.eye(len(matrix)))
    gram = view_gram(algorithm_with(of_one_step(scales, F)), trust.Eavesdropper(), 0)
    truth = weighted(inverse(oracles.rational(F)), scales)
    assert truth == 1 + 2**20
    assert gram.values == pytest.approx(1)
    assert truth <= upper_end(gram) <= Fraction(1.01) * truth


def of_one_step(scales, F):
    """T = 1 and C_k = scales[k], held by all."""
    return SpatioTemporalNoise(np.reshape(scales, (-1, 1, 1)), F, np.ones(F.T.shape, dtype=bool), len(F))


def weighted(inverse_factor, scales):
    """X of node 0 under `of_one_step`."""
    return sum(row[0] ** 2 * Fraction(scale) ** 2 for row, scale in zip(inverse_factor, scales, strict=True))


def upper_end(gram, t=0):
    """The largest X_tt that the Gram allows for."""
    value, error = (Fraction(float(a[t, t])) for a in (gram.values, gram.errors))
    return (value + error) * Fraction(gram.inflation)


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_injected_may_protect_less_than_its_encoder_says(kind):
    """The loss is that of the N which is injected, here C^-1 with its entries off by up to a thousandth of it."""
    n, T = 2, 2
    C = np.array([[1.0, 0, 0, 0], [-0.5, 2, 0, 0], [0.25, 1, 0.5, 0], [1, -1, 0.5, 1]])
    everybody, F = np.ones((n, n), dtype=bool), np.array([[1.0, 0.5], [-0.5, 1.0]])
    noise = {
        "shared": SpatioTemporalNoise(C[:2, :2], F, everybody, n),
        "per column": SpatioTemporalNoise(np.stack([C[:2, :2], C[2:, 2:]]), F, everybody, n),
        "joint": JointNoise(C, T, n),
        "block": JointNoise(np.kron(np.eye(T), [[1.0, 2.0], [0.5, 2.0]]) @ C, T, n),
    }[kind]
    noise.inverse.setflags(write=True)  # which nobody does by mistake
    noise.inverse[...] *= 1 - 2.0**-10 * np.random.default_rng(0).random(noise.inverse.shape)
    for u in range(n):
        truth = oracles.exact_view_gram(
            oracles.rational(oracles.node_columns(np.eye(T * n), u, n)), oracles.rational(noise.to_dense())
        )
        gram = view_gram(algorithm_with(noise), trust.Eavesdropper(), u)
        assert all(truth[t][t] <= upper_end(gram, t) <= Fraction(1.02) * truth[t][t] for t in range(T))


def test_errors_of_one_encoder_hold_both_roundings():
    C, F = np.array([[1.0, 0.0], [0.3, 0.7]]), np.array([[1.0, 0.1], [0.1, 0.01001]])
    noise = SpatioTemporalNoise(C, F, np.ones((2, 2), dtype=bool), 2)
    gram = view_gram(algorithm_with(noise), trust.Eavesdropper(), 0)
    half, price = encoder_gram(noise.encoder), gram.values[0, 0] / (C.T @ C)[0, 0]
    assert (gram.errors >= price * half.errors).all()
    truth = sum(row[0] ** 2 for row in inverse(oracles.rational(F)))  # [(F F^T)^-1]_00
    off = abs(Fraction(float(price)) - truth)
    assert gram.errors[0, 0] >= float(off) * (C.T @ C)[0, 0]
    assert gram.inflation == half.inflation > 1
    cancelling = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, -1.0, 1.0]])  # columns 0 and 1 are orthogonal
    noise = SpatioTemporalNoise(cancelling, np.eye(2), np.eye(2, dtype=bool), 2)
    gram = view_gram(algorithm_with(noise), trust.LDP(), 0)
    assert gram.values[0, 1] == 0
    assert gram.errors[0, 1] >= encoder_gram(Dense(cancelling)).errors[0, 1] > 0

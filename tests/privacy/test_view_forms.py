"""Every form of the view Gram against dense matrices written by hand, exact rational arithmetic and known numbers."""

import dataclasses
import itertools
import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from _guarantees import sensitivity_of_gram
from numpy.testing import assert_allclose
from vocabulary import assume, given, st

import mfdl_papers as papers
from mfdl import Dynamics, EveryStep, View, algorithms, gossip, trust
from mfdl.noise import CausalNoise
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms import dense_form, range_and_null_space, view_grams
from mfdl.privacy.forms.range_and_null_space import NullSpaceForm, RangeForm
from mfdl.testing import exact_run, exact_view, exact_view_gram, integer_views, oracles, to_float, view_cases

MH = gossip.metropolis_hastings
RING6 = Dynamics(MH("ring:n=6"))
PLAIN = ("independent", "shared", "per node")  # what the structured forms are for


def infinite(gram):
    return math.isinf(gram.inflation) or gram.leaks.any()


def check_against_pinv(case):
    n = case.algorithm.num_nodes
    view = case.model.view(case.algorithm, case.honest[0], release=case.release)
    assert_allclose(view.dense_gradients_by_time(), case.A, atol=1e-12)
    assert_allclose(view.dense_noise(), case.B, atol=1e-12)
    for u, gram in zip(case.honest, view_grams(view, case.honest), strict=True):
        X, leaks = oracles.pinv_gram(oracles.node_columns(case.A, u, n), case.B)
        leaks = leaks | case.known_gradients[:, u]
        if math.isinf(gram.inflation):
            assert leaks.any() or gram.upper
            continue
        assert (gram.leaks == leaks).all()
        if not leaks.any():
            # B has no singular value between 1e-13 and 1e-5 of its largest, so the oracle is right to about 1e-6
            scale = max(1.0, float(np.abs(X).max(initial=0.0)))
            if gram.upper:
                assert np.linalg.eigvalsh(gram.matrix - X)[0] >= -1e-6 * scale
            else:
                assert_allclose(gram.matrix, X, atol=1e-6 * scale)


@given(180, case=st.one_of(view_cases(), view_cases(kinds=("pndp",), noises=PLAIN, max_nodes=6, max_steps=4)))
def test_any_form_is_the_dense_definition(case):
    assume(oracles.clear_rank(case.B))
    check_against_pinv(case)


@given(
    60, n=st.integers(2, 6), T=st.integers(1, 4), bits=st.integers(0, 2**12), varying=st.booleans(),
    released=st.integers(0, 2), seed=st.integers(0, 999),
)  # fmt: skip
def test_range_and_null_space_form_agree(n, T, bits, varying, released, seed):
    """Independent noise, any seen nodes, any step sizes and divisors.

    The null-space form for W and seen nodes that vary in time too, and for combinations of the last messages besides.
    """
    rng = np.random.default_rng(seed)
    weights = rng.random((T, n, n)) * (rng.random((T, n, n)) < 0.7) + np.eye(n)
    if not varying:
        weights[:] = weights[0]
    unknown = np.array([bits >> v & 1 for v in range(n)], dtype=bool)
    seen = np.array([bits >> (6 + v) & 1 for v in range(n)], dtype=bool) | ~unknown
    assume((seen & unknown).any())
    seen = np.tile(seen, (T, 1))
    if varying:
        seen ^= unknown & (rng.random((T, n)) < 0.3)
    weights[~unknown[:, None] & ~seen[:, None, :]] = 0.0  # who attacks sees what it averages
    weights /= weights.sum(axis=2, keepdims=True)
    scale = rng.choice([0.25, 1.0, 3.0], (T, n))
    W = [sp.csr_array(w) for w in weights]
    hidden = unknown & ~seen
    combinations = rng.normal(size=(0 if not varying else min(released, hidden[-1].sum()), n)) * hidden[-1]
    combinations /= np.linalg.norm(combinations, axis=1, keepdims=True)
    null_space = NullSpaceForm(W, hidden, unknown, scale, combinations[:, hidden[-1]])
    A = np.zeros((T, n, T, n))
    for s in range(T):
        product = np.diag(scale[s])
        for t in range(s, T):
            A[t, :, s] = product
            product = weights[t] @ product
    A = A.reshape(T * n, T * n)
    B = oracles.without_noise(A, {t * n + v for t in range(T) for v in np.flatnonzero(~unknown)})
    view, noise = (np.vstack([M[seen.ravel()], combinations @ M[(T - 1) * n :]]) for M in (A, B))
    for u in np.flatnonzero(unknown):
        oracle, _ = oracles.pinv_gram(oracles.node_columns(view, u, n), noise)
        X = null_space.grams(np.array([u]))[0]
        assert_allclose(X, oracle, atol=1e-9)
        assert np.linalg.eigvalsh(oracle - X)[-1] <= T * null_space.absolute_error() + 1e-12
        if not len(combinations):
            form = RangeForm(W, [np.flatnonzero(of_step & unknown) for of_step in seen], unknown, scale, None)
            assert_allclose(form.grams(np.array([u]))[0], X, atol=1e-9)


@pytest.mark.parametrize("memory", [8 * 30, 2**28])
@pytest.mark.parametrize("of_nodes", [False, True])
@pytest.mark.parametrize("rates", [np.full(6, 0.5), 1 / np.arange(1.0, 7.0)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_range_form_of_noise_correlated_in_time_is_its_definition(symmetric, rates, of_nodes, memory, monkeypatch):
    """Any W, one encoder for all nodes or one each, covariances of all steps at once or of few."""
    monkeypatch.setattr(range_and_null_space, "CHUNK_BYTES", memory)
    n, T = 5, 6
    rng = np.random.default_rng(3)
    W, C = rng.random((n, n)), np.tril(rng.random((n, T, T)))
    W /= W.sum(axis=1, keepdims=True)
    sizes = np.arange(1.0, n + 1)
    if symmetric:
        W, sizes = (W + W.T) / 4, np.ones(n)
    inverse = np.linalg.inv(C + np.eye(T))
    inverse = inverse if of_nodes else inverse[0]
    unknown, rows = np.arange(n) > 0, np.array([1, 3])
    form = RangeForm([sp.csr_array(W)] * T, [rows] * T, unknown, np.outer(rates, sizes), inverse)
    A = np.zeros((T, n, T, n))
    for s in range(T):
        for t in range(s, T):
            A[t, :, s] = np.linalg.matrix_power(W, t - s) * rates[s] * sizes
    A = A.reshape(T * n, T * n)[np.tile(np.isin(np.arange(n), rows), T)]
    noise = CausalNoise(np.linalg.inv(inverse), num_steps=T, num_nodes=n).matmat(np.eye(T * n))
    B = (A @ noise) * np.tile(unknown, T)
    for u, gram in zip([1, 2, 4], form.grams(np.array([1, 2, 4])), strict=True):
        oracle, _ = oracles.pinv_gram(oracles.node_columns(A, u, n), B)
        assert_allclose(gram, oracle, rtol=1e-9, atol=1e-9)


def test_messages_that_change_with_the_steps_need_no_dense_matrix():
    changing = gossip.sequence([MH(f"erdos-renyi:n=7,p=0.5,seed={seed}") for seed in range(6)])
    algorithm = algorithms.dp_dsgd(Dynamics(changing), EveryStep(6))
    rarely = algorithms.local_steps(Dynamics(MH("ring:n=7")), EveryStep(6))
    for built, forms in ((algorithm, ("null-space form",)), (rarely, ("null-space form", "range form"))):
        for release in ("none", "all", "average"):
            view = trust.PNDP([0]).view(built, 1, release=release)
            dense = dense_form.DenseForm.from_view(view).grams([1, 3])
            for gram, other in zip(view_grams(view, [1, 3]), dense, strict=True):
                assert gram.form in forms
                assert_allclose(gram.matrix, other.matrix, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("block", [1, 3, 512])
def test_blocks_of_steps_change_nothing(block, monkeypatch):
    algorithm = algorithms.dp_dsgd(Dynamics(MH("ring:n=7")), EveryStep(6))
    view = trust.PNDP([0]).view(algorithm, 1, release="all")
    before = view_grams(view, [1, 3])
    monkeypatch.setattr(range_and_null_space, "BLOCK_ROWS", block)
    monkeypatch.setattr(range_and_null_space, "CHUNK_BYTES", 8 * 36 * 2)
    after = view_grams(view, [1, 3])
    for a, b in zip(before, after, strict=True):
        assert_allclose(a.matrix, b.matrix, rtol=1e-10, atol=1e-14)


@given(300, case=integer_views())
def test_leaks_on_integer_views_are_those_of_exact_ranks(case):
    A, B = case
    exact = oracles.exact_leaks(oracles.rational(A), oracles.rational(B))
    grams = view_grams(View(A, B), [0])[0]
    assert grams.leaks.tolist() == exact  # never a finite number for a leak, never infinity without one
    if not any(exact):
        X = oracles.to_float(oracles.exact_view_gram(oracles.rational(A), oracles.rational(B)))
        assert_bounded(grams, X)
        assert_allclose(grams.matrix, X, rtol=1e-8, atol=1e-8)


def assert_bounded(gram, exact):
    """exact <= inflation * (matrix + E) in the positive semidefinite order for some |E| <= entry_error."""
    excess = np.linalg.eigvalsh(exact - gram.inflation * gram.matrix)[-1]
    assert excess <= gram.inflation * np.abs(gram.entry_error).sum(axis=1).max() + 1e-300


def path(n):
    L = nx.laplacian_matrix(nx.path_graph(n)).toarray().astype(float)
    return gossip.from_array(np.eye(n) - L / 4)


@pytest.mark.parametrize(("n", "rounds"), [(6, 6), (12, 12), (16, 20), (24, 24), (24, 36), (32, 32)])
def test_directions_fainter_than_rounding_are_not_forgotten(n, rounds):
    """After n rounds the end of a path knows every injection: X = 1, though singular values fall below 1e-16."""
    algorithm = algorithms.muffliato(Dynamics(path(n)), EveryStep(1), gossip_rounds=rounds)
    far = n - 1
    messages, _ = oracles.gossip_messages(path(n), 1, gossip_rounds=rounds)
    seen = messages[oracles.received(path(n), rounds, [0]).ravel()]
    exact = oracles.exact_view_gram(
        oracles.rational(seen[:, [far]]), oracles.rational(oracles.without_noise(seen, {0}))
    )
    assert exact == [[1]]
    grams = view_grams(trust.PNDP([0]).view(algorithm, 1, release="none"), range(1, n))[far - 1]
    assert grams.inflation * (grams.matrix[0, 0] + grams.entry_error[0, 0]) >= 1
    loss = sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")[far - 1]
    assert 1 <= loss.sensitivity_squared <= 1 + 1e-9
    # too early for the news to have arrived, nothing is learnt, and nothing made up
    early = algorithms.muffliato(Dynamics(path(n)), EveryStep(1), gossip_rounds=n // 2)
    assert sensitivity_by_victim(early, trust.PNDP([0]), release="none")[far - 1].sensitivity_squared == 0


def test_a_bare_view_of_undecided_rank_is_infinite_where_it_is_too_large_for_rational_arithmetic(monkeypatch):
    messages, _ = oracles.gossip_messages(path(32), 1, gossip_rounds=32)
    seen = messages[oracles.received(path(32), 32, [0]).ravel()]
    view = View(seen, oracles.without_noise(seen, {0}), num_nodes=32)
    exact = view_grams(view, [31])[0]
    assert exact.form == "rational arithmetic"
    assert (exact.matrix, exact.leaks.any()) == (1, False)
    monkeypatch.setattr(dense_form, "MAX_RATIONAL_ROWS", 0)
    grams = view_grams(view, [31])[0]
    assert grams.inflation == math.inf
    assert "cannot be told in float64" in grams.why
    loss = sensitivity_of_gram(grams, EveryStep(1))
    assert (loss.squared, loss.exact, loss.lower) == (math.inf, False, 0.0)


@pytest.mark.parametrize("edges", [None, [1, -1, 1, -1, -1]])
def test_pairwise_noise_alone_on_a_ring_of_five_protects_nothing(edges):
    """pinv says (1 - 1/5) / ... = 0.4 a step; the sum of all messages has no noise."""
    dynamics, T = Dynamics(MH("ring:n=5")), 2
    algorithm = algorithms.decor(dynamics, EveryStep(T), sigma_ldp=0.0, sigma_cor=1.0, orientation=edges)
    for model in (trust.Eavesdropper(), trust.LDP(), trust.Colluding((0,)), trust.FullCollusion(), trust.Coalitions(1)):
        for loss in sensitivity_by_victim(algorithm, model):
            assert loss.sensitivity_squared == loss.adaptive_sensitivity_squared == math.inf
    F = oracles.pairwise_factor([(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)], 5, 0.0, 1.0)
    X, leaks = oracles.pinv_gram(np.eye(5)[:, :1], F)
    assert X[0, 0] == pytest.approx(0.4)
    assert leaks.all()
    assert view_grams(View(np.eye(5)[:, :1], F), [0])[0].leaks.all()


def user_level(model, algorithm, victim, release="none"):
    grams = view_grams(model.view(algorithm, victim, release=release), [victim])[0]
    return math.inf if infinite(grams) else float(np.abs(grams.matrix).sum())


@pytest.mark.parametrize("release", [None, "all", "average"])
@pytest.mark.parametrize("model", [trust.LDP(), trust.Eavesdropper(), trust.PNDP([0])])
def test_released_models_undo_zip_dl(model, release):
    """With the messages a sends, its released model is its own half step plus known terms; averages have no noise."""
    algorithm = algorithms.zip_dl(RING6, EveryStep(2))
    if release == "average" or model.name != "pndp":
        assert user_level(model, algorithm, 2, release) == math.inf
    expected = "all" if model.name == "ldp" else release  # private noise in an average is not separate: it is all
    assert sensitivity_by_victim(algorithm, model, release=release)[1].release == (expected or "all")


@pytest.mark.parametrize("graph", ["ring:n=6", "star:n=5", "complete:n=4", "path:n=5"])
@pytest.mark.parametrize("q", [0, 1, 2])
def test_decor_is_its_published_accountant(graph, q):
    T, noise = 3, {"sigma_ldp": 0.7, "sigma_cor": 1.9}
    algorithm = algorithms.decor(Dynamics(MH(graph)), EveryStep(T), **noise)
    worst = max(loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, trust.Coalitions(q)))
    # slope = mu^2 / 2 with record shift 2 C
    paper = papers.decor_accountant(graph, num_colluders=q, num_steps=T, **noise).value
    assert worst == pytest.approx(paper / 2, rel=1e-10)
    inside = tuple(range(q))
    victims = papers.decor_victims(graph, [f"#{i}" for i in inside], num_steps=T, **noise).value
    model = trust.named("colluding", colluders=inside)
    losses = {v.victim: v for v in sensitivity_by_victim(algorithm, model, victims=range(algorithm.num_nodes))}
    assert_allclose([losses[u].sensitivity_squared for u in range(algorithm.num_nodes)], victims / 2, rtol=1e-10)
    assert all(loss.adaptive for loss in losses.values())


@pytest.mark.parametrize("attackers", [(0,), (1, 3)])
@pytest.mark.parametrize("release", ["none", "average", "all"])
def test_appended_rows_for_known_noise_are_zeroed_columns(attackers, release):
    """DECOR under PNDP, with the attackers' own noise and secrets as rows of their own."""
    W, T, n = MH("ring:n=5"), 2, 5
    edges = [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]
    algorithm = algorithms.decor(Dynamics(W), EveryStep(T), sigma_ldp=0.5, sigma_cor=2.0)
    messages, final = oracles.gossip_messages(W, T)
    rows = [messages[oracles.received(W, T, attackers).ravel()]]
    if release != "none":
        rows.append(final if release == "all" else final.mean(axis=0, keepdims=True))
    A = np.vstack(rows)
    B = A @ np.kron(np.eye(T), oracles.pairwise_factor(edges, n, 0.5, 2.0))
    holders = [{i} for i in range(n)] + [set(edge) for edge in edges]
    known = {t * len(holders) + c for t in range(T) for c, who in enumerate(holders) if who & set(attackers)}
    honest = [u for u in range(n) if u not in attackers]
    grams = view_grams(trust.PNDP(attackers).view(algorithm, honest[0], release=release), honest)
    for u, gram in zip(honest, grams, strict=True):
        appended, _ = oracles.pinv_gram(*oracles.append_known_noise(oracles.node_columns(A, u, n), B, known))
        zeroed, _ = oracles.pinv_gram(oracles.node_columns(A, u, n), oracles.without_noise(B, known))
        assert_allclose(appended, zeroed, atol=1e-9)
        assert_allclose(gram.matrix, zeroed, atol=1e-9)


def test_forms_for_hidden_messages_are_used_for_plain_gossip_only():
    """Half of the state is forgotten before it is sent (weight decay, say): no structured form may ignore that."""
    base = algorithms.dp_dsgd(Dynamics(MH("path:n=3")), EveryStep(3))
    half = dataclasses.replace(base.rounds[0], message_from_state=sp.csr_array(0.5 * np.eye(3)))
    algorithm = dataclasses.replace(base, rounds=(half,) * 3)
    W = MH("path:n=3").dense()
    rows = np.zeros((3, 3, 3, 3))
    for s in range(3):
        for t in range(s, 3):
            rows[t, :, s] = np.linalg.matrix_power(0.5 * W, t - s)
    A = rows.reshape(9, 9)[[1, 4, 7]]  # the end of a path hears the middle
    grams = view_grams(trust.PNDP([0]).view(algorithm, 1, release="none"), [1, 2])
    for u, gram in zip((1, 2), grams, strict=True):
        X, _ = oracles.pinv_gram(oracles.node_columns(A, u, 3), oracles.without_noise(A, {0, 3, 6}))
        assert_allclose(gram.matrix, X, atol=1e-10)


def test_noise_of_very_unequal_steps_falls_back_to_the_dense_form():
    C = np.diag([1.0, 1e-9, 1.0])
    C[2, 1] = 0.3
    algorithm = algorithms.mf_dsgd(RING6, EveryStep(3), C)
    view = trust.PNDP([0]).view(algorithm, 1, release="none")
    grams = view_grams(view, [1])[0]
    assert (grams.form, infinite(grams)) == ("dense form", False)
    loss = sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")
    assert all(x.sensitivity_squared <= x.adaptive_sensitivity_squared for x in loss)


def test_zero_rows_and_no_rows():
    assert view_grams(View(np.zeros((2, 3)), np.zeros((2, 1))), [0])[0].matrix.tolist() == np.zeros((3, 3)).tolist()
    algorithm = algorithms.dp_dsgd(RING6, EveryStep(2))
    grams = view_grams(trust.TrustModel.from_masks().view(algorithm, 0, release="none"), [0, 1])
    assert all(not gram.matrix.any() and not infinite(gram) for gram in grams)
    no_noise = algorithms.dsgd(RING6, EveryStep(2))
    assert infinite(view_grams(trust.PNDP([0]).view(no_noise, 1), [1])[0])
    far = view_grams(trust.PNDP([0]).view(no_noise, 1, release="none"), [3])[0]
    assert not infinite(far)  # two steps carry nothing three hops far


def test_the_loss_grows_without_bound_as_the_noise_loses_rank():
    """Sigma + t I, t -> 0: the limit of the regular cases is the infinite one, from below."""
    dynamics = Dynamics(MH("ring:n=5"))
    before = 0.0
    for local in 10.0 ** -np.arange(1, 17):
        algorithm = algorithms.decor(dynamics, EveryStep(1), sigma_ldp=local, sigma_cor=1.0)
        loss = sensitivity_by_victim(algorithm, trust.Eavesdropper())[0].sensitivity_squared
        eigenvalues = 2 - 2 * np.cos(2 * np.pi * np.arange(5) / 5)
        truth = float(np.mean(1 / (local**2 + eigenvalues)))
        assert loss >= truth * (1 - 1e-9)
        assert loss >= before
        assert math.isinf(loss) or local > 1e-15
        before = loss
    assert before == math.inf


@pytest.mark.parametrize("faint", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-18, 0.0])
def test_noise_near_the_tolerance_is_never_overestimated(faint):
    """The difference of two rows shows the gradient with noise of std `faint`."""
    A, B = np.array([[1.0], [0.0]]), np.array([[1.0, faint], [1.0, 0.0]])
    loss = sensitivity_of_gram(view_grams(View(A, B), [0])[0], EveryStep(1)).squared
    assert loss >= (1 / faint**2 if faint else math.inf) * (1 - 1e-9)


@pytest.mark.parametrize(("T", "value"), [(1, 6), (2, 30), (3, 84), (4, 180)])
def test_zip_dl_under_ldp(T, value):
    for victim in (0, 3):
        assert user_level(trust.LDP(), algorithms.zip_dl(RING6, EveryStep(T)), victim) == pytest.approx(value)
        with_own = algorithms.zip_dl(RING6, EveryStep(T), self_messages=True)
        assert user_level(trust.LDP(), with_own, victim) == math.inf


def test_zip_dl_pairs_on_a_ring():
    algorithm = algorithms.zip_dl(RING6, EveryStep(3))
    losses = [user_level(trust.PNDP([0]), algorithm, u) for u in range(1, 6)]
    assert_allclose(losses, [8.517, 0.575, 0.0303, 0.575, 8.517], rtol=1e-3)
    assert user_level(trust.PNDP([0]), algorithms.zip_dl(RING6, EveryStep(1)), 1) == pytest.approx(1.5)
    heard = algorithms.zip_dl(RING6, EveryStep(3), self_messages=True)
    assert_allclose([user_level(trust.PNDP([0]), heard, u) for u in range(1, 6)], losses, rtol=1e-9)  # it knew that


def test_decor_on_a_ring_of_eight():
    algorithm = algorithms.decor(Dynamics(MH("ring:n=8")), EveryStep(3), sigma_ldp=0.5, sigma_cor=2.0)
    seen = [user_level(trust.Colluding((0,)), algorithm, u) for u in (1, 2, 3, 4)]
    assert_allclose(seen, [2.84, 2.41, 2.19, 2.12], atol=5e-3)
    heard = [user_level(trust.PNDP([0]), algorithm, u) for u in (1, 2, 3, 4)]
    assert_allclose(heard, [1.04, 0.083, 0.0025, 0.0], atol=5e-3)


@pytest.mark.parametrize("graph", [nx.path_graph(8), nx.cycle_graph(8)])
def test_errors_of_structured_forms_bound_the_true_ones(graph):
    """Dyadic matrices, over the rationals: rounding is really there, and never more than stated."""
    W = gossip.from_array(np.eye(8) - nx.laplacian_matrix(graph).toarray() / 4)
    encoder = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [-1.0, 0.5, 2.0]]
    both = algorithms.dp_dsgd(Dynamics(W), EveryStep(3)), algorithms.mf_dsgd(Dynamics(W), EveryStep(3), encoder)
    forms, off = set(), 0
    for algorithm, attackers in itertools.product(both, ([0], [1], [1, 4], [1, 3, 5, 7])):
        view = trust.PNDP(attackers).view(algorithm, release="none")
        A, B = exact_view(exact_run(algorithm), view.knowledge.seen, np.flatnonzero(view.knowledge.known_noise))
        honest = [u for u in range(8) if u not in attackers][:3]
        for u, gram in zip(honest, view_grams(view, honest), strict=True):
            exact = to_float(exact_view_gram([row[u::8] for row in A], B))
            assert_bounded(gram, exact)
            forms.add(gram.form)
            off += np.linalg.eigvalsh(exact - gram.matrix)[-1] > 1e-17
    assert forms >= {"range form", "null-space form"}
    assert off > 0  # without the stated errors these would be too small

"""Reconstruction against exact fractions, dense formulas and real runs; what it reads of a transcript, and refuses."""

import re
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import torch
from vocabulary import each, given, refuses, st

from mfdl import Dynamics, EveryStep, InvalidInput, Privacy, View, algorithms, calibrate, gossip, graphs, trust
from mfdl.audit import reconstruct
from mfdl.audit.reconstruction import reduced_rows
from mfdl.testing import gossip_matrices, rank, rational, view_cases
from mfdl.training.executor import Executor

PER_STEP, CONSTANT, FIRST = KINDS = ("per step", "constant", "first step")
END = trust.PNDP([0])


def on(graph, steps, build=algorithms.dsgd, **dynamics):
    """An algorithm on a graph, or with a gossip matrix, where every record joins every step."""
    W = graph if isinstance(graph, gossip.GossipMatrix) else gossip.metropolis_hastings(graph)
    return build(Dynamics(W, **dynamics), EveryStep(steps))


def noiseless_rows(A, B):
    """N A with N B = 0, in fractions: the rows of the reduced [B | A] below the rank of B."""
    rows = [[*b, *a] for a, b in zip(rational(A), rational(B), strict=True)]
    width, pivots = B.shape[1], 0
    for j in range(width):
        best = next((i for i in range(pivots, len(rows)) if rows[i][j] != 0), None)
        if best is None:
            continue
        rows[pivots], rows[best] = rows[best], rows[pivots]
        for i in range(pivots + 1, len(rows)):
            if (factor := rows[i][j] / rows[pivots][j]) != 0:
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[pivots], strict=True)]
        pivots += 1
    return [row[width:] for row in rows[pivots:]]


def exposed_by_fractions(E, size):
    """(unit vectors in the row space, rank)."""
    if not E:
        return [False] * size, 0
    r = rank(E)
    units = ([Fraction(int(i == j)) for i in range(size)] for j in range(size))
    return [rank([*E, unit]) == r for unit in units], r


def unknown_columns(case):
    return np.flatnonzero(~case.known_gradients.ravel())


def metropolis(graph):
    """Weights 1 / (1 + larger degree) in fractions, rows in the order of the library's labels."""
    order = graphs.labels(graph)
    n = len(order)
    W = [[Fraction(0)] * n for _ in range(n)]
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            if graph.has_edge(a, b):
                W[i][j] = Fraction(1, 1 + max(graph.degree(a), graph.degree(b)))
        W[i][i] = 1 - sum(W[i])
    return W


def knowledge_matrix(W, attackers, steps):
    """Rows of the attackers' neighbours in W^0, ..., W^(steps-1), without the attackers' own columns."""
    n = len(W)
    heard = [v for v in range(n) if v not in attackers and any(W[a][v] != 0 for a in attackers)]
    power = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    rows = []
    for _ in range(steps):
        rows += [[power[v][j] for j in range(n) if j not in attackers] for v in heard]
        power = [[sum(W[i][k] * power[k][j] for k in range(n) if W[i][k]) for j in range(n)] for i in range(n)]
    return rows


class TestAgainstFractions:
    @given(60, case=view_cases(exact=True), noise_std=st.sampled_from([0.0, 0.5]))
    def test_exposed_is_what_the_noiseless_rows_span(self, case, noise_std):
        solved = reconstruct(case.algorithm, case.model, noise_std=noise_std, release=case.release)
        unknown = unknown_columns(case)
        B = case.B if noise_std else case.B[:, :0]
        E = noiseless_rows(case.A[:, unknown], B)
        truth, r = exposed_by_fractions(E, unknown.size)
        assert not solved.undecided.any()
        assert solved.exposed.ravel()[unknown].tolist() == truth
        assert (solved.known == case.known_gradients).all()
        assert solved.combinations.shape[0] == r - sum(truth)
        assert (solved.error_std[solved.exposed] == 0).all()
        assert (solved.posterior_ratio[solved.exposed] == 0).all()
        combinations = solved.combinations.toarray()[:, unknown]
        for row in combinations:  # each is a combination of the noiseless rows, and not of exposed gradients alone
            assert np.count_nonzero(row) >= 2
            if E:
                seen = np.array([[float(x) for x in e] for e in E])
                rest = row - np.linalg.lstsq(seen.T, row, rcond=None)[0] @ seen
                assert np.linalg.norm(rest) <= 1e-7 * np.linalg.norm(row)

    @each(
        "name, attackers, steps",
        ("path:n=6", [0], 5), ("path:n=7", [3], 6), ("star:n=6", [2], 6), ("ring:n=8", [0, 1], 4),
        ("florentine", [0], 6), ("florentine", [0, 12], 5),
    )  # fmt: skip
    def test_gossip_averaging_exposes_what_its_knowledge_matrix_does(self, name, attackers, steps):
        graph = graphs.load(name)
        solved = reconstruct(on(graph, steps), trust.PNDP(attackers), gradients=FIRST, release="none")
        truth, r = exposed_by_fractions(
            knowledge_matrix(metropolis(graph), attackers, steps), graph.number_of_nodes() - len(attackers)
        )
        honest = [u for u in range(graph.number_of_nodes()) if u not in attackers]
        assert not solved.undecided.any()
        assert solved.exposed[0, honest].tolist() == truth
        assert solved.combinations.shape[0] == r - sum(truth)
        assert any(truth)

    @given(40, case=view_cases(exact=True, noises=("independent", "per node")))
    def test_errors_are_those_of_the_dense_formulas(self, case):
        nu, clip = 0.7, 2.0
        solved = reconstruct(case.algorithm, case.model, noise_std=nu, clip_norm=clip, release=case.release)
        unknown = unknown_columns(case)
        if not len(case.A) or not unknown.size:
            assert not solved.exposed.any()
            return
        A, B = case.A[:, unknown], case.B
        m = len(A)
        # c minimises |B^T c| among unbiased c: A^T c = e_j
        system = np.block([[B @ B.T, A], [A.T, np.zeros((unknown.size, unknown.size))]])
        right = np.vstack([np.zeros((m, unknown.size)), np.eye(unknown.size)])
        c = np.linalg.lstsq(system, right, rcond=1e-12)[0][:m]
        estimable, _ = exposed_by_fractions(rational(A), unknown.size)
        variance = ((B.T @ c) ** 2).sum(axis=0)
        expected = np.where(estimable, nu * np.sqrt(variance) / clip, np.inf)
        np.testing.assert_allclose(solved.error_std.ravel()[unknown], expected, rtol=1e-6, atol=1e-6)
        total = clip**2 * A @ A.T + nu**2 * B @ B.T
        posterior = 1 - clip**2 * np.einsum("ij,ik,kj->j", A, np.linalg.pinv(total, rcond=1e-12, hermitian=True), A)
        np.testing.assert_allclose(solved.posterior_ratio.ravel()[unknown] ** 2, posterior, atol=1e-8)


@given(
    30, W=gossip_matrices(min_nodes=3, max_nodes=6), steps=st.integers(1, 4), order=st.permutations(range(6)),
    counts=st.tuples(st.integers(1, 2), st.integers(1, 3)), kind=st.sampled_from(KINDS),
    noise_std=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_more_attackers_never_see_less(W, steps, order, counts, kind, noise_std):
    nodes = [u for u in order if u < W.num_nodes]
    few, more = nodes[: min(counts[0], len(nodes) - 1)], nodes[: min(sum(counts), len(nodes) - 1)]
    algorithm, options = on(W, steps, algorithms.dp_dsgd), {"gradients": kind, "noise_std": noise_std}
    small, large = (reconstruct(algorithm, trust.PNDP(who), **options) for who in (few, more))
    assert (small.exposed <= (large.exposed | large.undecided | large.known)).all()
    assert (large.hidden <= (small.hidden | small.undecided)).all()
    assert (large.posterior_ratio <= small.posterior_ratio + 1e-6).all()


class TestRecovery:
    def transcript(self, algorithm, G, start, noise=None):
        """(messages, final models) of a run in float64."""
        run = Executor(algorithm, dtype=torch.float64)
        state, sent = run.initial_state(torch.as_tensor(start)), []
        for t in range(algorithm.num_steps):
            e = np.zeros((algorithm.noise.slots_per_step, G.shape[2])) if noise is None else noise[t]
            messages, state = run.step(t, state, torch.as_tensor(G[t]), torch.as_tensor(e))
            sent.append(messages.numpy())
        return np.stack(sent), run.models(state).numpy()

    @pytest.mark.parametrize("build", [algorithms.exact_diffusion, algorithms.delayed_dsgd, algorithms.two_hop_dsgd])
    def test_what_start_models_alone_would_give_is_taken_off(self, build):
        """Also where the state begins as something else than the models."""
        algorithm = on("path:n=3", 3, build, learning_rate=0.5)
        start = np.arange(6.0).reshape(3, 2)
        sent, final = self.transcript(algorithm, np.zeros((3, 3, 2)), start)
        solved = reconstruct(algorithm, trust.Eavesdropper(), noise_std=1.0)
        assert np.abs(solved.observations(sent, start_models=start, final_models=final)).max() < 1e-12

    @given(
        25, W=gossip_matrices(min_nodes=2, max_nodes=5), steps=st.integers(1, 3), rounds=st.integers(1, 2),
        momentum=st.sampled_from([0.0, 0.5]), kind=st.sampled_from(KINDS),
        release=st.sampled_from(["none", "average", "all"]), seed=st.integers(0, 99),
    )  # fmt: skip
    def test_the_exposed_gradients_of_a_run_are_recovered(self, W, steps, rounds, momentum, kind, release, seed):
        n, d, rng = W.num_nodes, 3, np.random.default_rng(seed)
        algorithm = on(W, steps, learning_rate=0.5, gossip_rounds=rounds, momentum=momentum)
        G = rng.standard_normal((steps, n, d))
        if kind != PER_STEP:
            G[1:] = G[0] if kind == CONSTANT else 0
        start = rng.standard_normal((n, d))
        model = trust.PNDP([int(rng.integers(n))])
        solved = reconstruct(algorithm, model, gradients=kind, release=release)
        sent, final = self.transcript(algorithm, G, start)
        unseen = ~model.knowledge(algorithm, 0).seen.reshape(sent.shape[:2])
        sent[unseen] = np.nan  # not read
        given_gradients = np.where(solved.view.known_gradients[:, :, None], G, np.nan)
        seen = {"start_models": start, "final_models": final, "known_gradients": given_gradients}
        got = solved.recover(sent, **seen)
        truth = G if kind == PER_STEP else G[:1]
        assert solved.exposed.any()
        size = 1e-13 * (1 + solved.amplification[solved.exposed])[:, None] * 100 + 1e-6
        assert (np.abs(got - truth)[solved.exposed] <= size).all()
        if solved.combinations.shape[0]:
            estimate = (solved.estimator @ solved.observations(sent, **seen)).reshape(-1, d)
            hidden, rows = np.where(solved.known.ravel()[:, None], 0.0, truth.reshape(-1, d)), solved.combinations
            np.testing.assert_allclose(rows @ estimate, rows @ hidden, rtol=1e-5, atol=1e-5)

    def test_the_error_of_an_estimate_under_noise_is_the_one_stated(self):
        n, T, d, nu = 5, 3, 20_000, 0.5
        rng = np.random.default_rng(1)
        algorithm = on("path:n=5", T, algorithms.dp_dsgd)
        G = np.tile(rng.standard_normal((1, n, 1)), (T, 1, d))
        Z = nu * rng.standard_normal((T * n, d))
        solved = reconstruct(algorithm, END, gradients=CONSTANT, noise_std=nu, clip_norm=2.0, release="none")
        sent, _ = self.transcript(algorithm, G, np.zeros((n, d)), (algorithm.noise @ Z).reshape(T, n, d))
        rows = solved.observations(sent, known_gradients=G, known_noise=Z)
        unknown = np.where(solved.view.known_gradients[:, :, None], 0.0, G).reshape(T * n, d)
        left = solved.view.gradients.matmat(unknown) + solved.view.noise.matmat(Z)  # of which known parts are zero
        np.testing.assert_allclose(rows, left, atol=1e-10)
        got = solved.recover(sent, known_gradients=G, known_noise=Z)
        estimable = np.isfinite(solved.error_std) & ~solved.known
        assert estimable.sum() == 3  # neighbours at distance 1, 2 and 3 within three rounds
        error = (got - G[:1])[estimable]
        np.testing.assert_allclose(error.std(axis=1), 2.0 * solved.error_std[estimable], rtol=0.03)
        assert (np.abs(error.mean(axis=1)) <= 5 * error.std(axis=1) / np.sqrt(d)).all()
        assert np.isnan(got[~estimable]).all()


CLAIM = {"adjacency": "replace-one", "clip_norm": 1.0}
WORDS = {"a": "attacker", "e": "exposed", "p": "partly exposed", "c": "in a combination", "h": "hidden"}


class TestKnownCases:
    @each(
        "graph, attacker, steps, gradients, letters",
        ("star:n=6", 0, 4, PER_STEP, "aeeeee"),  # the hub of a star reads every gradient
        ("star:n=6", 1, 4, PER_STEP, "pacccc"),  # a leaf reads the hub once, and its twins only in sum
        ("star:n=6", 1, 9, FIRST, "eacccc"),
        *(("path:n=6", 0, t, FIRST, "aeeeee"[: t + 1] + "h" * (5 - t)) for t in (1, 3, 5)),  # a node a round
        ("ring:n=7", 0, 2, FIRST, "aeehhee"),  # both ways
        ("complete:n=4", 2, 3, PER_STEP, "eeae"),  # all are exposed to a neighbour of all
    )
    def test_who_reads_what(self, graph, attacker, steps, gradients, letters):
        solved = reconstruct(on(graph, steps), trust.PNDP([attacker]), release="none", gradients=gradients)
        assert solved.node_status() == [WORDS[letter] for letter in letters]

    def test_medici_learn_everything_and_noise_ends_it(self):
        medici = trust.PNDP(["Medici"])
        quiet = reconstruct(on("florentine", 10), medici, release="none", gradients=CONSTANT)
        assert quiet.node_status().count("exposed") == 14
        safe = calibrate(on("florentine", 10, algorithms.dp_dsgd), Privacy(medici, **CLAIM), mu=1.0)
        solved = reconstruct(safe, medici, gradients=CONSTANT)
        assert (solved.node_status().count("hidden"), solved.combinations.shape[0]) == (14, 0)
        # what is mu-GDP for a record shift of 2 and an estimate of std s: 2 / s <= mu
        assert (solved.error_std[~solved.known] >= 2 - 1e-9).all()

    def test_a_long_path_is_undecided_rather_than_hidden(self):
        solved = reconstruct(on("path:n=30", 60), END, gradients=FIRST, release="none")
        # with exact numbers all are exposed: the Krylov space of the end of a path is everything
        assert not solved.hidden.any()
        assert solved.undecided.any()
        assert (np.diff(solved.exposed[0, 1:].astype(int)) <= 0).all()

    def test_hidden_gradients_behind_noise_that_cancels(self):
        # two messages g0 + z, g1 + z: their difference carries no noise
        solved = reconstruct(View(np.eye(2), np.ones((2, 1))), noise_std=1.0)
        assert not solved.exposed.any()
        np.testing.assert_allclose(solved.combinations.toarray(), [[1, -1]], atol=1e-12)
        # total covariance [[2, 1], [1, 2]], so 1 - 2 / 3 is left of either
        np.testing.assert_allclose(solved.posterior_ratio[:, 0], np.sqrt(1 / 3), rtol=1e-9)

    def test_faint_noise_and_faint_signal_are_undecided(self):
        solved = reconstruct(View(np.eye(2), np.diag([1.0, 1e-11])), noise_std=1.0)
        assert solved.undecided.ravel().tolist() == [False, True]
        assert max(solved.error_std[1, 0], solved.posterior_ratio[1, 0]) <= 1e-9
        solved = reconstruct(View(np.array([[1.0, 1.0, 0.0], [1.0, 1 + 1e-11, 0.0]]), np.zeros((2, 0))))
        assert solved.undecided.ravel().tolist() == [True, True, False]

    @pytest.mark.parametrize(("scale", "noise_std"), [(1.0, 1e-20), (1e-18, 1.0), (1e-8, 1.0)])
    def test_noise_far_below_the_clipping_norm_hides_nothing(self, scale, noise_std):
        solved = reconstruct(View(np.eye(2), scale * np.eye(2)), noise_std=noise_std)
        assert solved.undecided.all()
        assert reconstruct(View(np.eye(2), 1e-3 * np.eye(2)), noise_std=1.0).hidden.all()

    @pytest.mark.parametrize("weight", [1e-3, 1e-5, 1e-7, 1e-8])
    def test_faint_weights_do_not_hide_what_exact_numbers_expose(self, weight):
        edges = np.diag(np.full(4, weight), 1)
        W = edges + edges.T
        W += np.diag(1 - W.sum(axis=1))
        solved = reconstruct(on(gossip.GossipMatrix(W, range(5)), 6), END, gradients=FIRST, release="none")
        assert not solved.hidden.any()
        assert "in a combination" not in solved.node_status()

    def test_a_mechanism_brings_the_models_that_its_guarantee_releases(self):
        algorithm = on("path:n=4", 2, algorithms.dp_dsgd)
        alone = calibrate(algorithm, Privacy(END, release="none", **CLAIM), mu=1.0)
        assert reconstruct(alone, END).view.release == "none"
        assert reconstruct(alone, END, release="all").view.release == "all"
        assert reconstruct(calibrate(algorithm, Privacy(END, **CLAIM), mu=1.0), END).view.release == "all"


def test_reduced_rows_have_pivots_of_their_own():
    rows = reduced_rows(np.linalg.qr(np.array([[1.0, 2, 0, 3], [0, 1, 1, 1]]).T)[0].T, np.zeros(4, dtype=bool))
    np.testing.assert_allclose(rows, [[1, 0, -2, 1], [0, 1, 1, 1]], atol=1e-12)


RING, NOISY = on("ring:n=5", 3), on("path:n=5", 3, algorithms.dp_dsgd, gossip_rounds=2)
LARGE = on(nx.complete_graph(40), 100)
TRANSCRIPT = {"messages": np.zeros((3, 5, 2)), "known_gradients": np.zeros((3, 5, 2)), "final_models": np.zeros((5, 2))}
OF_TWO_ROUNDS = {"messages": np.zeros((3, 10, 2)), "known_gradients": np.zeros((3, 5, 2))}


def recovered(**changed):
    return reconstruct(RING, END).recover(**(TRANSCRIPT | changed))


@each(
    "call, message",
    (lambda: reconstruct(RING, trust.AnyReceiver()), "more than one view.*name the attackers"),
    (lambda: reconstruct(RING, trust.Coalitions(1)), "more than one view"),
    (lambda: reconstruct(RING, trust.PNDP([9])), "below num_nodes=5, got 9"),
    (lambda: reconstruct(RING, trust.PNDP(["nobody"])), "'nobody' is not in the graph"),
    (lambda: reconstruct(RING, None), "trust must be a trust model"),
    (lambda: reconstruct(RING, END, gradients="constnat"), "did you mean 'constant'"),
    (lambda: reconstruct(RING, END, noise_std=-1.0), "noise_std must be a finite number >= 0"),
    (lambda: reconstruct(RING, END, clip_norm=0.0), "clip_norm must be a finite number > 0"),
    (lambda: reconstruct(RING, END, victim=7), "victim must be below num_nodes=5"),
    (lambda: reconstruct(NOISY, END), "noise_std must be given"),
    (lambda: reconstruct(LARGE, END, release="none"), "3900 equations for 3900 gradients.*above.*fewer steps"),
    (lambda: recovered(messages=np.zeros((2, 5, 2))), r"\(3, 5, d\) for 3 rounds of 5 messages, got shape"),
    (lambda: recovered(final_models=None), "final_models must be given"),
    (lambda: recovered(known_gradients=None), "known_gradients must be given"),
    (
        lambda: recovered(messages=np.where(np.arange(15).reshape(3, 5, 1) == 6, np.nan, 0.0) * np.ones(2)),
        r"node 0.*1 of 6",
    ),
    (lambda: reconstruct(RING, END).solve(np.zeros((3, 2))), "observations must have 11 rows"),
    (
        lambda: reconstruct(View(np.eye(2), np.zeros((2, 0)))).recover(np.zeros((3, 5, 2))),
        "bare view has no transcript",
    ),
)
def test_bad_arguments_are_refused(call, message):
    refuses(message, call)


def test_constant_gradients_of_a_large_view_are_solved_for():
    assert reconstruct(LARGE, END, gradients=CONSTANT, release="none").exposed.sum() == 39


class TestShapesOfTranscripts:
    """Exactly those documented: broadcasting or a transposed array would give wrong gradients in silence."""

    rng = np.random.default_rng(0)

    @each(
        "name, expected, shapes",
        (
            "known_gradients",
            (3, 5, 2),
            [(1, 5, 2), (5, 2), (2, 5, 2), (3, 5, 1), (3, 1, 2), (1, 1, 1), (5, 3, 2), (30,)],
        ),
        ("known_noise", (15, 2), [(3, 5, 2), (1, 2), (2,), (15, 1), (15,), (14, 2)]),
    )
    def test_what_is_known_is_not_broadcast(self, name, expected, shapes):
        for kind in KINDS:
            solved = reconstruct(NOISY, END, gradients=kind, noise_std=1.0, release="none")
            for shape in shapes:
                with pytest.raises(InvalidInput, match=rf"{name} must have shape {re.escape(str(expected))}, got \("):
                    solved.recover(**(OF_TWO_ROUNDS | {name: np.ones(shape)}))

    def test_only_what_is_known_is_read_and_that_must_be_finite(self):
        solved = reconstruct(NOISY, END, noise_std=1.0, release="none")
        sent, G, Z = (self.rng.standard_normal(shape) for shape in ((3, 10, 2), (3, 5, 2), (15, 2)))
        expected = solved.observations(sent, known_gradients=G, known_noise=Z)
        gradients_known, noise_known = solved.view.known_gradients, solved.view.knowledge.known_noise.ravel()
        assert gradients_known.any()
        assert noise_known.any()
        some_G, some_Z = np.where(gradients_known[:, :, None], G, np.nan), np.where(noise_known[:, None], Z, np.inf)
        got = solved.observations(sent, known_gradients=some_G, known_noise=some_Z)
        np.testing.assert_array_equal(got, expected)
        t, u = np.argwhere(gradients_known)[0]
        some_G[t, u, 1], some_Z[np.flatnonzero(noise_known)[0], 0] = np.nan, np.inf
        with pytest.raises(InvalidInput, match=rf"known_gradients must be finite, got nan at index \({t}, {u}, 1\)"):
            solved.observations(sent, known_gradients=some_G, known_noise=Z)
        refuses("known_noise must be finite, got inf", solved.observations, sent, known_gradients=G, known_noise=some_Z)

    @pytest.mark.parametrize("rounds", [1, 2])
    def test_messages_come_by_step_or_by_round_and_in_no_other_order(self, rounds):
        T, n, d = 3, 4, 2
        solved = reconstruct(on(f"ring:n={n}", T, gossip_rounds=rounds), END, release="none")
        total = T * rounds * n
        sent, G = self.rng.standard_normal((total, d)), np.zeros((T, n, d))
        by_step = solved.recover(sent.reshape(T, rounds * n, d), known_gradients=G)
        np.testing.assert_array_equal(solved.recover(sent.reshape(T * rounds, n, d), known_gradients=G), by_step)
        others = {(a, total // a) for a in range(1, total + 1) if total % a == 0} - {(T, rounds * n), (T * rounds, n)}
        assert (n, T * rounds) in others
        for shape in others:
            with pytest.raises(InvalidInput, match=rf"\({T * rounds}, {n}, d\) for .*, got shape \({shape[0]}, "):
                solved.recover(sent.reshape(*shape, d), known_gradients=G)

    @pytest.mark.parametrize("name", ["messages", "known_gradients", "known_noise"])
    def test_what_is_not_real_numbers_is_refused_by_name(self, name):
        solved = reconstruct(NOISY, END, noise_std=1.0, release="none")
        for wrong in ("text", [["1", "2"]], [[1.0], [1.0, 2.0]], np.ones((15, 2), complex)):
            refuses(f"{name} must be an array of real numbers, got ", solved.recover, **OF_TWO_ROUNDS | {name: wrong})

"""Reconstruction against exact fractions, dense formulas and real runs."""

import re
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl import Dynamics, EveryStep, View, algorithms, calibrate, gossip, graphs, trust
from mfdl.audit import reconstruct
from mfdl.audit.equations import reduced_rows
from mfdl.errors import InvalidInput
from mfdl.testing.oracles.rational import rank, rational
from mfdl.testing.strategies.graphs import gossip_matrices
from mfdl.testing.strategies.written_views import view_cases
from mfdl.training.executor import Executor


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
    @examples(60)
    @given(case=view_cases(exact=True), noise_std=st.sampled_from([0.0, 0.5]))
    def test_exposed_is_what_the_noiseless_rows_span(self, case, noise_std):
        found = reconstruct(case.algorithm, case.model, noise_std=noise_std, release=case.release)
        unknown = unknown_columns(case)
        B = case.B if noise_std else case.B[:, :0]
        E = noiseless_rows(case.A[:, unknown], B)
        truth, r = exposed_by_fractions(E, unknown.size)
        assert not found.undecided.any()
        assert found.exposed.ravel()[unknown].tolist() == truth
        assert (found.known == case.known_gradients).all()
        assert found.combinations.shape[0] == r - sum(truth)
        assert (found.error_std[found.exposed] == 0).all()
        assert (found.posterior_ratio[found.exposed] == 0).all()
        shown = found.combinations.toarray()[:, unknown]
        for row in shown:  # each is a combination of the noiseless rows, and not of exposed gradients alone
            assert np.count_nonzero(row) >= 2
            if E:
                seen = np.array([[float(x) for x in e] for e in E])
                rest = row - np.linalg.lstsq(seen.T, row, rcond=None)[0] @ seen
                assert np.linalg.norm(rest) <= 1e-7 * np.linalg.norm(row)

    @pytest.mark.parametrize(
        ("name", "attackers", "steps"),
        [
            ("path:n=6", [0], 5),
            ("path:n=7", [3], 6),
            ("star:n=6", [2], 6),
            ("ring:n=8", [0, 1], 4),
            ("florentine", [0], 6),
            ("florentine", [0, 12], 5),
        ],
    )
    def test_gossip_averaging_exposes_what_its_knowledge_matrix_does(self, name, attackers, steps):
        graph = graphs.load(name)
        one = algorithms.dsgd(Dynamics(gossip.metropolis_hastings(graph), 0.5), EveryStep(steps))
        found = reconstruct(one, trust.PNDP(attackers), gradients="first step", release="none")
        truth, r = exposed_by_fractions(
            knowledge_matrix(metropolis(graph), attackers, steps), graph.number_of_nodes() - len(attackers)
        )
        honest = [u for u in range(graph.number_of_nodes()) if u not in attackers]
        assert not found.undecided.any()
        assert found.exposed[0, honest].tolist() == truth
        assert found.combinations.shape[0] == r - sum(truth)
        assert any(truth)

    @examples(40)
    @given(case=view_cases(exact=True, noises=("independent", "per node")))
    def test_errors_are_those_of_the_dense_formulas(self, case):
        nu, clip = 0.7, 2.0
        found = reconstruct(case.algorithm, case.model, noise_std=nu, clip_norm=clip, release=case.release)
        unknown = unknown_columns(case)
        if not len(case.A) or not unknown.size:
            assert not found.exposed.any()
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
        np.testing.assert_allclose(found.error_std.ravel()[unknown], expected, rtol=1e-6, atol=1e-6)
        total = clip**2 * A @ A.T + nu**2 * B @ B.T
        posterior = 1 - clip**2 * np.einsum("ij,ik,kj->j", A, np.linalg.pinv(total, rcond=1e-12, hermitian=True), A)
        np.testing.assert_allclose(found.posterior_ratio.ravel()[unknown] ** 2, posterior, atol=1e-8)


@examples(30)
@given(
    W=gossip_matrices(min_nodes=3, max_nodes=6),
    steps=st.integers(1, 4),
    order=st.permutations(range(6)),
    counts=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    kind=st.sampled_from(["per step", "constant", "first step"]),
    noise_std=st.sampled_from([0.0, 1.0]),
)
def test_more_attackers_never_see_less(W, steps, order, counts, kind, noise_std):
    nodes = [u for u in order if u < W.num_nodes]
    few, more = nodes[: min(counts[0], len(nodes) - 1)], nodes[: min(sum(counts), len(nodes) - 1)]
    one = algorithms.dp_dsgd(Dynamics(W), EveryStep(steps))
    how = {"gradients": kind, "noise_std": noise_std}
    small, large = (reconstruct(one, trust.PNDP(who), **how) for who in (few, more))
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
        one = build(Dynamics(gossip.metropolis_hastings("path:n=3"), 0.5), EveryStep(3))
        start = np.arange(6.0).reshape(3, 2)
        sent, final = self.transcript(one, np.zeros((3, 3, 2)), start)
        found = reconstruct(one, trust.SecLDP(), noise_std=1.0)
        assert np.abs(found.observations(sent, start_models=start, final_models=final)).max() < 1e-12

    @examples(25)
    @given(
        W=gossip_matrices(min_nodes=2, max_nodes=5),
        steps=st.integers(1, 3),
        rounds=st.integers(1, 2),
        momentum=st.sampled_from([0.0, 0.5]),
        kind=st.sampled_from(["per step", "constant", "first step"]),
        release=st.sampled_from(["none", "average", "all"]),
        seed=st.integers(0, 99),
    )
    def test_the_exposed_gradients_of_a_run_are_recovered(self, W, steps, rounds, momentum, kind, release, seed):
        n, d, rng = W.num_nodes, 3, np.random.default_rng(seed)
        one = algorithms.dsgd(Dynamics(W, 0.5, gossip_rounds=rounds, momentum=momentum), EveryStep(steps))
        G = rng.standard_normal((steps, n, d))
        if kind == "constant":
            G[1:] = G[0]
        elif kind == "first step":
            G[1:] = 0
        start = rng.standard_normal((n, d))
        model = trust.PNDP([int(rng.integers(n))])
        found = reconstruct(one, model, gradients=kind, release=release)
        sent, final = self.transcript(one, G, start)
        unseen = ~model.knowledge(one, 0).seen.reshape(sent.shape[:2])
        sent[unseen] = np.nan  # not read
        own = np.where(found.view.known_gradients[:, :, None], G, np.nan)
        got = found.recover(sent, start_models=start, final_models=final, known_gradients=own)
        truth = G if kind == "per step" else G[:1]
        assert found.exposed.any()
        size = 1e-13 * (1 + found.amplification[found.exposed])[:, None] * 100 + 1e-6
        assert (np.abs(got - truth)[found.exposed] <= size).all()
        if found.combinations.shape[0]:
            rows = found.observations(sent, start_models=start, final_models=final, known_gradients=own)
            estimate = (found.estimator @ rows).reshape(-1, d)
            hidden = np.where(found.known.ravel()[:, None], 0.0, truth.reshape(-1, d))
            np.testing.assert_allclose(found.combinations @ estimate, found.combinations @ hidden, rtol=1e-5, atol=1e-5)

    def test_the_error_of_an_estimate_under_noise_is_the_one_stated(self):
        n, T, d, nu = 5, 3, 20_000, 0.5
        rng = np.random.default_rng(1)
        one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=5")), EveryStep(T))
        G = np.tile(rng.standard_normal((1, n, 1)), (T, 1, d))
        Z = nu * rng.standard_normal((T * n, d))
        found = reconstruct(one, trust.PNDP([0]), gradients="constant", noise_std=nu, clip_norm=2.0, release="none")
        sent, _ = self.transcript(one, G, np.zeros((n, d)), (one.noise @ Z).reshape(T, n, d))
        rows = found.observations(sent, known_gradients=G, known_noise=Z)
        unknown = np.where(found.view.known_gradients[:, :, None], 0.0, G).reshape(T * n, d)
        left = found.view.gradients.matmat(unknown) + found.view.noise.matmat(Z)  # of which known parts are zero
        np.testing.assert_allclose(rows, left, atol=1e-10)
        got = found.recover(sent, known_gradients=G, known_noise=Z)
        estimable = np.isfinite(found.error_std) & ~found.known
        assert estimable.sum() == 3  # neighbours at distance 1, 2 and 3 within three rounds
        error = (got - G[:1])[estimable]
        np.testing.assert_allclose(error.std(axis=1), 2.0 * found.error_std[estimable], rtol=0.03)
        assert (np.abs(error.mean(axis=1)) <= 5 * error.std(axis=1) / np.sqrt(d)).all()
        assert np.isnan(got[~estimable]).all()


WORDS = {"a": "attacker", "e": "exposed", "p": "partly exposed", "c": "in a combination", "h": "hidden"}


class TestKnownCases:
    @pytest.mark.parametrize(
        ("graph", "attacker", "steps", "gradients", "letters"),
        [
            ("star:n=6", 0, 4, "per step", "aeeeee"),  # the hub of a star reads every gradient
            ("star:n=6", 1, 4, "per step", "pacccc"),  # a leaf reads the hub once, and its twins only in sum
            ("star:n=6", 1, 9, "first step", "eacccc"),
            *(("path:n=6", 0, t, "first step", "aeeeee"[: t + 1] + "h" * (5 - t)) for t in (1, 3, 5)),  # a node a round
            ("ring:n=7", 0, 2, "first step", "aeehhee"),  # both ways
            ("complete:n=4", 2, 3, "per step", "eeae"),  # everybody is exposed to a neighbour of all
        ],
    )
    def test_who_reads_what(self, graph, attacker, steps, gradients, letters):
        assert self.status(graph, [attacker], steps, gradients=gradients) == [WORDS[letter] for letter in letters]

    def status(self, graph, attackers, steps, **how):
        quiet = algorithms.dsgd(Dynamics(gossip.metropolis_hastings(graph)), EveryStep(steps))
        return reconstruct(quiet, trust.PNDP(attackers), release="none", **how).node_status()

    def test_medici_learn_everything_and_noise_ends_it(self):
        labels = [str(x) for x in graphs.labels(graphs.load("florentine"))]
        medici = labels.index("Medici")
        words = self.status("florentine", [medici], 10, gradients="constant")
        assert words.count("exposed") == 14
        one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("florentine")), EveryStep(10))
        model = trust.PNDP(["Medici"])
        safe = calibrate(one, trust=model, adjacency="replace-one", clip_norm=1.0, mu=1.0)
        found = reconstruct(safe, model, gradients="constant")
        assert found.node_status().count("hidden") == 14
        assert found.combinations.shape[0] == 0
        # what is mu-GDP for a record shift of 2 and an estimate of std s: 2 / s <= mu
        assert (found.error_std[~found.known] >= 2 - 1e-9).all()

    def test_a_long_path_is_undecided_rather_than_hidden(self):
        one = algorithms.dsgd(Dynamics(gossip.metropolis_hastings("path:n=30")), EveryStep(60))
        found = reconstruct(one, trust.PNDP([0]), gradients="first step", release="none")
        # with exact numbers all are exposed: the Krylov space of the end of a path is everything
        assert not found.hidden.any()
        assert found.undecided.any()
        assert (np.diff(found.exposed[0, 1:].astype(int)) <= 0).all()

    def test_hidden_gradients_behind_noise_that_cancels(self):
        # two messages g0 + z, g1 + z: their difference carries no noise
        found = reconstruct(View(np.eye(2), np.ones((2, 1))), noise_std=1.0)
        assert not found.exposed.any()
        np.testing.assert_allclose(found.combinations.toarray(), [[1, -1]], atol=1e-12)
        # total covariance [[2, 1], [1, 2]], so 1 - 2 / 3 is left of either
        np.testing.assert_allclose(found.posterior_ratio[:, 0], np.sqrt(1 / 3), rtol=1e-9)

    def test_faint_noise_and_faint_signal_are_undecided(self):
        found = reconstruct(View(np.eye(2), np.diag([1.0, 1e-11])), noise_std=1.0)
        assert found.undecided.ravel().tolist() == [False, True]
        assert max(found.error_std[1, 0], found.posterior_ratio[1, 0]) <= 1e-9
        found = reconstruct(View(np.array([[1.0, 1.0, 0.0], [1.0, 1 + 1e-11, 0.0]]), np.zeros((2, 0))))
        assert found.undecided.ravel().tolist() == [True, True, False]

    @pytest.mark.parametrize(("scale", "noise_std"), [(1.0, 1e-20), (1e-18, 1.0), (1e-8, 1.0)])
    def test_noise_far_below_the_clipping_norm_hides_nothing(self, scale, noise_std):
        found = reconstruct(View(np.eye(2), scale * np.eye(2)), noise_std=noise_std)
        assert found.undecided.all()
        assert reconstruct(View(np.eye(2), 1e-3 * np.eye(2)), noise_std=1.0).hidden.all()

    @pytest.mark.parametrize("weight", [1e-3, 1e-5, 1e-7, 1e-8])
    def test_faint_weights_do_not_hide_what_exact_numbers_expose(self, weight):
        edges = np.diag(np.full(4, weight), 1)
        W = edges + edges.T
        W += np.diag(1 - W.sum(axis=1))
        one = algorithms.dsgd(Dynamics(gossip.GossipMatrix(W, range(5))), EveryStep(6))
        found = reconstruct(one, trust.PNDP([0]), gradients="first step", release="none")
        assert not found.hidden.any()
        assert "in a combination" not in found.node_status()

    def test_a_mechanism_brings_the_models_that_its_guarantee_releases(self):
        one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=4")), EveryStep(2))
        given = {"trust": trust.PNDP([0]), "adjacency": "replace-one", "clip_norm": 1.0, "mu": 1.0}
        alone = calibrate(one, release="none", **given)
        assert reconstruct(alone, trust.PNDP([0])).view.release == "none"
        assert reconstruct(alone, trust.PNDP([0]), release="all").view.release == "all"
        assert reconstruct(calibrate(one, **given), trust.PNDP([0])).view.release == "all"


def test_reduced_rows_have_pivots_of_their_own():
    rows = reduced_rows(np.linalg.qr(np.array([[1.0, 2, 0, 3], [0, 1, 1, 1]]).T)[0].T, np.zeros(4, dtype=bool))
    np.testing.assert_allclose(rows, [[1, 0, -2, 1], [0, 1, 1, 1]], atol=1e-12)


NOISY = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("path:n=5"), gossip_rounds=2), EveryStep(3))
WHOLE = {"messages": np.zeros((3, 10, 2)), "known_gradients": np.zeros((3, 5, 2))}
FINAL = np.zeros((5, 2))


class TestRefusals:
    ring = algorithms.dsgd(Dynamics(gossip.metropolis_hastings("ring:n=5")), EveryStep(3))

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ({"trust": trust.AnyReceiver()}, "more than one view.*name the attackers"),
            ({"trust": trust.Coalitions(1)}, "more than one view"),
            ({"trust": trust.PNDP([9])}, "below num_nodes=5, got 9"),
            ({"trust": trust.PNDP(["nobody"])}, "'nobody' is not in the graph"),
            ({"trust": None}, "trust must be a trust model"),
            ({"trust": trust.PNDP([0]), "gradients": "constnat"}, "did you mean 'constant'"),
            ({"trust": trust.PNDP([0]), "noise_std": -1.0}, "noise_std must be a finite number >= 0"),
            ({"trust": trust.PNDP([0]), "clip_norm": 0.0}, "clip_norm must be a finite number > 0"),
            ({"trust": trust.PNDP([0]), "victim": 7}, "victim must be below num_nodes=5"),
            ({"mechanism": NOISY, "trust": trust.PNDP([0])}, "noise_std must be given"),
        ],
    )
    def test_questions(self, how, message):
        with pytest.raises(InvalidInput, match=message):
            reconstruct(**({"mechanism": self.ring} | how))

    def test_sizes_beyond_dense_linear_algebra(self):
        large = algorithms.dsgd(Dynamics(gossip.metropolis_hastings(nx.complete_graph(40))), EveryStep(100))
        with pytest.raises(InvalidInput, match=r"3900 equations for 3900 gradients.*above the limit.*fewer steps"):
            reconstruct(large, trust.PNDP([0]), release="none")
        assert reconstruct(large, trust.PNDP([0]), gradients="constant", release="none").exposed.sum() == 39

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"messages": np.zeros((2, 5, 2))}, r"\(3, 5, d\) for 3 rounds of 5 messages, got shape"),
            ({"final_models": None}, "final_models must be given"),
            ({"known_gradients": None}, "known_gradients must be given"),
            ({"messages": np.where(np.arange(15).reshape(3, 5, 1) == 6, np.nan, 0.0) * np.ones(2)}, r"node 0.*1 of 6"),
        ],
    )
    def test_transcripts(self, changed, message):
        whole = {"messages": np.zeros((3, 5, 2)), "known_gradients": np.zeros((3, 5, 2)), "final_models": FINAL}
        with pytest.raises(InvalidInput, match=message):
            reconstruct(self.ring, trust.PNDP([0])).recover(**(whole | changed))

    def test_rows(self):
        with pytest.raises(InvalidInput, match="observations must have 11 rows"):
            reconstruct(self.ring, trust.PNDP([0])).solve(np.zeros((3, 2)))
        with pytest.raises(InvalidInput, match=r"bare view has no transcript"):
            reconstruct(View(np.eye(2), np.zeros((2, 0)))).recover(np.zeros((3, 5, 2)))


class TestShapesOfTranscripts:
    """Exactly those documented: broadcasting or a transposed array would give wrong gradients in silence."""

    rng = np.random.default_rng(0)

    @pytest.mark.parametrize(
        ("name", "expected", "shapes"),
        [
            (
                "known_gradients",
                (3, 5, 2),
                [(1, 5, 2), (5, 2), (2, 5, 2), (3, 5, 1), (3, 1, 2), (1, 1, 1), (5, 3, 2), (30,)],
            ),
            ("known_noise", (15, 2), [(3, 5, 2), (1, 2), (2,), (15, 1), (15,), (14, 2)]),
        ],
    )
    def test_what_is_known_is_not_broadcast(self, name, expected, shapes):
        for kind in ("per step", "constant", "first step"):
            found = reconstruct(NOISY, trust.PNDP([0]), gradients=kind, noise_std=1.0, release="none")
            for shape in shapes:
                with pytest.raises(InvalidInput, match=rf"{name} must have shape {re.escape(str(expected))}, got \("):
                    found.recover(**(WHOLE | {name: np.ones(shape)}))

    def test_only_what_is_known_is_read_and_that_must_be_finite(self):
        found = reconstruct(NOISY, trust.PNDP([0]), noise_std=1.0, release="none")
        sent, G, Z = (self.rng.standard_normal(shape) for shape in ((3, 10, 2), (3, 5, 2), (15, 2)))
        expected = found.observations(sent, known_gradients=G, known_noise=Z)
        own = found.view.known_gradients
        held = found.view.knowledge.known_noise.ravel()
        assert own.any()
        assert held.any()
        only_own, only_held = np.where(own[:, :, None], G, np.nan), np.where(held[:, None], Z, np.inf)
        got = found.observations(sent, known_gradients=only_own, known_noise=only_held)
        np.testing.assert_array_equal(got, expected)
        t, u = np.argwhere(own)[0]
        only_own[t, u, 1] = np.nan
        with pytest.raises(InvalidInput, match=rf"known_gradients must be finite, got nan at index \({t}, {u}, 1\)"):
            found.observations(sent, known_gradients=only_own, known_noise=Z)
        only_held[np.flatnonzero(held)[0], 0] = np.inf
        with pytest.raises(InvalidInput, match="known_noise must be finite, got inf"):
            found.observations(sent, known_gradients=G, known_noise=only_held)

    @pytest.mark.parametrize("rounds", [1, 2])
    def test_messages_come_by_step_or_by_round_and_in_no_other_order(self, rounds):
        T, n, d = 3, 4, 2
        ring = Dynamics(gossip.metropolis_hastings(f"ring:n={n}"), gossip_rounds=rounds)
        one = algorithms.dsgd(ring, EveryStep(T))
        found = reconstruct(one, trust.PNDP([0]), release="none")
        total = T * rounds * n
        sent, G = self.rng.standard_normal((total, d)), np.zeros((T, n, d))
        by_step = found.recover(sent.reshape(T, rounds * n, d), known_gradients=G)
        np.testing.assert_array_equal(found.recover(sent.reshape(T * rounds, n, d), known_gradients=G), by_step)
        others = {(a, total // a) for a in range(1, total + 1) if total % a == 0} - {(T, rounds * n), (T * rounds, n)}
        assert (n, T * rounds) in others
        for shape in others:
            with pytest.raises(InvalidInput, match=rf"\({T * rounds}, {n}, d\) for .*, got shape \({shape[0]}, "):
                found.recover(sent.reshape(*shape, d), known_gradients=G)

    @pytest.mark.parametrize("name", ["messages", "known_gradients", "known_noise"])
    def test_what_is_not_real_numbers_is_refused_by_name(self, name):
        found = reconstruct(NOISY, trust.PNDP([0]), noise_std=1.0, release="none")
        for wrong in ("text", [["1", "2"]], [[1.0], [1.0, 2.0]], np.ones((15, 2), complex)):
            with pytest.raises(InvalidInput, match=f"{name} must be an array of real numbers, got "):
                found.recover(**(WHOLE | {name: wrong}))

"""What the table of facts says of systems larger than the cases of its claims, and of what is no claim.

The printed or coded form is written out by hand, beside the library's. Numbers with few digits are those of the table.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st

import mfdl_papers as papers
import mfdl_solvers
from mfdl import Cyclic, Dynamics, EveryStep, Privacy, algorithms, gossip, graphs, node_covariances, trust
from mfdl.decor_search import COROLLARY_RANGE
from mfdl.factorization import optimal_covariance, optimal_pairwise, problem, square_root_encoder
from mfdl.noise_scale import account, calibrate
from mfdl.privacy import gaussian
from mfdl.privacy.forms import view_grams
from mfdl.testing import connected_graphs, exact_mu, gossip_messages, node_columns, pinv_gram, received, without_noise
from mfdl_papers import decor_constant, decor_step_sizes, one_step_error
from mfdl_solvers.coalition_problem import CoalitionProblem

MH = gossip.metropolis_hastings
ROOT = Path(__file__).parents[2]
DELTA = 1e-5
L = -math.log(DELTA)
GRID = (3, 5, 7, 10, 15, 20, 25, 30, 40)  # budgets of the experiments of arXiv:2405.01031 and arXiv:2501.14644


# ---- arXiv:2510.17480 -------------------------------------------------------------------------------------
def test_what_one_node_hears_is_causal_but_not_in_echelon_form():
    """Florentine families, four steps, own noise known: 60 columns, 28 empty, 32 that start in only four rows."""
    W, n, T = gossip.uniform("florentine"), 15, 4
    messages, _ = gossip_messages(W, T)
    seen = received(W, T, [0])
    B = without_noise(messages[seen.ravel()], {t * n for t in range(T)})
    filled = np.abs(B) > 1e-14
    assert B.shape[1] == 60
    starts = filled.argmax(axis=0)[filled.any(axis=0)]
    assert (len(starts), len(set(starts.tolist()))) == (32, 4)
    assert (np.diff(starts) < 0).any()
    time_of_row, time_of_column = np.nonzero(seen)[0], np.arange(T * n) // n
    assert not filled[time_of_column[None, :] > time_of_row[:, None]].any()


@pytest.mark.parametrize(("attacker", "victim", "printed", "true"), [(0, 3, 0.05811, 0.06036), (8, 12, 9.96, 10.18)])
def test_an_attacker_that_forgets_its_own_noise_is_underrated(attacker, victim, printed, true):
    """sum |X|, Florentine families, ten steps, received messages only."""
    W, n, T = gossip.uniform("florentine"), 15, 10
    messages, _ = gossip_messages(W, T)
    known = {t * n + attacker for t in range(T)}
    sums = {}
    for own_messages in (False, True):
        rows = messages[received(W, T, [attacker], self_messages=own_messages).ravel()]
        for forgets in (True, False):
            B = rows if forgets else without_noise(rows, known)
            X, leaks = pinv_gram(node_columns(rows, victim, n), B)
            assert not leaks.any()
            sums[own_messages, forgets] = np.abs(X).sum()
    assert_allclose(sums[False, True], printed, rtol=5e-4)
    assert_allclose(sums[False, False], true, rtol=5e-4)
    # with its own messages among the rows nothing is forgotten
    assert_allclose([sums[True, True], sums[True, False]], sums[False, False], rtol=1e-6)
    algorithm = algorithms.dp_dsgd(Dynamics(W), EveryStep(T))
    (ours,) = view_grams(trust.PNDP([attacker]).view(algorithm, victim, release="none"), [victim])
    assert_allclose(np.abs(ours.matrix).sum(), sums[False, False], rtol=1e-6)


def test_a_root_of_the_error_gram_must_have_the_right_side():
    """L^T L = H is needed; Cholesky gives G G^T = H, and the coded R = chol(P H P) has R^T R != H."""
    posed = problem(Dynamics(gossip.uniform("florentine")), Cyclic(4, 8))
    H, P = posed.error_gram, np.eye(32)[::-1]
    best = mfdl_solvers.solve(posed)
    response = np.linalg.inv(best.encoder)
    G, R = np.linalg.cholesky(H), np.linalg.cholesky(P @ H @ P)
    lower = P @ R.T @ P
    assert not np.triu(lower, 1).any()
    for root, value in ((G, 2532.6), (G.T, best.objective), (lower, best.objective)):
        assert_allclose(np.linalg.norm(root @ response) ** 2, value, rtol=1e-3)
    assert_allclose(best.objective, 1402.4, rtol=2e-4)
    assert_allclose(np.linalg.norm(R.T @ R - H) / np.linalg.norm(H), 0.239, atol=5e-4)
    coded = mfdl_solvers.solve(mfdl_solvers.FactorizationProblem(R.T @ R, posed.classes))
    assert 1.014 < posed.objective(coded.gram) / best.objective < 1.017  # 1.5% more noise in the models
    # right for Toeplitz workloads, so for prefix sums: P A P = A^T
    A = np.tri(32)
    assert_allclose(np.linalg.cholesky(P @ A.T @ A @ P), A, atol=1e-12)


def test_a_symmetric_toeplitz_matrix_is_no_causal_encoder():
    coefficients = [1, 0.5, 0.375, 0.3125]
    assert_array_equal(square_root_encoder(4), scipy.linalg.toeplitz(coefficients, [1, 0, 0, 0]))
    coded = scipy.linalg.toeplitz(coefficients)
    assert_allclose(np.abs(np.triu(np.linalg.inv(coded), 1)).max(), 0.554, atol=5e-4)  # noise of later steps
    assert np.abs(coded @ coded - np.tri(4)).max() > 1


# ---- arXiv:2405.01031 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("spec", ["ring:n=16", "torus:n=16", "complete:n=16"])
def test_no_pairwise_noise_is_enough_at_the_lower_end_of_the_search(spec):
    """sigma_ldp = C sqrt(2 / (n eps)) leaves a loss above eps per step; read as a variance it is far too much."""
    per_step, n = 0.01, 16
    low, high = math.sqrt(2 / (n * per_step)), math.sqrt(2 / per_step)
    losses = [papers.decor_accountant(spec, sigma_ldp=low, sigma_cor=c).value for c in (0, 10, 1e2, 1e3)]
    assert (np.diff(losses) < 0).all()
    assert losses[-1] > per_step
    assert papers.decor_accountant(spec, sigma_ldp=1.01 * low, sigma_cor=1e3).value < per_step
    assert_allclose(papers.decor_accountant(spec, sigma_ldp=high, sigma_cor=0).value, per_step, rtol=1e-12)
    # a variance of `high` is a standard deviation below `high`: local noise alone misses the budget 14 times
    as_variance = papers.decor_accountant(spec, sigma_ldp=math.sqrt(high), sigma_cor=0)
    assert_allclose(as_variance.value / per_step, high, rtol=1e-12)


@given(40, graph=connected_graphs(min_nodes=2, max_nodes=7))
def test_neighbours_without_the_node_itself_average_to_less_than_one(graph):
    """1 / (degree + 1) for the neighbours only: rows of degree / (degree + 1), and equal models shrink."""
    A = graphs.adjacency(graph).toarray()
    degrees = A.sum(axis=1)
    printed = A / (degrees + 1)[:, None]
    assert_allclose(printed.sum(axis=1), degrees / (degrees + 1), rtol=1e-14)
    assert np.abs(np.linalg.matrix_power(printed, 200)).max() < 1e-6  # consensus on zero, whatever was learned
    refuses("row", gossip.from_array, printed)
    assert_allclose(gossip.uniform(graph).dense(), printed + np.diag(1 / (degrees + 1)), rtol=1e-14)


@given(20, margin=st.floats(-9, 9))
def test_labels_0_and_1_ignore_a_class(margin):
    """log(1 + exp(-b m)), m = x^T a, has slope -b / (1 + exp(b m)) in m: none for b = 0, where b = -1 teaches."""
    step = 1e-6
    for b in (0, 1, -1):
        loss = np.log1p(np.exp(-b * (margin + np.array([-step, step]))))
        assert_allclose(np.diff(loss) / (2 * step), -b / (1 + math.exp(b * margin)), atol=1e-8)
        assert b or (loss == math.log(2)).all()


def test_the_printed_step_sizes_diverge():
    """eta_0 = 16 p / (c L) is 8 / L here, four times what gradient descent can take on any quadratic."""
    complete = MH("complete:n=4")
    constants = {"smoothness": 100.0, "pl_constant": 1.0}
    ours = decor_step_sizes(complete, 400, **constants)
    c = decor_constant(complete, **constants)
    printed = 16 / (1.0 * (np.arange(400) + c * 100.0 / 1.0))  # the same decay, p = 1
    assert_allclose([printed[0], ours[0]], [16 / (c * 100), 1 / (c * 100)], rtol=1e-12)
    curvature = np.array([100.0, 1.0])
    diverged, converged = (np.prod(1 - steps[:100, None] * curvature, axis=0) for steps in (printed, ours))
    assert np.abs(diverged).max() > 1e50
    assert np.abs(converged).max() < 0.7


# ---- arXiv:2501.14644, both versions -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("epsilon", "renyi", "nine_b", "coded", "printed"),
    [
        (3, 0.5890, 0.4421, 1.221, 1.627), (5, 0.9483, 0.7368, 1.182, 1.522), (7, 1.2864, 1.0315, 1.159, 1.445),
        (10, 1.7609, 1.4736, 1.136, 1.358), (15, 2.4834, 2.2104, 1.113, 1.250), (20, 3.1404, 2.9472, 1.098, 1.170),
        (25, 3.7470, 3.6840, 1.088, 1.106), (30, 4.3133, 4.4208, 1.080, 1.053), (40, 5.3516, 5.8944, 1.069, 0.970),
    ],
)  # fmt: skip
def test_noise_of_the_published_budgets_over_the_exact_one(epsilon, renyi, nine_b, coded, printed):
    """The mu of the coded Renyi inversion and of (9b) at delta = 1e-5, and their noise over what Gaussian DP needs."""
    mu = float(exact_mu(epsilon, DELTA))
    assert_allclose(gaussian.mu_from_epsilon(epsilon, DELTA), mu, rtol=1e-9)
    by_code = papers.corn_equation_9_renyi(epsilon, DELTA).value
    assert_allclose([by_code, epsilon / (2 * math.sqrt(L))], [renyi, nine_b], atol=5e-5)
    assert_allclose([mu / by_code, mu / (epsilon / (2 * math.sqrt(L)))], [coded, printed], atol=6e-4)
    assert gaussian.epsilon_from_renyi(by_code, DELTA) <= epsilon + 1e-12
    if printed > 1:
        by_text = papers.corn_equation_9b(epsilon, DELTA).value
        assert_allclose(by_text, epsilon / (2 * math.sqrt(L)), rtol=1e-12)
        assert gaussian.epsilon_from_mu(by_text, DELTA) <= epsilon
    else:  # less noise than the exact budget needs
        refuses(r"outside the range of \(9b\)", papers.corn_equation_9b, epsilon, DELTA)
    if epsilon in (3, 10):  # so figures made with the text have this much more noise than those of the code
        assert_allclose(by_code / by_text, {3: 1.332, 10: 1.195}[epsilon], atol=6e-4)


def test_where_9b_ends():
    """Its Renyi argument up to 2.343 log(1/delta) = 26.98, its claim up to 36.08; v1 asks for 11.5 and goes to 40."""

    def of_9b(epsilon):
        return epsilon / (2 * math.sqrt(L))

    for epsilon, renyi, exact in ((30, 30.99, 27.93), (40, 45.66, 41.76)):
        assert_allclose(gaussian.epsilon_from_renyi(of_9b(epsilon), DELTA), renyi, atol=6e-3)  # two decimals
        assert_allclose(gaussian.epsilon_from_mu(of_9b(epsilon), DELTA), exact, atol=6e-3)
    assert gaussian.epsilon_from_renyi(of_9b(26.97), DELTA) < 26.97
    assert gaussian.epsilon_from_renyi(of_9b(26.98), DELTA) > 26.98
    assert_allclose(COROLLARY_RANGE * L, 26.976, atol=5e-4)
    assert float(exact_mu(36.08, DELTA)) > of_9b(36.08)
    assert float(exact_mu(36.09, DELTA)) < of_9b(36.09)
    for epsilon in (30, 36.08):  # above 26.98 only the published proof fails
        assert papers.corn_equation_9b(epsilon, DELTA).valid is True
    refuses(r"outside the range of \(9b\)", papers.corn_equation_9b, 36.09, DELTA)
    refuses(r"exact epsilon 41\.76.*mu_from_epsilon\(40", papers.corn_equation_9b, 40, DELTA)
    assert (sum(epsilon > L for epsilon in GRID), sum(epsilon > 26.976 for epsilon in GRID)) == (5, 2)


def test_the_reversed_constraint_is_met_by_vanishing_noise():
    """[R^-1]_ii >= r in place of <= r: R = 2^-k I is feasible from some k on and its objective falls to 0."""
    W, r = MH("ring:n=5"), 0.3
    for k in range(2, 40):
        R = 2.0**-k * np.eye(5)
        assert node_covariances.inverse_diagonal(R) >= r
    assert one_step_error(W, R) < 1e-11
    assert gaussian.epsilon_from_mu(2 * math.sqrt(node_covariances.inverse_diagonal(R)), DELTA) > 1e11
    solved = optimal_covariance(Dynamics(W), max_inverse_diagonal=r)
    assert node_covariances.inverse_diagonal(solved.covariance) <= r * (1 + 1e-9)
    assert solved.lower_bound > 1


@pytest.mark.parametrize(("at_nodes", "victim", "loss"), [([1, 0, -1], 1, 1.0), ([-1, 2, -1], 0, 5 / 6)])
def test_independent_disjoint_edges_are_not_enough(at_nodes, victim, loss):
    """Path 0 - 1 - 2: its two edges share a node, so nothing forbids that they draw one and the same noise.

    With local variance 1 and ever more pairwise noise each node is promised 1/3.
    """
    pair, Lap = 1e3, node_covariances.laplacian("path:n=3").toarray()
    v = np.array(at_nodes, dtype=float)
    true = np.eye(3) + pair**2 * np.outer(v, v)
    promised = node_covariances.decor_covariance(Lap, 1.0, pair)
    assert np.abs(true - promised).max() >= pair**2
    assert_allclose(node_covariances.inverse_diagonal_by_node(promised)[victim], 1 / 3, rtol=1e-5)
    assert_allclose(node_covariances.inverse_diagonal_by_node(true)[victim], loss, rtol=1e-5)
    F = algorithms.decor(Dynamics(MH("path:n=3")), EveryStep(1), sigma_ldp=1.0, sigma_cor=pair).noise.to_dense()
    assert_allclose(F @ F.T, promised, rtol=1e-12)


def test_with_complete_averaging_more_noise_is_always_better():
    """R = a J + v (I - J), J = 11^T / 5, at [R^-1]_ii = 1: only a counts, and falls to 1/5 as v grows."""
    J, W = np.full((5, 5), 0.2), MH("complete:n=5")
    for v, value in ((1, 1.0), (10, 0.217), (1000, 0.20016)):
        R = J / (5 - 4 / v) + v * (np.eye(5) - J)
        assert_allclose(np.linalg.inv(R).diagonal(), 1.0, rtol=1e-9)
        assert_allclose(one_step_error(W, R), value, atol=5e-4 if v == 10 else 5e-6)
        assert one_step_error(W, R) > 0.2
    solved = optimal_covariance(Dynamics(W), tolerance=1e-4)
    assert 0.2 <= solved.objective < 0.20016
    assert np.linalg.eigvalsh(solved.covariance)[-1] > 1000
    assert "not attained" in " ".join(solved.notes)


@pytest.mark.parametrize("q", [1, 2])
def test_disjoint_groups_are_useless_against_insiders_and_an_empty_intersection_is_not_disjoint(q):
    """Ring of five: its edges have no common node, but only pairwise disjoint groups are worth nothing."""
    dynamics = Dynamics(MH("ring:n=5"))
    edges = [[i, (i + 1) % 5] for i in range(5)]
    assert not set.intersection(*map(set, edges))
    assert any(set(a) & set(b) for a, b in itertools.combinations(edges, 2))
    for groups in ([[0, 1], [2, 3]], [[0, 1, 2], [3, 4]]):
        best = optimal_covariance(dynamics, groups=groups, coalition_size=q)
        assert_allclose(best.objective, best.independent_objective, rtol=1e-9)
        assert_allclose(best.private_variance, 1.0, rtol=1e-9)
    overlapping = optimal_covariance(dynamics, groups=edges, coalition_size=q)
    outside = optimal_covariance(dynamics, groups=[[0, 1, 2], [3, 4]])
    assert outside.objective < 0.9 * outside.independent_objective  # outsiders know no seed
    if q == 1:
        assert overlapping.objective < 0.98 * overlapping.independent_objective


@given(30, n=st.integers(2, 7), data=st.data())
def test_the_constraints_are_counted_and_polynomial_for_fixed_coalitions_only(n, data):
    q = data.draw(st.integers(0, n - 1))
    pairs = [(I, i) for k in range(q + 1) for I in itertools.combinations(range(n), k) for i in range(n) if i not in I]
    assert len(pairs) == sum(math.comb(n, k) * (n - k) for k in range(q + 1))
    if q == n - 1:
        assert len(pairs) == n * 2 ** (n - 1)
    # only coalitions of exactly q count, of them only distinct ones
    edges = tuple(itertools.combinations(range(n), 2))
    assert CoalitionProblem(np.eye(n), edges, q).blocks.constrained.sum() <= math.comb(n, q) * (n - q)


def test_too_many_coalitions_are_refused():
    dynamics = Dynamics(MH("erdos-renyi:n=20,p=0.5,seed=0"))
    refuses("184756 coalitions", optimal_covariance, dynamics, coalition_size=10)


@pytest.mark.parametrize("spec", ["path:n=4", "ring:n=5", "star:n=5"])
def test_without_private_noise_a_shared_seed_may_still_be_regular(spec):
    dynamics = Dynamics(MH(spec))
    everybody = [list(range(dynamics.num_nodes))]
    best = optimal_covariance(dynamics, groups=everybody, private=False)
    assert best.private_variance == 0
    assert np.linalg.eigvalsh(best.covariance)[0] > 0.1
    assert node_covariances.inverse_diagonal(best.covariance) <= 1 + 1e-9
    assert_allclose(best.objective, optimal_covariance(dynamics).objective, rtol=2e-3)


@pytest.mark.parametrize(("seed", "gain"), [(0, 0.0), (9, 0.098)])
def test_pairwise_noise_may_be_no_better_than_local_noise(seed, gain):
    dynamics = Dynamics(MH(f"erdos-renyi:n=20,p=0.2,seed={seed}"))
    best = optimal_pairwise(dynamics)
    assert (best.sigma_cor == 0) == (gain == 0)
    assert_allclose(1 - best.objective / best.independent_objective, gain, atol=5e-4)
    W, Lap = dynamics.gossip.dense(), node_covariances.laplacian(dynamics.gossip.graph()).toarray()
    noises = [np.eye(20) + x * Lap for x in np.geomspace(1e-4, 1e4, 80)]
    losses = [np.linalg.inv(R).diagonal().max() * np.trace(W @ R @ W.T) for R in noises]
    assert_allclose(min(1.0, min(losses) / np.sum(W**2)), 1 - gain, atol=1e-3)


def test_pairwise_noise_gains_nothing_on_most_sparse_graphs():
    """Connected draws of ER(20, 0.2) with seeds 0 to 29."""
    draws = [optimal_pairwise(Dynamics(MH(f"erdos-renyi:n=20,p=0.2,seed={seed}"))) for seed in range(30)]
    assert sum(best.sigma_cor == 0 for best in draws) == 20
    assert all("does not help" in best.notes[0] for best in draws if best.sigma_cor == 0)


@pytest.mark.parametrize("n", [4, 20])
def test_the_coded_central_baseline_has_root_n_times_the_noise_it_needs(n):
    """Variance s^2 / n on the average, s the local std, where s^2 / n^2 gives the same budget."""
    circumstances = {"adjacency": "replace-one", "clip_norm": 0.1, "unit": "user"}
    dynamics, every = Dynamics(MH(f"ring:n={n}")), EveryStep(50)
    local = calibrate(algorithms.dp_dsgd(dynamics, every), Privacy(trust.LDP(), **circumstances), mu=2.0).noise_std
    central = algorithms.cdp(dynamics, every)
    needed = calibrate(central, Privacy(trust.Central(), **circumstances), mu=2.0)
    assert_allclose(needed.noise_std / math.sqrt(n), local / n, rtol=1e-9)  # std on the average of n messages
    coded = account(central, Privacy(trust.Central(), **circumstances), noise_std=local)
    assert_allclose(coded.mu, 2.0 / math.sqrt(n), rtol=1e-9)

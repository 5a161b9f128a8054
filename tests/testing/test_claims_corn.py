"""Claims of CorN-DSGD and Whisper: verdicts as registered, and the smallest cases against numbers derived here."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose

from mfdl import gossip
from mfdl.testing import Claim, check_claim, claim, exact_epsilon
from mfdl.testing.claims.published import corn
from mfdl.testing.claims.published.corn import System

pytestmark = pytest.mark.filterwarnings("ignore:Using `assume` outside")  # claims are called with one case here

DELTA = 1e-5
L = -math.log(DELTA)
CLAIMS = [value for value in vars(corn).values() if isinstance(value, Claim)]

ONE = System(gossip.from_array(np.eye(1)), np.eye(1))
TWO = System(gossip.from_array(np.full((2, 2), 0.5)), np.eye(2))


@pytest.mark.parametrize("published", CLAIMS, ids=lambda one: one.id)
def test_verdict_is_as_registered(published):
    result = check_claim(published, examples=15 if published.expect == "holds" else None)
    assert result.as_registered, str(result)
    assert result.tried > 0
    assert len(result.counterexample or "") < 160
    assert bool(published.erratum) or published.expect == "holds"


def violation(published, **case):
    """(claimed, truth) at the worst entry, which must be a violation of a claim registered as refuted."""
    excess, claimed, truth = published.excess(case)
    assert excess > 0
    assert published.expect == "refuted"
    return claimed, truth


# ---- the smallest cases that the search finds ---------------------------------------------------------------


def test_the_noise_of_two_steps_is_twice_that_of_one():
    assert_allclose(violation(corn.theorem_1_all_steps, system=ONE, num_steps=2), (1, 2), rtol=1e-12)


def test_9b_breaks_its_budget():
    for epsilon, spent in ((37, 37.38), (40, 41.76)):
        claimed, truth = violation(corn.proposition_1, delta=DELTA, num_steps=1, epsilon=epsilon)
        assert claimed == epsilon
        assert_allclose(truth, float(exact_epsilon(epsilon / (2 * math.sqrt(L)), DELTA)), rtol=1e-9)
        assert_allclose(truth, spent, atol=5e-3)


@pytest.mark.parametrize(
    ("published", "case", "last", "first"),
    [
        (corn.proposition_1, {"num_steps": 2}, 36.08, 36.09),
        (corn.proposition_1_proof, {}, 26.97, 26.98),
    ],
)
def test_where_it_begins_to_fail(published, case, last, first):
    assert published.excess({"delta": DELTA, "epsilon": last, **case})[0] <= 0
    violation(published, delta=DELTA, epsilon=first, **case)


def test_the_proof_of_proposition_1_ends_before_27():
    rho = 27**2 / (8 * L)
    claimed, truth = violation(corn.proposition_1_proof, delta=DELTA, epsilon=27)
    assert claimed == 27
    assert_allclose(truth, rho + 2 * math.sqrt(rho * L), rtol=1e-9)


def test_beyond_the_condition_of_whisper_the_budget_is_still_kept():
    spent, epsilon = violation(corn.whisper_condition, delta=DELTA, epsilon=12)
    assert_allclose((spent, epsilon), (float(exact_epsilon(6 / math.sqrt(L), DELTA)), 12), rtol=1e-9)
    assert 8.59 < spent < 8.60
    violation(corn.whisper_condition, delta=DELTA, epsilon=36)


def test_whisper_prints_less_than_half():
    claimed, truth = violation(corn.whisper_theorem_2, system=TWO, num_steps=1, delta=DELTA)
    assert_allclose(claimed, 1 + math.sqrt(L), rtol=1e-12)
    assert_allclose(truth, 9.997, atol=5e-4)
    twenty = System(gossip.uniform(nx.complete_graph(20)), np.eye(20))
    assert_allclose(
        violation(corn.whisper_theorem_2, system=twenty, num_steps=1, delta=DELTA), (1.17, 9.997), atol=5e-3
    )


def test_the_reversed_constraint_admits_too_little_noise():
    claimed, truth = violation(corn.whisper_10, system=ONE, max_inverse_diagonal=0.5)
    assert_allclose((claimed, truth), (math.sqrt(2), 2), rtol=1e-12)


def test_an_agent_with_the_seed_sees_everything():
    assert violation(corn.algorithm_1_insiders, system=TWO) == (2.0, math.inf)


def test_two_edges_of_a_path_may_draw_one_noise():
    """R = I + v v^T, v = (2, -1, -1): an end has 1 - 1/7; promised (I + L)^-1 = sum over 1, 1/2, 1/4."""
    claimed, truth = violation(corn.pairwise_noise, draw_of_edge={(0, 1): 0, (0, 2): 0})
    assert_allclose((claimed, truth), (4 * (1 / 3 + 1 / 4 + 1 / 24), 4 * 6 / 7), rtol=1e-9)


def test_shared_noise_may_be_regular_without_a_private_part():
    assert violation(corn.problem_10_private_noise, seeds=np.array([[0.0, 1.0], [1.0, 0.0]])) == (1, 2)
    assert violation(corn.problem_10_private_noise, seeds=np.array([[1.0, 1.0], [1.0, 2.0]])) == (1, 2)


def test_disjoint_groups_leave_the_error_of_ldp():
    """Star of four: ||W||^2 = 4/16 + 3 * 2/4."""
    claimed, truth = violation(corn.disjoint_groups, graph=nx.star_graph(3), groups=((0, 1), (2, 3)))
    assert_allclose((claimed, truth), (1.75 * 0.999, 1.75), rtol=1e-5)


def test_on_a_star_of_five_pairwise_noise_gains_nothing():
    """||W||^2 = 5/25 + 4 * 2/4; in first order noise on the edges adds tr(W L W^T) and saves one ||W||^2."""
    star = nx.star_graph(4)
    W, Lap = gossip.uniform(star).dense(), nx.laplacian_matrix(star, nodelist=range(5)).toarray()
    assert np.trace(W @ Lap @ W.T) > 2.2
    assert_allclose(violation(corn.pairwise_gain, graph=star), (2.2 * (1 - 1e-6), 2.2), rtol=1e-12)
    claimed, truth = corn.pairwise_gain(graph=nx.star_graph(3))
    assert truth < 0.995 * claimed


def test_on_two_nodes_larger_noise_is_always_better():
    """R = a J + v (I - J), J = 11^T / 2, at [R^-1]_ii = 1: a = 1 / (2 - 1/v) is the error and tr R = a + v."""

    def error(largest):
        v = 2 * largest - 0.5  # a is 1/2 to order 1/v
        return 1 / (2 - 1 / v)

    claimed, truth = violation(corn.problem_9_attained, graph=nx.path_graph(2))
    assert_allclose((claimed, truth), (error(1000), error(100)), rtol=1e-4)
    assert truth > claimed > 0.5


def test_where_w_is_regular_the_optimum_is_attained():
    claimed, truth = corn.problem_9_attained(graph=nx.star_graph(3))
    assert_allclose(truth, claimed, rtol=1e-5)
    assert np.linalg.matrix_rank(gossip.uniform(nx.star_graph(3)).dense()) == 4


def test_two_clipped_records_move_their_sum_by_twice_the_claim():
    assert violation(corn.code_clipping, batch_size=2, clip_norm=1.0) == (2, 4)
    assert violation(corn.code_clipping, batch_size=128 // 32, clip_norm=0.5) == (1, 4)


def test_the_central_baseline_needs_less():
    assert_allclose(violation(corn.code_central_baseline, num_nodes=2, num_steps=1), (1 / 4, 1 / 2), rtol=1e-12)


# ---- statements next to those that hold are refuted: the search can tell -------------------------------------


def test_a_sharper_bound_than_the_renyi_loss_is_refuted():
    @claim(
        "a draft", "Theorem 2", covariance=corn.covariances(max_nodes=2), order=corn.theorem_2_renyi.strategies["order"]
    )
    def half(covariance, order):
        """Half the Renyi loss."""
        printed, truth = corn.theorem_2_renyi(covariance=covariance, order=order)
        return printed[0] / 2, truth[0]

    assert check_claim(half).verdict == "refuted"


def test_a_coalition_that_loses_its_seeds_is_underrated():
    """With the seeds of node 0 unknown to it, node 1 hides behind them; with them it stands alone."""
    seeds = np.array([[1.0], [1.0]])
    claimed, truth = corn.problem_10(seeds=seeds, coalition_size=1, num_steps=1)
    assert_allclose([*claimed, *truth], 2.0, rtol=1e-9)
    claimed, truth = corn.problem_10(seeds=seeds, coalition_size=0, num_steps=1)
    assert_allclose([*claimed, *truth], 2 * math.sqrt(2 / 3), rtol=1e-9)

"""Claims of arXiv:2510.17480: verdicts as registered, and the smallest counterexamples with numbers by hand."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from mfdl.testing.claims import Claim, check_claim
from mfdl.testing.claims.published import mafalda
from mfdl.testing.oracles import elliptope_reference, exact_delta
from mfdl.testing.strategies import random_encoder

pytestmark = pytest.mark.filterwarnings("ignore:Using `assume` outside")  # claims are called with one case here

CLAIMS = [value for value in vars(mafalda).values() if isinstance(value, Claim)]
PAIR, PATH = nx.path_graph(2), nx.path_graph(3)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_verdict_is_the_registered_one(claim):
    result = check_claim(claim, examples=30 if claim.expect == "holds" else None, seed=1)
    assert result.as_registered, str(result)
    assert result.tried >= 5 or claim.expect == "refuted"


def test_every_claim_is_exported_and_every_refuted_one_says_what_is_true():
    assert {getattr(mafalda, name) for name in mafalda.__all__} == set(CLAIMS)
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS) == 26
    for claim in CLAIMS:
        assert claim.id.startswith("mafalda-")
        assert len(claim.statement) <= 115
        assert claim.erratum or claim.expect == "holds"
    assert sum(claim.expect == "refuted" for claim in CLAIMS) == 15


# ---- the smallest counterexamples ----------------------------------------------------------------------------------


def test_equation_8_without_its_root():
    # what node 1 says in step 1 holds a third of g_0, under a third of z_0 and its own noise: X = (1/9) / (1 + 1/9)
    claimed, true = mafalda.equation_8_square(graph=PATH, attacker=2, victim=0, steps=2)
    assert claimed == pytest.approx(1 / 10)
    assert true == pytest.approx(math.sqrt(1 / 10))
    # one step, a neighbour: X = 1 is its own root
    assert mafalda.equation_8_square(graph=PATH, attacker=2, victim=1, steps=1) == pytest.approx((1, 1))


@pytest.mark.parametrize(("slope", "expected"), [(0, 0.1256), (1, 0.2180)])
def test_reacting_gradients_on_a_path(slope, expected):
    claimed, true = mafalda.theorem_7_adaptive(graph=PATH, attacker=2, victim=0, slope=slope)
    assert claimed == pytest.approx(2 * norm.cdf(math.sqrt(0.1) / 2) - 1)
    assert (true > claimed + 0.05) == (slope != 0)
    # node 1 got r from node 0, N(0 or 1/3, 1/9); it shows r + clip(slope r) + N(0, 1)
    r, y = np.linspace(-3, 3.5, 1501), np.linspace(-9, 9, 1501)
    kernel = norm.pdf(y[:, None] - (r + np.clip(slope * r, -1, 1))[None, :])
    without, moved = (kernel @ norm.pdf(r, mean, 1 / 3) * (r[1] - r[0]) for mean in (0.0, 1 / 3))
    by_hand = 0.5 * float(np.abs(without - moved).sum() * (y[1] - y[0]))
    assert true == pytest.approx(by_hand, abs=1e-3)
    assert true == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epsilon", [0, 1])
def test_reactions_that_are_constant_attain_the_bound_where_all_messages_are_seen(seed, epsilon):
    C = np.abs(random_encoder(np.random.default_rng(seed), 2))
    claimed, true = mafalda.theorem_7_adaptive_ldp(encoder=C, slope=0, offset=3, epsilon=epsilon)
    assert true == pytest.approx(claimed, abs=1e-8)
    assert true == pytest.approx(float(exact_delta(float(np.linalg.norm(C.sum(axis=1))), epsilon)), abs=1e-8)
    # g_1 = -1 moves the view by C (1, -1), which is less
    _, opposed = mafalda.theorem_7_adaptive_ldp(encoder=C, slope=0, offset=-3, epsilon=epsilon)
    assert opposed == pytest.approx(float(exact_delta(float(np.linalg.norm(C @ [1, -1])), epsilon)), abs=1e-8)
    assert opposed < claimed


def test_a_path_is_not_in_echelon_form():
    # node 1 is heard: z_1 in step 0; in step 1 z_1 (old and new) and z_0, the new ones both start there
    assert mafalda.theorem_7_echelon(graph=PATH, attacker=2, steps=2) == (2, 3)
    assert mafalda.theorem_7_echelon(graph=PAIR, attacker=0, steps=4) == (4, 4)


def test_the_local_value_cuts_the_sum_of_magnitudes():
    claimed, true = mafalda.figure_2_tighter(graph=PATH, attacker=0, victim=1, steps=5)
    assert claimed == 5
    assert true == pytest.approx(5.0965, abs=1e-4)
    # X is the block of node 1 in the projector B^+ B, B the noise of nodes 1 and 2 in the messages of node 1
    W = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    B = np.zeros((5, 10))
    for t in range(5):
        for s in range(t + 1):
            B[t, 2 * s : 2 * s + 2] = np.linalg.matrix_power(W, t - s)[1, 1:]
    X = (np.linalg.pinv(B) @ B)[::2, ::2]
    assert np.abs(X).sum() == pytest.approx(true)
    assert elliptope_reference(X) <= 5 + 1e-6
    assert mafalda.figure_2_tighter(graph=PATH, attacker=0, victim=2, steps=5)[1] < 2  # two edges away


def test_an_attacker_is_no_victim_of_its_own():
    assert mafalda.lemma_11_known_gradients(graph=PAIR, attacker=0, victim=0, steps=1) == (0, math.inf)
    reduced, full = mafalda.lemma_11_known_gradients(graph=PAIR, attacker=0, victim=1, steps=2)
    assert reduced == pytest.approx(full) == pytest.approx(2)


def test_known_noise_of_another_node_shows_its_gradient():
    assert mafalda.lemma_11_factorization(graph=PAIR, attacker=0, noise_known_of=1, steps=1) == pytest.approx((0, 1))
    assert mafalda.lemma_11_factorization(graph=PAIR, attacker=0, noise_known_of=0, steps=1) == pytest.approx((0, 0))


def test_forgetting_its_own_noise_underrates_a_neighbour():
    # x_0, and (x_0 + own noise) / 2 + x_1: given x_0, the second step counts 1 / (1 + 1/4), not 1
    claimed, true = mafalda.equation_12_own_noise(graph=PAIR, attacker=0, victim=1, steps=2)
    assert claimed == pytest.approx(1 + 4 / 5)
    assert true == pytest.approx(2)


def test_all_messages_of_decor_say_more_than_those_received():
    claimed, true = mafalda.decor_received_messages(graph=PATH, member=0, victim=1, steps=1)
    assert claimed == pytest.approx(1 / (1 / 4 + 4))  # node 1 alone, its noise with node 2 is hidden
    both = np.array([[1, -1], [-1, 1]]) * 4 + np.eye(2) / 4
    assert true == pytest.approx(np.linalg.inv(both)[0, 0])
    assert true == pytest.approx(2.0606, abs=1e-4)


def test_replacing_a_clipped_gradient_moves_it_by_twice_the_clipping_norm():
    assert mafalda.clip_is_replace_one(gradient=[0, 1], replaced=[0, -1], clip_norm=1) == (1, 2)
    claimed, true = mafalda.clip_is_replace_one(gradient=[3, 0], replaced=[0, 3], clip_norm=2)
    assert (claimed, true) == (2, pytest.approx(2 * math.sqrt(2)))


def test_noise_without_the_sensitivity_of_the_encoder():
    assert mafalda.algorithm_1_noise(system="dp-dsgd", epochs=2, period=1) == pytest.approx((1, math.sqrt(2)))
    assert mafalda.algorithm_1_noise(system="dp-dsgd", epochs=1, period=3) == pytest.approx((1, 1))
    # b k (k+1) (2k+1) / 6 = 2 * 14
    assert mafalda.algorithm_1_noise(system="anti-pgd", epochs=3, period=2) == pytest.approx((1, math.sqrt(28)))


def test_the_first_subdiagonal_is_not_the_identity():
    # I for W = 11^T / 2: distance 1, and W has norm 1
    assert mafalda.workload_diagonals(graph=PAIR, diagonal=1) == pytest.approx((0, 1))
    assert mafalda.workload_diagonals(graph=PAIR, diagonal=2)[1] == pytest.approx(0, abs=1e-15)  # W is a projector


def test_a_cholesky_factor_on_the_wrong_side():
    # W = W^2 of norm 1: H = [[2, 1], [1, 1]], tr(H diag(1, 1/4)) = 9/4; G = [[2, 0], [1, 1]] / sqrt(2) gives 21/8
    C = np.diag([1.0, 2.0])
    assert mafalda.lemma_10_cholesky(graph=PAIR, encoder=C)[1] == pytest.approx((21 / 8) / (9 / 4) - 1)
    assert mafalda.lemma_10_root(graph=PAIR, encoder=C)[1] == pytest.approx(0, abs=1e-12)


def test_commutation_matrices_of_one_size_and_of_the_other():
    _, off = mafalda.appendix_d_commutation(graph=PAIR, encoder=np.eye(3))
    assert off == pytest.approx(math.sqrt(2 / 3))
    # both sides have twelve entries 1/2, eight at the same places: sqrt((4 + 4) / 12) apart
    assert mafalda.appendix_d_commutation(graph=PAIR, encoder=np.eye(2))[1] == 0  # n = T
    assert mafalda.lemma_10_commutation(graph=PAIR, encoder=np.eye(3))[1] == 0


def test_a_plain_cholesky_factor_has_other_column_norms():
    # X = [[2, 1], [1, 1]]: G = [[2, 0], [1, 1]] / sqrt(2)
    C = np.array([[1.0, 0], [1, 1]])
    assert mafalda.algorithm_2_cholesky(encoder=C) == pytest.approx((2, 5 / 2))


def test_the_coded_bsr_needs_noise_of_the_next_step():
    # the inverse of [[1, 1/2], [1/2, 1]] is [[4, -2], [-2, 4]] / 3
    assert mafalda.bsr_as_coded(steps=2) == pytest.approx((0, 2 / 3))
    assert mafalda.bsr_as_coded(steps=4)[1] == pytest.approx(0.554, abs=5e-4)


def test_claims_of_theorem_5_are_not_empty():
    one = mafalda.theorem_5_pndp_below_ldp(graph=PATH, attacker=2, victim=0, encoder=np.tri(2))
    assert one[0] == pytest.approx(5, rel=1e-6)  # [[2, 1], [1, 1]]
    assert 0 < one[1] < 1
    for system in ("dp-dsgd", "muffliato", "anti-pgd", "bsr", "mafalda", "mf-shared", "mf-per-node"):
        assert_allclose(mafalda.theorem_5_ldp(graph=PATH, steps=3, system=system, seed=1)[1], 0, atol=1e-9)

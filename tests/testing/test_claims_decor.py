"""Claims of DECOR: every verdict is as registered, and each counterexample is checked by hand on its smallest case."""

import itertools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose

from mfdl.privacy.gaussian import delta_from_mu
from mfdl.testing import Claim, check_claim
from mfdl.testing.claims.published import decor
from mfdl.testing.claims.published.decor.accounting import coded_search
from mfdl.testing.claims.published.decor.averaging import BOUND_CONSTANT, bound_and_loss

pytestmark = pytest.mark.filterwarnings("ignore:Using `(assume|reject)` outside")  # cases are called directly

CLAIMS = [value for value in vars(decor).values() if isinstance(value, Claim)]
EDGE, STAR = nx.path_graph(2), nx.star_graph(2)  # a star of three nodes is a path, middle first


@pytest.mark.parametrize("one", [c for c in CLAIMS if c.expect == "holds"], ids=lambda c: c.id)
def test_what_is_said_to_hold_is_not_refuted(one):
    result = check_claim(one, examples=30)
    assert result.as_registered, result
    assert result.tried >= 10


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("one", [c for c in CLAIMS if c.expect == "refuted"], ids=lambda c: c.id)
def test_what_is_said_to_be_refuted_is_found(one, seed):
    result = check_claim(one, seed=seed)
    assert result.as_registered, result
    assert one.erratum


def test_ids_and_statements():
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)
    assert "decor-code-noise-reuse" in {c.id for c in CLAIMS}
    assert all(c.id.startswith("decor-") and len(c.statement) <= 112 for c in CLAIMS)
    assert set(decor.__all__) == {name for name, value in vars(decor).items() if isinstance(value, Claim)}


# ---- noise and its accounting -----------------------------------------------------------------------------


def test_noise_drawn_once_hides_no_alternating_difference():
    """R = [[2, -1], [-1, 2]]: 2/3 per step is claimed; in g_0 - g_1 the pairwise noise cancels, 1/1 is left."""
    claimed, truth = decor.noise_reuse_is_free(graph=EDGE, num_steps=2, local=1, pair=1)
    assert_allclose([claimed, truth], [2 * 2 * 2 / 3, 2 * 2 * 1], rtol=1e-12)
    once = decor.noise_reuse_is_free(graph=EDGE, num_steps=1, local=1, pair=1)
    assert_allclose(once[1], once[0], rtol=1e-12)


def test_line_3_needs_its_inverse_and_standard_deviations():
    """R = [[2, -1], [-1, 2]] / 16, its inverse has 32/3 on the diagonal; read as variances it is R / 4."""
    claimed, truth = decor.loss_without_the_inverse(graph=EDGE, local=1 / 4, pair=1 / 4)
    assert_allclose([claimed, truth], [2 * 2 / 16, 2 * 32 / 3], rtol=1e-12)
    claimed, truth = decor.inputs_as_variances(graph=EDGE, local=1 / 4, pair=1 / 4)
    assert_allclose([claimed, truth], [2 * 8 / 3, 2 * 32 / 3], rtol=1e-12)


def test_the_corollary_on_two_nodes_beyond_its_range():
    """s_local^2 = s_pair^2 = 0.16 / L at 10 L, so mu^2 = 4 (2/3) L / 0.16."""
    L = math.log(10)
    claimed, truth = decor.corollary_has_a_range(graph=EDGE, epsilon_over_log=10, delta=0.1)
    delta = delta_from_mu(math.sqrt(4 * 2 / 3 * L / 0.16), 10 * L)
    assert delta > 0.2
    assert_allclose([claimed, truth], [-L, math.log(delta)], rtol=1e-9)
    inside = decor.corollary_has_a_range(graph=EDGE, epsilon_over_log=2, delta=0.1)
    assert inside[1] < inside[0]


def test_the_coded_search_stops_above_its_target():
    log = -math.log(1e-5)
    budget = (math.sqrt(log + 3) - math.sqrt(log)) ** 2 / 1000
    ldp = math.sqrt(2 / budget)
    local = ldp / math.sqrt(2) + (ldp - ldp / math.sqrt(2)) / 49
    pair = coded_search(EDGE, local, budget)
    slope = 2 * (local**2 + pair**2) / (local**2 * (local**2 + 2 * pair**2))
    assert budget < slope < budget + 1e-4
    claimed, truth = decor.search_meets_its_target(graph=EDGE, place=1, epsilon=3, num_steps=1000)
    assert claimed == 3
    assert_allclose(truth, 1000 * slope + 2 * math.sqrt(1000 * slope * log), rtol=1e-9)
    assert truth > 3.04


def test_the_coded_search_finds_the_couple_of_the_published_run():
    """Ring of 16, T = 3500, target 10: s_local = 22.97 and s_pair = 94, whose epsilon is 10.46."""
    log, T, n = -math.log(1e-5), 3500, 16
    pair = coded_search(nx.cycle_graph(n), 22.97, (math.sqrt(log + 10) - math.sqrt(log)) ** 2 / T)
    assert pair == 94
    spectrum = 22.97**2 + pair**2 * 2 * (1 - np.cos(2 * np.pi * np.arange(n) / n))
    spent = T * 2 * np.mean(1 / spectrum)
    assert_allclose(spent + 2 * math.sqrt(spent * log), 10.46, atol=5e-3)


# ---- weights ----------------------------------------------------------------------------------------------


def test_printed_weights_on_a_path_of_three():
    """Columns of [[1, 1, 1] / 3, [1, 1, 0] / 2, [1, 0, 1] / 2] sum to 4/3, 5/6 and 5/6."""
    assert_allclose(decor.weights_are_doubly_stochastic(graph=STAR), [0, 1 / 3], atol=1e-15)
    assert_allclose(decor.rows_sum_to_one(graph=EDGE), [0, 1 / 2], atol=1e-15)
    # per edge 1/4 between columns, 1/36 + 1/36 + 4/36 between rows
    assert_allclose(decor.lemma_8_by_columns(graph=STAR, pair=1), [0, (1 / 4 - 1 / 6) / (1 / 4)], atol=1e-12)


@pytest.mark.parametrize(("leaves", "refuted"), [(15, False), (16, True), (19, True)])
def test_columns_of_printed_weights_on_stars(leaves, refuted):
    """An edge has leaves / 4 + 1 / (leaves + 1)^2 between its columns; 2.376 on a star of 20 nodes."""
    claimed, truth = decor.heterogeneity_of_columns(left=1, right=leaves)
    exact = (Fraction(leaves, 4) + Fraction(1, (leaves + 1) ** 2)) / 2
    assert claimed == 2
    assert_allclose(truth, float(exact), rtol=1e-12)
    assert (exact > 2) is refuted


def test_metropolis_hastings_on_complete_bipartite_graphs():
    """((a - 1) + (b - 1) + (b - a)^2) / (2 (b + 1)^2), a <= b: above 2 / a first for 8 + 27 nodes."""

    def exact(a, b):
        return Fraction(a + b - 2 + (b - a) ** 2, 2 * (b + 1) ** 2)

    claimed, truth = decor.heterogeneity_of_metropolis_hastings(num_nodes=35)
    assert_allclose(truth, [float(exact(a, 35 - a)) for a in range(1, 18)], rtol=1e-12)
    assert [a for a in range(1, 18) if exact(a, 35 - a) > Fraction(2, a)] == [8]
    assert truth[7] > claimed[7] == 1 / 4
    assert not any(exact(a, n - a) > Fraction(2, a) for n in range(2, 35) for a in range(1, n // 2 + 1))
    claimed, truth = decor.heterogeneity_of_metropolis_hastings(num_nodes=105)
    assert claimed[4] == 0.4
    assert_allclose(truth[4], 0.447, atol=5e-4)


# ---- training ---------------------------------------------------------------------------------------------


def test_printed_step_sizes_on_two_nodes():
    """p = 1, c = 2: models are multiplied by 1 - 16 / (t + 2), in six steps by 429."""
    factor = math.prod(1 - Fraction(16, t + 2) for t in range(6))
    assert abs(factor) == 429
    claimed, truth = decor.printed_step_sizes_converge(graph=EDGE, condition=1, num_steps=6)
    assert_allclose([claimed, truth], [BOUND_CONSTANT * 4 / 36, 429**2], rtol=1e-12)


@pytest.mark.parametrize("graph", [EDGE, STAR, nx.cycle_graph(4)])
@pytest.mark.parametrize(("condition", "num_steps"), list(itertools.product([1, 3, 10], [1, 5, 20, 400])))
def test_the_step_sizes_of_the_lemmas_meet_the_bound_with_a_constant_of_256(graph, condition, num_steps):
    """Up to t = 16 c L / p the loss stays below its start, which the bound is at 256; then it falls faster."""
    bound, loss = bound_and_loss(graph, condition, num_steps, delay=16)
    assert loss <= 256 / BOUND_CONSTANT * bound


def test_three_nodes_of_one_record_share_it():
    """Held are record 0, record 1 and record 1 again: one is shared, one lost."""
    assert decor.split_holds_every_record_once(counts=[1, 1, 1]) == (0, 2)
    assert decor.split_holds_every_record_once(counts=[3, 2]) == (0, 0)

"""Claims of Muffliato: every verdict, and the smallest counterexamples with numbers derived here."""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from numpy.testing import assert_allclose
from scipy.stats import norm

from mfdl.testing import check_claim
from mfdl.testing.claims import Claim
from mfdl.testing.claims.published import muffliato
from mfdl.testing.oracles import exact_view_gram

pytestmark = pytest.mark.filterwarnings("ignore:Using `assume` outside")  # claims are called with one case here

CLAIMS = [value for value in vars(muffliato).values() if isinstance(value, Claim)]
PATH = nx.path_graph(3)  # u - w - v; u = 0, v = 2


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_verdict_is_the_registered_one(claim):
    found = check_claim(claim, examples=30 if claim.expect == "holds" else None)
    assert found.as_registered, found
    assert found.tried > 0


def test_claims_have_names_and_refuted_ones_say_what_is_true():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS) == 9
    for claim in CLAIMS:
        assert len(claim.statement) <= 120
        assert claim.erratum or claim.expect == "holds"


# ---- the smallest cases -------------------------------------------------------------------------------------


def test_two_gossip_rounds_show_what_one_message_hides():
    """v knows z_v; from z_w and (z_u + z_w + z_v) / 3 it has z_u alone. Claimed: (1/9) / (3/9)."""
    claimed, truth = muffliato.several_gossip_rounds(graph=PATH, attacker=2, victim=0, rounds=2)
    assert_allclose([claimed, truth], [1 / 3, 1], rtol=1e-12)
    assert muffliato.several_gossip_rounds(graph=PATH, attacker=2, victim=0, rounds=1) == (0, 0)


def test_three_participations_on_the_path():
    W = [[Fraction(x, 10) for x in row] for row in ([9, 1, 0], [1, 0, 9], [0, 9, 1])]
    powers = [[[Fraction(int(i == j)) for j in range(3)] for i in range(3)]]
    for _ in range(2):
        powers.append([[sum(W[i][k] * powers[-1][k][j] for k in range(3)) for j in range(3)] for i in range(3)])
    # what w sends in step t of the noise of node j in step s; v knows its own
    sent = [[powers[t - s][1][j] if s <= t else Fraction(0) for s in range(3) for j in range(3)] for t in range(3)]
    B = [[x if j % 3 != 2 else Fraction(0) for j, x in enumerate(row)] for row in sent]
    X = exact_view_gram([row[0::3] for row in sent], B)
    assert all(x >= 0 for row in X for x in row)  # so equal gradients attain the sum
    exact = sum(x for row in X for x in row)
    printed = sum((3 - s) * powers[s][1][0] ** 2 / sum(x * x for x in powers[s][1]) for s in range(3))
    assert (round(float(printed), 4), round(float(exact), 4)) == (0.0362, 0.0450)
    found = muffliato.several_participations(weights=np.array([[9, 1, 0], [1, 0, 9], [0, 9, 1]]) / 10, steps=3)
    assert_allclose(found, [float(printed), float(exact)], rtol=1e-10)


def test_a_clipped_line_as_gradient_shows_the_record_again():
    """r = h of w is N(g / 3, 1/9); v sees r + clip(2 r, -1, 1) + z. By a plain sum over r and over what is seen."""
    r, step = np.linspace(-4, 4.5, 3001, retstep=True)
    y, grid = np.linspace(-9, 9, 1201, retstep=True)
    change = norm.pdf(r, 1 / 3, 1 / 3) - norm.pdf(r, 0, 1 / 3)
    density = norm.pdf(y[:, None] - r - np.clip(2 * r, -1, 1)) @ change * step
    expected = np.abs(density).sum() * grid / 2
    claimed, truth = muffliato.reacting_gradients(graph=PATH, attacker=2, victim=0, slope=2)
    assert_allclose(claimed, 2 * norm.cdf(1 / 3**0.5 / 2) - 1, rtol=1e-12)
    assert_allclose(truth, expected, atol=1e-3)
    assert truth > claimed + 0.03
    # gradients fixed in advance: N(0, 10/9) moved by 1/3
    _, still = muffliato.reacting_gradients(graph=PATH, attacker=2, victim=0, slope=0)
    assert_allclose(still, 2 * norm.cdf((1 / 10) ** 0.5 / 2) - 1, atol=1e-4)


def test_the_first_message_of_a_neighbour_is_its_gradient():
    assert_allclose(muffliato.first_message(graph=nx.path_graph(2), attacker=0, victim=1), [1 / 2, 1])


def test_weights_that_are_not_squared_do_not_pay_for_shared_noise():
    """Claimed: (1/4) / (1/16 + 1/4 + 1/16) from the second message of w; the two together show z_u alone."""
    W = np.array([[3, 1, 0], [1, 2, 1], [0, 1, 3]]) / 4
    assert_allclose(muffliato.as_coded_several_rounds(W=W, attacker=2, victim=0, rounds=2), [2 / 3, 1])
    claimed, truth = muffliato.as_coded(W=W, attacker=2, victim=0, steps=2)
    assert_allclose([claimed, truth], [2 / 3, 1 / 17])  # one round: 1/16 against 1 + 1/16, in one step of the two


def test_the_transposed_index_reads_what_w_gives_for_what_it_gets():
    """w = 0 hears u = 2 with weight 1/2: (1/4) / (1 + 1/4). By columns: u hears w with 1/3, (1/9) / (1 + 1/9)."""
    W = np.array([[0, 1 / 2, 1 / 2], [1, 0, 0], [1 / 3, 0, 2 / 3]])
    assert_allclose(muffliato.transposed_index(W=W, attacker=1, victim=2, steps=2), [1 / 10, 1 / 5])


def test_what_holds_is_tight_or_exact_somewhere():
    W = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    assert_allclose(muffliato.one_participation(W=W, attacker=2, victim=1, steps=1), [1, 1])
    assert_allclose(muffliato.one_participation(W=W, attacker=2, victim=0, steps=2), [1 / 3, 1 / 10])
    assert muffliato.under_ldp(W=np.full((2, 2), 1 / 2), steps=3, rounds=2)[1] < 1e-12


@examples(30)
@given(W=muffliato.path_weights())
def test_path_weights_are_symmetric_and_average(W):
    assert (W == W.T).all()
    assert (W >= 0).all()
    assert W[0, 2] == 0
    assert_allclose(W.sum(axis=1), 1)

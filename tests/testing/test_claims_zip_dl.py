"""Claims of Zip-DL: every verdict, the matrices against the library's own, the smallest cases derived here."""

import math

import networkx as nx
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import norm

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.participation import EveryStep
from mfdl.testing import check_claim, connected_graphs
from mfdl.testing.claims import Claim
from mfdl.testing.claims.published import zip_dl

pytestmark = pytest.mark.filterwarnings("ignore:Using `assume` outside")  # claims are called with one case here

CLAIMS = [value for value in vars(zip_dl).values() if isinstance(value, Claim)]
EDGE, RING = nx.path_graph(2), nx.cycle_graph(6)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_verdict_is_the_registered_one(claim):
    found = check_claim(claim, examples=30 if claim.expect == "holds" else None)
    assert found.as_registered, found
    assert found.tried > 0


def test_claims_have_names_and_refuted_ones_say_what_is_true():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS) == 10
    for claim in CLAIMS:
        assert len(claim.statement) <= 120
        assert claim.erratum or claim.expect == "holds"


@examples(25)
@given(graph=connected_graphs(min_nodes=2, max_nodes=4), steps=st.integers(1, 3))
def test_the_matrices_are_those_of_the_library(graph, steps):
    """Two ways from the paper's lines to a view: written out, and by the recursion of `algorithms.zip_dl`."""
    W = gossip.metropolis_hastings(graph)
    one = algorithms.zip_dl(Dynamics(W), EveryStep(steps), self_messages=True)
    run = zip_dl._run(W.dense(), steps)
    views = [(trust.LDP().view(one, 0), np.ones(len(run.A), dtype=bool))]
    sent_only = algorithms.zip_dl(Dynamics(W), EveryStep(steps))
    views.append((trust.LDP().view(sent_only, 0, release="none"), run.sent()))
    for view, rows in views:
        assert_allclose(view.dense_gradients_by_time(), run.A[rows], atol=1e-12)
        assert_allclose(view.dense_noise(), run.B[rows], atol=1e-12)
    heard = trust.PNDP([0]).view(sent_only, 1, release="none")
    assert_allclose(heard.dense_gradients_by_time(), run.A[run.heard_by(0)], atol=1e-12)
    assert_allclose(heard.dense_noise(), run.without_noise_of(0)[run.heard_by(0)], atol=1e-12)


# ---- the smallest cases -------------------------------------------------------------------------------------


def test_both_messages_of_a_node_average_to_its_model():
    """One edge, weights 1/2: Z to the other is (Y - Y') / 2 and Z to itself (Y' - Y) / 2, so (1, 1) is no noise."""
    assert_allclose(zip_dl._noise(np.array([0.5, 0.5])), [[0.5, -0.5], [-0.5, 0.5]])
    assert_allclose(zip_dl.theorem_5_ldp(graph=EDGE, steps=1), [0, 1], atol=1e-12)
    assert zip_dl.theorem_5_ldp(graph=RING, steps=2)[1] > 0.5


def test_a_message_has_less_noise_than_was_drawn():
    """Variance 1 - 1 / d with equal weights: 1 / 2 on an edge, 2 / 3 on a ring."""
    assert_allclose(zip_dl.independent_messages(graph=EDGE, attacker=0, victim=1, steps=1), [1, 2])
    assert_allclose(zip_dl.independent_messages(graph=RING, attacker=0, victim=1, steps=1), [1, 1.5])
    claimed, truth = zip_dl.independent_messages(graph=nx.path_graph(3), attacker=0, victim=1, steps=2)
    assert truth > claimed + 0.1


def test_what_is_released_has_no_noise_left():
    """One edge: what is sent has variance 1 / 2, so one step costs 2; the average (g_0 + g_1) / 2 has none."""
    assert zip_dl.released_average(graph=EDGE, steps=1) == (pytest.approx(2), math.inf)
    assert zip_dl.released_models(graph=EDGE, steps=1) == (pytest.approx(2), math.inf)
    run = zip_dl._run(np.full((2, 2), 0.5), 1)
    assert_allclose(run.final_A.mean(axis=0), [-0.5, -0.5])
    assert_allclose(run.final_B.mean(axis=0), 0, atol=1e-15)
    assert_allclose(run.final_A @ [1, 0], [-0.5, -0.5])  # -g_0 + g_0 / 2 + what was sent, see the claim's erratum


@pytest.mark.parametrize(("steps", "value"), [(1, 6), (2, 30), (3, 84), (4, 180)])
def test_the_loss_on_a_ring_of_six(steps, value):
    run = zip_dl._run(gossip.metropolis_hastings(RING).dense(), steps)
    assert zip_dl._loss(run.A[run.sent()][:, 3::6], run.B[run.sent()]) == pytest.approx(value)
    difference = zip_dl.growth(W=gossip.metropolis_hastings(RING).dense(), node=3, steps=steps)
    assert_allclose(difference, 0, atol=1e-9)


@pytest.mark.parametrize("neighbours", [1, 2, 3, 4])
def test_the_coded_noise_is_the_printed_one_scaled(neighbours):
    d = neighbours + 1
    printed, coded = zip_dl._noise(np.full(d, 1 / d)), zip_dl._coded_noise(d)
    assert_allclose(coded @ coded.T, d / neighbours * printed @ printed.T, atol=1e-12)
    assert_allclose(np.diag(coded @ coded.T), 1)
    # on the diagonal 1 instead of 1 - 1 / d, beside it 1 / neighbours instead of 1 / d
    assert_allclose(zip_dl.coded_noise(neighbours=neighbours), [0, 1 / d], atol=1e-12)


def test_without_self_noise_the_mean_of_the_messages_is_the_model():
    assert_allclose(zip_dl._coded_noise(2), np.array([[1, -1], [-1, 1]]) / math.sqrt(2))
    for neighbours in (2, 3):
        assert_allclose(zip_dl.coded_without_self_noise(neighbours=neighbours), [0, 1], atol=1e-12)


# ---- gradients that react -----------------------------------------------------------------------------------


def brute_force_variation(weight, first, second, noise):
    """Sums over a plain grid of what both nodes send first and of what node 0 sends second, from Algorithm 1.

    Y is turned into (what is sent, what is not) by hand: Z to the other is s e, Z to itself -(weight / own) s e.
    """
    own = 1 - weight
    s = noise * math.sqrt(1 / 4 + (own / (2 * weight)) ** 2)
    e, step = np.linspace(-6, 6, 121, retstep=True)
    last, last_step = np.linspace(-9, 9, 181, retstep=True)
    sent, received = np.meshgrid(s * e, s * e, indexing="ij")  # messages of node 0 (about 0) and of node 1
    worlds = []
    for g, react in zip(first, second, strict=True):
        z = sent + g  # the message -g + z
        to_itself = -g - weight / own * z
        model = own * to_itself + weight * received
        after = model - react(model)
        density = norm.pdf(z / s) * norm.pdf(received / s) * step**2
        worlds.append((density, after / s))
    middle = (worlds[0][1] + worlds[1][1]) / 2
    p, q = (density[..., None] * norm.pdf(last - (after - middle)[..., None]) for density, after in worlds)
    return float(np.abs(p - q).sum() * last_step / 2)


@pytest.mark.parametrize(
    ("weight", "first", "waves", "noise"),
    [
        (0.5, (1, 0), ([0, 1], [0, 1]), 1),
        (0.5, (1, 0), ([1, -1], [1, -1]), 2),
        (0.25, (0.5, -0.5), ([0.5, -0.5, 0], [-0.5, 0.5]), 1),
        (0.5, (0.5, -0.5), ([0.5], [-0.5]), 3),
    ],
)
def test_the_integral_is_the_plain_sum(weight, first, waves, noise):
    second = tuple(zip_dl._wave(wave) for wave in waves)
    expected = brute_force_variation(weight, first, second, noise)
    # jumps of the wave lie anywhere in the grid's cells: 0.01
    assert_allclose(zip_dl._two_step_total_variation(weight, first, second, noise), expected, atol=0.01)


def test_one_step_of_a_record_shows_again_in_its_nodes_other_gradients():
    """X = [[4, 2], [2, 2]], so mu = 2 at noise 1; the model moves by one, which changes 0 to 1 or 1 to 0.

    So the second messages differ by 2 or by 0 where fixed gradients leave 1.
    """
    claimed, truth = zip_dl.record_adaptive(wave=[0, 1], noise=1)
    assert_allclose(claimed, 2 * norm.cdf(1) - 1, rtol=1e-12)
    assert truth > claimed + 0.08
    # much noise: even and odd intervals are as likely, and energies 2 (1 + d^2) / noise^2 for d = 0 and 2 alternate
    _, truth = zip_dl.record_adaptive(wave=[0, 1], noise=4)
    mixture = np.mean([2 * norm.cdf(math.sqrt(2 * (1 + d**2)) / 4 / 2) - 1 for d in (0, 2)])
    assert_allclose(truth, mixture, atol=1e-3)
    fixed = zip_dl.record_adaptive(wave=[1], noise=1)
    assert_allclose(fixed[1], fixed[0], atol=1e-9)


@pytest.mark.parametrize("neighbour", [2, 3, 4])
@pytest.mark.parametrize("noise", [1, 4])
def test_the_number_for_users_is_attained_by_constant_gradients(neighbour, noise):
    claimed, truth = zip_dl.user_adaptive(neighbour=neighbour, first=[1], second=[-1], noise=noise)
    assert_allclose(truth, claimed, atol=1e-9)
    assert zip_dl.user_adaptive(neighbour=neighbour, first=[-1], second=[1], noise=noise)[1] < claimed - 0.01

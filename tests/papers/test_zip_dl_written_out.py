"""What the claims about Zip-DL rest on: matrices from the paper's lines, and integrals over reacting gradients."""

import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from vocabulary import each, given, st

from mfdl import Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.testing import connected_graphs
from mfdl_papers import zip_dl

pytestmark = pytest.mark.filterwarnings("ignore:Using `assume` outside")  # claims are called with one case


@given(25, graph=connected_graphs(min_nodes=2, max_nodes=4), steps=st.integers(1, 3))
def test_the_matrices_are_those_of_the_library(graph, steps):
    W = gossip.metropolis_hastings(graph)
    run = zip_dl.written_out(W.dense(), steps)
    with_self, sent_only = (
        algorithms.zip_dl(Dynamics(W), EveryStep(steps), self_messages=sends) for sends in (True, False)
    )
    heard = run.heard_by(0)
    for view, rows, B in (
        (trust.LDP().view(with_self, 0), slice(None), run.B),
        (trust.LDP().view(sent_only, 0, release="none"), run.sent(), run.B),
        (trust.PNDP([0]).view(sent_only, 1, release="none"), heard, run.noise_without(0)),
    ):
        assert_allclose(view.dense_gradients_by_time(), run.A[rows], atol=1e-12)
        assert_allclose(view.dense_noise(), B[rows], atol=1e-12)


def test_the_average_of_the_models_has_no_noise_and_a_node_shows_its_half_step():
    """With the messages node 0 sends, its released model is -g_0 + g_0 / 2 plus what is known."""
    run = zip_dl.written_out(np.full((2, 2), 0.5), 1)
    assert_allclose(run.final_A.mean(axis=0), [-0.5, -0.5])
    assert_allclose(run.final_B.mean(axis=0), 0, atol=1e-15)
    assert_allclose(run.final_A @ [1, 0], [-0.5, -0.5])


@pytest.mark.parametrize(("steps", "value"), [(1, 6), (2, 30), (3, 84), (4, 180)])
def test_the_loss_on_a_ring_of_six(steps, value):
    W = gossip.metropolis_hastings(nx.cycle_graph(6)).dense()
    run = zip_dl.written_out(W, steps)
    assert zip_dl.node_loss(run.A[run.sent()][:, 3::6], run.B[run.sent()]) == pytest.approx(value)
    assert_allclose(zip_dl.growth(W=W, node=3, steps=steps), 0, atol=1e-9)


@pytest.mark.parametrize("neighbours", [1, 2, 3, 4])
def test_the_coded_noise_is_the_printed_one_scaled(neighbours):
    d = neighbours + 1
    printed, coded = zip_dl.printed_noise(np.full(d, 1 / d)), zip_dl.coded_noise_map(d)
    assert_allclose(coded @ coded.T, d / neighbours * printed @ printed.T, atol=1e-12)
    assert_allclose(np.diag(coded @ coded.T), 1)


def brute_force_variation(weight, first, second, noise):
    """Sums over a plain grid of what both nodes send first and of what node 0 sends second, from Algorithm 1.

    Y is turned into (what is sent, what is not) by hand: Z to the other is s e, Z to itself -(weight / own) s e.
    """
    remainder = 1 - weight
    s = noise * math.sqrt(1 / 4 + (remainder / (2 * weight)) ** 2)
    e, step = np.linspace(-6, 6, 121, retstep=True)
    last, last_step = np.linspace(-9, 9, 181, retstep=True)
    sent, received = np.meshgrid(s * e, s * e, indexing="ij")  # messages of node 0 (about 0) and of node 1
    worlds = []
    for g, react in zip(first, second, strict=True):
        z = sent + g  # the message -g + z
        to_itself = -g - weight / remainder * z
        model = remainder * to_itself + weight * received
        after = model - react(model)
        density = norm.pdf(z / s) * norm.pdf(received / s) * step**2
        worlds.append((density, after / s))
    middle = (worlds[0][1] + worlds[1][1]) / 2
    p, q = (density[..., None] * norm.pdf(last - (after - middle)[..., None]) for density, after in worlds)
    return float(np.abs(p - q).sum() * last_step / 2)


@each(
    "weight, first, waves, noise",
    (0.5, (1, 0), ([0, 1], [0, 1]), 1),
    (0.5, (1, 0), ([1, -1], [1, -1]), 2),
    (0.25, (0.5, -0.5), ([0.5, -0.5, 0], [-0.5, 0.5]), 1),
    (0.5, (0.5, -0.5), ([0.5], [-0.5]), 3),
)
def test_the_integral_is_the_plain_sum(weight, first, waves, noise):
    second = tuple(zip_dl.reaction_wave(wave) for wave in waves)
    expected = brute_force_variation(weight, first, second, noise)
    # jumps of the wave lie anywhere in the grid's cells: 0.01
    assert_allclose(zip_dl.two_step_total_variation(weight, first, second, noise), expected, atol=0.01)


@pytest.mark.parametrize("neighbour", [2, 3, 4])
@pytest.mark.parametrize("noise", [1, 4])
def test_the_number_for_users_is_attained_by_constant_gradients(neighbour, noise):
    claimed, truth = zip_dl.user_adaptive(neighbour=neighbour, first=[1], second=[-1], noise=noise)
    assert_allclose(truth, claimed, atol=1e-9)
    assert zip_dl.user_adaptive(neighbour=neighbour, first=[-1], second=[1], noise=noise)[1] < claimed - 0.01

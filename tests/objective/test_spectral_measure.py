"""The spectral measure of gossip: closed forms against eigenvalues, fewer nodes against all of them."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import Dynamics, ErrorWeights, InvalidInput, UnsupportedMechanism, gossip
from mfdl.objective import NoiseObjective
from mfdl.objective.counted_models import COUNTED_MODELS
from mfdl.objective.spectra import SpectralMeasure
from mfdl.testing import gossip_matrices

CLOSED = (
    *(f"ring:n={n}" for n in (1, 2, 3, 4, 7, 8)),
    *("torus:rows=2,cols=3", "torus:rows=3,cols=5", "torus:rows=1,cols=4", "torus:n=16"),
    *("hypercube:dim=0", "hypercube:dim=1", "hypercube:dim=4", "complete:n=6", "complete:n=9"),
)
OTHERS = ("path:n=4", "star:n=5", "florentine", "regular:n=12,degree=3", "expander:n=16")


@pytest.mark.parametrize("spec", [*CLOSED, *OTHERS])
def test_convolutions_alone_have_their_spectrum_in_closed_form(spec):
    W = gossip.metropolis_hastings(spec)
    if spec in OTHERS:
        assert W.closed_spectrum is None
    else:
        assert_allclose(W.closed_spectrum, np.linalg.eigvalsh(W.dense())[::-1], atol=1e-14)


@examples(100)
@given(order=st.permutations(range(6)), weights=st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_a_relabelled_convolution_is_right_or_none(order, weights):
    # weights by distance on a cycle, in any order of its nodes, and one pair changed
    distance = np.minimum((d := np.subtract.outer(order, order) % 6), 6 - d)
    W = np.array([0, *weights[:3]])[distance] / 24
    W[[0, 1], [1, 0]] += weights[3] / 24
    W += np.diag(1 - W.sum(axis=1))
    spectrum = gossip.from_array(W).closed_spectrum
    if spectrum is not None:
        assert_allclose(spectrum, np.linalg.eigvalsh(W)[::-1], atol=1e-14)
    assert spectrum is not None or list(order) != list(range(6)) or weights[3]


@examples(100)
@given(W=gossip_matrices(max_nodes=6, kinds=("symmetric", "singular")), K=st.integers(1, 3), data=st.data())
def test_moments_are_those_of_the_matrix(W, K, data):
    n = W.num_nodes
    some = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n).filter(any))
    target = data.draw(st.sampled_from(["nodes", "average", "some"]))
    steps = data.draw(st.sampled_from(["all", "released:last+2"]))  # which play no part
    weights = ErrorWeights(steps, some if target == "some" else target)
    measure = NoiseObjective(Dynamics(W, gossip_rounds=K), 2, weights).spectral_measure()
    F = weights.node_factor(n).toarray()
    for power in range(5):
        expected = np.trace(F.T @ F @ np.linalg.matrix_power(W.dense(), K * power))
        assert measure.moment(power) == pytest.approx(expected, abs=1e-12)


@examples(60)
@given(st.data(), st.integers(2, 40))
def test_fewer_nodes_keep_the_moments(data, degree):
    lam = data.draw(st.lists(st.floats(-1, 1), min_size=100, max_size=120))
    measure = SpectralMeasure(lam, np.linspace(0, 2, len(lam)))
    few = measure.reduced(degree)
    assert few.eigenvalues.size <= degree // 2 + 1
    for power in range(degree + 1):
        assert few.moment(power) == pytest.approx(measure.moment(power), abs=1e-13 * measure.mass)


@pytest.mark.parametrize("accuracy", [1e-3, 1e-6, 1e-10])
def test_a_coarser_measure_is_within_its_accuracy(accuracy):
    # two ends of the interval, where high powers live, beside many others
    measure = SpectralMeasure(np.cos(np.linspace(0, np.pi, 3001)), np.ones(3001))
    few = measure.reduced(400, accuracy)
    assert few.eigenvalues.size < 110
    worst = max(abs(few.moment(power) - measure.moment(power)) for power in range(401))
    assert worst <= accuracy * measure.mass


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.5, "weight_decay": 0.1}, {"learning_rate": [1.0] * 20 + [0.5] * 20}]
)
@pytest.mark.parametrize("target", ["nodes", "average", "some"])
@pytest.mark.parametrize("counted_models", COUNTED_MODELS)
def test_a_closed_form_is_the_gram_of_the_same_graph_in_another_order(settings, target, counted_models):
    # a ring with its nodes shuffled has no closed form
    order = np.random.default_rng(0).permutation(300)
    ring, some = nx.cycle_graph(300), np.arange(300) % 3
    shuffled = nx.relabel_nodes(ring, dict(enumerate(order.tolist())))
    grams = []
    for graph, values in ((ring, some), (shuffled, some[np.argsort(order)])):
        weights = ErrorWeights("exponential:9", values if target == "some" else target)
        dynamics = Dynamics(gossip.metropolis_hastings(graph), **settings)
        grams.append(NoiseObjective(dynamics, 40, weights, counted_models).over_steps())
    assert_allclose(*grams, rtol=1e-10)


def test_a_large_ring_is_exact_and_quick():
    # beyond T = n / 2 rounds a ring is told from the line, before it is not: moments of a million are those of 99
    rings = {n: Dynamics(gossip.metropolis_hastings(f"ring:n={n}")) for n in (100_000, 99)}
    large, small = (NoiseObjective(ring, 20).over_steps() / n for n, ring in rings.items())
    assert_allclose(large, small, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: SpectralMeasure([1.0, 0.5], [1.0]), InvalidInput, r"one for each of 2 eigenvalues, got 1"),
        (lambda: SpectralMeasure([1.5], [1.0]), InvalidInput, r"must lie in \[-1, 1\]"),
        (
            lambda: NoiseObjective(Dynamics(gossip.uniform("star:n=4")), 1).spectral_measure(),
            UnsupportedMechanism,
            "constant symmetric gossip",
        ),
    ],
)
def test_refusals(call, kind, message):
    refuses(message, call, error=kind)

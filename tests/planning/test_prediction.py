"""The predicted noise and loss against the recursion itself, step by step."""

import functools
import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import given, st

from mfdl import Dynamics, ErrorWeights, gossip
from mfdl.noise import CausalNoise, IndependentNoise, LocalNoise
from mfdl.objective import Curvature, NoiseObjective
from mfdl.planning.design import NoiseGain, age_gram, predicted_loss
from mfdl.released import ReleasedModel
from mfdl.testing.strategies import encoders, gossip_matrices
from mfdl.testing.strategies.graphs import integer_arrays, polynomials


def gain_of(W, rounds, T, released, noising, polynomial="powers"):
    dynamics = Dynamics(W, gossip_rounds=rounds, polynomial=polynomial)
    ages, published = (age_gram(dynamics, T, further) for further in (0, released.rounds_of_gossip))
    return NoiseGain.from_part(released, noising, ages, published)


def simulated(W, shifts, released, injected, rate, curvature, start):
    """(bias, variance in the published models, variance on the way): mean over nodes, per unit of noise.

    Args: injected: noise of each step and node by the base noise, shape (T, n, columns).
    """
    T, n, columns = injected.shape
    step = functools.reduce(lambda done, r: (W.dense() - r * np.eye(n)) @ done / (1 - r), shifts, np.eye(n))
    models, bias = np.zeros((n, columns)), np.full(n, start)
    published, published_bias, on_the_way = np.zeros((n, columns)), np.zeros(n), 0.0
    for t, weight in enumerate(released.weights_by_step(T)):
        on_the_way += np.square(models).sum() / (n * T)
        models = step @ ((1 - rate * curvature) * models - rate * injected[t])
        bias = step @ ((1 - rate * curvature) * bias)
        published, published_bias = published + weight * models, published_bias + weight * bias
    further = np.linalg.matrix_power(W.dense(), released.rounds_of_gossip)
    return np.square(further @ published_bias).mean(), np.square(further @ published).sum() / n, on_the_way


@given(
    60, W=gossip_matrices(max_nodes=4), C=st.none() | encoders(5), rounds=st.integers(1, 3),
    model=st.sampled_from(["last", "last+2", "average:1", "exponential:2"]), rate=st.sampled_from([0.1, 0.5, 1.0]),
    columns=st.integers(0, 5), data=st.data(),
)  # fmt: skip
def test_the_predicted_loss_is_that_of_the_recursion(W, C, rounds, model, rate, columns, data):
    """Without columns: alike at all nodes; else spread over them, with an encoder for all columns or one for each."""
    noising = None if C is None else np.linalg.inv(C)
    T, n, released = 4 if C is None else len(C), W.num_nodes, ReleasedModel(model)
    values, scale, start = [1.0, 0.25, 0.25], 0.3, 1.5
    polynomial = data.draw(polynomials(W))
    shifts = Dynamics(W, gossip_rounds=rounds, polynomial=polynomial).shifts
    if columns:
        factor = data.draw(integer_arrays(2, n, columns))
        each = None if C is None else data.draw(st.sampled_from([C, np.stack([C * (k + 1) for k in range(columns)])]))
        noise = CausalNoise(each, factor, np.ones((columns, n), bool), num_steps=T, num_nodes=n)
        gain = NoiseGain.from_noise(released, Dynamics(W, gossip_rounds=rounds, polynomial=polynomial), noise)
        injected = np.asarray(noise.matmat(np.eye(T * columns))).reshape(T, n, -1)
    else:
        gain = gain_of(W, rounds, T, released, noising, polynomial)
        injected = np.kron(np.eye(T) if C is None else noising, np.eye(n)).reshape(T, n, -1)
    (loss,) = predicted_loss(gain, Curvature(values), np.array([rate]), scale, start)
    expected = np.zeros(3)
    for value in values:
        parts = np.array(simulated(W, shifts, released, injected, rate, value, start))
        expected += value / 2 * parts * [1, scale**2, scale**2]
    assert_allclose([loss.bias, loss.published, loss.on_the_way], expected, rtol=1e-9, atol=1e-12)
    assert loss.total == pytest.approx(expected.sum())


@given(40, W=gossip_matrices(max_nodes=5), T=st.integers(1, 6), rate=st.sampled_from([0.0, 0.3]))
def test_more_gossip_rounds_never_raise_independent_noise_in_the_last_models(W, T, rate):
    if not W.is_symmetric:
        return
    stds = [gain_of(W, rounds, T, ReleasedModel(), None).published_std(1 - rate) for rounds in (1, 2, 3, 5)]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in itertools.pairwise(stds))


def test_more_rounds_can_raise_the_noise_of_an_average_if_gossip_has_a_negative_mode():
    """What docs/plan.md says of averages: two rounds turn a mode that changes its sign into one that does not."""
    W = gossip.from_array([[0.05, 0.95], [0.95, 0.05]])
    single_round, two = (gain_of(W, rounds, 20, ReleasedModel("average:20"), None).published_std() for rounds in (1, 2))
    assert two > single_round


def test_fewer_steps_are_the_leading_block_of_the_gram_over_ages():
    W = gossip.metropolis_hastings("path:n=3")
    two = Dynamics(W, gossip_rounds=2)
    assert_allclose(age_gram(two, 6)[:4, :4], age_gram(two, 4), rtol=1e-12)


def test_a_long_spectrum_is_compressed_without_changing_the_prediction():
    spectrum, rates = Curvature.parse("power:1:5000"), np.array([0.1, 1.0])
    gain = gain_of(gossip.metropolis_hastings("ring:n=3"), 1, 8, ReleasedModel("average:3"), None)
    whole = predicted_loss(gain, spectrum, rates, 0.1, 1.0)
    pieces = np.split(np.asarray(spectrum.eigenvalues), 500)
    parts = [predicted_loss(gain, Curvature(piece), rates, 0.1, 1.0) for piece in pieces]
    for r, loss in enumerate(whole):
        for name in ("bias", "published", "on_the_way"):
            assert getattr(loss, name) == pytest.approx(sum(getattr(part[r], name) for part in parts), rel=1e-9)


@pytest.mark.parametrize("model", ["last", "average:3"])
@pytest.mark.parametrize("C", [None, np.tri(6)])
def test_noise_costs_what_the_objective_says(C, model):
    W, curvature = gossip.metropolis_hastings("path:n=3"), Curvature.parse("power:1:4")
    gain = gain_of(W, 2, 6, ReleasedModel(model), None if C is None else np.linalg.inv(C))
    (loss,) = predicted_loss(gain, curvature, np.array([0.5]), 0.2, 1.0)
    noise = IndependentNoise(6, 3) if C is None else LocalNoise(C, 3)
    weights = ErrorWeights(f"released:{model}", curvature=curvature)
    expected = NoiseObjective(Dynamics(W, 0.5, gossip_rounds=2), 6, weights).excess_loss(noise, 0.2)
    assert_allclose([loss.published, loss.on_the_way], [expected.published.value, expected.on_the_way.value])

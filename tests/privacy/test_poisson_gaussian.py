"""The accountant of sampled steps, against densities integrated on grids: never below the truth, and close to it."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import common
from scipy import special, stats
from vocabulary import each, given, refuses, st

from mfdl.privacy import gaussian
from mfdl.privacy.curves import PoissonGaussian, poisson_gaussian

MULTIPLIERS, RATES = st.floats(0.4, 4.0), st.floats(0.01, 0.9)
ADJACENCIES = st.sampled_from(gaussian.ADJACENCIES)
VANISHES = ((0.0, 1.0), (1.0, 0.0))
NEIGHBOURS = {"zero-out": VANISHES, "add-remove": VANISHES, "replace-one": ((1.0, -1.0),)}


def density(x, shift, q, s):
    """Of one step with a record that moves the sum by `shift` when it joins."""
    return (1 - q) * stats.norm.pdf(x, 0.0, s) + q * stats.norm.pdf(x, shift, s)


def log_density(x, shift, q, s):
    """The same on a line, as a logarithm."""
    parts = stats.norm.logpdf(x, 0.0, s) + math.log1p(-q), stats.norm.logpdf(x, shift, s) + math.log(q)
    return np.logaddexp(*parts)


def line(s, points):
    grid = np.linspace(-1 - 9 * s, 1 + 9 * s, points)
    return grid, grid[1] - grid[0]


def hockey_stick(p, r, epsilon):
    """Sum of (p - e^epsilon r)_+ over the masses of cells: never above the truth, however large the cells are."""
    return float(np.clip(p - math.exp(epsilon) * r, 0, None).sum())


def masses(edges, mean, s):
    """Of a Gaussian in the cells between edges."""
    return np.diff(stats.norm.cdf(edges, mean, s))


def sampled_masses(edges, shift, q, s):
    """The same of one step, as `density`."""
    return (1 - q) * masses(edges, 0.0, s) + q * masses(edges, shift, s)


def one_step(s, q, pair, epsilon):
    """delta of one step at any real epsilon (an array), in closed form: where p = e^epsilon r, at one x.

    With y = e^((2 x - 1) / 2 s^2) a record that vanishes has p / r = 1 - q + q y, one that appears the inverse; with
    y = e^(x / s^2) and c = e^(1 / 2 s^2) (1 - q) / q one that is replaced has p / r = (c + y) / (c + 1 / y).
    """
    factor = np.exp(epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        if pair == (1.0, -1.0):
            half = math.exp(0.5 / s**2) * (1 - q) / q * (factor - 1) / 2
            root = np.hypot(half, np.sqrt(factor))
            cut = s**2 * np.log(np.where(half > 0, half + root, factor / (root - half)))
        else:
            y = ((factor if pair == (1.0, 0.0) else 1 / factor) - (1 - q)) / q
            cut = np.where(y > 0, 0.5 + s**2 * np.log(y), -np.inf)

    def beyond(shift):
        tail = stats.norm.cdf if pair == (0.0, 1.0) else stats.norm.sf
        return (1 - q) * tail(cut, 0.0, s) + q * tail(cut, shift, s)

    return np.clip(beyond(pair[0]) - factor * beyond(pair[1]), 0, None)


@given(60, s=MULTIPLIERS, q=RATES, adjacency=ADJACENCIES, epsilon=st.floats(-3, 3))
def test_the_oracle_of_one_step_is_the_integral_of_its_densities(s, q, adjacency, epsilon):
    grid, step = line(s, 40001)
    for pair in NEIGHBOURS[adjacency]:
        p, r = (density(grid, m, q, s) for m in pair)
        integral = hockey_stick(p * step, r * step, epsilon)
        assert one_step(s, q, pair, epsilon) == pytest.approx(integral, rel=1e-3, abs=1e-8)


@given(60, s=MULTIPLIERS, q=RATES, adjacency=ADJACENCIES, epsilon=st.floats(0, 3))
def test_one_step_is_the_integral_of_its_densities(s, q, adjacency, epsilon):
    true = max(float(one_step(s, q, pair, epsilon)) for pair in NEIGHBOURS[adjacency])
    curve = PoissonGaussian(s, q, 1, adjacency).delta(epsilon)
    assert curve >= true * (1 - 1e-9) - 1e-15
    assert curve <= true * 1.02 + 2e-9


@given(
    40, s=MULTIPLIERS, q=RATES, epsilon=st.floats(0, 3), replaced=st.booleans(),
    norms=st.tuples(st.floats(0, 1), st.floats(0, 1)), angle=st.floats(0, 2 * math.pi)
)  # fmt: skip
def test_no_gradients_in_the_plane_lose_more_than_the_pair(s, q, epsilon, replaced, norms, angle):
    edges, _ = line(s, 402)
    first = norms[0] * np.array([1.0, 0.0])
    second = norms[1] * np.array([math.cos(angle), math.sin(angle)]) * replaced
    bound = PoissonGaussian(s, q, 1, "replace-one" if replaced else "zero-out").delta(epsilon)

    def in_cells(shift):
        without, joined = (np.multiply.outer(*(masses(edges, m, s) for m in mean)) for mean in ((0.0, 0.0), shift))
        return (1 - q) * without + q * joined

    for pair in ((first, second), (second, first)):
        assert hockey_stick(*map(in_cells, pair), epsilon) <= bound * (1 + 1e-9) + 1e-14


@given(30, s=st.floats(0.5, 3), q=RATES, adjacency=ADJACENCIES, epsilon=st.floats(0, 4), steps=st.integers(2, 3))
def test_steps_compose_as_products_of_densities(s, q, adjacency, epsilon, steps):
    true = composed(s, q, adjacency, epsilon, steps, points={2: 9601, 3: 601}[steps])
    curve = PoissonGaussian(s, q, steps, adjacency).delta(epsilon)
    assert curve >= true * (1 - 1e-9) - 1e-14
    assert curve <= true * 1.05 + 1e-7


def composed(s, q, adjacency, epsilon, steps, points):
    edges, _ = line(s, points)
    true = 0.0
    for pair in NEIGHBOURS[adjacency]:
        p, r = (sampled_masses(edges, m, q, s) for m in pair)
        both = np.minimum(p, r) > 0  # the rest makes it lower yet
        loss = np.log(p[both] / r[both])
        cells = functools.reduce(np.multiply.outer, [p[both]] * (steps - 1))
        left = epsilon - functools.reduce(np.add.outer, [loss] * (steps - 1))
        true = max(true, float((cells * one_step(s, q, pair, left)).sum()))
    return true


def test_three_steps_that_a_grid_of_densities_gets_wrong():
    curve = PoissonGaussian(0.5, 1 / 64, 3, "zero-out").delta(2.0)
    assert composed(0.5, 1 / 64, "zero-out", 2.0, 3, points=1201) <= curve <= 0.00046642


@given(
    30, s=st.floats(0.5, 3), q=RATES, epsilon=st.floats(0, 3), replaced=st.booleans(), cut=st.floats(-2, 2),
    later=st.tuples(*[st.floats(-1, 1)] * 4)
)  # fmt: skip
@pytest.mark.slow
def test_a_gradient_chosen_from_what_was_seen_loses_no_more(s, q, epsilon, replaced, cut, later):
    edges, _ = line(s, 802)
    middles = (edges[1:] + edges[:-1]) / 2
    chosen = [np.where(middles < cut, low, high) for low, high in (later[:2], later[2:])]  # by the cell of the first
    outputs = []
    for first, shifts in ((1.0, chosen[0]), (-1.0 * replaced, chosen[1] * replaced)):
        of_second = np.array([sampled_masses(edges, shift, q, s) for shift in shifts])
        outputs.append(sampled_masses(edges, first, q, s)[:, None] * of_second)
    bound = PoissonGaussian(s, q, 2, "replace-one" if replaced else "zero-out").delta(epsilon)
    for p, r in (outputs, outputs[::-1]):
        assert hockey_stick(p, r, epsilon) <= bound * (1 + 1e-9) + 1e-14


def lower_losses(s, q, adjacency, width):
    """Privacy losses of one step rounded down to multiples of `width`, per direction, by cells of a grid."""
    edges, _ = line(s, 20001)
    for upper, lower in NEIGHBOURS[adjacency]:
        of_both = [sampled_masses(edges, m, q, s) for m in (upper, lower)]
        seen = np.minimum(*of_both) > 1e-18  # what is left out makes it lower yet
        p, r = (mass[seen] for mass in of_both)
        at = np.floor(np.log(p / r) / width).astype(int)
        yield np.bincount(at - at.min(), weights=p), at.min()


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("s", "q", "steps"), [(0.8, 0.05, 8), (2.0, 0.4, 16)])
def test_many_steps_lie_close_above_a_lower_bound(adjacency, s, q, steps):
    width, epsilon = 0.01, 1.0
    true = 0.0
    for mass, start in lower_losses(s, q, adjacency, width):
        composed = functools.reduce(np.convolve, [mass] * steps)
        losses = (np.arange(composed.size) + start * steps) * width
        true = max(true, float(composed @ np.clip(-np.expm1(epsilon - losses), 0, None)))
    assert true <= PoissonGaussian(s, q, steps, adjacency).delta(epsilon) <= true * 1.3


@given(40, s=MULTIPLIERS, q=RATES, adjacency=ADJACENCIES, order=st.integers(2, 6))
def test_renyi_divergences_bound_the_integrals(s, q, adjacency, order):
    (bound,) = PoissonGaussian(s, q, 3, adjacency).renyi_divergences(np.array([float(order)]))
    values, grid = [], np.linspace(-1 - 9 * s * order, 1 + 9 * s * order, 20001)
    for pair in NEIGHBOURS[adjacency]:
        p, r = (log_density(grid, m, q, s) for m in pair)
        total = special.logsumexp(order * p + (1 - order) * r) + math.log(grid[1] - grid[0])
        values.append(3 * total / (order - 1))
    assert bound >= max(values) * (1 - 1e-6) - 1e-9
    if adjacency != "replace-one":
        assert bound == pytest.approx(max(values), rel=1e-4, abs=1e-8)


@pytest.mark.slow
@given(
    6, s=st.floats(0.3, 20), q=st.floats(1e-4, 0.99), steps=st.integers(1, 2000), adjacency=ADJACENCIES,
    log_delta=st.floats(-12, -0.5)
)  # fmt: skip
def test_the_least_bound_is_stated_and_sampling_never_costs(s, q, steps, adjacency, log_delta):
    bound, delta = PoissonGaussian(s, q, steps, adjacency), 10.0**log_delta
    each = (bound.loss_epsilon(delta), bound.renyi_epsilon(delta), bound.public_epsilon(delta))
    assert bound.epsilon(delta) == min(each) >= 0
    mu = (2 if adjacency == "replace-one" else 1) * math.sqrt(steps) / s
    assert bound.epsilon(delta) <= gaussian.epsilon_from_mu(mu * (1 + 1e-12), delta)
    if each[0] > 0:
        assert bound.delta(bound.epsilon(delta)) <= delta * (1 + 1e-9) or bound.epsilon(delta) < each[0]


@pytest.mark.slow
@given(
    30, s=st.floats(0.4, 5), q=st.floats(0.01, 0.5), steps=st.integers(1, 300), adjacency=ADJACENCIES,
    more=st.floats(1.2, 3), change=st.sampled_from(["noise", "rate", "steps", "delta", "adjacency"])
)  # fmt: skip
def test_more_noise_and_fewer_draws_lose_less(s, q, steps, adjacency, more, change):
    delta = 1e-5
    less = {
        "noise": (s * more, q, steps, adjacency),
        "rate": (s, q / more, steps, adjacency),
        "steps": (s, q, max(1, round(steps / more)), adjacency),
        "adjacency": (s, q, steps, "zero-out"),  # a record is replaced by way of none
        "delta": (s, q, steps, adjacency),
    }[change]
    later = PoissonGaussian(*less).epsilon(delta * more if change == "delta" else delta)
    assert later <= PoissonGaussian(s, q, steps, adjacency).epsilon(delta) * (1 + 2e-3)  # grids differ


@pytest.mark.parametrize(("adjacency", "shift"), [("zero-out", 1.0), ("add-remove", 1.0), ("replace-one", 2.0)])
def test_at_rate_one_it_is_the_gaussian_with_the_factor_two_of_replace_one(adjacency, shift):
    curve = PoissonGaussian(1.5, 1 - 1e-9, 4, adjacency).epsilon(1e-5)
    assert curve == pytest.approx(gaussian.epsilon_from_mu(shift * 2 / 1.5, 1e-5), rel=1e-4)


@pytest.mark.parametrize("s", [1e-300, 1e-3, 0.02, 1e3, 1e6, 1e300])
@pytest.mark.parametrize("q", [1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_extreme_noise_and_rates_have_numbers(s, q, adjacency):
    bound = PoissonGaussian(s, q, 10, adjacency)
    epsilon = bound.epsilon(1e-5)
    assert 0 <= epsilon <= bound.public_epsilon(1e-5)
    least = q * (2 * stats.norm.cdf((2 if adjacency == "replace-one" else 1) / (2 * s)) - 1)  # half their distance
    assert bound.delta(0.0) >= least * (1 - 1e-9)
    assert epsilon > 0 or least <= 1e-5


def test_a_delta_that_floating_point_cannot_tell_is_left_to_renyi():
    bound = PoissonGaussian(1.0, 0.01, 1000, "zero-out")
    assert (bound.slack, bound.loss_epsilon(1e-9)) == (1e-9, math.inf)
    assert bound.epsilon(1e-9) == bound.renyi_epsilon(1e-9) < math.inf
    assert bound.epsilon(1e-12) >= bound.epsilon(1e-9) >= bound.epsilon(1e-8)


@given(10, seed=st.integers(0, 99), steps=st.sampled_from([2, 8, 64]), size=st.integers(2, 40))
def test_composition_by_fourier_transforms_is_as_exact_as_the_slack_says(seed, steps, size):
    weights = np.random.default_rng(seed).multinomial(2**20, np.ones(size) / size)
    exact = functools.reduce(np.convolve, [np.array([int(w) for w in weights], dtype=object)] * steps)
    start, convolved = common.self_convolve(weights / 2**20, steps)
    true = np.array([float(x / 2 ** (20 * steps)) for x in exact])
    error = np.abs(np.asarray(convolved)[: true.size] - true).sum()  # no delta is further off than all of it
    assert start == 0
    assert error <= poisson_gaussian.ERROR * steps / 10


@each(
    "given, match",
    ({"noise_multiplier": -1.0}, "noise_multiplier"), ({"rate": 1.0}, "rate"), ({"rate": 0.0}, "rate"),
    ({"steps": 0}, "steps"), ({"adjacency": "other"}, "adjacency")
)  # fmt: skip
def test_what_is_out_of_range_is_refused(given, match):
    fields = {"noise_multiplier": 1.0, "rate": 0.1, "steps": 3, "adjacency": "zero-out"}
    refuses(match, PoissonGaussian, **{**fields, **given})
    for wrong in ({"epsilon": 0.0}, {"delta": 1.0}, {"by": "moments"}):
        refuses(
            next(iter(wrong)), PoissonGaussian(**fields).least_multiplier, **{"epsilon": 1.0, "delta": 1e-5, **wrong}
        )


def test_no_noise_loses_everything():
    bound = PoissonGaussian(0.0, 0.01, 10, "zero-out")
    assert bound.epsilon(1e-5) == bound.loss_epsilon(1e-5) == bound.renyi_epsilon(0.5) == math.inf
    assert bound.delta(100.0) == 1.0


@pytest.mark.slow
@given(
    2, epsilon=st.floats(0.3, 12), log_delta=st.floats(-7, -3), adjacency=ADJACENCIES, q=st.sampled_from([0.02, 0.3])
)
def test_calibrated_noise_never_overshoots_and_wastes_little(epsilon, log_delta, adjacency, q):
    delta, steps = 10.0**log_delta, 50
    curve = PoissonGaussian(1.0, q, steps, adjacency)
    least = curve.least_multiplier(epsilon, delta)
    assert curve.at(least).epsilon(delta) <= epsilon
    assert curve.at(least * (1 - 1e-3)).epsilon(delta) > epsilon
    by_renyi = curve.least_multiplier(epsilon, delta, by="renyi")
    assert curve.at(by_renyi).renyi_epsilon(delta) <= epsilon
    assert by_renyi >= least * (1 - 1e-3)


def test_directions_differ_and_the_larger_counts():
    """The loss of a record that appears is at most -log(1 - q), that of one that vanishes has no bound."""
    grid, step = line(0.8, 40001)
    p, r = (density(grid, m, 0.3, 0.8) * step for m in (1.0, 0.0))
    gone, new = hockey_stick(p, r, 0.4), hockey_stick(r, p, 0.4)
    assert gone > 0.01 > new == 0
    assert PoissonGaussian(0.8, 0.3, 1, "zero-out").delta(0.4) >= gone

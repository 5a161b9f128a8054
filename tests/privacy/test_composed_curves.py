"""Composed runs with secret batches of their own: Gaussians where batches say nothing, elsewhere as by quadrature."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses, unsupported

import mfdl
from mfdl import trust
from mfdl.privacy import BallsInBinsGaussian, Gaussian, PoissonGaussian, gaussian
from mfdl.privacy.curves import Composed


@examples(40)
@given(
    multipliers=st.lists(st.floats(0.7, 6), min_size=1, max_size=3), public=st.lists(st.floats(0.1, 2), max_size=1),
    alike=st.booleans(),
)  # fmt: skip
def test_runs_whose_bins_say_nothing_compose_as_gaussians(multipliers, public, alike):
    bins = (3, ((3, 1.0),)) if alike else (1, ((1, 0.0),))  # three bins with the same shift, or one bin
    secret = [BallsInBinsGaussian(s, *bins, "zero-out") for s in multipliers]
    both = Composed((*secret, *(Gaussian(mu, "zero-out") for mu in public)))
    mu = math.sqrt(sum(1 / s**2 for s in multipliers) + sum(m**2 for m in public))
    for epsilon in (0.0, 0.5, 2.0):
        exact = gaussian.delta_from_mu(mu, epsilon)
        assert exact * (1 - 1e-9) <= both.delta(epsilon) <= exact * 1.02 + 1e-9
    assert gaussian.epsilon_from_mu(mu, 1e-5) * (1 - 1e-9) <= both.epsilon(1e-5)
    assert both.epsilon(1e-5) <= gaussian.epsilon_from_mu(mu, 1e-5) * (1 + 1e-9)


def binned_losses(shift, points=24, adjacency="zero-out"):
    """(probability under Q, likelihood ratio P / Q) of one of two bins without correlation: a grid over the plane."""
    x, weight = np.polynomial.hermite_e.hermegauss(points)
    weight = weight / weight.sum()
    e = {sign: np.exp(sign * shift * x - shift**2 / 2) for sign in (1, -1)}
    P = (e[1][:, None] + e[1][None, :]) / 2
    Q = np.ones_like(P) if adjacency == "zero-out" else (e[-1][:, None] + e[-1][None, :]) / 2
    return np.outer(weight, weight).ravel(), P.ravel(), Q.ravel()


def sampled_losses(shift, rate, points=60, adjacency="zero-out"):
    """The same of one step of Poisson sampling: a grid on the line."""
    x, weight = np.polynomial.hermite_e.hermegauss(points)
    P, Q = (1 - rate + rate * np.exp(sign * shift * x - shift**2 / 2) for sign in (1, -1))
    return weight / weight.sum(), P, np.ones_like(P) if adjacency == "zero-out" else Q


def composed_by_quadrature(shifts, epsilon, points, adjacency):
    """delta of two runs of two bins."""
    return over_both(*(binned_losses(shift, points, adjacency) for shift in shifts), epsilon)


def over_both(first, second, epsilon):
    """delta of two runs, the larger direction, over the product of their grids."""
    (w, P, Q), (v, R, S) = first, second
    weight, P, Q = np.outer(w, v), np.outer(P, R), np.outer(Q, S)
    grown = math.exp(epsilon)
    return max(float((weight * np.clip(a - grown * b, 0, None)).sum()) for a, b in ((P, Q), (Q, P)))


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("shifts", [(0.8, 0.8), (1.2, 0.5), (0.3, 1.0)])
def test_two_runs_of_two_bins_lose_what_quadrature_says(shifts, adjacency):
    both = Composed(tuple(BallsInBinsGaussian(1 / s, 2, ((2, 0.0),), adjacency) for s in shifts))
    for epsilon in (0.0, 0.3, 1.0):
        true = composed_by_quadrature(shifts, epsilon, 50, adjacency)
        assert true * (1 - 5e-3) <= both.delta(epsilon) <= true * 1.03 + 1e-6, epsilon


def test_two_runs_lose_more_than_one_and_less_than_by_sums_and_less_than_public_bins():
    run = BallsInBinsGaussian(1.25, 2, ((2, 0.0),), "zero-out")
    both = Composed((run, run))
    true = composed_by_quadrature((0.8, 0.8), 0.3, 24, "zero-out")
    assert true * (1 - 5e-3) <= both.delta(0.3) <= true * 1.03
    assert run.epsilon(1e-5) < both.epsilon(1e-5) < min(2 * run.epsilon(1e-5), both.public_epsilon(1e-5))


RUNS = {
    "bins": (lambda a: BallsInBinsGaussian(1 / 0.9, 2, ((2, 0.0),), a), lambda a: binned_losses(0.9, 60, a)),
    "poisson": (lambda a: PoissonGaussian(1 / 1.1, 0.2, 1, a), lambda a: sampled_losses(1.1, 0.2, 300, a)),
    "seldom": (lambda a: PoissonGaussian(0.7, 0.05, 1, a), lambda a: sampled_losses(1 / 0.7, 0.05, 300, a)),
    "public": (lambda a: Gaussian(0.8 * (1 + (a != "zero-out")), a), lambda a: sampled_losses(0.8, 1.0, 300, a)),
}


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(RUNS, 2), ("poisson", "poisson")])
def test_unlike_runs_lose_what_quadrature_says_direction_by_direction(first, second, adjacency):
    """Directions that were exchanged in one of the runs would lose less than the larger one."""
    (build, losses), (build_other, losses_of_other) = RUNS[first], RUNS[second]
    one, other = build(adjacency), build_other(adjacency)
    both = one.composed_with(other)
    assert both.epsilon(1e-5) == pytest.approx(other.composed_with(one).epsilon(1e-5), rel=1e-6)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        true = over_both(losses(adjacency), losses_of_other(adjacency), epsilon)
        assert true * (1 - 2e-2) <= both.delta(epsilon) <= true * 1.08 + 1e-6, epsilon  # kinks cost quadrature 2 %


@examples(30)
@given(
    s=st.floats(0.6, 4), rate=st.floats(1e-3, 0.5), steps=st.integers(1, 300), more=st.integers(1, 300),
    delta=st.sampled_from([1e-18, 1e-12, 1e-6, 1e-3]), adjacency=st.sampled_from(["zero-out", "replace-one"]),
)  # fmt: skip
def test_a_run_cut_in_two_loses_what_the_whole_run_loses(s, rate, steps, more, delta, adjacency):
    first, second, whole = (PoissonGaussian(s, rate, count, adjacency) for count in (steps, more, steps + more))
    both = first.composed_with(second)
    assert both.runs == 2
    assert first.epsilon(delta) * (1 - 1e-6) <= both.epsilon(delta)
    exact = whole.epsilon(delta)  # both are upper bounds of one number, on different grids
    assert abs(both.epsilon(delta) - exact) <= 1e-2 * exact + 1e-4


@examples(20)
@given(s=st.floats(0.7, 3), rate=st.floats(0.01, 0.3), order=st.floats(1.0, 40.0))
def test_renyi_divergences_of_poisson_runs(s, rate, order):
    """Against quadrature of E_Q (P / Q)^order, whose logarithm over (order - 1) is the divergence."""
    curve = PoissonGaussian(s, rate, 7, "zero-out")
    x = np.linspace(-40, 40 + order / s, 400_001)
    log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + x / s - 0.5 / s**2)
    log_normal = -(x**2) / 2 - np.log(2 * np.pi) / 2
    step = x[1] - x[0]
    exact = np.log(np.exp(log_normal + order * log_ratio).sum() * step) / (order - 1) if order > 1.01 else None
    stated = curve.renyi_divergences(np.array([order]))[0]
    assert stated <= order * 7 / s**2 / 2 * (1 + 1e-9)  # public batches
    if exact is not None:
        assert stated >= 7 * exact * (1 - 1e-9) - 1e-12
    if order > 2:
        low, high = (curve.renyi_divergences(np.array([float(whole)]))[0] for whole in (int(order), int(order) + 1))
        assert low * (1 - 1e-9) <= stated <= high * (1 + 1e-9)
    both = curve.composed_with(Gaussian(0.3, "zero-out"))
    assert both.renyi_divergences(np.array([order]))[0] >= (stated + order * 0.045) * (1 - 1e-12)


def test_losses_are_those_of_epsilon():
    run = BallsInBinsGaussian(1.5, 4, ((4, 0.5), (2, 0.1)), "zero-out")
    losses = run.losses(1e-5)
    assert losses.get_epsilon_for_delta(1e-5) == pytest.approx(run.epsilon(1e-5), rel=1e-4)
    assert losses._pmf_remove is not losses._pmf_add  # each direction of its own
    refuses("noise_multiplier must be >=", lambda: BallsInBinsGaussian(0.01, 4, ((4, 0.5),), "zero-out").losses(1e-5))


def test_too_little_noise_counts_as_public_and_none_loses_everything():
    weak, none = (BallsInBinsGaussian(s, 2, ((2, 0.0),), "zero-out") for s in (0.05, 0.0))
    strong = BallsInBinsGaussian(2.0, 2, ((2, 0.0),), "zero-out")
    assert Composed((weak, strong)).epsilon(1e-5) == pytest.approx(gaussian.epsilon_from_mu(math.hypot(20, 0.5), 1e-5))
    assert Composed((none, strong)).epsilon(1e-5) == math.inf
    assert Composed((none, strong)).delta(3.0) == 1.0
    assert Composed((strong, Gaussian(math.inf, "zero-out"))).epsilon(1e-5) == math.inf
    assert Composed((strong, Gaussian(math.inf, "zero-out"))).delta(1.0) == 1.0


def guarantee_of(noise_std=3.0, **other):
    graph = mfdl.graphs.load("ring:n=4")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.BallsInBins(epochs=1, bins=2))
    options = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0} | other
    return mfdl.account(algorithm, mfdl.Privacy(**options), noise_std=noise_std)


def test_guarantees_compose_and_say_of_what():
    first, second = guarantee_of(), guarantee_of(2.0)
    both = first.compose_with(second)
    assert both.curve.curves == (first.curve, second.curve)
    assert both.epsilon(1e-5) > second.epsilon(1e-5)
    assert both.fingerprint
    assert (both.noise_std, both.composed, both.bound) == (2.0, 2, "upper")
    for phrase in (
        "composed of 2 runs with balls-in-bins, drawn anew",
        "balls-in-bins (epochs=1, bins=2), then balls-in-bins",
    ):
        assert phrase in str(both)
    content = json.loads(json.dumps(both.to_dict()))
    assert (content["composed"], content["noise_multiplier"], content["epsilon"]) == (
        2, both.noise_multiplier, both.epsilon(both.stated_delta)
    )  # fmt: skip
    three = both.compose_with(first)
    assert three.composed == 3
    assert three.epsilon(1e-5) > both.epsilon(1e-5)
    by_samples = guarantee_of(method=mfdl.privacy.MonteCarlo(samples=4096))
    assert by_samples.compose_with(second) == dataclasses.replace(both, stated_delta=both.stated_delta)


def test_a_run_with_public_batches_is_composed_by_its_mu():
    graph = mfdl.graphs.load("ring:n=4")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=1, period=2))
    public = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), noise_std=2.0)
    both = guarantee_of().compose_with(public.guarantee)
    assert [curve.mu for curve in both.curve.public] == [public.guarantee.mu]
    assert max(guarantee_of().epsilon(1e-5), public.guarantee.epsilon(1e-5)) < both.epsilon(1e-5)
    assert "composed of 1 run with balls-in-bins, drawn anew" in str(both)
    assert "mu 0.5" in str(both)


def test_what_does_not_compose_is_refused():
    unsupported("share their bins do", lambda: guarantee_of().compose_with(guarantee_of(), bins="shared"))
    refuses("same adjacency", lambda: guarantee_of().compose_with(guarantee_of(adjacency="replace-one")))
    refuses("same clip_norm", lambda: guarantee_of().compose_with(guarantee_of(clip_norm=2.0)))
    refuses("same trust", lambda: guarantee_of().compose_with(guarantee_of(trust=trust.Eavesdropper())))
    refuses("other must be", lambda: guarantee_of().compose_with(3))
    for curves in ((), (Gaussian(1.0, "zero-out"),), (Composed((guarantee_of().curve,)),)):
        refuses("curves must", Composed, curves)


@pytest.mark.parametrize("mu", [1e-300, 1e6, 1e200])
def test_a_public_run_that_floating_point_cannot_compose_counts_with_public_batches(mu):
    sampled, public = PoissonGaussian(1.0, 0.01, 10, "zero-out"), Gaussian(mu, "zero-out")
    both = sampled.composed_with(public)
    together = math.hypot(mu, sampled.public_mu)
    assert both.epsilon(1e-6) >= max(public.epsilon(1e-6), sampled.epsilon(1e-6) * (mu < 1) * 0.99)
    assert public.delta(1.0) <= both.delta(1.0) <= gaussian.delta_from_mu(together, 1.0) * (1 + 1e-9)

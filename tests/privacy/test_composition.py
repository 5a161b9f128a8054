"""What two runs guarantee together rests on all that either rests on; secret batches compose as by quadrature."""

import dataclasses
import functools
import itertools
import json
import math

import numpy as np
import pytest
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st, unsupported

import mfdl
from mfdl import BallsInBins, Cyclic, InvalidInput, PoissonSampling, UnsupportedMechanism, algorithms, check, trust
from mfdl.noise_scale import account
from mfdl.privacy import BallsInBinsGaussian, Gaussian, PoissonGaussian, gaussian
from mfdl.privacy.curves import Composed
from mfdl.privacy.guarantee import EDITED, STATED, Guarantee
from mfdl.privacy.losses import Losses
from mfdl.privacy.questions import LIPSCHITZ_NOTE, Privacy

STAR = dynamics_on("star:n=4", 0.5)
ASKED = {"trust": trust.ReleasedOnly(), "adjacency": "zero-out", "clip_norm": 1.0}
DELTA = 1e-5
LIPSCHITZ = f"{LIPSCHITZ_NOTE} 1.0"
AVERAGE = "in the place of its final model each node releases"


def public(noise_std=6.0, **options):
    return account(algorithms.dp_dsgd(STAR, Cyclic(2, 2)), Privacy(**ASKED, **options), noise_std=noise_std)


def in_bins(noise_std=6.0, method="certified", model=ASKED["trust"]):
    algorithm = algorithms.dp_dsgd(STAR, BallsInBins(2, 2))
    return mfdl.account(algorithm, mfdl.Privacy(method=method, **{**ASKED, "trust": model}), noise_std=noise_std)


def poisson():
    algorithm = algorithms.dp_dsgd(STAR, PoissonSampling(0.3, 4))
    model = trust.ReleasedOnly().all_messages()
    return mfdl.account(algorithm, mfdl.Privacy(**{**ASKED, "trust": model}), noise_std=6.0)


def fixed():
    """For non-adaptive gradients; of every node, as if somebody had written it."""
    losses = Losses.from_algorithm(algorithms.dp_dsgd(STAR, Cyclic(2, 2)), Privacy(**ASKED))
    return dataclasses.replace(losses.by_victim(6.0, adaptive=False)[1], victim="every node")


def average():
    algorithm = algorithms.dp_dsgd(STAR, Cyclic(2, 2)).releasing("average:2")
    return account(algorithm, Privacy(lipschitz=1.0, **ASKED), noise_std=6.0)


GUARANTEES = {
    "public": public, "public, Lipschitz": lambda: public(lipschitz=1.0),
    "public, of a file": lambda: Guarantee.from_dict(public(lipschitz=1.0).to_dict()),
    "public, edited": lambda: dataclasses.replace(public(), participation="cyclic, or so"),
    "public, average released": average, "public, twice": lambda: public().compose_with(public(8.0, lipschitz=1.0)),
    "public, without noise": lambda: public(0.0), "fixed in advance": fixed, "poisson": poisson, "bins": in_bins,
    "bins, by samples": lambda: in_bins(method=mfdl.privacy.MonteCarlo(samples=4096, failure=1e-3)),
    "bins, twice": lambda: in_bins().compose_with(in_bins(8.0)),
    "bins and public": lambda: in_bins().compose_with(public(lipschitz=1.0)),
}  # fmt: skip


@functools.cache
def guarantee_of(name):
    return GUARANTEES[name]()


@functools.cache
def certified_numbers(name):
    """(epsilon at DELTA, delta at 0.5) of what is certified."""
    curve = guarantee_of(name).curve
    certified = getattr(curve, "certified", curve)
    return certified.epsilon(DELTA), certified.delta(0.5)


def refused(first_kind, second_kind):
    """Why two do not compose; None where they do."""
    if (first_kind == "poisson") != (second_kind == "poisson"):
        return "same trust|only adaptive|other must be a Guarantee"
    if "fixed in advance" in (first_kind, second_kind):
        return "only adaptive guarantees compose|other must be a Guarantee"
    return None


def words_of(guarantee):
    """Whatever it says of itself."""
    return [str(guarantee), guarantee._repr_html_()]


def conditions_of(guarantee):
    return {*guarantee.notes, *filter(None, guarantee.source.split("; "))}


def some_quickly():
    """Pairs of all kinds in both orders, of which each kind with the next in the table is tried at every change."""
    for (i, first), (j, second) in itertools.product(enumerate(GUARANTEES), repeat=2):
        yield pytest.param(first, second, marks=[] if (j - i) % len(GUARANTEES) == 1 else [pytest.mark.slow])


@pytest.mark.parametrize(("first_kind", "second_kind"), list(some_quickly()))
def test_a_composed_guarantee_rests_on_all_that_its_parts_rest_on(first_kind, second_kind):
    first, second = guarantee_of(first_kind), guarantee_of(second_kind)
    if why := refused(first_kind, second_kind):
        refuses(why, first.compose_with, second, error=(InvalidInput, UnsupportedMechanism))
        return
    both = first.compose_with(second)
    assert conditions_of(both) == conditions_of(first) | conditions_of(second)
    texts = words_of(both)
    for condition in conditions_of(both):
        for words in texts:
            assert condition in words
    assert (both.adaptive, both.composed) == (True, first.composed + second.composed)
    assert (both.clip_norm, both.adjacency, both.unit, both.victim) == (1.0, "zero-out", "record", "every node")
    assert {both.bound} <= {"upper", "exact"}  # what is composed is certified: no probability is left to add
    epsilon, delta = both.epsilon(DELTA), both.delta(0.5)
    for kind, part in ((first_kind, first), (second_kind, second)):
        least_epsilon, least_delta = certified_numbers(kind)
        assert epsilon >= least_epsilon * (1 - 1e-3)
        assert delta >= least_delta * (1 - 1e-3)
        assert part.participation in both.participation
        assert part.why in both.why
    assert bool(both.fingerprint) == bool(first.fingerprint and second.fingerprint)


@pytest.mark.parametrize("name", GUARANTEES)
def test_what_is_written_says_every_condition(name):
    guarantee = guarantee_of(name)
    written = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    assert (tuple(written["notes"]), written["adaptive"]) == (guarantee.notes, guarantee.adaptive)
    again = Guarantee.from_dict(written)
    assert again == guarantee
    assert again.source in (STATED, EDITED)
    assert written["composed"] == guarantee.composed


def test_the_constant_is_there_to_be_lost():
    assert guarantee_of("public, Lipschitz").mu < 0.9 * guarantee_of("public").mu
    assert LIPSCHITZ in guarantee_of("public, Lipschitz").notes
    assert LIPSCHITZ in guarantee_of("bins and public").notes
    assert any(note.startswith(AVERAGE) for note in guarantee_of("public, average released").notes)
    assert (guarantee_of("public, of a file").source, guarantee_of("public, edited").source) == (STATED, EDITED)
    nothing = guarantee_of("bins").compose_with(guarantee_of("public, without noise"))
    assert nothing.epsilon(DELTA) == math.inf
    assert "no finite guarantee" in nothing.sentence()
    assert "no finite guarantee" in repr(nothing)


def test_a_note_is_part_of_what_is_sealed():
    both = guarantee_of("bins and public")
    assert both.fingerprint
    without = dataclasses.replace(both, notes=(), lipschitz=None)
    assert not without.fingerprint
    assert without.source == EDITED
    for wrong in ("a text", (1,)):
        refuses("notes must be a list of texts", dataclasses.replace, both, notes=wrong)


def test_a_statement_shows_release_runs_and_conditions_wherever_it_shows_itself():
    for name in ("public, Lipschitz", "public, average released"):
        guarantee = guarantee_of(name)
        for words in words_of(guarantee):
            assert LIPSCHITZ in words
            assert "the average of the final models" in words or "all final models" in words
    twice = guarantee_of("public, twice")
    for words in words_of(twice):
        assert "2 runs" in words


def test_notes_given_by_a_generator_are_kept_and_others_refused():
    assert check.texts(notes=(note for note in ["assumes L = 1"])) == ("assumes L = 1",)
    for wrong in (None, "one text", [1]):
        refuses("notes must be", check.texts, notes=wrong)


@given(
    40, multipliers=st.lists(st.floats(0.7, 6), min_size=1, max_size=3), public=st.lists(st.floats(0.1, 2), max_size=1),
    alike=st.booleans()
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


def over_both(first, second, epsilon):
    """delta of two runs, the larger direction, over the product of their grids."""
    (w, P, Q), (v, R, S) = first, second
    weight, P, Q = np.outer(w, v), np.outer(P, R), np.outer(Q, S)
    grown = math.exp(epsilon)
    return max(float((weight * np.clip(a - grown * b, 0, None)).sum()) for a, b in ((P, Q), (Q, P)))


def test_two_runs_lose_more_than_one_and_less_than_by_sums_and_less_than_public_bins():
    run = BallsInBinsGaussian(1.25, 2, ((2, 0.0),), "zero-out")
    both, true = Composed((run, run)), over_both(*[binned_losses(0.8)] * 2, 0.3)
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
    (build, losses), (build_other, losses_of_other) = RUNS[first], RUNS[second]
    one, other = build(adjacency), build_other(adjacency)
    both = one.composed_with(other)
    assert both.epsilon(1e-5) == pytest.approx(other.composed_with(one).epsilon(1e-5), rel=1e-6)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        true = over_both(losses(adjacency), losses_of_other(adjacency), epsilon)
        assert true * (1 - 2e-2) <= both.delta(epsilon) <= true * 1.08 + 1e-6, epsilon  # kinks cost quadrature 2 %


@given(
    30, s=st.floats(0.6, 4), rate=st.floats(1e-3, 0.5), steps=st.integers(1, 300), more=st.integers(1, 300),
    delta=st.sampled_from([1e-18, 1e-12, 1e-6, 1e-3]), adjacency=st.sampled_from(["zero-out", "replace-one"])
)  # fmt: skip
def test_a_run_cut_in_two_loses_what_the_whole_run_loses(s, rate, steps, more, delta, adjacency):
    first, second, whole = (PoissonGaussian(s, rate, count, adjacency) for count in (steps, more, steps + more))
    both = first.composed_with(second)
    assert both.runs == 2
    assert first.epsilon(delta) * (1 - 1e-6) <= both.epsilon(delta)
    exact = whole.epsilon(delta)  # both are upper bounds of one number, on different grids
    assert abs(both.epsilon(delta) - exact) <= 1e-2 * exact + 1e-4


@given(20, s=st.floats(0.7, 3), rate=st.floats(0.01, 0.3), order=st.floats(1.0, 40.0))
def test_renyi_divergences_of_poisson_runs(s, rate, order):
    curve = PoissonGaussian(s, rate, 7, "zero-out")
    x = np.linspace(-40, 40 + order / s, 400_001)
    log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + x / s - 0.5 / s**2)
    log_normal, step = -(x**2) / 2 - np.log(2 * np.pi) / 2, x[1] - x[0]
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
    assert (Composed((none, strong)).epsilon(1e-5), Composed((none, strong)).delta(3.0)) == (math.inf, 1.0)
    assert Composed((strong, Gaussian(math.inf, "zero-out"))).epsilon(1e-5) == math.inf
    assert Composed((strong, Gaussian(math.inf, "zero-out"))).delta(1.0) == 1.0


def secret_guarantee(noise_std=3.0, **other):
    dynamics = dynamics_on(mfdl.graphs.load("ring:n=4"), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.BallsInBins(epochs=1, bins=2))
    options = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0} | other
    return mfdl.account(algorithm, mfdl.Privacy(**options), noise_std=noise_std)


def test_guarantees_compose_and_say_of_what():
    first, second = secret_guarantee(), secret_guarantee(2.0)
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
    by_samples = secret_guarantee(method=mfdl.privacy.MonteCarlo(samples=4096))
    assert by_samples.compose_with(second) == dataclasses.replace(both, stated_delta=both.stated_delta)


def test_a_run_with_public_batches_is_composed_by_its_mu():
    dynamics = dynamics_on(mfdl.graphs.load("ring:n=4"), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=1, period=2))
    public = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), noise_std=2.0)
    both = secret_guarantee().compose_with(public.guarantee)
    assert [curve.mu for curve in both.curve.public_runs] == [public.guarantee.mu]
    assert max(secret_guarantee().epsilon(1e-5), public.guarantee.epsilon(1e-5)) < both.epsilon(1e-5)
    assert "composed of 1 run with balls-in-bins, drawn anew" in str(both)
    assert "mu 0.5" in str(both)


def test_what_does_not_compose_is_refused():
    unsupported("share their bins do", lambda: secret_guarantee().compose_with(secret_guarantee(), bins="shared"))
    refuses("same adjacency", lambda: secret_guarantee().compose_with(secret_guarantee(adjacency="replace-one")))
    refuses("same clip_norm", lambda: secret_guarantee().compose_with(secret_guarantee(clip_norm=2.0)))
    refuses("same trust", lambda: secret_guarantee().compose_with(secret_guarantee(trust=trust.Eavesdropper())))
    refuses("other must be", lambda: secret_guarantee().compose_with(3))
    for curves in ((), (Gaussian(1.0, "zero-out"),), (Composed((secret_guarantee().curve,)),)):
        refuses("curves must", Composed, curves)


@pytest.mark.parametrize("mu", [1e-300, 1e6, 1e200])
def test_a_public_run_that_floating_point_cannot_compose_counts_with_public_batches(mu):
    sampled, public = PoissonGaussian(1.0, 0.01, 10, "zero-out"), Gaussian(mu, "zero-out")
    both, together = sampled.composed_with(public), math.hypot(mu, sampled.public_mu)
    assert both.epsilon(1e-6) >= max(public.epsilon(1e-6), sampled.epsilon(1e-6) * (mu < 1) * 0.99)
    assert public.delta(1.0) <= both.delta(1.0) <= gaussian.delta_from_mu(together, 1.0) * (1 + 1e-9)


def composed_by_quadrature(shifts, epsilon, points, adjacency):
    """delta of two runs of two bins."""
    return over_both(*(binned_losses(shift, points, adjacency) for shift in shifts), epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("shifts", [(0.8, 0.8), (1.2, 0.5), (0.3, 1.0)])
def test_two_runs_of_two_bins_lose_what_quadrature_says(shifts, adjacency):
    both = Composed(tuple(BallsInBinsGaussian(1 / s, 2, ((2, 0.0),), adjacency) for s in shifts))
    for epsilon in (0.0, 0.3, 1.0):
        true = composed_by_quadrature(shifts, epsilon, 50, adjacency)
        assert true * (1 - 5e-3) <= both.delta(epsilon) <= true * 1.03 + 1e-6, epsilon

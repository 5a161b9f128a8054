"""The row-space test against exact ranks, the counterexample in both directions, and what training is told."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from _guarantees import guarantees
from numpy.testing import assert_allclose
from scipy.stats import norm
from vocabulary import ZERO_OUT, assume, each, given, refuses, st, unsupported

from mfdl import Cyclic, EveryStep, Privacy, TrustModel, View, account, algorithms, calibrate, gossip, trust
from mfdl.algorithms import building
from mfdl.dynamics import Dynamics
from mfdl.participation import Explicit, OncePerEpoch, Single
from mfdl.privacy import attacking_sets, exact_arithmetic, sensitivity_by_victim
from mfdl.privacy.victim_sensitivity import is_adaptive
from mfdl.testing import gossip_messages, rows_span, view_cases

MH = gossip.metropolis_hastings
SCHEME = EveryStep(3)
BUILDERS = {
    "dp-dsgd": algorithms.dp_dsgd,
    "anti-pgd": algorithms.anti_pgd,
    "mf-dsgd": lambda d, p: algorithms.mf_dsgd(d, p, np.eye(p.num_steps) + 0.5 * np.eye(p.num_steps, k=-1)),
    "bsr": algorithms.bsr,
    "none": algorithms.dsgd,
    "muffliato": lambda d, p: algorithms.muffliato(d, p, gossip_rounds=2),
    "decor": lambda d, p: algorithms.decor(d, p, sigma_ldp=0.5, sigma_cor=2.0),
    "spatial": lambda d, p: algorithms.spatial_covariance(d, p),
    "zip-dl, own": lambda d, p: algorithms.zip_dl(d, p, self_messages=True),
}
ALL_SEEN = [trust.LDP(), trust.Eavesdropper(), trust.Colluding((0,)), trust.FullCollusion()]


@pytest.mark.parametrize("model", ALL_SEEN, ids=lambda m: m.name)
@pytest.mark.parametrize("name", BUILDERS)
def test_all_messages_seen_is_adaptive(name, model):
    algorithm = BUILDERS[name](Dynamics(MH("star:n=4")), SCHEME)
    assert is_adaptive(model.view(algorithm, 1))
    assert is_adaptive(model.view(algorithm.with_divisors([1, 2, 3, 4]), 1))


@pytest.mark.parametrize("model", ALL_SEEN, ids=lambda m: m.name)
def test_unsent_messages_of_zip_dl_are_adaptive_for_users_only(model):
    algorithm = algorithms.zip_dl(Dynamics(MH("path:n=4")), SCHEME)
    for release in ("none", "average", "all"):
        view = model.view(algorithm, 1, release=release)
        for scheme in (None, Cyclic(1, 3), Single(3), Explicit([[0, 1], [2]], 3)):
            assert not is_adaptive(view, scheme, unit="user")
        for scheme in (SCHEME, Cyclic(3, 1)):
            assert is_adaptive(view, scheme, unit="user") == (release == "none")
            assert not is_adaptive(view, scheme)  # a record moves the gradients of others
    for loss in sensitivity_by_victim(algorithm, model, release="none", unit="user"):
        assert loss.adaptive
        assert loss.adaptive_sensitivity_squared == loss.sensitivity_squared < math.inf
    for scheme, unit in ((Cyclic(1, 3), "user"), (SCHEME, "record"), (Cyclic(3, 1), "record")):
        for loss in sensitivity_by_victim(algorithm, model, participation=scheme, release="none", unit=unit):
            assert not loss.adaptive
            assert loss.adaptive_sensitivity_squared == math.inf
    first = algorithms.zip_dl(Dynamics(MH("path:n=4")), EveryStep(1))  # gradients at public models only
    assert is_adaptive(model.view(first, 1, release="none"))


def test_a_bare_view_of_several_steps_is_not_adaptive_without_its_models():
    algorithm = BUILDERS["dp-dsgd"](Dynamics(MH("path:n=3")), SCHEME)
    view = trust.LDP().view(algorithm, 0)
    assert is_adaptive(view)
    assert not is_adaptive(View(view.gradients, view.noise, num_nodes=3))
    assert not is_adaptive(View(np.eye(2), np.eye(2)))
    assert is_adaptive(View(np.eye(2), np.eye(2), num_nodes=2))  # one step: all models are public


@given(60, case=view_cases(exact=True, max_nodes=4, max_steps=3))
def test_the_row_space_test_is_exact(case):
    """Rational ranks of dyadic matrices; known columns count as unit rows."""
    algorithm, n = case.algorithm, case.algorithm.num_nodes
    assume(not (case.model.name == "central" and n == 3))  # 1 / 3 is rounded
    T, K = algorithm.num_steps, len(algorithm.rounds) // algorithm.num_steps
    W, free = algorithm.dynamics.gossip.at(0).dense(), ~case.known_gradients.ravel()
    messages, _ = gossip_messages(
        algorithm.dynamics.gossip, T, gossip_rounds=K, rate=algorithm.dynamics.learning_rate,
        divisors=algorithm.divisors.tolist(),
    )  # fmt: skip
    unknown = np.ones(case.noising.shape[1])
    unknown[list(case.known_noise)] = 0
    view = np.hstack([case.A[:, free], case.B])
    expected = True
    for t in range(1, T):
        models = W @ messages[(t * K - 1) * n : t * K * n]
        rows = np.hstack([models[:, free], (models @ case.noising) * unknown])
        expected &= rows_span(view[case.round_of_row < t * K], rows)
    assert is_adaptive(case.model.view(algorithm, case.honest[0], release=case.release)) == expected


def test_maps_count_as_they_are():
    """A weight off by one unit in the last place is no average, and hides a difference, however faint."""
    W = np.full((4, 4), 0.25)
    average = algorithms.dp_dsgd(Dynamics(gossip.from_array(W)), SCHEME)
    W[0, 0] += 2.0**-53
    nearly = algorithms.dp_dsgd(Dynamics(gossip.from_array(W)), SCHEME)
    assert not is_adaptive(trust.Central().view(nearly, 0))
    assert is_adaptive(trust.LDP().view(nearly, 0))
    assert is_adaptive(trust.Central().view(average, 0))


def test_models_that_only_rounded_weights_show_are_not_seen():
    """The number is of fractions, by which 4 of 5 dimensions are seen: 1.363, where sqrt(2) is proven."""
    W = np.array([[4, 2, 2, 2], [2, 5, 3, 0], [2, 3, 5, 0], [2, 0, 0, 8]]) / 10
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.from_array(W), 0.3, gossip_rounds=3), EveryStep(2))
    assert not is_adaptive(trust.SecureSum([2]).view(algorithm, 0, release="none"))


def test_a_large_view_that_is_not_obviously_adaptive_is_not(monkeypatch):
    """Two gossip rounds on two nodes that average fully: the first message seen gives the model, by ranks alone."""
    algorithm = algorithms.muffliato(Dynamics(gossip.from_array(np.full((2, 2), 0.5))), SCHEME, gossip_rounds=2)
    second = np.tile([[False, False], [True, False]], (SCHEME.num_steps, 1))
    view = TrustModel.from_masks(seen=second).view(algorithm, 0, release="none")
    assert not view.flow.models
    assert is_adaptive(view)
    monkeypatch.setattr(exact_arithmetic, "MAX_ENTRIES", 10)
    assert not is_adaptive(view)


@pytest.mark.parametrize("spread", [1e14, 1e10, 1e4])
def test_public_divisors_do_not_pass_for_rounding(spread, monkeypatch):
    """Node 2 is never heard; that its batches are large makes what it adds to the model of 1 small, not known."""
    monkeypatch.setattr(building, "MAX_DIVISOR_RATIO", np.inf)  # refused at the boundary otherwise
    algorithm = algorithms.dp_dsgd(Dynamics(MH("path:n=3")), SCHEME)
    model = TrustModel.from_masks(seen=np.array([True, True, False]), release="none")
    for divisors in ([1, 1, spread], [1 / spread, 1, 1]):
        assert not is_adaptive(model.view(algorithm.with_divisors(divisors), 0))
    at_large = TrustModel.from_masks(seen=np.array([True, True, True]), release="none")
    assert is_adaptive(at_large.view(algorithm.with_divisors([1, 1, spread]), 0))  # sparsity needs no numbers


def test_few_seen_rows_do_not_make_a_large_model_operator():
    """One released average of 100 nodes x 100 steps: the models alone would be a 10,000 x 20,000 array."""
    many = algorithms.dp_dsgd(Dynamics(MH("ring:n=100")), EveryStep(100))
    tracemalloc.start()
    assert not is_adaptive(trust.ReleasedOnly().view(many, 0, release="average"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20


# u - w - v, two steps, u = 0 takes part in the first, v = 2 attacks, W_wu = 1/3
COUNTER = algorithms.dp_dsgd(Dynamics(MH("path:n=3")), Explicit([[0]], 2))
ATTACK = trust.PNDP([2])


def of_counter(release="none", **options):
    return sensitivity_by_victim(COUNTER, ATTACK, victims=[0], release=release, **options)[0]


def total_variation(mu):
    return 2 * norm.cdf(mu / 2) - 1


def true_total_variation(slope):
    """w's second gradient is clip(slope * (r - 1/6), 1), r what its model got from u; v knows the rest.

    r is N(0 or 1/3, 1/9), and w adds N(0, 1); the gradient's sign is its own to choose.
    """
    r = np.linspace(-3, 3.5, 1001)
    y = np.linspace(-9, 9, 1001)
    at = r + np.clip(slope * (r - 1 / 6), -1, 1)
    kernel = norm.pdf(y[:, None] - at[None, :])
    densities = [kernel @ norm.pdf(r, mean, 1 / 3) * (r[1] - r[0]) for mean in (0.0, 1 / 3)]
    return 0.5 * float(np.abs(densities[0] - densities[1]).sum() * (y[1] - y[0]))


def test_the_counterexample_is_real():
    assert total_variation(math.sqrt(0.1)) == pytest.approx(0.1256, abs=1e-4)
    assert true_total_variation(0.0) == pytest.approx(0.1256, abs=1e-3)
    assert true_total_variation(2.0) == pytest.approx(0.271, abs=1e-3)


def test_the_fixed_number_is_not_given_out_for_training():
    loss = of_counter()
    assert (loss.sensitivity_squared, loss.bound) == (pytest.approx(0.1, rel=2e-6), "exact")
    assert not loss.adaptive
    assert loss.adaptive_sensitivity_squared == pytest.approx(1.0, rel=1e-9)
    assert loss.adaptive_by == "all messages seen"
    assert total_variation(math.sqrt(loss.adaptive_sensitivity_squared)) > true_total_variation(2.0)
    guarantee = account(COUNTER, Privacy(ATTACK, release="none", **ZERO_OUT), noise_std=1.0)
    assert guarantee.adaptive
    assert guarantee.mu >= 1
    (fixed, *_) = guarantees(COUNTER, [loss], trust=ATTACK, **ZERO_OUT, noise_std=1.0, adaptive=False)
    assert not fixed.adaptive
    assert fixed.mu == pytest.approx(math.sqrt(0.1), rel=2e-6)


def test_shift_reduction_covers_the_counterexample():
    """w's map x -> x - g(x) with slope 2 of g is 3-Lipschitz; published: total variation 0.276 against 0.271."""
    loss = of_counter(lipschitz=3)
    assert (loss.adaptive_by, loss.adaptive_bound, loss.adaptive) == ("shift reduction", "upper", False)
    assert loss.sensitivity_squared == pytest.approx(0.1, rel=2e-6)
    assert loss.adaptive_sensitivity_squared == pytest.approx(0.5, rel=1e-6)
    covered = total_variation(math.sqrt(loss.adaptive_sensitivity_squared))
    assert true_total_variation(2.0) <= covered <= 0.2765
    # no gradient of u is at stake in step 1; with L = 1 the number is that of non-adaptive gradients
    assert of_counter(lipschitz=1).adaptive_sensitivity_squared == pytest.approx(0.1, rel=1e-4)
    # a useless constant never makes it worse than all messages
    assert of_counter(lipschitz=1e6).adaptive_sensitivity_squared <= 1 + 1e-9
    order = [of_counter(lipschitz=L).adaptive_sensitivity_squared for L in (0.5, 1, 2, 3, 5)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(order))
    by_step = of_counter(lipschitz=[7.0, 3.0])  # nothing is carried into step 0
    assert by_step.adaptive_sensitivity_squared == pytest.approx(loss.adaptive_sensitivity_squared, rel=1e-6)


def test_a_released_model_of_the_victim_leaves_no_room_for_shifts():
    loss = of_counter(release=None, lipschitz=1)
    assert loss.release == "all"
    assert 0.1 < loss.sensitivity_squared <= loss.adaptive_sensitivity_squared * (1 + 3e-6)


def test_zip_dl_cannot_be_calibrated_for_records_or_with_released_models():
    user, record = (algorithms.zip_dl(Dynamics(MH("ring:n=6")), scheme) for scheme in (SCHEME, Cyclic(1, 3)))
    for model in (trust.LDP(), trust.PNDP([0])):
        for algorithm, release in ((record, "none"), (user, "all"), (record, None)):
            refuses("infinite loss under", calibrate, algorithm, Privacy(model, release=release, **ZERO_OUT), mu=1.0)


@each(
    "name, model, text",
    ("decor", trust.PNDP([0]), r"plain gossip with node-local noise; 'decor'.*not proved"),
    ("spatial", trust.PNDP([0]), r"'spatial'.*not proved"),
    ("zip-dl, own", trust.PNDP([0]), r"'zip-dl'.*not proved"),
    ("dp-dsgd", trust.Central(), "not seen averages"),
    ("none", trust.PNDP([0]), r"'none'.*ZeroNoise"),
    ("dp-dsgd", TrustModel.from_masks(known_noise=np.arange(12).reshape(3, 4) == 0), "known at all steps"),
)
def test_shift_reduction_refuses_what_is_not_proved(name, model, text):
    algorithm = BUILDERS[name](Dynamics(MH("path:n=4")), SCHEME)
    unsupported(text, sensitivity_by_victim, algorithm, model, lipschitz=1.0)
    assert sensitivity_by_victim(algorithm, model)  # without a constant there is the all-messages value


@pytest.mark.parametrize("model", [ATTACK, trust.LDP()], ids=["hidden", "seen"])
@pytest.mark.parametrize("bad", [-1, -0.1, math.nan, math.inf, [1, math.nan], [1, 1, 1], [], [[1, 1]]])
def test_bad_constants_are_refused(bad, model):
    """Also where the number would not be needed."""
    refuses("lipschitz must be", sensitivity_by_victim, COUNTER, model, lipschitz=bad)


def test_a_known_gradient_of_the_victim_is_no_matter_of_models():
    """It was finite by shift reduction: the record of node 0 moves a gradient that the attacker knows."""
    algorithm = algorithms.dp_dsgd(Dynamics(MH("path:n=2")), SCHEME)
    known = np.zeros((3, 2), dtype=bool)
    known[1, 0] = True
    model = TrustModel.from_masks(known_gradients=known)
    for scheme, value in ((EveryStep(3), math.inf), (Explicit([[0], [1]], 3), math.inf), (Explicit([[0]], 3), 1.0)):
        for L in (None, 0.5, 1.0):
            losses = sensitivity_by_victim(algorithm, model, participation=scheme, release="none", lipschitz=L)
            assert losses[0].adaptive_sensitivity_squared <= value * (1 + 1e-9)
            assert math.isinf(losses[0].adaptive_sensitivity_squared) == math.isinf(value)
            assert losses[1].adaptive_sensitivity_squared < math.inf


def test_more_patterns_than_can_be_listed_are_bounded_by_their_union(monkeypatch):
    algorithm = algorithms.dp_dsgd(Dynamics(MH("path:n=4")), EveryStep(6))
    scheme = OncePerEpoch(epochs=2, period=3)
    listed = sensitivity_by_victim(algorithm, trust.PNDP([0]), participation=scheme, release="none", lipschitz=1.0)
    monkeypatch.setattr(attacking_sets, "MAX_ENUMERATED", 8)
    bounded = sensitivity_by_victim(algorithm, trust.PNDP([0]), participation=scheme, release="none", lipschitz=1.0)
    for exact, upper in zip(listed, bounded, strict=True):
        assert exact.adaptive_sensitivity_squared <= upper.adaptive_sensitivity_squared * (1 + 1e-9) <= 2 + 1e-6
    long = algorithms.dp_dsgd(Dynamics(MH("path:n=3")), EveryStep(60))
    many = OncePerEpoch(epochs=12, period=5)  # 5^12 patterns
    options = {"participation": many, "release": "none", "method": "certified", "lipschitz": 1.0}
    for loss in sensitivity_by_victim(long, ATTACK, **options):
        assert loss.adaptive_sensitivity_squared <= 12 * (1 + 1e-6)


@given(
    20, case=view_cases(kinds=("pndp", "masks"), exact=True, max_nodes=4, max_steps=3), L=st.sampled_from([1.0, 2.0])
)
def test_shift_reduction_lies_between_fixed_gradients_and_all_messages(case, L):
    """Non-adaptive gradients are 1-Lipschitz maps, so with L >= 1 their exact loss is a lower bound."""
    known = np.zeros(case.algorithm.noise.shape[1], dtype=bool)
    known[list(case.known_noise)] = True
    if (known.reshape(case.algorithm.num_steps, -1) != known[: case.algorithm.num_nodes]).any():
        return  # refused, see above
    losses = sensitivity_by_victim(case.algorithm, case.model, release=case.release, lipschitz=L)
    plain = sensitivity_by_victim(case.algorithm, case.model, release=case.release)
    for shifted, unshifted in zip(losses, plain, strict=True):
        assert shifted.sensitivity_squared == unshifted.sensitivity_squared
        assert shifted.adaptive_sensitivity_squared <= unshifted.adaptive_sensitivity_squared
        if shifted.bound == "exact":
            assert shifted.adaptive_sensitivity_squared >= shifted.sensitivity_squared * (1 - 3e-6) - 1e-9


RING = algorithms.muffliato(Dynamics(gossip.uniform("ring:n=6")), EveryStep(4), gossip_rounds=1)


@pytest.mark.parametrize("name", BUILDERS)
def test_pndp_is_adaptive_only_where_everything_is_seen(name):
    on_path = BUILDERS[name](Dynamics(MH("path:n=4")), SCHEME)
    complete = BUILDERS[name](Dynamics(MH("complete:n=4")), SCHEME)
    for release in ("none", "all"):  # released models come too late for earlier gradients
        assert not is_adaptive(trust.PNDP([0]).view(on_path, 2, release=release))
        if name != "muffliato":  # in its second round, 1 hears what 3 said in the first
            assert not is_adaptive(trust.PNDP([1]).view(on_path, 2, release=release))
        if not name.startswith(("zip-dl", "muffliato")):  # messages to others are hidden; several rounds: no claim
            assert is_adaptive(trust.PNDP([0]).view(complete, 1, release=release))
    if not name.startswith(("zip-dl", "muffliato")):
        assert is_adaptive(trust.PNDP([1, 2]).view(on_path, 3))
        assert not is_adaptive(trust.PNDP([0, 1]).view(on_path, 3))


def test_central_is_adaptive_only_for_exact_averaging():
    uniform = gossip.from_array(np.full((4, 4), 0.25))
    exact = algorithms.dp_dsgd(Dynamics(uniform), SCHEME)
    assert is_adaptive(trust.Central().view(exact, 0))
    assert is_adaptive(trust.Central().view(algorithms.anti_pgd(Dynamics(uniform), SCHEME), 0))
    for spec in ("path:n=4", "ring:n=4", "star:n=4"):
        assert not is_adaptive(trust.Central().view(algorithms.dp_dsgd(Dynamics(MH(spec)), SCHEME), 0))
    nearly = uniform.dense()
    nearly[0, :2] += [1e-6, -1e-6]
    nearly[1, :2] -= [1e-6, -1e-6]
    assert not is_adaptive(trust.Central().view(algorithms.dp_dsgd(Dynamics(gossip.from_array(nearly)), SCHEME), 0))
    # mu^2 = T / n then, and calibration may use it
    assert_allclose(
        [x.adaptive_sensitivity_squared for x in sensitivity_by_victim(exact, trust.Central())], 3 / 4, rtol=1e-9
    )


def test_one_step_and_gradients_that_are_known():
    short = algorithms.dp_dsgd(Dynamics(MH("path:n=4")), EveryStep(1))
    for model in (trust.PNDP([0]), trust.Central(), trust.ReleasedOnly()):
        assert is_adaptive(model.view(short, 1))
    algorithm = algorithms.dp_dsgd(Dynamics(MH("path:n=3")), SCHEME)
    # 2 hears 1 only; 1's gradients are known, 0's model is averaged with the hidden message of 0
    hidden = TrustModel.from_masks(seen=np.array([False, True, True]), known_gradients=np.array([False, True, True]))
    assert not is_adaptive(hidden.view(algorithm, 0))
    heard = TrustModel.from_masks(seen=np.array([True, True, False]), known_gradients=np.array([False, True, True]))
    # the model of 0 is made of what was seen, but the known gradient of 1 shows its model, which holds 2's message
    assert not is_adaptive(heard.view(algorithm, 0))
    assert is_adaptive(TrustModel.from_masks(seen=np.ones(3, dtype=bool)).view(algorithm, 0))


@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_calibration_uses_the_adaptive_number(lipschitz):
    common = {
        "trust": trust.PNDP([0]), "adjacency": "replace-one", "clip_norm": 0.5, "release": "none",
        "lipschitz": lipschitz,
    }  # fmt: skip
    mechanism = calibrate(RING, Privacy(**common), mu=0.7)
    losses = sensitivity_by_victim(RING, trust.PNDP([0]), release="none", lipschitz=lipschitz)
    worst = max(x.adaptive_sensitivity_squared for x in losses)
    assert mechanism.noise_std == pytest.approx(math.sqrt(worst) / 0.7, rel=1e-9)  # 2 C = 1
    assert mechanism.guarantee.adaptive
    assert mechanism.guarantee.mu <= 0.7
    assert worst > 1.05 * max(x.sensitivity_squared for x in losses)
    again = account(RING, Privacy(**common), noise_std=mechanism.noise_std)
    assert again.mu <= 0.7
    fixed = guarantees(
        RING, losses, adaptive=False, noise_std=mechanism.noise_std,
        **{key: common[key] for key in ("trust", "adjacency", "clip_norm")},
    )  # fmt: skip
    assert [guarantee.adaptive for guarantee in fixed] == [x.adaptive for x in losses]
    assert "gradients: non-adaptive only" in str(fixed[0])

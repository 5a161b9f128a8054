"""Audits: bounds that fail as rarely as they say, views that equal what runs emit, refusals that say what to change."""

import dataclasses
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfdl.algorithms import registry
from mfdl.audit import Training, Transcript, audit, audit_matrix, bounds
from mfdl.audit.canaries import best_signs, candidates, learned
from mfdl.audit.observation import Observation
from mfdl.audit.system import COORDINATES
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.gossip import metropolis_hastings
from mfdl.mechanism import with_noise
from mfdl.participation import Cyclic, EveryStep, Explicit
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.trust import LDP, PNDP, Central, Coalitions, ReleasedOnly, SecLDP, TrustModel, named

DYNAMICS = Dynamics(metropolis_hastings("path:n=4"), 0.5)
SCHEME = Cyclic(epochs=2, period=2)
SETTINGS = {"adjacency": "replace-one", "clip_norm": 1.0, "noise_std": 2.0}


def build(name, scheme=SCHEME, dynamics=DYNAMICS):
    return registry.build(name, dynamics, scheme)


# ---- bounds -----------------------------------------------------------------------------------------------


@given(trials=st.integers(1, 30), data=st.data(), failure=st.sampled_from([0.3, 0.05, 1e-3]))
def test_clopper_pearson_is_the_rate_at_which_so_few_errors_have_probability_failure(trials, data, failure):
    errors = data.draw(st.integers(0, trials - 1))
    rate = Fraction(bounds.clopper_pearson_upper_bound(errors, trials, failure))
    exact = sum(comb(trials, j) * rate**j * (1 - rate) ** (trials - j) for j in range(errors + 1))
    assert float(exact) == pytest.approx(failure, rel=1e-9)


def test_all_errors_leave_every_rate_possible():
    assert bounds.clopper_pearson_upper_bound(7, 7, 0.05) == 1.0
    assert bounds.binomial_mu(np.ones(9), np.ones(9), 0.0, failure=0.05) == 0.0
    assert bounds.binomial_epsilon(np.ones(9), np.ones(9), 0.0, delta=1e-6, failure=0.05) == 0.0


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_bounds_exceed_the_truth_no_more_often_than_they_say(mu):
    """1,000 audits at failure 0.2: more than 250 wrong ones have probability below 1e-4."""
    rng, wrong = np.random.default_rng(5), np.zeros(2)
    for _ in range(1000):
        without, with_canary = rng.standard_normal(60), mu + rng.standard_normal(60)
        wrong += [
            bounds.gaussian_mu(without, with_canary, failure=0.2) > mu,
            bounds.binomial_mu(without, with_canary, mu / 2, failure=0.2) > mu,
        ]
    assert (wrong <= 250).all()


def test_bounds_approach_the_truth_and_the_normal_one_is_sharper():
    rng = np.random.default_rng(1)
    without, with_canary = rng.standard_normal(40_000), 1.5 + rng.standard_normal(40_000)
    gaussian = bounds.gaussian_mu(without, with_canary, failure=0.01)
    binomial = bounds.binomial_mu(without, with_canary, 0.75, failure=0.01)
    assert 1.4 < binomial < 1.5
    assert 1.44 < gaussian < 1.5
    assert 0 < bounds.epsilon_lower_bound(gaussian, 1e-6) < bounds.epsilon_lower_bound(1.5, 1e-6)


@given(spread=st.floats(0.05, 1.0))
@settings(max_examples=15)
def test_unequal_variances_never_show_more_than_the_wider_one(spread):
    rng = np.random.default_rng(3)
    without, with_canary = spread * rng.standard_normal(4000), 1 + rng.standard_normal(4000)
    assert bounds.gaussian_mu(without, with_canary, failure=1e-6) < 1.0


def test_samples_without_noise_show_everything_or_nothing():
    zeros, ones = np.zeros(100), np.ones(100)
    assert bounds.gaussian_mu(zeros, ones, failure=0.05) == np.inf
    assert bounds.gaussian_mu(zeros, zeros, failure=0.05) == 0.0
    assert bounds.epsilon_lower_bound(np.inf, 1e-6) == np.inf


def test_the_chosen_threshold_lies_between_the_means():
    rng = np.random.default_rng(2)
    threshold = bounds.choose_threshold(rng.standard_normal(2000), 3 + rng.standard_normal(2000), failure=0.05)
    assert 0.5 < threshold < 2.5


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_the_needed_trials_are_enough_and_one_less_is_not(mu):
    needed = bounds.trials_needed(mu, failure=0.01)
    base = np.linspace(-1, 1, needed)
    base /= base.std(ddof=1)
    assert bounds.gaussian_mu(base, 2 * mu + base, failure=0.01) > mu
    if needed > 50:
        fewer = base[:-1] - base[:-1].mean()
        fewer /= fewer.std(ddof=1)
        assert bounds.gaussian_mu(fewer, 2 * mu + fewer, failure=0.01) <= mu


# ---- views against runs -----------------------------------------------------------------------------------

VIEWS: dict[str, tuple[str, TrustModel]] = {
    "local": ("mafalda", LDP()),
    "edges known": ("decor", LDP()),
    "eavesdropper": ("decor", SecLDP()),
    "colluders": ("corn", SecLDP([1])),
    "hidden messages": ("anti-pgd", PNDP([3])),
    "average": ("bsr", Central()),
    "released": ("dp-dsgd", ReleasedOnly()),
    "several rounds": ("muffliato", PNDP([0])),
}


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("feedback", [0.0, -0.7])
def test_what_is_seen_of_a_run_is_the_view_of_its_gradients_and_unknown_noise(case, feedback):
    name, trust = VIEWS[case]
    algorithm, rng = build(name), np.random.default_rng(0)
    T, n = algorithm.num_steps, algorithm.num_nodes
    view = Observation.of(algorithm, trust, 2).with_feedback(feedback)
    gradients = rng.standard_normal((T, n, COORDINATES)) / 10  # below the clipping norm
    gradients[view.knowledge.known_gradients] = 0.0
    key = NoiseKey.from_seed(4)
    run = Training(algorithm, noise_std=0.3, clip_norm=1.0).run(gradients, view.feedback, trials=1, key=key)
    Z = base_columns(algorithm.noise, HolderKeys.simulated(key)).block(np.arange(T), COORDINATES)
    Z = Z.reshape(-1, COORDINATES) * ~view.known_noise[:, None]
    expected = view.gradients @ gradients.reshape(T * n, -1) + 0.3 * view.noise @ Z
    np.testing.assert_allclose(view.rows(run, key, 0.3), expected, atol=1e-9)


@pytest.mark.parametrize("case", VIEWS)
def test_whitened_columns_give_the_gram_of_the_pseudo_inverse(case):
    name, trust = VIEWS[case]
    view = Observation.of(build(name), trust, 2)
    A, B = view.columns_of(2), view.noise[:, ~view.known_noise]
    white = view.whitener() @ A
    np.testing.assert_allclose(white.T @ white, A.T @ np.linalg.pinv(B @ B.T, rcond=1e-12) @ A, atol=1e-8)


@given(data=st.data(), size=st.integers(1, 5))
@settings(max_examples=30)
def test_signs_attain_the_maximum_over_patterns(data, size):
    square = np.array(data.draw(st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=5, max_size=5)))
    gram = (square.T @ square).astype(float)
    patterns = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=size, unique=True), min_size=1))
    scheme = Explicit([sorted(p) for p in patterns], steps=5)
    signs, value = best_signs(gram, scheme)
    tried = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T
    masks = [np.isin(np.arange(5), p) for p in patterns]
    assert value == max(float((s * m) @ gram @ (s * m)) for m in masks for s in tried)
    assert signs @ gram @ signs == value
    assert any((np.abs(signs) == m).all() for m in masks)


# ---- audits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, entry in registry.MECHANISMS.items() if entry.models])
def test_every_mechanism_keeps_its_claim_under_its_own_trust_model_and_the_audit_comes_near(name):
    entry = registry.MECHANISMS[name]
    user = entry.release == "none"
    algorithm = build(name, EveryStep(4) if user else SCHEME)
    how = {"unit": "user", "release": "none", "claimed_mu": None} if user else {}
    found = audit(algorithm, trust=named(entry.models[0]), trials=800, seed=1, **SETTINGS, **how)
    assert not found.violated, found.sentence()
    possible = max(one.mu_possible for one in found.canaries)
    assert 0.7 * possible < found.mu_audited
    assert all(one.mu_possible <= one.mu_claimed * (1 + 1e-9) for one in found.canaries)


def test_adaptive_gradients_show_more_than_fixed_ones_where_messages_are_hidden():
    ring = Dynamics(metropolis_hastings("ring:n=4"), 0.5)
    chosen = candidates(build("mafalda", dynamics=ring), PNDP([3]), [0])
    fixed = next(one for one in chosen if one.name == "worst gradients")
    adaptive = next(one for one in chosen if one.name == "adaptive gradients")
    assert adaptive.sensitivity() > 1.005 * fixed.sensitivity()


def test_one_seed_gives_one_result_and_a_mechanism_brings_its_settings():
    algorithm = build("dp-dsgd")
    first = audit(algorithm, trust=LDP(), trials=300, seed=7, **SETTINGS)
    mechanism = with_noise(algorithm, trust=LDP(), **SETTINGS)
    assert audit(mechanism, trust=LDP(), trials=300, seed=7) == first
    assert audit(mechanism, trust=LDP(), trials=300, seed=8) != first
    assert first.mu_claimed == pytest.approx(mechanism.guarantee.mu)
    assert "not refuted" in first.sentence()
    assert first.to_dict()["canaries"][0]["victim"] == first.canaries[0].victim


def test_a_mechanism_is_audited_with_the_models_that_its_guarantee_releases():
    algorithm = build("zip-dl", EveryStep(3))
    mechanism = with_noise(algorithm, trust=PNDP([3]), release="none", unit="user", **SETTINGS)
    found = audit(mechanism, trust=PNDP([3]), trials=400)
    assert found.mu_claimed == pytest.approx(mechanism.guarantee.mu)
    assert all(one.mu_possible <= one.mu_claimed * (1 + 1e-9) for one in found.canaries)


def test_a_system_without_any_noise_shows_everything():
    found = audit(build("none"), trust=LDP(), claimed_mu=1.0, trials=400, **SETTINGS)
    assert found.violated
    assert all(one.mu_gaussian == np.inf for one in found.canaries)
    assert found.to_dict()["mu_audited"] == "inf"


def test_the_canary_chosen_from_runs_is_the_worst_compared_with_its_claim():
    near, far = (one for one in candidates(build("dp-dsgd"), LDP(), [0, 3]) if one.name == "worst gradients")
    precision = near.view.whitener().T @ near.view.whitener()
    assert learned([near, far], [precision, precision], {0: 1.0, 3: 0.5}).victim == 3
    assert learned([near, far], [precision, precision], {0: 0.5, 3: 1.0}).victim == 0


def test_no_two_runs_of_an_audit_share_noise():
    keys = []

    class Noting(Training):
        def run(self, canary, feedback, *, trials, key):
            keys.append(key.key_id)
            return super().run(canary, feedback, trials=trials, key=key)

    found = audit(
        build("dp-dsgd"),
        trust=LDP(),
        trials=200,
        system=Noting(build("dp-dsgd"), noise_std=2.0, clip_norm=1.0),
        **SETTINGS,
    )
    assert len(set(keys)) == len(keys) == 4 * len(found.canaries) + 1


def test_a_view_larger_than_dense_matrices_is_refused():
    algorithm = build("dp-dsgd", Cyclic(epochs=10, period=50))
    with pytest.raises(InvalidInput, match="smaller graph or for fewer steps"):
        audit(algorithm, trust=LDP(), **SETTINGS)


def test_a_combination_without_a_finite_claim_is_refused_with_the_reason():
    with pytest.raises(InvalidInput, match=r"corn-pairwise|space-time claims nothing"):
        audit(build("space-time"), trust=LDP(), **SETTINGS)
    with pytest.raises(InvalidInput, match="none claims nothing that an audit could refute under ldp: there is no"):
        audit(build("none"), trust=LDP(), **SETTINGS)


def test_too_few_trials_are_refused_with_the_number_that_is_enough():
    algorithm = build("dp-dsgd")
    with pytest.raises(InvalidInput, match="trials must be at least") as refusal:
        audit(algorithm, trust=LDP(), trials=40, **SETTINGS)
    needed = int(str(refusal.value).split("at least ")[1].split()[0])
    assert audit(algorithm, trust=LDP(), trials=needed, **SETTINGS).trials == needed
    with pytest.raises(InvalidInput, match=f"trials must be at least {needed} "):
        audit(algorithm, trust=LDP(), trials=needed - 1, **SETTINGS)


class _Forgetful(Training):
    """Keeps only part of what was sent."""

    def run(self, canary, feedback, *, trials, key):
        run = super().run(canary, feedback, trials=trials, key=key)
        return self.forget(run)


@pytest.mark.parametrize(
    ("forget", "why"),
    [
        (lambda run: dataclasses.replace(run, messages=run.messages[:-1]), "keep every message"),
        (lambda run: Transcript(run.messages * np.nan, run.models), "not finite"),
        (lambda run: Transcript(run.messages, run.models[:1]), "return its models"),
    ],
)
def test_a_transcript_without_what_the_view_sees_is_refused(forget, why):
    algorithm = build("dp-dsgd")
    system = _Forgetful(algorithm, noise_std=2.0, clip_norm=1.0)
    system.forget = forget
    with pytest.raises(InvalidInput, match=why):
        audit(algorithm, trust=PNDP([0]), system=system, trials=400, **SETTINGS)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"noise_std": None}, "needs adjacency, clip_norm and noise_std"),
        ({"noise_std": 0.0}, "noise_std must be a finite number > 0"),
        ({"adjacency": "other"}, "adjacency"),
        ({"victim": 9}, "victim must be a node index below 4"),
        ({"level": 1.0}, "level must be"),
        ({"unit": "user"}, "needs participation in every step"),
        ({"claimed_mu": -1.0}, "claimed_mu must be"),
        ({"trust": "ldp"}, "trust must be a trust model"),
    ],
)
def test_bad_arguments_are_refused(changed, why):
    with pytest.raises(InvalidInput, match=why):
        audit(build("dp-dsgd"), **({"trust": LDP()} | SETTINGS | changed))


def test_a_mechanism_and_its_settings_are_not_given_twice():
    mechanism = with_noise(build("dp-dsgd"), trust=LDP(), **SETTINGS)
    with pytest.raises(InvalidInput, match="a mechanism brings clip_norm"):
        audit(mechanism, trust=LDP(), clip_norm=2.0)


# ---- the matrix -------------------------------------------------------------------------------------------


def test_a_matrix_has_a_cell_for_every_pair_and_one_level(tmp_path):
    steps = []
    found = audit_matrix(
        {"dp-dsgd": build("dp-dsgd"), "none": build("none")},
        {"ldp": LDP(), "coalitions": Coalitions(1)},
        adjacency="replace-one",
        clip_norm=1.0,
        mu=0.8,
        trials=500,
        progress=lambda: steps.append(1),
    )
    assert len(found.cells) == len(steps) == 4
    audited = [cell.result for cell in found.cells if cell.result is not None]
    assert [cell.mechanism for cell in found.cells if cell.result is None] == ["none", "none"]
    assert all(one.mu_claimed == pytest.approx(0.8) and one.level == pytest.approx(1 - 0.05 / 4) for one in audited)
    assert not found.violations
    found.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"audit.json", "audit.csv", "audit.png"}
    assert (tmp_path / "audit.csv").read_text().count("\n") == 5


def test_a_matrix_needs_one_kind_of_noise_and_a_cell():
    with pytest.raises(InvalidInput, match="exactly one of noise_std and mu"):
        audit_matrix({}, {}, adjacency="zero-out", clip_norm=1.0)
    with pytest.raises(InvalidInput, match="at least one mechanism"):
        audit_matrix({}, {}, adjacency="zero-out", clip_norm=1.0, mu=1.0)

"""Audits: bounds that fail as rarely as they say, views that equal what runs emit, refusals that say what to change."""

import copy
import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mfdl.algorithms import registry
from mfdl.audit import Cell, Training, Transcript, audit, audit_matrix, bounds, runs
from mfdl.audit.canaries import ALONG, SPREAD, best_signs, candidates, learned, tried_patterns
from mfdl.audit.observation import Observation
from mfdl.audit.system import COORDINATES
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.gossip import GossipMatrix, metropolis_hastings
from mfdl.noise_scale import account, calibrate, with_noise
from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, ParticipationByNode, Single
from mfdl.privacy import gaussian
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.trust import LDP, PNDP, Central, Coalitions, ReleasedOnly, SecLDP, TrustModel, named

DYNAMICS = Dynamics(metropolis_hastings("path:n=4"), 0.5)
SCHEME = Cyclic(epochs=2, period=2)
SETTINGS = {"adjacency": "replace-one", "clip_norm": 1.0, "noise_std": 2.0}


def build(name, scheme=SCHEME, dynamics=DYNAMICS):
    return registry.build(name, dynamics, scheme)


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


def test_a_view_without_rows_has_as_many_trials_as_any():
    view = Observation.of(build("dp-dsgd"), ReleasedOnly(), 0, release="none")
    assert view.by_trial(np.zeros((0, 5 * COORDINATES))).shape == (5, 0, COORDINATES)
    rows = np.arange(12.0).reshape(2, 6)
    np.testing.assert_array_equal(view.by_trial(rows)[1], [[2, 3], [8, 9]])


@pytest.mark.parametrize("case", VIEWS)
def test_whitened_columns_give_the_gram_of_the_pseudo_inverse(case):
    name, trust = VIEWS[case]
    view = Observation.of(build(name), trust, 2)
    A, B = view.columns_of(2), view.noise[:, ~view.known_noise]
    white = view.whitener() @ A
    np.testing.assert_allclose(white.T @ white, A.T @ np.linalg.pinv(B @ B.T, rcond=1e-12) @ A, atol=1e-8)


MANY = {  # more patterns than are enumerated
    "once per epoch": OncePerEpoch(epochs=3, period=17),
    "few steps an epoch": OncePerEpoch(epochs=13, period=2),
    "min-separation": MinSeparation(steps=40, max_participations=4, separation=3),
    "explicit": Explicit(list(itertools.combinations(range(1, 21), 4)), steps=22),
}


@pytest.mark.parametrize("scheme", MANY)
def test_of_many_patterns_those_that_are_tried_hold_every_step_that_a_record_can_join(scheme):
    scheme = MANY[scheme]
    joined = {t for pattern in scheme.patterns() for t in pattern.tolist()}
    admissible = {frozenset(pattern.tolist()) for pattern in scheme.patterns()}
    rng = np.random.default_rng(1)
    square = rng.standard_normal((scheme.num_steps, scheme.num_steps)) * rng.uniform(0.01, 1, scheme.num_steps)
    tried = {frozenset(pattern) for pattern in tried_patterns(square.T @ square, scheme)}
    assert tried <= admissible
    assert set().union(*tried) == joined
    assert len(tried) <= scheme.num_steps + 1
    for step in range(0, scheme.num_steps, 7):
        gram = np.eye(scheme.num_steps)
        gram[step, step] = 9.0
        signs, value = best_signs(gram, scheme)
        assert frozenset(np.flatnonzero(signs).tolist()) in admissible
        assert value == signs @ gram @ signs
        assert (signs[step] != 0) == (step in joined)


@given(
    data=st.data(),
    scheme=st.sampled_from(
        [OncePerEpoch(2, 3), MinSeparation(7, 3, 2), Cyclic(3, 4), EveryStep(12), Explicit([[1], [0, 3], [0, 2, 4]], 5)]
    ),
)
@examples(20)
def test_signs_of_every_pattern_are_tried_where_patterns_are_few(data, scheme):
    T = scheme.num_steps
    square = np.array(data.draw(st.lists(st.lists(st.integers(-3, 3), min_size=T, max_size=T), min_size=3, max_size=3)))
    gram = (square.T @ square).astype(float)
    best = 0.0
    for pattern in scheme.patterns():
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(pattern))))
        best = max(best, float(((signs @ square.T[pattern]) ** 2).sum(axis=1).max()))
    found, value = best_signs(gram, scheme)
    assert found @ gram @ found == value
    if max(pattern.size for pattern in scheme.patterns()) <= 10:
        assert value == best
    else:  # improved one by one until no single sign is better the other way
        flipped = found[:, None] * (1 - 2 * np.eye(T))
        assert ((square @ flipped) ** 2).sum(axis=0).max() <= value <= best


# ---- audits -----------------------------------------------------------------------------------------------


QUICK = ("dp-dsgd", "mafalda", "decor", "muffliato", "cdp", "zip-dl", "adapted", "gradient-tracking", "delayed-dsgd")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name, entry in registry.MECHANISMS.items()
        if entry.models
    ],
)
def test_every_mechanism_keeps_its_claim_under_its_own_trust_model_and_the_audit_comes_near(name):
    entry = registry.MECHANISMS[name]
    user = entry.release == "none"
    algorithm = build(name, EveryStep(4) if user else SCHEME)
    how = {"unit": "user", "release": "none"} if user else {}
    found = audit(algorithm, trust=named(entry.models[0]), trials=800, seed=1, **SETTINGS, **how)
    assert not found.violated, found.sentence()
    assert 0.7 * max(canary.mu_possible for canary in found.canaries) < found.mu_audited
    assert all(canary.mu_possible <= canary.mu_claimed * (1 + 1e-9) for canary in found.canaries)


def test_one_seed_gives_one_result_and_a_mechanism_brings_its_settings():
    how = {"trust": LDP(), "trials": 200}
    first = audit(build("dp-dsgd"), seed=7, **how, **SETTINGS)
    mechanism = with_noise(build("dp-dsgd"), trust=LDP(), **SETTINGS)
    assert audit(mechanism, seed=7, **how) == first
    assert audit(mechanism, seed=8, **how) != first
    assert first.mu_claimed == pytest.approx(mechanism.guarantee.mu)
    assert "not refuted" in first.sentence()
    assert first.to_dict()["canaries"][0]["victim"] == first.canaries[0].victim


def test_a_mechanism_is_audited_with_the_models_that_its_guarantee_releases():
    algorithm = build("zip-dl", EveryStep(3))
    mechanism = with_noise(algorithm, trust=PNDP([3]), release="none", unit="user", **SETTINGS)
    found = audit(mechanism, trust=PNDP([3]), trials=200)
    assert found.mu_claimed == pytest.approx(mechanism.guarantee.mu)
    assert all(canary.mu_possible <= canary.mu_claimed * (1 + 1e-9) for canary in found.canaries)


def test_a_system_without_any_noise_shows_everything():
    found = audit(build("none"), trust=LDP(), claimed_mu=1.0, trials=200, **SETTINGS)
    assert found.violated
    assert all(canary.mu_gaussian == np.inf for canary in found.canaries)
    assert found.to_dict()["mu_audited"] == "inf"


def test_the_canary_chosen_from_runs_is_the_worst_compared_with_its_claim_and_where_the_noise_is_weak():
    near, far = (one for one in candidates(build("dp-dsgd"), LDP(), [0, 3]) if one.name == "worst gradients")
    precision = near.view.whitener().T @ near.view.whitener()
    for claims, victim in (({0: 1.0, 3: 0.5}, 3), ({0: 0.5, 3: 1.0}, 0)):
        assert learned([near, far], [precision, precision], claims).victim == victim
    looked_at = [dataclasses.replace(near, direction=along) for along in (ALONG, SPREAD)]
    for sizes, direction in (((1, 2), SPREAD), ((2, 1), ALONG)):
        assert learned(looked_at, [size * precision for size in sizes], {0: 1.0}).direction is direction


class _Noting(Training):
    """Notes the key of every run."""

    def run(self, canary, feedback, *, trials, key):
        self.keys.append(key.key_id)
        return super().run(canary, feedback, trials=trials, key=key)


def test_no_two_runs_of_an_audit_share_noise():
    system = _Noting(build("dp-dsgd"), noise_std=2.0, clip_norm=1.0)
    system.keys = []
    found = audit(build("dp-dsgd"), trust=LDP(), trials=200, system=system, **SETTINGS)
    assert len(set(system.keys)) == len(system.keys) == 4 * len(found.canaries) + 1


def test_in_a_matrix_a_view_without_rows_is_a_cell_without_a_claim():
    how = {"adjacency": "replace-one", "clip_norm": 1.0, "unit": "user", "trials": 200}
    models = {"released": ReleasedOnly(), "pndp": PNDP([3])}
    found = audit_matrix({"zip-dl": build("zip-dl", EveryStep(3))}, models, mu=1.0, release={"zip-dl": "none"}, **how)
    assert [cell.why for cell in found.cells] == ["nothing of the record is seen", ""]
    assert found.cells[1].result is not None


def test_victims_without_a_canary_are_noted():
    def of_the_first_two(algorithm, victim):
        return np.full(algorithm.messages_per_round, victim < 2)

    partly = TrustModel.from_masks(seen=of_the_first_two, release="none")
    found = audit(build("dp-dsgd"), trust=partly, claimed_mu=9.0, trials=200, **SETTINGS)
    assert {one.victim for one in found.canaries} == {0, 1}
    assert found.notes == ("not audited, since they attack themselves or nothing of them is seen: nodes [2, 3]",)


def test_patterns_that_are_not_all_tried_are_noted():
    small = Dynamics(metropolis_hastings("path:n=2"), 0.5)
    many = audit(build("dp-dsgd", OncePerEpoch(13, 2), small), trust=LDP(), trials=300, victim=0, **SETTINGS)
    assert not many.violated
    assert many.notes == (
        "of more than 4096 patterns of steps some were tried, with every step that a record can join",
    )


class _Told:
    """The bounds, noting the failure of each that is asked of measured runs."""

    def __init__(self):
        self.failures = {"gaussian_mu": [], "binomial_mu": [], "binomial_epsilon": []}

    def __getattr__(self, name):
        found = getattr(bounds, name)
        if name not in self.failures:
            return found

        def told(*arguments, failure, **more):
            self.failures[name].append(failure)
            return found(*arguments, failure=failure, **more)

        return told

    def spent(self):
        assert self.failures["binomial_epsilon"] == self.failures["binomial_mu"]  # of the same two error rates
        return sum(self.failures["gaussian_mu"]) + sum(self.failures["binomial_mu"])


@pytest.mark.parametrize("trust", [PNDP([0]), Coalitions(1)])
def test_the_bounds_of_one_audit_are_together_wrong_as_rarely_as_the_level_says(trust, monkeypatch):
    told = _Told()
    monkeypatch.setattr(runs, "bounds", told)
    found = audit(build("decor"), trust=trust, trials=200, level=0.9, **(SETTINGS | {"noise_std": 1.0}))
    assert len(told.failures["gaussian_mu"]) == len(told.failures["binomial_mu"]) == len(found.canaries)
    assert told.spent() == pytest.approx(0.1, rel=1e-9)
    assert told.spent() <= 0.1 * (1 + 1e-12)


def test_the_bounds_of_a_matrix_are_together_wrong_as_rarely_as_the_level_says(monkeypatch):
    told = _Told()
    monkeypatch.setattr(runs, "bounds", told)
    names = {name: build(name) for name in ("dp-dsgd", "none")}
    audit_matrix(names, {"ldp": LDP(), "secldp": SecLDP()}, adjacency="zero-out", clip_norm=1.0, mu=1.0, trials=400)
    assert 0.04 * 2 / 4 < told.spent() <= 0.05 * 2 / 4 * (1 + 1e-12)  # two cells of four claim nothing


def restated(mechanism, **changed):
    """A mechanism whose guarantee states something else: planted, as no public way leads there."""
    other, guarantee = copy.copy(mechanism), mechanism.guarantee
    curve = dataclasses.replace(guarantee.curve, mu=changed.pop("mu"))
    object.__setattr__(other, "guarantee", dataclasses.replace(guarantee, curve=curve, **changed))
    return other


def test_a_guarantee_that_states_too_little_is_refuted_and_the_difference_noted():
    mechanism = with_noise(build("dp-dsgd"), trust=LDP(), **SETTINGS)
    for mu in (0.3, 0.0):
        found = audit(restated(mechanism, mu=mu, sensitivity=mu), trust=LDP(), trials=400)
        assert (found.mu_claimed, found.violated) == (mu, True)
        assert found.notes == (
            f"the guarantee states mu = {mu:g}, accounted anew it is {math.sqrt(2):.6g}; the smaller is audited",
        )


def test_a_guarantee_of_one_victim_is_audited_for_that_victim():
    mechanism = restated(with_noise(build("dp-dsgd"), trust=LDP(), **SETTINGS), mu=0.5, sensitivity=0.5, victim="2")
    found = audit(mechanism, trust=LDP(), trials=600)
    assert {one.victim: one.mu_claimed for one in found.canaries} == pytest.approx(
        {0: 2**0.5, 1: 2**0.5, 2: 0.5, 3: 2**0.5}
    )
    assert {one.victim for one in found.canaries if one.violated} == {2}


def test_a_finite_guarantee_where_loss_is_infinite_is_refuted():
    leaking = with_noise(build("space-time"), trust=LDP(), **SETTINGS)
    assert leaking.guarantee.mu == math.inf
    found = audit(restated(leaking, mu=1.0, sensitivity=1.0), trust=LDP(), trials=400)
    assert found.violated
    assert found.mu_audited == math.inf
    assert "accounted anew it is inf" in found.notes[0]


def test_a_guarantee_under_another_trust_model_is_accounted_anew():
    low = restated(with_noise(build("dp-dsgd"), trust=LDP(), **SETTINGS), mu=0.3, sensitivity=0.3)
    found = audit(low, trust=SecLDP(), trials=400)
    assert not found.violated
    assert found.mu_claimed == pytest.approx(math.sqrt(2))
    assert "accounted anew, as the guarantee is about anyone who sees all messages" in found.notes[0]


def test_a_mechanism_is_audited_at_what_it_states():
    tight = calibrate(build("mafalda"), trust=LDP(), adjacency="replace-one", clip_norm=1.0, mu=1.0)
    found = audit(tight, trust=LDP(), trials=400)
    assert (found.violated, found.notes, found.mu_claimed) == (False, (), tight.guarantee.mu)
    unequal = build("dp-dsgd", ParticipationByNode([EveryStep(4), Single(4), Single(4), Single(4)]))
    found = audit(with_noise(unequal, trust=LDP(), **SETTINGS), trust=LDP(), trials=400, victim=1)
    assert (found.mu_claimed, found.notes) == (pytest.approx(1.0), ())  # the number of the worst victim is no claim


def test_too_few_trials_are_refused_with_the_number_that_is_enough():
    how = {"trust": LDP(), **SETTINGS}
    with pytest.raises(InvalidInput, match="trials must be at least") as refusal:
        audit(build("dp-dsgd"), trials=40, **how)
    needed = int(str(refusal.value).split("at least ")[1].split()[0])
    assert audit(build("dp-dsgd"), trials=needed, **how).trials == needed
    with pytest.raises(InvalidInput, match=f"trials must be at least {needed} "):
        audit(build("dp-dsgd"), trials=needed - 1, **how)


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


ALONE = Dynamics(GossipMatrix(np.eye(3), range(3)), 0.5)  # nobody receives anything
UNSEEN = "nothing of the record is seen"
HIDDEN = {"trust": ReleasedOnly(), "release": "none"}


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        ("dp-dsgd", {"noise_std": None}, "needs adjacency, clip_norm and noise_std"),
        ("dp-dsgd", {"noise_std": 0.0}, "noise_std must be a finite number > 0"),
        ("dp-dsgd", {"adjacency": "other"}, "adjacency"),
        ("dp-dsgd", {"victim": 9}, "victim must be a node index below 4"),
        ("dp-dsgd", {"level": 1.0}, "level must be"),
        ("dp-dsgd", {"unit": "user"}, "needs participation in every step"),
        ("dp-dsgd", {"claimed_mu": -1.0}, "claimed_mu must be"),
        ("dp-dsgd", {"trust": "ldp"}, "trust must be a trust model"),
        ("dp-dsgd", {"trust": PNDP([0]), "victim": 0, "claimed_mu": 1.0}, "every victim attacks itself"),
        ("space-time", {}, "space-time claims nothing"),
        ("none", {}, "none claims nothing that an audit could refute under ldp: there is no"),
        *(("dp-dsgd", HIDDEN | claim, UNSEEN) for claim in ({}, {"claimed_mu": 1.0})),
    ],
)
def test_bad_arguments_are_refused(name, changed, why):
    with pytest.raises(InvalidInput, match=why):
        audit(build(name), **({"trust": LDP()} | SETTINGS | changed))


def test_views_that_are_too_large_or_empty_are_refused():
    with pytest.raises(InvalidInput, match="smaller graph or for fewer steps"):
        audit(build("dp-dsgd", Cyclic(epochs=10, period=50)), trust=LDP(), **SETTINGS)
    with pytest.raises(InvalidInput, match=UNSEEN):
        audit(build("dp-dsgd", dynamics=ALONE), trust=PNDP([0]), release="none", **SETTINGS)


def test_a_mechanism_and_its_settings_are_not_given_twice():
    mechanism = with_noise(build("dp-dsgd"), trust=LDP(), **SETTINGS)
    with pytest.raises(InvalidInput, match="a mechanism brings clip_norm"):
        audit(mechanism, trust=LDP(), clip_norm=2.0)


# ---- the matrix -------------------------------------------------------------------------------------------


def test_a_matrix_has_a_cell_for_every_pair_and_one_level(tmp_path):
    steps, names = [], ("dp-dsgd", "none")
    models, how = {"ldp": LDP(), "coalitions": Coalitions(1)}, {"adjacency": "replace-one", "clip_norm": 1.0}
    found = audit_matrix(
        {name: build(name) for name in names}, models, mu=0.8, trials=500, progress=lambda: steps.append(1), **how
    )
    assert len(found.cells) == len(steps) == 4
    audited = [cell.result for cell in found.cells if cell.result is not None]
    assert [cell.mechanism for cell in found.cells if cell.result is None] == ["none", "none"]
    assert all(one.mu_claimed == pytest.approx(0.8) and one.level == pytest.approx(1 - 0.05 / 4) for one in audited)
    assert not found.violations
    noises = {one.trust: account(build("dp-dsgd"), trust=models[one.trust], noise_std=1.0, **how) for one in audited}
    for one in audited:  # the accounting's own sensitivity, rounded up: never less noise than the claim needs
        assert one.noise_std >= noises[one.trust].sensitivity * noises[one.trust].record_shift / 0.8
    found.write(tmp_path, {"config": {"seed": 3}})
    assert {path.name for path in tmp_path.iterdir()} == {"audit.json", "audit.csv", "audit.png"}
    assert (tmp_path / "audit.csv").read_text().count("\n") == 5
    kept = json.loads((tmp_path / "audit.json").read_text())
    assert (kept["config"], kept["level"]) == ({"seed": 3}, 0.95)
    axes = Figure().subplots()
    assert found.plot(axes) is axes
    assert axes.get_xlabel() == "No claim is refuted."


class _WeakAtOne(Training):
    """Node 1 adds 0.6 of its noise."""

    def stream(self, key, dim, first_step):
        inner = super().stream(key, dim, first_step)
        step = inner.step

        def weaker(t):
            rows = step(t).copy()
            rows[1] *= 0.6
            return rows

        inner.step = weaker
        return inner


def test_a_row_is_about_one_victim():
    """Node 0 claims the most and keeps it, node 1 claims less and loses more than that, but less than node 0 claims."""
    pair = Dynamics(metropolis_hastings("path:n=2"), 0.5)
    algorithm = build("dp-dsgd", ParticipationByNode([EveryStep(6), Single(6)]), pair)
    system = _WeakAtOne(algorithm, noise_std=2.0, clip_norm=1.0)
    found = audit(algorithm, trust=LDP(), system=system, trials=800, **SETTINGS)
    assert (found.violated, found.worst.victim) == (True, 1)
    row = Cell("dp-dsgd", "ldp", found).row()
    assert row["violated"]
    assert row["mu_claimed"] == pytest.approx(1.0)
    assert row["mu_audited"] == found.worst.mu_audited > row["mu_claimed"]
    assert row["epsilon_claimed"] == pytest.approx(gaussian.epsilon_from_mu(1.0, found.delta))
    assert row["epsilon_audited"] == max(found.worst.epsilon_gaussian, found.worst.epsilon_binomial)
    assert row["epsilon_audited"] > row["epsilon_claimed"]


@pytest.mark.parametrize(
    ("how", "why"), [({}, "exactly one of noise_std, mu and epsilon"), ({"mu": 1.0}, "at least one mech")]
)
def test_a_matrix_needs_one_kind_of_noise_and_a_cell(how, why):
    with pytest.raises(InvalidInput, match=why):
        audit_matrix({}, {}, adjacency="zero-out", clip_norm=1.0, **how)

"""Audits: true claims stand, levels are spent once, guarantees are compared, refusals say what to change."""

import copy
import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from vocabulary import dynamics_on, each, refuses

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, EveryStep, InvalidInput, Privacy, TrustModel, account, calibrate
from mfdl.algorithms import registry
from mfdl.audit import Training, audit, audit_matrix, bounds, runs
from mfdl.audit.audit_cells import AuditCell
from mfdl.audit.observation import Transcript
from mfdl.gossip import GossipMatrix
from mfdl.participation import OncePerEpoch, ParticipationByNode, Single
from mfdl.privacy import gaussian
from mfdl.trust import LDP, PNDP, Coalitions, Eavesdropper, ReleasedOnly, named

DYNAMICS, PAIR = (dynamics_on(graph, 0.5) for graph in ("path:n=4", "path:n=2"))
ALONE = Dynamics(GossipMatrix(np.eye(3), range(3)), 0.5)  # no node receives anything
SCHEME = Cyclic(epochs=2, period=2)
CLIPPING = {"adjacency": "replace-one", "clip_norm": 1.0}
SETTINGS = CLIPPING | {"noise_std": 2.0}
HIDDEN = {"trust": ReleasedOnly(), "release": "none"}
UNSEEN = "nothing of the record is seen"


def build(name="dp-dsgd", scheme=SCHEME, dynamics=DYNAMICS):
    return registry.build(name, dynamics, scheme)


LOCAL = LDP()


def audited(subject, trust=LOCAL, trials=400, **more):
    settings = {} if isinstance(subject, mfdl.Mechanism) else SETTINGS
    return audit(subject, **(settings | {"trust": trust, "trials": trials} | more))


def victims(result, violated=False):
    return {canary.victim for canary in result.canaries if canary.violated or not violated}


QUICK = ("dp-dsgd", "mafalda", "decor", "muffliato", "cdp", "zip-dl", "per-mode", "gradient-tracking", "delayed-dsgd")


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
    more = {"unit": "user", "release": "none"} if user else {}
    result = audited(algorithm, named(entry.models[0]), 800, seed=1, **more)
    assert not result.violated, result.sentence()
    assert 0.7 * max(canary.mu_possible for canary in result.canaries) < result.mu_audited
    assert all(canary.mu_possible <= canary.mu_claimed * (1 + 1e-9) for canary in result.canaries)


def test_one_seed_gives_one_result_and_a_mechanism_brings_its_settings():
    first = audited(build(), seed=7)
    mechanism = calibrate(build(), Privacy(LDP(), **CLIPPING), noise_std=2.0)
    assert audited(mechanism, seed=7) == first
    assert audited(mechanism, seed=8) != first
    assert first.mu_claimed == pytest.approx(mechanism.guarantee.mu)
    assert "not refuted" in first.sentence()
    assert first.to_dict()["canaries"][0]["victim"] == first.canaries[0].victim


def test_a_mechanism_is_audited_with_the_models_that_its_guarantee_releases():
    mechanism = calibrate(
        build("zip-dl", EveryStep(3)), Privacy(PNDP([3]), release="none", unit="user", **CLIPPING), noise_std=2.0
    )
    result = audited(mechanism, PNDP([3]), 200)
    assert result.mu_claimed == pytest.approx(mechanism.guarantee.mu)
    assert all(canary.mu_possible <= canary.mu_claimed * (1 + 1e-9) for canary in result.canaries)


def test_a_system_without_any_noise_shows_everything():
    result = audited(build("none"), claimed_mu=1.0, trials=200)
    assert result.violated
    assert all(canary.mu_gaussian > 1e12 for canary in result.canaries)


class Noting(Training):
    """Notes the key of every run."""

    def run(self, canary, feedback, *, trials, key):
        self.keys.append(key.key_id)
        return super().run(canary, feedback, trials=trials, key=key)


@pytest.mark.parametrize(("scheme", "runs_of_a_canary", "others"), [(SCHEME, 4, 1), (BallsInBins(2, 2), 8, 0)])
def test_no_two_runs_of_an_audit_share_noise(scheme, runs_of_a_canary, others):
    system = Noting(build(scheme=scheme), noise_std=2.0, clip_norm=1.0)
    system.keys = []
    result = audited(system.algorithm, system=system, trials=600)
    assert len(set(system.keys)) == len(system.keys) == runs_of_a_canary * len(result.canaries) + others


@each(
    "algorithm, more, audited_victims, note",
    (
        build(),
        {
            "trust": TrustModel.from_masks(
                seen=lambda algorithm, victim: np.full(algorithm.messages_per_round, victim < 2), release="none"
            ),
            "claimed_mu": 9.0,
        },
        {0, 1},
        "not audited, since they attack themselves or nothing of them is seen: nodes [2, 3]",
    ),
    (
        build("dp-dsgd", OncePerEpoch(13, 2), PAIR),
        {"victim": 0},
        {0},
        "of more than 4096 patterns of steps some were tried, with every step that a record can join",
    ),
    ids=["victims without a canary", "patterns that are not all tried"],
)
def test_what_an_audit_leaves_out_is_noted(algorithm, more, audited_victims, note):
    result = audited(algorithm, **({"trials": 300} | more))
    assert (result.violated, victims(result), result.notes) == (False, audited_victims, (note,))


# ---- levels ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def failures(monkeypatch):
    """Of each bound that rests on measured runs."""
    spent = {"gaussian": [], "counted": []}

    def noting(name, bound):
        def noted(*samples, failure):
            spent[name].append(failure)
            return bound(*samples, failure=failure)

        return noted

    monkeypatch.setattr(bounds, "gaussian_mu", noting("gaussian", bounds.gaussian_mu))
    monkeypatch.setattr(
        runs, "ErrorRates", SimpleNamespace(from_samples=noting("counted", bounds.ErrorRates.from_samples))
    )
    return spent


@pytest.mark.parametrize("trust", [PNDP([0]), Coalitions(1)])
def test_the_bounds_of_one_audit_are_together_wrong_as_rarely_as_the_level_says(trust, failures):
    result = audited(build("decor"), trust, 200, level=0.9, noise_std=1.0)
    assert len(failures["gaussian"]) == len(failures["counted"]) == len(result.canaries)
    assert 0.1 * (1 - 1e-9) < sum(failures["gaussian"] + failures["counted"]) <= 0.1 * (1 + 1e-12)


def test_the_bounds_and_tests_of_draws_of_balls_in_bins_are_together_wrong_as_rarely_as_the_level_says(failures):
    result = audited(build(scheme=BallsInBins(2, 2)), level=0.9, trials=600)
    assert (failures["gaussian"], len(failures["counted"])) == ([], len(result.canaries))
    assert sum(failures["counted"], result.draws.false_alarm) == pytest.approx(0.1, rel=1e-9)


def test_the_bounds_of_a_matrix_are_together_wrong_as_rarely_as_the_level_says(failures):
    names = {name: build(name) for name in ("dp-dsgd", "none")}
    audit_matrix(
        names, {"ldp": LDP(), "secldp": Eavesdropper()}, adjacency="zero-out", clip_norm=1.0, mu=1.0, trials=400
    )
    spent = sum(failures["gaussian"] + failures["counted"])
    assert 0.04 * 2 / 4 < spent <= 0.05 * 2 / 4 * (1 + 1e-12)  # two cells of four claim nothing


# ---- guarantees ------------------------------------------------------------------------------------------------------
def restated(mechanism, mu, **changed):
    """A mechanism whose guarantee states something else: planted, as no public way leads there."""
    other, guarantee = copy.copy(mechanism), mechanism.guarantee
    curve = dataclasses.replace(guarantee.curve, mu=mu)
    object.__setattr__(other, "guarantee", dataclasses.replace(guarantee, curve=curve, sensitivity=mu, **changed))
    return other


ANEW = f"the guarantee states mu = {{}}, accounted anew it is {math.sqrt(2):.6g}; the smaller is audited"
OF_ANOTHER = "the audited claim is recomputed, because the guarantee is for anyone who sees all messages"


@each(
    "claim, options, mu, trust, audited_mu, violated, note",
    *((LOCAL, {}, mu, LOCAL, mu, True, ANEW.format(f"{mu:g}")) for mu in (0.3, 0.0)),  # states too little
    (LOCAL, {"name": "joint"}, 1.0, LOCAL, 1.0, True, "the guarantee states mu = 1, accounted anew it is inf"),
    (LOCAL, {}, 0.3, Eavesdropper(), 2**0.5, False, OF_ANOTHER),
    (PNDP([0]), {"lipschitz": 0.5}, 0.3, PNDP([0]), 2**0.5, False, "the claim audited does not rest on lipschitz=0.5"),
)
def test_a_guarantee_that_states_something_else_is_noted_and_the_smaller_claim_audited(
    claim, options, mu, trust, audited_mu, violated, note
):
    algorithm, fields = build(options.get("name", "dp-dsgd")), {k: v for k, v in options.items() if k != "name"}
    result = audited(restated(calibrate(algorithm, Privacy(claim, **fields, **CLIPPING), noise_std=2.0), mu), trust)
    assert (result.violated, result.mu_claimed) == (violated, pytest.approx(audited_mu))
    assert result.notes[0].startswith(note)
    assert "name" not in options or result.mu_audited > 1e12  # a loss that is infinite


def test_a_guarantee_of_one_victim_is_audited_for_that_victim():
    mechanism = restated(calibrate(build(), Privacy(LDP(), **CLIPPING), noise_std=2.0), 0.5, victim="2")
    result = audited(mechanism, trials=600)
    claims = {canary.victim: canary.mu_claimed for canary in result.canaries}
    assert claims == pytest.approx({0: 2**0.5, 1: 2**0.5, 2: 0.5, 3: 2**0.5})
    assert victims(result, violated=True) == {2}


def test_a_mechanism_is_audited_at_what_it_states():
    tight = calibrate(build("mafalda"), Privacy(LDP(), **CLIPPING), mu=1.0)
    result = audited(tight)
    assert (result.violated, result.notes, result.mu_claimed) == (False, (), tight.guarantee.mu)
    unequal = build(scheme=ParticipationByNode([EveryStep(4), Single(4), Single(4), Single(4)]))
    result = audited(calibrate(unequal, Privacy(LDP(), **CLIPPING), noise_std=2.0), victim=1)
    assert (result.mu_claimed, result.notes) == (pytest.approx(1.0), ())  # the number of the worst victim is no claim


# ---- refusals --------------------------------------------------------------------------------------------------------
def test_too_few_trials_are_refused_with_the_number_that_is_enough():
    with pytest.raises(InvalidInput, match="trials must be at least") as refusal:
        audited(build(), trials=40)
    needed = int(str(refusal.value).split("at least ")[1].split()[0])
    assert audited(build(), trials=needed).trials == needed
    refuses(f"trials must be at least {needed} ", lambda: audited(build(), trials=needed - 1))


class Forgetful(Training):
    """Keeps only part of what was sent."""

    def run(self, canary, feedback, *, trials, key):
        return self.forget(super().run(canary, feedback, trials=trials, key=key))


@each(
    "forget, why",
    (lambda run: dataclasses.replace(run, messages=run.messages[:-1]), "keep every message"),
    (lambda run: Transcript(run.messages * np.nan, run.models), "not finite"),
    (lambda run: Transcript(run.messages, run.models[:1]), "return its models"),
)
def test_a_transcript_without_what_the_view_sees_is_refused(forget, why):
    system = Forgetful(build(), noise_std=2.0, clip_norm=1.0)
    system.forget = forget
    refuses(why, lambda: audited(build(), PNDP([0]), system=system))


BINS, ONE_BIN = build(scheme=BallsInBins(2, 4)), build(scheme=BallsInBins(2, 1))


@each(
    "algorithm, changed, why",
    (build(), {"noise_std": None}, "needs adjacency, clip_norm and noise_std"),
    (build(), {"noise_std": 0.0}, "noise_std must be a finite number > 0"),
    (build(), {"adjacency": "other"}, "unknown adjacency 'other'"),
    (BINS, {"adjacency": "other"}, "unknown adjacency 'other'"),
    (build(), {"victim": 9}, "victim must be a node index below 4"),
    (build(), {"level": 1.0}, "level must be"),
    (build(), {"unit": "user"}, "needs participation in every step"),
    (build(), {"claimed_mu": -1.0}, "claimed_mu must be"),
    (BINS, {"claimed_mu": 1.0}, "balls-in-bins have no mu"),
    (build(), {"bins_seen": True}, "bins_seen=True: batches are public"),
    (build(), {"trust": "ldp"}, "trust must be a trust model"),
    (build(), {"trust": PNDP([0]), "victim": 0, "claimed_mu": 1.0}, "every victim attacks itself"),
    (build("joint"), {}, "joint claims nothing"),
    (build("none"), {}, "none claims nothing that an audit could refute under ldp: infinite loss .* there is no"),
    *((build(), HIDDEN | claim, UNSEEN) for claim in ({}, {"claimed_mu": 1.0})),
    (build(dynamics=ALONE), {"trust": PNDP([0]), "release": "none"}, UNSEEN),
    (build(scheme=Cyclic(epochs=10, period=50)), {}, "smaller graph or for fewer steps"),
    (BINS, {"trials": 60}, "trials must be at least .* that half the noise breaks the claim"),
    (BINS, {"trials": 2**26}, "trials must be at most"),
    # bins that say nothing: there is only one, or noise is so weak that the claim is that of public bins
    (ONE_BIN, {"bins_seen": True}, "no number of runs up to 1048576 shows that public bins break the claim"),
    (BINS, {"bins_seen": True, "noise_std": 0.01}, "no number of runs"),
)
def test_bad_arguments_are_refused(algorithm, changed, why):
    refuses(why, audited, algorithm, **changed)


@each(
    "call, why",
    (lambda: audited(calibrate(build(), Privacy(LDP(), **CLIPPING), noise_std=2.0), clip_norm=2.0), "a mechanism"),
    (lambda: audit_matrix({}, {}, **CLIPPING), "exactly one of noise_std, mu and epsilon"),
    (lambda: audit_matrix({}, {}, mu=1.0, **CLIPPING), "at least one mech"),
    (lambda: audit_matrix({"b": BINS}, {"ldp": LDP()}, mu=1.0, **CLIPPING), "no mu; give epsilon or noise_std"),
    (lambda: audit_matrix({"a": build()}, {}, mu=1.0, planted=True, **CLIPPING), "planted=True: batches"),
)
def test_arguments_that_exclude_each_other_are_refused(call, why):
    refuses(why, call)


# ---- the matrix ------------------------------------------------------------------------------------------------------
def test_a_matrix_has_a_cell_for_every_pair_and_one_level(tmp_path):
    steps, models = [], {"ldp": LDP(), "coalitions": Coalitions(1)}
    algorithms = {name: build(name) for name in ("dp-dsgd", "none")}
    matrix = audit_matrix(algorithms, models, mu=0.8, trials=500, progress=lambda: steps.append(1), **CLIPPING)
    assert len(matrix.cells) == len(steps) == 4
    results = [cell.result for cell in matrix.cells if cell.result is not None]
    assert [cell.mechanism for cell in matrix.cells if cell.result is None] == ["none", "none"]
    assert not matrix.violations
    for result in results:  # the accounting's own sensitivity, rounded up: never less noise than the claim needs
        assert (result.mu_claimed, result.level) == (pytest.approx(0.8), pytest.approx(1 - 0.05 / 4))
        guarantee = account(build(), Privacy(models[result.trust], **CLIPPING), noise_std=1.0)
        assert result.noise_std >= guarantee.sensitivity * guarantee.record_shift / 0.8
    matrix.write(tmp_path, {"config": {"seed": 3}})
    assert {path.name for path in tmp_path.iterdir()} == {"audit.json", "audit.csv", "audit.png"}
    assert (tmp_path / "audit.csv").read_text().count("\n") == 5
    written = json.loads((tmp_path / "audit.json").read_text())
    assert (written["config"], written["level"]) == ({"seed": 3}, 0.95)
    axes = Figure().subplots()
    assert matrix.plot(axes) is axes
    assert axes.get_xlabel() == "No claim is refuted."


def test_in_a_matrix_a_view_without_rows_is_a_cell_without_a_claim():
    models = {"released": ReleasedOnly(), "pndp": PNDP([3])}
    zip_dl = {"zip-dl": build("zip-dl", EveryStep(3))}
    matrix = audit_matrix(zip_dl, models, mu=1.0, release={"zip-dl": "none"}, unit="user", trials=200, **CLIPPING)
    assert [cell.why for cell in matrix.cells] == [UNSEEN, ""]
    assert matrix.cells[1].result is not None


class WeakAtOne(Training):
    """Node 1 adds 0.6 of its noise."""

    def stream(self, key, dim, first_step):
        honest = super().stream(key, dim, first_step)
        return SimpleNamespace(step=lambda t: honest.step(t) * np.array([[1.0], [0.6]]))


def test_a_row_is_about_one_victim():
    algorithm = build("dp-dsgd", ParticipationByNode([EveryStep(6), Single(6)]), PAIR)
    result = audited(algorithm, system=WeakAtOne(algorithm, noise_std=2.0, clip_norm=1.0), trials=800)
    worst, row = result.worst, AuditCell("dp-dsgd", "ldp", result).row()
    assert (result.violated, worst.victim, row["violated"]) == (True, 1, True)
    assert row["mu_claimed"] == pytest.approx(1.0)
    assert row["mu_audited"] == worst.mu_audited > row["mu_claimed"]
    assert row["epsilon_claimed"] == pytest.approx(gaussian.epsilon_from_mu(1.0, result.delta))
    assert row["epsilon_audited"] == max(worst.epsilon_gaussian, worst.epsilon_binomial) > row["epsilon_claimed"]

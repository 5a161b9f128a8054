"""account and calibrate: closed forms under every adjacency, no target exceeded, everything stated."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from _guarantees import guarantees, worst_sensitivity
from _privacy import applied
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, dynamics_on, each, example, given, refuses, st

import mfdl
from mfdl import Cyclic, EveryStep, MinSeparation, Privacy, account, algorithms, calibrate, factorization, gossip, trust
from mfdl.algorithms import noise_error
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.objective import NoiseObjective
from mfdl.participation import Explicit, OncePerEpoch, Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.gaussian import ADJACENCIES
from mfdl.testing import NAMES, build_algorithm, linear_algorithms, random_encoder
from mfdl_solvers import causal_encoder

LDP = trust.LDP()
DYN = Dynamics(gossip.uniform("star:n=4"), 0.3)
PART = Cyclic(epochs=3, period=2)
SHIFT = {"zero-out": 1.0, "add-remove": 1.0, "replace-one": 2.0}  # per unit of the clipping norm
NOISY = [name for name in NAMES if name != "none"]
CIRCUMSTANCES = {"trust": LDP, "adjacency": "zero-out", "clip_norm": 1.0}


# ---- closed forms -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("clip_norm", [1.0, 0.25, 3.0])
def test_mu_in_closed_form_under_every_adjacency(adjacency, clip_norm):
    def mu(algorithm, nu, **more):
        guarantee = account(algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=clip_norm, **more), noise_std=nu)
        assert guarantee.record_shift == SHIFT[adjacency] * clip_norm
        # Every other reading of the same guarantee is that of mu.
        assert_allclose(guarantee.renyi_epsilon(3.0), 3 * guarantee.mu**2 / 2, rtol=1e-12)
        return guarantee.mu

    unit = SHIFT[adjacency] * clip_norm
    independent = algorithms.dp_dsgd(DYN, PART)
    assert_allclose(mu(independent, 1.7), unit * math.sqrt(3) / 1.7, rtol=1e-12)
    assert_allclose(mu(independent, 1.7, participation=Single(6)), unit / 1.7, rtol=1e-12)
    assert_allclose(mu(independent, 1.7, participation=EveryStep(6)), unit * math.sqrt(6) / 1.7, rtol=1e-12)
    assert_allclose(mu(algorithms.anti_pgd(DYN, PART), 1.7), unit * math.sqrt(2 * 3 * 4 * 7 / 6) / 1.7, rtol=1e-12)
    scaled = algorithms.mf_dsgd(DYN, PART, 5 * np.eye(6))
    assert_allclose(mu(scaled, 1.7), unit * 5 * math.sqrt(3) / 1.7, rtol=1e-12)


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_noise_multiplier_is_one_over_mu_under_every_adjacency(name, adjacency):
    algorithm = build_algorithm(name, DYN, PART)
    guarantee = account(algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=0.7), noise_multiplier=2.5)
    assert_allclose(guarantee.mu, 0.4, rtol=1e-14)
    sens = worst_sensitivity(algorithm, LDP).value
    assert_allclose(guarantee.noise_std, 2.5 * sens * SHIFT[adjacency] * 0.7, rtol=1e-14)
    again = account(algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=0.7), noise_std=guarantee.noise_std)
    assert again == guarantee
    calibrated = calibrate(algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=0.7), mu=0.4)
    assert_allclose(calibrated.noise_std, guarantee.noise_std, rtol=1e-14)


def test_the_noise_of_anti_pgd_holds_its_sensitivity():
    """With sensitivity left out it would be 214 times too small at 20 epochs of 16 steps."""
    anti = calibrate(algorithms.anti_pgd(DYN, Cyclic(20, 16)), Privacy(LDP, **ZERO_OUT), mu=2.0)
    assert_allclose(anti.noise_std, math.sqrt(45920) / 2, rtol=1e-10)
    # z_t - z_{t-1} has variance 2, but 1 at the first step.
    assert_allclose(anti.injected_noise_std, anti.noise_std * math.sqrt((1 + 2 * 319) / 320), rtol=1e-12)


# ---- calibration ------------------------------------------------------------------------------------------
@given(
    80, algorithm=linear_algorithms(names=("dp-dsgd", "anti-pgd", "bsr", "mf-shared", "mf-per-node")),
    adjacency=st.sampled_from(ADJACENCIES), clip_norm=st.floats(1e-6, 1e6), mu=st.floats(1e-6, 100),
)  # fmt: skip
def test_mu_never_above_its_target(algorithm, adjacency, clip_norm, mu):
    calibrated = calibrate(algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=clip_norm), mu=mu)
    assert calibrated.guarantee.mu <= mu
    # In exact arithmetic as well: mu nu >= sens * shift.
    shift = Fraction(clip_norm) * (2 if adjacency == "replace-one" else 1)
    assert Fraction(mu) * Fraction(calibrated.noise_std) >= Fraction(calibrated.guarantee.sensitivity) * shift
    assert calibrated.guarantee.mu >= mu * (1 - 1e-14)  # and the least noise that does it
    accounted = account(
        algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=clip_norm), noise_std=calibrated.noise_std
    )
    assert accounted == calibrated.guarantee


@given(
    60, adjacency=st.sampled_from(ADJACENCIES), log_epsilon=st.floats(-6, math.log(500)),
    log_delta=st.floats(math.log(1e-300), math.log(0.5)),
)  # fmt: skip
@example(adjacency="zero-out", log_epsilon=0.0, log_delta=-1.25)
@example(adjacency="zero-out", log_epsilon=0.4205341568094587, log_delta=-572.98828125)
def test_epsilon_never_above_its_target(adjacency, log_epsilon, log_delta):
    epsilon, delta = math.exp(log_epsilon), math.exp(log_delta)
    algorithm = algorithms.anti_pgd(DYN, PART)
    calibrated = calibrate(algorithm, Privacy(LDP, adjacency=adjacency, clip_norm=1.3), epsilon=epsilon, delta=delta)
    assert calibrated.guarantee.delta(epsilon) <= delta
    assert calibrated.guarantee.epsilon(delta) <= epsilon
    assert calibrated.guarantee.epsilon(delta) >= epsilon * (1 - 1e-6)


@given(60, stds=st.lists(st.floats(1e-12, 1e12), min_size=2, max_size=2), delta=st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_more_noise_is_never_less_privacy(stds, delta):
    low, high = sorted(stds)
    algorithm = algorithms.anti_pgd(DYN, PART)
    more, less = (account(algorithm, Privacy(**CIRCUMSTANCES), noise_std=std) for std in (high, low))
    assert more.mu <= less.mu
    assert more.epsilon(delta) <= less.epsilon(delta)
    assert more.delta(1.0) <= less.delta(1.0)
    longer = account(algorithms.anti_pgd(DYN, Cyclic(4, 2)), Privacy(**CIRCUMSTANCES), noise_std=low)
    assert longer.mu >= less.mu
    assert longer.epsilon(delta) >= less.epsilon(delta)


def test_without_noise_nothing_is_guaranteed():
    for algorithm in (algorithms.dsgd(DYN, PART), algorithms.dp_dsgd(DYN, PART)):
        calibrated = calibrate(algorithm, Privacy(**CIRCUMSTANCES), noise_std=0.0)
        assert (calibrated.guarantee.mu, calibrated.noise_std) == (math.inf, 0)
        assert calibrated.injected_noise_std == 0
        assert "no finite guarantee" in calibrated.guarantee.sentence()
    assert calibrate(algorithms.dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), noise_std=0.0).objective == 0
    assert account(algorithms.dp_dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), noise_multiplier=0).mu == math.inf
    # Noise that the mechanism does not add protects nobody.
    assert account(algorithms.dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), noise_std=5.0).mu == math.inf


# ---- what a guarantee says --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NOISY)
def test_the_guarantee_states_its_circumstances(name):
    algorithm = build_algorithm(name, DYN, PART)
    calibrated = calibrate(algorithm, Privacy(LDP, adjacency="replace-one", clip_norm=0.5), mu=1.5)
    says = calibrated.guarantee
    assert (says.trust, says.adjacency, says.clip_norm, says.record_shift) == ("ldp", "replace-one", 0.5, 1.0)
    assert (says.participation, says.victim) == ("cyclic participation (epochs=3, period=2)", "every node")
    assert says.attacker == LDP.attacker
    assert says.attacker.startswith("anyone who sees all messages")
    assert says.adaptive
    assert says.noise_std == calibrated.noise_std
    assert says.composed == 1
    assert 0 <= says.tolerance < 1e-10
    nonnegative_gram = not name.startswith("mf-")  # the random encoders have entries of both signs
    assert says.bound == "exact" or not nonnegative_gram


def test_only_a_bound_that_is_attained_is_called_exact():
    gram = np.array([[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]]) + 0.1 * np.eye(3)  # no signs make it >= 0
    for algorithm in (
        algorithms.mf_dsgd(DYN, EveryStep(3), causal_encoder(gram)),
        algorithms.dp_dsgd(DYN, EveryStep(3)),
    ):
        calibrated = calibrate(algorithm, Privacy(**CIRCUMSTANCES), mu=1.0)
        certified = mfdl.losses(algorithm, mfdl.Privacy(CIRCUMSTANCES["trust"], **ZERO_OUT)).worst
        assert calibrated.guarantee.bound == certified.bound
    assert calibrated.guarantee.bound == "exact"


def test_another_participation_is_accounted_and_named():
    algorithm = algorithms.anti_pgd(DYN, PART)
    guarantee = account(algorithm, Privacy(participation=EveryStep(6), **CIRCUMSTANCES), noise_std=1.0)
    assert guarantee.participation == EveryStep(6).describe()
    assert_allclose(guarantee.mu, math.sqrt(91), rtol=1e-12)
    with pytest.raises(InvalidInput, match="participation must have the mechanism's 6 steps, got 4"):
        account(algorithm, Privacy(participation=Cyclic(2, 2), **CIRCUMSTANCES), noise_std=1.0)


# ---- units of privacy ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("sigma", [0.8, 3.0])
@pytest.mark.parametrize("num_steps", [1, 10])
@pytest.mark.parametrize("clip_norm", [1.0, 0.25])
def test_user_level_mu_of_local_and_of_central_noise(sigma, num_steps, clip_norm):
    """Replace-one: 2 C sqrt(T) / sigma where messages are seen, a factor sqrt(n) less where their average is."""
    every, circumstances = EveryStep(num_steps), {"adjacency": "replace-one", "clip_norm": clip_norm, "unit": "user"}
    algorithm = algorithms.dp_dsgd(DYN, every)
    local = account(algorithm, Privacy(LDP, **circumstances), noise_std=sigma)
    assert_allclose(local.mu, 2 * clip_norm * math.sqrt(num_steps) / sigma, rtol=1e-12)
    assert (local.unit, local.record_shift) == ("user", 2 * clip_norm)
    for n in (2, 5):
        averaging = algorithms.dp_dsgd(Dynamics(gossip.from_array(np.full((n, n), 1 / n)), 0.3), every)
        central = account(averaging, Privacy(trust.Central(), **circumstances), noise_std=sigma)
        # The average of n gradients moves by 2 C / n, its noise has std sigma / sqrt(n).
        assert_allclose(central.mu, (2 * clip_norm / n) * math.sqrt(num_steps) / (sigma / math.sqrt(n)), rtol=1e-9)
        # Rényi slope per step of the released average: 2 C^2 / (n sigma^2).
        assert_allclose(central.renyi_epsilon(3.0), 3 * num_steps * 2 * clip_norm**2 / (n * sigma**2), rtol=1e-9)
        calibrated = calibrate(averaging, Privacy(trust.Central(), **circumstances), mu=local.mu)
        assert_allclose(calibrated.noise_std, sigma / math.sqrt(n), rtol=1e-9)


def test_the_unit_is_stated_everywhere_and_changes_no_number():
    algorithm = algorithms.anti_pgd(DYN, EveryStep(6))
    record = calibrate(algorithm, Privacy(**CIRCUMSTANCES), mu=1.0)
    user = calibrate(algorithm, Privacy(unit="user", **CIRCUMSTANCES), mu=1.0)
    assert (record.unit, user.unit) == ("record", "user")
    assert (record.guarantee.unit, user.guarantee.unit) == ("record", "user")
    other = {"unit", "fingerprint", "seal"}
    fields = [
        {k: v for k, v in calibrated.guarantee.to_dict().items() if k not in other} for calibrated in (user, record)
    ]
    assert fields[0] == fields[1]
    assert calibrate(algorithm, Privacy(unit="user", **CIRCUMSTANCES), noise_std=0.0).unit == "user"
    options = {**CIRCUMSTANCES, "noise_std": 2.0}
    for unit in ("user", "record"):
        losses = sensitivity_by_victim(algorithm, LDP, unit=unit)
        assert {g.unit for g in guarantees(algorithm, losses, **options, unit=unit)} == {unit}
        assert account(algorithm, Privacy(unit=unit, **CIRCUMSTANCES), noise_std=1.0).unit == unit
    assert {g.unit for g in guarantees(algorithm, losses, **options)} == {"record"}
    assert record.content_hash != user.content_hash  # so they never share noise
    refuses("compose only for the same unit, got 'record", record.guarantee.compose_with, user.guarantee)


@pytest.mark.parametrize("participation", [Cyclic(2, 3), OncePerEpoch(2, 3), Single(6), MinSeparation(6, 3, 2)])
def test_user_level_needs_every_step(participation):
    algorithm = algorithms.dp_dsgd(DYN, participation)
    options = {**CIRCUMSTANCES, "unit": "user"}
    message = r"a user's data take part in every step; build the algorithm with EveryStep\(6\)"
    for attempt in (
        lambda: calibrate(algorithm, Privacy(**options), mu=1.0),
        lambda: account(algorithm, Privacy(**options), noise_std=1.0),
        lambda: account(
            algorithms.dp_dsgd(DYN, EveryStep(6)), Privacy(participation=participation, **options), noise_std=1.0
        ),
        lambda: calibrate(algorithm, Privacy(**options), noise_std=0.0),
        lambda: guarantees(algorithm, sensitivity_by_victim(algorithm, LDP), **options, noise_std=1.0),
    ):
        refuses(message, attempt)
    calibrated = calibrate(algorithm, Privacy(**CIRCUMSTANCES), mu=1.0)
    with pytest.raises(InvalidInput, match=message):  # nor by changing what is stated
        dataclasses.replace(calibrated, guarantee=dataclasses.replace(calibrated.guarantee, unit="user"))
    again = account(algorithm, Privacy(participation=EveryStep(6), **options), noise_std=1.0)
    assert_allclose(again.mu, math.sqrt(6), rtol=1e-12)


@each("participation", EveryStep(4), Cyclic(4, 1), OncePerEpoch(4, 1), MinSeparation(4, 4, 1), Explicit([range(4)], 4))
def test_every_step_is_a_set_of_steps_and_no_name(participation):
    calibrated = calibrate(algorithms.dp_dsgd(DYN, participation), Privacy(unit="user", **CIRCUMSTANCES), mu=1.0)
    assert_allclose(calibrated.noise_std, 2.0, rtol=1e-12)  # sqrt(T), zero-out


@given(100, patterns=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=3), steps=st.integers(4, 5))
def test_in_every_step_is_read_from_the_patterns(patterns, steps):
    scheme = Explicit([sorted(p) for p in patterns], steps)
    assert scheme.in_every_step == ([set(p.tolist()) for p in scheme.patterns()] == [set(range(steps))])


def test_a_lipschitz_claim_does_not_reach_user_level():
    algorithm = algorithms.dp_dsgd(dynamics_on("path:n=4", 0.3), EveryStep(3))
    options = {"trust": trust.PNDP([0]), "adjacency": "zero-out", "clip_norm": 1.0, "release": "none"}
    for attempt in (
        lambda: calibrate(algorithm, Privacy(unit="user", lipschitz=1.0, **options), mu=1.0),
        lambda: account(algorithm, Privacy(unit="user", lipschitz=0.0, **options), noise_std=1.0),
    ):
        refuses("does not take lipschitz=.*leave lipschitz", attempt)
    resting = calibrate(algorithm, Privacy(lipschitz=1.0, **options), mu=1.0)
    assert resting.lipschitz == 1.0
    with pytest.raises(InvalidInput, match=r"does not take lipschitz=1\.0"):
        dataclasses.replace(resting, guarantee=dataclasses.replace(resting.guarantee, unit="user"))
    losses = sensitivity_by_victim(algorithm, options["trust"], release="none", lipschitz=1.0)
    conditions = {"trust": options["trust"], "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 1.0}
    refuses("computed for unit 'record', not 'user'", guarantees, algorithm, losses, **conditions, unit="user")
    for_users = sensitivity_by_victim(algorithm, options["trust"], release="none", lipschitz=1.0, unit="user")
    refuses("cannot rest on shift reduction", guarantees, algorithm, for_users, **conditions, unit="user")
    assert len(guarantees(algorithm, losses, **conditions)) == 3


def test_unknown_units_are_refused():
    for unit in ("users", "", None, "node"):
        with pytest.raises(InvalidInput, match="unknown unit"):
            calibrate(algorithms.dp_dsgd(DYN, EveryStep(3)), Privacy(unit=unit, **CIRCUMSTANCES), mu=1.0)


# ---- errors -----------------------------------------------------------------------------------------------
@each(
    "arguments, message",
    ({}, "exactly one target"), ({"mu": 1.0, "epsilon": 1.0, "delta": 1e-6}, "exactly one target"),
    ({"epsilon": 1.0}, "epsilon needs a delta"), ({"mu": 0.0}, "mu must be a finite number > 0"),
    ({"mu": -1.0}, "mu must be a finite number > 0"), ({"mu": math.nan}, "mu must be a finite number > 0"),
    ({"mu": math.inf}, "mu must be a finite number > 0"),
    ({"epsilon": 0.0, "delta": 1e-6}, "epsilon must be a finite number > 0"),
    ({"epsilon": 1.0, "delta": 0.0}, "delta must be a number strictly between 0 and 1"),
    ({"epsilon": 1.0, "delta": 1.0}, "delta must be a number strictly between 0 and 1"),
    ({"mu": 1.0, "clip_norm": 0.0}, "clip_norm must be a finite number > 0"),
    ({"mu": 1.0, "adjacency": "replace"}, "unknown adjacency 'replace'; did you mean 'replace-one'"),
)  # fmt: skip
def test_bad_targets_are_refused(arguments, message):
    refuses(message, lambda: applied(calibrate, algorithms.dp_dsgd(DYN, PART), CIRCUMSTANCES | arguments))


@each(
    "arguments, message",
    ({}, "exactly one of noise_std and noise_multiplier"),
    ({"noise_std": 1.0, "noise_multiplier": 1.0}, "exactly one of noise_std and noise_multiplier"),
    ({"noise_std": -1.0}, "noise_std must be a finite number >= 0"),
    ({"noise_std": math.nan}, "noise_std must be a finite number >= 0"),
    ({"noise_multiplier": -1.0}, "noise_multiplier must be a finite number >= 0"),
    ({"noise_std": 1.0, "clip_norm": math.inf}, "clip_norm must be a finite number > 0"),
    ({"noise_std": 1.0, "adjacency": "add"}, "unknown adjacency 'add'"),
)
def test_bad_noise_is_refused(arguments, message):
    refuses(message, lambda: applied(account, algorithms.dp_dsgd(DYN, PART), CIRCUMSTANCES | arguments))


def test_an_algorithm_without_noise_cannot_be_calibrated():
    refuses("'none' has no noise", lambda: calibrate(algorithms.dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), mu=1.0))
    with pytest.raises(InvalidInput, match="noise_multiplier needs a mechanism with noise"):
        account(algorithms.dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), noise_multiplier=1.0)


@pytest.mark.parametrize("missing", ["adjacency", "trust", "clip_norm"])
def test_adjacency_trust_and_clipping_have_no_default(missing):
    given_ones = {k: v for k, v in CIRCUMSTANCES.items() if k != missing}
    refusal = InvalidInput if missing == "trust" else TypeError  # a view has none
    refuses(missing, lambda: calibrate(algorithms.dp_dsgd(DYN, PART), Privacy(**given_ones), mu=1.0), error=refusal)
    with pytest.raises(refusal, match=missing):
        account(algorithms.dp_dsgd(DYN, PART), Privacy(**given_ones), noise_std=1.0)


# ---- objective and injected noise -------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mafalda", "mafalda-l"])
def test_the_objective_is_the_loss_of_its_factorization(name):
    algorithm = build_algorithm(name, DYN, PART)
    calibrated = calibrate(algorithm, Privacy(**CIRCUMSTANCES), mu=1.0)
    assert_allclose(calibrated.objective, algorithm.factorization.objective, rtol=1e-9)
    assert calibrated.objective >= algorithm.factorization.lower_bound


@pytest.mark.parametrize("name", ["d-mf", "bsr", "anti-pgd"])
def test_a_given_encoder_has_the_loss_that_evaluate_finds(name):
    algorithm = build_algorithm(name, DYN, PART)
    posed = factorization.problem(DYN, PART)
    wanted = factorization.evaluate(posed, algorithm.noise.encoder.dense(), lower_bound=1.0).objective
    assert_allclose(calibrate(algorithm, Privacy(**CIRCUMSTANCES), mu=1.0).objective, wanted, rtol=1e-9)
    identity = calibrate(algorithms.dp_dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), mu=1.0).objective
    assert_allclose(identity, 3 * np.trace(NoiseObjective(DYN, 6).over_steps()), rtol=1e-12)


def test_two_mechanisms_share_a_hash_only_when_they_are_one():
    C = random_encoder(np.random.default_rng(0), 6)
    name_by_hash = {}
    for name, algorithm in {"dp": algorithms.dp_dsgd(DYN, PART), "mf": algorithms.mf_dsgd(DYN, PART, C)}.items():
        for clip_norm in (1.0, 2.0):
            for mu in (1.0, 2.0):
                calibrated = calibrate(algorithm, Privacy(LDP, adjacency="zero-out", clip_norm=clip_norm), mu=mu)
                assert calibrated.content_hash not in name_by_hash
                name_by_hash[calibrated.content_hash] = (name, clip_norm, mu)
                again = calibrate(algorithm, Privacy(LDP, adjacency="zero-out", clip_norm=clip_norm), mu=mu)
                assert again.content_hash == calibrated.content_hash
    assert mfdl.calibrate is calibrate


def test_the_objective_ranks_mechanisms_under_balls_in_bins_as_their_noise_does():
    """Per unit sensitivity the encoder for public bins would seem best, though mafalda-bins needs less noise."""
    dynamics = dynamics_on("ring:n=4", 0.1)
    target, privacy = {"epsilon": 2.0, "delta": 1e-5}, Privacy(trust.LDP(), **ZERO_OUT)
    bins = mfdl.BallsInBins(2, 3)
    public = algorithms.mafalda(dynamics, bins.public)
    mechanisms = [
        calibrate("mafalda-bins", dataclasses.replace(privacy, participation=bins), dynamics=dynamics, **target),
        calibrate(algorithms.dp_dsgd(dynamics, bins), privacy, **target),
        calibrate(dataclasses.replace(public, participation=bins), privacy, **target),
    ]
    roots = [m.noise_std * noise_error(m.algorithm).value ** 0.5 for m in mechanisms]
    assert_allclose(roots, [8.685, 9.509, 9.318], atol=0.005)
    assert_allclose([m.objective for m in mechanisms], np.square(roots), rtol=1e-9)
    assert_allclose([m.model_variance for m in mechanisms], 0.01 * np.square(roots), rtol=1e-9)


def test_the_variance_in_the_models_is_the_objective_at_a_budget():
    mechanism = calibrate(algorithms.mafalda(DYN, PART), Privacy(**CIRCUMSTANCES), mu=0.5)
    rate = float(np.max(DYN.learning_rate))
    wanted = mechanism.objective * (mechanism.guarantee.record_shift / 0.5) ** 2 * rate**2
    assert_allclose(mechanism.model_variance, wanted, rtol=1e-9)
    assert calibrate(algorithms.dsgd(DYN, PART), Privacy(**CIRCUMSTANCES), noise_std=0.0).model_variance == 0

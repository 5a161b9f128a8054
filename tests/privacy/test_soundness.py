"""Numbers that were once too low, each in its smallest case, and a few cases of the soundness campaign.

The campaign (`experiments/soundness.py`) compares every number with an exact rational oracle.
"""

import dataclasses
import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from vocabulary import dynamics_on, given, st

from mfdl import Dynamics, EveryStep, InvalidInput, TrustModel, View, algorithms, gossip, trust
from mfdl.algorithms import from_maps
from mfdl.noise import StepNoise
from mfdl.participation import Single
from mfdl.privacy import exact_arithmetic, sensitivity_by_victim, victim_sensitivity
from mfdl.privacy.forms import INJECTIONS, view_grams
from mfdl.privacy.gram_sensitivity import sensitivities
from mfdl.privacy.victim_sensitivity import is_adaptive
from mfdl.testing import oracles, user_algorithms

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
THIRDS = gossip.from_array(np.full((3, 3), 1 / 3))
HALF = gossip.from_array(np.full((2, 2), 0.5))


def loss_of(algorithm, model, victim, **options):
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[victim], **options)
    return loss


def masked(algorithm, seen, *, gradients=None, noise=None, release="none"):
    return TrustModel.from_masks(seen=seen, known_gradients=gradients, known_noise=noise, release=release)


# ---- noise that is faint, or cancels ---------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [1e-15, 1e-12, 1e-9])
@pytest.mark.parametrize("form", ["injections", "dense, exact ranks", "dense"])
@pytest.mark.parametrize("T", [1, 2])
def test_a_faint_share_of_noise_is_no_noise_at_all(share, form, T, monkeypatch):
    """Sums of seen messages show the gradient under noise of 1e-3 alone; the row that says so is very faint."""
    maps = {"P": np.eye(3), "Q": -np.eye(3), "R": -np.eye(3) if form == "injections" else -2 * np.eye(3)}
    factor = np.array([[1, 1e-3, 0], [share, 0, 0], [0, 0, 1]]) / -maps["R"][0, 0]
    noise = StepNoise(factor, factor.T != 0, T, 3)
    algorithm = from_maps(maps | {"K": THIRDS.weights}, EveryStep(T), noise=noise)
    if form == "dense":  # as a larger view has it
        monkeypatch.setattr(exact_arithmetic, "MAX_ENTRIES", 0)
    known = np.tile([False, True, True], (T, 1))
    model = masked(algorithm, [True, True, False], gradients=known, noise=np.tile([False, False, True], (T, 1)))
    assert loss_of(algorithm, model, 0).adaptive_sensitivity_squared >= T * 1e6 * (1 - 1e-6)
    once = dataclasses.replace(algorithm, participation=Single(T))
    assert loss_of(once, model, 0).sensitivity_squared >= 1e6 * (1 - 1e-6)


def test_a_faint_share_is_none_in_a_covariance_and_under_divisors():
    R = np.array([[1 + 1e-6, 1e-12, 0], [1e-12, 1e-24, 0], [0, 0, 1.0]])
    for share, divisors in ((1e-15, [1, 1, 1]), (1e-9, [1e6, 1.0, 1.0])):
        factor = np.array([[1, 1e-3, 0], [share, 0, 0], [0, 0, 1]])
        algorithm = algorithms.dp_dsgd(Dynamics(THIRDS), Single(1))
        algorithm = dataclasses.replace(algorithm, noise=StepNoise(factor, factor.T != 0, 1, 3)).with_divisors(divisors)
        known = np.array([[False, True, True]])
        model = masked(algorithm, [True, True, False], gradients=known, noise=np.array([[False, False, True]]))
        assert loss_of(algorithm, model, 0).sensitivity_squared >= 1e6 * (1 - 1e-6)
    with pytest.raises(InvalidInput):  # not positive semidefinite in float64: refused rather than rounded
        algorithms.spatial_covariance(Dynamics(THIRDS), Single(1), covariance=-R)


@given(60, st.integers(-50, 50), st.integers(-50, 50), st.integers(0, 2**32 - 1))
def test_rows_of_any_size_are_those_of_exact_arithmetic(a, b, seed):
    """Noise entries over thirty decades: the number is the exact one, an upper bound of it, or infinite."""
    rng = np.random.default_rng(seed)
    factor = rng.choice([1.0, -1.0, 0.0, 3.0], (2, 2)) * np.array([[1.0, 2.0**a], [2.0**b, 1.0]])
    algorithm = algorithms.dp_dsgd(Dynamics(HALF), Single(2))
    algorithm = dataclasses.replace(algorithm, noise=StepNoise(factor, np.ones((2, 2), dtype=bool), 2, 2))
    run = oracles.exact_run(algorithm)
    A, B = oracles.exact_view(run, np.ones((2, 2), dtype=bool))
    gradients = [[row[t * 2] for t in range(2)] for row in A]
    leaks = oracles.exact_leaks(gradients, B)
    loss = loss_of(algorithm, masked(algorithm, [True, True]), 0)
    if any(leaks):
        assert loss.sensitivity_squared == math.inf
    else:
        X = oracles.exact_view_gram(gradients, B)
        assert loss.sensitivity_squared >= float(max(X[t][t] for t in range(2))) * (1 - 1e-12)


@pytest.mark.parametrize("power", range(20, 56, 3))
@pytest.mark.parametrize("third", [1 / 3, 1 / 7, 0.3])
def test_what_cancels_leaves_rounding_which_the_number_holds(power, third):
    """The released model is (1 - a) e / 3 + a e / 3: rounding of a / 3 is all that float64 has of e / 3."""
    maps = {"P": np.zeros((1, 2)), "R": [[2.0**power]], "K": [[-1.0], [1.0]], "J": [[1.0], [0]], "L": [[1.0], [0]]}
    algorithm = from_maps(maps, EveryStep(1), model_from_state=[[third, third]], message_sender=[0])
    loss = loss_of(algorithm, masked(algorithm, [False], release="all"), 0)
    assert loss.sensitivity_squared >= 1 - 1e-12
    assert loss.bound == "upper" or power < 40


@pytest.mark.parametrize("last_bits", [2.0**-51, 2.0**-46, 1.4e-13, 1e-9])
@pytest.mark.parametrize("weight", [3.0, 1 / 3])
@pytest.mark.parametrize("more_state", [False, True])
@pytest.mark.parametrize("faint", [1e-3, 2.0**-10])  # products of the second are exact
def test_rows_that_nearly_agree_show_their_difference(last_bits, weight, more_state, faint):
    """Two messages of nearly the same sum: their difference is g + e of node 1, whose noise is faint.

    A difference in the last bit of 1 / 3 is rounding. Nothing else may be taken for it.
    """
    Q = np.array([[1.0, weight], [1.0, weight + last_bits * (3 if weight == 3 else 1)]])
    size = 3 if more_state else 2
    maps = {"P": np.zeros((2, size)), "Q": Q, "K": np.eye(size, 2), "F": np.diag([0.0, 0, 1])[:size, :size]}
    noise = StepNoise(np.diag([1.0, faint]), np.eye(2, dtype=bool), 1, 2)
    algorithm = from_maps(maps, Single(1), noise=noise, message_sender=[0, 1])
    loss = loss_of(algorithm, trust.Eavesdropper(), 1, release="none")
    least = faint**-2 if last_bits > 2.0**-50 else weight**2 / (1 + (faint * weight) ** 2)  # of both, or of one
    assert loss.sensitivity_squared >= least * (1 - 1e-6)


# ---- what is seen, and what is sent ----------------------------------------------------------------------------------
def test_a_message_that_is_seen_though_never_sent_counts_in_every_number():
    """Shift reduction must not drop it: the adaptive number is never below the one for non-adaptive gradients."""
    apart = gossip.from_array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    algorithm = algorithms.dp_dsgd(Dynamics(apart, 0.5), EveryStep(2))
    algorithm = dataclasses.replace(algorithm, transmitted=np.array([True, True, False]))
    model = masked(algorithm, [False, False, True])
    loss = loss_of(algorithm, model, 2, lipschitz=1.0)
    assert loss.sensitivity_squared > 1
    assert loss.adaptive_sensitivity_squared >= loss.sensitivity_squared


@given(60, user_algorithms(), st.data())
def test_no_trust_model_is_above_ldp(algorithm, data):
    """Local privacy is what is left if all others collude, wherever noise and gradients enter."""
    victim = data.draw(st.integers(0, algorithm.num_nodes - 1))
    local = loss_of(algorithm, trust.LDP(), victim).sensitivity_squared
    others = tuple(u for u in range(algorithm.num_nodes) if u != victim)
    for model in (
        trust.FullCollusion(),
        trust.Eavesdropper(),
        trust.named("colluding", colluders=others),
        trust.ReleasedOnly(),
    ):
        loss = loss_of(algorithm, model, victim).non_adaptive_sensitivity
        lower = loss.lower if math.isfinite(loss.lower) or loss.exact else 0.0  # infinite as a bound says nothing
        assert lower <= local * (1 + 1e-9)


@pytest.mark.parametrize("release", ["none", "average", "all"])
@pytest.mark.parametrize("mixing", [True, False])
def test_released_models_that_mix_private_noise_are_no_shelter(release, mixing):
    """Nothing is sent: a released mean of two models hides a node behind the noise of the other, who may collude."""
    M = np.full((2, 2), 0.5) if mixing else np.eye(2)
    algorithm = from_maps(
        {"P": np.zeros((2, 2)), "F": np.eye(2), "J": np.eye(2)}, EveryStep(1), model_from_state=M, message_sender=[0, 1]
    )
    local, full = (loss_of(algorithm, model, 0, release=release) for model in (trust.LDP(), trust.FullCollusion()))
    assert local.sensitivity_squared >= full.sensitivity_squared * (1 - 1e-12)
    assert full.sensitivity_squared == pytest.approx(0 if release == "none" else 1)


def test_a_subclass_that_looks_at_the_victim_is_asked_for_each():
    class Insider(trust.Eavesdropper):
        def knowledge(self, algorithm, victim):
            knowledge_of_base = super().knowledge(algorithm, victim)
            return dataclasses.replace(
                knowledge_of_base, known_noise=np.full_like(knowledge_of_base.known_noise, victim == 2)
            )

    built = algorithms.dp_dsgd(Dynamics(THIRDS), EveryStep(2))
    losses = [loss.sensitivity_squared for loss in sensitivity_by_victim(built, Insider())]
    assert (losses[:2], losses[2]) == (pytest.approx([2, 2]), math.inf)


def test_noise_of_another_node_in_a_message_protects_nobody_under_ldp():
    """Both nodes send their gradients under the noise of node 1 alone: node 0 has none, and its message tells it."""
    R = np.array([[0.0, 50.0], [0.0, 1.0]])
    algorithm = from_maps({"P": np.eye(2), "Q": -np.eye(2), "R": R, "K": 0.5 * np.ones((2, 2))}, EveryStep(1))
    assert loss_of(algorithm, trust.FullCollusion(), 0).sensitivity_squared == math.inf
    for victim in (0, 1):
        assert loss_of(algorithm, trust.LDP(), victim).sensitivity_squared == math.inf


# ---- gradients at models that nobody sees ----------------------------------------------------------------------------
def hidden_weight(size, through):
    """Two nodes; node 1's gradient is taken at a model that holds `size` of a state nobody sees, by M or by F."""
    maps = {
        "P": [[1.0, 0, 0]], "Q": [[1.0, 0]], "K": [[1.0], [0], [0]],
        "F": [[0, 0, 0], [0, 0, size if through == "F" else 0], [0, 0, 1.0]], "J": [[0, 0], [0, 0], [0, 1.0]],
    }  # fmt: skip
    M = [[1.0, 0, 0], [0, 1.0, size if through == "M" else 0]]
    return from_maps(maps, EveryStep(4), model_from_state=M, message_sender=[0])


@pytest.mark.parametrize("through", ["M", "F"])
@pytest.mark.parametrize("size", [1.0, 1e-14, 1e-40])
@pytest.mark.parametrize("small", [True, False])
def test_a_model_with_a_hidden_part_is_not_known_however_faint(through, size, small, monkeypatch):
    if not small:
        monkeypatch.setattr(exact_arithmetic, "MAX_ENTRIES", 0)
    algorithm = hidden_weight(size, through)
    assert not is_adaptive(masked(algorithm, [True]).view(algorithm, 0))
    assert is_adaptive(trust.LDP().view(hidden_weight(0.0, through), 0))  # no entry: nothing depends on it


def test_a_model_that_shows_in_its_own_round_is_not_known_before_it():
    """The message is the model itself; the gradient is taken at it before anybody sees it."""
    algorithm = from_maps({"P": [[1.0]], "F": [[1.0]], "J": [[1.0]]}, EveryStep(3), message_sender=[0])
    assert not is_adaptive(trust.LDP().view(algorithm, 0))


@given(80, user_algorithms(), st.data())
def test_known_models_are_those_that_rational_rows_span(algorithm, data):
    """Any maps, with steps of several rounds: the verdict is that of rows over the rationals, in both directions."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    seen = rng.random((len(algorithm.rounds), algorithm.messages_per_round)) < 0.8
    view = masked(algorithm, seen).view(algorithm, 0)
    run = oracles.exact_run(algorithm)
    earlier: list[list] = []
    spans = True
    for r, step in enumerate(algorithm.step_of_round):
        if step >= 0:
            for model in run.models[step]:
                base = oracles.rank(earlier) if earlier else 0
                spans &= oracles.rank([*earlier, model]) == base
        earlier += [row for row, mask in zip(run.messages[r], seen[r], strict=True) if mask]
    assert is_adaptive(view) == spans


# ---- every injected sum seen -----------------------------------------------------------------------------------------
@given(80, user_algorithms(together=True), st.data())
def test_injections_seen_bound_every_view(algorithm, data):
    """A = I and B = N: nobody who knows no more gradients and noise learns more, whatever is seen or released."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    victim = data.draw(st.integers(0, algorithm.num_nodes - 1))
    seen = rng.random((len(algorithm.rounds), algorithm.messages_per_round)) < 0.6
    parts = rng.random((algorithm.num_steps, algorithm.noise.columns_per_step)) < 0.3
    model = masked(algorithm, seen, noise=parts, release=data.draw(st.sampled_from(["none", "average", "all"])))
    loss = loss_of(algorithm, model, victim)
    N = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])) * ~parts.ravel()
    (gram,) = view_grams(View(np.eye(len(N)), N, num_nodes=algorithm.num_nodes), [victim])
    (bound,) = sensitivities([gram], algorithm.participation, nodes=[victim], method="certified")
    assert loss.non_adaptive_sensitivity.lower <= bound.squared * (1 + 1e-9) or not math.isfinite(
        loss.non_adaptive_sensitivity.lower
    )
    assert loss.adaptive_sensitivity_squared <= bound.squared * (1 + 1e-6)  # rounding of cancelled entries included
    assert loss.adaptive_by in (*victim_sensitivity.ADAPTIVE_BY, INJECTIONS)


def test_noise_that_enters_elsewhere_is_not_bounded_so():
    """R is not Q: here the injected sums say less than the message does."""
    algorithm = from_maps({"P": [[1.0]], "Q": [[1.0]], "R": [[0.5]], "K": [[1.0]]}, EveryStep(2))
    assert not algorithm.noise_enters_with_gradients
    assert loss_of(algorithm, trust.LDP(), 0).adaptive_sensitivity_squared == pytest.approx(8)


# ---- batch sizes -----------------------------------------------------------------------------------------------------
def test_batch_sizes_that_change_the_guarantee_are_accounted_not_assumed():
    """Noise apart from gradients: dividing both leaves messages of the same sum, so divisors do not cancel."""
    apart = from_maps({"P": np.eye(2), "Q": -np.eye(2), "R": [[0.0, 1], [1, 0]], "K": HALF.weights}, EveryStep(2))
    together = algorithms.dp_dsgd(Dynamics(HALF), EveryStep(2))
    assert not apart.divisors_cancel
    assert together.divisors_cancel
    sizes = [1.0, 50.0]
    plain, divided = (
        loss_of(algorithm, trust.Eavesdropper(), 0) for algorithm in (together, together.with_divisors(sizes))
    )
    assert divided.sensitivity_squared == pytest.approx(plain.sensitivity_squared)
    plain, divided = (loss_of(algorithm, trust.Eavesdropper(), 0) for algorithm in (apart, apart.with_divisors(sizes)))
    assert divided.sensitivity_squared == pytest.approx(2500 * plain.sensitivity_squared)


# ---- bare views ------------------------------------------------------------------------------------------------------
@given(60, st.integers(0, 2**32 - 1))
def test_rows_that_differ_in_their_last_bits_are_decided_exactly(seed):
    """B holds the floats it holds: a rank that float64 cannot see is told by exact ranks, or the number is a bound."""
    rng = np.random.default_rng(seed)
    row = rng.normal(size=3)
    near = row * (1 + 2.0**-52 * rng.integers(-2, 3, 3))
    A, B = rng.choice([0.0, 1.0, -1.0], (2, 2)), np.stack([row, near])
    (gram,) = view_grams(View(A, B, num_nodes=1), [0])
    leaks = oracles.exact_leaks(oracles.rational(A), oracles.rational(B))
    if any(leaks):
        assert gram.leaks.any() or gram.upper
    elif not gram.upper:
        X = np.diag(oracles.to_float(oracles.exact_view_gram(oracles.rational(A), oracles.rational(B))))
        diagonal, errors = np.diag(gram.matrix), np.diag(gram.errors)
        assert (gram.inflation * (diagonal + errors) >= X).all()
        assert ((diagonal - errors) / gram.inflation <= X).all()


# ---- a few cases of the soundness campaign ---------------------------------------------------------------------------
@pytest.fixture(scope="module")
def statements():
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        yield importlib.import_module("_soundness_encoders").STATEMENTS
    finally:
        sys.path.remove(str(EXPERIMENTS))


@pytest.mark.parametrize("number", range(11))
@pytest.mark.slow
def test_a_few_cases_of_the_hunt(number, statements):
    campaign = importlib.import_module("_campaign")
    name = list(statements)[number]
    comparison = campaign.compare(statements, name, range(16), seed=20)
    assert comparison.cases >= 4
    assert not comparison.disagreements, comparison.smallest


CASES = {"clip schedules": 120, "balls-in-bins against masks": 36, "two runs": 16}
"""So many that each of the defects that these statements were written for is drawn."""


@pytest.fixture(scope="module")
def statements_of_runs():
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        importlib.import_module("_soundness_training")
        yield importlib.import_module("_soundness_statements").STATEMENTS
    finally:
        sys.path.remove(str(EXPERIMENTS))


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES)
def test_a_few_cases_of_statements_on_runs(words, statements_of_runs):
    campaign = importlib.import_module("_campaign")
    (name,) = (name for name in statements_of_runs if words in name)
    alone = {name: statements_of_runs[name]}  # cases that do not depend on what else is registered
    comparison = campaign.compare(alone, name, range(CASES[words]), seed=20)
    assert comparison.cases >= CASES[words] / 2
    assert not comparison.disagreements, comparison.smallest


def test_victims_come_back_in_the_order_in_which_they_were_given():
    algorithm = algorithms.dp_dsgd(dynamics_on("path:n=4"), EveryStep(2))
    assert [loss.victim for loss in sensitivity_by_victim(algorithm, trust.PNDP([0]), victims=[3, 1, 3])] == [3, 1]
    assert [loss.victim for loss in sensitivity_by_victim(algorithm, trust.PNDP([0]))] == [1, 2, 3]

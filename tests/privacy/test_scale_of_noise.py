"""No number may depend on the unit of the noise: noise times c divides every squared sensitivity by c^2, or refuses."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from _guarantees import sensitivity_of_gram
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st

from mfdl import Cyclic, Dynamics, EveryStep, Privacy, View, algorithms, calibrate, gossip, trust
from mfdl.algorithms.gossip_sgd import decentralized
from mfdl.check import LARGEST
from mfdl.noise import IndependentNoise, JointNoise, LocalNoise, SpatioTemporalNoise, StepNoise, ZeroNoise
from mfdl.participation import Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms import view_grams
from mfdl.privacy.forms.whitening import whiten
from mfdl.testing import CHEAP_NAMES, JOINT_NAMES, SHARED_NAMES, integer_views, linear_algorithms, oracles, trust_models

RING = dynamics_on("ring:n=4")


def louder(noise, factor):
    T, n = noise.num_steps, noise.num_nodes
    if isinstance(noise, ZeroNoise):
        return noise
    if isinstance(noise, StepNoise):
        return StepNoise(noise.factor * factor, noise.holders(), T, n)
    if isinstance(noise, SpatioTemporalNoise):
        return SpatioTemporalNoise(noise.encoder, noise.factor * factor, noise.holders(), n)
    if isinstance(noise, JointNoise):
        return JointNoise(noise.encoder.array / factor, T, n)
    encoder = np.eye(T) if isinstance(noise, IndependentNoise) else noise.encoder.dense()
    return LocalNoise(encoder / factor, n)


@given(150, data=st.data(), exponent=st.sampled_from([-120, -100, -40, -10, 1, 10, 30, 45, 55, 100, 120]))
def test_every_loss_follows_the_scale_of_the_noise(data, exponent):
    names = (*CHEAP_NAMES, "muffliato", "cdp", *SHARED_NAMES, *JOINT_NAMES, "zip-dl")
    algorithm = data.draw(linear_algorithms(names, max_epochs=2, max_period=2))
    model = data.draw(trust_models(algorithm))
    factor = 2.0**exponent
    other = dataclasses.replace(algorithm, noise=louder(algorithm.noise, factor))
    for plain, scaled in zip(sensitivity_by_victim(algorithm, model), sensitivity_by_victim(other, model), strict=True):
        # `plain` is an upper bound too: its own slack is what the scaled one may lack
        assert scaled.sensitivity_squared * factor**2 >= plain.non_adaptive_sensitivity.lower * (1 - 1e-9)
        if math.isinf(plain.sensitivity_squared) and plain.bound == "exact":
            assert math.isinf(scaled.sensitivity_squared)


@given(300, view=integer_views(), data=st.data())
def test_rows_of_any_scale_hide_no_leak(view, data):
    """Rows of noise, and columns of gradients, times powers of two; against exact rational arithmetic."""
    A, B = (np.asarray(M, dtype=np.float64) for M in view)
    powers = st.one_of(st.integers(-80, 80), st.sampled_from([-500, 500]))
    rows = np.array([2.0 ** data.draw(powers) for _ in range(len(B))])
    columns = np.array([2.0 ** data.draw(powers) for _ in range(A.shape[1])])
    A, B = A * columns, B * rows[:, None]
    white = whiten(A, B)
    exact = oracles.rational(A), oracles.rational(B)
    leaks = np.array(oracles.exact_leaks(*exact))
    assert (white.leaks | white.undecided)[leaks].all()
    if leaks.any():
        return
    truth = oracles.exact_view_gram(*exact)
    diagonal = np.diagonal(white.whitened.T @ white.whitened + white.gram_error())
    for t, value in enumerate(diagonal):
        if not (white.leaks | white.undecided)[t]:
            assert Fraction(float(value)) >= truth[t][t] * (1 - Fraction(1, 10**9))


CYCLE = np.array([[1.0, 0, 0, -1], [-1, 1, 0, 0], [0, -1, 1, 0], [0, 0, -1, 1]])


@pytest.mark.parametrize("factor", [1.0, 1e8, 1e13, 1e15, 1e30, 1e59])
def test_pairwise_noise_of_any_size_protects_nothing(factor):
    """It cancels in the sum of all injections."""
    over_time = SpatioTemporalNoise(np.eye(4), factor * CYCLE, np.ones((4, 4), dtype=bool), 4)
    for noise in (over_time, StepNoise(factor * CYCLE, sp.csr_array(np.ones((4, 4), dtype=bool)), 4, 4)):
        algorithm = decentralized("pairs", RING, Cyclic(2, 2), noise)
        losses = sensitivity_by_victim(algorithm, trust.Eavesdropper())
        assert all(math.isinf(loss.sensitivity_squared) for loss in losses)
        refuses("infinite loss under trust", calibrate, algorithm, Privacy(trust.Eavesdropper(), **ZERO_OUT), mu=1.0)


@pytest.mark.parametrize("pair", [1.0, 1e6, 1e10, 1e13, 1e14, 1e15, 1e16, 1e30, 1e59])
def test_pairwise_noise_never_hides_how_little_is_private(pair):
    """A record moves the mean of the injections by 1 / 4, whose noise is private alone, of std 1 / 2: 1 / 4 a step."""
    algorithm = algorithms.decor(RING, Cyclic(2, 2), sigma_ldp=1.0, sigma_cor=pair)
    for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper()):
        assert loss.sensitivity_squared >= 0.5 * (1 - 1e-12)
        lower = loss.non_adaptive_sensitivity.lower  # infinite is a bound here, not the value
        assert lower <= 0.5 * (1 + 1e-12) + 1 / pair**2


@pytest.mark.parametrize("beyond", [10 * LARGEST, 1e154, 1e300])
def test_arrays_whose_squares_leave_the_floats_are_refused(beyond):
    C, everybody = np.tril(np.ones((4, 4))), np.ones((4, 4), dtype=bool)
    for make in (
        lambda: LocalNoise(C * beyond, 4),
        lambda: LocalNoise(C / beyond, 4),
        lambda: SpatioTemporalNoise(C / beyond, np.eye(4), everybody, 4),
        lambda: SpatioTemporalNoise(np.stack([C, C, C, C / beyond]), np.eye(4), everybody, 4),
        lambda: JointNoise(np.eye(16) / beyond, 4, 4),
    ):
        refuses("encoder must have a diagonal of at least", make)
    for make in (
        lambda: StepNoise(np.eye(4) * beyond, sp.csr_array(everybody), 4, 4),
        lambda: SpatioTemporalNoise(C, np.eye(4) * beyond, everybody, 4),
    ):
        refuses("factor must hold finite numbers, 0", make)


@pytest.mark.parametrize("scale", [1e-200, 1e-170, 1e-150, 1.0, 1e150, 1e170])
def test_a_view_that_float64_cannot_square_has_no_finite_loss(scale):
    """Gradients of that size beside unit noise: squared sensitivity scale^2, and never 0."""
    grams = view_grams(View(scale * np.eye(2), np.eye(2), num_nodes=1), [0])[0]
    loss = sensitivity_of_gram(grams, EveryStep(2))
    square = scale * scale
    assert loss.squared >= square if 0 < square < math.inf else math.isinf(loss.squared)
    assert loss.squared > 0


def test_a_singular_shared_encoder_is_named_as_the_reason():
    C = np.eye(128) + 3 * np.eye(128, k=-1)  # more steps than are inverted exactly
    for noise in (LocalNoise(C, 2), SpatioTemporalNoise(C, np.eye(2), np.eye(2, dtype=bool), 2)):
        algorithm = decentralized("singular", dynamics_on("path:n=2"), Cyclic(2, 64), noise)
        refuses("its encoder is singular", calibrate, algorithm, Privacy(trust.Eavesdropper(), **ZERO_OUT), mu=1.0)


def decided(A, B, **options):
    """Which columns get a finite number from `whiten`, and what it bounds X by."""
    white = whiten(np.asarray(A, dtype=float), np.asarray(B, dtype=float), **options)
    most = np.diagonal(white.whitened.T @ white.whitened + white.gram_error())
    return ~(white.leaks | white.undecided), most


@pytest.mark.parametrize("loud", [1.0, 1e6, 1e13, 1e14, 1e18, 1e30, 1e60])
def test_noise_of_two_sizes_in_one_row_hides_no_leak(loud):
    """The sum of the rows shows the gradient without noise."""
    finite, _ = decided([[1], [0], [0]], [[1, 0], [-1, loud], [0, -loud]], given_noise=True)
    assert not finite.any()


@pytest.mark.parametrize("private", [0.0, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("pairs", [(1.0, 1e14), (1.0, 1e6, 1e12), (1e14, 1.0, 1.0), (1.0, 1e15, 1.0, 1e15)])
def test_pairwise_noise_of_many_sizes_is_no_private_noise(pairs, private):
    """On a path: the sum of all injections holds every gradient and private noise alone, of variance n private^2."""
    n = len(pairs) + 1
    F = np.zeros((n, len(pairs) + n))
    for k, size in enumerate(pairs):
        F[k, k], F[k + 1, k] = size, -size
    F[:, len(pairs) :] = private * np.eye(n)
    holders = np.ones((F.shape[1], n), dtype=bool)
    dynamics = dynamics_on(f"path:n={n}")
    for noise in (StepNoise(F, sp.csr_array(holders), 2, n), SpatioTemporalNoise(np.eye(2), F, holders, n)):
        algorithm = decentralized("pairs", dynamics, Cyclic(1, 2), noise)
        for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper()):
            least = math.inf if private == 0 else 1 / (n * private**2)
            assert loss.sensitivity_squared >= least * (1 - 1e-9)


@pytest.mark.parametrize("rate", [1.0, 1e-8, 1e-15])
@pytest.mark.parametrize("graph", ["path:n=4", "florentine"])
def test_noise_that_cancels_leaves_no_residue_to_count(graph, rate):
    """Zip-DL's noise cancels in the average; what rounding leaves of it, 1e-17, hides nothing."""
    algorithm = algorithms.zip_dl(dynamics_on(graph, rate), Single(3))
    losses = sensitivity_by_victim(algorithm, trust.ReleasedOnly(), release="average")
    assert all(math.isinf(loss.sensitivity_squared) for loss in losses)


def test_nearly_dependent_noise_has_errors_of_second_order():
    """A column along the loud direction; to first order nothing is added, and 2.5e-4 is missing."""
    A = [[-1.4106329866956855], [1.4891082763316499]]
    B = [[-0.8787872920997886, 1.103457438417047], [0.9276753359257487, -1.1648441654377921]]
    truth = oracles.exact_view_gram(oracles.rational(np.array(A)), oracles.rational(np.array(B)))[0][0]
    finite, most = decided(A, B)
    assert not finite[0] or Fraction(float(most[0])) >= truth


def test_a_silent_row_that_is_faint_beside_the_column_is_not_forgotten():
    finite, _ = decided([[1, 0], [1e-16, 1]], [[1], [0]])
    assert not finite[0]


@pytest.mark.parametrize("exponent", [18, 20, 21, 22, 24])
def test_released_models_that_nearly_agree_are_bounded_on_both_sides(exponent):
    """Two of three rows differ by 2^-exponent: X = 1 exactly, for W is invertible."""
    e = 2.0**-exponent
    W = np.array([[0.5, 0.5, 0], [0.5, 0.5 - e, e], [0, e, 1 - e]])
    algorithm = algorithms.dp_dsgd(Dynamics(gossip.from_array(W), 0.5), EveryStep(1))
    for loss in sensitivity_by_victim(algorithm, trust.ReleasedOnly(), release="all"):
        assert loss.non_adaptive_sensitivity.lower <= 1 <= loss.non_adaptive_sensitivity.squared
        assert not loss.non_adaptive_sensitivity.exact or loss.non_adaptive_sensitivity.squared <= 1 + 1e-5


def test_faint_noise_that_is_taken_for_none_gives_a_bound_and_no_value():
    """Edges of a path with noise of 1 to 1e12, private noise .01: squared sensitivity 2e3, which float64 cannot see."""
    pairs, n = (1.0, 1e4, 1e8, 1e12), 5
    F = np.zeros((n, 4 + n))
    for k, size in enumerate(pairs):
        F[k, k], F[k + 1, k] = size, -size
    F[:, 4:] = 0.01 * np.eye(n)
    noise = StepNoise(F, sp.csr_array(np.ones((9, n), dtype=bool)), 1, n)
    algorithm = decentralized("pairs", dynamics_on("path:n=5"), Cyclic(1, 1), noise)
    for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper()):
        assert loss.non_adaptive_sensitivity.lower <= 2e3 * (1 + 1e-6) <= loss.non_adaptive_sensitivity.squared

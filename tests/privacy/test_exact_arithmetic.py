"""Ranks modulo two primes against rational arithmetic, on floats of any size."""

import dataclasses
import math
from fractions import Fraction

import flint
import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, each, given, st

from mfdl import Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.entries import has_few_bits
from mfdl.factorization.encoders import Banded, Inverse, Toeplitz
from mfdl.noise import JointNoise, LocalNoise, SpatioTemporalNoise
from mfdl.participation import Single
from mfdl.privacy import exact_arithmetic, row_spaces, sensitivity_by_victim
from mfdl.privacy.exact_arithmetic import PRIMES, rank_and_outside
from mfdl.testing import oracles


@st.composite
def matrices(draw):
    """Low rank as floats, entries of any size, and rows that differ in their last bits."""
    rows, columns, width = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    B = rng.integers(-3, 4, (rows, width)) @ rng.integers(-3, 4, (width, columns)).astype(float)
    B = B * 2.0 ** rng.integers(-60, 61, (rows, 1)) * 2.0 ** rng.integers(-60, 61, (1, columns))
    if draw(st.booleans()):
        B[rng.integers(rows)] *= 1 + 2.0**-52
    if draw(st.booleans()):
        B = np.where(rng.random(B.shape) < 0.2, rng.normal(size=B.shape), B)
    mixed = B @ rng.integers(-2, 3, (columns, 2))
    return B, np.where(rng.random(mixed.shape) < 0.2, rng.normal(size=mixed.shape), mixed)


@given(150, matrices())
def test_rank_and_range_are_those_over_the_rationals(case):
    B, A = case
    rank, outside = rank_and_outside(B, A)
    assert rank == oracles.rank(oracles.rational(B))
    assert outside.tolist() == oracles.exact_leaks(oracles.rational(A), oracles.rational(B))


def test_a_prime_that_divides_is_outvoted(monkeypatch):
    """Modulo 3 this matrix has rank 1: the other prime tells, and a doubtful column counts as a leak."""
    B = np.array([[1.0, 1.0], [1.0, 4.0]])
    monkeypatch.setattr(exact_arithmetic, "PRIMES", (3, PRIMES[0]))
    rank, outside = rank_and_outside(B, np.eye(2))
    assert rank == 2
    assert outside.all()
    monkeypatch.setattr(exact_arithmetic, "PRIMES", (3, 5))  # [3, 1] is in the range of [0, 1] modulo 3 only
    assert rank_and_outside(np.array([[0.0], [1.0]]), np.array([[3.0], [1.0]]))[1].all()


@given(60, st.integers(0, 2**32 - 1))
def test_few_combinations_say_what_all_columns_say(seed):
    """Rank, leaks and what is known of models, of random masks of small algorithms; beside ranks that are too small."""
    rng = np.random.default_rng(seed)
    name = ("dp-dsgd", "muffliato", "gradient-tracking", "zip-dl", "mafalda", "none")[rng.integers(6)]
    dynamics = dynamics_on(f"erdos-renyi:n=5,p=0.6,seed={rng.integers(20)}", 0.1)
    algorithm = algorithms.build(name, dynamics, EveryStep(3))
    masks = {
        "seen": rng.random((len(algorithm.rounds), algorithm.messages_per_round)) < 0.5 * rng.random(),
        "known_noise": rng.random((3, algorithm.noise.columns_per_step)) < 0.7 * rng.random(),
        "release": ("none", "average", "all")[rng.integers(3)],
    }
    view = trust.TrustModel.from_masks(**masks).view(algorithm, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_spaces, "FEW", 1)
        _few_and_all_agree(view)


def _few_and_all_agree(view):
    for victims in ([0], [1, 3]):
        columns = np.concatenate([view.axis.node_columns(u) for u in victims])
        fields = [row_spaces._Field(prime) for prime in PRIMES]
        (rank, leaks), other = (row_spaces._Rows.from_view(view, field).rank_and_outside(columns) for field in fields)
        assert (rank, leaks.tolist()) == (other[0], other[1].tolist())
        few = row_spaces.exact_range(view, victims)
        assert (rank, leaks.tolist()) == (few[0], few[1].tolist())
        assert row_spaces.is_silent(view, victims) is not leaks.any()
        for claimed in sorted({max(rank - 1, 0), rank, rank + 1}):  # the fewest combinations first
            confirmed = row_spaces.confirmed(view, victims, claimed)
            assert confirmed == (claimed == rank and not leaks.any())
        assert row_spaces.confirmed(view, victims, rank, at_least=True) is not leaks.any()


def test_messages_are_read_once_for_all_attackers(monkeypatch):
    computed, original = [], row_spaces._Messages._computed.__func__
    count = classmethod(lambda cls, *args: computed.append(1) or original(cls, *args))
    monkeypatch.setattr(row_spaces._Messages, "_computed", count)
    for spec in ("florentine", "erdos-renyi:n=24,p=0.2,seed=0"):
        computed.clear()
        dynamics = dynamics_on(spec, 0.1, gossip_rounds=2)
        sensitivity_by_victim(algorithms.muffliato(dynamics, EveryStep(2)), trust.AnyReceiver(), progress=False)
        assert len(computed) <= 12


def test_primes_are_primes():
    assert all(flint.fmpz(p).is_prime() and 2**62 <= p < 2**63 for p in PRIMES)
    assert len(set(PRIMES)) == 2


def test_an_empty_matrix_has_no_rank():
    assert rank_and_outside(np.zeros((0, 3)), np.zeros((0, 2)))[0] == 0
    assert rank_and_outside(np.zeros((2, 0)), np.eye(2))[1].all()


@given(100, st.floats(-1e30, 1e30), st.integers(-(2**24), 2**24), st.integers(-100, 100))
def test_few_bits_are_those_of_single_precision(x, whole, power):
    assert has_few_bits(np.array([whole * 2.0**power]))
    if abs(x) > 1e-30:
        assert has_few_bits(np.array([x])) == (float(np.float32(x)) == x)


HALF = gossip.from_array(np.full((2, 2), 0.5))
PATH = gossip.from_array(np.array([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]]))


def losses(encoder, T, model=None, participation=None, weights=HALF):
    algorithm = algorithms.mf_dsgd(Dynamics(weights, 0.5), EveryStep(T), encoder)
    scheme = participation or Single(T)
    return sensitivity_by_victim(algorithm, model or trust.LDP(), victims=[0], participation=scheme)[0], algorithm.noise


@st.composite
def graded(draw):
    """Lower triangular, with a diagonal of powers of two over 36 decades."""
    T = draw(st.integers(1, 6))
    entries = st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0])
    below = np.array(draw(st.lists(entries, min_size=T * T, max_size=T * T))).reshape(T, T)
    powers = draw(st.lists(st.integers(-60, 0), min_size=T, max_size=T))
    return np.tril(below, -1) + np.diag(2.0 ** np.array(powers))


@given(120, encoder=graded())
def test_the_number_of_an_encoder_near_singular_is_that_of_the_noise_it_makes(encoder):
    """X = (N N^T)^-1 of the N that is injected, in fractions."""
    T = len(encoder)
    loss, noise = losses(encoder, T)
    N = [[Fraction(x) for x in row] for row in noise.inverse.tolist()]
    X = oracles.exact_view_gram([[Fraction(int(s == t)) for s in range(T)] for t in range(T)], N)
    truth = max(X[t][t] for t in range(T))
    assert truth <= loss.non_adaptive_sensitivity.squared <= truth * Fraction(1 + 1e-5)
    assert loss.non_adaptive_sensitivity.lower <= truth
    together, _ = losses(encoder, T, participation=EveryStep(T))
    assert together.non_adaptive_sensitivity.squared >= oracles.largest_signed_sum(X)


@each(
    "encoder",
    np.array([[1e-17, 0], [1, 1]]), np.array([[[1e-17, 0], [1, 1]], [[1, 0], [0.5, 1]]]),
    Banded([[1e-17, 0], [1, 1]]), Inverse(Banded([[1, 0], [1e-20, 1e20]])), Inverse(Toeplitz([1e-3, 1e17], 2)),
)  # fmt: skip
@pytest.mark.parametrize("model", [trust.LDP(), trust.PNDP([1]), trust.Central()])
def test_infinity_that_is_not_proven_is_called_an_upper_bound(encoder, model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_arithmetic, "MAX_SIZE", 0)
        loss, _ = losses(encoder, 2, model)
    assert math.isinf(loss.non_adaptive_sensitivity.squared)
    assert (loss.non_adaptive_sensitivity.bound, loss.non_adaptive_sensitivity.lower) == ("upper", 0)
    assert loss.bound == "upper"
    assert "only an upper bound" in loss.non_adaptive_sensitivity.why


def test_messages_of_a_path_under_an_encoder_near_singular_have_a_bound_at_most():
    """Forms for part of the messages that invert one encoder of all nodes in float64."""
    encoder = np.array([[1, 0, 0], [1e17, 1, 0], [0, 1e17, 1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_arithmetic, "MAX_SIZE", 0)
        for release in ("none", "all"):
            algorithm = algorithms.mf_dsgd(Dynamics(PATH, 0.5), EveryStep(3), encoder)
            (loss,) = sensitivity_by_victim(algorithm, trust.PNDP([3]), victims=[0], release=release)
            assert math.isfinite(loss.sensitivity_squared) or loss.bound == "upper"


def test_noise_of_several_columns_and_joint_noise_use_exact_numbers_too():
    small = np.array([[1e-17, 0], [1, 1]])
    factor = np.array([[1.0, 0.5], [0.0, 1.0]])
    holders = np.ones((2, 2), dtype=bool)
    plain = algorithms.dp_dsgd(Dynamics(HALF, 0.5), EveryStep(2))
    for noise in (
        LocalNoise(np.stack([small, small]), 2),
        SpatioTemporalNoise(small, factor, holders, 2),
        SpatioTemporalNoise(np.stack([small, small]), factor, holders, 2),
        JointNoise(np.kron(small, np.eye(2)), 2, 2),
    ):
        (loss,) = sensitivity_by_victim(dataclasses.replace(plain, noise=noise), trust.Eavesdropper(), victims=[0])
        assert math.isfinite(loss.non_adaptive_sensitivity.squared)
        assert loss.non_adaptive_sensitivity.bound == "exact"


@pytest.mark.filterwarnings("ignore::mfdl.errors.UnusualSetting")
def test_sums_of_messages_of_which_none_is_ever_sent():
    """One node alone: its noise for neighbours is none, and its released models show its gradients."""
    algorithm = algorithms.zip_dl(Dynamics(gossip.from_array(np.eye(1))), EveryStep(3))
    assert not algorithm.sent.any()
    (loss,) = sensitivity_by_victim(algorithm, trust.Central(), release="all", progress=False)
    assert math.isinf(loss.sensitivity_squared)


def test_a_small_first_step_does_not_cost_an_infinite_loss():
    """C = [[e, 0], [1, 1]]: C^T C has diagonal 1 + e^2 and 1, whatever e is, and all that both steps show is 4."""
    for small in (1e-9, 1e-17, 2.0**-60, 1e-40):
        loss, _ = losses(np.array([[small, 0], [1, 1]]), 2, participation=EveryStep(2))
        assert_allclose(loss.non_adaptive_sensitivity.squared, 4, rtol=1e-6)
        assert loss.non_adaptive_sensitivity.bound == "exact"
        assert loss.adaptive_sensitivity_squared == loss.non_adaptive_sensitivity.squared

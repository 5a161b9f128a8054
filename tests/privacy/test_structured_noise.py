"""Noise of encoders with structure: the numbers, files and refusals of an encoder that is never written out."""

import dataclasses
import math
from fractions import Fraction

import exact
import numpy as np
import pytest
from _guarantees import sensitivity_of_gram
from noises import STRUCTURED, structured_encoder
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, EveryStep, MinSeparation, UnsupportedMechanism, algorithms, trust
from mfdl.algorithms.gossip_sgd import decentralized
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import LocalNoise, encoder_arguments
from mfdl.noise.stream import NoiseStream
from mfdl.participation import OncePerEpoch, Single
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms.separable import encoder_gram
from mfdl.sensitivity import encoder_bounds
from mfdl.sensitivity.encoder_bounds import structured_bound
from mfdl.testing import ALL_SCHEMES, largest_over_patterns, largest_signed_sum, participations

SOLVER = 2e-6
RING = dynamics_on(mfdl.graphs.load("ring:n=4"))
MANY = 2 * 10**4


@st.composite
def encoders(draw, T):
    numbers = np.array(draw(st.lists(st.integers(-4, 4), min_size=8, max_size=8))) / 4
    return structured_encoder(draw(st.sampled_from(STRUCTURED)), numbers, T)


@st.composite
def encoder_cases(draw, max_steps=6):
    scheme = draw(participations(max_steps=max_steps, schemes=ALL_SCHEMES))
    return draw(encoders(scheme.num_steps)), scheme


@given(200, case=encoder_cases(), written=st.booleans())
def test_bounds_by_structure_never_fall_below_the_truth(case, written):
    encoder, scheme = case
    C, patterns = encoder.dense(), [tuple(pattern.tolist()) for pattern in scheme.patterns()]
    X = C.T @ C
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_bounds, "IMPROVED", 10**9 if written else 0)
        bounded = structured_bound(encoder, scheme)
    signed = max(largest_signed_sum(X[np.ix_(p, p)]) for p in patterns)
    assert bounded.upper >= signed * (1 - 1e-12)
    vectors = largest_over_patterns(X, patterns)
    assert bounded.upper >= vectors * (1 - SOLVER)
    assert bounded.lower <= vectors * (1 + SOLVER)
    if bounded.exact or (written and scheme.num_patterns < 1000):
        assert_allclose(bounded.upper, vectors, rtol=2 * SOLVER)


@given(60, case=encoder_cases(), data=st.data())
def test_losses_are_those_of_the_same_encoder_written_out(case, data):
    encoder, scheme = case
    model = data.draw(st.sampled_from([trust.LDP(), trust.PNDP([0]), trust.Eavesdropper(), trust.Central()]))
    by_structure, by_array = (
        sensitivity_by_victim(algorithms.mf_dsgd(RING, scheme, C), model, unit="record")
        for C in (encoder, np.tril(encoder.dense()))
    )
    for loss, other in zip(by_structure, by_array, strict=True):
        for name in ("sensitivity_squared", "adaptive_sensitivity_squared"):
            assert_allclose(getattr(loss, name), getattr(other, name), rtol=1e-5)
        assert loss.adaptive == other.adaptive


@pytest.mark.parametrize("kind", STRUCTURED)
def test_noise_on_many_nodes_weighs_the_encoder(kind):
    """DECOR with an encoder: [(F F^T)^+]_uu C^T C, the weight and the encoder apart."""
    scheme, encoder = Cyclic(3, 4), structured_encoder(kind, np.linspace(-1, 1, 8), 12)
    F, holders = np.hstack([np.eye(4), [[1.0], [-1.0], [0.0], [0.0]]]), np.eye(5, 4, dtype=bool)
    holders[4, :2] = True
    built = []
    for C in (encoder, np.tril(encoder.dense())):
        noise = mfdl.noise.SpatioTemporalNoise(C, F, holders, 4)
        algorithm = decentralized("mine", RING, scheme, noise)
        built.append([loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper())])
    assert_allclose(*built, rtol=1e-6)


def long_encoders():
    c = 0.9 ** np.arange(20)
    return {
        "toeplitz": Toeplitz(c, MANY),
        "banded": Banded(np.tri(MANY, 8) * 0.5 ** np.arange(8)),
        "buffered": Buffered([0.3, 0.2], [0.9, 0.99], MANY),
        "inverse": Inverse(Toeplitz([1.0, -0.5], MANY)),
        "inverse banded": Inverse(Banded(np.tri(MANY, 3) * [1.0, -0.5, -0.2])),
    }


@pytest.mark.parametrize("kind", STRUCTURED)
def test_many_steps_are_accounted_for_without_an_array_of_t_by_t(kind):
    encoder = long_encoders()[kind]
    algorithm = algorithms.mf_dsgd(RING, Cyclic(MANY // 100, 100), encoder)
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    first = np.zeros(MANY)
    first[::100] = 1.0
    later = np.roll(first, 50)
    norms = [float((encoder.times(g) ** 2).sum()) for g in (first, later)]  # entries are >= 0: attained
    assert calibrated.noise_std**2 >= max(norms) * (1 - 1e-9)
    assert_allclose(calibrated.noise_std**2, max(norms), rtol=1e-3)
    assert calibrated.guarantee.bound == "exact"


def test_what_takes_an_array_over_too_many_steps_is_refused(monkeypatch):
    monkeypatch.setattr(encoder_arguments, "MAX_DENSE_STEPS", 8)
    monkeypatch.setattr(encoder_bounds, "MAX_DENSE_STEPS", 8)
    inverse = Inverse(Banded(np.tri(12, 3) * [1.0, -0.5, -0.2]))
    for scheme in (MinSeparation(12, 3, 2), OncePerEpoch(3, 4)):
        unsupported("limited to 8 steps, got 12.*use cyclic", structured_bound, inverse, scheme)
        assert structured_bound(Buffered([0.5], [0.5], 12), scheme).upper > 0
    algorithm = algorithms.mf_dsgd(RING, EveryStep(12), inverse)
    with pytest.raises(UnsupportedMechanism, match="array of T x T, which is limited to 8 steps, got 12"):
        algorithm.noise.written  # noqa: B018
    assert sensitivity_by_victim(algorithm, trust.LDP())[0].sensitivity_squared > 12
    unsupported("limited to 8", lambda: sensitivity_by_victim(algorithm, trust.PNDP([0])))


def test_an_encoder_that_float64_cannot_undo_is_no_guarantee():
    """C = 1 + 3 S has an inverse of size 3^T: rounding of the noise outgrows the base noise."""
    algorithm = algorithms.mf_dsgd(RING, EveryStep(60), Toeplitz([1.0, 3.0], 60))
    loss = sensitivity_by_victim(algorithm, trust.LDP())[0]
    assert loss.sensitivity_squared == math.inf
    assert "singular to working precision" in loss.non_adaptive_sensitivity.why


class Units:
    """Base noise that is 1 in coordinate t of step t, so that a stream shows N."""

    def block(self, steps, dim, *, tensor=0):
        return np.eye(dim)[steps][:, None, :]


@pytest.mark.parametrize("apart", [0.0, 2e-6, 1e-5])
@pytest.mark.parametrize("size", [1.0, 5e6, 1e9, 4e12])
def test_buffers_that_cancel_are_no_less_than_the_noise_that_is_streamed(size, apart):
    """Scales of +-size are rounded one by one in each step, however small their sum: exact Gram of what is injected."""
    encoder = Buffered([size, -size * (1 - 1e-7)], [1.0, 1.0 - apart], 24)
    stream = NoiseStream(LocalNoise(encoder, 1), 1.0, lambda columns: Units(), 24)
    C = exact.inverse([[Fraction(x) for x in stream.step(t)[0]] for t in range(24)])
    true = max(sum(row[t] ** 2 for row in C) for t in range(24))
    reported = sensitivity_of_gram(encoder_gram(encoder), Single(24))
    assert reported.squared >= true
    assert reported.lower <= true or math.isinf(reported.squared)
    assert (size > 1) or reported.squared < true * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("model", [trust.PNDP([0]), trust.Central(), trust.Eavesdropper()])
def test_no_view_takes_the_array_of_an_encoder_for_noise_that_rounding_has_changed(model):
    """Buffers of 4e12 that cancel: what is streamed is not C^-1 Z, whoever sees how much of it."""
    encoder = Buffered([4e12, -4e12 * (1 - 1e-12)], [1.0, 1.0], 16)
    losses = sensitivity_by_victim(algorithms.mf_dsgd(RING, Single(16), encoder), model, unit="record")
    seen = [loss for loss in losses if loss.non_adaptive_sensitivity.squared > 0]
    assert seen
    for loss in seen:
        assert loss.sensitivity_squared == loss.adaptive_sensitivity_squared == math.inf
        why = loss.non_adaptive_sensitivity.why
        assert "singular to working precision" in why or "knows" in why


def test_shift_reduction_allows_for_rounding_of_the_noise():
    """Buffers that cancel to about an encoder of 1 and 0.1; the larger they are, the less of their noise is told."""

    def loss(size):
        encoder = Buffered([size, -size + 0.1], [0.5, 0.5], 8)
        algorithm = algorithms.mf_dsgd(RING, Single(8), encoder)
        (of_node,) = sensitivity_by_victim(algorithm, trust.PNDP([0]), lipschitz=1.0, victims=[2])
        return of_node.adaptive_sensitivity_squared

    small, large = loss(1.0), loss(1e11)
    assert small * 1.001 < large < small * 2
    unsupported("singular to working precision", loss, 1e14)


@pytest.mark.parametrize("tiny", [1e170, 1e300])
def test_noise_whose_variance_is_no_number_is_no_guarantee(tiny):
    """C[1, 0] / C[0, 0] = 1e5 is solved in each step, though 1 / C[0, 0]^2 is 0 in float64; no constructor makes it."""
    refuses("scale of C is free", Banded, [[tiny, 0.0], [1e5 * tiny, tiny]], error=ValueError)
    beyond = Banded([[1.0, 0.0], [1e5, 1.0]])
    object.__setattr__(beyond, "bands", tiny * beyond.rows)
    assert encoder_gram(beyond).inflation == math.inf


@pytest.mark.parametrize("kind", STRUCTURED)
def test_files_and_hashes_hold_the_structure(kind, tmp_path):
    encoder = structured_encoder(kind, np.linspace(-1, 0.5, 8), 6)
    algorithm = algorithms.mf_dsgd(RING, Cyclic(2, 3), encoder)
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    calibrated.save(tmp_path / "made.mfdl")
    again = mfdl.Mechanism.load(tmp_path / "made.mfdl")
    assert again.algorithm.content_hash == calibrated.algorithm.content_hash
    assert type(again.algorithm.noise.causal.encoder) is type(encoder)
    assert again.noise_std == calibrated.noise_std
    other = structured_encoder(kind, np.linspace(-1, 0.75, 8), 6)
    assert LocalNoise(other, 4).content() != LocalNoise(encoder, 4).content()


def test_what_is_no_encoder_is_refused():
    class Mine:
        size, memory, keeps_fresh_rows = 3, 0, False

        def advance(self, step, state, fresh):
            return fresh

    refuses("or an encoder with structure, got Mine", lambda: LocalNoise(Mine(), 2))
    refuses("encoder must be over 4", lambda: mfdl.noise.CausalNoise(Toeplitz([1.0], 3), num_steps=4, num_nodes=2))
    refuses("T = 6 steps", lambda: algorithms.mf_dsgd(RING, Cyclic(2, 3), Toeplitz([1.0], 5)))


def test_signs_of_an_inverse_may_all_add_up(monkeypatch):
    """N = 1 + S / 2 has C of alternating signs: gradients that alternate too move as if C were all positive."""
    monkeypatch.setattr(encoder_bounds, "IMPROVED", 0)
    for encoder in (Inverse(Banded(np.tri(6, 2) * [1.0, 0.5])), Inverse(Toeplitz([1.0, 0.5], 6))):
        C = encoder.dense()
        truth = largest_signed_sum(C.T @ C)
        assert truth * (1 - 1e-12) <= structured_bound(encoder, EveryStep(6)).upper <= truth * (1 + 1e-9)


class Louder(Toeplitz):
    """Another C than its coefficients say: twice that, in all products alike."""

    def times(self, x):
        return 2 * super().times(x)

    def solve(self, x):
        return super().solve(x) / 2

    def advance(self, step, state, fresh):
        return super().advance(step, state, fresh / 2)


class Silent(Toeplitz):
    def advance(self, step, state, fresh):
        return 0 * fresh


class Adrift(Toeplitz):
    def solve(self, x):
        return 3 * x

    def times(self, x):
        return x / 3


@dataclasses.dataclass(frozen=True)
class Listed(Toeplitz):
    shares: object = ()


def test_an_encoder_of_ones_own_is_accounted_as_it_streams():
    """What it makes step by step counts, not the coefficients of the class that it was derived from."""
    plain, louder = ([1.0, 0.5], 6), Louder([1.0, 0.5], 6)
    assert structured_bound(louder, Single(6)).upper >= 4 * 1.25
    assert_allclose(structured_bound(louder, Single(6)).upper, 4 * structured_bound(Toeplitz(*plain), Single(6)).upper)
    for other in (Silent, Adrift):
        for encoder in (other(*plain), Inverse(other(*plain))):
            if other is Silent and isinstance(encoder, Inverse):  # its rows are sums of base noise
                continue
            refuses("must stream what it solves for, got rows", LocalNoise, encoder, 2)
    refuses("Listed must be made of arrays, numbers", lambda: LocalNoise(Listed(*plain, shares=[{}, None]), 2))

    class Toeplitz_(Toeplitz):
        pass

    Toeplitz_.__name__ = "Toeplitz"
    assert LocalNoise(Toeplitz_(*plain), 2).content() != LocalNoise(Toeplitz(*plain), 2).content()

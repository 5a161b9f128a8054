"""A scheme of which only the heaviest pattern is known: every bound over its patterns is there, and none is too low."""

import dataclasses

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl import trust
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.factorization.encoders import Toeplitz
from mfdl.factorization.structured_sensitivity import structured_bound
from mfdl.participation import Cyclic, MinSeparation, OncePerEpoch, Participation, PatternSet
from mfdl.sensitivity.patterns import bound, diagonal_bounds
from mfdl.testing import participations
from mfdl.testing.oracles import largest_over_patterns
from mfdl.testing.strategies import ALL_SCHEMES

SOLVER = 2e-6  # relative accuracy of the reference solver
ONE_LAM = 1.5  # what one lam for all patterns may lose on these


@dataclasses.dataclass(frozen=True)
class HeaviestAlone(PatternSet):
    """Of another set, its heaviest pattern and nothing else."""

    known: PatternSet

    def heaviest(self, weights):
        return self.known.heaviest(weights)


@dataclasses.dataclass(frozen=True)
class Mine(Participation):
    """The user's own scheme."""

    known: Participation
    scheme = "mine"

    @property
    def num_steps(self):
        return self.known.num_steps

    def patterns_of_record(self):
        record = self.known.patterns_of_record()
        return HeaviestAlone(record.num_steps, record.uses, record.gap, record)

    def describe(self):
        return f"my {self.known.describe()}"

    def to_dict(self):
        return {"scheme": self.scheme, **self.known.to_dict()}


SCHEMES = participations(max_steps=6, schemes=ALL_SCHEMES)


@examples(20)
@given(scheme=SCHEMES, data=st.data(), method=st.sampled_from(["exact", "certified"]))
def test_arrays_are_bounded_by_the_heaviest_pattern(scheme, data, method):
    T, patterns = scheme.num_steps, [tuple(pattern.tolist()) for pattern in scheme.patterns()]
    C = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=T * T, max_size=T * T))).reshape(T, T)
    truth = largest_over_patterns((C.T @ C).astype(float), patterns)
    found = bound(C.T @ C, Mine(scheme), method)
    assert found.upper >= truth * (1 - SOLVER)
    assert found.lower <= truth * (1 + SOLVER) + SOLVER
    assert scheme.allows(found.pattern)


@examples(30)
@given(scheme=SCHEMES, data=st.data())
def test_diagonals_and_what_is_allowed_need_no_more(scheme, data):
    T = scheme.num_steps
    weights = np.array(data.draw(st.lists(st.floats(0, 9), min_size=T, max_size=T)))[None]
    alone, known = (diagonal_bounds(weights, each, np.zeros((1, T))) for each in (Mine(scheme), scheme))
    assert alone.upper[0] == pytest.approx(known.upper[0], rel=1e-12)
    assert alone.upper[0] >= known.lower[0]
    steps = data.draw(st.lists(st.integers(0, T), max_size=3, unique=True))
    if Mine(scheme).allows(steps):
        assert scheme.allows(steps)


@pytest.mark.parametrize("scheme", [Cyclic(3, 4), MinSeparation(12, 3, 3), OncePerEpoch(3, 4)])
def test_encoders_with_structure_get_the_bound_of_the_array(scheme):
    encoder = Toeplitz(0.7 ** np.arange(12), 12)
    alone, known = (structured_bound(encoder, each) for each in (Mine(scheme), scheme))
    assert known.lower <= alone.upper <= ONE_LAM * known.upper


@pytest.mark.parametrize("scheme", [Cyclic(2, 3), MinSeparation(6, 2, 2)])
def test_it_is_calibrated_and_trained_by_hand_but_not_by_the_executor(scheme):
    ring = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"))
    circumstances = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    mine, known = (
        mfdl.calibrate(mfdl.algorithms.bsr(ring, each, bandwidth=3), **circumstances, mu=1.0)
        for each in (Mine(scheme), scheme)
    )
    assert known.noise_std * (1 - 1e-9) <= mine.noise_std <= ONE_LAM * known.noise_std
    assert mine.algorithm.participation.fed_every is None
    assert mine.algorithm.participation.allows([0, 3])


def test_what_takes_the_patterns_themselves_is_refused():
    mine = Mine(OncePerEpoch(2, 2))
    with pytest.raises(UnsupportedMechanism, match=r"my participation once per epoch.*only the heaviest one is known"):
        mine.patterns()
    with pytest.raises(UnsupportedMechanism, match="not listed"):
        mine.classes()
    with pytest.raises(InvalidInput, match="unit 'user' needs participation in every step"):
        mfdl.calibrate(
            mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4")), mine),
            trust=trust.LDP(),
            adjacency="zero-out",
            clip_norm=1.0,
            mu=1.0,
            unit="user",
        )

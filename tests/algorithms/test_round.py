"""Rounds that share maps: what is not looked at twice is what would have been found."""

import hashlib

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip
from mfdl.algorithms.round import SHAPES, Round, digests, map_digest, with_input_scale

RATES = st.lists(st.sampled_from([0.01, 0.1, 0.25, 0.3]), min_size=1, max_size=4)


def digest_by_definition(matrix: sp.csr_array | None) -> bytes:
    """SHA-256 of shape, rows, columns and entries in row-major order."""
    if matrix is None:
        return bytes(32)
    dense = matrix.toarray()
    rows, columns = np.nonzero(dense)
    parts = (rows.astype(np.int64), columns.astype(np.int64), dense[rows, columns])
    return hashlib.sha256(repr(matrix.shape).encode() + b"".join(part.tobytes() for part in parts)).digest()


@given(rates=RATES, momentum=st.sampled_from([0.0, 0.5]), decay=st.sampled_from([0.0, 0.1]), rounds=st.integers(1, 2))
def test_rounds_of_other_rates_are_those_built_alone(
    rates: list[float], momentum: float, decay: float, rounds: int
) -> None:
    settings = {"momentum": momentum, "weight_decay": decay, "gossip_rounds": rounds}
    averaging, divisors, T = gossip.metropolis_hastings("path:n=3"), [1.0, 2.0, 5.0], len(rates)
    together = algorithms.dp_dsgd(Dynamics(averaging, learning_rate=rates, **settings), EveryStep(T))
    digest = digests()
    for algorithm in (together, together.with_divisors(divisors)):
        for t, rate in enumerate(rates):
            alone = algorithms.dp_dsgd(Dynamics(averaging, learning_rate=rate, **settings), EveryStep(1))
            alone = alone.with_divisors(algorithm.divisors)
            for j in range(rounds):
                for name in SHAPES:
                    matrix = getattr(algorithm.rounds[t * rounds + j], name)
                    assert digest(matrix) == digest_by_definition(getattr(alone.rounds[j], name))
        assert not any(part.flags.writeable for kind in algorithm.kinds for m in kind.maps() for part in parts_of(m))


def parts_of(matrix: sp.csr_array) -> tuple[np.ndarray, ...]:
    return matrix.data, matrix.indices, matrix.indptr


@pytest.mark.parametrize("part", ["data", "indices"])
def test_a_changed_map_changes_every_hash_that_is_asked_for_later(part: str) -> None:
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"), learning_rate=[0.1, 0.2, 0.3, 0.4])
    algorithm = algorithms.dp_dsgd(dynamics, Cyclic(2, 2))
    before = algorithm.content_hash
    shared = algorithm.kinds[-1].state_from_message
    assert shared is algorithm.kinds[0].state_from_message
    array = getattr(shared, part)
    array.setflags(write=True)
    array[:] = array[::-1].copy() + (part == "data")
    assert algorithm.content_hash != before


def test_scaled_maps_are_shared_and_lose_no_place() -> None:
    eye = sp.eye_array(3)
    rounds = [Round(eye, -rate * eye, -rate * eye, eye, None, eye, eye) for rate in (0.5, 0.25)]
    rounds[1] = rounds[0].with_maps(message_from_gradient=rounds[1].message_from_gradient)
    first, second = with_input_scale(rounds, np.array([1.0, 0.5, 0.25]), None)
    assert first.state_from_gradient is second.state_from_gradient
    assert first.message_from_noise is rounds[0].message_from_noise
    assert second.message_from_gradient.toarray().tolist() == np.diag([-0.25, -0.125, -0.0625]).tolist()
    assert map_digest(first.state_from_gradient) == digest_by_definition(sp.csr_array(np.diag([1.0, 0.5, 0.25])))


def test_other_maps_must_fit_those_that_stay() -> None:
    exchange = Round(sp.eye_array(3), None, None, sp.eye_array(3))
    refuses("message_from_gradient must have", exchange.with_maps, message_from_gradient=sp.csr_array(np.ones((2, 3))))
    refuses("message_from_gradient", exchange.with_maps, message_from_gradient=sp.csr_array(np.full((3, 3), np.nan)))
    assert exchange.with_maps(message_from_state=sp.csr_array((3, 3))).message_from_state is None

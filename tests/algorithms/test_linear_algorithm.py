"""Derived operators of every builder against definitions; flow and shared maps against exact ranks."""

import dataclasses
import hashlib

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, given, refuses, st

from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip
from mfdl.algorithms.round import SHAPES, Round, digests
from mfdl.algorithms.workloads import flow
from mfdl.factorization import square_root_encoder
from mfdl.participation import Single
from mfdl.testing import build_algorithm, linear_algorithms, oracles, random_encoder, user_algorithms
from mfdl.testing.oracles import dense_averaged_workload, dense_gossip_workload, dense_noising

PART = Cyclic(epochs=2, period=3)
STAR, RING = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
CONSTANT, VARYING = STAR, gossip.sequence([STAR, RING, RING, STAR, RING])
# Sums of at most T n = 24 products of numbers of size 10: rounding stays below 1e-13.
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


def algorithm(name, W=CONSTANT, learning_rate=0.3, participation=PART, seed=0):
    return build_algorithm(name, Dynamics(W, learning_rate), participation, seed)


def shifted(averaged, T, n):
    """Models theta_0 .. theta_{T-1} from theta_1 .. theta_T: start models are removed, so theta_0 is zero."""
    return np.concatenate([np.zeros((n, averaged.shape[1])), averaged[: (T - 1) * n]])


def check_operators(algorithm):
    T, n, eta = algorithm.num_steps, algorithm.num_nodes, algorithm.dynamics.learning_rate
    W_T, averaged = (
        dense_gossip_workload(algorithm.dynamics.gossip, T),
        dense_averaged_workload(algorithm.dynamics.gossip, T),
    )
    N = dense_noising(algorithm)
    D = np.diag(np.tile(1 / algorithm.divisors, T))
    expected = {
        algorithm.messages_from_gradients: -eta * W_T @ D,
        algorithm.messages_from_injected_noise: -eta * W_T @ D,
        algorithm.messages_from_noise: -eta * W_T @ D @ N,
        algorithm.models_from_gradients(): -eta * shifted(averaged, T, n) @ D,
        algorithm.models_from_gradients(final=True): -eta * averaged[-n:] @ D,
        algorithm.models_from_noise(): -eta * shifted(averaged, T, n) @ D @ N,
        algorithm.models_from_noise(final=True): -eta * averaged[-n:] @ D @ N,
    }
    rng = np.random.default_rng(0)
    for operator, dense in expected.items():
        assert operator.shape == dense.shape
        x, y = rng.standard_normal((dense.shape[1], 2)), rng.standard_normal((dense.shape[0], 2))
        assert_allclose(operator.matmat(x), dense @ x, **CLOSE)
        assert_allclose(operator.rmatmat(y), dense.T @ y, **CLOSE)
        assert_allclose(operator.matvec(x[:, 0]), dense @ x[:, 0], **CLOSE)
        assert_allclose(operator.rmatvec(y[:, 0]), dense.T @ y[:, 0], **CLOSE)
        assert_allclose((operator.T @ y), dense.T @ y, **CLOSE)


@given(60, algorithm=linear_algorithms(), data=st.data())
def test_operators_on_any_gossip(algorithm, data):
    check_operators(algorithm)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=algorithm.num_nodes, max_size=algorithm.num_nodes))
    check_operators(algorithm.with_divisors(sizes))


def test_the_noise_of_each_builder_is_the_one_of_its_paper():
    T, n = PART.num_steps, 4
    difference = np.eye(T) - np.eye(T, k=-1)
    assert_allclose(dense_noising(algorithm("anti-pgd")), np.kron(difference, np.eye(n)), atol=1e-15)
    assert_allclose(algorithm("dp-dsgd").noise @ np.eye(T * n), np.eye(T * n))
    assert algorithm("none").noise.shape == (T * n, 0)
    bsr = algorithm("bsr").noise.encoder.dense()
    assert_allclose(bsr[:, 0], [1, 0.5, 0.375, 0, 0, 0])  # a band as wide as the period
    assert not np.triu(bsr, 1).any()
    full = square_root_encoder(T)
    assert_allclose(full @ full, np.tri(T), atol=1e-15)  # a square root of the prefix sum
    for name in ("d-mf", "mafalda"):
        assert algorithm(name).noise.shared
        assert algorithm(name).factorization.gap <= 1e-4
    local = algorithm("mafalda-l")
    assert not local.noise.shared
    assert_allclose(local.noise.column_encoder(1), local.noise.column_encoder(2))  # leaves of a star are alike
    assert np.abs(local.noise.column_encoder(0) - local.noise.column_encoder(1)).max() > 1e-3


def test_divisors_replace_each_other_and_scale_gradients_and_noise_alike():
    built = algorithm("mf-per-node", VARYING)
    m = np.array([1.0, 2.0, 4.0, 8.0])
    once, twice = built.with_divisors(m), built.with_divisors([3, 3, 3, 3]).with_divisors(m)
    assert_allclose(once.messages_from_noise @ np.eye(24), twice.messages_from_noise @ np.eye(24), rtol=1e-14)
    assert_allclose(twice.divisors, m)
    assert built.divisors.tolist() == [1, 1, 1, 1]
    assert_allclose(
        once.messages_from_gradients.to_dense(), built.messages_from_gradients.to_dense() / np.tile(m, 6), rtol=1e-14
    )
    assert len(once.kinds) == len(built.kinds) == 2


# ---- content hash -----------------------------------------------------------------------------------------
def variants():
    """Pairwise different in something that decides messages, or who is in which of them."""
    C = random_encoder(np.random.default_rng(0), 6)
    other = C.copy()
    other[5, 0] = np.nextafter(other[5, 0], np.inf)
    C_u = random_encoder(np.random.default_rng(1), 6, 4)
    dyn = Dynamics(STAR, 0.3)
    weights = STAR.dense()
    weights[0, 0], weights[0, 1] = weights[0, 0] - 1e-12, weights[0, 1] + 1e-12
    nudged = gossip.from_array(weights)
    yield "mf", algorithms.mf_dsgd(dyn, PART, C)
    yield "one entry of the encoder", algorithms.mf_dsgd(dyn, PART, other)
    yield "encoder per node", algorithms.mf_dsgd(dyn, PART, C_u)
    yield "encoders of two nodes swapped", algorithms.mf_dsgd(dyn, PART, C_u[[1, 0, 2, 3]])
    yield "learning rate", algorithms.mf_dsgd(Dynamics(STAR, 0.30000000000000004), PART, C)
    yield "one weight", algorithms.mf_dsgd(Dynamics(nudged, 0.3), PART, C)
    yield "divisors", algorithms.mf_dsgd(dyn, PART, C).with_divisors([1, 1, 1, 2])
    yield "period", algorithms.mf_dsgd(dyn, Cyclic(3, 2), C)
    yield "scheme", algorithms.mf_dsgd(dyn, Single(6), C)
    yield "steps", algorithms.mf_dsgd(dyn, Cyclic(2, 2), C[:4, :4])
    yield "nodes", algorithms.mf_dsgd(Dynamics(gossip.uniform("star:n=5"), 0.3), PART, C)
    yield "independent", algorithm("dp-dsgd")
    yield "none", algorithm("none")
    for order in ("AABAAA", "ABAAAA", "ABBBBB", "BAAAAA", "ABABAB", "BABABA", "BBBBBB"):
        W = gossip.sequence([STAR if letter == "A" else RING for letter in order])
        yield f"rounds {order}", algorithms.mf_dsgd(Dynamics(W, 0.3), PART, C)
    base = algorithms.mf_dsgd(dyn, PART, C)
    half = sp.csr_array(0.5 * sp.eye_array(4))
    for name in ("message_from_noise", "message_from_gradient", "state_from_state", "state_from_gradient"):
        rounds = [dataclasses.replace(kind, **{name: half}) for kind in base.rounds]
        yield f"{name} alone", dataclasses.replace(base, rounds=rounds)
    yield "model map", dataclasses.replace(base, model_from_state=half)


def test_the_content_hash_differs_whenever_anything_that_matters_does():
    name_by_hash = {}
    for name, algorithm in variants():
        assert algorithm.content_hash not in name_by_hash, (
            f"{name!r} has the hash of {name_by_hash.get(algorithm.content_hash)!r}"
        )
        name_by_hash[algorithm.content_hash] = name


def test_the_content_hash_follows_from_content_alone():
    again = {name: algorithm.content_hash for name, algorithm in variants()}
    assert again == {name: algorithm.content_hash for name, algorithm in variants()}
    C = random_encoder(np.random.default_rng(0), 6)
    copies = gossip.sequence([gossip.from_array(STAR.dense()) for _ in range(3)])  # equal, not identical
    varying = algorithms.mf_dsgd(Dynamics(copies, 0.3), PART, C)
    assert varying.content_hash == algorithms.mf_dsgd(Dynamics(STAR, 0.3), PART, C).content_hash


PATH = dynamics_on("path:n=3")


def masks_of(algorithm, rng):
    seen = rng.random((len(algorithm.rounds), algorithm.messages_per_round)) < 0.8
    gradients = rng.random((algorithm.num_steps, algorithm.num_nodes)) < 0.3
    parts = rng.random((algorithm.num_steps, algorithm.noise.columns_per_step)) < 0.3
    return seen, gradients, parts


@given(150, user_algorithms(), st.integers(0, 2**32 - 1))
def test_what_is_called_known_is_a_combination_of_what_is_seen(algorithm, seed):
    """Models before a step of what came earlier; final models and injected sums of everything. Never the other way."""
    seen, gradients, parts = masks_of(algorithm, np.random.default_rng(seed))
    verdict = flow(algorithm, seen, gradients, parts)
    run = oracles.exact_run(algorithm)
    hidden = np.flatnonzero(np.concatenate([~gradients.ravel(), ~parts.ravel()]))

    def rows(table):
        return [[row[i] for i in hidden] for row in table]

    def spanned(table, by):
        return oracles.rank([*by, *table]) == oracles.rank(by) if by else not any(any(row) for row in table)

    earlier: list = []
    for r, step in enumerate(algorithm.step_of_round):
        if step >= 0 and verdict.models:
            assert spanned(rows(run.models[step]), earlier)
        earlier += rows([row for row, mask in zip(run.messages[r], seen[r], strict=True) if mask])
    if verdict.final_models:
        assert spanned(rows(run.final), earlier)
    if verdict.injections:
        N = oracles.rational(algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])))
        injected = [[int(i == j) for j in range(algorithm.axis.size)] + N[i] for i in range(algorithm.axis.size)]
        assert spanned(rows(injected), earlier)


@given(60, user_algorithms(), st.integers(0, 2**32 - 1))
def test_who_sees_more_knows_more(algorithm, seed):
    rng = np.random.default_rng(seed)
    seen, gradients, parts = masks_of(algorithm, rng)
    less, more = flow(algorithm, seen, gradients, parts), flow(algorithm, seen | True, gradients, parts)
    for field in ("models", "final_models", "injections"):
        assert getattr(less, field) <= getattr(more, field)
    assert (more.hidden_states <= less.hidden_states).all()
    assert (more.hidden_messages <= less.hidden_messages).all()


def test_every_mechanism_shows_its_injections_to_who_sees_all():
    for build in (
        algorithms.dp_dsgd,
        algorithms.gradient_tracking,
        algorithms.exact_diffusion,
        algorithms.delayed_dsgd,
        algorithms.muffliato,
    ):
        algorithm = build(PATH, EveryStep(4))
        assert algorithm.sent_flow.injections
        assert algorithm.sent_flow.models
        assert algorithm.divisors_cancel
    hidden = algorithms.local_steps(PATH, EveryStep(4))  # which sends every second sum only
    assert not hidden.sent_flow.injections
    assert not hidden.sent_flow.models
    assert not algorithms.zip_dl(PATH, EveryStep(2)).sent_flow.injections


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
    dynamics = dynamics_on("ring:n=4", learning_rate=[0.1, 0.2, 0.3, 0.4])
    algorithm = algorithms.dp_dsgd(dynamics, Cyclic(2, 2))
    before = algorithm.content_hash
    shared = algorithm.kinds[-1].state_from_message
    assert shared is algorithm.kinds[0].state_from_message
    array = getattr(shared, part)
    array.setflags(write=True)
    array[:] = array[::-1].copy() + (part == "data")
    assert algorithm.content_hash != before


def test_other_maps_must_fit_those_that_stay() -> None:
    exchange = Round(sp.eye_array(3), None, None, sp.eye_array(3))
    refuses("message_from_gradient must have", exchange.with_maps, message_from_gradient=sp.csr_array(np.ones((2, 3))))
    refuses("message_from_gradient", exchange.with_maps, message_from_gradient=sp.csr_array(np.full((3, 3), np.nan)))
    assert exchange.with_maps(message_from_state=sp.csr_array((3, 3))).message_from_state is None

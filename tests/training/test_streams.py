"""Noise streams: nodes make from their own secrets what the simulator injects, in pieces where vectors are long."""

import doctest
import itertools
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from noises import STRUCTURED, OwnNoise, cases, example, philox_key, structured_encoder
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import dynamics_on, each, given, refuses, st

from mfdl import Cyclic, Dynamics, NoiseKey, algorithms, gossip, node_covariances
from mfdl.factorization.encoders import Inverse, Toeplitz
from mfdl.noise import IndependentNoise, LocalNoise, StepNoise, ZeroNoise
from mfdl.noise import stream as streams
from mfdl.testing import gossip_matrices, random_encoder
from mfdl.training.column_generators import SHARDS
from mfdl.training.keys import ColumnNormals, normals
from mfdl.training.shared_randomness import HolderKeys, NodeIdentity, agree, columns_by_holders
from mfdl.training.streams import ShardedNoise, node_noise, node_stream, noise_stream

ROOT = NoiseKey.from_seed(4)
NU = 1.7
STAR = gossip.metropolis_hastings("star:n=4")


def deployment(noise, root=ROOT):
    """One HolderKeys per node, with nothing in it but the secrets of the sets that the node belongs to."""
    simulated = HolderKeys.simulated(root)
    sets = columns_by_holders(noise)
    return [HolderKeys.given({s: simulated.key_for(s) for s in sets if u in s}) for u in range(noise.num_nodes)]


def stacked(noise, views, dim, step, slots_of=None):
    out = np.full((noise.slots_per_step, dim), np.nan)
    for u, view in enumerate(views):
        slots = [u] if slots_of is None else slots_of[u]
        out[slots] = node_noise(noise, u, view, NU, step, dim, slots=None if slots_of is None else slots)
    return out


@st.composite
def shared_noises(draw):
    """DECOR, seed groups and Zip-DL on any symmetric graph, with the slots of each node."""
    W = draw(gossip_matrices(max_nodes=5))
    n = W.num_nodes
    dynamics, part = Dynamics(W), Cyclic(1, draw(st.integers(1, 3)))
    kind = draw(st.sampled_from(["decor", "groups", "zip-dl"]))
    if kind == "zip-dl" and W.is_symmetric and (W.weights.diagonal() != 0).all():
        algorithm = algorithms.zip_dl(dynamics, part)
        return algorithm.noise, [np.flatnonzero(algorithm.message_sender == u) for u in range(n)]
    if kind == "groups":
        groups = draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=1, max_size=4))
        roots = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((len(groups), n, n))
        for A, group in zip(roots, groups, strict=True):
            A[[u for u in range(n) if u not in group]] = 0
        covariances, members = roots @ roots.transpose(0, 2, 1), [sorted(group) for group in groups]
        return algorithms.spatial_covariance(dynamics, part, covariances, groups=members).noise, None
    return algorithms.decor(dynamics, part, sigma_ldp=0.3, sigma_cor=2.1).noise, None


@given(60, case=shared_noises(), dim=st.integers(1, 9))
def test_nodes_make_together_what_the_simulator_injects_bit_for_bit(case, dim):
    noise, slots_of = case
    stream, views = noise_stream(noise, NU, ROOT, dim), deployment(noise)
    for t in range(noise.num_steps):
        assert_array_equal(stacked(noise, views, dim, t, slots_of), stream.step(t))


@given(120, case=cases(), dim=st.integers(1, 9))
def test_nodes_make_together_what_the_simulator_injects(case, dim):
    """Bit for bit where noise is fresh; else up to rounding: a product sums in an order that depends on its size."""
    noise, _ = case
    if noise.slots_per_step != noise.num_nodes:
        return
    stream, views = noise_stream(noise, NU, ROOT, dim), deployment(noise)
    for t in range(noise.num_steps):
        close = {"rtol": 0, "atol": 0} if noise.fresh else {"rtol": 1e-10, "atol": 1e-9}
        assert_allclose(stacked(noise, views, dim, t), stream.step(t), **close)


def test_a_whole_deployment_that_agreed_on_its_keys():
    """No root anywhere: each node has its identity and what came over the wire; pairwise noise cancels."""
    algorithm = algorithms.decor(Dynamics(STAR), Cyclic(1, 3), sigma_ldp=0.5, sigma_cor=2.0)
    views = agree([NodeIdentity.generate() for _ in range(4)], columns_by_holders(algorithm.noise), run_id="run 1")
    node_keys = [view.key_for({u}) for u, view in enumerate(views)]
    sets = columns_by_holders(algorithm.noise)
    secrets = {s: view.key_for(s) for u, view in enumerate(views) for s in sets if u in s}
    for t in range(3):
        total = stacked(algorithm.noise, views, 7, t).sum(axis=0)
        local = NU * 0.5 * sum(normals(key, t, [0], 7)[0] for key in node_keys)
        assert_allclose(total, local, rtol=0, atol=1e-13 * NU * 2 * 20)
        simulator = noise_stream(algorithm.noise, NU, HolderKeys.given(secrets), 7)
        assert_array_equal(simulator.step(t), stacked(algorithm.noise, views, 7, t))


def test_both_ends_of_an_edge_add_exactly_opposite_noise():
    """Bit for bit, so that an edge sums to exactly zero whatever its scale; edges of a node are added one by one."""
    incidence = node_covariances.incidence("star:n=4")
    for edge in range(3):
        F = sp.csr_array(incidence[:, [edge]] * 2.1)
        noise = StepNoise(F, sp.csr_array((incidence[:, [edge]] != 0).T), 3, 4)
        views = deployment(noise)
        for t in range(3):
            rows = stacked(noise, views, 50, t)
            first, second = np.flatnonzero(F.toarray().ravel())
            assert (rows[first] + rows[second] == 0).all()
            assert (rows[first] != 0).all()
            assert not np.delete(rows, [first, second], axis=0).any()


def test_a_missing_secret_is_named():
    algorithm = algorithms.decor(Dynamics(STAR), Cyclic(1, 2))
    centre = HolderKeys.simulated(ROOT)
    secrets = {(0,): centre.key_for({0}), (0, 1): centre.key_for({0, 1}), (0, 3): centre.key_for({0, 3})}
    refuses(r"the secret of \{0, 2\}", lambda: node_noise(algorithm.noise, 0, HolderKeys.given(secrets), NU, 0, 3))
    refuses(r"the secret of \{1\}", lambda: node_noise(IndependentNoise(2, 3), 1, HolderKeys.given(secrets), NU, 0, 3))
    refuses("the secret", lambda: node_noise(LocalNoise(np.eye(2), 3), 2, HolderKeys.given(secrets), NU, 0, 3))
    refuses(r"secret of \{1, 2\}", lambda: node_noise(OwnNoise(4, 5), 1, HolderKeys.given({(0, 1): ROOT}), NU, 0, 6))


def test_noise_that_a_node_cannot_make_is_refused_even_with_all_keys():
    noise = StepNoise(np.ones((4, 1)), np.array([[1, 1, 0]], dtype=bool), 2, 3)  # slots are messages here
    for u in (0, 1):
        assert node_noise(noise, u, HolderKeys.simulated(ROOT), NU, 0, 2, slots=[u]).shape == (1, 2)
    refuses("node 2 needs the secret", lambda: node_noise(noise, 2, HolderKeys.simulated(ROOT), NU, 0, 2, slots=[2]))


def test_a_stream_is_its_steps_and_ends_with_the_mechanism():
    noise = LocalNoise(random_encoder(np.random.default_rng(0), 40, 3), 3)
    stream = node_stream(noise, 1, HolderKeys.simulated(ROOT), NU, 4)
    for t in (39, 0, 31, 32, 5):
        assert_array_equal(stream.step(t), node_noise(noise, 1, HolderKeys.simulated(ROOT), NU, t, 4))
    refuses(r"step must lie in \[0, 40\), got 40", stream.step, 40)


@pytest.mark.parametrize("noise", [IndependentNoise(2, 3), LocalNoise(np.tri(2), 3), OwnNoise(2, 3)])
def test_tensors_do_not_share_noise(noise):
    streams = [node_noise(noise, 1, HolderKeys.simulated(ROOT), NU, 0, 50, tensor=i) for i in range(3)]
    assert len(np.unique(np.abs(streams))) == 150
    assert_array_equal(streams[2], noise_stream(noise, NU, ROOT, 50, tensor=2).step(0)[[1]])


@pytest.mark.parametrize("noise", [ZeroNoise(2, 3), IndependentNoise(2, 3), OwnNoise(2, 3)])
def test_without_noise_no_secret_is_needed(noise):
    std = NU if noise.is_zero else 0.0
    assert_array_equal(node_noise(noise, 2, HolderKeys.given({}), std, 1, 4), np.zeros((1, 4)))


@each(
    "node, slots, message",
    (3, None, "node must be below the number of nodes, 3, got 3"),
    (-1, None, "node must be an integer >= 0"),
    (0, [3], r"slots must be distinct and below 3, got \[3\]"),
    (0, [0, 0], "slots must be distinct"),
    (0, [1], r"node 0 needs the secret of \{1\}"),
)
def test_refusals(node, slots, message):
    refuses(message, node_noise, IndependentNoise(2, 3), node, HolderKeys.simulated(ROOT), NU, 0, 2, slots=slots)


def test_noise_on_messages_needs_slots():
    noise = algorithms.zip_dl(Dynamics(STAR), Cyclic(1, 2)).noise
    refuses("10 slots per step for 4 nodes; pass", lambda: node_noise(noise, 0, HolderKeys.simulated(ROOT), NU, 0, 2))
    assert node_noise(noise, 0, HolderKeys.simulated(ROOT), NU, 0, 2, slots=[]).shape == (0, 2)


def test_the_page_about_it_runs_and_prints_what_it_shows():
    page = (Path(__file__).parents[2] / "docs" / "shared_randomness.md").read_text(encoding="utf-8")
    code = page.split("```pycon\n")[1].split("```")[0]
    test = doctest.DocTestParser().get_doctest(code, {}, "page", None, 0)
    printed = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=printed.append).failed == 0, "".join(printed)
    assert len(test.examples) == 11


KEY = NoiseKey.from_seed(5)


def whole(pieces, t):
    return np.concatenate([noise for _, noise in pieces.step(t)], axis=1)


@given(
    60, kind=st.sampled_from(["independent", "shared", "kronecker", *STRUCTURED]), dim=st.integers(1, 9),
    size=st.integers(1, 5), order=st.lists(st.integers(0, 6), min_size=1, max_size=6),
)  # fmt: skip
def test_pieces_are_streams_of_their_own_in_any_order(kind, dim, size, order):
    noise = example(kind, 7)
    first, other = (ShardedNoise(noise, 2.0, KEY, dim, size=size) for _ in range(2))
    forward = np.stack([whole(first, t) for t in range(7)])
    for t in order:
        assert_array_equal(whole(other, t), forward[t])
    for shard, piece in reversed(list(enumerate(other.pieces))):
        alone = noise_stream(noise, 2.0, KEY, piece.stop - piece.start, shard=shard)
        for t in order:
            assert_array_equal(alone.step(t), forward[t][:, piece])
    if dim <= size:  # not cut: what it always was
        assert_array_equal(forward[0], noise_stream(noise, 2.0, KEY, dim).step(0))


@pytest.mark.parametrize("kind", ["independent", "shared", *STRUCTURED])
def test_no_normal_is_in_two_pieces_tensors_or_steps(kind):
    """Of a fresh noise each number is a normal; of another, the normals of all pieces tell its numbers."""
    fresh = IndependentNoise(6, 3)
    rows = [whole(ShardedNoise(fresh, 1.0, KEY, 40, size=16, tensor=tensor), t) for tensor in (0, 1) for t in range(6)]
    values = np.abs(np.concatenate([part.ravel() for part in rows]))
    assert np.unique(values).size == values.size == 2 * 6 * 3 * 40
    coefficients = np.linspace(-0.5, 0.5, 8)
    local = kind in STRUCTURED
    noise = LocalNoise(structured_encoder(kind, coefficients, 6), 3) if local else example(kind, 6)
    normals = np.stack([whole(ShardedNoise(fresh, 1.0, KEY, 40, size=16), t) for t in range(6)])
    wanted = (noise.to_dense() @ normals.reshape(18, 40)).reshape(6, 3, 40)
    pieces = ShardedNoise(noise, 1.0, KEY, 40, size=16)
    assert_allclose(np.stack([whole(pieces, t) for t in range(6)]), wanted, rtol=1e-9, atol=1e-9)


def test_blocks_of_shards_are_far_apart():
    """The words of the documented counter: shard s of (key, index, step) begins after block 2^40 s."""
    for shard in (0, 1, SHARDS - 1):
        normals = ColumnNormals([KEY], [3], shard=shard).block([7], 5)[0, 0]
        hashed = np.frombuffer(philox_key(KEY.reveal_secret()), dtype="<u8")
        philox = np.random.Philox(key=hashed, counter=[shard << 40, 1, 3, 7])
        assert_array_equal(normals, np.random.Generator(philox).standard_normal(5))
    refuses(f"shard must be below {SHARDS}, got {SHARDS}", ColumnNormals, [KEY], [0], shard=SHARDS)
    refuses("size must be at least 2 ", lambda: ShardedNoise(IndependentNoise(2, 1), 1.0, KEY, SHARDS + 1, size=1))


def test_a_long_vector_takes_the_memory_of_a_piece(monkeypatch):
    """2,000,000 coordinates in pieces of 50,000, fresh or made again from counters: a few rows of a piece."""
    monkeypatch.setattr(streams, "KEEP_BYTES", 0)
    dim, size = 2_000_000, 50_000
    for noise in (IndependentNoise(40, 1), LocalNoise(Inverse(Toeplitz([1.0, -0.5, -0.1], 40)), 1)):
        pieces = ShardedNoise(noise, 1.0, KEY, dim, size=size)
        tracemalloc.start()
        largest = max(float(np.abs(part).max()) for _, part in itertools.islice(pieces.step(20), 40))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * 8 * size + 2**18
        assert 4 < largest < 8


PAIRWISE_KEY = NoiseKey.from_seed(21)
T, D = 3, 20_000  # coordinates are samples
PART = Cyclic(1, T)


RING, LOCAL, PAIR, STEPS, DELTA = "ring:n=16", 22.97, 94.0, 3500, 1e-5


def epsilon(loss):
    """(epsilon, DELTA) of the Renyi slope rho = (2 C)^2 loss / 2 at C = 1: rho + 2 sqrt(rho log(1 / DELTA))."""
    rho = 2 * loss
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def reused_covariance(steps, L):
    """sigma_ldp^2 I + sigma_cor^2 (11^T over time) (x) L."""
    return LOCAL**2 * np.eye(steps * len(L)) + PAIR**2 * np.kron(np.ones((steps, steps)), L)


@pytest.mark.parametrize("steps", [2, 4, 6])
def test_reused_pairwise_noise_protects_no_alternating_difference(steps):
    """By trying all signs of one record's gradient: the worst loss is steps / sigma_ldp^2, as without pairs at all.

    It is no larger either: the reused covariance is at least sigma_ldp^2 I, so its inverse at most 1 / sigma_ldp^2.
    """
    L = node_covariances.laplacian(RING).toarray()
    gram = np.linalg.inv(reused_covariance(steps, L))[::16, ::16]  # rows of node 0; all nodes of a ring are alike
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=steps)))
    losses = np.einsum("ks,st,kt->k", signs, gram, signs)
    assert (losses.max(), signs[losses.argmax()].sum()) == (pytest.approx(steps / LOCAL**2, rel=1e-9), 0)
    fresh_loss = steps * node_covariances.inverse_diagonal(node_covariances.decor_covariance(L, LOCAL, PAIR))
    assert losses.max() / fresh_loss == pytest.approx(7.9, abs=0.05)
    assert losses[-1] < fresh_loss  # a constant gradient is hidden better: all is lost in what changes over time


def test_the_published_setting_claims_10_46_and_has_37_99():
    """Ring of 16, 3500 steps (an even number, so that an alternating difference sums to zero), clip norm 1."""
    covariance = node_covariances.decor_covariance(node_covariances.laplacian(RING), LOCAL, PAIR)
    claimed, true = STEPS * node_covariances.inverse_diagonal(covariance), STEPS / LOCAL**2
    assert true / claimed == pytest.approx(7.9, abs=0.05)
    assert epsilon(claimed) == pytest.approx(10.46, abs=0.01)
    assert epsilon(true) == pytest.approx(37.99, abs=0.01)


def test_in_samples_reuse_takes_pairwise_noise_out_of_differences_over_time():
    """Variance of noise_0 - noise_1 at a node: 2 (sigma_ldp^2 + 2 sigma_cor^2) fresh, 2 sigma_ldp^2 reused."""
    algorithm = algorithms.decor(dynamics_on(RING), PART, sigma_ldp=LOCAL, sigma_cor=PAIR)
    private = StepNoise(LOCAL * np.eye(16), np.eye(16, dtype=bool), T, 16)
    incidence = node_covariances.incidence(RING)
    pairs = StepNoise(PAIR * incidence, (incidence.T != 0).tocsr(), T, 16)
    keys = HolderKeys.simulated(PAIRWISE_KEY)
    private_stream, shared, stream = (noise_stream(noise, 1.0, keys, D) for noise in (private, pairs, algorithm.noise))
    spread = 6 * math.sqrt(2 / D)  # of a relative variance
    fresh_difference = (stream.step(0) - stream.step(1)).var(axis=1)
    assert_allclose(fresh_difference, 2 * (LOCAL**2 + 2 * PAIR**2), rtol=spread)
    reused_difference = (private_stream.step(0) + shared.step(0) - private_stream.step(1) - shared.step(0)).var(axis=1)
    assert_allclose(reused_difference, 2 * LOCAL**2, rtol=spread)
    assert_allclose(stream.step(0), private_stream.step(0) + shared.step(0), atol=1e-10)

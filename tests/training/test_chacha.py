"""Noise of secret keys: the cipher against RFC 8439, the transform against mpmath, and no keystream twice."""

import itertools
import math
import struct

import mpmath
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from small_tasks import module_at, regression, squared
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st

import mfdl
from mfdl.training import column_generators
from mfdl.training.column_generators import SHARDS, ChaChaColumns, keystream, prf
from mfdl.training.keys import ColumnNormals, NoiseKey, normals, normals_block, words

KEY = NoiseKey(bytes(range(32)))
WORD = st.integers(0, 2**64 - 1)


def quarter(state, a, b, c, d):
    for left, right, mixed, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[left] = (state[left] + state[right]) % 2**32
        state[mixed] ^= state[left]
        state[mixed] = (state[mixed] << turn | state[mixed] >> 32 - turn) % 2**32


def block_of_rfc(key, counter, nonce):
    """RFC 8439, section 2.3, word by word."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    state = [*start]
    for _ in range(10):
        for column in range(4):
            quarter(state, column, column + 4, column + 8, column + 12)
        for column in range(4):
            quarter(state, column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return struct.pack("<16I", *((x + y) % 2**32 for x, y in zip(start, state, strict=True)))


def keystream_bytes(key, step, shard, count):
    out = np.empty(count, dtype="<u8")
    keystream(key, step, shard, out)
    return out.tobytes()


ZERO_BLOCKS = (  # RFC 8439, appendix A.1, test vectors 1 and 2
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc3"
    "87b669b2ee65869f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed29b721769ce64e43d57133b074d839d531ed"
    "1f28510afb45ace10a1f4b794d6f"
)
SUNSCREEN = (  # section 2.4.2, nonce 00 00 00 00 00 00 00 4a 00 00 00 00, from block 1
    "224f51f3401bd9e12fde276fb8631ded8c131f823d2c06e27e4fcaec9ef3cf788a3b0aa372600a92b57974cded2b9334794cba40c63e34cdea"
    "212c4cf07d41b769a6749f3f630f4122cafe28ec4dc47e26d4346d70b98c73f3e9c53ac40c5945398b6eda1a832c89c167eacd901d7e2bf363"
)


def test_vectors_of_rfc_8439():
    assert keystream_bytes(bytes(32), 0, 0, 16).hex() == ZERO_BLOCKS
    sunscreen = keystream_bytes(bytes(range(32)), 0x4A << 56, 0, 24)[64:]
    assert sunscreen.hex().startswith(SUNSCREEN)
    assert block_of_rfc(bytes(range(32)), 1, bytes([0] * 7 + [0x4A] + [0] * 4)) == sunscreen[:64]


@given(
    40, key=st.binary(min_size=32, max_size=32), step=WORD, shard=st.integers(0, SHARDS - 1), count=st.integers(1, 20)
)
def test_the_keystream_is_that_of_the_documented_nonce(key, step, shard, count):
    nonce = step.to_bytes(8, "little") + shard.to_bytes(4, "little")
    blocks = b"".join(block_of_rfc(key, counter, nonce) for counter in range(3))
    assert keystream_bytes(key, step, shard, count) == blocks[: 8 * count]


def normal_of(word):
    """+-Phi^-1((m + 1/2) 2^-64) in 60 digits, by Newton's method on erfc."""
    with mpmath.workdps(60):
        p = (mpmath.mpf(word >> 1) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 64
        start = (
            -mpmath.sqrt(-2 * mpmath.log(2 * p)) if p < 0.1 else mpmath.sqrt(2 * mpmath.pi) * (p - mpmath.mpf(1) / 2)
        )
        x = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(p), start)
        return -x if word & 1 else x


def transformed(drawn):
    out = np.array(drawn, dtype="<u8")
    column_generators._become_normals(out)
    return out.view(np.float64)


@given(60, st.lists(WORD | st.integers(0, 64).map(lambda bits: 2**bits - 1), min_size=1, max_size=5))
def test_each_word_becomes_the_normal_of_its_probability(drawn):
    for word, normal in zip(drawn, transformed(drawn), strict=True):
        assert abs(float(normal_of(word)) - normal) <= 2.0**-49 * max(1.0, abs(normal))


@given(60, WORD.filter(lambda word: word < 2**64 - 2))
def test_normals_rise_with_their_words(word):
    below, above = transformed([word & ~1, (word & ~1) + 2])
    assert below <= above <= 0


@given(
    60, columns=st.lists(st.tuples(st.integers(0, 3), WORD, st.booleans()), min_size=1, max_size=5),
    steps=st.lists(WORD, min_size=1, max_size=3), dim=st.integers(1, 20), tensor=st.integers(0, 2**32 - 1),
    shard=st.integers(0, SHARDS - 1),
)  # fmt: skip
def test_a_row_is_the_same_in_any_block_and_beside_keys_of_seeds(columns, steps, dim, tensor, shard):
    keys = [NoiseKey.from_seed(i) if seeded else KEY.derive(i) for i, _, seeded in columns]
    indices = np.array([index for _, index, _ in columns], dtype=np.uint64)
    block = ColumnNormals(keys, indices, shard=shard).block(np.array(steps, dtype=np.uint64), dim, tensor=tensor)
    for rows, step in zip(block, steps, strict=True):
        for row, key, index in zip(rows, keys, indices, strict=True):
            alone = ColumnNormals([key], [index], shard=shard).step(step, 24, tensor=tensor)
            assert_array_equal(row, alone[0, :dim])


@given(
    60, secret=st.integers(0, 99), index=WORD, tensor=st.integers(0, 2**32 - 1), shard=st.integers(0, SHARDS - 1),
    step=WORD | st.builds(lambda q, s: 2**31 * q - s, st.integers(1, 2**33), st.integers(1, 2)),
    count=st.integers(1, 40),
)  # fmt: skip
def test_a_row_is_the_documented_blocks(secret, index, tensor, shard, step, count):
    """Two of a nonce that steps share, and those from the third on of one of its own."""
    key = prf((own := KEY.derive(secret)).reveal_secret(), "chacha20", index, tensor)
    shared = (step >> 31).to_bytes(8, "little") + (shard + 2**31).to_bytes(4, "little")
    alone = step.to_bytes(8, "little") + shard.to_bytes(4, "little")
    blocks = [block_of_rfc(key, 2 * (step % 2**31) + j, shared) for j in range(2)]
    blocks += [block_of_rfc(key, j, alone) for j in range(2, 5)]
    expected = transformed(np.frombuffer(b"".join(blocks), "<u8")[:count])
    assert_array_equal(ColumnNormals([own], [index], shard=shard).step(step, count, tensor=tensor)[0], expected)


@given(
    60,
    asked=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 20), st.integers(0, 1)), min_size=1, max_size=4
    ),
    base=st.sampled_from([0, 2**31 - 12]),  # across the end of a nonce too
    ahead=st.sampled_from([1, 2000, 2**27]),
)
def test_rows_made_ahead_are_those_of_their_step(asked, base, ahead):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_generators, "AHEAD_BYTES", ahead)
        columns = ColumnNormals([KEY, KEY], [0, 1])
        for start, steps, dim, tensor in asked:
            for step in range(base + start, base + start + steps):
                alone = ColumnNormals([KEY, KEY], [0, 1]).step(step, 20, tensor=tensor)
                assert_array_equal(columns.step(step, dim, tensor=tensor), alone[:, :dim])


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_pieces_do_not_change_a_row(piece, monkeypatch):
    whole = normals_block(KEY, range(3), range(2), 200)
    monkeypatch.setattr(column_generators, "_COLUMNS", 1)
    monkeypatch.setattr(column_generators, "_PIECE", piece)
    monkeypatch.setattr(column_generators, "_ZEROS", memoryview(bytes(8 * piece)))
    assert_array_equal(normals_block(KEY, range(3), range(2), 200), whole)


def test_words_are_those_that_normals_are_made_of():
    drawn = words(KEY, 5, 3, 40)
    assert drawn.dtype == np.uint64
    assert_array_equal(transformed(drawn), normals(KEY, 5, [3], 40)[0])
    assert_array_equal(words(KEY, 5, 3, 9), drawn[:9])


def test_a_row_beyond_the_block_counter_is_refused():
    columns = ChaChaColumns([bytes(32)], np.array([0], dtype=np.uint64), 0)
    refuses(f"at most {2**35} coordinates, got {2**35 + 1}; make it in shards", columns.words, 0, 2**35 + 1)


@pytest.fixture
def streams(monkeypatch):
    """(key, step, shard) of every row."""
    seen, drawn = [], ChaChaColumns._keystream

    def recorded(self, steps, count, tensor):
        seen.extend((key, step, self._shard) for step in steps.tolist() for key in self._tensor_keys(tensor))
        return drawn(self, steps, count, tensor)

    monkeypatch.setattr(ChaChaColumns, "_keystream", recorded)
    return seen


def test_all_that_names_a_row_separates_it():
    rows = [
        ColumnNormals([secret], [index], shard=shard).block([0, 1, 2, 2**31], 30, tensor=tensor)
        for secret, index, tensor, shard in itertools.product((KEY, KEY.derive("other")), (0, 1), (0, 1), (0, 1))
    ]
    assert len(np.unique(rows)) == np.size(rows)


TASK = regression(16, build=lambda: torch.nn.Linear(3, 1))


def mechanism():
    algorithm = mfdl.algorithms.dp_dsgd(dynamics_on("ring:n=4"), mfdl.Cyclic(3, 2))
    return mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=2.0)


def test_a_resumed_run_goes_on_with_its_counter_and_another_run_has_other_keys(streams, tmp_path):
    options = {"mechanism": mechanism(), "task": TASK, "key": NoiseKey.from_entropy(), "publish": True}
    mfdl.replay(**options, checkpoint_folder=tmp_path, stop_after=2)
    before = {*streams}
    streams.clear()
    mfdl.replay(**options, checkpoint_folder=tmp_path)
    after = {*streams}
    assert ({step for _, step, _ in before}, {step for _, step, _ in after}) == ({0, 1}, {2, 3, 4, 5})
    assert {stream_key for stream_key, *_ in before} == {stream_key for stream_key, *_ in after}
    streams.clear()
    mfdl.replay(**options)
    assert not {stream_key for stream_key, *_ in streams} & {stream_key for stream_key, *_ in after}


def test_a_run_of_a_seed_uses_no_cipher_and_an_unseeded_run_nothing_else(streams, tmp_path):
    mfdl.replay(mechanism(), TASK, seeds=[0], stop_after=1)
    assert streams == []
    run = mfdl.replay(mechanism(), TASK, stop_after=1, checkpoint_folder=tmp_path, publish=True)
    assert len(streams) == 4
    (saved,) = (mfdl.training.checkpoint.load(folder) for folder in tmp_path.iterdir())
    assert saved.metadata["generator"] == ChaChaColumns.name
    assert saved.metadata["key_id"] == run.seeds[0].key_id
    run.save(tmp_path / "run.mfdl")
    assert mfdl.Run.load(tmp_path / "run.mfdl").seeds[0].generator == ChaChaColumns.name


def node(key, steps=()):
    task = regression(num_records=16, num_nodes=4)
    data = task.instance(0, 2)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics_on("ring:n=4"), mfdl.Cyclic(3, 2))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=0.5), mu=2.0)
    module = module_at(task, data.initial_parameters[0])
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    private_node = mfdl.PrivateNode(sgd, module, calibrated, node=1, keys=key, loss=squared, batch_size=2)

    def step_to(last):
        for t in range(private_node.steps_taken, last):
            private_node.step(data.features[1, t % 2], data.targets[1, t % 2])

    return private_node, step_to


def test_rows_of_other_keys_columns_steps_tensors_and_shards_are_uncorrelated():
    size = 20_000
    streams = [
        ColumnNormals([key], [index], shard=shard).step(step, size, tensor=tensor)[0]
        for key in (KEY, KEY.derive("other"))
        for index, step, tensor, shard in itertools.product((0, 1), repeat=4)
    ]
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    # 496 pairs, each N(0, 1/size): 5.5 standard deviations have false-alarm rate 496 * 3.8e-8 = 1.9e-5
    assert np.abs(correlation).max() < 5.5 / math.sqrt(size)
    first = streams[0]
    for lag in (1, 2, 8, 16):  # a block of the cipher is eight words
        assert abs((first[lag:] * first[:-lag]).mean()) < 5 / math.sqrt(size)


def test_a_resumed_node_goes_on_with_its_counter(streams):
    key = NoiseKey.from_entropy()
    first, step_to = node(key)
    step_to(3)
    before, saved = [*streams], first.state_dict()
    assert saved["generator"] == ChaChaColumns.name
    again, step_on = node(key)
    again.load_state_dict(saved)
    streams.clear()
    step_on(6)
    assert ([step for _, step, _ in before], [step for _, step, _ in streams]) == ([0, 1, 2], [3, 4, 5])
    assert len({key for key, *_ in before + streams}) == 1
    refuses("the noise of the steps between would be used", again.load_state_dict, saved)

"""Noise keys and counter-based normals."""

import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import settings
from noises import philox_key
from numpy.testing import assert_array_equal
from vocabulary import each, given, refuses, st

from mfdl.training import column_generators
from mfdl.training.keys import ColumnNormals, NoiseKey, normals, normals_block

KEY = NoiseKey.from_seed(7)
PARTS = st.one_of(st.text(max_size=4), st.integers(-(2**70), 2**70), st.binary(max_size=4))


def fresh_philox(key: NoiseKey, step: int, node: int, dim: int, tensor: int = 0) -> np.ndarray:
    """Oracle: a new generator for one (node, step), through numpy's own constructor."""
    counter = np.array([0, 1 + tensor * 2**32, node, step], dtype=np.uint64)
    philox = np.random.Philox(key=np.frombuffer(philox_key(key.reveal_secret()), dtype="<u8"), counter=counter)
    return np.random.Generator(philox).standard_normal(dim)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=6),
    st.lists(st.integers(0, 2**64 - 1), max_size=3),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_columns_have_keys_and_indices_of_their_own(columns, steps, tensor):
    normals = ColumnNormals(
        [NoiseKey.from_seed(seed) for seed, _ in columns], np.array([i for _, i in columns], dtype=np.uint64)
    )
    assert len(normals) == len(columns)
    block = normals.block(np.array(steps, dtype=np.uint64), 5, tensor=tensor)
    assert block.shape == (len(steps), len(columns), 5)
    for step, rows in zip(steps, block, strict=True):
        assert_array_equal(rows, normals.step(step, 5, tensor=tensor))
        for row, (seed, index) in zip(rows, columns, strict=True):
            assert_array_equal(row, fresh_philox(NoiseKey.from_seed(seed), step, index, 5, tensor))


@given(st.permutations(range(5)), st.permutations(range(4)), st.integers(1, 9))
@settings(deadline=None)
def test_order_and_grouping_of_calls_do_not_matter(nodes, steps, dim):
    whole = normals_block(KEY, range(4), range(5), 9)
    assert_array_equal(normals_block(KEY, steps, nodes, dim), whole[np.ix_(steps, nodes)][..., :dim])
    one_by_one = [[normals(KEY, t, [u], dim)[0] for u in nodes] for t in steps]
    assert_array_equal(np.array(one_by_one), whole[np.ix_(steps, nodes)][..., :dim])


def test_counters_of_any_two_node_steps_do_not_overlap():
    # After drawing, the counter has moved in its lowest word only: the other three name (domain, node, step).
    counters = []
    for step, node in itertools.product((0, 1, 2**64 - 1), (0, 1, 2**64 - 1)):
        philox = np.random.Philox(key=1, counter=np.array([0, 1, node, step], dtype=np.uint64))
        np.random.Generator(philox).standard_normal(10_000)
        counter = philox.state["state"]["counter"]
        assert 2_500 <= counter[0] < 3_000  # four words to a block, 1.02 words to a normal
        counters.append(tuple(int(word) for word in counter[1:]))
        assert counters[-1] == (1, node, step)
    assert len(set(counters)) == 9
    blocks = normals_block(KEY, range(40), range(40), 5).reshape(-1)
    assert len(np.unique(blocks)) == blocks.size  # 8,000 doubles: a chance tie has probability below 1e-8


AMBIGUOUS = [
    (("ab", "c"), ("a", "bc")), (("ab",), ("a", "b")), (("1",), (1,)), (("a",), (b"a",)), ((1, 2), (2, 1)),
    ((0,), (-1,)), ((255,), (-1,)), ((-1,), (-2,)), (("",), ("", "")),
]  # fmt: skip


@given(st.one_of(st.sampled_from(AMBIGUOUS), st.tuples(*[st.lists(PARTS, min_size=1, max_size=3)] * 2)))
def test_contexts_give_equal_keys_exactly_when_they_are_equal(pair):
    # `==` between str, int and bytes is False, so tuples compare as contexts do.
    for first, second in (pair, *AMBIGUOUS):
        key, other = KEY.derive(*first), KEY.derive(*second)
        assert (key == other) == (key.key_id == other.key_id) == (list(first) == list(second))


def test_derivation_is_nested_and_keeps_the_seeded_mark():
    assert KEY.derive("a", "b") != KEY.derive("a").derive("b")
    assert KEY.derive("a") == NoiseKey.from_seed(7).derive("a")
    assert KEY.derive("a").seeded
    assert not NoiseKey.from_entropy().derive("a").seeded


def test_entropy_keys_differ_and_are_whole():
    first = NoiseKey.from_entropy()
    assert NoiseKey(first.reveal_secret()) == first != NoiseKey.from_entropy()
    assert (len(first.reveal_secret()), first.seeded) == (32, False)
    assert NoiseKey.from_seed(1) != NoiseKey.from_seed(2)
    assert NoiseKey.from_seed(2**200).seeded
    assert NoiseKey.from_seed(2**200 + 1) != NoiseKey.from_seed(1)


def test_the_secret_is_not_shown():
    key = NoiseKey.from_entropy()
    secret = key.reveal_secret()
    printed = f"{key!r} {key!s} {key} {[key]}"
    assert key.key_id in printed
    assert secret.hex() not in printed
    assert repr(secret) not in printed
    assert key.key_id not in secret.hex()
    assert not hasattr(key, "__dict__")
    refuses(None, json.dumps, key, error=TypeError)


def test_keys_are_immutable_hashable_and_go_to_worker_processes():
    for name in ("seeded", "_secret", "other"):
        refuses("immutable", setattr, KEY, name, False, error=AttributeError)
    with pytest.raises(AttributeError, match="immutable"):
        del KEY.seeded
    copy = pickle.loads(pickle.dumps(KEY))
    assert copy == KEY
    assert copy.seeded
    assert len({copy, KEY, KEY.derive("a")}) == 2
    assert KEY != "key"


@each(
    "call, message",
    (lambda: NoiseKey(b"short"), "secret must be 32 bytes, got 5 bytes"),
    (lambda: NoiseKey("a" * 32), "secret must be 32 bytes, got str"),
    (lambda: NoiseKey.from_seed(-1), "seed must be an integer >= 0, got -1"),
    (lambda: NoiseKey.from_seed(1.0), "seed must be an integer"),
    (lambda: KEY.derive(), "at least one context"),
    (lambda: KEY.derive(1.5), "str, int or bytes, got float"),
    (lambda: KEY.derive(True), "str, int or bytes, got bool"),
    (lambda: KEY.derive("\udcff"), "text that UTF-8 can encode"),
    (lambda: normals(b"k", 0, [0], 1), "key must be a NoiseKey, got bytes"),
    (lambda: normals(KEY, -1, [0], 1), r"steps must be integers in \[0, 2\^64\), got -1"),
    (lambda: normals(KEY, 0.5, [0], 1), "steps must be a 1-D array of integers"),
    (lambda: normals(KEY, 0, [0, -3], 1), r"nodes must be integers in \[0, 2\^64\), got -3"),
    (lambda: normals(KEY, 0, [[0]], 1), "nodes must be a 1-D array of integers"),
    (lambda: normals(KEY, 0, [True], 1), "nodes must be a 1-D array of integers"),
    (lambda: normals(KEY, 2**64, [0], 1), "steps must be a 1-D array of integers"),
    (lambda: normals(KEY, 0, [0], 0), "dim must be an integer >= 1, got 0"),
    (lambda: normals(b"k", 0, [], 1), "key must be a NoiseKey, got bytes"),
    (lambda: normals(KEY, 0, [0], 1, tensor=-1), "tensor must be an integer >= 0, got -1"),
    (lambda: normals(KEY, 0, [0], 1, tensor=2**32), r"tensor must be an integer in \[0, 2\^32\), got 4294967296"),
    (lambda: ColumnNormals([KEY], [0, 1]), "keys and indices must be equally many, got 1 and 2"),
    (lambda: ColumnNormals(["k"], [0]), "key must be a NoiseKey, got str"),
)
def test_refusals(call, message):
    refuses(message, call)


WORDS = st.integers(0, 2**64 - 1)


def generator(key, counter):
    """Oracle: numpy's own constructor."""
    return np.random.Philox(key=np.array(key, dtype=np.uint64), counter=np.array(counter, dtype=np.uint64))


@given(st.lists(st.tuples(*[WORDS] * 6), min_size=1, max_size=5))
@settings(deadline=None)
def test_philox_gives_the_words_of_the_library(cases):
    *counter, left, right = np.array(cases, dtype=np.uint64).T
    with np.errstate(over="ignore"):
        words_ = np.array(column_generators.philox(tuple(counter), (left, right))).T
    for case, words in zip(cases, words_, strict=True):
        number = sum(word << 64 * place for place, word in enumerate(case[:4]))
        before = [(number - 1) % 2**256 >> 64 * place & (2**64 - 1) for place in range(4)]  # it counts, then draws
        assert_array_equal(words, generator(case[4:], before).random_raw(4))


@given(
    st.integers(0, 2**32 - 1), st.integers(1, column_generators.LONGEST_FILLED + 2), st.integers(0, 2**63),
    st.integers(0, 3), st.integers(0, 2**32 - 1), st.integers(1, 3),
)  # fmt: skip
@settings(deadline=None)
def test_many_columns_are_those_that_are_made_alone(seed, dim, step, shard, tensor, num_steps):
    rng = np.random.default_rng(seed)
    count = -(-column_generators.FEWEST // num_steps) + int(rng.integers(3))
    keys = [NoiseKey.from_seed(int(k)) for k in rng.integers(0, 5, count)]
    indices, steps = (
        rng.integers(0, 2**64, count, dtype=np.uint64),
        np.uint64(step) + np.arange(num_steps, dtype=np.uint64),
    )
    many = ColumnNormals(keys, indices, shard=shard).block(steps, dim, tensor=tensor)
    for column in {0, count - 1, *rng.integers(0, count, 20).tolist()}:
        alone = ColumnNormals(keys[column : column + 1], indices[column : column + 1], shard=shard)
        assert_array_equal(many[:, column], alone.block(steps, dim, tensor=tensor)[:, 0])


@pytest.mark.parametrize("dim", [1, 4, 10])
def test_rows_are_those_of_the_library_or_left_to_it(dim):
    rows = 3 * column_generators.BLOCKS // 10
    keys, index = np.arange(2 * rows, dtype=np.uint64).reshape(-1, 2), np.arange(rows, dtype=np.uint64)
    out = np.full((rows, dim), np.nan)
    left = column_generators.fill(out, keys, (np.uint64(0), np.uint64(1), index, index[::-1].copy()))
    assert (0.98**dim - 0.05) < 1 - len(left) / rows < 0.99**dim + 0.02  # nearly all of short rows
    for row in np.setdiff1d(np.arange(rows), left)[::3]:
        oracle = np.random.Generator(generator(keys[row], [0, 1, row, rows - 1 - row]))
        assert_array_equal(out[row], oracle.standard_normal(dim))


def test_a_generator_that_takes_its_words_otherwise_makes_all_rows(monkeypatch):
    keys, indices = [NoiseKey.from_seed(0)] * column_generators.FEWEST, np.arange(column_generators.FEWEST)
    known = ColumnNormals(keys, indices).step(3, 4)
    monkeypatch.setattr(column_generators, "ziggurat", lambda: None)
    assert_array_equal(ColumnNormals(keys, indices).step(3, 4), known)


def test_a_ziggurat_of_other_widths_is_not_trusted(monkeypatch):
    class Wider(np.random.Generator):
        def standard_normal(self):
            return super().standard_normal() * 1.5 ** (super().bit_generator.state["buffer_pos"] - 1)

    assert column_generators.ziggurat.__wrapped__() is not None
    monkeypatch.setattr(np.random, "Generator", Wider)
    assert column_generators.ziggurat.__wrapped__() is None

"""Secrets by holders and keys over the wire: who can make which noise, and nothing tampered with opens."""

import base64
import copy
import hashlib
import hmac
import itertools
import logging
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import settings
from noises import philox_key
from numpy.testing import assert_array_equal
from small_tasks import regression
from vocabulary import ZERO_OUT, assume, dynamics_on, each, given, refuses, st

from mfdl import Cyclic, NoiseKey, Privacy, algorithms, calibrate, replay, trust
from mfdl.noise import IndependentNoise, StepNoise, ZeroNoise
from mfdl.training import checkpoint
from mfdl.training.column_generators import encode_context
from mfdl.training.keys import normals
from mfdl.training.shared_randomness import (
    HolderKeys,
    NodeIdentity,
    agree,
    base_columns,
    columns_by_holders,
    holder_set,
    open_group_key,
    pair_key,
    seal_group_key,
)

ROOT = NoiseKey.from_seed(11)
NODE_SETS = st.frozensets(st.integers(0, 6), max_size=4)


def noise_held_by(sets, num_nodes=7, num_steps=3):
    holders = sp.csr_array(np.array([[u in s for u in range(num_nodes)] for s in sets]).reshape(-1, num_nodes))
    return StepNoise(np.ones((num_nodes + 1, len(sets))), holders, num_steps, num_nodes)  # slots are messages


@settings(deadline=None)
@given(st.lists(NODE_SETS, max_size=9))
def test_every_column_is_with_its_holders_and_nowhere_else(sets):
    by_holders = columns_by_holders(noise_held_by(sets))
    assert by_holders.keys() == set(sets)
    for holders, columns in by_holders.items():
        assert columns.tolist() == [c for c, s in enumerate(sets) if s == holders]


@settings(deadline=None)
@given(st.lists(NODE_SETS, min_size=1, max_size=9), st.integers(0, 2**40), st.data())
def test_a_column_is_the_stream_of_its_holders_key_and_of_its_place_among_their_columns(sets, step, data):
    noise, hold = noise_held_by(sets), HolderKeys.simulated(ROOT)
    columns = base_columns(noise, hold).step(step, 3)
    for c, holders in enumerate(sets):
        key = ROOT.derive("holders", *sorted(holders))
        assert key == hold.key_for(holders)
        assert_array_equal(columns[c], normals(key, step, [sets[:c].count(holders)], 3)[0])
    chosen = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=5))
    assert_array_equal(base_columns(noise, hold, chosen).step(step, 3), columns[chosen])


def test_an_explicit_false_entry_is_no_holder_and_no_columns_have_none():
    table = sp.csr_array((np.array([True, False]), ([0, 0], [1, 0])), shape=(1, 2))
    assert list(columns_by_holders(StepNoise(np.ones((3, 1)), table, 1, 2))) == [{1}]
    assert columns_by_holders(ZeroNoise(3, 2)) == {}
    assert base_columns(ZeroNoise(3, 2), HolderKeys.given({})).step(0, 4).shape == (0, 4)


def test_holders_of_another_shape_are_refused():
    class Wrong(IndependentNoise):
        def holders(self):
            return sp.csr_array(np.ones((1, self.num_nodes), dtype=bool))

    refuses(r"holders\(\) of Wrong must have shape \(3", lambda: columns_by_holders(Wrong(2, 3)))


def test_all_that_names_noise_separates_it():
    hold = HolderKeys.simulated(ROOT)
    draws = [
        normals(hold.key_for(s), step, [column], 100, tensor=tensor)
        for s in ({0}, {1}, {0, 1}, {0, 1, 2})
        for step, column, tensor in itertools.product(range(2), repeat=3)
    ]
    values = np.abs(np.concatenate(draws))
    assert len(np.unique(values)) == values.size == 3200


def test_edges_that_share_a_node_have_noise_of_their_own():
    """Star: all pairs of columns, also at shifted positions, have correlation 0 within 6 standard deviations."""
    D, noise = 20_000, noise_held_by([frozenset(edge) for edge in nx.star_graph(5).edges], 6)
    columns = base_columns(noise, HolderKeys.simulated(ROOT)).step(0, D + 1)
    for other in (columns[:, :-1], columns[:, 1:]):
        correlation = columns[:, :-1] @ other.T / D
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() < 6 / np.sqrt(D)


def test_the_order_of_nodes_does_not_matter():
    hold = HolderKeys.simulated(ROOT)
    assert hold.key_for((3, 1)) == hold.key_for([1, 3]) == hold.key_for({np.int64(3), np.int32(1)})
    assert hold.key_for({1}) != hold.key_for({1, 3}) != hold.key_for({13})
    assert hold.key_for({1}).seeded
    assert HolderKeys.given({(3, 1): ROOT}).key_for((1, 3)) == ROOT


@settings(deadline=None)
@given(st.sets(NODE_SETS.filter(bool), max_size=6), st.integers(0, 6), NODE_SETS)
def test_a_node_has_the_keys_of_its_own_sets_only(sets, node, options):
    simulated = HolderKeys.simulated(ROOT)
    given_ = HolderKeys.given({s: simulated.key_for(s) for s in sets})
    for hold, known in ((simulated.node_keys(node), True), (given_.node_keys(node), options in sets)):
        if node in options and known:
            assert hold.key_for(options) == simulated.key_for(options)
        else:
            refuses(r"secret of \{", hold.key_for, options)
        assert repr(hold.node_keys(node)) == repr(hold)
        refuses(f"the keys of node {node}", hold.node_keys, node + 1)


@each(
    "call, message",
    (lambda: HolderKeys.simulated(b"x"), "root must be a NoiseKey, got bytes"),
    (lambda: HolderKeys.given({(0,): "x"}), r"the secret of \{0\} must be a NoiseKey, got str"),
    (lambda: HolderKeys.given({(): ROOT}), "at least one, got \\[\\]"),
    (lambda: HolderKeys.given({(2, 2): ROOT}), "distinct node indices"),
    (lambda: HolderKeys.given({(-1,): ROOT}), "holder must be an integer >= 0, got -1"),
    (lambda: HolderKeys.given({3: ROOT}), r"several node indices, got 3; write \(3,\)"),
    (lambda: HolderKeys.given({(0, 1): ROOT, (1, 0): ROOT.derive(1)}), r"names the holder set \{0, 1\} twice"),
    (lambda: HolderKeys.given({(0, 1): ROOT, (1, 2): ROOT}), r"\{0, 1\} and \{1, 2\} were given the same secret"),
    (lambda: HolderKeys.given({}).key_for(range(12)), r"the secret of \{0, .* 9, ... 12 nodes\} is missing"),
    (lambda: HolderKeys.simulated(ROOT).node_keys(4).key_for({0, 1}), r"node 4 needs the secret of \{0, 1\}"),
    (lambda: HolderKeys.simulated(ROOT).node_keys(-1), "node must be an integer >= 0"),
    (lambda: holder_set([0.5]), "holder must be an integer"),
)
def test_refusals_of_holders(call, message):
    refuses(message, call)


def spellings(key):
    """How a secret, or the Philox key hashed from it, could be written."""
    for raw in (key.reveal_secret(), philox_key(key.reveal_secret())):
        words = [str(word).encode() for word in np.frombuffer(raw, dtype="<u8")]
        number = str(int.from_bytes(raw, "big")).encode()
        yield from (raw, raw[::-1], raw.hex().encode(), base64.b64encode(raw), repr(raw).encode(), number, *words)


def test_keys_are_shown_by_public_names_only():
    hold = HolderKeys.given({(0, 1): NoiseKey.from_entropy(), (1,): NoiseKey.from_entropy()})
    every = HolderKeys.simulated(root := NoiseKey.from_entropy())
    printed = f"{hold!r} {hold} {hold.node_keys(1)!r} {every!r} {every.node_keys(2)}"
    assert "holders=[{0, 1}, {1}]" in printed
    assert root.key_id in printed
    for key in (hold.key_for({0, 1}), hold.key_for({1}), root, root.derive("holders", 2)):
        assert not any(text in printed.encode() for text in spellings(key))


def test_a_run_leaves_no_secret_in_results_checkpoints_messages_or_logs(tmp_path, caplog, capfd):
    dynamics = dynamics_on("ring:n=4", 0.1)
    algorithm = algorithms.decor(dynamics, Cyclic(epochs=2, period=2), sigma_ldp=1.0, sigma_cor=2.0)
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    task = regression(16, build=lambda: torch.nn.Linear(3, 1))
    root = NoiseKey.from_entropy()
    used, derive = [root], NoiseKey.derive

    def witnessed(self, *context):
        used.append(derive(self, *context))
        return used[-1]

    with caplog.at_level(logging.DEBUG), pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseKey, "derive", witnessed)
        run = replay(calibrated, task, key=root, checkpoint_folder=tmp_path, stop_after=3)
    assert len(used) == 2 + 4 + 4  # root, the run's own, four nodes and four edges
    printed = capfd.readouterr()
    printed_texts = " ".join([repr(run), str(run.seeds), repr(run.rows()), caplog.text, printed.out, printed.err])
    stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert stored
    everything = b"\n".join([printed_texts.encode(), pickle.dumps(run.seeds), *stored])
    assert run.seeds[0].key_id.encode() in everything
    for key in used:
        assert not any(text in everything for text in spellings(key))
    for secret in (root, HolderKeys.simulated(root)):
        refuses("Key", checkpoint.save, tmp_path / "other", step=0, models={}, metadata={"key": secret})


ALICE, BOB, CAROL = (NodeIdentity(bytes([i]) * 32) for i in (1, 2, 3))
RUN = "run 1"
LABELS = st.one_of(st.text(max_size=3), st.integers(0, 9), st.binary(max_size=3))
PAIR = pair_key(ALICE, BOB.public_bytes, run_id=RUN, own_label=0, peer_label=1)
BOUND = {"group": [0, 1, 2], "run_id": RUN, "sender": 0, "receiver": 1}
# All u below 2^255 - 19 of small order on the curve or its twist: 0, 1, -1 and two of order 8.
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


def test_the_private_key_is_not_shown_pickled_or_copied():
    identity = NodeIdentity.generate()
    private = identity.reveal_private()
    printed = f"{identity!r} {identity} {[identity]}"
    assert identity.fingerprint in printed
    assert not any(text in printed for text in (private.hex(), repr(private)))
    assert not hasattr(identity, "__dict__")
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        refuses("not pickled or copied", attempt, identity, error=TypeError)
    again = NodeIdentity(private)
    assert again.public_bytes == identity.public_bytes != private
    assert again.fingerprint == identity.fingerprint != NodeIdentity.generate().fingerprint


def test_the_public_key_is_that_of_the_standard():
    """The first key pair of RFC 7748, section 6.1; and the ladder below, which other tests rest on, gives the same."""
    private = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert NodeIdentity(private).public_bytes == ladder(private, 9).to_bytes(32, "little") == public


def ladder(private, u):
    """Oracle: the Montgomery ladder of RFC 7748, section 5, in Python integers."""
    p, bits = 2**255 - 19, bytearray(private)
    bits[0] &= 248
    bits[31] = bits[31] & 127 | 64
    k = int.from_bytes(bits, "little")
    x1, x2, z2, x3, z3, swap = u, 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        e = aa - bb
        x3, z3 = pow(da + cb, 2, p), x1 * pow(da - cb, 2, p) % p
        x2, z2 = aa * bb % p, e * (aa + 121665 * e) % p
    if swap:
        x2, z2 = x3, z3
    return x2 * pow(z2, p - 2, p) % p


def test_a_pair_key_is_x25519_then_hkdf_of_everything_bound():
    shared = ladder(ALICE.reveal_private(), int.from_bytes(BOB.public_bytes, "little")).to_bytes(32, "little")
    ends = sorted([(ALICE.public_bytes, encode_context((0,))), (BOB.public_bytes, encode_context((1,)))])
    info = encode_context(("mfdl/pair-key/1", RUN, *ends[0], *ends[1]))
    extracted = hmac.digest(bytes(32), shared, hashlib.sha256)
    assert PAIR.reveal_secret() == hmac.digest(extracted, info + b"\x01", hashlib.sha256)


@given(
    30,
    privates=st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=2),
    labels=st.lists(LABELS, min_size=2, max_size=2, unique=True),
    run_id=st.one_of(st.text(min_size=1, max_size=5), st.binary(min_size=1, max_size=5)),
)
def test_both_ends_get_the_same_key(privates, labels, run_id):
    alice, other = map(NodeIdentity, privates)
    assume(alice.public_bytes != other.public_bytes)
    first = pair_key(alice, other.public_bytes, run_id=run_id, own_label=labels[0], peer_label=labels[1])
    second = pair_key(other, alice.public_bytes, run_id=run_id, own_label=labels[1], peer_label=labels[0])
    assert (first, first.seeded) == (second, False)


def test_everything_that_is_bound_changes_the_key():
    keys = [
        pair_key(identity, peer.public_bytes, run_id=run, own_label=labels[0], peer_label=labels[1])
        for identity, peer in ((ALICE, BOB), (ALICE, CAROL), (BOB, CAROL))
        for run in (RUN, "run 2", b"run 1")
        for labels in ((0, 1), (1, 0), ("0", 1), ("01", ""), ("0", "1"))
    ]
    assert len(set(keys)) == len(keys) == 45


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("identity", [ALICE, NodeIdentity.generate()])
def test_public_keys_of_low_order_are_refused(identity, point):
    assert ladder(identity.reveal_private(), int.from_bytes(point, "little") % 2**255) == 0
    refuses("the public key of 1 is of low order", pair_key, identity, point, run_id=RUN, own_label=0, peer_label=1)


def test_a_library_that_returns_zero_is_not_believed(monkeypatch):
    class Careless:
        from_private_bytes = classmethod(lambda cls, private: cls())
        public_key = property(lambda self: lambda: self)

        def public_bytes_raw(self):
            return ALICE.public_bytes

        def exchange(self, peer):
            return bytes(32)

    monkeypatch.setattr("cryptography.hazmat.primitives.asymmetric.x25519.X25519PrivateKey", Careless)
    identity = NodeIdentity.generate()
    refuses("low order", pair_key, identity, BOB.public_bytes, run_id=RUN, own_label=0, peer_label=1)


@pytest.mark.parametrize("key", [NoiseKey.from_entropy(), NoiseKey.from_seed(3)])
def test_a_sealed_key_opens_as_it_was(key):
    sealed = seal_group_key(key, PAIR, **BOUND)
    opened = open_group_key(sealed, PAIR, **{**BOUND, "group": [2, 0, 1]})
    assert (opened, opened.seeded) == (key, key.seeded)
    assert key.reveal_secret() not in sealed
    assert len(sealed) == 12 + 33 + 16
    assert sealed != seal_group_key(key, PAIR, **BOUND)  # a nonce of its own


def test_any_changed_byte_is_seen():
    sealed = seal_group_key(NoiseKey.from_entropy(), PAIR, **BOUND)
    broken = [sealed[:i] + bytes([sealed[i] ^ 1 << i % 8]) + sealed[i + 1 :] for i in range(len(sealed))]
    for other in (*broken, b"", sealed[:11], sealed[:-1], sealed + b"\0", "text"):
        refuses("the group key from 0 to 1 does not open", open_group_key, other, PAIR, **BOUND)


@each(
    "changed",
    {"group": [0, 1]}, {"group": [0, 1, 2, 3]}, {"group": ["0", 0, 1, 2]}, {"run_id": "run 2"}, {"sender": 2},
    {"receiver": 2}, {"sender": 1, "receiver": 0},
)  # fmt: skip
def test_a_sealed_key_is_for_one_group_run_sender_and_receiver(changed):
    sealed = seal_group_key(NoiseKey.from_entropy(), PAIR, **BOUND)
    for pair, bound in ((PAIR, BOUND | changed), (NoiseKey.from_entropy(), BOUND), (PAIR.derive("x"), BOUND)):
        refuses("does not open", open_group_key, sealed, pair, **bound)


@given(15, sets=st.sets(st.frozensets(st.integers(0, 4), min_size=1), max_size=6))
def test_all_holders_and_only_they_end_up_with_the_secret(sets):
    views = agree([NodeIdentity(bytes([i + 1]) * 32) for i in range(5)], sets, run_id=RUN)
    secrets = {}
    for holders, (node, view) in itertools.product(sets, enumerate(views)):
        if node in holders:
            assert secrets.setdefault(holders, view.key_for(holders)) == view.key_for(holders)
        else:
            refuses(f"node {node} needs the secret of", view.key_for, holders)
    assert len(set(secrets.values())) == len(sets)
    for (holders, key), (node, view) in itertools.product(secrets.items(), enumerate(views)):
        assert (key.reveal_secret() in pickle.dumps(view)) == (node in holders)


@each(
    "call, message",
    (lambda: NodeIdentity(b"short"), "private must be 32 bytes, got 5 bytes"),
    (lambda: NodeIdentity("a" * 32), "private must be 32 bytes, got str"),
    (lambda: pair_key(ALICE, b"x", run_id=RUN, own_label=0, peer_label=1), "32 bytes, got 1 bytes"),
    (lambda: pair_key(ALICE, BOB, run_id=RUN, own_label=0, peer_label=1), "32 bytes, got NodeIdentity"),
    (lambda: pair_key(ALICE, ALICE.public_bytes, run_id=RUN, own_label=0, peer_label=1), "the node's own public"),
    (lambda: pair_key(ALICE, BOB.public_bytes, run_id=RUN, own_label=0, peer_label=0), "must differ, got 0"),
    (lambda: pair_key(ALICE, BOB.public_bytes, run_id="", own_label=0, peer_label=1), "run_id must be a str"),
    (lambda: pair_key(ALICE, BOB.public_bytes, run_id=7, own_label=0, peer_label=1), "run_id must be a str"),
    (lambda: pair_key(ALICE, BOB.public_bytes, run_id=RUN, own_label=0.5, peer_label=1), "str, int or bytes"),
    (lambda: seal_group_key(PAIR, PAIR, **{**BOUND, "sender": 5}), "sender must be a member of the group, got 5"),
    (lambda: seal_group_key(PAIR, PAIR, **{**BOUND, "receiver": 5}), "receiver must be a member"),
    (lambda: seal_group_key(PAIR, PAIR, **{**BOUND, "receiver": 0}), "sender and receiver must differ"),
    (lambda: seal_group_key(PAIR, PAIR, **{**BOUND, "run_id": b""}), "run_id must be"),
    (lambda: agree([ALICE], [{0, 1}], run_id=RUN), "nodes below 1, the number of identities, got 1"),
    (lambda: agree([ALICE], [set()], run_id=RUN), "at least one"),
)
def test_refusals(call, message):
    refuses(message, call)


def test_cryptography_is_loaded_only_when_keys_are_agreed_on():
    code = "import sys, mfdl.training.shared_randomness, mfdl.training.streams; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "False"


def test_secrets_of_different_purposes_do_not_meet():
    """The pair's noise, its sealing key and its public name start with 16 bytes each that differ."""
    noise = philox_key(PAIR.reveal_secret())
    sealing = PAIR.derive("seal-group-key", 1).reveal_secret()
    assert len({noise, sealing[:16], PAIR.reveal_secret()[:16], bytes.fromhex(PAIR.key_id)}) == 4


def test_a_view_carries_no_key_of_others():
    mine, theirs = NoiseKey.from_entropy(), NoiseKey.from_entropy()
    view = HolderKeys.given({(0,): mine, (1,): theirs}).node_keys(0)
    stored = pickle.dumps(view)
    assert mine.reveal_secret() in stored
    assert theirs.reveal_secret() not in stored

"""Keys over the wire: both ends agree, everything that is bound changes the key, and nothing tampered with opens."""

import copy
import hashlib
import hmac
import itertools
import pickle
import subprocess
import sys

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from noises import philox_key
from refusals import refuses

from mfdl import NoiseKey
from mfdl.training.column_generator import encode_context
from mfdl.training.key_agreement import NodeIdentity, agree, open_group_key, pair_key, seal_group_key

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


# ---- identities -----------------------------------------------------------------------------------------------------


def test_the_private_key_is_not_shown_pickled_or_copied():
    identity = NodeIdentity.generate()
    private = identity.reveal_private()
    printed = f"{identity!r} {identity} {[identity]}"
    assert identity.fingerprint in printed
    assert private.hex() not in printed
    assert repr(private) not in printed
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


# ---- pairs ----------------------------------------------------------------------------------------------------------


def test_a_pair_key_is_x25519_then_hkdf_of_everything_bound():
    """Against a ladder and HMAC written out: HKDF with an empty salt and one block of output (RFC 5869)."""
    shared = ladder(ALICE.reveal_private(), int.from_bytes(BOB.public_bytes, "little")).to_bytes(32, "little")
    ends = sorted([(ALICE.public_bytes, encode_context((0,))), (BOB.public_bytes, encode_context((1,)))])
    info = encode_context(("mfdl/pair-key/1", RUN, *ends[0], *ends[1]))
    extracted = hmac.digest(bytes(32), shared, hashlib.sha256)
    assert PAIR.reveal_secret() == hmac.digest(extracted, info + b"\x01", hashlib.sha256)


@examples(30)
@given(
    privates=st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=2),
    labels=st.lists(LABELS, min_size=2, max_size=2, unique=True),
    run_id=st.one_of(st.text(min_size=1, max_size=5), st.binary(min_size=1, max_size=5)),
)
def test_both_ends_get_the_same_key(privates, labels, run_id):
    alice, other = map(NodeIdentity, privates)
    if alice.public_bytes == other.public_bytes:
        return
    first = pair_key(alice, other.public_bytes, run_id=run_id, own_label=labels[0], peer_label=labels[1])
    second = pair_key(other, alice.public_bytes, run_id=run_id, own_label=labels[1], peer_label=labels[0])
    assert first == second
    assert not first.seeded


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
    """Whoever computes the exchange, the secret zero is refused."""

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


# ---- groups ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "changed",
    [
        {"group": [0, 1]},
        {"group": [0, 1, 2, 3]},
        {"group": ["0", 0, 1, 2]},
        {"run_id": "run 2"},
        {"sender": 2},
        {"receiver": 2},
        {"sender": 1, "receiver": 0},
    ],
)
def test_a_sealed_key_is_for_one_group_run_sender_and_receiver(changed):
    sealed = seal_group_key(NoiseKey.from_entropy(), PAIR, **BOUND)
    for pair, bound in ((PAIR, BOUND | changed), (NoiseKey.from_entropy(), BOUND), (PAIR.derive("x"), BOUND)):
        refuses("does not open", open_group_key, sealed, pair, **bound)


# ---- a deployment ---------------------------------------------------------------------------------------------------


@examples(15)
@given(sets=st.sets(st.frozensets(st.integers(0, 4), min_size=1), max_size=6))
def test_all_holders_and_only_they_end_up_with_the_secret(sets):
    views = agree([NodeIdentity(bytes([i + 1]) * 32) for i in range(5)], sets, run_id=RUN)
    secrets = {}
    for holders, (node, view) in itertools.product(sets, enumerate(views)):
        if node in holders:
            assert secrets.setdefault(holders, view.key_of(holders)) == view.key_of(holders)
        else:
            refuses(f"node {node} needs the secret of", view.key_of, holders)
    assert len(set(secrets.values())) == len(sets)
    for (holders, key), (node, view) in itertools.product(secrets.items(), enumerate(views)):
        assert (key.reveal_secret() in pickle.dumps(view)) == (node in holders)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NodeIdentity(b"short"), "private must be 32 bytes, got 5 bytes"),
        (lambda: NodeIdentity("a" * 32), "private must be 32 bytes, got str"),
        (lambda: pair_key(ALICE, b"x", run_id=RUN, own_label=0, peer_label=1), "32 bytes, got 1 bytes"),
        (lambda: pair_key(ALICE, BOB, run_id=RUN, own_label=0, peer_label=1), "32 bytes, got NodeIdentity"),
        (
            lambda: pair_key(ALICE, ALICE.public_bytes, run_id=RUN, own_label=0, peer_label=1),
            "the node's own public key",
        ),
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
    ],
)
def test_refusals(call, message):
    refuses(message, call)


def test_cryptography_is_loaded_only_when_keys_are_agreed_on():
    code = "import sys, mfdl.training.key_agreement, mfdl.training.streams; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "False"


def test_secrets_of_different_purposes_do_not_meet():
    """The pair's noise, its sealing key and its public name start with 16 bytes each that differ."""
    noise = philox_key(PAIR.reveal_secret())
    sealing = PAIR.derive("seal-group-key", 1).reveal_secret()
    assert len({noise, sealing[:16], PAIR.reveal_secret()[:16], bytes.fromhex(PAIR.key_id)}) == 4

"""How nodes of a deployment come to share the secrets of `shared_randomness`, without a trusted party.

In: each node's own private key and its peers' public keys. Out: one NoiseKey per holder set. A pair agrees by X25519
and HKDF-SHA256 without any message but the public keys; of a group one member draws the secret and seals it for each
other member under the pair's key (ChaCha20-Poly1305). Honest but curious nodes are assumed.

Public keys prove no identity by themselves: an attacker who can replace one in transit computes the noise. They must
come by an authenticated channel (signed, pinned, or compared by `fingerprint`). The run id must be new for each run:
the same nodes under the same run id get the same keys, hence the same noise.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import InvalidInput
from .column_generators import encode_context
from .keys import SECRET_BYTES, NoiseKey, require_bytes
from .shared_randomness import HolderKeys, Holders, holder_set

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

NONCE_BYTES = 12

Label = str | int | bytes


class NodeIdentity:
    """An X25519 key pair of one node. Neither `repr` nor pickling gives the private key away.

    >>> NodeIdentity.generate()
    NodeIdentity(fingerprint='...')

    Attributes:
        public_bytes: the public key, 32 bytes, for every peer.
    """

    __slots__ = ("_private", "public_bytes")

    _private: X25519PrivateKey
    public_bytes: bytes

    def __init__(self, private: bytes) -> None:
        """Takes a private key kept by the user, 32 bytes; `generate` makes a new one."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # keeps `import mfdl` light

        require_bytes("NodeIdentity.generate() makes one", private=private)
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public_bytes = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> NodeIdentity:
        """A new identity from the operating system's entropy."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @property
    def fingerprint(self) -> str:
        """A public name of the public key (128 bits of a hash), to compare over another channel."""
        return hashlib.sha256(encode_context(("mfdl/identity/1", self.public_bytes))).hexdigest()[:32]

    def reveal_private(self) -> bytes:
        """The private key itself, 32 bytes, for a vault."""
        return self._private.private_bytes_raw()

    def __repr__(self) -> str:
        return f"NodeIdentity(fingerprint={self.fingerprint!r})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("NodeIdentity is not pickled or copied, it holds a private key; reveal_private() gives it.")


def pair_key(
    identity: NodeIdentity, peer_public: bytes, *, run_id: str | bytes, own_label: Label, peer_label: Label
) -> NoiseKey:
    """The secret of two nodes for one run: X25519, then HKDF-SHA256 bound to the run, both labels and both public keys.

    >>> a, b = NodeIdentity.generate(), NodeIdentity.generate()
    >>> key = pair_key(a, b.public_bytes, run_id="run 1", own_label="a", peer_label="b")
    >>> key == pair_key(b, a.public_bytes, run_id="run 1", own_label="b", peer_label="a")
    True

    Args:
        peer_public: the peer's `public_bytes`, from an authenticated channel.
        run_id: new for each run and equal at both ends; not empty.
        own_label, peer_label: how all nodes call the two, e.g. their indices; different.

    Guarantees:
        Both ends get the same key. Another run id, label or public key gives an unrelated one.
    Raises:
        InvalidInput: a public key that is not 32 bytes, is the own one, or is of low order (every private key gives
            the secret zero with it); equal labels; an empty run id.
    """
    from cryptography.hazmat.primitives import hashes  # keeps `import mfdl` light
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    run = _run(run_id)
    require_bytes("pass the peer's public_bytes", peer_public=peer_public)
    if peer_public == identity.public_bytes:
        raise InvalidInput("peer_public is the node's own public key; a pair needs two nodes.")
    if own_label == peer_label:
        raise InvalidInput(f"own_label and peer_label must differ, got {own_label!r} for both.")
    try:
        shared = identity._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError:
        shared = b""
    if not any(shared):
        raise InvalidInput(
            f"the public key of {peer_label!r} is of low order: the shared secret would be zero, known to everybody; "
            "ask for another key, and distrust the channel."
        )
    ends = sorted([(identity.public_bytes, encode_context((own_label,))), (peer_public, encode_context((peer_label,)))])
    info = encode_context(("mfdl/pair-key/1", run, *ends[0], *ends[1]))
    return NoiseKey(HKDF(algorithm=hashes.SHA256(), length=SECRET_BYTES, salt=None, info=info).derive(shared))


def seal_group_key(
    key: NoiseKey, pair: NoiseKey, *, group: Iterable[Label], run_id: str | bytes, sender: Label, receiver: Label
) -> bytes:
    """A group's secret, encrypted for one member under the key of the pair (sender, receiver).

    Args:
        key: the secret, drawn by one member with `NoiseKey.from_entropy()` and sealed for each other member.
        pair: `pair_key` of sender and receiver for this run.
        group: labels of all members, in any order.

    Returns: 12 bytes nonce, then ciphertext and tag; anybody may carry it.
    Raises: InvalidInput: sender or receiver is not in the group, or they are equal.
    """
    cipher, context = _seal(pair, group, run_id, sender, receiver)
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, key.reveal_secret() + bytes([key.seeded]), context)


def open_group_key(
    sealed: bytes, pair: NoiseKey, *, group: Iterable[Label], run_id: str | bytes, sender: Label, receiver: Label
) -> NoiseKey:
    """The secret in what `seal_group_key` made for this receiver.

    A dishonest sender can seal different secrets for different members; compare `key_id` to see it.

    Raises: InvalidInput: changed on its way, or sealed for another group, run, sender or receiver.
    """
    from cryptography.exceptions import InvalidTag  # keeps `import mfdl` light

    cipher, context = _seal(pair, group, run_id, sender, receiver)
    try:
        if not isinstance(sealed, bytes) or len(sealed) < NONCE_BYTES:
            raise InvalidTag
        opened = cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except InvalidTag:
        raise InvalidInput(
            f"the group key from {sender!r} to {receiver!r} does not open: it was changed, or sealed for another "
            "group, run, sender or receiver; ask the sender to seal it again."
        ) from None
    if len(opened) != SECRET_BYTES + 1 or opened[SECRET_BYTES] > 1:
        raise InvalidInput(f"the group key from {sender!r} opens to no key; its sender did not use seal_group_key.")
    return NoiseKey(opened[:SECRET_BYTES], seeded=bool(opened[SECRET_BYTES]))


def agree(
    identities: Sequence[NodeIdentity], holder_sets: Iterable[Iterable[int]], *, run_id: str | bytes
) -> list[HolderKeys]:
    """A whole deployment in one process: the HolderKeys that each node ends up with.

    Every node draws its own secret, both ends of a pair compute theirs, and the first node of a larger set draws and
    seals it for the others.

    Args:
        identities: of nodes 0 .. n - 1.
        holder_sets: e.g. `shared_randomness.columns_by_holders(noise)`.
    Raises: InvalidInput: a holder set is empty or names a node without identity.
    Cost: about 0.1 ms per pair and per sealed key.
    """
    n = len(identities)
    keys_of_nodes: list[dict[Iterable[int], NoiseKey]] = [{} for _ in range(n)]

    def pair(node: int, peer: int) -> NoiseKey:
        public = identities[peer].public_bytes
        return pair_key(identities[node], public, run_id=run_id, own_label=node, peer_label=peer)

    distinct: dict[Holders, None] = dict.fromkeys(holder_set(nodes) for nodes in holder_sets)
    for holders in distinct:
        first, *others = sorted(holders)
        if max(holders) >= n:
            raise InvalidInput(f"holder sets must name nodes below {n}, the number of identities, got {max(holders)}.")
        if len(holders) == 2:
            second = others[0]
            keys_of_nodes[first][holders], keys_of_nodes[second][holders] = pair(first, second), pair(second, first)
            continue
        drawn = NoiseKey.from_entropy()
        keys_of_nodes[first][holders] = drawn
        for node in others:
            bound: dict[str, Any] = {"group": holders, "run_id": run_id, "sender": first, "receiver": node}
            sealed = seal_group_key(drawn, pair(first, node), **bound)
            keys_of_nodes[node][holders] = open_group_key(sealed, pair(node, first), **bound)
    return [HolderKeys.given(keys).of_node(node) for node, keys in enumerate(keys_of_nodes)]


def _seal(
    pair: NoiseKey, group: Iterable[Label], run_id: str | bytes, sender: Label, receiver: Label
) -> tuple[ChaCha20Poly1305, bytes]:
    """The cipher of the pair, and the context that a sealed key is bound to."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # keeps `import mfdl` light

    members = list(group)
    for role, label in (("sender", sender), ("receiver", receiver)):
        if label not in members:
            raise InvalidInput(f"{role} must be a member of the group, got {label!r}.")
    if sender == receiver:
        raise InvalidInput(f"sender and receiver must differ, got {sender!r} for both.")
    labels = sorted({encode_context((label,)) for label in members})
    ends = encode_context((sender,)), encode_context((receiver,))
    context = encode_context(("mfdl/group-key/1", _run(run_id), *ends, *labels))
    return ChaCha20Poly1305(pair.derive("seal-group-key", 1).reveal_secret()), context


def _run(run_id: str | bytes) -> str | bytes:
    if not isinstance(run_id, str | bytes) or not run_id:
        raise InvalidInput(f"run_id must be a str or bytes, not empty and new for each run, got {run_id!r}.")
    return run_id

"""Keys by holders: one key per set of nodes that share noise, and how they agree on it without a trusted party.

A noise operator names the holders of its columns (one node, both ends of an edge, a group). Column c of a step, the
j-th among the columns of its holder set S, is `normals(key of S, step, [j], dim)`: only the holders can make it.

Agreement: a pair uses X25519 and HKDF-SHA256 without any message but the public keys; in a group one member draws the
secret and seals it for each other member under the pair's key (ChaCha20-Poly1305). Nodes are assumed honest but
curious. Public keys prove no identity: an attacker who can replace one in transit computes the noise, so they must
come by an authenticated channel (signed, pinned, or compared by `fingerprint`). The run id must be new for each run:
the same nodes under the same run id get the same keys, hence the same noise.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from ..noise import NoiseOperator
from .column_generators import encode_context
from .keys import SECRET_BYTES, ColumnNormals, NoiseKey, require_bytes, require_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

Holders = frozenset[int]


class HolderKeys:
    """The secrets of one run: holder set -> NoiseKey.

    A secret serves one run: the same keys in a second run repeat its noise, and the difference of the two shows the
    gradients. Neither `repr` nor any message shows a secret; pickling carries them. Use `simulated` or `given`.
    """

    __slots__ = ("_given", "_node", "_root")

    def __init__(self, root: NoiseKey | None, given: Mapping[Holders, NoiseKey], node: int | None = None) -> None:
        self._root, self._given, self._node = root, dict(given), node

    @classmethod
    def simulated(cls, root: NoiseKey) -> HolderKeys:
        """All keys of a simulation in one process: `root.derive("holders", *sorted nodes)`.

        >>> keys = HolderKeys.simulated(NoiseKey.from_seed(0))
        >>> keys.key_for({3, 1}) == NoiseKey.from_seed(0).derive("holders", 1, 3)
        True
        """
        require_key(root=root)
        return cls(root, {})

    @classmethod
    def given(cls, keys: Mapping[Iterable[int], NoiseKey]) -> HolderKeys:
        """Keys that were agreed on, e.g. `HolderKeys.given({(0,): own, (0, 1): shared})`.

        Raises: InvalidInput: two holder sets have one secret, so that noise counted as independent would be equal.
        """
        known: dict[Holders, NoiseKey] = {}
        owner: dict[NoiseKey, Holders] = {}
        for nodes, key in keys.items():
            holders = holder_set(nodes)
            if not isinstance(key, NoiseKey):
                raise InvalidInput(f"the secret of {_name(holders)} must be a NoiseKey, got {type(key).__name__}.")
            if holders in known:
                raise InvalidInput(f"keys names the holder set {_name(holders)} twice; one set has one secret.")
            if key in owner:
                raise InvalidInput(
                    f"{_name(owner[key])} and {_name(holders)} were given the same secret, and their noise would be "
                    "equal; draw one secret per holder set."
                )
            known[holders], owner[key] = key, holders
        return cls(None, known)

    def key_for(self, holders: Iterable[int]) -> NoiseKey:
        """The secret of a holder set. Raises: InvalidInput: naming the set, when its secret is missing."""
        wanted = frozenset(holders)
        if self._node is not None and self._node not in wanted:
            raise InvalidInput(
                f"node {self._node} needs the secret of {_name(wanted)}, which it does not hold; this noise cannot be "
                "made node by node."
            )
        if self._root is not None:
            return self._root.derive("holders", *sorted(wanted))
        if wanted not in self._given:
            raise InvalidInput(
                f"the secret of {_name(wanted)} is missing; agree on one with its holders (pair_key, agree) and pass "
                "it to HolderKeys.given."
            )
        return self._given[wanted]

    def node_keys(self, node: int) -> HolderKeys:
        """The keys of the sets that a node belongs to; in a simulation the root secret, whose use is restricted."""
        node = check.integer_at_least(0, node=node)
        if self._node not in (None, node):
            raise InvalidInput(f"these are the keys of node {self._node}, which cannot answer for node {node}.")
        return HolderKeys(self._root, {s: key for s, key in self._given.items() if node in s}, node)

    def __repr__(self) -> str:
        node = "" if self._node is None else f"node={self._node}, "
        if self._root is not None:
            return f"HolderKeys({node}simulated, key_id={self._root.key_id!r})"
        return f"HolderKeys({node}holders=[{', '.join(map(_name, self._given))}])"


def columns_by_holders(noise: NoiseOperator) -> dict[Holders, NDArray[np.int64]]:
    """Columns of one step of the base noise by their holders, each list increasing and each column in one list.

    Raises: InvalidInput: `noise.holders()` does not have one row per column and one column per node.

    >>> from mfdl.noise import IndependentNoise
    >>> columns_by_holders(IndependentNoise(num_steps=5, num_nodes=2))
    {frozenset({0}): array([0]), frozenset({1}): array([1])}

    Cost: O(holders of all columns).
    """
    table = sp.csr_array(noise.holders(), dtype=bool, copy=True)
    if table.shape != (noise.columns_per_step, noise.num_nodes):
        raise InvalidInput(
            f"holders() of {type(noise).__name__} must have shape {(noise.columns_per_step, noise.num_nodes)}, one row "
            f"per column of a step, got {table.shape}."
        )
    table.eliminate_zeros()
    table.sort_indices()
    of_nodes: dict[bytes, list[int]] = {}  # by bytes: a group of all nodes holds many columns
    for column, (start, stop) in enumerate(itertools.pairwise(table.indptr)):
        of_nodes.setdefault(table.indices[start:stop].tobytes(), []).append(column)
    return {
        frozenset(np.frombuffer(nodes, table.indices.dtype).tolist()): np.array(columns, dtype=np.int64)
        for nodes, columns in of_nodes.items()
    }


def base_columns(
    noise: NoiseOperator, keys: HolderKeys, columns: Iterable[int] | NDArray[np.int64] | None = None, *, shard: int = 0
) -> ColumnNormals:
    """The base normals of any step: `base_columns(noise, keys).step(t, dim)` is Z_t.

    Args: columns: of a step, in any order; default all. shard: part of the coordinates, see `ColumnNormals`.
    Raises: InvalidInput: the secret of a holder set of these columns is missing; or as `columns_by_holders`.
    Cost: one key derivation per holder set, once; then that of `normals_block`.
    """
    sets = columns_by_holders(noise)
    sizes = np.array([*map(len, sets.values())], dtype=np.int64)
    grouped = np.concatenate([*sets.values(), np.empty(0, dtype=np.int64)])
    number, place = np.empty_like(grouped), np.empty_like(grouped)  # of its holder set, and of the column within it
    number[grouped] = np.repeat(np.arange(sizes.size), sizes)
    place[grouped] = np.arange(grouped.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.arange(grouped.size) if columns is None else np.asarray([*columns], dtype=np.int64)
    holders, numbers = [*sets], number[wanted].tolist()
    derived = {i: keys.key_for(holders[i]) for i in dict.fromkeys(numbers)}
    return ColumnNormals([derived[i] for i in numbers], place[wanted], shard=shard)


def holder_set(nodes: Iterable[int]) -> Holders:
    try:
        listed = list(nodes)
    except TypeError:
        raise InvalidInput(f"a holder set must be several node indices, got {nodes!r}; write ({nodes!r},).") from None
    holders = frozenset(check.integer_at_least(0, holder=node) for node in listed)
    if not holders or len(holders) != len(listed):
        raise InvalidInput(f"a holder set must hold distinct node indices, at least one, got {listed}.")
    return holders


def _name(holders: Iterable[int]) -> str:
    nodes = sorted(holders)
    listed = ", ".join(map(str, nodes[:10])) + (f", ... {len(nodes)} nodes" if len(nodes) > 10 else "")
    return "{" + listed + "}"


NONCE_BYTES = 12
Label = str | int | bytes


class NodeIdentity:
    """An X25519 key pair of one node, `public_bytes` for every peer; neither `repr` nor pickling reveals the other one.

    >>> NodeIdentity.generate()
    NodeIdentity(fingerprint='...')
    """

    __slots__ = ("_private", "public_bytes")

    _private: X25519PrivateKey
    public_bytes: bytes

    def __init__(self, private: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # keeps `import mfdl` light

        require_bytes("NodeIdentity.generate() makes one", private=private)
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public_bytes = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> NodeIdentity:
        return cls(secrets.token_bytes(SECRET_BYTES))

    @property
    def fingerprint(self) -> str:
        """A public name of the public key (128 bits of a hash), to compare over another channel."""
        return hashlib.sha256(encode_context(("mfdl/identity/1", self.public_bytes))).hexdigest()[:32]

    def reveal_private(self) -> bytes:
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

    Args: peer_public: from an authenticated channel; run_id: new for each run and equal at both ends; own_label,
        peer_label: names of the two that all nodes use, e.g. their indices.
    Guarantees: both ends get the same key. Another run id, label or public key gives an unrelated one.
    Raises: InvalidInput: a public key of low order, with which every private key gives the secret zero.
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

    Args: key: drawn by one member with `NoiseKey.from_entropy()`; pair: `pair_key` of sender and receiver for this run.
    Returns: 12 bytes nonce, then ciphertext and tag; no secrecy is needed in transit.
    Raises: InvalidInput: sender or receiver is not in the group, or they are equal.
    """
    cipher, context = _seal(pair, group, run_id, sender, receiver)
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, key.reveal_secret() + bytes([key.seeded]), context)


def open_group_key(
    sealed: bytes, pair: NoiseKey, *, group: Iterable[Label], run_id: str | bytes, sender: Label, receiver: Label
) -> NoiseKey:
    """The secret that `seal_group_key` encrypted for this receiver.

    A dishonest sender can seal different secrets for different members; compare `key_id` to see it.

    Raises: InvalidInput: changed in transit, or sealed for another group, run, sender or receiver.
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
    """The HolderKeys of every node of a deployment, agreed on in one process.

    Args: identities: of nodes 0 .. n - 1; holder_sets: e.g. of `columns_by_holders(noise)`.
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
            for node, peer in ((first, *others), (*others, first)):
                keys_of_nodes[node][holders] = pair(node, peer)
            continue
        keys_of_nodes[first][holders] = drawn = NoiseKey.from_entropy()
        for node in others:
            bound: dict[str, Any] = {"group": holders, "run_id": run_id, "sender": first, "receiver": node}
            sealed = seal_group_key(drawn, pair(first, node), **bound)
            keys_of_nodes[node][holders] = open_group_key(sealed, pair(node, first), **bound)
    return [HolderKeys.given(keys).node_keys(node) for node, keys in enumerate(keys_of_nodes)]


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

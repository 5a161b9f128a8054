"""Noise keys, and standard normals as a pure function of (key, node, step).

A run can stop, resume, or be cut into blocks without a noise value used twice or skipped. Noise is float64 numbers made
on the CPU, not hardened against attacks on their low bits.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from .column_generators import SHARDS, TENSORS, ChaChaColumns, ColumnGenerator, PhiloxColumns, prf

SECRET_BYTES = 32
FEWEST_BYTE_VALUES = 12  # fewest distinct bytes of a secret: 32 random bytes have fewer with probability below 2^-80


class NoiseKey:
    """A 256-bit root secret from which all noise of a run is derived, and by which it can be subtracted.

    It is never printed, and belongs in no log, result or checkpoint (`key_id` does). Pickling carries it.

    Attributes: seeded: the key, or an ancestor, came from a user's seed: for research only, never for a release;
        byte_values: distinct bytes of the secret, or of that of an ancestor.
    """

    __slots__ = ("_secret", "byte_values", "seeded")

    _secret: bytes
    seeded: bool
    byte_values: int

    def __init__(self, secret: bytes, *, seeded: bool = False, byte_values: int = SECRET_BYTES) -> None:
        """Takes a secret kept by the user, 32 bytes of `reveal_secret`, never a password or a padded number."""
        require_bytes("use NoiseKey.from_entropy() for a new key", secret=secret)
        object.__setattr__(self, "_secret", secret)
        object.__setattr__(self, "seeded", bool(seeded))
        object.__setattr__(self, "byte_values", min(len({*secret}), byte_values))

    @classmethod
    def from_entropy(cls) -> NoiseKey:
        """A new key from the operating system's entropy, as releases need."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> NoiseKey:
        """The key of a seed >= 0, for runs that must be repeated; marked `seeded`.

        >>> NoiseKey.from_seed(0)
        NoiseKey(key_id='...', seeded=True)
        """
        number = check.integer_at_least(0, seed=seed)
        return cls(prf(b"mfdl/noise-key/1", "seed", number), seeded=True)

    def derive(self, *context: str | int | bytes) -> NoiseKey:
        """The key of a context, e.g. `key.derive("pair", 3, 7)`; independent of the keys of all others.

        Guarantees:
            Contexts that differ in any part, in its type or in where parts are cut give different keys (up to
            a collision of HMAC-SHA256). The secret of the parent cannot be computed from the child's.
        Raises: InvalidInput: no context, or a part that is not a str, int or bytes.
        """
        if not context:
            raise InvalidInput("derive needs at least one context, got none; name the use, e.g. derive('noise').")
        return NoiseKey(prf(self._secret, "derive", *context), seeded=self.seeded, byte_values=self.byte_values)

    @property
    def generator(self) -> type[ColumnGenerator]:
        return PhiloxColumns if self.seeded else ChaChaColumns

    @property
    def key_id(self) -> str:
        """A public name of the key (128 bits of a hash), safe to log and store; of a seeded key it confirms a guess."""
        return prf(self._secret, "key-id")[:16].hex()

    def reveal_secret(self) -> bytes:
        """The secret, for a vault: `NoiseKey(secret, seeded=key.seeded)` resumes a run elsewhere."""
        return self._secret

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"NoiseKey is immutable, cannot set {name!r}.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"NoiseKey is immutable, cannot delete {name!r}.")

    def __repr__(self) -> str:
        return f"NoiseKey(key_id={self.key_id!r}, seeded={self.seeded})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NoiseKey):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.key_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(NoiseKey, seeded=self.seeded, byte_values=self.byte_values), (self._secret,)


def normals(key: NoiseKey, step: int, nodes: ArrayLike, dim: int, *, tensor: int = 0) -> NDArray[np.float64]:
    """`normals_block` of one step, shape (len(nodes), dim)."""
    return normals_block(key, [step], nodes, dim, tensor=tensor)[0]


def normals_block(
    key: NoiseKey, steps: ArrayLike, nodes: ArrayLike, dim: int, *, tensor: int = 0
) -> NDArray[np.float64]:
    """Standard normals of several steps, shape (len(steps), len(nodes), dim), made on the CPU.

    Args: steps, nodes: integers in [0, 2^64), in any order; dim: normals per (node, step), of which the first k are the
        same for every dim >= k; tensor: number in [0, 2^32) of a parameter tensor; the executor has tensor 0 alone.
    Guarantees: a pure function of (key, node, step, tensor), which share no random bits.
    Raises: InvalidInput: key is not a NoiseKey, an index is not an integer in range, or dim < 1.
    """
    require_key(key=key)
    node_words = _counter_words(nodes=nodes)
    return ColumnNormals([key] * node_words.size, node_words).block(steps, dim, tensor=tensor)


def words(key: NoiseKey, step: int, node: int, count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit words of (key, node, step), shape (count,), on the CPU; the first k are the same for every count.

    The counter is that of `normals_block`, so a key serves normals or words, never both: derive one for each.
    """
    require_key(key=key)
    node, step = check.integer_at_least(0, node=node), check.integer_at_least(0, step=step)
    drawn = key.generator([key._secret], np.array([node], dtype=np.uint64), 0)
    return drawn.words(step, check.integer_at_least(0, count=count))[0]


class ColumnNormals:
    """Standard normals of fixed columns, as secret as their keys, which are hashed once.

    Column c at step t is `normals(keys[c], t, [indices[c]], dim)[0]`.

    Args: shard: part of long rows, below SHARDS; shard 0 is the beginning of rows that are not cut, the others have
        counters of their own.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self, keys: Sequence[NoiseKey], indices: ArrayLike, *, shard: int = 0) -> None:
        shard = check.integer_at_least(0, shard=shard)
        if shard >= SHARDS:
            raise InvalidInput(f"shard must be below {SHARDS}, got {shard}; take larger shards.")
        places = _counter_words(indices=indices)
        self._count = places.size
        if len(keys) != self._count:
            raise InvalidInput(f"keys and indices must be equally many, got {len(keys)} and {self._count}.")
        columns: dict[type[ColumnGenerator], list[int]] = {}
        for column, key in enumerate(keys):
            require_key(key=key)
            columns.setdefault(key.generator, []).append(column)
        self._parts = [
            (np.array(of, dtype=np.intp), generator([keys[c]._secret for c in of], places[of], shard))
            for generator, of in columns.items()
        ]

    def __len__(self) -> int:
        return self._count

    def step(self, step: int, dim: int, *, tensor: int = 0) -> FloatArray:
        return self.block([step], dim, tensor=tensor)[0]

    def block(self, steps: ArrayLike, dim: int, *, tensor: int = 0) -> FloatArray:
        """Normals of several steps, shape (len(steps), columns, dim)."""
        step_words, dim = _counter_words(steps=steps), check.integer_at_least(1, dim=dim)
        tensor = check.integer_at_least(0, tensor=tensor)
        if tensor >= TENSORS:
            raise InvalidInput(f"tensor must be an integer in [0, 2^32), got {tensor}.")
        if len(self._parts) == 1:
            return self._parts[0][1].block(step_words, dim, tensor)
        out = np.empty((step_words.size, self._count, dim))
        for columns, generator in self._parts:
            out[:, columns] = generator.block(step_words, dim, tensor)
        return out


def require_key(**named: object) -> None:
    """Refuses, without showing it, a value that is no NoiseKey."""
    name, key = check.name_and_value(named)
    if not isinstance(key, NoiseKey):
        raise InvalidInput(f"{name} must be a NoiseKey, got {type(key).__name__}; use NoiseKey.from_entropy().")


def require_secure(way_out: str, **named: NoiseKey) -> None:
    """Refuses, without showing it, a key whose noise others can compute: of a seed, or of few distinct bytes."""
    name, key = check.name_and_value(named)
    assert isinstance(key, NoiseKey)
    if not key.generator.secure:
        raise InvalidInput(
            f"{name} must be secret where anything is published, and must not come from a seed: others can guess that "
            f"and subtract the noise, which {key.generator.name} makes, no cipher; {way_out}."
        )
    if key.byte_values < FEWEST_BYTE_VALUES:
        raise InvalidInput(
            f"{name} must have a secret of 32 random bytes where anything is published, got {key.byte_values} "
            f"distinct bytes, which others can guess; {way_out}."
        )


def require_bytes(way_out: str, **named: object) -> None:
    """Refuses, without showing it, a value that is no secret or key of 32 bytes."""
    name, value = check.name_and_value(named)
    if not isinstance(value, bytes) or len(value) != SECRET_BYTES:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise InvalidInput(f"{name} must be {SECRET_BYTES} bytes, got {got}; {way_out}.")


def _counter_words(**named: Any) -> NDArray[np.uint64]:
    name, value = check.name_and_value(named)
    array = np.asarray(value)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, dtype=np.uint64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"{name} must be a 1-D array of integers in [0, 2^64), got shape {array.shape} of {array.dtype}."
        )
    if array.dtype.kind == "i" and array.min() < 0:
        raise InvalidInput(f"{name} must be integers in [0, 2^64), got {array.min()}.")
    return array.astype(np.uint64)

"""Noise keys, and standard normals as a pure function of (key, node, step).

In: a root secret, from the operating system or from a seed. Out: derived keys, a public identifier, and
normals that depend on nothing but (key, node, step), so that a run can stop, resume, or be cut into any
blocks without a noise value used twice or skipped. Which key makes which noise is in `shared_randomness`,
how normals become correlated noise in `streams`.

The normals are float64 ziggurat draws from Philox4x64-10. Philox is a statistical generator with a 128-bit
key, hashed from the 256-bit secret, so 128 bits is the strength of the noise; it is not a cipher, and
floating-point Gaussian noise is not hardened against attacks on its low bits.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices
from ..errors import InvalidInput
from . import short_rows

SECRET_BYTES = 32
GENERATOR = "philox4x64-10/ziggurat/holder-keys/2"
"""Name of the rule (key, node, step) -> normals. Stored with runs: another rule is another noise."""

_COUNTER_DOMAIN = 1  # low half of the second counter word: the version of the rule named by GENERATOR
_TENSOR_SHIFT = 32  # its high half: the tensor
_SHARD_SHIFT = 40  # first counter word at which the blocks of a shard begin: far above those that any row takes
SHARDS = 2 ** (64 - _SHARD_SHIFT)
"""Shards of a row at most."""


class NoiseKey:
    """A 256-bit root secret from which all noise of a run is derived.

    Anyone with the secret can subtract the noise: it is never printed, and it belongs in no log, result or
    checkpoint (`key_id` does). Pickling carries the secret, because worker processes need it.

    Attributes:
        seeded: True when the key, or the key it was derived from, came from a user's seed. Such a run can be
            repeated by anybody who guesses the seed: for research only, never for a release.
    """

    __slots__ = ("_secret", "seeded")

    _secret: bytes
    seeded: bool

    def __init__(self, secret: bytes, *, seeded: bool = False) -> None:
        """Takes a secret kept by the user; `from_entropy` makes a new one."""
        require_bytes("use NoiseKey.from_entropy() for a new key", secret=secret)
        object.__setattr__(self, "_secret", secret)
        object.__setattr__(self, "seeded", bool(seeded))

    @classmethod
    def from_entropy(cls) -> NoiseKey:
        """A fresh key from the operating system's entropy: the one to use for a release."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> NoiseKey:
        """The key of a seed >= 0, for runs that must be repeated; marked `seeded`.

        >>> NoiseKey.from_seed(0)
        NoiseKey(key_id='...', seeded=True)
        """
        number = check.integer_at_least(0, seed=seed)
        return cls(_prf(b"mfdl/noise-key/1", "seed", number), seeded=True)

    def derive(self, *context: str | int | bytes) -> NoiseKey:
        """The key of a context, e.g. `key.derive("pair", 3, 7)`; independent of the keys of all others.

        Guarantees:
            Contexts that differ in any part, in its type or in where parts are cut give different keys (up to
            a collision of HMAC-SHA256). The secret of the parent cannot be computed from the child's.
        Raises:
            InvalidInput: no context, or a part that is not a str, int or bytes.
        """
        if not context:
            raise InvalidInput("derive needs at least one context, got none; name the use, e.g. derive('noise').")
        return NoiseKey(_prf(self._secret, "derive", *context), seeded=self.seeded)

    @property
    def key_id(self) -> str:
        """A public name of the key (128 bits of a hash under a domain of its own), safe to log and store.

        It reveals nothing about an entropy key; with a seeded one, a guess of the seed can be checked.
        """
        return _prf(self._secret, "key-id")[:16].hex()

    def reveal_secret(self) -> bytes:
        """The secret itself, for a vault: `NoiseKey(secret)` needs it to resume a run in another process."""
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
        return functools.partial(NoiseKey, seeded=self.seeded), (self._secret,)


def normals(key: NoiseKey, step: int, nodes: ArrayLike, dim: int, *, tensor: int = 0) -> NDArray[np.float64]:
    """Standard normals of one step, shape (len(nodes), dim): row i belongs to (key, nodes[i], step).

    See `normals_block`, of which this is one step.
    """
    return normals_block(key, [step], nodes, dim, tensor=tensor)[0]


def normals_block(
    key: NoiseKey, steps: ArrayLike, nodes: ArrayLike, dim: int, *, tensor: int = 0
) -> NDArray[np.float64]:
    """Standard normals of several steps, shape (len(steps), len(nodes), dim).

    The stream of (key, node, step) is Philox4x64 with a 128-bit key hashed from `key` and the 256-bit counter
    with words, lowest first, (block, domain + 2^32 tensor, node, step), block = 1, 2, ... (of `ColumnNormals` of a
    shard 2^40 shard + 1, ...); each block gives 4 words of 64 bits. Always made on the CPU, so that every device sees
    the same noise.

    Args:
        key: the secret.
        steps, nodes: integers in [0, 2^64), in any order.
        dim: normals per (node, step), >= 1. The first k normals are the same for every dim >= k.
        tensor: which of several parameter tensors the normals are for, an integer in [0, 2^32); the executor
            flattens all parameters into tensor 0.

    Guarantees:
        A pure function of (key, node, step, tensor): the order and the grouping of calls do not matter.
        Under one key, no two (node, step, tensor) share a counter: they have counter words of their own, and
        block carries into them only after 2^64 - 1 blocks, about 2^66 words of 64 bits,
        while a normal takes 1.02 words on average and a row that long does not fit any memory. Philox is a
        bijection of the counter, so different counters give different blocks.
    Raises:
        InvalidInput: key is not a NoiseKey, an index is not an integer in range, or dim < 1.
    Cost: about 1 microsecond per (node, step) and 10 ns per normal; of many short rows less (`short_rows`).
    """
    require_key(key=key)
    node_words = _counter_words(nodes=nodes)
    return ColumnNormals([key] * node_words.size, node_words).block(steps, dim, tensor=tensor)


def words(key: NoiseKey, step: int, node: int, count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit words of (key, node, step), shape (count,), on the CPU; the first k are the same for every count.

    The counter is that of `normals_block`, so a key serves normals or words, never both: derive one for each.
    """
    require_key(key=key)
    at = [check.integer_at_least(0, **{name: value}) for name, value in (("node", node), ("step", step))]
    counter = np.array([0, _COUNTER_DOMAIN, *at], dtype=np.uint64)
    drawn = np.random.Philox(key=_philox_key(key), counter=counter).random_raw(check.integer_at_least(0, count=count))
    return np.asarray(drawn, dtype=np.uint64)


class ColumnNormals:
    """Standard normals of fixed columns, each with a key and an index of its own: keys are hashed once.

    Column c at step t is `normals(keys[c], t, [indices[c]], dim)[0]`. What is kept, the Philox keys, makes the
    normals: as secret as the keys.

    Args: keys, indices: one key and one index in [0, 2^64) per column; shard: which part of long rows, below SHARDS.
        Shard 0 is what rows that are not cut begin with; the others are blocks 2^40 shard + 1, ..., which no row that
        fits a memory reaches.
    """

    __slots__ = ("_indices", "_shard", "_words")

    def __init__(self, keys: Sequence[NoiseKey], indices: ArrayLike, *, shard: int = 0) -> None:
        self._shard = check.integer_at_least(0, shard=shard)
        if shard >= SHARDS:
            raise InvalidInput(f"shard must be below {SHARDS}, got {shard}; take larger shards.")
        self._indices = _counter_words(indices=indices)
        if len(keys) != self._indices.size:
            raise InvalidInput(f"keys and indices must be equally many, got {len(keys)} and {self._indices.size}.")
        self._words = np.array([*map(matrices.once(_philox_key), keys)], dtype=np.uint64).reshape(-1, 2)

    def __len__(self) -> int:
        return self._indices.size

    def step(self, step: int, dim: int, *, tensor: int = 0) -> NDArray[np.float64]:
        """Normals of one step, shape (columns, dim)."""
        return self.block([step], dim, tensor=tensor)[0]

    def block(self, steps: ArrayLike, dim: int, *, tensor: int = 0) -> NDArray[np.float64]:
        """Normals of several steps, shape (len(steps), columns, dim)."""
        step_words = _counter_words(steps=steps)
        dim = check.integer_at_least(1, dim=dim)
        tensor = check.integer_at_least(0, tensor=tensor)
        if tensor >= 2**_TENSOR_SHIFT:
            raise InvalidInput(f"tensor must be an integer in [0, 2^{_TENSOR_SHIFT}), got {tensor}.")

        block, domain = np.uint64(self._shard << _SHARD_SHIFT), np.uint64(_COUNTER_DOMAIN + (tensor << _TENSOR_SHIFT))
        out = np.empty((step_words.size, len(self), dim))
        rows, count = out.reshape(-1, dim), len(self)
        left: NDArray[np.intp] = np.arange(len(rows))
        if dim <= short_rows.LONGEST and len(rows) >= short_rows.FEWEST:
            columns, of_step = np.tile(np.arange(count), step_words.size), np.repeat(step_words, count)
            left = short_rows.fill(rows, self._words[columns], (block, domain, self._indices[columns], of_step))
        self._draw(rows, left, step_words, (block, domain))
        return out

    def _draw(
        self, rows: NDArray[np.float64], which: NDArray[np.intp], steps: NDArray[np.uint64], low: tuple[np.uint64, ...]
    ) -> None:
        """Draws some of all (step, column) rows, one after another; `low` are the lower counter words."""
        philox = np.random.Philox(key=0)  # local, so threads do not share it
        draw = np.random.Generator(philox).standard_normal
        counter = np.array([*low, 0, 0], dtype=np.uint64)
        # Setting the state costs 0.6 microseconds, a new Philox and Generator 6. The state of an unused Philox
        # holds no word left over from an earlier block, so setting it also empties the buffer.
        state: Any = philox.state
        state["state"] = words = {"counter": counter, "key": None}
        step, column = np.divmod(which, max(1, len(self)))
        for row, key, index, t in zip(
            which.tolist(), self._words[column], self._indices[column], steps[step], strict=True
        ):
            counter[2], counter[3] = index, t
            words["key"] = key
            philox.state = state
            draw(out=rows[row])


def require_key(**named: object) -> None:
    """Refuses, without showing it, what is no NoiseKey."""
    name, key = check.name_and_value(named)
    if not isinstance(key, NoiseKey):
        raise InvalidInput(f"{name} must be a NoiseKey, got {type(key).__name__}; use NoiseKey.from_entropy().")


def require_bytes(way_out: str, **named: object) -> None:
    """Refuses, without showing it, what is no secret or key of 32 bytes."""
    name, value = check.name_and_value(named)
    if not isinstance(value, bytes) or len(value) != SECRET_BYTES:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise InvalidInput(f"{name} must be {SECRET_BYTES} bytes, got {got}; {way_out}.")


def _philox_key(key: NoiseKey) -> NDArray[np.uint64]:
    require_key(key=key)
    return np.frombuffer(_prf(key._secret, "philox")[:16], dtype="<u8")


def _counter_words(**named: Any) -> NDArray[np.uint64]:
    """A 1-D uint64 array of indices, refusing everything that a cast would change."""
    ((name, value),) = named.items()
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


def _prf(secret: bytes, *parts: str | int | bytes) -> bytes:
    """HMAC-SHA256 of the parts; the first part names the purpose, so purposes never meet."""
    return hmac.digest(secret, encode_context(parts), "sha256")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, as JSON files may hold one
        raise InvalidInput(f"a key context must be text that UTF-8 can encode, got {text!a}.") from None


def encode_context(parts: Sequence[str | int | bytes]) -> bytes:
    """An injective encoding of a context: each part as its type, its length in 8 bytes, its bytes."""
    encoded = []
    for part in parts:
        if isinstance(part, str):
            tag, data = b"s", _utf8(part)
        elif isinstance(part, bytes):
            tag, data = b"b", part
        else:
            try:
                number = check.index(part)
            except TypeError:
                raise InvalidInput(f"a key context must be str, int or bytes, got {type(part).__name__}.") from None
            tag, data = b"i", number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
        encoded.append(tag + len(data).to_bytes(8, "big") + data)
    return b"".join(encoded)

"""What a generator of base noise is: words and standard normals of fixed columns at any step.

In: the secret, the index and the shard of each column. Out: 64-bit words and normals that depend on nothing but
(secret, index, shard, tensor, step) and their place in the row, so that any block can be asked for, in any order. Its
implementations are `philox` for keys of a seed and `chacha` for secret keys; `keys.ColumnNormals` chooses.

`prf` derives every key of the library from a secret: HMAC-SHA256 over an injective encoding of a context.
"""

from __future__ import annotations

import abc
import hmac
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput

Words = NDArray[np.uint64]

SHARDS = 2**24
"""Shards of a row at most."""
TENSORS = 2**32
"""Tensors at most."""


class ColumnGenerator(abc.ABC):
    """Base noise of columns.

    Args: secrets: 32 bytes for each column; indices: of the columns, uint64; shard: which part of long rows, below
        SHARDS.

    Attributes:
        name: of the rule from secret and counters to normals; stored with runs, since another rule is another noise.
        secure: whether the words are those of a cipher, so that no feasible computation tells them from uniform ones
            without the secret.
    """

    name: ClassVar[str]
    secure: ClassVar[bool]

    @abc.abstractmethod
    def __init__(self, secrets: Sequence[bytes], indices: Words, shard: int) -> None: ...

    @abc.abstractmethod
    def block(self, steps: Words, dim: int, tensor: int) -> FloatArray:
        """Standard normals, shape (steps, columns, dim); the first k of a row are the same for every dim >= k."""

    @abc.abstractmethod
    def words(self, step: int, count: int) -> Words:
        """Uniform words of tensor 0, shape (columns, count), from the counters of `block`: a secret serves one use."""


def prf(secret: bytes, *parts: str | int | bytes) -> bytes:
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

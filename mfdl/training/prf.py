"""A pseudo-random function of contexts: every key of the library is derived by it from a secret.

In: a secret and a context, a sequence of texts, integers and bytes. Out: 32 bytes, those of HMAC-SHA256 over an
injective encoding of the context. What the derived keys are for is in `keys`.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from .. import check
from ..errors import InvalidInput


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

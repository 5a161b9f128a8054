"""What a privacy number was computed for, in one short text: so that it is never taken for another question's.

Losses, guarantees and mechanisms carry it. Five parts, each of what decides the number and nothing else: the algorithm
by content, the trust model by name and parameters or by its evaluated masks, the participation by scheme and
parameters, the released models, the unit. `noise_std`, clipping and adjacency are fields of a guarantee, beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Protocol

from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..participation import Participation
from ..trust import TrustModel

SEPARATOR = "."
UNNAMED = ("custom", "matrices")
"""Trust models that one word stands for, whatever they show."""


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Hashes of 16 hex digits, and the release and the unit as they are.

    >>> Fingerprint("a1", "b2", "c3", "none", "record").text
    'a1.b2.c3.none.record'
    """

    algorithm: str
    trust: str
    participation: str
    release: str
    unit: str

    @classmethod
    def of(
        cls, algorithm: LinearAlgorithm, trust: TrustModel, participation: Participation, release: str, unit: str
    ) -> Fingerprint:
        """Of one question about an algorithm. Cost: no n x n work for shipped trust models."""
        scheme = participation_hash(participation)
        return cls(algorithm.content_hash, trust.fingerprint(algorithm), scheme, release, unit)

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """The inverse of `text`. Raises: InvalidInput: another form."""
        parts = text.split(SEPARATOR) if isinstance(text, str) else []
        if len(parts) != 5:
            raise InvalidInput(f"a fingerprint must have 5 parts joined by {SEPARATOR!r}, got {text!r}.")
        return cls(*parts)

    @property
    def text(self) -> str:
        """All parts in one line, for files."""
        return SEPARATOR.join(dataclasses.astuple(self))

    def require(self, other: Fingerprint, *, what: str) -> None:
        """Raises InvalidInput where this was computed for something else than `other`, naming the first difference."""
        theirs_of = dataclasses.asdict(other)
        for field, mine in dataclasses.asdict(self).items():
            if mine != (theirs := theirs_of[field]):
                raise InvalidInput(
                    f"{what} for another {field.replace('trust', 'trust model')} ({mine} instead of {theirs}); "
                    "calibrate or account anew."
                )


class Stated(Protocol):
    """What a guarantee says of its question."""

    @property
    def trust(self) -> str:
        """The name of the trust model."""

    @property
    def attacker(self) -> str:
        """Who observes, in words."""

    @property
    def fingerprint(self) -> str:
        """`Fingerprint.text`; may be empty."""


def fingerprint_of_both(this: Stated, other: Stated) -> str:
    """That of two runs seen together; empty where one is a statement of the caller's own.

    Raises: InvalidInput: other nodes, attackers or masks behind the same words.
    """
    if not (this.fingerprint and other.fingerprint):
        if this.trust in UNNAMED:
            raise InvalidInput(
                "guarantees of unnamed trust models cannot be composed: two of them may see different things; "
                "name them, TrustModel.from_masks(..., name=...), and give one name to one model."
            )
        return ""
    mine, theirs = Fingerprint.parse(this.fingerprint), Fingerprint.parse(other.fingerprint)
    if mine.trust != theirs.trust:
        raise InvalidInput(
            f"guarantees compose only against the same attackers, and {this.attacker!r} stands for others in the "
            f"two ({mine.trust}, {theirs.trust}): other nodes, or masks that show something else."
        )
    return dataclasses.replace(
        mine,
        algorithm=short_hash(mine.algorithm, theirs.algorithm),
        participation=short_hash(mine.participation, theirs.participation),
    ).text


def participation_hash(participation: Participation) -> str:
    """16 hex digits of scheme and parameters; of all patterns where they were listed."""
    return short_hash(json.dumps(participation.to_dict(), sort_keys=True))


def short_hash(*parts: str | bytes) -> str:
    """16 hex digits of the parts in order.

    >>> short_hash("ab", "c") == short_hash("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]

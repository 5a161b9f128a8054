"""A mechanism in a file and back: everything but code and keys.

In: a `Mechanism`, or the path of one. Out: a file of `mfdl.archive`, or what the constructor of `Mechanism` takes. The
guarantee is read as a claim, and says so; `Mechanism.load` accounts it anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from . import archive
from .algorithms import LinearAlgorithm
from .algorithms.saved import CLASSES, pack_algorithm, unpack_algorithm
from .archive import Packer, Unpacker
from .errors import InvalidInput
from .privacy.guarantee import Guarantee
from .trust.saved import trust_from_dict, trust_to_dict

if TYPE_CHECKING:
    from .mechanism import Mechanism

MECHANISM = "mechanism"


def mechanism_parts(mechanism: Mechanism, packer: Packer) -> dict[str, Any]:
    """The mechanism as JSON, its arrays in the packer.

    Raises: InvalidInput: an algorithm that a file cannot hold, or that would come back as another one.
    """
    parts: dict[str, Any] = {
        "content_hash": mechanism.content_hash,
        "algorithm_hash": mechanism.accounted,
        "algorithm": pack_algorithm(mechanism.algorithm, packer),
        "guarantee": mechanism.guarantee.to_dict(),
        "trust": trust_to_dict(mechanism.trust),
    }
    again = unpack_algorithm(parts["algorithm"], Unpacker(packer.arrays, CLASSES))
    if again.content_hash != mechanism.accounted:
        raise InvalidInput(
            f"algorithm {mechanism.algorithm.name!r} cannot be saved: read back it would not be the one that was "
            "accounted; use plain numbers or texts as node labels, and own classes of mfdl."
        )
    return parts


def write_mechanism(path: str | os.PathLike[str], mechanism: Mechanism) -> Path:
    """See `Mechanism.save`."""
    packer = Packer(CLASSES)
    return archive.write(path, MECHANISM, {MECHANISM: mechanism_parts(mechanism, packer)}, packer, private=False)


def read_mechanism(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """What the constructor of `Mechanism` takes, the guarantee as it is stated, and the content hash that was saved."""
    header, arrays = archive.read(path, MECHANISM)
    with archive.refusing(path, MECHANISM):
        return mechanism_fields(header[MECHANISM], arrays)


def mechanism_fields(parts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Any], str]:
    """The inverse of `mechanism_parts`, and the content hash.

    Raises: InvalidInput: an algorithm with another content hash than the one saved, or a guarantee that was edited.
    """
    algorithm = _algorithm(parts, arrays)
    stated = Guarantee.from_dict(parts["guarantee"])
    if not (stated.fingerprint and stated.seal):
        raise InvalidInput("its guarantee was edited: it is not the one that was accounted; calibrate or account anew.")
    fields = {"algorithm": algorithm, "guarantee": stated, "trust": trust_from_dict(parts["trust"])}
    return fields, str(parts["content_hash"])


def _algorithm(parts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> LinearAlgorithm:
    algorithm = unpack_algorithm(parts["algorithm"], Unpacker(arrays, CLASSES))
    if algorithm.content_hash != parts["algorithm_hash"]:
        raise InvalidInput(
            f"its algorithm has content hash {algorithm.content_hash}, and {parts['algorithm_hash']} was saved: it is "
            "not the one that was accounted; calibrate or account anew."
        )
    return algorithm

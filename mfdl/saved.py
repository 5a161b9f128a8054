"""A mechanism in a file and back: everything but code and keys.

In: a `Mechanism`, or the path of one. Out: a file of `mfdl.archive`, or what the constructor of `Mechanism` takes. The
guarantee is read as a claim, and says so; `Mechanism.load` accounts it anew.
"""

from __future__ import annotations

import dataclasses
import math
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
from .privacy.sensitivity import Sensitivity
from .trust.saved import trust_from_dict, trust_to_dict

if TYPE_CHECKING:
    from .mechanism import Mechanism
    from .sampled import SampledMechanism

MECHANISM, SAMPLED = "mechanism", "sampled"
_SENSITIVITY = {"Sensitivity": Sensitivity}


def mechanism_parts(mechanism: Mechanism, packer: Packer) -> dict[str, Any]:
    """The mechanism as JSON, its arrays in the packer.

    Raises: InvalidInput: an algorithm that a file cannot hold, or that would come back as another one.
    """
    lipschitz = mechanism.lipschitz
    return {
        **_what_runs(mechanism, packer),
        "guarantee": mechanism.guarantee.to_dict(),
        "sensitivity": Packer(_SENSITIVITY)(mechanism.sensitivity, "sensitivity"),
        "lipschitz": None if lipschitz is None else float(lipschitz),
    }


def sampled_parts(mechanism: SampledMechanism, packer: Packer) -> dict[str, Any]:
    """The same of secret batches: what its guarantee is accounted from, and what it states.

    Raises: InvalidInput: as `mechanism_parts`.
    """
    stated, delta = mechanism.guarantee, mechanism.guarantee.stated_delta
    sampling = getattr(stated.accountant, "sampling", None)
    said = {"adjacency": stated.adjacency, "stated_delta": delta, "epsilon": _json(stated.epsilon(delta))}
    said["tries"] = getattr(stated.accountant, "trial", 0)
    said["method"] = "certified" if sampling is None else dataclasses.asdict(sampling)
    return {**_what_runs(mechanism, packer), SAMPLED: said}


def _json(value: float) -> float | str:
    return "inf" if value == math.inf else float(value)


def _what_runs(mechanism: Mechanism | SampledMechanism, packer: Packer) -> dict[str, Any]:
    """What is emitted, and under which trust model; all kinds of mechanism have it."""
    parts: dict[str, Any] = {
        "content_hash": mechanism.content_hash,
        "algorithm_hash": mechanism.accounted,
        "algorithm": pack_algorithm(mechanism.algorithm, packer),
        "noise_std": float(mechanism.noise_std),
        "clip_norm": float(mechanism.clip_norm),
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


def write_sampled(path: str | os.PathLike[str], mechanism: SampledMechanism) -> Path:
    """See `SampledMechanism.save`."""
    packer = Packer(CLASSES)
    return archive.write(path, MECHANISM, {MECHANISM: sampled_parts(mechanism, packer)}, packer, private=False)


def sampled_fields(parts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What `sampled_parts` wrote, the algorithm and the trust model made again.

    Raises: InvalidInput: a mechanism of public patterns, or an algorithm with another content hash than was saved.
    """
    if SAMPLED not in parts:
        raise InvalidInput("its batches are no secret; load it with mfdl.Mechanism.load.")
    fields = dict(parts[SAMPLED])
    fields["epsilon"] = math.inf if fields["epsilon"] == "inf" else float(fields["epsilon"])
    more = {name: parts[name] for name in ("noise_std", "clip_norm", "content_hash")}
    return {**fields, **more, "algorithm": _algorithm(parts, arrays), "trust": trust_from_dict(parts["trust"])}


def read_mechanism(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """What the constructor of `Mechanism` takes, the guarantee as it is stated, and the content hash that was saved."""
    header, arrays = archive.read(path, MECHANISM)
    with archive.refusing(path, MECHANISM):
        return mechanism_fields(header[MECHANISM], arrays)


def mechanism_fields(parts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Any], str]:
    """The inverse of `mechanism_parts`, and the content hash.

    Raises: InvalidInput: an algorithm with another content hash than the one saved, or a guarantee that was edited.
    """
    if SAMPLED in parts:
        raise InvalidInput("its batches are secret, so it has no mu; load it with mfdl.sampled.SampledMechanism.load.")
    algorithm = _algorithm(parts, arrays)
    stated = Guarantee.from_dict(parts["guarantee"])
    if not (stated.fingerprint and stated.seal):
        raise InvalidInput("its guarantee was edited: it is not the one that was accounted; calibrate or account anew.")
    sensitivity = Unpacker({}, _SENSITIVITY)(parts["sensitivity"])
    if not (isinstance(sensitivity.squared, float) and 0 <= sensitivity.squared <= math.inf):
        raise InvalidInput(f"its sensitivity must be a number >= 0, got {sensitivity.squared!r}.")
    fields = {
        "algorithm": algorithm,
        "guarantee": stated,
        "sensitivity": sensitivity,
        "trust": trust_from_dict(parts["trust"]),
        **{name: parts[name] for name in ("noise_std", "clip_norm", "lipschitz")},
    }
    return fields, str(parts["content_hash"])


def _algorithm(parts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> LinearAlgorithm:
    algorithm = unpack_algorithm(parts["algorithm"], Unpacker(arrays, CLASSES))
    if algorithm.content_hash != parts["algorithm_hash"]:
        raise InvalidInput(
            f"its algorithm has content hash {algorithm.content_hash}, and {parts['algorithm_hash']} was saved: it is "
            "not the one that was accounted; calibrate or account anew."
        )
    return algorithm

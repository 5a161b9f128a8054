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

from . import archive, check
from .algorithms import LinearAlgorithm
from .errors import InvalidInput
from .privacy.guarantee import Guarantee
from .privacy.sensitivity import Sensitivity
from .storable import is_storable
from .trust import TrustModel

if TYPE_CHECKING:
    from .mechanism import Mechanism
    from .sampled import SampledMechanism

MECHANISM, SAMPLED = "mechanism", "sampled"


def mechanism_parts(mechanism: Mechanism) -> dict[str, Any]:
    """What of a mechanism is stored.

    Raises: InvalidInput: an algorithm that a file cannot hold, or that would come back as another one.
    """
    lipschitz = mechanism.lipschitz
    return {
        **_what_runs(mechanism),
        "guarantee": mechanism.guarantee.to_dict(),
        "sensitivity": mechanism.sensitivity,
        "lipschitz": None if lipschitz is None else float(lipschitz),
    }


def sampled_parts(mechanism: SampledMechanism) -> dict[str, Any]:
    """The same of secret batches: what its guarantee is accounted from, and what it states.

    Raises: InvalidInput: as `mechanism_parts`.
    """
    stated, delta = mechanism.guarantee, mechanism.guarantee.stated_delta
    sampling = getattr(stated.accountant, "sampling", None)
    said = {"adjacency": stated.adjacency, "stated_delta": delta, "epsilon": float(stated.epsilon(delta))}
    said["tries"] = getattr(stated.accountant, "trial", 0)
    said["method"] = "certified" if sampling is None else dataclasses.asdict(sampling)
    return {**_what_runs(mechanism), SAMPLED: said}


def _what_runs(mechanism: Mechanism | SampledMechanism) -> dict[str, Any]:
    """What is emitted, and under which trust model; all kinds of mechanism have it."""
    parts: dict[str, Any] = {
        "content_hash": mechanism.content_hash,
        "algorithm_hash": mechanism.accounted,
        "algorithm": mechanism.algorithm,
        "noise_std": float(mechanism.noise_std),
        "clip_norm": float(mechanism.clip_norm),
        "trust": mechanism.trust if is_storable(mechanism.trust) else None,  # masks of the user's own are code
    }
    if archive.copied(mechanism.algorithm, "the algorithm").content_hash != mechanism.accounted:
        raise InvalidInput(
            f"algorithm {mechanism.algorithm.name!r} cannot be saved: read back it would not be the one that was "
            "accounted; use plain numbers or texts as node labels, and own classes of mfdl."
        )
    return parts


def write_mechanism(path: str | os.PathLike[str], mechanism: Mechanism) -> Path:
    """See `Mechanism.save`."""
    return archive.write(path, MECHANISM, mechanism_parts(mechanism))


def write_sampled(path: str | os.PathLike[str], mechanism: SampledMechanism) -> Path:
    """See `SampledMechanism.save`."""
    return archive.write(path, MECHANISM, sampled_parts(mechanism))


def sampled_fields(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What `sampled_parts` wrote.

    Raises: InvalidInput: a mechanism of public patterns, or an algorithm with another content hash than was saved.
    """
    if SAMPLED not in parts:
        raise InvalidInput("its batches are no secret; load it with mfdl.Mechanism.load.")
    fields = dict(parts[SAMPLED])
    more = {name: parts[name] for name in ("noise_std", "clip_norm", "content_hash")}
    return {**fields, **more, "algorithm": _algorithm(parts), "trust": _trust(parts)}


def read_mechanism(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """What the constructor of `Mechanism` takes, the guarantee as it is stated, and the content hash that was saved."""
    content = archive.read(path, MECHANISM)
    with archive.refusing(path, MECHANISM):
        return mechanism_fields(content)


def mechanism_fields(parts: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The inverse of `mechanism_parts`, and the content hash.

    Raises: InvalidInput: an algorithm with another content hash than the one saved, or a guarantee that was edited.
    """
    if SAMPLED in parts:
        raise InvalidInput("its batches are secret, so it has no mu; load it with mfdl.sampled.SampledMechanism.load.")
    algorithm = _algorithm(parts)
    stated = Guarantee.from_dict(parts["guarantee"])
    if not (stated.fingerprint and stated.seal):
        raise InvalidInput("its guarantee was edited: it is not the one that was accounted; calibrate or account anew.")
    sensitivity: Sensitivity = parts["sensitivity"]
    if not (isinstance(sensitivity.squared, float) and 0 <= sensitivity.squared <= math.inf):
        raise InvalidInput(f"its sensitivity must be a number >= 0, got {sensitivity.squared!r}.")
    fields = {
        "algorithm": algorithm,
        "guarantee": stated,
        "sensitivity": sensitivity,
        "trust": _trust(parts),
        **{name: parts[name] for name in ("noise_std", "clip_norm", "lipschitz")},
    }
    return fields, str(parts["content_hash"])


def _trust(parts: Mapping[str, Any]) -> TrustModel | None:
    model: TrustModel | None = parts["trust"]
    if model is not None:
        check.instance(TrustModel, trust=model)
    return model


def _algorithm(parts: Mapping[str, Any]) -> LinearAlgorithm:
    algorithm: LinearAlgorithm = parts["algorithm"]
    check.instance(LinearAlgorithm, algorithm=algorithm)
    if algorithm.content_hash != parts["algorithm_hash"]:
        raise InvalidInput(
            f"its algorithm has content hash {algorithm.content_hash}, and {parts['algorithm_hash']} was saved: it is "
            "not the one that was accounted; calibrate or account anew."
        )
    return algorithm

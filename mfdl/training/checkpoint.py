"""Checkpoints: the models after a step, and the metadata that must match before a run resumes.

One file in one folder, replaced whole, readable by its owner alone. It never holds the noise secret: `key_id` and the
step suffice for the owner of the key. A SHA-256 detects damage, not forgery.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import archive, check
from ..errors import InvalidInput
from .keys import NoiseKey

CHECKPOINT = "checkpoint"
FILE = CHECKPOINT + archive.SUFFIX


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """A step, its models on the CPU, its metadata, and the names of those of both that no guarantee covers."""

    step: int
    models: dict[str, torch.Tensor]
    metadata: dict[str, Any]
    private: tuple[str, ...] = ()


def save(
    folder: str | os.PathLike[str],
    *,
    step: int,
    models: Mapping[str, torch.Tensor],
    metadata: Mapping[str, Any],
    private: Iterable[str] | None = None,
) -> Path:
    """Writes or replaces the checkpoint of a folder, which is made if missing; returns the path of the file.

    Args: step: number of finished steps; metadata: plain JSON values; private: names of the tensors and metadata that
        must not be published, default all tensors.
    Guarantees: after a crash `load` gives the old checkpoint or the new one. No NoiseKey and no bytes are written.
    Raises: InvalidInput: the folder cannot be written, metadata is not plain JSON or holds a secret.
    """
    step = check.integer_at_least(0, step=step)
    plain = json.loads(_canonical(_plain(dict(metadata), "metadata")))
    marked = sorted(set(models if private is None else private))
    unknown = [name for name in marked if name not in models and name not in plain]
    if unknown:
        raise InvalidInput(f"private must name tensors or metadata of the checkpoint, got {unknown[0]!r}.")
    arrays = {name: _array(name, tensor) for name, tensor in models.items()}
    content = {"step": step, "models": arrays, "metadata": plain, "private": marked}
    path = archive.write(Path(folder) / FILE, CHECKPOINT, content, private=True)
    remove_leftovers(folder)
    return path


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Removes unfinished files of killed runs; only the run that writes into the folder may call it."""
    for leftover in Path(folder).glob(f".{FILE}.*.tmp"):
        with contextlib.suppress(OSError):  # it costs space, nothing else
            leftover.unlink()


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise InvalidInput(f"models must map names to tensors, got {name!r}: {type(tensor).__name__}.")
    try:
        return np.array(tensor.detach().cpu().numpy())
    except TypeError:
        raise InvalidInput(f"models must have types that numpy has, got {tensor.dtype} in {name!r}; cast it.") from None


def load(folder: str | os.PathLike[str]) -> Checkpoint:
    """Reads the checkpoint of a folder.

    Raises: InvalidInput: no checkpoint, a file that cannot be read, another format version, or damaged content.
    """
    path = Path(folder) / FILE
    content = archive.read(path, CHECKPOINT)
    with archive.refusing(path, CHECKPOINT):
        return Checkpoint(
            step=check.integer_at_least(0, step=content["step"]),
            models={name: torch.tensor(array) for name, array in content["models"].items()},
            metadata=dict(content["metadata"]),
            private=tuple(content["private"]),
        )


def require_match(metadata: Mapping[str, Any], **expected: Any) -> None:
    """Refuses the checkpoint of another run, by fields compared as JSON: a tuple equals the list it becomes."""
    for field, value in expected.items():
        wanted = _plain(value, field)
        if field not in metadata:
            raise InvalidInput(f"the checkpoint has no field {field!r}, expected {wanted!r}; start the run anew.")
        if _canonical(metadata[field]) != _canonical(wanted):
            raise InvalidInput(
                f"the checkpoint's {field} is {metadata[field]!r}, expected {wanted!r}; resume with what it was made "
                "with, or start the run anew in another folder."
            )


_canonical = functools.partial(json.dumps, sort_keys=True)


def _plain(value: Any, where: str) -> Any:
    """The value as JSON reads it back; refuses secrets and everything JSON would change."""
    if isinstance(value, NoiseKey):
        raise InvalidInput(f"{where} holds a NoiseKey, whose secret must not be stored; store key.key_id.")
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidInput(f"{where} holds bytes, which may be a secret; store a public identifier such as key.key_id.")
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInput(f"{where} must have string keys, got {type(key).__name__}.")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    got = repr(value) if isinstance(value, float) else type(value).__name__
    raise InvalidInput(
        f"{where} must be plain JSON (str, int, finite float, bool, None, list, dict), got {got}; convert it first."
    )

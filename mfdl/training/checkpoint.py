"""Checkpoints: the models after a step, with what must match before a run goes on.

In: tensors and metadata. Out: a folder with one safetensors file and `checkpoint.json`, which names it. The
JSON file is replaced last, so a crash at any moment leaves the old checkpoint or the new one, whole. A
checkpoint never holds the noise secret: noise is a function of (key, node, step), so the key's `key_id` and the
step are enough for whoever holds the key. The models of a run that releases only some of them are private state:
`checkpoint.json` names what is private, and the files are readable by their owner alone. Both files are under a
SHA-256, against damage, not against forgers. One folder belongs to one run at a time: `replay` holds it while it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from .. import check, files
from ..errors import InvalidInput
from .keys import NoiseKey

FORMAT = 2  # 1 had no checksum of checkpoint.json itself, where a changed step repeats or skips noise
POINTER = "checkpoint.json"
CHECKSUM = "checksum"


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """What `load` found: the step that the run had reached, its models on the CPU, and its metadata.

    Attributes: private: names of the tensors and metadata that no guarantee covers.
    """

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
    """Replaces the checkpoint of a folder, or makes it.

    Args:
        folder: made if missing; a checkpoint in it is replaced.
        step: number of finished steps, >= 0.
        models: tensors by name, from any device.
        metadata: plain JSON values (str, int, finite float, bool, None, list, dict), e.g. the mechanism's
            hash, the task's hash and `key.key_id`.
        private: names of the tensors and metadata that must not be published; default all tensors.

    Returns:
        The path of `checkpoint.json`.

    Guarantees:
        After a crash at any moment `load` gives the old checkpoint or the new one.
        No NoiseKey and no bytes are written.
    Raises:
        InvalidInput: the folder cannot be written, metadata is not plain JSON or holds a secret.
    """
    step = check.integer_at_least(0, step=step)
    plain = _plain(dict(metadata), "metadata")
    marked = sorted(set(models if private is None else private))
    unknown = [name for name in marked if name not in models and name not in plain]
    if unknown:
        raise InvalidInput(f"private must name tensors or metadata of the checkpoint, got {unknown[0]!r}.")
    for name, tensor in models.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InvalidInput(f"models must map names to tensors, got {name!r}: {type(tensor).__name__}.")
    # Own copies: safetensors refuses tensors that share memory, and a running step must not change them.
    copies = {name: t.detach().to("cpu", copy=True).contiguous().clone() for name, t in models.items()}
    data = safetensors.torch.save(copies)
    digest = hashlib.sha256(data).hexdigest()
    root = Path(folder)
    # The name follows from step and content: an older file is never overwritten, except by itself.
    tensor_file = f"models-{step:010d}-{digest[:16]}.safetensors"
    content = {"format": FORMAT, "step": step, "tensor_file": tensor_file, "sha256": digest}
    content |= {"private": marked, "metadata": plain}
    files.atomic_write_bytes(root / tensor_file, data, private=True)
    pointer = files.atomic_write_json(root / POINTER, {**content, CHECKSUM: _checksum(content)}, private=True)
    remove_leftovers(root)  # what is replaced, and files of killed runs
    return pointer


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Removes all files of checkpoints but those of the current one, for the run that writes into the folder.

    `save` does this too; a resumed run with nothing left to save must do it itself. Readers must not: the files that
    another process is writing look the same.
    """
    root = Path(folder)
    current = json.loads((root / POINTER).read_text(encoding="utf-8"))["tensor_file"]
    for old in (*root.glob("models-*.safetensors"), *root.glob(".models-*.tmp"), *root.glob(f".{POINTER}.*.tmp")):
        if old.name != current:
            with contextlib.suppress(OSError):  # a leftover costs space, nothing else
                old.unlink()


def load(folder: str | os.PathLike[str]) -> Checkpoint:
    """Reads the checkpoint of a folder and checks it against its hash.

    Raises:
        InvalidInput: no checkpoint, a file that cannot be read, another format version, or damaged content.
    """
    pointer = Path(folder) / POINTER
    again = "give the folder of another checkpoint, or start the run anew."
    try:
        content = json.loads(pointer.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"no checkpoint can be read at {pointer}: {error.strerror or error}; {again}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{pointer} is not valid JSON ({error}); {again}") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        newer = isinstance(version, int) and version > FORMAT
        why = "; a newer mfdl wrote it" if newer else ""
        raise InvalidInput(f"{pointer} has format {version!r}, this version reads format {FORMAT}{why}; {again}")
    missing = sorted({"step", "tensor_file", "sha256", "private", "metadata"} - set(content))
    if missing:
        raise InvalidInput(f"{pointer} lacks {missing[0]!r}; {again}")
    checksum = content.pop(CHECKSUM, None)
    if checksum != _checksum(content):
        raise InvalidInput(f"{pointer} is damaged: its content is not that of its {CHECKSUM}; {again}")
    step = check.integer_at_least(0, step=content["step"])
    tensor_path = pointer.parent / Path(str(content["tensor_file"])).name  # never a path out of the folder
    try:
        data = tensor_path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {tensor_path}: {error.strerror or error}; {again}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != content["sha256"]:
        raise InvalidInput(
            f"{tensor_path} is damaged: its SHA-256 is {digest}, {POINTER} says {content['sha256']}; {again}"
        )
    return Checkpoint(
        step=step,
        models=safetensors.torch.load(data),
        metadata=dict(content["metadata"]),
        private=tuple(content["private"]),
    )


def _checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of everything in the file but itself."""
    return hashlib.sha256(_canonical(content).encode("utf-8", "surrogatepass")).hexdigest()


def require_match(metadata: Mapping[str, Any], **expected: Any) -> None:
    """Refuses to go on from a checkpoint of something else.

    Args:
        metadata: of the checkpoint.
        expected: fields and the values they must have, compared as JSON (a tuple equals the list it becomes).

    Raises:
        InvalidInput: naming the first field that is missing or differs, with both values.
    """
    for field, value in expected.items():
        wanted = _plain(value, field)
        if field not in metadata:
            raise InvalidInput(f"the checkpoint has no field {field!r}, expected {wanted!r}; start the run anew.")
        if _canonical(metadata[field]) != _canonical(wanted):
            raise InvalidInput(
                f"the checkpoint's {field} is {metadata[field]!r}, expected {wanted!r}; resume with what it was made "
                "with, or start the run anew in another folder."
            )


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


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

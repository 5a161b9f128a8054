"""Objects in one file: arrays and a JSON header under one checksum, never pickled.

In: values made of plain JSON, arrays, sparse matrices and frozen dataclasses that the caller names. Out: a safetensors
file and the same values again. The checksum finds damage and careless edits; whoever writes a file anew can write any
checksum, so what a file claims is for its reader to compute or to label.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import scipy.sparse as sp
from numpy.typing import NDArray

from . import __version__, check, files, matrices
from .errors import InvalidInput

FORMAT = 1
HEADER, CHECKSUM = "mfdl", "sha256"
KINDS = "fiub"  # of numbers that an array may hold


class Packer:
    """Turns values into JSON and keeps their arrays apart; an object that occurs twice is kept once.

    Args: classes: dataclasses that may occur, by the name that the file gives them.
    """

    def __init__(self, classes: Mapping[str, type] | None = None) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names = {kind: name for name, kind in (classes or {}).items()}
        self._array = matrices.once(self._kept)

    def __call__(self, value: Any, what: str) -> Any:
        """The value as JSON. Raises: InvalidInput: nothing that a file can hold, with `what` it is."""
        if isinstance(value, np.generic):  # before float and str, which some of them are
            return {"numpy text": str(value)} if isinstance(value, np.str_) else {"number": self._array(value, what)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._array(value, what)}
        if sp.issparse(value):
            return self._sparse(value, what)
        if isinstance(value, list):
            return [self(item, what) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self(item, what) for item in value]}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self(item, f"{what} {key!r}") for key, item in value.items()}}
        if type(value) in self._names:
            fields = [field.name for field in dataclasses.fields(value) if field.init]
            packed = {name: self(getattr(value, name), f"{name} of {what}") for name in fields}
            return {"is": self._names[type(value)], "fields": packed}
        raise InvalidInput(
            f"{what} cannot be saved: a file holds no {type(value).__name__}; replace it by plain values."
        )

    def _sparse(self, value: Any, what: str) -> dict[str, Any]:
        matrix = value if value.format == "csr" else sp.csr_array(value)
        parts = {part: self._array(getattr(matrix, part), what) for part in ("data", "indices", "indptr")}
        return {"sparse": parts, "shape": [int(size) for size in matrix.shape]}

    def _kept(self, array: Any, what: str) -> str:
        kept = np.array(array, order="C")
        if kept.dtype.kind not in KINDS:
            raise InvalidInput(f"{what} cannot be saved: an array of {kept.dtype} is no array of numbers.")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = kept
        return name


class Unpacker:
    """The inverse of `Packer`: builds only the classes named, by their constructors, which check."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], classes: Mapping[str, Callable[..., Any]]) -> None:
        self._arrays, self._classes = arrays, classes
        self._sparse: dict[str, sp.csr_array] = {}

    def __call__(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self(item) for item in packed]
        if not isinstance(packed, dict):
            return packed
        if "is" in packed:
            made = {name: self(item) for name, item in packed["fields"].items()}
            return self._classes[packed["is"]](**made)
        if "sparse" in packed:
            key = json.dumps(packed, sort_keys=True)
            if key not in self._sparse:
                self._sparse[key] = self._matrix(packed["sparse"], packed["shape"])
            return self._sparse[key]
        ((kind, value),) = packed.items()
        return self._one(kind, value)

    def _one(self, kind: str, value: Any) -> Any:
        if kind == "array":
            return self._arrays[value]
        if kind == "number":
            return self._arrays[value][()]
        if kind == "numpy text":
            return np.str_(value)
        if kind == "float":
            return float(value)
        if kind == "tuple":
            return tuple(self(item) for item in value)
        if kind == "dict":
            return {key: self(item) for key, item in value.items()}
        raise KeyError(kind)

    def _matrix(self, parts: Mapping[str, str], shape: list[int]) -> sp.csr_array:
        arrays = {name: self._arrays[key] for name, key in parts.items()}
        matrix = sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(shape))
        matrix.check_format(full_check=True)  # indices in range: a product would read beside the array
        for name, array in arrays.items():  # of the types that were written, which content hashes see
            setattr(matrix, name, array)
        return matrix if matrix.has_canonical_format else sp.csr_array(matrix, copy=True)


def write(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], packer: Packer, *, private: bool
) -> Path:
    """Writes packed values, atomically, to exactly this path.

    Args: kind: what the file holds, "mechanism"; content: JSON; private: readable by the owner alone.
    Raises: InvalidInput: the path cannot be written.
    """
    path = check.path(path=path)
    header = {"format": FORMAT, "kind": kind, "mfdl": __version__, **content}
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    data = safetensors.numpy.save(packer.arrays, metadata={HEADER: text, CHECKSUM: _digest(text, packer.arrays)})
    return files.atomic_write_bytes(path, data, private=private)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays, read-only, of a file of this kind.

    Raises: InvalidInput: no file, another file or kind, another format, or content that is not that of its checksum.
    """
    made_by = f"{kind.capitalize()}.save"
    path = check.path(path=path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"cannot read {str(path)!r}: {reason}; give a file written by {made_by}.") from None
    try:
        size = int.from_bytes(data[:8], "little")
        marks = json.loads(data[8 : 8 + size])["__metadata__"]
        text, checksum = marks[HEADER], marks[CHECKSUM]
        header = json.loads(text)
        found, version = header["kind"], header["format"]
        arrays = {name: np.array(array) for name, array in safetensors.numpy.load(data).items()}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise InvalidInput(f"{str(path)!r} is no file written by {made_by}, or is damaged; give one.") from None
    if found != kind:
        raise InvalidInput(f"{str(path)!r} holds a {found}, not a {kind}; read it with {str(found).capitalize()}.load.")
    if version != FORMAT:
        newer = "; a newer mfdl wrote it" if isinstance(version, int) and version > FORMAT else ""
        raise InvalidInput(f"{str(path)!r} has format {version!r}, this version reads format {FORMAT}{newer}.")
    if checksum != _digest(text, arrays):
        raise InvalidInput(
            f"{str(path)!r} is damaged or was edited: its content is not that of its checksum; take the file as it was "
            "written, or make it anew."
        )
    for array in arrays.values():
        array.setflags(write=False)
    return header, arrays


@contextlib.contextmanager
def refusing(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turns what goes wrong while content is unpacked into one refusal that names the file."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{str(path)!r}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(
            f"{str(path)!r} does not hold a {kind} ({type(error).__name__} while it was read); write one with "
            f"{kind.capitalize()}.save."
        ) from None


def _digest(text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the header and of every array by name, type and shape."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(repr((name, arrays[name].dtype.str, arrays[name].shape)).encode() + arrays[name].tobytes())
    return digest.hexdigest()

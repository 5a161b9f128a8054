"""The binary file format of mfdl: named values in one file under one checksum, without code.

In: plain values, arrays, sparse matrices and objects of `storable` classes. Out: a safetensors file, and the same
values again, types included. Every byte is under the checksum, which finds damage and careless edits. A forged file can
have a correct checksum, so readers recompute or label what a file claims.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from . import __version__, check, files, matrices
from .errors import InvalidInput
from .spec import from_parts, is_storable, stored_parts

FORMAT = 2
SUFFIX = ".mfdl"  # of files that mfdl names
MARK = "mfdl"  # the entry of a safetensors file that holds checksum and header
BLANK = "0" * 64  # in the place of the checksum while it is computed
TYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)

Value = TypeVar("Value")


class Kind(NamedTuple):
    """Words of a refusal: who reads a file of this kind, and what to do without a good one."""

    reader: str
    remedy: str


KINDS = {
    "mechanism": Kind("Mechanism.load", "give a file written by Mechanism.save"),
    "run": Kind("Run.load", "give a file written by Run.save"),
    "factorization": Kind("mfdl.factorization.load", "write one with `mfdl factorize ... --out FILE`"),
    "checkpoint": Kind("mfdl.replay", "give the folder of another checkpoint, or start the run anew"),
    "steps": Kind("mfdl.runs.load_steps", "run the comparison or the sweep again"),
    "solution": Kind("mfdl sweep", "delete it: it is solved again"),
}


def write(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], *, private: bool = False) -> Path:
    """Writes values by name, atomically, to exactly this path; private: readable by the owner alone.

    Raises: InvalidInput: a value that is code or that no file can hold; the path cannot be written.
    """
    path = check.path(path=path)
    packer = Packer()
    packed = {name: packer(value, f"{name} of the {kind}") for name, value in content.items()}
    header = {"format": FORMAT, "kind": kind, "mfdl": __version__, "content": packed}
    return files.atomic_write_bytes(path, encoded(header, packer.arrays), private=private)


def read(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The values of a file of this kind; arrays are read-only.

    Raises: InvalidInput: no file, another file or kind, another format, or content that is not that of its checksum.
    """
    header, arrays = _opened(check.path(path=path), kind)
    for array in arrays.values():
        array.setflags(write=False)
    unpack = Unpacker(arrays)
    with refusing(path, kind):
        return {name: unpack(packed) for name, packed in header["content"].items()}


def copied(value: Value, description: str) -> Value:
    """The value as a file gives it back. Raises: InvalidInput: as `write`."""
    packer = Packer()
    copy: Value = Unpacker(packer.arrays)(json.loads(json.dumps(packer(value, description))))
    return copy


@contextlib.contextmanager
def refusing(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turns errors while objects are built from the content into one refusal that names the file."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{str(path)!r}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(
            f"{str(path)!r} does not hold a {kind} ({type(error).__name__}: {error}); {KINDS[kind].remedy}."
        ) from None


def encoded(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file: always the same for the same content."""
    import safetensors.numpy

    text = json.dumps(header, sort_keys=True, allow_nan=False)
    data = safetensors.numpy.save(dict(arrays), metadata={MARK: BLANK + text})
    place = data.index(BLANK.encode())
    return b"".join((data[:place], _checksum(data, place).encode(), data[place + len(BLANK) :]))


def _checksum(data: bytes, place: int) -> str:
    view = memoryview(data)
    digest = hashlib.sha256(view[:place])
    digest.update(BLANK.encode())
    digest.update(view[place + len(BLANK) :])
    return digest.hexdigest()


def decoded(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]], bool]:
    """(header, arrays, whether every byte is as it was written).

    Raises: SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError: the bytes of no such file.
    """
    import safetensors.numpy

    size = int.from_bytes(data[:8], "little")
    mark = json.loads(data[8 : 8 + size])["__metadata__"][MARK]
    checksum, header = mark[: len(BLANK)], json.loads(mark[len(BLANK) :])
    arrays = {name: np.array(array) for name, array in safetensors.numpy.load(data).items()}
    return header, arrays, checksum == _checksum(data, data.index(checksum.encode()))


def _opened(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError

    remedy = KINDS[kind].remedy
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"cannot read {str(path)!r}: {reason}; {remedy}.") from None
    try:
        header, arrays, intact = decoded(data)
        actual, version = header["kind"], header["format"]
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise InvalidInput(f"{str(path)!r} is no {kind} that mfdl wrote, or is damaged; {remedy}.") from None
    if version != FORMAT:
        newer = "; a newer mfdl wrote it" if isinstance(version, int) and version > FORMAT else ""
        raise InvalidInput(
            f"{str(path)!r} has format {version!r}, this version reads format {FORMAT}{newer}; {remedy}."
        )
    if not intact:
        raise InvalidInput(
            f"{str(path)!r} is damaged or was edited: its content is not that of its checksum; {remedy}."
        )
    if actual != kind:
        way_out = f"read it with {KINDS[actual].reader}" if isinstance(actual, str) and actual in KINDS else remedy
        raise InvalidInput(f"{str(path)!r} holds a {actual}, not a {kind}; {way_out}.")
    return header, arrays


class Packer:
    """Turns values into JSON and collects their arrays; equal arrays are stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._array = matrices.once(self._name_of_array)

    def __call__(self, value: Any, description: str) -> Any:
        """The value as JSON. Raises: InvalidInput: nothing that a file can hold, called by its description."""
        if isinstance(value, np.str_):  # before float and str, which numpy's own are too
            return {"numpy text": str.__str__(value)}  # that of numpy leaves out zeros at the end
        if isinstance(value, np.generic):
            return {"number": self._array(value, description)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._array(value, description)}
        if sp.issparse(value):
            return self._sparse(value, description)
        if isinstance(value, list):
            return [self(item, description) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self(item, description) for item in value]}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self(item, f"{key} of {description}") for key, item in value.items()}}
        if is_storable(value):
            name, parts = stored_parts(value)
            return {"is": name, "fields": {key: self(part, f"{key} of {description}") for key, part in parts.items()}}
        instead = getattr(value, "instead_in_files", "replace it by plain values")
        raise InvalidInput(f"{description} cannot be saved: a file holds no {type(value).__name__}; {instead}.")

    def _sparse(self, value: Any, description: str) -> dict[str, Any]:
        matrix = value if value.format == "csr" else sp.csr_array(value)
        parts = {part: self._array(getattr(matrix, part), description) for part in ("data", "indices", "indptr")}
        return {"sparse": parts, "shape": [int(size) for size in matrix.shape]}

    def _name_of_array(self, value: Any, description: str) -> str:
        array = np.array(value, order="C")
        if array.dtype.name not in TYPES:
            raise InvalidInput(f"{description} cannot be saved: an array of {array.dtype} is no array of real numbers.")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        content = array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).digest()
        name = self._names.setdefault(content, f"a{len(self.arrays)}")
        self.arrays.setdefault(name, array)
        return name


class Unpacker:
    """The inverse of `Packer`: makes objects of storable classes alone, by constructors, which check."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._matrices: dict[str, sp.csr_array] = {}

    def __call__(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self(item) for item in packed]
        if not isinstance(packed, dict):
            return packed
        if "is" in packed:
            return from_parts(packed["is"], {name: self(item) for name, item in packed["fields"].items()})
        if "sparse" in packed:
            key = json.dumps(packed, sort_keys=True)
            if key not in self._matrices:
                self._matrices[key] = self._sparse(packed["sparse"], packed["shape"])
            return self._matrices[key]
        ((mark, value),) = packed.items()
        if mark == "tuple":
            return tuple(map(self, value))
        if mark == "dict":
            return {key: self(item) for key, item in value.items()}
        if mark == "number":
            return self._arrays[value][()]
        read: dict[str, Any] = {"array": self._arrays.__getitem__, "numpy text": np.str_, "float": float}
        return read[mark](value)

    def _sparse(self, parts: Mapping[str, str], shape: list[int]) -> sp.csr_array:
        arrays = {name: self._arrays[key] for name, key in parts.items()}
        matrix = sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(shape))
        matrix.check_format(full_check=True)  # indices in range: a product would read beside the array
        for name, array in arrays.items():  # of the types that were written, which content hashes see
            setattr(matrix, name, array)
        return matrix if matrix.has_canonical_format else sp.csr_array(matrix, copy=True)

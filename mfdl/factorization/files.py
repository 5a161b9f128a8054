"""Factorizations in files: an encoder with the header that says what it was made for."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from solvers import Factorization

from .. import __version__, files
from ..check import FloatArray
from ..errors import InvalidInput
from .temporal import NodeFactorizations


def save(
    path: str | os.PathLike[str],
    factorization: Factorization | NodeFactorizations,
    *,
    grams: FloatArray,
    header: dict[str, Any],
) -> None:
    """Writes `encoder`, `error_gram`, `loss`, `lower_bound` and a JSON header to an .npz file, atomically."""
    buffer = io.BytesIO()
    full = {
        "format": 1,
        "mfdl": __version__,
        "numpy": np.__version__,
        "status": factorization.status,
        **header,
    }
    np.savez_compressed(
        buffer,
        encoder=factorization.encoder,
        error_gram=grams,
        loss=np.float64(factorization.loss),
        lower_bound=np.float64(factorization.lower_bound),
        header=np.frombuffer(json.dumps(full).encode(), dtype=np.uint8),
    )
    files.atomic_write_bytes(path, buffer.getvalue())


@dataclasses.dataclass(frozen=True, eq=False)
class SavedFactorization:
    """What an .npz file holds: encoder (T, T) or (n, T, T), its error Gram, loss, lower bound, header."""

    encoder: FloatArray
    error_gram: FloatArray
    loss: float
    lower_bound: float
    header: dict[str, Any]


def load(path: str | os.PathLike[str]) -> SavedFactorization:
    """Reads a file written by `save` (never pickled objects).

    Raises: InvalidInput: missing, malformed, or another format.
    """
    try:
        # by its bytes: np.load leaves a truncated file open
        with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as data:
            header = json.loads(bytes(data["header"]).decode())
            encoder = np.array(data["encoder"], dtype=np.float64)
            gram = np.array(data["error_gram"], dtype=np.float64)
            loss, bound = float(data["loss"]), float(data["lower_bound"])
    except FileNotFoundError:
        raise InvalidInput(
            f"no factorization file at {path}; write one with `mfdl factorize ... --out FILE.npz`."
        ) from None
    except Exception as error:  # np.load raises several unrelated types on a malformed file
        raise InvalidInput(
            f"{path} is not a factorization file ({type(error).__name__}); write one with `mfdl factorize --out`."
        ) from None
    found = header.get("format") if isinstance(header, dict) else None
    if found != 1:
        raise InvalidInput(f"{path} has format {found!r}, this version reads format 1.")
    if encoder.ndim not in (2, 3) or encoder.shape[-1] != encoder.shape[-2] or not np.isfinite(encoder).all():
        raise InvalidInput(f"{path}: encoder must be finite with shape (T, T) or (n, T, T), got {encoder.shape}.")
    return SavedFactorization(encoder, gram, loss, bound, header)

"""Factorizations in files: an encoder or a covariance, with the header that says what it was made for."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from solvers import Factorization

from .. import __version__, check, files
from ..check import FloatArray
from ..errors import InvalidInput
from .groups import checked_groups
from .space_time import TIME_SPACE, SpaceTimeFactorization
from .spatial import SpatialFactorization
from .temporal import NodeFactorizations

FORMAT = 1


def save(
    path: str | os.PathLike[str],
    factorization: Factorization | NodeFactorizations,
    *,
    grams: FloatArray,
    header: dict[str, Any],
) -> None:
    """Writes `encoder`, `error_gram`, `loss`, `lower_bound` and a JSON header to an .npz file, atomically."""
    _write(path, factorization, header, encoder=factorization.encoder, error_gram=grams)


def save_spatial(path: str | os.PathLike[str], factorization: SpatialFactorization, *, header: dict[str, Any]) -> None:
    """Writes a covariance over nodes, its groups and parts, and a JSON header to an .npz file, atomically."""
    facts, arrays = _covariance_parts(factorization)
    _write(path, factorization, {**header, **facts}, covariance=factorization.covariance, **arrays)


def save_space_time(
    path: str | os.PathLike[str], factorization: SpaceTimeFactorization, *, header: dict[str, Any]
) -> None:
    """Writes the encoders, who holds which seed, and a JSON header to an .npz file, atomically."""
    facts: dict[str, Any] = {"space_time": {name: getattr(factorization, name) for name in _SPACE_TIME_NUMBERS}}
    arrays: dict[str, Any] = {}
    if factorization.space is not None:
        spatial_facts, arrays = _covariance_parts(factorization.space)
        ends = {name: getattr(factorization.space, name) for name in ("loss", "lower_bound", "status")}
        facts["space"] = {**spatial_facts, **ends}
    if factorization.directions is not None:
        arrays = {"directions": factorization.directions}
    facts["notes"] = list(factorization.notes)
    _write(path, factorization, {**header, **facts}, encoder=factorization.encoder, **arrays)


def _covariance_parts(factorization: SpatialFactorization) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `_spatial` needs besides loss, lower bound and status: facts for the header, and arrays."""
    kept = {name: getattr(factorization, name) for name in _SPATIAL_NUMBERS}
    sizes = [len(group) for group in factorization.groups]
    flat = [part.ravel() for part in factorization.parts]
    return {"spatial": kept, "notes": list(factorization.notes)}, {
        "group_sizes": np.array(sizes, dtype=np.int64),
        "group_nodes": np.array([node for group in factorization.groups for node in group], dtype=np.int64),
        "group_parts": np.concatenate([np.zeros(0), *flat]),
    }


_SPATIAL_NUMBERS = (
    "private_variance",
    "num_nodes",
    "max_inverse_diagonal",
    "coalition_size",
    "iterations",
    "seconds",
    "sigma_local",
    "sigma_pair",
    "independent_loss",
    "bound_over",
    "gossip_hash",
)


_SPACE_TIME_NUMBERS = (
    "kind",
    "num_steps",
    "num_nodes",
    "independent_loss",
    "iterations",
    "seconds",
    "sensitivity",
    "participation",
    "gossip_hash",
)


def _write(
    path: str | os.PathLike[str],
    factorization: Factorization | NodeFactorizations | SpatialFactorization | SpaceTimeFactorization,
    header: dict[str, Any],
    **arrays: Any,
) -> None:
    buffer = io.BytesIO()
    full = {"format": FORMAT, "mfdl": __version__, "numpy": np.__version__, "status": factorization.status, **header}
    np.savez_compressed(
        buffer,
        **arrays,
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


def load(path: str | os.PathLike[str]) -> SavedFactorization | SpatialFactorization | SpaceTimeFactorization:
    """Reads a file written by `save`, `save_spatial` or `save_space_time` (never pickled objects).

    Raises: InvalidInput: missing, malformed, or another format.
    """
    try:
        content = Path(path).read_bytes()  # by its bytes: np.load leaves a truncated file open
        _require_size(content)
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            header = json.loads(bytes(data["header"]).decode())
            _require_format(header)  # before all that another format may lack
            arrays = {name: np.array(data[name]) for name in data.files if name != "header"}
            saved: SavedFactorization | SpatialFactorization | SpaceTimeFactorization
            if "covariance" in arrays:
                ends = {"loss": float(arrays["loss"]), "lower_bound": float(arrays["lower_bound"])}
                saved = _spatial(arrays, {**header, **ends})
            else:
                saved = (_space_time if "space_time" in header else _temporal)(arrays, header)
    except FileNotFoundError:
        raise InvalidInput(
            f"no factorization file at {path}; write one with `mfdl factorize ... --out FILE.npz`."
        ) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    except Exception as error:  # np.load raises several unrelated types on a malformed file
        raise InvalidInput(
            f"{path} is not a factorization file ({type(error).__name__}); write one with `mfdl factorize --out`."
        ) from None
    return saved


def _require_format(header: Any) -> None:
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        newer = "; a newer mfdl wrote it" if isinstance(found, int) and found > FORMAT else ""
        raise InvalidInput(
            f"has format {found!r}, this version reads format {FORMAT}{newer}; write one with `mfdl factorize --out`."
        )


MAX_BYTES = 2**34
"""Of all arrays unpacked: an encoder and its Gram at 30,000 steps. More is taken for an archive made to fill memory."""


def _require_size(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise InvalidInput(f"{size:,} bytes unpacked are more than the {MAX_BYTES:,} of any factorization; it is none.")


def _temporal(arrays: dict[str, Any], header: dict[str, Any]) -> SavedFactorization:
    encoder, gram = (np.asarray(arrays[name], dtype=np.float64) for name in ("encoder", "error_gram"))
    if encoder.ndim not in (2, 3) or encoder.shape[-1] != encoder.shape[-2] or not np.isfinite(encoder).all():
        raise InvalidInput(f"encoder must be finite with shape (T, T) or (n, T, T), got {encoder.shape}.")
    return SavedFactorization(encoder, gram, float(arrays["loss"]), float(arrays["lower_bound"]), header)


def _spatial(arrays: dict[str, Any], header: dict[str, Any]) -> SpatialFactorization:
    sizes = arrays["group_sizes"].tolist()
    nodes, flat = iter(arrays["group_nodes"].tolist()), np.asarray(arrays["group_parts"], dtype=np.float64)
    ends = np.cumsum([0, *(size**2 for size in sizes)])
    parts = tuple(flat[a:b].reshape(size, size) for a, b, size in zip(ends, ends[1:], sizes, strict=False))
    groups = checked_groups([[next(nodes) for _ in range(size)] for size in sizes], header["spatial"]["num_nodes"])
    for group, part in zip(groups, parts, strict=True):
        values = np.linalg.eigvalsh((part + part.T) / 2) if np.isfinite(part).all() else np.array([np.nan])
        if not values[0] >= -1e-9 * abs(values[-1]) or np.abs(part - part.T).max() > 1e-9 * abs(values[-1]):
            raise InvalidInput(f"the covariance of group {list(group)} must be symmetric and positive semidefinite.")
    check.non_negative(private_variance=header["spatial"]["private_variance"])
    return SpatialFactorization(
        groups=groups,
        parts=parts,
        loss=header["loss"],
        lower_bound=header["lower_bound"],
        status=header["status"],
        notes=tuple(header["notes"]),
        **header["spatial"],
    )


def _space_time(arrays: dict[str, Any], header: dict[str, Any]) -> SpaceTimeFactorization:
    facts = header["space_time"]
    encoder = np.asarray(arrays["encoder"], dtype=np.float64)
    found = SpaceTimeFactorization(
        encoder=encoder,
        loss=float(arrays["loss"]),
        lower_bound=float(arrays["lower_bound"]),
        status=header["status"],
        notes=tuple(header["notes"]),
        space=_spatial(arrays, header["space"]) if facts["kind"] == TIME_SPACE else None,
        directions=np.asarray(arrays["directions"], dtype=np.float64) if "directions" in arrays else None,
        **facts,
    )
    noise = found.noise()  # checks encoders, directions and holders against one another
    if (noise.num_steps, noise.num_nodes) != (found.num_steps, found.num_nodes):
        raise InvalidInput(f"encoder must be over {found.num_steps} steps, got shape {encoder.shape}.")
    return found

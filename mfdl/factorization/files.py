"""Factorizations in files: an encoder or a covariance, with the header that says what it was made for.

A file is read as a claim. Arrays are checked against one another and the numbers about them for what can be told from
the file alone; what also needs dynamics or participation is carried as it stands (`load`).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mfdl_solvers import Factorization
from mfdl_solvers.problem import FIXED, OPTIMAL, STATIONARY, STOPPED, Certified
from mfdl_solvers.secret_bins import BinFactorization
from mfdl_solvers.structured import BinStrategy, StructuredFactorization

from .. import __version__, check, files
from ..archive import Packer, Unpacker
from ..check import FloatArray
from ..errors import InvalidInput
from ..shown import short_repr
from .boundary import solver_refusals
from .groups import checked_groups
from .nodes import NodeFactorizations
from .space_time import TIME_SPACE, SpaceTimeFactorization
from .spatial import SpatialFactorization
from .strategies import Banded, Buffered, Inverse, Strategy, Toeplitz

FORMAT = 1


def save(
    path: str | os.PathLike[str],
    factorization: Factorization | NodeFactorizations | BinFactorization,
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
    facts: dict[str, Any] = {"space_time": _facts(factorization, "encoder", "space", "directions")}
    arrays: dict[str, Any] = {}
    if factorization.space is not None:
        spatial_facts, arrays = _covariance_parts(factorization.space)
        ends = {name: getattr(factorization.space, name) for name in ("loss", "lower_bound", "status")}
        facts["space"] = {**spatial_facts, **ends}
    if factorization.directions is not None:
        arrays = {"directions": factorization.directions}
    facts["notes"] = list(factorization.notes)
    _write(path, factorization, {**header, **facts}, encoder=factorization.encoder, **arrays)


STRATEGIES: dict[str, type] = {kind.__name__: kind for kind in (Toeplitz, Banded, Buffered, Inverse)}
"""Encoders with structure, by the names in files."""


def save_structured(
    path: str | os.PathLike[str], factorization: StructuredFactorization | BinStrategy, *, header: dict[str, Any]
) -> None:
    """Writes the numbers of an encoder with structure, never an array of T x T, and a JSON header, atomically."""
    pack = Packer(STRATEGIES)
    facts = {"strategy": pack(factorization.strategy, "strategy"), "notes": list(factorization.notes)}
    _write(path, factorization, {**header, **facts}, **pack.arrays)


def _covariance_parts(factorization: SpatialFactorization) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `_spatial` needs besides loss, lower bound and status: facts for the header, and arrays."""
    kept = _facts(factorization, "groups", "parts")
    sizes = [len(group) for group in factorization.groups]
    flat = [part.ravel() for part in factorization.parts]
    return {"spatial": kept, "notes": list(factorization.notes)}, {
        "group_sizes": np.array(sizes, dtype=np.int64),
        "group_nodes": np.array([node for group in factorization.groups for node in group], dtype=np.int64),
        "group_parts": np.concatenate([np.zeros(0), *flat]),
    }


_CLAIMS = ("loss", "lower_bound", "status", "notes")


def _facts(factorization: SpatialFactorization | SpaceTimeFactorization, *arrays: str) -> dict[str, Any]:
    """What a header holds beside the claims: all but the arrays."""
    names = [field.name for field in dataclasses.fields(factorization) if field.name not in (*_CLAIMS, *arrays)]
    return {name: getattr(factorization, name) for name in names}


def _write(
    path: str | os.PathLike[str],
    factorization: Certified | NodeFactorizations,
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
    """What an .npz file holds: encoder (T, T) or (n, T, T), its error Gram, loss, lower bound, header.

    An encoder with structure is a strategy (`factorization.strategies`), and has no Gram.
    """

    __repr__ = short_repr

    encoder: FloatArray | Strategy
    error_gram: FloatArray | None
    loss: float
    lower_bound: float
    header: dict[str, Any]


def load(path: str | os.PathLike[str]) -> SavedFactorization | SpatialFactorization | SpaceTimeFactorization:
    """Reads a file written by `save`, `save_structured`, `save_spatial` or `save_space_time` (never pickled objects).

    Checked: arrays are real, fit one another and make noise that a node can add; 0 <= lower_bound <= loss; over nodes,
    and over time and nodes, also that numbers are finite, the status is one there is, the covariance kept is the one
    its parts make, no [R^-1]_ii is above `max_inverse_diagonal` for an outsider, and the sensitivity is 1.
    Carried, not checked: loss, lower bound and status, which need dynamics and error weights; that the encoders have
    the sensitivity, which needs the participation; the constraint for coalitions. No guarantee rests on any of them:
    accounting takes the arrays.

    Returns: with the nodes of every group in increasing order, the parts likewise.
    Raises: InvalidInput: missing, malformed, another format, or claims that contradict one another or the arrays.
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
                saved = _spatial(arrays, {**header, **_ends(arrays)})
                _require_covariance(saved, _real(arrays, "covariance"))
                _require_price(saved)
            else:
                over_both, structured = "space_time" in header, "strategy" in header
                saved = (_space_time if over_both else _structured if structured else _temporal)(arrays, header)
    except FileNotFoundError:
        raise InvalidInput(
            f"no factorization file at {path}; write one with `mfdl factorize ... --out FILE.npz`."
        ) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    except Exception as error:  # np.load raises several unrelated types on a malformed file
        raise InvalidInput(
            f"{path} is not a factorization file, a .npz ({type(error).__name__}); write one with `mfdl factorize "
            "--out FILE.npz`."
        ) from None
    return saved


def _require_format(header: Any) -> None:
    written = header.get("format") if isinstance(header, dict) else None
    if written != FORMAT:
        newer = "; a newer mfdl wrote it" if isinstance(written, int) and written > FORMAT else ""
        raise InvalidInput(
            f"has format {written!r}, this version reads format {FORMAT}{newer}; write one with `mfdl factorize --out`."
        )


MAX_BYTES = 2**34
"""Of all arrays unpacked: an encoder and its Gram at 30,000 steps. More is taken for an archive made to fill memory."""


def _require_size(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise InvalidInput(f"{size:,} bytes unpacked are more than the {MAX_BYTES:,} of any factorization; it is none.")


STATUSES = (OPTIMAL, STATIONARY, STOPPED, FIXED)
ROUNDING = 1e-6
"""How far numbers that rounding alone tells apart may lie from one another, relative."""


def _real(arrays: dict[str, Any], name: str) -> FloatArray:
    array = arrays[name]
    if array.dtype.kind == "c":  # numpy would drop the imaginary part
        raise InvalidInput(f"{name} must be real numbers, got complex ones.")
    if array.dtype.kind not in "fiu":
        raise TypeError(name)
    return np.asarray(array, dtype=np.float64)


def _ends(arrays: dict[str, Any]) -> dict[str, float]:
    return {name: _real(arrays, name).item() for name in ("loss", "lower_bound")}


def _require_order(loss: float, lower_bound: float) -> None:
    check.non_negative(lower_bound=lower_bound)
    if not lower_bound <= loss * (1 + ROUNDING):
        raise InvalidInput(f"lower_bound must be at most the loss, got {lower_bound!r} for a loss of {loss!r}.")


def _claims(header: dict[str, Any], *, loss: Any, lower_bound: Any) -> dict[str, Any]:
    """Loss, lower bound, status and notes, as far as they can be told to be such."""
    _require_order(check.non_negative(loss=loss), lower_bound)
    status, notes = header["status"], header["notes"]
    if status not in STATUSES:
        raise InvalidInput(f"status must be one of {', '.join(STATUSES)}, got {status!r}.")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InvalidInput(f"notes must be a list of texts, got {notes!r}.")
    return {"loss": loss, "lower_bound": lower_bound, "status": status, "notes": tuple(notes)}


def _require_facts(facts: dict[str, Any]) -> None:
    """What factorizations over nodes, and over time and nodes, say alike."""
    check.integer_at_least(1, num_nodes=facts["num_nodes"])
    check.integer_at_least(0, iterations=facts["iterations"])
    check.non_negative(seconds=facts["seconds"])
    if not isinstance(facts.get("gossip_hash", ""), str):
        raise InvalidInput(f"gossip_hash must be text, got {facts['gossip_hash']!r}.")


def _temporal(arrays: dict[str, Any], header: dict[str, Any]) -> SavedFactorization:
    encoder, gram = (_real(arrays, name) for name in ("encoder", "error_gram"))
    if encoder.ndim not in (2, 3) or encoder.shape[-1] != encoder.shape[-2] or not np.isfinite(encoder).all():
        raise InvalidInput(f"encoder must be finite with shape (T, T) or (n, T, T), got {encoder.shape}.")
    ends = _ends(arrays)
    _require_order(**ends)  # the loss may be infinite: that of a given encoder whose Gram is singular in float64
    return SavedFactorization(encoder, gram, header=header, **ends)


def _structured(arrays: dict[str, Any], header: dict[str, Any]) -> SavedFactorization:
    ends = _ends(arrays)
    _claims(header, **ends)
    with solver_refusals():
        strategy = Unpacker(arrays, STRATEGIES)(header["strategy"])
    if not isinstance(strategy, Strategy):
        raise InvalidInput(f"strategy must be one of {', '.join(STRATEGIES)}, got {type(strategy).__name__}.")
    return SavedFactorization(strategy, None, header=header, **ends)


def _spatial(arrays: dict[str, Any], header: dict[str, Any]) -> SpatialFactorization:
    facts = header["spatial"]
    _require_facts(facts)
    check.non_negative(private_variance=facts["private_variance"])
    check.positive(max_inverse_diagonal=facts["max_inverse_diagonal"])
    if check.integer_at_least(0, coalition_size=facts["coalition_size"]) >= facts["num_nodes"]:
        raise InvalidInput(f"coalition_size must be below {facts['num_nodes']} nodes, got {facts['coalition_size']}.")
    if facts.get("independent_loss") is not None:
        check.non_negative(independent_loss=facts["independent_loss"])
    if facts.get("horizon") is not None:
        check.integer_at_least(1, horizon=facts["horizon"])
    if not isinstance(facts.get("bound_over", ""), str):
        raise InvalidInput(f"bound_over must be text, got {facts['bound_over']!r}.")
    groups, parts = _groups_and_parts(arrays, facts["num_nodes"])
    kept = SpatialFactorization(
        groups=groups,
        parts=parts,
        **_claims(header, loss=header["loss"], lower_bound=header["lower_bound"]),
        **facts,
    )
    _require_pairwise(kept)
    return kept


def _groups_and_parts(
    arrays: dict[str, Any], num_nodes: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[FloatArray, ...]]:
    """Groups with their nodes in increasing order, and the part of each in that order."""
    sizes, nodes, flat = arrays["group_sizes"].tolist(), arrays["group_nodes"].tolist(), _real(arrays, "group_parts")
    ends, squares = np.cumsum([0, *sizes]), np.cumsum([0, *(size**2 for size in sizes)])
    if len(nodes) != ends[-1] or flat.shape != (squares[-1],):
        raise InvalidInput(
            f"group_sizes promise {ends[-1]} nodes and {squares[-1]} entries of parts, got {len(nodes)} and "
            f"{flat.size}."
        )
    written = [nodes[a:b] for a, b in itertools.pairwise(ends)]
    groups, parts = checked_groups(written, num_nodes), []
    for number, (group, given) in enumerate(zip(groups, written, strict=True)):
        part = flat[squares[number] : squares[number + 1]].reshape(len(group), len(group))
        values = np.linalg.eigvalsh((part + part.T) / 2) if np.isfinite(part).all() else np.array([np.nan])
        if not values[0] >= -1e-9 * abs(values[-1]) or np.abs(part - part.T).max() > 1e-9 * abs(values[-1]):
            raise InvalidInput(f"the covariance of group {list(group)} must be symmetric and positive semidefinite.")
        order = np.argsort(given)
        parts.append(part[np.ix_(order, order)])
    return groups, tuple(parts)


def _require_covariance(kept: SpatialFactorization, covariance: FloatArray) -> None:
    """The covariance in the file is that of its parts."""
    n = kept.num_nodes
    made = kept.covariance if covariance.shape == (n, n) else None
    if made is None or not np.abs(covariance - made).max() <= ROUNDING * np.abs(made).max():
        raise InvalidInput(f"covariance must be that of its groups and private noise, over {n} nodes, and is another.")


def _require_pairwise(kept: SpatialFactorization) -> None:
    """sigma_local and sigma_pair are those of the parts: the same noise on every edge."""
    local, pair = kept.sigma_local, kept.sigma_pair
    if local is None and pair is None:
        return
    local, pair = check.non_negative(sigma_local=local), check.non_negative(sigma_pair=pair)
    edge = pair**2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    same = [part.shape == (2, 2) and np.abs(part - edge).max() <= ROUNDING * pair**2 for part in kept.parts]
    private = abs(local**2 - kept.private_variance) <= ROUNDING * kept.private_variance
    if not private or not all(same) or bool(same) != (pair > 0):
        raise InvalidInput(f"sigma_local and sigma_pair must be those of the parts, got {local!r} and {pair!r}.")


def _require_price(kept: SpatialFactorization) -> None:
    """[R^-1]_ii <= r for an outsider, which every coalition size implies; never refused for rounding."""
    R, r, n = kept.covariance, kept.max_inverse_diagonal, kept.num_nodes
    scale = float(np.abs(R).sum(axis=1).max())
    # the inverse of a slightly larger matrix, by more than rounding, lies below that of R
    more = 16 * n * np.finfo(np.float64).eps * np.eye(n)
    if not scale > 0 or np.linalg.inv(R / scale + more).diagonal().max() > r * scale * (1 + ROUNDING):
        raise InvalidInput(
            f"max_inverse_diagonal must bound [R^-1]_ii at every node, and {r:g} is below that of the covariance."
        )


def _space_time(arrays: dict[str, Any], header: dict[str, Any]) -> SpaceTimeFactorization:
    facts = header["space_time"]
    _require_facts(facts)
    check.integer_at_least(1, num_steps=facts["num_steps"])
    check.non_negative(independent_loss=facts["independent_loss"])
    if abs(check.positive(sensitivity=facts["sensitivity"]) - 1) > ROUNDING:
        raise InvalidInput(f"sensitivity must be 1 up to rounding, got {facts['sensitivity']!r}.")
    if not isinstance(facts["participation"], dict):
        raise InvalidInput(f"participation must be its JSON form, got {facts['participation']!r}.")
    encoder, space = _real(arrays, "encoder"), None
    if facts["kind"] == TIME_SPACE:
        space = _spatial(arrays, header["space"])
        if space.gossip_hash != facts["gossip_hash"]:
            raise InvalidInput("the covariance over nodes must be for the same gossip matrix as the whole, and is not.")
    kept = SpaceTimeFactorization(
        encoder=encoder,
        space=space,
        directions=_real(arrays, "directions") if "directions" in arrays else None,
        **_claims(header, **_ends(arrays)),
        **facts,
    )
    noise = kept.noise()  # checks encoders, directions and holders against one another
    if (noise.num_steps, noise.num_nodes) != (kept.num_steps, kept.num_nodes):
        raise InvalidInput(f"encoder must be over {kept.num_steps} steps, got shape {encoder.shape}.")
    if space is not None:
        _require_price(space)
    return kept

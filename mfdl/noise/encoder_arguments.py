"""Encoders as they are given to a noise: arrays are wrapped here, once, and what is no encoder is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csgraph

from mfdl_solvers.encoders import ArrayEncoder, Dense, Encoder, Identity, PerColumn
from mfdl_solvers.problem import ProblemError

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import UNIT

MAX_DENSE_STEPS = 4096
"""T up to which an encoder with structure may be written out, 128 MiB an array."""
AGREE = 1e-6  # relative: noise further from what is accounted is another one

Given = ArrayLike | Encoder | None
"""C as an array, shape (T, T) or (columns, T, T), as an encoder, or None for the identity."""


def as_encoder(given: Given, *, columns: int, num_steps: int) -> Encoder:
    """Raises: InvalidInput: no encoder, another size, not causal; one of the user's own that cannot be read."""
    if given is None:
        return Identity(num_steps)
    if isinstance(given, Encoder):
        content(given)  # refused here where it has none
        require_stepped(given)
        encoder, got = given, str(given.size)
    else:
        encoder = _array_encoder(given, columns)
        got = f"shape {encoder.array.shape}"
    if encoder.size != num_steps:
        raise InvalidInput(f"encoder must be over {num_steps} steps, got {got}.")
    if isinstance(encoder, PerColumn) and len(encoder.array) != columns:
        raise InvalidInput(f"encoder must be one for each of {columns} columns, got {len(encoder.array)}.")
    return encoder


def given_steps(given: ArrayLike | Encoder) -> int:
    return given.size if isinstance(given, Encoder) else (1, *_array(given).shape)[-1]


def block_causal(given: ArrayLike, num_steps: int, num_nodes: int) -> Dense:
    """An encoder over time x nodes, time-major, whose steps use no later ones. Raises: InvalidInput."""
    C, T, n = check.finite_array(2, encoder=_array(given)), num_steps, num_nodes
    if C.shape != (T * n, T * n):
        raise InvalidInput(f"encoder must have shape {(T * n, T * n)} for {T} steps x {n} nodes, got {C.shape}.")
    if not np.triu(C, 1).any():
        return _wrapped(Dense, C)
    steps = np.arange(T * n) // n
    if (later := np.argwhere((C != 0) & (steps[:, None] < steps))).size:
        row, column = later[0].tolist()
        raise InvalidInput(
            f"encoder must be causal: its entry ({row}, {column}) = {C[row, column]:g} takes noise of node "
            f"{column % n} in step {column // n} to node {row % n} in step {row // n}; only entries inside a step may "
            "stand above the diagonal (indices are t n + u)."
        )
    return BlockCausal.from_array(C, T, n)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockCausal(Dense):
    """C with full blocks inside the steps; no encoder over time, whose rows come one after another."""

    @classmethod
    def from_array(cls, C: FloatArray, num_steps: int, num_nodes: int) -> BlockCausal:
        """Raises: InvalidInput: a block inside a step that is singular to working precision."""
        T, n = num_steps, num_nodes
        blocks = np.einsum("tutv->tuv", C.reshape(T, n, T, n))
        if (bad := np.flatnonzero(~(np.linalg.cond(blocks) < 1 / UNIT))).size:
            raise InvalidInput(
                f"encoder must have blocks inside its steps that can be inverted: step {bad[0]} has none."
            )
        back = sp.csr_array(sp.block_diag([np.linalg.inv(block) * _inverse_pattern(block) for block in blocks]))
        unit = np.tril(C @ back, -1) + np.eye(T * n)
        unit[np.kron(np.eye(T), np.ones((n, n)) - np.eye(n)) > 0] = 0.0
        inverse = np.asarray(back @ _wrapped(Dense, unit).inverse)
        for part in (C, inverse):  # the range of entries is that of other encoders
            _wrapped(Dense, np.diag(np.abs(part).max(axis=1)))
        encoder = cls.from_computed(C.copy())
        inverse.setflags(write=False)
        vars(encoder)["inverse"] = inverse
        return encoder


def _inverse_pattern(block: FloatArray) -> NDArray[np.bool_]:
    """Non-zero pattern of the inverse: along paths in the graph of the block with columns put on its diagonal.

    Entries elsewhere are rounding, without noise of a holder.
    """
    diagonal = csgraph.maximum_bipartite_matching(sp.csr_array(block != 0), perm_type="column")
    paths, shorter = (block[:, diagonal] != 0).astype(np.float32), np.zeros((1, 1), dtype=np.float32)
    while not np.array_equal(paths, shorter):
        paths, shorter = (paths @ paths > 0).astype(np.float32), paths
    pattern = np.ones(block.shape, dtype=bool)
    if (diagonal >= 0).all():
        pattern[diagonal] = paths > 0
    return pattern


def _array_encoder(given: ArrayLike, columns: int) -> Dense:
    ndim = _array(given).ndim
    if ndim not in (2, 3):
        raise InvalidInput(f"encoder must have shape (T, T) or (n, T, T), got {np.shape(given)}.")
    C = check.finite_array(ndim, encoder=given)
    if C.shape[-1] != C.shape[-2] or (ndim == 3 and C.shape[0] != columns):
        raise InvalidInput(f"encoder must have shape (T, T) or ({columns}, T, T), got {C.shape}.")
    return _wrapped(Dense if ndim == 2 else PerColumn, C)


def _wrapped(kind: type[Dense], C: FloatArray) -> Dense:
    C.setflags(write=False)
    try:
        return kind(C)
    except ProblemError as error:
        raise InvalidInput(str(error)) from None


def _array(given: ArrayLike) -> NDArray[Any]:
    array = check.as_array(encoder=given)
    if array.dtype.kind in "US" or (array.dtype.kind == "O" and not array.ndim):
        raise InvalidInput(
            "encoder must be a numeric array of shape (T, T), or an encoder with structure, got "
            f"{check.brief(given)}; a mechanism by its name is mfdl.algorithms.build(name, dynamics, participation)."
        )
    return array


def unwrapped(encoder: Encoder) -> FloatArray | Encoder | None:
    """The encoder as it was given: an array, None for the identity, or one with structure."""
    return encoder.array if isinstance(encoder, ArrayEncoder) and encoder.shipped else encoder


def content(encoder: Encoder, *, with_shape: bool = False) -> bytes:
    """All that an encoder is made of, with the shape of an array on demand.

    Raises: InvalidInput: it is no dataclass of arrays, numbers and encoders.
    """
    if encoder.in_blocks:
        array = unwrapped(encoder)
        return b"" if array is None else repr(array.shape).encode() * with_shape + array.tobytes()  # type: ignore[union-attr]
    if not dataclasses.is_dataclass(encoder):
        raise InvalidInput(
            f"encoder {type(encoder).__name__} must be a frozen dataclass, so that its content can be read; make it "
            "one, or give C as an array."
        )
    kind = type(encoder)
    parts = [(kind.__name__ if encoder.shipped else f"{kind.__module__}.{kind.__qualname__}").encode()]
    for field in dataclasses.fields(encoder):
        value: Any = getattr(encoder, field.name)
        if isinstance(value, Encoder):
            parts.append(content(value, with_shape=True))
        else:
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise InvalidInput(
                    f"encoder {kind.__name__} must be made of arrays, numbers and encoders, but its {field.name} is "
                    f"of type {type(value).__name__}; give C as an array."
                )
            parts.append(f"{field.name}{array.shape}{array.dtype.str}".encode() + np.ascontiguousarray(array).tobytes())
    return b"(" + b"".join(parts) + b")"


def written_out(encoder: Encoder) -> ArrayEncoder:
    """Raises: UnsupportedMechanism: too many steps for an array."""
    if isinstance(encoder, ArrayEncoder) and encoder.shipped:
        return encoder
    if encoder.size > MAX_DENSE_STEPS:
        raise UnsupportedMechanism(
            f"this question takes the encoder as an array of T x T, which is limited to {MAX_DENSE_STEPS} steps, got "
            f"{encoder.size}; noise of a {type(encoder).__name__} encoder over that many is accounted where all "
            "messages are seen: under LDP, and for eavesdroppers."
        )
    return Dense.from_computed(np.tril(encoder.dense()))


def require_stepped(encoder: Encoder) -> None:
    """Raises: InvalidInput: an encoder of the user's own that streams another noise than its solve or dense C says."""
    if encoder.shipped or encoder.in_blocks:
        return
    Z = np.random.default_rng(0).standard_normal((encoder.size, 1, 1))
    streamed = _streamed(encoder, Z)
    solved = np.asarray(encoder.solve(Z))
    off = [_share(streamed - solved, solved)]
    if encoder.size <= MAX_DENSE_STEPS:
        C = np.asarray(encoder.dense())
        off.append(_share(C @ streamed[:, 0] - Z[:, 0], np.abs(C) @ np.abs(streamed[:, 0])))
    if not max(off) <= AGREE:
        raise InvalidInput(
            f"encoder {type(encoder).__name__} must stream what it solves for, got rows step by step that are no "
            f"C^-1 Z (off by {max(off):.2g}); advance and weights_of, solve, and dense must be of one C."
        )


def _streamed(encoder: Encoder, Z: FloatArray) -> FloatArray:
    if not encoder.keeps_fresh_rows:
        stepper = encoder.stepper(Z.shape[1:])
        return np.stack([stepper.step(fresh) for fresh in Z])
    weights = [np.asarray(encoder.weights_of(t))[: t + 1] for t in range(encoder.size)]
    return np.stack([np.tensordot(w, Z[t::-1][: w.size], 1) for t, w in enumerate(weights)])


def _share(part: FloatArray, whole: FloatArray) -> float:
    size = float(np.abs(whole).max())
    return float(np.abs(part).max()) / size if size > 0 else math.inf

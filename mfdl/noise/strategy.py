"""What a causal noise needs of an encoder that is no array: products, solutions and a state machine in O(T) memory.

`mfdl_solvers.encoders` (public as `mfdl.factorization.encoders`) has them: Toeplitz, banded, buffered, and inverses
of the first two. A strategy of one's own is a frozen dataclass of read-only arrays and numbers that answers `Encoder`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeGuard

import numpy as np

from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism

MAX_DENSE_STEPS = 4096
"""T up to which an encoder with structure may be written out, 128 MiB an array."""


class Encoder(Protocol):
    """A causal encoder C over T steps. Arrays have the steps along their first axis.

    Attributes:
        size: T.
        memory: rows of the state.
        keeps_fresh_rows: noise is a sum of the last fresh rows, by `weights_of`; else the state depends on all earlier
            ones, and `advance` is asked.
        noise_variances: diag(C^-1 C^-T), shape (T,).
    """

    @property
    def size(self) -> int: ...

    @property
    def memory(self) -> int: ...

    @property
    def keeps_fresh_rows(self) -> bool: ...

    @property
    def noise_variances(self) -> FloatArray: ...

    def solve(self, x: FloatArray) -> FloatArray:
        """C^-1 x."""

    def transposed_solve(self, x: FloatArray) -> FloatArray:
        """C^-T x."""

    def absolute_times(self, x: FloatArray) -> FloatArray:
        """At least |C| x, entry by entry, for x >= 0."""

    def step_rounding(self, x: FloatArray) -> FloatArray:
        """How far noise made step by step may miss C y = z, entry by entry in units of roundoff; x: norms of rows of
        C^-1.
        """

    def dense(self) -> FloatArray:
        """C, shape (T, T)."""

    def weights_of(self, step: int) -> FloatArray:
        """Where fresh rows are kept, C^-1[t, t - j] for j = 0 .. memory, as far as there are steps."""

    def advance(self, step: int, state: FloatArray, fresh: FloatArray) -> FloatArray:
        """Row `step` of C^-1 Z from that of Z; changes the state, shape (memory, ...), in place."""


def shipped(strategy: Encoder) -> bool:
    """Whether a strategy, and those that it is made of, are the library's own, of which products are known."""
    parts = [getattr(strategy, name) for name in getattr(strategy, "__dataclass_fields__", ())]
    mine = type(strategy).__module__.startswith("mfdl_solvers.")
    return mine and all(shipped(part) for part in parts if is_strategy(part))


def is_strategy(value: object) -> TypeGuard[Encoder]:
    """Whether an encoder is one that steps, told without computing anything of it."""
    return callable(getattr(type(value), "advance", None))


def content(strategy: Encoder) -> bytes:
    """All that a strategy is made of, different for different ones.

    Raises: InvalidInput: it is no dataclass of arrays, numbers and strategies.
    """
    if not dataclasses.is_dataclass(strategy):
        raise InvalidInput(
            f"encoder {type(strategy).__name__} must be a frozen dataclass, so that its content can be told; make it "
            "one, or give C as an array."
        )
    kind = type(strategy)
    parts = [(kind.__name__ if shipped(strategy) else f"{kind.__module__}.{kind.__qualname__}").encode()]
    for field in dataclasses.fields(strategy):
        value: Any = getattr(strategy, field.name)
        if is_strategy(value):
            parts.append(content(value))
        else:
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise InvalidInput(
                    f"encoder {kind.__name__} must be made of arrays, numbers and strategies, but its {field.name} is "
                    f"of type {type(value).__name__}; give C as an array."
                )
            parts.append(f"{field.name}{array.shape}{array.dtype.str}".encode() + np.ascontiguousarray(array).tobytes())
    return b"(" + b"".join(parts) + b")"


def written_out(strategy: Encoder) -> FloatArray:
    """C as an array. Raises: UnsupportedMechanism: too many steps for one."""
    if strategy.size > MAX_DENSE_STEPS:
        raise UnsupportedMechanism(
            f"this question takes the encoder as an array of T x T, which is limited to {MAX_DENSE_STEPS} steps, got "
            f"{strategy.size}; noise of a {type(strategy).__name__} strategy over that many is accounted where all "
            "messages are seen: under LDP, and for eavesdroppers."
        )
    return np.tril(strategy.dense())

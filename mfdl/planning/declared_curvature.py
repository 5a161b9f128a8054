"""Eigenvalues of the loss curvature as a plan declares them: a power law, a file, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..spec import parse

POWER = "power"
MAX_DIMENSION = 10**7


def eigenvalues(curvature: str | Sequence[float] | FloatArray, dimension: int | None = None) -> FloatArray:
    """lambda_j >= 0, shape (d,), the largest > 0.

    >>> eigenvalues("power:1", 4)
    array([1.        , 0.5       , 0.33333333, 0.25      ])

    Raises: InvalidInput: a text that means nothing, a file that cannot be read, numbers that are negative or all zero.
    """
    if not isinstance(curvature, str):
        return _checked(curvature, dimension, "curvature")
    name, _, rest = curvature.partition(":")
    if name.strip() != POWER:
        return _checked(_of_file(curvature), dimension, curvature)
    if dimension is None:
        raise InvalidInput(f"curvature {curvature!r} needs dimension (--dimension D), the number of directions.")
    d = check.integer_at_least(1, dimension=dimension)
    if d > MAX_DIMENSION:
        raise InvalidInput(f"dimension must be at most {MAX_DIMENSION:,}, got {d:,}.")
    exponent, scale = _numbers(curvature, rest)
    with np.errstate(over="ignore"):
        return scale * np.arange(1, d + 1, dtype=np.float64) ** -exponent


def _numbers(curvature: str, rest: str) -> tuple[float, float]:
    given = {"exponent": 1.0, "scale": 1.0}
    try:
        for key, value in parse(f"{POWER}:{rest}").settings if rest else ():
            given["exponent" if key is None else key] = float(value)
        exponent, scale = given.pop("exponent"), given.pop("scale")
        if given:
            raise ValueError
        return check.non_negative(exponent=exponent), check.positive(scale=scale)
    except ValueError:
        raise InvalidInput(
            f"curvature {curvature!r} must be power:P or power:P,scale=S with P >= 0 and S > 0, or a file of "
            "eigenvalues."
        ) from None


def _of_file(path: str) -> FloatArray:
    file = Path(path)
    try:
        if file.suffix == ".npy":
            return np.asarray(np.load(file, allow_pickle=False), dtype=np.float64).ravel()
        text = file.read_text(encoding="utf-8").replace(",", " ")
        return np.array([float(word) for word in text.split()])
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds something else than numbers"
        raise InvalidInput(
            f"cannot read curvature {path!r}: {reason}; give power:P, or a file of eigenvalues (.npy, or numbers "
            "separated by spaces, commas or lines)."
        ) from None


def _checked(values: Sequence[float] | FloatArray, dimension: int | None, where: str) -> FloatArray:
    numbers = check.finite_array(1, curvature=values)
    if not numbers.size or (numbers < 0).any() or not (numbers > 0).any():
        raise InvalidInput(f"the eigenvalues of {where} must be >= 0, and some of them > 0.")
    if dimension is not None and dimension != numbers.size:
        raise InvalidInput(f"dimension={dimension}, and {where} has {numbers.size} eigenvalues; leave dimension out.")
    return numbers

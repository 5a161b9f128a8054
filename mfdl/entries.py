"""Matrices given entry by entry, or by their products alone.

Entries of arrays and sparse matrices are exactly the numbers that they are, floats or Fractions; the products of an
operator round, and how much is taken on the safe side.
"""

from __future__ import annotations

import functools
import itertools
import operator
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from . import check
from .check import FloatArray
from .errors import InvalidInput, UnsupportedMechanism, require_known
from .floats import UNIT

BLOCK = 256
MAX_DENSE_BYTES = 4 * 2**30
COMPUTED = 2.0**-44
"""How far the entries of an operator may be off, relative to its largest: some hundred roundings."""
FEW_BITS = 24  # a number that was rounded to float64 has more, save one in 2^29
NEXT_TO = Fraction(1, 2**50)  # of a mantissa in [1/2, 1): a few roundings, as in 1 - 1 / 3 - 1 / 2
MAX_FACTOR_ENTRIES = 200_000
"""Of each factor of a matrix, and of the product: a few seconds of rational arithmetic."""
RANK_TOLERANCE = 2.0**-40  # how far rows of computed products may be off, relative to their norms
SMALLEST = 1e-300  # size of a Fraction below which float64 has fewer digits


def as_fractions(matrix: Any, max_denominator: int = 4096, *, decimals: bool = False) -> NDArray[Any]:
    """The fractions that floats stand for, as objects: 1/3 for its float, and for floats a few roundings from it.

    So ranks of computed matrices in `mfdl.View` are those of the matrices that are meant.

    Args:
        max_denominator: at most 2^24, of fractions; floats of at most FEW_BITS bits stand for themselves.
        decimals: floats stand for the decimals that they print as, 0.1 for 1/10, of any number of digits: for entries
            that were typed or read from text, not computed ones. `max_denominator` is then not used.

    Raises: InvalidInput: a float is next to no such fraction, as the root of 2.

    >>> as_fractions([[1 / 3, 1 - 0.9]]).tolist()
    [[Fraction(1, 3), Fraction(1, 10)]]
    >>> as_fractions([[0.1, 0.12345678]], decimals=True).tolist()
    [[Fraction(1, 10), Fraction(6172839, 50000000)]]
    """
    if check.integer_at_least(1, max_denominator=max_denominator) > 2**24:
        raise InvalidInput(
            f"max_denominator must be at most 2^24, which float64 can tell apart, got {max_denominator}."
        )
    given = matrix.toarray() if sp.issparse(matrix) else matrix
    if check.flag(decimals=decimals) and np.asarray(given).dtype in (np.float32, np.float16):
        raise InvalidInput("matrix must be in float64 with decimals=True: its entries print as other decimals in it.")
    floats = check.finite_array(2, matrix=given)
    out = np.empty(floats.shape, dtype=object)
    for x in np.unique(floats).tolist():
        if decimals:
            out[floats == x] = Fraction(str(x))
            continue
        whole = 2.0 ** max(0, min(20, int(np.frexp(x)[1])))  # 3267 / 65 is no fraction of 65 as a mantissa
        near = Fraction(x).limit_denominator(max_denominator)
        fraction = near if abs(near - Fraction(x)) <= NEXT_TO * int(whole) and abs(x) >= 1 else None
        if (fraction := fraction or fraction_of(x, max_denominator)) is None:
            raise InvalidInput(
                f"matrix must have entries next to fractions of denominators up to {max_denominator}, got {x!r}; raise "
                "max_denominator, give decimals=True if entries are the decimals that they print as, or give them as "
                "fractions.Fraction."
            )
        out[floats == x] = fraction
    return out


def fraction_of(x: float, max_denominator: int) -> Fraction | None:
    """What a float stands for: itself if it is of few bits, else p / q times a power of two; None: next to none."""
    mantissa, exponent = np.frexp(x)
    near = exactly = Fraction(float(mantissa))
    if not has_few_bits(np.array([x])):
        near = exactly.limit_denominator(max_denominator)
    return None if abs(near - exactly) > NEXT_TO else near * Fraction(2) ** int(exponent)


def has_few_bits(values: FloatArray) -> bool:
    """Whether no number has more than FEW_BITS significant bits.

    >>> has_few_bits(np.array([0.5, 3.0, 2.0**-40])), has_few_bits(np.array([0.1]))
    (True, False)
    """
    mantissa, _ = np.frexp(values)
    scaled = np.ldexp(mantissa, FEW_BITS)
    return bool((scaled == np.rint(scaled)).all())


def entries_and_operator(name: str, given: Any) -> tuple[Any, LinearOperator]:
    """(float array, csr array or array of Fractions; None for an operator, whose products round; its products)."""
    if isinstance(given, LinearOperator):
        of_matrix = getattr(given, "A", None) if type(given).__module__.startswith("scipy.") else None
        if not (sp.issparse(of_matrix) or isinstance(of_matrix, np.ndarray)):
            return None, given
        given = of_matrix
    entries = exact_entries(name, given)
    return entries, aslinearoperator(entries.astype(np.float64) if entries.dtype == object else entries)


def exact_entries(name: str, given: Any) -> Any:
    """A matrix with entries as they are: a csr array or an array of floats, or an array of Fractions.

    A list of 2-D arrays or sparse matrices is their product, without rounding.

    Raises: InvalidInput: no matrix, factors that do not fit, or an entry that is no finite number or beyond float64.
    """
    if isinstance(given, list | tuple) and given and all(getattr(factor, "ndim", 0) == 2 for factor in given):
        return _product(name, [exact_entries(f"{name}[{i}]", factor) for i, factor in enumerate(given)])
    if isinstance(given, LinearOperator):
        raise InvalidInput(f"{name} must be an array or a sparse matrix, got an operator; give its {name}.dense().")
    if sp.issparse(given):
        if not np.isfinite(given.data).all():
            raise InvalidInput(f"{name} must be finite, got a nan or infinite entry.")
        return sp.csr_array(given, dtype=np.float64)
    if check.as_array(**{name: given}).dtype != object:
        return check.finite_array(2, **{name: given})
    objects = np.array(given, dtype=object)
    rounded = check.finite_array(2, **{name: given})
    entries = np.empty(objects.shape, dtype=object)
    entries[...] = [[Fraction(x) for x in row] for row in objects.tolist()]
    if ((np.abs(rounded) < SMALLEST) & (entries != 0)).any():
        raise InvalidInput(f"{name} must have entries that are 0 or at least {SMALLEST:g} in size; scale A and B.")
    return entries


def _product(name: str, factors: list[Any]) -> NDArray[Any]:
    shapes = [factor.shape for factor in factors]
    if any(left[1] != right[0] for left, right in itertools.pairwise(shapes)):
        raise InvalidInput(f"factors of {name} must fit each other, got shapes {shapes}.")
    if max(*(rows * columns for rows, columns in shapes), shapes[0][0] * shapes[-1][1]) > MAX_FACTOR_ENTRIES:
        raise InvalidInput(
            f"factors of {name} and their product must have at most {MAX_FACTOR_ENTRIES} entries, got shapes {shapes}; "
            "leave out dependent rows, or use View.processed with operators."
        )
    dense = (factor.toarray() if sp.issparse(factor) else factor for factor in factors)
    return exact_entries(name, fractions_of(functools.reduce(operator.mul, map(rational, dense))))


def rational(matrix: NDArray[Any]) -> flint.fmpq_mat:
    ratios = (x.as_integer_ratio() for x in matrix.ravel().tolist())
    rows, columns = matrix.shape
    return flint.fmpq_mat(rows, columns, [flint.fmpq(p, q) for p, q in ratios])


def fractions_of(matrix: flint.fmpq_mat) -> NDArray[Any]:
    out = np.empty((matrix.nrows(), matrix.ncols()), dtype=object)
    out.ravel()[:] = [Fraction(int(x.p), int(x.q)) for x in matrix.entries()]
    return out


def checked_rank(rank: str | None, rank_tolerance: float) -> tuple[str | None, float]:
    """Which matrices are meant by rounded entries: these ("exact"), or those near them ("numerical")."""
    if rank is not None:
        require_known("rank", rank, ("exact", "numerical"))
    if check.positive(rank_tolerance=rank_tolerance) > 2.0**-10:
        raise InvalidInput(f"rank_tolerance must be at most 2^-10, got {rank_tolerance:g}.")
    return rank, float(rank_tolerance)


def without_columns(entries: Any, columns: NDArray[np.bool_]) -> Any:
    if sp.issparse(entries):
        return sp.csr_array(entries @ sp.diags_array((~columns).astype(np.float64)))
    out = entries.copy()
    out[:, columns] = Fraction(0) if entries.dtype == object else 0.0
    return out


def rounding_of(entries: Any, operator: LinearOperator) -> FloatArray:
    """How far dense products of an operator may be from the entries that are meant."""
    if entries is None:
        dense = np.abs(to_dense(operator))
        return np.full(operator.shape, COMPUTED * dense.max(initial=0.0))
    if entries.dtype == object:
        return UNIT * np.abs(to_dense(operator))
    return np.zeros(operator.shape)


def to_dense(operator: LinearOperator) -> FloatArray:
    """All entries, through the transpose when that has fewer columns."""
    rows, columns = operator.shape
    if rows == 0 or columns == 0:
        return np.zeros((rows, columns))
    dense = np.empty((rows, columns))
    transposed = rows < columns
    size = rows if transposed else columns
    for first in range(0, size, BLOCK):  # units in blocks: no identity of the full size
        last = min(first + BLOCK, size)
        unit = np.zeros((size, last - first))
        unit[np.arange(first, last), np.arange(last - first)] = 1.0
        if transposed:
            dense[first:last] = operator.rmatmat(unit).T
        else:
            dense[:, first:last] = operator.matmat(unit)
    return dense


def refuse_huge(rows: int, columns: int) -> None:
    """Raises UnsupportedMechanism: a dense array of that many rows and columns is too large."""
    if 8 * rows * columns > MAX_DENSE_BYTES:
        raise UnsupportedMechanism(
            f"this view needs a dense {rows} x {columns} matrix ({8 * rows * columns / 2**30:.1f} GiB), above the "
            f"limit of {MAX_DENSE_BYTES / 2**30:.0f} GiB; use fewer steps, or a view with a structured form."
        )


class Stacked(LinearOperator):
    def __init__(self, parts: list[LinearOperator]) -> None:
        self.parts = parts
        self.bounds = np.cumsum([0, *(p.shape[0] for p in parts)])
        super().__init__(dtype=np.dtype(np.float64), shape=(int(self.bounds[-1]), parts[0].shape[1]))

    def _matmat(self, X: FloatArray) -> FloatArray:
        return np.concatenate([p.matmat(X) for p in self.parts])

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        pairs = zip(self.parts, self.bounds[:-1], self.bounds[1:], strict=True)
        return sum(p.rmatmat(X[a:b]) for p, a, b in pairs)

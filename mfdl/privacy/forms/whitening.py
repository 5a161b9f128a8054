"""View Gram from the explicit matrices A and B: the form that covers every view, at dense cost.

X = A^T (B B^T)^+ A by a singular value decomposition of B with rows scaled to norm one (a row of a view may be
multiplied by any non-zero number). The rank decision is a privacy decision, so it is made on the safe side:

- a singular value above `tolerance` counts as noise, however small: its direction then weighs 1 / sigma^2, more than
any true larger value would;
- in the directions below it no noise is assumed: a victim whose columns have a component there above rounding level
leaks, i.e. has infinite loss;
- what is below both, noise and signal, cannot be told from a redundant row and is dropped. That is sound only where
redundant rows stand apart: when singular values fall without a gap down to the tolerance (many gossip rounds on a long
path), those dropped can carry the whole loss, and the columns are `undecided`;
- only a component that rounding explains may be dropped. One that is below it next to noise far larger than the signal,
yet not next to the signal itself, is `undecided`, and so is a column with rows that noise outweighs by more than
float64 can tell where such rows combine without noise: neither number may depend on the unit of the noise;
- entries of noise that were given, not computed, may be of many sizes within a row; the rank is then found again with
rows and columns of B scaled alike, which changes no range, and where the two differ nothing is claimed.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...check import FloatArray
from ...floats import EPS

RANK_SAFETY = 8.0  # tolerance = RANK_SAFETY * max(shape) * eps * largest singular value
GAP_END = 1e-10  # relative singular values between rounding level and this leave no gap above the dropped ones
SPREAD = 1e6  # of the entries of B, above which its rank is found a second time with rows and columns balanced
BALANCING = 100  # rounds of it
RESOLVED = 0.1  # rounding of cancelled entries beside the faintest direction of noise, above which nothing is told
COMBINED = 64  # a combination of rows without noise may weigh some of them this much less than others
FAR = 1e130  # signal over noise, or noise over signal: squares beyond it, times amplification, leave float64


@dataclasses.dataclass(frozen=True, eq=False)
class WhitenedColumns:
    """Y with X = Y^T Y for the given columns of A, and what was decided on the way.

    Attributes:
        whitened: Y, shape (rank, columns).
        amplification: sigma_1 / sigma_i of each row of Y: how much rounding is magnified there.
        leaks: whether the noiseless part of each column is above rounding level.
        noiseless: for each column a combination of the (given) rows that shows it without noise.
        tolerance: relative singular value below which no noise is assumed.
        undecided: for each column whether what was dropped could belong to it.
        assumed: noise above rounding level was taken for none, so a leak may be one of faint noise only.
        resolved: no singular value that counts as noise could be rounding of A and B.
    """

    whitened: FloatArray
    amplification: FloatArray
    leaks: np.ndarray
    noiseless: FloatArray
    tolerance: float
    rounding: float
    undecided: np.ndarray
    assumed: bool
    resolved: bool

    def gram_error(self, columns: slice | NDArray[np.intp] = slice(None)) -> FloatArray:
        """Bound on the rounding error of Y^T Y, entrywise, for some of the columns, to second order.

        With B off by E, ||E|| <= c eps sigma_1, X is off by y_s^T E' z_t + z_s^T E' y_t, z = B^T+ A: at most
        ||E|| (||y_s|| ||z_t|| + ||z_s|| ||y_t||), and sigma_1 z is Y with its rows amplified. Y itself is off by up to
        d = ||E|| amplification ||y||, maybe all in the weakest direction, where the computed column is zero.
        """
        Y = self.whitened[:, columns]
        plain, amplified = np.linalg.norm(Y, axis=0), np.linalg.norm(self.amplification[:, None] * Y, axis=0)
        largest = float(self.amplification.max(initial=1.0))
        off = RANK_SAFETY * self.rounding * largest * plain
        cross = np.outer(plain + off, amplified + largest * off)
        return RANK_SAFETY * self.rounding * (cross + cross.T) + np.outer(off, off)


def whiten(
    A: FloatArray, B: FloatArray, *, given_noise: bool = False, rounding: tuple[FloatArray, FloatArray] | None = None
) -> WhitenedColumns:
    """Whitens columns of A, (rows, columns), by the noise B, (rows, m).

    Args:
        given_noise: the entries of B were given, so that a small one beside large ones is no rounding.
        rounding: entrywise bounds on how far A and B are from the exact ones; None: far less than the decomposition.
    Cost: one SVD of B; two where given entries spread over more than SPREAD.
    """
    scaled = _Scaled.from_arrays(A, B)
    A, B, given = scaled.A, scaled.B, scaled.given.any(axis=0)
    size = max(*B.shape, A.shape[1], 1)
    tolerance = RANK_SAFETY * size * EPS
    if B.shape[1] == 0 or not B.any():
        U, sigma = np.zeros((len(B), 0)), np.zeros(0)
    else:
        U, sigma, _ = np.linalg.svd(B, full_matrices=False)
    largest = float(sigma[0]) if sigma.size else 1.0
    rank = int(np.count_nonzero(sigma > tolerance * largest))
    above_rounding, dropped = sigma > size * EPS * largest, sigma <= tolerance * largest
    possible = min(len(B), int(np.count_nonzero(B.any(axis=0))))
    without_gap = rank < possible and bool((above_rounding & (sigma <= GAP_END * largest)).any())
    U, sigma = U[:, :rank], sigma[:rank]
    off = size * EPS if rounding is None else max(size * EPS, scaled.relative(rounding, largest) / RANK_SAFETY)
    resolved = rank == 0 or bool(RANK_SAFETY * off * largest / sigma[-1] <= RESOLVED)
    unresolved = off > size * EPS and not resolved
    projected = U.T @ A
    residual = A - U @ projected
    residual -= U @ (U.T @ residual)  # second pass: the residual is then orthogonal to working precision
    norms, left = np.linalg.norm(A, axis=0), np.linalg.norm(residual, axis=0)
    visible = 4 * tolerance
    leaks = left * scaled.unscaled > visible * np.maximum(norms * scaled.unscaled, 1.0)
    whitened = projected / sigma[:, None]
    strength = np.abs(whitened).max(axis=0, initial=0.0) / FAR * scaled.signal
    far = whitened.any(axis=0) & ~((strength > FAR**-2) & (strength < 1))
    undecided = scaled.lost | (given & unresolved) | far | (given & without_gap) | (left > visible * norms)
    undecided |= _beyond_resolution(A, B, U, COMBINED * visible)
    if given_noise and spread([B]) > SPREAD:
        undecided |= given & _other_when_balanced(A, B, rank, tolerance)
    noiseless = np.zeros((scaled.num_rows, A.shape[1]))
    with np.errstate(over="ignore"):  # weights of the rows as they were given, for words only
        noiseless[scaled.selected] = residual * scaled.beside_noise / scaled.rows[:, None]
    return WhitenedColumns(
        whitened=np.where(far, 0.0, whitened) * scaled.signal,
        amplification=largest / sigma,
        leaks=leaks,
        noiseless=noiseless,
        tolerance=tolerance,
        rounding=off,
        undecided=undecided & ~leaks,
        assumed=bool((above_rounding & dropped).any()),
        resolved=resolved,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaled:
    """A and B without rows that are all zero, rows of norm one in A or B, columns of A near one.

    Attributes:
        A, B: scaled; given: where A was not zero; selected: their rows among num_rows.
        rows: what rows were divided by, and signal: what columns of A were, all told.
        beside_noise: the part of `signal` that row scaling made due; unscaled: that part where columns were small
            already.
        lost: columns with an entry that underflowed.
    """

    A: FloatArray
    B: FloatArray
    given: NDArray[np.bool_]
    selected: NDArray[np.intp]
    num_rows: int
    rows: FloatArray
    signal: FloatArray
    beside_noise: FloatArray
    unscaled: FloatArray
    lost: NDArray[np.bool_]

    @classmethod
    def from_arrays(cls, A: FloatArray, B: FloatArray) -> _Scaled:
        columns, given = _power_of_two(A, axis=0), A != 0
        A = A / columns
        selected = np.flatnonzero(given.any(axis=1) | B.any(axis=1))
        rows = np.maximum(_power_of_two(A, axis=1), _power_of_two(B, axis=1))[selected]
        A, B, num_rows, given = A[selected] / rows[:, None], B[selected] / rows[:, None], len(A), given[selected]
        unit = np.maximum(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
        A, B = A / unit[:, None], B / unit[:, None]
        beside = _power_of_two(A, axis=0)  # again, so that no square underflows
        lost = ((A == 0) & given).any(axis=0)
        unscaled = beside * np.minimum(columns, 1.0)
        return cls(A / beside, B, given, selected, num_rows, rows * unit, columns * beside, beside, unscaled, lost)

    def relative(self, rounding: tuple[FloatArray, FloatArray], largest: float) -> float:
        """Norms of what A's columns and B are off by, scaled like them, over their own (B's: its largest direction)."""
        of_signal, of_noise = (off[self.selected] / self.rows[:, None] for off in rounding)
        columns = np.where(self.given.any(axis=0), np.linalg.norm(self.A, axis=0), 1.0)
        shares = np.linalg.norm(of_signal / self.signal, axis=0) / columns
        return float(shares.max(initial=0.0) + np.linalg.norm(of_noise) / largest)


def _other_when_balanced(A: FloatArray, B: FloatArray, rank: int, tolerance: float) -> NDArray[np.bool_]:
    """For each column of A whether it leaks once rows and columns of B are alike in size, or the rank is another."""
    balanced, rows, _ = balance(B)
    V, sigma, _ = np.linalg.svd(balanced, full_matrices=False)
    V = V[:, : int(np.count_nonzero(sigma > tolerance * sigma[0]))]
    again = A * rows[:, None]
    again /= _power_of_two(again, axis=0)
    left = np.linalg.norm(again - V @ (V.T @ again), axis=0)
    return np.asarray((left > 4 * tolerance * np.linalg.norm(again, axis=0)) | (V.shape[1] != rank))


def _beyond_resolution(A: FloatArray, B: FloatArray, U: FloatArray, resolution: float) -> NDArray[np.bool_]:
    """For each column of A whether a combination of rows without noise could hold it below rounding of the column.

    Rows of one connected component of the pattern of B can combine, if it is rank-deficient there: with weights that
    undo their noise, so in a unit combination row i weighs about the least noise of the component over its own.
    """
    noise, norms = np.linalg.norm(B, axis=1), np.linalg.norm(A, axis=0)
    loud = np.flatnonzero(noise > 0)
    free = 1 - (U**2).sum(axis=1) > GAP_END

    def buried(members: NDArray[np.intp]) -> NDArray[np.bool_]:
        weighed = np.abs(A[members]) * (noise[members].min() / noise[members])[:, None]
        return np.asarray(np.where(weighed > 0, weighed, np.inf).min(axis=0) < resolution * norms)

    silent = np.abs(A[noise == 0])
    beyond = ((silent > 0) & (silent <= resolution * norms)).any(axis=0)
    if not free[loud].any() or not buried(loud).any():  # components are smaller, and hold no more
        return beyond
    rows, columns = np.nonzero(B)
    size = len(B) + B.shape[1]
    edges = sp.coo_array((np.ones(rows.size, dtype=bool), (rows, len(B) + columns)), shape=(size, size))
    _, component = sp.csgraph.connected_components(edges, directed=False)
    for label in np.unique(component[loud[free[loud]]]):
        beyond |= buried(loud[component[loud] == label])
    return beyond


def spread(arrays: Sequence[FloatArray]) -> float:
    """Largest over smallest size of the entries that are not zero."""
    sizes = np.abs(np.concatenate([array[array != 0] for array in arrays] or [np.zeros(0)]))
    return float(sizes.max() / sizes.min()) if sizes.size else 1.0


def balance(B: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(R B K, R, K) with powers of two that bring the entries other than zero of every row and column near one."""
    sizes = np.where(B != 0, np.abs(B), np.nan)
    logs = np.log2(sizes)
    rows, columns = np.zeros(len(B)), np.zeros(B.shape[1])
    with warnings.catch_warnings():  # rows and columns without noise stay as they are
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(BALANCING):
            off = np.nan_to_num((np.nanmax(logs, axis=1) + np.nanmin(logs, axis=1)) / 2)
            logs, rows = logs - off[:, None], rows - off
            off = np.nan_to_num((np.nanmax(logs, axis=0) + np.nanmin(logs, axis=0)) / 2)
            logs, columns = logs - off, columns - off
    by_rows, by_columns = np.ldexp(1.0, np.rint(rows).astype(int)), np.ldexp(1.0, np.rint(columns).astype(int))
    return B * by_rows[:, None] * by_columns, by_rows, by_columns


def _power_of_two(matrix: FloatArray, axis: int) -> FloatArray:
    """The power of two at or below the largest entry in size, 1 where all are zero; to divide by without rounding."""
    largest = np.abs(matrix).max(axis=axis, initial=0.0)
    _, exponent = np.frexp(np.where(largest > 0, largest, 1.0))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, -1022)))

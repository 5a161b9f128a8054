"""View Gram from the explicit matrices A and B: the form that covers every view, at dense cost.

X = A^T (B B^T)^+ A by a singular value decomposition of B with rows scaled to norm one (a row of a view may be
multiplied by any non-zero number). The rank decision is a privacy decision, so it is made on the safe side:

- a singular value above `tolerance` counts as noise, however small: its direction then weighs 1 / sigma^2, more
  than any true larger value would;
- in the directions below it no noise is assumed: a victim whose columns have a component there above rounding
  level leaks, i.e. has infinite loss;
- what is below both, noise and signal, cannot be told from a redundant row and is dropped; the tolerance is part
  of the answer. That is sound only where redundant rows stand apart: when singular values fall without a gap down to
  the tolerance (many gossip rounds on a long path), those dropped can carry the whole loss, and the columns are
  `undecided`: no finite number is claimed for them;
- columns of A are scaled to one first, which is exact, and undone;
- only a component that rounding explains may be dropped. One that is below it next to noise far larger than the
  signal, yet not next to the signal itself, is `undecided`, and so is a column with rows that noise outweighs by more
  than float64 can tell where such rows combine without noise: neither number may depend on the unit of the noise.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..check import FloatArray

EPS = float(np.finfo(np.float64).eps)
RANK_SAFETY = 8.0  # tolerance = RANK_SAFETY * max(shape) * eps * largest singular value
GAP_END = 1e-10  # relative singular values between rounding level and this leave no gap above the dropped ones
COMBINED = 64  # a combination of rows without noise may weigh some of them this much less than others
FAR = 1e130  # signal over noise, or noise over signal: squares beyond it, times amplification, leave float64


@dataclasses.dataclass(frozen=True, eq=False)
class WhitenedColumns:
    """Y with X = Y^T Y for the given columns of A, and what was decided on the way.

    Attributes:
        whitened: Y, shape (rank, columns).
        amplification: sigma_1 / sigma_i of each row of Y: how much rounding is magnified there.
        leak: the noiseless part of each column, norms, shape (columns,).
        leaks: whether that part is above rounding level.
        leaking_row: for each column a unit combination of the (given) rows that shows it without noise, or None.
        tolerance: relative singular value below which no noise is assumed.
        undecided: for each column whether what was dropped could belong to it.
    """

    whitened: FloatArray
    amplification: FloatArray
    leaks: np.ndarray
    noiseless: FloatArray
    tolerance: float
    rounding: float
    undecided: np.ndarray

    def gram_error(self, columns: slice = slice(None)) -> FloatArray:
        """First-order bound on the rounding error of Y^T Y, entrywise, for some of the columns.

        With B off by E, ||E|| <= c eps sigma_1, X is off by y_s^T E' z_t + z_s^T E' y_t, z = B^T+ A: at most
        ||E|| (||y_s|| ||z_t|| + ||z_s|| ||y_t||), and sigma_1 z is Y with its rows amplified.
        """
        Y = self.whitened[:, columns]
        plain, amplified = np.linalg.norm(Y, axis=0), np.linalg.norm(self.amplification[:, None] * Y, axis=0)
        cross = np.outer(plain, amplified)
        return RANK_SAFETY * self.rounding * (cross + cross.T)


def whiten(A: FloatArray, B: FloatArray) -> WhitenedColumns:
    """Whitens columns of A by the noise B; see the module head.

    Args: A: (rows, columns); B: (rows, m).
    Cost: one SVD of B.
    """
    signal, given = _power_of_two(A, axis=0), A != 0
    A = A / signal
    scale = np.maximum(_power_of_two(A, axis=1), _power_of_two(B, axis=1))
    kept = np.flatnonzero(given.any(axis=1) | B.any(axis=1))
    A, B, given = A[kept] / scale[kept, None], B[kept] / scale[kept, None], given[kept]
    unit = np.maximum(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
    A, B = A / unit[:, None], B / unit[:, None]
    lost = ((A == 0) & given).any(axis=0)
    beside_noise = _power_of_two(A, axis=0)  # again, so that no square underflows
    A, shown, signal = A / beside_noise, beside_noise * np.minimum(signal, 1.0), signal * beside_noise
    size = max(*B.shape, A.shape[1], 1)
    if B.shape[1] == 0 or not B.any():
        U, sigma = np.zeros((len(kept), 0)), np.zeros(0)
    else:
        U, sigma, _ = np.linalg.svd(B, full_matrices=False)
    tolerance = RANK_SAFETY * size * EPS
    largest = float(sigma[0]) if sigma.size else 1.0
    rank = int(np.count_nonzero(sigma > tolerance * largest))
    possible = min(len(kept), int(np.count_nonzero(B.any(axis=0))))
    faint = (sigma > size * EPS * largest) & (sigma <= GAP_END * largest)
    undecided = lost | (given.any(axis=0) & (rank < possible and bool(faint.any())))
    U, sigma = U[:, :rank], sigma[:rank]
    projected = U.T @ A
    residual = A - U @ projected
    residual -= U @ (U.T @ residual)  # second pass: the residual is then orthogonal to working precision
    norms, left = np.linalg.norm(A, axis=0), np.linalg.norm(residual, axis=0)
    visible = 4 * tolerance
    leaks = left * shown > visible * np.maximum(norms * shown, 1.0)
    whitened = projected / sigma[:, None]
    strength = np.abs(whitened).max(axis=0, initial=0.0) / FAR * signal
    far = whitened.any(axis=0) & ~((strength > FAR**-2) & (strength < 1))
    whitened = np.where(far, 0.0, whitened) * signal
    undecided |= far
    undecided |= (left > visible * norms) | _beyond_resolution(A, B, U, COMBINED * visible)
    undecided &= ~leaks
    noiseless = np.zeros((len(scale), A.shape[1]))
    with np.errstate(over="ignore"):  # weights of the rows as they were given, for words only
        noiseless[kept] = residual * beside_noise / scale[kept, None] / unit[:, None]
    return WhitenedColumns(
        whitened=whitened,
        amplification=largest / sigma,
        leaks=leaks,
        noiseless=noiseless,
        tolerance=tolerance,
        rounding=size * EPS,
        undecided=undecided,
    )


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

    found = np.zeros(A.shape[1], dtype=bool)
    if not free[loud].any() or not buried(loud).any():  # components are smaller, and hold no more
        return found
    rows, columns = np.nonzero(B)
    size = len(B) + B.shape[1]
    edges = sp.coo_array((np.ones(rows.size, dtype=bool), (rows, len(B) + columns)), shape=(size, size))
    _, component = sp.csgraph.connected_components(edges, directed=False)
    for one in np.unique(component[loud[free[loud]]]):
        found |= buried(loud[component[loud] == one])
    return found


def _power_of_two(matrix: FloatArray, axis: int) -> FloatArray:
    """The power of two at or below the largest entry in size, 1 where all are zero; to divide by without rounding."""
    largest = np.abs(matrix).max(axis=axis, initial=0.0)
    _, exponent = np.frexp(np.where(largest > 0, largest, 1.0))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, -1022)))

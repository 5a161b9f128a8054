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
  `undecided`: no finite number is claimed for them.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..check import FloatArray

EPS = float(np.finfo(np.float64).eps)
RANK_SAFETY = 8.0  # tolerance = RANK_SAFETY * max(shape) * eps * largest singular value
GAP_END = 1e-10  # relative singular values between rounding level and this leave no gap above the dropped ones


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
    scale = np.maximum(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
    kept = np.flatnonzero(scale > 0)
    A, B = A[kept] / scale[kept, None], B[kept] / scale[kept, None]
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
    undecided = np.asarray(A.any(axis=0)) & (rank < possible and bool(faint.any()))
    U, sigma = U[:, :rank], sigma[:rank]
    projected = U.T @ A
    residual = A - U @ projected
    residual -= U @ (U.T @ residual)  # second pass: the residual is then orthogonal to working precision
    norms = np.linalg.norm(A, axis=0)
    leaks = np.linalg.norm(residual, axis=0) > tolerance * np.maximum(norms, 1.0) * 4
    noiseless = np.zeros((len(scale), A.shape[1]))
    noiseless[kept] = residual / scale[kept, None]
    return WhitenedColumns(
        whitened=projected / sigma[:, None],
        amplification=largest / sigma,
        leaks=leaks,
        noiseless=noiseless,
        tolerance=tolerance,
        rounding=size * EPS,
        undecided=undecided,
    )

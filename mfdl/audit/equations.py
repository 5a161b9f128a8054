"""Which unknowns do noisy linear equations O = A x + B z fix, exactly and approximately?

In: dense A (rows, unknowns) and B (rows, noises). Out: an orthonormal basis of what is seen without noise, the whitened
rest, and from both: how precisely each unknown can be estimated, and the estimator that does it.

Ranks are decided twice, as numbers in float64 cannot settle what is faint. The cautious reader trusts only singular
values that stand clear of rounding, and takes every other trace of noise for noise; the generous one takes whatever is
above rounding for seen, and faint noise for none. What both expose is exposed, what neither does is hidden, and the
rest is undecided. Where singular values fall to rounding without a gap, no direction is shown to be unseen.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..check import FloatArray
from ..floats import EPS

ROUNDING = 8.0 * EPS  # times the size: relative singular values below it are taken for rounding
CLEAR = 1e-9  # relative singular values above it are no rounding, whatever was computed before
EXPOSED = 1e-7  # an unknown is solved for if at most this of the others is mixed in,
HIDDEN = 1e-5  # and is not if at least this is; in between it is undecided
BLOCK = 256

Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """One reader's solution.

    Attributes:
        seen: orthonormal rows that span what is seen without noise, shape (r, unknowns).
        noisy: orthonormal rows, orthogonal to `seen`, of what is seen through noise, shape (q, unknowns).
        strength: signal over unit noise of each row of `noisy`, > 0, shape (q,).
        open_ended: singular values fell to rounding without a gap, so that more may be seen.
        estimator: unknowns <- observations, shape (unknowns, rows): exact on `seen`, best linear unbiased on `noisy`.
    """

    seen: FloatArray
    noisy: FloatArray
    strength: FloatArray
    open_ended: bool
    estimator: FloatArray

    @cached_property
    def residual(self) -> FloatArray:
        """Distance of each unit vector to the span of `seen`, in [0, 1], shape (unknowns,)."""
        return _residual(self.seen)

    def error_std(self, noise_std: float) -> FloatArray:
        """Standard deviation of the best linear unbiased estimate of each unknown; inf where there is none."""
        beyond = _residual(np.concatenate([self.seen, self.noisy]))
        spread = noise_std * np.linalg.norm(self.noisy / self.strength[:, None], axis=0)
        return np.where(beyond <= HIDDEN, np.where(self.residual <= EXPOSED, 0.0, spread), np.inf)

    def posterior_ratio(self, prior_over_noise: float) -> FloatArray:
        """Posterior over prior standard deviation of each unknown for independent Gaussian priors, in [0, 1].

        Args: prior_over_noise: prior over noise standard deviation; inf without noise.
        """
        learned = np.ones_like(self.strength)
        if np.isfinite(prior_over_noise):
            with np.errstate(over="ignore", divide="ignore"):  # either end has its limit
                learned = 1 / (1 + 1 / (prior_over_noise * self.strength) ** 2)
        squared = self.residual**2 - learned @ self.noisy**2
        return np.sqrt(np.clip(squared, 0.0, 1.0))


@dataclasses.dataclass(frozen=True, eq=False)
class SolvedEquations:
    """What both readers say.

    Attributes:
        exposed, undecided: bool (unknowns,); what is neither is hidden.
        cautious, generous: their solutions (one object where they agree).
    """

    exposed: Mask
    undecided: Mask
    cautious: Solution
    generous: Solution


def solve(A: FloatArray, B: FloatArray) -> SolvedEquations:
    """Solves for x from A x + B z as far as that goes.

    Args: A: (rows, unknowns); B: (rows, noises), no column where there is no noise.
    Cost: one SVD of B and at most two each of noiseless and noisy part of A: O(rows unknowns min(rows, unknowns)).
    """
    rows, unknowns = A.shape
    scale = np.maximum(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1) if B.shape[1] else 0.0)
    used = np.flatnonzero(scale > 0)
    A, B = A[used] / scale[used, None], B[used] / scale[used, None]
    B = B[:, B.any(axis=0)]
    if B.shape[1]:
        U, sigma, _ = np.linalg.svd(B, full_matrices=B.shape[0] > B.shape[1])
    else:
        U, sigma = np.zeros((len(used), 0)), np.zeros(0)
    rounding = ROUNDING * max(*A.shape, B.shape[1], 1)
    largest = float(sigma[0]) if sigma.size else 1.0
    ranks = [int(np.count_nonzero(sigma > level * largest)) for level in (rounding, CLEAR)]
    columns = np.zeros((unknowns, rows))

    def read(rank: int, cautious: bool) -> tuple[Solution, bool]:
        basis, sizes = U[:, :rank], sigma[:rank]
        quiet = U[:, rank:] if sigma.size else sp.eye_array(len(used), format="csr")  # dense it would fill the memory
        lost = largest / float(sizes[-1]) if rank else 1.0  # magnifies rounding errors of the null space
        level = rounding * lost
        E, whitened = quiet.T @ A, (basis.T @ A) / sizes[:, None]
        seen, inverse, faint, open_ended = _span(E, level, cautious, _norm_bound(A))
        estimator = np.asarray(inverse @ quiet.T)
        rest = whitened - (whitened @ seen.T) @ seen
        noisy, undo, fainter, _ = _span(rest, level, False, _norm_bound(whitened))
        strength = 1 / np.linalg.norm(noisy @ undo, axis=1)  # noisy_i undo = u_i^T / sigma_i
        estimator = estimator + undo @ ((basis / sizes).T - whitened @ estimator)
        full = columns.copy()
        full[:, used] = estimator / scale[used]
        return Solution(seen, noisy, strength, open_ended, full), faint or fainter

    cautious, doubtful = read(ranks[0], True)
    generous = read(ranks[1], False)[0] if doubtful or ranks[0] != ranks[1] else cautious
    exposed = (cautious.residual <= EXPOSED) & (generous.residual <= EXPOSED)
    hidden = (cautious.residual >= HIDDEN) & (generous.residual >= HIDDEN)
    if generous.open_ended:
        hidden &= ~A.any(axis=0)  # a column of zeros is not seen
    return SolvedEquations(exposed, ~(exposed | hidden), cautious, generous)


def reduced_rows(seen: FloatArray, exposed: Mask) -> FloatArray:
    """The combinations that are seen besides the exposed unknowns, as the rows of a reduced echelon form.

    Args: seen: orthonormal rows; exposed: unknowns whose unit vectors they span.
    Returns: (c, unknowns), a unit pivot in each row that no other row touches, zero at exposed unknowns.
    """
    rows = seen[:, ~exposed].copy()
    pivot_rows = 0
    for column in range(rows.shape[1]):
        if pivot_rows == len(rows):
            break
        best = pivot_rows + int(np.abs(rows[pivot_rows:, column]).argmax())  # bound: any pivot, one form
        if abs(rows[best, column]) <= CLEAR * 10:
            rows[pivot_rows:, column] = 0.0
            continue
        rows[[pivot_rows, best]] = rows[[best, pivot_rows]]
        rows[pivot_rows] /= rows[pivot_rows, column]
        factors = rows[:, column].copy()
        factors[pivot_rows] = 0.0
        rows -= factors[:, None] * rows[pivot_rows]
        pivot_rows += 1
    out = np.zeros((pivot_rows, seen.shape[1]))
    rows = rows[:pivot_rows]
    rows[np.abs(rows) <= CLEAR * 10 * np.abs(rows).max(axis=1, keepdims=True, initial=0.0)] = 0.0
    out[:, ~exposed] = rows
    return out


def _span(matrix: FloatArray, level: float, cautious: bool, size: float) -> tuple[FloatArray, FloatArray, bool, bool]:
    """(orthonormal rows, pseudo-inverse restricted to them, whether some are faint, whether there is no gap below).

    Args: size: of the numbers that the matrix was computed from; level: relative rounding error of that.
    """
    if 0 in matrix.shape:
        return np.zeros((0, matrix.shape[1])), np.zeros((matrix.shape[1], matrix.shape[0])), False, False
    left, sigma, right = np.linalg.svd(matrix, full_matrices=False)
    clear, above = int(np.count_nonzero(sigma > max(CLEAR, level) * size)), int(np.count_nonzero(sigma > level * size))
    faint = above > clear
    # as far below the last one again, the next singular value would be rounding: that it is one proves no rank
    falling = above > 0 and sigma[above - 1] < max(CLEAR, 10 * np.sqrt(level)) * size
    open_ended = (faint or falling) and above < min(matrix.shape[0], int(np.count_nonzero(matrix.any(axis=0))))
    rank = clear if cautious else above
    inverse = right[:rank].T @ (left[:, :rank] / sigma[:rank]).T
    return right[:rank], inverse, faint, open_ended


def _norm_bound(matrix: FloatArray) -> float:
    """At least the largest singular value, and at most sqrt(rank) times it."""
    return float(np.linalg.norm(matrix)) if matrix.size else 1.0


def _residual(rows: FloatArray) -> FloatArray:
    """Distance of each unit vector to the span of orthonormal rows; blockwise, without cancellation."""
    out = np.ones(rows.shape[1])
    for first in range(0, rows.shape[1], BLOCK):
        last = min(first + BLOCK, rows.shape[1])
        left = -rows.T @ rows[:, first:last]
        left[np.arange(first, last), np.arange(last - first)] += 1.0
        out[first:last] = np.linalg.norm(left, axis=0)
    return out

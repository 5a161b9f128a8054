"""The inner maximum of a sensitivity: max <X, U> over correlation matrices U, from both sides.

With U[s, t] = <g_s, g_t> it is the largest sum X[s, t] <g_s, g_t> over ||g_t|| <= 1 in dimension
>= k. Its dual is min sum(lam) over diag(lam) >= X in the semidefinite order: every such lam gives an upper bound,
for vectors in any dimension, since sum X[s, t] <g_s, g_t> <= sum lam_t ||g_t||^2. Floating-point answers become
certificates by one rule: whatever lam an algorithm proposes, its feasibility is checked by eigenvalues of
diag(lam) - X or of the scaled X, and lam is raised by the deficit and by every rounding error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mfdl_solvers.arithmetic import blas_threads
from mfdl_solvers.ties import SAME, equal_to_largest

from ..check import FloatArray
from ..errors import InvalidInput
from ..floats import LARGEST, UNIT

TOLERANCE = 1e-6  # two bounds this close, relatively, count as one number
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]

_CHUNK_ENTRIES = 400_000  # entries of X worked on at once: 3 MB an array, so a chunk of small matrices stays in cache
_THREADLESS = 32  # up to this size OpenBLAS starts no threads; above, they cost more than they give


@dataclasses.dataclass(frozen=True, eq=False)
class ElliptopeValue:
    """Bounds on max <X, U>, U >= 0, diag U = 1, for a batch of B matrices of size k.

    Attributes:
        upper: never below the truth, shape (B,); sum of `weights`, rounded up.
        lower: attained by unit vectors, rounding errors taken off, shape (B,).
        weights: lam >= 0 with diag(lam) >= X, shape (B, k).
        converged: whether upper <= (1 + tolerance) lower, shape (B,).
        iterations: Newton steps of the slowest matrix; 0 if no matrix needed any.
    """

    upper: FloatArray
    lower: FloatArray
    weights: FloatArray
    converged: BoolArray
    iterations: int


def closed_form_bounds(
    grams: ArrayLike, entry_error: ArrayLike | None = None, *, tolerance: float = TOLERANCE
) -> tuple[FloatArray, FloatArray]:
    """(upper, lower) from closed-form dual points and the best sign vector found, without solving anything, shape (B,).

    The upper bound is the least of: row sums of |X|; c d with c = lambda_max(D^-1/2 X D^-1/2), for d = 1 (this is
    k lambda_max), the row sums of |X| and the row norms of X.

    Args: grams: X, shape (B, k, k); entry_error: bound on |X - true X| for each entry, same shape; None for exact
        entries; tolerance: gap up to which no better dual point is sought.

    Guarantees: Never below, or above, the true value. They meet when signs d with d_s X[s, t] d_t >= 0 exist and the
        errors are small. inf for a matrix with an infinite entry.
    Raises: InvalidInput: wrong shape, nan, or a negative error.
    Cost: O(B k^3), about 70 microseconds a matrix at k = 20.
    """
    X, error = _checked(grams, entry_error)
    upper, lower = np.empty(len(X)), np.empty(len(X))
    for part in _chunks(X):
        upper[part], lower[part], _ = _closed_form(X[part], error[part], tolerance)
    return upper, lower


def maximise(
    grams: ArrayLike, entry_error: ArrayLike | None = None, tolerance: float = TOLERANCE, max_iterations: int = 60
) -> ElliptopeValue:
    """The value itself, between a certified dual and a primal value, to a relative gap of `tolerance`.

    Matrices whose closed-form bound is not yet exact go through a primal-dual interior-point method (the direction of
    Helmberg, Rendl, Vanderbei and Wolkowicz, SIAM J. Optim. 6, 1996), all of them at once: with Z = diag(lam) - X,
    solve (Z^-1 o U) dlam = mu diag(Z^-1) - 1 and set dU = mu Z^-1 - U - sym(Z^-1 diag(dlam) U). Neither its arithmetic
    nor its convergence carries the guarantee; see `_certify`.

    Args: as of `closed_form_bounds`; max_iterations: Newton steps; 10 to 20 are usual.
    Guarantees: upper is never below, lower never above the true value, converged or not. inf for a matrix with an
        infinite entry. Errors in X that are larger than the tolerance leave `converged` False.
    Raises: InvalidInput: wrong shape, nan, or a negative error.
    Cost: O(B k^3) a step. Errors in X that are larger than the tolerance keep `converged` False.
    """
    X, error = _checked(grams, entry_error)
    B, k = X.shape[:2]
    upper, lower, weights = np.empty(B), np.empty(B), np.empty((B, k))
    most = 0
    for part in _chunks(X):
        upper[part], lower[part], weights[part] = _closed_form(X[part], error[part], tolerance)
        left = part.start + np.flatnonzero(~close(upper[part], lower[part], tolerance))
        if left.size:
            with blas_threads(0) if k > _THREADLESS else contextlib.nullcontext():
                high, low, lam, steps = _interior_point(X[left], error[left], tolerance, max_iterations)
            better = high < upper[left]
            weights[left[better]] = lam[better]
            upper[left] = np.minimum(high, upper[left])
            lower[left] = np.maximum(low, lower[left])
            most = max(most, steps)
    return ElliptopeValue(upper, lower, weights, close(upper, lower, tolerance), most)


def _checked(grams: ArrayLike, entry_error: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """Symmetric X and its errors; the rounding of symmetrising is added to the errors."""
    X = np.asarray(grams, dtype=np.float64)
    if X.ndim != 3 or X.shape[1] != X.shape[2]:
        raise InvalidInput(f"grams must have shape (B, k, k), got {X.shape}; use X[None] for one matrix.")
    if np.isnan(X).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(X))[0])
        raise InvalidInput(f"grams must not be nan, got nan at index {where}.")
    error = np.broadcast_to(0.0, X.shape) if entry_error is None else np.asarray(entry_error, dtype=np.float64)
    if error.shape != X.shape:
        raise InvalidInput(f"entry_error must have the shape of grams, {X.shape}, got {error.shape}.")
    if not (error >= 0).all():
        raise InvalidInput("entry_error must be >= 0 in every entry.")
    flipped = X.transpose(0, 2, 1)
    if not np.array_equal(X, flipped):  # only the symmetric part enters sum X[s, t] <g_s, g_t>
        with np.errstate(invalid="ignore"):
            mean = 0.5 * X + 0.5 * flipped
        mean[np.isnan(mean)] = math.inf
        error = 0.5 * (error + error.transpose(0, 2, 1)) * (1 + 4 * UNIT) + 2 * UNIT * np.abs(mean)
        X = mean
    return X, error


def _chunks(X: FloatArray) -> list[slice]:
    size = max(1, _CHUNK_ENTRIES // max(1, X.shape[1] ** 2))
    return [slice(start, min(start + size, len(X))) for start in range(0, len(X), size)]


def close(upper: FloatArray, lower: FloatArray, tolerance: float) -> BoolArray:
    return np.asarray(upper <= lower * (1 + tolerance))


def _sum_up(values: FloatArray) -> FloatArray:
    """Sums over the last axis of numbers >= 0, rounded up: m roundings in any order lose at most m units each."""
    return np.asarray(values.sum(axis=-1) * (1 + 2 * (values.shape[-1] + 2) * UNIT))


def _row_sums_up(values: FloatArray) -> FloatArray:
    return _sum_up(np.abs(values))


def _eigenvalue_error(M: FloatArray) -> FloatArray:
    """How far eigenvalues of M may be off, entries being off by 4 roundings too; eigvalsh is backward stable."""
    return np.asarray((4 * M.shape[-1] + 8) * UNIT * np.sqrt((M * M).sum(axis=(1, 2))))


def _scaled(X: FloatArray) -> tuple[FloatArray, IntArray]:
    """X times a power of two (exact) with entries at most one, and the exponents; zero and infinite X stay."""
    size = np.abs(X).max(axis=(1, 2), initial=0.0)
    exponent = np.where(np.isfinite(size), np.frexp(size)[1], 0).astype(np.intp)
    return np.ldexp(X, -exponent[:, None, None]), exponent


def _restored(values: FloatArray, exponent: IntArray) -> FloatArray:
    """values * 2^exponent for values >= 0, rounded up where the result is subnormal and loses digits."""
    with np.errstate(over="ignore"):
        result: FloatArray = np.ldexp(values, exponent)
    lost = (values > 0) & (result < 2.0**-1000)
    return np.where(lost, np.nextafter(result, math.inf), result) if lost.any() else result


def _restored_down(values: FloatArray, exponent: IntArray) -> FloatArray:
    with np.errstate(over="ignore"):
        result: FloatArray = np.ldexp(values, exponent) * (1 - 2 * UNIT)
    return np.minimum(result, LARGEST)


def _closed_form(X: FloatArray, error: FloatArray, tolerance: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    B, k = X.shape[:2]
    if k == 0 or B == 0:
        return np.zeros(B), np.zeros(B), np.zeros((B, k))
    blown = np.asarray(np.isinf(X).any(axis=(1, 2)))
    infinite = blown | np.asarray(np.isinf(error).any(axis=(1, 2)))
    if infinite.any():
        X, error = np.where(infinite[:, None, None], 0.0, X), np.where(infinite[:, None, None], 0.0, error)
    scaled, exponent = _scaled(X)
    slack = _row_sums_up(_restored(error, -exponent[:, None, None]))
    weights, value = _row_sums_up(scaled), _sign_value(scaled)
    upper, lower = _sum_up(weights + slack), _lower(value, scaled, slack)
    left = np.flatnonzero(~close(upper, lower, tolerance))
    if left.size:  # the eigenvalues cost most of the time, and cannot improve on an attained bound
        part = scaled[left]
        norms = np.sqrt((part * part).sum(axis=2))
        for direction in (weights[left], norms, np.ones((len(left), k))):
            lam = scale_to_feasible(part, direction)
            better = _sum_up(lam) < _sum_up(weights[left])
            weights[left[better]] = lam[better]
        upper = _sum_up(weights + slack)
    weights = _restored((weights + slack) * (1 + 2 * UNIT), exponent[:, None])
    upper, lower = _restored(upper, exponent), _restored_down(lower, exponent)
    weights[infinite] = math.inf
    return np.where(infinite, math.inf, upper), np.where(blown, math.inf, np.where(infinite, 0.0, lower)), weights


def scale_to_feasible(X: FloatArray, direction: FloatArray) -> FloatArray:
    """lam = c d with diag(lam) >= X, c = lambda_max(D^-1/2 X D^-1/2) >= 0, rounded up, for finite X, shape (B, k)."""
    largest = direction.max(axis=1, keepdims=True, initial=0.0)
    d = np.where(largest > 0, np.maximum(direction, 1e-30 * largest), 1.0)
    root = 1 / np.sqrt(d)
    M = X * root[:, :, None] * root[:, None, :]
    top = np.linalg.eigvalsh(M)[:, -1] + _eigenvalue_error(M)
    return np.asarray((np.maximum(top, 0.0)[:, None] / (root * root)) * (1 + 4 * UNIT))


def _sign_value(X: FloatArray) -> FloatArray:
    """max over a few sign vectors of d^T X d, shape (B,), with its rounding; exact where X >= 0 up to signs.

    Signs spread along a maximum spanning forest of |X| (Prim's method, all matrices in step).
    """
    B, k = X.shape[:2]
    rows, size = np.arange(B), np.abs(X)
    signs = np.zeros((B, k))
    signs[:, 0] = 1.0
    reach, pull = size[:, 0].copy(), np.where(X[:, 0] < 0, -1.0, 1.0)
    reach[:, 0] = -1.0
    for _ in range(k - 1):
        chosen = equal_to_largest(reach, axis=1).argmax(axis=1)  # exact: booleans
        sign = pull[rows, chosen]
        signs[rows, chosen] = sign
        reach[rows, chosen] = -1.0
        link, link_size = X[rows, chosen], size[rows, chosen]
        closer = (signs == 0) & (link_size > reach * (1 + SAME))
        reach = np.where(closer, link_size, reach)
        pull = np.where(closer, np.where(link < 0, -sign[:, None], sign[:, None]), pull)
    return np.asarray(((X @ signs[:, :, None])[:, :, 0] * signs).sum(axis=1))


def _lower(value: FloatArray, X: FloatArray, slack: FloatArray) -> FloatArray:
    """A computed <X, U>, |U| <= 1, less its roundings and less what the errors of X can take away; at least 0."""
    off = (2 * X.shape[1] + 16) * UNIT * np.abs(X).sum(axis=(1, 2)) + slack.sum(axis=1)
    return np.maximum((value - off) * (1 - 2 * UNIT), 0.0)  # the true X is PSD: its maximum is >= 0


def _certify(X: FloatArray, lam: FloatArray, slack: FloatArray) -> FloatArray:
    """Weights that are feasible beyond rounding: lam plus the deficit of diag(lam) - X, the errors, the slack."""
    k, Z = X.shape[1], -X
    Z[:, np.arange(k), np.arange(k)] += lam
    # the subtraction is off by one rounding of a diagonal entry of Z, within the entries' share of the error
    deficit = np.maximum(_eigenvalue_error(Z) - np.linalg.eigvalsh(Z)[:, 0], 0.0)
    return np.asarray((np.maximum(lam, 0.0) + deficit[:, None] + slack) * (1 + 4 * UNIT))


def _interior_point(
    X: FloatArray, error: FloatArray, tolerance: float, max_iterations: int
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """(upper, lower, weights, steps): the primal-dual method on finite, non-zero X, certified at the end."""
    B, k = X.shape[:2]
    upper, lower, weights = np.full(B, math.inf), np.zeros(B), np.full((B, k), math.inf)
    finite = np.flatnonzero(np.isfinite(X).all(axis=(1, 2)) & np.isfinite(error).all(axis=(1, 2)))
    active = finite[np.abs(X[finite]).max(axis=(1, 2), initial=0.0) > 0]
    if not active.size:
        return upper, lower, weights, 0
    X, exponent = _scaled(X[active])
    slack = _row_sums_up(_restored(error[active], -exponent[:, None, None]))
    diagonal, U = np.arange(k), np.broadcast_to(np.eye(k), X.shape).copy()
    lam = 1.1 * np.abs(X).sum(axis=2) + 0.1 * np.abs(X).sum(axis=(1, 2))[:, None] / k
    Z = -X
    Z[:, diagonal, diagonal] += lam
    shrink, goal = np.full(len(X), 0.2), 0.25 * tolerance
    step = 0
    while True:
        sound = np.ones(len(X), dtype=bool)
        lower_Z, lower_U = _cholesky(Z, sound), _cholesky(U, sound)
        gap = (U * Z).sum(axis=(1, 2))
        done = ~sound | (gap <= goal * lam.sum(axis=1)) | (step >= max_iterations)
        if done.any():
            at, proposal = active[done], _certify(X[done], lam[done], slack[done])
            factor = np.where(sound[done, None, None], lower_U[done], np.eye(k))
            factor = factor / np.sqrt((factor * factor).sum(axis=2))[:, :, None]  # rows: the unit vectors g_t
            attained = (factor * (X[done] @ factor)).sum(axis=(1, 2))
            weights[at] = _restored(proposal, exponent[done, None])
            upper[at] = _restored(_sum_up(proposal), exponent[done])
            lower[at] = _restored_down(_lower(attained, X[done], slack[done]), exponent[done])
            keep = ~done
            active, X, exponent, slack, U, lam, Z, shrink, gap, lower_Z, lower_U = (
                array[keep] for array in (active, X, exponent, slack, U, lam, Z, shrink, gap, lower_Z, lower_U)
            )
            if not active.size:
                return upper, lower, weights, step
        mu = shrink * gap / k
        try:
            half_Z, half_U = np.linalg.inv(lower_Z), np.linalg.inv(lower_U)
            inverse = half_Z.transpose(0, 2, 1) @ half_Z
            right = mu[:, None] * inverse[:, diagonal, diagonal] - 1.0
            change = np.linalg.solve(inverse * U, right[:, :, None])[:, :, 0]
            turn = (inverse * change[:, None, :]) @ U
            dU = mu[:, None, None] * inverse - U - 0.5 * (turn + turn.transpose(0, 2, 1))
            along_Z = _step_length((half_Z * change[:, None, :]) @ half_Z.transpose(0, 2, 1))
            along_U = _step_length(half_U @ dU @ half_U.transpose(0, 2, 1))
        except np.linalg.LinAlgError:  # no direction left in this arithmetic: certify where we are
            step = max_iterations = max(step, max_iterations)
            continue
        U = U + along_U[:, None, None] * dU
        U[:, diagonal, diagonal] = 1.0
        lam, Z = lam + along_Z[:, None] * change, -X
        Z[:, diagonal, diagonal] += lam
        shortest = np.minimum(along_Z, along_U)
        # the rule with fewest steps among those tried; after a short step almost only centring, which ends jams
        shrink = np.select([shortest > 0.9, shortest > 0.6, shortest > 0.25], [0.1, 0.3, 0.5], 0.95)
        step += 1


def _step_length(change: FloatArray) -> FloatArray:
    """The largest step <= 1 that keeps I + step * change positive definite with a margin, shape (B,)."""
    least = np.linalg.eigvalsh(0.5 * (change + change.transpose(0, 2, 1)))[:, 0]
    return np.minimum(1.0, 0.9 / np.maximum(-least, 1e-300))


def _cholesky(M: FloatArray, sound: BoolArray) -> FloatArray:
    factors: FloatArray = np.empty(M.shape)
    try:
        factors[:] = np.linalg.cholesky(M)
    except np.linalg.LinAlgError:
        for index in range(len(M)):
            try:
                factors[index] = np.linalg.cholesky(M[index])
            except np.linalg.LinAlgError:
                factors[index], sound[index] = np.eye(M.shape[1]), False
    bad = ~np.isfinite(factors).all(axis=(1, 2))
    if bad.any():
        factors[bad] = np.eye(M.shape[1])
        sound &= ~bad
    return factors

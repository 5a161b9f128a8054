"""View Gram from the explicit matrices A and B: the form that covers every view, at dense cost.

X = A^T (B B^T)^+ A by a singular value decomposition of B with rows scaled to norm one (a row of a view may be
multiplied by any non-zero number). The rank decision is a privacy decision, so it is made on the safe side:

- a singular value above `tolerance` counts as noise, however small: its direction then weighs 1 / sigma^2, more than
  any true larger value would;
- in the directions below it no noise is assumed: a victim whose columns have a component there above rounding level
  leaks, i.e. has infinite loss;
- what is below both, noise and signal, cannot be told from a redundant row and is dropped. That is sound only where
  redundant rows stand apart: when singular values fall without a gap down to the tolerance (many gossip rounds on a
  long path), those dropped can carry the whole loss, and the columns are `undecided`;
- only a component that rounding explains may be dropped. One that is below it next to noise far larger than the signal,
  yet not next to the signal itself, is `undecided`, and so is a column with rows that noise outweighs by more than
  float64 can tell where such rows combine without noise: neither number may depend on the unit of the noise;
- entries of noise that were given, not computed, may be of many sizes within a row; the rank is then found again with
  rows and columns of B scaled alike, which changes no range, and where the two differ nothing is claimed.

The noise of one step, F sparse: [(F F^T)^+]_uu is what one node's gradient shows beside the noise of all. Connected
parts of the pattern of F share no noise, so each stands for itself: a row alone is one over its variance, parts of up
to DENSE_ROWS rows are whitened, and larger ones are enclosed where every node has noise of its own (`enclosed`).

F F^T = D + R R^T, D > 0 the variance of the columns that one row alone has. Scaled by D it is S = I + P with spectrum
in [1, b]. For every vector x and r = e_u - S x,

    e_u^T S^-1 e_u = 2 x_u - x^T S x + r^T S^-1 r,    |r|^2 / b <= r^T S^-1 r <= |r|^2,

so any x is a certificate, and x = sum_j c_j T_j(S') e_u, with Chebyshev polynomials of S moved to [-1, 1], needs of the
graph what lies within k edges of u: all products of the T_j are moments e_u^T T_i(S') e_u, i <= 2 k, which take |T_j
e_u|^2 and <T_j e_u, T_j+1 e_u>. The best c is a Gauss-Radau rule (Golub and Meurant, 1994); what rounding makes of it
is another c.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ...check import FloatArray
from ...floats import EPS, UNIT

RANK_SAFETY = 8.0  # tolerance = RANK_SAFETY * max(shape) * eps * largest singular value
GAP_END = 1e-10  # relative singular values between rounding level and this leave no gap above the dropped ones
SPREAD = 1e6  # of the entries of B, above which its rank is found a second time with rows and columns balanced
BALANCING = 100  # rounds of it
RESOLVED = 0.1  # rounding of cancelled entries beside the faintest direction of noise, above which nothing is told
COMBINED = 64  # a combination of rows without noise may weigh some of them this much less than others
FAR = 1e130  # signal over noise, or noise over signal: squares beyond it, times amplification, leave float64
DENSE_ROWS = 2000  # rows up to which a part is decomposed: a minute
MEETING = 1e-6  # relative distance of the two ends of an enclosure up to which its middle is called exact
ENOUGH = 1e-10
DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40)
"""Of polynomials, at which both ends are looked at; higher ones would need more than float64."""
BALL_ENTRIES = 12_000  # of vectors that are followed for one node: how far around it is looked
BLOCK_ENTRIES = 2**22
EXTREME = 2.0**300  # squares and products of such numbers stay far inside float64


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
    _, component = connected_components(edges, directed=False)
    for label in np.unique(component[loud[free[loud]]]):
        beyond |= buried(loud[component[loud] == label])
    return beyond


def spread(arrays: Sequence[FloatArray]) -> float:
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


@dataclasses.dataclass(frozen=True, eq=False)
class NodeNoise:
    """The noise that is left of each victim's, arrays (victims,).

    Attributes: inverse: [(F F^T)^+]_uu, within `errors`; open: the victim's gradient shows without noise, or that
        cannot be told; upper: only known to be at most this; undecided: nothing is told; tolerance: of
        `WhitenedColumns`.
    """

    inverse: FloatArray
    errors: FloatArray
    open: NDArray[np.bool_]
    upper: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    tolerance: float = 0.0


def node_noise(factor: sp.csr_array, known: NDArray[np.bool_], victims: Sequence[int]) -> NodeNoise:
    """The noise left of each victim's, where an attacker knows some columns of the factor (n, columns).

    Cost: of a part of m rows m^3 up to DENSE_ROWS, beyond about BALL_ENTRIES products for each victim.
    """
    F = sp.csr_array(factor @ sp.diags_array((~known).astype(np.float64)))
    F.eliminate_zeros()
    chosen = np.asarray(victims, dtype=np.intp)
    if F.shape[0] <= DENSE_ROWS:
        return _whitened(F, chosen)
    pattern = sp.csr_array((np.ones(F.nnz), F.indices, F.indptr), shape=F.shape)  # products of entries may underflow
    _, part = connected_components(pattern @ pattern.T, directed=False)
    sizes = np.bincount(part)
    zeros, no = np.zeros(chosen.size), np.zeros(chosen.size, dtype=bool)
    bounds = NodeNoise(zeros, zeros.copy(), no, no.copy(), no.copy())
    alone = sizes[part[chosen]] == 1
    variances = np.asarray(F.multiply(F).sum(axis=1)).ravel()[chosen]
    plain = alone & (variances > 1 / EXTREME) & (variances < EXTREME)
    inverse = np.divide(1.0, variances, out=np.zeros(chosen.size), where=plain)
    bounds.inverse[plain] = inverse[plain]
    bounds.errors[plain] = (np.diff(F.indptr).max() + 4) * UNIT * inverse[plain]
    tolerance = 0.0
    for component in np.unique(part[chosen[~plain]]):
        rows, at = np.flatnonzero(part == component), np.flatnonzero(~plain & (part[chosen] == component))
        local = F[rows]
        places = np.searchsorted(rows, chosen[at])
        columns = np.unique(local.indices)
        local = sp.csr_array(local[:, columns])
        given = _whitened(local, places) if rows.size <= DENSE_ROWS else enclosed(local, places)
        for name in ("inverse", "errors", "open", "upper", "undecided"):
            getattr(bounds, name)[at] = getattr(given, name)
        tolerance = max(tolerance, given.tolerance)
    return dataclasses.replace(bounds, tolerance=tolerance)


def joint_node_noise(factor: sp.csr_array, known: NDArray[np.bool_], nodes: Sequence[int]) -> NodeNoise | None:
    """The same for nodes together, `inverse` and `errors` (nodes, nodes); None of over DENSE_ROWS rows."""
    if factor.shape[0] > DENSE_ROWS:
        return None
    F = sp.csr_array(factor @ sp.diags_array((~known).astype(np.float64)))
    return _whitened(F, np.asarray(nodes, dtype=np.intp), joint=True)


def _whitened(F: sp.csr_array, nodes: NDArray[np.intp], *, joint: bool = False) -> NodeNoise:
    white = whiten(np.eye(F.shape[0])[:, nodes], F.toarray(), given_noise=True)
    Y, errors = white.whitened, white.gram_error()
    inverse, errors = (Y.T @ Y, errors) if joint else ((Y**2).sum(axis=0), np.diagonal(errors).copy())
    open_, upper = white.leaks | white.undecided, white.undecided | (white.leaks & white.assumed)
    return NodeNoise(inverse, errors, open_, upper, np.zeros(nodes.size, dtype=bool), white.tolerance)


def enclosed(F: sp.csr_array, victims: NDArray[np.intp]) -> NodeNoise:
    """Between certified ends, from what lies near each victim; undecided where a node has no noise of its own."""
    n, columns = F.shape
    single = np.bincount(F.indices, minlength=columns) == 1
    squares = F.multiply(F).tocsr()
    of_node = np.asarray(squares[:, np.flatnonzero(single)].sum(axis=1)).ravel()
    no, yes = np.zeros(victims.size, dtype=bool), np.ones(victims.size, dtype=bool)
    if not ((of_node > 1 / EXTREME) & (of_node < EXTREME)).all() or squares.max() > EXTREME:
        return NodeNoise(np.zeros(victims.size), np.zeros(victims.size), no, no, yes)
    R = sp.csr_array(sp.diags_array(1 / np.sqrt(of_node)) @ F[:, np.flatnonzero(~single)])
    P = sp.csr_array(R @ R.T)
    # entries of P and D are sums of at most that many rounded products
    terms = int(np.diff(F.indptr).max()) + int(np.diff(F.tocsc().indptr).max()) + 8
    off = terms * UNIT * (1 + float((abs(R) @ (abs(R).T @ np.ones(n))).max()))
    lower, upper = inverse_diagonal(P, victims)
    lower, upper = lower * (1 - 2 * off) / of_node[victims], upper * (1 + 2 * off) / of_node[victims]
    meet = upper - lower <= MEETING * upper
    middle = np.where(meet, (lower + upper) / 2, upper)
    return NodeNoise(middle, np.where(meet, (upper - lower) / 2, 0.0) + 4 * UNIT * upper, no, ~meet, no)


def inverse_diagonal(P: sp.csr_array, victims: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds on [(I + P)^-1]_uu, P sparse symmetric positive semidefinite, shape (n, n)."""
    n = P.shape[0]
    largest = float(abs(P).sum(axis=1).max()) * (1 + 1e-12)
    if largest == 0:
        return np.ones(victims.size), np.ones(victims.size)
    X = sp.csr_array((2 / largest) * P - sp.eye_array(n))  # (2 S - (1 + b)) / (b - 1), b = 1 + largest
    width = max(1, BLOCK_ENTRIES // BALL_ENTRIES)
    ends = [_enclosed_block(X, 1 + largest, victims[i : i + width]) for i in range(0, victims.size, width)]
    lower, upper = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    return lower, upper


def _enclosed_block(X: sp.csr_array, b: float, victims: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
    """Ends by rows T_j(X) e_u of all victims at once, until both meet or the neighbourhoods are too large."""
    size, n = victims.size, X.shape[0]
    row_entries = X.nnz / n
    rounding = (float(np.diff(X.indptr).max()) + 8) * UNIT  # of one product of a row of norm at most 1
    before = sp.csr_array((np.ones(size), (np.arange(size), victims)), shape=(size, n))
    current = sp.csr_array(before @ X)
    moments = [np.ones(size), _dots(before, current), 2 * _dots(current, current) - 1]
    lower, upper = np.full(size, 1 / b), np.ones(size)  # as 1 <= S <= b
    for k in range(1, DEGREES[-1] + 1):
        last = current.nnz * row_entries > BALL_ENTRIES * size
        if last or k in DEGREES:
            with np.errstate(over="ignore", invalid="ignore"):
                low, high = _ends(np.stack(moments, axis=1), k, b, 8 * (k + 1) ** 2 * rounding)
            lower, upper = np.fmax(lower, low), np.fmin(upper, high)  # an end that overflowed to nan says nothing
        if last or (upper - lower <= ENOUGH * upper).all():
            break
        before, current = current, sp.csr_array(2 * (current @ X) - before)
        moments += [2 * _dots(current, before) - moments[1], 2 * _dots(current, current) - 1]
    return lower, upper


def _dots(A: sp.csr_array, B: sp.csr_array) -> FloatArray:
    return np.asarray(A.multiply(B).sum(axis=1)).ravel()


def _ends(moments: FloatArray, k: int, b: float, off: float) -> tuple[FloatArray, FloatArray]:
    """(lower, upper) by polynomials of degree below k, from moments up to 2 k, each within `off` of the truth."""
    i, j = np.indices((k + 1, k + 1))
    G = (moments[:, i + j] + moments[:, np.abs(i - j)]) / 2  # <T_i e_u, T_j e_u>
    A = np.zeros((k + 1, k))  # of S T_j
    A[np.arange(k), np.arange(k)] = (1 + b) / 2
    A[1, 0] = (b - 1) / 2
    for column in range(1, k):
        A[column - 1, column] += (b - 1) / 4
        A[column + 1, column] += (b - 1) / 4
    xSx, g, h = G[:, :k] @ A, G[:, 0, :k], G[:, 0] @ A
    Q = A.T @ G @ A - (xSx + xSx.transpose(0, 2, 1)) / 2
    weights = _solved(Q, h - g)
    upper = 1 - 2 * ((h - g) * weights).sum(axis=1) + np.einsum("vi,vij,vj->v", weights, Q, weights)
    under = _solved(xSx, g)
    lower = 2 * (g * under).sum(axis=1) - np.einsum("vi,vij,vj->v", under, xSx, under)
    return lower - off * _size(under, A), upper + off * _size(weights, A)


def _solved(Q: FloatArray, right: FloatArray) -> FloatArray:
    """Some c with Q c near the right side; how near decides how tight an end is, not whether it holds."""
    k = Q.shape[1]
    ridge = 1e-13 * np.abs(np.trace(Q, axis1=1, axis2=2)) + 1e-300
    try:
        return np.asarray(np.linalg.solve(Q + ridge[:, None, None] * np.eye(k), right[..., None])[..., 0])
    except np.linalg.LinAlgError:  # of one victim; the block keeps the ends of fewer degrees
        return np.zeros_like(right)


def _size(c: FloatArray, A: FloatArray) -> FloatArray:
    """How much of rounding in moments, and in what is made of them, reaches an end at c."""
    plain, times = np.abs(c).sum(axis=1), (np.abs(c) @ np.abs(A).T).sum(axis=1)
    return np.asarray((1 + times) ** 2 + plain * (2 + times))

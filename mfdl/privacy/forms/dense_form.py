"""X_u from the explicit matrices A and B: the form that covers every view, at dense cost.

Ranks decide what leaks, so they are exact where the view is small enough (`exact_arithmetic`); where float64 cannot
tell, a victim is undecided. Where every injected sum is seen, the view is that of the sums: A = I and B = N without its
known columns.

A small view given entry by entry is computed in rational arithmetic, which decides what float64 leaves undecided. Let R
be rows of B that are a basis of its row space. Where a column of A lies in the range of B, every other row of [A B] is,
in that column, the same combination of those rows as in B, and shows nothing more. So with B_R of full row rank X_u =
A_R^T (B_R B_R^T)^-1 A_R.

Nearby: X_u of every matrix near a given one that has its numerical rank, for views of rounded products. Rows that
depend on each other, rounded, are independent, and what they then show is rounding. Let M = [a A_u B] with rows divided
by their norms, a the power of two that gives A_u the size of B, and let M' of rank r be the matrix that is meant, with
|M' - M|_F <= e, e = tolerance sqrt(rows) and rounding. r is the number of singular values of M above e: no matrix
within e has a smaller rank, and of those of rank r the following holds.

Claim. P = [P_A P_B], the first r right singular vectors of M, X = (P_B^+ P_A)^T P_B^+ P_A, s the least singular value
of P_B. With d = sqrt(2) e / sigma_r < s and b = d / (s - d), for every g

    sqrt(g^T X' g) <= (1 + b) sqrt(g^T X g) + b |g|,   sqrt(g^T X g) <= (1 + b) sqrt(g^T X' g) + b |g|.

Proof. P = S^-1 U^T M, so off the row space of M' it is S^-1 U^T (M - M'), of norm at most e / sigma_r: the sine of the
largest angle between the two row spaces. So that of M' has orthonormal rows Q with |Q - P| <= d, and X' depends on the
row space alone. g^T X' g is the least |z|^2 with Q_B z = Q_A g. With y = P_B^+ P_A g, Q_A g = P_B y + (Q_A - P_A) g, so

    Q_B^+ Q_A g = Q_B^+ P_B y + Q_B^+ (Q_A - P_A) g,   |Q_B^+| <= 1 / (s - d),   Q_B^+ P_B = I' - Q_B^+ (Q_B - P_B)

with I' a projection: at most (1 + b) |y| + b |g|. The other way alike, with |P_B^+| = 1 / s.  []

Squares: (p + q)^2 <= (1 + b) p^2 + (1 + 1 / b) q^2. Where d is not below s / 2, noise may vanish in a combination that
shows a gradient, and nothing finite is claimed. Columns of other nodes are left out of M.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import flint
import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...entries import has_few_bits, rational
from ...floats import EPS, UNIT
from ...trust.knowledge import Knowledge
from ...trust.view import AlgorithmView, View
from ..exact_arithmetic import MAX_ENTRIES, independent_rows, is_small, rank_and_outside
from ..row_spaces import confirmed, exact_range, is_silent, meant_entries
from .base import AS_THEY_ARE, Blocks, Group, ViewForm, ViewGram, leak_in_words
from .whitening import RANK_SAFETY, SPREAD, WhitenedColumns, spread, whiten

MAX_DENSE_WORK = 1e12  # rows^2 * columns of B, about a minute of singular value decomposition
MAX_RATIONAL_ROWS = 48
MAX_RATIONAL_ENTRIES = 6000  # of A and B together: about a second of rational arithmetic
SAFE = 1e280
"""Size of the entries of X beyond which, or below whose inverse, later products could leave float64."""


class GroupForm(ViewForm):
    """A form to which a victim is a group of one."""

    @abc.abstractmethod
    def _group_grams(self, groups: Sequence[Group]) -> list[ViewGram | None]: ...

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        return self._group_grams([(u,) for u in victims])

    def joint_grams(self, groups: Sequence[Group]) -> list[ViewGram | Blocks | None]:
        return list(self._group_grams(groups))


class DenseForm(GroupForm):
    """Everything else. Args: given: entries of A and B are what they are, not computed (`View.entries_given`)."""

    of_any_view = True

    def __init__(self, view: View, *, given: bool) -> None:
        self.view, self.given = view, given

    @classmethod
    def from_view(cls, view: View) -> Self | None:
        if isinstance(view, AlgorithmView) and view.shows_injections:
            return cls.from_injections(view.algorithm, view.knowledge)
        rows, columns = view.noise.shape
        return cls(view, given=view.entries_given) if float(rows) ** 2 * columns <= MAX_DENSE_WORK else None

    @classmethod
    def from_injections(cls, algorithm: LinearAlgorithm, knowledge: Knowledge) -> Self | None:
        size, columns = algorithm.noise.shape
        if size**2 * columns > MAX_DENSE_WORK:
            return None
        N = algorithm.noise.matmat(np.eye(columns)) * ~knowledge.known_noise.ravel()
        return cls(View(sp.eye_array(size), N, num_nodes=algorithm.num_nodes), given=False)

    def _group_grams(self, groups: Sequence[Group]) -> list[ViewGram | None]:
        victims = list(dict.fromkeys(u for group in groups for u in group))
        view, nodes = self.view, np.asarray(victims, dtype=np.intp)
        A, B, rounding = view.dense_gradients(nodes), view.dense_noise(), view.noise_rounding()
        B, residue = _without_residue(B, rounding)
        white = whiten(A, B, given_noise=self.given, rounding=(view.gradient_rounding(nodes), rounding))
        in_float64 = white.leaks
        white = self._with_exact_ranks(white, A, B, victims)
        undecided = white.undecided | (residue & ~white.leaks)
        decided_next = self.given and Fractions.from_view(view) is not None
        out: list[ViewGram | None] = []
        for group in groups:
            columns = group_columns(group, victims, view.axis.num_steps)
            Y, leaks, doubt = white.whitened[:, columns], white.leaks[columns], undecided[columns]
            if doubt.any() and (decided_next or not leaks.any()):
                out.append(None)
                continue
            upper = bool(leaks.any()) and (white.assumed or residue or bool(doubt.any()))
            out.append(
                ViewGram(
                    Y.T @ Y,
                    white.gram_error(columns),
                    leaks=leaks | doubt,
                    why=_first_leak(view, white.noiseless[:, columns], leaks, in_float64[columns]),
                    form="dense form",
                    tolerance=white.tolerance,
                    upper=upper,
                )
            )
        return out

    def _with_exact_ranks(
        self, white: WhitenedColumns, A: FloatArray, B: FloatArray, victims: Sequence[int]
    ) -> WhitenedColumns:
        """Leaks as exact arithmetic has them; what float64 alone takes for one is undecided, and all at another rank.

        Of views too large for it only those are decided whose shares of noise and gradients are of like size.
        """
        rank, leaks = len(white.whitened), white.leaks
        if self.given and B.size + A.size <= MAX_ENTRIES:
            signal, noise = self.view.entries(np.asarray(victims, dtype=np.intp))
            rank, leaks = rank_and_outside(noise, signal)
        elif isinstance(self.view, AlgorithmView) and is_small(self.view):
            rank, leaks = _exact(self.view, victims, rank, leaks, at_least=white.resolved)
        elif self._may_hide_faint_shares(B, rank):
            rank = -1
        else:
            return white
        undecided = (white.undecided | (white.leaks & ~leaks) | (len(white.whitened) != rank)) & ~leaks
        return dataclasses.replace(white, leaks=leaks, undecided=undecided)

    def _may_hide_faint_shares(self, B: FloatArray, rank: int) -> bool:
        """Whether rows that combine without noise, as float64 has it, may show something that is lost in their sums.

        Where weights and noise are of like size, such a combination is redundant or a leak, or `whiten` sees singular
        values without a gap. A faint share in a row of others shows it all the same. Of an operator nothing is known
        but products that round: what they leave of a redundant combination may be a leak.
        """
        if rank >= np.count_nonzero(B.any(axis=1)):
            return False
        if isinstance(self.view, AlgorithmView):
            return _has_faint_shares(self.view.algorithm)
        return not self.view.entries_given or spread([B]) > SPREAD


def _exact(
    view: AlgorithmView, victims: Sequence[int], rank: int, leaks: NDArray[np.bool_], *, at_least: bool
) -> tuple[int, NDArray[np.bool_]]:
    """(rank, leaks) by exact arithmetic: of the floats if float64 agrees, else of the fractions that they stand for.

    Without the latter the rank is -1. All columns are looked at only where random combinations do not confirm it.

    Args: at_least: singular values show that the rank is not below, whatever rounding made of them.
    """
    silent = not leaks.any()
    if silent and confirmed(view, victims, rank, at_least=at_least):
        return rank, leaks
    exact = None if silent or is_silent(view, victims) else exact_range(view, victims)
    if exact is not None and exact[0] == rank and (exact[1] == leaks).all():
        return exact
    stand_for = meant_entries(view)  # are floats what they stand for?
    if stand_for is None:
        return -1, np.zeros_like(leaks) if exact is None else leaks & exact[1]
    if silent and confirmed(view, victims, rank, stand_for):
        return rank, leaks
    meant = exact_range(view, victims, stand_for)
    assert meant is not None
    return meant


def _has_faint_shares(algorithm: LinearAlgorithm) -> bool:
    over_steps = algorithm.released.weights_by_step(algorithm.num_steps)
    weights: list[FloatArray] = [algorithm.model_from_state.data, over_steps[over_steps > 0]]
    enters: list[FloatArray] = []
    for kind in algorithm.kinds:
        inputs = (kind.message_from_gradient, kind.message_from_noise, kind.state_from_gradient, kind.state_from_noise)
        for matrix in kind.maps():
            (enters if any(matrix is m for m in inputs) else weights).append(matrix.data)
    of_noise = math.prod(spread([part]) for part in algorithm.noise.factors())
    return of_noise * spread(enters) * spread(weights) > SPREAD


def _without_residue(B: FloatArray, rounding: FloatArray) -> tuple[FloatArray, bool]:
    """(B, whether some row of it may hold nothing but rounding, entries of B being off by as much as `rounding`).

    Noise that cancels, as Zip-DL's does in the average, leaves a row of rounding. It may be no noise at all, or a faint
    combination that is seen. So the row is taken for noiseless where it shows a gradient, which is a leak, and
    everything else is undecided. Rows are judged by their own products: entries that were given small are what they
    are.
    """
    norms = np.linalg.norm(B, axis=1)
    doubtful = (norms > 0) & (norms <= 2 * np.linalg.norm(rounding, axis=1))
    return np.where(doubtful[:, None], 0.0, B), bool(doubtful.any())


def _first_leak(view: View, noiseless: FloatArray, leaks: NDArray[np.bool_], in_float64: NDArray[np.bool_]) -> str:
    """The leak in words; empty where nothing leaks. Args: in_float64: which leaks rounding does not explain."""
    if not leaks.any():
        return ""
    column = int(np.flatnonzero(leaks)[0])
    step = column % view.axis.num_steps
    if view.entries_given and not (leaks & in_float64).any():
        return f"the gradient of step {step} shows without noise in a combination of what is seen, {AS_THEY_ARE}"
    return leak_in_words(step, noiseless[:, column], view.row_name)


def group_columns(group: Group, nodes: Sequence[int], num_steps: int) -> NDArray[np.intp]:
    """Indices of the columns of a group among those of some nodes, node after node, each in time order."""
    return np.concatenate([nodes.index(u) * num_steps + np.arange(num_steps, dtype=np.intp) for u in group])


class Fractions(GroupForm):
    def __init__(self, view: View) -> None:
        self.view = view

    @classmethod
    def from_view(cls, view: View) -> Self | None:
        rows, columns = view.noise.shape
        few = rows <= MAX_RATIONAL_ROWS and rows * (columns + view.axis.size) <= MAX_RATIONAL_ENTRIES
        return cls(view) if few and view.entries_given else None

    def _group_grams(self, groups: Sequence[Group]) -> list[ViewGram | None]:
        T, victims = self.view.axis.num_steps, list(dict.fromkeys(u for group in groups for u in group))
        A, B = self.view.entries(np.asarray(victims, dtype=np.intp))
        _, leaks = rank_and_outside(B, A)
        rows = independent_rows(B)
        grams: list[ViewGram | None] = []
        for group in groups:
            columns = group_columns(group, victims, T)
            X, shows = rounded(gram_of_rows(A[np.ix_(rows, columns)], B[rows])), leaks[columns]
            step = int(np.argmax(shows)) % T  # exact: flags
            why = f"{leak_in_words(step, np.zeros(len(B)), str)}, {AS_THEY_ARE}" if shows.any() else ""
            grams.append(None if X is None else ViewGram(*X, leaks=shows, why=why, form="rational arithmetic"))
        return grams


def gram_of_rows(signal: NDArray[Any], noise: NDArray[Any]) -> flint.fmpq_mat:
    """signal^T (noise noise^T)^-1 signal, for noise of full row rank."""
    S, N = rational(signal), rational(noise)
    if not len(noise):
        return flint.fmpq_mat(signal.shape[1], signal.shape[1])
    return S.transpose() * (N * N.transpose()).solve(S)


def rounded(X: flint.fmpq_mat) -> tuple[FloatArray, FloatArray] | None:
    """(X as floats, how far each may be off); None where an entry is too large or too small for the products of X."""
    entries = [int(x.p) / int(x.q) if abs(x.p) < x.q * int(SAFE) else np.inf for x in X.entries()]
    values = np.array(entries, dtype=np.float64).reshape(X.nrows(), X.ncols())
    diagonal = np.diagonal(values)
    exactly_zero = np.array([X[i, i] == 0 for i in range(X.nrows())], dtype=bool)
    if not np.isfinite(values).all() or ((diagonal < 1 / SAFE) & ~exactly_zero).any():
        return None
    return values, 2 * UNIT * np.abs(values) + np.where(values == 0, 0.0, 2.0**-1070)


FAR = 400  # in powers of two: beyond it squares could leave float64
NEARBY = "every matrix of rank "
VANISHES = "within rank_tolerance of the rows given, a combination may show a gradient without noise"


class Nearby(GroupForm):
    def __init__(self, view: View) -> None:
        self.view = view

    @classmethod
    def from_view(cls, view: View) -> Self | None:
        return cls(view) if view.rank == "numerical" else None

    def _group_grams(self, groups: Sequence[Group]) -> list[ViewGram | None]:
        return [self._gram(group) for group in groups]

    def _gram(self, group: Group) -> ViewGram:
        A, B, tolerance = self.view.dense_gradients(np.array(group)), self.view.dense_noise(), self.view.rank_tolerance
        (_, of_noise), (_, of_signal) = (np.frexp(np.abs(part).max(initial=0.0) or 1.0) for part in (B, A))
        size = 2.0 ** float(np.clip(of_noise - of_signal, -FAR, FAR))
        rank, P, angle = row_space(np.hstack([size * A, B]), tolerance)
        form = nearby_in_words(rank, tolerance)
        P_A, P_B = P[:, : A.shape[1]], P[:, A.shape[1] :]
        d = math.sqrt(2) * angle + 2 * RANK_SAFETY * max(P.shape) * EPS  # and rounding of P and of what follows
        s = float(np.linalg.svd(P_B, compute_uv=False)[-1]) if 0 < rank <= B.shape[1] else float(rank == 0)
        if not d < s / 2:
            return ViewGram.silent(A.shape[1], VANISHES, form=form, upper=True)
        Y = P_A if not rank else scipy.linalg.solve_triangular(np.linalg.qr(P_B.T)[1], P_A, trans="T")
        b, norms = d / (s - d), np.linalg.norm(Y, axis=0)
        X, more = Y.T @ Y * size**-2.0, (1 + b) ** 3 * (1 + 8 * EPS)
        errors = np.eye(len(X)) * (b + b * b) + 2 * RANK_SAFETY * max(P.shape) * EPS * np.outer(norms, norms)
        return ViewGram(X, errors * size**-2.0, more, form=form)


def may_be_rounded(matrix: NDArray[Any], tolerance: float) -> bool:
    """Whether rows of floats of many bits depend on each other up to a tolerance; others are rarely rounded."""
    if matrix.dtype == object or has_few_bits(matrix) or float(len(matrix)) * matrix.size > MAX_DENSE_WORK:
        return False
    return row_space(matrix, tolerance)[0] < int(np.count_nonzero(matrix.any(axis=1)))


def nearby_in_words(rank: int, tolerance: float) -> str:
    return f"{NEARBY}{rank} with rows within {tolerance:.2g} of those given"


def row_space(matrix: FloatArray, tolerance: float) -> tuple[int, FloatArray, float]:
    """(numerical rank r, orthonormal rows P, sine of their angle to the rows of any matrix of rank r within tolerance).

    Args: tolerance: of each row, relative to its norm.
    """
    rows = matrix[matrix.any(axis=1)]
    rows = rows / np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if not len(rows):
        return 0, np.zeros((0, matrix.shape[1])), 0.0
    _, sigma, V = np.linalg.svd(rows, full_matrices=False)
    off = tolerance * math.sqrt(len(rows)) + RANK_SAFETY * max(rows.shape) * EPS * float(sigma[0])
    rank = max(1, int(np.count_nonzero(sigma > off)))
    return rank, V[:rank], off / float(sigma[rank - 1])

"""View Gram by the modes of what is hidden: one gossip round, one symmetric W and step size, noise alike at all ages.

In the null-space form (`range_and_null_space`) N^T N is block tridiagonal in time. Here its blocks are the same at
every step, B = P^2 + W_h^T P^2 W_h on the diagonal, C = -P^2 W_hh beside it, P = diag(m_v), but for the last one, which
lacks W_h^T P^2 W_h (W_h: rows of nodes whose noise is unknown, columns of hidden ones). B is positive definite, so
where C is symmetric one congruence diagonalises both: V^T B V = I, V^T C V = diag(theta). In the coordinates V the
modes are tridiagonal Toeplitz systems of size T, whose inverses are known in closed form, and the last block is a
correction of rank h. So X_u of v victims takes h^3 + v T h (h + T) multiplications, where the null-space form takes v T
h (2 T h + T^2).

Rounding: with the residuals E = V^T B V - I and F = V^T C V - diag(theta) as they are found, N^T N differs from what is
inverted, K, by at most d = ||E|| + 2 ||F||, so entry (s, t) of X_u by d ||K^-1 n_s|| ||K^-1 n_t|| / (1 - d ||K^-1||)
with n_s the columns of N_u^T; these norms are bounded mode by mode, neighbouring steps together, which nearly cancel.

Released models fix combinations of the hidden messages besides (`ReleasedModes`). An encoder C that is Toeplitz, the
same for all nodes, commutes with the shift in time, so C y are the messages of the same rounds with noise fresh in each
step and gradients C g: with X' their Gram for the models of weights C^-T a, X_u = C^T X'_u C.

Of the hidden messages y, a released combination is F y with F = a^T (x) R: a_t weighs the models after step t, R (e, h)
is K W on the hidden nodes, of full row rank. What is free is the kernel of F, so with M = N^T N and without it X'_u,

    X_u = X'_u + f^T S^-1 f,      f = F M^-1 N_u^T,      S = F M^-1 F^T,

e x e. By modes F M^-1 is a response over time for each, M_k^-1 a, and the correction of the last block.

Rounding: the rows of R, products, are off by some d beside their norms, which is a change of F by F G, ||G|| <= d (d:
over the least singular value of R in the coordinates of the modes). That is N for N (I + G)^-1, so entry (s, t) of X_u
moves by at most 2 ||N|| ||G|| (||w_s|| + ||w_t|| + ||w_s|| ||w_t||) with w_s the free messages nearest to n_s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self

import numpy as np
import scipy.linalg
from numpy.lib.stride_tricks import sliding_window_view

from mfdl_solvers.encoders import defect_inflation, inverse_defect

from ...check import FloatArray
from ...floats import EPS
from ...trust.view import AlgorithmView
from .base import ViewGram
from .partly_seen import PartForm, PartlySeen

MAX_OFF, MAX_ROUNDING = 1e-9, 1e-6  # ||G||, and of X <= I, above which the other forms are asked


class HiddenModes(PartForm):
    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        part = PartlySeen.from_view(view)
        if part is None or not part.constant or not (part.noise.fresh or part.alike is not None):
            return None
        hidden = np.flatnonzero(part.hidden)
        if part.rows_a_step == 0 or hidden.size == 0 or np.ptp(part.scale, axis=0).any():
            return None
        coupling = part.weights[0][hidden][:, hidden] / part.scale[0, hidden, None] ** 2
        asymmetry, size = abs(coupling - coupling.T), abs(coupling)
        return cls(part) if asymmetry.max() <= 4 * EPS * size.max() else None

    def cost(self, victims: Sequence[int]) -> float:
        """Multiplications, weighed by how much slower they are than those of one large product."""
        T, h, v = len(self.part.scale), float(self.part.hidden.sum()), self.part.chosen(list(victims)).size
        e = 0 if self.part.released is None else len(self.part.released)
        over_time = 0 if self.part.noise.fresh else 2 * T**2
        return 2400 * h**3 + 3 * v * T * h * (2.5 * T + h) + v * T * (e * (h + T) + over_time)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        part, nodes = self.part, list(victims)
        modes = HiddenModesForm.from_part(part)
        if modes is None:
            return [None] * len(nodes)
        grams, norms = modes.grams(part.chosen(nodes))
        form, C, N = "modes of what is hidden", part.alike, part.noise.inverse
        if C is None or N is None:
            return part.view_grams(nodes, grams, form=form, norms=norms, absolute=modes.rounding)
        norms = (norms + np.sqrt(modes.rounding + 8 * len(C) * EPS)) @ np.abs(C)  # and of this product, as X' <= I
        inflation = defect_inflation(inverse_defect(C, N))
        return part.view_grams(nodes, C.T @ grams @ C, form=form, norms=norms, inflation=inflation)


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenModesForm:
    """The modes, then X_u of any unknown node.

    Attributes:
        direct, carried: m_u times rows of V and of W_h V, shape (n, h): how a node's injection of step t meets the
            hidden messages of steps t and t - 1.
        signs, decay: of each mode, shape (h,): the inverse at (s, t) is signs^(t-s) exp(-decay (t - s)) times what the
            two ends make of it.
        root: of 1 - 4 theta^2, shape (h,).
        corner: Q, shape (h, h): the correction is minus the Gram of Q^T times the inverse's last columns.
        off: d / (1 - d ||K^-1||), see the module head; rounding: of the sums besides, for X <= I.
    """

    num_steps: int
    direct: FloatArray
    carried: FloatArray
    signs: FloatArray
    decay: FloatArray
    root: FloatArray
    corner: FloatArray
    off: float
    rounding: float
    released: ReleasedModes | None = None

    @classmethod
    def from_part(cls, part: PartlySeen) -> Self | None:
        """None where a mode is too close to singular for float64."""
        T, n = part.scale.shape
        hidden, unknown = np.flatnonzero(part.hidden), np.flatnonzero(part.unknown)
        weights = part.scale[0, hidden[0]] / part.scale[0]  # m_u up to a factor, which cancels
        W = part.weights[0][:, hidden].toarray()
        rows = W[unknown] * weights[unknown, None]
        squares = weights[hidden] ** 2
        B, C = rows.T @ rows, -squares[:, None] * W[hidden]
        B[np.diag_indices_from(B)] += squares
        theta, V = scipy.linalg.eigh((C + C.T) / 2, B)
        least = 1 - 2 * np.abs(theta)
        off = _residual(rows, squares, C, theta, V)
        if not off < least.min():
            return None
        size = np.maximum(np.abs(theta), np.finfo(float).tiny)
        root = np.sqrt(least * (1 + 2 * np.abs(theta)))
        decay = np.log1p((least + root) / (2 * size))
        direct = np.zeros((n, hidden.size))
        direct[hidden] = weights[hidden, None] * V
        carried = weights[:, None] * (W @ V)
        form = cls(T, direct, carried, np.where(theta > 0, -1.0, 1.0), decay, root, np.zeros(0), 0.0, 0.0)
        # the last block lacks F = (W_h V)^T P^2 (W_h V): (K - e e^T F)^-1 = K^-1 + K^-1 e Q Q^T e^T K^-1
        factor = np.asarray(np.linalg.qr(carried[unknown], mode="r")).T
        to_end = form.inverse_rows(0)[:, ::-1]  # the same as of the first step, backwards
        left = np.eye(factor.shape[1]) - (factor.T * to_end[:, -1]) @ factor
        values, vectors = np.linalg.eigh((left + left.T) / 2)
        rounding = 8 * (hidden.size + unknown.size) * EPS
        if not values[0] > rounding:
            return None
        corner = factor @ (vectors / np.sqrt(values))
        inverse = 1 / float(least.min()) + float(np.linalg.norm((corner.T * (to_end**2).sum(axis=1)) @ corner, 2))
        if not off * inverse < 0.5:
            return None
        middle = form.inverse_rows(T // 2)[:, 0]  # the largest entries of the inverses
        meets = np.abs(direct) + np.abs(carried)
        rounding *= float((meets**2 * middle).sum(axis=1).max()) + 1 / float(values[0])
        off /= 1 - off * inverse
        released = None
        if part.released is not None:
            released = ReleasedModes.from_part(part, V, form.solve, corner, meets)
            if released is None:
                return None
            rounding += released.rounding
        return dataclasses.replace(form, corner=corner, off=off, rounding=rounding, released=released)

    @cached_property
    def _factors(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(by lag, by the later step, by the earlier step) of the entries of the inverses, shape (h, T)."""
        lags, decay = np.arange(self.num_steps), self.decay[:, None]
        whole = -np.expm1(-2 * decay * (self.num_steps + 1)) * self.root[:, None]
        powers = np.exp(-decay * lags) * np.where(lags % 2, self.signs[:, None], 1.0)
        return powers, -np.expm1(-2 * decay * (self.num_steps - lags)), -np.expm1(-2 * decay * (lags + 1)) / whole

    def inverse_rows(self, s: int) -> FloatArray:
        """Entries (s, t), t = s .. T - 1, of the inverse of every mode, shape (h, T - s)."""
        powers, after, before = self._factors
        return np.asarray(powers[:, : self.num_steps - s] * after[:, s:] * before[:, s, None])

    def solve(self, right: FloatArray, *, signed: bool = True) -> FloatArray:
        solution = np.zeros((self.decay.size, self.num_steps))
        for s in range(self.num_steps):
            inverse = self.inverse_rows(s) if signed else np.abs(self.inverse_rows(s))
            solution[:, s] += inverse @ right[s:]
            solution[:, s + 1 :] += right[s] * inverse[:, 1:]
        return solution

    def grams(self, nodes: np.ndarray) -> tuple[FloatArray, FloatArray]:
        """(X_u, norms), shapes (v, T, T) and (v, T): |error of X_u[s, t]| <= norms[s] norms[t] + rounding."""
        T, v = self.num_steps, len(nodes)
        direct, carried = self.direct[nodes], self.carried[nodes]
        X, last = self._without_ends(direct, carried), self.inverse_rows(0)[:, ::-1]  # entries (t, T - 1)
        of_row, beside, before = np.zeros((3, *last.shape))  # squares of row s, of its change from s - 1; that row
        for s in range(T):  # entries t >= s
            inverse = self.inverse_rows(s)
            of_row[:, s] += (inverse**2).sum(axis=1)
            of_row[:, s + 1 :] += inverse[:, 1:] ** 2
            beside[:, s] += ((inverse * self.signs[:, None] - before) ** 2).sum(axis=1)
            beside[:, s + 1 :] += (inverse[:, 1:] * self.signs[:, None] - inverse[:, :-1]) ** 2
            before = inverse[:, 1:]
        norms = np.sqrt(2 * (direct - self.signs * carried) ** 2 @ of_row + 2 * carried**2 @ beside)
        to_end = (last**2).sum(axis=1)
        for i in range(v):
            ends = self.corner.T @ _met(direct[i], carried[i], last)
            free = norms[i] + np.sqrt(to_end @ (self.corner @ ends) ** 2)
            X[i] -= ends.T @ ends
            norms[i] = np.sqrt(self.off) * free
            if self.released is not None:
                correction = self.released.correction(_met(direct[i], carried[i], self.released.response), ends)
                X[i] += correction.T @ correction
                free += self.released.free(correction, self.corner, to_end)
                norms[i] = np.sqrt(self.off) * free + np.sqrt(self.released.off) * (1 + free)
        return X, norms

    def _without_ends(self, direct: FloatArray, carried: FloatArray) -> FloatArray:
        """X_u without the correction of the last block, shape (v, T, T).

        With e(x) = (-sign)^x exp(-decay x) / root / (1 - e(2 T + 2)), entry (s, t) of an inverse is

            e(t - s) + e(2 T + 2 - t + s) - e(s + t + 2) - e(2 T - s - t),

        so X_u is a Toeplitz and a Hankel matrix. Slow modes, whose terms cancel, are products of s and of t instead.
        """
        T, lags = self.num_steps, np.arange(2 * self.num_steps + 3)
        slow = self.decay * (T + 1) < 1
        decay, signs = self.decay[~slow, None], self.signs[~slow, None]
        e = np.exp(-decay * lags) * np.where(lags % 2, signs, 1.0)
        e /= -np.expm1(-2 * decay * (T + 1)) * self.root[~slow, None]
        pairs = np.stack([direct**2, direct * carried, carried**2])
        both, mixed, again = pairs[:, :, ~slow] @ (e[:, : T + 1] + e[:, : T + 1 : -1])
        by_lag = mixed[:, 1:] + mixed[:, np.abs(np.arange(T) - 1)] - both[:, :T] - again[:, :T]
        by_lag[:, 0] += 1.0
        both, mixed, again = pairs[:, :, ~slow] @ (e[:, : 2 * T + 1] + e[:, :1:-1])  # of s + t from -2 on
        by_sum = both[:, 2:] - 2 * mixed[:, 1:-1] + again[:, :-2]
        X = sliding_window_view(np.concatenate([by_lag[:, :0:-1], by_lag], axis=1), T, axis=1)[:, ::-1]
        X = X + sliding_window_view(by_sum, T, axis=1)
        if slow.any():
            powers, after, before = (factor[slow] for factor in self._factors)
            earlier, later = before / powers, powers * after
            turned = earlier[:, 1:] * later[:, :-1] - earlier[:, :-1] * later[:, 1:]
            for i in range(len(X)):
                a, b = direct[i, slow], carried[i, slow]
                product = _met(a, b, earlier).T @ _met(a, b, later)
                product[np.arange(1, T), np.arange(1, T)] += (a * b) @ turned
                X[i] -= np.triu(product) + np.triu(product, 1).T
        return np.asarray(X)


def _met(direct: FloatArray, carried: FloatArray, responses: FloatArray) -> FloatArray:
    """A node's injections of every step by responses of the modes over time, shape (h, T)."""
    met = direct[:, None] * responses
    met[:, 1:] -= carried[:, None] * responses[:, :-1]
    return np.asarray(met)


def _residual(rows: FloatArray, diagonal: FloatArray, C: FloatArray, theta: FloatArray, V: FloatArray) -> float:
    """Bound on the norm of what N^T N in the coordinates V differs by from the modes that are inverted.

    In long double, since V is as good as float64 allows; its entries, theta and the inverses round besides.
    """
    exact = np.longdouble
    seen, modes = rows.astype(exact) @ V.astype(exact), V.astype(exact)
    of_B = seen.T @ seen + (modes.T * diagonal.astype(exact)) @ modes - np.eye(theta.size)
    of_C = modes.T @ (C.astype(exact) @ modes) - np.diag(theta)
    size = float(np.linalg.norm(seen) ** 2 + np.linalg.norm(modes) ** 2 * (diagonal.max() + 2 * np.linalg.norm(C, 2)))
    lost = 8.0 * (theta.size + len(rows)) * float(np.finfo(exact).eps) * size
    rounded = 16 * EPS + 2 * EPS * float(np.linalg.norm(seen.astype(float), 2) ** 2)
    return float(np.linalg.norm(of_B.astype(float)) + 2 * np.linalg.norm(of_C.astype(float))) + lost + rounded


@dataclasses.dataclass(frozen=True, eq=False)
class ReleasedModes:
    """The terms added to X'_u, and to the bounds on its rounding, by released models.

    Attributes:
        response: M_k^-1 a of every mode without the correction of the last block, shape (h, T).
        mixing: R^T S^-1/2 in the coordinates of the modes, shape (h, e); at_end: the same by the correction, (q, e).
        off: ||N|| ||G|| times 4; rounding: of the sums besides, for X <= I.
    """

    response: FloatArray
    mixing: FloatArray
    at_end: FloatArray
    off: float
    rounding: float

    @classmethod
    def from_part(
        cls, part: PartlySeen, V: FloatArray, solve: Callable[..., FloatArray], corner: FloatArray, meets: FloatArray
    ) -> Self | None:
        """None where a released combination is too faint for float64.

        Args: meets: how much a node's injection meets each mode, shape (n, h).
        """
        weights, doubt = _weights(part)
        rows, off = part.released_rows()
        modes = rows @ V
        response = solve(weights)
        at_end = corner.T @ (response[:, -1:] * modes.T)
        S = (modes * (response @ weights)) @ modes.T + at_end.T @ at_end
        values, vectors = np.linalg.eigh((S + S.T) / 2)
        singular = scipy.linalg.svdvals(modes)
        off = off * float(np.linalg.norm(V)) / max(float(singular[-1]), np.finfo(float).tiny) + doubt
        unit = 8.0 * (V.shape[0] + part.scale.shape[0]) * EPS
        terms, largest = np.abs(modes), solve(np.abs(weights), signed=False)  # no sum has larger ones
        ends = np.abs(corner).T @ (largest[:, -1:] * terms.T)
        lost = unit * float(np.linalg.norm((terms * (largest @ np.abs(weights))) @ terms.T) + np.linalg.norm(ends) ** 2)
        if not (off < MAX_OFF and 2 * lost < values[0]):
            return None
        to_end = ends.T @ (np.abs(corner).T @ (2 * meets.T))  # no entry of the last column is above 2
        of_node = np.linalg.norm(terms @ (largest.max(axis=1) * meets).T + to_end, axis=0)
        rounding = 2 * lost / values[0] + 2 * unit * float(of_node.max()) / float(np.sqrt(values[0]))
        if not rounding < MAX_ROUNDING:
            return None
        root = vectors / np.sqrt(values)
        return cls(response, modes.T @ root, at_end @ root, 4 * off, rounding)

    def correction(self, met: FloatArray, ends: FloatArray) -> FloatArray:
        """S^-1/2 f, shape (e, T). Args: met: N_u by the responses, (h, T); ends: what the correction shows of u."""
        return np.asarray(self.mixing.T @ met + self.at_end.T @ ends)

    def free(self, correction: FloatArray, corner: FloatArray, to_end: FloatArray) -> FloatArray:
        """Norm of M^-1 F^T S^-1 f, at most, shape (T,). Args: to_end: squares of M_k^-1 e_T, summed, shape (h,)."""
        by_response = (self.response**2).sum(axis=1) @ (self.mixing @ correction) ** 2
        return np.asarray(np.sqrt(by_response) + np.sqrt(to_end @ (corner @ (self.at_end @ correction)) ** 2))


def _weights(part: PartlySeen) -> tuple[FloatArray, float]:
    """(a of the messages with noise fresh in each step, of norm one, and its rounding)."""
    a = part.released_steps
    C, N = part.alike, part.noise.inverse
    if C is None or N is None:
        return a / np.linalg.norm(a), 4 * EPS
    a = scipy.linalg.solve_triangular(C, a, lower=True, trans="T")
    size = float(np.linalg.norm(a))
    with np.errstate(over="ignore", invalid="ignore"):
        off = 4 * len(a) * EPS * float(np.linalg.norm(np.abs(N).T @ (np.abs(C).T @ np.abs(a))))
    return (a / size, off / size) if size > 0 and np.isfinite(off) else (a, np.inf)

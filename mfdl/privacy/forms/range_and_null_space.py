"""View Grams in range form and in null-space form: one gossip round, and a part of the messages seen.

Range form: seen messages of unknown nodes, node-local noise; with an encoder one W for all steps. With P_t the rows of
the messages seen in step t, Q the nodes whose noise is unknown and q[s, v] = eta_s / m_v,

    A block (t, s) = P_t W_t-1 .. W_s diag(q_s),      B = A (C^-1 (x) Q),      X_u = A_u^T (B B^T)^-1 A_u.

Each seen message carries fresh noise of its own sender, so B B^T = L L^T is invertible and well conditioned: no rank
decision is needed. Neither A nor B is ever formed: B B^T is a covariance of messages, a recursion over the steps, and
L^-1 A_u of all u is one recursion backwards. Cost, with r messages seen a step: (T r)^3 for L^-1, T^2 r n^2 for the
recursions and v T^3 r / 3 for v victims; (T r)^2 + T n BLOCK_ROWS memory.

Released models add the rows K sum_{r>=s} a_r W^(r+1-s) diag(q_s), K W^(T-s) diag(q_s) for the final ones. They can
depend on the messages, so what they add is the Schur complement S of their covariance, e x e, where the rank is decided
on the safe side: eigenvalues are lowered by their own error bound, and if one of them then cannot be told from zero the
form gives up (`undecided`).

Null-space form: what the unseen messages hide, for independent noise. The injections are x = D^-1 W_T^-1 y with y all
messages and D = diag(eta_s / m_v). The attacker knows the seen y and its own; the unseen ones, y_h, are free. So of the
whitened injections of the unknown nodes it learns everything but the range of N = [D^-1 W_T^-1] (unknown rows, unseen
columns): X_u = I - N_u (N^T N)^-1 N_u^T.

N^T N is block tridiagonal in time with blocks of the number of unseen nodes h, so its Cholesky factor is block
bidiagonal: T h^3 time, T h^2 memory, whatever is seen; T^2 h^2 / 2 for each victim. W and what is seen may vary in
time. N has full column rank because W_T^-1 is unit lower triangular. Final models fix combinations of the last y_h,
which is then free in their kernel alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import scipy
import scipy.linalg
import scipy.sparse as sp

from ...check import FloatArray
from ...errors import UnsupportedMechanism
from ...floats import EPS
from ...noise import CausalNoise
from ...trust.view import AlgorithmView
from .base import Blocks, Group, ViewGram
from .partly_seen import PartForm, PartlySeen

CHUNK_BYTES = 256 * 2**20
BLOCK_ROWS = 512
SPARSE = 8  # how much slower an entry of a sparse product is than one of a dense one
MAX_RELATIVE_ERROR = 0.1  # above it the dense form is asked, which tells ranks better


class Range(PartForm):
    """Views with one W; or any, with independent noise, where the dense form would answer else."""

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        part = PartlySeen.from_view(view)
        if part is None or (part.dense_otherwise and part.released is not None and not part.all_released):
            return None
        return cls(part) if part.constant or part.dense_otherwise or _shows_nothing(part) else None

    def cost(self, victims: Sequence[int]) -> float:
        part, T = self.part, float(len(self.part.scale))
        r, v, n = part.rows_a_step, part.chosen(list(victims)).size, part.unknown.size
        e = 0 if part.released is None else len(part.released)
        of_noise = 0.0 if part.noise.fresh else n * r * T**2 * (T + n)
        return (T * r) ** 2 * (T * r + T * v) / 3 + of_noise + n * T**2 * (r + 1) * e + v * T**2 * (r + 1) * e

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        part, T, nodes = self.part, len(self.part.scale), list(victims)
        chosen = part.chosen(nodes)
        if _shows_nothing(part):
            zeros = np.zeros((chosen.size, T, T))
            return part.view_grams(nodes, zeros, zeros[:, 0], form="nothing seen")
        form = _factored(part)
        if form is None:
            return [None] * len(nodes)
        relative, grams = form.relative_error(), form.grams(chosen)
        # errors of a positive semidefinite X are bounded by its diagonal
        sizes = np.clip(np.diagonal(grams, axis1=1, axis2=2), 0.0, None)
        return part.view_grams(nodes, grams, np.sqrt(relative / (1 - relative) * sizes), form="range form")

    def joint_grams(self, groups: Sequence[Group]) -> list[ViewGram | Blocks | None]:
        """X_S where no noise of an owner is known."""
        part = self.part
        form = None if _shows_nothing(part) else _factored(part)
        return [
            None if form is None or not part.unknown[list(group)].all() else form.joint_gram(group, part.noise)
            for group in groups
        ]


def _shows_nothing(part: PartlySeen) -> bool:
    return part.rows_a_step == 0 and part.released is None


def _factored(part: PartlySeen) -> RangeForm | None:
    try:
        released = None if part.released is None else (part.released, part.released_steps)
        rows = part.rows
        if part.dense_otherwise and part.all_released:  # and so every message of the last step
            released, rows = None, [*rows[:-1], np.flatnonzero(part.unknown)]
        form = RangeForm(part.weights, rows, part.unknown, part.scale, part.noise.inverse, released)
    except UnsupportedMechanism:
        return None
    return None if form.relative_error() >= MAX_RELATIVE_ERROR or form.undecided else form


class RangeForm:
    """Factor once, then whiten any node's columns.

    Args:
        weights: one W per step, csr (n, n); the same in every step for an encoder.
        rows: of each step the seen senders whose noise is unknown; the same in every step for an encoder.
        unknown: bool (n,), nodes whose noise is unknown; scale: q, shape (T, n).
        inverse: C^-1, shape (T, T), or (n, T, T), or None for independent noise.
        released: (K, a), shapes (e, n) and (T,): K sum_r a_r theta_{r+1} is published; default none.
    """

    def __init__(
        self,
        weights: Sequence[sp.csr_array],
        rows: Sequence[np.ndarray],
        unknown: np.ndarray,
        scale: FloatArray,
        inverse: FloatArray | None,
        released: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        self.num_steps, self.rows, self.scale = len(scale), rows, scale
        self.starts = np.concatenate([[0], np.cumsum([len(of_step) for of_step in rows])])  # of the rows of each step
        products = {id(W): (_operator(W), _operator(sp.csr_array(W.T))) for W in weights}
        self.forward, self.backward = zip(*(products[id(W)] for W in weights), strict=True)
        covariance = self._covariance(weights[0], unknown, inverse)
        self.whitening, self.condition = covariance, 1.0
        if len(covariance):
            norm = float(np.abs(covariance).sum(axis=0).max())
            factor, info = scipy.linalg.lapack.dpotrf(covariance, lower=1, overwrite_a=1)
            if info != 0:
                raise UnsupportedMechanism(
                    "the noise covariance of the seen messages is not positive definite in float64; use the dense form."
                )
            reciprocal, _ = scipy.linalg.lapack.dpocon(factor, norm, uplo="L")
            self.condition = 1.0 / max(float(reciprocal), 1e-300)
            self.whitening, _ = scipy.linalg.lapack.dtrtri(factor, lower=1, overwrite_c=1)
        self.undecided, self.release_error = False, 0.0
        self.released = None if released is None else self._release(*released, unknown, inverse)

    def _release(
        self, released: FloatArray, steps: FloatArray, unknown: np.ndarray, inverse: FloatArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(E, V, S^-1/2): rows K sum_r a_r W^(r+1-s) of what is released, their share in messages."""
        T, n = self.scale.shape
        E = np.empty((T, released.shape[0], n))
        current = np.zeros_like(released.T)
        for s in range(T - 1, -1, -1):
            current = self.backward[s] @ (current + steps[s] * released.T)
            E[s] = current.T
        noise = np.moveaxis(E, 2, 0) * (self.scale * unknown).T[:, :, None]  # (n, T, e)
        injected = noise
        if inverse is not None:
            noise = inverse.swapaxes(-1, -2) @ injected
            injected = inverse @ noise
        covariance = np.tensordot(noise, noise, ((0, 1), (0, 1)))
        cross, current = np.empty((self.starts[-1], len(released))), np.zeros_like(released.T)
        for t in range(T):  # Cov(m_t, released)
            if t:
                current = self.forward[t - 1] @ current
            current = current + self.scale[t, :, None] * injected[:, t]
            cross[self.starts[t] : self.starts[t + 1]] = current[self.rows[t]]
        V = self.whitening @ cross
        values, vectors = np.linalg.eigh(covariance - V.T @ V)
        error = self.relative_error() * float(np.linalg.norm(covariance))
        self.undecided = bool((values <= 4 * error).any())
        # taken off below, and so added to X, and as much again for what rounding took off already
        self.release_error = 2 * error / max(float((values - error).min(initial=math.inf)), error)
        return E, V, vectors / np.sqrt(np.maximum(values - error, error))

    def _covariance(self, weights: sp.csr_array, unknown: np.ndarray, inverse: FloatArray | None) -> FloatArray:
        """B B^T in Fortran order, (rows, rows)."""
        total = np.zeros((self.starts[-1],) * 2, order="F")
        if not len(total):
            return total
        if inverse is not None:
            powers = self._powers()
            if inverse.ndim == 2 and np.ptp(self.scale) == 0 and (weights != weights.T).nnz == 0:
                values, modes = np.linalg.eigh(weights.toarray())
                # powers of the W that its modes make are off by T times what that W is: no more than the factor loses
                off = 2 * self.num_steps * float(np.linalg.norm((modes * values) @ modes.T - weights.toarray(), 2))
                if np.abs(values).max() <= 1 + 1e-12 and off <= self._lost(len(total)):
                    return self._by_modes(powers, values, modes, unknown, inverse)
            self._add_correlated(total, powers, weights, unknown, inverse)
            return total
        variance, carried = np.zeros((unknown.size,) * 2), np.zeros((unknown.size, len(total)))
        for t, rows in enumerate(self.rows):  # Cov(m_t, m_t), and of m_t with the messages seen so far
            past, here = slice(0, self.starts[t]), slice(self.starts[t], self.starts[t + 1])
            if t:
                variance = self.forward[t - 1] @ (self.forward[t - 1] @ variance).T
                carried[:, past] = self.forward[t - 1] @ carried[:, past]
            variance[np.diag_indices_from(variance)] += self.scale[t] ** 2 * unknown
            carried[:, here] = variance[:, rows]
            total[here, : here.stop] = carried[rows, : here.stop]
            total[past, here] = carried[rows, past].T
        return total

    def _powers(self) -> FloatArray:
        """P W^a, shape (T, r, n)."""
        rows, n = self.rows[0], self.scale.shape[1]
        powers, current = np.empty((self.num_steps, len(rows), n)), np.zeros((n, len(rows)))
        current[rows, np.arange(len(rows))] = 1.0
        for power in powers:
            power[:] = current.T
            current = self.backward[0] @ current
        return powers

    def _by_modes(
        self, powers: FloatArray, values: FloatArray, modes: FloatArray, unknown: np.ndarray, inverse: FloatArray
    ) -> FloatArray:
        """B B^T of one symmetric W, scale and encoder: each mode of W is a recursion over time, twice.

        Noise that is known counts first, and is then taken off.
        """
        T, r, n = powers.shape
        colour = self.scale[0, 0] ** 2 * (inverse @ inverse.T)
        pairs = (modes[self.rows[0], None] * modes[self.rows[0]]).reshape(r * r, n)
        total, steps = np.empty((T, r, T, r)), max(1, CHUNK_BYTES // (32 * T * n))
        filters, states = [np.array([1.0, -value]) for value in values], np.zeros((n, 1, T))
        for first in range(0, T, steps):
            over_time = np.empty((n, *colour[first : first + steps].shape))
            for k, (of_mode, state) in enumerate(zip(filters, states, strict=True)):
                accumulated, state[:] = scipy.signal.lfilter(
                    [1.0], of_mode, colour[first : first + steps], axis=0, zi=state
                )
                over_time[k] = scipy.signal.lfilter([1.0], of_mode, accumulated, axis=1)
            block = (pairs @ over_time.reshape(n, -1)).reshape(r, r, -1, T)
            total[first : first + steps] = block.transpose(2, 0, 3, 1)
        covariance = total.reshape(T * r, T * r)
        for node in np.flatnonzero(~unknown):
            A = np.zeros((T, r, T))
            for s in range(T):
                A[s:, :, s] = powers[: T - s, :, node] * self.scale[0, 0]
            B = A.reshape(T * r, T) @ inverse
            covariance -= B @ B.T
        return covariance.T  # symmetric, in Fortran order

    def _add_correlated(
        self, total: FloatArray, powers: FloatArray, weights: sp.csr_array, unknown: np.ndarray, inverse: FloatArray
    ) -> None:
        """B B^T of noise with an encoder: the covariance of all messages with those seen of some steps t', over time.

        Cov(m_t, P m_t') = W Cov(m_t-1, P m_t') + Cov(x_t, P m_t'), and x is correlated with P m_t' by the powers
        alone: n r T^2 (T + n) multiplications, where a product for each node takes n r^2 T^3.
        """
        T, r, n = powers.shape
        scale = self.scale * unknown
        colours = np.broadcast_to(inverse @ inverse.swapaxes(-1, -2), (n if inverse.ndim == 3 else 1, T, T))
        alike = len(colours) == 1 and not np.ptp(scale, axis=0).any()
        if not alike:
            colours = colours * scale.T[:, :, None] * scale.T[:, None, :]
        width = max(1, CHUNK_BYTES // (8 * T * r * n))
        for first in range(0, T, width):
            last = min(first + width, T)
            injected = np.empty((last, last - first, r, n))  # Cov(P m_t', x_t), axes (t, t', seen, node)
            for then in range(first, last):
                past = powers[then::-1]
                if alike:
                    shares = (colours[0, :last, : then + 1] @ past.reshape(then + 1, r * n)).reshape(last, r, n)
                    injected[:, then - first] = shares * scale[0] ** 2
                else:
                    shares = colours[:, :last, : then + 1] @ past.transpose(2, 0, 1)
                    injected[:, then - first] = shares.transpose(1, 2, 0)
            accumulated = np.zeros(((last - first) * r, n))
            for t in range(last):
                accumulated = accumulated @ self.backward[0] + injected[t].reshape(accumulated.shape)
                total[first * r : last * r, t * r : (t + 1) * r] = accumulated[:, self.rows[0]]
                total[t * r : (t + 1) * r, first * r : last * r] = accumulated[:, self.rows[0]].T

    def grams(self, nodes: np.ndarray) -> FloatArray:
        """X_u for the given nodes, shape (len(nodes), T, T)."""
        out = np.zeros((len(nodes), self.num_steps, self.num_steps))
        for Y in self._whitened():
            for X, node in zip(out, nodes, strict=True):
                X[: len(Y), : len(Y)] += Y[:, node] @ Y[:, node].T
        for X, scale in zip(out, self.scale.T[nodes], strict=True):
            X *= np.outer(scale, scale)
        return out

    def joint_gram(self, group: Group, noise: CausalNoise) -> ViewGram:
        """X_S, whose errors its diagonal bounds as that of X_u does."""
        T, k = self.num_steps, len(group)
        X = np.zeros((k, T, k, T))
        for block in self._whitened():
            Y = np.concatenate([block[:, node] for node in group])
            X[:, : len(block), :, : len(block)] += (Y @ Y.T).reshape(k, -1, k, len(block))
        scale = (self.scale[:, list(group)] / noise.node_scales[list(group)]).T.ravel()
        X = X.reshape(k * T, k * T) * np.outer(scale, scale)
        relative = self.relative_error() + 8 * EPS
        sizes = np.sqrt(relative / (1 - relative) * np.clip(np.diagonal(X), 0.0, None))
        return ViewGram((X + X.T) / 2, np.outer(sizes, sizes), form="range form")

    def _whitened(self) -> Iterator[FloatArray]:
        """Arrays (steps, n, rows) whose Grams add up to X_u of gradients over q: of messages, then of released models.

        Rows of L^-1 times A: A is a convolution by powers of W, so one recursion backwards in time gives the columns
        of all nodes. Rows of the messages of a step are zero at later steps, which are left out.
        """
        T, n = self.scale.shape
        E, V, root = self.released or (np.zeros((T, 0, n)), np.zeros((len(self.whitening), 0)), np.zeros((0, 0)))
        left = E.transpose(0, 2, 1).copy()
        most, first = min(BLOCK_ROWS, CHUNK_BYTES // (8 * T * n)), 0
        while first < T:
            last = max(first + 1, int(np.searchsorted(self.starts, self.starts[first] + most, side="right")) - 1)
            here = slice(self.starts[first], self.starts[last])
            Y = np.zeros((last, n, here.stop - here.start))
            for s in range(last - 1, -1, -1):
                if s + 1 < last:
                    Y[s] = self.backward[s] @ Y[s + 1]
                Y[s, self.rows[s]] += self.whitening[here, self.starts[s] : self.starts[s + 1]].T
            left[:last] -= Y @ V[here]
            yield Y
            first = last
        yield left @ root

    def relative_error(self) -> float:
        """First-order bound on the relative rounding error of X: size * eps * condition number, of either part.

        Twice what the factor, its inverse and their products lose, each size * eps / 2 times the condition number.
        """
        return max(2 * self._lost(len(self.whitening)) * self.condition, self.release_error)

    def _lost(self, rows: int) -> float:
        return 4.0 * max(rows, self.num_steps) * EPS


def _operator(W: sp.csr_array) -> sp.csr_array | FloatArray:
    return W if W.nnz * SPARSE < W.shape[0] * W.shape[1] else W.toarray()


class NullSpace(PartForm):
    """Views with any W per step; final models too where W changes."""

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        part = PartlySeen.from_view(view)
        if part is None or not part.noise.fresh or part.rows_a_step == 0:
            return None
        return cls(part) if part.dense_otherwise or part.released is None else None

    def cost(self, victims: Sequence[int]) -> float:
        """Four times its multiplications: its blocks are smaller than those of the range form."""
        T, v = len(self.part.scale), self.part.chosen(list(victims)).size
        h = float(self.part.hidden_at.sum(axis=1).max())
        return 4 * T * h**2 * (h + T * v / 2)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        part, nodes = self.part, list(victims)
        rows, off = part.released_rows()
        form = NullSpaceForm(part.weights, part.hidden_at, part.unknown, part.scale, rows)
        absolute = form.absolute_error(off)
        if not absolute < MAX_RELATIVE_ERROR:
            return [None] * len(nodes)
        grams = form.grams(part.chosen(nodes))
        none = np.zeros(grams.shape[:2])
        return part.view_grams(nodes, grams, none, form="null-space form", absolute=absolute)


class NullSpaceForm:
    """Factor once, then X_u of any unknown nodes.

    Args:
        weights: one W per step, csr (n, n); the averaging after step t uses weights[t].
        unseen: bool (T, n), nodes whose messages are hidden in each step (all of them unknown).
        unknown: bool (n,), nodes whose noise is unknown; scale: q = eta / m, shape (T, n).
        released: combinations of the unseen messages of the last step that are seen besides, rows of full rank and norm
            one, shape (e, unseen); default none.
    """

    def __init__(
        self,
        weights: Sequence[sp.csr_array],
        unseen: np.ndarray,
        unknown: np.ndarray,
        scale: FloatArray,
        released: FloatArray | None = None,
    ) -> None:
        self.scale, self.num_steps = scale, len(scale)
        self.unseen = [np.flatnonzero(hidden) for hidden in unseen]
        known_rows = np.flatnonzero(unknown)
        steps = range(self.num_steps)
        self.after = [weights[t][:, self.unseen[t]].toarray() for t in steps[:-1]]  # (n, h): W_t into step t + 1
        self.least_released = np.inf
        # of each step: L^-1 times the free messages, L the diagonal block of the factor, and what it takes of the last
        self.whitening: list[FloatArray] = []
        self.passing: list[FloatArray] = []
        self.extent: list[FloatArray] = []  # diagonals of L
        for t in steps:
            free, q = np.eye(self.unseen[t].size), scale[t, self.unseen[t], None]
            if released is not None and len(released) and t == steps[-1]:
                _, sigma, vectors = np.linalg.svd(released)
                free = vectors[len(released) :].T
                self.least_released = float(sigma[-1]) if free.size else np.inf
            block = free.T @ (free / q**2)
            if t < steps[-1]:
                weighted = self.after[t][known_rows] / scale[t + 1, known_rows, None]
                block += weighted.T @ weighted
            lower = np.zeros((len(block), 0))
            if t > 0:
                # N^T N between columns t-1 and t meets in the rows of step t
                lower = free.T @ (-self.after[t - 1][self.unseen[t]] / q**2) @ self.whitening[t - 1].T
                block -= lower @ lower.T
            L = np.linalg.cholesky(block).astype(np.float64, copy=False)
            self.extent.append(np.diagonal(L))
            self.whitening.append(_solved(L, free.T))
            self.passing.append(-_solved(L, lower))

    def grams(self, nodes: np.ndarray) -> FloatArray:
        """X_u, shape (len(nodes), T, T).

        Column s of the whitened N_u^T starts in block s - 1, and from block s on it is only passed on, by products that
        no node changes: what they make of two columns is one matrix a step, K_t = I + passing^T K_t+1 passing.
        """
        T, v = self.num_steps, len(nodes)
        later: list[FloatArray] = [np.eye(len(self.whitening[-1]))]
        for t in range(T - 1, 0, -1):
            later.insert(0, np.eye(len(self.whitening[t - 1])) + self.passing[t].T @ later[0] @ self.passing[t])
        X, carried = np.zeros((v, T, T)), np.zeros((1, v, 0))
        for t in range(T):
            columns = min(t + 2, T)
            block = np.zeros((columns, v, len(self.whitening[t])))
            block[: t + 1] = carried @ self.passing[t].T
            place = nodes[:, None] == self.unseen[t]
            block[t] += (place / self.scale[t, nodes, None]) @ self.whitening[t].T
            if t + 1 < T:
                block[t + 1] = -(self.after[t][nodes] / self.scale[t + 1, nodes, None]) @ self.whitening[t].T
                X[:, : t + 2, t + 1] -= np.einsum("suk,uk->us", block, block[t + 1])
            X[:, : t + 1, t] -= np.einsum("suk,uk->us", block[: t + 1], block[t] @ later[t])
            carried = block
        X = np.triu(X) + np.triu(X, 1).transpose(0, 2, 1)
        X[:, np.arange(T), np.arange(T)] += 1.0
        return X

    def absolute_error(self, released_off: float = 0.0) -> float:
        """First-order bound on the absolute rounding error of X (X <= I): size * eps * growth of the factor.

        Args: released_off: norm of what the released rows are off by; the free messages turn by that over their least
            singular value, and the range of N by as much as N is stretched.
        """
        extent = np.concatenate(self.extent)
        growth = float(extent.max() / extent.min()) if extent.size else 1.0
        size = self.num_steps * max(1, *(len(L) for L in self.extent))
        turned = (released_off + size * EPS) / self.least_released
        return 8.0 * size * EPS * growth**2 + 4.0 * turned * growth


def _solved(L: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(scipy.linalg.solve_triangular(L, right, lower=True, check_finite=False)) if right.size else right

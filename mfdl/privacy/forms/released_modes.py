"""Released models in the modes of what is hidden: combinations of the hidden messages that the attacker knows besides.

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
from collections.abc import Callable
from typing import Self

import numpy as np
import scipy.linalg

from ...check import FloatArray
from ...floats import EPS
from .partly_seen import PartlySeen

MAX_OFF, MAX_ROUNDING = 1e-9, 1e-6  # ||G||, and of X <= I, above which the other forms are asked


@dataclasses.dataclass(frozen=True, eq=False)
class ReleasedModes:
    """What is added to X'_u, and to the bounds on its rounding.

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
    def of(
        cls,
        part: PartlySeen,
        V: FloatArray,
        solve: Callable[..., FloatArray],
        corner: FloatArray,
        meets: FloatArray,
    ) -> Self | None:
        """None where a released combination is too faint for float64.

        Args:
            V: the modes, columns; solve, corner: see `HiddenModesForm`.
            meets: how much a node's injection meets each mode, shape (n, h).
        """
        weights, doubt = _weights(part)
        rows, off = _rows(part)
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

    def shown(self, met: FloatArray, ends: FloatArray) -> FloatArray:
        """S^-1/2 f, shape (e, T). Args: met: N_u by the responses, (h, T); ends: what the correction shows of u."""
        return np.asarray(self.mixing.T @ met + self.at_end.T @ ends)

    def free(self, shown: FloatArray, corner: FloatArray, to_end: FloatArray) -> FloatArray:
        """Norm of M^-1 F^T S^-1 f, at most, shape (T,). Args: to_end: squares of M_k^-1 e_T, summed, shape (h,)."""
        by_response = (self.response**2).sum(axis=1) @ (self.mixing @ shown) ** 2
        return np.asarray(np.sqrt(by_response) + np.sqrt(to_end @ (corner @ (self.at_end @ shown)) ** 2))


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


def _rows(part: PartlySeen) -> tuple[FloatArray, float]:
    """(R with rows of norm one, the norm of what they may be off by).

    Where as many combinations as hidden nodes are told apart, each of these is.
    """
    assert part.released is not None
    hidden = np.flatnonzero(part.hidden)
    if len(part.released) == hidden.size:
        return np.eye(hidden.size), 0.0
    W = part.weights[0][:, hidden].toarray()
    rows = part.released @ W
    norms = np.linalg.norm(rows, axis=1)
    sizes = np.linalg.norm(np.abs(part.released) @ np.abs(W), axis=1)
    return rows / norms[:, None], 2 * part.scale.shape[1] * EPS * float(np.linalg.norm(sizes / norms))

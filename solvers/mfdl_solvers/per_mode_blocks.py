"""A problem by modes in one choice of directions F over the nodes, block by block (see `per_mode_encoder`)."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .joint_encoder import ModeProblem
from .kronecker_encoder import KroneckerFactorization
from .problem import Array, eigen_stack


@dataclasses.dataclass(frozen=True, eq=False)
class ModeBlocks:
    """A ModeProblem in the directions F.

    Attributes:
        classes: label per step, shape (T,).
        basis: F; coordinates: (F^-1 u_l)_k at [k, l]; weights: M = F * F; each (n, n).
        values, vectors: eigenvalues (n, T) and eigenvectors (n, T, T) of Hhat_k.
        ridge_share: ||row k of F^-1||^2, shape (n,): Hhat_k of H = I is that times the identity.
    """

    classes: NDArray[np.intp]
    basis: Array
    weights: Array
    values: Array
    vectors: Array
    ridge_share: Array

    @classmethod
    def of(cls, problem: ModeProblem, product: KroneckerFactorization) -> ModeBlocks:
        n, T = problem.num_nodes, problem.num_steps
        F = per_mode_basis(problem, product)
        inverse = np.linalg.inv(F)
        shares = (inverse @ problem.vectors) ** 2
        values, vectors = eigen_stack((shares @ problem.grams.reshape(n, -1)).reshape(n, T, T))
        return cls(problem.classes, F, F**2, np.clip(values, 0.0, None), vectors, (inverse**2).sum(axis=1))

    @cached_property
    def same_class(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Rows, columns and class of the entries within classes, diagonal included, both triangles."""
        rows, columns = np.nonzero(self.classes[:, None] == self.classes[None, :])
        return rows, columns, self.classes[rows]

    def root(self, k: int, rho: float) -> Array:
        """R R^T = Hhat_k + rho ||row k of F^-1||^2 I."""
        return self.vectors[k] * np.sqrt(self.values[k] + rho * self.ridge_share[k])

    def class_sums(self, grams: Array) -> Array:
        """d_uc = sum over s, t of class c of |sum_k M_uk X_k[s, t]|, shape (n, classes).

        Its maximum bounds the squared sensitivity, and is exact where the in-class entries are not negative.
        """
        rows, columns, labels = self.same_class
        absolute = np.abs(self.weights @ grams[:, rows, columns])
        return np.asarray(absolute @ np.eye(int(self.classes.max()) + 1)[labels])

    def block_objectives(self, grams: Array) -> Array:
        """tr(Hhat_k X_k^-1), shape (n,); infinite where X_k is not positive definite."""
        objectives = np.empty(len(grams))
        for k, X in enumerate(grams):
            factor, info = scipy.linalg.lapack.dpotrf(X, lower=1)
            if info != 0:
                return np.full(len(grams), np.inf)
            whitened, _ = scipy.linalg.lapack.dtrtrs(factor, self.root(k, 0.0), lower=1)
            objectives[k] = (whitened**2).sum()
        return objectives

    def dual_time_gram(self, grams: Array, rho: float) -> Array:
        """V = X^-1 H X^-1, averaged over the nodes and without what couples two directions: a V_t for the joint bound.

        Node u sees (F^-T)_uk (F^-T)_ul X_k^-1 Hhat_kl X_l^-1; the sum over u of the terms k = l remains. Zero, which
        proves nothing, where rounding made a block indefinite.
        """
        dual = np.zeros(grams.shape[1:])
        for k, X in enumerate(grams):
            factor, info = scipy.linalg.lapack.dpotrf(X, lower=1)
            if info != 0:
                return np.zeros_like(dual)
            half, _ = scipy.linalg.lapack.dpotrs(factor, self.root(k, rho), lower=1)
            dual += self.ridge_share[k] * (half @ half.T)
        return dual


def per_mode_basis(problem: ModeProblem, product: KroneckerFactorization) -> Array:
    """F = X_s^1/2 E, F F^T = X_s; where the modes are such eigenvectors E = U, whatever eigenvalues coincide."""
    values, Q = np.linalg.eigh(product.space.gram)
    root, inverse_root = (Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T
    in_modes = problem.vectors.T @ inverse_root @ problem.vectors
    d = problem.time_costs(product.time.gram)
    K = (in_modes * d) @ in_modes
    off = np.abs(in_modes - np.diag(np.diagonal(in_modes))).max()
    rotation = np.eye(len(K)) if off <= 1e-10 * np.abs(in_modes).max() else np.linalg.eigh((K + K.T) / 2)[1]
    return np.asarray(root @ problem.vectors @ rotation)


def best_scales(costs: Array, weights: Array, *, tolerance: float = 1e-8) -> tuple[Array, Array]:
    """Minimises sum_k costs_k / s_k subject to weights s <= 1, by a barrier and Newton's method in log s.

    >>> s, multipliers = best_scales(np.array([1.0, 4.0]), np.array([[1.0, 1.0]]))
    >>> np.round(s, 4)
    array([0.3333, 0.6667])

    Args:
        costs: >= 0, not all zero, shape (n,); a zero counts as a tiny one, for the infimum is not attained.
        weights: >= 0, no zero column, shape (m, n).

    Returns: s, and a multiplier > 0 per constraint; their gap, m times the barrier's weight, is about the tolerance.
    """
    phi = np.maximum(costs, 1e-14 * costs.sum())
    y = np.full(phi.size, -np.log(2 * weights.sum(axis=1).max()))
    mu = float((phi * np.exp(-y)).sum()) / len(weights)

    def value(at: Array) -> float:
        slack = 1 - weights @ np.exp(at)
        return float((phi * np.exp(-at)).sum() - mu * np.log(slack).sum()) if slack.min() > 0 else np.inf

    while True:
        for _ in range(50):
            s = np.exp(y)
            q = 1 / (1 - weights @ s)
            pull = mu * s * (weights.T @ q)
            gradient = pull - phi / s
            scaled = weights * s * q[:, None]
            hessian = mu * scaled.T @ scaled
            hessian[np.diag_indices(phi.size)] += pull + phi / s
            direction = -np.linalg.solve(hessian, gradient)
            decrement = float(-gradient @ direction)
            step, now = 1 / max(1.0, 0.5 * float(np.abs(direction).max())), value(y)
            # near the centre full steps converge, and rounding hides what they gain: only the domain is checked
            most = np.finfo(np.float64).max if decrement <= 1e-2 * mu else now
            while step > 1e-10 and not value(y + step * direction) <= most - 0.1 * step * decrement:
                step /= 2
            if step <= 1e-10:
                break
            y = y + step * direction
            if decrement <= 1e-10 * mu:
                break
        if mu * len(weights) <= tolerance * float((phi * np.exp(-y)).sum()):
            s = np.exp(y)
            return s, mu / (1 - weights @ s)
        mu /= 5

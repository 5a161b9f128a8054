"""Noise correlated over steps and nodes at once.

`SpaceTimeNoise` draws its base noise in columns, correlates each over time, and mixes them over nodes:

    N[(t, i), (s, k)] = F[i, k] E_k[t, s],    E_k = C_k^-1.

With one C for all columns its covariance is (C^T C)^-1 (x) F F^T, time (x) space, whoever holds the columns: nodes
alone, groups, or everybody. With one C per column and a square invertible F it is the inverse of
sum_k C_k^T C_k (x) g_k g_k^T, g_k the rows of F^-1: a time correlation of its own for each mode of the nodes.
`JointNoise` has any covariance over time x nodes, N = C^-1 with C of size T n, and is for small problems.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .. import check, matrices
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from .noise import LocalNoise, NoiseOperator, StepNoise, require_scale

MAX_JOINT_SIZE = 4096
"""T n up to which arrays of (T n)^2 are formed: 128 MiB each, and minutes of factorization."""


def require_joint_size(num_steps: int, num_nodes: int, instead: str) -> None:
    """Raises UnsupportedMechanism where T n is above MAX_JOINT_SIZE; `instead` says what to use then."""
    if (size := num_steps * num_nodes) > MAX_JOINT_SIZE:
        raise UnsupportedMechanism(
            f"noise of any correlation over time and nodes takes an array of (T n)^2 and is limited to T n = "
            f"{MAX_JOINT_SIZE}, got {num_steps} * {num_nodes} = {size}; {instead}."
        )


class SpaceTimeNoise(NoiseOperator):
    """Columns of base noise, each correlated over time by its encoder and spread over nodes by the factor.

    Args:
        encoder: C, shape (T, T) shared by all columns, or (columns, T, T), one per column; lower triangular with a
            positive diagonal, so that the noise of step t needs base noise of steps <= t only.
        factor: F, shape (n, columns), dense or sparse: node i injects sum_k F[i, k] times column k.
        holders: bool (columns, n), dense or sparse: the nodes that hold each column. A node adds what it holds and
            nothing else, so F[i, k] = 0 unless i holds k.
        num_nodes: n.

    Raises: InvalidInput: an encoder that is not causal or has a diagonal entry <= 0, shapes that do not fit, entries
        that are not finite, no column at all, or a node that adds a column it does not hold.
    Cost: a product with one vector takes O(columns T^2 + nnz(F) T); nothing of size (T n)^2 is formed.
    """

    def __init__(
        self, encoder: FloatArray, factor: ArrayLike | sp.sparray, holders: ArrayLike | sp.sparray, num_nodes: int
    ) -> None:
        F = matrices.sparse_matrix(factor=factor)
        if F.shape[0] != num_nodes or F.shape[1] == 0:
            raise InvalidInput(
                f"factor must have shape ({num_nodes}, columns) with at least one column, got {F.shape}; noise "
                "without columns is ZeroNoise."
            )
        try:
            self._over_time = LocalNoise(encoder, F.shape[1])
        except InvalidInput as error:  # its blocks are columns here, not nodes
            raise InvalidInput(str(error).replace(" of node ", " of column ")) from None
        self._over_nodes = StepNoise(F, holders, self._over_time.num_steps, num_nodes)
        self.num_steps, self.num_nodes = self._over_time.num_steps, num_nodes
        super().__init__((self.num_steps * num_nodes, self.num_steps * F.shape[1]))

    @property
    def encoder(self) -> FloatArray:
        """C, shape (T, T), or (columns, T, T)."""
        return self._over_time.encoder

    @property
    def factor(self) -> sp.csr_array:
        """F, csr (n, columns)."""
        return self._over_nodes.factor

    @property
    def shared(self) -> bool:
        """One encoder for all columns."""
        return self._over_time.shared

    @property
    def inverse(self) -> FloatArray:
        """C^-1 as the executor uses it, the shape of `encoder`; lower triangular."""
        return self._over_time.inverse

    def encoder_of(self, column: int) -> FloatArray:
        """C_k, shape (T, T)."""
        return self._over_time.encoder_of(column)

    def inverse_of(self, column: int) -> FloatArray:
        """E_k = C_k^-1, shape (T, T)."""
        return self._over_time.inverse_of(column)

    def holders(self) -> sp.csr_array:
        return self._over_nodes.holders()

    def pattern(self) -> sp.csr_array:
        return self._over_nodes.pattern()

    def content(self) -> bytes:
        return repr(self.encoder.shape).encode() + self._over_time.content() + self._over_nodes.content()

    def factors(self) -> tuple[FloatArray, ...]:
        return (*self._over_time.factors(), *self._over_nodes.factors())

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self._over_nodes._matmat(self._over_time._matmat(X))

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self._over_time._rmatmat(self._over_nodes._rmatmat(X))

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return self._over_time.absolute_rmatmat(self._over_nodes.absolute_rmatmat(X))

    def variances(self) -> FloatArray:
        return np.asarray(self._over_time.variances() @ self.factor.power(2).T)


class JointNoise(NoiseOperator):
    """N = C^-1 over all of time x nodes: n columns per step, each held by all nodes.

    Args:
        encoder: C, shape (T n, T n), time-major, lower triangular with a positive diagonal.
        num_steps: T; num_nodes: n.
    Raises: InvalidInput: another shape, an entry above the diagonal, a diagonal entry <= 0, entries beyond LARGEST.
        UnsupportedMechanism: T n above MAX_JOINT_SIZE.
    """

    def __init__(self, encoder: ArrayLike, num_steps: int, num_nodes: int) -> None:
        T, n = check.integer_at_least(1, num_steps=num_steps), check.integer_at_least(1, num_nodes=num_nodes)
        require_joint_size(T, n, "use SpaceTimeNoise, which scales")
        C = check.finite_array(2, encoder=encoder)
        if C.shape != (T * n, T * n):
            raise InvalidInput(f"encoder must have shape {(T * n, T * n)} for {T} steps x {n} nodes, got {C.shape}.")
        if np.triu(C, 1).any():
            raise InvalidInput(
                "encoder must be causal (lower triangular): an entry above the diagonal would need noise of a later "
                "step; use mfdl.factorization.causal_encoder on its Gram matrix."
            )
        diagonal = np.diagonal(C)
        if not (diagonal > 0).all():
            at = int(np.argmin(diagonal > 0))
            raise InvalidInput(
                f"encoder must have a positive diagonal, got {diagonal[at]:g} at step {at // n} of node {at % n}."
            )
        require_scale(C, diagonal)
        C.setflags(write=False)
        self.encoder = C
        self.num_steps, self.num_nodes = T, n
        super().__init__((T * n, T * n))

    @cached_property
    def inverse(self) -> FloatArray:
        """C^-1 as the executor uses it, shape (T n, T n); lower triangular."""
        inverse = np.tril(scipy.linalg.solve_triangular(self.encoder, np.eye(self.shape[0]), lower=True))
        return np.asarray(matrices.read_only(inverse))

    def holders(self) -> sp.csr_array:
        return sp.csr_array(np.ones((self.num_nodes, self.num_nodes), dtype=bool))

    def content(self) -> bytes:
        return self.encoder.tobytes()

    def factors(self) -> tuple[FloatArray, ...]:
        return (self.inverse,)

    def _matmat(self, X: FloatArray) -> FloatArray:
        return self.inverse @ X

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return self.inverse.T @ X

    def absolute_rmatmat(self, X: FloatArray) -> FloatArray:
        return np.abs(self.inverse).T @ X

    def variances(self) -> FloatArray:
        return np.asarray((self.inverse**2).sum(axis=1)).reshape(self.num_steps, self.num_nodes)

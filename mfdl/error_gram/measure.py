"""The spectral measure of gossip: all that the error Gram over steps knows of constant symmetric W.

H = sum_i weights_i h(eigenvalues_i), h(lam) the error Gram of the scalar recursion with lam in the place of W. So H
takes no more than the measure, and a measure with few nodes and the same moments gives the same H.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ._lanczos import nodes_needed, quadrature

ROUNDING = 1e-16  # accuracy of moments at which a measure is made smaller, relative to its mass
GRID = 13  # decimals by which equal eigenvalues are told from others


@dataclasses.dataclass(frozen=True, eq=False)
class SpectralMeasure:
    """sum_i weights_i delta(eigenvalues_i), with tr(Q p(W)) = sum_i weights_i p(eigenvalues_i) for every polynomial p.

    W is the averaging of one step, symmetric, Q the form that counts models (the identity for all nodes alike).

    Attributes:
        eigenvalues: in [-1, 1], shape (m,); weights: >= 0, shape (m,), their sum tr(Q). Own read-only arrays.

    Raises: InvalidInput: other shapes, eigenvalues outside [-1, 1], negative weights.

    >>> two = SpectralMeasure([1.0, 0.5], [1.0, 3.0])
    >>> two.moment(2)
    1.75
    """

    eigenvalues: FloatArray
    weights: FloatArray

    def __post_init__(self) -> None:
        lam, weights = (check.finite_array(1, **{name: value}) for name, value in vars(self).items())
        if lam.shape != weights.shape or lam.size == 0:
            raise InvalidInput(
                f"weights must be one for each of {lam.size} eigenvalues, got {weights.size}; give both."
            )
        if np.abs(lam).max() > 1 + 1e-9 or weights.min() < 0:
            raise InvalidInput(
                f"eigenvalues must lie in [-1, 1] and weights be >= 0, got {lam[np.abs(lam).argmax()]:g} and "
                f"{weights.min():g}; a gossip matrix has no others."
            )
        for name, array in (("eigenvalues", np.clip(lam, -1.0, 1.0)), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def of_spectrum(cls, eigenvalues: FloatArray, weight: float = 1.0) -> SpectralMeasure:
        """The same weight on each of some eigenvalues, equal ones (to 13 decimals) put together."""
        values, counts = np.unique(np.clip(eigenvalues, -1.0, 1.0).round(GRID), return_counts=True)
        return cls(values, np.asarray(weight * counts, dtype=np.float64))

    @property
    def mass(self) -> float:
        """Sum of the weights, tr(Q)."""
        return float(self.weights.sum())

    def moment(self, power: int) -> float:
        """tr(Q W^power)."""
        return float(self.weights @ self.eigenvalues**power)

    def weighted(self, factors: FloatArray) -> SpectralMeasure:
        """The same eigenvalues, each weight times its factor >= 0."""
        return SpectralMeasure(self.eigenvalues, self.weights * factors)

    def after_rounds(self, rounds: int) -> SpectralMeasure:
        """That of W^rounds."""
        return self if rounds == 1 else SpectralMeasure(self.eigenvalues**rounds, self.weights)

    def reduced(self, degree: int, accuracy: float = ROUNDING) -> SpectralMeasure:
        """Fewer nodes, the same moments up to `degree` within `accuracy` times the mass; itself if it has few.

        The error Gram of T steps is made of moments up to degree 2 T, so that about sqrt(T ln(4 / accuracy)) nodes
        stand for any number. Cost: nodes times those left.
        """
        size = nodes_needed(degree, accuracy)
        if self.eigenvalues.size <= 2 * size:
            return self
        lam = self.eigenvalues[:, None]
        ((nodes, weights),) = quadrature(lambda x: lam * x, np.sqrt(self.weights)[:, None], size)
        return SpectralMeasure(nodes, weights)

    def plus(self, other: SpectralMeasure) -> SpectralMeasure:
        """The sum of two measures."""
        return SpectralMeasure(
            np.concatenate([self.eigenvalues, other.eigenvalues]), np.concatenate([self.weights, other.weights])
        )

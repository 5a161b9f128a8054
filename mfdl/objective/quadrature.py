"""Gauss quadrature by Lanczos: few nodes that stand for a spectrum in every polynomial of a degree."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg

from ..check import FloatArray

ROUNDING = 1e-16  # accuracy of moments at which a measure is made smaller, relative to its mass
SMALLEST = 1e-13  # of a direction that is new, relative; below it is rounding


def nodes_needed(degree: int, accuracy: float) -> int:
    """K such that K nodes integrate every x^j, j <= degree, on [-1, 1] within `accuracy` of the mass.

    K nodes are exact up to degree k = 2 K - 1, and x^degree is within 2 exp(-k^2 / (2 degree)) of a polynomial of
    degree k (the tail of a sum of `degree` signs, its Chebyshev coefficients); the nodes err by twice that.
    """
    reached = math.sqrt(2 * max(degree, 1) * math.log(4 / accuracy))
    return min(math.ceil((reached + 1) / 2), degree // 2 + 1)


def quadrature(
    times: Callable[[FloatArray], FloatArray], starts: FloatArray, num_nodes: int
) -> list[tuple[FloatArray, FloatArray]]:
    """(nodes, weights) of each start z: sum_i weights_i p(nodes_i) = z^T p(A) z up to degree 2 num_nodes - 1.

    Args: times: A X; starts: shape (n, starts), overwritten.
    Cost: num_nodes products with (n, starts), and a few arrays of that shape. No vector is kept: rounding makes copies
        of nodes, which share the weight.
    """
    masses = np.einsum("ij,ij->j", starts, starts)
    safe = np.where(masses > 0, masses, 1.0)
    current, previous = starts, np.zeros_like(starts)
    current /= np.sqrt(safe)
    diagonal, beside = np.zeros((num_nodes, masses.size)), np.zeros((num_nodes, masses.size))
    for k in range(num_nodes):
        following = times(current)
        diagonal[k] = np.einsum("ij,ij->j", current, following)
        following -= current * diagonal[k]
        previous *= beside[k - 1]
        following -= previous
        size = np.sqrt(np.einsum("ij,ij->j", following, following))
        beside[k] = np.where(size > SMALLEST, size, 0.0)
        following *= np.where(size > SMALLEST, 1 / np.maximum(size, SMALLEST), 0.0)
        previous, current = current, following
    return [_gauss(diagonal[:, j], beside[:-1, j], masses[j]) for j in range(masses.size)]


def _gauss(diagonal: FloatArray, beside: FloatArray, mass: float) -> tuple[FloatArray, FloatArray]:
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside)
    return np.clip(nodes, -1.0, 1.0), mass * vectors[0] ** 2

"""What secret bins lose, by integration over the plane of their means and by attackers that choose gradients.

In: M of two bins, means in the plane, or an encoder with its bins. Out: hockey sticks: "kept" (with the record against
without), "lost" (the other way) or "replaced". Integrals are exact up to their grid, attacks never
above the supremum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from ...check import FloatArray


def of_two_bins(M: FloatArray, epsilon: float, way: str, points: int = 401) -> float:
    """The hockey stick of the pair of M, shape (2, 2), noise of std 1."""
    root: FloatArray = np.asarray(np.linalg.cholesky(np.asarray(M) + 1e-13 * np.eye(2)), dtype=np.float64)
    return of_means(root, epsilon, way, points)


def of_means(means: FloatArray, epsilon: float, way: str, points: int = 401) -> float:
    """The hockey stick of the pair of means m_r, shape (bins, 2), noise of std 1, on a grid of the plane."""
    grid = np.linspace(-9, 9, points)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    normal = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    shifts, half = [row[0] * x + row[1] * y for row in means], np.square(means).sum(axis=1) / 2
    S = sum(np.exp(s - h) for s, h in zip(shifts, half, strict=True)) / len(means)
    other = sum(np.exp(-s - h) for s, h in zip(shifts, half, strict=True)) / len(means)
    a, b = {"kept": (S, 1.0), "lost": (1.0, S), "replaced": (S, other)}[way]
    return float(normal @ np.clip(a - math.exp(epsilon) * b, 0, None) @ normal)


def attacked(C: FloatArray, bins: int, sigma: float, epsilons: Sequence[float], way: str, cells: int) -> FloatArray:
    """Hockey sticks of the best policies that choose gradients in {-1, 0, 1} from what was seen: never above the sup.

    The attacker sees of each step in which of some cells its noise lies, and then the likelihood ratio of cells: no
    more than the transcript shows. By dynamic programming over all gradients and all cells: a step averages over its
    cells, then takes the best gradient. With a record replaced, gradients of both worlds are chosen.

    Cost: (3 cells)^T numbers, of a replaced record (9 cells)^T.
    """
    T, twice = len(C), way == "replaced"
    edges = np.concatenate([[-np.inf], np.linspace(-2.5, 2.5, cells - 1), [np.inf]])
    weights = np.diff(ndtr(edges))
    choices = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=1 + twice)))
    number = len(choices)

    def axes(array: FloatArray, step: int, of_noise: int) -> FloatArray:  # axes are g_1, cell_1, g_2, cell_2, ...
        shape = [1] * (2 * T)
        shape[2 * step + of_noise] = len(array)
        return array.reshape(shape)

    def ratio(world: int) -> FloatArray:
        total = np.zeros((1,) * (2 * T))
        for r in range(bins):
            product = np.ones((1,) * (2 * T))
            for t in range(T):
                gradients = (C[t, s] * axes(choices[:, world], s, 0) for s in range(r, t + 1, bins))
                shift = sum(gradients, start=np.zeros((1,) * (2 * T))) / sigma
                inside = ndtr(axes(edges[1:], t, 1) - shift) - ndtr(axes(edges[:-1], t, 1) - shift)
                product = product * inside / axes(weights, t, 1)
            total = total + product
        return np.broadcast_to(total / bins, (number, cells) * T)

    S = ratio(0)
    other = ratio(1) if twice else np.ones(1)
    found = []
    for epsilon in epsilons:
        a, b = (np.ones(1), S) if way == "lost" else (S, other)
        value = np.clip(a - math.exp(epsilon) * b, 0.0, None)
        for _ in range(T):
            value = (value @ weights).max(axis=-1)
        found.append(float(value))
    return np.array(found)

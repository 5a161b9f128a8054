"""Permutations of the nodes that keep gossip weights as they are, one for each place to which node 0 can move."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..check import FloatArray

EQUAL, MAX_BASE = 1e-12, 6  # difference of weights that count as equal, and nodes whose images decide a permutation
IntArray = NDArray[np.intp]


def vertex_symmetries(weights: FloatArray) -> IntArray | None:
    """Permutations s_u with s_u[0] = u and W[s_u][:, s_u] = W, as rows, shape (n, n); None if none is found for some u.

    Pairs are told apart by their entries in a random polynomial of W. A few nodes tell all others apart by that; their
    images, tried in turn, decide the permutation, which is then checked.
    """
    polynomial = power = np.eye(len(weights))
    for coefficient in np.random.default_rng(0).normal(size=len(weights)):
        power = power @ weights
        polynomial = polynomial + coefficient * power
        if (power > 0).all():
            break
    labels = np.unique(np.round(polynomial, 9), return_inverse=True)[1].reshape(weights.shape)
    base = [0]
    while (cells := np.unique(labels[base], axis=1, return_inverse=True, return_counts=True))[0].shape[1] < len(labels):
        base.append(int(np.flatnonzero(cells[2][cells[1].ravel()] > 1)[0]))
        if len(base) > MAX_BASE:
            return None
    symmetries = []
    for u in range(len(labels)):
        moves = (s for s in _moving(labels, base, [u]) if np.abs(weights[np.ix_(s, s)] - weights).max() <= EQUAL)
        if (symmetry := next(moves, None)) is None:
            return None
        symmetries.append(symmetry)
    return np.array(symmetries)


def _moving(labels: IntArray, base: list[int], images: list[int]) -> Iterator[IntArray]:
    """Permutations that move the base to nodes that start with `images`, by the labels between base and others."""
    if len(images) == len(base):
        by_labels = {tuple(column): v for v, column in enumerate(labels[images].T.tolist())}
        moved = [by_labels.get(tuple(column), -1) for column in labels[base].T.tolist()]
        if sorted(moved) == list(range(len(labels))):
            yield np.array(moved)
        return
    wanted = labels[base[: len(images)], base[len(images)]]
    for image in np.flatnonzero((labels[images] == wanted[:, None]).all(axis=0)).tolist():
        yield from _moving(labels, base, [*images, image])

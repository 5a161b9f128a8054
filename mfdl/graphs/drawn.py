"""Random graphs of many edges, drawn as arrays: networkx takes minutes and ten gigabytes there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Edges = NDArray[np.int64]  # (m, 2)


def regular(n: int, degree: int, seed: int) -> Edges:
    """Edges of a random simple graph of one degree: stubs paired at random, and what is no edge paired anew.

    Loops and repeats, about degree^2 / 4 of them, are mixed with as many other edges until none is left, which keeps
    the draw uniform up to O(1 / n) (the pairing model); degree far below sqrt(n).
    """
    rng = np.random.default_rng(seed)
    edges = rng.permutation(np.repeat(np.arange(n), degree)).reshape(-1, 2)
    while (wrong := _no_edges(edges, n)).size:
        mixed = np.union1d(wrong, rng.integers(len(edges), size=wrong.size))
        edges[mixed] = rng.permutation(edges[mixed].ravel()).reshape(-1, 2)
    return edges


def _no_edges(edges: Edges, n: int) -> NDArray[np.intp]:
    """Loops, and all but the first of those that are equal."""
    key = edges.min(axis=1) * n + edges.max(axis=1)
    order = np.argsort(key, kind="stable")
    repeats = order[1:][np.diff(key[order]) == 0]
    return np.union1d(repeats, np.flatnonzero(edges[:, 0] == edges[:, 1]))


def erdos_renyi(n: int, p: float, seed: int) -> Edges:
    """Each pair with probability p > 0: gaps between those that are drawn are geometric."""
    rng, pairs = np.random.default_rng(seed), n * (n - 1) // 2
    drawn, last = [], -1
    while last < pairs:
        gaps = rng.geometric(p, size=int(p * (pairs - last) + 4 * (p * pairs) ** 0.5) + 16)
        drawn.append(last + np.cumsum(gaps))
        last = int(drawn[-1][-1])
    k = np.concatenate(drawn)
    k = k[k < pairs]
    row = ((1 + np.sqrt(1 + 8 * k.astype(np.float64))) / 2).astype(np.int64)  # pair k is row (row - 1) / 2 + column
    row -= row * (row - 1) // 2 > k
    row += row * (row + 1) // 2 <= k
    return np.stack([row, k - row * (row - 1) // 2], axis=1)


def is_connected(n: int, edges: Edges) -> bool:
    """Whether the edges join all n nodes."""
    pairs = coo_array((np.ones(len(edges), dtype=np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    number: int = connected_components(pairs, directed=False, return_labels=False)
    return number == 1

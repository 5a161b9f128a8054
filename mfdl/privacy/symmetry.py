"""Attackers that learn the same of victims that correspond: symmetries of an algorithm.

A permutation of the nodes that changes no map, no noise and no participation of an algorithm makes one view of another:
what a learns of u, its image learns of the image of u. On a torus or a ring one attacker so stands for all.

Candidates come from colours: one node is told apart, then nodes by the weights of those told apart, until each has a
colour of its own. Colours come from rounded sums and prove nothing; a candidate counts where every map, entry by entry,
the noise and the masks are the same after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..algorithms import LinearAlgorithm
from ..algorithms.round import SHAPES
from ..participation import Participation
from ..trust.knowledge import Knowledge

Nodes = NDArray[np.intp]
MAX_NODES = 400
MAX_CHOICES = 6
"""Nodes that are told apart by hand before a graph counts as one without symmetries that are worth it."""
MAX_WRONG = 4
"""Candidates that change something before no more are looked at."""
DIGITS = 9
MAX_NOISE = 2**20
"""Entries of N that are compared."""


class Symmetries:
    """Those of one algorithm and participation: permutations that take one node to another."""

    def __init__(self, algorithm: LinearAlgorithm, scheme: Participation) -> None:
        self._algorithm, n = algorithm, algorithm.num_nodes
        self._orders: dict[int, Nodes | None] = {}
        self._wrong = 0
        sizes = algorithm.sizes
        blocks = all(size % n == 0 for size in sizes.values()) and algorithm.noise.columns_per_step % n == 0
        self.possible = 2 < n <= MAX_NODES and blocks and len(scheme.shared_by(range(n))) == 1
        if self.possible:
            self._weights = np.zeros((n, n))  # of at most MAX_NODES nodes
            for i, (matrix, rows, columns) in enumerate(_maps(algorithm)):
                dense = matrix.toarray().astype(np.float64).reshape(sizes[rows] // n, n, sizes[columns] // n, n)
                mixing = np.sqrt(2.0 + i + np.arange(dense.shape[0] * dense.shape[2])).reshape(dense.shape[::2])
                self._weights += np.einsum("iujv,ij->uv", dense, mixing)
            self._colours = self._refined(np.zeros(n, dtype=np.intp))

    def taking(self, first: int, second: int) -> Nodes | None:
        """pi with pi[first] = second, or None where none is found."""
        if not self.possible or self._colours[first] != self._colours[second]:
            return None
        before, after = self._order(first), self._order(second)
        if before is None or after is None:
            return None
        permutation = np.empty_like(before)
        permutation[before] = after
        if self._holds(permutation):
            return permutation
        self._wrong += 1
        self.possible = self._wrong < MAX_WRONG
        return None

    def _order(self, node: int) -> Nodes | None:
        """The nodes by their colours, seen from one of them."""
        if node not in self._orders:
            colour = np.zeros(len(self._weights), dtype=np.intp)
            chosen: int | None = node
            for _ in range(MAX_CHOICES):
                colour = self._refined(np.where(np.arange(len(colour)) == chosen, -1, colour))
                numbers, counts = np.unique(colour, return_counts=True)
                chosen = None if counts.max() == 1 else int(np.argmax(colour == numbers[counts > 1][0]))  # exact: flags
                if chosen is None:
                    break
            self._orders[node] = np.argsort(colour) if chosen is None else None  # exact: integers
        return self._orders[node]

    def _refined(self, colour: Nodes) -> Nodes:
        """Colours split by the weights of nodes of each colour, until nothing splits; numbered by what they are."""
        spread = np.cos(1.0 + np.arange(len(colour)))
        while True:
            _, colour = np.unique(colour, return_inverse=True)
            sums = np.round([self._weights @ spread[colour], self._weights.T @ spread[colour]], DIGITS)
            _, finer = np.unique(np.vstack([colour, sums]).T, axis=0, return_inverse=True)
            if finer.max() == colour.max():
                return np.asarray(colour, dtype=np.intp)
            colour = finer

    def _holds(self, permutation: Nodes) -> bool:
        """Whether every map, the noise and what is sent are the same after it."""
        algorithm, n = self._algorithm, self._algorithm.num_nodes
        sizes = {name: _lifted(permutation, size) for name, size in algorithm.sizes.items()}
        if any((matrix[sizes[rows]][:, sizes[columns]] != matrix).nnz for matrix, rows, columns in _maps(algorithm)):
            return False
        messages = sizes["messages"]
        sender, sent = algorithm.message_sender, algorithm.sent
        if (sender[messages] != permutation[sender]).any() or (sent[:, messages] != sent).any():
            return False
        noise, causal = algorithm.noise, algorithm.noise.causal
        parts = _lifted(permutation, noise.columns_per_step)
        if (algorithm.holders[parts][:, permutation] != algorithm.holders).nnz:
            return False
        if noise.local and causal is not None and causal.shared and noise.slots_per_step == n:
            return bool((causal.node_scales[permutation] == causal.node_scales).all())
        if noise.shape[0] * noise.shape[1] > MAX_NOISE:
            return False
        N = noise.matmat(np.eye(noise.shape[1]))
        N = N.reshape(noise.num_steps, noise.slots_per_step, noise.num_steps, -1)
        return bool((N[:, sizes["injection slots"]][:, :, :, parts] == N).all())


def corresponds(permutation: Nodes, masks: Knowledge, image: Knowledge) -> bool:
    """Whether one attacker knows of the images of nodes what another knows of the nodes."""
    if masks.combination is not None or image.combination is not None:
        return False
    names = ("seen", "known_gradients", "known_noise")
    pairs = ((getattr(masks, name), getattr(image, name)) for name in names)
    return all((after[:, _lifted(permutation, after.shape[1])] == before).all() for before, after in pairs)


def _maps(algorithm: LinearAlgorithm) -> list[tuple[sp.csr_array, str, str]]:
    """Every map with the words for its rows and columns."""
    maps: list[tuple[Any, str, str]] = [(algorithm.model_from_state, "nodes", "state")]
    for kind in algorithm.kinds:
        maps += [(getattr(kind, name), *axes) for name, axes in SHAPES.items() if getattr(kind, name) is not None]
    if algorithm.state_from_start is not None:
        maps.append((algorithm.state_from_start, "state", "nodes"))
    return maps


def _lifted(permutation: Nodes, size: int) -> Nodes:
    """The same of several blocks of all nodes."""
    n = len(permutation)
    return (np.arange(size // n)[:, None] * n + permutation).ravel()

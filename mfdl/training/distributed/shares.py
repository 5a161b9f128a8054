"""Which rank holds which row: nodes by a partition of the graph that cuts few edges, all else where its node is.

In: an algorithm's maps and a number of ranks. Out: the rank of every node, state row, message and injection slot, by
the words of `round.SHAPES`. Results do not hang on it: a rank is sent what its rows need of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pymetis
import scipy.sparse as sp
from numpy.typing import NDArray

from ...algorithms import LinearAlgorithm
from ...errors import InvalidInput
from ...operators.recursion import Map

RankOfRow = NDArray[np.intp]
SEED = 0  # every rank makes the partition for itself
NOBODY = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Shares:
    """The rank that holds each row.

    Attributes: rank_of: by "nodes", "state", "messages" and "injection slots", int (rows,); num_ranks: R; cut_edges:
        edges of the graph between nodes of different ranks.
    """

    rank_of: Mapping[str, RankOfRow]
    num_ranks: int
    cut_edges: int

    @classmethod
    def of(cls, algorithm: LinearAlgorithm, num_ranks: int) -> Shares:
        """Nodes by who sends to whom, messages at their senders, state where it makes a model.

        Raises: InvalidInput: more ranks than nodes.
        """
        links = _links(algorithm)
        nodes, num_slots = partition(links, num_ranks), algorithm.noise.slots_per_step
        messages, nobody = nodes[algorithm.message_sender], np.full(num_slots, NOBODY)
        state = _filled(np.full(algorithm.sizes["state"], NOBODY), algorithm.model_from_state.T, nodes)
        slots = nodes if num_slots == nodes.size else nobody
        for kind in algorithm.kinds:
            state = _filled(state, kind.state_from_gradient, nodes)
            state = _filled(state, _transposed(kind.message_from_state), messages)
            state = _filled(state, kind.state_from_message, messages)
            slots = _filled(slots, _transposed(kind.message_from_noise), messages)
            slots = _filled(slots, _transposed(kind.state_from_noise), state)
        rank_of = {"nodes": nodes, "state": state, "messages": messages, "injection slots": slots}
        crossing = nodes[links.row] != nodes[links.col]
        somebody = {name: np.maximum(ranks, 0) for name, ranks in rank_of.items()}
        return cls(somebody, num_ranks, int(np.count_nonzero(crossing)) // 2)

    def rows(self, name: str, rank: int) -> NDArray[np.intp]:
        """The rows that a rank holds, in increasing order."""
        return np.flatnonzero(self.rank_of[name] == rank)


def partition(links: sp.coo_array, num_ranks: int) -> RankOfRow:
    """The rank of each node: parts of nearly equal size with few links between them (METIS).

    Raises: InvalidInput: more ranks than nodes.
    """
    num_nodes = links.shape[0]
    if num_ranks > num_nodes:
        raise InvalidInput(
            f"ranks must be at most the number of nodes, {num_nodes}, got {num_ranks}: every rank holds some."
        )
    if num_ranks == 1:
        return np.zeros(num_nodes, dtype=np.intp)
    neighbours = sp.csr_array(links)
    options = pymetis.Options(seed=SEED)
    edges = pymetis.CSRAdjacency(neighbours.indptr, neighbours.indices)
    _, parts = pymetis.part_graph(num_ranks, edges, options=options)
    rank_of = np.asarray(parts, dtype=np.intp)
    # METIS may leave a part of a tiny graph empty
    return rank_of if np.unique(rank_of).size == num_ranks else np.arange(num_nodes) * num_ranks // num_nodes


def _links(algorithm: LinearAlgorithm) -> sp.coo_array:
    """Who sends to whom in any round, either way, without self-loops; coo (n, n)."""
    n, m = algorithm.num_nodes, algorithm.messages_per_round
    sender = sp.csr_array((np.ones(m), (np.arange(m), algorithm.message_sender)), shape=(m, n))
    links = sp.csr_array((n, n))
    for reads in {id(kind.state_from_message): kind.state_from_message for kind in algorithm.kinds}.values():
        if reads is not None:
            links = links + abs(algorithm.model_from_state) @ (abs(reads) @ sender)
    links = sp.csr_array(links + links.T)
    links.setdiag(0)
    links.eliminate_zeros()
    return sp.coo_array(links)


def _transposed(matrix: Map) -> Map:
    return None if matrix is None else matrix.T


def _filled(ranks: RankOfRow, matrix: Map, rank_of_column: RankOfRow) -> RankOfRow:
    """Rows that nobody holds go to the rank of their first entry that somebody holds."""
    if matrix is None:
        return ranks
    entries = sp.coo_array(sp.csr_array(matrix))
    others = rank_of_column[entries.col]
    held = np.flatnonzero(others != NOBODY)[::-1]  # the first entry is written last
    first = np.full(ranks.size, NOBODY)
    first[entries.row[held]] = others[held]
    return np.where(ranks == NOBODY, first, ranks)

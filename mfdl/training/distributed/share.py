"""One rank's share of a run: its rows of every map, and the rows that it receives to multiply them with.

A map's rows of this rank are cut to its own columns and, behind them, those of other ranks that it needs; `Seen` makes
the tensor that these multiply. `Shares` assigns rows to ranks: nodes by a partition of the graph that cuts few edges,
everything else by its node. Results do not depend on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from ... import errors, matrices
from ...algorithms import LinearAlgorithm
from ...algorithms.round import MAPS, SHAPES, Round
from ...errors import InvalidInput
from ...operators.structured import Map
from . import Group

SOURCES = ("state", "messages", "nodes", "injection slots")
"""Operands of maps: the words of their columns."""
RankOfRow = NDArray[np.intp]
SEED = 0  # every rank makes the partition for itself
NO_RANK = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """Operand of a rank: its own rows of a tensor, and behind them rows that others send.

    Attributes: columns: indices of these rows; sends: for each other rank the places among its own rows;
        receives: for each other rank the number of rows.
    """

    group: Group
    columns: NDArray[np.intp]
    sends: Sequence[tuple[int, torch.Tensor]] = ()
    receives: Sequence[tuple[int, int]] = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Own rows, shape (rows, dim), followed by the received ones; every rank of the group must call it."""
        if not self.sends and not self.receives:
            return x
        received = [(rank, x.new_empty(count, *x.shape[1:])) for rank, count in self.receives]
        self.group.exchange([(rank, x[places].contiguous()) for rank, places in self.sends], received)
        return torch.cat([x, *(rows for _, rows in received)])


class Share:
    """The rows of an algorithm that one rank of a group holds.

    Attributes: nodes, slots: those of this rank, in increasing order; None: all.
    Cost: O(entries) for each distinct map.
    Raises: InvalidInput: more ranks than nodes.
    """

    def __init__(self, algorithm: LinearAlgorithm, group: Group, device: torch.device) -> None:
        self.group, self._sizes, self._device = group, algorithm.sizes, device
        self.shares = None if group.size == 1 else Shares.of(algorithm, group.size)
        self.nodes = None if self.shares is None else self.shares.rows("nodes", group.rank)
        self.slots = None if self.shares is None else self.shares.rows("injection slots", group.rank).tolist()
        self._number = matrices.numbered()
        self._seen: dict[tuple[object, ...], Seen] = {}
        self._cut: dict[tuple[str, int, int], Map] = {}

    def size(self, name: str) -> int:
        return self._sizes[name] if self.shares is None else len(self.shares.rows(name, self.group.rank))

    def of_round(self, kind: Round) -> tuple[dict[str, Map], dict[str, Seen]]:
        """(this rank's rows of each map by its name, their operands by the word of their columns)."""
        maps = {name: getattr(kind, name) for name in MAPS}
        seen = {word: self._seen_by({n: m for n, m in maps.items() if SHAPES[n][1] == word}, word) for word in SOURCES}
        return {name: self._rows(m, SHAPES[name][0], seen[SHAPES[name][1]]) for name, m in maps.items()}, seen

    def of_map(self, matrix: Map, rows: str, columns: str) -> tuple[Map, Seen]:
        """As `round` of a single map, its rows and columns named by the words of `round.SHAPES`."""
        seen = self._seen_by({rows: matrix}, columns, (rows,))
        return self._rows(matrix, rows, seen), seen

    def of_rank(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a tensor of all rows."""
        return whole if self.shares is None else whole[self._places(name, self.group.rank)]

    def gathered(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, on every rank; every rank must call it."""
        if self.shares is None:
            return rows
        return self.group.gathered(rows, [self._places(name, rank) for rank in range(self.group.size)])

    def mean(self, models: torch.Tensor) -> torch.Tensor:
        """The mean model of all nodes, float64 sums, shape (1, dim); every rank must call it."""
        if self.shares is None:
            return models.mean(0, keepdim=True, dtype=torch.float64).to(models.dtype)
        total = self.group.summed(models.sum(0, keepdim=True, dtype=torch.float64))
        return (total / self._sizes["nodes"]).to(models.dtype)

    def any(self, here: bool) -> bool:
        """Whether it holds on any rank; every rank must call it."""
        if self.shares is None:
            return here
        return bool(self.group.summed(torch.tensor([float(here)], device=self._device)))

    def _places(self, name: str, rank: int) -> torch.Tensor:
        assert self.shares is not None
        return torch.as_tensor(self.shares.rows(name, rank), device=self._device)

    def _seen_by(self, maps: dict[str, Map], columns: str, rows: Sequence[str] | None = None) -> Seen:
        """Operand of this rank for these maps."""
        given = [(rows[0] if rows else SHAPES[name][0], m) for name, m in maps.items() if m is not None]
        key = columns, *((word, self._number(m)) for word, m in given)
        if key not in self._seen:
            self._seen[key] = self._needed([m for _, m in given], [word for word, _ in given], columns)
        return self._seen[key]

    def _needed(self, maps: Sequence[sp.csr_array], rows: Sequence[str], columns: str) -> Seen:
        if self.shares is None:
            return Seen(self.group, np.arange(self._sizes[columns]))
        holder, me = self.shares.rank_of[columns], self.group.rank
        size = holder.size
        requests = np.zeros(0, dtype=np.intp)  # rank that needs it x size + column
        for matrix, word in zip(maps, rows, strict=True):
            entries = sp.coo_array(matrix)
            asking = self.shares.rank_of[word][entries.row]
            away = asking != holder[entries.col]
            requests = np.union1d(requests, asking[away] * size + entries.col[away])
        asking, column = np.divmod(requests, size)
        mine = self.shares.rows(columns, me)
        sends = []
        for rank in np.unique(asking[holder[column] == me]):
            places = np.searchsorted(mine, column[(asking == rank) & (holder[column] == me)])
            sends.append((int(rank), torch.as_tensor(places, device=self._device)))
        needed = column[asking == me]
        needed = needed[np.argsort(holder[needed], kind="stable")]  # exact: integers
        ranks, counts = np.unique(holder[needed], return_counts=True)
        received = [(int(rank), int(count)) for rank, count in zip(ranks, counts, strict=True)]
        return Seen(self.group, np.concatenate([mine, needed]), sends, received)

    def _rows(self, matrix: Map, rows: str, seen: Seen) -> Map:
        if matrix is None or self.shares is None:
            return matrix
        key = rows, self._number(matrix), self._number(seen)  # one matrix may make messages and state
        if key not in self._cut:
            place = np.full(matrix.shape[1], -1)
            place[seen.columns] = np.arange(seen.columns.size)
            part = sp.csr_array(matrix)[self.shares.rows(rows, self.group.rank)]
            shape = part.shape[0], seen.columns.size
            cut = sp.csr_array((part.data, place[part.indices], part.indptr), shape=shape)
            cut.sort_indices()
            self._cut[key] = cut
        return self._cut[key]


@dataclasses.dataclass(frozen=True, eq=False)
class Shares:
    """The rank that holds each row.

    Attributes: rank_of: by "nodes", "state", "messages" and "injection slots", int (rows,); cut_edges: edges of the
        graph between nodes of different ranks.
    """

    rank_of: Mapping[str, RankOfRow]
    num_ranks: int
    cut_edges: int

    @classmethod
    def of(cls, algorithm: LinearAlgorithm, num_ranks: int) -> Shares:
        """Assigns nodes by the links of the graph, messages by their senders, state by its model.

        Raises: InvalidInput: more ranks than nodes.
        """
        links = _links(algorithm)
        nodes, num_slots = partition(links, num_ranks), algorithm.noise.slots_per_step
        messages, unassigned = nodes[algorithm.message_sender], np.full(num_slots, NO_RANK)
        state = _filled(np.full(algorithm.sizes["state"], NO_RANK), algorithm.model_from_state.T, nodes)
        slots = nodes if num_slots == nodes.size else unassigned
        for kind in algorithm.kinds:
            state = _filled(state, kind.state_from_gradient, nodes)
            state = _filled(state, _transposed(kind.message_from_state), messages)
            state = _filled(state, kind.state_from_message, messages)
            slots = _filled(slots, _transposed(kind.message_from_noise), messages)
            slots = _filled(slots, _transposed(kind.state_from_noise), state)
        rank_of = {"nodes": nodes, "state": state, "messages": messages, "injection slots": slots}
        crossing = nodes[links.row] != nodes[links.col]
        assigned = {name: np.maximum(ranks, 0) for name, ranks in rank_of.items()}
        return cls(assigned, num_ranks, int(np.count_nonzero(crossing)) // 2)

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
    pymetis = errors.imported("pymetis", "a partition of the nodes")
    options = pymetis.Options(seed=SEED)
    edges = pymetis.CSRAdjacency(neighbours.indptr, neighbours.indices)
    _, parts = pymetis.part_graph(num_ranks, edges, options=options)
    rank_of = np.asarray(parts, dtype=np.intp)
    # METIS may leave a part of a tiny graph empty
    return rank_of if np.unique(rank_of).size == num_ranks else np.arange(num_nodes) * num_ranks // num_nodes


def _links(algorithm: LinearAlgorithm) -> sp.coo_array:
    """Links in any round, either way, without self-loops; coo (n, n)."""
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
    """Rows without a rank get the rank of their first entry that has one."""
    if matrix is None:
        return ranks
    entries = sp.coo_array(sp.csr_array(matrix))
    others = rank_of_column[entries.col]
    filled_entries = np.flatnonzero(others != NO_RANK)[::-1]  # the first entry is written last
    first = np.full(ranks.size, NO_RANK)
    first[entries.row[filled_entries]] = others[filled_entries]
    return np.where(ranks == NO_RANK, first, ranks)

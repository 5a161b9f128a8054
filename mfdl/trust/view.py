"""View: the linear map O = A G + B Z an attacker has, and what it knows besides.

`AlgorithmView` turns the `Knowledge` that a trust model gives of one algorithm into operators; `View(A, B)` takes
arrays, sparse matrices or operators from a researcher. Known gradient columns and known noise columns are marks,
not rows: known noise is removed from B, and a known gradient makes its owner's loss infinite.

Entries of arrays and sparse matrices count as exactly the numbers that they are: ranks, which decide what leaks, are
found without rounding (`privacy.exact_arithmetic`), and 1/3 in float64 is no third. Entries that were computed, such as
powers of a gossip matrix, are best given as `fractions.Fraction`. An operator's products round: they count as known to
`entries.COMPUTED` of their largest, and what that leaves open is decided on the safe side: rows that depend on each
other may hold a leak below rounding, so the loss of a view with such rows is infinite, an upper bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from .. import check
from ..algorithms import LinearAlgorithm
from ..algorithms.workloads import Flow, flow
from ..check import FloatArray
from ..entries import (
    MAX_FACTOR_ENTRIES,
    RANK_TOLERANCE,
    Stacked,
    checked_rank,
    entries_and_operator,
    exact_entries,
    rational,
    refuse_huge,
    rounding_of,
    to_dense,
    without_columns,
)
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import UNIT
from ..operators import OutputRecursion, TimeNodeAxis, WeightedStates
from .knowledge import Knowledge, checked_mask
from .view_matrices import GivenModels, ViewMatrices, masked

RELEASES = ("none", "average", "all", "not applicable")


class View(ViewMatrices):
    """O = A G + B Z with what is known of G and of Z.

    Args:
        gradients: A, shape (rows, T n): array (also of Fractions), sparse matrix, LinearOperator, or a list of arrays
            and sparse matrices whose product it is, without rounding; column t n + u is node u's at step t.
        noise: B, shape (rows, m).
        num_nodes: n; T = columns / n. Default 1: one owner of all columns.
        known_gradients: bool (T, n), or (n,) for every step alike: gradients the attacker knows; default none.
        known_noise: bool (m,), columns of B whose noise the attacker knows; default none. They are set to zero.
        known_combinations: K, shape (c, T n): combinations K G the attacker knows; a victim that K touches has
            infinite loss, others are unaffected (differences must satisfy K (G - G') = 0).
        models: (M_G, M_Z), shapes (T n, T n) and (T n, m): the models at which gradients are taken, M_G G + M_Z Z; row
            t n + u is that of node u at step t. Default unknown: then no number of several steps counts as adaptive.
        row_steps: beside models, for each row the step after whose gradients it is seen, integers (rows,).
        attacker, release: in words, and of RELEASES, for guarantees.
        rank: "exact": the number of the entries as they are. "numerical": one for every matrix of the numerical rank
            whose rows, of the victim's columns scaled to the size of B and of B, are within rank_tolerance of these
            (`forms.dense_form`), where the arrays are computed products.
            Default: as "exact", with a warning where both differ by more than 1 %.

    Attributes:
        num_rows: of A and B.
        marked_gradients: the mask known_gradients as given, without what K touches; zero_noise: known_noise, bool (m,).

    Guarantees: no number of a view is below that of the matrices given, entry by entry; with rank="numerical" below
        that of any matrix that it covers.
    Raises: InvalidInput: shapes that do not fit, non-finite entries.

    When a number of a bare view counts as adaptive: `privacy.victim_sensitivity`.
    """

    name = "view"

    def __init__(
        self,
        gradients: Any,
        noise: Any,
        *,
        num_nodes: int = 1,
        known_gradients: ArrayLike | None = None,
        known_noise: ArrayLike | None = None,
        known_combinations: Any = None,
        models: tuple[Any, Any] | None = None,
        row_steps: ArrayLike | None = None,
        attacker: str = "whoever has this view",
        release: str = "not applicable",
        rank: str | None = None,
        rank_tolerance: float = RANK_TOLERANCE,
    ) -> None:
        A, self.gradients = entries_and_operator("gradients", gradients)
        B, self.noise = entries_and_operator("noise", noise)
        self.num_rows = self.gradients.shape[0]
        if self.gradients.shape[0] != self.noise.shape[0]:
            shapes = f"{self.gradients.shape} and {self.noise.shape}"
            raise InvalidInput(f"gradients and noise must have the same number of rows, got {shapes}.")
        n = check.integer_at_least(1, num_nodes=num_nodes)
        if self.gradients.shape[1] % n or not self.gradients.shape[1]:
            raise InvalidInput(f"columns of gradients must be steps * num_nodes={n}, got {self.gradients.shape[1]}.")
        self.axis = TimeNodeAxis(self.gradients.shape[1] // n, n)
        self.marked_gradients = checked_mask("known_gradients", known_gradients, (self.axis.num_steps, n))
        self.known_gradients = self.marked_gradients
        self.zero_noise = checked_mask("known_noise", known_noise, (1, self.noise.shape[1]))[0]
        if self.zero_noise.any():
            self.noise = self.noise @ masked(~self.zero_noise)
            B = None if B is None else without_columns(B, self.zero_noise)
        self._entries = (A, B)
        self.rank, self.rank_tolerance = checked_rank(rank, rank_tolerance)
        if rank == "numerical" and not self.entries_given:
            raise InvalidInput("rank='numerical' needs A and B as arrays or sparse matrices, got an operator.")
        if models is not None:
            self.models = GivenModels.from_arrays(models, row_steps, A, self.noise.shape[1], self.axis)
        if known_combinations is not None:
            _, K = entries_and_operator("known_combinations", known_combinations)
            if K.shape[1] != self.axis.size:
                raise InvalidInput(f"known_combinations must have {self.axis.size} columns, got {K.shape[1]}.")
            touched = np.abs(to_dense(K)).sum(axis=0) > 0
            self.known_gradients = self.known_gradients | touched.reshape(self.axis.num_steps, n)
        self.attacker, self.release = attacker, release

    def __repr__(self) -> str:
        (rows, columns), known = self.gradients.shape, int(self.known_gradients.sum())
        return (
            f"{type(self).__name__}(A {rows} x {columns}, B {rows} x {self.noise.shape[1]}, "
            f"{self.axis.num_nodes} nodes, {known} gradients known, attacker: {self.attacker}, release: {self.release})"
        )

    @staticmethod
    def processed(combinations: Any, view: View) -> ProcessedView:
        """The view S O where `view` is O: no number of it is above that of `view`.

        Args: combinations: S, shape (k, rows of view), any k and rank; also a list of factors, for their product.

        The factors decide ranks: products of given entries are exact, and an S that loses nothing has the numbers of
        `view`. An adaptive number is that of `view`.
        Raises: InvalidInput: an S of other columns, or too large for exact arithmetic.

        >>> all_seen = View([[1.0], [0.1]], [[1.0, 0.0], [0.1, 0.3]])
        >>> View.processed([[0.1, 0.7], [0.2, 0.3], [0.3, 0.5]], all_seen).shows_all
        True
        """
        return ProcessedView(combinations, view)

    @property
    def entries_given(self) -> bool:
        """Whether A and B are known entry by entry: they came as arrays or sparse matrices, not as products."""
        return all(entries is not None for entries in self._entries)

    def entries(self, nodes: NDArray[np.intp] | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """Columns of A as `dense_gradients` has them, and B, as given: floats, or Fractions; where `entries_given`."""
        A, B = (entries.toarray() if sp.issparse(entries) else entries for entries in self._entries)
        return A[:, self._node_columns(nodes)], B

    def dense_gradients(self, nodes: NDArray[np.intp] | None = None) -> FloatArray:
        """Columns of A that the given nodes own, node after node, each in time order: (rows, len(nodes) T)."""
        return self.dense_gradients_by_time()[:, self._node_columns(nodes)]

    def _node_columns(self, nodes: NDArray[np.intp] | None) -> NDArray[np.intp]:
        chosen = np.arange(self.axis.num_nodes) if nodes is None else nodes
        columns = [self.axis.node_columns(int(u)) for u in chosen]
        return np.concatenate(columns) if columns else np.zeros(0, dtype=np.intp)

    def dense_gradients_by_time(self) -> FloatArray:
        """A, dense, in the time-major order of its columns."""
        refuse_huge(*self.gradients.shape)
        return to_dense(self.gradients)

    def dense_noise(self) -> FloatArray:
        """B, dense: through the transpose when that has fewer columns."""
        refuse_huge(*self.noise.shape)
        return to_dense(self.noise)

    def noise_rounding(self) -> FloatArray:
        """Bound on how far `dense_noise` is from the exact B, entry by entry: nothing where floats were given."""
        return rounding_of(self._entries[1], self.noise)

    def gradient_rounding(self, nodes: NDArray[np.intp]) -> FloatArray:
        return rounding_of(self._entries[0], self.gradients)[:, self._node_columns(nodes)]

    @property
    def num_nodes(self) -> int:
        return self.axis.num_nodes

    @property
    def labels(self) -> tuple[Hashable, ...]:
        return tuple(range(self.axis.num_nodes))

    def row_name(self, row: int) -> str:
        return f"row {row}"


class ProcessedView(View):
    """S O of the view `source`; `shows_all`: S is injective, so nothing is lost."""

    def __init__(self, combinations: Any, view: View) -> None:
        check.instance(View, view=view)
        given = exact_entries("combinations", combinations)
        S = given.toarray() if sp.issparse(given) else given
        if S.shape[1] != view.num_rows or S.size > MAX_FACTOR_ENTRIES:
            raise InvalidInput(
                f"combinations must have {view.num_rows} columns, one for each row of the view, and at most "
                f"{MAX_FACTOR_ENTRIES} entries, got shape {S.shape}."
            )
        echelon, rank = rational(S.T).rref()
        S = S[[[x != 0 for x in row].index(True) for row in echelon.tolist()[:rank]]]  # rows that span the others
        self.source, self.shows_all = view, rank == view.num_rows
        self._combinations = np.eye(rank) if self.shows_all else S.astype(np.float64)
        if view.entries_given:
            A, B = view._entries if self.shows_all else ([S, entries] for entries in view._entries)
        else:
            A, B = (aslinearoperator(self._combinations) @ part for part in (view.gradients, view.noise))
        super().__init__(A, B, num_nodes=view.num_nodes, known_gradients=view.marked_gradients)
        self.attacker, self.release = view.attacker, view.release
        self.known_gradients, self.rank = view.known_gradients, view.rank

    def noise_rounding(self) -> FloatArray:
        if self.entries_given:
            return super().noise_rounding()
        return self._rounding(self.source.noise_rounding(), self.source.dense_noise())

    def gradient_rounding(self, nodes: NDArray[np.intp]) -> FloatArray:
        if self.entries_given:
            return super().gradient_rounding(nodes)
        return self._rounding(self.source.gradient_rounding(nodes), self.source.dense_gradients(nodes))

    def _rounding(self, rounding: FloatArray, entries: FloatArray) -> FloatArray:
        """Rounding of products with entries that are off by `rounding`, and were computed by products themselves."""
        return np.abs(self._combinations) @ (2 * rounding + (self.source.num_rows + 8) * UNIT * np.abs(entries))


class AlgorithmView(View):
    """The view of an algorithm under masks, with the released models as further rows."""

    def __init__(self, algorithm: LinearAlgorithm, knowledge: Knowledge, *, release: str, attacker: str) -> None:
        self.algorithm, self.knowledge = algorithm, knowledge
        self.axis = TimeNodeAxis(algorithm.num_steps, algorithm.num_nodes)
        self.known_gradients = self.marked_gradients = knowledge.known_gradients
        self.zero_noise = knowledge.known_noise.ravel()
        self.attacker, self.release = attacker, release
        if release in ("average", "all") and algorithm.released.rounds_of_gossip:
            raise UnsupportedMechanism(
                f"released models {algorithm.released.describe()} are gossiped after training, by messages that no "
                "view with hidden messages holds; leave the rounds of gossip out, or choose a trust model that sees "
                "all messages."
            )

    # A and B are made when they are asked for: where a closed form answers, a million nodes need neither.

    @cached_property
    def gradients(self) -> LinearOperator:
        algorithm = self.algorithm
        rows, which = self._picks
        of_messages = aslinearoperator(rows) @ algorithm.messages_from_gradients
        if which is None:
            return of_messages
        return Stacked([of_messages, aslinearoperator(which) @ algorithm.released_from_gradients])

    @cached_property
    def noise(self) -> LinearOperator:
        algorithm = self.algorithm
        unknown = masked(~self.knowledge.known_noise)
        rows, which = self._picks
        of_messages = aslinearoperator(rows) @ algorithm.messages_from_noise @ unknown
        if which is None:
            return of_messages
        released = aslinearoperator(which) @ algorithm.released_from_injected_noise
        return Stacked([of_messages, released @ algorithm.noise @ unknown])

    @cached_property
    def num_rows(self) -> int:
        masks, n = self.knowledge, self.algorithm.num_nodes
        if masks.combination is None:
            seen = int(masks.seen.sum())
        else:
            seen = int(self.algorithm.sent.any(axis=1).sum()) * int(masks.combination.shape[0])
        return seen + {"average": 1, "all": n}.get(self.release, 0)

    @cached_property
    def flow(self) -> Flow | None:
        """Exact consequences of the messages that are seen; None for seen combinations."""
        masks = self.knowledge
        if masks.combination is not None:
            return None
        return flow(self.algorithm, masks.seen, masks.known_gradients, masks.known_noise)

    @property
    def shows_injections(self) -> bool:
        """Whether the messages that are seen determine every injected sum (gradient plus noise), exactly."""
        return self.flow is not None and self.flow.injections

    @property
    def unreleased(self) -> bool:
        """No models are shown besides messages."""
        return self.release in ("none", "not applicable")

    def dense_gradients_by_time(self) -> FloatArray:
        shared = _shared_rows(self.algorithm)
        return super().dense_gradients_by_time() if shared is None else self._shared_part(shared, "gradients")

    def dense_noise(self) -> FloatArray:
        shared = _shared_rows(self.algorithm)
        return super().dense_noise() if shared is None else self._shared_part(shared, "noise") * self._unknown

    def noise_rounding(self) -> FloatArray:
        """Bound on `dense_noise` less the exact B: |B| by absolute values, a factor 1 + O(u) for each operation."""
        algorithm, noise = self.algorithm, self.algorithm.noise
        if (shared := _shared_rows(algorithm)) is not None:
            sizes = self._picked(shared.noise_sizes, absolute=True)
        else:
            rows = self._sizes(algorithm.messages_from_injected_noise, algorithm.released_from_injected_noise)
            sizes = noise.absolute_rmatmat(rows.T).T
        return (self._operations() + noise.columns_per_step + noise.num_steps) * UNIT * sizes * self._unknown

    def gradient_rounding(self, nodes: NDArray[np.intp]) -> FloatArray:
        columns = np.concatenate([self.axis.node_columns(int(u)) for u in nodes])
        if (shared := _shared_rows(self.algorithm)) is not None:
            sizes = self._picked(shared.gradient_sizes, absolute=True)
        else:
            sizes = self._sizes(self.algorithm.messages_from_gradients, self.algorithm.released_from_gradients)
        return self._operations() * UNIT * sizes[:, columns]

    @property
    def _unknown(self) -> NDArray[np.bool_]:
        return ~self.knowledge.known_noise.ravel()

    def _shared_part(self, shared: _SharedRows, source: str) -> FloatArray:
        columns = self.axis.size if source == "gradients" else self.algorithm.noise.shape[1]
        return self._picked(shared.rows(source, transposed=self.num_rows < columns))

    @property
    def _picks(self) -> tuple[sp.csr_array, sp.csr_array | None]:
        """(seen <- messages, what is shown <- what nodes release, or None)."""
        n = self.algorithm.num_nodes
        which = {"average": sp.csr_array(np.full((1, n), 1.0 / n)), "all": sp.csr_array(sp.eye_array(n))}
        return self.knowledge.rows(self.algorithm), which.get(self.release)

    def _picked(self, of_all: FloatArray, *, absolute: bool = False) -> FloatArray:
        """The rows of the view, of all messages and what all nodes release; from absolute values if `absolute`."""
        size = self.knowledge.seen.size
        rows, which = self._picks
        if self.knowledge.combination is None:
            parts = [of_all[:size][self.knowledge.seen.ravel()]]
        else:
            parts = [(abs(rows) if absolute else rows) @ of_all[:size]]
        return np.concatenate(parts if which is None else [*parts, which @ of_all[size:]])

    def _sizes(self, messages: OutputRecursion, models: WeightedStates) -> FloatArray:
        """The rows of the view <- inputs, from absolute values."""
        rows, which = self._picks
        parts = [to_dense(aslinearoperator(abs(rows)) @ messages.absolute())]
        if which is not None:
            parts.append(to_dense(aslinearoperator(which) @ models.absolute()))
        return np.concatenate(parts)

    def _operations(self) -> int:
        """An upper bound on the float operations of any entry of a row."""
        algorithm = self.algorithm
        widest = sum(int(np.diff(m.indptr).max(initial=0)) for kind in algorithm.kinds for m in kind.maps())
        return len(algorithm.rounds) * (widest + 10) + algorithm.num_nodes + 8

    def row_name(self, row: int) -> str:
        if self.knowledge.combination is not None:
            return super().row_name(row)
        seen = np.argwhere(self.knowledge.seen)
        if row >= len(seen):
            return f"released model row {row - len(seen)}"
        return self.message_name(*(int(i) for i in seen[row]))

    def full_encoder(self) -> LinearOperator | None:
        try:
            full = self.algorithm.workload().C
        except UnsupportedMechanism:
            return None
        return masked(~self.knowledge.known_noise) @ full @ masked(~self.known_gradients)

    def message_name(self, turn: int, message: int) -> str:
        labels = self.algorithm.dynamics.gossip.labels
        return f"message of {labels[self.algorithm.message_sender[message]]} in round {turn}"


MAX_SHARED = 2**21  # entries of all messages of an algorithm that are made once for all its attackers
_SHARED: WeakKeyDictionary[LinearAlgorithm, _SharedRows] = WeakKeyDictionary()


class _SharedRows:
    """All messages of an algorithm and, below them, what all nodes release, dense, <- gradients or base noise.

    Transposed: row by row, as `to_dense` has those of few rows; sums of floats that cancel need not leave zeros both
    ways.
    """

    def __init__(self, algorithm: LinearAlgorithm) -> None:
        self._by_gradients = algorithm.messages_from_gradients, algorithm.released_from_gradients
        self._by_injections = algorithm.messages_from_injected_noise, algorithm.released_from_injected_noise
        self._noise, self._rows = algorithm.noise, dict[tuple[str, bool], FloatArray]()

    def rows(self, source: str, *, transposed: bool) -> FloatArray:
        if (source, transposed) not in self._rows:
            by_noise = (part @ self._noise for part in self._by_injections)
            parts = self._by_gradients if source == "gradients" else by_noise
            self._rows[source, transposed] = np.concatenate([_dense(part, transposed) for part in parts])
        return self._rows[source, transposed]

    @cached_property
    def gradient_sizes(self) -> FloatArray:
        return np.concatenate([to_dense(part.absolute()) for part in self._by_gradients])

    @cached_property
    def noise_sizes(self) -> FloatArray:
        rows = np.concatenate([to_dense(part.absolute()) for part in self._by_injections])
        return self._noise.absolute_rmatmat(rows.T).T


def _dense(operator: LinearOperator, transposed: bool) -> FloatArray:
    rows, columns = operator.shape
    return np.asarray(operator.rmatmat(np.eye(rows)).T if transposed else operator.matmat(np.eye(columns)))


def _shared_rows(algorithm: LinearAlgorithm) -> _SharedRows | None:
    rows = len(algorithm.rounds) * algorithm.messages_per_round + algorithm.num_nodes
    if rows * max(algorithm.axis.size, *algorithm.noise.shape) > MAX_SHARED:
        return None
    return _SHARED.setdefault(algorithm, _SharedRows(algorithm))

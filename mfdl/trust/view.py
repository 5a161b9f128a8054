"""View: the linear map O = A G + B Z an attacker has, and what it knows besides.

`Knowledge` is what a trust model says of one algorithm; `View.of` turns it into operators; `View(A, B)` takes
arrays, sparse matrices or operators from a researcher. Known gradient columns and known noise columns are marks,
not rows: known noise is removed from B, and a known gradient makes its owner's loss infinite.

Entries of arrays and sparse matrices count as exactly the numbers that they are: ranks, which decide what leaks, are
found without rounding (`privacy.exact_arithmetic`), and 1/3 in float64 is no third. Entries that were computed, such as
powers of a gossip matrix, are best given as `fractions.Fraction`. An operator's products round: they count as known to
`entries.COMPUTED` of their largest, and what that leaves open is decided on the safe side: rows that depend on each
other may hold a leak below rounding, so the loss of a view with such rows is infinite, an upper bound.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from .. import check
from ..algorithms import LinearAlgorithm
from ..algorithms.flow import Flow, flow
from ..check import FloatArray
from ..display import short_repr
from ..entries import Stacked, entries_and_operator, refuse_huge, rounding_of, to_dense, without_columns
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import UNIT
from ..operators import OutputRecursion, WeightedStates
from ..operators.structured import TimeNodeAxis
from .view_matrices import GivenModels, ViewMatrices, masked

Mask = NDArray[np.bool_]
RELEASES = ("none", "average", "all", "not applicable")


@dataclasses.dataclass(frozen=True, eq=False)
class Knowledge:
    """Three masks: what of one algorithm is seen and known.

    Attributes:
        seen: bool (rounds, messages per round).
        known_gradients: bool (T, n).
        known_noise: bool (T, parts of the base noise per step).
        combination: csr (c, messages per round) seen in every round in which something is sent, instead of single
            messages, of those that `combined` counts; or None.
    """

    __repr__ = short_repr

    seen: Mask
    known_gradients: Mask
    known_noise: Mask
    combination: sp.csr_array | None = None

    @staticmethod
    def of(
        algorithm: LinearAlgorithm,
        *,
        seen: ArrayLike | None = None,
        known_gradients: ArrayLike | None = None,
        known_noise: ArrayLike | None = None,
        combination: sp.csr_array | None = None,
    ) -> Knowledge:
        """Checked masks; None is nothing; a mask without the time axis holds for every round or step."""
        T, n = algorithm.num_steps, algorithm.num_nodes
        return Knowledge(
            _mask("seen", seen, (len(algorithm.rounds), algorithm.messages_per_round)),
            _mask("known_gradients", known_gradients, (T, n)),
            _mask("known_noise", known_noise, (T, algorithm.noise.columns_per_step)),
            combination,
        )

    def rows(self, algorithm: LinearAlgorithm) -> sp.csr_array:
        """What is seen <- all message rows, 0/1 or the combinations, csr (seen, rounds * messages)."""
        if self.combination is not None:
            of_rounds = np.flatnonzero(algorithm.sent.any(axis=1))
            picks = (np.ones(of_rounds.size), (np.arange(of_rounds.size), of_rounds))
            rounds = sp.csr_array(picks, shape=(of_rounds.size, len(algorithm.rounds)))
            rows = sp.csr_array(sp.kron(rounds, self.combination))
            counted = combined(algorithm)
            return rows if counted.all() else sp.csr_array(rows @ sp.diags_array(counted.ravel().astype(np.float64)))
        index = np.flatnonzero(self.seen.ravel())
        return sp.csr_array((np.ones(index.size), (np.arange(index.size), index)), (index.size, self.seen.size))

    def sees_all(self, algorithm: LinearAlgorithm) -> bool:
        """Whether every message that is sent is seen by itself."""
        return self.combination is None and bool((self.seen >= algorithm.sent).all())

    def with_all_sent(self, algorithm: LinearAlgorithm) -> Knowledge:
        """The same with every message that is sent seen besides, each by itself."""
        return dataclasses.replace(self, seen=self.seen | algorithm.sent, combination=None)

    def digest(self) -> str:
        """16 hex digits of the masks and of what is combined."""
        digest = hashlib.sha256(repr((self.seen.shape, self.known_gradients.shape, self.known_noise.shape)).encode())
        for mask in (self.seen, self.known_gradients, self.known_noise):
            digest.update(np.packbits(mask).tobytes())
        if self.combination is not None:
            digest.update(self.combination.toarray().tobytes())
        return digest.hexdigest()[:16]

    def covers(self, other: Knowledge) -> bool:
        """Whether this sees and knows at least what the other does."""
        if other.combination is not None:
            same = self.combination is not None and _equal(self.combination, other.combination)
            if not (same or bool(self.seen[:, np.unique(other.combination.indices)].all())):
                return False
        return bool(
            (self.seen >= other.seen).all()
            and (self.known_gradients >= other.known_gradients).all()
            and (self.known_noise >= other.known_noise).all()
        )


def combined(algorithm: LinearAlgorithm) -> Mask:
    """Which messages of a round a combination is of, bool (rounds, messages): those sent in it, and those never sent.

    A message that is sent in other rounds only, as by a node that is offline in this one, is not combined.
    """
    sent = algorithm.sent
    if algorithm.transmitted.ndim == 1:  # the same in every round
        return np.broadcast_to(np.ones(1, dtype=bool), sent.shape)
    return np.asarray(sent | ~sent.any(axis=0))


def _equal(first: sp.csr_array, second: sp.csr_array) -> bool:
    return first.shape == second.shape and (first != second).nnz == 0


def _mask(name: str, given: ArrayLike | None, shape: tuple[int, int]) -> Mask:
    mask = np.zeros(shape[1:], dtype=bool) if given is None else check.as_array(**{name: given})
    if mask.dtype != bool or mask.shape not in (shape, shape[1:]):
        raise InvalidInput(
            f"{name} must be a boolean mask of shape {shape}, or {shape[1:]} for all times alike, got shape "
            f"{mask.shape} of {mask.dtype}."
        )
    alike = mask.ndim == 2 and len(mask) > 0 and mask.strides[0] == 0  # at all times: kept once
    return np.broadcast_to((mask[0] if alike else mask).copy(), shape)


class View(ViewMatrices):
    """O = A G + B Z with what is known of G and of Z.

    Args:
        gradients: A, shape (rows, T n): array (also of Fractions), sparse matrix or LinearOperator; column t n + u is
            node u's at step t.
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

    Attributes:
        num_rows: of A and B.
        marked_gradients: the mask known_gradients as given, without what K touches; zero_noise: known_noise, bool (m,).

    Guarantees: no number of a view is below that of the matrices given, entry by entry.
    Raises: InvalidInput: shapes that do not fit, non-finite entries.

    When a number of a bare view counts as adaptive: `privacy.adaptive`.
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
    ) -> None:
        A, self.gradients = entries_and_operator("gradients", gradients)
        B, self.noise = entries_and_operator("noise", noise)
        self.num_rows = self.gradients.shape[0]
        if self.gradients.shape[0] != self.noise.shape[0]:
            raise InvalidInput(
                f"gradients and noise must have the same number of rows, got {self.gradients.shape} and "
                f"{self.noise.shape}."
            )
        n = check.integer_at_least(1, num_nodes=num_nodes)
        if self.gradients.shape[1] % n or not self.gradients.shape[1]:
            raise InvalidInput(f"columns of gradients must be steps * num_nodes={n}, got {self.gradients.shape[1]}.")
        self.axis = TimeNodeAxis(self.gradients.shape[1] // n, n)
        self.marked_gradients = _mask("known_gradients", known_gradients, (self.axis.num_steps, n))
        self.known_gradients = self.marked_gradients
        self.zero_noise = _mask("known_noise", known_noise, (1, self.noise.shape[1]))[0]
        if self.zero_noise.any():
            self.noise = self.noise @ masked(~self.zero_noise)
            B = None if B is None else without_columns(B, self.zero_noise)
        self._entries = (A, B)
        if models is not None:
            self.models = GivenModels.of(models, row_steps, A, self.noise.shape[1], self.axis)
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
    def of(algorithm: LinearAlgorithm, knowledge: Knowledge, *, release: str, attacker: str) -> AlgorithmView:
        """The view of an algorithm under masks, with the released models as further rows."""
        return AlgorithmView(algorithm, knowledge, release=release, attacker=attacker)

    @property
    def entries_given(self) -> bool:
        """Whether A and B are known entry by entry: they came as arrays or sparse matrices, not as products."""
        return all(entries is not None for entries in self._entries)

    def entries(self, nodes: NDArray[np.intp] | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """Columns of A as `dense_gradients` has them, and B, as they were given: floats, or objects for Fractions.

        Only where `entries_given`.
        """
        A, B = (entries.toarray() if sp.issparse(entries) else entries for entries in self._entries)
        return A[:, self._columns_of(nodes)], B

    def dense_gradients(self, nodes: NDArray[np.intp] | None = None) -> FloatArray:
        """Columns of A that the given nodes own, node after node, each in time order: (rows, len(nodes) T)."""
        return self.dense_gradients_by_time()[:, self._columns_of(nodes)]

    def _columns_of(self, nodes: NDArray[np.intp] | None) -> NDArray[np.intp]:
        chosen = np.arange(self.axis.num_nodes) if nodes is None else nodes
        columns = [self.axis.of_node(int(u)) for u in chosen]
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
        """The same for `dense_gradients` of these nodes."""
        return rounding_of(self._entries[0], self.gradients)[:, self._columns_of(nodes)]

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.axis.num_nodes

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """Node indices."""
        return tuple(range(self.axis.num_nodes))

    def row_name(self, row: int) -> str:
        """A row in words."""
        return f"row {row}"


class AlgorithmView(View):
    """The view of an algorithm under masks, with the released models as further rows.

    Attributes: algorithm, knowledge: what it is the view of.
    """

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
        """A."""
        algorithm = self.algorithm
        rows, which = _picked(algorithm, self.knowledge, self.release)
        of_messages = aslinearoperator(rows) @ algorithm.messages_from_gradients
        if which is None:
            return of_messages
        return Stacked([of_messages, aslinearoperator(which) @ algorithm.released_from_gradients])

    @cached_property
    def noise(self) -> LinearOperator:
        """B."""
        algorithm = self.algorithm
        unknown = masked(~self.knowledge.known_noise)
        rows, which = _picked(algorithm, self.knowledge, self.release)
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
        """What follows exactly from the messages that are seen; None for seen combinations."""
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

    def noise_rounding(self) -> FloatArray:
        """Bound on how far `dense_noise` is from the exact B, entry by entry.

        By |B| computed from the absolute values of the maps and the noise: an entry is a sum of products, each with a
        factor 1 + O(u) for every operation that it goes through.
        """
        algorithm, noise = self.algorithm, self.algorithm.noise
        rows = self._sizes(algorithm.messages_from_injected_noise, algorithm.released_from_injected_noise)
        sizes = noise.absolute_rmatmat(rows.T).T * ~self.knowledge.known_noise.ravel()
        return (self._operations() + noise.columns_per_step + noise.num_steps) * UNIT * sizes

    def gradient_rounding(self, nodes: NDArray[np.intp]) -> FloatArray:
        columns = np.concatenate([self.axis.of_node(int(u)) for u in nodes])
        sizes = self._sizes(self.algorithm.messages_from_gradients, self.algorithm.released_from_gradients)
        return self._operations() * UNIT * sizes[:, columns]

    def _sizes(self, messages: OutputRecursion, models: WeightedStates) -> FloatArray:
        """The rows of the view <- inputs, from absolute values."""
        rows, which = _picked(self.algorithm, self.knowledge, self.release)
        parts = [to_dense(aslinearoperator(abs(rows)) @ messages.absolute())]
        if which is not None:
            parts.append(to_dense(aslinearoperator(which) @ models.absolute()))
        return np.concatenate(parts)

    def _operations(self) -> int:
        """At least how many float operations any entry of a row goes through."""
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
        """A message in words."""
        labels = self.algorithm.dynamics.gossip.labels
        return f"message of {labels[self.algorithm.message_sender[message]]} in round {turn}"


def _picked(algorithm: LinearAlgorithm, knowledge: Knowledge, release: str) -> tuple[sp.csr_array, sp.csr_array | None]:
    """(seen <- messages, what is shown <- what nodes release, or None)."""
    n = algorithm.num_nodes
    which = {"average": sp.csr_array(np.full((1, n), 1.0 / n)), "all": sp.csr_array(sp.eye_array(n))}.get(release)
    return knowledge.rows(algorithm), which

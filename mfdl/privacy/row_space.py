"""Row spaces of a view, exactly: do earlier rows span the models, and is a gradient seen without noise?

The recursion of the algorithm is run modulo the primes of `exact_rank`, so no tolerance decides anything; maps count as
the floats that they are, or as the fractions that these stand for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..algorithms import LinearAlgorithm
from ..algorithms.round import MAPS
from ..operators.linear_recursions import Map
from ..view import AlgorithmView, Knowledge, View, combined
from ..view_models import GivenModels
from .exact_rank import MAX_ENTRIES, PRIMES, meant, outside_range, pivots, residues, table

Table = NDArray[np.object_]


def spans_models(view: View) -> bool:
    """Whether the rows of every model, over G and Z without the known columns, lie in the span of earlier rows seen.

    A model whose gradient is known is asked about too: the gradient shows as much of it as it depends on. A bare view
    has the models and the times of rows that it was given with. False also where it has none, and for a view that is
    too large.
    """
    if not isinstance(view, AlgorithmView):
        return view.models is not None and _given_models_are_spanned(view, view.models)
    if not _is_small(view):
        return False
    unknown = np.flatnonzero(np.concatenate([~view.known_gradients.ravel(), ~view.knowledge.known_noise.ravel()]))
    return all(_Rows.of(view.algorithm, view.knowledge, prime).span(unknown) for prime in PRIMES)


def exact_range(
    view: AlgorithmView, victims: Sequence[int], stand_for: Mapping[float, Fraction] | None = None
) -> tuple[int, NDArray[np.bool_]] | None:
    """(rank of the exact B, for each column of the victims whether it lies outside the range of B); None: too large.

    Columns are those of `View.dense_gradients`: victim after victim, each in time order. stand_for: what the entries of
    maps and noise stand for (`meant_entries`); default the floats that they are.
    """
    if not _is_small(view):
        return None
    of_victims = np.concatenate([view.axis.of_node(int(u)) for u in victims])
    noise = view.axis.size + np.flatnonzero(~view.knowledge.known_noise.ravel())
    ranges = []
    for prime in PRIMES:
        rows = _Rows.of(view.algorithm, view.knowledge, prime, stand_for).all_of(view.release, stand_for)
        ranges.append(outside_range(rows[:, noise], rows[:, of_victims], prime))
    return max(r for r, _ in ranges), np.logical_or(*(outside for _, outside in ranges))


def _given_models_are_spanned(view: View, models: GivenModels) -> bool:
    """The same for matrices: the models of a step in the span of rows seen after the gradients of earlier steps."""
    T, n = view.axis.num_steps, view.axis.num_nodes
    if not view.entries_given or not _is_small(view):
        return False
    A, B = view.entries()
    seen = np.hstack([A[:, np.argsort(view.axis.node_major())], B])
    unknown = np.concatenate([~view.marked_gradients.ravel(), ~view.zero_noise])
    of_step = [models.row_steps == t for t in range(T)]
    return all(
        _Rows(
            [table(residues(seen[rows], prime)) for rows in of_step],
            [table(residues(models.rows[t * n : (t + 1) * n], prime)) for t in range(T)],
            np.zeros((0, 0), dtype=object),
            prime,
        ).span(np.flatnonzero(unknown))
        for prime in PRIMES
    )


def _is_small(view: View) -> bool:
    return max(view.noise.shape[0], view.axis.size) * (view.axis.size + view.noise.shape[1]) <= MAX_ENTRIES


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Residues over all columns, gradients and then base noise: rows seen of each round, models before it, at the end.

    `models` is None for rounds of pure gossip; `final` is what nodes release.
    """

    seen: list[Table]
    models: list[Table | None]
    final: Table
    prime: int

    @classmethod
    def of(
        cls,
        algorithm: LinearAlgorithm,
        knowledge: Knowledge,
        prime: int,
        stand_for: Mapping[float, Fraction] | None = None,
    ) -> _Rows:
        T, n, slots = algorithm.num_steps, algorithm.num_nodes, algorithm.noise.slots_per_step
        m = algorithm.noise.shape[1]
        noise = np.hstack([np.zeros((T * slots, T * n)), algorithm.noise.matmat(np.eye(m))]).reshape(T, slots, -1)
        gradients = np.eye(T * n, T * n + m).reshape(T, n, -1)
        kinds = [{name: _map(getattr(kind, name), prime, stand_for) for name in MAPS} for kind in algorithm.kinds]
        model = residues(algorithm.model_from_state.toarray(), prime, stand_for)

        @functools.cache
        def picked(counted: bytes) -> Any:
            kept = sp.diags_array(np.frombuffer(counted, dtype=bool).astype(np.float64))
            return _map(sp.csr_array(knowledge.combination @ kept), prime, stand_for)

        counted = combined(algorithm)
        state = flint.nmod_mat(algorithm.model_from_state.shape[1], T * n + m, prime)
        released = state
        weights = algorithm.released_after_rounds
        shares = table(residues(np.array([[*weights.values()]]), prime, stand_for))[0]
        share_of = dict(zip(weights, shares.tolist(), strict=True))
        seen: list[Table] = []
        models: list[Table | None] = []
        for r, (number, step) in enumerate(zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True)):
            kind = kinds[number]
            g, e = (residues(x[step], prime, stand_for) if step >= 0 else None for x in (gradients, noise))
            models.append(None if step < 0 else table(model * state))
            sent = flint.nmod_mat(algorithm.messages_per_round, T * n + m, prime)
            sent = _plus(sent, (kind["message_from_state"], state), (kind["message_from_gradient"], g))
            sent = _plus(sent, (kind["message_from_noise"], e))
            if knowledge.combination is None:
                seen.append(table(sent)[knowledge.seen[r]])
            else:
                seen.append(table(picked(counted[r].tobytes()) * sent)[: None if algorithm.sent[r].any() else 0])
            after = flint.nmod_mat(state.nrows(), state.ncols(), prime)
            after = _plus(after, (kind["state_from_message"], sent), (kind["state_from_state"], state))
            state = _plus(after, (kind["state_from_gradient"], g), (kind["state_from_noise"], e))
            if (share := share_of.get(r + 1)) is not None:
                released = released + state * share
        return cls(seen, models, table(model * released), prime)

    def span(self, columns: NDArray[np.intp]) -> bool:
        """Whether the models before each round are combinations of rows seen in earlier ones, over some columns.

        With all rows in the order of time, as columns of one matrix, a model is one exactly if it is no pivot.
        """
        rows, is_model = [np.zeros((0, len(columns)), dtype=object)], [np.zeros(0, dtype=bool)]
        for models, seen in zip(self.models, self.seen, strict=True):
            for part, of_models in ((models, True), (seen, False)):
                if part is not None:
                    rows.append(part[:, columns])
                    is_model.append(np.full(len(part), of_models))
        in_time, wanted = np.vstack(rows).T, np.concatenate(is_model)
        return not wanted[pivots(in_time, self.prime)].any()

    def all_of(self, release: str, stand_for: Mapping[float, Fraction] | None = None) -> Table:
        """Rows seen in all rounds, and of the released models."""
        rows = [*self.seen]
        if release == "all":
            rows.append(self.final)
        if release == "average":
            n = len(self.final)
            exact = pow(n, -1, self.prime)  # of the average itself, or of the float that its weight is
            share = exact if stand_for is not None else table(residues(np.full((1, 1), 1.0 / n), self.prime))[0, 0]
            rows.append(self.final.sum(axis=0, keepdims=True) * share % self.prime)
        return np.vstack(rows)


def _plus(total: flint.nmod_mat, *products: tuple[flint.nmod_mat | None, flint.nmod_mat | None]) -> flint.nmod_mat:
    for matrix, x in products:
        if matrix is not None and x is not None:
            total = total + matrix * x
    return total


def _map(matrix: Map, prime: int, stand_for: Mapping[float, Fraction] | None) -> flint.nmod_mat | None:
    return None if matrix is None else residues(matrix.toarray(), prime, stand_for)


def meant_entries(view: AlgorithmView) -> dict[float, Fraction] | None:
    """What all entries of maps, noise and seen combinations stand for; None where one stands for no fraction."""
    algorithm, masks = view.algorithm, view.knowledge
    maps = [algorithm.model_from_state, *(m for kind in algorithm.kinds for m in kind.maps())]
    noise = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))
    combined = [] if masks.combination is None else [masks.combination.data]
    shares = np.array([*algorithm.released_after_rounds.values()])
    return meant(np.array([0.0, 1.0]), noise, shares, *(m.data for m in maps), *combined)

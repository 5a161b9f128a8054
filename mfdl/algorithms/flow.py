"""What follows exactly from what is seen: which states, messages and injections somebody can compute.

In: an algorithm and three masks, what of it is seen and known. Out: verdicts that hold whatever the numbers are.
Only where maps have entries counts, so there is no threshold: a quantity is known if it is a sum of known ones, start
models being public, and an injected sum g + e is known where a seen message holds it beside known quantities alone.
Where a value could cancel by chance nothing is claimed; row spaces, which see that, are in `privacy.adaptivity`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import matrices
from .round import MAPS

if TYPE_CHECKING:
    from .linear_algorithm import LinearAlgorithm

Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """What is known to somebody, from the start to the end.

    Attributes:
        models: every model at which a gradient is taken is known before that.
        final_models: those after the last round are known too.
        injections: every injected sum, of every node and step, is known; never so unless noise enters exactly where
            gradients do (`LinearAlgorithm.noise_enters_with_gradients`).
        hidden_states, hidden_messages: bool (state,) and (messages,), not known in some round.
    """

    models: bool
    final_models: bool
    injections: bool
    hidden_states: Mask
    hidden_messages: Mask


def flow(algorithm: LinearAlgorithm, seen: Mask, known_gradients: Mask, known_noise: Mask) -> Flow:
    """Follows what is known from round to round.

    Args: seen: bool (rounds, messages); known_gradients: (T, n); known_noise: (T, parts per step).
    Cost: a few products with the patterns of the maps per distinct round, once that what is known stays the same.
    """
    patterns, of_kind = _patterns(algorithm)
    model = _ones(algorithm.model_from_state)
    unknown_parts = np.logical_not(known_noise.all(axis=0))
    slots = ~_touched(_ones(algorithm.noise.pattern()), unknown_parts)
    state = np.ones(algorithm.model_from_state.shape[1], dtype=bool)
    never, models, injections = np.zeros(algorithm.num_nodes, dtype=bool), True, True
    hidden_states, hidden_messages = ~state, np.zeros(algorithm.messages_per_round, dtype=bool)
    done: dict[tuple[int, bool, bytes, bytes, bytes], Mask] = {}
    for r, (kind, step) in enumerate(zip(of_kind[algorithm.kind_of_round], algorithm.step_of_round, strict=True)):
        gradients = known_gradients[step] if step >= 0 else never
        key = int(kind), step >= 0, state.tobytes(), seen[r].tobytes(), gradients.tobytes()
        if key not in done:
            after = patterns[kind].after(state, seen[r], gradients, slots)
            done[key] = after.state
            hidden_states, hidden_messages = hidden_states | ~after.state, hidden_messages | ~after.messages
            models &= step < 0 or not _touched(model, ~state).any()
            injections &= step < 0 or bool(after.injections.all())
        state = done[key]
    final = not _touched(model, ~state).any()
    injections &= algorithm.noise_enters_with_gradients
    return Flow(models, final, injections, hidden_states, hidden_messages)


def separates_private_noise(algorithm: LinearAlgorithm) -> bool:
    """Whether, with all that is sent seen, a node's private noise says nothing of any other node.

    Then what hides a node is the same for one who knows all other noise, and one view serves every victim. Private is
    what one node alone holds. With known quantities taken off, rows of a view are linked where they share a hidden
    state, a message, a gradient or a part of the noise; rows of two links are two views. So it is enough that no
    link holds the gradients or the private noise of two nodes. Models may be released: each is a row. (Their average
    would be one row of all nodes.)
    """
    n, T = algorithm.num_nodes, algorithm.num_steps
    holders = algorithm.holders
    private = np.asarray(holders.sum(axis=1)).ravel() == 1
    known = flow(algorithm, algorithm.sent, np.zeros((T, n), dtype=bool), np.broadcast_to(~private, (T, private.size)))
    S, state = known.hidden_messages.size, known.hidden_states.size
    offsets = np.cumsum([0, S, state, n, private.size])
    hides = known.hidden_states.astype(float)
    edges = []
    use, hidden_only = _ones(algorithm.noise.pattern()), sp.diags_array(hides)
    for pattern in _patterns(algorithm)[0]:
        links: list[tuple[int, int, Any]] = [
            (0, 1, _times(pattern.P, hidden_only)),
            (0, 2, pattern.Q),
            (0, 3, _times(pattern.R, use)),
            (1, 1, _times(pattern.F, hidden_only)),
            (1, 2, pattern.J),
            (1, 3, _times(pattern.L, use)),
            (1, 0, _times(pattern.K, sp.diags_array(known.hidden_messages.astype(float)))),
        ]
        for a, b, matrix in links:
            if matrix is not None:
                i, j = sp.coo_array(matrix).coords
                kept = (known.hidden_states[i] if a == 1 else np.ones(i.size, dtype=bool)) & (
                    private[j] if b == 3 else np.ones(j.size, dtype=bool)
                )
                edges.append(np.stack([i[kept] + offsets[a], j[kept] + offsets[b]]))
    models = sp.coo_array(algorithm.model_from_state)
    kept = known.hidden_states[models.coords[1]]
    edges.append(np.stack([models.coords[0][kept] + offsets[-1], models.coords[1][kept] + offsets[1]]))
    pairs = np.hstack(edges) if edges else np.zeros((2, 0), dtype=np.intp)
    graph = sp.csr_array((np.ones(pairs.shape[1], dtype=bool), (pairs[0], pairs[1])), shape=(offsets[-1] + n,) * 2)
    _, link = sp.csgraph.connected_components(graph, directed=False)
    owner = np.concatenate([np.arange(n), np.asarray(holders.argmax(axis=1)).ravel()[private]])
    of = link[np.concatenate([offsets[2] + np.arange(n), offsets[3] + np.flatnonzero(private)])]
    return len(np.unique(of)) == len(np.unique(np.stack([of, owner]), axis=1).T)


@dataclasses.dataclass(frozen=True, eq=False)
class _After:
    """What is known of one round's messages and injected sums, and of the state after it."""

    messages: Mask
    injections: Mask
    state: Mask


class _Patterns:
    """Where the maps of one round have entries, and what follows from what is known before it."""

    def __init__(self, maps: tuple[sp.csr_array | None, ...], together: bool) -> None:
        self.P, self.Q, self.R, self.K, self.F, self.J, self.L = maps
        self.together = together

    def after(self, state: Mask, seen: Mask, gradients: Mask, slots: Mask) -> _After:
        unread = _touched(self.P, ~state, seen.size)
        if self.together:
            sums = self._sums(seen & ~unread, gradients & slots)
            sent, kept = _touched(self.Q, ~sums, seen.size), _touched(self.J, ~sums, state.size)
        else:
            sums = np.zeros(gradients.size, dtype=bool)
            sent = _touched(self.Q, ~gradients, seen.size) | _touched(self.R, ~slots, seen.size)
            kept = _touched(self.J, ~gradients, state.size) | _touched(self.L, ~slots, state.size)
        messages = seen | ~(unread | sent)
        after = _touched(self.K, ~messages, state.size) | _touched(self.F, ~state, state.size) | kept
        return _After(messages, sums, ~after)

    def _sums(self, readable: Mask, known: Mask) -> Mask:
        """Injected sums that rows of Q show: those which stand in a readable row beside known ones alone."""
        if self.Q is None:
            return known
        rows = self.Q[np.flatnonzero(readable)]
        while True:
            alone = rows[np.flatnonzero(rows @ (~known).astype(float) == 1)]
            more = known | _touched(sp.csr_array(alone.T), np.ones(alone.shape[0], dtype=bool))
            if (more == known).all():
                return known
            known = more


def _patterns(algorithm: LinearAlgorithm) -> tuple[list[_Patterns], NDArray[np.intp]]:
    """(the distinct patterns, which of them each kind of round has): rates that change leave the pattern alone."""
    of_content: dict[bytes, sp.csr_array | None] = {}

    def pattern(matrix: sp.csr_array | None) -> sp.csr_array | None:
        if matrix is None:
            return None
        content = repr(matrix.shape).encode() + matrix.indptr.tobytes() + matrix.indices.tobytes()
        return of_content.setdefault(content, _ones(matrix))

    of_map, number = matrices.once(pattern), matrices.numbered()
    patterns: dict[tuple[int, ...], _Patterns] = {}
    of_kind = []
    for kind in algorithm.kinds:
        maps = tuple(of_map(getattr(kind, name)) for name in MAPS)
        key = tuple(map(number, maps))
        patterns.setdefault(key, _Patterns(maps, algorithm.noise_enters_with_gradients))
        of_kind.append([*patterns].index(key))
    return [*patterns.values()], np.array(of_kind, dtype=np.intp)


def _ones(matrix: Any) -> sp.csr_array | None:
    """1.0 where a map has an entry."""
    return None if matrix is None else sp.csr_array(matrix != 0, dtype=np.float64)


def _times(matrix: Any, other: Any) -> Any:
    return None if matrix is None else sp.csr_array(matrix @ other)


def _touched(matrix: sp.csr_array | None, columns: Mask, rows: int = 0) -> Mask:
    """The rows of a pattern with an entry in one of the columns; none of `rows` rows for the zero map."""
    if matrix is None:
        return np.zeros(rows, dtype=bool)
    return np.asarray(matrix @ columns.astype(np.float64)) > 0

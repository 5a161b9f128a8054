"""What follows exactly from what is seen: which states, messages and injections somebody can compute.

In: an algorithm and three masks, what of it is seen and known. Out: verdicts that hold whatever the numbers are.
Only where maps have entries counts, so there is no threshold: a quantity is known if it is a sum of known ones, start
models being public, and an injected sum g + e is known where a seen message holds it beside known quantities alone.
Where a value could cancel by chance nothing is claimed; row spaces, which see that, are in `privacy.adaptivity`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import matrices
from .round import MAPS, SHAPES

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
    slots = ~_touched(_ones(algorithm.noise.pattern()), np.logical_not(known_noise.all(axis=0)))
    state = np.ones(algorithm.model_from_state.shape[1], dtype=bool)
    never, models, injections = np.zeros(algorithm.num_nodes, dtype=bool), True, True
    hidden_states, hidden_messages = ~state, np.zeros(algorithm.messages_per_round, dtype=bool)
    done: dict[tuple[int, bool, bytes, bytes, bytes], Mask] = {}
    for r, (kind, step) in enumerate(zip(of_kind[algorithm.kind_of_round], algorithm.step_of_round, strict=True)):
        gradients = known_gradients[step] if step >= 0 else never
        key = int(kind), step >= 0, state.tobytes(), seen[r].tobytes(), gradients.tobytes()
        if key not in done:
            messages, sums, done[key] = patterns[kind].after(state, seen[r], gradients, slots)
            hidden_states, hidden_messages = hidden_states | ~done[key], hidden_messages | ~messages
            models &= step < 0 or not _touched(model, ~state).any()
            injections &= step < 0 or bool(sums.all())
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
    hidden = (known.hidden_messages, known.hidden_states, private)
    message, state, part = (sp.diags_array(mask.astype(np.float64)) for mask in hidden)
    use, models = _ones(algorithm.noise.pattern()) @ part, _ones(algorithm.model_from_state) @ state
    sizes = [hidden[0].size, hidden[1].size, n, private.size, n]  # messages, state, gradients, parts, models
    end = [sp.csr_array((size, size)) for size in sizes]
    links = sum(
        sp.block_array(
            [
                [end[0], p.P @ state, p.Q, p.R @ use, None],
                [state @ p.K @ message, state @ p.F @ state, state @ p.J, state @ p.L @ use, None],
                [None, None, end[2], None, None],
                [None, None, None, end[3], None],
                [None, models, None, None, end[4]],
            ]
        )
        for p in _patterns(algorithm)[0]
    )
    _, link = sp.csgraph.connected_components(sp.csr_array(links != 0), directed=False)
    first = np.cumsum([0, *sizes])
    owner = np.concatenate([np.arange(n), np.asarray(holders.argmax(axis=1)).ravel()[private]])  # exact: integers
    of = link[np.concatenate([first[2] + np.arange(n), first[3] + np.flatnonzero(private)])]
    return len(np.unique(of)) == len(np.unique(np.stack([of, owner]), axis=1).T)


class _Patterns:
    """Where the maps of one round have entries, and what follows from what is known before it."""

    def __init__(self, maps: Sequence[sp.csr_array], together: bool) -> None:
        self.P, self.Q, self.R, self.K, self.F, self.J, self.L = maps
        self.together = together

    def after(self, state: Mask, seen: Mask, gradients: Mask, slots: Mask) -> tuple[Mask, Mask, Mask]:
        """What is known of the round's messages and injected sums, and of the state after it."""
        unread, sums = _touched(self.P, ~state), np.zeros(gradients.size, dtype=bool)
        if self.together:
            gradients = slots = sums = self._sums(seen & ~unread, gradients & slots)
        messages = seen | ~(unread | _touched(self.Q, ~gradients) | _touched(self.R, ~slots))
        carried = _touched(self.K, ~messages) | _touched(self.F, ~state)
        return messages, sums, ~(carried | _touched(self.J, ~gradients) | _touched(self.L, ~slots))

    def _sums(self, readable: Mask, known: Mask) -> Mask:
        """Injected sums that rows of Q show: those which stand in a readable row beside known ones alone."""
        rows = self.Q[np.flatnonzero(readable)]
        while True:
            alone = rows[np.flatnonzero(rows @ (~known).astype(float) == 1)]
            more = known | _touched(alone.T, np.ones(alone.shape[0], dtype=bool))
            if (more == known).all():
                return known
            known = more


def _patterns(algorithm: LinearAlgorithm) -> tuple[list[_Patterns], NDArray[np.intp]]:
    """(the distinct patterns, which of them each kind of round has): rates that change leave the pattern alone."""
    sizes = algorithm.sizes
    zero = {name: sp.csr_array((sizes[rows], sizes[columns])) for name, (rows, columns) in SHAPES.items()}
    of_map, number = matrices.once_for_places(_ones), matrices.numbered()
    patterns: dict[tuple[int, ...], _Patterns] = {}
    of_kind = []
    for kind in algorithm.kinds:
        given = ((getattr(kind, name), zero[name]) for name in MAPS)
        maps = [of_map(none if matrix is None else matrix) for matrix, none in given]
        key = tuple(map(number, maps))
        if key not in patterns:
            patterns[key] = _Patterns(maps, algorithm.noise_enters_with_gradients)
        of_kind.append([*patterns].index(key))
    return [*patterns.values()], np.array(of_kind, dtype=np.intp)


def _ones(matrix: Any) -> sp.csr_array:
    """1.0 where a map has an entry."""
    return sp.csr_array(matrix != 0, dtype=np.float64)


def _touched(pattern: sp.csr_array, columns: Mask) -> Mask:
    """The rows of a pattern with an entry in one of the columns."""
    return np.asarray(pattern @ columns.astype(np.float64)) > 0

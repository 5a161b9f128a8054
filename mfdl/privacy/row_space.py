"""The row-space test: is every model at which a gradient is taken a combination of what was seen before?

Ranks are exact (`exact_rank`), and the recursion of the algorithm is run modulo the same primes. The test says yes only
if it does for both of them; a wrong no is safe.
"""

from __future__ import annotations

from collections.abc import Iterator

import flint
import numpy as np

from ..algorithms import LinearAlgorithm
from ..algorithms.round import MAPS
from ..operators.recursion import Map
from ..view import View
from .exact_rank import MAX_ENTRIES, PRIMES, rank, residues, table


def spans_models(view: View) -> bool:
    """Whether the rows of every model, over G and Z without the known columns, lie in the span of earlier rows seen.

    A model whose gradient is known is asked about too: the gradient shows as much of it as it depends on. False also
    for a bare view and for one of more than MAX_ENTRIES.
    """
    algorithm, knowledge = view.algorithm, view.knowledge
    if algorithm is None or knowledge is None:
        return False
    columns = view.axis.size + view.noise.shape[1]
    if max(view.noise.shape[0], view.axis.size) * columns > MAX_ENTRIES:
        return False
    return all(_spans(view, algorithm, prime) for prime in PRIMES)


def _spans(view: View, algorithm: LinearAlgorithm, prime: int) -> bool:
    earlier = np.zeros((0, 0), dtype=object)
    for models, seen in _rows(view, algorithm, prime):
        if models is not None and models.any():
            wanted = models[models.any(axis=1)]
            if earlier.shape[0] == 0 or rank(np.vstack([earlier, wanted]), prime) > rank(earlier, prime):
                return False
        earlier = seen if earlier.shape[0] == 0 else np.vstack([earlier, seen])
    return True


def _rows(view: View, algorithm: LinearAlgorithm, prime: int) -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
    """For each round (models before it, None in pure gossip; rows seen of it), residues over the unknown columns."""
    knowledge = view.knowledge
    assert knowledge is not None
    T, n = algorithm.num_steps, algorithm.num_nodes
    free, hidden = ~knowledge.known_gradients.ravel(), ~knowledge.known_noise.ravel()
    N = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))[:, hidden].reshape(
        T, algorithm.noise.slots_per_step, -1 if hidden.any() else 0
    )
    gradients = np.eye(T * n)[:, free].reshape(T, n, -1 if free.any() else 0)
    width = gradients.shape[2] + N.shape[2]
    kinds = [{name: _map(getattr(kind, name), prime) for name in MAPS} for kind in algorithm.kinds]
    model = _map(algorithm.model_from_state, prime)
    picked = None if knowledge.combination is None else _map(knowledge.combination, prime)
    state = _zeros(algorithm.model_from_state.shape[1], width, prime)
    assert model is not None
    for r, (number, step) in enumerate(zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True)):
        kind = kinds[number]
        g = e = None
        if step >= 0:
            g = residues(np.hstack([gradients[step], np.zeros((n, N.shape[2]))]), prime)
            e = residues(np.hstack([np.zeros((N.shape[1], gradients.shape[2])), N[step]]), prime)
        inputs = ((kind["message_from_gradient"], g), (kind["message_from_noise"], e))
        m = _sum(algorithm.messages_per_round, width, prime, (kind["message_from_state"], state), *inputs)
        rows = table(m)[knowledge.seen[r]] if picked is None else table(picked * m)
        yield (None if step < 0 else table(model * state)), rows
        state = _sum(
            state.nrows(),
            width,
            prime,
            (kind["state_from_message"], m),
            (kind["state_from_state"], state),
            (kind["state_from_gradient"], g),
            (kind["state_from_noise"], e),
        )


def _sum(
    rows: int, columns: int, prime: int, *products: tuple[flint.nmod_mat | None, flint.nmod_mat | None]
) -> flint.nmod_mat:
    total = _zeros(rows, columns, prime)
    for matrix, x in products:
        if matrix is not None and x is not None:
            total += matrix * x
    return total


def _map(matrix: Map, prime: int) -> flint.nmod_mat | None:
    return None if matrix is None else residues(matrix.toarray(), prime)


def _zeros(rows: int, columns: int, prime: int) -> flint.nmod_mat:
    return flint.nmod_mat(rows, columns, prime)

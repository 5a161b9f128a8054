"""The row-space test: is every model at which a gradient is taken a combination of what was seen before?

Ranks are exact: the maps are the binary fractions that their floats are, and everything is computed modulo two primes
of 63 bits, drawn at random when this file was written. A rank modulo a prime is never above the true one, and below it
only if the prime divides every minor of that size. So the test can say yes where the truth is no only if both primes
divide the same minor; a minor here has below 10^6 bits, so fewer than 2^15 of the 2^57 primes of that size divide it,
and the chance is below 10^-24. A wrong no is safe.
"""

from __future__ import annotations

from collections.abc import Iterator

import flint
import numpy as np

from ..algorithms import LinearAlgorithm
from ..algorithms.round import MAPS
from ..check import FloatArray
from ..operators.recursion import Map
from ..view import View

PRIMES = (5_312_186_569_479_497_857, 8_731_438_793_126_205_647)
MAX_ENTRIES = 500_000  # of [A B], and of the models over G and Z: under a second per prime


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
            if earlier.shape[0] == 0 or _rank(np.vstack([earlier, wanted]), prime) > _rank(earlier, prime):
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
            g = _residues(np.hstack([gradients[step], np.zeros((n, N.shape[2]))]), prime)
            e = _residues(np.hstack([np.zeros((N.shape[1], gradients.shape[2])), N[step]]), prime)
        inputs = ((kind["message_from_gradient"], g), (kind["message_from_noise"], e))
        m = _sum(algorithm.messages_per_round, width, prime, (kind["message_from_state"], state), *inputs)
        rows = _table(m)[knowledge.seen[r]] if picked is None else _table(picked * m)
        yield (None if step < 0 else _table(model * state)), rows
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
    return None if matrix is None else _residues(matrix.toarray(), prime)


def _residues(matrix: FloatArray, prime: int) -> flint.nmod_mat:
    """The binary fractions of an array, modulo an odd prime."""
    mantissa, exponent = np.frexp(matrix)
    half = pow(2, -1, prime)
    powers = {int(e): pow(2, int(e), prime) if e >= 0 else pow(half, -int(e), prime) for e in np.unique(exponent - 53)}
    whole = np.ldexp(mantissa, 53).astype(np.int64).ravel().tolist()
    entries = [m * powers[e] % prime if m else 0 for m, e in zip(whole, (exponent - 53).ravel().tolist(), strict=True)]
    return flint.nmod_mat(matrix.shape[0], matrix.shape[1], entries, prime)


def _zeros(rows: int, columns: int, prime: int) -> flint.nmod_mat:
    return flint.nmod_mat(rows, columns, prime)


def _table(matrix: flint.nmod_mat) -> np.ndarray:
    """The residues, shape (rows, columns), as Python integers."""
    return np.array([int(x) for x in matrix.entries()], dtype=object).reshape(matrix.nrows(), matrix.ncols())


def _rank(table: np.ndarray, prime: int) -> int:
    return int(flint.nmod_mat(table.shape[0], table.shape[1], table.ravel().tolist(), prime).rank())

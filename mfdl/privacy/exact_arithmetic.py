"""Ranks, row spaces and Gram matrices of views without rounding, or in intervals of as many bits as they take.

Ranks: floats are the binary fractions that they are, computed modulo two primes.
The primes have 63 bits and were drawn at random when this file was written. A rank modulo a prime is never above the
true one, and below it only if the prime divides every minor of that size. A minor here has below 10^8 bits, so fewer
than 2^21 of the 2^57 primes of that size divide it: the larger of two ranks is wrong with a chance below 10^-21, and
then too small.

Weights such as 1 / 3 are no floats. What was meant by them has ranks of its own, which `meant` gives back: a float next
to a fraction of a small denominator stands for the fraction.

Row spaces: do earlier rows span the models, and is a gradient seen without noise? The recursion of the algorithm is run
modulo the same primes, so no tolerance decides anything; maps count as the floats that they are, or as the fractions
that these stand for.

Gram matrices: X of noise whose encoder float64 cannot tell from a singular one, N^-T N^-1.
Forward substitution loses all digits where |C| |N| is near 1 / UNIT, while the loss itself can be small: an encoder
whose first diagonal entry is tiny makes large noise in that step. N is triangular with a diagonal that is not 0, so its
inverse exists, and intervals of enough bits hold it as closely as float64 can say.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..algorithms import LinearAlgorithm
from ..algorithms.round import MAPS
from ..check import FloatArray
from ..entries import fraction_of
from ..floats import UNIT
from ..operators.structured import Map
from ..trust.knowledge import Knowledge, combined
from ..trust.view import AlgorithmView, View
from ..trust.view_matrices import GivenModels

PRIMES = (5_312_186_569_479_497_857, 8_731_438_793_126_205_647)
MAX_DENOMINATOR = 4096  # of a fraction that a float stands for; fractions up to it are 2^-24 apart
MAX_VALUES = 10_000  # different numbers that are looked at
MAX_ENTRIES = 500_000  # of a matrix: under a second per prime
Table = NDArray[np.int64]  # residues, which have 63 bits
FEW = 32  # random combinations by which a model is told from rows seen before it
MAX_SIZE = 64  # rows of N: at most about a second
PRECISIONS = (256, 1024, 4096)  # bits
CLOSE = 2.0**-44  # errors, relative to the diagonal of X, up to which no more bits are tried
LEAST = 2.0**-1074


def range_of(
    B: NDArray[Any], A: NDArray[Any], stand_for: Mapping[float, Fraction] | None = None
) -> tuple[int, NDArray[np.bool_]]:
    """(rank of B, for each column of A whether it lies outside the range of B), of the floats or what they stand for.

    >>> third = np.array([[1 / 3, 0.1], [1.0, 0.3]])  # neither float is the fraction that it stands for
    >>> range_of(third[:, :1], third)
    (1, array([False,  True]))
    """
    ranges = [outside_range(residues(B, p, stand_for), residues(A, p, stand_for), p) for p in PRIMES]
    return max(rank for rank, _ in ranges), np.logical_or(ranges[0][1], ranges[1][1])


def ranks_agree(A: FloatArray, B: FloatArray, rank: int, leaks: NDArray[np.bool_]) -> bool:
    """Whether float64 found the rank of B, and which columns of A lie outside its range, as exact arithmetic does.

    On the floats, or on what they stand for. True also where the arrays are too large to ask.
    """
    if A.size + B.size > MAX_ENTRIES:
        return True
    fractions = meant(A, B)
    for stand_for in (None, fractions) if fractions is not None else (None,):
        exact, outside = range_of(B, A, stand_for)
        if exact == rank and (outside == leaks).all():
            return True
    return False


def independent_rows(B: NDArray[Any], stand_for: Mapping[float, Fraction] | None = None) -> NDArray[np.intp]:
    """The rows of B that are no combination of rows above them, in their order; entries as in `range_of`.

    >>> independent_rows(np.array([[0.0, 0.0], [0.5, 1.0], [1.5, 3.0], [0.5, 0.0]])).tolist()
    [1, 3]
    >>> independent_rows(np.array([[0.1, 1.0], [0.3, 3.0]])).tolist()  # of floats: 3 * 0.1 > 0.3
    [0, 1]
    """
    by_prime = [pivots(residues(B.T, prime, stand_for), prime).tolist() for prime in PRIMES]
    # a prime that divides a minor makes a row look dependent: fewer rows, or later ones
    return np.array(min(by_prime, key=lambda rows: (-len(rows), rows)), dtype=np.intp)  # exact: indices


def pivots(columns: Table, prime: int) -> NDArray[np.intp]:
    """The columns of a table of residues that are no combination of those before them."""
    if not columns.size:
        return np.zeros(0, dtype=np.intp)
    reduced, _ = _matrix(columns, prime).rref()
    entries = table(reduced) != 0
    return np.asarray(entries[entries.any(axis=1)].argmax(axis=1), dtype=np.intp)  # exact: flags


def outside_range(B: Table, A: Table, prime: int) -> tuple[int, NDArray[np.bool_]]:
    """`range_of` for tables of residues."""
    if not len(B):
        return 0, np.zeros(A.shape[1], dtype=bool)
    reduced, _ = _matrix(np.hstack([B, A]), prime).rref()
    entries = table(reduced) != 0
    rank = int(np.count_nonzero(entries[:, : B.shape[1]].any(axis=1)))
    return rank, np.asarray(entries[rank:, B.shape[1] :].any(axis=0))


def meant(*arrays: FloatArray) -> dict[float, Fraction] | None:
    """What floats stand for: themselves if they are of few bits, else p / q times a power of two, q <= MAX_DENOMINATOR.

    None where one is next to no such fraction, or there are too many.

    >>> meant(np.array([1 / 3, 1 - 0.9])) == {1 / 3: Fraction(1, 3), 1 - 0.9: Fraction(1, 10)}
    True
    >>> meant(np.array([2**0.5])) is None
    True
    """
    values = np.unique(np.concatenate([np.ravel(array) for array in arrays]))
    if values.size > MAX_VALUES:
        return None
    fractions: dict[float, Fraction] = {}
    for x in values.tolist():
        if (fraction := fraction_of(x, MAX_DENOMINATOR)) is None:
            return None
        fractions[x] = fraction
    return fractions


def residues(matrix: NDArray[Any], prime: int, stand_for: Mapping[float, Fraction] | None = None) -> Table:
    """The binary fractions of an array, or the fractions that they stand for, modulo an odd prime.

    Also an array of Fractions themselves, as objects. Equal entries, of which there are many, are looked at once.
    """
    if matrix.dtype == object:
        fractions = [_residue(f, prime) for f in matrix.ravel().tolist()]
        return np.array(fractions, dtype=np.int64).reshape(matrix.shape)
    places = np.nonzero(matrix)
    values, numbers = np.unique(matrix[places], return_inverse=True)
    if stand_for is not None:
        by_value = [_residue(stand_for[x], prime) for x in values.tolist()]
    else:
        mantissas, exponents = np.frexp(values)
        powers = {e: pow(2, e - 53, prime) for e in set(exponents.tolist())}
        whole = np.ldexp(mantissas, 53).astype(np.int64).tolist()
        by_value = [m * powers[e] % prime for m, e in zip(whole, exponents.tolist(), strict=True)]
    out = np.zeros(matrix.shape, dtype=np.int64)
    out[places] = np.array(by_value, dtype=np.int64)[numbers]
    return out


def _residue(fraction: Fraction, prime: int) -> int:
    return fraction.numerator * pow(fraction.denominator, -1, prime) % prime


def table(matrix: flint.nmod_mat) -> Table:
    """The residues, shape (rows, columns)."""
    return np.array(list(map(int, matrix.entries())), dtype=np.int64).reshape(matrix.nrows(), matrix.ncols())


def _matrix(residues: Table, prime: int) -> flint.nmod_mat:
    return flint.nmod_mat(*residues.shape, residues.ravel().tolist(), prime)


def spans_models(view: View) -> bool:
    """Whether the rows of every model, over G and Z without the known columns, lie in the span of earlier rows seen.

    A model whose gradient is known is asked about too: the gradient shows as much of it as it depends on. A bare view
    has the models and the times of rows that it was given with. False also where it has none, and for a view that is
    too large. Mostly a model of the second step is outside, as few random combinations of the columns show.
    """
    if not isinstance(view, AlgorithmView):
        return view.models is not None and _given_models_are_spanned(view, view.models)
    if not is_small(view):
        return False
    algorithm, masks = view.algorithm, view.knowledge
    few = _Rows.of(algorithm, masks, PRIMES[0], width=FEW, by_node=True)
    if not few.of_two_steps().span(view.known_gradients.any(axis=0)):
        return False
    return all(_Rows.of(algorithm, masks, prime).span(view.known_gradients.ravel()) for prime in PRIMES)


def confirmed(
    view: AlgorithmView, victims: Sequence[int], rank: int, stand_for: Mapping[float, Fraction] | None = None
) -> bool:
    """Whether the exact B has this rank, and no gradient of the victims shows without noise.

    By what `exact_range` computes with all gradients, here with one random combination of those of each node: it misses
    a leak with a chance below 2^-62. Arguments as there; False also for a view that is too large.
    """
    if not is_small(view):
        return False
    width = _width(view, rank)
    rows = (_Rows.of(view.algorithm, view.knowledge, p, stand_for, width, by_node=True) for p in PRIMES)
    return all(part.confirm(rank, victims, view.release, stand_for) for part in rows)


def _width(view: AlgorithmView, rank: int) -> int:
    """Combinations of noise that tell a rank from larger ones, with known noise beside."""
    _, used = _injected(view.algorithm)
    return rank + int(np.count_nonzero(view.knowledge.known_noise.ravel()[used])) + 1


def exact_range(
    view: AlgorithmView, victims: Sequence[int], stand_for: Mapping[float, Fraction] | None = None
) -> tuple[int, NDArray[np.bool_]] | None:
    """(rank of the exact B, for each column of the victims whether it lies outside the range of B); None: too large.

    Columns are those of `View.dense_gradients`: victim after victim, each in time order. stand_for: what the entries of
    maps and noise stand for (`meant_entries`); default the floats that they are.
    """
    if not is_small(view):
        return None
    of_victims = np.concatenate([view.axis.of_node(int(u)) for u in victims])
    width = _width(view, view.num_rows)
    rows = (_Rows.of(view.algorithm, view.knowledge, prime, stand_for, width) for prime in PRIMES)
    ranges = [part.range_of(of_victims, view.release, stand_for) for part in rows]
    return max(rank for rank, _ in ranges), np.logical_or(*(outside for _, outside in ranges))


def _given_models_are_spanned(view: View, models: GivenModels) -> bool:
    """The same for matrices: the models of a step in the span of rows seen after the gradients of earlier steps."""
    T, n = view.axis.num_steps, view.axis.num_nodes
    if not view.entries_given or not is_small(view):
        return False
    A, B = view.entries()
    seen = np.hstack([A[:, np.argsort(view.axis.node_major())], B])  # exact: a permutation
    unknown = np.concatenate([~view.marked_gradients.ravel(), ~view.zero_noise])
    no_noise = np.zeros((0, 0), dtype=np.int64)
    of_step = [models.row_steps == t for t in range(T)]
    return all(
        _Rows(
            [residues(seen[rows], prime) for rows in of_step],
            [_matrix(residues(models.rows[t * n : (t + 1) * n], prime), prime) for t in range(T)],
            np.zeros((0, unknown.size), dtype=np.int64),
            prime,
            no_noise,
            np.zeros(0, dtype=np.intp),
        ).span(~unknown)
        for prime in PRIMES
    )


def is_small(view: View) -> bool:
    return max(view.noise.shape[0], view.axis.size) * (view.axis.size + view.noise.shape[1]) <= MAX_ENTRIES


@dataclasses.dataclass(frozen=True, eq=False)
class _Messages:
    """Residues of messages of each round, models before it, and at the end, over some columns of gradients and noise.

    `models` is None for rounds of pure gossip; `final` is what nodes release.

    The columns are all base noise, or `width` random combinations of it, which keep ranks below that number but for a
    chance below rank / prime; and then all gradients, or one random combination of those of each node.
    Attributes: base: of each column of base noise that is used at all, its share in the combinations; used: which are.
    """

    sent: list[flint.nmod_mat]
    models: list[flint.nmod_mat | None]
    final: Table
    base: Table
    used: NDArray[np.intp]
    prime: int
    tables: dict[int, tuple[Table, NDArray[np.bool_]]] = dataclasses.field(default_factory=dict)

    def of_round(self, r: int, mask: NDArray[np.bool_]) -> Table:
        """Some messages of a round; rows of `tables` are those that were asked for before."""
        sent = self.sent[r]
        empty = np.zeros((sent.nrows(), sent.ncols()), dtype=np.int64), np.zeros(sent.nrows(), dtype=bool)
        residues, there = self.tables.setdefault(r, empty)
        if (missing := np.flatnonzero(mask & ~there)).size:
            rows = np.eye(sent.nrows(), dtype=np.int64)[missing]
            residues[missing] = table(_matrix(rows, self.prime) * sent)
            there[missing] = True
        return residues[mask]

    @classmethod
    def of(
        cls,
        algorithm: LinearAlgorithm,
        prime: int,
        stand_for: Mapping[float, Fraction] | None,
        width: int = 0,
        *,
        by_node: bool = False,
    ) -> _Messages:
        """Those of an algorithm, which are the same for every attacker: kept as long as a small algorithm lives.

        Args: width: the least one, 0 for all noise; by_node: combinations of gradients.
        """
        key = prime, by_node, None if stand_for is None else frozenset(stand_for.items())
        kept_of = _MESSAGES.setdefault(algorithm, {}).setdefault(key, {})
        of_width = next((w for w in sorted(kept_of) if w >= width > 0), 1 << width.bit_length() if width else 0)
        if of_width not in kept_of:
            messages = cls._computed(algorithm, prime, stand_for, of_width, by_node)
            if len(messages.sent) * algorithm.messages_per_round * messages.final.shape[1] > MAX_KEPT:
                return messages
            kept_of[of_width] = messages
        return kept_of[of_width]

    @classmethod
    def _computed(
        cls,
        algorithm: LinearAlgorithm,
        prime: int,
        stand_for: Mapping[float, Fraction] | None,
        width: int,
        by_node: bool,
    ) -> _Messages:
        T, n = algorithm.num_steps, algorithm.num_nodes
        injected, used = _injected(algorithm)
        draws = np.random.Generator(np.random.Philox(key=prime))
        width = min(width, len(used)) or len(used)
        shares = draws.integers(1, prime, size=(T, n)) if by_node else np.ones((T, n), dtype=np.int64)
        columns = width + (n if by_node else T * n)
        base = np.eye(width, dtype=np.int64)
        if width < len(used):
            base = draws.integers(prime, size=(len(used), width))
        noise = []
        for of_step in injected:
            parts = of_step.any(axis=0)
            of_parts = residues(of_step[:, parts], prime, stand_for)
            placed = np.zeros((len(of_step), columns), dtype=np.int64)
            if width < len(used):
                placed[:, :width] = table(_matrix(of_parts, prime) * _matrix(base[parts], prime))
            else:
                placed[:, :width][:, parts] = of_parts
            noise.append(_matrix(placed, prime))
        gradients = []
        for t in range(T):
            of_step = np.zeros((n, columns), dtype=np.int64)
            of_step[np.arange(n), width + (0 if by_node else t * n) + np.arange(n)] = shares[t]
            gradients.append(_matrix(of_step, prime))
        kinds = [{name: _map(getattr(kind, name), prime, stand_for) for name in MAPS} for kind in algorithm.kinds]
        model = _map(algorithm.model_from_state, prime, stand_for)
        state = flint.nmod_mat(algorithm.model_from_state.shape[1], columns, prime)
        released = state
        after_rounds = algorithm.released_after_rounds
        shares_of = residues(np.array([*after_rounds.values()]), prime, stand_for)
        share_of = dict(zip(after_rounds, shares_of.tolist(), strict=True))
        messages: list[flint.nmod_mat] = []
        models: list[flint.nmod_mat | None] = []
        for r, (number, step) in enumerate(zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True)):
            kind = kinds[number]
            g, e = (gradients[step], noise[step]) if step >= 0 else (None, None)
            models.append(None if step < 0 else model * state)
            sent = flint.nmod_mat(algorithm.messages_per_round, columns, prime)
            sent = _plus(sent, (kind["message_from_state"], state), (kind["message_from_gradient"], g))
            sent = _plus(sent, (kind["message_from_noise"], e))
            messages.append(sent)
            after = flint.nmod_mat(state.nrows(), state.ncols(), prime)
            after = _plus(after, (kind["state_from_message"], sent), (kind["state_from_state"], state))
            state = _plus(after, (kind["state_from_gradient"], g), (kind["state_from_noise"], e))
            if (share := share_of.get(r + 1)) is not None:
                released = released + state * share
        return cls(messages, models, table(model * released), base, used, prime)


def _injected(algorithm: LinearAlgorithm) -> tuple[FloatArray, NDArray[np.intp]]:
    """(N of each step, shape (T, slots, used), without columns of base noise that are not used; those that are)."""
    if algorithm not in _NOISE:
        N = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))
        used = np.flatnonzero(N.any(axis=0))
        _NOISE[algorithm] = N[:, used].reshape(algorithm.num_steps, algorithm.noise.slots_per_step, used.size), used
    return _NOISE[algorithm]


_NOISE: weakref.WeakKeyDictionary[LinearAlgorithm, tuple[FloatArray, NDArray[np.intp]]] = weakref.WeakKeyDictionary()
MAX_KEPT = 4_000_000
"""Entries of messages that are kept for later attackers: 32 MB for each prime."""
_MESSAGES: weakref.WeakKeyDictionary[LinearAlgorithm, dict[Any, dict[int, _Messages]]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Residues as of `_Messages`: rows seen of each round, models before it, at the end.

    Attributes: known: known noise as rows, over columns of noise; noise: those columns, without known ones where each
        is one part of it.
    """

    seen: list[Table]
    models: list[flint.nmod_mat | None]
    final: Table
    prime: int
    known: Table
    noise: NDArray[np.intp]

    @classmethod
    def of(
        cls,
        algorithm: LinearAlgorithm,
        knowledge: Knowledge,
        prime: int,
        stand_for: Mapping[float, Fraction] | None = None,
        width: int = 0,
        *,
        by_node: bool = False,
    ) -> _Rows:
        messages = _Messages.of(algorithm, prime, stand_for, width, by_node=by_node)
        is_known = knowledge.known_noise.ravel()[messages.used]
        known, noise = messages.base[is_known], np.arange(messages.base.shape[1])
        if len(messages.base) == noise.size:
            known, noise = known[:0], np.flatnonzero(~is_known)
        if knowledge.combination is None:
            seen = [messages.of_round(r, mask) for r, mask in enumerate(knowledge.seen)]
            return cls(seen, messages.models, messages.final, prime, known, noise)

        @functools.cache
        def picked(counted: bytes) -> Any:
            selection = sp.diags_array(np.frombuffer(counted, dtype=bool).astype(np.float64))
            return _map(sp.csr_array(knowledge.combination @ selection), prime, stand_for)

        counted, seen = combined(algorithm), []
        for r, sent in enumerate(messages.sent):
            sums = picked(counted[r].tobytes()) * sent
            seen.append(table(sums)[: None if algorithm.sent[r].any() else 0])
        return cls(seen, messages.models, messages.final, prime, known, noise)

    def span(self, known_gradients: NDArray[np.bool_]) -> bool:
        """Whether the models before each round are combinations of rows seen in earlier ones and of what is known.

        With all rows in the order of time, as columns of one matrix, a model is one exactly if it is no pivot.
        Args: known_gradients: which columns of gradients are known.
        """
        columns = np.concatenate([self.noise, self.known.shape[1] + np.flatnonzero(~known_gradients)])
        rows, is_model = [self._known()[:, columns]], [np.zeros(len(self.known), dtype=bool)]
        for models, seen in zip(self.models, self.seen, strict=True):
            for part, of_models in ((None if models is None else table(models), True), (seen, False)):
                if part is not None:
                    rows.append(part[:, columns])
                    is_model.append(np.full(len(part), of_models))
        in_time, wanted = np.vstack(rows).T, np.concatenate(is_model)
        return not wanted[pivots(in_time, self.prime)].any()

    def of_two_steps(self) -> _Rows:
        """What is seen up to the models of the second step."""
        begins = [r for r, models in enumerate(self.models) if models is not None][1:2]
        end = begins[0] + 1 if begins else len(self.models)
        return dataclasses.replace(self, seen=[*self.seen[: end - 1], self.seen[0][:0]], models=self.models[:end])

    def range_of(
        self, columns: NDArray[np.intp], release: str, stand_for: Mapping[float, Fraction] | None
    ) -> tuple[int, NDArray[np.bool_]]:
        """(rank of the noise, for each of some columns of gradients whether it lies outside the range of the noise)."""
        rows = np.vstack([self._known(), self.all_of(release, stand_for)])
        rank, outside = outside_range(rows[:, self.noise], rows[:, self.known.shape[1] + columns], self.prime)
        return rank - len(self.known), outside

    def confirm(
        self, rank: int, nodes: Sequence[int], release: str, stand_for: Mapping[float, Fraction] | None
    ) -> bool:
        """Whether the noise has this rank, and the gradients of some nodes are in the range of that noise.

        Of combinations of gradients by node, and more of the noise than `rank` and known ones.
        """
        rows, wanted = np.vstack([self._known(), self.all_of(release, stand_for)]), rank + len(self.known)
        noise = rows[:, self.noise[: None if len(self.known) == 0 else wanted + 1]]
        both = np.hstack([noise, rows[:, self.known.shape[1] + np.asarray(nodes)]])
        return all(_matrix(part, self.prime).rank() == wanted for part in (both, noise))

    def _known(self) -> Table:
        """The known noise as rows."""
        return np.hstack(
            [self.known, np.zeros((len(self.known), self.final.shape[1] - self.known.shape[1]), dtype=np.int64)]
        )

    def all_of(self, release: str, stand_for: Mapping[float, Fraction] | None = None) -> Table:
        """Rows seen in all rounds, and of the released models."""
        rows = [*self.seen]
        if release == "all":
            rows.append(self.final)
        if release == "average":
            n = len(self.final)
            exact = pow(n, -1, self.prime)  # of the average itself, or of the float that its weight is
            share = exact if stand_for is not None else int(residues(np.full(1, 1.0 / n), self.prime)[0])
            total = self.final.astype(object).sum(axis=0, keepdims=True) * share % self.prime
            rows.append(total.astype(np.int64))
        return np.vstack(rows)


def _plus(total: flint.nmod_mat, *products: tuple[flint.nmod_mat | None, flint.nmod_mat | None]) -> flint.nmod_mat:
    for matrix, x in products:
        if matrix is not None and x is not None:
            total = total + matrix * x
    return total


def _map(matrix: Map, prime: int, stand_for: Mapping[float, Fraction] | None) -> flint.nmod_mat | None:
    return None if matrix is None else _matrix(residues(matrix.toarray(), prime, stand_for), prime)


def meant_entries(view: AlgorithmView) -> dict[float, Fraction] | None:
    """What all entries of maps, noise and seen combinations stand for; None where one stands for no fraction."""
    algorithm, masks = view.algorithm, view.knowledge
    maps = [algorithm.model_from_state, *(m for kind in algorithm.kinds for m in kind.maps())]
    noise, _ = _injected(algorithm)
    combined = [] if masks.combination is None else [masks.combination.data]
    shares = np.array([*algorithm.released_after_rounds.values()])
    return meant(np.array([0.0, 1.0]), noise, shares, *(m.data for m in maps), *combined)


def gram_of_noise(noise: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """(X, how far its entries may be off) for a lower triangular N, shape (T, T).

    None: N has more rows than MAX_SIZE, or entries that rounded to 0 on the diagonal or beyond float64, as may those of
    X, or more digits cancel than PRECISIONS have.

    >>> gram_of_noise(np.array([[2.0**60, 0], [-(2.0**60), 1]]))[0].tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if len(noise) > MAX_SIZE or not np.isfinite(noise).all() or not (np.diagonal(noise) > 0).all():
        return None
    for bits in PRECISIONS:
        with flint.ctx.workprec(bits):
            X, errors = _gram(noise)
        sizes = np.sqrt(np.abs(np.diagonal(X)))
        if np.isfinite(X).all() and (errors <= CLOSE * np.outer(sizes, sizes) + 4 * LEAST).all():
            return X, errors
    return None


def _gram(noise: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Midpoints of the intervals as floats, and how far the ends are from these."""
    try:
        encoder = flint.arb_mat(len(noise), len(noise), noise.ravel().tolist()).inv()
    except ZeroDivisionError:  # too few bits to tell its pivots from 0
        return np.full(noise.shape, np.nan), np.full(noise.shape, np.inf)
    intervals = (encoder.transpose() * encoder).entries()
    X, radii = (np.reshape([float(x) for x in part], noise.shape) for part in (intervals, [x.rad() for x in intervals]))
    return X, (radii + UNIT * np.abs(X)) * (1 + 8 * UNIT) + 2 * LEAST

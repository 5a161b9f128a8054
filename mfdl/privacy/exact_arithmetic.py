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
that these stand for. What does not depend on the attacker is computed once for all of them, over a few random
combinations of the columns: they have a rank, where they are more than it, but for a chance below rank / prime.

Gram matrices: X of noise whose encoder float64 cannot tell from a singular one, N^-T N^-1.
Forward substitution loses all digits where |C| |N| is near 1 / UNIT, while the loss itself can be small: an encoder
whose first diagonal entry is tiny makes large noise in that step. N is triangular with a diagonal that is not 0, so its
inverse exists, and intervals of enough bits hold it as closely as float64 can say.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..algorithms import LinearAlgorithm
from ..algorithms.round import Source
from ..check import FloatArray
from ..entries import fraction_of
from ..floats import UNIT
from ..trust.knowledge import combined
from ..trust.view import AlgorithmView, View
from ..trust.view_matrices import GivenModels

PRIMES = (5_312_186_569_479_497_857, 8_731_438_793_126_205_647)
MAX_DENOMINATOR = 4096  # of a fraction that a float stands for; fractions up to it are 2^-24 apart
MAX_VALUES = 10_000  # different numbers that are looked at
MAX_ENTRIES = 500_000  # of a matrix: under a second per prime
Table = NDArray[np.int64]  # residues, which have 63 bits
FEW = 32  # random combinations by which a model is told from rows seen before it, and of which others are multiples
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
    rows, columns = residues.shape
    return flint.nmod_mat(flint.fmpz_mat(rows, columns, residues.ravel().tolist()), prime)  # faster than at once


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
    second = [r for r, step in enumerate(view.algorithm.step_of_round) if step >= 0][:2][-1]
    few = _Rows.of(view, _Field(PRIMES[0]), FEW, by_node=True, rounds=slice(second + 1))
    if not few.span(np.asarray(view.known_gradients.any(axis=0)), steps=2):
        return False
    return all(_Rows.of(view, _Field(prime)).span(view.known_gradients.ravel()) for prime in PRIMES)


StandFor = Mapping[float, Fraction] | None
"""What the entries of maps and noise stand for (`meant_entries`); None: the floats that they are."""


def confirmed(
    view: AlgorithmView, victims: Sequence[int], rank: int, stand_for: StandFor = None, *, at_least: bool = False
) -> bool:
    """Whether the exact B has this rank, and no gradient of the victims shows without noise.

    By what `exact_range` computes with all gradients, here with one random combination of those of each node: it misses
    a leak with a chance below 2^-62. Arguments as there; at_least: the rank is known not to be below.
    """
    if not is_small(view):
        return False
    nodes, by_prime = np.asarray(victims, dtype=np.intp), _rows(view, rank, stand_for, by_node=True)
    lower = (not at_least, False)  # a rank modulo one prime is never above the true one
    return all(part.confirm(rank, nodes, lower=first) for first, part in zip(lower, by_prime, strict=True))


def is_silent(view: AlgorithmView, victims: Sequence[int]) -> bool:
    """Whether no gradient of the victims shows without noise, as `confirmed` has it, of any rank."""
    nodes = np.asarray(victims, dtype=np.intp)
    return is_small(view) and all(part.is_silent(nodes) for part in _rows(view, view.num_rows, None, by_node=True))


def exact_range(
    view: AlgorithmView, victims: Sequence[int], stand_for: StandFor = None
) -> tuple[int, NDArray[np.bool_]] | None:
    """(rank of the exact B, for each column of the victims whether it lies outside the range of B); None: too large.

    Columns are those of `View.dense_gradients`: victim after victim, each in time order.
    """
    if not is_small(view):
        return None
    of_victims = np.concatenate([view.axis.node_columns(int(u)) for u in victims])
    ranges = [part.range_of(of_victims) for part in _rows(view, view.num_rows, stand_for, by_node=False)]
    return max(rank for rank, _ in ranges), np.logical_or(*(outside for _, outside in ranges))


def _rows(view: AlgorithmView, rank: int, stand_for: StandFor, *, by_node: bool) -> Iterator[_Rows]:
    """Those modulo each prime, with columns of noise that tell a rank from larger ones."""
    _, used = _injected(view.algorithm)
    known = int(np.count_nonzero(view.knowledge.known_noise.ravel()[used]))
    width = rank + known + 1 if rank + known + 1 < used.size - known else 0  # else those that are not known are fewer
    of_floats = None if stand_for is None else frozenset(stand_for.items())
    return (_Rows.of(view, _Field(prime, of_floats), width, by_node=by_node) for prime in PRIMES)


def _given_models_are_spanned(view: View, models: GivenModels) -> bool:
    """The same for matrices: the models of a step in the span of rows seen after the gradients of earlier steps."""
    T, n = view.axis.num_steps, view.axis.num_nodes
    if not view.entries_given or not is_small(view):
        return False
    A, B = view.entries()
    seen = np.hstack([A[:, np.argsort(view.axis.node_major())], B])  # exact: a permutation
    unknown = np.concatenate([~view.marked_gradients.ravel(), ~view.zero_noise])
    none = np.zeros((0, unknown.size), dtype=np.int64)
    order = np.argsort(models.row_steps, kind="stable")  # exact: integers

    def spanned(field: _Field) -> bool:
        of_steps = [functools.partial(field.residues, models.rows[t * n : (t + 1) * n]) for t in range(T)]
        rows = field.residues(seen[order])
        return _Rows(rows, models.row_steps[order], of_steps, none, none[:, :0], 0, False, field).span(~unknown)

    return all(spanned(_Field(prime)) for prime in PRIMES)


def is_small(view: View) -> bool:
    return max(view.noise.shape[0], view.axis.size) * (view.axis.size + view.noise.shape[1]) <= MAX_ENTRIES


@dataclasses.dataclass(frozen=True)
class _Field:
    """Numbers modulo a prime: floats as they are, or as what they stand for."""

    prime: int
    stand_for: frozenset[tuple[float, Fraction]] | None = None

    @functools.cached_property
    def _meant(self) -> dict[float, Fraction] | None:
        return None if self.stand_for is None else dict(self.stand_for)

    def residues(self, matrix: FloatArray) -> Table:
        return residues(matrix, self.prime, self._meant)

    def of_residues(self, matrix: Table) -> flint.nmod_mat:
        return _matrix(matrix, self.prime)

    def matrix(self, matrix: FloatArray) -> flint.nmod_mat:
        return self.of_residues(self.residues(matrix))

    def zeros(self, rows: int, columns: int) -> flint.nmod_mat:
        return flint.nmod_mat(rows, columns, self.prime)

    def draws(self, source: Source) -> np.random.Generator:
        """Random numbers of each source by themselves, the same ones in every run."""
        return np.random.Generator(np.random.Philox(key=np.array([self.prime, len(source)], dtype=np.uint64)))

    def released(self, models: Table, release: str) -> Table:
        """Rows of the released models; of an average by itself, or by the float that its weight is."""
        if release != "average":
            return models if release == "all" else models[:0]
        n = len(models)
        share = pow(n, -1, self.prime) if self.stand_for else int(self.residues(np.full(1, 1.0 / n))[0])
        return (models.astype(object).sum(axis=0, keepdims=True) * share % self.prime).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class _Messages:
    """Residues of messages of each round, models before it, and what nodes release, over columns of one source.

    The columns are all those of base noise, or some random combinations of them, which keep ranks below their number
    but for a chance below rank / prime; or all gradients, or one random combination of those of each node.

    Attributes: models: None for rounds of pure gossip; base: shares of the base noise that is used in the combinations;
        mixed: whether they are fewer than it is; residues: of all messages, as far as they were read, and which were.
    """

    sent: list[flint.nmod_mat]
    models: list[flint.nmod_mat | None]
    final: Table
    base: Table
    mixed: bool
    residues: list[Table] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, algorithm: LinearAlgorithm, source: Source, field: _Field, width: int) -> _Messages:
        """Those of an algorithm, which are the same for every attacker: kept as long as a small algorithm lives.

        Args: width: how many combinations at least, 0 for all columns; of gradients that by node, or 0.
        """
        kept_of = _MESSAGES.setdefault(algorithm, {}).setdefault((source, field), {})
        least = (1 << width.bit_length() if kept_of else -(-width // FEW) * FEW) if width else 0
        of_width = next((w for w in sorted(kept_of) if w >= width > 0), least)
        if of_width not in kept_of:
            messages = cls._computed(algorithm, source, field, of_width)
            if len(messages.sent) * algorithm.messages_per_round * messages.base.shape[1] > MAX_KEPT:
                return messages
            kept_of[of_width] = messages
        return kept_of[of_width]

    @classmethod
    def _computed(cls, algorithm: LinearAlgorithm, source: Source, field: _Field, width: int) -> _Messages:
        enters, base, mixed = (_gradients if source == "gradient" else _noise)(algorithm, field, width)
        maps = [
            [None if m is None else field.matrix(m.toarray()) for m in vars(kind.driven_by(source)).values()]
            for kind in algorithm.kinds
        ]
        model = field.matrix(algorithm.model_from_state.toarray())
        released = state = field.zeros(algorithm.model_from_state.shape[1], base.shape[1])
        after_rounds = algorithm.released_after_rounds
        shares = field.residues(np.array([*after_rounds.values()])).tolist()
        share_of = dict(zip(after_rounds, shares, strict=True))
        messages: list[flint.nmod_mat] = []
        models: list[flint.nmod_mat | None] = []
        for r, (number, step) in enumerate(zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True)):
            P, Q, K, F, J = maps[number]
            x = enters[step] if step >= 0 else None
            models.append(None if step < 0 else model * state)
            sent = _plus(field.zeros(algorithm.messages_per_round, base.shape[1]), (P, state), (Q, x))
            messages.append(sent)
            state = _plus(field.zeros(state.nrows(), base.shape[1]), (K, sent), (F, state), (J, x))
            if (share := share_of.get(r + 1)) is not None:
                released = released + state * share
        return cls(messages, models, table(model * released), base, mixed)

    def rows(self, seen: NDArray[np.bool_], field: _Field) -> Table:
        """The messages seen, in the order of time; residues of each are read once."""
        S, columns = seen.shape[1], self.base.shape[1]
        if not self.residues:
            self.residues.extend((np.empty((seen.size, columns), dtype=np.int64), np.zeros(seen.size, dtype=bool)))
        messages, is_read = self.residues
        missing = seen & ~is_read.reshape(seen.shape)
        for r in np.flatnonzero(missing.any(axis=1)).tolist():
            picks = np.eye(S, dtype=np.int64)[missing[r]]
            messages[r * S : (r + 1) * S][missing[r]] = table(field.of_residues(picks) * self.sent[r])
        is_read[missing.ravel()] = True
        return np.asarray(messages[seen.ravel()])


def _gradients(algorithm: LinearAlgorithm, field: _Field, width: int) -> tuple[list[flint.nmod_mat], Table, bool]:
    """(what enters in each step, shape (n, columns), the columns of all gradients, whether combined by node)."""
    T, n = algorithm.num_steps, algorithm.num_nodes
    if width:
        base = np.vstack(
            [np.diag(of_step) for of_step in field.draws("gradient").integers(1, field.prime, size=(T, n))]
        )
    else:
        base = np.eye(T * n, dtype=np.int64)
    return [field.of_residues(of_step) for of_step in base.reshape(T, n, -1)], base, width > 0


def _noise(algorithm: LinearAlgorithm, field: _Field, width: int) -> tuple[list[flint.nmod_mat], Table, bool]:
    """(what enters in each step, shape (slots, columns), the columns of all noise that is used, whether combined)."""
    injected, used = _injected(algorithm)
    if not 0 < width < used.size:
        return [field.matrix(of_step) for of_step in injected], np.eye(used.size, dtype=np.int64), False
    base, enters = field.draws("noise").integers(field.prime, size=(used.size, width)), []
    for of_step in injected:
        parts = of_step.any(axis=0)
        enters.append(field.matrix(of_step[:, parts]) * field.of_residues(base[parts]))
    return enters, base, True


def _injected(algorithm: LinearAlgorithm) -> tuple[FloatArray, NDArray[np.intp]]:
    """(N of each step, shape (T, slots, used), without columns of base noise that are not used; those that are)."""
    if algorithm not in _NOISE:
        N = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))
        used = np.flatnonzero(N.any(axis=0))
        _NOISE[algorithm] = N[:, used].reshape(algorithm.num_steps, algorithm.noise.slots_per_step, used.size), used
    return _NOISE[algorithm]


MAX_KEPT = 4_000_000
"""Entries of messages that are kept for later attackers: 32 MB for each prime."""
_NOISE: weakref.WeakKeyDictionary[LinearAlgorithm, tuple[FloatArray, NDArray[np.intp]]] = weakref.WeakKeyDictionary()
_MESSAGES: weakref.WeakKeyDictionary[LinearAlgorithm, dict[Any, dict[int, _Messages]]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Residues of what one attacker sees: rows of each round, models before it, and the rows that are released.

    The columns are those of noise, and then those of gradients. Known noise is left out, or, of `mixed` columns, in
    rows of its own before all others.
    """

    seen: Table
    round_of_row: NDArray[np.intp]
    models: Sequence[Callable[[], Table] | None]
    released: Table
    known: Table
    noise: int
    mixed: bool
    field: _Field

    @classmethod
    def of(
        cls,
        view: AlgorithmView,
        field: _Field,
        width: int = 0,
        *,
        by_node: bool = False,
        rounds: slice = slice(None),
    ) -> _Rows:
        """Args: rounds: whose rows are there, of single messages."""
        algorithm, knowledge = view.algorithm, view.knowledge
        noise = _Messages.of(algorithm, "noise", field, width)
        gradients = _Messages.of(algorithm, "gradient", field, algorithm.num_nodes if by_node else 0)
        _, used = _injected(algorithm)
        is_known = knowledge.known_noise.ravel()[used]
        columns = slice(None) if noise.mixed else np.flatnonzero(~is_known)
        known = noise.base[is_known] if noise.mixed else np.zeros((0, np.count_nonzero(~is_known)), dtype=np.int64)

        def beside(of_noise: Table, of_gradients: Table) -> Table:
            return np.hstack([of_noise[:, columns], of_gradients])

        @functools.cache
        def picked(counted: bytes) -> flint.nmod_mat:
            selection = sp.diags_array(np.frombuffer(counted, dtype=bool).astype(np.float64))
            return field.matrix((knowledge.combination @ selection).toarray())

        if knowledge.combination is None:
            mask = np.zeros_like(knowledge.seen)
            mask[rounds] = knowledge.seen[rounds]
            round_of_row, _ = np.nonzero(mask)
            seen = beside(*(source.rows(mask, field) for source in (noise, gradients)))
        else:
            of_rounds, counted = np.flatnonzero(algorithm.sent.any(axis=1)), combined(algorithm)
            round_of_row = np.repeat(of_rounds, knowledge.combination.shape[0])

            def sums(source: _Messages) -> Table:
                nothing = np.zeros((0, source.base.shape[1]), dtype=np.int64)  # where no message is ever sent
                of_each = (table(picked(counted[r].tobytes()) * source.sent[r]) for r in of_rounds)
                return np.vstack([nothing, *of_each])

            seen = beside(sums(noise), sums(gradients))
        models = [
            None if z is None else functools.partial(lambda z, g: beside(table(z), table(g)), z, g)
            for z, g in zip(noise.models, gradients.models, strict=True)
        ]
        released = field.released(beside(noise.final, gradients.final), view.release)
        return cls(seen, round_of_row, models, released, known, known.shape[1], noise.mixed, field)

    def span(self, known_gradients: NDArray[np.bool_], steps: int | None = None) -> bool:
        """Whether the models before each round are combinations of rows seen in earlier ones and of what is known.

        With all rows in the order of time, as columns of one matrix, a model is one exactly if it is no pivot.
        Args: known_gradients: which columns of gradients are known; steps: how many are looked at, by default all.
        """
        rows, is_model, done = [self._known_rows()], [np.zeros(len(self.known), dtype=bool)], 0
        begins = [(r, models) for r, models in enumerate(self.models) if models is not None]
        for r, models in begins[:steps]:
            earlier = int(np.searchsorted(self.round_of_row, r))
            rows += [self.seen[done:earlier], models()]
            is_model += [np.zeros(earlier - done, dtype=bool), np.ones(len(rows[-1]), dtype=bool)]
            done = earlier
        few = min(self.noise, len(self.known) + done + 1) if self.mixed else self.noise
        columns = np.concatenate([np.arange(few), self.noise + np.flatnonzero(~known_gradients)])
        return not np.concatenate(is_model)[pivots(np.vstack(rows)[:, columns].T, self.field.prime)].any()

    def range_of(self, gradients: NDArray[np.intp]) -> tuple[int, NDArray[np.bool_]]:
        """(rank of the noise, for each of some columns of gradients whether it lies outside the range of the noise)."""
        rows = np.vstack([self._known_rows(), self.seen, self.released])
        rank, outside = outside_range(rows[:, : self.noise], rows[:, self.noise + gradients], self.field.prime)
        return rank - len(self.known), outside

    def confirm(self, rank: int, gradients: NDArray[np.intp], *, lower: bool) -> bool:
        """Whether the noise has this rank and no column is outside. Without `lower`, the rank may be below it."""
        wanted = rank + len(self.known)
        noise, both = self._with_sum(gradients, wanted + 1)
        return all(self.field.of_residues(part).rank() == wanted for part in ((both, noise) if lower else (both,)))

    def is_silent(self, gradients: NDArray[np.intp]) -> bool:
        """Whether no column is outside the range of the noise."""
        noise, both = (self.field.of_residues(part).rank() for part in self._with_sum(gradients, self.noise))
        return bool(noise == both)

    def _with_sum(self, gradients: NDArray[np.intp], width: int) -> tuple[Table, Table]:
        """(noise, by so many combinations where columns are combinations; the same and the sum of some gradients)."""
        rows = np.vstack([self._known_rows(), self.seen, self.released])
        noise = rows[:, : min(self.noise, width) if self.mixed else self.noise]
        high, low = np.divmod(rows[:, self.noise + gradients], 2**32)
        sums = zip(high.sum(axis=1).tolist(), low.sum(axis=1).tolist(), strict=True)
        total = np.array([((h << 32) + rest) % self.field.prime for h, rest in sums], dtype=np.int64)
        return noise, np.column_stack([noise, total])

    def _known_rows(self) -> Table:
        return np.hstack([self.known, np.zeros((len(self.known), self.released.shape[1] - self.noise), dtype=np.int64)])


def _plus(total: flint.nmod_mat, *products: tuple[flint.nmod_mat | None, flint.nmod_mat | None]) -> flint.nmod_mat:
    for matrix, x in products:
        if matrix is not None and x is not None:
            total = total + matrix * x
    return total


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

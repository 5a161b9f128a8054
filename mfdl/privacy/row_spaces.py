"""Row spaces of views modulo primes: do earlier rows span the models, and is a gradient seen without noise?

The recursion of the algorithm is run modulo the primes of `exact_arithmetic`, so no tolerance decides anything; maps
count as the floats that they are, or as the fractions that these stand for. What does not depend on the attacker is
computed once for all of them, over a few random combinations of the columns: they have a rank, where they are more
than it, but for a chance below rank / prime.
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
from ..trust.knowledge import combined
from ..trust.view import AlgorithmView, View
from ..trust.view_matrices import GivenModels
from .exact_arithmetic import PRIMES, Table, is_small, meant, mod_matrix, outside_range, pivots, residues, table

FEW = 32  # random combinations by which a model is told from rows seen before it, and of which others are multiples


def spans_models(view: View) -> bool:
    """Whether the rows of every model, over G and Z without the known columns, lie in the span of earlier rows seen.

    Of floats and of the fractions that they stand for. A model whose gradient is known counts too. A bare view has
    models and times of rows as given. False also where it has none, and for a view that is too large. A model of the
    second step is mostly outside, as few columns show.
    """
    if not isinstance(view, AlgorithmView):
        return view.models is not None and _given_models_are_spanned(view, view.models)
    if not is_small(view):
        return False
    second = [r for r, step in enumerate(view.algorithm.step_of_round) if step >= 0][:2][-1]
    few = _Rows.from_view(view, _Field(PRIMES[0]), FEW, by_node=True, rounds=slice(second + 1))
    if not few.span(np.asarray(view.known_gradients.any(axis=0)), steps=2):
        return False
    fractions = frozenset((meant_entries(view) or {}).items()) or None  # the number may be of these
    fields = (_Field(prime, stand_for) for stand_for in {None, fractions} for prime in PRIMES)
    return all(_Rows.from_view(view, field).span(view.known_gradients.ravel()) for field in fields)


StandFor = Mapping[float, Fraction] | None
"""Fractions that the entries of maps and noise stand for (`meant_entries`); None: the floats themselves."""


def confirmed(
    view: AlgorithmView, victims: Sequence[int], rank: int, stand_for: StandFor = None, *, at_least: bool = False
) -> bool:
    """Whether the exact B has this rank, and no gradient of the victims shows without noise.

    As `exact_range`, with one random combination of the gradients of each node: it misses a leak with a chance below
    2^-62. Args: at_least: the rank is known not to be below.
    """
    if not is_small(view):
        return False
    nodes, by_prime = np.asarray(victims, dtype=np.intp), _rows(view, rank, stand_for, by_node=True)
    lower = (not at_least, False)  # a rank modulo one prime is never above the true one
    return all(part.confirm(rank, nodes, lower=first) for first, part in zip(lower, by_prime, strict=True))


def is_silent(view: AlgorithmView, victims: Sequence[int]) -> bool:
    """Whether no gradient of the victims shows without noise, as `confirmed` computes it, at any rank."""
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
    ranges = [part.rank_and_outside(of_victims) for part in _rows(view, view.num_rows, stand_for, by_node=False)]
    return max(rank for rank, _ in ranges), np.logical_or(*(outside for _, outside in ranges))


def _rows(view: AlgorithmView, rank: int, stand_for: StandFor, *, by_node: bool) -> Iterator[_Rows]:
    """Rows modulo each prime, with columns of noise that tell a rank from larger ones."""
    _, used = _injected(view.algorithm)
    known = int(np.count_nonzero(view.knowledge.known_noise.ravel()[used]))
    width = rank + known + 1 if rank + known + 1 < used.size - known else 0  # else those that are not known are fewer
    of_floats = None if stand_for is None else frozenset(stand_for.items())
    return (_Rows.from_view(view, _Field(prime, of_floats), width, by_node=by_node) for prime in PRIMES)


def _given_models_are_spanned(view: View, models: GivenModels) -> bool:
    """Whether the models of a step lie in the span of rows seen after the gradients of earlier steps."""
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

    def modular(self, matrix: Table) -> flint.nmod_mat:
        return mod_matrix(matrix, self.prime)

    def matrix(self, matrix: FloatArray) -> flint.nmod_mat:
        return self.modular(self.residues(matrix))

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
        mixed: whether they are fewer than it is; residues: of messages, as far as they were read, and which were.
    """

    sent: list[flint.nmod_mat]
    models: list[flint.nmod_mat | None]
    final: Table
    base: Table
    mixed: bool
    residues: list[Table] = dataclasses.field(default_factory=list)

    @classmethod
    def from_algorithm(cls, algorithm: LinearAlgorithm, source: Source, field: _Field, width: int) -> _Messages:
        """The same for every attacker: kept as long as a small algorithm lives.

        Args: width: how many combinations at least, 0 for all columns; for gradients that by node, or 0.
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
        """The messages seen, in the order of time."""
        S, columns = seen.shape[1], self.base.shape[1]
        if not self.residues:
            self.residues.extend((np.empty((seen.size, columns), dtype=np.int64), np.zeros(seen.size, dtype=bool)))
        messages, is_read = self.residues
        missing = seen & ~is_read.reshape(seen.shape)
        for r in np.flatnonzero(missing.any(axis=1)).tolist():
            picks = np.eye(S, dtype=np.int64)[missing[r]]
            messages[r * S : (r + 1) * S][missing[r]] = table(field.modular(picks) * self.sent[r])
        is_read[missing.ravel()] = True
        return np.asarray(messages[seen.ravel()])


def _gradients(algorithm: LinearAlgorithm, field: _Field, width: int) -> tuple[list[flint.nmod_mat], Table, bool]:
    T, n = algorithm.num_steps, algorithm.num_nodes
    if width:
        base = np.vstack(
            [np.diag(of_step) for of_step in field.draws("gradient").integers(1, field.prime, size=(T, n))]
        )
    else:
        base = np.eye(T * n, dtype=np.int64)
    return [field.modular(of_step) for of_step in base.reshape(T, n, -1)], base, width > 0


def _noise(algorithm: LinearAlgorithm, field: _Field, width: int) -> tuple[list[flint.nmod_mat], Table, bool]:
    """(what enters in each step, shape (slots, columns), the columns of all noise that is used, whether combined)."""
    injected, used = _injected(algorithm)
    if not 0 < width < used.size:
        return [field.matrix(of_step) for of_step in injected], np.eye(used.size, dtype=np.int64), False
    base, enters = field.draws("noise").integers(field.prime, size=(used.size, width)), []
    for of_step in injected:
        parts = of_step.any(axis=0)
        enters.append(field.matrix(of_step[:, parts]) * field.modular(base[parts]))
    return enters, base, True


def _injected(algorithm: LinearAlgorithm) -> tuple[FloatArray, NDArray[np.intp]]:
    """(N of each step, shape (T, slots, used), without columns of base noise that are not used; those that are)."""
    if algorithm not in _NOISE:
        N = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))
        used = np.flatnonzero(N.any(axis=0))
        _NOISE[algorithm] = N[:, used].reshape(algorithm.num_steps, algorithm.noise.slots_per_step, used.size), used
    return _NOISE[algorithm]


MAX_KEPT = 4_000_000  # entries of messages that are kept for later attackers: 32 MB for each prime
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
    def from_view(
        cls, view: AlgorithmView, field: _Field, width: int = 0, *, by_node: bool = False, rounds: slice = slice(None)
    ) -> _Rows:
        """Args: rounds: whose rows are taken, where single messages are seen."""
        algorithm, knowledge = view.algorithm, view.knowledge
        noise = _Messages.from_algorithm(algorithm, "noise", field, width)
        gradients = _Messages.from_algorithm(algorithm, "gradient", field, algorithm.num_nodes if by_node else 0)
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
        """Whether the models before each round are combinations of rows seen in earlier ones and of known ones.

        With all rows in the order of time, as columns of one matrix, a model is one exactly if it is no pivot. Args:
        known_gradients: which columns of gradients are known; steps: how many are tested, default all.
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

    def rank_and_outside(self, gradients: NDArray[np.intp]) -> tuple[int, NDArray[np.bool_]]:
        rows = np.vstack([self._known_rows(), self.seen, self.released])
        rank, outside = outside_range(rows[:, : self.noise], rows[:, self.noise + gradients], self.field.prime)
        return rank - len(self.known), outside

    def confirm(self, rank: int, gradients: NDArray[np.intp], *, lower: bool) -> bool:
        """Whether the noise has this rank and no column is outside. Without `lower`, the rank may be below it."""
        wanted = rank + len(self.known)
        noise, both = self._with_sum(gradients, wanted + 1)
        return all(self.field.modular(part).rank() == wanted for part in ((both, noise) if lower else (both,)))

    def is_silent(self, gradients: NDArray[np.intp]) -> bool:
        noise, both = (self.field.modular(part).rank() for part in self._with_sum(gradients, self.noise))
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
    """The fractions that all entries of maps, noise and seen combinations stand for; None where one stands for none."""
    algorithm, masks = view.algorithm, view.knowledge
    maps = [algorithm.model_from_state, *(m for kind in algorithm.kinds for m in kind.maps())]
    noise, _ = _injected(algorithm)
    combined = [] if masks.combination is None else [masks.combination.data]
    shares = np.array([*algorithm.released_after_rounds.values()])
    return meant(np.array([0.0, 1.0]), noise, shares, *(m.data for m in maps), *combined)

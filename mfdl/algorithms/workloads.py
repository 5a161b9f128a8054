"""The matrices of an algorithm as the papers write them, A, B, C, W_T; and what an observer can compute exactly.

Messages, or models, are O = A G + B Z in the stacked gradients G and base noise Z, and the papers factorize A = B C:

    A = S W_T Q      Q: how gradients enter messages, W_T: all messages <- what enters them, S: the rows looked at
    B = A N          N: injected noise <- Z, where noise enters as gradients do, else S (all messages <- Z)
    C                with A = B C: N C = I, so that N is C^-1 or C^+; the least solution where noise enters otherwise

Rows and columns are time-major. Start models theta_0 are public: their part, M theta_0, is left out of O. Nothing
accounts by these matrices: ranks are decided in floats here.

Exact knowledge (`flow`): which states, messages and injections follow from what is seen and known. Only where maps have
entries counts: a quantity is known if it is a sum of known ones, start models being public, and an injected sum g + e
where a seen message holds it beside known quantities alone. Values that cancel by chance are for `privacy.row_spaces`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from .. import matrices
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import RANK_TOLERANCE
from ..operators import Kronecker, Map, OutputRecursion, RecursionMaps, Selection, StructuredOperator, TimeNodeAxis
from .round import MAPS, SHAPES, LinearRecursion

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Rows: TypeAlias = Literal["messages", "models"]

MAX_DENSE_ENTRIES = 2**24
"""Entries up to which `Matrix.dense` forms an array: 128 MiB."""

RESIDUAL = 1e-9
"""Entries of B C - A and F F^+ - I, relative to the largest, up to which they count as zero, well above rounding."""


class Matrix(StructuredOperator):
    """One matrix of a workload, with its formula; blocks: the rows, and the columns, of each time block."""

    def __init__(self, operator: LinearOperator, formula: str, rows: Sequence[int], columns: Sequence[int]) -> None:
        super().__init__(operator.shape)
        self.operator, self.formula, self.blocks = operator, formula, (tuple(rows), tuple(columns))

    def _matmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self.operator.matmat(X))

    def _rmatmat(self, X: FloatArray) -> FloatArray:
        return np.asarray(self.operator.rmatmat(X))

    def dense(self) -> FloatArray:
        """Raises: UnsupportedMechanism: more than MAX_DENSE_ENTRIES entries."""
        if self.shape[0] * self.shape[1] > MAX_DENSE_ENTRIES:
            raise UnsupportedMechanism(
                f"{self!r}, has more than the {MAX_DENSE_ENTRIES} entries of a dense array; multiply by it, or take "
                "fewer steps or nodes."
            )
        return self.to_dense()

    @typing.overload
    def plot(self, ax: None = None, *, title: str = "") -> Figure: ...

    @typing.overload
    def plot(self, ax: Axes, *, title: str = "") -> Axes: ...

    def plot(self, ax: Axes | None = None, *, title: str = "") -> Figure | Axes:
        """The entries, red above zero and blue below, in `ax` or a Figure of its own."""
        from matplotlib.figure import Figure  # a tenth of a second that only pictures need

        is_new, ax = ax is None, Figure(layout="constrained").subplots() if ax is None else ax
        values = self.dense()
        if values.size:
            limit = float(np.abs(values).max()) or 1.0
            ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
        for line, sizes in zip((ax.axhline, ax.axvline), self.blocks, strict=True):
            for end in np.cumsum(sizes)[:-1]:
                line(end - 0.5, color="black", linewidth=0.8)
        ax.set(title=title or self.formula, xticks=[], yticks=[])
        return typing.cast("Figure", ax.get_figure()) if is_new else ax

    def __repr__(self) -> str:
        return f"{self.formula}, {self.shape[0]} x {self.shape[1]}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Workload:
    """The matrices of one algorithm, divisors, signs and learning rates in A; `LinearAlgorithm.workload` makes it.

    Attributes: rows: "messages", all that are sent, in the order of rounds; or "models", theta_1 to theta_T.
    """

    algorithm: LinearRecursion
    rows: Rows = "messages"

    def __post_init__(self) -> None:
        if not isinstance(self.rows, str) or self.rows not in typing.get_args(Rows):
            raise InvalidInput(f"rows must be one of {', '.join(typing.get_args(Rows))}, got {self.rows!r}.")

    @cached_property
    def A(self) -> Matrix:
        algorithm, S, blocks = self.algorithm, self.S, [self.algorithm.num_nodes] * self.algorithm.num_steps
        direct = all(kind.state_from_gradient is None for kind in algorithm.kinds)
        formula = _product(S, self.W_T, self.Q) if direct else _product(S, "(messages <- G)")
        return Matrix(S.operator @ algorithm.messages_from_gradients, formula, S.blocks[0], blocks)

    @cached_property
    def B(self) -> Matrix:
        """Rows <- Z; no columns where there is no noise."""
        algorithm, S, enter = self.algorithm, self.S, f"I_{self.algorithm.noise.slots_per_step}"
        plain = all(_name(k.message_from_noise) == enter and k.state_from_noise is None for k in algorithm.kinds)
        formula = _product(S, self.W_T, self.N) if plain else _product(S, "(messages <- Z)")
        formula = f"A {self.noising}" if algorithm.noise_enters_with_gradients else formula
        return Matrix(S.operator @ algorithm.messages_from_noise, formula, S.blocks[0], self.N.blocks[1])

    @cached_property
    def C(self) -> Matrix:
        """The encoder, A = B C. Raises: UnsupportedMechanism: none, or it takes arrays too large to say."""
        if self._right_inverse is not None:
            return self._right_inverse
        if not self.N.shape[1]:
            raise UnsupportedMechanism(f"{self.algorithm.name!r} adds no noise: B is empty, and no C gives A = B C.")
        A, B = self.A.dense(), self.B.dense()
        solved = np.linalg.lstsq(B, A, rcond=RANK_TOLERANCE)[0]
        if np.abs(B @ solved - A).max(initial=0.0) > RESIDUAL * np.abs(A).max(initial=0.0):
            raise UnsupportedMechanism(
                f"no C gives A = B C for the {self.rows} of {self.algorithm.name!r}: some combination of them shows "
                "gradients without noise, so whoever sees them all has an infinite loss."
            )
        return Matrix(aslinearoperator(solved), "B^+ A", self.B.blocks[1], self.A.blocks[1])

    @cached_property
    def N(self) -> Matrix:
        """Injected noise <- Z; `noising` says whether it is C^-1, C^+ or neither."""
        noise, causal, T = self.algorithm.noise, self.algorithm.noise.causal, self.algorithm.num_steps
        formula = "0" if noise.is_zero else "N" if noise.joint is None else "block lower triangular"
        if causal is not None and not noise.is_zero:
            if causal.shared:
                time = sp.eye_array(T) if causal.inverse is None else causal.inverse
                return _kronecker(time, causal.mixing, "C_t^-1", "F")
            formula = "K diag(C_k^-1) K^T" if causal.factor is None else "(I (x) F) K diag(C_k^-1) K^T"
        return Matrix(noise, formula, [noise.slots_per_step] * T, [noise.columns_per_step] * T)

    @property
    def noising(self) -> str:
        """The form of N: "C^-1", "C^+" where it has more columns than rows, "N" where it is no inverse of C."""
        square = self.N.shape[0] == self.N.shape[1]
        return "N" if self._right_inverse is None else "C^-1" if square else "C^+"

    @cached_property
    def W_T(self) -> Matrix:
        """All messages, sent or not, <- their inputs: blocks W^(r - s) for plain gossip."""
        algorithm, size = self.algorithm, self.algorithm.messages_per_round
        rounds, state = self._rounds(sp.csr_array(sp.eye_array(size))), algorithm.sizes["state"]
        operator = OutputRecursion(rounds, input_size=size, out_size=size, state_size=state)
        return Matrix(operator, "W_T", *[[size] * len(algorithm.rounds)] * 2)

    @cached_property
    def M(self) -> Matrix:
        """Rows <- start models theta_0: blocks W^r for plain gossip. Raises: as `S`."""
        algorithm, size = self.algorithm, self.algorithm.messages_per_round
        start = algorithm.state_from_start
        start = sp.csr_array(algorithm.model_from_state.T) if start is None else start
        rounds = [RecursionMaps(None, None, None, None, start), *self._rounds(None)]
        sizes = {"input_size": algorithm.num_nodes, "out_size": size, "state_size": algorithm.sizes["state"]}
        operator = OutputRecursion(rounds, **sizes, input_of_step=[0, *[-1] * len(algorithm.rounds)])
        after = Selection(np.arange(size, operator.shape[0]), operator.shape[0])  # without what is before all rounds
        return Matrix(self.S.operator @ (after @ operator), "M", self.S.blocks[0], [algorithm.num_nodes])

    def _rounds(self, enter: Map) -> list[RecursionMaps]:
        maps = [
            RecursionMaps(kind.message_from_state, enter, kind.state_from_message, kind.state_from_state)
            for kind in self.algorithm.kinds
        ]
        return [maps[kind] for kind in self.algorithm.kind_of_round]

    @cached_property
    def Q(self) -> Matrix:
        """Messages of a round <- the gradients of its step, without those that enter the state."""
        rounds, steps = self.algorithm.rounds, self.algorithm.step_of_round
        blocks = {(r, t): rounds[r].message_from_gradient for r, t in enumerate(steps) if t >= 0}
        size = (self.algorithm.messages_per_round, self.algorithm.num_nodes)
        return _placed(blocks, (len(rounds), self.algorithm.num_steps), size, "Q", "Q_t")

    @cached_property
    def S(self) -> Matrix:
        """Rows <- all messages. Raises: UnsupportedMechanism: models are made of more than the messages of a round."""
        algorithm, M = self.algorithm, self.algorithm.model_from_state
        if self.rows == "messages":
            sent, name = algorithm.sent, "I" if algorithm.sent.all() else "S"
            selection = Selection(np.flatnonzero(sent.ravel()), sent.size)
            return Matrix(selection, name, sent.sum(axis=1).tolist(), self.W_T.blocks[0])
        beside = [(k.state_from_state, k.state_from_gradient, k.state_from_noise) for k in algorithm.kinds]
        if any(part is not None and (M @ part).nnz for parts in beside for part in parts):
            raise UnsupportedMechanism(
                f"models of {algorithm.name} depend on more than the messages of their round; use "
                "models_from_gradients() and models_from_noise() of the algorithm."
            )
        averages = [None if k.state_from_message is None else M @ k.state_from_message for k in algorithm.kinds]
        last = [r - 1 for r, t in enumerate(algorithm.step_of_round) if t > 0] + [len(algorithm.rounds) - 1]
        blocks = {(t, r): averages[algorithm.kind_of_round[r]] for t, r in enumerate(last)}
        size = (algorithm.num_nodes, algorithm.messages_per_round)
        return _placed(blocks, (algorithm.num_steps, len(algorithm.rounds)), size, "S", "W")

    @cached_property
    def commutation(self) -> Matrix:
        return _commutation(self.algorithm.num_steps, self.algorithm.num_nodes)

    @cached_property
    def _right_inverse(self) -> Matrix | None:
        """C with N C = I where noise enters as gradients do, if N has the structure and the rank that give it."""
        algorithm, blocks = self.algorithm, self.N.blocks[::-1]
        T, causal, joint = algorithm.num_steps, algorithm.noise.causal, algorithm.noise.joint
        if not algorithm.noise_enters_with_gradients:
            return None
        if joint is not None:
            return Matrix(aslinearoperator(joint.array), "block lower triangular", *blocks)
        if causal is None or causal.is_zero:
            return None
        back = causal.mixing if causal.factor is None else np.linalg.pinv(causal.factor.toarray(), rcond=RANK_TOLERANCE)
        if np.abs(causal.mixing @ back - np.eye(algorithm.num_nodes)).max() > RESIDUAL:
            return None
        if causal.shared:
            C = causal.written.array
            return _kronecker(sp.eye_array(T) if C is None else C, back, "C_t", "F^+")
        K = _commutation(T, causal.columns_per_step)
        encoders = [sp.csr_array(causal.column_encoder(k)) for k in range(causal.columns_per_step)]
        each = sp.block_diag(encoders, format="csr")
        product = K @ aslinearoperator(each) @ K.T
        formula = "K diag(C_k) K^T" + ("" if causal.factor is None else " (I (x) F^+)")
        return Matrix(product @ Kronecker(sp.eye_array(T), back), formula, *blocks)

    def plot(self) -> Figure:
        from matplotlib.figure import Figure  # as for a single matrix

        panels = [("A", self.A), ("B", self.B), ("W_T", self.W_T)]
        with contextlib.suppress(UnsupportedMechanism):
            panels.insert(2, ("C", self.C))
        figure = Figure(figsize=(3 * len(panels), 3.5), layout="constrained")
        for ax, (name, matrix) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            matrix.plot(ax, title=name if matrix.formula == name else f"{name} = {matrix.formula}")
        return figure

    def __repr__(self) -> str:
        try:
            encoder = f"C = {self.C!r}"
        except UnsupportedMechanism as error:
            encoder = str(error)
        head = f"{self.algorithm.name}: {self.rows} = A G + B Z"
        return "\n".join([head, f"A = {self.A!r}", f"B = {self.B!r}", encoder, f"{self.noising} = {self.N!r}"])


def _commutation(num_steps: int, size: int) -> Matrix:
    node_major = TimeNodeAxis(num_steps, size).node_major()
    step_major = np.argsort(node_major)  # exact: integers
    return Matrix(Selection(step_major, node_major.size), "K", [size] * num_steps, [num_steps] * size)


def _product(*factors: Matrix | str) -> str:
    names = [factor if isinstance(factor, str) else factor.formula for factor in factors]
    return " ".join(f"({name})" if "(x)" in name else name for name in names if name != "I")


def _kronecker(
    time: FloatArray | sp.sparray, space: FloatArray | sp.sparray, time_name: str, space_name: str
) -> Matrix:
    formula = f"{_name(time, time_name)} (x) {_name(space, space_name)}"
    (p, T), (q, n) = time.shape, space.shape
    return Matrix(Kronecker(time, space), formula, [q] * p, [n] * T)


def _name(matrix: Map | FloatArray, otherwise: str = "") -> str:
    """Name of a matrix, c I_n if it is a multiple of the identity."""
    if matrix is None:
        return "0"
    entries = sp.coo_array(matrix)
    diagonal = entries.diagonal()
    if matrix.shape[0] != matrix.shape[1] or entries.nnz != diagonal.size or len(set(diagonal) | {0.0}) != 2:
        return otherwise
    return {1.0: "", -1.0: "-"}.get(diagonal[0], f"{diagonal[0]:g} ") + f"I_{diagonal.size}"


def _placed(
    blocks: dict[tuple[int, int], Map], grid: tuple[int, int], size: tuple[int, int], name: str, block_name: str
) -> Matrix:
    """Blocks at their places: a Kronecker product where all are multiples of one block."""
    blocks_at_places = [sp.csr_array(size) if block is None else sp.csr_array(block) for block in blocks.values()]
    units, scales = [blocks_at_places[0]] * len(blocks_at_places), [1.0] * len(blocks_at_places)
    if any((block != blocks_at_places[0]).nnz for block in blocks_at_places):
        scales = [float(block.data[0]) if block.nnz else 1.0 for block in blocks_at_places]
        units = [sp.csr_array(block / scale) for block, scale in zip(blocks_at_places, scales, strict=True)]
    at = [sp.csr_array(([scale], ([r], [t])), shape=grid) for (r, t), scale in zip(blocks, scales, strict=True)]
    if not any((unit != units[0]).nnz for unit in units):
        return _kronecker(sp.csr_array(sum(at)), units[0], "E", block_name)
    whole = sum(sp.kron(place, unit) for place, unit in zip(at, units, strict=True))
    return Matrix(aslinearoperator(sp.csr_array(whole)), name, [size[0]] * grid[0], [size[1]] * grid[1])


Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """Quantities that an observer knows.

    Attributes:
        models: every model at which a gradient is taken, before that; final_models: those after the last round too.
        injections: every injected sum; never so unless noise enters exactly where gradients do.
        hidden_states, hidden_messages: bool (state,) and (messages,), not known in some round.
    """

    models: bool
    final_models: bool
    injections: bool
    hidden_states: Mask
    hidden_messages: Mask


def flow(algorithm: LinearRecursion, seen: Mask, known_gradients: Mask, known_noise: Mask) -> Flow:
    """Follows what is known from round to round.

    Args: seen: bool (rounds, messages); known_gradients: (T, n); known_noise: (T, parts per step).
    Cost: a few products with the patterns of the maps per distinct round.
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


def separates_private_noise(algorithm: LinearRecursion) -> bool:
    """Whether, with all that is sent seen, a node's private noise says nothing of any other node.

    Then one view serves every victim. Private is what one node alone holds. With known quantities taken off, rows of a
    view are linked where they share a hidden state, a message, a gradient or a part of the noise; rows of two links are
    two views. So it is enough that no link holds the gradients or the private noise of two nodes. Models may be
    released: each is a row. (Their average would be one row of all nodes.)
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
    owner = np.concatenate([np.arange(n), holders[np.flatnonzero(private)].indices])
    of = link[np.concatenate([first[2] + np.arange(n), first[3] + np.flatnonzero(private)])]
    return len(np.unique(of)) == len(np.unique(of * np.int64(n) + owner))


class _Patterns:
    """Non-zero entries of the maps of one round, and what follows from earlier knowledge."""

    def __init__(self, maps: Sequence[sp.csr_array], together: bool) -> None:
        self.P, self.Q, self.R, self.K, self.F, self.J, self.L = maps
        self.together = together

    def after(self, state: Mask, seen: Mask, gradients: Mask, slots: Mask) -> tuple[Mask, Mask, Mask]:
        """Known messages and injected sums of the round, and known state after it."""
        unread, sums = _touched(self.P, ~state), np.zeros(gradients.size, dtype=bool)
        if self.together:
            gradients = slots = sums = self._sums(seen & ~unread, gradients & slots)
        messages = seen | ~(unread | _touched(self.Q, ~gradients) | _touched(self.R, ~slots))
        carried = _touched(self.K, ~messages) | _touched(self.F, ~state)
        return messages, sums, ~(carried | _touched(self.J, ~gradients) | _touched(self.L, ~slots))

    def _sums(self, readable: Mask, known: Mask) -> Mask:
        """Injected sums that stand in a readable row of Q beside known ones alone."""
        rows = self.Q[np.flatnonzero(readable)]
        while True:
            alone = rows[np.flatnonzero(rows @ (~known).astype(float) == 1)]
            more = known | _touched(alone.T, np.ones(alone.shape[0], dtype=bool))
            if (more == known).all():
                return known
            known = more


_PATTERNS: WeakKeyDictionary[LinearRecursion, tuple[list[_Patterns], NDArray[np.intp]]] = WeakKeyDictionary()


def _patterns(algorithm: LinearRecursion) -> tuple[list[_Patterns], NDArray[np.intp]]:
    if algorithm in _PATTERNS:
        return _PATTERNS[algorithm]
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
    _PATTERNS[algorithm] = [*patterns.values()], np.array(of_kind, dtype=np.intp)
    return _PATTERNS[algorithm]


def _ones(matrix: Any) -> sp.csr_array:
    return sp.csr_array(matrix != 0, dtype=np.float64)


def _touched(pattern: sp.csr_array, columns: Mask) -> Mask:
    """The rows of a pattern with an entry in one of the columns."""
    return np.asarray(pattern @ columns.astype(np.float64)) > 0

"""Rounds: exchanges of messages, as sparse maps between state, gradients, injected noise and messages; their recursion.

With s the state, g the gradients of the step and e = (N Z)_t its injected noise:

    m       = P s + Q g + R e               messages, one row per sender
    s'      = K m + F s + J g + L e         next state
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from .. import matrices
from ..check import FloatArray
from ..display import short_repr
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..noise import NoiseOperator
from ..operators import Map, OutputRecursion, RecursionMaps, StateRecursion, TimeNodeAxis
from ..spec import storable

Made = TypeVar("Made")
Source: TypeAlias = Literal["gradient", "noise"]
"""What enters a round."""

# field: (rows, columns), S messages, s state, n gradients, e injection slots
SHAPES = {
    "message_from_state": ("messages", "state"),
    "message_from_gradient": ("messages", "nodes"),
    "message_from_noise": ("messages", "injection slots"),
    "state_from_message": ("state", "messages"),
    "state_from_state": ("state", "state"),
    "state_from_gradient": ("state", "nodes"),
    "state_from_noise": ("state", "injection slots"),
    "receivers": ("messages", "nodes"),
}
MAPS = tuple(name for name in SHAPES if name != "receivers")


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """The maps P, Q, R, K, F, J, L above; None is the zero map.

    Dense or sparse, they are kept as read-only csr arrays without stored zeros; what is one already is shared.
    Attributes: receivers: of each message, bool (messages, n); None: broadcast.
    Raises: InvalidInput: entries that are not finite real numbers or out of range, shapes that do not fit together.
    """

    __repr__ = short_repr

    message_from_state: Map = None
    message_from_gradient: Map = None
    message_from_noise: Map = None
    state_from_message: Map = None
    state_from_state: Map = None
    state_from_gradient: Map = None
    state_from_noise: Map = None
    receivers: Map = None

    def __post_init__(self) -> None:
        self._take(vars(self).copy())

    def _take(self, given: dict[str, Map]) -> None:
        checked = matrices.once(_checked)
        for name, matrix in given.items():
            object.__setattr__(self, name, None if matrix is None else checked(matrix, name))
        self.require_sizes({})
        for name in given:
            if name in MAPS and getattr(self, name) is not None and getattr(self, name).nnz == 0:
                object.__setattr__(self, name, None)

    @classmethod
    def from_recursion(cls, maps: RecursionMaps, receivers: Map = None, *, like: Round | None = None) -> Round:
        """Gradients and noise both enter as the input of these maps; those shared with `like` are checked already."""
        Q, J = maps.out_from_input, maps.state_from_input
        given = (maps.out_from_state, Q, Q, maps.state_from_out, maps.state_from_state, J, J, receivers)
        return cls(*given) if like is None else like.with_maps(**dict(zip(SHAPES, given, strict=True)))

    def with_maps(self, **maps: Map) -> Round:
        other = copy.copy(self)
        other._take({name: matrix for name, matrix in maps.items() if matrix is not getattr(self, name)})
        return other

    def require_sizes(self, sizes: dict[str, int]) -> None:
        """Raises: InvalidInput: a map of other sizes than those given by name, or than another map has."""
        known = {space: (size, "the algorithm") for space, size in sizes.items()}
        for name, axes in SHAPES.items():
            matrix = getattr(self, name)
            for axis, space in enumerate(axes) if matrix is not None else ():
                size, owner = known.setdefault(space, (matrix.shape[axis], name))
                if matrix.shape[axis] != size:
                    raise InvalidInput(
                        f"{name} must have shape ({axes[0]}, {axes[1]}) with {size} {space}, as {owner} has, got "
                        f"{matrix.shape}."
                    )

    @property
    def noise_enters_with_gradients(self) -> bool:
        pairs = zip(self._entering("gradient"), self._entering("noise"), strict=True)
        return all(a is b or map_digest(a) == map_digest(b) for a, b in pairs)

    def maps(self) -> list[sp.csr_array]:
        return [matrix for name in MAPS if (matrix := getattr(self, name)) is not None]

    @property
    def injects(self) -> bool:
        return any(matrix is not None for matrix in self._entering("gradient") + self._entering("noise"))

    def driven_by(self, source: Source) -> RecursionMaps:
        Q, J = self._entering(source)
        return RecursionMaps(self.message_from_state, Q, self.state_from_message, self.state_from_state, J)

    def _entering(self, source: Source) -> tuple[Map, Map]:
        if source == "gradient":
            return self.message_from_gradient, self.state_from_gradient
        return self.message_from_noise, self.state_from_noise


class LinearRecursion:
    """Rounds in their order, and the operators that follow from their maps. Attributes: those of `LinearAlgorithm`."""

    name: str
    dynamics: Dynamics
    rounds: tuple[Round, ...]
    noise: NoiseOperator
    model_from_state: sp.csr_array
    message_sender: NDArray[np.intp]
    step_of_round: tuple[int, ...]
    transmitted: NDArray[np.bool_]
    state_from_start: sp.csr_array | None
    kinds: tuple[Round, ...]
    kind_of_round: NDArray[np.intp]

    @property
    def sent(self) -> NDArray[np.bool_]:
        """`transmitted` for each round, shape (rounds, messages per round), read-only."""
        return np.broadcast_to(self.transmitted, (len(self.rounds), self.messages_per_round))

    @cached_property
    def noise_enters_with_gradients(self) -> bool:
        """Whether every view is a function of G + N Z and of start models: same maps, one slot per node."""
        return self.noise.slots_per_step == self.num_nodes and all(
            kind.noise_enters_with_gradients for kind in self.kinds
        )

    @cached_property
    def holders(self) -> sp.csr_array:
        """Nodes that know each part of the noise, its sender among them: bool csr (parts per step, n)."""
        return sp.csr_array(self.noise.holders(), dtype=bool)

    @property
    def num_nodes(self) -> int:
        return self.dynamics.num_nodes

    @cached_property
    def num_steps(self) -> int:
        return max(self.step_of_round) + 1

    @property
    def messages_per_round(self) -> int:
        return self.message_sender.size

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "messages": self.messages_per_round,
            "state": self.model_from_state.shape[1],
            "nodes": self.num_nodes,
            "injection slots": self.noise.slots_per_step,
        }

    @property
    def axis(self) -> TimeNodeAxis:
        """Index of the gradient rows: time x nodes."""
        return TimeNodeAxis(self.num_steps, self.num_nodes)

    def _recursion(self, form: Callable[..., Made], source: Source, **options: Any) -> Made:
        maps, sizes = [kind.driven_by(source) for kind in self.kinds], self.sizes
        return form(
            [maps[kind] for kind in self.kind_of_round],
            input_size=sizes["nodes" if source == "gradient" else "injection slots"],
            out_size=sizes["messages"],
            state_size=sizes["state"],
            input_of_step=self.step_of_round,
            **options,
        )

    @cached_property
    def messages_from_gradients(self) -> OutputRecursion:
        """All message rows <- G: shape (rounds * messages, T * n); rows time-major."""
        return self._recursion(OutputRecursion, "gradient")

    @cached_property
    def messages_from_injected_noise(self) -> OutputRecursion:
        return self._recursion(OutputRecursion, "noise")

    @property
    def messages_from_noise(self) -> LinearOperator:
        """All message rows <- Z: shape (rounds * messages, columns of N)."""
        return self.messages_from_injected_noise @ self.noise

    def models_from_gradients(self, *, final: bool = False) -> StateRecursion:
        """The models at which gradients are taken (steps 0..T-1), or the final ones, <- G; start models removed."""
        return self._recursion(StateRecursion, "gradient", model_from_state=self.model_from_state, final=final)

    def models_from_injected_noise(self, *, final: bool = False) -> StateRecursion:
        return self._recursion(StateRecursion, "noise", model_from_state=self.model_from_state, final=final)

    def models_from_noise(self, *, final: bool = False) -> LinearOperator:
        return self.models_from_injected_noise(final=final) @ self.noise


def with_input_scale(rounds: Iterable[Round], gradients: FloatArray, noise: FloatArray | None) -> list[Round]:
    """Columns of gradients, and of injection slots, multiplied by these numbers; shared maps stay shared."""
    times = matrices.once(
        lambda matrix, by: None if matrix is None else matrices.with_entries(matrix, matrix.data * by[matrix.indices])
    )
    scales = {"gradient": gradients} if noise is None else {"gradient": gradients, "noise": noise}
    names = [(f"{place}_from_{source}", by) for source, by in scales.items() for place in ("message", "state")]
    return [
        exchange.with_maps(**{name: times(getattr(exchange, name), by) for name, by in names}) for exchange in rounds
    ]


def _checked(given: Any, name: str) -> sp.csr_array:
    return matrices.sparse_mask(receivers=given) if name == "receivers" else matrices.sparse_matrix(**{name: given})


def distinct(rounds: Iterable[Round]) -> tuple[tuple[Round, ...], NDArray[np.intp]]:
    """(the distinct rounds, which of them each is), by content; equal maps become one object."""
    digest = digests()
    of_map: dict[bytes, Map] = {}
    of_round: dict[bytes, tuple[int, Round]] = {}

    def number(exchange: Round) -> int:
        content = b"".join(map(digest, vars(exchange).values()))
        if content not in of_round:
            shared = {name: of_map.setdefault(digest(matrix), matrix) for name, matrix in vars(exchange).items()}
            same = all(shared[name] is matrix for name, matrix in vars(exchange).items())
            of_round[content] = len(of_round), exchange if same else Round(**shared)
        return of_round[content][0]

    numbers = np.array([*map(matrices.once(number), rounds)], dtype=np.intp)
    return tuple(exchange for _, exchange in of_round.values()), matrices.read_only(numbers)


def map_digest(matrix: Map) -> bytes:
    """32 bytes of shape and entries of a map as `Round` keeps it; 32 zeros for the zero map."""
    return digests()(matrix)


def digests() -> Callable[[Map], bytes]:
    """`map_digest` for many maps in one pass: a map, and places that maps share, are read once, by identity."""
    begun: dict[tuple[Any, ...], tuple[Sequence[Any], Any]] = {}

    def map_digest_once(matrix: Map) -> bytes:
        if matrix is None:
            return bytes(32)
        places = matrix.indptr, matrix.indices
        key = matrix.shape, *map(id, places)
        if key not in begun:
            begun[key] = places, _digest_of_places(matrix)
        digest = begun[key][1].copy()
        digest.update(np.ascontiguousarray(matrix.data))
        return bytes(digest.digest())

    return matrices.once(map_digest_once)


def _digest_of_places(matrix: sp.csr_array) -> Any:
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    digest = hashlib.sha256(repr(matrix.shape).encode())
    digest.update(rows.tobytes())
    digest.update(matrix.indices.astype(np.int64).tobytes())
    return digest

"""LinearAlgorithm: a decentralized learning algorithm as one linear recursion.

Written once per algorithm, read by everybody: per step, sparse maps take state, gradients and injected noise to
messages and the next state, and one operator N says how base noise Z becomes injected noise. From these come the
message operators (<- G, <- Z), their transposes, the operator of the models at which gradients are taken, the
released models and the executor. An algorithm knows nothing of attackers; that is `mfdl.trust`.

A step has one round with gradients and noise, and possibly more rounds of pure gossip. One round, with s the state, g
the gradients and e = (N Z)_t the injected noise:

    m       = P s + Q g + R e               messages, one row per sender
    s'      = K m + F s + J g + L e         next state
    models  = M s                           where the gradients of this step were taken

G stacks SUMS of clipped per-record gradients. A node's public divisor multiplies its columns of Q, R, J and L
alike (`with_divisors`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from ..axes import TimeNodeAxis
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..operators import NoiseOperator, OutputRecursion, RecursionMaps, StateRecursion
from ..operators.recursion import Map
from ..participation import Participation

if TYPE_CHECKING:
    from ..factorization import Factorization, NodeFactorizations, SpaceTimeFactorization, SpatialFactorization


MAX_DIVISOR_RATIO = 1e6


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """The maps P, Q, R, K, F, J, L above, as csr arrays; None is the zero map.

    `receivers` marks who gets each message, shape (messages, n); None: nobody in particular (broadcast).
    """

    message_from_state: Map
    message_from_gradient: Map
    message_from_noise: Map
    state_from_message: Map
    state_from_state: Map = None
    state_from_gradient: Map = None
    state_from_noise: Map = None
    receivers: Map = None

    def driven_by_gradients(self) -> RecursionMaps:
        """The recursion with the gradients as input."""
        return RecursionMaps(
            self.message_from_state,
            self.message_from_gradient,
            self.state_from_message,
            self.state_from_state,
            self.state_from_gradient,
        )

    def driven_by_noise(self) -> RecursionMaps:
        """The recursion with the injected noise as input."""
        return RecursionMaps(
            self.message_from_state,
            self.message_from_noise,
            self.state_from_message,
            self.state_from_state,
            self.state_from_noise,
        )

    def with_input_scale(self, scale: FloatArray, *, noise_too: bool) -> Round:
        """Gradient (and noise) columns of node u multiplied by scale[u]."""
        diagonal = sp.diags_array(scale)

        def scaled(matrix: Map) -> Map:
            return None if matrix is None else sp.csr_array(matrix @ diagonal)

        gradients_scaled = dataclasses.replace(
            self,
            message_from_gradient=scaled(self.message_from_gradient),
            state_from_gradient=scaled(self.state_from_gradient),
        )
        if not noise_too:
            return gradients_scaled
        return dataclasses.replace(
            gradients_scaled,
            message_from_noise=scaled(self.message_from_noise),
            state_from_noise=scaled(self.state_from_noise),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class LinearAlgorithm:
    """One algorithm on one graph for a number of steps.

    Attributes:
        name: registry name, e.g. "mafalda".
        dynamics: gossip and step size; `rounds` were built from it.
        participation: who takes part when; its num_steps is T.
        rounds: one `Round` per communication round (equal rounds share the object).
        noise: N, injected noise = N Z.
        model_from_state: M, shape (n, state).
        message_sender: sender of each message row of a round, shape (messages per round,).
        divisors: public batch sizes m_u already applied to the rounds, shape (n,); ones by default.
        step_of_round: gradient step of each round, -1 for pure gossip; default one round per step.
        transmitted: which message rows are sent at all, shape (messages per round,); default all.
        noise_on_messages: noise is added to messages, not to gradient sums, so divisors leave it alone.
        factorization: the certified factorization behind the noise, if there is one.
    """

    name: str
    dynamics: Dynamics
    participation: Participation
    rounds: tuple[Round, ...]
    noise: NoiseOperator
    model_from_state: sp.csr_array
    message_sender: NDArray[np.intp]
    divisors: FloatArray
    factorization: Factorization | NodeFactorizations | SpatialFactorization | SpaceTimeFactorization | None = None
    step_of_round: tuple[int, ...] = ()
    transmitted: NDArray[np.bool_] = dataclasses.field(default_factory=lambda: np.ones(0, dtype=bool))
    noise_on_messages: bool = False

    def __post_init__(self) -> None:
        if not self.step_of_round:
            object.__setattr__(self, "step_of_round", tuple(range(len(self.rounds))))
        if not self.transmitted.size:
            object.__setattr__(self, "transmitted", np.ones(self.message_sender.size, dtype=bool))
        T, n = self.num_steps, self.num_nodes
        if self.participation.num_steps != T:
            raise InvalidInput(
                f"participation has {self.participation.num_steps} steps but the algorithm has {T}; build both for "
                "the same number of steps."
            )
        self.participation.require_nodes(n)
        if (self.noise.num_steps, self.noise.num_nodes) != (T, n):
            raise InvalidInput(
                f"noise must cover {T} steps x {n} nodes, got {self.noise.num_steps} x {self.noise.num_nodes}."
            )

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.dynamics.num_nodes

    @property
    def num_steps(self) -> int:
        """T, the number of gradient steps."""
        return max(self.step_of_round) + 1

    @property
    def messages_per_round(self) -> int:
        """Message rows of one round."""
        return self.message_sender.size

    @property
    def axis(self) -> TimeNodeAxis:
        """Index of the gradient rows: time x nodes."""
        return TimeNodeAxis(self.num_steps, self.num_nodes)

    def _sizes(self, input_size: int) -> dict[str, Any]:
        return {
            "input_size": input_size,
            "out_size": self.message_sender.size,
            "state_size": self.model_from_state.shape[1],
            "input_of_step": self.step_of_round,
        }

    @cached_property
    def messages_from_gradients(self) -> OutputRecursion:
        """All message rows <- G: shape (rounds * messages, T * n); rows time-major."""
        return OutputRecursion([r.driven_by_gradients() for r in self.rounds], **self._sizes(self.num_nodes))

    @cached_property
    def messages_from_injected_noise(self) -> OutputRecursion:
        """All message rows <- injected noise."""
        return OutputRecursion([r.driven_by_noise() for r in self.rounds], **self._sizes(self.noise.slots_per_step))

    @property
    def messages_from_noise(self) -> LinearOperator:
        """All message rows <- Z: shape (rounds * messages, columns of N)."""
        return self.messages_from_injected_noise @ self.noise

    def models_from_gradients(self, *, final: bool = False) -> StateRecursion:
        """The models at which gradients are taken (steps 0..T-1), or the final ones, <- G; start models removed."""
        return self._models([r.driven_by_gradients() for r in self.rounds], self.num_nodes, final)

    def models_from_noise(self, *, final: bool = False) -> LinearOperator:
        """The same models <- Z."""
        maps = [r.driven_by_noise() for r in self.rounds]
        return self._models(maps, self.noise.slots_per_step, final) @ self.noise

    def _models(self, maps: list[RecursionMaps], input_size: int, final: bool) -> StateRecursion:
        sizes = self._sizes(input_size)
        return StateRecursion(maps, **sizes, model_from_state=self.model_from_state, final=final)

    def with_divisors(self, divisors: ArrayLike) -> LinearAlgorithm:
        """The same algorithm on batch means: gradients and noise of node u are divided by the public m_u.

        Args: divisors: m_u > 0, shape (n,), constants that do not depend on who takes part; the largest at most
            MAX_DIVISOR_RATIO times the smallest, since columns fainter than that could pass for rounding.
        """
        m = np.array(divisors, dtype=np.float64)
        if m.shape != (self.num_nodes,) or not (np.isfinite(m) & (m > 0)).all():
            raise InvalidInput(f"divisors must be {self.num_nodes} finite numbers > 0, one per node, got {m}.")
        if m.max() > MAX_DIVISOR_RATIO * m.min():
            raise InvalidInput(
                f"divisors must lie within a factor of {MAX_DIVISOR_RATIO:g}, got {m.min():g} to {m.max():g}; give "
                "nodes batches of comparable size."
            )
        scale = self.divisors / m
        of_round = {id(r): r for r in self.rounds}
        scaled = {
            key: one.with_input_scale(scale, noise_too=not self.noise_on_messages) for key, one in of_round.items()
        }
        rounds = tuple(scaled[id(r)] for r in self.rounds)
        return dataclasses.replace(self, rounds=rounds, divisors=m)

    @cached_property
    def content_hash(self) -> str:
        """16 hex digits of everything that decides its messages: maps in step order, noise, participation, divisors."""
        facts = [self.name, self.num_steps, self.num_nodes, self.participation.to_dict(), type(self.noise).__name__]
        digest = hashlib.sha256(json.dumps(facts).encode())
        of_round = {id(one): _round_digest(one) for one in self.rounds}
        for one in self.rounds:
            digest.update(of_round[id(one)])
        digest.update(_map_digest(self.model_from_state))
        digest.update(np.ascontiguousarray(self.message_sender, dtype=np.int64).tobytes())
        digest.update(np.array(self.step_of_round, dtype=np.int64).tobytes() + self.transmitted.tobytes())
        digest.update(np.ascontiguousarray(self.divisors).tobytes())
        digest.update(self.noise.content())
        return digest.hexdigest()[:16]


def _map_digest(matrix: Map) -> bytes:
    """32 bytes of shape and entries, the same for every way to store them; 32 zeros for the zero map."""
    if matrix is None:
        return bytes(32)
    entries = sp.coo_array(matrix)
    entries.sum_duplicates()
    digest = hashlib.sha256(repr(matrix.shape).encode())
    for part in (*(index.astype(np.int64) for index in entries.coords), entries.data):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def _round_digest(one: Round) -> bytes:
    return b"".join(_map_digest(getattr(one, field.name)) for field in dataclasses.fields(one))

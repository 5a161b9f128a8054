"""LinearAlgorithm: a decentralized learning algorithm as one linear recursion.

Written once per algorithm, read by everybody: per step, sparse maps take state, gradients and injected noise to
messages and the next state, and one operator N says how base noise Z becomes injected noise. From these come the
message operators (<- G, <- Z), their transposes, the operator of the models at which gradients are taken, the
released models and the executor. An algorithm knows nothing of attackers; that is `mfdl.trust`.

One round of step t, with s the state, g the gradients and e = (N Z)_t the injected noise:

    m       = P s + Q g + R e               messages, one row per sender
    s'      = K m + F s + J g + L e         next state
    models  = M s                           where the gradients of this step were taken

G stacks SUMS of clipped per-record gradients. A node's public divisor multiplies its columns of Q, R, J and L
alike (`with_divisors`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

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
    from ..factorization import Factorization, NodeFactorizations


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """The maps P, Q, R, K, F, J, L above, as csr arrays; None is the zero map."""

    message_from_state: Map
    message_from_gradient: Map
    message_from_noise: Map
    state_from_message: Map
    state_from_state: Map = None
    state_from_gradient: Map = None
    state_from_noise: Map = None

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

    def with_input_scale(self, scale: FloatArray) -> Round:
        """Gradient and noise columns of node u multiplied by scale[u]."""
        diagonal = sp.diags_array(scale)

        def scaled(matrix: Map) -> Map:
            return None if matrix is None else sp.csr_array(matrix @ diagonal)

        return dataclasses.replace(
            self,
            message_from_gradient=scaled(self.message_from_gradient),
            message_from_noise=scaled(self.message_from_noise),
            state_from_gradient=scaled(self.state_from_gradient),
            state_from_noise=scaled(self.state_from_noise),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class LinearAlgorithm:
    """One algorithm on one graph for a number of steps.

    Attributes:
        name: registry name, e.g. "mafalda".
        dynamics: gossip and step size; `rounds` were built from it.
        participation: who takes part when; its num_steps is T.
        rounds: one `Round` per step (equal steps share the object).
        noise: N, injected noise = N Z.
        model_from_state: M, shape (n, state).
        message_sender: sender of each message row of a round, shape (messages per round,).
        divisors: public batch sizes m_u already applied to the rounds, shape (n,); ones by default.
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
    factorization: Factorization | NodeFactorizations | None = None

    def __post_init__(self) -> None:
        T, n = len(self.rounds), self.num_nodes
        if self.participation.num_steps != T:
            raise InvalidInput(
                f"participation has {self.participation.num_steps} steps but the algorithm has {T}; build both for "
                "the same number of steps."
            )
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
        """T."""
        return len(self.rounds)

    @property
    def axis(self) -> TimeNodeAxis:
        """Index of the gradient rows: time x nodes."""
        return TimeNodeAxis(self.num_steps, self.num_nodes)

    @property
    def _sizes(self) -> dict[str, int]:
        return {
            "input_size": self.num_nodes,
            "out_size": self.message_sender.size,
            "state_size": self.model_from_state.shape[1],
        }

    @cached_property
    def messages_from_gradients(self) -> OutputRecursion:
        """A of the transmitted messages: shape (T * messages, T * n); rows time-major."""
        return OutputRecursion([r.driven_by_gradients() for r in self.rounds], **self._sizes)

    @cached_property
    def messages_from_injected_noise(self) -> OutputRecursion:
        """Messages <- injected noise; B is this times `noise`."""
        return OutputRecursion([r.driven_by_noise() for r in self.rounds], **self._sizes)

    @property
    def messages_from_noise(self) -> LinearOperator:
        """B of the transmitted messages: shape (T * messages, columns of Z)."""
        return self.messages_from_injected_noise @ self.noise

    def models_from_gradients(self, *, final: bool = False) -> StateRecursion:
        """The models at which gradients are taken (steps 0..T-1), or the final ones, <- G; start models removed."""
        maps = [r.driven_by_gradients() for r in self.rounds]
        return StateRecursion(maps, **self._sizes, model_from_state=self.model_from_state, final=final)

    def models_from_noise(self, *, final: bool = False) -> LinearOperator:
        """The same models <- Z."""
        maps = [r.driven_by_noise() for r in self.rounds]
        operator = StateRecursion(maps, **self._sizes, model_from_state=self.model_from_state, final=final)
        return operator @ self.noise

    def with_divisors(self, divisors: ArrayLike) -> LinearAlgorithm:
        """The same algorithm on batch means: gradients and noise of node u are divided by the public m_u.

        Args: divisors: m_u > 0, shape (n,), constants that do not depend on who takes part.
        """
        m = np.array(divisors, dtype=np.float64)
        if m.shape != (self.num_nodes,) or not (np.isfinite(m) & (m > 0)).all():
            raise InvalidInput(
                f"divisors must be {self.num_nodes} finite numbers > 0, one per node, got {m}."
            )
        scale = self.divisors / m
        made: dict[int, Round] = {}
        rounds = tuple(made.setdefault(id(r), r.with_input_scale(scale)) for r in self.rounds)
        return dataclasses.replace(self, rounds=rounds, divisors=m)

    @cached_property
    def content_hash(self) -> str:
        """16 hex digits of everything that decides its messages: maps, noise, divisors."""
        digest = hashlib.sha256(f"{self.name}|{self.num_steps}|{self.num_nodes}".encode())
        for one in dict.fromkeys(self.rounds):
            for field in dataclasses.fields(one):
                matrix = getattr(one, field.name)
                if matrix is not None:
                    for part in (matrix.indptr, matrix.indices, matrix.data):
                        digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(type(self.noise).__name__.encode())
        digest.update(self.noise.content())
        digest.update(np.ascontiguousarray(self.divisors).tobytes())
        return digest.hexdigest()[:16]

"""LinearAlgorithm: a decentralized learning algorithm as one linear recursion, which is accounted and trained.

Its steps are the rounds of `round`, one with gradients and noise and possibly more of pure gossip; models M s are those
at the start of a step, where its gradients are taken. G stacks SUMS of clipped per-record gradients; a node's public
divisor multiplies its columns of Q, R, J and L alike (`with_divisors`). Attackers are for `mfdl.trust`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices, objective
from ..check import FloatArray
from ..display import Shown
from ..dynamics import Dynamics, PlainRounds
from ..entries import to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from ..noise import NoiseOperator
from ..noise.general import require_joint_size
from ..objective import ErrorWeights
from ..objective.error_weights import ALL_MODELS
from ..operators import WeightedStates
from ..participation import Participation
from ..released import ReleasedModel
from ..spec import storable
from . import building
from .round import LinearRecursion, Round, Source, digests, distinct, map_digest, with_input_scale
from .workloads import Flow, Rows, Workload, flow, separates_private_noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..factorization import Factorization
    from ..factorization.nodes import NodeFactorizations
    from ..factorization.seeded_covariances import SpatialFactorization
    from ..factorization.spatio_temporal import SpatioTemporalFactorization
    from ..factorization.trust_noise import LocalCovariances

    CertifiedNoise: TypeAlias = (
        Factorization | NodeFactorizations | SpatialFactorization | SpatioTemporalFactorization | LocalCovariances
    )

SHOWN_SIZE = 400  # nodes x steps up to which a notebook draws the matrices


@storable
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearAlgorithm(LinearRecursion, Shown):
    """One algorithm on one graph for a number of steps.

    Attributes:
        dynamics: gossip and step size; `rounds` were built from it.
        noise: N, injected noise = N Z.
        model_from_state: M, shape (n, state).
        message_sender: sender of each message row of a round, shape (messages per round,).
        divisors: public batch sizes m_u already applied to the rounds, shape (n,).
        step_of_round: gradient step of each round, 0 .. T - 1 in order, -1 for pure gossip; default one round per step.
        transmitted: which message rows are sent, shape (messages per round,), or (rounds, messages per round); default
            all. Others stay with their sender.
        noise_on_messages: noise is added to messages, so divisors leave it alone.
        state_from_start: the state before step 0 from the public start models, shape (state, n); default M transposed.
        released: which linear map of the trajectory is evaluated and published; default the final models.
        kinds: the distinct rounds, in order of appearance; kind_of_round: which of them each round is.

    All arrays are kept read-only: what was accounted is what runs.
    Raises: InvalidInput: sizes that do not fit, steps out of order, a gossip round that injects something, a message
        used by a node that does not receive it, or noise in a message whose sender does not hold it.
    Cost: what one product with the maps costs, for each distinct round.
    """

    name: str
    dynamics: Dynamics
    participation: Participation
    rounds: tuple[Round, ...]
    noise: NoiseOperator
    model_from_state: sp.csr_array
    message_sender: NDArray[np.intp]
    divisors: FloatArray
    factorization: CertifiedNoise | None = None
    step_of_round: tuple[int, ...] = ()
    transmitted: NDArray[np.bool_] = dataclasses.field(default_factory=lambda: np.ones(0, dtype=bool))
    noise_on_messages: bool = False
    state_from_start: sp.csr_array | None = None
    released: ReleasedModel = dataclasses.field(default_factory=ReleasedModel)
    kinds: tuple[Round, ...] = dataclasses.field(init=False, repr=False)
    kind_of_round: NDArray[np.intp] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidInput(f"name must be a text, got {type(self.name).__name__}.")
        building.require_types(**{name: getattr(self, name) for name in building.TYPES})
        building.require_rounds(self.rounds)
        kinds, kind_of_round = distinct(self.rounds)
        fields = {
            "kinds": kinds,
            "kind_of_round": kind_of_round,
            "rounds": tuple(kinds[kind] for kind in kind_of_round),
            "model_from_state": matrices.sparse_matrix(model_from_state=self.model_from_state),
            "message_sender": matrices.integers(
                np.size(self.message_sender), self.num_nodes, message_sender=self.message_sender
            ),
            "divisors": building.divisors(self.divisors, self.num_nodes),
        }
        if self.state_from_start is not None:
            fields["state_from_start"] = matrices.sparse_matrix(state_from_start=self.state_from_start)
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "step_of_round", building.step_of_round(self.step_of_round, self.rounds))
        marks = building.transmitted(self.transmitted, len(self.rounds), self.messages_per_round)
        object.__setattr__(self, "transmitted", marks)
        check.instance(ReleasedModel, released=self.released)
        self.released.weights_by_step(self.num_steps)
        self._require_consistent()

    def _require_consistent(self) -> None:
        T, n, noise = self.num_steps, self.num_nodes, self.noise
        if self.participation.num_steps != T:
            raise InvalidInput(
                f"participation has {self.participation.num_steps} steps but the algorithm has {T}; build both for "
                "the same number of steps."
            )
        self.participation.require_nodes(n)
        self.dynamics.learning_rates(T)
        if (noise.num_steps, noise.num_nodes) != (T, n):
            raise InvalidInput(f"noise must cover {T} steps x {n} nodes, got {noise.num_steps} x {noise.num_nodes}.")
        building.require_models(self.model_from_state, n)
        sizes = self.sizes
        for kind in self.kinds:
            kind.require_sizes(sizes)
        start = self.state_from_start
        if start is not None and start.shape != (sizes["state"], n):
            raise InvalidInput(f"state_from_start must have shape {(sizes['state'], n)}, got {start.shape}.")
        building.require_receivers(self.rounds, self.model_from_state, self.message_sender, self.sent)
        if noise.slots_per_step != n:  # else a slot is its node's, and the operator itself has looked
            building.require_held_by_senders(self.kinds, noise, self.message_sender)

    def stored_fields(self) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self) if field.name != "rounds"]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_stored(cls, kinds: Sequence[Round], kind_of_round: NDArray[np.intp], **fields: Any) -> LinearAlgorithm:
        """The algorithm of stored fields; no guarantee rests on what its factorization claims of itself."""
        return cls(rounds=tuple(kinds[kind] for kind in kind_of_round), **fields)

    def _sentence(self) -> str:
        return f"{self.name} on {self.num_nodes} nodes, {self.num_steps} steps: {self.noise.describe()}"

    def _rows(self) -> list[tuple[str, str]]:
        certified = [] if self.factorization is None else [("factorization", repr(self.factorization))]
        rounds = f"{len(self.rounds)}, {len(self.kinds)} of them distinct, {self.messages_per_round} messages each"
        return [
            ("gossip", self.dynamics.gossip.describe()),
            ("rounds", rounds),
            ("participation", self.participation.describe()),
            ("noise", self.noise.describe()),
            *([] if self.released.is_last else [("released", self.released.describe())]),
            *certified,
        ]

    def _figure(self) -> Figure | None:
        few = self.num_nodes * self.num_steps <= SHOWN_SIZE
        return self.workload().plot() if few else None

    @cached_property
    def is_plain(self) -> bool:
        """Whether the rounds are those that `dynamics` describes, up to rounding, with noise where gradients are.

        Then the error Gram matrices of `dynamics` are those of the algorithm. Builders know it; else the maps decide.
        """
        plain = PlainRounds(self.dynamics)
        schedule = plain.schedule(self.num_steps)
        if self.noise_on_messages or not self.noise_enters_with_gradients:
            return False
        if self.step_of_round != tuple(step for step, _, _ in schedule):
            return False
        each = zip(self.kind_of_round.tolist(), schedule, strict=True)
        pairs = {(kind, id(W), rate): (kind, W, rate) for kind, (_, W, rate) in each}
        return building.close(self.model_from_state, plain.model_from_state) and all(
            building.close(has, wanted)
            for kind, W, rate in pairs.values()
            for has, wanted in zip(
                vars(self.kinds[kind].driven_by("gradient")).values(),
                vars(plain.step_maps(W, rate, self.divisors)).values(),
                strict=True,
            )
        )

    def known_plain(self) -> LinearAlgorithm:
        vars(self)["is_plain"] = True
        return self

    def with_fields(self, **fields: Any) -> LinearAlgorithm:
        """A copy with other fields, none of which decides whether it is plain."""
        copy = dataclasses.replace(self, **fields)
        return copy.known_plain() if self.is_plain else copy

    def named(self, name: str, *, factorization: Any = None) -> LinearAlgorithm:
        """The same under another name, and with the factorization that it came from, if one is given."""
        source = self.factorization if factorization is None else factorization
        return self.with_fields(name=name, factorization=source)

    @cached_property
    def sent_flow(self) -> Flow:
        nothing = np.broadcast_to(np.zeros(1, dtype=bool), (self.num_steps, self.num_nodes))
        parts = np.broadcast_to(np.zeros(1, dtype=bool), (self.num_steps, self.noise.columns_per_step))
        return flow(self, self.sent, nothing, parts)

    @property
    def released_by_messages(self) -> bool:
        """Whether all messages that are sent determine what is released."""
        known = self.sent_flow
        return known.final_models and (self.released.is_last or known.models)

    @property
    def divisors_cancel(self) -> bool:
        """Whether public divisors do not change the privacy loss: all messages together show the injected sums."""
        return self.noise_enters_with_gradients and self.sent_flow.injections

    @cached_property
    def private_noise_is_separate(self) -> bool:
        return separates_private_noise(self)

    @property
    def labels(self) -> tuple[Hashable, ...]:
        return self.dynamics.gossip.labels

    def releasing(self, released: ReleasedModel | str) -> LinearAlgorithm:
        """The same algorithm with another model evaluated and published: "last", "average:48", or a `ReleasedModel`.

        Raises: InvalidInput: an average over more models than there are.
        """
        return self.with_fields(released=ReleasedModel(released) if isinstance(released, str) else released)

    @cached_property
    def released_after_rounds(self) -> dict[int, float]:
        """Weights other than 0 of the released models by their number of rounds."""
        begins = [r for r, step in enumerate(self.step_of_round) if step >= 0]
        weights = self.released.weights_by_step(self.num_steps).tolist()
        return {r: a for r, a in zip([*begins[1:], len(self.rounds)], weights, strict=True) if a}

    @cached_property
    def released_by_gossip(self) -> sp.csr_array | None:
        """W^g, the averaging of what is released after training, csr (n, n); None where there is none."""
        return self.released.further_gossip(self.dynamics.gossip, self.num_steps * self.dynamics.gossip_rounds)

    @cached_property
    def released_from_gradients(self) -> WeightedStates:
        """Released models before further gossip <- G, shape (n, T * n); start models removed."""
        return self._released("gradient")

    @cached_property
    def released_from_injected_noise(self) -> WeightedStates:
        return self._released("noise")

    def _released(self, source: Source) -> WeightedStates:
        of = {"model_from_state": self.model_from_state, "weights": self.released_after_rounds}
        return self._recursion(WeightedStates, source, **of)

    def first_steps(self, steps: int) -> LinearAlgorithm:
        """The algorithm of the first steps, or a few more (`Participation.first_steps`); it sends what this one does.

        Raises: UnsupportedMechanism: a participation or a noise that cannot be cut.
        """
        participation = self.participation.first_steps(steps)
        T = participation.num_steps
        if self.num_steps <= T:
            return self
        last, rate, dynamics = self.step_of_round.index(T), self.dynamics.learning_rate, self.dynamics
        if not isinstance(rate, float):
            dynamics = dataclasses.replace(dynamics, learning_rate=rate[:T])
        fields: dict[str, Any] = {"dynamics": dynamics, "participation": participation}
        fields |= {
            "noise": self.noise.first_steps(T),
            "rounds": self.rounds[:last],
            "step_of_round": self.step_of_round[:last],
        }
        fields |= {"transmitted": self.transmitted if self.transmitted.ndim == 1 else self.transmitted[:last]}
        return dataclasses.replace(self, **fields, factorization=None, released=ReleasedModel())

    def workload(self, rows: Rows = "messages") -> Workload:
        """The matrices A, B, C, W_T of the papers, of all sent messages, or of the "models" after each step."""
        return Workload(self, rows)

    def error_gram(self, weights: ErrorWeights = ALL_MODELS, counted_models: str = "post-average") -> FloatArray:
        """H of any noise on gradients at a first learning rate of 1: (T n, T n), time-major.

        Raises: UnsupportedMechanism: noise that enters elsewhere, a curvature of the loss; see `effects_of_noise`.
        """
        if not self.noise_enters_with_gradients:
            raise UnsupportedMechanism(
                f"an encoder is factorized for noise that enters with gradients, and that of {self.name!r} enters "
                "elsewhere."
            )
        if weights.curvature is not None:
            raise UnsupportedMechanism("a curvature is covered for mfdl.Dynamics, not for an algorithm; leave it out.")
        total = np.zeros((1, 1))
        for factor, counted in objective.NoiseObjective(self.dynamics, self.num_steps, weights, counted_models).kinds:
            effects = self.effects_of_noise(counted)
            total = total + factor * effects.T @ effects
        return total / float(self.dynamics.learning_rates(self.num_steps)[0]) ** 2

    def effects_of_noise(self, counted: objective.NoiseObjective) -> FloatArray:
        """Effects of injected noise on the counted models, times the roots of their weights: (rows, T slots).

        Raises: UnsupportedMechanism: messages count, or T n above MAX_JOINT_SIZE.
        """
        T, n = self.num_steps, self.num_nodes
        require_joint_size(T, n, "take mfdl.Dynamics, whose error has closed forms")
        if not counted.after_averaging:
            raise UnsupportedMechanism(
                "messages of a recursion that is not plain gossip do not count; post-average does."
            )
        rows = counted.weights.node_factor(n)
        if counted.released is not None:
            releasing = self.releasing(counted.released)
            rows = rows if releasing.released_by_gossip is None else rows @ releasing.released_by_gossip
            return np.asarray(releasing.released_from_injected_noise.rmatmat(rows.T.toarray())).T
        later = [to_dense(self.models_from_injected_noise(final=final)) for final in (False, True)]
        models = np.concatenate(later)[n:].reshape(T, n, -1)
        weighted = np.sqrt(counted.step_weights)[:, None, None] * np.stack([rows @ model for model in models])
        return np.asarray(weighted.reshape(-1, weighted.shape[2]))

    def with_divisors(self, divisors: ArrayLike) -> LinearAlgorithm:
        """The same algorithm on batch means: gradients and noise of node u are divided by the public m_u.

        Args: divisors: m_u > 0, shape (n,), constants that do not depend on who takes part; the largest at most
            MAX_DIVISOR_RATIO times the smallest.
        Raises: InvalidInput: divisors out of range, or slots with noise of several nodes.
        """
        m = building.divisors(divisors, self.num_nodes)
        scale = self.divisors / m
        of_slots = None if self.noise_on_messages else scale[self._slot_owners()]
        scaled = with_input_scale(self.kinds, scale, of_slots)
        rounds = tuple(scaled[kind] for kind in self.kind_of_round)
        return self.with_fields(rounds=rounds, divisors=m)

    def _slot_owners(self) -> NDArray[np.intp]:
        """The one node that holds all noise of each slot, 0 for a slot without noise; raises InvalidInput."""
        if self.noise.slots_per_step == self.num_nodes:
            return np.arange(self.num_nodes)
        columns = self.noise.pattern().astype(int)
        users = sp.csr_array(columns @ self.holders.astype(int))
        users.data = users.data == np.repeat(columns.sum(axis=1), np.diff(users.indptr))  # holds every column
        users.eliminate_zeros()
        holders, noisy = np.diff(users.indptr), np.diff(columns.indptr) > 0
        if (holders[noisy] != 1).any():
            raise InvalidInput(
                f"divisors divide a node's noise, and {self.name!r} has {self.noise.slots_per_step} injection slots, "
                f"not each with noise of one of the {self.num_nodes} nodes; say noise_on_messages=True if noise is "
                "added to messages."
            )
        owners = np.zeros(len(noisy), dtype=np.intp)
        owners[noisy] = users.indices[np.repeat(noisy, holders)]
        return owners

    @property
    def content_hash(self) -> str:
        """16 hex digits of everything that decides its messages: maps in step order, noise, participation, divisors."""
        facts = [self.name, self.num_steps, self.num_nodes, self.participation.to_dict(), self.noise.kind]
        digest = hashlib.sha256(json.dumps(facts).encode())
        of_map = digests()
        of_kind = [b"".join(map(of_map, vars(kind).values())) for kind in self.kinds]
        for kind in self.kind_of_round:
            digest.update(of_kind[kind])
        digest.update(map_digest(self.model_from_state))
        digest.update(np.ascontiguousarray(self.message_sender, dtype=np.int64).tobytes())
        digest.update(np.array(self.step_of_round, dtype=np.int64).tobytes() + self.transmitted.tobytes())
        digest.update(np.ascontiguousarray(self.divisors).tobytes())
        digest.update(self.noise.content())
        if self.state_from_start is not None:
            digest.update(map_digest(self.state_from_start))
        if not self.released.is_last:  # hashes from before there was anything else stay as they were
            digest.update(self.released.describe().encode())
        return digest.hexdigest()[:16]

"""The system under audit, what a run of it emits, and what one attacker reads in it.

Trials are coordinates: each coordinate of a run is a run of its own for one-dimensional models, since the maps act on
every coordinate alike and the noise of coordinates is independent; a trial takes COORDINATES of them, so that a canary
can be spread. A subclass of `Training` with another `stream` or `clip`, or any object with `run`, is audited by the
same call.

Gradients of the other records may depend on models: g = c x in a sum of many records. Then G = G_c + c F (M G + M_z Z)
with M, M_z from gradients and noise to the models and F the mask of unknown gradients, which is again linear,

    O = A (I - c F M)^-1 G_c + (B + A (I - c F M)^-1 c F M_z) Z,

and I - c F M has an inverse since models come before gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput
from ..noise.stream import NoiseStream
from ..training.clipping import clipped_sums
from ..training.executor import Executor, Releasing, one_thread
from ..training.keys import NoiseKey
from ..training.shared_randomness import HolderKeys, base_columns
from ..training.streams import noise_stream
from ..trust import TrustModel
from ..trust.knowledge import Knowledge, Mask
from ..trust.view import AlgorithmView, View

COORDINATES = 2
MAX_ROWS = 1500  # what is seen, and gradients: the audit is dense, cubic in these
MAX_COLUMNS = 6000  # parts of the base noise over all steps
ROUNDING = 1e-10  # relative to what is added up in a row
RANK_TOLERANCE = 1e-10  # singular values of the noise, relative, below which a direction counts as free of noise


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Transcript:
    """All that a run emits, rows time-major; models: what each node releases, by default the final ones.

    Shapes (rounds * messages per round, trials * COORDINATES) and (n, trials * COORDINATES).
    """

    __repr__ = short_repr

    messages: FloatArray
    models: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class CanaryRecords:
    """Records of the victim in one run.

    Attributes: sizes: signed norm of the raw gradient of each record at each step, zero where it does not take part,
        shape (T, m); directions: orthonormal rows over the d >= m coordinates of the model, shape (m, d).
    """

    victim: int
    sizes: FloatArray
    directions: FloatArray

    def gradients(self, step: int) -> FloatArray:
        return np.asarray(self.sizes[step][:, None] * self.directions)


class AuditedSystem(Protocol):
    """Anything that can be audited; `joined`, if it has one, is its own sampler for `BallsInBins` (`bin_draws`)."""

    def run(self, canary: FloatArray, feedback: FloatArray, *, trials: int, key: NoiseKey) -> Transcript:
        """Trains from models zero, `trials` times with independent noise.

        Args:
            canary: raw gradient of one record at every step and node, shape (T, n, COORDINATES), to be clipped; zero
                where it does not take part. All other records of node u together add feedback[t, u] times the node's
                model to the sum of step t.
            key: the secrets of this run are `HolderKeys.simulated(key)`.
        """
        ...


class OneRunSystem(Protocol):
    """Anything that can be audited in a single run."""

    def run_once(self, records: CanaryRecords, *, key: NoiseKey) -> Transcript:
        """Trains once from models zero, in d dimensions, on these records, to be clipped, alone; `key` as in `run`."""
        ...


class Training:
    """The library's own training path; before steps in `resume_at` it starts anew from the key, as a resumed run."""

    def __init__(
        self, algorithm: LinearAlgorithm, *, noise_std: float, clip_norm: float, resume_at: tuple[int, ...] = ()
    ) -> None:
        self.algorithm, self.noise_std, self.clip_norm = algorithm, noise_std, clip_norm
        self.resume_at = resume_at

    def stream(self, key: NoiseKey, dim: int, first_step: int) -> NoiseStream:
        return noise_stream(self.algorithm.noise, self.noise_std, key, dim)

    def clip(self, gradients: torch.Tensor) -> torch.Tensor:
        """Clipped gradients, one record a row: of every node, (n, COORDINATES), or of one node, (m, d)."""
        present = torch.ones(gradients.shape[0], 1, dtype=torch.bool)
        return clipped_sums([gradients.unsqueeze(1)], present, self.clip_norm)[0]

    def run(self, canary: FloatArray, feedback: FloatArray, *, trials: int, key: NoiseKey) -> Transcript:

        def gradients(t: int, models: torch.Tensor) -> torch.Tensor:
            clipped = self.clip(torch.tensor(canary[t], dtype=torch.float64))
            return clipped.repeat(1, trials) + torch.tensor(feedback[t], dtype=torch.float64)[:, None] * models

        with one_thread():
            return self._transcript(gradients, trials * COORDINATES, key)

    def run_once(self, records: CanaryRecords, *, key: NoiseKey) -> Transcript:

        def gradients(t: int, models: torch.Tensor) -> torch.Tensor:
            summed = torch.zeros_like(models)
            summed[records.victim] = self.clip(torch.tensor(records.gradients(t))).sum(0)
            return summed

        with one_thread():
            return self._transcript(gradients, records.directions.shape[1], key)

    def _transcript(
        self, gradients: Callable[[int, torch.Tensor], torch.Tensor], dim: int, key: NoiseKey
    ) -> Transcript:
        n, executor = self.algorithm.num_nodes, Executor(self.algorithm, dtype=torch.float64)
        stream = self.stream(key, dim, 0)
        state = executor.initial_state(torch.zeros(n, dim, dtype=torch.float64))
        sent, releasing = [], Releasing(executor, dim)
        for t in range(self.algorithm.num_steps):
            if t in self.resume_at:
                executor, stream = Executor(self.algorithm, dtype=torch.float64), self.stream(key, dim, t)
            noise = torch.tensor(stream.step(t), dtype=torch.float64)
            messages, state = executor.step(t, state, gradients(t, executor.models(state)), noise)
            sent.append(messages.numpy())
            releasing.after(t, state)
        return Transcript(np.concatenate(sent), releasing.models(state).numpy())


# ---- rows of a transcript --------------------------------------------------------------------------------------------


def with_all_noise(view: View, algorithm: LinearAlgorithm, knowledge: Knowledge) -> View:
    """The same view with the noise that is known left in B."""
    everything = dataclasses.replace(knowledge, known_noise=np.zeros_like(knowledge.known_noise))
    return AlgorithmView(algorithm, everything, release=view.release, attacker=view.attacker)


def seen_rows(algorithm: LinearAlgorithm, knowledge: Knowledge, messages: FloatArray) -> FloatArray:
    """What is seen of all messages, (rounds * messages of a round, d); of others some may not be finite."""
    if knowledge.combination is None:
        return np.asarray(messages[np.flatnonzero(knowledge.seen.ravel())])
    return np.asarray(knowledge.rows(algorithm) @ messages)


def with_models(rows: FloatArray, models: FloatArray, release: str) -> FloatArray:
    """The rows, and below them what nodes release, "all" or the "average" over them."""
    return np.concatenate([rows, models if release == "all" else models.mean(axis=0, keepdims=True)])


def by_round(algorithm: LinearAlgorithm, messages: ArrayLike) -> FloatArray:
    """Messages given by step or by round, as (rounds, messages of a round, d).

    Raises: InvalidInput: another shape; nothing is broadcast.
    """
    R, S, T = len(algorithm.rounds), algorithm.messages_per_round, algorithm.num_steps
    sent = _numbers("messages", messages)
    by_step, of_round = (T, R * S // T), (R, S)
    if sent.ndim != 3 or sent.shape[:2] not in (by_step, of_round):
        either = "" if by_step == of_round else f"({by_step[0]}, {by_step[1]}, d) for {T} steps, or "
        raise InvalidInput(
            f"messages must have shape {either}({R}, {S}, d) for {R} rounds of {S} messages, got shape {sent.shape}; "
            "record every step of the run, in order."
        )
    return sent.reshape(R, S, sent.shape[2])


def without_gradients(algorithm: LinearAlgorithm, models: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(messages, what is released) that start models alone would give, shapes (rounds, messages, d) and (n, d)."""
    start = algorithm.state_from_start
    state = (algorithm.model_from_state.T if start is None else start) @ models
    sent, released = [], np.zeros_like(models, dtype=np.float64)
    for number, step in enumerate(algorithm.rounds, start=1):
        size = (algorithm.messages_per_round, models.shape[1])
        message = np.zeros(size) if step.message_from_state is None else step.message_from_state @ state
        after = np.zeros_like(state) if step.state_from_message is None else step.state_from_message @ message
        if step.state_from_state is not None:
            after = after + step.state_from_state @ state
        sent.append(message)
        state = after
        released += algorithm.released_after_rounds.get(number, 0.0) * (algorithm.model_from_state @ state)
    return np.stack(sent), released


def shaped(name: str, given: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array = check.finite_array(len(shape), **{name: given})
    if array.shape != shape:
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def known_part(name: str, given: ArrayLike, known: Mask, d: int) -> FloatArray:
    """`given`, of shape (*known.shape, d), where `known`, else zero: the rest is not read and may be nan."""
    array, shape = _numbers(name, given), (*known.shape, d)
    if array.shape != shape:  # before np.where, which would broadcast it
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}; what is not known may be nan.")
    return check.finite_array(len(shape), **{name: np.where(known[..., None], array, 0.0)})


def _numbers(name: str, given: ArrayLike) -> FloatArray:
    try:
        array = np.asarray(given)
        if array.dtype.kind in "USc":  # numpy would read texts as numbers and drop imaginary parts
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} must be an array of real numbers, got {type(given).__name__}.") from None


# ---- the attacker ----------------------------------------------------------------------------------------------------


def anything_is_seen(algorithm: LinearAlgorithm, trust: TrustModel, *, release: str | None = None) -> bool:
    members = ((model, victims) for model, victims in trust.members(algorithm) if victims)
    views = (model.view(algorithm, victims[0], release=release) for model, victims in members)
    return any(view.gradients.shape[0] for view in views)


@dataclasses.dataclass(frozen=True, eq=False)
class Observation:
    """One attacker's view of one algorithm.

    Attributes:
        gradients: A, shape (rows, T n); noise: B of all base noise, known parts included, shape (rows, m).
        known_noise: bool (m,); knowledge, release: of the view.
        feedback: c F, shape (T, n), of the other records' gradients.
    """

    algorithm: LinearAlgorithm
    knowledge: Knowledge
    release: str
    gradients: FloatArray
    noise: FloatArray
    feedback: FloatArray

    @staticmethod
    def from_trust(
        algorithm: LinearAlgorithm, trust: TrustModel, victim: int, *, release: str | None = None
    ) -> Observation:
        """The view of one trust model with a single view, without feedback.

        Raises: InvalidInput: the view is too large for dense matrices.
        """
        view = trust.view(algorithm, victim, release=release)
        rows, columns = max(view.noise.shape[0], view.axis.size), view.noise.shape[1]
        if rows > MAX_ROWS or columns > MAX_COLUMNS:
            raise InvalidInput(
                f"an audit is dense and takes at most {MAX_ROWS} rows and gradients and {MAX_COLUMNS} parts of noise, "
                f"got {rows} and {columns}; audit the mechanism on a smaller graph or for fewer steps."
            )
        whole = with_all_noise(view, algorithm, view.knowledge)
        none = np.zeros((algorithm.num_steps, algorithm.num_nodes))
        A, B = whole.dense_gradients_by_time(), whole.dense_noise()
        return Observation(algorithm, view.knowledge, view.release, A, B, none)

    def rounding(self, noise_std: float, norm: float) -> FloatArray:
        """Size below which what is left of each row can be rounding, > 0; norm: of the gradients."""
        noise, gradients = (np.linalg.norm(part, axis=1) for part in (self.noise, self.gradients))
        return np.maximum(ROUNDING * (noise_std * noise + norm * gradients), 1e-120)  # its square is no zero

    def with_feedback(self, factor: float, *, fixed: int | None = None) -> Observation:
        """The same view where unknown gradients, but at a `fixed` node, are `factor` times the node's model."""
        M = self.algorithm.models_from_gradients().to_dense()
        from_noise = self.algorithm.models_from_noise()
        M_z = np.asarray(from_noise.matmat(np.eye(from_noise.shape[1])))
        feedback = np.asarray(factor * ~self.knowledge.known_gradients, dtype=np.float64)
        if fixed is not None:
            feedback[:, fixed] = 0.0
        reacting = feedback.ravel()[:, None]
        closed = np.asarray(np.linalg.solve((np.eye(len(M)) - reacting * M).T, self.gradients.T).T, dtype=np.float64)
        return dataclasses.replace(
            self, gradients=closed, noise=self.noise + closed @ (reacting * M_z), feedback=feedback
        )

    @property
    def known_noise(self) -> Mask:
        return self.knowledge.known_noise.ravel()

    def rows(self, transcript: Transcript, key: NoiseKey, noise_std: float) -> FloatArray:
        """O without what the attacker knows, (rows, coordinates). Raises: InvalidInput: missing messages."""
        algorithm = self.algorithm
        expected = len(algorithm.rounds) * algorithm.messages_per_round
        given = np.shape(transcript.messages)
        if len(given) != 2 or given[0] != expected:
            raise InvalidInput(
                f"this view needs the messages of {len(algorithm.rounds)} rounds with {algorithm.messages_per_round} "
                f"each, {expected} rows, but the transcript has shape {given}; let the system keep every message."
            )
        seen = seen_rows(algorithm, self.knowledge, transcript.messages)
        if self.release in ("all", "average"):
            if np.shape(transcript.models) != (algorithm.num_nodes, given[1]):
                raise InvalidInput(
                    f"this view needs the final models of {algorithm.num_nodes} nodes, but the transcript has shape "
                    f"{np.shape(transcript.models)}; let the system return its models."
                )
            seen = with_models(seen, transcript.models, self.release)
        if not np.isfinite(seen).all():
            raise InvalidInput("the transcript lacks messages that this view sees: some of its entries are not finite.")
        known = np.flatnonzero(self.known_noise)
        if known.size:
            T, columns = algorithm.num_steps, algorithm.noise.columns_per_step
            wanted = np.unique(known % columns)  # the same base noise that the attacker makes from its own secrets
            base = base_columns(algorithm.noise, HolderKeys.simulated(key), wanted).block(np.arange(T), given[1])
            Z = np.zeros((T, columns, given[1]))
            Z[:, wanted] = base
            seen = seen - noise_std * self.noise[:, known] @ Z.reshape(T * columns, -1)[known]
        return np.asarray(seen, dtype=np.float64)

    def by_trial(self, rows: FloatArray) -> FloatArray:
        return rows.reshape(len(rows), rows.shape[1] // COORDINATES, COORDINATES).transpose(1, 0, 2)

    def whitener(self) -> FloatArray:
        """P with P (B B^T) P^T = I over the unknown noise; P^T P acts as (B B^T)^+ on what B reaches."""
        B = self.noise[:, ~self.known_noise]
        scale = np.maximum(np.linalg.norm(B, axis=1), 1e-300)
        used = scale > 1e-300
        if not used.any():
            return np.zeros((0, len(B)))
        U, sigma, _ = np.linalg.svd(B[used] / scale[used, None], full_matrices=False)
        noisy = sigma > RANK_TOLERANCE * sigma[0]
        P = np.zeros((int(noisy.sum()), len(B)))
        P[:, used] = (U[:, noisy] / sigma[noisy]).T / scale[used]
        return P

    def victim_columns(self, victim: int) -> FloatArray:
        return self.gradients[:, victim :: self.algorithm.num_nodes]

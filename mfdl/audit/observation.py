"""What one attacker has, as dense matrices, and what it can do with a transcript.

In: an algorithm, a trust model, and how the other records react to models. Out: (A, B) of the claimed recursion over
all gradients and all base noise, the attacker's rows of a transcript with what it knows subtracted, and the best
statistic for a canary: the likelihood ratio of the claimed Gaussian, d^T (B B^T)^+ o for a shift d.

Gradients of the other records may depend on models: g = c x in a sum of many records. Then G = G_c + c F (M G + M_z Z)
with M, M_z from gradients and noise to the models and F the mask of unknown gradients, which is again linear,

    O = A (I - c F M)^-1 G_c + (B + A (I - c F M)^-1 c F M_z) Z,

and I - c F M has an inverse since models come before gradients.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput
from ..training.keys import NoiseKey
from ..training.shared_randomness import HolderKeys, base_columns
from ..trust import TrustModel
from ..view import Knowledge, Mask
from .system import COORDINATES, Transcript
from .transcripts import seen_rows, with_all_noise, with_models

MAX_ROWS = 1500  # what is seen, and gradients: the audit is dense, cubic in these
MAX_COLUMNS = 6000  # parts of the base noise over all steps
ROUNDING = 1e-10  # relative to what is added up in a row
RANK_TOLERANCE = 1e-10  # singular values of the noise, relative, below which a direction counts as free of noise


def anything_is_seen(algorithm: LinearAlgorithm, trust: TrustModel, *, release: str | None = None) -> bool:
    """Whether the view of any victim has a row."""
    views = (model.view(algorithm, asked[0], release=release) for model, asked in trust.members(algorithm) if asked)
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
    def of(algorithm: LinearAlgorithm, trust: TrustModel, victim: int, *, release: str | None = None) -> Observation:
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
        """For each row the size below which what is left of it can be rounding, > 0; norm: of the gradients."""
        noise, gradients = (np.linalg.norm(part, axis=1) for part in (self.noise, self.gradients))
        return np.maximum(ROUNDING * (noise_std * noise + norm * gradients), 1e-120)  # its square is no zero

    def with_feedback(self, factor: float, *, fixed: int | None = None) -> Observation:
        """The same view where every unknown gradient of the other records is `factor` times the node's model.

        Args: fixed: a node all of whose gradients are fixed.
        """
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
        """Parts of the base noise that the attacker knows, bool (m,)."""
        return self.knowledge.known_noise.ravel()

    def rows(self, transcript: Transcript, key: NoiseKey, noise_std: float) -> FloatArray:
        """O without what the attacker knows, shape (rows, coordinates).

        Raises: InvalidInput: the transcript does not hold the messages that this view sees.
        """
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
        """(trials, rows, COORDINATES), also for a view without rows."""
        return rows.reshape(len(rows), rows.shape[1] // COORDINATES, COORDINATES).transpose(1, 0, 2)

    def whitener(self) -> FloatArray:
        """P with P (B B^T) P^T = I over the unknown noise; P^T P acts as (B B^T)^+ on what B reaches."""
        B = self.noise[:, ~self.known_noise]
        scale = np.maximum(np.linalg.norm(B, axis=1), 1e-300)
        used = scale > 1e-300
        if not used.any():
            return np.zeros((0, len(B)))
        U, sigma, _ = np.linalg.svd(B[used] / scale[used, None], full_matrices=False)
        kept = sigma > RANK_TOLERANCE * sigma[0]
        P = np.zeros((int(kept.sum()), len(B)))
        P[:, used] = (U[:, kept] / sigma[kept]).T / scale[used]
        return P

    def columns_of(self, victim: int) -> FloatArray:
        """A_u, shape (rows, T)."""
        return self.gradients[:, victim :: self.algorithm.num_nodes]

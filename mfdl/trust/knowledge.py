"""Knowledge: which messages, gradients and noise of an algorithm an attacker sees or knows, as masks."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..algorithms import LinearAlgorithm
from ..display import short_repr
from ..errors import InvalidInput

Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class Knowledge:
    """Three masks: seen messages, known gradients and known noise of one algorithm.

    Attributes:
        seen: bool (rounds, messages per round).
        known_gradients: bool (T, n).
        known_noise: bool (T, parts of the base noise per step).
        combination: csr (c, messages per round) seen in every round in which something is sent, instead of single
            messages, of those that `combined` counts; or None.
    """

    __repr__ = short_repr

    seen: Mask
    known_gradients: Mask
    known_noise: Mask
    combination: sp.csr_array | None = None

    @staticmethod
    def from_masks(
        algorithm: LinearAlgorithm,
        *,
        seen: ArrayLike | None = None,
        known_gradients: ArrayLike | None = None,
        known_noise: ArrayLike | None = None,
        combination: sp.csr_array | None = None,
    ) -> Knowledge:
        """Checked masks; None is nothing; a mask without the time axis holds for every round or step."""
        T, n = algorithm.num_steps, algorithm.num_nodes
        return Knowledge(
            checked_mask("seen", seen, (len(algorithm.rounds), algorithm.messages_per_round)),
            checked_mask("known_gradients", known_gradients, (T, n)),
            checked_mask("known_noise", known_noise, (T, algorithm.noise.columns_per_step)),
            combination,
        )

    def rows(self, algorithm: LinearAlgorithm) -> sp.csr_array:
        """Seen <- all message rows, 0/1 or the combinations, csr (seen, rounds * messages)."""
        if self.combination is not None:
            of_rounds = np.flatnonzero(algorithm.sent.any(axis=1))
            picks = (np.ones(of_rounds.size), (np.arange(of_rounds.size), of_rounds))
            rounds = sp.csr_array(picks, shape=(of_rounds.size, len(algorithm.rounds)))
            rows = sp.csr_array(sp.kron(rounds, self.combination))
            counted = combined(algorithm)
            return rows if counted.all() else sp.csr_array(rows @ sp.diags_array(counted.ravel().astype(np.float64)))
        index = np.flatnonzero(self.seen.ravel())
        return sp.csr_array((np.ones(index.size), (np.arange(index.size), index)), (index.size, self.seen.size))

    def sees_all(self, algorithm: LinearAlgorithm) -> bool:
        """Whether every message that is sent is seen by itself."""
        return self.combination is None and bool((self.seen >= algorithm.sent).all())

    def with_all_sent(self, algorithm: LinearAlgorithm) -> Knowledge:
        """The same with every message that is sent seen besides, each by itself."""
        return dataclasses.replace(self, seen=self.seen | algorithm.sent, combination=None)

    def digest(self) -> str:
        digest = hashlib.sha256(repr((self.seen.shape, self.known_gradients.shape, self.known_noise.shape)).encode())
        for mask in (self.seen, self.known_gradients, self.known_noise):
            digest.update(np.packbits(mask).tobytes())
        if self.combination is not None:
            digest.update(self.combination.toarray().tobytes())
        return digest.hexdigest()[:16]

    def covers(self, other: Knowledge) -> bool:
        if other.combination is not None:
            mine, theirs = self.combination, other.combination
            same = mine is not None and mine.shape == theirs.shape and (mine != theirs).nnz == 0
            if not (same or bool(self.seen[:, np.unique(other.combination.indices)].all())):
                return False
        return bool(
            (self.seen >= other.seen).all()
            and (self.known_gradients >= other.known_gradients).all()
            and (self.known_noise >= other.known_noise).all()
        )


def combined(algorithm: LinearAlgorithm) -> Mask:
    """Messages of a round that are combined, bool (rounds, messages): those sent in it, and those never sent.

    A message that is sent in other rounds only, as by a node that is offline in this one, is not combined.
    """
    sent = algorithm.sent
    if algorithm.transmitted.ndim == 1:  # the same in every round
        return np.broadcast_to(np.ones(1, dtype=bool), sent.shape)
    return np.asarray(sent | ~sent.any(axis=0))


def checked_mask(name: str, given: ArrayLike | None, shape: tuple[int, int]) -> Mask:
    mask = np.zeros(shape[1:], dtype=bool) if given is None else check.as_array(**{name: given})
    if mask.dtype != bool or mask.shape not in (shape, shape[1:]):
        raise InvalidInput(
            f"{name} must be a boolean mask of shape {shape}, or {shape[1:]} for all times alike, got shape "
            f"{mask.shape} of {mask.dtype}."
        )
    alike = mask.ndim == 2 and len(mask) > 0 and mask.strides[0] == 0  # at all times: kept once
    return np.broadcast_to((mask[0] if alike else mask).copy(), shape)

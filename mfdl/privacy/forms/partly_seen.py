"""Views of part of the messages of plain gossip with node-local noise: what the forms for them have in common.

One gossip round a step, and the same noise known throughout. Messages of nodes whose noise is known must add nothing.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from ...check import FloatArray
from ...floats import EPS, RANK_TOLERANCE, UNIT
from ...noise import CausalNoise
from ...noise.encoder_arguments import MAX_DENSE_STEPS
from ...trust.view import AlgorithmView
from .base import KNOWN_NOISE, ViewForm, ViewGram, is_plain_gossip, remembered
from .dense_form import DenseForm
from .separable import UNPROVEN


@dataclasses.dataclass(frozen=True, eq=False)
class PartlySeen:
    """The numbers of what is seen.

    Attributes:
        weights: W of each step, csr (n, n); constant: one W for all, and the same messages seen throughout.
        dense_otherwise: the dense form could answer, and no other.
        rows: seen senders whose noise is unknown, of each step; hidden_at: unknown senders that are not seen, bool (T,
            n); hidden: those of the last step.
        unknown: bool (n,), nodes whose noise is unknown.
        scale: q = eta s / m, s the `node_scales` of the noise, shape (T, n): with it, what is found is X of gradients
            over s.
        released: K, shape (e, n): combinations of what nodes release that show noise of their own, or None;
            released_steps: a_r, the weights in it of the models after each step, shape (T,).
    """

    weights: list[sp.csr_array]
    constant: bool
    dense_otherwise: bool
    rows: list[NDArray[np.intp]]
    hidden_at: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    scale: FloatArray
    noise: CausalNoise
    released: FloatArray | None
    released_steps: FloatArray

    @classmethod
    def from_view(cls, view: AlgorithmView) -> PartlySeen | None:
        """None where a view is no such one, or where the rank of the released models cannot be told."""
        if view.knowledge.combination is not None or view.shows_injections:
            return None
        return remembered(view, f"partly seen, {view.release} released", cls._from_view)

    @classmethod
    def _from_view(cls, view: AlgorithmView) -> PartlySeen | None:
        algorithm, masks = view.algorithm, view.knowledge
        if not is_plain_gossip(algorithm):
            return None
        noise, seen, known = algorithm.noise.causal, masks.seen, masks.known_noise
        if len(algorithm.rounds) != algorithm.num_steps or noise is None or not algorithm.noise.local:
            return None
        if (known != known[0]).any():
            return None
        of_kind = [kind.state_from_message for kind in algorithm.kinds]
        if any(W is None for W in of_kind):
            return None
        weights: list[sp.csr_array] = [of_kind[number] for number in algorithm.kind_of_round]
        if not _adds_nothing(weights, seen, known[0], masks.known_gradients):
            return None
        scales = [np.abs(kind.message_from_gradient.diagonal()) for kind in algorithm.kinds]  # type: ignore[union-attr]
        constant = all(W is weights[0] for W in weights) and bool((seen == seen[0]).all())
        released, decided = _released_rows(view, weights[-1], seen[-1] | known[0])
        if not decided or not (constant or view.unreleased or algorithm.released.is_last):
            return None
        same_rows = bool((seen == seen[0]).all())
        dense_otherwise = not (algorithm.sent_flow.injections and same_rows and (constant or view.unreleased))
        if dense_otherwise and (not noise.fresh or DenseForm.from_view(view) is None):
            return None
        return cls(
            weights=weights,
            constant=constant,
            dense_otherwise=dense_otherwise,
            rows=[np.flatnonzero(of_step & ~known[0]) for of_step in seen],
            hidden_at=~known[0] & ~seen,
            unknown=~known[0],
            scale=np.stack([scales[number] for number in algorithm.kind_of_round]) * noise.node_scales,
            noise=noise,
            released=released,
            released_steps=algorithm.released.weights_by_step(algorithm.num_steps),
        )

    @property
    def rows_a_step(self) -> float:
        return float(np.mean([of_step.size for of_step in self.rows]))

    @property
    def hidden(self) -> NDArray[np.bool_]:
        return np.asarray(self.hidden_at[-1])

    @property
    def all_released(self) -> bool:
        """Whether what is released tells apart all hidden messages of the last step, or all sums over the steps."""
        return self.released is not None and len(self.released) == int(self.hidden.sum())

    @cached_property
    def alike(self) -> FloatArray | None:
        """The encoder of all nodes with the same entries at all ages, if it has them up to rounding, shape (T, T)."""
        noise, T = self.noise, len(self.scale)
        if noise.fresh or not noise.shared or (not noise.in_blocks and T > MAX_DENSE_STEPS):
            return None
        C = noise.column_encoder(0)
        alike = scipy.linalg.toeplitz(C[:, 0], np.zeros(T))
        return np.asarray(alike) if np.abs(C - alike).max() <= T * EPS * np.abs(C).max() else None

    def released_rows(self) -> tuple[FloatArray, float]:
        """(K W on the hidden nodes with rows of norm one, the norm of what they may be off by), W the last.

        Where as many combinations as hidden nodes are told apart, each of these is.
        """
        hidden = np.flatnonzero(self.hidden)
        if self.released is None or self.all_released:
            return np.eye(hidden.size)[: 0 if self.released is None else None], 0.0
        W = self.weights[-1][:, hidden].toarray()
        rows = self.released @ W
        norms = np.linalg.norm(rows, axis=1)
        sizes = np.linalg.norm(np.abs(self.released) @ np.abs(W), axis=1)
        return rows / norms[:, None], 2 * self.scale.shape[1] * EPS * float(np.linalg.norm(sizes / norms))

    def chosen(self, victims: list[int]) -> NDArray[np.intp]:
        return np.asarray([u for u in victims if self.unknown[u]], dtype=np.intp)

    def view_grams(
        self,
        victims: list[int],
        grams: FloatArray,
        norms: FloatArray,
        *,
        form: str,
        absolute: float = 0.0,
        inflation: float = 1.0,
    ) -> list[ViewGram | None]:
        """Grams of the `chosen` and of the others: |dX_st| <= norms[s] norms[t] + absolute, norms of the shape of the
        diagonals.
        """
        grams_by_content: dict[int, ViewGram] = {}
        scales = self.noise.node_scales
        why = UNPROVEN if np.isinf(inflation) else ""
        for u, X, off in zip(self.chosen(victims).tolist(), grams, norms, strict=True):
            gram = ViewGram((X + X.T) / 2, np.outer(off, off) + absolute, inflation, why=why, form=form)
            grams_by_content[u] = gram.over_noise(float(scales[u]))
        known = ViewGram.silent(len(self.scale), KNOWN_NOISE)
        return [grams_by_content.get(u, known) for u in victims]


class PartForm(ViewForm):
    def __init__(self, part: PartlySeen) -> None:
        self.part = part


def _released_rows(
    view: AlgorithmView, last: sp.csr_array, available: NDArray[np.bool_]
) -> tuple[FloatArray | None, bool]:
    """(K, rank told): combinations of what nodes release with noise of their own, or None.

    Final models are W times the last messages, and sums of models W times sums of messages. Seen messages explain the
    rest, so only the column space of W over the hidden ones counts: an orthonormal basis of it. A singular value
    between rounding level and RANK_TOLERANCE leaves the rank of W untold.
    """
    n, hidden = available.size, np.flatnonzero(~available)
    if view.unreleased or not hidden.size:
        return None, True
    K = np.full((1, n), 1.0 / n) if view.release == "average" else np.eye(n)
    U, sigma, _ = np.linalg.svd(K @ last[:, hidden].toarray(), full_matrices=False)
    scale = float(np.linalg.norm(K @ last))
    decided = not ((sigma > 4 * n * UNIT * scale) & (sigma <= RANK_TOLERANCE * scale)).any()
    nonzero = sigma > RANK_TOLERANCE * scale
    return (U[:, nonzero].T @ K if nonzero.any() else None), decided


def _adds_nothing(
    weights: list[sp.csr_array], seen: NDArray[np.bool_], inside: NDArray[np.bool_], known_gradients: NDArray[np.bool_]
) -> bool:
    """Whether messages of the nodes `inside` are implied by what is seen and known."""
    if not inside.any():
        return True
    if not known_gradients[:, inside].all():
        return False
    heard: dict[int, NDArray[np.bool_]] = {}
    for W, seen_now in zip(weights, seen, strict=True):
        if id(W) not in heard:
            heard[id(W)] = np.asarray(abs(W[np.flatnonzero(inside)]).sum(axis=0)).ravel() > 0
        if (heard[id(W)] & ~(seen_now | inside)).any():
            return False
    return True

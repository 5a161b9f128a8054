"""Canaries: gradients of one record that show as much of it as possible, and the attackers that look for them.

In: an algorithm, a trust model and what the accountant says of every victim. Out: a short list of `Canary`, each with
its attacker's view. For scalar gradients +-1 of one pattern pi the loss is s^T X_u s, X_u = A_u^T (B B^T)^+ A_u.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..participation import Participation
from ..trust import TrustModel
from .observation import Observation
from .system import COORDINATES

OVERSHOOT = 16.0  # raw gradients are this often the clipping norm: it is for the system to clip them
MAX_PATTERNS = 512
MAX_SIGNED_STEPS = 10  # signs are enumerated up to 2^9 per pattern, beyond that improved one by one
FEEDBACKS = (0.5, -0.5, 1.0, -1.0)  # of the other records, in units of 1 / learning rate
ALONG = np.array([1.0, 0.0])  # in the first coordinate alone
SPREAD = np.array([1.0, -1.0]) / np.sqrt(2.0)  # over two: cancels noise that coordinates share


@dataclasses.dataclass(frozen=True, eq=False)
class Canary:
    """One record of one victim and who looks for it.

    Attributes:
        name: in words; victim: node index; attacker: in words.
        signs: gradient of the record over steps in units of clip_norm, +-1 or 0, shape (T,).
        direction: unit vector over COORDINATES.
        view: what the attacker has.
    """

    name: str
    victim: int
    attacker: str
    signs: FloatArray
    direction: FloatArray
    view: Observation

    def gradients(self, size: float) -> FloatArray:
        """Raw gradients of norm |size|, shape (T, n, COORDINATES)."""
        raw = np.zeros((self.signs.size, self.view.algorithm.num_nodes, COORDINATES))
        raw[:, self.victim] = size * self.signs[:, None] * self.direction
        return raw

    @property
    def shift(self) -> FloatArray:
        """How far the view moves per unit of gradient norm, shape (rows,)."""
        return np.asarray(self.view.columns_of(self.victim) @ self.signs)

    def sensitivity(self) -> float:
        """sqrt(d^T (B B^T)^+ d): what the claimed mechanism loses to this canary, per unit shift and unit noise."""
        return float(np.linalg.norm(self.view.whitener() @ self.shift))


def best_signs(gram: FloatArray, participation: Participation) -> tuple[FloatArray, float]:
    """Signs over one pattern that maximise s^T X s (exactly for few steps), and that value."""
    best, value = np.zeros(len(gram)), -1.0
    for pattern in itertools.islice(participation.patterns(), MAX_PATTERNS):
        steps = np.asarray(pattern, dtype=np.intp)
        X = gram[np.ix_(steps, steps)]
        if steps.size <= MAX_SIGNED_STEPS:
            rest = np.array(list(itertools.product((1.0, -1.0), repeat=max(steps.size - 1, 0))))
            tried = np.hstack([np.ones((len(rest), 1)), rest.reshape(len(rest), -1)])[:, : steps.size]
            found = np.einsum("ij,jk,ik->i", tried, X, tried)
            signs, reached = tried[int(found.argmax())], float(found.max())
        else:
            signs, reached = _improved(X)
        if reached > value:
            best, value = np.zeros(len(gram)), reached
            best[steps] = signs
    return best, value


def _improved(X: FloatArray) -> tuple[FloatArray, float]:
    """Signs of the leading eigenvector, flipped one by one while that helps."""
    signs = np.where(np.linalg.eigh(X)[1][:, -1] >= 0, 1.0, -1.0)
    for _ in range(10 * len(X)):
        gain = -4 * signs * (X @ signs - np.diag(X) * signs)  # of flipping one sign
        step = int(gain.argmax())
        if gain[step] <= 1e-12 * abs(X).max():
            break
        signs[step] = -signs[step]
    return signs, float(signs @ X @ signs)


def candidates(
    algorithm: LinearAlgorithm,
    trust: TrustModel,
    victims: Sequence[int],
    *,
    release: str | None = None,
    unit: str = "record",
) -> list[Canary]:
    """The canaries of an audit: every victim's worst, and more for the one that loses most.

    For each victim the worst of the trust model's views, with the pattern and signs that maximise its loss. For the
    victim that loses most also: a single step, alternating signs, a canary spread over coordinates, and the worst one
    while all other gradients react to models.
    """
    worst: dict[int, Canary] = {}
    values: dict[int, float] = {}
    for model, asked in trust.members(algorithm):
        chosen = [u for u in asked if u in victims]
        if not chosen:
            continue
        view = Observation.of(algorithm, model, chosen[0], release=release)
        P = view.whitener()
        for u in chosen:
            white = P @ view.columns_of(u)
            signs, value = best_signs(white.T @ white, algorithm.participation.of_node(u))
            if value > values.get(u, -1.0):
                values[u] = value
                worst[u] = Canary("worst gradients", u, model.attacker, signs, ALONG, view)
    if not worst:
        return []
    top = worst[max(values, key=lambda u: values[u])]
    more = [dataclasses.replace(top, name="spread over coordinates", direction=SPREAD)]
    X = (w := top.view.whitener() @ top.view.columns_of(top.victim)).T @ w
    used = np.flatnonzero(top.signs)
    if used.size > 1:
        single, other = np.zeros_like(top.signs), top.signs.copy()
        single[used[int(np.diag(X)[used].argmax())]] = 1.0
        other[used[1::2]] *= -1.0
        more += [
            dataclasses.replace(top, name="a single step", signs=single),
            dataclasses.replace(top, name="other signs", signs=other),
        ]
    if algorithm.num_steps > 1:
        more.append(_reacting(top, unit))
    return [*worst.values(), *more]


def _reacting(top: Canary, unit: str) -> Canary:
    """The canary among gradients that are a function of the models, with the feedback that shows most of it.

    A user has no other records than the canary.
    """
    rate = float(np.max(top.view.algorithm.dynamics.learning_rate))
    scheme = top.view.algorithm.participation.of_node(top.victim)
    found = []
    for factor in FEEDBACKS:
        view = top.view.with_feedback(factor / rate, fixed=top.victim if unit == "user" else None)
        white = view.whitener() @ view.columns_of(top.victim)
        signs, value = best_signs(white.T @ white, scheme)
        found.append((value, dataclasses.replace(top, name="adaptive gradients", signs=signs, view=view)))
    return max(found, key=lambda pair: pair[0])[1]


def learned(canaries: Sequence[Canary], precisions: Sequence[FloatArray], claims: Mapping[int, float]) -> Canary:
    """The canary that shows most, compared with its own claim, given measured precision matrices of the noise.

    Args: precisions: inverse of the covariance of the rows of each canary's view, (rows, rows); claims: mu by victim.
    """
    found = []
    for canary, precision in zip(canaries, precisions, strict=True):
        A = canary.view.columns_of(canary.victim)
        scheme = canary.view.algorithm.participation.of_node(canary.victim)
        signs, value = best_signs(A.T @ precision @ A, scheme)
        found.append(
            (
                value / claims[canary.victim] / claims[canary.victim],
                dataclasses.replace(canary, name="chosen from runs", signs=signs),
            )
        )
    return max(found, key=lambda pair: pair[0])[1]

"""Canaries: gradients of one record that show as much of it as possible, and the attackers that look for them.

In: an algorithm, a trust model and what the accountant says of every victim. Out: a short list of `Canary`, each with
its attacker's view. For scalar gradients +-1 of one pattern pi the loss is s^T X_u s, X_u = A_u^T (B B^T)^+ A_u.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.ties import SAME, equal_to_largest, first_largest, first_maximum, ranking

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..participation import Participation
from ..sensitivity.patterns import MAX_ENUMERATED, diagonal_bounds
from ..trust import TrustModel
from .observation import COORDINATES, Observation

OVERSHOOT = 16.0  # raw gradients are this often the clipping norm: it is for the system to clip them
BLOCK_PATTERNS, BLOCK_ENTRIES = 512, 2_000_000  # looked at in one go; entries of their Grams, 16 MB
MAX_SIGNED_STEPS = 10  # signs are enumerated up to 2^9 per pattern, beyond that improved one by one
GRID = 2.0**30  # weights are whole multiples of 1 / GRID: their sums are exact, and equal ones tie
FEEDBACKS = (0.5, -0.5, 1.0, -1.0)  # of the other records, in units of 1 / learning rate
ALONG = np.array([1.0, 0.0])  # in the first coordinate alone
SPREAD = np.array([1.0, -1.0]) / np.sqrt(2.0)  # over two: cancels noise that coordinates share
DIRECTIONS = (ALONG, SPREAD, ALONG[::-1], abs(SPREAD))  # in which the noise of coordinates is measured


@dataclasses.dataclass(frozen=True, eq=False)
class Canary:
    """One record of one victim and who looks for it.

    Attributes: signs: gradient of the record over steps in units of clip_norm, +-1 or 0, shape (T,); direction: unit
        vector over COORDINATES; view: what the attacker has.
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
    def steps(self) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.signs).tolist())

    @property
    def shift(self) -> FloatArray:
        """How far the view moves per unit of gradient norm, shape (rows,)."""
        return np.asarray(self.view.victim_columns(self.victim) @ self.signs)

    def sensitivity(self) -> float:
        """sqrt(d^T (B B^T)^+ d): what the claimed mechanism loses to this canary, per unit shift and unit noise."""
        return float(np.linalg.norm(self.view.whitener() @ self.shift))


def best_signs(gram: FloatArray, participation: Participation) -> tuple[FloatArray, float]:
    """Signs over one pattern that maximise s^T X s, and that value.

    Exactly for few steps and at most MAX_ENUMERATED patterns. Of more patterns, T + 1 at most are tried: the heaviest
    one for the row sums of |X|, and for every step that a record can join the one that holds this step and those most
    correlated with it.
    """
    return _strongest(gram, participation, 1)[0]


def _strongest(gram: FloatArray, participation: Participation, count: int) -> list[tuple[FloatArray, float]]:
    """Signs and s^T X s of up to `count` patterns, the largest values first; of equal values, the first pattern."""
    strongest: list[tuple[FloatArray, float]] = []
    for patterns in _blocks(tried_patterns(gram, participation)):
        signs, values = large_signs(gram[patterns[:, :, None], patterns[:, None, :]])
        for number in ranking(values, descending=True)[:count]:
            full = np.zeros(len(gram))
            full[patterns[number]] = signs[number]
            strongest.append((full, float(values[number])))
    order = ranking([value for _, value in strongest], descending=True)
    return [strongest[i] for i in order[:count]]


def tried_patterns(gram: FloatArray, participation: Participation) -> Iterator[Sequence[int]]:
    if participation.num_patterns <= MAX_ENUMERATED:
        yield from (pattern.tolist() for pattern in participation.patterns())
        return
    weights = np.abs(gram) / max(float(np.abs(gram).max()), 1e-300)
    weights = (np.rint(GRID * weights) + 1) / GRID  # > 0, so that no pattern weighs nothing
    # row t: no pattern without step t is as heavy as one with it
    wanted = weights + (len(gram) + 2) * np.eye(len(gram))
    rows = np.vstack([weights.sum(axis=0), wanted])
    yield from dict.fromkeys(diagonal_bounds(rows, participation, np.zeros_like(rows)).patterns)


def _blocks(patterns: Iterator[Sequence[int]]) -> Iterator[NDArray[np.intp]]:
    """The patterns, those of one size together, (patterns, steps)."""
    by_size: dict[int, list[Sequence[int]]] = {}
    for pattern in patterns:
        by_size.setdefault(len(pattern), []).append(pattern)
    for size, group in by_size.items():
        step = max(1, min(BLOCK_PATTERNS, BLOCK_ENTRIES // size**2))
        for start in range(0, len(group), step):
            yield np.array(group[start : start + step], dtype=np.intp)


@functools.cache
def _all_signs(size: int) -> FloatArray:
    """Up to a common sign, which s^T X s does not see, (2^(size - 1), size)."""
    return np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=size - 1)])


def large_signs(X: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Signs that make s^T X s large for each X, (patterns, k, k), and the values: the largest for few steps."""
    return _best_of_all(X) if X.shape[1] <= MAX_SIGNED_STEPS else _improved(X)


def _best_of_all(X: FloatArray) -> tuple[FloatArray, FloatArray]:
    tried = _all_signs(X.shape[1])
    outer = (tried[:, :, None] * tried[:, None, :]).reshape(len(tried), -1)
    values = X.reshape(len(X), -1) @ outer.T
    return tried[equal_to_largest(values, axis=1).argmax(axis=1)], values.max(axis=1)  # exact: booleans


def _improved(X: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The same: signs of a leading eigenvector, flipped one by one while that helps."""
    signs = np.where(_leading(X) >= -SAME, 1.0, -1.0)
    diagonal, least = np.diagonal(X, axis1=1, axis2=2), 1e-12 * np.abs(X).max(axis=(1, 2))
    for _ in range(10 * X.shape[1]):
        gain = -4 * signs * ((X @ signs[:, :, None])[:, :, 0] - diagonal * signs)  # of flipping one sign
        step = equal_to_largest(gain, axis=1).argmax(axis=1)  # exact: booleans
        helped = np.flatnonzero(gain.max(axis=1) > least)
        if not helped.size:
            break
        signs[helped, step[helped]] *= -1.0
    signs *= signs[:, :1]
    return signs, np.einsum("pi,pij,pj->p", signs, X, signs)


def _leading(X: FloatArray) -> FloatArray:
    """A leading unit eigenvector of each X, (patterns, k), that depends on the space of such vectors alone.

    It is the longest column of the projector on that space, the first of equally long ones. `eigh` returns either sign
    of a single eigenvector, and any basis for a repeated eigenvalue.
    """
    values, vectors = np.linalg.eigh(X)
    basis = vectors * equal_to_largest(values, axis=1)[:, None, :]
    longest = equal_to_largest((basis**2).sum(axis=2), axis=1).argmax(axis=1)  # exact: booleans
    columns = np.einsum("pij,pj->pi", basis, basis[np.arange(len(X)), longest])
    return np.asarray(columns / np.linalg.norm(columns, axis=1, keepdims=True))


def candidates(
    algorithm: LinearAlgorithm,
    trust: TrustModel,
    victims: Sequence[int],
    *,
    release: str | None = None,
    unit: str = "record",
) -> list[Canary]:
    """The canaries of an audit with public batches: every victim's worst, and more for the one that loses most.

    For each victim the worst of the trust model's views, with the pattern and signs that maximise its loss. For the
    victim that loses most also: a single step, alternating signs, a canary spread over coordinates, and the worst one
    while all other gradients react to models. A victim of whom no attacker sees a row, or who attacks, has none.
    """
    worst = worst_of_each(algorithm, trust, victims, release=release)
    if not worst:
        return []
    top = _heaviest(worst)
    more = [dataclasses.replace(top, name="spread over coordinates", direction=SPREAD)]
    used = np.flatnonzero(top.signs)
    if used.size > 1:
        white = top.view.whitener() @ top.view.victim_columns(top.victim)
        heaviest = first_largest(np.diag(white.T @ white)[used])
        single, other = np.zeros_like(top.signs), top.signs.copy()
        single[used[heaviest]] = 1.0
        other[used[1::2]] *= -1.0
        for name, signs in (("a single step", single), ("other signs", other)):
            more.append(dataclasses.replace(top, name=name, signs=signs))
    if algorithm.num_steps > 1:
        more.append(_reacting(top, unit))
    return [*(canary for _, canary in worst.values()), *more]


def worst_of_each(
    algorithm: LinearAlgorithm, trust: TrustModel, victims: Sequence[int], *, release: str | None
) -> dict[int, tuple[float, Canary]]:

    def strongest(white: FloatArray, victim: int) -> tuple[FloatArray, float]:
        return best_signs(white.T @ white, algorithm.participation.at_node(victim))

    return _worst_of_each("worst gradients", algorithm, trust, victims, strongest, release=release)


def heaviest(canary: Canary, count: int) -> list[Canary]:
    """The same canary on up to `count` patterns of steps, those that show most first, each with its best signs."""
    white = canary.view.whitener() @ canary.view.victim_columns(canary.victim)
    scheme = canary.view.algorithm.participation.at_node(canary.victim)
    return [dataclasses.replace(canary, signs=signs) for signs, _ in _strongest(white.T @ white, scheme, count)]


def bin_candidates(
    algorithm: LinearAlgorithm, trust: TrustModel, victims: Sequence[int], bins: int, *, release: str | None = None
) -> list[Canary]:
    """The canaries of an audit of balls-in-bins: every victim's worst in every bin, and more of the worst victim.

    For each victim the worst of the trust model's views, with the signs that maximise the loss of each bin. Canaries of
    the worst victim come last: constant gradients, and one spread over coordinates.
    """

    def strongest(white: FloatArray, victim: int) -> tuple[FloatArray, float]:
        return _signs_of_bins(white, bins)

    worst = _worst_of_each("worst gradients of every bin", algorithm, trust, victims, strongest, release=release)
    worst = {u: (value, canary) for u, (value, canary) in worst.items() if value > 0}
    if not worst:
        return []
    top = _heaviest(worst)
    constant = dataclasses.replace(top, name="constant gradients", signs=np.ones_like(top.signs))
    spread = dataclasses.replace(top, name="spread over coordinates", direction=SPREAD)
    return [*(canary for _, canary in worst.values()), constant, spread]


def _worst_of_each(
    name: str,
    algorithm: LinearAlgorithm,
    trust: TrustModel,
    victims: Sequence[int],
    strongest: Callable[[FloatArray, int], tuple[FloatArray, float]],
    *,
    release: str | None,
) -> dict[int, tuple[float, Canary]]:
    """Squared loss of every victim with a row, and the canary of its worst view.

    Args: strongest: signs and squared loss of a victim, from the whitened columns of its view, (rank, T).
    """
    worst: dict[int, tuple[float, Canary]] = {}
    for model, members in trust.members(algorithm):
        chosen = [u for u in members if u in victims]
        if not chosen:
            continue
        view = Observation.from_trust(algorithm, model, chosen[0], release=release)
        if not len(view.gradients):
            continue
        P = view.whitener()
        for u in chosen:
            signs, value = strongest(P @ view.victim_columns(u), u)
            if first_largest([worst.get(u, (-1.0,))[0], value]) == 1:
                worst[u] = value, Canary(name, u, model.attacker, signs, ALONG, view)
    return worst


def _heaviest(worst: Mapping[int, tuple[float, Canary]]) -> Canary:
    return first_maximum(list(worst.values()), lambda pair: pair[0])[1]


def _signs_of_bins(white: FloatArray, bins: int) -> tuple[FloatArray, float]:
    """The signs that shift each bin most, all in one half space, and their mean square, from columns (rows, T)."""
    signs, value, first = np.zeros(white.shape[1]), 0.0, None
    for r in range(bins):
        part = white[:, r::bins]
        best, reached = large_signs((part.T @ part)[None])
        shift = part @ best[0]
        first = shift if first is None else first
        opposite = shift @ first < -SAME * np.linalg.norm(shift) * np.linalg.norm(first)
        signs[r::bins] = best[0] * (-1.0 if opposite else 1.0)
        value += float(reached[0]) / bins
    return signs, value


def _reacting(top: Canary, unit: str) -> Canary:
    """The canary among gradients that react to models, with the feedback that shows most; a user is one record."""
    rate = float(np.max(top.view.algorithm.dynamics.learning_rate))
    scheme = top.view.algorithm.participation.at_node(top.victim)
    tried = []
    for factor in FEEDBACKS:
        view = top.view.with_feedback(factor / rate, fixed=top.victim if unit == "user" else None)
        white = view.whitener() @ view.victim_columns(top.victim)
        signs, value = best_signs(white.T @ white, scheme)
        tried.append((value, dataclasses.replace(top, name="adaptive gradients", signs=signs, view=view)))
    return first_maximum(tried, lambda pair: pair[0])[1]


def learned(canaries: Sequence[Canary], precisions: Sequence[FloatArray], claims: Mapping[int, float]) -> Canary:
    """The canary that shows most of its claim, given measured precisions, (rows, rows), of its view's noise."""
    tried = []
    for canary, precision in zip(canaries, precisions, strict=True):
        A = canary.view.victim_columns(canary.victim)
        scheme = canary.view.algorithm.participation.at_node(canary.victim)
        signs, value = best_signs(A.T @ precision @ A, scheme)
        share = math.sqrt(max(value, 0.0)) / max(claims[canary.victim], 1e-150)
        tried.append((share, dataclasses.replace(canary, name="chosen from runs", signs=signs)))
    return first_maximum(tried, lambda pair: pair[0])[1]

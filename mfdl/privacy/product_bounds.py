"""What bounds the pair of a secret pattern: a Gaussian that all patterns share, and independent draws of single shifts.

In: N = |C|^T |C| of the noise, shape (T, T), and a scheme. Out: numbers g^2 and d such that, for all patterns S and S',

    M_SS' = sum over i in S, j in S' of N_ij <= g^2 + sum over draws that S and S' have in common of d,

and the right-hand side is a Gram matrix (docs/sampling_theorem.md). Each i in S contributes f(i, S') = sum over j in S'
of N_ij. It is bounded by a_i where S' does not have the draw of i, and by e_i where it has, so that g^2 is a sum of
a_i over one pattern, and d = (e_i - a_i)_+.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..participation.sampling import CyclicPoisson, MinSeparationSampling, RandomAllocation
from . import bin_gram
from .curves.base import UP

LEVELS = (1.0, 0.7, 0.35)
"""Squared sensitivities of draws are raised to these shares of the largest: each takes a distribution of its own."""

FAINTEST = 1e-9
"""Share of the largest that a draw has at least."""


@dataclasses.dataclass(frozen=True)
class ProductBound:
    """Squared sensitivities of the product that dominates a scheme, per unit clipping norm and noise of std 1.

    Attributes:
        largest: of a record that joins one step, max_t N_tt.
        common: g^2, what all patterns share.
        draws: pairs (d, how many draws have it), d > 0.
        public: of a record whose pattern is known, an upper bound.
        places: of which a draw of random allocation takes one.
    """

    largest: float
    common: float
    draws: tuple[tuple[float, int], ...]
    public: float
    places: int = 1

    @staticmethod
    def of(N: FloatArray | None, common: float, draws: FloatArray, public: float, places: int = 1) -> ProductBound:
        """Args: N: None where noise is fresh; draws: d of each draw."""
        largest = 1.0 if N is None else float(N.diagonal().max()) * UP
        top = max(float(draws.max(initial=0.0)), FAINTEST * largest)
        share = np.maximum(draws / top, FAINTEST)
        ends = (*LEVELS, 0.0)
        counts = [int(((share > low) & (share <= high)).sum()) for high, low in itertools.pairwise(ends)]
        levels = tuple((top * high * UP, count) for high, count in zip(LEVELS, counts, strict=True) if count)
        return ProductBound(largest, common * UP, levels, public * UP, places)

    @property
    def faint(self) -> float:
        """Squared sensitivity of the Gaussian that the product is close to where noise is large."""
        return self.common + sum(d * count for d, count in self.draws) / self.places


def step_gram(algorithm: LinearAlgorithm, victims: list[int]) -> FloatArray | None:
    """N of the worst of these victims, for a covariance of one over nodes; None where noise is fresh in every step.

    Raises, cost: as `bin_gram.time_gram` with a bin for each step.
    """
    causal = algorithm.noise.causal
    if bin_gram.is_product(algorithm.noise) and causal is not None and causal.fresh:
        return None
    return bin_gram.time_gram(algorithm, victims, algorithm.num_steps)


def of_cyclic_poisson(N: FloatArray | None, scheme: CyclicPoisson) -> ProductBound:
    """A draw is a step of the record's group; the worst group counts. g^2 is 0 where columns b apart are disjoint."""
    k, b = scheme.epochs, scheme.period
    if N is None:
        return ProductBound.of(None, 0.0, np.ones(k), float(k))
    groups = N.reshape(k, b, k, b).transpose(1, 3, 0, 2)[np.arange(b), np.arange(b)]  # (b, k, k)
    diagonals = np.sort(np.diagonal(groups, axis1=1, axis2=2), axis=1).max(axis=0)
    apart = groups * ~np.eye(k, dtype=bool)
    return ProductBound.of(N, float(apart.sum(axis=(1, 2)).max()), diagonals, float(groups.sum(axis=(1, 2)).max()))


def of_random_allocation(N: FloatArray | None, scheme: RandomAllocation) -> ProductBound:
    """A draw is one of b steps: those of an epoch, or of a part of a random partition of all steps.

    Of an epoch, the remainder of the step modulo a divisor of b may be public: steps of one remainder overlap less, but
    there are fewer of them. The divisor that is best where noise is large is taken.
    """
    k, b = scheme.epochs, scheme.period
    if N is None:
        return ProductBound.of(None, 0.0, np.ones(k), float(k), b)
    diagonal, apart = N.diagonal(), N * ~np.eye(len(N), dtype=bool)
    if not scheme.per_epoch:
        largest = -np.sort(-apart, axis=1)[:, :k]  # of k steps, one of which may be i itself
        other, same = largest.sum(axis=1).max(), (diagonal + largest[:, : k - 1].sum(axis=1)).max()
        return ProductBound.of(N, float(k * other), np.full(k, max(0.0, same - other)), float(k * same), b)
    rows, epoch = apart.reshape(k * b, k, b).max(axis=2), np.arange(k * b) // b
    others = rows.sum(axis=1) - rows[np.arange(k * b), epoch]  # of the worst step of each other epoch
    same = (diagonal + others).reshape(k, b).max(axis=1)
    blocks = apart.reshape(k, b, k, b)[np.arange(k), :, np.arange(k)]  # (k, b, b)

    def known_modulo(step: int) -> ProductBound:
        inside = np.where(np.subtract.outer(np.arange(b), np.arange(b)) % step == 0, blocks, 0.0).max(axis=2)
        different = (inside + others.reshape(k, b)).max(axis=1)
        draws = np.maximum(0.0, same - different)
        return ProductBound.of(N, float(different.sum()), draws, float(same.sum()), b // step)

    divisors = (step for step in range(1, b + 1) if b % step == 0)
    return min(map(known_modulo, divisors), key=lambda bound: bound.faint)  # bound


def of_min_separation(N: FloatArray | None, scheme: MinSeparationSampling) -> ProductBound:
    """A draw is a step: the pattern is what minimum separation leaves of a Poisson sample of all steps."""
    T, b = scheme.steps, scheme.separation
    uses = -(-T // b)
    if N is None:
        return ProductBound.of(None, 0.0, np.ones(T), float(uses))
    different = np.array([_windows(N[i, i + 1 :], b) + _windows(N[i, :i][::-1], b) for i in range(T)])
    further = [_windows(N[i, i + b :], b) + _windows(N[i, : max(0, i - b + 1)][::-1], b) for i in range(T)]
    same = N.diagonal() + further
    blocks = np.arange(0, T, b)  # a pattern has at most one step of each
    most = np.maximum.reduceat(different, blocks)
    draws = np.maximum(0.0, same - np.repeat(most, b)[:T])
    return ProductBound.of(N, float(most.sum()), draws, float(np.maximum.reduceat(same, blocks).sum()))


def _windows(row: FloatArray, width: int) -> float:
    """The sum over windows of their largest entry: at least the sum over entries that are `width` apart."""
    return float(np.maximum.reduceat(row, np.arange(0, row.size, width)).sum()) if row.size else 0.0


def units(values: tuple[tuple[float, int], ...], largest: float) -> tuple[tuple[float, int], ...]:
    """Noise multipliers of draws where that of one step is 1, rounded down, and their counts."""
    return tuple((1 / (math.sqrt(d / largest) * UP), count) for d, count in values)

"""M = (|C| E)^T (|C| E) of the noise, for the worst victim: what balls-in-bins sees of an algorithm.

The matrix is at least M of every victim, entry by entry, rounded up; refused where the theorem
(docs/balls_in_bins_theorem.md) ends. The encoder that counts is the inverse of what the executor multiplies with, so C
is corrected by how far it is from it.

Noise that correlates time and nodes together, with nothing of it known, is C^-1 of one block causal C over both, and
what a record of node u moves at step t is sum_s C[t., (s, u)] g_s: v_t[r] = sum over s <= t in r of ||C[t., (s, u)]||.

An encoder with structure is never written out (`Encoder.bin_gram`). Rows of noise that are made step by step meet C y =
z up to Delta z, rows of Delta of norms d_t, so the encoder of what is added is (I + Delta)^-1 C. With off = ||d|| < 1
and V = |C| E, an entry of |(I + Delta)^-1 C| E is at most V[t, r] + d_t ||V_r|| / (1 - off), and by Cauchy-Schwarz

    M'_rq <= M_rq + ((1 - off)^-2 - 1) ||V_r|| ||V_q||,    ||V_r||^2 = M_rr.

The pair of a secret pattern is bounded by a Gaussian that all patterns share, and independent draws of single shifts:
from N = |C|^T |C|, shape (T, T), and a scheme follow g^2 and d such that, for all patterns S and S',

    M_SS' = sum over i in S, j in S' of N_ij <= g^2 + sum over draws that S and S' have in common of d,

and the right-hand side is a Gram matrix (docs/sampling_theorem.md). Each i in S contributes f(i, S') = sum over j in S'
of N_ij. It is bounded by a_i where S' does not have the draw of i, and by e_i where it has, so that g^2 is a sum of a_i
over one pattern, and d = (e_i - a_i)_+.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from mfdl_solvers.encoders import Encoder
from mfdl_solvers.problem import ProblemError

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..noise import CausalNoise, NoiseOperator
from ..participation.sampling import CyclicPoisson, MinSeparationSampling, RandomAllocation
from .curves.base import UP
from .forms.separable import inverse_factor

ACCURATE = 1e-3  # how far C times the executor's inverse may be from the identity, in the maximum norm
MAX_BINS = 4096  # M of so many is an array of 128 MiB


def is_product(noise: NoiseOperator) -> bool:
    """Whether noise is one encoder over time times a covariance over nodes, or each node's own."""
    return noise.causal is not None and (noise.causal.shared or noise.causal.local)


def is_block_causal(noise: NoiseOperator) -> bool:
    """Whether noise is the inverse of one encoder over time and nodes: joint, or as many columns as nodes."""
    if noise.causal is None:
        return noise.joint is not None
    factor = noise.causal.mixing
    return factor.shape[0] == factor.shape[1] == noise.num_nodes and inverse_factor(factor.toarray()) is not None


def fresh_part(algorithm: LinearAlgorithm) -> CausalNoise:
    """Noise without correlation over time: its covariance over nodes is what the time part is divided by.

    Raises: UnsupportedMechanism: the noise is no product of time and space, nor local.
    """
    noise = algorithm.noise
    causal = noise.causal
    if causal is None or not is_product(noise):
        raise UnsupportedMechanism(
            f"balls-in-bins is accounted for noise that is fresh, local to each node, of one encoder over time for all "
            f"nodes, or of an encoder over both that can be inverted, and that of {algorithm.name!r} correlates time "
            "and nodes together by columns that are not as many as nodes, or singular; take mafalda, dp_dsgd, or a "
            "public participation such as Cyclic."
        )
    return CausalNoise(
        None, causal.factor, causal.holders(), num_steps=algorithm.num_steps, num_nodes=algorithm.num_nodes
    )


def time_gram(algorithm: LinearAlgorithm, victims: Sequence[int], bins: int) -> FloatArray:
    """The largest entries of M over the victims, shape (bins, bins), for a covariance of one over nodes where noise is
    a product.

    Raises: UnsupportedMechanism: as `fresh_part`, an encoder that float64 cannot invert to `ACCURATE`, more than
        MAX_BINS bins.
    Cost: O(T^3) for each encoder, once each, and n T^2 memory for one per column; O((T n)^3) for joint noise; that of
        `structured_gram` for an encoder with structure.
    """
    if bins > MAX_BINS:
        raise UnsupportedMechanism(
            f"M of balls-in-bins is an array of bins x bins, up to {MAX_BINS} bins, got {bins:,}."
        )
    causal = algorithm.noise.causal
    if not is_product(algorithm.noise):
        return functools.reduce(np.maximum, (_norm_gram(A, bins) for A in _block_norms(algorithm.noise, victims)))
    assert causal is not None
    if algorithm.noise.step_factor is not None:
        return np.eye(bins) * (algorithm.num_steps // bins)
    if (encoder := causal.stepped) is not None and (known := structured_gram(encoder, bins)) is not None:
        return known
    columns = victims if causal.local and not causal.shared else victims[:1]
    encoders = (_absolute_encoder(causal.column_encoder(k), causal.column_inverse(k)) for k in columns)
    return functools.reduce(np.maximum, (_norm_gram(A, bins) for A in encoders))


def bin_sums(N: FloatArray, bins: int) -> FloatArray:
    """M of bins, from N over steps: sums of entries, none above that of means with these norms. Shape (bins, bins)."""
    epochs = len(N) // bins
    M = N.reshape(epochs, bins, epochs, bins).sum(axis=(0, 2)) * UP
    norms = np.sqrt(M.diagonal())
    return np.asarray(np.minimum(M, np.outer(norms, norms) * UP))


def _norm_gram(norms: FloatArray, bins: int) -> FloatArray:
    """sum_t v_t v_t^T. Args: norms: at least |C_ts|, or ||C[t., (s, u)]||, shape (T, T)."""
    V = norms.reshape(len(norms), -1, bins).sum(axis=1)
    return np.asarray((V.T @ V) * UP)


def _block_norms(noise: NoiseOperator, victims: Sequence[int]) -> Iterator[FloatArray]:
    """At least ||C[t., (s, u)]|| for each victim u, shape (T, T)."""
    T, n = noise.num_steps, noise.num_nodes
    if (joint := noise.joint) is not None:
        A = _absolute_encoder(joint.array, joint.inverse)
        yield from (np.linalg.norm(A[:, u::n].reshape(T, n, T), axis=1) * UP for u in victims)
        return
    causal = noise.causal
    inverse = None if causal is None else inverse_factor(causal.mixing.toarray())
    assert causal is not None
    assert inverse is not None
    G, off = inverse
    squares = np.stack([_absolute_encoder(causal.column_encoder(k), causal.column_inverse(k)) ** 2 for k in range(n)])
    for u in victims:
        weights = np.abs(G[:, u]) + off * np.linalg.norm(G[:, u])  # at least |F^-1 e_u|
        yield np.sqrt(np.tensordot(weights**2, squares, 1)) * UP


def _absolute_encoder(C: FloatArray, inverse: FloatArray) -> FloatArray:
    """At least |inverse^-1|, entry by entry: (I - D)^-1 |C| for D >= |C inverse - I|."""
    size = len(C)
    off = np.abs(C @ inverse - np.eye(size))
    off += 4 * size * 2.0**-53 * (np.abs(C) @ np.abs(inverse))
    norm = float(off.sum(axis=1).max())
    if not norm < ACCURATE:
        raise UnsupportedMechanism(
            f"balls-in-bins needs the encoder as the executor inverts it, and float64 is off by {norm:.1e}, allowed is "
            f"{ACCURATE:g}; take an encoder that is better conditioned."
        )
    series = off + off @ off / (1 - norm) + norm**3 / (1 - norm)
    if not np.triu(C, 1).any():  # then so are D and the inverse
        series = np.tril(series)
    return np.asarray(((np.eye(size) + series) @ np.abs(C)) * UP)


def structured_gram(encoder: Encoder, num_bins: int) -> FloatArray | None:
    """M or above, shape (bins, bins); None for an encoder of the user's own, whose products are not known.

    Raises: UnsupportedMechanism: an encoder that is singular to working precision, or more products than are allowed.
    Cost: O(T bins) of coefficients, O(T width^2) of bands, O(T bins (width + bins)) where a banded inverse is given.
    """
    inflation = encoder.inflation
    try:
        M = encoder.bin_gram(num_bins) if math.isfinite(inflation) else np.array([math.inf])
    except ProblemError as error:
        raise UnsupportedMechanism(str(error)) from None
    if M is None:
        return None
    if not np.isfinite(M).all():
        raise UnsupportedMechanism(
            "balls-in-bins needs the encoder that the streamed noise inverts, and this one is singular to working "
            "precision; take an encoder that is better conditioned."
        )
    return streamed(M, inflation)


def streamed(M: FloatArray, inflation: float) -> FloatArray:
    """M of the noise that is added, from that of C and (1 - off)^-2, rounded up."""
    norms = np.sqrt(M.diagonal())
    return np.asarray((M + (inflation - 1) * np.outer(norms, norms)) * UP)


LEVELS = (1.0, 0.7, 0.35)
"""Squared sensitivities of draws are raised to these shares of the largest: each takes a distribution of its own."""

FAINTEST = 1e-9  # share of the largest that a draw has at least


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
    def from_draws(
        N: FloatArray | None, common: float, draws: FloatArray, public: float, places: int = 1
    ) -> ProductBound:
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


def cyclic_poisson_bound(N: FloatArray | None, scheme: CyclicPoisson) -> ProductBound:
    """A draw is a step of the record's group; the worst group counts. g^2 is 0 where columns b apart are disjoint."""
    k, b = scheme.epochs, scheme.period
    if N is None:
        return ProductBound.from_draws(None, 0.0, np.ones(k), float(k))
    groups = N.reshape(k, b, k, b).transpose(1, 3, 0, 2)[np.arange(b), np.arange(b)]  # (b, k, k)
    diagonals = np.sort(np.diagonal(groups, axis1=1, axis2=2), axis=1).max(axis=0)
    apart = groups * ~np.eye(k, dtype=bool)
    common = float(apart.sum(axis=(1, 2)).max())
    return ProductBound.from_draws(N, common, diagonals, float(groups.sum(axis=(1, 2)).max()))


def random_allocation_bound(N: FloatArray | None, scheme: RandomAllocation) -> ProductBound:
    """A draw is one of b steps: those of an epoch, or of a part of a random partition of all steps.

    The remainder of the step modulo a divisor of b may be public: steps of one remainder overlap less, but there are
    fewer of them. The divisor that is best where noise is large is taken.
    """
    k, b = scheme.epochs, scheme.period
    if N is None:
        return ProductBound.from_draws(None, 0.0, np.ones(k), float(k), b)
    diagonal, apart = N.diagonal(), N * ~np.eye(len(N), dtype=bool)
    if not scheme.per_epoch:
        largest = -np.sort(-apart, axis=1)[:, :k]  # of k steps, one of which may be i itself
        other, same = largest.sum(axis=1).max(), (diagonal + largest[:, : k - 1].sum(axis=1)).max()
        return ProductBound.from_draws(N, float(k * other), np.full(k, max(0.0, same - other)), float(k * same), b)
    rows, epoch = apart.reshape(k * b, k, b).max(axis=2), np.arange(k * b) // b
    others = rows.sum(axis=1) - rows[np.arange(k * b), epoch]  # of the worst step of each other epoch
    same = (diagonal + others).reshape(k, b).max(axis=1)
    blocks = apart.reshape(k, b, k, b)[np.arange(k), :, np.arange(k)]  # (k, b, b)

    def known_modulo(step: int) -> ProductBound:
        inside = np.where(np.subtract.outer(np.arange(b), np.arange(b)) % step == 0, blocks, 0.0).max(axis=2)
        different = (inside + others.reshape(k, b)).max(axis=1)
        draws = np.maximum(0.0, same - different)
        return ProductBound.from_draws(N, float(different.sum()), draws, float(same.sum()), b // step)

    divisors = (step for step in range(1, b + 1) if b % step == 0)
    return min(map(known_modulo, divisors), key=lambda bound: bound.faint)  # bound


def min_separation_bound(N: FloatArray | None, scheme: MinSeparationSampling) -> ProductBound:
    """A draw is a step: the pattern is what minimum separation leaves of a Poisson sample of all steps."""
    T, b = scheme.steps, scheme.separation
    uses = -(-T // b)
    if N is None:
        return ProductBound.from_draws(None, 0.0, np.ones(T), float(uses))
    different = np.array([_windows(N[i, i + 1 :], b) + _windows(N[i, :i][::-1], b) for i in range(T)])
    further = [_windows(N[i, i + b :], b) + _windows(N[i, : max(0, i - b + 1)][::-1], b) for i in range(T)]
    same = N.diagonal() + further
    blocks = np.arange(0, T, b)  # a pattern has at most one step of each
    most = np.maximum.reduceat(different, blocks)
    draws = np.maximum(0.0, same - np.repeat(most, b)[:T])
    return ProductBound.from_draws(N, float(most.sum()), draws, float(np.maximum.reduceat(same, blocks).sum()))


def _windows(row: FloatArray, width: int) -> float:
    """The sum over windows of their largest entry: at least the sum over entries that are `width` apart."""
    return float(np.maximum.reduceat(row, np.arange(0, row.size, width)).sum()) if row.size else 0.0


def units(values: tuple[tuple[float, int], ...], largest: float) -> tuple[tuple[float, int], ...]:
    """Noise multipliers of draws where that of one step is 1, rounded down, and their counts."""
    return tuple((1 / (math.sqrt(d / largest) * UP), count) for d, count in values)

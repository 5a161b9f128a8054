"""M = (|C| E)^T (|C| E) of the noise, for the worst victim: what balls-in-bins sees of an algorithm.

In: an algorithm whose noise enters where gradients do, and who knows which of its columns. Out: a matrix that is at
least M of every victim, entry by entry, rounded up; or a refusal where the theorem (docs/balls_in_bins_theorem.md)
ends. The encoder that counts is the inverse of what the executor multiplies with, so C is corrected by how far it is
from it.

Noise that correlates time and nodes together, with nothing of it known, is C^-1 of one block causal C over both, and
what a record of node u moves at step t is sum_s C[t., (s, u)] g_s: v_t[r] = sum over s <= t in r of ||C[t., (s, u)]||.

An encoder with structure is never written out: its M comes from coefficients, bands or, where C^-1 is banded, from the
comparison matrix (`Encoder.bin_gram`). Rows of noise that are made step by step meet C y = z up to Delta z, rows of
Delta of norms d_t, so the encoder of what is added is (I + Delta)^-1 C. With off = ||d|| < 1 and V = |C| E, an entry of
|(I + Delta)^-1 C| E is at most V[t, r] + d_t ||V_r|| / (1 - off), and by Cauchy-Schwarz

    M'_rq <= M_rq + ((1 - off)^-2 - 1) ||V_r|| ||V_q||,    ||V_r||^2 = M_rr.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from mfdl_solvers.encoders import Encoder
from mfdl_solvers.problem import ProblemError

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..noise import CausalNoise, JointNoise, NoiseOperator
from .curves.base import UP
from .forms.separable import inverse_factor

ACCURATE = 1e-3
"""How far C times the executor's inverse may be from the identity, in the maximum norm."""
MAX_BINS = 4096
"""M of so many is an array of 128 MiB."""


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
    """The same noise with nothing correlated over time: its covariance over nodes is what the time part is divided by.

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
    """The largest entries of M over the victims, for a covariance of one over nodes where noise is a product.

    Returns: shape (bins, bins).
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
        return functools.reduce(np.maximum, (_of_norms(A, bins) for A in _block_norms(algorithm.noise, victims)))
    assert causal is not None
    if causal.fresh:
        return np.eye(bins) * (algorithm.num_steps // bins)
    if not causal.in_blocks and (known := structured_gram(causal.encoder, bins)) is not None:
        return known
    columns = victims if causal.local and not causal.shared else victims[:1]
    return functools.reduce(np.maximum, (_gram(causal, column, bins) for column in columns))


def _gram(causal: CausalNoise, column: int, bins: int) -> FloatArray:
    return _of_norms(_absolute_encoder(causal.encoder_of(column), causal.inverse_of(column)), bins)


def _of_norms(norms: FloatArray, bins: int) -> FloatArray:
    """sum_t v_t v_t^T. Args: norms: at least |C_ts|, or ||C[t., (s, u)]||, shape (T, T)."""
    V = norms.reshape(len(norms), -1, bins).sum(axis=1)
    return np.asarray((V.T @ V) * UP)


def _block_norms(noise: NoiseOperator, victims: Sequence[int]) -> Iterator[FloatArray]:
    """At least ||C[t., (s, u)]|| for each victim u, shape (T, T)."""
    T, n = noise.num_steps, noise.num_nodes
    if isinstance(noise.joint, JointNoise):
        A = _absolute_encoder(noise.joint.encoder.array, noise.joint.inverse)
        yield from (np.linalg.norm(A[:, u::n].reshape(T, n, T), axis=1) * UP for u in victims)
        return
    causal = noise.causal
    inverse = None if causal is None else inverse_factor(causal.mixing.toarray())
    assert causal is not None
    assert inverse is not None
    G, off = inverse
    squares = np.stack([_absolute_encoder(causal.encoder_of(k), causal.inverse_of(k)) ** 2 for k in range(n)])
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
    return np.asarray(((np.eye(size) + np.tril(series)) @ np.abs(C)) * UP)


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

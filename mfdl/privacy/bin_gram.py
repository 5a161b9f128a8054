"""M = (|C| E)^T (|C| E) of the noise, for the worst victim: what secret bins see of an algorithm.

In: an algorithm whose noise enters where gradients do, and who knows which of its columns. Out: a matrix that is at
least M of every victim, entry by entry, rounded up; or a refusal where the theorem (docs/secret_bins.md) ends.
The encoder that counts is the inverse of what the executor multiplies with, so C is corrected by how far it is from it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..noise import CausalNoise
from .binned import UP

ACCURATE = 1e-3
"""How far C times the executor's inverse may be from the identity, in the maximum norm."""


def fresh_part(algorithm: LinearAlgorithm) -> CausalNoise:
    """The same noise with nothing correlated over time: its covariance over nodes is what the time part is divided by.

    Raises: UnsupportedMechanism: the noise is no product of time and space, nor local.
    """
    noise = algorithm.noise
    causal = noise.causal
    if causal is None or not (causal.shared or causal.local):
        raise UnsupportedMechanism(
            f"secret bins are accounted for noise that is fresh, local to each node, or of one encoder over time for "
            f"all nodes, and that of {algorithm.name!r} correlates time and nodes together; take mafalda, dp_dsgd, or "
            "a public participation such as Cyclic."
        )
    return CausalNoise(
        None, causal.factor, causal.holders(), num_steps=algorithm.num_steps, num_nodes=algorithm.num_nodes
    )


def time_gram(algorithm: LinearAlgorithm, victims: Sequence[int], bins: int) -> FloatArray:
    """The largest entries of M over the victims, for a covariance of one over nodes: shape (bins, bins).

    Raises: UnsupportedMechanism: as `fresh_part`, or an encoder that float64 cannot invert to `ACCURATE`.
    Cost: O(T^3) for each encoder, once each.
    """
    causal = algorithm.noise.causal
    assert causal is not None
    if causal.fresh:
        return np.eye(bins) * (algorithm.num_steps // bins)
    columns = victims if causal.local and not causal.shared else victims[:1]
    return functools.reduce(np.maximum, (_gram(causal, column, bins) for column in columns))


def _gram(causal: CausalNoise, column: int, bins: int) -> FloatArray:
    C = _absolute_encoder(causal.encoder_of(column), causal.inverse_of(column))
    V = C.reshape(len(C), -1, bins).sum(axis=1)
    return np.asarray((V.T @ V) * UP)


def _absolute_encoder(C: FloatArray, inverse: FloatArray) -> FloatArray:
    """At least |inverse^-1|, entry by entry: (I - D)^-1 |C| for D >= |C inverse - I|."""
    size = len(C)
    off = np.abs(C @ inverse - np.eye(size))
    off += 4 * size * 2.0**-53 * (np.abs(C) @ np.abs(inverse))
    norm = float(off.sum(axis=1).max())
    if not norm < ACCURATE:
        raise UnsupportedMechanism(
            f"secret bins need the encoder as the executor inverts it, and float64 is off by {norm:.1e}, allowed is "
            f"{ACCURATE:g}; take an encoder that is better conditioned."
        )
    series = off + off @ off / (1 - norm) + norm**3 / (1 - norm)
    return np.asarray(((np.eye(size) + np.tril(series)) @ np.abs(C)) * UP)

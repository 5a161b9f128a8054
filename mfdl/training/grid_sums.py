"""Privatised sums on a grid: what a node releases is rounded noise of real numbers, exactly.

In: a mechanism whose noise is each node's alone, with encoder C of entries that are multiples of 2^-m (`on_grid`; the
identity where noise is fresh), a node and its keys, and the step h of the grid, a power of two. With the whole numbers
k_t = sum_r trunc(g_r / h) of the clipped gradients of step t, q = 2^-m h and real standard normals z, it makes

    y_t = sum_j 2^m C[t, j] k_j + [nu z_t / q],    [.] the nearest integer.

Out: S = C^-1 q y, step by step, in the place of G + C^-1 nu Z. It is computed from y alone. At a node of noise scale F
(`CausalNoise.node_scales`) nu F stands in the place of nu, rounded up.

Theorem: whatever is computed from the y of all steps has the guarantee of the mechanism, mu and epsilon included.

Proof. Truncation towards zero raises the absolute value of no entry, so the contribution h trunc(g_r / h) of a record
has a norm of at most clip_norm, as g_r has (`clipping`), and it is a function of the record and the model. So the
mechanism that releases C G + nu Z, Z real and G the sums h k of these contributions, has the guarantee, for gradients
that follow earlier outputs as well. And [a + x] = a + [x] for whole a: y_t = [(C G + nu Z)_t / q] is a function of what
that mechanism releases.

So low-order bits tell nothing that the real numbers do not, unlike those of float samplers (Mironov, CCS 2012; Jin et
al., S&P 2022). Sums of rounded normals are no rounded normal, so noise that nodes share is refused. The theorem assumes
keystream that is uniform, what `rounded_normals` does, and gradients of torch that do not depend on the values of other
records in the batch; it does not cover timing.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism
from ..noise import CausalNoise, NoiseOperator
from .rounded_normals import LARGEST_SCALE, RoundedNormals
from .shared_randomness import HolderKeys
from .single_copy import SingleCopy

FINEST = 2.0**40
"""Steps of the grid in a clipping norm at most."""
MOST_RECORDS = 2**20
"""Of a batch: their sum then stays below 2^61."""
MOST_BITS = 30
"""m at most."""

WholeNumbers = NDArray[np.int64]


def on_grid(algorithm: LinearAlgorithm, bits: int = 12) -> LinearAlgorithm:
    """The algorithm with the entries of its encoders rounded to multiples of 2^-bits, to be calibrated like any other.

    Raises: UnsupportedMechanism: noise that nodes share; InvalidInput: bits outside 0 .. MOST_BITS, or a diagonal entry
        that becomes zero.
    """
    noise = _local(algorithm.noise)
    if check.integer_at_least(0, bits=bits) > MOST_BITS:
        raise InvalidInput(f"bits must be at most {MOST_BITS}, got {bits}.")
    if noise.fresh:
        return algorithm
    assert noise.written.array is not None
    rounded = np.round(noise.written.array * 2.0**bits) / 2.0**bits
    sizes = {"num_steps": noise.num_steps, "num_nodes": noise.num_nodes}
    return dataclasses.replace(algorithm, noise=CausalNoise(rounded, noise.factor, noise.holders(), **sizes))


class GridSums(SingleCopy):
    """The privatised sums of one node, step after step.

    Args: mechanism: whose noise is each node's alone; node: index; keys: with that of the node; step: h > 0, a power of
        two in units of gradients, at most the clipping norm.

    Raises:
        InvalidInput: a step that is no power of two, above the clipping norm, or so fine that whole numbers overflow;
            an encoder with entries that are no multiples of 2^-MOST_BITS.
        UnsupportedMechanism: noise that nodes share.
    Memory: for correlated noise the y of all steps, and as many sums as the encoder has bands.
    """

    def __init__(self, mechanism: Mechanism, node: int, keys: HolderKeys, step: float) -> None:
        super().__init__()
        noise, clip_norm = _local(mechanism.algorithm.noise), mechanism.clip_norm
        self.step = check.positive(grid=step)
        if math.frexp(self.step)[0] != 0.5 or not self.step <= clip_norm <= FINEST * self.step:
            raise InvalidInput(
                f"grid must be a power of two, at most the clipping norm {clip_norm:g} and at least 2^-40 of it, got "
                f"{step:g}; take 2.0 ** {math.floor(math.log2(clip_norm)) - 18}."
            )
        self._encoder, bits = _whole(np.eye(1) if noise.fresh else noise.column_encoder(node))
        self._fine = self.step / 2**bits
        noise_std = mechanism.noise_std * float(noise.node_scales[node])
        self._scale = 0.0 if noise_std == 0 else float(np.nextafter(noise_std, math.inf)) / self._fine
        self._largest = 2**61 // int(np.abs(self._encoder).sum(axis=1).max())
        if self._scale > LARGEST_SCALE or self._largest < clip_norm / self.step:
            raise InvalidInput(
                f"grid / 2^{bits} must be at least {noise_std / LARGEST_SCALE:g} with noise of standard deviation "
                f"{noise_std:g}, and leave room for sums of 64 bits, got {self._fine:g}; take a coarser grid, or an "
                "encoder of fewer bits (on_grid)."
            )
        self._normals = RoundedNormals(keys.of_node(node).key_of({node}))
        steps, columns = np.nonzero(self._encoder)
        bands = int((steps - columns).max())  # below the diagonal
        self._sums, self._privatised = (deque[NDArray[np.generic]](maxlen=bands) for _ in range(2))
        self.released: list[WholeNumbers] | None = [] if bands else None
        """The y of all steps, where later ones need them; privatised, as all that follows from them."""

    def added(self, contributions: torch.Tensor, earlier: torch.Tensor | int = 0) -> torch.Tensor:
        """Clipped gradients, shape (records, d), float32 or float64, as an int64 sum of steps (d,) on an earlier one.

        Raises: InvalidInput: more than MOST_RECORDS records.
        """
        if len(contributions) > MOST_RECORDS:
            raise InvalidInput(
                f"a batch on a grid must have at most {MOST_RECORDS} records, got {len(contributions)}; take smaller "
                "batches."
            )
        truncated = torch.trunc(contributions.double() / self.step).to(torch.int64)  # nothing is rounded: h is 2^i
        # no entry of a difference of two sums grows when both are cut off, so no sensitivity does
        return (truncated.sum(0) + earlier).clamp(-self._largest, self._largest)

    def privatised(self, t: int, contributions: torch.Tensor) -> FloatArray:
        """S_t, shape (d,), of the clipped gradients of step t as `added` takes them, or of the sum that it gives.

        Raises: InvalidInput: as `added`; steps out of order where noise is correlated.
        """
        if self.released is not None and t != len(self.released):
            raise InvalidInput(f"step must be {len(self.released)}, the next one, got {t}; make the node anew.")
        total = (self.added(contributions) if contributions.ndim == 2 else contributions).cpu().numpy()
        y = self._before(t, total.size) + self._row(t)[-1] * total + self._normal(t, total.size)
        return self._take(t, total, y)

    def resume(self, released: list[WholeNumbers]) -> None:
        """Goes on after the steps whose y are given; sums follow from them and the keys.

        Raises: InvalidInput: y of other keys, or of another encoder.
        """
        self._sums.clear()
        self._privatised.clear()
        self.released = []
        for t, y in enumerate(released):
            total, rest = np.divmod(y - self._normal(t, y.size) - self._before(t, y.size), self._row(t)[-1])
            if rest.any():
                raise InvalidInput("released must be of a node with the same keys, encoder and grid, got others.")
            self._take(t, total, y)

    def _normal(self, t: int, dim: int) -> WholeNumbers:
        return self._normals.row(t, dim, self._scale)

    def _row(self, t: int) -> WholeNumbers:
        """2^m C[t, .] at the steps whose sums are kept and at t."""
        row = self._encoder[0] if len(self._encoder) == 1 else self._encoder[t, : t + 1]
        return row[len(row) - len(self._sums) - 1 :]

    def _before(self, t: int, dim: int) -> WholeNumbers:
        """sum_(j < t) 2^m C[t, j] k_j."""
        weights = self._row(t)[:-1]
        return sum((w * k for w, k in zip(weights, self._sums, strict=True)), start=np.zeros(dim, dtype=np.int64))

    def _take(self, t: int, total: WholeNumbers, y: WholeNumbers) -> FloatArray:
        """S_t = (q y_t - sum_(j < t) C[t, j] S_j) / C[t, t], a function of y; keeps what later steps need."""
        row = self._row(t) * (self._fine / self.step)
        rest = sum((w * S for w, S in zip(row[:-1], self._privatised, strict=True)), start=np.zeros(total.size))
        privatised = (self._fine * y - rest) / row[-1]
        self._sums.append(total)
        self._privatised.append(privatised)
        if self.released is not None:
            self.released.append(y)
        return privatised


def _local(noise: NoiseOperator) -> CausalNoise:
    causal = noise.causal
    if causal is None or not causal.local:
        raise UnsupportedMechanism(
            f"a grid needs noise that is each node's alone, got {noise.kind}: sums of rounded normals are no rounded "
            "normal, and nothing is proved; leave grid out, or calibrate dp_dsgd or mafalda."
        )
    return causal


def _whole(encoder: FloatArray) -> tuple[WholeNumbers, int]:
    """(2^m C, m), m the least that makes whole numbers."""
    for bits in range(MOST_BITS + 1):
        scaled = encoder * 2.0**bits
        if (scaled == np.round(scaled)).all() and np.abs(scaled).max() < 2.0**53:
            return scaled.astype(np.int64), bits
    raise InvalidInput(
        f"the encoder must have entries that are multiples of 2^-{MOST_BITS}, got others; calibrate "
        "mfdl.training.grid_sums.on_grid(algorithm)."
    )

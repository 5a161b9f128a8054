"""Privatised sums on a grid: a node releases noise of real numbers, rounded exactly.

In: a mechanism with independent noise at each node, with encoder C of entries that are multiples of 2^-m (`on_grid`),
a node and its keys, and the step h of the grid, a power of two. With the whole numbers
k_t = sum_r trunc(g_r / h) of the clipped gradients of step t, q = 2^-m h and real standard normals z, it makes

    y_t = sum_j 2^m C[t, j] k_j + [nu z_t / q],    [.] the nearest integer.

Out: S = C^-1 q y, step by step, in the place of G + C^-1 nu Z. It is computed from y alone. At a node of noise scale F
(`CausalNoise.node_scales`) nu F stands in the place of nu, rounded up.

Theorem: every function of the y of all steps has the guarantee of the mechanism, mu and epsilon included.

Proof. Truncation towards zero raises the absolute value of no entry, so the contribution h trunc(g_r / h) of a record
has a norm of at most clip_norm, as g_r has (`clipping`), and it is a function of the record and the model. So the
mechanism that releases C G + nu Z, Z real and G the sums h k of these contributions, has the guarantee, for gradients
that follow earlier outputs as well. And [a + x] = a + [x] for whole a: y_t = [(C G + nu Z)_t / q] is a function of what
that mechanism releases.

So low-order bits reveal no more than the real numbers, unlike those of float samplers (Mironov, CCS 2012; Jin et
al., S&P 2022). Sums of rounded normals are no rounded normal, so shared noise is refused. The theorem assumes uniform
keystream, `RoundedNormals`, and gradients of torch that do not depend on the values of other records in the batch; it
does not cover timing.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism
from ..noise import CausalNoise, NoiseOperator
from .column_generators import ChaChaColumns, Words, keystream, prf, tail_probabilities
from .keys import NoiseKey
from .shared_randomness import HolderKeys
from .single_copy import SingleCopy

LARGEST_SCALE = 2.0**40  # above it the error of a float exceeds half a step
PIECE = 2**14  # coordinates at once
LONGEST = 2**32  # coordinates at most: blocks of a 32-bit counter
_MORE = 512  # bits of a coordinate beyond its word: a block of the cipher
_SURE = 4.5  # normals up to which the bits of a word decide as many digits as a float has
_ERROR = 2.0**-45  # of a float normal z > 1, relative; of a smaller one absolute
_ROUNDING = 2.0**-50  # of the last sums
DIGITS = 60, 240  # digits of the decimals that decide what floats leave in doubt


class RoundedNormals:
    """The nearest integers to scale z, z real standard normals of a secret key: rows by step.

    P(k) = Phi((k + 1/2) / scale) - Phi((k - 1/2) / scale), up to a total variation of 2^-512 for uniform keystream. A
    float decides the integer only where its error bound leaves no doubt; otherwise more random bits and more digits do.
    |z| has the tail probability P = 0.0b_1 b_2 ... in binary, b_1 to b_63 of the word that `ChaChaColumns` takes for
    the coordinate, the 512 that follow of a ChaCha20 block of the coordinate alone.

    Args: key: secret; a key of a seed is for simulations, and uses the same cipher.
    Attributes: name: of the rule from key, step and coordinate to normals; stored with nodes.
    Guarantees: a pure function of (key, step, coordinate, scale).
    Assumes: `scipy.special.ndtri` errs by at most 2^-46 max(1, |z|) (measured: 2^-50.1 at 45,000 tails), and sums and
        products are those of IEEE 754. Doubtful integers are decided in decimals, whose errors are bounded here.
    Cost: 1.6 to 3.5 times that of float normals, plus 0.1 milliseconds for each in doubt, a share of about 2^-44 scale.
    """

    name = "chacha20/rounded-normals/holder-keys/2"

    def __init__(self, key: NoiseKey) -> None:
        secret = key.derive("rounded normals").reveal_secret()
        self._drawn = ChaChaColumns([secret], np.zeros(1, dtype=np.uint64), 0)
        self._more = prf(secret, "more bits")

    def row(self, step: int, dim: int, scale: float) -> NDArray[np.int64]:
        """Integers of one step, shape (dim,).

        Raises: InvalidInput: scale outside [0, LARGEST_SCALE], or more than LONGEST coordinates.
        """
        if not 0 <= scale <= LARGEST_SCALE:
            raise InvalidInput(f"scale must lie in [0, 2^40], got {scale:g}; take a coarser grid.")
        if dim > LONGEST:
            raise InvalidInput(f"dim must be at most {LONGEST}, got {dim}; train fewer parameters.")

        def more(place: int) -> int:
            block = np.empty(_MORE // 64, dtype="<u8")
            keystream(self._more, step, 0, block, first_block=place)
            return int.from_bytes(block.tobytes(), "big")

        words, integers = self._drawn.words(step, dim)[0], np.empty(dim, dtype=np.int64)
        for start in range(0, dim, PIECE):  # which stay in the cache of a core
            piece = slice(start, start + PIECE)
            integers[piece] = rounded(words[piece], scale, more, start)
        return integers


def rounded(words: Words, scale: float, more: Callable[[int], int], first: int = 0) -> NDArray[np.int64]:
    """The nearest integers to scale z, z the normals of the words and of the 512 bits that `more(first + i)` adds."""
    z = -ndtri(tail_probabilities(words))
    x = scale * z
    nearest = np.floor(x + 0.5)
    doubt = scale * _ERROR * np.maximum(z, 1.0) + _ROUNDING
    integers = nearest.astype(np.int64)
    for place in np.flatnonzero((z > _SURE) | (np.abs(np.abs(x - nearest) - 0.5) <= doubt)).tolist():
        integers[place] = _decided(int(words[place]) >> 1, more(first + place), scale)
    negative = (words & np.uint64(1)).astype(bool)
    return np.where(negative, -integers, integers)


def _decided(first: int, more: int, scale: float) -> int:
    """The nearest integer to scale |z|, |z| of tail probability (first + more 2^-512) 2^-64."""
    numerator, denominator = (first << _MORE) + more, 2 ** (64 + _MORE)
    z = -float(ndtri(max(numerator, 1) / denominator))
    x = scale * z
    nearest = int(np.floor(x + 0.5))
    if abs(abs(x - nearest) - 0.5) > scale * _ERROR * max(z, 1.0) + _ROUNDING:
        return nearest
    edge = int(np.floor(x))  # |z| is beyond edge + 1/2 if its tail probability is less than that of it
    for digits in DIGITS:
        with decimal.localcontext(prec=digits):
            difference = upper_tail(Decimal(2 * edge + 1) / 2 / Decimal(scale)) - Decimal(numerator) / denominator
        if abs(difference) > Decimal(10) ** (6 - digits):
            break
    return edge + 1 if difference > 0 else edge


def upper_tail(x: Decimal) -> Decimal:
    """1 - Phi(x), 0 <= x <= 30, with an absolute error below 10^(6 - digits) in a context of so many digits.

    It is 1/2 - phi(x) sum_n x^(2n + 1) / (1 3 5 ... (2n + 1)). Roundings err by a relative 5 10^-digits. The terms are
    positive and fall to a quarter from n = 2 x^2 <= 1800 on, so there are fewer than 2300, each with three roundings
    more than the last; sum, exponent (at most 450) and the rest stay below 10^4 roundings, and the product below 1/2.
    """
    term = total = x
    n = 0
    while n < 2 * float(x) ** 2 or term > total * Decimal(10) ** (-decimal.getcontext().prec):
        n += 1
        term *= x * x / (2 * n + 1)
        total += term
    density = (-x * x / 2).exp() / (2 * _pi(decimal.getcontext().prec)).sqrt()
    return Decimal(1) / 2 - density * total


@functools.cache
def _pi(digits: int) -> Decimal:
    """Machin's formula, 16 arctan(1/5) - 4 arctan(1/239), in whole numbers with ten digits more."""
    scale = 10 ** (digits + 10)

    def arctan_of_inverse(q: int) -> int:
        power, total, n = scale // q, scale // q, 1
        while power:
            power //= -q * q
            n += 2
            total += power // n
        return total

    return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) / scale


FINEST = 2.0**40  # largest number of grid steps in a clipping norm
MOST_RECORDS = 2**20  # largest batch: sums stay below 2^61
MOST_BITS = 30
WholeNumbers = NDArray[np.int64]


def on_grid(algorithm: LinearAlgorithm, bits: int = 12) -> LinearAlgorithm:
    """The algorithm with its encoders rounded to multiples of 2^-bits, to be calibrated like any other.

    Raises: UnsupportedMechanism: noise that nodes share; InvalidInput: bits outside 0 .. MOST_BITS, or a diagonal entry
        that becomes zero.
    """
    noise = _local(algorithm.noise)
    if check.integer_at_least(0, bits=bits) > MOST_BITS:
        raise InvalidInput(f"bits must be at most {MOST_BITS}, got {bits}.")
    rounded = noise.rounded(bits)
    return algorithm if rounded is noise else dataclasses.replace(algorithm, noise=rounded)


class GridSums(SingleCopy):
    """The privatised sums of one node, step after step.

    Args: step: h > 0, a power of two in units of gradients, at most the clipping norm.
    Raises: UnsupportedMechanism: noise that nodes share.
    Attributes: released: the y of all steps, where later ones need them; privatised.
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
        self._normals = RoundedNormals(keys.node_keys(node).key_for({node}))
        steps, columns = np.nonzero(self._encoder)
        bands = int((steps - columns).max())  # below the diagonal
        self._sums, self._privatised = (deque[NDArray[np.generic]](maxlen=bands) for _ in range(2))
        self.released: list[WholeNumbers] | None = [] if bands else None

    def added(self, contributions: torch.Tensor, earlier: torch.Tensor | int = 0) -> torch.Tensor:
        """Clipped gradients, shape (records, d), as an int64 sum of grid steps (d,) on an earlier one.

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
        """S_t, shape (d,), of the clipped gradients of step t, or of their sum by `added`; steps in order.

        Raises: InvalidInput: as `added`; steps out of order where noise is correlated.
        """
        if self.released is not None and t != len(self.released):
            raise InvalidInput(f"step must be {len(self.released)}, the next one, got {t}; make the node anew.")
        total = (self.added(contributions) if contributions.ndim == 2 else contributions).cpu().numpy()
        y = self._before(t, total.size) + self._row(t)[-1] * total + self._normals.row(t, total.size, self._scale)
        return self._take(t, total, y)

    def resume(self, released: list[WholeNumbers]) -> None:
        """Resumes after the steps of the given y; sums follow from them and the keys.

        Raises: InvalidInput: y of other keys, or of another encoder.
        """
        self._sums.clear()
        self._privatised.clear()
        self.released = []
        for t, y in enumerate(released):
            noise = self._normals.row(t, y.size, self._scale)
            total, rest = np.divmod(y - noise - self._before(t, y.size), self._row(t)[-1])
            if rest.any():
                raise InvalidInput("released must be of a node with the same keys, encoder and grid, got others.")
            self._take(t, total, y)

    def _row(self, t: int) -> WholeNumbers:
        """2^m C[t, .] at the steps whose sums are kept and at t."""
        row = self._encoder[0] if len(self._encoder) == 1 else self._encoder[t, : t + 1]
        return row[len(row) - len(self._sums) - 1 :]

    def _before(self, t: int, dim: int) -> WholeNumbers:
        """sum_(j < t) 2^m C[t, j] k_j."""
        weights = self._row(t)[:-1]
        return sum((w * k for w, k in zip(weights, self._sums, strict=True)), start=np.zeros(dim, dtype=np.int64))

    def _take(self, t: int, total: WholeNumbers, y: WholeNumbers) -> FloatArray:
        """S_t = (q y_t - sum_(j < t) C[t, j] S_j) / C[t, t], a function of y; stores it for later steps."""
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

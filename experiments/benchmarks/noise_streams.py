"""Noise of one node, step by step, against plain NumPy that holds C^-1 and all base noise and multiplies them.

The answer is checked first: the same base noise through the plain product. Seconds are of all steps; the peer draws its
own normals (a generator of NumPy's, which is faster than counters that any step can be asked for). Memory is what is
allocated beyond the encoder. The last encoder is banded, which the peer cannot use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _measure import report, seconds, traced_megabytes

import mfdl
from mfdl.factorization.encoders import Banded, square_root_series
from mfdl.noise import CausalNoise, IndependentNoise
from mfdl.training.keys import NoiseKey

KEY, SIZES, DIM, BANDS = NoiseKey.from_seed(0), (128, 256, 512), 10_000, 16


def ours(noise: Any, dim: int) -> np.ndarray:
    """The last row, after all others."""
    stream = mfdl.noise_stream(noise, 1.0, KEY, dim)
    for step in range(noise.num_steps):
        row = stream.step(step)
    return row


def peer(encoder: np.ndarray, dim: int) -> np.ndarray:
    """All rows."""
    return np.linalg.inv(encoder) @ np.random.default_rng(0).standard_normal((len(encoder), dim))


def main() -> None:
    for size in SIZES:
        banded = Banded(np.tril(np.tile(square_root_series(BANDS), (size, 1))))
        fresh = mfdl.noise_stream(IndependentNoise(size, 1), 1.0, KEY, 100)
        base = np.stack([fresh.step(step)[0] for step in range(size)])
        for name, encoder in (("dense", mfdl.factorization.square_root_encoder(size)), ("banded", banded)):
            noise = CausalNoise(encoder, num_steps=size, num_nodes=1)
            array = encoder.dense() if name == "banded" else encoder
            assert np.allclose(ours(noise, 100), (np.linalg.inv(array) @ base)[-1]), "the two streams disagree"
            times = {
                "mfdl": seconds(lambda noise=noise: ours(noise, DIM)),
                "plain_numpy": seconds(lambda array=array: peer(array, DIM)),
            }
            memory = [
                traced_megabytes(lambda noise=noise: ours(noise, DIM)),
                traced_megabytes(lambda array=array: peer(array, DIM)),
            ]
            report(
                "stream",
                encoder=name,
                steps=size,
                coordinates=DIM,
                **times,
                ratio=times["plain_numpy"]["median"] / times["mfdl"]["median"],
                megabytes=memory[0],
                plain_numpy_megabytes=memory[1],
                memory_ratio=memory[1] / memory[0],
            )


if __name__ == "__main__":
    main()

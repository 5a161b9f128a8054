"""Noise of one node, step by step, against plain NumPy that holds C^-1 and all base noise and multiplies them.

The answer is checked first: the same base noise through the plain product. Seconds are of all steps; the peer draws its
own normals (a generator of NumPy's, which is faster than counters that any step can be asked for). Memory is what is
allocated beyond the encoder. The last encoder is banded, which the peer cannot use.

`generators` has both generators of base noise side by side, the cipher of secret keys and Philox of seeds, in CPU
seconds per normal. With a CUDA device it adds the copy to the device; the numbers there are those of the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from _measure import leave_out, report, seconds, traced_megabytes

import mfdl
from mfdl.factorization.encoders import Banded, square_root_series
from mfdl.noise import CausalNoise, IndependentNoise
from mfdl.training.grid_sums import RoundedNormals
from mfdl.training.keys import ColumnNormals, NoiseKey

KEY, SIZES, DIM, BANDS = NoiseKey.from_seed(0), (128, 256, 512), 10_000, 16
SECRET = NoiseKey(bytes(range(32)))
LONG = 400_000
ROWS = ((10_000, 10), (1_000, 1_000), (100, 79_510), (2, 4_000_000))  # nodes, coordinates


def ours(noise: Any, dim: int) -> np.ndarray:
    """The last row, after all others."""
    stream = mfdl.training.streams.noise_stream(noise, 1.0, KEY, dim)
    for step in range(noise.num_steps):
        row = stream.step(step)
    return row


def peer(encoder: np.ndarray, dim: int) -> np.ndarray:
    """All rows."""
    return np.linalg.inv(encoder) @ np.random.default_rng(0).standard_normal((len(encoder), dim))


def step_on(drawn: ColumnNormals, at: Iterator[int], steps: int, dim: int) -> None:
    """Draws some of the next steps."""
    for step in itertools.islice(at, steps):
        drawn.step(step, dim)


def generators() -> None:
    """One step of noise of all nodes, each with a key of its own."""
    device = "cuda" if torch.cuda.is_available() else None
    for nodes, dim in ROWS:
        columns = {
            root.generator.name: ColumnNormals([root.derive(u) for u in range(nodes)], np.zeros(nodes, dtype=np.int64))
            for root in (SECRET, KEY)
        }
        for drawn in columns.values():
            assert abs(drawn.step(0, dim).mean()) < 6 / (nodes * dim) ** 0.5, "the numbers are no standard normals"
        steps = 300 if dim < 100 else 1  # short rows are made ahead of their step
        times = {
            name: seconds(partial(step_on, drawn, itertools.count(1), steps, dim)) for name, drawn in columns.items()
        }
        per_normal = {name: 1e9 * spread["cpu"] / (steps * nodes * dim) for name, spread in times.items()}
        cipher, philox = per_normal.values()
        report("generators", nodes=nodes, coordinates=dim, nanoseconds=per_normal, ratio=cipher / philox)
        if device is None:
            continue
        name, drawn = next(iter(columns.items()))
        assert np.array_equal(torch.tensor(drawn.step(2, dim), device=device).cpu().numpy(), drawn.step(2, dim))

        def copied(drawn: ColumnNormals = drawn, dim: int = dim) -> None:
            torch.tensor(drawn.step(1, dim), device=device)
            torch.cuda.synchronize()

        on_device = 1e9 * seconds(copied)["median"] / (nodes * dim)
        report("generators, to the device", nodes=nodes, coordinates=dim, generator=name, nanoseconds=on_device)
    whole, floats = RoundedNormals(SECRET), ColumnNormals([SECRET], [0])
    for exponent in (18, 28, 32):
        times = [
            seconds(work)["cpu"] for work in (partial(whole.row, 1, LONG, 2.0**exponent), partial(floats.step, 1, LONG))
        ]
        report("rounded normals", log2_scale=exponent, coordinates=LONG, ratio=times[0] / times[1])
    if device is None:
        leave_out("generators, to the device", "no CUDA device; with one, the copy of each row is timed")


def main() -> None:
    generators()
    for size in SIZES:
        banded = Banded(np.tril(np.tile(square_root_series(BANDS), (size, 1))))
        fresh = mfdl.training.streams.noise_stream(IndependentNoise(size, 1), 1.0, KEY, 100)
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

"""How seconds and memory grow, with slopes: error Gram in nodes and steps, dense solver and streams of noise in steps.

A slope is that of the line through (log size, log cost): 3 where twice the size costs eight times as much. Seconds are
those of the processor, on one thread, so that a busy machine distorts them less; each curve has a process of its own.
Memory of the streams is what is allocated beyond the encoder, in rows of the model's length.

    python experiments/benchmarks/growth.py [CURVE ...] [--out FOLDER]

With all curves it also draws them, as FOLDER/growth.png and .svg (default results/benchmarks).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _measure import peak_megabytes, report, seconds, slope, traced_megabytes
from matplotlib.figure import Figure

import mfdl
from mfdl.factorization.encoders import Banded, Buffered, square_root_series
from mfdl.factorization.temporal import prefix_sum_gram
from mfdl.noise import CausalNoise
from mfdl.objective import NoiseObjective
from mfdl.pictures.line_charts import Panel, draw
from mfdl.pictures.style import write_figure
from mfdl.training.keys import NoiseKey
from mfdl_solvers import FactorizationProblem, solve

Work = Callable[[], Any]
REPEATS = 3
NODES, STEPS, EPOCHS = 250, 256, 16  # where the other of nodes and steps grows
SPARSE = "regular:n={},degree=10,seed=0"
UNEVEN = "erdos-renyi:n={},p=5e-4,seed=0"
DIM, BANDS, TOLERANCE = 2**12, 16, 1e-4


def dynamics(graph: str, size: int, weights: str = "metropolis_hastings") -> mfdl.Dynamics:
    return mfdl.Dynamics(getattr(mfdl.gossip, weights)(mfdl.graphs.load_sparse(graph.format(size))))


def gram_by_nodes(graph: str, gram: Callable[[NoiseObjective], Any]) -> Callable[[int], Work]:
    """Of a graph that grows; loading it is not counted."""

    def of(size: int) -> Work:
        given = dynamics(graph, size)
        return lambda: gram(NoiseObjective(given, STEPS))

    return of


def gram_by_steps(graph: str, nodes: int, weights: str, gram: Callable[[NoiseObjective], Any]) -> Callable[[int], Work]:
    def of(size: int) -> Work:
        given = dynamics(graph, nodes, weights)
        return lambda: gram(NoiseObjective(given, size))

    return of


def solver(gram: Callable[[int], np.ndarray]) -> Callable[[int], Work]:
    """The dense solver with all its checks, EPOCHS epochs."""

    def of(size: int) -> Work:
        H, classes = gram(size), np.arange(size) % (size // EPOCHS)

        def work() -> None:
            assert solve(FactorizationProblem(H, classes)).gap <= TOLERANCE, "not within the tolerance"

        return work

    return of


def ring_gram(size: int) -> np.ndarray:
    return np.asarray(NoiseObjective(dynamics("ring:n={}", 148), size).over_steps())


def stream(encoder: Callable[[int], Any], every: Callable[[int], Sequence[int]]) -> Callable[[int], Work]:
    """One node's noise at some of its steps, in the order given; the encoder is there before.

    Nothing is kept that can be made again, as for models whose base noise of all steps takes more than KEEP_BYTES.
    """

    def of(size: int) -> Work:
        noise = CausalNoise(encoder(size), num_steps=size, num_nodes=1)

        def work() -> None:
            with mock.patch("mfdl.noise.stream.KEEP_BYTES", 0):
                noise_stream = mfdl.training.streams.noise_stream(noise, 1.0, NoiseKey.from_seed(0), DIM)
            for step in every(size):
                noise_stream.step(step)

        return work

    return of


def square_root(size: int) -> np.ndarray:
    return np.asarray(mfdl.factorization.square_root_encoder(size))


def banded(size: int) -> Banded:
    return Banded(np.tril(np.tile(square_root_series(BANDS), (size, 1))))


def buffered(size: int) -> Buffered:
    return Buffered(scales=[0.2, 0.05], decays=[0.8, 0.99], size=size)


@dataclass(frozen=True)
class Curve:
    """What grows.

    Attributes:
        words: its name in the picture; of: what is measured at a size; what it prepares is not counted.
        over: "nodes" or "steps"; expected: what it costs, in words; streams: memory is counted in rows of the model.
    """

    name: str
    words: str
    of: Callable[[int], Work]
    sizes: Sequence[int]
    over: str
    expected: str
    streams: bool = False


def last(size: int) -> list[int]:
    return [size - 1]


SYMMETRIC, AVERAGING = "metropolis_hastings", "uniform"
SOLVED, STREAMED = (256, 512, 1024, 2048), (400, 800, 1600, 3200)
BY_NODES = (
    Curve(
        "eigenvectors",
        "eigenvectors, random graph",
        gram_by_nodes(SPARSE, NoiseObjective.over_steps),
        (300, 1000, 3000),
        "nodes",
        "n^3 + n T^2",
    ),
    Curve(
        "ring",
        "closed form, ring",
        gram_by_nodes("ring:n={}", NoiseObjective.over_steps),
        (300, 1000, 3000, 10**4, 10**5, 10**6),
        "nodes",
        "n",
    ),
    Curve(
        "probes",
        "probes, random graph of degree 10",
        gram_by_nodes(SPARSE, NoiseObjective.estimated),
        (10**4, 10**5, 10**6),
        "nodes",
        "edges sqrt(T)",
    ),
)
BY_STEPS = (
    Curve(
        "eigenvectors-steps",
        "eigenvectors, 250 nodes",
        gram_by_steps(SPARSE, NODES, SYMMETRIC, NoiseObjective.over_steps),
        (512, 1024, 2048, 4096),
        "steps",
        "T^2",
    ),
    Curve(
        "probes-steps",
        "probes, 100,000 nodes",
        gram_by_steps(SPARSE, 10**5, SYMMETRIC, NoiseObjective.estimated),
        (64, 128, 256, 512),
        "steps",
        "edges sqrt(T) + T^2",
    ),
    Curve(
        "probes-steps-not-symmetric",
        "probes, 20,000 nodes, not symmetric",
        gram_by_steps(UNEVEN, 20_000, AVERAGING, NoiseObjective.estimated),
        (64, 128, 256, 512),
        "steps",
        "edges T + T^2",
    ),
    Curve("solver-ring", "dense solver, ring", solver(ring_gram), SOLVED, "steps", "T^3"),
    Curve(
        "solver-prefix-sums",
        "dense solver, prefix sums",
        solver(prefix_sum_gram),
        SOLVED[:3],
        "steps",
        "T^3",
    ),
)
STREAMS = (
    Curve(
        "stream-dense",
        "dense, blocks made again",
        stream(square_root, last),
        STREAMED[1:],  # of 400 steps the last block is half a block
        "steps",
        "T, the last block",
        streams=True,
    ),
    Curve(
        "stream-banded",
        "banded, 16 diagonals",
        stream(banded, range),
        (*STREAMED, 10**4),
        "steps",
        "T, all rows",
        streams=True,
    ),
    Curve(
        "stream-buffered",
        "buffered, 2 buffers",
        stream(buffered, range),
        (*STREAMED, 10**4),
        "steps",
        "T, all rows",
        streams=True,
    ),
)
CURVES = {curve.name: curve for curve in (*BY_NODES, *BY_STEPS, *STREAMS)}


COLOURS = (
    *("#0072b2", "#009e73", "#d55e00", "#56b4e9", "#e69f00", "#cc79a7"),
    *("#000000", "#6e6e6e", "#7b3294", "#b15928", "#17becf"),
)


def measured(name: str, sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """One curve, at its sizes or others."""
    curve = CURVES[name]
    sizes = list(sizes or curve.sizes)
    times, rows, megabytes = [], [], []
    for size in sizes:
        work = curve.of(size)
        times.append(seconds(work, repeats=REPEATS, warm_up=int(size == sizes[0]), clock=time.process_time))
        megabytes.append(peak_megabytes())
        if curve.streams:
            rows.append(traced_megabytes(work) * 2**20 / (8 * DIM))
    medians = [took["median"] for took in times]
    memory = {"rows": rows, "memory_slope": slope(sizes, rows)} if rows else {"megabytes": megabytes}
    return {
        "curve": name,
        "over": curve.over,
        "expected": curve.expected,
        "sizes": sizes,
        "cpu_seconds": times,
        "slope": slope(sizes, medians),
        "last_slope": slope(sizes[-2:], medians[-2:]),
        **memory,
        "peak_megabytes": peak_megabytes(),
    }


def panel(curves: Sequence[Curve], rows: dict[str, dict[str, Any]], title: str) -> Panel:
    """Seconds of curves over their sizes, of streams memory; the slope between the two largest sizes in brackets."""
    x = sorted({size for curve in curves for size in rows[curve.name]["sizes"]})
    streams = curves[0].streams
    lines, colours = {}, {}
    for curve in curves:
        row = rows[curve.name]
        costs = (
            [[value] for value in row["rows"]]
            if streams
            else [[took[key] for key in ("min", "median", "max")] for took in row["cpu_seconds"]]
        )
        values = np.full((len(x), len(costs[0])), np.nan)
        values[[x.index(size) for size in row["sizes"]]] = costs
        name = f"{curve.words} ({abs(row['memory_slope' if streams else 'last_slope']):.1f})"
        lines[name], colours[name] = values, COLOURS[list(CURVES).index(curve.name)]
    y_label = "rows of the model's length" if streams else "CPU seconds"
    return Panel(title, curves[0].over, y_label, x, lines, log_x=True, colours=colours)


def picture(rows: dict[str, dict[str, Any]]) -> Figure:
    """All curves."""
    return draw(
        [
            panel(BY_NODES, rows, f"error Gram of {STEPS} steps"),
            panel(BY_STEPS, rows, "error Gram, dense solver"),
            panel(STREAMS, rows, "memory of a stream of noise"),
        ],
        "Cost over nodes and steps; in brackets the exponent of growth at the largest sizes",
        f"Seconds of one thread: means of {REPEATS} runs, bands from the fastest to the slowest; "
        f"{date.today().isoformat()}. Of streams the exponent over all sizes.",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=", ".join(CURVES))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the picture")
    arguments = parser.parse_args()
    if unknown := set(arguments.curves) - set(CURVES):
        parser.error(f"no curve {', '.join(sorted(unknown))}; there are {', '.join(CURVES)}")
    for name in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{name}_NUM_THREADS"] = "1"  # of the processes to come
    rows = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in arguments.curves or CURVES:
            rows[name] = pool.apply(measured, [name])
            report("growth", **rows[name])
    if len(rows) == len(CURVES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # sizes that a curve has not
            write_figure(arguments.out, "growth", picture(rows))


if __name__ == "__main__":
    main()

"""What training costs as nodes and parameters grow: CPU seconds, memory and bytes on the wire of a node and step.

    python experiments/benchmarks/scale.py [CURVE ...] [--out FOLDER]

Each size is measured in a process of its own, on one thread, in seconds of the processor; a step is the difference
of two runs over the steps between them, memory the peak of the process beyond that of one that only imports. Slopes
are those between the two largest sizes, and say what larger ones would take (`extrapolated`), which nobody measured.
With all curves it also draws them, as FOLDER/scale.png and .svg (default results/benchmarks).
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from _measure import peak_megabytes, report, slope
from matplotlib.figure import Figure

import mfdl
from mfdl.pictures.line_charts import Panel, draw
from mfdl.pictures.style import write_figure
from mfdl.training.keys import NoiseKey
from mfdl.training.streams import ShardedNoise

FEW, MORE = 2, (4, 400)  # steps of the first run; at least and at most how many more the second one has
WORK = 2 * 10**7  # parameters of all nodes times those steps, within these bounds
FLOAT = 4  # bytes of a number of a message
WEIGHTS = 42  # of the model that grows in nodes: 20 features and a bias to two scores
NODES = 4  # where the model grows

Costs = dict[str, float]


def trained(graph: str, nodes: int, features: int) -> Costs:
    """DP-DSGD with one record at each node: what comes before the first step, and a node's step."""
    steps = FEW, FEW + int(np.clip(WORK // (nodes * 2 * (features + 1)), *MORE))
    before, began = peak_megabytes(), time.process_time()
    loaded = mfdl.graphs.load_sparse(graph)
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(loaded), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(epochs=steps[1], period=1))
    network = time.process_time() - began
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    accounted = time.process_time() - began - network
    n = dynamics.num_nodes
    task = mfdl.tasks.logistic(n, dimension=features, train_records=n, test_records=2)
    seconds = []
    for last in steps:
        began = time.process_time()
        run = mfdl.replay(mechanism, task, seeds=[0], eval_every=steps[1], stop_after=last, progress=False)
        seconds.append(time.process_time() - began)
    parameters = run.seeds[0].models.shape[1]
    each = n * (steps[1] - steps[0])
    return {
        "parameters": parameters,
        "seconds_before": network + accounted,
        "seconds_of_graph": network,
        "seconds_of_accounting": accounted,
        "microseconds_of_node_step": 1e6 * (seconds[1] - seconds[0]) / each,
        "bytes_of_node": 2**20 * (peak_megabytes() - before) / n,
        "bytes_sent_of_node_step": FLOAT * parameters * 2 * loaded.num_edges / n,
    }


def of_nodes(graph: str, size: int) -> Costs:
    return trained(graph.format(size), size, (WEIGHTS - 2) // 2)


def of_parameters(size: int) -> Costs:
    return trained(f"ring:n={NODES}", NODES, (size - 2) // 2)


def noise_in_shards(size: int) -> Costs:
    """One node's noise of one step, an inverse of four diagonals, piece by piece."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=4"))
    algorithm = mfdl.algorithms.bisr(dynamics, mfdl.Cyclic(epochs=1000, period=100), bandwidth=4)
    pieces = ShardedNoise(algorithm.noise, 1.0, NoiseKey.from_seed(0), dim=size, slots=[3])
    before, began = peak_megabytes(), time.process_time()
    for _ in pieces.step(70_000):
        pass
    took = time.process_time() - began
    return {"microseconds_of_node_step": 1e6 * took, "bytes_of_node": 2**20 * (peak_megabytes() - before)}


@dataclass(frozen=True)
class Curve:
    """What grows: `of` is measured at `sizes`, and extrapolated to `beyond`."""

    words: str
    over: str
    of: Callable[[int], Costs]
    sizes: Sequence[int]
    beyond: Sequence[int]


CURVES = {
    "ring": Curve("ring", "nodes", functools.partial(of_nodes, "ring:n={}"), (10**3, 10**4, 10**5, 10**6), (10**7,)),
    "regular": Curve(
        "random, degree 10",
        "nodes",
        functools.partial(of_nodes, "regular:n={},degree=10,seed=0"),
        (10**3, 10**4, 10**5, 10**6),
        (10**7,),
    ),
    "parameters": Curve(
        f"model, {NODES} nodes", "parameters", of_parameters, (10**4, 10**5, 10**6, 10**7), (10**8, 10**9)
    ),
    "shards": Curve("noise in shards", "parameters", noise_in_shards, (10**4, 10**5, 10**6, 10**7, 10**8), (10**9,)),
}
DRAWN = {"microseconds_of_node_step": "CPU microseconds", "bytes_of_node": "bytes"}
LAWS = ("seconds_before", "microseconds_of_node_step", "bytes_of_node", "bytes_sent_of_node_step")


def extrapolated(curve: Curve, rows: Sequence[Costs]) -> dict[str, dict[str, Any]]:
    """Of each cost the exponent between the two largest sizes and, by it, what sizes beyond would take."""
    laws = {}
    for name in LAWS:
        if name not in rows[0]:
            continue
        costs = [row[name] for row in rows]
        grows = slope(curve.sizes[-2:], costs[-2:]) if min(costs[-2:]) > 0 else 0.0
        beyond = {size: costs[-1] * (size / curve.sizes[-1]) ** grows for size in curve.beyond}
        laws[name] = {"slope": grows, "beyond": beyond}
    return laws


def panel(curves: dict[str, Sequence[Costs]], over: str, cost: str) -> Panel:
    """A cost over sizes, in dashes where it is extrapolated."""
    chosen = {name: CURVES[name] for name in curves if CURVES[name].over == over}
    x = sorted({size for curve in chosen.values() for size in (*curve.sizes, *curve.beyond)})
    lines, dashed, colours = {}, [], {}
    for number, (name, curve) in enumerate(chosen.items()):
        of = dict(zip(curve.sizes, (row[cost] for row in curves[name]), strict=True))
        law = extrapolated(curve, curves[name])[cost]["beyond"]
        beyond = {curve.sizes[-1]: of[curve.sizes[-1]], **law}
        for words, values in ((curve.words, of), (f"{curve.words}, extrapolated", beyond)):
            lines[words] = np.array([[values.get(size, np.nan)] for size in x])
            colours[words] = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")[number + 2 * (over == "parameters")]
        dashed.append(f"{curve.words}, extrapolated")
    label = f"{DRAWN[cost]} of a node" + (" and step" if "step" in cost else "")
    return Panel(label, over, label, x, lines, log_x=True, dashed=dashed, colours=colours)


def picture(curves: dict[str, Sequence[Costs]]) -> Figure:
    """Seconds and memory, over nodes and over parameters."""
    panels = [panel(curves, over, cost) for over in ("nodes", "parameters") for cost in DRAWN]
    return draw(
        panels,
        "A node's step and memory while nodes, or the parameters of its model, grow",
        f"DP-DSGD, one record at each node, one thread; {WEIGHTS} parameters where nodes grow, {NODES} nodes where the "
        f"model does. Dashes: by the slope between the two largest sizes, not measured. {date.today().isoformat()}",
    )


def measured(name: str, size: int) -> Costs:
    trained("ring:n=4", 4, 2)  # imports, and what is made once
    return CURVES[name].of(size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=", ".join(CURVES))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the picture")
    arguments = parser.parse_args()
    if unknown := set(arguments.curves) - set(CURVES):
        parser.error(f"no curve {', '.join(sorted(unknown))}; there are {', '.join(CURVES)}")
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"  # of the processes to come
    costs: dict[str, list[Costs]] = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in arguments.curves or CURVES:
            curve, costs[name] = CURVES[name], []
            for size in curve.sizes:
                costs[name].append(pool.apply(measured, [name, size]))
                report("scale", curve=name, over=curve.over, size=size, **costs[name][-1])
            report("scale", curve=name, extrapolated=extrapolated(curve, costs[name]))
    if len(costs) == len(CURVES):
        write_figure(arguments.out, "scale", picture(costs))


if __name__ == "__main__":
    main()

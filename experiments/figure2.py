"""The published figure of loss by distance, redrawn with values that hold: one command, one figure, one table.

User level (every node's whole data in each of T = 10 steps), DP-D-SGD with unit noise, one attacker (node 0), uniform
gossip, no model released. For each graph and distance from the attacker, sens^2 of a node (the Rényi loss of order 2):

- ours, exact: the largest loss over all gradients fixed in advance;
- ours, sum |X|: the closed form behind the published figure, which can exceed the LDP value T (printed only);
- baseline as coded: weights not squared, the attacker among its own neighbours;
- baseline, squared: the weights squared, as in the public code of its own paper;
- LDP: T.

Ours is a bound for gradients fixed in advance: for training the number of this attacker is the LDP value, or shift
reduction given a Lipschitz constant (`mfdl account --lipschitz`).

    python experiments/figure2.py [--out results/figure2] [--data-home DIR]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import mfdl
from mfdl.participation import EveryStep
from mfdl.privacy.accounting import victim_losses
from mfdl.privacy.forms import view_grams
from mfdl.privacy.published import muffliato_as_coded, muffliato_squared, sum_abs_gram
from mfdl.reporting.account import (
    CODED,
    COLOURS,
    FIXED,
    LOCAL,
    MARKERS,
    SQUARED,
    Curve,
    by_distance,
    draw_by_distance,
    write_figure,
)
from mfdl.trust import PNDP

STEPS = 10
ATTACKER = "#0"
GRAPHS = {
    "Florentine families, 15 nodes": "florentine",
    "Erdős-Rényi, 100 nodes, p = ln n / n": f"erdos-renyi:n=100,p={math.log(100) / 100:.6f},seed=0",
    "Erdős-Rényi, 100 nodes, p = 0.2": "erdos-renyi:n=100,p=0.2,seed=0",
    "ego-Facebook, 148 nodes": "ego-facebook",
}
NAMES = {FIXED: "ours, exact", CODED: "baseline as coded", SQUARED: "baseline, squared", LOCAL: "LDP"}


def curves(graph: nx.Graph) -> tuple[list[Curve], np.ndarray]:
    """The three curves of one graph, and sum |X| of every victim in the same order."""
    gossip = mfdl.gossip.uniform(graph)
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip), EveryStep(STEPS))
    trust = PNDP([ATTACKER])
    losses = victim_losses(algorithm, trust, release="none")
    victims = [one.victim for one in losses]
    labels = mfdl.graphs.labels(graph)
    hops = nx.single_source_shortest_path_length(graph, labels[0])
    distances = np.array([hops[labels[u]] for u in victims])
    exact = np.array([one.sensitivity_squared for one in losses])
    baseline = {"num_steps": STEPS, "transposed": True}  # the index of the code that drew the published figure
    coded = np.asarray(muffliato_as_coded(gossip, ATTACKER, **baseline).value)[victims]
    squared = np.asarray(muffliato_squared(gossip, ATTACKER, **baseline).value)[victims]
    grams = view_grams(trust.view(algorithm, release="none"), victims)
    closed_form = np.array([float(sum_abs_gram(gram.matrix).mu) ** 2 for gram in grams])
    values = {FIXED: exact, SQUARED: squared, CODED: coded}
    return [Curve(kind, NAMES[kind], "", distances, found) for kind, found in values.items()], closed_form


def table(name: str, found: list[Curve], closed_form: np.ndarray) -> str:
    """Mean by distance as text, with the largest exact value."""
    columns = [by_distance(one.distances, one.losses) for one in found]
    columns.insert(1, by_distance(found[0].distances, closed_form))
    lines = [name, "  distance  nodes  ours, exact (max)     sum |X|    squared   as coded"]
    for exact, closed, squared, coded in zip(*columns, strict=True):
        lines.append(
            f"  {exact.distance:8d} {exact.victims:6d} {exact.mean:10.4g} {f'({exact.highest:.4g})':>11} "
            f"{closed.mean:9.4g} {squared.mean:10.4g} {coded.mean:10.4g}"
        )
    return "\n".join(lines)


def draw(found: dict[str, list[Curve]]) -> Figure:
    """One panel per graph, one legend."""
    rows = (len(found) + 1) // 2
    figure = Figure(figsize=(10.5, 0.95 + 3.75 * rows + 0.75), facecolor="white")
    height = figure.get_size_inches()[1]
    grid = figure.subplots(rows, 2, squeeze=False)
    figure.subplots_adjust(
        left=0.075, right=0.985, top=1 - 1.3 / height, bottom=1.1 / height, hspace=0.42, wspace=0.2
    )  # fmt: skip
    for axes, (name, one) in zip(grid.ravel(), found.items(), strict=False):
        draw_by_distance(axes, one, local=float(STEPS), named=False)
        axes.set_title(name, loc="left", fontsize=10.5, color="#222222")
    for axes in grid.ravel()[len(found) :]:
        axes.set_visible(False)
    title = "For fixed gradients, what one attacker learns falls with distance and never exceeds LDP"
    figure.text(0.03, 1 - 0.32 / height, title, fontsize=14, fontweight="bold", color="#222222", va="center")
    handles: list[Any] = []
    for kind, label in NAMES.items():
        line = (0, (5, 2.5)) if kind == LOCAL else "-"
        handles.append(Line2D([], [], color=COLOURS[kind], marker=MARKERS.get(kind), linestyle=line, label=label))
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.022, 1 - 0.5 / height),
        ncols=4,
        frameon=False,
        fontsize=9.5,
    )
    caption = (
        "User level, T = 10 steps, DP-D-SGD with unit noise, attacker node 0, uniform gossip, no model released; "
        "gradients fixed in advance. Lines: mean over\nthe nodes at a distance; bars: smallest to largest. "
        "The baseline as coded does not square its weights; both baselines are heuristic for repeated participation."
    )
    figure.text(0.03, 0.42 / height, caption, fontsize=7.8, color="#6b6b6b", va="center", linespacing=1.4)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/figure2"))
    parser.add_argument("--data-home", type=Path, default=None)
    arguments = parser.parse_args()
    found = {}
    for name, spec in GRAPHS.items():
        if spec == "ego-facebook" and not ego_is_here(arguments.data_home):
            print(f"{name}: left out, its file is not here; `mfdl data fetch facebook` brings it.")
            continue
        found[name], closed_form = curves(mfdl.graphs.load(spec, data_home=arguments.data_home))
        print(table(name, found[name], closed_form))
    for path in write_figure(arguments.out, "figure2", draw(found)):
        print(path)


def ego_is_here(data_home: Path | None) -> bool:
    """Whether the data folder holds the graph; nothing is downloaded here."""
    return any(row.name.startswith("facebook/") and row.verified for row in mfdl.data.status(data_home))


if __name__ == "__main__":
    main()

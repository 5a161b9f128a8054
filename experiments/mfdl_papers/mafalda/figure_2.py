"""Figure 2: what one attacker learns of every node, by distance, beside the published accountant and LDP.

User level, T = 10 steps, DP-D-SGD with unit noise, one attacker (node 0), uniform gossip, no model released. For each
graph and distance from the attacker, sens^2 of a node (the Rényi loss of order 2):

- ours, exact: the largest loss over all non-adaptive gradients;
- ours, sum |X|: the closed form behind the published figure, which can exceed the LDP value T (in the table only);
- baseline as coded, the curve that the paper draws: weights not squared, the attacker among its own neighbours;
- baseline, squared: the weights squared, as in the public code of its own paper;
- LDP: T.

Claims are judged against the curve that is drawn; all numbers are deterministic. Ours is a bound for non-adaptive
gradients; both baselines are heuristic for repeated participation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from mfdl import algorithms, gossip, graphs
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.participation import EveryStep
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.privacy.forms import view_grams
from mfdl.runs.privacy_plots import (
    CODED,
    COLOURS,
    LOCAL,
    MARKERS,
    NON_ADAPTIVE,
    SQUARED,
    Curve,
    by_distance,
    draw_by_distance,
)
from mfdl.trust import PNDP

from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.verdicts import Effect, Verdict
from ..muffliato import muffliato_as_coded, muffliato_squared
from . import sum_abs_gram

STEPS = 10
ATTACKER = "#0"
GRAPHS = {
    "Florentine families, 15 nodes": "florentine",
    "Erdős-Rényi, 100 nodes, p = ln n / n": f"erdos-renyi:n=100,p={math.log(100) / 100:.6f},seed=0",
    "Erdős-Rényi, 100 nodes, p = 0.2": "erdos-renyi:n=100,p=0.2,seed=0",
    "ego-Facebook, 148 nodes": "ego-facebook",
}
NAMES = {NON_ADAPTIVE: "ours, exact", CODED: "baseline as coded", SQUARED: "baseline, squared", LOCAL: "LDP"}
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class SumsAtDistance:
    """Means over the nodes at one distance of the attacker on one graph, in units of sens^2."""

    graph: str
    distance: int
    nodes: int
    exact: float
    highest: float
    closed_form: float
    squared: float
    coded: float

    @property
    def tighter_by(self) -> float:
        """The baseline that the paper draws over ours."""
        return self.coded / self.exact

    @property
    def formula_tighter_by(self) -> float:
        """The same over the published formula, sum |X|."""
        return self.coded / self.closed_form

    def effect(self, factor: float, orders: float = 0.0) -> Effect:
        """Orders of magnitude of a factor, of which `orders` are claimed."""
        return Effect.exact(f"{self.graph}, distance {self.distance}", math.log10(factor), orders)


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Figure 2 on every graph that is available."""
    curves: dict[str, list[Curve]] = {}
    points: list[SumsAtDistance] = []
    available, missing = load_graphs(scale)
    for name, graph in available.items():
        curves[name], closed_form = graph_curves(graph)
        points += at_distances(name, curves[name], closed_form)
    settings = {"steps": STEPS, "attacker": ATTACKER, "gossip": "uniform", "noise_std": 1.0, "graphs": list(available)}
    numbers = {"points": [*map(dataclasses.asdict, points)]}
    tables = [_table(name, points) for name in curves]
    return Reproduction(figure, scale, judge(points), tables, draw(curves), settings, numbers, missing)


def load_graphs(scale: RunScale) -> tuple[dict[str, nx.Graph], list[str]]:
    """The graphs that are there, by name, and why others are missing."""
    available, missing = {}, []
    for name, spec in {**GRAPHS, "PeerTube": None}.items():  # the edges of the last are a file of the user
        try:
            graph = graphs.load(spec, data_home=scale.data_home) if spec else scale.brought_graph("peertube")
            available[name if spec else f"PeerTube, {len(graph)} nodes"] = graph
        except InvalidInput as error:
            missing.append(f"{name}: {error}")
    return available, missing


def graph_curves(graph: nx.Graph) -> tuple[list[Curve], np.ndarray]:
    """The three curves of one graph, and sum |X| of every victim in the same order."""
    matrix = gossip.uniform(graph)
    algorithm = algorithms.dp_dsgd(Dynamics(matrix), EveryStep(STEPS))
    trust = PNDP([ATTACKER])
    losses = sensitivity_by_victim(algorithm, trust, release="none")
    victims = [loss.node for loss in losses]
    labels = graphs.labels(graph)
    hops = nx.single_source_shortest_path_length(graph, labels[0])
    distances = np.array([hops[labels[u]] for u in victims])
    exact = np.array([loss.sensitivity_squared for loss in losses])
    # the index of the code that drew the published figure
    coded, squared = (
        np.asarray(bound(matrix, ATTACKER, num_steps=STEPS, transposed=True).value)[victims]
        for bound in (muffliato_as_coded, muffliato_squared)
    )
    grams = view_grams(trust.view(algorithm, release="none"), victims)
    closed_form = np.array([float(sum_abs_gram(gram.matrix).mu) ** 2 for gram in grams])
    values = {NON_ADAPTIVE: exact, SQUARED: squared, CODED: coded}
    return [Curve(kind, NAMES[kind], "", distances, value) for kind, value in values.items()], closed_form


def at_distances(name: str, curves: Sequence[Curve], closed_form: np.ndarray) -> list[SumsAtDistance]:
    """Means by distance of one graph."""
    exact, *baselines = (curve.losses for curve in curves)
    columns = [by_distance(curves[0].distances, losses) for losses in (exact, closed_form, *baselines)]
    return [
        SumsAtDistance(name, ours.distance, ours.victims, ours.mean, ours.highest, *(each.mean for each in others))
        for ours, *others in zip(*columns, strict=True)
    ]


def judge(points: Iterable[SumsAtDistance]) -> list[Verdict]:
    """The parts of the claim, against the baseline that the paper draws; the rest is judged by exact numbers."""
    points = list(points)
    near, far = ([p for p in points if (p.distance <= 2) == is_near] for is_near in (True, False))
    second = [p for p in points if p.distance == 2]
    lowest = min(points, key=lambda p: p.tighter_by)
    least = f"least {lowest.tighter_by:.3g} times, at distance {lowest.distance}"
    of_formula = min(points, key=lambda p: p.formula_tighter_by)
    looser = f"{_short(of_formula.graph)}, distance {of_formula.distance}: {of_formula.closed_form:.4g} for the "
    looser += f"baseline's {of_formula.coded:.4g}"
    nothing = [Effect.exact(p.effect(1.0).at, math.log10(p.coded / STEPS) + ROUNDING) for p in second]
    words = f"it gives {', '.join(f'{p.coded:.3g}' for p in second)} for LDP's {STEPS}, with squared weights "
    words += ", ".join(f"{p.squared:.2g}" for p in second)
    formula, exact = [p.effect(p.formula_tighter_by) for p in points], [p.effect(p.tighter_by) for p in points]
    claim = "tighter than the published accountant at every distance"
    return [
        Verdict(f"published formula (12): {claim}", formula, looser, of_formula.formula_tighter_by),
        Verdict(f"exact number: {claim}", exact, least, lowest.tighter_by),
        _by_orders("exact number: by up to one order of magnitude up to distance 2", near, 1.0, "some"),
        _by_orders("exact number: by at least two orders of magnitude from distance 3", far, 2.0, "every"),
        Verdict("the published accountant gives nothing beyond LDP at distance 2", nothing, words),
    ]


def _by_orders(claim: str, points: Sequence[SumsAtDistance], orders: float, quantifier: str) -> Verdict:
    """How far below the drawn baseline, with the two nearest distances in words, and the squared baseline."""
    if not points:
        return Verdict.not_run(claim, "no graph reaches so far")
    reached = sum(p.tighter_by >= 10**orders for p in points)
    at = {distance: [p for p in points if p.distance == distance] for distance in sorted({p.distance for p in points})}
    each = [f"distance {d}: {', '.join(f'{_short(p.graph)} {p.tighter_by:.3g}x' for p in at[d])}" for d in list(at)[:2]]
    squared = [p.squared / p.exact for p in points]
    finding = f"{10**orders:g} times at {reached} of {len(points)} points; {'; '.join(each)} "
    finding += f"(baseline, squared: {min(squared):.3g}x to {max(squared):.3g}x)"
    best = (max if quantifier == "some" else min)(p.tighter_by for p in points)
    effects = [p.effect(p.tighter_by, orders) for p in points]
    return Verdict(claim, effects, finding, best, quantifier=quantifier)


def _short(name: str) -> str:
    density = f" {name[name.index('p =') :]}" if "p =" in name else ""
    return name.partition(",")[0].replace("Erdős-Rényi", "ER") + density


def _table(name: str, points: Iterable[SumsAtDistance]) -> Table:
    columns = ("distance", "nodes", "ours, exact (max)", "sum |X|", "squared", "as coded", "as coded / ours")
    rows = []
    for p in (p for p in points if p.graph == name):
        beside = (f"{value:.4g}" for value in (p.closed_form, p.squared, p.coded))
        ours = f"{p.exact:.4g} ({p.highest:.4g})"
        rows.append((str(p.distance), str(p.nodes), ours, *beside, f"{p.tighter_by:.3g}"))
    return Table(name, columns, rows)


def draw(curves: Mapping[str, Sequence[Curve]]) -> Picture:
    rows = (len(curves) + 1) // 2
    picture = Picture(figsize=(10.5, 0.95 + 3.75 * rows + 0.75), facecolor="white")
    height = picture.get_size_inches()[1]
    grid = picture.subplots(rows, 2, squeeze=False)
    picture.subplots_adjust(0.075, 1.1 / height, 0.985, 1 - 1.3 / height, wspace=0.2, hspace=0.42)
    for axes, (name, of_one) in zip(grid.ravel(), curves.items(), strict=False):
        draw_by_distance(axes, list(of_one), local=float(STEPS), named=False)
        axes.set_title(name, loc="left", fontsize=10.5, color="#222222")
    for axes in grid.ravel()[len(curves) :]:
        axes.set_visible(False)
    title = "For non-adaptive gradients, what one attacker learns falls with distance and never exceeds LDP"
    picture.text(0.03, 1 - 0.32 / height, title, fontsize=14, fontweight="bold", color="#222222", va="center")
    handles: list[Any] = []
    for kind, label in NAMES.items():
        line: Any = (0, (5, 2.5)) if kind == LOCAL else "-"
        handles.append(Line2D([], [], color=COLOURS[kind], marker=MARKERS.get(kind), linestyle=line, label=label))
    where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.022, 1 - 0.5 / height)}
    picture.legend(handles=handles, ncols=4, frameon=False, fontsize=9.5, **where)
    caption = (
        "User level, T = 10 steps, DP-D-SGD with unit noise, attacker node 0, uniform gossip, no model released; "
        "non-adaptive gradients. Lines: mean over\nthe nodes at a distance; bars: smallest to largest. "
        "The baseline as coded does not square its weights; both baselines are heuristic for repeated participation."
    )
    picture.text(0.03, 0.42 / height, caption, fontsize=7.8, color="#6b6b6b", va="center", linespacing=1.4)
    return picture

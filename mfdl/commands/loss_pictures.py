"""Pictures of `mfdl account --out` and `mfdl attack`: losses by distance or victim, coloured graphs, the heat map."""

from __future__ import annotations

import functools
import io
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mfdl_solvers.ties import equal_to_largest, first_largest

from .. import extensions, files, graphs
from ..check import FloatArray
from ..pictures.drawings import MAX_LABELLED, draw_edges, name_nodes
from ..pictures.style import INK, LINE_INCHES, caption_lines, write_caption, write_figure
from ..privacy import gaussian
from ..privacy.attacking_sets import sensitivity_by_victim
from ..privacy.victim_sensitivity import VictimSensitivity
from ..runs import privacy_plots as pictures
from ..runs.output import rounded_up
from ..runs.pairwise_losses import pairwise_matrix
from ..trust import LDP
from .account_losses import SQUARES, Account, Nodes, SecretAccount

NPZ = "pairwise.npz"
PAIRWISE = (NPZ, "pairwise.png", "pairwise.svg")


def write_pictures(account: Account | SecretAccount, folder: Path) -> None:
    Pictures(account).write(folder) if isinstance(account, Account) else _write_of_secret_batches(account, folder)


def _write_of_secret_batches(account: SecretAccount, folder: Path) -> None:
    """Loss by distance or by victim, and the coloured graph: by epsilon, as there is no mu."""
    answer, who = account.answer, ", ".join(account.named.labels[v] for v in account.attackers)
    hops = account.named.distances(account.attackers)
    by_node = np.full(account.algorithm.num_nodes, math.nan)
    by_node[list(account.epsilons)] = list(account.epsilons.values())
    at = np.array([hops.get(u, 0) for u in account.epsilons], dtype=np.intp)
    measure = f"ε at δ = {answer['delta']:g}"
    losses, name = np.array(list(account.epsilons.values())), account.config.participation
    curve = pictures.Curve(pictures.NON_ADAPTIVE, name, "also for adaptive gradients", at, losses)
    title = f"Privacy loss of each node {f'to {who}' if who else 'under trust model ' + answer['trust']}"
    caption = f"The guarantee is {account.guarantee.sentence()}."
    words: dict[str, Any] = {"title": title, "caption": caption, "measure": measure}
    plot = pictures.plot_by_distance if who else pictures.plot_by_victim
    write_figure(folder, "account", plot([curve], **words))
    write_figure(folder, "graph", pictures.plot_graph(account.graph.networkx(), by_node, account.attackers, **words))
    for name in PAIRWISE:
        (folder / name).unlink(missing_ok=True)


class Pictures:
    def __init__(self, account: Account) -> None:
        self.account, self.answer, self.algorithm = account, account.answer, account.algorithm
        self.mu, self.labels = account.mu, account.named.labels
        self.losses = {  # pictures are of records that one node holds
            nodes: [loss for loss in losses if isinstance(loss.victim, int)] for nodes, losses in account.losses.items()
        }
        self.hops = {nodes: account.named.distances(nodes) for nodes in self.losses}
        shift = gaussian.record_shift(account.config.adjacency, account.config.clip_norm)
        self.unit = (shift / account.noise_std) ** 2 if account.noise_std > 0 else math.inf
        self.many = account.config.all_attackers

    def write(self, folder: Path) -> None:
        """All files into the folder; those of an earlier call that this one does not write are removed."""
        write_figure(folder, "account", self.by_distance())
        write_figure(folder, "graph", self.coloured_graph())
        if self.many:
            single = {nodes[0]: losses for nodes, losses in self.losses.items()}
            of: dict[str, Callable[[VictimSensitivity], float]] = {
                "mu": functools.partial(self.mu, adaptive=False),
                "mu_adaptive": functools.partial(self.mu, adaptive=True),
            }
            of |= {name: operator.attrgetter(name) for name in SQUARES}
            arrays: Any = {name: pairwise_matrix(single, self.algorithm.num_nodes, value) for name, value in of.items()}
            buffer = io.BytesIO()
            np.savez_compressed(buffer, labels=np.array(self.labels), **arrays)
            files.atomic_write_bytes(folder / NPZ, buffer.getvalue())
            write_figure(folder, "pairwise", self.heat_map(arrays["mu"]))
        else:  # last, so that a full disk leaves the earlier answer whole
            for name in PAIRWISE:
                (folder / name).unlink(missing_ok=True)

    def by_distance(self) -> Any:
        """account: loss by distance, or by victim where attackers have no place in the graph."""
        placed = bool(next(iter(self.losses)))
        pairs = [(self.hops[nodes].get(loss.node, 0), loss) for nodes in self.losses for loss in self.losses[nodes]]
        hops = np.array([hop for hop, _ in pairs], dtype=np.intp)
        non_adaptive, adaptive = (np.array([self.mu(loss, kind) ** 2 for _, loss in pairs]) for kind in (False, True))
        by = sorted({loss.adaptive_by for _, loss in pairs})
        name, words = "ours", "also for adaptive gradients"
        if not self.answer["adaptive"]:
            name, words = "ours, non-adaptive", "gradients independent of outputs"
        curves = [pictures.Curve(pictures.NON_ADAPTIVE, name, words, hops, non_adaptive)]
        if not self.answer["adaptive"]:
            words = f"training; by {', '.join(by)}"
            curves.append(pictures.Curve(pictures.ADAPTIVE, "ours, adaptive", words, hops, adaptive))
        curves += self._published_curves() if placed else []
        locally = sensitivity_by_victim(self.algorithm, LDP(), method="certified")
        local = max(loss.sensitivity_squared for loss in locally)
        details: dict[str, Any] = {"caption": self._caption(), "local": local * self.unit}
        if not placed:
            return pictures.plot_by_victim(curves, title=self._unplaced(), **details)
        return pictures.plot_by_distance(curves, title=self._finding(hops, non_adaptive), **details)

    def coloured_graph(self) -> Any:
        """graph: colours are mu for non-adaptive gradients; of all attackers the one that learns most in sum."""
        of: dict[Nodes, FloatArray] = {}
        for nodes, losses in self.losses.items():
            of[nodes] = np.full(self.algorithm.num_nodes, math.nan)
            of[nodes][[loss.node for loss in losses]] = [self.mu(loss, False) for loss in losses]
        totals = [float(mu[np.isfinite(mu)].sum()) for mu in of.values()]
        nodes, tied = list(of)[first_largest(totals)], int(equal_to_largest(totals).sum())
        equals = f"one of {tied} attackers" if tied > 1 else "the attacker"
        choice = f" ({equals} with the largest total)" if self.many else ""
        kind = "" if self.answer["adaptive"] else " Colours are for non-adaptive gradients."
        title = f"Privacy loss of each node to {self._attacker(nodes)}{choice}" if nodes else self._unplaced()
        caption = f"{self._setting()}{kind}"
        return pictures.plot_graph(self.account.graph.networkx(), of[nodes], nodes, title=title, caption=caption)

    def heat_map(self, mu: FloatArray) -> Any:
        """pairwise: mu of every victim against every attacker."""
        kind = "" if self.answer["adaptive"] else " For non-adaptive gradients."
        title = f"Privacy loss of each node to each attacker: {self.answer['mechanism']} on {self.answer['graph']}"
        return pictures.plot_pairwise(mu, self.labels, title=title, caption=f"{self._setting()}{kind}")

    def _unplaced(self) -> str:
        return f"Privacy loss of each node under trust model {self.answer['trust']}"

    def _published_curves(self) -> list[pictures.Curve]:
        privacy, curves = (self.answer["mechanism"], self.answer["trust"], self.algorithm, list(self.losses)), []
        published = [losses for bounds in extensions.every(extensions.PUBLISHED_LOSSES) for losses in bounds(*privacy)]
        for kind, bound in zip(itertools.cycle((pictures.SQUARED, pictures.CODED)), published, strict=False):
            pairs = [
                (self.hops[nodes][loss.node], bound.squared[nodes][loss.node])
                for nodes, losses in self.losses.items()
                for loss in losses
                if loss.node not in nodes
            ]
            hops, drawn = np.array([hop for hop, _ in pairs], dtype=np.intp), np.array([value for _, value in pairs])
            curves.append(pictures.Curve(kind, bound.name, bound.validity, hops, drawn * self.unit))
        return curves

    def _attacker(self, nodes: Nodes | None = None) -> str:
        if nodes is None and self.many:
            return "an attacker"
        inside = next(iter(self.losses)) if nodes is None else nodes
        return ", ".join(self.labels[v] for v in inside)

    def _finding(self, hops: np.ndarray[Any, Any], losses: FloatArray) -> str:
        groups = [g for g in pictures.by_distance(hops, losses) if g.distance > 0 and 0 < g.mean < math.inf]
        falling = len(groups) > 1 and all(a.mean > b.mean for a, b in itertools.pairwise(groups))
        if not falling:
            return f"Privacy loss to {self._attacker()} by distance"
        first, last = groups[0], groups[-1]
        kind = "" if self.answer["adaptive"] else " (non-adaptive gradients)"
        two_digits = float(f"{first.mean / last.mean:.2g}")
        if two_digits >= 1e6:
            ratio = f"over $10^{{{math.floor(math.log10(two_digits))}}}$-fold"
        else:
            ratio = f"{two_digits:,.0f}-fold" if two_digits >= 10 else f"{two_digits:g}-fold"
        return (
            f"The privacy loss to {self._attacker()}{kind} falls {ratio} from distance {first.distance} "
            f"to {last.distance}"
        )

    def _setting(self) -> str:
        answer = self.answer
        mu, epsilon = rounded_up(answer["worst_mu_adaptive"]), rounded_up(answer["worst_epsilon_adaptive"])
        released = "" if answer["release"] == "not applicable" else f", released models: {answer['release']}"
        return (
            f"{answer['mechanism']} on {answer['graph']} with {answer['nodes']} nodes, gossip {answer['gossip']}, "
            f"{self.algorithm.participation.describe()}, trust model {answer['trust']}, base noise std "
            f"{answer['noise_std']:.4g}, {answer['unit']} level, {answer['adjacency']} with clipping norm "
            f"{answer['clip_norm']:g}{released}. The largest adaptive privacy loss "
            f"({self.account.worst_in_words()}) is mu = {mu}, epsilon = {epsilon} at delta = {answer['delta']:g}."
        )

    def _caption(self) -> str:
        words = self._setting()
        if next(iter(self.losses)):
            words += " Lines are means; bars span the smallest to the largest value."
        if not self.answer["adaptive"]:
            words += " Training needs the adaptive privacy loss."
        if self.account.config.bound == "certified":
            words += " All are upper bounds."
        return words


GUESSED = math.sqrt(0.5)  # posterior ratio of an estimate with an error of one clipping norm
WIDTH, HEAD = 7.4, 5.6  # inches of a panel
COLOURS = {"attacker": "#000000", "exposed": "#d5002f", "partly": "#e69f00", "hidden": "#009e73"}
MEANINGS = {
    "attacker": "attacker",
    "exposed": "exposed: every gradient is reconstructed",
    "partly": "in part: some gradients or a combination, or an estimate within a clipping norm",
    "hidden": "safe: no estimate from messages within a clipping norm",
}


def colour_class(node: dict[str, Any]) -> str:
    """One of four colours for a node; undecided counts as in part."""
    if node["status"] == "hidden":
        return "partly" if float(node["posterior_ratio"]) < GUESSED else "hidden"
    return str(node["status"]) if node["status"] in COLOURS else "partly"


def draw(graph: nx.Graph, panels: Sequence[dict[str, Any]], *, caption: str) -> Figure:
    width = WIDTH * len(panels)
    lines = caption_lines(caption, int(16 * width))
    foot = 0.55 + LINE_INCHES * len(lines)
    height = HEAD + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    for k, panel in enumerate(panels):
        axes = figure.add_axes((k / len(panels) + 0.01, foot / height, 1 / len(panels) - 0.02, 5.1 / height))
        draw_panel(axes, graph, panel)
    marks = [Line2D([], [], marker="o", linestyle="", markersize=9, color=COLOURS[key]) for key in MEANINGS]
    below, columns = (foot - 0.5) / height, len(marks) if len(panels) > 1 else 2
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, below), "frameon": False, "fontsize": 8}
    figure.legend(marks, list(MEANINGS.values()), ncols=columns, **place)
    write_caption(figure, lines, left=0.02, top=below)
    return figure


def draw_panel(ax: Axes, graph: nx.Graph, panel: dict[str, Any]) -> Axes:
    ax.set_title(panel["title"], fontsize=12, fontweight="bold", color=INK)
    (spots, size), names = draw_edges(ax, graph), {}
    for label, node in zip(graphs.labels(graph), panel["nodes"], strict=True):
        x, y = spots[label]
        ax.scatter([x], [y], s=size, color=COLOURS[colour_class(node)], edgecolors="white", zorder=3)
        names[label] = f"{label}{_error(node)}"
    if len(graph) <= MAX_LABELLED:
        name_nodes(ax, graph, spots, names, size)
    return ax


def _error(node: dict[str, Any]) -> str:
    """The error under a name: nothing where it is zero or the node attacks."""
    error = 0.0 if node["status"] == "attacker" else float(node["error_std"])
    return "" if error == 0 else "\nno estimate" if math.isinf(error) else f"\n± {_short(error)}"


def _short(error: float) -> str:
    """Two digits without the filling of an exponent, never more than the error."""
    digits = f"{Decimal(error).normalize(Context(prec=2, rounding=ROUND_FLOOR)):.2g}"
    return digits.replace("e+", "e")

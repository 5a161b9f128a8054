"""Figures of privacy and noise: losses by distance and by pair, correlations over time and between nodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..check import FloatArray
from ..pictures.networks import MAX_LABELLED
from ..progress import Silent
from ..reporting.account import by_distance
from ..reporting.output import rounded_up
from ..reporting.shared import Shared
from ..shown import ROUNDING
from . import maps
from .charts import Chart, Line, draw
from .groups import Group, Panel, Setting
from .looks import Look
from .mechanisms import Kept, Made, Noise, NotShown, Pairwise, made_again, noise_of
from .sections import Figure, Looks
from .svg import plain

ROW = 60  # entries of it that are drawn
ALONE = Look(
    -1, "last row", ("", ""), ("", ""), "", "M-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0Z", ""
)  # of a line without others
KINDS = {"adaptive": "in training", "fixed": "gradients fixed in advance"}


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """One mechanism, as it was trained: losses against single nodes and its noise, each None with the reason why."""

    group: Group
    made: Made | None
    losses: Pairwise | None
    noise: Noise | None
    why_no_losses: str = ""
    why_no_noise: str = ""


def shown(setting: Setting, kept: Kept, largest: int, progress: Silent) -> list[tuple[Panel, list[Shown]]]:
    """Of each panel every mechanism once, at its middle budget; largest: see `ReportConfig`."""
    plan = [(panel, [_middle(panel, name) for name in panel.names]) for panel in setting.panels]
    with progress.bar(f"privacy of {setting.name}", sum(len(groups) for _, groups in plan)) as advance:
        made, shared = [], Shared()
        for panel, groups in plan:
            own = []
            for group in groups:
                advance(0, group.label)
                own.append(_one(group, kept, largest, shared))
                advance()
            made.append((panel, own))
    return made


def _middle(panel: Panel, name: str) -> Group:
    budgets = sorted({group.budget for group in panel.groups if group.label == name})
    return next(group for group in panel.at(budgets[len(budgets) // 2]) if group.label == name)


def _one(group: Group, kept: Kept, largest: int, shared: Shared) -> Shown:
    try:
        made = made_again(group.records[0], shared)
    except NotShown as reason:
        return Shown(group, None, None, None, str(reason), str(reason))
    losses, noise, why = None, None, ["", ""]
    try:
        if made.size > largest:
            raise NotShown(
                f"{made.mechanism.algorithm.num_nodes:,} nodes x {made.mechanism.algorithm.num_steps:,} steps are more "
                f"than {largest:,}; `mfdl report --largest {made.size}` takes the time, or `mfdl account --trust pndp` "
                "asks for one attacker"
            )
        losses = kept.pairwise(made)
    except NotShown as reason:
        why[0] = str(reason)
    try:
        noise = noise_of(made)
    except NotShown as reason:
        why[1] = str(reason)
    return Shown(group, made, losses, noise, *why)


def by_hops(panel: Panel, each: Sequence[Shown], looks: Looks) -> list[Figure]:
    """mu by distance from the attacker, in training and for fixed gradients: mean over pairs, smallest to largest."""
    figures = []
    for kind, words in KINDS.items():
        lines = []
        for one in each:
            if one.made is not None and one.losses is not None:
                lines.append(_line_by_hops(looks[one.group.label], one.made.hops, getattr(one.losses, kind)))
        title = f"{words[:1].upper()}{words[1:]}: trained under {panel.trust}"
        if any(line.x for line in lines):
            ticks = [(float(x), f"{x:g}", "") for x in sorted({x for line in lines for x in line.x})]
            chart = Chart(
                f"mu by distance. {title}", "hops from the attacker", "μ that one node learns", lines, (), ticks
            )
            figures.append(Figure(title, draw(chart)))
    return figures


def _line_by_hops(look: Look, hops: FloatArray, mu: FloatArray) -> Line:
    apart = np.isfinite(mu) & (hops > 0)
    at = by_distance(hops[apart], mu[apart])
    tips = [
        f"{look.name}, {row.distance} hops: mean {rounded_up(row.mean)}, largest {rounded_up(row.highest)}, "
        f"{row.victims} pairs" for row in at
    ]  # fmt: skip
    x = [float(row.distance) for row in at]
    return Line(look, x, [row.mean for row in at], [row.lowest for row in at], [row.highest for row in at], tips)


def pairs(one: Shown) -> tuple[list[Figure], list[str]]:
    """The pairwise matrix, both kinds where they differ; one that is the same for all pairs as a sentence."""
    assert one.losses is not None
    assert one.made is not None
    figures, sentences = [], []
    same = np.array_equal(one.losses.fixed, one.losses.adaptive)
    for kind, words in list(KINDS.items())[: 1 if same else 2]:
        mu = getattr(one.losses, kind)
        known = mu[np.isfinite(mu)]
        title = "μ in training and for gradients fixed in advance" if same else f"μ, {words}"
        if known.size and np.ptp(known) <= ROUNDING * known.max():
            sentences.append(f"{title}: {rounded_up(float(known.max()))} for every pair.")
        else:
            drawing = maps.losses(mu, one.made.labels, f"{one.group.label}: {title}")
            figures.append(Figure(title, drawing, kind="map"))
    return figures, sentences


def pair_table(one: Shown) -> dict[str, Any] | None:
    """The numbers of a matrix, in training; None beyond what anybody reads."""
    if one.losses is None or one.made is None or len(one.made.labels) > MAX_LABELLED:
        return None
    mu = one.losses.adaptive
    rows = [(label, [_cell(value) for value in row]) for label, row in zip(one.made.labels, mu, strict=True)]
    return {"columns": one.made.labels, "rows": rows}


def _cell(value: float) -> tuple[str, str]:
    if math.isnan(value):
        return "", ""
    return ("inf", "∞") if math.isinf(value) else (repr(float(value)), rounded_up(value))


def noise_figures(one: Shown) -> list[Figure]:
    """C^-1 over time with one of its rows, and the graph with correlations between nodes."""
    assert one.noise is not None
    assert one.made is not None
    noise, name = one.noise, one.group.label
    figures = []
    if noise.over_time is not None:
        of = f" at node {noise.node}" if noise.node else ""
        kind = "C⁻¹" if noise.is_inverse else "Correlation of injected noise"
        across, down = (
            ("step the base noise is drawn in", "step it is added in") if noise.is_inverse else ("step", "step")
        )
        drawing = maps.over_time(noise.over_time, f"{name}: {kind} over time{of}", across, down)
        how = "Bright cells are positive, dark ones negative, drawn by the root of their size."
        figures.append(Figure(f"{kind} over time{of}", drawing, how, "map"))
        figures.append(_row_of(one, noise.over_time, is_inverse=noise.is_inverse))
    if noise.over_nodes is not None:
        drawing = maps.on_graph(one.made.graph, noise.over_nodes, noise.std, f"{name}: correlation between nodes")
        pairs, every = maps.drawn_pairs(noise.over_nodes)
        words = f"Between nodes in the last step, {len(pairs):,} of {every:,} correlated pairs, the strongest: "
        words += "wide lines are strong, dashed lines are negative. "
        off = noise.over_nodes[~np.eye(len(noise.std), dtype=bool)]
        words += f"Correlations from {plain(float(off.min()))} to {plain(float(off.max()))}."
        figures.append(Figure("Covariance over nodes, on the graph", drawing, words, "map"))
        drawing = maps.correlation(noise.over_nodes, one.made.labels, f"{name}: correlation between nodes")
        figures.append(Figure("Correlation between nodes", drawing, kind="map"))
    return figures


def _row_of(one: Shown, matrix: FloatArray, *, is_inverse: bool) -> Figure:
    """The last row, its newest entry first: the same numbers with their signs, for eyes that see no colours."""
    values = [float(value) for value in matrix[-1, ::-1][:ROW]]
    where = [float(i) for i in range(len(values))]
    tips = [f"{i} steps before: {plain(value)}" for i, value in enumerate(values)]
    line = Line(ALONE, where, values, values, values, tips)
    title = "What the last step adds of earlier noise" if is_inverse else "Correlation with the last step"
    chart = Chart(f"{one.group.label}: {title}", "steps before the last one", "", [line], y_log=False)
    return Figure(title, draw(chart))

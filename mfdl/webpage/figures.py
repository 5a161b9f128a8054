"""The figures of a page: trade-off, loss over time, loss against rate, losses between nodes, correlated noise.

In: groups of runs, and rebuilt mechanisms. Out: drawings of `mfdl.pictures` with the words around them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import figure as matplotlib_figure

from mfdl_solvers.ties import ranked

from ..check import FloatArray
from ..display import ROUNDING
from ..metrics import WORDS
from ..pictures.curves import Curves, calm_range
from ..pictures.drawings import correlated_graph, drawn_pairs, signed_scale, signed_text, square_map
from ..pictures.line_charts import Level, Line, LineChart
from ..pictures.looks import Look
from ..pictures.style import POSITIVE, plain
from ..pictures.themed_svg import themed_svg
from ..runs.output import rounded_up
from ..runs.privacy_plots import by_distance
from .rebuilt import MechanismDetails
from .run_groups import ComparableRuns, RunGroup, TrustPanel
from .source import Source

Looks = Mapping[str, Look]
FIRST = 4  # series of a panel that are shown before anything is chosen
POINTS = 160  # of a line over time
ROW = 60  # entries of a row of a matrix over time that are drawn
ALONE = Look("last row", POSITIVE, marker="o")  # of a line without others
KINDS = {"adaptive": "adaptive gradients", "non_adaptive": "non-adaptive gradients"}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A picture with words above and below it. classes: of CSS."""

    title: str
    svg: str
    words: str = ""
    classes: str = ""

    @classmethod
    def of(
        cls, picture: matplotlib_figure.Figure, title: str, spoken: str, looks: Iterable[Look] = (), **words: str
    ) -> Drawing:
        """A figure of matplotlib; spoken: what a screen reader says."""
        return cls(title, themed_svg(picture, spoken, looks), **words)


def words_of(metric: str) -> str:
    """A metric as a page calls it."""
    return WORDS.get(metric, metric.replace("_", " "))


def selected_first(runs: ComparableRuns) -> set[str]:
    """The series that are shown before anything is chosen: the best of each panel, and those without noise."""
    return {name for panel in runs.panels for name in panel.names[:FIRST]} | {group.label for group in runs.noiseless}


def trade_off(runs: ComparableRuns, panel: TrustPanel, looks: Looks, metric: str, kind: int) -> Drawing:
    """The final metric over the budget, each mechanism at its best rate, the range over seeds as a band."""
    groups = [group for budget in panel.budgets for group in panel.best_at(budget)]
    lines = [
        _line(looks[name], [group for group in groups if group.label == name], "budget", metric) for name in panel.names
    ]
    epsilons = {group.budget: group.epsilon for group in panel.groups}
    ticks = [
        (budget, plain(budget), f"ε {rounded_up(epsilons[budget])}" if panel.symbol == "μ" else "")
        for budget in panel.budgets
    ]
    levels = [
        Level(group.label, spread.mean, looks[group.label])
        for group in runs.noiseless
        if (spread := group.final(metric)) is not None
    ]
    chart = LineChart(
        f"{panel.symbol}, the privacy budget: less privacy to the right",
        words_of(metric),
        lines,
        levels + _baselines(runs, metric),
        ticks,
        x_log=True,
    )
    return Drawing.of(
        chart.figure(),
        f"{words_of(metric)}, trust model {panel.trust}".capitalize(),
        f"{words_of(metric)} against the privacy budget under {panel.trust}",
        looks.values(),
        words=_diverged(groups),
        classes=f"kind m{kind}",
    )


def over_time(runs: ComparableRuns, panel: TrustPanel, budget: float, looks: Looks, source: Source) -> Drawing:
    """Test loss over steps at one budget: mean over nodes and seeds, the range over seeds as a band."""
    groups, levels = [*panel.best_at(budget), *runs.noiseless], _baselines(runs, "loss")
    curves = [_curves(group, looks[group.label], source) for group in groups]
    _, highest = calm_range(curves, [level.value for level in levels])
    lines = [_thinned(curve, highest) for curve in curves if curve.evaluated]
    title = f"Trust model {panel.trust}, {panel.symbol} = {budget:g}"
    chart = LineChart("step", "test loss", lines, levels)
    rates = ", ".join(f"{group.label} {group.lr:g}" for group in groups)
    words = f"Learning rates: {rates}." if len(runs.rates) > 1 else ""
    return Drawing.of(chart.figure(marked=6), title, f"test loss over steps, {title}", looks.values(), words=words)


def against_rate(runs: ComparableRuns, panel: TrustPanel, budget: float, looks: Looks) -> Drawing:
    """Final test loss over the learning rate at one budget."""
    groups = [group for group in panel.groups if group.budget == budget]
    groups += [group for group in runs.groups if not group.private]
    groups = ranked(groups, key=lambda group: float(group.lr))
    names = dict.fromkeys(group.label for group in groups)
    lines = [_line(looks[name], [group for group in groups if group.label == name], "lr", "loss") for name in names]
    title = f"Trust model {panel.trust}, {panel.symbol} = {budget:g}"
    ticks = [(rate, plain(rate), "") for rate in runs.rates]
    chart = LineChart("learning rate", "test loss", lines, _baselines(runs, "loss"), ticks, x_log=True)
    return Drawing.of(chart.figure(), title, f"test loss against the learning rate, {title}", looks.values())


def _line(look: Look, groups: Sequence[RunGroup], x: str, metric: str) -> Line:
    """Final numbers of a mechanism over the field `x` of its groups; a group with a diverged run has no point."""
    spreads = [group.final(metric) for group in groups]
    values = [(math.nan,) * 3 if s is None else (s.mean, min(s.values), max(s.values)) for s in spreads]
    middle, low, high = np.array(values, dtype=np.float64).T
    places = np.array([getattr(group, x) for group in groups], dtype=np.float64)
    return Line(look, places, middle, low, high, tips=[_tip(group, metric) for group in groups])


def _tip(group: RunGroup, metric: str) -> str:
    spread = group.final(metric)
    setting = f"{group.label}, {f'{group.budget_in_words}, ' if group.private else ''}rate {group.lr:g}"
    if spread is None:
        return f"{setting}: diverged"
    return f"{setting}: {plain(spread.mean)}" + ("" if spread.std is None else f" ± {plain(spread.std)}")


def _curves(group: RunGroup, look: Look, source: Source) -> Curves:
    runs = [source.steps(record) for record in group.records]
    finals = [record["final_test_loss"] for record in group.records]
    return Curves(group.label, look, [run.steps for run in runs], [run.mean_over_nodes() for run in runs], finals)


def _thinned(curves: Curves, highest: float) -> Line:
    """Some of its points, those up to the highest loss that is drawn, with their tips."""
    line = curves.line()
    picked = np.unique(np.linspace(0, line.x.size - 1, min(POINTS, line.x.size)).astype(int))
    drawn = np.where(line.high[picked] <= highest, 1.0, np.nan)
    x, middle = line.x[picked], line.middle[picked]
    tips = [f"{curves.label}, step {step:g}: {plain(value)}" for step, value in zip(x, middle, strict=True)]
    return Line(curves.look, x, middle * drawn, line.low[picked] * drawn, line.high[picked] * drawn, tips=tips)


def _baselines(runs: ComparableRuns, metric: str) -> list[Level]:
    """The untrained model and chance; if both are one number, as one line."""
    values = {name: runs.level(f"{name}_{metric}") for name in ("untrained", "chance")}
    levels = [Level(name, value) for name, value in values.items() if value is not None]
    if len(levels) == 2 and math.isclose(levels[0].value, levels[1].value, rel_tol=0.01):
        return levels[:1]
    return levels


def _diverged(groups: Sequence[RunGroup]) -> str:
    """Runs that are not in the picture."""
    words = [
        f"{group.label} at {group.symbol} = {group.budget:g} ({group.diverged} of {len(group.records)} seeds)"
        for group in groups
        if group.diverged
    ]
    return f"Diverged at every rate: {', '.join(words)}." if words else ""


def by_hops(panel: TrustPanel, mechanisms: Sequence[MechanismDetails], looks: Looks) -> list[Drawing]:
    """mu by distance from the attacker, adaptive and non-adaptive: mean over pairs, smallest to largest."""
    drawings = []
    for kind, words in KINDS.items():
        lines, infinite = [], 0
        for each in mechanisms:
            if each.built is not None and each.losses is not None:
                mu, hops = getattr(each.losses, kind), each.built.hops
                lines.append(_line_by_hops(looks[each.group.label], hops, mu))
                infinite += int(np.isinf(mu[hops > 0]).sum())
        title = f"{words[:1].upper()}{words[1:]}; mechanisms trained under {panel.trust}"
        ticks = [(hops, f"{hops:g}", "") for hops in sorted({float(hops) for line in lines for hops in line.x})]
        if ticks:
            chart = LineChart("hops from the attacker", "μ to one attacking node", lines, (), ticks)
            unseen = f"{infinite} infinite losses are not drawn." if infinite else ""
            drawings.append(Drawing.of(chart.figure(), title, f"mu by distance. {title}", looks.values(), words=unseen))
    return drawings


def _line_by_hops(look: Look, hops: FloatArray, mu: FloatArray) -> Line:
    pairs = np.isfinite(mu) & (hops > 0)
    rows = by_distance(hops[pairs], mu[pairs])
    values = np.array([(row.distance, row.mean, row.lowest, row.highest) for row in rows], dtype=np.float64)
    distance, mean, low, high = values.reshape(-1, 4).T
    tips = [
        f"{look.name}, {row.distance} hops: mean {rounded_up(row.mean)}, largest {rounded_up(row.highest)}, "
        f"{row.victims} pairs" for row in rows
    ]  # fmt: skip
    return Line(look, distance, mean, low, high, tips=tips)


def pair_figures(mechanism: MechanismDetails) -> tuple[list[Drawing], list[str]]:
    """The pairwise matrix, both kinds where they differ; a matrix of equal entries as a sentence."""
    if mechanism.losses is None or mechanism.built is None:
        return [], []
    drawings, sentences, losses = [], [], mechanism.losses
    same = np.array_equal(losses.non_adaptive, losses.adaptive)
    for kind, words in list(KINDS.items())[: 1 if same else 2]:
        mu = getattr(losses, kind)
        known = mu[np.isfinite(mu)]
        title = "μ for adaptive and non-adaptive gradients" if same else f"μ, {words}"
        if known.size and np.ptp(known) <= ROUNDING * known.max():
            sentences.append(f"{title}: {rounded_up(float(known.max()))} for every pair.")
        else:
            picture = square_map(mu, mechanism.built.labels, ("attacker", "victim"))
            drawings.append(Drawing.of(picture, title, f"{mechanism.group.label}: {title}", classes="map"))
    return drawings, sentences


def noise_figures(mechanism: MechanismDetails) -> list[Drawing]:
    """C^-1 over time with its last row, and the graph with correlations between nodes."""
    if mechanism.noise is None or mechanism.built is None:
        return []
    noise, built, name = mechanism.noise, mechanism.built, mechanism.group.label
    drawings = []
    if noise.over_time is not None:
        kind = "C⁻¹" if noise.is_inverse else "Correlation of injected noise"
        title = f"{kind} over time" + (f" at node {noise.node}" if noise.node else "")
        axes = ("step of the base noise", "step in which it is added") if noise.is_inverse else ("step", "step")
        picture = square_map(noise.over_time, [], axes, norm=signed_scale(noise.over_time))
        words = "Bright cells are positive, dark cells negative; colours scale with the square root of the magnitude."
        drawings.append(Drawing.of(picture, title, f"{name}: {title}", words=words, classes="map"))
        drawings.append(_last_row(name, noise.over_time, is_inverse=noise.is_inverse))
    if noise.over_nodes is not None:
        title, diagonal = "Covariance over nodes, on the graph", np.eye(len(noise.std), dtype=bool)
        picture = correlated_graph(built.graph, built.nodes, noise.over_nodes, noise.std)
        drawn, total = drawn_pairs(noise.over_nodes)
        between = noise.over_nodes[~diagonal]
        words = (
            f"The {len(drawn):,} strongest of {total:,} correlated pairs in the last step. Wide lines: "
            f"strong; dashed lines: negative. Correlations range from {plain(float(between.min()))} to "
            f"{plain(float(between.max()))}."
        )
        spoken = f"{name}: correlation between nodes"
        drawings.append(Drawing.of(picture, title, spoken, words=words, classes="map"))
        values = np.where(diagonal, np.nan, noise.over_nodes)
        picture = square_map(values, built.labels, ("node", "node"), norm=signed_scale(values), text=signed_text)
        drawings.append(Drawing.of(picture, "Correlation between nodes", spoken, classes="map"))
    return drawings


def _last_row(name: str, matrix: FloatArray, *, is_inverse: bool) -> Drawing:
    """The last row, its newest entry first: the same numbers with their signs, for readers who see no colours."""
    values = matrix[-1, ::-1][:ROW]
    tips = [f"{i} steps before: {plain(float(value))}" for i, value in enumerate(values)]
    line = Line(ALONE, np.arange(values.size, dtype=np.float64), values, values, values, tips=tips)
    title = "Weights of earlier noise in the last step" if is_inverse else "Correlation with the last step"
    chart = LineChart("steps before the last one", "", [line], y_log=False)
    return Drawing.of(chart.figure(), title, f"{name}: {title}")

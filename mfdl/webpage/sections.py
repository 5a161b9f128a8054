"""From groups of runs to the figures of a page: trade-off, loss over time, loss against rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ..check import FloatArray
from ..metrics import WORDS
from ..reporting.output import rounded_up
from .charts import Chart, Level, Line, draw
from .groups import Group, Panel, Setting
from .looks import Look
from .source import Source
from .svg import plain

Looks = Mapping[str, Look]
FIRST = 4  # series of a panel that are shown before anything is chosen
POINTS = 160  # of a line


@dataclasses.dataclass(frozen=True)
class Figure:
    """A drawing with words above and below it. kind: classes of its style."""

    title: str
    drawing: Markup
    words: str = ""
    kind: str = ""


def words_of(metric: str) -> str:
    """A metric as a page calls it."""
    return WORDS.get(metric, metric.replace("_", " "))


def shown_first(setting: Setting) -> set[str]:
    """The series that are shown before anything is chosen: of each panel the best, and those without noise."""
    names = {name for panel in setting.panels for name in panel.names[:FIRST]}
    return names | {group.label for panel in setting.panels for group in panel.free}


def trade_off(setting: Setting, panel: Panel, looks: Looks, metric: str, kind: int) -> Figure:
    """The final metric over the budget, each mechanism at its best rate, the range over seeds as a band."""
    at = {budget: {group.label: group for group in panel.at(budget)} for budget in panel.budgets}
    lines = []
    for name in panel.names:
        groups = [at[budget][name] for budget in panel.budgets if name in at[budget]]
        lines.append(_line(looks[name], [group.budget for group in groups], groups, metric))
    epsilons = {group.budget: group.epsilon for group in panel.groups}
    beside = {mu: f"ε {rounded_up(epsilons[mu])}" for mu in panel.budgets} if panel.symbol == "μ" else {}
    ticks = [(budget, plain(budget), beside.get(budget, "")) for budget in panel.budgets]
    chart = Chart(
        f"{words_of(metric)} against the privacy budget under {panel.trust}",
        f"{panel.symbol}, the privacy budget: less privacy to the right",
        words_of(metric),
        [line for line in lines if line.x],
        _levels(setting, panel, looks, metric),
        ticks,
        x_log=True,
    )
    return Figure(
        f"{words_of(metric)}, trust model {panel.trust}".capitalize(), draw(chart), _gone(panel), f"kind m{kind}"
    )


def over_time(setting: Setting, panel: Panel, budget: float, looks: Looks, source: Source) -> Figure:
    """Test loss over steps at one budget: mean over nodes and seeds, the range over seeds as a band."""
    groups = [*panel.at(budget), *panel.without_noise()]
    curves = {group.label: Curve.of([source.steps(record) for record in group.records]) for group in groups}
    calm = [curves[group.label].high for group in groups if not group.diverged and curves[group.label].steps.size]
    top = max((float(np.nanmax(high)) for high in calm if np.isfinite(high).any()), default=math.inf)
    lines = [curves[group.label].line(looks[group.label], top) for group in groups]
    levels = _baselines(setting, "loss")
    title = f"Trust model {panel.trust}, {panel.symbol} = {budget:g}"
    chart = Chart(f"test loss over steps, {title}", "step", "test loss", [x for x in lines if x.x], levels, every=False)
    rates = ", ".join(f"{group.label} {group.lr:g}" for group in groups)
    return Figure(title, draw(chart), f"Learning rates: {rates}." if len(setting.rates) > 1 else "")


def against_rate(setting: Setting, panel: Panel, budget: float, looks: Looks) -> Figure:
    """Final test loss over the learning rate at one budget."""
    groups = [group for group in (*panel.groups, *panel.free) if group.budget == budget or not group.private]
    lines = []
    for name in dict.fromkeys(group.label for group in groups):
        own = sorted((group for group in groups if group.label == name), key=lambda group: float(group.lr))
        lines.append(_line(looks[name], [group.lr for group in own], own, "loss"))
    title = f"Trust model {panel.trust}, {panel.symbol} = {budget:g}"
    ticks = [(rate, plain(rate), "") for rate in setting.rates]
    levels = _baselines(setting, "loss")
    chart = Chart(
        f"test loss against the learning rate, {title}", "learning rate", "test loss", lines, levels, ticks, True
    )
    return Figure(title, draw(chart))


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Mean over nodes: mean, smallest and largest over seeds at each step; nan where a seed is not finite."""

    steps: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, tables: Sequence[Any]) -> Curve:
        """Of one table per seed, with columns step and loss."""
        each = [_mean_over_nodes(table) for table in tables]
        steps = each[0][0]
        stack = np.array([loss for at, loss in each if np.array_equal(at, steps)])
        stack = np.where(np.isfinite(stack).all(axis=0), stack, np.nan)
        picked = np.unique(np.linspace(0, steps.size - 1, min(POINTS, steps.size)).astype(int))
        stack = stack[:, picked]
        return cls(steps[picked].astype(float), stack.mean(axis=0), stack.min(axis=0), stack.max(axis=0))

    def line(self, look: Look, top: float) -> Line:
        """As it is drawn: up to `top`, beyond which only diverging runs go."""

        def drawn(values: FloatArray) -> list[float | None]:
            return [float(v) if np.isfinite(v) and h <= top else None for v, h in zip(values, self.high, strict=True)]

        tips = [f"{look.name}, step {at:g}: {plain(value)}" for at, value in zip(self.steps, self.mean, strict=True)]
        return Line(look, self.steps.tolist(), drawn(self.mean), drawn(self.low), drawn(self.high), tips)


def _mean_over_nodes(table: Any) -> tuple[FloatArray, FloatArray]:
    steps, at = np.unique(np.asarray(table["step"]), return_inverse=True)
    losses = np.asarray(table["loss"].to_numpy(zero_copy_only=False), dtype=np.float64)
    return steps, np.bincount(at, weights=losses) / np.bincount(at)


def _line(look: Look, x: Sequence[float], groups: Sequence[Group], metric: str) -> Line:
    spreads = [group.of(metric) for group in groups]
    tips = [_tip(group, metric) for group in groups]

    def each(value: Callable[[Any], float]) -> list[float | None]:
        return [None if spread is None else value(spread) for spread in spreads]

    return Line(look, x, each(lambda s: s.mean), each(lambda s: s.low), each(lambda s: s.high), tips)


def _tip(group: Group, metric: str) -> str:
    spread = group.of(metric)
    budget = f"{group.budget_in_words}, " if group.private else ""
    if spread is None:
        return f"{group.label}, {budget}rate {group.lr:g}: diverged"
    std = "" if spread.std is None else f" ± {plain(spread.std)}"
    return f"{group.label}, {budget}rate {group.lr:g}: {plain(spread.mean)}{std}"


def _levels(setting: Setting, panel: Panel, looks: Looks, metric: str) -> list[Level]:
    levels = []
    for group in panel.without_noise():
        spread = group.of(metric)
        if spread is not None:
            levels.append(Level(group.label, spread.mean, looks[group.label]))
    return levels + _baselines(setting, metric)


def _baselines(setting: Setting, metric: str) -> list[Level]:
    """The untrained model and chance; where both are one number, as one line."""
    known = {name: setting.level(f"{name}_{metric}") for name in ("untrained", "chance")}
    levels = [Level(name, value) for name, value in known.items() if value is not None]
    if len(levels) == 2 and math.isclose(levels[0].value, levels[1].value, rel_tol=0.01):
        return levels[:1]
    return levels


def _gone(panel: Panel) -> str:
    """Runs that are not in the picture."""
    shown = [group for budget in panel.budgets for group in panel.at(budget) if group.diverged]
    words = [f"{g.label} at {panel.symbol} = {g.budget:g} ({g.diverged} of {len(g.records)} seeds)" for g in shown]
    return f"Diverged at every rate: {', '.join(words)}." if words else ""


def columns(groups: Iterable[Group], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Groups as rows, as they stand in the table and its CSV: of each metric the mean, and METRIC_std."""
    return [_columns(group, metrics) for group in groups]


def _columns(group: Group, metrics: Sequence[str]) -> dict[str, Any]:
    names = ("trust", "mu", "epsilon", "delta", "lr")
    row = {"mechanism": group.label, **{name: group.records[0][name] for name in names}}
    for metric in metrics:
        spread = group.of(metric)
        row |= {
            metric: None if spread is None else spread.mean,
            f"{metric}_std": None if spread is None else spread.std,
        }
    row |= {"seeds": len(group.records), "diverged": group.diverged}
    return row | {name: group.records[0][name] for name in ("noise_std", "injected_noise_std", "guarantee")}

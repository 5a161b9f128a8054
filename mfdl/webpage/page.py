"""The page: all that was read and computed, in one template, with drawings of `mfdl.pictures`."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import figure as matplotlib_figure

from mfdl_solvers.ties import first_maximum, ranked

from .. import __version__, errors, files
from ..check import FloatArray
from ..display import ROUNDING
from ..metrics import WORDS as METRIC_WORDS
from ..metrics import is_accuracy
from ..pictures.curves import Curves, calm_range
from ..pictures.drawings import MAX_LABELLED, correlated_graph, drawn_pairs, signed_scale, signed_text, square_map
from ..pictures.line_charts import Level, Line, LineChart, swatch
from ..pictures.style import DARK, LIGHT, LINES, POSITIVE, WORDS, Look, plain, readable, series_looks, themed_svg
from ..privacy.guarantee_texts import in_common
from ..progress import Progress, Silent
from ..progress import reporter as progress_screen
from ..runs.output import mu_rounded_up, require_writable, rounded_up
from ..runs.privacy_plots import by_distance
from ..runs.store import names as column_names
from ..runs.store import read_json
from . import DATA, PAGE, run_groups
from .rebuilt import LossStore, MechanismDetails, details
from .run_groups import ComparableRuns, RunGroup, Source, TrustPanel, comparable

if TYPE_CHECKING:
    from . import ReportConfig


def write_page(config: ReportConfig, folder: Path, out: Path | None = None, *, progress: Progress = "auto") -> Path:
    """Writes the page, and beside it the losses that were computed for it; returns its path.

    Args: folder: of `mfdl sweep` or `mfdl compare`; out: the page, default report.html in it.
    Raises: InvalidInput: a folder without finished runs, or a place that cannot be written.
    """
    read, page = run_groups.read(folder), folder / PAGE if out is None else out
    require_writable(page)
    store = LossStore(read_json(page.parent / DATA))
    text = render(read, store, config.largest, page, progress_screen(progress))
    if store.used:
        files.atomic_write_json(page.parent / DATA, {"mfdl": __version__, "pairwise": store.used})
    return files.atomic_write_text(page, text)


def render(read: run_groups.Source, store: LossStore, largest: int, out: Path, progress: Silent) -> str:
    jinja2 = errors.imported("jinja2", "a report")
    looks = series_looks(record["label"] for record in read.records)
    every = comparable(read.records)
    sections = [_section(i, runs, looks, read, store, largest, progress) for i, runs in enumerate(every)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mfdl.webpage", "."),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.jinja").render(
        title=f"{read.kind.capitalize()}: {' and '.join(runs.name for runs in every[:3])}"
        + ("" if len(every) < 4 else " and others"), read=read, sections=sections,
        swatches={name: themed_svg(swatch(look), "", [look]) for name, look in looks.items()},
        themes={ground: _colours(looks, ground) for ground in (LIGHT, DARK)}, indices=range(len(looks)),
        kinds=range(max(len(section["metrics"]) for section in sections)), grounds={"light": LIGHT, "dark": DARK},
        provenance=_provenance(read), config=json.dumps(read.config, indent=1, ensure_ascii=False),
        links=_links(read, store, out), csv=_csv(every), version=__version__, budget=mu_rounded_up, up=rounded_up,
        plain=plain, number=_number, metric_words=metric_words, is_accuracy=is_accuracy,
    )  # fmt: skip


def _colours(looks: Looks, ground: str) -> str:
    kinds = {"c": LINES, "t": WORDS}
    return " ".join(
        f"--{kind}{look.index}: {readable(look.colour, ground, ratio)};"
        for look in looks.values()
        for kind, ratio in kinds.items()
    )


def _section(
    index: int,
    runs: ComparableRuns,
    looks: Looks,
    read: run_groups.Source,
    store: LossStore,
    largest: int,
    progress: Silent,
) -> dict[str, Any]:
    metrics, panels = runs.metrics, runs.panels
    by_panel = details(runs, store, largest, progress)
    every = [mechanism for _, mechanisms in by_panel for mechanism in mechanisms]
    noiseless = {group.label for group in runs.noiseless}
    first = {name for panel in panels for name in panel.names[:FIRST]} | noiseless
    choices = [(looks[name], name in first) for name in dict.fromkeys(record["label"] for record in runs.records)]
    return {
        "id": f"p{index + 1}", "runs": runs, "metrics": metrics, "choices": choices,
        "private_choices": [(look, checked) for look, checked in choices if look.name not in noiseless],
        "guarantees": _examples(panels),
        "findings": [(panel.trust, panel.finding()) for panel in panels],
        "trade_off": [
            trade_off(runs, panel, looks, metric, kind)
            for panel in panels
            for kind, metric in enumerate(metrics)
            if any(group.final(metric) for group in panel.groups)
        ],
        "tables": _tables(runs),
        "over_time": [[over_time(runs, panel, at, looks, read) for at in _ordered(panel)] for panel in panels],
        "rates": [
            [against_rate(runs, panel, at, looks) for at in _ordered(panel)] for panel in panels if runs.chooses_rates
        ],
        "by_hops": [by_hops(panel, mechanisms, looks) for panel, mechanisms in by_panel],
        "pairs": [(mechanism, *pair_figures(mechanism), _pair_table(mechanism)) for mechanism in every],
        "noise": _noise(every),
    }  # fmt: skip


def _examples(panels: Sequence[TrustPanel]) -> list[tuple[str, str, str]]:
    """The middle budget of each trust model in words, and the guarantee that all mechanisms share at it."""
    examples = []
    for panel in panels:
        groups = panel.best_at(panel.middle)
        weakest = first_maximum(groups, key=lambda group: float(group.epsilon))
        words = in_common(weakest.guarantee, {group.label: group.guarantee for group in groups})
        examples.append((panel.trust, weakest.budget_in_words, words))
    return examples


def _ordered(panel: TrustPanel) -> list[float]:
    return [panel.middle, *(budget for budget in panel.budgets if budget != panel.middle)]


def _pair_table(mechanism: MechanismDetails) -> list[tuple[str, list[tuple[str, str]]]]:
    """Adaptive privacy losses by victim, each as number and text; empty if there are too many nodes to read them."""
    if mechanism.losses is None or mechanism.built is None or len(mechanism.built.nodes) > MAX_LABELLED:
        return []
    rows = zip(mechanism.built.labels, mechanism.losses.adaptive, strict=True)
    return [(label, [_loss_cell(float(value)) for value in row]) for label, row in rows]


def _loss_cell(value: float) -> tuple[str, str]:
    if math.isnan(value):
        return "", ""
    return ("inf", "∞") if math.isinf(value) else (repr(value), rounded_up(value))


def _noise(mechanisms: Sequence[MechanismDetails]) -> list[tuple[MechanismDetails, list[Drawing]]]:
    by_label: dict[str, MechanismDetails] = {}
    for mechanism in mechanisms:
        label = mechanism.group.label
        if label not in by_label or (mechanism.noise and not by_label[label].noise):
            by_label[label] = mechanism
    drawn = [(mechanism, noise_figures(mechanism)) for mechanism in by_label.values()]
    return sorted(drawn, key=lambda entry: not entry[1])  # exact: flags


def _tables(runs: ComparableRuns) -> list[tuple[str, list[dict[str, Any]]]]:
    """The table by trust model: each mechanism at its best rate for each budget; mechanisms without noise last."""
    tables = [
        (f"Trust model {panel.trust}", [group for budget in panel.budgets for group in panel.best_at(budget)])
        for panel in runs.panels
    ]
    if runs.noiseless:
        tables.append(("Without noise: no guarantee", runs.noiseless))
    return [(words, [group.row(runs.metrics) for group in groups]) for words, groups in tables]


def _number(value: float | str | None) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _provenance(read: run_groups.Source) -> list[tuple[str, str]]:
    entries = []
    for name in column_names("page"):
        values = dict.fromkeys(str(record[name]) for record in read.records if record.get(name) is not None)
        if values:
            entries.append((name.replace("_", " "), ", ".join(values)))
    seeds = sorted({record["seed"] for record in read.records})
    entries.append(("seeds", ", ".join(map(str, seeds))))
    return entries + [(f"version of {name}", version) for name, version in read.versions.items()]


def _links(read: run_groups.Source, store: LossStore, out: Path) -> list[tuple[str, str, str]]:
    links = []
    for words, name in read.files:
        path = os.path.relpath(read.folder / name, out.parent) + ("/" if name.endswith("/") else "")
        links.append((words, path, urllib.parse.quote(path)))
    if store.used:
        links.append(("losses of all pairs of nodes, as computed for this page", DATA, DATA))
    return links


def _csv(every: Sequence[ComparableRuns]) -> str:
    metrics = list(dict.fromkeys(metric for runs in every for metric in runs.metrics))
    rows = [{"setting": runs.name, **group.row(metrics)} for runs in every for group in runs.groups]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return f"data:text/csv;charset=utf-8,{urllib.parse.quote(buffer.getvalue())}"


Looks = Mapping[str, Look]
FIRST = 4  # series of a panel that are shown before anything is chosen
POINTS = 160  # of a line over time
ROW = 60  # entries of a row of a matrix over time that are drawn
ALONE = Look("last row", POSITIVE, marker="o")  # of a line without others
KINDS = {"adaptive": "adaptive gradients", "non_adaptive": "non-adaptive gradients"}


@dataclasses.dataclass(frozen=True)
class Drawing:
    title: str
    svg: str
    words: str = ""
    classes: str = ""

    @classmethod
    def from_figure(
        cls, picture: matplotlib_figure.Figure, title: str, spoken: str, looks: Iterable[Look] = (), **words: str
    ) -> Drawing:
        return cls(title, themed_svg(picture, spoken, looks), **words)


def metric_words(metric: str) -> str:
    return METRIC_WORDS.get(metric, metric.replace("_", " "))


def trade_off(runs: ComparableRuns, panel: TrustPanel, looks: Looks, metric: str, kind: int) -> Drawing:
    """The final metric over the budget, each mechanism at its best rate, the range over seeds as a band."""
    groups = [group for budget in panel.budgets for group in panel.best_at(budget)]
    lines = _lines(looks, panel.names, groups, "budget", metric)
    epsilons = {group.budget: group.epsilon for group in panel.groups}
    below = {at: f"ε {rounded_up(epsilons[at])}" if panel.symbol == "μ" else "" for at in panel.budgets}
    ticks = [(budget, plain(budget), text) for budget, text in below.items()]
    ends = [(group.label, group.final(metric)) for group in runs.noiseless]
    levels = [Level(name, spread.mean, looks[name]) for name, spread in ends if spread is not None]
    levels += _baselines(runs, metric)
    across, words = f"{panel.symbol}, the privacy budget: less privacy to the right", metric_words(metric)
    chart = LineChart(across, words, lines, levels, ticks, x_log=True)
    title = f"{words}, trust model {panel.trust}".capitalize()
    spoken = f"{words} against the privacy budget under {panel.trust}"
    more = {"words": _diverged(groups), "classes": f"kind m{kind}"}
    return Drawing.from_figure(chart.figure(), title, spoken, looks.values(), **more)


def over_time(runs: ComparableRuns, panel: TrustPanel, budget: float, looks: Looks, source: Source) -> Drawing:
    """Test loss over steps at one budget: mean over nodes and seeds, the range over seeds as a band."""
    groups, levels = [*panel.best_at(budget), *runs.noiseless], _baselines(runs, "loss")
    curves = []
    for group in groups:
        steps, finals = zip(*((source.steps(r), r["final_test_loss"]) for r in group.records), strict=True)
        losses = [run.mean_over_nodes() for run in steps]
        curves.append(Curves(group.label, looks[group.label], [run.steps for run in steps], losses, finals))
    _, highest = calm_range(curves, [level.value for level in levels])
    lines = [_thinned(curve, highest) for curve in curves if curve.evaluated]
    title = f"Trust model {panel.trust}, {panel.symbol} = {budget:g}"
    chart = LineChart("step", "test loss", lines, levels)
    rates = ", ".join(f"{group.label} {group.lr:g}" for group in groups)
    words, spoken = f"Learning rates: {rates}." * (len(runs.rates) > 1), f"test loss over steps, {title}"
    return Drawing.from_figure(chart.figure(marked=6), title, spoken, looks.values(), words=words)


def against_rate(runs: ComparableRuns, panel: TrustPanel, budget: float, looks: Looks) -> Drawing:
    groups = [group for group in panel.groups if group.budget == budget]
    groups += [group for group in runs.groups if not group.private]
    groups = ranked(groups, key=lambda group: float(group.lr))
    lines = _lines(looks, dict.fromkeys(group.label for group in groups), groups, "lr", "loss")
    title = f"Trust model {panel.trust}, {panel.symbol} = {budget:g}"
    ticks = [(rate, plain(rate), "") for rate in runs.rates]
    chart = LineChart("learning rate", "test loss", lines, _baselines(runs, "loss"), ticks, x_log=True)
    return Drawing.from_figure(chart.figure(), title, f"test loss against the learning rate, {title}", looks.values())


def _lines(looks: Looks, names: Iterable[str], groups: Sequence[RunGroup], x: str, metric: str) -> list[Line]:
    return [_line(looks[name], [group for group in groups if group.label == name], x, metric) for name in names]


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
            unseen, spoken = f"{infinite} infinite losses are not drawn." * bool(infinite), f"mu by distance. {title}"
            drawings.append(Drawing.from_figure(chart.figure(), title, spoken, looks.values(), words=unseen))
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
            drawings.append(Drawing.from_figure(picture, title, f"{mechanism.group.label}: {title}", classes="map"))
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
        drawings.append(Drawing.from_figure(picture, title, f"{name}: {title}", words=words, classes="map"))
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
        drawings.append(Drawing.from_figure(picture, title, spoken, words=words, classes="map"))
        values = np.where(diagonal, np.nan, noise.over_nodes)
        picture = square_map(values, built.labels, ("node", "node"), norm=signed_scale(values), text=signed_text)
        drawings.append(Drawing.from_figure(picture, "Correlation between nodes", spoken, classes="map"))
    return drawings


def _last_row(name: str, matrix: FloatArray, *, is_inverse: bool) -> Drawing:
    """The last row, its newest entry first: the same numbers with their signs, for readers without colours."""
    values = matrix[-1, ::-1][:ROW]
    tips = [f"{i} steps before: {plain(float(value))}" for i, value in enumerate(values)]
    line = Line(ALONE, np.arange(values.size, dtype=np.float64), values, values, values, tips=tips)
    title = "Weights of earlier noise in the last step" if is_inverse else "Correlation with the last step"
    chart = LineChart("steps before the last one", "", [line], y_log=False)
    return Drawing.from_figure(chart.figure(), title, f"{name}: {title}")

"""The page: everything that was read and computed, in one template."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfdl_solvers.ties import first_maximum

from .. import __version__, extras, files
from ..metrics import is_accuracy
from ..pictures.drawings import MAX_LABELLED
from ..pictures.line_charts import swatch
from ..pictures.looks import DARK, LIGHT, LINES, WORDS, readable, series_looks
from ..pictures.style import plain
from ..pictures.themed_svg import themed_svg
from ..privacy.guarantee_texts import in_common
from ..progress import Progress, Silent
from ..progress import reporter as progress_screen
from ..runs import columns
from ..runs.output import mu_rounded_up, require_writable, rounded_up
from . import DATA, PAGE, figures, source
from .figures import Drawing, Looks
from .rebuilt import LossStore, MechanismDetails, details
from .run_groups import ComparableRuns, TrustPanel, comparable

if TYPE_CHECKING:
    from . import ReportConfig


def write_page(config: ReportConfig, folder: Path, out: Path | None = None, *, progress: Progress = "auto") -> Path:
    """Writes the page, and beside it the losses that were computed for it.

    Args: folder: of `mfdl sweep` or `mfdl compare`; out: the page, default report.html in it.
    Returns: the page.
    Raises: InvalidInput: a folder without finished runs, or a place that cannot be written. MissingExtra: jinja2 is
        not installed.
    """
    read, page = source.read(folder), folder / PAGE if out is None else out
    require_writable(page)
    store = LossStore(_json(page.parent / DATA))
    text = render(read, store, config.largest, page, progress_screen(progress))
    if store.used:
        files.atomic_write_json(page.parent / DATA, {"mfdl": __version__, "pairwise": store.used})
    return files.atomic_write_text(page, text)


def _json(path: Path) -> Any:
    """What the file holds; None where it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def render(read: source.Source, store: LossStore, largest: int, out: Path, progress: Silent) -> str:
    """The HTML."""
    jinja2 = extras.imported("jinja2", "a report")
    looks = series_looks(record["label"] for record in read.records)
    every = comparable(read.records)
    sections = [_section(i, runs, looks, read, store, largest, progress) for i, runs in enumerate(every)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mfdl.webpage", "."),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.jinja").render(
        title=f"{read.kind.capitalize()}: {' and '.join(runs.name for runs in every[:3])}"
        + ("" if len(every) < 4 else " and others"),
        read=read,
        sections=sections,
        swatches={name: themed_svg(swatch(look), "", [look]) for name, look in looks.items()},
        themes={ground: _colours(looks, ground) for ground in (LIGHT, DARK)},
        indices=range(len(looks)),
        kinds=range(max(len(section["metrics"]) for section in sections)),
        grounds={"light": LIGHT, "dark": DARK},
        provenance=_provenance(read),
        config=json.dumps(read.config, indent=1, ensure_ascii=False),
        links=_links(read, store, out),
        csv=_csv(every),
        version=__version__,
        budget=mu_rounded_up,
        up=rounded_up,
        plain=plain,
        number=_number,
        words_of=figures.words_of,
        is_accuracy=is_accuracy,
    )


def _colours(looks: Looks, ground: str) -> str:
    """CSS variables of the series: colours of lines and of names that stand out from the ground."""
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
    read: source.Source,
    store: LossStore,
    largest: int,
    progress: Silent,
) -> dict[str, Any]:
    """Runs that can be compared, as the template takes them."""
    metrics, panels = runs.metrics, runs.panels
    by_panel = details(runs, store, largest, progress)
    first = figures.selected_first(runs)
    choices = [(looks[name], name in first) for name in dict.fromkeys(record["label"] for record in runs.records)]
    noiseless = {group.label for group in runs.noiseless}
    return {
        "id": f"p{index + 1}",
        "runs": runs,
        "metrics": metrics,
        "choices": choices,
        "private_choices": [(look, checked) for look, checked in choices if look.name not in noiseless],
        "guarantees": _examples(panels),
        "findings": [(panel.trust, panel.finding()) for panel in panels],
        "trade_off": [
            figures.trade_off(runs, panel, looks, metric, kind)
            for panel in panels
            for kind, metric in enumerate(metrics)
            if any(group.final(metric) for group in panel.groups)
        ],
        "tables": _tables(runs),
        "over_time": [
            [figures.over_time(runs, panel, budget, looks, read) for budget in _ordered(panel)] for panel in panels
        ],
        "rates": [
            [figures.against_rate(runs, panel, budget, looks) for budget in _ordered(panel)]
            for panel in panels
            if runs.chooses_rates
        ],
        "by_hops": [figures.by_hops(panel, mechanisms, looks) for panel, mechanisms in by_panel],
        "pairs": [
            (mechanism, *figures.pair_figures(mechanism), _pair_table(mechanism))
            for _, mechanisms in by_panel
            for mechanism in mechanisms
        ],
        "noise": _noise([mechanism for _, mechanisms in by_panel for mechanism in mechanisms]),
    }  # fmt: skip


def _examples(panels: Sequence[TrustPanel]) -> list[tuple[str, str, str]]:
    """Of each trust model the middle budget in words and what all mechanisms are guaranteed at it."""
    examples = []
    for panel in panels:
        groups = panel.best_at(panel.middle)
        weakest = first_maximum(groups, key=lambda group: float(group.epsilon))
        words = in_common(weakest.guarantee, {group.label: group.guarantee for group in groups})
        examples.append((panel.trust, weakest.budget_in_words, words))
    return examples


def _ordered(panel: TrustPanel) -> list[float]:
    """The budget that is shown first, then the others."""
    return [panel.middle, *(budget for budget in panel.budgets if budget != panel.middle)]


def _pair_table(mechanism: MechanismDetails) -> list[tuple[str, list[tuple[str, str]]]]:
    """Adaptive privacy losses by victim, each as number and text; empty if there are too many nodes to read them."""
    if mechanism.losses is None or mechanism.built is None or mechanism.built.num_nodes > MAX_LABELLED:
        return []
    rows = zip(mechanism.built.labels, mechanism.losses.adaptive, strict=True)
    return [(label, [_loss_cell(float(value)) for value in row]) for label, row in rows]


def _loss_cell(value: float) -> tuple[str, str]:
    if math.isnan(value):
        return "", ""
    return ("inf", "∞") if math.isinf(value) else (repr(value), rounded_up(value))


def _noise(mechanisms: Sequence[MechanismDetails]) -> list[tuple[MechanismDetails, list[Drawing]]]:
    """Each mechanism once, those with something to draw first."""
    by_label: dict[str, MechanismDetails] = {}
    for mechanism in mechanisms:
        label = mechanism.group.label
        if label not in by_label or (mechanism.noise and not by_label[label].noise):
            by_label[label] = mechanism
    drawn = [(mechanism, figures.noise_figures(mechanism)) for mechanism in by_label.values()]
    return sorted(drawn, key=lambda entry: not entry[1])  # exact: flags


def _tables(runs: ComparableRuns) -> list[tuple[str, list[dict[str, Any]]]]:
    """The table by trust model: each mechanism at its best rate for each budget; last what has no noise."""
    tables = [
        (f"Trust model {panel.trust}", [group for budget in panel.budgets for group in panel.best_at(budget)])
        for panel in runs.panels
    ]
    if runs.noiseless:
        tables.append(("Without noise: no guarantee", runs.noiseless))
    return [(words, [group.row(runs.metrics) for group in groups]) for words, groups in tables]


def _number(value: float | str | None) -> str:
    """A number with all its digits, as an attribute for machines."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _provenance(read: source.Source) -> list[tuple[str, str]]:
    entries = []
    for name in columns.names("page"):
        values = dict.fromkeys(str(record[name]) for record in read.records if record.get(name) is not None)
        if values:
            entries.append((name.replace("_", " "), ", ".join(values)))
    seeds = sorted({record["seed"] for record in read.records})
    entries.append(("seeds", ", ".join(map(str, seeds))))
    return entries + [(f"version of {name}", version) for name, version in read.versions.items()]


def _links(read: source.Source, store: LossStore, out: Path) -> list[tuple[str, str, str]]:
    """Words, path and address of what lies beside the page."""
    links = []
    for words, name in read.files:
        path = os.path.relpath(read.folder / name, out.parent) + ("/" if name.endswith("/") else "")
        links.append((words, path, urllib.parse.quote(path)))
    if store.used:
        links.append(("losses of all pairs of nodes, as computed for this page", DATA, DATA))
    return links


def _csv(every: Sequence[ComparableRuns]) -> str:
    """All groups of runs, all rates, as an address of its own."""
    metrics = list(dict.fromkeys(metric for runs in every for metric in runs.metrics))
    rows = [{"setting": runs.name, **group.row(metrics)} for runs in every for group in runs.groups]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return f"data:text/csv;charset=utf-8,{urllib.parse.quote(buffer.getvalue())}"

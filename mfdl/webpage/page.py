"""The page: everything that was read and computed, in one template."""

from __future__ import annotations

import csv
import io
import json
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from .. import __version__, files
from ..metrics import is_accuracy
from ..progress import Progress, Silent
from ..progress import shown as told
from ..reporting.output import mu_rounded_up, require_writable, rounded_up
from . import privacy, sections, source
from .config import DATA, PAGE
from .groups import Panel, Setting, best_rates, grouped, settings
from .looks import DARK, LIGHT, looks
from .mechanisms import Kept
from .sections import Looks

if TYPE_CHECKING:
    from .config import ReportConfig


def write_page(config: ReportConfig, folder: Path, out: Path | None = None, *, progress: Progress = "auto") -> Path:
    """Writes the page, and beside it the losses that were computed for it.

    Args: folder: of `mfdl sweep` or `mfdl compare`; out: the page, default report.html in it.
    Returns: the page.
    Raises: InvalidInput: a folder without finished runs, or a place that cannot be written.
    """
    read, page = source.read(folder), folder / PAGE if out is None else out
    require_writable(page)
    kept = Kept(_earlier(page.parent / DATA))
    text = render(read, kept, config.largest, page, told(progress))
    if kept.used:
        files.atomic_write_json(page.parent / DATA, {"mfdl": __version__, "pairwise": kept.used})
    return files.atomic_write_text(page, text)


def _earlier(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def render(read: source.Source, kept: Kept, largest: int, out: Path, progress: Silent) -> str:
    """The HTML."""
    of = looks(record["label"] for record in read.records)
    every = settings(read.records)
    shown = [_setting(i, setting, of, read, kept, largest, progress) for i, setting in enumerate(every)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mfdl.webpage", "."),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.jinja").render(
        title=f"{read.kind.capitalize()}: {' and '.join(one.name for one in every[:3])}"
        + ("" if len(every) < 4 else " and others"),
        read=read,
        settings=shown,
        looks=list(of.values()),
        of=of,
        kinds=range(max(len(one["metrics"]) for one in shown)),
        grounds={"light": LIGHT, "dark": DARK},
        provenance=_provenance(read),
        config=json.dumps(read.config, indent=1, ensure_ascii=False),
        links=_links(read, kept, out),
        csv=_csv(every),
        version=__version__,
        budget=mu_rounded_up,
        up=rounded_up,
        plain=sections.plain,
        number=_number,
        words_of=sections.words_of,
        is_accuracy=is_accuracy,
    )


def _setting(
    index: int, setting: Setting, of: Looks, read: source.Source, kept: Kept, largest: int, progress: Silent
) -> dict[str, Any]:
    """One setting as the template takes it."""
    metrics = setting.metrics
    panels = setting.panels
    about = privacy.shown(setting, kept, largest, progress)
    labels = list(dict.fromkeys(record["label"] for record in setting.records))
    first = sections.shown_first(setting)
    choices: list[dict[str, Any]] = [{"look": of[name], "first": name in first} for name in labels]
    free = {group.label for group in grouped(setting.records) if not group.private}
    return {
        "id": f"p{index + 1}",
        "setting": setting,
        "metrics": metrics,
        "series": {
            **dict.fromkeys(("tradeoff", "time", "rate"), choices),
            "privacy": [choice for choice in choices if choice["look"].name not in free],
        },
        "guarantees": _examples(panels),
        "findings": [(panel.trust, panel.finding()) for panel in panels],
        "trade_off": [
            sections.trade_off(setting, panel, of, metric, kind)
            for panel in panels
            for kind, metric in enumerate(metrics)
            if any(group.of(metric) for group in panel.groups)
        ],
        "rows": _rows(setting),
        "over_time": [
            (panel, [sections.over_time(setting, panel, budget, of, read) for budget in _ordered(panel)])
            for panel in panels
        ],
        "rates": [
            (panel, [sections.against_rate(setting, panel, budget, of) for budget in _ordered(panel)])
            for panel in panels
            if setting.chooses_rates
        ],
        "by_hops": [(panel, privacy.by_hops(panel, each, of)) for panel, each in about],
        "pairs": [
            dict(zip(("figures", "sentences"), privacy.pairs(one) if one.losses else ([], []), strict=True))
            | {"one": one, "table": privacy.pair_table(one)}
            for _, each in about
            for one in each
        ],
        "noise": _noise(about),
    }  # fmt: skip


def _examples(panels: Sequence[Panel]) -> list[tuple[str, str, str]]:
    """Of each trust model the middle budget in words and the sentence of the weakest guarantee at it."""
    weakest = [max(panel.at(panel.middle), key=lambda group: float(group.epsilon)) for panel in panels]
    return [(p.trust, group.budget_in_words, group.guarantee) for p, group in zip(panels, weakest, strict=True)]


def _ordered(panel: Panel) -> list[float]:
    """The budget that is shown first, then the others."""
    return [panel.middle, *(budget for budget in panel.budgets if budget != panel.middle)]


def _noise(about: list[tuple[Panel, list[privacy.Shown]]]) -> list[dict[str, Any]]:
    """Each mechanism once, those with something to draw first."""
    once: dict[str, privacy.Shown] = {}
    for _, each in about:
        for one in each:
            if one.group.label not in once or (one.noise and not once[one.group.label].noise):
                once[one.group.label] = one
    made = [{"one": one, "figures": privacy.noise_figures(one) if one.noise else []} for one in once.values()]
    return sorted(made, key=lambda entry: not entry["figures"])


def _rows(setting: Setting) -> list[tuple[str, list[dict[str, Any]]]]:
    """The table by trust model: each mechanism at its best rate for each budget; last what has no noise."""
    rows = [
        (f"Trust model {panel.trust}", [group for budget in panel.budgets for group in panel.at(budget)])
        for panel in setting.panels
    ]
    free = best_rates(group for group in grouped(setting.records) if not group.private)
    rows += [("Without noise, without a guarantee", free)] if free else []
    return [(words, sections.columns(groups, setting.metrics)) for words, groups in rows]


def _number(value: float | str | None) -> str:
    """As an attribute says it to machines: all its digits."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _provenance(read: source.Source) -> list[tuple[str, str]]:
    names = (
        "task",
        "task_hash",
        "graph",
        "graph_hash",
        "gossip",
        "gossip_hash",
        "unit",
        "adjacency",
        "clip_norm",
        "nodes",
    )
    told = []
    for name in names:
        values = dict.fromkeys(str(record[name]) for record in read.records if record.get(name) is not None)
        if values:
            told.append((name.replace("_", " "), ", ".join(values)))
    seeds = sorted({record["seed"] for record in read.records})
    told.append(("seeds", ", ".join(map(str, seeds))))
    return told + [(f"version of {name}", version) for name, version in read.versions.items()]


def _links(read: source.Source, kept: Kept, out: Path) -> list[tuple[str, str, str]]:
    """Words, path and address of what lies beside the page."""
    links = []
    for words, name in read.files:
        path = os.path.relpath(read.folder / name, out.parent) + ("/" if name.endswith("/") else "")
        links.append((words, path, urllib.parse.quote(path)))
    if kept.used:
        links.append(("losses of all pairs of nodes, as computed for this page", DATA, DATA))
    return links


def _csv(every: list[Setting]) -> str:
    """All groups of runs, all rates, as an address of its own."""
    metrics = list(dict.fromkeys(metric for setting in every for metric in setting.metrics))
    rows = [
        {"setting": setting.name, **row}
        for setting in every
        for row in sections.columns(grouped(setting.records), metrics)
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return f"data:text/csv;charset=utf-8,{urllib.parse.quote(buffer.getvalue())}"

"""Rows of the loss table, as CSV, Markdown and a picture.

In: rows whose runs are complete. Out: table.csv, table.md, runs.json and one trade-off picture per scene.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _loss_runs import Setting
from _ranking import Against, Interval, markdown, of_mean
from _tradeoff import Point, draw

from mfdl import files
from mfdl.algorithms import registry
from mfdl.privacy import gaussian
from mfdl.reporting.account import write_figure
from mfdl.reporting.output import versions

DELTA = 1e-5
MEASURES = ("loss", "without_extreme", "median")
RANKINGS = {"ldp": "everybody sees every message (LDP)", "eavesdropper": "an outsider sees every message (SecLDP)"}
WEIGHTED = "weighted"


@dataclass(frozen=True, eq=False)
class Row:
    """One mechanism at one budget on the seeds of the table."""

    scene: str
    label: str
    budget: float
    setting: Setting
    loss: np.ndarray
    losses: dict[str, np.ndarray | None]
    against: dict[str, Against | None]

    @property
    def rankings(self) -> list[str]:
        """The rankings it takes part in."""
        entry = registry.entry_of(self.setting.mechanism)
        everywhere = entry is None or not entry.models
        return [name for name in RANKINGS if everywhere or (entry is not None and name in entry.models)]

    def facts(self) -> dict[str, Any]:
        """A line of table.csv."""
        mean, compared = of_mean(self.loss), self.against["loss"]
        line: dict[str, Any] = {
            "scene": self.scene,
            "rankings": "+".join(self.rankings),
            "mechanism": self.label,
            "setting": self.setting.mechanism,
            "rate": self.setting.rate,
            "mu": self.budget,
            "seeds": len(self.loss),
            "loss": mean.middle,
            "loss_half": mean.half,
        }
        for what in ("difference", "reduction", "share"):
            line |= _both(what, None if compared is None else getattr(compared, what))
        line["wins"] = "" if compared is None else f"{compared.wins}/{compared.pairs}"
        for what in MEASURES[1:]:
            values, other = self.losses[what], self.against[what]
            line[what] = "" if values is None else float(values.mean())
            line |= _both(f"{what}_reduction", None if other is None else other.reduction)
        return line


def _both(name: str, interval: Interval | None) -> dict[str, Any]:
    """Middle and half of an interval as two cells."""
    return {
        name: "" if interval is None else interval.middle,
        f"{name}_half": "" if interval is None else interval.half,
    }


HEADER = (
    *("mechanism", "chosen", "loss", "minus MAFALDA", "reduction", "of the way to no noise", "wins"),
    *("without extreme", "reduction", "median", "reduction"),
)


def table(rows: Sequence[Row]) -> str:
    """All rankings as Markdown, best first."""
    parts = []
    for scene, budget in dict.fromkeys((row.scene, row.budget) for row in rows):
        for ranking, words in RANKINGS.items():
            some = [row for row in rows if (row.scene, row.budget) == (scene, budget) and ranking in row.rankings]
            some.sort(key=lambda row: float(np.where(np.isnan(row.loss), np.inf, row.loss).mean()))
            if some:
                parts.append(f"**{scene}, mu = {budget:g}, {words}**, {len(some[0].loss)} seeds\n\n")
                parts.append(markdown(HEADER, [_cells(row) for row in some]) + "\n")
    return "".join(parts)


def _cells(row: Row) -> list[str]:
    setting, compared = row.setting, row.against["loss"]
    chosen = f"rate {setting.rate:g}"
    if row.label.endswith(WEIGHTED):
        chosen = f"{setting.mechanism.partition('@')[2] or 'unweighted'}, {chosen}"
    cells = [row.label, chosen, of_mean(row.loss).text()]
    if compared is None:
        cells += ["", "", "", ""]
    else:
        cells += [compared.difference.text(), _percent(compared.reduction), _percent(compared.share)]
        cells.append(f"{compared.wins}/{compared.pairs}")
    for what in MEASURES[1:]:
        values, other = row.losses[what], row.against[what]
        cells.append("" if values is None else f"{values.mean():.3f}")
        cells.append("" if other is None else _percent(other.reduction))
    return cells


def _percent(interval: Interval | None) -> str:
    return "" if interval is None else f"{100 * interval.middle:.1f} ± {100 * interval.half:.1f} %"


def write(out: Path, rows: Sequence[Row]) -> None:
    """table.csv, table.md and runs.json of what is complete."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0].facts()))
    writer.writeheader()
    writer.writerows(row.facts() for row in rows)
    files.atomic_write_text(out / "table.csv", text.getvalue())
    files.atomic_write_text(out / "table.md", table(rows))
    kept = sorted((out / "runs").rglob("*.json"))
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
    files.atomic_write_json(out / "runs.json", {"versions": versions(), "runs": runs})


def write_pictures(out: Path, rows: Sequence[Row]) -> None:
    """One per scene."""
    for scene in dict.fromkeys(row.scene for row in rows):
        points = {
            words: [
                Point(row.label, gaussian.epsilon_from_mu(row.budget, DELTA), of_mean(row.loss[~np.isnan(row.loss)]))
                for row in rows
                if row.scene == scene and ranking in row.rankings
            ]
            for ranking, words in RANKINGS.items()
        }
        write_figure(out, f"tradeoff-{scene}", draw(points, scene, DELTA))

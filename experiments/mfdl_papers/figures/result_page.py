"""Pages of stored results: every figure beside its claim, and one table a paper; nothing on them is typed.

In: a folder with the NAME.json (NAME-quick.json) of `reproduce`. Out: `reproduced.html` beside them, with the pictures,
and `reproduced_PAPER.csv`. Verdicts are computed anew from the stored effects; a file whose verdicts or claims are not
those of this version is refused.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mfdl import files
from mfdl.errors import InvalidInput

from . import FIGURES, PublishedFigure, minutes
from .verdicts import NOT_RUN, Verdict, overall

PAGE = "reproduced.html"
COLUMNS = ("figure", "claimed", "ours", "verdict")
TABLES = {"mafalda": "mafalda", "decor": "decor", "corn": "corn", "whisper": "corn"}
"""The first word of a figure's name, and the table that it belongs to."""
STYLE = (
    "body{font:16px/1.45 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left;vertical-align:top}"
    "img{max-width:100%}small{color:#666}"
)


def stored_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a folder by figure, in the order of `FIGURES`; the full run where there is one.

    Raises: InvalidInput: a file that is no result, or does not belong to this version.
    """
    results = {}
    for name, figure in FIGURES.items():
        paths = [path for stem in (name, f"{name}-quick") if (path := folder / f"{stem}.json").exists()]
        if paths:
            results[name] = checked(figure, paths[0])
    return results


def checked(figure: PublishedFigure, path: Path) -> dict[str, Any]:
    """A stored result whose verdicts follow from its effects. Raises: as `stored_results`."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts = [Verdict.from_result(part) for part in result["claims"]]
        verdicts = [part["verdict"] for part in result["claims"]]
        words = result["claim"], result["deviations"], result["verdict"], verdicts
        required = {name: result[name] for name in ("command", "date", "machine", "seconds", "tables", "missing")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no result of this version ({error!r}); run its figure again.") from None
    now = figure.claim, list(figure.deviations), overall(parts), [part.verdict for part in parts]
    if words != now:
        differing = next(a for a, b in zip(words, now, strict=True) if a != b)
        raise InvalidInput(f"{path} has {differing!r}, which is not what this version says; run {required['command']}.")
    return result


def table_rows(results: Mapping[str, Mapping[str, Any]], table: str) -> Iterator[tuple[str, ...]]:
    """One row for each claim of a table, then one for each figure that was not run."""
    for name, figure in FIGURES.items():
        if TABLES[name.partition("-")[0]] != table:
            continue
        result = results.get(name)
        if result is None:
            yield (f"{figure.figure} ({name})", figure.claim, f"full size {figure.full_cost}", NOT_RUN)
            continue
        label = f"{figure.figure} ({run_text(result)})"
        for part in map(Verdict.from_result, result["claims"]):
            yield (label, part.claim, finding_text(part), part.verdict)
            label = ""


def finding_text(part: Verdict) -> str:
    return "; ".join(filter(None, (part.finding, part.remark)))


def run_text(result: Mapping[str, Any]) -> str:
    """Command, seeds, date, machine and time."""
    settings = result["settings"]
    seeds = settings.get("seeds", settings.get("draws"))
    count = len(seeds) if isinstance(seeds, list) else seeds
    kind = "seeds" if "seeds" in settings else "draws"
    parts = [f"`{result['command']}`", f"{count} {kind}" if count else "", result["date"], result["machine"]]
    return ", ".join(filter(None, [*parts, minutes(max(round(result["seconds"]), 1) / 60)]))


def write_tables(results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    paths = []
    for table in dict.fromkeys(TABLES.values()):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table_rows(results, table))
        paths.append(files.atomic_write_text(folder / f"reproduced_{table}.csv", text.getvalue()))
    return paths


def write_result_page(results: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    verdicts = [result["verdict"] for result in results.values()]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    summary = f"{len(results)} of {len(FIGURES)} figures: {counts or NOT_RUN}."
    body = [_element("h1", "Published figures, reproduced"), _element("p", summary)]
    for name, figure in FIGURES.items():
        body += [_element("h2", f"{figure.paper}, {figure.figure}")]
        body += _section(results[name], folder) if name in results else [_element("p", f"{NOT_RUN}: {figure.claim}")]
    head = f"<meta charset=utf-8><title>Published figures, reproduced</title><style>{STYLE}</style>"
    return files.atomic_write_text(folder / PAGE, "\n".join(["<!DOCTYPE html>", head, *body, ""]))


def _section(result: Mapping[str, Any], folder: Path) -> list[str]:
    parts = [Verdict.from_result(part) for part in result["claims"]]
    stem = result["name"] + ("-quick" if result["quick"] else "")
    lines = [_element("p", f"Claimed: {result['claim']}"), _element("p", f"Verdict: {result['verdict']}")]
    if (folder / f"{stem}.svg").exists():
        lines.append(f'<img src="{stem}.svg" alt="{html.escape(stem)}">')
    lines.append(_table(COLUMNS[1:], [(part.claim, finding_text(part), part.verdict) for part in parts]))
    for table in result["tables"]:
        content = _element("summary", table["title"]), _table(table["columns"], table["rows"])
        lines += ["<details>", *content, "</details>"]
    lines += [_element("p", f"Deviation: {text}") for text in result["deviations"]]
    lines += [_element("p", f"Missing: {text}") for text in result["missing"]]
    return [*lines, f"<p>{_element('small', run_text(result))}</p>"]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [f"<tr>{''.join(_element('td', cell) for cell in row)}</tr>" for row in rows]
    return f"<table><tr>{''.join(_element('th', name) for name in columns)}</tr>{''.join(cells)}</table>"


def _element(tag: str, text: str) -> str:
    return f"<{tag}>{html.escape(text)}</{tag}>"

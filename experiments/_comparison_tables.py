"""Results over all scenes: tables by trust model, by task, by scene and by rate; Markdown, CSV and JSON.

In: the answers of `_protocol.compared`. Out: lines of tables, files.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _limits import limit
from _paired_statistics import Array, Estimate, Losses, holm, log_ratio, over_scenes, share, signed_rank
from _protocol import RESULT
from _scenes import FEW_NODES, MEASURES, NO_NOISE, REFERENCE, ROWS

from mfdl import files
from mfdl.runs.output import versions

LEVEL = 0.05
RANKINGS = {
    "ldp": "Everybody sees every message (LDP)",
    "eavesdropper": "An outsider sees every message, nodes may share seeds (eavesdropper)",
    **{f"coalitions:{q}": f"Any {q} node{'s' * (q > 1)} together see every message (coalitions)" for q in (1, 2, 3)},
    "pndp": "A node sees the messages that it receives (PNDP)",
    "central": "Only the average of each round is seen (central)",
}
Answer = Mapping[str, Any]
Place = tuple[str, str]
"""Label of a row, measure."""


def answers(out: Path) -> list[dict[str, Any]]:
    """Of all scenes in a folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob(f"*/{RESULT}"))]


def group(answer: Answer) -> str:
    """Scenes of one kind are pooled: by partition; at a budget asked for they are the same scenes again."""
    partition = "uniform" if answer["partition"] == "uniform" else "skewed"
    budget = f"{answer['epsilon']:g} as asked" if "/epsilon=" in answer["name"] else "below 1"
    return f"{partition} partition, epsilon {budget}"


def titled(answer: Answer, sign: str = "epsilon") -> str:
    """Scene and budget, in words."""
    return f"{answer['name'].split('/epsilon=')[0]}, {sign} {answer['epsilon']:g}"


def losses_of(answer: Answer, place: Place) -> Array | None:
    """One for each seed of the test, inf where the run diverged; None where the scene has no such row."""
    for row in answer["rows"]:
        if (row["label"], row["measure"]) == place:
            return np.array([math.inf if loss is None else loss for loss in row["losses"]])
    return None


def without_noise(answer: Answer, labels: Sequence[str] = (NO_NOISE,)) -> Array:
    """Of the row and model, last or released, that is best without noise at the chosen rates."""
    places = [(label, measure) for label in labels for measure in MEASURES]
    every = [losses for place in places if (losses := losses_of(answer, place)) is not None]
    return min(every, key=lambda losses: float(losses.mean()))


def paired(answer: Answer, place: Place) -> Losses | None:
    """A row beside MAFALDA's last model and no noise; None where the scene does not count or lacks one of them."""
    loss, reference = losses_of(answer, place), losses_of(answer, (REFERENCE, "last"))
    if not answer["counts"] or loss is None or reference is None:
        return None
    best = without_noise(answer, [label for label in ROWS if label.startswith(NO_NOISE)])
    return {"loss": loss, "reference": reference, "none": without_noise(answer), "best": best}


@dataclasses.dataclass(frozen=True)
class Line:
    """A row over all scenes of a group.

    Attributes:
        ratio: of the loss to that of MAFALDA's last model, geometric mean; share: of the way from there to no noise.
        better, worse: scenes where Wilcoxon's test says so at 5 %, corrected by Holm.
    """

    place: Place
    batches: str
    scenes: int
    ratio: Estimate
    share: Estimate
    better: int
    worse: int


def lines(results: Sequence[Answer], ranking: str) -> list[Line]:
    """All rows of a ranking, best share first; none if no row is for it alone. Holm's correction is over all tests."""
    rows = {(row["label"], row["measure"]): row for answer in results for row in answer["rows"]}
    if not any(row["rankings"][0] == ranking for row in rows.values()):  # no row of its own: the other table has all
        return []
    places = [place for place, row in rows.items() if ranking in row["rankings"] or _fixed(place)]
    drawn = {place: [losses for a in results if (losses := paired(a, place)) is not None] for place in places}
    tests = [(place, k) for place, every in drawn.items() for k in range(len(every)) if not _fixed(place)]
    p_values = [signed_rank(drawn[place][k]["loss"], drawn[place][k]["reference"]) for place, k in tests]
    corrected = dict(zip(tests, holm(p_values), strict=True))
    out = []
    for place, every in drawn.items():
        if not every:
            continue
        sides = [float(log_ratio(losses)) for k, losses in enumerate(every) if corrected.get((place, k), 1.0) <= LEVEL]
        ratio = over_scenes(log_ratio, every)
        out.append(
            Line(
                place,
                rows[place]["batches"],
                len(every),
                Estimate(*(math.exp(value) for value in dataclasses.astuple(ratio))),
                over_scenes(share, every),
                sum(side < 0 for side in sides),
                sum(side > 0 for side in sides),
            )
        )
    return sorted(out, key=lambda line: -line.share.middle)


def _fixed(place: Place) -> bool:
    """Rows that are no question: no noise, and the reference itself."""
    return place[0].startswith(NO_NOISE) or place == (REFERENCE, "last")


def pooled(results: Sequence[Answer]) -> str:
    """One table for each group and trust model."""
    parts = []
    header = ("row", "model", "batches", "loss / MAFALDA's", "share of the gap closed", "better, worse", "scenes")
    for kind in dict.fromkeys(map(group, results)):
        some = [answer for answer in results if group(answer) == kind]
        for ranking, words in RANKINGS.items():
            body = [
                (
                    *(line.place[0], line.place[1], "-" if line.place[0].startswith(NO_NOISE) else line.batches),
                    f"{line.ratio.middle:.3f} [{line.ratio.low:.3f}, {line.ratio.high:.3f}]",
                    percent(line.share),
                    "" if _fixed(line.place) else f"{line.better}, {line.worse}",
                    line.scenes,
                )
                for line in lines(some, ranking)
            ]
            if body:
                parts.append(f"**{words}; {kind}**\n\n{markdown(header, body)}\n")
    return "".join(parts)


def by_task(results: Sequence[Answer], ranking: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: of every row its cost, and for each task the share of the gap, mean over its scenes.

    In brackets the interval; then the share of the gap to the best row without noise, which may have the same design.
    """
    counting = [answer for answer in results if answer["counts"]]
    rows = {(row["label"], row["measure"]): row for answer in counting for row in answer["rows"]}
    order = {label: k for k, label in enumerate(ROWS)}
    tasks = list(dict.fromkeys(answer["task"] for answer in counting))
    body = []
    for place in sorted(rows, key=lambda place: (order.get(place[0], len(order)), place[1])):
        row = rows[place]
        if ranking not in row["rankings"] and not _fixed(place):
            continue
        cells = []
        for task in tasks:
            every = [losses for a in counting if a["task"] == task and (losses := paired(a, place)) is not None]
            cells.append(_shares(every) if every else "")
        costs = (str(row.get("gradient_evaluations", "")), str(row.get("exchanges", "")))
        batches = "-" if place[0].startswith(NO_NOISE) else row["batches"]
        body.append([place[0], place[1], batches, *costs, *cells])
    return ("row", "model", "batches", "evaluations", "exchanges", *tasks), body


def _shares(every: Sequence[Losses]) -> str:
    best = float(np.mean([share({**losses, "none": losses["best"]}) for losses in every]))
    return f"{percent(over_scenes(share, every))}; {best:.0%}"


def excess(losses: Losses) -> Array:
    """What is left above the best row without noise, mean over seeds."""
    return (losses["loss"] - losses["best"]).mean(axis=-1)


def closable(losses: Losses, limit: float) -> Losses:
    """The same losses, where the way ends at the limit above the best row without noise."""
    return {**losses, "none": losses["best"] + limit}


def beside_limits(results: Sequence[Answer], ranking: str) -> list[tuple[Place, list[Losses], list[Losses]]]:
    """Rows held to a trust model, or meant for it, with losses in each scene as they are and towards the limit."""
    rows = {(row["label"], row["measure"]): row for answer in results for row in answer["rows"]}
    out = []
    for place, row in rows.items():
        if row["rankings"][0] != ranking or place[0].startswith(NO_NOISE):
            continue
        scenes = [(losses, limit(a, ranking)) for a in results if (losses := paired(a, place)) is not None]
        towards = [closable(losses, bound) for losses, bound in scenes if bound is not None]
        if scenes and len(towards) == len(scenes):
            out.append((place, [losses for losses, _ in scenes], towards))
    return out


def by_trust(results: Sequence[Answer]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: of every trust model its rows, shares over all scenes with intervals, and of each scene."""
    body = []
    for ranking in RANKINGS:
        for place, losses, towards in beside_limits(results, ranking):
            means = [percent(over_scenes(share, each)) for each in (losses, towards)]
            scenes = [f"{float(excess(each)):.4f} ({float(share(each)):.0%})" for each in towards]
            body.append([trust_name(ranking), _named(place), *means, *scenes])
    header = ("trust model", "row", "share of the gap", "share of what can be closed")
    return (*header, *(f"{titled(a)}: excess loss (share)" for a in results)), body


def best_beside(answer: Answer, ranking: str) -> tuple[Place, Losses, Losses] | None:
    """The row of a trust model with the least test loss in a scene, as in `beside_limits`; None where there is none."""
    every = [(place, losses[0], towards[0]) for place, losses, towards in beside_limits([answer], ranking)]
    return min(every, key=lambda each: float(each[1]["loss"].mean()), default=None)


def limit_cells(results: Sequence[Answer]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: of every trust model and scene the limit and the best row."""
    body = []
    for answer in results:
        for ranking in RANKINGS:
            if (best := best_beside(answer, ranking)) is not None:
                left = over_scenes(excess, [best[1]])
                numbers = [f"{limit(answer, ranking):.2g}", f"{left.middle:.4f} [{left.low:.4f}, {left.high:.4f}]"]
                closed = percent(over_scenes(share, [best[2]]))
                body.append([titled(answer), trust_name(ranking), _named(best[0]), *numbers, closed])
    return ("scene", "trust model", "best row", "limit", "excess loss", "share of what can be closed"), body


def trust_name(ranking: str) -> str:
    """As tables and pictures have it.

    >>> trust_name("coalitions:2"), trust_name("ldp"), trust_name("central")
    ('coalitions of 2', 'LDP', 'central')
    """
    return ranking.upper() if ranking in ("ldp", "pndp") else ranking.replace(":", " of ")


def _named(place: Place) -> str:
    """The row, and its model where that is the last one."""
    return place[0] if place[1] == "released" else ", ".join(place)


def percent(estimate: Estimate) -> str:
    """With its interval."""
    return f"{estimate.middle:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


def scene_cells(results: Sequence[Answer]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: a column for each scene that has its test; what noise costs, mean losses and shares."""
    tested = [answer for answer in results if paired(answer, (REFERENCE, "last")) is not None]
    places = dict.fromkeys((row["label"], row["measure"]) for answer in tested for row in answer["rows"])
    body: list[Sequence[str]] = [["noise costs DP-D-SGD", *(f"{answer['cost_of_noise'] - 1:.0%}" for answer in tested)]]
    for place in places:
        every = [paired(answer, place) for answer in tested]
        cells = [
            "" if losses is None else f"{losses['loss'].mean():.3f} ({float(share(losses)):.0%})" for losses in every
        ]
        body.append([", ".join(place), *cells])
    return ("loss (share)", *map(titled, tested)), body


def by_scene(results: Sequence[Answer]) -> str:
    """The table of `scene_cells`, and the names of scenes that do not count."""
    out = [answer["name"] for answer in results if not answer["counts"]]
    return markdown(*scene_cells(results)) + (f"\nDo not count: {', '.join(out)}.\n" if out else "")


def by_rate(answer: Answer, places: Iterable[Place]) -> str:
    """Mean loss at every rate tried, on the seeds of the first round: without noise, and what noise adds."""
    losses = {(row["label"], row["measure"], row["lr"]): row["loss"] for row in answer["rates"]}
    rates = sorted({rate for _, _, rate in losses})
    body = []
    for measure in MEASURES:
        quiet = [losses.get((NO_NOISE, measure, rate)) for rate in rates]
        body.append([f"{NO_NOISE}, {measure}", *("" if loss is None else f"{loss:.3f}" for loss in quiet)])
        for label, chosen in places:
            if chosen == measure:
                noisy = [losses.get((label, measure, rate)) for rate in rates]
                added = ["" if a is None or b is None else f"{a - b:+.3f}" for a, b in zip(noisy, quiet, strict=True)]
                body.append([f"{label}, {measure}: noise adds", *added])
    return markdown((titled(answer), *(f"{rate:g}" for rate in rates)), body)


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown."""
    every = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in every) + "\n"


def write(out: Path) -> str:
    """tables.md, results.json and a CSV file for each table of tasks and for the scenes, of a folder; the tables."""
    results = answers(out)
    parts = [pooled(results)]
    for kind in dict.fromkeys(map(group, results)):
        some = [answer for answer in results if group(answer) == kind]
        for ranking, words in RANKINGS.items():
            if lines(some, ranking):
                header, body = by_task(some, ranking)
                parts.append(f"**By task: {words}; {kind}**\n\n{markdown(header, body)}")
                name = f"tasks-{ranking}-{kind}".replace(",", "").replace(" ", "-").replace(":", "-")
                files.atomic_write_text(out / f"{name}.csv", as_csv(header, body))
    parts.append(by_scene(results))
    for answer in results:
        if answer["counts"]:
            places = dict.fromkeys((row["label"], row["measure"]) for row in answer["rows"] if row["label"] != NO_NOISE)
            parts.append(by_rate(answer, places))
    counting = [answer for answer in results if answer["counts"]]
    tables = {"limits": limit_cells(counting)}
    for few in (False, True):
        some = [answer for answer in counting if answer["graph"].endswith(FEW_NODES) == few]
        tables["trust-few-nodes" if few else "trust"] = by_trust(some)
    for name, table in tables.items():
        if table[1]:
            parts.append(markdown(*table))
            files.atomic_write_text(out / f"{name}.csv", as_csv(*table))
    text = "\n".join(parts)
    files.atomic_write_text(out / "tables.md", text)
    files.atomic_write_text(out / "scenes.csv", as_csv(*scene_cells(results)))
    files.atomic_write_json(out / "results.json", {"versions": versions(), "scenes": results})
    return text

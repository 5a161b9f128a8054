"""`mfdl claims`: testable statements of the papers, tested. `mfdl reproduce`: published figures with verdicts."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from mfdl import errors, files
from mfdl.commands import terminal
from mfdl.commands.terminal import Answer, command
from mfdl.errors import InvalidInput, require_known
from mfdl.progress import Progress, reporter
from mfdl.runs.options import Config, Jobs, Option

from . import figures
from .facts import markdown_head, markdown_row
from .figures import DEFAULT_OUT, FIGURES, VERDICTS, RunScale, minutes

if TYPE_CHECKING:
    from mfdl.testing import Claim

    from .figures import Reproduction


JSON_FILE, PAGE = "claims.json", "claims.md"
COLUMNS = ("statement", "verdict", "smallest counterexample", "what is true")
COLOURS = {"holds": "green", "refuted": "red", "untested": "yellow"}


@dataclasses.dataclass(frozen=True)
class ClaimsConfig(Config):
    """Which statements of the papers are tested, and on how many cases."""

    command: ClassVar[str] = "claims"

    only: Annotated[tuple[str, ...], Option("Only this claim; may be repeated.", metavar="ID")] = ()
    examples: Annotated[int | None, Option("Cases tried for each claim; default what the claim asks for.", least=1)] = (
        None
    )
    seed: Annotated[int, Option("Of the search; one seed gives one table.", least=0)] = 0
    jobs: Jobs = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = _known()
        for name in self.only:
            require_known("claim", name, known)


def run_claims(config: ClaimsConfig, out: Path | None = None, *, progress: Progress = "auto") -> list[dict[str, Any]]:
    """One row per claim, in the order of the papers; out: a folder for claims.json and claims.md."""
    import joblib

    from mfdl.runs import output

    if out is not None:
        output.require_writable(out / JSON_FILE)
    names = [name for name in _known() if not config.only or name in config.only]
    parallel = joblib.Parallel(n_jobs=config.jobs or min(joblib.cpu_count(), len(names)), return_as="generator")
    rows = []
    with reporter(progress).bar("claims", len(names)) as advance:
        for row in parallel(joblib.delayed(_row)(name, config.examples, config.seed) for name in names):
            rows.append(row)
            advance()
    if out is not None:
        files.atomic_write_json(out / JSON_FILE, rows)
        files.atomic_write_text(out / PAGE, _page(rows))
    return rows


@command(ClaimsConfig, f"Folder for {JSON_FILE} and {PAGE}.")
def claims(config: ClaimsConfig, out: Path | None) -> Answer:
    """Test what the papers state: claimed bound against truth, on cases that a search draws and shrinks.

    The exit code is 0 when every verdict is the one on record and 1 otherwise.
    """
    rows = run_claims(config, out)
    return rows, lambda: _print_table(rows), int(not all(row["as_registered"] for row in rows))


def _known() -> dict[str, Claim]:
    errors.imported("hypothesis", "mfdl claims")
    from .paper_claims import published_claims

    return {claim.id: claim for claim in published_claims()}


def _row(name: str, examples: int | None, seed: int) -> dict[str, Any]:
    from mfdl.testing import check_claim

    claim = _known()[name]
    began = time.perf_counter()
    result = check_claim(claim, examples=examples, seed=seed)
    return {
        **{name: getattr(claim, name) for name in ("id", "paper", "item", "statement", "erratum")},
        **{name: getattr(result, name) for name in ("verdict", "counterexample", "as_registered", "tried")},
        "registered": claim.expect,
        "seconds": round(time.perf_counter() - began, 2),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape

    table = terminal.table(("claim", *COLUMNS))
    table.show_lines = True
    for row in rows:
        verdict = f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]"
        verdict += f"\n{row['tried']} cases" if row["verdict"] == "holds" else ""
        verdict += "" if row["as_registered"] else f"\n[bold]on record: {row['registered']}[/]"
        where = f"{escape(row['id'])}\n[dim]{escape(row['paper'])}, {escape(row['item'])}[/]"
        statement, refuting, erratum = (escape(row[name] or "") for name in ("statement", "counterexample", "erratum"))
        table.add_row(where, statement, verdict, refuting, erratum)
    terminal.answers().print(table)
    terminal.answers().print(_summary(rows))


def _summary(rows: list[dict[str, Any]]) -> str:
    count = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in COLOURS}
    counts = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
    other = [row["id"] for row in rows if not row["as_registered"]]
    return f"{len(rows)} claims: {counts}; " + (
        f"not as on record: {', '.join(other)}." if other else "every verdict is the one on record."
    )


def _page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# The papers' claims, tested",
        "",
        "Made by `mfdl claims --out DIR`. A claim is a function from a case to (claimed bound, truth); *holds* says",
        "that a search over that many cases found no counterexample, not that there is a proof. Counterexamples are as",
        "the search shrank them.",
        "",
        _summary(rows),
    ]
    for paper, of_paper in itertools.groupby(rows, lambda row: row["paper"]):
        lines += ["", f"## {paper}", "", *markdown_head("claim", "item", *COLUMNS)]
        for row in of_paper:
            verdict = f"holds ({row['tried']})" if row["verdict"] == "holds" else row["verdict"]
            cells = row["item"], row["statement"], verdict, row["counterexample"] or "", row["erratum"]
            lines.append(markdown_row(f"`{row['id']}`", *cells))
    return "\n".join(lines) + "\n"


ALL = "all"
VERDICT_COLOURS = dict(zip(VERDICTS, ("green", "yellow", "magenta", "red", "dim"), strict=True))


@dataclasses.dataclass(frozen=True)
class ReproduceConfig(Config):
    """How published figures are run: the options of `mfdl reproduce`."""

    command: ClassVar[str] = "reproduce"

    quick: Annotated[bool, Option("Minutes instead of the published size; the same rules decide the verdict.")] = False
    jobs: Jobs = None
    engine: Annotated[str, Option("What runs the training: joblib, or dask.", among=("joblib", "dask"))] = "joblib"
    scheduler: Annotated[
        str | None, Option("dask: address of a scheduler; default a cluster on this machine.", metavar="ADDRESS")
    ] = None
    data_home: Annotated[Path | None, Option("Data folder; default: $MFDL_DATA, else the user's cache folder.")] = None
    peertube: Annotated[
        Path | None, Option("Edges of the PeerTube graph: CSV with columns Source, Target, Weight.", metavar="FILE")
    ] = None
    misskey: Annotated[
        Path | None, Option("Edges of the Misskey graph: CSV with columns Source, Target, Weight.", metavar="FILE")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        from mfdl import graphs

        for path in self.graph_files.values():
            graphs.load(path, largest_component=True)

    @property
    def graph_files(self) -> dict[str, Path]:
        """The graphs that the user brings, by name."""
        given = {name: getattr(self, name) for name in ("peertube", "misskey")}
        return {name: Path(path) for name, path in given.items() if path is not None}

    def scale(self, out: Path | None = None) -> RunScale:
        values = self.values("quick", "jobs", "engine", "scheduler", "data_home")
        return RunScale(out=out or DEFAULT_OUT, graph_files=self.graph_files, **values)


@command(ReproduceConfig, "Folder of the results.", default=DEFAULT_OUT)
def reproduce(
    config: ReproduceConfig,
    out: Path,
    name: Annotated[str | None, typer.Argument(help="A figure of --list, or all.", metavar="NAME")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show the figures, what they cost and what they need.")
    ] = False,
    page: Annotated[
        bool,
        typer.Option("--page", help="Write the page and the tables of the results in the folder, and run nothing."),
    ] = False,
) -> Answer:
    """Reproduce a published figure: the paper's claim, our value with spread, a verdict, deviations and cost.

    What was trained is kept in the folder: the same command goes on where it was stopped.
    """
    if (name is not None) + listed + page != 1:
        raise InvalidInput(
            "mfdl reproduce needs the name of a figure, or all, or --list, or --page; `mfdl reproduce --list` shows "
            "the names."
        )
    if listed or page:
        return _list() if listed else _result_page(out)
    if name == ALL:
        return _all(config.scale(out))
    done = figures.reproduce(str(name), config.scale(out))
    return done.result(), lambda: _show(done), 0


def _list() -> Answer:
    rows = [figure.listed() for figure in FIGURES.values()]

    def show() -> None:
        table = terminal.table(("name", "figure", "quick", "full", "needs"), right=("quick", "full"))
        table.columns[0].no_wrap = True
        for figure in FIGURES.values():
            where = f"{figure.paper.partition(',')[0]}, {figure.figure}"
            needs = dict.fromkeys(name.partition(":")[0].partition("/")[0] for name in figure.data)
            cost = map(minutes, (figure.quick_minutes, figure.full_minutes))
            table.add_row(figure.name, where, *cost, ", ".join(needs))
        terminal.say([table, "Papers, claims, costs and files of each: --json."])

    return rows, show, 0


def _result_page(folder: Path) -> Answer:
    from .figures.result_page import stored_results, write_result_page, write_tables

    results = stored_results(folder)
    if not results:
        raise InvalidInput(f"{folder} holds no result of a figure; run `mfdl reproduce all --out {folder}` first.")
    paths = [write_result_page(results, folder), *write_tables(results, folder)]
    rows = [{"name": name, "verdict": result["verdict"]} for name, result in results.items()]
    return rows, lambda: terminal.say([f"Written to {path}." for path in paths]), 0


def _all(scale: RunScale) -> Answer:
    """Every figure, and their page after each; the exit code is 1 where one failed for an error of ours."""
    from .figures.result_page import write_result_page

    every: list[Reproduction] = []
    for done in figures.reproduce_all(scale):
        terminal.messages().print(f"{done.figure.name}: {done.verdict}, {done.seconds:.0f} s", markup=False)
        every.append(done)
        write_result_page({other.figure.name: other.result() for other in every}, scale.out)
    rows = [done.result() for done in every]
    stem = "reproduced" + scale.pick("-quick", "")
    files.atomic_write_json(scale.out / f"{stem}.json", rows)
    failed = any((scale.out / f"{done.figure.name}.error.txt").exists() for done in every if done.verdict == "not run")
    return rows, lambda: _show_all(every, scale.out / f"{stem}.json"), int(failed)


def _show(done: Reproduction) -> None:
    figure = done.figure
    for table in done.tables:
        terminal.say([_table(table.title, table.columns, table.rows)])
    title = f"{figure.paper}, {figure.figure}{done.scale.pick(' (quick)', '')}: {done.verdict}"
    rows = [(part.claim, part.finding, part.verdict) for part in done.verdicts]
    terminal.say([_table(title, ("claimed", "ours", "verdict"), rows)])
    notes = [f"Deviation: {text}" for text in figure.deviations] + [f"Missing: {text}" for text in done.missing]
    cost = f"Cost: {done.seconds:.0f} s; the full figure {figure.full_cost}."
    terminal.say([*notes, cost], done.scale.out / f"{done.stem}.json")


def _show_all(every: list[Reproduction], path: Path) -> None:
    rows = [(done.figure.name, part.claim, part.finding, part.verdict) for done in every for part in done.verdicts]
    terminal.say([_table("published figures", ("figure", "claimed", "ours", "verdict"), rows)])
    seconds = sum(done.seconds for done in every)
    terminal.say([f"{len(every)} figures in {seconds / 60:.1f} minutes."], path)


def _table(title: str, columns: Any, rows: Any) -> Any:
    from rich.text import Text

    table = terminal.table(columns, title=title)
    table.columns[0].no_wrap = columns[0] == "figure"
    table.show_lines = "verdict" in columns
    for row in rows:
        table.add_row(*(Text(str(cell), style=VERDICT_COLOURS.get(str(cell), "")) for cell in row))
    return table

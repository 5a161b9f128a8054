"""`mfdl claims`: every statement of the papers that can be tested, tested."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from mfdl import errors, files
from mfdl.commands import terminal
from mfdl.commands.terminal import Answer, command
from mfdl.progress import Progress, reporter
from mfdl.runs.options import Config, Jobs, Option, require_member

from ..facts import markdown_row

if TYPE_CHECKING:
    from mfdl.testing import Claim

JSON_FILE, PAGE = "claims.json", "claims.md"
COLUMNS = ("statement", "verdict", "smallest counterexample", "what is true")
COLOURS = {"holds": "green", "refuted": "red", "untested": "yellow"}


@dataclasses.dataclass(frozen=True)
class ClaimsConfig(Config):
    """Which statements of the papers are tried, and on how many cases.

    Raises: InvalidInput: a number out of range, an unknown claim. MissingExtra: hypothesis is not installed.
    """

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
            require_member("claim", name, known)


def run_claims(config: ClaimsConfig, out: Path | None = None, *, progress: Progress = "auto") -> list[dict[str, Any]]:
    """One row per claim, in the order of the papers; out: a folder for claims.json and claims.md.

    Raises: InvalidInput: a folder that cannot be written.
    """
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
    from ..paper_claims import published_claims

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
    columns = ("claim", "item", *COLUMNS)
    for paper in dict.fromkeys(row["paper"] for row in rows):
        lines += ["", f"## {paper}", "", markdown_row(*columns), markdown_row(*["---"] * len(columns))]
        for row in rows:
            if row["paper"] == paper:
                verdict = f"holds ({row['tried']})" if row["verdict"] == "holds" else row["verdict"]
                refuting = row["counterexample"] or ""
                lines.append(
                    markdown_row(f"`{row['id']}`", row["item"], row["statement"], verdict, refuting, row["erratum"])
                )
    return "\n".join(lines) + "\n"

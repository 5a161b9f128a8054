"""`mfdl claims`: every statement of the papers that can be tested, tested."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import check, files
from ..errors import InvalidInput, unknown_name
from . import options

if TYPE_CHECKING:
    from ..testing import Claim

JSON_FILE, PAGE = "claims.json", "claims.md"


def claims(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID", help="Only this claim; may be repeated.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", help="Cases tried for each claim; default what the claim asks for.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the search; one seed gives one table.")] = 0,
    jobs: options.Jobs = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help=f"Folder for {JSON_FILE} and {PAGE}.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Test what the papers state: claimed bound against truth, on cases that a search draws and shrinks.

    The exit code is 0 when every verdict is the one on record and 1 otherwise.
    """
    try:
        from ..testing import published_claims
    except ImportError as error:
        raise InvalidInput(str(error)) from None
    from ..reporting import output

    if examples is not None:
        check.integer_at_least(1, examples=examples)
    check.integer_at_least(0, seed=seed)
    if jobs is not None:
        check.integer_at_least(1, jobs=jobs)
    known = {claim.id: claim for claim in published_claims()}
    for name in only or []:
        if name not in known:
            raise unknown_name("claim", name, known)
    if out is not None:
        output.require_writable(out / JSON_FILE)
    rows = _run([name for name in known if not only or name in only], examples, seed, jobs)
    if out is not None:
        files.atomic_write_json(out / JSON_FILE, rows)
        files.atomic_write_text(out / PAGE, _page(rows))
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        _print_table(rows)
    if not all(row["as_registered"] for row in rows):
        raise typer.Exit(1)


def _run(names: list[str], examples: int | None, seed: int, jobs: int | None) -> list[dict[str, Any]]:
    """One row per claim, in the order of the papers."""
    import joblib

    parallel = joblib.Parallel(n_jobs=jobs or min(joblib.cpu_count(), len(names)), return_as="generator")
    rows = []
    with options.progress_bar() as bar:
        task = bar.add_task("claims", total=len(names))
        for row in parallel(joblib.delayed(_row)(name, examples, seed) for name in names):
            rows.append(row)
            bar.advance(task)
    return rows


def _row(name: str, examples: int | None, seed: int) -> dict[str, Any]:
    from ..testing import check_claim, published_claims

    claim: Claim = next(claim for claim in published_claims() if claim.id == name)
    began = time.perf_counter()
    result = check_claim(claim, examples=examples, seed=seed)
    return {
        "id": claim.id,
        "paper": claim.paper,
        "item": claim.item,
        "statement": claim.statement,
        "verdict": result.verdict,
        "counterexample": result.counterexample,
        "erratum": claim.erratum,
        "registered": claim.expect,
        "as_registered": result.as_registered,
        "tried": result.tried,
        "seconds": round(time.perf_counter() - began, 2),
    }


COLOURS = {"holds": "green", "refuted": "red", "untested": "yellow"}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_lines=True)
    for column in ("claim", "statement", "verdict", "smallest counterexample", "what is true"):
        table.add_column(column, overflow="fold")
    for row in rows:
        verdict = f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]"
        verdict += f"\n{row['tried']} cases" if row["verdict"] == "holds" else ""
        verdict += "" if row["as_registered"] else f"\n[bold]on record: {row['registered']}[/]"
        where = f"{escape(row['id'])}\n[dim]{escape(row['paper'])}, {escape(row['item'])}[/]"
        table.add_row(
            where, escape(row["statement"]), verdict, escape(row["counterexample"] or ""), escape(row["erratum"])
        )
    options.answers().print(table)
    options.answers().print(_summary(rows))


def _summary(rows: list[dict[str, Any]]) -> str:
    count = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in COLOURS}
    said = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
    other = [row["id"] for row in rows if not row["as_registered"]]
    return f"{len(rows)} claims: {said}; " + (
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
    for paper in dict.fromkeys(row["paper"] for row in rows):
        lines += [
            "",
            f"## {paper}",
            "",
            "| claim | item | statement | verdict | smallest counterexample | what is true |",
        ]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for row in rows:
            if row["paper"] == paper:
                verdict = f"holds ({row['tried']})" if row["verdict"] == "holds" else row["verdict"]
                cells = [f"`{row['id']}`", row["item"], row["statement"], verdict, row["counterexample"] or ""]
                lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in [*cells, row["erratum"]]) + " |")
    return "\n".join(lines) + "\n"

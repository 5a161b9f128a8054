"""`mfdl mechanisms`, `mfdl trust`, `mfdl data` and `mfdl graph`: names and files that the other commands take."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import extensions
from ..errors import InvalidInput, require_known
from ..graphs.file_links import FORMATS, LISTED
from ..runs.option_files import split
from . import terminal

if TYPE_CHECKING:
    from ..training.tasks.file_tasks import FileSummary

SAME: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "rich_markup_mode": None}
trust = typer.Typer(help="Trust models: what an attacker sees and knows.", **SAME)


def mechanisms(
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", metavar="A,B,...", help="Mechanisms to list; default: all.")
    ] = None,
    cite: Annotated[bool, typer.Option("--cite", help="Print BibTeX of the papers of these mechanisms.")] = False,
    as_json: terminal.Json = False,
) -> None:
    """List the mechanisms with their parameters (`--set key=value`), intended trust model, source and erratum."""
    from ..algorithms.registry import MECHANISMS, OF_BALLS_IN_BINS

    every = {**MECHANISMS, **OF_BALLS_IN_BINS}
    names = list(every) if mechanism is None else list(split(mechanism))
    for name in names or [""]:
        require_known("mechanism", name, every)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            **{key: getattr(every[name], key) for key in ("summary", "trust", "paper", "erratum")},
            "models": list(every[name].models),
            "parameters": {key: parameter.type_name for key, parameter in every[name].parameters.items()},
        }
        for name in names
    ]
    if cite:
        _cite(rows, as_json)
    elif as_json:
        terminal.as_one_json_value(rows)
    else:
        _list(rows)


def _list(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        settings = " ".join(f"--set {key}=<{kind}>" for key, kind in row["parameters"].items())
        lines = {"meant for": row["trust"], "source": row["paper"], "mended here": row["erratum"], "options": settings}
        known = {key: words for key, words in lines.items() if words not in ("", "-", "none")}
        terminal.explain(f"{row['name']}: {row['summary']}", known)
    terminal.say(["file:FILE: an encoder or a covariance written by `mfdl factorize --out FILE`."])


def _cite(rows: list[dict[str, Any]], as_json: bool) -> None:
    bibliographies = extensions.every(extensions.CITATIONS)
    if not bibliographies:
        raise InvalidInput(
            "--cite needs the bibliography of mfdl_papers, which comes with mfdl and is not installed here: install "
            "with `pip install mfdl`, or `pip install -e .` in a clone."
        )
    papers = {
        row["name"]: [paper for bibliography in bibliographies for paper in bibliography(row["paper"])] for row in rows
    }
    if as_json:
        cited = {name: list(map(dataclasses.asdict, of_name)) for name, of_name in papers.items()}
        sources = ({"name": row["name"], "source": row["paper"], "papers": cited[row["name"]]} for row in rows)
        terminal.as_one_json_value(list(sources))
        return
    using: dict[str, list[str]] = {}
    for name, of_name in papers.items():
        for paper in of_name:
            using.setdefault(paper.bibtex, []).append(name)
    for bibtex, mechanisms in using.items():
        typer.echo(f"% {', '.join(mechanisms)}\n{bibtex}\n")
    for row in rows:
        if not papers[row["name"]]:
            source = "" if row["paper"] == "-" else f" ({row['paper']})"
            typer.echo(f"% {row['name']}: no paper of its own{source}")


@trust.command("list")
def list_models(as_json: terminal.Json = False) -> None:
    """List the trust models: messages seen, gradients known, noise known."""
    from ..trust.base import MODELS

    rows = [_words(name) for name in MODELS]
    if as_json:
        terminal.as_one_json_value(rows)
        return
    table = terminal.table(("name", "messages seen", "gradients known", "noise known", "options"), title="trust models")
    table.columns[0].no_wrap = True
    for row in rows:
        words = (row[key] for key in ("name", "seen", "gradients_known", "noise_known"))
        table.add_row(*words, "\n".join(row["options"]))
    terminal.answers().print(table, markup=False)


@trust.command()
def explain(
    name: Annotated[str, typer.Argument(help="A name of `mfdl trust list`.")], as_json: terminal.Json = False
) -> None:
    """Explain one trust model."""
    words = _words(name)
    if as_json:
        terminal.as_one_json_value(words)
        return
    named = {"messages seen": "seen", "gradients known": "gradients_known", "noise known": "noise_known"}
    named = {"attacker": "attacker", **named, "released models": "release"}
    lines = {line: words[key] for line, key in named.items()}
    terminal.explain(f"{name}:", {**lines, "options": " or ".join(words["options"]) or "none needed"})


def _words(name: str) -> dict[str, Any]:
    from ..runs.named_nodes import parameter_options
    from ..trust.base import MODELS

    entry = MODELS.entry(name)
    return {
        "name": name,
        "attacker": entry.observer,
        **{key: getattr(entry, key) for key in ("seen", "gradients_known", "noise_known")},
        "options": [option for parameter in entry.signature.values() for option in parameter_options(parameter)],
        "release": entry.release,
    }


app = typer.Typer(help="List and fetch the public data files, inspect your own.", no_args_is_help=True)

DataHome = Annotated[
    Path | None, typer.Option("--data-home", help="Data folder; default: $MFDL_DATA, else the user's cache folder.")
]
STATES = {True: "verified", False: "WRONG CONTENT", None: "present"}
SHOWN_COLUMNS = 40
SHOWN_CLASSES = 12


@app.command("inspect")
def inspect_file(
    text: Annotated[str, typer.Argument(metavar="FILE[:OPTIONS]", help="As of --task: own.csv:target=price,drop=id.")],
    graph: Annotated[
        str | None, typer.Option("--graph", help="Make the task on this graph: records of each node, content hash.")
    ] = None,
    data_home: Annotated[Path | None, typer.Option("--data-home", help="Data folder of named tasks.")] = None,
    as_json: terminal.Json = False,
) -> None:
    """Show what a task reads of a data file: columns, target, kind, classes, records of each node."""
    summary = _summary(text, graph, data_home)
    has_options = summary.path != text.strip()
    if as_json:
        terminal.as_one_json_value(dataclasses.asdict(summary))
    else:
        _show(summary, with_reason=not has_options)
    if summary.refused is not None and has_options:
        raise InvalidInput(summary.refused)


@app.command("list")
def list_files(data_home: DataHome = None, as_json: terminal.Json = False) -> None:
    """Show every data file, whether it is there and whether its checksum agrees."""
    from .. import data

    rows = data.status(data_home)
    folder = data.home(data_home)
    if as_json:
        terminal.as_one_json_value({"data_home": str(folder), "files": [row._asdict() for row in rows]})
        return
    table = terminal.table(("file", "state", "size", "description"), title=f"Data folder {folder}", right=("size",))
    for row in rows:
        state = STATES[row.verified] if row.present else "absent"
        table.add_row(row.name, state, f"{row.size:,}" if row.size else "", row.description)
    terminal.answers().print(table)


@app.command("fetch")
def fetch_files(
    names: Annotated[
        list[str] | None, typer.Argument(help="Files or folders of `mfdl data list`, such as mnist.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every file of the list.")] = False,
    data_home: DataHome = None,
    as_json: terminal.Json = False,
) -> None:
    """Download files that are missing and verify those that are there."""
    if bool(names) == everything:
        raise InvalidInput("mfdl data fetch needs either names or --all; `mfdl data list` shows the names.")
    from .. import data

    rows: list[dict[str, str | None]] = []
    for name in data.names() if everything else data.expand(names or []):
        try:  # one unreachable server does not keep the other files back
            rows.append({"name": name, "path": str(data.fetch(name, data_home)), "error": None})
        except InvalidInput as error:
            rows.append({"name": name, "path": None, "error": str(error)})
    if as_json:
        terminal.as_one_json_value({"data_home": str(data.home(data_home)), "files": rows})
    for row in rows if not as_json else ():
        if row["path"]:
            typer.echo(f"{row['name']}  {row['path']}")
    if failures := [row["error"] for row in rows if row["error"]]:
        raise InvalidInput(" ".join(failures))


def _summary(text: str, graph: str | None, data_home: Path | None) -> FileSummary:
    from ..training import tasks
    from ..training.tasks import file_tasks

    named = text.partition(":")[0].strip() in tasks.names() or file_tasks.parse_module_text(text) is not None
    if not named and (file := file_tasks.parse_file_text(text)) is not None:
        return file_tasks.summary_of_file(file, graph)
    if graph is None:
        raise InvalidInput(f"{text} is made on the nodes of a graph; give one, --graph ring:n=16.")
    return file_tasks.summary_of_task(text, tasks.load(text, graph, data_home))


def _show(summary: FileSummary, with_reason: bool) -> None:
    console = terminal.answers()
    if summary.columns:
        table = terminal.table(
            ("column", "values", "role", "missing"), title=f"{summary.format}, {summary.rows} rows", right=("missing",)
        )
        for column in summary.columns[:SHOWN_COLUMNS]:
            table.add_row(column.name, column.kind, column.role, str(column.missing or ""))
        console.print(table)
    if len(summary.columns) > SHOWN_COLUMNS:
        console.print(f"{len(summary.columns) - SHOWN_COLUMNS} more columns; --json has all.")
    lines = _lines(summary) | ({"no task yet": summary.refused or ""} if with_reason else {})
    terminal.explain(summary.path, {key: value for key, value in lines.items() if value})


def _lines(summary: FileSummary) -> dict[str, str]:
    classes = ", ".join(summary.classes[:SHOWN_CLASSES]) + (", ..." if len(summary.classes) > SHOWN_CLASSES else "")
    fewest, most = summary.records_of_nodes or (0, 0)
    return {
        "target": summary.target or "",
        "kind": summary.kind or "",
        "classes": f"{len(summary.classes)}: {classes}" if classes else "",
        "features": str(summary.features or ""),
        "records": f"{summary.train_records} train, {summary.test_records} test" if summary.train_records else "",
        "train records of a node": f"{fewest} to {most}, on {summary.nodes} nodes" if summary.nodes else "",
        "task": f"{summary.task}, content hash {summary.content_hash}" if summary.task else "",
    }


graph = typer.Typer(help=f"Graph files: {', '.join(item.name for item in FORMATS)}.", no_args_is_help=True)


@graph.callback()
def _group() -> None:
    """Keeps `inspect` a word of the command line while it is the only command."""


@graph.command("inspect", help=f"Show format, nodes, edges and components of a graph file. Formats: {LISTED}.")
def inspect_graph(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As of --graph; also .gz, .bz2 and .xz.")],
    as_json: terminal.Json = False,
) -> None:
    """Show format, nodes, edges and components of a graph file."""
    from .. import graphs
    from ..graphs import graph_files

    if str(file).partition(":")[0] in graphs.names() and not file.exists():
        raise InvalidInput(f"{str(file)!r} is a named graph, and `mfdl graph inspect` reads files; check the path.")
    summary = graph_files.inspect(file, graphs.names())
    if as_json:
        terminal.as_one_json_value(summary)
        return
    summary["first_labels"] = ", ".join(map(repr, summary["first_labels"]))
    terminal.explain(summary.pop("path"), {key.replace("_", " "): str(value) for key, value in summary.items()})

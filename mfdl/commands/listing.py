"""`mfdl mechanisms`, `mfdl trust list`, `mfdl trust explain`: the names that the other commands take."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from .. import extensions
from ..errors import InvalidInput
from ..runs.option_files import split
from ..runs.options import require_one_of
from . import terminal

trust = typer.Typer(
    help="Trust models: what an attacker sees and knows.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


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
        require_one_of("mechanism", name, every)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            **{key: getattr(entry, key) for key in ("summary", "trust", "paper", "erratum")},
            "models": list(entry.models),
            "parameters": {key: parameter.type_name for key, parameter in entry.parameters.items()},
        }
        for name, entry in ((name, every[name]) for name in names)
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
        terminal.explain(
            f"{row['name']}: {row['summary']}", {k: v for k, v in lines.items() if v not in ("", "-", "none")}
        )
    terminal.say(["file:FILE: an encoder or a covariance written by `mfdl factorize --out FILE`."])


def _cite(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Every paper once, below the names of all mechanisms that come from it; as comments of BibTeX, so that a file of
    the output can be read as it is."""
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
        rows_of_papers = {name: [dataclasses.asdict(paper) for paper in cited] for name, cited in papers.items()}
        terminal.as_one_json_value(
            [{"name": r["name"], "source": r["paper"], "papers": rows_of_papers[r["name"]]} for r in rows]
        )
        return
    using: dict[str, list[str]] = {}
    entries = {paper.bibtex: paper for cited in papers.values() for paper in cited}
    for name, cited in papers.items():
        for paper in cited:
            using.setdefault(paper.bibtex, []).append(name)
    for bibtex in entries:
        typer.echo(f"% {', '.join(using[bibtex])}\n{bibtex}\n")
    for name in (name for name, cited in papers.items() if not cited):
        source = next(row["paper"] for row in rows if row["name"] == name)
        typer.echo(f"% {name}: no paper of its own{'' if source == '-' else f' ({source})'}")


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
        table.add_row(
            *(row[key] for key in ("name", "seen", "gradients_known", "noise_known")), "\n".join(row["options"])
        )
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
    lines = {
        "attacker": words["attacker"],
        "messages seen": words["seen"],
        "gradients known": words["gradients_known"],
        "noise known": words["noise_known"],
        "released models": words["release"],
        "options": " or ".join(words["options"]) or "none needed",
    }
    terminal.explain(f"{name}:", lines)


def _words(name: str) -> dict[str, Any]:
    """One trust model, JSON-ready."""
    from ..runs.named_nodes import options_of
    from ..trust.base import MODELS

    entry = MODELS.entry(name)
    return {
        "name": name,
        "attacker": entry.observer,
        **{key: getattr(entry, key) for key in ("seen", "gradients_known", "noise_known")},
        "options": [option for parameter in entry.signature.values() for option in options_of(parameter)],
        "release": entry.release,
    }

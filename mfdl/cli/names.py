"""`mfdl mechanisms`, `mfdl trust list`, `mfdl trust explain`: the names that the other commands take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from .. import extensions
from ..errors import InvalidInput, unknown_name
from ..reporting.options import require_one_of, split
from . import options


@dataclasses.dataclass(frozen=True)
class TrustName:
    """One trust model in words: what the attacker sees and knows, and which options name it."""

    attacker: str
    seen: str
    gradients_known: str
    noise_known: str
    options: tuple[str, ...] = ()
    released: bool = False

    @property
    def release(self) -> str:
        """Whether released models are a part of the view."""
        if self.released:
            return "all final models are part of the view, unless --release says none or average"
        return "released models add nothing, unless some messages are never sent: then they are part of the view"


TRUST: Mapping[str, TrustName] = {
    "ldp": TrustName(
        "anyone who sees all messages and all shared secrets",
        "all",
        "none",
        "every part but what the victim alone holds",
    ),
    "pndp": TrustName(
        "some nodes together, from the messages they receive",
        "those they receive",
        "their own",
        "what they hold",
        ("--attackers A,B", "--all-attackers"),
        released=True,
    ),
    "eavesdropper": TrustName("an outsider on every link", "all", "none", "none"),
    "colluding": TrustName(
        "some nodes together, who see all messages",
        "all",
        "those of the colluders",
        "whatever any of them holds",
        ("--colluders A,B",),
    ),
    "coalitions": TrustName(
        "any q nodes together, who see all messages",
        "all",
        "as SecLDP, for every set of q nodes without the victim",
        "the same",
        ("--coalition-size Q",),
    ),
    "full-collusion": TrustName(
        "all other nodes together, who see all messages",
        "all",
        "all but the victim's",
        "all but what only the victim holds",
    ),
    "central": TrustName(
        "anyone who sees the average of the messages of each round",
        "the average of the messages of each round",
        "none",
        "none",
        released=True,
    ),
    "released": TrustName(
        "anyone who sees the released models", "none; the final models are published", "none", "none", released=True
    ),
}

trust = typer.Typer(
    help="Trust models: what an attacker sees and knows.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def mechanisms(
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", metavar="A,B,...", help="These alone; default: all.")
    ] = None,
    cite: Annotated[bool, typer.Option("--cite", help="BibTeX of the papers that they come from.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the mechanisms with their parameters (`--set key=value`), intended trust model, source and erratum."""
    from ..algorithms.registry import MECHANISMS, OF_SECRET_BINS

    every = {**MECHANISMS, **OF_SECRET_BINS}
    names = list(every) if mechanism is None else list(split(mechanism))
    for name in names or [""]:
        require_one_of("mechanism", name, every)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            **{key: getattr(entry, key) for key in ("summary", "trust", "paper", "erratum")},
            "models": list(entry.models),
            "parameters": {key: kind.__name__ for key, kind in entry.parameters.items()},
        }
        for name, entry in ((name, every[name]) for name in names)
    ]
    if cite:
        _cite(rows, as_json)
    elif as_json:
        options.as_one_json_value(rows)
    else:
        _list(rows)


def _list(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        settings = " ".join(f"--set {key}=<{kind}>" for key, kind in row["parameters"].items())
        lines = {"meant for": row["trust"], "source": row["paper"], "mended here": row["erratum"], "options": settings}
        _explain(f"{row['name']}: {row['summary']}", {k: v for k, v in lines.items() if v not in ("", "-", "none")})
    options.say(["file:FILE: an encoder or a covariance kept by `mfdl factorize --out FILE`."])


def _cite(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Every paper once, below the names of all mechanisms that come from it; as comments of BibTeX, so that a file of
    the output can be read as it is."""
    bibliographies = extensions.every(extensions.CITATIONS)
    if not bibliographies:
        raise InvalidInput(
            "--cite needs the bibliography of mfdl_papers, which comes with mfdl and is not installed here: install "
            "with `pip install mfdl`, or `pip install -e .` in a clone."
        )
    papers = {row["name"]: [paper for cited in bibliographies for paper in cited(row["paper"])] for row in rows}
    if as_json:
        of = {name: [dataclasses.asdict(paper) for paper in found] for name, found in papers.items()}
        options.as_one_json_value([{"name": r["name"], "source": r["paper"], "papers": of[r["name"]]} for r in rows])
        return
    using: dict[str, list[str]] = {}
    entries = {paper.bibtex: paper for found in papers.values() for paper in found}
    for name, found in papers.items():
        for paper in found:
            using.setdefault(paper.bibtex, []).append(name)
    for bibtex in entries:
        typer.echo(f"% {', '.join(using[bibtex])}\n{bibtex}\n")
    for name in (name for name, found in papers.items() if not found):
        source = next(row["paper"] for row in rows if row["name"] == name)
        typer.echo(f"% {name}: no paper of its own{'' if source == '-' else f' ({source})'}")


@trust.command("list")
def list_trust(as_json: options.Json = False) -> None:
    """List the trust models: messages seen, gradients known, noise known."""
    if as_json:
        options.as_one_json_value([_as_json(name) for name in TRUST])
        return
    columns = ("name", "messages seen", "gradients known", "noise known", "options")
    table = options.table(columns, title="trust models")
    table.columns[0].no_wrap = True
    for name, words in TRUST.items():
        table.add_row(name, words.seen, words.gradients_known, words.noise_known, "\n".join(words.options))
    options.answers().print(table, markup=False)


@trust.command("explain")
def explain(
    name: Annotated[str, typer.Argument(help="A name of `mfdl trust list`.")], as_json: options.Json = False
) -> None:
    """Explain one trust model."""
    if name not in TRUST:
        raise unknown_name("trust model", name, TRUST)
    if as_json:
        options.as_one_json_value(_as_json(name))
        return
    words = TRUST[name]
    lines = {
        "attacker": words.attacker,
        "messages seen": words.seen,
        "gradients known": words.gradients_known,
        "noise known": words.noise_known,
        "released models": words.release,
        "options": " or ".join(words.options) or "none needed",
    }
    _explain(f"{name}:", lines)


def _explain(head: str, lines: Mapping[str, str]) -> None:
    console = options.answers()
    console.print(head, markup=False, highlight=False)
    for key, value in lines.items():
        console.print(f"  {key}: {value}", markup=False, highlight=False, soft_wrap=True)


def _as_json(name: str) -> dict[str, object]:
    words = TRUST[name]
    plain = {field.name: getattr(words, field.name) for field in dataclasses.fields(words) if field.name != "released"}
    return {"name": name, **plain, "release": words.release, "options": list(words.options)}

"""The one table of what the papers state: each statement, whether it holds, and what is true instead.

In: `PAPER/facts.toml`, one table per fact; `papers.bib`. Claims, published bounds and tests take their words from here;
whether they are right is decided by the searches of `mfdl.testing.claims` and by the tests that a fact names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mfdl.errors import unknown_name
from mfdl.extensions import Citation
from mfdl.runs.option_files import OptionFile

PAPERS = ("mafalda", "decor", "corn", "whisper", "muffliato", "zip_dl", "random_walk", "gdp", "balls_in_bins")
KINDS = ("privacy", "utility", "notation", "reproduction")
COLUMNS = ("claim", "item", "printed or coded", "verdict", "what is true", "tests")


@dataclass(frozen=True)
class Paper:
    """A paper in one version.

    Attributes: arxiv: its number, with the version where versions differ; empty for statements of this library.
        not_used: what is printed or coded differently than meant, and matters to nothing here.
    """

    name: str
    arxiv: str
    not_used: str = ""

    def __str__(self) -> str:
        return f"{self.name}, arXiv:{self.arxiv}" if self.arxiv else self.name


@dataclass(frozen=True)
class Fact:
    """One statement of a paper or of its public code.

    Attributes:
        states: what is printed or coded, as one sentence; holds: whether that is so, as far as is known.
        true: what is true instead; a remark where the statement holds.
        kind: for what a paper has wrong: "privacy" (following it under-reports the loss, or claims what does not
            hold), "utility", "notation" or "reproduction" (needed only to meet published numbers); else empty.
        counterexample: the smallest case that refutes the claim of this id, in words; empty without such a claim.
        tests: those that show what is true beyond the claim, "tests/...py::test_...".
    """

    id: str
    paper: Paper
    item: str
    states: str
    holds: bool
    true: str = ""
    kind: str = ""
    counterexample: str = ""
    tests: tuple[str, ...] = ()

    @property
    def is_claim(self) -> bool:
        """Whether `mfdl.testing.claims` searches for a case that refutes it."""
        return self.holds or bool(self.counterexample)


def toml_table(paper: str, kind: str) -> dict[str, Any]:
    return OptionFile(Path(__file__).parent / paper / f"{kind}.toml").content


@functools.cache
def all_facts() -> Mapping[str, Fact]:
    """All facts by id, paper by paper."""
    table: dict[str, Fact] = {}
    for name in PAPERS:
        entries = toml_table(name, "facts")
        paper = Paper(entries.pop("name"), entries.pop("arxiv"), entries.pop("not_used", ""))
        for id, entry in entries.items():
            if id in table or entry.get("kind", KINDS[0]) not in KINDS:
                raise RuntimeError(f"fact {id!r} is there twice or of no kind of {', '.join(KINDS)}.")
            table[id] = Fact(id, paper, **{**entry, "tests": tuple(entry.get("tests", ()))})
    return MappingProxyType(table)


def fact(id: str) -> Fact:
    """The fact of this name. Raises: InvalidInput: there is none."""
    if id not in all_facts():
        raise unknown_name("fact", id, all_facts())
    return all_facts()[id]


def errata(*ids: str) -> str:
    """What is true instead, one sentence a fact; the words of a `PublishedBound`."""
    return " ".join(f"{fact(id).item}: {fact(id).true}." for id in ids)


def claims_tables(cases: Mapping[str, int]) -> str:
    """Every fact in one table a paper, and the parts of the papers that are not used, in Markdown.

    Args: cases: how many cases the search of each claim tries, by id.
    """
    lines = []
    papers = list(dict.fromkeys(row.paper for row in all_facts().values()))
    for paper in papers:
        rows = [row for row in all_facts().values() if row.paper == paper]
        lines += [f"## {paper}", "", *markdown_head(*COLUMNS)]
        lines += [*(_row(row, cases.get(row.id, 0)) for row in rows), ""]
    unused = [f"- {paper.arxiv}: {paper.not_used}." for paper in papers if paper.not_used]
    return "\n".join([*lines, "## Not used here", "", *unused, ""])


def corrections(paper: str) -> str:
    """What one paper, or its public code, has wrong otherwise than in notation, as one table in Markdown."""
    rows = [row for row in all_facts().values() if row.paper.name == paper]
    if not rows:
        raise unknown_name("paper", paper, {row.paper.name for row in all_facts().values()})
    wrong = [row for row in rows if not row.holds and row.kind != "notation"]
    lines = markdown_head("in what respect", "item", "printed or coded", "what is true", "shown by")
    for row in sorted(wrong, key=lambda row: KINDS.index(row.kind)):
        claim = [f"`mfdl claims --only {row.id}`"] if row.is_claim else []
        evidence = ", ".join([*claim, *(f"`{name}`" for name in row.tests)])
        lines.append(markdown_row(row.kind, row.item, row.states, row.true, evidence))
    return "\n".join(lines)


def _row(row: Fact, cases: int) -> str:
    verdict = (f"holds ({cases} cases)" if cases else "holds") if row.holds else "refuted" if row.is_claim else "wrong"
    true = row.true + f" ({row.counterexample})" if row.counterexample else row.true
    id, tests = f"`{row.id}`" if row.is_claim else "", ", ".join(f"`{name}`" for name in row.tests)
    return markdown_row(id, row.item, row.states, verdict + (f"; {row.kind}" if row.kind else ""), true, tests)


def markdown_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def markdown_head(*columns: str) -> list[str]:
    """First two rows of a table."""
    return [markdown_row(*columns), markdown_row(*["---"] * len(columns))]


BIBLIOGRAPHY = Path(__file__).parent / "papers.bib"

_NUMBER = re.compile(r"\b(\d{4}\.\d{5})(?:v\d+)?\b")
_ENTRY = re.compile(r"^@\w+\{(?P<key>\w+),.*?^\}", re.DOTALL | re.MULTILINE)
_EPRINT = re.compile(r"eprint\s*=\s*\{(\d{4}\.\d{5})\}")


@functools.cache
def bibliography() -> Mapping[str, Citation]:
    """All entries by arXiv number."""
    entries = _ENTRY.finditer(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    cited = (Citation(number, entry["key"], entry[0]) for entry in entries for number in _EPRINT.findall(entry[0]))
    return MappingProxyType({citation.arxiv: citation for citation in cited})


def numbers_in(words: str) -> list[str]:
    """The arXiv numbers that a text names, in its order.

    >>> numbers_in("arXiv:2501.14644v2, problem (9), and 2405.01031")
    ['2501.14644', '2405.01031']
    """
    return list(dict.fromkeys(_NUMBER.findall(words)))


def cited(words: str) -> list[Citation]:
    """The papers that a text names by arXiv number and that the bibliography holds."""
    return [bibliography()[number] for number in numbers_in(words) if number in bibliography()]

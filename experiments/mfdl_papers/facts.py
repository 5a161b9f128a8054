"""The one table of what the papers state: each statement, whether it holds, and what is true instead.

In: `PAPER/facts.toml`, one table per fact. Out: `all_facts`, by id, and `docs/errata.md` made of them, which
`python -m mfdl_papers.facts` writes out. Claims, published bounds and tests take their words from here; whether
they are right is decided by the searches of `mfdl.testing.claims` and by the tests that a fact names.
"""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mfdl.errors import unknown_name

PAPERS = ("mafalda", "decor", "corn", "whisper", "muffliato", "zip_dl", "random_walk", "gdp", "secret_bins")
KINDS = ("privacy", "utility", "notation", "reproduction")


@dataclass(frozen=True)
class Paper:
    """A paper in one version.

    Attributes: name: in words. arxiv: its number there, with the version where versions differ; empty for statements
        of this library. not_used: what is printed or coded differently than meant, and matters to nothing here.
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
        id: its stable name. paper, item: where it is stated.
        states: what is printed or coded, as one sentence.
        holds: whether that is so, as far as is known.
        true: what is true instead; a remark where the statement holds.
        kind: for what `docs/errata.md` lists: "privacy" (following it under-reports the loss, or claims what does not
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


@functools.cache
def all_facts() -> Mapping[str, Fact]:
    """All of them by id, paper by paper."""
    table: dict[str, Fact] = {}
    for name in PAPERS:
        text = (Path(__file__).parent / name / "facts.toml").read_text(encoding="utf-8")
        entries = tomllib.loads(text)
        paper = Paper(entries.pop("name"), entries.pop("arxiv"), entries.pop("not_used", ""))
        for id, entry in entries.items():
            if id in table or entry.get("kind", KINDS[0]) not in KINDS:
                raise RuntimeError(f"fact {id!r} is there twice or of no kind of {', '.join(KINDS)}.")
            table[id] = Fact(id, paper, **{**entry, "tests": tuple(entry.get("tests", ()))})
    return MappingProxyType(table)


def fact(id: str) -> Fact:
    """The fact of this name.

    Raises: InvalidInput: there is none.
    """
    if id not in all_facts():
        raise unknown_name("fact", id, all_facts())
    return all_facts()[id]


def errata(*ids: str) -> str:
    """What is true instead, of these facts, one sentence each; the words of a `PublishedBound`."""
    return " ".join(f"{fact(id).item}: {fact(id).true}." for id in ids)


HEAD = """# What the papers have wrong

Made by `python -m mfdl_papers.facts` of the tables `experiments/mfdl_papers/*/facts.toml`, which published bounds and
claims read as well. The library implements the corrected form of everything below; `mfdl_papers` has some of the
published numbers for comparison, each marked with what is known about it. A row says what is printed in the paper, or
coded in its public code, and what is true. A claim is searched for its smallest counterexample by `mfdl claims`, see
[claims.md](claims.md); the tests named fail if what is said to be true is not so. Kinds: **privacy** (following it
under-reports the loss, or claims what does not hold), **utility** (a worse or wrong error, or a wrong statement about
it), **notation** (formulas that do not say what is meant), **reproduction** (needed only to meet published numbers).
Of secret bins, which are this library's own, there stand statements close to the theorem that are false.

Letters: [notation.md](notation.md). L is log(1 / delta) in budgets and the smoothness in rates; delta = 1e-5.
"""


def errata_page() -> str:
    """`docs/errata.md`: the facts that have a kind, paper by paper, and what of the papers is not used."""
    lines = [HEAD]
    papers = list(dict.fromkeys(row.paper for row in all_facts().values()))
    for paper in papers:
        rows = [row for row in all_facts().values() if row.paper == paper and row.kind]
        if rows:
            lines += [f"## {paper.name}" + (f": arXiv:{paper.arxiv}" if paper.arxiv else ""), ""]
            lines += [markdown_row("item", "printed or coded", "what is true", "kind", "claim, tests")]
            lines += [markdown_row(*["---"] * 5), *map(_row, rows), ""]
    unused = [f"- {paper.arxiv}: {paper.not_used}." for paper in papers if paper.not_used]
    return "\n".join([*lines, "## Not used here", "", *unused, ""])


def _row(row: Fact) -> str:
    shown = [f"`{name}`" for name in ([row.id] if row.is_claim else []) + list(row.tests)]
    return markdown_row(row.item, row.states, row.true, row.kind, ", ".join(shown))


def markdown_row(*cells: str) -> str:
    """One row of a table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(errata_page())

"""The table of facts, and the bibliography with `mfdl mechanisms --cite`, which finds it."""

import ast
import functools
import json
import re
from pathlib import Path

import pytest
from effort import FEWEST, examples
from vocabulary import refuses

from mfdl.algorithms.registry import MECHANISMS, OF_BALLS_IN_BINS
from mfdl.commands import main
from mfdl.testing import check_claim
from mfdl_papers import all_facts, errata, fact, facts, published_claims
from mfdl_papers.facts import KINDS, claims_tables, corrections, markdown_row

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claim in published_claims()}


@functools.cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("id", all_facts())
def test_every_fact_is_a_claim_or_names_a_test_that_exists(id):
    row = fact(id)
    assert row.is_claim == (id in CLAIMS)
    assert row.is_claim or row.tests
    assert row.true or row.holds
    assert row.kind or row.holds  # what does not hold is on the page
    assert len(row.states) <= 120
    for name in row.tests:
        path, _, function = name.partition("::")
        assert function in functions_of(ROOT / path), f"there is no {name}"


def test_every_claim_says_what_the_table_says():
    assert len(CLAIMS) >= 103
    assert {id for id, row in all_facts().items() if row.is_claim} == set(CLAIMS)
    for id, claim in CLAIMS.items():
        row = all_facts()[id]
        texts = (claim.paper, claim.item, claim.statement, claim.expect == "holds", claim.erratum)
        assert texts == (str(row.paper), row.item, row.states, row.holds, row.true)


def test_the_page_of_claims_has_every_fact_its_verdict_and_its_tests():
    page = claims_tables({id: claim.examples for id, claim in CLAIMS.items()})
    rows = [cells_of(line) for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] not in ("claim", "---")]
    for (id, *cells), row in zip(rows, all_facts().values(), strict=True):
        assert id.strip("`") == (row.id if row.is_claim else "")
        counterexample = f" ({row.counterexample})" if row.counterexample else ""
        assert (cells[0], cells[1], cells[3]) == (row.item, row.states, row.true + counterexample)
        verdict, _, kind = cells[2].partition("; ")
        assert re.fullmatch(r"holds( \(\d+ cases\))?" if row.holds else "refuted|wrong", verdict), id
        assert (kind, cells[4].replace("`", "")) == (row.kind, ", ".join(row.tests))


def cells_of(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("paper", sorted({fact.paper.name for fact in all_facts().values()}))
def test_the_corrections_of_a_paper_are_its_wrong_facts_with_what_shows_them(paper):
    table = corrections(paper)
    wrong = [row for row in all_facts().values() if row.paper.name == paper and not row.holds]
    rows = [row for row in wrong if row.kind != "notation"]
    lines = table.splitlines()[2:]
    assert len(lines) == len(rows)
    for row in rows:
        (line,) = (line for line in lines if markdown_row(row.kind, row.item, row.states)[:-2] in line)
        assert all(name in line for name in (row.tests or [f"--only {row.id}"]))
    order = [KINDS.index(line.split("|")[1].strip()) for line in lines]
    assert order == sorted(order)


def test_unknown_facts_and_papers_are_refused_and_errata_are_sentences():
    refuses("unknown paper 'MAFALD'; did you mean", corrections, "MAFALD")
    refuses("did you mean 'whisper-10'", fact, "whisper-1")
    assert errata("whisper-10") == "(10): the inequality is reversed: vanishing noise is feasible, with objective 0."


REFUTED = [id for id, row in all_facts().items() if row.counterexample]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "seed"), [(id, 0) for id in REFUTED] + [(id, 1) for id in REFUTED if id.startswith("decor-")]
)
def test_what_is_said_to_be_refuted_is_found(id, seed):
    result = check_claim(CLAIMS[id], seed=seed)
    assert result.as_registered, str(result)
    assert len(result.counterexample) < 160


@pytest.mark.parametrize("id", [id for id, row in all_facts().items() if row.holds])
def test_what_is_said_to_hold_is_not_refuted(id):
    result = check_claim(CLAIMS[id], examples=examples(CLAIMS[id].examples).max_examples, seed=1)
    assert result.as_registered, str(result)
    assert result.tried >= FEWEST


EVERY = {**MECHANISMS, **OF_BALLS_IN_BINS}
NO_PAPER = {"none", "mafalda-bins", "kronecker-bins", "kronecker", "per-mode", "joint", "two-hop-dsgd", "trust-optimal"}


def test_every_mechanism_has_an_entry_or_none_of_its_own(capsys):
    assert main(["mechanisms", "--cite", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(EVERY)
    assert {row["name"] for row in rows if not row["papers"]} == NO_PAPER
    for row in rows:
        assert row["source"] == EVERY[row["name"]].paper
        assert [paper["arxiv"] for paper in row["papers"]] == facts.numbers_in(row["source"])


def test_bibtex_has_every_paper_once_with_the_mechanisms_above(capsys):
    assert main(["mechanisms", "--cite"]) == 0
    output = capsys.readouterr().out
    cited = {paper.bibtex for entry in EVERY.values() for paper in facts.cited(entry.paper)}
    assert all(output.count(bibtex) == 1 for bibtex in cited)
    for name in NO_PAPER:
        assert f"% {name}: no paper of its own" in output
    outside = re.sub(r"^@.*?^\}", "", output, flags=re.DOTALL | re.MULTILINE)
    assert all(line.startswith("%") for line in outside.splitlines() if line)  # comments: a .bib file as it is


def test_one_mechanism_alone(capsys):
    assert main(["mechanisms", "--mechanism", "corn,decor", "--cite"]) == 0
    output = capsys.readouterr().out
    assert re.findall(r"eprint\s*=\s*\{(.*?)\}", output) == ["2501.14644", "2405.01031"]
    assert main(["mechanisms", "--mechanism", "bsr"]) == 0
    assert "bsr: Banded" in capsys.readouterr().out
    assert main(["mechanisms", "--mechanism", "cor", "--cite"]) == 2
    assert "did you mean 'corn'?" in capsys.readouterr().err


def test_entries_are_whole():
    keys = [paper.key for paper in facts.bibliography().values()]
    assert len(set(keys)) == len(keys) == facts.BIBLIOGRAPHY.read_text(encoding="utf-8").count("@")
    for number, paper in facts.bibliography().items():
        assert paper.bibtex.count("{") == paper.bibtex.count("}")
        for field in ("title", "author", "year", "eprint"):
            assert re.search(rf"^  {field}\s*= \{{", paper.bibtex, re.MULTILINE), (number, field)

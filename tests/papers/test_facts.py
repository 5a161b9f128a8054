"""The table of facts: its pages, the verdict on each statement, and that each row is shown by something that runs."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from effort import FEWEST, examples

from mfdl.errors import InvalidInput
from mfdl.testing import check_claim
from mfdl_papers import all_facts, errata, fact, published_claims
from mfdl_papers.facts import claims_tables

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
        said = (claim.paper, claim.item, claim.statement, claim.expect == "holds", claim.erratum)
        assert said == (str(row.paper), row.item, row.states, row.holds, row.true)


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


def test_unknown_facts_are_refused_and_errata_are_sentences():
    with pytest.raises(InvalidInput, match="did you mean 'whisper-10'"):
        fact("whisper-1")
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

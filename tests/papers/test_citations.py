"""The bibliography and `mfdl mechanisms --cite`, which finds it."""

import json
import re

from mfdl.algorithms.registry import MECHANISMS, OF_SECRET_BINS
from mfdl.cli import main
from mfdl_papers import citations

EVERY = {**MECHANISMS, **OF_SECRET_BINS}
NO_PAPER = {"none", "mafalda-bins", "time-space-bins", "time-space", "adapted", "space-time", "two-hop-dsgd"}


def test_every_mechanism_has_an_entry_or_none_of_its_own(capsys):
    """Whatever number a source names is in the bibliography, so that a new mechanism brings its paper along."""
    assert main(["mechanisms", "--cite", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(EVERY)
    assert {row["name"] for row in rows if not row["papers"]} == NO_PAPER
    for row in rows:
        assert row["source"] == EVERY[row["name"]].paper
        assert [paper["arxiv"] for paper in row["papers"]] == citations.numbers_in(row["source"])


def test_bibtex_has_every_paper_once_with_the_mechanisms_above(capsys):
    assert main(["mechanisms", "--cite"]) == 0
    said = capsys.readouterr().out
    cited = {paper.bibtex for entry in EVERY.values() for paper in citations.cited(entry.paper)}
    assert all(said.count(bibtex) == 1 for bibtex in cited)
    for name in NO_PAPER:
        assert f"% {name}: no paper of its own" in said
    outside = re.sub(r"^@.*?^\}", "", said, flags=re.DOTALL | re.MULTILINE)
    assert all(line.startswith("%") for line in outside.splitlines() if line)  # comments: a .bib file as it is


def test_one_mechanism_alone(capsys):
    assert main(["mechanisms", "--mechanism", "corn,decor", "--cite"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"eprint\s*=\s*\{(.*?)\}", said) == ["2501.14644", "2405.01031"]
    assert main(["mechanisms", "--mechanism", "bsr"]) == 0
    assert "bsr: Banded" in capsys.readouterr().out
    assert main(["mechanisms", "--mechanism", "cor", "--cite"]) == 2
    assert "did you mean 'corn'?" in capsys.readouterr().err


def test_entries_are_whole():
    keys = [paper.key for paper in citations.bibliography().values()]
    assert len(set(keys)) == len(keys) == citations.BIBLIOGRAPHY.read_text(encoding="utf-8").count("@")
    for number, paper in citations.bibliography().items():
        assert paper.bibtex.count("{") == paper.bibtex.count("}")
        for field in ("title", "author", "year", "eprint"):
            assert re.search(rf"^  {field}\s*= \{{", paper.bibtex, re.MULTILINE), (number, field)

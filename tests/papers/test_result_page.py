"""Stored results: every verdict is computed anew from its numbers, and tables and pages come from nothing else."""

import csv
import io
import json
from pathlib import Path

import pytest
from refusals import refuses

from mfdl.commands import main
from mfdl_papers.figures import FIGURES, Reproduction, RunScale, Verdict, named, result_page
from mfdl_papers.figures.verdicts import Effect

DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "reproduced"
RESULTS = sorted(STORED.glob("*.json"))


def rows_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def near(value):
    """The value as JSON with its floats up to rounding: since Python 3.12 `sum` rounds otherwise."""
    if isinstance(value, dict):
        return {key: near(item) for key, item in value.items()}
    if isinstance(value, list):
        return [near(item) for item in value]
    return pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_stored_verdict_follows_from_its_stored_effects(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == result["name"] + "-quick" * result["quick"]
    figure = named(result["name"])
    assert result_page.checked(figure, path) == result
    for part in result["claims"]:
        again = Verdict.of_result(part)
        assert again.result() == near(part)
    assert result["command"].split()[:3] == ["mfdl", "reproduce", figure.name]
    assert result["seconds"] > 0
    assert "/" not in result["command"] + result["machine"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_costs_of_the_list_are_those_measured(path):
    """Within a factor of four: machines differ, and are shared. Runs that another figure has trained cost nothing."""
    result = json.loads(path.read_text(encoding="utf-8"))
    figure = named(result["name"])
    listed = figure.quick_minutes if result["quick"] else figure.full_minutes
    factor = 60 * listed / result["seconds"]
    assert factor >= 1 / 4
    assert factor <= 4 or figure.cost_note.startswith("nothing after")


def test_tables_of_the_docs_are_those_of_the_stored_results(tmp_path):
    results = result_page.stored_results(STORED)
    assert len(results) == len({path.stem.removesuffix("-quick") for path in RESULTS})
    for path in result_page.write_tables(results, tmp_path):
        assert (STORED / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    rows = [row for path in tmp_path.glob("*.csv") for row in rows_of(path)]
    claims = sum(len(result["claims"]) for result in results.values())
    assert len(rows) == claims + len(FIGURES) - len(results)


def stored(folder, *, quick=False, name="decor-2"):
    part = Verdict("a <claim>", [Effect.sampled("x", [0.1, 0.12, 0.11])], "ours")
    done = Reproduction(
        named(name), RunScale(out=folder, quick=quick), [part], settings={"seeds": [1, 2, 3]}, seconds=2
    )
    return done.write()[0]


def test_a_page_and_tables_of_a_folder(tmp_path, capsys):
    stored(tmp_path, quick=True)
    stored(tmp_path)
    assert main(["reproduce", "--page", "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "decor-2", "verdict": "confirmed"}]
    page = (tmp_path / "reproduced.html").read_text(encoding="utf-8")
    for text in ("a &lt;claim&gt;", "`mfdl reproduce decor-2`, 3 seeds", f"1 of {len(FIGURES)} figures: 1 confirmed."):
        assert text in page
    for figure in FIGURES.values():
        assert figure.figure in page
    (first, *_) = rows_of(tmp_path / "reproduced_decor.csv")
    assert first["verdict"] == "not run"
    assert main(["reproduce", "--page", "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result.update(verdict="refuted"), "'refuted'"),
        (lambda result: result["claims"][0].update(verdict="refuted"), "refuted"),
        (lambda result: result["claims"][0]["effects"][0].update(values=[-0.1, -0.2, -0.15]), "'confirmed'"),
        (lambda result: result.update(claim="another"), "'another'"),
        (lambda result: result.pop("machine"), "no result of this version"),
    ],
)
def test_a_result_that_does_not_follow_from_its_numbers_is_refused(change, message, tmp_path):
    path = stored(tmp_path)
    result = json.loads(path.read_text(encoding="utf-8"))
    change(result)
    path.write_text(json.dumps(result), encoding="utf-8")
    refuses(message, result_page.stored_results, tmp_path)


def test_a_folder_without_results_is_refused(tmp_path, capsys):
    assert main(["reproduce", "--page", "--out", str(tmp_path)]) == 2
    assert "run `mfdl reproduce all" in " ".join(capsys.readouterr().err.split())

"""Published figures by one command: the list, one figure, all of them, and bad input."""

import dataclasses
import json

import pytest
from refusals import refuses

from mfdl.commands import main
from mfdl.errors import InvalidInput
from mfdl_papers.figures import (
    FIGURES,
    PublishedFigure,
    Reproduction,
    RunScale,
    Table,
    Verdict,
    names,
    reproduce,
    verdicts,
)
from mfdl_papers.figures.verdicts import Effect

LISTED = {"name", "paper", "figure", "claim", "quick_minutes", "full_minutes", "full_cost", "data"}
ANSWERED = {
    "name", "paper", "figure", "claim", "value", "verdict", "quick", "claims", "deviations", "missing", "seconds",
    "full_cost", "tables", "settings", "numbers", "versions", "command", "date", "machine",
}  # fmt: skip


def half(figure, scale):
    """A figure of two parts, of which one holds."""
    parts = (
        Verdict("a", [Effect.sampled("here", [2.0, 2.1], 1.0)], "2x", 2.0, 0.5),
        Verdict("b", [Effect.exact("there", -1.0)], "none", float("inf")),
    )
    return Reproduction(figure, scale, parts, [Table("t", ("x", "y"), [("1", "2")])], missing=["a graph: no file"])


def lacking(figure, scale):
    raise InvalidInput("no file; bring it.")


def broken(figure, scale):
    raise ZeroDivisionError("of ours")


@pytest.fixture
def figures(monkeypatch):
    """Three made-up figures in place of the published ones."""
    of = "P", "Figure 1", "It holds", 0.1, 1 / 60
    invented = [
        PublishedFigure(name, *of, f"figures.verdicts:{name}", deviations=("other data",))
        for name in ("half", "lacking", "broken")
    ]
    for run in (half, lacking, broken):
        monkeypatch.setattr(verdicts, run.__name__, run, raising=False)
    registry = {figure.name: figure for figure in invented}
    for module in ("published_figures", "result_page"):
        monkeypatch.setattr(f"mfdl_papers.figures.{module}.FIGURES", registry)
    monkeypatch.setattr("mfdl_papers.figures.FIGURES", registry)
    return registry


def test_the_list_has_one_object_for_each_figure(capsys):
    assert main(["reproduce", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(FIGURES) == list(names())
    for row in rows:
        assert set(row) == LISTED
        assert row["quick_minutes"] > 0
        assert all(row[key] for key in LISTED - {"data"})
    assert main(["reproduce", "--list"]) == 0
    assert "mafalda-2" in capsys.readouterr().out


def test_every_figure_names_code_that_is_there():
    for figure in FIGURES.values():
        module, _, function = figure.code.partition(":")
        assert callable(getattr(__import__(f"mfdl_papers.{module}", fromlist=[function]), function))


def test_one_figure_as_json_as_words_and_in_its_file(figures, tmp_path, capsys):
    assert main(["reproduce", "half", "--json", "--out", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == ANSWERED
    assert (answer["claim"], answer["value"], answer["verdict"]) == ("It holds", "2x; none", "refuted")
    part = answer["claims"][0]
    assert (part["claim"], part["verdict"], part["finding"], part["value"]) == ("a", "confirmed", "2x", 2.0)
    assert part["effects"][0]["values"] == [2.0, 2.1]
    assert answer["claims"][1]["value"] == "inf"
    assert json.loads((tmp_path / "half.json").read_text("utf-8")) == answer
    assert main(["reproduce", "half", "--quick", "--out", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for text in ("(quick): refuted", "Deviation: other data", "Missing: a graph: no file", "takes 1 s"):
        assert text in output
    assert (tmp_path / "half-quick.json").exists()


def test_all_goes_on_past_missing_data_and_errors_and_keeps_the_traceback(figures, tmp_path, capsys):
    assert main(["reproduce", "all", "--json", "--out", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["refuted", "not run", "not run"]
    assert rows[1]["missing"] == ["no file; bring it."]
    assert "ZeroDivisionError: of ours" in rows[2]["value"]
    assert "no file; bring it." in (tmp_path / "reproduced.html").read_text("utf-8")
    assert "in broken" in (tmp_path / "broken.error.txt").read_text("utf-8")
    assert json.loads((tmp_path / "reproduced.json").read_text("utf-8")) == rows
    del figures["broken"]
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0
    assert "2 figures in 0.0 minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs the name of a figure, or all, or --list"),
        (["mafalda-2", "--list"], "needs the name of a figure, or all, or --list"),
        (["mafalda2"], "did you mean 'mafalda-2'?"),
        (["mafalda-2", "--engine", "spark"], "unknown engine 'spark'"),
        (["mafalda-2", "--jobs", "0"], "jobs must be"),
        (["mafalda-2", "--peertube", "nowhere.csv"], "'nowhere.csv' does not exist"),
    ],
)
def test_bad_input_is_answered_before_any_work(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("mfdl_papers.figures.published_figures.PublishedFigure.run", lambda *_: pytest.fail("worked"))
    assert main(["reproduce", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("mfdl_papers.figures.published_figures.PublishedFigure.run", lambda *_: pytest.fail("worked"))
    (tmp_path / "file").touch()
    refuses("it is a file", lambda: reproduce("mafalda-2", RunScale(out=tmp_path / "file")))


def test_a_scale_picks_by_quick():
    assert RunScale().pick(2, 20) == 20
    assert dataclasses.replace(RunScale(), quick=True).pick(2, 20) == 2

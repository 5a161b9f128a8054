"""Published figures by one command, and verdicts on orders of curves, from numbers on each side of every rule."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

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
    paired_verdicts,
    reproduce,
    verdicts,
)

LISTED = {"name", "paper", "figure", "claim", "quick_minutes", "full_cost", "data"}
ANSWERED = {
    "name", "paper", "figure", "claim", "value", "verdict", "quick", "claims", "deviations", "missing", "seconds",
    "full_cost", "tables", "settings", "numbers", "versions",
}  # fmt: skip


def half(figure, scale):
    """A figure of two parts, of which one holds."""
    parts = (Verdict("a", "confirmed", "2x", 2.0, 0.5), Verdict("b", "refuted", "none", float("inf")))
    return Reproduction(figure, scale, parts, [Table("t", ("x", "y"), [("1", "2")])], missing=["a graph: no file"])


def lacking(figure, scale):
    raise InvalidInput("no file; bring it.")


def broken(figure, scale):
    raise ZeroDivisionError("of ours")


@pytest.fixture
def figures(monkeypatch):
    """Three made-up figures in place of the published ones."""
    of = "P", "Figure 1", "It holds", 0.1, "takes a second"
    invented = [
        PublishedFigure(name, *of, f"figures.verdicts:{name}", deviations=("other data",))
        for name in ("half", "lacking", "broken")
    ]
    for run in (half, lacking, broken):
        monkeypatch.setattr(verdicts, run.__name__, run, raising=False)
    registry = {figure.name: figure for figure in invented}
    for module in ("published_figures", "reproduction"):
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
    assert answer["claims"][0] == {"claim": "a", "verdict": "confirmed", "said": "2x", "value": 2.0, "spread": 0.5}
    assert answer["claims"][1]["value"] == "inf"
    assert json.loads((tmp_path / "half.json").read_text("utf-8")) == answer
    assert main(["reproduce", "half", "--quick", "--out", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for text in ("(quick): refuted", "Deviation: other data", "Missing: a graph: no file", "takes a second"):
        assert text in output
    assert (tmp_path / "half-quick.json").exists()


def test_all_goes_on_past_missing_data_and_errors_and_keeps_the_traceback(figures, tmp_path, capsys):
    assert main(["reproduce", "all", "--json", "--out", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["refuted", "not run", "not run"]
    assert rows[1]["missing"] == ["no file; bring it."]
    assert "ZeroDivisionError: of ours" in rows[2]["value"]
    assert "in broken" in (tmp_path / "broken.error.txt").read_text("utf-8")
    assert json.loads((tmp_path / "reproduced.json").read_text("utf-8")) == rows
    del figures["broken"]
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0
    assert "2 figures in 0.0 minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs the name of a figure, or all"),
        (["mafalda-2", "--list"], "needs the name of a figure, or all"),
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
    with pytest.raises(InvalidInput, match="it is a file"):
        reproduce("mafalda-2", RunScale(out=tmp_path / "file"))


@pytest.mark.parametrize(
    ("values", "claimed", "verdict"),
    [
        ([0.30, 0.32, 0.35], 0.31, "confirmed"),
        ([0.40, 0.42, 0.41], 0.31, "confirmed"),  # more than claimed
        ([0.10, 0.12, 0.11], 0.31, "direction only"),
        ([0.9, -0.8, 0.85], 0.31, "direction only"),  # reaches the claim, and no effect as well
        ([-0.1, -0.12, -0.2], 0.31, "refuted"),
        ([0.3, np.inf, 0.3], 0.31, "refuted"),
        ([0.35], 0.31, "confirmed"),
        ([0.30], 0.31, "direction only"),
        ([-0.5, -0.55], -0.5, "confirmed"),
        ([0.5, 0.55], -0.5, "refuted"),
    ],
)
def test_a_measured_effect(values, claimed, verdict):
    assert verdicts.measured(np.array(values), claimed)[0] == verdict


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.floats(0.05, 1.5), st.sampled_from([1.0, -1.0]))
def test_the_rule_knows_no_sign_and_no_origin(values, claimed, sign):
    array = np.array(values)
    verdict, mean, _ = verdicts.measured(array, claimed)
    assert verdicts.measured(sign * array, sign * claimed)[0] == verdict
    assert (verdict == "refuted") == (mean <= 0)
    if verdict == "confirmed":  # a weaker claim of the same effect holds as well
        assert verdicts.measured(array, claimed / 2)[0] == verdict


def test_a_claim_of_every_point():
    rule = verdicts.everywhere
    assert rule({1: True, 2: True}) == "confirmed"
    assert rule({1: True, 2: False}) == "direction only"
    assert rule({1: True, 2: False, 3: False}) == "refuted"
    for wrong in (lambda: rule({}), lambda: verdicts.measured(np.array([]), 1.0)):
        with pytest.raises(InvalidInput, match="a verdict needs"):
            wrong()
    with pytest.raises(InvalidInput, match="did you mean 'confirmed'"):
        Verdict("a", "confirmd", "")


def test_the_verdict_of_a_figure_is_the_worst_of_what_was_run():
    part = {name: Verdict("a", name, "") for name in verdicts.VERDICTS}
    assert verdicts.overall([part["confirmed"], part["not run"]]) == "confirmed"
    assert verdicts.overall([part["confirmed"], part["direction only"]]) == "direction only"
    assert verdicts.overall(part.values()) == "refuted"
    assert verdicts.overall([part["not run"]]) == "not run"


def test_a_scale_picks_by_quick():
    assert RunScale().pick(2, 20) == 20
    assert dataclasses.replace(RunScale(), quick=True).pick(2, 20) == 2


LOW, MIDDLE, HIGH = np.array([1.0, 1.1, 0.9]), np.array([2.0, 0.9, 1.2]), np.array([3.0, 3.3, 2.9])
ONE = np.array([1.0])


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ({3: (LOW, HIGH), 10: (LOW, HIGH)}, "confirmed"),
        ({3: (LOW, HIGH), 10: (LOW, MIDDLE)}, "direction only"),  # below in the mean, not surely
        ({3: (LOW, HIGH), 10: (HIGH, LOW)}, "direction only"),
        ({3: (LOW, HIGH), 10: (HIGH, LOW), 40: (HIGH, LOW)}, "refuted"),
        ({3: (ONE, 2 * ONE)}, "direction only"),  # one seed
        ({3: (LOW, LOW)}, "refuted"),
        ({3: (LOW, np.full(3, np.nan))}, "confirmed"),  # the other one diverged
        ({3: (np.full(3, np.nan), HIGH)}, "refuted"),
        ({3: (np.array([1.0, np.nan, 1.0]), np.array([np.nan, 2.0, 2.0]))}, "refuted"),
    ],
)
def test_ordered(points, verdict):
    assert paired_verdicts.ordered(points) == verdict


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (LOW, LOW * np.array([1.05, 0.95, 1.0]), "confirmed"),
        (LOW, 1.5 * LOW, "direction only"),
        (LOW, 3 * LOW, "refuted"),
        (ONE, ONE, "direction only"),
        (np.array([1.0, 9.0]), np.array([9.0, 1.0]), "direction only"),  # an interval that says nothing
    ],
)
def test_tied(a, b, verdict):
    assert paired_verdicts.tied(a, b) == verdict == paired_verdicts.tied(b, a)


@given(st.lists(st.tuples(*[st.floats(1e-3, 1e3)] * 2), min_size=2, max_size=8))
def test_the_interval_is_that_of_the_paired_t_test(losses):
    a, b = np.array(losses).T
    mean, half = paired_verdicts.mean_log_ratio(a, b)
    logs = np.log(a) - np.log(b)
    if np.ptp(logs) < 1e-12:
        assert half < 1e-9
        return
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-9, abs=1e-12)
    swapped = paired_verdicts.mean_log_ratio(b, a)
    assert swapped == pytest.approx((-mean, half))


def test_lowest_and_ratios_take_a_diverged_run_as_infinitely_bad():
    assert paired_verdicts.lowest({"a": np.array([1.0, np.nan]), "b": HIGH}) == "b"
    assert paired_verdicts.of_means(HIGH, LOW) == pytest.approx(9.2 / 3)
    assert paired_verdicts.of_means(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == math.inf
    assert math.isnan(paired_verdicts.of_means(np.array([np.nan]), np.array([np.nan])))


@pytest.mark.parametrize(("a", "b"), [(np.array([]), np.array([])), (LOW, ONE)])
def test_unpaired_losses_are_refused(a, b):
    with pytest.raises(InvalidInput, match="paired losses"):
        paired_verdicts.mean_log_ratio(a, b)


def test_no_point_is_refused():
    with pytest.raises(InvalidInput, match="at least one point"):
        paired_verdicts.ordered({})

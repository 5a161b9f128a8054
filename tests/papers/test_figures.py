"""Published figures by one command, claims by another, stored results and published items: each exists and is true."""

import collections
import csv
import dataclasses
import json
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
from vocabulary import each, refuses

import mfdl
import mfdl_papers as papers
from mfdl import InvalidInput, extensions, gossip
from mfdl.commands import main
from mfdl_papers import published_claims
from mfdl_papers.facts import all_facts
from mfdl_papers.figures import (
    FIGURES,
    PublishedFigure,
    Reproduction,
    RunScale,
    Table,
    Verdict,
    named,
    names,
    result_page,
    verdicts,
)
from mfdl_papers.figures.verdicts import Effect
from mfdl_papers.paper_commands import ClaimsConfig, run_claims


def half(figure, scale):
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
    of = "P", "Figure 1", "It holds", 0.1, 1 / 60
    invented = [
        PublishedFigure(name, *of, f"figures.verdicts:{name}", deviations=("other data",))
        for name in ("half", "lacking", "broken")
    ]
    for run in (half, lacking, broken):
        monkeypatch.setattr(verdicts, run.__name__, run, raising=False)
    registry = {figure.name: figure for figure in invented}
    for module in ("figures", "figures.result_page", "paper_commands"):
        monkeypatch.setattr(f"mfdl_papers.{module}.FIGURES", registry)
    return registry


def test_the_list_has_one_object_for_each_figure(capsys):
    assert main(["reproduce", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(FIGURES) == list(names())
    assert all(value for row in rows for key, value in row.items() if key != "data")
    assert main(["reproduce", "--list"]) == 0
    assert "mafalda-2" in capsys.readouterr().out


def test_every_figure_names_code_that_is_there():
    for figure in FIGURES.values():
        module, _, function = figure.code.partition(":")
        assert callable(getattr(__import__(f"mfdl_papers.{module}", fromlist=[function]), function))


def test_one_figure_as_json_as_words_and_in_its_file(figures, tmp_path, capsys):
    assert main(["reproduce", "half", "--json", "--out", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["claim"], answer["value"], answer["verdict"]) == ("It holds", "2x; none", "refuted")
    part = answer["claims"][0]
    assert (part["claim"], part["verdict"], part["finding"], part["value"]) == ("a", "confirmed", "2x", 2.0)
    assert (part["effects"][0]["values"], answer["claims"][1]["value"]) == ([2.0, 2.1], "inf")
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


@each(
    "command, message",
    ("reproduce", "needs the name of a figure, or all, or --list"),
    ("reproduce mafalda-2 --list", "needs the name of a figure, or all, or --list"),
    ("reproduce mafalda2", "did you mean 'mafalda-2'?"),
    ("reproduce mafalda-2 --engine spark", "unknown engine 'spark'"),
    ("reproduce mafalda-2 --jobs 0", "jobs must be"),
    ("reproduce mafalda-2 --peertube nowhere.csv", "'nowhere.csv' does not exist"),
    ("reproduce mafalda-2 --out a_file", "it is a file"),
    ("claims --only mafalda-theorem-7-adaptiv", "did you mean"),
    ("claims --examples 0", "examples must be"),
    ("claims --seed -1", "seed must be"),
    ("claims --jobs 0", "jobs must be"),
    ("claims --out a_file/below", "cannot write"),
)
def test_bad_input_is_answered_before_any_work(command, message, capsys, monkeypatch, tmp_path):
    for work in ("mfdl_papers.figures.PublishedFigure.run", "mfdl.testing.check_claim"):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("worked"))
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    assert main(command.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in " ".join(output.err.split())


REFUTED = "mafalda-equation-8-square"


def test_exit_code_1_when_a_verdict_is_not_the_one_on_record(capsys, monkeypatch):
    other = [dataclasses.replace(claim, expect="holds") for claim in published_claims()]
    monkeypatch.setattr("mfdl_papers.paper_claims.published_claims", lambda: other)
    assert main(["claims", "--only", REFUTED, "--jobs", "1"]) == 1
    assert "not as on record: " + REFUTED in " ".join(capsys.readouterr().out.split())


def test_a_claim_as_json_and_in_its_files(capsys, tmp_path):
    assert main(["claims", "--json", "--only", REFUTED, "--jobs", "1", "--out", str(tmp_path / "new")]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["verdict"], row["registered"]) == (REFUTED, "refuted", "refuted")
    assert json.loads((tmp_path / "new" / "claims.json").read_text(encoding="utf-8")) == [row]
    page = (tmp_path / "new" / "claims.md").read_text(encoding="utf-8")
    assert f"`{REFUTED}`" in page
    assert row["counterexample"] in page
    (again,) = run_claims(ClaimsConfig(only=(REFUTED,), jobs=1))
    assert again | {"seconds": 0} == row | {"seconds": 0}


ONE, ANY = [(0,)], [(0,), (2,)]


def algorithm(scheme, rounds=1):
    W = gossip.metropolis_hastings("path:n=4")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, gossip_rounds=rounds), scheme)


def bounds_in_the_picture(mechanism, trust, of, attackers):
    (published_losses,) = extensions.every(extensions.PUBLISHED_LOSSES)
    return published_losses(mechanism, trust, of, attackers)


@pytest.mark.parametrize("scheme", [mfdl.EveryStep(3), mfdl.participation.Single(3), mfdl.Cyclic(1, 3)])
def test_both_bounds_of_every_attacker(scheme):
    of = algorithm(scheme, rounds=2)
    squared, coded = bounds_in_the_picture("dp-dsgd", "pndp", of, ANY)
    known = {"num_steps": 3, "gossip_rounds": 2, "every_step": scheme == mfdl.EveryStep(3)}
    for published, bound in ((squared, papers.muffliato_squared), (coded, papers.muffliato_as_coded)):
        assert list(published.squared) == ANY
        for (node,), values in published.squared.items():
            printed = bound(of.dynamics.gossip, f"#{node}", **known)
            np.testing.assert_array_equal(values, printed.value)
            assert published.validity == printed.validity


@each(
    "mechanism, trust, scheme, attackers",
    ("bsr", "pndp", mfdl.EveryStep(4), ONE),
    ("dp-dsgd", "ldp", mfdl.EveryStep(4), [()]),
    ("dp-dsgd", "pndp", mfdl.Cyclic(2, 2), ONE),
    ("muffliato", "pndp", mfdl.EveryStep(4), [(0, 1)]),
)
def test_nothing_is_stated_elsewhere(mechanism, trust, scheme, attackers):
    assert bounds_in_the_picture(mechanism, trust, algorithm(scheme), attackers) == []


DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "reproduced"
RESULTS = sorted(STORED.glob("*.json"))


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


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
        again = Verdict.from_result(part)
        assert again.result() == near(part)
    assert result["command"].split()[:3] == ["mfdl", "reproduce", figure.name]
    assert result["seconds"] > 0
    assert "/" not in result["command"] + result["machine"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_costs_of_the_list_are_those_measured(path):
    """Within a factor of four: machines differ. Runs that another figure has trained cost nothing."""
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


def stored(folder, *, quick=False):
    scale, part = RunScale(out=folder, quick=quick), Verdict("a <claim>", [Effect("x", [0.1, 0.12, 0.11])], "ours")
    return Reproduction(named("decor-2"), scale, [part], settings={"seeds": [1, 2, 3]}, seconds=2).write()[0]


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
    assert (first["verdict"], main(["reproduce", "--page", "--out", str(tmp_path)])) == ("not run", 0)


@each(
    "change, message",
    (lambda result: result.update(verdict="refuted"), "'refuted'"),
    (lambda result: result["claims"][0].update(verdict="refuted"), "refuted"),
    (lambda result: result["claims"][0]["effects"][0].update(values=[-0.1, -0.2, -0.15]), "'confirmed'"),
    (lambda result: result.update(claim="another"), "'another'"),
    (lambda result: result.pop("machine"), "no result of this version"),
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


ITEMS = rows_of(DOCS / "tables" / "published_items.csv")
STATES = ("works", "works on a stand-in", "in part")


def is_there(name: str) -> bool:
    if name.startswith("mfdl reproduce "):
        return name.removeprefix("mfdl reproduce ") in (*names(), "all")
    if name in all_facts() or name.startswith(("--", "unit=")):
        return True
    try:
        return pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item['paper']}-{item['item'][:40]}")
def test_what_an_item_points_at_is_there(item):
    named = re.findall(r"`([^`]+)`", item["where"] + item["remark"])
    pages = re.findall(r"docs/(\w+\.md)", item["where"])
    assert named or pages
    assert [name for name in named if not is_there(name)] == []
    assert [page for page in pages if not (DOCS / page).exists()] == []
    assert item["state"] in STATES
    assert item["remark"] or item["state"].startswith("works")


def test_figures_run_at_full_size_have_a_stored_result():
    for item in ITEMS:
        figures = set(re.findall(r"`mfdl reproduce ([\w-]+)`", item["where"])) & set(names())
        if figures and item["state"] == "works":
            assert figures <= {path.stem for path in RESULTS}, item["item"]


def test_the_page_counts_them():
    page = (DOCS / "claims.md").read_text()
    counts = collections.Counter(item["state"] for item in ITEMS)
    for state in STATES:
        assert f"| {state} | {counts[state]} |" in page
    assert f"{len(ITEMS)} items" in page

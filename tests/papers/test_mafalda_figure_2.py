"""Figure 2 of the MAFALDA paper: its verdicts on made-up and on computed numbers, and its files."""

import json

import pytest

from mfdl.cli import main
from mfdl_papers.mafalda import figure_2


def at(distance, exact, squared, coded=10.0, graph="made up, 5 nodes"):
    return figure_2.SumsAtDistance(graph, distance, 1, exact, exact, exact, squared, coded)


@pytest.mark.parametrize(
    ("points", "verdicts"),
    [
        ([at(1, 1, 10), at(2, 0.5, 6), at(3, 0.01, 1)], ["confirmed"] * 3),
        ([at(1, 9, 10), at(2, 0.5, 6), at(3, 0.1, 1.1)], ["confirmed", "direction only", "refuted"]),
        ([at(1, 11, 10), at(2, 5, 1), at(3, 1, 0.5)], ["refuted"] * 3),
        ([at(1, 1, 10), at(2, 0.5, 6)], ["confirmed", "confirmed", "not run"]),
    ],
)
def test_verdicts_on_made_up_numbers(points, verdicts):
    assert [one.verdict for one in figure_2.judge(points)] == verdicts


def test_two_orders_of_magnitude_are_refuted_where_the_baseline_squares_its_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figure_2, "GRAPHS", {"Florentine families, 15 nodes": "florentine", "A file": "nowhere.csv"})
    assert main(["reproduce", "mafalda-2", "--quick", "--json", "--out", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "refuted"
    assert [part["verdict"] for part in answer["claims"]] == ["confirmed", "direction only", "refuted"]
    assert "Florentine families 11.3x" in answer["value"]
    assert answer["missing"][0].startswith("A file: graph file 'nowhere.csv' does not exist")
    points = {point["distance"]: point for point in answer["numbers"]["points"]}
    assert points[1]["exact"] == pytest.approx(9.398596365, rel=1e-6)
    assert points[1]["closed_form"] == pytest.approx(10.91095335, rel=1e-6)
    assert [points[d]["squared"] for d in (1, 2, 3, 4)] == pytest.approx([10, 3.86, 1.66, 0.475], rel=2e-3)
    assert {path.name for path in tmp_path.iterdir()} == {f"mafalda-2-quick.{kind}" for kind in ("json", "png", "svg")}

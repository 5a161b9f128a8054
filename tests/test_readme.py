"""The README's code and commands run, and train as it says; so does the user-level comparison of its page."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from page_session import run_page
from readme_session import README, quick_blocks

from mfdl.commands import main

PROJECT = Path(__file__).parent.parent


ENDS_WELL = """
import pathlib
assert [row["mu"] for row in result.table()][1:] == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0]
assert sorted(path.name for path in pathlib.Path("results/paper").iterdir()) == [
    "caption.txt", "figure.pdf", "results.csv", "table.tex"
]
assert sum(p.numel() for p in module.parameters()) == 65
for words in ("refuted by encoder", "three taps", "mu:", "above the optimum"):
    assert words in printed.getvalue(), (words, printed.getvalue())
"""


def test_the_python_blocks_are_one_session_on_files_of_a_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(quick_blocks(tmp_path), "README.md", ENDS_WELL)


@pytest.mark.slow
def test_the_user_level_line_learns(tmp_path, capsys):
    page = (PROJECT / "docs" / "spatial_noise.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = (line for line in page.splitlines() if "--unit user" in line and "--clip-norm 0.1" in line)
    arguments = [*shlex.split(line)[1:], "--mechanisms", "dp-dsgd,corn", "--seeds", "1", "--json"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    independent, corn = result["mechanisms"]
    assert independent["beats_untrained"]
    assert corn["beats_untrained"]
    assert corn["final_accuracy_mean"] > 0.45 > independent["final_accuracy_mean"] > 2 * result["chance_accuracy"]


COMMANDS = [line.split("#")[0] for line in re.findall(r"^    (mfdl .*)$", README.replace("\\\n", " "), re.MULTILINE)]
LONG = ("mfdl compare", "mfdl audit", "mfdl claims")  # twenty seconds to minutes


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] * line.startswith(LONG)) for line in COMMANDS]
)
def test_the_commands_run(line, tmp_path, monkeypatch, capsys):
    if "ego-facebook" in line and "MFDL_DATA" not in os.environ:
        pytest.skip("needs the graph ego-facebook and the task housing, in MFDL_DATA")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("release", "means"), [("none", "1.57 0.81 0.44"), ("all", "4.09 4.15 4.31")])
def test_privacy_loss_by_distance_is_what_the_readme_says(release, means, capsys):
    (line,) = (line for line in COMMANDS if line.startswith("mfdl account"))
    arguments = [*shlex.split(line)[1:], "--release", release, "--json"]
    assert main(arguments) == 0
    victims = json.loads(capsys.readouterr().out)["victims"]
    of_distance = [[float(row["mu"]) for row in victims if row["distance"] == hops] for hops in (2, 3, 4)]
    assert " ".join(f"{sum(losses) / len(losses):.2f}" for losses in of_distance) == means
    assert all(mean in README for mean in means.split())

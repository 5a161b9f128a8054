"""The README's code and commands run, and train as it says; so does the user-level comparison of its page."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from page_session import blocks, run_page

from mfdl.commands import main

PROJECT = Path(__file__).parent.parent
README = (PROJECT / "README.md").read_text(encoding="utf-8")


ENDS_WELL = """
import pathlib
assert run.seeds[0].final_accuracy > 0.6 > 5 * run.chance_accuracy
assert run.judged.finding == ""
assert pathlib.Path("mafalda.png").stat().st_size > 10_000
assert "accuracy 0." in printed.getvalue()
"""


def test_the_python_block_ends_well_above_chance(tmp_path, monkeypatch):
    ((kind, block),) = blocks(README)
    monkeypatch.chdir(tmp_path)
    run_page([(kind, block.replace("range(3)", "range(1)"))], "README.md", ENDS_WELL)


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

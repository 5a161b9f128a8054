"""The pages that teach and the README: their code runs and prints what they say, each in its own interpreter."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from page_session import blocks, dotted_names, in_fresh_interpreter, run_page, text_of, unresolved
from readme_session import README, quick_blocks
from vocabulary import refuses

from mfdl.commands import main
from mfdl.training.replay_config import EvaluatedStep

PAGES = Path(__file__).parents[1] / "docs"
SESSION = "The code of this page is one session"

NAMES = (
    "algorithm", "encoder", "long_runs", "training_loop", "data", "results", "trust_model", "optimal_noise", "claims",
    "audit", "epsilon", "attack", "budgets", "views", "compare",
)  # fmt: skip
HOWTO = [f"howto_{name}.md" for name in (*NAMES, "progress", "graph", "large_graphs")]
NAMES_OF_THEORY = (
    "changing_networks", "coming_from", "floating_point", "gossip", "plan", "privacy", "random_walks", "released",
    "sampling", "shared_randomness", "spatial_noise", "step_rules", "testing_cases", "time_and_nodes",
)  # fmt: skip
THEORY = [f"{name}.md" for name in NAMES_OF_THEORY]
NAMES_OF_LONG = (  # a second or more each
    "algorithm", "claims", "encoder", "large_graphs", "long_runs", "results", "compare", "training_loop", "trust_model",
    "views",
)  # fmt: skip
LONG = {*(f"howto_{name}.md" for name in NAMES_OF_LONG), "sampling.md", "plan.md", "testing_cases.md"}
PAGES_WITH_CODE = [*HOWTO, *THEORY, "workloads.md"]


def test_no_page_with_code_is_left_out():
    with_code = {page.name for page in PAGES.glob("*.md") if re.search(r"```(python|pycon)\n", page.read_text("utf-8"))}
    assert with_code == set(PAGES_WITH_CODE) >= LONG


@pytest.mark.parametrize(
    "name", [pytest.param(page, marks=[pytest.mark.slow] if page in LONG else []) for page in PAGES_WITH_CODE]
)
def test_the_code_of_the_page_runs_and_prints_what_the_page_shows(name):
    page = (PAGES / name).read_text(encoding="utf-8")
    code = blocks(page)
    assert {kind for kind, _ in code} == {"python", "pycon"} or name in THEORY
    assert len(code) == 1 or SESSION in page.split("```")[0]
    run_page(code, name)


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_every_dotted_name_of_the_pages_resolves_after_import_mfdl_alone():
    pages = [PAGES.parent / "README.md", *sorted(PAGES.glob("*.md")), *sorted(PAGES.glob("tables/*.csv"))]
    names = sorted(dotted_names(text_of(pages)))
    assert {"mfdl.objective.Probes", "mfdl.training.distributed.ranks", "mfdl.dynamics.schedule"} <= set(names)
    in_fresh_interpreter(unresolved, names)


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_name_that_is_not_there_and_code_that_misses_an_import_are_seen():
    with pytest.raises(AssertionError, match=r"^mfdl\.dynamics\.nothing, mfdl\.testing\.nothing$"):
        in_fresh_interpreter(unresolved, ["mfdl.dynamics.nothing", "mfdl.graphs.load", "mfdl.testing.nothing"])
    refuses("name 'mfdl' is not defined", run_page, [("python", "mfdl.graphs")], "a page", error=AssertionError)
    refuses("Expected", run_page, [("pycon", ">>> 1 + 1\n3\n")], "a page", error=AssertionError)


@pytest.mark.peer
def test_the_lines_for_tensorboard_write_what_it_reads(tmp_path):
    board = pytest.importorskip("torch.utils.tensorboard", reason="needs tensorboard, which is no dependency")
    page = (PAGES / "howto_progress.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def log" in block)
    names = {"writer": board.SummaryWriter(tmp_path)}
    exec(compile("def log" + code.partition("def log")[2].partition("\n\n\nrun")[0], "page", "exec"), names)
    names["log"](EvaluatedStep(8, 0, np.ones(2), np.ones(2), np.zeros((2, 1)), False))
    names["writer"].close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 0


def test_the_model_of_the_page_is_about_ten_lines():
    page = (PAGES / "howto_trust_model.md").read_text(encoding="utf-8")
    section = page.split("## The ten lines")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 10


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
LONG_COMMANDS = ("mfdl compare", "mfdl audit", "mfdl claims")  # twenty seconds to minutes


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] * line.startswith(LONG_COMMANDS)) for line in COMMANDS]
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

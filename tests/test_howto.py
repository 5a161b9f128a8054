"""The pages that teach: their code runs and prints what they say, each page in an interpreter of its own."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from page_session import blocks, dotted_names, in_fresh_interpreter, run_page, text_of, unresolved
from vocabulary import refuses

from mfdl.training.replay_config import EvaluatedStep

PAGES = Path(__file__).parents[1] / "docs"
SESSION = "The code of this page is one session"

NAMES = (
    "algorithm", "encoder", "long_runs", "training_loop", "data", "results", "trust_model", "optimal_noise", "claims",
    "audit", "epsilon", "attack", "sweep", "budgets", "check_budget", "views", "compare",
)  # fmt: skip
HOWTO = [f"howto_{name}.md" for name in (*NAMES, "progress", "graph", "large_graphs")]
THEORY = [
    f"{name}.md"
    for name in (
        "changing_networks", "coming_from", "floating_point", "gossip", "plan", "privacy", "random_walks", "released",
        "sampling", "balls_in_bins", "shared_randomness", "spatial_noise", "step_rules", "testing_oracles",
        "testing_strategies", "time_and_nodes",
    )
]  # fmt: skip
LONG = {
    *(f"howto_{name}.md" for name in ("algorithm", "claims", "encoder", "large_graphs", "long_runs", "results")),
    *(
        "howto_compare.md",
        "howto_training_loop.md",
        "howto_trust_model.md",
        "howto_views.md",
        "balls_in_bins.md",
        "plan.md",
        "testing_strategies.md",
    ),
}  # a second or more each
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
    pages = [PAGES.parent / "README.md", *sorted(PAGES.glob("*.md"))]
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

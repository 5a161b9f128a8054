"""The pages that teach: their code runs and prints what they say."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from mfdl.training.evaluated_step import EvaluatedStep

PAGES = Path(__file__).parents[1] / "docs"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


NAMES = (
    "algorithm",
    "encoder",
    "long_runs",
    "training_loop",
    "data",
    "results",
    "trust_model",
    "claims",
    "audit",
    "attack",
    "sweep",
    "budgets",
)
HOWTO = [f"howto_{name}.md" for name in (*NAMES, "progress", "graph", "large_graphs")]
THEORY = [
    f"{name}.md"
    for name in (
        "changing_networks",
        "privacy",
        "random_walks",
        "released",
        "sampling",
        "secret_bins",
        "shared_randomness",
        "spatial_noise",
        "testing_oracles",
        "testing_strategies",
    )
]
LONG = {"howto_large_graphs.md", "howto_claims.md", "howto_long_runs.md", "testing_strategies.md"}  # seconds each
PAGES_WITH_CODE = [*HOWTO, *THEORY, "workloads.md"]


def test_no_page_with_code_is_left_out():
    with_code = {page.name for page in PAGES.glob("*.md") if re.search(r"```(python|pycon)\n", page.read_text("utf-8"))}
    assert with_code == set(PAGES_WITH_CODE) >= LONG


@pytest.mark.parametrize(
    "name", [pytest.param(page, marks=[pytest.mark.slow] if page in LONG else []) for page in PAGES_WITH_CODE]
)
def test_the_code_of_the_page_runs_and_prints_what_the_page_shows(name):
    page = (PAGES / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|pycon)\n(.*?)```", page, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"python", "pycon"} or name in THEORY
    names: dict[str, object] = {}
    said: list[str] = []
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, name, "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, name, name, 0)
        doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append, clear_globs=False)
        names.update(test.globs)
    assert not said, "".join(said)


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

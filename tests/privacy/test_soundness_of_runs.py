"""A few cases of the statements on what is trained, seen and composed (`experiments/_soundness_training.py`)."""

import importlib
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CASES = {"clip schedules": 120, "secret batches": 36, "two runs": 16}
"""So many that each of the defects that these statements were written for is drawn."""


@pytest.fixture(scope="module")
def statements():
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        importlib.import_module("_soundness_training")
        yield importlib.import_module("_soundness_statements").STATEMENTS
    finally:
        sys.path.remove(str(EXPERIMENTS))


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES)
def test_a_few_cases_of_the_hunt(words, statements):
    campaign = importlib.import_module("_campaign")
    (name,) = (name for name in statements if words in name)
    alone = {name: statements[name]}  # cases that do not depend on what else is registered
    found = campaign.compare(alone, name, range(CASES[words]), seed=20)
    assert found.cases >= CASES[words] / 2
    assert not found.disagreements, found.smallest

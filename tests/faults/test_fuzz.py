"""Malformed arguments, configurations, graphs and files: refused in words, with nothing half done.

`experiments/faults.py fuzz` tries ten thousand of these; here Hypothesis draws a few of each surface and shrinks them.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import pytest
from effort import EFFORT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mfdl.errors import InvalidInput

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def part_of_the_command(name):
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXPERIMENTS))


CASES = part_of_the_command("_fault_cases")


@st.composite
def outcomes(draw, surface):
    """What one drawn case of a surface comes to."""
    random = draw(st.randoms(use_true_random=False, note_method_calls=False))
    with tempfile.TemporaryDirectory() as folder:
        return CASES.run_case(surface, random, Path(folder))


def few(surface):
    return max(2, round(70 * EFFORT) // CASES.RARE.get(surface, 1))


@pytest.mark.hypothesis  # which pytest cannot see from outside
@pytest.mark.parametrize("surface", list(CASES.SURFACES))
def test_clear_words_or_success(surface):
    @given(outcome=outcomes(surface))
    @settings(
        max_examples=few(surface),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def holds(outcome):
        assert outcome.good, f"{outcome.kind}: {outcome.detail}"

    holds()


# ---- the judge sees what it is for --------------------------------------------------------------------------------


def judged(act, tmp_path, seconds=60.0, before=()):
    CASES.SURFACES["planted"] = lambda random, folder: act
    try:
        for name in before:
            (tmp_path / name).write_text("{}")
        return CASES.run_case("planted", None, tmp_path, seconds).kind
    finally:
        del CASES.SURFACES["planted"]


def refuse(words):
    raise InvalidInput(words)


def broken():
    raise TypeError("a bug")


def for_ever():
    while True:
        try:
            sum(range(1000))
        except Exception:
            raise AssertionError from None


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda: None, "accepted"),
        (lambda: refuse("n must be at least 1, got 0."), "refused"),
        (lambda: refuse("bad"), "no words"),
        (broken, "traceback"),
        (for_ever, "hang"),
        (lambda: sys.exit(0), "traceback"),
        (lambda: Path("a.json").write_text("{") and None, "partial file"),
        (lambda: Path(".a.json.x.tmp").write_text("{}") and None, "partial file"),
        (lambda: Path("a.npz").write_bytes(b"PK") and None, "partial file"),
        (lambda: Path("a.json").write_text("{}") and None, "accepted"),
        (lambda: Path("kept.json").unlink() or refuse("n must be at least 1, got 0."), "partial file"),
        (lambda: CASES.command(["factorize", "--epochs", "-1"]), "refused"),
        (lambda: CASES.command(["mechanisms"]), "accepted"),
    ],
)
def test_the_judge(act, kind, tmp_path):
    seconds = 0.2 if kind == "hang" else 60.0
    assert judged(act, tmp_path, seconds, before=["kept.json"]) == kind


def test_the_same_number_is_the_same_case(tmp_path):
    """A fault of the campaign can be looked at again."""
    faults = part_of_the_command("faults")
    for k in range(3):
        first, second = (faults.fuzz_case(7, k)[:2] for _ in range(2))
        assert first == second

"""Every property without settings of its own gets a share of Hypothesis's 100 examples, the same ones on every machine.

`MFDL_SEED=N` draws other examples, those of N, and the last lines of the run say so. Examples of earlier runs are not
tried again, so N alone decides. What draws from the generators of a process (`random`, numpy, torch) finds them in one
state in every test, whichever tests ran before in that process.

Linear algebra gets one thread in each of the processes that share the cores, which inherit it: with more they wait for
one another, half as long again for the whole suite (two cores). A number that is set stays.

`MFDL_LOCALE` sets a locale, as programs around the library do: numbers must be read and written with a point in each.

Under a planted mutation (`mutations/run.py`) a failing case is not shrunk: that it fails is all that counts.
"""

import gc
import importlib.util
import locale
import os
import random
import shutil
import sys

import numpy as np
import pytest
from effort import SEED, examples
from finished_runs import blank_pictures, finished_comparisons  # noqa: F401  # fixtures of all folders
from hypothesis import Phase, core, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "MFDL_LOCALE" in os.environ:
    locale.setlocale(locale.LC_ALL, os.environ["MFDL_LOCALE"])
    locale.setlocale(locale.LC_MESSAGES, "C")  # tests expect reasons of the operating system in English
PHASES = [Phase.explicit, Phase.generate] if "MUTATION_REPORT" in os.environ else list(Phase)

settings.register_profile("share", examples(100), phases=PHASES, derandomize=SEED is None, database=None)
settings.load_profile("share")  # what a test sets itself inherits from it
if SEED is not None:
    core.global_force_seed = SEED  # as --hypothesis-seed does, in the workers of xdist too


def pytest_terminal_summary(terminalreporter):
    """Says which examples were drawn; -q leaves out the header, not this."""
    if SEED is not None:
        terminalreporter.write_line(f"Hypothesis drew the examples of MFDL_SEED={SEED}")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports leave no garbage, and millions of objects that every later search for garbage would look at."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """One state of the generators that a process shares."""
    random.seed(SEED or 0)
    np.random.seed((SEED or 0) % 2**32)  # noqa: NPY002  what unseeded code draws from
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(SEED or 0)  # torch.manual_seed brings torch._dynamo: a second


def pytest_configure(config):
    """Laws draw unusual settings on purpose; tests of the warning itself expect it."""
    config.addinivalue_line("filterwarnings", "ignore::mfdl.errors.UnusualSetting")


@pytest.fixture(scope="module")
def browser():
    """Chromium; skipped where playwright (the `browser` extra) or a chromium (CHROMIUM, or on the path) is missing."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("needs playwright, `pip install 'mfdl[browser]'`")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("needs a chromium: on the path, or named by CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()

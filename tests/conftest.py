"""Every property without settings of its own gets a share of Hypothesis's 100 examples.

Linear algebra gets one thread in each of the processes that share the cores, which inherit it: with more they wait for
one another, half as long again for the whole suite (two cores). A number that is set stays.

Under a planted mutation (`mutations/run.py`) a failing case is not shrunk: that it fails is all that counts.
"""

import importlib.util
import os
import shutil

import pytest
from effort import examples
from finished_runs import blank_pictures, finished_comparisons  # noqa: F401  # fixtures of all folders
from hypothesis import Phase, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
PHASES = [Phase.explicit, Phase.generate] if "MUTATION_REPORT" in os.environ else list(Phase)

settings.register_profile("share", examples(100), phases=PHASES)
settings.load_profile("share")  # what a test sets itself inherits from it


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

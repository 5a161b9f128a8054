"""One folder of runs with its page, for all tests of it."""

import pytest
from folders import sweep

from mfdl.webpage import ReportConfig
from mfdl.webpage.page import write_page


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Two trust models, two budgets, two rates, two seeds; one run failed."""
    swept = sweep(tmp_path_factory.mktemp("runs") / "s")
    write_page(ReportConfig(), swept, progress=False)
    return swept

"""The table of published items: each name, figure, claim and page that it points at exists; its counts are right."""

import collections
import csv
import importlib
import re
from pathlib import Path

import pytest

from mfdl_papers.facts import all_facts
from mfdl_papers.figures import names

DOCS = Path(__file__).resolve().parents[2] / "docs"
with (DOCS / "tables" / "published_items.csv").open(newline="") as file:
    ITEMS = list(csv.DictReader(file))
STATES = ("works", "works on a stand-in", "in part")
STORED = {path.stem for path in (DOCS / "reproduced").glob("*.json")}


def is_there(name: str) -> bool:
    """Whether a text in backticks is a figure, a claim, an option, or a name that can be imported."""
    if name.startswith("mfdl reproduce "):
        return name.removeprefix("mfdl reproduce ") in (*names(), "all")
    if name in all_facts() or name.startswith(("--", "unit=")):
        return True
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            value = getattr(value, part, None)
        return value is not None
    return False


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item['paper']}-{item['item'][:40]}")
def test_what_an_item_points_at_is_there(item):
    named = re.findall(r"`([^`]+)`", item["where"] + item["remark"])
    pages = re.findall(r"docs/(\w+\.md)", item["where"])
    assert named or pages
    assert [name for name in named if not is_there(name)] == []
    assert [page for page in pages if not (DOCS / page).exists()] == []
    assert item["state"] in STATES
    assert item["remark"] or item["state"].startswith("works")


def test_figures_run_at_full_size_have_a_stored_result():
    for item in ITEMS:
        figures = set(re.findall(r"`mfdl reproduce ([\w-]+)`", item["where"])) & set(names())
        if figures and item["state"] == "works":
            assert figures <= STORED, item["item"]


def test_the_page_counts_them():
    page = (DOCS / "claims.md").read_text()
    counts = collections.Counter(item["state"] for item in ITEMS)
    for state in STATES:
        assert f"| {state} | {counts[state]} |" in page
    assert f"{len(ITEMS)} items" in page

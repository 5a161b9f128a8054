"""Paths of the repository as links: pages of the documentation to the site, tests to their source."""

from __future__ import annotations

import re

SOURCE = "https://github.com/mfdl-developers/mfdl/blob/main"
TEST = re.compile(r"(?<!\[)`(tests/[\w/]*(?:\.py)?)(?:::(\w+))?`")
PAGE = re.compile(r"docs/(\w+)\.md(?:#[\w-]+)?")


def linked_tests(markdown: str) -> str:
    """`tests/FILE.py::NAME` of a page in Markdown as NAME, or as the path without one, linked to the file."""
    return TEST.sub(lambda found: f"[`{found[2] or found[1]}`]({SOURCE}/{found[1]})", markdown)


def linked_pages(text: str) -> str:
    """docs/NAME.md of a docstring as the title of that page, linked to it."""
    return PAGE.sub(r":doc:`/\1`", text)

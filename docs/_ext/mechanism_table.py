"""The table of mechanisms with their papers, and the papers' BibTeX, from the registry and the bibliography.

`{mechanisms}` as a directive draws the table; a mechanism whose paper has no entry in the file fails the build.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mfdl.algorithms.registry import MECHANISMS
from mfdl_papers.citations import BIBLIOGRAPHY, bibliography

NUMBER = re.compile(r"\b\d{4}\.\d{5}\b")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mechanisms", Mechanisms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Mechanisms(SphinxDirective):
    """A row per mechanism: name, what it is, trust models, papers with their BibTeX keys, what a paper has wrong."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(BIBLIOGRAPHY))
        keys = {number: paper.key for number, paper in bibliography().items()}
        lines = ["| name | noise | against | source | differs from it |", "| --- | --- | --- | --- | --- |"]
        for name, entry in MECHANISMS.items():
            missing = [number for number in NUMBER.findall(entry.paper) if number not in keys]
            if missing:
                raise self.error(f"{name} comes from arXiv:{missing[0]}, which has no entry in {BIBLIOGRAPHY.name}.")
            source = NUMBER.sub(lambda m: f"[{m[0]}](https://arxiv.org/abs/{m[0]}) `{keys[m[0]]}`", entry.paper)
            cells = (f"`{name}`", entry.summary, entry.trust, source, entry.erratum)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source="mechanisms"), self.content_offset, node)
        return node.children

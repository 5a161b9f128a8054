"""Tables of registries: `{mechanisms}` with their papers, `{graph-formats}` of graph files.

A mechanism whose paper has no entry in the bibliography fails the build.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mfdl.algorithms.registry import MECHANISMS
from mfdl.graphs.file_links import FORMATS
from mfdl_papers.facts import BIBLIOGRAPHY, bibliography

NUMBER = re.compile(r"\b\d{4}\.\d{5}\b")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mechanisms", Mechanisms)
    app.add_directive("graph-formats", GraphFormats)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Table(SphinxDirective):
    """A table from its cells."""

    def table(self, *rows: tuple[str, ...]) -> list[nodes.Node]:
        head, *body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        node, lines = nodes.Element(), [head, "| --- " * len(rows[0]) + "|", *body]
        self.state.nested_parse(StringList(lines, source=self.name), self.content_offset, node)
        return node.children


class GraphFormats(Table):
    """A row per format of graph files: suffixes, content, example, what is refused."""

    def run(self) -> list[nodes.Node]:
        rows = [
            (f"{f.name}: {', '.join(f'`{s}`' for s in f.suffixes)}", f.content, f.example, f.refused) for f in FORMATS
        ]
        return self.table(("format", "content", "example", "refused"), *rows)


class Mechanisms(Table):
    """A row per mechanism: name, what it is, trust models, papers with their BibTeX keys, what a paper has wrong."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(BIBLIOGRAPHY))
        keys = {number: paper.key for number, paper in bibliography().items()}
        rows = []
        for name, entry in MECHANISMS.items():
            missing = [number for number in NUMBER.findall(entry.paper) if number not in keys]
            if missing:
                raise self.error(f"{name} comes from arXiv:{missing[0]}, which has no entry in {BIBLIOGRAPHY.name}.")
            source = NUMBER.sub(lambda m: f"[{m[0]}](https://arxiv.org/abs/{m[0]}) `{keys[m[0]]}`", entry.paper)
            rows.append((f"`{name}`", entry.summary, entry.trust, source, entry.erratum))
        return self.table(("name", "noise", "against", "source", "differs from it"), *rows)

"""What the papers state, whether it holds and what is true, from the table of facts: `{claims}` as a directive.

`{corrections} NAME` is what the paper of this name, or its public code, has wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import mfdl_papers
from mfdl_papers import published_claims
from mfdl_papers.facts import claims_tables, corrections


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("claims", Claims)
    app.add_directive("corrections", Corrections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class FactTable(SphinxDirective):
    """Tables in Markdown, made from the facts."""

    def markdown(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        for path in Path(mfdl_papers.__file__).parent.glob("*/facts.toml"):
            self.env.note_dependency(str(path))
        lines = self.markdown().splitlines()
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source="facts"), self.content_offset, node, match_titles=True)
        return node.children


class Claims(FactTable):
    """A table per paper."""

    def markdown(self) -> str:
        return claims_tables({claim.id: claim.examples for claim in published_claims()})


class Corrections(FactTable):
    """The errors of one paper."""

    required_arguments = 1

    def markdown(self) -> str:
        return corrections(self.arguments[0])

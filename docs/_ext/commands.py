"""The options of the command line, read off the commands themselves: `{commands}` as a directive lists them all."""

from __future__ import annotations

from typing import Any

import typer
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from mfdl.commands import app as mfdl_app


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Commands(SphinxDirective):
    """A section per command: what it does, and its options with their defaults."""

    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for name, command in _all(typer.main.get_command(mfdl_app), "mfdl"):
            section = nodes.section(ids=[name.replace(" ", "-")], names=[name])
            section += nodes.title(text=name)
            lines = [" ".join((command.help or "").split()), "", *_table(command)]
            self.state.nested_parse(StringList(lines, source="commands"), self.content_offset, section)
            sections.append(section)
        return sections


def _all(command: Any, name: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        return [(name, command)]
    below = {key: command.get_command(None, key) for key in command.list_commands(None)}  # those of other packages too
    return [leaf for key, sub in below.items() for leaf in _all(sub, f"{name} {key}")]


def _table(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        words = getattr(parameter, "help", None)
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        default = parameter.default
        plain = default is not None and not callable(default) and default not in (False, (), [])
        name = ", ".join(f"`{option}`" for option in parameter.opts)
        cells = (name, f"`{_written(default)}`" if plain else "", " ".join((words or "").split()))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return ["| option | default | |", "| --- | --- | --- |", *rows] if rows else []


def _written(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, list | tuple) else str(default)

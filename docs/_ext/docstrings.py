"""Docstrings of this project as reStructuredText: they are plain text with a few marks of Markdown.

In: the lines of a docstring as `autodoc` hands them out. Out: the same lines in place, before napoleon reads the
sections that stand on lines of their own ("Args:"). What is turned: `code`, tables, indented formulas, sections that
begin and go on in one line ("Raises: InvalidInput: ..."); everything else that reStructuredText would read as markup is
escaped.
"""

from __future__ import annotations

import re
from typing import Any

from api_pages import described
from sphinx.application import Sphinx

SECTIONS = (
    "Args",
    "Attributes",
    "Claims",
    "Cost",
    "Errata",
    "Guarantees",
    "Laws",
    "Memory",
    "Raises",
    "Returns",
    "Source",
    "Validity",
    "Yields",
)
HEAD = re.compile(rf"(\s*)({'|'.join(SECTIONS)}):\s*(.*)")
ITEM = re.compile(r"\s*([-+]|\d+\.) ")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process, priority=400)  # napoleon has 500
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines)


def _signature(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A default that a dataclass makes anew reads as Python, so that long signatures are broken into lines."""
    return (signature.replace("<factory>", "...") if signature else signature), returns


def restructured(lines: list[str]) -> list[str]:
    """The lines as reStructuredText with the sections that napoleon knows."""
    out: list[str] = []
    block: list[str] = []
    section = -1  # indentation of the section we are in
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        section = _write(block, out, section)
        out.append("")
        block = []
    return out


def _write(block: list[str], out: list[str], section: int) -> int:
    """One run of lines without an empty one among them; returns the indentation of the section that goes on."""
    at = 0
    while at < len(block):
        line = block[at]
        indent = len(line) - len(line.lstrip())
        if section >= 0 and indent <= section:
            section = -1
        head = HEAD.fullmatch(line)
        end = at + 1
        if line.lstrip().startswith(">>>"):
            out += [*([""] if at else []), *block[at:]]
            return section
        if line.lstrip().startswith("| "):
            while end < len(block) and block[end].lstrip().startswith("|"):
                end += 1
            out += [*([""] if at else []), *_table(block[at:end], " " * indent), ""]
        elif head and not head[3]:
            out += [*([""] if at else []), line]
            section = indent
        elif head:
            while end < len(block) and len(block[end]) - len(block[end].lstrip()) > indent:
                end += 1
            text = " ".join([head[3], *(part.strip() for part in block[at + 1 : end])])
            out += ["", f"{head[1]}**{head[2]}:** {inline(text)}", ""]
        elif not at and section < 0 and indent >= 4 and not _continues_item(out):
            while end < len(block) and len(block[end]) - len(block[end].lstrip()) >= 4:
                end += 1
            out += ["::", "", *block[at:end], ""]
        else:
            out.append(_text(line))
        at = end
    return section


def _continues_item(out: list[str]) -> bool:
    before = next((line for line in reversed(out) if line.strip()), "")
    return bool(ITEM.match(before))


def _text(line: str) -> str:
    item = ITEM.match(line)
    start = item.end() if item else 0
    return line[:start] + inline(line[start:])


def inline(text: str) -> str:
    """Words with `code` in them, all else literally."""
    parts = re.split(r"(`+)(.+?)\1", text)
    out = []
    for i in range(0, len(parts), 3):
        out.append(re.sub(r"([\\*|`]|_(?=\W|$))", r"\\\1", parts[i]))
        if i + 2 < len(parts):
            out.append(_code(parts[i + 2]) + ("\\ " if parts[i + 3][:1].isalnum() else ""))
    return "".join(out)


def _code(text: str) -> str:
    """A link where the name is that of a page, else literally."""
    page = described.get(text.removesuffix("()").rpartition(".")[2])
    return f":py:obj:`{text} <{page}>`" if page and page.endswith(text.removesuffix("()")) else f"``{text}``"


def _table(rows: list[str], indent: str) -> list[str]:
    cells = [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in rows]
    out = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
    for row in cells[:1] + cells[2:]:
        for i, cell in enumerate(row):
            out.append(f"{indent}   {'* -' if i == 0 else '  -'} {inline(cell.strip(' |'))}")
    return out

"""Docstrings of this project as reStructuredText: they are plain text with a few marks of Markdown.

In: the lines of a docstring as `autodoc` hands them out. Out: the same lines in place, before napoleon reads the
sections that stand on lines of their own ("Args:"). What is turned: `code`, tables, indented formulas, sections that
begin and go on in one line ("Raises: InvalidInput: ..."); everything else that reStructuredText would read as markup,
addresses included, is escaped. `code` that names an object with a page is a link to it, as seen from the documented
object: its own arguments and members, then the names of its module, then names that only one object has.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
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
ADDRESS = re.compile(r"\b(?!https?:)[a-z]+://[^\s,;]+[^\s,;.]")  # like tcp://host:8786, which no browser opens
VALUES = ("attribute", "data", "property")
PAGE = re.compile(r"docs/(\w+)\.md(?:#[\w-]+)?")
COLON = "\N{RATIO}"  # stands for a colon while napoleon reads, which would split "X: Y" into a type and a meaning

Target = Callable[[str], str | None]  # a name in a docstring -> full name of the object to link, if any


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", _with_colons, priority=600)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines, lambda label: target(label, name, obj))
    if what in VALUES and lines:
        lines[0] = lines[0].replace(":", COLON)


def _with_colons(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def _signature(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A default that a dataclass makes anew reads as Python, so that long signatures are broken into lines."""
    return (signature.replace("<factory>", "...") if signature else signature), returns


def target(label: str, name: str, obj: object) -> str | None:
    """Full name of what `label` links to in the docstring of the object of that full name; None: nothing.

    A bare word that is an argument of the object is no link. A word such as `load`, which several packages may use, is
    one only where the class of the docstring, its module or `mfdl` itself has it.
    """
    head, _, member = label.partition(".")
    if not member:
        owner = next((full for full in (name, name.rpartition(".")[0]) if inspect.isclass(described.get(full))), None)
        if owner and hasattr(described[owner], head):
            return f"{owner}.{head}"
        if head in _arguments(obj):
            return None
    value = getattr(sys.modules.get(_module(obj)), head, None)
    seen = next((full for full, other in described.items() if other is value), None)
    if seen:
        return f"{seen}.{member}" if member else seen
    for full in (label, f"mfdl.{label}"):
        if full in described or full.rpartition(".")[0] in described:
            return full
    by_name = [full for full in described if full.endswith(f".{head if head[0].isupper() else label}")]
    if len(by_name) != 1 or (not member and head.islower() and "_" not in head):
        return None
    return f"{by_name[0]}.{member}" if member and head[0].isupper() else by_name[0]


def _arguments(obj: object) -> set[str]:
    try:
        return set(inspect.signature(obj).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()


def _module(obj: object) -> str:
    """Where the object was written."""
    obj = getattr(obj, "fget", obj)
    return getattr(inspect.unwrap(obj) if callable(obj) else obj, "__module__", "")


def restructured(lines: list[str], link: Target) -> list[str]:
    """The lines as reStructuredText with the sections that napoleon knows."""
    out: list[str] = []
    block: list[str] = []
    section = -1  # indentation of the section we are in
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        section = _write(block, out, section, link)
        out.append("")
        block = []
    return out


def _write(block: list[str], out: list[str], section: int, link: Target) -> int:
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
            out += [*([""] if at else []), *_table(block[at:end], " " * indent, link), ""]
        elif head and not head[3]:
            out += [*([""] if at else []), line]
            section = indent
        elif head:
            while end < len(block) and not HEAD.fullmatch(block[end]) and _goes_on(block[end], indent):
                end += 1
            text = " ".join([head[3], *(part.strip() for part in block[at + 1 : end])])
            out += ["", f"{head[1]}**{head[2]}:** {inline(text, link)}", ""]
        elif not at and section < 0 and indent >= 4 and not _continues_item(out):
            while end < len(block) and len(block[end]) - len(block[end].lstrip()) >= 4:
                end += 1
            out += ["::", "", *block[at:end], ""]
        else:
            out.append(_text(line, link))
        at = end
    return section


def _goes_on(line: str, indent: int) -> bool:
    """Whether a line belongs to the sentence of a section that began at this indentation."""
    return len(line) - len(line.lstrip()) >= indent and not line.lstrip().startswith(("|", ">>>"))


def _continues_item(out: list[str]) -> bool:
    before = next((line for line in reversed(out) if line.strip()), "")
    return bool(ITEM.match(before))


def _text(line: str, link: Target) -> str:
    item = ITEM.match(line)
    start = item.end() if item else 0
    return line[:start] + inline(line[start:], link)


def inline(text: str, link: Target) -> str:
    """Words with `code` in them, all else literally."""
    parts = re.split(r"(`+)(.+?)\1", text)
    out = []
    for i in range(0, len(parts), 3):
        text = ADDRESS.sub(r"``\g<0>``", re.sub(r"([\\*|`@]|_(?=\W|$))", r"\\\1", parts[i]))
        out.append(_with_linked_pages(text))
        if i + 2 < len(parts):
            out.append(_code(parts[i + 2], link) + ("\\ " if parts[i + 3][:1].isalnum() else ""))
    return "".join(out)


def _with_linked_pages(text: str) -> str:
    """docs/NAME.md as the title of that page, linked to it."""
    return PAGE.sub(r":doc:`/\1`", text)


def _code(text: str, link: Target) -> str:
    """A link where the name is that of a page, else literally."""
    if (linked := _with_linked_pages(text)) != text:
        return linked
    label = text.removesuffix("()")
    page = link(label) if all(part.isidentifier() for part in label.split(".")) else None
    return f":py:obj:`{text} <{page}>`" if page else f"``{text}``"


def _table(rows: list[str], indent: str, link: Target) -> list[str]:
    cells = [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in rows]
    out = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
    for row in cells[:1] + cells[2:]:
        for i, cell in enumerate(row):
            out.append(f"{indent}   {'* -' if i == 0 else '  -'} {inline(cell.strip(' |'), link)}")
    return out

"""A figure as an `<svg>` element inside a page, without fonts, ids and scripts.

Colours become CSS variables; the gid of an artist (`style.css`) its CSS classes; its url a `<title>`.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from .style import EDGE, FRAME, GRID, GROUND, INK, NEGATIVE, POSITIVE, QUIET, Look, css

Element = ElementTree.Element
VARIABLES = {
    GROUND: "ground", INK: "ink", QUIET: "quiet", GRID: "line", FRAME: "line", EDGE: "line", POSITIVE: "plus",
    NEGATIVE: "minus",
}  # fmt: skip
STYLES = re.compile(
    "fill|stroke|stroke-width|stroke-dasharray|(fill-|stroke-)?opacity|font-size|font-weight|text-anchor|image-rendering"
)
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # which names may contain
REFERENCE = "{http://www.w3.org/1999/xlink}href"
OPTIONS: dict[Any, Any] = {"svg.fonttype": "none", "image.composite_image": False}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def themed_svg(figure: Figure, title: str, looks: Iterable[Look] = ()) -> str:
    """The drawing, as wide as its place; changes the figure.

    Args: title: text for screen readers; looks: the series, each drawn in the variables --cI and --tI of its index I.
    """
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        if text.get_path_effects():  # these would turn text into paths; the style of the page draws the halo
            text.set_path_effects([])
            text.set_gid(css("halo"))
    buffer = io.BytesIO()
    with matplotlib.rc_context(OPTIONS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the browser has other fonts
        figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    source = ElementTree.fromstring(NOT_IN_XML.sub("\ufffd", buffer.getvalue().decode()))
    theme = _Theme(
        {look.colour: look.index for look in looks},
        {element.attrib["id"]: element for element in source.iter() if "id" in element.attrib},
    )
    root = Element("svg", {"viewBox": source.attrib["viewBox"], "role": "img", "aria-label": title})
    root.extend(list(theme.copies(source)))
    return ElementTree.tostring(root, encoding="unicode")  # escapes every string


@dataclasses.dataclass(frozen=True)
class _Theme:
    """Copies elements of matplotlib's SVG with their style.

    Attributes: series: from a colour to the index of its series; shapes: elements by id.
    """

    series: Mapping[str, int | None]
    shapes: Mapping[str, Element]

    def copies(self, parent: Element) -> Iterator[Element]:
        for child in parent:
            tag = child.tag.rpartition("}")[2]
            name = child.attrib.get("id", "")
            classes = name[1:] if name.startswith(".") else ""  # see `css`
            if tag == "g":
                inner = list(self.copies(child))
                yield from [_group(inner, classes)] if classes else inner
            elif tag == "a":
                yield from _with_tip(self.copies(child), child.attrib[REFERENCE])
            elif tag not in ("defs", "metadata"):
                yield self._shape(child, tag, classes)

    def _shape(self, source: Element, tag: str, classes: str) -> Element:
        attributes = dict(source.attrib)
        if tag == "use":  # ids of several drawings would meet in a page
            tag, shape = "path", self.shapes[attributes[REFERENCE][1:]]
            x, y = attributes["x"], attributes["y"]
            attributes |= {"d": shape.attrib["d"], "transform": f"translate({x} {y})"}
            del attributes["x"], attributes["y"]
        copy = Element(tag, {"class": classes} if classes else {})
        for name in ("d", "x", "y", "width", "height", "transform"):
            value = _compact(attributes.get(name, ""))
            if value and not value.startswith("rotate(0 "):
                copy.set(name, value)
        style = self._style(attributes.get("style", ""), tag)
        if style:
            copy.set("style", style)
        if tag == "image":
            copy.set("href", "".join(attributes[REFERENCE].split()))
        copy.text = (source.text or "").strip() or None
        return copy

    def _style(self, rules: str, tag: str) -> str:
        style = {"fill": "#000000"} if tag in ("path", "text") else {}  # which matplotlib leaves out
        style |= dict(re.findall(r"([\w-]+): ?([^;]+)", rules))
        for name in {"fill", "stroke"} & style.keys():
            colour, kind = style[name], "t" if tag == "text" else "c"
            variable = f"{kind}{self.series[colour]}" if colour in self.series else VARIABLES.get(colour)
            style[name] = colour if variable is None else f"var(--{variable})"
        return ";".join(f"{name}:{value}" for name, value in style.items() if STYLES.fullmatch(name))


def _group(elements: list[Element], classes: str) -> Element:
    """The elements in a group, which has their style if they share one."""
    group = Element("g", {"class": classes})
    group.extend(elements)
    styles = {element.attrib.get("style", "") for element in elements}
    if len(styles) == 1 and len(elements) > 1:
        group.set("style", styles.pop())
        for element in elements:
            element.attrib.pop("style", None)
    return group


def _with_tip(elements: Iterable[Element], tip: str) -> Iterator[Element]:
    for element in elements:
        title = Element("title")
        title.text = tip
        element.insert(0, title)
        if element.text:  # stands behind the tip
            title.tail, element.text = element.text, None
        yield element


def _compact(text: str) -> str:
    """Path data or a transform, each number with one digit behind the point, below 10 with three digits.

    >>> _compact("M 0 250.04 \\nL 380.123456 -0.012345 \\nL 9.8765 0 \\nz")
    'M0 250 380.1 -0.0123 9.88 0z'
    """

    def rounded(match: re.Match[str]) -> str:
        value = float(match.group())
        return f"{float(f'{value:.1f}' if abs(value) >= 10 else f'{value:.3g}'):g}".replace("-0", "0", value == 0)

    numbers = re.sub(r"-?\d+(\.\d+)?", rounded, text)
    if not numbers.startswith("M"):
        return numbers
    path = re.sub(r"\s*([A-Za-z])\s*", r"\1", numbers).strip()
    return path if re.search("[CQ]", path) else path.replace("L", " ")  # numbers behind M are lines

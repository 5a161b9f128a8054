"""Axes with few lines, ranges and ticks, names beside the ends of lines, captions, figures in files and pages; looks.

Colours are fixed per mechanism and safe for colour-blind readers (Okabe and Ito's palette, extended).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import os
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path as MarkerPath
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from mfdl_solvers.ties import ranking

from .. import files

GROUND, INK, QUIET, GRID, FRAME = "#ffffff", "#222222", "#6b6b6b", "#e3e3e3", "#bdbdbd"
EDGE, POSITIVE, NEGATIVE = "#b5b5b5", "#0a58b9", "#a3400b"  # of a graph, and of what has a sign
LINE_INCHES, MAX_CAPTION_LINES = 0.165, 3  # of a caption
TICK = 8.5  # points: the font of ticks
CHARACTER = 0.64  # width of a bold character of a wide font, in font sizes
LOG_RATIO = 8.0  # largest over smallest value beyond which a scale is logarithmic
LONGEST_NAME = 15  # characters of a name in a small picture
MINUS = "\u2212"


@dataclasses.dataclass(frozen=True)
class End:
    """End of a line with its name, and words below it.

    Attributes: stop: the last x in data, from which a dotted line leads to the name; inf: the edge of the picture.
        marker: of matplotlib, drawn before the name; gid, tip: see `css` and `themed_svg`.
    """

    height: float
    name: str
    words: str
    colour: str
    stop: float = math.inf
    marker: Any = ""
    gid: str | None = None
    tip: str | None = None

    @property
    def shortened(self) -> End:
        """The end with its `short_name`, and the whole name as the tip where it differs."""
        name = short_name(self.name)
        return dataclasses.replace(self, name=name, words="", tip=None if name == self.name else self.name)


def css(first: str, *more: str) -> str | None:
    """The gid of an artist that has these CSS classes in a page; None if the first is empty: not in a page."""
    return f".{' '.join((first, *more))}" if first else None


def quiet(axes: Axes, *, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FRAME)
    axes.tick_params(axis="x", colors=QUIET, labelsize=TICK)
    if grid == "y":
        axes.tick_params(axis="y", colors=QUIET, labelsize=TICK)
    axes.grid(axis="y" if grid == "y" else "x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def fit_y(axes: Axes, values: Iterable[float], *, logarithmic: bool | None = None) -> None:
    """Sets a range of all finite values with a margin, and its ticks; logarithmic by default beyond `LOG_RATIO`.

    A logarithmic range holds those above zero; if there are none it is linear.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    positive = [value for value in finite if value > 0]
    if logarithmic is None:
        logarithmic = len(positive) == len(finite) and max(positive) / min(positive) >= LOG_RATIO
    low, high = min(finite), max(finite)
    if logarithmic and positive:
        low = min(positive)
        axes.set_yscale("log")
        axes.set_ylim(low / 1.18, high * 1.18)
        plain_decades(axes.yaxis, axes.get_ylim())
    else:
        axes.set_yscale("linear")
        margin = 0.06 * (high - low) or 0.06 * (abs(high) or 1.0)
        axes.set_ylim(low - margin, high + margin)
        plain_steps(axes.yaxis, max(5, int(axes.get_window_extent().height * 72 / axes.figure.get_dpi() / 36)))


def name_ends(axes: Axes, ends: Sequence[End], *, apart: float, size: float = 10.0) -> None:
    """Names right of the picture, joined to the ends of their lines, at least `apart` of the height from each other."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((1.0, end.height))[1]) for end in ends]
    order = ranking(heights)
    places = spread([heights[i] for i in order], min(apart, 1 / max(len(ends), 1)))
    outside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    for i, y in zip(order, places, strict=True):
        end = ends[i]
        start = 1.0 if math.isinf(end.stop) else min(1.0, float(to_axes.transform((end.stop, 1.0))[0]) + 0.012)
        same: dict[str, Any] = {"color": end.colour, "clip_on": False, "gid": end.gid}
        lead: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.8, "linestyle": ":" if start < 1 else "-"}
        axes.plot([start, 1.0, 1.03], [heights[i], heights[i], y], transform=axes.transAxes, **lead, **same)
        beside = 0.0
        if end.marker:
            beside = 0.95 * size
            place = axes.transAxes + ScaledTranslation(0.4 * size / 72, 0, axes.figure.dpi_scale_trans)
            dot: dict[str, Any] = {"marker": end.marker, "markersize": 0.55 * size, "markeredgewidth": 0}
            axes.plot([1.04], [y], transform=place, linestyle="", **dot, **same)
        bold: dict[str, Any] = {"fontsize": size, "fontweight": "bold", "va": "bottom" if end.words else "center"}
        axes.annotate(end.name, (1.04, y), xytext=(beside, 0), url=end.tip, **bold, **same, **outside)
        if end.words:
            small: dict[str, Any] = {"fontsize": 8, "color": QUIET, "va": "top"}
            axes.annotate(end.words, (1.04, y - 0.006), xytext=(0, 0), **small, **outside)


def spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Increasing positions near `wanted` (increasing), at least `apart` from each other, within [0, 1] if they fit.

    Neighbours that are too close are merged into blocks, each centred on the wanted positions of its members.
    """
    blocks: list[tuple[float, list[float]]] = []  # start, wanted values
    for value in wanted:
        members = [value]
        while True:
            middle = sum(members) / len(members)
            length = apart * (len(members) - 1)
            start = min(max(middle - length / 2, 0.04), max(0.97 - length, 0.0))
            if not blocks or blocks[-1][0] + apart * len(blocks[-1][1]) <= start + 1e-12:
                break
            members = blocks.pop()[1] + members
        blocks.append((start, members))
    return [start + apart * i for start, members in blocks for i in range(len(members))]


def short_name(name: str, longest: int = LONGEST_NAME) -> str:
    """A short name: of a long one the beginning and the end, which tells files apart.

    >>> short_name("mafalda"), short_name("file:/home/somebody/strategy.mfdl")
    ('mafalda', 'file:/ho…y.mfdl')
    """
    return name if len(name) <= longest else f"{name[:8]}…{name[8 - longest + 1 :]}"


def plain_decades(axis: Any, limits: tuple[float, float]) -> None:
    """Plain numbers as ticks: at 1, 2, 5 where few decades are visible, more within one, powers of ten where many."""
    decades = math.log10(limits[1] / limits[0])
    few = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=few if decades < 2.2 else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(NullLocator())


def plain_steps(axis: Any, count: int) -> None:
    axis.set_major_locator(MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """A number as ticks and small tables show it.

    >>> [plain(value) for value in (0.0, 0.25, 1e-9, 12345678.0, 3.0, 0.1 + 0.2)]
    ['0', '0.25', '1e-9', '1.23e7', '3', '0.3']
    """
    text = f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", MINUS if value < 0 else "-", 1)


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def caption_lines(caption: str, width: int) -> list[str]:
    """At most `MAX_CAPTION_LINES` lines of a caption: as many of its first sentences as fit.

    >>> caption_lines("One two. Three four. Five six. Seven eight. Nine ten.", 12)
    ['One two.', 'Three four.', 'Five six.']
    """
    sentences = re.split(r"(?<=\.) (?=[^a-z])", caption)
    every = (wrapped(" ".join(sentences[:count]), width) for count in range(len(sentences), 0, -1))
    fitting = next((lines for lines in every if len(lines) <= MAX_CAPTION_LINES), None)
    return fitting or textwrap.wrap(sentences[0], width, max_lines=MAX_CAPTION_LINES, placeholder=" ...")


def write_caption(figure: Figure, lines: Sequence[str], *, left: float, top: float) -> None:
    style: dict[str, Any] = {"fontsize": 7.6, "color": QUIET, "va": "top", "linespacing": 1.35}
    figure.text(left, top, "\n".join(lines), **style)


def write_figure(folder: str | os.PathLike[str], name: str, figure: Figure) -> list[Path]:
    """NAME.png and NAME.svg in the folder, each written whole or not at all."""
    written = []
    kinds: dict[str, dict[str, Any]] = {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}
    for kind, options in kinds.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **options)
        written.append(files.atomic_write_bytes(Path(folder) / f"{name}.{kind}", buffer.getvalue()))
    return written


LIGHT, DARK = "#ffffff", "#14171c"  # the grounds of a page
WORDS, LINES = 4.6, 3.05  # contrast with the ground: WCAG 2 asks for 4.5 of words and for 3 of what is drawn
KNOWN = {  # colour, and words below the name
    "none": ("#6e6e6e", "no noise, no privacy"),
    "dp-dsgd": ("#d55e00", "independent noise"),
    "anti-pgd": ("#cc79a7", "noise of differences"),
    "bsr": ("#e69f00", "banded square root"),
    "bisr": ("#b15928", "banded inverse square root"),
    "lambda-cgd": ("#fb9a99", "a share of the last noise taken back"),
    "d-mf": ("#0072b2", "optimal for one server"),
    "mafalda": ("#009e73", "optimal for this graph"),
    "mafalda-l": ("#56b4e9", "one encoder per node"),
    "mafalda-classes": ("#17becf", "one encoder per degree"),
    "banded": ("#1b5e20", "few diagonals, for this graph"),
    "toeplitz": ("#8bc34a", "alike over time, for this graph"),
    "blt": ("#f48fb1", "few exponentials, for this graph"),
    "band-inv": ("#795548", "banded inverse, for this graph"),
    "decor": ("#bcbd22", "pairwise noise on edges"),
    "corn": ("#a6761d", "optimal over nodes"),
    "kronecker": ("#7b3294", "time and nodes, a product"),
    "per-mode": ("#d01c8b", "time and nodes, by direction"),
    "joint": ("#4d004b", "time and nodes, any form"),
}
MORE_COLOURS = ("#000000", "#8c510a", "#3b6e8f", "#7f7f00", "#e377c2", "#1f3b73")  # for other names, in order
DASHED = (4.0, 1.5)
DASHES = ((), (3.5, 1.5), (1.0, 1.5), (4.5, 1.5, 1.0, 1.5), (2.5, 1.0, 0.5, 1.0))  # in widths of the line
HOURGLASS = MarkerPath(np.array([(-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0)]))
MARKERS = ("o", "s", "^", "D", "P", "v", HOURGLASS)


@dataclasses.dataclass(frozen=True)
class Look:
    """One series.

    Attributes: dashes: lengths drawn and left out, in widths of the line; empty: a solid line. note: a few words on the
        series. index: its place among the series of a page; None: not in a page.
    """

    name: str
    colour: str
    dashes: tuple[float, ...] = ()
    marker: Any = ""
    note: str = ""
    index: int | None = None

    @property
    def classes(self) -> str:
        return "" if self.index is None else f"s{self.index}"

    @property
    def front(self) -> int:
        return 4 if self.name.startswith("mafalda") else 3

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": (0, self.dashes) if self.dashes else "-"}

    def handle(self, **style: Any) -> Line2D:
        return Line2D([], [], **self.line, marker=self.marker, markeredgewidth=0, **style)


def mechanism_looks(names: Iterable[str]) -> list[Look]:
    """A colour for each name; unknown names have dashed lines."""
    others, looks = itertools.cycle(MORE_COLOURS), []
    for name in names:
        colour = KNOWN[name][0] if name in KNOWN else next(others)
        looks.append(Look(name, colour, () if name in KNOWN else DASHED, note=mechanism_note(name)))
    return looks


def series_looks(names: Iterable[str]) -> dict[str, Look]:
    """Looks by name: markers and dashes differ; names that differ in their error weights alone share a colour."""
    distinct = list(dict.fromkeys(names))
    bases = list(dict.fromkeys(name.partition("@")[0] for name in distinct))
    colours = {look.name: look.colour for look in mechanism_looks(bases)}
    looks = {}
    for index, name in enumerate(distinct):
        dashes, marker = DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)]
        looks[name] = Look(name, colours[name.partition("@")[0]], dashes, marker, mechanism_note(name), index)
    return looks


def mechanism_note(name: str) -> str:
    """A few words on a mechanism; empty if it is not known.

    >>> mechanism_note("mafalda@last:2"), mechanism_note("file:a.mfdl")
    ('optimal for this graph, weighted', 'given noise')
    """
    base, _, weights = name.partition("@")
    words = "given noise" if base.startswith("file:") else KNOWN.get(base, ("", ""))[1]
    return f"{words}, weighted" if words and weights else words


def readable(colour: str, ground: str, ratio: float) -> str:
    """The nearest mixture with black or white whose contrast with the ground is at least the ratio.

    >>> readable("#e69f00", "#ffffff", 4.5), readable("#000000", "#ffffff", 4.5)
    ('#9c6c00', '#000000')
    """
    towards = 0.0 if luminance(ground) > 0.5 else 1.0
    for share in range(101):
        red, green, blue = (value + (towards - value) * share / 100 for value in to_rgb(colour))
        mixed = to_hex((red, green, blue))
        if contrast(mixed, ground) >= ratio:
            return str(mixed)
    raise AssertionError("black or white stands out from every ground")


def contrast(colour: str, other: str) -> float:
    """The ratio of WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2, from 0 to 1."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
    """The figure, which changes, as an `<svg>` element inside a page, as wide as its place, without fonts and ids.

    Colours become CSS variables; the gid of an artist (`css`) its CSS classes; its url a `<title>`.
    Args: title: for screen readers; looks: the series, each drawn in the variables --cI and --tI of its index I.
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
    shapes = {element.attrib["id"]: element for element in source.iter() if "id" in element.attrib}
    theme = _Theme({look.colour: look.index for look in looks}, shapes)
    root = Element("svg", {"viewBox": source.attrib["viewBox"], "role": "img", "aria-label": title})
    root.extend(list(theme.copies(source)))
    return ElementTree.tostring(root, encoding="unicode")  # escapes every string


@dataclasses.dataclass(frozen=True)
class _Theme:
    """Copies elements of matplotlib's SVG with their style: from a colour to the index of its series; shapes by id."""

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

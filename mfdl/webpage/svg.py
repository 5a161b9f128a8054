"""Small drawings as SVG in the page: text stays text, colours come from the page's style, every string is escaped.

In: numbers and names. Out: elements of xml.etree, and `markup` of them for the page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.ticker import LogLocator, MaxNLocator

Element = ElementTree.Element
MINUS = "\u2212"
CHARACTER = 7.7  # width of one in bold, at the size of labels, in a wide font
LOG_RATIO = 8.0  # largest over smallest beyond which an axis is logarithmic


def svg(width: float, height: float, title: str) -> Element:
    """A drawing that fills the width it is given; the title is what a screen reader says."""
    return Element("svg", {"viewBox": f"0 0 {_short(width)} {_short(height)}", "role": "img", "aria-label": title})


def add(parent: Element, tag: str, text: str | None = None, /, tip: str | None = None, **attributes: Any) -> Element:
    """An element inside another; `class_` for class, _ for -; tip: what a pointer that rests on it is told."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    made = ElementTree.SubElement(parent, tag, {k: _short(v) for k, v in names.items()})
    if tip is not None:
        ElementTree.SubElement(made, "title").text = tip
    if text is not None:
        if len(made):
            made[-1].tail = text  # behind the tip
        else:
            made.text = text
    return made


def markup(root: Element) -> Markup:
    """The drawing as the page takes it."""
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # xml.etree has escaped every string


def _short(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def polyline(points: Sequence[tuple[float, float] | None]) -> str:
    """A path through the points, broken where one is None."""
    words, open_ = [], False
    for point in points:
        if point is None:
            open_ = False
        else:
            words.append(f"{'L' if open_ else 'M'}{_short(float(point[0]))} {_short(float(point[1]))}")
            open_ = True
    return "".join(words)


@dataclasses.dataclass(frozen=True)
class Scale:
    """From data to places: low and high are at start and stop."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(max(value, low * 1e-9))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + (self.stop - self.start) * share

    def within(self, value: float) -> float:
        """The place, that of the nearer end for values beyond."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, count: int = 5) -> list[float]:
        """Round values in the range."""
        if self.logarithmic:
            few = math.log10(self.high / self.low) < 2.2
            values = LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=9).tick_values(self.low, self.high)
        else:
            values = MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        slack = 1e-9 * (self.high - self.low)
        return [float(value) for value in values if self.low - slack <= value <= self.high + slack]


def around(values: Sequence[float], start: float, stop: float, *, logarithmic: bool | None = None) -> Scale:
    """A scale that holds all finite values with a margin; logarithmic by default where they span a factor of 8."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if logarithmic is None:
        logarithmic = low > 0 and high / low >= LOG_RATIO
    if logarithmic and low > 0:
        return Scale(low / 1.15, high * 1.15, start, stop, True)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return Scale(low - margin, high + margin, start, stop)


def plain(value: float) -> str:
    """A number as ticks and small tables show it.

    >>> [plain(value) for value in (0.0, 0.25, 1e-9, 12345678.0, 3.0, 0.1 + 0.2)]
    ['0', '0.25', '1e-9', '1.23e7', '3', '0.3']
    """
    text = f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", MINUS if value < 0 else "-", 1)

"""How series are told apart: by a colour that is fixed per mechanism, and without colours by marker and dashes.

Colours are safe for colour-blind readers (Okabe and Ito's palette, extended). In a page, where the ground is light or
dark, `readable` moves a colour towards black or white until it stands out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.path import Path as MarkerPath

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

    Attributes:
        dashes: lengths drawn and left out, in widths of the line; empty: a solid line.
        marker: of matplotlib; empty: none.
        note: a few words on the series.
        index: its place among the series of a page, which are shown and hidden by it; None: not in a page.
    """

    name: str
    colour: str
    dashes: tuple[float, ...] = ()
    marker: Any = ""
    note: str = ""
    index: int | None = None

    @property
    def classes(self) -> str:
        """CSS classes of what is drawn of it in a page."""
        return "" if self.index is None else f"s{self.index}"

    @property
    def front(self) -> int:
        """z-order of its line."""
        return 4 if self.name.startswith("mafalda") else 3

    @property
    def line(self) -> dict[str, Any]:
        """Colour and dashes of a line."""
        return {"color": self.colour, "linestyle": (0, self.dashes) if self.dashes else "-"}

    def handle(self, **style: Any) -> Line2D:
        """The line of a legend; style: as of Line2D."""
        return Line2D([], [], **self.line, marker=self.marker, markeredgewidth=0, **style)


def looks_of(names: Iterable[str]) -> list[Look]:
    """A colour for each name; names that are not known have dashed lines."""
    looks, others = [], 0
    for name in names:
        if name in KNOWN:
            looks.append(Look(name, KNOWN[name][0], note=note_of(name)))
        else:
            looks.append(Look(name, MORE_COLOURS[others % len(MORE_COLOURS)], DASHED, note=note_of(name)))
            others += 1
    return looks


def series_looks(names: Iterable[str]) -> dict[str, Look]:
    """By name: markers and dashes differ; names that differ in their error weights alone share a colour."""
    distinct = list(dict.fromkeys(names))
    bases = list(dict.fromkeys(name.partition("@")[0] for name in distinct))
    colours = {look.name: look.colour for look in looks_of(bases)}
    return {
        name: Look(
            name,
            colours[name.partition("@")[0]],
            DASHES[index % len(DASHES)],
            MARKERS[index % len(MARKERS)],
            note_of(name),
            index,
        )
        for index, name in enumerate(distinct)
    }


def note_of(name: str) -> str:
    """A few words on a mechanism; empty where it is not known.

    >>> note_of("mafalda@last:2"), note_of("file:a.mfdl")
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

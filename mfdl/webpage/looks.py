"""How series are told apart: by a colour for light and one for dark ground, and without them by marker and dashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from matplotlib.colors import to_hex, to_rgb

from ..pictures.curves import LOOKS, colours_of

LIGHT, DARK = "#ffffff", "#14171c"  # the grounds that figures lie on
WORDS, LINES = 4.6, 3.05  # contrast with the ground: WCAG asks for 4.5 in words and for 3 in what is drawn
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2")
MARKERS = {  # paths around (0, 0), all of about one area
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "square": "M-3.6-3.6h7.2v7.2h-7.2Z",
    "triangle": "M0-4.8L4.6 3.5H-4.6Z",
    "diamond": "M0-5.2L4.4 0 0 5.2-4.4 0Z",
    "plus": "M-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2Z",
    "wedge": "M0 4.8L4.6-3.5H-4.6Z",
    "hourglass": "M-4.2-4.4h8.4L-4.2 4.4h8.4Z",
}


@dataclasses.dataclass(frozen=True)
class Look:
    """One series.

    Attributes: light, dark: colours of its lines and of its name on those grounds; dashes: as SVG has them; marker: a
        path; note: a few words.
    """

    index: int
    name: str
    light: tuple[str, str]
    dark: tuple[str, str]
    dashes: str
    marker: str
    note: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """By name, in order; what differs in its error weights alone has the colour of its mechanism."""
    distinct = list(dict.fromkeys(names))
    bases = list(dict.fromkeys(name.partition("@")[0] for name in distinct))
    colours = dict(zip(bases, (colour for colour, _ in colours_of(bases)), strict=True))
    paths = list(MARKERS.values())
    made = {}
    for index, name in enumerate(distinct):
        base, _, weights = name.partition("@")
        note = LOOKS.get(base, ("", ""))[1]
        note = f"{note}, weights {weights}" if note and weights else note
        light, dark = (
            (readable(colours[base], ground, LINES), readable(colours[base], ground, WORDS)) for ground in (LIGHT, DARK)
        )
        made[name] = Look(index, name, light, dark, DASHES[index % len(DASHES)], paths[index % len(paths)], note)
    return made


def readable(colour: str, ground: str, ratio: float) -> str:
    """The nearest mixture with black or white that stands out from the ground.

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


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2, from 0 to 1."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

"""Curves in a panel: lines with bands, markers and names at their ends, dotted levels, one look per series."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from ..pictures.style import spread
from .looks import Look
from .svg import CHARACTER, Element, Scale, add, around, markup, plain, polyline, svg

WIDTH, TOP, LEFT, BOTTOM = 380.0, 26.0, 42.0, 52.0
NAME_ROW = 15.0  # height of a name
LONGEST = 15  # characters of a name beside its line
MARKED = 6  # points of a line that carry its marker, about


@dataclasses.dataclass(frozen=True)
class Line:
    """One series. x, y, and the range low to high at each x; None: no point there. tips: what each point says."""

    look: Look
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]
    tips: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Level:
    """A dotted horizontal line with its name. look: of a series that is shown and hidden with it."""

    name: str
    value: float
    look: Look | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """What is drawn: `x_ticks` are values with one or two rows of text, default round values.

    Attributes: title: said by screen readers; every: markers at all points, not at some.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    x_ticks: Sequence[tuple[float, str, str]] = ()
    x_log: bool = False
    y_log: bool | None = None
    every: bool = True


def draw(chart: Chart) -> Markup:
    """The panel."""
    names = [line.look.name for line in chart.lines] + [level.name for level in chart.levels]
    right = 22 + CHARACTER * max((len(short(name)) for name in names), default=0)
    height = max(250.0, TOP + BOTTOM + NAME_ROW * (len(names) + 1))
    root = svg(WIDTH, height, chart.title)
    y = _y_scale(chart, height)
    x = _x_scale(chart, WIDTH - right)
    _axes(root, chart, x, y, height)
    places = _shifted(chart, x)
    for level in chart.levels:
        _level(root, level, x, y)
    for line, place in zip(chart.lines, places, strict=True):
        _line(root, line, place, y, every=chart.every)
    _names(root, chart, x, y, places, height)
    return markup(root)


def short(name: str) -> str:
    """A name as it stands beside its line: of a long one the beginning and the end, which tells files apart.

    >>> short("mafalda"), short("file:/home/somebody/strategy.mfdl")
    ('mafalda', 'file:/ho…y.mfdl')
    """
    return name if len(name) <= LONGEST else f"{name[:8]}…{name[8 - LONGEST + 1 :]}"


def _y_scale(chart: Chart, height: float) -> Scale:
    drawn = [v for line in chart.lines for values in (line.y, line.low, line.high) for v in values if v is not None]
    return around([*drawn, *(level.value for level in chart.levels)], height - BOTTOM, TOP, logarithmic=chart.y_log)


def _x_scale(chart: Chart, stop: float) -> Scale:
    values = [value for line in chart.lines for value in line.x] or [0.0, 1.0]
    low, high = min(values), max(values)
    if low == high:
        return Scale(low - 1, high + 1, LEFT, stop)
    return Scale(low, high, LEFT + 8, stop - 6, chart.x_log and low > 0)


def _shifted(chart: Chart, x: Scale) -> list[list[float]]:
    """Places of the points: of series that have one point each, side by side."""
    if len({value for line in chart.lines for value in line.x}) > 1:
        return [[x(value) for value in line.x] for line in chart.lines]
    step = (x.stop - x.start) / (len(chart.lines) + 1)
    return [[x.start + step * (i + 1) for _ in line.x] for i, line in enumerate(chart.lines)]


def _axes(root: Element, chart: Chart, x: Scale, y: Scale, height: float) -> None:
    floor = height - BOTTOM
    for value in y.ticks():
        at = y(value)
        add(root, "line", class_="grid", x1=LEFT, x2=x.stop + 6, y1=at, y2=at)
        add(root, "text", plain(value), class_="tick", x=LEFT - 6, y=at + 4, text_anchor="end")
    ticks = chart.x_ticks or [(value, plain(value), "") for value in x.ticks(4)]
    last = -1e9
    for value, text, below in ticks:
        at = x(value)
        if at - last < CHARACTER * max(len(text), len(below)) + 5:
            continue
        last = at
        add(root, "line", class_="axis", x1=at, x2=at, y1=floor, y2=floor + 4)
        add(root, "text", text, class_="tick", x=at, y=floor + 15, text_anchor="middle")
        if below:
            add(root, "text", below, class_="tick faint", x=at, y=floor + 28, text_anchor="middle")
    add(root, "line", class_="axis", x1=LEFT, x2=x.stop + 6, y1=floor, y2=floor)
    add(root, "text", chart.y_label, class_="label", x=0, y=11)
    down = 46 if any(below for *_, below in ticks) else 33
    add(root, "text", chart.x_label, class_="label", x=(LEFT + x.stop) / 2, y=floor + down, text_anchor="middle")


def _level(root: Element, level: Level, x: Scale, y: Scale) -> None:
    group = add(root, "g", class_=f"s{level.look.index}" if level.look else "level")
    at = y(level.value)
    add(
        group,
        "path",
        tip=f"{level.name}: {plain(level.value)}",
        class_="dotted",
        d=f"M{LEFT} {at:.1f}H{x.stop + 6:.1f}",
    )


def _line(root: Element, line: Line, places: Sequence[float], y: Scale, *, every: bool) -> None:
    group = add(root, "g", class_=f"s{line.look.index}")
    points = [None if value is None else (at, y(value)) for at, value in zip(places, line.y, strict=True)]
    ends = [
        None if low is None or high is None else (at, y(low), y(high))
        for at, low, high in zip(places, line.low, line.high, strict=True)
    ]
    known = [end for end in ends if end is not None]
    if len(known) > 1:
        there, back = [(at, top) for at, _, top in known], [(at, low) for at, low, _ in known[::-1]]
        add(group, "path", class_="band", d=f"{polyline([*there, *back])}Z")
    elif known and known[0][1] != known[0][2]:
        at, low, top = known[0]
        add(
            group,
            "path",
            class_="bar",
            d=f"M{at:.1f} {low:.1f}V{top:.1f}M{at - 4:.1f} {low:.1f}h8M{at - 4:.1f} {top:.1f}h8",
        )
    add(group, "path", class_="line", d=polyline(points), stroke_dasharray=line.look.dashes or None)
    step = 1 if every else max(1, len(points) // MARKED)
    shift = line.look.index % step  # markers of other series are not on top of these
    for i, (point, tip) in enumerate(zip(points, line.tips, strict=True)):
        if point is not None and (i % step == shift or len(points) == 1):
            where = f"translate({point[0]:.1f} {point[1]:.1f})"
            add(group, "path", tip=tip, class_="mark", d=line.look.marker, transform=where)


def _names(root: Element, chart: Chart, x: Scale, y: Scale, places: Sequence[Sequence[float]], height: float) -> None:
    """Names right of the panel, joined to the ends of their lines, none over another."""
    ends: list[tuple[float, float, str, Look | None, bool]] = []  # place across, height, name, look, whether a level
    for line, where in zip(chart.lines, places, strict=True):
        known = [(place, value) for place, value in zip(where, line.y, strict=True) if value is not None]
        if known:
            ends.append((known[-1][0], y(known[-1][1]), line.look.name, line.look, False))
    ends += [(x.stop + 6, y(level.value), level.name, level.look, True) for level in chart.levels]
    ends.sort(key=lambda it: -it[1])
    length = height - BOTTOM - TOP
    heights = [1 - (it[1] - TOP) / length for it in ends]
    for (at, end, name, look, dotted), share in zip(ends, spread(heights, NAME_ROW / length), strict=True):
        to, edge = TOP + (1 - share) * length, x.stop + 6
        group = add(root, "g", class_=f"s{look.index}" if look else "level")
        add(group, "path", class_="lead", d=f"M{at:.1f} {end:.1f}H{edge:.1f}L{edge + 8:.1f} {to:.1f}")
        if look is not None and not dotted:
            add(group, "path", class_="mark", d=look.marker, transform=f"translate({edge + 13:.1f} {to:.1f}) scale(.8)")
        kind = "name" if look is not None and not dotted else "level-name"
        add(group, "text", short(name), tip=name if short(name) != name else None, class_=kind, x=edge + 19, y=to + 4)

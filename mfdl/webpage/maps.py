"""Matrices as colours and correlations on a graph, readable in grey too: the maps run from dark to bright."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import networkx as nx
import numpy as np
from markupsafe import Markup
from matplotlib.colors import FuncNorm, Normalize
from PIL import Image

from .. import graphs
from ..check import FloatArray
from ..pictures.heat_maps import MAX_NUMBERED, WHOLE_RANGE, cell_text, scale
from ..pictures.networks import LAYOUT_SEED, MAX_LABELLED
from .charts import short
from .svg import CHARACTER, Element, add, markup, plain, svg

SIDE, BAR = 300.0, 12.0
NOTHING = 255  # palette index of what is not known, infinite or not there
MOST_PIXELS = 400  # rows and columns of a picture: of more, every second or third is shown
STRONGEST = 2  # pairs for each node that are drawn on a graph too large for names


def drawn_pairs(correlation: FloatArray) -> tuple[list[tuple[int, int]], int]:
    """The correlated pairs that a graph shows, the strongest first, and how many there are."""
    n = len(correlation)
    pairs = [(i, j) for i in range(n) for j in range(i) if abs(correlation[i, j]) > WHOLE_RANGE]
    pairs.sort(key=lambda pair: -abs(correlation[pair]))
    return pairs if n <= MAX_LABELLED else pairs[: STRONGEST * n], len(pairs)


def losses(values: FloatArray, labels: Sequence[str], title: str) -> Markup:
    """What attacker (across) learns of victim (down): bright is much; infinite and unknown cells stay empty."""
    norm, _ = scale(values)
    return _map(values, norm, labels, title, ("attacker", "victim"), cell_text)


def over_time(matrix: FloatArray, title: str, across: str, down: str) -> Markup:
    """A signed matrix over steps: bright is positive, dark is negative, the roots of sizes are drawn."""
    return _map(matrix, _signed(float(np.nanmax(np.abs(matrix)))), None, title, (across, down))


def correlation(matrix: FloatArray, labels: Sequence[str], title: str) -> Markup:
    """Correlations between nodes, on the scale of the largest between two."""
    off = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    shown = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    return _map(shown, _signed(float(np.abs(off).max())), labels, title, ("node", "node"), signed_text)


def _signed(largest: float) -> Normalize:
    """From -largest to largest by the square root of the size, which shows what is small."""
    roots = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda y: np.sign(y) * np.square(y))
    return FuncNorm(roots, -(largest or 1.0), largest or 1.0)


def _map(
    values: FloatArray,
    norm: Normalize,
    labels: Sequence[str] | None,
    title: str,
    axes: tuple[str, str],
    in_cells: Callable[[float], str] | None = None,
) -> Markup:
    n, named = values.shape[0], labels is not None and values.shape[0] <= MAX_LABELLED
    left = 30 + (CHARACTER * 0.8 * max(len(short(name)) for name in labels or ()) if named else 14.0)
    under = left - 12 if named else 34.0
    root = svg(left + SIDE + 8, SIDE + under + 40, title)
    picture: dict[str, Any] = {"width": SIDE, "height": SIDE, "x": left, "y": 4.0, "preserveAspectRatio": "none"}
    add(root, "image", class_="cells", href=_png(values, norm), **picture)
    add(root, "rect", class_="frame", x=left, y=4.0, width=SIDE, height=SIDE)
    cell = SIDE / n
    at = range(n) if named else sorted({0, n // 4, n // 2, 3 * n // 4, n - 1})
    for i in at:
        text, middle = (short(labels[i]) if named and labels else str(i + 1)), (i + 0.5) * cell
        add(root, "text", text, class_="tick small", x=left - 4, y=4 + middle + 3, text_anchor="end")
        how = f"translate({left + middle + 3:.1f} {SIDE + 9:.1f}) rotate(-90)" if named else None
        where = {"transform": how} if named else {"x": left + middle, "y": SIDE + 16}
        add(root, "text", text, class_="tick small", text_anchor="end" if named else "middle", **where)
    add(root, "text", axes[0], class_="label", x=left + SIDE / 2, y=SIDE + under, text_anchor="middle")
    add(
        root,
        "text",
        axes[1],
        class_="label",
        text_anchor="middle",
        transform=f"translate(11 {SIDE / 2:.0f}) rotate(-90)",
    )
    if in_cells is not None and n <= MAX_NUMBERED:
        _write_cells(root, values, norm, left, in_cells)
    _bar(root, norm, left, SIDE + under + 10)
    return markup(root)


def _png(values: FloatArray, norm: Normalize) -> str:
    """A data address of the cells, one pixel each, by a palette of colours."""
    step = -(-max(values.shape) // MOST_PIXELS)
    shown = values[::step, ::step]
    known = np.isfinite(shown)
    index = np.full(shown.shape, NOTHING, dtype=np.uint8)
    index[known] = np.clip(np.asarray(norm(shown[known])) * (NOTHING - 1), 0, NOTHING - 1).astype(np.uint8)
    image = Image.fromarray(index, mode=None)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 1, NOTHING))[:, :3]
    image.putpalette([*np.round(colours * 255).astype(int).ravel().tolist(), 128, 128, 128])
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", transparency=NOTHING, optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _write_cells(
    root: Element, values: FloatArray, norm: Normalize, left: float, in_cells: Callable[[float], str]
) -> None:
    """What is known, readable on its colour."""
    cell = SIDE / len(values)
    size = min(10.0, cell * 0.46)
    for (i, j), value in np.ndenumerate(values):
        if math.isnan(value):
            continue
        text = "∞" if math.isinf(value) else in_cells(value)
        kind = "cell none" if math.isinf(value) else f"cell {'bright' if norm(value) > 0.6 else 'dark'}"
        where = {"x": left + (j + 0.5) * cell, "y": 4 + (i + 0.5) * cell + size * 0.35, "text_anchor": "middle"}
        fits = min(size, 1.5 * cell / max(len(text), 1))
        add(root, "text", text, class_=kind, style=f"font-size:{fits:.1f}px", **where)


def signed_text(value: float) -> str:
    """Two digits behind the point, and nothing before it where that is zero.

    >>> [signed_text(value) for value in (-0.123, 0.5, 0.001, 1.0)]
    ['-.12', '.50', '0', '1.00']
    """
    text = f"{value:.2f}"
    return "0" if float(text) == 0 else text.replace("0.", ".", 1)


def _bar(root: Element, norm: Normalize, left: float, top: float) -> None:
    """The colours with numbers below them."""
    shares = np.linspace(0, 1, 64)
    values = np.array([float(norm.inverse(share)) for share in shares])
    picture: dict[str, Any] = {"width": SIDE, "height": BAR, "x": left, "y": top, "preserveAspectRatio": "none"}
    add(root, "image", class_="cells", href=_png(values[None, :], norm), **picture)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        text = plain(float(f"{float(norm.inverse(share)):.2g}"))
        add(root, "text", text, class_="tick small", x=left + share * SIDE, y=top + BAR + 13, text_anchor=anchor)


def on_graph(graph: nx.Graph, correlation: FloatArray, std: FloatArray, title: str) -> Markup:
    """Nodes as large as the noise they inject, lines as wide as it is correlated; dashed lines are negative."""
    labels = list(graphs.labels(graph))
    layout = nx.spring_layout(graph, seed=LAYOUT_SEED)
    spots = np.array([layout[label] for label in labels])
    low, high = spots.min(axis=0), spots.max(axis=0)
    size, pad = 380.0, 30.0
    spots = pad + (spots - low) / np.where(high > low, high - low, 1.0) * (size - 2 * pad)
    root = svg(size, size, title)
    index = {label: i for i, label in enumerate(labels)}
    for one, other in graph.edges:
        (x1, y1), (x2, y2) = spots[index[one]], spots[index[other]]
        add(root, "line", class_="edge", x1=x1, y1=y1, x2=x2, y2=y2)
    pairs, _ = drawn_pairs(correlation)
    widest = 4.6 if len(labels) <= MAX_LABELLED else 2.2
    largest = abs(correlation[pairs[0]]) if pairs else 1.0
    for i, j in pairs[::-1]:
        value = correlation[i, j]
        (x1, y1), (x2, y2), sign = spots[i], spots[j], "minus" if value < 0 else "plus"
        width = 0.4 + widest * abs(value) / largest
        tip = f"{labels[i]} and {labels[j]}: correlation {plain(value)}"
        add(root, "line", tip=tip, class_=f"pair {sign}", x1=x1, y1=y1, x2=x2, y2=y2, stroke_width=width)
    radius = 3 + 5 * std / (std.max() or 1.0) if len(labels) <= MAX_LABELLED else np.full(len(labels), 3.0)
    for i, label in enumerate(labels):
        tip = f"{label}: std {plain(std[i])}"
        add(root, "circle", tip=tip, class_="node", cx=spots[i][0], cy=spots[i][1], r=float(radius[i]))
    if len(labels) <= MAX_LABELLED:
        for i, label in enumerate(labels):
            across = min(max(spots[i][0], 34.0), size - 34.0)
            where = {"x": across, "y": spots[i][1] - radius[i] - 4, "text_anchor": "middle"}
            add(root, "text", short(str(label)), class_="tick halo", **where)
    return markup(root)

"""What pictures are drawn with: looks, names beside lines and nodes, numbers in cells, SVG in the colours of a page."""

import base64
import io
import re
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest
from last_bits import nudged
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from vocabulary import given, st

from mfdl import graphs
from mfdl.pictures import drawings, style
from mfdl.pictures.line_charts import Level, Line, LineChart
from mfdl.pictures.style import MINUS, fit_y, spread, themed_svg

SERIES = style.series_looks(["a$b$", "mafalda", "a name of many characters"])


def test_colours_are_fixed_per_name_and_series_differ_without_them():
    names = [*style.KNOWN, "file:a.npz", "file:b.npz"]
    assert len({look.colour for look in style.mechanism_looks(names)}) == len(names)
    assert style.mechanism_looks(["mafalda"]) == style.mechanism_looks(["none", "mafalda"])[1:]
    series = style.series_looks(["mafalda", "mafalda@last:2", *style.KNOWN])
    assert series["mafalda"].colour == series["mafalda@last:2"].colour
    assert len({(str(look.marker), look.dashes) for look in series.values()}) == len(series) == len(style.KNOWN) + 1


@given(st.tuples(*[st.integers(0, 255)] * 3), st.sampled_from([style.LIGHT, style.DARK]), st.sampled_from([3.0, 4.6]))
def test_colours_can_be_read_on_their_ground(rgb, ground, ratio):
    colour = "#{:02x}{:02x}{:02x}".format(*rgb)
    mixed = style.readable(colour, ground, ratio)
    assert style.contrast(mixed, ground) >= ratio
    if style.contrast(colour, ground) >= ratio:
        assert mixed == colour
    assert style.contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("wanted", [[0.5, 0.5, 0.5], [0.0, 0.01, 0.98, 0.99], [0.1, 0.5, 0.9], [1.0, 1.0]])
def test_names_never_overlap_and_stay_inside(wanted):
    placed = spread(wanted, 0.1)
    assert (np.diff(placed) >= 0.1 - 1e-9).all()
    assert 0 <= placed[0] < placed[-1] <= 1


RANGES = {  # values, whether a logarithmic scale is wanted, whether it is drawn
    "few": ([1, 7.9], None, False), "wide": ([1, 8.1, np.inf, np.nan], None, True), "zero": ([0, 9], None, False),
    "never": ([1, 100], False, False), "always": ([0, 1e-3, 2], True, True), "negative": ([-1, 0], True, False),
    "same": ([2, 2], None, False), "none": ([], None, False),
}  # fmt: skip


@pytest.mark.parametrize(("values", "wanted", "logarithmic"), RANGES.values(), ids=RANGES)
def test_a_range_holds_every_value_that_its_scale_can(values, wanted, logarithmic):
    axes = Figure().add_subplot()
    fit_y(axes, values, logarithmic=wanted)
    low, high = axes.get_ylim()
    assert (axes.get_yscale() == "log") == logarithmic
    assert low < high
    assert all(low < v < high for v in values if np.isfinite(v) and not (logarithmic and v <= 0))


@pytest.mark.parametrize("values", [(0.0035, 0.019), (0.3, 2.1), (12.0, 85.0)])
def test_a_scale_within_one_decade_is_labelled_where_its_values_lie(values):
    axes = Figure().add_subplot()
    fit_y(axes, values, logarithmic=True)
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert min(ticks) < 1.3 * values[0]
    assert len(ticks) >= 5


@pytest.mark.parametrize("spec", ["erdos-renyi:n=20,p=0.2,seed=1", "florentine", "ring:n=12", "star:n=6", "path:n=2"])
def test_no_name_lies_over_another_or_over_a_node_or_outside(spec):
    graph = graphs.load(spec)
    figure = Figure(figsize=(7.4, 5.6))
    axes = figure.add_axes((0.01, 0.1, 0.98, 0.85))
    layout, size = drawings.draw_edges(axes, graph)
    axes.scatter(*np.array(list(layout.values())).T, s=size)
    drawings.name_nodes(axes, graph, layout, {label: f"{label}\n± 1.5e4" for label in graph}, size)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = {t.get_text().split("\n")[0]: t.get_window_extent(canvas.get_renderer()) for t in axes.texts}
    assert set(boxes) == {str(label) for label in graph}
    spots = {str(label): axes.transData.transform(spot) for label, spot in layout.items()}
    for name, box in boxes.items():
        assert not any(box.overlaps(other) for more, other in boxes.items() if more != name), name
        assert not any(box.contains(*spot) for spot in spots.values()), name
        assert all(figure.bbox.contains(*corner) for corner in box.get_points()), name
        assert min(spots, key=lambda label: np.hypot(*(box.get_points().mean(axis=0) - spots[label]))) == name


def test_a_graph_without_edges_has_names_too():
    graph = nx.empty_graph(3)
    axes = Figure().add_subplot()
    layout, size = drawings.draw_edges(axes, graph)
    drawings.name_nodes(axes, graph, layout, {0: "a", 2: "c"}, size)
    assert sorted(t.get_text() for t in axes.texts) == ["a", "c"]


def test_a_large_graph_shows_the_strongest_pairs():
    correlation = np.eye(50)
    correlation[1:, 0] = correlation[0, 1:] = np.linspace(-0.9, 0.9, 49)
    correlation[2:, 1] = correlation[1, 2:] = 0.95
    correlation[3:, 2] = correlation[2, 3:] = 0.01
    pairs, total = drawings.drawn_pairs(correlation)
    assert total == 48 + 48 + 47  # one of the first row is 0
    assert (len(pairs), pairs[:48]) == (100, [(i, 1) for i in range(2, 50)])
    assert len(drawings.drawn_pairs(correlation[:40, :40])[0]) == drawings.drawn_pairs(correlation[:40, :40])[1]


@given(st.integers(0, 2**32 - 1))
def test_equally_correlated_pairs_are_drawn_in_their_order(seed):
    correlation = nudged(np.where(np.eye(6) > 0, 1.0, 0.5), seed)
    assert drawings.drawn_pairs(correlation)[0] == [(i, j) for i in range(6) for j in range(i)]


def themed(figure):
    """The drawing as elements; its colours are variables but in cells, and it has no ids."""
    text = themed_svg(figure, "title", SERIES.values())
    assert set(re.findall(r"(?:fill|stroke):(?!none|var)([^;\"]+)", text)) <= set(drawings.IN_CELLS)
    assert "id=" not in text
    return ElementTree.fromstring(text)


def tips(root):
    middles = {}
    for path in root.iter("path"):
        for title in path.findall("title"):
            numbers = (re.findall(r"-?[\d.]+", path.attrib.get(name, "0 0")) for name in ("d", "transform"))
            points, shift = (np.array(texts, dtype=float).reshape(-1, 2) for texts in numbers)
            middles[title.text] = tuple(points.mean(axis=0) + shift[0])
    return middles


def line(look, middle):
    middle = np.array(middle)
    words = [f"{look.name} {i}" for i in range(middle.size)]
    return Line(look, np.arange(middle.size) + 1.0, middle, middle - 0.5, middle + 0.5, tips=words)


@pytest.mark.parametrize("name", SERIES)
def test_tips_are_at_their_points(name):
    chart = LineChart("x", "y", [line(SERIES[name], [5.0, np.nan, 7.0, 6.0])], [Level("level", 6.5)], y_log=False)
    tips_of_chart = tips(themed(chart.figure()))
    assert tips_of_chart.keys() == {"level: 6.5", f"{name} 0", f"{name} 2", f"{name} 3"}  # nothing at nan
    (x0, y0), (x2, y2), (x3, y3) = (tips_of_chart[f"{name} {i}"] for i in (0, 2, 3))
    assert (x2 - x0, y0 - y2) == (pytest.approx(2 * (x3 - x2), abs=0.5), pytest.approx(2 * (y0 - y3), abs=0.5))
    assert y2 < tips_of_chart["level: 6.5"][1] < y3 < y0  # 7 is above 6.5 above 6 above 5


def test_lines_are_means_with_their_range_where_all_repetitions_are_finite():
    drawn = Line.from_repetitions(SERIES["mafalda"], [1, 2, 3], np.array([[1.0, np.inf, 5.0], [3.0, 2.0, np.nan]]))
    wanted = np.array([[2, 1, 3], [np.nan] * 3, [np.nan] * 3]).T
    np.testing.assert_array_equal([drawn.middle, drawn.low, drawn.high], wanted)


def test_markers_of_long_lines_are_few_and_those_of_two_series_apart():
    lines = [line(look, np.linspace(1, 2, 60)) for look in SERIES.values()]
    marked = {f"{name} {i}" for shift, name in enumerate(SERIES) for i in range(shift, 60, 10)}
    assert tips(themed(LineChart("x", "y", lines).figure(marked=6))).keys() == marked


def test_series_are_told_apart_by_classes_and_names_are_text():
    lines = [line(look, [1.0 + i, 2.0]) for i, look in enumerate(SERIES.values())]
    ticks = [(1.0, "first", "below"), (1.01, "too near", ""), (2.0, "second", "")]
    root = themed(LineChart("x", "$y$", lines, [Level("none", 1.5, SERIES["mafalda"])], ticks).figure())
    classes = {group.attrib["class"] for group in root.iter("g")}
    kinds = {f"s{look.index} {kind}" for look in SERIES.values() for kind in ("line", "band", "mark", "name")}
    assert classes == kinds | {"s1", "s1 level-name"}
    words = {"".join([text.text or "", *(tip.tail or "" for tip in text)]) for text in root.iter("text")}
    assert {"a$b$", "mafalda", "a name o…acters", "x", "$y$", "none", "first", "below", "second"} <= words
    assert "too near" not in words
    assert "a name of many characters" in {title.text for title in root.iter("title")}
    assert root.attrib["aria-label"] == "title"


def test_points_at_one_place_are_side_by_side_with_their_ranges():
    lines = [Line(look, *(np.array([v]) for v in (3.0, 2.0, 1.0, 4.0)), tips=[look.name]) for look in SERIES.values()]
    root = themed(LineChart("x", "y", lines, x_log=True).figure())
    x, y = np.array([tips(root)[name] for name in SERIES]).T
    assert np.ptp(y) < 1
    assert np.diff(x) == pytest.approx([np.ptp(x) / 2] * 2, abs=0.5)
    assert np.ptp(x) > 50
    known = np.array([[0.0, np.nan, np.nan, np.nan], [1.0, 2.0, 1.0, 4.0]])
    for drawing, count in (
        (root, len(SERIES)),
        (themed(LineChart("x", "y", [Line(SERIES["mafalda"], *known.T)]).figure()), 1),
    ):
        bands = [group.find("path") for group in drawing.iter("g") if "band" in group.attrib["class"]]
        assert ["stroke:var" in path.attrib["style"] for path in bands] == [True] * count


@pytest.mark.parametrize("size", [3, 30, 500])
def test_a_map_has_a_colour_for_each_number_and_none_elsewhere(size):
    values = np.random.default_rng(0).standard_normal((size, size))
    values[0, 0], values[0, 2] = np.nan, np.inf
    root = themed(
        drawings.square_map(
            values, [f"n{i}" for i in range(size)], ("across", "down"), norm=drawings.signed_scale(values[1:])
        )
    )
    texts = [text.text for text in root.iter("text")]
    assert {"across", "down", *(["n0", "n2"] if size <= 40 else ["1", "251"])} <= set(texts)
    assert texts.count("∞") == (size <= 20)
    cells = next(root.iter("image")).attrib["href"].partition(",")[2]
    alpha = np.asarray(Image.open(io.BytesIO(base64.b64decode(cells))).convert("RGBA"))[..., 3]
    assert alpha.shape == (min(size, 250),) * 2
    assert np.argwhere(alpha == 0).tolist() == [[0, 0], [0, 1 if size == 500 else 2]]


def test_numbers_can_be_read_on_their_cells():
    values = np.geomspace(0.01, 10, 400).reshape(20, 20)
    axes = Figure().add_subplot()
    image, words = drawings.draw_matrix(axes, values, [], [])
    assert words == " (logarithmic)"
    for text, value in zip(axes.texts, values.ravel(), strict=True):
        assert style.contrast(text.get_color(), to_hex(image.to_rgba(value))) > 4.5


def test_a_graph_says_its_correlations_and_deviations():
    correlation = np.array([[1.0, -0.5, 0.0], [-0.5, 1.0, 0.25], [0.0, 0.25, 1.0]])
    root = themed(drawings.correlated_graph(nx.path_graph(3), range(3), correlation, np.array([1.0, 2.0, 0.5])))
    titled = [path for path in root.iter("path") if path.find("title") is not None]
    style_by_title = {path.find("title").text: path.attrib.get("style", "") for path in titled}
    weak, strong = "2 and 1: correlation 0.25", f"1 and 0: correlation {MINUS}0.5"
    assert list(style_by_title) == [weak, strong, "0: std 1", "1: std 2", "2: std 0.5"]
    width = {pair: float(re.search(r"stroke-width:([\d.]+)", style_by_title[pair]).group(1)) for pair in (weak, strong)}
    assert width[strong] > 1.5 * width[weak]
    assert {"".join(group.itertext()) for group in root.iter("g") if group.attrib["class"] == "halo"} == set("012")
    assert ["dasharray" in style_by_title[pair] for pair in (weak, strong)] == [False, True]
    assert ["var(--plus)" in style_by_title[weak], "var(--minus)" in style_by_title[strong]] == [True, True]

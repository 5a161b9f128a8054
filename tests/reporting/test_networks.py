"""Names of nodes: beside their own node, over no other node and no other name."""

import networkx as nx
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mfdl import graphs
from mfdl.pictures.networks import draw_edges, name_nodes


@pytest.mark.parametrize("spec", ["erdos-renyi:n=20,p=0.2,seed=1", "florentine", "ring:n=12", "star:n=6", "path:n=2"])
def test_no_name_lies_over_another_or_over_a_node(spec):
    graph = graphs.load(spec)
    figure = Figure(figsize=(7.4, 5.6))
    axes = figure.add_axes((0.01, 0.1, 0.98, 0.85))
    layout, size = draw_edges(axes, graph)
    axes.scatter(*np.array(list(layout.values())).T, s=size)
    name_nodes(axes, graph, layout, {label: f"{label}\n± 1.5e4" for label in graph}, size)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = {t.get_text().split("\n")[0]: t.get_window_extent(canvas.get_renderer()) for t in axes.texts}
    assert set(boxes) == {str(label) for label in graph}
    spots = {str(label): axes.transData.transform(spot) for label, spot in layout.items()}
    for name, box in boxes.items():
        assert not any(box.overlaps(other) for more, other in boxes.items() if more != name), name
        assert not any(box.contains(*spot) for spot in spots.values()), name
        own, others = np.hypot(*(np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2]) - spots[name])), []
        others = [
            np.hypot(box.x0 + box.width / 2 - x, box.y0 + box.height / 2 - y)
            for n, (x, y) in spots.items()
            if n != name
        ]
        assert own < min(others, default=np.inf), name


def test_a_graph_without_edges_has_names_too():
    graph = nx.empty_graph(3)
    axes = Figure().add_subplot()
    layout, size = draw_edges(axes, graph)
    name_nodes(axes, graph, layout, {0: "a", 2: "c"}, size)
    assert sorted(t.get_text() for t in axes.texts) == ["a", "c"]

"""The named graphs: their table, the parsing of a spec such as `ring:n=16`, and one builder each.

`graphs.names` lists them and `graphs.load` builds them.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import networkx as nx
import numpy as np

from .. import check, data
from ..errors import InvalidInput
from . import drawn
from .files import read_edge_list
from .simple import Edge, keep_largest_component, simple_graph
from .sparse import SparseGraph

MAX_NODES = 10**7
MAX_EDGES = 2 * 10**7  # about 10 GB in networkx; beyond it a typing error would exhaust the machine
MAX_DRAWS = 1000
DRAWN_AS_ARRAYS = 10**6  # edges from which random graphs are drawn by `drawn`

Built: TypeAlias = tuple[Iterable[Hashable], Iterable[Edge] | drawn.Edges]
Drawn = TypeVar("Drawn")


class _Builder(NamedTuple):
    """`build` takes the parameters of a spec, whose types and defaults it states; None: a file."""

    example: str
    description: str
    build: Callable[..., Built] | None = None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return {} if self.build is None else inspect.signature(self.build, eval_str=True).parameters


def build(spec: str, name: str, parameters: str, data_home: str | os.PathLike[str] | None) -> nx.Graph:
    """The graph of a spec `name:parameters`, with a known name."""
    builder = BUILDERS[name]
    values = _parse(name, builder, parameters)
    if builder.build is None:
        ego = keep_largest_component(read_edge_list(data.fetch("facebook/414.edges", data_home), BUILDERS))
        ego.graph["name"] = spec
        return ego
    nodes, edges = builder.build(**values)
    return simple_graph(spec, nodes, edges.tolist() if isinstance(edges, np.ndarray) else edges, count=False)


def build_sparse(spec: str, name: str, parameters: str, data_home: str | os.PathLike[str] | None) -> SparseGraph:
    """The same as arrays, without a networkx graph where nodes are numbers."""
    builder = BUILDERS[name]
    if builder.build is None or not builder.parameters:
        return SparseGraph.of_networkx(build(spec, name, parameters, data_home))
    nodes, edges = builder.build(**_parse(name, builder, parameters))
    pairs = edges if isinstance(edges, np.ndarray) else np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    return SparseGraph.of_edges(tuple(nodes), pairs, spec)


def _parse(name: str, builder: _Builder, text: str) -> dict[str, Any]:
    known = builder.parameters
    allowed = ", ".join(known) or "none"
    values: dict[str, Any] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InvalidInput(f"graph {name}: parameters are written key=value, got {part!r}; e.g. {builder.example}.")
        if key not in known:
            raise InvalidInput(f"graph {name}: unknown parameter {key!r}; allowed: {allowed}; e.g. {builder.example}.")
        if key in values:
            raise InvalidInput(f"graph {name}: parameter {key!r} is given twice; give it once.")
        values[key] = _value(name, key, value, known[key].annotation)
    for key, parameter in known.items():
        if key not in values and parameter.default is parameter.empty:
            raise InvalidInput(f"graph {name} needs the parameter {key!r}; e.g. {builder.example}.")
    return values


def _value(name: str, key: str, text: str, kind: type) -> int | float:
    if kind is not float:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise InvalidInput(f"graph {name}: {key} must be an integer of at most 18 digits, got {text!r}.")
        return int(text)
    try:
        number = float(text)
    except ValueError:
        raise InvalidInput(f"graph {name}: {key} must be a number, got {text!r}.") from None
    if not 0 <= number <= 1:
        raise InvalidInput(f"graph {name}: {key} must lie between 0 and 1, got {text}.")
    return number


def _require_size(n: int, edges: float = 0) -> None:
    check.integer_at_least(1, n=n)
    if n > MAX_NODES:
        raise InvalidInput(f"n must be at most {MAX_NODES}, got {n}; use a smaller graph.")
    if edges > MAX_EDGES:
        raise InvalidInput(f"n={n} gives about {edges:.3g} edges, more than {MAX_EDGES}; use a smaller graph.")


def _sized(edges: Callable[[int], drawn.Edges], count: Callable[[int], float] = lambda n: 0) -> Callable[..., Built]:
    """A graph on n nodes, so many edges."""

    def built(n: int) -> Built:
        _require_size(n, count(n))
        return range(n), edges(n)

    return built


def _pairs(first: Any, second: Any) -> drawn.Edges:
    return np.stack(np.broadcast_arrays(first, second), axis=1).astype(np.int64)


_ring = _sized(lambda n: _pairs(np.arange(n), np.roll(np.arange(n), -1)))
_path = _sized(lambda n: _pairs(np.arange(n - 1), np.arange(1, n)))
_star = _sized(lambda n: _pairs(0, np.arange(1, n)))
_complete = _sized(lambda n: _pairs(*np.triu_indices(n, 1)), lambda n: n * (n - 1) / 2)


def _torus(n: int | None = None, rows: int | None = None, cols: int | None = None) -> Built:
    if n is not None:
        if rows is not None or cols is not None:
            raise InvalidInput(
                "graph torus takes either n or both rows and cols; e.g. torus:n=16 or torus:rows=4,cols=5."
            )
        _require_size(n)
        rows = cols = _side("torus", n, ", or give rows and cols")
    if rows is None or cols is None:
        raise InvalidInput("graph torus needs n, or rows and cols; e.g. torus:n=16 or torus:rows=4,cols=5.")
    check.integer_at_least(1, rows=rows)
    check.integer_at_least(1, cols=cols)
    _require_size(rows * cols, 2.0 * rows * cols)
    nodes = np.arange(rows * cols).reshape(rows, cols)
    shifted = [np.roll(nodes, -1, axis) for axis in (1, 0)]  # those to the right, those below
    return range(rows * cols), np.concatenate([_pairs(nodes.ravel(), to.ravel()) for to in shifted])


def _side(name: str, n: int, or_else: str = "") -> int:
    side = math.isqrt(n)
    if side * side != n:
        raise InvalidInput(
            f"graph {name}: n must be a square, got {n}; use n={side**2} or n={(side + 1) ** 2}{or_else}."
        )
    return side


def _hypercube(dim: int) -> Built:
    check.integer_at_least(0, dim=dim)
    if dim > 20:
        raise InvalidInput(f"graph hypercube: dim must be at most 20 (a million nodes), got {dim}.")
    n = 1 << dim
    node, bit = (axis.ravel() for axis in np.indices((n, dim)))
    lower = (node >> bit) % 2 == 0
    return range(n), _pairs(node[lower], node[lower] ^ (1 << bit[lower]))


def _expander(n: int) -> Built:
    _require_size(n, 4.0 * n)
    side = _side("expander", n)
    multigraph = nx.margulis_gabber_galil_graph(side)
    return range(n), ((a * side + b, c * side + d) for (a, b), (c, d) in multigraph.edges())


def _regular(n: int, degree: int, seed: int = 0) -> Built:
    _require_size(n, n * max(degree, 0) / 2)
    check.integer_at_least(0, degree=degree)
    check.integer_at_least(0, seed=seed)
    if degree >= n or n * degree % 2:
        raise InvalidInput(
            f"graph regular: degree must be below n and n * degree even, got n={n}, degree={degree}; "
            f"change one of them by 1."
        )
    if n > degree + 1 and degree < 2:
        raise InvalidInput(f"graph regular: degree={degree} cannot connect n={n} nodes; use degree >= 2.")
    spec, many = f"regular:n={n},degree={degree}", n * degree / 2 >= DRAWN_AS_ARRAYS and degree**2 < n
    if many:
        return range(n), _connected_draw(lambda s: drawn.regular(n, degree, s), n, seed, spec, "degree")
    G = _until_connected(lambda s: nx.random_regular_graph(degree, n, seed=s), nx.is_connected, seed, spec, "degree")
    return range(n), G.edges


def _erdos_renyi(n: int, p: float, seed: int = 0) -> Built:
    _require_size(n, p * n * (n - 1) / 2)
    check.integer_at_least(0, seed=seed)
    spec = f"erdos-renyi:n={n},p={p:g}"
    if n > 1 and p * (n - 1) < 1e-6:  # P(node 0 has an edge) < 1e-6 in each draw
        raise _never_connected(spec, "p")
    if p * n * (n - 1) / 2 >= DRAWN_AS_ARRAYS:
        return range(n), _connected_draw(lambda s: drawn.erdos_renyi(n, p, s), n, seed, spec, "p")
    G = _until_connected(lambda s: nx.fast_gnp_random_graph(n, p, seed=s), nx.is_connected, seed, spec, "p")
    return range(n), G.edges


def _connected_draw(draw: Callable[[int], drawn.Edges], n: int, seed: int, spec: str, remedy: str) -> drawn.Edges:
    return _until_connected(draw, functools.partial(drawn.is_connected, n), seed, spec, remedy)


def _until_connected(
    draw: Callable[[int], Drawn], is_connected: Callable[[Drawn], bool], seed: int, spec: str, remedy: str
) -> Drawn:
    """First connected draw: draw 0 uses `seed`, draw k a seed hashed from (seed, k).

    So the redraws of one seed are not the first draws of its neighbours.
    """
    for attempt in range(MAX_DRAWS):
        following = seed if attempt == 0 else int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])
        G = draw(following)
        if is_connected(G):
            return G
    raise _never_connected(spec, remedy)


def _never_connected(spec: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"graph {spec}: no connected draw among {MAX_DRAWS}; use a larger {remedy} (for erdos-renyi, p above "
        "log(n) / n)."
    )


def _florentine() -> Built:
    G = nx.florentine_families_graph()
    return list(G.nodes), list(G.edges)


BUILDERS: dict[str, _Builder] = {
    "florentine": _Builder("florentine", "marriages of 15 Florentine families, 20 edges", _florentine),
    "ego-facebook": _Builder(
        "ego-facebook",
        "Facebook circle of SNAP user 414, largest component, 148 nodes (downloaded)",
    ),
    "ring": _Builder("ring:n=16", "cycle; node i meets i - 1 and i + 1", _ring),
    "path": _Builder("path:n=16", "line from node 0 to node n - 1", _path),
    "star": _Builder("star:n=16", "node 0 meets the n - 1 others", _star),
    "complete": _Builder("complete:n=16", "all pairs", _complete),
    "torus": _Builder(
        "torus:n=16",
        "grid with wrap-around, square, or torus:rows=4,cols=5; node = row * cols + col",
        _torus,
    ),
    "hypercube": _Builder("hypercube:dim=4", "2^dim nodes; neighbours differ in one bit", _hypercube),
    "regular": _Builder(
        "regular:n=16,degree=4,seed=0",
        "random regular graph, redrawn until connected",
        _regular,
    ),
    "erdos-renyi": _Builder(
        "erdos-renyi:n=100,p=0.2,seed=0",
        "each pair with probability p, redrawn until connected",
        _erdos_renyi,
    ),
    "expander": _Builder(
        "expander:n=64",
        "Margulis-Gabber-Galil expander on a square number of nodes, loops and repeats removed",
        _expander,
    ),
}

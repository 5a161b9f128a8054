"""The named graphs, one registered builder each: a builder's parameters are those of its spec, such as `ring:n=16`.

Random graphs of many edges are drawn as arrays: networkx takes minutes and ten gigabytes for a million nodes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .. import check
from ..errors import InvalidInput
from ..spec import Entry, Registry
from .simple_graphs import Edge, SparseGraph, is_networkx, keep_largest_component, simple_graph

if TYPE_CHECKING:
    import networkx as nx

MAX_NODES = 10**7
MAX_EDGES = 2 * 10**7  # about 10 GB in networkx; beyond it a typing error would exhaust the machine
MAX_DRAWS = 1000
DRAWN_AS_ARRAYS = 10**6  # edges from which random graphs are drawn as arrays

Edges: TypeAlias = NDArray[np.int64]
"""Pairs of node indices, shape (m, 2)."""

Built: TypeAlias = "nx.Graph | tuple[Iterable[Hashable], Iterable[Edge] | Edges]"
"""A graph whose nodes have labels of their own, or nodes and edges."""
Drawn = TypeVar("Drawn")

GRAPHS: Registry[Entry] = Registry("graph", supplied=("data_home",))


def build(spec: str, data_home: str | os.PathLike[str] | None) -> nx.Graph:
    built: Built = GRAPHS.make(spec, data_home=data_home)
    if is_networkx(built):
        built.graph["name"] = spec
        return built
    nodes, edges = built
    return simple_graph(spec, nodes, edges.tolist() if isinstance(edges, np.ndarray) else edges, count=False)


def build_sparse(spec: str, data_home: str | os.PathLike[str] | None) -> SparseGraph:
    """The graph of a spec as arrays, without a networkx graph if nodes are numbers."""
    built: Built = GRAPHS.make(spec, data_home=data_home)
    if not isinstance(built, tuple):
        built.graph["name"] = spec
        return SparseGraph.from_networkx(built)
    nodes, edges = tuple(built[0]), built[1]
    if isinstance(edges, np.ndarray):
        return SparseGraph.from_edges(nodes, edges, spec)
    place = {label: index for index, label in enumerate(nodes)}
    pairs = np.array([(place[a], place[b]) for a, b in edges], dtype=np.int64).reshape(-1, 2)
    return SparseGraph.from_edges(nodes, pairs, spec)


def _require_size(n: int, edges: float = 0) -> None:
    check.integer_at_least(1, n=n)
    if n > MAX_NODES:
        raise InvalidInput(f"n must be at most {MAX_NODES}, got {n}; use a smaller graph.")
    if edges > MAX_EDGES:
        raise InvalidInput(f"n={n} gives about {edges:.3g} edges, more than {MAX_EDGES}; use a smaller graph.")


def _pairs(first: Any, second: Any) -> Edges:
    return np.stack(np.broadcast_arrays(first, second), axis=1).astype(np.int64)


MARRIAGES = {
    "Acciaiuoli": "Medici",
    "Medici": "Barbadori Ridolfi Tornabuoni Albizzi Salviati",
    "Castellani": "Peruzzi Strozzi Barbadori",
    "Peruzzi": "Strozzi Bischeri",
    "Strozzi": "Ridolfi Bischeri",
    "Barbadori": "",
    "Ridolfi": "Tornabuoni",
    "Tornabuoni": "Guadagni",
    "Albizzi": "Ginori Guadagni",
    "Salviati": "Pazzi",
    "Pazzi": "",
    "Bischeri": "Guadagni",
    "Guadagni": "Lamberteschi",
    "Ginori": "",
    "Lamberteschi": "",
}
"""Of 15 Florentine families, each once (Padgett and Ansell 1993); the order is that of the nodes."""


@GRAPHS.register()
def florentine() -> Built:
    """Marriages of 15 Florentine families, 20 edges."""
    edges = [(family, other) for family, others in MARRIAGES.items() for other in others.split()]
    return MARRIAGES, edges


@GRAPHS.register()
def ego_facebook(data_home: str | os.PathLike[str] | None) -> Built:
    """Facebook circle of SNAP user 414, largest component, 148 nodes (downloaded)."""
    from .. import data
    from .graph_files import read_graph

    return keep_largest_component(read_graph(data.fetch("facebook/414.edges", data_home), GRAPHS))


@GRAPHS.register(example="ring:n=16")
def ring(n: int) -> Built:
    """Cycle: node i meets i - 1 and i + 1."""
    _require_size(n)
    return range(n), _pairs(np.arange(n), np.roll(np.arange(n), -1))


@GRAPHS.register(example="path:n=16")
def path(n: int) -> Built:
    """Line from node 0 to node n - 1."""
    _require_size(n)
    return range(n), _pairs(np.arange(n - 1), np.arange(1, n))


@GRAPHS.register(example="star:n=16")
def star(n: int) -> Built:
    """Node 0 meets the n - 1 others."""
    _require_size(n)
    return range(n), _pairs(0, np.arange(1, n))


@GRAPHS.register(example="complete:n=16")
def complete(n: int) -> Built:
    """All pairs."""
    _require_size(n, n * (n - 1) / 2)
    return range(n), _pairs(*np.triu_indices(n, 1))


@GRAPHS.register(example="torus:n=16")
def torus(n: int | None = None, rows: int | None = None, cols: int | None = None) -> Built:
    """Grid with wrap-around, square, or torus:rows=4,cols=5; node = row * cols + col."""
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


@GRAPHS.register(example="hypercube:dim=4")
def hypercube(dim: int) -> Built:
    """2^dim nodes; neighbours differ in one bit."""
    check.integer_at_least(0, dim=dim)
    if dim > 20:
        raise InvalidInput(f"graph hypercube: dim must be at most 20 (a million nodes), got {dim}.")
    n = 1 << dim
    node, bit = (axis.ravel() for axis in np.indices((n, dim)))
    lower = (node >> bit) % 2 == 0
    return range(n), _pairs(node[lower], node[lower] ^ (1 << bit[lower]))


@GRAPHS.register(example="expander:n=64")
def expander(n: int) -> Built:
    """Margulis-Gabber-Galil expander on a square number of nodes, loops and repeats removed."""
    _require_size(n, 4.0 * n)
    side = _side("expander", n)
    import networkx as nx

    multigraph = nx.margulis_gabber_galil_graph(side)
    return range(n), ((a * side + b, c * side + d) for (a, b), (c, d) in multigraph.edges())


@GRAPHS.register(example="regular:n=16,degree=4,seed=0")
def regular(n: int, degree: int, seed: int = 0) -> Built:
    """Random regular graph, redrawn until connected."""
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
        return range(n), _connected_draw(lambda s: regular_edges(n, degree, s), n, seed, spec, "degree")
    import networkx as nx

    G = _until_connected(lambda s: nx.random_regular_graph(degree, n, seed=s), nx.is_connected, seed, spec, "degree")
    return range(n), G.edges


@GRAPHS.register(example="erdos-renyi:n=100,p=0.2,seed=0")
def erdos_renyi(n: int, p: float, seed: int = 0) -> Built:
    """Each pair with probability p, redrawn until connected."""
    if not 0 <= p <= 1:
        raise InvalidInput(f"graph erdos-renyi: p must lie between 0 and 1, got {p}.")
    _require_size(n, p * n * (n - 1) / 2)
    check.integer_at_least(0, seed=seed)
    spec = f"erdos-renyi:n={n},p={p:g}"
    if n > 1 and p * (n - 1) < 1e-6:  # P(node 0 has an edge) < 1e-6 in each draw
        raise _never_connected(spec, "p")
    if p * n * (n - 1) / 2 >= DRAWN_AS_ARRAYS:
        return range(n), _connected_draw(lambda s: erdos_renyi_edges(n, p, s), n, seed, spec, "p")
    import networkx as nx

    G = _until_connected(lambda s: nx.fast_gnp_random_graph(n, p, seed=s), nx.is_connected, seed, spec, "p")
    return range(n), G.edges


def _connected_draw(draw: Callable[[int], Edges], n: int, seed: int, spec: str, remedy: str) -> Edges:
    return _until_connected(draw, functools.partial(joins_all_nodes, n), seed, spec, remedy)


def _until_connected(
    draw: Callable[[int], Drawn], is_connected: Callable[[Drawn], bool], seed: int, spec: str, remedy: str
) -> Drawn:
    """First connected draw: draw 0 uses `seed`, draw k a seed hashed from (seed, k), unlike those of its neighbours."""
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


def regular_edges(n: int, degree: int, seed: int) -> Edges:
    """Edges of a random simple graph of one degree: stubs paired at random, with loops and repeats paired again.

    Loops and repeats are mixed with as many other edges until none is left, which keeps the draw uniform up to O(1 / n)
    (the pairing model) for degrees far below sqrt(n).
    """
    rng = np.random.default_rng(seed)
    edges = rng.permutation(np.repeat(np.arange(n), degree)).reshape(-1, 2)
    while (wrong := _loops_and_repeats(edges, n)).size:
        mixed = np.union1d(wrong, rng.integers(len(edges), size=wrong.size))
        edges[mixed] = rng.permutation(edges[mixed].ravel()).reshape(-1, 2)
    return edges


def _loops_and_repeats(edges: Edges, n: int) -> NDArray[np.intp]:
    key = edges.min(axis=1) * n + edges.max(axis=1)
    order = np.argsort(key, kind="stable")  # exact: integers
    return np.union1d(order[1:][np.diff(key[order]) == 0], np.flatnonzero(edges[:, 0] == edges[:, 1]))


def erdos_renyi_edges(n: int, p: float, seed: int) -> Edges:
    """Each pair with probability p > 0: the gaps between drawn pairs are geometric."""
    rng, pairs = np.random.default_rng(seed), n * (n - 1) // 2
    drawn, last = [], -1
    while last < pairs:
        gaps = rng.geometric(p, size=int(p * (pairs - last) + 4 * (p * pairs) ** 0.5) + 16)
        drawn.append(last + np.cumsum(gaps))
        last = int(drawn[-1][-1])
    k = np.concatenate(drawn)
    k = k[k < pairs]
    row = ((1 + np.sqrt(1 + 8 * k.astype(np.float64))) / 2).astype(np.int64)  # pair k is row (row - 1) / 2 + column
    row -= row * (row - 1) // 2 > k
    row += row * (row + 1) // 2 <= k
    return np.stack([row, k - row * (row - 1) // 2], axis=1)


def joins_all_nodes(n: int, edges: Edges) -> bool:
    pairs = coo_array((np.ones(len(edges), dtype=np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    number: int = connected_components(pairs, directed=False, return_labels=False)
    return number == 1

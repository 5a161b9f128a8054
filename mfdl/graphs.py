"""Named graphs and edge-list files, as plain undirected networkx graphs.

In: a spec such as `ring:n=16`, a file, or any networkx graph. Out: a simple `networkx.Graph` without edge
weights, whose nodes stand in label order: integer labels increasing, other labels in order of first
appearance. That order is the node index used everywhere else. Weights for averaging are in `gossip`;
downloads in `data`.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import math
import operator
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import networkx as nx
import numpy as np
from scipy.sparse import csr_array

from . import check, data
from .errors import InvalidInput, unknown_name

MAX_NODES = 10**7
MAX_EDGES = 2 * 10**7  # about 10 GB in networkx; beyond it a typing error would exhaust the machine
MAX_DRAWS = 1000
FILE_SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el")

Source: TypeAlias = str | os.PathLike[str] | nx.Graph
Edge: TypeAlias = tuple[Hashable, Hashable]


def load(
    spec_or_path_or_graph: Source,
    *,
    largest_component: bool = False,
    data_home: str | os.PathLike[str] | None = None,
) -> nx.Graph:
    """A plain undirected graph from a spec, an edge-list file or a networkx graph.

    Directions and weights are dropped, as are self-loops and repeated edges (a -> b after b -> a is a
    repeat); how many is kept in `graph["dropped_self_loops"]` and `graph["dropped_duplicate_edges"]`. The
    spec or file name is kept in `graph["name"]`. Loading a loaded graph changes nothing. The graph need not
    be connected: see `require_connected`.

    A file holds one edge per line, `a b`, `a,b`, or with a weight in third place; `#` starts a comment. A
    first line with the columns Source and Target (any case, any order, further columns allowed) is read as a
    header. Labels that are all integers become int.

    Args:
        spec_or_path_or_graph: a name of `names()`, perhaps with parameters
            (`erdos-renyi:n=100,p=0.2,seed=1`); a path; or a networkx graph of any kind, which is not changed.
        largest_component: keep only the largest connected component (the one with the first node, if
            several).
        data_home: data folder of the graphs that are downloaded, see `data.home`.

    Raises:
        InvalidInput: unknown name or parameter, parameter out of range, file missing or malformed (with its
            line number), a graph without nodes.
    Cost: O(nodes + edges); `regular` and `erdos-renyi` repeat their draw until it is connected.

    >>> g = load("ring:n=4")
    >>> list(g), g.number_of_edges()
    ([0, 1, 2, 3], 4)
    """
    source = spec_or_path_or_graph
    if isinstance(source, nx.Graph):
        return _from_networkx(source, largest_component)
    if not isinstance(source, str | os.PathLike):
        raise InvalidInput(
            f"graph must be a spec such as 'ring:n=16', a path or a networkx graph, got {type(source).__name__}."
        )
    if isinstance(source, str):
        spec = source.strip()
        name, _, parameters = spec.partition(":")
        if name in _BUILDERS:
            graph = _named(spec, name, parameters, data_home)
            return _largest_component(graph) if largest_component else graph
        if not _looks_like_a_file(spec):
            raise unknown_name("graph", name, _BUILDERS)
    graph = _from_file(Path(source))
    return _largest_component(graph) if largest_component else graph


def names() -> dict[str, str]:
    """The named graphs, each with one line that shows its parameters.

    >>> names()["ring"]
    'ring:n=16 -- cycle; node i meets i - 1 and i + 1'
    """
    return {name: f"{builder.example} -- {builder.description}" for name, builder in _BUILDERS.items()}


def labels(G: nx.Graph) -> tuple[Hashable, ...]:
    """Node labels in index order.

    >>> labels(nx.Graph([(2, 0), (0, 1)]))
    (0, 1, 2)
    """
    return tuple(_ordered(G.nodes))


def index_of(G: nx.Graph, label: Hashable) -> int:
    """Index of the node with this label, with this text as its label, or named by index as `#0`.

    >>> G = load("florentine")
    >>> index_of(G, "Medici"), index_of(G, "#2"), index_of(load("ring:n=4"), "3")
    (1, 2, 3)

    Raises:
        InvalidInput: no such node; the message names the nearest label.
    Cost: O(nodes).
    """
    ordered = labels(G)
    for index, known in enumerate(ordered):
        if known == label:
            return index
    text = str(label)
    by_text = {str(known): index for index, known in enumerate(ordered)}
    if text in by_text:
        return by_text[text]
    if re.fullmatch(r"#[0-9]{1,9}", text) and int(text[1:]) < len(ordered):
        return int(text[1:])
    nearest = difflib.get_close_matches(text, by_text, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    some = ", ".join(str(known) for known in ordered[:20]) + (", ..." if len(ordered) > 20 else "")
    raise InvalidInput(
        f"node {text!r} is not in graph {_name(G)!r}{hint} Its {len(ordered)} labels: {some}; "
        f"or give an index, '#0' to '#{len(ordered) - 1}'."
    )


def adjacency(G: nx.Graph) -> csr_array:
    """0/1 adjacency matrix in label order, shape (n, n), float64, without diagonal.

    >>> adjacency(load("path:n=3")).toarray()
    array([[0., 1., 0.],
           [1., 0., 1.],
           [0., 1., 0.]])
    """
    edges = _index_edges(G)
    n = G.number_of_nodes()
    both = np.concatenate([edges, edges[:, ::-1]])
    matrix = csr_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(n, n))
    matrix.sort_indices()
    return matrix


def content_hash(G: nx.Graph) -> str:
    """16 hex digits of the SHA-256 of labels and edges; names, attributes and edge order do not count.

    >>> content_hash(load("ring:n=3")) == content_hash(load("complete:n=3"))
    True
    """
    edges = _index_edges(G)
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    digest = hashlib.sha256(repr(labels(G)).encode())
    digest.update(np.ascontiguousarray(edges, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


def require_connected(G: nx.Graph) -> None:
    """Refuses a graph that is not connected (or empty): information cannot reach every node.

    >>> require_connected(load("ring:n=4"))
    """
    n = G.number_of_nodes()
    if n == 0:
        raise InvalidInput(f"graph {_name(G)!r} has no nodes; give a graph with at least one.")
    sizes = [len(component) for component in nx.connected_components(G)]
    if len(sizes) > 1:
        raise InvalidInput(
            f"graph {_name(G)!r} is not connected: {len(sizes)} components, the largest has {max(sizes)} of "
            f"{n} nodes; keep that one with largest_component=True (command line: --largest-component), or "
            "add edges."
        )


# Order, cleaning


def _plain_label(label: Hashable) -> Hashable:
    """numpy integers become int, so that labels print and hash alike whatever their origin."""
    return int(label) if isinstance(label, Integral) and not isinstance(label, bool) else label


def _ordered(found: Iterable[Hashable]) -> list[Hashable]:
    nodes = [_plain_label(label) for label in found]
    if all(type(label) is int for label in nodes):
        nodes.sort(key=operator.index)  # type: ignore[arg-type]
    return nodes


def _index_edges(G: nx.Graph) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Edges as index pairs (smaller, larger), shape (edges, 2)."""
    index = {label: i for i, label in enumerate(labels(G))}
    pairs = [(index[_plain_label(a)], index[_plain_label(b)]) for a, b in G.edges]
    return np.sort(np.array(pairs, dtype=np.int64).reshape(-1, 2), axis=1)


def _clean(name: str, nodes: Iterable[Hashable], edges: Iterable[Edge], *, count: bool = True) -> nx.Graph:
    """The simple graph of a list of edges, nodes in label order, with what was dropped."""
    first_seen = dict.fromkeys(nodes)
    distinct: dict[Edge, None] = {}
    loops = duplicates = 0
    for a, b in edges:
        first_seen.setdefault(a)
        first_seen.setdefault(b)
        if a == b:
            loops += 1
        elif (a, b) in distinct or (b, a) in distinct:
            duplicates += 1
        else:
            distinct[a, b] = None
    if not first_seen:
        raise InvalidInput(f"graph {name!r} has no nodes; give a graph with at least one.")
    G = nx.Graph(
        name=name,
        dropped_self_loops=loops if count else 0,
        dropped_duplicate_edges=duplicates if count else 0,
    )
    G.add_nodes_from(_ordered(first_seen))
    G.add_edges_from(distinct)
    return G


def _from_networkx(given: nx.Graph, largest_component: bool) -> nx.Graph:
    nodes = [_plain_label(label) for label in given.nodes]
    edges = ((_plain_label(a), _plain_label(b)) for a, b in given.edges())
    G = _clean(_name(given), nodes, edges)
    for key in ("dropped_self_loops", "dropped_duplicate_edges"):  # counted by an earlier load
        earlier = given.graph.get(key, 0)
        G.graph[key] += earlier if isinstance(earlier, int) else 0
    return _largest_component(G) if largest_component else G


def _largest_component(G: nx.Graph) -> nx.Graph:
    components = list(nx.connected_components(G))  # in order of their first node, and max keeps the first
    if len(components) == 1:
        return G
    keep = max(components, key=len)
    smaller = nx.Graph(**G.graph)
    smaller.add_nodes_from(node for node in G if node in keep)
    smaller.add_edges_from((a, b) for a, b in G.edges if a in keep)
    return smaller


def _name(G: nx.Graph) -> str:
    return str(G.graph.get("name") or "given")


# Files


def _looks_like_a_file(text: str) -> bool:
    separated = "/" in text or os.sep in text
    return separated or text.lower().endswith(FILE_SUFFIXES) or (text != "" and Path(text).exists())


def _from_file(path: Path) -> nx.Graph:
    lines = _lines(path)
    if not lines:
        raise InvalidInput(f"graph file {str(path)!r} holds no edge; write one edge per line, as `a b` or `a,b`.")
    comma = "," in lines[0][1]
    rows = [(number, _fields(path, number, text, comma)) for number, text in lines]
    columns = [field.lower() for field in rows[0][1]]
    header = "source" in columns or "target" in columns
    if header:
        if columns.count("source") != 1 or columns.count("target") != 1:
            raise _malformed(path, rows[0][0], "a header needs one column Source and one column Target")
        first, second = columns.index("source"), columns.index("target")
        weight = columns.index("weight") if "weight" in columns else None
        width = len(columns)
        rows = rows[1:]
        if not rows:
            raise InvalidInput(f"graph file {str(path)!r} holds a header but no edge; add one line per edge.")
    else:
        first, second, width = 0, 1, len(columns)
        weight = 2 if width == 3 else None
        if width not in (2, 3):
            raise _malformed(
                path,
                rows[0][0],
                f"found {width} column{'s' * (width != 1)}, expected `a b`, `a b weight`, or a header line "
                "with the columns Source and Target",
            )
    pairs = []
    for number, row in rows:
        if len(row) != width:
            raise _malformed(path, number, f"found {len(row)} columns where the first line has {width}")
        if not row[first] or not row[second]:
            raise _malformed(path, number, "a node label is empty")
        if weight is not None and not _is_finite_number(row[weight]):
            raise _malformed(path, number, f"the weight {row[weight]!r} is not a finite number")
        pairs.append((row[first], row[second]))
    edges: Iterable[Edge] = pairs
    if all(_INTEGER.fullmatch(a) and _INTEGER.fullmatch(b) for a, b in pairs):
        edges = [(int(a), int(b)) for a, b in pairs]
    return _clean(path.name, (), edges)


# Only the one usual way of writing an integer: "007" stays text, so that two labels never become one node.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines that say something, with their numbers from 1."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(
            f"graph file {str(path)!r} does not exist; check the path, or use a named graph: {', '.join(_BUILDERS)}."
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"graph file {str(path)!r} cannot be read ({type(error).__name__}); give a text file of edges."
        ) from None
    try:
        if (nul := raw.find(b"\0")) >= 0:
            raise UnicodeDecodeError("utf-8", raw, nul, nul + 1, "NUL byte")
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _malformed(path, line, "this is not UTF-8 text; save it as UTF-8, one edge per line") from None
    numbered = ((i, line.partition("#")[0].strip()) for i, line in enumerate(text.split("\n"), start=1))
    return [(i, line) for i, line in numbered if line]


def _fields(path: Path, number: int, text: str, comma: bool) -> list[str]:
    if not comma:
        return text.split()
    try:
        (row,) = csv.reader([text], strict=True, skipinitialspace=True)
    except (csv.Error, ValueError) as error:
        raise _malformed(path, number, f"not comma separated values ({error})") from None
    return [field.strip() for field in row]


def _is_finite_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _malformed(path: Path, line: int, what: str) -> InvalidInput:
    return InvalidInput(f"graph file {str(path)!r}, line {line}: {what}.")


# Named graphs


class _Parameter(NamedTuple):
    kind: type
    default: int | None = None
    optional: bool = False  # may stay out because another parameter replaces it


class _Builder(NamedTuple):
    example: str
    description: str
    parameters: Mapping[str, _Parameter]
    build: Callable[..., tuple[Iterable[Hashable], Iterable[Edge]]]


def _named(spec: str, name: str, parameters: str, data_home: str | os.PathLike[str] | None) -> nx.Graph:
    builder = _BUILDERS[name]
    values = _parse(name, builder, parameters)
    if name == "ego-facebook":
        ego = _largest_component(_from_file(data.fetch("facebook/414.edges", data_home)))
        ego.graph["name"] = spec
        return ego
    return _clean(spec, *builder.build(**values), count=False)


def _parse(name: str, builder: _Builder, text: str) -> dict[str, Any]:
    allowed = ", ".join(builder.parameters) or "none"
    values: dict[str, Any] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InvalidInput(f"graph {name}: parameters are written key=value, got {part!r}; e.g. {builder.example}.")
        if key not in builder.parameters:
            raise InvalidInput(f"graph {name}: unknown parameter {key!r}; allowed: {allowed}; e.g. {builder.example}.")
        if key in values:
            raise InvalidInput(f"graph {name}: parameter {key!r} is given twice; give it once.")
        values[key] = _value(name, key, value, builder.parameters[key].kind)
    for key, parameter in builder.parameters.items():
        if key not in values and not parameter.optional:
            if parameter.default is None:
                raise InvalidInput(f"graph {name} needs the parameter {key!r}; e.g. {builder.example}.")
            values[key] = parameter.default
    return values


def _value(name: str, key: str, text: str, kind: type) -> int | float:
    if kind is int:
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


def _size(n: int, *, at_least: int = 1, edges: float = 0) -> int:
    check.integer_at_least(at_least, n=n)
    if n > MAX_NODES:
        raise InvalidInput(f"n must be at most {MAX_NODES}, got {n}; use a smaller graph.")
    if edges > MAX_EDGES:
        raise InvalidInput(f"n={n} gives about {edges:.3g} edges, more than {MAX_EDGES}; use a smaller graph.")
    return n


def _ring(n: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n)
    return range(n), ((i, (i + 1) % n) for i in range(n))


def _path(n: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n)
    return range(n), ((i, i + 1) for i in range(n - 1))


def _star(n: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n)
    return range(n), ((0, i) for i in range(1, n))


def _complete(n: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n, edges=n * (n - 1) / 2)
    return range(n), ((i, j) for i in range(n) for j in range(i + 1, n))


def _torus(
    n: int | None = None, rows: int | None = None, cols: int | None = None
) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    if n is not None:
        if rows is not None or cols is not None:
            raise InvalidInput(
                "graph torus takes either n or both rows and cols; e.g. torus:n=16 or torus:rows=4,cols=5."
            )
        _size(n)
        rows = cols = math.isqrt(n)
        if rows * rows != n:
            raise InvalidInput(
                f"graph torus: n must be a square, got {n}; use n={rows**2} or n={(rows + 1) ** 2}, or give "
                "rows and cols."
            )
    if rows is None or cols is None:
        raise InvalidInput("graph torus needs n, or rows and cols; e.g. torus:n=16 or torus:rows=4,cols=5.")
    check.integer_at_least(1, rows=rows)
    check.integer_at_least(1, cols=cols)
    _size(rows * cols, edges=2.0 * rows * cols)
    height, width = rows, cols
    right = ((r * width + c, r * width + (c + 1) % width) for r in range(height) for c in range(width))
    down = ((r * width + c, (r + 1) % height * width + c) for r in range(height) for c in range(width))
    return range(height * width), (edge for edges in (right, down) for edge in edges)


def _hypercube(dim: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    check.integer_at_least(0, dim=dim)
    if dim > 20:
        raise InvalidInput(f"graph hypercube: dim must be at most 20 (a million nodes), got {dim}.")
    n = 1 << dim
    return range(n), ((i, i ^ (1 << bit)) for i in range(n) for bit in range(dim) if not i >> bit & 1)


def _expander(n: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n, edges=4.0 * n)
    side = math.isqrt(n)
    if side * side != n:
        raise InvalidInput(f"graph expander: n must be a square, got {n}; use n={side**2} or n={(side + 1) ** 2}.")
    multigraph = nx.margulis_gabber_galil_graph(side)
    return range(n), ((a * side + b, c * side + d) for (a, b), (c, d) in multigraph.edges())


def _regular(n: int, degree: int, seed: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n, edges=n * max(degree, 0) / 2)
    check.integer_at_least(0, degree=degree)
    check.integer_at_least(0, seed=seed)
    if degree >= n or n * degree % 2:
        raise InvalidInput(
            f"graph regular: degree must be below n and n * degree even, got n={n}, degree={degree}; "
            f"change one of them by 1."
        )
    if n > degree + 1 and degree < 2:
        raise InvalidInput(f"graph regular: degree={degree} cannot connect n={n} nodes; use degree >= 2.")
    drawn = _until_connected(
        lambda s: nx.random_regular_graph(degree, n, seed=s), seed, f"regular:n={n},degree={degree}", "degree"
    )
    return range(n), drawn.edges


def _erdos_renyi(n: int, p: float, seed: int) -> tuple[Iterable[Hashable], Iterable[Edge]]:
    _size(n, edges=p * n * (n - 1) / 2)
    check.integer_at_least(0, seed=seed)
    spec = f"erdos-renyi:n={n},p={p:g}"
    if n > 1 and p * (n - 1) < 1e-6:  # P(node 0 has an edge) < 1e-6 in each draw
        raise _never_connected(spec, "p")
    drawn = _until_connected(lambda s: nx.fast_gnp_random_graph(n, p, seed=s), seed, spec, "p")
    return range(n), drawn.edges


def _until_connected(draw: Callable[[int], nx.Graph], seed: int, spec: str, remedy: str) -> nx.Graph:
    """First connected draw: draw 0 uses `seed`, draw k a seed hashed from (seed, k).

    So the redraws of one seed are not the first draws of its neighbours.
    """
    for attempt in range(MAX_DRAWS):
        following = seed if attempt == 0 else int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])
        G = draw(following)
        if nx.is_connected(G):
            return G
    raise _never_connected(spec, remedy)


def _never_connected(spec: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"graph {spec}: no connected draw among {MAX_DRAWS}; use a larger {remedy} (for erdos-renyi, p above "
        "log(n) / n)."
    )


def _florentine() -> tuple[Iterable[Hashable], Iterable[Edge]]:
    G = nx.florentine_families_graph()
    return list(G.nodes), list(G.edges)


def _ego() -> tuple[Iterable[Hashable], Iterable[Edge]]:
    raise AssertionError("read from its file, not built")


_N = {"n": _Parameter(int)}
_SEED = {"seed": _Parameter(int, 0)}

_BUILDERS: dict[str, _Builder] = {
    "florentine": _Builder("florentine", "marriages of 15 Florentine families, 20 edges", {}, _florentine),
    "ego-facebook": _Builder(
        "ego-facebook",
        "Facebook circle of SNAP user 414, largest component, 148 nodes (downloaded)",
        {},
        _ego,
    ),
    "ring": _Builder("ring:n=16", "cycle; node i meets i - 1 and i + 1", _N, _ring),
    "path": _Builder("path:n=16", "line from node 0 to node n - 1", _N, _path),
    "star": _Builder("star:n=16", "node 0 meets the n - 1 others", _N, _star),
    "complete": _Builder("complete:n=16", "all pairs", _N, _complete),
    "torus": _Builder(
        "torus:n=16",
        "grid with wrap-around, square, or torus:rows=4,cols=5; node = row * cols + col",
        {key: _Parameter(int, optional=True) for key in ("n", "rows", "cols")},
        _torus,
    ),
    "hypercube": _Builder(
        "hypercube:dim=4", "2^dim nodes; neighbours differ in one bit", {"dim": _Parameter(int)}, _hypercube
    ),
    "regular": _Builder(
        "regular:n=16,degree=4,seed=0",
        "random regular graph, redrawn until connected",
        {**_N, "degree": _Parameter(int), **_SEED},
        _regular,
    ),
    "erdos-renyi": _Builder(
        "erdos-renyi:n=100,p=0.2,seed=0",
        "each pair with probability p, redrawn until connected",
        {**_N, "p": _Parameter(float), **_SEED},
        _erdos_renyi,
    ),
    "expander": _Builder(
        "expander:n=64",
        "Margulis-Gabber-Galil expander on a square number of nodes, loops and repeats removed",
        _N,
        _expander,
    ),
}

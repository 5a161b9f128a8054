"""Gossip from a graph, an array, a file or the text of a configuration."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array, diags_array, eye_array

from .. import check, graphs
from ..check import FloatArray
from ..errors import InvalidInput, unknown_name
from ..graphs.simple_graphs import UNNAMED
from ..spec import Entry, Registry, parse
from .matrix import GossipMatrix, MixingCertificate, own_csr
from .sequences import GossipSequence, round_tuple

if TYPE_CHECKING:
    from mfdl_solvers.mixing import MixingWeights

MATRICES: Registry[Entry] = Registry("gossip matrix")
"""Functions of a graph to its gossip matrix, by name."""


@MATRICES.register()
def metropolis_hastings(
    graph: graphs.Source, stationary: Mapping[Hashable, float] | ArrayLike | None = None
) -> GossipMatrix:
    """W_ij = 1 / (1 + max(degree_i, degree_j)) on edges, the rest of each row on the diagonal.

    Symmetric and doubly stochastic on every graph, with positive diagonal: the usual choice. With stationary weights pi
    W_ij = min(1 / (1 + degree_i), pi_j / pi_i / (1 + degree_j)): pi_i W_ij is symmetric, so averaging keeps sum_i pi_i
    x_i, and models agree on the minimum of sum_i pi_i f_i in place of the mean of the f_i (docs/howto_budgets.md).

    >>> metropolis_hastings("path:n=3").dense().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])

    >>> metropolis_hastings("path:n=3", stationary=[1, 1, 2]).dense().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.167, 0.833]])

    Args: stationary: pi up to a factor, shape (n,) in label order or by label, > 0; default all alike.

    Raises: InvalidInput: the graph is not connected; weights that are not of its nodes, not > 0 or beyond a factor of
        MAX_WEIGHT_RATIO.
    Cost: O(nodes + edges).
    Source: of pi: Metropolis et al. (1953), Hastings (1970), proposals 1 / (1 + degree_i).
    """
    G = _connected(graph)
    A = graphs.adjacency(G)
    degrees = np.diff(A.indptr)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    A.data = 1.0 / (1 + np.maximum(degrees[rows], degrees[A.indices]))
    if stationary is not None:
        pi = _stationary(stationary, graphs.labels(G))
        A.data = np.minimum(1 / (1.0 + degrees[rows]), pi[A.indices] / pi[rows] / (1.0 + degrees[A.indices]))
    rest = 1.0 - np.asarray(A.sum(axis=1)).ravel()
    return GossipMatrix(A + diags_array(rest), graphs.labels(G), "metropolis-hastings", _name(G))


MAX_WEIGHT_RATIO = 1e9
"""Of stationary weights: beyond, a weight in W could pass for rounding of its row."""


def _stationary(given: Mapping[Hashable, float] | ArrayLike, labels: tuple[Hashable, ...]) -> FloatArray:
    if isinstance(given, Mapping):
        if set(given) != set(labels):
            odd = sorted(map(repr, set(given) ^ set(labels)))[0]
            raise InvalidInput(f"stationary must have a weight for every node and for no other, got {odd} wrong.")
        given = [given[label] for label in labels]
    pi = check.finite_array(1, stationary=given)
    if pi.shape != (len(labels),) or not (pi > 0).all() or pi.max() > MAX_WEIGHT_RATIO * pi.min():
        raise InvalidInput(
            f"stationary must be {len(labels)} numbers > 0, one per node, within a factor of {MAX_WEIGHT_RATIO:g}, "
            f"got shape {pi.shape} from {pi.min(initial=np.inf):g} to {pi.max(initial=0.0):g}."
        )
    return pi


@MATRICES.register()
def uniform(graph: graphs.Source) -> GossipMatrix:
    """W_ij = 1 / (degree_i + 1) for the neighbours j of i and for i itself.

    Row-stochastic only: symmetric, and keeping the average, exactly when the graph is regular. On an
    irregular graph it drifts to the average weighted by degree + 1, its reversible measure.

    >>> uniform("path:n=3").dense().round(3)
    array([[0.5  , 0.5  , 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.5  , 0.5  ]])

    Args, Raises, Cost: those of `metropolis_hastings`.
    """
    G = _connected(graph)
    A = graphs.adjacency(G)
    weights = 1.0 / (np.diff(A.indptr) + 1)
    return GossipMatrix(diags_array(weights) @ A + diags_array(weights), graphs.labels(G), "uniform", _name(G))


@MATRICES.register()
def fastest_mixing(graph: graphs.Source) -> GossipMatrix:
    """The symmetric weights whose second largest modulus of an eigenvalue is least, certified.

    >>> W = fastest_mixing("path:n=3")
    >>> W.dense().round(3)
    array([[0.5, 0.5, 0. ],
           [0.5, 0. , 0.5],
           [0. , 0.5, 0.5]])
    >>> bool(1 - W.certificate.lower_bound <= 1.001 * W.spectral_gap)
    True

    Returns: `certificate` bounds the modulus for all symmetric weights >= 0 of the graph; 1 minus it is within 1e-4
        of 1 minus its bound, relatively, beyond 4000 edges within 1e-2, unless the search stopped early.
    Raises: InvalidInput: the graph is not connected, or mixes too slowly for Lanczos beyond 4000 edges.
    Cost: some 20 steps of O(edges^3 + nodes^3): 1300 edges take seconds, 4000 minutes. Beyond, gradients with hundreds
        of runs of Lanczos, without an array of nodes by nodes beyond 500 nodes.
    Source: Boyd, Diaconis, Xiao (2004), Fastest mixing Markov chain on a graph.
    """
    from mfdl_solvers.mixing import fastest_mixing as solve

    return _optimised(graph, "fastest-mixing", "second largest modulus", solve)


@MATRICES.register(example="least-noise:rounds=5")
def least_noise(graph: graphs.Source, rounds: int = 1) -> GossipMatrix:
    """The symmetric weights that leave the least noise in the models, certified.

    That is the variance of independent unit noise in the models of all nodes after many steps, at a constant rate and
    without decay: sum of lambda^2K / (1 - lambda^2K) over the eigenvalues but the 1 of the average, K rounds a step.

    >>> W = least_noise("path:n=3")
    >>> W.dense().round(3)
    array([[0.56, 0.44, 0.  ],
           [0.44, 0.12, 0.44],
           [0.  , 0.44, 0.56]])

    Args: graph: as for `fastest_mixing`; rounds: K >= 1 of a step with polynomial "powers"; many rounds mix fastest.
    Returns: as `fastest_mixing`; the value is within 1e-4 of its bound, beyond 4000 edges within 1e-2.
    Raises: InvalidInput: the graph is not connected, or has more than 4000 edges between more than 3000 nodes: each
        step takes all eigenvectors.
    Cost: K + 1 times that of `fastest_mixing`, and twice as many steps; beyond 4000 edges some 40 of O(nodes^3).
    """
    from mfdl_solvers.mixing import least_noise as solve

    K = check.integer_at_least(1, rounds=rounds)
    words = f"noise left after {K} round{'s' * (K > 1)} a step"
    return _optimised(graph, f"least-noise:rounds={K}", words, functools.partial(solve, rounds=K))


def _optimised(
    graph: graphs.Source, name: str, objective: str, solve: Callable[[NDArray[Any], int], MixingWeights]
) -> GossipMatrix:
    from mfdl_solvers.problem import ProblemError

    G = _connected(graph)
    A = coo_array(graphs.adjacency(G))
    once = A.row < A.col
    ends, n = np.stack([A.row[once], A.col[once]], axis=1), A.shape[0]
    try:
        solution = solve(ends, n)
    except ProblemError as error:
        raise InvalidInput(
            f"{name}: {error} Take metropolis-hastings, and several rounds with Dynamics(polynomial='chebyshev')."
        ) from None
    upper = csr_array((solution.weights, tuple(ends.T)), shape=(n, n))
    both = upper + upper.T
    certificate = MixingCertificate(objective, solution.objective, solution.lower_bound)
    rest = diags_array(1.0 - np.asarray(both.sum(axis=1)).ravel())
    return GossipMatrix(both + rest, graphs.labels(G), name, _name(G), certificate)


def from_array(
    weights: Any, graph: graphs.Source | None = None, labels: Sequence[Hashable] | None = None, *, name: str = "given"
) -> GossipMatrix:
    """A given W, dense or scipy sparse, checked against the graph it is meant for.

    >>> from_array([[0.5, 0.5], [0.25, 0.75]], labels=["a", "b"]).reversible_measure.round(3)
    array([0.667, 1.333])

    Args:
        weights: shape (n, n), rows in label order. A table of pandas is read by its labels: index and columns name the
            nodes, in any order.
        graph: if given, weights between different nodes must lie on its edges, and its labels are used.
        labels: node labels without a graph; default those of a table, else 0 .. n - 1.

    Raises: InvalidInput: `weights` is no gossip matrix (see `GossipMatrix`), of another size than the graph or with
        weight off its edges; the graph is not connected; both `graph` and `labels`; labels that do not fit a table.
    """
    if graph is None:
        array, nodes = by_label(weights, labels)
        W = own_csr(array)
        return GossipMatrix(W, tuple(range(W.shape[0])) if nodes is None else nodes, name)
    if labels is not None:
        raise InvalidInput("give either graph or labels, not both: a graph brings its own labels.")
    G = _connected(graph)
    nodes = graphs.labels(G)
    W = own_csr(by_label(weights, nodes)[0])
    n = W.shape[0]
    if n != len(nodes):
        raise InvalidInput(f"weights must have one row per node of the graph, got {n} rows for {len(nodes)} nodes.")
    matrix = GossipMatrix(W, nodes, name, _name(G))
    off_edge = (W - W.multiply(graphs.adjacency(G) + eye_array(n) != 0)).tocoo()
    if off_edge.nnz:
        i, j = nodes[off_edge.row[0]], nodes[off_edge.col[0]]
        raise InvalidInput(
            f"weights: node {i!r} gives weight {off_edge.data[0]:.6g} to node {j!r}, but the graph has no edge between "
            "them; add that edge to the graph, or set this weight to 0 and give it to the diagonal."
        )
    return matrix


def _from_file(path: str | os.PathLike[str], graph: graphs.Source) -> GossipMatrix:
    file = check.path(path=path)
    if (reader := {".npy": _read_npy, ".csv": _read_csv}.get(file.suffix.lower())) is None:
        raise _no_matrix(file, " must end in .npy or .csv")
    try:
        array = reader(file)
    except FileNotFoundError:
        raise _no_matrix(file, " does not exist; check the path") from None
    except OSError as error:
        raise _no_matrix(file, f" cannot be read ({type(error).__name__})") from None
    return from_array(array, graph, name=file.name)


def load(spec: str | os.PathLike[str], graph: graphs.Source) -> GossipMatrix:
    """The gossip matrix of a configuration, as `metropolis-hastings` or `least-noise:rounds=5`, or a dense W of a file.

    >>> load("uniform", "ring:n=4").is_symmetric
    True

    Args: spec: a name, or the path of a `.npy` file of numbers (pickled objects are refused) or a `.csv` file of plain
        numbers, one row per line, in label order of the graph.

    Raises: InvalidInput: an unknown name, a missing or malformed file, and all of the builder or of `from_array`.
    """
    if isinstance(spec, str) and parse(spec).name in MATRICES:
        matrix: GossipMatrix = MATRICES.make(spec, graph)
        return matrix
    if not isinstance(spec, str | os.PathLike):
        names, kind = ", ".join(MATRICES), type(spec).__name__
        raise InvalidInput(f"gossip must be one of {names} or the path of a .npy or .csv file, got {kind}.")
    text = os.fspath(spec)
    if "/" in text or os.sep in text or text.lower().endswith((".npy", ".csv")) or isinstance(spec, os.PathLike):
        return _from_file(spec, graph)
    unknown = unknown_name("gossip matrix", text, MATRICES)
    raise InvalidInput(f"{unknown} A matrix of your own comes from a .npy or .csv file, rows in label order.")


def sequence(matrices: Iterable[GossipMatrix], repeat: bool = True) -> GossipSequence:
    """Time-varying gossip from a list of rounds, repeated for ever or not.

    >>> two = sequence([metropolis_hastings("ring:n=4"), metropolis_hastings("star:n=4")])
    >>> two.at(3).dense()[0].round(2)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return GossipSequence(round_tuple(matrices), repeat)


def _connected(graph: graphs.Source) -> graphs.SparseGraph:
    G = graphs.load_sparse(graph)
    graphs.require_connected(G)
    return G


def _name(G: graphs.SparseGraph) -> str:
    return "" if G.name == UNNAMED else G.name


def _no_matrix(file: Path, why: str) -> InvalidInput:
    return InvalidInput(f"gossip matrix file {str(file)!r}{why}.")


def _read_npy(file: Path) -> NDArray[Any]:
    try:
        array = np.load(file, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # np.load raises many unrelated types on a malformed file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _no_matrix(file, f" is not a .npy file of numbers: {reason}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        kind = array.dtype if isinstance(array, np.ndarray) else "an archive"
        raise _no_matrix(file, f" must hold one array of real numbers, got {kind}")
    return array


def _read_csv(file: Path) -> NDArray[Any]:
    rows: list[list[float]] = []
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise _no_matrix(file, " is not UTF-8 text; save it as plain numbers") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row: list[float] = []
        for field in line.split(","):
            try:
                row.append(float(field))
            except ValueError:
                why = f"{field.strip()!r} is not a number; write plain numbers separated by commas, without a header"
                raise _no_matrix(file, f", line {number}: {why}") from None
        if rows and len(row) != len(rows[0]):
            raise _no_matrix(file, f", line {number}: {len(row)} numbers where the first row has {len(rows[0])}")
        rows.append(row)
    if not rows:
        raise _no_matrix(file, " holds no numbers")
    return np.array(rows)


def by_label(weights: Any, nodes: Sequence[Hashable] | None) -> tuple[Any, tuple[Hashable, ...] | None]:
    """(weights in the order of the nodes, or of the index; the nodes) of a table; other weights stay as given.

    Entries are taken by name, never by position. Raises: InvalidInput: labels that do not fit.
    """
    wanted = None if nodes is None else tuple(check.listed("node labels, one for each row", labels=nodes))
    if not (hasattr(weights, "index") and hasattr(weights, "columns")):
        return weights, wanted
    index = tuple(weights.index)
    order = index if wanted is None else wanted
    for axis, given, right, others in (
        ("columns", tuple(weights.columns), index, "those of its index"),
        ("index", index, order, "the nodes"),
    ):
        if len(given) != len(set(given)) or set(given) != set(right):
            raise InvalidInput(
                f"weights: the labels of a table must be {others}, each once, in any order, got {axis} "
                f"{_first(given)} for {_first(right)}; name them alike, or give weights.to_numpy(), which is taken by "
                "position."
            )
    rows, columns = ({label: i for i, label in enumerate(axis)} for axis in (index, weights.columns))
    array = weights.to_numpy()
    return array[[rows[node] for node in order]][:, [columns[node] for node in order]], order


def _first(labels: Sequence[Hashable]) -> str:
    return f"[{', '.join(map(repr, labels[:5]))}{', ...' if len(labels) > 5 else ''}]"

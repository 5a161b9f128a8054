"""Push-sum, averages over directed edges; and one node's averaging in a training loop of the user.

Each node sends equal shares of its sum and its weight to its out-neighbours and keeps one; a model is sum over weight:

    x_{t+1} = S_t x_t,   w_{t+1} = S_t w_t,   w_0 = 1,   z_t = x_t / w_t,

S_t with columns that sum to 1, so sums are preserved and averages are not. The edges are public, hence the weights are
too, and models follow z_{t+1} = W_t z_t, W_t = diag(1 / w_{t+1}) S_t diag(w_t), with rows that sum to 1.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from scipy.sparse import csr_array, diags_array

from mfdl_solvers.ties import first_smallest

from .. import check, graphs
from ..check import FloatArray
from ..errors import InvalidInput
from ..matrices import read_only
from ..spec import storable
from .matrix import Gossip, GossipMatrix, strongly_connected
from .sequences import GossipSequence

if TYPE_CHECKING:
    import networkx as nx

MAX_SPREAD = 1e6
"""Largest ratio of two weights: steps are divided by them, and beyond it the smaller step could pass for rounding."""


@storable
@dataclass(frozen=True, eq=False, repr=False)
class PushSum(GossipSequence):
    """The W_t above, with the push-sum weights they come from.

    Attributes: push_weights: w_t of each round and after the last, shape (rounds + 1, n), read-only, > 0.
    Guarantees: w_{t+1}^T W_t = w_t^T up to rounding: sum_i w_ti z_ti is preserved.
    Raises: InvalidInput: weights of another shape, not > 0, or inconsistent with the matrices.
    """

    push_weights: FloatArray = field(default_factory=lambda: np.ones((1, 1)))

    def __post_init__(self) -> None:
        super().__post_init__()
        w = check.finite_array(2, push_weights=self.push_weights)
        if w.shape != (len(self.matrices) + 1, self.num_nodes) or not (w > 0).all() or (w[0] != 1).any() or self.repeat:
            raise InvalidInput(
                f"push_weights must be > 0, ones at first, a row for each of {len(self.matrices)} rounds and one after "
                f"them, of a sequence that does not repeat, got shape {w.shape}; gossip.push_sum makes them."
            )
        for t, matrix in enumerate(self.matrices):
            if np.abs(matrix.weights.T @ w[t + 1] - w[t]).max() > 1e-9 * w[t].max():
                raise InvalidInput(f"push_weights must be those of the matrices, got others in round {t}.")
        object.__setattr__(self, "push_weights", read_only(w))


def push_sum(graph: graphs.Source | nx.DiGraph | Sequence[graphs.Source | nx.DiGraph], rounds: int) -> PushSum:
    """Push-sum over a directed graph, or over several in turn; for `algorithms.push_sum`.

    >>> import networkx as nx
    >>> gossip = push_sum(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), rounds=30)
    >>> models = np.array([3.0, 0.0, 0.0])
    >>> for matrix in gossip.matrices:
    ...     models = matrix.weights @ models
    >>> models.round(6), gossip.push_weights[-1].round(3)
    (array([1., 1., 1.]), array([1.   , 0.667, 1.333]))

    Args: graph: along an edge a -> b node a sends to b; undirected graphs send both ways. With a list, round t uses
        graph t mod its length. Loops and weights of edges are dropped: shares are equal, 1 / (1 + out-degree).
    Raises: InvalidInput: graphs that are not strongly connected together, or of other nodes than the first; weights
        that spread beyond MAX_SPREAD.
    Cost: O(rounds (nodes + edges)).
    Source: Kempe, Dobra, Gehrke 2003; for training arXiv:1811.10792 (stochastic gradient push).
    """
    T = check.integer_at_least(1, rounds=rounds)
    labels, shares = _shares(list(graph) if isinstance(graph, list | tuple) else [graph])
    if not strongly_connected(csr_array(sum(shares))):
        raise InvalidInput(
            "push-sum needs a directed path from every node to every other, but the graph is not strongly connected"
            + (", nor are all of them together" if len(shares) > 1 else "")
            + "; add edges back, or keep its largest strongly connected component."
        )
    w, matrices = [np.ones(len(labels))], []
    for t in range(T):
        S = shares[t % len(shares)]
        w.append(S @ w[-1])
        if max(row.max() for row in w) > MAX_SPREAD * w[-1].min():
            raise InvalidInput(
                f"push-sum weights must stay within a factor of {MAX_SPREAD:g}, got {w[-1].min():g} at node "
                f"{labels[first_smallest(w[-1])]!r} after {t + 1} rounds: it hears too little; add edges to it."
            )
        matrices.append(GossipMatrix(csr_array(diags_array(1 / w[-1]) @ S @ diags_array(w[-2])), labels, "push-sum"))
    return PushSum(tuple(matrices), False, "push-sum", np.stack(w))


def _shares(listed: Iterable[graphs.Source | nx.DiGraph]) -> tuple[tuple[Hashable, ...], list[csr_array]]:
    labels: tuple[Hashable, ...] = ()
    shares: list[csr_array] = []
    for position, graph in enumerate(listed):
        nodes, A = _links(graph)
        if position == 0:
            labels = nodes
        if set(nodes) != set(labels):
            odd = sorted(map(repr, set(nodes) ^ set(labels)))[0]
            raise InvalidInput(f"graphs must have the same nodes, but graph {position} and the first differ in {odd}.")
        order = [nodes.index(label) for label in labels]
        sends = csr_array(A[order][:, order] + diags_array(np.ones(len(labels))))
        shares.append(csr_array(sends.T @ diags_array(1 / np.asarray(sends.sum(axis=1)).ravel())))
    if not shares:
        raise InvalidInput("push-sum needs at least one graph, got an empty list.")
    return labels, shares


def _links(graph: graphs.Source | nx.DiGraph) -> tuple[tuple[Hashable, ...], csr_array]:
    if not (graphs.is_networkx(graph) and graph.is_directed()):
        loaded = graphs.load_sparse(graph)
        return graphs.labels(loaded), csr_array(graphs.adjacency(loaded), dtype=np.float64)
    if not len(graph):
        raise InvalidInput("push-sum needs a graph with nodes, got an empty one.")
    nodes = graphs.labels(graphs.load_sparse(graph.to_undirected()))
    place = {label: index for index, label in enumerate(nodes)}
    ends = np.array([(place[a], place[b]) for a, b in graph.edges() if a != b], dtype=np.intp).reshape(-1, 2)
    ends = np.unique(ends, axis=0)
    return nodes, csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(nodes),) * 2)


Message = TypeVar("Message")


def average(
    messages: Mapping[int, Message], gossip: Gossip, node: int, *, step: int = 0, shift: float = 0.0
) -> Message:
    """Sum over j of W[node, j] times the message of j.

    Args:
        messages: by index of the sender, the node's own included: arrays or tensors of one shape and type, or mappings
            of them by name, as `module.state_dict()` is.
        gossip: the weights; a `GossipSequence` gives those of `step`.
        shift: below 1, the weights are those of (W - shift I) / (1 - shift): `Dynamics.shifts[j]` in round j of a step.
    Returns: what each message is: an array or tensor, or a dictionary of them, of its type. Sums are taken in float32
        or better and rounded once. Integers and truth values, such as the counters and masks of a module, are no
        averages: equal ones are copied. Nothing is changed in place.
    Raises: InvalidInput: a message missing to which W gives weight, one to which it gives none, or names that differ;
        tensors of other shapes or types than the first; integers or truth values that differ.

    >>> import mfdl, numpy as np
    >>> W = mfdl.gossip.from_array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    >>> average({0: np.array([4.0]), 1: np.array([2.0])}, W, node=0)
    array([3.])
    """
    check.instance(Gossip, gossip=gossip)
    node = check.integer_at_least(0, node=node)
    if node >= gossip.num_nodes:
        raise InvalidInput(f"node must be below {gossip.num_nodes}, the number of nodes, got {node}.")
    if not (shift := float(check.finite_array(0, shift=shift))) < 1:
        raise InvalidInput(f"shift must be below 1, got {shift:g}; give dynamics.shifts[j] in round j of a step.")
    row = gossip.at(step).weights[[node], :].tocoo()
    weights = {int(j): float(w) for j, w in zip(row.col, row.data, strict=True) if w != 0}
    if shift:
        weights[node] = weights.get(node, 0.0) - shift
        weights = {j: w / (1 - shift) for j, w in weights.items()}
    if set(check.mapping("messages by node", messages=messages)) != set(weights):
        missing = sorted(set(weights) - set(messages))
        extra = sorted(set(messages) - set(weights), key=repr)  # exact: texts
        raise InvalidInput(
            f"node {node} averages the messages of nodes {sorted(weights)} at step {step}, got "
            f"{'none of ' + str(missing) if missing else 'also one of ' + str(extra)}; a missing one cannot be left "
            "out, since the accounted weights would change: wait for it, or account a matrix without that edge."
        )
    first: Any = messages[min(weights)]
    if not isinstance(first, Mapping):
        return cast(Message, _weighted("messages", messages, weights))
    if any(set(cast(Any, message)) != set(first) for message in messages.values()):
        raise InvalidInput(f"messages must name the same tensors, {sorted(first)}; send all of one model.")
    by_name = {name: {j: cast(Any, m)[name] for j, m in messages.items()} for name in first}
    return cast(Message, {name: _weighted(repr(name), values, weights) for name, values in by_name.items()})


def _weighted(name: str, messages: Mapping[int, Any], weights: Mapping[int, float]) -> Any:
    """The average of arrays or tensors; `mfdl.gossip` needs no torch."""
    torch = sys.modules.get("torch")
    kinds = {j: "tensor" if torch and isinstance(x, torch.Tensor) else "array" for j, x in messages.items()}
    values: dict[int, Any] = {j: messages[j] if kinds[j] == "tensor" else np.asarray(messages[j]) for j in weights}
    facts = {j: (kinds[j], tuple(x.shape), x.dtype) for j, x in values.items()}
    j0, *others = weights
    for j in others:
        if facts[j] != facts[j0]:
            raise InvalidInput(
                f"{name} must have one shape and type at all nodes, got {facts[j0]} of node {j0} and {facts[j]} of "
                f"node {j}; nothing is broadcast or cast: send models of one architecture."
            )
    first, tensors = values[j0], kinds[j0] == "tensor"
    if first.is_floating_point() or first.is_complex() if tensors else first.dtype.kind in "fc":
        if torch is not None and tensors:
            wide = torch.promote_types(first.dtype, torch.float32)
            return functools.reduce(operator.add, (w * values[j].to(wide) for j, w in weights.items())).to(first.dtype)
        widened = (w * values[j].astype(np.result_type(first, np.float32)) for j, w in weights.items())
        return functools.reduce(operator.add, widened).astype(first.dtype)[()]
    if odd := [j for j in others if not bool((values[j] == first).all())]:
        raise InvalidInput(
            f"{name}, of type {first.dtype}, must be equal at all nodes, as averages of integers and truth values are "
            f"none, got other values of node {odd[0]} than of node {j0}; leave it out of the message, or cast it to a "
            "floating-point type."
        )
    return first.clone() if tensors else first.copy()

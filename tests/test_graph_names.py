"""A graph name such as "ring:n=6" is accepted by every public function that takes a graph, and a typo is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import mfdl
from mfdl import gossip, graphs, tasks
from mfdl.decor_search import corollary_noise
from mfdl.gossip import randomized
from mfdl.node_covariances import algebraic_connectivity_after_deletion, incidence, laplacian, laplacians_after_deletion

NAME = "ring:n=6"
HALVES = np.eye(6) / 2 + np.roll(np.eye(6), 1, axis=1) / 4 + np.roll(np.eye(6), -1, axis=1) / 4
TAKES_A_GRAPH = {
    "graphs.load": graphs.load,
    "graphs.load_sparse": graphs.load_sparse,
    "graphs.labels": graphs.labels,
    "graphs.index_of": lambda graph: graphs.index_of(graph, "5"),
    "graphs.adjacency": graphs.adjacency,
    "graphs.content_hash": graphs.content_hash,
    "graphs.require_connected": graphs.require_connected,
    "gossip.metropolis_hastings": gossip.metropolis_hastings,
    "gossip.uniform": gossip.uniform,
    "gossip.load": lambda graph: gossip.load("uniform", graph),
    "gossip.from_array": lambda graph: gossip.from_array(HALVES, graph),
    "gossip.random_matchings": lambda graph: gossip.random_matchings(graph, 3, seed=0),
    "gossip.random_pairs": lambda graph: gossip.random_pairs(graph, 3, seed=0),
    "gossip.push_sum": lambda graph: gossip.push_sum(graph, 3),
    "gossip.push_sum, several graphs": lambda graph: gossip.push_sum([graph, graph], 3),
    "gossip.randomized.pairs": lambda graph: randomized.pairs(graph).draw(3, 0).gossip,
    "gossip.randomized.matchings": lambda graph: randomized.matchings(graph).draw(3, 0).gossip,
    "node_covariances.laplacian": laplacian,
    "node_covariances.incidence": incidence,
    "node_covariances.algebraic_connectivity_after_deletion": lambda graph: algebraic_connectivity_after_deletion(
        graph, 1
    ),
    "node_covariances.laplacians_after_deletion": lambda graph: next(laplacians_after_deletion(graph, 1))[0],
    "decor_search.corollary_noise": lambda graph: corollary_noise(graph, epsilon=0.5, delta=1e-5, num_steps=4),
    "tasks.load": lambda graph: tasks.load("digits", graph),
    "tasks.digits": tasks.digits,
    "tasks.least_squares": tasks.least_squares,
    "tasks.rotated_quadratics": tasks.rotated_quadratics,
    "tasks.logistic": tasks.logistic,
}


def content(answer: Any) -> Any:
    """What two equal answers have in common."""
    if hasattr(answer, "content_hash"):
        return answer.content_hash
    if hasattr(answer, "toarray"):
        return answer.toarray().tolist()
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if isinstance(answer, graphs.SparseGraph) or hasattr(answer, "edges"):
        return graphs.content_hash(answer)
    return dataclasses.astuple(answer) if dataclasses.is_dataclass(answer) else answer


@pytest.mark.parametrize("function", TAKES_A_GRAPH.values(), ids=TAKES_A_GRAPH)
def test_the_name_of_a_graph_stands_for_the_graph(function):
    assert content(function(NAME)) == content(function(graphs.load(NAME)))


@pytest.mark.parametrize("function", TAKES_A_GRAPH.values(), ids=TAKES_A_GRAPH)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one(function):
    refuses(r"unknown graph 'rng'.*did you mean 'ring'", function, "rng:n=6")


def test_a_task_and_its_mechanism_may_name_the_same_graph():
    dynamics = mfdl.Dynamics(gossip.metropolis_hastings("florentine"), 0.1)
    assert tasks.digits("florentine").num_nodes == dynamics.gossip.num_nodes == 15

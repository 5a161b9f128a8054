"""Certified factorizations: the only door to `solvers`.

`temporal` correlates a node's noise over the steps (an encoder C), `spatial` correlates the noise of one step over the
nodes (a covariance R), `files` keeps either with the header that says what it was made for.
"""

from solvers import Factorization, FactorizationProblem, NotConverged, causal_encoder

from ..error_gram import prefix_sum_gram
from .files import SavedFactorization, load, save
from .temporal import (
    SOLVERS,
    NodeFactorizations,
    evaluate,
    evaluate_nodes,
    factorize,
    factorize_nodes,
    prefix_sum_encoder,
    problem,
    solve_problem,
    square_root_encoder,
)

__all__ = [
    "SOLVERS",
    "Factorization",
    "FactorizationProblem",
    "NodeFactorizations",
    "NotConverged",
    "SavedFactorization",
    "causal_encoder",
    "evaluate",
    "evaluate_nodes",
    "factorize",
    "factorize_nodes",
    "load",
    "prefix_sum_encoder",
    "prefix_sum_gram",
    "problem",
    "save",
    "solve_problem",
    "square_root_encoder",
]

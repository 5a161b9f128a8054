"""Oracles (slow, obvious, dense) and Hypothesis strategies, shared by this library's tests and yours.

Needs the packages of the `test` extra: hypothesis and mpmath; `optimal_loss_reference` uses cvxpy as well.
"""

try:
    import hypothesis as _hypothesis  # noqa: F401
    import mpmath as _mpmath  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"mfdl.testing needs {error.name}, which is not installed; install it with pip install 'mfdl[test]'."
    ) from error

from .gaussian_oracles import exact_delta, exact_epsilon, exact_log_delta, exact_mu, mills_ratio, normal_cdf
from .graph_strategies import connected_graphs, gossip_matrices, gossip_sequences
from .oracles import (
    brute_force_sensitivity,
    dense_error_gram,
    dense_gossip_workload,
    dense_node_error_grams,
    exact_gram,
    optimal_loss_reference,
    prefix_sum,
    vector_sensitivity_lower_bound,
)
from .spatial_oracles import coalition_inverse_diagonal, coalition_loss_reference
from .strategies import encoders, factorization_problems, participations

__all__ = [
    "brute_force_sensitivity",
    "coalition_inverse_diagonal",
    "coalition_loss_reference",
    "connected_graphs",
    "dense_error_gram",
    "dense_gossip_workload",
    "dense_node_error_grams",
    "encoders",
    "exact_delta",
    "exact_epsilon",
    "exact_gram",
    "exact_log_delta",
    "exact_mu",
    "factorization_problems",
    "gossip_matrices",
    "gossip_sequences",
    "mills_ratio",
    "normal_cdf",
    "optimal_loss_reference",
    "participations",
    "prefix_sum",
    "vector_sensitivity_lower_bound",
]

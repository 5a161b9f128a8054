"""Certified factorizations: the only door to the solvers of `mfdl_solvers`.

`temporal` correlates a node's noise over the steps (an encoder C; `nodes`: one for each of them; `long_runs`: with
structure, for many steps; `balls_in_bins_encoders`), `node_covariances` correlates the noise of one step over the nodes
(a covariance R, made from the seeds of `groups`; `pairwise_covariance`: alike on every edge), `spatio_temporal` over
both at once. `saved_factorization` keeps any of them with the header that says what it was made for. `peer_encoders`
reads those of other libraries.
"""

from mfdl_solvers import Factorization, FactorizationProblem, MaximumProblem, NotConverged, causal_encoder

from .balls_in_bins_encoders import CORRELATIONS, BallsInBinsFactorization, factorize_balls_in_bins
from .groups import checked_groups, edge_groups, read_groups
from .long_runs import FORMS, StructuredFactorization, evaluate_long, factorize_long
from .nodes import (
    ClassFactorizations,
    NodeFactorizations,
    degree_labels,
    evaluate_nodes,
    factorize_classes,
    factorize_nodes,
)
from .pairwise_covariance import PairwisePrice, optimal_pairwise
from .peer_encoders import from_jax_privacy, from_opake
from .saved_factorization import SavedFactorization, load, save
from .seeded_covariances import COVARIANCE_SOLVERS, SpatialFactorization, default_tolerance, optimal_covariance
from .spatio_temporal import (
    PER_MODE_TOLERANCE,
    SpatioTemporalFactorization,
    optimal_joint,
    optimal_kronecker,
    optimal_per_mode,
)
from .temporal import (
    MEASURES,
    PREFIX_SUM_TOLERANCE,
    SOLVERS,
    EstimatedFactorization,
    EstimatedProblem,
    evaluate,
    factorize,
    maximum_problem,
    prefix_sum_encoder,
    prefix_sum_gram,
    problem,
    solve_problem,
    square_root_encoder,
)
from .trust_noise import AttackerView, optimal_local_noise

__all__ = [
    "CORRELATIONS",
    "COVARIANCE_SOLVERS",
    "FORMS",
    "MEASURES",
    "PER_MODE_TOLERANCE",
    "PREFIX_SUM_TOLERANCE",
    "SOLVERS",
    "AttackerView",
    "BallsInBinsFactorization",
    "ClassFactorizations",
    "EstimatedFactorization",
    "EstimatedProblem",
    "Factorization",
    "FactorizationProblem",
    "MaximumProblem",
    "NodeFactorizations",
    "NotConverged",
    "PairwisePrice",
    "SavedFactorization",
    "SpatialFactorization",
    "SpatioTemporalFactorization",
    "StructuredFactorization",
    "causal_encoder",
    "checked_groups",
    "default_tolerance",
    "degree_labels",
    "edge_groups",
    "evaluate",
    "evaluate_long",
    "evaluate_nodes",
    "factorize",
    "factorize_balls_in_bins",
    "factorize_classes",
    "factorize_long",
    "factorize_nodes",
    "from_jax_privacy",
    "from_opake",
    "load",
    "maximum_problem",
    "optimal_covariance",
    "optimal_joint",
    "optimal_kronecker",
    "optimal_local_noise",
    "optimal_pairwise",
    "optimal_per_mode",
    "prefix_sum_encoder",
    "prefix_sum_gram",
    "problem",
    "read_groups",
    "save",
    "solve_problem",
    "square_root_encoder",
]


def __dir__() -> list[str]:
    return sorted(__all__)

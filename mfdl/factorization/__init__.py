"""Certified factorizations: the only door to the solvers of `mfdl_solvers`.

`temporal` correlates a node's noise over the steps (an encoder C; `nodes`: one for each of them; `long_runs`: with
structure, for many steps; `balls_in_bins_encoders`), `node_covariances` correlates the noise of one step over the nodes
(a covariance R, made from the seeds of `groups`; `pairwise_covariance`: alike on every edge), `spatio_temporal` over
both at once. `saved_factorization` keeps any of them with the header that says what it was made for. `peer_encoders`
reads those of other libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfdl_solvers import Factorization, FactorizationProblem, MaximumProblem, NotConverged

    from .balls_in_bins_encoders import factorize_balls_in_bins
    from .long_runs import factorize_long
    from .nodes import factorize_classes, factorize_nodes
    from .pairwise_covariance import optimal_pairwise
    from .peer_encoders import from_jax_privacy, from_opake
    from .saved_factorization import load, save
    from .seeded_covariances import optimal_covariance
    from .spatio_temporal import optimal_joint, optimal_kronecker, optimal_per_mode
    from .temporal import (
        evaluate,
        factorize,
        maximum_problem,
        prefix_sum_encoder,
        problem,
        solve_problem,
        square_root_encoder,
    )

__all__ = [
    "Factorization", "FactorizationProblem", "MaximumProblem", "NotConverged", "evaluate", "factorize",
    "factorize_balls_in_bins", "factorize_classes", "factorize_long", "factorize_nodes", "from_jax_privacy",
    "from_opake", "load", "maximum_problem", "optimal_covariance", "optimal_joint", "optimal_kronecker",
    "optimal_pairwise", "optimal_per_mode", "prefix_sum_encoder", "problem", "save", "solve_problem",
    "square_root_encoder",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)

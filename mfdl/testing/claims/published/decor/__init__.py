"""Claims of DECOR, noise that cancels between neighbours: arXiv:2405.01031 and its public code."""

from .accounting import (
    accountant_is_the_view,
    adversaries_by_strength,
    connectivity_bounds_the_slope,
    corollary_has_a_range,
    corollary_holds_beyond_its_range,
    corollary_meets_its_target,
    inputs_as_variances,
    loss_without_the_inverse,
    noise_reuse_is_free,
    search_meets_its_target,
    steps_add_up,
)
from .averaging import (
    heterogeneity_of_columns,
    heterogeneity_of_metropolis_hastings,
    heterogeneity_of_rows,
    lemma_8,
    lemma_8_by_columns,
    printed_step_sizes_converge,
    rows_sum_to_one,
    split_holds_every_record_once,
    weights_are_doubly_stochastic,
)

__all__ = [
    "accountant_is_the_view",
    "adversaries_by_strength",
    "connectivity_bounds_the_slope",
    "corollary_has_a_range",
    "corollary_holds_beyond_its_range",
    "corollary_meets_its_target",
    "heterogeneity_of_columns",
    "heterogeneity_of_metropolis_hastings",
    "heterogeneity_of_rows",
    "inputs_as_variances",
    "lemma_8",
    "lemma_8_by_columns",
    "loss_without_the_inverse",
    "noise_reuse_is_free",
    "printed_step_sizes_converge",
    "rows_sum_to_one",
    "search_meets_its_target",
    "split_holds_every_record_once",
    "steps_add_up",
    "weights_are_doubly_stochastic",
]

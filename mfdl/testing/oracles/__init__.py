"""Oracles: slow, obvious, dense; nothing shared with the code they judge."""

from types import ModuleType as _Module

from .adaptive import Integral, Reaction, adaptive_delta, adaptive_total_variation
from .curve_oracles import (
    DIGITS,
    composed_delta,
    exact_delta,
    exact_epsilon,
    exact_log_delta,
    exact_mu,
    exact_renyi,
    mills_ratio,
    normal_cdf,
)
from .dense_views import (
    ExactRun,
    Rational,
    append_known_noise,
    clear_rank,
    dense_averaged_workload,
    dense_error_gram,
    dense_gossip_workload,
    dense_node_error_grams,
    dense_noising,
    exact_gram,
    exact_leaks,
    exact_run,
    exact_view,
    exact_view_gram,
    gossip_messages,
    local_noising,
    node_columns,
    pairwise_factor,
    pinv_gram,
    prefix_sum,
    rank,
    rational,
    received,
    rows_span,
    to_float,
    without_noise,
)
from .sensitivity_oracle import (
    LinearSystem,
    ascended_value,
    brute_force_sensitivity,
    coalition_inverse_diagonal,
    coalition_loss_reference,
    cost_matrices,
    elliptope_reference,
    exact_cost,
    largest_over_patterns,
    largest_signed_sum,
    once_per_epoch_patterns,
    optimal_loss_reference,
    quadratic_program_value,
    separated_patterns,
    signed_sum_over_patterns,
    vector_sensitivity_lower_bound,
)

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module))

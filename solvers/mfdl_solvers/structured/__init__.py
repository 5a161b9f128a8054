"""Structured encoders for the gossip error Gram: the best Toeplitz, banded, buffered ones, and bounds, in O(T)."""

from .balls_in_bins_search import BinEncoder, solve_form
from .bound import FORMS, Form, StructuredFactorization, best, best_encoder, evaluate, lower_bound, objective
from .cost import ModeCost
from .searches import best_banded, best_banded_inverse, best_buffered, best_inverse, best_toeplitz, stationary_series

__all__ = [
    "FORMS", "BinEncoder", "Form", "ModeCost", "StructuredFactorization", "best", "best_banded", "best_banded_inverse",
    "best_buffered", "best_encoder", "best_inverse", "best_toeplitz", "evaluate", "lower_bound", "objective",
    "solve_form", "stationary_series",
]  # fmt: skip

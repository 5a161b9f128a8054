"""Structured strategies for the gossip error Gram: the best Toeplitz, banded, buffered ones, and bounds, in O(T)."""

from .bound import lower_bound
from .cost import ModeCost
from .toeplitz import Found, best_buffered, best_inverse, best_toeplitz, stationary_series
from .uses import Uses

__all__ = [
    "Found",
    "ModeCost",
    "Uses",
    "best_buffered",
    "best_inverse",
    "best_toeplitz",
    "lower_bound",
    "stationary_series",
]

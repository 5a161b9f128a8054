"""Structured linear operators over time x nodes, as scipy `LinearOperator`s with a dense form for oracles."""

from .base import StructuredOperator
from .kronecker import Kronecker
from .recursion import OutputRecursion, RecursionMaps, StateRecursion, WeightedStates
from .selection import Selection

__all__ = [
    "Kronecker",
    "OutputRecursion",
    "RecursionMaps",
    "Selection",
    "StateRecursion",
    "StructuredOperator",
    "WeightedStates",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Structured linear operators over time x nodes, as scipy `LinearOperator`s with a dense form for oracles."""

from .linear_recursions import OutputRecursion, RecursionMaps, StateRecursion, WeightedStates
from .structured import Kronecker, Selection, StructuredOperator

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

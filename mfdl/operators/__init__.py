"""Structured linear operators over time x nodes, as scipy `LinearOperator`s with a dense form for oracles."""

from .structured import (
    Kronecker,
    OutputRecursion,
    RecursionMaps,
    Selection,
    StateRecursion,
    StructuredOperator,
    WeightedStates,
)

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

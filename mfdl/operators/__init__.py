"""Structured linear operators over time x nodes, as scipy `LinearOperator`s with a dense form for oracles."""

from .structured import Kronecker, OutputRecursion, StructuredOperator

__all__ = ["Kronecker", "OutputRecursion", "StructuredOperator"]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Structured linear operators over time x nodes, as scipy `LinearOperator`s with a dense form for oracles."""

import importlib
from typing import TYPE_CHECKING, Any

from .base import StructuredOperator
from .kronecker import Kronecker
from .recursion import OutputRecursion, RecursionMaps, StateRecursion, WeightedStates
from .selection import Selection

if TYPE_CHECKING:
    from ..noise import IndependentNoise, JointNoise, LocalNoise, NoiseOperator, SpaceTimeNoise, StepNoise, ZeroNoise

__all__ = [
    "IndependentNoise",
    "JointNoise",
    "Kronecker",
    "LocalNoise",
    "NoiseOperator",
    "OutputRecursion",
    "RecursionMaps",
    "Selection",
    "SpaceTimeNoise",
    "StateRecursion",
    "StepNoise",
    "StructuredOperator",
    "WeightedStates",
    "ZeroNoise",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Noise stands above these operators, in `mfdl.noise`, and keeps its names here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("mfdl.noise"), name)

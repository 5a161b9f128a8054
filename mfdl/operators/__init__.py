"""Structured linear operators over time x nodes, as scipy `LinearOperator`s with a dense form for oracles."""

from .base import StructuredOperator
from .kronecker import Kronecker
from .noise import IndependentNoise, LocalNoise, NoiseOperator, StepNoise, ZeroNoise
from .recursion import OutputRecursion, RecursionMaps, StateRecursion
from .selection import Selection
from .space_time_noise import JointNoise, SpaceTimeNoise

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
    "ZeroNoise",
]


def __dir__() -> list[str]:
    return sorted(__all__)

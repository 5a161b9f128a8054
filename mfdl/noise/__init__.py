"""Noise: operators N in `injected = N Z`, and the stream of what is injected."""

from .base import NoiseOperator
from .causal import CausalNoise, IndependentNoise, JointNoise, LocalNoise, SpatioTemporalNoise, StepNoise, ZeroNoise
from .scheduled import ScheduledNoise

__all__ = [
    "CausalNoise",
    "IndependentNoise",
    "JointNoise",
    "LocalNoise",
    "NoiseOperator",
    "ScheduledNoise",
    "SpatioTemporalNoise",
    "StepNoise",
    "ZeroNoise",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Noise: operators N in `injected = N Z`, and the stream of what is injected."""

from .base import CausalNoise, IndependentNoise, LocalNoise, NoiseOperator, SpatioTemporalNoise, StepNoise, ZeroNoise
from .general import JointNoise, ScheduledNoise

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

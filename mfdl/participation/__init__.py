"""Who takes part when: `schemes` of one node's records, `by_node` where nodes differ, `sampling` by secret draws."""

from mfdl_solvers.pattern_sets import Pattern, PatternSet

from .by_node import ParticipationByNode
from .sampling import BallsInBins, PoissonSampling, Sampled
from .schemes import (
    Cyclic,
    EveryStep,
    Explicit,
    MinSeparation,
    OncePerEpoch,
    Participation,
    Single,
)

__all__ = [
    "BallsInBins",
    "Cyclic",
    "EveryStep",
    "Explicit",
    "MinSeparation",
    "OncePerEpoch",
    "Participation",
    "ParticipationByNode",
    "Pattern",
    "PatternSet",
    "PoissonSampling",
    "Sampled",
    "Single",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Who takes part when: `schemes` of one node's records, `by_node` where nodes differ, `sampling` by secret draws."""

from mfdl_solvers.pattern_sets import PatternSet

from .by_node import ParticipationByNode
from .sampling import BallsInBins, CyclicPoisson, MinSeparationSampling, PoissonSampling, RandomAllocation
from .schemes import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Participation, Single

__all__ = [
    "BallsInBins",
    "Cyclic",
    "CyclicPoisson",
    "EveryStep",
    "Explicit",
    "MinSeparation",
    "MinSeparationSampling",
    "OncePerEpoch",
    "Participation",
    "ParticipationByNode",
    "PatternSet",
    "PoissonSampling",
    "RandomAllocation",
    "Single",
]


def __dir__() -> list[str]:
    return sorted(__all__)

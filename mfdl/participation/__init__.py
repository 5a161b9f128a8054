"""Who takes part when: `schemes` of one node's records, `by_node` where nodes differ, `sampling` by secret draws."""

from .by_node import ParticipationByNode
from .sampling import BallsInBins, PoissonSampling, Sampled
from .schemes import (
    Cyclic,
    EveryStep,
    Explicit,
    MinSeparation,
    OncePerEpoch,
    Participation,
    Pattern,
    Single,
    in_every_step,
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
    "PoissonSampling",
    "Sampled",
    "Single",
    "in_every_step",
]


def __dir__() -> list[str]:
    return sorted(__all__)

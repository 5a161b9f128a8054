"""A `LinearAlgorithm` in a file and back: maps, noise, gossip, participation, and the factorization behind them.

In: an algorithm of this library or of `from_maps`. Out: JSON and arrays (`mfdl.archive`), and from these an algorithm
with the same content hash. Everything is rebuilt by the constructors, which check it as they check what a user gives.
What a factorization claims of itself (loss, lower bound, status) is carried as it stands: no guarantee rests on it.
"""

from __future__ import annotations

from typing import Any

from ..archive import Packer, Unpacker
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..factorization import (
    ClassFactorizations,
    Factorization,
    NodeFactorizations,
    SpaceTimeFactorization,
    SpatialFactorization,
)
from ..factorization.strategies import Banded, Buffered, Inverse, Toeplitz
from ..gossip import GossipMatrix, PushSum
from ..gossip.sequences import GossipSequence
from ..noise import (
    CausalNoise,
    IndependentNoise,
    JointNoise,
    LocalNoise,
    NoiseOperator,
    ScheduledNoise,
    SpaceTimeNoise,
    StepNoise,
    ZeroNoise,
)
from ..participation import Participation
from ..participation.saved import participation_from_dict
from ..released import Released
from .linear_algorithm import LinearAlgorithm
from .round import Round

CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Round,
        Dynamics,
        GossipMatrix,
        GossipSequence,
        PushSum,
        Factorization,
        NodeFactorizations,
        ClassFactorizations,
        SpatialFactorization,
        SpaceTimeFactorization,
        Toeplitz,
        Banded,
        Buffered,
        Inverse,
    )
}
"""What an algorithm is made of, by the names in files."""

_CAUSAL = (CausalNoise, ZeroNoise, IndependentNoise, LocalNoise, StepNoise, SpaceTimeNoise)
_PLAIN = (
    "name", "dynamics", "model_from_state", "message_sender", "divisors", "factorization", "step_of_round",
    "transmitted", "noise_on_messages", "state_from_start",
)  # fmt: skip


def pack_algorithm(algorithm: LinearAlgorithm, pack: Packer) -> dict[str, Any]:
    """The algorithm as JSON, its arrays in the packer.

    Raises: InvalidInput: a noise, gossip or participation of a class of the user's own, or node labels that are no
        plain values.
    """
    saved = {name: pack(getattr(algorithm, name), f"{name} of the algorithm") for name in _PLAIN}
    saved["kinds"] = pack(algorithm.kinds, "rounds of the algorithm")
    saved["kind_of_round"] = pack(algorithm.kind_of_round, "rounds of the algorithm")
    if not algorithm.released.is_last:
        saved["released"] = algorithm.released.describe()
    saved["noise"] = _packed_noise(algorithm.noise, pack)
    saved["participation"] = _participation(algorithm.participation)
    return saved


def unpack_algorithm(saved: dict[str, Any], unpack: Unpacker) -> LinearAlgorithm:
    """The inverse of `pack_algorithm`; whatever is wrong with it raises."""
    kinds, kind_of_round = unpack(saved["kinds"]), unpack(saved["kind_of_round"])
    return LinearAlgorithm(
        **{name: unpack(saved[name]) for name in _PLAIN},
        rounds=tuple(kinds[kind] for kind in kind_of_round),
        noise=_unpacked_noise(saved["noise"], unpack),
        participation=participation_from_dict(saved["participation"]),
        released=Released(saved.get("released", "last")),
    )


def _participation(given: Participation) -> dict[str, Any]:
    saved = given.to_dict()
    if type(given) is not type(participation_from_dict(saved)):
        raise InvalidInput(
            f"participation {type(given).__name__} cannot be saved: a file holds those of mfdl alone; list its "
            "patterns with mfdl.Explicit."
        )
    return saved


def _packed_noise(noise: NoiseOperator, pack: Packer) -> dict[str, Any]:
    what, sizes = "noise of the algorithm", {"num_steps": noise.num_steps, "num_nodes": noise.num_nodes}
    if type(noise) is JointNoise:
        return {"joint": {**sizes, "encoder": pack(noise.encoder, what)}}
    if type(noise) is ScheduledNoise:
        columns = noise.columns
        planned = {"encoder": columns.strategy or columns.encoder, "mixing": noise.mixing, "holders": noise.holders()}
        return {"scheduled": {**sizes, **{name: pack(part, what) for name, part in planned.items()}}}
    causal = noise.causal
    if causal is None or type(noise) not in _CAUSAL:
        raise InvalidInput(
            f"noise {type(noise).__name__} cannot be saved: a file holds no code, only encoders and factors; write it "
            "as a CausalNoise or a JointNoise of mfdl.noise."
        )
    parts = {"encoder": causal.strategy or causal.encoder, "factor": causal.factor, "holders": causal.holders()}
    return {"causal": {**sizes, **{name: pack(part, what) for name, part in parts.items()}}}


def _unpacked_noise(saved: dict[str, Any], unpack: Unpacker) -> NoiseOperator:
    ((kind, parts),) = saved.items()
    made = {name: unpack(part) for name, part in parts.items()}
    return {"joint": JointNoise, "causal": CausalNoise, "scheduled": ScheduledNoise}[kind](**made)

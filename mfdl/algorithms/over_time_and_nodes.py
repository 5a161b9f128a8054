"""Algorithms whose noise is correlated over steps and nodes at once: the plain round with noise of `factorization`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..factorization import (
    ADAPTED_TOLERANCE,
    SpaceTimeFactorization,
    default_tolerance,
    factorize_bins,
    optimal_adapted,
    optimal_covariance,
    optimal_space_time,
    optimal_time_space,
)
from ..factorization.setting import USUAL_TOLERANCE
from ..noise import SpaceTimeNoise
from ..objective import ErrorWeights
from ..participation import Participation
from ..progress import Progress
from .checks import builder, require_bins, solved_by
from .dsgd import decentralized
from .linear_algorithm import LinearAlgorithm
from .mechanism_names import MECHANISMS, OF_SECRET_BINS, SHARED


@builder
def space_time_noise(
    dynamics: Dynamics, participation: Participation, solved: SpaceTimeFactorization, *, name: str | None = None
) -> LinearAlgorithm:
    """The algorithm whose noise is a given `SpaceTimeFactorization`, who holds which seed included.

    Raises: InvalidInput: made for other nodes, another gossip matrix, or another participation.
    """
    check.instance(SpaceTimeFactorization, solved=solved)
    if (solved.num_nodes, solved.num_steps) != (dynamics.num_nodes, participation.num_steps):
        raise InvalidInput(
            f"the noise was made for {solved.num_nodes} nodes and {solved.num_steps} steps, not for "
            f"{dynamics.num_nodes} and {participation.num_steps}; factorize again."
        )
    if solved.gossip_hash not in ("", dynamics.gossip.content_hash):
        raise InvalidInput(
            "the noise was made for another gossip matrix, so what is certified of it does not hold here; factorize "
            "again."
        )
    if solved.participation != participation.to_dict():
        raise InvalidInput(
            f"the noise was made for {solved.participation}, not for {participation.to_dict()}; factorize again with "
            "this participation."
        )
    return decentralized(name or solved.kind, dynamics, participation, solved.noise(), factorization=solved)


@MECHANISMS.register(
    paper="this library; its halves are MAFALDA-SGD and CorN-DSGD",
    trust="eavesdropper; colluding and coalitions with coalition_size",
    models=SHARED,
)
@solved_by(optimal_time_space)
def time_space(given: Mapping[str, Any], solved: SpaceTimeFactorization) -> LinearAlgorithm:
    """One encoder over steps for all base noise, one covariance over nodes: C = C_t (x) C_s, the best of that form.

    Args: those of `factorization.optimal_time_space`. With one seed for all nodes it protects against outsiders;
        insiders are held off by seed groups, private noise and coalition_size >= 1.
    """
    return _converged(given, solved, default_tolerance(given.get("groups"), given.get("coalition_size", 0)))


@MECHANISMS.register(paper="this library", trust="eavesdropper", models=("eavesdropper",))
@solved_by(optimal_adapted)
def adapted(given: Mapping[str, Any], solved: SpaceTimeFactorization) -> LinearAlgorithm:
    """An encoder over steps for each direction over the nodes, against outsiders.

    Never worse than the best of `time_space` up to the tolerance, at which the product it begins with is solved.
    Args: those of `factorization.optimal_adapted`.
    """
    return _converged(given, solved, ADAPTED_TOLERANCE)


@MECHANISMS.register(paper="this library", trust="eavesdropper", models=("eavesdropper",))
@solved_by(optimal_space_time)
def space_time(given: Mapping[str, Any], solved: SpaceTimeFactorization) -> LinearAlgorithm:
    """The best noise of any correlation over steps and nodes, against outsiders; for small T n.

    Args: those of `factorization.optimal_space_time`.
    """
    return _converged(given, solved, USUAL_TOLERANCE)


@OF_SECRET_BINS.register(paper="this library", trust="eavesdropper", models=("eavesdropper",))
@builder
def time_space_bins(
    dynamics: Dynamics,
    participation: Participation,
    *,
    noise_std: Callable[[FloatArray], float],
    weights: ErrorWeights | None = None,
    progress: Progress = "auto",
) -> LinearAlgorithm:
    """For secret bins and outsiders: the best covariance over nodes of fresh noise, then the best encoder over time.

    Args:
        participation: `BallsInBins`.
        noise_std, weights: as `factorization.factorize_bins`; `mfdl.privacy.noise_of_bins` says it.
    Raises: UnsupportedMechanism: another participation, gossip without modes; InvalidInput: no encoder meets the
        target.
    Cost: that of `optimal_covariance`, of the modes, n T^3, and of `factorize_bins`.
    Source: docs/balls_in_bins_theorem.md.
    """
    known = require_bins("time-space-bins", participation, "time_space")
    space = optimal_covariance(dynamics, horizon=known.num_steps, weights=weights)
    factor, holders = space.factor()
    shared: dict[str, Any] = {"weights": weights, "progress": progress}
    solved = factorize_bins(dynamics, known.uses, known.gap, noise_std, factor=factor, **shared)
    noise = SpaceTimeNoise(solved.encoder, factor, holders, dynamics.num_nodes)
    return decentralized("time-space-bins", dynamics, participation, noise)


def _converged(given: Mapping[str, Any], solved: SpaceTimeFactorization, usual_tolerance: float) -> LinearAlgorithm:
    tolerance = given.get("tolerance") or usual_tolerance
    return space_time_noise(given["dynamics"], given["participation"], solved.require_converged(tolerance))

"""Algorithms whose noise is correlated over steps and nodes at once: the plain round with noise of `factorization`."""

from __future__ import annotations

from collections.abc import Sequence

from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..errors import InvalidInput
from ..factorization import (
    ADAPTED_TOLERANCE,
    SpaceTimeFactorization,
    default_tolerance,
    optimal_adapted,
    optimal_space_time,
    optimal_time_space,
)
from ..participation import Participation
from .dsgd import decentralized
from .linear_algorithm import LinearAlgorithm


def space_time_noise(
    dynamics: Dynamics, participation: Participation, solved: SpaceTimeFactorization, *, name: str | None = None
) -> LinearAlgorithm:
    """The algorithm whose noise is a given `SpaceTimeFactorization`, who holds which seed included.

    Raises: InvalidInput: made for other nodes, another gossip matrix, or another participation.
    """
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


def time_space(
    dynamics: Dynamics,
    participation: Participation,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float | None = None,
) -> LinearAlgorithm:
    """One encoder over steps for all base noise, one covariance over nodes: C = C_t (x) C_s, the best of that form.

    Args: as for `factorization.optimal_time_space`. With one seed for all nodes it protects against outsiders; insiders
        are held off by seed groups, private noise and coalition_size >= 1.
    """
    solved = optimal_time_space(
        dynamics,
        participation,
        weights=weights,
        objective=objective,
        groups=groups,
        coalition_size=coalition_size,
        tolerance=tolerance,
    )
    wanted = default_tolerance(groups, coalition_size) if tolerance is None else tolerance
    return space_time_noise(dynamics, participation, solved.require_converged(wanted))


def adapted(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = ADAPTED_TOLERANCE,
) -> LinearAlgorithm:
    """An encoder over steps for each direction over the nodes, against outsiders.

    Never worse than the best of `time_space` up to the tolerance, at which the product it begins with is solved.
    """
    solved = optimal_adapted(dynamics, participation, weights=weights, objective=objective, tolerance=tolerance)
    return space_time_noise(dynamics, participation, solved.require_converged(tolerance))


def space_time(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = 1e-4,
) -> LinearAlgorithm:
    """The best noise of any correlation over steps and nodes, against outsiders; for small T n."""
    solved = optimal_space_time(dynamics, participation, weights=weights, objective=objective, tolerance=tolerance)
    return space_time_noise(dynamics, participation, solved.require_converged(tolerance))

"""Algorithms whose encoder comes from a factorization: BSR, D-MF, MAFALDA-SGD, MAFALDA-L, MAFALDA by class of nodes."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..factorization import (
    PREFIX_SUM_TOLERANCE,
    factorize,
    factorize_classes,
    factorize_nodes,
    prefix_sum_encoder,
    square_root_encoder,
)
from ..participation import Cyclic, Participation
from .dsgd import mf_dsgd
from .linear_algorithm import LinearAlgorithm


def bsr(dynamics: Dynamics, participation: Participation, *, bandwidth: int | None = None) -> LinearAlgorithm:
    """Banded square root of the prefix sum, lower triangular.

    Args: bandwidth: non-zero diagonals; default the period of cyclic participation (no two uses of one record
        then overlap in C), else T.
    """
    return mf_dsgd(dynamics, participation, bsr_encoder(participation, bandwidth), name="bsr")


def bsr_encoder(participation: Participation, bandwidth: int | None = None) -> Any:
    """The encoder of `bsr`, shape (T, T)."""
    if bandwidth is None and isinstance(participation, Cyclic):
        bandwidth = participation.period
    return square_root_encoder(participation.num_steps, bandwidth)


def d_mf(
    dynamics: Dynamics, participation: Participation, *, tolerance: float = PREFIX_SUM_TOLERANCE
) -> LinearAlgorithm:
    """D-MF: the optimal encoder of the centralized matrix mechanism (prefix sums) at every node."""
    solved = prefix_sum_encoder(participation, tolerance=tolerance)
    return mf_dsgd(dynamics, participation, solved.encoder, name="d-mf", factorization=solved)


def mafalda(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = 1e-4,
    solver: str = "dense",
) -> LinearAlgorithm:
    """MAFALDA-SGD: one C_local for all nodes, optimal for the gossip graph.

    Source: arXiv:2510.17480, Algorithm 2, with the exact error Gram and a certificate.
    """
    solved = factorize(
        dynamics, participation, weights=weights, objective=objective, tolerance=tolerance, solver=solver
    )
    return mf_dsgd(dynamics, participation, solved.encoder, name="mafalda", factorization=solved)


def mafalda_l(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = 1e-4,
) -> LinearAlgorithm:
    """MAFALDA-L: each node its own C_u, optimal for the errors its noise causes, under its own participation."""
    solved = factorize_nodes(dynamics, participation, weights=weights, objective=objective, tolerance=tolerance)
    return mf_dsgd(dynamics, participation, solved.encoder, name="mafalda-l", factorization=solved)


def mafalda_by_class(
    dynamics: Dynamics,
    participation: Participation,
    *,
    labels: ArrayLike | None = None,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = 1e-4,
) -> LinearAlgorithm:
    """Between MAFALDA-SGD and MAFALDA-L: one C for each class of nodes, optimal for the errors their noise causes.

    Each encoder has unit sensitivity under the participation of its nodes, so under LDP privacy does not depend on the
    classes. Finer classes never cost more, up to the tolerance; there are fewer problems to solve than nodes.

    Args: labels: an integer per node, shape (n,); nodes with one label and one participation are a class. Default:
        nodes with equally many neighbours.
    """
    solved = factorize_classes(
        dynamics, participation, labels=labels, weights=weights, objective=objective, tolerance=tolerance
    )
    return mf_dsgd(dynamics, participation, solved.encoder, name="mafalda-classes", factorization=solved)

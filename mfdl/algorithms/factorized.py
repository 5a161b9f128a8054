"""MF-D-SGD with any encoder C, and with one that a factorization gives: BSR, D-MF, MAFALDA for one node or many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..factorization import (
    Factorization,
    factorize,
    factorize_balls_in_bins,
    factorize_classes,
    factorize_nodes,
    prefix_sum_encoder,
)
from ..factorization.encoders import Encoder, Inverse, Toeplitz, square_root_series
from ..factorization.long_runs import best_of_form
from ..factorization.nodes import NodeFactorizations
from ..factorization.seeded_covariances import SpatialFactorization
from ..factorization.spatio_temporal import SpatioTemporalFactorization
from ..factorization.temporal import PREFIX_SUM_TOLERANCE
from ..noise.general import encoded_noise
from ..objective import ErrorWeights
from ..participation import Participation
from ..progress import Progress
from .building import MECHANISMS, OF_BALLS_IN_BINS, builder, solved_by
from .gossip_sgd import decentralized
from .linear_algorithm import LinearAlgorithm

Solved: TypeAlias = Factorization | NodeFactorizations | SpatialFactorization | SpatioTemporalFactorization
AnyEncoder: TypeAlias = ArrayLike | sp.sparray | LinearOperator | Encoder | Solved
"""C, in all the ways in which it may be given."""


@builder
def mf_dsgd(
    dynamics: Dynamics,
    participation: Participation,
    encoder: AnyEncoder,
    *,
    name: str = "mf-dsgd",
    factorization: Factorization | NodeFactorizations | None = None,
) -> LinearAlgorithm:
    """MF-D-SGD: node u adds (C^-1 Z)_(t, u) for a causal encoder C, of each node's own noise or of shared noise.

    Args:
        encoder: C as an array, a sparse matrix or an operator: shared by all nodes, (T, T); per node, (n, T, T); or
            over time x nodes, (T n, T n), time-major, with any block inside a step that can be inverted. Column k of a
            step is held by all nodes that use it in C^-1: what several nodes use hides them from outsiders alone. Or C
            with structure (`factorization.encoders`), or what a function of `factorization` returned.
    Raises: InvalidInput: C that needs noise of later steps, is singular, or has another shape.
    Source: arXiv:2510.17480, Algorithm 1, with the noise scaled by the sensitivity of C.
    """
    if isinstance(encoder, SpatialFactorization | SpatioTemporalFactorization):
        from . import over_nodes

        build: Any = over_nodes.spatial_noise
        if isinstance(encoder, SpatioTemporalFactorization):
            build = over_nodes.spatio_temporal_noise
        return build(dynamics, participation, encoder, name=name)
    if factorization is None and isinstance(encoder, Factorization | NodeFactorizations):
        factorization = encoder
    noise = encoded_noise(encoder, participation.num_steps, dynamics.num_nodes)
    if noise.num_steps != participation.num_steps:
        raise InvalidInput(
            f"encoder must be T x T with T = {participation.num_steps} steps of {participation.describe()}, "
            f"got {noise.num_steps} x {noise.num_steps}; over time x nodes it is T n x T n, {dynamics.num_nodes} nodes."
        )
    return decentralized(name, dynamics, participation, noise, factorization=factorization)


@MECHANISMS.register(
    paper="arXiv:2405.13763", erratum="public code of 2510.17480 uses a symmetric Toeplitz matrix, which is not causal"
)
@builder
def bsr(dynamics: Dynamics, participation: Participation, *, bandwidth: int | None = None) -> LinearAlgorithm:
    """Banded square root of the prefix sum, lower triangular.

    Args: bandwidth: non-zero diagonals; default the period of cyclic participation (no two uses of one record
        then overlap in C), else T.
    """
    T = participation.num_steps
    encoder = Toeplitz(square_root_series(_width(participation, bandwidth, T)), T)
    return mf_dsgd(dynamics, participation, encoder, name="bsr")


@MECHANISMS.register(paper="arXiv:2505.12128")
@builder
def bisr(dynamics: Dynamics, participation: Participation, *, bandwidth: int | None = None) -> LinearAlgorithm:
    """BISR: the square root of the prefix sum with a banded inverse: noise is a sum of few fresh rows, any T.

    Args: bandwidth: rows of base noise that a step adds up; default the period of cyclic participation, else 16.
    """
    T = participation.num_steps
    noising = Toeplitz(square_root_series(_width(participation, bandwidth, 16), inverse=True), T)
    return mf_dsgd(dynamics, participation, Inverse(noising), name="bisr")


@MECHANISMS.register(paper="arXiv:2601.22334")
@builder
def lambda_cgd(dynamics: Dynamics, participation: Participation, *, correlation: float = 0.8) -> LinearAlgorithm:
    """DP-lambda-CGD: each step takes back a share of the noise of the step before, made again from its counter.

    Node u adds z_t - lambda z_(t - 1), lambda = `correlation` in (0, 1).
    """
    share = check.open_unit(correlation=correlation)
    T = participation.num_steps
    return mf_dsgd(dynamics, participation, Inverse(Toeplitz([1.0, -share][:T], T)), name="lambda-cgd")


def _width(participation: Participation, bandwidth: int | None, otherwise: int) -> int:
    if bandwidth is not None:
        return check.at_most_steps(participation.num_steps, bandwidth=bandwidth)
    return min(participation.cycle or otherwise, participation.num_steps)


@MECHANISMS.register(paper="arXiv:2306.08153")
@builder
def d_mf(
    dynamics: Dynamics, participation: Participation, *, tolerance: float = PREFIX_SUM_TOLERANCE
) -> LinearAlgorithm:
    """D-MF: the optimal encoder of the centralized matrix mechanism (prefix sums) at every node."""
    solved = prefix_sum_encoder(participation, tolerance=tolerance)
    return mf_dsgd(dynamics, participation, solved.encoder, name="d-mf", factorization=solved)


@MECHANISMS.register(
    paper="arXiv:2510.17480, Algorithm 2",
    erratum="Cholesky factor of the wrong orientation (objective 1.5% above the optimum); Theorem 7 lacks a square",
)
@solved_by(factorize)
def mafalda(given: Mapping[str, Any], solved: Factorization) -> LinearAlgorithm:
    """MAFALDA-SGD: one C_local for all nodes, optimal for the gossip graph."""
    return _with_encoder("mafalda", given, solved)


@MECHANISMS.register(paper="arXiv:2510.17480, reference code")
@solved_by(factorize_nodes)
def mafalda_l(given: Mapping[str, Any], solved: NodeFactorizations) -> LinearAlgorithm:
    """MAFALDA-L: each node its own C_u, optimal for the errors its noise causes, under its own participation."""
    return _with_encoder("mafalda-l", given, solved)


@MECHANISMS.register(paper="between MAFALDA-SGD and MAFALDA-L of arXiv:2510.17480")
@solved_by(factorize_classes)
def mafalda_classes(given: Mapping[str, Any], solved: NodeFactorizations) -> LinearAlgorithm:
    """Between MAFALDA-SGD and MAFALDA-L: one C for each class of nodes, optimal for the errors their noise causes.

    Under LDP privacy does not depend on the classes. Finer classes never cost more, up to the tolerance.
    """
    return _with_encoder("mafalda-classes", given, solved)


@MECHANISMS.register(paper="arXiv:2306.08153, with the error Gram of the graph")
@solved_by(best_of_form, form="banded", without=["buffers"])
def banded(given: Mapping[str, Any], encoder: Encoder) -> LinearAlgorithm:
    """The best banded C for the graph: every entry of its diagonals is free.

    bandwidth: at most as many diagonals as uses of a record are apart.
    """
    return mf_dsgd(given["dynamics"], given["participation"], encoder, name="banded")


@MECHANISMS.register(paper="arXiv:2306.08153, with the error Gram of the graph")
@solved_by(best_of_form, form="toeplitz", without=["buffers"])
def toeplitz(given: Mapping[str, Any], encoder: Encoder) -> LinearAlgorithm:
    """The best Toeplitz C for the graph: one number for each diagonal."""
    return mf_dsgd(given["dynamics"], given["participation"], encoder, name="toeplitz")


@MECHANISMS.register(paper="arXiv:2408.08868, with the error Gram of the graph")
@solved_by(best_of_form, form="buffered", without=["bandwidth"])
def blt(given: Mapping[str, Any], encoder: Encoder) -> LinearAlgorithm:
    """BLT: the best sum of a few exponentials for the graph: a node keeps one row for each, for any T."""
    return mf_dsgd(given["dynamics"], given["participation"], encoder, name="blt")


@MECHANISMS.register(paper="arXiv:2505.12128, with the error Gram of the graph")
@solved_by(best_of_form, form="inverse", without=["buffers"])
def band_inv(given: Mapping[str, Any], encoder: Encoder) -> LinearAlgorithm:
    """The best C whose inverse is Toeplitz and banded for the graph: noise is a sum of few fresh rows."""
    return mf_dsgd(given["dynamics"], given["participation"], encoder, name="band-inv")


@OF_BALLS_IN_BINS.register(paper="this library")
@builder
def mafalda_bins(
    dynamics: Dynamics,
    participation: Participation,
    *,
    noise_std: Callable[[FloatArray], float],
    weights: ErrorWeights | None = None,
    progress: Progress = "auto",
) -> LinearAlgorithm:
    """One C for all nodes, for balls-in-bins: the least error in the models at the noise that an accountant asks of it.

    Args: noise_std: from M, shape (bins, bins), to a noise level; `mfdl.privacy.noise_of_bins(...)` makes it; weights:
        which models count in the error; default all alike.
    Raises: UnsupportedMechanism: another participation; InvalidInput: no encoder meets the target.
    Cost: that of `factorize_balls_in_bins`.
    Source: docs/balls_in_bins_theorem.md.
    """
    known = participation.patterns_of_bins("mafalda-bins", "mafalda")
    solved = factorize_balls_in_bins(dynamics, known.uses, known.gap, noise_std, weights=weights, progress=progress)
    return mf_dsgd(dynamics, participation, solved.encoder, name="mafalda-bins")


def _with_encoder(name: str, given: Mapping[str, Any], solved: Factorization | NodeFactorizations) -> LinearAlgorithm:
    return mf_dsgd(given["dynamics"], given["participation"], solved.encoder, name=name, factorization=solved)

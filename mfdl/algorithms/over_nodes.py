"""Algorithms whose noise is correlated across nodes, fresh in every step: DECOR and any node covariance R (CorN).

All are the plain decentralized round. Each part of the base noise of a step is a column of its factor F, with the nodes
that hold it. The covariances, and how far they are from the best, come from `factorization.seeded_covariances`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .. import check, node_covariances
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..factorization import (
    factorize_balls_in_bins,
    optimal_covariance,
    optimal_joint,
    optimal_kronecker,
    optimal_pairwise,
    optimal_per_mode,
)
from ..factorization.seeded_covariances import SpatialFactorization, checked_groups, default_tolerance
from ..factorization.setting import USUAL_TOLERANCE
from ..factorization.spatio_temporal import PER_MODE_TOLERANCE, SpatioTemporalFactorization
from ..noise import SpatioTemporalNoise, StepNoise
from ..objective import ErrorWeights
from ..participation import Participation
from ..progress import Progress
from .building import MECHANISMS, OF_BALLS_IN_BINS, SHARED, builder, solved_by
from .gossip_sgd import decentralized
from .linear_algorithm import LinearAlgorithm


@builder
def tuned_decor(
    dynamics: Dynamics,
    participation: Participation,
    *,
    coalition_size: int = 0,
    horizon: int | None = None,
    weights: ErrorWeights | None = None,
) -> LinearAlgorithm:
    """DECOR with the ratio sigma_cor / sigma_ldp that leaves the least noise in the models, against any q nodes.

    Args: coalition_size: q < n; horizon, weights: as for `corn`.
    Source: arXiv:2405.01031, Algorithms 1 to 3; its appendix searches the ratio by training instead.
    """
    solved = optimal_pairwise(dynamics, coalition_size=coalition_size, **_counted(participation, horizon, weights))
    return spatial_noise(dynamics, participation, solved, name="decor")


@MECHANISMS.register(
    paper="arXiv:2405.01031, Algorithm 1",
    erratum="line 3 of Algorithm 2 lacks the inverse; the search overshoots epsilon; public code reuses noise over "
    "steps",
    trust="eavesdropper, colluding, coalitions",
    models=SHARED,
    tuned=tuned_decor,
)
@builder
def decor(
    dynamics: Dynamics,
    participation: Participation,
    *,
    sigma_ldp: float = 1.0,
    sigma_cor: float = 1.0,
    orientation: Sequence[int] | None = None,
) -> LinearAlgorithm:
    """DECOR: private noise at each node plus pairwise noise that cancels over each edge of the graph.

    Node i injects sigma_ldp v_i + sum over its edges of +- sigma_cor v_e, all v fresh in every step and independent;
    covariance over nodes sigma_ldp^2 I + sigma_cor^2 L. Each v_e is held by both ends of its edge.

    Args: sigma_ldp, sigma_cor: >= 0, in units of noise_std; orientation: one sign +-1 per edge in sorted order.
    """
    local, pair = check.non_negative(sigma_ldp=sigma_ldp), check.non_negative(sigma_cor=sigma_cor)
    n = dynamics.num_nodes
    incidence = node_covariances.incidence(dynamics.gossip.at(0).links(), orientation)
    factor = sp.hstack([local * sp.eye_array(n), pair * incidence]).tocsr()
    holders = sp.vstack([sp.eye_array(n, dtype=bool), (incidence.T != 0)]).tocsr()
    used = np.flatnonzero(np.asarray(abs(factor).sum(axis=0)).ravel() > 0)
    noise = StepNoise(factor[:, used], holders[used], participation.num_steps, n)
    return decentralized("decor", dynamics, participation, noise)


@builder
def spatial_covariance(
    dynamics: Dynamics,
    participation: Participation,
    covariance: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    private_variance: float = 0.0,
    name: str = "spatial",
) -> LinearAlgorithm:
    """Noise over nodes, fresh in every step: N(0, s I + sum_k R_k), R_k from the seed of group k (CorN).

    Args:
        covariance: R, shape (n, n), symmetric positive semidefinite; or one R_k per group, over all nodes and zero
            outside its group, or over the nodes of the group in their order. Default the identity.
        groups: for each seed the nodes that hold it; default all nodes, which protects against outsiders only.
        private_variance: s >= 0, of noise that every node keeps to itself.
    Raises: InvalidInput: a part that is not symmetric positive semidefinite or does not fit its group; no noise at all.
    Source: arXiv:2501.14644v2, problems (9) and (10).
    """
    n = dynamics.num_nodes
    checked_groups(() if groups is None else groups, n)
    holding = [list(range(n))] if groups is None else [list(group) for group in groups]
    parts: Any = (np.eye(n) if groups is None else []) if covariance is None else covariance
    given = [parts] if groups is None or (len(parts) and np.ndim(parts[0]) < 2) else list(parts)
    if len(given) != len(holding):
        raise InvalidInput(f"covariance must hold one matrix per group, got {len(given)} for {len(holding)} groups.")
    private = check.non_negative(private_variance=private_variance)
    pieces = [_on_group(R, group, n, whole=groups is None) for R, group in zip(given, holding, strict=True)]
    factor, holders = node_covariances.seed_factor(private, holding, pieces, n)
    return decentralized(name, dynamics, participation, StepNoise(factor, holders, participation.num_steps, n))


@builder
def spatial_noise(
    dynamics: Dynamics, participation: Participation, solved: SpatialFactorization, *, name: str
) -> LinearAlgorithm:
    """The algorithm whose node noise is a given `SpatialFactorization`. Raises: InvalidInput: made for other nodes."""
    check.instance(SpatialFactorization, solved=solved)
    if solved.num_nodes != dynamics.num_nodes:
        raise InvalidInput(
            f"the covariance was made for {solved.num_nodes} nodes, the gossip has {dynamics.num_nodes}; factorize "
            "again."
        )
    if solved.gossip_hash not in ("", dynamics.gossip.content_hash):
        raise InvalidInput(
            "the covariance was made for another gossip matrix, so its certificate does not hold here; "
            "factorize again, or give its array to spatial_covariance."
        )
    if solved.sigma_ldp is not None and solved.sigma_cor is not None:  # both ends add the very same number
        pairwise = decor(dynamics, participation, sigma_ldp=solved.sigma_ldp, sigma_cor=solved.sigma_cor)
        return pairwise.named(name, factorization=solved)
    factor, holders = solved.factor()
    noise = StepNoise(factor, holders, participation.num_steps, solved.num_nodes)
    return decentralized(name, dynamics, participation, noise, factorization=solved)


@MECHANISMS.register(
    paper="arXiv:2501.14644v2, problems (9) and (10); v1 as Whisper",
    erratum="one seed for all protects against outsiders only; (9b) is no bound above epsilon = 36 at delta = 1e-5; "
    "problem (10) of v1 has its inequality reversed",
    trust="eavesdropper; colluding and coalitions with coalition_size",
    models=SHARED,
)
@builder
def corn(
    dynamics: Dynamics,
    participation: Participation,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
    horizon: int | None = None,
    weights: ErrorWeights | None = None,
    tolerance: float | None = None,
    all_shared: bool = False,
) -> LinearAlgorithm:
    """CorN-DSGD (Whisper D-SGD): the covariance over nodes that leaves the least noise in the models.

    With one seed for all nodes it protects against outsiders; insiders are held off by seed groups, private noise and
    coalition_size >= 1.

    Args: as for `factorization.optimal_covariance`; horizon: default one step as published, or with weights all
        steps of the run; all_shared: all noise comes from one seed of all nodes, as published; by default a node keeps
        noise of the least eigenvalue of R to itself.
    Raises: InvalidInput: all_shared beside groups or coalition_size.
    """
    if check.flag(all_shared=all_shared) and (groups is not None or coalition_size):
        raise InvalidInput(
            "all_shared=True gives every node the seed of all noise, and groups and coalition_size keep seeds apart; "
            "leave them out, or all_shared."
        )
    counted = _counted(participation, horizon, weights)
    solved = optimal_covariance(dynamics, groups=groups, coalition_size=coalition_size, tolerance=tolerance, **counted)
    wanted = default_tolerance(groups, coalition_size) if tolerance is None else tolerance
    solved.require_converged(wanted)
    return spatial_noise(dynamics, participation, solved.with_all_shared() if all_shared else solved, name="corn")


@MECHANISMS.register(
    paper="arXiv:2501.14644v2, problem (9), pairwise",
    erratum="pairwise noises must be independent also on edges that share a node",
    trust="eavesdropper",
    models=("eavesdropper",),
)
@builder
def corn_pairwise(
    dynamics: Dynamics,
    participation: Participation,
    *,
    horizon: int | None = None,
    weights: ErrorWeights | None = None,
    all_shared: bool = False,
) -> LinearAlgorithm:
    """The pairwise-constrained CorN-DSGD: sigma_ldp^2 I + sigma_cor^2 L at the best ratio, against an outsider.

    Args: all_shared: all noise comes from one seed of all nodes; by default both ends of an edge hold its own.
    """
    shared = check.flag(all_shared=all_shared)
    solved = optimal_pairwise(dynamics, **_counted(participation, horizon, weights))
    return spatial_noise(dynamics, participation, solved.with_all_shared() if shared else solved, name="corn-pairwise")


def _counted(participation: Participation, horizon: int | None, weights: ErrorWeights | None) -> dict[str, Any]:
    if horizon is None:
        horizon = 1 if weights is None else participation.num_steps
    return {"horizon": horizon, "weights": weights}


def _on_group(covariance: ArrayLike, group: list[int], n: int, *, whole: bool) -> np.ndarray:
    """R_k over its group, from that or from an n x n matrix that is zero elsewhere."""
    R = check.square_array(covariance=covariance)
    if whole or (len(R) == n and len(group) < n):
        if len(R) != n:
            raise InvalidInput(f"covariance must be {n} x {n} for num_nodes={n}, got {R.shape}.")
        outside = np.setdiff1d(np.arange(n), group)
        if max(np.abs(R[outside]).max(initial=0.0), np.abs(R[:, outside]).max(initial=0.0)) > 0:
            raise InvalidInput(f"the covariance of group {group} must be zero outside the group, which cannot make it.")
        return R[np.ix_(group, group)]
    if len(R) != len(group):
        raise InvalidInput(f"the covariance of group {group} must be {len(group)} x {len(group)}, got {R.shape}.")
    return R


@builder
def spatio_temporal_noise(
    dynamics: Dynamics, participation: Participation, solved: SpatioTemporalFactorization, *, name: str | None = None
) -> LinearAlgorithm:
    """The algorithm whose noise is a given `SpatioTemporalFactorization`.

    Raises: InvalidInput: made for other nodes, another gossip matrix, or another participation.
    """
    check.instance(SpatioTemporalFactorization, solved=solved)
    if (solved.num_nodes, solved.num_steps) != (dynamics.num_nodes, participation.num_steps):
        raise InvalidInput(
            f"the noise was made for {solved.num_nodes} nodes and {solved.num_steps} steps, not for "
            f"{dynamics.num_nodes} and {participation.num_steps}; factorize again."
        )
    if solved.gossip_hash not in ("", dynamics.gossip.content_hash):
        raise InvalidInput(
            "the noise was made for another gossip matrix, so its certificate does not hold here; factorize again."
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
@solved_by(optimal_kronecker)
def kronecker(given: Mapping[str, Any], solved: SpatioTemporalFactorization) -> LinearAlgorithm:
    """One encoder over steps for all base noise, one covariance over nodes: C = C_t (x) C_s, the best of that form.

    For insiders as `corn`.
    """
    return _converged(given, solved, default_tolerance(given.get("groups"), given.get("coalition_size", 0)))


@MECHANISMS.register(paper="this library", trust="eavesdropper", models=("eavesdropper",))
@solved_by(optimal_per_mode)
def per_mode(given: Mapping[str, Any], solved: SpatioTemporalFactorization) -> LinearAlgorithm:
    """An encoder over steps for each direction over the nodes, against outsiders.

    Never worse than `kronecker` up to the tolerance.
    """
    return _converged(given, solved, PER_MODE_TOLERANCE)


@MECHANISMS.register(paper="this library", trust="eavesdropper", models=("eavesdropper",))
@solved_by(optimal_joint)
def joint(given: Mapping[str, Any], solved: SpatioTemporalFactorization) -> LinearAlgorithm:
    """The best noise of any correlation over steps and nodes, against outsiders; for small T n."""
    return _converged(given, solved, USUAL_TOLERANCE)


@OF_BALLS_IN_BINS.register(paper="this library", trust="eavesdropper", models=("eavesdropper",))
@builder
def kronecker_bins(
    dynamics: Dynamics,
    participation: Participation,
    *,
    noise_std: Callable[[FloatArray], float],
    weights: ErrorWeights | None = None,
    progress: Progress = "auto",
) -> LinearAlgorithm:
    """For balls-in-bins and outsiders: the best covariance over nodes of fresh noise, then the best encoder over time.

    Args: noise_std, weights: as for `mafalda_bins`.
    Raises: as `mafalda_bins`; UnsupportedMechanism: gossip without modes. Cost: the modes take n T^3.
    """
    known = participation.patterns_of_bins("kronecker-bins", "kronecker")
    space = optimal_covariance(dynamics, horizon=known.num_steps, weights=weights)
    factor, holders = space.factor()
    shared: dict[str, Any] = {"weights": weights, "progress": progress}
    solved = factorize_balls_in_bins(dynamics, known.uses, known.gap, noise_std, factor=factor, **shared)
    noise = SpatioTemporalNoise(solved.encoder, factor, holders, dynamics.num_nodes)
    return decentralized("kronecker-bins", dynamics, participation, noise)


def _converged(
    given: Mapping[str, Any], solved: SpatioTemporalFactorization, usual_tolerance: float
) -> LinearAlgorithm:
    tolerance = given.get("tolerance") or usual_tolerance
    return spatio_temporal_noise(given["dynamics"], given["participation"], solved.require_converged(tolerance))

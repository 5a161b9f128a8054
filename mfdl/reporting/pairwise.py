"""Losses against many attackers at once: one process per core, the matrix mu[u, v].

In: an algorithm and a trust model per attacker. Out: per attacker the `VictimLoss` of every victim. How one attacker
is accounted is in `privacy.accounting`; pictures are in `reporting.account`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..privacy.accounting import VictimLoss, victim_losses
from ..trust import TrustModel


def pairwise_losses(
    algorithm: LinearAlgorithm,
    make_trust: Callable[[int], TrustModel],
    attackers: Sequence[int] | None = None,
    *,
    victims: Sequence[int] | None = None,
    jobs: int | None = None,
    progress: Callable[[], None] | None = None,
    **how: Any,
) -> dict[int, list[VictimLoss]]:
    """The losses of all victims against each attacker, attackers in parallel.

    Args:
        make_trust: the trust model of one attacker (a node index), e.g. `lambda v: PNDP([v])`; called here, not in
            the workers.
        attackers: node indices; default all.
        victims: node indices; default all; an attacker is left out of its own list.
        jobs: worker processes, each with one BLAS thread; default one per core; 1 stays in this process.
        progress: called after each attacker.
        how: participation, release, method, lipschitz and unit of `privacy.accounting.victim_losses`.

    Returns: attacker -> losses in node order, in the order of `attackers`.
    Raises: InvalidInput: jobs below 1, or what `victim_losses` refuses.
    """
    nodes = list(range(algorithm.num_nodes)) if attackers is None else list(attackers)
    everybody = list(range(algorithm.num_nodes)) if victims is None else list(victims)
    workers = min(joblib.cpu_count() if jobs is None else check.integer_at_least(1, jobs=jobs), len(nodes))
    # in this process joblib keeps to the order and starts nothing
    pool = joblib.Parallel(n_jobs=max(workers, 1), return_as="generator_unordered" if workers > 1 else "generator")
    finished = pool(
        joblib.delayed(_against)(algorithm, v, make_trust(v), [u for u in everybody if u != v], how) for v in nodes
    )
    losses: dict[int, list[VictimLoss]] = {}
    with contextlib.closing(finished):
        for attacker, its_losses in finished:
            losses[attacker] = its_losses
            if progress is not None:
                progress()
    return {v: losses[v] for v in nodes}


def _against(
    algorithm: LinearAlgorithm, attacker: int, trust: TrustModel, victims: list[int], how: Mapping[str, Any]
) -> tuple[int, list[VictimLoss]]:
    with threadpool_limits(1):
        return attacker, victim_losses(algorithm, trust, victims=victims, **how) if victims else []


def pairwise_matrix(
    losses: Mapping[int, Sequence[VictimLoss]], num_nodes: int, value: Callable[[VictimLoss], float]
) -> FloatArray:
    """value[u, v]: what attacker v learns of victim u, shape (num_nodes, num_nodes).

    nan where a pair was not asked for; inf on the diagonal of the attackers, who know their own records.
    """
    matrix = np.full((num_nodes, num_nodes), math.nan)
    for attacker, its_losses in losses.items():
        matrix[attacker, attacker] = math.inf
        for loss in its_losses:
            matrix[loss.victim, attacker] = value(loss)
    return matrix

"""Muffliato's bounds beside the losses of `mfdl account`, in its picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mfdl.algorithms import LinearAlgorithm
from mfdl.extensions import PublishedLosses

from .distance_bounds import muffliato_as_coded, muffliato_squared

BOUNDS = {"published, squared": muffliato_squared, "published, as coded": muffliato_as_coded}


def published_losses(
    mechanism: str, trust: str, algorithm: LinearAlgorithm, attackers: Sequence[tuple[int, ...]]
) -> list[PublishedLosses]:
    """Both bounds, where they are stated: single attackers, a record in every step or in one; else none."""
    scheme = algorithm.participation
    every_step = scheme.in_every_step
    once = not scheme.secret and all(each.patterns_of_record().uses == 1 for each in scheme.distinct())
    single = trust == "pndp" and all(len(nodes) == 1 for nodes in attackers)
    if not (single and mechanism in ("dp-dsgd", "muffliato") and (every_step or once)):
        return []
    published = []
    for name, bound in BOUNDS.items():
        of_attacker = {
            nodes: bound(
                algorithm.dynamics.gossip,
                f"#{nodes[0]}",
                num_steps=algorithm.num_steps,
                gossip_rounds=algorithm.dynamics.gossip_rounds,
                every_step=every_step,
            )
            for nodes in attackers
        }
        squared = {nodes: np.asarray(of_one.value) for nodes, of_one in of_attacker.items()}
        published.append(PublishedLosses(name, next(iter(of_attacker.values())).validity, squared))
    return published

"""The factorization of one mechanism on one graph, with its certificate.

In: a `FactorizeConfig`. Out: loss, lower bound and gap as one JSON-ready dict, and the file that keeps the result.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from .. import factorization, graphs
from ..factorization import (
    EstimatedFactorization,
    SecretBinFactorization,
    SpaceTimeFactorization,
    SpatialFactorization,
)
from ..progress import Progress, shown
from .factorize_jobs import Certified, Job
from .output import json_number, require_writable, versions

if TYPE_CHECKING:
    from .factorize_config import FactorizeConfig

OF_BINS = ("noise_std", "root_error", "root_error_bound")
OVER_NODES = ("max_inverse_diagonal", "sigma_local", "sigma_pair", "independent_loss", "bound_over")


def run_factorize(
    config: FactorizeConfig, out: str | os.PathLike[str] | None = None, *, progress: Progress = "auto"
) -> dict[str, Any]:
    """Loss, certified lower bound and gap, JSON-ready; out: the file that file:FILE names later.

    Raises: InvalidInput: a graph, groups or a file that cannot be used.
    """
    if out is not None:
        require_writable(Path(out))
    graph, gossip = config.sparse_network()
    groups = None if config.groups is None else factorization.read_groups(config.groups, gossip.labels)
    job = Job(config, gossip, groups, shown(progress))
    with threadpool_limits(config.jobs):
        began = time.perf_counter()
        solved, grams = job.solve()
        seconds = time.perf_counter() - began
    of_bins = _facts_of_bins(config, solved) if isinstance(solved, SecretBinFactorization) else {}
    certified = solved.best if isinstance(solved, SecretBinFactorization) else solved
    weights = job.counted["weights"]
    shared = {
        **config.values("mechanism", "graph", "objective", "momentum", "weight_decay", "lr"),
        "error_weights": None if weights is None else weights.describe(),
        "graph_hash": graphs.content_hash(graph),
        "gossip": gossip.name,
    }
    if out is not None:
        header = {
            **shared,
            "gossip_hash": gossip.content_hash,
            "node_labels": [str(label) for label in gossip.labels],
            **of_bins,
            "versions": versions(),
        }
        _save(out, job, certified, grams, header)
    return {
        **shared,
        "nodes": gossip.num_nodes,
        **{name: json_number(getattr(certified, name)) for name in ("loss", "lower_bound", "gap")},
        "status": certified.status,
        "iterations": certified.iterations,
        "seconds": seconds,
        "notes": list(certified.notes),
        **_facts(config, certified),
        **of_bins,
    }


def _facts_of_bins(config: FactorizeConfig, solved: SecretBinFactorization) -> dict[str, Any]:
    """The target, the noise that meets it, what that costs the models, and every correlation that was tried."""
    tried = [
        {
            "correlation": best.correlation,
            "noise_std": json_number(std),
            "loss": best.loss,
            "lower_bound": best.lower_bound,
        }
        for _, std, best in solved.tried
    ]
    return {
        **config.values("participation", "epsilon", "delta", "adjacency"),
        **{name: getattr(solved, name) for name in OF_BINS},
        "correlation": solved.best.correlation,
        "tried": tried,
        "bound_over": f"{solved.best.bound_over}, at the same noise,",
    }


def _facts(config: FactorizeConfig, solved: Certified) -> dict[str, Any]:
    """What only some kinds of factorization have."""
    if isinstance(solved, SpatialFactorization):
        return {
            **dict.fromkeys(("steps", "epochs", "period")),
            **{name: getattr(solved, name) for name in OVER_NODES},
            "coalition": solved.coalition_size,
            "groups": len(solved.groups),
            "horizon": config.horizon,
            "private_std": math.sqrt(solved.private_variance),
        }
    facts: dict[str, Any] = {
        "steps": config.epochs * config.period,
        **config.values("epochs", "period"),
        "sensitivity": getattr(solved, "sensitivity", None),  # none where batches are secret
    }
    if isinstance(solved, EstimatedFactorization):
        facts |= {"loss_error": solved.loss_error, **config.values("probes", "probe_seed")}
    if (of_structure := getattr(solved, "of_structure", None)) is not None:
        facts |= {"form": config.form, **of_structure}
    if isinstance(solved, SpaceTimeFactorization):
        facts |= {
            "coalition": solved.coalition_size,
            "groups": 1 if solved.space is None else len(solved.space.groups),
            "private_std": 0.0 if solved.space is None else math.sqrt(solved.space.private_variance),
            "independent_loss": solved.independent_loss,
            "bound_over": "noise over time and nodes, against an outsider,",
        }
    return facts


def _save(out: str | os.PathLike[str], job: Job, solved: Certified, grams: Any, header: dict[str, Any]) -> None:
    if not isinstance(solved, SpatialFactorization):
        rate = f"constant, {job.config.lr:g}; H and loss are in units of its square"
        header = {**header, "participation": job.made_for, "learning_rate": rate}
    factorization.save(out, solved, header=header, grams=grams)

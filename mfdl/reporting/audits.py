"""Claims of mechanisms under trust models by name, against what runs show.

In: an `AuditConfig`. Out: the cells, and a JSON-ready answer with what they were run with.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..algorithms import registry
from ..audit import AuditMatrix, audit_matrix
from ..dynamics import Dynamics
from ..errors import InvalidInput
from .audit_config import AuditConfig
from .options import load_gossip
from .output import require_folder, versions
from .progress import Silent
from .question import Named


class Audited(NamedTuple):
    """The cells, and all of it JSON-ready."""

    matrix: AuditMatrix
    answer: dict[str, Any]


def run_audit(config: AuditConfig, out: str | os.PathLike[str] | None, progress: Silent) -> Audited:
    """See `AuditConfig.run`."""
    began = time.perf_counter()
    if out is not None:
        require_folder(out)
    graph, gossip = load_gossip(config.graph, False, config.gossip, config.data_home)
    named = Named(
        graph, config.attackers, config.colluders, config.coalition_size, any_receiver=True, default_coalition_size=1
    )
    named.require_used(config.trusts)
    models = {name: named.model(name) for name in config.trusts}
    dynamics, scheme = Dynamics(gossip), config.scheme()
    with progress.status("building mechanisms"):
        built = {name: registry.build(name, dynamics, scheme) for name in config.mechanisms}
    entries = {name: registry.entry_of(name) for name in built}
    with progress.bar("audits", len(built) * len(models)) as advance:
        matrix = audit_matrix(
            built,
            models,
            adjacency=config.adjacency,
            clip_norm=config.clip_norm,
            noise_std=config.noise_std,
            mu=1.0 if config.noise_std is None and config.mu is None else config.mu,
            release={name: e.release for name, e in entries.items() if e is not None and e.release is not None},
            unit=config.unit,
            level=config.level,
            progress=advance,
            trials=config.trials,
            delta=config.delta,
            seed=config.seed,
        )
    if all(cell.result is None for cell in matrix.cells):
        raise InvalidInput(f"nothing finite is claimed: {matrix.cells[0].why}; choose another --trust or --mechanism.")
    how = {
        "graph": config.graph,
        "versions": versions(),
        "config": config.options(),
        "seconds": time.perf_counter() - began,
    }
    if out is not None:
        matrix.write(Path(out), how)
    return Audited(matrix, {**matrix.to_dict(), **how})

"""Designs of a run for a graph, a number of records and a privacy budget, without data and without training.

    privacy = mfdl.Privacy(adjacency="zero-out", clip_norm=1.0)
    plan = mfdl.plan("torus:rows=10,cols=10", 80, privacy, epsilon=1.0, delta=1e-5, curvature="power:1:20")
    result = mfdl.compare(graph="torus:rows=10,cols=10", task=task, **plan.best.options())

A `Design` says how a run goes: batches, epochs, gossip rounds, mechanism, who takes part when, which model is released.
`plan` calibrates each design to the budget and predicts noise, cost, and with a curvature the excess loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .design import Design
    from .planner import plan
    from .run_plan import PlannedDesign, RunPlan

__all__ = ["Design", "PlannedDesign", "RunPlan", "plan"]


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)

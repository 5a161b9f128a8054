"""Training on real data with the mechanism that was accounted: executor, noise streams, keys, tasks, checkpoints."""

from __future__ import annotations

from types import ModuleType

from ..extensions import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)

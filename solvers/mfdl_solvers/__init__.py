"""Factorization solvers: arrays and class labels in, a certified factorization out; sets of patterns (`pattern_sets`).

Names load lazily, so that `mfdl_solvers.ties` costs numpy only; the solvers bring scipy, `mfdl_solvers.autodiff` torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "certificate": "lower_bound",
    "coalition_problem": "CoalitionProblem InfeasibleCoalition",
    "dense_encoder": "solve",
    "kronecker_encoder": "KroneckerFactorization ModeProblem",
    "maximum_encoder": "MaximumProblem",
    "per_mode_encoder": "PerModeFactorization",
    "problem": "Factorization FactorizationProblem NotConverged ProblemError Stopping causal_encoder",
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)


if TYPE_CHECKING:
    from .certificate import lower_bound
    from .coalition_problem import CoalitionProblem, InfeasibleCoalition
    from .dense_encoder import solve
    from .kronecker_encoder import KroneckerFactorization, ModeProblem
    from .maximum_encoder import MaximumProblem
    from .per_mode_encoder import PerModeFactorization
    from .problem import Factorization, FactorizationProblem, NotConverged, ProblemError, Stopping, causal_encoder

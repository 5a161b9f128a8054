"""Factorization solvers: arrays and class labels in, a certified factorization out; and sets of patterns (`patterns`).

Importing this package costs numpy and scipy only; `mfdl_solvers.autodiff` brings torch.
"""

from .adapted import AdaptedFactorization
from .certificate import lower_bound
from .coalition_problem import CoalitionProblem, InfeasibleCoalition
from .dense import solve
from .modes_problem import ModeProblem
from .problem import Factorization, FactorizationProblem, NotConverged, ProblemError, Stopping, causal_encoder
from .time_space import TimeSpaceFactorization

__all__ = [
    "AdaptedFactorization",
    "CoalitionProblem",
    "Factorization",
    "FactorizationProblem",
    "InfeasibleCoalition",
    "ModeProblem",
    "NotConverged",
    "ProblemError",
    "Stopping",
    "TimeSpaceFactorization",
    "causal_encoder",
    "lower_bound",
    "solve",
]

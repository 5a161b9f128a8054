"""Factorization solvers: arrays and class labels in, a certified factorization out.

Importing this package costs numpy and scipy only; `solvers.autodiff` brings torch.
"""

from .certificate import lower_bound
from .coalition_problem import CoalitionProblem, InfeasibleCoalition
from .dense import solve
from .problem import Factorization, FactorizationProblem, NotConverged, ProblemError, causal_encoder

__all__ = [
    "CoalitionProblem",
    "Factorization",
    "FactorizationProblem",
    "InfeasibleCoalition",
    "NotConverged",
    "ProblemError",
    "causal_encoder",
    "lower_bound",
    "solve",
]

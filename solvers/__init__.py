"""Factorization solvers: arrays and class labels in, a certified factorization out.

Importing this package costs numpy and scipy only; `solvers.autodiff` brings torch.
"""

from .certificate import lower_bound
from .dense import solve
from .problem import Factorization, FactorizationProblem, NotConverged, ProblemError, causal_encoder

__all__ = [
    "Factorization",
    "FactorizationProblem",
    "NotConverged",
    "ProblemError",
    "causal_encoder",
    "lower_bound",
    "solve",
]

"""Factorization solvers: arrays and class labels in, a certified factorization out; sets of patterns (`pattern_sets`).

Importing this package costs numpy and scipy only; `mfdl_solvers.autodiff` brings torch.
"""

from .certificate import lower_bound
from .coalition_problem import CoalitionProblem, InfeasibleCoalition
from .dense_encoder import solve
from .joint_encoder import ModeProblem
from .kronecker_encoder import KroneckerFactorization
from .maximum_encoder import MaximumProblem
from .per_mode_encoder import PerModeFactorization
from .problem import Factorization, FactorizationProblem, NotConverged, ProblemError, Stopping, causal_encoder

__all__ = [
    "CoalitionProblem",
    "Factorization",
    "FactorizationProblem",
    "InfeasibleCoalition",
    "KroneckerFactorization",
    "MaximumProblem",
    "ModeProblem",
    "NotConverged",
    "PerModeFactorization",
    "ProblemError",
    "Stopping",
    "causal_encoder",
    "lower_bound",
    "solve",
]

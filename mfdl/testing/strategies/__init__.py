"""Hypothesis strategies; all shrink to small cases with small integers."""

from types import ModuleType as _Module

from ._draws import integer_arrays
from .algorithms import (
    ALL_NAMES,
    CHEAP_NAMES,
    FORM_NAMES,
    JOINT_NAMES,
    MEMORY_NAMES,
    NAMES,
    RANDOM_ENCODERS,
    SHARED_NAMES,
    build_algorithm,
    linear_algorithms,
    user_algorithms,
)
from .bare_views import VIEW_KINDS, integer_views, views
from .factorization import (
    FACTORIZATION_KINDS,
    encoders,
    factorization_problems,
    factorizations,
    integer_encoders,
    random_encoder,
)
from .gradients import gradient_differences
from .graphs import KINDS, connected_graphs, dyadic_gossip, gossip_matrices, gossip_sequences
from .linear_systems import linear_systems, linear_systems_with_record
from .mechanism import ALL_SEEN_KINDS, PROTECTING_NAMES, mechanisms
from .participation import ALL_SCHEMES, OVERLAPPING, SCHEMES, participations
from .trust import TRUST_MODELS, trust_models
from .written_views import RELEASE, TRUST, ViewCase, view_cases

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module))

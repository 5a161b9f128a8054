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
from .encoder_strategies import (
    FACTORIZATION_KINDS,
    encoders,
    factorization_problems,
    factorizations,
    integer_encoders,
    random_encoder,
)
from .graphs import KINDS, connected_graphs, dyadic_gossip, gossip_matrices, gossip_sequences
from .mechanism_strategies import ALL_SEEN_KINDS, PROTECTING_NAMES, TRUST_MODELS, mechanisms, trust_models
from .participation import (
    ALL_SCHEMES,
    OVERLAPPING,
    SCHEMES,
    gradient_differences,
    linear_systems,
    linear_systems_with_record,
    participations,
)
from .view_strategies import RELEASE, TRUST, VIEW_KINDS, ViewCase, integer_views, view_cases, views

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module))

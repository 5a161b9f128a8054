"""Hypothesis strategies; all shrink to small cases with small integers."""

from types import ModuleType as _Module

from .algorithms import (
    ALL_NAMES,
    CHEAP_NAMES,
    FACTORIZATION_KINDS,
    FORM_NAMES,
    JOINT_NAMES,
    MEMORY_NAMES,
    NAMES,
    RANDOM_ENCODERS,
    SHARED_NAMES,
    build_algorithm,
    encoders,
    factorization_problems,
    factorizations,
    integer_encoders,
    linear_algorithms,
    random_encoder,
    user_algorithms,
)
from .graphs import KINDS, connected_graphs, dyadic_gossip, gossip_matrices, gossip_sequences, integer_arrays
from .participation import (
    ALL_SCHEMES,
    OVERLAPPING,
    SCHEMES,
    gradient_differences,
    linear_systems,
    linear_systems_with_record,
    participations,
)
from .view_strategies import (
    ALL_SEEN_KINDS,
    PROTECTING_NAMES,
    RELEASE,
    TRUST,
    TRUST_MODELS,
    VIEW_KINDS,
    ViewCase,
    integer_views,
    mechanisms,
    trust_models,
    view_cases,
    views,
)

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module))

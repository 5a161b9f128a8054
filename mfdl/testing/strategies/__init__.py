"""Hypothesis strategies; all shrink to small cases with small integers."""

from types import ModuleType as _Module

from .algorithms import (
    ALL_NAMES,
    ALL_SCHEMES,
    CHEAP_NAMES,
    FACTORIZATION_KINDS,
    FORM_NAMES,
    JOINT_NAMES,
    MEMORY_NAMES,
    NAMES,
    OVERLAPPING,
    RANDOM_ENCODERS,
    SCHEMES,
    SHARED_NAMES,
    build_algorithm,
    encoders,
    factorization_problems,
    factorizations,
    gradient_differences,
    integer_encoders,
    linear_algorithms,
    linear_systems,
    linear_systems_with_record,
    participations,
    random_encoder,
    user_algorithms,
)
from .graphs import KINDS, connected_graphs, dyadic_gossip, gossip_matrices, gossip_sequences, integer_arrays
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

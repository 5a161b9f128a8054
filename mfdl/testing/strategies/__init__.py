"""Hypothesis strategies; all shrink to small cases with small integers."""

from .algorithms import (
    ALL_NAMES,
    CHEAP_NAMES,
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

__all__ = [
    "ALL_NAMES",
    "ALL_SCHEMES",
    "ALL_SEEN_KINDS",
    "CHEAP_NAMES",
    "FACTORIZATION_KINDS",
    "JOINT_NAMES",
    "KINDS",
    "MEMORY_NAMES",
    "NAMES",
    "OVERLAPPING",
    "PROTECTING_NAMES",
    "RANDOM_ENCODERS",
    "RELEASE",
    "SCHEMES",
    "SHARED_NAMES",
    "TRUST",
    "TRUST_MODELS",
    "VIEW_KINDS",
    "ViewCase",
    "build_algorithm",
    "connected_graphs",
    "dyadic_gossip",
    "encoders",
    "factorization_problems",
    "factorizations",
    "gossip_matrices",
    "gossip_sequences",
    "gradient_differences",
    "integer_encoders",
    "integer_views",
    "linear_algorithms",
    "linear_systems",
    "linear_systems_with_record",
    "mechanisms",
    "participations",
    "random_encoder",
    "trust_models",
    "user_algorithms",
    "view_cases",
    "views",
]

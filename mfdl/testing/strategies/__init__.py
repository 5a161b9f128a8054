"""Hypothesis strategies; all shrink to small cases with small integers."""

from .algorithms import CHEAP_NAMES, NAMES, RANDOM_ENCODERS, build_algorithm, linear_algorithms
from .factorizations import encoders, factorization_problems, integer_encoders, random_encoder
from .graphs import KINDS, connected_graphs, gossip_matrices, gossip_sequences
from .linear_systems import linear_systems, linear_systems_with_record
from .participation import SCHEMES, participations
from .views import RELEASE, TRUST, ViewCase, dyadic_gossip, integer_views, view_cases

__all__ = [
    "CHEAP_NAMES",
    "KINDS",
    "NAMES",
    "RANDOM_ENCODERS",
    "RELEASE",
    "SCHEMES",
    "TRUST",
    "ViewCase",
    "build_algorithm",
    "connected_graphs",
    "dyadic_gossip",
    "encoders",
    "factorization_problems",
    "gossip_matrices",
    "gossip_sequences",
    "integer_encoders",
    "integer_views",
    "linear_algorithms",
    "linear_systems",
    "linear_systems_with_record",
    "participations",
    "random_encoder",
    "view_cases",
]

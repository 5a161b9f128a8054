"""A budget for each node: sensitivity_u shift / nu <= mu_u, by noise that each node scales by 1 / mu_u.

With D = diag(mu_u / max mu), scaled noise D^-1 N has the view Gram X_u (mu_u / max mu)^2 wherever every message is
seen, whoever holds or knows the noise: [(D^-1 S D^-1)^+]_uu = D_uu^2 [S^+]_uu for e_u in the range of S, as both are
the largest (v_u)^2 / (v^T S v), at v and at D^-1 v. So X = D X~ D is the problem of equal budgets with the error Gram
D^-1 H D^-1, and what was best for each node alone stays so. Where messages are hidden the losses are those of the
scaled noise itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping

import numpy as np

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism

MAX_RATIO = 1e6
"""Of the largest budget to the least: a share of noise fainter than that could pass for rounding."""


def of_nodes(algorithm: LinearAlgorithm, mu: Mapping[Hashable, float]) -> FloatArray:
    """mu_u in the order of the nodes, shape (n,), from a budget for each label.

    Raises: InvalidInput: a node without a budget, a label of no node, a budget that is no finite number > 0, or budgets
        further apart than MAX_RATIO.
    """
    labels = algorithm.dynamics.gossip.labels
    if unknown := [label for label in mu if label not in set(labels)]:
        few = ", ".join(map(repr, labels[:5]))
        raise InvalidInput(f"mu names {unknown[0]!r}, which is no node; nodes are called {few}{_more(labels, 5)}.")
    if missing := [label for label in labels if label not in mu]:
        few = ", ".join(map(repr, missing[:5]))
        raise InvalidInput(
            f"mu must have a budget > 0 for every node, and has none for {few}{_more(missing, 5)} of {len(labels)}; "
            "give those without a wish the largest budget that you would accept, or one number for all."
        )
    wanted = np.array([check.positive(**{f"mu of node {label!r}": mu[label]}) for label in labels])
    if wanted.max() > MAX_RATIO * wanted.min():
        raise InvalidInput(
            f"budgets must lie within a factor of {MAX_RATIO:g}, got {wanted.min():g} to {wanted.max():g}; raise the "
            "least or lower the largest."
        )
    return wanted


def scaled(algorithm: LinearAlgorithm, budgets: FloatArray) -> LinearAlgorithm:
    """The algorithm with node u's noise multiplied by max mu / mu_u; itself where all budgets are equal.

    Raises: UnsupportedMechanism: noise on messages, or of a class of one's own.
    """
    if (budgets == budgets[0]).all() or algorithm.noise.is_zero:
        return algorithm
    if algorithm.noise_on_messages or algorithm.noise.slots_per_step != algorithm.num_nodes:
        raise UnsupportedMechanism(
            f"budgets per node scale what a node adds to its gradient, and {algorithm.name!r} adds noise to messages; "
            "give one mu for all nodes, or take a mechanism with noise on gradients."
        )
    copy = dataclasses.replace(algorithm, noise=algorithm.noise.scaled(budgets.max() / budgets))
    return copy.known_plain() if algorithm.is_plain else copy


def _more(labels: tuple[Hashable, ...] | list[Hashable], shown: int) -> str:
    return f" and {len(labels) - shown} more" if len(labels) > shown else ""

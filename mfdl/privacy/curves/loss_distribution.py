"""Privacy loss distributions of dp-accounting, rounded pessimistically: what curves have in common that use them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SLACK = 1e-11
"""Of delta, for each pair composed: what floating point may do to dp-accounting's sums."""
FINEST = 1e-10
"""Tail of a law where no delta is given."""


def gaussian_losses(mu: float, interval: float) -> PrivacyLossDistribution:
    """Of mu-Gaussian DP, mu > 0."""
    from dp_accounting.pld import privacy_loss_distribution

    std = 1 / mu * (1 - 2.0**-50)
    return privacy_loss_distribution.from_gaussian_mechanism(std, value_discretization_interval=interval)


def interval_of(mu: float) -> float:
    """Discretization for mu-Gaussian DP: a small part of the standard deviation of its losses."""
    return 2.0 ** round(math.log2(mu / 100))


def delta_of(losses: PrivacyLossDistribution, epsilon: float) -> float:
    """The larger of both directions; 1 where floating point cannot tell."""
    with np.errstate(all="ignore"):
        delta = float(losses.get_delta_for_epsilon(epsilon))
    return 1.0 if math.isnan(delta) else min(1.0, max(0.0, delta))


def epsilon_of(losses: PrivacyLossDistribution, delta: float) -> float:
    """The larger of both directions; inf where there is none."""
    epsilon, more = float(losses.get_epsilon_for_delta(delta)), 1e-12
    while math.isfinite(epsilon) and not delta_of(losses, epsilon) <= delta:
        epsilon, more = epsilon + more * (1 + epsilon), 2 * more
    return epsilon if math.isfinite(epsilon) else math.inf


def tail_of(delta: float) -> float:
    """Tail of a law, for an answer at this delta: it adds no more than the hundredth part."""
    return 10.0 ** math.floor(math.log10(delta) - 2)

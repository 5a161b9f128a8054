"""What secret batches lose at most: what the same noise loses where everybody knows who takes part when."""

from __future__ import annotations

import math

from .. import check
from . import gaussian


class Unsampled:
    """Of a bound for secret batches: that of public ones.

    Attributes: noise_multiplier >= 0, std of the noise over the sensitivity in one use; adjacency, as in `gaussian`;
        uses: how often a record counts where its steps are public.
    """

    noise_multiplier: float
    adjacency: str

    @property
    def uses(self) -> int:
        return 1

    def unsampled_epsilon(self, delta: float) -> float:
        """That of public batches: secrecy never costs."""
        return gaussian.epsilon_from_mu(self.public_mu, check.open_unit(delta=delta))

    @property
    def public_mu(self) -> float:
        """Of the same noise where batches are public; inf without noise."""
        if not self.noise_multiplier:
            return math.inf
        mu = gaussian.record_shift(self.adjacency, 1.0) * math.sqrt(self.uses) / self.noise_multiplier
        return mu * (1 + 1e-15)

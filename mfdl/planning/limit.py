"""The limit of a plan: excess loss after one release of the mean gradient with Gaussian noise, at the same budget.

N records a node, n nodes, d the record shift. The noise of the mean over the nodes has at least the standard deviation

    d / (mu N sqrt(n (n - q))),    q nodes whose secrets the attacker may know, besides the mean.

Write noise as independent columns, c_k what column k adds to the sum over the nodes. An attacker who knows the
gradients and columns of q nodes sees the sum over the others, in which a record moves d / N: the columns that none of
the q holds have sum c_k^2 >= (d / (mu N))^2. A column with a holder is one of these for at most (n - q) / n of all sets
of q nodes, so the mean over the sets gives sum c_k^2 >= (d / (mu N))^2 n / (n - q), and the mean divides by n. Equal:
noise of each node alone beside noise that cancels in the sum, as of DECOR for sigma_cor to infinity on a graph that no
q nodes cut. LDP counts shared columns as known: q = n - 1. Outsiders, sums and averages: q = 0. One receiver: q = 1,
not attained where messages show more than the mean.

Along a direction of curvature lambda at distance D from the optimum the release shows lambda D, with noise sigma; the
linear estimate of least squared error leaves D^2 sigma^2 / (sigma^2 + lambda^2 D^2). Where a direction is learned this
is its part of the half trace of H^-1 times the covariance, where it is flat the loss at the start; it is never above
either. Runs of public batches are linear estimates too, whose releases tell no more at this budget: their predicted
losses are above.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..objective import Curvature
from ..privacy.questions import Privacy
from ..trust import LDP, AnyReceiver, Coalitions, FullCollusion, TrustModel


@dataclasses.dataclass(frozen=True)
class ReleaseLimit:
    """Least noise and loss of one release.

    Attributes:
        noise_std: of the mean over the nodes of their mean gradients, per coordinate.
        colluders: q, nodes whose secrets the attacker may know.
        loss: predicted excess loss from the start distance; None without a curvature.
    """

    noise_std: float
    colluders: int
    loss: float | None

    @classmethod
    def at_budget(
        cls, privacy: Privacy, mu: float, num_nodes: int, records: int, curvature: Curvature | None, distance: float
    ) -> ReleaseLimit:
        """Under the trust model of `privacy`. Args: records: N of each node; distance: D along each direction."""
        q = colluding_nodes(privacy.trust, num_nodes)
        std = least_noise_std(privacy.record_shift, mu, records, num_nodes, q)
        if curvature is None:
            return cls(std, q, None)
        eigenvalues, weights = np.asarray(curvature.eigenvalues), np.asarray(curvature.weights)
        left = (distance * std) ** 2 / (std**2 + (eigenvalues * distance) ** 2)
        return cls(std, q, float(weights @ left))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"predicted_excess_loss": self.loss, "noise_std": self.noise_std, "colluders": self.colluders}

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"predicted excess loss {self.loss:.3g}, "
        return (
            f"Limit of one release of the mean gradient at this budget: {loss}noise std {self.noise_std:.3g}, if the "
            f"attacker sees the mean and knows the secrets of {self.colluders} nodes; quadratic loss, nothing clipped."
        )


def least_noise_std(record_shift: float, mu: float, records: float, num_nodes: int, colluders: int) -> float:
    """d / (mu N sqrt(n (n - q))), of the mean over the nodes; records: N of each node."""
    return record_shift / (mu * records * (num_nodes * (num_nodes - colluders)) ** 0.5)


def colluding_nodes(trust: TrustModel, num_nodes: int) -> int:
    """q of the limit: the size of the sets of attackers that include every node; 0 is always a limit."""
    if type(trust) in (LDP, FullCollusion):
        return num_nodes - 1
    return trust.size if isinstance(trust, Coalitions | AnyReceiver) else 0

"""Error Gram matrices: what unit noise costs the counted models, without the workload.

In: `Dynamics`, `ErrorWeights`, num_steps. Out:

- `temporal`: over steps, T x T, for noise correlated in time at each node; one for all nodes or one per node;
- `spatial`: over nodes, n x n, for noise fresh in each step but correlated across nodes; `fresh`: what such noise
  costs, without that array;
- `modes`: over steps for every eigenvector of the gossip, for noise correlated over both at once;
- `spectral`: the `SpectralMeasure` of constant symmetric gossip, all that the Gram over steps knows of it;
- `averaged`: over steps, the mean over gossip that is drawn anew in each round;
- `estimated`: over steps for graphs of any size, by random probes, with error bars;
- `space_time`: over steps x nodes, (T n) x (T n), for small problems.

All count the same variance: sum over steps r of w_r tr(theta_r^T Q theta_r), w and Q from the `ErrorWeights`, of the
models after averaging ("post-average") or of the messages before ("message"); or tr(R^T Q R) of R = sum_r a_r theta_r,
what is released. They are stated for a first learning
rate of 1: the variance is eta_0^2 nu^2 times the value.
"""

from ..error_weights import OBJECTIVES
from .averaged import averaged_error_gram
from .estimated import Estimate, EstimatedGram, Probes, estimated_error_gram, exact_or_estimated
from .fresh import fresh_noise_cost
from .measure import SpectralMeasure
from .modes import mode_error_grams
from .space_time import space_time_error_gram
from .spatial import spatial_error_gram
from .spectral import spectral_measure
from .temporal import error_gram, node_error_grams, prefix_sum_gram

__all__ = [
    "OBJECTIVES",
    "Estimate",
    "EstimatedGram",
    "Probes",
    "SpectralMeasure",
    "averaged_error_gram",
    "error_gram",
    "estimated_error_gram",
    "exact_or_estimated",
    "fresh_noise_cost",
    "mode_error_grams",
    "node_error_grams",
    "prefix_sum_gram",
    "space_time_error_gram",
    "spatial_error_gram",
    "spectral_measure",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""What noise fresh in each step costs the counted models on graphs too large for an array over nodes.

tr(F^T H F), H over nodes and F the factor of the noise, is that of a polynomial f of W where gossip is constant and
symmetric: sum_i weights_i f(eigenvalues_i), the measure that of F, weights_i = |F^T u_i|^2. Noise of one size at each
node on gossip whose eigenvalues are known has it in closed form; else random signs z give z^T F^T f(W) F z by Lanczos,
the part of the eigenvector 1 taken out before, as it is known: |F^T 1|^2 / n.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse as sp
from scipy.stats import t as student

from .. import matrices
from ..dynamics import Dynamics
from ..dynamics.responses import ByModes, cost_to_go
from ..error_weights import ErrorWeights
from ..errors import UnsupportedMechanism
from ._counted import Counted
from ._lanczos import nodes_needed, quadrature
from .estimated import ACCURACY, LEVEL, SPREAD_ACCURACY, Estimate, Probes, normal_error
from .measure import SpectralMeasure


def fresh_noise_cost(
    dynamics: Dynamics,
    factor: sp.csr_array,
    num_steps: int,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    probes: Probes | None = None,
) -> Estimate:
    """tr(F^T H F), H = `spatial_error_gram`, with its 95 % interval; of error 0 where it has a closed form.

    Args: those of `spatial_error_gram`; factor: F, csr (n, columns); probes: default 8 of seed 0.
    Raises: those of `spatial_error_gram`; UnsupportedMechanism: gossip that varies or is not symmetric, or models of
        which some count more than others.
    Cost: about sqrt(30 T) products of W with (n, probes), and T for each of so many eigenvalues; no n x n array.
    """
    counted = Counted.of(dynamics, num_steps, weights, objective)
    factor = matrices.sparse_matrix(factor=factor)
    gossip, rounds, n = dynamics.gossip, dynamics.gossip_rounds, dynamics.num_nodes
    plain = counted.node_factor is None and counted.released is None
    if not (plain and gossip.is_constant and gossip.at(0).is_symmetric):
        raise UnsupportedMechanism(
            f"what fresh noise costs the models of {n:,} nodes is told of constant symmetric gossip where all models "
            "count alike; take metropolis-hastings gossip, or a smaller graph."
        )
    size = same_size(factor)
    if size is not None and (closed := gossip.at(0).closed_spectrum) is not None:
        measure = SpectralMeasure.of_spectrum(closed, size).after_rounds(rounds)
        return Estimate(_cost(counted, measure.reduced(2 * num_steps)), 0.0)
    W, probes = gossip.at(0).weights, Probes() if probes is None else probes
    z = np.asarray(factor @ probes.signs(factor.shape[1]))
    z -= z.mean(axis=0)
    rules = quadrature(lambda x: np.asarray(W @ x), z, nodes_needed(2 * num_steps * rounds, ACCURACY))
    measures = [SpectralMeasure(*of_probe).after_rounds(rounds) for of_probe in rules]
    share = float((np.asarray(factor.sum(axis=0)) ** 2).sum()) / n
    known = _cost(counted, SpectralMeasure(np.ones(1), np.array([share])))
    values = known + np.array([_cost(counted, measure) for measure in measures])
    pooled = functools.reduce(SpectralMeasure.plus, measures)
    pooled = SpectralMeasure(pooled.eigenvalues, pooled.weights / probes.count).reduced(4 * num_steps, SPREAD_ACCURACY)
    # of z^T A z, A = F^T f(W) F, as `estimated.Spread`: |A|_F^2 <= |F|^2 tr(F^T f(W)^2 F)
    largest = float(sp.linalg.norm(factor, 1) * sp.linalg.norm(factor, np.inf))
    by_spread = normal_error(pooled, _costs(counted, pooled), factor.shape[1], largest, probes.count)
    by_probes = float(student.ppf((1 + LEVEL) / 2, values.size - 1) * values.std(ddof=1)) / values.size**0.5
    return Estimate(float(values.mean()), max(by_spread, by_probes))


def same_size(factor: sp.csr_array) -> float | None:
    """c where F F^T = c I, one column for each node; else None."""
    n, columns = factor.shape
    diagonal = factor.diagonal()
    if n != columns or factor.nnz != n or not (diagonal == diagonal[0]).all():
        return None
    return float(diagonal[0]) ** 2


def _cost(counted: Counted, measure: SpectralMeasure) -> float:
    return float(measure.weights @ _costs(counted, measure))


def _costs(counted: Counted, measure: SpectralMeasure) -> np.ndarray:
    """f(lam): what unit noise in a mode, fresh in each step, costs."""
    weights, ones = counted.step_weights, np.ones_like(measure.eigenvalues)
    modes, after = ByModes(measure.eigenvalues), counted.after_averaging
    return cost_to_go(counted.dynamics, counted.num_steps, modes, lambda r: weights[r] * ones, after_averaging=after)

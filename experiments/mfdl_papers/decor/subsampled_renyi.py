"""The accountant of DECOR's example level: Rényi divergences of batches without replacement, by Wang et al.

In: the Rényi slope of one step without sampling (`decor_accountant` with num_steps = 1), the share of a node's records
in a batch and the number of steps. Out: a Rényi divergence of all steps, or an epsilon. For Poisson sampling use the
library (`mfdl.participation.PoissonSampling`), whose bounds are tighter.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from mfdl import check
from mfdl.errors import InvalidInput

from ..published import PublishedBound

ORDERS = (*range(2, 65), *range(72, 257, 8))
SOURCE = "[DECOR] arXiv:2405.01031, example level, by arXiv:1808.00087, Theorem 9"


def sampled_renyi(slope: float, *, order: int, rate: float, num_steps: int = 1) -> float:
    """Upper bound on the Rényi divergence of integer order a of T steps, each on a batch without replacement.

        T / (a - 1) log(1 + g^2 (a over 2) min(4 (e^2s - 1), 2 e^2s) + sum_j=3..a g^j (a over j) 2 e^((j - 1) j s))

    Args:
        slope: s >= 0; without sampling the divergence of every order j is at most j s, for one record replaced.
        order: a >= 2. rate: g in (0, 1], records of a batch over those it is drawn from. num_steps: T >= 1.

    Guarantee: adaptive composition; replace-one, batches of fixed size, sampled independently in each step.
    Raises: InvalidInput: a number out of range.
    Source: arXiv:1808.00087, Theorem 9, with no pure-DP bound on the mechanism.
    """
    s, a = check.non_negative(slope=slope), check.integer_at_least(2, order=order)
    g = check.positive(rate=rate)
    if g > 1:
        raise InvalidInput(f"rate must be at most 1, got {rate}.")
    T = check.integer_at_least(1, num_steps=num_steps)
    j = np.arange(2, a + 1)
    logs = j * math.log(g) + gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1) + math.log(2) + (j - 1) * j * s
    if s < math.log(2) / 2:  # where 4 (e^2s - 1) is the smaller one
        logs[0] += (math.log(2 * math.expm1(2 * s)) if s else -math.inf) - 2 * s
    return T / (a - 1) * float(logsumexp(np.append(0.0, logs)))


def sampled_epsilon(slope: float, delta: float, *, rate: float, num_steps: int) -> PublishedBound:
    """epsilon at delta by `sampled_renyi`, the least over orders up to 256 of divergence + log(1 / delta) / (a - 1).

    Args: as in `sampled_renyi`; 0 < delta < 1.
    Validity: "bound" for batches of fixed size without replacement under replace-one.
    Raises: InvalidInput: a number out of range.
    """
    L = -math.log(check.open_unit(delta=delta))
    values = [sampled_renyi(slope, order=a, rate=rate, num_steps=num_steps) + L / (a - 1) for a in ORDERS]
    return PublishedBound(min(values), "epsilon", SOURCE, "", "bound: replace-one, batches without replacement")

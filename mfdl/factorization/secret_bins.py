"""Noise correlated over time for secret bins: from dynamics, bins and error weights to an encoder.

Each record draws one of b bins secretly and takes part in the steps t = bin mod b, so what counts of an encoder is
M = (|C| E)^T (|C| E), and what noise it needs is a number of M that an accountant says. `factorize_bins` solves for
several bounds on the off-diagonal of M and keeps the encoder whose noise, at the scale that the accountant asks for,
costs the models least.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from mfdl_solvers import FactorizationProblem
from mfdl_solvers.problem import Stopping
from mfdl_solvers.secret_bins import BinFactorization
from mfdl_solvers.secret_bins import solve as solve_bins

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_gram import error_gram
from ..error_weights import ErrorWeights
from ..errors import InvalidInput
from ..progress import Progress, shown
from ..shown import short_repr
from . import kept
from .boundary import solver_refusals

CORRELATIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.45)
"""Bounds on M_rq / M_rr that are tried by default."""

BIN_STOPPING = Stopping(tolerance=1e-4, max_iterations=1200)


@dataclasses.dataclass(frozen=True, eq=False)
class SecretBinFactorization:
    """The best encoder among those of several correlations.

    Attributes:
        tried: (the bound on M_rq that was asked for, noise std at M_rr <= 1, the encoder with its certificate).
        seconds: of all; error_gram: H, shape (T, T).
    """

    __repr__ = short_repr

    tried: tuple[tuple[float, float, BinFactorization], ...]
    seconds: float
    error_gram: FloatArray

    @property
    def best(self) -> BinFactorization:
        """The one of the least error."""
        return min(self.tried, key=_error)[2]

    @property
    def encoder(self) -> FloatArray:
        """C, shape (T, T), causal, no entry negative, max M_rr = 1."""
        return self.best.encoder

    @property
    def noise_std(self) -> float:
        """What the accountant asks of `encoder`, per unit clipping norm."""
        return min(self.tried, key=_error)[1]

    @property
    def root_error(self) -> float:
        """noise_std sqrt(tr(H X^-1)): the root of the total variance in the counted models, per coordinate."""
        return math.sqrt(_error(min(self.tried, key=_error)))

    @property
    def root_error_bound(self) -> float:
        """At noise_std, of every encoder whose bins are correlated no more than those of `encoder`."""
        return self.noise_std * math.sqrt(self.best.lower_bound)


def factorize_bins(
    dynamics: Dynamics,
    epochs: int,
    bins: int,
    noise_std: Callable[[FloatArray], float],
    *,
    weights: ErrorWeights | None = None,
    correlations: Sequence[float] = CORRELATIONS,
    stopping: Stopping = BIN_STOPPING,
    progress: Progress = "auto",
) -> SecretBinFactorization:
    """The local encoder of least error for secret bins, shared by all nodes.

    Args:
        epochs, bins: k and b; T = k b steps.
        noise_std: of M, shape (b, b), the standard deviation that meets the target, per unit clipping norm, certified;
            inf where none does.
        weights: which models count; default all alike.
        correlations: bounds c on M_rq / M_rr to try, each in [0, 1].
        stopping: of each of them.

    Guarantees: none of privacy: what the encoder guarantees is what an accountant says of its own M.
    Raises: InvalidInput: k, b or a correlation out of range, or no encoder that meets the target.
    Cost: one error Gram; for each correlation a few hundred iterations of O(T^3), those of the next from its encoder.
    """
    check.instance(Dynamics, dynamics=dynamics)
    k, b = check.integer_at_least(1, epochs=epochs), check.integer_at_least(1, bins=bins)
    if not len(correlations) or not all(0 <= check.non_negative(correlation=c) <= 1 for c in correlations):
        raise InvalidInput(f"correlations must be numbers in [0, 1], at least one, got {list(correlations)!r}.")
    began, tried, start = time.perf_counter(), [], None
    with solver_refusals(), shown(progress).status(f"factorizing {k * b} steps in {b} secret bins"):
        posed = FactorizationProblem(error_gram(dynamics, k * b, weights=weights), np.arange(k * b) % b)
        for correlation in sorted(map(float, correlations)):
            solved = kept.solved(solve_bins, posed, correlation, stopping=stopping, start=start)
            tried.append((correlation, float(noise_std(solved.bin_gram)), solved))
            start = solved.encoder if correlation > 0 else None
    found = SecretBinFactorization(tuple(tried), time.perf_counter() - began, posed.error_gram)
    if not found.noise_std < math.inf:
        raise InvalidInput("no encoder meets the target, whatever its noise; ask the accountant for another one.")
    return found


def _error(tried: tuple[float, float, BinFactorization]) -> float:
    _, std, solved = tried
    return std**2 * solved.loss

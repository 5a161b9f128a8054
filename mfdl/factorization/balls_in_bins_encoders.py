"""Noise correlated over time for balls-in-bins: from dynamics, bins and error weights to an encoder.

Each record draws one of b bins secretly and takes part in the steps t = bin mod b, so what counts of an encoder is
M = (|C| E)^T (|C| E), and what noise it needs is a number of M that an accountant says. `factorize_balls_in_bins`
solves for several bounds on the off-diagonal of M and keeps the encoder whose noise, at the scale that the accountant
asks for, costs the models least.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from mfdl_solvers import FactorizationProblem
from mfdl_solvers.balls_in_bins_encoder import BinFactorization
from mfdl_solvers.balls_in_bins_encoder import solve as solve_bins
from mfdl_solvers.encoders import Encoder
from mfdl_solvers.problem import Stopping
from mfdl_solvers.structured import BinEncoder, solve_form
from mfdl_solvers.ties import first_minimum

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..objective import ErrorWeights, NoiseObjective
from ..participation import BallsInBins
from ..progress import Progress, reporter
from . import solutions
from .long_runs import mode_cost
from .setting import Setting, solver_refusals

CORRELATIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.45)
"""Bounds on M_rq / M_rr that are tried by default."""
FORM_CORRELATIONS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45)
"""Those of forms with structure: with many bins less correlation pays."""
DENSE = "dense"
BIN_FORMS = (DENSE, "toeplitz", "banded")
"""What `factorize_balls_in_bins` searches among."""
BIN_STOPPING = Stopping(tolerance=1e-4, max_iterations=1200)
Solved: TypeAlias = Iterator[tuple[float, BinFactorization | BinEncoder]]


@dataclasses.dataclass(frozen=True, eq=False)
class BallsInBinsFactorization:
    """The best encoder among those of several correlations.

    Attributes:
        tried: (the bound on M_rq that was asked for, noise std at M_rr <= 1, the encoder with its certificate).
        seconds: of all; error_gram: H, shape (T, T), None for a form with structure.
    """

    __repr__ = short_repr

    tried: tuple[tuple[float, float, BinFactorization | BinEncoder], ...]
    seconds: float
    error_gram: FloatArray | None

    @property
    def _best_attempt(self) -> tuple[float, float, BinFactorization | BinEncoder]:
        return first_minimum(self.tried, _error)

    @property
    def best(self) -> BinFactorization | BinEncoder:
        return self._best_attempt[2]

    @property
    def encoder(self) -> FloatArray | Encoder:
        """C, shape (T, T), causal, no entry negative, max M_rr = 1; an encoder where it has structure."""
        return self.best.encoder

    @property
    def noise_std(self) -> float:
        """What the accountant asks of `encoder`, per unit clipping norm."""
        return self._best_attempt[1]

    @property
    def root_error(self) -> float:
        """noise_std sqrt(tr(H X^-1)): the root of the total variance in the counted models, per coordinate."""
        return math.sqrt(_error(self._best_attempt))

    @property
    def root_error_bound(self) -> float:
        """At noise_std, of every encoder whose bins are correlated no more than those of `encoder`; of a form with
        structure, of every one with M_rr <= 1.
        """
        return self.noise_std * math.sqrt(self.best.lower_bound)


def factorize_balls_in_bins(
    dynamics: Dynamics,
    epochs: int,
    bins: int,
    noise_std: Callable[[FloatArray], float],
    *,
    weights: ErrorWeights | None = None,
    factor: sp.csr_array | None = None,
    form: str = DENSE,
    bandwidth: int | None = None,
    correlations: Sequence[float] | None = None,
    stopping: Stopping = BIN_STOPPING,
    progress: Progress = "auto",
) -> BallsInBinsFactorization:
    """The local encoder of least error for balls-in-bins, shared by all nodes.

    Args:
        epochs, bins: k and b; T = k b steps.
        noise_std: of M, shape (b, b), the standard deviation that meets the target, per unit clipping norm, certified;
            inf where none does.
        weights: which models count; default all alike.
        factor: F, shape (n, columns), of noise that is spread over the nodes too; default each node its own. noise_std
            is then for [(F F^T)^-1]_uu of at most 1.
        form: "dense", any causal C as an array; "toeplitz" or "banded", without an array of T x T.
        bandwidth: diagonals of a form; default b, of "banded" at most 32.
        correlations: bounds c on M_rq / M_rr to try, each in [0, 1]; default CORRELATIONS or FORM_CORRELATIONS.
        stopping: of each of them; of a form its iterations.

    Guarantees: none of privacy: what the encoder guarantees is what an accountant says of its own M.
    Raises: InvalidInput: k, b or a correlation out of range, an unknown form, or no encoder that meets the target.
        UnsupportedMechanism: of forms, gossip without a spectral measure, released models; of a factor, no modes.
    Cost: one error Gram; for each correlation a few hundred iterations of O(T^3), those of the next from its encoder;
        of "toeplitz" O(modes T + T log T), of "banded" O(modes T bandwidth^2).
    """
    check.instance(Dynamics, dynamics=dynamics)
    k, b = check.integer_at_least(1, epochs=epochs), check.integer_at_least(1, bins=bins)
    require_known("form", form, BIN_FORMS)
    if bandwidth is not None and check.integer_at_least(1, bandwidth=bandwidth) and form == DENSE:
        raise InvalidInput(f"bandwidth {bandwidth} is of a form with diagonals; leave it out, or name the form.")
    if factor is not None and form != DENSE:
        raise UnsupportedMechanism(
            f"noise spread over the nodes is searched as an array, got form {form!r}; use dense."
        )
    if correlations is None:
        correlations = CORRELATIONS if form == DENSE else FORM_CORRELATIONS
    example = "mfdl.privacy.noise_of_bins(epsilon=1.0, delta=1e-6, bins=bins, adjacency='zero-out')"
    check.function(example, noise_std=noise_std)
    correlations = check.listed("numbers in [0, 1]", correlations=correlations)
    if not len(correlations) or not all(0 <= check.non_negative(correlation=c) <= 1 for c in correlations):
        raise InvalidInput(f"correlations must be numbers in [0, 1], at least one, got {list(correlations)!r}.")
    began, ordered = time.perf_counter(), sorted(map(float, correlations))
    posed: FactorizationProblem | None = None
    every: Solved
    with solver_refusals(), reporter(progress).status(f"factorizing {k * b:,} steps in {b:,} bins"):
        if form == DENSE:
            counted = NoiseObjective(dynamics, k * b, ErrorWeights() if weights is None else weights)
            gram = counted.over_steps() if factor is None else _spread_gram(counted, factor)
            posed = FactorizationProblem(gram, np.arange(k * b) % b)
            every = _dense(posed, ordered, stopping)
        else:
            setting = Setting(dynamics, BallsInBins(k, b).public, weights=weights)
            every = _form_solutions(setting, b, ordered, form, bandwidth, stopping)
        tried = tuple((each, float(noise_std(solved.bin_gram)), solved) for each, solved in every)
    error_gram = None if posed is None else posed.error_gram
    solutions = BallsInBinsFactorization(tried, time.perf_counter() - began, error_gram)
    if not solutions.noise_std < math.inf:
        raise InvalidInput("no encoder meets the target, whatever its noise; ask the accountant for another one.")
    return solutions


def _spread_gram(counted: NoiseObjective, factor: sp.csr_array) -> FloatArray:
    """H over steps of noise that a factor spreads over the nodes: sum over modes of |u_k^T F|^2 H_k."""
    U, grams = counted.by_modes()
    return np.asarray(np.tensordot(((U.T @ factor.toarray()) ** 2).sum(axis=1), grams, 1))


def _dense(posed: FactorizationProblem, correlations: Sequence[float], stopping: Stopping) -> Solved:
    start = None
    for correlation in correlations:
        solved = solutions.solved(solve_bins, posed, correlation, stopping=stopping, start=start)
        yield correlation, solved
        start = solved.encoder if correlation > 0 else None


def _form_solutions(
    setting: Setting, bins: int, correlations: Sequence[float], form: str, bandwidth: int | None, stopping: Stopping
) -> Solved:
    cost, start = mode_cost(setting), None
    options: dict[str, Any] = {"bandwidth": bandwidth, "max_iterations": stopping.max_iterations}
    for correlation in correlations:
        solved = solve_form(cost, bins, correlation, form, start=start, **options)
        yield correlation, solved
        start = solved if correlation > 0 else None


def _error(tried: tuple[float, float, BinFactorization | BinEncoder]) -> float:
    _, std, solved = tried
    return std**2 * solved.objective

"""Torch autodiff over any differentiable family of encoders, with any differentiable penalty.

For researchers who invent their own C: a callable theta -> C (lower triangular, positive diagonal) and a start
are all it takes. The objective is

    sensitivity(C)^2 * tr(H (C^T C)^-1) + penalty(C),

minimised by the L-BFGS of `iterations` on gradients from torch, in float64. The sensitivity, a maximum over classes of
sums of |X[s, t]|, is smoothed (p-mean over classes, sqrt(x^2 + w^2) for |x|) with p rising and w falling in stages; the
result is judged by the exact value and by the certificate, which holds for every X.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from .arithmetic import ITERATION, blas_threads
from .certificate import finished, lower_bound
from .iterations import minimise
from .problem import (
    OPTIMAL,
    STATIONARY,
    STOPPED,
    USUAL,
    Array,
    Factorization,
    FactorizationProblem,
    ProblemError,
    Stopping,
)

Penalty = Callable[[torch.Tensor], torch.Tensor]
STAGES = ((8.0, 1e-2), (64.0, 1e-3), (512.0, 1e-4), (4096.0, 1e-5))  # (p, w): smoothing of max and of | |
CHECK_EVERY = 20
WAY_OUT = "write C by torch operations on theta, without numpy, float, torch.tensor, detach and no_grad"
FLAT = 1e-7  # relative decrease over CHECK_EVERY iterations below which a stage is over


@dataclasses.dataclass(frozen=True, eq=False)
class Parametrisation:
    """A family of encoders.

    Attributes:
        encoder: theta (1-D float64 tensor) -> C (T, T), float64, by torch operations on theta; lower triangular at
            every theta. Entries that are not finite mark theta outside the domain. Over n nodes, a problem of
            T n indices, time-major, C may be one per node, (n, T, T), one for all, (T, T), a pair (C_t, C_s) whose
            Kronecker product it is, C_s any (n, n) that can be inverted, or (T n, T n) with any block inside a step.
        start: theta to begin with, shape (p,).
        complete: the family holds an optimal C of every problem of its size, so the gap must close.
        scale_columns: the family is closed under scaling columns (banded yes, Toeplitz no): then the columns of
            each class are scaled to sensitivity 1, at no loss (a larger X costs less), and no maximum is left.
        num_nodes: n of a problem over time x nodes.
    """

    encoder: Callable[[torch.Tensor], torch.Tensor]
    start: Array
    complete: bool = False
    scale_columns: bool = False
    num_nodes: int = 1


def lower_triangular(problem: FactorizationProblem) -> Parametrisation:
    """Every causal C whose Gram matrix vanishes off-diagonal within the classes (no loss, see `dense_encoder`).

    theta holds the logits of the diagonal of X (a softmax per class, so that each class sums to 1) and the free
    entries above the diagonal; C is the causal Cholesky factor.
    """
    T = problem.size
    labels = torch.as_tensor(problem.classes.copy())
    rows, columns = np.nonzero(np.triu(~problem.same_class, 1))

    def encoder(theta: torch.Tensor) -> torch.Tensor:
        on = theta.device
        weights = torch.exp(theta[:T])
        totals = torch.zeros(problem.num_classes, dtype=theta.dtype, device=on).index_add(0, labels.to(on), weights)
        diagonal = weights / totals[labels.to(on)]
        # entries are correlations, scaled by the diagonal: one theta of size 1 per entry
        scale = torch.sqrt(diagonal)
        off = torch.zeros(T, T, dtype=theta.dtype, device=on)
        off[rows, columns] = theta[T:] * scale[rows] * scale[columns]
        gram = torch.diag(diagonal) + off + off.T
        factor, info = torch.linalg.cholesky_ex(gram.flip(0, 1))
        return (factor.flip(0, 1).T if info == 0 else torch.full_like(gram, torch.nan)).contiguous()

    return Parametrisation(encoder, np.zeros(T + rows.size), complete=True)


def banded(size: int, bands: int) -> Parametrisation:
    """C[t, t - j] free for j < bands (bands >= 1), zero below; the diagonal is kept positive."""
    _check_bands(bands)
    rows, columns = np.nonzero(np.tri(size) - np.tri(size, k=-bands))

    def encoder(theta: torch.Tensor) -> torch.Tensor:
        C = torch.zeros(size, size, dtype=theta.dtype, device=theta.device)
        C[rows, columns] = theta
        diagonal = torch.diagonal(C)
        return C if bool((diagonal > 0).all()) else C * torch.nan

    return Parametrisation(encoder, (rows == columns).astype(np.float64), scale_columns=True)


def toeplitz(size: int, bands: int | None = None) -> Parametrisation:
    """C[t, s] = c[t - s] with c[0] = 1 and theta = c[1:bands]; scale does not matter to the objective."""
    width = size if bands is None else min(_check_bands(bands), size)
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    inside = (lag >= 0) & (lag < width)
    index = torch.as_tensor(np.where(inside, lag, width))

    def encoder(theta: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([1.0, 0.0], dtype=theta.dtype, device=theta.device)
        return torch.cat([ends[:1], theta, ends[1:]])[index.to(theta.device)]

    return Parametrisation(encoder, np.zeros(width - 1))


def _check_bands(bands: int) -> int:
    if bands < 1:
        raise ProblemError(f"bands must be an integer >= 1, got {bands}.")
    return bands


def solve(
    problem: FactorizationProblem,
    parametrisation: Parametrisation | None = None,
    stopping: Stopping = USUAL,
    *,
    penalty: Penalty | None = None,
    device: str | None = None,
) -> Factorization:
    """Minimises the objective above over a family of encoders.

    Args:
        parametrisation: default `lower_triangular(problem)`.
        stopping: wanted gap, judged by the certificate; iterations over all stages together.
        penalty: C -> scalar tensor in units of the objective, added to it; the reported objective is without it.
        device: default CUDA when available.

    Returns:
        A Factorization of unit sensitivity. Status "optimal" when the gap is within tolerance, "stationary"
        when a restricted or penalised family converged with a larger gap, "stopped" otherwise.
    """
    if k := problem.exponent:
        half = 2.0 ** (-k // 2)  # 2^-k itself may be beyond float64
        smaller = None if penalty is None else lambda C: penalty(C) * half * half
        return solve(problem.normalised, parametrisation, stopping, penalty=smaller, device=device).shifted(k)
    began = time.perf_counter()
    family = parametrisation or lower_triangular(problem)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    objective = _Objective(problem, family, penalty, where)
    theta = np.asarray(family.start, dtype=np.float64)
    with torch.no_grad():
        first = objective.encoder(torch.as_tensor(theta, device=where))
    if not bool(torch.isfinite(first).all()) or not np.isfinite(objective(theta, *STAGES[0])[0]):
        raise ProblemError("start must give a finite, lower-triangular, invertible C; the first encoder was not.")
    search = _StagedSearch(objective, stopping, theta)
    with blas_threads(problem.size, single_up_to=ITERATION), _torch_threads(problem.size):
        settled = search.go_through_stages()
        unfinished = STATIONARY if settled and (penalty is not None or not family.complete) else STOPPED
        X = objective.gram(search.theta)
        result = finished(problem, X, search.bound, stopping, search.iterations, began, unfinished_status=unfinished)
    if penalty is None or result.status != OPTIMAL:
        return result
    return dataclasses.replace(result, status=STATIONARY if settled else STOPPED)


@contextlib.contextmanager
def _torch_threads(size: int) -> Iterator[None]:
    """One torch thread for small matrices: on busy cores 30 times as fast."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if size <= ITERATION else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _StagedSearch:
    """L-BFGS through the stages, and the best lower bound met on the way."""

    def __init__(self, objective: _Objective, stopping: Stopping, theta: Array) -> None:
        self.objective, self.stopping, self.theta = objective, stopping, theta
        self.bound, self.value, self.iterations = 0.0, np.inf, 0

    def go_through_stages(self) -> bool:
        """Whether the last stage had settled."""
        settled = not self.theta.size
        for stage in STAGES if self.theta.size else ():
            self.value = np.inf
            minimum = minimise(
                lambda x, stage=stage: self.objective(x, *stage),  # type: ignore[misc]
                self.theta,
                stop=self._is_over,
                max_iterations=self.stopping.max_iterations - self.iterations,
            )
            self.theta, self.iterations = minimum.point, self.iterations + minimum.iterations
            settled = minimum.stopped_by_rule or self.iterations < self.stopping.max_iterations
            if self._reached(self.objective.gram(self.theta)):
                break
        return settled

    def _reached(self, X: Array) -> bool:
        """The objective without a penalty is within the tolerance of the bound."""
        return self.objective.penalty is None and self.stopping.reached(self.objective.problem.objective(X), self.bound)

    def _is_over(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        if iteration % CHECK_EVERY:
            return False
        if iteration and value > self.value * (1 - FLAT):
            return True
        self.value = value
        if self.objective.penalty is not None:
            return False
        X = self.objective.gram(x)
        self.bound = max(self.bound, lower_bound(self.objective.problem, X))
        if self.stopping.report is not None:
            self.stopping.tell(self.iterations + iteration, self.objective.problem.objective(X), self.bound)
        return self._reached(X)


class _Objective:
    """theta, smoothing -> (value, gradient), scaled so that the first objective is 1."""

    def __init__(
        self, problem: FactorizationProblem, family: Parametrisation, penalty: Penalty | None, where: torch.device
    ) -> None:
        self.problem, self.family, self.penalty, self.where = problem, family, penalty, where
        self.root = torch.as_tensor(problem.root.copy(), device=where)
        self.same_class = torch.as_tensor(problem.same_class, device=where)
        self.labels = torch.as_tensor(problem.classes.copy(), device=where)
        self.num_classes = problem.num_classes
        self.scale = float(problem.objective(np.eye(problem.size)))

    def encoder(self, theta: torch.Tensor) -> torch.Tensor:
        """C at theta. Raises: ProblemError: the family fails, or its C is no causal encoder in torch."""
        try:
            C = self.family.encoder(theta)
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(
                f"encoder(theta) fails at theta of shape {tuple(theta.shape)}: {type(error).__name__}: {error}; start "
                "must hold a number for each parameter that the encoder reads, and nothing may leave torch."
            ) from error
        T, n = self.problem.size // self.family.num_nodes, self.family.num_nodes
        if isinstance(C, tuple) and [getattr(part, "shape", None) for part in C] == [(T, T), (n, n)]:
            C = torch.kron(C[0].contiguous(), C[1].contiguous())
        if not isinstance(C, torch.Tensor):
            raise ProblemError(f"encoder(theta) must return a torch tensor, got {type(C).__name__}; {WAY_OUT}.")
        if n > 1 and C.shape == (T, T):
            C = C.expand(n, T, T)
        if n > 1 and C.shape == (n, T, T):
            C = torch.diag_embed(C.permute(1, 2, 0)).transpose(1, 2).reshape(T * n, T * n)
        if C.shape != self.same_class.shape:
            raise ProblemError(f"encoder(theta) must have shape {tuple(self.same_class.shape)}, got {tuple(C.shape)}.")
        if C.dtype != theta.dtype:
            raise ProblemError(f"encoder(theta) must be of {theta.dtype}, got {C.dtype}; give its parts theta.dtype.")
        values = C.detach()
        step = torch.arange(len(C), device=C.device) // n
        later = torch.where(step[:, None] < step, values, 0.0)
        if bool(torch.isfinite(values).all()) and len(above := later.nonzero()):
            t, s = above[0].tolist()
            raise ProblemError(
                f"encoder(theta) must be lower-triangular at every theta, got C[{t}, {s}] = {float(values[t, s]):.3g}; "
                "mask the entries above the diagonal, e.g. torch.tril(C)."
            )
        return C

    def gram(self, theta: Array) -> Array:
        """X at theta, at unit sensitivity."""
        with torch.no_grad():
            C = self.encoder(torch.as_tensor(theta, device=self.where))
            X = (C.T @ C).cpu().numpy()
        if self.family.scale_columns:
            absolute = np.where(self.problem.same_class, np.abs(X), 0.0).sum(axis=1)
            scale = np.sqrt(np.bincount(self.problem.classes, weights=absolute))[self.problem.classes]
            X = X / np.outer(scale, scale)
        return X / self.problem.sensitivity_squared(X)

    def __call__(self, theta: Array, power: float, width: float) -> tuple[float, Array]:
        x = torch.tensor(theta, device=self.where, requires_grad=True)
        C = self.encoder(x)
        triangular = not bool(torch.triu(C.detach(), 1).any())
        if not bool(torch.isfinite(C).all()) or (triangular and bool((torch.diagonal(C) == 0).any())):
            return float("inf"), theta
        X = C.T @ C
        typical = torch.diagonal(X).detach().mean()
        absolute = torch.sqrt(X**2 + (width * typical) ** 2) - width * typical
        eye = torch.eye(X.shape[0], dtype=torch.bool, device=self.where)
        absolute = torch.where(eye, X, absolute)
        rows = torch.where(self.same_class, absolute, torch.zeros_like(X)).sum(dim=1)
        sums = torch.zeros(self.num_classes, dtype=X.dtype, device=self.where).index_add(0, self.labels, rows)
        if self.family.scale_columns:
            value = self._noise(C / torch.sqrt(sums)[self.labels]) / self.scale
        else:
            top = sums.detach().max()
            value = top * ((sums / top) ** power).mean() ** (1 / power) * self._noise(C) / self.scale
        if self.penalty is not None:
            value = value + self.penalty(C) / self.scale
        gradient = torch.autograd.grad(value, x, allow_unused=True)[0] if value.requires_grad else None
        if gradient is None:
            if x.numel():
                raise ProblemError(f"encoder(theta) has no gradient with respect to theta; {WAY_OUT}.")
            gradient = torch.zeros_like(x)
        result, slope = float(value.detach()), gradient.detach().cpu().numpy()
        return (result, slope) if np.isfinite(result) and np.isfinite(slope).all() else (float("inf"), theta)

    def _noise(self, C: torch.Tensor) -> torch.Tensor:
        """tr(H (C^T C)^-1) = ||C^-T L||_F^2 with H = L L^T."""
        if bool(torch.triu(C.detach(), 1).any()):
            return (torch.linalg.solve_ex(C.T, self.root)[0] ** 2).sum()
        return (torch.linalg.solve_triangular(C.T, self.root, upper=True) ** 2).sum()

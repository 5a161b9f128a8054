"""The one factorization problem and its answer.

    minimise  tr(H X^-1)  over X = C^T C > 0  with unit sensitivity,

where the index set is split into disjoint classes: one class holds the indices at which one record can take part, and
the squared sensitivity of X is the largest, over classes c, of max sum_{s,t in c} X[s,t] <g_s, g_t> over ||g_t|| <= 1.
Nothing here knows graphs, trust or learning.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from .arithmetic import EPS, Array, AtAnyScale, blas_threads, even_exponent, scaled, scaled_down, scaled_up

INPUT_TOLERANCE = 1e-9  # relative: asymmetry, negative eigenvalues and departure from orthogonality of the arguments

OPTIMAL, STOPPED, FIXED, STATIONARY = "optimal", "stopped", "fixed", "stationary"


class ProblemError(ValueError):
    """A problem that cannot be posed: the message says which array and what is wrong."""


class NotConverged(RuntimeError):
    """A solver stopped before its certificate reached the tolerance; `factorization` holds what it had."""

    def __init__(self, factorization: Certified, tolerance: float) -> None:
        super().__init__(
            f"factorization stopped after {factorization.iterations} iterations, {factorization.distance}, before it "
            f"reached the tolerance {tolerance:g}; raise max_iterations or the tolerance, or use it as it is: the "
            "exception's `factorization` holds it, and its objective and lower bound are valid."
        )
        self.factorization: Any = factorization


@dataclasses.dataclass(frozen=True)
class Stopping:
    """When a solver ends: at the gap `tolerance`, objective / lower_bound - 1, > 0, or at `max_iterations`.

    `report` is called with the iterations so far and the certified gap, at each check of a solver over indices.
    Raises: ProblemError: a tolerance <= 0.
    """

    tolerance: float = 1e-4
    max_iterations: int = 5000
    report: Callable[[int, float], object] | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ProblemError(f"tolerance must be > 0, got {self.tolerance!r}.")

    def reached(self, objective: float, lower_bound: float) -> bool:
        return objective <= lower_bound * (1 + self.tolerance)

    def tell(self, iterations: int, objective: float, lower_bound: float) -> None:
        if self.report is not None:
            self.report(iterations, relative_gap(objective, lower_bound))

    def share(self, part: float) -> Stopping:
        return dataclasses.replace(self, tolerance=part * self.tolerance)


USUAL = Stopping()


def class_labels(given: ArrayLike, size: int, item: str) -> NDArray[np.intp]:
    """Labels from 0 of the classes, one per `item`, read-only; raises ProblemError: not one integer for each."""
    labels = np.asarray(given)
    if labels.shape != (size,) or labels.dtype.kind not in "iu":
        raise ProblemError(
            f"classes must be one integer label per {item}, shape ({size},), got shape {labels.shape} of "
            f"{labels.dtype}; patterns that overlap cannot be written as labels and are not covered."
        )
    _, labels = np.unique(labels, return_inverse=True)
    labels.setflags(write=False)
    return np.asarray(labels, dtype=np.intp)


class GramProblem(AtAnyScale):
    """One error Gram or a stack of them, shape (..., T, T), and classes of their indices; a frozen dataclass."""

    classes: NDArray[np.intp]

    def _keep(self, grams: Array, index: str, **others: Array) -> None:
        """Keeps read-only copies: Grams symmetrised, labels of each `index`, and other arrays."""
        name = self._costs
        if not all(np.isfinite(array).all() for array in (grams, *others.values())):
            raise ProblemError(f"{' and '.join([name, *others])} must be finite, got a nan or infinite entry.")
        labels = class_labels(self.classes, grams.shape[-1], index)
        H = scaled(grams, -(k := even_exponent(grams)))
        if not (scale := np.abs(H).max()):
            raise ProblemError(f"{name} must not be zero: no noise costs anything, so there is nothing to minimise.")
        for mode in np.ndindex(H.shape[:-2]):  # one by one: a second array of all of them is not needed
            if np.abs(H[mode] - H[mode].T).max() > INPUT_TOLERANCE * scale:
                which = f", mode {mode[0]} is not" if mode else ""
                raise ProblemError(f"{name} must be symmetric{which}; use (H + H.T) / 2 if that is what you mean.")
            H[mode] = (H[mode] + H[mode].T) / 2
        objective_in_range(float(np.trace(H, axis1=-2, axis2=-1).sum()), k)
        for key, array in {name: scaled(H, k), "classes": labels, **others}.items():
            array.setflags(write=False)
            object.__setattr__(self, key, array)
        if (least := float(self.eigenvalues.min())) < -INPUT_TOLERANCE * float(self.eigenvalues.max()):
            raise ProblemError(f"{name} must be positive semidefinite, got smallest eigenvalue {least:.3g}.")

    @property
    def num_classes(self) -> int:
        return int(self.classes.max()) + 1

    @cached_property
    def eigen(self) -> tuple[Array, Array]:
        """Eigenvalues of each Gram, ascending, shape (..., T), and eigenvectors, shape (..., T, T)."""
        H = scaled(getattr(self, self._costs), -self.exponent)
        with blas_threads(H.shape[-1]):
            values, vectors = scipy.linalg.eigh(H, driver="evd") if H.ndim == 2 else eigen_stack(H)
        return scaled(values, self.exponent), vectors

    @property
    def eigenvalues(self) -> Array:
        """Of each Gram, ascending, shape (..., T)."""
        return self.eigen[0]

    def gram_root(self, mode: int | tuple[()] = (), *, plus: float = 0.0, below: bool = False) -> Array:
        """L with L L^T = H + plus I after negative rounding eigenvalues are set to zero, shape (T, T).

        Args: mode: which Gram of a stack; below: H lowered by what its eigenvalues may be rounded, so that L L^T <= H.
        """
        values, vectors = (part[mode] for part in self.eigen)
        lowered = values - values.size * EPS * values[-1] if below else values
        return np.asarray(vectors * np.sqrt(np.clip(lowered, 0.0, None) + plus))


def eigen_stack(matrices: Array) -> tuple[Array, Array]:
    """Eigenvalues (n, T), ascending, and eigenvectors (n, T, T) of n symmetric matrices."""
    values, vectors = np.empty(matrices.shape[:2]), np.empty(matrices.shape)
    with blas_threads(matrices.shape[1]):
        for k, matrix in enumerate(matrices):
            values[k], vectors[k] = scipy.linalg.eigh(matrix, driver="evd")
    return values, vectors


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FactorizationProblem(GramProblem):
    """Which noise costs what, and what one record can reach.

    Attributes: error_gram: H, shape (T, T), symmetric positive semidefinite, float64; classes: integer label per index,
        shape (T,); indices with one label form one class.
    Raises: ProblemError: shapes, non-finite entries, H not symmetric or not positive semidefinite, H = 0, tr H beyond
        float64.
    """

    error_gram: Array
    classes: NDArray[np.intp]

    def __post_init__(self) -> None:
        H = np.array(self.error_gram, dtype=np.float64)
        if H.ndim != 2 or H.shape[0] != H.shape[1] or H.shape[0] == 0:
            raise ProblemError(f"error_gram must be a non-empty square matrix, got shape {H.shape}.")
        self._keep(H, "index")

    def __repr__(self) -> str:
        return f"FactorizationProblem({self.size} steps in {self.num_classes} classes)"

    @property
    def size(self) -> int:
        return self.error_gram.shape[0]

    @cached_property
    def class_sizes(self) -> NDArray[np.intp]:
        return np.bincount(self.classes)

    @cached_property
    def same_class(self) -> NDArray[np.bool_]:
        """(T, T): the two indices lie in one class."""
        return self.classes[:, None] == self.classes[None, :]

    @cached_property
    def root(self) -> Array:
        return self.gram_root()

    def sensitivity_squared(self, gram: Array) -> float:
        """max over classes of sum |X[s, t]|: an upper bound, exact when X >= 0 entrywise on the classes."""
        absolute = np.where(self.same_class, np.abs(gram), 0.0).sum(axis=1)
        return float(np.bincount(self.classes, weights=absolute).max())

    def objective(self, gram: Array) -> float:
        """sensitivity^2 * tr(H X^-1), with H = root root^T; infinite when X is not positive definite.

        Args: gram: X = C^T C, shape (T, T), symmetric; never C itself, whose number would mean nothing.
        Raises: ProblemError: another shape, or an objective beyond float64.
        """
        if np.shape(gram) != self.error_gram.shape:
            shape = self.error_gram.shape
            raise ProblemError(f"gram must be X = C^T C of shape {shape}, as error_gram, got {np.shape(gram)}.")
        if self.exponent:
            return objective_in_range(self.normalised.objective(gram), self.exponent)
        try:
            factor = scipy.linalg.cho_factor(gram, lower=True)
        except np.linalg.LinAlgError:
            return float("inf")
        whitened = scipy.linalg.solve_triangular(factor[0], self.root, lower=True)
        return self.sensitivity_squared(gram) * float((whitened**2).sum())


def causal_encoder(gram: ArrayLike) -> Array:
    """The lower-triangular C with C^T C = X and a positive diagonal: P chol(P X P)^T P, P the reversal.

    (numpy's Cholesky gives X = L L^T; with lower L that is the other orientation and has other column norms.)
    """
    X = np.asarray(gram, dtype=np.float64)
    return np.array(np.linalg.cholesky(X[::-1, ::-1])[::-1, ::-1].T, dtype=np.float64, order="C")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Certified:
    """Loss, certified lower bound and status of every factorization.

    Attributes:
        objective, lower_bound: defined by each class; certified in float64, see `certificate`.
        status: "optimal" (gap within tolerance), "stopped" (not), "stationary" (the best of its form as far as the
            solver can tell; it is at most the gap above the optimum over all forms) or "fixed" (nothing was optimised).
        iterations: of all solvers; seconds: of all.
        notes: what the reader must know, e.g. that H was regularised.
    """

    objective: float
    lower_bound: float
    status: str
    iterations: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        notes = f"; {'; '.join(self.notes)}" if self.notes else ""
        return (
            f"{type(self).__name__}, {self.status}: objective {self.objective:.6g}, {self.distance} "
            f"(certified: no objective is below {self.lower_bound:.6g}); "
            f"{self.iterations} iterations, {self.seconds:.3g} s{notes}"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the same as a table."""
        fields = {
            "status": self.status,
            "objective": f"{self.objective:.6g}",
            "lower bound (certified)": f"{self.lower_bound:.6g}",
            "distance": self.distance,
            "solved in": f"{self.iterations} iterations, {self.seconds:.3g} s",
            **({"notes": "; ".join(self.notes)} if self.notes else {}),
        }
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in fields.items())
        return f"<div><p>{html.escape(repr(self))}</p><table>{rows}</table></div>"

    @property
    def gap(self) -> float:
        """objective / lower_bound - 1, >= 0 up to rounding; inf without a bound."""
        return relative_gap(self.objective, self.lower_bound)

    @property
    def distance(self) -> str:
        return distance_to_optimum(self.gap)

    def shifted(self, k: int) -> Self:
        """All of it for an error Gram 2^k times as large, rounded to the safe side. Raises: ProblemError."""
        if not k:
            return self
        objective, bound = objective_in_range(self.objective, k), scaled_down(self.lower_bound, k)
        scaling_notes = (f"what is said of the error Gram was measured on it times 2^{-k}",) if self.notes else ()
        notes = (*self.notes, *(note for note in scaling_notes if note not in self.notes))
        parts: dict[str, Any] = {name: p.shifted(k) for name, p in vars(self).items() if isinstance(p, Certified)}
        return dataclasses.replace(self, objective=objective, lower_bound=bound, notes=notes, **parts)

    def require_converged(self, tolerance: float) -> Self:
        """Itself; raises NotConverged when the status is "stopped"."""
        if self.status == STOPPED:
            raise NotConverged(self, tolerance)
        return self


def objective_in_range(objective: float, k: int) -> float:
    """An objective times 2^k, rounded up; raises ProblemError where that is beyond float64."""
    try:
        return scaled_up(objective, k)
    except OverflowError:
        raise ProblemError(
            f"the objective of error_gram is beyond float64, it would be {objective:.3g} * 2^{k}; take smaller error "
            "weights: a common factor of all of them only scales the objective."
        ) from None


def distance_to_optimum(gap: float) -> str:
    """A certified relative gap in words: percent with three digits, rounded up.

    >>> distance_to_optimum(0.18401), distance_to_optimum(-1e-16)
    ('at most 18.5 % above the optimum', 'at most 0 % above the optimum')
    """
    if not math.isfinite(gap):
        return "at no certified distance from the optimum"
    percent = Context(prec=3, rounding=ROUND_CEILING).create_decimal(100 * max(gap, 0.0))
    return f"at most {float(percent):.3g} % above the optimum"


def relative_gap(objective: float, lower_bound: float) -> float:
    return objective / lower_bound - 1 if lower_bound > 0 else float("inf")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Factorization(Certified):
    """A causal encoder with what it costs and how far that is from the best.

    Attributes:
        encoder: C, lower triangular, shape (T, T), C^T C = gram.
        gram: X = C^T C; its sensitivity is at most `sensitivity`.
        objective: sensitivity^2 * tr(H X^-1), per unit noise variance and coordinate.
        lower_bound: no C of any shape has a smaller objective.
        sensitivity: of `gram`, an upper bound.
    """

    encoder: Array
    gram: Array
    sensitivity: float = 1.0

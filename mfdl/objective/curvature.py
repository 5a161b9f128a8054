"""Loss curvature by a public spectrum: `Curvature`, and the dynamics along one of its directions.

Along direction j a loss of curvature lambda_j pulls every model back by eta_t lambda_j in a step, so that noise there
contracts before it is averaged, and costs lambda_j / 2 of loss per unit variance. Directions do not meet: the error
Gram is the sum of theirs, each that of dynamics with another weight decay. The spectrum is declared, or from public or
unlabelled features.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism, UnusualSetting, unknown_name
from ..spec import Entry, Registry, parse

MAX_DIMENSION = 10**6
FILES = (".npy", ".csv")

CURVATURES: Registry[Entry] = Registry("curvature", by_position=True)
"""Functions to the eigenvalues of the loss, by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Curvature:
    """Eigenvalues of the Hessian of the loss of one node, and what a unit variance of noise along each costs.

    Attributes:
        eigenvalues: lambda_j >= 0, loss per squared parameter, shape (d,), d at most 10^6; not all 0.
        weights: w_j >= 0, shape (d,); default lambda_j / 2, the excess loss of a quadratic loss per unit variance.
        text: how `parse` reads it; empty for arrays.

    Arrays are own and read-only. Raises: InvalidInput: shapes, numbers that are negative or not finite, all 0.

    >>> Curvature([2.0, 1.0]).weights
    array([1. , 0.5])
    >>> Curvature.parse("power:1:3").eigenvalues.round(3)
    array([1.   , 0.5  , 0.333])
    """

    __repr__ = short_repr

    eigenvalues: Sequence[float] | FloatArray
    weights: Sequence[float] | FloatArray | None = None
    text: str = ""

    def __post_init__(self) -> None:
        lam = check.finite_array(1, eigenvalues=self.eigenvalues)
        w = lam / 2 if self.weights is None else check.finite_array(1, weights=self.weights)
        if lam.shape != w.shape or not 0 < lam.size <= MAX_DIMENSION:
            raise InvalidInput(
                f"a curvature has 1 to {MAX_DIMENSION:,} eigenvalues and one weight for each, got {lam.size:,} and "
                f"{w.size:,}."
            )
        for name, array in (("eigenvalues", lam), ("weights", w)):
            if (array < 0).any() or not array.any():
                raise InvalidInput(f"{name} of a curvature must be numbers >= 0, not all 0, got {array.min():g}.")
            array = np.array(array)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def parse(cls, text: str) -> Curvature:
        """From "power:EXPONENT[:DIMENSION[:LARGEST]]", "features:FILE[:FACTOR]", or a FILE of eigenvalues.

        Files are .npy or .csv, no comma in their names. Raises: InvalidInput: another name, a file that cannot be read,
        numbers that are no spectrum.
        """
        spec = check.text("'power:1:100'", curvature=text).strip()
        if parse(spec).name in CURVATURES:
            eigenvalues = CURVATURES.make(spec)
        elif spec.lower().endswith(FILES):
            eigenvalues = check.numbers_in_file(spec, contents="curvature", ndim=1)
        else:
            known = unknown_name("curvature", parse(spec).name, CURVATURES)
            raise InvalidInput(f"{known} Eigenvalues of your own come from a .npy or .csv file.")
        return cls(eigenvalues, text=spec)

    @classmethod
    def from_features(cls, features: Any, factor: float = 1.0) -> Curvature:
        """Of a linear model on public or unlabelled features: eigenvalues of `factor` times their second moment.

        Args:
            features: X, one record a row, shape (records, d), with a column of ones where the model has an intercept.
            factor: bound on the second derivative of the loss by the prediction: 1 for squares / 2, 1/4 for logistic.
        Raises: InvalidInput: another shape, entries that are not finite, a factor that is not positive.
        Cost: records d^2 + d^3.

        >>> Curvature.from_features([[2.0, 0.0], [0.0, 1.0]], factor=0.25).eigenvalues
        array([0.5  , 0.125])
        """
        X = check.finite_array(2, features=features)
        if not X.size:
            raise InvalidInput(f"features must hold at least one record, got shape {X.shape}.")
        lam = np.linalg.eigvalsh(X.T @ X / len(X) * check.positive(factor=factor))[::-1]
        return cls(np.maximum(lam, 0.0))  # negative by rounding alone

    @property
    def largest(self) -> float:
        return float(np.max(self.eigenvalues))

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """(w_j, lambda_j)."""
        return list(zip(np.asarray(self.weights).tolist(), np.asarray(self.eigenvalues).tolist(), strict=True))

    def describe(self) -> str:
        """The text, or of arrays a hash of their content."""
        content = np.concatenate([np.asarray(self.eigenvalues), np.asarray(self.weights)])
        return self.text or f"given:{hashlib.sha256(content.tobytes()).hexdigest()[:8]}"

    def require_stable(self, dynamics: Dynamics) -> None:
        """Refuses dynamics that this curvature makes diverge, and momentum.

        Raises: InvalidInput: eta_t (weight_decay + lambda) of 2 or more. UnsupportedMechanism: momentum, whose buffer
            would hold the gradient of the loss too.
        """
        if dynamics.momentum:
            raise UnsupportedMechanism(
                f"curvature is covered without momentum, got {dynamics.momentum:g}: the buffer would hold the pull of "
                "the loss too; leave out one of them."
            )
        rate = float(np.max(dynamics.learning_rate))
        if not rate * (dynamics.weight_decay + self.largest) < 2:
            raise InvalidInput(
                f"the largest learning rate times the largest eigenvalue of the curvature (and weight decay) must be "
                f"below 2, got {rate:g} * {dynamics.weight_decay + self.largest:g}: training diverges; lower the rate, "
                "or scale the curvature."
            )

    def compressed(self, num_steps: int) -> Curvature:
        """Distinct eigenvalues, about sqrt(40 T) at most, that give the same error Gram over T steps.

        Equal eigenvalues are put together; more than twice `nodes_needed(2 T)` become so many. An entry of H is a sum
        of products of at most 2 T factors 1 - eta_t lambda, each in [-1, 1]: with x = 1 - 2 lambda / largest a mixture
        of powers of x. So Gauss quadrature in x is off, but for float64, by at most 1e-16 of the sum of the weights
        times the entry of a direction without curvature. Cost: d times the nodes.
        """
        lam, inverse = np.unique(np.asarray(self.eigenvalues), return_inverse=True)
        weights: FloatArray = np.zeros(lam.size)
        np.add.at(weights, inverse, np.asarray(self.weights))
        few = nodes_needed(2 * num_steps, ROUNDING)
        if lam.size > 2 * few:
            x = 1 - 2 * lam[:, None] / self.largest
            ((nodes, weights),) = quadrature(lambda v: x * v, np.sqrt(weights)[:, None], few)
            lam = self.largest * (1 - nodes) / 2
        return Curvature(lam, weights, self.text)


@dataclasses.dataclass(frozen=True, eq=False)
class CurvedDynamics(Dynamics):
    """Dynamics along one direction of the loss: what a model keeps of itself in a step is less by eta_t `curvature`."""

    curvature: float = 0.0

    @classmethod
    def along(cls, dynamics: Dynamics, curvature: float) -> CurvedDynamics:
        fields = {field.name: getattr(dynamics, field.name) for field in dataclasses.fields(Dynamics)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnusualSetting)  # said once, of the dynamics themselves
            return cls(**fields, curvature=curvature)

    def shrink_factors(self, num_steps: int) -> FloatArray:
        """1 - eta_t (weight_decay + curvature) in (-1, 1], shape (num_steps,)."""
        return super().shrink_factors(num_steps) - self.curvature * self.learning_rates(num_steps)

    @property
    def is_plain(self) -> bool:
        return super().is_plain and self.curvature == 0.0


@CURVATURES.register(example="power:1:100")
def power(exponent: float, dimension: int = 100, largest: float = 1.0) -> FloatArray:
    """Eigenvalues that fall as a power of their number: largest / j^exponent, j up to the dimension."""
    exponent, largest = check.non_negative(exponent=exponent), check.positive(largest=largest)
    d = check.integer_at_least(1, dimension=dimension)
    if d > MAX_DIMENSION:
        raise InvalidInput(f"dimension must be at most {MAX_DIMENSION:,}, got {d:,}.")
    return np.asarray(largest * np.arange(1.0, d + 1) ** -exponent)


@CURVATURES.register(example="features:FILE.npy:0.25")
def features(file: str, factor: float = 1.0) -> FloatArray:
    """Of public features, one record a row: eigenvalues of their second moment times a factor (logistic: 0.25)."""
    try:
        stamp = Path(file).stat().st_mtime_ns
    except OSError:
        stamp = 0  # refused where it is read
    return np.array(_record_eigenvalues(file, factor, stamp))


@functools.lru_cache(maxsize=8)
def _record_eigenvalues(file: str, factor: float, stamp: int) -> FloatArray:
    """Once for each content of a file: names of mechanisms are parsed often."""
    records = check.numbers_in_file(file, contents="curvature", ndim=2)
    return np.asarray(Curvature.from_features(records, factor).eigenvalues)


ROUNDING = 1e-16  # accuracy of moments at which a measure is made smaller, relative to its mass
SMALLEST = 1e-13  # of a direction that is new, relative; below it is rounding


def nodes_needed(degree: int, accuracy: float) -> int:
    """K such that K nodes integrate every x^j, j <= degree, on [-1, 1] within `accuracy` of the mass.

    They are exact up to k = 2 K - 1 and err by twice the distance of x^degree from polynomials of degree k, at most
    2 exp(-k^2 / (2 degree)) (the tail of a sum of `degree` signs, its Chebyshev coefficients).
    """
    reached = math.sqrt(2 * max(degree, 1) * math.log(4 / accuracy))
    return min(math.ceil((reached + 1) / 2), degree // 2 + 1)


def quadrature(
    times: Callable[[FloatArray], FloatArray], starts: FloatArray, num_nodes: int
) -> list[tuple[FloatArray, FloatArray]]:
    """(nodes, weights) of each start z: sum_i weights_i p(nodes_i) = z^T p(A) z up to degree 2 num_nodes - 1.

    Args: times: A X; starts: shape (n, starts), overwritten.
    Cost: num_nodes products with (n, starts). No vector is kept: rounding makes copies of nodes, which share the
        weight.
    """
    masses = np.einsum("ij,ij->j", starts, starts)
    safe = np.where(masses > 0, masses, 1.0)
    current, previous = starts, np.zeros_like(starts)
    current /= np.sqrt(safe)
    diagonal, beside = np.zeros((num_nodes, masses.size)), np.zeros((num_nodes, masses.size))
    for k in range(num_nodes):
        following = times(current)
        diagonal[k] = np.einsum("ij,ij->j", current, following)
        following -= current * diagonal[k]
        previous *= beside[k - 1]
        following -= previous
        size = np.sqrt(np.einsum("ij,ij->j", following, following))
        beside[k] = np.where(size > SMALLEST, size, 0.0)
        following *= np.where(size > SMALLEST, 1 / np.maximum(size, SMALLEST), 0.0)
        previous, current = current, following
    return [_gauss(diagonal[:, j], beside[:-1, j], masses[j]) for j in range(masses.size)]


def _gauss(diagonal: FloatArray, beside: FloatArray, mass: float) -> tuple[FloatArray, FloatArray]:
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside)
    return np.clip(nodes, -1.0, 1.0), mass * vectors[0] ** 2

"""A singular H is made regular, by no more than the wanted gap allows.

For singular H the best loss is an infimum: the noise X^-1 grows without bound on the kernel of H, where it costs
nothing. H + rho I has an optimum. What that costs, with P(H) the best loss: by duality (see `certificate`) P(H) is
the maximum of ||H^1/2 V^1/2||_*^2 / w over V, and ||(H + rho I)^1/2 V^1/2||_* <= ||H^1/2 V^1/2||_* + sqrt(rho)
||V^1/2||_* because the square root is concave, so

    sqrt P(H + rho I) <= sqrt P(H) + sqrt(rho P(I)),    P(I) = sum over classes of size^2.

The optimal X of H + rho I loses at most P(H + rho I) on H itself, and its V proves at least
(sqrt P(H + rho I) - sqrt(rho P(I)))^2. With sqrt(rho P(I) / P(H)) = tolerance / 8 the gap on H is thus about a
quarter of the tolerance; P(H) >= ||H^1/2||_*^2 / number of classes (V = I) is known beforehand.

A method that is slow for ill-conditioned H starts with a large rho and lowers it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .problem import Array, FactorizationProblem

SINGULAR = 1e-10  # smallest over largest eigenvalue of H below which H counts as singular
FLOOR = 1e-16  # least rho / largest eigenvalue: float64 does not resolve H below that
FIRST, CUT = 1e-6, 16.0  # first rho / largest eigenvalue of a falling sequence, and the factor between two


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """H + rho I: what is solved in place of H.

    Attributes:
        rho: 0 for a regular H.
        gram: H + rho I, shape (T, T).
        root: R with R R^T = gram, accurate in its smallest singular values.
        last: no smaller rho follows.
    """

    rho: float
    gram: Array
    root: Array
    last: bool


def smallest_ridge(problem: FactorizationProblem, tolerance: float) -> float:
    """The rho that leaves a gap of a quarter of the tolerance on H itself (float64 permitting); 0 for a regular H."""
    least_loss = float(np.sqrt(np.clip(problem.eigenvalues, 0.0, None)).sum()) ** 2 / problem.num_classes
    return ridge_for(problem.eigenvalues, least_loss, problem.class_sizes, tolerance)


def ridge_for(eigenvalues: Array, least_loss: float, class_sizes: NDArray[np.intp], tolerance: float) -> float:
    """`smallest_ridge` from the eigenvalues of H, of any shape, and a bound on its least loss."""
    smallest, largest = float(eigenvalues.min()), float(eigenvalues.max())
    if smallest > SINGULAR * largest:
        return 0.0
    identity_loss = float((class_sizes.astype(np.float64) ** 2).sum())
    return max((tolerance / 8) ** 2 * least_loss / identity_loss, FLOOR * largest)


def target(problem: FactorizationProblem, rho: float, *, last: bool = True) -> Target:
    """H + rho I with its root, from the eigenvectors of H; rho = 0 is H as it was given."""
    if rho == 0:
        return Target(0.0, problem.error_gram, problem.root, last)
    root = problem.root_of(plus=rho)
    return Target(rho, root @ root.T, root, last)


def falling_targets(problem: FactorizationProblem, tolerance: float) -> Iterator[Target]:
    """H alone when it is regular; else H + rho I for falling rho, down to `smallest_ridge`."""
    end = smallest_ridge(problem, tolerance)
    rho = max(FIRST * problem.eigenvalues[-1], end) if end > 0 else 0.0
    while rho > end:
        yield target(problem, rho, last=False)
        rho /= CUT
    yield target(problem, end)


def notes(problem: FactorizationProblem, rho: float, gram: Array) -> tuple[str, ...]:
    """What the reader of a solution for H + rho I must know; empty for rho = 0."""
    if rho == 0:
        return ()
    smallest, largest = problem.eigenvalues[0], problem.eigenvalues[-1]
    noise = 1 / max(float(np.linalg.eigvalsh(gram)[0]), np.finfo(np.float64).tiny)
    note = (
        f"error_gram is singular to working precision (smallest eigenvalue {smallest:.2g}, largest {largest:.2g}): "
        f"the best loss is not attained, so error_gram + {rho:.2g} I was solved instead; where noise costs nothing it "
        f"grows without bound as the tolerance falls, its largest eigenvalue 1 / lambda_min(X) is {noise:.2g} here"
    )
    return (note,)

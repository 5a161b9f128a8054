"""CorN-DSGD, arXiv:2501.14644v2: noise with a covariance R over nodes, and the budgets that paper and code allow.

The first version is in `whisper`.
"""

from __future__ import annotations

import math
from typing import Any

from mfdl import check, node_covariances
from mfdl.errors import InvalidInput
from mfdl.privacy import gaussian

from ..facts import errata
from ..published import PublishedBound, exact_route

_CORN = "[CorN] arXiv:2501.14644v2"


def corn_theorem(covariance: Any, *, delta: float, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """epsilon of noise with covariance R over nodes, 2 C^2 T r + 2 C sqrt(2 T L r), r = max_i [R^-1]_ii.

    Source: [CorN] arXiv:2501.14644v2, Theorem 2; L = log(1 / delta).
    Claims: (epsilon, delta) for the worst agent against an eavesdropper who sees all messages.
    Errata: `corn-algorithm-1-insiders`, `corn-theorem-2`: with mu = 2 C sqrt(T r) the exact epsilon is
        `epsilon_from_mu(mu, delta)`.
    Validity: "bound", also for adaptive gradients, replace-one.

    Args: covariance: R, dense, shape (n, n), positive definite. clip_norm: C. num_steps: T.
    Cost: O(n^3).
    """
    L = -math.log(check.open_unit(delta=delta))
    rho = _corn_slope(covariance, clip_norm, num_steps)
    return PublishedBound(
        rho + 2 * math.sqrt(rho * L),
        "epsilon",
        f"{_CORN}, Theorem 2",
        errata("corn-algorithm-1-insiders", "corn-theorem-2"),
        "bound against an eavesdropper, replace-one adjacency",
    )


def corn_renyi(covariance: Any, *, clip_norm: float = 1.0, num_steps: int = 1) -> PublishedBound:
    """The Rényi slope behind `corn_theorem`, 2 C^2 T max_i [R^-1]_ii; nothing is lost in it.

    Source: [CorN] arXiv:2501.14644v2, Theorem 2 before its conversion to (epsilon, delta).
    Claims: Rényi loss of order a at most a times this. Validity: "bound", exact for the worst victim.
    Errata: `corn-algorithm-1-insiders`.
    """
    slope = _corn_slope(covariance, clip_norm, num_steps)
    erratum, source = errata("corn-algorithm-1-insiders"), f"{_CORN}, Theorem 2, Rényi form"
    validity = "bound (exact) against an eavesdropper, replace-one adjacency"
    return PublishedBound(slope, "renyi slope", source, erratum, validity)


def corn_equation_9b(epsilon: float, delta: float) -> PublishedBound:
    """The mu that the published constraint allows, epsilon / (2 sqrt(L)), L = log(1 / delta).

    Printed as a bound on max_i [R^-1]_ii of epsilon^2 / (16 C^2 T L); see `inverse_diagonal_limit`.

    >>> round(corn_equation_9b(3.0, 1e-5).value, 4)
    0.4421

    Source: [CorN] arXiv:2501.14644v2, (9b) and Proposition 1.
    Claims: (epsilon, delta) for every epsilon. [Whisper], v1 of the paper, asks for epsilon < L.
    Errata: `corn-proposition-1`, `corn-proposition-1-proof`, `corn-code-budget`: it has no condition on epsilon and
        needs one.
    Validity: "bound" where the exact epsilon of this mu is at most the target, which is checked; refused elsewhere.

    Raises: InvalidInput: outside that range (the message gives the exact mu).
    """
    epsilon = check.positive(epsilon=epsilon)
    mu = epsilon / (2 * math.sqrt(-math.log(check.open_unit(delta=delta))))
    exact = gaussian.epsilon_from_mu(mu, delta)
    if exact > epsilon:
        raise InvalidInput(
            f"epsilon={epsilon:g} is outside the range of (9b) at delta={delta:g}: its noise gives the exact epsilon "
            f"{exact:.4f}; {exact_route(epsilon, delta, 'corn_renyi(...).mu')}."
        )
    return PublishedBound(
        mu,
        "mu",
        f"{_CORN}, (9b) and Proposition 1",
        errata("corn-proposition-1", "corn-proposition-1-proof", "corn-code-budget"),
        "bound for this epsilon and delta (checked), against an eavesdropper",
    )


def corn_equation_9_renyi(epsilon: float, delta: float) -> PublishedBound:
    """The mu allowed by inverting the Rényi bound, sqrt(2) (sqrt(L + epsilon) - sqrt(L)), L = log(1 / delta).

    >>> round(corn_equation_9_renyi(3.0, 1e-5).value, 4)
    0.589

    Source: public code of [CorN] arXiv:2501.14644v2, in place of (9b).
    Claims: (epsilon, delta) for every epsilon. Validity: "bound".
    Errata: `corn-code-budget`; looser than the exact `mu_from_epsilon` by what `corn-theorem-2` says.
    """
    mu, source = gaussian.mu_from_renyi(epsilon, delta), f"{_CORN}, public code, Theorem 2 inverted"
    return PublishedBound(mu, "mu", source, errata("corn-code-budget"), "bound against an eavesdropper")


def inverse_diagonal_limit(mu: float, *, clip_norm: float, num_steps: int) -> float:
    """r with mu = 2 C sqrt(T r): the right side of the constraint [R^-1]_ii <= r, for an exact or published mu."""
    T = check.integer_at_least(1, num_steps=num_steps)
    return check.positive(mu=mu) ** 2 / (4 * check.positive(clip_norm=clip_norm) ** 2 * T)


def _corn_slope(covariance: Any, clip_norm: float, num_steps: int) -> float:
    C = check.positive(clip_norm=clip_norm)
    T = check.integer_at_least(1, num_steps=num_steps)
    return 2 * C**2 * T * node_covariances.inverse_diagonal(covariance)

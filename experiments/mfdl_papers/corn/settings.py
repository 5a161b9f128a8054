"""What the figures of CorN-DSGD share: 20 nodes on random graphs, budgets, and the limit of the privacy constraint."""

from __future__ import annotations

from mfdl import gossip, graphs
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.privacy import gaussian

from ..figures.figure import RunScale
from .covariance_bounds import corn_equation_9_renyi, corn_equation_9b, inverse_diagonal_limit

EPSILONS = (3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)
NODES, DENSITY, EPSILON = 20, 0.5, 10.0
DELTA, CLIP_NORM, STEPS = 1e-5, 0.1, 5000


def graph_name(p: float, seed: int, n: int = NODES) -> str:
    """A connected Erdős-Rényi draw, as options name it."""
    return f"erdos-renyi:n={n},p={p:g},seed={seed}"


def dynamics(p: float, seed: int, n: int = NODES) -> Dynamics:
    """Metropolis-Hastings averaging on a draw."""
    return Dynamics(gossip.metropolis_hastings(graphs.load(graph_name(p, seed, n))))


def exact_limit(epsilon: float) -> float:
    """r of [R^-1]_ii <= r by the exact Gaussian conversion."""
    return inverse_diagonal_limit(gaussian.mu_from_epsilon(epsilon, DELTA), clip_norm=CLIP_NORM, num_steps=STEPS)


def published_limits(epsilon: float) -> dict[str, float | None]:
    """r of the paper's code and of its equation (9b), None where that is no bound."""
    limits: dict[str, float | None] = {}
    for name, bound in (("renyi (code)", corn_equation_9_renyi), ("(9b)", corn_equation_9b)):
        try:
            mu = float(bound(epsilon, DELTA).value)
            limits[name] = inverse_diagonal_limit(mu, clip_norm=CLIP_NORM, num_steps=STEPS)
        except InvalidInput:
            limits[name] = None
    return limits


def draws_of(scale: RunScale, quick: int, full: int) -> range:
    """Seeds of the draws, and of what is trained on them."""
    return range(scale.pick(quick, full))

"""Whisper D-SGD: its tables, and weights W designed together with the covariance R.

The paper leaves the joint design as future work: its objective tr(W R W^T), the noise left after one averaging, at the
price max_i [R^-1]_ii <= 1. It is convex in R for a given W (`optimal_covariance`) and in W for a given R
(`least_noise_weights`), not in both together. The two take turns from Metropolis-Hastings weights; each half is
certified, their limit need not be the best.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.optimize

from mfdl import graphs
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.factorization import optimal_covariance
from mfdl.factorization.seeded_covariances import SpatialFactorization
from mfdl.gossip import GossipMatrix, from_array, metropolis_hastings
from mfdl.pictures.line_charts import Panel
from mfdl.privacy import gaussian

from ..corn import corn_theorem
from ..corn.covariance_figures import (
    BUDGET,
    CLIP_NORM,
    DELTA,
    EPSILONS,
    NAMES,
    NODES,
    STEPS,
    TOLERANCE,
    Traces,
    draw_seeds,
    graph_name,
    in_order,
    traces,
)
from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import panel_numbers, panel_reproduction, spread, tracked
from ..figures.verdicts import Effect, Verdict
from . import whisper_theorem

DENSITIES = (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
HALF = 0.5  # share of the gap between LDP and CDP that counts as substantially narrowing it; the paper gives no number
CDP = 1 / NODES  # of the averages, at r = 1


def printed(epsilon: float) -> tuple[float, float]:
    """What (8) and the bound of the second version say of independent noise that has exactly this epsilon."""
    limit = gaussian.mu_from_epsilon(epsilon, DELTA) ** 2 / (4 * CLIP_NORM**2 * STEPS)
    noise = np.eye(NODES) / limit
    common: dict[str, Any] = {"delta": DELTA, "clip_norm": CLIP_NORM, "num_steps": STEPS}
    return float(whisper_theorem(noise, **common).value), float(corn_theorem(noise, **common).value)


def shares(draws: Sequence[Traces]) -> np.ndarray:
    """(LDP - Whisper) / (LDP - CDP) of each draw: how much of the gap is closed."""
    return np.array([(of_draw["LDP"] - of_draw["CorN"]) / (of_draw["LDP"] - CDP) for of_draw in draws])


def judged(says: Mapping[float, tuple[float, float]], by_p: Mapping[float, Sequence[Traces]]) -> list[Verdict]:
    """The printed bounds, the printed condition, the order of the noises, the gap."""
    ratios = {epsilon: first / epsilon for epsilon, (first, _) in says.items()}
    bound = Verdict(
        "(8) bounds epsilon",
        [Effect.exact(f"epsilon {e:g}", math.log(ratio) + 1e-9) for e, ratio in ratios.items()],
        f"it says {min(ratios.values()):.3g} to {max(ratios.values()):.3g} of the exact epsilon",
        value=min(ratios.values()),
    )
    L = -math.log(DELTA)
    inside = [Effect.exact(f"epsilon {e:g}", L - e) for e in says]
    words = f"{sum(e < L for e in says)} of {len(says)} budgets; L = {L:.3g}"
    condition = Verdict("its experiments keep its condition epsilon < log(1/delta)", inside, words)
    draws = {f"p = {p:g}, draw {i}": of_draw for p, some in by_p.items() for i, of_draw in enumerate(some)}
    order = in_order("it cancels more noise than pairwise correlation", draws)
    return [bound, condition, dataclasses.replace(order, value=None), _narrows(by_p)]


def _narrows(by_p: Mapping[float, Sequence[Traces]]) -> Verdict:
    closed = {p: shares(draws) for p, draws in by_p.items()}
    return Verdict(
        "it substantially narrows the gap between LDP and CDP (closes half of it)",
        [Effect.sampled(f"p = {p:g}", values, HALF) for p, values in closed.items()],
        "closes " + ", ".join(f"{values.mean():.2f} at p = {p:g}" for p, values in closed.items()),
        value=float(np.mean([values.mean() for values in closed.values()])),
    )


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Both tables."""
    seeds = draw_seeds(scale, 3, 10)
    cases = [(p, seed) for p in DENSITIES for seed in seeds]
    drawn = {(p, seed): traces(NODES, p, seed) for p, seed in tracked(scale, "covariances", cases)}
    by_p = {p: [drawn[p, seed] for seed in seeds] for p in DENSITIES}
    says = {epsilon: printed(epsilon) for epsilon in EPSILONS}
    privacy = [(f"{e:g}", f"{first:.4g}", f"{second:.4g}") for e, (first, second) in says.items()]
    noise = []
    for p, draws in by_p.items():
        means = (spread(np.array([of_draw[name] for of_draw in draws])) for name in NAMES)
        noise.append((f"{p:g}", *means, f"{CDP:g}", spread(shares(draws))))
    tables = [
        Table(f"epsilon of independent noise, delta = {DELTA:g}", ("exact", "(8)", "second version"), privacy),
        Table("tr(W R W^T) at r = 1", ("p", "LDP", "pairwise", "Whisper", "CDP", "gap closed"), noise),
    ]
    settings = {**BUDGET, "nodes": NODES, "draws": len(seeds)}
    numbers = {
        "epsilon": [{"exact": e, "(8)": first, "second version": second} for e, (first, second) in says.items()],
        "traces at r = 1": [{"p": p, "draw": i, **t} for p, draws in by_p.items() for i, t in enumerate(draws)],
    }
    return Reproduction(figure, scale, judged(says, by_p), tables, settings=settings, numbers=numbers)


# ---- weights and covariance designed together ------------------------------------------------------------------------

DESIGN_DENSITIES = (0.2, 0.4, 0.5, 0.6, 0.8)
ROUNDS, DECREASE = 40, 2e-3  # turns at most, and the relative decrease of the objective at which they end
LP_TOLERANCE = 1e-7  # by which HiGHS may violate constraints and reduced costs
HALF_TOLERANCE = 2e-3  # relative gap to which each half is to be certified


@dataclasses.dataclass(frozen=True)
class Weights:
    """Gossip weights W for a covariance.

    Attributes: objective: tr(W R W^T); lower_bound: no symmetric W >= 0 on the graph with rows of sum one has less.
    """

    gossip: GossipMatrix
    objective: float
    lower_bound: float

    @property
    def gap(self) -> float:
        return self.objective / self.lower_bound - 1


def least_noise_weights(graph: graphs.Source, covariance: FloatArray, start: FloatArray) -> Weights:
    """The symmetric weights on a graph that leave the least noise, tr(W R W^T).

    With W = I - sum_e w_e a_e a_e^T over edges, a_e = e_i - e_j, it is a quadratic program in w >= 0,
    sum_{e at i} w_e <= 1. A linear program bounds its minimum from below: f(w) + min_v f'(w) (v - w), as f is convex.

    Args: covariance: R, shape (n, n), positive semidefinite; start: weights W to start from, shape (n, n).
    Cost: that of sequential quadratic programming in the edges, 0.3 s for 150.
    """
    G = graphs.load(graph)
    tails, heads = np.nonzero(np.triu(graphs.adjacency(G).toarray(), 1))
    A, edges = np.zeros((len(G), len(tails))), np.arange(len(tails))
    A[tails, edges], A[heads, edges] = 1.0, -1.0
    across = A.T @ covariance @ A
    H, g, at_node = (A.T @ A) * across, across.diagonal(), np.abs(A)

    def slope(w: FloatArray) -> FloatArray:
        return np.asarray(2 * (H @ w - g))

    solution = scipy.optimize.minimize(
        lambda w: float(w @ H @ w - 2 * g @ w), np.asarray(start)[tails, heads], jac=slope, method="SLSQP",
        bounds=[(0.0, 1.0)] * len(edges), options={"maxiter": 500, "ftol": 1e-12},
        constraints={"type": "ineq", "fun": lambda w: 1 - at_node @ w, "jac": lambda w: -at_node},
    )  # fmt: skip
    w = np.clip(solution.x, 0.0, None)
    w /= max(1.0, float((at_node @ w).max()))
    W = np.maximum(np.eye(len(G)) - (A * w) @ A.T, 0.0)  # rounding of rows that keep nothing
    objective, down = float(np.einsum("ij,jk,ik->", W, covariance, W)), slope(w)
    least = scipy.optimize.linprog(down, A_ub=at_node, b_ub=np.ones(len(G)), bounds=(0, None)).fun
    error = LP_TOLERANCE * float(np.abs(down).sum() + len(edges))  # weights are at most one
    gap = max(float(down @ w - least), 0.0) + error
    return Weights(from_array(W, G, name="least noise"), objective, objective - gap)


@dataclasses.dataclass(frozen=True)
class JointDesign:
    """Both halves, and the objective after each turn; the first is that of R for Metropolis-Hastings weights."""

    weights: Weights
    covariance: SpatialFactorization
    objectives: Sequence[float]

    @property
    def gaps(self) -> tuple[float, float]:
        """Relative, of W for R before the last turn of R, and of R for W."""
        return self.weights.gap, self.covariance.gap


def joint_design(graph: graphs.Source) -> JointDesign:
    """Covariance and weights in turn until a turn gains less than `DECREASE`; R is the best for W, to `TOLERANCE`."""
    G = graphs.load(graph)
    gossip = metropolis_hastings(G)
    covariance = optimal_covariance(Dynamics(gossip), tolerance=TOLERANCE)
    objectives = [covariance.objective]
    while True:
        weights = least_noise_weights(G, covariance.covariance, gossip.weights.toarray())
        gossip = weights.gossip
        covariance = optimal_covariance(Dynamics(gossip), tolerance=TOLERANCE)
        objectives.append(covariance.objective)
        if len(objectives) > ROUNDS or objectives[-1] > objectives[-2] * (1 - DECREASE):
            return JointDesign(weights, covariance, objectives)


Numbers = Mapping[str, float]


def design_numbers(spec: str) -> dict[str, float]:
    """Noise left and mixing parameter, with the weights of Metropolis-Hastings and with ours."""
    design, before = joint_design(spec), metropolis_hastings(graphs.load(spec))
    independent = optimal_covariance(Dynamics(before), tolerance=TOLERANCE).independent_objective
    assert independent is not None
    return {
        "LDP": independent,
        "covariance alone": design.objectives[0],
        "weights and covariance": design.objectives[-1],
        "mixing before": before.mixing_parameter,
        "mixing after": design.weights.gossip.mixing_parameter,
        "gap": max(design.gaps),
        "turns": float(len(design.objectives) - 1),
    }


def judged_design(by_p: Mapping[float, Sequence[Numbers]]) -> list[Verdict]:
    """Less noise than the covariance alone, as fast mixing, and both halves certified."""

    def logs(above: str, below: str) -> dict[float, list[float]]:
        return {p: [float(np.log(of_draw[above] / of_draw[below])) for of_draw in draws] for p, draws in by_p.items()}

    gains, mixing = logs("covariance alone", "weights and covariance"), logs("mixing after", "mixing before")
    words = ", ".join(f"{1 - np.exp(-np.mean(gain)):.0%} at p = {p:g}" for p, gain in gains.items())
    spectral = ", ".join(f"{np.exp(np.mean(ratio)):.2f} at p = {p:g}" for p, ratio in mixing.items())
    gap = max(of_draw["gap"] for draws in by_p.values() for of_draw in draws)
    return [
        Verdict(
            "weights designed with the covariance leave less noise than the covariance alone",
            [Effect.sampled(f"p = {p:g}", gain) for p, gain in gains.items()],
            f"less by {words}",
        ),
        Verdict(
            "they average no slower than Metropolis-Hastings weights (mixing parameter)",
            [Effect.sampled(f"p = {p:g}", ratio) for p, ratio in mixing.items()],
            f"mixing parameter times {spectral}",
        ),
        Verdict(
            f"either half is within {HALF_TOLERANCE:g} of its optimum",
            [Effect.exact("every draw", HALF_TOLERANCE - gap)],
            f"gaps up to {gap:.2g}",
        ),
    ]


def run_joint_design(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Noise left by density, with and without designed weights."""
    seeds = draw_seeds(scale, 3, 10)
    specs = {p: [graph_name(p, seed) for seed in seeds] for p in DESIGN_DENSITIES}
    every = [spec for some in specs.values() for spec in some]
    drawn = {spec: design_numbers(spec) for spec in tracked(scale, "designs", every)}
    by_p = {p: [drawn[spec] for spec in some] for p, some in specs.items()}

    def by_density(name: str) -> np.ndarray:
        return np.array([[of_draw[name] for of_draw in draws] for draws in by_p.values()])

    noise_left = {name: by_density(name) for name in ("LDP", "covariance alone", "weights and covariance")}
    mixing = {"covariance alone": by_density("mixing before"), "weights and covariance": by_density("mixing after")}
    panels = [
        Panel("noise left", "density p", "tr(W R W^T) at r = 1", DESIGN_DENSITIES, noise_left),
        Panel("mixing", "density p", "mixing parameter", DESIGN_DENSITIES, mixing),
    ]
    words = "Weights and covariance designed together", f"{NODES} nodes, connected Erdős-Rényi draws, r = 1."
    settings = {"nodes": NODES, "draws": len(seeds), "tolerance": TOLERANCE, "rounds": ROUNDS}
    numbers: dict[str, Any] = {"panels": panel_numbers(panels)}
    numbers["gaps"] = [float(x) for x in by_density("gap").ravel()]
    numbers["turns"] = [int(x) for x in by_density("turns").ravel()]
    return panel_reproduction(figure, scale, judged_design(by_p), panels, words, settings=settings, numbers=numbers)

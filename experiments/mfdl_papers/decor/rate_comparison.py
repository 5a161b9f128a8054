"""DECOR's price of privacy beside lower bounds and Muffliato: how the excess loss falls with the number of nodes.

All are up to constants and logarithms, for d coordinates, n nodes and a budget epsilon, as DECOR's text compares them:

- central: d / (n^2 epsilon^2), the lower bound with a trusted server;
- local: d / (n epsilon^2), the lower bound where everything that leaves a node is private by itself;
- Muffliato: d k_max / (sqrt(p) n^2 epsilon^2), k_max the largest degree and p of `mixing_parameter`;
- DECOR: the privacy term of `decor_rate`, which has its constants.

Beside them, for noise that cancels along edges, the bounds of DECOR (Theorem 1) and of Sabater et al. (`flow_theorem`),
over the exact loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfdl import check, gossip, graphs
from mfdl.pictures.line_charts import Panel

from ..figures import PublishedFigure, Reproduction, RunScale
from ..figures.trained_panels import panel_reproduction
from ..figures.verdicts import Effect, Verdict
from . import decor_accountant, decor_theorem, flow_theorem
from .convergence import decor_rate

SIZES, FAMILIES = (16, 36, 64, 100), ("ring", "torus", "complete")
EPSILON, DELTA, DIMENSION = 1.0, 1e-5, 10
ROUNDING = 1e-9
BOUNDS = {"DECOR, Theorem 1": decor_theorem, "Sabater et al., Theorem 1": flow_theorem}
PAIRS = tuple(float(x) for x in np.geomspace(0.1, 100, 13))
"""sigma_cor over sigma_ldp where the bounds are compared, on the smallest graphs."""
Rates = Mapping[str, np.ndarray]
"""By line one number per size."""


def central_rate(num_nodes: int, *, epsilon: float, dimension: int) -> float:
    """d / (n^2 epsilon^2), up to constants: no central algorithm has less excess loss (strongly convex losses).

    Source: arXiv:2405.01031, after Corollary 3.
    """
    return local_rate(num_nodes, epsilon=epsilon, dimension=dimension) / num_nodes


def local_rate(num_nodes: int, *, epsilon: float, dimension: int) -> float:
    """d / (n epsilon^2), up to constants: that of local differential privacy. Source: `central_rate`'s."""
    n, d = check.integer_at_least(1, num_nodes=num_nodes), check.integer_at_least(1, dimension=dimension)
    return d / (n * check.positive(epsilon=epsilon) ** 2)


def muffliato_rate(graph: graphs.Source, *, epsilon: float, dimension: int) -> float:
    """d k_max / (sqrt(p) n^2 epsilon^2), up to constants, as DECOR gives Muffliato's; Metropolis-Hastings weights.

    Raises: InvalidInput: a graph that does not mix.
    Source: arXiv:2405.01031, after Corollary 3, of arXiv:2206.05091.
    """
    G = graphs.load(graph)
    degree = max(degree for _, degree in G.degree)
    p = gossip.metropolis_hastings(G).mixing_parameter
    return central_rate(len(G), epsilon=epsilon, dimension=dimension) * degree / math.sqrt(check.positive(mixing=p))


def rates(family: str) -> dict[str, np.ndarray]:
    """The four lines over `SIZES`."""
    common: dict[str, Any] = {"epsilon": EPSILON, "dimension": DIMENSION}
    specs = [f"{family}:n={n}" for n in SIZES]
    decor = [
        decor_rate(spec, delta=DELTA, num_steps=1, smoothness=1.0, pl_constant=1.0, **common).privacy for spec in specs
    ]
    return {
        "local": np.array([local_rate(n, **common) for n in SIZES]),
        "Muffliato": np.array([muffliato_rate(spec, **common) for spec in specs]),
        "DECOR": np.array(decor),
        "central": np.array([central_rate(n, **common) for n in SIZES]),
    }


def bounds_over_exact(family: str) -> dict[str, np.ndarray]:
    """Each bound over the exact slope, at every pairwise noise."""
    graph = f"{family}:n={SIZES[0]}"
    slopes = {
        name: np.array([float(bound(graph, sigma_ldp=1.0, sigma_cor=pair).value) for pair in PAIRS])
        for name, bound in (BOUNDS | {"exact": decor_accountant}).items()
    }
    return {name: slopes[name] / slopes["exact"] for name in BOUNDS}


def judged_bounds(ratios: Mapping[str, Rates]) -> Verdict:
    """The exact loss is below both bounds; which of the two is lower depends on the noise."""
    effects = [
        Effect.exact(f"{family}, {name}", float(ratio.min()) - 1 + ROUNDING)
        for family, some in ratios.items()
        for name, ratio in some.items()
    ]
    ours, theirs = (np.array([some[name] for some in ratios.values()]) for name in BOUNDS)
    words = f"Theorem 1 of DECOR is up to {ours.max():.3g} times the exact loss and the lower of the two at "
    words += f"{int((ours < theirs - ROUNDING).sum())} of {ours.size} points; that of Sabater et al. is the lower at "
    words += f"{int((theirs < ours - ROUNDING).sum())}, down to {float((theirs / ours).min()):.3g} of DECOR's"
    return Verdict("both bounds on noise that cancels along edges are above the exact loss", effects, words)


def judged(lines: Mapping[str, Rates]) -> list[Verdict]:
    """DECOR falls as the central bound does on every graph; Muffliato's is above it by a factor that grows."""
    ratios = {family: some["DECOR"] / some["central"] for family, some in lines.items()}
    parallel = [Effect.exact(family, ROUNDING - float(np.ptp(np.log(ratio)))) for family, ratio in ratios.items()]
    constant = float(np.mean([ratio.mean() for ratio in ratios.values()]))
    words = f"DECOR / central is {constant:.4g} (32 log(1/delta)) at every graph and size"
    above = {family: some["Muffliato"] / some["central"] for family, some in lines.items()}
    factors = ", ".join(f"{family} {factor[0]:.3g} to {factor[-1]:.3g}" for family, factor in above.items())
    grows = [
        Effect.exact(f"{family}, n = {n}", float(np.log(factor[i + 1] / factor[i])))
        for family, factor in above.items()
        for i, n in enumerate(SIZES[1:])
    ]
    claim = "the price of DECOR falls as 1 / n^2, as the central lower bound, on every connected graph"
    other = "Muffliato's is above the central bound by k_max / sqrt(p), which grows with n"
    return [Verdict(claim, parallel, words), Verdict(other, grows, factors)]


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """The four lines on ring, torus and complete graph."""
    lines = {family: rates(family) for family in FAMILIES}
    ratios = {family: bounds_over_exact(family) for family in FAMILIES}

    def panel(title: str, labels: tuple[str, str], x: Sequence[float], rates: Rates, **more: Any) -> Panel:
        return Panel(title, *labels, x, {name: v[:, None] for name, v in rates.items()}, log_x=True, **more)

    loss, noise = ("nodes n", "excess loss, up to constants"), ("sigma_cor / sigma_ldp", "bound / exact loss")
    panels = [panel(family, loss, SIZES, some, dashed=("local", "central")) for family, some in lines.items()]
    panels += [panel(f"{family}, n = {SIZES[0]}", noise, PAIRS, some) for family, some in ratios.items()]
    caption = (
        f"d = {DIMENSION}, epsilon = {EPSILON:g}, smoothness and PL constant 1; DECOR with its constants at "
        f"delta = {DELTA:g}, the others without. Metropolis-Hastings weights."
    )
    verdicts = [*judged(lines), judged_bounds(ratios)]
    words = "DECOR and the central lower bound fall as 1 / n^2", caption
    settings = {"epsilon": EPSILON, "delta": DELTA, "dimension": DIMENSION, "sizes": list(SIZES)}
    return panel_reproduction(figure, scale, verdicts, panels, words, settings=settings)

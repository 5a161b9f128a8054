"""DECOR, Appendix D.1: the search of pairs (sigma_ldp, sigma_cor) for a budget, and whether they keep it.

The published search, as its code runs it: 50 places of sigma_ldp between CDP's and LDP's noise, for each sigma_cor
on a grid of 1 to 1000, taken as soon as the loss of a step is above its budget by less than 1e-4. Ours
(`decor_deviations`) gives for each place the least sigma_cor that keeps the budget, by the exact accountant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfdl import Privacy, gossip, graphs, node_covariances
from mfdl.decor_search import decor_deviations
from mfdl.dynamics import Dynamics
from mfdl.participation import EveryStep
from mfdl.pictures.line_charts import Panel
from mfdl.privacy import gaussian

from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import panel_reproduction
from ..figures.verdicts import Effect, Verdict
from .budget_curves import GRAPH_COLOURS, GRAPHS

EPSILONS, QUICK_EPSILONS = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0), (3.0, 10.0, 40.0)
NODES, STEPS, DELTA = 16, 3500, 1e-5
ROUNDING = 1e-9
PLACES, PAIRS, SLACK = 50, np.linspace(1, 1000, 1000), 1e-4
POSITIONS = (0.02, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
STORED = {"ring": (1.27, 3.59, 6.11, 8.14, 10.46, 15.70, 20.45, 25.72, 30.29, 40.20)}
"""Epsilons of the pairs behind the published Figure 1 (a), by the paper's own conversion, for `EPSILONS`."""
Deviations = tuple[float, float]
SearchResults = Mapping[tuple[str, float], list[tuple[Deviations, float]]]


def step_budget(epsilon: float) -> float:
    """The Renyi slope of one step that the paper allows."""
    L = -math.log(DELTA)
    return (math.sqrt(L + epsilon) - math.sqrt(L)) ** 2 / STEPS


def converted(slope: float) -> float:
    """Back to epsilon, by the paper's conversion."""
    total = STEPS * slope
    return total + 2 * math.sqrt(-total * math.log(DELTA))


def published_search(spec: str, epsilon: float) -> list[tuple[Deviations, float]]:
    """Pairs in order of sigma_ldp, with the epsilon that they have by the paper's own conversion; C = 1."""
    eigenvalues, vectors = np.linalg.eigh(node_covariances.laplacian(graphs.load(spec)).toarray())
    squares, budget = vectors**2, step_budget(epsilon)

    def slope(local: float, pair: float) -> float:
        return 2 * float((squares / (local**2 + pair**2 * np.maximum(eigenvalues, 0))).sum(axis=1).max())

    highest = math.sqrt(2 / budget)
    pairs_in_order = []
    for local in np.linspace(highest / math.sqrt(NODES), highest, PLACES):
        pairs = PAIRS
        while len(pairs) > 1 and slope(local, pairs[-1]) <= budget:
            middle = slope(local, pairs[len(pairs) // 2])
            if 0 < middle - budget < SLACK:
                pairs = pairs[len(pairs) // 2 :][:1]
            else:
                pairs = pairs[len(pairs) // 2 :] if middle > budget else pairs[: len(pairs) // 2]
        if len(pairs) == 1:
            pairs_in_order.append(((float(local), float(pairs[0])), converted(slope(local, float(pairs[0])))))
    return pairs_in_order


def own_search(spec: str, epsilon: float) -> list[tuple[Deviations, float]]:
    """The library's pairs, with the exact epsilon that they are certified for."""
    dynamics = Dynamics(gossip.metropolis_hastings(spec))
    privacy = Privacy(adjacency="replace-one", clip_norm=1.0, unit="user")
    target: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "positions": POSITIONS}
    pairs = decor_deviations(dynamics, EveryStep(STEPS), privacy, **target)
    return [((c.sigma_ldp, c.sigma_cor), c.mechanism.guarantee.epsilon(DELTA)) for c in pairs]


def judged(published: SearchResults, exact: SearchResults) -> list[Verdict]:
    """Whether the pairs of either search keep their budgets, and whether pairwise noise buys private noise."""
    every, ours = _ratios(published), _ratios(exact)
    for graph, stored in STORED.items():
        every += [(f"stored, {graph}, {target:g}", e / target) for target, e in zip(EPSILONS, stored, strict=True)]
    ratios, spent = ([ratio for _, ratio in some] for some in (every, ours))
    excess = f"{sum(ratio > 1 + ROUNDING for ratio in ratios)} of {len(ratios)} pairs exceed their budget, "
    excess += f"by up to {max(ratios) - 1:.1%}"
    search = Verdict("every pair of the search keeps its budget", _within(every), excess, value=max(ratios))
    words = f"{sum(ratio > 1 + ROUNDING for ratio in spent)} of {len(spent)} exceed it; "
    words += f"the least spends {min(spent):.4%}"
    exact_pairs = Verdict("every pair of ours keeps its budget", _within(ours), words, value=max(spent))
    return [search, exact_pairs, _reach(exact)]


def _ratios(results: SearchResults) -> list[tuple[str, float]]:
    return [(f"{graph}, {target:g}", e / target) for (graph, target), some in results.items() for _, e in some]


def _within(ratios: Sequence[tuple[str, float]]) -> list[Effect]:
    """Effects of "the epsilon spent is at most the budget": the largest ratio at each graph and budget."""
    largest: dict[str, float] = {}
    for at, ratio in ratios:
        largest[at] = max(ratio, largest.get(at, 0.0))
    return [Effect.exact(at, 1 + 2 * ROUNDING - ratio) for at, ratio in largest.items()]


def _reach(exact: SearchResults) -> Verdict:
    """The first pair of each search, relative to LDP's noise."""
    first = {
        f"{graph}, {target:g}": (local / gaussian_ldp(target), pair / gaussian_ldp(target))
        for (graph, target), some in exact.items()
        for (local, pair), _ in some[:1]
    }
    locals_, pairs = zip(*first.values(), strict=True)
    limit = 1.1 * (1 / 4 + POSITIONS[0] * 3 / 4)
    return Verdict(
        "sigma_ldp can be anywhere down to CDP's, 1 / sqrt(n) of LDP's",
        [Effect.exact(at, limit - local) for at, (local, _) in first.items()],
        f"{min(locals_):.3f} to {max(locals_):.3f} of LDP's, at sigma_cor {min(pairs):.3g} to {max(pairs):.3g} times "
        "LDP's noise",
        value=min(locals_),
    )


def gaussian_ldp(epsilon: float) -> float:
    """sigma of LDP at C = 1, exactly."""
    return 2 * math.sqrt(STEPS) / gaussian.mu_from_epsilon(epsilon, DELTA)


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Searches, and draws pairs relative to LDP's noise."""
    epsilons = scale.pick(QUICK_EPSILONS, EPSILONS)
    published = {(graph, e): published_search(spec, e) for graph, spec in GRAPHS.items() for e in epsilons}
    exact = {(graph, e): own_search(spec, e) for graph, spec in GRAPHS.items() for e in epsilons}
    verdicts = judged(published, exact)
    middle_epsilon = epsilons[len(epsilons) // 2]
    ldp = gaussian_ldp(middle_epsilon)
    lines = {graph: np.array([[pair / ldp] for (_, pair), _ in exact[graph, middle_epsilon]]) for graph in GRAPHS}
    panel = Panel(
        f"pairs for epsilon = {middle_epsilon:g}", "sigma_ldp from CDP's noise (0) to LDP's (1)",
        "sigma_cor over LDP's noise", POSITIONS, lines, colours=GRAPH_COLOURS,
    )  # fmt: skip
    first = {
        graph: np.array([[some[0][1] / e if (some := published[graph, e]) else np.nan] for e in epsilons])
        for graph in GRAPHS
    }
    budgets = Panel(
        "the first pair of the published search", "budget epsilon", "epsilon it has, over the budget", epsilons,
        first | {"the budget": np.ones((len(epsilons), 1))}, log_x=True, log_y=False, dashed=("the budget",),
        colours={**GRAPH_COLOURS, "the budget": "CDP"},
    )  # fmt: skip
    rows = []
    for graph, e in itertools.product(GRAPHS, epsilons):
        some, search = exact[graph, e], published[graph, e]
        deviations = (f"{local:.4g}, {pair:.4g}" for (local, pair), _ in (some[0], some[len(some) // 2], some[-1]))
        rows.append((graph, f"{e:g}", *deviations, f"{search[0][1]:.4g}" if search else "none found"))
    columns = ("graph", "epsilon", "small", "middle", "large", "published, first: epsilon")
    caption = (
        f"{NODES} nodes, user level, T = {STEPS}, C = 1, delta = {DELTA:g}, replace-one, an eavesdropper. Left: the "
        "least sigma_cor that keeps the budget exactly, the same picture for every budget. Right: the search as its "
        "code runs it, judged by the paper's own conversion."
    )
    settings = {"steps": STEPS, "delta": DELTA, "clip_norm": 1.0, "epsilons": list(epsilons)}
    settings["positions"] = list(POSITIONS)
    words = f"DECOR, Appendix D.1: of the published search {verdicts[0].finding}", caption
    tables = [Table("pairs (sigma_ldp, sigma_cor)", columns, rows)]
    return panel_reproduction(figure, scale, verdicts, [panel, budgets], words, tables=tables, settings=settings)

"""DECOR, Appendix D.1, at example level: what the pairs of the search are worth at the delta that they are used with.

The search has sigma_ldp in [C / 1000, C / 20] and sigma_cor in [C / 2000, C / 10], on the mean of 64 clipped gradients.
Its code takes for the epsilon of a pair the Rényi divergence of one sampled step at order 2, without the number of
steps and without delta. The pairs that this accepts are judged by the paper's own accountant (Wang et al., composed
over the steps and converted) and by the library's for Poisson sampling; beside them the pairs of ours in the same box.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy.optimize

from mfdl import graphs, node_covariances
from mfdl.pictures.line_charts import Panel
from mfdl.privacy.curves import PoissonGaussian

from ..figures.published_figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import numbers_of, of_panels
from ..figures.verdicts import Effect, Verdict
from .accountant import BATCH, DELTA, NODES, RECORDS, STEPS, example_level
from .budget_curves import GRAPH_COLOURS, GRAPHS
from .mnist import EPSILONS
from .subsampled_renyi import sampled_epsilon, sampled_renyi

LOCAL, PAIR = (1 / 1000, 1 / 20), (1 / 2000, 1 / 10)
"""The box of sigma_ldp and sigma_cor, at C = 1."""
PLACES, QUICK_PLACES = 50, 5
RATE = BATCH / RECORDS
ROUNDING = 1e-9
Pair = tuple[float, float]
Pairs = Mapping[tuple[str, float], Sequence[tuple[Pair, float]]]
"""By graph and budget: pairs with the worst [R^-1]_ii, which their epsilon follows from."""


def coded(inverse: float) -> float:
    """What the code calls epsilon, of [R^-1]_ii: a record replaced moves the mean of a batch by 2 C / 64."""
    return sampled_renyi(2 * inverse / BATCH**2, order=2, rate=RATE)


def _accepts(label: float, inverse: float) -> bool:
    return coded(inverse) <= label


def composed(inverse: float) -> float:
    """Epsilon by the accountant of Wang et al. over all steps, replace-one."""
    return float(sampled_epsilon(2 * inverse / BATCH**2, DELTA, rate=RATE, num_steps=STEPS).value)


def largest_inverse(allowed: Callable[[float], bool]) -> float:
    """The largest [R^-1]_ii that is allowed, to a relative 1e-6, never above it."""
    low, high = 1.0, 1e9  # of any noise in the box, and far beyond
    while high > low * (1 + 1e-6):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def inverse_within(epsilon: float) -> float:
    """The largest [R^-1]_ii whose epsilon is certified to be at most the budget (Poisson sampling, zero-out)."""
    curve = PoissonGaussian(1.0, RATE, STEPS, "zero-out")
    multiplier = curve.least_multiplier(epsilon, DELTA)
    return (BATCH / multiplier) ** 2


def pairs_within(spec: str, inverse: float, places: int) -> list[tuple[Pair, float]]:
    """At each place of sigma_ldp the least sigma_cor of the box at which no [R^-1]_ii is above the given one."""
    eigenvalues, vectors = np.linalg.eigh(node_covariances.laplacian(graphs.load(spec)).toarray())
    squares, eigenvalues = vectors**2, np.maximum(eigenvalues, 0.0)

    def worst(local: float, pair: float) -> float:
        return float((squares / (local**2 + pair**2 * eigenvalues)).sum(axis=1).max())

    pairs: list[tuple[Pair, float]] = []
    for local in map(float, np.linspace(*LOCAL, places)):
        if worst(local, PAIR[1]) > inverse:
            continue
        least = PAIR[0]
        if worst(local, least) > inverse:
            least = scipy.optimize.brentq(lambda pair, at=local: worst(at, pair) - inverse, *PAIR, xtol=1e-12)
            while worst(local, least) > inverse:
                least *= 1 + 1e-9
        pairs.append(((local, least), worst(local, least)))
    return pairs


def judged(published: Pairs, ours: Pairs) -> list[Verdict]:
    """Whether the pairs of either search keep the number that they are labelled with."""
    spent = {at: (example_level(some[0][1]), composed(some[0][1])) for at, some in published.items()}
    labels = sorted(set(EPSILONS.values()))
    words = ", ".join(
        f"{label:g}: {min(low for (_, at), (low, _) in spent.items() if at == label):.3g} to "
        f"{max(high for (_, at), (_, high) in spent.items() if at == label):.4g}"
        for label in labels
    )
    keeps = Verdict(
        "every pair of the search has the epsilon of its label at delta = 1e-5",
        [Effect.exact(f"{graph}, {label:g}", 1 + ROUNDING - low / label) for (graph, label), (low, _) in spent.items()],
        f"epsilon by label, library (Poisson, zero-out) to paper's accountant (replace-one): {words}",
        value=min(low / label for (_, label), (low, _) in spent.items()),
    )
    shares_spent = {at: [example_level(inverse) / at[1] for _, inverse in _ends(some)] for at, some in ours.items()}
    exact = Verdict(
        "every pair of ours keeps its budget, inside the box",
        [
            Effect.exact(f"{graph}, {budget:g}", 1 + 1e-6 - max(ratios, default=np.inf))
            for (graph, budget), ratios in shares_spent.items()
        ],
        f"of {sum(map(len, ours.values()))} pairs the largest part spent is "
        f"{max(max(ratios, default=np.nan) for ratios in shares_spent.values()):.6f}",
    )
    return [keeps, exact]


def _ends(pairs: Sequence[tuple[Pair, float]]) -> Sequence[tuple[Pair, float]]:
    """First and last."""
    return pairs if len(pairs) < 3 else [pairs[0], pairs[-1]]


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Both searches on the three graphs."""
    places = scale.pick(QUICK_PLACES, PLACES)
    coded_limits = {label: largest_inverse(functools.partial(_accepts, label)) for label in EPSILONS.values()}
    limits = {budget: inverse_within(budget) for budget in EPSILONS}
    published = {
        (graph, label): pairs_within(spec, limit, places)
        for graph, spec in GRAPHS.items()
        for label, limit in coded_limits.items()
    }
    ours = {
        (graph, budget): pairs_within(spec, limit, places)
        for graph, spec in GRAPHS.items()
        for budget, limit in limits.items()
    }
    smallest = min(EPSILONS)
    panels = [
        Panel(
            f"{graph}: pairs of ours for epsilon = {smallest:g}", "sigma_ldp / C", "sigma_cor / C",
            [local for (local, _), _ in ours[graph, smallest]],
            {graph: np.array([[pair] for (_, pair), _ in ours[graph, smallest]])}, colours=GRAPH_COLOURS,
        )
        for graph in GRAPHS
    ]  # fmt: skip
    rows = [
        (f"{label:g}", f"{example_level(limit):.3g}", f"{composed(limit):.4g}") for label, limit in coded_limits.items()
    ]
    verdicts = judged(published, ours)
    caption = (
        f"{NODES} nodes, batch {BATCH} of {RECORDS}, T = {STEPS}, C = 1, delta = {DELTA:g}, an eavesdropper. Ours: the "
        "least sigma_cor that keeps the budget by the library's bound for Poisson sampling, zero-out."
    )
    return of_panels(
        figure,
        scale,
        verdicts,
        panels,
        ("DECOR, Appendix D.1 at example level: labels of the search are no epsilon", caption),
        tables=[Table("what a label of the search is worth", ("label", "library", "Wang et al., composed"), rows)],
        settings={"steps": STEPS, "delta": DELTA, "batch": BATCH, "records": RECORDS, "places": places},
        numbers={"panels": [numbers_of(panel) for panel in panels]},
    )

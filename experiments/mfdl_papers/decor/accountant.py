"""DECOR, Figures 2 and 3: epsilon against the pairwise noise, by the accountant of Algorithms 2 and 3.

Figure 2 is at user level, Figure 3 at example level with batches drawn by Poisson sampling; each for an eavesdropper
(q = 0) and for any one curious node (q = 1), between all secrets known (LDP) and all noise averaged (CDP).

Appendix D.1, at example level: what the pairs of the search are worth at the delta that they are used with. Its code
takes for the epsilon of a pair the Rényi divergence of one sampled step at order 2, without the number of steps and
without delta. The pairs that this accepts are judged by the paper's own accountant (Wang et al., composed over the
steps and converted) and by the library's for Poisson sampling; beside them the pairs of ours in the same box.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.optimize

from mfdl import graphs, node_covariances
from mfdl.pictures.line_charts import Panel
from mfdl.privacy import gaussian
from mfdl.privacy.curves import PoissonGaussian

from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import panel_reproduction
from ..figures.verdicts import Effect, Verdict
from . import decor_accountant, decor_theorem, sampled_epsilon, sampled_renyi
from .budget_curves import GRAPH_COLOURS, GRAPHS
from .mnist import EPSILONS

NODES, STEPS, DELTA = 16, 1000, 1e-5
SIGMA_LOCAL = 50.0  # C = 1: epsilon = 5.7 if all noise is averaged
EXAMPLE_LOCAL, BATCH, RECORDS = 5 / 1000, 64, 3750  # C = 1, of the mean over a batch
RATE = BATCH / RECORDS
RATIOS = tuple(10.0 ** np.arange(-1, 3.01, 0.25))
QUICK_RATIOS = (0.1, 1.0, 10.0, 100.0, 1000.0)
CURIOUS = (0, 1)
ROUNDING = 1e-9
FLOOR = 1.05  # up to this factor of the noise-averaged epsilon a curve has reached it
Epsilon = Callable[[float], float]  # from [R^-1]_ii, of one step, to epsilon of all
Lines = Mapping[str, np.ndarray]


def user_level(inverse: float) -> float:
    """Exact epsilon of T full-batch steps at C = 1, replace-one."""
    return gaussian.epsilon_from_mu(2 * np.sqrt(STEPS * inverse), DELTA)


def example_level(inverse: float) -> float:
    """The library's bound for T Poisson-sampled steps, a record moving the mean over a batch by C / 64, zero-out."""
    return PoissonGaussian(float(BATCH / np.sqrt(inverse)), RATE, STEPS, "zero-out").epsilon(DELTA)


def curves(local: float, ratios: Sequence[float], q: int, epsilon: Epsilon) -> dict[str, np.ndarray]:
    """By graph the exact epsilon at each sigma_cor / sigma_ldp, Theorem 1, "LDP" and "CDP"; (ratios,)."""
    lines: dict[str, np.ndarray] = {}
    for bound, name in ((decor_accountant, "{}"), (decor_theorem, "{}, Theorem 1")):
        for graph, spec in GRAPHS.items():
            slopes = [bound(spec, sigma_ldp=local, sigma_cor=ratio * local, num_colluders=q).value for ratio in ratios]
            lines[name.format(graph)] = np.array([epsilon(float(slope) / 2) for slope in slopes])
    lines["LDP"] = np.full(len(ratios), epsilon(1 / local**2))
    lines["CDP"] = np.full(len(ratios), epsilon(1 / ((NODES - q) * local**2)))
    return lines


def judged(by_q: Mapping[int, Lines]) -> list[Verdict]:
    """The floor, the order of the graphs, the bound of the theorem, the price of curiosity."""
    return [_floor(by_q), _order(by_q), _theorem(by_q), _curious(by_q)]


def _at_most(at: str, lower: np.ndarray, upper: np.ndarray) -> Effect:
    """Effect of "one curve is nowhere above another": the least logarithm of their ratio."""
    return Effect.exact(at, float(np.min(np.log(upper) - np.log(lower))) + ROUNDING)


def _floor(by_q: Mapping[int, Lines]) -> Verdict:
    effects, ends = [], []
    for q, lines in by_q.items():
        for graph in GRAPHS:
            end = float(lines[graph][-1] / lines["CDP"][-1])
            effects.append(_at_most(f"q = {q}, {graph}: falls", lines[graph][1:], lines[graph][:-1]))
            effects.append(Effect.exact(f"q = {q}, {graph}: end", math.log(FLOOR / end)))
            ends.append(end)
    start = max(lines["LDP"][0] / lines["CDP"][0] for lines in by_q.values())
    words = f"from {start:.3g} times CDP's (LDP) to {max(ends):.4g} times at most"
    return Verdict("on every connected graph pairwise noise lowers epsilon to that of CDP", effects, words, max(ends))


def _order(by_q: Mapping[int, Lines]) -> Verdict:
    effects = [
        _at_most(f"q = {q}: {denser}, {sparser}", lines[denser], lines[sparser])
        for q, lines in by_q.items()
        for denser, sparser in (("complete", "torus"), ("torus", "ring"))
    ]
    middle = {graph: by_q[0][graph][len(by_q[0][graph]) // 2] for graph in GRAPHS}
    words = "epsilon half way: " + ", ".join(f"{graph} {value:.3g}" for graph, value in middle.items())
    return Verdict("the better connected the graph, the less pairwise noise it takes", effects, words)


def _theorem(by_q: Mapping[int, Lines]) -> Verdict:
    points = [(q, graph, lines[f"{graph}, Theorem 1"], lines[graph]) for q, lines in by_q.items() for graph in GRAPHS]
    effects = [_at_most(f"q = {q}, {graph}", exact, bound) for q, graph, bound, exact in points]
    highest = max(float(np.max(bound / exact)) for _, _, bound, exact in points)
    words = f"up to {highest:.3g} times its epsilon"
    return Verdict("Theorem 1 (6 with colluders) is never below the accountant", effects, words, highest)


def _curious(by_q: Mapping[int, Lines]) -> Verdict:
    worst = max(float(np.max(by_q[1][graph] / by_q[0][graph])) for graph in GRAPHS)
    effects = [_at_most(graph, by_q[0][graph], by_q[1][graph]) for graph in GRAPHS]
    return Verdict("a curious node learns no less than an eavesdropper", effects, f"up to {worst:.3g} times", worst)


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Figure 2 or 3."""
    example = figure.name == "decor-3"
    local, epsilon = (EXAMPLE_LOCAL, example_level) if example else (SIGMA_LOCAL, user_level)
    ratios = scale.pick(QUICK_RATIOS, RATIOS) if example else RATIOS
    by_q = {q: curves(local, ratios, q, epsilon) for q in CURIOUS}
    verdicts = judged(by_q)
    colours = {f"{graph}{bound}": GRAPH_COLOURS[graph] for bound in ("", ", Theorem 1") for graph in GRAPHS}
    dashed = [*(name for name in colours if name not in GRAPHS), "LDP", "CDP"]
    x_label, y_label = "sigma_cor / sigma_ldp", f"{'example' if example else 'user'}-level epsilon"
    panels = []
    for q, lines in by_q.items():
        attacker = "an eavesdropper (q = 0)" if q == 0 else "any one curious node (q = 1)"
        columns = {name: values[:, None] for name, values in lines.items()}
        panels.append(Panel(attacker, x_label, y_label, ratios, columns, log_x=True, dashed=dashed, colours=colours))
    sampled = f"example level, batch {BATCH} of {RECORDS} by Poisson sampling, zero-out"
    level = sampled if example else "user level, replace-one"
    caption = (
        f"{NODES} nodes, {level}, T = {STEPS}, C = 1, delta = {DELTA:g}, sigma_ldp = {local:g}. Full lines: "
        "Algorithms 2 and 3; dashed in the same colour: Theorem 1; LDP: all secrets known; CDP: all noise averaged."
    )
    of_run = {"steps": STEPS, "delta": DELTA, "clip_norm": 1.0, "sigma_ldp": local, "graphs": GRAPHS}
    title = f"DECOR, {figure.figure}: pairwise noise takes epsilon {verdicts[0].finding}"
    done = panel_reproduction(figure, scale, verdicts, panels, (title, caption), settings=of_run)
    return dataclasses.replace(done, tables=[*done.tables, _published_accountant(by_q[0], ratios)]) if example else done


def _published_accountant(lines: Mapping[str, np.ndarray], ratios: Sequence[float]) -> Table:
    """Epsilon by this library and by the paper's accountant, q = 0, replace-one: sensitivity 2 C / 64."""
    rows = []
    for graph, spec in GRAPHS.items():
        for ratio, ours in zip(ratios, lines[graph], strict=True):
            noise: dict[str, Any] = {"sigma_ldp": EXAMPLE_LOCAL, "sigma_cor": ratio * EXAMPLE_LOCAL}
            slope = float(decor_accountant(spec, **noise, clip_norm=1 / BATCH).value)
            theirs = sampled_epsilon(slope, DELTA, rate=RATE, num_steps=STEPS).value
            rows.append((graph, f"{ratio:.4g}", f"{ours:.4g}", f"{theirs:.4g}"))
    columns = ("ours: Poisson, zero-out", "Wang et al.: without replacement, replace-one")
    return Table("epsilon by two accountants", ("graph", "sigma_cor / sigma_ldp", *columns), rows)


LOCAL, PAIR = (1 / 1000, 1 / 20), (1 / 2000, 1 / 10)
"""The box of sigma_ldp and sigma_cor, at C = 1."""
PLACES, QUICK_PLACES = 50, 5
Pair = tuple[float, float]
Pairs = Mapping[tuple[str, float], list[tuple[Pair, float]]]
"""By graph and budget: pairs with the worst [R^-1]_ii, which their epsilon follows from."""


def coded(inverse: float) -> float:
    """What the code calls epsilon, of [R^-1]_ii: a record replaced moves the mean of a batch by 2 C / 64."""
    return sampled_renyi(2 * inverse / BATCH**2, order=2, rate=RATE)


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
    return (BATCH / PoissonGaussian(1.0, RATE, STEPS, "zero-out").least_multiplier(epsilon, DELTA)) ** 2


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


def judged_example_level(published: Pairs, ours: Pairs) -> list[Verdict]:
    """Whether the pairs of either search keep the number that they are labelled with."""
    spent = {at: (example_level(some[0][1]), composed(some[0][1])) for at, some in published.items()}
    labels = sorted(set(EPSILONS.values()))
    words = ", ".join(
        f"{label:g}: {min(low for (_, at), (low, _) in spent.items() if at == label):.3g} to "
        f"{max(high for (_, at), (_, high) in spent.items() if at == label):.4g}"
        for label in labels
    )
    over_label = {f"{graph}, {label:g}": low / label for (graph, label), (low, _) in spent.items()}
    keeps = Verdict(
        "every pair of the search has the epsilon of its label at delta = 1e-5",
        [Effect.exact(at, 1 + ROUNDING - ratio) for at, ratio in over_label.items()],
        f"epsilon by label, library (Poisson, zero-out) to paper's accountant (replace-one): {words}",
        value=min(over_label.values()),
    )
    shares_spent = {  # of the first and the last pair
        f"{graph}, {budget:g}": [example_level(inverse) / budget for _, inverse in (some[:1] + some[1:][-1:])]
        for (graph, budget), some in ours.items()
    }
    exact = Verdict(
        "every pair of ours keeps its budget, inside the box",
        [Effect.exact(at, 1 + 1e-6 - max(ratios, default=np.inf)) for at, ratios in shares_spent.items()],
        f"of {sum(map(len, ours.values()))} pairs the largest part spent is "
        f"{max(max(ratios, default=np.nan) for ratios in shares_spent.values()):.6f}",
    )
    return [keeps, exact]


def run_example_level(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Both searches on the three graphs."""
    places = scale.pick(QUICK_PLACES, PLACES)
    coded_limits = {
        label: largest_inverse(lambda inverse, label=label: coded(inverse) <= label)  # type: ignore[misc]
        for label in EPSILONS.values()
    }

    def pairs(limits: Mapping[float, float]) -> dict[tuple[str, float], list[tuple[Pair, float]]]:
        return {(g, at): pairs_within(spec, r, places) for g, spec in GRAPHS.items() for at, r in limits.items()}

    published, ours = pairs(coded_limits), pairs({budget: inverse_within(budget) for budget in EPSILONS})
    smallest, labels = min(EPSILONS), ("sigma_ldp / C", "sigma_cor / C")
    panels = []
    for graph in GRAPHS:
        local, pair = np.array([deviations for deviations, _ in ours[graph, smallest]]).reshape(-1, 2).T
        title = f"{graph}: pairs of ours for epsilon = {smallest:g}"
        panels.append(Panel(title, *labels, local.tolist(), {graph: pair[:, None]}, colours=GRAPH_COLOURS))
    rows = [
        (f"{label:g}", f"{example_level(limit):.3g}", f"{composed(limit):.4g}") for label, limit in coded_limits.items()
    ]
    verdicts = judged_example_level(published, ours)
    caption = (
        f"{NODES} nodes, batch {BATCH} of {RECORDS}, T = {STEPS}, C = 1, delta = {DELTA:g}, an eavesdropper. Ours: the "
        "least sigma_cor that keeps the budget by the library's bound for Poisson sampling, zero-out."
    )
    words = "DECOR, Appendix D.1 at example level: labels of the search are no epsilon", caption
    tables = [Table("what a label of the search is worth", ("label", "library", "Wang et al., composed"), rows)]
    settings = {"steps": STEPS, "delta": DELTA, "batch": BATCH, "records": RECORDS, "places": places}
    return panel_reproduction(figure, scale, verdicts, panels, words, tables=tables, settings=settings)

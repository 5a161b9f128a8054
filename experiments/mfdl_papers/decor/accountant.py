"""DECOR, Figures 2 and 3: epsilon against the pairwise noise, by the accountant of Algorithms 2 and 3.

Figure 2 is at user level, Figure 3 at example level with batches drawn by Poisson sampling; each for an eavesdropper
(q = 0) and for any one curious node (q = 1). Between all secrets known (LDP) and all noise averaged (CDP) epsilon falls
with the pairwise noise; how fast is up to the graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mfdl.pictures.line_charts import Panel
from mfdl.privacy import gaussian

from ..figures.published_figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import of_panels
from ..figures.verdicts import Effect, Verdict
from .budget_curves import GRAPH_COLOURS, GRAPHS
from .pairwise_bounds import decor_accountant, decor_theorem
from .subsampled_renyi import sampled_epsilon

NODES, STEPS, DELTA = 16, 1000, 1e-5
SIGMA_LOCAL = 50.0  # C = 1: epsilon = 5.7 if all noise is averaged
EXAMPLE_LOCAL, BATCH, RECORDS = 5 / 1000, 64, 3750  # C = 1, of the mean over a batch
RATIOS = tuple(10.0 ** np.arange(-1, 3.01, 0.25))
QUICK_RATIOS = (0.1, 1.0, 10.0, 100.0, 1000.0)
CURIOUS = (0, 1)
ROUNDING = 1e-9
FLOOR = 1.05
"""Up to this factor of the noise-averaged epsilon a curve has reached it."""

Epsilon = Callable[[float], float]
"""From [R^-1]_ii, of one step, to epsilon of all."""


def user_level(inverse: float) -> float:
    """Exactly, for T full-batch steps at C = 1, replace-one."""
    return gaussian.epsilon_from_mu(2 * np.sqrt(STEPS * inverse), DELTA)


def example_level(inverse: float) -> float:
    """The library's bound for T Poisson-sampled steps, a record moving the mean over a batch by C / 64, zero-out."""
    from mfdl.privacy.curves import PoissonGaussian

    multiplier = BATCH / np.sqrt(inverse)
    return PoissonGaussian(float(multiplier), BATCH / RECORDS, STEPS, "zero-out").epsilon(DELTA)


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


def judged(by_q: Mapping[int, Mapping[str, np.ndarray]]) -> list[Verdict]:
    """The floor, the order of the graphs, the bound of the theorem, the price of curiosity."""
    return [_floor(by_q), _order(by_q), _theorem(by_q), _curious(by_q)]


def _at_most(at: str, lower: np.ndarray, upper: np.ndarray) -> Effect:
    """Of "one curve is nowhere above another", by the least logarithm of their ratio."""
    return Effect.exact(at, float(np.min(np.log(upper) - np.log(lower))) + ROUNDING)


def _floor(by_q: Mapping[int, Mapping[str, np.ndarray]]) -> Verdict:
    effects, ends = [], []
    for q, lines in by_q.items():
        for graph in GRAPHS:
            end = float(lines[graph][-1] / lines["CDP"][-1])
            effects.append(_at_most(f"q = {q}, {graph}: falls", lines[graph][1:], lines[graph][:-1]))
            effects.append(Effect.exact(f"q = {q}, {graph}: end", math.log(FLOOR / end)))
            ends.append(end)
    start = max(lines["LDP"][0] / lines["CDP"][0] for lines in by_q.values())
    return Verdict(
        "on every connected graph pairwise noise lowers epsilon to that of CDP",
        effects,
        f"from {start:.3g} times CDP's (LDP) to {max(ends):.4g} times at most",
        value=max(ends),
    )


def _order(by_q: Mapping[int, Mapping[str, np.ndarray]]) -> Verdict:
    effects = [
        _at_most(f"q = {q}: {denser}, {sparser}", lines[denser], lines[sparser])
        for q, lines in by_q.items()
        for denser, sparser in (("complete", "torus"), ("torus", "ring"))
    ]
    middle = {graph: by_q[0][graph][len(by_q[0][graph]) // 2] for graph in GRAPHS}
    words = "epsilon half way: " + ", ".join(f"{graph} {value:.3g}" for graph, value in middle.items())
    return Verdict("the better connected the graph, the less pairwise noise it takes", effects, words)


def _theorem(by_q: Mapping[int, Mapping[str, np.ndarray]]) -> Verdict:
    points = [(q, graph, lines[f"{graph}, Theorem 1"], lines[graph]) for q, lines in by_q.items() for graph in GRAPHS]
    highest = max(float(np.max(bound / exact)) for _, _, bound, exact in points)
    return Verdict(
        "Theorem 1 (6 with colluders) is never below the accountant",
        [_at_most(f"q = {q}, {graph}", exact, bound) for q, graph, bound, exact in points],
        f"up to {highest:.3g} times its epsilon",
        value=highest,
    )


def _curious(by_q: Mapping[int, Mapping[str, np.ndarray]]) -> Verdict:
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
    dashed = tuple(f"{graph}, Theorem 1" for graph in GRAPHS)
    palette = GRAPH_COLOURS
    colours = {**palette, **{f"{graph}, Theorem 1": colour for graph, colour in palette.items()}}
    panels = [
        Panel(
            "an eavesdropper (q = 0)" if q == 0 else "any one curious node (q = 1)",
            "sigma_cor / sigma_ldp",
            f"{'example' if example else 'user'}-level epsilon",
            list(ratios),
            {name: values[:, None] for name, values in lines.items()},
            log_x=True,
            dashed=(*dashed, "LDP", "CDP"),
            colours=colours,
        )
        for q, lines in by_q.items()
    ]
    level = (
        f"example level, batch {BATCH} of {RECORDS} by Poisson sampling, zero-out"
        if example
        else "user level, replace-one"
    )
    caption = (
        f"{NODES} nodes, {level}, T = {STEPS}, C = 1, delta = {DELTA:g}, sigma_ldp = {local:g}. Full lines: "
        "Algorithms 2 and 3; dashed in the same colour: Theorem 1; LDP: all secrets known; CDP: all noise averaged."
    )
    of_run = {"steps": STEPS, "delta": DELTA, "clip_norm": 1.0, "sigma_ldp": local, "graphs": GRAPHS}
    done = of_panels(
        figure,
        scale,
        verdicts,
        panels,
        (f"DECOR, {figure.figure}: pairwise noise takes epsilon {verdicts[0].finding}", caption),
        settings=of_run,
    )
    return dataclasses.replace(done, tables=[*done.tables, _published_accountant(by_q[0], ratios)]) if example else done


def _published_accountant(lines: Mapping[str, np.ndarray], ratios: Sequence[float]) -> Table:
    """Epsilon by this library and by the paper's accountant, q = 0, replace-one: sensitivity 2 C / 64."""
    rows = []
    for graph, spec in GRAPHS.items():
        for ratio, ours in zip(ratios, lines[graph], strict=True):
            common: dict[str, Any] = {
                "sigma_ldp": EXAMPLE_LOCAL,
                "sigma_cor": ratio * EXAMPLE_LOCAL,
                "clip_norm": 1 / BATCH,
            }
            slope = float(decor_accountant(spec, **common).value)
            theirs = sampled_epsilon(slope, DELTA, rate=BATCH / RECORDS, num_steps=STEPS).value
            rows.append((graph, f"{ratio:.4g}", f"{ours:.4g}", f"{theirs:.4g}"))
    columns = (
        "graph",
        "sigma_cor / sigma_ldp",
        "ours: Poisson, zero-out",
        "Wang et al.: without replacement, replace-one",
    )
    return Table("epsilon by two accountants", columns, rows)

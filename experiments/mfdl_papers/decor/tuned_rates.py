"""DECOR, Figure 1 (a): least squares, each line at its best learning rate, chosen on seeds that are not shown.

LDP, CDP and DECOR at every graph and budget are trained over a grid of rates, DECOR over three pairs of noise too; what
has the smallest mean is trained again on the seeds of the figure.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mfdl.privacy import gaussian
from mfdl.runs.experiment import Experiment
from mfdl.training import tasks

from ..figures.paired_effects import guess_of, lowest
from ..figures.published_figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import losses, of_panels, seeded
from .budget_curves import GRAPHS, PAIRS, BudgetCurves, Options, Point, close_to_cdp, judged, runs, seeds_of

EPSILONS, QUICK_EPSILONS = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0), (3.0, 10.0, 40.0)
STEPS, LAST_STEPS = 3500, 199
RATE = 1.668e-3
"""Of the paper's code, for all lines."""

FACTORS, QUICK_FACTORS = (1 / 32, 1 / 16, 0.125, 0.25, 0.5, 1.0, 2.0), (0.25, 0.5, 1.0)
TUNING_SEEDS, QUICK_TUNING_SEEDS = (101, 102), (101,)
NODES, CURVATURE = 16, 5.84375
BEST_PAIR = f"decor@last:{LAST_STEPS}/curvature=power:0:1:{CURVATURE}"
"""Of least noise in the last models, with the mean curvature of the task: of i^2 / 16 over its nodes."""
GRAPH, FEW_EPSILONS, FEW_FACTORS = "ring", (10.0, 30.0, 40.0), (0.5, 1.0, 2.0)
"""Of the second reading: where DECOR is furthest from CDP, and rates around those that were chosen there."""
SETTINGS: Mapping[str, Any] = {
    "task": "least-squares",
    "unit": "user",
    "adjacency": "replace-one",
    "delta": 1e-5,
    "clip_norm": 1.0,
    "period": 1,
    "epochs": STEPS,
    "eval_every": 20,
}
LINES = ("LDP", "DECOR", "CDP")
Runs = Callable[[Sequence[float], Sequence[int], Options], Mapping[Point, Sequence[Experiment]]]
"""(budgets, seeds, options) -> the runs of every point, as `budget_curves.runs`."""
Extent = tuple[Sequence[float], Sequence[int], Sequence[float], Sequence[int]]
"""Budgets, seeds that are shown, factors of the rate, seeds of tuning."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a line is trained with: its name or DECOR's pair of noise, and the rate over the published one."""

    name: str
    factor: float


def at_rate(factor: float, graph: str, mechanism: str, epsilon: float) -> Mapping[str, Any]:
    """The options of a run, as `budget_curves.runs` takes them."""
    return {**SETTINGS, "learning_rate": RATE * factor}


def line_of(name: str) -> str:
    """DECOR of a pair of noise."""
    return "DECOR" if name in PAIRS else name


def best(tuned: Mapping[tuple[Point, float], np.ndarray]) -> dict[Point, Choice]:
    """The choice of the smallest mean for (graph, line, epsilon)."""
    candidates: dict[Point, dict[Choice, np.ndarray]] = {}
    for ((graph, name, epsilon), factor), values in tuned.items():
        candidates.setdefault((graph, line_of(name), epsilon), {})[Choice(name, factor)] = values
    return {point: lowest(of_point) for point, of_point in candidates.items()}


def at_best_rates(
    figure: PublishedFigure, scale: RunScale, points: Runs, extent: Extent
) -> tuple[dict[Point, Choice], dict[str, dict[str, np.ndarray]]]:
    """The choices on `TUNING_SEEDS`, and by graph and line the final losses on other seeds, shape (budgets, seeds)."""
    epsilons, seeds, factors, tuning_seeds = extent
    by_factor = {factor: functools.partial(at_rate, factor) for factor in factors}
    tuned = {
        (point, factor): configs
        for factor, options in by_factor.items()
        for point, configs in points(epsilons, tuning_seeds, options).items()
    }
    chosen = best(losses(figure, scale, tuned, last_steps=LAST_STEPS))
    runs_by_factor = {factor: points(epsilons, seeds, options) for factor, options in by_factor.items()}
    at_best = {(graph, line, e): runs_by_factor[c.factor][graph, c.name, e] for (graph, line, e), c in chosen.items()}
    finals = losses(figure, scale, at_best, last_steps=LAST_STEPS)
    graphs, lines = dict.fromkeys(graph for graph, _, _ in chosen), dict.fromkeys(line for _, line, _ in chosen)
    return chosen, {
        graph: {line: np.stack([finals[graph, line, e] for e in epsilons]) for line in lines} for graph in graphs
    }


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Tunes rates on `TUNING_SEEDS`, trains the missing runs and judges them."""
    epsilons, seeds, factors, tuning_seeds = of_scale = extent(scale, EPSILONS, FACTORS)
    chosen, lines = at_best_rates(figure, scale, runs, of_scale)
    pairs = {graph: [chosen[graph, "DECOR", e].name for e in epsilons] for graph in GRAPHS}
    curves = BudgetCurves(epsilons, lines, pairs)
    verdicts = judged(curves, guess_of(tasks.load(SETTINGS["task"], "ring:n=16")))
    title = f"DECOR, Figure 1 (a), least squares: {verdicts[0].finding}"
    caption = (
        f"16 nodes, user level, T = {STEPS}, C = 1, delta = 1e-5, replace-one, budgets spent exactly. LDP: anyone who "
        "sees all messages; DECOR: an eavesdropper; CDP: a server's average only: three trust models. Each with the "
        f"best of {len(factors)} rates, DECOR with the best of three pairs, on seeds {list(tuning_seeds)}. "
        f"Mean and range of {len(seeds)} others, last {LAST_STEPS} steps."
    )
    rates = {
        graph: {line: [RATE * chosen[graph, line, e].factor for e in epsilons] for line in LINES} for graph in GRAPHS
    }
    return of_panels(
        figure,
        scale,
        verdicts,
        curves.panels("mean ||x - x*||²"),
        (title, caption),
        tables=[*curves.tables(), rate_table(chosen, epsilons, factors)],
        settings=settings(of_scale),
        numbers={**curves.numbers(), "chosen rates": rates},
    )


def extent(scale: RunScale, epsilons: Sequence[float], factors: Sequence[float]) -> Extent:
    """What is run, less of it in quick mode."""
    tuning_seeds = scale.pick(QUICK_TUNING_SEEDS, TUNING_SEEDS)
    return (
        scale.pick(QUICK_EPSILONS, epsilons),
        seeds_of(scale, 3, 5),
        scale.pick(QUICK_FACTORS, factors),
        tuning_seeds,
    )


def settings(extent: Extent) -> dict[str, Any]:
    """What all runs share, JSON-ready."""
    epsilons, seeds, factors, tuning_seeds = map(list, extent)
    rates = [RATE * factor for factor in factors]
    return {**SETTINGS, "epsilons": epsilons, "seeds": seeds, "tuning_seeds": tuning_seeds, "lr": rates}


def on_the_same_graph(
    epsilons: Sequence[float], seeds: Sequence[int], options: Options
) -> dict[Point, list[Experiment]]:
    """DECOR with the pair that leaves least noise in the models, and D-SGD on the graph itself with the noise of CDP.

    CDP's noise is 1 / sqrt(n) of LDP's, that is LDP's at sqrt(n) times mu.
    """
    points: dict[Point, list[Experiment]] = {}
    for e in epsilons:
        mu = math.sqrt(NODES) * gaussian.mu_from_epsilon(e, SETTINGS["delta"])
        for line, mechanism, budget in (
            ("DECOR", BEST_PAIR, {"epsilon": e, "trust": "eavesdropper"}),
            ("CDP", "dp-dsgd", {"mu": mu, "trust": "ldp"}),
        ):
            common = {"mechanisms": (mechanism,), "graph": GRAPHS[GRAPH], **budget, **options(GRAPH, mechanism, e)}
            points[GRAPH, line, e] = seeded(seeds, **common)
    return points


def run_on_the_same_graph(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """The second reading of "close to CDP": the same gossip for both, and no grid of pairs."""
    epsilons, seeds, factors, tuning_seeds = of_scale = extent(scale, FEW_EPSILONS, FEW_FACTORS)
    _, lines = at_best_rates(figure, scale, on_the_same_graph, of_scale)
    curves = BudgetCurves(epsilons, lines, {GRAPH: []})
    guess = guess_of(tasks.load(SETTINGS["task"], GRAPHS[GRAPH]))
    verdict = close_to_cdp(curves, guess, "close to CDP on the same graph")
    caption = (
        f"16 nodes, user level, T = {STEPS}, C = 1, delta = 1e-5, replace-one. CDP: D-SGD on the same graph with "
        "1 / sqrt(n) of LDP's noise. DECOR: the pair of least noise in the last models. Each with the best of "
        f"{len(factors)} rates on seeds {list(tuning_seeds)}. Mean and range of {len(seeds)} others, last "
        f"{LAST_STEPS} steps."
    )
    title = f"DECOR, Figure 1 (a), least squares: {verdict.finding}"
    panels = curves.panels("mean ||x - x*||²")
    return of_panels(figure, scale, [verdict], panels, (title, caption), settings=settings(of_scale))


def rate_table(chosen: Mapping[Point, Choice], epsilons: Sequence[float], factors: Sequence[float]) -> Table:
    """Chosen rates over the published one; a star at an end of the grid, beyond which a rate may be better."""
    ends = {min(factors), max(factors)}

    def text(choice: Choice) -> str:
        return f"{choice.factor:g}" + ("*" if choice.factor in ends else "")

    columns = ("epsilon", *(f"{graph}, {line}" for graph in GRAPHS for line in LINES))
    rows = [(f"{e:g}", *(text(chosen[graph, line, e]) for graph in GRAPHS for line in LINES)) for e in epsilons]
    return Table(f"chosen rate over {RATE:g} (*: an end of the grid)", columns, rows)

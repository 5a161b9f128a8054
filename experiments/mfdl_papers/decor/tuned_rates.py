"""DECOR, Figure 1 (a): least squares, each line at its best learning rate, chosen on seeds that are not shown.

LDP, CDP and DECOR at every graph and budget are trained over a grid of rates, DECOR over three pairs of noise too; what
has the smallest mean is trained again on the seeds of the figure.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mfdl.runs.experiment import Experiment
from mfdl.training import tasks

from ..figures.paired_effects import guess_of, lowest
from ..figures.published_figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import losses, of_panels
from .budget_curves import GRAPHS, PAIRS, BudgetCurves, Point, judged, runs, seeds_of

EPSILONS, QUICK_EPSILONS = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0), (3.0, 10.0, 40.0)
STEPS, LAST_STEPS = 3500, 199
RATE = 1.668e-3
"""Of the paper's code, for all lines."""

FACTORS, QUICK_FACTORS = (1 / 32, 1 / 16, 0.125, 0.25, 0.5, 1.0, 2.0), (0.25, 0.5, 1.0)
TUNING_SEEDS, QUICK_TUNING_SEEDS = (101, 102), (101,)
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
LINE_OF = {"dp-dsgd": "LDP", "decor": "DECOR", "cdp": "CDP"}
LINES = tuple(LINE_OF.values())


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a line is trained with: its name or DECOR's pair of noise, and the rate over the published one."""

    name: str
    factor: float


def at_rate(factor: float, graph: str, mechanism: str, epsilon: float) -> Mapping[str, Any]:
    """The options of a run, as `budget_curves.runs` takes them."""
    return {**SETTINGS, "learning_rate": RATE * factor}


def at_chosen_rate(chosen: Mapping[Point, Choice], graph: str, mechanism: str, epsilon: float) -> Mapping[str, Any]:
    """The same at the rate that was chosen."""
    return at_rate(chosen[graph, LINE_OF[mechanism], epsilon].factor, graph, mechanism, epsilon)


def grid(
    epsilons: Sequence[float], seeds: Sequence[int], factors: Iterable[float]
) -> dict[tuple[Point, float], list[Experiment]]:
    """Every point at every rate."""
    return {
        (point, factor): configs
        for factor in factors
        for point, configs in runs(epsilons, seeds, functools.partial(at_rate, factor)).items()
    }


def line_of(name: str) -> str:
    """DECOR of a pair of noise."""
    return "DECOR" if name in PAIRS else name


def best(tuned: Mapping[tuple[Point, float], np.ndarray]) -> dict[Point, Choice]:
    """The choice of the smallest mean for (graph, line, epsilon)."""
    candidates: dict[Point, dict[Choice, np.ndarray]] = {}
    for ((graph, name, epsilon), factor), values in tuned.items():
        candidates.setdefault((graph, line_of(name), epsilon), {})[Choice(name, factor)] = values
    return {point: lowest(of_point) for point, of_point in candidates.items()}


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Tunes rates on `TUNING_SEEDS`, trains the missing runs and judges them."""
    epsilons, seeds = scale.pick(QUICK_EPSILONS, EPSILONS), seeds_of(scale, 3, 5)
    factors, tuning_seeds = scale.pick(QUICK_FACTORS, FACTORS), scale.pick(QUICK_TUNING_SEEDS, TUNING_SEEDS)
    chosen = best(losses(figure, scale, grid(epsilons, tuning_seeds, factors), last_steps=LAST_STEPS))
    every = runs(epsilons, seeds, functools.partial(at_chosen_rate, chosen))
    cells_at_best_rate = {(graph, line, e): every[graph, choice.name, e] for (graph, line, e), choice in chosen.items()}
    final_test_losses = losses(figure, scale, cells_at_best_rate, last_steps=LAST_STEPS)
    lines = {
        graph: {line: np.stack([final_test_losses[graph, line, e] for e in epsilons]) for line in LINES}
        for graph in GRAPHS
    }
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
    of_run = {**SETTINGS, "epsilons": list(epsilons), "seeds": list(seeds), "tuning_seeds": list(tuning_seeds)}
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
        settings=of_run | {"lr": [RATE * factor for factor in factors]},
        numbers={**curves.numbers(), "chosen rates": rates},
    )


def rate_table(chosen: Mapping[Point, Choice], epsilons: Sequence[float], factors: Sequence[float]) -> Table:
    """Chosen rates over the published one; a star at an end of the grid, beyond which a rate may be better."""
    ends = {min(factors), max(factors)}

    def text(choice: Choice) -> str:
        return f"{choice.factor:g}" + ("*" if choice.factor in ends else "")

    columns = ("epsilon", *(f"{graph}, {line}" for graph in GRAPHS for line in LINES))
    rows = [(f"{e:g}", *(text(chosen[graph, line, e]) for graph in GRAPHS for line in LINES)) for e in epsilons]
    return Table(f"chosen rate over {RATE:g} (*: an end of the grid)", columns, rows)

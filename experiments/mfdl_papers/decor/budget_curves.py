"""DECOR, Figure 1: graphs, pairs of noise, curves over budgets and claims of panels (a) and (b).

Panel (a), least squares, has each line at its best learning rate, and DECOR at its best of three pairs of noise, chosen
on seeds that are not shown; what has the smallest mean is trained again on the seeds of the figure.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mfdl import graphs
from mfdl.decor_search import POSITIONS, pair_ratios
from mfdl.factorization.pairwise_covariance import PairwisePrice
from mfdl.pictures.line_charts import Panel
from mfdl.privacy import gaussian
from mfdl.runs.experiment import Experiment
from mfdl.training import tasks

from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import (
    below,
    clear,
    deviation,
    guess_loss,
    losses,
    lowest,
    mean_ratio,
    panel_numbers,
    panel_reproduction,
    seeded,
    spread,
    unsupported,
)
from ..figures.verdicts import Effect, Verdict

GRAPHS = {"ring": "ring:n=16", "torus": "torus:n=16", "complete": "complete:n=16"}
GRAPH_COLOURS = dict(zip(GRAPHS, ("#cc79a7", "#0072b2", "#009e73"), strict=True))
PAIRS = ("small", "middle", "large")  # sigma_ldp, at POSITIONS
TRUST = {"dp-dsgd": "ldp", "cdp": "central", "decor": "eavesdropper"}
CLOSE = 2.0  # up to this factor two losses are called close; the paper gives no number
Options = Callable[[str, str, float], Mapping[str, Any]]
"""(graph, mechanism, epsilon) -> the other options of a run."""
Point = tuple[str, str, float]  # graph, line or pair, epsilon


def runs(
    epsilons: Sequence[float], seeds: Sequence[int], options: Options, pairs: Sequence[str] = PAIRS
) -> dict[Point, list[Experiment]]:
    """The runs of every point; those of CDP, which averages completely on any graph, are the same on all graphs."""
    points: dict[Point, list[Experiment]] = {}
    for graph, spec in GRAPHS.items():
        chosen = dict(zip(PAIRS, pair_ratios(PairwisePrice(graphs.load(spec), 0), POSITIONS), strict=True))
        for epsilon in epsilons:

            def cells(mechanism: str, settings: Sequence[str] = (), at: float = epsilon, on: str = graph) -> list[Any]:
                where = "complete" if mechanism == "cdp" else on
                common: dict[str, Any] = {"mechanisms": (mechanism,), "trust": TRUST[mechanism]}
                common |= {"settings": tuple(settings), "graph": GRAPHS[where], "epsilon": at}
                return seeded(seeds, **common, **options(where, mechanism, at))

            points[graph, "LDP", epsilon] = cells("dp-dsgd")
            points[graph, "CDP", epsilon] = cells("cdp")
            for name in pairs:
                noise = ("decor.sigma_ldp=1", f"decor.sigma_cor={math.sqrt(chosen[name])!r}")
                points[graph, name, epsilon] = cells("decor", noise)
    return points


@dataclasses.dataclass(frozen=True)
class BudgetCurves:
    """Losses against the budget on each graph.

    Attributes:
        epsilons: the budgets. lines: by graph and name ("LDP", "CDP", "DECOR"), shape (budgets, seeds).
        chosen: by graph the pair that DECOR is drawn with, budget by budget.
    """

    epsilons: Sequence[float]
    lines: Mapping[str, Mapping[str, np.ndarray]]
    chosen: Mapping[str, Sequence[str]]

    @classmethod
    def from_losses(cls, epsilons: Sequence[float], final_test_losses: Mapping[Point, np.ndarray]) -> BudgetCurves:
        """DECOR with the pair of the smallest mean, as the paper tunes it, on the seeds that are shown."""
        lines, chosen = {}, {}
        for graph in dict.fromkeys(point[0] for point in final_test_losses):
            pairs = [name for name in PAIRS if (graph, name, epsilons[0]) in final_test_losses]
            best = [lowest({name: final_test_losses[graph, name, e] for name in pairs}) for e in epsilons]
            decor = np.stack([final_test_losses[graph, name, e] for name, e in zip(best, epsilons, strict=True)])
            others = {name: np.stack([final_test_losses[graph, name, e] for e in epsilons]) for name in ("LDP", "CDP")}
            lines[graph], chosen[graph] = {**others, "DECOR": decor}, best
        return cls(epsilons, lines, chosen)

    def pairs(self, lower: str, upper: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {
            f"{graph}, epsilon {e:g}": (lines[lower][i], lines[upper][i])
            for graph, lines in self.lines.items()
            for i, e in enumerate(self.epsilons)
        }

    def factors(self, above: str, below: str) -> dict[str, list[float]]:
        """mean(above) / mean(below) on each graph, budget by budget."""
        return {
            graph: [mean_ratio(*pair) for pair in zip(lines[above], lines[below], strict=True)]
            for graph, lines in self.lines.items()
        }

    def panels(self, y_label: str) -> list[Panel]:
        x, names = list(self.epsilons), ("LDP", "DECOR", "CDP")
        return [
            Panel(f"{graph}, 16 nodes", "epsilon", y_label, x, {k: lines[k] for k in names if k in lines}, log_x=True)
            for graph, lines in self.lines.items()
        ]

    def tables(self) -> list[Table]:
        """Mean and standard deviation over seeds, with the pair that was chosen."""
        columns = ("epsilon", "LDP", "DECOR", "CDP", "LDP / DECOR", "DECOR / CDP", "pair")
        up, down = self.factors("LDP", "DECOR"), self.factors("DECOR", "CDP")

        def row(graph: str, i: int) -> tuple[str, ...]:
            means = (spread(self.lines[graph][name][i]) for name in LINES)
            factors = (f"{factor[graph][i]:.3g}" for factor in (up, down))
            return (f"{self.epsilons[i]:g}", *means, *factors, self.chosen[graph][i])

        return [Table(graph, columns, [row(graph, i) for i in range(len(self.epsilons))]) for graph in self.lines]

    def numbers(self) -> dict[str, Any]:
        """JSON-ready."""
        chosen = {graph: list(names) for graph, names in self.chosen.items()}
        return {"panels": panel_numbers(self.panels("")), "chosen pairs": chosen}


def judged(curves: BudgetCurves, guess: float | None = None) -> list[Verdict]:
    """Below LDP everywhere; about ten times, by the geometric mean over points; close to CDP."""
    pairs = curves.pairs("DECOR", "LDP")
    factors = [v for some in curves.factors("LDP", "DECOR").values() for v in some]
    effects = below(pairs, guess=guess)
    ratio_range = f"LDP / DECOR from {min(factors):.3g} to {max(factors):.3g} over {len(factors)} points, "
    ratio_range += f"beyond the joint 95 % intervals at {clear(effects)}"
    claim = "DECOR is below LDP on every graph and at every budget"
    return [Verdict(claim, effects, ratio_range), _ten_times(pairs, guess), close_to_cdp(curves, guess)]


def _ten_times(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], guess: float | None) -> Verdict:
    """The mean over the points at which a line learned, seed by seed."""
    usable = {at: pair for at, pair in pairs.items() if not unsupported(*pair, guess)}
    reason = "" if usable else unsupported(*next(iter(pairs.values())), guess)
    logs = np.mean([np.log10(ldp) - np.log10(decor) for decor, ldp in (usable or pairs).values()], axis=0)
    mean, error, where = float(10 ** logs.mean()), deviation(logs), f"geometric mean over {len(usable)} points"
    effects = [Effect.sampled(where, logs, 1.0, unsupported=reason)]
    spread_of = None if error is None else mean * math.log(10) * error
    return Verdict("by about ten times", effects, f"{mean:.3g} times in the {where}", mean, spread_of)


def close_to_cdp(curves: BudgetCurves, guess: float | None, claim: str = "and close to CDP") -> Verdict:
    """DECOR within a factor of `CLOSE` of CDP at every point."""
    ratios = curves.factors("DECOR", "CDP")
    words = ", ".join(f"{graph} {min(some):.3g} to {max(some):.3g}" for graph, some in ratios.items())
    effects = below(curves.pairs("DECOR", "CDP"), guess=guess, factor=CLOSE)
    return Verdict(f"{claim} (within a factor of {CLOSE:g})", effects, f"DECOR / CDP: {words}")


def published_seeds(scale: RunScale, quick: int, full: int) -> range:
    """Seeds from 1, as the published runs have them."""
    return range(1, 1 + scale.pick(quick, full))


EPSILONS, QUICK_EPSILONS = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0), (3.0, 10.0, 40.0)
STEPS, LAST_STEPS = 3500, 199
RATE = 1.668e-3  # of the paper's code, for all lines
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
    """The options of a run, as `runs` takes them."""
    return {**SETTINGS, "learning_rate": RATE * factor}


def best(tuned: Mapping[tuple[Point, float], np.ndarray]) -> dict[Point, Choice]:
    """The choice of the smallest mean for (graph, line, epsilon)."""
    candidates: dict[Point, dict[Choice, np.ndarray]] = {}
    for ((graph, name, epsilon), factor), values in tuned.items():
        line = "DECOR" if name in PAIRS else name
        candidates.setdefault((graph, line, epsilon), {})[Choice(name, factor)] = values
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
    lines: dict[str, dict[str, np.ndarray]] = {}
    for graph, line, _ in chosen:
        lines.setdefault(graph, {})[line] = np.stack([finals[graph, line, e] for e in epsilons])
    return chosen, lines


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Tunes rates on `TUNING_SEEDS`, trains the missing runs and judges them."""
    epsilons, seeds, factors, tuning_seeds = of_scale = extent(scale, EPSILONS, FACTORS)
    chosen, lines = at_best_rates(figure, scale, runs, of_scale)
    pairs = {graph: [chosen[graph, "DECOR", e].name for e in epsilons] for graph in GRAPHS}
    curves = BudgetCurves(epsilons, lines, pairs)
    verdicts = judged(curves, guess_loss(tasks.load(SETTINGS["task"], "ring:n=16")))
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
    panels, tables = curves.panels("mean ||x - x*||²"), [*curves.tables(), rate_table(chosen, epsilons, factors)]
    more: dict[str, Any] = {"settings": settings(of_scale), "numbers": {**curves.numbers(), "chosen rates": rates}}
    return panel_reproduction(figure, scale, verdicts, panels, (title, caption), tables=tables, **more)


def extent(scale: RunScale, epsilons: Sequence[float], factors: Sequence[float]) -> Extent:
    """What is run, less of it in quick mode."""
    seeds, tuning_seeds = published_seeds(scale, 3, 5), scale.pick(QUICK_TUNING_SEEDS, TUNING_SEEDS)
    return scale.pick(QUICK_EPSILONS, epsilons), seeds, scale.pick(QUICK_FACTORS, factors), tuning_seeds


def settings(extent: Extent) -> dict[str, Any]:
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
    guess = guess_loss(tasks.load(SETTINGS["task"], GRAPHS[GRAPH]))
    verdict = close_to_cdp(curves, guess, "close to CDP on the same graph")
    caption = (
        f"16 nodes, user level, T = {STEPS}, C = 1, delta = 1e-5, replace-one. CDP: D-SGD on the same graph with "
        "1 / sqrt(n) of LDP's noise. DECOR: the pair of least noise in the last models. Each with the best of "
        f"{len(factors)} rates on seeds {list(tuning_seeds)}. Mean and range of {len(seeds)} others, last "
        f"{LAST_STEPS} steps."
    )
    title = f"DECOR, Figure 1 (a), least squares: {verdict.finding}"
    panels = curves.panels("mean ||x - x*||²")
    return panel_reproduction(figure, scale, [verdict], panels, (title, caption), settings=settings(of_scale))


def rate_table(chosen: Mapping[Point, Choice], epsilons: Sequence[float], factors: Sequence[float]) -> Table:
    """Chosen rates over the published one; a star at an end of the grid, beyond which a rate may be better."""
    ends = {min(factors), max(factors)}

    def text(choice: Choice) -> str:
        return f"{choice.factor:g}" + ("*" if choice.factor in ends else "")

    columns = ("epsilon", *(f"{graph}, {line}" for graph in GRAPHS for line in LINES))
    rows = [(f"{e:g}", *(text(chosen[graph, line, e]) for graph in GRAPHS for line in LINES)) for e in epsilons]
    return Table(f"chosen rate over {RATE:g} (*: an end of the grid)", columns, rows)

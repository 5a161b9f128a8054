"""CorN-DSGD, Figures 3 (quadratics), 4 (a9a) and 5 (MNIST): LDP, pairwise noise and CorN at equal budgets.

Panel (a): p = 0.5 against the budget; panel (b): epsilon = 10 against p. One connected draw of the graph for each seed.
Covariances are the best for the one-step criterion tr(W R W^T), as published.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mfdl.pictures.line_charts import Panel
from mfdl.training import tasks

from ..figures.paired_verdicts import mean_log_ratio, of_means, ordered, tied
from ..figures.published_figures import PublishedFigure, RunScale
from ..figures.reproduction import Reproduction
from ..figures.trained_panels import losses, of_panels, seeded
from ..figures.verdicts import Verdict, everywhere
from .covariance_figures import CLIP_NORM, DELTA, DENSITY, EPSILON, EPSILONS, NODES, STEPS, draws_of, graph_name

DENSITIES = (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)  # of panel (b); 0.5 at EPSILON is a point of panel (a) too
LAST_STEPS, SPARSE = 199, 0.4
MECHANISMS = {
    "LDP": ("dp-dsgd", "ldp"),
    "pairwise": ("corn-pairwise", "eavesdropper"),
    "CorN": ("corn", "eavesdropper"),
}
Point = tuple[float, float]  # epsilon, p


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One of the three tasks.

    Attributes:
        steps: T. batch: records of a node in a step; None: all it has.
        rate: (line, epsilon) -> the published learning rate. options: what else differs.
        y_label: the metric. seeds: in quick and in full mode.
        quick: points of quick mode.
    """

    task: str
    steps: int
    y_label: str
    rate: Callable[[str, float], float]
    seeds: tuple[int, int]
    quick: Sequence[Point]
    batch: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def period(self, scale: RunScale) -> int:
        """Steps of one pass over a node's records."""
        if self.batch is None:
            return 1
        task = tasks.load(self.task, NODES, scale.data_home)
        return max(1, round(len(task.targets) / NODES / self.batch))


def a9a_rate(name: str, epsilon: float) -> float:
    """The rates that the paper's code chose at p = 0.5; it has no run at 25, which takes that of 20."""
    limits = {
        "LDP": ((7, 0.001), (25, 0.005), (40, 0.01)),
        "pairwise": ((3, 0.001), (10, 0.005), (40, 0.01)),
        "CorN": ((5, 0.001), (10, 0.005), (30, 0.01), (40, 0.05)),
    }
    return next(rate for limit, rate in limits[name] if epsilon <= limit)


EXPERIMENTS = {
    "corn-3": Experiment(
        task="rotated-quadratics",
        steps=STEPS,
        y_label="mean f(x) - f*",
        rate=lambda name, epsilon: 0.01,
        seeds=(3, 10),
        quick=((3.0, 0.5), (10.0, 0.2), (10.0, 0.5), (10.0, 1.0), (40.0, 0.5)),
        options={"lr_schedule": "inverse-sqrt"},
    ),
    "corn-4": Experiment(
        task="a9a:split=pool",
        steps=STEPS,
        y_label="test loss",
        rate=a9a_rate,
        seeds=(3, 10),
        quick=((10.0, 0.2), (10.0, 1.0)),
        batch=128,
        options={"partition": "dirichlet:alpha=10"},
    ),
    "corn-5": Experiment(
        task="mnist:split=pool,fraction=0.2",
        steps=1000,
        y_label="test loss",
        rate=lambda name, epsilon: 0.1,
        seeds=(3, 9),
        quick=((10.0, 0.2), (10.0, 1.0)),
        batch=128,
        options={"partition": "dirichlet:alpha=10"},
    ),
}


def judged(by_point: Mapping[Point, Mapping[str, np.ndarray]]) -> list[Verdict]:
    """CorN best everywhere; the margin over pairwise noise largest on sparse graphs; a tie on the complete one."""
    pairs = {
        (point, name): (lines["CorN"], lines[name]) for point, lines in by_point.items() for name in ("pairwise", "LDP")
    }
    means = {point: mean_log_ratio(lines["CorN"], lines["pairwise"]) for point, lines in by_point.items()}
    below = sum(of_means(a, b) < 1 for a, b in pairs.values())
    sure = sum(mean + half <= 0 and mean < 0 for mean, half in means.values())
    factors = [of_means(lines["LDP"], lines["CorN"]) for lines in by_point.values()]
    comparison = (
        f"its mean is lower in {below} of {len(pairs)} comparisons, below pairwise beyond the seeds at {sure} of "
    )
    comparison += f"{len(by_point)} points; LDP / CorN {min(factors):.3g} to {max(factors):.3g}"
    best = Verdict("CorN is best at every budget and density", ordered(pairs), comparison)
    claim = f"its margin over pairwise noise is largest for p <= {SPARSE:g}"
    gains = {p: float(np.exp(-means[e, p][0])) for e, p in by_point if e == EPSILON}
    words = "pairwise / CorN " + ", ".join(f"{gain:.3g} at p = {p:g}" for p, gain in sorted(gains.items()))
    sparse, dense = ([gain for p, gain in gains.items() if (p <= SPARSE) == side] for side in (True, False))
    if sparse and dense:
        holds = everywhere({gain: gain > max(dense) and gain > 1 for gain in sparse})
        margin = Verdict(claim, holds, words, value=max(sparse))
    else:
        margin = Verdict.not_run(claim, "no densities on both sides")
    if (EPSILON, 1.0) not in by_point:
        return [best, margin]
    complete = by_point[EPSILON, 1.0]
    mean, half = means[EPSILON, 1.0]
    tie = f"pairwise / CorN {np.exp(-mean):.3g}, 95 % interval {np.exp(-mean - half):.3g} to {np.exp(-mean + half):.3g}"
    verdict = tied(complete["CorN"], complete["pairwise"])
    return [best, margin, Verdict("it ties pairwise noise at p = 1", verdict, tie, value=float(np.exp(-mean)))]


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Trains the missing runs and judges them."""
    experiment = EXPERIMENTS[figure.name]
    full = [(e, DENSITY) for e in EPSILONS] + [(EPSILON, p) for p in DENSITIES]
    points = list(dict.fromkeys(scale.pick(experiment.quick, full)))
    seeds, period = draws_of(scale, *experiment.seeds), experiment.period(scale)
    common = {
        "task": experiment.task,
        "unit": "user",
        "adjacency": "replace-one",
        "delta": DELTA,
        "clip_norm": CLIP_NORM,
        "period": period,
        "epochs": experiment.steps // period,
        "eval_every": 20 if period == 1 else 50,
        "data_home": scale.data_home,
        **experiment.options,
    }
    configs = {}
    for epsilon, p in points:
        for name, (mechanism, trust) in MECHANISMS.items():
            settings = ("corn.horizon=1",) if name == "CorN" else ()
            of_point = {"mechanisms": (mechanism,), "trust": trust, "settings": settings, "epsilon": epsilon}
            of_point["graph"] = functools.partial(graph_name, p)
            of_point["learning_rate"] = experiment.rate(name, epsilon)
            configs[epsilon, p, name] = seeded(seeds, **of_point, **common)
    final_test_losses = losses(figure, scale, configs, last_steps=LAST_STEPS)
    by_point = {(e, p): {name: final_test_losses[e, p, name] for name in MECHANISMS} for e, p in points}
    panels, verdicts = _panels(by_point, experiment.y_label), judged(by_point)
    caption = (
        f"{NODES} nodes, Erdős-Rényi, {experiment.task}, T = {common['epochs'] * period}, C = {CLIP_NORM}, "
        f"delta = {DELTA:g}, user level, replace-one, exact budgets. LDP: anyone who sees all messages; "
        f"pairwise and CorN: an eavesdropper. A draw of the graph for each of {len(seeds)} seeds, mean and range; loss "
        f"over the last {LAST_STEPS} steps."
    )
    of_run = {**common, "data_home": None, "seeds": list(seeds)}
    return of_panels(
        figure,
        scale,
        verdicts,
        panels,
        (f"CorN-DSGD, {figure.figure}: {verdicts[0].finding}", caption),
        settings=of_run,
    )


def _panels(by_point: Mapping[Point, Mapping[str, np.ndarray]], y_label: str) -> list[Panel]:
    """Against the budget, and against the density, where there is more than one point."""
    panels = []
    for title, x_label, place, fixed in (
        (f"(a) p = {DENSITY}", "epsilon", 0, DENSITY),
        (f"(b) epsilon = {EPSILON:g}", "edge probability p", 1, EPSILON),
    ):
        points = sorted(point for point in by_point if point[1 - place] == fixed)
        if len(points) > 1:
            lines = {name: np.stack([by_point[point][name] for point in points]) for name in MECHANISMS}
            panels.append(Panel(title, x_label, y_label, [point[place] for point in points], lines, log_x=place == 0))
    return panels

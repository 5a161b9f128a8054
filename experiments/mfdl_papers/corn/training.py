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
from mfdl.training.learned import chance

from ..figures import PublishedFigure, Reproduction, RunScale
from ..figures.trained_panels import (
    TIE,
    below,
    clear,
    guess_loss,
    log_ratios,
    losses,
    mean_ratio,
    panel_reproduction,
    seeded,
    tied,
    unsupported,
)
from ..figures.verdicts import Effect, Verdict
from .covariance_figures import (
    CLIP_NORM,
    DELTA,
    DENSITY,
    EPSILON,
    EPSILONS,
    NODES,
    SPARSE,
    STEPS,
    draw_seeds,
    graph_name,
)

DENSITIES = (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)  # of panel (b); 0.5 at EPSILON is a point of panel (a) too
LAST_STEPS = 199
MECHANISMS = {
    "LDP": ("dp-dsgd", "ldp"),
    "pairwise": ("corn-pairwise", "eavesdropper"),
    "CorN": ("corn", "eavesdropper"),
}
Point = tuple[float, float]  # epsilon, p
Results = Mapping[Point, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """One of the three tasks.

    Attributes:
        steps: T, in quick and in full mode. batch: records of a node in a step; None: all it has.
        rate: (line, epsilon) -> the published learning rate.
        quick: points of quick mode.
        accuracy: whether test accuracy is measured; its error, 1 - accuracy, is judged as a loss.
        all_shared: noise correlated over nodes comes from one seed, 20 normals a step instead of 40 and up to 210.
    """

    task: str
    steps: tuple[int, int]
    y_label: str
    rate: Callable[[str, float], float]
    quick: Sequence[Point]
    seeds: tuple[int, int] = (3, 10)
    batch: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    accuracy: bool = False
    all_shared: bool = False

    def settings(self, mechanism: str) -> tuple[str, ...]:
        """Parameters of a mechanism, as texts of `--set`."""
        horizon = ("corn.horizon=1",) if mechanism == "corn" else ()
        shared = self.all_shared and mechanism != "dp-dsgd"
        return (*horizon, f"{mechanism}.all_shared=true") if shared else horizon

    def guess(self, scale: RunScale) -> float | None:
        """Loss (or error) of a guess; None where the first model is the best one."""
        task = tasks.load(self.task, NODES, scale.data_home)
        if not self.accuracy:
            return guess_loss(task)
        share = getattr(chance(task), "accuracy", None)
        return None if share is None else 1 - float(share)

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
    "corn-3": TrainingSetup(
        task="rotated-quadratics",
        steps=(STEPS, STEPS),
        y_label="mean f(x) - f*",
        rate=lambda name, epsilon: 0.01,
        quick=((3.0, 0.5), (10.0, 0.2), (10.0, 0.5), (10.0, 1.0), (40.0, 0.5)),
        options={"lr_schedule": "inverse-sqrt"},
    ),
    "corn-4": TrainingSetup(
        task="a9a:split=pool",
        steps=(STEPS, STEPS),
        y_label="test loss",
        rate=a9a_rate,
        quick=((10.0, 0.2), (10.0, 1.0)),
        batch=128,
        options={"partition": "dirichlet:alpha=10"},
    ),
    "corn-5": TrainingSetup(
        task="mnist:split=pool,fraction=0.2",
        steps=(500, STEPS),
        y_label="test accuracy",
        rate=lambda name, epsilon: 0.1,
        quick=((10.0, 0.2), (10.0, 1.0)),
        batch=128,
        options={"partition": "dirichlet:alpha=10"},
        accuracy=True,
        all_shared=True,
    ),
}


def judged(by_point: Results, guess: float | None = None) -> list[Verdict]:
    """CorN best everywhere; the margin over pairwise noise largest on sparse graphs; a tie on the complete one."""
    verdicts = [_best(by_point, guess), _margin(by_point, guess)]
    return [*verdicts, _tie(by_point[EPSILON, 1.0], guess)] if (EPSILON, 1.0) in by_point else verdicts


def _best(by_point: Results, guess: float | None) -> Verdict:
    pairs = {
        f"{name}, epsilon {e:g}, p = {p:g}": (lines["CorN"], lines[name])
        for (e, p), lines in by_point.items()
        for name in ("pairwise", "LDP")
    }
    effects = below(pairs, guess=guess)
    lower = sum(mean_ratio(a, b) < 1 for a, b in pairs.values())
    factors = [mean_ratio(lines["LDP"], lines["CorN"]) for lines in by_point.values()]
    comparison = f"its mean is lower in {lower} of {len(pairs)} comparisons, beyond the joint 95 % intervals in "
    comparison += f"{clear(effects)}; LDP / CorN {min(factors):.3g} to {max(factors):.3g}"
    return Verdict("CorN is best at every budget and density", effects, comparison)


def _margin(by_point: Results, guess: float | None) -> Verdict:
    """The margin is log(pairwise / CorN) of a seed; every sparse graph beside every other, paired by seed."""
    claim = f"its margin over pairwise noise is largest for p <= {SPARSE:g}"
    pairs = {p: (lines["pairwise"], lines["CorN"]) for (e, p), lines in by_point.items() if e == EPSILON}
    margins = {p: log_ratios(*pair) for p, pair in pairs.items()}
    reasons = {p: unsupported(*pair, guess) for p, pair in pairs.items()}
    with np.errstate(invalid="ignore"):
        effects = [
            Effect.sampled(f"p = {p:g} beside {q:g}", margins[p] - margins[q], unsupported=reasons[p] or reasons[q])
            for p in margins
            for q in margins
            if p <= SPARSE < q
        ]
    if not effects:
        return Verdict.not_run(claim, "no densities on both sides")
    words = "pairwise / CorN " + ", ".join(f"{np.exp(np.mean(margins[p])):.3g} at p = {p:g}" for p in sorted(margins))
    sparse = [float(np.exp(np.mean(values))) for p, values in margins.items() if p <= SPARSE]
    return Verdict(claim, effects, words, value=max(sparse))


def _tie(lines: Mapping[str, np.ndarray], guess: float | None) -> Verdict:
    pair = lines["CorN"], lines["pairwise"]
    above, under = tied("p = 1", *pair, guess=guess)
    verdict = Verdict("it ties pairwise noise at p = 1 (within a factor of 2)", [above, under], "")
    low, high = (np.exp(end - TIE) for end in above.interval(verdict.level))
    ratio = float(np.exp(np.mean(log_ratios(*pair[::-1]))))
    words = f"pairwise / CorN {ratio:.3g}, 95 % interval {low:.3g} to {high:.3g}"
    return dataclasses.replace(verdict, finding=words, value=ratio)


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Trains the missing runs and judges them."""
    experiment = EXPERIMENTS[figure.name]
    full = [(e, DENSITY) for e in EPSILONS] + [(EPSILON, p) for p in DENSITIES]
    points = list(dict.fromkeys(scale.pick(experiment.quick, full)))
    seeds, period = draw_seeds(scale, *experiment.seeds), experiment.period(scale)
    common = {
        "task": experiment.task,
        "unit": "user",
        "adjacency": "replace-one",
        "delta": DELTA,
        "clip_norm": CLIP_NORM,
        "period": period,
        "epochs": scale.pick(*experiment.steps) // period,
        "eval_every": 20 if experiment.batch is None else 50,  # of 2,000 test images it costs five steps
        "data_home": scale.data_home,
        **experiment.options,
    }
    configs = {}
    for epsilon, p in points:
        for name, (mechanism, trust) in MECHANISMS.items():
            of_point: dict[str, Any] = {
                "mechanisms": (mechanism,),
                "trust": trust,
                "settings": experiment.settings(mechanism),
            }
            of_point |= {"epsilon": epsilon, "learning_rate": experiment.rate(name, epsilon)}
            configs[epsilon, p, name] = seeded(seeds, graph=functools.partial(graph_name, p), **of_point, **common)
    column = "accuracy" if experiment.accuracy else "loss"
    measured = losses(figure, scale, configs, last_steps=LAST_STEPS, column=column)
    by_point = {(e, p): {name: measured[e, p, name] for name in MECHANISMS} for e, p in points}
    panels = _panels(by_point, experiment.y_label, logarithmic=not experiment.accuracy)
    as_losses = {at: {name: 1 - v if experiment.accuracy else v for name, v in by_point[at].items()} for at in points}
    verdicts = judged(as_losses, experiment.guess(scale))
    caption = (
        f"{NODES} nodes, Erdős-Rényi, {experiment.task}, T = {common['epochs'] * period}, C = {CLIP_NORM}, "
        f"delta = {DELTA:g}, user level, replace-one, exact budgets. LDP: anyone who sees all messages; "
        f"pairwise and CorN: an eavesdropper. A draw of the graph for each of {len(seeds)} seeds, mean and range "
        f"over the last {LAST_STEPS} steps."
    )
    title, of_run = f"CorN-DSGD, {figure.figure}: {verdicts[0].finding}", {**common, "data_home": None}
    of_run["seeds"] = list(seeds)
    return panel_reproduction(figure, scale, verdicts, panels, (title, caption), settings=of_run)


def _panels(by_point: Results, y_label: str, *, logarithmic: bool = True) -> list[Panel]:
    """Against the budget, and against the density, where there is more than one point."""
    panels = []
    for title, x_label, place, fixed in (
        (f"(a) p = {DENSITY}", "epsilon", 0, DENSITY),
        (f"(b) epsilon = {EPSILON:g}", "edge probability p", 1, EPSILON),
    ):
        points = sorted(point for point in by_point if point[1 - place] == fixed)
        if len(points) > 1:
            lines = {name: np.stack([by_point[point][name] for point in points]) for name in MECHANISMS}
            x = [point[place] for point in points]
            panels.append(Panel(title, x_label, y_label, x, lines, log_x=place == 0, log_y=logarithmic))
    return panels

"""DECOR, Figure 1 (a): least squares at user level on three graphs, LDP, CDP and DECOR at equal budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..figures.figure import PublishedFigure, RunScale
from ..figures.of_panels import of_panels
from ..figures.reproduction import Reproduction
from ..figures.trained import losses
from .tradeoff import BudgetCurves, judged, runs, seeds_of

EPSILONS, QUICK_EPSILONS = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0), (3.0, 10.0, 40.0)
STEPS, LAST_STEPS = 3500, 199
SETTINGS: Mapping[str, Any] = {
    "task": "least-squares",
    "unit": "user",
    "adjacency": "replace-one",
    "delta": 1e-5,
    "clip_norm": 1.0,
    "learning_rate": 1.668e-3,
    "period": 1,
    "epochs": STEPS,
    "eval_every": 20,
}


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Trains what is missing and judges it."""
    epsilons, seeds = scale.pick(QUICK_EPSILONS, EPSILONS), seeds_of(scale, 3, 5)
    points = runs(epsilons, seeds, lambda graph, mechanism, epsilon: SETTINGS)
    curves = BudgetCurves.of(epsilons, losses(figure, scale, points, last_steps=LAST_STEPS))
    verdicts = judged(curves)
    title = f"DECOR, Figure 1 (a), least squares: {verdicts[0].said}"
    caption = (
        f"16 nodes, user level, T = {STEPS}, C = 1, rate 1.668e-3, delta = 1e-5, replace-one, budgets spent exactly. "
        "LDP: anyone who sees all messages; DECOR: an eavesdropper; CDP: a server's average only: three trust models. "
        f"DECOR with the best of three couples. Mean and range of {len(seeds)} seeds, last {LAST_STEPS} steps."
    )
    of_run = {**SETTINGS, "epsilons": list(epsilons), "seeds": list(seeds)}
    return of_panels(
        figure,
        scale,
        verdicts,
        curves.panels("mean ||x - x*||²"),
        (title, caption),
        tables=curves.tables(),
        settings=of_run,
        numbers=curves.numbers(),
    )

"""FEMNIST on Florentine and Ego: final test accuracy against the budget, as in later public code of the MAFALDA paper.

A small convolutional network on the characters of ten writers a node; rates 5 and 2, a tenth of it after 81 steps; 20
epochs of 16 steps; all else as in `housing`. Judged is the test error 1 - accuracy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mfdl import data
from mfdl.errors import InvalidInput
from mfdl.pictures.line_charts import Panel
from mfdl.training import tasks
from mfdl.training.learned import chance

from ..figures.published_figures import PublishedFigure, Reproduction, RunScale
from ..figures.trained_panels import of_panels
from ..figures.verdicts import Verdict
from . import housing
from .budget_panels import BudgetPanel, budget_panels, judge_best, table_of
from .housing import BASELINES, COLOURS, NAMES, WITHOUT_NOISE, Place, TrainedTask

RATES = {"Florentine": 5.0, "Ego": 2.0}
DECAY = "step-decay:81:0.1"
"""The code lowers the rate after the first step of the sixth epoch."""

QUICK_EPOCHS, QUICK_WRITERS, QUICK_BUDGETS = 2, 2, (1.0,)


def training_on(name: str, scale: RunScale) -> TrainedTask:
    """What is trained on a graph; it is evaluated once, at the end."""
    epochs = scale.pick(QUICK_EPOCHS, housing.EPOCHS)
    return TrainedTask(
        task=scale.pick(f"femnist:writers={QUICK_WRITERS}", "femnist"),
        rate=RATES[name],
        lr_schedule=DECAY,
        epochs=epochs,
        eval_every=epochs * housing.PERIODS[0][0],
        by_accuracy=True,
    )


def places(scale: RunScale) -> tuple[dict[Place, float], dict[str, str]]:
    """The error of a guess at every place whose graph and records are there, and why others are missing."""
    names = scale.pick(("Florentine",), tuple(RATES))
    graphs, missing = housing.places(scale, *names)
    available = {}
    for place in graphs:
        if place.period != housing.PERIODS[0][0]:
            continue  # of the text on housing
        place = dataclasses.replace(place, training=training_on(place.name, scale))
        try:
            commonest = chance(tasks.load(place.training.task, place.graph, scale.data_home))
        except InvalidInput as error:
            missing[place.name] = f"{place.name}: {error}"
        else:
            available[place] = 1 - float(getattr(commonest, "accuracy", 0.0))
    return available, missing


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Trains the missing runs and judges them; nothing is run where FEMNIST is missing."""
    try:
        data.fetch(data.registered_files.FEMNIST, scale.data_home)
    except InvalidInput as error:
        return Reproduction(figure, scale, [Verdict.not_run(figure.claim, str(error))], missing=[str(error)])
    guesses, missing = places(scale)
    budgets = scale.pick(QUICK_BUDGETS, housing.BUDGETS)
    panels = budget_panels(scale, list(guesses), BASELINES, budgets)
    verdicts = [
        judge_best(panel.place.title, panel.mus, panel.finals, BASELINES, guesses[panel.place], "test error")
        for panel in panels
    ]
    verdicts += [Verdict.not_run(f"lowest test error at every budget ({name})", missing[name]) for name in missing]
    seeds = housing.seeds_of(scale)
    title = "FEMNIST: final test accuracy against the budget"
    of_run = housing.settings(seeds, training_on("Ego", scale))
    of_run |= {"lr": RATES, "lr_schedule": DECAY, "budgets": list(budgets)}
    return of_panels(
        figure,
        scale,
        verdicts,
        [panel_of(panel) for panel in panels],
        (title, caption(seeds)),
        tables=[table_of(panel, "test error") for panel in panels],
        settings=of_run,
        missing=list(missing.values()),
    )


def panel_of(of: BudgetPanel) -> Panel:
    """Accuracies over epsilon; a run that diverged has none."""
    lines = {NAMES[name]: np.where(np.isfinite(errors), 1 - errors, 0.0) for name, errors in of.finals.items()}
    x = [float(f"{epsilon:.3g}") for epsilon in of.epsilons]
    return Panel(
        of.place.title, "epsilon at delta = 1e-6", "final test accuracy", x, lines,
        log_x=True, log_y=False, dashed=[NAMES[WITHOUT_NOISE]], colours=COLOURS, y_range=(0.0, 1.0),
    )  # fmt: skip


def caption(seeds: Sequence[int]) -> str:
    """What lines and bands are."""
    return (
        f"FEMNIST, mean over nodes at the last step; lines: mean of {len(seeds)} seeds, bands: smallest to largest "
        "seed; all under LDP, zero-out."
    )

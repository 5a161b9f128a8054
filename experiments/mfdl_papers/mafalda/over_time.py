"""Test loss over the steps: Figure 3, left (Ego), and Figure 5 (Ego, and the graphs that the user brings)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfdl.pictures.line_charts import Panel

from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import below, clear, deviation, jackknifed, panel_reproduction, spread, unsupported
from ..figures.verdicts import Effect, Verdict
from . import housing
from .housing import COLOURS, NAMES, OURS, WITHOUT_NOISE, Place, TrainedPoint

RIVALS = ("dp-dsgd", "anti-pgd")
CLAIMED_REDUCTION, CLAIMED_ANTI_PGD = 0.31, 6.0
LEFT_MU, FIGURE_5_MU = 1.0, {"Ego": 0.5, "PeerTube": 1.0, "Misskey": 1.0}
SHOWN = (0.5, 6.0)  # test loss
Budgets = Mapping[float, Mapping[str, np.ndarray]]
"""By mu the final test losses of each mechanism, shape (seeds,)."""


@dataclasses.dataclass(frozen=True)
class LossCurves:
    """One panel: by mechanism test losses, `losses` of shape (steps, seeds) and `finals` (seeds,); inf: diverged."""

    place: Place
    mu: float
    epsilon: float
    steps: np.ndarray
    losses: Mapping[str, np.ndarray]
    finals: Mapping[str, np.ndarray]

    @property
    def title(self) -> str:
        return f"{self.place.title}; mu = {self.mu:g}, epsilon = {self.epsilon:.3g}"


def left(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Figure 3, left: Ego at mu = 1, and how far below DP-D-SGD it ends at every budget of the right-hand side."""
    available, missing = housing.places(scale, "Ego")
    curves = _trained(scale, dict.fromkeys(available, LEFT_MU))
    verdicts, rows, guess = [], [], housing.guess(scale)
    for panel in curves:
        where, budgets = panel.place.title, _at_every_budget(scale, panel.place)
        verdicts += [judge_reduction(where, budgets, guess), judge_anti_pgd(where, panel.finals["anti-pgd"])]
        rows += [(where, f"{mu:g}", f"{100 * _final_reduction(finals):.1f}") for mu, finals in budgets.items()]
    title = "Ego: test loss over the steps at one guarantee"
    done = _reproduction(figure, scale, curves, verdicts, list(missing.values()), title)
    every = Table("below DP-D-SGD over the last 50 steps", ("where", "mu", "% lower"), rows)
    return dataclasses.replace(done, tables=[*done.tables, every])


def reduction(ours: np.ndarray, baseline: np.ndarray) -> float:
    return float(1 - ours.mean() / baseline.mean())


def _final_reduction(finals: Mapping[str, np.ndarray]) -> float:
    return reduction(finals[OURS], finals["dp-dsgd"])


def _at_every_budget(scale: RunScale, place: Place) -> dict[float, dict[str, np.ndarray]]:
    points = housing.points(place, ("dp-dsgd", OURS), housing.housing_budgets(scale))
    results = housing.trained(scale, points)
    return {
        mu: {name: results.final(TrainedPoint(place, name, mu)) for name in ("dp-dsgd", OURS)}
        for mu in housing.housing_budgets(scale)
    }


def figure_5(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Figure 5: Ego at mu = 0.5, PeerTube (and Misskey) at mu = 1."""
    available, missing = housing.places(scale, *FIGURE_5_MU)
    curves = _trained(scale, {place: FIGURE_5_MU[place.name] for place in available})
    guess = housing.guess(scale)
    verdicts = [judge_lowest(panel.place.title, panel.losses, guess) for panel in curves]
    if "PeerTube" in missing:
        verdicts.append(Verdict.not_run("lowest test loss on PeerTube at mu = 1", missing["PeerTube"]))
    title = "Test loss over the steps at one guarantee"
    return _reproduction(figure, scale, curves, verdicts, list(missing.values()), title)


def judge_reduction(where: str, budgets: Budgets, guess: float | None = None) -> Verdict:
    """31 % below DP-D-SGD over the last 50 steps, mean against mean, at some budget: the text names none."""
    effects, words = [], []
    for mu, finals in budgets.items():
        pair = finals[OURS], finals["dp-dsgd"]
        values = jackknifed(reduction, *pair)
        effects.append(Effect.sampled(f"mu = {mu:g}", values, CLAIMED_REDUCTION, unsupported=unsupported(*pair, guess)))
        spread_of = deviation(values)
        about = "" if spread_of is None else f" +- {100 * spread_of / math.sqrt(len(values)):.0f}"
        words.append(f"{100 * _final_reduction(finals):.0f}{about} at mu = {mu:g}")
    claim = f"31 % lower test loss than DP-D-SGD over the last 50 steps, at some budget ({where})"
    finding = f"% lower (+- standard error): {', '.join(words)}"
    return Verdict(claim, effects, finding, max(map(_final_reduction, budgets.values())), quantifier="some")


def judge_anti_pgd(where: str, finals: np.ndarray) -> Verdict:
    """Anti-PGD above 6: the logarithm of its test loss over 6, by seed."""
    with np.errstate(divide="ignore"):
        effects = [Effect.sampled(where, np.log(finals / CLAIMED_ANTI_PGD))]
    claim = f"Anti-PGD ends above a test loss of 6 ({where})"
    return Verdict(claim, effects, f"ends at {spread(finals)}", float(finals.mean()), deviation(finals))


def judge_lowest(where: str, losses: Mapping[str, np.ndarray], guess: float | None = None) -> Verdict:
    """Below both rivals at every evaluated step of the second half, paired by seed."""
    half = len(losses[OURS]) // 2
    points = {
        f"{NAMES[rival]}, evaluation {i}": (losses[OURS][i], losses[rival][i])
        for rival in RIVALS
        for i in range(half, len(losses[OURS]))
    }
    effects = below(points, guess=guess)
    end = 1 - losses[OURS][-1].mean() / losses["dp-dsgd"][-1].mean()
    lower = sum(bool(ours.mean() < rival.mean()) for ours, rival in points.values())
    finding = f"lower mean at {lower} of {len(points)} points, beyond the joint 95 % intervals at {clear(effects)}; "
    finding += f"{100 * end:.1f} % below DP-D-SGD at the last step"
    claim = f"lowest test loss with noise over the second half of the steps ({where})"
    return Verdict(claim, effects, finding, float(end))


def _trained(scale: RunScale, budgets: Mapping[Place, float]) -> list[LossCurves]:
    points = {place: housing.points(place, (WITHOUT_NOISE, *RIVALS, OURS), [mu]) for place, mu in budgets.items()}
    results = housing.trained(scale, itertools.chain(*points.values()))
    curves = []
    for place, some in points.items():
        by_step = {point.mechanism: results.over_time(point) for point in some}
        finals = {point.mechanism: results.final(point) for point in some}
        losses = {mechanism: values for mechanism, (_, values) in by_step.items()}
        curves.append(LossCurves(place, *results.guarantee(some[-1]), by_step[OURS][0], losses, finals))
    return curves


def _reproduction(
    figure: PublishedFigure,
    scale: RunScale,
    curves: Sequence[LossCurves],
    verdicts: Sequence[Verdict],
    missing: list[str],
    title: str,
) -> Reproduction:
    panels, seeds = [*map(curve_panel, curves)], housing.housing_seeds(scale)
    caption = (
        f"California housing, mean over nodes; lines: mean of {len(seeds)} seeds, bands: smallest to largest seed; all "
        "under LDP, zero-out. Anti-PGD is left out where it never comes into the picture; the table has its loss."
    )
    of_run = housing.settings(seeds) | {"last_steps": 50}
    more: dict[str, Any] = {"tables": [*map(curve_table, curves)], "settings": of_run, "missing": missing}
    return panel_reproduction(figure, scale, verdicts, panels, (title, caption), **more)


def curve_panel(curves: LossCurves) -> Panel:
    """Lines within `SHOWN`; a mechanism that never enters the range is not drawn."""
    lines = {
        NAMES[mechanism]: np.where(np.isfinite(losses), losses, 10 * SHOWN[1])
        for mechanism, losses in curves.losses.items()
        if np.median(losses, axis=1).min() <= SHOWN[1]
    }
    look: dict[str, Any] = {"dashed": [NAMES[WITHOUT_NOISE]], "colours": COLOURS, "y_range": SHOWN}
    return Panel(curves.title, "step", "test loss", list(curves.steps), lines, **look)


def curve_table(curves: LossCurves) -> Table:
    rows = [
        (NAMES[mechanism], spread(finals), f"{finals.mean() / curves.finals['dp-dsgd'].mean():.3g}")
        for mechanism, finals in curves.finals.items()
    ]
    return Table(curves.title, ("mechanism", "test loss, last 50 steps", "over DP-D-SGD's"), rows)

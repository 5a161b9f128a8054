"""Final test loss or accuracy against the budget: Figure 3, right, Figure 4, and FEMNIST as in later public code.

Smaller graphs gain by larger batches only, says the text of Figure 4: every graph shares out the same records, so nodes
of a smaller graph have larger batches, by which noise is divided. The smaller graph is trained at the budgets of the
larger one, and again at budgets smaller by the ratio of their batches: a mean gradient then has the same noise on both.

FEMNIST: a small convolutional network on the characters of ten writers a node, 20 epochs of 16 steps; all else as in
`housing`. Judged is the test error 1 - accuracy.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfdl import data
from mfdl.errors import InvalidInput
from mfdl.pictures.line_charts import Panel
from mfdl.training import tasks
from mfdl.training.learned import chance

from ..figures import PublishedFigure, Reproduction, RunScale, Table
from ..figures.trained_panels import below, clear, deviation, jackknifed, mean_ratio, panel_reproduction, spread
from ..figures.verdicts import Effect, Verdict
from . import housing
from .housing import BASELINES, COLOURS, NAMES, OURS, WITHOUT_NOISE, Place, TrainedPoint, TrainedTask

LEVEL, CLAIMED_SHARE = 0.75, 0.5
REACHED = 1.0  # test loss at which the share is read where no run comes to `LEVEL`; a constant prediction has 1.304
GRAPHS_OF_FIGURE_4 = ("Florentine", "Ego", "PeerTube", "Misskey")
SHOWN = (0.5, 4.0)  # test loss


@dataclasses.dataclass(frozen=True)
class BudgetPanel:
    """One panel: by mechanism final test losses or errors of shape (budgets, seeds), inf where a run diverged."""

    place: Place
    mus: Sequence[float]
    epsilons: Sequence[float]
    finals: Mapping[str, np.ndarray]


def right(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Figure 3, right: Ego."""
    available, missing = housing.places(scale, "Ego")
    rivals = BASELINES[:2]
    panels = budget_panels(scale, available, rivals, housing.housing_budgets(scale))
    verdicts, guess = [], housing.guess(scale)
    for panel in panels:
        where = panel.place.title
        verdicts.append(judge_share(where, panel.epsilons, panel.finals))
        verdicts.append(judge_best(where, panel.mus, panel.finals, rivals, guess))
    title = "Ego: final test loss against the budget"
    return _reproduction(figure, scale, panels, verdicts, list(missing.values()), title)


def figure_4(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Figure 4: Florentine, Ego, PeerTube (and Misskey), beside all baselines."""
    available, missing = housing.places(scale, *GRAPHS_OF_FIGURE_4)
    panels = budget_panels(scale, available, BASELINES, housing.housing_budgets(scale))
    guess = housing.guess(scale)
    verdicts = [judge_best(panel.place.title, panel.mus, panel.finals, BASELINES, guess) for panel in panels]
    verdicts += size_verdicts(scale, available, housing.housing_budgets(scale), guess)
    if "PeerTube" in missing:
        verdicts.append(Verdict.not_run("lowest test loss at every budget (PeerTube)", missing["PeerTube"]))
    title = "Final test loss against the budget, graph by graph"
    return _reproduction(figure, scale, panels, verdicts, list(missing.values()), title)


def judge_share(where: str, epsilons: Sequence[float], finals: Mapping[str, np.ndarray]) -> Verdict:
    """Half the epsilon of DP-D-SGD at a test loss of 0.75, read off mean curves (+- standard error).

    Where runs without noise do not come there themselves, it is read at 1, which supports no verdict on 0.75.
    """
    least = float(finals[WITHOUT_NOISE].mean(axis=1).min())
    level = LEVEL if least < LEVEL else REACHED

    def epsilon(losses: np.ndarray) -> float:
        return epsilon_at(level, epsilons, losses.mean(axis=1))

    def share(ours: np.ndarray, baseline: np.ndarray) -> float:
        """Where the baseline never comes there, at most: its epsilon is above the largest."""
        return epsilon(ours) / min(epsilon(baseline), max(epsilons))

    ours, baseline = finals[OURS], finals["dp-dsgd"]
    values, value = jackknifed(share, ours, baseline), share(ours, baseline)
    error = deviation(values)
    about = "" if error is None else f" +- {error / math.sqrt(len(values)):.2f}"
    finding = f"{value:.2f}{about} of it (epsilon {epsilon(ours):.3g} against {epsilon(baseline):.3g})"
    if not math.isfinite(value):
        finding = f"MAFALDA does not come there up to epsilon = {max(epsilons):.3g}"
    out_of_reach = ""
    if level != LEVEL:
        finding = f"at a test loss of {level:g} {finding}"
        out_of_reach = f"runs without noise end at {least:.2f}: no run comes to a test loss of 0.75"
    effect = Effect.sampled(f"test loss {level:g}", 1 - values, 1 - CLAIMED_SHARE, unsupported=out_of_reach)
    return Verdict(f"half the epsilon of DP-D-SGD at a test loss of 0.75 ({where})", [effect], finding, value, error)


def epsilon_at(level: float, epsilons: Sequence[float], losses: np.ndarray) -> float:
    """The least epsilon at which the loss is down to a level, interpolated over log(epsilon); inf where it never is.

    >>> epsilon_at(0.75, [1.0, 4.0, 16.0], np.array([1.0, 0.5, 0.4]))
    2.0
    """
    below = np.flatnonzero(losses <= level)
    if not below.size:
        return math.inf
    i = int(below[0])
    if i == 0 or not np.isfinite(losses[i - 1]):
        return float(epsilons[i])
    share = (losses[i - 1] - level) / (losses[i - 1] - losses[i])
    return float(epsilons[i - 1] * (epsilons[i] / epsilons[i - 1]) ** share)


def judge_best(
    where: str,
    mus: Sequence[float],
    finals: Mapping[str, np.ndarray],
    rivals: Sequence[str],
    guess: float | None = None,
    measure: str = "test loss",
) -> Verdict:
    """Below every rival at every budget, paired by seed."""
    points = {
        f"{NAMES[rival]} at mu = {mu:g}": (finals[OURS][i], finals[rival][i])
        for rival in rivals
        for i, mu in enumerate(mus)
    }
    effects = below(points, guess=guess)
    lost = [at for at, (ours, rival) in points.items() if not ours.mean() < rival.mean()]
    won = len(points) - len(lost)
    finding = f"lower mean at {won} of {len(points)} points, beyond the joint 95 % intervals at {clear(effects)}"
    finding += f", not below {', '.join(lost)}" if lost else ""
    also = ", D-MF included" if "d-mf" in rivals else ""
    return Verdict(f"lowest {measure} at every budget{also} ({where})", effects, finding, won / len(points))


def budget_panels(
    scale: RunScale, places: Sequence[Place], rivals: Sequence[str], mus: Sequence[float]
) -> list[BudgetPanel]:
    """One for each place: trained without noise, with each rival and with MAFALDA, at every budget."""
    mechanisms = (WITHOUT_NOISE, *rivals, OURS)
    points = {place: housing.points(place, mechanisms, mus) for place in places}
    results = housing.trained(scale, itertools.chain(*points.values()))
    panels = []
    for place, some in points.items():
        finals = {
            name: np.array([results.final(point) for point in some if point.mechanism == name]) for name in mechanisms
        }
        finals[WITHOUT_NOISE] = np.repeat(finals[WITHOUT_NOISE], len(mus), axis=0)
        epsilons = [results.guarantee(point)[1] for point in some if point.mechanism == OURS]
        panels.append(BudgetPanel(place, mus, epsilons, finals))
    return panels


def _reproduction(
    figure: PublishedFigure,
    scale: RunScale,
    by_place: Sequence[BudgetPanel],
    verdicts: Sequence[Verdict],
    missing: list[str],
    title: str,
) -> Reproduction:
    panels, seeds = [budget_panel(curves) for curves in by_place], housing.housing_seeds(scale)
    caption = (
        f"California housing, mean over nodes and the last 50 steps; lines: mean of {len(seeds)} seeds, bands: "
        "smallest to largest seed; all under LDP, zero-out. Anti-PGD is left out where it never comes into the picture."
    )
    of_run = housing.settings(seeds) | {"budgets": list(housing.housing_budgets(scale))}
    more: dict[str, Any] = {"tables": [*map(budget_table, by_place)], "settings": of_run, "missing": missing}
    return panel_reproduction(figure, scale, verdicts, panels, (title, caption), **more)


def budget_panel(of: BudgetPanel) -> Panel:
    """Lines over epsilon; a mechanism that nowhere comes into the picture is not drawn."""
    lines = {
        NAMES[mechanism]: np.where(np.isfinite(finals), finals, 1000 * SHOWN[1])
        for mechanism, finals in of.finals.items()
        if finals.mean(axis=1).min() <= SHOWN[1]
    }
    return _panel(of, "test loss", lines, y_range=SHOWN)


def _panel(of: BudgetPanel, measure: str, lines: Mapping[str, np.ndarray], **more: Any) -> Panel:
    x = [float(f"{epsilon:.3g}") for epsilon in of.epsilons]
    look: dict[str, Any] = {"log_x": True, "dashed": [NAMES[WITHOUT_NOISE]], "colours": COLOURS, **more}
    return Panel(of.place.title, "epsilon at delta = 1e-6", f"final {measure}", x, lines, **look)


def budget_table(of: BudgetPanel, measure: str = "test loss") -> Table:
    rows = [
        (f"{mu:g}", f"{epsilon:.3g}", *(spread(finals[i]) for finals in of.finals.values()))
        for i, (mu, epsilon) in enumerate(zip(of.mus, of.epsilons, strict=True))
    ]
    return Table(f"final {measure}, {of.place.title}", ("mu", "epsilon", *(NAMES[name] for name in of.finals)), rows)


CLAIMS = "a smaller graph has the lower test loss at every budget", "but not with the noise of the larger one's batches"


@dataclasses.dataclass(frozen=True)
class GraphPair:
    """Two graphs that share out the same records, with the records of a node in a step on each."""

    smaller: Place
    larger: Place
    batches: tuple[float, float]

    @property
    def title(self) -> str:
        return f"{self.smaller.name} beside {self.larger.title}"

    def budget(self, mu: float) -> float:
        """Budget of the smaller graph with the noise of the larger one at mu."""
        return mu * self.batches[1] / self.batches[0]


def pairs(scale: RunScale, places: Sequence[Place]) -> list[GraphPair]:
    """Each graph beside the next larger one with as many steps an epoch."""
    sizes, batches = {}, {}
    for place in places:
        config = TrainedPoint(place, OURS, 1.0).config(housing.FIRST_SEED, scale.data_home)
        sizes[place] = config.sparse_network()[0].num_nodes
        task = tasks.load(config.task, sizes[place], scale.data_home)
        batches[place] = float(task.public_batch_sizes(place.period).max())
    ordered = sorted(places, key=lambda place: (place.period, sizes[place]))
    return [
        GraphPair(smaller, larger, (batches[smaller], batches[larger]))
        for smaller, larger in itertools.pairwise(ordered)
        if smaller.period == larger.period and batches[smaller] > batches[larger]
    ]


def size_verdicts(scale: RunScale, places: Sequence[Place], mus: Sequence[float], guess: float | None) -> list[Verdict]:
    """Two verdicts for each pair, of MAFALDA's runs; the missing ones are trained."""
    verdicts = []
    for pair in pairs(scale, places):
        lines = {
            "smaller": [TrainedPoint(pair.smaller, OURS, mu) for mu in mus],
            "same noise": [TrainedPoint(pair.smaller, OURS, pair.budget(mu)) for mu in mus],
            "larger": [TrainedPoint(pair.larger, OURS, mu) for mu in mus],
        }
        results = housing.trained(scale, itertools.chain(*lines.values()))
        finals = {name: [results.final(point) for point in line] for name, line in lines.items()}
        verdicts += judge(pair, mus, finals, guess)
    return verdicts or [Verdict.not_run("; ".join(CLAIMS), "it needs two graphs")]


def judge(
    pair: GraphPair, mus: Sequence[float], finals: Mapping[str, Sequence[np.ndarray]], guess: float | None = None
) -> list[Verdict]:
    """From test losses (seeds,) at each budget, paired by seed: the larger graph is above the smaller, then below it.

    Args: finals: of the "smaller" and the "larger" graph, and of the smaller one with the "same noise" as the larger.
    """
    verdicts, share = [], pair.batches[0] / pair.batches[1]
    for claim, name, words in (
        (CLAIMS[0], "smaller", "test loss over the larger graph's"),
        (CLAIMS[1], "same noise", f"at budgets {share:.3g} times smaller, test loss over its"),
    ):
        losses = {f"mu = {mu:g}": both for mu, *both in zip(mus, finals[name], finals["larger"], strict=True)}
        ratios = [mean_ratio(*both) for both in losses.values()]
        ordered = {at: (a, b) if name == "smaller" else (b, a) for at, (a, b) in losses.items()}
        effects = below(ordered, guess=guess)
        finding = f"{words} {min(ratios):.3g} to {max(ratios):.3g}; as claimed beyond the joint 95 % intervals at "
        finding += f"{clear(effects)} of {len(effects)} budgets"
        verdicts.append(Verdict(f"{claim} ({pair.title})", effects, finding))
    return verdicts


RATES = {"Florentine": 5.0, "Ego": 2.0}
DECAY = "step-decay:81:0.1"  # the code lowers the rate after the first step of the sixth epoch
QUICK_EPOCHS, QUICK_WRITERS, QUICK_BUDGETS = 2, 2, (1.0,)


def training_on(name: str, scale: RunScale) -> TrainedTask:
    """What is trained on a graph; it is evaluated once, at the end."""
    epochs, task = scale.pick(QUICK_EPOCHS, housing.EPOCHS), scale.pick(f"femnist:writers={QUICK_WRITERS}", "femnist")
    return TrainedTask(task, RATES[name], DECAY, epochs, eval_every=epochs * housing.PERIODS[0][0], by_accuracy=True)


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
        data.fetch(data.FEMNIST, scale.data_home)
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
    seeds = housing.housing_seeds(scale)
    title = "FEMNIST: final test accuracy against the budget"
    of_run = housing.settings(seeds, training_on("Ego", scale))
    of_run |= {"lr": RATES, "lr_schedule": DECAY, "budgets": list(budgets)}
    caption = (
        f"FEMNIST, mean over nodes at the last step; lines: mean of {len(seeds)} seeds, bands: smallest to largest "
        "seed; all under LDP, zero-out."
    )
    tables = [budget_table(panel, "test error") for panel in panels]
    more: dict[str, Any] = {"tables": tables, "settings": of_run, "missing": list(missing.values())}
    return panel_reproduction(figure, scale, verdicts, [*map(error_panel, panels)], (title, caption), **more)


def error_panel(of: BudgetPanel) -> Panel:
    """Accuracies over epsilon; a run that diverged has none."""
    lines = {NAMES[name]: np.where(np.isfinite(errors), 1 - errors, 0.0) for name, errors in of.finals.items()}
    return _panel(of, "test accuracy", lines, log_y=False, y_range=(0.0, 1.0))

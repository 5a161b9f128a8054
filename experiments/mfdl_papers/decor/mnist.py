"""DECOR, Figure 1 (c): a network on MNIST at example level, with batches drawn by Poisson sampling.

A sampled mechanism is no cell of a sweep: it has no mu, and its participation is drawn. Runs are a file each.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mfdl import Privacy, algorithms, calibrate, files, gossip, graphs
from mfdl.decor_search import POSITIONS, pair_ratios
from mfdl.dynamics import Dynamics
from mfdl.factorization.pairwise_covariance import PairwisePrice
from mfdl.participation import PoissonSampling
from mfdl.pictures.line_charts import Panel
from mfdl.progress import reporter
from mfdl.training import tasks
from mfdl.training.replay import replay
from mfdl.trust import LDP, Eavesdropper

from ..figures import PublishedFigure, Reproduction, RunScale
from ..figures.trained_panels import deviation, engine, panel_reproduction
from ..figures.verdicts import Effect, Verdict
from .budget_curves import GRAPHS, LINES, published_seeds

EPSILONS = {0.83: 0.001, 2.39: 0.01, 4.35: 0.1, 7.51: 1.0}
"""Budgets, with what the paper's figure calls them: an accountant of one step, without T or delta."""
QUICK_EPSILONS = (0.83,)
NODES, DELTA, BATCH, STEPS, QUICK_STEPS, EVALUATIONS = 16, 1e-5, 64, 1000, 200, 10
AVERAGED = 100.0  # sigma_cor / sigma_ldp on the complete graph, from which on only the average of all noise is left
CLAIMED_GAP, CLOSE = 0.10, 0.01
GUESS = 0.12  # above the accuracy of the commonest digit
CLAIMS = (
    "at the smallest budget LDP is almost ten points of accuracy below CDP",
    "DECOR on ring and torus is within a point of CDP",
)
FULL = "mnist-mlp"
MISSING = (
    "the 60,000 training images are not there: of the 10,000 others a record takes part seven times as often; under "
    "the noise that this needs the published rates train nothing; run `mfdl data fetch mnist`, or bring the files"
)


@dataclasses.dataclass(frozen=True)
class MnistRun:
    """One training run of Figure 1 (c)."""

    graph: str
    line: str
    epsilon: float
    seed: int
    steps: int
    data_home: Path | None = None

    @property
    def name(self) -> str:
        """File name."""
        return f"{self.line}-{self.graph}-{self.epsilon:g}-{self.seed}-{self.steps}.json"


def published(graph: str, line: str, epsilon: float) -> tuple[float, float]:
    """Rate and clipping norm that the paper chose; below its two largest budgets those of the second."""
    if line == "CDP" or (line, graph) == ("DECOR", "complete"):
        return 5.0, 1.0
    if line == "LDP":
        return 1.0, 1.0
    largest = EPSILONS[epsilon] == 1.0
    return {"torus": ((5.0, 1.0), (1.0, 5.0)), "ring": ((2.0, 1.0), (1.0, 1.5))}[graph][largest]


def train(wanted: MnistRun) -> dict[str, Any]:
    """Final test accuracy, mean over nodes, and the guarantee."""
    on = GRAPHS["complete" if wanted.line == "CDP" else wanted.graph]
    graph = graphs.load(on)
    task = tasks.load("mnist-mlp", graph, wanted.data_home, partition="dirichlet:alpha=10")
    rate, clip = published(wanted.graph, wanted.line, wanted.epsilon)
    dynamics = Dynamics(gossip.metropolis_hastings(graph), rate, weight_decay=1e-5)
    sampling = PoissonSampling(rate=BATCH * NODES / len(task.targets), steps=wanted.steps)
    best = math.sqrt(pair_ratios(PairwisePrice(graph, 0), POSITIONS[:1])[0])
    pair = {"LDP": 0.0, "CDP": AVERAGED, "DECOR": best}[wanted.line]
    algorithm = algorithms.decor(dynamics, sampling, sigma_ldp=1.0, sigma_cor=pair)
    trust = LDP() if wanted.line == "LDP" else Eavesdropper()
    privacy = Privacy(trust, adjacency="zero-out", clip_norm=clip)
    mechanism = calibrate(algorithm, privacy, epsilon=wanted.epsilon, delta=DELTA)
    every = max(1, wanted.steps // EVALUATIONS)
    (trained,) = replay(mechanism, task, seeds=[wanted.seed], eval_every=every, progress=False).seeds
    terms = {"noise_std": mechanism.noise_std, "guarantee": str(mechanism.guarantee)}
    return {"accuracy": trained.final_accuracy or 0.0, "task": task.name, **terms}


def accuracies(wanted: Iterable[MnistRun], figure: PublishedFigure, scale: RunScale) -> dict[MnistRun, dict[str, Any]]:
    """Trains the runs that the folder lacks; each is stored as soon as it is finished."""
    every = list(dict.fromkeys(wanted))
    folder = scale.out / figure.name / "runs"
    results = {cell: json.loads((folder / cell.name).read_text()) for cell in every if (folder / cell.name).exists()}
    missing = [cell for cell in every if cell not in results]
    with reporter(scale.progress).bar("training runs", len(missing)) as report:
        for place, result in engine(scale).run(train, missing):
            files.atomic_write_json(folder / missing[place].name, result)
            results[missing[place]] = result
            report(1)
    return results


def judged(lines: Mapping[str, Mapping[str, np.ndarray]], guess: float = GUESS) -> list[Verdict]:
    """By graph and line accuracies (budgets, seeds), budgets increasing: the gap at the least, DECOR beside CDP."""
    gaps = np.mean([some["CDP"][0] - some["LDP"][0] for some in lines.values()], axis=0)
    nothing = "CDP has no accuracy above that of a guess"
    reason = "" if min(some["CDP"][0].mean() for some in lines.values()) > guess else nothing
    effects = [Effect.sampled("the smallest budget", gaps, CLAIMED_GAP, unsupported=reason)]
    gap = Verdict(CLAIMS[0], effects, f"{100 * gaps.mean():.1f} points", float(gaps.mean()), deviation(gaps))
    close, words = [], []
    for graph, some in lines.items():
        if graph == "complete":
            continue
        below = some["CDP"] - some["DECOR"]
        words.append(f"{graph} up to {100 * max(below.mean(axis=1)):.1f} points below")
        for i, values in enumerate(below):
            reason = "" if some["CDP"][i].mean() > guess else nothing
            close.append(Effect.sampled(f"{graph}, budget {i + 1}", CLOSE - values, unsupported=reason))
    return [gap, Verdict(CLAIMS[1], close, ", ".join(words))]


def run(figure: PublishedFigure, scale: RunScale) -> Reproduction:
    """Trains the missing runs and judges them."""
    data = tasks.load("mnist-mlp", NODES, scale.data_home).name
    if data != FULL:
        return Reproduction(figure, scale, [Verdict.not_run(claim, MISSING) for claim in CLAIMS], missing=[MISSING])
    epsilons, seeds = scale.pick(QUICK_EPSILONS, tuple(EPSILONS)), published_seeds(scale, 1, 4)
    steps, shown_graphs = scale.pick(QUICK_STEPS, STEPS), scale.pick(("ring",), tuple(GRAPHS))

    def wanted(graph: str, line: str, epsilon: float, seed: int) -> MnistRun:
        on = "complete" if line == "CDP" else graph
        return MnistRun(on, line, epsilon, seed, steps, scale.data_home)

    points = itertools.product(shown_graphs, LINES, epsilons, seeds)
    results = accuracies(itertools.starmap(wanted, points), figure, scale)

    def measured(graph: str, line: str) -> np.ndarray:
        return np.array([[results[wanted(graph, line, e, s)]["accuracy"] for s in seeds] for e in epsilons])

    lines = {graph: {line: measured(graph, line) for line in LINES} for graph in shown_graphs}
    verdicts = judged(lines)
    labels = "epsilon", "test accuracy"
    panels = [Panel(f"{graph}, 16 nodes", *labels, epsilons, some, log_y=False) for graph, some in lines.items()]
    caption = (
        f"{NODES} nodes, {data}, 784-128-10, example level, T = {steps}, about {BATCH} records a step by Poisson "
        f"sampling, delta = {DELTA:g}, zero-out, published rates and clipping norms. LDP: anyone who sees all "
        "messages; DECOR: an eavesdropper; CDP: complete averaging of noise that is pairwise up to its average. "
        f"{len(seeds)} seeds."
    )
    of_run = {"epsilons": list(epsilons), "seeds": list(seeds), "steps": steps, "batch": BATCH, "task": data}
    words = f"DECOR, Figure 1 (c): LDP is {verdicts[0].finding} below CDP", caption
    return panel_reproduction(figure, scale, verdicts, panels, words, settings=of_run)

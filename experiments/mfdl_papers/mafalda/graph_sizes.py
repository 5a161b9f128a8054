"""The text of Figure 4: smaller graphs gain by larger batches only.

Every graph shares out the same records, so nodes of a smaller graph have larger batches, by which noise is divided.
The smaller graph is trained at the budgets of the larger one, and again at budgets smaller by the ratio of their
batches: then a mean gradient has the same noise on both, and the gain by larger batches is gone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from mfdl.training import tasks

from ..figures.paired_effects import below, clear, of_means
from ..figures.published_figures import RunScale
from ..figures.verdicts import Verdict
from . import housing
from .housing import OURS, Place, TrainedPoint

CLAIMS = "a smaller graph has the lower test loss at every budget", "but not with the noise of the larger one's batches"


@dataclasses.dataclass(frozen=True)
class GraphPair:
    """Two graphs that share out the same records.

    Attributes: batches: records of a node in a step, on the smaller and on the larger graph.
    """

    smaller: Place
    larger: Place
    batches: tuple[float, float]

    @property
    def title(self) -> str:
        """Both, and the steps of an epoch."""
        return f"{self.smaller.name} beside {self.larger.title}"

    def budget(self, mu: float) -> float:
        """Of the smaller graph, with the noise of the larger one at mu."""
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
        results = housing.trained(scale, [point for line in lines.values() for point in line], housing.seeds_of(scale))
        finals = {name: [results.final(point) for point in line] for name, line in lines.items()}
        verdicts += judge(pair, mus, finals, guess)
    return verdicts or [Verdict.not_run("; ".join(CLAIMS), "it needs two graphs")]


def judge(
    pair: GraphPair, mus: Sequence[float], finals: Mapping[str, Sequence[np.ndarray]], guess: float | None = None
) -> list[Verdict]:
    """Of test losses (seeds,) at each budget, paired by seed: the larger graph is above the smaller one, then below it.

    Args: finals: of the "smaller" and the "larger" graph, and of the smaller one with the "same noise" as the larger.
    """
    verdicts = []
    for claim, name, words in (
        (CLAIMS[0], "smaller", "test loss over the larger graph's"),
        (
            CLAIMS[1],
            "same noise",
            f"at budgets {pair.batches[0] / pair.batches[1]:.3g} times smaller, test loss over its",
        ),
    ):
        losses = {f"mu = {mu:g}": both for mu, *both in zip(mus, finals[name], finals["larger"], strict=True)}
        ratios = [of_means(*both) for both in losses.values()]
        ordered = {at: (a, b) if name == "smaller" else (b, a) for at, (a, b) in losses.items()}
        effects = below(ordered, guess=guess)
        finding = f"{words} {min(ratios):.3g} to {max(ratios):.3g}; as claimed beyond the joint 95 % intervals at "
        finding += f"{clear(effects)} of {len(effects)} budgets"
        verdicts.append(Verdict(f"{claim} ({pair.title})", effects, finding))
    return verdicts

"""`RunPlan`: designs side by side at one privacy budget, and which of them nothing beats in loss and both costs.

In: designs with their guarantees and numbers (`planner`). Out: rows, a data frame, a picture, a folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfdl_solvers.ties import SAME

from .. import files
from ..display import Shown, data_frame, rounded_up
from ..privacy.guarantee import Guarantee
from ..privacy.questions import Privacy
from .design import Design, PredictedLoss
from .limit import ReleaseLimit

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

FILE, PICTURE = "plan.json", "plan"
RESOLUTION = 0.01
"""Relative difference of two losses that does not count against lower cost: predictions are no better than that."""
NOT_COUNTED = "Rates and designs chosen on test losses of private data cost privacy that is not counted."


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedDesign:
    """One design with the noise that its budget needs and what follows from it.

    Attributes:
        design: what is run; guarantee: of its calibrated mechanism.
        step_noise_std: nu b / N, of base noise on an averaged step.
        learning_time: sum of the learning rates; at the best rate of the grid if there is a curvature.
        published_noise_std: of noise in the published model of a node, per coordinate, without curvature, at this
            learning time; noise_on_the_way_std: of the models at which gradients are taken, mean square over the steps.
        gradient_evaluations: a record; messages: that a node sends, on average over the nodes.
        excess: the predicted excess loss at the best rate; None without a curvature.
        privacy, target: what its noise is calibrated to.
    """

    design: Design
    guarantee: Guarantee
    step_noise_std: float
    learning_time: float
    published_noise_std: float
    noise_on_the_way_std: float
    gradient_evaluations: int
    messages: float
    excess: PredictedLoss | None
    privacy: Privacy
    target: Mapping[str, float | None]

    def options(self) -> dict[str, Any]:
        """Options that train this design at its rate: `mfdl.compare(graph=..., task=..., **plan.best.options())`."""
        rate = self.learning_time / self.design.num_steps
        target = {name: value for name, value in self.target.items() if value is not None}
        return {**self.design.options(), "privacy": self.privacy, "learning_rate": rate, **target}

    @property
    def loss(self) -> float:
        """By which designs are sorted: predicted excess loss, or without a curvature noise in the published model."""
        return self.published_noise_std if self.excess is None else self.excess.total

    @property
    def costs(self) -> tuple[float, float, float]:
        """Loss, gradient evaluations, messages: less is better."""
        return (self.loss, float(self.gradient_evaluations), self.messages)

    def row(self, delta: float) -> dict[str, Any]:
        """As JSON and tables hold it. Args: delta: at which epsilon is given."""
        design, guarantee, excess = self.design, self.guarantee, self.excess
        return {
            "design": design.name,
            **dataclasses.asdict(design),
            "steps": design.num_steps,
            "predicted_excess_loss": None if excess is None else excess.total,
            "loss_of_bias": None if excess is None else excess.bias,
            "loss_of_published_noise": None if excess is None else excess.published,
            "loss_of_noise_on_the_way": None if excess is None else excess.on_the_way,
            "learning_rate": self.learning_time / design.num_steps,
            "learning_time": self.learning_time,
            "step_noise_std": self.step_noise_std,
            "published_noise_std": self.published_noise_std,
            "noise_on_the_way_std": self.noise_on_the_way_std,
            "gradient_evaluations": self.gradient_evaluations,
            "messages": self.messages,
            "noise_std": guarantee.noise_std,
            "mu": guarantee.mu,
            "epsilon": guarantee.epsilon(delta),
            "delta": delta,
            "accounted_participation": guarantee.participation,
        }


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunPlan(Shown):
    """Designs at one budget, best first.

    Attributes:
        designs: sorted by loss.
        records: of each node; delta: at which epsilon is given.
        left_out: names of designs whose factorization stopped before its tolerance.
        limit: least noise and predicted excess loss of one release at this budget.
    """

    designs: tuple[PlannedDesign, ...]
    records: int
    delta: float
    left_out: tuple[str, ...]
    limit: ReleaseLimit

    @property
    def best(self) -> PlannedDesign:
        """The Pareto-optimal design of least loss; a dearer one may have up to a few times `RESOLUTION` less."""
        return self.pareto[0]

    @cached_property
    def pareto(self) -> tuple[PlannedDesign, ...]:
        """Designs that no other one beats in loss, gradient evaluations and messages (`pareto_optimal`), best first."""
        return tuple(self.designs[i] for i in pareto_optimal([planned.costs for planned in self.designs]))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each design, best first; `pareto` says whether it is Pareto-optimal."""
        front = set(map(id, self.pareto))
        return [{**planned.row(self.delta), "pareto": id(planned) in front} for planned in self.designs]

    @property
    def has_curvature(self) -> bool:
        """Whether there is a predicted excess loss."""
        return self.best.excess is not None

    @property
    def guarantee(self) -> str:
        """What all designs are held to, from the guarantees of their calibrated mechanisms."""
        every = [planned.guarantee for planned in self.designs]
        first = every[0]
        epsilon = max(guarantee.epsilon(self.delta) for guarantee in every)
        mus = [guarantee.mu for guarantee in every]
        mu = "" if None in mus else f", mu = {rounded_up(max(m for m in mus if m is not None), 6)}"
        schemes = sorted(
            {guarantee.participation.partition(" (")[0].removesuffix(" participation") for guarantee in every}
        )
        gradients = "adaptive" if all(guarantee.adaptive for guarantee in every) else "non-adaptive"
        released = sorted({guarantee.release for guarantee in every} - {"not applicable"})
        return (
            f"Each design is calibrated to epsilon <= {rounded_up(epsilon, 4)} at delta = {self.delta:g}{mu}, for a "
            f"record of every node, against {first.attacker} (trust model {first.trust}), {first.adjacency}, clipping "
            f"at {first.clip_norm:g}, participation {' or '.join(schemes)}{', bins sampled in secret' * (None in mus)}"
            f"{', released models: ' + ' or '.join(released) if released else ''}, {gradients} gradients."
        )

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame. Raises: MissingExtra: pandas is not installed."""
        rows = self.rows
        return data_frame(rows, list(rows[0]))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "records": self.records,
            "best": self.best.design.name,
            "guarantee": self.guarantee,
            "caution": NOT_COUNTED,
            "limit": self.limit.to_dict(),
            "left_out": list(self.left_out),
            "designs": self.rows,
        }

    def plot(self) -> Figure:
        """Loss against gradient evaluations and against messages, the front of each mechanism as a line."""
        from ..pictures.line_charts import Front, draw_fronts

        measure = "predicted excess loss" if self.has_curvature else "std of the noise in the published model"
        panels = []
        for words, costs in (("gradient evaluations a record", 1), ("messages a node", 2)):
            points: dict[str, list[tuple[float, float]]] = {}
            for planned in self.designs:
                points.setdefault(planned.design.label, []).append((planned.costs[costs], planned.loss))
            series = {name: np.array(values) for name, values in sorted(points.items())}
            panels.append(Front(words, measure, series, self.limit.loss))
        title = f"{len(self.designs)} designs at one privacy budget"
        caption = (
            f"Lines join designs that no cheaper design of the same mechanism beats. {self.guarantee} {NOT_COUNTED}"
        )
        return draw_fronts(panels, title, caption)

    def save(self, folder: str | os.PathLike[str], **more: Any) -> list[Path]:
        """plan.json, plan.png and plan.svg in the folder. Args: more: further keys of plan.json."""
        from ..pictures.style import write_figure

        Path(folder).mkdir(parents=True, exist_ok=True)
        files.atomic_write_json(Path(folder) / FILE, {**more, **self.to_dict()})
        return [Path(folder) / FILE, *write_figure(folder, PICTURE, self.plot())]

    def _sentence(self) -> str:
        best = self.best
        loss = f"predicted excess loss {best.loss:.4g}" if self.has_curvature else f"published noise {best.loss:.4g}"
        return (
            f"of {len(self.designs)} designs, {len(self.pareto)} of them Pareto-optimal; the best is "
            f"{best.design.name} with {loss}, {best.gradient_evaluations} gradient evaluations a record and "
            f"{best.messages:,.0f} messages a node. {self.limit} {self.guarantee}"
        )

    def _rows(self) -> list[tuple[str, str]]:
        return [(planned.design.name, f"{planned.loss:.4g}") for planned in self.pareto]

    def _figure(self) -> Figure | None:
        return self.plot()


def pareto_optimal(costs: Sequence[tuple[float, ...]]) -> list[int]:
    """Indices of the points that no other one beats: cheaper, with a loss at most `RESOLUTION` above; or of less loss.

    Args: costs: loss first; the others must be at most as large for a point to beat another.

    >>> pareto_optimal([(1.0, 3.0), (1.001, 2.0), (2.0, 3.0), (3.0, 1.0)])
    [1, 3]
    """
    points = np.array(costs)
    loss, others = points[:, 0], points[:, 1:]
    front = []
    for i in range(len(points)):
        as_cheap, cheaper = (others <= others[i]).all(axis=1), (others < others[i]).any(axis=1)
        less = loss < loss[i] * (1 - SAME)
        if not (as_cheap & (less | (cheaper & (loss <= loss[i] * (1 + RESOLUTION))))).any():
            front.append(i)
    return front

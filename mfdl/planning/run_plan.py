"""`RunPlan`: designs side by side at one privacy budget, and which of them nothing beats in loss and both costs.

The limit of a plan: excess loss after one release of the mean gradient with Gaussian noise, at the same budget.

N records a node, n nodes, d the record shift. The noise of the mean over the nodes has at least the standard deviation

    d / (mu N sqrt(n (n - q))),    q nodes whose secrets the attacker may know, besides the mean.

Write noise as independent columns, c_k what column k adds to the sum over the nodes. An attacker who knows the
gradients and columns of q nodes sees the sum over the others, in which a record moves d / N: the columns that none of
the q holds have sum c_k^2 >= (d / (mu N))^2. A column with a holder is one of these for at most (n - q) / n of all sets
of q nodes, so the mean over the sets gives sum c_k^2 >= (d / (mu N))^2 n / (n - q), and the mean divides by n. Equal:
noise of each node alone beside noise that cancels in the sum, as of DECOR for sigma_cor to infinity on a graph that no
q nodes cut. LDP counts shared columns as known: q = n - 1. Outsiders, sums and averages: q = 0. One receiver: q = 1,
not attained where messages show more than the mean.

Along a direction of curvature lambda at distance D from the optimum the release shows lambda D, with noise sigma; the
linear estimate of least squared error leaves D^2 sigma^2 / (sigma^2 + lambda^2 D^2). Where a direction is learned this
is its part of the half trace of H^-1 times the covariance, where it is flat the loss at the start; it is never above
either. Runs of public batches are linear estimates too, whose releases tell no more at this budget.
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
from ..objective import Curvature
from ..privacy.guarantee import Guarantee
from ..privacy.questions import Privacy
from ..trust import LDP, AnyReceiver, Coalitions, FullCollusion, TrustModel
from .design import Design, PredictedLoss

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


FILE, PICTURE = "plan.json", "plan"
RESOLUTION = 0.01
"""Relative difference of two losses that does not count against lower cost: predictions are no better than that."""
PARTS_OF_LOSS = {
    "predicted_excess_loss": "total", "loss_of_bias": "bias", "loss_of_published_noise": "published",
    "loss_of_noise_on_the_way": "on_the_way",
}  # fmt: skip
NUMBERS_OF_ROW = (
    "learning_time", "step_noise_std", "published_noise_std", "noise_on_the_way_std", "gradient_evaluations",
    "messages",
)  # fmt: skip
NOT_COUNTED = "Rates and designs chosen on test losses of private data cost privacy that is not counted."


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedDesign:
    """One design with the noise that its budget needs and what follows from it.

    Attributes:
        step_noise_std: nu b / N, of base noise on an averaged step.
        learning_time: sum of the learning rates; at the best rate of the grid if there is a curvature.
        published_noise_std: in the published model of a node, per coordinate, at this learning time;
            noise_on_the_way_std: in the models at which gradients are taken, mean square over the steps.
        gradient_evaluations: a record; messages: that a node sends, on average over the nodes.
        excess: predicted at the best rate; None without a curvature. privacy, target: what its noise is calibrated to.
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
        return (self.loss, float(self.gradient_evaluations), self.messages)

    def row(self, delta: float) -> dict[str, Any]:
        """As JSON and tables hold it. Args: delta: at which epsilon is given."""
        design, guarantee, excess = self.design, self.guarantee, self.excess
        return {
            "design": design.name, **dataclasses.asdict(design), "steps": design.num_steps,
            **{key: excess and getattr(excess, name) for key, name in PARTS_OF_LOSS.items()},
            "learning_rate": self.learning_time / design.num_steps,
            **{name: getattr(self, name) for name in NUMBERS_OF_ROW}, "noise_std": guarantee.noise_std,
            "mu": guarantee.mu, "epsilon": guarantee.epsilon(delta), "delta": delta,
            "accounted_participation": guarantee.participation,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunPlan(Shown):
    """Designs at one budget, sorted by loss.

    Attributes: records: of each node; delta: at which epsilon is given; left_out: names of designs whose factorization
        stopped before its tolerance; limit: of one release at this budget.
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
        return self.best.excess is not None

    @property
    def guarantee(self) -> str:
        """What all designs are held to, from the guarantees of their calibrated mechanisms."""
        every = [planned.guarantee for planned in self.designs]
        first = every[0]
        epsilon = max(guarantee.epsilon(self.delta) for guarantee in every)
        mus = [guarantee.mu for guarantee in every]
        mu = "" if None in mus else f", mu = {rounded_up(max(m for m in mus if m is not None), 6)}"
        names = {each.participation.partition(" (")[0].removesuffix(" participation") for each in every}
        schemes = " or ".join(sorted(names))
        gradients = "adaptive" if all(guarantee.adaptive for guarantee in every) else "non-adaptive"
        released = sorted({guarantee.release for guarantee in every} - {"not applicable"})
        return (
            f"Each design is calibrated to epsilon <= {rounded_up(epsilon, 4)} at delta = {self.delta:g}{mu}, for a "
            f"record of every node, against {first.attacker} (trust model {first.trust}), {first.adjacency}, clipping "
            f"at {first.clip_norm:g}, participation {schemes}{', bins sampled in secret' * (None in mus)}"
            f"{', released models: ' + ' or '.join(released) if released else ''}, {gradients} gradients."
        )

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame. Raises: MissingExtra: pandas is not installed."""
        rows = self.rows
        return data_frame(rows, list(rows[0]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "records": self.records, "best": self.best.design.name, "guarantee": self.guarantee,
            "caution": NOT_COUNTED, "limit": self.limit.to_dict(), "left_out": list(self.left_out),
            "designs": self.rows,
        }  # fmt: skip

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
        meaning = "Lines join designs that no cheaper design of the same mechanism beats."
        caption = f"{meaning} {self.guarantee} {NOT_COUNTED}"
        return draw_fronts(panels, f"{len(self.designs)} designs at one privacy budget", caption)

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

    >>> pareto_optimal([(1.0, 3.0), (1.001, 2.0), (2.0, 3.0), (3.0, 1.0)])  # loss first
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


@dataclasses.dataclass(frozen=True)
class ReleaseLimit:
    """Least noise and loss of one release.

    Attributes: noise_std: of the mean over the nodes of their mean gradients, per coordinate; colluders: q, nodes whose
        secrets the attacker may know; loss: predicted excess loss from the start distance; None without a curvature.
    """

    noise_std: float
    colluders: int
    loss: float | None

    @classmethod
    def at_budget(
        cls, privacy: Privacy, mu: float, num_nodes: int, records: int, curvature: Curvature | None, distance: float
    ) -> ReleaseLimit:
        """Under the trust model of `privacy`. Args: records: N of each node; distance: D along each direction."""
        q = colluding_nodes(privacy.trust, num_nodes)
        std = least_noise_std(privacy.record_shift, mu, records, num_nodes, q)
        if curvature is None:
            return cls(std, q, None)
        eigenvalues, weights = np.asarray(curvature.eigenvalues), np.asarray(curvature.weights)
        left = (distance * std) ** 2 / (std**2 + (eigenvalues * distance) ** 2)
        return cls(std, q, float(weights @ left))

    def to_dict(self) -> dict[str, Any]:
        return {"predicted_excess_loss": self.loss, "noise_std": self.noise_std, "colluders": self.colluders}

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"predicted excess loss {self.loss:.3g}, "
        return (
            f"Limit of one release of the mean gradient at this budget: {loss}noise of std {self.noise_std:.3g} in the "
            f"mean, if the attacker sees it and knows the secrets of {self.colluders} nodes; quadratic loss, nothing "
            "clipped."
        )


def least_noise_std(record_shift: float, mu: float, records: float, num_nodes: int, colluders: int) -> float:
    """d / (mu N sqrt(n (n - q))), of the mean over the nodes; records: N of each node."""
    return record_shift / (mu * records * (num_nodes * (num_nodes - colluders)) ** 0.5)


def colluding_nodes(trust: TrustModel, num_nodes: int) -> int:
    """q of the limit: the size of the sets of attackers that include every node; 0 is always a limit."""
    if type(trust) in (LDP, FullCollusion):
        return num_nodes - 1
    return trust.size if isinstance(trust, Coalitions | AnyReceiver) else 0

"""The result of `replay`: every evaluated step, node and seed, with the mechanism and the task; its picture."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from .. import archive, check, graphs, metrics
from ..algorithms.registry import shortsighted
from ..display import Shown, data_frame, rounded_up, short_repr
from ..errors import InvalidInput, require_known
from ..gossip.sequences import communication_graph
from ..mechanism import MECHANISM, Mechanism
from ..metrics import NotPrivate, final_steps, not_private_fields
from ..privacy.guarantee import Guarantee
from ..spec import storable
from ..trust import TrustModel
from ..trust.base import node_indices
from .clipping import parse_rule
from .learned import AT_BEST, Baseline, Ended, Judged, mean_baseline
from .replay_config import statement

if TYPE_CHECKING:
    import pandas
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .tasks import Task

RUN = "run"
RUN_COLUMNS = (
    "mechanism", "trust", "mu", "epsilon", "delta", "lr", "graph", "graph_hash", "gossip", "gossip_hash", "task",
    "seed", "step", "node", "loss", "accuracy", "config_hash",
)  # fmt: skip


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class SeedRun:
    """One seed of one mechanism. No guarantee covers the fields marked `NotPrivate` (`not_private_fields`).

    Models and messages are covered for the attackers that the mechanism's guarantee names.

    Attributes:
        seed: None when drawn by the operating system. steps: evaluated steps (number of finished steps), shape (E,).
        loss, accuracy: on the test records, shape (E, n); accuracy is None for regression.
        models: released models, by default the final ones, shape (n, d); of a run that was stopped early the last ones.
        diverged: a model or a test loss was not finite at some evaluation.
        training_seconds: evaluation excluded. key_id: public name of the noise key.
        messages: of every step, shape (steps, messages, d), if `keep_messages`.
        generator: of the noise, a cipher, or Philox for a seed; seeded_noise: guessing the seed subtracts it: for
            research, never to be published.
        untrained_loss, untrained_accuracy: of the first model; None if unknown, or for regression.
        metrics: the requested ones by name (`mfdl.metrics`): of each node, shape (E, n); of the average model, (E,).
        released: every metric by name of released models that are not the last ones: of each node, shape (n,); of their
            average, ().
        dropped_records: gradients that were not finite and contributed zero, over all steps; at user level means.
    """

    __repr__ = short_repr

    seed: int | None
    steps: NDArray[np.int64]
    loss: NotPrivate[NDArray[np.float64]]
    accuracy: NotPrivate[NDArray[np.float64] | None]
    models: NDArray[np.float64]
    diverged: NotPrivate[bool]
    finished_steps: int
    training_seconds: NotPrivate[float]
    key_id: str
    messages: NDArray[np.float64] | None = None
    seeded_noise: bool = True
    generator: str = ""
    untrained_loss: NotPrivate[float | None] = None
    untrained_accuracy: NotPrivate[float | None] = None
    metrics: NotPrivate[Mapping[str, NDArray[np.float64]]] = dataclasses.field(default_factory=dict)
    released: NotPrivate[Mapping[str, NDArray[np.float64]]] = dataclasses.field(default_factory=dict)
    dropped_records: NotPrivate[int] = 0

    @property
    def measured(self) -> dict[str, NDArray[np.float64]]:
        """Every metric by name, `loss` first: of each node, shape (E, n); of the average model, (E,)."""
        accuracy = {} if self.accuracy is None else {"accuracy": self.accuracy}
        return {"loss": self.loss, **accuracy, **self.metrics}

    def final(self, metric: str = "loss", last_steps: int | None = None) -> float | None:
        """Mean of a metric over nodes: of the released models, or of the last models over the last evaluations.

        None if the run diverged or was not evaluated in them, or where the mean is not finite or has no values.

        Args: metric: a name of `measured`; last_steps: if given, the answer is that of `last`.
        Raises: InvalidInput: an unknown metric, or less than one step.
        """
        if last_steps is not None or not self.released:
            return self.last(metric, last_steps)
        require_known("metric", metric, metrics.WORDS)
        values = self.released.get(metric)
        mean = math.nan if values is None or self.diverged else float(values.mean())
        return mean if math.isfinite(mean) else None

    def last(self, metric: str = "loss", last_steps: int | None = None) -> float | None:
        """Mean of a metric over nodes and the last steps, default `final_steps`, whatever is released."""
        require_known("metric", metric, metrics.WORDS)
        span = (
            final_steps(self.finished_steps) if last_steps is None else check.integer_at_least(1, last_steps=last_steps)
        )
        late = self.steps > self.finished_steps - span
        values = self.measured.get(metric)
        if values is None or self.diverged or not late.any():
            return None
        mean = float(values[late].mean())
        return mean if math.isfinite(mean) else None

    @property
    def final_test_loss(self) -> float | None:
        return self.final("loss")

    @property
    def final_accuracy(self) -> float | None:
        return self.final("accuracy")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(Shown):
    """All seeds of one mechanism on one task.

    Attributes: chance_loss, chance_accuracy: test metrics of a guess that uses no record (`learned.chance`), or None;
        public_constants: those of the task, where the mechanism's batches are secret; step_rule: empty: none.
    """

    mechanism: Mechanism
    task_name: str
    seeds: tuple[SeedRun, ...]
    chance_loss: NotPrivate[float | None] = None
    chance_accuracy: NotPrivate[float | None] = None
    public_constants: str = ""
    step_rule: str = ""
    clipping: str = "flat"
    task: Task | None = dataclasses.field(default=None, metadata={"stored": False})

    def module(self, node: Hashable = 0, seed: int | None = None, *, task: Task | None = None) -> torch.nn.Module:
        """The torch module of the task with the released parameters of a node, for evaluation on the CPU in float32.

        A model to publish comes from `mfdl.replay(mechanism, task, seeds=None)`: noise of a seed can be subtracted.

        Args:
            node: index or label, as of a trust model; seed: one of the runs, default the first.
            task: the trained task; needed for a run that was loaded from a file, which holds no code.
        Guarantee: the parameters are covered for the attackers that the mechanism's guarantee names.
        Raises: InvalidInput: no such node or seed, or no task; a task of another size than the models.
        """
        task = task or self.task
        if task is None:
            raise InvalidInput("a run from a file holds no code of its task; give it: run.module(node, task=...).")
        if task.name != self.task_name:
            raise InvalidInput(f"the run is of task {self.task_name!r}, and the one given is {task.name!r}.")
        task.require_nodes(self.mechanism.algorithm.labels)
        algorithm = self.mechanism.algorithm
        named = node in algorithm.labels and not isinstance(node, int | np.integer)
        index = list(algorithm.labels).index(node) if named else node_indices(algorithm, [node])[0]  # type: ignore[list-item]
        of_seed = [run for run in self.seeds if seed is None or run.seed == seed]
        if not of_seed:
            raise InvalidInput(f"seed must be one of {[run.seed for run in self.seeds]}, got {seed!r}.")
        return task.module_with(of_seed[0].models[index], of_seed[0].seed)

    def statement(self, delta: float | None = None) -> str:
        """The guarantee of this run as fields, one a line, at a delta, and what of the task it leaves out."""
        return statement(self.mechanism, self.public_constants, delta, self.step_rule, self.clipping)

    def guarantee_so_far(self) -> Guarantee | None:
        """An upper bound on the privacy loss of the finished steps, see `Mechanism.guarantee_after`."""
        return self.mechanism.guarantee_after(max(run.finished_steps for run in self.seeds))

    def _sentence(self) -> str:
        steps, seeds = self.seeds[0].finished_steps, len(self.seeds)
        return (
            f"of {self.mechanism.algorithm.name} on task {self.task_name}, {seeds} seed{'s' * (seeds > 1)}, {steps} of "
            f"{self.mechanism.algorithm.num_steps} steps: {self.outcome}; {self.mechanism.guarantee._sentence()}"
        )

    @property
    def outcome(self) -> str:
        """Final loss and accuracy in words, and the baselines not beaten."""
        if self.diverged_seeds:
            return f"{len(self.diverged_seeds)} of {len(self.seeds)} seeds diverged; lower the learning rate"
        parts = [_mean_in_words("final test loss", self.final_test_losses)]
        parts.append(_mean_in_words("accuracy", [seed.final_accuracy for seed in self.seeds]))
        where = f" (mean over nodes and the last {self.last_steps} steps)"
        description = ", ".join(text for text in parts if text) + where if any(parts) else "not evaluated at its end"
        return "; ".join([description, *(text.removesuffix(".") for text in self.judged.advice)])

    @property
    def judged(self) -> Judged:
        return judged([self])

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("task", self.task_name), ("outcome", self.outcome), *self.mechanism._rows()]
        rule = parse_rule(self.clipping, self.mechanism.clip_norm).words
        more = [("clip rule", rule), ("step rule", self.step_rule), ("declared public", self.public_constants)]
        return [*rows, *((name, text) for name, text in more if text)]

    def _figure(self) -> Figure | None:
        return self.plot() if all(seed.steps.size for seed in self.seeds) else None

    @property
    def last_steps(self) -> int:
        return final_steps(max(run.finished_steps for run in self.seeds))

    @property
    def final_test_losses(self) -> list[float | None]:
        return [run.final_test_loss for run in self.seeds]

    @property
    def diverged_seeds(self) -> list[int | None]:
        return [run.seed for run in self.seeds if run.diverged]

    @property
    def node_steps_per_second(self) -> float:
        """Nodes x steps per second of training."""
        seconds = sum(run.training_seconds for run in self.seeds)
        steps = sum(run.finished_steps for run in self.seeds)
        return steps * self.mechanism.algorithm.num_nodes / seconds if seconds > 0 else float("inf")

    def rows(self) -> list[dict[str, Any]]:
        """One row per seed, evaluated step and node; metrics of the average model are repeated at each node."""
        labels = self.mechanism.algorithm.dynamics.gossip.labels
        return [
            {
                "mechanism": self.mechanism.algorithm.name,
                "seed": run.seed,
                "step": int(step),
                "node": str(label),
                **dict.fromkeys(("loss", "accuracy")),
                **{name: float(x[i, u] if x.ndim == 2 else x[i]) for name, x in run.measured.items()},
            }
            for run in self.seeds
            for i, step in enumerate(run.steps)
            for u, label in enumerate(labels)
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """The run in long format: one row for each seed, evaluated step and node; columns RUN_COLUMNS and the metrics.

        `delta` is the one stated beside epsilon, `lr` the rate of the step just finished, `config_hash` the mechanism's
        content hash. Loss, accuracy and metrics are `NotPrivate`.

        Raises: MissingExtra: pandas is not installed.
        """
        mechanism, guarantee = self.mechanism, self.mechanism.guarantee
        dynamics, T = mechanism.algorithm.dynamics, mechanism.algorithm.num_steps
        gossip, rates = dynamics.gossip, dynamics.learning_rates(T)
        graph = communication_graph(gossip, T * dynamics.gossip_rounds)
        same: dict[str, Any] = {"trust": guarantee.trust, "task": self.task_name, "config_hash": mechanism.content_hash}
        same |= {"mu": math.nan if guarantee.mu is None else guarantee.mu}  # none where batches are secret
        same |= {"epsilon": guarantee.epsilon(guarantee.stated_delta), "delta": guarantee.stated_delta}
        same |= {"graph": graph.name, "graph_hash": graphs.content_hash(graph)}
        same |= {"gossip": gossip.name, "gossip_hash": gossip.content_hash}
        table = ({**same, "lr": float(rates[max(row["step"] - 1, 0)]), **row} for row in self.rows())
        frame = data_frame(table, [*RUN_COLUMNS, *metrics.requested(self.seeds[0].metrics)])
        frame["accuracy"] = frame["accuracy"].astype(float)  # of regression nan, not objects
        return frame

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the run with its mechanism to exactly this path, whole or not at all, without a key.

        The file is readable by its owner alone: no guarantee covers the metrics (the header names them), and models and
        messages only for the attackers that it names. A file of a seeded run holds the seed of its noise.

        Raises: InvalidInput: as for `Mechanism.save`.
        """
        content = {
            **{name: getattr(self, name) for name in _stored_fields()},
            MECHANISM: self.mechanism.stored_fields(),
            "not_private": [*not_private_fields(SeedRun), *_CHANCE],
        }
        return archive.write(path, RUN, content, private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, anew: bool = True, trust: TrustModel | None = None) -> Run:
        """The run that `save` wrote; anew, trust: of the guarantee of its mechanism, see `Mechanism.load`.

        Raises: InvalidInput: as for `Mechanism.load`; seeds whose arrays do not fit the mechanism.
        """
        content = archive.read(path, RUN)
        with archive.refusing(path, RUN):
            fields = {name: content[name] for name in _stored_fields()}
            mechanism = Mechanism.of_file(content[MECHANISM], anew=anew, trust=trust)
            for seed in fields["seeds"]:
                _require_shapes(seed, mechanism)
            for name in _CHANCE:
                if (value := fields[name]) is not None and not isinstance(value, float):
                    raise InvalidInput(f"its {name} is {value!r}, no number.")
            return cls(**{**fields, "mechanism": mechanism})

    @overload
    def plot(self, ax: None = None, *, metric: str = "loss") -> Figure: ...

    @overload
    def plot(self, ax: Axes, *, metric: str = "loss") -> Axes: ...

    def plot(self, ax: Axes | None = None, *, metric: str = "loss") -> Figure | Axes:
        """Test loss or another metric over steps, mean over nodes with the spread over seeds; axes are returned."""
        return plot_runs([self], ax, metric=metric)


_CHANCE = ("chance_loss", "chance_accuracy")


def _require_shapes(seed: SeedRun, mechanism: Mechanism) -> None:
    n, T = mechanism.algorithm.num_nodes, mechanism.algorithm.num_steps
    evaluated = seed.steps.shape
    fits = all(
        table.shape == (*evaluated, n)[: 2 if metrics.is_of_nodes(name) else 1] for name, table in seed.measured.items()
    )
    fits = fits and len(seed.models) == n and set(seed.metrics) <= set(metrics.METRICS)
    if not fits or seed.steps.ndim != 1 or not 0 <= seed.finished_steps <= T:
        raise InvalidInput(
            f"its seed {seed.seed} has arrays of other sizes than {seed.steps.size} evaluations x {n} nodes."
        )


def is_private(mechanism: Mechanism) -> bool:
    return mechanism.guarantee.finite


def judged(runs: Sequence[Run]) -> Judged:
    """Runs of one task with the same seeds, compared with the untrained model and with chance."""
    ended = []
    for run in runs:
        algorithm, private = run.mechanism.algorithm, is_private(run.mechanism)
        accuracies, diverged = [seed.final_accuracy for seed in run.seeds], len(run.diverged_seeds)
        dropped, remark = sum(seed.dropped_records for seed in run.seeds), shortsighted(algorithm)
        ended.append(Ended(algorithm.name, private, run.final_test_losses, accuracies, diverged, remark, dropped))
    first = runs[0]
    start = [_baseline(seed.untrained_loss, seed.untrained_accuracy) for seed in first.seeds]
    return Judged(ended, mean_baseline(start), _baseline(first.chance_loss, first.chance_accuracy))


def _baseline(loss: float | None, accuracy: float | None) -> Baseline | None:
    return None if loss is None else Baseline(loss, accuracy)


def _mean_in_words(name: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    spread = f" +- {np.std(known, ddof=1):.2g} (standard deviation over seeds)" if len(known) > 1 else ""
    return f"{name} {np.mean(known):.4g}{spread}"


def _stored_fields() -> list[str]:
    return [field.name for field in dataclasses.fields(Run) if field.metadata.get("stored", True)]


def plot_runs(runs: Sequence[Run], ax: Axes | None = None, *, metric: str = "loss") -> Figure | Axes:
    """Test loss over steps and final losses of runs on one task, one run per mechanism.

    Args: ax: axes for the curves, which are then returned; default a Figure with final losses and guarantees;
        metric: "loss", "accuracy" of a classifier, or a requested metric.
    Raises: InvalidInput: no run, another metric, or one that a run did not measure.
    """
    from ..pictures.curves import Curves, draw_curves, draw_over_steps  # matplotlib only where a picture is wanted
    from ..pictures.style import mechanism_looks

    require_known("metric", metric, metrics.WORDS)
    if not runs:
        raise InvalidInput("runs must hold at least one run.")
    names = [run.mechanism.algorithm.name for run in runs]
    verdict = judged(runs)
    curves = []
    for name, run, ended, look in zip(names, runs, verdict.ended, mechanism_looks(names), strict=True):
        steps, finals = [seed.steps for seed in run.seeds], [seed.final(metric) for seed in run.seeds]
        values = [_values(seed, metric, run.task_name) for seed in run.seeds]
        curves.append(Curves(name, look, steps, values, finals, ended.accuracy if metric == "loss" else None))
    levels = untrained_levels(verdict, metric)
    if ax is not None:
        return draw_over_steps(ax, curves, len(runs[0].seeds), levels=levels, metric=metric, named=False)
    task, gossip = runs[0].task_name, runs[0].mechanism.algorithm.dynamics.gossip
    seeds = ", ".join("not seeded" if seed.seed is None else str(seed.seed) for seed in runs[0].seeds)
    setting = f"Task {task} on {gossip.num_nodes} nodes with gossip {gossip.name}, seeds {seeds}."
    title = f"{metrics.WORDS[metric].capitalize()} on {task}, {gossip.num_nodes} nodes{_privacy(runs)}"
    if verdict.finding:
        title = f"{verdict.finding}: {task}{_privacy(runs)}"
    caption = " ".join([setting, *_guarantees(runs), *verdict.advice])
    first = runs[0]
    return draw_curves(curves, title, caption, len(first.seeds), first.last_steps, levels=levels, metric=metric)


def untrained_levels(verdict: Judged, metric: str = "loss") -> dict[str, float]:
    """The test loss, or test accuracy, of the untrained model, as a line to draw."""
    if (start := verdict.untrained) is None or "train" in metric:
        return {}
    level = start.accuracy if metrics.is_accuracy(metric) else start.loss if start.loss > AT_BEST else None
    return {} if level is None else {"untrained": level}


def _guarantees(runs: Sequence[Run]) -> list[str]:
    """A sentence for runs whose guarantees differ in the base noise alone, else one for each."""
    of_runs = {run.mechanism.algorithm.name: run.mechanism.guarantee.sentence().split(", ") for run in runs}
    first, *others = of_runs.values()
    alike = [part for part in first if all(part in parts for parts in others)]
    if all(part.startswith("base noise std") for parts in of_runs.values() for part in parts if part not in alike):
        return [f"The guarantee is {', '.join(alike)}."]
    return [f"The guarantee of {name} is {', '.join(parts)}." for name, parts in of_runs.items()]


def _values(seed: SeedRun, metric: str, task: str) -> NDArray[np.float64]:
    """Mean over nodes at every evaluation."""
    if metric == "accuracy" and seed.accuracy is None:
        raise InvalidInput(f"metric 'accuracy' needs a classifier, and task {task!r} is a regression; use 'loss'.")
    if metric not in seed.measured:
        raise InvalidInput(f"this run did not measure {metric!r}; ask for it: replay(..., metrics=[{metric!r}]).")
    values = seed.measured[metric]
    return values if values.ndim == 1 else values.mean(axis=1)


def _privacy(runs: Sequence[Run]) -> str:
    """mu, if there is one, and epsilon where all runs have them in common and finite; else empty."""
    statements = set()
    for guarantee in (run.mechanism.guarantee for run in runs):
        mu = "" if guarantee.mu is None else f"mu = {rounded_up(guarantee.mu, 6)}, "
        statements.add(f" ({mu}{guarantee.epsilon_in_words})" if guarantee.finite else "")
    return "" if len(statements) > 1 else statements.pop()

"""The result of `replay`: every evaluated step, node and seed, with the mechanism and the task."""

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
from ..display import Shown, data_frame, short_repr
from ..errors import InvalidInput, require_known
from ..gossip.sequences import communication_graph
from ..mechanism import MECHANISM, Mechanism
from ..metrics import NotPrivate, final_steps, not_private_fields
from ..privacy.guarantee import Guarantee
from ..storable import storable
from ..trust import TrustModel
from ..trust.base import node_indices
from . import clip_rules
from .covered import statement
from .learned import Baseline, Ended, Judged, mean_baseline

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
    """One seed of one mechanism. What is marked `NotPrivate` is covered by no guarantee (`not_private_fields`).

    Models and messages are covered as far as the mechanism's guarantee says who sees which of them.

    Attributes:
        seed: of data split, start model and batch order; None when drawn by the operating system.
        steps: evaluated steps (number of finished steps), shape (E,).
        loss: test loss, shape (E, n).
        accuracy: test accuracy, shape (E, n), or None for regression.
        models: what each node releases at the end, by default its final model, shape (n, d); of a run that was stopped
            early the models it had reached.
        diverged: a model or a test loss was not finite at some evaluation.
        finished_steps: steps run; less than T when stopped early.
        training_seconds: training alone, evaluation excluded.
        key_id: public name of the noise key.
        messages: of every step, shape (steps, messages, d), if `keep_messages`.
        generator: the name of what made the noise: of a cipher, or for a seed of Philox.
        seeded_noise: anyone who guesses the seed can subtract the noise: for research, never to be published.
        untrained_loss, untrained_accuracy: of the first model, before any step; None if unknown, or for regression.
        metrics: the requested ones by name (`mfdl.metrics`): of each node, shape (E, n); of the average model, (E,).
        released: every metric by name of what is released, where that is something else than the last models: of each
            node, shape (n,); of their average, (). The evaluated steps are those of the models on their way.
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

        None if the run diverged or was not evaluated in them, or where the mean is not finite.

        Args:
            metric: a name of `measured`; None for a metric without values, such as the accuracy of a regression.
            last_steps: if given, the answer is that of `last`.

        Raises: InvalidInput: an unknown metric, or less than one step.
        """
        if last_steps is not None or not self.released:
            return self.last(metric, last_steps)
        require_known("metric", metric, metrics.WORDS)
        values = self.released.get(metric)
        mean = math.nan if values is None or self.diverged else float(values.mean())
        return mean if math.isfinite(mean) else None

    def last(self, metric: str = "loss", last_steps: int | None = None) -> float | None:
        """The same of the models of the last steps, whatever is released.

        Args: last_steps: number of last steps, evaluated every `eval_every`; default `final_steps`.
        """
        require_known("metric", metric, metrics.WORDS)
        given = None if last_steps is None else check.integer_at_least(1, last_steps=last_steps)
        late = self.steps > self.finished_steps - (given or final_steps(self.finished_steps))
        values = self.measured.get(metric)
        if values is None or self.diverged or not late.any():
            return None
        mean = float(values[late].mean())
        return mean if math.isfinite(mean) else None

    @property
    def final_test_loss(self) -> float | None:
        """`final("loss")`."""
        return self.final("loss")

    @property
    def final_accuracy(self) -> float | None:
        """`final("accuracy")`; None for regression."""
        return self.final("accuracy")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run(Shown):
    """All seeds of one mechanism on one task.

    Attributes:
        chance_loss, chance_accuracy: test metrics of a guess that looks at no record (`learned.chance`); None
            where there is none.
        public_constants: those of the task, where the mechanism's batches are secret.
        step_rule: what nodes made of their privatised gradients, in words; empty: nothing.
        clipping: the clip rule (`mfdl.training.clip_rules`).
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
        """The torch module of the task with the trained parameters of a node: what it releases at the end.

        Args:
            node: index or label, as of a trust model; seed: one of the runs, default the first.
            task: the task that was trained; needed of a run that was loaded from a file, which holds no code.
        Returns: a new module in evaluation mode, on the CPU in float32; its frozen parameters are those of the seed.
        For research where the noise came from a seed (`SeedRun.seeded_noise`): anyone who guesses the seed can subtract
        it. A model to publish is of `mfdl.replay(mechanism, task, seeds=None)`.

        Guarantee: the parameters are covered as far as the mechanism's guarantee says who sees the final model.
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
        """The guarantee of this run as fields, one a line: that of its mechanism, and what of the task it leaves out.

        Args: delta: of the printed epsilon; default that of the guarantee.
        """
        return statement(self.mechanism, self.public_constants, delta, self.step_rule, self.clipping)

    def guarantee_so_far(self) -> Guarantee | None:
        """An upper bound on the privacy loss of the steps that were run, see `Mechanism.guarantee_after`."""
        return self.mechanism.guarantee_after(max(run.finished_steps for run in self.seeds))

    def _sentence(self) -> str:
        steps, seeds = self.seeds[0].finished_steps, len(self.seeds)
        return (
            f"of {self.mechanism.algorithm.name} on task {self.task_name}, {seeds} seed{'s' * (seeds > 1)}, {steps} of "
            f"{self.mechanism.algorithm.num_steps} steps: {self.outcome}; {self.mechanism.guarantee._sentence()}"
        )

    @property
    def outcome(self) -> str:
        """Final loss and accuracy in words, "+-" being the standard deviation over seeds, and what they do not beat."""
        if self.diverged_seeds:
            return f"{len(self.diverged_seeds)} of {len(self.seeds)} seeds diverged; lower the learning rate"
        parts = [_mean_in_words("final test loss", self.final_test_losses)]
        parts.append(_mean_in_words("accuracy", [seed.final_accuracy for seed in self.seeds]))
        where = f" (mean over nodes and the last {self.last_steps} steps)"
        description = ", ".join(text for text in parts if text) + where if any(parts) else "not evaluated at its end"
        return "; ".join([description, *(text.removesuffix(".") for text in self.judged.advice)])

    @property
    def judged(self) -> Judged:
        """This mechanism compared with the untrained model and with chance."""
        return judged([self])

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("task", self.task_name), ("outcome", self.outcome), *self.mechanism._rows()]
        rule = clip_rules.parse(self.clipping, self.mechanism.clip_norm).words
        more = [("clip rule", rule), ("step rule", self.step_rule), ("declared public", self.public_constants)]
        return [*rows, *((name, text) for name, text in more if text)]

    def _figure(self) -> Figure | None:
        return self.plot() if all(seed.steps.size for seed in self.seeds) else None

    @property
    def last_steps(self) -> int:
        """Number of last steps over which final figures are averaged, see `final_steps`."""
        return final_steps(max(run.finished_steps for run in self.seeds))

    @property
    def final_test_losses(self) -> list[float | None]:
        """Per seed."""
        return [run.final_test_loss for run in self.seeds]

    @property
    def diverged_seeds(self) -> list[int | None]:
        """Seeds whose run diverged."""
        return [run.seed for run in self.seeds if run.diverged]

    @property
    def node_steps_per_second(self) -> float:
        """Nodes x steps per second of training, over all seeds."""
        seconds = sum(run.training_seconds for run in self.seeds)
        steps = sum(run.finished_steps for run in self.seeds)
        return steps * self.mechanism.algorithm.num_nodes / seconds if seconds > 0 else float("inf")

    def rows(self) -> list[dict[str, Any]]:
        """One row per seed, evaluated step and node, for tables; metrics of the average model stand in each node's."""
        labels = self.mechanism.algorithm.dynamics.gossip.labels
        return [
            {
                "mechanism": self.mechanism.algorithm.name,
                "seed": run.seed,
                "step": int(step),
                "node": str(label),
                "loss": float(run.loss[i, u]),
                "accuracy": None if run.accuracy is None else float(run.accuracy[i, u]),
                **{
                    name: float(values[i, u] if values.ndim == 2 else values[i]) for name, values in run.metrics.items()
                },
            }
            for run in self.seeds
            for i, step in enumerate(run.steps)
            for u, label in enumerate(labels)
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """The run in long format: one row for each seed, evaluated step and node, with what it was run with.

        Columns: RUN_COLUMNS, and the requested metrics; `delta` is the one stated beside epsilon, `lr` the rate of the
        step just finished, `graph` and `graph_hash` are name and content (`mfdl.graphs.content_hash`) of the
        communication graph, `gossip` and `gossip_hash` those of its weights, `config_hash` is the mechanism's content
        hash. Loss, accuracy and metrics are `NotPrivate`. Frames of several runs go together by `pandas.concat`.

        Raises: MissingExtra: pandas is not installed.
        """
        mechanism, guarantee = self.mechanism, self.mechanism.guarantee
        dynamics = mechanism.algorithm.dynamics
        gossip = dynamics.gossip
        graph = communication_graph(gossip, mechanism.algorithm.num_steps * dynamics.gossip_rounds)
        rates = mechanism.algorithm.dynamics.learning_rates(mechanism.algorithm.num_steps)
        same = {
            "trust": guarantee.trust,
            "mu": math.nan if guarantee.mu is None else guarantee.mu,  # none where batches are secret
            "epsilon": guarantee.epsilon(guarantee.stated_delta),
            "delta": guarantee.stated_delta,
            "graph": graph.name,
            "graph_hash": graphs.content_hash(graph),
            "gossip": gossip.name,
            "gossip_hash": gossip.content_hash,
            "task": self.task_name,
            "config_hash": mechanism.content_hash,
        }
        table = ({**same, "lr": float(rates[max(row["step"] - 1, 0)]), **row} for row in self.rows())
        frame = data_frame(table, [*RUN_COLUMNS, *metrics.requested(self.seeds[0].metrics)])
        frame["accuracy"] = frame["accuracy"].astype(float)  # of regression nan, not objects
        return frame

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the run with its mechanism to exactly this path, whole or not at all; no key is in it.

        The file is readable by its owner alone: metrics are covered by no guarantee (the header names them), models and
        messages as far as the guarantee says who sees them. A file of a seeded run holds the seed of its noise.

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
        """The run that `save` wrote, numbers as they were.

        Args: anew, trust: of the guarantee of its mechanism, see `Mechanism.load`.
        Raises: InvalidInput: as for `Mechanism.load`; seeds whose arrays do not fit the mechanism.
        """
        content = archive.read(path, RUN)
        with archive.refusing(path, RUN):
            fields = {name: content[name] for name in _stored_fields()}
            mechanism = Mechanism.of_file(content[MECHANISM], anew=anew, trust=trust)
            run = cls(**{**fields, "mechanism": mechanism})
            run._require_consistent()
            return run

    def _require_consistent(self) -> None:
        """Raises InvalidInput where seeds do not fit the mechanism, or a metric of chance is no number."""
        for seed in self.seeds:
            _require_shapes(seed, self.mechanism)
        for name in _CHANCE:
            if (value := getattr(self, name)) is not None and not isinstance(value, float):
                raise InvalidInput(f"its {name} is {value!r}, no number.")

    @overload
    def plot(self, ax: None = None, *, metric: str = "loss") -> Figure: ...

    @overload
    def plot(self, ax: Axes, *, metric: str = "loss") -> Axes: ...

    def plot(self, ax: Axes | None = None, *, metric: str = "loss") -> Figure | Axes:
        """Test loss over steps, mean over nodes with the spread over seeds.

        Args: ax, metric: axes to draw in and to return, default a Figure of its own; "loss", "accuracy", or one of the
            requested metrics.
        """
        from .run_curves import plot_runs  # matplotlib only where a picture is wanted

        return plot_runs([self], ax, metric=metric)


_CHANCE = ("chance_loss", "chance_accuracy")


def _require_shapes(seed: SeedRun, mechanism: Mechanism) -> None:
    """One row an evaluation, one column a node, as `SeedRun` says."""
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
    """Whether the guarantee is finite."""
    return mechanism.guarantee.finite


def judged(runs: Sequence[Run]) -> Judged:
    """Runs of one task with the same seeds, compared with the untrained model and with chance."""
    ended = [
        Ended(
            run.mechanism.algorithm.name,
            is_private(run.mechanism),
            run.final_test_losses,
            [seed.final_accuracy for seed in run.seeds],
            len(run.diverged_seeds),
            shortsighted(run.mechanism.algorithm),
            sum(seed.dropped_records for seed in run.seeds),
        )
        for run in runs
    ]
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
    """The fields of a run that a file holds: not its task, which is code."""
    return [field.name for field in dataclasses.fields(Run) if field.metadata.get("stored", True)]

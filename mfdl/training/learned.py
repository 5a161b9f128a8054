"""Whether training was worth it: mechanisms against the untrained model and chance, and which setting to change.

No guarantee covers these test metrics. A mechanism beats a baseline if its mean test loss over the seeds is below it
and no seed diverged. The advice is the first of these rules that applies:

- seeds diverged: a lower learning rate;
- without noise the untrained model is not beaten: a lower rate if the loss went up, else more epochs or a larger one;
- noise carries models more than `STILL` above the untrained loss, or without noise both baselines are beaten: a lower
  learning rate, a smaller clipping norm or a larger mu (epsilon);
- else more epochs, a larger learning rate or a larger mu (epsilon).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..metrics import NotPrivate
from .tasks import modules, partition
from .tasks.instance import tested

if TYPE_CHECKING:
    from .tasks._task import Task


STILL = 0.02  # of the untrained loss: a change that is none
AT_BEST = 1e-9  # an untrained loss that is zero in all but rounding: such a start has nothing to learn


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Mean test loss and, for classification, accuracy."""

    loss: NotPrivate[float]
    accuracy: NotPrivate[float | None] = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """Final losses and accuracies of one mechanism per seed, None where a seed diverged or was not evaluated.

    Attributes: private: whether it has a finite guarantee; diverged: number of seeds; dropped: gradients not finite.
    """

    name: str
    private: bool
    losses: Sequence[float | None]
    accuracies: Sequence[float | None] = ()
    diverged: int = 0
    remark: str = ""
    dropped: int = 0

    @property
    def loss(self) -> float | None:
        return _mean(self.losses)

    @property
    def accuracy(self) -> float | None:
        return _mean(self.accuracies)

    def beats(self, baseline: Baseline | None) -> bool | None:
        """Whether its final loss is below that of a baseline; None without a comparison."""
        if baseline is None or baseline.loss <= AT_BEST or not (self.losses or self.diverged):
            return None
        if self.diverged:
            return False
        return None if self.loss is None else self.loss < baseline.loss


@dataclasses.dataclass(frozen=True)
class Judged:
    """Mechanisms of one task beside its baselines: untrained, the mean over the seeds, and `chance`."""

    ended: Sequence[Ended]
    untrained: Baseline | None
    chance: Baseline | None

    @property
    def private(self) -> list[Ended]:
        return [mechanism for mechanism in self.ended if mechanism.private]

    @property
    def baselines(self) -> dict[str, Baseline]:
        named = {"the untrained model": self.untrained, "chance": self.chance}
        return {name: baseline for name, baseline in named.items() if baseline is not None}

    def none_beats(self, baseline: Baseline | None) -> bool:
        """Whether every mechanism with a guarantee was compared and none of them beats it."""
        verdicts = [mechanism.beats(baseline) for mechanism in self.private]
        return bool(verdicts) and all(verdict is False for verdict in verdicts)

    @property
    def finding(self) -> str:
        """The finding for a title; empty if some private mechanism beats both baselines."""
        several = len(self.private) > 1
        which = "No private mechanism" if several else "".join(mechanism.name for mechanism in self.private)
        does = "beats" if several else "does not beat"
        for name, baseline in self.baselines.items():
            if self.none_beats(baseline):
                if all(mechanism.diverged for mechanism in self.private):
                    return "Every private mechanism diverged" if several else f"{which} diverged"
                return f"{which} {does} {name} (test loss {baseline.loss:.3g})"
        return ""

    @property
    def advice(self) -> list[str]:
        """Mechanisms that diverged or do not beat a baseline, and the setting to change: one sentence for equals."""
        stuck = any(mechanism.beats(self.untrained) is False for mechanism in self.ended if not mechanism.private)
        sentences, behind = [], dict[tuple[str, str], list[str]]()
        for mechanism in self.ended:
            ahead = {name: x for name, x in self.baselines.items() if mechanism.beats(x) is False}
            lost = " or ".join(f"{name} ({_in_words(baseline)})" for name, baseline in ahead.items())
            if mechanism.diverged:
                sentences.append(
                    f"{mechanism.name} diverged in {mechanism.diverged} of {len(mechanism.losses)} seeds: "
                    "lower the learning rate."
                )
            elif lost:
                reached = f"{mechanism.name} ({_in_words(Baseline(mechanism.loss or 0.0, mechanism.accuracy))})"
                behind.setdefault((lost, self._knob(mechanism, stuck)), []).append(reached)
        sentences += [mechanism.remark for mechanism in self.ended if mechanism.remark]
        dropped = ((m.name, m.dropped) for m in self.ended if m.dropped)
        sentences += [f"{name}: {count} gradients were not finite and counted as zero." for name, count in dropped]
        return sentences + [
            f"Not below the loss of {lost}: {', '.join(who)}; {knob}." for (lost, knob), who in behind.items()
        ]

    def _knob(self, mechanism: Ended, stuck: bool) -> str:
        start = self.untrained
        rose = start is not None and mechanism.loss is not None and mechanism.loss > (1 + STILL) * start.loss
        if stuck or not mechanism.private:
            change = "lower the learning rate" if rose else "try more epochs or a larger learning rate"
            return f"{change}, as without noise training does not learn either" if mechanism.private else change
        free = (mechanism for mechanism in self.ended if not mechanism.private)
        noisy = any(mechanism.beats(self.untrained) and mechanism.beats(self.chance) is not False for mechanism in free)
        if rose or noisy:
            return "noise outweighs what is learned; try a lower learning rate, a smaller clipping norm or a larger mu"
        return "little was learned; try more epochs, a larger learning rate or a larger mu"


def mean_baseline(baselines: Iterable[Baseline | None]) -> Baseline | None:
    known = list(baselines)
    complete = [baseline for baseline in known if baseline is not None]
    if not complete or len(complete) < len(known):
        return None
    return Baseline(float(np.mean([x.loss for x in complete])), _mean([x.accuracy for x in complete]))


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present and len(present) == len(values) else None


def _in_words(baseline: Baseline) -> str:
    accuracy = "" if baseline.accuracy is None else f", accuracy {baseline.accuracy:.1%}"
    return f"loss {baseline.loss:.4g}{accuracy}"


def untrained(task: Task, seed: int) -> Baseline:
    """The first model of the runs of a seed, which all nodes and mechanisms share, on the test records."""
    module = modules.build(task.build_module, partition.torch_seed(seed, partition.INITIAL_MODEL))
    model = modules.PerRecordModel(module, task.loss)
    features, targets = modules.inputs(module, task.test_features), torch.tensor(task.test_targets)
    classes = task.kind == "classification"
    evaluation = tested(model, model.initial_row()[None], features, targets, classes, model.activation_size(features))
    return Baseline(float(evaluation.loss[0]), None if evaluation.accuracy is None else float(evaluation.accuracy[0]))


def chance(task: Task) -> Baseline | None:
    """Classification: the loss of equal scores, the accuracy of the commonest class of the train records.

    Regression: the loss of the mean target of the train records. None for targets that are all the same, an output of
    more than one number, or a loss that refuses it.
    """
    module = modules.build(task.build_module, seed=0)
    try:
        with torch.no_grad():
            output = module(modules.inputs(module, task.test_features[:1]))[0]
            guess = torch.zeros_like(output)
            if task.kind == "regression":
                if output.numel() != 1 or np.ptp(task.targets) == 0:
                    return None
                guess += float(task.targets.mean(dtype=np.float64))
            targets = torch.tensor(task.test_targets)
            losses = modules.PerRecordModel(module, task.loss).losses(guess.expand(len(targets), *guess.shape), targets)
            loss = float(losses.double().mean())
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    if not np.isfinite(loss):
        return None
    if task.kind == "regression":
        return Baseline(loss)
    commonest = int(np.bincount(task.targets).argmax())  # exact: integers
    return Baseline(loss, float((task.test_targets == commonest).mean()))

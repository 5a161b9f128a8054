"""Whether training was worth it: mechanisms beside the untrained model and beside chance, and which knob to turn.

In: where each mechanism ended, and two baselines: the untrained model of a seed, and a guess that looks at no record.
Out: which mechanism beats which baseline, a finding for the title of a picture, sentences. As every test metric these
are covered by no guarantee. A mechanism beats a baseline if its mean test loss over the seeds is below it and no seed
diverged. The advice on a mechanism is the first of these rules that applies:

- seeds diverged: a lower learning rate;
- without noise training does not beat the untrained model either: a lower learning rate where the loss went up, more
  epochs or a larger learning rate where it hardly moved;
- noise carries models more than `STILL` above the untrained loss, or without noise both baselines are beaten: a lower
  learning rate, a smaller clipping norm or a larger mu (epsilon);
- else little happened: more epochs, a larger learning rate or a larger mu (epsilon).

Noise that is the best for one step says so in a run of several (`registry.shortsighted`), whatever it reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.func import vmap

from ..metrics import NotPrivate
from .tasks import modules, seeds
from .tasks.instance import tested

if TYPE_CHECKING:
    from .tasks._task import Task


STILL = 0.02  # of the untrained loss: a change that is none
AT_BEST = 1e-9  # an untrained loss that is zero in all but rounding: such a start has nothing to learn


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Mean test loss, and for classification the share of test records classified rightly (else None)."""

    loss: NotPrivate[float]
    accuracy: NotPrivate[float | None] = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """Where one mechanism ended: final losses and accuracies per seed, None where a seed diverged or was not evaluated.

    Attributes: private: whether it has a finite guarantee; diverged: how many seeds did; remark: of its noise, whatever
        the losses are.
    """

    name: str
    private: bool
    losses: Sequence[float | None]
    accuracies: Sequence[float | None] = ()
    diverged: int = 0
    remark: str = ""

    @property
    def loss(self) -> float | None:
        """Mean over seeds; None unless every seed has one."""
        return _mean(self.losses)

    @property
    def accuracy(self) -> float | None:
        """As `loss`."""
        return _mean(self.accuracies)

    def beats(self, baseline: Baseline | None) -> bool | None:
        """Whether it ended below a loss; None where there is nothing to compare."""
        if baseline is None or baseline.loss <= AT_BEST or not (self.losses or self.diverged):
            return None
        if self.diverged:
            return False
        return None if self.loss is None else self.loss < baseline.loss


@dataclasses.dataclass(frozen=True)
class Judged:
    """Mechanisms of one task beside its baselines.

    Attributes: untrained: means over the seeds of `ended`; chance: see `chance`.
    """

    ended: Sequence[Ended]
    untrained: Baseline | None
    chance: Baseline | None

    @property
    def private(self) -> list[Ended]:
        """Those with a guarantee."""
        return [one for one in self.ended if one.private]

    def none_beats(self, baseline: Baseline | None) -> bool:
        """Whether every mechanism with a guarantee was compared and none of them beats it."""
        verdicts = [one.beats(baseline) for one in self.private]
        return bool(verdicts) and all(verdict is False for verdict in verdicts)

    @property
    def finding(self) -> str:
        """What the title must say: empty where some private mechanism beats both baselines."""
        which = "No private mechanism" if len(self.private) > 1 else "".join(one.name for one in self.private)
        does = "beats" if len(self.private) > 1 else "does not beat"
        for what, baseline in (("the untrained model", self.untrained), ("chance", self.chance)):
            if baseline is not None and self.none_beats(baseline):
                if all(one.diverged for one in self.private):
                    return "Every private mechanism diverged" if len(self.private) > 1 else f"{which} diverged"
                return f"{which} {does} {what} (test loss {baseline.loss:.3g})"
        return ""

    @property
    def advice(self) -> list[str]:
        """What diverged or does not beat a baseline, and which knob to turn: one sentence for all that share both."""
        stuck = any(one.beats(self.untrained) is False for one in self.ended if not one.private)
        told, behind = [], dict[tuple[str, str], list[str]]()
        for one in self.ended:
            lost = " or ".join(
                f"{what} ({_in_words(baseline)})"
                for what, baseline in (("the untrained model", self.untrained), ("chance", self.chance))
                if baseline is not None and one.beats(baseline) is False
            )
            if one.diverged:
                told.append(
                    f"{one.name} diverged in {one.diverged} of {len(one.losses)} seeds: lower the learning rate."
                )
            elif lost:
                reached = f"{one.name} ({_in_words(Baseline(one.loss or 0.0, one.accuracy))})"
                behind.setdefault((lost, self._knob(one, stuck)), []).append(reached)
        told += [one.remark for one in self.ended if one.remark]
        return told + [
            f"Not below the loss of {lost}: {', '.join(who)}; {knob}." for (lost, knob), who in behind.items()
        ]

    def _knob(self, one: Ended, stuck: bool) -> str:
        start = self.untrained
        rose = start is not None and one.loss is not None and one.loss > (1 + STILL) * start.loss
        if stuck or not one.private:
            how = "lower the learning rate" if rose else "try more epochs or a larger learning rate"
            return f"{how}, as without noise training does not learn either" if one.private else how
        free = (one for one in self.ended if not one.private)
        noisy = any(one.beats(self.untrained) and one.beats(self.chance) is not False for one in free)
        if rose or noisy:
            return "noise outweighs what is learned; try a lower learning rate, a smaller clipping norm or a larger mu"
        return "little was learned; try more epochs, a larger learning rate or a larger mu"


def mean_baseline(found: Iterable[Baseline | None]) -> Baseline | None:
    """Over seeds; None unless all are there."""
    known = list(found)
    if not known or None in known:
        return None
    there = [one for one in known if one is not None]
    loss = _mean([one.loss for one in there])
    return None if loss is None else Baseline(loss, _mean([one.accuracy for one in there]))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there and len(there) == len(values) else None


def _in_words(baseline: Baseline) -> str:
    accuracy = "" if baseline.accuracy is None else f", accuracy {baseline.accuracy:.1%}"
    return f"loss {baseline.loss:.4g}{accuracy}"


def untrained(task: Task, seed: int) -> Baseline:
    """The first model of the runs of a seed, which all nodes and mechanisms share.

    Cost: one forward pass over the test records.
    """
    module = modules.build(task.build_module, seeds.torch_seed(seed, seeds.INITIAL_MODEL))
    model = modules.PerRecordModel(module, task.loss)
    features, targets = torch.tensor(task.test_features), torch.tensor(task.test_targets)
    classes = task.kind == "classification"
    found = tested(model, model.initial_row()[None], features, targets, classes, model.activation_size(features))
    return Baseline(float(found.loss[0]), None if found.accuracy is None else float(found.accuracy[0]))


def chance(task: Task) -> Baseline | None:
    """Classification: the loss of equal scores, the accuracy of the commonest class of the train records.

    Regression: the loss of the mean target of the train records. None where that means nothing: targets that are all
    the same, an output of more than one number, or a loss that refuses it.
    """
    module = modules.build(task.build_module, seed=0)
    try:
        with torch.no_grad():
            output = module(torch.tensor(task.test_features[:1]))[0]
            guess = torch.zeros_like(output)
            if task.kind == "regression":
                if output.numel() != 1 or np.ptp(task.targets) == 0:
                    return None
                guess += float(task.targets.mean(dtype=np.float64))
            targets = torch.tensor(task.test_targets)
            loss = float(vmap(task.loss, in_dims=(None, 0))(guess, targets).double().mean())
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    if not np.isfinite(loss):
        return None
    if task.kind == "regression":
        return Baseline(loss)
    commonest = int(np.bincount(task.targets).argmax())
    return Baseline(loss, float((task.test_targets == commonest).mean()))

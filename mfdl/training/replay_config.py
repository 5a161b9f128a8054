"""The arguments of `replay`, checked before anything runs, and what it reports while it trains.

In: a calibrated mechanism, a task, seeds or a key, what to measure and where to write. Out: a checked `ReplayConfig`;
what the guarantee does not cover is refused (`covered`). `EvaluatedStep` is the report of one evaluation.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from .. import check, metrics
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..metrics import NotPrivate
from ..noise_scale import CalibratedView
from ..progress import Progress, reporter
from . import clip_rules, covered, step_rules
from .clip_rules import ClipRule, Flat, Quantile
from .keys import NoiseKey, require_key, require_secure
from .step_rules import StepRule
from .tasks import Task
from .tasks.partition import Period
from .tasks.quantile_norm import with_log_norm


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluatedStep:
    """The argument of `replay(on_evaluation=...)`; no guarantee covers the fields marked `NotPrivate`.

    Attributes:
        step: number of finished steps.
        seed: of the run; None when drawn by the operating system.
        loss: test loss of each node, shape (n,).
        accuracy: test accuracy of each node, shape (n,), or None for regression.
        models: a copy of all models, shape (n, d), float64; a guarantee may cover the final ones only.
        diverged: a model or a test loss was not finite at this evaluation or before.
        metrics: the requested ones by name (`mfdl.metrics`), shape (n,), or () for the average model.
    """

    __repr__ = short_repr

    step: int
    seed: int | None
    loss: NotPrivate[NDArray[np.float64]]
    accuracy: NotPrivate[NDArray[np.float64] | None]
    models: NotPrivate[NDArray[np.float64]]
    diverged: NotPrivate[bool]
    metrics: NotPrivate[Mapping[str, NDArray[np.float64]]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayConfig:
    """The arguments of `replay`.

    Attributes:
        mechanism: calibrated, or without noise. At record level its participation must be cyclic or every step, the
            same or another one at each node: the fixed public record-to-step maps that the executor implements; at user
            level it is every step. With secret sampling each is drawn from the noise key.
        task: data, model and per-record loss, for as many nodes as the mechanism.
        seeds: decide data split, start model and batch order, shared by all mechanisms of one seed, and the noise
            key. None: one run, everything drawn by the operating system.
        key: noise key, instead of the one derived from the seed. A seeded key makes a run reproducible, so
            anyone who knows the seed can subtract the noise: publish only models of unseeded runs, whose noise a cipher
            makes. An unseeded key may serve many runs: each draws a nonce, kept in its checkpoint, and no two of them
            share noise.
        period: at user level, over how many steps a node spreads its records, in the same cyclic order every time;
            default 1, all of them at every step. The guarantee covers any: all data of a user may change. At record
            level it follows from the participation, and another one is refused.
        eval_every: steps between evaluations; default the period (the longest of any node), the end of each epoch;
            where batches are drawn 1 / rate, rounded.
        metrics: measured at evaluations in addition to test loss and accuracy of each node: names of
            `mfdl.metrics.METRICS`, "train_loss", "average_loss", "average_accuracy" and "average_train_loss"; stored in
            `SeedRun.metrics`.
        clip_schedule: public c_t > 0, one for each of T steps: gradients are clipped to c_t clip_norm and divided by
            c_t, so that their norm is the one that the guarantee assumes. With learning rates eta_t c_t in the
            mechanism's dynamics, this is a step eta_t with clipping norm c_t clip_norm and noise in proportion to it.
            Where the guarantee rests on a Lipschitz constant, only 1 in every step: other local maps are not covered.
        clipping: the rule by which gradients are scaled to the clipping norm C of the mechanism at most
            (`mfdl.training.clip_rules`): "flat"; "automatic:GAMMA", C / (||g|| + GAMMA) g; "quantile:Q:SHARE", flat at
            a norm that each model learns as one more parameter (`mfdl.training.tasks.quantile_norm`), record level
            only; "layers:RATIO:...", flat for each layer, the squares of whose norms add up to C^2. Same sensitivity,
            hence same guarantee; all but the first are refused where it rests on a Lipschitz constant, and with a
            clip_schedule.
        step_rule: a `StepRule`, or its text, such as "rms:0.5": what nodes make of their privatised gradients, and
            scales before clipping from messages already seen. It costs no privacy where all messages are seen
            (`mfdl.training.step_rules`), and is refused elsewhere.
        stop_after: stop after this step (a checkpoint is written); a later call with the same arguments goes on. Where
            the guarantee is for hidden messages, it covers the final models and none of a run that was stopped.
        checkpoint_folder: where to keep checkpoints, one subfolder per seed; without it nothing is written. A
            resumed run has the bits of an uninterrupted one on one machine, with the same libraries and threads.
        keep_messages: keep every message of the steps of this call, shape (steps, messages, d) (memory).
        dtype, device: of models and gradients, float32 (default) or float64; default device CUDA when there is one,
            else the CPU.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called with the number of steps just
            finished.
        on_evaluation: called with an `EvaluatedStep` after each evaluation of this call, once its checkpoint is
            written; what it returns is not looked at, what it raises ends the run, and a later call goes on from there.
        publish: True if models or messages of these runs will be published: noise that a seed decides, which no cipher
            makes, is refused, and so is a key whose secret is not random.
    """

    mechanism: Mechanism
    task: Task
    _: dataclasses.KW_ONLY
    seeds: Iterable[int] | None = None
    key: NoiseKey | None = None
    period: int | None = None
    eval_every: int | None = None
    metrics: Iterable[str] = ()
    clip_schedule: Sequence[float] | FloatArray | None = None
    clipping: str = "flat"
    step_rule: StepRule | str | None = None
    stop_after: int | None = None
    checkpoint_folder: str | os.PathLike[str] | None = None
    keep_messages: bool = False
    dtype: torch.dtype = torch.float32
    device: str | torch.device | None = None
    progress: Progress = "auto"
    on_evaluation: Callable[[EvaluatedStep], object] | None = None
    publish: bool = False

    def __post_init__(self) -> None:
        mechanism, task, key, seeds = self.mechanism, self.task, self.key, self.seeds
        if isinstance(cast("object", self.mechanism), CalibratedView):
            raise InvalidInput(
                "mechanism must be a Mechanism, got a CalibratedView: matrices A and B say what is seen, and not how "
                "models are trained; build the algorithm, e.g. by mfdl.algorithms.from_maps, and calibrate that."
            )
        check.instance(Mechanism, mechanism=mechanism)
        check.instance(Task, task=task)
        mechanism.require_unchanged()
        covered.require_covered(mechanism, task)
        if seeds is not None and not isinstance(seeds, Iterable):
            raise InvalidInput(f"seeds must be a list of integers >= 0, or None for one unseeded run, got {seeds!r}.")
        seeds = None if seeds is None else tuple(check.integer_at_least(0, seed=seed) for seed in seeds)
        if seeds == ():
            raise InvalidInput("seeds must hold at least one seed, or be None for one unseeded run.")
        object.__setattr__(self, "seeds", seeds)
        if key is not None:
            require_key(key=key)
        object.__setattr__(self, "metrics", metrics.requested(self.metrics))
        metrics.require_measured(self.metrics, task.kind, task.name)
        if self.clip_schedule is not None:
            clips = covered.clip_schedule(self.clip_schedule, mechanism)
            object.__setattr__(self, "clip_schedule", clips)
        rule = covered.clip_rule(self.clipping, mechanism)
        if self.clip_schedule is not None and not isinstance(rule, Flat):
            raise InvalidInput(
                f"clip_schedule changes the norm at which gradients are clipped, and clipping {rule} has none; let the "
                "learning rates fall instead."
            )
        object.__setattr__(self, "clipping", str(rule))
        if isinstance(rule, Quantile):
            object.__setattr__(self, "task", with_log_norm(task))
        if self.step_rule is not None:
            object.__setattr__(self, "step_rule", step_rules.parse(self.step_rule))
            covered.require_injected_sums(mechanism, f"step rule {self.step_rule}", "leave the step rule out")
        self._require_publishable()
        for seed in seeds or ():  # every refusal before any run; sizes that a drawn split decides are checked with it
            covered.divisors(mechanism, task, self.fed_every, seed)
        if seeds is None and not task.batch_sizes_depend_on_seed:
            covered.divisors(mechanism, task, self.fed_every, 0)
        check.device(device=self.device)
        if not isinstance(self.checkpoint_folder, str | os.PathLike | None):
            given = check.brief(self.checkpoint_folder)
            raise InvalidInput(f"checkpoint_folder must be a path, got {given}; leave it out to write nothing.")
        check.trained_in(dtype=self.dtype)
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise InvalidInput(
                "replay must not run under torch.autocast, which would round noise and averages too; enter it in the "
                "forward of the module."
            )
        reporter(self.progress)
        if self.on_evaluation is not None and not callable(self.on_evaluation):
            raise InvalidInput(f"on_evaluation must be a function of one argument, got {self.on_evaluation!r}.")
        if self.eval_every is not None:
            check.integer_at_least(1, eval_every=self.eval_every)

    def _require_publishable(self) -> None:
        key, seeds, publish = self.key, self.seeds, check.flag(publish=self.publish)
        last, T = self.last, self.mechanism.algorithm.num_steps
        if publish and (key is not None or seeds is not None):
            way_out = "pass key=NoiseKey.from_entropy(), which may stand beside seeds, or leave seeds out"
            require_secure(way_out, key=NoiseKey.from_seed(0) if key is None else key)
        if publish and last < T and self.mechanism.guarantee.release in ("average", "all"):
            raise InvalidInput(
                f"a run stopped after step {last} of {T} has no models to publish: this guarantee covers hidden "
                f"messages and the final models; leave stop_after out, or build an algorithm of {last} steps."
            )

    @property
    def fed_every(self) -> Period:
        """Steps after which the same records are fed again, at each node if they differ."""
        return covered.fed_every(self.mechanism, self.period)

    @property
    def clip_rule(self) -> ClipRule:
        """The clip rule at the clipping norm of the mechanism."""
        return clip_rules.parse(self.clipping, self.mechanism.clip_norm)

    @property
    def rule(self) -> StepRule | None:
        """The step rule."""
        return None if self.step_rule is None else step_rules.parse(self.step_rule)

    @property
    def last(self) -> int:
        """The step after which a run ends."""
        T = self.mechanism.algorithm.num_steps
        return T if self.stop_after is None else min(check.integer_at_least(0, stop_after=self.stop_after), T)

    @property
    def where(self) -> torch.device:
        """The device of models and gradients."""
        return device_of(self.device)


def device_of(given: str | torch.device | None) -> torch.device:
    """The device that is given; default CUDA when there is one, else the CPU."""
    return torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))

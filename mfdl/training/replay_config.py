"""The arguments of `replay`, checked before anything runs, also against what the guarantee covers; reports of a run."""

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
from ..dynamics import MAX_RATE_RATIO
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism
from ..metrics import NotPrivate
from ..noise_scale import CalibratedView
from ..progress import Progress, reporter
from . import step_rules
from .clipping import ClipRule, Flat, Quantile, parse_rule
from .keys import NoiseKey, require_key, require_secure
from .step_rules import StepRule
from .tasks import Task
from .tasks.partition import Period
from .tasks.record_clipping import with_log_norm


def fed_every(mechanism: Mechanism, given: int | None) -> Period:
    """Steps after which the executor feeds the same records again, at each node if they differ."""
    given = None if given is None else check.integer_at_least(1, period=given)
    if mechanism.sampling is not None:
        if given is not None:
            raise InvalidInput(
                f"period must be left out under {mechanism.sampling.describe()}, got {given}: batches are drawn."
            )
        return 1  # all records in one class, of which each step draws
    if mechanism.unit == "user":
        return given or 1
    participation = mechanism.algorithm.participation
    nodes = range(mechanism.algorithm.num_nodes)
    periods = tuple(b for u in nodes if (b := participation.at_node(u).fed_every) is not None)
    if len(periods) < len(nodes):
        raise UnsupportedMechanism(
            f"the executor feeds each record to the same step of every epoch, i.e. cyclic participation, or to every "
            f"step; the mechanism was accounted for {participation.describe()}. Reshuffled or sampled batches are "
            "other schemes and are not covered."
        )
    period: Period = periods[0] if len(set(periods)) == 1 else periods
    if given not in (None, period):
        raise InvalidInput(
            f"period must be {period}, the one of {participation.describe()} that record-level privacy was accounted "
            f"for, got {given}; leave it out, or calibrate anew."
        )
    return period


def epoch(mechanism: Mechanism, period: Period) -> int:
    """Steps in which each record takes part once, on average if batches are drawn."""
    return longest(period) if mechanism.sampling is None else round(1 / mechanism.sampling.expected_rate)


def longest(period: Period) -> int:
    return period if isinstance(period, int) else max(period)


def divisors(mechanism: Mechanism, task: Task, period: Period, seed: int) -> FloatArray:
    """The divisor of a node's clipped gradients and noise: public batch sizes, expected where drawn; 1 at user level.

    Divisors scale gradients and noise of a node alike: they cancel where all messages are seen and show the injected
    sums, and where all nodes have the same. Elsewhere the mechanism must have been calibrated with them.
    """
    algorithm = mechanism.algorithm
    user, drawn = mechanism.unit == "user", mechanism.sampling
    if drawn is not None:
        sizes = np.asarray(drawn.expected_rate * task.public_batch_sizes(1, seed))
    else:
        sizes = np.ones(algorithm.num_nodes) if user else task.public_batch_sizes(period, seed)
    ratio = sizes / algorithm.divisors
    by_sums = drawn is not None or algorithm.divisors_cancel  # all that is seen follows from the injected sums
    cancel = by_sums and mechanism.guarantee.release == "not applicable"
    if (not cancel and np.ptp(ratio) > 0) or (algorithm.noise_on_messages and (ratio != 1).any()):
        if user:
            raise InvalidInput(
                "at user level clipped means are divided by nothing, but the mechanism was calibrated with divisors "
                f"{algorithm.divisors.min():g} to {algorithm.divisors.max():g}; calibrate the algorithm without them."
            )
        raise InvalidInput(
            f"the guarantee under trust model {mechanism.guarantee.trust!r} depends on public batch sizes, and the "
            f"task's ({sizes.min():g} to {sizes.max():g}) are not those it was calibrated with; calibrate "
            "algorithm.with_divisors(task.public_batch_sizes(period))."
        )
    return sizes


def clip_schedule(given: object, mechanism: Mechanism) -> FloatArray:
    """Public relative clipping norms, one for each step.

    A step with c_t is the local map x - (eta / c_t) g, g clipped to c_t clip_norm: a Lipschitz constant for eta and
    clip_norm does not apply to it, so guarantees that assume such a constant require c_t = 1.

    Raises: InvalidInput: no number > 0 at some step, another count than steps, or clips that span too much; a c_t other
        than 1 under a guarantee that rests on a Lipschitz constant.
    """
    num_steps = mechanism.algorithm.num_steps
    clips = check.finite_array(1, clip_schedule=given)
    if len(clips) != num_steps or (clips <= 0).any() or clips.max() > MAX_RATE_RATIO * clips.min():
        span = f"{len(clips)} from {clips.min():g} to {clips.max():g}" if clips.size else "none"
        raise InvalidInput(
            f"clip_schedule must hold one number > 0 for each of {num_steps} steps, the largest at most "
            f"{MAX_RATE_RATIO:g} times the smallest, got {span}."
        )
    if mechanism.lipschitz is not None and (clips != 1).any():
        step = int(np.argmax(clips != 1))  # exact: booleans
        raise InvalidInput(
            f"clip_schedule must be 1 in every step where the guarantee assumes local maps x - eta g(x) with Lipschitz "
            f"constant {mechanism.lipschitz:g}, got {clips[step]:g} in step {step}: gradients are then clipped to "
            f"{clips[step]:g} clip_norm and divided by it, which is another local map; leave clip_schedule out, or "
            "calibrate without lipschitz."
        )
    return clips


def clip_rule(text: str, mechanism: Mechanism) -> ClipRule:
    """The rule that a text names, at a mechanism's clipping norm; under a Lipschitz constant the flat one alone.

    Raises: InvalidInput: another text; a rule other than the flat one under a guarantee with a Lipschitz constant.
    """
    rule = parse_rule(text, mechanism.clip_norm)
    if isinstance(rule, Quantile) and mechanism.unit == "user":
        raise UnsupportedMechanism(
            f"clipping {rule} follows norms of records, and at user level a node has one gradient; take flat or "
            "automatic."
        )
    if mechanism.lipschitz is not None and not isinstance(rule, Flat):
        raise InvalidInput(
            f"clipping must be flat where the guarantee assumes local maps with Lipschitz constant "
            f"{mechanism.lipschitz:g}, got {rule}, which may be steeper; calibrate without lipschitz."
        )
    return rule


def left_out(mechanism: Mechanism, task: Task) -> str:
    """Declarations of a task about its records, no guarantee's; public constants where the theorem assumes them."""
    constants = "" if mechanism.sampling is None else task.public_constants or ""
    if not task.from_records:
        return constants
    return task.from_records if constants in ("", "none") else f"{constants}; {task.from_records}"


def statement(
    mechanism: Mechanism, declared: str, delta: float | None = None, step_rule: str = "", clipping: str = "flat"
) -> str:
    """The guarantee of a run as fields, one a line, its rules, and what it leaves out: `declared` of `left_out`."""
    guarantee = mechanism.guarantee
    lines = [str(guarantee if delta is None else guarantee.at_delta(delta))]
    if words := parse_rule(clipping, mechanism.clip_norm).words:
        lines.append(f"clip rule: {words}")
    if step_rule:
        lines.append(f"step rule: {step_rule}, a function of privatised gradients")
    if declared not in ("", "none"):
        lines.append(f"not covered, declared public: {declared}")
    return "\n".join(lines)


def require_injected_sums(mechanism: Mechanism, use: str, way: str) -> None:
    """Refuses a guarantee that does not hold for every function of the injected sums; use, way: in words."""
    guarantee, algorithm = mechanism.guarantee, mechanism.algorithm
    seen = guarantee.release == "not applicable" and algorithm.divisors_cancel
    if mechanism.lipschitz is not None or not guarantee.adaptive or not seen:
        raise UnsupportedMechanism(
            f"this guarantee, under trust model {guarantee.trust!r}, holds for the linear algorithm {algorithm.name!r} "
            f"alone and not for {use}; calibrate under one who sees all messages (mfdl.trust.LDP(), Eavesdropper()) "
            f"with noise on the gradients, or {way}."
        )


def require_covered(mechanism: Mechanism, task: Task) -> None:
    """Refuses a task that the mechanism's guarantee does not cover; divisors have their own check."""
    task.require_nodes(mechanism.algorithm.labels)
    if not (owners := mechanism.guarantee.owners).covers(task.record_owners):
        raise InvalidInput(
            f"records of task {task.name!r} may be held by {task.record_owners.describe()}, and the guarantee covers "
            f"{owners.describe()}{' in the same steps' * owners.same_steps}; calibrate with owners= as the task states "
            "them."
        )
    if mechanism.guarantee.adjacency == "add-remove":
        raise UnsupportedMechanism(
            "under add-remove adjacency the number of records is not public, but the executor's split, record-to-step "
            "map and divisors follow it; use zero-out (the record's gradient is replaced by zero) or replace-one."
        )
    if mechanism.sampling is not None and task.public_constants is None:
        raise UnsupportedMechanism(
            f"under {mechanism.sampling.describe()} task {task.name!r} must declare what was computed from its records "
            "before training, as no guarantee covers that; state public_constants='mean and standard deviation of each "
            "feature' or what else there is, or 'none' if nothing follows from the records."
        )
    if mechanism.lipschitz is not None and not (task.lipschitz is not None and task.lipschitz <= mechanism.lipschitz):
        raise InvalidInput(
            f"the guarantee assumes local maps with Lipschitz constant {mechanism.lipschitz:g}, and task {task.name!r} "
            f"claims {task.lipschitz}; calibrate without lipschitz, or state Task(lipschitz=...) if you can prove it."
        )


def require_batch(records: object, **tensors: object) -> None:
    """Refuses what has no axis of records."""
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"{name} must be a tensor, got {type(value).__name__}; torch.as_tensor makes one.")
        if not value.ndim:
            raise InvalidInput(
                f"{name} must be a batch of records, shape (B, ...), got shape (); a batch of one record is "
                "features[None] and targets[None]."
            )
    if records is not None and not hasattr(records, "__len__"):
        raise InvalidInput(
            f"records must be a list of a number for each record, got {check.brief(records)}; leave it out, or give "
            "[number] for a batch of one record."
        )


def require_same_parameters(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = {name: id(p) for name, p in module.named_parameters() if p.requires_grad}
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedMechanism(
            "LBFGS evaluates gradients several times a step, and one was accounted; use SGD, Adam or another optimizer "
            "of one gradient a step."
        )
    missing = [name for name, identity in named.items() if identity not in moved]
    if missing or len(moved) != len(named):
        raise InvalidInput(
            "optimizer must hold exactly the trainable parameters of module, got "
            f"{f'none for {missing[0]!r}' if missing else f'{len(moved)} tensors for {len(named)}'}; make it with "
            "module.parameters()."
        )


def require_own_loop(mechanism: Mechanism) -> None:
    """Refuses a guarantee that does not hold in a training loop of the user, see `PrivateNode`."""
    mechanism.require_unchanged()
    guarantee = mechanism.guarantee
    if mechanism.sampling is not None:
        raise UnsupportedMechanism(
            f"this guarantee counts on batches that are drawn secretly, by {guarantee.participation}, and here "
            "the caller chooses the records of each step; train by mfdl.replay, which draws them, or calibrate for a "
            "public participation such as Cyclic."
        )
    if guarantee.adjacency == "add-remove":
        raise UnsupportedMechanism(
            "under add-remove adjacency the number of records is not public, but steps and divisors may follow it; use "
            "zero-out or replace-one."
        )
    require_injected_sums(mechanism, "what another optimizer or loop makes of the gradients", "train by mfdl.replay")


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluatedStep:
    """The argument of `replay(on_evaluation=...)`; no guarantee covers the fields marked `NotPrivate`.

    Attributes:
        step: number of finished steps. loss, accuracy: of each node, shape (n,); accuracy is None for regression.
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
        mechanism: calibrated, or without noise. Its participation must be cyclic or every step (at user level every
            step), or secret sampling, which is drawn from the noise key.
        seeds: decide data split, start model and batch order, shared by all mechanisms of one seed, and the noise
            key. None: one run, everything drawn by the operating system.
        key: noise key, instead of the one derived from the seed. The noise of a seeded key can be subtracted: publish
            only models of unseeded runs. An unseeded key may serve many runs: each draws a nonce, kept in its
            checkpoint.
        period: at user level, over how many steps a node spreads its records, in the same cyclic order every time;
            default 1, all of them at every step. At record level that of the participation, and another one is refused.
        eval_every: steps between evaluations; default the longest period of a node, or with drawn batches 1 / rate.
        metrics: names of `mfdl.metrics.METRICS`, measured besides test loss and accuracy, in `SeedRun.metrics`.
        clip_schedule: public c_t > 0, one for each of T steps: gradients are clipped to c_t clip_norm and divided by
            c_t, so that their norm is the one that the guarantee assumes. With learning rates eta_t c_t in the
            mechanism's dynamics, this is a step eta_t with clipping norm c_t clip_norm and noise in proportion to it.
            Where the guarantee rests on a Lipschitz constant, only 1 in every step.
        clipping: the rule by which gradients are scaled to the clipping norm C of the mechanism at most
            (`mfdl.training.clipping`): "flat"; "automatic:GAMMA", C / (||g|| + GAMMA) g; "quantile:Q:SHARE", flat at
            a norm that each model learns as one more parameter (`mfdl.training.tasks.record_clipping`), record level
            only; "layers:RATIO:...", flat for each layer, the squares of whose norms add up to C^2. Same sensitivity,
            hence same guarantee; all but the first are refused where it rests on a Lipschitz constant, and with a
            clip_schedule.
        step_rule: a `StepRule`, or its text, such as "rms:0.5"; at no cost in privacy where all messages are seen
            (`mfdl.training.step_rules`), and refused elsewhere.
        stop_after: stop after this step (a checkpoint is written); a later call with the same arguments goes on. Where
            the guarantee is for hidden messages, it covers the final models and none of a run that was stopped.
        checkpoint_folder: one subfolder per seed; without it nothing is written. A resumed run has the bits of an
            uninterrupted one on one machine, with the same libraries and threads.
        keep_messages: keep every message of the steps of this call, shape (steps, messages, d) (memory).
        dtype, device: of models and gradients, float32 (default) or float64; default device CUDA when there is one.
        progress: True, False, "auto" (see `mfdl.progress`), or a function of the number of steps just finished.
        on_evaluation: called with an `EvaluatedStep` after each evaluation, once its checkpoint is written; what it
            raises ends the run, and a later call goes on from there.
        publish: True if models or messages will be published: refuses noise of a seed and a key that is not random.
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
        require_covered(mechanism, task)
        if seeds is not None:
            if not isinstance(seeds, Iterable):
                raise InvalidInput(
                    f"seeds must be a list of integers >= 0, or None for one unseeded run, got {seeds!r}."
                )
            seeds = tuple(check.integer_at_least(0, seed=seed) for seed in seeds)
            if not seeds:
                raise InvalidInput("seeds must hold at least one seed, or be None for one unseeded run.")
            object.__setattr__(self, "seeds", seeds)
        if key is not None:
            require_key(key=key)
        object.__setattr__(self, "metrics", metrics.requested(self.metrics))
        metrics.require_measured(self.metrics, task.kind, task.name)
        if self.clip_schedule is not None:
            object.__setattr__(self, "clip_schedule", clip_schedule(self.clip_schedule, mechanism))
        rule = clip_rule(self.clipping, mechanism)
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
            require_injected_sums(mechanism, f"step rule {self.step_rule}", "leave the step rule out")
        self._require_publishable()
        for seed in seeds or ():  # every refusal before any run; sizes that a drawn split decides are checked with it
            divisors(mechanism, task, self.fed_every, seed)
        if seeds is None and not task.batch_sizes_depend_on_seed:
            divisors(mechanism, task, self.fed_every, 0)
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
        return fed_every(self.mechanism, self.period)

    @property
    def clip_rule(self) -> ClipRule:
        return parse_rule(self.clipping, self.mechanism.clip_norm)

    @property
    def rule(self) -> StepRule | None:
        return None if self.step_rule is None else step_rules.parse(self.step_rule)

    @property
    def last(self) -> int:
        """The step after which a run ends."""
        T = self.mechanism.algorithm.num_steps
        return T if self.stop_after is None else min(check.integer_at_least(0, stop_after=self.stop_after), T)

    @property
    def where(self) -> torch.device:
        return chosen_device(self.device)


def chosen_device(given: str | torch.device | None) -> torch.device:
    return torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))

"""replay: train with a mechanism on a task, all nodes at once, and evaluate.

The algorithm that was accounted is the one that runs: its maps by `Executor`, its noise by `noise_stream`. The unit of
privacy is the mechanism's: "record" adds noise to sums of clipped per-record gradients, "user" to clipped means. What a
run needs to go on after a stop is its state, the step and the noise key; the key is derived from the seed, or
given by the caller, and never written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from .. import check, files
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism, in_every_step
from ..participation import Cyclic, Participation, ParticipationByNode
from . import checkpoint
from .executor import Executor
from .keys import GENERATOR, NoiseKey
from .run import Run, SeedRun
from .streams import noise_stream
from .tasks import Task
from .tasks.steps import Period

Progress = Callable[[int], None]

NOT_COVERED = ("diverged", "task_hash")
"""Metadata of a checkpoint that follow from the data without noise; a guess of all data can be checked by the hash."""

SINGLE_THREAD_WORK = 2**22  # gradient entries per step below which a second torch thread costs more than it brings


def replay(
    mechanism: Mechanism,
    task: Task,
    *,
    seeds: Iterable[int] | None = None,
    key: NoiseKey | None = None,
    period: int | None = None,
    eval_every: int | None = None,
    stop_after: int | None = None,
    checkpoint_folder: str | os.PathLike[str] | None = None,
    keep_messages: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    publish: bool = False,
) -> Run:
    """Trains once per seed.

    Args:
        mechanism: calibrated, or without noise. At record level its participation must be cyclic or every step, the
            same or another one at each node: the fixed public record-to-step maps that the executor implements; at user
            level it is every step.
        task: data, model and per-record loss, for as many nodes as the mechanism.
        seeds: decide data split, start model and batch order, shared by all mechanisms of one seed, and the noise
            key. None: one run, everything drawn by the operating system.
        key: noise key, instead of the one derived from the seed. A seeded key makes a run reproducible, so
            anyone who knows the seed can subtract the noise: publish only models of unseeded runs. An unseeded key may
            serve many runs: each draws a nonce, kept in its checkpoint, and no two of them share noise.
        period: at user level, over how many steps a node spreads its records, in the same cyclic order every time;
            default 1, all of them at every step. The guarantee covers any: all data of a user may change. At record
            level the participation says it, and another one is refused.
        eval_every: steps between evaluations; default the period (the longest of any node), the end of each epoch.
        stop_after: stop after this step (a checkpoint is written); a later call with the same arguments goes on. Where
            the guarantee is for hidden messages, it covers the final models and none of a run that was stopped.
        checkpoint_folder: where to keep checkpoints, one subfolder per seed; without it nothing is written.
        keep_messages: keep every message of the steps of this call, shape (steps, messages, d) (memory).
        dtype, device: of models and gradients; default float32 on CUDA when there is one, else the CPU.
        progress: called with the number of steps just finished.
        publish: True if models or messages of these runs will be published: noise that a seed decides is refused.

    Returns: Run with one SeedRun per seed.
    Raises:
        InvalidInput: node counts differ, a checkpoint of another run, an unseeded resume without its key, a period
            that the guarantee does not cover, seeded noise of a run to publish, a folder that another run uses.
        UnsupportedMechanism: at record level, participation other than cyclic or every step.
    """
    if not isinstance(mechanism, Mechanism):
        raise InvalidInput(
            "mechanism must be a Mechanism, an algorithm with its noise and guarantee, got "
            f"{type(mechanism).__name__}; make one: mfdl.calibrate(algorithm, trust=..., adjacency=..., clip_norm=..., "
            "mu=...), or mfdl.with_noise or mfdl.without_noise."
        )
    if not isinstance(task, Task):
        raise InvalidInput(f"task must be a Task, e.g. mfdl.tasks.digits(graph), got {type(task).__name__}.")
    mechanism.require_unchanged()
    algorithm = mechanism.algorithm
    fed_every = _period(mechanism, period)
    if task.num_nodes != algorithm.num_nodes:
        raise InvalidInput(
            f"task has {task.num_nodes} nodes but the mechanism has {algorithm.num_nodes}; build the task for the "
            "mechanism's graph."
        )
    _require_covered(mechanism, task)
    T = algorithm.num_steps
    every = _longest(fed_every) if eval_every is None else check.integer_at_least(1, eval_every=eval_every)
    last = T if stop_after is None else min(check.integer_at_least(0, stop_after=stop_after), T)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if seeds is not None and not isinstance(seeds, Iterable):
        raise InvalidInput(f"seeds must be a list of integers >= 0, or None for one unseeded run, got {seeds!r}.")
    chosen: list[int | None] = [None] if seeds is None else [check.integer_at_least(0, seed=s) for s in seeds]
    if not chosen:
        raise InvalidInput("seeds must hold at least one seed, or be None for one unseeded run.")
    if key is not None and not isinstance(key, NoiseKey):
        raise InvalidInput(f"key must be a NoiseKey, e.g. mfdl.training.keys.NoiseKey.from_entropy(), got {key!r}.")
    if publish and (key.seeded if key is not None else seeds is not None):
        raise InvalidInput(
            "a run to publish must not take its noise from a seed, which others can guess and subtract the noise; pass "
            "key=NoiseKey.from_entropy(), which may stand beside seeds, or leave seeds out."
        )
    if publish and last < T and mechanism.guarantee.release in ("average", "all"):
        raise InvalidInput(
            f"a run stopped after step {last} of {T} has no models to publish: this guarantee covers hidden messages "
            f"and the final models; leave stop_after out, or build an algorithm of {last} steps."
        )
    for seed in chosen:  # every refusal before any run; sizes that a drawn split decides are checked with it
        if seed is not None or not task.batch_sizes_depend_on_seed:
            _divisors(mechanism, task, fed_every, seed or 0)
    runs = []
    for seed in chosen:
        root = key
        if root is None:
            root = NoiseKey.from_entropy() if seed is None else NoiseKey.from_seed(seed)
        folder = None if checkpoint_folder is None else Path(checkpoint_folder) / f"seed-{seed}"
        with contextlib.nullcontext() if folder is None else files.held_alone(folder):
            one = _SeedReplay(
                mechanism, task, fed_every, seed, root, folder, dtype, where, keep_messages, resumable=key is not None
            )
            runs.append(one.run(last, every, progress))
    return Run(mechanism, task.name, tuple(runs))


def _period(mechanism: Mechanism, given: int | None) -> Period:
    """Steps after which the executor feeds the same records again, at each node if they differ."""
    if given is not None:
        given = check.integer_at_least(1, period=given)
    if mechanism.unit == "user":
        return given or 1
    participation = mechanism.algorithm.participation
    period = _record_period(participation)
    if period is None:
        raise UnsupportedMechanism(
            f"the executor feeds each record to the same step of every epoch, i.e. cyclic participation, or to every "
            f"step; the mechanism was accounted for {participation.describe()}. Reshuffled or sampled batches are "
            "other schemes and are not covered."
        )
    if given not in (None, period):
        raise InvalidInput(
            f"period must be {period}, the one of {participation.describe()} that record-level privacy was accounted "
            f"for, got {given}; leave it out, or calibrate anew."
        )
    return period


def _record_period(participation: Participation) -> Period | None:
    if isinstance(participation, ParticipationByNode):
        return _record_periods(participation.participations)
    if isinstance(participation, Cyclic):
        return participation.period
    return 1 if in_every_step(participation) else None


def _record_periods(participations: tuple[Participation, ...]) -> Period | None:
    """One per node; one number where they agree; None where the executor does not implement one of them."""
    periods = []
    for own in participations:
        period = _record_period(own)
        if not isinstance(period, int):
            return None
        periods.append(period)
    return periods[0] if len(set(periods)) == 1 else tuple(periods)


def _longest(period: Period) -> int:
    return period if isinstance(period, int) else max(period)


def _divisors(mechanism: Mechanism, task: Task, period: Period, seed: int) -> FloatArray:
    """What a node's clipped gradients and noise are divided by: at user level the mean is taken inside the clip.

    Divisors scale gradients and noise of a node alike: they cancel where all messages are seen and show the injected
    sums, and where all nodes have the same. Elsewhere (hidden messages, noise that enters where gradients do not) the
    mechanism must have been calibrated with them.
    Raises: InvalidInput: it was not.
    """
    algorithm = mechanism.algorithm
    user = mechanism.unit == "user"
    sizes = np.ones(algorithm.num_nodes) if user else task.public_batch_sizes(period, seed)
    ratio = sizes / algorithm.divisors
    cancel = algorithm.divisors_cancel and mechanism.guarantee.release == "not applicable"
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


def _require_covered(mechanism: Mechanism, task: Task) -> None:
    """Refuses a task that the mechanism's guarantee does not speak of; divisors have their own check."""
    if mechanism.guarantee.adjacency == "add-remove":
        raise UnsupportedMechanism(
            "under add-remove adjacency the number of records is not public, but the executor's split, record-to-step "
            "map and divisors follow it; use zero-out (the record's gradient is replaced by zero) or replace-one."
        )
    if mechanism.lipschitz is not None and not (task.lipschitz is not None and task.lipschitz <= mechanism.lipschitz):
        raise InvalidInput(
            f"the guarantee assumes local maps with Lipschitz constant {mechanism.lipschitz:g}, and task {task.name!r} "
            f"claims {task.lipschitz}; calibrate without lipschitz, or state Task(lipschitz=...) if you can prove it."
        )


class _SeedReplay:
    """One seed: builds the shared instance, resumes if there is a checkpoint, and steps."""

    def __init__(
        self,
        mechanism: Mechanism,
        task: Task,
        period: Period,
        seed: int | None,
        root: NoiseKey,
        folder: Path | None,
        dtype: torch.dtype,
        device: torch.device,
        keep_messages: bool,
        *,
        resumable: bool,
    ) -> None:
        self.mechanism, self.task, self.seed, self.folder = mechanism, task, seed, folder
        self.keep_messages, self.dtype, self.device = keep_messages, dtype, device
        held = folder is not None and os.path.lexists(folder / checkpoint.POINTER)
        saved = checkpoint.load(folder) if folder is not None and held else None
        if saved is not None and seed is None and not resumable:
            raise InvalidInput(
                f"{folder} holds an unseeded run, whose noise key was never written; pass key=... to go on, or "
                "choose another folder."
            )
        drawn = secrets.randbits(32) if seed is None else seed
        if saved is not None:
            drawn = check.integer_at_least(0, split_seed=saved.metadata.get("split_seed", drawn))
        self.split_seed = drawn
        # a secret key may serve several runs: each draws its own nonce; runs of a seed are meant to repeat
        self.nonce = "" if root.seeded else secrets.token_hex(16)
        if saved is not None:
            self.nonce = str(saved.metadata.get("nonce", ""))
        self.instance = task.instance(drawn, period, dtype=dtype, device=device)
        self.algorithm = mechanism.algorithm.with_divisors(_divisors(mechanism, task, period, drawn))
        self.executor = Executor(self.algorithm, dtype=dtype, device=device)
        # one key per mechanism, task, split and batch plan, so that no two of them ever share noise, not even under one
        # seed; at record level the mechanism's hash holds the period
        plan: tuple[str | int, ...] = () if mechanism.unit == "record" else ("period", _longest(period))
        if self.nonce:
            plan = (*plan, "nonce", self.nonce)
        self.key = root.derive("replay", mechanism.content_hash, task.content_hash, drawn, str(dtype), *plan)
        self.identity = {
            "unit": mechanism.unit,
            "mechanism_hash": mechanism.content_hash,
            "task_hash": task.content_hash,
            "period": period,
            "key_id": self.key.key_id,
            "seed": seed,
            "dtype": str(dtype),
            "generator": GENERATOR,  # another rule is other noise: such a run cannot go on
        }
        self.steps: list[int] = []
        self.loss: list[np.ndarray] = []
        self.accuracy: list[np.ndarray] = []
        self.messages: list[np.ndarray] = []
        self.diverged = False
        self.start, self.state = 0, self.executor.initial_state(self.instance.initial_parameters)
        self.begun = saved is not None
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        checkpoint.require_match(saved.metadata, **self.identity)
        self._require_shape_of_a_run(saved)
        self.start = saved.step
        self.state = saved.models["state"].to(device=self.device, dtype=self.executor.state_dtype)
        self.steps = [int(s) for s in saved.models["evaluated_steps"]]
        self.loss = list(saved.models["loss"].double().numpy())
        if "accuracy" in saved.models:
            self.accuracy = list(saved.models["accuracy"].double().numpy())
        self.diverged = bool(saved.metadata["diverged"])

    def _require_shape_of_a_run(self, saved: checkpoint.Checkpoint) -> None:
        """Refuses a whole checkpoint that this code would not have written for this run."""
        found = {name: tuple(tensor.shape) for name, tensor in saved.models.items()}
        evaluated = found.get("evaluated_steps", ())
        table = (*evaluated, self.algorithm.num_nodes)
        wanted = {"state": tuple(self.state.shape), "evaluated_steps": evaluated[:1], "loss": table}
        if "accuracy" in found:
            wanted["accuracy"] = table
        T = self.algorithm.num_steps
        whole = not saved.models["evaluated_steps"].is_floating_point() if "evaluated_steps" in found else False
        if found != wanted or not whole or saved.step > T or "diverged" not in saved.metadata:
            raise InvalidInput(
                f"{self.folder} holds a checkpoint after step {saved.step} with tensors {found}, none of a run "
                f"of {T} steps and state {tuple(self.state.shape)}; start the run anew in another folder."
            )

    def _save(self, step: int) -> None:
        if self.folder is None:
            return
        n = self.algorithm.num_nodes
        tensors = {
            "state": self.state.cpu().contiguous(),
            "evaluated_steps": torch.tensor(self.steps, dtype=torch.int64),
            "loss": torch.as_tensor(np.array(self.loss).reshape(-1, n)),
        }
        if self.accuracy:
            tensors["accuracy"] = torch.as_tensor(np.array(self.accuracy))
        metadata = {
            **self.identity,
            "diverged": self.diverged,
            "split_seed": self.split_seed,
            "nonce": self.nonce,
            "seeded_noise": self.key.seeded,  # whoever reads `seed` can then make the noise
        }
        checkpoint.save(self.folder, step=step, models=tensors, metadata=metadata, private=[*tensors, *NOT_COVERED])

    def _evaluate(self, step: int) -> None:
        models = self.executor.models(self.state)
        result = self.instance.evaluate(models)
        self.steps.append(step)
        self.loss.append(result.loss.double().cpu().numpy())
        if result.accuracy is not None:
            self.accuracy.append(result.accuracy.double().cpu().numpy())
        if not (np.isfinite(self.loss[-1]).all() and bool(torch.isfinite(models).all())):
            self.diverged = True

    def run(self, last: int, every: int, progress: Progress | None) -> SeedRun:
        """Steps from where the run stands to `last`."""
        slots = int(self.instance.public_batch_sizes.sum())
        small = self.device.type == "cpu" and slots * self.instance.dimension < SINGLE_THREAD_WORK
        threads = torch.get_num_threads()
        try:
            if small:
                torch.set_num_threads(1)
            return self._run(last, every, progress)
        finally:
            torch.set_num_threads(threads)

    def _run(self, last: int, every: int, progress: Progress | None) -> SeedRun:
        T = self.algorithm.num_steps
        stream = noise_stream(self.algorithm.noise, self.mechanism.noise_std, self.key, self.instance.dimension)
        seconds = 0.0
        if not self.begun and last > 0:
            self._save(0)  # a nonce lost with the process would send the first steps again under other noise
        if progress is not None and self.start:
            progress(self.start)
        for t in range(self.start, last):
            began = time.perf_counter()
            gradients = self.instance.clipped_gradients(
                self.executor.models(self.state), t, self.mechanism.clip_norm, self.mechanism.unit
            )
            noise = torch.tensor(stream.step(t), dtype=self.executor.state_dtype, device=self.device)
            messages, self.state = self.executor.step(t, self.state, gradients, noise)
            seconds += time.perf_counter() - began
            if self.keep_messages:
                self.messages.append(messages.double().cpu().numpy())
            done = t + 1
            if done % every == 0 or done == T:
                self._evaluate(done)
                self._save(done)
            if progress is not None:
                progress(1)
        finished = max(last, self.start)
        if finished < T:
            self._save(finished)
        return SeedRun(
            seed=self.seed,
            steps=np.array(self.steps, dtype=np.int64),
            loss=np.array(self.loss).reshape(len(self.steps), self.algorithm.num_nodes),
            accuracy=np.array(self.accuracy) if self.accuracy else None,
            models=self.executor.models(self.state).double().cpu().numpy(),
            diverged=self.diverged,
            finished_steps=finished,
            training_seconds=seconds,
            key_id=self.key.key_id,
            messages=np.stack(self.messages) if self.messages else None,
            seeded_noise=self.key.seeded,
        )

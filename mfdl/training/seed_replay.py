"""One seed of a run: owners of the records, batches, checkpoint, steps, and the noise key, which is never written."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import check, metrics
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..noise.stream import NoiseStream
from ..progress import Advance
from . import checkpoint, clipping, learned, replay_config
from .clipping import Flat
from .distributed import Group, Share
from .drawn_batches import scheme_batches
from .executor import Executor, Releasing, one_thread
from .keys import NoiseKey
from .replay_config import EvaluatedStep, ReplayConfig
from .run import SeedRun
from .step_rules import PublicFacts
from .streams import noise_stream
from .tasks.instance import TaskInstance

NOT_COVERED = "diverged", "dropped_records", "task_hash"  # metadata that follow from the data without noise
RULE = "step rule, "  # prefix, in a checkpoint, of the names of a step rule's state
SINGLE_THREAD_WORK = 2**22  # gradient entries per step below which a second torch thread costs more than it brings


class SeedReplay:
    """One seed, or one rank's share of it; like: a run whose algorithm this one takes, if it is the same."""

    def __init__(
        self,
        config: ReplayConfig,
        seed: int | None,
        root: NoiseKey,
        folder: Path | None,
        group: Group,
        like: SeedReplay | None = None,
    ) -> None:
        mechanism, task = config.mechanism, config.task
        self.config, self.mechanism, self.seed, self.folder, self.device = config, mechanism, seed, folder, config.where
        self.group = group
        saved = group.same(self._saved)
        # a secret key may serve several runs: each draws its own nonce; runs of a seed are meant to repeat
        self.split_seed, self.nonce = group.same(
            lambda: (secrets.randbits(32) if seed is None else seed, "" if root.seeded else secrets.token_hex(16))
        )
        if saved is not None:
            self.split_seed = check.integer_at_least(0, split_seed=saved.metadata.get("split_seed", self.split_seed))
            self.nonce = str(saved.metadata.get("nonce", ""))
        fed_every, dtype = config.fed_every, config.dtype
        self.divisors = replay_config.divisors(mechanism, task, fed_every, self.split_seed)
        same = like is not None and like.mechanism is mechanism and np.array_equal(like.divisors, self.divisors)
        self.algorithm: LinearAlgorithm = (
            like.algorithm if like is not None and same else mechanism.algorithm.with_divisors(self.divisors)
        )
        instance = task.instance(self.split_seed, fed_every, dtype=dtype, device=self.device)
        self.instance = instance if group.size == 1 else instance.node_part(self.share.nodes)
        # one key per mechanism, task, split and batch plan, so that no two of them ever share noise, not even under one
        # seed; at record level the mechanism's hash holds the period
        plan: tuple[str | int, ...] = () if mechanism.unit == "record" else ("period", replay_config.longest(fed_every))
        if self.nonce:
            plan = (*plan, "nonce", self.nonce)
        self.clips = None if config.clip_schedule is None else np.asarray(config.clip_schedule)
        clips = {} if self.clips is None else {"clips": hashlib.sha256(self.clips.tobytes()).hexdigest()[:16]}
        rule = {} if config.rule is None else {"step_rule": str(config.rule)}
        self.clip_rule = config.clip_rule
        if not isinstance(self.clip_rule, Flat):
            rule["clipping"] = config.clipping
        plan = (*plan, *clips, *clips.values(), *rule, *rule.values())
        content = mechanism.content_hash, task.content_hash
        self.key = root.derive("replay", *content, self.split_seed, str(dtype), *plan)
        sampling = mechanism.sampling
        self.batches = None if sampling is None else scheme_batches(sampling, self.instance, self.key)
        self.identity = {
            "unit": mechanism.unit,
            "mechanism_hash": mechanism.content_hash,
            "task_hash": task.content_hash,
            "period": fed_every,
            "key_id": self.key.key_id,
            "seed": seed,
            "dtype": str(dtype),
            **clips,
            **rule,
            "generator": self.key.generator.name,  # another rule is other noise: such a run cannot go on
        }
        self.metrics = tuple(config.metrics)
        tables = "evaluated_steps", "loss", "accuracy", *self.metrics
        self.evaluated: dict[str, list[Any]] = {name: [] for name in tables}
        self.messages: list[np.ndarray] = []
        self.diverged, self.saved = False, saved
        self.dropped = 0
        self.rule, self.rule_state = config.rule, dict[str, torch.Tensor]()

    @functools.cached_property
    def executor(self) -> Executor:
        return Executor(self.algorithm, dtype=self.config.dtype, device=self.device, group=self.group)

    @property
    def share(self) -> Share:
        return self.executor.share

    @property
    def evaluated_every(self) -> int:
        return self.config.eval_every or replay_config.epoch(self.mechanism, self.config.fed_every)

    def stream(self) -> NoiseStream:
        noise, slots = self.algorithm.noise, None if self.group.size == 1 else self.share.slots
        return noise_stream(noise, self.mechanism.noise_std, self.key, self.instance.dimension, slots=slots)

    def _begin(self) -> None:
        self.start, self.state = 0, self.executor.initial_state(self.instance.initial_parameters)
        self.releasing = Releasing(self.executor, self.instance.dimension)
        if self.rule is not None:
            self.facts = PublicFacts(self.algorithm, self.mechanism.noise_std, self.share, self.device)
            zeros = torch.zeros(self.instance.initial_parameters.shape, dtype=torch.float64, device=self.device)
            self.rule_state = dict(self.rule.first_state(zeros))
        if self.saved is not None:
            self._restore(self.saved)

    def _saved(self) -> checkpoint.Checkpoint | None:
        if self.folder is None or not os.path.lexists(self.folder / checkpoint.FILE):
            return None
        saved = checkpoint.load(self.folder)
        if self.seed is None and self.config.key is None:
            raise InvalidInput(
                f"{self.folder} holds an unseeded run, whose noise key was never written; pass key=... to go on, or "
                "choose another folder."
            )
        return saved

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        checkpoint.require_match({"metrics": [], **saved.metadata}, **self.identity, metrics=self.metrics)
        self._require_shape_of_a_run(saved)
        self.start = saved.step
        state = saved.models["state"].to(device=self.device, dtype=self.executor.state_dtype)
        self.state = self.share.own_rows("state", state)
        if self.releasing.total is not None:
            self.releasing.total = self.share.own_rows("nodes", saved.models["released"].to(self.device))
        for name in self.rule_state:
            self.rule_state[name] = self.share.own_rows("nodes", saved.models[f"{RULE}{name}"].to(self.device))
        for name in self.evaluated.keys() & saved.models.keys():
            self.evaluated[name] = list(saved.models[name].numpy())
        self.diverged = bool(saved.metadata["diverged"])
        self.dropped = int(saved.metadata.get("dropped_records", 0)) * self.group.leads
        if self.folder is not None and self.group.leads:
            checkpoint.remove_leftovers(self.folder)  # of a run that was killed; a finished one saves no more

    def _require_shape_of_a_run(self, saved: checkpoint.Checkpoint) -> None:
        shapes = {name: tuple(tensor.shape) for name, tensor in saved.models.items()}
        evaluated, T, n = shapes.get("evaluated_steps", ()), self.algorithm.num_steps, self.algorithm.num_nodes
        state, table = (self.algorithm.sizes["state"], self.instance.dimension), (*evaluated, n)
        wanted = {"state": state, "evaluated_steps": evaluated[:1], "loss": table}
        if self.releasing.total is not None:
            wanted["released"] = n, self.instance.dimension
        wanted |= {f"{RULE}{name}": (n, *remembered.shape[1:]) for name, remembered in self.rule_state.items()}
        wanted |= {name: table if metrics.is_of_nodes(name) else evaluated for name in self.metrics}
        if "accuracy" in shapes:
            wanted["accuracy"] = table
        whole = "evaluated_steps" in shapes and not saved.models["evaluated_steps"].is_floating_point()
        if shapes != wanted or not whole or saved.step > T or "diverged" not in saved.metadata:
            raise InvalidInput(
                f"{self.folder} holds a checkpoint after step {saved.step} with tensors {shapes}, none of a run of {T} "
                f"steps and state {state}; start the run anew in another folder."
            )

    def _save(self, step: int) -> None:
        if self.folder is None:
            return
        tensors = {"state": self.share.gathered("state", self.state).cpu().contiguous()}
        if self.releasing.total is not None:
            tensors["released"] = self.share.gathered("nodes", self.releasing.total).cpu()
        for name, remembered in self.rule_state.items():
            tensors[f"{RULE}{name}"] = self.share.gathered("nodes", remembered).cpu()
        dropped = self.dropped_records
        if not self.group.leads:
            return
        tensors |= {name: torch.as_tensor(table) for name, table in self._tables().items() if table is not None}
        metadata = {
            **self.identity,
            "diverged": self.diverged,
            "dropped_records": dropped,
            "split_seed": self.split_seed,
            "nonce": self.nonce,
            **({"metrics": self.metrics} if self.metrics else {}),
            "seeded_noise": self.key.seeded,  # whoever reads `seed` can compute the noise
        }
        checkpoint.save(self.folder, step=step, models=tensors, metadata=metadata, private=[*tensors, *NOT_COVERED])

    @property
    def dropped_records(self) -> int:
        return int(self.group.summed(torch.tensor(self.dropped, device=self.group.device)))

    def record(self, step: int, measured: dict[str, np.ndarray]) -> None:
        self.evaluated["evaluated_steps"].append(step)
        for name, values in measured.items():
            self.evaluated[name].append(values)

    def _measured(self, models: torch.Tensor) -> dict[str, np.ndarray]:
        """Metrics of all nodes by name; notes whether the run has diverged."""
        averaged = not all(map(metrics.is_of_nodes, self.metrics))
        average = self.share.mean(models) if averaged else None
        result = self.instance.evaluate(models, self.metrics, average)
        measured = {"loss": result.loss, "accuracy": result.accuracy, **result.metrics}
        self.diverged |= self.share.any(not bool(torch.isfinite(result.loss).all() and torch.isfinite(models).all()))
        return {
            name: (self.share.gathered("nodes", x) if metrics.is_of_nodes(name) else x).double().cpu().numpy()
            for name, x in measured.items()
            if x is not None
        }

    def _evaluated_step(self, step: int) -> EvaluatedStep:
        last = {name: np.array(tables[-1]) for name, tables in self.evaluated.items() if tables}
        models = np.array(self._all_models(self.executor.models(self.state)))
        more = {name: last[name] for name in self.metrics}
        return EvaluatedStep(step, self.seed, last["loss"], last.get("accuracy"), models, self.diverged, more)

    def _all_messages(self, messages: torch.Tensor) -> np.ndarray:
        of_rounds = messages.double().reshape(-1, self.share.size("messages"), messages.shape[1]).transpose(0, 1)
        return self.share.gathered("messages", of_rounds).transpose(0, 1).flatten(0, 1).cpu().numpy()

    def _all_models(self, models: torch.Tensor) -> np.ndarray:
        return self.share.gathered("nodes", models).double().cpu().numpy()

    def _tables(self) -> dict[str, Any]:
        """Evaluated steps, and one row of metrics per evaluation; None for a metric that was never measured."""
        tables = {name: np.array(rows, dtype=np.float64) for name, rows in self.evaluated.items()}
        steps = np.array(self.evaluated["evaluated_steps"], dtype=np.int64)
        for name in tables.keys() - {"evaluated_steps", "accuracy"}:
            if metrics.is_of_nodes(name):
                tables[name] = tables[name].reshape(steps.size, self.algorithm.num_nodes)
        accuracy = tables["accuracy"] if self.evaluated["accuracy"] else None
        return {**tables, "evaluated_steps": steps, "accuracy": accuracy}

    def batch(self, step: int) -> TaskInstance:
        return self.instance if self.batches is None else self.batches.step_batch(step)

    def clipped(self, batch: TaskInstance, models: torch.Tensor, step: int) -> torch.Tensor:
        mechanism = self.mechanism
        scales = None if self.rule is None else self.rule.scales(step, self.rule_state)
        if self.clips is None:
            return batch.clipped_gradients(models, step, self.clip_rule, mechanism.unit, scales)
        scale = float(self.clips[step])  # what is divided by it in float64 rounds up by less than is left here
        clip_norm = mechanism.clip_norm * scale * (1 - 2.0**-50)
        return batch.clipped_gradients(models, step, clip_norm, mechanism.unit, scales).double() / scale

    def _directions(self, step: int, privatised: torch.Tensor) -> torch.Tensor:
        assert self.rule is not None
        directions, state = self.rule.step(step, privatised, self.rule_state, self.facts)
        self.rule_state = dict(state)
        return directions

    def run(self, advance: Advance) -> SeedRun:
        self._begin()
        self.group.under_way = True
        with few_threads([self.instance]):
            return self._run(advance)

    def _run(self, advance: Advance) -> SeedRun:
        last, on_evaluation = self.config.last, self.config.on_evaluation
        every, T, stream = self.evaluated_every, self.algorithm.num_steps, self.stream()
        seconds = 0.0
        if self.saved is None and last > 0:
            self._save(0)  # a nonce lost with the process would send the first steps again under other noise
        if self.start:
            advance(self.start)
        for t in range(self.start, last):
            began = time.perf_counter()
            with clipping.counting_dropped() as dropped:
                gradients = self.clipped(self.batch(t), self.executor.models(self.state), t)
            self.dropped += dropped()
            injected = stream.step(t)
            rule = None if self.rule is None else functools.partial(self._directions, t)
            messages, self.state = self.executor.step(t, self.state, gradients, injected, rule)
            self.releasing.after(t, self.state)
            seconds += time.perf_counter() - began
            if self.config.keep_messages:
                self.messages.append(self._all_messages(messages))
            done = t + 1
            if done % every == 0 or done == T:
                self.record(done, self._measured(self.executor.models(self.state)))
                self._save(done)
                if on_evaluation is not None:
                    on_evaluation(self._evaluated_step(done))
            advance()
        finished = max(last, self.start)
        if finished < T:
            self._save(finished)
        models = self.releasing.models(self.state) if finished == T else self.executor.models(self.state)
        released = {} if finished < T or self.releasing.total is None else self._measured(models)
        return self.result(self._all_models(models), released, finished, seconds)

    def result(
        self, models: NDArray[np.float64], released: dict[str, Any], finished_steps: int, seconds: float
    ) -> SeedRun:
        tables = self._tables()
        start = learned.untrained(self.config.task, self.split_seed)
        return SeedRun(
            seed=self.seed, steps=tables["evaluated_steps"], loss=tables["loss"], accuracy=tables["accuracy"],
            models=models, diverged=self.diverged, finished_steps=finished_steps, training_seconds=seconds,
            key_id=self.key.key_id, messages=np.stack(self.messages) if self.messages else None,
            seeded_noise=self.key.seeded, generator=self.key.generator.name, untrained_loss=start.loss,
            untrained_accuracy=start.accuracy, metrics={name: tables[name] for name in self.metrics},
            released=released, dropped_records=self.dropped_records,
        )  # fmt: skip


def few_threads(instances: Sequence[TaskInstance]) -> contextlib.AbstractContextManager[None]:
    """One torch thread for runs that train together, where a step is too little work for several."""
    work = sum(float(instance.public_batch_sizes.sum()) * instance.dimension for instance in instances)
    small = instances[0].mask.device.type == "cpu" and work < SINGLE_THREAD_WORK
    return one_thread() if small else contextlib.nullcontext()

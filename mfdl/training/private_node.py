"""A private node in a training loop of the user: any torch optimizer, this node's noise, no step beyond the last.

The noise is that of `node_stream`, the clipping that of `replay`, so n nodes that step here and average by
`mfdl.gossip.average` train as `replay` does.

Any optimizer is covered where an attacker who sees all messages learns exactly the injected sums (clipped gradients
plus noise): the guarantee holds for those sums, chosen adaptively, and so for every function of them. Elsewhere it
holds for the linear algorithm alone, and a `PrivateNode` is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..metrics import NotPrivate
from ..privacy.guarantee import Guarantee
from . import replay_config
from .clipping import Quantile, counting_dropped
from .grid_sums import GridSums, RoundedNormals
from .keys import NoiseKey, require_secure
from .shared_randomness import HolderKeys, columns_by_holders
from .single_copy import REPEATS, NodeFile, RecordSteps, SingleCopy, steps_of_keys
from .streams import node_stream
from .tasks.modules import PROBE_RECORDS, Loss, PerRecordModel, checked_model, refuse_by_name
from .tasks.record_clipping import LOG_NORM, RecordClipping, clipped_rows

__all__ = ["Message", "PrivateNode", "shaped_like"]


def shaped_like(row: FloatArray, parameters: torch.nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One row of a `NoiseStream`, as tensors of the shapes, types and devices of parameters.

    Args: row: shape (d,), all entries in the order of the parameters; parameters: a module, of which those with
        `requires_grad` count, or tensors by name.

    Where noise is many times a gradient, as shared noise may be, take tensors of float64, add, and round the sum: a
    gradient that meets rounded noise is rounded to the grid of that, and a record may then move it by more.

    Raises: InvalidInput: another number of entries, or a parameter whose type is no real floating-point one.

    >>> stream_row = np.arange(3.0)
    >>> shaped_like(stream_row, torch.nn.Linear(2, 1))["bias"]
    tensor([2.])
    """
    if isinstance(parameters, torch.nn.Module):
        parameters = {name: p for name, p in parameters.named_parameters() if p.requires_grad}
    for name, p in parameters.items():
        if not p.is_floating_point():
            raise InvalidInput(
                f"parameters must be of real floating-point types, got {p.dtype} for {name!r}; noise would be cut "
                "off there."
            )
    d = sum(p.numel() for p in parameters.values())
    if np.shape(row) != (d,):
        raise InvalidInput(
            f"row must have one entry per parameter, shape ({d},), got {np.shape(row)}; a stream of dim={d} gives rows "
            "that fit: stream.step(t)[0] for the one slot of a node."
        )
    pieces = torch.tensor(row).split([p.numel() for p in parameters.values()])
    return {name: piece.reshape(p.shape).to(p) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}


class Message(dict[str, torch.Tensor]):
    """Tensors that a node may send, by name; made by `PrivateNode.message` alone."""


class PrivateNode(SingleCopy):
    """A torch optimizer whose gradients are clipped, summed, noised and divided as a mechanism was accounted.

    Args:
        optimizer: any, over exactly the trainable parameters of `module`; what it keeps is a function of noised sums.
        module: computes each record by itself (batch norm, active dropout and the like are refused, as in `Task`).
        mechanism: of `calibrate`; its guarantee is that of the run. node: an index in 0 .. n - 1.
        keys: the secrets that this node holds (`HolderKeys.given`), or the root key of a simulation. A secret serves
            one run: a second one with it repeats its noise.
        loss: (output of one record, target of one record) -> scalar.
        batch_size: the public constant that sums are divided by, never a count of the records at hand; default what
            the mechanism was calibrated with. At user level the mean is taken inside the clip, and it must be 1.
        clipping: as of `replay`. "quantile:Q:SHARE" keeps the logarithm of its norm in `module.log_norm`, a parameter
            torch.nn.Parameter(torch.zeros(())) that optimizer and messages hold like any other.
        grid: a step h, a power of two, e.g. 2^-18 of the clipping norm (`grid_sums`); for noise of each node alone.
            None: float64 noise.
        publish: False only if nothing of the run leaves this machine. Keys of seeds are refused otherwise, and so is a
            step that was taken with the same keys in this process.
        folder: of this node alone, which it locks: every `step` saves node and module there before it returns, and a
            new node goes on from there. `close` releases it. None: `state_dict` is yours to save.
    Attributes: dropped_records: gradients that were not finite and counted as zero; not for sending.
    Guarantees: what leaves the node as a function of parameters after `step` (and of messages received) is covered by
        `mechanism.guarantee`, if each record takes part in the steps that its participation allows (`step(records=)`
        checks that) and nothing else of the data leaves: no loss, no gradient norm, no record count.
    Raises: UnsupportedMechanism: a guarantee for one linear algorithm (messages hidden, noise elsewhere than
        gradients), or for a secret number of records (add-remove); a grid with noise that nodes share.
    A live node is neither copied, pickled nor forked (`SingleCopy`).
    Cost: per step, a hash of the module, per-record gradients (records x parameters; less for large layers, see
        `RecordClipping`), and the noise of `node_stream`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        module: torch.nn.Module,
        mechanism: Mechanism,
        *,
        node: int,
        keys: NoiseKey | HolderKeys,
        loss: Loss,
        batch_size: float | None = None,
        clipping: str = "flat",
        grid: float | None = None,
        publish: bool = True,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        check.instance(torch.optim.Optimizer, optimizer=optimizer)
        check.instance(torch.nn.Module, module=module)
        check.instance(Mechanism, mechanism=mechanism)
        replay_config.require_same_parameters(optimizer, module)
        replay_config.require_own_loop(mechanism)
        if isinstance(keys, NoiseKey):
            keys = HolderKeys.simulated(keys)
        if not isinstance(keys, HolderKeys):
            raise InvalidInput(
                f"keys must be HolderKeys.given(...) of this node, or a NoiseKey of a simulation, got {keys!r}."
            )
        algorithm, user = mechanism.algorithm, mechanism.unit == "user"
        self.optimizer, self.mechanism, self.model = optimizer, mechanism, PerRecordModel(module, loss)
        self._stream = node_stream(algorithm.noise, node, keys, mechanism.noise_std, self.model.dimension)
        self.clip_rule = replay_config.clip_rule(clipping, mechanism)
        self.clip_rule.parts(self.model.shapes)
        if isinstance(self.clip_rule, Quantile) and self.model.shapes.get(LOG_NORM) != torch.Size():
            raise InvalidInput(
                f"clipping {clipping} learns a norm that the module must hold: set module.{LOG_NORM} = "
                "torch.nn.Parameter(torch.zeros(())) before the optimizer is made."
            )
        self.grid = None if grid is None else GridSums(mechanism, node, keys, grid)
        self.node = int(node)
        self.divisor = float(algorithm.divisors[node] if batch_size is None else check.positive(batch_size=batch_size))
        if user and self.divisor != 1:
            raise InvalidInput(
                f"at user level the mean is clipped and divided by nothing, got batch_size={self.divisor:g}; leave it "
                "out, and calibrate without divisors."
            )
        self.steps_taken = 0
        holder_sets = sorted(sorted(holders) for holders in columns_by_holders(algorithm.noise) if node in holders)
        of_sets = [keys.node_keys(node).key_for(holders) for holders in holder_sets]
        for key in of_sets if check.flag(publish=publish) else []:
            way_out = "use NoiseKey.from_entropy(), or publish=False in a simulation of which nothing is published"
            require_secure(way_out, keys=key)
        names = [key.key_id for key in of_sets]
        self.key_id = hashlib.sha256(repr((holder_sets, names)).encode()).hexdigest()[:32]
        generators = {key.generator.name for key in of_sets} if self.grid is None else {RoundedNormals.name}
        self._generators = sorted(generators)
        self.publish = publish
        self.dropped_records: NotPrivate[int] = 0
        self._checked = self._stepping = False
        self._digest: str | None = None  # of the module as the last step, average or file left it
        self._summed, self._numbered, self._count = torch.zeros(()), list[int](), 0  # of micro-batches, see accumulate
        node_reference = weakref.ref(self)  # a node that is gone holds its optimizer no more
        optimizer.register_step_pre_hook(lambda *_: _require_stepping(node_reference()))
        # at user level all data of the node may take part in any step
        self._record_steps = RecordSteps(None if user else algorithm.participation.at_node(self.node))
        self._file = None if folder is None else NodeFile(folder)
        if self._file is not None:
            try:
                if saved := self._file.load():
                    self.load_state_dict(saved)
                    self.module.load_state_dict(saved["module"])
                else:
                    self._file.save({**self.state_dict(), "module": self.module.state_dict()})
            except BaseException:
                self._file.close()
                raise

    def close(self) -> None:
        """Releases the folder, for a node that resumes elsewhere."""
        if self._file is not None:
            self._file.close()

    @property
    def module(self) -> torch.nn.Module:
        return self.model.module

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee besides keys that stay secret; timing is never covered."""
        words = f"random bits of {', '.join(self._generators)} cannot be told from uniform ones"
        if self.grid is None:
            return (
                words,
                "noise is of real numbers: low-order bits of float64 numbers may tell more, which grid= excludes",
            )
        torch_words = "torch takes the gradient of a record without the values of the others of its batch"
        return words, torch_words, "scipy.special.ndtri errs by at most 2^-46 max(1, |z|)"

    @property
    def num_steps(self) -> int:
        return self.mechanism.algorithm.num_steps

    def accumulate(
        self, features: torch.Tensor, targets: torch.Tensor, *, records: Sequence[int] | None = None
    ) -> None:
        """Adds a micro-batch to the batch of the next `step`: one sum, one noise, one step of the guarantee.

        A record stands in one of the micro-batches or in the batch of `step`; `state_dict` leaves the sums out.
        """
        with self.alone(), counting_dropped() as dropped:
            numbered, _ = self._checked_batch(features, targets, records)
            self._summed, self._count, self._numbered = *self._added(features, targets), numbered
            self.dropped_records += dropped()

    def step(self, features: torch.Tensor, targets: torch.Tensor, *, records: Sequence[int] | None = None) -> None:
        """Takes one private step on a batch, shapes (B, ...) and (B, ...), B >= 0, and on the micro-batches before it.

        Args: records: a number for each record, unique in this node's data, to check its participation, on which the
            guarantee rests; without numbers the caller ensures it.
        Returns: None: losses of private records are not for sending. The parameters have moved, and no `grad` stays.
        Raises: InvalidInput: no step is left, or a record may not take part; then nothing has happened.
        """
        with self.alone():
            t = self.steps_taken
            _, joined = self._checked_batch(features, targets, records)
            trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
            with counting_dropped() as dropped:
                privatised = self._privatised(t, features, targets)
            self.dropped_records += dropped()
            for name, gradient in self.model.unflatten(privatised / self.divisor).items():
                trained[name].grad = gradient.to(trained[name].dtype)
            self._record_steps.steps |= joined
            self._numbered, self._count = [], 0
            self.steps_taken = t + 1  # before the optimizer, whose failure must not let the noise be used again
            if self.publish:
                steps_of_keys[self.key_id] = t + 1
            self._stepping = True
            try:
                self.optimizer.step()
            finally:
                self._stepping = False
                for parameter in trained.values():
                    parameter.grad = None
                self._digest = None  # nothing is sent that could not be saved
                digest = self._hashed()
                if self._file is not None:
                    self._file.save({**self.state_dict(), "module_hash": digest, "module": self.module.state_dict()})
                self._digest = digest

    def _checked_batch(
        self, features: torch.Tensor, targets: torch.Tensor, records: Sequence[int] | None
    ) -> tuple[list[int], dict[int, list[int]]]:
        """The record numbers of this step so far, and the steps that each has joined; checks the batch."""
        t = self.steps_taken
        if t >= self.num_steps:
            raise InvalidInput(
                f"this node has taken its {self.num_steps} steps, and the guarantee covers no more; calibrate a "
                "mechanism of more steps before training."
            )
        if self.publish and t < steps_of_keys.get(self.key_id, 0):
            raise InvalidInput(
                f"step {t} was taken in this process with the same keys, by another node: {REPEATS}; go on with that "
                "node, or make new keys for a new run."
            )
        if self._file is not None:
            self._file.require_last()
        replay_config.require_batch(records, features=features, targets=targets)
        if len(features) != len(targets) or (records is not None and len(records) != len(features)):
            counts = [len(part) for part in (features, targets, *(() if records is None else (records,)))]
            raise InvalidInput(f"features, targets and records must be equally many, got {counts}.")
        if len(features) and not self._checked:
            probe = torch.arange(PROBE_RECORDS) % len(features)  # with fewer records some stand twice
            # a copy, as some layers change their own parameters by what they see (an embedding's max_norm)
            checked = checked_model(copy.deepcopy(self.module), self.model.loss, features[probe], targets[probe])
            way = RecordClipping.from_model(checked, features[0], targets[0])
            self._record_clipping = dataclasses.replace(way, model=self.model)
            self._checked = True
        refuse_by_name(self.module)  # its mode may have changed
        numbered = [*self._numbered, *(() if records is None else records)]
        return numbered, self._record_steps.with_batch(t, numbered)

    def message(self) -> Message:
        """A copy of the module's tensors, to be sent; refused where anything but `step` and `receive` moved it."""
        self._require_covered_module()
        return Message({name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()})

    def receive(self, average: Mapping[str, torch.Tensor]) -> None:
        """Loads an average of messages (`mfdl.gossip.average`); refused as `message` is."""
        self._require_covered_module()
        shapes = {name: tensor.shape for name, tensor in self.module.state_dict().items()}
        given = check.mapping("names and tensors, as mfdl.gossip.average gives them", average=average)
        wrong = sorted(n for n in {*shapes, *given} if getattr(given.get(n), "shape", None) != shapes.get(n))
        if wrong:
            raise InvalidInput(f"average must have the tensors of message(), and differs in {wrong[0]!r}.")
        self.module.load_state_dict(average)
        self._digest = self._hashed()

    def _require_covered_module(self) -> None:
        if self._digest is None or self._digest != self._hashed():
            raise InvalidInput(
                f"the module after {self.steps_taken} steps is not what step or receive left, and no guarantee covers "
                "it; take a step, load averages with node.receive(average), and train with node.step alone."
            )

    def guarantee_so_far(self) -> Guarantee | None:
        """An upper bound on the privacy loss of the steps taken, see `Mechanism.guarantee_after`; None before any.

        It is that of the whole run where nodes that are ahead may show more: of shared noise whose columns have
        correlations of their own over time, or of records with several owners.
        """
        noise, owners = self.mechanism.algorithm.noise, self.mechanism.guarantee.owners
        alone = (noise.local or noise.shared) and not owners.shared
        return self.mechanism.guarantee_after(self.steps_taken if alone or not self.steps_taken else self.num_steps)

    def remaining(self) -> int:
        return self.num_steps - self.steps_taken

    def _hashed(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in self.module.state_dict().items():
            digest.update(name.encode() + b"\0")
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _privatised(self, t: int, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Clipped sums plus noise, float64, shape (d,): noise first, rounded with what it hides (`executor`)."""
        total, count = self._added(features, targets)
        if self.mechanism.unit == "user":
            present = torch.tensor([count > 0], device=total.device)
            row, mean = self.model.initial_row()[None], (total / max(count, 1))[None]
            total = clipped_rows(self.model, row, mean, present, self.clip_rule)
            total = total[0] if self.grid is None else self.grid.added(total)
        if self.grid is not None:
            return torch.tensor(self.grid.privatised(t, total), device=total.device)
        return total + torch.tensor(self._stream.step(t)[0], device=total.device)

    def _added(self, features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The sum of the step so far, shape (d,), and its number of records.

        At record level of clipped gradients, in float64 or in whole steps of a grid; at user level of gradients.
        """
        row, count, user = self.model.initial_row()[None], self._count + len(features), self.mechanism.unit == "user"
        numbers = torch.float64 if self.grid is None or user else torch.int64
        earlier: torch.Tensor | int = self._summed if self._count else 0
        if not len(features):
            return torch.as_tensor(earlier, dtype=numbers, device=row.device).expand(row.shape[1]), count
        present = torch.ones((1, len(features)), dtype=torch.bool, device=row.device)
        if self.grid is None and not user:
            sums = self._record_clipping.sums(row, features[None], targets[None], present, self.clip_rule)
            return earlier + sums[0].double(), count
        gradients = self.model.per_record_gradients(row, features[None], targets[None])
        rows = torch.cat([gradient[0].reshape(len(features), -1) for gradient in gradients.values()], dim=1)
        if self.grid is None or user:
            return earlier + rows.sum(0, dtype=torch.float64), count
        return self.grid.added(clipped_rows(self.model, row, rows, present[0], self.clip_rule), earlier), count

    def state_dict(self) -> dict[str, Any]:
        """State beside module and keys: step, optimizer, identity; no secret.

        Save it, with the module, after `step` and before anything is sent: a node that sends and then forgets the step
        would send other numbers under the same noise, and their difference is free of it.
        """
        released = None if self.grid is None else self.grid.released
        return {
            **self._identity(),
            **({} if released is None else {"released": [*map(torch.tensor, released)]}),
            "steps_taken": self.steps_taken,
            "module_hash": self._digest,
            "records": dict(self._record_steps.steps),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes after the steps of a saved node, with the same mechanism, model and keys; never back.

        Raises: InvalidInput: a state of another mechanism, node, model or key, or one from before this node's step.
        """
        for name, expected in self._identity().items():
            if state.get(name) != expected:
                raise InvalidInput(
                    f"this state is of another run: {name} is {state.get(name)!r}, here {expected!r}; load it into a "
                    "node made as the saved one was."
                )
        history = {"released"} if self.grid is not None and self.grid.released is not None else set()
        if missing := ({"steps_taken", "module_hash", "records", "optimizer"} | history) - state.keys():
            raise InvalidInput(f"this state lacks {sorted(missing)}; load what PrivateNode.state_dict gave, whole.")
        step = check.integer_at_least(0, steps_taken=state["steps_taken"])
        if step < self.steps_taken or step > self.num_steps:
            raise InvalidInput(
                f"this node has taken {self.steps_taken} of {self.num_steps} steps and cannot go to step {step}: the "
                "noise of the steps between would be used twice. Make new keys for a new run."
            )
        if self.grid is not None and history:
            if len(state["released"]) != step:
                raise InvalidInput(
                    f"released must be of {step} steps, got {len(state['released'])}; load a whole state."
                )
            self.grid.resume([y.numpy() for y in state["released"]])
        self.optimizer.load_state_dict(state["optimizer"])
        self._record_steps.steps = dict(state["records"])
        self._numbered, self._count = [], 0
        self.steps_taken, self._digest = step, state["module_hash"]

    def _identity(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism.content_hash, "node": self.node, "key_id": self.key_id,
            "shapes": {name: list(shape) for name, shape in self.model.shapes.items()}, "divisor": self.divisor,
            "clipping": str(self.clip_rule), "grid": None if self.grid is None else self.grid.step,
            "generator": ", ".join(self._generators),
        }  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"PrivateNode(node {self.node}, {type(self.optimizer).__name__}, step {self.steps_taken} of "
            f"{self.num_steps}, {self.mechanism.guarantee.sentence()})"
        )


def _require_stepping(node: PrivateNode | None) -> None:
    if node is not None and not node._stepping:
        raise InvalidInput(
            "this optimizer belongs to a PrivateNode, and a step of its own would use gradients without clipping and "
            "noise; call node.step(features, targets) alone, without backward() and optimizer.step()."
        )

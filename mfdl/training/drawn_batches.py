"""Batches under secret sampling, drawn as they are accounted: one class of batches for each scheme.

A draw is a 64-bit word of a counter-based stream under (key, node, step), compared with floor(rate 2^64): the
probability is at most the rate, and below it by less than 2^-64. A bin has a probability that is off 1/b by less than
2^-64, for which `SLACK` of privacy loss distributions has room. Batch sizes are not sent: an empty batch gives a zero
sum that is noised and sent, and divisors are public (`replay_config.divisors`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from ..participation import BallsInBins, CyclicPoisson, MinSeparationSampling, PoissonSampling, RandomAllocation
from ..participation.sampling import Sampled
from .keys import NoiseKey, require_key, words
from .tasks.instance import TaskInstance


class DrawnBatches(abc.ABC):
    """The batches of one run, of an instance of period 1, by the key of its noise (draws have domains of their own).

    Attributes: repeats_after: steps after which the same batches return; None: each is drawn anew.
    Raises: InvalidInput: another period, or no key.
    """

    domain: str
    repeats_after: int | None = None

    def __init__(self, instance: TaskInstance, key: NoiseKey) -> None:
        require_key(key=key)
        if instance.period != 1:
            raise InvalidInput(f"sampling needs all records in one class, period 1, got period {instance.period}.")
        self._instance, self._key = instance, key.derive(self.domain)
        self._held = instance.mask[:, 0].cpu().numpy()

    def _words(self, step: int) -> NDArray[np.uint64]:
        """64-bit words of a step for each place of a record, (n, B), independent of the records."""
        some, (n, count) = self._instance.nodes, self._held.shape
        return np.stack([words(self._key, step, node, count) for node in (range(n) if some is None else some.tolist())])

    @abc.abstractmethod
    def drawn(self, step: int) -> NDArray[np.bool_]:
        """Which records join a step, bool (n, B): a function of the key and the step, not of the data."""

    def step_batch(self, step: int) -> TaskInstance:
        """The records drawn for a step, as an instance of period 1; at least one slot, which may be empty."""
        joined = self.drawn(step)
        sizes = joined.sum(axis=1)
        slots = np.arange(max(1, int(sizes.max())))
        mask = slots < sizes[:, None]
        chosen = np.where(mask, np.argsort(~joined, axis=1, kind="stable")[:, : slots.size], 0)  # exact: booleans
        full, device = self._instance, self._instance.mask.device
        at = torch.arange(len(joined), device=device)[:, None], 0, torch.tensor(chosen, device=device)
        present = torch.tensor(mask, device=device)
        return full.with_records(
            features=full.features[at].unsqueeze(1),
            targets=full.targets[at].unsqueeze(1),
            mask=present.unsqueeze(1),
            record_index=torch.where(present, full.record_index[at], -1).unsqueeze(1),
        )


class PoissonBatches(DrawnBatches):
    """Every record joins every step by its own draw, at a rate in (0, 1)."""

    domain = "batches"

    def __init__(self, instance: TaskInstance, key: NoiseKey, rate: float) -> None:
        super().__init__(instance, key)
        self._below = below(check.open_unit(rate=rate))

    def drawn(self, step: int) -> NDArray[np.bool_]:
        return np.asarray((self._words(step) < self._below) & self._held)


class CyclicPoissonBatches(PoissonBatches):
    """The record at place i of a node has the steps t = i mod b, and joins each of them by its own draw; period: b."""

    def __init__(self, instance: TaskInstance, key: NoiseKey, rate: float, period: int) -> None:
        super().__init__(instance, key, rate)
        self._group = np.arange(self._held.shape[1]) % period
        self._period = period

    def drawn(self, step: int) -> NDArray[np.bool_]:
        return np.asarray(super().drawn(step) & (self._group == step % self._period))


class BinBatches(DrawnBatches):
    """Every record draws one of b bins, once, by the key and its place; bins: of each place, (n, B), secret."""

    domain = "bins"

    def __init__(self, instance: TaskInstance, key: NoiseKey, bins: int) -> None:
        super().__init__(instance, key)
        self._count = self.repeats_after = check.integer_at_least(1, bins=bins)
        self.bins = drawn_bins(self._words(0), self._count)

    def drawn(self, step: int) -> NDArray[np.bool_]:
        return np.asarray((self.bins == step % self._count) & self._held)


class AllocationBatches(DrawnBatches):
    """Every record draws one step of each epoch; period: b, steps per epoch."""

    domain = "allocation"

    def __init__(self, instance: TaskInstance, key: NoiseKey, period: int) -> None:
        super().__init__(instance, key)
        self._period = period

    def drawn(self, step: int) -> NDArray[np.bool_]:
        epoch, place = divmod(step, self._period)
        return np.asarray((drawn_bins(self._words(epoch), self._period) == place) & self._held)


class SubsetBatches(DrawnBatches):
    """Every record draws k of T steps, uniformly without replacement, by Floyd's algorithm."""

    domain = "subset"

    def __init__(self, instance: TaskInstance, key: NoiseKey, uses: int, steps: int) -> None:
        super().__init__(instance, key)
        self._steps = np.full((uses, *self._held.shape), -1)
        for i, last in enumerate(range(steps - uses, steps)):
            drawn = drawn_bins(self._words(i), last + 1)
            self._steps[i] = np.where((self._steps[:i] == drawn).any(axis=0), last, drawn)

    def drawn(self, step: int) -> NDArray[np.bool_]:
        return np.asarray((self._steps == step).any(axis=0) & self._held)


class SeparatedBatches(DrawnBatches):
    """Every record that has not joined in the last b - 1 steps joins by its own draw at rate p.

    Cost: a step that does not follow the last one replays all.
    """

    domain = "separated"

    def __init__(self, instance: TaskInstance, key: NoiseKey, rate: float, separation: int) -> None:
        super().__init__(instance, key)
        self._separation, self._below = separation, below(check.open_unit(rate=rate))
        p = Fraction(rate)
        share = p / (1 + (separation - 1) * p)  # of each wait from 1 to b - 1, at the start
        ends = np.array([below(wait * share) for wait in range(1, separation)], dtype=np.uint64)
        self._wait = ends.size - np.searchsorted(ends, self._words(0), side="right")
        self._begin()

    def _begin(self) -> None:
        self._next, self._free, self._joined = 0, self._wait.copy(), self._held & False

    def drawn(self, step: int) -> NDArray[np.bool_]:
        if step < self._next - 1:
            self._begin()
        for t in range(self._next, step + 1):  # words 0 are those of the waits
            self._joined = (self._free <= t) & (self._words(t + 1) < self._below)
            self._free = np.where(self._joined, t + self._separation, self._free)
            self._next = t + 1
        return np.asarray(self._joined & self._held)


def below(rate: float | Fraction) -> np.uint64:
    """The largest c at which a word is below c with a probability of at most the rate, short of it by below 2^-64."""
    return np.uint64(int(Fraction(rate) * 2**64))


def drawn_bins(drawn: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """The bins below `count` of 64-bit words: floor(word count / 2^64), in two halves."""
    high, low = np.divmod(drawn, np.uint64(2**32))
    b = np.uint64(count)
    return ((high * b + (low * b >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


BATCHES: dict[type, Callable[[Any], Callable[[TaskInstance, NoiseKey], DrawnBatches]]] = {
    PoissonSampling: lambda scheme: partial(PoissonBatches, rate=scheme.rate),
    BallsInBins: lambda scheme: partial(BinBatches, bins=scheme.bins),
    CyclicPoisson: lambda scheme: partial(CyclicPoissonBatches, rate=scheme.rate, period=scheme.period),
    RandomAllocation: lambda scheme: (
        partial(AllocationBatches, period=scheme.period)
        if scheme.per_epoch
        else partial(SubsetBatches, uses=scheme.epochs, steps=scheme.num_steps)
    ),
    MinSeparationSampling: lambda scheme: partial(SeparatedBatches, rate=scheme.rate, separation=scheme.separation),
}


def scheme_batches(scheme: Sampled, instance: TaskInstance, key: NoiseKey) -> DrawnBatches:
    """The batches of a scheme; a class that is not named has those of its nearest base."""
    return next(BATCHES[base] for base in type(scheme).__mro__ if base in BATCHES)(scheme)(instance, key)

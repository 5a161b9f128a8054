"""Batches under secret sampling, drawn as they are accounted: by Poisson sampling in each step, or by one bin a run.

In: an instance that holds all records of each node in one class (period 1), and a key. Out: the batch of each step, as
an instance of the records drawn, so that clipping, sums and models are the code of every other run. A draw is a 64-bit
word of a counter-based stream under (key, node, step), compared with floor(rate 2^64): a record joins with a
probability that is at most the rate, and below it by less than 2^-64. Of bins a record draws once, each with a
probability that is off 1/b by less than 2^-64, for which `SLACK` of privacy loss distributions has room. Batch sizes
stay inside: sums have the shape they always have, an empty batch gives a zero sum that is noised and sent like any
other, and divisors are public (`covered.divisors`).
"""

from __future__ import annotations

import abc
import dataclasses
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from ..participation.sampling import Sampled
from .keys import NoiseKey, require_key, words
from .tasks import TaskInstance


class DrawnBatches(abc.ABC):
    """The batches of one run.

    Args: instance: of period 1; key: secret, that of the run's noise (draws have a domain of their own).
    Raises: InvalidInput: another period, or no key.
    """

    domain: str

    def __init__(self, instance: TaskInstance, key: NoiseKey) -> None:
        require_key(key=key)
        if instance.period != 1:
            raise InvalidInput(f"sampling needs all records in one class, period 1, got period {instance.period}.")
        self._instance, self._key = instance, key.derive(self.domain)
        self._held = instance.mask[:, 0].cpu().numpy()

    def _words(self, step: int) -> NDArray[np.uint64]:
        """64-bit words of a step, one for each place of a record, shape (n, B), independent of the records."""
        some, (n, count) = self._instance.nodes, self._held.shape
        return np.stack([words(self._key, step, node, count) for node in (range(n) if some is None else some.tolist())])

    @abc.abstractmethod
    def drawn(self, step: int) -> NDArray[np.bool_]:
        """Which records join a step, bool (n, B): a function of the key and the step, not of the data."""

    def of_step(self, step: int) -> TaskInstance:
        """The records drawn for a step, as an instance of period 1; at least one slot, which may be empty."""
        joined = self.drawn(step)
        sizes = joined.sum(axis=1)
        slots = np.arange(max(1, int(sizes.max())))
        mask = slots < sizes[:, None]
        chosen = np.where(mask, np.argsort(~joined, axis=1, kind="stable")[:, : slots.size], 0)
        full, device = self._instance, self._instance.mask.device
        at = torch.arange(len(joined), device=device)[:, None], 0, torch.tensor(chosen, device=device)
        present = torch.tensor(mask, device=device)
        return dataclasses.replace(
            full,
            features=full.features[at].unsqueeze(1),
            targets=full.targets[at].unsqueeze(1),
            mask=present.unsqueeze(1),
            record_index=torch.where(present, full.record_index[at], -1).unsqueeze(1),
        )


class PoissonBatches(DrawnBatches):
    """Every record joins every step by a draw of its own.

    Args: rate: q; instance, key: as above. Raises: InvalidInput: also a rate outside (0, 1).
    """

    domain = "batches"

    def __init__(self, instance: TaskInstance, key: NoiseKey, rate: float) -> None:
        super().__init__(instance, key)
        self._below = np.uint64(int(Fraction(check.open_unit(rate=rate)) * 2**64))

    def drawn(self, step: int) -> NDArray[np.bool_]:
        return np.asarray((self._words(step) < self._below) & self._held)


class BinBatches(DrawnBatches):
    """Every record draws one of b bins, once: a function of the key and its place, so nothing is stored.

    Args: bins: b >= 1; instance, key: as above.
    """

    domain = "bins"

    def __init__(self, instance: TaskInstance, key: NoiseKey, bins: int) -> None:
        super().__init__(instance, key)
        self._count = check.integer_at_least(1, bins=bins)
        self.bins = bins_of(self._words(0), self._count)
        """The bin of each place, shape (n, B): secret."""

    def drawn(self, step: int) -> NDArray[np.bool_]:
        return np.asarray((self.bins == step % self._count) & self._held)


def bins_of(drawn: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """The bins below `count` of 64-bit words: floor(word count / 2^64), in two halves."""
    high, low = np.divmod(drawn, np.uint64(2**32))
    b = np.uint64(count)
    return ((high * b + (low * b >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def batches_of(scheme: Sampled, instance: TaskInstance, key: NoiseKey) -> DrawnBatches:
    """The batches that a secret scheme draws."""
    if scheme.num_bins is not None:
        return BinBatches(instance, key, scheme.num_bins)
    return PoissonBatches(instance, key, scheme.expected_rate)

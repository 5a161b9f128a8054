"""The Poisson sampler that is accounted: every record of every node joins every step by a secret draw of its own.

In: an instance that holds all records of each node in one class (period 1), and a key. Out: the batch of each step, as
an instance of the records drawn, so that clipping, sums and models are the code of every other run. A draw is a 64-bit
word of a counter-based stream under (key, node, step), compared with floor(rate 2^64): a record joins with a
probability that is at most the rate, and below it by less than 2^-64. Batch sizes stay inside: sums have the shape they
always have, an empty batch gives a zero sum that is noised and sent like any other, and divisors are public
(`covered.divisors`).
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from .keys import NoiseKey, require_key, words
from .tasks import TaskInstance


class PoissonBatches:
    """The batches of one run.

    Args: instance: of period 1; key: secret, that of the run's noise (draws have a domain of their own); rate: q.
    Raises: InvalidInput: another period, no key, or a rate outside (0, 1).
    """

    def __init__(self, instance: TaskInstance, key: NoiseKey, rate: float) -> None:
        require_key(key=key)
        if instance.period != 1:
            raise InvalidInput(f"sampling needs all records in one class, period 1, got period {instance.period}.")
        self._instance, self._key = instance, key.derive("batches")
        self._below = np.uint64(int(Fraction(check.open_unit(rate=rate)) * 2**64))
        self._held = instance.mask[:, 0].cpu().numpy()

    def drawn(self, step: int) -> NDArray[np.bool_]:
        """Which records join a step, bool (n, B): a function of the key and the step, whichever records there are."""
        count = self._held.shape[1]
        joined = [words(self._key, step, node, count) < self._below for node in range(len(self._held))]
        return np.asarray(np.stack(joined) & self._held)

    def of_step(self, step: int) -> TaskInstance:
        """The records drawn for a step, as an instance of period 1; at least one slot, which may be empty."""
        joined = self.drawn(step)
        sizes = joined.sum(axis=1)
        slots = np.arange(max(1, int(sizes.max())))
        mask = slots < sizes[:, None]
        chosen = np.where(mask, np.argsort(~joined, axis=1, kind="stable")[:, : slots.size], 0)
        full, device = self._instance, self._instance.mask.device
        at = torch.arange(len(joined), device=device)[:, None], 0, torch.tensor(chosen, device=device)
        held = torch.tensor(mask, device=device)
        return dataclasses.replace(
            full,
            features=full.features[at].unsqueeze(1),
            targets=full.targets[at].unsqueeze(1),
            mask=held.unsqueeze(1),
            record_index=torch.where(held, full.record_index[at], -1).unsqueeze(1),
        )

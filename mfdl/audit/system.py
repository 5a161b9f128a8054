"""The system under audit: what trains, from raw gradients to messages, many trials at once.

`Training` is the library's own path: clipping, noise streams, executor. Trials are coordinates: each coordinate of a
run is a run of its own for one-dimensional models, since the maps act on every coordinate alike and the noise of
coordinates is independent; a trial takes COORDINATES of them, so that a canary can be spread. A subclass with another
`stream`, `clip` or `sum_of_clipped`, or any object with `run`, is audited by the same call.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import torch

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..noise import NoiseStream
from ..shown import short_repr
from ..training.clipping import clipped_sums
from ..training.executor import Executor
from ..training.keys import NoiseKey
from ..training.releasing import Releasing
from ..training.streams import noise_stream
from ..training.threads import one_thread

COORDINATES = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Transcript:
    """All that a run emits.

    Attributes:
        messages: of all rounds, shape (rounds * messages per round, trials * COORDINATES), rows time-major.
        models: what each node releases, by default the final ones, shape (n, trials * COORDINATES).
    """

    __repr__ = short_repr

    messages: FloatArray
    models: FloatArray


class System(Protocol):
    """Anything that can be audited.

    One with a sampler of its own for `BallsInBins` also has `joined(records, *, key, run, steps)`, as in `bin_draws`:
    which records join the first steps of one run. Of any other, the draws audited are those of `replay`.
    """

    def run(self, canary: FloatArray, feedback: FloatArray, *, trials: int, key: NoiseKey) -> Transcript:
        """Trains from models zero, `trials` times with independent noise.

        Args:
            canary: raw gradient of one record at every step and node, shape (T, n, COORDINATES), to be clipped; zero
                where it does not take part. All other records of node u together add feedback[t, u] times the node's
                model to the sum of step t.
            key: the secrets of this run are `HolderKeys.simulated(key)`.
        """
        ...


class Training:
    """The library's own training path as a System.

    Args:
        resume_at: steps before which executor and noise stream are made anew from the key, as a resumed run does.
    """

    def __init__(
        self, algorithm: LinearAlgorithm, *, noise_std: float, clip_norm: float, resume_at: tuple[int, ...] = ()
    ) -> None:
        self.algorithm, self.noise_std, self.clip_norm = algorithm, noise_std, clip_norm
        self.resume_at = resume_at

    def stream(self, key: NoiseKey, dim: int, first_step: int) -> NoiseStream:
        """The noise from `first_step` on."""
        return noise_stream(self.algorithm.noise, self.noise_std, key, dim)

    def clip(self, gradients: torch.Tensor) -> torch.Tensor:
        """Clipped gradients of one record at every node, (n, COORDINATES)."""
        present = torch.ones(gradients.shape[0], 1, dtype=torch.bool)
        return clipped_sums([gradients.unsqueeze(1)], present, self.clip_norm)[0]

    def run(self, canary: FloatArray, feedback: FloatArray, *, trials: int, key: NoiseKey) -> Transcript:
        """See `System.run`."""
        with one_thread():
            return self._run(canary, feedback, trials, key)

    def _run(self, canary: FloatArray, feedback: FloatArray, trials: int, key: NoiseKey) -> Transcript:
        n, dim = self.algorithm.num_nodes, trials * COORDINATES
        executor = Executor(self.algorithm, dtype=torch.float64)
        stream = self.stream(key, dim, 0)
        state = executor.initial_state(torch.zeros(n, dim, dtype=torch.float64))
        sent, releasing = [], Releasing(executor, dim)
        for t in range(self.algorithm.num_steps):
            if t in self.resume_at:
                executor, stream = Executor(self.algorithm, dtype=torch.float64), self.stream(key, dim, t)
            clipped = self.clip(torch.tensor(canary[t], dtype=torch.float64))
            background = torch.tensor(feedback[t], dtype=torch.float64)[:, None] * executor.models(state)
            noise = torch.tensor(stream.step(t), dtype=torch.float64)
            messages, state = executor.step(t, state, clipped.repeat(1, trials) + background, noise)
            sent.append(messages.numpy())
            releasing.after(t, state)
        return Transcript(np.concatenate(sent), releasing.models(state).numpy())

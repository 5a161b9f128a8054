"""What a view shows of each victim's steps: N, from which secret patterns have their loss where messages are hidden.

In: views, each with the victims that it is about, of a trust model that hides messages or given as matrices. Out: for
each victim a matrix N over steps, so that no pattern pair S, S' has means closer than the sum of N_ij over i in S and
j in S' allows (docs/sampling_theorem.md, "Hidden messages"), and a number lambda, for which lambda I is another such N.

X = A_u^T (B B^T)^+ A_u of the view decides both. A form knows X up to errors, so X' above it in the order of positive
semidefinite matrices is taken: the attacker then sees each gradient once more under independent noise.

- Non-adaptive gradients: N = |X'|, entry by entry.
- Adaptive gradients, if the view is adaptive (`adaptive`): N = |C|^T |C| for the lower triangular C with C^T C = X'. A
  view of several rows a step is no more than one of a row a step: rotate the rows of the last step so that one of them
  holds its gradient, show the others a step earlier, and go on backwards.
- lambda is the largest eigenvalue of X': lambda I is above X'.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..floats import UNIT
from ..trust import TrustModel
from ..trust.view import View
from .adaptive import is_adaptive
from .curves.base import UP
from .forms import ViewGram, view_grams

MAX_STEPS = 4096
"""N of so many is an array of 128 MiB."""
GRID = 2.0**-20
"""Of the largest entry: entries are rounded up to multiples, so that victims that differ by rounding are alike."""
LEAST = 1e-150
"""Squared sensitivity of a step that shows nothing."""


@dataclasses.dataclass(frozen=True)
class StepBound:
    """N and lambda of one victim, or of the worst of several, per unit clipping norm and noise of std 1.

    Attributes: gram: N, shape (T, T); largest: lambda, infinite if a gradient of the victim is seen without noise; why:
        which one.
    """

    gram: FloatArray
    largest: float
    why: str = ""

    def worst_with(self, other: StepBound) -> StepBound:
        """At least both, entry by entry."""
        worse = other if other.largest > self.largest else self  # bound
        return StepBound(np.maximum(self.gram, other.gram), worse.largest, worse.why)


def step_bound(gram: ViewGram, *, adaptive: bool) -> StepBound:
    """N and lambda of X. Raises: UnsupportedMechanism: more than `MAX_STEPS` steps."""
    T = len(gram.values)
    if T > MAX_STEPS:
        raise UnsupportedMechanism(f"hidden messages are accounted up to {MAX_STEPS:,} steps, got {T:,}.")
    if gram.leaks.any() or math.isinf(gram.inflation):
        return StepBound(np.zeros((T, T)), math.inf, gram.why or "no form of this view bounds it")
    X = np.asarray(gram.matrix)
    shift = float(gram.entry_error.sum(axis=1).max()) + 8 * (T + 2) * UNIT * float(X.trace()) + LEAST
    while True:
        above = gram.inflation * UP * ((X + X.T) / 2 + shift * np.eye(T))
        try:
            C = np.linalg.cholesky(above[::-1, ::-1]).T[::-1, ::-1]
        except np.linalg.LinAlgError:  # of errors that the form did not state
            shift *= 2
            continue
        N = np.abs(C).T @ np.abs(C) if adaptive else np.abs(above)
        grid = GRID * float(N.diagonal().max())
        return StepBound(np.ceil(N * UP / grid) * grid, float(np.linalg.eigvalsh(above)[-1]) * (1 + GRID) + shift)


@dataclasses.dataclass(frozen=True, eq=False)
class AttackerViews:
    """Views of attackers, each with the victims that it is about: the worst of its views counts for each victim."""

    members: tuple[tuple[View, tuple[int, ...]], ...]

    @classmethod
    def under(cls, trust: TrustModel, algorithm: LinearAlgorithm) -> AttackerViews:
        """Those of a trust model, with the models that it releases."""
        members = ((model, victims) for model, victims in trust.members(algorithm) if victims)
        return cls(tuple((model.view(algorithm, victims[0]), victims) for model, victims in members))

    @functools.cached_property
    def adaptive(self) -> bool:
        """Whether gradients are functions of what each attacker has seen before."""
        return all(is_adaptive(view) for view, _ in self.members)

    @property
    def victims(self) -> set[int]:
        """All nodes that a view is about."""
        return {u for _, victims in self.members for u in victims}

    @property
    def release(self) -> str:
        """Which final models are part of the views."""
        return self.members[0][0].release

    def sizes(self, *, adaptive: bool) -> dict[int, float]:
        """Sum of the entries of N of each victim; infinite if lambda is."""
        bounds = self._adaptive_bounds if adaptive else self._fixed_bounds
        return {u: float(each.gram.sum()) if math.isfinite(each.largest) else math.inf for u, each in bounds.items()}

    def bound(self, victims: Sequence[int], *, adaptive: bool) -> StepBound:
        """Of the worst of these victims, over all views of them. Raises: as `view_grams` and `step_bound`."""
        bounds = self._adaptive_bounds if adaptive else self._fixed_bounds
        return functools.reduce(StepBound.worst_with, (bounds[u] for u in victims if u in bounds))

    @functools.cached_property
    def _adaptive_bounds(self) -> dict[int, StepBound]:
        return self._bounds(adaptive=True)

    @functools.cached_property
    def _fixed_bounds(self) -> dict[int, StepBound]:
        return self._bounds(adaptive=False)

    def _bounds(self, *, adaptive: bool) -> dict[int, StepBound]:
        worst: dict[int, StepBound] = {}
        for view, victims in self.members:
            for u, gram in zip(victims, view_grams(view, victims), strict=True):
                bound = step_bound(gram, adaptive=adaptive)
                worst[u] = worst[u].worst_with(bound) if u in worst else bound
        return worst

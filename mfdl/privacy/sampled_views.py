"""Views of each victim's steps where batches are secret: N if messages are hidden, else a factor.

N is a matrix over steps for each victim, so that no pattern pair S, S' has means closer than the sum of N_ij over i in
S and j in S' allows (docs/sampling_theorem.md, "Hidden messages"); lambda is a number for which lambda I is another N.

X = A_u^T (B B^T)^+ A_u of the view decides both. A form knows X up to errors, so X' above it in the order of positive
semidefinite matrices is taken: the attacker then sees each gradient once more under independent noise.

- Non-adaptive gradients: N = |X'|, entry by entry.
- Adaptive gradients, if the view is adaptive (`adaptive`): N = |C|^T |C| for the lower triangular C with C^T C = X'. A
  view of several rows a step is no more than one of a row a step: rotate the rows of the last step so that one of them
  holds its gradient, show the others a step earlier, and go on backwards.
- lambda is the largest eigenvalue of X': lambda I is above X'.

Where messages are seen, what the noise of a step leaves of each victim is a factor of the sensitivity
(`exposed_nodes`). Where noise is correlated over time by one encoder, or fresh, it is [Sigma^+]_uu of its covariance
over nodes; where it correlates time and nodes together the Gram over steps holds all, and it is 1 or infinite. Noise
that is added elsewhere than to sums of gradients is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..floats import UNIT
from ..trust import TrustModel
from ..trust.view import AlgorithmView, View
from .bin_gram import fresh_part, is_block_causal, is_product
from .curves.base import UP
from .forms import ViewGram, injection_bound, known_gradient, view_grams
from .victim_sensitivity import is_adaptive

MAX_STEPS = 4096  # N of so many is an array of 128 MiB
GRID = 2.0**-20
"""Of the largest entry: entries are rounded up to multiples, so that victims that differ by rounding are alike."""
LEAST = 1e-150  # squared sensitivity of a step that shows nothing


@dataclasses.dataclass(frozen=True)
class StepBound:
    """N, shape (T, T), and `largest`, lambda, of one victim, or of the worst of several, per unit clipping norm and
    noise.

    Attributes: largest: infinite if a gradient of the victim is seen without noise; why: which one.
    """

    gram: FloatArray
    largest: float
    why: str = ""

    def worst_with(self, other: StepBound) -> StepBound:
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
        members = ((model, victims) for model, victims in trust.members(algorithm) if victims)
        return cls(tuple((model.view(algorithm, victims[0]), victims) for model, victims in members))

    @functools.cached_property
    def adaptive(self) -> bool:
        return all(is_adaptive(view) for view, _ in self.members)

    @property
    def victims(self) -> set[int]:
        return {u for _, victims in self.members for u in victims}

    @property
    def release(self) -> str:
        return self.members[0][0].release

    def sizes(self, *, adaptive: bool) -> dict[int, float]:
        """Sum of the entries of N of each victim; infinite if lambda is."""
        bounds = self._bounds(adaptive).items()
        return {u: float(bound.gram.sum()) if math.isfinite(bound.largest) else math.inf for u, bound in bounds}

    def bound(self, victims: Sequence[int], *, adaptive: bool) -> StepBound:
        """The bound of the worst of these victims, over all views of them. Raises: as `view_grams` and `step_bound`."""
        bounds = self._bounds(adaptive)
        return functools.reduce(StepBound.worst_with, (bounds[u] for u in victims if u in bounds))

    @functools.cached_property
    def _bounds(self) -> Callable[[bool], dict[int, StepBound]]:
        return functools.cache(self._computed)

    def _computed(self, adaptive: bool) -> dict[int, StepBound]:
        worst: dict[int, StepBound] = {}
        for view, victims in self.members:
            for u, gram in zip(victims, view_grams(view, victims), strict=True):
                bound = step_bound(gram, adaptive=adaptive)
                worst[u] = worst[u].worst_with(bound) if u in worst else bound
        return worst


Factor = tuple[float, str]
"""The largest [Sigma^+]_uu over members and steps, and what makes it infinite."""
Exposed = dict[int, Factor]  # by victim


def exposed_nodes(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel, *, fresh: bool) -> Exposed:
    """The factor of each victim, for what the noise of a step leaves of it.

    Args: trust: as it is named; seen: the one whose views are accounted; fresh: noise must be fresh in every step.
    Raises: UnsupportedMechanism: noise elsewhere than in sums of gradients, correlated over time if it must be fresh,
        or over time and nodes together but known in part.
    """
    require_noise_with_gradients(algorithm)
    noise, factors = algorithm.noise, _node_factors
    if not fresh and not is_product(noise) and is_block_causal(noise):
        factors = _joint_factors
    elif not fresh and not noise.is_zero:
        algorithm = dataclasses.replace(algorithm, noise=fresh_part(algorithm))
    elif not noise.is_zero and noise.step_factor is None:
        raise UnsupportedMechanism(
            "amplification by sampling is proven for noise that is fresh in every step, and that of "
            f"{algorithm.name!r} is correlated over time; take dp_dsgd, decor or corn, or a public "
            "participation such as Cyclic."
        )
    worst: Exposed = {}
    for model, victims in seen.members(algorithm):
        of_view = factors(model.view(algorithm, victims[0]), victims, trust) if victims else []
        for u, factor in zip(victims, of_view, strict=True):
            worst[u] = max(worst.get(u, factor), factor, key=lambda each: each[0])  # bound
    if not worst:
        raise InvalidInput(f"no victim is left: every node is an attacker ({trust.attacker}).")
    return worst


def require_noise_with_gradients(algorithm: LinearAlgorithm) -> None:
    """Refuses noise elsewhere than in sums of gradients: divisors of batches would leave it undivided."""
    if algorithm.noise_on_messages or not algorithm.noise_enters_with_gradients:
        raise UnsupportedMechanism(
            f"amplification by sampling is proven where noise is added to sums of gradients, and {algorithm.name!r} "
            "adds it elsewhere; take dp_dsgd, decor or corn, or a public participation."
        )


def _joint_factors(view: AlgorithmView, victims: Sequence[int], trust: TrustModel) -> list[Factor]:
    """1 for noise that correlates time and nodes together, as its M holds all; inf where a gradient or all noise is
    known.
    """
    algorithm, known = view.algorithm, view.knowledge.known_noise
    if known.any() and not known.all():
        raise UnsupportedMechanism(
            f"{algorithm.participation.describe()} is accounted for noise of {algorithm.name!r}, which correlates "
            f"time and nodes together, where attackers know none of it, and under trust model {trust.name!r} "
            f"{trust.attacker} know a part; take one encoder for all nodes (kronecker, mafalda), "
            "trust.Eavesdropper(), or a public participation."
        )
    causes = [known_gradient(view, u) or ("all noise is known" if known.all() else "") for u in victims]
    return [_infinite(view, u, why) if why else (1.0, "") for u, why in zip(victims, causes, strict=True)]


def _node_factors(view: AlgorithmView, victims: Sequence[int], trust: TrustModel) -> list[Factor]:
    grams, factors = injection_bound(view, victims), list[Factor]()
    assert grams is not None
    for u, gram in zip(victims, grams, strict=True):
        assert gram.is_diagonal
        squared = np.where(gram.leaks, math.inf, (gram.values + gram.errors) * gram.inflation * (1 + 2.0**-50))
        largest = float(squared.max())
        factors.append(_infinite(view, u, gram.why) if math.isinf(largest) else (largest, ""))
    return factors


def _infinite(view: AlgorithmView, node: int, why: str) -> Factor:
    return math.inf, f"Infinite for node {view.algorithm.dynamics.gossip.labels[node]!r}: {why}."

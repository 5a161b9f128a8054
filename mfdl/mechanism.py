"""Mechanism = algorithm + noise scale + guarantee under a trust model.

`account` reads the guarantee of a given noise; `calibrate` finds the least noise for a target and never exceeds
it. Both call the same functions, and the executor runs the very algorithm that was accounted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math

import numpy as np

from . import check
from .algorithms import LinearAlgorithm
from .error_gram import error_gram, node_error_grams
from .errors import InvalidInput, UnsupportedMechanism
from .operators import IndependentNoise, LocalNoise, ZeroNoise
from .participation import Participation
from .privacy import gaussian
from .privacy.guarantee import EVERY_NODE, Guarantee
from .privacy.sensitivity import Sensitivity, worst_sensitivity
from .trust import TrustModel


@dataclasses.dataclass(frozen=True, eq=False)
class Mechanism:
    """An algorithm with the standard deviation of its base noise and what that guarantees.

    Attributes:
        algorithm: the LinearAlgorithm that trains and was accounted.
        noise_std: nu, standard deviation of Z on sums of clipped gradients; 0 without noise.
        clip_norm: per-record clipping threshold, > 0.
        guarantee: what holds, and under which circumstances.
        sensitivity: of the algorithm's encoder, per unit record shift and unit nu.
    """

    algorithm: LinearAlgorithm
    noise_std: float
    clip_norm: float
    guarantee: Guarantee
    sensitivity: Sensitivity

    @property
    def objective(self) -> float:
        """sensitivity^2 * noise in the models after averaging, per unit nu^2: what `factorize` calls loss.

        0 without noise.
        """
        if isinstance(self.algorithm.noise, ZeroNoise):
            return 0.0
        return self.sensitivity.squared * noise_error(self.algorithm)

    @property
    def injected_noise_std(self) -> float:
        """Root mean square over nodes and steps of the std added to one coordinate of a node's gradient sum."""
        return self.noise_std * math.sqrt(float(self.algorithm.noise.variances().mean()))

    @property
    def content_hash(self) -> str:
        """16 hex digits of algorithm, noise and clipping: two mechanisms with one hash emit the same noise."""
        text = f"{self.algorithm.content_hash}|{self.noise_std!r}|{self.clip_norm!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def noise_error(algorithm: LinearAlgorithm, *, objective: str = "post-average") -> float:
    """tr(N^T H N): total variance in the counted models per unit nu^2 and coordinate, at learning rate 1."""
    noise, dynamics, T = algorithm.noise, algorithm.dynamics, algorithm.num_steps
    if isinstance(noise, ZeroNoise):
        return 0.0
    if isinstance(noise, LocalNoise) and not noise.shared:
        grams = node_error_grams(dynamics, T, objective=objective)
        return sum(float(np.sum(N * (H @ N))) for N, H in zip(noise.inverse, grams, strict=True))
    H = error_gram(dynamics, T, objective=objective)
    if isinstance(noise, IndependentNoise):
        return float(np.trace(H))
    if isinstance(noise, LocalNoise):
        return float(np.sum(noise.inverse * (H @ noise.inverse)))
    raise UnsupportedMechanism(f"the error of noise {type(noise).__name__} is not covered.")


def account(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    noise_std: float | None = None,
    noise_multiplier: float | None = None,
    participation: Participation | None = None,
) -> Guarantee:
    """The guarantee of a given noise.

    Args:
        trust: who sees what.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on one record's gradient norm, > 0.
        noise_std: nu on sums of clipped gradients, >= 0; or
        noise_multiplier: nu / (sensitivity * record_shift); exactly one of the two.
        participation: default the algorithm's own.

    Returns: Guarantee for the worst node; mu is inf without noise.
    Source: arXiv:2510.17480, Theorem 7, with the square of equation (8) and the factor 2 of replace-one restored.
    """
    sensitivity = worst_sensitivity(algorithm, trust, participation)
    shift = gaussian.record_shift(adjacency, clip_norm)
    if (noise_std is None) == (noise_multiplier is None):
        raise InvalidInput("give exactly one of noise_std and noise_multiplier.")
    if noise_std is None:
        if math.isinf(sensitivity.squared):
            raise InvalidInput(
                "noise_multiplier needs a mechanism with noise; this one has none. Use noise_std=0."
            )
        noise_std = gaussian.noise_std(
            check.non_negative(noise_multiplier=noise_multiplier), sensitivity.value, shift
        )
    return _guarantee(
        algorithm,
        trust,
        adjacency,
        clip_norm,
        check.non_negative(noise_std=noise_std),
        sensitivity,
        participation,
    )


def calibrate(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Mechanism:
    """The least noise that meets a target, never overshooting it.

    Args: mu > 0, or epsilon > 0 and delta in (0, 1); others as for `account`.
    Raises: InvalidInput: no target or two, or an algorithm without noise.
    """
    if (mu is None) == (epsilon is None):
        raise InvalidInput("give exactly one target: mu, or epsilon with delta.")
    if mu is None:
        if delta is None:
            raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
        target = gaussian.mu_from_epsilon(check.positive(epsilon=epsilon), check.open_unit(delta=delta))
    else:
        target = check.positive(mu=mu)
    sensitivity = worst_sensitivity(algorithm, trust)
    if math.isinf(sensitivity.squared):
        raise InvalidInput(
            f"{algorithm.name!r} has no noise to scale, so no target can be met; use without_noise(algorithm, ...)."
        )
    shift = gaussian.record_shift(adjacency, clip_norm)
    noise_std = gaussian.noise_std(1 / target, sensitivity.value, shift)
    while gaussian.mu_from_noise_std(sensitivity.value, shift, noise_std) > target:
        noise_std = math.nextafter(noise_std, math.inf)
    guarantee = _guarantee(algorithm, trust, adjacency, clip_norm, noise_std, sensitivity, None)
    more = 2.0**-52
    while epsilon is not None and delta is not None and guarantee.epsilon(delta) > epsilon:
        noise_std, more = noise_std * (1 + more), 2 * more  # epsilon(delta) rounds up once more, by a few ulps
        guarantee = _guarantee(algorithm, trust, adjacency, clip_norm, noise_std, sensitivity, None)
    return Mechanism(algorithm, noise_std, float(clip_norm), guarantee, sensitivity)


def without_noise(
    algorithm: LinearAlgorithm, *, trust: TrustModel, adjacency: str, clip_norm: float
) -> Mechanism:
    """The algorithm as it is with nu = 0: mu is infinite, which the guarantee says."""
    sensitivity = worst_sensitivity(algorithm, trust)
    guarantee = _guarantee(algorithm, trust, adjacency, clip_norm, 0.0, sensitivity, None)
    return Mechanism(algorithm, 0.0, float(clip_norm), guarantee, sensitivity)


def _guarantee(
    algorithm: LinearAlgorithm,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    noise_std: float,
    sensitivity: Sensitivity,
    participation: Participation | None,
) -> Guarantee:
    shift = gaussian.record_shift(adjacency, clip_norm)
    return Guarantee(
        mu=gaussian.mu_from_noise_std(sensitivity.value, shift, noise_std),
        trust=trust.name,
        adjacency=adjacency,
        clip_norm=clip_norm,
        record_shift=shift,
        participation=(participation or algorithm.participation).describe(),
        victim=EVERY_NODE,
        attacker=trust.attacker,
        adaptive=True,  # every message that enters a model is seen, so each gradient is a function of the view
        bound="exact" if sensitivity.exact else "upper",
        noise_std=noise_std,
        sensitivity=sensitivity.value,
        tolerance=sensitivity.tolerance,
        release="not applicable",
    )

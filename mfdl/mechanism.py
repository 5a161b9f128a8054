"""Mechanism = algorithm + noise scale + guarantee under a trust model.

`account` reads the guarantee of a given noise; `calibrate` finds the least noise for a target and never exceeds
it. Both call the same functions, and the executor runs the very algorithm that was accounted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence

import numpy as np

from . import check
from .algorithms import LinearAlgorithm
from .error_gram import error_gram, node_error_grams
from .errors import InvalidInput, UnsupportedMechanism
from .operators import IndependentNoise, LocalNoise, ZeroNoise
from .participation import Participation
from .privacy import gaussian
from .privacy.accounting import SHIFT_REDUCTION, VictimLoss, victim_losses, worst_adaptive
from .privacy.guarantee import EVERY_NODE, Guarantee
from .privacy.sensitivity import Sensitivity
from .trust import TrustModel

SHIFT_NOTE = "assuming that the local maps x - eta g(x) are Lipschitz with the constant given to the accountant"


@dataclasses.dataclass(frozen=True, eq=False)
class Mechanism:
    """An algorithm with the standard deviation of its base noise and what that guarantees.

    Attributes:
        algorithm: the LinearAlgorithm that trains and was accounted.
        noise_std: nu, standard deviation of Z on sums of clipped gradients; 0 without noise.
        clip_norm: per-record clipping threshold, > 0.
        guarantee: what holds, and under which circumstances.
        sensitivity: of the algorithm's encoder, per unit record shift and unit nu.
        lipschitz: L on which the guarantee rests (shift reduction), or None if it rests on none.
    """

    algorithm: LinearAlgorithm
    noise_std: float
    clip_norm: float
    guarantee: Guarantee
    sensitivity: Sensitivity
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        stated = (self.guarantee.noise_std, self.guarantee.clip_norm, self.guarantee.participation)
        own = (self.noise_std, self.clip_norm, self.algorithm.participation.describe())
        if stated != own:
            raise InvalidInput(
                f"the guarantee is for noise_std, clip_norm and participation {stated}, the mechanism has {own}; "
                "calibrate or account anew."
            )

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
    release: str | None = None,
    method: str = "exact",
    lipschitz: float | None = None,
) -> Guarantee:
    """The guarantee of a given noise for the worst victim, for adaptive gradients.

    Args:
        trust: who sees and knows what.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on one record's gradient norm, > 0.
        noise_std: nu on sums of clipped gradients, >= 0; or
        noise_multiplier: nu / (sensitivity * record_shift); exactly one of the two.
        participation: default the algorithm's own.
        release: "none", "average" or "all" final models published, where messages are hidden; default "all".
        method: "exact" or "certified" (fast upper bound).
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive.

    Returns: Guarantee; mu is inf without noise. Per victim: `guarantees`.
    Source: arXiv:2510.17480, Theorem 7, with the square of equation (8) and the factor 2 of replace-one restored, and
        its claim for adaptive gradients replaced by the row-space test and shift reduction.
    """
    losses = victim_losses(
        algorithm, trust, participation=participation, release=release, method=method, lipschitz=lipschitz
    )
    sensitivity = worst_adaptive(losses)
    std = _base_noise(sensitivity, adjacency, clip_norm, noise_std, noise_multiplier)
    scheme = participation or algorithm.participation
    return _guarantee(trust, adjacency, clip_norm, std, sensitivity, scheme, EVERY_NODE, losses)


def guarantees(
    algorithm: LinearAlgorithm,
    losses: Sequence[VictimLoss],
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    noise_std: float,
    participation: Participation | None = None,
    adaptive: bool = True,
) -> list[Guarantee]:
    """One guarantee per victim, from `privacy.accounting.victim_losses` of the same algorithm and trust model.

    Args: adaptive: the numbers for adaptive gradients; False: for gradients fixed in advance, and so labelled.
    """
    labels = algorithm.dynamics.gossip.labels
    scheme = participation or algorithm.participation
    out = []
    for loss in losses:
        held = worst_adaptive([loss]) if adaptive else loss.fixed
        one = _guarantee(trust, adjacency, clip_norm, noise_std, held, scheme, str(labels[loss.victim]), [loss])
        out.append(one if adaptive or loss.adaptive else dataclasses.replace(one, adaptive=False))
    return out


def calibrate(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    release: str | None = None,
    method: str = "exact",
    lipschitz: float | None = None,
) -> Mechanism:
    """The least noise that meets a target for adaptive gradients, never overshooting it.

    Args: mu > 0, or epsilon > 0 and delta in (0, 1); others as for `account`.
    Raises: InvalidInput: no target or two, or an algorithm whose loss is infinite under this trust model.
    """
    if (mu is None) == (epsilon is None):
        raise InvalidInput("give exactly one target: mu, or epsilon with delta.")
    if mu is None:
        if delta is None:
            raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
        target = gaussian.mu_from_epsilon(check.positive(epsilon=epsilon), check.open_unit(delta=delta))
    else:
        target = check.positive(mu=mu)
    losses = victim_losses(algorithm, trust, release=release, method=method, lipschitz=lipschitz)
    sensitivity = worst_adaptive(losses)
    if math.isinf(sensitivity.squared):
        if isinstance(algorithm.noise, ZeroNoise):
            raise InvalidInput(
                f"{algorithm.name!r} has no noise to scale, so no target can be met; use without_noise(algorithm, ...)."
            )
        raise InvalidInput(
            f"{algorithm.name!r} has infinite loss under trust model {trust.name!r}, whatever the noise: "
            f"{sensitivity.why or 'its noise is known to the attacker'}; choose another trust model or mechanism."
        )

    def stated(std: float) -> Guarantee:
        scheme = algorithm.participation
        return _guarantee(trust, adjacency, clip_norm, std, sensitivity, scheme, EVERY_NODE, losses)

    def exceeds(found: Guarantee) -> bool:
        return found.mu > target or (epsilon is not None and delta is not None and found.epsilon(delta) > epsilon)

    noise_std = gaussian.noise_std(1 / target, sensitivity.value, gaussian.record_shift(adjacency, clip_norm))
    more = 2.0**-52
    while exceeds(stated(noise_std)):  # by rounding only, so a few doublings of the last bit end it
        noise_std, more = noise_std * (1 + more), 2 * more
    rests_on = lipschitz if _rests_on_shifts(losses) else None
    return Mechanism(algorithm, noise_std, float(clip_norm), stated(noise_std), sensitivity, rests_on)


def without_noise(algorithm: LinearAlgorithm, *, trust: TrustModel, adjacency: str, clip_norm: float) -> Mechanism:
    """The algorithm as it is with nu = 0: mu is infinite, which the guarantee says."""
    losses = victim_losses(algorithm, trust)
    sensitivity = worst_adaptive(losses)
    guarantee = _guarantee(trust, adjacency, clip_norm, 0.0, sensitivity, algorithm.participation, EVERY_NODE, losses)
    return Mechanism(algorithm, 0.0, float(clip_norm), guarantee, sensitivity)


def _rests_on_shifts(losses: Sequence[VictimLoss]) -> bool:
    """Whether any of these victims is covered by shift reduction: the worst of them need not be."""
    return any(loss.adaptive_by == SHIFT_REDUCTION for loss in losses)


def _base_noise(
    sensitivity: Sensitivity,
    adjacency: str,
    clip_norm: float,
    noise_std: float | None,
    noise_multiplier: float | None,
) -> float:
    if (noise_std is None) == (noise_multiplier is None):
        raise InvalidInput("give exactly one of noise_std and noise_multiplier.")
    if noise_std is not None:
        return check.non_negative(noise_std=noise_std)
    if math.isinf(sensitivity.squared):
        raise InvalidInput(
            "noise_multiplier needs a mechanism with noise that the attacker does not know, i.e. a finite sensitivity; "
            "give noise_std."
        )
    multiplier = check.non_negative(noise_multiplier=noise_multiplier)
    return gaussian.noise_std(multiplier, sensitivity.value, gaussian.record_shift(adjacency, clip_norm))


def _guarantee(
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    noise_std: float,
    sensitivity: Sensitivity,
    participation: Participation,
    victim: str,
    losses: Sequence[VictimLoss],
) -> Guarantee:
    """The guarantee of one sensitivity; `losses` are those it is the worst of."""
    shift = gaussian.record_shift(adjacency, clip_norm)
    return Guarantee(
        mu=gaussian.mu_from_noise_std(sensitivity.value, shift, noise_std),
        trust=trust.name,
        adjacency=adjacency,
        clip_norm=clip_norm,
        record_shift=shift,
        participation=participation.describe(),
        victim=victim,
        attacker=trust.attacker,
        adaptive=True,
        bound="exact" if sensitivity.exact else "upper",
        noise_std=noise_std,
        sensitivity=sensitivity.value,
        tolerance=sensitivity.tolerance,
        release=losses[0].release,
        notes=(SHIFT_NOTE,) if _rests_on_shifts(losses) else (),
    )

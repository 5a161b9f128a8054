"""Mechanism = algorithm + noise scale + guarantee under a trust model.

`account` reads the guarantee of a given noise; `calibrate` finds the least noise for a target and never exceeds
it. Both call the same functions, and the executor runs the very algorithm that was accounted.

The unit of privacy, a record or a user's whole data set, is fixed here and stays with the mechanism: its guarantee
says it, the executor clips accordingly, and mechanisms of two units never emit the same noise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence

from . import check
from .algorithms import LinearAlgorithm
from .errors import InvalidInput, unknown_name
from .noise_error import noise_error
from .participation import Participation, in_every_step
from .privacy import gaussian
from .privacy.accounting import VictimLoss, victim_losses, worst_adaptive
from .privacy.explanation import explanation
from .privacy.fingerprint import Fingerprint, participation_hash
from .privacy.guarantee import EVERY_NODE, UNITS, Guarantee
from .privacy.sensitivity import Sensitivity
from .trust import TrustModel

SHIFT_NOTE = "assuming that the local maps x - eta g(x) are Lipschitz with constant"
_MOST_SHOWN = ("not applicable", "none", "average", "all")


@dataclasses.dataclass(frozen=True, eq=False)
class Mechanism:
    """An algorithm with the standard deviation of its base noise and what that guarantees.

    Attributes:
        algorithm: the LinearAlgorithm that trains and was accounted.
        noise_std: nu, standard deviation of Z on sums of clipped gradients, or on clipped mean gradients at user
            level; 0 without noise.
        clip_norm: clipping threshold of a record's gradient, or of a node's mean gradient at user level, > 0.
        guarantee: what holds, and under which circumstances.
        sensitivity: of the algorithm's encoder, per unit record shift and unit nu.
        lipschitz: L on which the guarantee rests (shift reduction), or None if it rests on none.

    Raises: InvalidInput: a guarantee that was not accounted (a statement written by hand), of other numbers, of another
        algorithm or participation (say, by `dataclasses.replace`), of several runs, or of a unit that the algorithm
        cannot have (`require_unit`).
    """

    algorithm: LinearAlgorithm
    noise_std: float
    clip_norm: float
    guarantee: Guarantee
    sensitivity: Sensitivity
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        for name, kind in (("algorithm", LinearAlgorithm), ("guarantee", Guarantee), ("sensitivity", Sensitivity)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(
                    f"{name} of a mechanism must be a {kind.__name__}, got {type(getattr(self, name)).__name__}; "
                    "calibrate, with_noise and without_noise make mechanisms."
                )
        require_unit(self.unit, self.algorithm.participation, lipschitz=self.lipschitz)
        stated = self.guarantee
        if not (stated.fingerprint and stated.seal):
            raise InvalidInput(
                "a mechanism needs the guarantee that was accounted for it, and this one was written or edited by "
                "hand; use calibrate, with_noise or without_noise."
            )
        self.require_unchanged()
        if stated.victim != EVERY_NODE or not stated.adaptive:
            raise InvalidInput(
                f"a mechanism needs the adaptive guarantee of every node, and this one is for victim {stated.victim!r}"
                f"{'' if stated.adaptive else ' and gradients fixed in advance'}; use calibrate or with_noise."
            )
        if stated.notes != _notes(self.lipschitz):
            raise InvalidInput(
                f"lipschitz must be what the guarantee rests on ({'; '.join(stated.notes) or 'no such constant'}), got "
                f"{self.lipschitz!r}; calibrate or account anew."
            )
        numbers = (stated.noise_std, stated.clip_norm, stated.sensitivity, stated.composed)
        own = (self.noise_std, self.clip_norm, self.sensitivity.value, 1)
        if numbers != own:
            raise InvalidInput(
                f"the guarantee is for noise_std, clip_norm, sensitivity and runs {numbers}, the mechanism has {own}; "
                "calibrate or account anew."
            )

    def require_unchanged(self) -> None:
        """Raises InvalidInput where the algorithm is not, or no longer, the one that was accounted.

        Cost: that of the algorithm's content hash.
        """
        accounted = Fingerprint.parse(self.guarantee.fingerprint)
        scheme = participation_hash(self.algorithm.participation)
        own = dataclasses.replace(accounted, algorithm=self.algorithm.content_hash, participation=scheme)
        accounted.require(own, what="the guarantee is")

    @property
    def accounted(self) -> str:
        """Content hash of the algorithm that was accounted."""
        return Fingerprint.parse(self.guarantee.fingerprint).algorithm

    @property
    def unit(self) -> str:
        """Whose data the guarantee protects: "record", or "user"."""
        return self.guarantee.unit

    @property
    def objective(self) -> float:
        """sensitivity^2 * noise in the models after averaging, per unit nu^2: what `factorize` calls loss.

        0 without noise.
        """
        if self.algorithm.noise.is_zero:
            return 0.0
        return self.sensitivity.squared * noise_error(self.algorithm)

    @property
    def injected_noise_std(self) -> float:
        """Root mean square over nodes and steps of the std added to one coordinate of what a node clips."""
        return self.noise_std * math.sqrt(float(self.algorithm.noise.variances().mean()))

    @property
    def content_hash(self) -> str:
        """16 hex digits of algorithm, noise, clipping and unit: two mechanisms with one hash emit the same noise."""
        text = f"{self.algorithm.content_hash}|{self.noise_std!r}|{self.clip_norm!r}"
        if self.unit != "record":  # hashes from before there were units, and so seeded runs, stay as they were
            text += f"|{self.unit}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def require_unit(unit: str, participation: Participation, *, lipschitz: float | None = None) -> None:
    """Refuses a unit of privacy that these circumstances cannot protect; "record" is never refused.

    Args: lipschitz: the constant that a guarantee would rest on; bounded for sums of clipped per-record gradients
        only, as the clipped mean of a node is another map.

    Raises: InvalidInput: an unknown unit; "user" where not every step is one of the user's, or with `lipschitz`.
    """
    if unit not in UNITS:
        raise unknown_name("unit", str(unit), UNITS)
    if unit == "record":
        return
    if not in_every_step(participation):
        raise InvalidInput(
            f"unit 'user' needs participation in every step, got {participation.describe()}: a user's data take part "
            f"in every step; build the algorithm with EveryStep({participation.num_steps})."
        )
    if lipschitz is not None:
        raise InvalidInput(
            f"unit 'user' cannot rest on lipschitz={lipschitz!r}: the constant is one of local maps with per-record "
            "clipping, and a clipped mean gradient is another map; leave lipschitz out."
        )


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
    unit: str = "record",
) -> Guarantee:
    """The guarantee of a given noise for the worst victim, for adaptive gradients.

    Args:
        trust: who sees and knows what.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        noise_std: nu on sums of clipped gradients, or on clipped mean gradients at user level, >= 0; or
        noise_multiplier: nu / (sensitivity * record_shift); exactly one of the two.
        participation: default the algorithm's own; with one per node, each victim is held to its own.
        release: "none", "average" or "all" final models published, where messages are hidden; default "all".
        method: "exact" or "certified" (fast upper bound).
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive; with
            unit "record" only.
        unit: "record", or "user" for all data of a node, which needs participation in every step.

    Returns: Guarantee; mu is inf without noise. Per victim: `guarantees`.
    Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
    Source: arXiv:2510.17480, Theorem 7, with the square of equation (8) and the factor 2 of replace-one restored, and
        its claim for adaptive gradients replaced by the row-space test and shift reduction.
    """
    scheme = participation or algorithm.participation
    require_unit(unit, scheme, lipschitz=lipschitz)
    losses = victim_losses(
        algorithm, trust, participation=participation, release=release, method=method, lipschitz=lipschitz, unit=unit
    )
    sensitivity = worst_adaptive(losses)
    std = _base_noise(sensitivity, adjacency, clip_norm, noise_std, noise_multiplier)
    return _guarantee(trust, adjacency, clip_norm, std, sensitivity, scheme, EVERY_NODE, losses, unit)


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
    unit: str = "record",
    release: str | None = None,
) -> list[Guarantee]:
    """One guarantee per victim, from `privacy.accounting.victim_losses` of the same algorithm and trust model.

    Args:
        participation: the one the losses were computed for; default the algorithm's own. With one per node, each
            guarantee names that of its victim.
        adaptive: the numbers for adaptive gradients; False: for gradients fixed in advance, and so labelled.
        unit: as for `account`; losses that rest on a Lipschitz constant are refused with "user".
        release: the released models the losses must hold; default those that they do hold, which each names.
    Raises: InvalidInput: losses of another algorithm, trust model, participation, release or unit.
    """
    labels = algorithm.dynamics.gossip.labels
    scheme = participation or algorithm.participation
    require_unit(unit, scheme)
    asked = Fingerprint.of(algorithm, trust, scheme, release or "", unit)
    for loss in losses:
        if loss.fingerprint is None:
            raise InvalidInput("losses must be those of victim_losses, which says what they were computed for.")
        loss.fingerprint.require(
            asked if release else dataclasses.replace(asked, release=loss.release),
            what=f"the losses were computed for unit {loss.unit!r}, not {unit!r}:"
            if loss.unit != unit
            else "the losses were computed",
        )
    if unit == "user" and _rests_on(losses) is not None:
        raise InvalidInput("unit 'user' cannot rest on shift reduction; compute the losses without lipschitz.")
    out = []
    for loss in losses:
        held = worst_adaptive([loss]) if adaptive else loss.fixed
        name = str(labels[loss.victim])
        own = scheme.of_node(loss.victim)
        one = _guarantee(trust, adjacency, clip_norm, noise_std, held, own, name, [loss], unit)
        out.append(one if adaptive else one.changed(adaptive=loss.adaptive, why=explanation(loss, adaptive=False)))
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
    unit: str = "record",
) -> Mechanism:
    """The least noise that meets a target for adaptive gradients, never overshooting it.

    Args: mu > 0, or epsilon > 0 and delta in (0, 1); others as for `account`.
    Raises: InvalidInput: no target or two, an algorithm whose loss is infinite under this trust model, or a unit
        that cannot be protected (`require_unit`).
    """
    if (mu is None) == (epsilon is None):
        raise InvalidInput("give exactly one target: mu, or epsilon with delta.")
    if mu is None:
        if delta is None:
            raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
        target = gaussian.mu_from_epsilon(check.positive(epsilon=epsilon), check.open_unit(delta=delta))
    else:
        target = check.positive(mu=mu)
    require_unit(unit, algorithm.participation, lipschitz=lipschitz)
    losses = victim_losses(algorithm, trust, release=release, method=method, lipschitz=lipschitz, unit=unit)
    sensitivity = worst_adaptive(losses)
    if math.isinf(sensitivity.squared):
        if algorithm.noise.is_zero:
            raise InvalidInput(
                f"{algorithm.name!r} has no noise to scale, so no target can be met; use without_noise(algorithm, ...)."
            )
        raise InvalidInput(
            f"{algorithm.name!r} has infinite loss under trust model {trust.name!r}, whatever the noise: "
            f"{sensitivity.why or 'no number holds for training'}; choose another trust model or mechanism."
        )

    def stated(std: float) -> Guarantee:
        scheme = algorithm.participation
        return _guarantee(trust, adjacency, clip_norm, std, sensitivity, scheme, EVERY_NODE, losses, unit)

    def exceeds(found: Guarantee) -> bool:
        return found.mu > target or (epsilon is not None and delta is not None and found.epsilon(delta) > epsilon)

    noise_std = gaussian.noise_std(1 / target, sensitivity.value, gaussian.record_shift(adjacency, clip_norm))
    more = 2.0**-52
    while exceeds(stated(noise_std)):  # by rounding only, so a few doublings of the last bit end it
        noise_std, more = noise_std * (1 + more), 2 * more
    return Mechanism(algorithm, noise_std, float(clip_norm), stated(noise_std), sensitivity, _rests_on(losses))


def with_noise(
    algorithm: LinearAlgorithm,
    *,
    noise_std: float,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    release: str | None = None,
    unit: str = "record",
) -> Mechanism:
    """The algorithm with a given nu, on sums of clipped gradients (user level: clipped means), and what it guarantees.

    Args: as for `account`. Raises: InvalidInput: an argument out of range, or a unit that cannot be protected.
    """
    scheme = algorithm.participation
    require_unit(unit, scheme)
    std = check.non_negative(noise_std=noise_std)
    losses = victim_losses(algorithm, trust, release=release, unit=unit)
    sensitivity = worst_adaptive(losses)
    guarantee = _guarantee(trust, adjacency, clip_norm, std, sensitivity, scheme, EVERY_NODE, losses, unit)
    return Mechanism(algorithm, std, float(clip_norm), guarantee, sensitivity)


def without_noise(
    algorithm: LinearAlgorithm, *, trust: TrustModel, adjacency: str, clip_norm: float, unit: str = "record"
) -> Mechanism:
    """`with_noise` at nu = 0: mu is infinite, which the guarantee says; `unit` decides what is clipped."""
    return with_noise(algorithm, noise_std=0.0, trust=trust, adjacency=adjacency, clip_norm=clip_norm, unit=unit)


def _rests_on(losses: Sequence[VictimLoss]) -> float | None:
    """The Lipschitz constant if any of these victims is covered by shift reduction: the worst of them need not be."""
    return max((loss.lipschitz for loss in losses if loss.lipschitz is not None), default=None)


def _notes(lipschitz: float | None) -> tuple[str, ...]:
    return () if lipschitz is None else (f"{SHIFT_NOTE} {float(lipschitz)!r}",)


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
    unit: str,
) -> Guarantee:
    """The guarantee of one sensitivity; `losses` are those it is the worst of."""
    fingerprint, release = losses[0].fingerprint, max((loss.release for loss in losses), key=_MOST_SHOWN.index)
    assert fingerprint is not None
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
        release=release,
        notes=_notes(_rests_on(losses)),
        unit=unit,
        why=explanation(max(losses, key=lambda loss: loss.adaptive_sensitivity_squared)),
    ).sealed(dataclasses.replace(fingerprint, release=release).text)

"""The guarantee of two runs seen together, with every assumption of both: see `Guarantee.compose_with`."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import InvalidInput, UnsupportedMechanism, require_known
from . import gaussian
from .guarantee import Guarantee
from .guarantee_texts import EVERY_NODE
from .questions import fingerprint_of_both
from .victim_curves import Victims

SAME = ("trust", "adjacency", "clip_norm", "unit", "victim", "attacker", "owners")
"""Fields in which both runs must agree."""


def composed(this: Guarantee, other: Guarantee, *, bins: str) -> Guarantee:
    """Both runs; arguments and refusals as for `Guarantee.compose_with`."""
    _require_composable(this, other, bins)
    fingerprint = fingerprint_of_both(this, other)
    curve = this.curve.composed_with(other.curve)
    noise_std, sensitivity = _weakest_noise(this, other)
    if curve.bound == "exact" and this.victim == EVERY_NODE:
        curve = dataclasses.replace(curve, bound="upper")  # type: ignore[call-arg]
    both_runs = Guarantee(
        curve=curve,
        trust=this.trust,
        clip_norm=this.clip_norm,
        participation=_participation_of_both(this, other),
        victim=this.victim,
        attacker=this.attacker,
        adaptive=True,
        noise_std=noise_std,
        sensitivity=sensitivity,
        release=this.release if this.mu is None or other.mu is not None else other.release,
        tolerance=max(this.tolerance, other.tolerance),
        lipschitz=min((x for x in (this.lipschitz, other.lipschitz) if x is not None), default=None),
        unit=this.unit,
        victims=_composed_victims(this, other),
        owners=this.owners,
        stated_delta=this.stated_delta,
        **_conditions_of_both(this, other),
    )
    return both_runs.sealed(fingerprint) if fingerprint else both_runs


def _require_composable(this: Guarantee, other: Guarantee, bins: str) -> None:
    if not isinstance(other, Guarantee):
        raise InvalidInput(f"other must be a Guarantee, got {type(other).__name__}.")
    require_known("bins", bins, ("fresh", "shared"))
    if bins == "shared":
        raise UnsupportedMechanism(
            "runs that share their bins do not compose, because each run reveals bins of the other; "
            "sample new bins (one key per run), or account for one run of all steps, whose M is the sum "
            "of both."
        )
    for which, guarantee in (("this", this), ("the other", other)):
        if not guarantee.adaptive:
            raise InvalidInput(
                f"only adaptive guarantees compose, and {which} one is for non-adaptive gradients; "
                "use the adaptive number of that mechanism."
            )
    released = () if this.mu is None or other.mu is None else ("release",)  # secret sampling: all messages seen
    for name in (*SAME, *released):
        mine, theirs = getattr(this, name), getattr(other, name)
        if mine != theirs:
            raise InvalidInput(f"guarantees compose only for the same {name}, got {mine!r} and {theirs!r}.")


def _weakest_noise(this: Guarantee, other: Guarantee) -> tuple[float, float]:
    """noise_std and sensitivity of both together."""
    if this.mu is not None and other.mu is not None:
        noise_std = min(this.noise_std, other.noise_std)
        parts = [_sensitivity_at(this, noise_std), _sensitivity_at(other, noise_std)]
        return noise_std, gaussian.compose(parts)
    sampled = [each for each in (this, other) if each.mu is None]
    weakest = min(sampled, key=lambda each: each.noise_multiplier)  # bound
    return weakest.noise_std, weakest.sensitivity


def _sensitivity_at(this: Guarantee, noise_std: float) -> float:
    """The sensitivity in units of noise of another, not larger, standard deviation."""
    if noise_std == this.noise_std:
        return this.sensitivity
    return 0.0 if noise_std == 0 else this.sensitivity * (noise_std / this.noise_std)


def _conditions_of_both(this: Guarantee, other: Guarantee) -> dict[str, Any]:
    """The conditions, reasons and origins of two runs seen together: all that either rests on."""
    sources = [text for each in (this, other) for text in each.source.split("; ") if text]
    return {
        "notes": tuple(dict.fromkeys(this.notes + other.notes)),
        "why": " ".join(dict.fromkeys(filter(None, (this.why, other.why)))),
        "source": "; ".join(dict.fromkeys(sources)),
    }


def _composed_victims(this: Guarantee, other: Guarantee) -> Victims:
    """The curve of each victim over both runs; where one says nothing of a victim, what it says of everybody."""
    if this.mu is None or other.mu is None:
        return ()
    mine, theirs = dict(this.victims), dict(other.victims)
    labels = list(dict.fromkeys([*mine, *theirs]))
    return tuple((u, mine.get(u, this.curve).composed_with(theirs.get(u, other.curve))) for u in labels)


def _participation_of_both(this: Guarantee, other: Guarantee) -> str:
    """Both in words, in their order; with secret sampling beside it, what public ones released."""
    if this.participation == other.participation and this.mu is not None and other.mu is not None:
        return this.participation
    mixed = (this.mu is None) != (other.mu is None)
    parts = [
        f"{each.participation} (public batches; released models: {each.release})"
        if mixed and each.mu is not None
        else each.participation
        for each in (this, other)
    ]
    return ", then ".join(parts)

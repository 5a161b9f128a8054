"""A privacy number together with everything it depends on: who sees what, about whom, and how surely.

The unit says whose data are protected. "record": each record's gradient is clipped, and noise is added to their sum.
"user": the node's mean gradient is clipped, so all of the node's data move it by one record shift; a user moves a sum
of m clipped gradients by m shifts. mu is about real-number noise: attacks on the low-order bits of floats are covered
by `PrivateNode(grid=...)` alone.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import check
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..files import atomic_write_text
from ..trust.view import RELEASES
from . import gaussian, guarantee_texts
from .curves import Gaussian, PrivacyCurve
from .guarantee_texts import EVERY_NODE, ROUNDING, Statement, Victims, checked_victims
from .owners import Owners
from .questions import UNITS, Fingerprint, lipschitz_notes, short_hash

if TYPE_CHECKING:
    from dp_accounting import DpEvent

STATED = "as stated in the file, not computed anew"
EDITED = "as edited, not computed"

_TEXTS = ("trust", "participation", "victim", "attacker")
_CHOICES = {"release": RELEASES, "unit": UNITS}
SEALING = ("seal", "fingerprint")
UNNAMED = ("custom", "matrices")  # trust models that one word stands for, whatever they show
SAME = ("trust", "adjacency", "clip_norm", "unit", "victim", "attacker", "owners")
"""Fields in which runs that are composed must agree."""


@dataclasses.dataclass(frozen=True, repr=False)
class Guarantee(Statement):
    """The view of `attacker` is private for a record of `victim`, or for all its data (`unit`), along `curve`.

    Attributes:
        curve: epsilon at delta, delta at epsilon, and mu where the curve is Gaussian; numerical slack included.
        trust: name of the trust model that says what the attacker sees.
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        participation: the steps one record (or user) may join, in words; of secret sampling the sampling.
        victim: label of the node that holds the data, or `EVERY_NODE` for the worst one.
        attacker: who observes, in words.
        adaptive: whether it also holds when gradients are chosen from what was seen before.
        noise_std: standard deviation of the noise, in units of what is clipped.
        sensitivity: L2 sensitivity per unit record_shift (with secret sampling: per unit clip_norm, of a record whose
            steps were public), in units of noise of std `noise_std`; may be inf.
        release: which final models the attacker sees, one of `RELEASES`; "not applicable" where all messages are seen.
        tolerance: relative numerical slack that the sensitivity already includes.
        notes: further conditions, in words.
        lipschitz: the constant of the local maps that the number rests on, which `notes` then name; or None.
        unit: "record", or "user": all data of the victim.
        victims: where each node has a budget of its own, the label and curve of each victim; `curve` is the worst.
        owners: which nodes may hold one and the same record; attackers that hold it are not counted.
        why: the rule that gave an upper bound or infinity, and what would give a better number; that noise which nodes
            share counts as known.
        fingerprint: of what was accounted (`Fingerprint.text`); empty for a statement of the caller's own.
        seal: hash of all other fields, written by the accountant. A field changed afterwards (`dataclasses.replace`, an
            edited file) makes it a statement of the caller's own, which no mechanism takes.
        source: where the statement is from, if it was not accounted here; not compared.
        stated_delta: the delta at which words, tables and files give epsilon; not compared.

    Guarantees: A single run, and a file, never state less than sensitivity, clipping and noise_std give. With secret
        sampling it holds while the draws of batches and the noise stay secret and are independent, and nothing else
        that is seen follows who takes part (docs/sampling.md).
    Raises: InvalidInput: a field is out of range, or two fields contradict each other.
    """

    _by_victim = None

    def __post_init__(self) -> None:
        check.instance(PrivacyCurve, curve=self.curve)
        check.instance(Owners, owners=self.owners)
        checked: dict[str, Any] = {
            "sensitivity": check.non_negative_or_inf(sensitivity=self.sensitivity),
            "noise_std": check.non_negative(noise_std=self.noise_std),
            "tolerance": check.non_negative(tolerance=self.tolerance),
            "stated_delta": check.open_unit(stated_delta=self.stated_delta),
            "clip_norm": check.positive(clip_norm=self.clip_norm),
            "notes": check.texts(notes=self.notes),
        }
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidInput(f"{name} must be a non-empty text, got {value!r}.")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if not isinstance(self.adaptive, bool):
            raise InvalidInput(f"adaptive must be True or False, got {self.adaptive!r}.")
        if self.lipschitz is not None:
            checked["lipschitz"] = check.non_negative(lipschitz=self.lipschitz)
            checked["notes"] = tuple(dict.fromkeys([*checked["notes"], *lipschitz_notes(self.lipschitz)]))
        self._set(**checked)
        self._set(victims=checked_victims(self.victims, self.curve))
        self._require_noise()
        for name in ("why", "fingerprint", "seal", "source"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"{name} must be a text, got {getattr(self, name)!r}.")
        if self.fingerprint:
            Fingerprint.parse(self.fingerprint)
        if (self.seal or self.fingerprint) and self.seal != self._digest(self.fingerprint):
            sources = dict.fromkeys([*filter(None, self.source.split("; ")), EDITED])
            self._set(fingerprint="", seal="", source="; ".join(sources))

    def _require_noise(self) -> None:
        if self.mu is None:
            most = gaussian.noise_multiplier(self.noise_std, self.clip_norm, self.sensitivity)
            if self.noise_multiplier > most:
                raise InvalidInput(
                    f"the curve's noise multiplier must be at most noise_std / (clip_norm * sensitivity) = {most!r}, "
                    f"got {self.noise_multiplier!r}."
                )
        elif self.composed == 1:
            least = self._least_mu()
            if self.mu < least:
                self._set(curve=dataclasses.replace(self.curve, mu=least))  # type: ignore[call-arg]

    def _least_mu(self) -> float:
        least = gaussian.mu_from_noise_std(self.sensitivity, self.record_shift, self.noise_std)
        if self.mu is not None and self.mu < least * (1 - ROUNDING):
            raise InvalidInput(
                f"mu must be at least sensitivity * record_shift / noise_std = {least!r}, got {self.mu!r}."
            )
        return least

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _digest(self, fingerprint: str) -> str:
        fields = {name: value for name, value in self._field_values().items() if name not in SEALING}
        return short_hash(fingerprint, json.dumps(fields, sort_keys=True))

    def sealed(self, fingerprint: str, *, by_victim: Callable[[], dict[str, PrivacyCurve]] | None = None) -> Guarantee:
        """The same as the answer to a question, for the accountant.

        Args: by_victim: computes the curve of each victim by label; not part of the statement.
        """
        sealed = copy.copy(self)
        sealed._set(fingerprint=fingerprint, seal=self._digest(fingerprint), _by_victim=by_victim)
        return sealed

    def at_delta(self, delta: float) -> Guarantee:
        """The same statement, whose words and files give epsilon at this delta in (0, 1)."""
        guarantee = copy.copy(self)
        guarantee._set(stated_delta=check.open_unit(delta=delta), _by_victim=self._by_victim)  # which copies leave out
        return guarantee

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_by_victim": None}  # which holds the algorithm, and is no data

    def dp_event(self, *, public_batches: bool = False) -> AccountedEvent:
        """The guarantee as an event of dp-accounting, which its accountants compose with others, and its conditions.

        With mu it is a Gaussian event with noise multiplier 1 / mu, rounded down, so that the adjacency is in it: every
        accountant takes it under its default relation, and another gives no smaller loss. With Poisson sampling, T
        sampled ones.

        Args: public_batches: of secret sampling: the same noise with public batches, an upper bound for any scheme.
        Raises: UnsupportedMechanism: a number for non-adaptive gradients; secret sampling of another kind, or Poisson
            sampling under replace-one, without `public_batches`.
        """
        if not self.adaptive:
            raise UnsupportedMechanism(
                "an event is composed adaptively, and this guarantee is for non-adaptive gradients; use the adaptive "
                "number of the mechanism."
            )
        lines, curve = ["read it with an accountant's default relation, ADD_OR_REMOVE_ONE", str(self)], self.curve
        if check.flag(public_batches=public_batches) and curve.mu is None:
            curve = Gaussian(curve.public_mu, curve.adjacency, "upper")
            lines.insert(1, "an upper bound: the event is that of the same noise with public batches")
        return AccountedEvent(curve.dp_event(), "\n".join(lines))

    def by_victim(self) -> dict[str, PrivacyCurve]:
        """The privacy curve of each victim by label; only that of `victim` where none was computed or it was edited.

        Cost: of a guarantee that was accounted here, that of `Losses.curves`.
        """
        if self.victims:
            return dict(self.victims)
        return {self.victim: self.curve} if self._by_victim is None or not self.seal else dict(self._by_victim())

    def compose_with(self, other: Guarantee, *, bins: str = "fresh") -> Guarantee:
        """The guarantee of both runs seen together.

        mu^2 adds up over Gaussian curves; otherwise privacy loss distributions compose, each direction by itself. The
        runs must have independent noise and independently sampled batches (so keys of their own), and each must start
        from public data or from models that the attacker already knows; a run that continues from unseen models is one
        longer run instead.

        Args: bins: "fresh": every record draws anew for each run. What is composed is certified, also where a run was
            bounded by samples.
        Returns: noise_std and sensitivity are those of the run with least noise; of Gaussian curves, the sensitivity of
            both in units of the smaller noise_std.
        Guarantees: holds also when the second run is chosen after seeing the first; carries every assumption of both.
            "exact" only if both are and there is one victim (the worst node of each run need not be the same).
        Raises: InvalidInput: either number is not adaptive, or the two differ in trust model, adjacency, clip_norm,
            unit, victim, attacker, owners or, of public batches, release. UnsupportedMechanism: "shared" batches, which
            do not compose.
        """
        _require_composable(self, other, bins)
        fingerprint = _fingerprint_of_both(self, other)
        curve = self.curve.composed_with(other.curve)
        noise_std, sensitivity = _weakest_noise(self, other)
        if curve.bound == "exact" and self.victim == EVERY_NODE:
            curve = dataclasses.replace(curve, bound="upper")  # type: ignore[call-arg]
        both_runs = type(self)(
            curve=curve,
            trust=self.trust,
            clip_norm=self.clip_norm,
            participation=_participation_of_both(self, other),
            victim=self.victim,
            attacker=self.attacker,
            adaptive=True,
            noise_std=noise_std,
            sensitivity=sensitivity,
            release=self.release if self.mu is None or other.mu is not None else other.release,
            tolerance=max(self.tolerance, other.tolerance),
            notes=tuple(dict.fromkeys(self.notes + other.notes)),
            lipschitz=min((x for x in (self.lipschitz, other.lipschitz) if x is not None), default=None),
            unit=self.unit,
            why=" ".join(dict.fromkeys(filter(None, (self.why, other.why)))),
            victims=_composed_victims(self, other),
            owners=self.owners,
            source="; ".join(dict.fromkeys(filter(None, [*self.source.split("; "), *other.source.split("; ")]))),
            stated_delta=self.stated_delta,
        )
        return both_runs.sealed(fingerprint) if fingerprint else both_runs

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Guarantee:
        """The inverse of `to_dict`, not computed anew, and the guarantee says so.

        Raises: InvalidInput: another format, a missing or unknown field, a number that is not the curve's.
        """
        try:
            read = cls(**guarantee_texts.constructor_arguments(cls, data), source=STATED)
            read._least_mu()
        except OverflowError:  # JSON integers have no size limit
            raise InvalidInput("a guarantee has a number that is too large for a float.") from None
        read._require_derived(data)
        return read

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON; readers see the old file or the whole new one. Raises: InvalidInput: it cannot be written."""
        # ASCII: any text survives, also one that UTF-8 cannot encode
        atomic_write_text(check.path(path=path), json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Guarantee:
        """Read a file of `save`. Raises: InvalidInput: it is not a guarantee."""
        path = check.path(path=path)
        data = guarantee_texts.read_json(path)
        try:
            return cls.from_dict(data)
        except InvalidInput as error:
            raise InvalidInput(f"{str(path)!r}: {error}") from None


@dataclasses.dataclass(frozen=True)
class AccountedEvent:
    """An event of dp-accounting, and the conditions under which it describes a mechanism, one a line."""

    event: DpEvent
    conditions: str

    def __str__(self) -> str:
        return f"{self.event!r}\n{self.conditions}"


def _require_composable(this: Guarantee, other: Guarantee, bins: str) -> None:
    if not isinstance(other, type(this)):
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


def _fingerprint_of_both(this: Guarantee, other: Guarantee) -> str:
    """The fingerprint of two runs seen together; empty where one is a statement of the caller's own."""
    if not (this.fingerprint and other.fingerprint):
        if this.trust in UNNAMED:
            raise InvalidInput(
                "guarantees of unnamed trust models cannot be composed, because the views may differ; name "
                "them, TrustModel.from_masks(..., name=...), and give one name to one model."
            )
        return ""
    mine, theirs = Fingerprint.parse(this.fingerprint), Fingerprint.parse(other.fingerprint)
    if mine.trust != theirs.trust:
        raise InvalidInput(
            f"guarantees compose only against the same attackers, and {this.attacker!r} stands for others in the "
            f"two ({mine.trust}, {theirs.trust}): other nodes, or masks that show something else."
        )
    return dataclasses.replace(
        mine,
        algorithm=short_hash(mine.algorithm, theirs.algorithm),
        participation=short_hash(mine.participation, theirs.participation),
    ).text


def _weakest_noise(this: Guarantee, other: Guarantee) -> tuple[float, float]:
    if this.mu is not None and other.mu is not None:
        noise_std = min(this.noise_std, other.noise_std)
        scales = [1.0 if run.noise_std == noise_std else noise_std / run.noise_std for run in (this, other)]
        parts = [run.sensitivity * scale if scale else 0.0 for run, scale in zip((this, other), scales, strict=True)]
        return noise_std, gaussian.compose(parts)
    sampled = [each for each in (this, other) if each.mu is None]
    weakest = min(sampled, key=lambda each: each.noise_multiplier)  # bound
    return weakest.noise_std, weakest.sensitivity


def _composed_victims(this: Guarantee, other: Guarantee) -> Victims:
    if this.mu is None or other.mu is None:
        return ()
    mine, theirs = dict(this.victims), dict(other.victims)
    labels = list(dict.fromkeys([*mine, *theirs]))
    return tuple((u, mine.get(u, this.curve).composed_with(theirs.get(u, other.curve))) for u in labels)


def _participation_of_both(this: Guarantee, other: Guarantee) -> str:
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

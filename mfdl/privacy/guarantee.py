"""A privacy number together with everything it depends on: who sees what, about whom, and how surely.

In: the mu found by an accountant and the circumstances it holds under. Out: epsilon, delta, one honest
sentence, a JSON file. How mu is found is in the other files of this folder; conversions are in `gaussian`.

Whose data are protected is the unit. "record": each record's gradient is clipped, and noise is added to their sum.
"user": the node's mean gradient is clipped, so it is all of the node's data that move it by one record shift. Clipping
records and claiming the user would be wrong by the batch size: a user moves a sum of m clipped gradients by m shifts.
mu is about real-number noise: attacks on the low-order bits of floats are covered by `PrivateNode(grid=...)` alone.

A guarantee as an event of dp-accounting, whose accountants compose it with mechanisms of other libraries.

An event has no trust model, no adjacency and no victim: it is stated beside them here. The noise multiplier of a
Gaussian event is 1 / mu, so that the adjacency is in it: every accountant of dp-accounting takes the event under its
default relation, and another relation gives no smaller loss.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import check
from ..display import Shown
from ..errors import InvalidInput, UnsupportedMechanism
from ..files import atomic_write_text
from ..trust.view import RELEASES
from . import gaussian, guarantee_texts
from .curves import Gaussian, PrivacyCurve
from .guarantee_texts import ROUNDING, Victims, checked_victims
from .owners import Owners
from .questions import UNITS, Fingerprint, lipschitz_notes, short_hash

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from matplotlib.figure import Figure


DELTA = 1e-6  # at which words give epsilon, where no target named another
STATED = "as stated in the file, not computed anew"
EDITED = "as edited, not computed"

_TEXTS = ("trust", "participation", "victim", "attacker")
SEALING = ("seal", "fingerprint")
_CHOICES = {"release": RELEASES, "unit": UNITS}


@dataclasses.dataclass(frozen=True, repr=False)
class Guarantee(Shown):
    """The view of `attacker` is private for a record of `victim`, or for all its data (`unit`), along `curve`.

    Attributes:
        curve: epsilon at delta, delta at epsilon, and mu where the curve is Gaussian; numerical slack included.
        trust: name of the trust model that says what the attacker sees.
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        participation: the steps one record (or user) may join, in words; of secret sampling the sampling.
        victim: label of the node that holds the data, or `EVERY_NODE` for the worst one.
        attacker: who observes, in words.
        adaptive: True if it also holds when gradients are chosen from what was seen before; False if it
            holds for non-adaptive gradients only.
        noise_std: standard deviation of the noise, in units of what is clipped: the sum of clipped gradients, or the
            clipped mean gradient at user level.
        sensitivity: L2 sensitivity per unit record_shift (with secret sampling: per unit clip_norm, of a record whose
            steps were public), in units of noise of std `noise_std`; may be inf.
        release: which final models the attacker sees, one of `RELEASES`; "not applicable" where all messages are seen.
        tolerance: relative numerical slack that the sensitivity already includes.
        notes: further conditions, in words.
        lipschitz: the constant of the local maps that the number rests on, which `notes` then name; or None.
        unit: "record", or "user": all data of the victim; one of `UNITS`.
        victims: where each node has a budget of its own, the label and curve of each victim; `curve` is the worst.
        owners: which nodes may hold one and the same record; attackers that hold it are not counted.
        why: where it is an upper bound or infinite, which rule gave it and what would give a better number; where noise
            that nodes share counts as known, that it does.
        fingerprint: of what was accounted (`Fingerprint.text`); empty for a statement of the caller's own.
        seal: hash of all other fields, written by the accountant. A field changed afterwards (`dataclasses.replace`, an
            edited file) makes it a statement of the caller's own: without fingerprint, so that no mechanism takes it.
        source: where the statement is from, if it was not accounted here; not part of the statement.
        stated_delta: the delta at which words, tables and files give epsilon: that of the target, or `DELTA`; not part
            of the statement either, which is the whole curve.

    Guarantees:
        A single run, and a file, never state less than sensitivity, clipping and noise_std give: no mu below
        sensitivity * record_shift / noise_std, no noise multiplier above noise_std / (sensitivity * clip_norm).
        With secret sampling it holds while the draws of batches and the noise stay secret and are independent, and
        nothing else that is seen follows who takes part (docs/sampling.md).
    Raises:
        InvalidInput: a field is out of range, or two fields contradict each other.
    """

    curve: PrivacyCurve
    trust: str
    clip_norm: float
    participation: str
    victim: str
    attacker: str
    adaptive: bool
    noise_std: float
    sensitivity: float
    release: str
    tolerance: float = 0.0
    notes: tuple[str, ...] = ()
    lipschitz: float | None = None
    unit: str = "record"
    why: str = ""
    fingerprint: str = ""
    seal: str = ""
    victims: Victims = ()
    owners: Owners = dataclasses.field(default_factory=Owners)
    source: str = dataclasses.field(default="", compare=False)
    stated_delta: float = dataclasses.field(default=DELTA, compare=False)

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
            self._set(fingerprint="", seal="", source=edited(self.source))

    def _require_noise(self) -> None:
        """Refuses a curve of less loss than sensitivity, clipping and noise give."""
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
        """sensitivity * record_shift / noise_std. Raises: InvalidInput: mu is below it."""
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
        """16 hex digits of everything that is stated."""
        fields = {name: value for name, value in guarantee_texts.field_values(self).items() if name not in SEALING}
        return short_hash(fingerprint, json.dumps(fields, sort_keys=True))

    def sealed(
        self, fingerprint: str, *, by_victim: Callable[[], Mapping[str, PrivacyCurve]] | None = None
    ) -> Guarantee:
        """The same as the answer to a question: for those who computed it.

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

    # ---- numbers -----------------------------------------------------------------------------------------

    @property
    def mu(self) -> float | None:
        """Gaussian DP parameter, >= 0; inf when there is no guarantee; None where the curve is not Gaussian."""
        return self.curve.mu

    @property
    def adjacency(self) -> str:
        """One of `gaussian.ADJACENCIES`."""
        return self.curve.adjacency

    @property
    def record_shift(self) -> float:
        """How far a record moves a sum of clipped gradients, or a user its clipped mean gradient."""
        return gaussian.record_shift(self.adjacency, self.clip_norm)

    @property
    def bound(self) -> str:
        """ "exact", "upper", or "monte-carlo", upper but for a stated probability over samples."""
        return self.curve.bound

    @property
    def composed(self) -> int:
        """Number of runs that this guarantee covers."""
        return self.curve.runs

    @property
    def noise_multiplier(self) -> float:
        """noise_std / (clip_norm * sensitivity), rounded down."""
        return self.curve.noise_multiplier

    @property
    def finite(self) -> bool:
        """Whether anything is guaranteed: every run has noise that the attacker does not know."""
        return math.isfinite(self.curve.public_mu)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at this delta, rounded up; see `PrivacyCurve`."""
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Smallest delta at this epsilon, rounded up; see `PrivacyCurve`."""
        return self.curve.delta(epsilon)

    def renyi_epsilon(self, order: float) -> float:
        """Rényi divergence of this order >= 1, an upper bound in both directions.

        Of a Gaussian curve order * mu^2 / 2, rounded up; with Poisson sampling exact at integer orders but for
        rounding up (zero-out and add-remove); with other secret sampling that of public batches.
        """
        orders = np.array([check.positive(order=order)])
        if order < 1:
            raise InvalidInput(f"order must be a finite number >= 1, got {order!r}.")
        return float(self.curve.renyi_divergences(orders)[0])

    def advantage(self) -> float:
        """The largest difference of the true and the false positive rate of an attacker: delta at epsilon = 0.

        The attacker decides which of two adjacent data sets was used: whether the record took part, or under
        replace-one which of two records did. For mu it is 2 Phi(mu / 2) - 1, rounded up.
        """
        return self.delta(0.0)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true positive rate of that attacker at a false positive rate in (0, 1), rounded up.

        For mu it is Phi(Phi^-1(false positive rate) + mu). Cost: some thirty times that of `delta`.
        """
        return self.curve.true_positive_rate(false_positive_rate)

    def dp_event(self, *, public_batches: bool = False) -> AccountedEvent:
        """The guarantee as an event of dp-accounting, which its accountants compose with others.

        Args: public_batches: of secret sampling: the same noise with public batches, an upper bound for any scheme.
        Returns: the event, and the conditions of the guarantee, which no event carries. With mu it is a Gaussian event
            with noise multiplier 1 / mu, rounded down; with Poisson sampling, T sampled ones.
        Raises: UnsupportedMechanism: a number for non-adaptive gradients; secret sampling of another kind, or Poisson
            sampling under replace-one, without `public_batches`.
        """

        return event_of(self.curve, str(self), adaptive=self.adaptive, public_batches=public_batches)

    def by_victim(self) -> dict[str, PrivacyCurve]:
        """The privacy curve of each victim by label; only that of `victim` where none was computed or it was edited.

        Cost: of a guarantee that was accounted here, that of `Losses.curves`.
        """
        if self.victims:
            return dict(self.victims)
        return {self.victim: self.curve} if self._by_victim is None or not self.seal else dict(self._by_victim())

    # ---- words -------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        """The guarantee in at most 40 words, rounded up; `fields`, and `print`, leave no condition out."""
        return guarantee_texts.sentence(self)

    def fields(self) -> list[tuple[str, str]]:
        """Everything that is stated, by name, in words; numbers are rounded up."""
        return guarantee_texts.fields(self)

    def __str__(self) -> str:
        return guarantee_texts.text(self)

    def _sentence(self) -> str:
        return guarantee_texts.sentence(self)

    def _figure(self) -> Figure | None:
        return guarantee_texts.figure(self)

    def _rows(self) -> list[tuple[str, str]]:
        return guarantee_texts.fields(self)

    @property
    def epsilon_in_words(self) -> str:
        """epsilon, rounded up, at `stated_delta`."""
        return guarantee_texts.epsilon_at(self)

    # ---- composition -------------------------------------------------------------------------------------

    def compose_with(self, other: Guarantee, *, bins: str = "fresh") -> Guarantee:
        """The guarantee of both runs seen together.

        mu^2 adds up over Gaussian curves; otherwise privacy loss distributions compose, each direction by itself. The
        runs must have independent noise and independently sampled batches (so keys of their own), and each must start
        from public data or from models that the attacker already knows; a run that continues from unseen models is
        one longer run instead.

        Args: bins: "fresh": every record draws anew for each run. What is composed is certified, also where a run
            was bounded by samples.
        Returns:
            A Guarantee whose noise_std and sensitivity are those of the run with least noise; of Gaussian curves, the
            sensitivity of both in units of the smaller noise_std.
        Guarantees:
            Holds also when the second run is chosen after seeing the first; carries every assumption of both. "exact"
            only if both are and there is one victim (the worst node of each run need not be the same).
        Raises:
            InvalidInput: either number is not adaptive, or the two differ in trust model, adjacency, clip_norm, unit,
                victim, attacker, or, of public batches, release.
            UnsupportedMechanism: "shared" batches, which do not compose run by run.
        """
        from .guarantee_texts import composed

        return composed(self, other, bins=bins)

    # ---- files -------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values of one shape for every participation; infinity is the text "inf".

        `curve` is what everything follows from; `epsilon` is the curve at `stated_delta`; mu is null where none exists.
        """
        return guarantee_texts.to_json(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Guarantee:
        """The inverse of `to_dict`; the fields are checked as in the constructor.

        What a file claims is not computed anew, and the guarantee says so.

        Raises:
            InvalidInput: another format, a missing or unknown field, a value that is not allowed, or a number beside
                the curve that is not the curve's.
        """
        try:
            read = cls(**guarantee_texts.constructor_arguments(cls, data), source=STATED)
            read._least_mu()
        except OverflowError:  # JSON integers have no size limit
            raise InvalidInput("a guarantee has a number that is too large for a float.") from None
        guarantee_texts.require_derived(read, data)
        return read

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the guarantee as JSON; readers see the old file or the whole new one, never a part.

        Raises:
            InvalidInput: the file cannot be written there.
        """
        # ASCII: any text survives, also one that UTF-8 cannot encode
        atomic_write_text(check.path(path=path), json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Guarantee:
        """Read a file written by `save`.

        Raises:
            InvalidInput: the file cannot be read, is not JSON, or is not a guarantee.
        """
        path = check.path(path=path)
        data = guarantee_texts.of_file(path)
        try:
            return cls.from_dict(data)
        except InvalidInput as error:
            raise InvalidInput(f"{str(path)!r}: {error}") from None


def edited(source: str) -> str:
    """Where a statement comes from that is no longer the one that was computed."""
    return "; ".join(dict.fromkeys([*filter(None, source.split("; ")), EDITED]))


@dataclasses.dataclass(frozen=True)
class AccountedEvent:
    """An event of dp-accounting, and the conditions under which it describes a mechanism.

    Attributes: event: a `dp_accounting.DpEvent`; conditions: those of the guarantee, one a line.
    """

    event: DpEvent
    conditions: str

    def __str__(self) -> str:
        return f"{self.event!r}\n{self.conditions}"


def event_of(curve: PrivacyCurve, conditions: str, *, adaptive: bool, public_batches: bool) -> AccountedEvent:
    """Of a curve for adaptive gradients. Args, Raises: as `Guarantee.dp_event`; conditions: those of the guarantee."""
    if not adaptive:
        raise UnsupportedMechanism(
            "an event is composed adaptively, and this guarantee is for non-adaptive gradients; use the adaptive "
            "number of the mechanism."
        )
    lines = ["read it with an accountant's default relation, ADD_OR_REMOVE_ONE", conditions]
    if check.flag(public_batches=public_batches) and curve.mu is None:
        curve = Gaussian(curve.public_mu, curve.adjacency, "upper")
        lines.insert(1, "an upper bound: the event is that of the same noise with public batches")
    return AccountedEvent(curve.dp_event(), "\n".join(lines))

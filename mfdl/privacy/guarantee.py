"""A privacy number together with everything it depends on: who sees what, about whom, and how surely.

In: the mu found by an accountant and the circumstances it holds under. Out: epsilon, delta, one honest
sentence, a JSON file. How mu is found is in the other files of this folder; conversions are in `gaussian`.

Whose data are protected is the unit. "record": each record's gradient is clipped, and noise is added to their sum.
"user": the node's mean gradient is clipped, so it is all of the node's data that move it by one record shift. Clipping
records and claiming the user would be wrong by the batch size: a user moves a sum of m clipped gradients by m shifts.
mu is about real-number noise: no guarantee here covers attacks on the low-order bits of floats.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any, Protocol

from .. import check
from ..errors import InvalidInput
from ..files import atomic_write_text
from ..shown import Shown
from ..view import RELEASES
from . import gaussian, words
from .fingerprint import Fingerprint, fingerprint_of_both, short_hash
from .words import EVERY_NODE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
DELTA = 1e-6  # at which words give epsilon, where no target named another
STATED = "as stated in the file, not computed anew"
EDITED = "as edited, not computed"
BOUNDS = ("exact", "upper")
UNITS = ("record", "user")

_TEXTS = ("trust", "participation", "victim", "attacker")
_CHOICES = {"bound": BOUNDS, "release": RELEASES, "unit": UNITS}
_SAME_TO_COMPOSE = ("trust", "adjacency", "clip_norm", "unit", "victim", "attacker", "release")
_FLOATS = ("mu", "clip_norm", "record_shift", "noise_std", "sensitivity", "tolerance")


@dataclasses.dataclass(frozen=True, repr=False)
class Guarantee(Shown):
    """The view of `attacker` is mu-Gaussian-DP for a record of `victim`, or for all its data (`unit`).

    Attributes:
        mu: Gaussian DP parameter, >= 0, numerical slack included; inf when there is no guarantee.
        trust: name of the trust model that says what the attacker sees.
        adjacency: one of `gaussian.ADJACENCIES`.
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        record_shift: how far a record moves a sum of clipped gradients, or a user its clipped mean gradient; fixed
            by adjacency and clip_norm.
        participation: the steps one record (or user) may join, in words.
        victim: label of the node that holds the data, or `EVERY_NODE` for the worst one.
        attacker: who observes, in words.
        adaptive: True if mu also holds when gradients are chosen from what was seen before; False if it
            holds for gradients fixed in advance only.
        bound: "exact" if mu is the mechanism's own parameter up to `tolerance`, "upper" if it may be larger.
        noise_std: standard deviation of the noise, in units of what is clipped: the sum of clipped gradients, or the
            clipped mean gradient at user level.
        sensitivity: L2 sensitivity per unit record_shift, in units of noise of std `noise_std`; may be inf.
        tolerance: relative numerical slack that mu already includes.
        release: which final models the attacker sees, one of `RELEASES`.
        notes: further conditions, in words.
        composed: number of runs that this guarantee covers.
        unit: "record", or "user": all data of the victim; one of `UNITS`.
        by_victim: where each node has a budget of its own, the label and mu of each victim; `mu` is the largest.
        why: where mu is an upper bound or infinite, which rule gave it and what would give a better number; where noise
            that nodes share counts as known, that it does.
        fingerprint: of what was accounted (`Fingerprint.text`); empty for a statement of the caller's own.
        seal: hash of all other fields, written by the accountant. A field changed afterwards (`dataclasses.replace`, an
            edited file) makes it a statement of the caller's own: without fingerprint, so that no mechanism takes it.
        source: where the statement is from, if it was not accounted here; not part of the statement.
        stated_delta: the delta at which words, tables and files give epsilon beside mu: that of the target, or `DELTA`;
            not part of the statement either, which is the whole curve.

    Guarantees:
        A single run, and a file, never state a mu below sensitivity * record_shift / noise_std, and record_shift always
        matches adjacency and clip_norm, so the factor 2 of replace-one cannot get lost.
    Raises:
        InvalidInput: a field is out of range, or two fields contradict each other.
    """

    mu: float
    trust: str
    adjacency: str
    clip_norm: float
    record_shift: float
    participation: str
    victim: str
    attacker: str
    adaptive: bool
    bound: str
    noise_std: float
    sensitivity: float
    tolerance: float
    release: str
    notes: tuple[str, ...] = ()
    composed: int = 1
    unit: str = "record"
    why: str = ""
    fingerprint: str = ""
    seal: str = ""
    by_victim: tuple[tuple[str, float], ...] = ()
    source: str = dataclasses.field(default="", compare=False)
    stated_delta: float = dataclasses.field(default=DELTA, compare=False)

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "mu": check.non_negative_or_inf(mu=self.mu),
            "sensitivity": check.non_negative_or_inf(sensitivity=self.sensitivity),
            "noise_std": check.non_negative(noise_std=self.noise_std),
            "tolerance": check.non_negative(tolerance=self.tolerance),
            "composed": check.integer_at_least(1, composed=self.composed),
            "stated_delta": check.open_unit(stated_delta=self.stated_delta),
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
        expected = gaussian.record_shift(self.adjacency, self.clip_norm)
        if check.positive(record_shift=self.record_shift) != expected:
            raise InvalidInput(
                f"record_shift must be {expected!r} for clip_norm={self.clip_norm!r} under {self.adjacency}, "
                f"got {self.record_shift!r}; use record_shift(adjacency, clip_norm)."
            )
        checked |= {"by_victim": _of_victims(self.by_victim, checked["mu"])}
        checked |= {"notes": texts(notes=self.notes), "clip_norm": float(self.clip_norm), "record_shift": expected}
        self._set(**checked)
        if self.composed == 1:
            self._set(mu=max(self.mu, self._require_least_mu()))
        for name in ("why", "fingerprint", "seal", "source"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"{name} must be a text, got {getattr(self, name)!r}.")
        if self.fingerprint:
            Fingerprint.parse(self.fingerprint)
        if (self.seal or self.fingerprint) and self.seal != self._digest(self.fingerprint):
            self._set(fingerprint="", seal="", source=edited(self.source))

    def _require_least_mu(self) -> float:
        """sensitivity * record_shift / noise_std, below which no mu can be."""
        least = gaussian.mu_from_noise_std(self.sensitivity, self.record_shift, self.noise_std)
        if self.mu < least * (1 - 1e-12):  # 1e-12: a caller may have multiplied in another order
            raise InvalidInput(
                f"mu must be at least sensitivity * record_shift / noise_std = {least!r}, got {self.mu!r}."
            )
        return least

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _digest(self, fingerprint: str) -> str:
        """16 hex digits of everything that is stated."""
        fields = {name: value for name, value in self._stated().items() if name not in ("seal", "fingerprint")}
        return short_hash(fingerprint, json.dumps(fields, sort_keys=True))

    def sealed(self, fingerprint: str) -> Guarantee:
        """The same as the answer to a question: for those who computed it."""
        stated = copy.copy(self)
        stated._set(fingerprint=fingerprint, seal=self._digest(fingerprint))
        return stated

    # ---- numbers -----------------------------------------------------------------------------------------

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at this delta, rounded up; see `gaussian.epsilon_from_mu`."""
        return gaussian.epsilon_from_mu(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """Smallest delta at this epsilon, rounded up; see `gaussian.delta_from_mu`."""
        return gaussian.delta_from_mu(self.mu, epsilon)

    def renyi_epsilon(self, order: float) -> float:
        """Rényi bound order * mu^2 / 2, rounded up; see `gaussian.renyi_epsilon`."""
        return gaussian.renyi_epsilon(self.mu, order)

    # ---- words -------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        """The guarantee in one sentence that leaves no condition out; numbers are shown rounded up."""
        return words.sentence(self)

    def __str__(self) -> str:
        return self.sentence()

    def _sentence(self) -> str:
        return words.paragraph(self)

    def _figure(self) -> Figure | None:
        return words.figure(self)

    def _rows(self) -> list[tuple[str, str]]:
        return words.rows(self)

    @property
    def epsilon_in_words(self) -> str:
        """epsilon, rounded up, at `stated_delta`."""
        return words.epsilon_at(self)

    # ---- composition -------------------------------------------------------------------------------------

    def compose_with(self, other: Guarantee) -> Guarantee:
        """The guarantee of both runs seen together: mu^2 adds up.

        The runs must have independent noise, and each must start from public data or from models that the
        attacker already knows; a run that continues from unseen models is one longer run instead.

        Returns:
            A Guarantee with mu = sqrt(mu_1^2 + mu_2^2), rounded up. Its noise_std is the smaller of the two
            and its sensitivity is stated in that unit.

        Guarantees:
            Holds also when the second run is chosen after seeing the first. "exact" only if both are and
            there is one victim (the worst node of each run need not be the same).
        Raises:
            InvalidInput: either number is not adaptive, or the two differ in trust model, adjacency,
                clip_norm, unit, victim, attacker or release.
        """
        if not isinstance(other, Guarantee):
            raise InvalidInput(
                f"other must be a Guarantee, got {type(other).__name__}; a guarantee by secret batches takes this one: "
                "secret.compose_with(public)."
            )
        for which, guarantee in (("this", self), ("the other", other)):
            if not guarantee.adaptive:
                raise InvalidInput(
                    f"only adaptive guarantees compose, and {which} one is for gradients fixed in advance; "
                    "use the adaptive number of that mechanism."
                )
        for name in _SAME_TO_COMPOSE:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InvalidInput(f"guarantees compose only for the same {name}, got {mine!r} and {theirs!r}.")
        both = fingerprint_of_both(self, other)
        same_participation = self.participation == other.participation
        noise_std = min(self.noise_std, other.noise_std)
        both_exact = self.bound == other.bound == "exact"
        composed = dataclasses.replace(
            self,
            mu=gaussian.compose([self.mu, other.mu]),
            participation=self.participation
            if same_participation
            else f"{self.participation}, then {other.participation}",
            bound="exact" if both_exact and self.victim != EVERY_NODE else "upper",
            noise_std=noise_std,
            sensitivity=gaussian.compose([self._sensitivity_at(noise_std), other._sensitivity_at(noise_std)]),
            tolerance=max(self.tolerance, other.tolerance),
            composed=self.composed + other.composed,
            by_victim=_composed_by_victim(self, other),
            fingerprint="",
            seal="",
            **said_of_both(self, other),
        )
        return composed.sealed(both) if both else composed

    def _sensitivity_at(self, noise_std: float) -> float:
        """The sensitivity in units of noise of another, not larger, standard deviation."""
        if noise_std == self.noise_std:
            return self.sensitivity
        return 0.0 if noise_std == 0 else self.sensitivity * (noise_std / self.noise_std)

    # ---- files -------------------------------------------------------------------------------------------

    def _stated(self) -> dict[str, Any]:
        """What is stated, as JSON values; infinity is the text "inf"."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.compare}
        for name in _FLOATS:
            if fields[name] == math.inf:
                fields[name] = "inf"
        each = [[label, "inf" if mu == math.inf else mu] for label, mu in fields.pop("by_victim")]
        # left out where it is empty, as a seal is over what stands here
        return {"format": FORMAT, **fields, "notes": list(self.notes), **({"by_victim": each} if each else {})}

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; infinity is the text "inf"; `epsilon` is that of mu at `stated_delta`."""
        epsilon = self.epsilon(self.stated_delta)
        told = {"stated_delta": self.stated_delta, "epsilon": "inf" if epsilon == math.inf else epsilon}
        return {**self._stated(), **told}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Guarantee:
        """The inverse of `to_dict`; the fields are checked as in the constructor.

        What a file claims is not computed anew, and the guarantee says so. Files written before there were units have
        no `unit` and speak of records; before there were fingerprints they have none.

        Raises:
            InvalidInput: another format, a missing or unknown field, or a value that is not allowed.
        """
        if not isinstance(data, dict):
            raise InvalidInput(f"a guarantee must be a JSON object, got {type(data).__name__}.")
        version = data.get("format")
        if isinstance(version, bool) or version != FORMAT:
            raise InvalidInput(f"format of a guarantee must be {FORMAT}, got {version!r}.")
        absent = {"unit": "record", "why": "", "fingerprint": "", "seal": "", "stated_delta": DELTA, "by_victim": []}
        data = {**absent, **data}
        data.pop("epsilon", None)  # of mu, computed anew
        names = [field.name for field in dataclasses.fields(cls) if field.name != "source"]
        missing = [name for name in names if name not in data]
        unknown = [str(name) for name in data if name != "format" and name not in names]
        if missing or unknown:
            raise InvalidInput(
                "a guarantee file must have exactly the fields of Guarantee; "
                f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}."
            )
        fields = {name: data[name] for name in names}
        for name in _FLOATS:
            if isinstance(fields[name], str) and fields[name] == "inf":
                fields[name] = math.inf
        if not isinstance(fields["notes"], list | tuple):
            raise InvalidInput(f"notes must be a list of texts, got {fields['notes']!r}.")
        try:
            read = cls(**{**fields, "notes": tuple(fields["notes"])}, source=STATED)
            read._require_least_mu()
        except OverflowError:  # JSON integers have no size limit
            raise InvalidInput("a guarantee has a number that is too large for a float.") from None
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
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(f"cannot read {str(path)!r}: {error.strerror}.") from None
        except (ValueError, RecursionError):
            raise InvalidInput(
                f"{str(path)!r} is not a JSON file; it should be one written by Guarantee.save."
            ) from None
        try:
            return cls.from_dict(data)
        except InvalidInput as error:
            raise InvalidInput(f"{str(path)!r}: {error}") from None


class _Said(Protocol):
    """What a guarantee says beside its numbers."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Further conditions."""

    @property
    def why(self) -> str:
        """Which rule gave the number."""

    @property
    def source(self) -> str:
        """Where the statement is from."""


def said_of_both(this: _Said, other: _Said) -> dict[str, Any]:
    """The conditions, reasons and origins of two runs seen together: all that either rests on."""
    sources = [text for each in (this, other) for text in each.source.split("; ") if text]
    return {
        "notes": tuple(dict.fromkeys(this.notes + other.notes)),
        "why": " ".join(dict.fromkeys(filter(None, (this.why, other.why)))),
        "source": "; ".join(dict.fromkeys(sources)),
    }


def texts(**named: Any) -> tuple[str, ...]:
    """A tuple of texts. Raises: InvalidInput: anything else."""
    name, given = check.one(named)
    items = check.listed("texts", **named)
    if not all(isinstance(text, str) for text in items):
        raise InvalidInput(f"{name} must be a list of texts, got {given!r}.")
    return tuple(items)


def edited(source: str) -> str:
    """Where a statement comes from that is no longer the one that was computed."""
    return "; ".join(dict.fromkeys([*filter(None, source.split("; ")), EDITED]))


def _of_victims(given: Any, mu: float) -> tuple[tuple[str, float], ...]:
    """Pairs (label, mu) as they are kept. Raises: InvalidInput: others, a label twice, one above that of everybody."""
    try:
        pairs = tuple((label, math.inf if value == "inf" else float(value)) for label, value in given)
    except (TypeError, ValueError):
        raise InvalidInput(f"by_victim must be pairs of a label and its mu, got {check.said(given)}.") from None
    labels = {label for label, _ in pairs if isinstance(label, str)}
    if len(labels) != len(pairs):
        raise InvalidInput("by_victim must name each victim once, by a text.")
    if any(not 0 <= value <= mu * (1 + 1e-12) for _, value in pairs):
        raise InvalidInput(f"by_victim must hold numbers from 0 to mu = {mu!r}, the largest of them.")
    return pairs


def _composed_by_victim(one: Guarantee, other: Guarantee) -> tuple[tuple[str, float], ...]:
    """mu of each victim over both runs; where one says nothing of a victim, what it says of everybody."""
    mine, theirs = dict(one.by_victim), dict(other.by_victim)
    named = list(dict.fromkeys([*mine, *theirs]))
    return tuple((u, gaussian.compose([mine.get(u, one.mu), theirs.get(u, other.mu)])) for u in named)

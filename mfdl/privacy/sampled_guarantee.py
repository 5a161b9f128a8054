"""A guarantee that counts on secret random batches, with everything it depends on: epsilon at delta, and no mu.

The loss of a sampled mechanism is no Gaussian's, so there is no mu that says it: what would be asked of one is refused.
The numbers are those of an accountant (`curves.PoissonGaussian`); who may count on it, and for which algorithms, is
`mfdl.sampled`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from .. import check
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..shown import Shown, rounded_up
from . import gaussian
from .curves import Gaussian, PrivacyCurve
from .curves.base import json_value
from .fingerprint import Fingerprint, fingerprint_of_both, short_hash
from .guarantee import DELTA, Guarantee, edited, said_of_both, texts
from .words import EVERY_NODE, condition_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEXTS = ("trust", "attacker", "participation")


@dataclasses.dataclass(frozen=True, repr=False)
class SampledGuarantee(Shown):
    """The view of `attacker` is (epsilon, delta)-DP for one record of any node, along the curve of `accountant`.

    It holds for gradients chosen adaptively from all messages, while the draws of batches and the noise stay secret,
    are independent, and nothing else that is seen follows who takes part (docs/sampling.md). Always an upper bound.

    Attributes:
        accountant: noise multiplier, rate, steps and adjacency, and epsilon and delta of them.
        trust, attacker: name of the trust model, and who observes, in words; every message is seen.
        participation: the sampling, in words.
        clip_norm: C, bound on the norm of one record's gradient.
        noise_std: nu, std of the base noise on sums of clipped gradients.
        sensitivity: sqrt of the largest [Sigma^+]_uu over victims u and steps, Sigma the covariance over nodes of the
            noise that the attacker does not know, per unit nu^2; inf where a combination shows u's gradient without
            noise.
        why: what makes it infinite, or which noise counts as known; may be empty.
        notes: further conditions, in words: those of runs with public batches, as a Lipschitz constant.
        fingerprint, seal: as in `Guarantee`: edited, it is a statement of the caller's own, which no mechanism takes.
        source: where the statement, or that of a run in it, is from, if it was not accounted here.
        stated_delta: the delta at which words give epsilon.

    Raises: InvalidInput: a field out of range; an accountant of more noise than the other fields say.
    """

    accountant: PrivacyCurve
    trust: str
    attacker: str
    participation: str
    clip_norm: float
    noise_std: float
    sensitivity: float
    why: str = ""
    fingerprint: str = ""
    seal: str = ""
    notes: tuple[str, ...] = ()
    source: str = dataclasses.field(default="", compare=False)
    stated_delta: float = dataclasses.field(default=DELTA, compare=False)

    victim = EVERY_NODE
    unit = "record"
    adaptive = True
    release = "not applicable"

    def __post_init__(self) -> None:
        check.instance(PrivacyCurve, accountant=self.accountant)
        check.open_unit(stated_delta=self.stated_delta)
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise InvalidInput(f"{name} must be a non-empty text, got {getattr(self, name)!r}.")
        most = noise_multiplier(self.noise_std, self.clip_norm, self.sensitivity)
        if self.accountant.noise_multiplier > most:
            raise InvalidInput(
                f"the accountant's noise multiplier must be at most noise_std / (clip_norm * sensitivity) = {most!r}, "
                f"got {self.accountant.noise_multiplier!r}."
            )
        self._set(notes=texts(notes=self.notes))
        if self.fingerprint:
            Fingerprint.parse(self.fingerprint)
        if (self.seal or self.fingerprint) and self.seal != self._digest(self.fingerprint):
            self._set(fingerprint="", seal="", source=edited(self.source))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _digest(self, fingerprint: str) -> str:
        stated = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.compare}
        stated |= {"accountant": self.accountant.to_dict(), "fingerprint": fingerprint, "seal": ""}
        return short_hash(fingerprint, json.dumps(stated, sort_keys=True))

    def sealed(self, fingerprint: str) -> SampledGuarantee:
        """The same as the answer to a question: for those who computed it."""
        stated = copy.copy(self)
        stated._set(fingerprint=fingerprint, seal=self._digest(fingerprint))
        return stated

    # ---- numbers -----------------------------------------------------------------------------------------

    @property
    def adjacency(self) -> str:
        """One of `gaussian.ADJACENCIES`."""
        return self.accountant.adjacency

    @property
    def composed(self) -> int:
        """How many runs."""
        return self.accountant.runs

    @property
    def bound(self) -> str:
        """What the numbers are: "upper", or "monte-carlo", upper but for a stated probability over samples."""
        return self.accountant.bound

    @property
    def noise_multiplier(self) -> float:
        """noise_std / (clip_norm * sensitivity), rounded down."""
        return self.accountant.noise_multiplier

    def epsilon(self, delta: float) -> float:
        """An epsilon at this delta, never below the true one; see `curves.PrivacyCurve`."""
        return self.accountant.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """A delta at this epsilon, never below the true one."""
        return self.accountant.delta(epsilon)

    @property
    def mu(self) -> NoReturn:
        """Refused by UnsupportedMechanism: no mu says what is lost here."""
        raise UnsupportedMechanism(
            "a guarantee by sampling is no mu-GDP: its loss is no Gaussian's, and a mu that bounds it says next to "
            "nothing; ask for epsilon(delta) or delta(epsilon)."
        )

    def compose_with(self, other: SampledGuarantee | Guarantee, *, bins: str = "fresh") -> SampledGuarantee:
        """The guarantee of both runs seen together: their privacy loss distributions compose, each direction by itself.

        The runs must have independent noise and bins, so keys of their own, and each must start from public data or
        from models that the attacker already knows; the second may be chosen after seeing the first.

        Args:
            other: of secret bins, or a `Guarantee` of mu, with public batches.
            bins: "fresh": every record draws anew for each run. What is composed is certified, also where a run was
                bounded by samples.
        Raises:
            UnsupportedMechanism: Poisson sampling; "shared" bins: they do not compose run by run.
            InvalidInput: another trust model, adjacency, clip_norm, unit, victim or attacker; gradients fixed in
                advance; another `bins`.
        Cost: a few seconds the first time.
        """
        require_known("bins", bins, ("fresh", "shared"))
        if bins == "shared":
            raise UnsupportedMechanism(
                "runs that share their bins do not compose: a bin guessed from one is known in the other; draw anew "
                "(a key for each run), or account for one run of all steps, whose M is the sum of theirs."
            )
        if not isinstance(other, SampledGuarantee | Guarantee):
            raise InvalidInput(f"other must be a SampledGuarantee or a Guarantee, got {type(other).__name__}.")
        if not other.adaptive:
            raise InvalidInput("only adaptive guarantees compose, and the other one is for gradients fixed in advance.")
        for name in ("trust", "adjacency", "clip_norm", "unit", "victim", "attacker"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InvalidInput(f"guarantees compose only for the same {name}, got {mine!r} and {theirs!r}.")
        both = fingerprint_of_both(self, other)
        if isinstance(other, Guarantee):
            weakest, after = self, f"{other.participation} (public batches; released models: {other.release})"
            runs: PrivacyCurve = Gaussian(other.mu, other.adjacency, other.bound, other.composed)
        else:
            weakest, after = min(self, other, key=lambda each: each.noise_multiplier), other.participation
            runs = other.accountant
        composed = dataclasses.replace(
            weakest,
            accountant=self.accountant.composed_with(runs),
            participation=f"{self.participation}, then {after}",
            stated_delta=self.stated_delta,
            fingerprint="",
            seal="",
            **said_of_both(self, other),
        )
        return composed.sealed(both) if both else composed

    # ---- words -------------------------------------------------------------------------------------------

    @property
    def epsilon_in_words(self) -> str:
        """epsilon, rounded up, at `stated_delta`."""
        delta = self.stated_delta
        return f"epsilon = {rounded_up(self.epsilon(delta), 4)} at delta = {delta:g}"

    def sentence(self) -> str:
        """The guarantee in one sentence that leaves no condition out; numbers are shown rounded up."""
        finite = self._finite
        what = (
            "has no finite guarantee"
            if not finite
            else f"is covered by {self.epsilon_in_words} ({self.accountant.bound_in_words})"
        )
        parts = [
            f"Trust model {self.trust}: against {self.attacker}, a record of {self.victim} {what}",
            f"under {self.adjacency} adjacency with clipping norm {self.clip_norm:g}",
            f"noise of multiplier {self.noise_multiplier:.6g} on {self.accountant.noise_on}",
            f"with {self.participation}, by draws that stay secret",
            "for gradients that may be chosen adaptively",
            *([self.accountant.remark(self.stated_delta)] if finite else []),
            *self.notes,
            self.source,
        ]
        return "; ".join(filter(None, parts)) + "." + (f" {self.why}" if self.why else "")

    def __str__(self) -> str:
        return self.sentence()

    @property
    def _finite(self) -> bool:
        """Whether anything is guaranteed: every run has noise."""
        return math.isfinite(self.accountant.public_mu)

    def _sentence(self) -> str:
        strength = self.epsilon_in_words if self._finite else "no finite epsilon"
        number = (
            f"{strength} for a record of {self.victim} against {self.attacker} ({self.trust}), {self.adjacency}, clip "
            f"{self.clip_norm:g}, noise {self.noise_std:.4g}, {self.participation}"
        )
        runs = "" if self.composed == 1 else f"{self.composed} runs"
        return "; ".join(filter(None, (number, runs, *self.notes, self.source)))

    def _rows(self) -> list[tuple[str, str]]:
        sensitivity = rounded_up(self.sensitivity, 6)
        return [
            ("epsilon", f"{self.epsilon_in_words} ({self.accountant.bound_in_words})"),
            ("whose data", f"record of {self.victim}, {self.adjacency} adjacency"),
            ("against", f"{self.attacker} (trust model {self.trust})"),
            ("gradients", "may be adaptive"),
            ("participation", f"{self.participation}, by secret draws"),
            ("noise", f"std {self.noise_std:.6g} for clip norm {self.clip_norm:g}, sensitivity {sensitivity}"),
            *condition_rows(self),
        ]

    def _figure(self) -> Figure | None:
        return None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; infinity is the text "inf"."""
        epsilon = self.epsilon(self.stated_delta)
        fields = {**dataclasses.asdict(self), **self.accountant.to_dict()}
        del fields["accountant"]
        fields |= {"victim": self.victim, "unit": self.unit, "adaptive": self.adaptive, "bound": self.bound}
        fields |= {"epsilon": epsilon, "method": self.accountant.method, "adjacency": self.adjacency}
        fields |= {"noise_multiplier": self.noise_multiplier, "composed": self.composed}
        fields |= self.accountant.facts(self.stated_delta)
        return {name: json_value(value) for name, value in fields.items()}


def noise_multiplier(noise_std: float, clip_norm: float, sensitivity: float) -> float:
    """noise_std / (clip_norm * sensitivity), rounded down; 0 where the sensitivity is infinite.

    >>> noise_multiplier(3.0, 1.0, 1.5), noise_multiplier(3.0, 1.0, float("inf"))
    (1.9999999999999996, 0.0)
    """
    mu = gaussian.mu_from_noise_std(sensitivity, check.positive(clip_norm=clip_norm), noise_std)
    if mu == 0:
        raise InvalidInput("sensitivity must be > 0: a node's own injected sum always shows its gradient.")
    return 0.0 if math.isinf(mu) else math.nextafter(math.nextafter(1 / mu, 0.0), 0.0)

"""What a privacy number is computed for: the question about an algorithm, its fingerprint, and the target of the noise.

The target may be a budget for each node: sensitivity_u shift / nu <= mu_u, by noise that each node scales by 1 / mu_u.
With D = diag(mu_u / max mu), scaled noise D^-1 N has the view Gram X_u (mu_u / max mu)^2 wherever every message is
seen, whoever holds or knows the noise: [(D^-1 S D^-1)^+]_uu = D_uu^2 [S^+]_uu for e_u in the range of S, as both are
the largest (v_u)^2 / (v^T S v), at v and at D^-1 v. So X = D X~ D is the problem of equal budgets with the error Gram
D^-1 H D^-1. Where messages are hidden the losses are those of the scaled noise itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism, did_you_mean, require_known
from ..participation import Participation
from ..trust import TrustModel
from ..trust.view import View
from . import gaussian
from .owners import Owners

if TYPE_CHECKING:
    from .curves import MonteCarlo, PrivacyCurve


UNITS = ("record", "user")
BOUNDS = ("tightest", "renyi")
SEPARATOR = "."
LIPSCHITZ_NOTE = "assuming that the local maps x - eta g(x) are Lipschitz with constant"
OF_DOORS = {
    **dict.fromkeys(("noise_std", "noise_multiplier"), "mfdl.account"),
    **dict.fromkeys(("mu", "epsilon", "delta"), "mfdl.calibrate"),
    **dict.fromkeys(("victim", "victims"), "mfdl.losses"),
}
"""Keywords of the functions that take a privacy."""
MAX_RATIO = 1e6  # of the largest budget to the least: a share of noise fainter than that could pass for rounding


@dataclasses.dataclass(frozen=True)
class Privacy:
    """The conditions of a privacy number: `account`, `calibrate`, `losses`, `pairwise` and `plan` take it.

    >>> from mfdl import trust
    >>> Privacy(trust.LDP(), adjacency="replace-one", clip_norm=1.0).record_shift
    2.0

    Attributes:
        trust: who sees and knows what. With secret sampling hidden messages count as seen for adaptive gradients,
            unless the attacker knows all models. Left out with a `View`, whose matrices say it.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        participation: default the algorithm's own; with one per node, each victim is held to its own. Left out with
            secret sampling. Needed with a `View`, and for an algorithm by its name.
        release: "none", "average" or "all" final models published, where messages are hidden; default the trust model's
            own, `trust.default_release`. Left out with secret sampling.
        unit: "record", or "user" for all data of a node, which needs participation in every step.
        method: "exact" or "certified" (fast upper bound); with balls-in-bins also "monte-carlo" or a `MonteCarlo`: by
            samples, upper bounds but for a probability that the guarantee states.
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive; with unit
            "record" only.
        owners: which nodes may hold one and the same record: a number, groups such as [(0, 3)], or `Owners`. Public
            patterns and unit "record" only. Attackers that hold the record are not counted.

    Raises: InvalidInput: no trust model, or owners out of range; the other fields are checked for an algorithm.
    """

    trust: TrustModel = None  # type: ignore[assignment]  # only until `exposures` gives a View its own
    _: dataclasses.KW_ONLY
    adjacency: str
    clip_norm: float
    participation: Participation | None = None
    release: str | None = None
    unit: str = "record"
    method: str | MonteCarlo = "exact"
    lipschitz: float | None = None
    owners: Owners = dataclasses.field(default_factory=Owners)

    def __new__(cls, *_: Any, **named: Any) -> Self:
        known = [field.name for field in dataclasses.fields(cls)]
        for keyword in named:
            if keyword in OF_DOORS:
                raise InvalidInput(f"Privacy takes no {keyword}: give it to {OF_DOORS[keyword]}, beside the privacy.")
            if keyword not in known:
                hint = did_you_mean(keyword, known)
                raise TypeError(
                    f"Privacy() got an unexpected keyword argument {keyword!r}{hint} Known: {', '.join(known)}."
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.trust is not None:
            check.instance(TrustModel, trust=self.trust)
        object.__setattr__(self, "owners", Owners.from_value(self.owners))

    def require_only(self, allowed: Collection[str], who: str) -> None:
        """Raises: InvalidInput: a field that is not among those allowed differs from its default."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            default = Owners() if field.name == "owners" else field.default
            if field.name not in allowed and value != default:
                raise InvalidInput(f"{who} takes no {field.name}, got {value!r}; leave it out of Privacy.")

    @property
    def record_shift(self) -> float:
        """How far one record moves a sum of clipped gradients. Raises: InvalidInput: adjacency or clip_norm."""
        return gaussian.record_shift(self.adjacency, self.clip_norm)

    def scheme(self, algorithm: LinearAlgorithm | View) -> Participation:
        """The participation of the question, public or secret."""
        if self.participation is None:
            if isinstance(algorithm, View):
                raise InvalidInput(
                    "a View needs Privacy(participation=...), e.g. participation=mfdl.EveryStep(T): matrices do not "
                    "say which steps a record joins."
                )
            check.instance(LinearAlgorithm, algorithm=algorithm)
            return algorithm.participation
        check.instance(Participation, participation=self.participation)
        return self.participation

    def participation_in(self, algorithm: LinearAlgorithm) -> Participation:
        """The scheme, if it has public patterns. Raises: UnsupportedMechanism: it has none."""
        scheme = self.scheme(algorithm)
        scheme.require_public()
        return scheme


@dataclasses.dataclass(frozen=True)
class Target:
    """The target of calibrated noise: a mu > 0, or an epsilon > 0 at a delta in (0, 1).

    Attributes: by: which bounds choose the noise of Poisson sampling.
    Raises: InvalidInput: none or two targets, or a number out of range.
    """

    mu: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    by: str = "tightest"

    def __post_init__(self) -> None:
        require_known("by", self.by, BOUNDS)
        if (self.mu is None) == (self.epsilon is None):
            raise InvalidInput(
                "give exactly one target: mu, or epsilon with delta; mfdl.calibrate also takes noise_std."
            )
        if self.mu is not None:
            check.positive(mu=self.mu)
            return
        if self.delta is None:
            raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
        check.positive(epsilon=self.epsilon)
        check.open_unit(delta=self.delta)

    @property
    def largest_mu(self) -> float:
        if self.mu is not None:
            return float(self.mu)
        assert self.epsilon is not None
        assert self.delta is not None
        return gaussian.mu_from_epsilon(float(self.epsilon), float(self.delta))

    def missed_by(self, curve: PrivacyCurve) -> bool:
        if self.epsilon is not None and self.delta is not None and curve.epsilon(self.delta) > self.epsilon:
            return True
        if curve.mu is None and self.epsilon is None:
            raise UnsupportedMechanism("this privacy curve is not Gaussian, so it has no mu; give epsilon and delta.")
        return curve.mu is not None and curve.mu > self.largest_mu


def require_noise(noise_std: float | None, noise_multiplier: float | None) -> None:
    """Raises: InvalidInput: none or two, or one out of range."""
    if (noise_std is None) == (noise_multiplier is None):
        raise InvalidInput("give exactly one of noise_std and noise_multiplier.")
    for name, value in (("noise_std", noise_std), ("noise_multiplier", noise_multiplier)):
        if value is not None:
            check.non_negative(**{name: value})


def require_unit(unit: str, participation: Participation, *, lipschitz: float | None = None) -> None:
    """Refuses a unit of privacy that these circumstances cannot protect; "record" is never refused.

    Args: lipschitz: the constant that a guarantee would rest on: of sums of clipped per-record gradients, as the
        clipped mean of a node is another map.
    """
    require_known("unit", unit, UNITS)
    if unit == "record":
        return
    check.instance(Participation, participation=participation)
    if not participation.in_every_step:
        raise InvalidInput(
            f"unit 'user' needs participation in every step, got {participation.describe()}: a user's data take part "
            f"in every step; build the algorithm with EveryStep({participation.num_steps})."
        )
    if lipschitz is not None:
        raise InvalidInput(
            f"unit 'user' does not take lipschitz={lipschitz}: the constant is for local maps with "
            "per-record clipping, not for clipped mean gradients; leave lipschitz out."
        )


def lipschitz_notes(lipschitz: float | None) -> tuple[str, ...]:
    return () if lipschitz is None else (f"{LIPSCHITZ_NOTE} {float(lipschitz)!r}",)


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The question in one short text, so that a number is never taken for the answer to another one.

    The algorithm by content, the trust model by name and parameters or by its evaluated masks, the participation by
    scheme and parameters: hashes of 16 hex digits; and the release and the unit as they are.

    >>> Fingerprint("a1", "b2", "c3", "none", "record").text
    'a1.b2.c3.none.record'
    """

    algorithm: str
    trust: str
    participation: str
    release: str
    unit: str

    @classmethod
    def from_question(
        cls,
        algorithm: LinearAlgorithm,
        trust: TrustModel,
        participation: Participation,
        release: str,
        unit: str,
        owners: Owners | None = None,
    ) -> Fingerprint:
        """Cost: no n x n work for shipped trust models."""
        scheme = participation_hash(participation, owners)
        return cls(algorithm.content_hash, trust.fingerprint(algorithm), scheme, release, unit)

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """The inverse of `text`. Raises: InvalidInput: another form."""
        parts = text.split(SEPARATOR) if isinstance(text, str) else []
        if len(parts) != 5:
            raise InvalidInput(f"a fingerprint must have 5 parts joined by {SEPARATOR!r}, got {text!r}.")
        return cls(*parts)

    @property
    def text(self) -> str:
        return SEPARATOR.join(dataclasses.astuple(self))

    def require(self, other: Fingerprint, *, subject: str) -> None:
        """Raises: InvalidInput: this was computed for something else than `other`, by the first difference."""
        theirs_of = dataclasses.asdict(other)
        for field, mine in dataclasses.asdict(self).items():
            if mine != (theirs := theirs_of[field]):
                raise InvalidInput(
                    f"{subject} for another {field.replace('trust', 'trust model')} ({mine} instead of {theirs}); "
                    "calibrate or account anew."
                )


def participation_hash(participation: Participation, owners: Owners | None = None) -> str:
    scheme = json.dumps(participation.to_dict(), sort_keys=True)
    if owners is None or not owners.shared:
        return short_hash(scheme)
    return short_hash(scheme, json.dumps(owners.to_dict()))


def short_hash(*parts: str | bytes) -> str:
    """16 hex digits of the parts in order.

    >>> short_hash("ab", "c") == short_hash("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def budgets_by_node(labels: tuple[Hashable, ...], mu: Mapping[Hashable, float]) -> FloatArray:
    """mu_u in the order of the nodes, shape (n,), from a budget for each of their labels.

    Raises: InvalidInput: a node without a budget, a label of no node, or budgets further apart than MAX_RATIO.
    """
    if unknown := [label for label in mu if label not in set(labels)]:
        few = ", ".join(map(repr, labels[:5]))
        raise InvalidInput(f"mu names {unknown[0]!r}, which is no node; nodes are called {few}{_more(labels, 5)}.")
    if missing := [label for label in labels if label not in mu]:
        few = ", ".join(map(repr, missing[:5]))
        raise InvalidInput(
            f"mu must have a budget > 0 for every node, and has none for {few}{_more(missing, 5)} of {len(labels)}; "
            "give those without a wish the largest budget that you would accept, or one number for all."
        )
    wanted = np.array([check.positive(**{f"mu of node {label!r}": mu[label]}) for label in labels])
    if wanted.max() > MAX_RATIO * wanted.min():
        raise InvalidInput(
            f"budgets must lie within a factor of {MAX_RATIO:g}, got {wanted.min():g} to {wanted.max():g}; raise the "
            "least or lower the largest."
        )
    return wanted


def budgets_by_pair(labels: tuple[Hashable, ...], mu: ArrayLike | Mapping[Hashable, float]) -> FloatArray:
    """mu[victim, attacker] in the order of the nodes, shape (n, n), from an array or {(victim, attacker): mu} by label.

    Its diagonal is the largest budget.
    """
    n, pairs = len(labels), [(v, u) for v in labels for u in labels if u != v]
    if not isinstance(mu, Mapping):
        given = check.as_array(mu=mu)
        if given.shape != (n, n):
            raise InvalidInput(
                f"mu must be a number, or budgets by pair, shape ({n}, {n}) or {{(victim, attacker): mu}}, got shape "
                f"{given.shape}."
            )
        mu = {(labels[i], labels[j]): given[i, j] for i in range(n) for j in range(n) if i != j}
    budgets = iter(budgets_by_node(tuple(pairs), mu))
    wanted = np.array([[math.nan if u == v else next(budgets) for u in labels] for v in labels])
    return np.where(np.isnan(wanted), np.nanmax(wanted), wanted)


def scaled_to_budgets(algorithm: LinearAlgorithm, budgets: FloatArray) -> LinearAlgorithm:
    """The algorithm with node u's noise multiplied by max mu / mu_u.

    Raises: UnsupportedMechanism: noise on messages, or of a class of one's own.
    """
    if (budgets == budgets[0]).all() or algorithm.noise.is_zero:
        return algorithm
    if algorithm.noise_on_messages or algorithm.noise.slots_per_step != algorithm.num_nodes:
        raise UnsupportedMechanism(
            f"budgets per node scale the noise on each node's gradient, but {algorithm.name} adds noise "
            "to messages; give one mu for all nodes, or take a mechanism with noise on gradients."
        )
    copy = dataclasses.replace(algorithm, noise=algorithm.noise.scaled(budgets.max() / budgets))
    return copy.known_plain() if algorithm.is_plain else copy


def _more(labels: tuple[Hashable, ...] | list[Hashable], named: int) -> str:
    return f" and {len(labels) - named} more" if len(labels) > named else ""

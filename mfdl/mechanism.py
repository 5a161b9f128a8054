"""Mechanism = algorithm + noise scale + guarantee under a trust model.

`account` reads the guarantee of a given noise; `calibrate` finds the least noise for a target and never exceeds
it. Both call the same functions, and the executor runs the very algorithm that was accounted.

The unit of privacy, a record or a user's whole data set, is fixed here and stays with the mechanism: its guarantee
says it, the executor clips accordingly, and mechanisms of two units never emit the same noise.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import archive, check, saved
from .algorithms import LinearAlgorithm
from .error_gram import Estimate
from .errors import InvalidInput
from .keywords import refusing
from .noise_error import estimated_noise_error
from .participation import Participation
from .privacy import budgets
from .privacy.accounting import VictimLoss
from .privacy.fingerprint import Fingerprint, participation_hash
from .privacy.guarantee import EVERY_NODE, Guarantee
from .privacy.losses import Losses, Question, notes_of, require_noise, require_same, require_unit, target_mu
from .privacy.sensitivity import Sensitivity
from .progress import Progress
from .shown import Shown
from .trust import TrustModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .privacy.sampled_guarantee import SampledGuarantee

_GIVEN_NOISE = "what a given noise guarantees is mfdl.account(algorithm, noise_std=...), its mechanism mfdl.with_noise"
_TARGET = "it is a target of mfdl.calibrate; what a guarantee says of epsilon and delta is guarantee.epsilon(delta)"
_EACH_VICTIM = (
    "every node counts; of each victim: mfdl.Losses.of(algorithm, question).by_victim(noise_std), with secret batches "
    "mfdl.sampled.by_victim(algorithm, ...)"
)
_PUBLIC = "secret batches are accounted for one record, all messages seen; mfdl.account has it for public participation"
ELSEWHERE = {
    **dict.fromkeys(("victim", "victims"), _EACH_VICTIM),
    **dict.fromkeys(("noise_std", "noise_multiplier"), _GIVEN_NOISE),
    "mu": f"{_TARGET}; secret batches have no mu, and take epsilon with delta",
    **dict.fromkeys(("epsilon", "delta"), _TARGET),
    **dict.fromkeys(("release", "lipschitz", "unit", "participation"), _PUBLIC),
    "by": "it chooses among bounds of secret batches, in calibrate of an algorithm of BallsInBins or PoissonSampling",
}
"""Of arguments that only other functions take: which ones, and what to give them."""
ROUNDING = 1e-6
"""Relative: how far numbers of one question may lie apart that other machines or solvers' tolerances gave."""


class Accounted(Shown):
    """How an algorithm with its guarantee shows itself: by what both say."""

    algorithm: LinearAlgorithm
    guarantee: Guarantee | SampledGuarantee

    def _sentence(self) -> str:
        algorithm, told = self.algorithm, self.guarantee._sentence()
        return f"{algorithm.name} on {algorithm.num_nodes} nodes, {algorithm.num_steps} steps: {told}"

    def _rows(self) -> list[tuple[str, str]]:
        return [*self.guarantee._rows(), *self.algorithm._rows()]

    def _figure(self) -> Figure | None:
        return self.algorithm._figure()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mechanism(Accounted):
    """An algorithm with the standard deviation of its base noise and what that guarantees.

    Attributes:
        algorithm: the LinearAlgorithm that trains and was accounted.
        noise_std: nu, standard deviation of Z on sums of clipped gradients, or on clipped mean gradients at user
            level; 0 without noise.
        clip_norm: clipping threshold of a record's gradient, or of a node's mean gradient at user level, > 0.
        guarantee: what holds, and under which circumstances.
        sensitivity: of the algorithm's encoder, per unit record shift and unit nu.
        lipschitz: L on which the guarantee rests (shift reduction), or None if it rests on none.
        trust: the trust model that it was accounted under, where it is at hand.

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
    trust: TrustModel | None = None

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
        if stated.notes != notes_of(self.algorithm, stated.release, self.lipschitz):
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
        if self.trust is not None:
            self._require_trust(self.trust)

    def _require_trust(self, trust: TrustModel) -> None:
        stated = self.guarantee
        if trust.fingerprint(self.algorithm) != Fingerprint.parse(stated.fingerprint).trust:
            raise InvalidInput(
                f"the guarantee is for another trust model: it is under {stated.trust!r}, against {stated.attacker}, "
                f"and the one given is {trust.name!r}, against {trust.attacker}; give the one that it is under. What "
                "the algorithm guarantees under another one is what mfdl.account says."
            )

    def require_unchanged(self) -> None:
        """Raises InvalidInput where the algorithm is not, or no longer, the one that was accounted.

        Cost: that of the algorithm's content hash.
        """
        accounted = Fingerprint.parse(self.guarantee.fingerprint)
        scheme = participation_hash(self.algorithm.participation)
        own = dataclasses.replace(accounted, algorithm=self.algorithm.content_hash, participation=scheme)
        accounted.require(own, what="the guarantee is")

    # ---- files -------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the mechanism to exactly this path, whole or not at all; nothing in it is code, and no key.

        Held: the maps, the noise by encoder and factor, gossip with its labels, participation, the factorization, noise
        scale, clipping, the guarantee with seal and fingerprint, and a trust model of `mfdl.trust` by its parameters.

        Raises: InvalidInput: the path cannot be written, or the algorithm has noise, gossip or participation of a class
            of your own, which is code.
        """
        return saved.write_mechanism(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, anew: bool = True, trust: TrustModel | None = None) -> Mechanism:
        """The mechanism that `save` wrote: the same content hash, so the same noise, bit for bit; no noise is searched.

        Args:
            anew: account the guarantee anew at the noise of the file. False, or a trust model of your own that is not
                given: the guarantee is taken as stated, and it and the mechanism say so (`guarantee.source`).
            trust: who sees and knows what, where you do not leave that to the file: the guarantee must be under it.

        Guarantees:
            Recomputed always: the checksum, the content hashes of algorithm and mechanism, the fingerprint of algorithm
            and participation (and of the trust model, where there is one), the seal, and mu from sensitivity, noise and
            adjacency. With `anew` the sensitivity too: mu is never below what accounting gives here, whatever the file
            says. Without it the sensitivity is trusted: hashes are against damage and careless edits, not forgers.
        Raises: InvalidInput: no such file, another kind or format, an edited or damaged one, a guarantee under another
            trust model or with a smaller mu than is accounted.
        Cost: of `anew`, that of the accounting in `account`.
        """
        fields, content_hash = saved.read_mechanism(path)
        with archive.refusing(path, saved.MECHANISM):
            return cls.of_file(fields, content_hash, anew=anew, trust=trust)

    @classmethod
    def of_file(cls, fields: dict[str, Any], content_hash: str, *, anew: bool, trust: TrustModel | None) -> Mechanism:
        """Of what `saved` read: see `load`."""
        mechanism = cls(**fields if trust is None else {**fields, "trust": trust})
        if mechanism.content_hash != content_hash:
            raise InvalidInput(f"its content hash is {mechanism.content_hash}, and {content_hash} was saved.")
        return mechanism._accounted_anew() if anew and mechanism.trust is not None else mechanism

    def _accounted_anew(self) -> Mechanism:
        """The same with a guarantee that was accounted here, whatever the file says."""
        assert self.trust is not None
        stated = self.guarantee
        for method in ("exact",) if stated.bound == "exact" else ("certified", "exact"):
            question = Question(
                self.trust, stated.adjacency, self.clip_norm, None, stated.release, self.unit, method, self.lipschitz
            )
            losses = Losses.of(self.algorithm, question)
            found = losses.guarantee(self.noise_std, each=bool(stated.by_victim))
            found = dataclasses.replace(found, stated_delta=stated.stated_delta)
            if found.seal == stated.seal:
                break
        each = dict(found.by_victim)
        less = [label for label, mu in stated.by_victim if mu < each.get(label, math.inf) * (1 - ROUNDING)]
        if less:
            raise InvalidInput(
                f"its guarantee states mu = {dict(stated.by_victim)[less[0]]!r} for node {less[0]!r}, and accounted "
                f"anew it is {each.get(less[0], math.inf)!r}; calibrate anew, or take it as stated with anew=False."
            )
        if stated.mu < found.mu * (1 - ROUNDING):
            raise InvalidInput(
                f"its guarantee states mu = {stated.mu!r}, and accounted anew it is {found.mu!r}; calibrate or account "
                "anew, or take it as stated with anew=False."
            )
        return of_losses(losses, found)

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

        0 without noise. Of large graphs estimated, as `objective_error` says.
        """
        return self._objective.value

    @property
    def objective_error(self) -> float:
        """Half the width of the 95 % interval of `objective`; 0 where that is exact (`noise_error`)."""
        return self._objective.error

    @functools.cached_property
    def _objective(self) -> Estimate:
        if self.algorithm.noise.is_zero:
            return Estimate(0.0, 0.0)
        found, squared = estimated_noise_error(self.algorithm), self.sensitivity.squared
        return Estimate(squared * found.value, squared * found.error)

    @property
    def injected_noise_std(self) -> float:
        """Root mean square over nodes and steps of the std added to one coordinate of what a node clips."""
        return injected_std(self.algorithm, self.noise_std)

    @property
    def content_hash(self) -> str:
        """16 hex digits of algorithm, noise, clipping and unit: two mechanisms with one hash emit the same noise."""
        return emitted_hash(self.algorithm, self.noise_std, self.clip_norm, self.unit)


def emitted_hash(algorithm: LinearAlgorithm, noise_std: float, clip_norm: float, unit: str = "record") -> str:
    """What decides the noise that a mechanism emits, as 16 hex digits."""
    text = f"{algorithm.content_hash}|{noise_std!r}|{clip_norm!r}"
    if unit != "record":  # hashes from before there were units, and so seeded runs, stay as they were
        text += f"|{unit}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def injected_std(algorithm: LinearAlgorithm, noise_std: float) -> float:
    """Root mean square over nodes and steps of the std that base noise of `noise_std` adds to one coordinate."""
    return noise_std * math.sqrt(float(algorithm.noise.variances().mean()))


@refusing(ELSEWHERE)
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
    progress: Progress = "auto",
) -> Guarantee:
    """The guarantee of a given noise for the worst victim, for adaptive gradients.

    Args:
        trust: who sees and knows what.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        noise_std: nu on sums of clipped gradients, or on clipped mean gradients at user level, >= 0; or
        noise_multiplier: nu / (sensitivity * record_shift); exactly one of the two.
        participation: default the algorithm's own; with one per node, each victim is held to its own.
        release: "none", "average" or "all" final models published, where messages are hidden; default the trust
            model's own, `trust.default_release`.
        method: "exact" or "certified" (fast upper bound).
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive; with
            unit "record" only.
        unit: "record", or "user" for all data of a node, which needs participation in every step.
        progress: as for `victim_losses`.

    Returns: Guarantee; mu is inf without noise, and where the attacker knows what hides a node: `Guarantee.why` says
        whose. Per victim: `mfdl.mechanism.guarantees`, or `mfdl.Losses.of(algorithm, question).by_victim(noise_std)`.
    Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
    Source: arXiv:2510.17480, Theorem 7, with the square of equation (8) and the factor 2 of replace-one restored, and
        its claim for adaptive gradients replaced by the row-space test and shift reduction.
    """
    question = Question(trust, adjacency, clip_norm, participation, release, unit, method, lipschitz)
    require_noise(noise_std, noise_multiplier)  # before any work
    losses = Losses.of(algorithm, question, progress=progress)
    return losses.guarantee(losses.noise_std(noise_std=noise_std, noise_multiplier=noise_multiplier))


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
    question = Question(trust, adjacency, clip_norm, participation, release, unit)
    stated = Losses(algorithm, question, tuple(losses))
    require_same(losses, algorithm, question)  # the release too
    return stated.by_victim(noise_std, adaptive=adaptive)


@refusing(ELSEWHERE)
def calibrate(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    mu: float | Mapping[Hashable, float] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    release: str | None = None,
    method: str = "exact",
    lipschitz: float | None = None,
    unit: str = "record",
    progress: Progress = "auto",
) -> Mechanism:
    """The least noise that meets a target for adaptive gradients, never overshooting it.

    Args: mu > 0, or epsilon > 0 and delta in (0, 1); others as for `account`. mu may be a budget for each node,
        {label: mu_u}: node u then adds its noise max mu / mu_u times, the algorithm of what comes back is that one, and
        `guarantee.by_victim` states each node's mu. Exact where every message is seen; where some are hidden the
        losses of the scaled noise are accounted, and the worst of the nodes decides (docs/howto_budgets.md).
    Raises: InvalidInput: no target or two, an algorithm whose loss is infinite under this trust model, or a unit
        that cannot be protected (`require_unit`); a node without a budget. UnsupportedMechanism: budgets per node for
        noise on messages, or of a class of one's own.
    """
    question = Question(trust, adjacency, clip_norm, None, release, unit, method, lipschitz)
    if isinstance(mu, Mapping):
        check.instance(LinearAlgorithm, algorithm=algorithm)
        if epsilon is not None:
            raise InvalidInput("give exactly one target: mu, or epsilon with delta; budgets per node are given as mu.")
        algorithm = budgets.scaled(algorithm, budgets.of_nodes(algorithm, mu))
    else:
        target_mu(mu, epsilon, delta)  # before any work
    losses = Losses.of(algorithm, question, progress=progress)
    return of_losses(losses, losses.calibrate(mu=mu, epsilon=epsilon, delta=delta))


@refusing(ELSEWHERE)
def with_noise(
    algorithm: LinearAlgorithm,
    *,
    noise_std: float,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    release: str | None = None,
    unit: str = "record",
    progress: Progress = "auto",
) -> Mechanism:
    """The algorithm with a given nu, on sums of clipped gradients (user level: clipped means), and what it guarantees.

    Args: as for `account`. Raises: InvalidInput: an argument out of range, or a unit that cannot be protected.
    """
    check.non_negative(noise_std=noise_std)  # before any work
    question = Question(trust, adjacency, clip_norm, release=release, unit=unit)
    losses = Losses.of(algorithm, question, progress=progress)
    return of_losses(losses, losses.guarantee(noise_std))


def of_losses(losses: Losses, guarantee: Guarantee) -> Mechanism:
    """The mechanism of a guarantee that these losses gave, by `Losses.calibrate` or `Losses.guarantee`.

    Raises: InvalidInput: a guarantee of others.
    """
    clip_norm = float(guarantee.clip_norm)
    worst, trust = losses.worst, losses.question.trust
    return Mechanism(losses.algorithm, guarantee.noise_std, clip_norm, guarantee, worst, losses.rests_on, trust)


@refusing(ELSEWHERE)
def without_noise(
    algorithm: LinearAlgorithm, *, trust: TrustModel, adjacency: str, clip_norm: float, unit: str = "record"
) -> Mechanism:
    """`with_noise` at nu = 0: mu is infinite, which the guarantee says; `unit` decides what is clipped."""
    return with_noise(algorithm, noise_std=0.0, trust=trust, adjacency=adjacency, clip_norm=clip_norm, unit=unit)

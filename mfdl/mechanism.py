"""Mechanism = algorithm + noise scale + guarantee under a trust model, for every participation.

The executor runs the very algorithm that was accounted. The unit of privacy, a record or a user's whole data set, stays
with the mechanism: the executor clips accordingly, and mechanisms of two units never emit the same noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import ArrayLike

from . import archive, check, graphs
from .algorithms import LinearAlgorithm
from .display import Shown
from .errors import InvalidInput, UnsupportedMechanism
from .gossip.sequences import communication_graph
from .objective import ErrorWeights
from .privacy.curves import PrivacyCurve
from .privacy.guarantee import Guarantee
from .privacy.guarantee_texts import EVERY_NODE
from .privacy.losses import Losses
from .privacy.questions import Fingerprint, Privacy, participation_hash, require_unit, short_hash
from .spec import is_storable
from .trust import TrustModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .objective.estimated_grams import Estimate
    from .objective.noise_objective import ExcessLoss
    from .participation.sampling import Sampled

MECHANISM = "mechanism"
ROUNDING = 1e-6
"""Relative: how far numbers of one question may lie apart that other machines or solvers' tolerances gave."""


class Calibrated(Shown):
    """What was calibrated or accounted: noise scale and clipping are read off its guarantee."""

    guarantee: Guarantee

    @property
    def noise_std(self) -> float:
        """nu, standard deviation of Z on sums of clipped gradients, at user level on clipped mean gradients."""
        return self.guarantee.noise_std

    @property
    def clip_norm(self) -> float:
        """Clipping threshold of a record's gradient, or of a node's mean gradient at user level, > 0."""
        return self.guarantee.clip_norm


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mechanism(Calibrated):
    """An algorithm with the standard deviation of its base noise and what that guarantees: what `replay` trains.

    Attributes: trust: the trust model that it was accounted under, where it is at hand.
    Raises: InvalidInput: a guarantee that was not accounted, of another algorithm or participation, of several runs, or
        of a unit that the algorithm cannot have (`require_unit`).
    """

    algorithm: LinearAlgorithm
    guarantee: Guarantee
    trust: TrustModel | None = None

    def __post_init__(self) -> None:
        for name, kind in (("algorithm", LinearAlgorithm), ("guarantee", Guarantee)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(
                    f"{name} of a mechanism must be a {kind.__name__}, got {type(getattr(self, name)).__name__}; "
                    "mfdl.calibrate makes mechanisms."
                )
        require_unit(self.unit, self.algorithm.participation, lipschitz=self.lipschitz)
        guarantee = self.guarantee
        if not (guarantee.fingerprint and guarantee.seal):
            raise InvalidInput(
                "a mechanism needs the guarantee that was accounted for it, and this one was written or edited by "
                "hand; use mfdl.calibrate."
            )
        self.require_unchanged()
        if guarantee.victim != EVERY_NODE or not guarantee.adaptive:
            raise InvalidInput(
                f"a mechanism needs the adaptive guarantee of every node, and this one is for victim "
                f"{guarantee.victim!r}{'' if guarantee.adaptive else ' and non-adaptive gradients'}; use "
                "mfdl.calibrate."
            )
        if guarantee.composed != 1:
            raise InvalidInput(
                f"a mechanism needs the guarantee of one run, and this one is of {guarantee.composed}; calibrate or "
                "account anew."
            )
        trust, accounted = self.trust, Fingerprint.parse(guarantee.fingerprint).trust
        if trust is not None and trust.fingerprint(self.algorithm) != accounted:
            raise InvalidInput(
                f"the guarantee is for another trust model: it is under {guarantee.trust!r}, against "
                f"{guarantee.attacker}, and the one given is {trust.name!r}, against {trust.attacker}; give the one "
                "that it is under. What the algorithm guarantees under another one is what mfdl.account says."
            )

    def require_unchanged(self) -> None:
        """Raises: InvalidInput: the algorithm is not, or no longer, the one that was accounted.
        Cost: that of the algorithm's content hash.
        """
        if self.sampling is not None:
            from .privacy.sampled_views import require_noise_with_gradients

            require_noise_with_gradients(self.algorithm)
        accounted = Fingerprint.parse(self.guarantee.fingerprint)
        scheme = participation_hash(self.algorithm.participation, self.guarantee.owners)
        actual = dataclasses.replace(accounted, algorithm=self.algorithm.content_hash, participation=scheme)
        accounted.require(actual, subject="the guarantee is")

    @property
    def lipschitz(self) -> float | None:
        """L on which the guarantee rests (shift reduction), if any."""
        return self.guarantee.lipschitz

    @property
    def sampling(self) -> Sampled | None:
        scheme = self.algorithm.participation
        return cast("Sampled", scheme) if scheme.secret else None

    def released_to(self, trust: TrustModel) -> str | None:
        """The final models that a view of this trust model holds, as the guarantee says; None: the default."""
        return self.guarantee.release if trust.name == self.guarantee.trust and self.sampling is None else None

    def _sentence(self) -> str:
        algorithm = self.algorithm
        steps = f"{algorithm.num_nodes} nodes, {algorithm.num_steps} steps"
        return f"{algorithm.name} on {steps}: {self.guarantee._sentence()}"

    def _rows(self) -> list[tuple[str, str]]:
        return [*self.guarantee._rows(), *self.algorithm._rows()]

    def _figure(self) -> Figure | None:
        return self.algorithm._figure()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the mechanism to exactly this path, whole or not at all; nothing in it is code, and no key.

        Held are algorithm, factorization, the guarantee with seal and fingerprint, and a trust model of `mfdl.trust`.
        Raises: InvalidInput: the path cannot be written, or a part of the algorithm is of a class of your own.
        """
        return archive.write(path, MECHANISM, self.stored_fields())

    def stored_fields(self) -> dict[str, Any]:
        """Raises: InvalidInput: an algorithm that a file cannot hold, or that would come back as another one."""
        if archive.copied(self.algorithm, "the algorithm").content_hash != self.accounted:
            raise InvalidInput(
                f"algorithm {self.algorithm.name!r} cannot be saved: read back it would not be the one that was "
                "accounted; use plain numbers or texts as node labels, and own classes of mfdl."
            )
        return {
            "content_hash": self.content_hash,
            "algorithm_hash": self.accounted,
            "algorithm": self.algorithm,
            "guarantee": self.guarantee.to_dict(),
            "trust": self.trust if is_storable(self.trust) else None,  # masks of the user's own are code
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, anew: bool = True, trust: TrustModel | None = None) -> Mechanism:
        """The mechanism that `save` wrote: the same content hash, so the same keys, draws and base noise, bit for bit.

        Args:
            anew: account the guarantee anew at the noise of the file. False, or a trust model of your own that is not
                given: the guarantee is taken as stated, and says so (`guarantee.source`).
            trust: where you do not leave that to the file: the guarantee must be under it.
        Guarantees:
            Checked always: the checksum, the content hashes of algorithm and mechanism, the fingerprint of algorithm
            and participation (and of the trust model, where there is one), the seal, and that the curve has no more
            noise than sensitivity, noise and adjacency give. With `anew` no number is below what accounting gives here,
            whatever the file says. Without it the sensitivity is trusted: hashes are against damage and careless edits,
            not forgers.
        Raises: InvalidInput: no such file, another kind or format, an edited or damaged one, a guarantee under another
            trust model or with a smaller mu or epsilon than is accounted; of secret sampling, a trust model of your own
            that is not given.
        Cost: of `anew`, that of the accounting in `account`.
        """
        stored = archive.read(path, MECHANISM)
        with archive.refusing(path, MECHANISM):
            return cls.of_file(stored, anew=anew, trust=trust)

    @classmethod
    def of_file(cls, stored: Mapping[str, Any], *, anew: bool, trust: TrustModel | None) -> Mechanism:
        """From `stored_fields`, of which the guarantee is a claim: see `load`."""
        algorithm, model = stored["algorithm"], stored["trust"] if trust is None else trust
        check.instance(LinearAlgorithm, algorithm=algorithm)
        if model is not None:
            check.instance(TrustModel, trust=model)
        if algorithm.content_hash != stored["algorithm_hash"]:
            raise InvalidInput(
                f"its algorithm has content hash {algorithm.content_hash}, and {stored['algorithm_hash']} was saved: "
                "it is not the one that was accounted; calibrate or account anew."
            )
        guarantee = Guarantee.from_dict(stored["guarantee"])
        if not (guarantee.fingerprint and guarantee.seal):
            raise InvalidInput(
                "its guarantee was edited: it is not the one that was accounted; calibrate or account anew."
            )
        mechanism = cls(algorithm, guarantee, model)
        if mechanism.content_hash != stored["content_hash"]:
            raise InvalidInput(f"its content hash is {mechanism.content_hash}, and {stored['content_hash']} was saved.")
        if not anew:
            return mechanism
        if mechanism.trust is None and mechanism.sampling is not None:
            raise InvalidInput("its trust model is of your own class, which no file holds; give it: trust=....")
        return mechanism if mechanism.trust is None else mechanism._accounted_anew(mechanism.trust)

    def _accounted_anew(self, trust: TrustModel) -> Mechanism:
        old = self.guarantee
        samples, tries = getattr(old.curve, "sampling", None), getattr(old.curve, "trial", 0)
        methods = (samples,) if samples else ("exact",) if old.bound == "exact" else ("certified", "exact")
        for method in methods:
            new = self._guarantee_of(self.algorithm, trust, method, tries)
            if new.seal == old.seal:
                break
        of_old = dict(old.victims)
        for u, curve in new.victims:
            _require_no_less(of_old.get(u, old.curve), curve, old.stated_delta, f" for node {u!r}")
        _require_no_less(old.curve, new.curve, old.stated_delta)
        return Mechanism(self.algorithm, new, trust)

    def _guarantee_of(self, algorithm: LinearAlgorithm, trust: TrustModel, method: Any, tries: int = 0) -> Guarantee:
        old = self.guarantee
        about = Privacy(
            trust,
            adjacency=old.adjacency,
            clip_norm=self.clip_norm,
            release=old.release if self.sampling is None else None,
            unit=self.unit,
            method=method,
            lipschitz=self.lipschitz,
            owners=old.owners,
        )
        losses = Losses.from_algorithm(algorithm, about)
        return losses.guarantee(self.noise_std, each=bool(old.victims), tries=tries).at_delta(old.stated_delta)

    def guarantee_after(self, steps: int) -> Guarantee | None:
        """What all messages of the first steps guarantee, an upper bound; None of no step: nothing was sent.

        Where the messages show all sums, it is that of the algorithm of these steps, rounded up to whole epochs.
        Elsewhere, and where participation or noise cannot be cut, it is that of the whole run. Cost: that of `account`.

        Raises: InvalidInput: more steps than were accounted. Cost: that of `account`, over these steps.
        """
        T, whole = self.algorithm.num_steps, self.guarantee
        if check.integer_at_least(0, steps=steps) > T:
            raise InvalidInput(f"steps must be at most {T}, which were accounted, got {steps}.")
        if not steps:
            return None
        seen = whole.release == "not applicable" and self.algorithm.divisors_cancel and self.lipschitz is None
        if steps < T and seen and self.sampling is None and self.trust is not None and is_storable(self.trust):
            with contextlib.suppress(UnsupportedMechanism):
                cut = self.algorithm.first_steps(steps)
                part = self._guarantee_of(cut, self.trust, "exact" if whole.bound == "exact" else "certified")
                if cut.divisors_cancel and part.epsilon(whole.stated_delta) < whole.epsilon(whole.stated_delta):
                    return part  # of the sums themselves, which a later message may be the first to show
        return whole

    @functools.cached_property
    def plan(self) -> dict[str, str]:
        """Hashes of what all nodes of a run must have in common, by name, and the clipping in words."""
        algorithm, dynamics, noise = self.algorithm, self.algorithm.dynamics, self.algorithm.noise
        graph = communication_graph(dynamics.gossip, algorithm.num_steps * dynamics.gossip_rounds)
        return {
            "graph": graphs.content_hash(graph),
            "gossip": dynamics.gossip.content_hash,
            "participation": participation_hash(algorithm.participation),
            "noise": short_hash(noise.kind, noise.content(), repr(self.noise_std)),
            "clipping": f"norm {self.clip_norm!r} of each {self.unit}",
            "mechanism": self.content_hash,
        }

    def require_plan(self, theirs: Mapping[str, Any], sender: str) -> None:
        """Raises: InvalidInput: the `plan` of another node differs, with the first field that does."""
        for field, mine in self.plan.items():
            if theirs.get(field) != mine:
                raise InvalidInput(
                    f"{sender} has another {field}: {theirs.get(field)!r}, here {mine!r}; all nodes of a run need one "
                    "mechanism, e.g. from one file of Mechanism.save."
                )

    @property
    def accounted(self) -> str:
        return Fingerprint.parse(self.guarantee.fingerprint).algorithm

    @property
    def unit(self) -> str:
        return self.guarantee.unit

    @property
    def objective(self) -> float:
        """How much noise the guarantee leaves in the models after averaging; the smaller of two mechanisms is better.

        With public batches sensitivity^2 times the noise in the models for unit nu, which `factorize` minimises: it
        depends on no budget, and the variance is (record_shift / mu)^2 times as large. With secret sampling
        (nu / clip_norm)^2 times the same noise: compare it at one epsilon and delta. Both are for a first learning rate
        of 1. Of large graphs estimated, as `objective_error` says.
        """
        return self._objective.value

    @property
    def objective_error(self) -> float:
        """Half the width of the 95 % interval of `objective`; 0 where that is exact."""
        return self._objective.error

    @functools.cached_property
    def _objective(self) -> Estimate:
        return self._of_noise(self._noise_error)

    def _of_noise(self, error: Estimate) -> Estimate:
        if self.algorithm.noise.is_zero:
            return error
        scale = self.guarantee.sensitivity if self.sampling is None else self.noise_std / self.clip_norm
        return error.scaled(scale**2)

    @functools.cached_property
    def _noise_error(self) -> Estimate:
        from .algorithms import noise_error

        return noise_error(self.algorithm)

    def objective_for(self, weights: ErrorWeights) -> Estimate:
        """`objective` with other error weights. Raises: as `algorithms.noise_error`."""
        from .algorithms import noise_error

        return self._of_noise(noise_error(self.algorithm, weights=weights))

    @property
    def model_variance(self) -> float:
        """Variance of the noise in the models after averaging, per coordinate, summed over steps and nodes.

        Mechanisms with one guarantee are compared by it whatever their participation. Estimated for large graphs.
        """
        if self.algorithm.noise.is_zero or self.noise_std == 0:
            return 0.0
        rate = float(self.algorithm.dynamics.learning_rates(self.algorithm.num_steps)[0])
        return (self.noise_std * rate) ** 2 * self._noise_error.value

    def excess_loss(self, weights: ErrorWeights, divisors: ArrayLike | None = None) -> ExcessLoss:
        """The loss that the noise is predicted to add, in the published model and on the way.

        Args:
            weights: the published model as step weights ("released:average:48") and the curvature of the loss.
            divisors: records in the batch of each node, shape (n,); default those of the algorithm, else 1.
        Raises, cost: those of `NoiseObjective.excess_loss`; UnsupportedMechanism: another recursion than plain gossip.
        Cost: that of `NoiseObjective.excess_loss`.
        """
        from .objective import NoiseObjective

        algorithm = self.algorithm
        if not algorithm.is_plain:
            raise UnsupportedMechanism(
                f"an excess loss is predicted of plain gossip with noise on gradients, and {algorithm.name!r} has "
                "another recursion."
            )
        counted = NoiseObjective(algorithm.dynamics, algorithm.num_steps, weights)
        m = algorithm.divisors if divisors is None else divisors
        return counted.excess_loss(algorithm.noise, self.noise_std, m)

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


def _require_no_less(claimed: PrivacyCurve, accounted: PrivacyCurve, delta: float, victim: str = "") -> None:
    """Raises: InvalidInput: a claim of less loss than was accounted, but for rounding on other machines."""
    name, before, now = "mu", claimed.mu, accounted.mu
    if before is None or now is None:
        name, before, now = f"epsilon at delta = {delta:g}", claimed.epsilon(delta), accounted.epsilon(delta)
    if before < now * (1 - ROUNDING):
        raise InvalidInput(
            f"its guarantee states {name} = {before!r}{victim}, and accounted anew it is {now!r}; calibrate or account "
            "anew, or take it as stated with anew=False."
        )

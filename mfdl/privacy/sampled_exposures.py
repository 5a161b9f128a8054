"""What is exposed where batches are secret: the accountants of Poisson sampling, balls-in-bins and other patterns.

docs/sampling_theorem.md and docs/balls_in_bins_theorem.md have the theorems; their conditions are the
refusals here. What is seen may be anything that follows from the privatised gradients of all
steps, if noise enters where gradients do. Under Poisson sampling noise must be fresh in each step, and hidden messages
are refused; otherwise hidden messages count as seen, and noise may be correlated over time.

What the noise of a step leaves of each victim where batches are secret: factors of the sensitivity.

Where noise is correlated over time by one encoder, or fresh, the factor is [Sigma^+]_uu of its covariance over nodes;
where it correlates time and nodes together the Gram over steps holds all, and the factor is 1 or infinite. Noise that
is added elsewhere than to sums of gradients is refused.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from mfdl_solvers.ties import equal_to_largest, first_maximum

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..participation.sampling import (
    BallsInBins,
    CyclicPoisson,
    MinSeparationSampling,
    PoissonSampling,
    RandomAllocation,
    Sampled,
)
from ..progress import Progress
from ..trust import TrustModel
from . import bin_gram, gaussian
from .curves import (
    UP,
    BallsInBinsGaussian,
    MonteCarlo,
    MonteCarloCurve,
    PoissonGaussian,
    PrivacyCurve,
    ProductGaussian,
    chain_above,
    correlations,
    normalized,
)
from .curves.base import raised
from .curves.composed import LossCurve
from .exposures import Exposures
from .forms import injection_bound, known_gradient
from .gram_sensitivity import Sensitivity
from .questions import Fingerprint, Privacy, Target
from .victim_sensitivity import VictimSensitivity

RELEASE = "not applicable"
BY_BINS, BY_SAMPLING, BY_PATTERNS = "the bins' pair", "the sampled pair", "the patterns' pair"
METHODS = ("exact", "certified", "monte-carlo")
"""The last one of balls-in-bins alone; "exact" means the certified bound, as for public patterns."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledLoss(VictimSensitivity):
    """What one victim, or the worst of several, loses under secret sampling.

    Attributes: std_per_multiplier: sensitivity per unit clipping norm, rounded up; unit_curve: at noise multiplier 1.
    """

    std_per_multiplier: float = math.inf
    unit_curve: PrivacyCurve = dataclasses.field(kw_only=True)

    @property
    def retry_step(self) -> float:  # type: ignore[override]
        """By what share calibration adds noise where the target is still missed, by rounding or by fresh samples."""
        return self.unit_curve.retry_step

    def sensitivity(self, *, adaptive: bool = True) -> float:
        return self.std_per_multiplier

    def curve(self, privacy: Privacy, noise_std: float, *, adaptive: bool = True, tries: int = 0) -> PrivacyCurve:
        curve = self.unit_curve.at(gaussian.noise_multiplier(noise_std, privacy.clip_norm, self.std_per_multiplier))
        for _ in range(tries):
            curve = curve.retried()
        return curve

    def least_noise(self, privacy: Privacy, target: Target, *, adaptive: bool = True) -> float:
        assert target.epsilon is not None
        assert target.delta is not None
        least = self.unit_curve.least_multiplier(target.epsilon, target.delta, by=target.by)
        std = gaussian.noise_std(least, self.std_per_multiplier, float(privacy.clip_norm))
        return raised(std, lambda s: gaussian.noise_multiplier(s, privacy.clip_norm, self.std_per_multiplier) < least)

    def explanation(self, *, adaptive: bool = True, victim: str = "") -> str:
        return self.adaptive_sensitivity.why


@dataclasses.dataclass(frozen=True, eq=False)
class SampledExposures(Exposures, abc.ABC):
    """Of secret sampling: one curve for the worst of each group of victims.

    Attributes: scheme: of the algorithm; exposed: of each victim; victims: those asked about, None for all;
        samples: how numbers by Monte Carlo are drawn, None where all are certified.
    """

    algorithm: LinearAlgorithm
    privacy: Privacy
    scheme: Sampled
    exposed: Exposed
    victims: Sequence[int] | None
    samples: MonteCarlo | None

    @functools.cached_property
    def each(self) -> tuple[VictimSensitivity, ...]:
        """Of each victim. Cost: O(T^3) for each node with an encoder of its own."""
        causal = self.algorithm.noise.causal
        alike: dict[tuple[float, int], Exposed] = {}
        chosen = self.exposed if self.victims is None else {u: self.exposed[u] for u in self.victims}
        for u, exposed in chosen.items():
            encoder = -1 if causal is None or causal.fresh or causal.shared else u
            alike.setdefault((exposed[0], encoder), {})[u] = exposed
        losses = {u: loss for group in alike.values() for u, loss in self._losses(group).items()}
        return tuple(losses[u] for u in sorted(losses))

    @functools.cached_property
    def together(self) -> VictimSensitivity:
        worst = first_maximum(sorted(self.exposed), key=lambda u: self.exposed[u][0])
        return self._losses(self.exposed)[worst]

    @property
    def tied(self) -> int:
        return int(equal_to_largest([factor for factor, _ in self.exposed.values()]).sum())

    @abc.abstractmethod
    def _pair(self, group: Exposed, sensitivity: float, why: str) -> tuple[float, str, str, PrivacyCurve]:
        """Of victims with this sensitivity over nodes: that over time too, why, the rule, and the curve per unit."""

    def _assuming(self, why: str) -> str:
        """With what is assumed of hidden messages."""
        hidden = self.privacy.trust.hides_messages(self.algorithm)
        return " ".join(filter(None, (why, "Every message is assumed to be seen." * hidden)))

    def _losses(self, group: Exposed) -> dict[int, VictimSensitivity]:
        """Of victims that are accounted together, by the worst of them."""
        squared, why = max(group.values(), key=lambda exposed: exposed[0])  # bound
        over_nodes = math.inf if math.isinf(squared) else math.nextafter(math.sqrt(squared), math.inf)
        sensitivity, why, rule, unit = self._pair(group, over_nodes, why)
        fingerprint = Fingerprint.of(self.algorithm, self.privacy.trust, self.scheme, RELEASE, "record")
        return {u: self._loss(u, sensitivity, why, rule, unit).answering(fingerprint) for u in group}

    def _loss(self, u: int, sensitivity: float, why: str, rule: str, unit: PrivacyCurve) -> SampledLoss:
        squared = math.nextafter(sensitivity * sensitivity, math.inf)
        number = Sensitivity(squared, False, (), u, 0.0, 0.0, why, rule)
        return SampledLoss(
            number,
            number,
            adaptive=True,
            adaptive_by=rule,
            attacker=self.privacy.trust.attacker,
            release=RELEASE,
            std_per_multiplier=sensitivity,
            unit_curve=unit,
        )

    @property
    def nodes(self) -> set[int]:
        return set(self.exposed if self.victims is None else self.victims)

    def require(self, algorithm: LinearAlgorithm, privacy: Privacy) -> None:
        _require_usual(algorithm, privacy, METHODS)
        wanted = Fingerprint.of(algorithm, privacy.trust, privacy.scheme(algorithm), RELEASE, privacy.unit)
        mine = Fingerprint.of(self.algorithm, self.privacy.trust, self.scheme, RELEASE, "record")
        mine.require(wanted, subject="the losses were computed")
        for name in ("adjacency", "method"):
            if getattr(privacy, name) != getattr(self.privacy, name):
                raise InvalidInput(
                    f"the losses were computed for {name} {getattr(self.privacy, name)!r}, not "
                    f"{getattr(privacy, name)!r}; account anew."
                )

    def refuse(self, **given: Any) -> None:
        scheme = self.scheme.describe()
        if given.get("noise_multiplier") is not None:
            raise UnsupportedMechanism(f"{scheme} take noise_std: noise_multiplier is of public patterns.")
        if given.get("mu") is not None:
            raise UnsupportedMechanism(f"{scheme} have no mu; give epsilon and delta.")


class PoissonExposures(SampledExposures):
    """Of Poisson sampling: the pair of one step, composed."""

    def _pair(self, group: Exposed, sensitivity: float, why: str) -> tuple[float, str, str, PrivacyCurve]:
        scheme = cast("PoissonSampling", self.scheme)
        return sensitivity, why, BY_SAMPLING, PoissonGaussian(1.0, scheme.rate, scheme.steps, self.privacy.adjacency)


class BinsExposures(SampledExposures):
    """Of balls-in-bins: the pair of M of the encoders of these victims."""

    def _pair(self, group: Exposed, sensitivity: float, why: str) -> tuple[float, str, str, PrivacyCurve]:
        q, bins = self.privacy, cast("BallsInBins", self.scheme).bins
        why = self._assuming(why)
        gram = bin_gram.time_gram(self.algorithm, sorted(group), bins)
        certified = BallsInBinsGaussian(1.0, bins, correlations(gram), q.adjacency, chain_above(gram))
        unit = certified if self.samples is None else MonteCarloCurve(certified, normalized(gram), self.samples)
        return sensitivity * (math.sqrt(float(gram.diagonal().max())) * UP), why, BY_BINS, unit


class PatternExposures(SampledExposures):
    """Of secret patterns: the product that dominates their pair, for the encoders of these victims."""

    @abc.abstractmethod
    def _bound(self, N: FloatArray | None) -> bin_gram.ProductBound:
        """The product for |C|^T |C|, None where noise is fresh."""

    @abc.abstractmethod
    def _draw(self, multiplier: float, count: int, places: int) -> tuple[LossCurve, int]:
        """The curve of so many draws at a noise multiplier, and how often it counts."""

    def _pair(self, group: Exposed, sensitivity: float, why: str) -> tuple[float, str, str, PrivacyCurve]:
        N = bin_gram.step_gram(self.algorithm, sorted(group))
        bound = self._bound(N)
        drawn = [self._draw(*unit, bound.places) for unit in bin_gram.units(bound.draws, bound.largest)]
        parts, counts = zip(*drawn, strict=True)
        shared, public = (math.sqrt(squared / bound.largest) * UP for squared in (bound.common, bound.public))
        unit = self._simplified(N, ProductGaussian(1.0, shared, parts, counts, public, self.privacy.adjacency))
        over_time = 1.0 if N is None else math.sqrt(bound.largest) * UP
        return sensitivity * over_time, self._assuming(why), BY_PATTERNS, unit

    def _simplified(self, N: FloatArray | None, curve: ProductGaussian) -> PrivacyCurve:
        """The curve, or a tighter one that says the same."""
        return curve


class CyclicPoissonExposures(PatternExposures):
    """Of cyclic Poisson sampling."""

    def _bound(self, N: FloatArray | None) -> bin_gram.ProductBound:
        return bin_gram.of_cyclic_poisson(N, cast("CyclicPoisson", self.scheme))

    def _draw(self, multiplier: float, count: int, places: int) -> tuple[LossCurve, int]:
        rate = cast("CyclicPoisson", self.scheme).rate
        return PoissonGaussian(multiplier, rate, count, self.privacy.adjacency), 1

    def _simplified(self, N: FloatArray | None, curve: ProductGaussian) -> PrivacyCurve:
        """With noise that is fresh it is Poisson sampling of as many steps as epochs."""
        return curve if N is not None else curve.parts[0].at(1.0)


class RandomAllocationExposures(PatternExposures):
    """Of random allocation."""

    def _bound(self, N: FloatArray | None) -> bin_gram.ProductBound:
        return bin_gram.of_random_allocation(N, cast("RandomAllocation", self.scheme))

    def _draw(self, multiplier: float, count: int, places: int) -> tuple[LossCurve, int]:
        return BallsInBinsGaussian(multiplier, places, ((places, 0.0),), self.privacy.adjacency), count


class MinSeparationExposures(PatternExposures):
    """Of minimum separation sampling."""

    def _bound(self, N: FloatArray | None) -> bin_gram.ProductBound:
        return bin_gram.of_min_separation(N, cast("MinSeparationSampling", self.scheme))

    def _draw(self, multiplier: float, count: int, places: int) -> tuple[LossCurve, int]:
        rate = cast("MinSeparationSampling", self.scheme).rate
        return PoissonGaussian(multiplier, rate, count, self.privacy.adjacency), 1


def poisson_exposures(
    algorithm: LinearAlgorithm, privacy: Privacy, *, victims: Sequence[int] | None = None, progress: Progress = "auto"
) -> SampledExposures:
    """The accountant of Poisson sampling.

    Raises:
        InvalidInput: an argument out of range.
        UnsupportedMechanism: where amplification is not proven: an option that only public patterns have, noise added
            elsewhere than gradients, noise correlated over time, hidden messages.
    Cost: that of the noise's pseudo-inverse over nodes; numbers come when asked for.
    Source: docs/sampling_theorem.md; the pairs of one step are those of arXiv:1908.10530 and arXiv:2106.08567.
    """
    _require_usual(algorithm, privacy, METHODS[:2])
    exposed = exposed_by_node_noise(algorithm, privacy.trust, privacy.trust)
    return PoissonExposures(*_arguments(algorithm, privacy, exposed, victims), None)


def secret_accountant(exposures: type[SampledExposures], *, samples: bool = False) -> Callable[..., SampledExposures]:
    """The accountant of a scheme with secret patterns; messages that the attacker does not see count as seen.

    Args: exposures: made of what is exposed; samples: whether numbers by Monte Carlo can be had.

    The accountant raises:
        InvalidInput: an argument out of range.
        UnsupportedMechanism: where amplification is not proven: an option that only public patterns have; noise added
            elsewhere than gradients; noise that correlates time and nodes together and is known in part, or has no
            encoder over both.
    Its cost: as `poisson_exposures`, and O(T^3) for an encoder.
    Source: docs/balls_in_bins_theorem.md, docs/sampling_theorem.md.
    """

    def account(
        algorithm: LinearAlgorithm,
        privacy: Privacy,
        *,
        victims: Sequence[int] | None = None,
        progress: Progress = "auto",
    ) -> SampledExposures:
        _require_usual(algorithm, privacy, METHODS if samples else METHODS[:2])
        trust, method = privacy.trust, privacy.method
        seen = trust.all_messages() if trust.hides_messages(algorithm) else trust
        if not bin_gram.is_product(algorithm.noise) and bin_gram.is_block_causal(algorithm.noise):
            exposed = exposed_by_joint_noise(algorithm, trust, seen)
        else:
            exposed = exposed_by_node_noise(with_fresh_noise(algorithm), trust, seen)
        drawn = MonteCarlo() if method == "monte-carlo" else method if isinstance(method, MonteCarlo) else None
        return exposures(*_arguments(algorithm, privacy, exposed, victims), drawn)

    return account


def _arguments(
    algorithm: LinearAlgorithm, privacy: Privacy, exposed: Exposed, victims: Sequence[int] | None
) -> tuple[LinearAlgorithm, Privacy, Sampled, Exposed, Sequence[int] | None]:
    """With victims that attack, whose loss is infinite."""
    if victims is not None:
        victims = sorted({check.integer_at_least(0, victim=u) for u in check.listed("node indices", victims=victims)})
        if not victims or victims[-1] >= algorithm.num_nodes:
            raise InvalidInput(
                f"victims must be node indices below {algorithm.num_nodes}, at least one, got {victims}; leave victims "
                "out for all nodes."
            )
        attacking = sorted(set(victims) - set(exposed))
        exposed = exposed | dict.fromkeys(attacking, (math.inf, "Infinite: the victim is one of the attackers."))
    return algorithm, privacy, cast("Sampled", algorithm.participation), exposed, victims


def _require_usual(algorithm: LinearAlgorithm, privacy: Privacy, methods: Sequence[str]) -> None:
    """Refuses what only public patterns have, and an argument out of range, before any work."""
    usual: dict[str, Any] = {"release": None, "lipschitz": None, "unit": "record", "participation": None}
    given = {name: getattr(privacy, name) for name in usual if getattr(privacy, name) != usual[name]}
    method = "monte-carlo" if isinstance(privacy.method, MonteCarlo) else privacy.method
    if method not in methods:
        given["method"] = privacy.method
    for name, value in given.items():
        raise UnsupportedMechanism(
            f"{algorithm.participation.describe()} are accounted for one record, all messages seen, by a certified "
            "bound or, with BallsInBins, by Monte Carlo (method='monte-carlo'); leave out "
            f"{name}, got {value!r}, or take a public participation such as Cyclic."
        )
    check.instance(TrustModel, trust=privacy.trust)
    gaussian.record_shift(privacy.adjacency, privacy.clip_norm)  # refuses either


def noise_of_bins(*, epsilon: float, delta: float, bins: int, adjacency: str) -> Callable[[FloatArray], float]:
    """The noise that a target requires of local encoders under balls-in-bins, for `factorize_balls_in_bins`.

    Returns: from M, shape (bins, bins), to the certified noise std per unit clipping norm.
    Raises: InvalidInput: epsilon not > 0, delta outside (0, 1), bins < 1, an unknown adjacency.
    """
    epsilon, delta = check.positive(epsilon=epsilon), check.open_unit(delta=delta)
    BallsInBinsGaussian(1.0, bins, ((bins, 0.0),), adjacency)  # refuses either

    def noise_std(M: FloatArray) -> float:
        curve = BallsInBinsGaussian(1.0, bins, correlations(M), adjacency)
        return curve.least_multiplier(epsilon, delta) * math.sqrt(float(M.diagonal().max())) * UP

    return noise_std


Exposed = dict[int, tuple[float, str]]
"""Of each victim the largest [Sigma^+]_uu over members and steps, and what makes it infinite."""


def exposed_by_joint_noise(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel) -> Exposed:
    """Of noise that correlates time and nodes together: 1, its M holds all; inf for a victim whose gradient is known.

    Infinite for all victims of those who know all of the noise.
    Raises: UnsupportedMechanism: noise that is known in part, which leaves no block causal encoder.
    """
    require_noise_with_gradients(algorithm)
    labels, exposed = algorithm.dynamics.gossip.labels, dict[int, tuple[float, str]]()
    for model, victims in seen.members(algorithm):
        if not victims:
            continue
        against = model.view(algorithm, victims[0])
        known = against.knowledge.known_noise
        if known.any() and not known.all():
            raise UnsupportedMechanism(
                f"{algorithm.participation.describe()} is accounted for noise of {algorithm.name!r}, which correlates "
                f"time and nodes together, where attackers know none of it, and under trust model {trust.name!r} "
                f"{trust.attacker} know a part; take one encoder for all nodes (kronecker, mafalda), "
                "trust.Eavesdropper(), or a public participation."
            )
        for u in victims:
            why = known_gradient(against, u) or ("all noise is known" if known.all() else "")
            factor = (math.inf, f"Infinite for node {labels[u]!r}: {why}.") if why else (1.0, "")
            exposed[u] = max(exposed.get(u, factor), factor, key=lambda each: each[0])  # exact: 1 or infinity
    return _of_somebody(exposed, trust)


def _of_somebody(exposed: Exposed, trust: TrustModel) -> Exposed:
    if not exposed:
        raise InvalidInput(f"no victim is left: every node is an attacker ({trust.attacker}).")
    return exposed


def require_noise_with_gradients(algorithm: LinearAlgorithm) -> None:
    """Refuses noise elsewhere than in sums of gradients: divisors of batches would leave it undivided."""
    if algorithm.noise_on_messages or not algorithm.noise_enters_with_gradients:
        raise UnsupportedMechanism(
            f"amplification by sampling is proven where noise is added to sums of gradients, and {algorithm.name!r} "
            "adds it elsewhere; take dp_dsgd, decor or corn, or a public participation."
        )


def with_fresh_noise(algorithm: LinearAlgorithm) -> LinearAlgorithm:
    """The same with noise that is fresh in each step, for what its covariance over nodes leaves."""
    require_noise_with_gradients(algorithm)
    if algorithm.noise.is_zero:
        return algorithm
    return dataclasses.replace(algorithm, noise=bin_gram.fresh_part(algorithm))


def exposed_by_node_noise(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel) -> Exposed:
    """What each victim's noise over the nodes leaves, for noise that is fresh in every step.

    Args: trust: as it is named; seen: the one whose views are looked at.
    """
    noise = algorithm.noise
    require_noise_with_gradients(algorithm)
    if not noise.is_zero and (noise.causal is None or not noise.causal.fresh):
        raise UnsupportedMechanism(
            "amplification by sampling is proven for noise that is fresh in every step, and that of "
            f"{algorithm.name!r} is correlated over time; take dp_dsgd, decor or corn, or a public "
            "participation such as Cyclic."
        )
    labels, worst = algorithm.dynamics.gossip.labels, dict[int, tuple[float, str]]()
    for model, victims in seen.members(algorithm):
        if not victims:
            continue
        view = model.view(algorithm, victims[0])
        if not view.knowledge.sees_all(algorithm):
            raise UnsupportedMechanism(
                f"trust model {trust.name!r} hides messages, and amplification by sampling is proven where every "
                "message is seen; take the same attackers with all of them seen, trust.all_messages(), or a public "
                "participation."
            )
        grams = injection_bound(view, victims)
        assert grams is not None
        for u, gram in zip(victims, grams, strict=True):
            assert gram.is_diagonal
            squared = np.where(gram.leaks, math.inf, (gram.values + gram.errors) * gram.inflation * (1 + 2.0**-50))
            largest = float(squared.max())
            why = f"Infinite for node {labels[u]!r}: {gram.why}." if math.isinf(largest) else ""
            worst[u] = max(worst.get(u, (0.0, "")), (largest, why), key=lambda each: each[0])  # bound
    return _of_somebody(worst, trust)


OF_SECRET_BATCHES: dict[type, Callable[..., SampledExposures]] = {
    PoissonSampling: poisson_exposures,
    BallsInBins: secret_accountant(BinsExposures, samples=True),
    CyclicPoisson: secret_accountant(CyclicPoissonExposures),
    RandomAllocation: secret_accountant(RandomAllocationExposures),
    MinSeparationSampling: secret_accountant(MinSeparationExposures),
}
"""The accountants by participation."""

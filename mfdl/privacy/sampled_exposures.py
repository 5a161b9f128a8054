"""Losses where batches are secret: the accountants of Poisson sampling, balls-in-bins and other patterns.

docs/sampling_theorem.md and docs/balls_in_bins_theorem.md have the theorems; their conditions are the refusals here.
What is seen may be anything that follows from the privatised gradients of all steps, if noise enters where gradients
do; under Poisson sampling it must be fresh in each step. Hidden messages count as seen for adaptive gradients, unless
each gradient is a function of what the attacker saw before; then, and for non-adaptive gradients, the views bound the
loss (`sampled_views`).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from mfdl_solvers.ties import equal_to_largest, first_maximum

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput, UnsupportedMechanism
from ..participation import EveryStep, Participation, sampling
from ..participation.sampling import Sampled
from ..progress import Progress
from ..trust import TrustModel
from ..trust.view import View
from . import bin_gram, curves, gaussian
from .curves import UP, MonteCarlo, PrivacyCurve
from .curves.base import raised
from .curves.composed import LossCurve
from .exposures import COMPUTED, NOT_PROVEN, Exposures, privacy_of_view, view_fingerprint, view_losses
from .gram_sensitivity import Sensitivity
from .questions import Fingerprint, Privacy, Target
from .sampled_views import AttackerViews, Exposed, exposed_nodes, require_noise_with_gradients
from .victim_sensitivity import VictimSensitivity

RELEASE = "not applicable"
BY_BINS, BY_SAMPLING, BY_PATTERNS = "the bins' pair", "the sampled pair", "the patterns' pair"
METHODS = ("exact", "certified", "monte-carlo")
"""The last one of balls-in-bins alone; "exact" means the certified bound, as for public patterns."""
UNKNOWN_NOISE = "Infinite: this noise has an account by views alone, and no form covers the view."
GAIN = 1e-4
"""Relative, of sensitivity: below it every message counts as seen, which asks less of training than hidden messages."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledLoss(VictimSensitivity):
    """The loss of one victim, or of the worst of several, under secret sampling.

    Attributes: std_per_multiplier: sensitivity per unit clipping norm, rounded up; unit_curve: at noise multiplier 1;
        non_adaptive: computes the loss for non-adaptive gradients, if it is another one.
    """

    std_per_multiplier: float = math.inf
    unit_curve: PrivacyCurve = dataclasses.field(kw_only=True)
    non_adaptive: Callable[[], SampledLoss] | None = dataclasses.field(default=None, kw_only=True)

    @property
    def retry_step(self) -> float:  # type: ignore[override]
        return self.unit_curve.retry_step

    def for_gradients(self, *, adaptive: bool) -> SampledLoss:
        return self if adaptive or self.non_adaptive is None else self.non_adaptive()

    def number(self, *, adaptive: bool = True) -> Sensitivity:
        return self.for_gradients(adaptive=adaptive).adaptive_sensitivity

    def sensitivity(self, *, adaptive: bool = True) -> float:
        return self.for_gradients(adaptive=adaptive).std_per_multiplier

    def curve(self, privacy: Privacy, noise_std: float, *, adaptive: bool = True, tries: int = 0) -> PrivacyCurve:
        loss = self.for_gradients(adaptive=adaptive)
        curve = loss.unit_curve.at(gaussian.noise_multiplier(noise_std, privacy.clip_norm, loss.std_per_multiplier))
        for _ in range(tries):
            curve = curve.retried()
        return curve

    def least_noise(self, privacy: Privacy, target: Target, *, adaptive: bool = True) -> float:
        assert target.epsilon is not None
        assert target.delta is not None
        loss = self.for_gradients(adaptive=adaptive)
        sensitivity = loss.std_per_multiplier
        least = loss.unit_curve.least_multiplier(target.epsilon, target.delta, by=target.by)
        std = gaussian.noise_std(least, sensitivity, float(privacy.clip_norm))
        return raised(std, lambda s: gaussian.noise_multiplier(s, privacy.clip_norm, sensitivity) < least)

    def explanation(self, *, adaptive: bool = True, victim: str = "") -> str:
        return self.for_gradients(adaptive=adaptive).adaptive_sensitivity.why


@dataclasses.dataclass(frozen=True, eq=False)
class SampledExposures(Exposures, abc.ABC):
    """Losses under secret sampling: one curve for the worst of each group of victims.

    Where messages are hidden, or a view is given as matrices, N of the views bounds them (`sampled_views`): for
    non-adaptive gradients, and for adaptive ones where the views are adaptive.

    Attributes: algorithm: None of matrices; scheme: of secret batches; exposed: of each victim, if every message is
        seen; victims: those to account, None for all; samples: how numbers by Monte Carlo are drawn, None where all are
        certified; views: of attackers from whom messages are hidden; hidden: some message is not seen; fingerprint,
        release: of the losses.
    """

    algorithm: LinearAlgorithm | None
    privacy: Privacy
    scheme: Any
    exposed: Exposed
    victims: Sequence[int] | None
    samples: MonteCarlo | None
    views: AttackerViews | None
    hidden: bool
    fingerprint: Fingerprint
    release: str = RELEASE

    rule: ClassVar[str]
    takes_correlated_steps: ClassVar[bool] = True  # whether N may have entries off its diagonal

    @functools.cached_property
    def each(self) -> tuple[VictimSensitivity, ...]:
        """Cost: O(T^3) for each node with an encoder of its own."""
        causal = None if self.algorithm is None else self.algorithm.noise.causal
        one_encoder = causal is None or causal.shared
        alike: dict[tuple[float, int], Exposed] = {}
        for u in self.exposed if self.victims is None else self.victims:
            alike.setdefault((self.exposed[u][0], -1 if one_encoder else u), {})[u] = self.exposed[u]
        losses = {u: loss for group in alike.values() for u, loss in self._losses(group).items()}
        return tuple(self._seen(losses[u], [u]) for u in sorted(losses))

    @functools.cached_property
    def together(self) -> VictimSensitivity:
        sizes = self._sizes
        worst = first_maximum(sorted(sizes), key=lambda u: sizes[u])
        return self._seen(self._losses(self.exposed)[worst], list(self.exposed))

    @property
    def tied(self) -> int:
        return int(equal_to_largest(list(self._sizes.values())).sum())

    @property
    def adaptive(self) -> bool:
        return self.algorithm is not None or self.views is None or self.views.adaptive

    @property
    def why(self) -> str:
        return "" if self.adaptive else f"{NOT_PROVEN[0].upper()}{NOT_PROVEN[1:]}."

    @abc.abstractmethod
    def _gram(self, algorithm: LinearAlgorithm, group: Exposed) -> FloatArray | None:
        """The argument of `_unit` for the noise over time of these victims."""

    @abc.abstractmethod
    def _unit(self, gram: FloatArray | None) -> tuple[float, PrivacyCurve]:
        """Sensitivity over time and the curve at noise multiplier 1. Args: gram: None where noise is fresh."""

    def _from_steps(self, N: FloatArray) -> FloatArray:
        return N

    def _losses(self, group: Exposed) -> dict[int, SampledLoss]:
        """Losses of victims that are accounted together, by the worst of them, if every message is seen."""
        squared, why = max(group.values(), key=lambda exposed: exposed[0])  # bound
        over_nodes = math.inf if math.isinf(squared) else math.nextafter(math.sqrt(squared), math.inf)
        by_views = self.algorithm is None or why == UNKNOWN_NOISE
        over_time, unit = self._unit(None if by_views else self._gram(cast("LinearAlgorithm", self.algorithm), group))
        why = " ".join(filter(None, (why, "Every message is assumed to be seen." * self.hidden)))
        return {u: self._loss(u, over_nodes * over_time, why, unit, self.release) for u in group}

    def _loss(self, u: int, sensitivity: float, why: str, unit: PrivacyCurve, release: str) -> SampledLoss:
        squared = math.nextafter(sensitivity * sensitivity, math.inf)
        number = Sensitivity(squared, False, (), u, 0.0, 0.0, why, self.rule)
        attacker = self.privacy.trust.attacker
        return SampledLoss(
            number, number, True, self.rule, attacker, release, std_per_multiplier=sensitivity, unit_curve=unit
        ).answering(self.fingerprint)

    @functools.cached_property
    def _sizes(self) -> dict[int, float]:
        """A number of each victim in the order of their losses: of N if the views decide, else its factor."""
        if self.views is not None and (self.views.adaptive or self.algorithm is None):
            with contextlib.suppress(UnsupportedMechanism):
                return self.views.sizes(adaptive=self.views.adaptive)
        return {u: factor for u, (factor, _) in self.exposed.items()}

    def _seen(self, loss: SampledLoss, victims: Sequence[int]) -> SampledLoss:
        if self.views is None or not set(victims) <= self.views.victims:
            return loss
        if self.views.adaptive:
            with contextlib.suppress(UnsupportedMechanism):  # a view that no form has: every message counts as seen
                return self._least(loss, victims, self.views, adaptive=True)
            return loss
        non_adaptive = functools.partial(self._least, loss, victims, self.views, adaptive=False)
        loss = dataclasses.replace(loss, adaptive=False, non_adaptive=functools.cache(non_adaptive))
        return loss.answering(self.fingerprint)

    def _least(self, loss: SampledLoss, victims: Sequence[int], views: AttackerViews, *, adaptive: bool) -> SampledLoss:
        bound, every_message = views.bound(victims, adaptive=adaptive), loss.std_per_multiplier
        if math.isinf(bound.largest):
            if math.isfinite(every_message):
                return loss
            return self._loss(loss.node, math.inf, f"Infinite: {bound.why}.", loss.unit_curve, RELEASE)
        grams = [self._from_steps(bound.gram)] * self.takes_correlated_steps
        bounds = [self._unit(gram) for gram in grams]
        over_time, unit = self._unit(None)
        bounds.append((over_time * math.sqrt(bound.largest) * UP, unit))
        if adaptive and min(sensitivity for sensitivity, _ in bounds) >= (1 - GAIN) * every_message:
            return loss
        if math.isfinite(every_message):
            bounds.append((every_message, loss.unit_curve))
        sensitivity, curve = curves.LeastCurve.from_bounds(cast("list[tuple[float, LossCurve]]", bounds))
        least = self._loss(loss.node, sensitivity, "", curve, views.release)
        return dataclasses.replace(least, adaptive=adaptive).answering(least.fingerprint)

    @property
    def nodes(self) -> set[int]:
        return set(self.exposed if self.victims is None else self.victims)

    def require(self, algorithm: LinearAlgorithm | View, privacy: Privacy) -> None:
        self.fingerprint.require(_fingerprint(algorithm, privacy), subject=COMPUTED)
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


def _fingerprint(given: LinearAlgorithm | View, privacy: Privacy) -> Fingerprint:
    if isinstance(given, View):
        return view_fingerprint(given, privacy_of_view(given, privacy))
    _require_usual(given.participation, privacy, METHODS)
    return Fingerprint.from_question(given, privacy.trust, privacy.scheme(given), RELEASE, privacy.unit)


class PoissonExposures(SampledExposures):
    rule, takes_correlated_steps = BY_SAMPLING, False

    def _gram(self, algorithm: LinearAlgorithm, group: Exposed) -> None:
        return None

    def _unit(self, gram: FloatArray | None) -> tuple[float, PrivacyCurve]:
        return 1.0, curves.PoissonGaussian(1.0, self.scheme.rate, self.scheme.steps, self.privacy.adjacency)


class BinsExposures(SampledExposures):
    rule = BY_BINS

    def _gram(self, algorithm: LinearAlgorithm, group: Exposed) -> FloatArray | None:
        return bin_gram.time_gram(algorithm, sorted(group), self.scheme.bins)

    def _from_steps(self, N: FloatArray) -> FloatArray:
        return bin_gram.bin_sums(N, self.scheme.bins)

    def _unit(self, gram: FloatArray | None) -> tuple[float, PrivacyCurve]:
        bins, adjacency = self.scheme.bins, self.privacy.adjacency
        M = np.eye(bins) * self.scheme.epochs if gram is None else gram
        certified = curves.BallsInBinsGaussian(1.0, bins, curves.correlations(M), adjacency, curves.chain_above(M))
        unit = (
            certified if self.samples is None else curves.MonteCarloCurve(certified, curves.normalized(M), self.samples)
        )
        return math.sqrt(float(M.diagonal().max())) * UP, unit


class PatternExposures(SampledExposures):
    """Losses under secret patterns: the product that dominates their pair, for the encoders of these victims.

    Attributes: product: from |C|^T |C|, None where noise is fresh, and the scheme.
    """

    rule = BY_PATTERNS
    product: ClassVar[staticmethod[..., bin_gram.ProductBound]]

    def _draw(self, multiplier: float, count: int, places: int) -> tuple[LossCurve, int]:
        """The curve of so many draws at a noise multiplier, and how often it counts: by default Poisson sampling."""
        rate = self.scheme.rate
        return curves.PoissonGaussian(multiplier, rate, count, self.privacy.adjacency), 1

    def _gram(self, algorithm: LinearAlgorithm, group: Exposed) -> FloatArray | None:
        fresh = algorithm.noise.step_factor is not None
        return None if fresh else bin_gram.time_gram(algorithm, sorted(group), algorithm.num_steps)

    def _unit(self, gram: FloatArray | None) -> tuple[float, PrivacyCurve]:
        bound = type(self).product(gram, self.scheme)
        drawn = [self._draw(*unit, bound.places) for unit in bin_gram.units(bound.draws, bound.largest)]
        parts, counts = zip(*drawn, strict=True)
        shared, public = (math.sqrt(squared / bound.largest) * UP for squared in (bound.common, bound.public))
        curve = curves.ProductGaussian(1.0, shared, parts, counts, public, self.privacy.adjacency)
        return 1.0 if gram is None else math.sqrt(bound.largest) * UP, curve


class CyclicPoissonExposures(PatternExposures):
    product = staticmethod(bin_gram.cyclic_poisson_bound)

    def _unit(self, gram: FloatArray | None) -> tuple[float, PrivacyCurve]:
        sensitivity, curve = super()._unit(gram)
        if gram is None:  # Poisson sampling of as many steps as epochs
            curve = cast("curves.ProductGaussian", curve).parts[0].at(1.0)
        return sensitivity, curve


class RandomAllocationExposures(PatternExposures):
    product = staticmethod(bin_gram.random_allocation_bound)

    def _draw(self, multiplier: float, count: int, places: int) -> tuple[LossCurve, int]:
        return curves.BallsInBinsGaussian(multiplier, places, ((places, 0.0),), self.privacy.adjacency), count


class MinSeparationExposures(PatternExposures):
    product = staticmethod(bin_gram.min_separation_bound)


def secret_accountant(
    exposures: type[SampledExposures], *, samples: bool = False, fresh: bool = False
) -> Callable[..., SampledExposures]:
    """The accountant of a secret scheme, of algorithms and of views given as matrices.

    Where messages are hidden all of them count as seen for adaptive gradients, unless the views are adaptive.

    Args: samples: whether numbers by Monte Carlo can be had, of algorithms; fresh: whether noise must be fresh in every
        step.

    The accountant raises UnsupportedMechanism where amplification is not proven: an option that only public patterns
    have; noise added elsewhere than gradients; noise that correlates time and nodes together and is known in part, or
    has no encoder over both; noise correlated over time, if it must be fresh. Its cost: that of the noise's
    pseudo-inverse over nodes, O(T^3) for an encoder, and that of `view_grams` if messages are hidden and the views are
    adaptive, or numbers for non-adaptive gradients are needed.
    Source: docs/balls_in_bins_theorem.md, docs/sampling_theorem.md; the pairs of one step of Poisson sampling are those
        of arXiv:1908.10530 and arXiv:2106.08567.
    """
    methods = METHODS if samples else METHODS[:2]

    def account(
        algorithm: LinearAlgorithm | View,
        privacy: Privacy,
        *,
        victims: Sequence[int] | None = None,
        progress: Progress = "auto",
    ) -> SampledExposures:
        if isinstance(algorithm, View):
            return _view_exposures(exposures, algorithm, privacy, victims)
        _require_usual(algorithm.participation, privacy, methods)
        trust, method = privacy.trust, privacy.method
        hidden = trust.hides_messages(algorithm)
        seen = trust.all_messages() if hidden else trust
        drawn = MonteCarlo() if method == "monte-carlo" else method if isinstance(method, MonteCarlo) else None
        views = AttackerViews.under(trust, algorithm) if hidden else None
        try:
            exposed = exposed_nodes(algorithm, trust, seen, fresh=fresh)
        except UnsupportedMechanism:
            require_noise_with_gradients(algorithm)
            views = views or AttackerViews.under(trust, algorithm)
            if fresh or drawn or not views.adaptive:
                raise
            exposed = dict.fromkeys(views.victims, (math.inf, UNKNOWN_NOISE))
        chosen = _checked(algorithm, victims)
        attacking = sorted(set(chosen or ()) - set(exposed))
        exposed = exposed | dict.fromkeys(attacking, (math.inf, "Infinite: the victim is one of the attackers."))
        scheme, views, wanted = algorithm.participation, None if drawn else views, _fingerprint(algorithm, privacy)
        return exposures(algorithm, privacy, scheme, exposed, chosen, drawn, views, hidden, wanted)

    return account


def _view_exposures(
    exposures: type[SampledExposures], view: View, privacy: Privacy, victims: Sequence[int] | None
) -> SampledExposures:
    q = privacy_of_view(view, privacy)
    scheme = cast("Sampled", q.scheme(view))
    _require_usual(scheme, dataclasses.replace(q, participation=None), METHODS[:2])
    public = view_losses(view, EveryStep(scheme.num_steps), victims, "certified")  # with its checks and warnings
    nodes = tuple(loss.node for loss in public)
    views = AttackerViews(((view, nodes),))
    unproven = next((loss.adaptive_why for loss in public if loss.adaptive_why), "")
    exposed = dict.fromkeys(nodes, (math.inf, unproven))
    return exposures(None, q, scheme, exposed, nodes, None, views, False, _fingerprint(view, q), view.release)


def _checked(algorithm: LinearAlgorithm, victims: Sequence[int] | None) -> list[int] | None:
    if victims is None:
        return None
    chosen = sorted({check.integer_at_least(0, victim=u) for u in check.listed("node indices", victims=victims)})
    if not chosen or chosen[-1] >= algorithm.num_nodes:
        raise InvalidInput(
            f"victims must be node indices below {algorithm.num_nodes}, at least one, got {chosen}; leave victims out "
            "for all nodes."
        )
    return chosen


def _require_usual(scheme: Participation, privacy: Privacy, methods: Sequence[str]) -> None:
    usual: dict[str, Any] = {"release": None, "lipschitz": None, "unit": "record", "participation": None}
    given = {name: getattr(privacy, name) for name in usual if getattr(privacy, name) != usual[name]}
    method = "monte-carlo" if isinstance(privacy.method, MonteCarlo) else privacy.method
    if method not in methods:
        given["method"] = privacy.method
    for name, value in given.items():
        raise UnsupportedMechanism(
            f"{scheme.describe()} are accounted for one record and the models that the trust model releases, by a "
            "certified bound or, with BallsInBins and an algorithm, by Monte Carlo (method='monte-carlo'); leave out "
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
    curves.BallsInBinsGaussian(1.0, bins, ((bins, 0.0),), adjacency)  # refuses either

    def noise_std(M: FloatArray) -> float:
        curve = curves.BallsInBinsGaussian(1.0, bins, curves.correlations(M), adjacency)
        return curve.least_multiplier(epsilon, delta) * math.sqrt(float(M.diagonal().max())) * UP

    return noise_std


SECRET_ACCOUNTANTS: dict[type, Callable[..., SampledExposures]] = {
    sampling.PoissonSampling: secret_accountant(PoissonExposures, fresh=True),
    sampling.BallsInBins: secret_accountant(BinsExposures, samples=True),
    sampling.CyclicPoisson: secret_accountant(CyclicPoissonExposures),
    sampling.RandomAllocation: secret_accountant(RandomAllocationExposures),
    sampling.MinSeparationSampling: secret_accountant(MinSeparationExposures),
}

"""Mechanisms of secret random batches: accounted, calibrated and trained where amplification by sampling is proven.

docs/sampling.md has the theorem; its conditions are the refusals here. What is seen may be anything that follows from
the injected sums (gradient plus noise) of all steps, if noise is fresh in each step and enters where gradients do;
hidden messages and noise that is correlated over time are refused, as no amplification is proven for them.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import archive, check, saved
from .algorithms import LinearAlgorithm
from .algorithms.registry import misplaced
from .check import FloatArray
from .errors import InvalidInput, UnsupportedMechanism, require_known
from .keywords import refusing
from .mechanism import ELSEWHERE, Accounted, emitted_hash, injected_std
from .participation import BallsInBins, PoissonSampling
from .privacy import bin_gram, binned, gaussian
from .privacy.binned import BinnedGaussian
from .privacy.composed_bins import ComposedBins
from .privacy.fingerprint import Fingerprint, participation_hash
from .privacy.forms import injection_bound, known_gradient
from .privacy.monte_carlo_bins import MonteCarlo, MonteCarloBins, normalized
from .privacy.sampled import SampledGaussian
from .privacy.sampled_guarantee import SampledGuarantee, noise_multiplier
from .trust import TrustModel

__all__ = [
    "BinnedGaussian",
    "ComposedBins",
    "MonteCarlo",
    "MonteCarloBins",
    "SampledGaussian",
    "SampledGuarantee",
    "SampledMechanism",
    "account",
    "calibrate",
    "noise_of_bins",
    "with_noise",
]

RELEASE = "not applicable"
SAME = 1e-9
"""Relative: what another version of a library may move an epsilon by."""
Secret = PoissonSampling | BallsInBins
Accountant = SampledGaussian | BinnedGaussian
Method = str | MonteCarlo
METHODS = ("certified", "monte-carlo")


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SampledMechanism(Accounted):
    """An algorithm with its noise and what that guarantees while batches are drawn secretly: what `replay` trains.

    Attributes:
        algorithm: whose participation is the sampling.
        noise_std: nu, standard deviation of Z on sums of clipped gradients.
        clip_norm: clipping threshold of a record's gradient.
        guarantee: what holds; `trust`: under which trust model.

    Raises: InvalidInput: a guarantee that was not accounted, or of other numbers or another algorithm.
    """

    algorithm: LinearAlgorithm
    noise_std: float
    clip_norm: float
    guarantee: SampledGuarantee
    trust: TrustModel

    unit = "record"
    lipschitz = None

    def __post_init__(self) -> None:
        stated = self.guarantee
        if not isinstance(stated, SampledGuarantee) or not (stated.fingerprint and stated.seal):
            raise InvalidInput(
                "a sampled mechanism needs the guarantee that was accounted for it, and this one was written or edited "
                "by hand; use mfdl.sampled.calibrate or mfdl.sampled.with_noise."
            )
        self.require_unchanged()
        if (stated.noise_std, stated.clip_norm) != (self.noise_std, self.clip_norm):
            raise InvalidInput(
                f"the guarantee is for noise_std and clip_norm {(stated.noise_std, stated.clip_norm)}, the mechanism "
                f"has {(self.noise_std, self.clip_norm)}; calibrate or account anew."
            )

    def require_unchanged(self) -> None:
        """Raises InvalidInput where the algorithm or the trust model is not the one that was accounted."""
        _require_noise_with_gradients(self.algorithm)
        accounted = Fingerprint.parse(self.guarantee.fingerprint)
        algorithm, scheme = self.algorithm, participation_hash(self.algorithm.participation)
        trust = self.trust.fingerprint(algorithm)
        own = dataclasses.replace(accounted, algorithm=algorithm.content_hash, trust=trust, participation=scheme)
        accounted.require(own, what="the guarantee is")

    # ---- files -------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the mechanism to exactly this path, whole or not at all; nothing in it is code, and no key.

        Raises: InvalidInput: as for `Mechanism.save`.
        """
        return saved.write_sampled(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: TrustModel | None = None) -> SampledMechanism:
        """The mechanism that `save` wrote: the same content hash, so the same noise and the same draws, bit for bit.

        Args: trust: who sees and knows what, where you do not leave that to the file: the guarantee is under it.
        Guarantees: the guarantee is accounted here, at the noise of the file, whatever else the file says.
        Raises: InvalidInput: no such file, another kind or format, an edited or damaged one, one that states a smaller
            epsilon than is accounted, or a trust model of the user's own that is not given.
        Cost: as `account`, and of one epsilon.
        """
        content = archive.read(path, saved.MECHANISM)
        with archive.refusing(path, saved.MECHANISM):
            return cls.of_file(saved.sampled_fields(content), trust=trust)

    @classmethod
    def of_file(cls, fields: dict[str, Any], *, trust: TrustModel | None) -> SampledMechanism:
        """Of what `saved` read: see `load`."""
        if (model := trust or fields["trust"]) is None:
            raise InvalidInput("its trust model is of your own class, which no file holds; give it: trust=....")
        asked = (fields["algorithm"], model, fields["adjacency"], fields["clip_norm"])
        method = fields["method"] if isinstance(fields["method"], str) else MonteCarlo(**fields["method"])
        tries = check.integer_at_least(0, tries=fields["tries"])
        delta = check.open_unit(stated_delta=fields["stated_delta"])
        found = _stated(asked[0], _problem(*asked, method), fields["noise_std"], fields["clip_norm"], tries)
        found = dataclasses.replace(found, stated_delta=delta)
        if fields["epsilon"] < found.epsilon(delta) * (1 - SAME):
            raise InvalidInput(
                f"it states epsilon = {fields['epsilon']!r} at delta = {delta:g}, and accounted anew it is "
                f"{found.epsilon(delta)!r}; calibrate or account anew."
            )
        made = cls(asked[0], found.noise_std, found.clip_norm, found, model)
        if made.content_hash != fields["content_hash"]:
            raise InvalidInput(f"its content hash is {made.content_hash}, and {fields['content_hash']} was saved.")
        return made

    @property
    def accounted(self) -> str:
        """Content hash of the algorithm that was accounted."""
        return Fingerprint.parse(self.guarantee.fingerprint).algorithm

    @property
    def sampling(self) -> Secret:
        """The participation that the sampler draws."""
        return require_sampling(self.algorithm)

    @property
    def injected_noise_std(self) -> float:
        """Root mean square over nodes and steps of the std added to one coordinate of a node's sum."""
        return injected_std(self.algorithm, self.noise_std)

    @property
    def content_hash(self) -> str:
        """16 hex digits of algorithm (the sampling in it), noise and clipping."""
        return emitted_hash(self.algorithm, self.noise_std, self.clip_norm)


@refusing(ELSEWHERE)
def account(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    noise_std: float | None = None,
    method: Method = "certified",
) -> SampledGuarantee:
    """What base noise of this std guarantees to a record of any node, under the algorithm's secret batches.

    Args:
        trust: who sees and knows what. Under `PoissonSampling` every message must be seen (`trust.all_messages()` of
            one that hides some); under `BallsInBins` hidden messages are counted as seen.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, > 0.
        noise_std: nu on sums of clipped gradients, >= 0; 0 guarantees nothing.
        method: "certified", or for `BallsInBins` "monte-carlo" or a `MonteCarlo`: by samples, upper bounds but for a
            probability that the guarantee states, with how many samples and their seed.

    Returns: SampledGuarantee, an upper bound for adaptive gradients; epsilon is inf without noise, and where the
        attacker knows what hides a node.
    Raises:
        InvalidInput: an argument out of range.
        UnsupportedMechanism: where amplification is not proven: another participation, noise added elsewhere than
            gradients; under `PoissonSampling` hidden messages, or noise correlated over time; under `BallsInBins` noise
            that correlates time and nodes together and is known in part, or has no encoder over both.
    Cost: that of the noise's pseudo-inverse over nodes, and O(T^3) for an encoder; numbers come when asked for.
    Source: docs/sampling.md; the pairs of one step are those of arXiv:1908.10530 and arXiv:2106.08567. Secret bins:
        docs/secret_bins.md.
    """
    if noise_std is None:
        raise InvalidInput("give the noise: noise_std, on sums of clipped gradients; for a target, use calibrate.")
    check.non_negative(noise_std=noise_std)  # before any work
    return _stated(algorithm, _problem(algorithm, trust, adjacency, clip_norm, method), noise_std, clip_norm)


@dataclasses.dataclass(frozen=True)
class _Problem:
    """What is accounted, but for the noise scale.

    Attributes: sensitivity, why: as in the guarantee; correlations, gram: of bins, as their accountants take them;
        sampling: None for what is certified.
    """

    trust: TrustModel
    adjacency: str
    sensitivity: float
    why: str
    correlations: tuple[tuple[int, float], ...] = ()
    gram: tuple[tuple[float, ...], ...] = ()
    sampling: MonteCarlo | None = None

    def accountant(self, sampling: Secret, multiplier: float) -> Accountant:
        if isinstance(sampling, BallsInBins):
            bins = multiplier, sampling.bins, self.correlations, self.adjacency
            return BinnedGaussian(*bins) if self.sampling is None else MonteCarloBins(*bins, self.gram, self.sampling)
        return SampledGaussian(multiplier, sampling.rate, sampling.steps, self.adjacency)


def _problem(
    algorithm: LinearAlgorithm, trust: TrustModel, adjacency: str, clip_norm: float, method: Method
) -> _Problem:
    samples = _samples(method, require_sampling(algorithm))
    problem = _of_victims(algorithm, trust, adjacency, _exposed(algorithm, trust, adjacency, clip_norm))
    return dataclasses.replace(problem, sampling=samples)


def _samples(method: Method, sampling: Secret) -> MonteCarlo | None:
    """How a method samples; None where it does not."""
    if not isinstance(method, MonteCarlo):
        require_known("method", str(method), METHODS)
    if method == "certified":
        return None
    if not isinstance(sampling, BallsInBins):
        raise UnsupportedMechanism(
            f"method 'monte-carlo' is for BallsInBins, got {sampling.describe()}; leave method out: what is certified "
            "of it is close to the truth."
        )
    return method if isinstance(method, MonteCarlo) else MonteCarlo()


Exposed = dict[int, tuple[float, str]]
"""Of each victim the largest [Sigma^+]_uu over members and steps, and what makes it infinite."""


def _exposed(algorithm: LinearAlgorithm, trust: TrustModel, adjacency: str, clip_norm: float) -> Exposed:
    sampling = require_sampling(algorithm)
    check.instance(TrustModel, trust=trust)
    gaussian.record_shift(adjacency, clip_norm)  # refuses either
    if not isinstance(sampling, BallsInBins):
        return _over_nodes(algorithm, trust, trust)
    seen = trust.all_messages() if trust.hides_messages(algorithm) else trust
    if not bin_gram.is_product(algorithm.noise) and bin_gram.is_block_causal(algorithm.noise):
        return _over_both(algorithm, trust, seen)
    return _over_nodes(_fresh(algorithm), trust, seen)


def _over_both(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel) -> Exposed:
    """Of noise that correlates time and nodes together: 1, its M holds all; inf for a victim whose gradient is known.

    Infinite for all victims of those who know all of the noise.
    Raises: UnsupportedMechanism: noise that is known in part, which leaves no block causal encoder.
    """
    _require_noise_with_gradients(algorithm)
    labels, exposed = algorithm.dynamics.gossip.labels, dict[int, tuple[float, str]]()
    for model, victims in seen.members(algorithm):
        if not victims:
            continue
        against = model.view(algorithm, victims[0])
        known = against.knowledge.known_noise
        if known.any() and not known.all():
            raise UnsupportedMechanism(
                f"secret bins are accounted for noise of {algorithm.name!r}, which correlates time and nodes together, "
                f"where attackers know none of it, and under trust model {trust.name!r} {trust.attacker} know a part; "
                "take one encoder for all nodes (time_space, mafalda), trust.SecLDP(), or a public participation."
            )
        for u in victims:
            why = known_gradient(against, u) or ("all noise is known" if known.all() else "")
            found = (math.inf, f"Infinite for node {labels[u]!r}: {why}.") if why else (1.0, "")
            exposed[u] = max(exposed.get(u, found), found, key=lambda each: each[0])
    return _of_somebody(exposed, trust)


def _of_somebody(exposed: Exposed, trust: TrustModel) -> Exposed:
    if not exposed:
        raise InvalidInput(f"no victim is left: {trust.attacker} leave nobody whose loss could be asked for.")
    return exposed


def _of_victims(algorithm: LinearAlgorithm, trust: TrustModel, adjacency: str, exposed: Exposed) -> _Problem:
    """That of the worst of some victims."""
    sampling = require_sampling(algorithm)
    squared, why = max(exposed.values(), key=lambda each: each[0])
    sensitivity = math.inf if math.isinf(squared) else math.nextafter(math.sqrt(squared), math.inf)
    if not isinstance(sampling, BallsInBins):
        return _Problem(trust, adjacency, sensitivity, why)
    if trust.hides_messages(algorithm):
        why = " ".join(filter(None, (why, "Messages that the attacker does not see count as seen.")))
    gram = bin_gram.time_gram(algorithm, sorted(exposed), sampling.bins)
    sensitivity *= math.sqrt(float(gram.diagonal().max())) * binned.UP
    return _Problem(trust, adjacency, sensitivity, why, binned.correlations(gram), normalized(gram))


@refusing(ELSEWHERE)
def by_victim(
    algorithm: LinearAlgorithm, *, trust: TrustModel, adjacency: str, clip_norm: float, noise_std: float
) -> dict[int, Accountant]:
    """What each victim loses to base noise of this std, by node index: the worst of them is what `account` states.

    Args, Raises: as `account`. Cost: as `account`, and O(T^3) for each node with an encoder of its own.
    """
    exposed = _exposed(algorithm, trust, adjacency, clip_norm)
    causal = algorithm.noise.causal
    alike: dict[tuple[float, int], Exposed] = {}
    for u, each in exposed.items():
        same = -1 if causal is None or causal.fresh or causal.shared else u
        alike.setdefault((each[0], same), {})[u] = each
    found: dict[int, Accountant] = {}
    for group in alike.values():
        problem = _of_victims(algorithm, trust, adjacency, group)
        found |= dict.fromkeys(group, _of_one_run(_stated(algorithm, problem, noise_std, clip_norm)))
    return {u: found[u] for u in sorted(found)}


def noise_of_bins(*, epsilon: float, delta: float, bins: int, adjacency: str) -> Callable[[FloatArray], float]:
    """What a target asks of local encoders under secret bins, as `factorization.factorize_bins` takes it.

    Returns: from M, shape (bins, bins), to the certified noise std per unit clipping norm.
    Raises: InvalidInput: epsilon not > 0, delta outside (0, 1), bins < 1, an unknown adjacency.
    """
    epsilon, delta = check.positive(epsilon=epsilon), check.open_unit(delta=delta)
    BinnedGaussian(1.0, bins, ((bins, 0.0),), adjacency)  # refuses either

    def noise_std(M: FloatArray) -> float:
        least = BinnedGaussian(1.0, bins, binned.correlations(M), adjacency).least_multiplier(epsilon, delta)
        return least * math.sqrt(float(M.diagonal().max())) * binned.UP

    return noise_std


def _stated(
    algorithm: LinearAlgorithm, problem: _Problem, noise_std: float, clip_norm: float, tries: int = 0
) -> SampledGuarantee:
    noise_std, clip_norm = check.non_negative(noise_std=noise_std), float(clip_norm)
    sampling, trust = require_sampling(algorithm), problem.trust
    multiplier = noise_multiplier(noise_std, clip_norm, problem.sensitivity)
    accountant = problem.accountant(sampling, multiplier)
    for _ in range(tries):
        accountant = accountant.retried()
    stated = SampledGuarantee(
        accountant=accountant,
        trust=trust.name,
        attacker=trust.attacker,
        participation=sampling.describe(),
        clip_norm=clip_norm,
        noise_std=noise_std,
        sensitivity=problem.sensitivity,
        why=" ".join(filter(None, (problem.why, misplaced(algorithm, trust.name)))),
    )
    return stated.sealed(Fingerprint.of(algorithm, trust, sampling, RELEASE, "record").text)


def _of_one_run(stated: SampledGuarantee) -> Accountant:
    assert not isinstance(stated.accountant, ComposedBins)
    return stated.accountant


@refusing(ELSEWHERE)
def with_noise(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    noise_std: float,
    method: Method = "certified",
) -> SampledMechanism:
    """The algorithm with a given nu and what it guarantees; arguments and refusals as for `account`."""
    asked: dict[str, Any] = {"trust": trust, "adjacency": adjacency, "clip_norm": clip_norm, "method": method}
    stated = account(algorithm, **asked, noise_std=noise_std)
    return SampledMechanism(algorithm, stated.noise_std, stated.clip_norm, stated, trust)


@refusing(ELSEWHERE)
def calibrate(
    algorithm: LinearAlgorithm,
    *,
    trust: TrustModel,
    adjacency: str,
    clip_norm: float,
    epsilon: float | None = None,
    delta: float | None = None,
    by: str = "tightest",
    method: Method = "certified",
) -> SampledMechanism:
    """The least noise, to a relative 1e-4, that meets (epsilon, delta), never overshooting it.

    By Monte Carlo the noise is chosen by samples of its own and stated by fresh ones, to a relative 1e-3 or so.

    Args: epsilon > 0 and delta in (0, 1), both needed; by: "tightest" of all bounds, or "renyi": the noise that Renyi
        accounting asks for, whose guarantee is still stated by the tightest; others as for `account`.
    Raises: as `account`; InvalidInput: infinite loss, whatever the noise.
    Cost: seconds for each target, rate, number of steps and adjacency, once in a process.
    """
    if epsilon is None:
        raise InvalidInput("give a target: epsilon with delta, which secret batches are calibrated to.")
    if delta is None:
        raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
    epsilon, delta = check.positive(epsilon=epsilon), check.open_unit(delta=delta)  # before any work
    problem = _problem(algorithm, trust, adjacency, clip_norm, method)
    stated = _stated(algorithm, problem, 1.0, clip_norm)
    if math.isinf(stated.sensitivity):
        raise InvalidInput(
            f"{algorithm.name!r} has infinite loss under trust model {trust.name!r}, whatever the noise: {stated.why} "
            "choose another trust model or mechanism."
        )
    wanted = _of_one_run(stated).least_multiplier(epsilon, delta, by=by)
    noise_std, more = gaussian.noise_std(wanted, stated.sensitivity, stated.clip_norm), 2.0**-52
    stated = _stated(algorithm, problem, noise_std, clip_norm)
    while stated.noise_multiplier < wanted:  # by rounding
        noise_std, more = noise_std * (1 + more), 2 * more
        stated = _stated(algorithm, problem, noise_std, clip_norm)
    more, tries = _of_one_run(stated).retry_step, 0
    while stated.epsilon(delta) > epsilon:  # by rounding, or by fresh samples
        noise_std, more, tries = noise_std * (1 + more), 2 * more, tries + 1
        stated = _stated(algorithm, problem, noise_std, clip_norm, tries)
    stated = dataclasses.replace(stated, stated_delta=delta)
    return SampledMechanism(algorithm, stated.noise_std, stated.clip_norm, stated, trust)


def require_sampling(algorithm: LinearAlgorithm) -> Secret:
    """The secret scheme of an algorithm. Raises: InvalidInput: no algorithm. UnsupportedMechanism: it has none."""
    check.instance(LinearAlgorithm, algorithm=algorithm)
    sampling = algorithm.participation
    if not isinstance(sampling, PoissonSampling | BallsInBins):
        raise UnsupportedMechanism(
            f"this accounts for secret batches, and the algorithm was built for {sampling.describe()}; build it with "
            "PoissonSampling(rate, steps) or BallsInBins(epochs, bins), or use mfdl.account and mfdl.calibrate."
        )
    return sampling


def _require_noise_with_gradients(algorithm: LinearAlgorithm) -> None:
    """Refuses noise elsewhere than in sums of gradients: divisors of batches would leave it undivided."""
    if algorithm.noise_on_messages or not algorithm.noise_enters_with_gradients:
        raise UnsupportedMechanism(
            f"amplification by sampling is proven where noise is added to sums of gradients, and {algorithm.name!r} "
            "adds it elsewhere; take dp_dsgd, decor or corn, or a public participation."
        )


def _fresh(algorithm: LinearAlgorithm) -> LinearAlgorithm:
    """The same with noise that is fresh in each step, for what its covariance over nodes leaves."""
    _require_noise_with_gradients(algorithm)
    if algorithm.noise.is_zero:
        return algorithm
    return dataclasses.replace(algorithm, noise=bin_gram.fresh_part(algorithm))


def _over_nodes(algorithm: LinearAlgorithm, trust: TrustModel, seen: TrustModel) -> Exposed:
    """What each victim's noise over the nodes leaves, for noise that is fresh in every step.

    Args: trust: as it is named; seen: the one whose views are looked at.
    """
    noise = algorithm.noise
    _require_noise_with_gradients(algorithm)
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
            worst[u] = max(worst.get(u, (0.0, "")), (largest, why), key=lambda each: each[0])
    return _of_somebody(worst, trust)

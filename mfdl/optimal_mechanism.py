"""The best noise for a trust model, calibrated: `optimize`; and what it gains over the best noise if all is seen."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from mfdl_solvers.ties import first_minimum

from . import check
from .algorithms import LinearAlgorithm, mafalda, message_noise, noise_error, trust_optimal
from .check import FloatArray
from .display import Shown, rounded_up
from .dynamics import Dynamics
from .errors import InvalidInput
from .gossip.sequences import communication_graph
from .mechanism import Mechanism
from .noise import CausalNoise
from .objective import ErrorWeights
from .participation import Participation
from .privacy.guarantee import Guarantee
from .privacy.losses import Losses, least_noise
from .privacy.owners import Owners
from .privacy.questions import Privacy, Target, budgets_by_pair
from .progress import Progress
from .spec import is_storable
from .trust import LDP, PNDP, AnyReceiver, TrustModel

SHOWN_NODES, MAX_COALITIONS = 6, 60  # up to which a text computes the gain, and coalitions of a size are accounted


@dataclasses.dataclass(frozen=True, repr=False)
class GainOverLDP(Shown):
    """What a trust model and its noise gain over LDP with the same steps, rounds and target.

    Attributes:
        ldp: variance in the counted models at learning rate 1 of LDP's best noise, calibrated under LDP; rescaled:
            of the same, calibrated under the trust model, infinite if attackers know it; optimal: of the mechanism.
        mu: what the mechanism guarantees against other attackers, in words.
    """

    ldp: float
    rescaled: float
    optimal: float
    mu: Mapping[str, float]

    @property
    def accounting(self) -> float:
        """Share of the variance that LDP's noise saves by the weaker attacker."""
        return 1 - self.rescaled / self.ldp

    @property
    def better_noise(self) -> float:
        """Share of the rest that the noise of the mechanism saves."""
        return 1 - self.optimal / self.rescaled

    def _sentence(self) -> str:
        shares = (1 - self.optimal / self.ldp, self.accounting, self.better_noise)
        total, accounting, noise = (f"{round(share, 4) + 0.0:.1%}" for share in shares)  # + 0.0: no minus zero
        lines = [
            f"{total} less variance in the models than LDP's best noise",
            f"{accounting} by accounting, then {noise} by better noise"
            if math.isfinite(self.rescaled)
            else "which does not protect here: attackers know the noise of a node",
            *(f"mu {rounded_up(mu, 3)} against {attacker}" for attacker, mu in self.mu.items()),
        ]
        return "\n  ".join(lines)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Optimized(Mechanism):
    """What `optimize` returns: a mechanism with the question that its noise is the best answer to."""

    _: dataclasses.KW_ONLY
    aim: Aim | None = None

    @functools.cached_property
    def gain(self) -> GainOverLDP:
        """What it gains over LDP's best noise, and mu if links are tapped or nodes collude.

        Sizes of more than MAX_COALITIONS coalitions are left out.
        Raises: UnsupportedMechanism: momentum or weight decay. Cost: an accounting for each coalition, on first use.
        """
        assert self.aim is not None
        aim, dynamics = self.aim, self.algorithm.dynamics
        seen = mafalda(dynamics, self.algorithm.participation, weights=aim.weights)
        under_ldp = aim.under(LDP())
        ldp = under_ldp.mechanism(seen, under_ldp.losses(seen))
        placed = _in_first_messages(seen, published=aim.published)
        computed, rescaled = aim.losses(placed), math.inf
        if math.isfinite(computed.worst.squared):
            rescaled = aim.variance(aim.mechanism(placed, computed))
        return GainOverLDP(aim.variance(ldp), rescaled, aim.variance(self), self._against_others(aim))

    def _against_others(self, aim: Aim) -> dict[str, float]:
        algorithm, n = self.algorithm, self.algorithm.num_nodes

        def mu(trust: TrustModel, victims: Sequence[int] | None = None) -> float:
            computed = aim.under(trust).losses(algorithm, victims)
            curves = computed.curves(self.noise_std, adaptive=True).values()
            return max(math.inf if curve.mu is None else curve.mu for curve in curves)

        others = {"an attacker who taps every link (LDP)": mu(LDP())}
        for size in (2, 3):
            if size < n and math.comb(n, size) <= MAX_COALITIONS:
                others[f"any {size} nodes together, from what they receive"] = mu(AnyReceiver(size))
        if n <= MAX_COALITIONS:
            rounds = algorithm.num_steps * algorithm.dynamics.gossip_rounds
            graph, labels = communication_graph(algorithm.dynamics.gossip, rounds), list(algorithm.labels)
            near = ([f"#{labels.index(label)}" for label in graph[v] if label != v] for v in labels)
            parts = [mu(PNDP(nodes), [v]) for v, nodes in enumerate(near) if nodes]
            others["all neighbours of a node together"] = max(parts, default=0.0)
        return others

    def _sentence(self) -> str:
        if self.aim is None or not self.algorithm.dynamics.is_plain:
            return super()._sentence()
        few = self.algorithm.num_nodes <= SHOWN_NODES
        gain = self.gain._sentence() if few else "gain over LDP: print(mechanism.gain)"
        return f"{super()._sentence()}\n{gain}"


@dataclasses.dataclass(frozen=True, eq=False)
class Aim:
    """A question, a target or budgets by pair, and the models whose variance counts."""

    privacy: Privacy
    target: Mapping[str, Any]
    budgets: FloatArray | None
    weights: ErrorWeights
    published: bool
    progress: Progress = False

    def under(self, trust: TrustModel) -> Aim:
        """The same against other attackers; of budgets by pair the least holds."""
        privacy = dataclasses.replace(self.privacy, trust=trust)
        target = self.target if self.budgets is None else {"mu": float(self.budgets.min())}
        return dataclasses.replace(self, privacy=privacy, target=target, budgets=None)

    def losses(self, algorithm: LinearAlgorithm, victims: Sequence[int] | None = None) -> Losses:
        return Losses.from_algorithm(algorithm, self.privacy, victims=victims, progress=self.progress)

    def guarantee(self, algorithm: LinearAlgorithm, computed: Losses) -> Guarantee:
        if self.budgets is None:
            return computed.calibrate(**self.target)
        pairs = []
        for attacker in range(algorithm.num_nodes):
            victims = self.under(PNDP([f"#{attacker}"])).losses(algorithm).sensitivities
            pairs += [(loss, Target(mu=float(self.budgets[loss.node, attacker]))) for loss in victims]
        return computed.guarantee(least_noise(pairs, self.privacy, adaptive=True)[0])

    def mechanism(self, algorithm: LinearAlgorithm, computed: Losses) -> Optimized:
        quiet = dataclasses.replace(self, progress=False)
        return Optimized(algorithm, self.guarantee(algorithm, computed), self.privacy.trust, aim=quiet)

    def variance(self, mechanism: Mechanism) -> float:
        return mechanism.noise_std**2 * noise_error(mechanism.algorithm, weights=self.weights).value


def optimize(
    dynamics: Dynamics,
    participation: Participation,
    privacy: Privacy,
    *,
    mu: float | ArrayLike | Mapping[Hashable, float] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    weights: ErrorWeights | None = None,
    published: bool = True,
    price: float = 1e-3,
    seeds: Sequence[Sequence[int]] = (),
    tolerance: float = 1e-3,
    progress: Progress = "auto",
) -> Optimized:
    """The mechanism whose noise is the best for a trust model, calibrated: `replay` trains it.

    If every message is seen, or with momentum or weight decay, it is mafalda, else `algorithms.trust_optimal`; or
    mafalda, if its error is less, as where the number of hidden messages is not proven for adaptive gradients.
    `mechanism.algorithm.factorization` is the certificate: its gap bounds what better noise of the class could gain.
    `mechanism.gain` splits the gain over LDP into accounting and better noise, with mu against stronger attackers.

    >>> import mfdl
    >>> dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=5"), 0.1, gossip_rounds=2)
    >>> privacy = mfdl.Privacy(mfdl.trust.AnyReceiver(), adjacency="zero-out", clip_norm=1.0)
    >>> mechanism = optimize(dynamics, mfdl.EveryStep(1), privacy, mu=0.5, progress=False)
    >>> mechanism.algorithm.name, mechanism.guarantee.mu <= 0.5
    ('trust-optimal', True)

    Args:
        mu, epsilon, delta, progress: the target, as for `calibrate`. mu may be a budget for each pair under
            `trust.AnyReceiver()`: an array mu[victim, attacker], shape (n, n), whose diagonal does not count, or a
            mapping over pairs of labels. Noise meets all of them.
        weights, published, price, seeds, tolerance: as for `algorithms.trust_optimal`. Under `trust.SecureSum`, which
            sees sums alone, published must be False.
    Raises: as `calibrate` and `algorithms.trust_optimal`; UnsupportedMechanism: secret batches.
    """
    check.instance(Privacy, privacy=privacy)
    check.instance(TrustModel, trust=privacy.trust)
    by_pair = isinstance(mu, Mapping) or np.ndim(cast("Any", mu)) > 0
    budgets = budgets_by_pair(dynamics.gossip.labels, cast("Any", mu)) if by_pair else None
    target: dict[str, Any] = {"mu": None if by_pair else mu, "epsilon": epsilon, "delta": delta}
    if budgets is None:
        Target(**target)  # refuses what is none before any work
    elif (epsilon, delta) != (None, None) or privacy.trust != AnyReceiver():
        raise InvalidInput("budgets by pair are given as mu alone, under trust.AnyReceiver().")
    elif Owners.from_value(privacy.owners).shared:
        raise InvalidInput("budgets by pair are of single nodes; leave owners out, or give one mu for all.")
    if privacy.participation not in (None, participation):
        raise InvalidInput("privacy has another participation; leave it out there.")
    question = dataclasses.replace(privacy, participation=None)
    aim = Aim(question, target, budgets, ErrorWeights() if weights is None else weights, published, progress)
    of_seen = mafalda(dynamics, participation, weights=weights, tolerance=tolerance)
    base = message_noise(dynamics, participation, published=published) if dynamics.is_plain else None
    if base is None or (not seeds and not privacy.trust.hides_messages(base)):
        return aim.mechanism(of_seen, aim.losses(of_seen))
    options: dict[str, Any] = {"published": published, "release": privacy.release, "price": price, "weights": weights}
    options |= {"budgets": budgets, "seeds": seeds, "tolerance": tolerance}
    algorithm = trust_optimal(dynamics, participation, privacy.trust, **options)
    computed = aim.losses(algorithm)
    mechanisms = [aim.mechanism(algorithm, computed)]
    if not computed.exposures.together.adaptive:
        # masks of the caller are for the messages of `base`
        other = of_seen if is_storable(privacy.trust) else _in_first_messages(of_seen, published=published)
        if math.isfinite((computed := aim.losses(other)).worst.squared):  # else an attacker knows the noise of a node
            mechanisms.append(aim.mechanism(other, computed))
    return first_minimum(mechanisms, key=aim.variance)


def _in_first_messages(algorithm: LinearAlgorithm, *, published: bool) -> LinearAlgorithm:
    """Noise on gradients as noise on the first message of each step, with the models of `algorithm`."""
    noise, T, n = algorithm.noise.causal, algorithm.num_steps, algorithm.num_nodes
    assert noise is not None
    factor = sp.csr_array(sp.kron(sp.eye_array(algorithm.dynamics.gossip_rounds + published, 1), noise.mixing))
    placed = CausalNoise(noise.encoder, factor, noise.holders(), num_steps=T, num_nodes=n)
    return message_noise(algorithm.dynamics, algorithm.participation, placed, published=published, name=algorithm.name)

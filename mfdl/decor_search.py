"""Noise of DECOR for a privacy target: pairs (sigma_ldp, sigma_cor), none of which exceeds it.

A target fixes the least sigma_cor for every sigma_ldp between CDP's and LDP's; several pairs are returned for tuning.
The search is by the price of one step; the result is calibrated with the exact accountant and meets the target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from . import check, graphs, node_covariances
from .algorithms import decor
from .dynamics import Dynamics
from .errors import InvalidInput, require_known
from .factorization.pairwise_covariance import PairwisePrice
from .mechanism import Mechanism, require_unit
from .noise_scale import calibrate
from .participation import Participation
from .privacy import gaussian
from .privacy.questions import Privacy
from .trust import Coalitions, Colluding, Eavesdropper, TrustModel

BUDGETS = ("gdp", "renyi", "corollary")
GRID = 16
POSITIONS = (1 / GRID, 1 / 2, 1.0)
COROLLARY_RANGE = 8 * (1 - 1 / math.sqrt(2))  # 2.343: times log(1/delta), the largest epsilon that it meets
MOST_PAIRWISE = 1e3  # sigma_cor / sigma_ldp, at most: the lower end of sigma_ldp would need infinitely much


@dataclasses.dataclass(frozen=True, eq=False)
class DecorDeviations:
    """One choice of noise: standard deviations on clipped gradients, and the mechanism that has them."""

    sigma_ldp: float
    sigma_cor: float
    mechanism: Mechanism


def decor_deviations(
    dynamics: Dynamics,
    participation: Participation,
    privacy: Privacy,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    budget: str = "gdp",
    positions: Sequence[float] = POSITIONS,
) -> list[DecorDeviations]:
    """Pairs at several sigma_ldp, each with the least sigma_cor that meets the target.

    Args:
        privacy: trust model, adjacency, clipping and unit alone. Trust is Eavesdropper() (the default),
            Colluding(colluders), or Coalitions(q). The published setting has unit "user" and replace-one.
        epsilon with delta, or mu: the target of Gaussian DP.
        participation: public, or PoissonSampling(rate, steps): docs/sampling_theorem.md.
        budget: how much of the target noise may spend: "gdp" all of it, exactly; "renyi" what the inverted Rényi bound
            of the papers allows (epsilon only); "corollary" the closed form, one pair (user level, replace-one). With
            sampling "gdp" is the tightest bound of `PoissonGaussian`, and "renyi" that of Rényi accounting.
        positions: places of sigma_ldp between its bounds, in (0, 1]; 1 is independent noise alone.

    Returns: one DecorDeviations per position, in order. Guarantees: no mechanism's guarantee exceeds the target.
    Raises: InvalidInput: no such budget or target; another trust model; unit "user" with sampling.
    Source: arXiv:2405.01031, Appendix D.1; docs/claims.md lists what is wrong in it under that item.
    """
    check.instance(Dynamics, dynamics=dynamics)
    check.instance(Participation, participation=participation)
    check.instance(Privacy, privacy=privacy)
    privacy.require_only(("trust", "adjacency", "clip_norm", "unit"), "the search")
    q = _coalition_size(privacy.trust or Eavesdropper())
    privacy = dataclasses.replace(privacy, trust=privacy.trust or Eavesdropper())
    require_known("budget", budget, BUDGETS)
    if drawn := participation.secret:
        require_unit(privacy.unit, participation)
    spent = (_spent_sampled if drawn else _spent)(budget, mu, epsilon, delta)
    graph = dynamics.gossip.at(0).graph()
    if budget == "corollary":
        if epsilon is None or delta is None:
            raise InvalidInput("budget 'corollary' needs epsilon and delta.")
        if drawn:
            raise InvalidInput("budget 'corollary' knows no sampling; use 'gdp' or 'renyi'.")
        require_unit(privacy.unit, participation)
        local, pair = corollary_noise(
            graph,
            epsilon=epsilon,
            delta=delta,
            num_colluders=q,
            clip_norm=privacy.record_shift / 2,
            num_steps=participation.patterns_of_record().uses,
        )
        algorithm = decor(dynamics, participation, sigma_ldp=local, sigma_cor=pair)
        return [DecorDeviations(local, pair, calibrate(algorithm, privacy, noise_std=1.0))]
    pairs = []
    for ratio in pair_ratios(PairwisePrice(graph, q), positions):
        algorithm = decor(dynamics, participation, sigma_ldp=1.0, sigma_cor=math.sqrt(ratio))
        mechanism = calibrate(algorithm, privacy, **spent)
        std = mechanism.noise_std
        pairs.append(DecorDeviations(std, std * math.sqrt(ratio), mechanism))
    return pairs


def corollary_noise(
    graph: graphs.Source,
    *,
    epsilon: float,
    delta: float,
    num_colluders: int = 0,
    clip_norm: float = 1.0,
    num_steps: int,
) -> tuple[float, float]:
    """(sigma_ldp, sigma_cor) for a target against any q colluders, in closed form, under replace-one.

        sigma_ldp^2 = 32 C^2 T L / ((n - q) epsilon^2)
        sigma_cor^2  = 32 C^2 T L / (a_q epsilon^2),  L = log(1 / delta)

    q = num_colluders, C = clip_norm, T = num_steps; a_q: the least algebraic connectivity without q nodes.
    Raises: InvalidInput: epsilon above 2.343 L, q nodes disconnect the graph, or a number out of range.
    Source: arXiv:2405.01031, Corollaries 3 and 12; by its theorem they guarantee (epsilon, delta) in this range.
    """
    epsilon, L = check.positive(epsilon=epsilon), -math.log(check.open_unit(delta=delta))
    C, T = check.positive(clip_norm=clip_norm), check.integer_at_least(1, num_steps=num_steps)
    if epsilon > COROLLARY_RANGE * L:
        raise InvalidInput(
            f"epsilon must be at most 2.343 log(1/delta) = {COROLLARY_RANGE * L:.4g} for this corollary, got "
            f"{epsilon:g}; the exact mu for this budget is mu_from_epsilon({epsilon:g}, {delta:g}) = "
            f"{gaussian.mu_from_epsilon(epsilon, delta):.6g}: budget 'gdp' of decor_deviations chooses the noise by it."
        )
    G = graphs.load(graph)
    a = node_covariances.algebraic_connectivity_after_deletion(G, num_colluders)
    if a == 0:
        raise InvalidInput(
            f"graph must stay connected without any {num_colluders} of its nodes for this corollary; take fewer "
            f"colluders or add edges, or budget 'gdp' of decor_deviations."
        )
    common = 32 * C**2 * T * L / epsilon**2
    return math.sqrt(common / (G.number_of_nodes() - num_colluders)), math.sqrt(common / a)


def pair_ratios(price: PairwisePrice, positions: Sequence[float] = POSITIONS) -> list[float]:
    """The least sigma_cor^2 / sigma_ldp^2 for each place of sigma_ldp: the same for every target, clipping and T."""
    # the price, which falls with the ratio, in units of 1 / sigma_ldp^2: sigma_ldp^2 = price(ratio)
    cheapest = math.sqrt(price(MOST_PAIRWISE**2))
    ratios = []
    for position in check.listed("numbers in (0, 1]", positions=positions):
        if not 0 < check.non_negative(position=position) <= 1:
            raise InvalidInput(f"positions must lie in (0, 1], got {position!r}; 1 is independent noise alone.")
        wanted = (cheapest + position * (1 - cheapest)) ** 2
        low, high = -math.log(1e12), math.log(MOST_PAIRWISE**2)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if price(math.exp(middle)) <= wanted else (middle, high)
        ratios.append(0.0 if wanted >= 1 else math.exp(high))
    return ratios


def _coalition_size(trust: TrustModel) -> int:
    if isinstance(trust, Eavesdropper):
        return 0
    if isinstance(trust, Colluding):
        return len(trust.colluders)
    if isinstance(trust, Coalitions):
        return trust.size
    raise InvalidInput(
        f"DECOR hides secrets from an eavesdropper or from colluders that do not hold them; trust model {trust.name!r} "
        "is neither: use Eavesdropper() or Coalitions(q)."
    )


def _spent_sampled(budget: str, mu: float | None, epsilon: float | None, delta: float | None) -> dict[str, Any]:
    if mu is not None or epsilon is None or delta is None:
        raise InvalidInput(
            "with sampling the target is epsilon with delta, e.g. epsilon=2, delta=1e-5; there is no mu."
        )
    return {"epsilon": epsilon, "delta": delta, "by": "renyi" if budget == "renyi" else "tightest"}


def _spent(budget: str, mu: float | None, epsilon: float | None, delta: float | None) -> dict[str, Any]:
    if (mu is None) == (epsilon is None):
        raise InvalidInput("give exactly one target: mu, or epsilon with delta.")
    if mu is not None:
        if budget != "gdp":
            raise InvalidInput(f"budget {budget!r} is defined by epsilon and delta, not by mu.")
        return {"mu": check.positive(mu=mu)}
    if delta is None:
        raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-5.")
    assert epsilon is not None
    if budget == "renyi":
        return {"mu": gaussian.mu_from_renyi(epsilon, delta)}
    return {"epsilon": check.positive(epsilon=epsilon), "delta": check.open_unit(delta=delta)}

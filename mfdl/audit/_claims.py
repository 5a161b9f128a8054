"""What is claimed for each victim: mu as the accountant finds it now, or as a guarantee states it, if that is smaller.

In: the losses of the victims, a mechanism with its guarantee. Out: mu by victim, and in words where the two differ. An
audit of the accountant's number alone would miss a guarantee that was computed wrongly from it, or long ago.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..privacy import gaussian
from ..privacy.accounting import VictimLoss
from ..privacy.guarantee import EVERY_NODE
from ..trust import TrustModel

SAME = 1e-9  # relative: two ways of rounding one mu differ by less


def accounted(loss: VictimLoss, shift: float, noise_std: float) -> float:
    """mu of one victim as the accountant finds it now, rounded up; may be 0 or inf."""
    if not 0 < loss.adaptive_sensitivity_squared < math.inf:
        return loss.adaptive_sensitivity_squared
    sensitivity = math.nextafter(math.sqrt(loss.adaptive_sensitivity_squared), math.inf)
    return gaussian.mu_from_noise_std(sensitivity, shift, noise_std)


def guaranteed(
    mechanism: Mechanism,
    trust: TrustModel,
    losses: Sequence[VictimLoss],
    accounted: Mapping[int, float],
    *,
    of_all: bool,
) -> tuple[dict[int, float], list[str]]:
    """mu that the mechanism's own guarantee states for each victim it is about, and where that is not what is audited.

    Args: of_all: `losses` are those of every victim.
    """
    if mechanism.lipschitz is not None:
        why = f"the claim audited does not rest on lipschitz={mechanism.lipschitz:g}, the mechanism's own does"
        return {}, [why]
    own, labels = mechanism.guarantee, mechanism.algorithm.dynamics.gossip.labels
    about = (own.trust, own.attacker, own.release, own.adaptive)
    if about != (trust.name, trust.attacker, losses[0].release, True):
        adaptive = "" if own.adaptive else ", for gradients fixed in advance"
        why = f"the claim audited is accounted anew, as the guarantee is about {own.attacker} ({own.trust}{adaptive})"
        return {}, [f"{why}, released models: {own.release}"]
    covered = {u: own.mu for u in accounted if own.victim in (EVERY_NODE, str(labels[u]))}
    found = max((accounted[u] for u in covered), default=own.mu)
    larger = found < own.mu * (1 - SAME) and (of_all or own.victim != EVERY_NODE)  # than that of its own victims
    if larger or found > own.mu * (1 + SAME):
        why = f"the guarantee states mu = {own.mu:.6g}, accounted anew it is {found:.6g}; the smaller is audited"
        return covered, [why]
    return covered, []


def refutable(
    accounted: Mapping[int, float],
    guaranteed: Mapping[int, float],
    losses: Sequence[VictimLoss],
    algorithm: LinearAlgorithm,
    trust: TrustModel,
) -> tuple[dict[int, float], dict[int, float]]:
    """(mu claimed, mu that runs should show) by victim, where runs could refute a claim: finite, and something is seen.

    A guarantee below what is accounted needs no more trials than that, so it is the latter that runs should show.

    Raises: InvalidInput: there is no such victim.
    """
    claims, expected = {}, {}
    for u, mu in accounted.items():
        claim = min(mu, guaranteed.get(u, math.inf))
        if mu > 0 and claim < math.inf:
            claims[u], expected[u] = claim, mu if mu < math.inf else claim
    if not claims:
        why = next((w for one in losses if (w := one.adaptive_why or one.fixed.why)), "nothing of the record is seen")
        raise InvalidInput(
            f"{algorithm.name} claims nothing that an audit could refute under {trust.name}: {why}; choose a trust "
            "model under which its mu is finite and > 0 (`mfdl mechanisms` lists them)."
        )
    return claims, expected

"""What is claimed for each victim: mu as the accountant finds it now, or as a guarantee states it, if that is smaller.

In: the losses of the victims, a mechanism with its guarantee. Out: mu by victim, and in words where the two differ. An
audit of the accountant's number alone would miss a guarantee that was computed wrongly from it, or long ago.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..privacy.accounting import VictimLoss
from ..privacy.words import EVERY_NODE
from ..trust import TrustModel

SAME = 1e-9  # relative: two ways of rounding one mu differ by less


@dataclasses.dataclass(frozen=True)
class Claims:
    """What is claimed where runs could refute it.

    Attributes:
        mu: claimed, by victim; expected: mu that runs should show. A guarantee below what is accounted needs no more
            trials than that, so it is the latter that runs should show.
        notes: where a mechanism's guarantee is not what is audited, and whom nothing is claimed for.
    """

    mu: dict[int, float]
    expected: dict[int, float]
    notes: tuple[str, ...] = ()

    def kept(self, victims: Collection[int], why: str) -> Claims:
        """Those of some victims; a note names the others and says why."""
        if not (others := sorted(self.mu.keys() - set(victims))):
            return self
        mu, expected = ({u: x for u, x in numbers.items() if u in victims} for numbers in (self.mu, self.expected))
        return Claims(mu, expected, (*self.notes, f"not audited, since {why}: nodes {others}"))


def refutable(
    mechanism: Mechanism | None,
    name: str,
    trust: TrustModel,
    losses: Sequence[VictimLoss],
    mus: Mapping[int, float],
    *,
    of_all: bool,
) -> Claims:
    """The finite claims above nothing.

    Args:
        mechanism: whose guarantee counts, if any; name: of the algorithm; losses: of the victims asked for; mus: what
            is accounted for each; of_all: `losses` are those of every victim.
    Raises: InvalidInput: there is no such victim.
    """
    stated, notes = ({}, ()) if mechanism is None else _guaranteed(mechanism, trust, losses, mus, of_all)
    least = {u: min(mu, stated.get(u, math.inf)) for u, mu in mus.items()}
    expected = {u: mu if mu < math.inf else least[u] for u, mu in mus.items()}
    sound = [u for u, mu in mus.items() if mu > 0 and least[u] < math.inf]
    if not sound:
        why = next(
            (w for loss in losses if (w := loss.adaptive_why or loss.fixed.why)), "nothing of the record is seen"
        )
        raise InvalidInput(
            f"{name} claims nothing that an audit could refute under {trust.name}: {why}; choose a trust model under "
            "which its mu is finite and > 0 (`mfdl mechanisms` lists them)."
        )
    return Claims(least, expected, notes).kept(sound, "nothing finite is claimed")


def _guaranteed(
    mechanism: Mechanism, trust: TrustModel, losses: Sequence[VictimLoss], mus: Mapping[int, float], of_all: bool
) -> tuple[dict[int, float], tuple[str, ...]]:
    """mu that its own guarantee states for each victim it is about, and where that is not what is audited."""
    if mechanism.lipschitz is not None:
        why = f"the claim audited does not rest on lipschitz={mechanism.lipschitz:g}, the mechanism's own does"
        return {}, (why,)
    stated, labels = mechanism.guarantee, mechanism.algorithm.dynamics.gossip.labels
    mu = stated.curve.public_mu
    about = (stated.trust, stated.attacker, stated.release, stated.adaptive)
    if about != (trust.name, trust.attacker, losses[0].release, True):
        model = stated.trust if stated.adaptive else f"{stated.trust}, for gradients fixed in advance"
        why = f"the claim audited is accounted anew, as the guarantee is about {stated.attacker} ({model})"
        return {}, (f"{why}, released models: {stated.release}",)
    each = {label: curve.mu for label, curve in stated.victims if curve.mu is not None}
    covered = {u: each.get(str(labels[u]), mu) for u in mus if stated.victim in (EVERY_NODE, str(labels[u]))}
    anew = max((mus[u] for u in covered), default=mu)
    larger = anew < mu * (1 - SAME) and (of_all or stated.victim != EVERY_NODE)  # than that of its own victims
    if larger or anew > mu * (1 + SAME):
        why = f"the guarantee states mu = {mu:.6g}, accounted anew it is {anew:.6g}; the smaller is audited"
        return covered, (why,)
    return covered, ()

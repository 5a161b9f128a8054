"""Exposures: the loss of each victim per unit of noise, for public patterns, and for views that are matrices alone.

A bare view says not how gradients depend on messages: a number holds for non-adaptive gradients, and for adaptive ones
where `adaptive` proves it. The trust model of such a question shows exactly what the view shows.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from mfdl_solvers.ties import equal_to_largest

from .. import check
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, require_known
from ..participation import Participation
from ..progress import Progress
from ..sensitivity.patterns import METHODS
from ..trust import TrustModel
from ..trust.knowledge import Knowledge
from ..trust.view import AlgorithmView, ProcessedView, View
from . import gaussian
from .attacking_sets import sensitivity_by_victim
from .forms import joint_grams, view_grams
from .forms.dense_form import may_be_rounded
from .gram_sensitivity import Sensitivity, warn_of_rank
from .owners import Owners, Victim, checked_victim, in_order, require_nodes, require_one_owner, victim_nodes
from .questions import UNITS, Fingerprint, Privacy, participation_hash, require_unit
from .victim_sensitivity import (
    MOST_SHOWN,
    THE_VIEW,
    JointConditions,
    VictimSensitivity,
    is_adaptive,
    nodes_and_groups,
    victim_sensitivities,
    worst_loss,
)

NOT_PROVEN = (
    "A and B do not say at which models gradients are taken, so nothing proves the number for adaptive gradients; "
    "View(A, B, models=(M_G, M_Z), row_steps=...) does where every model is a combination of rows seen before"
)
COMPUTED = "the losses were computed"
GIVEN_NOT_PROVEN = (
    "some of the given models is not a combination of rows seen before its gradient, so nothing proves the number for "
    "adaptive gradients; give the rows that show it, or account the algorithm under a trust model"
)


class Exposures(abc.ABC):
    """The losses that answer one question, noise not fixed."""

    @property
    @abc.abstractmethod
    def each(self) -> tuple[VictimSensitivity, ...]:
        """The loss of each victim, in node order; victims in one group may share a number."""

    @property
    @abc.abstractmethod
    def together(self) -> VictimSensitivity:
        """The worst loss of all victims: it rests on every assumption that any of them needs."""

    @property
    @abc.abstractmethod
    def nodes(self) -> set[int]: ...

    @property
    def tied(self) -> int:
        numbers = [loss.number(adaptive=self.adaptive).squared for loss in self.each]
        return int(equal_to_largest(numbers).sum())

    @property
    def adaptive(self) -> bool:
        """Whether numbers for adaptive gradients are proven, finite or not."""
        return True

    @property
    def why(self) -> str:
        """The obstacle to better numbers, for all victims; may be empty."""
        return ""

    @abc.abstractmethod
    def require(self, algorithm: LinearAlgorithm, privacy: Privacy) -> None: ...

    @abc.abstractmethod
    def refuse(self, **given: Any) -> None:
        """Refuses targets and noise scales that are meaningless for this participation; None is never refused."""


@dataclasses.dataclass(frozen=True, eq=False)
class PublicExposures(Exposures):
    """Losses with public patterns, of at least one victim: one Gaussian for each, exact or certified."""

    losses: Sequence[VictimSensitivity]

    def __post_init__(self) -> None:
        if not self.losses:
            raise InvalidInput("losses must be of at least one victim.")

    @property
    def each(self) -> tuple[VictimSensitivity, ...]:
        return tuple(self.losses)

    @functools.cached_property
    def together(self) -> VictimSensitivity:
        worst = worst_loss(self.losses, adaptive=self.adaptive)
        constants = (loss.lipschitz for loss in self.losses if loss.lipschitz is not None)  # the worst need not rest on
        release = max({loss.release for loss in self.losses}, key=MOST_SHOWN.index)  # exact: a place in a tuple
        every = dataclasses.replace(worst, release=release, lipschitz=min(constants, default=None))
        return every.answering(worst.fingerprint)

    @functools.cached_property
    def nodes(self) -> set[int]:
        return {u for loss in self.losses for u in victim_nodes(loss.victim)}

    def require(self, algorithm: LinearAlgorithm, privacy: Privacy) -> None:
        require_unit(privacy.unit, privacy.participation_in(algorithm))
        # the models that a view holds need not be those asked for, and statements name those that it holds
        require_same(self.losses, algorithm, dataclasses.replace(privacy, release=None))

    def refuse(self, **given: Any) -> None:
        if given.get("by", "tightest") != "tightest":
            raise InvalidInput(
                f"by must be 'tightest' where steps are public, got {given['by']!r}: it chooses among bounds of "
                "PoissonSampling; leave it out."
            )


def public_exposures(
    algorithm: LinearAlgorithm,
    privacy: Privacy,
    *,
    victims: Sequence[Victim] | None = None,
    progress: Progress = "auto",
) -> PublicExposures:
    """The accountant of public patterns; see `sensitivity_by_victim`.

    Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
    """
    q = privacy
    require_unit(q.unit, q.participation_in(algorithm), lipschitz=q.lipschitz)
    gaussian.record_shift(q.adjacency, q.clip_norm)  # what is wrong with them is reported before any work
    losses = sensitivity_by_victim(
        algorithm,
        q.trust,
        victims=victims,
        participation=q.participation,
        release=q.release,
        method=str(q.method),
        lipschitz=q.lipschitz,
        unit=q.unit,
        owners=q.owners,
        progress=progress,
    )
    by_victim = {loss.victim: loss for loss in losses}
    return PublicExposures(tuple(by_victim[victim] for victim in in_order(by_victim)))


def require_same(losses: Sequence[VictimSensitivity], algorithm: LinearAlgorithm, privacy: Privacy) -> None:
    """Refuses losses of another question; any release, if the question names none."""
    q = privacy
    scheme = q.participation_in(algorithm)
    wanted = Fingerprint.from_question(algorithm, q.trust, scheme, q.release or "", q.unit, q.owners)
    for loss in {(loss.fingerprint, loss.unit, loss.release): loss for loss in losses}.values():  # one of each
        if loss.fingerprint is None:
            raise InvalidInput("losses must come from sensitivity_by_victim, which records what they are for.")
        subject = COMPUTED if loss.unit == q.unit else f"{COMPUTED} for unit {loss.unit!r}, not {q.unit!r}:"
        other = wanted if q.release else dataclasses.replace(wanted, release=loss.release)
        loss.fingerprint.require(other, subject=subject)
    if q.unit == "user" and any(loss.lipschitz is not None for loss in losses):
        raise InvalidInput("unit 'user' cannot rest on shift reduction; compute the losses without lipschitz.")


@dataclasses.dataclass(frozen=True, eq=False)
class AsGiven(TrustModel):
    of_view: View
    name = "matrices"

    @property
    def attacker(self) -> str:
        return self.of_view.attacker

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        raise InvalidInput("a bare view is no trust model over algorithms; use TrustModel.from_masks.")

    def members(self, algorithm: Any) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        """Itself, with every node but those all of whose gradients it knows."""
        yield self, tuple(u for u in range(self.of_view.num_nodes) if not self.of_view.marked_gradients[:, u].all())

    def fingerprint(self, algorithm: Any) -> str:
        return self.of_view.content_hash


@dataclasses.dataclass(frozen=True, eq=False)
class ViewExposures(PublicExposures):
    """Losses of matrices: for adaptive gradients where all of them are proven, else for non-adaptive gradients."""

    @property
    def adaptive(self) -> bool:
        return all(loss.adaptive for loss in self.losses)

    @property
    def why(self) -> str:
        if self.adaptive:
            return ""
        given = any(loss.adaptive_sensitivity.why == GIVEN_NOT_PROVEN for loss in self.losses)
        why = GIVEN_NOT_PROVEN if given else NOT_PROVEN
        return f"{why[0].upper()}{why[1:]}."

    def require(self, algorithm: Any, privacy: Privacy) -> None:
        wanted = view_fingerprint(algorithm, privacy_of_view(algorithm, privacy))
        for loss in self.losses:
            assert loss.fingerprint is not None
            loss.fingerprint.require(dataclasses.replace(wanted, release=loss.release), subject=COMPUTED)


def view_exposures(view: View, privacy: Privacy, *, victims: Sequence[Victim] | None = None) -> ViewExposures:
    """The accountant of matrices; see `view_losses`.

    Raises: InvalidInput: no participation, an option that only algorithms have, or a unit that cannot be protected.
    """
    q = privacy_of_view(view, privacy)
    scheme = q.scheme(view)
    for name, way in (("release", "its rows are in A and B"), ("lipschitz", "shift reduction needs an algorithm")):
        if getattr(q, name) is not None:
            raise InvalidInput(f"{name} must be left out with a View, got {getattr(q, name)!r}: {way}.")
    gaussian.record_shift(q.adjacency, q.clip_norm)  # refuses either
    scheme.require_public()
    require_unit(q.unit, scheme)
    losses = view_losses(view, scheme, victims, str(q.method), unit=q.unit, owners=q.owners)
    wanted = view_fingerprint(view, q)
    return ViewExposures(tuple(loss.answering(dataclasses.replace(wanted, release=loss.release)) for loss in losses))


def privacy_of_view(view: View, privacy: Privacy) -> Privacy:
    """The question with the trust model of the matrices. Refuses another one, and the view of a trust model."""
    if isinstance(view, AlgorithmView):
        raise InvalidInput(
            "the view of a trust model is about the victims and the releases that the model names; give the algorithm "
            "and the trust model, mfdl.account(algorithm, mfdl.Privacy(trust, ...)), or the matrices as a View of "
            "your own."
        )
    given = privacy.trust
    if isinstance(given, AsGiven) and given.of_view.content_hash == view.content_hash:
        return privacy
    if given is not None:
        raise InvalidInput(
            f"trust must be left out with a View, got {given.name}: A and B define what is seen, "
            "known_gradients and known_noise what is known."
        )
    return dataclasses.replace(privacy, trust=AsGiven(view))


def view_fingerprint(view: Any, privacy: Privacy) -> Fingerprint:
    given = cast("View", view)
    scheme = participation_hash(privacy.scheme(given), privacy.owners)
    return Fingerprint(given.content_hash, given.content_hash, scheme, given.release, privacy.unit)


def view_losses(
    view: View,
    participation: Participation,
    victims: Sequence[Victim] | None = None,
    method: str = "exact",
    *,
    unit: str = "record",
    owners: Any = 1,
) -> list[VictimSensitivity]:
    """The loss of each node in a view, in node order.

    Args:
        view: `mfdl.View(A, B, num_nodes=n)`, or that of a trust model.
        participation: over the steps of the view; each node's number is for `at_node(victim)`.
        victims: node indices, or groups of owners of one record, such as (0, 3); default all nodes but those all of
            whose gradients are marked as known, who attack, and the groups of `owners`.
        method, unit, owners: as of `mfdl.privacy.sensitivity_by_victim`.

    Guarantees: no number is below the truth for the matrices given; infinite where a noiseless combination shows a
        gradient of a step in which the node takes part, or the attacker knows one. The number for adaptive gradients is
        that for non-adaptive gradients where `adaptive`, else infinite: no view is known that shows more.
    Raises: UnsupportedMechanism: participation in secret, or a view too large for a dense decomposition.
    """
    check.instance(View, view=view)
    check.instance(Participation, participation=participation)
    participation.require_public()
    scheme = participation
    n, T = view.axis.num_nodes, view.axis.num_steps
    if scheme.num_steps != T:
        raise InvalidInput(
            f"participation must have the {T} steps of the view, columns of A over num_nodes={n}, got "
            f"{scheme.num_steps} ({scheme.describe()})."
        )
    scheme.require_nodes(n)
    require_known("method", method, METHODS)
    require_known("unit", unit, UNITS)
    owners = Owners.from_value(owners)
    chosen = _victims(view, victims, owners)
    nodes, groups = nodes_and_groups(chosen)
    require_one_owner(unit, groups)
    source: list[VictimSensitivity] = []
    if isinstance(view, ProcessedView):
        source = view_losses(view.source, scheme, chosen, method, unit=unit, owners=owners)
        if view.shows_all or view.rank == "numerical":  # whose products with S are near nothing known
            return source
    conditions = JointConditions(scheme, owners.same_steps, method)

    def numbers(view: View) -> list[Sensitivity]:
        return victim_sensitivities(view_grams(view, nodes), functools.partial(joint_grams, view), chosen, conditions)

    fixed = dict(zip(chosen, numbers(view), strict=True))
    if view.rank is None and view.entries_given and may_be_rounded(np.hstack(view.entries()), view.rank_tolerance):
        near = copy.copy(view)
        near.rank = "numerical"
        warn_of_rank(zip(fixed.values(), numbers(near), strict=True))
    adaptive = is_adaptive(view, scheme, unit=unit)
    why = NOT_PROVEN if getattr(view, "models", None) is None else GIVEN_NOT_PROVEN

    def loss(s: Sensitivity) -> VictimSensitivity:
        proven = adaptive or math.isinf(s.squared)
        in_training = s if proven else Sensitivity(math.inf, False, s.pattern, s.node, 0.0, 0.0, why, s.form)
        return VictimSensitivity(s, in_training, adaptive, THE_VIEW, view.attacker, view.release, unit)

    losses = [loss(fixed[u]) for u in chosen]
    return [_at_most(*pair) for pair in zip(losses, source, strict=True)] if source else losses


def _at_most(loss: VictimSensitivity, source: VictimSensitivity) -> VictimSensitivity:
    def least(number: Sensitivity, bound: Sensitivity) -> Sensitivity:
        if number.squared <= bound.squared:
            return number
        why = "bounded by the view that this one is computed from"
        return dataclasses.replace(bound, exact=False, lower=0.0, why=why)

    return dataclasses.replace(
        loss,
        non_adaptive_sensitivity=least(loss.non_adaptive_sensitivity, source.non_adaptive_sensitivity),
        adaptive_sensitivity=least(loss.adaptive_sensitivity, source.adaptive_sensitivity),
    )


def _victims(view: View, victims: Sequence[Victim] | None, owners: Owners) -> list[Victim]:
    n = view.axis.num_nodes
    chosen: list[Victim]
    if victims is None:
        honest = np.flatnonzero(~view.marked_gradients.all(axis=0)).tolist()
        chosen = [*honest, *owners.among(honest, n)]
    else:
        chosen = in_order(map(checked_victim, check.listed("node indices, or None for all", victims=victims)))
    if not chosen:
        raise InvalidInput("no victim is left: all gradients of every node are marked as known, or victims is empty.")
    for victim in chosen:
        require_nodes(victim, n)
    return chosen

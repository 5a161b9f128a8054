"""What is exposed in a view that has no algorithm and no trust model: the accountant of matrices alone.

A question needs a trust model; that of a bare view shows exactly what the view shows, and has nothing else to say.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..progress import Progress
from ..trust import TrustModel
from ..view import AlgorithmView, Knowledge, View
from . import gaussian
from .accounting import VictimLoss, worst_loss
from .exposures import PublicExposures
from .fingerprint import Fingerprint, participation_hash
from .matrix_views import NOT_PROVEN, view_losses
from .question import Question, require_unit


@dataclasses.dataclass(frozen=True, eq=False)
class AsGiven(TrustModel):
    """The trust model of a bare view: who has it sees what it shows."""

    of_view: View
    name = "matrices"

    @property
    def attacker(self) -> str:
        return self.of_view.attacker

    def knowledge(self, algorithm: LinearAlgorithm, victim: int) -> Knowledge:
        raise InvalidInput("a bare view is no trust model over algorithms; use TrustModel.from_masks.")

    def members(self, algorithm: Any) -> Iterator[tuple[TrustModel, tuple[int, ...]]]:
        """Itself, with everybody but the nodes all of whose gradients it knows."""
        yield self, tuple(u for u in range(self.of_view.num_nodes) if not self.of_view.marked_gradients[:, u].all())

    def fingerprint(self, algorithm: Any) -> str:
        return self.of_view.content_hash


@dataclasses.dataclass(frozen=True, eq=False)
class ViewExposures(PublicExposures):
    """Of matrices: numbers for adaptive gradients where all of them are proven, else for gradients fixed in advance."""

    @property
    def adaptive(self) -> bool:
        return all(loss.adaptive for loss in self.losses)

    @functools.cached_property
    def together(self) -> VictimLoss:
        if self.adaptive:
            return worst_loss(self.losses)
        return max(self.losses, key=lambda loss: loss.fixed.squared)

    @property
    def why(self) -> str:
        return "" if self.adaptive else f"{NOT_PROVEN[0].upper()}{NOT_PROVEN[1:]}."

    def require(self, algorithm: Any, question: Question) -> None:
        if not self.losses:
            raise InvalidInput("losses must be of at least one victim.")
        _require_as_given(algorithm, question)
        wanted = fingerprint_of(algorithm, question)
        for loss in self.losses:
            assert loss.fingerprint is not None
            loss.fingerprint.require(dataclasses.replace(wanted, release=loss.release), what="the losses were computed")


def view_exposures(
    view: View, question: Question, *, victims: Sequence[int] | None = None, progress: Progress = "auto"
) -> ViewExposures:
    """The accountant of matrices; see `matrix_views.view_losses`.

    Raises: InvalidInput: no participation, an option that only algorithms have, or a unit that cannot be protected.
    """
    q = question
    _require_as_given(view, q)
    scheme = q.scheme(view)
    for name, way in (("release", "its rows are in A and B"), ("lipschitz", "shift reduction needs an algorithm")):
        if getattr(q, name) is not None:
            raise InvalidInput(f"{name} must be left out with a View, got {getattr(q, name)!r}: {way}.")
    gaussian.record_shift(q.adjacency, q.clip_norm)  # refuses either
    scheme.require_public()
    require_unit(q.unit, scheme)
    losses = view_losses(view, scheme, victims, str(q.method), unit=q.unit)
    fingerprint = fingerprint_of(view, q)
    return ViewExposures(
        tuple(loss.answering(dataclasses.replace(fingerprint, release=loss.release)) for loss in losses)
    )


def _require_as_given(view: View, question: Question) -> None:
    """Refuses the name of a trust model that nothing was evaluated of."""
    trust = question.trust
    if not (isinstance(trust, AsGiven) and trust.of_view.content_hash == view.content_hash):
        raise InvalidInput(
            f"a View has what it shows for a trust model, and not {getattr(trust, 'name', trust)!r}; use "
            "mfdl.account(view, participation=...), or give the algorithm whose trust model that is."
        )


def question_of(view: View, trust: TrustModel | None, *fields: Any) -> Question:
    """The question about a bare view. Raises: InvalidInput: a trust model, which a view has already."""
    if isinstance(view, AlgorithmView):
        raise InvalidInput(
            "the view of a trust model is about the victims and the releases that the model names; give the algorithm "
            "and the trust model, mfdl.account(algorithm, trust=...), or the matrices as a View of your own."
        )
    if trust is not None:
        raise InvalidInput(
            f"trust must be left out with a View, got {trust.name!r}: A and B say what is seen, known_gradients and "
            "known_noise what is known."
        )
    return Question(AsGiven(view), *fields)


def fingerprint_of(view: Any, question: Question) -> Fingerprint:
    """Of one question about a bare view."""
    given = cast("View", view)
    scheme = participation_hash(question.scheme(given))
    return Fingerprint(given.content_hash, given.content_hash, scheme, given.release, question.unit)

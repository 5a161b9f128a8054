"""What a question finds exposed, of each victim and of all together, before the noise is scaled: public patterns.

An accountant maps a question about an algorithm to its `Exposures`; which one, the participation decides
(`accountants`). Everything else follows from them for every participation: guarantees, calibrated noise, tables.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..progress import Progress
from . import gaussian
from .accounting import MOST_SHOWN, VictimLoss, victim_losses, worst_loss
from .fingerprint import Fingerprint
from .question import Question, require_unit


class Exposures(abc.ABC):
    """What one question finds exposed."""

    @property
    @abc.abstractmethod
    def each(self) -> tuple[VictimLoss, ...]:
        """Of each victim, in the order of their nodes; victims in one group may share a number."""

    @property
    @abc.abstractmethod
    def together(self) -> VictimLoss:
        """Of all victims: no victim loses more, and it rests on every assumption that any of them needs."""

    @property
    @abc.abstractmethod
    def nodes(self) -> set[int]:
        """The victims."""

    @property
    def adaptive(self) -> bool:
        """Whether numbers for adaptive gradients are proven, finite or not."""
        return True

    @property
    def why(self) -> str:
        """What stands in the way of better numbers, for all victims; may be empty."""
        return ""

    @abc.abstractmethod
    def require(self, algorithm: LinearAlgorithm, question: Question) -> None:
        """Raises InvalidInput where these are not the answer to this question."""

    @abc.abstractmethod
    def refuse(self, **given: Any) -> None:
        """Refuses targets and noise scales that this participation has no meaning for; None is never refused."""


@dataclasses.dataclass(frozen=True, eq=False)
class PublicExposures(Exposures):
    """Of public patterns: one Gaussian for each victim, exact or certified.

    Attributes: losses: of at least one victim, all of one question.
    """

    losses: Sequence[VictimLoss]

    @property
    def each(self) -> tuple[VictimLoss, ...]:
        return tuple(self.losses)

    @functools.cached_property
    def together(self) -> VictimLoss:
        worst = worst_loss(self.losses)
        constants = (loss.lipschitz for loss in self.losses if loss.lipschitz is not None)  # the worst need not rest on
        release = max({loss.release for loss in self.losses}, key=MOST_SHOWN.index)
        every = dataclasses.replace(worst, release=release, lipschitz=min(constants, default=None))
        return every.answering(worst.fingerprint)

    @property
    def nodes(self) -> set[int]:
        return {loss.victim for loss in self.losses}

    def require(self, algorithm: LinearAlgorithm, question: Question) -> None:
        if not self.losses:
            raise InvalidInput("losses must be of at least one victim.")
        require_unit(question.unit, question.participation_in(algorithm))
        # the models that a view holds need not be those asked for, and statements name those that it holds
        require_same(self.losses, algorithm, dataclasses.replace(question, release=None))

    def refuse(self, **given: Any) -> None:
        if given.get("by", "tightest") != "tightest":
            raise InvalidInput(
                f"by must be 'tightest' where steps are public, got {given['by']!r}: it chooses among bounds of "
                "PoissonSampling; leave it out."
            )


def public_exposures(
    algorithm: LinearAlgorithm, question: Question, *, victims: Sequence[int] | None = None, progress: Progress = "auto"
) -> PublicExposures:
    """The accountant of public patterns; see `accounting.victim_losses`.

    Raises: InvalidInput: an argument out of range, or a unit that cannot be protected (`require_unit`).
    """
    q = question
    require_unit(q.unit, q.participation_in(algorithm), lipschitz=q.lipschitz)
    gaussian.record_shift(q.adjacency, q.clip_norm)  # what is wrong with them is reported before any work
    losses = victim_losses(
        algorithm,
        q.trust,
        victims=victims,
        participation=q.participation,
        release=q.release,
        method=str(q.method),
        lipschitz=q.lipschitz,
        unit=q.unit,
        progress=progress,
    )
    return PublicExposures(tuple(losses))


def require_same(losses: Sequence[VictimLoss], algorithm: LinearAlgorithm, question: Question) -> None:
    """Raises InvalidInput where losses were computed for another question; any release, if the question names none."""
    q = question
    wanted = Fingerprint.of(algorithm, q.trust, q.participation_in(algorithm), q.release or "", q.unit)
    for loss in {(loss.fingerprint, loss.unit, loss.release): loss for loss in losses}.values():  # one of each
        if loss.fingerprint is None:
            raise InvalidInput("losses must be those of victim_losses, which says what they were computed for.")
        what = "the losses were computed"
        if loss.unit != q.unit:
            what += f" for unit {loss.unit!r}, not {q.unit!r}:"
        loss.fingerprint.require(wanted if q.release else dataclasses.replace(wanted, release=loss.release), what=what)
    if q.unit == "user" and any(loss.lipschitz is not None for loss in losses):
        raise InvalidInput("unit 'user' cannot rest on shift reduction; compute the losses without lipschitz.")

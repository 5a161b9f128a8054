"""Which accountant answers a question: one table by participation; a new accountant is a function and a line in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .. import check
from ..algorithms import LinearAlgorithm
from ..participation import (
    BallsInBins,
    CyclicPoisson,
    MinSeparationSampling,
    Participation,
    PoissonSampling,
    RandomAllocation,
)
from ..progress import Progress
from ..trust import TrustModel
from ..trust.view import View
from .exposures import Exposures, public_exposures, view_exposures
from .owners import Victim, require_unshared
from .questions import Privacy


class Accountant(Protocol):
    """From a question about an algorithm to what it finds exposed."""

    def __call__(
        self, algorithm: Any, privacy: Privacy, *, victims: Sequence[Any] | None, progress: Progress
    ) -> Exposures:
        """Args: victims: node indices, None for all that do not attack; progress: as `mfdl.progress`."""


def _secret(scheme: type) -> Accountant:
    """That of `sampled_exposures`, which loads with the first question about secret batches."""

    def accountant(algorithm: Any, privacy: Privacy, *, victims: Sequence[Any] | None, progress: Progress) -> Exposures:
        from .sampled_exposures import OF_SECRET_BATCHES

        return OF_SECRET_BATCHES[scheme](algorithm, privacy, victims=victims, progress=progress)

    return accountant


SECRET = (PoissonSampling, BallsInBins, CyclicPoisson, RandomAllocation, MinSeparationSampling)
ACCOUNTANTS: dict[type, Accountant] = {
    Participation: public_exposures,
    **{scheme: _secret(scheme) for scheme in SECRET},
}
"""By participation; a class that is not named has the accountant of its nearest base."""


def exposures(
    algorithm: LinearAlgorithm | View,
    privacy: Privacy,
    *,
    victims: Sequence[Victim] | None = None,
    progress: Progress = "auto",
) -> Exposures:
    """What a question finds exposed, by the accountant of the algorithm's participation, or by that of matrices.

    Raises: InvalidInput: what is no algorithm or question, and what the accountant refuses.
    """
    check.instance(Privacy, privacy=privacy)
    if isinstance(algorithm, View):
        scheme = privacy.participation
        if not (isinstance(scheme, Participation) and scheme.secret):
            return view_exposures(algorithm, privacy, victims=victims, progress=progress)
    else:
        check.instance(LinearAlgorithm, algorithm=algorithm)
        check.instance(TrustModel, trust=privacy.trust)
        scheme = algorithm.participation
    if scheme.secret:
        require_unshared(privacy.owners, victims, scheme.describe())
    accountant = next(ACCOUNTANTS[kind] for kind in type(scheme).__mro__ if kind in ACCOUNTANTS)
    return accountant(algorithm, privacy, victims=victims, progress=progress)

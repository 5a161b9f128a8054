"""Which accountant answers for a participation: the one table that decides it.

A new accountant is a function from a question to `Exposures` and one line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .. import check
from ..algorithms import LinearAlgorithm
from ..participation import BallsInBins, Participation, PoissonSampling
from ..progress import Progress
from .exposures import Exposures, public_exposures
from .question import Question
from .sampled_exposures import bins_exposures, poisson_exposures


class Accountant(Protocol):
    """From a question about an algorithm to what it finds exposed."""

    def __call__(
        self, algorithm: LinearAlgorithm, question: Question, *, victims: Sequence[int] | None, progress: Progress
    ) -> Exposures:
        """Args: victims: node indices, None for all that do not attack; progress: as `mfdl.progress`."""


ACCOUNTANTS: dict[type, Accountant] = {
    Participation: public_exposures,
    PoissonSampling: poisson_exposures,
    BallsInBins: bins_exposures,
}
"""By participation; a class that is not named has the accountant of its nearest base."""


def exposures(
    algorithm: LinearAlgorithm, question: Question, *, victims: Sequence[int] | None = None, progress: Progress = "auto"
) -> Exposures:
    """What a question finds exposed, by the accountant of the algorithm's participation.

    Raises: InvalidInput: what is no algorithm or question, and what the accountant refuses.
    """
    check.instance(Question, question=question)
    check.instance(LinearAlgorithm, algorithm=algorithm)
    accountant = next(ACCOUNTANTS[kind] for kind in type(algorithm.participation).__mro__ if kind in ACCOUNTANTS)
    return accountant(algorithm, question, victims=victims, progress=progress)

"""Between the words of this library and those of the solvers: what is refused, and when a solver ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mfdl_solvers.problem import ProblemError, Stopping

from .. import check
from ..errors import InvalidInput


@contextlib.contextmanager
def solver_refusals() -> Iterator[None]:
    """What a solver refuses, a loss beyond float64 above all, is raised as InvalidInput."""
    try:
        yield
    except ProblemError as error:
        raise InvalidInput(str(error)) from None


def checked_stopping(tolerance: float, max_iterations: int) -> Stopping:
    """What a caller gave; raises InvalidInput."""
    return Stopping(check.positive(tolerance=tolerance), check.integer_at_least(1, max_iterations=max_iterations))

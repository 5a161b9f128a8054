"""Utility theory of correlated noise; it lives in `mfdl.theory`: `rates`, `one_step` and `convergence`."""

from .theory import convergence as _convergence
from .theory import one_step as _one_step
from .theory import rates as _rates
from .theory.convergence import *  # noqa: F403
from .theory.one_step import *  # noqa: F403
from .theory.rates import *  # noqa: F403

__all__ = sorted([*_convergence.__all__, *_one_step.__all__, *_rates.__all__])


def __dir__() -> list[str]:
    return __all__

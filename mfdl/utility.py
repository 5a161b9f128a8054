"""Utility theory of correlated noise; it lives in `mfdl.theory.rates`."""

from .theory.rates import *  # noqa: F403
from .theory.rates import __all__ as __all__


def __dir__() -> list[str]:
    return sorted(__all__)

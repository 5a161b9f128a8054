"""Published privacy bounds; they live in `mfdl.theory.bounds`."""

from ..theory.bounds import *  # noqa: F403
from ..theory.bounds import __all__ as __all__


def __dir__() -> list[str]:
    return sorted(__all__)

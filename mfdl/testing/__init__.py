"""Where a theorem is tried before it is believed: strategies draw cases, oracles say what is true.

`@claim` states a bound, `check_claim` searches for the case that breaks it; `tasks` (import it by name) have known
gradients. Needs the packages of the extra `testing`; without them the import raises MissingExtra, which is an
ImportError.
"""

from .. import errors

for _package in ("hypothesis", "mpmath"):
    errors.imported(_package, "mfdl.testing")

from . import claims, oracles, strategies
from .claims import *  # noqa: F403
from .oracles import *  # noqa: F403
from .strategies import *  # noqa: F403

__all__ = ["claims", "oracles", "strategies", *claims.__all__, *oracles.__all__, *strategies.__all__]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Where a theorem is tried before it is believed: strategies draw cases, oracles say what is true.

- `mfdl.testing.strategies`: Hypothesis strategies for graphs, gossip, participations, encoders, views, algorithms;
- `mfdl.testing.oracles`: the truth, slow and obvious, dense, by brute force or over the rationals;
- `mfdl.testing.claims`: `@claim` states a bound, `check_claim` searches for the case that breaks it;
- `mfdl.testing.tasks`: tasks whose gradients are known, to compare what a run sends (import it by name).

Needs the packages of the extra `testing`; without them the import raises MissingExtra, which is an ImportError.
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

"""Privacy curves, one theorem a file: epsilon at delta, delta at epsilon, composition, and the least noise.

Public batches: `Gaussian`. Poisson sampling: `PoissonGaussian`. Balls-in-bins: `BallsInBinsGaussian`, certified, and
`MonteCarloCurve`, by the samples of a `MonteCarlo`. Other secret patterns: `ProductGaussian`. The least of several
bounds: `LeastCurve`. Several runs: `Composed`, or `Gaussian` if all batches are public.

A curve is stored as JSON by its kind and its fields; curves within curves likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .balls_in_bins import BallsInBinsGaussian, chain_above, correlations
    from .base import UP, PrivacyCurve, curve_from_dict, curve_to_dict
    from .bin_chain import BinChain
    from .composed import Composed, Gaussian
    from .monte_carlo import MonteCarlo, MonteCarloCurve, normalized
    from .poisson_gaussian import PoissonGaussian
    from .product import LeastCurve, ProductGaussian

__all__ = [
    "UP", "BallsInBinsGaussian", "BinChain", "Composed", "Gaussian", "LeastCurve", "MonteCarlo", "MonteCarloCurve",
    "PoissonGaussian", "PrivacyCurve", "ProductGaussian", "chain_above", "correlations", "curve_from_dict",
    "curve_to_dict", "normalized",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from ...extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)

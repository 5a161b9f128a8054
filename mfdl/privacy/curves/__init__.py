"""Privacy curves, one theorem a file: epsilon at delta, delta at epsilon, composition, and the least noise.

Public batches: `Gaussian`. Poisson sampling: `PoissonGaussian`. Balls-in-bins: `BallsInBinsGaussian`, certified, and
`MonteCarloCurve`, by the samples of a `MonteCarlo`. Several runs: `Composed`, or `Gaussian` if all batches are public.
"""

from .balls_in_bins import BallsInBinsGaussian, correlations
from .base import UP, PrivacyCurve
from .composed import Composed
from .files import curve_from_dict, curve_to_dict
from .gaussian_dp import Gaussian
from .monte_carlo import MonteCarlo, MonteCarloCurve, normalized
from .poisson import PoissonGaussian

__all__ = [
    "UP",
    "BallsInBinsGaussian",
    "Composed",
    "Gaussian",
    "MonteCarlo",
    "MonteCarloCurve",
    "PoissonGaussian",
    "PrivacyCurve",
    "correlations",
    "curve_from_dict",
    "curve_to_dict",
    "normalized",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Privacy curves, one theorem a file: epsilon at delta, delta at epsilon, composition, and the least noise.

Public batches: `Gaussian`.
"""

from .base import UP, PrivacyCurve
from .gaussian_dp import Gaussian

__all__ = ["UP", "Gaussian", "PrivacyCurve"]


def __dir__() -> list[str]:
    return sorted(__all__)

"""From views to privacy numbers: view Grams, sensitivity, Gaussian accounting, guarantees."""

from .accountants import ACCOUNTANTS
from .curves import (
    BallsInBinsGaussian,
    Composed,
    Gaussian,
    MonteCarlo,
    MonteCarloCurve,
    PoissonGaussian,
    PrivacyCurve,
    ProductGaussian,
)
from .exposures import Exposures, view_losses
from .forms import ViewGram, view_gram
from .gram_sensitivity import Sensitivity, worst_sensitivity
from .guarantee import Guarantee
from .losses import Losses
from .questions import UNITS, Privacy, Target
from .sampled_exposures import noise_of_bins

__all__ = [
    "ACCOUNTANTS",
    "UNITS",
    "BallsInBinsGaussian",
    "Composed",
    "Exposures",
    "Gaussian",
    "Guarantee",
    "Losses",
    "MonteCarlo",
    "MonteCarloCurve",
    "PoissonGaussian",
    "Privacy",
    "PrivacyCurve",
    "ProductGaussian",
    "Sensitivity",
    "Target",
    "ViewGram",
    "noise_of_bins",
    "view_gram",
    "view_losses",
    "worst_sensitivity",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""From views to privacy numbers: view Grams, sensitivity, Gaussian accounting, guarantees."""

from .accountants import ACCOUNTANTS
from .attacking_sets import sensitivity_by_victim
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
from .gram_sensitivity import Sensitivity, general_sensitivity, worst_sensitivity
from .guarantee import Guarantee
from .losses import Losses
from .owners import Owners
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
    "Owners",
    "PoissonGaussian",
    "Privacy",
    "PrivacyCurve",
    "ProductGaussian",
    "Sensitivity",
    "Target",
    "ViewGram",
    "general_sensitivity",
    "noise_of_bins",
    "sensitivity_by_victim",
    "view_gram",
    "view_losses",
    "worst_sensitivity",
]


def __dir__() -> list[str]:
    return sorted(__all__)

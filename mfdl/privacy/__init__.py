"""From views to privacy numbers: view Grams, sensitivity, Gaussian accounting, guarantees."""

from .accountants import ACCOUNTANTS
from .curves import BallsInBinsGaussian, Composed, Gaussian, MonteCarlo, MonteCarloCurve, PoissonGaussian, PrivacyCurve
from .exposures import Exposures
from .forms import ViewGram, view_gram
from .guarantee import UNITS, Guarantee
from .losses import PrivacyLosses
from .question import Question, Target
from .sampled_exposures import noise_of_bins
from .sensitivity import Sensitivity, worst_sensitivity

__all__ = [
    "ACCOUNTANTS",
    "UNITS",
    "BallsInBinsGaussian",
    "Composed",
    "Exposures",
    "Gaussian",
    "Guarantee",
    "MonteCarlo",
    "MonteCarloCurve",
    "PoissonGaussian",
    "PrivacyCurve",
    "PrivacyLosses",
    "Question",
    "Sensitivity",
    "Target",
    "ViewGram",
    "noise_of_bins",
    "view_gram",
    "worst_sensitivity",
]


def __dir__() -> list[str]:
    return sorted(__all__)

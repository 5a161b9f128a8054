"""From views to privacy numbers: view Grams, sensitivity, Gaussian accounting, guarantees."""

from .forms import ViewGram, view_gram
from .guarantee import UNITS, Guarantee
from .matrix_views import view_losses
from .sensitivity import Sensitivity, worst_sensitivity

__all__ = ["UNITS", "Guarantee", "Sensitivity", "ViewGram", "view_gram", "view_losses", "worst_sensitivity"]


def __dir__() -> list[str]:
    return sorted(__all__)

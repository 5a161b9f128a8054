"""From views to privacy numbers: view Grams, sensitivity, Gaussian accounting, guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attacking_sets import sensitivity_by_victim
    from .curves import BallsInBinsGaussian, Gaussian, MonteCarlo, PoissonGaussian, PrivacyCurve, ProductGaussian
    from .exposures import view_losses
    from .gram_sensitivity import general_sensitivity
    from .guarantee import Guarantee
    from .losses import ACCOUNTANTS, Losses
    from .owners import Owners
    from .questions import Privacy, Target
    from .sampled_exposures import noise_of_bins

__all__ = [
    "ACCOUNTANTS", "BallsInBinsGaussian", "Gaussian", "Guarantee", "Losses", "MonteCarlo", "Owners",
    "PoissonGaussian", "Privacy", "PrivacyCurve", "ProductGaussian", "Target", "general_sensitivity",
    "noise_of_bins", "sensitivity_by_victim", "view_losses",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)

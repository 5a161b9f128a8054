"""Encoders C over T steps: products, C^-1, the noise C^-1 Z row by row, and how far that is from C^-1 Z.

`Identity`, `Dense` and `PerColumn` are arrays. `Toeplitz` (banded where it has few coefficients), `Banded`, `Buffered`
(a few exponentials: BLT) and `Inverse` (C^-1 is one of these: BISR, BandInvMF, lambda-CGD) take O(T) memory. All answer
one class, `Encoder`, and are immutable. `bins` is what balls-in-bins sees of C. Arrays in, arrays out: nothing here
knows noise, graphs or privacy.
"""

from . import bins
from .arrays import ArrayEncoder, Dense, Identity, PerColumn, inverse_defect
from .base import Encoder, Stepper, defect_inflation
from .coefficients import Coefficients, rounding_of_substitution
from .inverse import Inverse
from .structured_encoders import Banded, Buffered, Toeplitz

__all__ = [
    "ArrayEncoder", "Banded", "Buffered", "Coefficients", "Dense", "Encoder", "Identity", "Inverse", "PerColumn",
    "Stepper", "Toeplitz", "bins", "defect_inflation", "inverse_defect", "rounding_of_substitution",
]  # fmt: skip

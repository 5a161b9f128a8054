"""Encoders with structure: a causal encoder C over T steps in O(T) memory, its inverse, the noise C^-1 Z row by row.

`Toeplitz` (banded where it has few coefficients), `Banded`, `Buffered` (a few exponentials: BLT) and `Inverse` (C^-1 is
one of these: BISR, BandInvMF, lambda-CGD) answer one protocol, `Encoder`, and are immutable. `bins` is what secret
bins see of C. Arrays in, arrays out: nothing here knows noise, graphs or privacy.
"""

from . import bins
from .banded import Banded
from .base import Encoder, Stepper
from .buffered import Buffered
from .inverse import Inverse
from .toeplitz import Toeplitz

__all__ = ["Banded", "Buffered", "Encoder", "Inverse", "Stepper", "Toeplitz", "bins"]

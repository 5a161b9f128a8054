"""Encoders with structure, in O(T) memory: what `CausalNoise` takes instead of an array (`mfdl_solvers.strategies`)."""

from mfdl_solvers.strategies import Banded, Buffered, Inverse, Strategy, Toeplitz

__all__ = ["Banded", "Buffered", "Inverse", "Strategy", "Toeplitz"]

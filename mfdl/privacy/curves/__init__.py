"""Privacy curves, one theorem a file: epsilon at delta, delta at epsilon, composition, and the least noise.

Public batches: `Gaussian`. Poisson sampling: `PoissonGaussian`. Balls-in-bins: `BallsInBinsGaussian`, certified, and
`MonteCarloCurve`, by the samples of a `MonteCarlo`. Other secret patterns: `ProductGaussian`. Several runs: `Composed`,
or `Gaussian` if all batches are public.

A curve is stored as JSON by its kind and its fields; curves within curves likewise.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...errors import InvalidInput
from .balls_in_bins import BallsInBinsGaussian, correlations
from .base import UP, PrivacyCurve
from .bin_chain import BinChain
from .chain_fit import chain_above
from .composed import Composed, Gaussian
from .monte_carlo import MonteCarlo, MonteCarloCurve, normalized
from .poisson_gaussian import PoissonGaussian
from .product import ProductGaussian

__all__ = [
    "UP",
    "BallsInBinsGaussian",
    "BinChain",
    "Composed",
    "Gaussian",
    "MonteCarlo",
    "MonteCarloCurve",
    "PoissonGaussian",
    "PrivacyCurve",
    "ProductGaussian",
    "chain_above",
    "correlations",
    "curve_from_dict",
    "curve_to_dict",
    "normalized",
]


def __dir__() -> list[str]:
    return sorted(__all__)


KIND = "kind"
KINDS: dict[str, type] = {
    "gaussian": Gaussian,
    "poisson": PoissonGaussian,
    "balls-in-bins": BallsInBinsGaussian,
    "chain": BinChain,
    "monte-carlo": MonteCarloCurve,
    "samples": MonteCarlo,
    "composed": Composed,
    "product": ProductGaussian,
}
"""What a file may hold; a further curve is one more line here."""


def curve_to_dict(curve: PrivacyCurve) -> dict[str, Any]:
    """A JSON object; infinity is the text "inf"."""
    packed = _packed(curve)
    assert isinstance(packed, dict)
    return packed


def curve_from_dict(data: Any) -> PrivacyCurve:
    """The inverse of `curve_to_dict`. Raises: InvalidInput: an unknown kind, other fields, or a number out of range."""
    curve = _unpacked(data)
    if not isinstance(curve, PrivacyCurve):
        raise InvalidInput(f"curve must be a JSON object with a {KIND} of {', '.join(KINDS)}, got {data!r:.200}.")
    return curve


def _packed(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind = next((name for name, curve in KINDS.items() if type(value) is curve), None)
        if kind is None:
            raise InvalidInput(f"a {type(value).__name__} cannot be stored: the known curves are {', '.join(KINDS)}.")
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {KIND: kind, **{name: _packed(each) for name, each in fields.items()}}
    if isinstance(value, tuple):
        return [_packed(each) for each in value]
    return "inf" if value == math.inf else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get(KIND) not in KINDS:
            raise InvalidInput(f"{KIND} of a curve must be one of {', '.join(KINDS)}, got {value.get(KIND)!r}.")
        fields = {name: _unpacked(each) for name, each in value.items() if name != KIND}
        try:
            return KINDS[value[KIND]](**fields)
        except TypeError as error:
            raise InvalidInput(f"a curve of {KIND} {value[KIND]!r} has other fields: {error}.") from None
    if isinstance(value, list):
        return tuple(_unpacked(each) for each in value)
    return math.inf if value == "inf" else value

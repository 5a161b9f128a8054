"""Curves as JSON objects, by their kind and their fields."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...errors import InvalidInput
from .. import curves
from .base import PrivacyCurve

KIND = "kind"
KINDS = {
    "gaussian": "Gaussian",
    "poisson": "PoissonGaussian",
    "balls-in-bins": "BallsInBinsGaussian",
    "chain": "BinChain",
    "monte-carlo": "MonteCarloCurve",
    "samples": "MonteCarlo",
    "composed": "Composed",
    "product": "ProductGaussian",
    "least": "LeastCurve",
}
"""What a file may hold, each of this package; a further curve is one more line here."""


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
        kind = next((name for name, curve in KINDS.items() if type(value).__name__ == curve), None)
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
            return getattr(curves, KINDS[value[KIND]])(**fields)
        except TypeError as error:
            raise InvalidInput(f"a curve of {KIND} {value[KIND]!r} has other fields: {error}.") from None
    if isinstance(value, list):
        return tuple(_unpacked(each) for each in value)
    return math.inf if value == "inf" else value

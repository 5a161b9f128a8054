"""A guarantee as JSON: its fields, the numbers that follow from them, and what a file must hold.

Out: a dictionary of JSON values, with infinity as the text "inf"; back in: the fields, checked for completeness. The
values are checked by the constructor, the curve by `curves.files`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from .. import check
from ..errors import InvalidInput
from .curves import PrivacyCurve, curve_from_dict, curve_to_dict

FORMAT = 1
Victims = tuple[tuple[str, PrivacyCurve], ...]
_FLOATS = ("clip_norm", "noise_std", "sensitivity", "tolerance")
_DERIVED = ("mu", "adjacency", "bound", "composed", "record_shift", "noise_multiplier")
"""What JSON gives beside the curve that it follows from, with the curve's method."""


class Statement(Protocol):
    """What this file asks of a `Guarantee`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def curve(self) -> PrivacyCurve: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def stated_delta(self) -> float: ...
    def epsilon(self, delta: float) -> float: ...


def field_values(guarantee: Statement) -> dict[str, Any]:
    """The fields that are compared, as JSON values, without what follows from them."""
    given = {field.name: getattr(guarantee, field.name) for field in dataclasses.fields(guarantee) if field.compare}
    each = [[label, curve_to_dict(curve)] for label, curve in given.pop("victims")]
    curve = curve_to_dict(given.pop("curve"))
    floats = {name: _number(given[name]) for name in _FLOATS}
    return {"format": FORMAT, "curve": curve, **given, **floats, "notes": list(guarantee.notes), "victims": each}


def derived_numbers(guarantee: Statement) -> dict[str, Any]:
    """What follows from curve and clipping."""
    numbers = {name: _number(getattr(guarantee, name)) for name in _DERIVED}
    return {**numbers, "method": guarantee.curve.method}


def to_json(guarantee: Statement) -> dict[str, Any]:
    """All that a file holds; `Guarantee.to_dict`."""
    delta = guarantee.stated_delta
    numbers = {"stated_delta": delta, "epsilon": _number(guarantee.epsilon(delta))}
    return {**field_values(guarantee), **derived_numbers(guarantee), **numbers, **guarantee.curve.facts(delta)}


def constructor_arguments(kind: type[Statement], data: Any) -> dict[str, Any]:
    """The arguments of the constructor, without `source`.

    Raises:
        InvalidInput: another format, a missing or unknown field, lists that are none.
    """
    if not isinstance(data, dict):
        raise InvalidInput(f"a guarantee must be a JSON object, got {type(data).__name__}.")
    version = data.get("format")
    if isinstance(version, bool) or version != FORMAT:
        raise InvalidInput(f"format of a guarantee must be {FORMAT}, got {version!r}.")
    names = [field.name for field in dataclasses.fields(kind) if field.name != "source"]
    beside = (*_DERIVED, "method")
    missing = [name for name in (*names, *beside) if name not in data]
    known = {"format", "epsilon", "tight_for_equal_bins", *names, *beside}
    unknown = [str(name) for name in data if name not in known]
    if missing or unknown:
        raise InvalidInput(
            "a guarantee file must have exactly the fields of Guarantee; "
            f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}."
        )
    given = {name: data[name] for name in names}
    for name in ("notes", "victims"):
        if not isinstance(given[name], list | tuple):
            raise InvalidInput(f"{name} must be a list, got {given[name]!r}.")
    read = {
        "curve": curve_from_dict(given["curve"]),
        "victims": _victims(given["victims"]),
        "notes": tuple(given["notes"]),
        **{name: math.inf if given[name] == "inf" else given[name] for name in _FLOATS},
    }
    return {**given, **read}


def require_derived(guarantee: Statement, data: Mapping[str, Any]) -> None:
    """Refuses numbers beside the curve that are not the curve's, as of a file that was edited by hand."""
    for name, value in derived_numbers(guarantee).items():
        if data[name] != value:
            raise InvalidInput(
                f"{name} must be {value!r}, as the curve says, got {data[name]!r}; edit the curve, or account anew."
            )


def of_file(path: Path) -> Any:
    """The JSON value of a file. Raises: InvalidInput: it cannot be read, or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{str(path)!r} is not a JSON file; it should be one written by Guarantee.save.") from None


def _number(value: Any) -> Any:
    return "inf" if value == math.inf else value


def _victims(given: Any) -> Victims:
    try:
        return tuple((label, curve_from_dict(curve)) for label, curve in given)
    except (TypeError, ValueError):
        raise InvalidInput(f"victims must be pairs of a label and its curve, got {check.brief(given)}.") from None

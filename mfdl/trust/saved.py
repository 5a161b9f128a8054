"""A shipped trust model as plain JSON and back: its name and its parameters."""

from __future__ import annotations

from typing import Any

from .. import check
from .base import TrustModel
from .models import LDP, PNDP, AnyReceiver, Central, Coalitions, FullCollusion, ReleasedOnly, SecLDP, SecureSum

_PARAMETER: dict[type[TrustModel], tuple[str, str] | None] = {  # attribute, and the argument that it came from
    LDP: None,
    PNDP: ("attacker_nodes", "attackers"),
    AnyReceiver: None,
    SecLDP: ("colluders", "colluders"),
    Coalitions: ("size", "size"),
    FullCollusion: None,
    Central: None,
    SecureSum: ("attacker_nodes", "attackers"),
    ReleasedOnly: None,
}
_BY_NAME: dict[str, type[TrustModel]] = {kind.__name__: kind for kind in _PARAMETER}


def trust_to_dict(model: TrustModel | None) -> dict[str, Any] | None:
    """Name and parameters; None for masks and classes of the user's own, which are code.

    >>> trust_to_dict(PNDP([0, "b"]))
    {'model': 'PNDP', 'attackers': [0, 'b']}
    """
    if model is None or type(model) not in _PARAMETER:
        return None
    saved: dict[str, Any] = {"model": type(model).__name__}
    if (parameter := _PARAMETER[type(model)]) is not None:
        attribute, argument = parameter
        value = getattr(model, attribute)
        saved[argument] = check.index(value) if argument == "size" else [_node(node) for node in value]
    return saved


def trust_from_dict(saved: dict[str, Any] | None) -> TrustModel | None:
    """The inverse of `trust_to_dict`. Raises: KeyError, TypeError or InvalidInput: what it did not write."""
    if saved is None:
        return None
    kind: Any = _BY_NAME[saved["model"]]
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items() if key != "model"}
    model: TrustModel = kind(**given)
    return model


def _node(node: int | str) -> int | str:
    return str(node) if isinstance(node, str) else check.index(node)

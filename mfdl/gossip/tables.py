"""A table of pandas as W: index and columns name nodes, so entries are taken by name, never by position."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from .. import check
from ..errors import InvalidInput


def by_label(weights: Any, nodes: Sequence[Hashable] | None) -> tuple[Any, tuple[Hashable, ...] | None]:
    """(weights in the order of the nodes, the nodes); what has no index and columns is left as it is.

    Args: nodes: the order that is wanted; None for that of the index.
    Raises: InvalidInput: labels twice, columns that are not those of the index, or labels that are not the nodes.
    """
    wanted = None if nodes is None else tuple(check.listed("node labels, one for each row", labels=nodes))
    if not (hasattr(weights, "index") and hasattr(weights, "columns")):
        return weights, wanted
    index = tuple(weights.index)
    order = index if wanted is None else wanted
    for what, given, right, others in (
        ("columns", tuple(weights.columns), index, "those of its index"),
        ("index", index, order, "the nodes"),
    ):
        if len(given) != len(set(given)) or set(given) != set(right):
            raise InvalidInput(
                f"weights: the labels of a table must be {others}, each once, in any order, got {what} "
                f"{_first(given)} for {_first(right)}; name them alike, or give weights.to_numpy(), which is taken by "
                "position."
            )
    rows, columns = _places(index), _places(weights.columns)
    array = weights.to_numpy()
    return array[[rows[node] for node in order]][:, [columns[node] for node in order]], order


def _places(labels: Iterable[Hashable]) -> dict[Hashable, int]:
    return {label: place for place, label in enumerate(labels)}


def _first(labels: Sequence[Hashable]) -> str:
    return f"[{', '.join(map(repr, labels[:5]))}{', ...' if len(labels) > 5 else ''}]"

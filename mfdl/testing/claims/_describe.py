"""Cases in words short enough to check by hand: fractions instead of binary floats, edges instead of object ids."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np

from ...gossip import Gossip, GossipMatrix, GossipSequence

LARGEST_DENOMINATOR = 120


def describe(value: Any) -> str:
    """One line that says what the value is.

    >>> describe(nx.path_graph(3))
    '{0-1, 1-2}'
    >>> describe(np.array([[1, 0.25], [0, 1 / 3]]))
    '[[1, 1/4], [0, 1/3]]'
    """
    if isinstance(value, nx.Graph):
        alone = [str(node) for node in nx.isolates(value)]
        return "{" + ", ".join([f"{u}-{v}" for u, v in value.edges] + alone) + "}"
    if isinstance(value, GossipMatrix):
        return f"W = {describe(value.dense())}"
    if isinstance(value, GossipSequence):
        return f"{'repeated ' if value.repeat else ''}sequence of " + ", ".join(describe(W) for W in value.matrices)
    if isinstance(value, Gossip):
        return value.describe()
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, bool | np.bool_ | int | np.integer | str) or value is None:
        return str(value)
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(part) for part in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {describe(part)}" for name, part in value.items())
    return str(value)


def _array(value: np.ndarray) -> str:
    return f"[{', '.join(_array(row) for row in value)}]" if value.ndim else describe(value.item())


def _number(value: float) -> str:
    """A fraction of small integers where the float is one to rounding, else six digits."""
    if not np.isfinite(value):
        return str(value)
    near = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    return str(near) if abs(float(near) - value) <= 1e-12 * max(1.0, abs(value)) else f"{value:.6g}"

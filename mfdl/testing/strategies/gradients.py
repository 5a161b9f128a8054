"""Hypothesis strategy for gradient differences: what one record can change in the stacked gradients."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from ...check import FloatArray, integer_at_least
from ...errors import InvalidInput
from ...participation import Participation
from ...privacy.gaussian import record_shift

DIRECTIONS = ((1.0, 0.0), (3 / 5, 4 / 5), (5 / 13, 12 / 13))


@st.composite
def gradient_differences(
    draw: st.DrawFn,
    participation: Participation,
    num_nodes: int,
    *,
    adjacency: str,
    clip_norm: float = 1.0,
    dimension: int = 2,
    victim: int | None = None,
) -> FloatArray:
    """G - G' of two neighbouring data sets, shape (T num_nodes, dimension), time-major as everywhere.

    The rows of one node (`victim`, or any) at the steps of one pattern are non-zero or not; all others are zero. Each
    row is as long as one record can make it, in the direction of an axis or of a Pythagorean pair and with any sign,
    or a fraction of that, or zero. It shrinks to zero.

    Guarantees: no row is longer than `record_shift(adjacency, clip_norm)`, in exact arithmetic.
    Raises: InvalidInput: unknown adjacency, clip_norm not > 0, no node or dimension, an unknown victim.
    """
    n, d = integer_at_least(1, num_nodes=num_nodes), integer_at_least(1, dimension=dimension)
    shift = record_shift(adjacency, clip_norm)
    if victim is not None and integer_at_least(0, victim=victim) >= n:
        raise InvalidInput(f"victim must be below num_nodes={n}, got {victim}.")
    which = draw(st.integers(0, int(participation.num_patterns) - 1))
    pattern = next(itertools.islice(participation.patterns(), which, None))
    node = draw(st.integers(0, n - 1)) if victim is None else victim
    G = np.zeros((participation.num_steps, n, d))
    for t in pattern:
        length = shift * draw(st.sampled_from([0.0, 1.0, 0.5, 0.25]))
        first, second = draw(st.integers(0, d - 1)), draw(st.integers(0, d - 1))
        along, across = DIRECTIONS[draw(st.integers(0, len(DIRECTIONS) - 1)) if first != second else 0]
        row = np.zeros(d)
        row[first] = length * along * (-1 if draw(st.booleans()) else 1)
        if across:
            row[second] = length * across * (-1 if draw(st.booleans()) else 1)
        while sum(Fraction(x) ** 2 for x in row.tolist()) > Fraction(shift) ** 2:  # by rounding of the last bit only
            row[second] = math.nextafter(row[second], 0.0)
        G[t, node] = row
    return G.reshape(participation.num_steps * n, d)

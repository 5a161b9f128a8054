"""Hypothesis strategies for bare views (A, B) of small integers, of a known kind.

A victim's loss is finite when each of its columns of A lies in the range of B. The kinds say where that holds:

- `integer`: any integers, any rank;
- `regular`: B has full row rank, so B B^T is invertible and nothing leaks;
- `rank-deficient`: B B^T is singular, and yet nothing leaks: A and B have the same dependent rows;
- `leaking`: B B^T is singular and some column of A lies outside the range of B: infinite loss.

All are so by construction over the integers, hence over the rationals of an exact oracle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from ...check import FloatArray
from ...errors import InvalidInput
from ...view import View
from ._draws import integer_arrays, lists_of, some_of

VIEW_KINDS = ("regular", "rank-deficient", "leaking", "integer")


@st.composite
def integer_views(
    draw: st.DrawFn, max_rows: int = 5, max_noise: int = 5, max_steps: int = 3, largest: int = 2
) -> tuple[FloatArray, FloatArray]:
    """(A, B) of small integers, of any rank; they shrink to zero."""
    rows, noise, steps = (draw(st.integers(1, most)) for most in (max_rows, max_noise, max_steps))
    return draw(integer_arrays(largest, rows, steps)), draw(integer_arrays(largest, rows, noise))


@st.composite
def views(
    draw: st.DrawFn,
    kinds: Sequence[str] = VIEW_KINDS,
    *,
    max_rows: int = 4,
    max_steps: int = 3,
    max_nodes: int = 2,
    largest: int = 2,
) -> View:
    """Views of the given kinds, of `VIEW_KINDS`: O = A G + B Z with 1 to `max_rows` rows and small integers.

    Up to `max_nodes` nodes own the columns of A, time-major. B has at most one column more than rows. The arrays are
    `view.dense_gradients_by_time()` and `view.dense_noise()`; entries of independent rows are at most `largest`, those
    of rows that depend on them at most `max_rows * largest^2`, plus `largest` where they leak.

    Raises: InvalidInput: an unknown kind, or `rank-deficient` with `max_rows` below 2.
    """
    kind = draw(st.sampled_from(some_of(VIEW_KINDS, kinds)))
    smallest = 2 if kind == "rank-deficient" else 1
    if max_rows < smallest:
        raise InvalidInput(f"max_rows must be an integer >= {smallest} for {kind} views, got {max_rows}.")
    rows = draw(st.integers(smallest, max_rows))
    n = draw(st.integers(1, max_nodes))
    columns = n * draw(st.integers(1, max_steps))
    if kind == "integer":
        noise = draw(st.integers(1, rows + 1))
        return View(
            draw(integer_arrays(largest, rows, columns)), draw(integer_arrays(largest, rows, noise)), num_nodes=n
        )
    rank = {
        "regular": st.just(rows),
        "rank-deficient": st.integers(1, rows - 1),
        "leaking": st.integers(0, rows - 1),  # 0: no noise at all
    }[kind]
    r = draw(rank)
    A, B = draw(integer_arrays(largest, r, columns)), _full_row_rank(draw, r, max(r, 1), largest)
    E = draw(integer_arrays(largest, rows - r, r))  # dependent rows: A = [I; E] A_r and B = [I; E] B_r
    A, B = np.vstack([A, E @ A]), np.vstack([B, E @ B])
    if kind == "leaking":  # a column of A is in the range of [I; E] just if its last rows are E times its first
        D = draw(integer_arrays(largest, rows - r, columns))
        if not D.any():
            D[0, 0] = 1.0
        A[r:] += D
    order = draw(st.permutations(range(rows)))
    return View(A[order], B[order], num_nodes=n)


def _full_row_rank(draw: st.DrawFn, rows: int, least_columns: int, largest: int) -> FloatArray:
    """Lower triangular with a positive diagonal, and possibly a column more."""
    extra = draw(st.booleans())
    B = np.zeros((rows, least_columns))
    B[np.tril_indices(rows, -1)] = draw(integer_arrays(largest, 1, rows * (rows - 1) // 2))[0]
    B[np.arange(rows), np.arange(rows)] = draw(lists_of(st.integers(1, largest), rows))
    if extra:
        B = np.hstack([B, draw(integer_arrays(largest, rows, 1))])
    return B

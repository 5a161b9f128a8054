"""Hypothesis strategy for participations: every scheme, on few steps; it shrinks to one step.

`SCHEMES` are drawn unless others are asked for. `ALL_SCHEMES` adds the two whose patterns overlap and are many, which
a factorization cannot take: `once-per-epoch` (reshuffled data) and `min-separation`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ...participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Participation, Single
from ._draws import lists_of, some_of

SCHEMES = ("single", "cyclic", "every-step", "explicit")

OVERLAPPING = ("once-per-epoch", "min-separation")

ALL_SCHEMES = (*SCHEMES, *OVERLAPPING)


@st.composite
def participations(
    draw: st.DrawFn,
    max_steps: int = 8,
    *,
    num_steps: int | None = None,
    disjoint: bool = False,
    schemes: Sequence[str] = SCHEMES,
) -> Participation:
    """Any of the given schemes, on 1 to `max_steps` steps, or on exactly `num_steps`.

    With `disjoint` the patterns always partition the steps; otherwise explicit patterns may overlap and may
    leave steps out.

    Raises: InvalidInput: an unknown scheme, or one of `OVERLAPPING` with `disjoint`.
    """
    possible = ALL_SCHEMES if not disjoint else SCHEMES
    why = " for disjoint patterns" if disjoint else ""
    scheme = draw(st.sampled_from(some_of(possible, schemes, name="schemes", why=why)))
    T = draw(st.integers(1, max_steps)) if num_steps is None else num_steps
    if scheme in ("cyclic", "once-per-epoch"):
        period = draw(st.sampled_from([b for b in range(1, T + 1) if T % b == 0]))
        kind = Cyclic if scheme == "cyclic" else OncePerEpoch
        return kind(epochs=T // period, period=period)
    if scheme == "min-separation":
        return MinSeparation(T, max_participations=draw(st.integers(1, T)), separation=draw(st.integers(1, T)))
    if scheme == "single":
        return Single(T)
    if scheme == "every-step":
        return EveryStep(T)
    if disjoint:
        labels = draw(lists_of(st.integers(0, T - 1), T))
        return Explicit([[t for t in range(T) if labels[t] == label] for label in sorted(set(labels))], T)
    pattern = st.lists(st.integers(0, T - 1), min_size=1, unique=True)
    return Explicit(draw(st.lists(pattern, min_size=1, max_size=4, unique_by=frozenset)), T)

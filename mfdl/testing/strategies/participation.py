"""Hypothesis strategy for participations: every scheme, on few steps; it shrinks to one step."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ...participation import Cyclic, EveryStep, Explicit, Participation, Single

SCHEMES = ("single", "cyclic", "every-step", "explicit")


@st.composite
def participations(
    draw: st.DrawFn,
    max_steps: int = 8,
    *,
    num_steps: int | None = None,
    disjoint: bool = False,
    schemes: Sequence[str] = SCHEMES,
) -> Participation:
    """Any scheme, on 1 to `max_steps` steps, or on exactly `num_steps`.

    With `disjoint` the patterns always partition the steps; otherwise explicit patterns may overlap and may
    leave steps out.
    """
    scheme = draw(st.sampled_from(list(schemes)))
    T = draw(st.integers(1, max_steps)) if num_steps is None else num_steps
    if scheme == "cyclic":
        period = draw(st.sampled_from([b for b in range(1, T + 1) if T % b == 0]))
        return Cyclic(epochs=T // period, period=period)
    if scheme == "single":
        return Single(T)
    if scheme == "every-step":
        return EveryStep(T)
    if disjoint:
        labels = draw(st.lists(st.integers(0, T - 1), min_size=T, max_size=T))
        return Explicit([[t for t in range(T) if labels[t] == label] for label in sorted(set(labels))], T)
    pattern = st.lists(st.integers(0, T - 1), min_size=1, unique=True)
    return Explicit(draw(st.lists(pattern, min_size=1, max_size=4)), T)

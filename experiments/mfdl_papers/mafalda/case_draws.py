"""What most cases are drawn from, and how far pseudo-inverses and semidefinite programs may be off."""

from __future__ import annotations

from hypothesis import strategies as st

from mfdl.testing.strategies import connected_graphs

from ..statements import statements

GRAPHS, NODES = connected_graphs(2, 5), st.integers(0, 4)
ROUNDING = 1e-6  # condition numbers are up to 1e5
EXACT = 1e-9
UP_TO_FOUR = {"graph": connected_graphs(2, 4), "attacker": st.integers(0, 3), "victim": st.integers(0, 3)}

published_claim = statements(
    graph=GRAPHS,
    attacker=NODES,
    victim=NODES,
    steps=st.integers(1, 4),
    slope=st.integers(-3, 3),
    tolerance=ROUNDING,
)

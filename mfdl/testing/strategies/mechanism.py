"""Hypothesis strategy for calibrated mechanisms; it shrinks to independent noise of one node with mu = 1 under LDP."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import reject
from hypothesis import strategies as st

from ...errors import InvalidInput
from ...mechanism import Mechanism
from ...noise_scale import calibrate
from ...privacy.gaussian import ADJACENCIES
from ._draws import some_of
from .algorithms import ALL_NAMES, linear_algorithms
from .trust import OF_TWO_NODES, trust_models

PROTECTING_NAMES = ("dp-dsgd", "anti-pgd", "bsr", "mf-shared", "mf-per-node", "muffliato", "decor")

ALL_SEEN_KINDS = ("ldp", "eavesdropper", "full-collusion", "coalitions", "colluding")


@st.composite
def mechanisms(
    draw: st.DrawFn,
    names: Sequence[str] = PROTECTING_NAMES,
    *,
    kinds: Sequence[str] = ("ldp",),
    max_epochs: int = 2,
    max_period: int = 2,
    max_nodes: int = 3,
) -> Mechanism:
    """Algorithms of `linear_algorithms` with the least noise for mu of 1, 2 or 1/2 under a trust model.

    Adjacency and clipping norm are drawn; mu of the guarantee is at most the target, and equal to it up to rounding.
    `PROTECTING_NAMES` under `ALL_SEEN_KINDS` nearly always have a finite loss. Cases that have none are left out, so
    other names and kinds draw slowly, or nothing where all losses are infinite.

    Raises: InvalidInput: an unknown name or kind, or "none", which has no noise to scale.
    """
    some_of(ALL_NAMES[1:], names, name="names")
    size = 2 if set(kinds) <= set(OF_TWO_NODES) else 1
    one = draw(linear_algorithms(names, max_epochs, max_period, max_nodes, min_nodes=size))
    model = draw(trust_models(one, kinds=[k for k in kinds if one.num_nodes > 1 or k not in OF_TWO_NODES]))
    mu = draw(st.sampled_from([1.0, 2.0, 0.5]))
    adjacency = draw(st.sampled_from(ADJACENCIES))
    clip_norm = draw(st.sampled_from([1.0, 0.5, 3.0]))
    try:
        return calibrate(one, trust=model, adjacency=adjacency, clip_norm=clip_norm, mu=mu)
    except InvalidInput as error:
        if "infinite loss" not in str(error) and "no noise to scale" not in str(error):
            raise
    return reject()

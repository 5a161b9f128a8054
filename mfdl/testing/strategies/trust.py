"""Hypothesis strategy for trust models: every model of the library, and masks of one's own; it shrinks to LDP.

Every drawn model leaves at least one victim, so a loss can be asked about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from ... import trust
from ...algorithms import LinearAlgorithm
from ...check import integer_at_least
from ._draws import lists_of, some_of
from .written_views import RELEASE

OF_ANY_SIZE = ("ldp", "eavesdropper", "full-collusion", "coalitions", "central", "released")

OF_TWO_NODES = ("any-receiver", "pndp", "colluding")

"""Those whose attackers are nodes, so that a victim besides needs a second one."""

TRUST_MODELS = (*OF_ANY_SIZE, *OF_TWO_NODES, "masks")


@st.composite
def trust_models(
    draw: st.DrawFn, algorithm: LinearAlgorithm | int, *, kinds: Sequence[str] | None = None
) -> trust.TrustModel:
    """Trust models of the given kinds, of `TRUST_MODELS`, that fit an algorithm or a number of nodes.

    Attackers and colluders are any nodes but at least one; a coalition holds less than all. `masks` draws any messages
    among those that are sent, the gradients of any nodes, which are then left out as victims, and any parts of the
    noise, alike at all times or not; it needs an algorithm, since the masks have its shape.

    Args: kinds: default all that fit.
    Raises: InvalidInput: an unknown kind, or one that does not fit.
    """
    n = algorithm.num_nodes if isinstance(algorithm, LinearAlgorithm) else integer_at_least(1, num_nodes=algorithm)
    fitting = tuple(
        kind
        for kind in TRUST_MODELS
        if (n > 1 or kind not in OF_TWO_NODES) and (isinstance(algorithm, LinearAlgorithm) or kind != "masks")
    )
    why = (
        f" for num_nodes={n}; {', '.join(OF_TWO_NODES)} need two nodes, masks an algorithm instead of a number of nodes"
    )
    kind = draw(st.sampled_from(some_of(fitting, fitting if kinds is None else kinds, why=why)))
    if kind in ("pndp", "colluding"):
        nodes = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1)))
        return trust.PNDP(nodes) if kind == "pndp" else trust.SecLDP(tuple(nodes))
    if kind == "coalitions":
        return trust.Coalitions(draw(st.integers(0, n - 1)))
    if kind == "any-receiver":
        return trust.AnyReceiver()
    if kind != "masks":
        return trust.named(kind)
    assert isinstance(algorithm, LinearAlgorithm)
    inside = sorted(draw(st.sets(st.integers(0, n - 1), max_size=n - 1)))
    return trust.TrustModel.from_masks(
        seen=_mask(draw, len(algorithm.rounds), algorithm.messages_per_round) & algorithm.transmitted,
        known_gradients=np.isin(np.arange(n), inside),
        known_noise=_mask(draw, algorithm.num_steps, algorithm.noise.columns_per_step),
        attackers=inside,
        release=draw(st.sampled_from(RELEASE)),
    )


def _mask(draw: st.DrawFn, times: int, width: int) -> NDArray[np.bool_]:
    """(width,) for all times alike, or (times, width); it shrinks to nothing."""
    varying = draw(st.booleans())
    shape = (times, width) if varying else (width,)
    return np.array(draw(lists_of(st.booleans(), int(np.prod(shape)))), dtype=bool).reshape(shape)

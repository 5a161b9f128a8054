"""Hypothesis strategies for trust models, masks of a user among them, and for mechanisms calibrated under them.

They shrink to LDP, and to independent noise of one node with mu = 1. Every drawn model leaves
at least one victim, so that there is a privacy loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from numpy.typing import NDArray

from ... import trust
from ...algorithms import LinearAlgorithm
from ...check import integer_at_least
from ...errors import InvalidInput
from ...mechanism import Mechanism
from ...noise_scale import calibrate
from ...privacy.gaussian import ADJACENCIES
from ...privacy.questions import Privacy
from ._draws import lists_of, some_of
from .algorithms import ALL_NAMES, linear_algorithms
from .view_strategies import RELEASE

OF_ANY_SIZE = ("ldp", "eavesdropper", "full-collusion", "coalitions", "central", "released")

OF_TWO_NODES = ("any-receiver", "pndp", "colluding")

"""Those whose attackers are nodes, so that a victim needs a second node."""

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
        return trust.PNDP(nodes) if kind == "pndp" else trust.Colluding(tuple(nodes))
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
    algorithm = draw(linear_algorithms(names, max_epochs, max_period, max_nodes, min_nodes=size))
    model = draw(trust_models(algorithm, kinds=[k for k in kinds if algorithm.num_nodes > 1 or k not in OF_TWO_NODES]))
    mu = draw(st.sampled_from([1.0, 2.0, 0.5]))
    adjacency = draw(st.sampled_from(ADJACENCIES))
    clip_norm = draw(st.sampled_from([1.0, 0.5, 3.0]))
    try:
        return calibrate(algorithm, Privacy(model, adjacency=adjacency, clip_norm=clip_norm), mu=mu)
    except InvalidInput as error:
        if "infinite loss" not in str(error) and "no noise to scale" not in str(error):
            raise
    return reject()

"""From an algorithm and a trust model to a `ShiftProblem`, within the conditions under which it is proved.

Shift reduction (`shift_reduction`, docs/shift_reduction.md) covers hidden messages with adaptive gradients for plain
gossip: one gradient step, any number of gossip rounds, node-local noise of any encoder, public step sizes, any set of
seen messages, released models. Everything else is refused here, by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...check import FloatArray
from ...errors import InvalidInput, UnsupportedMechanism
from ...floats import UNIT
from ...noise import CausalNoise
from ...view import AlgorithmView, View
from ..forms.separable import SINGULAR, injected_inflation
from ..structure import gradients_enter, is_plain_gossip
from .shift_problem import ShiftProblem

UP = 1 + 8 * UNIT
"""Of 1 / s^2: more than its own rounding."""


def lipschitz_factors(lipschitz: float | Sequence[float], num_steps: int) -> FloatArray:
    """L of each step, checked, shape (T,)."""
    try:
        given = np.asarray(lipschitz)
        if given.dtype.kind not in "fiu":
            raise TypeError
        given = given.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"lipschitz must be one number or one for each step, got {lipschitz!r}.") from None
    if given.shape not in ((), (num_steps,)):
        raise InvalidInput(
            f"lipschitz must be one number or one for each of {num_steps} steps, got shape {given.shape}."
        )
    if not (np.isfinite(given) & (given >= 0)).all():
        raise InvalidInput(f"lipschitz must be finite and >= 0, got {lipschitz!r}.")
    return np.broadcast_to(given, (num_steps,))


def shift_problem(view: View, lipschitz: float | Sequence[float]) -> ShiftProblem:
    """The ShiftProblem of a view.

    Args: lipschitz: L of the local maps x -> x - eta_t g(x), one number or one per step; the caller answers for it.
    Raises: UnsupportedMechanism: momentum, noise that is not node-local, noise known for some steps only, a view of
        averages.
    """
    if not isinstance(view, AlgorithmView):
        raise UnsupportedMechanism("shift reduction needs the algorithm behind a view; a bare view has none.")
    algorithm, knowledge = view.algorithm, view.knowledge
    if knowledge.combination is not None:
        raise UnsupportedMechanism("shift reduction covers seen messages, not seen averages of them.")
    noise = algorithm.noise.causal
    if noise is None or not noise.local or not is_plain_gossip(algorithm, absences=True):
        raise UnsupportedMechanism(
            f"shift reduction covers plain gossip with node-local noise; {algorithm.name!r} has another recursion or "
            f"noise ({algorithm.noise.kind}), for which it is not proved."
        )
    known = knowledge.known_noise
    if (known.any(axis=0) & ~known.all(axis=0)).any():
        raise UnsupportedMechanism("shift reduction needs a node's noise to be known at all steps or at none.")
    T, n, R = algorithm.num_steps, algorithm.num_nodes, len(algorithm.rounds)
    factors = lipschitz_factors(lipschitz, T)
    rates = algorithm.dynamics.learning_rates(T)
    present = gradients_enter(algorithm)
    for one, step in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        if step >= 0 and one.message_from_gradient is not None:
            injected = -one.message_from_gradient.diagonal() * algorithm.divisors
            if np.abs(injected - rates[step] * present[step]).max() > 1e-12 * abs(rates[step]):
                raise UnsupportedMechanism(f"shift reduction: {algorithm.name!r} injects at other rates.")
    pinned = np.zeros((R + 1, n), dtype=bool)
    for r, step in enumerate(algorithm.step_of_round):
        if step >= 0:
            pinned[r] = knowledge.known_gradients[step] & present[step]
    if not view.unreleased:  # the average, over nodes or over steps, is a function of all of them
        pinned[[*algorithm.released_after_rounds]] = True
    absolute = [abs(kind.state_from_message) for kind in algorithm.kinds]  # type: ignore[arg-type]
    scaled = noise.factor is not None
    weights = np.broadcast_to(UP / noise.node_scales**2, (T, n)) if scaled and noise.fresh else None
    return ShiftProblem(
        mixing=[absolute[kind] for kind in algorithm.kind_of_round],
        step_of_round=list(algorithm.step_of_round),
        rates=rates,
        lipschitz=factors,
        divisors=algorithm.divisors,
        seen=knowledge.seen,
        pinned=pinned,
        noisy=~known[0] if known.size else np.zeros(n, dtype=bool),
        noise_gram=None if noise.fresh else _gram_of(noise),
        noise_weights=weights,
        present=present,
    )


def _gram_of(noise: CausalNoise) -> FloatArray:
    """C^T C, shape (T, T) or (n, T, T) over the nodes' s^2, times what rounding of noise as it is injected may add.

    That holds in the positive semidefinite order, hence for the norms of shifts, which the bound sums entry by entry.
    """
    C, inflation = noise.written.array, injected_inflation(noise)
    assert C is not None
    if math.isinf(inflation):
        raise UnsupportedMechanism(f"shift reduction needs noise that is what it is accounted for, but {SINGULAR}.")
    gram = np.asarray(inflation * (C.swapaxes(-1, -2) @ C))
    return gram if noise.factor is None else gram * (UP / noise.node_scales**2)[:, None, None]

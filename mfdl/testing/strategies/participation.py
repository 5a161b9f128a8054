"""Hypothesis strategies for participations, gradient differences, and runs whose gradients are linear in the model.

Participations: every scheme, on few steps; they shrink to one step. Gradient differences: what one record can change in
the stacked gradients. Linear systems: training runs whose true privacy loss is dense linear algebra.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from ...check import FloatArray, integer_at_least
from ...errors import InvalidInput
from ...participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Participation, Single
from ...privacy.adaptive.shift_problem import ShiftProblem
from ...privacy.gaussian import record_shift
from ..oracles.shift import LinearSystem
from .graphs import sized_lists, wanted_names

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
    scheme = draw(st.sampled_from(wanted_names(possible, schemes, name="schemes", why=why)))
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
        labels = draw(sized_lists(st.integers(0, T - 1), T))
        return Explicit([[t for t in range(T) if labels[t] == label] for label in sorted(set(labels))], T)
    pattern = st.lists(st.integers(0, T - 1), min_size=1, unique=True)
    return Explicit(draw(st.lists(pattern, min_size=1, max_size=4, unique_by=frozenset)), T)


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


@st.composite
def linear_systems(draw: st.DrawFn, *, max_nodes: int = 4, max_steps: int = 4) -> LinearSystem:
    """Schedules, divisors, gossip rounds, dropout, local encoders with entries of any sign, known noise, any masks."""
    n = draw(st.integers(1, max_nodes))
    T = draw(st.integers(1, max_steps))
    step_of_round: list[int] = []
    for t in range(T):
        step_of_round += [t] + [-1] * draw(st.sampled_from([0, 0, 0, 1, 2]))
    R = len(step_of_round)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mixing = rng.uniform(0.1, 1.0, (R, n, n)) * (rng.random((R, n, n)) < draw(st.sampled_from([0.3, 0.6, 1.0])))
    mixing += np.eye(n) * (rng.random(n) < 0.8)
    mixing /= np.maximum(mixing.sum(axis=2, keepdims=True), 1e-9)
    if draw(st.booleans()):
        mixing *= rng.choice([-1.0, 1.0], mixing.shape)
    if draw(st.booleans()):
        mixing[:] = mixing[0]
    lipschitz = (
        rng.uniform(0.3, 1.5, T) if draw(st.booleans()) else np.full(T, draw(st.sampled_from([0.0, 0.9, 1.0, 3.0])))
    )
    slopes = lipschitz[:, None] * rng.choice([-1.0, 1.0, 1.0, 0.5], (T, n))
    rates = rng.uniform(0.05, 2.0, T) if draw(st.booleans()) else np.ones(T)
    kind = draw(st.sampled_from(["independent", "weights", "shared", "shared >= 0", "local"]))
    encoders = np.broadcast_to(np.eye(T), (n, T, T)).copy()
    gram = weights = None
    if kind == "weights":
        weights = rng.uniform(0.2, 3.0, (T, n))
        encoders = np.stack([np.diag(np.sqrt(weights[:, j])) for j in range(n)])
    elif kind != "independent":
        entries = np.tril(rng.uniform(-1.0 if kind != "shared >= 0" else 0.0, 1.0, (n, T, T)), -1)
        encoders = entries + np.eye(T) * rng.uniform(0.5, 1.5, (n, T, 1))
        if kind != "local":
            encoders[:] = encoders[0]
        gram = np.swapaxes(encoders, 1, 2) @ encoders
        gram = gram if kind == "local" else gram[0]
    seen_share = draw(st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0]))
    pinned_share = draw(st.sampled_from([0.0, 0.0, 0.1, 0.3]))
    pinned = rng.random((R + 1, n)) < pinned_share
    if draw(st.booleans()):
        pinned[R] = True  # all final models are released
    problem = ShiftProblem(
        mixing=[np.abs(W) for W in mixing],
        step_of_round=np.array(step_of_round),
        rates=rates,
        lipschitz=lipschitz,
        divisors=rng.integers(1, 6, n).astype(float) if draw(st.booleans()) else np.ones(n),
        seen=rng.random((R, n)) < seen_share,
        pinned=pinned,
        noisy=rng.random(n) < draw(st.sampled_from([0.6, 1.0])),
        noise_gram=gram,
        noise_weights=weights,
        present=rng.random((T, n)) < draw(st.sampled_from([0.5, 1.0, 1.0])),
    )
    return LinearSystem(problem, mixing, slopes, encoders)


@st.composite
def linear_systems_with_record(
    draw: st.DrawFn, *, max_nodes: int = 4, max_steps: int = 4
) -> tuple[LinearSystem, int, tuple[int, ...]]:
    """A system, a victim and a pattern."""
    system = draw(linear_systems(max_nodes=max_nodes, max_steps=max_steps))
    victim = draw(st.integers(0, system.problem.num_nodes - 1))
    steps = draw(st.sets(st.integers(0, system.problem.num_steps - 1), min_size=1))
    return system, victim, tuple(sorted(steps))

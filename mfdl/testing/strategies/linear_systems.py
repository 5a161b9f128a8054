"""Training runs whose gradients are linear in the model, so that their true loss is dense linear algebra."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ...privacy.adaptive.shift_problem import ShiftProblem
from ..oracles.shift import LinearSystem


@st.composite
def linear_systems(draw: st.DrawFn, *, max_nodes: int = 4, max_steps: int = 4) -> LinearSystem:
    """Schedules, divisors, gossip rounds, absences, local encoders with entries of any sign, known noise, any masks."""
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

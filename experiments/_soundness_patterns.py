"""Statements on secret patterns: the accounted delta is never below an oracle's, over all patterns written out.

Schemes of up to six steps, any encoder. All patterns are enumerated with their probabilities
(`mfdl.testing.oracles.curve_oracles`). Attackers choose gradients in {-1, 0, 1} from what they have seen, by dynamic
programming; with two steps the pair is integrated over the plane of its means too.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from _campaign import Case, Statement, shortfall
from _soundness_bins import QUADRATURE

import mfdl
from mfdl.noise import LocalNoise
from mfdl.participation.sampling import CyclicPoisson, MinSeparationSampling, RandomAllocation, Sampled
from mfdl.testing.oracles.curve_oracles import Law, attacked, means_delta, pattern_laws

STATEMENTS: dict[str, Statement] = {}
CELLS = {False: {1: 30, 2: 12, 3: 6, 4: 4, 5: 3, 6: 2}, True: {1: 30, 2: 8, 3: 4, 4: 2}}
"""Of the attackers, by steps: a record left out, or replaced."""
SHARES = (0.35, 0.2, 0.1, 0.35)
"""Of the schemes: random allocation costs most."""
MOST_STEPS = 6
POINTS = 401


def drawn_scheme(rng: np.random.Generator, most: int = MOST_STEPS) -> Sampled:
    """Of up to so many steps."""
    sizes = [(k, b) for k in range(1, most + 1) for b in range(1, most + 1) if k * b <= most]
    k, b = sizes[rng.integers(len(sizes))]
    rate = float(rng.choice([rng.uniform(0.02, 0.98), 0.1, 0.5]))
    schemes = (
        CyclicPoisson(k, b, rate),
        RandomAllocation(k, b),
        RandomAllocation(k, b, per_epoch=False),
        MinSeparationSampling(k * b, b, rate),
    )
    return schemes[rng.choice(len(schemes), p=SHARES)]


def drawn_encoder(rng: np.random.Generator, steps: int, period: int) -> np.ndarray:
    """Lower triangular of any sign: dense, with as many bands as the period, non-negative, or none at all."""
    C = np.tril(rng.uniform(-1, 1, (steps, steps)) * rng.choice([0.2, 0.7, 1.0]), -1)
    C += np.diag(rng.uniform(0.5, 1.5, steps))
    kind = rng.integers(4)
    if kind == 0:
        return np.eye(steps)
    if kind == 1:
        return C * (np.subtract.outer(range(steps), range(steps)) < period)
    return np.abs(C) if kind == 2 else C


def accounted(scheme: Sampled, C: np.ndarray, noise_std: float, adjacency: str) -> mfdl.Guarantee:
    """By the library, of two nodes that each add noise of this encoder."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=2"), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, scheme)
    algorithm = dataclasses.replace(algorithm, noise=LocalNoise(C, num_nodes=2))
    trust = mfdl.trust.LDP()
    return mfdl.account(algorithm, mfdl.Privacy(trust, adjacency=adjacency, clip_norm=1.0), noise_std=noise_std)


def of_plane(C: np.ndarray, law: Law, noise_std: float, epsilon: float, way: str) -> float:
    """The hockey stick of gradients that are 1, of two steps."""
    means = np.array([np.abs(C)[:, list(steps)].sum(axis=1) for _, steps in law]) / noise_std
    return means_delta(means, epsilon, way, POINTS, np.array([probability for probability, _ in law]))


def differ(rng: np.random.Generator) -> Case:
    """The largest relative shortfall over three epsilons."""
    adjacency = str(rng.choice(["zero-out", "replace-one"], p=[0.7, 0.3]))
    replaced = adjacency == "replace-one"
    scheme = drawn_scheme(rng, max(CELLS[replaced]))
    T = scheme.num_steps
    C, noise_std = (
        drawn_encoder(rng, T, getattr(scheme, "period", 2)),
        math.exp(rng.uniform(math.log(0.4), math.log(4))),
    )
    epsilons = [0.0, float(rng.uniform(0, 1)), float(rng.uniform(0, 4))]
    ways, laws = ("replaced",) if replaced else ("kept", "lost"), pattern_laws(scheme)
    cells = CELLS[replaced][T]
    true = np.max([attacked(C, law, noise_std, epsilons, way, cells) for law in laws for way in ways], axis=0)
    if T == 2:
        exact = [max(of_plane(C, law, noise_std, e, way) for law in laws for way in ways) for e in epsilons]
        true = np.maximum(true, np.array(exact) * (1 - QUADRATURE) - 1e-7)
    curve = accounted(scheme, C, noise_std, adjacency).curve
    off = max(shortfall(float(t), curve.delta(e)) for t, e in zip(true, epsilons, strict=True))
    text = f"{scheme!r}, C {C.tolist()}, noise {noise_std!r}, {adjacency}, epsilons {epsilons!r}"
    return Case(off, f"{scheme.scheme} | {adjacency} | secret patterns: scheme by adjacency", T, text)


NAME = "secret patterns, adaptive gradients: true delta <= delta at an epsilon"
STATEMENTS[NAME] = Statement(NAME, differ, 1e-9, 0.01)

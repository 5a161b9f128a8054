"""Statements on runs, views and compositions: every assumption of a guarantee still holds there.

`_soundness_statements.py` tests the accountant. These statements test what follows: runs that change the local maps
for which a Lipschitz constant was given, balls-in-bins under masks, and guarantees of several runs. Lower bounds
are closed loops in fractions, a projection of the view by quadrature, and Gaussians below a mixture.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from _campaign import Case, Excluded, shortfall
from _soundness_cases import Question, drawn_trust, dyadic_gossip, least_loss
from _soundness_statements import ROUNDING, statement

from mfdl import Privacy, algorithms, gossip, noise_scale, trust
from mfdl.algorithms import LinearAlgorithm
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.mechanism import Mechanism
from mfdl.noise import IndependentNoise, JointNoise, LocalNoise, NoiseOperator, SpatioTemporalNoise
from mfdl.participation import BallsInBins, Cyclic, Participation, PoissonSampling
from mfdl.privacy import gaussian
from mfdl.privacy.guarantee import Guarantee
from mfdl.privacy.guarantee_texts import DELTA
from mfdl.testing.tasks import linear_task
from mfdl.training import replay_config
from mfdl.training.replay import ReplayConfig
from mfdl.training.tasks import Task

CLIP = {"adjacency": "zero-out", "clip_norm": 1.0}
GRID = np.linspace(-30.0, 30.0, 12_001)
QUADRATURE = 1e-3
"""Relative: what sums on `GRID` may be off, with deltas of `FAINT` or less left out."""
FAINT = 1e-9
GRIDS = 1 - 1e-3
"""Losses of a run and of several are rounded up on grids of their own."""

# ---- what a run makes of its gradients -------------------------------------------------------------------------------


@statement("clip schedules and divisors under a Lipschitz constant: closed loop <= what replay accepts", share=0.3)
def clipped(rng: np.random.Generator) -> Case:
    """Local maps that the task's constant is true of, gradients divided by c_t: as replay would run them."""
    L = float(rng.choice([0.5, 1.0, 2.0]))
    calibrated, views, task = drawn_training(rng, L)
    T, n = calibrated.algorithm.num_steps, calibrated.algorithm.num_nodes
    clips = (
        np.ones(T) if rng.random() < 0.3 else np.ones(T) * rng.choice([0.25, 0.5, 0.7, 2.0], [T, 1][rng.integers(2)])
    )
    try:
        config = ReplayConfig(calibrated, task, seeds=[0], clip_schedule=clips, progress=False)
    except InvalidInput as refusal:
        raise Excluded(f"refused: {str(refusal)[:40]}") from None
    run = calibrated.algorithm.with_divisors(replay_config.divisors(calibrated, task, config.fed_every, 0))
    rates = run.dynamics.learning_rates(T)[:, None] / run.divisors
    slopes = rng.choice([-1.0, 0.0, 0.5, 1.0], [(T, n), (T, 1), (1, 1)][rng.integers(3)])  # of x - (rate / m) r x
    reactions = (1 - slopes * L) / rates / clips[:, None]
    questions = [dataclasses.replace(question, algorithm=run) for question in views]
    truth = max(least_loss(question, reactions) for question in questions)
    sensitivity_squared = calibrated.guarantee.sensitivity**2
    off = shortfall(truth if truth == math.inf else float(truth), sensitivity_squared)
    rest = "Lipschitz" if calibrated.lipschitz is not None else "no constant"
    shape = "clips" if (clips != 1).any() else "no clips"
    words = (
        f"true {float(truth)!r}, stated {sensitivity_squared!r}, clips {clips.tolist()}, L {L}: {questions[0].words}"
    )
    return Case(off, f"{shape} | {rest} | {views[0].kind}", run.num_nodes * T, words if off else "")


def drawn_training(rng: np.random.Generator, L: float) -> tuple[Mechanism, list[Question], Task]:
    """A calibrated mechanism, the view of every victim, and a task that claims L."""
    n = int(rng.integers(2, 6))
    W = gossip.metropolis_hastings(f"star:n={n}") if rng.random() < 0.5 else dyadic_gossip(rng, n)
    epochs, period = [(2, 1), (3, 1), (1, 2), (2, 2), (3, 2)][rng.integers(5)]
    scheme = Cyclic(epochs, period)
    algorithm = algorithms.dp_dsgd(Dynamics(W, 2.0 ** int(rng.integers(-2, 1))), scheme)
    kind, model, views = drawn_trust(rng, algorithm, (0,))
    for _ in range(9 if rng.random() < 0.8 else 0):  # most of all models that hide something
        if kind in ("released", "pndp"):
            break
        kind, model, views = drawn_trust(rng, algorithm, (0,))
    attackers = model.attackers(algorithm) if kind not in ("any-receiver", "coalitions") else ()
    if kind in ("masks", "any-receiver", "coalitions") or 0 in attackers:
        raise Excluded(f"views that depend on the victim: {kind}")
    try:
        calibrated = noise_scale.calibrate(algorithm, Privacy(model, lipschitz=L, **CLIP), mu=1.0)
    except (InvalidInput, UnsupportedMechanism) as refusal:
        raise Excluded(f"refused: {str(refusal)[:40]}") from None
    views = [dataclasses.replace(view, release="all") for view in views]
    victims = [u for u in range(n) if u not in attackers] if kind not in ("ldp", "full-collusion") else [0]
    questions = [Question(algorithm, model, kind, None, "record", scheme, u, views) for u in victims]
    return calibrated, questions, dataclasses.replace(_task(n, 2 * n * period), lipschitz=L)


@functools.cache
def _task(n: int, records: int) -> Task:
    return linear_task(n, np.ones((records, 1)))


# ---- balls-in-bins ------------------------------------------------------------------------------------------


@statement("balls-in-bins against masks: one projection <= library", tolerance=QUADRATURE, share=0.02)
def secret(rng: np.random.Generator) -> Case:
    algorithm = drawn_secret(rng)
    scheme, n, T = algorithm.participation, algorithm.num_nodes, algorithm.num_steps
    columns = algorithm.noise.columns_per_step
    # each step alone may show a gradient, each column of the noise may be known, in all steps
    known = (rng.random((T, n)) < 0.4) if rng.random() < 0.5 else np.zeros((T, n), dtype=bool)
    noise = np.tile(rng.random(columns) < 0.3, (T, 1)) if rng.random() < 0.3 else np.zeros((T, columns), dtype=bool)
    model = trust.TrustModel.from_masks(seen=np.ones(n, dtype=bool), known_gradients=known, known_noise=noise)
    adjacency, nu = str(rng.choice(["zero-out", "replace-one"])), float(rng.choice([0.5, 1.0, 3.0]))
    epsilon = float(rng.choice([8.0] if known.any() else [0.0, 0.3, 1.0, 3.0]))  # where noise hides all that it hides
    try:
        guarantee = noise_scale.account(algorithm, Privacy(model, adjacency=adjacency, clip_norm=1.0), noise_std=nu)
    except UnsupportedMechanism as refusal:
        raise Excluded(f"refused: {str(refusal)[:40]}") from None
    B = nu * algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])) * ~noise.ravel()
    truth = max(_of_victim(rng, scheme, B, known, u, adjacency, epsilon) for u in range(n))
    delta = guarantee.delta(epsilon)
    off = shortfall(truth if truth > FAINT else 0.0, delta)
    label = f"{type(scheme).__name__} | {algorithm.noise.kind} | {'gradients known' if known.any() else 'none known'}"
    words = (
        f"delta({epsilon:g}) of {truth!r} is seen, stated {delta!r}: {label}, {scheme.describe()}, {adjacency}, B "
        f"{B.tolist()}, known gradients {known.astype(int).tolist()}, known noise {noise.astype(int).tolist()}"
    )
    return Case(off, label, n * T, words if off > QUADRATURE else "")


def drawn_secret(rng: np.random.Generator) -> LinearAlgorithm:
    """Few nodes and steps, noise of every structure that balls-in-bins is accounted for."""
    n, draw = int(rng.integers(1, 4)), rng.random()
    epochs, bins = [(1, 2), (2, 2), (1, 3), (2, 1), (3, 2)][rng.integers(5)]
    scheme: Participation = BallsInBins(epochs, bins)
    if draw < 0.2:
        scheme = PoissonSampling(float(rng.choice([0.1, 0.5])), int(rng.integers(1, 4)))
    T = scheme.num_steps
    W = gossip.from_array(np.full((n, n), 1 / n))
    algorithm = algorithms.dp_dsgd(Dynamics(W, 0.5), scheme)
    holders = np.ones((n, n), dtype=bool)

    def causal(size: int) -> FloatArray:
        return np.eye(size) + np.tril(rng.choice([0.0, 0.5, -0.5], (size, size)), -1)

    factor = causal(n)
    structures: list[Any] = [
        lambda: IndependentNoise(T, n),
        lambda: LocalNoise(causal(T), n),
        lambda: LocalNoise(np.stack([causal(T) for _ in range(n)]), n),
        lambda: SpatioTemporalNoise(causal(T), factor, holders, n),
        lambda: SpatioTemporalNoise(np.stack([causal(T) for _ in range(n)]), factor, holders, n),
        lambda: JointNoise(causal(T * n), T, n),
    ]
    if isinstance(scheme, PoissonSampling):
        structures = [structures[0]]
    noise: NoiseOperator = structures[min(rng.integers(8), len(structures) - 1)]()
    return dataclasses.replace(algorithm, noise=noise)


def _of_victim(
    rng: np.random.Generator,
    scheme: Participation,
    B: FloatArray,
    known: Any,
    victim: int,
    adjacency: str,
    epsilon: float,
) -> float:
    """A delta at this epsilon that an attacker attains who sees every injected sum: gradients of one coordinate."""
    n, T = known.shape[1], known.shape[0]
    joined, weights = patterns_of(scheme)
    moved = joined & known[:, victim]
    exposed = float(weights[moved.any(axis=1)].sum())  # a known gradient shows that the record took part
    if exposed:
        return exposed
    signs = rng.choice([-1.0, 1.0], T)
    means = np.zeros((len(weights), T, n))
    means[:, :, victim] = joined * signs
    means = means.reshape(len(weights), T * n)
    covariance = B @ B.T
    inside, outside = np.linalg.pinv(covariance, rcond=1e-9), _null_space(covariance)
    visible = np.abs(means @ outside).max(axis=1, initial=0.0) > 1e-6
    if visible.any():
        return float(weights[visible].sum())
    directions = [inside @ mean for mean in (*means[:4], weights @ means)]
    return max(_projected(means, weights, covariance, w, adjacency, epsilon) for w in directions)


def patterns_of(scheme: Participation) -> tuple[Any, FloatArray]:
    """Whether the record joins each step, bool (patterns, T), and with which probability: all there are."""
    T = scheme.num_steps
    if isinstance(scheme, BallsInBins):
        joined = np.arange(T) % scheme.bins == np.arange(scheme.bins)[:, None]
        return joined, np.full(scheme.bins, 1 / scheme.bins)
    assert isinstance(scheme, PoissonSampling)
    joined = (np.arange(2**T)[:, None] >> np.arange(T)) % 2 == 1
    return joined, np.asarray(np.where(joined, scheme.rate, 1 - scheme.rate).prod(axis=1))


def _null_space(covariance: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors[:, values < 1e-9 * max(values[-1], 1e-300)])


def _projected(
    means: FloatArray, weights: FloatArray, covariance: FloatArray, w: FloatArray, adjacency: str, epsilon: float
) -> float:
    """The larger direction of the hockey stick of w . Y: no more than that of Y."""
    std = math.sqrt(max(float(w @ covariance @ w), 0.0))
    if not std:
        return 0.0
    at = means @ w / std
    if np.abs(at).max() > 12:  # beyond the grid
        return 0.0

    def density(centres: FloatArray) -> FloatArray:
        return np.asarray(weights @ np.exp(-((GRID - centres[:, None]) ** 2) / 2) / math.sqrt(2 * math.pi))

    P = density(at)
    Q = density(0 * at) if adjacency == "zero-out" else density(-at)
    grown, step = math.exp(epsilon), GRID[1] - GRID[0]
    return max(float(np.clip(a - grown * b, 0, None).sum() * step) for a, b in ((P, Q), (Q, P)))


# ---- several runs ----------------------------------------------------------------------------------------------------


@statement("two runs: either and a Gaussian below both <= composed, which says all conditions", share=0.02)
def composed(rng: np.random.Generator) -> Case:
    model: trust.TrustModel = trust.ReleasedOnly() if rng.random() < 0.6 else trust.LDP()
    adjacency = str(rng.choice(["zero-out", "replace-one"]))
    parts = [drawn_run(rng, model, adjacency) for _ in range(3 if rng.random() < 0.2 else 2)]
    parts.sort(key=lambda part: isinstance(part[0], Guarantee))  # secret ones compose with public ones
    both, least = parts[0]
    for guarantee, mu in parts[1:]:
        both, least = both.compose_with(guarantee), math.hypot(least, mu)
    kinds = [_kind(guarantee) for guarantee, _ in parts]
    lost = [note for guarantee, _ in parts for note in guarantee.notes if note not in str(both)]
    if lost or not both.adaptive or both.composed != len(parts):
        return Case(math.inf, f"{len(parts)} runs | {kinds[0]} | {kinds[-1]}", 1, f"{kinds} lose {lost}: {both}")
    truth = max(gaussian.epsilon_from_mu(least, DELTA), *(guarantee.epsilon(DELTA) * GRIDS for guarantee, _ in parts))
    off = shortfall(truth * (1 - ROUNDING), both.epsilon(DELTA))
    words = f"mu {least!r} is attained, so epsilon {truth!r}: {both}"
    return Case(off, f"{len(parts)} runs | {kinds[0]} | {kinds[-1]}", 1, words if off else "")


def drawn_run(rng: np.random.Generator, model: trust.TrustModel, adjacency: str) -> tuple[Guarantee, float]:
    """What one run guarantees, and a mu that its worst victim attains: 0 where none is known."""
    W, nu = gossip.metropolis_hastings("star:n=4"), float(rng.choice([4.0, 8.0]))
    privacy = Privacy(model, adjacency=adjacency, clip_norm=1.0)
    shift = gaussian.record_shift(adjacency, 1.0)
    epochs, bins = [(2, 2), (2, 3)][rng.integers(2)]
    if rng.random() < 0.5:
        guarantee = noise_scale.account(
            algorithms.dp_dsgd(Dynamics(W, 0.5), Cyclic(epochs, bins)),
            dataclasses.replace(privacy, lipschitz=1.0 if rng.random() < 0.6 else None),
            noise_std=nu,
        )
        return guarantee, guarantee.mu * (1 - 1e-9) if guarantee.bound == "exact" else 0.0
    secret = noise_scale.account(algorithms.dp_dsgd(Dynamics(W, 0.5), BallsInBins(epochs, bins)), privacy, noise_std=nu)
    # every bin is as far along the mean of all: one projection of the mixture is a Gaussian; of hidden messages nothing
    attained = shift * math.sqrt(epochs / bins) / nu
    return secret, attained if isinstance(model, trust.LDP) else 0.0


def _kind(guarantee: Guarantee) -> str:
    return "secret" if guarantee.mu is None else "Lipschitz" if guarantee.notes else "public"

"""Hypothesis strategies for linear algorithms (every builder by name), encoders, participations and gradients."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ... import algorithms
from ...algorithms import LinearAlgorithm, from_maps
from ...algorithms.building import used_by_others
from ...check import FloatArray, integer_at_least
from ...dynamics import Dynamics
from ...errors import InvalidInput
from ...factorization import Factorization, FactorizationProblem, evaluate, solve_problem
from ...gossip import Gossip
from ...noise import IndependentNoise, LocalNoise, NoiseOperator, StepNoise
from ...participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Participation, Single
from ...privacy.gaussian import record_shift
from ...privacy.shift_problem import ShiftProblem
from ..oracles.sensitivity_oracle import LinearSystem
from .graphs import KINDS, gossip_matrices, gossip_sequences, integer_arrays, sized_lists, wanted_names

RANDOM_ENCODERS = ("mf-shared", "mf-per-node")
CHEAP_NAMES = ("none", "dp-dsgd", "anti-pgd", "bsr", "bisr", "lambda-cgd", *RANDOM_ENCODERS)
"""Those of one message per node and step, with noise of its own, that solve no problem."""
NAMES = (*CHEAP_NAMES, "d-mf", "mafalda", "mafalda-classes", "mafalda-l")
SHARED_NAMES = ("decor", "spatial", "corn", "corn-pairwise")
"""Noise of one step correlated over the nodes, from secrets that several nodes hold."""
JOINT_NAMES = ("kronecker", "per-mode", "joint")
"""Noise correlated over steps and nodes at once, from a secret that all nodes hold."""
FORM_NAMES = ("banded", "toeplitz", "blt", "band-inv")
"""The best encoders of a form with structure, against constant symmetric gossip."""
MEMORY_NAMES = ("gradient-tracking", "exact-diffusion", "delayed-dsgd", "two-hop-dsgd", "local-steps")
"""Recursions with memory: more state than the models, or messages that are late, forwarded or not sent every step."""
ALL_NAMES = (*NAMES, "muffliato", "cdp", *MEMORY_NAMES, *SHARED_NAMES, *JOINT_NAMES, *FORM_NAMES, "zip-dl")
"""Every mechanism of the registry but trust-optimal, and random encoders and covariances; at most about 10 ms each."""
SYMMETRIC_KINDS = ("symmetric", "singular")
DYADIC = (1.0, -1.0, 0.5, -0.5, 0.25, 2.0)
NOISES = ("independent", "local", "shared")


def build_algorithm(
    name: str, dynamics: Dynamics, participation: Participation, seed: int = 0, **parameters: Any
) -> LinearAlgorithm:
    """An algorithm of `ALL_NAMES`: of random encoders and covariance by `seed`, or of the builder's `parameters`."""
    T, n = participation.num_steps, dynamics.num_nodes
    if name in RANDOM_ENCODERS:
        random = random_encoder(np.random.default_rng(seed), T, n if name == "mf-per-node" else None)
        return algorithms.mf_dsgd(dynamics, participation, parameters.get("encoder", random), name=name)
    if name == "spatial":
        if not parameters:
            F = np.random.default_rng(seed).uniform(-1, 1, (n, n))
            parameters = {"covariance": F @ F.T, "private_variance": 1.0}
        return algorithms.spatial_covariance(dynamics, participation, **parameters)
    return algorithms.build(name, dynamics, participation, **parameters)


@st.composite
def linear_algorithms(
    draw: st.DrawFn,
    names: Sequence[str] = CHEAP_NAMES,
    max_epochs: int = 3,
    max_period: int = 3,
    max_nodes: int = 4,
    *,
    min_nodes: int = 1,
    kinds: Sequence[str] = KINDS,
    varying: bool = True,
) -> LinearAlgorithm:
    """Algorithms of the given names, of `ALL_NAMES`, under cyclic participation on gossip of the given kinds.

    Gossip is constant, or varies over time where `varying` and the name allow it: `zip-dl`, `JOINT_NAMES` and
    `FORM_NAMES` take constant symmetric gossip, `two-hop-dsgd` constant gossip. Parameters are drawn, and may be
    extreme (DECOR without private noise, a singular covariance, seeds of any groups), so a loss may be infinite.

    Raises: InvalidInput: an unknown name, or one that needs a symmetric kind without one.
    """
    name = draw(st.sampled_from(wanted_names(ALL_NAMES, names, name="names")))
    if name == "two-hop-dsgd":
        varying = False
    if name in ("zip-dl", *JOINT_NAMES, *FORM_NAMES):
        kinds, varying = [kind for kind in kinds if kind in SYMMETRIC_KINDS], False
        if not kinds:
            raise InvalidInput(f"{name} needs one of the kinds {', '.join(SYMMETRIC_KINDS)}.")
    size = {"min_nodes": min_nodes, "max_nodes": max_nodes}
    kinds = [kind for kind in kinds if max_nodes > 1 or kind != "singular"] or ["symmetric"]
    constant: st.SearchStrategy[Gossip] = gossip_matrices(kinds=kinds, **size)
    gossip = draw(st.one_of(constant, gossip_sequences(kinds=kinds, **size)) if varying else constant)
    period = draw(st.integers(1, max_period))
    epochs = draw(st.integers(1, max_epochs))
    finite = getattr(gossip, "num_steps", None)  # of a sequence that does not repeat
    if finite is not None:
        epochs, period = 1, finite
    dynamics = Dynamics(gossip, learning_rate=draw(st.sampled_from([1.0, 0.5, 0.3])))
    participation = Cyclic(epochs, period)
    parameters = _parameters(draw, name, participation, gossip.num_nodes, once=finite is not None)
    return build_algorithm(name, dynamics, participation, **parameters)


def _parameters(draw: st.DrawFn, name: str, participation: Cyclic, n: int, *, once: bool) -> dict[str, Any]:
    """Arguments of a builder; `once`: there is one gossip matrix per step and no more."""
    T, five = participation.num_steps, st.just(5)
    if name == "mf-per-node":
        return {"encoder": np.stack([draw(encoders(size=T)) for _ in range(n)])}
    if name == "decor":
        local = draw(st.sampled_from([1.0, 0.5, 0.0]))
        return {"sigma_ldp": local, "sigma_cor": draw(st.sampled_from([1.0, 2.0] if local == 0 else [1.0, 2.0, 0.0]))}
    if name == "spatial":
        return _spatial(draw, n)
    drawn: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "mf-shared": {"encoder": encoders(size=T)},
        "lambda-cgd": {"correlation": st.sampled_from([0.5, 0.75])},
        **{each: {"bandwidth": st.integers(1, T)} for each in ("bsr", "bisr")},
        **{each: {"bandwidth": st.integers(1, participation.period), "max_iterations": five} for each in FORM_NAMES},
        **{each: {"tolerance": st.just(1e-2)} for each in JOINT_NAMES},
        "blt": {"buffers": st.integers(1, 2), "max_iterations": five},
        "muffliato": {"gossip_rounds": st.just(1) if once else st.integers(1, 3)},
        "corn": {"coalition_size": st.just(0)},
        "delayed-dsgd": {"delay": st.integers(0, 2)},
        "local-steps": {"steps": st.integers(1, 3)},
        "zip-dl": {"sigma": st.sampled_from([1.0, 2.0, 0.5]), "self_messages": st.booleans()},
    }
    return {key: draw(value) for key, value in drawn.get(name, {}).items()}


def _spatial(draw: st.DrawFn, n: int) -> dict[str, Any]:
    """Private noise or none, and the noise of one seed for all nodes or of some groups, F F^T with small integers."""
    private = draw(st.sampled_from([1.0, 0.25, 0.0]))
    groups = draw(st.none() | st.lists(st.sets(st.integers(0, n - 1), min_size=1).map(sorted), min_size=1, max_size=3))
    if groups is None:
        return {"covariance": _part(draw, n), "private_variance": private}
    parts = [_part(draw, len(group)) for group in groups]
    return {"covariance": parts, "groups": groups, "private_variance": private}


def _part(draw: st.DrawFn, size: int) -> FloatArray:
    """F F^T, positive semidefinite of any rank but zero; it shrinks to ones in one corner."""
    F = draw(integer_arrays(2, size, draw(st.integers(1, size))))
    if not F.any():
        F[0, 0] = 1.0
    return np.asarray(F @ F.T)


@st.composite
def user_algorithms(
    draw: st.DrawFn,
    *,
    max_nodes: int = 3,
    max_steps: int = 3,
    entries: Sequence[float] = DYADIC,
    together: bool = False,
) -> LinearAlgorithm:
    """Algorithms outside the registry: any maps with these entries, any senders, hidden state, messages left unsent.

    A step may be followed by a round of pure gossip, and steps may differ. Noise is fresh or correlated in time, of one
    node or of several, of very unequal size if `entries` are; it enters where gradients do (always, if `together`), or
    elsewhere. Small dyadic entries keep everything exact in float64.
    """
    n, T = draw(st.integers(1, max_nodes)), draw(st.integers(1, max_steps))
    state, messages = draw(st.integers(n, n + 2)), draw(st.integers(1, n + 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.3, 0.6, 1.0]))
    same, apart = draw(st.booleans()), not together and draw(st.booleans())

    def drawn(rows: int, columns: int, share: float = density) -> FloatArray:
        values = rng.choice(entries, (rows, columns))
        return np.asarray(np.where(rng.random((rows, columns)) < share, values, 0.0))

    def maps(injects: bool) -> dict[str, Any]:
        matrices = {"P": drawn(messages, state), "K": drawn(state, messages), "F": drawn(state, state, density / 2)}
        if injects:
            matrices |= {"Q": drawn(messages, n), "J": drawn(state, n, density / 3)}
        if injects and apart:
            matrices |= {"R": drawn(messages, n), "L": drawn(state, n, density / 3)}
        return matrices

    rounds = [[maps(True), *([maps(False)] if draw(st.booleans()) else [])] for _ in range(1 if same else T)]
    count = sum(len(rounds[0 if same else t]) for t in range(T))
    kind = draw(st.sampled_from(NOISES))
    noise: NoiseOperator = IndependentNoise(T, n)
    if kind == "local":
        noise = LocalNoise(np.tril(drawn(T, T, 0.7), -1) + np.diag(rng.choice([1.0, 2.0, 0.5], T)), n)
    elif kind != "independent":
        columns = draw(st.integers(1, n + 1))
        holders = rng.random((columns, n)) < 0.6
        noise = StepNoise(drawn(n, columns, 1.0) * holders.T, holders, T, n)
    algorithm = from_maps(
        lambda t: rounds[0 if same else t],
        draw(st.sampled_from([EveryStep(T), Single(T)])),
        noise=noise,
        message_sender=rng.integers(0, n, messages),
    )
    sent = rng.random((count, messages)) < draw(st.sampled_from([0.5, 1.0]))
    used = used_by_others(algorithm.rounds, algorithm.model_from_state, algorithm.message_sender)
    return dataclasses.replace(algorithm, transmitted=sent | used)


FACTORIZATION_KINDS = ("given", "optimal")


@st.composite
def encoders(draw: st.DrawFn, max_steps: int = 8, *, size: int | None = None, non_negative: bool = False) -> FloatArray:
    """Causal encoders of T = `size`, or 1 to `max_steps`: eighths, diagonal in [1, 2], below it up to 1/2 in size."""
    T = size or draw(st.integers(1, max_steps))
    return _causal(draw, T, (0 if non_negative else -4, 4), (8, 16)) / 8


def _causal(draw: st.DrawFn, T: int, below: tuple[int, int], diagonal: tuple[int, int]) -> FloatArray:
    """A lower triangular matrix of integers within these bounds."""
    C = np.zeros((T, T))
    C[np.tril_indices(T, -1)] = draw(sized_lists(st.integers(*below), T * (T - 1) // 2))
    return C + np.diag(draw(sized_lists(st.integers(*diagonal), T)))


@st.composite
def integer_encoders(draw: st.DrawFn, max_steps: int = 6, largest: int = 4, *, size: int | None = None) -> FloatArray:
    """Causal encoders of T = `size`, or 1 to `max_steps`: small integers; they shrink to the identity."""
    T = size or draw(st.integers(1, max_steps))
    return _causal(draw, T, (-largest, largest), (1, largest))


def random_encoder(rng: np.random.Generator, num_steps: int, num_nodes: int | None = None) -> FloatArray:
    """A well-conditioned causal encoder with entries of both signs, (T, T) or (n, T, T)."""
    shape = (num_steps, num_steps) if num_nodes is None else (num_nodes, num_steps, num_steps)
    below = np.tril(rng.uniform(-1, 1, shape), -1)
    diagonal: FloatArray = rng.uniform(0.5, 2, shape[:-1])
    return below + diagonal[..., None] * np.eye(num_steps)


@st.composite
def factorization_problems(
    draw: st.DrawFn, max_size: int = 6, *, ridges: Sequence[float] = (1.0, 1e-2, 1e-6, 0.0)
) -> FactorizationProblem:
    """H = B^T B + ridge I, B of integers, of any rank, any labels; nearly singular or singular at ridges 1e-6, 0."""
    T = draw(st.integers(1, max_size))
    B = draw(integer_arrays(3, draw(st.integers(1, T)), T))
    if not B.any():
        B[0, 0] = 1
    labels = draw(sized_lists(st.integers(0, T - 1), T))
    ridge = draw(st.sampled_from(list(ridges)))
    return FactorizationProblem(B.T @ B + ridge * np.eye(T), np.array(labels, dtype=np.intp))


@st.composite
def factorizations(
    draw: st.DrawFn,
    max_size: int = 4,
    *,
    kinds: Sequence[str] = FACTORIZATION_KINDS,
    ridges: Sequence[float] = (1.0, 1e-2),
    tolerance: float = 1e-4,
) -> tuple[FactorizationProblem, Factorization]:
    """A problem with a factorization of it, which carries loss, lower bound and gap.

    `optimal` is the solver's, to the tolerance; `given` a small integer encoder scaled to sensitivity at most 1, with
    the solver's lower bound. Costs some milliseconds each.

    Raises: InvalidInput: an unknown kind; NotConverged: the solver stopped, which small ridges can bring about.
    """
    kind = draw(st.sampled_from(wanted_names(FACTORIZATION_KINDS, kinds)))
    posed = draw(factorization_problems(max_size, ridges=ridges))
    best = solve_problem(posed, tolerance=tolerance).require_converged(tolerance)
    if kind == "optimal":
        return posed, best
    encoder = draw(integer_encoders(size=posed.size, largest=2))
    return posed, evaluate(posed, encoder, lower_bound=best.lower_bound)


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

    With `disjoint` the patterns always partition the steps. Raises: InvalidInput: an unknown scheme, or one of
    `OVERLAPPING` with `disjoint`.
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

    The rows of one node (`victim`, or any) at the steps of one pattern are as long as one record can make them (never
    longer, in exact arithmetic), in the direction of an axis or of a Pythagorean pair and with any sign, or a fraction
    of that, or zero; all others are zero. It shrinks to zero.

    Raises: InvalidInput: unknown adjacency, clip_norm not > 0, no node or dimension, an unknown victim.
    Guarantees: no row is longer than `record_shift(adjacency, clip_norm)`, in exact arithmetic.
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

"""Statements on which two oracles must agree: one random case, one difference; tried by `oracle_agreement.py`.

A statement is a function from numpy's generator to a relative difference. "=" in its name is equality; "<=" says that
the first may only be smaller, and the difference is what it exceeds by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from _campaign import Excluded, Statement

import mfdl_solvers
from mfdl import gossip, participation
from mfdl.check import FloatArray
from mfdl.privacy import gaussian
from mfdl.privacy.shift_problem import ShiftProblem
from mfdl.testing import oracles
from mfdl_solvers import coalitions

STATEMENTS: dict[str, Statement] = {}


def statement(name: str, *, tolerance: float, share: float = 1.0) -> Callable[[Any], Any]:
    def register(differ: Callable[[np.random.Generator], float]) -> Callable[[np.random.Generator], float]:
        STATEMENTS[name] = Statement(name, differ, tolerance, share)
        return differ

    return register


def distance(a: Any, b: Any) -> float:
    """Largest difference, relative to the largest entry of either and at least 1."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if (np.isinf(a) | np.isinf(b)).any():
        return 0.0 if np.array_equal(a, b) else math.inf
    return float(np.abs(a - b).max(initial=0.0) / max(1.0, np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0)))


def excess(lower: float, upper: float) -> float:
    """How far the lower one is above, relative to the larger and at least 1."""
    return 0.0 if lower <= upper else (lower - upper) / max(1.0, abs(lower), abs(upper))


# ---- views ---------------------------------------------------------------------------------------------------------


def drawn_view(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """(A, B) of integers from -2 to 2, of any rank."""
    rows, noise, steps = rng.integers(1, 7), rng.integers(1, 7), rng.integers(1, 5)
    A, B = rng.integers(-2, 3, (rows, steps)), rng.integers(-2, 3, (rows, noise))
    if rng.random() < 0.5 and rows > 1:  # one row depends on the others
        mix = rng.integers(-1, 2, rows - 1)
        B[-1] = mix @ B[:-1]
        if rng.random() < 0.5:
            A[-1] = mix @ A[:-1]
    return A.astype(float), B.astype(float)


def in_doubles(B: FloatArray) -> None:
    if not oracles.clear_rank(B):
        raise Excluded("rank unclear in float64")


@statement("view Gram: pseudo-inverse = rational", tolerance=1e-9)
def view_gram(rng: np.random.Generator) -> float:
    A, B = drawn_view(rng)
    in_doubles(B)
    exact = oracles.exact_view_gram(oracles.rational(A), oracles.rational(B))
    return distance(oracles.pinv_gram(A, B)[0], oracles.to_float(exact))


@statement("leaks: pseudo-inverse = rational", tolerance=0)
def leaks(rng: np.random.Generator) -> float:
    A, B = drawn_view(rng)
    in_doubles(B)
    return distance(oracles.pinv_gram(A, B)[1], oracles.exact_leaks(oracles.rational(A), oracles.rational(B)))


@statement("leaks: rational rank = rational row span", tolerance=0)
def spans(rng: np.random.Generator) -> float:
    A, B = drawn_view(rng)
    by_span = [not oracles.rows_span(B.T, column[None]) for column in A.T]
    return distance(by_span, oracles.exact_leaks(oracles.rational(A), oracles.rational(B)))


@statement("known noise: zero column = further row", tolerance=1e-9)
def known_noise(rng: np.random.Generator) -> float:
    A, B = drawn_view(rng)
    known = np.flatnonzero(rng.random(B.shape[1]) < 0.4).tolist()
    dropped, (tall, noise) = oracles.without_noise(B, known), oracles.append_known_noise(A, B, known)
    in_doubles(dropped)
    in_doubles(noise)
    (X, out), (Y, out_too) = oracles.pinv_gram(A, dropped), oracles.pinv_gram(tall, noise)
    inside = ~out  # the two Grams are of one view for columns that do not leak
    return distance(X[np.ix_(inside, inside)], Y[np.ix_(inside, inside)]) + distance(out, out_too)


@statement("messages: recursion = products of W", tolerance=1e-12)
def messages(rng: np.random.Generator) -> float:
    n, T = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    W = gossip.GossipSequence(tuple(gossip.from_array(weights) for weights in rng.dirichlet(np.ones(n), (T, n))))
    sent, _ = oracles.gossip_messages(W, T)
    return distance(-sent, oracles.dense_gossip_workload(W, T))


# ---- sensitivity ---------------------------------------------------------------------------------------------------


def drawn_encoder(rng: np.random.Generator) -> FloatArray:
    T = int(rng.integers(1, 6))
    low = -3 if rng.random() < 0.7 else 0
    return np.tril(rng.integers(low, 4, (T, T)), -1) + np.diag(rng.integers(1, 4, T)).astype(float)


@statement("signs by encoder = signs by rational Gram", tolerance=1e-12)
def signs(rng: np.random.Generator) -> float:
    C = drawn_encoder(rng)
    squared = oracles.brute_force_sensitivity(C, participation.EveryStep(len(C))) ** 2
    return distance(squared, float(oracles.largest_signed_sum(oracles.exact_gram(C))))


@statement("signs <= semidefinite program, = if X >= 0", tolerance=1e-6)
def signs_and_program(rng: np.random.Generator) -> float:
    C = drawn_encoder(rng)
    X = C.T @ C
    by_signs, program = oracles.largest_signed_sum(X), oracles.elliptope_reference(X)
    return distance(by_signs, program) if (X >= 0).all() else excess(by_signs, program)


@statement("ascent of Gram <= semidefinite program", tolerance=1e-6)
def ascent(rng: np.random.Generator) -> float:
    C = drawn_encoder(rng)
    X = C.T @ C
    reached = oracles.ascended_value(X, dimension=len(X), starts=1, rounds=100, seed=int(rng.integers(2**31)))
    return excess(reached, oracles.elliptope_reference(X))


@statement("ascent of Gram = semidefinite program", tolerance=1e-4, share=0.1)
def ascent_reaches(rng: np.random.Generator) -> float:
    C = drawn_encoder(rng)
    reached = oracles.ascended_value(C.T @ C, dimension=len(C), starts=5, rounds=400)
    return distance(reached, oracles.elliptope_reference(C.T @ C))


@statement("ascent by encoder <= semidefinite program", tolerance=1e-6)
def vectors(rng: np.random.Generator) -> float:
    C = drawn_encoder(rng)
    everything = participation.EveryStep(len(C))
    low = oracles.vector_sensitivity_lower_bound(C, everything, starts=2, rounds=50, seed=int(rng.integers(2**31)))
    return excess(low**2, oracles.elliptope_reference(C.T @ C))


def listed(scheme: participation.Participation) -> list[tuple[int, ...]]:
    return sorted(tuple(int(t) for t in pattern) for pattern in scheme.patterns())


@statement("patterns, separated: all subsets = enumeration", tolerance=0)
def separated(rng: np.random.Generator) -> float:
    T, k, b = int(rng.integers(1, 10)), int(rng.integers(1, 5)), int(rng.integers(1, 6))
    return float(listed(participation.MinSeparation(T, k, b)) != oracles.separated_patterns(T, k, b))


@statement("patterns, once per epoch: all subsets = enumeration", tolerance=0)
def once_per_epoch(rng: np.random.Generator) -> float:
    k, b = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    return float(listed(participation.OncePerEpoch(k, b)) != oracles.once_per_epoch_patterns(k, b))


# ---- conversions ---------------------------------------------------------------------------------------------------


def drawn_mu(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-3, 2))


def drawn_delta(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-15, -0.1))


def never_below(number: float, exact: Any) -> float:
    """Relative difference; infinite where a privacy loss is reported below the true one."""
    if exact == 0:
        return 0.0 if number == 0 else math.inf
    with mpmath.workdps(30):
        return float(number / exact - 1) if number >= exact else math.inf


@statement("delta: mpmath <= library, to 1e-9", tolerance=1e-9)
def delta(rng: np.random.Generator) -> float:
    mu = drawn_mu(rng)
    epsilon = mu * float(rng.uniform(0, 30))
    exact = oracles.exact_delta(mu, epsilon)
    if exact < 1e-300:
        raise Excluded("delta below 1e-300")
    return never_below(gaussian.delta_from_mu(mu, epsilon), exact)


@statement("log delta: mpmath <= library, to 1e-9", tolerance=1e-9)
def log_delta(rng: np.random.Generator) -> float:
    mu = drawn_mu(rng)
    epsilon = mu * float(rng.uniform(0, 100))
    exact, number = oracles.exact_log_delta(mu, epsilon), gaussian.log_delta_from_mu(mu, epsilon)
    return float((number - exact) / max(1, abs(exact))) if number >= exact else math.inf


@statement("epsilon: mpmath <= library, to 1e-9 (mu + epsilon)", tolerance=1e-9, share=0.1)
def epsilon(rng: np.random.Generator) -> float:
    mu, d = drawn_mu(rng), drawn_delta(rng)
    number, exact = gaussian.epsilon_from_mu(mu, d), oracles.exact_epsilon(mu, d)
    return float((number - exact) / (mu + number)) if number >= exact else math.inf


@statement("mu of a budget: library <= mpmath, to 1e-9", tolerance=1e-9, share=0.1)
def mu_of_budget(rng: np.random.Generator) -> float:
    e, d = float(10 ** rng.uniform(-3, 2)), drawn_delta(rng)
    number, exact = gaussian.mu_from_epsilon(e, d), oracles.exact_mu(e, d)
    return float(1 - number / exact) if number <= exact else math.inf


@statement("Rényi: integral = library", tolerance=1e-12, share=0.2)
def renyi(rng: np.random.Generator) -> float:
    mu, order = drawn_mu(rng), 1 + float(10 ** rng.uniform(-2, 2))
    return abs(float(gaussian.renyi_epsilon(mu, order) / oracles.exact_renyi(mu, order) - 1))


@statement("composition: integral <= library, to 1e-9", tolerance=1e-9, share=0.03)
def composition(rng: np.random.Generator) -> float:
    first, second = float(10 ** rng.uniform(-2, 1)), float(10 ** rng.uniform(-2, 1))
    e = math.hypot(first, second) * float(rng.uniform(0, 6))
    exact = oracles.composed_delta(first, second, e)
    if exact < 1e-15:
        raise Excluded("delta below 1e-15, the integral's domain")
    return never_below(gaussian.delta_from_mu(gaussian.compose([first, second]), e), exact)


# ---- hidden messages -----------------------------------------------------------------------------------------------


def drawn_system(rng: np.random.Generator) -> tuple[oracles.LinearSystem, int, tuple[int, ...]]:
    """Gradients linear in the model, signs anywhere, some gossip rounds, encoders >= 0, any masks; victim, pattern."""
    n, T = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    step_of_round = [r for t in range(T) for r in [t, *[-1] * int(rng.integers(0, 2))]]
    R = len(step_of_round)
    mixing = rng.uniform(0.1, 1, (R, n, n)) * (rng.random((R, n, n)) < 0.6) + np.eye(n)
    mixing *= rng.choice([-1, 1], (R, n, n)) / mixing.sum(axis=2, keepdims=True)
    lipschitz = rng.uniform(0.3, 1.5, T)
    encoder = np.tril(rng.uniform(0, 1, (T, T)), -1) + np.diag(rng.uniform(0.5, 1.5, T))
    problem = ShiftProblem(
        mixing=list(np.abs(mixing)),
        step_of_round=np.array(step_of_round),
        rates=rng.uniform(0.1, 2, T),
        lipschitz=lipschitz,
        divisors=rng.integers(1, 4, n).astype(float),
        seen=rng.random((R, n)) < rng.choice([0.2, 0.5]),
        pinned=rng.random((R + 1, n)) < rng.choice([0, 0.2]),
        noisy=rng.random(n) < 0.9,
        noise_gram=encoder.T @ encoder,
    )
    slopes = lipschitz[:, None] * rng.choice([-1, 0.5, 1], (T, n))
    pattern = np.flatnonzero(rng.random(T) < 0.6)
    pattern = pattern if pattern.size else np.array([0])
    return oracles.LinearSystem(problem, mixing, slopes, np.stack([encoder] * n)), int(rng.integers(n)), tuple(pattern)


@statement("hidden messages: dense truth <= quadratic program", tolerance=1e-6, share=0.2)
def shifts(rng: np.random.Generator) -> float:
    system, victim, pattern = drawn_system(rng)
    value = oracles.quadratic_program_value(system.problem, victim, pattern)
    if math.isnan(value):
        raise Excluded("the program's solver gave up")
    truth, leak = system.true_loss(victim, pattern)
    return excess(math.inf if leak > 1e-6 else truth, value)


@statement("linear reactions: integral = dense view, beyond its own error", tolerance=1e-5, share=0.1)
def reactions(rng: np.random.Generator) -> float:
    n, T = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    W = rng.integers(0, 3, (n, n)) / 4
    attacker, victim = (int(i) for i in rng.choice(n, 2, replace=False))
    slopes = rng.choice([-1.5, -0.5, 0.0, 0.5, 1.0], n)
    slopes[attacker] = 0
    reacting = {j: oracles.Reaction(float(slopes[j]), clip=math.inf) for j in range(n) if j != attacker}
    seen = oracles.adaptive_total_variation(W, attacker=attacker, victim=victim, reactions=reacting, num_steps=T)
    mu = math.sqrt(linear_mu_squared(W, attacker, victim, slopes, T))
    off = abs(seen.value - (float(oracles.exact_delta(mu, 0.0)) if mu else 0.0))
    return max(0.0, off - seen.error)


def linear_mu_squared(W: FloatArray, attacker: int, victim: int, slopes: FloatArray, num_steps: int) -> float:
    """X of the dense view when node j's gradient is slopes[j] times what hidden nodes put into its model."""
    n = len(W)
    seen = [j for j in range(n) if j != attacker and W[attacker, j]]
    hidden = [j for j in range(n) if j != attacker and not W[attacker, j]]
    messages_of = np.zeros((n, n, num_steps))  # messages as maps of what the nodes inject
    rows = []
    for t in range(num_steps):
        heard = np.tensordot(W, messages_of, axes=1)
        messages_of = heard + slopes[:, None, None] * np.tensordot(W[:, hidden], messages_of[hidden], axes=1)
        messages_of[:, :, t] += np.eye(n)
        rows += [messages_of[j].ravel() for j in (*seen, attacker)]
    B = np.array(rows)
    effect = B[:, [victim * num_steps]]
    return float(oracles.pinv_gram(effect, B)[0][0, 0])


# ---- shared seeds and optima ---------------------------------------------------------------------------------------


@statement("coalitions: inverse of what is left = dense view", tolerance=1e-9)
def coalition_price(rng: np.random.Generator) -> float:
    n, s = int(rng.integers(1, 5)), float(rng.uniform(0.1, 2))
    groups = [tuple(np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False))) for _ in range(rng.integers(0, 4))]
    factors = [rng.integers(-2, 3, (len(g), len(g))).astype(float) for g in groups]
    size = int(rng.integers(0, n))
    inverse_diagonal = oracles.coalition_inverse_diagonal(s, [F @ F.T for F in factors], groups, n, size)
    B = np.hstack([math.sqrt(s) * np.eye(n), *(np.eye(n)[:, g] @ F for g, F in zip(groups, factors, strict=True))])
    holders = [{i} for i in range(n)] + [set(g) for g in groups for _ in g]
    worst = 0.0
    for mask in range(2**n):
        members = {i for i in range(n) if mask >> i & 1}
        if len(members) > size:
            continue
        rest = [i for i in range(n) if i not in members]
        known = [k for k, members_of in enumerate(holders) if members_of & members]
        X, _ = oracles.pinv_gram(*oracles.append_known_noise(np.eye(n)[:, rest], B, known))
        worst = max(worst, float(X.diagonal().max(initial=0)))
    return distance(inverse_diagonal, worst)


@statement("coalitions, optimum: lower bound <= program <= loss", tolerance=1e-5, share=0.01)
def coalition_optimum(rng: np.random.Generator) -> float:
    n = int(rng.integers(2, 5))
    root = rng.integers(-2, 3, (n, n))
    H = root @ root.T + 0.1 * np.eye(n)
    groups = tuple(
        tuple(int(i) for i in np.sort(rng.choice(n, rng.integers(2, n + 1), replace=False)))
        for _ in range(rng.integers(1, 4))
    )
    size = int(rng.integers(0, n))
    try:
        program = oracles.coalition_loss_reference(H, groups, size)
    except RuntimeError:
        raise Excluded("the program's solver gave up") from None
    solved = coalitions.solve(coalitions.CoalitionProblem(H, groups, size))
    return max(excess(solved.lower_bound, program), excess(program, solved.objective))


@statement("encoders, optimum: lower bound <= program <= loss", tolerance=1e-5, share=0.1)
def encoder_optimum(rng: np.random.Generator) -> float:
    T = int(rng.integers(1, 6))
    root = rng.integers(-3, 4, (T, T))
    problem = mfdl_solvers.FactorizationProblem(root @ root.T + 0.1 * np.eye(T), rng.integers(0, T, T))
    solved = mfdl_solvers.solve(problem)
    program = oracles.optimal_loss_reference(problem)
    return max(excess(solved.lower_bound, program), excess(program, solved.objective))


@statement("encoders, optimum: zero in-class entries = all encoders", tolerance=1e-5, share=0.1)
def encoder_classes(rng: np.random.Generator) -> float:
    T = int(rng.integers(1, 6))
    root = rng.integers(-3, 4, (T, T))
    problem = mfdl_solvers.FactorizationProblem(root @ root.T + 0.1 * np.eye(T), rng.integers(0, T, T))
    restricted = oracles.optimal_loss_reference(problem)
    return distance(oracles.optimal_loss_reference(problem, restricted=False) / restricted, 1)

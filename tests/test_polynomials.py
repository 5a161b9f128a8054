"""Several rounds as a polynomial of W: its values, its privacy, where it is refused, and nodes that run it."""

import dataclasses

import numpy as np
import pytest
from numpy.polynomial import chebyshev
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, assume, each, given, refuses, st, unsupported

import mfdl
from mfdl import algorithms, gossip, trust
from mfdl.objective import NoiseObjective
from mfdl.planning import Design
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import gossip_matrices

RING = gossip.metropolis_hastings("ring:n=6")
SYMMETRIC = gossip_matrices(min_nodes=2, max_nodes=6, kinds=["symmetric", "singular"])


def of_rounds(W, rounds, polynomial="chebyshev", **more):
    return mfdl.Dynamics(W, gossip_rounds=rounds, polynomial=polynomial, **more)


@given(100, W=SYMMETRIC, rounds=st.integers(1, 12))
def test_a_step_is_the_chebyshev_polynomial_of_the_other_eigenvalues(W, rounds):
    assume(W.is_connected)
    dynamics, lam = of_rounds(W, rounds), np.sort(np.linalg.eigvalsh(W.dense()))
    low, high = lam[0], lam[-2]
    if high - low > 1e-6:
        coefficients, scaled = [0] * rounds + [1], (2 * lam - low - high) / (high - low)
        with np.errstate(over="ignore"):
            expected = chebyshev.chebval(scaled, coefficients) / chebyshev.chebval(scaled[-1], coefficients)
        assert_allclose(dynamics.step_eigenvalues(lam), expected, atol=1e-8)
    step = dynamics.step_weights(0).toarray()
    assert_allclose(step.sum(axis=1), 1, atol=1e-12)
    assert_allclose(step, step.T, atol=1e-12)
    assert_allclose(np.sort(np.linalg.eigvalsh(step)), np.sort(dynamics.step_eigenvalues(lam)), atol=1e-10)
    powers = of_rounds(W, rounds, "powers").step_eigenvalues(lam[:-1])
    assert np.abs(dynamics.step_eigenvalues(lam[:-1])).max() <= np.abs(powers).max() + 1e-9


@given(60, W=SYMMETRIC, rounds=st.integers(1, 5), seed=st.integers(0, 99))
def test_no_other_roots_leave_less_noise(W, rounds, seed):
    assume(W.is_connected)
    rng, lam = np.random.default_rng(seed), np.sort(np.linalg.eigvalsh(W.dense()))[:-1]

    def noise(shifts):
        squares = np.prod([(lam - r) / (1 - r) for r in shifts], axis=0) ** 2
        return (squares / (1 - squares)).sum() if squares.max() < 1 else np.inf

    shifts = np.array(of_rounds(W, rounds, "least-noise").shifts)
    least = noise(shifts)
    others = [of_rounds(W, rounds, name).shifts for name in ("powers", "chebyshev")]
    others += [np.minimum(shifts + size * rng.normal(size=rounds), 0.99) for size in (0.3, 0.1, 0.03, 0.01)]
    assert least <= 1e-15 or all(least <= 1.001 * noise(other) for other in others)


def test_eight_rounds_average_a_ring_of_16_exactly():
    step = of_rounds(gossip.metropolis_hastings("ring:n=16"), 8, "least-noise").step_weights(0).toarray()
    assert_allclose(step, 1 / 16, atol=1e-8)


@given(40, W=SYMMETRIC, rounds=st.integers(2, 4), seed=st.integers(0, 99))
def test_nodes_that_average_by_shifts_do_the_steps(W, rounds, seed):
    assume(W.is_connected)
    dynamics = of_rounds(W, rounds)
    models = start = np.random.default_rng(seed).standard_normal((W.num_nodes, 2))
    for shift in dynamics.shifts:
        heard = [{j: models[j] for j in {node, *W.weights[[node]].indices.tolist()}} for node in range(len(models))]
        models = np.array([gossip.average(given, W, node, shift=shift) for node, given in enumerate(heard)])
    assert_allclose(models, dynamics.step_weights(0) @ start, atol=1e-9)


@given(
    20, W=gossip_matrices(min_nodes=3, max_nodes=5, kinds=["symmetric"]), rounds=st.integers(1, 3),
    name=st.sampled_from(["chebyshev", "least-noise"])
)  # fmt: skip
def test_privacy_of_one_step_is_that_of_powers_and_under_ldp_of_any_number(W, rounds, name):
    assume(W.is_connected)

    def losses(steps, model, polynomial):
        algorithm = algorithms.muffliato(of_rounds(W, rounds, polynomial), mfdl.EveryStep(steps))
        victims = sensitivity_by_victim(algorithm, model, release="none")
        return [victim.sensitivity_squared for victim in victims]

    for steps, model in ((1, trust.PNDP([0])), (3, trust.LDP())):
        assert_allclose(losses(steps, model, name), losses(steps, model, "powers"), rtol=1e-4, atol=1e-7)


@given(
    20, W=gossip_matrices(min_nodes=3, max_nodes=5, kinds=["symmetric"]), rounds=st.integers(2, 3),
    name=st.sampled_from(["chebyshev", "least-noise"]), attacked=st.booleans()
)  # fmt: skip
def test_secure_sums_show_what_the_weights_of_each_round_add_up(W, rounds, name, attacked):
    assume(W.is_connected)
    dynamics, n, T = of_rounds(W, rounds, name, learning_rate=0.3), W.num_nodes, 2
    models, seen = np.zeros((n, T * n)), []
    for t in range(T):
        models[:, t * n : (t + 1) * n] -= 0.3 * np.eye(n)
        for shift in dynamics.shifts:
            weights = (W.dense() - shift * np.eye(n)) / (1 - shift)
            sums = (weights - np.diag(weights.diagonal())) @ models
            seen.append(sums[:1] if attacked else sums)
            models = weights @ models
    rows = np.concatenate(seen).reshape(-1, T, n)
    rows[:, :, : int(attacked)] = 0
    _, sizes, V = np.linalg.svd(rows.reshape(-1, T * n), full_matrices=False)
    assume(((sizes < 1e-12) | (sizes > 1e-5 * sizes[0])).all())
    X, model = V[sizes > 1e-9].T @ V[sizes > 1e-9], trust.SecureSum([0] if attacked else [])
    for victim in sensitivity_by_victim(algorithms.dp_dsgd(dynamics, mfdl.EveryStep(T)), model, release="none"):
        X_u = X[victim.victim :: n, victim.victim :: n]
        expected = X_u[0, 0] + X_u[1, 1] + 2 * abs(X_u[0, 1])
        assert victim.sensitivity_squared == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_noise_on_messages_meets_the_same_rounds():
    dynamics = of_rounds(RING, 3)
    algorithm = algorithms.message_noise(dynamics, mfdl.EveryStep(1))
    final = algorithm.models_from_gradients(final=True) @ np.eye(6)
    assert_allclose(final, -dynamics.step_weights(0).toarray(), atol=1e-12)


def test_over_several_steps_a_neighbour_learns_something_else():
    def loss(polynomial):
        algorithm = algorithms.muffliato(of_rounds(RING, 2, polynomial), mfdl.EveryStep(3))
        victims = sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")
        return victims[2].sensitivity_squared  # three hops away

    assert loss("chebyshev") > 1.01 * loss("powers") > 0


@each(
    "W, message",
    (gossip.uniform("star:n=4"), r"symmetric, connected .*'uniform'.*: between directed edges or unequal weights"),
    (gossip.sequence([RING, RING]), "sequence of 2 gossip matrices.*matrices that change do not commute"),
    (gossip.push_sum("ring:n=4", 3), "matrices that change"),
    (gossip.from_array(np.eye(3)), "not connected.*without a path between all nodes"),
    (trust.neighbourhood(RING, 0, [3]).gossip, "that of the whole graph"),
)
def test_other_gossip_is_refused_with_the_reason(W, message):
    refuses(message, of_rounds, W, 2)


def test_unknown_polynomials_and_algorithms_of_one_round_refuse():
    refuses("polynomial", of_rounds, RING, 2, "legendre")
    dynamics, steps = of_rounds(RING, 1), mfdl.EveryStep(2)
    for build in (algorithms.zip_dl, algorithms.local_steps, algorithms.delayed_dsgd, algorithms.gradient_tracking):
        unsupported(r"one (gossip )?round per step", build, dynamics, steps)
    refuses("shift must be below 1, got 1", gossip.average, {}, RING, 0, shift=1.0)


def test_files_keep_the_polynomial_and_the_certificate(tmp_path):
    W = gossip.fastest_mixing("path:n=4")
    algorithm = algorithms.dp_dsgd(of_rounds(W, 3), mfdl.EveryStep(4))
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    mechanism.save(tmp_path / "m.mfdl")
    read = mfdl.Mechanism.load(tmp_path / "m.mfdl").algorithm
    assert (read.content_hash, read.dynamics.shifts) == (algorithm.content_hash, algorithm.dynamics.shifts)
    assert (read.dynamics.gossip.certificate, read.is_plain) == (W.certificate, True)
    powers = algorithms.dp_dsgd(of_rounds(W, 3, "powers"), mfdl.EveryStep(4))
    assert powers.content_hash != algorithm.content_hash
    assert not dataclasses.replace(algorithm, dynamics=powers.dynamics).is_plain
    assert algorithm.first_steps(2).dynamics.polynomial == "chebyshev"


def test_designs_and_plans_name_it():
    design = Design.parse("dp-dsgd,b=1,k=16,rounds=5,least-noise")
    assert (design.name, design.options()["polynomial"]) == ("dp-dsgd,b=1,k=16,rounds=5,least-noise", "least-noise")
    options = {"designs": [design, "dp-dsgd,b=1,k=16,rounds=5"], "curvature": "power:1:20", "progress": False}
    privacy = mfdl.Privacy(**ZERO_OUT)
    best, other = mfdl.plan("ring:n=16", 100, privacy, epsilon=1.0, delta=1e-5, **options).designs
    assert best.design == design
    assert best.loss < 0.99 * other.loss
    assert best.messages == other.messages


@pytest.mark.parametrize("graph", ["ring:n=8", "path:n=5"])
def test_noise_in_the_models_is_that_of_the_recursion(graph):
    W, T, K = gossip.metropolis_hastings(graph), 4, 3
    dynamics = of_rounds(W, K, learning_rate=0.5)
    step, total = dynamics.step_weights(0).toarray(), np.zeros((T, T))
    for r in range(T):
        ages = [np.linalg.matrix_power(step, r - t + 1) for t in range(r + 1)]
        total[: r + 1, : r + 1] += [[np.vdot(a, b) for b in ages] for a in ages]
    assert_allclose(NoiseObjective(dynamics, T).over_steps(), total, rtol=1e-10)

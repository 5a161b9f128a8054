"""Curvature and error weights in the objective: by text and by file, the recursion simulated, what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

from mfdl import Cyclic, Dynamics, ErrorWeights, Privacy, algorithms, calibrate, factorization, gossip, trust
from mfdl.factorization.encoders import Banded
from mfdl.noise import IndependentNoise, SpatioTemporalNoise
from mfdl.objective import Curvature, NoiseObjective
from mfdl.released import ReleasedModel
from mfdl.testing import gossip_matrices, optimal_loss_reference, random_encoder

RING = gossip.metropolis_hastings("ring:n=5")
SPECTRUM = Curvature([1.0, 0.4, 0.4, 0.0])
CURVED = ErrorWeights("all", curvature=SPECTRUM)


# Spectra


@pytest.mark.parametrize("suffix", ["npy", "csv"])
def test_spectra_from_files(tmp_path, suffix):
    X = np.random.default_rng(0).normal(size=(40, 3))

    def write(name, array):
        path = tmp_path / f"{name}.{suffix}"
        np.save(path, array) if suffix == "npy" else np.savetxt(path, array, delimiter=",")
        return path

    of_records = Curvature.parse(f"features:{write('X', X)}:0.25")
    expected = np.sort(np.linalg.svd(X, compute_uv=False))[::-1] ** 2 / 40 / 4
    assert_allclose(of_records.eigenvalues, expected)
    assert_allclose(Curvature.parse(str(write("lam", expected))).eigenvalues, expected)
    weights = ErrorWeights.parse(f"last:2/average/on-the-way=0.5/curvature={tmp_path}/lam.{suffix}")
    assert_allclose(weights.curvature.eigenvalues, expected)
    assert ErrorWeights.parse(weights.describe()).describe() == weights.describe()


@each(
    "call, message",
    (lambda: Curvature([]), "1 to 1,000,000 eigenvalues"),
    (lambda: Curvature([1.0, -1.0]), "eigenvalues of a curvature must be numbers >= 0"),
    (lambda: Curvature([0.0]), "not all 0"),
    (lambda: Curvature([1.0], [1.0, 2.0]), "one weight for each, got 1 and 2"),
    (lambda: Curvature([1.0, 2.0], [1.0, -2.0]), "weights of a curvature must be numbers >= 0"),
    (lambda: Curvature([np.nan]), "must be finite"),
    (lambda: Curvature.parse("powr:1"), "did you mean 'power'.*.npy or .csv"),
    (lambda: Curvature.parse("power"), r"is written power:EXPONENT\[:DIMENSION\[:LARGEST\]\]"),
    (lambda: Curvature.parse("power:-1"), "exponent must be"),
    (lambda: Curvature.parse("power:1:0"), "dimension must be an integer >= 1"),
    (lambda: Curvature.parse("power:1:9999999"), "dimension must be at most 1,000,000"),
    (lambda: Curvature.parse("nowhere.npy"), "cannot be read"),
    (lambda: Curvature.parse("features:nowhere.txt"), "give a .npy file, or a text of numbers"),
    (lambda: Curvature.from_features(np.zeros((0, 3))), "at least one record"),
    (lambda: Curvature.from_features([[1.0]], factor=0), "factor must be"),
    (lambda: ErrorWeights(curvature=[1.0]), "curvature must be"),
    (lambda: ErrorWeights(on_the_way=-1), "on_the_way must be"),
    (lambda: ErrorWeights.parse("all/nodes/average"), r"are written STEPS\[/TARGET\]"),
    (lambda: ErrorWeights.parse("all/on-the-way=x"), "takes a number >= 0, got 'x'"),
    (lambda: NoiseObjective(Dynamics(RING, 2.0), 3, CURVED), "must be below 2, got 2 \\* 1: training diverges"),
    (lambda: NoiseObjective(Dynamics(RING, 1.5, weight_decay=0.4), 3, CURVED), "below 2, got 1.5 \\* 1.4"),
    (lambda: NoiseObjective(Dynamics(RING, momentum=0.5), 3, CURVED), "covered without momentum, got 0.5"),
    (lambda: NoiseObjective(Dynamics(RING), 3, ErrorWeights(on_the_way=1), "message"), "taken after averaging"),
    (lambda: NoiseObjective(Dynamics(RING), 3).excess_loss(IndependentNoise(3, 5), 1.0), "needs a curvature"),
)
def test_what_is_no_curvature_is_refused(call, message):
    refuses(message, call)


@given(40, st.integers(0, 99), st.integers(1, 6), st.sampled_from([0.3, 1.0, 1.99, None]), st.sampled_from([0.0, 0.2]))
def test_compression_changes_nothing(seed, T, rate, decay):
    rng = np.random.default_rng(seed)
    spectrum = Curvature(rng.uniform(0, 1, 40), rng.uniform(0, 1, 40))
    rates = rng.uniform(0.1, 1.6, T) if rate is None else min(rate, 1.99 / (1 + decay))
    dynamics = Dynamics(RING, rates, weight_decay=decay)
    whole = sum(
        w * NoiseObjective(dynamics, T, ErrorWeights(curvature=Curvature([lam], [1.0]))).over_steps()
        for w, lam in spectrum.pairs
    )
    assert len(spectrum.compressed(T).pairs) <= max(2 * (T + 1), 1)
    assert_allclose(NoiseObjective(dynamics, T, ErrorWeights(curvature=spectrum)).over_steps(), whole, rtol=1e-10)


# Noise, simulated
def simulated(dynamics, noising, curvature, published):
    """(published, on the way): mean excess loss over nodes, by the recursion of each direction with the loss's pull.

    noising: injected <- base noise, shape (T, n, columns); published: weights of the models after each step.
    """
    T, n, columns = noising.shape
    rates, W = dynamics.learning_rates(T), dynamics.gossip.at(0).dense()
    total = np.zeros(2)
    for eigenvalue in curvature.eigenvalues:
        theta, visited = np.zeros((n, columns)), []
        for t in range(T):
            visited.append(theta)
            gradient = eigenvalue * theta + noising[t]
            theta = W @ (theta - rates[t] * (gradient + dynamics.weight_decay * theta))
        after = [*visited[1:], theta]
        average = sum(a * model for a, model in zip(published, after, strict=True))
        way = np.mean([(model**2).sum() for model in visited])
        total += eigenvalue / 2 * np.array([(average**2).sum(), way]) / n
    return total


@given(
    100, W=gossip_matrices(max_nodes=4), T=st.integers(1, 5), seed=st.integers(0, 99),
    rate=st.sampled_from([0.5, 1.9, None]), node_noise=st.booleans(),
    model=st.sampled_from(["last", "average:1", "exponential:2"]),
)  # fmt: skip
def test_excess_loss_is_that_of_the_recursion(W, T, seed, rate, node_noise, model):
    rng, n = np.random.default_rng(seed), W.num_nodes
    rates = rng.uniform(0.1, 1.9, T) if rate is None else rate
    dynamics = Dynamics(W, rates)
    C = random_encoder(rng, T, n if node_noise else None)
    algorithm = algorithms.mf_dsgd(dynamics, Cyclic(1, T), C)
    inverses = np.linalg.inv(C) if node_noise else np.repeat(np.linalg.inv(C)[None], n, axis=0)
    divisors = rng.uniform(1, 3, n)
    noising = np.einsum("uts,uv->tusv", inverses, np.diag(0.3 / divisors)).reshape(T, n, T * n)
    weights = ErrorWeights(f"released:{model}", on_the_way=0.5, curvature=SPECTRUM)
    counted = NoiseObjective(dynamics, T, weights)
    published, way = counted.excess_loss(algorithm.noise, 0.3, divisors)
    expected = simulated(dynamics, noising, SPECTRUM, weights.weights_by_step(T))
    assert_allclose([published.value, way.value], expected, rtol=1e-9, atol=1e-15)
    both = counted.noise_error(algorithm.noise, divisors).value * (0.3 * dynamics.learning_rates(T)[0]) ** 2 / n
    assert_allclose(both, published.value + 0.5 * way.value, rtol=1e-9, atol=1e-15)


def test_one_direction_is_weight_decay():
    curved, decayed = Dynamics(RING, 0.5), Dynamics(RING, 0.5, weight_decay=0.4)
    single_direction = ErrorWeights("last:3", curvature=Curvature([0.4], [2.0]))
    pairs = NoiseObjective(curved, 6, single_direction), NoiseObjective(decayed, 6, ErrorWeights("last:3"))
    noise = SpatioTemporalNoise(random_encoder(np.random.default_rng(1), 6), np.tri(5) * 0.5, np.ones((5, 5), bool), 5)
    random = gossip.randomized.links(RING, 0.3)
    for value in (
        lambda counted: counted.averaged(random),
        lambda counted: counted.estimated().gram,
        lambda counted: counted.fresh_noise(np.eye(5)).value,
        lambda counted: counted.noise_error(noise).value,
        lambda counted: counted.over_steps(np.arange(30).reshape(6, 5) % 3 > 0),
    ):
        assert_allclose(value(pairs[0]), 2 * value(pairs[1]), rtol=1e-12)


def test_encoders_with_structure_cost_what_their_arrays_cost():
    weights = ErrorWeights("last:5:0.1", on_the_way=0.5, curvature="power:1:30")
    counted = NoiseObjective(Dynamics(RING, 1.2, weight_decay=0.1), 24, weights)
    rows = np.random.default_rng(0).uniform(0.5, 1.0, (24, 3))
    banded = Banded(np.where(np.arange(3) <= np.arange(24)[:, None], rows, 0.0))
    algorithm = algorithms.mf_dsgd(counted.dynamics, Cyclic(3, 8), banded)
    N = np.linalg.inv(banded.dense())
    assert_allclose(counted.noise_error(algorithm.noise).value, np.sum(N * (counted.over_steps() @ N)), rtol=1e-9)
    falling = NoiseObjective(Dynamics(RING, np.linspace(1, 0.5, 24)), 24, weights)
    unsupported("curvature at a constant learning rate", falling.mode_cost)
    best = factorization.factorize_long(counted.dynamics, Cyclic(3, 8), weights=weights, form="banded")
    dense = factorization.factorize(counted.dynamics, Cyclic(3, 8), weights=weights)
    assert dense.lower_bound <= best.objective <= 1.1 * dense.objective


def test_other_recursions_and_unusual_sums_are_refused():
    tracking = algorithms.gradient_tracking(Dynamics(RING, 0.5), Cyclic(1, 3))
    unsupported("curvature is covered", algorithms.noise_error, tracking, weights=CURVED)
    both = ErrorWeights("released:last", on_the_way=0.5)
    total = algorithms.noise_error(tracking, weights=both).value
    parts = [algorithms.noise_error(tracking, weights=kind).value * factor for factor, kind in both.kinds(3)]
    assert_allclose(total, sum(parts))
    counted = NoiseObjective(Dynamics(RING), 3, both)
    for refused in (counted.estimated, lambda: counted.averaged(gossip.randomized.links(RING, 0.5))):
        unsupported("not both at once", refused)


# Encoders, certified

TINY = dynamics_on("path:n=3", 0.8)
BOTH = ErrorWeights("released:average:2", on_the_way=0.3, curvature=SPECTRUM)


@given(
    60, W=gossip_matrices(max_nodes=4, kinds=("symmetric", "uniform", "general")),
    classes=st.sampled_from([(1, 3), (2, 2), (3, 2)]), rate=st.sampled_from([0.3, 1.0, 1.6]),
    steps=st.sampled_from(["all", "released:average:2", "exponential:1"]),
    eigenvalues=st.lists(st.sampled_from([0.1, 0.5, 1.2]), min_size=1, max_size=3),
)  # fmt: skip
def test_bound_program_and_objective_in_order(W, classes, rate, steps, eigenvalues):
    dynamics, part = Dynamics(W, rate), Cyclic(*classes)
    weights = ErrorWeights(steps, on_the_way=0.5, curvature=Curvature(eigenvalues))
    solved = factorization.factorize(dynamics, part, weights=weights)
    program = optimal_loss_reference(factorization.problem(dynamics, part, weights=weights))
    assert solved.lower_bound <= program * (1 + 1e-5)
    assert program <= solved.objective * (1 + 1e-5)
    assert solved.gap < 2e-4


@pytest.mark.parametrize("weights", [CURVED, BOTH])
def test_the_objective_is_the_noise_of_the_recursion(weights):
    part = Cyclic(2, 3)
    solved = factorization.factorize(TINY, part, weights=weights)
    inverse = np.linalg.inv(solved.encoder)
    noise = algorithms.mf_dsgd(TINY, part, solved.encoder).noise
    assert_allclose(NoiseObjective(TINY, 6, weights).noise_error(noise).value, solved.objective, rtol=1e-4)
    published, way = simulated(
        TINY, np.kron(inverse, np.eye(3)).reshape(6, 3, 18), SPECTRUM, weights.weights_by_step(6)
    )
    if weights is BOTH:
        assert_allclose(3 * (published + 0.3 * way) / 0.8**2, solved.objective, rtol=1e-4)


def test_named_mechanisms_take_it():
    name = "mafalda@all/on-the-way=0.3/curvature=power:1:20"
    algorithm = algorithms.build(name, TINY, Cyclic(2, 3))
    assert algorithm.name == name
    weights = ErrorWeights.parse(name.partition("@")[2])
    mechanism = calibrate(algorithm, Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    best = factorization.factorize(TINY, Cyclic(2, 3), weights=weights)
    assert_allclose(mechanism.objective_for(weights).value, best.objective, rtol=1e-4)
    way = NoiseObjective(TINY, 6, weights).excess_loss(algorithm.noise, mechanism.noise_std).on_the_way
    assert_allclose(mechanism.excess_loss(weights).on_the_way.value, way.value)
    assert_allclose(mechanism.excess_loss(weights, divisors=[2.0] * 3).on_the_way.value, way.value / 4)


@each(
    "text, weights",
    ("all", [1, 1, 1, 1]), ("last", [0, 0, 0, 1]), ("last:3", [0, 1, 1, 1]), ("last:2:0.25", [0.25, 0.25, 1, 1]),
    ("exponential:2", [2**-1.5, 0.5, 2**-0.5, 1]), ("released:average:2", [0, 0, 0.5, 0.5]),
)  # fmt: skip
def test_step_weights_by_name(text, weights):
    parsed = ErrorWeights.parse(text)
    assert_allclose(parsed.weights_by_step(4), weights)
    assert (parsed.describe(), parsed.uniform_target, parsed.is_average) == (text, True, False)


@each(
    "model, weights",
    ("last", [0, 0, 0, 1]),
    ("average:3", [0, 1 / 3, 1 / 3, 1 / 3]),
    ("exponential:1", np.array([1, 2, 4, 8]) / 15),
    ("exponential:1e-9", [0, 0, 0, 1]),
)
def test_released_models_by_name(model, weights):
    assert_allclose(ReleasedModel(model).weights_by_step(4), weights, rtol=1e-15)
    assert ReleasedModel(f"{model}+2") == ReleasedModel(model, rounds_of_gossip=2)
    assert ReleasedModel(ReleasedModel(model, 3).describe()) == ReleasedModel(model, 3)
    assert ErrorWeights(f"released:{model}+3").released == ReleasedModel(model, 3)


def test_targets():
    assert ErrorWeights("last", [0, 1, 0]).target_diagonal(3).tolist() == [0, 1, 0]
    average = ErrorWeights("last", "average")
    assert (average.target_diagonal(3), average.is_average, average.uniform_target) == (None, True, False)
    F = ErrorWeights("all", [0, 4, 1]).node_factor(3).toarray()
    assert_array_equal(F.T @ F, np.diag([0, 4, 1]))
    assert_allclose(average.node_factor(4).toarray(), np.full((1, 4), 0.5))
    given, other = ErrorWeights([1, 2]).describe(), ErrorWeights([1, 3]).describe()
    assert given.startswith("given:")
    assert given != other


@each(
    "call, message",
    (lambda: ErrorWeights("lats"), "did you mean"),
    (lambda: ErrorWeights("last:0"), "a whole number of steps >= 1"),
    (lambda: ErrorWeights("last:2.5"), "a whole number of steps >= 1"),
    (lambda: ErrorWeights("last:2:-1"), "floor >= 0"),
    (lambda: ErrorWeights("last:2:1:1"), r"is written last\[:STEPS\[:FLOOR\]\], got '2:1:1'"),
    (lambda: ErrorWeights("all:3"), "is written all, got '3'"),
    (lambda: ErrorWeights("exponential"), "is written exponential:HALF_LIFE"),
    (lambda: ErrorWeights("exponential:0"), "half_life must be a finite number > 0"),
    (lambda: ErrorWeights("exponential:x"), "half_life must be a number, got 'x'"),
    (lambda: ErrorWeights("released"), r"is written released:MODEL, .* e.g. released:average:48"),
    (lambda: ErrorWeights([1, -1]), "step_weights must be numbers >= 0"),
    (lambda: ErrorWeights([0, 0]), "not all zero"),
    (lambda: ErrorWeights([]), "not all zero"),
    (lambda: ErrorWeights([np.nan]), "must be finite"),
    (lambda: ErrorWeights("all", "averag"), "did you mean"),
    (lambda: ErrorWeights("all", [0, 0]), "target must be numbers >= 0"),
    (lambda: ErrorWeights([1, 2]).weights_by_step(3), "one weight for each of 3 steps, got 2"),
    (lambda: ErrorWeights("last:4").weights_by_step(3), "counts the last 4 of 3 steps"),
    (lambda: ErrorWeights("all", [1, 2]).target_diagonal(3), "each of 3 nodes, got 2"),
    (lambda: ErrorWeights.for_training(3, 4), "at most num_steps=3, got 4"),
    (lambda: ReleasedModel("averages:2"), "did you mean 'average'"),
    (lambda: ReleasedModel("average"), "is written average:MODELS, .* e.g. average:48"),
    (lambda: ReleasedModel("average:0"), "models must be an integer >= 1, got 0"),
    (lambda: ReleasedModel("average:1.5"), "models must be an integer of at most 18 digits, got '1.5'"),
    (lambda: ReleasedModel("average:5").weights_by_step(4), "averages the last 5 of 4 models"),
    (lambda: ReleasedModel("exponential:-1"), "half_life must be a finite number > 0, got -1"),
    (lambda: ReleasedModel("exponential:inf"), "half_life must be a finite number > 0, got inf"),
    (lambda: ReleasedModel("last:2"), "is written last, got '2'"),
    (lambda: ReleasedModel("last+x"), "G whole averaging rounds"),
    (lambda: ReleasedModel(3), "must be a text"),
)
def test_weights_that_mean_nothing_or_do_not_fit_are_refused(call, message):
    refuses(message, call)

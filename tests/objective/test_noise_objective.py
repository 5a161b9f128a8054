"""Every form of H against a run of the recursion and dense workloads; the spectral measure against eigenvalues."""

import subprocess
import sys
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import dynamics_on, each, example, given, refuses, st, unsupported

from mfdl import Dynamics, ErrorWeights, InvalidInput, UnsupportedMechanism, gossip
from mfdl.gossip import GossipMatrix
from mfdl.objective import Curvature, NoiseObjective, spectra, time_grams
from mfdl.objective.counted_models import COUNTED_MODELS
from mfdl.objective.spectra import SpectralMeasure
from mfdl.testing import dense_error_gram, gossip_matrices, gossip_sequences

OBJECTIVE = st.sampled_from(COUNTED_MODELS)
SMALL = st.sampled_from([0.0, 0.25, 0.5, 0.9])
CLOSE = {"rtol": 1e-8, "atol": 1e-9}  # the closed form may lose MAX_MEASURE_RATIO times 1e-16


@st.composite
def objectives(draw, *, modes=False):
    """Any gossip, constant rate or schedule, momentum, decay, one to three rounds, with steps and weights that fit.

    `modes`: constant symmetric gossip, of which all nodes or their average count.
    """
    T, K = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3]))
    if not modes and draw(st.integers(0, 3)) == 3:
        W = draw(gossip_sequences(max_nodes=4, max_length=4))
        T = T if W.repeat else max(1, len(W.matrices) // K)
        K = K if W.repeat or len(W.matrices) >= K else 1
    else:
        kinds = ("symmetric", "singular") if modes else ("symmetric", "uniform", "general", "singular")
        W = draw(gossip_matrices(max_nodes=5, kinds=kinds))
    rate = draw(st.sampled_from([1.0, 0.5, None]))
    if rate is None:
        rate = draw(st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=T, max_size=T))
    curvature = draw(st.one_of(st.none(), curvatures()))
    momentum = draw(SMALL) if curvature is None else 0.0
    dynamics = Dynamics(W, rate, gossip_rounds=K, momentum=momentum, weight_decay=draw(SMALL))
    counted_models = draw(OBJECTIVE)
    steps = draw(step_weights(T, gossips=0 if counted_models == "message" else 3 if W.is_constant or W.repeat else 1))
    target = draw(st.sampled_from(["nodes", "average"] if modes else ["nodes", "average", None]))
    if target is None:
        target = draw(st.lists(st.integers(0, 2), min_size=W.num_nodes, max_size=W.num_nodes).filter(any))
    way = 0.0 if counted_models == "message" else draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
    return NoiseObjective(dynamics, T, ErrorWeights(steps, target, way, curvature), counted_models)


def curvatures():
    """Up to four directions, some of them alike or flat, with the usual weights or others; stable at rates up to 1."""
    pairs = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 2)), min_size=1, max_size=4)
    usable = pairs.filter(lambda drawn: any(lam for lam, _ in drawn) and any(w for _, w in drawn))
    return st.builds(lambda drawn, usual: Curvature(*zip(*drawn, strict=True)) if not usual else Curvature(
        [lam for lam, _ in drawn]), usable, st.booleans())  # fmt: skip


@st.composite
def step_weights(draw, T, gossips):
    """By name or by number; released models with fewer than `gossips` further rounds."""
    names = ["all", "last"]
    if gossips and draw(st.booleans()):
        models = st.sampled_from(["last", "average:1", f"average:{T}", "exponential:1.5"])
        names = [f"released:{draw(models)}+{draw(st.integers(0, gossips - 1))}"]
    steps = draw(st.sampled_from([*names, "last:1:0.5", "exponential:2", None]))
    return draw(st.lists(st.integers(0, 3), min_size=T, max_size=T).filter(any)) if steps is None else steps


def dense_oracle(counted):
    """H over steps x nodes, one unit injection at a time, counting entry by entry; in units of eta_0^2.

    The loss pulls each direction by its gradient lambda theta, and every direction is counted on its own.
    """
    curvature = counted.weights.curvature
    pairs = [(1.0, 0.0)] if curvature is None else zip(curvature.weights, curvature.eigenvalues, strict=True)
    return sum(cost * dense_direction(counted, pull) for cost, pull in pairs)


def dense_direction(counted, pull):
    dynamics, T, weights = counted.dynamics, counted.num_steps, counted.weights
    n, K = dynamics.num_nodes, dynamics.gossip_rounds
    rates, w = dynamics.learning_rates(T), ErrorWeights(weights.step_weights).weights_by_step(T)
    diagonal = weights.target_diagonal(n)
    Q = np.full((n, n), 1 / n) if diagonal is None else np.diag(diagonal)
    seen = np.zeros((T, n, T * n))
    for s in range(T):
        for u in range(n):
            theta, v = np.zeros(n), np.zeros(n)
            for r in range(T):
                v = dynamics.momentum * v
                if r == s:
                    v[u] += 1.0
                message = theta - rates[r] * (dynamics.weight_decay * theta + pull * theta + v)
                theta = message
                for j in range(K):
                    theta = dynamics.gossip.at(r * K + j).dense() @ theta
                seen[r, :, s * n + u] = theta if counted.counted_models == "post-average" else message
    where_gradients_are_taken = [np.zeros((n, T * n)), *seen[:-1]]
    way = weights.on_the_way * np.mean([models.T @ Q @ models for models in where_gradients_are_taken], axis=0)
    if weights.released is not None:
        after = sum(w[r] * seen[r] for r in range(T))
        for j in range(weights.released.rounds_of_gossip):
            after = dynamics.gossip.at(T * K + j).dense() @ after
        return (after.T @ Q @ after + way) / rates[0] ** 2
    return (sum(w[r] * seen[r].T @ Q @ seen[r] for r in range(T)) + way) / rates[0] ** 2


TWO = gossip.sequence([gossip.uniform("path:n=3"), gossip.from_array(np.eye(3)[[1, 2, 0]])])
"""Repeats, with further rounds that do not begin where the steps do."""


@example(counted=NoiseObjective(Dynamics(TWO, gossip_rounds=2), 3, ErrorWeights("released:last+1")))
@given(300, counted=objectives())
def test_every_form_is_that_of_the_recursion(counted):
    T, n = counted.num_steps, counted.dynamics.num_nodes
    H = dense_oracle(counted)
    assert_allclose(counted.over_both(), H, **CLOSE)
    blocks = H.reshape(T, n, T, n)
    assert_allclose(np.stack([*counted.over_steps_of_nodes()]), np.einsum("sutu->ust", blocks), **CLOSE)
    for gram, expected in (
        (counted.over_steps(), np.einsum("sutu->st", blocks)),
        (counted.over_nodes(), np.einsum("susv->uv", blocks)),
    ):
        assert_array_equal(gram, gram.T)
        assert_allclose(gram, expected, **CLOSE)


@given(80, counted=objectives(modes=True))
def test_modes_add_up_to_the_gram_over_steps_and_nodes(counted):
    U, grams = counted.by_modes()
    H = sum(np.kron(H_k, np.outer(u, u)) for H_k, u in zip(grams, U.T, strict=True))
    assert_allclose(H, dense_oracle(counted), **CLOSE)


@pytest.mark.parametrize("graph", ["ring:n=6", "torus:rows=3,cols=4", "hypercube:dim=3"])
@pytest.mark.parametrize("model", ["last+1", "average:2", "average:4+2", "exponential:1.5"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_closed_spectra_give_the_gram_of_released_models(graph, model, rounds):
    dynamics = dynamics_on(graph, gossip_rounds=rounds)
    counted, n = NoiseObjective(dynamics, 5, ErrorWeights("released:" + model)), dynamics.num_nodes
    whole = counted.over_both().reshape(5, n, 5, n)
    assert_allclose(counted.over_steps(), np.einsum("sutu->st", whole), rtol=1e-9, atol=1e-12)
    by_node = np.stack([*counted.over_steps_of_nodes()])
    assert_allclose(by_node, np.einsum("sutu->ust", whole), rtol=1e-9, atol=1e-12)


@given(100, counted=objectives(), width=st.integers(1, 3))
def test_blocks_of_columns_do_not_matter(counted, width):
    H = counted.over_steps()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_grams, "BLOCK_BYTES", width * 16 * counted.dynamics.num_nodes * counted.num_steps)
        patch.setattr(spectra, "MAX_MEASURE_RATIO", 0.0)  # the general form for every constant matrix
        assert_allclose(counted.over_steps(), H, **CLOSE)


@pytest.mark.parametrize("nodes", [20, 24, 40])
def test_reversible_gossip_with_a_wide_measure_is_not_left_to_the_closed_form(nodes):
    # a path with drift is reversible, its measure spans 6^n: the closed form loses every digit at n = 24
    W = np.diag(np.full(nodes - 1, 0.6), 1) + np.diag(np.full(nodes - 1, 0.1), -1)
    W += np.diag(1 - W.sum(axis=1))
    path = gossip.from_array(W)
    assert_allclose(NoiseObjective(Dynamics(path), 6).over_steps(), dense_error_gram(path, 6), rtol=1e-12)


PATH = gossip.metropolis_hastings("path:n=4")


@each(
    "arguments, message",
    ({"counted_models": "mesage"}, "unknown counted_models 'mesage'; did you mean 'message'"),
    ({"num_steps": 0}, "num_steps must be an integer >= 1, got 0"),
    ({"dynamics": PATH}, "dynamics must be"),
    ({"dynamics": Dynamics(PATH, [1.0, 0.5])}, "one for each of 3 steps, got a schedule of 2"),
    *(({"weights": w}, r"weights must be ErrorWeights, got .*ErrorWeights\.parse") for w in ("last:1", [1.0], None)),
    ({"weights": ErrorWeights([1, 2])}, "one weight for each of 3 steps, got 2"),
    ({"weights": ErrorWeights("all", [1, 2])}, "each of 4 nodes, got 2"),
    ({"weights": ErrorWeights("released:last"), "counted_models": "message"}, "taken after averaging"),
)
def test_bad_arguments_are_refused_when_it_is_made(arguments, message):
    refuses(message, lambda: NoiseObjective(**{"dynamics": Dynamics(PATH), "num_steps": 3, **arguments}))


@pytest.mark.parametrize("form", ["over_steps", "over_steps_of_nodes", "over_nodes", "by_modes", "over_both"])
@pytest.mark.parametrize(("rates", "weight"), [(1.0, 1.7e308), ([1e-6, 1.0, 1.0], 1e300)])
def test_an_error_beyond_float64_is_refused(form, rates, weight):
    counted = NoiseObjective(Dynamics(PATH, rates), 3, ErrorWeights([weight] * 3))
    with pytest.raises(InvalidInput, match="beyond float64"):
        [*getattr(counted, form)()]


UNEVEN, SOME = gossip.uniform("path:n=4"), ErrorWeights("all", [1, 0, 0, 0])


@each(
    "form, W, T, weights, message",
    ("over_steps", gossip.sequence([UNEVEN] * 3, repeat=False), 4, "all", "step must be below 3"),
    ("by_modes", UNEVEN, 3, "all", "modes of one symmetric gossip matrix"),
    ("by_modes", PATH, 3, SOME, "couples the modes"),
    ("over_both", UNEVEN, 1025, "all", r"T n = 4096, got 1025 \* 4 = 4100"),
)
def test_forms_that_do_not_exist_are_refused_by_name(form, W, T, weights, message):
    weights = ErrorWeights(weights) if isinstance(weights, str) else weights
    with pytest.raises((InvalidInput, UnsupportedMechanism), match=message):
        getattr(NoiseObjective(Dynamics(W), T, weights), form)()


def peak_bytes(W, T, form="over_steps"):
    W.at(0).reversible_measure  # noqa: B018 - cached, and no part of the Gram
    tracemalloc.start()
    try:
        getattr(NoiseObjective(Dynamics(W), T), form)()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def general(nodes: int) -> GossipMatrix:
    """A ring walked mostly one way: not reversible."""
    ahead, behind = np.roll(np.eye(nodes), 1, axis=1), np.roll(np.eye(nodes), -1, axis=1)
    return gossip.from_array(0.5 * np.eye(nodes) + 0.4 * ahead + 0.1 * behind)


@pytest.mark.parametrize("make", [gossip.metropolis_hastings, gossip.uniform], ids=["symmetric", "reversible"])
def test_closed_form_memory_is_n_squared_and_not_n_t_squared(make):
    n, T = 400, 64
    W = make(f"erdos-renyi:n={n},p=0.05,seed=1")
    peak = peak_bytes(W, T)
    assert peak < (n * T) ** 2 * 8 / 200  # 5.2 GB dense
    assert peak < 12 * 8 * (n**2 + n * T + T**2)
    assert peak_bytes(W, 2 * T) < 1.5 * peak  # n^2 rules, T does not


@pytest.mark.parametrize("make", [gossip.metropolis_hastings, gossip.uniform], ids=["symmetric", "reversible"])
def test_memory_over_nodes_does_not_grow_with_the_steps(make):
    few, many = (peak_bytes(make("erdos-renyi:n=200,p=0.05,seed=1"), T, "over_nodes") for T in (64, 256))
    assert many < 1.1 * few < 12 * 8 * 200**2


def test_general_form_works_in_blocks_of_bounded_size(monkeypatch):
    assert general(7).reversible_measure is None
    budget = 2**21
    monkeypatch.setattr(time_grams, "BLOCK_BYTES", budget)
    n, T = 200, 32  # all columns at once: 10 MB, dense: 328 MB
    W = general(n)
    assert peak_bytes(W, T) < 3 * budget
    assert peak_bytes(gossip.sequence([W, gossip.metropolis_hastings(f"ring:n={n}")]), T) < 6 * budget


CLOSED = (
    *(f"ring:n={n}" for n in (1, 2, 3, 4, 7, 8)),
    *("torus:rows=2,cols=3", "torus:rows=3,cols=5", "torus:rows=1,cols=4", "torus:n=16"),
    *("hypercube:dim=0", "hypercube:dim=1", "hypercube:dim=4", "complete:n=6", "complete:n=9"),
)
OTHERS = ("path:n=4", "star:n=5", "florentine", "regular:n=12,degree=3", "expander:n=16")


@pytest.mark.parametrize("spec", [*CLOSED, *OTHERS])
def test_convolutions_alone_have_their_spectrum_in_closed_form(spec):
    W = gossip.metropolis_hastings(spec)
    if spec in OTHERS:
        assert W.closed_spectrum is None
    else:
        assert_allclose(W.closed_spectrum, np.linalg.eigvalsh(W.dense())[::-1], atol=1e-14)


@given(100, order=st.permutations(range(6)), weights=st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_a_relabelled_convolution_is_right_or_none(order, weights):
    # weights by distance on a cycle, in any order of its nodes, and one pair changed
    distance = np.minimum((d := np.subtract.outer(order, order) % 6), 6 - d)
    W = np.array([0, *weights[:3]])[distance] / 24
    W[[0, 1], [1, 0]] += weights[3] / 24
    W += np.diag(1 - W.sum(axis=1))
    spectrum = gossip.from_array(W).closed_spectrum
    if spectrum is not None:
        assert_allclose(spectrum, np.linalg.eigvalsh(W)[::-1], atol=1e-14)
    assert spectrum is not None or list(order) != list(range(6)) or weights[3]


@given(100, W=gossip_matrices(max_nodes=6, kinds=("symmetric", "singular")), K=st.integers(1, 3), data=st.data())
def test_moments_are_those_of_the_matrix(W, K, data):
    n = W.num_nodes
    some = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n).filter(any))
    target = data.draw(st.sampled_from(["nodes", "average", "some"]))
    steps = data.draw(st.sampled_from(["all", "released:last+2"]))  # which play no part
    weights = ErrorWeights(steps, some if target == "some" else target)
    measure = NoiseObjective(Dynamics(W, gossip_rounds=K), 2, weights).spectral_measure()
    F = weights.node_factor(n).toarray()
    for power in range(5):
        expected = np.trace(F.T @ F @ np.linalg.matrix_power(W.dense(), K * power))
        assert measure.moment(power) == pytest.approx(expected, abs=1e-12)


@given(60, st.data(), st.integers(2, 40))
def test_fewer_nodes_keep_the_moments(data, degree):
    lam = data.draw(st.lists(st.floats(-1, 1), min_size=100, max_size=120))
    measure = SpectralMeasure(lam, np.linspace(0, 2, len(lam)))
    few = measure.reduced(degree)
    assert few.eigenvalues.size <= degree // 2 + 1
    for power in range(degree + 1):
        assert few.moment(power) == pytest.approx(measure.moment(power), abs=1e-13 * measure.mass)


@pytest.mark.parametrize("accuracy", [1e-3, 1e-6, 1e-10])
def test_a_coarser_measure_is_within_its_accuracy(accuracy):
    # two ends of the interval, where high powers live, beside many others
    measure = SpectralMeasure(np.cos(np.linspace(0, np.pi, 3001)), np.ones(3001))
    few = measure.reduced(400, accuracy)
    assert few.eigenvalues.size < 110
    worst = max(abs(few.moment(power) - measure.moment(power)) for power in range(401))
    assert worst <= accuracy * measure.mass


@each("settings", {}, {"momentum": 0.5, "weight_decay": 0.1}, {"learning_rate": [1.0] * 20 + [0.5] * 20})
@pytest.mark.parametrize("target", ["nodes", "average", "some"])
@pytest.mark.parametrize("counted_models", COUNTED_MODELS)
def test_a_closed_form_is_the_gram_of_the_same_graph_in_another_order(settings, target, counted_models):
    # a ring with its nodes shuffled has no closed form
    order = np.random.default_rng(0).permutation(300)
    ring, some = nx.cycle_graph(300), np.arange(300) % 3
    shuffled = nx.relabel_nodes(ring, dict(enumerate(order.tolist())))
    grams = []
    for graph, values in ((ring, some), (shuffled, some[np.argsort(order)])):
        weights = ErrorWeights("exponential:9", values if target == "some" else target)
        dynamics = dynamics_on(graph, **settings)
        grams.append(NoiseObjective(dynamics, 40, weights, counted_models).over_steps())
    assert_allclose(*grams, rtol=1e-10)


def test_a_large_ring_is_exact_and_quick():
    # beyond T = n / 2 rounds a ring is told from the line, before it is not: moments of a million are those of 99
    rings = {n: dynamics_on(f"ring:n={n}") for n in (100_000, 99)}
    large, small = (NoiseObjective(ring, 20).over_steps() / n for n, ring in rings.items())
    assert_allclose(large, small, rtol=1e-12)


def test_refusals():
    refuses("one for each of 2 eigenvalues, got 1", SpectralMeasure, [1.0, 0.5], [1.0])
    refuses(r"must lie in \[-1, 1\]", SpectralMeasure, [1.5], [1.0])
    star = NoiseObjective(Dynamics(gossip.uniform("star:n=4")), 1)
    unsupported("constant symmetric gossip", star.spectral_measure)


def test_numbers_computed_independently_for_florentine():
    dynamics = Dynamics(gossip.uniform("florentine"))
    H = NoiseObjective(dynamics, 64).over_steps()
    message = NoiseObjective(dynamics, 64, counted_models="message").over_steps()
    numbers = np.trace(H), H[0, 0], H[0, 63], np.trace(message)
    expected = 2908.732622132038, 81.48200534593349, 1.114204586438538, 3787.250616786104
    assert_allclose(numbers, expected, rtol=1e-10)


@pytest.mark.slow
def test_a_ring_of_3000_nodes_and_128_steps_is_factorized_in_memory():
    code = (
        "import resource\n"
        "from mfdl import gossip\n"
        "from mfdl.dynamics import Dynamics\n"
        "from mfdl.factorization import factorize\n"
        "from mfdl.participation import Cyclic\n"
        "found = factorize(Dynamics(gossip.metropolis_hastings('ring:n=3000')), Cyclic(8, 16))\n"
        "print(found.status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, peak = done.stdout.split()
    assert status == "optimal"
    assert int(peak) < 2.5e9

"""Factorizations over steps and nodes: what a richer form saves, figures of small runs, files, refusals."""

import dataclasses
import itertools
import math

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from spatio_temporal_cases import KINDS, OUTSIDER, PATH, RING, SCHEME, half_lazy, sensitivities_squared, worst_loss
from vocabulary import dynamics_on, each, example, given, refuses, st, unsupported

from mfdl import Cyclic, EveryStep, InvalidInput, MinSeparation, UnsupportedMechanism, algorithms, factorization, gossip
from mfdl.algorithms import noise_error, spatio_temporal_noise
from mfdl.algorithms.registry import LOCAL, SHARED, meant_models
from mfdl.dynamics import Dynamics
from mfdl.factorization import optimal_covariance, optimal_joint, optimal_kronecker, optimal_pairwise, optimal_per_mode
from mfdl.factorization.spatio_temporal import PER_MODE_TOLERANCE
from mfdl.objective import ErrorWeights
from mfdl.participation import Explicit, OncePerEpoch, ParticipationByNode
from mfdl.privacy import sensitivity_by_victim
from mfdl.testing import connected_graphs
from mfdl_solvers import NotConverged

TOLERANCE = 1e-4


@st.composite
def cases(draw, max_nodes=5, max_steps=6):
    """(dynamics, participation, what is counted)."""
    scheme = draw(st.sampled_from([Cyclic(k, b) for k in range(1, 4) for b in range(1, 4) if k * b <= max_steps]))
    T = scheme.num_steps
    rate = draw(st.sampled_from([1.0, 0.5, None]))
    if rate is None:
        rate = draw(st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=T, max_size=T))
    momentum, decay = draw(st.sampled_from([0.0, 0.5])), draw(st.sampled_from([0.0, 0.2]))
    W = half_lazy(draw(connected_graphs(2, max_nodes)))
    dynamics = Dynamics(W, rate, momentum=momentum, weight_decay=decay)
    weights = draw(st.sampled_from([ErrorWeights(), ErrorWeights("last:1:0.1"), ErrorWeights("exponential:2")]))
    return dynamics, scheme, {"weights": weights, "counted_models": draw(st.sampled_from(["post-average", "message"]))}


def cost(algorithm, counted):
    """Noise in the counted models at adaptive mu = 1 against an outsider."""
    return noise_error(algorithm, **counted).value * worst_loss(algorithm)


def covariance(factorization):
    """Of the injected noise, (T n, T n) time-major, from the arrays of a factorization as its docstring has them."""
    if factorization.kind == "kronecker":
        return np.kron(np.linalg.inv(factorization.encoder.T @ factorization.encoder), factorization.space.covariance)
    if factorization.kind == "joint":
        return np.linalg.inv(factorization.encoder.T @ factorization.encoder)
    pairs = zip(factorization.encoder, factorization.directions.T, strict=True)
    return sum(np.kron(np.linalg.inv(C.T @ C), np.outer(g, g)) for C, g in pairs)


def counted_rows(dynamics, T, weights=ErrorWeights(), counted_models="post-average"):  # noqa: B008
    """What the counted models hold of each injection, weighted, in units of the first rate; by the recursion."""
    n, rates, W = dynamics.num_nodes, dynamics.learning_rates(T), dynamics.gossip.at(0).dense()
    weight = weights.weights_by_step(T)
    theta, buffer = np.zeros((2, n, T * n))
    rows = []
    for r in range(T):
        buffer = dynamics.momentum * buffer + np.eye(T * n)[r * n : (r + 1) * n]
        message = (1 - rates[r] * dynamics.weight_decay) * theta - rates[r] * buffer
        theta = W @ message
        rows.append(math.sqrt(weight[r]) * (theta if counted_models == "post-average" else message))
    return np.concatenate(rows) / rates[0]


@given(12, case=cases())
@pytest.mark.slow
def test_a_richer_form_never_costs_more(case):
    dynamics, scheme, counted = case
    T = scheme.num_steps
    spatial = optimal_covariance(dynamics, horizon=T, **counted)
    encoder = algorithms.mafalda(dynamics, scheme, **counted)
    independent = algorithms.dp_dsgd(dynamics, scheme)
    factorization = {kind: solve(dynamics, scheme, max_iterations=500, **counted) for kind, solve in KINDS.items()}
    forms = [spatio_temporal_noise(dynamics, scheme, factorization[kind]) for kind in KINDS]
    over_nodes = algorithms.spatial_noise(dynamics, scheme, spatial, name="over nodes")
    for poorer, richer in itertools.pairwise([independent, encoder, *forms]):
        assert cost(richer, counted) <= cost(poorer, counted) * (1 + 2 * TOLERANCE), (richer.name, poorer.name)
    assert cost(forms[0], counted) <= cost(over_nodes, counted) * (1 + 2 * TOLERANCE)
    assert cost(over_nodes, counted) <= cost(independent, counted) * (1 + 2 * TOLERANCE)
    for solution in factorization.values():
        assert_allclose(solution.independent_objective, cost(independent, counted), rtol=1e-9)
        assert solution.lower_bound <= factorization["joint"].objective * (1 + 1e-9)
        assert solution.gap >= -1e-9
    assert factorization["joint"].status == "optimal"
    assert factorization["joint"].gap <= TOLERANCE
    # an attained loss bounds no other bound from below: those of the halves are bounds over less
    halves = encoder.factorization.objective, scheme.epochs * spatial.objective
    assert factorization["joint"].lower_bound <= min(halves) * (1 + 1e-9)


EVERYTHING = (
    Dynamics(half_lazy("path:n=3"), [1.0, 0.5, 1.0, 0.25], momentum=0.5, weight_decay=0.2),
    Cyclic(2, 2),
    {"weights": ErrorWeights("last:2:0.1"), "counted_models": "message"},
)


@pytest.mark.parametrize("kind", KINDS)
@given(5, case=cases(max_nodes=4, max_steps=4))
@example(case=EVERYTHING)
@example(case=(Dynamics(half_lazy("path:n=3")), Cyclic(2, 1), {}))  # per-mode keeps in-class entries of 4e-4
def test_loss_and_sensitivity_are_those_of_the_arrays(kind, case):
    dynamics, scheme, counted = case
    T, n = scheme.num_steps, dynamics.num_nodes
    curve = KINDS[kind](dynamics, scheme, max_iterations=500, **counted)
    algorithm = spatio_temporal_noise(dynamics, scheme, curve)
    Sigma = covariance(curve)
    N = algorithm.noise.to_dense()
    assert_allclose(N @ N.T, Sigma, rtol=1e-8, atol=1e-9 * np.abs(Sigma).max())
    M = counted_rows(dynamics, T, **counted)
    assert_allclose(curve.sensitivity**2 * np.sum(M * (M @ Sigma)), curve.objective, rtol=1e-8)
    assert_allclose(noise_error(algorithm, **counted).value * curve.sensitivity**2, curve.objective, rtol=1e-8)
    least, most = sensitivities_squared(np.linalg.inv(Sigma), scheme, n).T
    # per-mode may keep in-class entries of mixed signs, as small as its tolerance: no gradients reach their sum
    assert_allclose(least.max(), 1.0, rtol=PER_MODE_TOLERANCE if kind == "per-mode" else 1e-7)
    assert most.max() <= curve.sensitivity**2 * (1 + 1e-7)
    losses = sensitivity_by_victim(algorithm, OUTSIDER)
    for u, loss in enumerate(losses):
        assert least[u] * (1 - 1e-8) <= loss.sensitivity_squared <= most[u] * (1 + 1e-6)
        assert loss.adaptive
    assert 1 - 1e-9 <= max(loss.sensitivity_squared for loss in losses) <= 1 + 1e-6
    assert curve.sensitivity <= 1 + 1e-8


def test_figures_on_a_path():
    dynamics = dynamics_on("path:n=4")
    independent = 2 * noise_error(algorithms.dp_dsgd(dynamics, SCHEME)).value
    over_time = algorithms.mafalda(dynamics, SCHEME).factorization.objective
    over_nodes = 2 * optimal_covariance(dynamics, horizon=6).objective
    factorization = {kind: solve(dynamics, SCHEME) for kind, solve in KINDS.items()}
    losses = [over_nodes, over_time, *(solution.objective for solution in factorization.values())]
    # the best directions of `per_mode` are found up to several tolerances
    assert_allclose(losses, [39.4077, 38.7339, 27.7911, 26.6297, 26.4577], rtol=2e-3)
    assert independent > over_nodes * 1.4
    assert [solution.status for solution in factorization.values()] == ["stationary", "stationary", "optimal"]
    assert_allclose([solution.gap for solution in factorization.values()], [0.054, 0.010, 0.0], atol=2e-3)


def test_the_average_of_the_models_counts():
    """Only the eigenvector of ones is counted: noise that cancels in the average is free, and bounds stay valid."""
    weights = ErrorWeights("all", "average")
    factorization = {k: solve(RING, SCHEME, weights=weights, max_iterations=300) for k, solve in KINDS.items()}
    for solution in factorization.values():
        assert any("singular" in note for note in solution.notes)
        assert solution.lower_bound <= factorization["joint"].objective * (1 + 1e-9)
        algorithm = spatio_temporal_noise(RING, SCHEME, solution)
        assert_allclose(noise_error(algorithm, weights=weights).value, solution.objective, rtol=1e-6)
        # free noise of 1e6 leaves that much to rounding, and it counts
        assert 1 - 1e-6 <= worst_loss(algorithm) <= 1 + 1e-2


@pytest.mark.parametrize("kind", ["kronecker", "per-mode"])
def test_gossip_without_modes_is_refused_and_the_joint_form_takes_it(kind):
    star = gossip.uniform("star:n=3")
    for dynamics in (Dynamics(star), Dynamics(gossip.sequence([PATH.gossip, gossip.metropolis_hastings("ring:n=4")]))):
        unsupported("modes of one symmetric gossip matrix.*joint", KINDS[kind], dynamics, SCHEME)
    some = ErrorWeights("all", [1, 0, 0, 0])
    unsupported("couples the modes.*use", lambda: KINDS[kind](PATH, SCHEME, weights=some))
    for dynamics, weights in ((Dynamics(star), ErrorWeights()), (PATH, some)):
        factorization = optimal_joint(dynamics, Cyclic(2, 2), weights=weights)
        algorithm = spatio_temporal_noise(dynamics, Cyclic(2, 2), factorization)
        assert_allclose(noise_error(algorithm, weights=weights).value, factorization.objective, rtol=1e-6)
        assert factorization.lower_bound <= factorization.objective < factorization.independent_objective


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in KINDS), ("kronecker", {"groups": [[0, 1, 2], [1, 2, 3]], "coalition_size": 1})],
)
@pytest.mark.parametrize("weight", [1e-300, 1e155, 1e300])
def test_a_common_factor_of_the_weights_only_scales_the_loss(kind, options, weight):
    weights = None, ErrorWeights([weight] * 4)
    plain, weighted = (KINDS[kind](PATH, Cyclic(2, 2), weights=w, **options) for w in weights)
    assert weighted.status == plain.status
    halves = [(weighted.space, plain.space)] if options else []
    for scaled, once in [(weighted, plain), *halves]:
        for name in ("objective", "lower_bound", "independent_objective"):
            assert_allclose(getattr(scaled, name) / weight, getattr(once, name), rtol=2e-3)
    assert 0 < weighted.lower_bound <= weighted.objective <= weighted.independent_objective < math.inf
    assert_allclose(weighted.gap, plain.gap, atol=1e-3)


@pytest.mark.parametrize("weight", [1e-300, 1e306])
@pytest.mark.parametrize("graph", ["path:n=4", "complete:n=4"])  # averaged away at once: H of rank 1, large R
def test_noise_over_nodes_alone_under_weights_of_any_size(graph, weight):
    dynamics = dynamics_on(graph)
    solvers = (optimal_covariance, {}), (optimal_covariance, {"coalition_size": 1}), (optimal_pairwise, {})
    for solve, options in solvers:
        plain = solve(dynamics, horizon=2, **options)
        factorization = solve(dynamics, horizon=2, weights=ErrorWeights([weight] * 2), **options)
        assert_allclose(factorization.objective / weight, plain.objective, rtol=2e-3)
        assert_allclose(factorization.independent_objective / weight, plain.independent_objective, rtol=1e-9)
        assert 0 < factorization.lower_bound <= factorization.objective
        huge = {"weights": ErrorWeights([1e300] * 2), "max_inverse_diagonal": 1e-10}
        refuses("beyond float64", solve, dynamics, horizon=2, **huge, **options)


def test_pairwise_noise_just_below_the_end_of_the_range():
    star = Dynamics(half_lazy(nx.star_graph(5)))
    hub = [1, 0, 0, 0, 0, 0]
    plain = optimal_pairwise(star, horizon=2, weights=ErrorWeights("all", hub), counted_models="message")
    weight = 8e307 / plain.independent_objective  # tr(H L) is beyond float64
    factorization = optimal_pairwise(star, horizon=2, weights=ErrorWeights([weight] * 2, hub), counted_models="message")
    assert_allclose([factorization.sigma_ldp, factorization.sigma_cor], [plain.sigma_ldp, plain.sigma_cor], rtol=1e-4)
    assert_allclose(factorization.objective / weight, plain.objective, rtol=1e-6)


def test_per_mode_is_no_worse_than_kronecker_up_to_its_own_tolerance():
    # its product is solved at 1e-3, that of kronecker at 1e-4: here 2e-4 are lost
    dynamics = dynamics_on("complete:n=3", gossip_rounds=3)
    weights = ErrorWeights("last:1", "average")
    product, form = (solve(dynamics, Cyclic(2, 2), weights=weights) for solve in (optimal_kronecker, optimal_per_mode))
    assert form.objective <= product.objective * (1 + PER_MODE_TOLERANCE)
    tight = optimal_per_mode(dynamics, Cyclic(2, 2), weights=weights, tolerance=1e-4)
    assert tight.objective <= product.objective * (1 + 1e-4)


REFUSED = [
    *((UnsupportedMechanism, scheme, {}, "disjoint participation patterns")
      for scheme in (OncePerEpoch(2, 2), MinSeparation(4, 2, 2), Explicit([[0, 1], [1, 2]], 3))),
    (UnsupportedMechanism, Explicit([[0, 2]], 3), {}, "no record takes part in step 1"),
    ((InvalidInput, UnsupportedMechanism), ParticipationByNode([Cyclic(2, 3), Cyclic(3, 2)] * 2), {}, "participation"),
    (InvalidInput, ParticipationByNode([Cyclic(2, 2)] * 3), {}, "given for 3 nodes, but there are"),
    *((InvalidInput, SCHEME, {"tolerance": value}, "tolerance must be a finite number > 0")
      for value in (0.0, -1e-4, math.nan)),
    (InvalidInput, SCHEME, {"max_iterations": 0}, "max_iterations"),
    (InvalidInput, SCHEME, {"counted_models": "models"}, "unknown counted_models 'models'"),
    (InvalidInput, SCHEME, {"weights": ErrorWeights("last:7")}, "counts the last 7 of 6 steps"),
    (InvalidInput, SCHEME, {"weights": ErrorWeights(np.ones(5))}, "one weight for each of 6 steps"),
    (InvalidInput, SCHEME, {"weights": "last:1"}, r"must be ErrorWeights, got 'last:1'; .*ErrorWeights\.parse"),
    (InvalidInput, SCHEME, {"weights": ErrorWeights([1e308] * 6)}, "beyond float64"),
]  # fmt: skip
SEEDS = [
    ({"groups": [[0, 4]]}, "indices below 4, got 4"), ({"groups": [[1, 1]]}, "distinct nodes"),
    ({"groups": [[]]}, "at least one node"), ({"groups": 5}, "groups must be a list of lists of node indices, got 5"),
    ({"groups": [0, 1]}, "groups must be a list of lists of node indices"),
    ({"groups": []}, "groups must hold at least one group"), ({"coalition_size": -1}, "coalition_size"),
    ({"coalition_size": 4}, "below the number of nodes, 4"), ({"coalition_size": 1.5}, "coalition_size"),
]  # fmt: skip


@each(
    "solve, error, scheme, options, message",
    *((solve, *case) for solve in KINDS.values() for case in REFUSED),
    *((optimal_kronecker, InvalidInput, SCHEME, *case) for case in SEEDS),
    (optimal_joint, UnsupportedMechanism, Cyclic(1025, 1), {}, r"T n = 4096, got 1025 \* 4 = 4100; use"),
    (factorization.factorize, *REFUSED[5]),
)
def test_what_is_refused(solve, error, scheme, options, message):
    refuses(message, solve, PATH, scheme, **options, error=error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_solution_that_stopped_says_so(kind):
    stopped = KINDS[kind](PATH, SCHEME, tolerance=1e-9, max_iterations=1)
    assert stopped.status == "stopped"
    refuses(None, stopped.require_converged, 1e-9, error=NotConverged)
    assert stopped.lower_bound <= optimal_joint(PATH, SCHEME).objective * (1 + 1e-9)
    algorithm = spatio_temporal_noise(PATH, SCHEME, stopped)  # and what it says of itself is true
    assert_allclose(noise_error(algorithm).value * stopped.sensitivity**2, stopped.objective, rtol=1e-8)
    assert_allclose(worst_loss(algorithm), stopped.sensitivity**2, rtol=1e-6)


@pytest.fixture
def written(tmp_path):
    def write(kind="kronecker", groups=None, coalition_size=0):
        options = {"groups": groups, "coalition_size": coalition_size} if groups else {}
        curve = KINDS[kind](PATH, SCHEME, **options)
        path = tmp_path / f"{kind}.npz"
        factorization.save(path, curve, header={"graph": "path:n=4"})
        return curve, path

    return write


@each("kind, groups, q", *((kind, None, 0) for kind in KINDS), ("kronecker", [[0, 1, 2], [1, 2, 3], [0, 3]], 1))
def test_files_keep_everything(written, kind, groups, q):
    solution, path = written(kind, groups, q)
    loaded = factorization.load(path).factorization
    sizes = "num_steps num_nodes objective lower_bound independent_objective iterations sensitivity coalition_size"
    for name in [*sizes.split(), "seconds", "gap", "kind", "status", "participation", "gossip_hash", "notes"]:
        assert getattr(loaded, name) == getattr(solution, name)
    assert_array_equal(loaded.encoder, solution.encoder)
    assert (loaded.space is None, loaded.directions is None) == (kind != "kronecker", kind != "per-mode")
    algorithm = spatio_temporal_noise(PATH, SCHEME, solution)
    again = algorithms.build(f"file:{path}", PATH, SCHEME)
    assert again.name == f"file:{path}"
    assert again.noise.content() == algorithm.noise.content()
    assert_array_equal(again.noise.holders().toarray(), algorithm.noise.holders().toarray())
    assert again.factorization.objective == solution.objective
    private = groups is not None  # these seeds cannot help, so that each node holds its own noise
    assert meant_models(again.name, again) == (LOCAL if private else SHARED)
    if kind == "kronecker":
        assert loaded.space.groups == solution.space.groups
        assert loaded.space.private_variance == solution.space.private_variance
        assert_array_equal(loaded.space.covariance, solution.space.covariance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_belongs_to_its_nodes_gossip_and_participation(written, kind):
    _, path = written(kind)
    for dynamics, scheme, message in (
        (RING, SCHEME, "made for 4 nodes and 6 steps, not for 5 and 6; factorize again"),
        (PATH, Cyclic(2, 2), "made for 4 nodes and 6 steps, not for 4 and 4"),
        (PATH, Cyclic(3, 2), r"was made for .*'period': 3.*, not for .*'period': 2.*; factorize again"),
        (PATH, EveryStep(6), "factorize again with this participation"),
        (dynamics_on("star:n=4"), SCHEME, "another gossip matrix"),
    ):
        refuses(message, algorithms.build, f"file:{path}", dynamics, scheme)


def test_privacy_is_accounted_from_the_arrays_and_not_from_the_header(written):
    solution, path = written()
    factorization.save(path, dataclasses.replace(solution, encoder=2 * solution.encoder), header={})
    assert_allclose(worst_loss(algorithms.build(f"file:{path}", PATH, SCHEME)), 4.0, rtol=1e-6)

"""From graph and participation to an encoder and a file: totals, the largest error, published numbers, refusals."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import dynamics_on, each, given, refuses, st

from mfdl import (
    Cyclic,
    Dynamics,
    ErrorWeights,
    EveryStep,
    InvalidInput,
    UnsupportedMechanism,
    algorithms,
    factorization,
    gossip,
)
from mfdl.commands.factorize import FactorizeConfig
from mfdl.commands.factorize_jobs import run_factorize
from mfdl.factorization import (
    FactorizationProblem,
    NotConverged,
    evaluate,
    factorize,
    factorize_classes,
    factorize_nodes,
    load,
    prefix_sum_encoder,
    problem,
    save,
    square_root_encoder,
)
from mfdl.factorization.temporal import prefix_sum_gram
from mfdl.objective import NoiseObjective, Probes, spectra
from mfdl.participation import Explicit, Single
from mfdl.testing import gossip_matrices, gossip_sequences, prefix_sum

FLORENTINE = Dynamics(gossip.uniform("florentine"))
RING = Dynamics(gossip.uniform("ring:n=16"))
SMALL = Dynamics(gossip.uniform("star:n=4"))


# Factorize


def test_reference_optimum_of_florentine():
    factorization = factorize(FLORENTINE, Cyclic(4, 16), tolerance=1e-6)
    assert factorization.status == "optimal"
    assert_allclose(factorization.objective, 3200.406114662085, rtol=2e-6)
    assert factorization.objective >= 3200.405970916417 * (1 - 1e-12)
    assert factorization.lower_bound <= 3200.406114662085


@each(
    "dynamics, k, b, published",
    (FLORENTINE, 4, 8, (3458, 4.451e4, 1521.3, 1402.4)),
    (RING, 4, 8, (4457, 4.854e4, 1794.9, 1692.3)),
    pytest.param(FLORENTINE, 20, 16, (1.222e6, 8.591e7, 1.624e5, 1.4837e5), marks=pytest.mark.slow),
    ids=["florentine-4-8", "ring-4-8", "florentine-20-16"],
)
def test_objective_table(dynamics, k, b, published):
    identity, anti_pgd, d_mf, mafalda = published
    part = Cyclic(k, b)
    posed = problem(dynamics, part)
    best = factorize(dynamics, part)
    prefix = prefix_sum_encoder(part)

    def loss(encoder):
        return evaluate(posed, encoder, lower_bound=best.lower_bound).objective

    # the table has four or five digits, and the two optimised entries a gap of up to 1e-4
    assert_allclose(loss(np.eye(k * b)), identity, rtol=5e-4)
    assert_allclose(loss(prefix_sum(k * b)), anti_pgd, rtol=5e-4)
    assert_allclose(loss(prefix.encoder), d_mf, rtol=5e-4)
    assert_allclose(best.objective, mafalda, rtol=5e-4)


TURNS = Dynamics(gossip.sequence([gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")]))


@each(
    "dynamics, part",
    *((SMALL, part) for part in (Cyclic(2, 3), Single(6), EveryStep(6), Explicit([[0, 3], [1, 2], [4]], 5))),
    (SMALL, Single(1)),
    (TURNS, Cyclic(2, 2)),
)
@pytest.mark.parametrize("solver", ["dense", "autodiff"])
def test_every_disjoint_scheme_and_solver(dynamics, part, solver):
    factorization = factorize(dynamics, part, solver=solver)
    assert factorization.status == "optimal"
    assert factorization.gap <= 1e-4
    assert_array_equal(np.triu(factorization.encoder, 1), 0)
    assert_allclose(np.bincount(part.classes(), weights=(factorization.encoder**2).sum(axis=0)), 1, rtol=1e-10)
    assert_allclose(factorization.objective, problem(dynamics, part).objective(factorization.gram))
    if part.num_steps == 1:
        assert_array_equal(factorization.encoder, [[1.0]])
        assert_allclose(factorization.objective, NoiseObjective(SMALL, 1).over_steps()[0, 0])


def test_not_converged_is_raised_unless_allowed():
    with pytest.raises(NotConverged, match="its objective and lower bound are valid") as caught:
        factorize(SMALL, Cyclic(4, 4), max_iterations=1)
    stopped = factorize(SMALL, Cyclic(4, 4), max_iterations=1, allow_stopped=True)
    assert stopped.status == caught.value.factorization.status == "stopped"
    refuses(None, lambda: factorize_nodes(SMALL, Cyclic(4, 4), max_iterations=1), error=NotConverged)
    assert factorize_nodes(SMALL, Cyclic(4, 4), max_iterations=1, allow_stopped=True).status == "stopped"


@each(
    "part, arguments, message",
    (Single(3), {"solver": "densed"}, "unknown solver 'densed'; did you mean 'dense'"),
    (Single(3), {"counted_models": "messages"}, "unknown counted_models 'messages'; did you mean 'message'"),
    (Single(3), {"tolerance": 0}, "tolerance must be a finite number > 0, got 0"),
    (Single(3), {"max_iterations": 0}, "max_iterations must be an integer >= 1, got 0"),
    (Explicit([[0, 1], [1, 2]], 3), {}, "disjoint participation patterns.*use cyclic, single or every-step"),
)
def test_bad_arguments_are_refused(part, arguments, message):
    refuses(message, factorize, SMALL, part, **arguments, error=(InvalidInput, UnsupportedMechanism))


# Evaluate
def test_evaluate_scales_to_unit_sensitivity_and_keeps_the_loss():
    posed = problem(SMALL, Cyclic(2, 3))
    best = factorize(SMALL, Cyclic(2, 3))
    C = prefix_sum(6)
    fixed, scaled = (evaluate(posed, c, lower_bound=best.lower_bound) for c in (C, 5 * C))
    assert (fixed.status, fixed.iterations) == ("fixed", 0)
    assert_allclose(fixed.sensitivity, 1)
    assert_allclose(fixed.objective, posed.objective(C.T @ C))
    assert_allclose(fixed.encoder.T @ fixed.encoder, fixed.gram, atol=1e-15)
    assert_allclose(scaled.encoder, fixed.encoder, rtol=1e-14)
    assert_allclose(fixed.gap, fixed.objective / best.lower_bound - 1)
    assert fixed.require_converged(1e-4) is fixed
    assert evaluate(posed, np.diag([1.0, 1, 1, 1, 1, 0]), lower_bound=1.0).objective == np.inf  # singular
    with pytest.raises(dataclasses.FrozenInstanceError):
        fixed.objective = 0.0


@each(
    "encoder, message",
    (np.eye(5), r"encoder must have shape \(6, 6\), got \(5, 5\)"),
    (np.ones((6, 5)), "encoder must be square"),
    (np.full((6, 6), np.nan), "encoder must be finite"),
    (np.zeros((6, 6)), "encoder must not be zero"),
)
def test_evaluate_refuses_what_is_no_encoder(encoder, message):
    refuses(message, lambda: evaluate(problem(SMALL, Cyclic(2, 3)), encoder, lower_bound=1.0))


# One encoder per node
def test_node_problems_add_up():
    part, calls = Cyclic(2, 3), []
    solution = factorize_nodes(FLORENTINE, part, progress=lambda: calls.append(1))
    assert len(calls) == len(solution.nodes) == 15
    assert solution.encoder.shape == (15, 6, 6)
    grams = list(NoiseObjective(FLORENTINE, 6).over_steps_of_nodes())
    for H, of_node in zip(grams, solution.nodes, strict=True):
        alone = FactorizationProblem(H, part.classes())
        assert_allclose(of_node.objective, alone.objective(of_node.gram), rtol=1e-12)
        assert_allclose(of_node.objective, factorization.solve_problem(alone).objective, rtol=2e-4)
    assert_allclose(solution.objective, sum(of_node.objective for of_node in solution.nodes))
    assert_allclose(solution.lower_bound, sum(of_node.lower_bound for of_node in solution.nodes))
    assert solution.iterations == sum(of_node.iterations for of_node in solution.nodes)
    assert solution.status == "optimal"
    assert 0 <= solution.gap <= 1e-4
    assert_allclose(solution.sensitivity, 1, rtol=1e-12)
    # a shared encoder is one choice of n encoders
    assert solution.lower_bound <= factorize(FLORENTINE, part).objective
    alike = factorize_nodes(Dynamics(gossip.uniform("complete:n=5")), Cyclic(2, 2))
    assert len({id(of_node) for of_node in alike.nodes}) == 1


# Encoders that are not optimised for the graph
@pytest.mark.parametrize("T", [1, 2, 5, 40])
def test_square_root_squares_to_the_prefix_sum(T):
    C = square_root_encoder(T)
    assert_array_equal(np.triu(C, 1), 0)
    assert_allclose(C @ C, prefix_sum(T), atol=1e-14)
    assert_array_equal(prefix_sum_gram(T), prefix_sum(T).T @ prefix_sum(T))
    assert_array_equal(C[:4, 0], [1, 0.5, 0.375, 0.3125][:T])
    assert_allclose(np.triu(np.linalg.inv(C), 1), 0, atol=1e-15)  # noise of a step needs no later base noise
    assert_array_equal(square_root_encoder(T, 2), np.eye(T) + 0.5 * np.eye(T, k=-1))
    assert_array_equal(square_root_encoder(T, T + 4), C)
    for arguments, name in (((0,), "num_steps"), ((T, 0), "bandwidth")):
        refuses(f"{name} must be an integer >= 1, got 0", square_root_encoder, *arguments)
    refuses("num_steps must be an integer >= 1, got 0", prefix_sum_gram, 0)


def test_prefix_sum_encoder_is_optimal_for_prefix_sums():
    for part in (Single(8), Cyclic(2, 4), EveryStep(8)):
        encoder = prefix_sum_encoder(part)
        assert encoder.status == "optimal"
        A = prefix_sum(8)
        response = A @ np.linalg.inv(encoder.encoder)
        assert_allclose(encoder.objective, np.linalg.norm(response) ** 2, rtol=1e-8)
        root = square_root_encoder(8)
        posed = FactorizationProblem(A.T @ A, part.classes())
        assert encoder.objective <= posed.objective(root.T @ root) * (1 + 1e-4)


# Files
@pytest.mark.parametrize("solve", [factorize, factorize_nodes])
def test_saved_and_loaded_is_the_same(tmp_path, solve):
    path, solved, H = tmp_path / "deep" / "c", solve(SMALL, Cyclic(2, 3)), NoiseObjective(SMALL, 6).over_steps()
    save(path, solved, grams=H, header={"graph": "abc", "participation": Cyclic(2, 3)})
    saved = load(path)
    assert_array_equal(saved.encoder, solved.encoder)
    assert_array_equal(saved.error_gram, H)
    assert repr(saved.factorization) == repr(solved)
    assert saved.header == {"graph": "abc", "participation": Cyclic(2, 3)}
    assert [p.name for p in path.parent.iterdir()] == ["c"]  # no temporary file is left


def test_a_header_that_no_file_can_hold_leaves_the_old_file(tmp_path):
    path, solved = tmp_path / "c", factorize(SMALL, Cyclic(2, 3))
    save(path, solved, header={})
    before = path.read_bytes()
    refuses("wrong of header of the factorization cannot", save, path, solved, header={"wrong": object()})
    assert path.read_bytes() == before


@each(
    "change, message",
    ({"encoder": np.ones((2, 3))}, r"encoder must be finite with shape .*got \(2, 3\)"),
    ({"encoder": np.full((2, 2), np.nan)}, "encoder must be finite"),
    ({"encoder": np.ones(4)}, r"got \(4,\)"),
    ({"encoder": np.ones((2, 2), dtype=bool)}, "encoder must be real numbers"),
    ({"encoder": "text"}, "does not hold a factorization"),
)
def test_encoders_that_are_none_are_refused(tmp_path, change, message):
    solved = dataclasses.replace(factorize(SMALL, Cyclic(2, 3)), **change)
    refuses(message, lambda: load(save(tmp_path / "c", solved, header={})))
    refuses("factorization must be one of mfdl, got", lambda: load(save(tmp_path / "c", Cyclic(2, 3), header={})))


# Weights of any size
@pytest.mark.parametrize("solver", ["dense", "autodiff"])
@pytest.mark.parametrize("weight", [1e-300, 1e155, 1e300])
def test_a_common_factor_of_the_weights_only_scales_the_loss(solver, weight):
    part, weights = Cyclic(2, 2), ErrorWeights([weight] * 4)
    plain, factorization = factorize(SMALL, part, solver=solver), factorize(SMALL, part, weights=weights, solver=solver)
    assert factorization.status == "optimal"
    assert 0 < factorization.lower_bound <= factorization.objective <= factorization.lower_bound * (1 + 1e-4)
    assert_allclose(factorization.objective / weight, plain.objective, rtol=1e-3)
    judged = evaluate(problem(SMALL, part, weights=weights), plain.encoder, lower_bound=factorization.lower_bound)
    assert_allclose(judged.objective / weight, plain.objective, rtol=1e-9)


def test_an_unoptimised_encoder_is_not_called_optimal_under_large_weights():
    # the squares of the certificate overflowed, and every loss is below an infinite bound
    weights = ErrorWeights("last:1:1e155")
    stopped = factorize(SMALL, Cyclic(2, 2), weights=weights, max_iterations=1, allow_stopped=True)
    assert stopped.status == "stopped"
    assert stopped.objective > stopped.lower_bound * (1 + 1e-4)


def test_nodes_whose_noise_costs_next_to_nothing():
    alone = Dynamics(gossip.from_array(np.eye(3)))
    factorization = factorize_nodes(alone, Cyclic(2, 2), weights=ErrorWeights("all", [1, 1e-200, 1e-320]))
    assert factorization.status == "optimal"
    first, second, third = (node.objective for node in factorization.nodes)
    assert_allclose([second * 1e200, third * 1e300 * 1e20], first, rtol=1e-3)  # 1e-320 has three digits
    assert all(0 < node.lower_bound <= node.objective for node in factorization.nodes)


def test_nodes_whose_losses_only_together_are_beyond_float64():
    plain = factorize_nodes(SMALL, Cyclic(2, 2))
    weight = 1.7e308 / (plain.objective - min(node.objective for node in plain.nodes))
    assert max(node.objective for node in plain.nodes) * weight < 1.7e308
    refuses("the objective of all", lambda: factorize_nodes(SMALL, Cyclic(2, 2), weights=ErrorWeights([weight] * 4)))


@pytest.mark.parametrize("solve", [factorize, factorize_nodes, factorize_classes])
def test_a_loss_beyond_float64_is_refused(solve):
    for weight in (2e307, 1e308):  # the loss, and the error Gram, are beyond
        refuses("beyond float64.*take smaller error", solve, SMALL, Cyclic(4, 1), weights=ErrorWeights([weight] * 4))


RING_DYNAMICS, PART = dynamics_on("ring:n=5", 0.5), Cyclic(2, 3)


@given(
    100, W=st.one_of(gossip_matrices(max_nodes=4), gossip_sequences(max_nodes=3)), T=st.integers(1, 5),
    momentum=st.sampled_from([0.0, 0.5]), target=st.sampled_from(["nodes", "average"]),
    counted_models=st.sampled_from(["post-average", "message"]), curved=st.booleans(), by_nodes=st.booleans(),
)  # fmt: skip
def test_each_step_is_counted_alone(W, T, momentum, target, counted_models, curved, by_nodes):
    W = W if W.is_constant else gossip.sequence(W.matrices)
    rates = np.linspace(1.0, 0.5, T)
    dynamics = Dynamics(W, rates, momentum=0.0 if curved else momentum, weight_decay=0.2)
    curvature = "power:1:3" if curved else None
    w = np.arange(T) % 3 + (T == 1)
    with pytest.MonkeyPatch.context() as patch:
        if by_nodes:
            patch.setattr(spectra, "MAX_MEASURE_RATIO", 0.0)
        grams = NoiseObjective(dynamics, T, ErrorWeights(w, target, curvature=curvature), counted_models)
        by_step = grams.over_each_step()
    alone = [ErrorWeights(row, target, curvature=curvature) for row in np.diag(w.astype(float))[w > 0]]
    expected = [NoiseObjective(dynamics, T, weights, counted_models).over_steps() for weights in alone]
    assert_allclose(by_step, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("weights", [ErrorWeights(), ErrorWeights("last:4:0.1", curvature="power:1:20")])
def test_the_largest_error_is_less_than_that_of_the_best_sum(weights):
    best = factorization.factorize(RING_DYNAMICS, PART, weights=weights, measure="maximum")
    usual = factorization.factorize(RING_DYNAMICS, PART, weights=weights)
    posed = factorization.maximum_problem(RING_DYNAMICS, PART, weights=weights)
    judged = factorization.evaluate(posed, usual.encoder, lower_bound=best.lower_bound)
    assert best.lower_bound <= best.objective <= best.lower_bound * (1 + 1e-4)
    assert best.objective < judged.objective
    noise = algorithms.mf_dsgd(RING_DYNAMICS, PART, best.encoder).noise
    w = weights.weights_by_step(6)
    errors = [
        NoiseObjective(RING_DYNAMICS, 6, ErrorWeights(row, curvature=weights.curvature)).noise_error(noise).value
        for row in np.diag(w)
    ]
    assert_allclose(max(errors), best.objective, rtol=1e-6)


def test_mechanisms_and_files(tmp_path):
    algorithm = algorithms.build("mafalda", RING_DYNAMICS, PART, measure="maximum")
    best = factorization.factorize(RING_DYNAMICS, PART, measure="maximum")
    assert_allclose(algorithm.factorization.objective, best.objective)
    file = tmp_path / "worst.mfdl"
    small = {"graph": "ring:n=5", "epochs": 2, "period": 3, "lr": 0.5}
    answer = run_factorize(FactorizeConfig(measure="maximum", **small), file)
    assert answer["measure"] == "maximum"
    assert_allclose(answer["objective"], best.objective)
    assert_allclose(factorization.load(file).encoder, best.encoder)
    of_file = run_factorize(FactorizeConfig(mechanism=f"file:{file}", measure="maximum", **small))
    assert_allclose(of_file["objective"], best.objective, rtol=1e-9)
    assert "measure" not in run_factorize(FactorizeConfig(**small))


@each(
    "call, message",
    (lambda: factorization.factorize(RING_DYNAMICS, PART, measure="maximal"), "did you mean 'maximum'"),
    (lambda: factorization.factorize(RING_DYNAMICS, PART, measure="maximum", probes=Probes()), "neither probes"),
    (lambda: factorization.factorize(RING_DYNAMICS, PART, measure="maximum", solver="autodiff"), "by solver='dense'"),
    (
        lambda: factorization.maximum_problem(RING_DYNAMICS, PART, weights=ErrorWeights("released:last")),
        "count one released model",
    ),
    (lambda: NoiseObjective(RING_DYNAMICS, 513).over_each_step(), "512 steps at most, got 513"),
    (lambda: FactorizeConfig(mechanism="kronecker", measure="maximum"), "its objective is a sum"),
    (lambda: FactorizeConfig(solver="toeplitz", measure="maximum"), "is for --solver dense"),
    (lambda: FactorizeConfig(measure="mean"), "unknown measure 'mean'"),
)
def test_what_has_no_largest_error_is_refused(call, message):
    refuses(message, call, error=(InvalidInput, UnsupportedMechanism))

"""From an encoder in any form to a mechanism that trains: one call, the right holders, certified families."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose
from scipy.sparse.linalg import aslinearoperator
from small_tasks import regression
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import algorithms, factorization
from mfdl.noise import IndependentNoise, JointNoise, LocalNoise
from mfdl_solvers.autodiff import Parametrisation, solve
from mfdl_solvers.problem import ProblemError, Stopping

N, T = 3, 4
DYNAMICS = dynamics_on(f"path:n={N}", 0.1)
SCHEME = mfdl.Cyclic(epochs=2, period=2)
C = np.tri(T) + np.eye(T)
PAIR = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
FEW = Stopping(max_iterations=60)


def about(model=None, scheme=SCHEME):
    return mfdl.Privacy(model, participation=scheme, **ZERO_OUT)


def calibrated(encoder, model=mfdl.trust.Eavesdropper(), dynamics=DYNAMICS):  # noqa: B008  # immutable
    return mfdl.calibrate(encoder, about(model), dynamics=dynamics, mu=1.0)


def full_blocks(seed=0):
    rng = np.random.default_rng(seed)
    return np.kron(np.tri(T), np.ones((N, N))) * rng.standard_normal((T * N, T * N)) + 4 * np.eye(T * N)


@each(
    "form",
    C.tolist(), sp.csr_array(C), aslinearoperator(C), np.stack([C] * N), np.kron(C, np.eye(N)),
    sp.csr_array(np.kron(C, np.eye(N))),
    factorization.evaluate(factorization.problem(DYNAMICS, SCHEME), C, lower_bound=0.0),
    ids=["list", "sparse", "operator", "per node", "joint", "sparse joint", "evaluated"],
)  # fmt: skip
def test_one_encoder_in_any_form_is_one_mechanism(form):
    usual = mfdl.calibrate(algorithms.mf_dsgd(DYNAMICS, SCHEME, C), about(mfdl.trust.LDP()), mu=1.0)
    given_form = calibrated(form, mfdl.trust.LDP())
    assert given_form.algorithm.noise.local
    assert_allclose(given_form.objective, usual.objective)


@pytest.mark.parametrize("solver", ["optimal_kronecker", "optimal_per_mode", "optimal_joint", "factorize_nodes"])
def test_what_a_solver_returned_is_an_encoder(solver):
    solved = getattr(factorization, solver)(DYNAMICS, SCHEME)
    assert_allclose(calibrated(solved).objective, solved.objective, rtol=1e-6)


def test_a_view_of_an_algorithm_is_calibrated_to_what_trains():
    algorithm = algorithms.mf_dsgd(DYNAMICS, SCHEME, C)
    tapped = mfdl.TrustModel.from_masks(seen=np.array([True, True, False]), release="none")
    for model in (mfdl.trust.Eavesdropper(), tapped):
        view = model.view(algorithm, 1, release="none")
        whole = mfdl.calibrate(algorithm, mfdl.Privacy(model, release="none", **ZERO_OUT), mu=1)
        mechanism = mfdl.calibrate(view, about(scheme=None), mu=1.0)
        assert mechanism.algorithm is algorithm
        assert mechanism.noise_std >= whole.noise_std * (1 - 1e-9)
    hidden = mfdl.Privacy(release="none", **ZERO_OUT)
    refuses("this one shows", lambda: mfdl.account(tapped.view(algorithm, 1, release="all"), hidden, noise_std=1.0))
    refuses("trust must be left out", lambda: mfdl.calibrate(view, about(mfdl.trust.LDP(), None), mu=1.0))
    for model in (mfdl.trust.PNDP([0]), mfdl.TrustModel.from_masks(known_gradients=np.arange(3) == 1)):
        refuses("does not say", mfdl.calibrate, model.view(algorithm, 1, release="none"), about(scheme=None), mu=1.0)


@pytest.mark.parametrize("model", [mfdl.trust.LDP(), mfdl.trust.PNDP([0])])
def test_noise_shared_inside_a_step_hides_no_node_from_those_who_hold_it(model):
    """Node 0 uses the columns of node 1, so it knows all of node 1's noise; node 2 has noise of its own."""
    algorithm = algorithms.mf_dsgd(DYNAMICS, SCHEME, np.kron(C, PAIR))
    assert algorithm.noise.holders().toarray().tolist() == [[True, True, False]] * 2 + [[False, False, True]]
    losses = mfdl.losses(algorithm, about(model), victims=[1, 2])
    shared, private = (guarantee.mu for guarantee in losses.by_victim(1.0))
    (alone,) = mfdl.losses(algorithms.mf_dsgd(DYNAMICS, SCHEME, C), about(model), victims=[2]).by_victim(1.0)
    assert np.isinf(shared)
    assert_allclose(private, alone.mu)


@given(30, seed=st.integers(0, 999), order=st.permutations(range(N)))
def test_holders_are_those_of_the_exact_inverse_whatever_rounds(seed, order):
    """Node 1 uses a column of its own, nodes 0 and 2 use it besides one of theirs; columns in any order."""
    pattern = np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1]])
    B = np.kron(np.tri(T), pattern) * (np.random.default_rng(seed).standard_normal((T * N, T * N)) + 3 * np.eye(T * N))
    B = B.reshape(T, N, T, N)[:, order].reshape(T * N, T * N)  # base noise in another order
    noise = algorithms.mf_dsgd(DYNAMICS, SCHEME, B).noise
    assert (noise.holders().toarray() == pattern.T[order]).all()
    assert_allclose(B @ noise.to_dense(), np.eye(T * N), atol=1e-6)


def test_each_node_with_the_column_of_another_has_noise_of_its_own():
    swapped = calibrated(np.kron(C, np.eye(N)[[1, 0, 2]]), mfdl.trust.LDP())
    assert swapped.algorithm.noise.holders().toarray().tolist() == np.eye(N, dtype=bool)[[1, 0, 2]].tolist()
    assert_allclose(swapped.noise_std, calibrated(C, mfdl.trust.LDP()).noise_std)


@given(30, seed=st.integers(0, 999))
def test_full_blocks_lose_what_their_gram_says(seed):
    """Against outsiders, by the sum of |C^T C| over the pairs of steps in which a record of a node takes part."""
    B = full_blocks(seed)
    X = np.abs(B.T @ B).reshape(T, N, T, N)
    bound = max(X[np.ix_([t, t + 2], [u], [t, t + 2], [u])].sum() for t in (0, 1) for u in range(N))
    signed = max(
        sum(s * r * (B.T @ B).reshape(T, N, T, N)[a, u, b, u] for s, a in pairs for r, b in pairs)
        for t in (0, 1)
        for u in range(N)
        for sign in (1, -1)
        for pairs in [((1, t), (sign, t + 2))]
    )
    nu = calibrated(B).noise_std
    assert signed**0.5 * (1 - 1e-9) <= nu <= bound**0.5 * (1 + 1e-9)


def test_wrong_encoders_are_refused_with_their_first_wrong_entry():
    wrong = full_blocks()
    wrong[1, N + 2] = 0.5
    refuses(r"entry \(1, 5\) = 0.5 takes noise of node 2", calibrated, wrong)
    singular = full_blocks()
    singular[:N, :N] = 1.0
    refuses("blocks inside its steps that can be inverted", calibrated, singular)
    refuses("node 1 adds column 0", JointNoise, np.kron(C, PAIR), T, N, holders=np.eye(N, dtype=bool))
    refuses("holders must have shape", JointNoise, np.kron(C, PAIR), T, N, holders=np.eye(2, dtype=bool))
    refuses("must be C, got the noise", lambda: algorithms.mf_dsgd(DYNAMICS, SCHEME, IndependentNoise(T, N)))
    refuses("an encoder needs", lambda: mfdl.calibrate(C, about(mfdl.trust.LDP()), mu=1.0))
    unsupported("up to 4096 rows", calibrated, sp.eye_array(5000))
    own = algorithms.dp_dsgd(DYNAMICS, SCHEME)
    refuses("brings its own maps", lambda: mfdl.calibrate("mafalda", about(mfdl.trust.LDP()), dynamics=own, mu=1.0))


# ---- own algorithms ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("over", ["steps", "nodes", "both"])
@pytest.mark.parametrize("weights", ["all", "last:2", "released:average:3"])
def test_the_gram_of_the_maps_is_that_of_the_dynamics(over, weights):
    dynamics = mfdl.Dynamics(DYNAMICS.gossip, np.linspace(0.3, 0.1, T), momentum=0.5, gossip_rounds=2)
    counted = {"weights": mfdl.ErrorWeights(weights), "over": over}
    own = factorization.problem(algorithms.dp_dsgd(dynamics, SCHEME), **counted)
    usual = factorization.problem(dynamics, SCHEME, **counted)
    assert_allclose(own.error_gram, usual.error_gram, atol=1e-12)
    assert own.classes.tolist() == usual.classes.tolist()


def test_an_own_algorithm_is_factorized_calibrated_and_trained():
    tracking = algorithms.gradient_tracking(DYNAMICS, SCHEME)
    with_own_encoder = factorization.factorize(tracking)
    mechanism = calibrated(with_own_encoder, mfdl.trust.LDP(), dynamics=tracking)
    assert_allclose(mechanism.objective, with_own_encoder.objective)
    plain = calibrated(factorization.factorize(DYNAMICS, SCHEME), mfdl.trust.LDP(), dynamics=tracking)
    assert mechanism.objective <= plain.objective * (1 + 1e-4)
    assert not mfdl.replay(mechanism, regression(num_nodes=N), seeds=[0]).seeds[0].diverged
    for refused, why in (
        (lambda: factorization.factorize(tracking, SCHEME, measure="maximum"), "dynamics must be"),
        (lambda: factorization.problem(tracking, mfdl.EveryStep(T)), "participation must be left out"),
        (lambda: factorization.factorize(algorithms.zip_dl(DYNAMICS, SCHEME)), "noise that enters with gradients"),
        (lambda: factorization.factorize(tracking, counted_models="message"), "messages"),
        (lambda: factorization.problem(DYNAMICS, SCHEME, over="time"), "over"),
    ):
        refuses(why, refused)


# ---- families ----------------------------------------------------------------------------------------------------
LOWER = torch.ones(T, T, dtype=torch.float64).tril()
LAG = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)


def decay_per_node(theta):
    return torch.where(LOWER > 0, torch.sigmoid(theta)[:, None, None] ** LAG, 0.0)


def low_rank(theta):
    v = theta[1:, None]
    return torch.where(LOWER > 0, torch.sigmoid(theta[0]) ** LAG, 0.0), torch.eye(N, dtype=theta.dtype) + v @ v.T


def network(theta):
    weights, bias, out = theta.reshape(3, -1)
    values = torch.tanh(LAG[..., None] * weights + bias) @ out
    return torch.where(LAG > 0, values, 0.0) + torch.eye(T, dtype=theta.dtype)


def blocks(theta):
    return torch.kron(LOWER, torch.ones(N, N, dtype=theta.dtype)) * theta.reshape(T * N, T * N)


@each(
    "family, start, over, model",
    (decay_per_node, np.zeros(N), "nodes", mfdl.trust.LDP()),
    (low_rank, np.r_[0.0, -0.1 * np.ones(N)], "both", mfdl.trust.Eavesdropper()),
    (network, np.linspace(-0.5, 0.5, 12), "nodes", mfdl.trust.LDP()),
    (blocks, np.eye(T * N).ravel(), "both", mfdl.trust.Eavesdropper()),
    ids=["per node", "low rank", "neural", "blocks"],
)
def test_a_family_of_any_shape_is_certified_and_trained_by_one_call_each(family, start, over, model):
    posed = factorization.problem(DYNAMICS, SCHEME, over=over)
    threads = torch.get_num_threads()
    best = solve(posed, Parametrisation(family, start, num_nodes=N), FEW, device="cpu")
    assert torch.get_num_threads() == threads
    optimum = factorization.solve_problem(posed)
    assert best.lower_bound <= optimum.objective * (1 + 1e-9)
    assert optimum.lower_bound <= best.objective <= posed.objective(np.eye(T * N)) * (1 + 1e-9)
    mechanism = calibrated(best, model)
    assert_allclose(mechanism.objective, best.objective, rtol=1e-6)
    assert isinstance(mechanism.algorithm.noise, LocalNoise if over == "nodes" else JointNoise)
    run = mfdl.replay(mechanism, regression(num_nodes=N), seeds=[0])
    assert not run.seeds[0].diverged


def test_shapes_that_do_not_fit_are_refused():
    posed = factorization.problem(DYNAMICS, SCHEME, over="both")
    for family, nodes, why in (
        (low_rank, 1, "torch tensor, got tuple"),
        (lambda theta: LOWER * theta[0], 1, "must have shape"),
        (lambda theta: torch.kron(LOWER.T.contiguous(), torch.ones(N, N)) * theta[0], N, r"lower-tri.*C\[0, 3\]"),
    ):
        of_shape = Parametrisation(family, np.ones(N + 1), num_nodes=nodes)
        refuses(why, solve, posed, of_shape, FEW, device="cpu", error=ProblemError)

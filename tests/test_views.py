"""Views from arrays and released models: their rows, their A, B and C, error and training, what is refused."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from path_algorithms import DP, MH, PATH
from scipy.sparse.linalg import aslinearoperator
from vocabulary import each, given, refuses, st, unsupported

from mfdl import Dynamics, ErrorWeights, Mechanism, Privacy, View, algorithms, calibrate, gossip, trust
from mfdl.algorithms import LinearAlgorithm, noise_error
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.participation import Cyclic, EveryStep, Explicit
from mfdl.privacy import general_sensitivity, sensitivity_by_victim
from mfdl.privacy.forms import view_grams
from mfdl.privacy.gram_sensitivity import sensitivities
from mfdl.released import ReleasedModel
from mfdl.testing import MEMORY_NAMES, integer_views, linear_algorithms
from mfdl.training.executor import Executor, Releasing
from mfdl.trust.knowledge import Knowledge
from mfdl.trust.view import AlgorithmView


# ---- bare views ---------------------------------------------------------------------------------------------------
@given(40, case=integer_views())
def test_arrays_sparse_matrices_and_operators_are_one_view(case):
    A, B = case
    kinds = [np.asarray, sp.csr_array, sp.coo_array, aslinearoperator, lambda M: M.astype(int).tolist()]
    grams = [view_grams(View(make(A), make(B)), [0])[0] for make in kinds]
    for gram in grams[1:]:
        assert_allclose(gram.matrix, grams[0].matrix, rtol=1e-10, atol=1e-12)
        assert (gram.leaks == grams[0].leaks).all()


@each(
    "A, B, options, text", (np.eye(2), np.eye(3), {}, "same number of rows"),
    (np.eye(2), np.eye(2), {"num_nodes": 3}, "steps \\* num_nodes=3"),
    (np.eye(2), np.eye(2), {"num_nodes": 0}, "num_nodes"), (np.array([[np.nan]]), np.eye(1), {}, "finite"),
    (np.eye(1), np.array([[np.inf]]), {}, "finite"), (np.eye(1), sp.csr_array([[np.inf]]), {}, "finite"),
    (np.ones(3), np.ones(3), {}, "gradients"),
    (np.eye(2), np.eye(2), {"known_gradients": np.ones(3, dtype=bool)}, "known_gradients must be a boolean mask"),
    (np.eye(2), np.eye(2), {"known_combinations": np.ones((1, 3))}, "must have 2 columns"),
    (np.zeros((2, 0)), np.eye(2), {}, "columns")
)  # fmt: skip
def test_a_view_that_does_not_fit(A, B, options, text):
    refuses(text, View, A, B, **options)


# ---- known combinations (Lemma 11 and its side condition) ------------------------------------------------------------
def losses(view, victims, scheme):
    return [s.squared for s in sensitivities(view_grams(view, victims), scheme, nodes=victims)]


def test_known_combinations_touch_or_leave_alone():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 6))
    B, K = A + 0.1 * rng.standard_normal((6, 6)), np.zeros((1, 6))
    K[0, [0, 1]] = 1.0
    plain = losses(View(A, B, num_nodes=3), [0, 1, 2], EveryStep(2))
    for make in (np.asarray, sp.csr_array, aslinearoperator):
        known = losses(View(A, B, num_nodes=3, known_combinations=make(K)), [0, 1, 2], EveryStep(2))
        assert known[:2] == [math.inf, math.inf]  # a record that moves K G is not covered by the reduction
        assert known[2] == plain[2]
    # a record that takes part in step 1 only does not move K G
    later = losses(View(A, B, num_nodes=3, known_combinations=K), [0, 1, 2], Explicit([[1]], 2))
    assert later == losses(View(A, B, num_nodes=3), [0, 1, 2], Explicit([[1]], 2))
    nothing = View(A, B, num_nodes=3, known_combinations=np.zeros((2, 6)))
    assert losses(nothing, [0, 1, 2], EveryStep(2)) == plain


def test_an_attacker_that_is_the_victim_is_infinite_not_zero():
    assert losses(trust.PNDP([1]).view(DP, 0), [0, 1], EveryStep(2))[1] == math.inf
    options = {x.victim: x for x in sensitivity_by_victim(DP, trust.PNDP([1]), victims=[0, 1])}
    assert options[1].sensitivity_squared == options[1].adaptive_sensitivity_squared == math.inf
    assert "one of the attackers" in options[1].non_adaptive_sensitivity.why
    assert options[0].sensitivity_squared < math.inf


@given(30, seed=st.integers(0, 999), node=st.integers(0, 2))
def test_known_gradients_of_others_change_nothing(seed, node):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((2, 4, 6))
    known = np.zeros((2, 3), dtype=bool)
    known[:, node] = True
    others = [u for u in range(3) if u != node]
    assert losses(View(A, B, num_nodes=3, known_gradients=known), others, EveryStep(2)) == losses(
        View(A, B, num_nodes=3), others, EveryStep(2)
    )


def test_the_same_attackers_with_every_message_seen_see_no_less():
    for model in (trust.PNDP([0]), trust.AnyReceiver(), trust.Coalitions(2), trust.Central()):
        seen, received = (
            {loss.victim: loss for loss in sensitivity_by_victim(DP, m)} for m in (model.all_messages(), model)
        )
        assert seen.keys() == received.keys()
        assert all(seen[u].sensitivity_squared >= received[u].sensitivity_squared * (1 - 1e-9) for u in received)
        assert all(loss.adaptive for loss in seen.values())


# ---- A, B and C of a view -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", [trust.Eavesdropper(), trust.Colluding((2,)), trust.PNDP([0]), trust.PNDP([0, 3])])
@pytest.mark.parametrize("build", [algorithms.dp_dsgd, algorithms.anti_pgd, algorithms.decor, algorithms.muffliato])
def test_a_view_shows_its_factorization(build, model):
    """Theorem 5: A = B C without the columns that are known, and X_u = C_u^T B^+ B C_u; so the numbers agree."""
    algorithm = build(PATH, EveryStep(2))
    view = model.view(algorithm, 1, release="none")
    A, B, C = (matrix.dense() for matrix in (view.A, view.B, view.C))
    assert_allclose(B @ C, A, atol=1e-12)
    assert not A[:, view.known_gradients.ravel()].any()
    assert not B[:, view.knowledge.known_noise.ravel()].any()
    unknown = ~view.known_gradients.ravel()
    assert_allclose(A[:, unknown], view.dense_gradients_by_time()[:, unknown])
    worst = max(loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, model, release="none"))
    assert general_sensitivity(C, B, EveryStep(2), num_nodes=4).squared == pytest.approx(worst, rel=1e-6)


def test_node_local_noise_has_its_encoder_without_the_attacker():
    encoder = np.array([[1.0, 0.0], [0.5, 1.0]])
    algorithm = algorithms.mf_dsgd(PATH, EveryStep(2), encoder)
    C = trust.PNDP([0]).view(algorithm, 1, release="none").C
    assert_allclose(C.dense(), np.kron(encoder, np.diag([0.0, 1, 1, 1])), atol=1e-12)
    assert C.blocks[1] == (4, 4)
    assert_allclose(trust.Eavesdropper().view(algorithm, 1).C.dense(), algorithm.workload().C.dense())


def test_no_encoder_where_a_gradient_shows_without_noise():
    with_own = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2), self_messages=True)
    with pytest.raises(UnsupportedMechanism, match=r"no C gives A = B C here.*without noise, so the loss"):
        trust.Eavesdropper().view(with_own, 1).C  # noqa: B018
    with pytest.raises(UnsupportedMechanism, match="no C gives"):
        View(np.eye(2), np.zeros((2, 0))).C  # noqa: B018
    bare = View([[1, 2], [2, 4]], [[1, 0], [2, 0]], num_nodes=2, known_gradients=[False, True])
    assert bare.C.dense().tolist() == [[1, 0], [0, 0]]


# ---- sizes -----------------------------------------------------------------------------------------------------------
def algorithm(nodes):
    ring = gossip.metropolis_hastings(f"ring:n={nodes}")
    return algorithms.dp_dsgd(Dynamics(ring), Cyclic(epochs=2, period=2))


def test_all_messages_of_many_nodes_are_accounted_without_their_view():
    view = trust.LDP().view(algorithm(2000))
    assert len(set(map(id, view_grams(view, range(2000))))) == 1
    assert not {"gradients", "noise"} & vars(view).keys()
    masks = (view.knowledge.seen, view.knowledge.known_gradients, view.knowledge.known_noise)
    assert [mask.strides[0] for mask in masks] == [0, 0, 0]  # the same at all times, kept once


@pytest.mark.parametrize("release", ["none", "average", "all"])
def test_a_view_counts_the_rows_that_it_makes(release):
    rng, six = np.random.default_rng(0), algorithm(6)
    for combination in (None, six.rounds[0].message_from_state[:2]):
        seen = rng.random((len(six.rounds), six.messages_per_round)) < 0.5
        knowledge = Knowledge.from_masks(six, seen=seen, combination=combination)
        view = AlgorithmView(six, knowledge, release=release, attacker="somebody")
        assert view.num_rows == view.gradients.shape[0] == view.noise.shape[0] > 0


RING = gossip.metropolis_hastings("ring:n=6")
MODELS = ("last+1", "average:2", "average:4+2", "exponential:1.5")


def built(name="dp-dsgd", W=RING, epochs=2, period=2, **dynamics) -> LinearAlgorithm:
    return algorithms.build(name, Dynamics(W, **dynamics), Cyclic(epochs, period))


def over_nodes(algorithm):
    further = algorithm.released_by_gossip
    return np.eye(algorithm.num_nodes) if further is None else further.toarray()


def test_more_models_than_there_are_are_refused():
    refuses("averages the last 5 of 4 models", lambda: built().releasing("average:5"))


@given(
    60, built=linear_algorithms((*MEMORY_NAMES, "dp-dsgd", "mf-shared", "muffliato"), max_epochs=2, varying=False),
    model=st.sampled_from(["last", "average:1", "exponential:2"]), rounds=st.integers(0, 2), seed=st.integers(0, 99)
)  # fmt: skip
def test_what_the_executor_releases_is_what_the_operators_say_and_a_mean_of_its_models(built, model, rounds, seed):
    algorithm = built.releasing(ReleasedModel(model, rounds))
    T, n, rng = built.num_steps, built.num_nodes, np.random.default_rng(seed)
    G, Z = rng.standard_normal((T * n, 2)), rng.standard_normal((built.noise.shape[1], 2))
    executor = Executor(algorithm, dtype=torch.float64)
    state, releasing = executor.initial_state(torch.zeros(n, 2, dtype=torch.float64)), Releasing(executor, 2)
    noise, models = (built.noise @ Z).reshape(T, -1, 2), []
    for t in range(T):
        _, state = executor.step(t, state, torch.as_tensor(G[t * n : (t + 1) * n]), torch.as_tensor(noise[t]))
        releasing.after(t, state)
        models.append(executor.models(state).numpy())
    mean = over_nodes(algorithm) @ np.tensordot(algorithm.released.weights_by_step(T), np.stack(models), 1)
    assert_allclose(releasing.models(state).numpy(), mean, rtol=1e-10, atol=1e-10)
    operators = algorithm.released_from_gradients @ G + algorithm.released_from_injected_noise @ (built.noise @ Z)
    assert_allclose(over_nodes(algorithm) @ operators, mean, rtol=1e-9, atol=1e-9)


def test_a_factorization_for_the_average_has_less_noise_in_it_and_never_less_than_its_bound():
    dynamics, scheme, weights = Dynamics(RING), Cyclic(4, 4), ErrorWeights("released:average:8")
    chosen = algorithms.mafalda(dynamics, scheme, weights=weights)
    usual = algorithms.mafalda(dynamics, scheme)
    error, other = (noise_error(algorithm, weights=weights).value for algorithm in (chosen, usual))
    assert error < 0.98 * other
    assert chosen.factorization.lower_bound <= error * (1 + 1e-9) <= chosen.factorization.lower_bound * (1 + 2e-4)
    named = algorithms.build("mafalda@released:average:8", dynamics, scheme)
    assert_array_equal(named.factorization.encoder, chosen.factorization.encoder)


# ---- privacy ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seen_by", [trust.LDP(), trust.Eavesdropper(), trust.Coalitions(1)])
def test_where_every_message_is_seen_what_is_released_costs_nothing(model, seen_by):
    algorithm = built("mafalda")
    usual = sensitivity_by_victim(algorithm, seen_by)
    averaged = sensitivity_by_victim(algorithm.releasing(model), seen_by)
    assert [loss.adaptive_sensitivity_squared for loss in averaged] == [x.adaptive_sensitivity_squared for x in usual]
    assert {loss.release for loss in averaged} == {"not applicable"}
    assert averaged[0].fingerprint != usual[0].fingerprint


@pytest.mark.parametrize("hidden", [trust.PNDP([0]), trust.ReleasedOnly(), trust.AnyReceiver()])
def test_where_messages_are_hidden_it_is_a_release_that_must_be_admitted(hidden):
    algorithm = built(period=3).releasing("average:2")
    refuses("release must be average or all where", sensitivity_by_victim, algorithm, hidden, release="none")
    unsupported("gossiped after", lambda: sensitivity_by_victim(built(period=3).releasing("average:2+1"), hidden))
    without = sensitivity_by_victim(built(period=3), hidden, release="none")
    for bare, loss in zip(without, sensitivity_by_victim(algorithm, hidden), strict=True):
        assert loss.release == "all"
        assert loss.sensitivity_squared >= bare.sensitivity_squared * (1 - 1e-9)
    assert (
        max(x.sensitivity_squared for x in sensitivity_by_victim(algorithm, hidden)) > without[-1].sensitivity_squared
    )


def test_the_mean_of_many_models_is_not_taken_for_the_last_one():
    """One seen node, two steps: the mean is an own combination of noise; by hand with the dense map."""
    W = gossip.metropolis_hastings("path:n=2")
    algorithm = algorithms.dp_dsgd(Dynamics(W), Cyclic(1, 2)).releasing("average:2")
    (loss, _) = sensitivity_by_victim(algorithm, trust.ReleasedOnly())
    M = -np.kron([[1.0, 0.5]], W.dense())  # theta_1 = -W x_0, theta_2 = -W (W x_0 + x_1), W W = W
    X = np.linalg.pinv(M) @ M
    assert_allclose(loss.sensitivity_squared, max(X[0, 0], X[2, 2]), rtol=1e-9)


def test_guarantees_say_what_is_released_and_files_keep_it(tmp_path):
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    algorithm = built(period=3).releasing("average:2")
    calibrated = calibrate(algorithm, Privacy(trust.PNDP([0]), **options), mu=1.0)
    assert "each node releases average:2 of its models" in str(calibrated.guarantee)
    again = Mechanism.load(calibrated.save(tmp_path / "made.npz"))
    assert again.algorithm.released == ReleasedModel("average:2")
    assert (
        again.content_hash
        == calibrated.content_hash
        != calibrate(built(period=3), Privacy(trust.PNDP([0]), **options), mu=1.0).content_hash
    )
    seen = calibrate(algorithm, Privacy(trust.LDP(), **options), mu=1.0)
    assert "releases" not in str(seen.guarantee)


def test_models_that_no_message_shows_are_a_release_even_where_every_message_is_seen():
    algorithm = algorithms.build(
        "local-steps", Dynamics(RING), Cyclic(4, 1), steps=2
    )  # the last model follows, others do not
    assert {loss.release for loss in sensitivity_by_victim(algorithm, trust.Eavesdropper(), victims=[0])} == {
        "not applicable"
    }
    assert {
        loss.release
        for loss in sensitivity_by_victim(algorithm.releasing("average:2"), trust.Eavesdropper(), victims=[0])
    } == {"all"}
    with pytest.raises(InvalidInput, match="release must be average or all"):
        sensitivity_by_victim(algorithm.releasing("average:2"), trust.Eavesdropper(), victims=[0], release="none")

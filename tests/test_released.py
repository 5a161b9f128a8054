"""Released models: a linear map of the trajectory in view, error and training, and what is refused of it."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import given, refuses, st, unsupported

from mfdl import Cyclic, Dynamics, ErrorWeights, InvalidInput, Mechanism, Privacy, algorithms, calibrate, gossip, trust
from mfdl.algorithms import LinearAlgorithm, noise_error
from mfdl.privacy import sensitivity_by_victim
from mfdl.released import ReleasedModel
from mfdl.testing import MEMORY_NAMES, linear_algorithms
from mfdl.training.executor import Executor, Releasing

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
    model=st.sampled_from(["last", "average:1", "exponential:2"]), rounds=st.integers(0, 2), seed=st.integers(0, 99),
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
    mean = over_nodes(algorithm) @ np.tensordot(algorithm.released.of_steps(T), np.stack(models), 1)
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

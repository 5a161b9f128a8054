"""The executor against the operators that were accounted: same G and Z, same messages and models."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, given, st

from mfdl import Cyclic, Dynamics, NoiseKey, gossip
from mfdl.testing import ALL_NAMES, NAMES, build_algorithm, linear_algorithms
from mfdl.training import executor
from mfdl.training.executor import Executor
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.training.streams import noise_stream

torch.set_num_threads(1)
PART = Cyclic(epochs=2, period=3)
STAR, RING = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
SEQUENCE = gossip.sequence([STAR, RING, gossip.metropolis_hastings("complete:n=4"), STAR])
ALONE = gossip.from_array(np.eye(1))
DIM = 3
CLOSE = {"rtol": 1e-10, "atol": 1e-10}  # sums of about a hundred float64 products


def run(algorithm, models, gradients, noise, **options):
    """Messages, models at which gradients were taken, and final models."""
    ex = Executor(algorithm, dtype=torch.float64, **options)
    state, messages, before = ex.initial_state(torch.as_tensor(models)), [], []
    for t in range(algorithm.num_steps):
        before.append(ex.models(state).numpy())
        sent, state = ex.step(t, state, torch.tensor(gradients[t]), torch.tensor(noise[t]))
        messages.append(sent.numpy())
    return np.concatenate(messages), np.concatenate(before), ex.models(state).numpy()


def check(algorithm, seed=0):
    T, n = algorithm.num_steps, algorithm.num_nodes
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((T, n, DIM))
    G = gradients.reshape(T * n, DIM)
    key, nu = NoiseKey.from_seed(seed), 1.3
    stream = noise_stream(algorithm.noise, nu, key, DIM)
    noise = [stream.step(t) for t in range(T)]
    Z = nu * base_columns(algorithm.noise, HolderKeys.simulated(key)).block(np.arange(T), DIM).reshape(-1, DIM)
    messages, before, final = run(algorithm, np.zeros((n, DIM)), gradients, noise)
    assert_allclose(messages, algorithm.messages_from_gradients @ G + algorithm.messages_from_noise @ Z, **CLOSE)
    assert_allclose(before, algorithm.models_from_gradients() @ G + algorithm.models_from_noise() @ Z, **CLOSE)
    assert_allclose(
        final, algorithm.models_from_gradients(final=True) @ G + algorithm.models_from_noise(final=True) @ Z, **CLOSE
    )
    if not algorithm.is_plain or len(algorithm.rounds) > T:
        return
    # Start models enter as W_{t-1} ... W_0 theta_0, whatever the gradients and the noise.
    start = rng.standard_normal((n, DIM))
    moved, moved_before, moved_final = run(algorithm, start, gradients, noise)
    carried = [start]
    for t in range(T):
        carried.append(algorithm.dynamics.gossip.at(t).dense() @ carried[-1])
    assert_allclose(moved - messages, np.concatenate(carried[:T]), **CLOSE)
    assert_allclose(moved_before - before, np.concatenate(carried[:T]), **CLOSE)
    assert_allclose(moved_final - final, carried[T], **CLOSE)


def force(monkeypatch, path):
    monkeypatch.setattr(executor, "DENSE_ENTRIES", {"dense": 10**6, "sparse": 0}[path])


@pytest.mark.parametrize("name", NAMES)
def test_the_executor_is_the_operators(name, monkeypatch):
    for W, path in ((STAR, "dense"), (SEQUENCE, "sparse")):
        force(monkeypatch, path)
        algorithm = build_algorithm(name, Dynamics(W, 0.3), PART)
        check(algorithm)
        check(algorithm.with_divisors([1, 2, 3, 5]))


@given(
    50, algorithm=linear_algorithms(ALL_NAMES, max_epochs=2), sparse=st.booleans(), seed=st.integers(0, 99),
    data=st.data(),
)  # fmt: skip
def test_it_is_for_every_algorithm_on_any_gossip(algorithm, sparse, seed, data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=algorithm.num_nodes, max_size=algorithm.num_nodes))
    with pytest.MonkeyPatch.context() as patch:
        force(patch, "sparse" if sparse else "dense")
        check(algorithm, seed)
        check(algorithm.with_divisors(sizes), seed)


def test_a_node_alone():
    check(build_algorithm("mf-shared", Dynamics(ALONE, 0.3), PART))
    check(build_algorithm("anti-pgd", Dynamics(ALONE, 1.0), Cyclic(1, 1)))


def test_maps_take_their_cheapest_form(monkeypatch):
    algorithm = build_algorithm("dp-dsgd", Dynamics(STAR, 0.3), PART)
    first = Executor(algorithm).rounds_of_step[0][0]
    assert (first.message_from_state.kind, first.message_from_gradient.kind) == ("scale", "scale")
    assert (first.state_from_message.kind, first.state_from_state.kind) == ("matrix", "zero")
    assert first.state_from_message.data.layout == torch.strided
    assert Executor(algorithm.with_divisors([1, 2, 3, 4])).rounds_of_step[0][0].message_from_noise.kind == "diagonal"
    force(monkeypatch, "sparse")
    assert Executor(algorithm).rounds_of_step[0][0].state_from_message.data.layout == torch.sparse_csr
    assert len({id(r) for (r,) in Executor(algorithm).rounds_of_step}) == 1  # one per distinct round


@pytest.mark.parametrize("path", ["dense", "sparse"])
def test_every_map_of_a_round_is_applied(path, monkeypatch):
    force(monkeypatch, path)
    base = build_algorithm("mf-shared", Dynamics(STAR, 0.3), PART)
    n, messages, states = 4, 5, 7
    rng = np.random.default_rng(4)

    def random_map(rows, columns):
        return sp.csr_array(rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.6) / 3)

    rounds = tuple(
        dataclasses.replace(
            base.rounds[0], receivers=None, message_from_state=random_map(messages, states),
            message_from_gradient=random_map(messages, n), message_from_noise=random_map(messages, n),
            state_from_message=random_map(states, messages), state_from_state=random_map(states, states),
            state_from_gradient=random_map(states, n), state_from_noise=random_map(states, n),
        )
        for _ in range(6)
    )  # fmt: skip
    selection = sp.csr_array(np.eye(n, states))
    algorithm = dataclasses.replace(
        base, rounds=rounds, model_from_state=selection, message_sender=[0, 1, 2, 3, 3], transmitted=np.ones(5, bool)
    ).with_divisors([1, 2, 3, 5])
    gradients, noise = rng.standard_normal((2, 6, n, DIM))
    sent, before, final = run(algorithm, np.zeros((n, DIM)), gradients, noise)
    G, E = gradients.reshape(-1, DIM), noise.reshape(-1, DIM)
    Z = (base.noise.encoder.array @ noise.reshape(6, -1)).reshape(-1, DIM)  # N Z = E
    assert_allclose(sent, algorithm.messages_from_gradients @ G + algorithm.messages_from_injected_noise @ E, **CLOSE)
    assert_allclose(sent, algorithm.messages_from_gradients @ G + algorithm.messages_from_noise @ Z, **CLOSE)
    assert_allclose(before, algorithm.models_from_gradients() @ G + algorithm.models_from_noise() @ Z, **CLOSE)
    assert_allclose(
        final, algorithm.models_from_gradients(final=True) @ G + algorithm.models_from_noise(final=True) @ Z, **CLOSE
    )
    models = algorithm.models_from_gradients
    for operator in (algorithm.messages_from_gradients, models(), models(final=True)):
        assert_allclose(operator.rmatmat(np.eye(operator.shape[0])), operator.to_dense().T, **CLOSE)


def test_a_step_leaves_its_inputs_alone():
    algorithm = build_algorithm("mf-shared", Dynamics(STAR, 1.0), PART)
    ex = Executor(algorithm, dtype=torch.float64)
    inputs = [torch.randn(4, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    copies = [x.clone() for x in inputs]
    state = ex.initial_state(inputs[0])
    ex.step(0, state, inputs[1], inputs[2])
    assert all(torch.equal(x, c) for x, c in zip(inputs, copies, strict=True))


ON_GRADIENTS = [name for name in ALL_NAMES if name not in ("none", "zip-dl")]


@given(40, algorithm=linear_algorithms(ON_GRADIENTS, max_epochs=2, max_period=2), seed=st.integers(0, 2**16))
def test_in_float32_a_step_knows_its_gradients_only_through_their_sum_with_the_noise(algorithm, seed):
    rng = np.random.default_rng(seed)
    ex = Executor(algorithm, dtype=torch.float32)
    n, slots = algorithm.num_nodes, algorithm.noise.slots_per_step
    assert ex.noise_on_gradients

    def eighths(size):  # sums of these are exact
        return torch.tensor(rng.integers(-64, 64, size) / 8, dtype=torch.float32)

    state = ex.initial_state(torch.tensor(1e6 * rng.standard_normal((n, DIM)), dtype=torch.float32))
    for t in range(algorithm.num_steps):
        gradients, noise, moved = eighths((n, DIM)), eighths((slots, DIM)), eighths((n, DIM))
        sent, after = ex.step(t, state, gradients, noise)
        hidden, same = ex.step(t, state, gradients + moved, noise - moved)
        assert torch.equal(sent, hidden)
        assert torch.equal(after, same)
        state = after


def test_a_small_step_of_large_models_moves_messages_by_no_more_than_the_gradient_in_float32():
    """Rate 1e-4, models of size 1, gradients of norm .01 in 20,000 coordinates.

    The gradient moves g + e by d; rounding state + gradient first would have moved the message by 2.8 rate ||d||.
    """
    rate, dim, clip = 1e-4, 20_000, 0.01
    algorithm = build_algorithm("dp-dsgd", dynamics_on("complete:n=2", rate), Cyclic(1, 1))
    ex, rng = Executor(algorithm, dtype=torch.float32), np.random.default_rng(0)

    def normal(size, scale):
        return torch.tensor(scale * rng.standard_normal(size), dtype=torch.float32)

    state, base = ex.initial_state(normal((2, dim), 1.0)), normal((2, dim), clip)
    record = normal((2, dim), clip / math.sqrt(dim))
    record[1] = 0
    still = torch.zeros(2, dim)
    plain = (ex.step(0, state, base + record, still)[0] - ex.step(0, state, base, still)[0]).double().norm()
    assert plain > 2 * rate * clip  # without noise the grid of the state is all there is
    shifts = []
    for _ in range(200):
        noise = normal((2, dim), clip)
        moved = ex.step(0, state, base + record, noise)[0] - ex.step(0, state, base, noise)[0]
        shifts.append(moved.double()[0] @ -record.double()[0] / record.double()[0].norm())
    assert abs(float(np.mean(shifts)) / (rate * clip) - 1) < 0.1


def test_noise_much_larger_than_a_gradient_is_rounded_only_together_with_it():
    """Shared noise of 1e6 beside gradients of 0.01: in float32 its grid is 0.06, to which g alone would be rounded."""
    algorithm = build_algorithm("dp-dsgd", dynamics_on("complete:n=2", 1.0), Cyclic(1, 1))
    ex, rng = Executor(algorithm, dtype=torch.float32), np.random.default_rng(0)
    gradients = torch.tensor(0.01 * rng.standard_normal((2, 1000)), dtype=torch.float32)
    noise = torch.tensor(1e6 * rng.standard_normal((2, 1000)))
    sent, _ = ex.step(0, ex.initial_state(torch.zeros(2, 1000)), gradients, noise)
    assert torch.equal(sent, -(gradients.double() + noise).float())


def test_noise_on_messages_is_added_in_float64_and_rounded_last():
    algorithm = build_algorithm("zip-dl", Dynamics(RING, 1e-4), Cyclic(2, 1))
    ex, exact = Executor(algorithm, dtype=torch.float32), Executor(algorithm, dtype=torch.float64)
    assert not ex.noise_on_gradients
    assert ex.state_dtype == torch.float64
    rng = np.random.default_rng(0)
    models = torch.tensor(rng.standard_normal((4, 50)), dtype=torch.float32)
    state, wanted = ex.initial_state(models), exact.initial_state(models.double())
    gradients = torch.tensor(rng.standard_normal((4, 50)), dtype=torch.float32)
    noise = torch.tensor(rng.standard_normal((algorithm.noise.slots_per_step, 50)), dtype=torch.float32)
    sent, _ = ex.step(0, state, gradients, noise)
    truth, _ = exact.step(0, wanted, gradients.double(), noise.double())
    assert sent.dtype == torch.float32
    assert torch.equal(sent, truth.float())
    assert ex.models(state).dtype == torch.float32

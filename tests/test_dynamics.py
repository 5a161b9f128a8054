"""Dynamics, error weights and schedules: where step sizes live, and which losses they change."""

import dataclasses

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from vocabulary import dynamics_on, each, given, refuses, st

from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.algorithms import noise_error
from mfdl.algorithms.gossip_sgd import decentralized
from mfdl.commands.account import AccountConfig, run_account
from mfdl.commands.audit import AuditConfig
from mfdl.dynamics import MAX_RATE_RATIO, schedule
from mfdl.privacy import sensitivity_by_victim
from mfdl.privacy.forms import view_grams
from mfdl.privacy.victim_sensitivity import is_adaptive
from mfdl.runs.cells import Plan
from mfdl.runs.experiment import Experiment
from mfdl.runs.running import replay_config
from mfdl.testing import gossip_matrices, gossip_sequences, largest_signed_sum
from mfdl.testing.oracles import clear_rank, gossip_messages, local_noising, node_columns, pinv_gram, received
from mfdl.testing.strategies import random_encoder
from mfdl.testing.strategies.graphs import polynomials
from mfdl.training.executor import Executor
from mfdl.training.replay import replays

RING = gossip.metropolis_hastings("ring:n=5")


def test_learning_rate_is_constant_and_one_by_default():
    assert_array_equal(Dynamics(RING).learning_rates(3), np.ones(3))
    assert_array_equal(Dynamics(RING, 0.25).learning_rates(2), [0.25, 0.25])
    assert Dynamics(RING, 0.25).num_nodes == 5


@each(
    "options, message",
    *(({"learning_rate": bad}, "must be a finite number > 0") for bad in (0, -0.1, np.inf, np.nan, "0.1", True, None)),
    ({"learning_rate": []}, "got an empty schedule"),
    ({"learning_rate": [1.0, 0.0]}, r"must be a finite number > 0 at every step, got 0.0 at 1"),
    ({"learning_rate": [1.0, -1.0, 0.5]}, r"got -1.0 at 1"),
    ({"learning_rate": [1.0, np.inf]}, "learning_rate must be finite, got inf"),
    ({"learning_rate": [[1.0, 2.0]]}, "must have 1 dimensions"),
    ({"learning_rate": [1.0, [2.0]]}, "must be a numeric array"),
    ({"learning_rate": [1.0, 0.9e-6]}, "must not span more than a factor 1e[+]06, got 9e-07 to 1"),
    *(({"gossip_rounds": bad}, "gossip_rounds must be an integer >= 1") for bad in (0, -1, 1.5, True)),
    ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
    ({"momentum": -0.1}, "momentum must be a finite number >= 0"),
    ({"weight_decay": -1}, "weight_decay must be a finite number >= 0"),
    ({"learning_rate": 0.5, "weight_decay": 2.0}, "must be below 1, got 2"),
)
def test_what_is_no_dynamics_is_refused(options, message):
    refuses(message, Dynamics, RING, **options)


def test_a_schedule_is_an_own_read_only_copy():
    given_rates = np.array([1.0, 0.5, 0.25])
    dynamics = Dynamics(RING, given_rates)
    given_rates[0] = 7.0
    assert_array_equal(dynamics.learning_rates(3), [1.0, 0.5, 0.25])
    assert_array_equal(dynamics.relative_rates(3), [1.0, 0.5, 0.25])
    assert_array_equal(Dynamics(RING, (0.5, 1)).relative_rates(2), [1.0, 2.0])
    assert_array_equal(Dynamics(RING, 0.3).relative_rates(2), [1.0, 1.0])
    with pytest.raises(ValueError, match="read-only"):
        dynamics.learning_rate[0] = 7.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        dynamics.learning_rate = 2.0
    dynamics.learning_rates(3)[0] = 7.0
    assert dynamics.learning_rates(3)[0] == 1.0


def test_a_schedule_serves_its_own_number_of_steps_only():
    dynamics = Dynamics(RING, [1.0, 0.5])
    for steps in (1, 3):
        refuses(f"one for each of {steps} steps, got a schedule of 2; give as many", dynamics.learning_rates, steps)
    refuses("one for each of 4 steps", lambda: algorithms.dp_dsgd(dynamics, Cyclic(2, 2)))


def test_step_weights_apply_the_first_round_first():
    first, second = gossip.uniform("star:n=4"), gossip.metropolis_hastings("ring:n=4")
    dynamics = Dynamics(gossip.sequence([first, second, second]), gossip_rounds=2)
    assert_allclose(dynamics.step_weights(0).toarray(), second.dense() @ first.dense())
    assert_allclose(dynamics.step_weights(1).toarray(), first.dense() @ second.dense())


# A schedule in training and in accounting
@st.composite
def scheduled(draw):
    """(algorithm, encoders, messages <- injected sums, final models <- injected sums), the last three by hand."""
    W = draw(st.one_of(gossip_matrices(min_nodes=2, max_nodes=4), gossip_sequences(min_nodes=2, max_nodes=4)))
    W = W if W.is_constant else gossip.sequence(W.matrices)
    T, n, K = draw(st.integers(1, 3)), W.num_nodes, draw(st.sampled_from([1, 1, 2]))
    rates = draw(st.lists(st.sampled_from([0.01, 0.3, 1.0, 2.0]), min_size=T, max_size=T))
    dynamics, part = Dynamics(W, rates, gossip_rounds=K, polynomial=draw(polynomials(W))), Cyclic(1, T)
    encoders = np.stack([np.eye(T)] * n)
    if draw(st.booleans()):
        algorithm = algorithms.dp_dsgd(dynamics, part)
    else:
        encoders = random_encoder(np.random.default_rng(draw(st.integers(0, 99))), T, n)
        algorithm = algorithms.mf_dsgd(dynamics, part, encoders)
    sent, final = gossip_messages(
        W, T, gossip_rounds=K, shifts=dynamics.shifts
    )  # at rate 1; column (s, u) belongs to step s
    return algorithm, encoders, sent * np.repeat(rates, n), final * np.repeat(rates, n)


@given(40, case=scheduled(), seed=st.integers(0, 99))
def test_the_executor_takes_the_steps_of_the_schedule(case, seed):
    algorithm, _, sent, final = case
    T, n = algorithm.num_steps, algorithm.num_nodes
    G, E = np.random.default_rng(seed).standard_normal((2, T, n, 2))
    executor = Executor(algorithm, dtype=torch.float64)
    state, messages = executor.initial_state(torch.zeros(n, 2, dtype=torch.float64)), []
    for t in range(T):
        out, state = executor.step(t, state, torch.from_numpy(G[t]), torch.from_numpy(E[t]))
        messages.append(out.numpy())
    injected = (G + E).reshape(T * n, 2)
    assert_allclose(np.concatenate(messages), sent @ injected, rtol=1e-12, atol=1e-12)
    assert_allclose(executor.models(state).numpy(), final @ injected, rtol=1e-12, atol=1e-12)


@given(100, case=scheduled(), release=st.sampled_from(["none", "all"]))
def test_a_schedule_scales_the_columns_of_a_view_that_hides_messages(case, release):
    algorithm, encoders, sent, final = case
    n, attacker = algorithm.num_nodes, 0
    seen = received(algorithm.dynamics.gossip, len(algorithm.rounds), [attacker]).ravel()
    A = np.concatenate([sent[seen], final]) if release == "all" else sent[seen]
    B = A @ local_noising(encoders)
    B[:, attacker::n] = 0.0
    if not clear_rank(B, low=1e-13, high=1e-4):
        return
    victims = range(1, n)
    for u, gram in zip(
        victims, view_grams(trust.PNDP([attacker]).view(algorithm, release=release), victims), strict=True
    ):
        X, outside = pinv_gram(node_columns(A, u, n), B)
        assert_array_equal(gram.leaks, outside)
        if gram.leaks.any() or np.isinf(gram.inflation):
            continue
        size = np.abs(X).max(initial=1e-3)
        # never under-reported, in the positive semidefinite order and beyond the oracle's own rounding
        excess = np.linalg.eigvalsh(X - gram.inflation * gram.matrix)[-1]
        assert excess <= gram.inflation * np.abs(gram.entry_error).sum(axis=1).max() + 1e-9 * size
        if not gram.upper:
            # released models: their share is reported a little high, by what rounding may hide at rates 200 apart
            closeness = 1e-5 if release == "none" else 1e-2
            assert_allclose(gram.matrix, X, rtol=closeness, atol=closeness * size)


@given(60, W=gossip_matrices(min_nodes=2, max_nodes=4), seed=st.integers(0, 2**16))
def test_no_schedule_makes_hidden_messages_look_adaptive(W, seed):
    """Whether models can be computed from seen messages does not depend on step sizes; small ones are not rounding."""
    T, n, rng = 3, W.num_nodes, np.random.default_rng(seed)
    model = trust.TrustModel.from_masks(seen=rng.random((T, n)) < 0.7, release="none")
    rates = rng.choice([1.0, 1 / MAX_RATE_RATIO], T)
    constant, varied = (
        is_adaptive(model.view(algorithms.dp_dsgd(Dynamics(W, rate), Cyclic(1, T)))) for rate in (1.0, rates)
    )
    assert constant or not varied


PATH = gossip.metropolis_hastings("path:n=4")
SCHEME, NODES = Cyclic(2, 2), 4
TRIPLES = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]
MODELS = {
    "local": trust.LDP(),
    "eavesdropper": trust.Eavesdropper(),
    "colluding": trust.Colluding([1]),
    "coalitions": trust.Coalitions(2),
}
FALLING = [1.0, 0.3, 0.1, 0.03]


def built(name):
    options = {"groups": TRIPLES, "coalition_size": 1} if name == "kronecker" else {}
    return algorithms.build(name, Dynamics(PATH), SCHEME, **options)


NOISES = {
    name: built(name).noise
    for name in ("dp-dsgd", "anti-pgd", "mafalda-l", "decor", "corn", "kronecker", "per-mode", "joint")
}


def under(name, **dynamics):
    """The noise of a mechanism, unchanged, in other dynamics: it is added to gradients, so it has their step sizes."""
    return decentralized(name, Dynamics(PATH, **dynamics), SCHEME, NOISES[name])


def losses(algorithm, model, **options):
    return [
        (loss.sensitivity_squared, loss.adaptive_sensitivity_squared)
        for loss in sensitivity_by_victim(algorithm, model, **options)
    ]


OTHER_DYNAMICS = (
    {"learning_rate": FALLING}, {"learning_rate": FALLING[::-1]}, {"learning_rate": 0.01}, {"momentum": 0.9},
    {"learning_rate": 0.5, "weight_decay": 0.5}, {"learning_rate": FALLING, "momentum": 0.5, "weight_decay": 0.1},
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NOISES)
def test_where_all_messages_are_seen_step_sizes_momentum_and_decay_change_no_loss(name, model):
    wanted = losses(under(name), MODELS[model])
    assert max(first for first, _ in wanted) > 0.5
    for dynamics in OTHER_DYNAMICS:
        assert_allclose(losses(under(name, **dynamics), MODELS[model]), wanted, rtol=1e-9)


@given(
    25, W=gossip_matrices(min_nodes=2, max_nodes=4, kinds=("symmetric", "general")),
    rates=st.lists(st.sampled_from([1.0, 0.3, 0.1]), min_size=4, max_size=4), momentum=st.sampled_from([0.0, 0.5]),
    decay=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_the_accountant_is_a_view_written_out(W, rates, momentum, decay):
    """Rows from the recursion, one unit injection at a time; the noise is injected where the gradient is."""
    n, T = W.num_nodes, 4
    rows = np.zeros((T, n, T * n))
    theta, buffer = np.zeros((2, n, T * n))
    for r in range(T):
        buffer = momentum * buffer + np.eye(T * n)[r * n : (r + 1) * n]
        rows[r] = (1 - rates[r] * decay) * theta - rates[r] * buffer
        theta = W.dense() @ rows[r]
    A = rows.reshape(T * n, T * n)
    algorithm = algorithms.anti_pgd(Dynamics(W, rates, momentum=momentum, weight_decay=decay), SCHEME)
    N = np.kron(np.linalg.inv(algorithm.noise.column_encoder(0)), np.eye(n))
    for loss in sensitivity_by_victim(algorithm, trust.LDP()):
        X, outside = pinv_gram(node_columns(A, loss.victim, n), A @ N)
        assert not outside.any()
        by_hand = max(largest_signed_sum(X[p][:, p]) for p in SCHEME.patterns())
        # scalar gradients of two steps attain the maximum; cond(B)^2 is about 1e6
        assert_allclose(loss.sensitivity_squared, by_hand, rtol=1e-6)


# ---- where messages are hidden ---------------------------------------------------------------------------
def pairwise(rates, release):
    algorithm = algorithms.dp_dsgd(Dynamics(PATH, rates), SCHEME)
    return sensitivity_by_victim(algorithm, trust.PNDP([0]), victims=[2], release=release)[0]


def test_a_falling_schedule_costs_more_where_messages_are_hidden():
    """An early gradient of node 2 reaches node 0 over node 1, under later noise that a falling schedule makes small.

    A constant rate, whatever its size, is no schedule; a rising one hides more.
    """
    equal, falling, rising = (pairwise(r, "none").sensitivity_squared for r in (np.ones(4), FALLING, FALLING[::-1]))
    assert_allclose(pairwise(0.01, "none").sensitivity_squared, equal, rtol=1e-9)
    assert falling > 1.5 * equal > 1.5 * rising
    assert_allclose(falling / equal, 3.282, rtol=1e-3)
    everything = sensitivity_by_victim(algorithms.dp_dsgd(Dynamics(PATH, FALLING), SCHEME), trust.LDP(), victims=[2])[0]
    assert falling < everything.sensitivity_squared  # what is hidden still hides


def test_a_mechanism_made_for_a_schedule_is_the_best_under_it():
    """Privacy does not depend on the schedule, the best correlation does."""
    dynamics = Dynamics(PATH, FALLING)
    for name in ("mafalda", "kronecker", "per-mode", "joint"):
        algorithm = algorithms.build(name, dynamics, SCHEME)
        constant = algorithms.build(name, Dynamics(PATH), SCHEME)
        moved = decentralized(name, dynamics, SCHEME, constant.noise)
        worst = [max(first for first, _ in losses(mechanism, trust.Eavesdropper())) for mechanism in (algorithm, moved)]
        assert_allclose(worst, 1.0, rtol=1e-6)
        assert noise_error(algorithm).value < 0.7 * noise_error(moved).value


# ---- by name ---------------------------------------------------------------------------------------------
@given(40, first=st.floats(1e-3, 10), scale=st.floats(0.5, 1e4), num_steps=st.integers(1, 50))
def test_named_schedules_are_the_published_formulas(first, scale, num_steps):
    by_hand = {
        "constant": [first for _ in range(num_steps)],
        f"inverse-time:{scale}": [first * scale / (scale + t) for t in range(num_steps)],
        "inverse-sqrt": [first * (t + 1) ** -0.5 for t in range(num_steps)],
        f"step-decay:{int(scale + 1)}:0.1": [first] * int(scale + 1) + [0.1 * first] * num_steps,
    }
    for rule, wanted in by_hand.items():
        rates = Dynamics(PATH, schedule(rule, first, num_steps)).learning_rates(num_steps)
        assert_allclose(rates, wanted[:num_steps], rtol=1e-12)
        assert rates[0] == first


@each(
    "rule, message",
    ("inverse", "unknown learning rate schedule 'inverse'; did you mean 'inverse-"),
    ("inverse-time", "is written inverse-time:T0"), ("inverse-time:0", "T0 must be a finite number > 0, got 0.0"),
    ("inverse-time:soon", "learning rate schedule inverse-time: T0 must be a number, got 'soon'"),
    ("inverse-sqrt:2", "is written inverse-sqrt, got"), ("constant:1", "is written constant, got"),
    ("step-decay:80", "is written step-decay:T0:FACTOR"), ("step-decay:0:0.1", "T0 must be an integer >= 1, got 0"),
    ("step-decay:80:0", "factor must be a finite number > 0, got 0.0"),
)  # fmt: skip
def test_schedules_that_mean_nothing_are_refused_by_every_command(rule, message):
    refuses(message, schedule, rule, 0.1, 5)
    for config in (Experiment, AccountConfig, AuditConfig):
        refuses(message, config, lr_schedule=rule)


def test_a_comparison_trains_with_the_schedule_it_names(tmp_path):
    config = Experiment(
        graph="path:n=4", task="digits", epochs=2, period=3, unit="user", mechanisms=("none",), seeds=1,
        learning_rate=0.6, lr_schedule="inverse-time:2", eval_every=1,
    )  # fmt: skip
    plan = Plan(config)
    (run,) = replays([replay_config(plan.mechanism("none"), plan.task, 0, config)], lambda *_: None)
    instance = plan.task.instance(0, 3)
    models = instance.initial_parameters
    W = torch.tensor(plan.gossip.dense(), dtype=models.dtype)
    for t in range(6):
        models = W @ (models - 0.6 / (1 + t / 2) * instance.clipped_gradients(models, t, 1.0, "user"))
    assert_allclose(run.seeds[0].models, models, atol=1e-5)
    assert_allclose(run.to_pandas().groupby("step")["lr"].first(), [0.6, 0.4, 0.3, 0.24, 0.2, 0.6 / 3.5])
    (tmp_path / "config.toml").write_text('lr-schedule = "inverse-time:2"')
    assert Experiment.load(tmp_path / "config.toml").options()["lr_schedule"] == "inverse-time:2"
    assert "lr_schedule" not in Experiment().options()


def test_an_account_is_of_the_schedule_it_names():
    options = {"graph": "path:n=4", "trust": "pndp", "attackers": "0", "participation": "every-step", "steps": 4}
    for rule, rates in ((None, 1.0), ("inverse-time:0.05", 1 / (1 + np.arange(4) / 0.05))):
        config = AccountConfig(**options, release="none", lr_schedule=rule)
        account = run_account(config, progress=False)
        dynamics = dynamics_on("path:n=4", rates)
        algorithm = algorithms.dp_dsgd(dynamics, EveryStep(4))
        wanted = [
            loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")
        ]
        squared = [victim["sensitivity_squared"] for victim in account.answer["victims"]]
        assert_allclose(sorted(squared), sorted(wanted, key=float)[-len(squared) :], rtol=1e-9)

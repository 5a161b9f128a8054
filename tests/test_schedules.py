"""Public step sizes, momentum and decay: they change no loss where all is seen, and some where messages are hidden."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.algorithms import noise_error
from mfdl.algorithms.gossip_sgd import decentralized
from mfdl.commands.account import AccountConfig
from mfdl.commands.account_losses import run_account
from mfdl.commands.audit import AuditConfig
from mfdl.dynamics import schedule
from mfdl.privacy import sensitivity_by_victim
from mfdl.runs.cell_jobs import replay_config
from mfdl.runs.experiment import Experiment
from mfdl.runs.shared import Plan
from mfdl.testing import gossip_matrices, largest_signed_sum, of_node, pinv_gram
from mfdl.training.replay import replays

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
    {"learning_rate": FALLING},
    {"learning_rate": FALLING[::-1]},
    {"learning_rate": 0.01},
    {"momentum": 0.9},
    {"learning_rate": 0.5, "weight_decay": 0.5},
    {"learning_rate": FALLING, "momentum": 0.5, "weight_decay": 0.1},
)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NOISES)
def test_where_all_messages_are_seen_step_sizes_momentum_and_decay_change_no_loss(name, model):
    wanted = losses(under(name), MODELS[model])
    assert max(first for first, _ in wanted) > 0.5
    for dynamics in OTHER_DYNAMICS:
        assert_allclose(losses(under(name, **dynamics), MODELS[model]), wanted, rtol=1e-9)


@examples(25)
@given(
    W=gossip_matrices(min_nodes=2, max_nodes=4, kinds=("symmetric", "general")),
    rates=st.lists(st.sampled_from([1.0, 0.3, 0.1]), min_size=4, max_size=4),
    momentum=st.sampled_from([0.0, 0.5]),
    decay=st.sampled_from([0.0, 0.5]),
)
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
    N = np.kron(np.linalg.inv(algorithm.noise.encoder_of(0)), np.eye(n))
    for loss in sensitivity_by_victim(algorithm, trust.LDP()):
        X, outside = pinv_gram(of_node(A, loss.victim, n), A @ N)
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


@examples(40)
@given(first=st.floats(1e-3, 10), scale=st.floats(0.5, 1e4), num_steps=st.integers(1, 50))
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


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("inverse", "unknown learning rate schedule 'inverse'; did you mean 'inverse-"),
        ("inverse-time", "is written inverse-time:T0"),
        ("inverse-time:0", "T0 must be a finite number > 0, got 0.0"),
        ("inverse-time:soon", "learning rate schedule inverse-time: T0 must be a number, got 'soon'"),
        ("inverse-sqrt:2", "is written inverse-sqrt, got"),
        ("constant:1", "is written constant, got"),
        ("step-decay:80", "is written step-decay:T0:FACTOR"),
        ("step-decay:0:0.1", "T0 must be an integer >= 1, got 0"),
        ("step-decay:80:0", "factor must be a finite number > 0, got 0.0"),
    ],
)
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
        dynamics = Dynamics(gossip.metropolis_hastings("path:n=4"), rates)
        algorithm = algorithms.dp_dsgd(dynamics, EveryStep(4))
        wanted = [
            loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, trust.PNDP([0]), release="none")
        ]
        squared = [victim["sensitivity_squared"] for victim in account.answer["victims"]]
        assert_allclose(sorted(squared), sorted(wanted, key=float)[-len(squared) :], rtol=1e-9)

"""Clipping norms that fall: the same as clipping to C_t with noise in proportion, at the privacy of one norm."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, slow_means, slow_sums
from vocabulary import each, given, refuses, st

from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, Privacy, algorithms, calibrate, gossip, replay, trust
from mfdl.dynamics import schedule
from mfdl.privacy import sensitivity_by_victim
from mfdl.runs.cell_jobs import replay_config
from mfdl.runs.experiment import Experiment
from mfdl.runs.shared import Plan
from mfdl.testing import elliptope_reference, gossip_matrices, of_node, pinv_gram
from mfdl.training import seed_replay
from mfdl.training.replay import replays

RING, CLIP = gossip.metropolis_hastings("ring:n=4"), 0.05  # small: almost every gradient is clipped
clip_schedules = st.lists(st.sampled_from([1.0, 0.3, 0.1, 1e-3, 7.0]), min_size=4, max_size=4)


def mechanism(rates, unit="record", noise_std=0.5):
    part = Cyclic(2, 2) if unit == "record" else EveryStep(4)
    return calibrate(
        algorithms.dp_dsgd(Dynamics(RING, rates), part),
        Privacy(trust.LDP(), adjacency="replace-one", clip_norm=CLIP, unit=unit),
        noise_std=noise_std,
    )


@given(20, clips=clip_schedules, unit=st.sampled_from(["record", "user"]), seed=st.integers(0, 3))
def test_a_run_is_the_recursion_with_its_clipping_norms_and_noise_written_out(clips, unit, seed):
    """theta <- W (theta - eta_t (clip(g, C c_t) + c_t e_t) / m), every gradient by autograd, one record at a time."""
    eta, c = np.array([0.5, 0.4, 0.3, 0.2]), np.array(clips)
    injected = np.random.default_rng(seed).standard_normal((4, 4, 12)) * 0.01
    task = classes(12)

    class Stream:
        def step(self, t):
            return injected[t]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seed_replay, "noise_stream", lambda *_, slots: Stream())
        run = replay(mechanism(eta * c, unit), task, seeds=[seed], period=2, clip_schedule=clips, dtype=torch.float64)
    instance = task.instance(seed, 2, dtype=torch.float64)
    theta, W = instance.initial_parameters, torch.tensor(RING.dense())
    for t in range(4):
        clipped = (slow_sums if unit == "record" else slow_means)(instance, theta, t, CLIP * c[t])
        sizes = instance.public_batch_sizes[:, None] if unit == "record" else 1.0
        theta = W @ (theta - eta[t] * (clipped + c[t] * torch.tensor(injected[t])) / sizes)
    assert_allclose(run.seeds[0].models, theta, rtol=1e-9, atol=1e-12)


@given(15, W=gossip_matrices(min_nodes=2, max_nodes=4, kinds=("symmetric",)), clips=clip_schedules)
def test_its_privacy_is_that_of_the_view_written_out(W, clips):
    """Gradients of norm c_t and noise of deviation c_t, at rates eta_t; where messages are hidden and where not.

    Gradients are vectors: signs alone may reach less.
    """
    n, T, eta, c = W.num_nodes, 4, np.array([0.5, 0.4, 0.3, 0.2]), np.array(clips)
    A = np.zeros((T, n, T * n))
    theta = np.zeros((n, T * n))
    for t in range(T):
        A[t] = theta - eta[t] * c[t] * np.eye(T * n)[t * n : (t + 1) * n]  # of gradients in units of C c_t
        theta = W.dense() @ A[t]
    algorithm = algorithms.dp_dsgd(Dynamics(W, eta * c), EveryStep(T))
    for model in (trust.LDP(), trust.PNDP([0])):
        for loss in sensitivity_by_victim(algorithm, model, release="none"):
            seen = np.flatnonzero(W.dense()[0]) if model.name == "pndp" else np.arange(n)
            if model.name == "pndp" and loss.victim == 0:
                continue
            rows, noise = A[:, seen].reshape(-1, T * n), A[:, seen].reshape(-1, T * n).copy()
            if model.name == "pndp":
                noise[:, 0::n] = 0  # its own noise is known
            X, outside = pinv_gram(of_node(rows, loss.victim, n), noise)
            if not outside.any() and np.isfinite(loss.sensitivity_squared):
                truth = elliptope_reference(X)  # the program's accuracy below, the library's rounding above
                assert truth * (1 - 1e-6) <= loss.sensitivity_squared <= truth * (1 + 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clips", [[3.0, 1 / 3, 0.1, 0.7], [1.0, 1e-5, 0.9, 1e-3]])
def test_what_noise_is_added_to_is_never_longer_than_the_guarantee_says(clips, dtype, monkeypatch):
    norms = []

    def step(executor, t, state, gradients, noise, rule):
        norms.append(gradients.double().norm(dim=1))
        return executed(executor, t, state, gradients, noise, rule)

    executed = seed_replay.Executor.step
    monkeypatch.setattr(seed_replay.Executor, "step", step)
    for seed in range(3):
        replay(mechanism(0.1, "user", 0.0), classes(), seeds=[seed], clip_schedule=clips, dtype=dtype)
    assert CLIP * (1 - 1e-5) < max(map(max, norms)) <= CLIP


def test_runs_of_different_clips_share_no_noise_and_no_checkpoint(tmp_path):
    options = {"mechanism": mechanism(0.1), "task": classes(), "seeds": [0], "stop_after": 2}
    keys = {replay(**options, clip_schedule=clips).seeds[0].key_id for clips in (None, [1.0, 1, 1, 1], [1.0, 1, 1, 2])}
    assert len(keys) == 3
    replay(**options, clip_schedule=[1.0, 1, 1, 2], checkpoint_folder=tmp_path)
    for other in (None, [1.0, 1, 1, 3]):
        refuses("the checkpoint's", replay, **options, clip_schedule=other, checkpoint_folder=tmp_path)
    whole = replay(**{**options, "stop_after": None}, clip_schedule=[1.0, 1, 1, 2])
    resumed = replay(**{**options, "stop_after": None}, clip_schedule=[1.0, 1, 1, 2], checkpoint_folder=tmp_path)
    assert_array_equal(whole.seeds[0].models, resumed.seeds[0].models)


@each("clips", [], [1.0] * 3, [1.0, 1, 0, 1], [1.0, 1, -1, 1], [1.0, 1, 1e-7, 1], [1, 1, np.nan, 1])
def test_clips_that_mean_nothing_are_refused(clips):
    refuses("clip_schedule must", lambda: replay(mechanism(0.1), classes(), seeds=[0], clip_schedule=clips))


@pytest.mark.parametrize("clips", [[0.5] * 4, [2.0] * 4, [1.0, 1, 1, 0.9]])
def test_a_guarantee_that_rests_on_a_lipschitz_constant_takes_no_clips(clips):
    """The local map is x - (eta / c_t) g, of a gradient clipped elsewhere: a constant for eta says nothing of it."""
    algorithm = algorithms.dp_dsgd(Dynamics(RING, 0.5), EveryStep(4)).with_divisors(np.full(4, 15.0))
    options = {"trust": trust.ReleasedOnly(), "adjacency": "zero-out", "clip_norm": CLIP}
    plain, resting = (calibrate(algorithm, Privacy(lipschitz=L, **options), mu=1.0) for L in (None, 1.0))
    assert (plain.lipschitz, resting.lipschitz) == (None, 1.0)
    arguments = {"task": classes(lipschitz=1.0), "seeds": [0], "eval_every": 4}
    with pytest.raises(InvalidInput, match="clip_schedule must be 1 in every step") as refusal:
        replay(resting, **arguments, clip_schedule=clips)
    for words in (f"got {clips[-1]:g} in step", "leave clip_schedule out", "calibrate without lipschitz"):
        assert words in str(refusal.value)
    replay(resting, **arguments, clip_schedule=[1.0] * 4)
    replay(plain, **arguments, clip_schedule=clips)


def test_a_comparison_scales_rates_and_clips_alike():
    options = {"graph": "ring:n=4", "epochs": 2, "period": 3, "mechanisms": ("dp-dsgd",), "seeds": 1, "mu": 1.0}
    config = Experiment(**options, lr_schedule="inverse-time:9", clip_schedule="inverse-sqrt")
    plan, plain = Plan(config), Plan(Experiment(**options))
    assert_allclose(
        plan.dynamics.learning_rates(6), schedule("inverse-time:9", 0.5, 6) * schedule("inverse-sqrt", 1.0, 6)
    )
    assert_array_equal(config.clips, schedule("inverse-sqrt", 1.0, 6))
    calibrated = plan.mechanism("dp-dsgd")
    assert calibrated.noise_std == plain.mechanism("dp-dsgd").noise_std  # no privacy is lost or won
    by_hand = replay(calibrated, plan.task, seeds=[0], clip_schedule=config.clips).seeds[0]
    (run,) = replays([replay_config(calibrated, plan.task, 0, config)], lambda *_: None)
    assert_array_equal(run.seeds[0].models, by_hand.models)
    assert Experiment(clip_schedule="constant").clips is None
    for wrong in ({"momentum": 0.5}, {"weight_decay": 0.1}):
        refuses("--clip-schedule inverse-sqrt scales", Experiment, clip_schedule="inverse-sqrt", **wrong)

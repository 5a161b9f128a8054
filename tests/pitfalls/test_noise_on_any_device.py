"""Shared noise is one rule in float64 on the CPU, whatever the device, dtype, thread count or global generator."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic
from mfdl.training import replay as replay_module
from mfdl.training import tasks
from mfdl.training.keys import NoiseKey
from mfdl.training.replay import replay
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import node_noise

MADE = calibrate(
    algorithms.decor(Dynamics(gossip.metropolis_hastings("path:n=3"), 0.1), Cyclic(2, 1)),
    trust=trust.SecLDP(),
    adjacency="zero-out",
    clip_norm=0.5,
    mu=1.0,
)
TASK = tasks.least_squares(3, dimension=4)
KEY = NoiseKey.from_entropy()


@pytest.fixture
def injected(monkeypatch):
    """Every step's noise as the executor was given it, on the CPU."""
    seen = []
    make = replay_module.Executor.step

    def keep(self, t, state, gradients, noise):
        seen.append(noise.cpu().numpy())
        return make(self, t, state, gradients, noise)

    monkeypatch.setattr(replay_module.Executor, "step", keep)
    return seen


def expected(run_key, t):
    """What three nodes, each with the secrets it holds, make by themselves."""
    hold = HolderKeys.simulated(run_key)
    return np.concatenate([node_noise(MADE.algorithm.noise, u, hold, MADE.noise_std, t, 4) for u in range(3)])


@pytest.fixture
def run_key(monkeypatch):
    """The key of the last run, as its stream was given it."""
    seen = []
    make = replay_module.noise_stream
    monkeypatch.setattr(
        replay_module, "noise_stream", lambda n, s, key, d, slots: seen.append(key) or make(n, s, key, d)
    )
    return seen


def check(injected, run_key, **how):
    replay(MADE, TASK, seeds=[0], key=KEY, **how)
    assert len(injected) == 2
    for t, given in enumerate(injected):
        assert_array_equal(given, expected(run_key[-1], t))  # in float64 whatever the models are: rounded after the sum
        assert given.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_executor_injects_what_the_nodes_make(dtype, seed, injected, run_key):
    torch.manual_seed(seed)
    check(injected, run_key, dtype=dtype, device="cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cuda_run_takes_the_very_same_noise(dtype, injected, run_key):
    check(injected, run_key, dtype=dtype, device="cuda")


def test_no_run_reads_or_moves_the_global_generators():
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        models.append(replay(MADE, TASK, seeds=[0]).seeds[0].models)
        assert torch.equal(torch.get_rng_state(), before)
    assert_array_equal(*models)


def test_the_number_of_threads_changes_no_bit_of_the_noise(injected):
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            replay(MADE, TASK, seeds=[0])
    finally:
        torch.set_num_threads(threads)
    assert_array_equal(injected[:2], injected[2:])

"""Step T of a mechanism calibrated for T steps does not exist: at every door through which it could be asked for."""

import numpy as np
import pytest
import torch

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.noise_scale import without_noise
from mfdl.participation import Cyclic, EveryStep
from mfdl.training.executor import Executor
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import node_noise, noise_stream

DYN = Dynamics(gossip.metropolis_hastings("path:n=3"), 0.1)
KEY = NoiseKey.from_seed(0)
T = 4
ALGORITHMS = {
    "dp-dsgd": algorithms.dp_dsgd(DYN, EveryStep(T)),
    "anti-pgd": algorithms.anti_pgd(DYN, Cyclic(2, 2)),
    "decor": algorithms.decor(DYN, EveryStep(T)),
    "two rounds": algorithms.dp_dsgd(Dynamics(DYN.gossip, 0.1, gossip_rounds=2), EveryStep(T)),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_neither_noise_nor_a_step_beyond_the_last(algorithm):
    executor, stream = Executor(algorithm, dtype=torch.float64), noise_stream(algorithm.noise, 1.0, KEY, 2)
    state, zero = (make(torch.zeros(3, 2, dtype=torch.float64)) for make in (executor.initial_state, torch.clone))
    executor.step(T - 1, state, zero, zero)
    assert stream.step(T - 1).shape == (3, 2)
    for t in (T, T + 1, -1, 10**6):
        refused = rf"step must lie in \[0, {T}\), got {t}"
        with pytest.raises(InvalidInput, match=f"{refused}: the algorithm was accounted"):
            executor.step(t, state, zero, zero)
        with pytest.raises(InvalidInput, match=f"{refused}.*calibrate a longer one"):
            stream.step(t)
        for node in range(3):
            with pytest.raises(InvalidInput, match=refused):
                node_noise(algorithm.noise, node, HolderKeys.simulated(KEY), 1.0, t, 2)


def test_a_participation_of_more_steps_is_another_mechanism():
    made = without_noise(ALGORITHMS["dp-dsgd"], trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0)
    longer = algorithms.dp_dsgd(DYN, EveryStep(T + 1))
    with pytest.raises(InvalidInput, match="calibrate or account anew"):
        type(made)(longer, made.guarantee)


def test_a_schedule_of_step_sizes_ends_with_the_mechanism():
    rates = Dynamics(DYN.gossip, np.full(T, 0.1))
    with pytest.raises(InvalidInput, match=f"one for each of {T + 1} steps, got a schedule of {T}"):
        algorithms.dp_dsgd(rates, EveryStep(T + 1))

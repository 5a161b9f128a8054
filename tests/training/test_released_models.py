"""What a run releases: summed up on its way, evaluated at its end, kept when it stops."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import regression

from mfdl import Cyclic, Run, algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.training.replay import replay

TASK = regression(30)


@pytest.mark.parametrize("model", ["average:4", "exponential:2+1"])
@pytest.mark.parametrize("stops", [(2, None), (5, 6, None)])
def test_what_is_released_is_the_mean_of_the_models_however_often_a_run_stops(model, stops, tmp_path):
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("star:n=4"), 0.1), Cyclic(3, 2)).releasing(model)
    made = calibrate(one, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0)
    seen = []
    (seed,) = replay(made, TASK, seeds=[0], eval_every=1, on_evaluation=lambda told: seen.append(told.models)).seeds
    mean = np.tensordot(one.released.of_steps(6), np.stack(seen), 1)
    further = one.released_by_gossip
    assert_allclose(seed.models, mean if further is None else further @ mean, rtol=1e-6, atol=1e-7)
    again = TASK.instance(0, 2).evaluate(torch.as_tensor(seed.models, dtype=torch.float32))
    assert_array_equal(seed.released["loss"], again.loss.double().numpy())
    assert seed.final_loss == seed.released["loss"].mean() != seed.last("loss")
    assert seed.final("loss", 1) == seed.last("loss", 1) == seed.loss[-1].mean()
    for stop in stops:
        run = replay(made, TASK, seeds=[0], stop_after=stop, checkpoint_folder=tmp_path)
        assert bool(run.seeds[0].released) == (stop in (6, None))
    assert_array_equal(run.seeds[0].models, seed.models)
    assert_array_equal(run.seeds[0].released["loss"], seed.released["loss"])
    assert_array_equal(Run.load(run.save(tmp_path / "run.npz")).seeds[0].released["loss"], seed.released["loss"])


def test_the_last_models_are_not_told_twice():
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("star:n=4"), 0.1), Cyclic(3, 2))
    made = calibrate(one, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=1.0)
    (seed,) = replay(made, TASK, seeds=[0]).seeds
    assert seed.released == {}
    assert seed.final_loss == seed.last("loss")

"""What a run reports: divergence, final losses, and rows of a table."""

import dataclasses

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, regression

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic
from mfdl.training.replay import replay as train
from mfdl.training.run import final_steps

NODES, STAR, TASK = 4, gossip.uniform("star:n=4"), regression(30)
PART = Cyclic(epochs=3, period=2)


def mechanism(participation=PART, learning_rate=0.1, mu=1.0):
    algorithm = algorithms.dp_dsgd(Dynamics(STAR, learning_rate), participation)
    return calibrate(algorithm, trust=trust.LDP(), adjacency="zero-out", clip_norm=1.0, mu=mu)


@pytest.mark.parametrize("mu", [1e-33, 1e-26])
def test_divergence_is_recorded_and_shown(mu, tmp_path):
    made = mechanism(learning_rate=1e6, mu=mu)
    for stop in (2, None, None):  # at last read back, no step left to run
        run = train(made, TASK, seeds=[0, 1], stop_after=stop, checkpoint_folder=tmp_path)
        assert run.diverged_seeds == [0, 1]
        assert run.final_losses == [None, None]
    assert not np.isfinite(run.seeds[0].loss).all()
    assert run.seeds[0].finished_steps == 6
    healthy = train(mechanism(), TASK, seeds=[0])
    assert healthy.diverged_seeds == []
    assert np.isfinite(healthy.final_losses).all()


def test_the_final_loss_is_the_mean_over_nodes_and_the_last_quarter_of_a_short_run():
    made = mechanism(participation=Cyclic(31, 2))  # 62 steps
    run = train(made, classes(30), seeds=[0], eval_every=4).seeds[0]
    assert run.steps.tolist() == [*range(4, 61, 4), 62]
    late = run.steps >= 48
    assert [final_steps(T) for T in (62, 200, 320)] == [16, 50, 50]  # the last 16 steps are 47 to 62
    assert_allclose(run.final_loss, run.loss[late].mean(), rtol=1e-14)
    assert_allclose(run.final_accuracy, run.accuracy[late].mean(), rtol=1e-14)
    assert run.final_loss != pytest.approx(run.loss.mean(), rel=1e-6)
    early = dataclasses.replace(run, steps=run.steps[:1], loss=run.loss[:1])  # evaluated after 4 of 62 steps
    assert early.final_loss is None


def test_evaluations_change_no_model_and_are_rows_of_a_table():
    models = []
    for every, steps in ((None, [2, 4, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (100, [6])):
        run = train(mechanism(), TASK, seeds=[0], eval_every=every)
        (seed,) = run.seeds
        models.append(seed.models)
        assert_array_equal(models[-1], models[0])
        assert seed.messages is None  # kept only when asked for
        assert seed.steps.tolist() == steps
        assert seed.loss.shape == (len(steps), NODES)
        again = TASK.instance(0, 2).evaluate(torch.as_tensor(seed.models, dtype=torch.float32))
        assert_array_equal(seed.loss[-1], again.loss.numpy())  # float32 models pass through float64 unchanged
        rows = run.rows()
        assert len(rows) == len(steps) * NODES
        row = {"mechanism": "dp-dsgd", "seed": 0, "step": 6, "node": str(STAR.labels[-1])}
        assert rows[-1] == row | {"loss": seed.loss[-1, -1], "accuracy": None}
        assert run.node_steps_per_second > 0

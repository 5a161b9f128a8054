"""Results mark what no guarantee covers, only its owner reads a checkpoint, and stored results are named by content."""

import dataclasses
import json
import stat

import networkx as nx
import numpy as np
import pytest
import torch

from mfdl import Privacy, algorithms, calibrate, gossip, graphs
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.metrics import METRICS, not_private_fields
from mfdl.participation import Cyclic
from mfdl.runs import load_steps
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.runs.store import NOT_PRIVATE
from mfdl.training import checkpoint, tasks
from mfdl.training.keys import NoiseKey
from mfdl.training.replay import replay
from mfdl.training.run import SeedRun
from mfdl.training.tasks import Evaluation
from mfdl.trust import LDP

COVERED = {"models", "messages"}  # as far as the guarantee says who sees which
PUBLIC = {
    "seed",
    "steps",
    "finished_steps",
    "key_id",
    "seeded_noise",
    "generator",
}  # settings and names, no function of data


def test_every_field_of_a_run_is_private_public_or_marked():
    """A field that is added must be put somewhere."""
    fields = {field.name for field in dataclasses.fields(SeedRun)}
    marked = set(not_private_fields(SeedRun))
    first = {"untrained_loss", "untrained_accuracy"}
    assert (
        marked == {"loss", "accuracy", "diverged", "training_seconds", "metrics", "released", "dropped_records"} | first
    )
    assert marked | COVERED | PUBLIC == fields
    assert not marked & (COVERED | PUBLIC)


def test_every_metric_of_an_evaluation_is_marked():
    assert set(not_private_fields(Evaluation)) == {field.name for field in dataclasses.fields(Evaluation)}


def test_a_class_without_marks_has_none():
    @dataclasses.dataclass
    class Plain:
        models: int
        loss: float

    assert not_private_fields(Plain) == ()


@pytest.mark.parametrize("metrics", [(), METRICS])
def test_results_list_everything_they_hold_that_is_not_covered(tmp_path, metrics):
    config = Experiment(graph="ring:n=4", epochs=1, period=2, seeds=1, mechanisms=("none",), metrics=metrics)
    run_comparison(config, tmp_path)
    result = json.loads((tmp_path / "results.json").read_text())
    (run,) = result["runs"]
    columns = set(load_steps(tmp_path / "steps.mfdl")[0].columns())
    labels = {"mechanism", "seed", "step", "node"}
    columns -= {"trust", "mu", "epsilon", "delta", "lr", "graph", "task"}  # what it was run with
    not_private = {*NOT_PRIVATE, *metrics, *(f"final_{name}" for name in metrics)}
    assert set(run) - labels == not_private & set(run)
    assert columns - labels == not_private & columns
    assert set(result["not_private"]) == (set(run) | columns) - labels


def modes(folder):
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_checkpoints_in_a_folder_that_everybody_may_read(tmp_path):
    """A new one, one that replaces it, and one that replaces files which somebody opened to all."""
    tmp_path.chmod(0o755)
    models = {"state": torch.zeros(2)}
    for step in (1, 1, 2):
        checkpoint.save(tmp_path, step=step, models=models, metadata={})
        assert modes(tmp_path) == {0o600}
        for path in tmp_path.iterdir():
            path.chmod(0o644)


RING = gossip.metropolis_hastings("ring:n=4").dense()
LAZY = (RING + np.eye(4)) / 2  # the same graph, another weight rule


def write(path, weights):
    np.savetxt(path, weights, delimiter=",", fmt="%.17g")


@pytest.mark.slow
def test_a_comparison_does_not_go_on_with_other_weights_in_the_same_file(tmp_path):
    write(tmp_path / "W.csv", RING)
    config = Experiment(
        graph="ring:n=4", gossip=str(tmp_path / "W.csv"), epochs=1, period=2, seeds=1, mechanisms=("none",)
    )
    first = run_comparison(config, tmp_path / "out")
    assert run_comparison(config, tmp_path / "out")["config_hash"] == first["config_hash"]
    write(tmp_path / "W.csv", LAZY)
    with pytest.raises(InvalidInput, match=r"holds results\.json of another comparison"):
        run_comparison(config, tmp_path / "out")
    second = run_comparison(config, tmp_path / "out", overwrite=True)
    assert second["config_hash"] != first["config_hash"]
    assert second["runs"][0]["final_test_loss"] != first["runs"][0]["final_test_loss"]


def test_a_run_does_not_go_on_under_weights_of_the_same_name(tmp_path):
    """And shares no noise with it: the hash of the mechanism is part of the noise key."""
    task, key = tasks.least_squares(4, dimension=2), NoiseKey.from_seed(0)
    mechanisms = {}
    for name, weights in (("ring", RING), ("lazy", LAZY)):
        W = gossip.from_array(weights, name="mine")
        algorithm = algorithms.dp_dsgd(Dynamics(W, 0.1), Cyclic(2, 1))
        mechanisms[name] = calibrate(algorithm, Privacy(LDP(), adjacency="zero-out", clip_norm=1.0), noise_std=1.0)
    assert mechanisms["ring"].content_hash != mechanisms["lazy"].content_hash
    ring = replay(mechanisms["ring"], task, seeds=[0], key=key, stop_after=1, checkpoint_folder=tmp_path)
    with pytest.raises(InvalidInput, match="the checkpoint's mechanism_hash is"):
        replay(mechanisms["lazy"], task, seeds=[0], key=key, checkpoint_folder=tmp_path)
    lazy = replay(mechanisms["lazy"], task, seeds=[0], key=key, stop_after=1)
    assert lazy.seeds[0].key_id != ring.seeds[0].key_id


def test_a_graph_and_a_task_are_hashed_by_what_they_hold():
    path, star = nx.path_graph(4), nx.star_graph(3)
    for graph in (path, star):
        graph.graph["name"] = "mine"
    assert graphs.content_hash(path) != graphs.content_hash(star)
    assert graphs.content_hash(path) == graphs.content_hash(nx.path_graph(4))
    task = tasks.least_squares(4, dimension=2)
    assert task.content_hash != tasks.least_squares(4, dimension=2, data_seed=1).content_hash
    moved = task.features.copy()
    moved[0, 0, 0] = np.nextafter(moved[0, 0, 0], np.float32(9))
    assert dataclasses.replace(task, features=moved).content_hash != task.content_hash

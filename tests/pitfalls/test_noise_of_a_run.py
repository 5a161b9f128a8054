"""The noise of a run cannot be guessed and is the same on any device; results mark what no guarantee covers."""

import dataclasses
import json
import secrets
import stat
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from vocabulary import ZERO_OUT, dynamics_on, each, refuses

from mfdl import Cyclic, Dynamics, NoiseKey, Privacy, algorithms, calibrate, gossip, graphs, replay, tasks, trust
from mfdl.metrics import METRICS, not_private_fields
from mfdl.noise import IndependentNoise
from mfdl.privacy.gaussian import epsilon_from_mu
from mfdl.runs import load_steps
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.runs.store import NOT_PRIVATE
from mfdl.testing.tasks import linear_task
from mfdl.training import checkpoint, keys, seed_replay
from mfdl.training.run import SeedRun
from mfdl.training.shared_randomness import HolderKeys
from mfdl.training.streams import node_noise, noise_stream
from mfdl.training.tasks import Evaluation
from mfdl.trust import LDP

DECOR = algorithms.decor(dynamics_on("path:n=3", 0.1), Cyclic(2, 1))
MADE = calibrate(DECOR, Privacy(trust.Eavesdropper(), adjacency="zero-out", clip_norm=0.5), mu=1.0)
TASK = tasks.least_squares(3, dimension=4)
KEY = NoiseKey.from_entropy()


@pytest.fixture
def injected(monkeypatch):
    seen = []
    make = seed_replay.Executor.step

    def keep(self, t, state, gradients, noise, rule):
        seen.append(np.array(noise))
        return make(self, t, state, gradients, noise, rule)

    monkeypatch.setattr(seed_replay.Executor, "step", keep)
    return seen


def expected(run_key, t):
    """What three nodes, each with the secrets it holds, make by themselves."""
    hold = HolderKeys.simulated(run_key)
    return np.concatenate([node_noise(MADE.algorithm.noise, u, hold, MADE.noise_std, t, 4) for u in range(3)])


@pytest.fixture
def run_key(monkeypatch):
    seen = []
    make = seed_replay.noise_stream
    monkeypatch.setattr(seed_replay, "noise_stream", lambda n, s, key, d, slots: seen.append(key) or make(n, s, key, d))
    return seen


def check(injected, run_key, **options):
    replay(MADE, TASK, seeds=[0], key=KEY, **options)
    assert len(injected) == 2
    for t, given in enumerate(injected):
        assert_array_equal(given, expected(run_key[-1], t))  # in float64 whatever the models are: rounded after the sum
        assert given.any()


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [0, 1])
@each("device", "cpu", CUDA)
def test_the_executor_injects_what_the_nodes_make(dtype, seed, device, injected, run_key):
    torch.manual_seed(seed)
    check(injected, run_key, dtype=dtype, device=device)


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


ON_RING = dynamics_on("ring:n=4", 0.1), Cyclic(2, 2)
MECHANISM = calibrate(algorithms.decor(*ON_RING), Privacy(trust.Eavesdropper(), **ZERO_OUT), mu=1.0)
LINEAR_TASK = linear_task(4, np.random.default_rng(0).standard_normal((8, 2)))  # two steps an epoch


# ---- entropy --------------------------------------------------------------------------------------------------------
def test_a_default_key_takes_at_least_128_bits_from_the_operating_system(monkeypatch):
    """Counted at the source, so that a key stretched from a clock or from 31 random bits does not pass."""
    taken = []
    token_bytes, randbits = secrets.token_bytes, secrets.randbits
    monkeypatch.setattr(secrets, "token_bytes", lambda size: taken.append(8 * size) or token_bytes(size))
    monkeypatch.setattr(secrets, "randbits", lambda bits: taken.append(bits) or randbits(bits))
    key = NoiseKey.from_entropy()
    assert sum(taken) >= 128
    assert not key.seeded


def test_all_bytes_of_the_entropy_reach_the_key(monkeypatch):
    base = bytes(range(32))
    keys = set()
    for i in range(32):
        other = base[:i] + bytes([base[i] ^ 1]) + base[i + 1 :]
        monkeypatch.setattr(secrets, "token_bytes", lambda size, other=other: other[:size])
        keys.add(NoiseKey.from_entropy().derive("noise").key_id)
    assert len(keys) == 32


def test_the_key_of_an_unseeded_run_does_not_follow_the_generators_a_program_seeds(monkeypatch):
    ids = set()
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  the legacy generator is what programs seed
        monkeypatch.setattr("time.time", lambda: 1.0)
        ids.add(replay(MECHANISM, LINEAR_TASK, stop_after=1).seeds[0].key_id)
    assert len(ids) == 3


# ---- runs to publish ------------------------------------------------------------------------------------------------
@each(
    "arguments",
    {"seeds": [0]}, {"seeds": [7, 8]}, {"key": NoiseKey.from_seed(3)}, {"seeds": [0], "key": NoiseKey.from_seed(3)},
    {"key": NoiseKey.from_seed(3).derive("mine")},
)  # fmt: skip
def test_seeded_noise_is_refused_in_a_run_to_publish(arguments, tmp_path):
    words, options = r"must not come from a seed.*NoiseKey\.from_entropy\(\)", {"checkpoint_folder": tmp_path / "new"}
    refuses(words, replay, MECHANISM, LINEAR_TASK, publish=True, **options, **arguments)
    assert not (tmp_path / "new").exists()
    run = replay(MECHANISM, LINEAR_TASK, stop_after=1, **arguments)
    assert all(seed_run.seeded_noise for seed_run in run.seeds)


@each("arguments", {}, {"key": NoiseKey.from_entropy()}, {"seeds": [0, 1], "key": NoiseKey.from_entropy()})
def test_secret_noise_may_be_published_also_beside_seeds_of_the_data(arguments):
    run = replay(MECHANISM, LINEAR_TASK, publish=True, stop_after=1, **arguments)
    assert not any(seed_run.seeded_noise for seed_run in run.seeds)


@pytest.mark.parametrize("release", ["average", "all"])
def test_models_of_a_stopped_run_are_not_covered_by_a_guarantee_for_the_final_ones(release):
    """Under hidden messages: a steep last rate makes the final models say little of what earlier ones show."""
    algorithm = algorithms.dp_dsgd(*ON_RING)
    hidden = calibrate(algorithm, Privacy(trust.ReleasedOnly(), release=release, **ZERO_OUT), mu=1.0)
    refuses("a run stopped after step 1 of 4", replay, hidden, LINEAR_TASK, publish=True, stop_after=1)
    assert replay(hidden, LINEAR_TASK, publish=True, stop_after=4).seeds[0].finished_steps == 4
    seen = calibrate(algorithm, Privacy(LDP(), **ZERO_OUT), mu=1.0)
    assert replay(seen, LINEAR_TASK, publish=True, stop_after=1).seeds[0].finished_steps == 1


PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
GRID = 2.0**-53


@pytest.mark.parametrize("key", [NoiseKey.from_seed(0), NoiseKey(bytes(range(32)))])
def test_the_last_bits_of_one_message_tell_two_gradients_apart(key):
    """g + z at mu = 1, clipping norm 1: an event that is certain not to happen under g = 1 and likely under g = 0.

    Where |1 + z| < 1/4, z lies in (-5/4, -3/4), so z and, by Sterbenz, 1 + z are multiples of 2^-53. Under g = 0 the
    message is z itself, whose spacing below 1/4 is 2^-55 or finer. No finite epsilon allows both at delta < 0.1.
    """
    noise = IndependentNoise(num_steps=1, num_nodes=1)
    z = noise_stream(noise, 1.0, key, 4000).step(0)
    small = {g: (g + z)[np.abs(g + z) < 0.25] for g in (0.0, 1.0)}
    finer = {g: float(np.sum(np.mod(o, GRID) != 0)) / z.size for g, o in small.items()}
    assert min(len(o) for o in small.values()) > 400
    assert finer[1.0] == 0
    assert finer[0.0] > 0.1
    assert finer[0.0] > np.exp(epsilon_from_mu(1.0, 1e-6)) * finer[1.0] + 1e-6  # what (epsilon, delta)-DP forbids


def test_the_pages_say_what_is_not_covered():
    text = " ".join(PAGE.read_text().split("## What it does not say")[1].split())
    for sentence in (
        "Noise is made of floating-point numbers.",
        "not hardened against attacks on low-order bits, nor against timing",
        "the sum of B clipped gradients is rounded in the model's type",
        "Seeds, losses and the choice of hyper-parameters: [sharp edges](sharp_edges.md#seeds).",
    ):
        assert sentence in text
    edges = " ".join((PAGE.parent / "sharp_edges.md").read_text().split())
    assert "An attacker who knows the seed can repeat the noise and subtract it." in edges
    assert "Learning rates, clipping thresholds, error weights, early stopping" in edges
    assert "not hardened against attacks" in " ".join(keys.__doc__.split())


COVERED = {"models", "messages"}  # as far as the guarantee says who sees which
PUBLIC = {"seed", "steps", "finished_steps", "key_id", "seeded_noise", "generator"}  # no function of data
MARKED = {"loss", "accuracy", "diverged", "training_seconds", "metrics", "released", "dropped_records"}


def test_every_field_of_a_run_is_private_public_or_marked():
    marked = MARKED | {"untrained_loss", "untrained_accuracy"}
    assert set(not_private_fields(SeedRun)) == marked
    assert sorted([*marked, *COVERED, *PUBLIC]) == sorted(field.name for field in dataclasses.fields(SeedRun))


def test_every_metric_of_an_evaluation_is_marked():
    assert set(not_private_fields(Evaluation)) == {field.name for field in dataclasses.fields(Evaluation)}


SMALL = {"graph": "ring:n=4", "epochs": 1, "period": 2, "seeds": 1, "mechanisms": ("none",)}


@pytest.mark.parametrize("metrics", [(), METRICS])
def test_results_list_everything_they_hold_that_is_not_covered(tmp_path, metrics):
    run_comparison(Experiment(metrics=metrics, **SMALL), tmp_path)
    result = json.loads((tmp_path / "results.json").read_text())
    (run,) = result["runs"]
    columns = set(load_steps(tmp_path / "steps.mfdl")[0].columns())
    labels = {"mechanism", "seed", "step", "node"}
    columns -= {"trust", "mu", "epsilon", "delta", "lr", "graph", "task"}  # what it was run with
    not_private = {*NOT_PRIVATE, *metrics, *(f"final_{name}" for name in metrics)}
    assert set(run) - labels == not_private & set(run)
    assert columns - labels == not_private & columns
    assert set(result["not_private"]) == (set(run) | columns) - labels


def test_checkpoints_in_a_folder_that_everybody_may_read(tmp_path):
    """A new one, one that replaces it, and one that replaces files which somebody opened to all."""
    tmp_path.chmod(0o755)
    models = {"state": torch.zeros(2)}
    for step in (1, 1, 2):
        checkpoint.save(tmp_path, step=step, models=models, metadata={})
        for path in tmp_path.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o644)


RING = gossip.metropolis_hastings("ring:n=4").dense()
LAZY = (RING + np.eye(4)) / 2  # the same graph, another weight rule


@pytest.mark.slow
def test_a_comparison_does_not_go_on_with_other_weights_in_the_same_file(tmp_path):
    np.savetxt(tmp_path / "W.csv", RING, delimiter=",", fmt="%.17g")
    config = Experiment(gossip=str(tmp_path / "W.csv"), **SMALL)
    first = run_comparison(config, tmp_path / "out")
    assert run_comparison(config, tmp_path / "out")["config_hash"] == first["config_hash"]
    np.savetxt(tmp_path / "W.csv", LAZY, delimiter=",", fmt="%.17g")
    refuses(r"holds results\.json of another comparison", run_comparison, config, tmp_path / "out")
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
        mechanisms[name] = calibrate(algorithm, Privacy(LDP(), **ZERO_OUT), noise_std=1.0)
    assert mechanisms["ring"].content_hash != mechanisms["lazy"].content_hash
    ring = replay(mechanisms["ring"], task, seeds=[0], key=key, stop_after=1, checkpoint_folder=tmp_path)
    refuses("the checkpoint's", replay, mechanisms["lazy"], task, seeds=[0], key=key, checkpoint_folder=tmp_path)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cuda_run_takes_the_very_same_noise(dtype, injected, run_key):
    check(injected, run_key, dtype=dtype, device="cuda")

"""Noise that nobody can guess: entropy of keys, and no seeded noise in a run to publish."""

import secrets

import numpy as np
import pytest
import torch

from mfdl import algorithms, gossip, trust
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic
from mfdl.testing.tasks import linear_task
from mfdl.training.keys import NoiseKey
from mfdl.training.replay import replay

NODES = 4
MADE = calibrate(
    algorithms.decor(Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.1), Cyclic(2, 2)),
    trust=trust.SecLDP(),
    adjacency="zero-out",
    clip_norm=1.0,
    mu=1.0,
)


TASK = linear_task(NODES, np.random.default_rng(0).standard_normal((8, 2)))  # two steps an epoch


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
    found = set()
    for i in range(32):
        other = base[:i] + bytes([base[i] ^ 1]) + base[i + 1 :]
        monkeypatch.setattr(secrets, "token_bytes", lambda size, other=other: other[:size])
        found.add(NoiseKey.from_entropy().derive("noise").key_id)
    assert len(found) == 32


def test_the_key_of_an_unseeded_run_does_not_follow_the_generators_a_program_seeds(monkeypatch):
    ids = set()
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  the legacy generator is what programs seed
        monkeypatch.setattr("time.time", lambda: 1.0)
        ids.add(replay(MADE, TASK, stop_after=1).seeds[0].key_id)
    assert len(ids) == 3


# ---- runs to publish ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"seeds": [0]},
        {"seeds": [7, 8]},
        {"key": NoiseKey.from_seed(3)},
        {"seeds": [0], "key": NoiseKey.from_seed(3)},
        {"key": NoiseKey.from_seed(3).derive("mine")},
    ],
)
def test_seeded_noise_is_refused_in_a_run_to_publish(arguments, tmp_path):
    with pytest.raises(InvalidInput, match=r"must not take its noise from a seed.*NoiseKey\.from_entropy\(\)"):
        replay(MADE, TASK, publish=True, checkpoint_folder=tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()
    assert all(one.seeded_noise for one in replay(MADE, TASK, stop_after=1, **arguments).seeds)


@pytest.mark.parametrize(
    "arguments", [{}, {"key": NoiseKey.from_entropy()}, {"seeds": [0, 1], "key": NoiseKey.from_entropy()}]
)
def test_secret_noise_may_be_published_also_beside_seeds_of_the_data(arguments):
    run = replay(MADE, TASK, publish=True, stop_after=1, **arguments)
    assert not any(one.seeded_noise for one in run.seeds)


@pytest.mark.parametrize("release", ["average", "all"])
def test_models_of_a_stopped_run_are_not_covered_by_a_guarantee_for_the_final_ones(release):
    """Under hidden messages: a steep last rate makes the final models say little of what earlier ones show."""
    one = algorithms.dp_dsgd(Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.1), Cyclic(2, 2))
    common = {"adjacency": "zero-out", "clip_norm": 1.0, "mu": 1.0}
    hidden = calibrate(one, trust=trust.ReleasedOnly(), release=release, **common)
    with pytest.raises(InvalidInput, match="a run stopped after step 1 of 4 has no models to publish"):
        replay(hidden, TASK, publish=True, stop_after=1)
    assert replay(hidden, TASK, publish=True, stop_after=4).seeds[0].finished_steps == 4
    seen = calibrate(one, trust=trust.LDP(), **common)
    assert replay(seen, TASK, publish=True, stop_after=1).seeds[0].finished_steps == 1

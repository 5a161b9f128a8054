"""Mechanisms of secret batches in files: the same noise and draws, and a guarantee that was accounted here."""

import dataclasses

import numpy as np
import pytest
from archives import edited

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, PoissonSampling, algorithms, gossip, trust
from mfdl.errors import InvalidInput
from mfdl.sampled import MonteCarlo, SampledMechanism, with_noise
from mfdl.testing.tasks import linear_task

RING = Dynamics(gossip.metropolis_hastings("ring:n=3"), 0.5)
ASKED = {"trust": trust.PNDP([0]), "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 2.0}
ENCODED = dataclasses.replace(algorithms.mafalda(RING, Cyclic(2, 3)), participation=BallsInBins(2, 3))
FEW = MonteCarlo(samples=2**12, failure=1e-3, seed=4)
MADE = {
    "bins": lambda: with_noise(algorithms.dp_dsgd(RING, BallsInBins(2, 3)), **ASKED),
    "samples": lambda: with_noise(ENCODED, **ASKED, method=FEW),
    "poisson": lambda: with_noise(
        algorithms.decor(RING, PoissonSampling(0.5, 4), sigma_local=1.0, sigma_pair=1.0),
        **{**ASKED, "trust": trust.SecLDP((1,)), "adjacency": "replace-one"},
    ),
}


def forged(path, **changes):
    """The file anew with entries of its guarantee that were edited, and a checksum that fits."""

    def change(header, arrays):
        for name, value in changes.items():
            parts = header["content"]
            (parts if name in parts else parts["sampled"]["dict"])[name] = value

    return edited(path, change)


@pytest.mark.parametrize("kind", list(MADE))
def test_what_comes_back_is_what_was_accounted(kind, tmp_path):
    made = MADE[kind]()
    again = SampledMechanism.load(made.save(tmp_path / "made"))
    assert again.content_hash == made.content_hash
    assert again.guarantee == made.guarantee
    assert again.guarantee.seal == made.guarantee.seal
    assert again.guarantee.sentence() == made.guarantee.sentence()
    with pytest.raises(InvalidInput, match=r"no mu; load it with mfdl\.sampled"):
        mfdl.Mechanism.load(tmp_path / "made")


def test_a_file_that_promises_more_is_refused(tmp_path):
    made = MADE["bins"]()
    path = tmp_path / "made"
    with pytest.raises(InvalidInput, match=r"states epsilon = 0\.1"):
        SampledMechanism.load(forged(made.save(path), epsilon=0.1))
    with pytest.raises(InvalidInput, match="content hash"):
        SampledMechanism.load(forged(made.save(path), noise_std=4.0))
    with pytest.raises(InvalidInput, match="it states epsilon"):
        SampledMechanism.load(forged(made.save(path), adjacency="replace-one"))
    with pytest.raises(InvalidInput):
        SampledMechanism.load(forged(made.save(path), algorithm_hash="0" * 16))
    weaker = SampledMechanism.load(forged(made.save(path), epsilon=100.0))
    assert weaker.guarantee.epsilon(1e-6) == made.guarantee.epsilon(1e-6)
    data = bytearray(made.save(path).read_bytes())
    data[-9] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InvalidInput):
        SampledMechanism.load(path)
    public = mfdl.with_noise(algorithms.dp_dsgd(RING, Cyclic(2, 3)), **ASKED)
    with pytest.raises(InvalidInput, match=r"load it with mfdl\.Mechanism"):
        SampledMechanism.load(public.save(path))


def test_a_run_with_secret_batches_comes_back(tmp_path):
    made = MADE["bins"]()
    scaled = dataclasses.replace(linear_task(3, np.ones((12, 2))), public_constants="the mean")
    run = mfdl.replay(made, scaled, seeds=[0], progress=False)
    again = type(run).load(run.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.seeds[0].models, run.seeds[0].models)
    assert again.statement() == run.statement()
    assert "the mean" in again.statement()

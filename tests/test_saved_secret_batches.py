"""Mechanisms of secret batches in files: the same noise and draws, and a guarantee that was accounted here."""

import dataclasses

import numpy as np
import pytest
from archives import edited

from mfdl import (
    BallsInBins,
    Cyclic,
    Dynamics,
    Guarantee,
    Mechanism,
    PoissonSampling,
    algorithms,
    archive,
    gossip,
    replay,
    trust,
    with_noise,
)
from mfdl.errors import InvalidInput
from mfdl.privacy import MonteCarlo
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


def forged(path, *, seal=True, algorithm_hash=None, **changes):
    """The file anew with fields of its guarantee that were edited, and a checksum, and by choice a seal, that fit."""

    def change(header, arrays):
        parts = header["content"]
        guarantee = Guarantee.from_dict(archive.Unpacker(arrays)(parts["guarantee"]))
        other = dataclasses.replace(guarantee, **changes) if changes else guarantee
        parts["guarantee"] = archive.Packer()((other.sealed(guarantee.fingerprint) if seal else other).to_dict(), "")
        parts["algorithm_hash"] = algorithm_hash or parts["algorithm_hash"]

    return edited(path, change)


@pytest.mark.parametrize("kind", list(MADE))
def test_what_comes_back_is_what_was_accounted(kind, tmp_path):
    made = MADE[kind]()
    again = Mechanism.load(made.save(tmp_path / "made"))
    assert again.content_hash == made.content_hash
    assert again.guarantee == made.guarantee
    assert again.guarantee.seal == made.guarantee.seal
    assert str(again.guarantee) == str(made.guarantee)
    assert "as stated in the file" not in str(again.guarantee)
    as_written = Mechanism.load(tmp_path / "made", anew=False)
    assert as_written.guarantee == made.guarantee
    assert "as stated in the file" in str(as_written.guarantee)


def test_a_file_that_promises_more_is_refused(tmp_path):
    made = MADE["bins"]()
    path = tmp_path / "made"
    guarantee = made.guarantee
    smaller, larger = guarantee.sensitivity / 2, guarantee.noise_std * 2
    with pytest.raises(InvalidInput, match="was edited"):
        Mechanism.load(forged(made.save(path), seal=False, sensitivity=smaller))
    better = dataclasses.replace(guarantee.curve, noise_multiplier=2 * guarantee.noise_multiplier)
    with pytest.raises(InvalidInput, match="states epsilon at delta = 1e-06"):
        Mechanism.load(forged(made.save(path), curve=better, sensitivity=smaller))
    with pytest.raises(InvalidInput, match="content hash"):
        Mechanism.load(forged(made.save(path), noise_std=larger))
    other = dataclasses.replace(guarantee.curve, adjacency="replace-one")
    assert Mechanism.load(forged(made.save(path), curve=other)).guarantee.adjacency == "replace-one"  # another question
    with pytest.raises(InvalidInput):
        Mechanism.load(forged(made.save(path), algorithm_hash="0" * 16))
    worse = dataclasses.replace(guarantee.curve, noise_multiplier=guarantee.noise_multiplier / 8)
    weaker = Mechanism.load(forged(made.save(path), curve=worse))
    assert weaker.guarantee.epsilon(1e-6) == guarantee.epsilon(1e-6)
    data = bytearray(made.save(path).read_bytes())
    data[-9] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InvalidInput):
        Mechanism.load(path)


def test_a_run_with_secret_batches_comes_back(tmp_path):
    made = MADE["bins"]()
    scaled = dataclasses.replace(linear_task(3, np.ones((12, 2))), public_constants="the mean")
    run = replay(made, scaled, seeds=[0], progress=False)
    again = type(run).load(run.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.seeds[0].models, run.seeds[0].models)
    assert again.statement() == run.statement()
    assert "the mean" in again.statement()

"""Noise made of floats does not hide low-order bits, and the pages say so: an attack on our messages, and the text."""

from pathlib import Path

import numpy as np

from mfdl.noise import IndependentNoise
from mfdl.privacy.gaussian import epsilon_from_mu
from mfdl.training import keys
from mfdl.training.keys import NoiseKey
from mfdl.training.streams import noise_stream

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
GRID = 2.0**-53


def test_the_last_bits_of_one_message_tell_two_gradients_apart():
    """g + z at mu = 1, clipping norm 1: an event that is certain not to happen under g = 1 and likely under g = 0.

    Where |1 + z| < 1/4, z lies in (-5/4, -3/4), so z and, by Sterbenz, 1 + z are multiples of 2^-53. Under g = 0 the
    message is z itself, whose spacing below 1/4 is 2^-55 or finer. No finite epsilon allows both at delta < 0.1.
    """
    noise = IndependentNoise(num_steps=1, num_nodes=1)
    z = noise_stream(noise, 1.0, NoiseKey.from_seed(0), 4000).step(0)
    small = {g: (g + z)[np.abs(g + z) < 0.25] for g in (0.0, 1.0)}
    finer = {g: float(np.sum(np.mod(o, GRID) != 0)) / z.size for g, o in small.items()}
    assert min(len(o) for o in small.values()) > 400
    assert finer[1.0] == 0
    assert finer[0.0] > 0.1
    assert finer[0.0] > np.exp(epsilon_from_mu(1.0, 1e-6)) * finer[1.0] + 1e-6  # what (epsilon, delta)-DP forbids


def test_the_pages_say_what_is_not_covered():
    """Said where a guarantee is explained and where noise is made; sums at record level have their own numbers."""
    text = " ".join(PAGE.read_text().split("## What it does not say")[1].split())
    for said in (
        "Noise is made of floating-point numbers.",
        "not hardened against attacks on low-order bits, nor against timing",
        "the sum of B clipped gradients is rounded in the model's type",
        "An attacker who knows the seed can subtract the noise",
        "not covered, nor is choosing hyper-parameters by them",
    ):
        assert said in text
    assert "floating-point Gaussian noise is not hardened" in " ".join(keys.__doc__.split())

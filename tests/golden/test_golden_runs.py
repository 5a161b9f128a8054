"""Seeded runs: public name of the noise key, models of every node and test losses, in float64 and in float32.

The key of a run follows from its seed, the contents of its mechanism and its task and the type of its models; batches
that are drawn follow from a key of their own. The hash of a task contains the bytecode of its loss, and each minor
version of Python compiles its own. Start models and records are of float32, and exponentials differ in their last bits
from machine to machine, so models of float64 agree to about 1e-8; another key, step or record changes their first
digits.
"""

import functools
import sys

import pytest
import torch
from _cases import TRUST, fixed
from _stored import compare
from small_tasks import classes

import mfdl

RUNS = {
    "bsr": ("bsr", "cyclic"),
    "decor": ("decor", "cyclic"),
    "muffliato": ("muffliato", "cyclic"),
    "Poisson": ("dp-dsgd", "poisson"),
    "balls-in-bins": ("dp-dsgd", "balls-in-bins"),
}
task = functools.cache(functools.partial(classes, public_constants="none"))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the keys that are stored are those of Python 3.11")
@pytest.mark.parametrize(("dtype", "accuracy"), [("float64", 1e-6), ("float32", 1e-4)])
def test_seeded_runs(dtype, accuracy):
    values = {}
    for run, (name, scheme) in RUNS.items():
        privacy = mfdl.Privacy(TRUST["eavesdropper"], adjacency="replace-one", clip_norm=1.0)
        mechanism = mfdl.calibrate(fixed(name, scheme), privacy, noise_std=0.5)
        (seed,) = mfdl.replay(mechanism, task(), seeds=[3], dtype=getattr(torch, dtype), device="cpu").seeds
        values[run] = {"key_id": seed.key_id, "models": seed.models.tolist(), "loss": seed.loss.tolist()}
    compare(f"runs_{dtype}", values, relative=accuracy, absolute=accuracy)

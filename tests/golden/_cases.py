"""Small cases of the golden tests: four nodes on a path, four steps, every mechanism and participation scheme.

Noise that a solver found differs in its last bits from machine to machine (another BLAS, another number of threads).
`fixed` rounds it to a grid, coarse against these differences, and what is stored is that of the rounded noise: the
same numbers everywhere. What solvers find is compared in `test_golden_numbers.py`, within their accuracy.
"""

import contextlib
import dataclasses
import functools
import io
import json

import numpy as np
from vocabulary import dynamics_on

import mfdl
from mfdl.__main__ import main
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import CausalNoise, JointNoise, ScheduledNoise

GRID = 64
OPTIMISED = ("banded", "toeplitz", "blt", "band-inv", "mafalda-bins", "kronecker-bins")
"""Mechanisms of a solver whose algorithms carry no factorization."""
SCHEMES = {
    "cyclic": mfdl.Cyclic(2, 2),
    "single": mfdl.participation.Single(4),
    "every-step": mfdl.EveryStep(4),
    "explicit": mfdl.participation.Explicit([[0, 2], [1, 3], [0]], 4),
    "once-per-epoch": mfdl.participation.OncePerEpoch(2, 2),
    "min-separation": mfdl.MinSeparation(4, 2, 2),
    "poisson": mfdl.PoissonSampling(0.25, 4),
    "balls-in-bins": mfdl.BallsInBins(2, 2),
    "by-node": mfdl.participation.ParticipationByNode(
        [mfdl.Cyclic(2, 2), mfdl.participation.Single(4), mfdl.Cyclic(2, 2), mfdl.EveryStep(4)]
    ),
}
TRUST = {
    "ldp": mfdl.trust.LDP(), "pndp": mfdl.trust.PNDP([0]), "pndp of anyone": mfdl.trust.AnyReceiver(),
    "eavesdropper": mfdl.trust.Eavesdropper(), "colluding": mfdl.trust.Colluding([3]),
    "coalitions": mfdl.trust.Coalitions(1), "full-collusion": mfdl.trust.FullCollusion(),
    "central": mfdl.trust.Central(), "released": mfdl.trust.ReleasedOnly(),
}  # fmt: skip


def mfdl_prints(*arguments):
    """(exit code, standard output) of the command line, as `python -m mfdl` runs it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(arguments)
    return code, out.getvalue()


@functools.cache
def mechanism_names():
    return [row["name"] for row in json.loads(mfdl_prints("mechanisms", "--json")[1])]


@functools.cache
def dynamics():
    return dynamics_on("path:n=4", 0.5)


@functools.cache
def built(name, scheme):
    for_a_target = {"noise_std": lambda gram: float(gram.max() ** 0.5)} if name.endswith("-bins") else {}
    return mfdl.algorithms.build(name, dynamics(), SCHEMES[scheme], **for_a_target)


@functools.cache
def fixed(name, scheme):
    """The same with its noise on the grid, where a solver found it."""
    algorithm = built(name, scheme)
    if algorithm.factorization is None and name not in OPTIMISED:
        return algorithm
    return dataclasses.replace(algorithm, noise=_noise_on_grid(algorithm.noise), factorization=None)


def _noise_on_grid(noise):
    if noise.joint is not None:
        return JointNoise(on_grid(noise.encoder.array), noise.num_steps, noise.num_nodes)
    if noise.causal is None:
        fields = noise.stored_fields()
        return ScheduledNoise(**{**fields, "mixing": on_grid(fields["mixing"].toarray())})
    encoder = noise.stored_fields()["encoder"]
    factor = None if noise.factor is None else _signed(noise.factor.toarray())
    sizes = {"num_steps": noise.num_steps, "num_nodes": noise.num_nodes}
    return CausalNoise(_encoder_on_grid(encoder), factor, noise.holders(), **sizes)


def _encoder_on_grid(encoder):
    if isinstance(encoder, Inverse):
        return Inverse(_encoder_on_grid(encoder.noising))
    if isinstance(encoder, Buffered):
        order = np.argsort(encoder.decays)  # of a sum
        scales, decays = (on_grid(np.asarray(x)[order]) for x in (encoder.scales, encoder.decays))
        return Buffered(scales, decays, encoder.size, float(on_grid(encoder.diagonal)))
    if isinstance(encoder, Toeplitz):
        return Toeplitz(on_grid(encoder.coefficients), encoder.size)
    if isinstance(encoder, Banded):
        return Banded(on_grid(encoder.bands))
    return None if encoder is None else on_grid(encoder)


def _signed(factor):
    """On the grid, with a positive first entry in each column: eigenvectors have no sign of their own."""
    rounded = on_grid(factor)
    first = rounded[(rounded != 0).argmax(axis=0), range(rounded.shape[1])]
    return rounded * np.where(first < 0, -1.0, 1.0) + 0.0


def on_grid(numbers):
    """Multiples of 1 / GRID, without -0."""
    return np.round(np.asarray(numbers, dtype=float) * GRID) / GRID + 0.0

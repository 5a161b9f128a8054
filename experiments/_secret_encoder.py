"""The encoder for secret bins of a scene, in a file that sweeps take as a mechanism."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from _scenes import ADJACENCY, DELTA, SECRET_ENCODER, Scene

import mfdl
from mfdl.algorithms import registry
from mfdl.error_gram import error_gram
from mfdl.factorization import factorize_bins, files
from mfdl.privacy import binned


def noise_std(M: np.ndarray, epsilon: float) -> float:
    """What noise an encoder of this M needs at clipping norm 1, certified."""
    largest, pairs = float(M.diagonal().max()), binned.correlations(M)
    of_all = mfdl.sampled.BinnedGaussian(1.0, len(M), pairs, ADJACENCY)
    return of_all.least_multiplier(epsilon, DELTA) * math.sqrt(largest)


def named(mechanism: str, scene: Scene, epsilon: float, folder: Path) -> str:
    """The name of a mechanism in sweeps; that of the encoder for secret bins is a file, solved once for each budget."""
    if mechanism != SECRET_ENCODER:
        return mechanism
    name = mechanism.format(epsilon=epsilon)
    path = folder / name.removeprefix(registry.FILE_PREFIX)
    if not path.exists():  # a constant rate does not change it
        graph = mfdl.graphs.load(scene.graph)
        dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))
        T = scene.epochs * scene.period
        found = factorize_bins(dynamics, scene.epochs, scene.period, lambda M: noise_std(M, epsilon))
        folder.mkdir(parents=True, exist_ok=True)
        header = {"root_error": found.root_error, "noise_std": found.noise_std, "seconds": found.seconds}
        header["tried"] = [[c, std, one.loss, one.lower_bound] for c, std, one in found.tried]
        files.save(path, found.best, grams=error_gram(dynamics, T), header=header)
    return f"{registry.FILE_PREFIX}{path}"

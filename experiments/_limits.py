"""The excess loss of one release at the same budget, the limit beside every number of the comparison.

The noise and the estimate are those of `mfdl.planning.run_plan`, with the curvature and the start of the train records:
a Newton step from the optimum has excess loss trace(H^-1 Sigma) / 2, and every direction is shrunk where that helps.
PNDP from one receiver is q = 1, and whether hidden messages reach that is not known; noise that stays in the models
reaches the limit of LDP.

Assumptions: a quadratic loss (H and optimum of the train records, exact), no gradient clipped at the optimum, one
release of gradients in the coordinates in which they are clipped, D known. More steps at the same budget tell no more
of a quadratic loss; clipping, records of the test and a loss that is not quadratic may move a row to either side.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call, grad, jacrev, vmap

from mfdl import graphs
from mfdl.planning.run_plan import least_noise_std
from mfdl.privacy.gaussian import mu_from_epsilon
from mfdl.training import tasks

Array = NDArray[np.float64]
STEPS, SMALL = 100, 1e-9
LINEAR = ("housing-linear", "logistic", "a9a")
"""Tasks whose outputs are linear in the parameters."""


def colluders(ranking: str, num_nodes: int) -> int:
    """q, the nodes whose gradients and secrets the attacker knows.

    >>> colluders("ldp", 100), colluders("coalitions:2", 100), colluders("pndp", 100), colluders("central", 100)
    (99, 2, 1, 0)
    """
    name, _, size = ranking.partition(":")
    return num_nodes - 1 if name == "ldp" else int(size or name == "pndp")


@dataclass(frozen=True)
class Quadratic:
    """The train loss around its optimum: curvature and distance from the start, of each eigenvector of H.

    Attributes: start, optimum: train losses there.
    """

    eigenvalues: Array
    distances: Array
    num_records: int
    start: float
    optimum: float

    def newton(self, variance: float) -> float:
        """Half the trace of H^-1 times the covariance of the noise."""
        return float(0.5 * variance * (1 / self.eigenvalues).sum())

    def limit(self, variance: float) -> float:
        """The same, every direction shrunk as far as that helps."""
        squared = self.distances**2
        return float((0.5 * self.eigenvalues * squared * variance / (variance + self.eigenvalues**2 * squared)).sum())


@functools.cache
def quadratic(task: str, precision: float = 1e-12) -> Quadratic:
    """Of a task whose outputs are linear in parameters that start at zero, by Newton's method on all train records.

    Directions that no record has are left out: eigenvalues below `precision` of the largest.
    """
    data = tasks.load(task, graphs.load("torus:n=100"))
    module = data.build_module().double()
    given = {name: part.detach() for name, part in module.named_parameters()}
    features = torch.tensor(data.features, dtype=torch.float64)
    targets = torch.tensor(data.targets if data.kind == "classification" else data.targets.astype(np.float64))
    start = np.concatenate([part.numpy().ravel() for part in given.values()])
    sizes = [part.numel() for part in given.values()]

    def outputs(parameters: Array) -> Array:
        parts = zip(given, torch.tensor(parameters).split(sizes), strict=True)
        return functional_call(module, {name: v.reshape(given[name].shape) for name, v in parts}, features).numpy()

    unit = np.eye(len(start))  # outputs are linear: shape (records, outputs, parameters)
    linear = np.stack([outputs(direction) - outputs(0 * direction) for direction in unit], axis=2)

    def mean(parameters: Array, of: Any = lambda loss: loss) -> Array:
        return vmap(of(data.loss))(torch.tensor(linear @ parameters), targets).detach().numpy()

    def gradient(parameters: Array) -> Array:
        return np.einsum("ri,rip->p", mean(parameters, grad), linear) / len(linear)

    def curvature(parameters: Array) -> Array:
        weighted = np.einsum("rij,rjp->rip", mean(parameters, lambda loss: jacrev(grad(loss))), linear)
        return linear.reshape(-1, len(start)).T @ weighted.reshape(-1, len(start)) / len(linear)

    point = start
    for _ in range(STEPS):
        slope = gradient(point)
        if np.abs(slope).max() < SMALL:
            break
        step = np.linalg.pinv(curvature(point), rcond=precision, hermitian=True) @ slope
        while mean(point - step).mean() > mean(point).mean():
            step = step / 2
        point = point - step
    values, vectors = np.linalg.eigh(curvature(point))
    used = values > precision * values[-1]
    distances = np.abs(vectors.T @ (point - start))[used]
    return Quadratic(values[used], distances, len(linear), float(mean(start).mean()), float(mean(point).mean()))


def limit(answer: Mapping[str, Any], ranking: str) -> float | None:
    """The excess loss of one release under a trust model, at the budget of a scene; None without a linear model."""
    if answer["task"] not in LINEAR:
        return None
    known, num_nodes = quadratic(answer["task"]), graphs.load(answer["graph"]).number_of_nodes()
    mu = mu_from_epsilon(answer["epsilon"], answer["delta"])
    return known.limit(
        least_noise_std(1.0, mu, known.num_records / num_nodes, num_nodes, colluders(ranking, num_nodes)) ** 2
    )

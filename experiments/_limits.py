"""The excess loss of one release at the same budget, the limit beside every number of the comparison.

N records a node, n nodes, records clipped at C. One Gaussian release of the mean over the nodes of their mean gradients
needs noise of variance at least

    (C / (mu N n))^2 n / (n - q),    q the nodes whose gradients and secrets the attacker knows,

because it sees the sum of the n - q other gradients, in which a record moves C / N: the noise there has variance of
at least (C / (mu N))^2. A part of the noise with holders is unknown to a share of at most (n - q) / n of all sets of q
nodes, and the mean over these sets gives the bound. Noise of each node alone, with noise that cancels in the sum, comes
as near to it as one likes if no q nodes cut the graph. LDP is q = n - 1: of the secrets only those of one node alone
count, (C / (mu N))^2 / n. Eavesdropper, central and SecureSum: q = 0. PNDP from one receiver: q = 1, and whether hidden
messages reach that is not known; noise that stays in the models reaches LDP's limit.

One Newton step from the optimum with such a gradient has excess loss trace(H^-1 Sigma) / 2. Along a direction of
curvature lambda at distance D of the start from the optimum an estimate may also be shrunk, and the best linear one has

    lambda / 2  D^2 v / (v + lambda^2 D^2),    v the variance of the noise,

at most v / (2 lambda), and at most the loss at the start where the data say too little. This is the limit.

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


def noise_variance(mu: float, clip_norm: float, num_records: int, num_nodes: int, q: int) -> float:
    """Least variance of the noise in the mean over the nodes, per coordinate; num_records: of all nodes."""
    return (clip_norm / (mu * num_records)) ** 2 * num_nodes / (num_nodes - q)


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
    return known.limit(noise_variance(mu, 1.0, known.num_records, num_nodes, colluders(ranking, num_nodes)))

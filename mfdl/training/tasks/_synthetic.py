"""Problems with generated records: quadratic local losses with known minimiser, and logistic regression.

Quadratic: f_i(x) = 1/2 ||A_i x - b_i||^2, one record [A_i b_i] at each node, for user-level privacy; the test loss is
the distance to the minimiser, or the excess loss, in closed form. Logistic: features of a known spectrum, and classes
of a known model.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from ... import check
from ...errors import InvalidInput, require_known
from . import partition as partitions
from ._data_sets import linear_from_zero
from ._task import TASKS, Task, from_module, node_count
from .partition import Fixed

FloatArray = NDArray[np.float64]
Metric = Literal["squared-distance", "excess-loss"]

STARTS = ("zero", "ones", "optimum")
ROTATION_DEGREES = 15.0
LARGEST_ENTRY = 1e15
"""Largest entry: squares of entries, and sums of them, stay well inside float32."""


@TASKS.register(example="least-squares:dimension=5")
def least_squares(
    graph_or_num_nodes: Any, dimension: int = 10, data_seed: int = 0, start: str | ArrayLike = "ones"
) -> Task:
    """Least squares at user level: node i = 1, ..., n holds f_i(x) = 1/2 ||A_i x - b_i||^2, A_i = (i / sqrt(n)) I.

    b_i is drawn from N(0, I / i^2), once for all runs. `Evaluation.loss` is ||x_u - x*||^2 with
    x* = (sum A_i^2)^-1 sum A_i b_i: what the experiment's code plots, where the paper's text says training loss.
    A node's only record is used in every step: use period 1. The experiment has 16 nodes, clipping norm 1, learning
    rate 1.668e-3 and 3,500 steps.

    Args: dimension: d, of x; data_seed: of all b_i; start: the first model of every node: "ones", as in the experiment,
        "zero", "optimum" or d numbers.

    Source: arXiv:2405.01031, least-squares experiment; dimension and start from its public code.
    """
    n = node_count(graph_or_num_nodes)
    d = check.integer_at_least(1, dimension=dimension)
    data_seed = check.integer_at_least(0, data_seed=data_seed)
    scale = np.arange(1, n + 1)[:, None]
    # By the inverse of the normal distribution: numpy's normal numbers may change with its version.
    normal = ndtri(partitions.Uniforms(data_seed, partitions.SYNTHETIC_DATA)((n, d)))
    matrices = scale[:, :, None] / np.sqrt(n) * np.eye(d)
    return quadratic("least-squares", matrices, normal / scale, metric="squared-distance", start=start)


@TASKS.register(example="rotated-quadratics:start=ones")
def rotated_quadratics(graph_or_num_nodes: Any, start: str | ArrayLike = "optimum") -> Task:
    """Quadratics in the plane that disagree: f_i(x) = 15 (x_1 + i)^2 + x_2^2 at the nodes i <= n / 2, and
    15 (x_1 - i)^2 + x_2^2, turned by 15 degrees counter-clockwise around its minimiser (i, 0), at the others.

    `Evaluation.loss` is f(x_u) - f(x*), f the mean of the f_i: noise and disagreement keep it above 0. A node's only
    record is used in every step: use period 1. The experiment has 20 nodes, x* = (2.85, 15.08).

    Args:
        start: the first model of every node: "optimum", "zero", "ones" or two numbers. Far from x* small clipping norms
            decide everything: with clip_norm 0.1 and steps 0.01 / sqrt(t), t = 1, ..., 5000, gradients move a model by
            at most 0.14, so that from 0 the loss stays near 601 without any noise. From x* it measures the noise.

    Source: arXiv:2501.14644v2, quadratic experiment; it states neither the start nor the direction of the rotation.
    """
    n = node_count(graph_or_num_nodes)
    node = np.arange(1, n + 1)
    first = node <= n / 2
    center = np.stack([np.where(first, -node, node), np.zeros(n)], axis=1)
    angle = np.deg2rad(np.where(first, 0.0, ROTATION_DEGREES))
    back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]).transpose(2, 0, 1)
    # 15 y_1^2 + y_2^2 = 1/2 ||diag(sqrt 30, sqrt 2) y||^2 at y = R^T (x - center).
    matrices = np.sqrt([30.0, 2.0])[:, None] * back
    values = np.einsum("nij,nj->ni", matrices, center)
    return quadratic("rotated-quadratics", matrices, values, metric="excess-loss", start=start)


def quadratic(
    name: str, matrices: ArrayLike, values: ArrayLike, *, metric: Metric, start: str | ArrayLike = "zero"
) -> Task:
    """The task of f_i(x) = 1/2 ||A_i x - b_i||^2 at node i, one record each.

    Records are stored in float32, the minimiser of these and the test records too, so that a loss near 0 is right up to
    about 1e-14 of its value at x = 0.

    Args:
        matrices, values: A_i, shape (n, m, d), and b_i, shape (n, m).
        metric: `Evaluation.loss` at a model x, with the minimiser x* of f = mean f_i: "squared-distance",
            ||x - x*||^2, or "excess-loss", f(x) - f(x*).
        start: the first model of every node: "zero", "ones", "optimum" (x*), or d numbers.

    Raises:
        InvalidInput: shapes that do not fit, values that are not finite, m < d, sum A_i^T A_i singular, an unknown
            metric or start.
    """
    A, b = check.finite_array(3, matrices=matrices), check.finite_array(2, values=values)
    if A.shape[:2] != b.shape or A.shape[1] < A.shape[2] or A.size == 0:
        raise InvalidInput(
            f"matrices must have shape (nodes, m, d) with m >= d >= 1, and values (nodes, m), got {A.shape} and "
            f"{b.shape}; add rows of zeros to a matrix with fewer rows than columns."
        )
    largest = max(np.abs(A).max(), np.abs(b).max())
    if largest > LARGEST_ENTRY:
        raise InvalidInput(
            f"entries of matrices and values must be at most {LARGEST_ENTRY:g}, got {largest:g}; rescale."
        )
    records = np.concatenate([A, b[..., None]], axis=2).astype(np.float32)
    A, b = records[..., :-1].astype(np.float64), records[..., -1].astype(np.float64)
    n, m, d = A.shape
    hessian = np.einsum("nki,nkj->ij", A, A) / n
    if np.linalg.matrix_rank(hessian) < d:
        raise InvalidInput("matrices must leave one minimiser, got a singular sum of A_i^T A_i; add rows to some A_i.")
    optimum = np.linalg.solve(hessian, np.einsum("nki,nk->i", A, b) / n).astype(np.float32)
    return Task(
        name=name,
        kind="regression",
        features=records,
        targets=np.zeros(n),  # all of a record is in its features
        test_features=_test_records(metric, hessian, optimum.astype(np.float64), m),
        test_targets=np.zeros(2),
        build_module=functools.partial(_Residual, _start(start, optimum)),
        loss=_half_squared_norm,
        num_nodes=n,
        partition=Fixed(np.arange(n)),
        public_constants="the first model, the minimiser" if _is_optimum(start) else "none",
    )


def _test_records(metric: str, hessian: FloatArray, optimum: FloatArray, num_rows: int) -> FloatArray:
    """Two records [A b] whose mean loss is the metric; the second is zero, so the first counts half."""
    d = len(optimum)
    require_known("metric", str(metric), ("squared-distance", "excess-loss"))
    if metric == "squared-distance":
        root = 2 * np.eye(d)  # 1/2 * 1/2 ||2 (x - x*)||^2; one record would need sqrt 2, which float32 rounds
    else:
        root = np.sqrt(2) * np.linalg.cholesky(hessian).T
    root = root.astype(np.float32).astype(np.float64)
    records = np.zeros((2, num_rows, d + 1))
    records[0, :d] = np.concatenate([root, (root @ optimum)[:, None]], axis=1)
    return records


def _is_optimum(start: str | ArrayLike) -> bool:
    return isinstance(start, str) and start == "optimum"


def _start(start: str | ArrayLike, optimum: NDArray[np.float32]) -> tuple[float, ...]:
    d = len(optimum)
    if isinstance(start, str):
        require_known("start", start, STARTS)
        point = optimum.astype(np.float64) if start == "optimum" else np.full(d, float(start == "ones"))
        return tuple(point.tolist())
    point = check.finite_array(1, start=start)
    if len(point) != d:
        raise InvalidInput(f"start must be one of {', '.join(STARTS)} or {d} numbers, got {len(point)}.")
    return tuple(point.tolist())


class _Residual(torch.nn.Module):
    """A x - b of each record [A b]; the parameter is x."""

    def __init__(self, start: tuple[float, ...]) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(start))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return records[..., :-1] @ self.x - records[..., -1]

    def extra_repr(self) -> str:
        return f"start={self.x.tolist()}"  # part of a task's content hash


def _half_squared_norm(residual: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return 0.5 * residual.square().sum()


@TASKS.register(example="logistic:dimension=10,margin=2")
def logistic(
    graph_or_num_nodes: Any,
    dimension: int = 20,
    train_records: int = 8000,
    test_records: int = 2000,
    decay: float = 1.0,
    margin: float = 4.0,
    clip: float = 5.0,
    data_seed: int = 0,
    partition: partitions.Partition | str = "uniform",
) -> Task:
    """Two classes from a logistic model: features j = 1, ..., d are independent N(0, j^-decay), bounded by +-clip.

    The class of a record x is 1 with probability 1 / (1 + exp(-<x, w>)); w has equal entries, such that <x, w> has
    standard deviation `margin` where nothing is clipped. The model is one linear layer with bias from zero, two
    scores, cross entropy: convex, and able to represent the true model.

    Args:
        dimension, train_records, test_records, data_seed: d, numbers of records, and the seed of all of them.
        decay: of the eigenvalues of the features' covariance, >= 0; 0 is isotropic.
        margin: separation of the classes, >= 0; 0 leaves nothing to learn.
        clip: bound on the absolute value of a feature, > 0; a public constant.
    """
    sizes = {"dimension": dimension, "train_records": train_records, "test_records": test_records}
    d, train, test = (check.integer_at_least(1, **{name: value}) for name, value in sizes.items())
    decay, margin = check.non_negative(decay=decay), check.non_negative(margin=margin)
    clip, data_seed = check.positive(clip=clip), check.integer_at_least(0, data_seed=data_seed)
    spectrum = np.arange(1, d + 1) ** -decay
    uniform = partitions.Uniforms(data_seed, partitions.SYNTHETIC_DATA)
    # By the inverse of the normal distribution: numpy's normal numbers may change with its version.
    features = np.clip(ndtri(uniform((train + test, d))) * np.sqrt(spectrum), -clip, clip)
    score = features.sum(axis=1) * (margin / np.sqrt(spectrum.sum()))
    targets = (uniform((train + test,)) * (1 + np.exp(-score)) < 1).astype(np.int64)
    return from_module(
        "logistic",
        graph_or_num_nodes,
        kind="classification",
        features=features[:train],
        targets=targets[:train],
        test_features=features[train:],
        test_targets=targets[train:],
        build_module=functools.partial(linear_from_zero, d, 2),
        loss=torch.nn.functional.cross_entropy,
        partition=partition,
        public_constants="none",
    )

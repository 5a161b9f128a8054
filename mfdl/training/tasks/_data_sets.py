"""Tasks by name: published data sets (a9a, digits, California housing, MNIST, FEMNIST), and generated records.

`graph_or_num_nodes`, `data_home` and `partition` (see `partition.parse`) of these functions are those of `load`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from ... import check, data
from ...data import A9A_FEATURES, mnist_files
from ...errors import InvalidInput, require_known
from . import partition as partitions
from ._task import TASKS, Kind, Task, from_module, node_count
from .partition import DATA_SPLIT_SEED, Fixed, split_rows

Folder = str | os.PathLike[str] | None
Records = tuple[NDArray[Any], NDArray[Any]]
TEST_FRACTION = 0.2  # of a9a and MNIST as pools, of California housing, and of each node's part of FEMNIST
SMALL_TEST_FRACTION = 1 / 6  # share held back where only the 10,000 images of MNIST are there


def linear_from_zero(inputs: int, outputs: int) -> torch.nn.Module:
    """One linear layer with bias, all zeros: with a softmax or logistic loss a convex problem."""
    linear = torch.nn.Linear(inputs, outputs)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    return linear


def relu_network(inputs: int, hidden: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))


def _squared_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.squeeze(-1) - target).square()


def _huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    distance = (output.squeeze(-1) - target).abs()
    near = distance.clamp(max=1)
    return near * (distance - near / 2)


FEATURE_BOUND = 5.0  # bound of standardised features in the clipped tasks
DIGITS_MODELS = {
    "softmax": functools.partial(linear_from_zero, 64, 10),
    "mlp": functools.partial(relu_network, 64, 32, 10),
}
HOUSING_MODELS = {
    "mlp": (functools.partial(relu_network, 8, 64, 1), _squared_error),
    "linear": (functools.partial(linear_from_zero, 8, 1), _huber),
}
MNIST_MODELS = {
    "linear": functools.partial(linear_from_zero, 784, 10),
    "mlp": functools.partial(relu_network, 784, 128, 10),
}


def small_cnn(classes: int) -> torch.nn.Module:
    nn = torch.nn
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(8, 32)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 7 * 7, classes))


@TASKS.register()
def a9a(
    graph_or_num_nodes: Any,
    data_home: Folder = None,
    split: str = "libsvm",
    partition: partitions.Partition | str = "dirichlet:alpha=10",
) -> Task:
    """a9a (Adult): does a person earn more than 50,000 dollars a year, from 123 binary features.

    Logistic regression with loss log(1 + exp(-b x^T a)), b = +-1, 123 weights from zero and no bias: the cross entropy
    of the scores (0, x^T a), a tie counting as class 0. With b in {0, 1} in the loss, as arXiv:2405.01031 writes it,
    every record with b = 0 would have the constant loss log 2 and no gradient.

    Args:
        split: "libsvm" (a9a for training, 32,561 records; a9a.t for testing, 16,281) or "pool" (both together, the same
            fifth held back in all runs, as arXiv:2501.14644v2 does).
    """
    require_known("a9a split", split, ("libsvm", "pool"))
    train, test = (
        (features, (labels > 0).astype(np.int64))
        for features, labels in (data.a9a("train", data_home), data.a9a("test", data_home))
    )
    name, (train, test) = ("a9a-pool", _pooled(train, test)) if split == "pool" else ("a9a", (train, test))
    return _task(name, graph_or_num_nodes, train, test, _Logistic, partition, "none")


class _Logistic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(A9A_FEATURES))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        score = self.x @ records.mT  # of many models at once, records @ x takes eight times as long on a CPU
        return torch.stack([torch.zeros_like(score), score], dim=-1)


@TASKS.register(name="digits-mlp", fixed={"model": "mlp"})
@TASKS.register(example="digits:test_fraction=0.2")
def digits(
    graph_or_num_nodes: Any,
    model: str = "softmax",
    test_fraction: float = 1 / 3,
    partition: partitions.Partition | str = "uniform",
) -> Task:
    """Handwritten digits, 1,797 images of 8 x 8 pixels (divided by 16) in scikit-learn, classified with cross entropy.

    Args: model: "softmax" (64-10 linear, from zero, 650 parameters, convex) or "mlp" (64-32-10 with ReLU, torch's
        initial values, 2,410 parameters); test_fraction: share held back, the same records in all runs.
    """
    require_known("digits model", model, DIGITS_MODELS)
    test_fraction = check.open_unit(test_fraction=test_fraction)
    train, test = _held_back(_digits(), test_fraction)
    name = "digits" if model == "softmax" else f"digits-{model}"
    return _task(name, graph_or_num_nodes, train, test, DIGITS_MODELS[model], partition, "none")


@functools.cache
def _digits() -> Records:
    from sklearn.datasets import load_digits  # a second to import

    images, classes = load_digits(return_X_y=True)
    pixels = images / 16.0
    pixels.flags.writeable = classes.flags.writeable = False
    return pixels, classes


@TASKS.register(name="housing-linear", fixed={"model": "linear", "clip": FEATURE_BOUND})
@TASKS.register(name="housing-mlp", fixed={"clip": FEATURE_BOUND})
@TASKS.register(example="housing:model=linear,clip=5")
def housing(
    graph_or_num_nodes: Any,
    data_home: Folder = None,
    partition: partitions.Partition | str = "uniform",
    model: str = "mlp",
    clip: float = math.inf,
) -> Task:
    """California housing: the median house value of 20,640 districts from 8 features.

    Features are standardised by the mean and standard deviation of the TRAIN records (80%, scikit-learn's split with
    random_state 0), treated as public: no guarantee covers these 16 numbers. Targets are in units of 100,000 dollars.
    One test record lies 193 standard deviations out; the names housing-mlp and housing-linear clip at 5.

    Args:
        model: "mlp" (8-64-1 with ReLU, 641 parameters, squared error) or "linear" (9 parameters from zero, Huber's loss
            with threshold 1, convex).
        clip: bound > 0 on the absolute value of each standardised feature; a public constant.
    """
    require_known("housing model", model, HOUSING_MODELS)
    clip = clip if clip == math.inf else check.positive(clip=clip)
    features, targets, _ = data.california_housing(data_home)
    from sklearn.model_selection import train_test_split  # a second to import

    train, test = train_test_split(np.arange(len(targets)), test_size=TEST_FRACTION, random_state=DATA_SPLIT_SEED)
    mean, std = features[train].mean(axis=0), features[train].std(axis=0)
    features = np.clip((features - mean) / np.where(std > 0, std, 1.0), -clip, clip)
    train, test = ((features[rows], targets[rows]) for rows in (train, test))
    name = f"housing-{model}" + ("" if clip == FEATURE_BOUND else "-unclipped" if clip == math.inf else f"-{clip:g}")
    name = "housing" if name == "housing-mlp-unclipped" else name
    network, loss = HOUSING_MODELS[model]
    moments = "mean and standard deviation of each feature over the train records"
    return _task(name, graph_or_num_nodes, train, test, network, partition, moments, "regression", loss)


@TASKS.register(name="mnist-mlp", fixed={"model": "mlp"})
@TASKS.register(example="mnist:split=pool,fraction=0.2")
def mnist(
    graph_or_num_nodes: Any,
    data_home: Folder = None,
    model: str = "linear",
    source: str = "auto",
    split: str = "original",
    fraction: float = 1.0,
    partition: partitions.Partition | str = "uniform",
) -> Task:
    """MNIST: handwritten digits of 28 x 28 pixels, classified with cross entropy; pixels are divided by 255.

    Task "mnist" has the 60,000 training and 10,000 test images, "mnist-10k" the 10,000 test images alone, 5/6 of them
    (8,333) for training; their accuracies are not comparable.

    Args:
        model: "linear" (784-10, from zero, 7,850 parameters, convex) or "mlp" (784-128-10 with ReLU, torch's default
            initial values, 101,770 parameters).
        source: "full", fetched where needed; "10k"; or "auto": "10k" if the data folder holds both files of test images
            but not both of training images, else "full".
        split: "original" or "pool" (train and test images together, the same fifth held back in all runs; the name then
            ends in "-pool").
        fraction: share of the train records that is used, the same ones in all runs, in (0, 1].
    Source: the network of arXiv:2405.01031; one linear layer, the pool and fraction 0.2 are those of
        arXiv:2501.14644v2 and its code.
    """
    require_known("mnist model", model, MNIST_MODELS)
    require_known("mnist source", source, ("auto", "full", "10k"))
    require_known("mnist split", split, ("original", "pool"))
    if (fraction := check.positive(fraction=fraction)) > 1:
        raise InvalidInput(f"fraction must be a number > 0 and <= 1, got {fraction!r}.")
    train_is_there, test_is_there = (
        all((data.home(data_home) / name).is_file() for name in mnist_files(part)) for part in ("train", "test")
    )
    if source == "10k" or (source == "auto" and test_is_there and not train_is_there):
        name = "mnist-10k"
        share = TEST_FRACTION if split == "pool" else SMALL_TEST_FRACTION
        train, test = _held_back(data.mnist("test", data_home), share)
    else:
        name = "mnist"
        train, test = data.mnist("train", data_home), data.mnist("test", data_home)
        if split == "pool":
            train, test = _pooled(train, test)
    if fraction < 1:
        used = np.sort(split_rows(len(train[1]), fraction)[1])
        train = train[0][used], train[1][used]
    name += ("-pool" if split == "pool" else "") + ("" if model == "linear" else f"-{model}")
    train, test = ((_pixels(images), labels) for images, labels in (train, test))
    return _task(name, graph_or_num_nodes, train, test, MNIST_MODELS[model], partition, "none")


@TASKS.register(example="femnist:writers=10")
def femnist(graph_or_num_nodes: Any, data_home: Folder = None, writers: int = 10) -> Task:
    """FEMNIST: handwritten digits and letters, 62 classes of 28 x 28 pixels, by writer, classified with cross entropy.

    The first `writers` writers of the file are at node 0, the next at node 1, and so on. A fifth of the records of each
    node is held back, the same ones in all runs, and every node is tested on all of these. The network has two
    convolutions of 16 and 32 channels and a linear layer behind GroupNorm, 102,142 parameters, with torch's default
    initial values. Pixels are divided by 255. A guarantee is for one record, not for all records of a writer. The data
    are fetched with `mfdl[femnist]`.

    Source: the public code of arXiv:2510.17480, whose groups of writers these are; it draws the records that are held
        back anew for each seed.
    """
    num_nodes = node_count(graph_or_num_nodes)
    writers = check.integer_at_least(1, writers=writers)
    images, characters, writer = data.femnist(num_nodes * writers, data_home)
    owner, held_back = writer // writers, np.zeros(len(writer), dtype=bool)
    for node in range(num_nodes):
        rows = np.flatnonzero(owner == node)
        held_back[rows[split_rows(len(rows), TEST_FRACTION)[1]]] = True
    pixels = _pixels(images).reshape(-1, 1, *images.shape[1:])
    train, test = ((pixels[rows], characters[rows]) for rows in (~held_back, held_back))
    name = "femnist" if writers == 10 else f"femnist-{writers}-writers"
    network = functools.partial(small_cnn, 62)  # digits, capital and small letters
    return _task(name, num_nodes, train, test, network, partitions.Fixed(owner[~held_back]), "none")


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _held_back(records: Records, fraction: float) -> tuple[Records, Records]:
    features, targets = records
    train, test = split_rows(len(targets), fraction)
    return (features[train], targets[train]), (features[test], targets[test])


def _pooled(train: Records, test: Records) -> tuple[Records, Records]:
    features, targets = (np.concatenate(both) for both in zip(train, test, strict=True))
    return _held_back((features, targets), TEST_FRACTION)


def _task(
    name: str,
    graph_or_num_nodes: Any,
    train: Records,
    test: Records,
    build_module: Callable[[], torch.nn.Module],
    partition: partitions.Partition | str,
    public_constants: str,
    kind: Kind = "classification",
    loss: Callable[..., torch.Tensor] = torch.nn.functional.cross_entropy,
) -> Task:
    more: dict[str, Any] = {"features": train[0], "targets": train[1], "kind": kind, "build_module": build_module}
    more |= {"test_features": test[0], "test_targets": test[1], "loss": loss, "partition": partition}
    return from_module(name, graph_or_num_nodes, public_constants=public_constants, **more)


FloatArray = NDArray[np.float64]
Metric = Literal["squared-distance", "excess-loss"]
STARTS = ("zero", "ones", "optimum")
LARGEST_ENTRY = 1e15  # largest entry: squares of entries, and sums of them, stay well inside float32


@TASKS.register(example="least-squares:dimension=5")
def least_squares(
    graph_or_num_nodes: Any, dimension: int = 10, data_seed: int = 0, start: str | ArrayLike = "ones"
) -> Task:
    """Least squares at user level: node i = 1, ..., n holds f_i(x) = 1/2 ||A_i x - b_i||^2, A_i = (i / sqrt(n)) I.

    b_i is drawn from N(0, I / i^2), once for all runs, by `data_seed`. `Evaluation.loss` is ||x_u - x*||^2 with
    x* = (sum A_i^2)^-1 sum A_i b_i: what the experiment's code plots, where the paper's text says training loss.
    Use period 1. The experiment has 16 nodes, clipping norm 1, learning rate 1.668e-3, 3,500 steps and start "ones".
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
    """Quadratics in the plane that disagree: 15 (x_1 + i)^2 + x_2^2 at the nodes i <= n / 2, and at the others
    15 (x_1 - i)^2 + x_2^2, turned by 15 degrees counter-clockwise around its minimiser (i, 0).

    `Evaluation.loss` is f(x_u) - f(x*), f the mean: noise and disagreement keep it above 0. Use period 1. The
    experiment has 20 nodes, x* = (2.85, 15.08).

    Args:
        start: the first model of every node: "optimum", "zero", "ones" or two numbers. From 0, with clip_norm 0.1 and
            steps 0.01 / sqrt(t), t = 1, ..., 5000, a model moves by 0.14 at most and the loss stays near 601.
    Source: arXiv:2501.14644v2, quadratic experiment; it states neither the start nor the direction of the rotation.
    """
    n = node_count(graph_or_num_nodes)
    node = np.arange(1, n + 1)
    first = node <= n / 2
    center = np.stack([np.where(first, -node, node), np.zeros(n)], axis=1)
    angle = np.deg2rad(np.where(first, 0.0, 15.0))
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
    about 1e-14 of its value at x = 0. For user-level privacy, as a node has one record.

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
    test_records = _test_records(metric, hessian, optimum.astype(np.float64), m)
    public = "the first model, the minimiser" if isinstance(start, str) and start == "optimum" else "none"
    more: dict[str, Any] = {"build_module": functools.partial(_Residual, _start(start, optimum)), "num_nodes": n}
    more |= {"loss": _half_squared_norm, "partition": Fixed(np.arange(n)), "public_constants": public}
    return Task(name, "regression", records, np.zeros(n), test_records, np.zeros(2), **more)  # features are all


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


def _start(start: str | ArrayLike, optimum: NDArray[np.float32]) -> tuple[float, ...]:
    d = len(optimum)
    if isinstance(start, str):
        require_known("start", start, STARTS)
        point = optimum.astype(np.float64) if start == "optimum" else np.full(d, float(start == "ones"))
    elif len(point := check.finite_array(1, start=start)) != d:
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

    Args: decay: of the covariance's eigenvalues, 0 is isotropic; margin: separation of the classes, 0 leaves nothing to
        learn; clip: bound on the absolute value of a feature, a public constant.
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
    split = ((features[:train], targets[:train]), (features[train:], targets[train:]))
    return _task("logistic", graph_or_num_nodes, *split, functools.partial(linear_from_zero, d, 2), partition, "none")

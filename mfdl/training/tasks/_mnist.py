"""MNIST: handwritten digits of 28 x 28 pixels."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ... import check, data
from ...errors import InvalidInput, unknown_name
from . import partition as partitions
from ._networks import linear_from_zero, relu_network
from ._task import Task, from_module
from .seeds import split_rows

SMALL_TEST_FRACTION = 1 / 6
"""Share held back where only the 10,000 images are there."""

SOURCES = ("auto", "full", "10k")

Split = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]


def mnist(
    graph_or_num_nodes: Any,
    data_home: str | os.PathLike[str] | None = None,
    model: str = "linear",
    source: str = "auto",
    fraction: float = 1.0,
    partition: partitions.Partition | str = "uniform",
) -> Task:
    """Digit classification with cross entropy; pixels are divided by 255.

    The task's name tells which images it holds: "mnist" has the 60,000 training and 10,000 test images, "mnist-10k" the
    10,000 test images alone, 5/6 of them (8,333) for training; their accuracies are not comparable.

    Args:
        graph_or_num_nodes: a networkx graph, or the number of nodes.
        data_home: where the data are cached; None for the usual place.
        model: "linear" (784-10, from zero, 7,850 parameters, convex) or "mlp" (784-128-10 with ReLU, torch's default
            initial values, 101,770 parameters).
        source: "full", fetched where needed; "10k"; or "auto": "10k" if the data folder holds both files of test images
            but not both of training images, else "full".
        fraction: share of the train records that is used, the same ones in all runs, in (0, 1].
        partition: who holds which train record, or its text, see `partition.parse`.

    Source: the network of arXiv:2405.01031; one linear layer and fraction 0.2 are those of arXiv:2501.14644v2.
    """
    if model not in _MODELS:
        raise unknown_name("mnist model", model, _MODELS)
    if source not in SOURCES:
        raise unknown_name("mnist source", source, SOURCES)
    if (fraction := check.positive(fraction=fraction)) > 1:
        raise InvalidInput(f"fraction must be a number > 0 and <= 1, got {fraction!r}.")
    if source == "auto":
        source = "10k" if _holds(data_home, "test") and not _holds(data_home, "train") else "full"
    images, labels, test_images, test_labels = _full(data_home) if source == "full" else _ten_thousand(data_home)
    if fraction < 1:
        used = np.sort(split_rows(len(labels), fraction)[1])
        images, labels = images[used], labels[used]
    name = "mnist" if source == "full" else "mnist-10k"
    return from_module(
        name if model == "linear" else f"{name}-{model}",
        graph_or_num_nodes,
        kind="classification",
        features=_pixels(images),
        targets=labels,
        test_features=_pixels(test_images),
        test_targets=test_labels,
        build_module=_MODELS[model],
        loss=torch.nn.functional.cross_entropy,
        partition=partition,
    )


def _holds(data_home: str | os.PathLike[str] | None, part: Any) -> bool:
    return all((data.home(data_home) / name).is_file() for name in data.mnist_files(part))


def _full(data_home: str | os.PathLike[str] | None) -> Split:
    return (*data.mnist("train", data_home), *data.mnist("test", data_home))


def _ten_thousand(data_home: str | os.PathLike[str] | None) -> Split:
    images, labels = data.mnist("test", data_home)
    train, test = split_rows(len(labels), SMALL_TEST_FRACTION)
    return images[train], labels[train], images[test], labels[test]


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": functools.partial(linear_from_zero, 784, 10),
    "mlp": functools.partial(relu_network, 784, 128, 10),
}

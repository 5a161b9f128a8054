"""Handwritten digits: 1,797 images of 8 x 8 pixels that ship with scikit-learn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sklearn.datasets
import torch

from ... import check
from ...errors import unknown_name
from . import partition as partitions
from ._networks import linear_from_zero, relu_network
from ._task import Task, from_module
from .seeds import split_rows


def digits(
    graph_or_num_nodes: Any,
    model: str = "softmax",
    test_fraction: float = 1 / 3,
    partition: partitions.Partition | str = "uniform",
) -> Task:
    """Digit classification with cross entropy; pixels are divided by 16, their largest possible value.

    Args:
        graph_or_num_nodes: a networkx graph, or the number of nodes.
        model: "softmax" (64-10 linear, from zero, 650 parameters, convex) or "mlp" (64-32-10 with ReLU,
            torch's default initial values, 2,410 parameters).
        test_fraction: share of the records held back, the same ones in all runs (`seeds.split_rows`).
        partition: who holds which train record, or its text, see `partition.parse`.
    """
    if model not in _MODELS:
        raise unknown_name("digits model", model, _MODELS)
    test_fraction = check.open_unit(test_fraction=test_fraction)
    data = sklearn.datasets.load_digits()
    features, targets = data.data / 16.0, data.target
    train, test = split_rows(len(targets), test_fraction)
    return from_module(
        "digits" if model == "softmax" else f"digits-{model}",
        graph_or_num_nodes,
        kind="classification",
        features=features[train],
        targets=targets[train],
        test_features=features[test],
        test_targets=targets[test],
        build_module=_MODELS[model],
        loss=torch.nn.functional.cross_entropy,
        partition=partition,
    )


_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "softmax": functools.partial(linear_from_zero, 64, 10),
    "mlp": functools.partial(relu_network, 64, 32, 10),
}

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
from ._seeds import DATA_SPLIT, permutation
from ._task import Task, node_count

DATA_SPLIT_SEED = 0
"""Seed of the train and test split, one for all runs; the seeds of a run never move a record across it."""


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
        test_fraction: share of the records held back, by a split with the fixed seed `DATA_SPLIT_SEED` = 0.
        partition: who holds which train record, or its text, see `partition.parse`.
    """
    if model not in _MODELS:
        raise unknown_name("digits model", model, _MODELS)
    test_fraction = check.open_unit(test_fraction=test_fraction)
    data = sklearn.datasets.load_digits()
    features, targets = data.data / 16.0, data.target
    order = permutation(DATA_SPLIT_SEED, DATA_SPLIT, len(targets))
    num_test = max(1, round(test_fraction * len(targets)))
    test, train = order[:num_test], order[num_test:]
    return Task(
        name="digits" if model == "softmax" else f"digits-{model}",
        kind="classification",
        features=features[train],
        targets=targets[train],
        test_features=features[test],
        test_targets=targets[test],
        build_module=_MODELS[model],
        loss=torch.nn.functional.cross_entropy,
        num_nodes=node_count(graph_or_num_nodes),
        partition=partitions.parse(partition),
    )


_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "softmax": functools.partial(linear_from_zero, 64, 10),
    "mlp": functools.partial(relu_network, 64, 32, 10),
}

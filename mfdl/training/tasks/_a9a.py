"""a9a (Adult): does a person earn more than 50,000 dollars a year, from 123 binary features."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from ... import data
from ...errors import unknown_name
from . import partition as partitions
from ._task import Task, from_module
from .seeds import split_rows

TEST_FRACTION = 0.2

SPLITS = ("libsvm", "pool")


def a9a(
    graph_or_num_nodes: Any,
    data_home: str | os.PathLike[str] | None = None,
    split: str = "libsvm",
    partition: partitions.Partition | str = "dirichlet:alpha=10",
) -> Task:
    """Logistic regression with loss log(1 + exp(-b x^T a)), b = +-1, 123 weights from zero and no bias.

    The two scores of a record are (0, x^T a): their cross entropy is that loss, and the larger one the predicted class,
    1 for b = +1 (a tie counts as 0). With b in {0, 1} in the loss, as arXiv:2405.01031 writes it, every record with
    b = 0 would have the constant loss log 2 and no gradient.

    Args:
        graph_or_num_nodes: a networkx graph, or the number of nodes.
        data_home: where the data are cached; None for the usual place.
        split: "libsvm" (a9a for training, 32,561 records; a9a.t for testing, 16,281) or "pool" (both together, a fifth
            held back the same one in all runs, as arXiv:2501.14644v2 does).
        partition: who holds which train record, or its text, see `partition.parse`.
    """
    if split not in SPLITS:
        raise unknown_name("a9a split", split, SPLITS)
    (features, labels), (test_features, test_labels) = data.a9a("train", data_home), data.a9a("test", data_home)
    if split == "pool":
        features, labels = np.concatenate([features, test_features]), np.concatenate([labels, test_labels])
        train, test = split_rows(len(labels), TEST_FRACTION)
        features, labels, test_features, test_labels = features[train], labels[train], features[test], labels[test]
    return from_module(
        "a9a" if split == "libsvm" else f"a9a-{split}",
        graph_or_num_nodes,
        kind="classification",
        features=features,
        targets=(labels > 0).astype(np.int64),
        test_features=test_features,
        test_targets=(test_labels > 0).astype(np.int64),
        build_module=_Logistic,
        loss=torch.nn.functional.cross_entropy,
        partition=partition,
    )


class _Logistic(torch.nn.Module):
    """Scores (0, x^T a) of each record a."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(data.A9A_FEATURES))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        score = records @ self.x
        return torch.stack([torch.zeros_like(score), score], dim=-1)

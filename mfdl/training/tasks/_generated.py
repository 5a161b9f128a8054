"""Generated records whose distribution is known: logistic regression on features of a known spectrum."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

from ... import check
from . import partition as partitions
from . import seeds
from ._data_sets import linear_from_zero
from ._task import TASKS, Task, from_module


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
    scores, cross entropy: convex, and the true model is among those it can be.

    Args:
        graph_or_num_nodes: a networkx graph, or the number of nodes.
        dimension, train_records, test_records: d and how many records, drawn once for all runs.
        decay: of the eigenvalues of the features' covariance, >= 0; 0 is isotropic.
        margin: how far apart the classes are, >= 0; 0 leaves nothing to learn.
        clip: bound on the absolute value of a feature, > 0; a public constant.
        data_seed: of all records.
        partition: who holds which train record, or its text, see `partition.parse`.
    """
    sizes = {"dimension": dimension, "train_records": train_records, "test_records": test_records}
    d, train, test = (check.integer_at_least(1, **{name: value}) for name, value in sizes.items())
    decay, margin = check.non_negative(decay=decay), check.non_negative(margin=margin)
    clip, data_seed = check.positive(clip=clip), check.integer_at_least(0, data_seed=data_seed)
    spectrum = np.arange(1, d + 1) ** -decay
    uniform = seeds.Uniforms(data_seed, seeds.SYNTHETIC_DATA)
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

"""What wrong turns are taken with: a small algorithm, its mechanism and a task; and what every refusal must have."""

import networkx as nx
import numpy as np
import pytest
from torch import nn
from vocabulary import ZERO_OUT

import mfdl
from mfdl.errors import InvalidInput

G = nx.cycle_graph(4)
W = mfdl.gossip.metropolis_hastings(G)
D = mfdl.Dynamics(W, 0.1)
P = mfdl.Cyclic(2, 3)
A = mfdl.algorithms.dp_dsgd(D, P)
AB = mfdl.algorithms.dp_dsgd(D, mfdl.BallsInBins(2, 3))
AP = mfdl.algorithms.dp_dsgd(D, mfdl.PoissonSampling(0.1, 6))
LDP = mfdl.trust.LDP()
TERMS = {"trust": LDP, "adjacency": "zero-out", "clip_norm": 1.0}
M = mfdl.calibrate(A, mfdl.Privacy(**TERMS), mu=1.0)
Q1 = mfdl.Privacy(LDP, **ZERO_OUT)
TRUSTLESS = mfdl.Privacy(**ZERO_OUT)
KEY = mfdl.NoiseKey.from_seed(0)

x = np.random.default_rng(0).standard_normal((40, 3))
y = np.arange(40) % 2
ARRAYS = {"features": x, "targets": y, "test_features": x, "test_targets": y}


def asked(**changes):
    return mfdl.Privacy(**TERMS | changes)


def linear(outputs: int = 2) -> nn.Module:
    return nn.Linear(3, outputs)


def entropy(scores, label):
    return nn.functional.cross_entropy(scores, label)


def task(num_nodes=4, **changes):
    given = {"kind": "classification", "build_module": linear, "loss": entropy}
    if "train" not in changes:
        given |= ARRAYS
    return mfdl.tasks.from_module("mine", num_nodes, **(given | changes))


TASK = task()


def same(first, other) -> bool:
    return first.content_hash == other.content_hash


def require_refused(call, words, error=InvalidInput):
    """A short message with all of these words, in an error of this very class."""
    with pytest.raises(InvalidInput) as caught:
        call()
    assert caught.type is error
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert len(message) < 500

"""`gossip.average` in the loop of the page: counters and masks stay, sums are taken in float32, shapes must agree."""

import networkx as nx
import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

import mfdl

N = 33
COMPLETE = mfdl.gossip.metropolis_hastings(nx.complete_graph(N))


class Buffered(nn.Module):
    """A linear layer with a table of places, a mask and a counter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("places", torch.tensor([3, 1, 2, 0]))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.tensor(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_averaging_loop_keeps_integers_and_averages_numbers(dtype):
    modules = [Buffered().to(dtype) for _ in range(N)]
    messages = {j: {name: x.clone() for name, x in m.state_dict().items()} for j, m in enumerate(modules)}
    exact = torch.stack([messages[j]["linear.weight"].double() for j in range(N)])
    for i, module in enumerate(modules):
        module.load_state_dict(mfdl.gossip.average(messages, COMPLETE, i))
        wanted = torch.einsum("j,jab->ab", torch.tensor(COMPLETE.weights.toarray()[i]), exact)
        eps = max(torch.finfo(dtype).eps, N * torch.finfo(torch.float32).eps if dtype != torch.float64 else 1e-14)
        assert (module.linear.weight.double() - wanted).abs().max() <= eps * exact.abs().max()
        assert module.places.tolist() == [3, 1, 2, 0]
        assert module.mask.tolist() == [True, False, True]
        assert module.count == 5
    assert all(m["places"].tolist() == [3, 1, 2, 0] for m in messages.values())


def test_equal_models_of_few_bits_stay_equal():
    for dtype in (torch.bfloat16, torch.float16):
        ones = mfdl.gossip.average({j: torch.ones(3, dtype=dtype) for j in range(N)}, COMPLETE, 0)
        assert ones.dtype == dtype
        assert (ones == 1).all()
    halves = mfdl.gossip.average({j: np.ones(3, dtype=np.float16) for j in range(N)}, COMPLETE, 0)
    assert halves.dtype == np.float16
    assert (halves == 1).all()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"places": torch.tensor([3, 1, 0, 2])},
            "'places', of type torch.int64, must be equal.*of node 7 than of node 0",
        ),
        ({"mask": torch.tensor([True, True, True])}, "'mask', of type torch.bool"),
        ({"count": torch.tensor(6)}, "'count', of type torch.int64"),
        ({"linear.bias": torch.zeros(1)}, r"'linear.bias' must have one shape.*\(3,\).*of node 0 and .*\(1,\).*node 7"),
        ({"linear.bias": torch.zeros(3, dtype=torch.float64)}, "'linear.bias' must have one shape and type"),
        ({"linear.bias": np.zeros(3, dtype=np.float32)}, "'linear.bias' must have one shape and type"),
    ],
)
def test_what_is_no_average_is_refused_with_its_name(other, words):
    messages = {j: Buffered().state_dict() for j in range(N)}
    messages[7] = {**messages[7], **other}
    refuses(words, mfdl.gossip.average, messages, COMPLETE, 3)


def test_shapes_that_numpy_would_broadcast_are_refused():
    W = mfdl.gossip.metropolis_hastings(nx.complete_graph(3))
    shapes = [(2,), (1,), (2,)]
    refuses("messages must", lambda: mfdl.gossip.average({j: np.zeros(shape) for j, shape in enumerate(shapes)}, W, 0))
    assert mfdl.gossip.average(dict.fromkeys(range(3), 7), W, 0) == 7
    refuses("cast it to a floating-point type", mfdl.gossip.average, {0: 1, 1: 2, 2: 3}, W, 0)

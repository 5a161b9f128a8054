"""The small networks that several tasks train, as module-level functions, which worker processes can be sent."""

from __future__ import annotations

import torch


def linear_from_zero(inputs: int, outputs: int) -> torch.nn.Module:
    """One linear layer with bias, all zeros: with a softmax or logistic loss a convex problem, no random start."""
    linear = torch.nn.Linear(inputs, outputs)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    return linear


def relu_network(inputs: int, hidden: int, outputs: int) -> torch.nn.Module:
    """One hidden layer with ReLU, torch's default initial values."""
    return torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))

"""Forward passes of all nodes and records at once, for modules that are a chain of known layers.

In: a module that is exactly a `Linear`, or a `Sequential` of such layers, of functions of single entries and `Flatten`.
Out: the outputs of every node's parameters on its own records, by one product a layer, with input and output of each
product. No operation mixes records: that follows from the types of the layers, so records need not be kept apart by
vmap, which walks through Python for every call. Any other module, and one with hooks, is left to vmap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

ENTRYWISE = nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity
"""Layers that are functions of single entries."""
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class StackedCall(NamedTuple):
    """One linear layer for all nodes and records.

    Attributes: weight, bias: names of the parameters; input: (n, B, I); output: (n, B, O).
    """

    weight: str
    bias: str | None
    input: torch.Tensor
    output: torch.Tensor


def chain(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The layers in their order with the prefixes of their parameters; None where one is not known."""
    layers = [*_layers(module, "")]
    parameters = [parameter for _, layer in layers for parameter in layer.parameters()]
    distinct = len({*map(id, parameters)}) == len(parameters) > 0
    known = distinct and all(parameter.requires_grad for parameter in parameters)
    return layers if known and all(_is_known(layer) for _, layer in layers) and is_plain(module) else None


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        for name, layer in module._modules.items():
            yield from _layers(layer, f"{prefix}{name}.")
    else:
        yield prefix, module


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    return (type(layer) is nn.Linear or type(layer) in ENTRYWISE) and not getattr(layer, "inplace", False)


def is_plain(module: nn.Module) -> bool:
    """Whether a call of the module is now what the types of its layers say: no hook and no autocast changes it."""
    if _has_any_global_hook() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    facts = map(vars, module.modules())
    return not any("forward" in fact or any(map(fact.__getitem__, HOOKS)) for fact in facts)


def stacked_calls(
    layers: list[tuple[str, nn.Module]], parameters: Mapping[str, torch.Tensor], features: torch.Tensor
) -> tuple[torch.Tensor, list[StackedCall]] | None:
    """Outputs (n, B, O) of parameters (n, ...) on records (n, B, ...), and the linear layers; None: not of this form.

    With gradients enabled autograd reaches the output of every linear layer, whether or not it reaches parameters.
    """
    x, calls = features, list[StackedCall]()
    for prefix, layer in layers:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif not isinstance(layer, nn.Linear):
            x = layer(x)
        else:
            weight, bias = f"{prefix}weight", None if layer.bias is None else f"{prefix}bias"
            W = parameters[weight].mT
            if x.ndim != 3 or x.dtype != W.dtype:
                return None
            output = x @ W if bias is None else torch.baddbmm(parameters[bias].unsqueeze(1), x, W)
            if torch.is_grad_enabled() and not output.requires_grad:
                output.requires_grad_()
            calls.append(StackedCall(weight, bias, x, output))
            x = output
    return x, calls

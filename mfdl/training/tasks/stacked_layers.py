"""Forward passes of all nodes and records at once, for chains of known layers; fused calls for torch.func.

A module that is exactly a `Linear`, or a `Sequential` of such layers, of functions of single entries and `Flatten`, is
computed by one product a layer. Any other module, and one with hooks, is left to vmap, for which the fused calls of
recurrent layers and attention are written out (`written_out`), equal up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode

ENTRYWISE = nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class StackedCall(NamedTuple):
    """One linear layer for all nodes and records: names of weight and bias; input (n, B, I); output (n, B, O)."""

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


State = tuple[torch.Tensor, ...]
Step = Callable[..., State]


def _gru(gates: torch.Tensor, state: State, *weights: torch.Tensor | None) -> State:
    reset, update, new = gates.chunk(3, -1)
    of_reset, of_update, of_new = linear(state[0], *weights).chunk(3, -1)  # type: ignore[arg-type]
    candidate = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return (candidate + (update + of_update).sigmoid() * (state[0] - candidate),)


def _lstm(gates: torch.Tensor, state: State, weight: Any, bias: Any, *projection: torch.Tensor) -> State:
    i, f, g, o = (gates + linear(state[0], weight, bias)).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    hidden = o.sigmoid() * cell.tanh()
    return linear(hidden, *projection) if projection else hidden, cell


def _plain(activation: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    return lambda gates, state, *weights: (activation(gates + linear(state[0], *weights)),)


def _cell(step: Step) -> Callable[..., Any]:
    def call(x: torch.Tensor, state: Any, w_in: Any, w: Any, b_in: Any = None, b: Any = None) -> Any:
        pair = isinstance(state, tuple | list)
        after = step(linear(x, w_in, b_in), tuple(state) if pair else (state,), w, b)
        return after if pair else after[0]

    return call


def _fused_layers(step: Step) -> Callable[..., State]:
    def call(x: torch.Tensor, start: Any, weights: Sequence[torch.Tensor], *settings: Any) -> State:
        has_biases, num_fused_layers, _, _, bidirectional, batch_first = settings  # no dropout, as `modules` refuses it
        states = tuple(start) if isinstance(start, tuple | list) else (start,)
        x, ends = x.transpose(0, 1) if batch_first else x, []
        per_cell = len(weights) // len(states[0])
        for layer in range(num_fused_layers):
            directions = []
            for reverse in range(1 + bidirectional):
                cell = layer * (1 + bidirectional) + reverse
                w_in, w, *rest = weights[cell * per_cell : (cell + 1) * per_cell]
                b_in, b, *projection = rest if has_biases else (None, None, *rest)
                gates, state, outputs = linear(x, w_in, b_in), tuple(part[cell] for part in states), []
                for now in reversed(gates.unbind()) if reverse else gates.unbind():
                    state = step(now, state, w, b, *projection)
                    outputs.append(state[0])
                directions.append(torch.stack(outputs[::-1] if reverse else outputs))
                ends.append(state)
            x = torch.cat(directions, -1)
        return x.transpose(0, 1) if batch_first else x, *(torch.stack(part) for part in zip(*ends, strict=True))

    return call


_STEPS: dict[str, Step] = {"gru": _gru, "lstm": _lstm, "rnn_tanh": _plain(torch.tanh), "rnn_relu": _plain(torch.relu)}
_LAYERS = {getattr(torch, name): _fused_layers(step) for name, step in _STEPS.items()}
_CELLS = {getattr(torch, f"{name}_cell"): _cell(step) for name, step in _STEPS.items()}


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _LAYERS and len(args) > 3 and isinstance(args[3], bool):  # packed sequences have weights there
            func = _LAYERS[func]
        return _CELLS.get(func, func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH), _WrittenOut():
        yield

"""Calls that torch runs fused, written out in operations that torch.func can batch over models and records.

In: a module that calls `gru`, `lstm`, `rnn_tanh`, `rnn_relu`, their cells or attention. Out: the same numbers up to
rounding, from linear maps and elementwise functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

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


def _layers(step: Step) -> Callable[..., State]:
    def call(x: torch.Tensor, start: Any, weights: Sequence[torch.Tensor], *settings: Any) -> State:
        has_biases, num_layers, _, _, bidirectional, batch_first = settings  # no dropout, as `modules` refuses it
        states = tuple(start) if isinstance(start, tuple | list) else (start,)
        x, ends = x.transpose(0, 1) if batch_first else x, []
        per_cell = len(weights) // len(states[0])
        for layer in range(num_layers):
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


_STEPS: dict[str, Step] = {
    "gru": _gru,
    "lstm": _lstm,
    "rnn_tanh": _plain(torch.tanh),
    "rnn_relu": _plain(torch.relu),
}
_LAYERS = {getattr(torch, name): _layers(step) for name, step in _STEPS.items()}
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
    """Where it holds, fused calls are replaced; attention takes torch's own unfused way."""
    with sdpa_kernel(SDPBackend.MATH), _WrittenOut():
        yield

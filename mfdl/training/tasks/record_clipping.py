"""Sums of clipped per-record gradients of a module: with weights as factors where that is cheaper (ghost clipping).

A weight is factored, with its bias, if it is the weight of exactly one call of `torch.nn.functional.linear`, `conv1d`
or `conv2d`, and autograd finds no other path from it to the loss. All other parameters get per-record gradients, and
all do where the forward pass takes derivatives itself. Privacy does not depend on that choice: a record's inputs,
backprops and gradients are its own, and what is clipped is what is summed.

Under `Quantile` the clipping norm follows a quantile of the norms: its logarithm is one more parameter of each node's
model, and a record's contribution is

    (C a min(1, c / ||g||) g / c, C b v),  v = (1{||g|| <= c} - q) / max(q, 1 - q),  a^2 + b^2 <= 1,

c of the node's own model: a function of record and model of norm at most C, as every gradient is. So any guarantee for
gradients chosen from models covers it, whatever the noise and whoever sees which messages: nothing is released beside
the models. By descent on v, log c moves to where a share q of the norms is below c.

Source: Andrew et al., arXiv:1905.03871 (quantiles by noisy counts; there at a server, and with noise of its own).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.func import vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...errors import UnsupportedMechanism
from .. import clipping
from ..clipping import ClipRule, Flat, Quantile
from .modules import Parameters, PerRecordModel, record_copies

LOG_NORM = "log_norm"
BELOW = 1 - 2.0**-20  # what rounding to float32 may need of the share of each part
FACTORED_FROM = 2**8  # entries of a record's gradient that factors must save
DERIVATIVES = (
    "grad",
    "backward",
    "_make_dual",
)  # of torch; in a forward pass, weights act outside of their calls' values


@dataclasses.dataclass(frozen=True)
class _Linear:
    """The arguments of `functional.linear`; settings: those that a later call must repeat."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    groups = 1
    settings = ()

    def factors(self, backprops: torch.Tensor, with_bias: bool) -> clipping.Factors:
        a, b = (part.reshape(*part.shape[:2], 1, -1, part.shape[-1]) for part in (self.input, backprops))
        return clipping.Factors(a, b, with_bias)


Size = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """The arguments of `functional.conv1d` and `conv2d`: a linear map of the patches under the kernel."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    stride: Size = 1
    padding: Size | str = 0
    dilation: Size = 1
    groups: int = 1

    @property
    def settings(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def factors(self, backprops: torch.Tensor, with_bias: bool) -> clipping.Factors:
        kernel = tuple(self.weight.shape[2:])
        axes = len(kernel)
        n, B = backprops.shape[:2]
        images = self.input.reshape(-1, *self.input.shape[-axes - 1 :])
        stride, dilation = _each(self.stride, axes), _each(self.dilation, axes)
        if isinstance(self.padding, str):
            total = [d * (k - 1) if self.padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
            around = [(size // 2, size - size // 2) for size in total]
        else:
            around = [(size, size) for size in _each(self.padding, axes)]
        images = functional.pad(images, [size for pair in reversed(around) for size in pair])
        if axes == 1:
            images, kernel, stride, dilation = images.unsqueeze(-2), (1, *kernel), (1, *stride), (1, *dilation)
        patches = functional.unfold(images, kernel, dilation=dilation, stride=stride)
        outputs = backprops.reshape(len(images), -1, patches.shape[-1])

        def by_group(columns: torch.Tensor) -> torch.Tensor:
            split = columns.reshape(n, B, len(images) // (n * B), self.groups, -1, columns.shape[-1])
            return split.permute(0, 1, 3, 2, 5, 4).flatten(3, 4)

        return clipping.Factors(by_group(patches), by_group(outputs), with_bias)


_Call = _Linear | _Convolution
_CALLS: dict[Callable[..., torch.Tensor], type[_Call]] = {
    functional.linear: _Linear,
    functional.conv1d: _Convolution,
    functional.conv2d: _Convolution,
}


def _each(size: Size, axes: int) -> tuple[int, ...]:
    values = (size,) if isinstance(size, int) else tuple(size)
    return values * axes if len(values) == 1 else values


class _Watch(TorchFunctionMode):
    """Watches each call with one of the given weights while a module computes; its output is moved by `moved`.

    `other_uses`: names of the other functions that used a weight, in their order.
    """

    def __init__(self, weights: Parameters, moved: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.names = {id(weight): name for name, weight in weights.items()}
        self.moved, self.calls, self.other_uses = moved, dict[str, list[_Call]](), dict[str, list[str]]()
        self.differentiates = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, function_name = kwargs or {}, getattr(func, "__name__", "")
        self.differentiates |= function_name in DERIVATIVES
        call = _CALLS[func](*args, **kwargs) if func in _CALLS else None
        name = None if call is None else self.names.get(id(call.weight))
        if call is None or name is None:
            result = func(*args, **kwargs)
            if isinstance(result, torch.Tensor):
                for part in (*args, *kwargs.values()):
                    for used in part if isinstance(part, list | tuple) else (part,):
                        if (other := self.names.get(id(used))) is not None:
                            self.other_uses.setdefault(other, []).append(function_name)
            return result
        self.calls.setdefault(name, []).append(call)
        bias = None if call.bias is None else call.bias.detach() if id(call.bias) in self.names else call.bias
        return self.moved(name, func(call.input, call.weight.detach(), bias, *call.settings))

    def bias_name(self, call: _Call) -> str | None:
        return self.names.get(id(call.bias))

    def uses(self, *names: str | None) -> list[str]:
        return [use for name in names if name is not None for use in self.other_uses.get(name, [])]


@dataclasses.dataclass(frozen=True)
class Layer:
    """Use of one weight.

    Attributes: bias: name of the bias that is factored with the weight; output_shape, settings: of the call for one
        record; other_uses: of weight and bias, through which no derivative goes; groups, positions, inputs, outputs:
        of the factors, g, P, I and O.
    """

    bias: str | None
    output_shape: torch.Size
    settings: tuple[Any, ...]
    other_uses: list[str]
    groups: int
    positions: int
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        return self.groups * self.positions * (self.inputs + self.outputs + self.positions)

    @property
    def entries(self) -> int:
        return self.groups * (self.inputs + (self.bias is not None)) * self.outputs

    @property
    def is_cheaper(self) -> bool:
        """Whether factors take less than the gradient, and `clipping.norm_bounds` is proved for them."""
        terms = self.inputs + 1 + self.outputs + self.positions**2
        return self.size < self.entries and terms <= clipping.LARGEST_SUM


@dataclasses.dataclass(frozen=True, eq=False)
class RecordClipping:
    """Sums of clipped per-record gradients; layers: of the weights that are factored, empty: none."""

    model: PerRecordModel
    layers: dict[str, Layer]

    @classmethod
    def from_model(cls, model: PerRecordModel, record: torch.Tensor, target: torch.Tensor) -> RecordClipping:
        """The cheaper way, the same on every device."""
        layers = _factorable(model, record, target)
        if model.chain is None or any(layer.positions > 1 for layer in layers.values()):
            layers = {name: layer for name, layer in layers.items() if layer.is_cheaper}
            saved = sum(layer.entries - layer.size for layer in layers.values())
            layers = layers if saved >= FACTORED_FROM else {}
        return cls(model, layers)

    def record_size(self, activations: int, num_slots: int) -> int:
        plain = self.model.dimension - sum(layer.entries for layer in self.layers.values())
        size = 3 * plain + 4 * activations  # gradients, their finite copy and their products; forward and backward
        if self.layers:  # factors, patches and float64 copies; the sums in float64 and rounded
            size += sum(6 * layer.size for layer in self.layers.values()) - (-4 * self.model.dimension // num_slots)
        return size

    @torch.no_grad()
    def sums(
        self,
        rows: torch.Tensor,
        features: torch.Tensor,
        targets: torch.Tensor,
        mask: torch.Tensor,
        clip_norm: float | ClipRule,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sums (n, d) of clipped gradients: rows (n, d), features (n, B, ...), mask (n, B).

        Args: scales: public factors of the gradients before clipping, (n, d), where no weight is factored.
        Guarantees: those of `clipping.clipped_sums`, or of `clipping.ghost_clipped_sums` where weights are factored.
        Raises: UnsupportedMechanism: the module does not use its weights as it did when it was inspected.
        """
        rule = clip_norm if isinstance(clip_norm, ClipRule) else Flat(clip_norm)
        part_of = {name: number for number, (_, names) in enumerate(rule.parts(self.model.shapes)) for name in names}
        if any(part_of[layer.bias or name] != part_of[name] for name, layer in self.layers.items()):  # clipped apart
            return dataclasses.replace(self, layers={}).sums(rows, features, targets, mask, rule, scales)
        if self.layers:
            plain, factors = self._gradients(rows, features, targets)
        else:
            plain, factors = self.model.per_record_gradients(rows, features, targets), {}
        if scales is not None:
            of_parameter = self.model.unflatten(scales)
            plain = {name: gradient * of_parameter[name].unsqueeze(1) for name, gradient in plain.items()}
        log_norms = self.model.unflatten(rows).get(LOG_NORM)
        rule, votes = at_learned_norm([*plain.values()], [*factors.values()], log_norms, mask, rule)
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        views = self.model.unflatten(out)
        for part, names in rule.parts(self.model.shapes):
            gradients = {name: plain[name] for name in names if name in plain}
            weights = {name: factors[name] for name in names if name in factors}
            if self.layers:
                sums, weight_sums = clipping.ghost_clipped_sums([*gradients.values()], [*weights.values()], mask, part)
            else:
                sums, weight_sums = clipping.clipped_sums([*gradients.values()], mask, part), []
            for name, total in zip(gradients, sums, strict=True):
                views[name].copy_(total)
            for name, total in zip(weights, weight_sums, strict=True):
                weight, bias = views[name], self.layers[name].bias
                inputs = total.shape[-1] - (bias is not None)
                weight.view(total[..., :inputs].shape).copy_(total[..., :inputs])
                if bias is not None:
                    views[bias].view(total.shape[:-1]).copy_(total[..., -1])
        return _voted(self.model, out, votes)

    @torch.enable_grad()
    def _gradients(
        self, rows: torch.Tensor, features: torch.Tensor, targets: torch.Tensor
    ) -> tuple[Parameters, dict[str, clipping.Factors]]:
        """Per-record gradients (n, B, ...) of parameters without factors, and factors of the others."""
        model, parameters = self.model, self.model.parameters(rows)
        if (stacked := model.stacked_calls(parameters, features)) is not None:
            outputs, calls = stacked
            if [(call.weight, call.bias) for call in calls] == [(name, x.bias) for name, x in self.layers.items()]:
                pairs = zip(calls, model.derivatives([x.output for x in calls], outputs, targets), strict=True)
                return {}, {x.weight: _Linear(x.input, x.input).factors(b, x.bias is not None) for x, b in pairs}
        biases = [layer.bias for layer in self.layers.values() if layer.bias is not None]
        shared = {name: parameters.pop(name) for name in (*self.layers, *biases)}
        copies, batch = record_copies(parameters, targets.shape[1]), targets.shape
        shifts = {
            name: rows.new_zeros(*batch, *layer.output_shape).requires_grad_() for name, layer in self.layers.items()
        }
        seen: dict[str, _Call] = {}

        def record_outputs(
            copies: Parameters, shifts: Parameters, shared: Parameters, record: torch.Tensor
        ) -> tuple[torch.Tensor, Parameters]:
            with _Watch(shared, lambda name, output: output + shifts[name].to(output.dtype)) as watch:
                output = model.record_output({**copies, **shared}, record)
            self._require_as_planned(watch)
            seen.update({name: calls[0] for name, calls in watch.calls.items()})
            return output, {name: call.input for name, call in seen.items()}

        # The derivative by a shift of a layer's output is the layer's backprop.
        in_dims: Any = (0, 0, None, 0), (0, 0, 0, 0)
        outputs, inputs = vmap(vmap(record_outputs, in_dims[0]), in_dims[1])(copies, shifts, shared, features)
        variables = [*copies.values(), *shifts.values()]
        gradients = [g.to(rows.dtype) for g in model.derivatives(variables, outputs, targets)]
        backprops = dict(zip(shifts, gradients[len(copies) :], strict=True))
        factors = {
            name: dataclasses.replace(
                call, input=inputs[name].detach().to(rows.dtype), weight=shared[name][0], bias=None
            ).factors(backprops[name], self.layers[name].bias is not None)
            for name, call in seen.items()
        }
        return dict(zip(copies, gradients[: len(copies)], strict=True)), factors

    def _require_as_planned(self, watch: _Watch) -> None:
        now = {
            name: [(watch.bias_name(call), call.settings, watch.uses(name, watch.bias_name(call))) for call in calls]
            for name, calls in watch.calls.items()
        }
        if now != {name: [(layer.bias, layer.settings, layer.other_uses)] for name, layer in self.layers.items()}:
            raise UnsupportedMechanism(
                f"{type(self.model.module).__name__} uses the weights {', '.join(self.layers)} otherwise than "
                f"before, so its gradients cannot be taken; write a forward pass that is the same every time."
            )


class WithLogNorm(torch.nn.Module):
    """A module with the logarithm of a clipping norm, first 0, which its output does not depend on."""

    def __init__(self, build_module: Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        self.module = build_module()
        self.log_norm = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(x)
        return output


def with_log_norm(task: Any) -> Any:
    """The `Task`, whose module imports this one, with the parameter; itself if it has it."""
    builds = task.build_module
    if isinstance(builds, functools.partial) and builds.func is WithLogNorm:
        return task
    return dataclasses.replace(task, build_module=functools.partial(WithLogNorm, builds), lipschitz=None)


@dataclasses.dataclass(frozen=True, eq=False)
class AtLearned(ClipRule):
    """C a / max(||g||, c), c = `learned` of each node's model, (n, 1), float64."""

    learned: torch.Tensor

    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        return norm / torch.maximum(norms, self.learned)


def clipped_rows(
    model: PerRecordModel, rows: torch.Tensor, gradients: torch.Tensor, present: torch.Tensor, rule: float | ClipRule
) -> torch.Tensor:
    """Gradients (n, d) as of `clipping.clipped_rows`, each by the rule at the models `rows`, (n, d) or (1, d)."""
    rule = rule if isinstance(rule, ClipRule) else Flat(rule)
    log_norms = model.unflatten(rows).get(LOG_NORM)
    rule, votes = at_learned_norm([gradients.unsqueeze(1)], [], log_norms, present.unsqueeze(1), rule)
    parts = rule.parts(model.shapes)
    sizes = [sum(model.shapes[name].numel() for name in names) for _, names in parts]
    pieces = zip(gradients.split(sizes, dim=1), parts, strict=True)
    return _voted(
        model, torch.cat([clipping.clipped_rows(piece, present, part) for piece, (part, _) in pieces], 1), votes
    )


def at_learned_norm(
    plain: Sequence[torch.Tensor],
    factors: Sequence[clipping.Factors],
    log_norms: torch.Tensor | None,
    mask: torch.Tensor,
    rule: ClipRule,
) -> tuple[ClipRule, torch.Tensor | None]:
    """The rule at the models of a step, and sums (n,), float64, of what records add to `LOG_NORM` if models learn one.

    Args: log_norms: that parameter of each node, (n,); the others as of `clipping.ghost_clipped_sums`.
    Guarantees: a record's gradient by that rule and its entry together have norm at most `rule.norm`, rounded to the
        type of the gradients too; the entry of a masked record, and of one that is not finite, is zero.
    """
    if not isinstance(rule, Quantile) or log_norms is None:
        return rule, None
    learned = log_norms.double().exp().clamp(min=clipping.SMALLEST_GAMMA).unsqueeze(1)
    at_learned = AtLearned(rule.norm * math.sqrt(1 - rule.share**2) * BELOW, learned)
    norms = clipping.norm_bounds(plain, factors)
    votes = torch.where(norms <= learned, 1 - rule.quantile, -rule.quantile) / max(rule.quantile, 1 - rule.quantile)
    counted = mask & torch.isfinite(norms)
    return at_learned, torch.where(counted, votes * (rule.norm * rule.share * BELOW), 0.0).sum(1)


def _voted(model: PerRecordModel, sums: torch.Tensor, votes: torch.Tensor | None) -> torch.Tensor:
    if votes is not None:
        model.unflatten(sums.detach())[LOG_NORM].copy_(votes)
    return sums


@torch.enable_grad()
def _factorable(model: PerRecordModel, record: torch.Tensor, target: torch.Tensor) -> dict[str, Layer]:
    """The weights whose gradient is the product of one call's input and backprop, with the biases of these calls.

    Each watched call takes its weight and bias detached, so autograd reaches them only by other paths: None where there
    is none. (`checked_model` refuses an input that is changed in place after the call, as autograd does.)
    """
    with torch.random.fork_rng(devices=[]):
        parameters = {
            name: p.detach().clone().requires_grad_() for name, p in model.module.named_parameters() if p.requires_grad
        }
        outputs: Parameters = {}

        def moved(name: str, output: torch.Tensor) -> torch.Tensor:
            if is_functorch_wrapped_tensor(output):  # by a vmap in the forward pass, beyond which nothing can be kept
                return output
            outputs[name] = output
            return output + torch.zeros_like(output, requires_grad=True)

        with (watch := _Watch(parameters, moved)):
            output = model.record_output(parameters, record)
        loss = model.loss(output, target)
        names = [name for name in outputs if len(watch.calls[name]) == 1]
        if not names or not loss.requires_grad or watch.differentiates:
            return {}
        reached = dict(
            zip(parameters, torch.autograd.grad(loss, [*parameters.values()], allow_unused=True), strict=True)
        )
    bias_calls = [watch.bias_name(call) for calls in watch.calls.values() for call in calls]
    layers: dict[str, Layer] = {}
    for name in names:
        (call,), output, bias = watch.calls[name], outputs[name], watch.bias_name(watch.calls[name][0])
        if reached[name] is None:
            if bias is not None and (reached[bias] is not None or bias_calls.count(bias) > 1):
                bias = None
            width, inputs = len(call.weight), call.weight[0].numel()
            uses, positions = watch.uses(name, bias), output.numel() // width
            layers[name] = Layer(
                bias, output.shape, call.settings, uses, call.groups, positions, inputs, width // call.groups
            )
    return layers

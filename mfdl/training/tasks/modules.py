"""Torch modules that can be trained with per-record clipping, and their per-record functions.

Clipping bounds a record's influence only if its output does not depend on the records beside it, and a repeated step
must give the same gradients: layers that mix records, draw at random or change their buffers are refused, by name where
the layer is known, and by a numerical test.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from ... import check
from ...errors import InvalidInput, UnsupportedMechanism
from . import stacked_layers
from .stacked_layers import written_out

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Parameters = dict[str, torch.Tensor]
PROBE_RECORDS = 4
BROADCASTS = "Using a target size"  # how torch's losses warn that they repeat a target over the outputs
INDEPENDENCE_TOLERANCE = 1e-5  # relative change of a record's output, beside other records, that counts as rounding


def build(build_module: Callable[[], torch.nn.Module], seed: int) -> torch.nn.Module:
    """Builds a module with torch's CPU generator seeded; the global generator is left as it was."""
    if (itself := isinstance(build_module, torch.nn.Module)) or not callable(build_module):
        got = f"the module {type(build_module).__name__} itself" if itself else check.brief(build_module)
        raise InvalidInput(
            f"build_module must be a function that returns a new module, got {got}; of a module that exists give "
            "functools.partial(copy.deepcopy, module)."
        )
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would also reseed the generators of other devices, which are not restored.
        torch.default_generator.manual_seed(seed)
        try:
            module = build_module()
        except Exception as error:
            name = getattr(build_module, "__name__", type(build_module).__name__)
            raise InvalidInput(
                f"build_module must return a new module when called without arguments, got {type(error).__name__} of "
                f"{name}: {_first_line(error)}; give a function, or functools.partial({name}, ...) with its arguments."
            ) from error
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"build_module must return a torch.nn.Module, got {type(module).__name__}.")
    if not any(p.requires_grad for p in module.parameters()):
        raise InvalidInput(f"build_module returned {type(module).__name__} without a trainable parameter.")
    return module


@dataclasses.dataclass(frozen=True, eq=False)
class PerRecordModel:
    """A module as functions of flat parameter rows (..., d); only parameters with `requires_grad` are in the rows."""

    module: torch.nn.Module
    loss: Loss

    @functools.cached_property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes.values()]

    @functools.cached_property
    def _types(self) -> dict[str, torch.dtype]:
        return {name: p.dtype for name, p in self.module.named_parameters()}

    @functools.cached_property
    def _places(self) -> dict[str, str]:
        """The name of the parameter at each place, as `functional_call` would restore one at several places wrongly."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return {
            f"{path}.{parameter_name}" if path else parameter_name: names[id(parameter)]
            for path, layer in self.module.named_modules()
            for parameter_name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)
        }

    @property
    def dimension(self) -> int:
        return sum(self._sizes)

    def initial_row(self) -> torch.Tensor:
        """The parameters as they were built, (d,): float32, or float64 if one of them is."""
        with torch.no_grad():
            row = torch.cat([p.reshape(-1) for p in self.module.parameters() if p.requires_grad])
        return row.to(torch.promote_types(row.dtype, torch.float32))

    def unflatten(self, rows: torch.Tensor) -> Parameters:
        """Rows (..., d) as parameters (..., *shape); views, no copy."""
        pieces, lead = rows.split_with_sizes(self._sizes, dim=-1), rows.shape[:-1]
        return {
            name: piece.view(lead + shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def parameters(self, rows: torch.Tensor) -> Parameters:
        """`unflatten` in the types in which the module computes, such as bfloat16."""
        return {name: piece.to(self._types[name]) for name, piece in self.unflatten(rows).items()}

    def output(self, parameters: Parameters, features: torch.Tensor) -> torch.Tensor:
        given = {place: parameters[name] for place, name in self._places.items() if name in parameters}
        with written_out():
            return cast(torch.Tensor, functional_call(self.module, given, (features,), tie_weights=False))

    @functools.cached_property
    def chain(self) -> list[tuple[str, torch.nn.Module]] | None:
        return stacked_layers.chain(self.module)

    def stacked_calls(
        self, parameters: Parameters, features: torch.Tensor
    ) -> tuple[torch.Tensor, list[stacked_layers.StackedCall]] | None:
        """Outputs (n, B, ...) and linear layers of a chain at each node's records; None for any other module."""
        if self.chain is None or not stacked_layers.is_plain(self.module):
            return None
        return stacked_layers.stacked_calls(self.chain, parameters, features)

    def record_output(self, parameters: Parameters, record: torch.Tensor) -> torch.Tensor:
        return self.output(parameters, record.unsqueeze(0)).squeeze(0)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of each record, of the shape of the targets, from outputs (*targets, ...)."""
        outputs, flat = outputs.flatten(0, targets.ndim - 1), targets.flatten()
        if self._is_cross_entropy(outputs, flat):  # vmap decomposes it, by a module slow to import
            losses = functional.cross_entropy(outputs, flat, reduction="none")
        else:
            losses = vmap(self.loss)(outputs, flat)
        return losses.reshape(targets.shape)

    def _is_cross_entropy(self, outputs: torch.Tensor, targets: torch.Tensor) -> bool:
        by_class = outputs.ndim == targets.ndim + 1 and not targets.is_floating_point()
        return self.loss is functional.cross_entropy and by_class

    def derivatives(
        self,
        variables: Sequence[torch.Tensor],
        outputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Derivatives of all losses (n, B), added up with weights, by variables: by copies for each record, its own."""
        if self._is_cross_entropy(outputs, targets):  # softmax less one at the class
            classes = targets.unsqueeze(-1)
            scores = outputs.detach().softmax(-1)
            backprops = scores.scatter_add_(-1, classes, scores.new_full((), -1.0).expand_as(classes))
            backprops = backprops if weights is None else backprops * weights.unsqueeze(-1)
            if len(variables) == 1 and variables[0] is outputs:
                return [backprops]
            total = (outputs * backprops).sum()
        else:
            losses = self.losses(outputs, targets)
            total = (losses if weights is None else losses * weights).sum()
        if not total.requires_grad:
            return [*map(torch.zeros_like, variables)]
        return [*torch.autograd.grad(total, variables, materialize_grads=True)]

    @torch.enable_grad()
    def per_record_gradients(self, rows: torch.Tensor, features: torch.Tensor, targets: torch.Tensor) -> Parameters:
        """Gradients (n, B, *shape) of every record at its node's row; rows (n, d), features (n, B, ...).

        The module computes in its own types; gradients have that of the rows, so that clipping and sums do.
        """
        # The rows are split outside: splitting inside would cost a d-sized gradient per parameter.
        copies = record_copies(self.parameters(rows), targets.shape[1])
        versions = [copy._version for copy in copies.values()]
        outputs = vmap(vmap(self.record_output))(copies, features)
        if versions != [copy._version for copy in copies.values()]:
            raise UnsupportedMechanism("a parameter changes in the forward pass, as by max_norm of an embedding")
        gradients = self.derivatives([*copies.values()], outputs, targets)
        return {name: gradient.to(rows.dtype) for name, gradient in zip(copies, gradients, strict=True)}

    @torch.enable_grad()
    def node_gradients(
        self, rows: torch.Tensor, features: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Gradients (n, d) of sum_j w_j loss_j at each node's row; weights (n, B)."""
        parameters = {name: p.detach().requires_grad_() for name, p in self.parameters(rows).items()}
        stacked = self.stacked_calls(parameters, features)
        outputs = stacked[0] if stacked else vmap(self.output)(parameters, features)
        gradients = self.derivatives([*parameters.values()], outputs, targets, weights)
        return torch.cat([gradient.reshape(len(rows), -1).to(rows.dtype) for gradient in gradients], dim=1)

    def outputs(self, rows: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Outputs (n, N, ...) of every node's row on the same records."""
        return vmap(self.output, in_dims=(0, None))(self.parameters(rows), features)

    def activation_size(self, features: torch.Tensor) -> int:
        """Numbers that all layers output for one record, by which work is cut into chunks."""
        with torch.no_grad():
            outputs = _leaf_outputs(self.module, features[:1])
        return features[0].numel() + sum(output.numel() for _, output in outputs)


def in_types(module: torch.nn.Module, dtype: torch.dtype) -> torch.dtype:
    """The type of features for a module, which is cast to `dtype` unless of half precision or several types."""
    types = {p.dtype for p in module.parameters()}
    if types <= {torch.float32} or types <= {torch.float64}:
        module.to(dtype)
    return types.pop() if len(types) == 1 and types <= {torch.float16, torch.bfloat16} else dtype


def inputs(module: torch.nn.Module, features: NDArray[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    dtype, records = in_types(module, dtype), torch.tensor(features)
    return records.to(dtype) if records.is_floating_point() else records


def record_copies(parameters: Parameters, num_records: int) -> Parameters:
    """Views (n, B, ...) of parameters (n, ...) for the records, by which autograd differentiates."""
    return {
        name: p.detach().unsqueeze(1).expand(-1, num_records, *p.shape[1:]).requires_grad_()
        for name, p in parameters.items()
    }


def checked_model(module: torch.nn.Module, loss: Loss, features: torch.Tensor, targets: torch.Tensor) -> PerRecordModel:
    """A `PerRecordModel`, checked on a few records of the task.

    Raises:
        UnsupportedMechanism: a layer mixes records, draws at random or changes buffers or parameters, or torch cannot
            take its per-record gradients.
        InvalidInput: the module fails on the records, or the loss is not a scalar per record.
    """
    refuse_by_name(module)
    with torch.no_grad():
        output = _refuse_by_trial(module, features)
        _check_loss(loss, output[0], targets[0])
    model = PerRecordModel(module, loss)
    rows, watch = model.initial_row()[None], _FailedCall()
    try:
        with watch:
            model.per_record_gradients(rows, features[None], targets[None])
    except Exception as error:
        raise UnsupportedMechanism(
            f"torch cannot take per-record gradients of {type(module).__name__}{watch.name and ' through '}"
            f"{watch.name}: {_first_line(error).split('. ')[0].rstrip('.')}; {_way_out(watch.name)}."
        ) from error
    return model


def _way_out(function_name: str) -> str:
    if function_name in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__"):
        return "keep values in tensors, and choose by torch.where instead of a branch"
    if function_name in ("nonzero", "masked_select", "unique", "__getitem__"):
        return "multiply by a mask or choose by torch.where, so that no shape depends on values"
    if function_name == "__setitem__" or function_name.endswith("_"):
        return "make a new tensor (torch.cat, torch.stack, torch.where) instead of a change in place"
    return "write it in other functions of torch, or freeze the layers before it and give their outputs as features"


class _FailedCall(TorchFunctionMode):
    name = ""  # of the function of torch that failed

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.name = getattr(func, "__name__", "")
            raise


def refuse_by_name(module: torch.nn.Module) -> None:
    """Refuses layers that mix records, draw at random or collect statistics in their present mode."""
    for name, layer in module.named_modules():
        where = f"layer {name or 'module'!r} ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            way = "" if layer.running_mean is None else ", or .eval() on it, which takes its running statistics"
            raise UnsupportedMechanism(
                f"{where} normalises by the mean and variance of a batch, which mixes the records, so clipping one "
                f"record's gradient does not bound its influence; use GroupNorm or LayerNorm{way}."
            )
        if isinstance(layer, _InstanceNorm) and layer.training and layer.track_running_stats:
            raise UnsupportedMechanism(
                f"{where} keeps running statistics of the records, which no noise protects; use "
                "track_running_stats=False, or call .eval() on it."
            )
        drops = isinstance(layer, torch.nn.RNNBase | torch.nn.MultiheadAttention)
        rate = layer.p if isinstance(layer, _DropoutNd) else layer.dropout if drops else 0.0
        if layer.training and (isinstance(layer, torch.nn.RReLU) or rate > 0):
            raise UnsupportedMechanism(
                f"{where} draws at random in training mode, so a step could not be repeated; "
                "remove it, set its rate to 0, or call .eval() on it in build_module."
            )


def _refuse_by_trial(module: torch.nn.Module, features: torch.Tensor) -> torch.Tensor:
    """Outputs of the module on the records, after a trial of the first and the last one beside others."""
    kind, places = type(module).__name__, (0, len(features) - 1)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[]):  # a random layer must not move the global generator
        try:
            output, again = module(features), module(features)
            beside_others = [module(_beside_others(features, place)) for place in places]
        except Exception as error:
            whole = "" if features.is_floating_point() else "; the features are integers, as indices are: give floats"
            raise InvalidInput(
                f"{kind} fails on a batch of {len(features)} records of shape {tuple(features.shape[1:])}: "
                f"{_first_line(error)}{whole}"
            ) from error
    if not isinstance(output, torch.Tensor) or output.shape[:1] != features.shape[:1]:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InvalidInput(f"{kind} must return one tensor with one row per record ({len(features)}), got {got}.")
    for name, buffer in module.named_buffers():
        if name not in buffers or not torch.equal(buffer.nan_to_num(), buffers[name].nan_to_num()):
            raise UnsupportedMechanism(
                f"buffer {name!r} of {kind} changes in the forward pass: it would keep unprotected facts about the "
                "records; compute it in build_module."
            )
    if not torch.equal(output.nan_to_num(), again.nan_to_num()):
        raise UnsupportedMechanism(
            f"{kind} gives two outputs for the same records, so a step could not be repeated; "
            "remove what draws at random in the forward pass."
        )
    for place, other in zip(places, beside_others, strict=True):
        if (change := _change(output[place], other[place])) > 0:
            layer, way = _mixing_layer(module, features, places)
            raise UnsupportedMechanism(
                f"{kind} mixes the records of a batch{layer}: the output of one record moved by {change:.3g} when the "
                f"others changed, so clipping its gradient does not bound its influence; {way}."
            )
    return output


def _beside_others(features: torch.Tensor, place: int) -> torch.Tensor:
    """One record unchanged beside others: copies of itself where records are integers."""
    if not features.is_floating_point():
        return features[[place]].expand_as(features).clone()
    others = 1 - 2 * features
    others[place] = features[place]
    return others


def _change(before: torch.Tensor, after: torch.Tensor) -> float:
    change = float((before.double() - after.double()).abs().max())
    return change if change > INDEPENDENCE_TOLERANCE * (1 + float(before.double().abs().max())) else 0.0


def _mixing_layer(module: torch.nn.Module, features: torch.Tensor, places: Sequence[int]) -> tuple[str, str]:
    """The first layer whose output for a record at one of the places moves with the others, in words; a way out."""
    names, alone = {layer: name for name, layer in module.named_modules()}, _leaf_outputs(module, features)
    pairs = [
        (place, *pair)
        for place in places
        for pair in zip(alone, _leaf_outputs(module, _beside_others(features, place)), strict=False)
    ]
    for place, (layer, output), (_, other) in pairs:
        alike = output.shape == other.shape and output.shape[:1] == features.shape[:1]
        if alike and _change(output[place], other[place]) > 0:
            first = getattr(layer, "batch_first", True)
            way = "compute each record by itself" if first else "records are its second axis; use batch_first=True"
            return f" in layer {names[layer]!r} ({type(layer).__name__})", way
    return "", "compute each record by itself"


def _leaf_outputs(module: torch.nn.Module, batch: torch.Tensor) -> list[tuple[torch.nn.Module, torch.Tensor]]:
    """Layers without layers inside, and the output of each of their calls, the first of several tensors."""
    outputs: list[tuple[torch.nn.Module, torch.Tensor]] = []

    def note(layer: torch.nn.Module, _inputs: object, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple | list) else output
        if isinstance(tensor, torch.Tensor):
            outputs.append((layer, tensor))

    hooks = [layer.register_forward_hook(note) for layer in module.modules() if not any(layer.children())]
    try:
        module(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _check_loss(loss: Loss, output: torch.Tensor, target: torch.Tensor) -> None:
    if isinstance(loss, type) or not callable(loss):
        raise InvalidInput(
            "loss must be a function (output of one record, its target) -> scalar, e.g. "
            f"torch.nn.functional.cross_entropy, got {check.brief(loss)}."
        )
    if getattr(loss, "weight", None) is not None and getattr(loss, "reduction", None) == "mean":
        raise InvalidInput(
            f"loss must not be a weighted mean, got {loss}: over one record its class weights cancel; use "
            "reduction='sum'."
        )
    try:
        with warnings.catch_warnings():
            if not target.is_floating_point() and output.numel() != target.numel():
                warnings.filterwarnings("error", BROADCASTS, UserWarning)
            value = loss(output, target)
    except Exception as error:
        if isinstance(error, UserWarning) and str(error).startswith(BROADCASTS):
            raise InvalidInput(
                f"loss compares each of the outputs {tuple(output.shape)} of one record with the number of its class, "
                f"got {check.brief(loss)}; use torch.nn.functional.cross_entropy, or float targets of "
                "kind='regression'."
            ) from error
        raise InvalidInput(
            f"loss fails on the output {tuple(output.shape)} and target {tuple(target.shape)} of one record: "
            f"{_first_line(error)}"
        ) from error
    if not isinstance(value, torch.Tensor) or value.ndim != 0 or not value.is_floating_point():
        got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidInput(
            f"loss must return a floating-point scalar tensor for one record (output {tuple(output.shape)}, "
            f"target {tuple(target.shape)}), got {got}; reduce it to one number: a batch is added up after clipping."
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def node_batch(
    features: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype, slots: slice = slice(None)
) -> tuple[torch.Tensor, ...]:
    """Records, targets and weights (nodes, B) of the mean over the present records, and which nodes have any.

    An absent slot repeats a present record at weight 0: padding could give 0 * inf = nan.
    """
    weights = mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)
    places = torch.arange(mask.shape[1], device=mask.device)
    chosen = torch.where(mask, places, mask.int().argmax(1, keepdim=True))[:, slots]  # exact: booleans
    rows = torch.arange(len(mask), device=mask.device).unsqueeze(1)
    return features[rows, chosen], targets[rows, chosen], weights[:, slots], mask.any(1)

"""What a `PrivateNode` refuses of its arguments: other types, other parameters, guarantees that hold for less.

In: optimizer, module, mechanism, and the tensors of a batch. Out: nothing, or a refusal before anything happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import check
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism
from . import covered


def require_batch(records: object, **tensors: object) -> None:
    """Refuses what has no axis of records."""
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"{name} must be a tensor, got {type(value).__name__}; torch.as_tensor makes one.")
        if not value.ndim:
            raise InvalidInput(
                f"{name} must be a batch of records, shape (B, ...), got shape (); a batch of one record is "
                "features[None] and targets[None]."
            )
    if records is not None and not hasattr(records, "__len__"):
        raise InvalidInput(
            f"records must be a list of a number for each record, got {check.brief(records)}; leave it out, or give "
            "[number] for a batch of one record."
        )


def require_types(**given: Any) -> None:
    ways = {
        "optimizer": (torch.optim.Optimizer, "torch.optim.SGD(module.parameters(), lr=0.1)"),
        "module": (torch.nn.Module, "the module itself, not a function that builds it"),
        "mechanism": (Mechanism, "mfdl.calibrate(algorithm, ...)"),
    }
    for name, value in given.items():
        kind, way = ways[name]
        if not isinstance(value, kind):
            raise InvalidInput(f"{name} must be a {kind.__name__}, e.g. {way}, got {type(value).__name__}.")


def require_same_parameters(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = {name: id(p) for name, p in module.named_parameters() if p.requires_grad}
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedMechanism(
            "LBFGS evaluates gradients several times a step, and one was accounted; use SGD, Adam or another optimizer "
            "of one gradient a step."
        )
    missing = [name for name, identity in named.items() if identity not in moved]
    if missing or len(moved) != len(named):
        raise InvalidInput(
            "optimizer must hold exactly the trainable parameters of module, got "
            f"{f'none for {missing[0]!r}' if missing else f'{len(moved)} tensors for {len(named)}'}; make it with "
            "module.parameters()."
        )


def require_injected_sums(mechanism: Mechanism) -> None:
    """Refuses a guarantee that holds for less than every function of the injected sums."""
    mechanism.require_unchanged()
    guarantee = mechanism.guarantee
    if mechanism.sampling is not None:
        raise UnsupportedMechanism(
            f"this guarantee counts on batches that are drawn secretly, by {guarantee.participation}, and here "
            "the caller chooses the records of each step; train by mfdl.replay, which draws them, or calibrate for a "
            "public participation such as Cyclic."
        )
    if guarantee.adjacency == "add-remove":
        raise UnsupportedMechanism(
            "under add-remove adjacency the number of records is not public, but steps and divisors may follow it; use "
            "zero-out or replace-one."
        )
    covered.require_injected_sums(
        mechanism, "what another optimizer or loop makes of the gradients", "train by mfdl.replay"
    )


def require_shapes(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Refuses a saved state of an optimizer of torch with a tensor that would be broadcast to its parameter."""
    factored = isinstance(optimizer, torch.optim.Adafactor)
    if factored or not type(optimizer).__module__.startswith("torch.optim"):
        return  # their states have shapes of their own
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, values in state["state"].items():
        for name, value in values.items():
            shape = tuple(getattr(value, "shape", ()))
            if shape and (place >= len(parameters) or shape != tuple(parameters[place].shape)):
                raise InvalidInput(
                    f"the optimizer's {name!r} of parameter {place} has shape {shape}, and the parameter another one; "
                    "load what PrivateNode.state_dict gave, of a node with this module."
                )

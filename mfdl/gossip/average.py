"""One node's averaging in a loop of one's own: messages in, with the weights of its row of W, one message out."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from .. import check
from ..errors import InvalidInput
from .matrix import Gossip

Message = TypeVar("Message")


def average(messages: Mapping[int, Message], gossip: Gossip, node: int, *, step: int = 0) -> Message:
    """Sum over j of W[node, j] times the message of j.

    Args:
        messages: by index of the sender, the node's own included: arrays or tensors of one shape, or mappings of them
            by name, as `module.state_dict()` is.
        gossip: the weights; a `GossipSequence` gives those of `step`.
    Returns: what each message is: an array or tensor, or a dictionary of them, of the type that weight times message
        has. Nothing is changed in place.
    Raises: InvalidInput: a message missing to which W gives weight, one to which it gives none, or names that differ.

    >>> import mfdl, numpy as np
    >>> W = mfdl.gossip.from_array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    >>> average({0: np.array([4.0]), 1: np.array([2.0])}, W, node=0)
    array([3.])
    """
    check.instance(Gossip, gossip=gossip)
    node = check.integer_at_least(0, node=node)
    if node >= gossip.num_nodes:
        raise InvalidInput(f"node must be below {gossip.num_nodes}, the number of nodes, got {node}.")
    row = gossip.at(step).weights[[node], :].tocoo()
    weights = {int(j): float(w) for j, w in zip(row.col, row.data, strict=True) if w != 0}
    if set(check.mapping("messages by node", messages=messages)) != set(weights):
        missing, extra = sorted(set(weights) - set(messages)), sorted(set(messages) - set(weights), key=repr)
        raise InvalidInput(
            f"node {node} averages the messages of nodes {sorted(weights)} at step {step}, got "
            f"{'none of ' + str(missing) if missing else 'also one of ' + str(extra)}; a missing one cannot be left "
            "out, since the accounted weights would change: wait for it, or account a matrix without that edge."
        )
    first: Any = messages[min(weights)]
    if not isinstance(first, Mapping):
        return _weighted(messages, weights)
    if any(set(cast(Any, message)) != set(first) for message in messages.values()):
        raise InvalidInput(f"messages must name the same tensors, {sorted(first)}; send all of one model.")
    return cast(
        Message, {name: _weighted({j: cast(Any, m)[name] for j, m in messages.items()}, weights) for name in first}
    )


def _weighted(messages: Mapping[int, Any], weights: Mapping[int, float]) -> Any:
    return functools.reduce(operator.add, (w * messages[j] for j, w in weights.items()))

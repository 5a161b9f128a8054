"""Objects of the caller as the values of options: graph, gossip, task, mechanisms and trust model.

An option takes the name of one of these or the object itself; the object becomes a `Given` text, named by its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..given import PREFIX, Given

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from ..trust import TrustModel


def _graph(graph: Any) -> Given[Any]:
    from .. import check, graphs

    if not (isinstance(graph, graphs.SparseGraph) or graphs.is_networkx(graph)):
        raise InvalidInput(f"graph must be a networkx graph, the name of one or a file, got {check.brief(graph)}.")
    return Given.named(str(graph.name or "graph"), graphs.content_hash(graph), graph)


def _gossip(weights: Any) -> Given[Any]:
    from .. import gossip

    if isinstance(weights, gossip.GossipMatrix):
        return Given.named(str(weights.name or "gossip"), weights.content_hash, weights)
    return Given.named("gossip", gossip.from_array(weights).content_hash, weights)  # rows in label order of the graph


def _task(task: Any) -> Given[Any]:
    from .. import check
    from ..training.tasks import Task

    check.instance(Task, task=task)
    return Given.named(task.name, task.content_hash, task)


def _mechanism(mechanism: Any) -> Given[Any]:
    """An algorithm, that of a mechanism, or a function of dynamics and participation that builds one."""
    from ..algorithms import LinearAlgorithm
    from ..mechanism import Mechanism

    if isinstance(mechanism, Mechanism):
        mechanism = mechanism.algorithm
    if not isinstance(mechanism, LinearAlgorithm) and callable(mechanism) and not isinstance(mechanism, type):
        from ..training.tasks import records

        name = getattr(mechanism, "__name__", type(mechanism).__name__)
        return Given.named(name, records.callable_digest(mechanism).hex(), mechanism)
    if not isinstance(mechanism, LinearAlgorithm):
        from ..check import brief

        raise InvalidInput(
            "a mechanism must be a name, a LinearAlgorithm, or a function of (dynamics, participation) that returns "
            f"one, got {brief(mechanism)}."
        )
    return Given.named(mechanism.name, mechanism.content_hash, mechanism)


def _mechanisms(mechanisms: Any) -> Any:
    if isinstance(mechanisms, list | tuple):
        return tuple(each if isinstance(each, str) else _mechanism(each) for each in mechanisms)
    return (_mechanism(mechanisms),)


AS_TEXT: dict[str, Callable[[Any], Any]] = {
    "graph": _graph,
    "gossip": _gossip,
    "task": _task,
    "mechanisms": _mechanisms,
}
"""By option; the trust model has `trust_text`, since only an algorithm tells what it sees."""


def as_text(option: str, value: Any) -> Any:
    """The value of an option as configs hold it: texts as they are, paths as texts, objects as `Given`.

    Raises: InvalidInput: an object that the option does not take.
    """
    if value is None or isinstance(value, str) or option not in AS_TEXT:
        return value
    return os.fspath(value) if isinstance(value, os.PathLike) else AS_TEXT[option](value)


def trust_text(trust: TrustModel, algorithm: LinearAlgorithm) -> Given[TrustModel]:
    """A trust model by its name and by what it sees and knows of an algorithm, whose noise is local."""
    return Given.named(trust.name, trust.fingerprint(algorithm), trust)


def shipped_trust(model: TrustModel) -> dict[str, Any]:
    """The options of a trust model of the library, nodes as labels or as #INDEX; empty of the caller's own."""
    from ..trust import named
    from ..trust.base import MODELS

    if model.name not in MODELS:
        return {}
    nodes = {"attackers": "attacker_nodes", "colluders": "colluders"}
    values: dict[str, Any] = {
        option: tuple(node if isinstance(node, str) else f"#{node}" for node in getattr(model, attribute))
        for option, attribute in nodes.items()
        if hasattr(model, attribute)
    }
    values |= {"coalition_size": model.size} if hasattr(model, "size") else {}
    options = {name: values[name] for name in MODELS.entry(model.name).signature if name in values}
    try:
        same = type(named(model.name, **options)) is type(model)
    except InvalidInput:
        return {}
    return {"trust": model.name, **options} if same else {}


def is_own(text: str) -> bool:
    """Whether a text names an object of the caller."""
    return text.startswith(PREFIX)

"""Learning tasks: records on nodes, a torch module and a per-record loss.

>>> names()
['digits', 'digits-mlp', 'housing']
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from ...errors import InvalidInput, unknown_name
from ._digits import digits
from ._housing import housing
from ._instance import Evaluation, TaskInstance
from ._task import Task, from_module

__all__ = ["Evaluation", "Task", "TaskInstance", "digits", "from_module", "housing", "load", "names"]

_TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "digits-mlp": functools.partial(digits, model="mlp"),
    "housing": housing,
}


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(_TASKS)


def load(name: str, graph: Any, data_home: str | os.PathLike[str] | None = None, **params: Any) -> Task:
    """The task of a name on the nodes of a graph.

    Args:
        name: one of `names()`.
        graph: a networkx graph, or the number of nodes.
        data_home: where downloaded data are cached; ignored by tasks that download nothing.
        params: further parameters of the task's function.

    Raises:
        InvalidInput: unknown name or parameter, or what the task's function refuses.
    """
    if name not in _TASKS:
        raise unknown_name("task", name, _TASKS)
    make = _TASKS[name]
    allowed = list(inspect.signature(make).parameters)[1:]
    if isinstance(make, functools.partial):
        allowed = [parameter for parameter in allowed if parameter not in make.keywords]
    if "data_home" in allowed:
        params["data_home"] = data_home
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        raise InvalidInput(
            f"task {name!r} has no parameter {unknown[0]!r}; known: {', '.join(sorted(allowed)) or 'none'}."
        )
    return make(graph, **params)
